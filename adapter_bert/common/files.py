"""Local and remote files, written atomically and durably; JSON objects, validated.

A write that has returned survives a loss of power: content is on disk before a name refers to it.
"""

import atexit
import contextlib
import errno
import glob as local_glob
import hashlib
import importlib
import itertools
import json
import os
import posixpath
import re
import shlex
import shutil
import socket
import stat
import uuid
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Optional, Tuple, Union

from adapter_bert.common.errors import UserError, unreadable_scheme

try:
    import fcntl
except ImportError:  # Windows has no fcntl, so there nothing is locked.
    fcntl = None  # type: ignore[assignment]  # mypy expects a module.

_PARTIAL, _REPLACED = ".partial", ".replaced"
HELD = ".held"  # Ends the names of files that stand for locks; see `lock`.
_HELD: Dict[str, int] = {}  # Such files of this process → its id.
MAX_NUMBER = 2**63  # Of settings and scores in JSON.
MAX_JSON_BYTES = 4 << 20  # Parsed JSON can take 30 times its memory.
_MAX_DEPTH = 100  # Python's parser, and all code that walks through values, recurse per level.
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # Some file systems cannot sync folders.
PARTIAL_FILES = "*.????????" + _PARTIAL  # Glob of what a killed `write_atomically` leaves.


class WriteError(UserError):
    """A file cannot be written: the disk is full, or permission is missing."""


class DuplicateKeyError(ValueError):
    """A JSON object has a key twice; Python's parser would silently drop the first value."""

    def __init__(self, key: str):
        super().__init__(f"an object has the key {json.dumps(key)} twice")


def is_remote(path: str) -> bool:
    """Returns whether a path has a scheme, as gs://bucket/file has; TensorFlow accesses these."""
    return "://" in path


def open_file(path: str, mode: str = "r") -> Any:
    """Opens a local or remote file; text is UTF-8, and line ends are not converted.

    Args:
      path: of the file.
      mode: as in `open`.

    Raises:
      OSError: the file cannot be opened. All functions down to `copy` raise it, also for remote
        paths.
    """
    if is_remote(path):
        return _remote_file(path, mode)
    if "b" in mode:
        return open(path, mode)
    return open(path, mode, encoding="utf-8", newline="")


def open_to_append(path: str) -> BinaryIO:
    """Opens a local file for reading and appending, which is made if it is missing.

    Raises:
      OSError: also if the path is a link, so that nothing elsewhere is changed, or no file.
    """
    if os.path.lexists(path) and (is_link(path) or not os.path.isfile(path)):
        raise OSError(errno.EINVAL, "it is a link, or no regular file", path)
    return open(path, "ab+")


@contextlib.contextmanager
def open_regular(path: str) -> Iterator[Any]:
    """Yields a file opened to read its bytes; raises an OSError at once for pipes and devices."""

    def opener(name, flags):  # Without O_NONBLOCK, opening a pipe waits for its writer.
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    with open_file(path, "rb") if is_remote(path) else open(path, "rb", opener=opener) as reader:
        if not is_remote(path) and not stat.S_ISREG(os.fstat(reader.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        yield reader


def absolute(path: str) -> str:
    """Returns a local path from the root, so that it holds in any working directory."""
    return path if is_remote(path) else os.path.abspath(path)


def without_end_slash(path: str) -> str:
    """Returns a path without slashes at its end; "/" and "" as they are."""
    return path.rstrip("/") or path[:1]


def exists(path: str) -> bool:
    """Returns whether a file or folder exists."""
    if is_remote(path):
        return _gfile(path, "exists")
    try:
        return os.path.exists(path)
    except ValueError:  # Python 3.7 raises it for a null character.
        return False


def isdir(path: str) -> bool:
    """Returns whether a folder exists."""
    if is_remote(path):
        return _gfile(path, "isdir")
    try:
        return os.path.isdir(path)
    except ValueError:  # Python 3.7 raises it for a null character.
        return False


def listdir(path: str) -> List[str]:
    """Returns the names in a folder; a remote subfolder's name may end in a slash."""
    return _gfile(path, "listdir") if is_remote(path) else os.listdir(path)


def glob(pattern: str, folder: str = "") -> List[str]:
    """Returns the paths that match a pattern, in a folder whose name is no pattern."""
    if is_remote(folder + pattern):
        return _gfile(posixpath.join(folder, pattern), "glob")
    return local_glob.glob(os.path.join(local_glob.escape(folder), pattern))


def walk(folder: str) -> Iterator[Tuple[str, List[str], List[str]]]:
    """Yields (folder, names of its folders, names of its files) for a folder and all below it.

    Follows links to folders.

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
    """Returns a file's modification time in nanoseconds."""
    return _gfile(path, "stat").mtime_nsec if is_remote(path) else os.stat(path).st_mtime_ns


def makedirs(folder: str, mode: int = 0o777) -> None:
    """Creates a folder and its missing parents durably; an existing folder is no error.

    If `folder` is a symbolic link, creates the folder to which it leads.

    Args:
      folder: path.
      mode: permissions of a new folder, from which the umask is subtracted.
    """
    if is_remote(folder):
        _gfile(folder, "makedirs")
        return
    folder = os.path.realpath(folder) if os.path.islink(folder.rstrip("/")) else folder
    created, parent = [], folder
    while parent and not os.path.exists(parent):
        created.append(parent)
        parent = posixpath.dirname(parent)
    os.makedirs(folder, mode, exist_ok=True)
    for path in created:
        sync(_parent(path))


def make_private(folder: str, where: str) -> None:
    """Creates a local folder for a cache that only this user reads and writes.

    If it is this user's and other users may write to it, as earlier versions allowed, it becomes
    private; except a shared folder such as /tmp.

    Args:
      folder: path.
      where: what errors call the folder.

    Raises:
      UserError: the folder is another user's, or other users may write to it, and so forge entries.
      OSError: the folder cannot be created.
    """
    makedirs(folder, 0o700)
    if not is_own(folder):
        raise UserError(
            f"{where} belongs to another user, who could forge what it caches; give a folder of"
            " your own."
        )
    mode = os.stat(folder).st_mode
    if mode & 0o022 and fcntl is not None and not mode & stat.S_ISVTX:
        with contextlib.suppress(OSError):  # Some file systems have no permissions.
            os.chmod(folder, 0o700)
    if os.stat(folder).st_mode & 0o022 and fcntl is not None:
        raise UserError(
            f"{where} is writable by other users, who could forge what it caches; run"
            f" `chmod go-w {shlex.quote(folder)}`."
        )


def is_own(path: str) -> bool:
    """Returns whether a local file or folder is this user's; Windows does not tell."""
    return fcntl is None or os.stat(path).st_uid == os.geteuid()


def remove(path: str) -> None:
    """Removes a file."""
    if is_remote(path):
        _gfile(path, "remove")
    else:
        os.remove(path)


def rmtree(path: str) -> None:
    """Removes a file, or a folder and its content; of a link, only the link itself."""
    if not isdir(path) or is_link(path):
        remove(path)
    elif is_remote(path):
        _gfile(path, "rmtree")
    else:
        shutil.rmtree(path)


def is_link(path: str) -> bool:
    """Returns whether a path is a symbolic link, also one that leads nowhere."""
    return not is_remote(path) and os.path.islink(path)


def rename(path: str, destination: str, overwrite: bool = False) -> None:
    """Moves a file or folder; raises an OSError if the destination exists, unless `overwrite`."""
    if is_remote(path):
        _gfile(path, "rename", destination, overwrite=overwrite)
    elif not overwrite and os.path.lexists(destination):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), destination)
    else:
        os.replace(path, destination)


def copy(path: str, destination: str) -> None:
    """Copies a file; both paths may be local or remote.

    Raises:
      UserError: the source does not exist or cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        with convert_read_errors(path):  # Else a caller may say that it cannot be written.
            reader = stack.enter_context(open_file(path, "rb"))
        shutil.copyfileobj(reader, stack.enter_context(open_file(destination, "wb")))


def _gfile(path: str, function: str, *arguments: Any, **options: Any) -> Any:
    """Returns the result of the `tf.io.gfile` function of that name for a remote path."""
    tf = _tensorflow(path)
    with _as_os_errors(tf, path):
        return getattr(tf.io.gfile, function)(path, *arguments, **options)


@contextlib.contextmanager
def _remote_file(path, mode):
    tf = _tensorflow(path)
    with _as_os_errors(tf, path), tf.io.gfile.GFile(path, mode) as file:
        yield file


def _tensorflow(path: str) -> Any:
    try:
        return importlib.import_module("tensorflow.compat.v1")
    except ImportError:
        raise UserError(f"{path}: remote paths need TensorFlow, which is not installed.") from None


@contextlib.contextmanager
def _as_os_errors(tf, path):
    """Converts TensorFlow's errors to the matching OSError while entered."""
    try:
        yield
    except tf.errors.UnimplementedError as error:  # No file system handles the scheme.
        raise unreadable_scheme(error.message) from error
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, reason(error), path) from error
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, reason(error), path) from error


def write_atomically(path: str, content: Union[str, bytes]) -> None:
    """Writes a file atomically: readers see the old or the new content, also after a kill.

    Args:
      path: of the file.
      content: str, encoded as UTF-8, or bytes.

    Raises:
      UserError: the file cannot be written; the old file stays.
    """
    with convert_write_errors(path), atomic_file(path) as writer:
        writer.write(content.encode("utf-8") if isinstance(content, str) else content)


def remove_if_exists(path: str) -> None:
    """Removes a file if it exists.

    Raises:
      WriteError: the file cannot be removed.
    """
    with convert_write_errors(path):
        if exists(path):
            remove(path)


@contextlib.contextmanager
def atomic_file(path: str) -> Iterator[Any]:
    """Yields a temporary binary file, which replaces `path` when the block succeeds.

    A symbolic link is replaced, not the file that it leads to.

    Raises:
      OSError: the file cannot be written; the old file stays.
    """
    temporary = f"{path}.{uuid.uuid4().hex[:8]}{_PARTIAL}"  # Unique: other processes may write too.
    try:
        with open_file(temporary, "wb") as writer:
            yield writer
        replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            remove(temporary)
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
    rename(temporary, path, overwrite=True)
    sync(_parent(path))


def sync(path: str) -> None:
    """Flushes a local file's content, or a local folder's entries, to disk.

    Does nothing for remote paths: a remote file is durable once it is closed.

    Raises:
      OSError: the disk reports an error.
    """
    if fcntl is None or is_remote(path):  # Windows cannot open folders.
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        if os.path.isdir(path):  # Not readable, which does not mean that the write failed.
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
    """Syncs a file, or a folder and everything in it."""
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
    """Yields a temporary folder, which replaces `folder` when the block succeeds.

    A kill leaves either the old or the new folder, possibly under a temporary name. Readers find it
    by `current_folder`; the next writer restores it by `recover`. A symbolic link is replaced, not
    the folder that it leads to.

    Raises:
      UserError: the folder cannot be written, or another process on this machine is writing it; the
        old folder stays.
    """
    folder = without_end_slash(folder)
    recover(folder)
    partial = folder + _PARTIAL
    try:
        with convert_write_errors(folder):
            makedirs(partial)
            with _locked(partial):
                yield partial
                _sync_content(partial)
                if exists(folder) or is_link(folder):
                    rename(folder, folder + _REPLACED)
                rename(partial, folder)
                sync(_parent(folder))
    finally:
        recover(folder)


@contextlib.contextmanager
def _locked(partial: str) -> Iterator[None]:
    """Locks a local folder, if it exists, while entered; raises `WriteError` if it is locked."""
    with contextlib.ExitStack() as stack:
        if fcntl is not None and os.path.isdir(partial):
            descriptor = os.open(partial, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            if not lock(descriptor, partial + HELD):
                reason = "another process is writing it" + holder(partial + HELD)
                raise WriteError(f"{final_folder(partial)} cannot be written ({reason}).")
            stack.callback(unlock, partial + HELD)
        yield


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


def is_held_elsewhere(held: str) -> bool:
    """Returns whether a process of another machine, perhaps killed, created the file of a lock."""
    return _read_holder(held)[1] not in ("", socket.gethostname())


def holder(held: str) -> str:
    """Returns a clause on who created the file of a lock, " (process 7 on ...)"; "" without one."""
    process, host = _read_holder(held)
    return f" (process {process} on {host}; if it was killed, remove {held})" if host else ""


def _read_holder(held: str) -> Tuple[str, str]:
    """Returns the process and the host that created the file of a lock; "" without one."""
    try:
        with open_regular(held) as reader:
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


def recover(folder: str) -> None:
    """Finishes or rolls back a killed `atomic_folder`: either the new or the old folder remains.

    Raises:
      UserError: the folder cannot be written, or a live process is writing it.
    """
    folder = without_end_slash(folder)
    replaced, partial = folder + _REPLACED, folder + _PARTIAL
    with convert_write_errors(folder), _locked(partial):
        if current_folder(folder) == replaced:
            rename(replaced, folder)
        for leftover in (replaced, partial):
            if exists(leftover) or is_link(leftover):
                sync(_parent(folder))  # The rename must be on disk before the backup goes.
                rmtree(leftover)


def current_folder(folder: str) -> str:
    """Returns the path under which `folder` can be read, also after a killed `atomic_folder`."""
    folder = without_end_slash(folder)
    replaced = folder + _REPLACED
    is_replaced = exists(replaced) and not exists(folder)
    return replaced if is_replaced else folder


def final_folder(folder: str) -> str:
    """Returns the path of the folder that a temporary one belongs to; other paths as they are."""
    for suffix in (_PARTIAL, _REPLACED):
        if folder.endswith(suffix):
            return folder[: -len(suffix)]
    return folder


def readable_size(prefix: str) -> str:
    """Returns a size such as "9.7 MB": of a file, or of all files whose paths have the prefix."""
    folder, name_prefix = posixpath.split(prefix)
    entries = listdir(folder or ".")
    names = [name for name in entries if name.startswith(name_prefix)]
    if name_prefix in entries:
        names = [name_prefix]
    total = 0
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # An editor's lock may be a dangling link.
            total += size(posixpath.join(folder, name))
    return f"{total / 1e6:.1f} MB"


def write_object(path: str, content: Dict[str, Any]) -> None:
    """Writes a dict as JSON, atomically; NumPy's numbers become floats.

    Raises:
      UserError: the file cannot be written; the old file stays.
    """
    text = json.dumps(content, indent=2, sort_keys=True, default=float) + "\n"
    write_atomically(path, text)


def parse_json(text: str, parse_constant: Optional[Callable[[str], Any]] = None) -> Any:
    """Returns parsed JSON, in which every object has each key once.

    Args:
      text: the JSON.
      parse_constant: function of NaN, Infinity or -Infinity; by default they are floats.

    Raises:
      DuplicateKeyError: an object has a key twice.
      ValueError: the text is not JSON, or has over 100 levels.
    """
    if _depth(text) > _MAX_DEPTH:
        raise ValueError(f"it has more than {_MAX_DEPTH} levels of lists and objects")
    return json.loads(
        text, object_pairs_hook=_object_without_duplicates, parse_constant=parse_constant
    )


def _depth(text: str) -> int:
    """Returns the number of levels of lists and objects in JSON, without recursion."""
    if text.count("[") + text.count("{") <= _MAX_DEPTH:  # Saves the time.
        return 0
    without_escapes = text.replace("\\\\", "").replace('\\"', "")
    brackets = re.findall(r"[][{}]", "".join(without_escapes.split('"')[::2]))  # Not in strings.
    return max(itertools.accumulate(1 if each in "[{" else -1 for each in brackets), default=0)


def _object_without_duplicates(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    result: Dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise DuplicateKeyError(key)
        result[key] = value
    return result


def read_object(
    path: str,
    where: Optional[str] = None,
    expected: str = "a JSON object",
    max_bytes: int = MAX_JSON_BYTES,
) -> Dict[str, Any]:
    """Returns the JSON object in a file, a dict.

    Args:
      path: of the file.
      where: the file's name in errors; the path by default.
      expected: what the file should hold, for the error if it holds other JSON.
      max_bytes: maximum size of the file.

    Raises:
      UserError: the file cannot be read, is too large, is not a JSON object, or has a key twice.
    """
    where = where or _visible(path)
    try:
        with convert_read_errors(f"{where}:"):
            check_json_size(size(path), where, max_bytes)
            with open_regular(path) as reader:
                content = parse_json(reader.read().decode("utf-8"))
            json.dumps(content, ensure_ascii=False).encode("utf-8")  # Rejects lone surrogates.
    except UserError:  # It is a ValueError, too.
        raise
    except DuplicateKeyError as error:
        raise UserError(f"{where}: {error}; expected each key once.") from error
    except ValueError as error:
        raise UserError(f"{where}: is not valid JSON ({error}).") from error
    if not isinstance(content, dict):
        raise UserError(f"{where}: expected {expected}, found another value.")
    return content


def check_json_size(num_bytes: int, where: str, max_bytes: int = MAX_JSON_BYTES) -> None:
    """Raises UserError if JSON is larger than 4 MB, or than `max_bytes`."""
    if num_bytes > max_bytes:
        raise UserError(f"{where} has {num_bytes:,} bytes; expected at most {max_bytes:,}.")


def read_as(
    path: str,
    flag: str,
    kind: str,
    convert: Callable[[Dict[str, Any]], Any],
    max_bytes: int = MAX_JSON_BYTES,
) -> Any:
    """Returns the JSON object in a file, converted by a function.

    Args:
      path: of the file.
      flag: the flag that names the file.
      kind: the expected content, such as "search.json".
      convert: function of the dict; may raise KeyError, TypeError or ValueError.
      max_bytes: maximum size of the file.

    Raises:
      UserError: the file cannot be read or converted.
    """
    content = read_object(path, f"{flag}: {path}", max_bytes=max_bytes)
    try:
        return convert(content)
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise UserError(f"{flag}: {path} is no {kind} ({problem}).") from error


def require_type(value: Any, kind: type) -> Any:
    """Returns a JSON value after checking its type.

    Args:
      value: the parsed value.
      kind: str, bool, int, dict, list, or float for any number.

    Raises:
      ValueError: the value has another type, or does not fit into 64 bits.
    """
    kinds = (int, float) if kind is float else (kind,)
    if type(value) not in kinds or type(value) is int and abs(value) >= 1 << 63:
        raise ValueError(f"expected {kind.__name__}, found {json.dumps(value)[:50]}")
    return value


def require_finite(value: Any, kind: type) -> Any:
    """Returns a JSON value after `require_type`; raises ValueError for NaN, Inf and 1e308, too."""
    value = require_type(value, kind)
    if kind is float and not abs(value) < MAX_NUMBER:
        raise ValueError(f"expected a finite number below 2^63, found {value}")
    return value


def read_bytes(path: str, where: str, max_bytes: Optional[int] = None) -> bytes:
    """Returns a file's content.

    Args:
      path: of the file.
      where: beginning of error messages.
      max_bytes: maximum size of the file, or None.

    Raises:
      UserError: the file cannot be read, or is larger.
    """
    with convert_read_errors(where), open_regular(path) as reader:
        content = reader.read() if max_bytes is None else reader.read(max_bytes + 1)
    if max_bytes is not None and len(content) > max_bytes:
        raise UserError(f"{where} has more than {max_bytes:,} bytes.")
    return content


def sha256(path: str) -> str:
    """Returns the SHA-256 of a file in hexadecimal, reading it in chunks.

    Raises:
      UserError: the file cannot be read.
    """
    digest = hashlib.sha256()
    with convert_read_errors(_visible(path)), open_regular(path) as reader:
        for content in iter(lambda: reader.read(1 << 20), b""):
            digest.update(content)
    return digest.hexdigest()


def file_digests(folder: str) -> List[Tuple[str, str]]:
    """Returns (path, SHA-256) of each file below a folder, sorted; [] if there is no such folder.

    Raises:
      UserError: a file cannot be read.
    """
    if not isdir(folder):
        return []
    paths = [posixpath.join(parent, name) for parent, _, names in walk(folder) for name in names]
    return [(path, sha256(path)) for path in sorted(paths)]


@contextlib.contextmanager
def convert_read_errors(where: str) -> Iterator[None]:
    """Converts file system errors to a UserError that begins with `where`, while entered."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{where} cannot be read ({reason(error)}).") from error


@contextlib.contextmanager
def convert_write_errors(path: str) -> Iterator[None]:
    """Converts file system errors to a `WriteError` that names the path, while entered.

    Raises:
      WriteError: the file system raised an error.
    """
    try:
        yield
    except Exception as error:
        # TensorFlow's checkpoint and summary writers raise errors that only have an error code.
        if not isinstance(error, OSError) and not hasattr(error, "error_code"):
            raise
        raise WriteError(f"{_visible(path)} cannot be written ({reason(error)}).") from error


def _visible(path: str) -> str:
    """Returns the path as shown in errors, quoted if it is blank."""
    return path if path.strip() else repr(path)


def reason(error: Exception) -> str:
    """Returns the one clause of an error's message that says what went wrong."""
    text = getattr(error, "message", None) or getattr(error, "strerror", None) or str(error)
    # An error in a graph also lists the node and the Python traceback that created it.
    match = re.search(r"(.+)\n\s*\[\[\{\{node", text)
    line = match.group(1) if match else text.strip().split("\n")[0]
    return line.split("; ")[-1].rstrip(".")
