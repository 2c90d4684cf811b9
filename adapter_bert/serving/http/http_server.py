"""Runs uvicorn with limits on time, connections and headers.

Uvicorn has none: it waits forever for the end of a request's headers, and buffers headers of any
size. Its `limit_concurrency` refuses requests, but leaves idle connections open. `_TimeoutProtocol`
adds the limits.
"""

import asyncio
import ipaddress
import json
import math
import os
import signal
import socket
import time
import urllib.parse
from typing import Any, Callable, List, Optional

import uvicorn
from uvicorn.protocols.http import httptools_impl

from adapter_bert.shell import interrupts
from adapter_bert.shell.errors import UserError

try:
    import resource
except ImportError:  # Windows has no such limit.
    resource = None  # type: ignore[assignment]

_RESERVED_FILES = 256
_BACKLOG = 2048
_READ_LAST_SECONDS = 0.05  # When the server stops.
_LINGER_SECONDS = 1.0  # A refused client has this time to read the response.
MAX_HEAD_BYTES = 64 << 10  # A request's first line and headers.
_MIN_RATE = 125_000  # Bytes per second (1 Mbit/s) that a client must read of a large answer.
_MAX_PIPELINED = 16  # Requests that wait for an earlier answer of their connection.


def _refusal(status: str, error: str, headers: str = "") -> bytes:
    """Returns the bytes of a response that closes the connection."""
    body = json.dumps({"error": error}, separators=(",", ":"))
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}connection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()


_TOO_MANY = _refusal(
    "503 Service Unavailable",
    "too many connections are open already; try again later",
    "retry-after: 1\r\n",
)
_TOO_LARGE = _refusal(
    "431 Request Header Fields Too Large", f"the headers are over {MAX_HEAD_BYTES:,} bytes"
)


_BAD_REQUEST = _refusal(
    "400 Bad Request", f"expected HTTP/1.1, with at most {_MAX_PIPELINED} pipelined requests"
)


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach a server at this address."""
    address = _ip_address(host)
    return address.is_loopback if address else host == "localhost"


def is_own_host(host: str, address: str) -> bool:
    """Returns whether a Host header is an address of this machine, or its own name.

    Guards against DNS rebinding: an attacker's own domain name may resolve to this machine.

    Args:
      host: the header's value.
      address: where the server listens.
    """
    try:
        name = urllib.parse.urlsplit("//" + host).hostname or ""
    except ValueError:
        return False
    if is_loopback(name):
        return True
    return not is_loopback(address) and bool(
        _ip_address(name) or name in (address.lower(), socket.gethostname().lower())
    )


def _ip_address(name: str) -> Any:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at an address; clients wait until a server runs.

    Raises:
      UserError: the port is in use, or the address is not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)  # Only listen() always reports a port in use.
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:  # UnicodeError: the name is no valid host name.
        reason = getattr(error, "strerror", error)
        raise UserError(
            f"--host={host} --port={port}: cannot listen there ({reason}); choose another"
            " address or port (0 picks a free port)."
        ) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Returns the URL at which a socket is reached."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def make_server(
    application: Callable,
    *,
    max_connections: int,
    read_seconds: float,
    stop_seconds: float,
    max_unsent_bytes: int = 512 << 20,
    drain_seconds: float = 0.0,
    on_drain: Callable[[], None] = lambda: None,
    on_refusal: Callable[[], None] = lambda: None,
) -> uvicorn.Server:
    """Returns a `uvicorn.Server` for `run`.

    Args:
      application: an ASGI application.
      max_connections: int; further ones get status 503 and are closed.
      read_seconds: maximum time for a request's headers, and for an idle connection.
      stop_seconds: maximum time for running answers when the server stops.
      max_unsent_bytes: of the answers that wait for their clients; above it, the slowest clients
        are disconnected.
      drain_seconds: time from SIGTERM until connections are refused.
      on_drain: function that is called at its start.
      on_refusal: function that is called for each connection beyond `max_connections`.
    """
    _raise_file_limit(max_connections + _RESERVED_FILES)
    limits = {
        "max_connections": max_connections,
        "read_seconds": read_seconds,
        "max_unsent_bytes": max_unsent_bytes,
        "on_refusal": staticmethod(on_refusal),
    }
    config = uvicorn.Config(
        application,
        http=type("TimeoutProtocol", (_TimeoutProtocol,), limits),
        ws="none",
        lifespan="off",
        backlog=_BACKLOG,
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, int(read_seconds)),
        timeout_graceful_shutdown=max(1, int(stop_seconds)),
    )
    return _Server(config, drain_seconds, on_drain)


def run(
    server: uvicorn.Server, listener: socket.socket, on_hangup: Callable[[], None] = lambda: None
) -> None:
    """Serves at a socket until Ctrl-C or SIGTERM, then finishes running answers.

    SIGHUP calls `on_hangup`, which must be safe in a signal handler; but the SIGHUP of a terminal
    that was closed ends the server.
    """
    has_terminal = os.isatty(0)

    def handle(signum: int, frame: Any) -> None:
        if signum != getattr(signal, "SIGHUP", None):
            server.handle_exit(signum, frame)
        elif has_terminal and not os.isatty(0):
            server.should_exit = True
        else:
            on_hangup()

    # Uvicorn handles only two of these signals, and raises them again at its end.
    with interrupts.handle_signals(handle), interrupts.ignore_user_signals():
        server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """Uvicorn's server with a time between SIGTERM and its end."""

    def __init__(
        self, config: uvicorn.Config, drain_seconds: float, on_drain: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._drain_seconds, self._on_drain = drain_seconds, on_drain
        self._ends_at = math.inf

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Handles a signal that ends the server; a second one ends it at once."""
        if sig != signal.SIGTERM or not self._drain_seconds or self._ends_at < math.inf:
            super().handle_exit(sig, frame)
            return
        self._ends_at = time.monotonic() + self._drain_seconds
        self._on_drain()

    async def on_tick(self, counter: int) -> bool:
        """Returns whether the server ends; uvicorn calls it ten times a second."""
        return await super().on_tick(counter) or time.monotonic() > self._ends_at

    async def shutdown(self, sockets: Optional[List[socket.socket]] = None) -> None:
        """Reads the requests that have arrived, so that they are answered, too."""
        await asyncio.sleep(_READ_LAST_SECONDS)  # Accepts the connections that the system holds.
        for server in self.servers:
            server.close()
        await asyncio.sleep(_READ_LAST_SECONDS)  # A connection with unread bytes would be reset.
        await super().shutdown(sockets)


class _TimeoutProtocol(httptools_impl.HttpToolsProtocol):
    """Uvicorn's protocol with limits on connections, headers and idle time."""

    max_connections: int
    read_seconds: float
    max_unsent_bytes: int
    on_refusal: Callable[[], None]
    _timer = _unsent_bytes = None
    _read_by = math.inf  # The time by which the client must have read a large answer.
    # The requests without a complete answer.
    _cycles: tuple[httptools_impl.RequestResponseCycle, ...] = ()
    _pending_bytes = 0  # Received since the last complete headers or part of a body.

    def connection_made(self, transport: Any) -> None:
        if len(self.connections) >= self.max_connections:
            self.on_refusal()
            _refuse(transport, self.loop, _TOO_MANY)
            return
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        self._pending_bytes += len(data)
        super().data_received(data)
        if self._pending_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._end(_TOO_LARGE)

    def on_headers_complete(self) -> None:
        self._pending_bytes = 0
        if not self.flow.write_paused:
            self._cancel_timer()
        super().on_headers_complete()
        waiting = (cycle for cycle in self._cycles if not cycle.response_complete)
        self._cycles = (*waiting, self.cycle)
        if self.parser.should_upgrade():  # The parser reads nothing after these headers.
            self.cycle.keep_alive = False
        if len(self.pipeline) > _MAX_PIPELINED:
            raise ValueError  # The parser stops, and `send_400_response` closes the connection.

    def on_body(self, body: bytes) -> None:
        self._pending_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # Otherwise the next request has begun already.
            self._start_timer()  # Limits the rest of a refused body and the next headers.

    def send_400_response(self, msg: str) -> None:
        self._end(_BAD_REQUEST)

    def pause_writing(self) -> None:
        super().pause_writing()
        seconds = self.read_seconds + self.transport.get_write_buffer_size() / _MIN_RATE
        self._read_by = self.loop.time() + seconds
        if self._timer is None:
            self._start_timer()
        self._limit_unsent_bytes()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read_by = math.inf
        if not self.cycle.response_complete:
            self._cancel_timer()

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self._cancel_timer()
        super().connection_lost(exc)
        for cycle in self._cycles:  # Uvicorn tells only the last.
            cycle.disconnected = True
            cycle.message_event.set()

    def _end(self, response: bytes) -> None:
        """Ends the connection with a response, also for the application."""
        transport, self._pending_bytes = self.transport, 0
        self.connection_lost(ConnectionAbortedError())
        _refuse(transport, self.loop, response)

    def _limit_unsent_bytes(self) -> None:
        """Disconnects clients, the slowest first, while too many bytes wait for all of them."""
        connections: Any = self.connections  # All are of this class.
        slow = sorted((c for c in connections if c.flow.write_paused), key=lambda c: c._read_by)
        sizes = [c.transport.get_write_buffer_size() for c in slow]
        for index, other in enumerate(slow):
            if sum(sizes[index:]) > self.max_unsent_bytes and other is not self:
                other.transport.abort()

    def _start_timer(self) -> None:
        self._cancel_timer()
        self._unsent_bytes = None
        self._timer = self.loop.call_later(self.read_seconds, self._on_timeout)

    def _on_timeout(self) -> None:
        """Closes the connection, unless the client is still reading an answer, and in time."""
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes in (0, self._unsent_bytes) or self.loop.time() > self._read_by:
            self.transport.abort()
        else:
            self._unsent_bytes = unsent_bytes
            self._timer = self.loop.call_later(self.read_seconds, self._on_timeout)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _refuse(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, response: bytes) -> None:
    """Closes a connection with a response; drops further input, so the client can read it."""
    transport.set_protocol(asyncio.Protocol())
    transport.write(response)
    transport.write_eof()
    loop.call_later(_LINGER_SECONDS, transport.abort)


def _raise_file_limit(count: int) -> None:
    """Raises the process's limit of open files if it is lower."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
