"""The memory that a server may take, by the limits of its shell, its container and its machine.

Imports no package, so that a program can check the memory before its imports need it.
"""

import contextlib
import ctypes
import logging
import math
import os
import sys
import threading
from typing import Iterator, Tuple

from adapter_bert.shell import control_groups
from adapter_bert.shell.errors import UserError

try:
    import resource
except ImportError:  # Windows has no such limit.
    resource = None  # type: ignore[assignment]

_IMPORTS = 220 << 20  # Address space of NumPy, ONNX Runtime and the other packages.
_STACK_BYTES = 8 << 20  # Address space of a thread.
_OLD_LIMIT = ("memory.limit_in_bytes",)
_MAX_ARENAS_OPTION = -8  # M_ARENA_MAX of mallopt.


class Exhausted(UserError):
    """Too little memory is free for an adapter."""


def prepare(program: str) -> None:
    """Ends the process with a sentence if it has too little memory for a program's imports.

    All threads then share malloc's first arena. Of several, each would hold the memory of the
    adapters that its threads have read, and reserve 64 MB of `ulimit -v`.
    """
    if hasattr(ctypes.CDLL(None), "mallopt"):
        ctypes.CDLL(None).mallopt(_MAX_ARENAS_OPTION, 1)
    try:
        require(_IMPORTS, program)
    except UserError as error:
        sys.exit(f"Error: {error}")


def free() -> Tuple[float, str]:
    """Returns (number of bytes that this process may still take, name of the tightest limit).

    The number is infinite on systems without /proc.
    """
    _return_freed()
    status = _sizes("/proc/self/status")
    if not status:
        return math.inf, "unknown"
    stacks = _STACK_BYTES * (12 + (os.cpu_count() or 1))  # Of the threads that will start.
    group = min((most for [most] in control_groups.limits("memory", _OLD_LIMIT)), default=math.inf)
    return min(
        (_address_space() - status["VmSize"] - stacks, "ulimit -v"),
        (group - status["VmRSS"], "the container's limit"),
        (_sizes("/proc/meminfo").get("MemAvailable", math.inf), "the machine's memory"),
    )


def require(num_bytes: float, what: str) -> None:
    """Raises UserError, which begins with `what`, if fewer bytes are free."""
    num_free, limit = free()
    if num_bytes > num_free:
        raise UserError(
            f"{what} needs about {num_bytes / 1e6:,.0f} MB of memory; {max(0, num_free) / 1e6:,.0f}"
            f" MB are free ({limit}). Raise this limit, or free memory."
        )
    logging.getLogger("absl").info(
        "%s needs about %.0f MB of memory; %.0f MB are free (%s).",
        *(what, num_bytes / 1e6, num_free / 1e6, limit),
    )


class Reservations:
    """Counts the memory of work that runs at the same time. Any thread may call it."""

    def __init__(self) -> None:
        self._num_bytes, self._lock = 0, threading.Lock()

    @contextlib.contextmanager
    def reserved(self, num_bytes: int, what: str) -> Iterator[None]:
        """Reserves memory while entered; raises `Exhausted`, which begins with `what`."""
        with self._lock:
            if self._num_bytes + num_bytes > free()[0]:
                raise Exhausted(f"{what}: too little memory is free for {num_bytes:,} bytes.")
            self._num_bytes += num_bytes
        try:
            yield
        finally:
            with self._lock:
                self._num_bytes -= num_bytes


def _return_freed() -> None:
    """Returns to the system what malloc keeps of freed blocks, such as those of a session."""
    if resource is not None and hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)


def _address_space() -> float:
    """Returns the limit of `ulimit -v` in bytes, or infinity."""
    if resource is None:
        return math.inf
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return math.inf if soft == resource.RLIM_INFINITY else soft


def _sizes(path: str) -> "dict[str, int]":
    """Returns a dict from names to bytes of a file of Linux with lines such as `VmRSS: 12 kB`."""
    lines = map(str.split, control_groups.read(path).splitlines())
    return {words[0][:-1]: int(words[1]) << 10 for words in lines if words[2:] == ["kB"]}
