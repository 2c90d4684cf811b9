"""Computes a function of many arguments on all cores, in processes forked from this one."""

import os
import pickle
import signal
import struct
import sys
import warnings
from typing import Any, BinaryIO, Callable, Iterator, List, Sequence, Tuple

from adapter_bert.shell import control_groups

_MIN_CALLS = 16  # With fewer calls, starting processes takes longer than they save.
_LENGTH = struct.Struct("<Q")


def map_in_order(function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
    """Yields the function's value for each argument, in their order.

    The processes are copies of this one, so that they see all of its objects. They wait for the
    reader of their values, so that few values are in memory. With one core or few arguments, or
    where the system cannot fork safely, this process calls the function.

    Args:
      function: of an argument; its value and its exceptions must be picklable.
      arguments: list or range.

    Raises:
      Exception: that of the function, for the first argument that it fails for.
    """
    num_workers = min(control_groups.num_processors(), len(arguments) // _MIN_CALLS)
    if num_workers < 2 or not sys.platform.startswith("linux"):
        yield from map(function, arguments)
        return
    workers: List[Tuple[int, BinaryIO]] = []
    try:
        for number in range(num_workers):
            workers.append(_start(function, arguments[number::num_workers], workers))
        for index in range(len(arguments)):
            is_value, value = _receive(workers[index % num_workers][1])
            if not is_value:
                raise value
            yield value
    finally:
        for process, reader in workers:
            reader.close()
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _start(
    function: Callable[[Any], Any], arguments: Sequence[Any], others: List[Tuple[int, BinaryIO]]
) -> Tuple[int, BinaryIO]:
    """Starts a process that computes values; returns its id and the pipe of its values."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():  # Of threads, which a child that only computes does not need.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process:
        os.close(write_end)
        return process, os.fdopen(read_end, "rb")
    try:  # The child; it must not run this process's handlers or buffers at its end.
        os.close(read_end)
        for _, reader in others:  # Else they would stay open after this process's end.
            os.close(reader.fileno())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent ends it.
        with os.fdopen(write_end, "wb") as writer:
            _send_values(function, arguments, writer)
    finally:
        os._exit(0)


def _send_values(
    function: Callable[[Any], Any], arguments: Sequence[Any], writer: BinaryIO
) -> None:
    for argument in arguments:
        try:
            result = True, function(argument)
        except Exception as error:
            result = False, error
        content = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
        writer.write(_LENGTH.pack(len(content)))
        writer.write(content)
        writer.flush()


def _receive(reader: BinaryIO) -> Any:
    """Returns the next (is a value, value or exception) of a process."""
    header = reader.read(_LENGTH.size)
    content = reader.read(_LENGTH.unpack(header)[0]) if len(header) == _LENGTH.size else b""
    if not content:
        raise RuntimeError("a process that computes a part of the data has ended")
    return pickle.loads(content)
