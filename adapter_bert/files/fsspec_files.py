"""Reads remote files by fsspec: functions of `tf.io.gfile` for schemes that TensorFlow lacks.

For s3://, hdfs:// and others, fsspec needs a package, which its errors name.
"""

import errno
import importlib
import os
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

from adapter_bert.shell.errors import UserError

# The default of s3fs is 50 times this, for each column of a Parquet file.
_BYTES_PER_READ = 1 << 20


class Stat(NamedTuple):
    """The size of a file in bytes, and its modification time."""

    length: int
    mtime_nsec: int


def exists(path: str) -> bool:
    """Returns whether a file or folder exists."""
    return _call("exists", path)


def isdir(path: str) -> bool:
    """Returns whether a folder exists."""
    return _call("isdir", path)


def listdir(path: str) -> List[str]:
    """Returns the names in a folder."""
    names = (name.rstrip("/") for name in _call("ls", path, detail=False))
    return [os.path.basename(name) for name in names]


def glob(pattern: str) -> List[str]:
    """Returns the paths that match a pattern."""
    files, _ = _file_system(pattern)
    return [files.unstrip_protocol(name) for name in _call("glob", pattern)]


def walk(path: str) -> Iterator[Tuple[str, List[str], List[str]]]:
    """Yields (folder, names of its folders, names of its files) for a folder and all below it."""
    files, _ = _file_system(path)
    for folder, folders, names in _call("walk", path):
        yield files.unstrip_protocol(folder), folders, names


def stat(path: str) -> Stat:
    """Returns the `Stat` of a file."""
    return Stat(_call("size", path), int(_call("modified", path).timestamp() * 1e9))


def GFile(path: str, mode: str) -> Any:
    """Returns a file that is open for reading; text is UTF-8, and line ends are not converted."""
    options: Dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    return _call("open", path, mode, block_size=_BYTES_PER_READ, **options)


def _call(function: str, path: str, *arguments: Any, **options: Any) -> Any:
    """Returns the result of a function of the path's file system; its errors are OSErrors."""
    files, name = _file_system(path)
    try:
        return getattr(files, function)(name, *arguments, **options)
    except OSError:
        raise
    except Exception as error:  # Each file system has classes of its own, as for credentials.
        raise OSError(errno.EIO, str(error) or type(error).__name__, path) from error


def _file_system(path: str) -> Tuple[Any, str]:
    """Returns fsspec's file system of a path, and the path within it.

    Raises:
      UserError: fsspec does not know the scheme, or the scheme's package is missing.
    """
    try:
        core: Any = importlib.import_module("fsspec.core")
        return core.url_to_fs(path, use_listings_cache=False)  # Else a new file may be missing.
    except (ImportError, ValueError) as error:
        reason = str(error).rstrip(".")
        raise UserError(
            f"{path}: this TensorFlow cannot read such paths, and neither can fsspec ({reason})."
        ) from None
