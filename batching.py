"""Rows of many callers → batches of like length, computed one at a time in a thread of its own.

While a batch is computed the next one gathers, so that nothing waits for a batch to fill: alone, a
row is computed at once, and under load batches grow by themselves.
"""

import collections
import contextlib
import itertools
import threading
import time
from concurrent import futures

from absl import logging


class QueueFull(Exception):
    """There are more rows than may wait; those of this call do not."""


class Closed(Exception):
    """No rows are taken any more."""


class _Call:
    """The rows of one caller: answered when the last of them is computed."""

    def __init__(self, count):
        self.future = futures.Future()
        self.outputs = [None] * count
        self.missing = count

    def take(self, index, output):
        self.outputs[index] = output
        self.missing -= 1
        if not self.missing and not self.future.done():
            self._settle(self.future.set_result, self.outputs)

    def fail(self, error):
        if not self.future.done():
            self._settle(self.future.set_exception, error)

    def _settle(self, settle, value):
        with contextlib.suppress(futures.InvalidStateError):  # Its caller gave up in this moment.
            settle(value)


class Batcher:
    """Hands rows to a function in batches. Every method may be called from any thread.

    Args:
      predict: function of a list of rows, which returns a list of an output for each.
      bucket_of: function of a row; rows of one bucket share a batch, so it should tell lengths.
      max_batch_size: the most rows of a batch.
      max_queue_size: the most rows that may wait.
      observe: function of (number of rows, seconds) that is told of each batch.
    """

    def __init__(self, predict, bucket_of, *, max_batch_size, max_queue_size, observe=None):
        self._predict, self._bucket_of = predict, bucket_of
        self._max_batch_size, self._max_queue_size = max_batch_size, max_queue_size
        self._observe = observe or (lambda size, seconds: None)
        self._buckets = collections.defaultdict(collections.deque)
        self._length, self._arrival, self._closed = 0, itertools.count(), False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self._thread.start()

    def __len__(self):
        """How many rows wait."""
        return self._length

    @property
    def is_open(self):
        """Whether rows are taken."""
        return not self._closed and self._thread.is_alive()

    @property
    def is_full(self):
        """Whether as many rows wait as may."""
        return self._length >= self._max_queue_size

    def submit(self, rows):
        """Queues rows, all or none of them.

        Args:
          rows: list of at least one.

        Returns:
          A `concurrent.futures.Future` of the list of their outputs, or of the error that one of
          them met. Where it is cancelled, what is not computed yet is left out.

        Raises:
          QueueFull, Closed: see there.
        """
        call = _Call(len(rows))
        with self._changed:
            if self._closed:
                raise Closed
            if self._length + len(rows) > self._max_queue_size:
                raise QueueFull
            for index, row in enumerate(rows):
                entry = (next(self._arrival), row, call, index)
                self._buckets[self._bucket_of(row)].append(entry)
            self._length += len(rows)
            self._changed.notify()
        return call.future

    def close(self):
        """Computes what waits, and ends; later rows are refused."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self):
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._length or self._closed)
                if not self._length:
                    return
                batch = self._next_batch()
            batch = [entry for entry in batch if not entry[2].future.done()]
            if batch:
                start = time.perf_counter()
                self._compute(batch)
                self._observe(len(batch), time.perf_counter() - start)

    def _next_batch(self):
        """Takes the row that has waited longest, and the next ones of its bucket."""
        bucket = min(self._buckets, key=lambda name: self._buckets[name][0][0])
        waiting = self._buckets[bucket]
        batch = [waiting.popleft() for _ in range(min(len(waiting), self._max_batch_size))]
        if not waiting:
            del self._buckets[bucket]
        self._length -= len(batch)
        return batch

    def _compute(self, batch):
        """Answers a batch; one with an error in halves, until the row is alone that it is of."""
        try:
            outputs = self._predict([row for _, row, _, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                logging.warning("A row cannot be computed: %s", error)
                batch[0][2].fail(error)
                return
            middle = len(batch) // 2
            self._compute(batch[:middle])
            self._compute(batch[middle:])
            return
        for (_, _, call, index), output in zip(batch, outputs):
            call.take(index, output)
