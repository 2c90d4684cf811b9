"""Dynamic batching: rows of many callers are computed in batches of similar length, in one thread.

No row waits for a batch to fill. A lone row is computed at once; under load, rows gather while a
batch is computed, so batches grow.
"""

import bisect
import contextlib
import functools
import itertools
import math
import os
import sys
import threading
import time
from concurrent import futures
from typing import Any, Callable, Iterator, List, NamedTuple, Sequence, Tuple

from absl import logging

BATCH_SIZE = 32  # A larger batch is no faster per row, and needs more memory.
# A batch may be padded by this many tokens, which take about as long as its fixed overhead (BERTs
# of 6 and 12 layers on CPU), or by this share of its tokens if that is more.
_MAX_PADDING_TOKENS = 64
_MAX_PADDING_RATIO = 0.25
# On CPU a larger batch is no faster per token, and the next row waits for all of it.
MAX_BATCH_TOKENS = 1024
_NICENESS = 2  # Of large calls: Linux then gives them two thirds of the time of others.
_MAX_SMALL_CALL = 8  # Rows: a call of more takes so long that others must not wait for it.


def is_large(num_rows: int) -> bool:
    """Returns whether a call of so many rows is computed beside the small ones."""
    return num_rows > _MAX_SMALL_CALL


class Closed(Exception):
    """The batcher is closed."""


class _Call:
    """Collects the outputs of one caller's rows; its future is done when all are computed."""

    def __init__(self, count: int):
        self.future = futures.Future()
        self.outputs = [None] * count
        self.num_missing = count

    def set_output(self, index: int, output: Any) -> None:
        self.outputs[index] = output
        self.num_missing -= 1
        if not self.num_missing:
            with contextlib.suppress(futures.InvalidStateError):  # The caller has cancelled.
                self.future.set_result(self.outputs)


class _QueuedRow(NamedTuple):
    """A waiting row. Rows compare by length, then by position in the queue."""

    length: int
    position: Tuple[float, int]  # Priority, arrival.
    row: object
    call: _Call
    row_index: int  # Among the call's rows.


class Batcher:
    """Calls a function with batches of rows. Every method may be called from any thread.

    Args:
      predict: function of a list of rows that returns a list of their outputs; an Exception is the
        output of a row that failed.
      length_of: function of a row; rows of similar length share a batch.
      max_batch_size: maximum number of rows in a batch.
      observers: functions of (number of rows, seconds) that are called after each batch.
      niceness: added to that of the process for the thread that computes; Linux only.
    """

    def __init__(
        self,
        predict: Callable[[list], list],
        length_of: Callable[[Any], int],
        *,
        max_batch_size: int,
        observers: Sequence[Callable[[int, float], None]] = (),
        niceness: int = 0,
    ):
        self._predict, self._length_of = predict, length_of
        self._max_batch_size, self._observers = max_batch_size, observers
        self._niceness = niceness
        self._queue = []  # `_QueuedRow`, the shortest first.
        self._arrival, self._closed = itertools.count(), False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Returns the number of waiting rows."""
        return len(self._queue)

    @property
    def is_open(self) -> bool:
        """Returns whether the batcher accepts rows."""
        return not self._closed and self._thread.is_alive()

    def submit(self, rows: list, priority: float = 0.0) -> "futures.Future[list]":
        """Queues rows.

        Args:
          rows: list of at least one row.
          priority: rows with a lower one go first; then those that came first.

        Returns:
          A `concurrent.futures.Future` of the list of their outputs. The output of a row that fails
          is its Exception. Cancelling the future skips rows that are not computed yet.

        Raises:
          Closed: the batcher is closed.
        """
        call = _Call(len(rows))
        with self._changed:
            if self._closed:
                raise Closed
            for index, row in enumerate(rows):
                position = priority, next(self._arrival)
                entry = _QueuedRow(self._length_of(row), position, row, call, index)
                bisect.insort(self._queue, entry)
            self._changed.notify()
        return call.future

    def close(self) -> None:
        """Computes the waiting rows and ends the thread; later rows are refused."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        if self._niceness and sys.platform == "linux":  # Elsewhere it is of a whole process.
            thread = threading.get_native_id()
            niceness = os.getpriority(os.PRIO_PROCESS, thread) + self._niceness
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
        while True:
            with self._changed:
                if self._closed and not self._queue:
                    return
                batch = self._next_batch()
                if not batch and not self._closed:
                    self._changed.wait()
            if batch:
                start = time.perf_counter()
                self._compute(batch)
                seconds = time.perf_counter() - start
                for observer in self._observers:
                    observer(len(batch), seconds)

    def _next_batch(self) -> List[_QueuedRow]:
        """Removes and returns the next row, with the rows of similar length to batch it with.

        Drops the rows that nobody waits for any more.
        """
        self._queue = [entry for entry in self._queue if not entry.call.future.done()]
        if not self._queue:
            return []
        lengths = [entry.length for entry in self._queue]
        first = min(range(len(lengths)), key=lambda index: self._queue[index].position)
        *_, (start, stop) = itertools.islice(_windows(lengths, first), self._max_batch_size)
        batch = self._queue[start:stop]
        del self._queue[start:stop]
        return batch

    def _compute(self, batch: List[_QueuedRow]) -> None:
        """Computes a batch. On an error, bisects the batch to isolate the failing row."""
        try:
            outputs = self._predict([entry.row for entry in batch])
        except Exception as error:
            if len(batch) == 1:
                logging.warning("A row failed: %s", error)
                batch[0].call.set_output(batch[0].row_index, error)
                return
            middle = len(batch) // 2
            self._compute(batch[:middle])
            self._compute(batch[middle:])
            return
        for entry, output in zip(batch, outputs):
            if isinstance(output, Exception):
                logging.warning("A row failed: %s", output)
            entry.call.set_output(entry.row_index, output)


class Lanes:
    """Two `Batcher`s: rows of small calls never wait for a batch of a large one.

    Both compute at the same time if both have rows. The system's scheduler then gives a large
    call about two fifths of the processors. The arguments are those of `Batcher`, except that
    observers are functions of (whether the rows are of large calls, number of rows, seconds).
    """

    def __init__(
        self,
        *arguments: Any,
        observers: Sequence[Callable[[bool, int, float], None]] = (),
        **options: Any,
    ):
        self._lanes = [
            Batcher(
                *arguments,
                **options,
                observers=[functools.partial(observer, lane > 0) for observer in observers],
                niceness=lane * _NICENESS,
            )
            for lane in (0, 1)
        ]

    def __len__(self) -> int:
        """Returns the number of waiting rows."""
        return sum(map(len, self._lanes))

    @property
    def is_open(self) -> bool:
        """Returns whether rows are accepted."""
        return all(lane.is_open for lane in self._lanes)

    def submit(self, rows: list, priority: float = 0.0) -> "futures.Future[list]":
        """Queues the rows of a call as `Batcher.submit` does."""
        return self._lanes[is_large(len(rows))].submit(rows, priority)

    def close(self) -> None:
        """Computes the waiting rows and ends the threads; later rows are refused."""
        for lane in self._lanes:
            lane.close()


def _windows(lengths: List[int], index: int) -> Iterator[Tuple[int, int]]:
    """Yields (start, stop) of windows of 1, 2, 3, ... ascending lengths that contain `index`.

    Each window adds the neighbour that needs less padding. The last one is the largest window
    within the limits on padding and tokens.
    """
    start, stop, padding = index, index + 1, 0.0
    while True:
        yield start, stop
        max_length = lengths[stop - 1]
        shorter = max_length - lengths[start - 1] if start else math.inf
        longer = math.inf
        if stop < len(lengths):
            longer = (lengths[stop] - max_length) * (stop - start)
        padding += min(shorter, longer)
        tokens = sum(lengths[start:stop])
        if padding > max(_MAX_PADDING_TOKENS, _MAX_PADDING_RATIO * tokens):
            return
        start, stop = (start - 1, stop) if shorter <= longer else (start, stop + 1)
        if lengths[stop - 1] * (stop - start) > MAX_BATCH_TOKENS:
            return
