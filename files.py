"""Files and folders that appear whole or not at all, whatever comes; JSON objects, checked.

A write that has returned outlives a loss of power: content is on disk before a name leads to it.
"""

import contextlib
import errno
import hashlib
import json
import os
import posixpath
import re
import uuid
from typing import Any, Callable, Dict, Iterator, Optional, Union

import tensorflow.compat.v1 as tf

from errors import UserError

try:
    import fcntl
except ImportError:  # Windows has none, and nothing is held there.
    fcntl = None  # type: ignore[assignment]  # Of a module mypy expects a module.

_PARTIAL, _REPLACED = ".partial", ".replaced"
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # Some file systems have none for folders.
PARTIAL_FILES = "*.????????" + _PARTIAL  # A pattern: what kills leave of `write_atomically`.


class NotWritten(UserError):
    """The file system has no room, or no leave."""


def write_atomically(path: str, content: Union[str, bytes]) -> None:
    """Writes a file (str or bytes): a reader, or a kill, sees the old content or the new, no other.

    Raises:
      UserError: the file cannot be written; what was there before stays.
    """
    temporary = f"{path}.{uuid.uuid4().hex[:8]}{_PARTIAL}"  # Another process may write it, too.
    with written(path):
        try:
            with tf.io.gfile.GFile(temporary, "w") as writer:
                writer.write(content)
            replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError, tf.errors.OpError):
                tf.io.gfile.remove(temporary)
            raise


def replace(temporary: str, path: str) -> None:
    """Moves a file to its place, or a new folder with all that is in it; both are then on disk.

    Args:
      temporary: path, on the same file system.
      path: of a file, which is replaced if it is there, or of no folder yet.

    Raises:
      OSError, tf.errors.OpError: it cannot be written.
    """
    _sync_content(temporary)
    tf.io.gfile.rename(temporary, path, overwrite=True)
    sync(_parent(path))


def make_folder(folder: str) -> None:
    """Makes a folder and those above it, if need be; they are then on disk.

    Raises:
      OSError, tf.errors.OpError: it cannot be written.
    """
    made, above = [], folder.rstrip("/")
    while above and "://" not in above and not tf.io.gfile.exists(above):
        made.append(above)
        above = posixpath.dirname(above)
    tf.io.gfile.makedirs(folder)
    for path in made:
        sync(_parent(path))


def sync(path: str) -> None:
    """Waits until a local file's content, or the names in a local folder, are on disk.

    What is closed on a remote file system is stored already.

    Raises:
      OSError: the disk does not take it.
    """
    if fcntl is None or "://" in path:  # Windows opens no folder.
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def _sync_content(path: str) -> None:
    """Syncs a file, or a folder and all that is in it."""
    for folder, _, names in os.walk(path):
        for name in names:
            sync(posixpath.join(folder, name))
        sync(folder)
    if not tf.io.gfile.isdir(path):
        sync(path)


def _parent(path: str) -> str:
    return posixpath.dirname(path.rstrip("/")) or "."


@contextlib.contextmanager
def whole_folder(folder: str) -> Iterator[str]:
    """Yields a new folder beside `folder`, which takes its place if all went well.

    A kill leaves the old one or the new one, at worst beside its place: readers find it by
    `current`, the next writer puts it back by `recover`.

    Raises:
      UserError: it cannot be written, or another process of this machine is writing it; what was
        there before stays.
    """
    folder = folder.rstrip("/")
    recover(folder)
    partial = folder + _PARTIAL
    try:
        with written(folder):
            make_folder(partial)
            with _alone_in(partial):
                yield partial
                _sync_content(partial)
                if tf.io.gfile.exists(folder):
                    tf.io.gfile.rename(folder, folder + _REPLACED)
                tf.io.gfile.rename(partial, folder)
                sync(_parent(folder))
    finally:
        recover(folder)


@contextlib.contextmanager
def _alone_in(partial: str) -> Iterator[None]:
    """While entered, a local folder is locked, if it is there; `NotWritten` if it is already."""
    with contextlib.ExitStack() as stack:
        if fcntl is not None and os.path.isdir(partial):
            descriptor = os.open(partial, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            if not lock(descriptor):
                folder = place_of(partial)
                raise NotWritten(f"{folder} cannot be written (another writer is at work there).")
        yield


def lock(descriptor: int, shared: bool = False) -> bool:
    """Tries to lock a local file or folder; False if another opening of it has a lock against it.

    The lock ends when all processes that inherited the descriptor have closed it. Where the file
    system has no locks, as on some networks, nobody else's can be known.

    Args:
      descriptor: of the open file; a lock that it has is exchanged, or else lost.
      shared: whether others may have such a lock too.
    """
    if fcntl is None:
        return True
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # There are none.
        return True
    return True


def unlock(descriptor: int) -> None:
    """Ends what `lock` did."""
    if fcntl is not None:
        with contextlib.suppress(OSError):  # Where there are none.
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def recover(folder: str) -> None:
    """Ends what a killed `whole_folder` began: the old folder is back, or the new one is there.

    Raises:
      UserError: it cannot be written, or one that was not killed is at work.
    """
    replaced, partial = folder + _REPLACED, folder + _PARTIAL
    with written(folder), _alone_in(partial):
        if current(folder) == replaced:
            tf.io.gfile.rename(replaced, folder)
        for leftover in (replaced, partial):
            if tf.io.gfile.exists(leftover):
                sync(_parent(folder))  # The other one's name must not be lost after it.
                tf.io.gfile.rmtree(leftover)


def current(folder: str) -> str:
    """Where a reader finds what `whole_folder` last finished: there, or where a kill left it."""
    folder = folder.rstrip("/")
    replaced = folder + _REPLACED
    moved = tf.io.gfile.exists(replaced) and not tf.io.gfile.exists(folder)
    return replaced if moved else folder


def place_of(folder: str) -> str:
    """The folder that what a killed `whole_folder` left beside it is of; of any other, itself."""
    for suffix in (_PARTIAL, _REPLACED):
        if folder.endswith(suffix):
            return folder[: -len(suffix)]
    return folder


def megabytes(prefix: str) -> str:
    """How large a file is, or else all whose paths begin so: a text, such as "9.7 MB"."""
    folder, start = posixpath.split(prefix)
    listed = tf.io.gfile.listdir(folder or ".")
    names = [start] if start in listed else [name for name in listed if name.startswith(start)]
    size = sum(tf.io.gfile.stat(posixpath.join(folder, name)).length for name in names)
    return f"{size / 1e6:.1f} MB"


def write_object(path: str, content: Dict[str, Any]) -> None:
    """Writes a dict as JSON, whole or not at all; NumPy's numbers become Python's.

    Raises:
      UserError: the file cannot be written; what was there before stays.
    """
    text = json.dumps(content, indent=2, sort_keys=True, default=float) + "\n"
    write_atomically(path, text)


def read_object(
    path: str, where: Optional[str] = None, expected: str = "a JSON object"
) -> Dict[str, Any]:
    """The JSON object in a file, a dict.

    Args:
      path: of the file.
      where: what an error calls it, the path by default.
      expected: what an error says that a file with other JSON should hold.

    Raises:
      UserError: it cannot be read, or is no JSON object.
    """
    where = where or path
    try:
        with tf.io.gfile.GFile(path, "r") as reader:
            found = json.loads(reader.read())
    except tf.errors.OpError as error:
        raise UserError(f"{where}: cannot be read ({reason(error)}).") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is not valid JSON ({error}).") from error
    if not isinstance(found, dict):
        raise UserError(f"{where}: expected {expected}, found another value.")
    return found


def read_as(path: str, flag: str, kind: str, convert: Callable[[Dict[str, Any]], Any]) -> Any:
    """What a function makes of the JSON object in a file.

    Args:
      path: of the file.
      flag: that names it.
      kind: what it should be, as in "search.json".
      convert: function of the dict; a KeyError, TypeError or ValueError of it says what is wrong.

    Raises:
      UserError: it cannot be read, or is no such file.
    """
    found = read_object(path, f"{flag}: {path}")
    try:
        return convert(found)
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise UserError(f"{flag}: {path} is no {kind} ({problem}).") from error


def checked(value: Any, kind: type) -> Any:
    """A value out of JSON, which must be of a kind.

    Args:
      value: what was found.
      kind: str, bool, int, dict or list; or float, which is any number.

    Raises:
      ValueError: it is of another one, or no float holds it.
    """
    kinds = (int, float) if kind is float else (kind,)
    if type(value) not in kinds or type(value) is int and abs(value) >= 1 << 63:
        raise ValueError(f"expected {kind.__name__}, found {json.dumps(value)[:50]}")
    return value


def sha256(path: str) -> str:
    """The hex digest of a file, which need not fit into memory.

    Raises:
      UserError: it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with tf.io.gfile.GFile(path, "rb") as reader:
            for content in iter(lambda: reader.read(1 << 20), b""):
                digest.update(content)
    except tf.errors.NotFoundError as error:
        raise UserError(f"{path} does not exist.") from error
    except tf.errors.OpError as error:
        raise UserError(f"{path} cannot be read ({reason(error)}).") from error
    return digest.hexdigest()


@contextlib.contextmanager
def written(path: str) -> Iterator[None]:
    """While entered, an error of the file system is a `NotWritten` that names the path.

    Raises:
      NotWritten: see above.
    """
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        raise NotWritten(f"{path} cannot be written ({reason(error)}).") from error


def reason(error: Exception) -> str:
    """What the file system says, out of all that TensorFlow says."""
    text = getattr(error, "message", None) or getattr(error, "strerror", None) or str(error)
    # A graph's error holds the place in the graph, and each line of Python that led to it.
    in_graph = re.search(r"(.+)\n\s*\[\[\{\{node", text)
    line = in_graph.group(1) if in_graph else text.strip().split("\n")[0]
    return line.split("; ")[-1].rstrip(".")
