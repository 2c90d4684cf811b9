"""TensorFlow Serving's REST API for served tasks, as an ASGI application on Starlette.

    GET    /v1/models/<task>            its versions and their states
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

import functools
import hmac
import os
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from starlette import convertors
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapter_bert.files import gfile
from adapter_bert.serving.http import (
    admission,
    bodies,
    changes,
    embeddings,
    http_server,
    instances,
    messages,
    openapi,
    predictions,
    prometheus,
    registry,
    request_log,
    served_tasks,
)
from adapter_bert.serving.inference import bank, memory
from adapter_bert.shell.errors import UserError

_PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "page.html")
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self';"
    " script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}
_OPEN_PATHS = ("/", "/healthz", "/readyz", "/openapi.json")
_MAX_SHARED = 16  # Answers that are kept for all clients.
_LOADING = "the server is loading its BERT"


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
            answer = bodies.error_response(503, "the server is stopping")
        elif self._application is not None:
            answer = self._application
        elif scope["path"] == "/healthz":
            answer = bodies.json_response({"status": "alive"})
        else:
            answer = bodies.error_response(503, _LOADING, {"retry-after": "1"})
        await answer(scope, receive, send)


class _TaskConvertor(convertors.StringConvertor):
    """Matches a task's name in a path, which ends before ":" or "/"."""

    regex = "[^/:]+"


convertors.register_url_convertor("task", _TaskConvertor())


class RestApi:
    """The endpoints of the API.

    Args:
      tasks: `registry.Registry`.
      adapter_bank: their `bank.AdapterBank`.
      limits: `admission.RequestLimits`.
      token: required in each request as `Authorization: Bearer <token>`, or None. Without a token,
        a request's Host must name this machine, which guards against DNS rebinding.
      allows_changes: whether requests may add and remove tasks.
      address: the address on which the server listens.
      cors_origins: origins of web pages that may call the server, or "*".
      log: `request_log.RequestLog`.
    """

    def __init__(
        self,
        tasks: registry.Registry,
        adapter_bank: bank.AdapterBank,
        limits: admission.RequestLimits,
        token: Optional[str] = None,
        allows_changes: bool = True,
        address: str = "127.0.0.1",
        cors_origins: Sequence[str] = (),
        log: Optional[request_log.RequestLog] = None,
    ):
        self._cors_origins, self._log = cors_origins, log or request_log.RequestLog()
        self._tasks, self._served, self._limits = tasks, tasks.served, limits
        self._token, self._address = token, address
        self._precision = adapter_bank.precision
        self._bert_description = adapter_bank.describe(None)
        with open(_PAGE, encoding="utf-8") as reader:
            self._page_text = reader.read()
        self._shared: Dict[str, Tuple[Any, bytes]] = {}
        self._metrics = prometheus.Metrics(
            queue_rows=lambda: len(self._predictions.queue),
            tasks=lambda: len(tasks.served),
            is_served=tasks.served.__contains__,
            tasks_in_memory=lambda: len(adapter_bank.names_in_memory()),
            max_tasks=limits.max_task_metrics,
        )
        self._predictions = predictions.Predictions(tasks, adapter_bank, limits, self._metrics)
        self._changes = changes.Changes(tasks, limits, allows_changes)

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
            messages.Refused: _handle_refused,
            served_tasks.TaskNotServed: self._make_error_handler(404),
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
            expose_headers=predictions.HEADERS,
        )

    def close(self) -> None:
        """Ends the threads, once they have read and computed what waits."""
        self._predictions.close()

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
                        **scope.get(predictions.LOGGED, {}),
                        "milliseconds": round(1000 * seconds, 1),
                        "status": status,
                    }
                )

        return wrapped

    def _make_error_handler(self, status: int) -> Callable:
        async def failed(request: Request, error: Exception) -> Response:
            return bodies.error_response(status, self._tasks.folders.without_root(str(error)))

        return failed

    def _refusal(self, scope: Scope) -> Optional[Response]:
        """Returns an error response if a request's headers are not acceptable, or None."""
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > http_server.MAX_HEAD_BYTES:
            sentence = f"the headers are over {http_server.MAX_HEAD_BYTES:,} bytes"
            return bodies.error_response(431, sentence, {"connection": "close"})
        headers = dict(scope["headers"])
        if _offers_upgrade(scope["headers"]) and {b"content-length", b"transfer-encoding"} & set(
            headers
        ):
            sentence = "the server speaks HTTP/1.1 only: send no header Upgrade with a body"
            return bodies.error_response(400, sentence, {"connection": "close"})
        if self._token is None:
            # Every browser sends the header, so a request without it is no attack.
            host = headers.get(b"host", b"localhost").decode("latin-1")
            if not http_server.is_own_host(host, self._address):
                sentence = (
                    f"Host {host[:100]!r} does not name this server; a server with --token accepts"
                    " any Host"
                )
                return bodies.error_response(403, sentence)
        elif scope["path"] not in _OPEN_PATHS:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self._token.encode()):
                sentence = "expected the header Authorization: Bearer <token>"
                return bodies.error_response(401, sentence, {"www-authenticate": "Bearer"})
        encodings = [v.lower() for n, v in scope["headers"] if n == b"content-encoding"]
        accepted = [b"identity", b"gzip"] if scope["method"] == "POST" else [b"identity"]
        if encodings and (len(encodings) > 1 or encodings[0] not in accepted):
            names = b", ".join(reversed(accepted)).decode()
            sentence = f"the body has another Content-Encoding than {names}"
            return bodies.error_response(415, sentence, {"accept-encoding": names})
        return None

    async def page(self, request: Request) -> Response:
        """Returns a page to try tasks with."""
        return HTMLResponse(self._page_text, headers=_PAGE_HEADERS)

    async def health(self, request: Request) -> Response:
        """Returns that the server is alive."""
        return bodies.json_response({"status": "alive"})

    async def ready(self, request: Request) -> Response:
        """Returns whether the server accepts predictions for all of its tasks."""
        if not self._predictions.batcher.is_open:
            raise messages.Refused(503, "the server is stopping")
        if self._tasks.num_loading():
            count = f"{len(self._served):,} tasks; {self._tasks.num_loading():,} are being loaded"
            raise messages.Refused(503, f"the server answers for {count}")
        return bodies.json_response({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        """Returns the metrics for Prometheus."""
        content, kind = await run_in_threadpool(self._metrics.render)
        return await bodies.compressed(request, content, kind)

    async def openapi(self, request: Request) -> Response:
        """Returns the OpenAPI document."""
        requires_token = self._token is not None
        return bodies.json_response(openapi.document(self._limits.max_instances, requires_token))

    async def models(self, request: Request) -> Response:
        """Lists all tasks."""

        def build(tasks: List[served_tasks.ServedTask]) -> Dict[str, Any]:
            return {"models": [{"name": task.name, **messages.summary(task)} for task in tasks]}

        return await self._shared_response(request, "", self._served.current(), build)

    async def _shared_response(
        self, request: Request, name: str, tasks: Any, build: Callable
    ) -> Response:
        """Returns an answer, of megabytes perhaps, built once for all clients until tasks change.

        Args:
          request: `Request`.
          name: under which it is kept.
          tasks: `served_tasks.ServedTask`, or several.
          build: function of the tasks that returns a JSON value.
        """
        known, content = self._shared.get(name, (None, b""))
        if known != tasks:
            content = await run_in_threadpool(lambda: messages.dump_json(build(tasks)))
            if len(self._shared) >= _MAX_SHARED:
                self._shared.clear()
            self._shared[name] = tasks, content
        return await bodies.compressed(request, content)

    async def model(self, request: Request) -> Response:
        """Calls `status`, `put` or `delete`, by the request's method."""
        endpoint = {"PUT": self._changes.put, "DELETE": self._changes.delete}.get(
            request.method, self.status
        )
        request.scope["endpoint"] = endpoint  # Its name in the metrics.
        return await endpoint(request)

    async def status(self, request: Request) -> Response:
        """Returns the states of a task's versions, or of one, in TensorFlow Serving's format."""
        task = await self._task(request)
        versions = [(task.version, True)]
        if "version" not in request.path_params:
            versions = self._tasks.versions(task.name)
        ok_status = {"error_code": "OK", "error_message": ""}
        items = [
            # Of START, TensorFlow Serving says that it knows the version, and has not loaded it.
            {"version": str(v), "state": "AVAILABLE" if is_served else "START", "status": ok_status}
            for v, is_served in versions
        ]
        return bodies.json_response({"model_version_status": items})

    async def metadata(self, request: Request) -> Response:
        """Returns a task's metadata."""

        def build(task: served_tasks.ServedTask) -> Dict[str, Any]:
            spec = {"name": task.name, "signature_name": "", "version": str(task.version)}
            metadata = {
                **messages.summary(task),
                "precision": self._precision,
                "signature_def": messages.signature(task),
            }
            return {"model_spec": spec, "metadata": metadata}

        task = await self._task(request)
        return await self._shared_response(request, _label(request), task, build)

    async def _task(self, request: Request) -> served_tasks.ServedTask:
        """Returns the task in a request's path, read in a thread if necessary."""
        label = _label(request)
        if not self._tasks.is_ready(label):
            await run_in_threadpool(self._tasks.prepare, label)
        return self._served.get(label)

    async def predict(self, request: Request) -> Response:
        """Predicts instances of one task."""
        return await self._predict_instances(request, _label(request))

    async def predict_mixed(self, request: Request) -> Response:
        """Predicts instances of any tasks, in the order of the request."""
        return await self._predict_instances(request, None)

    async def _predict_instances(self, request: Request, label: Optional[str]) -> Response:
        encode = functools.partial(
            instances.encode,
            label=label,
            max_instances=self._limits.max_instances,
            max_rows=self._limits.max_queue_rows,
        )
        return await self._predictions.answer(request, encode)

    async def embed(self, request: Request) -> Response:
        """Returns the vectors of texts, of a task or of BERT, in OpenAI's format."""
        encode = functools.partial(
            embeddings.encode,
            bert=self._bert_description,
            encoding=self._served.encoding,
            max_texts=min(self._limits.max_instances, self._limits.max_queue_rows),
        )
        return await self._predictions.answer(request, encode)


def _label(request: Request) -> str:
    """Returns the label of the task, or of its version, in a request's path."""
    name, version = request.path_params["task"], request.path_params.get("version")
    return name if version is None else f"{name}/{version}"


def _offers_upgrade(headers: List[Tuple[bytes, bytes]]) -> bool:
    """Returns whether a client offers another protocol, so that uvicorn's parser drops the body."""
    connection = b",".join(value for name, value in headers if name == b"connection")
    return b"upgrade" in connection.lower() and any(name == b"upgrade" for name, _ in headers)


async def _handle_refused(request: Request, error: messages.Refused) -> Response:
    headers = {"connection": "close"} if error.closes_connection else {}
    if error.status == 503:
        headers["retry-after"] = "1"
    return bodies.error_response(error.status, str(error), headers)


async def _handle_http_error(request: Request, error: HTTPException) -> Response:
    return bodies.error_response(
        error.status_code, f"{error.detail}: {request.scope['path'][:100]!r}", error.headers
    )


async def _handle_unexpected(request: Request, error: Exception) -> Response:
    return bodies.error_response(500, messages.UNEXPECTED)
