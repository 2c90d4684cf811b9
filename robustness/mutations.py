"""Valid inputs → bad ones: by bytes, lines, JSON values and safetensors' headers, from a seed.

An input is a dict from files' names to what they hold: bytes, `MISSING` or `FOLDER`. Each function
takes a `random.Random` first and changes nothing that it is given.
"""

import json
import struct

MISSING, FOLDER = "missing", "folder"

_DEEP = 100_000
_PLACEHOLDER = "deeply nested"
# What stands for itself in a text, and in JSON where it is a value of JSON.
ODD_TEXTS = (
    "",
    " ",
    "0",
    "-1",
    "nan",
    "inf",
    "1e999",
    "9" * 25,
    "9" * 5000,
    "1.5",
    "true",
    "none",
    "../..",
    "a,b",
    "a\tb",
    "a\nb",
    "a\0b",
    '"',
    "\ufeff",
    "\u2028",
    "\u202eabc",
    "\x1b[31m",
    "İ",
    "😀",
    "x" * 70_000,
)
_ODD_BYTES = (
    *(text.encode() for text in ODD_TEXTS),
    b"\xff",
    b"\xed\xa0\x80",  # Half a surrogate pair.
    b"\xff\xfe",  # A byte order mark of UTF-16.
    b"\r",
    b"\r\n",
    bytes(8),
    b"\xff" * 8,
    b"[" * _DEEP,
    b"NaN",
    b"\\ud800",
    b"{}",
)
_ODD_VALUES = (
    *ODD_TEXTS,
    "\ud800",
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    10**400,
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    [],
    {},
    [[]],
    [None],
    {"": None},
    _PLACEHOLDER,
)


def mutated(random, files, of_file=None):
    """One of an input's files changed, or gone.

    Args:
      of_file: function (random, name, bytes) → bytes, by default `mutated_file`.
    """
    name = random.choice(sorted(files))
    fate = random.random()
    if fate < 0.01:
        return {**files, name: MISSING}
    if fate < 0.02:
        return {**files, name: FOLDER}
    return {**files, name: (of_file or mutated_file)(random, name, files[name])}


def mutated_file(random, name, content):
    """A file's bytes, changed as its ending suggests, or like any bytes."""
    ending = name.rpartition(".")[2]
    change = _BY_ENDING.get(ending, mutated_bytes)
    return (mutated_bytes if random.random() < 0.3 else change)(random, content)


def mutated_bytes(random, content):
    """Bytes of which one to three places are flipped, cut, doubled, moved or overwritten."""
    for _ in range(random.choice((1, 1, 2, 3))):
        content = random.choice(_BYTE_CHANGES)(random, content, *_slice(random, content))
    return content


def _slice(random, content):
    begin = random.randrange(len(content) + 1)
    longest = random.choice((1, 8, 64, len(content)))
    return begin, min(len(content), begin + random.randint(0, longest))


def _flip(random, content, begin, end):
    if begin == len(content):
        return content
    return (
        content[:begin] + bytes([content[begin] ^ 1 << random.randrange(8)]) + content[begin + 1 :]
    )


def _insert(random, content, begin, end):
    return content[:begin] + random.choice(_ODD_BYTES) + content[begin:]


def _overwrite(random, content, begin, end):
    odd = random.choice(_ODD_BYTES)
    return content[:begin] + odd + content[begin + len(odd) :]


def _splice(random, content, begin, end):
    place = random.randrange(len(content) + 1)
    return content[:place] + content[begin:end] + content[place:]


_BYTE_CHANGES = (
    _flip,
    _flip,
    _insert,
    _overwrite,
    _splice,
    lambda random, content, begin, end: content[:begin] + content[end:],
    lambda random, content, begin, end: content[:end] + content[begin:],
    lambda random, content, begin, end: content[:begin],
    lambda random, content, begin, end: content[begin:],
    lambda random, content, begin, end: content[:begin] + bytes(end - begin) + content[end:],
)


def lines_changed(separator):
    """A function (random, bytes) → bytes that changes lines and the fields between separators."""

    def change(random, content):
        lines = content.split(b"\n")
        place = random.randrange(len(lines))
        fields = lines[place].split(separator)
        field = random.randrange(len(fields))
        odd = random.choice(_ODD_BYTES)
        lines[place : place + 1] = random.choice(
            (
                [],
                [b""],
                [lines[place]] * 2,
                [lines[-1 - place]],
                [separator.join(fields[:field] + [odd] + fields[field + 1 :])],
                [separator.join(fields[:field] + [odd] + fields[field + 1 :])],
                [separator.join(fields[:field] + fields[field + 1 :])],
                [separator.join([*fields, odd])],
                [separator.join(fields[field:] + fields[:field])],
            )
        )
        return b"\n".join(lines)

    return change


def mutated_json(random, content):
    """JSON of which one to three values or keys are others; what is no JSON changes by bytes."""
    try:
        value = json.loads(content.decode())
    except ValueError:
        return mutated_bytes(random, content)
    for _ in range(random.choice((1, 1, 2, 3))):
        value = mutated_value(random, value)
    return json_bytes(value)


def json_bytes(value):
    """JSON's bytes of a value as `mutated_value` makes it."""
    text = json.dumps(value).replace(f'"{_PLACEHOLDER}"', "[" * _DEEP + "]" * _DEEP)
    return text.encode()


def mutated_value(random, value):
    """A JSON value with a change at a place within."""
    inside = isinstance(value, (dict, list)) and value
    if not inside or random.random() < 0.15:
        return random.choice(
            (random.choice(_ODD_VALUES), random.choice(_ODD_VALUES), [value], {"a": value})
        )
    if isinstance(value, list):
        place = random.randrange(len(value))
        change = [mutated_value(random, value[place])]
        change = random.choice((change, change, change, [], [value[place]] * 2))
        return [*value[:place], *change, *value[place + 1 :]]
    name = random.choice(sorted(value))
    rest = {key: inner for key, inner in value.items() if key != name}
    fate = random.random()
    if fate < 0.1:
        return rest
    if fate < 0.2:
        return {**rest, random.choice(ODD_TEXTS): value[name]}
    return {**rest, name: mutated_value(random, value[name])}


def _mutated_line(random, content):
    lines = content.split(b"\n")
    place = random.randrange(len(lines))
    lines[place] = mutated_json(random, lines[place])
    return b"\n".join(lines)


def mutated_safetensors(random, content):
    """A safetensors file whose header is changed, and its length told rightly, as a rule."""
    (length,) = struct.unpack_from("<Q", content)
    header = mutated_json(random, content[8 : 8 + length])
    told = len(header) if random.random() < 0.8 else random.choice((0, 1, 1 << 32, (1 << 64) - 1))
    return struct.pack("<Q", told) + header + content[8 + length :]


_BY_ENDING = {
    "tsv": lines_changed(b"\t"),
    "txt": lines_changed(b"\t"),
    "csv": lines_changed(b","),
    "json": mutated_json,
    "jsonl": _mutated_line,
    "safetensors": mutated_safetensors,
}
