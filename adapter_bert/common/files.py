"""Files and folders that appear whole or not at all, whatever comes; JSON objects, checked.

A write that has returned outlives a loss of power: content is on disk before a name leads to it.
"""

import contextlib
import errno
import glob as local_glob
import hashlib
import importlib
import json
import os
import posixpath
import re
import shutil
import uuid
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Union

from adapter_bert.common.errors import UserError, unreadable_scheme

try:
    import fcntl
except ImportError:  # Windows has none, and nothing is held there.
    fcntl = None  # type: ignore[assignment]  # Of a module mypy expects a module.

_PARTIAL, _REPLACED = ".partial", ".replaced"
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # Some file systems have none for folders.
PARTIAL_FILES = "*.????????" + _PARTIAL  # A pattern: what kills leave of `write_atomically`.


class WriteError(UserError):
    """The file system has no room, or no leave."""


class DuplicateKeyError(ValueError):
    """An object of JSON has a key twice, of which Python's parser would drop the first value."""

    def __init__(self, key: str):
        super().__init__(f"an object has the key {json.dumps(key)} twice")


def is_remote(path: str) -> bool:
    """Returns whether a path has a scheme, as gs://bucket/file has; TensorFlow reads these."""
    return "://" in path


def open_file(path: str, mode: str = "r") -> Any:
    """Opens a local or remote file; a text file is UTF-8, its line ends stay as they are.

    Args:
      path: of the file.
      mode: as of `open`.

    Raises:
      OSError: it cannot be opened, as of all functions down to `copy`; remote paths raise it too.
    """
    if is_remote(path):
        return _remote_file(path, mode)
    if "b" in mode:
        return open(path, mode)
    return open(path, mode, encoding="utf-8", newline="")


def exists(path: str) -> bool:
    """Returns whether there is such a file or folder."""
    if is_remote(path):
        return _gfile(path, "exists")
    try:
        return os.path.exists(path)
    except ValueError:  # Python 3.7, of a path with a null character.
        return False


def isdir(path: str) -> bool:
    """Returns whether there is such a folder."""
    if is_remote(path):
        return _gfile(path, "isdir")
    try:
        return os.path.isdir(path)
    except ValueError:  # Python 3.7, of a path with a null character.
        return False


def listdir(path: str) -> List[str]:
    """Returns the names in a folder; a remote one's subfolders may end in a slash."""
    return _gfile(path, "listdir") if is_remote(path) else os.listdir(path)


def glob(pattern: str) -> List[str]:
    """Returns the paths that match a pattern."""
    return _gfile(pattern, "glob") if is_remote(pattern) else local_glob.glob(pattern)


def walk(folder: str) -> Iterator[Tuple[str, List[str], List[str]]]:
    """Yields (folder, names of its folders, names of its files) for it and all below it.

    Links to folders are followed.

    Raises:
      OSError: a local folder cannot be listed.
    """
    if is_remote(folder):
        return iter(list(_gfile(folder, "walk")))
    return os.walk(folder, followlinks=True, onerror=_raise)


def _raise(error: OSError) -> None:
    raise error


def size(path: str) -> int:
    """Returns the number of bytes in a file."""
    return _gfile(path, "stat").length if is_remote(path) else os.path.getsize(path)


def modified_ns(path: str) -> int:
    """Returns when a file was last changed, in nanoseconds."""
    return _gfile(path, "stat").mtime_nsec if is_remote(path) else os.stat(path).st_mtime_ns


def makedirs(folder: str) -> None:
    """Makes a folder and those above it, unless it is there; they are then on disk."""
    if is_remote(folder):
        _gfile(folder, "makedirs")
        return
    created, parent = [], folder.rstrip("/")
    while parent and not os.path.exists(parent):
        created.append(parent)
        parent = posixpath.dirname(parent)
    os.makedirs(folder, exist_ok=True)
    for path in created:
        sync(_parent(path))


def remove(path: str) -> None:
    """Removes a file."""
    if is_remote(path):
        _gfile(path, "remove")
    else:
        os.remove(path)


def rmtree(path: str) -> None:
    """Removes a folder and all that is in it."""
    if is_remote(path):
        _gfile(path, "rmtree")
    else:
        shutil.rmtree(path)


def rename(path: str, destination: str, overwrite: bool = False) -> None:
    """Moves a file or folder; what is there already is in the way unless `overwrite` is set."""
    if is_remote(path):
        _gfile(path, "rename", destination, overwrite=overwrite)
    elif not overwrite and os.path.lexists(destination):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), destination)
    else:
        os.replace(path, destination)


def copy(path: str, destination: str) -> None:
    """Copies a file; either may be remote.

    Raises:
      UserError: there is no such file, or it cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        try:
            reader = stack.enter_context(open_file(path, "rb"))
        except OSError as error:  # The caller may take it for one of what it writes.
            raise UserError(f"{path} cannot be read ({reason(error)}).") from error
        shutil.copyfileobj(reader, stack.enter_context(open_file(destination, "wb")))


def _gfile(path: str, function: str, *arguments: Any, **options: Any) -> Any:
    """Returns what TensorFlow's function of that name returns for a remote path."""
    tf = _tensorflow(path)
    with _as_os_errors(tf):
        return getattr(tf.io.gfile, function)(path, *arguments, **options)


@contextlib.contextmanager
def _remote_file(path, mode):
    tf = _tensorflow(path)
    with _as_os_errors(tf), tf.io.gfile.GFile(path, mode) as file:
        yield file


def _tensorflow(path: str) -> Any:
    try:
        return importlib.import_module("tensorflow.compat.v1")
    except ImportError:
        raise UserError(
            f"{path}: reading there needs TensorFlow, which is not installed."
        ) from None


@contextlib.contextmanager
def _as_os_errors(tf):
    """While entered, a TensorFlow error is the OSError of its kind."""
    try:
        yield
    except tf.errors.UnimplementedError as error:  # No file system has that scheme.
        raise unreadable_scheme(error.message) from error
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(reason(error)) from error
    except tf.errors.OpError as error:
        raise OSError(reason(error)) from error


def write_atomically(path: str, content: Union[str, bytes]) -> None:
    """Writes a file (str or bytes): a reader, or a kill, sees the old content or the new, no other.

    Raises:
      UserError: the file cannot be written; what was there before stays.
    """
    with convert_write_errors(path), atomic_file(path) as writer:
        writer.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextlib.contextmanager
def atomic_file(path: str) -> Iterator[Any]:
    """Yields a binary file beside `path`, which takes its place if all went well.

    Raises:
      OSError: it cannot be written; what was there before stays.
    """
    temporary = f"{path}.{uuid.uuid4().hex[:8]}{_PARTIAL}"  # Another process may write it, too.
    try:
        with open_file(temporary, "wb") as writer:
            yield writer
        replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            remove(temporary)
        raise


def replace(temporary: str, path: str) -> None:
    """Moves a file to its place, or a new folder with all that is in it; both are then on disk.

    Args:
      temporary: path, on the same file system.
      path: of a file, which is replaced if it is there, or of no folder yet.

    Raises:
      OSError: it cannot be written.
    """
    _sync_content(temporary)
    rename(temporary, path, overwrite=True)
    sync(_parent(path))


def sync(path: str) -> None:
    """Waits until a local file's content, or the names in a local folder, are on disk.

    What is closed on a remote file system is stored already.

    Raises:
      OSError: the disk does not take it.
    """
    if fcntl is None or is_remote(path):  # Windows opens no folder.
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        if os.path.isdir(path):  # Without leave to list its names, which is no failure to write.
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def _sync_content(path: str) -> None:
    """Syncs a file, or a folder and all that is in it."""
    if is_remote(path):
        return
    for folder, _, names in os.walk(path):
        for name in names:
            sync(posixpath.join(folder, name))
        sync(folder)
    if not os.path.isdir(path):
        sync(path)


def _parent(path: str) -> str:
    return posixpath.dirname(path.rstrip("/")) or "."


def next_numbered_folder(folder: str) -> str:
    """The path of the next version in a folder of numbered ones; the folder is made.

    Raises:
      UserError: it cannot be written.
    """
    with convert_write_errors(folder):
        makedirs(folder)
        names = [name.rstrip("/") for name in listdir(folder)]
    number = 1 + max(map(int, filter(str.isdecimal, names)), default=0)
    return posixpath.join(folder, str(number))


@contextlib.contextmanager
def atomic_folder(folder: str) -> Iterator[str]:
    """Yields a new folder beside `folder`, which takes its place if all went well.

    A kill leaves the old one or the new one, at worst beside its place: readers find it by
    `current_folder`, the next writer puts it back by `recover`.

    Raises:
      UserError: it cannot be written, or another process of this machine is writing it; what was
        there before stays.
    """
    folder = folder.rstrip("/")
    recover(folder)
    partial = folder + _PARTIAL
    try:
        with convert_write_errors(folder):
            makedirs(partial)
            with _locked(partial):
                yield partial
                _sync_content(partial)
                if exists(folder):
                    rename(folder, folder + _REPLACED)
                rename(partial, folder)
                sync(_parent(folder))
    finally:
        recover(folder)


@contextlib.contextmanager
def _locked(partial: str) -> Iterator[None]:
    """While entered, a local folder is locked, if it is there; `WriteError` if it is already."""
    with contextlib.ExitStack() as stack:
        if fcntl is not None and os.path.isdir(partial):
            descriptor = os.open(partial, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            if not lock(descriptor):
                folder = final_folder(partial)
                raise WriteError(f"{folder} cannot be written (another writer is at work there).")
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


def recover(folder: str) -> None:
    """Ends what a killed `atomic_folder` began: the old folder is back, or the new one is there.

    Raises:
      UserError: it cannot be written, or one that was not killed is at work.
    """
    replaced, partial = folder + _REPLACED, folder + _PARTIAL
    with convert_write_errors(folder), _locked(partial):
        if current_folder(folder) == replaced:
            rename(replaced, folder)
        for leftover in (replaced, partial):
            if exists(leftover):
                sync(_parent(folder))  # The other one's name must not be lost after it.
                rmtree(leftover)


def current_folder(folder: str) -> str:
    """Where a reader finds what `atomic_folder` last finished: there, or where a kill left it."""
    folder = folder.rstrip("/")
    replaced = folder + _REPLACED
    is_replaced = exists(replaced) and not exists(folder)
    return replaced if is_replaced else folder


def final_folder(folder: str) -> str:
    """The folder that what a killed `atomic_folder` left beside it is of; of any other, itself."""
    for suffix in (_PARTIAL, _REPLACED):
        if folder.endswith(suffix):
            return folder[: -len(suffix)]
    return folder


def readable_size(prefix: str) -> str:
    """How large a file is, or else all whose paths begin so: a text, such as "9.7 MB"."""
    folder, name_prefix = posixpath.split(prefix)
    entries = listdir(folder or ".")
    names = [name for name in entries if name.startswith(name_prefix)]
    if name_prefix in entries:
        names = [name_prefix]
    total = sum(size(posixpath.join(folder, name)) for name in names)
    return f"{total / 1e6:.1f} MB"


def write_object(path: str, content: Dict[str, Any]) -> None:
    """Writes a dict as JSON, whole or not at all; NumPy's numbers become Python's.

    Raises:
      UserError: the file cannot be written; what was there before stays.
    """
    text = json.dumps(content, indent=2, sort_keys=True, default=float) + "\n"
    write_atomically(path, text)


def parse_json(text: str) -> Any:
    """Parses JSON whose objects have each key once.

    Raises:
      DuplicateKeyError: an object has a key twice.
      ValueError: it is not JSON.
      RecursionError: it is nested too deep.
    """
    return json.loads(text, object_pairs_hook=_object_without_duplicates)


def _object_without_duplicates(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    result: Dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise DuplicateKeyError(key)
        result[key] = value
    return result


def read_object(
    path: str, where: Optional[str] = None, expected: str = "a JSON object"
) -> Dict[str, Any]:
    """The JSON object in a file, a dict.

    Args:
      path: of the file.
      where: what an error calls it, the path by default.
      expected: what an error says that a file with other JSON should hold.

    Raises:
      UserError: it cannot be read, is no JSON object, or has a key twice.
    """
    where = where or _visible(path)
    try:
        with open_file(path) as reader:
            content = parse_json(reader.read())
    except UserError:  # A ValueError as well; of a path that TensorFlow cannot read.
        raise
    except OSError as error:
        raise UserError(f"{where}: cannot be read ({reason(error)}).") from error
    except DuplicateKeyError as error:
        raise UserError(f"{where}: {error}; expected each key once.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is not valid JSON ({error}).") from error
    if not isinstance(content, dict):
        raise UserError(f"{where}: expected {expected}, found another value.")
    return content


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
    content = read_object(path, f"{flag}: {path}")
    try:
        return convert(content)
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise UserError(f"{flag}: {path} is no {kind} ({problem}).") from error


def require_type(value: Any, kind: type) -> Any:
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
        with open_file(path, "rb") as reader:
            for content in iter(lambda: reader.read(1 << 20), b""):
                digest.update(content)
    except FileNotFoundError as error:
        raise UserError(f"{_visible(path)} does not exist.") from error
    except OSError as error:
        raise UserError(f"{_visible(path)} cannot be read ({reason(error)}).") from error
    return digest.hexdigest()


@contextlib.contextmanager
def convert_write_errors(path: str) -> Iterator[None]:
    """While entered, an error of the file system is a `WriteError` that names the path.

    Raises:
      WriteError: see above.
    """
    try:
        yield
    except Exception as error:
        # TensorFlow's own errors, of checkpoints and summaries, are known by their code.
        if not isinstance(error, OSError) and not hasattr(error, "error_code"):
            raise
        raise WriteError(f"{_visible(path)} cannot be written ({reason(error)}).") from error


def _visible(path: str) -> str:
    """Returns the path as errors show it, in quotes if it is blank."""
    return path if path.strip() else repr(path)


def reason(error: Exception) -> str:
    """What the file system says, out of all that TensorFlow says."""
    text = getattr(error, "message", None) or getattr(error, "strerror", None) or str(error)
    # A graph's error holds the place in the graph, and each line of Python that led to it.
    match = re.search(r"(.+)\n\s*\[\[\{\{node", text)
    line = match.group(1) if match else text.strip().split("\n")[0]
    return line.split("; ")[-1].rstrip(".")
