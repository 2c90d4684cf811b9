"""What the text of an XLA program tells: its collectives, and whether its shapes are all static."""

import re
from typing import NamedTuple

_BYTES = {
    "pred": 1,
    "s8": 1,
    "u8": 1,
    "s16": 2,
    "u16": 2,
    "f16": 2,
    "bf16": 2,
    "s32": 4,
    "u32": 4,
    "f32": 4,
    "s64": 8,
    "u64": 8,
    "f64": 8,
}
_ARRAY = re.compile(r"\b({})\[([\d,<= ]*)\]".format("|".join(_BYTES)))
_COLLECTIVE = re.compile(
    r"^\s*(?:ROOT )?%?[\w.-]+ = (.*?) (all-reduce|all-gather|all-to-all|reduce-scatter"
    r"|collective-permute|collective-broadcast)(?:-start)?\(",
    re.MULTILINE,
)
# A size with a bound, as in f32[<=128,4], and the operations and calls that make or mend such.
_DYNAMIC = re.compile(
    r"\b\w+\[[\d,]*<=[^\]]*\]"
    r"|\b(?:get-dimension-size|set-dimension-size|dynamic-reshape)\("
    r"|custom_call_target=\"(?:PadToStatic|SliceToDynamic)\""
)


class Collective(NamedTuple):
    """An operation in which replicas exchange data: its kind, and the bytes of its result."""

    kind: str
    bytes: int


def bytes_of(shape):
    """The bytes of an array's shape, or of all arrays of a tuple's, such as (f32[2,3], s32[])."""
    total = 0
    for dtype, sizes in _ARRAY.findall(shape):
        size = _BYTES[dtype]
        for axis in filter(None, re.split("[,<= ]+", sizes)):
            size *= int(axis)
        total += size
    return total


def collectives(text):
    """The program's list of `Collective`, in the order of its text."""
    return [Collective(kind, bytes_of(shape)) for shape, kind in _COLLECTIVE.findall(text)]


def dynamic_shapes(text):
    """What in the program is not static: the sorted pieces of text that show it, none if all is."""
    return sorted({match.group() for match in _DYNAMIC.finditer(text)})
