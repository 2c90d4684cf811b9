"""Reads the text of an XLA program: collectives, memory traffic and dynamic shapes."""

import re
from typing import NamedTuple

_BYTES = {
    dtype: size
    for size, dtypes in (
        (1, ("pred", "s8", "u8")),
        (2, ("s16", "u16", "f16", "bf16")),
        (4, ("s32", "u32", "f32")),
        (8, ("s64", "u64", "f64")),
    )
    for dtype in dtypes
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
_COPIES = ("copy-start", "slice-start")  # Their results: two arrays and a context to wait for.
# Operations that refer to existing arrays or wait for them, without traffic of their own.
_STANDING = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "custom-call", "while"),
    *("copy-done", "slice-done", "all-reduce-done"),
}
# A bounded size, as in f32[<=128,4], and the operations and calls that handle such sizes.
_DYNAMIC = re.compile(
    r"\b\w+\[[\d,]*<=[^\]]*\]"
    r"|\b(?:get-dimension-size|set-dimension-size|dynamic-reshape)\("
    r"|custom_call_target=\"(?:PadToStatic|SliceToDynamic)\""
)


class Collective(NamedTuple):
    """An operation by which replicas exchange data: its kind, and the bytes of its result."""

    kind: str
    bytes: int


def bytes_of(shape):
    """Returns the bytes of an array's shape, or of a tuple of arrays such as (f32[2,3], s32[])."""
    total = 0
    for dtype, sizes in _ARRAY.findall(shape):
        size = _BYTES[dtype]
        for axis in filter(None, re.split("[,<= ]+", sizes)):
            size *= int(axis)
        total += size
    return total


def collectives(text):
    """Returns the program's list of `Collective`, in the order of the text."""
    return [Collective(kind, bytes_of(shape)) for shape, kind in _COLLECTIVE.findall(text)]


def memory_traffic(text):
    """Returns the bytes moved between a core and its memory by a program compiled for a TPU.

    The compiler marks arrays in the core's own memory by S(1) in their layout. Counts all other
    arrays for each operation that reads or writes them; for a copy, the side outside of the core.
    Only the largest computation counts, once: for a loop of training steps that is one step.
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
    """Returns (bytes, whether it is in main memory) for each array of a shape."""
    found = [match.group() for match in _ARRAY_IN_PLACE.finditer(shape)]
    return [(bytes_of(array), "S(" not in array) for array in found]


def dynamic_shapes(text):
    """Returns the sorted pieces of text that show dynamic shapes, [] for a static program."""
    return sorted({match.group() for match in _DYNAMIC.finditer(text)})
