"""What the text of an XLA program tells: collectives, traffic with memory, dynamic shapes."""

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
_ARRAY_IN_PLACE = re.compile(_ARRAY.pattern + r"(?:\{[^}]*\})?")
_COLLECTIVE = re.compile(
    r"^\s*(?:ROOT )?%?[\w.-]+ = (.*?) (all-reduce|all-gather|all-to-all|reduce-scatter"
    r"|collective-permute|collective-broadcast)(?:-start)?\(",
    re.MULTILINE,
)
_COMPUTATION = re.compile(r"\n(?=(?:ENTRY )?%[\w.-]+ \()")
_OPERATION = re.compile(r"^\s*(?:ROOT )?%([\w.-]+) = (.*?) ([a-z][a-z-]*)\(([^)]*)\)", re.MULTILINE)
_COPIES = ("copy-start", "slice-start")  # Their results: the two arrays, and what they wait by.
# These name what is there already, or wait for it.
_STANDING = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "custom-call", "while"),
    *("copy-done", "slice-done", "all-reduce-done"),
}
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


def memory_traffic(text):
    """Bytes that cross between a core and its memory in a program compiled for a TPU.

    The compiler gives what lies in the core's own memory a layout with S(1). Counted are the arrays
    without, wherever an operation reads or writes them, and of a copy the side that lies without;
    in the largest computation, once: for a loop of training steps that is one step.
    """
    largest = max(_COMPUTATION.split(text), key=len)
    shapes, total = {}, 0
    for name, shape, kind, operands in _OPERATION.findall(largest):
        shapes[name] = shape
        if kind in _STANDING:
            continue
        arrays = _arrays(shape)
        if kind in _COPIES:
            moved = min(size for size, _ in arrays[:2])
            arrays = [(moved, is_outside) for _, is_outside in arrays[:2]]
        else:
            for operand in set(re.findall(r"%([\w.-]+)", operands)):
                arrays += _arrays(shapes.get(operand, ""))
        total += sum(size for size, is_outside in arrays if is_outside)
    return total


def _arrays(shape):
    """Of each array of a shape, as it lies: (bytes, whether in memory)."""
    found = [match.group() for match in _ARRAY_IN_PLACE.finditer(shape)]
    return [(bytes_of(array), "S(" not in array) for array in found]


def dynamic_shapes(text):
    """What in the program is not static: the sorted pieces of text that show it, none if all is."""
    return sorted({match.group() for match in _DYNAMIC.finditer(text)})
