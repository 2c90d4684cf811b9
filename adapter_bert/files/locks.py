"""Locks of local files and folders between processes."""

import atexit
import contextlib
import os
import socket
import time
from typing import BinaryIO, Dict, Iterator, Tuple

from absl import logging

from adapter_bert.files import gfile
from adapter_bert.shell.errors import UserError

try:
    import fcntl
except ImportError:  # Windows has no fcntl, so there nothing is locked.
    fcntl = None  # type: ignore[assignment]  # mypy expects a module.

HELD = ".held"  # Ends the names of files that stand for locks; see `lock`.
_POLL_SECONDS = 0.05
_HELD: Dict[str, int] = {}  # Such files of this process → its id.


def lock(descriptor: int, held: str, shared: bool = False) -> bool:
    """Tries to lock a local file or folder; returns False if someone else holds a conflicting lock.

    The lock ends when all processes that inherited the descriptor have closed it. On a file system
    without locks, as some network file systems are, the process that creates the file `held` holds
    the lock, until it calls `unlock` or ends; a kill leaves the file.

    Args:
      descriptor: of the open file. A lock that it already holds is converted; if that fails, it is
        lost.
      held: path for that file.
      shared: whether others may hold a shared lock at the same time. Without locks, it is only
        checked that nobody else holds `held`.

    Raises:
      UserError: there are no locks, and `held` is of a process of this machine that has ended.
      OSError: there are no locks, and `held` cannot be created.
    """
    if fcntl is None:
        return True
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # The file system has no locks.
        return _HELD.get(held) == os.getpid() or _create(held, shared)
    return True


@contextlib.contextmanager
def waited(file: BinaryIO) -> Iterator[None]:
    """Waits for the lock of an open local file, and holds it until the file is closed.

    On a file system without locks, the file `held` is the file's name and `HELD`; it is removed on
    leaving.
    """
    held, is_logged = file.name + HELD, False
    while not lock(file.fileno(), held):
        if not is_logged and os.path.exists(held):
            logging.info("Waiting for %s%s.", file.name, holder(held))
            is_logged = True
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        file.flush()
        unlock(held)


def wait_for_process(file: BinaryIO) -> None:
    """Waits while another process holds the lock of an open local file, and then holds it.

    The lock ends when this process closes the file or ends; forked processes do not inherit it. On
    a file system without locks, there is none.
    """
    if fcntl is not None:
        with contextlib.suppress(OSError):
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                logging.info("Waiting for the process that holds %s.", file.name)
                fcntl.lockf(file, fcntl.LOCK_EX)


def _create(held: str, shared: bool) -> bool:
    """Creates the file of a lock, unless it is `shared`; returns False if the file exists."""
    if shared:
        return not os.path.lexists(held)
    try:
        with open(held, "x") as writer:
            writer.write(f"{os.getpid()} {socket.gethostname()}")
    except FileExistsError:
        process, host = _read_holder(held)
        is_local = host == socket.gethostname()
        # This process would hold it by `_HELD`; a restarted container has the same ids again.
        if is_local and (process == str(os.getpid()) or not _is_alive(process)):
            raise UserError(
                f"{held} is left of process {process}, which has ended; remove it."
            ) from None
        return False
    _HELD[held] = os.getpid()
    atexit.register(unlock, held)
    return True


def unlock(held: str) -> None:
    """Removes the file of a lock, if this process has created it; see `lock`."""
    if _HELD.get(held) == os.getpid():  # A fork inherits the entry.
        del _HELD[held]
        with contextlib.suppress(FileNotFoundError):
            os.remove(held)


def holder(held: str) -> str:
    """Returns a clause on who created the file of a lock, " (process 7 on ...)"; "" without one."""
    process, host = _read_holder(held)
    return f" (process {process} on {host}; if it was killed, remove {held})" if host else ""


def _read_holder(held: str) -> Tuple[str, str]:
    """Returns the process and the host that created the file of a lock; "" without one."""
    try:
        with gfile.open_regular(held) as reader:
            process, _, host = reader.read(1000).decode(errors="replace").partition(" ")
    except OSError:
        return "", ""
    return process, host


def _is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:  # It is another user's.
        return True
    return True
