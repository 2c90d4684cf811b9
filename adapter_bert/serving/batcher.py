"""Rows of many callers → batches of like length, computed one at a time in a thread of its own.

While a batch is computed the next one gathers, so that nothing waits for a batch to fill: alone, a
row is computed at once, and under load batches grow by themselves.
"""

import bisect
import contextlib
import itertools
import math
import threading
import time
from concurrent import futures
from typing import Any, Callable, Iterator, List, NamedTuple, Tuple

from absl import logging

BATCH_SIZE = 32  # Of one pass: more rows are no faster each, and need more memory.
# Padding that a batch may have: tokens that take about as long as a batch's own overhead does with
# BERTs of 6 and 12 layers on CPU, or a share of the batch, whichever is more.
_MAX_PADDING_TOKENS = 64
_MAX_PADDING_RATIO = 0.25
# On CPU more tokens are no faster each, and whoever comes next waits for all of them.
_MAX_BATCH_TOKENS = 1024


class Closed(Exception):
    """No rows are taken any more."""


class _Call:
    """The rows of one caller: answered when the last of them is computed."""

    def __init__(self, count: int):
        self.future = futures.Future()
        self.outputs = [None] * count
        self.num_missing = count

    def set_output(self, index: int, output) -> None:
        self.outputs[index] = output
        self.num_missing -= 1
        if not self.num_missing and not self.future.done():
            with contextlib.suppress(futures.InvalidStateError):  # Its caller gave up just now.
                self.future.set_result(self.outputs)


class _QueuedRow(NamedTuple):
    """A row that waits; they compare by length, and of one length by their place in the queue."""

    length: int
    place: Tuple[float, int]  # Priority, arrival.
    row: object
    call: _Call
    row_index: int  # Among the call's rows.


class Batcher:
    """Hands rows to a function in batches. Every method may be called from any thread.

    Args:
      predict: function of a list of rows, which returns a list of an output for each.
      length_of: function of a row; rows of like length share a batch.
      max_batch_size: the most rows of a batch.
    """

    def __init__(
        self,
        predict: Callable[[list], list],
        length_of: Callable[[Any], int],
        *,
        max_batch_size: int,
    ):
        self._predict, self._length_of = predict, length_of
        self._max_batch_size = max_batch_size
        self._observers: List[Callable[[int, float], None]] = []
        self._queue = []  # `_QueuedRow`, the shortest first.
        self._arrival, self._closed = itertools.count(), False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self._thread.start()

    def __len__(self):
        """How many rows wait."""
        return len(self._queue)

    @property
    def is_open(self) -> bool:
        """Whether rows are taken."""
        return not self._closed and self._thread.is_alive()

    def submit(self, rows: list, priority: float = 0.0) -> "futures.Future[list]":
        """Queues rows.

        Args:
          rows: list of at least one.
          priority: rows with a lower one go first; of one priority, those that came first.

        Returns:
          A `concurrent.futures.Future` of the list of their outputs; the Exception that a row met
          is its output. Where it is cancelled, what is not computed yet is left out.

        Raises:
          Closed: see there.
        """
        call = _Call(len(rows))
        with self._changed:
            if self._closed:
                raise Closed
            for position, row in enumerate(rows):
                place = priority, next(self._arrival)
                entry = _QueuedRow(self._length_of(row), place, row, call, position)
                bisect.insort(self._queue, entry)
            self._changed.notify()
        return call.future

    def observe(self, observer: Callable[[int, float], None]) -> None:
        """Has a function of (number of rows, seconds) be told of each batch."""
        self._observers.append(observer)

    def close(self) -> None:
        """Computes what waits, and ends; later rows are refused."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self):
        while True:
            with self._changed:
                if self._closed and not self._queue:
                    return
                batch = self._next_batch() if self._queue else []
                if not batch:
                    self._changed.wait()
            batch = [entry for entry in batch if not entry.call.future.done()]
            if batch:
                start = time.perf_counter()
                self._compute(batch)
                seconds = time.perf_counter() - start
                for observer in self._observers:
                    observer(len(batch), seconds)

    def _next_batch(self) -> List[_QueuedRow]:
        """Takes the row that is next, and of its neighbours in length as many as pay."""
        lengths = [entry.length for entry in self._queue]
        first = min(range(len(lengths)), key=lambda position: self._queue[position].place)
        *_, (start, stop) = itertools.islice(_windows(lengths, first), self._max_batch_size)
        batch = self._queue[start:stop]
        del self._queue[start:stop]
        return batch

    def _compute(self, batch: List[_QueuedRow]) -> None:
        """Answers a batch; one with an error in halves, until the row is alone that it is of."""
        try:
            outputs = self._predict([entry.row for entry in batch])
        except Exception as error:
            if len(batch) == 1:
                logging.warning("A row cannot be computed: %s", error)
                batch[0].call.set_output(batch[0].row_index, error)
                return
            middle = len(batch) // 2
            self._compute(batch[:middle])
            self._compute(batch[middle:])
            return
        for entry, output in zip(batch, outputs):
            entry.call.set_output(entry.row_index, output)


def _windows(lengths: List[int], index: int) -> Iterator[Tuple[int, int]]:
    """Yields the windows of 1, 2, 3, ... of ascending lengths around one: (start, stop).

    Each takes in the neighbour that adds less padding, as long as all of it costs no more than a
    batch of its own for those who need it would, and the batch is no larger than pays.
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
        if lengths[stop - 1] * (stop - start) > _MAX_BATCH_TOKENS:
            return
