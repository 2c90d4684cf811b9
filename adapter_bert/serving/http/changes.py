"""The endpoints that add, replace and remove tasks.

PUT    /v1/models/<task>   {"adapter": folder}, or a form with the adapter's two files
DELETE /v1/models/<task>
"""

import asyncio
import threading
from concurrent import futures
from typing import Any, Callable

from python_multipart.exceptions import FormParserError
from starlette import formparsers
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from adapter_bert.files import gfile
from adapter_bert.formats import task_adapter
from adapter_bert.serving.http import admission, bodies, messages, registry, served_tasks
from adapter_bert.serving.http.messages import Refused
from adapter_bert.shell.errors import UserError

_MAX_BYTES = 64 << 10  # For a change without an upload.
_MAX_CHANGES = 32  # Further ones at the same time get status 503.
_MIN_UPLOAD_RATE = 125_000  # Bytes per second: 1 Mbit/s.


class Changes:
    """The endpoints; `are_allowed` says whether requests may change tasks."""

    def __init__(
        self, tasks: registry.Registry, limits: admission.RequestLimits, are_allowed: bool
    ):
        self._tasks, self._limits, self._are_allowed = tasks, limits, are_allowed
        self._running = threading.Semaphore(_MAX_CHANGES)

    async def put(self, request: Request) -> Response:
        """Adds or replaces a task."""
        self._check_allowed()
        name = request.path_params["task"]
        await self._change(self._tasks.read, name)
        is_new = name not in self._tasks.served
        content_type = request.headers.get("content-type", "").lower()
        is_form = content_type.startswith("multipart/form-data")
        task = await (self._put_upload if is_form else self._put_folder)(request, name)
        return bodies.json_response(
            {"name": name, **messages.summary(task)}, 201 if is_new else 200
        )

    async def delete(self, request: Request) -> Response:
        """Removes a task."""
        self._check_allowed()
        task = await self._change(self._tasks.remove, request.path_params["task"])
        return bodies.json_response({"name": task.name, "version": str(task.version)})

    async def _put_folder(self, request: Request, name: str) -> served_tasks.ServedTask:
        body = await bodies.Body(request, _MAX_BYTES).read(self._limits.read_seconds)
        expected = '{"adapter": "<folder below --adapter_dir>"}'
        path = messages.parse_object(body, {"adapter"}, expected).get("adapter")
        if not isinstance(path, str):
            raise UserError(f"expected {expected}")
        return await self._change(self._tasks.put_below_root, name, path)

    async def _put_upload(self, request: Request, name: str) -> served_tasks.ServedTask:
        """Adds or replaces a task by the two files in a form, which are spooled to disk."""
        expected = f"a form of the two files {' and '.join(task_adapter.FILES)}"
        max_bytes = self._limits.max_upload_bytes
        body = bodies.Body(request, max_bytes)
        seconds = self._limits.read_seconds + (body.length or max_bytes) / _MIN_UPLOAD_RATE
        parser = formparsers.MultiPartParser(
            request.headers, body.chunks(), max_files=2, max_fields=0
        )
        try:
            form = await bodies.in_time(parser.parse(), seconds)
        except (formparsers.MultiPartException, FormParserError, UnicodeError) as error:
            raise UserError(f"{error}; expected {expected}") from None
        except OSError as error:
            sentence = f"cannot write the upload to a temporary file ({gfile.reason(error)})"
            raise Refused(507, sentence) from None
        try:
            uploads = {n: part.file for n, part in form.items() if isinstance(part, UploadFile)}
            if set(uploads) != set(task_adapter.FILES):
                present = ", ".join(sorted(form))[:100] or "none"
                raise UserError(f"found {present}; expected {expected}")
            return await self._change(self._tasks.upload, name, uploads)
        finally:
            await form.close()

    def _check_allowed(self) -> None:
        if not self._are_allowed:
            raise Refused(403, "changing tasks over the network needs a server with --token")

    async def _change(self, change: Callable, *arguments: Any) -> Any:
        """Calls a function of the registry in a thread of its own.

        It may hang, as a network disk does: other changes and the end of the process do not wait.
        """
        if not self._running.acquire(blocking=False):
            raise Refused(503, f"{_MAX_CHANGES} changes are running already; try again later")
        future: futures.Future[Any] = futures.Future()

        def work() -> None:
            try:
                future.set_result(change(*arguments))
            except Exception as error:
                future.set_exception(error)
            finally:
                self._running.release()

        future.set_running_or_notify_cancel()  # A client may disconnect; the change is made.
        threading.Thread(target=work, name="change", daemon=True).start()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), registry.CHANGE_SECONDS)
        except (asyncio.TimeoutError, TimeoutError):  # Two classes before Python 3.11.
            seconds = f"{registry.CHANGE_SECONDS:g} seconds"
            raise Refused(504, f"no end within {seconds}; the change may still be made") from None
