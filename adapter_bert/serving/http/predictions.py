"""Answers the requests that the bank computes, each kind in the same steps.

    read the body -> wait in the queue -> encode its texts -> compute a batch -> write the answer

A kind of prediction is a function that encodes a body, such as `instances.encode`. What it returns
has `tasks`, `rows()`, and `answer(outputs)`.
"""

import asyncio
import functools
import time
from typing import Any, Awaitable, Callable, Dict, Generator, List, Optional

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from adapter_bert.serving.http import (
    admission,
    bodies,
    messages,
    prometheus,
    registry,
    served_tasks,
)
from adapter_bert.serving.http.messages import Refused
from adapter_bert.serving.inference import bank, batcher

HEADERS = ("X-Adapter-Version", "X-Task-Version")
LOGGED = "adapter_bert.logged"  # In a request's scope: what its line in the log says.

# A function of a request's body that encodes it in steps for `admission.Readers`.
Encode = Callable[[bytes, messages.GetTask], Generator[Any, None, Any]]


class Predictions:
    """The queue of all predictions, and the threads that compute them.

    Attributes:
      queue: `admission.Queue`.
      batcher: `batcher.Lanes`.
    """

    def __init__(
        self,
        tasks: registry.Registry,
        adapter_bank: bank.AdapterBank,
        limits: admission.RequestLimits,
        metrics: prometheus.Metrics,
    ):
        self._tasks, self._limits, self._metrics = tasks, limits, metrics
        self.queue = admission.Queue(limits.max_queue_rows, limits.answer_seconds)
        self._readers = admission.Readers()
        self.batcher = batcher.Lanes(
            functools.partial(adapter_bank.predict, return_errors=True),
            lambda row: len(row.input_ids),
            max_batch_size=limits.max_batch_rows,
            observers=[self.queue.count_batch, lambda _, *counts: metrics.count_batch(*counts)],
        )

    def close(self) -> None:
        """Ends the threads, once they have read and computed what waits."""
        self._readers.close()
        self.batcher.close()

    async def answer(self, request: Request, encode: Encode) -> Response:
        """Answers a request.

        Raises:
          Refused: it is too large or too slow, too many rows wait, or its client disconnected.
          UserError: it is invalid.
        """
        body = bodies.Body(request, self._limits.max_body_bytes)
        client, served = request.client.host if request.client else "", self._tasks.served
        try:
            with self.queue.enter(client, body.length) as ticket, served.lease() as lease:
                grow = functools.partial(self.queue.grow, ticket)
                reading = body.read(self._limits.read_seconds, grow)
                content = await _while_queued(ticket, reading, None)
                start = time.perf_counter()
                answer = self._compute(content, encode, lease, ticket)
                watching = asyncio.ensure_future(_watch_client(request, ticket))
                try:
                    content = await _while_queued(ticket, answer, self._limits.answer_seconds)
                finally:
                    watching.cancel()
                    tasks = lease.tasks()
                    versions = _describe(tasks)
                    request.scope[LOGGED] = {**versions, "rows": ticket.rows}
                seconds = time.perf_counter() - start
                self._metrics.count_tasks({task.name for task in tasks}, seconds)
        except admission.Overloaded:
            raise Refused(503, "too many rows are waiting; try again later") from None
        except asyncio.TimeoutError:
            seconds = self._limits.answer_seconds
            raise Refused(504, f"no answer within {seconds:g} seconds") from None
        headers = dict(zip(HEADERS, (versions["adapter"], versions["version"])))
        return await bodies.compressed(request, content, headers=headers)

    async def _compute(
        self, body: bytes, encode: Encode, lease: served_tasks.Lease, ticket: admission.Ticket
    ) -> bytes:
        """Returns the body of a response."""
        loop = asyncio.get_running_loop()

        def in_thread(steps: Generator[Any, None, Any]) -> Awaitable:
            count = functools.partial(self.queue.count_reading, ticket)
            return asyncio.wrap_future(self._readers.submit(ticket.tag, steps, count))

        def get_task(label: str) -> Generator[Any, None, served_tasks.ServedTask]:
            for _ in range(2):  # Another version may replace the one that was prepared.
                if label not in lease and not self._tasks.is_ready(label):
                    preparing = run_in_threadpool(self._tasks.prepare, label)
                    future = asyncio.run_coroutine_threadsafe(preparing, loop)
                    yield future
                    future.result()
            return lease.get(label)

        prediction = await in_thread(encode(body, get_task))
        rows = prediction.rows()
        self.queue.resize(ticket, len(rows))
        try:
            # Reads adapters in another thread, so that batches need not wait for the disk.
            if not all(map(self._tasks.served.is_in_memory, prediction.tasks)):
                await run_in_threadpool(self._tasks.served.load, prediction.tasks)
            outputs = await asyncio.wrap_future(self.batcher.submit(rows, ticket.tag))
        except batcher.Closed:
            raise Refused(503, "the server is stopping") from None
        content, answered = await in_thread(prediction.answer(outputs))
        self._metrics.count_instances(task.name for task in answered)
        return content


async def _while_queued(
    ticket: admission.Ticket, awaitable: Awaitable, seconds: Optional[float]
) -> Any:
    """Awaits a step of a request, unless the queue refuses the request first.

    Raises:
      Exception: the ticket's, once the queue refused the request or its client disconnected.
      asyncio.TimeoutError: the step took more than `seconds`.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait(
            {task, ticket.refused}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if task.done():
            return task.result()
        if ticket.refused.done():
            raise ticket.refused.result()
        raise asyncio.TimeoutError
    finally:
        task.cancel()


async def _watch_client(request: Request, ticket: admission.Ticket) -> None:
    """Refuses a request, whose body has been read, as soon as its client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    ticket.refuse(messages.disconnected())


def _describe(tasks: List[served_tasks.ServedTask]) -> Dict[str, str]:
    """Returns what the log and the headers say of a prediction's tasks."""
    return {
        "task": ", ".join(task.name for task in tasks),
        "version": ", ".join(str(task.version) for task in tasks),
        "adapter": ", ".join(task.digest for task in tasks),
    }
