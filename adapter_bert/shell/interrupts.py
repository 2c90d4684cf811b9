"""Signals that ask a process to end: Ctrl-C, SIGTERM and SIGHUP."""

import contextlib
import functools
import os
import signal
import threading
from typing import Any, Callable, Iterator, List

# SIGTERM comes from schedulers, containers and preempted machines; SIGHUP from a closed terminal or
# a lost connection.
_NAMES = {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGHUP": "SIGHUP"}
_SIGNALS = {getattr(signal, key): name for key, name in _NAMES.items() if hasattr(signal, key)}


@contextlib.contextmanager
def handle_signals(handler: Callable) -> Iterator[None]:
    """Routes these signals to `handler(signum, frame)` while entered.

    Ignored signals stay ignored, as SIGHUP under nohup.
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


@contextlib.contextmanager
def ignore_user_signals() -> Iterator[None]:
    """Ignores SIGUSR1 and SIGUSR2 while entered, as sent by log rotation; they would end a process.

    Only the main thread may call it.
    """
    names = filter(functools.partial(hasattr, signal), ("SIGUSR1", "SIGUSR2"))
    signums = [getattr(signal, name) for name in names]  # Windows has none.
    previous = {signum: signal.signal(signum, signal.SIG_IGN) for signum in signums}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def postpone_signals() -> Iterator[None]:
    """Postpones these signals until the block ends."""
    received: List[int] = []
    try:
        with handle_signals(lambda signum, frame: received.append(signum)):
            yield
    finally:
        for signum in received:
            os.kill(os.getpid(), signum)


def restore_handlers() -> None:
    """Reinstalls Python's signal handlers, after a library replaced them at the C level."""
    for signum, handler in _handlers().items():
        signal.signal(signum, handler)


def _handlers() -> Any:
    """Returns signal → handler; {} outside the main thread, which alone can set handlers."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {signum: signal.getsignal(signum) for signum in _SIGNALS}


def signal_name(signum: int) -> str:
    """Returns the signal's common name, such as "Ctrl-C"."""
    return _SIGNALS[signum]
