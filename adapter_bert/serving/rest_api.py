"""TensorFlow Serving's REST API over served tasks: an ASGI application, on Starlette.

    GET    /v1/models/<task>            its state
    GET    /v1/models/<task>/metadata   what it is
    POST   /v1/models/<task>:predict    {"instances": [...]} or {"inputs": {...}}
    POST   /v1/models:predict           {"instances": [{"task": ..., ...}, ...]}
    GET    /v1/models                   all tasks
    PUT    /v1/models/<task>            adds or replaces it
    DELETE /v1/models/<task>            removes it
    GET    /healthz, /readyz, /metrics, /openapi.json, /

An error is {"error": "..."} with the status that says whose it is.
"""

import asyncio
import hmac
import json
import math
import os
import time
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
    Set,
    Tuple,
)

from absl import logging
from starlette import convertors, formparsers
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from adapter_bert.common import files, task_kinds
from adapter_bert.common.errors import UserError
from adapter_bert.formats import task_adapter
from adapter_bert.serving import (
    admission,
    bank,
    batcher,
    http_server,
    openapi,
    prometheus,
    registry,
    request_texts,
)
from adapter_bert.tasks import presentations

_PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "page.html")
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self';"
    " script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}
_OPEN_PATHS = ("/", "/healthz", "/readyz", "/openapi.json")
_UNEXPECTED = "the server failed; its log says why"
_MAX_CHANGE_BYTES = 64 << 10  # Of a change that is no upload.


class Limits(NamedTuple):
    """What a request may have.

    Attributes:
      max_body_bytes, max_upload_bytes: of a prediction's and of an adapter's request.
      max_instances: of a prediction's request.
      max_queue_rows: that may wait, of all predictions' requests together.
      read_seconds: from a request's head to the end of its body.
      answer_seconds: from then to its answer.
    """

    max_body_bytes: int = 1 << 20
    max_upload_bytes: int = 256 << 20
    max_instances: int = 128
    max_queue_rows: int = 1024
    read_seconds: float = 10.0
    answer_seconds: float = 30.0


class Refused(Exception):
    """Ends a request: HTTP's status, a sentence, and whether the connection ends with it."""

    def __init__(self, status: int, sentence: str, closes_connection: bool = False):
        super().__init__(sentence)
        self.status, self.closes_connection = status, closes_connection


class _TaskConvertor(convertors.StringConvertor):
    """A task's name, after which a path may have a ":" and what is asked of it."""

    regex = "[^/:]+"


convertors.register_url_convertor("task", _TaskConvertor())


class _Prediction(NamedTuple):
    """A request's instances, read."""

    requests: List[request_texts.EncodedRequest]
    tasks: List[registry.ServedTask]  # Each one's.
    is_columnar: bool

    def rows(self) -> List[bank.Row]:
        pairs = zip(self.tasks, self.requests)
        return [row for task, request in pairs for row in task.rows(request)]


class RestApi:
    """The endpoints.

    Args:
      tasks: `registry.ServedTasks`.
      batcher: `batcher.Batcher` of their bank.
      metrics: `prometheus.Metrics`.
      limits: `Limits`.
      token: what requests must send as `Authorization: Bearer <token>`; None for nothing. Without
        one, their Host must be the own machine: a page of elsewhere may have its own name lead here
        (DNS rebinding).
      allows_changes: whether tasks may be added and removed.
      address: where the server listens.
      precision: what it computes in, for `metadata`.
    """

    def __init__(
        self,
        tasks: registry.ServedTasks,
        row_batcher: batcher.Batcher,
        metrics: prometheus.Metrics,
        limits: Limits,
        token: Optional[str] = None,
        allows_changes: bool = True,
        address: str = "127.0.0.1",
        precision: str = "float32",
    ):
        self._tasks, self._batcher, self._metrics = tasks, row_batcher, metrics
        self._limits, self._token, self._allows_changes = limits, token, allows_changes
        self._address, self._precision = address, precision
        with open(_PAGE, encoding="utf-8") as reader:
            self._page_text = reader.read()
        self._queue = admission.Queue(limits.max_queue_rows, limits.answer_seconds)
        self._readers = admission.Readers(self._queue.count_work)
        row_batcher.observe(self._queue.count_work)
        row_batcher.observe(metrics.count_batch)
        metrics.watch(
            queue_rows=lambda: len(self._queue),
            tasks=lambda: len(tasks),
        )

    def application(self) -> Callable:
        """The ASGI application."""
        task_path, methods = "/v1/models/{task:task}", ["GET", "PUT", "DELETE"]
        routes = [
            Route("/", self.page),
            Route("/healthz", self.health),
            Route("/readyz", self.ready),
            Route("/metrics", self.metrics),
            Route("/openapi.json", self.openapi),
            Route("/v1/models", self.models),
            Route("/v1/models:predict", self.predict_mixed, methods=["POST"]),
            Route(task_path + ":predict", self.predict, methods=["POST"]),
            Route(task_path + "/metadata", self.metadata),
            Route(task_path, self.model, methods=methods),
        ]
        handlers: Dict[Any, Callable] = {
            Refused: _handle_refused,
            registry.TaskNotServed: _make_error_handler(404),
            files.WriteError: _make_error_handler(507),
            UserError: _make_error_handler(400),
            HTTPException: _handle_http_error,
            Exception: _handle_unexpected,
        }
        application = Starlette(routes=routes, exception_handlers=handlers)
        application.router.redirect_slashes = False  # To whatever Host a request named.
        return self._guarded(application)

    def close(self) -> None:
        """Ends the threads."""
        self._readers.close()

    def _guarded(self, application):
        """The middleware: refuses what an application must not see; counts and times the rest."""

        async def wrapped(scope, receive, send):
            if scope["type"] != "http":
                if scope["type"] == "lifespan":
                    await application(scope, receive, send)
                return
            start, statuses = time.perf_counter(), []

            async def send_and_record(message):
                if message["type"] == "http.response.start":
                    statuses.append(message["status"])
                await send(message)

            try:
                refusal = self._refusal(scope)
                await (refusal or application)(scope, receive, send_and_record)
            finally:
                endpoint = getattr(scope.get("endpoint"), "__name__", "none")
                status = statuses[0] if statuses else "none"
                self._metrics.count_request(endpoint, status, time.perf_counter() - start)

        return wrapped

    def _refusal(self, scope: Dict[str, Any]) -> Optional[Response]:
        """The answer to a request that is refused for its head alone, or None."""
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > http_server.MAX_HEAD_BYTES:
            sentence = f"the headers are over {http_server.MAX_HEAD_BYTES:,} bytes"
            return _error_response(431, sentence, {"connection": "close"})
        headers = dict(scope["headers"])
        if self._token is None:
            host = headers.get(b"host", b"").decode("latin-1")
            if not http_server.is_own_host(host, self._address):
                sentence = f"Host: {host[:100]} is not this server's; set --token to allow any"
                return _error_response(403, sentence)
        elif scope["path"] not in _OPEN_PATHS:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self._token.encode()):
                sentence = "expected the header Authorization: Bearer <token>"
                return _error_response(401, sentence, {"www-authenticate": "Bearer"})
        return None

    async def page(self, request: Request) -> Response:
        """A page to try tasks with."""
        return HTMLResponse(self._page_text, headers=_PAGE_HEADERS)

    async def health(self, request: Request) -> Response:
        """Whether the server lives."""
        return _json_response({"status": "alive"})

    async def ready(self, request: Request) -> Response:
        """Whether it takes predictions."""
        if not self._batcher.is_open:
            raise Refused(503, "the server is stopping")
        return _json_response({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        content, kind = self._metrics.render()
        return Response(content, headers={"content-type": kind})

    async def openapi(self, request: Request) -> Response:
        """What the endpoints take and answer, as an OpenAPI document."""
        return _json_response(openapi.document(self._limits.max_instances))

    async def models(self, request: Request) -> Response:
        """All tasks."""
        tasks = self._tasks.current()
        return _json_response({"models": [{"name": task.name, **_summary(task)} for task in tasks]})

    async def model(self, request: Request) -> Response:
        """A task's `status`, or `put` or `delete`."""
        endpoint = {"PUT": self.put, "DELETE": self.delete}.get(request.method, self.status)
        request.scope["endpoint"] = endpoint  # What metrics call it.
        return await endpoint(request)

    async def status(self, request: Request) -> Response:
        """A task's state, as TensorFlow Serving tells it."""
        task = self._tasks.get(request.path_params["task"])
        ok_status = {"error_code": "OK", "error_message": ""}
        version = {"version": str(task.version), "state": "AVAILABLE", "status": ok_status}
        return _json_response({"model_version_status": [version]})

    async def metadata(self, request: Request) -> Response:
        """What a task is."""
        task = self._tasks.get(request.path_params["task"])
        spec = {"name": task.name, "signature_name": "", "version": str(task.version)}
        metadata = {
            **_summary(task),
            "precision": self._precision,
            "signature_def": _signature(task),
        }
        return _json_response({"model_spec": spec, "metadata": metadata})

    async def predict(self, request: Request) -> Response:
        """Answers instances of one task."""
        return await self._predict(request, request.path_params["task"])

    async def predict_mixed(self, request: Request) -> Response:
        """Answers instances of any tasks, in their order."""
        return await self._predict(request, None)

    async def put(self, request: Request) -> Response:
        """Serves a task adapter: {"adapter": folder}, or its two files as a form."""
        self._check_allows_changes()
        name = request.path_params["task"]
        is_form = request.headers.get("content-type", "").startswith("multipart/form-data")
        is_new = name not in self._tasks
        if is_form:
            self._check_length(request, self._limits.max_upload_bytes)
            task = await self._upload(request, name)
        else:
            self._check_length(request, _MAX_CHANGE_BYTES)
            body = await self._read_body(request, _MAX_CHANGE_BYTES)
            task = await run_in_threadpool(self._put_folder, name, body)
        logging.info("Task %s: version %d is served.", name, task.version)
        return _json_response({"name": name, **_summary(task)}, 201 if is_new else 200)

    def _put_folder(self, name: str, body: bytes) -> registry.ServedTask:
        expected = '{"adapter": "<folder below --adapter_dir>"}'
        path = _parse_object(body, {"adapter"}, expected).get("adapter")
        if not isinstance(path, str):
            raise UserError(f"expected {expected}")
        return self._tasks.put_below_root(name, path)

    async def _upload(self, request: Request, name: str) -> registry.ServedTask:
        """Serves the two files of a task adapter in a form; they are not all in memory."""
        expected = f"a form of the two files {' and '.join(task_adapter.FILES)}"
        chunks = self._body_chunks(request, self._limits.max_upload_bytes)
        parser = formparsers.MultiPartParser(request.headers, chunks, max_files=2, max_fields=0)
        try:
            form = await self._in_time(parser.parse())
        except formparsers.MultiPartException as error:
            raise UserError(f"{error.message}; expected {expected}") from None
        except OSError as error:
            sentence = f"the upload cannot be kept in a temporary file ({files.reason(error)})"
            raise Refused(507, sentence) from None
        try:
            uploads = {n: part.file for n, part in form.items() if isinstance(part, UploadFile)}
            if set(uploads) != set(task_adapter.FILES):
                present = ", ".join(sorted(form))[:100] or "none"
                raise UserError(f"found {present}; expected {expected}")
            return await run_in_threadpool(self._tasks.upload, name, uploads)
        finally:
            await form.close()

    async def delete(self, request: Request) -> Response:
        """Serves a task no longer."""
        self._check_allows_changes()
        task = await run_in_threadpool(self._tasks.remove, request.path_params["task"])
        self._metrics.remove_task(task.name)
        logging.info("Task %s is no longer served.", task.name)
        return _json_response({"name": task.name, "version": str(task.version)})

    def _check_allows_changes(self) -> None:
        if not self._allows_changes:
            raise Refused(403, "tasks are not changed over the network without --token")

    async def _predict(self, request: Request, name: Optional[str]) -> Response:
        num_bytes = self._check_length(request, self._limits.max_body_bytes)
        client = request.client.host if request.client else ""
        try:
            with self._queue.enter(client, num_bytes) as ticket, self._tasks.lease() as lease:
                body = self._read_body(request, self._limits.max_body_bytes)
                body = await _while_placed(ticket, body, None)
                start = time.perf_counter()
                answer = self._answer(body, name, lease, ticket)
                content = await _while_placed(ticket, answer, self._limits.answer_seconds)
                self._metrics.count_tasks(lease.names(), time.perf_counter() - start)
        except admission.Overloaded:
            raise Refused(503, "too many rows wait already; try again later") from None
        except asyncio.TimeoutError:
            seconds = self._limits.answer_seconds
            raise Refused(504, f"no answer within {seconds:g} seconds") from None
        return Response(content, media_type="application/json")

    async def _answer(
        self, body: bytes, name: Optional[str], lease: registry.Lease, ticket: admission.Ticket
    ) -> bytes:
        """The bytes that answer a prediction's request."""

        def in_thread(steps):
            return asyncio.wrap_future(self._readers.submit(ticket.tag, steps))

        prediction = await in_thread(self._encode_instances(body, name, lease))
        rows = prediction.rows()
        if len(rows) > self._queue.max_rows:
            raise Refused(413, f"the texts make {len(rows)} windows, which are too many")
        self._queue.resize(ticket, len(rows))
        try:
            if not self._tasks.are_in_memory(prediction.tasks):  # Batches need not wait for a disk.
                await run_in_threadpool(self._tasks.load, prediction.tasks)
            outputs = await asyncio.wrap_future(self._batcher.submit(rows, ticket.tag))
        except batcher.Closed:
            raise Refused(503, "the server is stopping") from None
        self._metrics.count_instances(task.name for task in prediction.tasks)
        return await in_thread(_format_response(prediction, outputs))

    def _encode_instances(
        self, body: bytes, name: Optional[str], lease: registry.Lease
    ) -> Generator[None, None, _Prediction]:
        """The `_Prediction` of a request, by steps of `admission.Readers`."""
        instances, is_columnar = _parse_instances(body)
        if is_columnar and name is None:
            raise UserError('tasks are mixed in rows alone: {"instances": [...]}')
        if not 0 < len(instances) <= self._limits.max_instances:
            raise UserError(
                f"found {len(instances)} instances; expected 1 to {self._limits.max_instances}"
            )
        requests, tasks = [], []
        for index, instance in enumerate(instances):
            yield
            try:
                task_name, instance = (
                    (name, instance) if name is not None else _split_task(instance)
                )
                tasks.append(lease.get(task_name))
                requests.append(tasks[-1].texts.encode(instance))
            except registry.TaskNotServed:
                raise
            except UserError as error:
                raise UserError(f"instances[{index}]: {error}") from None
        return _Prediction(requests, tasks, is_columnar)

    def _check_length(self, request: Request, max_bytes: int) -> int:
        """The bytes that a body says it has, or at most has; raises `Refused` if these are more."""
        declared = request.headers.get("content-length", "")
        if not declared.isdigit():
            return max_bytes
        if int(declared) > max_bytes:
            raise _too_large_error(max_bytes)
        return int(declared)

    async def _read_body(self, request: Request, max_bytes: int) -> bytes:
        """The bytes of a request's body."""

        async def read():
            return b"".join([chunk async for chunk in self._body_chunks(request, max_bytes)])

        return await self._in_time(read())

    async def _body_chunks(self, request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
        """Yields the parts of a request's body."""
        size = 0
        try:
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise _too_large_error(max_bytes)
                yield chunk
        except ClientDisconnect:
            raise Refused(400, "the client went away", closes_connection=True) from None

    async def _in_time(self, reading: Awaitable) -> Any:
        """Awaits what reads a body."""
        try:
            return await asyncio.wait_for(reading, self._limits.read_seconds)
        except asyncio.TimeoutError:
            sentence = f"the body did not come within {self._limits.read_seconds:g} seconds"
            raise Refused(408, sentence, closes_connection=True) from None


async def _while_placed(
    ticket: admission.Ticket, awaitable: Awaitable, seconds: Optional[float]
) -> Any:
    """Awaits what is done for a request.

    Raises:
      admission.Overloaded: the request lost its place in the queue.
      asyncio.TimeoutError: it took more seconds.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait(
            {task, ticket.refused}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if task.done():
            return task.result()
        if ticket.refused.done():
            raise admission.Overloaded
        raise asyncio.TimeoutError
    finally:
        task.cancel()


def _too_large_error(max_bytes: int) -> Refused:
    return Refused(413, f"the body is over {max_bytes:,} bytes")


def _parse_object(body: bytes, names: Set[str], expected: str) -> Dict[str, Any]:
    """The JSON object of a body, which has no other names."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the body is no JSON ({error})") from None
    if not isinstance(value, dict) or set(value) - names:
        raise UserError(f"expected {expected}")
    return value


def _reject_constant(text):
    raise ValueError(f"{text} is no number of JSON")


def _parse_instances(body: bytes) -> Tuple[list, bool]:
    """(list of instances, whether they came by columns) of TensorFlow Serving's two formats."""
    expected = '{"instances": [...]} or {"inputs": {...}}'
    value = _parse_object(body, {"instances", "inputs", "signature_name"}, expected)
    signature = value.pop("signature_name", "serving_default")
    if signature != "serving_default":
        raise UserError("signature_name: expected serving_default, the only one")
    if len(value) != 1:
        raise UserError(f"expected {expected}, one of them")
    ((key, payload),) = value.items()
    if key == "instances" or isinstance(payload, list):
        if not isinstance(payload, list):
            raise UserError("instances: expected a list")
        return payload, key == "inputs"
    if not isinstance(payload, dict) or not payload:
        raise UserError("inputs: expected an object of lists")
    columns = list(payload.values())
    if not all(isinstance(column, list) for column in columns):
        raise UserError("inputs: expected an object of lists")
    if len(set(map(len, columns))) > 1:
        raise UserError("inputs: its lists are of different lengths")
    return [dict(zip(payload, row)) for row in zip(*columns)], True


def _split_task(instance) -> Tuple[str, Dict[str, Any]]:
    """(name of its task, the rest) of an instance among those of several tasks."""
    if not isinstance(instance, dict) or not isinstance(instance.get("task"), str):
        raise UserError('expected an object with the name of its "task"')
    return instance["task"], {name: v for name, v in instance.items() if name != "task"}


def _format_response(prediction: _Prediction, outputs: List[Any]) -> Generator[None, None, bytes]:
    """The JSON of the answers, in the request's format, by steps of `admission.Readers`."""
    remaining, answers = iter(outputs), []
    for request in prediction.requests:
        yield
        answers.append(_decode(request, [next(remaining) for _ in request.rows]))
    failures = [answer for answer in answers if isinstance(answer, _Failure)]
    if failures and (prediction.is_columnar or len(failures) == len(answers)):
        raise Refused(500, failures[0].sentence)
    if not prediction.is_columnar:
        answers = [{"error": a.sentence} if isinstance(a, _Failure) else a for a in answers]
        return _dump_json({"predictions": answers})
    if not isinstance(answers[0], dict):
        return _dump_json({"outputs": answers})
    if any(set(answer) != set(answers[0]) for answer in answers):
        raise UserError("inputs: their outputs differ; expected texts alone or token ids alone")
    return _dump_json({"outputs": {name: [a[name] for a in answers] for name in answers[0]}})


class _Failure(NamedTuple):
    """In place of an answer."""

    sentence: str


def _decode(request: request_texts.EncodedRequest, outputs: List[Any]) -> Any:
    """The answer to an instance, or the `_Failure` of its rows."""
    for output in outputs:
        if isinstance(output, UserError):  # The instance is right: its adapter is not.
            return _Failure(str(output))
        if isinstance(output, Exception):
            return _Failure(_UNEXPECTED)
    return request.decode(outputs)


def _summary(task: registry.ServedTask) -> Dict[str, Any]:
    """What a task is, for people: a dict of JSON values."""
    description = task.description
    presentation, num_required = presentations.of(description)
    return {
        "version": str(task.version),
        "task": description.task,
        "kind": description.kind,
        "labels": list(description.labels),
        "label_descriptions": presentation.label_descriptions,
        "fields": list(presentation.fields),
        "num_required_fields": num_required,
        "example": presentation.example,
        "max_seq_length": description.max_seq_length,
        "do_lower_case": description.do_lower_case,
        # A training that diverged may have others.
        "scores": {name: s if math.isfinite(s) else None for name, s in description.scores.items()},
    }


def _signature(task: registry.ServedTask) -> Dict[str, Any]:
    """A task's inputs and outputs, as TensorFlow Serving tells them."""

    def tensor(name, kind):
        shape = {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
        return {"dtype": kind, "tensor_shape": shape, "name": name}

    outputs = task_kinds.get(task.description.kind).answer_types
    signature = {
        "inputs": {name: tensor(name, "DT_STRING") for name in task.texts.fields},
        "outputs": {name: tensor(name, kind) for name, kind in outputs.items()},
        "method_name": "tensorflow/serving/predict",
    }
    return {"signature_def": {"serving_default": signature}}


def _dump_json(value) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def _json_response(
    value, status: int = 200, headers: Optional[Mapping[str, str]] = None
) -> Response:
    return Response(_dump_json(value), status, headers, media_type="application/json")


def _error_response(
    status: int, sentence: str, headers: Optional[Mapping[str, str]] = None
) -> Response:
    return _json_response({"error": sentence}, status, headers)


async def _handle_refused(request, error: Refused) -> Response:
    headers = {"connection": "close"} if error.closes_connection else {}
    if error.status == 503:
        headers["retry-after"] = "1"
    return _error_response(error.status, str(error), headers)


def _make_error_handler(status: int) -> Callable:
    async def failed(request, error):
        return _error_response(status, str(error))

    return failed


async def _handle_http_error(request: Request, error: HTTPException) -> Response:
    return _error_response(
        error.status_code, f"{error.detail}: {request.url.path[:100]}", error.headers
    )


async def _handle_unexpected(request, error):
    return _error_response(500, _UNEXPECTED)
