"""What readers are tried on: a tiny BERT, its task adapters and a tokenizer, made only once."""

import contextlib
import datetime
import functools
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
_PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, _PROJECT)

from typing import Callable, NamedTuple, Tuple, Union  # noqa: E402

from absl import flags  # noqa: E402

import mutations  # noqa: E402
import tokenization  # noqa: E402
from adapter_tests.support import own_models, tiny  # noqa: E402


class Reader(NamedTuple):
    """A way in.

    Attributes:
      name: what the table calls it.
      valid: function () → a valid input: dict from files' names to bytes.
      read: function of a folder with these files, which reads them as the program does.
      names: function of an input → texts of which a refusal holds one; or these themselves, by
        default the files' names.
      mutate: function (random, input) → a bad one.
    """

    name: str
    valid: Callable
    read: Callable
    names: Union[Tuple[str, ...], Callable] = ()
    mutate: Callable = mutations.mutated


@functools.lru_cache(maxsize=None)
def root():
    """A folder for as long as the process lives."""
    keeper = tempfile.TemporaryDirectory()
    _KEPT.append(keeper)
    return keeper.name


_KEPT = []


@functools.lru_cache(maxsize=None)
def bert():
    """The folder of `tiny`'s BERT."""
    return tiny.write_bert(os.path.join(root(), "bert"), initializer_range=0.4)


@functools.lru_cache(maxsize=None)
def tokenizer():
    """The `tokenization.FullTokenizer` of that BERT."""
    return tokenization.FullTokenizer(os.path.join(bert(), "vocab.txt"))


def adapter(seed=0, **changes):
    """A `task_adapter.TaskAdapter` on it."""
    return own_models.task_adapter(bert(), seed, **changes)


def files_in(folder):
    """What a folder holds: dict from relative paths to bytes."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            with open(path, "rb") as reader:
                found[os.path.relpath(path, folder)] = reader.read()
    return found


def written_by(make):
    """`Reader.valid` of a function that writes valid files into a folder."""

    @functools.lru_cache(maxsize=None)
    def valid():
        with tempfile.TemporaryDirectory() as folder:
            make(folder)
            return files_in(folder)

    return valid


def flag_values(script, *arguments):
    """The flags of a script's module, parsed."""
    values = flags.FlagValues()
    script.define_flags(values)
    values([script.__name__ + ".py", *arguments])
    return values


def names(text):
    """A command line's list of names."""
    return text.split(",")


def check_names(parser, flag, given, known):
    """Ends the program with a sentence if one of the names is unknown."""
    for name in given:
        if name not in known:
            parser.error(f"--{flag}: there is no {name!r}, expected some of {', '.join(known)}.")


def provenance():
    """A sentence: the day, and the revision of the project."""
    command = ["git", "-C", _PROJECT, "describe", "--always", "--dirty"]
    said = ""
    with contextlib.suppress(OSError):  # There may be no git.
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.strip()
    return f"{datetime.date.today()}, revision {said or 'unknown'}."


def text_files(**texts):
    """`Reader.valid` of texts by the names of files, in which __ stands for a dot."""
    return lambda: {name.replace("__", "."): text.encode() for name, text in texts.items()}
