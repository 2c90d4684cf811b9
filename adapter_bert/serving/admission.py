"""Who is next and who is refused: all requests wait in one queue, in which clients take turns.

A request has a place in the queue from its head to its answer: a tag, see `Queue.enter`. It counts
as many rows as its length promises, until its texts are read. Where there are more rows than may
wait, the request with the last tag is refused, which may be another than the newest.
"""

import asyncio
import collections
import contextlib
import heapq
import itertools
import os
import threading
import time
from concurrent import futures
from typing import Any, Callable, Generator, Iterator, Optional

_BASE_COST = 2000  # Bytes whose reading costs about what any request costs besides.
_BYTES_PER_ROW = 8192  # Of a body whose instances are not counted yet.
_HALF_LIFE = 10.0  # Seconds of work after which a measured speed counts half.


class Overloaded(Exception):
    """A request is refused because too much waits."""


class Ticket:
    """A request's place in a `Queue`.

    Attributes:
      tag: float; requests with lower ones go first.
      rows: int, how many wait for it.
      refused: `asyncio.Future`, done when others have taken its place.
    """

    def __init__(self, tag: float, rows: int):
        self.tag, self.rows = tag, rows
        self.refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Queue:
    """The places of all requests. Only the event loop's thread enters, changes and leaves it.

    Args:
      max_rows: how many rows may wait.
      max_seconds: for how long a request may wait; less rows may wait where they take longer.
    """

    def __init__(self, max_rows: int, max_seconds: float):
        self.max_rows, self._max_seconds = max_rows, max_seconds
        self._tickets: set[Ticket] = set()
        self._requests_of = collections.Counter()  # By client.
        self._virtual_time = 0.0
        self._computed_rows = self._seconds = 0.0  # Recent ones.

    def __len__(self):
        """How many rows wait."""
        return sum(ticket.rows for ticket in self._tickets)

    @contextlib.contextmanager
    def enter(self, client: str, num_bytes: int) -> Iterator[Ticket]:
        """Yields the `Ticket` of a request, which has its place until the context ends.

        Self-clocked fair queueing (Golestani 1994): a tag is the virtual time, which is the last
        tag that was answered, plus the request's cost, of as many requests as the client has now.

        Args:
          client: whose turn it is, such as an address.
          num_bytes: what is to be read.

        Raises:
          Overloaded: too many rows wait, and none of them longer than this request's would.
        """
        self._requests_of[client] += 1
        cost = (_BASE_COST + num_bytes) * self._requests_of[client]
        ticket = Ticket(self._virtual_time + cost, 0)
        self._tickets.add(ticket)
        try:
            self.resize(ticket, 1 + num_bytes // _BYTES_PER_ROW)
            yield ticket
            self._virtual_time = max(self._virtual_time, ticket.tag)
        finally:
            self._tickets.discard(ticket)
            self._requests_of[client] -= 1
            if not self._requests_of[client]:
                del self._requests_of[client]

    def resize(self, ticket: Ticket, rows: int) -> None:
        """Sets how many rows wait for a request.

        Raises:
          Overloaded: these are too many; the request has lost its place.
        """
        ticket.rows = rows
        while len(self) > self._limit() and len(self._tickets) > 1:
            last = max(self._tickets, key=lambda other: other.tag)
            self._tickets.remove(last)
            if last is ticket:
                raise Overloaded
            if not last.refused.done():
                last.refused.set_result(None)

    def count_work(self, rows: int, seconds: float) -> None:
        """Tells how long rows took, or their texts (0 rows). Any thread may call it."""
        kept = 0.5 ** (seconds / _HALF_LIFE)
        self._computed_rows = kept * self._computed_rows + rows
        self._seconds = kept * self._seconds + seconds

    def _limit(self) -> float:
        """How many rows may wait: those that are answered in time at the speed of late."""
        if not self._computed_rows or not self._seconds:
            return self.max_rows
        return min(self.max_rows, self._max_seconds * self._computed_rows / self._seconds)


class Readers:
    """Threads that do work step by step; before each step, the work with the lowest tag is next.

    Args:
      count_work: function of (0, seconds) that is told of each step.
      num_threads: by default one for each processor, four at most.
    """

    def __init__(self, count_work: Callable[[int, float], None], num_threads: Optional[int] = None):
        self._count_work = count_work
        self._heap, self._arrival = [], itertools.count()
        self._changed, self._closed = threading.Condition(), False
        num_threads = num_threads or min(4, os.cpu_count() or 1)
        self._threads = [
            threading.Thread(target=self._work, name="texts", daemon=True)
            for _ in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, tag: float, steps: Generator[None, None, Any]) -> "futures.Future[Any]":
        """Has work done.

        Args:
          tag: float, see above.
          steps: generator; it yields where work with a lower tag may go first.

        Returns:
          A `concurrent.futures.Future` of what the generator returns. Cancelling it ends the work.
        """
        future: futures.Future[Any] = futures.Future()
        self._push(tag, next(self._arrival), steps, future)
        return future

    def close(self) -> None:
        """Does all work, and ends."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _push(self, *entry):
        with self._changed:
            heapq.heappush(self._heap, entry)
            self._changed.notify()

    def _work(self):
        while True:
            with self._changed:
                while not self._heap:
                    if self._closed:
                        return
                    self._changed.wait()
                tag, arrival, steps, future = heapq.heappop(self._heap)
            if future.cancelled():
                continue
            start = time.perf_counter()
            try:
                next(steps)
            except StopIteration as end:
                _resolve(future.set_result, end.value)
            except Exception as error:
                _resolve(future.set_exception, error)
            else:
                self._push(tag, arrival, steps, future)
            self._count_work(0, time.perf_counter() - start)


def _resolve(setter, value):
    with contextlib.suppress(futures.InvalidStateError):  # Its caller gave up in this moment.
        setter(value)
