"""Admission control: one fair queue of all requests, which refuses requests when it is full.

A request is in the queue from its head to its answer. Its tag gives its position (`Queue.enter`),
so that clients take turns. Until its texts are read, its number of rows is estimated from its
length. When more rows wait than may, the request with the highest tag is refused, which need not be
the newest. Small requests and large ones are computed at the same time (`batcher.Lanes`), so each
kind has its own speed.
"""

import asyncio
import collections
import contextlib
import functools
import heapq
import itertools
import math
import threading
import time
from concurrent import futures
from typing import Any, Callable, Generator, Iterator, NamedTuple, Optional, Set

from adapter_bert.serving.inference.batcher import BATCH_SIZE, is_large
from adapter_bert.shell import control_groups

_BASE_COST = 2000  # A request's fixed cost, in bytes whose reading takes as long.
_BYTES_PER_ROW = 8192  # Estimate for a body whose instances are not counted yet.
_HALF_LIFE = 10.0  # Seconds of work after which a measured speed has half its weight.


class RequestLimits(NamedTuple):
    """The limits on requests.

    Attributes:
      max_body_bytes, max_upload_bytes: size of a prediction's body, and of an upload.
      max_instances: instances of a prediction.
      max_queue_rows: waiting rows of all predictions together.
      max_batch_rows: rows of a batch.
      read_seconds: time from a request's headers to the end of its body; an upload has more, by its
        size.
      answer_seconds: time from then to its answer.
      max_task_metrics: tasks above which none has its own lines in the metrics.
    """

    max_body_bytes: int = 1 << 20
    max_upload_bytes: int = 256 << 20
    max_instances: int = 128
    max_queue_rows: int = 1024
    max_batch_rows: int = BATCH_SIZE
    read_seconds: float = 10.0
    answer_seconds: float = 30.0
    max_task_metrics: int = 1000


class Overloaded(Exception):
    """A request is refused because too many rows wait."""


class Ticket:
    """A request's position in a `Queue`.

    Attributes:
      tag: float; requests with lower ones go first.
      rows: int, its number of rows.
      num_bytes: int, the length of its body, as far as it is known.
      weight: int, by which each byte raises the tag.
      refused: `asyncio.Future` of the Exception with which the request is refused.
    """

    def __init__(self, tag: float, weight: int):
        self.tag, self.weight = tag, weight
        self.rows = self.num_bytes = 0
        self.refused: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    def refuse(self, error: Exception) -> None:
        """Ends the request with an error, unless it has been refused already."""
        if not self.refused.done():
            self.refused.set_result(error)


class Queue:
    """The queue of all requests. Only the event loop's thread may use it, except to count.

    Args:
      max_rows: maximum number of waiting rows.
      max_seconds: maximum time that a request may wait; fewer rows may wait if they take longer.
    """

    def __init__(self, max_rows: int, max_seconds: float):
        self._max_rows, self._max_seconds = max_rows, max_seconds
        self._tickets: Set[Ticket] = set()
        self._requests_of = collections.Counter()  # From client to its open requests.
        self._virtual_time = 0.0
        self._speeds = _Speed(), _Speed()  # Of small requests, and of large ones.

    def __len__(self) -> int:
        """Returns the number of waiting rows."""
        return sum(ticket.rows for ticket in self._tickets)

    @contextlib.contextmanager
    def enter(self, client: str, num_bytes: int) -> Iterator[Ticket]:
        """Yields the `Ticket` of a request, which is in the queue until the context ends.

        Self-clocked fair queueing (Golestani 1994): a tag is the virtual time plus the request's
        cost. The virtual time is the highest tag answered so far. The cost grows with the number of
        requests that the client has open.

        Args:
          client: its name, such as an address.
          num_bytes: length of the request's body; 0 if it is unknown, see `grow`.

        Raises:
          Overloaded: too many rows wait, and this request's tag is the highest.
        """
        self._requests_of[client] += 1
        weight = self._requests_of[client]
        ticket = Ticket(self._virtual_time + _BASE_COST * weight, weight)
        self._tickets.add(ticket)
        try:
            self.grow(ticket, num_bytes)
            yield ticket
            self._virtual_time = max(self._virtual_time, ticket.tag)
        finally:
            self._tickets.discard(ticket)
            self._requests_of[client] -= 1
            if not self._requests_of[client]:
                del self._requests_of[client]

    def grow(self, ticket: Ticket, num_bytes: int) -> None:
        """Sets the length of a request's body if it was lower; raises as `resize` does."""
        if num_bytes >= ticket.num_bytes:
            ticket.tag += ticket.weight * (num_bytes - ticket.num_bytes)
            ticket.num_bytes = num_bytes
            self.resize(ticket, 1 + num_bytes // _BYTES_PER_ROW)

    def resize(self, ticket: Ticket, rows: int) -> None:
        """Sets a request's number of rows, and refuses requests if too many rows wait.

        Raises:
          Overloaded: this request is refused.
        """
        ticket.rows = rows
        same_kind = {other for other in self._tickets if is_large(other.rows) == is_large(rows)}
        self._shrink(same_kind, self._speeds[is_large(rows)].rows_in(self._max_seconds))
        self._shrink(self._tickets, self._max_rows)
        if ticket.refused.done():
            raise ticket.refused.result()

    def _shrink(self, tickets: Set[Ticket], max_rows: float) -> None:
        """Refuses the requests with the highest tags, until few rows of some requests wait."""
        while len(tickets) > 1 and sum(ticket.rows for ticket in tickets) > max_rows:
            last = max(tickets, key=lambda ticket: ticket.tag)
            tickets.discard(last)
            self._tickets.discard(last)
            last.refuse(Overloaded())

    def count_batch(self, are_large: bool, rows: int, seconds: float) -> None:
        """Records the seconds of a computed batch of small or of large requests; thread-safe."""
        self._speeds[are_large].count(rows, seconds)

    def count_reading(self, ticket: Ticket, seconds: float) -> None:
        """Records the seconds of reading a request's texts or writing its answer; thread-safe."""
        self._speeds[is_large(ticket.rows)].count(0, seconds)


class _Speed:
    """The rows that recent work computed in a second."""

    def __init__(self) -> None:
        self._rows = self._seconds = 0.0  # Decayed sums.

    def count(self, rows: int, seconds: float) -> None:
        """Counts work."""
        decay = 0.5 ** (seconds / _HALF_LIFE)
        self._rows = decay * self._rows + rows
        self._seconds = decay * self._seconds + seconds

    def rows_in(self, seconds: float) -> float:
        """Returns how many rows can be computed in a time; infinity before the first ones."""
        return seconds * self._rows / self._seconds if self._rows and self._seconds else math.inf


class Readers:
    """Threads that run work in steps: the next step is of the work with the lowest tag.

    Args:
      num_threads: by default one for each processor that the process may use, at most four.
    """

    def __init__(self, num_threads: Optional[int] = None):
        self._heap, self._arrival = [], itertools.count()
        self._changed, self._closed = threading.Condition(), False
        num_threads = num_threads or min(4, control_groups.num_processors())
        self._threads = [
            threading.Thread(target=self._work, name="texts", daemon=True)
            for _ in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self, tag: float, steps: Generator[Any, None, Any], count: Callable[[float], None]
    ) -> "futures.Future[Any]":
        """Queues work.

        Args:
          tag: float; work with a lower one goes first.
          steps: generator; after each step it yields None, or a `concurrent.futures.Future` that
            its next step waits for.
          count: function of the seconds, called when the work has returned a value. Failed work,
            such as invalid requests, computes no rows and would make the queue seem slow.

        Returns:
          A `concurrent.futures.Future` of the generator's return value; cancelling ends the work.
        """
        future: futures.Future[Any] = futures.Future()
        self._push(tag, next(self._arrival), steps, count, future, 0.0)
        return future

    def close(self) -> None:
        """Finishes all work and ends the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _push(self, *entry: Any) -> None:
        with self._changed:
            heapq.heappush(self._heap, entry)
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._heap:
                    if self._closed:
                        return
                    self._changed.wait()
                tag, arrival, steps, count, future, seconds = heapq.heappop(self._heap)
            if future.cancelled():
                continue
            start = time.perf_counter()
            try:
                awaited = next(steps)
            except StopIteration as end:
                count(seconds + time.perf_counter() - start)
                _resolve(future.set_result, end.value)
            except Exception as error:
                _resolve(future.set_exception, error)
            else:
                seconds += time.perf_counter() - start
                push = functools.partial(self._push, tag, arrival, steps, count, future, seconds)
                if awaited is None:
                    push()
                else:
                    awaited.add_done_callback(lambda _, push=push: push())


def _resolve(setter: Callable, value: Any) -> None:
    with contextlib.suppress(futures.InvalidStateError):  # The caller has just cancelled it.
        setter(value)
