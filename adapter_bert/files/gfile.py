"""Local and remote files: the functions of `tf.io.gfile` for any path, and their errors.

Remote paths are TensorFlow's, which is imported for them only; those of schemes that it lacks, such
as s3://, can be read by fsspec.
"""

import contextlib
import errno
import glob as local_glob
import hashlib
import importlib
import io
import os
import posixpath
import re
import shlex
import shutil
import stat
from typing import Any, BinaryIO, Iterator, List, Optional, Tuple

from adapter_bert.files import fsspec_files
from adapter_bert.shell.errors import UserError, unreadable_scheme

try:
    import fcntl
except ImportError:  # Windows has no fcntl, so there nothing is locked.
    fcntl = None  # type: ignore[assignment]  # mypy expects a module.

_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # Some file systems cannot sync folders.


class WriteError(UserError):
    """A file cannot be written: the disk is full, or permission is missing."""


def is_remote(path: str) -> bool:
    """Returns whether a path has a scheme, as gs://bucket/file has."""
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

    def opener(
        name: str, flags: int
    ) -> int:  # Without O_NONBLOCK, opening a pipe waits for its writer.
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


def stamp(path: str) -> Optional[Tuple[int, ...]]:
    """Returns numbers that differ when a file has changed; None if there is no such file."""
    try:
        if is_remote(path):
            remote = _gfile(path, "stat")
            return remote.mtime_nsec, remote.length
        local = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    # An image or an archive may give all files one modification time.
    return local.st_mtime_ns, local.st_size, local.st_ctime_ns


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
    created, missing = [], folder
    while missing and not os.path.exists(missing):
        created.append(missing)
        missing = posixpath.dirname(missing)
    os.makedirs(folder, mode, exist_ok=True)
    for path in created:
        sync(parent(path))


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
        return getattr(_functions(tf, path, function), function)(path, *arguments, **options)


@contextlib.contextmanager
def _remote_file(path: str, mode: str) -> Iterator[Any]:
    tf = _tensorflow(path)
    with _as_os_errors(tf, path), _functions(tf, path, mode).GFile(path, mode) as file:
        yield file


def _functions(tf: Any, path: str, purpose: str) -> Any:
    """Returns the module with the functions of `tf.io.gfile` for a path.

    Args:
      tf: TensorFlow.
      path: remote.
      purpose: mode of a file, or a function's name.

    Raises:
      UserError: TensorFlow lacks the path's scheme, and the purpose is not to read.
    """
    schemes = getattr(tf.io.gfile, "get_registered_schemes", None)  # From TensorFlow 2.5 on.
    scheme = path.partition("://")[0]
    if schemes is None or scheme in (*schemes(), "http", "https"):  # A web address is no folder.
        return tf.io.gfile
    if not (purpose in ("r", "rb") or hasattr(fsspec_files, purpose)):
        raise UserError(f"{path}: this TensorFlow cannot write to {scheme}://.")
    return fsspec_files


class _RawFile(io.RawIOBase):
    """A file of `_remote_file` with the whole interface of Python's binary files."""

    def __init__(self, file: Any):
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return self._file.tell()


@contextlib.contextmanager
def open_in_parts(path: str) -> Iterator[BinaryIO]:
    """Yields a remote file opened to read any of its parts, for libraries that seek."""
    with open_file(path, "rb") as file, io.BufferedReader(_RawFile(file)) as reader:
        yield reader


def _tensorflow(path: str) -> Any:
    try:
        return importlib.import_module("tensorflow.compat.v1")
    except ImportError:
        raise UserError(f"{path}: remote paths need TensorFlow, which is not installed.") from None


@contextlib.contextmanager
def _as_os_errors(tf: Any, path: str) -> Iterator[None]:
    """Converts TensorFlow's errors to the matching OSError while entered."""
    try:
        yield
    except tf.errors.UnimplementedError as error:  # No file system handles the scheme.
        raise unreadable_scheme(error.message) from error
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, reason(error), path) from error
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, reason(error), path) from error


def remove_if_exists(path: str) -> None:
    """Removes a file if it exists.

    Raises:
      WriteError: the file cannot be removed.
    """
    with convert_write_errors(path):
        if exists(path):
            remove(path)


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


def parent(path: str) -> str:
    """Returns the folder of a file or folder; "." without one."""
    return posixpath.dirname(path.rstrip("/")) or "."


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
    paths = [
        posixpath.join(subfolder, name) for subfolder, _, names in walk(folder) for name in names
    ]
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
