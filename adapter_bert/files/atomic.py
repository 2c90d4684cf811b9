"""Files and folders that are written atomically and durably.

A write that has returned survives a loss of power: content is on disk before a name refers to it.
"""

import contextlib
import os
import posixpath
import shutil
import uuid
from typing import Any, Callable, Iterator, Union

from adapter_bert.files import gfile, locks

try:
    import fcntl
except ImportError:  # Windows has no fcntl, so there nothing is locked.
    fcntl = None  # type: ignore[assignment]  # mypy expects a module.

_PARTIAL, _REPLACED = ".partial", ".replaced"
PARTIAL_FILES = "*.????????" + _PARTIAL  # Glob of what a killed `write_atomically` leaves.


def write_atomically(path: str, content: Union[str, bytes]) -> None:
    """Writes a file atomically: readers see the old or the new content, also after a kill.

    Args:
      path: of the file.
      content: str, encoded as UTF-8, or bytes.

    Raises:
      UserError: the file cannot be written; the old file stays.
    """
    with gfile.convert_write_errors(path), atomic_file(path) as writer:
        writer.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextlib.contextmanager
def atomic_file(path: str) -> Iterator[Any]:
    """Yields a temporary binary file, which replaces `path` when the block succeeds.

    A symbolic link is replaced, not the file that it leads to.

    Raises:
      OSError: the file cannot be written; the old file stays.
    """
    temporary = f"{path}.{uuid.uuid4().hex[:8]}{_PARTIAL}"  # Unique: other processes may write too.
    try:
        with gfile.open_file(temporary, "wb") as writer:
            yield writer
        replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            gfile.remove(temporary)
        raise


def replace(temporary: str, path: str) -> None:
    """Moves a file or a new folder to its final path, durably.

    Args:
      temporary: path on the same file system.
      path: of a file, which is replaced if it exists; or of a folder that does not exist yet.

    Raises:
      OSError: the destination cannot be written.
    """
    _sync_content(temporary)
    gfile.rename(temporary, path, overwrite=True)
    gfile.sync(gfile.parent(path))


def _sync_content(path: str) -> None:
    """Syncs a file, or a folder and everything in it."""
    if gfile.is_remote(path):
        return
    for folder, _, names in os.walk(path):
        for name in names:
            gfile.sync(posixpath.join(folder, name))
        gfile.sync(folder)
    if not os.path.isdir(path):
        gfile.sync(path)


def next_numbered_folder(folder: str) -> str:
    """The path of the next version in a folder of numbered ones; the folder is made.

    Raises:
      UserError: it cannot be written.
    """
    with gfile.convert_write_errors(folder):
        gfile.makedirs(folder)
        names = [name.rstrip("/") for name in gfile.listdir(folder)]
    number = 1 + max(map(int, filter(str.isdecimal, names)), default=0)
    return posixpath.join(folder, str(number))


@contextlib.contextmanager
def atomic_folder(folder: str) -> Iterator[str]:
    """Yields a temporary folder, which replaces `folder` when the block succeeds.

    A kill leaves either the old or the new folder, possibly under a temporary name. Readers find it
    by `current_folder`; the next writer restores it by `recover`. A symbolic link is replaced, not
    the folder that it leads to.

    Raises:
      UserError: the folder cannot be written, or another process on this machine is writing it; the
        old folder stays.
    """
    folder = gfile.without_end_slash(folder)
    recover(folder)
    partial = folder + _PARTIAL
    try:
        with gfile.convert_write_errors(folder):
            gfile.makedirs(partial)
            with _locked(partial):
                yield partial
                _sync_content(partial)
                if gfile.exists(folder) or gfile.is_link(folder):
                    gfile.rename(folder, folder + _REPLACED)
                gfile.rename(partial, folder)
                gfile.sync(gfile.parent(folder))
    finally:
        recover(folder)


def cached_folder(folder: str, name: str, write: Callable[[str], None]) -> None:
    """Writes a folder of a cache atomically, unless it is there. Several processes may do so.

    Args:
      folder: path; its name must determine its content. The cache is its parent.
      name: of a file that every complete folder has.
      write: function that writes the content into a folder that exists.

    Raises:
      UserError: the folder cannot be written, or other users may write to it.
    """
    with gfile.convert_write_errors(folder):
        for cache in (os.path.dirname(folder), *filter(os.path.isdir, [folder])):
            gfile.make_private(cache, f"The cache folder {cache}")
    if gfile.exists(os.path.join(folder, name)):
        return
    partial = f"{folder}.{uuid.uuid4().hex[:8]}{_PARTIAL}"
    try:
        with gfile.convert_write_errors(folder):
            gfile.makedirs(partial)
            write(partial)
            if not gfile.exists(os.path.join(folder, name)):
                shutil.rmtree(folder, ignore_errors=True)  # Someone removed some of its files.
            with contextlib.suppress(OSError):  # Another process was faster.
                replace(partial, folder)
            if not os.path.isdir(folder):
                raise OSError(f"{partial} cannot be renamed")
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _locked(partial: str) -> Iterator[None]:
    """Locks a local folder, if it exists, while entered; raises `WriteError` if it is locked."""
    with contextlib.ExitStack() as stack:
        if fcntl is not None and os.path.isdir(partial):
            descriptor = os.open(partial, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            if not locks.lock(descriptor, partial + locks.HELD):
                reason = "another process is writing it" + locks.holder(partial + locks.HELD)
                raise gfile.WriteError(f"{final_folder(partial)} cannot be written ({reason}).")
            stack.callback(locks.unlock, partial + locks.HELD)
        yield


def recover(folder: str) -> None:
    """Finishes or rolls back a killed `atomic_folder`: either the new or the old folder remains.

    Raises:
      UserError: the folder cannot be written, or a live process is writing it.
    """
    folder = gfile.without_end_slash(folder)
    replaced, partial = folder + _REPLACED, folder + _PARTIAL
    with gfile.convert_write_errors(folder), _locked(partial):
        if current_folder(folder) == replaced:
            gfile.rename(replaced, folder)
        for leftover in (replaced, partial):
            if gfile.exists(leftover) or gfile.is_link(leftover):
                # The rename must be on disk before the backup goes.
                gfile.sync(gfile.parent(folder))
                gfile.rmtree(leftover)


def current_folder(folder: str) -> str:
    """Returns the path under which `folder` can be read, also after a killed `atomic_folder`."""
    folder = gfile.without_end_slash(folder)
    replaced = folder + _REPLACED
    is_replaced = gfile.exists(replaced) and not gfile.exists(folder)
    return replaced if is_replaced else folder


def final_folder(folder: str) -> str:
    """Returns the path of the folder that a temporary one belongs to; other paths as they are."""
    for suffix in (_PARTIAL, _REPLACED):
        if folder.endswith(suffix):
            return folder[: -len(suffix)]
    return folder
