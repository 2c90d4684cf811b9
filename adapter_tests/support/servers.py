"""Runs an HTTP server in a thread, on a free port."""

import contextlib
import threading

from adapter_bert.serving.http import http_server


@contextlib.contextmanager
def serving(application, *, max_connections=100, read_seconds=20.0, stop_seconds=5, **limits):
    """Yields the port of a server of an ASGI application."""
    with http_server.listen("127.0.0.1", 0) as listener:
        server = http_server.make_server(
            application,
            max_connections=max_connections,
            read_seconds=read_seconds,
            stop_seconds=stop_seconds,
            **limits,
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()
