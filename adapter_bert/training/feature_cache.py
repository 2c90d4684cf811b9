"""A cache on disk of arrays, under a key of everything that they depend on.

The arrays are memory-mapped, so memory does not grow with them.

    folder/                    private, as a forged entry with matching digests would be used
    folder/<key>/<name>.npy    an array
    folder/<key>/index.json    the key, and the SHA-256 and size of each file and of samples of it;
                               below it the index's own SHA-256

An entry is read if the sizes and samples match, so that its files need not be read as a whole.
"""

import contextlib
import hashlib
import json
import mmap
import os
import posixpath
import shutil
import struct
import tempfile
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence

import numpy as np
from absl import logging

from adapter_bert.files import gfile, locks, paths
from adapter_bert.shell.errors import UserError

_INDEX = "index.json"
_SAMPLE_BYTES, _NUM_SAMPLES = 1 << 16, 16
_LARGE_BYTES = 1 << 27  # Hashing fewer takes at most a fraction of a second.
_HEADER_BYTES = 256  # At the start of each array's file.
# Temporary folders of mkdtemp, and the age in seconds at which they count as abandoned.
_PARTIAL_PATTERN, _ABANDONED_SECONDS = f"{64 * '[0-9a-f]'}.{8 * '?'}", 24 * 60 * 60


def key_of(parts: Iterable, modules: Iterable[Any]) -> str:
    """Returns the key for arrays that depend on the given values.

    Args:
      parts: iterable of str, numbers, None and tuples of them.
      modules: modules whose source code computes the arrays.
    """
    sha256 = hashlib.sha256()
    for module in modules:
        with open(module.__file__, "rb") as reader:
            sha256.update(reader.read())
    for part in parts:
        sha256.update(repr(part).encode("utf-8", "surrogatepass"))
    return sha256.hexdigest()


class Entry(Dict[str, np.ndarray]):
    """The read-only arrays of an entry, and a digest of them all."""

    digest = ""


def load_or_build(folder: Optional[str], key: str, build: Callable, verify: bool = False) -> Entry:
    """Returns the arrays of a key, from the cache or else built and written atomically.

    An entry with another key, of another user, or with content that does not match its SHA-256, is
    rebuilt. If the folder cannot be written, or is the default one and cannot be private, the
    arrays are not cached. Both are logged.

    Args:
      folder: local folder; None disables the cache.
      key: str; see `key_of`.
      build: function of a function `add`, which accepts dicts of arrays; arrays with the same name
        are concatenated along their first axis.
      verify: whether to compare the SHA-256 of an entry's files, instead of that of samples.

    Returns:
      A dict of read-only arrays.

    Raises:
      UserError: the folder is remote, or not the default one and other users may write to it; or
        temporary files cannot be written.
    """
    if folder and gfile.is_remote(folder):
        raise UserError(f"--feature_cache_dir={folder}: expected a local folder, or none.")
    path = folder and make_private(folder) and os.path.join(folder, key)
    if path and os.path.exists(path):
        try:
            if not gfile.is_own(path):
                raise ValueError("they belong to another user")
            return _load(path, verify)
        except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
            logging.warning("Rebuilding the features in %s (%s).", path, str(error).rstrip("."))
            shutil.rmtree(path, ignore_errors=True)
            if os.path.exists(path):
                logging.warning("Features are not cached: %s cannot be removed.", path)
                path = None
    if path:
        try:
            with _awaited(path):
                if not os.path.exists(path):
                    _write(path, build)
            return _load(path)
        except OSError as error:
            logging.warning("Features are not cached: %s cannot be written (%s).", path, error)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            path = os.path.join(temporary, key)
            _write(path, build)
            return _load(path)  # Mapped files stay readable after their removal.
    except OSError as error:
        raise UserError(f"The folder for temporary files cannot be written ({error}).") from error


def make_private(folder: str) -> bool:
    """Makes a cache's folder private, and returns whether it can be used.

    Raises:
      UserError: a folder that a flag names cannot be used.
    """
    try:
        gfile.make_private(folder, f"--feature_cache_dir={folder}")
        return True
    except UserError as error:
        if folder != paths.cache_folder("features"):
            raise
        reason = str(error)
    except OSError as error:
        reason = f"{folder} cannot be written ({error})."
    logging.warning("Features are not cached: %s", reason)
    return False


@contextlib.contextmanager
def _awaited(path: str) -> Iterator[None]:
    """Waits while another process writes an entry, so that only one of them computes it."""
    lock = path + ".lock"
    with open(lock, "ab") as file:
        locks.wait_for_process(file)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # Who waited removes it, too; Windows later.
                os.remove(lock)


def _write(path: str, build: Callable) -> None:
    """Writes an entry atomically; if another process writes the same one, the first counts."""
    folder, key = os.path.split(path)
    _remove_abandoned(folder)
    partial = tempfile.mkdtemp(prefix=f"{key}.", dir=folder)
    try:
        with _Writer(partial, key) as writer:
            build(writer.add)
        try:
            os.rename(partial, path)
        except OSError:
            if not os.path.exists(path):
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _remove_abandoned(folder: str) -> None:
    """Removes the temporary folders of killed processes; those of live processes are younger."""
    for path in gfile.glob(_PARTIAL_PATTERN, folder):
        with contextlib.suppress(OSError):  # Another process may remove it, too.
            if time.time() - os.path.getmtime(path) > _ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


class _Writer:
    """Appends parts of arrays to .npy files in a folder; on exit writes the index."""

    def __init__(self, folder: str, key: str):
        self._folder = folder
        self._key = key
        self._stack = contextlib.ExitStack()
        self._files = {}
        self._types = {}

    def __enter__(self) -> "_Writer":
        return self

    def add(self, arrays: Dict[str, np.ndarray]) -> None:
        for name, values in arrays.items():
            values = np.ascontiguousarray(values)
            if name not in self._files:
                file = open(_array_file(self._folder, name), "wb")  # noqa: SIM115  See __exit__.
                self._files[name] = self._stack.enter_context(file)
                self._types[name] = values.dtype, [0, *values.shape[1:]]
                file.write(_header(*self._types[name]))
            self._files[name].write(values.data if values.size else b"")
            self._types[name][1][0] += len(values)

    def __exit__(self, kind: Optional[type], error: Any, trace: Any) -> None:
        with self._stack:
            for name, file in self._files.items():
                file.seek(0)
                file.write(_header(*self._types[name]))
        if kind is None:
            files = {name: _array_file(self._folder, name) for name in self._files}
            index = {
                "key": self._key,
                "sha256": {name: gfile.sha256(file) for name, file in files.items()},
                "samples": {name: _sizes_and_samples(file) for name, file in files.items()},
            }
            text = json.dumps(index)
            with open(os.path.join(self._folder, _INDEX), "w") as writer:
                writer.write(f"{text}\n{_sha256(text)}")


def _sizes_and_samples(file: str) -> List[Any]:
    return [os.path.getsize(file), sample_digest(file)]


def sample_digest(path: str) -> str:
    """Returns the SHA-256 of up to 16 evenly spaced samples of a file, of 64 KiB each.

    They are the whole of a file of up to 1 MiB.

    Raises:
      OSError: the file cannot be read.
    """
    size, digest = gfile.size(path), hashlib.sha256()
    last = max(0, size - _SAMPLE_BYTES)
    starts = {index * _SAMPLE_BYTES for index in range(_NUM_SAMPLES)}
    if size > _NUM_SAMPLES * _SAMPLE_BYTES:
        starts = {index * last // (_NUM_SAMPLES - 1) for index in range(_NUM_SAMPLES)}
    with gfile.open_file(path, "rb") as reader:
        for start in sorted(starts):
            reader.seek(min(start, size))
            digest.update(reader.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _header(dtype: np.dtype, shape: Sequence[int]) -> bytes:
    """Returns an .npy header of fixed length, so that it can be rewritten with the final shape."""
    fields = {"descr": dtype.str, "fortran_order": False, "shape": tuple(shape)}
    start = np.lib.format.magic(1, 0)
    text = repr(fields).ljust(_HEADER_BYTES - len(start) - 3) + "\n"
    return start + struct.pack("<H", len(text)) + text.encode()


def _array_file(folder: str, name: str) -> str:
    return os.path.join(folder, name + ".npy")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def release(values: np.ndarray) -> None:
    """Frees the memory of a mapped file's pages, which stay in the file; Python 3.7 cannot."""
    mapping = getattr(values, "_mmap", None)
    if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def fingerprint(path: str, verify: bool = False) -> tuple:
    """Returns values that tell whether a file, or the files in a folder, have changed.

    Args:
      path: of the file; () for a missing one.
      verify: whether they depend on all bytes, instead of size, time and samples.

    Raises:
      UserError: the file cannot be read.
    """
    if gfile.isdir(path):
        names = sorted(name for name in gfile.listdir(path) if not name.startswith("."))
        return tuple((name, fingerprint(posixpath.join(path, name), verify)) for name in names)
    if not gfile.exists(path):
        return ()
    if verify:
        return (gfile.sha256(path),)
    with gfile.convert_read_errors(path):
        return gfile.size(path), gfile.modified_ns(path), sample_digest(path)


def file_sha256(folder: Optional[str], path: str, verify: bool = False) -> str:
    """Returns the SHA-256 of a file; of a large one from the cache if it is unchanged.

    Args:
      folder: as in `load_or_build`.
      path, verify: as in `fingerprint`.
    """
    if verify or not folder or not gfile.exists(path) or gfile.size(path) < _LARGE_BYTES:
        return gfile.sha256(path)
    key = key_of(["sha256", gfile.absolute(path), fingerprint(path)], [])
    entry = load_or_build(
        folder, key, lambda add: add({"sha256": np.frombuffer(gfile.sha256(path).encode(), "u1")})
    )
    return entry["sha256"].tobytes().decode()


def _load(path: str, verify: bool = False) -> Entry:
    """Returns the arrays of an entry; raises ValueError if its key or content is wrong."""
    with open(os.path.join(path, _INDEX)) as reader:
        text, digest = reader.read().split("\n")
    if _sha256(text) != digest:
        raise ValueError(f"{_INDEX} has another SHA-256")
    index = json.loads(text)
    if index["key"] != os.path.basename(path):
        raise ValueError(f"the entry has the key {index['key']}")
    entry = Entry()
    entry.digest = _sha256(json.dumps(index["sha256"], sort_keys=True))
    for name, sample in index["samples"].items():
        file = _array_file(path, name)
        if _sizes_and_samples(file) != sample:
            raise ValueError(f"{file} has another size or other content")
        if verify and gfile.sha256(file) != index["sha256"][name]:
            raise ValueError(f"{file} has another SHA-256")
        entry[name] = np.load(file, mmap_mode="r")
    return entry
