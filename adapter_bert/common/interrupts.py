"""What asks a process to end: Ctrl-C, and what schedulers and closed terminals send instead."""

import contextlib
import signal
import threading
from typing import Callable, Iterator

# SIGTERM comes from schedulers, containers and machines that are taken back, SIGHUP from a terminal
# that is closed or a connection that is lost.
_NAMES = {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGHUP": "SIGHUP"}
_SIGNALS = {getattr(signal, key): name for key, name in _NAMES.items() if hasattr(signal, key)}


@contextlib.contextmanager
def handled(handler: Callable) -> Iterator[None]:
    """While entered, all of them come to `handler(signum, frame)`.

    But for those that are ignored, as SIGHUP is under nohup.
    """
    before = _handlers()
    taken = [number for number, own in before.items() if own is not signal.SIG_IGN]
    for number in taken:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


def take_back() -> None:
    """Puts the handlers that Python knows in the place of those that a library set past it."""
    for number, handler in _handlers().items():
        signal.signal(number, handler)


def _handlers():
    """Signal → handler. None outside a process's main thread, which alone can set them."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in _SIGNALS}


def name_of(signum: int) -> str:
    """What people call it."""
    return _SIGNALS[signum]
