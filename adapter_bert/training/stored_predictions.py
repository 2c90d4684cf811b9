"""Predictions in memory-mapped files: memory does not grow with the rows, and a kill loses little.

folder/predictions-<key>/<name>.npy       an array [N, ...]
folder/predictions-<key>/progress.json    how many rows are predicted
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
import weakref
from typing import Any, Dict, Iterable, Iterator, Optional, Tuple

import numpy as np
from absl import logging

from adapter_bert.files import gfile, locks
from adapter_bert.training import feature_cache
from adapter_bert.training.feature_cache import release

_PREFIX, _PROGRESS = "predictions-", "progress.json"
_SECONDS_BETWEEN_RECORDS = 5.0
_ROWS_BETWEEN_RELEASES = 1 << 14
_ROWS_PER_PIECE = 1 << 10  # Rows may have several numbers per token.
_ABANDONED_SECONDS = 7 * 24 * 60 * 60


class StoredPredictions(Dict[str, np.ndarray]):
    """The predictions of N rows by name, arrays [N, ...] of which some rows may be missing.

    Args:
      folder: of the cache; None for a temporary one.
      key: of everything that the predictions depend on; None if an earlier process's must not be
        used.
      num_rows: N.

    Attributes:
      num_done: the number of rows that `add` has got, now or in an earlier process.

    Raises:
      UserError: as in `feature_cache.load_or_build`.
    """

    def __init__(self, folder: Optional[str], key: Optional[str], num_rows: int):
        super().__init__()
        self._num_rows, self.num_done, self._num_unreleased = num_rows, 0, 0
        self._stack = contextlib.ExitStack()
        path = self._open(folder, key) if key else None
        if path is None:
            path = tempfile.mkdtemp()
            self._stack.callback(shutil.rmtree, path, ignore_errors=True)
        self._path: str = path
        weakref.finalize(self, self._stack.close)
        self._recorded = time.monotonic()
        self._read_earlier()

    def _open(self, folder: Optional[str], key: str) -> Optional[str]:
        """Returns the locked folder of a key; None if it cannot be used."""
        if not folder or not feature_cache.make_private(folder):
            return None
        _remove_abandoned(folder)
        path = os.path.join(folder, _PREFIX + key)
        try:
            os.makedirs(path, 0o700, exist_ok=True)
            if not gfile.is_own(path):
                return None
            descriptor = os.open(path, os.O_RDONLY)
            self._stack.callback(os.close, descriptor)
            if not locks.lock(descriptor, path + locks.HELD):
                return None
            self._stack.callback(locks.unlock, path + locks.HELD)
        except OSError as error:
            logging.warning("A killed prediction will start again: %s (%s).", path, error)
            return None
        return path

    def _read_earlier(self) -> None:
        try:
            with open(os.path.join(self._path, _PROGRESS)) as reader:
                progress = json.load(reader)
            for name in progress["names"]:
                values = np.lib.format.open_memmap(self._file(name), mode="r+")
                if len(values) != self._num_rows:
                    raise ValueError(f"{name} has {len(values)} rows")
                self[name] = values
            self.num_done = int(progress["num_done"])
        except FileNotFoundError:
            self.clear()
        except (KeyError, OSError, TypeError, ValueError) as error:
            logging.warning("The predictions of a killed process cannot be used (%s).", error)
            self.clear()
        if self.num_done:
            logging.info("Resuming after %d of %d rows.", self.num_done, self._num_rows)

    def add(self, indices: np.ndarray, values: Dict[str, np.ndarray]) -> None:
        """Stores the predictions of rows; all earlier ones of the plan must be stored.

        Args:
          indices: int [B], of the rows.
          values: arrays [B, ...] by name. A later batch may have fewer columns than the first, of
            shorter texts: the missing ones are -inf, or 0 of integers.
        """
        for name, batch in values.items():
            if name not in self:
                shape = (self._num_rows, *batch.shape[1:])
                self[name] = np.lib.format.open_memmap(
                    self._file(name), mode="w+", dtype=batch.dtype, shape=shape
                )
            stored = self[name]
            if batch.ndim > 1 and batch.shape[1] < stored.shape[1]:
                stored[indices, batch.shape[1] :] = -np.inf if batch.dtype.kind == "f" else 0
                stored[indices, : batch.shape[1]] = batch
            else:
                stored[indices] = batch
        self.num_done += len(indices)
        self._num_unreleased += len(indices)
        if self._num_unreleased >= _ROWS_BETWEEN_RELEASES:  # Each row may be on its own pages.
            for stored in self.values():
                release(stored)
            self._num_unreleased = 0
        if time.monotonic() > self._recorded + _SECONDS_BETWEEN_RECORDS:
            self.record()

    def record(self) -> None:
        """Writes the arrays to disk, and then how many rows they have, for a later process."""
        for values in self.values():
            values.flush()  # type: ignore[attr-defined]  # It is a np.memmap.
            release(values)
        path = os.path.join(self._path, _PROGRESS)
        with open(path + ".new", "w") as writer:
            json.dump({"num_done": self.num_done, "names": list(self)}, writer)
        os.replace(path + ".new", path)
        self._recorded = time.monotonic()

    def remove(self) -> None:
        """Removes the files, which stay readable through this object."""
        shutil.rmtree(self._path, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Lets another process continue; the arrays stay readable."""
        self._stack.close()

    def _file(self, name: str) -> str:
        return os.path.join(self._path, name + ".npy")


def _remove_abandoned(folder: str) -> None:
    """Removes predictions that no process has continued for a week."""
    for path in gfile.glob(_PREFIX + "*", folder):
        with contextlib.suppress(OSError):  # Another process may remove it, too.
            if time.time() - os.path.getmtime(path) > _ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def key_of(parts: Iterable[Any], *checkpoints: Optional[str]) -> str:
    """Returns the key of predictions.

    Args:
      parts: as in `feature_cache.key_of`.
      *checkpoints: prefixes of TensorFlow checkpoints, whose indices have checksums of all tensors.
    """
    digests = [gfile.sha256(prefix + ".index") if prefix else None for prefix in checkpoints]
    return hashlib.sha256(repr([*parts, *digests]).encode()).hexdigest()


def pieces(arrays: Dict[str, np.ndarray], num_rows: int = 1 << 14) -> Iterator[Tuple[int, Dict]]:
    """Yields (index of the first row, copies of the arrays' rows) of parts, in order.

    Args:
      arrays: arrays [N, ...] by name.
      num_rows: of a part.
    """
    total = len(next(iter(arrays.values())))
    for start in range(0, total, num_rows):
        yield start, {name: np.array(v[start : start + num_rows]) for name, v in arrays.items()}
        for values in arrays.values():
            release(values)


def rows_of(predictions: Dict[str, np.ndarray]) -> Iterator[Dict[str, Any]]:
    """Yields the predictions of each row, in order, an array or number by name."""
    for _, part in pieces(predictions, _ROWS_PER_PIECE):
        for index in range(len(next(iter(part.values())))):
            yield {name: values[index] for name, values in part.items()}
