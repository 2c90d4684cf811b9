"""Every flag of every script with odd values: parsed and checked as the script does it.

A run is cut off where it would begin to compute: what comes so far is accepted.
"""

import contextlib
import functools
import importlib
import io
import json
import os
import re
import unittest.mock as mock

from absl import flags

import convert_checkpoint
import house
import mutations
from adapter_bert.common import cli, errors
from adapter_bert.common.errors import UserError
from adapter_bert.formats import task_adapter
from adapter_bert.training import finetuning
from adapter_tests.support import tiny
from house import Reader

_ODD = (
    *(text for text in mutations.ODD_TEXTS if "\0" not in text and len(text) < 1000),
    "x" * 300,  # No file may be called so.
    "1e308",
    "-inf",
    "1_000",
    "１",
    "0x10",
    "0-",
    "3-1",
    "0,0,1",
    "1,2,",
    ",",
    "=",
    "a=b",
    "lr=",
    "1/0",
    "2/1",
    "/",
    "/dev/null",
    "no/such/place",
    "*",
    "[",
    "~",
    "$HOME",
    "localhost",
    "::",
    "sqlite:///",
    "True,False",
    "--",
    "2147483647",
    "4",
    "0.1",
    "gelu",
)
_NUMBERS = ("-1", "0", "1", "2", "3", "4", "7", "33", "1000000", "2147483647", "9" * 25)
_NUMBERS += ("0.5", "0.999", "1e-9", "1e308", "nan", "inf", "-0.0")
_FILE = "arguments.json"


class _Begins(Exception):
    """Where a run would begin to compute."""


def _begin(*arguments, **options):
    raise _Begins


def all_readers():
    """List of `Reader`s, one for each script."""
    found = [
        _script(
            "run_classifier", _classifier, [(finetuning.Job, "train"), (finetuning.Job, "predict")]
        ),
        _script("run_squad", _squad, [(finetuning.Job, "train"), (finetuning.Job, "predict")]),
        _script("run_ablation", _ablation, [(finetuning.FinishedJob, "begin")]),
        _script("run_baseline", _baseline, [("adapter_bert.baseline.training:Modules", "opened")]),
        _script("run_sweep", _sweep, [("adapter_bert.experiments.sweep:Sweep", "check_flags")]),
        _script("run_report", _report, [("adapter_bert.experiments.reports", "render")]),
        _script("export_model", _export, [("adapter_bert.serving.saved_model", "write")]),
        _script("serve", _serve, [("adapter_bert.serving.bank:AdapterBank", "__init__")]),
    ]
    name = "convert_checkpoint flags"
    found.append(Reader(name, _valid_conversion, _read_convert, _named, _odd_argument))
    return found


def _script(name, given, ends):
    """A script's `Reader`.

    Args:
      given: function () → the flags of a valid command: dict.
      ends: (object or its dotted name, attribute) of functions at which a run would begin.
    """
    return Reader(
        f"{name} flags",
        lambda: _arguments_file(given()),
        functools.partial(_read, name, ends),
        _named,
        functools.partial(_odd_flag, name),
    )


def _arguments_file(arguments):
    return {_FILE: json.dumps(arguments).encode()}


def _named(files):
    """What a refusal names: a flag, or a value that was given, as a file is, as errors show it.

    A value of one or two characters stands in many a sentence by chance.
    """
    given = json.loads(files[_FILE].decode())
    values = given.values() if isinstance(given, dict) else given
    texts = (re.sub(r"^--\w+=", "", str(value)) for value in values)
    shown = (str(UserError(text.rstrip("/") or text)) for text in texts)
    return ("--", *(text for text in shown if len(text) > 2))


def _ended(main, *arguments):
    """Calls a script's main as the script does; raises UserError with what it said if it failed."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            code = errors.exit_code(main, *arguments)
        except SystemExit as error:  # argparse's.
            code = error.code
    if code:
        raise UserError(said.getvalue().strip().split("\n")[-1])


def _given(folder):
    with open(os.path.join(folder, _FILE), encoding="utf-8") as reader:
        return json.load(reader)


def _odd_flag(name, random, files):
    """One to three of all the script's flags with an odd value."""
    values = flags.FlagValues()
    importlib.import_module(name).define_flags(values)
    given = json.loads(files[_FILE].decode())
    for flag in random.sample(sorted(values), random.choice((1, 1, 2, 3))):
        given[flag] = _odd_value(random, values[flag])
    return _arguments_file(given)


def _odd_value(random, flag):
    """A text for a flag: as a rule one of its type, which the flag may have."""
    kind, some = flag.flag_type(), _ODD
    if random.random() < 0.7:
        if kind in ("int", "float"):
            some = _NUMBERS
        elif kind == "bool":
            some = ("true", "false")
        elif kind == "string enum":
            some = flag.parser.enum_values
    return random.choice(some)


def _read(name, ends, folder):
    script, values = importlib.import_module(name), flags.FlagValues()
    script.define_flags(values)
    arguments = [f"--{flag}={value}" for flag, value in _given(folder).items()]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_inside(folder))
        for place, attribute in ends:
            stack.enter_context(mock.patch.object(_import(place), attribute, _begin))
        stack.enter_context(mock.patch.object(flags, "FLAGS", values))
        with contextlib.suppress(_Begins):
            cli._parse([name + ".py", *arguments])
            _ended(script.main, [name + ".py"])


@contextlib.contextmanager
def _inside(folder):
    """While entered, relative paths are of this folder."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _import(dotted):
    """A module, or a class in it, by its name as in "package.module:Class"."""
    if not isinstance(dotted, str):
        return dotted
    module, _, name = dotted.partition(":")
    module = importlib.import_module(module)
    return getattr(module, name) if name else module


# ---- Commands that are right


def _bert_flags():
    names = {"bert_config_file": "bert_config.json", "vocab_file": "vocab.txt"}
    names["init_checkpoint"] = "bert_model.ckpt"
    return {flag: os.path.join(house.bert(), name) for flag, name in names.items()}


@functools.lru_cache(maxsize=None)
def _mrpc():
    return tiny.write_mrpc(os.path.join(house.root(), "MRPC"))


@functools.lru_cache(maxsize=None)
def _adapter():
    folder = os.path.join(house.root(), "mrpc", "adapter")
    task_adapter.save(folder, house.adapter(task="MRPC"))
    return folder


def _cache():
    return {"feature_cache_dir": os.path.join(house.root(), "features")}


def _classifier():
    return {
        **_bert_flags(),
        **_cache(),
        "task_name": "MRPC",
        "data_dir": _mrpc(),
        "max_seq_length": 16,
        "output_dir": "out",
        "do_train": True,
        "train_batch_size": 4,
    }


@functools.lru_cache(maxsize=None)
def _squad_file():
    context = "The big dog sees a small bird and hears the old cat ."
    answers = [{"text": "bird", "answer_start": 25}]
    qas = [{"id": str(i), "question": "What sees the dog ?", "answers": answers} for i in range(8)]
    path = os.path.join(house.root(), "squad.json")
    with open(path, "w") as writer:
        json.dump(
            {"data": [{"title": "T", "paragraphs": [{"context": context, "qas": qas}]}]}, writer
        )
    return path


def _squad():
    return {
        **_bert_flags(),
        **_cache(),
        "train_file": _squad_file(),
        "predict_file": _squad_file(),
        "max_seq_length": 24,
        "max_query_length": 8,
        "doc_stride": 4,
        "train_batch_size": 4,
        "output_dir": "out",
    }


def _ablation():
    given = {name: value for name, value in _classifier().items() if "train" not in name}
    return {**given, "adapter": _adapter()}


def _baseline():
    return {
        "task_name": "MRPC",
        "data_dir": _mrpc(),
        "module": os.path.join(house.root(), "no module"),
        "output_dir": "out",
        "trials": 1,
    }


def _sweep():
    checkpoint = _bert_flags()["init_checkpoint"]
    settings = {"task_name": "MRPC", "init_checkpoint": checkpoint}
    grid = {"grids": [settings, {**settings, "adapter_size": [8, 16]}]}
    path = os.path.join(house.root(), "grid.json")
    with open(path, "w") as writer:
        json.dump(grid, writer)
    return {"grid": path, "output_dir": "out", "dry_run": True}


def _report():
    results = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "results")
    return {"records": os.path.join(results, "records"), "report": "table1", "report_dir": "out"}


def _export():
    return {**_bert_flags(), "adapters": _adapter(), "export_dir": "out"}


def _serve():
    return {**_bert_flags(), "adapters": _adapter(), "port": 0}


# ---- convert_checkpoint.py, whose commands argparse reads


def _convert():
    return ["from_adapterhub", _source(), house.bert(), "made", "--max_seq_length=16"]


@functools.lru_cache(maxsize=None)
def _source():
    """An adapter in AdapterHub's format."""
    folder = os.path.join(house.root(), "adapterhub")
    convert_checkpoint.to_adapterhub(_adapter(), folder)
    return folder


@functools.lru_cache(maxsize=None)
def _huggingface():
    folder = os.path.join(house.root(), "huggingface")
    convert_checkpoint.to_huggingface(house.bert(), folder)
    return folder


@functools.lru_cache(maxsize=None)
def _full_checkpoint():
    prefix = os.path.join(house.root(), "full.ckpt")
    convert_checkpoint.to_full_checkpoint(_adapter(), house.bert(), prefix)
    return prefix


def _valid_conversion():
    return _arguments_file(_convert())


def _odd_argument(random, files):
    del files
    told = ("--task=MRPC", "--labels=0,1")
    command = random.choice(
        (
            ["from_huggingface", _huggingface(), "made"],
            ["to_huggingface", house.bert(), "made"],
            ["from_adapter_bert", _full_checkpoint(), house.bert(), "made", *told],
            ["to_full_checkpoint", _adapter(), house.bert(), "made"],
            ["to_adapterhub", _adapter(), "made"],
            _convert(),
            ["describe", _adapter()],
        )
    )
    place = random.randrange(len(command))
    head, equals, _ = command[place].partition("=")
    odd = random.choice(_ODD)
    command[place] = head + equals + odd if equals else odd
    return _arguments_file(command)


def _read_convert(folder):
    with _inside(folder):
        _ended(convert_checkpoint.main, _given(folder))
