"""TensorFlow Serving's REST API for served tasks, as an ASGI application on Starlette.

    GET    /v1/models/<task>            its state
    GET    /v1/models/<task>/metadata   its kind, labels and scores
    POST   /v1/models/<task>:predict    {"instances": [...]} or {"inputs": {...}}
    ...    /v1/models/<task>/versions/<number>...    the same for a version on disk
    POST   /v1/models:predict           {"instances": [{"task": ..., ...}, ...]}
    POST   /v1/embeddings               {"model": "<task>", "input": [...]}
    GET    /v1/models                   all tasks
    PUT    /v1/models/<task>            adds or replaces it
    DELETE /v1/models/<task>            removes it
    GET    /healthz, /readyz, /metrics, /openapi.json, /

An error is {"error": "..."} with a status of 4xx (the client's) or 5xx (the server's).
"""

import asyncio
import functools
import gzip
import hmac
import os
import re
import threading
import time
import zlib
from concurrent import futures
from typing import (
    Any,
    AsyncGenerator,
    Awaitable,
    Callable,
    Dict,
    Generator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from python_multipart.exceptions import FormParserError
from starlette import convertors, formparsers
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapter_bert.files import gfile
from adapter_bert.formats import task_adapter
from adapter_bert.serving.http import (
    admission,
    embeddings,
    http_server,
    messages,
    openapi,
    prometheus,
    registry,
    request_log,
)
from adapter_bert.serving.inference import bank, batcher, memory, request_texts
from adapter_bert.shell.errors import UserError

_PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "page.html")
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self';"
    " script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}
_OPEN_PATHS = ("/", "/healthz", "/readyz", "/openapi.json")
_UNEXPECTED = "internal error; see the server's log"
_MAX_CHANGE_BYTES = 64 << 10  # For a change without an upload.
_MAX_CHANGES = 32  # Further ones at the same time get status 503.
_MAX_SHARED = 16  # Answers that are kept for all clients.
_MIN_UPLOAD_RATE = 125_000  # Bytes per second: 1 Mbit/s.
_MAX_LABELS = 100_000  # Of all instances of a request together: an answer of about 3 MB.
_MIN_GZIP_BYTES = 1000  # A shorter answer is sent without compression.
_GZIP_LEVEL = 1  # Higher ones take several times as long, and save little.
_VERSION_HEADERS = ("X-Adapter-Version", "X-Task-Version")
_ACCEPTS_GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))")
_LOGGED = "adapter_bert.logged"  # In a request's scope: what its line in the log says.
_LOADING = "the server is loading its BERT"


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
    max_batch_rows: int = batcher.BATCH_SIZE
    read_seconds: float = 10.0
    answer_seconds: float = 30.0
    max_task_metrics: int = 1000


class Refused(Exception):
    """Ends a request with an HTTP status and an error message."""

    def __init__(self, status: int, sentence: str, closes_connection: bool = False):
        super().__init__(sentence)
        self.status, self.closes_connection = status, closes_connection


class Entrance:
    """The ASGI application of a server from its start to its end.

    Before `open`, only /healthz has status 200.
    After `drain`, /readyz has status 503, so that no further clients are sent here.
    """

    def __init__(self) -> None:
        self._application: Optional[ASGIApp] = None
        self._is_draining = False

    def drain(self) -> None:
        """Reports from now on that the server is stopping."""
        self._is_draining = True

    def open(self, application: ASGIApp) -> None:
        """Lets an application answer from now on."""
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        answer: ASGIApp
        if self._is_draining and scope["path"] == "/readyz":
            answer = _error_response(503, "the server is stopping")
        elif self._application is not None:
            answer = self._application
        elif scope["path"] == "/healthz":
            answer = _json_response({"status": "alive"})
        else:
            answer = _error_response(503, _LOADING, {"retry-after": "1"})
        await answer(scope, receive, send)


class _TaskConvertor(convertors.StringConvertor):
    """Matches a task's name in a path, which ends before ":" or "/"."""

    regex = "[^/:]+"


convertors.register_url_convertor("task", _TaskConvertor())


class _Prediction(NamedTuple):
    """A request's instances, encoded."""

    requests: List[request_texts.EncodedRequest]
    tasks: List[registry.ServedTask]  # One per instance.
    is_columnar: bool

    def rows(self) -> List[bank.Row]:
        pairs = zip(self.tasks, self.requests)
        return [row for task, request in pairs for row in task.rows(request)]


# Encodes a request's body, in steps for `admission.Readers`.
_Encode = Callable[[bytes, registry.Lease, asyncio.AbstractEventLoop], Generator[Any, None, Any]]


class RestApi:
    """The endpoints of the API.

    Args:
      tasks: `registry.ServedTasks`.
      adapter_bank: their `bank.AdapterBank`.
      limits: `RequestLimits`.
      token: required in each request as `Authorization: Bearer <token>`, or None. Without a token,
        a request's Host must name this machine, which guards against DNS rebinding.
      allows_changes: whether requests may add and remove tasks.
      address: the address on which the server listens.
      cors_origins: origins of web pages that may call the server, or "*".
      log: `request_log.RequestLog`.
    """

    def __init__(
        self,
        tasks: registry.ServedTasks,
        adapter_bank: bank.AdapterBank,
        limits: RequestLimits,
        token: Optional[str] = None,
        allows_changes: bool = True,
        address: str = "127.0.0.1",
        cors_origins: Sequence[str] = (),
        log: Optional[request_log.RequestLog] = None,
    ):
        self._cors_origins, self._log = cors_origins, log or request_log.RequestLog()
        self._tasks, self._limits = tasks, limits
        self._token, self._allows_changes, self._address = token, allows_changes, address
        self._precision = adapter_bank.precision
        self._bert_description = adapter_bank.describe(None)
        with open(_PAGE, encoding="utf-8") as reader:
            self._page_text = reader.read()
        self._queue = admission.Queue(limits.max_queue_rows, limits.answer_seconds)
        self._shared: Dict[str, Tuple[Any, bytes]] = {}
        self._changes = threading.Semaphore(_MAX_CHANGES)
        self._readers = admission.Readers(self._queue.count_work)
        self._metrics = prometheus.Metrics(
            queue_rows=lambda: len(self._queue),
            tasks=lambda: len(tasks),
            is_served=tasks.__contains__,
            tasks_in_memory=lambda: len(adapter_bank.names_in_memory()),
            max_tasks=limits.max_task_metrics,
        )
        self._batcher = batcher.Lanes(
            functools.partial(adapter_bank.predict, return_errors=True),
            lambda row: len(row.input_ids),
            max_batch_size=limits.max_batch_rows,
            observers=[self._queue.count_work, self._metrics.count_batch],
        )

    def application(self) -> Callable:
        """Returns the ASGI application."""
        task_path, methods = "/v1/models/{task:task}", ["GET", "PUT", "DELETE"]
        version = "/versions/{version:task}"
        routes = [
            Route("/", self.page),
            Route("/healthz", self.health),
            Route("/readyz", self.ready),
            Route("/metrics", self.metrics),
            Route("/openapi.json", self.openapi),
            Route("/v1/models", self.models),
            Route("/v1/models:predict", self.predict_mixed, methods=["POST"]),
            Route("/v1/embeddings", self.embed, methods=["POST"]),
            Route(task_path + ":predict", self.predict, methods=["POST"]),
            Route(task_path + "/metadata", self.metadata),
            Route(task_path, self.model, methods=methods),
            Route(task_path + version + ":predict", self.predict, methods=["POST"]),
            Route(task_path + version + "/metadata", self.metadata),
            Route(task_path + version, self.status),
        ]
        handlers: Dict[Any, Callable] = {
            Refused: _handle_refused,
            registry.TaskNotServed: self._make_error_handler(404),
            memory.Exhausted: self._make_error_handler(503),
            gfile.WriteError: self._make_error_handler(507),
            UserError: self._make_error_handler(400),
            HTTPException: _handle_http_error,
            Exception: _handle_unexpected,
        }
        application = Starlette(routes=routes, exception_handlers=handlers)
        application.router.redirect_slashes = False  # A redirect would trust the request's Host.
        guarded = self._guarded(application)
        if not self._cors_origins:
            return guarded
        return CORSMiddleware(
            guarded,
            allow_origins=self._cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "Content-Encoding"],
            expose_headers=_VERSION_HEADERS,
        )

    def close(self) -> None:
        """Ends the threads, once they have read and computed what waits."""
        self._readers.close()
        self._batcher.close()

    def _guarded(self, application: ASGIApp) -> ASGIApp:
        """Wraps an application: refuses requests by their headers, counts and times the others."""

        async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await application(scope, receive, send)
                return
            start, statuses = time.perf_counter(), []

            async def send_and_record(message: Message) -> None:
                if message["type"] == "http.response.start":
                    statuses.append(message["status"])
                await send(message)

            try:
                refusal = self._refusal(scope)
                await (refusal or application)(scope, receive, send_and_record)
            finally:
                endpoint = getattr(scope.get("endpoint"), "__name__", "none")
                status = statuses[0] if statuses else "none"
                seconds = time.perf_counter() - start
                self._metrics.count_request(endpoint, status, seconds)
                self._log.add(
                    {
                        "request": f"{scope['method']} {scope['path']}",
                        **scope.get(_LOGGED, {}),
                        "milliseconds": round(1000 * seconds, 1),
                        "status": status,
                    }
                )

        return wrapped

    def _make_error_handler(self, status: int) -> Callable:
        async def failed(request: Request, error: Exception) -> Response:
            return _error_response(status, self._tasks.without_root(str(error)))

        return failed

    def _refusal(self, scope: Scope) -> Optional[Response]:
        """Returns an error response if a request's headers are not acceptable, or None."""
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > http_server.MAX_HEAD_BYTES:
            sentence = f"the headers are over {http_server.MAX_HEAD_BYTES:,} bytes"
            return _error_response(431, sentence, {"connection": "close"})
        headers = dict(scope["headers"])
        if _offers_upgrade(scope["headers"]) and {b"content-length", b"transfer-encoding"} & set(
            headers
        ):
            sentence = "the server speaks HTTP/1.1 only: send no header Upgrade with a body"
            return _error_response(400, sentence, {"connection": "close"})
        if self._token is None:
            # Every browser sends the header, so a request without it is no attack.
            host = headers.get(b"host", b"localhost").decode("latin-1")
            if not http_server.is_own_host(host, self._address):
                sentence = (
                    f"Host {host[:100]!r} does not name this server; a server with --token accepts"
                    " any Host"
                )
                return _error_response(403, sentence)
        elif scope["path"] not in _OPEN_PATHS:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self._token.encode()):
                sentence = "expected the header Authorization: Bearer <token>"
                return _error_response(401, sentence, {"www-authenticate": "Bearer"})
        encodings = [v.lower() for n, v in scope["headers"] if n == b"content-encoding"]
        accepted = [b"identity", b"gzip"] if scope["method"] == "POST" else [b"identity"]
        if encodings and (len(encodings) > 1 or encodings[0] not in accepted):
            names = b", ".join(reversed(accepted)).decode()
            sentence = f"the body has another Content-Encoding than {names}"
            return _error_response(415, sentence, {"accept-encoding": names})
        return None

    async def page(self, request: Request) -> Response:
        """Returns a page to try tasks with."""
        return HTMLResponse(self._page_text, headers=_PAGE_HEADERS)

    async def health(self, request: Request) -> Response:
        """Returns that the server is alive."""
        return _json_response({"status": "alive"})

    async def ready(self, request: Request) -> Response:
        """Returns whether the server accepts predictions for all of its tasks."""
        if not self._batcher.is_open:
            raise Refused(503, "the server is stopping")
        if self._tasks.num_loading():
            count = f"{len(self._tasks):,} tasks; {self._tasks.num_loading():,} are being loaded"
            raise Refused(503, f"the server answers for {count}")
        return _json_response({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        """Returns the metrics for Prometheus."""
        content, kind = await run_in_threadpool(self._metrics.render)
        return await _response(request, content, kind)

    async def openapi(self, request: Request) -> Response:
        """Returns the OpenAPI document."""
        requires_token = self._token is not None
        return _json_response(openapi.document(self._limits.max_instances, requires_token))

    async def models(self, request: Request) -> Response:
        """Lists all tasks."""

        def build(tasks: List[registry.ServedTask]) -> Dict[str, Any]:
            return {"models": [{"name": task.name, **messages.summary(task)} for task in tasks]}

        return await self._shared_response(request, "", self._tasks.current(), build)

    async def _shared_response(
        self, request: Request, name: str, tasks: Any, build: Callable
    ) -> Response:
        """Returns an answer, of megabytes perhaps, built once for all clients until tasks change.

        Args:
          request: `Request`.
          name: under which it is kept.
          tasks: `registry.ServedTask`, or several.
          build: function of the tasks that returns a JSON value.
        """
        known, content = self._shared.get(name, (None, b""))
        if known != tasks:
            content = await run_in_threadpool(lambda: messages.dump_json(build(tasks)))
            if len(self._shared) >= _MAX_SHARED:
                self._shared.clear()
            self._shared[name] = tasks, content
        return await _response(request, content)

    async def model(self, request: Request) -> Response:
        """Calls `status`, `put` or `delete`, by the request's method."""
        endpoint = {"PUT": self.put, "DELETE": self.delete}.get(request.method, self.status)
        request.scope["endpoint"] = endpoint  # Its name in the metrics.
        return await endpoint(request)

    async def status(self, request: Request) -> Response:
        """Returns a task's state in TensorFlow Serving's format."""
        task = self._tasks.get(await self._label(request))
        ok_status = {"error_code": "OK", "error_message": ""}
        version = {"version": str(task.version), "state": "AVAILABLE", "status": ok_status}
        return _json_response({"model_version_status": [version]})

    async def metadata(self, request: Request) -> Response:
        """Returns a task's metadata."""

        def build(task: registry.ServedTask) -> Dict[str, Any]:
            spec = {"name": task.name, "signature_name": "", "version": str(task.version)}
            metadata = {
                **messages.summary(task),
                "precision": self._precision,
                "signature_def": messages.signature(task),
            }
            return {"model_spec": spec, "metadata": metadata}

        label = await self._label(request)
        return await self._shared_response(request, label, self._tasks.get(label), build)

    async def _label(self, request: Request) -> str:
        """Returns the label of the task in a request's path, read in a thread if necessary."""
        name, version = request.path_params["task"], request.path_params.get("version")
        if not self._tasks.is_ready(name):
            await run_in_threadpool(self._tasks.prepare, name)
        label = self._tasks.label(name, version)
        if not self._tasks.is_read(label):
            await run_in_threadpool(self._tasks.read, label)
        return label

    async def predict(self, request: Request) -> Response:
        """Predicts instances of one task."""
        has_version = "version" in request.path_params
        label = await self._label(request) if has_version else request.path_params["task"]
        return await self._predict(request, functools.partial(self._encode_instances, label))

    async def predict_mixed(self, request: Request) -> Response:
        """Predicts instances of any tasks, in the order of the request."""
        return await self._predict(request, functools.partial(self._encode_instances, None))

    async def embed(self, request: Request) -> Response:
        """Returns the vectors of texts, of a task or of BERT, in OpenAI's format."""
        return await self._predict(request, self._encode_texts)

    async def put(self, request: Request) -> Response:
        """Adds or replaces a task: {"adapter": folder}, or a form with the adapter's two files."""
        self._check_allows_changes()
        name = request.path_params["task"]
        content_type = request.headers.get("content-type", "").lower()
        is_form = content_type.startswith("multipart/form-data")
        if not self._tasks.is_ready(name):
            await self._change(self._tasks.read, name)
        is_new = name not in self._tasks
        if is_form:
            task = await self._upload(request, name)
        else:
            self._check_length(request, _MAX_CHANGE_BYTES)
            body = await self._read_body(request, _MAX_CHANGE_BYTES)
            task = await self._change(self._put_folder, name, body)
        return _json_response({"name": name, **messages.summary(task)}, 201 if is_new else 200)

    def _put_folder(self, name: str, body: bytes) -> registry.ServedTask:
        expected = '{"adapter": "<folder below --adapter_dir>"}'
        path = messages.parse_object(body, {"adapter"}, expected).get("adapter")
        if not isinstance(path, str):
            raise UserError(f"expected {expected}")
        return self._tasks.put_below_root(name, path)

    async def _upload(self, request: Request, name: str) -> registry.ServedTask:
        """Adds or replaces a task by the two files in a form, which are spooled to disk."""
        expected = f"a form of the two files {' and '.join(task_adapter.FILES)}"
        max_bytes = self._limits.max_upload_bytes
        num_bytes = self._check_length(request, max_bytes) or max_bytes
        chunks = self._body_chunks(request, max_bytes)
        parser = formparsers.MultiPartParser(request.headers, chunks, max_files=2, max_fields=0)
        try:
            form = await self._in_time(parser.parse(), num_bytes / _MIN_UPLOAD_RATE)
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

    async def delete(self, request: Request) -> Response:
        """Removes a task."""
        self._check_allows_changes()
        task = await self._change(self._tasks.remove, request.path_params["task"])
        return _json_response({"name": task.name, "version": str(task.version)})

    async def _change(self, change: Callable, *arguments: Any) -> registry.ServedTask:
        """Calls a function of the registry in a thread of its own.

        It may hang, as a network disk does: other changes and the end of the process do not wait.
        """
        if not self._changes.acquire(blocking=False):
            raise Refused(503, f"{_MAX_CHANGES} changes are running already; try again later")
        future: futures.Future[registry.ServedTask] = futures.Future()

        def work() -> None:
            try:
                future.set_result(change(*arguments))
            except Exception as error:
                future.set_exception(error)
            finally:
                self._changes.release()

        future.set_running_or_notify_cancel()  # A client may disconnect; the change is made.
        threading.Thread(target=work, name="change", daemon=True).start()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), registry.CHANGE_SECONDS)
        except (asyncio.TimeoutError, TimeoutError):  # Two classes before Python 3.11.
            seconds = f"{registry.CHANGE_SECONDS:g} seconds"
            raise Refused(504, f"no end within {seconds}; the change may still be made") from None

    def _check_allows_changes(self) -> None:
        if not self._allows_changes:
            raise Refused(403, "changing tasks over the network needs a server with --token")

    async def _predict(self, request: Request, encode: _Encode) -> Response:
        num_bytes = self._check_length(request, self._limits.max_body_bytes)
        client = request.client.host if request.client else ""
        try:
            with self._queue.enter(client, num_bytes) as ticket, self._tasks.lease() as lease:
                body = self._read_body(request, self._limits.max_body_bytes, ticket)
                body = await _while_queued(ticket, body, None)
                start = time.perf_counter()
                answer = self._answer(body, encode, lease, ticket)
                watching = asyncio.ensure_future(_watch_client(request, ticket))
                try:
                    content = await _while_queued(ticket, answer, self._limits.answer_seconds)
                finally:
                    watching.cancel()
                    tasks = lease.tasks()
                    request.scope[_LOGGED] = _loggable(tasks, ticket.rows)
                seconds = time.perf_counter() - start
                self._metrics.count_tasks({task.name for task in tasks}, seconds)
        except admission.Overloaded:
            raise Refused(503, "too many rows are waiting; try again later") from None
        except asyncio.TimeoutError:
            seconds = self._limits.answer_seconds
            raise Refused(504, f"no answer within {seconds:g} seconds") from None
        versions = (", ".join(task.digest for task in tasks), _numbers(tasks))
        headers = dict(zip(_VERSION_HEADERS, versions))
        return await _response(request, content, headers=headers)

    async def _answer(
        self, body: bytes, encode: _Encode, lease: registry.Lease, ticket: admission.Ticket
    ) -> bytes:
        """Returns the body of a prediction's response."""

        def in_thread(steps: Generator[Any, None, Any]) -> Awaitable:
            return asyncio.wrap_future(self._readers.submit(ticket.tag, steps))

        prediction = await in_thread(encode(body, lease, asyncio.get_running_loop()))
        rows = prediction.rows()
        self._queue.resize(ticket, len(rows))
        try:
            # Reads adapters in another thread, so that batches need not wait for the disk.
            if not self._tasks.are_in_memory(prediction.tasks):
                await run_in_threadpool(self._tasks.load, prediction.tasks)
            outputs = await asyncio.wrap_future(self._batcher.submit(rows, ticket.tag))
        except batcher.Closed:
            raise Refused(503, "the server is stopping") from None
        content, answered = await in_thread(_format_response(prediction, outputs))
        self._metrics.count_instances(task.name for task in answered)
        return content

    def _encode_instances(
        self,
        label: Optional[str],
        body: bytes,
        lease: registry.Lease,
        loop: asyncio.AbstractEventLoop,
    ) -> Generator[Any, None, _Prediction]:
        """Returns a request's `_Prediction`, in steps for `admission.Readers`."""
        instances, is_columnar = messages.parse_instances(body)
        if is_columnar and label is None:
            raise UserError('a request of several tasks needs {"instances": [...]}')
        if not 0 < len(instances) <= self._limits.max_instances:
            raise UserError(
                f"found {len(instances)} instances; expected 1 to {self._limits.max_instances}"
            )
        requests, tasks, num_rows, num_labels = [], [], 0, 0
        for index, instance in enumerate(instances):
            yield
            try:
                task_name, instance = (
                    (label, instance) if label is not None else messages.split_task(instance)
                )
                yield from self._read_task(task_name, loop)
                tasks.append(lease.get(task_name))
                requests.append(tasks[-1].texts.encode(instance))
            except registry.TaskNotServed:
                raise
            except UserError as error:
                raise UserError(f"instances[{index}]: {error}") from None
            num_labels += len(tasks[-1].description.labels)
            if num_labels > _MAX_LABELS:
                raise Refused(413, f"the answer has over {_MAX_LABELS:,} labels")
            num_rows += len(requests[-1].rows)
            if num_rows > self._queue.max_rows:
                raise Refused(
                    413,
                    f"the request has over {self._queue.max_rows} rows (a long text has several)",
                )
        return _Prediction(requests, tasks, is_columnar)

    def _read_task(self, name: str, loop: asyncio.AbstractEventLoop) -> Generator[Any, None, None]:
        """Reads a task's files, if necessary, in another thread."""
        if not self._tasks.is_ready(name):
            reading = run_in_threadpool(self._tasks.prepare, name)
            future = asyncio.run_coroutine_threadsafe(reading, loop)
            yield future
            future.result()

    def _encode_texts(
        self, body: bytes, lease: registry.Lease, loop: asyncio.AbstractEventLoop
    ) -> Generator[Any, None, embeddings.EncodedTexts]:
        """Returns a request's `embeddings.EncodedTexts`, in steps for `admission.Readers`."""
        encoding = self._tasks.encoding
        max_texts = min(self._limits.max_instances, self._queue.max_rows)
        request = embeddings.parse(body, encoding.config, max_texts)
        description, key, tasks = self._bert_description, None, []
        if request.task is not None:
            yield from self._read_task(request.task, loop)
            task = lease.get(request.task)
            description, key, tasks = task.description, task.key, [task] * len(request.texts)
        reader = embeddings.reader(description, encoding, request.task is None)
        rows = []
        for index, text in enumerate(request.texts):
            yield
            try:
                ((ids, segments),) = reader.encode({"text": text}).rows
            except UserError as error:
                raise UserError(f"input[{index}]: {error}") from None
            rows.append(bank.Row(key, ids, segments, request.features))
        return embeddings.EncodedTexts(request, tasks, rows)

    def _check_length(self, request: Request, max_bytes: int) -> int:
        """Returns a body's declared length, or else 0; raises `Refused` if it is over."""
        declared = request.headers.get("content-length", "")
        if not declared.isdigit():
            return 0
        if int(declared) > max_bytes:
            raise _too_large_error(max_bytes)
        return int(declared)

    async def _read_body(
        self, request: Request, max_bytes: int, ticket: Optional[admission.Ticket] = None
    ) -> bytes:
        """Returns the bytes of a request's body; counts them for the request's ticket."""

        async def read() -> bytes:
            body = bytearray()
            async for chunk in self._body_chunks(request, max_bytes):
                body += chunk
                if ticket:
                    self._queue.grow(ticket, len(body))
            return bytes(body)

        return await self._in_time(read())

    async def _body_chunks(self, request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
        """Yields the chunks of a request's body."""
        size = 0
        is_gzip = request.headers.get("content-encoding", "").lower() == "gzip"
        decompress = _Gunzip() if is_gzip else None
        try:
            async for chunk in request.stream():
                if decompress:
                    chunk = decompress(chunk, max_bytes - size + 1)
                size += len(chunk)
                if size > max_bytes:
                    raise _too_large_error(max_bytes)
                yield chunk
        except ClientDisconnect:
            raise _disconnected_error() from None
        if decompress:
            decompress.check_end()

    async def _in_time(self, reading: Awaitable, more_seconds: float = 0) -> Any:
        """Awaits the reading of a body, with a timeout."""
        seconds = self._limits.read_seconds + more_seconds
        try:
            return await asyncio.wait_for(reading, seconds)
        except asyncio.TimeoutError:
            sentence = f"the body did not arrive within {seconds:g} seconds"
            raise Refused(408, sentence, closes_connection=True) from None


class _Gunzip:
    """Decompresses the chunks of a gzip'd body; raises UserError if it is damaged."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(16 + zlib.MAX_WBITS)  # 16: in gzip's format.

    def __call__(self, chunk: bytes, max_bytes: int) -> bytes:
        """Returns the next bytes, at most `max_bytes`; those beyond are lost."""
        try:
            return self._stream.decompress(chunk, max_bytes)
        except zlib.error as error:
            raise UserError(f"the body is not valid gzip ({error})") from None

    def check_end(self) -> None:
        """Raises UserError unless the body ends with the end of its only stream."""
        if not self._stream.eof or self._stream.unused_data:
            raise UserError("the body is not valid gzip (expected one complete stream)")


def _offers_upgrade(headers: List[Tuple[bytes, bytes]]) -> bool:
    """Returns whether a client offers another protocol, so that uvicorn's parser drops the body."""
    connection = b",".join(value for name, value in headers if name == b"connection")
    return b"upgrade" in connection.lower() and any(name == b"upgrade" for name, _ in headers)


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
    ticket.refuse(_disconnected_error())


def _disconnected_error() -> Refused:
    return Refused(400, "the client disconnected", closes_connection=True)


def _too_large_error(max_bytes: int) -> Refused:
    return Refused(413, f"the body is over {max_bytes:,} bytes")


def _format_response(
    prediction: Any, outputs: List[Any]
) -> Generator[None, None, Tuple[bytes, List[registry.ServedTask]]]:
    """Returns (response's body, task of each instance without failure), in steps for `Readers`."""
    if isinstance(prediction, embeddings.EncodedTexts):
        yield
        vectors = [_decode(prediction, [output]) for output in outputs]
        for failure in (each for each in vectors if isinstance(each, Refused)):
            raise failure
        return prediction.answer(vectors), prediction.tasks
    remaining, answers, answered = iter(outputs), [], []
    for task, request in zip(prediction.tasks, prediction.requests):
        yield
        answers.append(_decode(request, [next(remaining) for _ in request.rows]))
        if not isinstance(answers[-1], Refused):
            answered.append(task)
    failures = [answer for answer in answers if isinstance(answer, Refused)]
    if failures and (prediction.is_columnar or len(failures) == len(answers)):
        raise failures[0]
    if not prediction.is_columnar:
        answers = [{"error": str(a)} if isinstance(a, Refused) else a for a in answers]
        return messages.dump_json({"predictions": answers}), answered
    return messages.dump_json({"outputs": messages.columns(answers)}), answered


def _decode(request: Any, outputs: List[Any]) -> Any:
    """Returns an instance's prediction, or a `Refused` if one of its rows failed."""
    for output in outputs:
        if isinstance(output, UserError):  # Its text may name folders.
            return Refused(500, "the task's adapter failed; the server's log has the reason")
        if isinstance(output, Exception):
            return Refused(500, _UNEXPECTED)
    return request.decode(outputs)


async def _response(
    request: Request,
    content: bytes,
    media_type: str = "application/json",
    headers: Optional[Mapping[str, str]] = None,
) -> Response:
    """Returns a response, compressed if the client accepts that and it is long."""
    headers = {**(headers or {}), "vary": "accept-encoding", "content-type": media_type}
    accepted = request.headers.get("accept-encoding", "").lower()
    if len(content) >= _MIN_GZIP_BYTES and _ACCEPTS_GZIP.search(accepted):
        content = await run_in_threadpool(gzip.compress, content, _GZIP_LEVEL)
        headers["content-encoding"] = "gzip"
    return Response(content, headers=headers)


def _loggable(tasks: List[registry.ServedTask], rows: int) -> Dict[str, Any]:
    """Returns what the log says of a prediction."""
    return {
        "task": ", ".join(task.name for task in tasks) or None,
        "version": _numbers(tasks) or None,
        "adapter": ", ".join(task.digest for task in tasks) or None,
        "rows": rows,
    }


def _numbers(tasks: List[registry.ServedTask]) -> str:
    return ", ".join(str(task.version) for task in tasks)


def _json_response(
    value: Any, status: int = 200, headers: Optional[Mapping[str, str]] = None
) -> Response:
    return Response(messages.dump_json(value), status, headers, media_type="application/json")


def _error_response(
    status: int, sentence: str, headers: Optional[Mapping[str, str]] = None
) -> Response:
    return _json_response({"error": sentence}, status, headers)


async def _handle_refused(request: Request, error: Refused) -> Response:
    headers = {"connection": "close"} if error.closes_connection else {}
    if error.status == 503:
        headers["retry-after"] = "1"
    return _error_response(error.status, str(error), headers)


async def _handle_http_error(request: Request, error: HTTPException) -> Response:
    return _error_response(
        error.status_code, f"{error.detail}: {request.scope['path'][:100]!r}", error.headers
    )


async def _handle_unexpected(request: Request, error: Exception) -> Response:
    return _error_response(500, _UNEXPECTED)
