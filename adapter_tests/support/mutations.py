"""Strategies for damaged files, and the property that a reader accepts or refuses each of them.

ADAPTER_BERT_EXAMPLES=500 draws 500 random examples of every property.
"""

import contextlib
import io
import json
import os
import resource
import shutil
import signal
import struct
import tempfile
import warnings
import zlib

import hypothesis
import hypothesis.strategies as st
from absl import logging

from adapter_bert.shell.errors import UserError

# A file may be missing, or be a folder.
MISSING, FOLDER = "missing", "folder"

ODD_TEXTS = (
    *("", " ", "0", "-1", "nan", "inf", "1e999", "9" * 25, "9" * 5000, "1.5", "true", "none"),
    *("../..", "a,b", "a\tb", "a\nb", "a\0b", '"', "\ufeff", "\u2028", "\u202eabc", "\x1b[31m"),
    *("İ", "😀", "x" * 70_000),
)
_DEEP = 100_000
_ODD_BYTES = (
    *(text.encode() for text in ODD_TEXTS),
    *(b"\xff", b"\xff\xfe", b"\r", b"\r\n", bytes(8), b"\xff" * 8, b"NaN", b"{}", b"\\ud800"),
    b"\xed\xa0\x80",  # A lone surrogate.
    b"[" * _DEEP,
)
_DEEPLY_NESTED = "deeply nested"  # `json_bytes` replaces it by many brackets.
_ODD_VALUES = (
    *ODD_TEXTS,
    *("\ud800", None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 0.5, 1e308),
    *(float("nan"), float("inf"), [], {}, [[]], [None], {"": None}, _DEEPLY_NESTED),
)

_MAX_SECONDS = 20
_MAX_BYTES = 1 << 30
_EXAMPLES = int(os.environ.get("ADAPTER_BERT_EXAMPLES", "0"))


def _times(strategy, content):
    """Returns a strategy that applies strategy(content) one to three times."""

    @st.composite
    def repeated(draw):
        changed = content
        for _ in range(draw(st.sampled_from((1, 1, 2, 3)))):
            changed = draw(strategy(changed))
        return changed

    return repeated()


def damaged_bytes(content):
    """Returns a strategy for flipped, cut, duplicated, moved and overwritten bytes."""
    return _times(_changed_bytes, content)


@st.composite
def _changed_bytes(draw, content):
    begin, target = (draw(st.integers(0, len(content))) for _ in range(2))
    longest = draw(st.sampled_from((1, 8, 64, len(content))))
    end = min(len(content), begin + draw(st.integers(0, longest)))
    odd, bit = draw(st.sampled_from(_ODD_BYTES)), 1 << draw(st.integers(0, 7))
    head, cut, tail = content[:begin], content[begin:end], content[end:]
    flipped = head + bytes(byte ^ bit for byte in content[begin : begin + 1]) + content[begin + 1 :]
    overwritten = head + odd + content[begin + len(odd) :]
    changes = [flipped, flipped, head + odd + content[begin:], overwritten]
    changes += [content[:target] + cut + content[target:], content[:end] + content[begin:]]
    changes += [head + tail, head, content[begin:], head + bytes(end - begin) + tail]
    return draw(st.sampled_from(changes))


def damaged_lines(separator):
    """Returns a strategy function that drops, duplicates, moves and replaces lines and fields."""

    @st.composite
    def changed(draw, content):
        lines = content.split(b"\n")
        row = draw(st.integers(0, len(lines) - 1))
        fields = lines[row].split(separator)
        field, odd = draw(st.integers(0, len(fields) - 1)), draw(st.sampled_from(_ODD_BYTES))
        head, tail = fields[:field], fields[field + 1 :]
        changes = [[], [b""], [lines[row]] * 2, [lines[-1 - row]]]
        rows = ([*head, odd, *tail], [*head, odd, *tail], head + tail, [*fields, odd])
        changes += [[separator.join(fields)] for fields in (*rows, fields[field:] + head)]
        lines[row : row + 1] = draw(st.sampled_from(changes))
        return b"\n".join(lines)

    return changed


@st.composite
def damaged_value(draw, value):
    """Draws a JSON value with a part, at any depth, replaced, removed, duplicated or renamed."""
    if not (isinstance(value, (dict, list)) and value) or draw(st.integers(0, 6)) == 6:
        return draw(st.sampled_from((*_ODD_VALUES, *_ODD_VALUES, [value], {"a": value})))
    if isinstance(value, list):
        index, change = draw(st.integers(0, len(value) - 1)), draw(st.integers(0, 4))
        kept = [] if change == 3 else [value[index]] * 2
        changed = kept if change > 2 else [draw(damaged_value(value[index]))]
        return [*value[:index], *changed, *value[index + 1 :]]
    name, change = draw(st.sampled_from(sorted(value))), draw(st.integers(0, 9))
    rest = {key: inner for key, inner in value.items() if key != name}
    if change == 8:
        return rest
    if change == 9:
        return {**rest, draw(st.sampled_from(ODD_TEXTS)): value[name]}
    return {**rest, name: draw(damaged_value(value[name]))}


def json_bytes(value):
    """Returns the JSON of a value of `damaged_value`."""
    text = json.dumps(value)
    return text.replace(f'"{_DEEPLY_NESTED}"', "[" * _DEEP + "]" * _DEEP).encode()


def damaged_json(content):
    """Returns a strategy for JSON with one to three changed values or keys."""
    try:
        value = json.loads(content.decode())
    except ValueError:
        return damaged_bytes(content)
    return _times(damaged_value, value).map(json_bytes)


@st.composite
def _damaged_json_line(draw, content):
    lines = content.split(b"\n")
    row = draw(st.integers(0, len(lines) - 1))
    lines[row] = draw(damaged_json(lines[row]))
    return b"\n".join(lines)


@st.composite
def _damaged_safetensors(draw, content):
    """Draws a safetensors file with a changed header, and usually the header's right length."""
    (length,) = struct.unpack_from("<Q", content)
    header = draw(damaged_json(content[8 : 8 + length]))
    right = len(header)
    told = draw(st.sampled_from((*[right] * 16, 0, 1, 1 << 32, (1 << 64) - 1)))
    return struct.pack("<Q", told) + header + content[8 + length :]


_BY_EXTENSION = {
    "tsv": damaged_lines(b"\t"),
    "txt": damaged_lines(b"\t"),
    "csv": damaged_lines(b","),
    "json": damaged_json,
    "jsonl": _damaged_json_line,
    "safetensors": _damaged_safetensors,
}


@st.composite
def damaged_files(draw, contents, names=None):
    """Draws files by name. One of them, from `names` if set, is damaged, missing or a folder."""
    name = draw(st.sampled_from(sorted(names or contents)))
    by_extension = _BY_EXTENSION.get(name.rpartition(".")[2], damaged_bytes)
    kind = draw(st.integers(0, 49))
    if kind >= 48:
        return {**contents, name: (MISSING, FOLDER)[kind - 48]}
    damage = damaged_bytes if kind < 15 else by_extension
    return {**contents, name: draw(damage(contents[name]))}


# ---- The property


def check(contents, read, names=None, damage=damaged_files, refuses=True):
    """Checks that a reader accepts damaged files or refuses them with a one-sentence UserError.

    Reading must end within 20 seconds and need less than 1 GB of additional memory.

    Args:
      contents: valid files, bytes by name; `read` must accept them.
      read: function of a folder with the files.
      names: texts of which a refusal must contain one, by default the files' names; or a function
        from the damaged files to these texts.
      damage: function from contents to a strategy for damaged ones.
      refuses: whether at least one damaged input must be refused; False if damage is repaired.
    """
    refused, label = [], "".join([read.__qualname__, *sorted(contents)])

    @hypothesis.settings(
        max_examples=_EXAMPLES or 25,
        derandomize=not _EXAMPLES,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=[
            hypothesis.HealthCheck.too_slow,
            hypothesis.HealthCheck.data_too_large,
            hypothesis.HealthCheck.large_base_example,
        ],
    )
    @hypothesis.given(damage(contents).map(_Files))
    def property_holds(damaged):
        accepted = names(damaged) if callable(names) else names or tuple(damaged)
        error = refusal(damaged, read)
        if error:
            refused.append(error)
            assert_one_sentence(error, accepted)

    assert not refusal(contents, read), f"the valid files are refused: {refusal(contents, read)}"
    if not _EXAMPLES:  # Without a seed, every property would draw the same choices.
        property_holds = hypothesis.seed(zlib.crc32(label.encode()))(property_holds)
    property_holds()
    assert refused or not refuses, "no damage was refused"


class _Files(dict):
    """Files by name, with a short repr for hypothesis."""

    def __repr__(self):
        return repr({name: content[:3000] for name, content in self.items()})


def refusal(contents, read):
    """Returns the UserError with which `read` refuses files in a new folder, or None."""
    folder = tempfile.mkdtemp()
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.FATAL)
    try:
        _write(folder, contents)
        with warnings.catch_warnings(), _bounded(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's, for overflowing numbers.
            read(folder)
        return None
    except UserError as error:
        return error
    finally:
        logging.set_verbosity(verbosity)
        shutil.rmtree(folder, ignore_errors=True)


def assert_one_sentence(error, names):
    """Checks that a refusal is one printable line that contains one of the names."""
    sentence = str(error)
    assert sentence.isprintable() and len(sentence) <= 2000, sentence
    assert any(name in sentence for name in names), f"no name of {names[:9]}: {sentence}"


def _write(folder, contents):
    for name, content in contents.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if content == FOLDER:
            os.makedirs(path)
        elif content != MISSING:
            with open(path, "wb") as writer:
                writer.write(content)


@contextlib.contextmanager
def _bounded():
    """Fails if the block takes too long or too much memory."""

    def fail(*_):
        raise AssertionError(f"not read within {_MAX_SECONDS} seconds")

    before, handler = _peak_bytes(), signal.signal(signal.SIGALRM, fail)
    signal.alarm(_MAX_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
    taken = _peak_bytes() - before
    assert taken < _MAX_BYTES, f"took {taken >> 20} MB"


def _peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


# ---- Inputs of readers


def files_in(folder):
    """Returns the bytes of each file below a folder by relative path."""
    contents = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with open(path, "rb") as reader:
                contents[os.path.relpath(path, folder)] = reader.read()
    return contents


def written_by(write):
    """Returns the files that write(folder) writes."""
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        return files_in(folder)
