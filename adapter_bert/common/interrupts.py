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
def handle_signals(handler: Callable) -> Iterator[None]:
    """While entered, all of them come to `handler(signum, frame)`.

    But for those that are ignored, as SIGHUP is under nohup.
    """
    previous = _handlers()
    signums = [signum for signum in previous if previous[signum] is not signal.SIG_IGN]
    for signum in signums:
        signal.signal(signum, handler)
    try:
        yield
    finally:
        for signum in signums:
            signal.signal(signum, previous[signum])


def restore_handlers() -> None:
    """Puts the handlers that Python knows in the place of those that a library set past it."""
    for signum, handler in _handlers().items():
        signal.signal(signum, handler)


def _handlers():
    """Signal → handler. None outside a process's main thread, which alone can set them."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {signum: signal.getsignal(signum) for signum in _SIGNALS}


def signal_name(signum: int) -> str:
    """What people call it."""
    return _SIGNALS[signum]
