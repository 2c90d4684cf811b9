"""Requests to a server that runs: bytes on its socket, and JSON bodies.

It is `serve.py`'s server over the tasks that its tests serve. An answer of status 2xx counts as
read, one that says whose fault it is (4xx) as refused, and so does a connection that the server
ends; a status of 500, silence, or an answer that is no JSON is a fault. A refusal answers its
request, and need not name it.
"""

import functools
import json
import os
import socket
import threading

import house
from adapter_bert.common import errors
from adapter_bert.formats import task_adapter
from adapter_tests.support import served
from house import Reader

_READ_SECONDS = 0.3
_PATIENCE = 10.0
_HEAD = "POST /v1/models/sms:predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
_FILE = "request"


def all_readers():
    """List of `Reader`s; none without the packages that serving needs."""
    try:
        from adapter_bert.serving import (
            http_server,  # noqa: F401
            rest_api,  # noqa: F401
        )
    except ImportError:
        return []
    return [
        Reader("server: bytes on the socket", _request, _ask, ("HTTP",)),
        *(
            Reader(
                f"server: JSON to {name}",
                functools.partial(_body, body),
                functools.partial(_post, path),
                ("HTTP",),
            )
            for name, path, body in _BODIES
        ),
        Reader("server: paths", _path, _get, ("HTTP",)),
        Reader("server: uploads", _upload_files, _upload, ("HTTP",)),
    ]


_BODIES = (
    (
        "a classifier",
        "/v1/models/sms:predict",
        {"instances": [{"text": "the dog", "text_b": "a cat"}, "a bird"]},
    ),
    (
        "ids",
        "/v1/models/topics:predict",
        {
            "instances": [
                {"input_ids": [2, 5, 3], "segment_ids": [0, 0, 0], "input_mask": [1, 1, 1]}
            ]
        },
    ),
    (
        "columns",
        "/v1/models/stars:predict",
        {
            "inputs": {"text": ["the dog", "a cat"], "text_b": ["a", "b"]},
            "signature_name": "serving_default",
        },
    ),
    (
        "a span task",
        "/v1/models/squad:predict",
        {"instances": [{"question": "who", "context": "the dog sees a bird"}]},
    ),
    (
        "several tasks",
        "/v1/models:predict",
        {"instances": [{"task": "sms", "text": "the dog"}, {"task": "sets", "text": "a"}]},
    ),
)


@functools.lru_cache(maxsize=None)
def _port():
    """The port of a server, which runs as long as the process."""
    from adapter_bert.serving import batcher, http_server, prometheus, rest_api

    root = served.save_all(os.path.join(house.root(), "served"))
    bank = served.make_bank()
    limits = rest_api.Limits(max_body_bytes=1 << 18, read_seconds=_READ_SECONDS)
    row_batcher = batcher.Batcher(
        bank.predict,
        lambda row: len(row.input_ids),
        max_batch_size=32,
        max_queue_size=1024,
    )
    tasks = served.tasks_of(bank, root)
    api = rest_api.RestApi(tasks, row_batcher, prometheus.Metrics(), limits)
    bound = http_server.listen("127.0.0.1", 0)
    server = http_server.make_server(
        api.application(), max_connections=64, read_seconds=_READ_SECONDS, stop_seconds=1
    )
    threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True).start()
    return bound.getsockname()[1]


def _exchange(request):
    """All that the server sends to a request until it ends the connection, or has answered."""
    received = b""
    with socket.create_connection(("127.0.0.1", _port()), timeout=_PATIENCE) as connection:
        try:
            connection.sendall(request)
            while True:
                part = connection.recv(1 << 16)
                if not part:
                    return received
                received += part
        except (ConnectionResetError, BrokenPipeError):
            return received


def _judge(request):
    """Sends a request; raises UserError for a refusal, AssertionError for a fault."""
    answer = _exchange(request)
    if not answer:
        raise errors.UserError("HTTP: the connection was ended")
    statuses = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses, answer[:100]
    assert not any(status == 500 for status in statuses), answer[:300]
    head, _, body = answer.partition(b"\r\n\r\n")
    if statuses[0] >= 400:
        if b"application/json" in head.lower():
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            said = json.loads(body[:length].decode())
            assert list(said) == ["error"], said
            assert said["error"].isprintable() and len(said["error"]) < 2000, said
        raise errors.UserError(f"HTTP {statuses[0]}")


def _alive():
    """The server still answers."""
    answer = _exchange(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert b"200 OK" in answer, answer[:100]


def _ask(folder):
    content = _content(folder)
    try:
        _judge(content)
    finally:
        _alive()


def _content(folder):
    path = os.path.join(folder, _FILE)
    if not os.path.isfile(path):
        return b""
    with open(path, "rb") as reader:
        return reader.read()


def _request():
    body = json.dumps(_BODIES[0][2])
    head = f"{_HEAD}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return {_FILE: (head + body).encode()}


def _body(value):
    return {_FILE + ".json": json.dumps(value).encode()}


def _post(path, folder):
    file = os.path.join(folder, _FILE + ".json")
    body = b""
    if os.path.isfile(file):
        with open(file, "rb") as reader:
            body = reader.read()
    head = _HEAD.replace("/v1/models/sms:predict", path)
    _judge(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)


def _path():
    return {_FILE: b"/v1/models/sms/metadata"}


def _get(folder):
    _judge(b"GET " + _content(folder) + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")


def _upload_files():
    with_files = {}
    task_adapter.save(os.path.join(house.root(), "uploaded"), served.prepare()[1]["sms"])
    for name in task_adapter.FILES:
        with open(os.path.join(house.root(), "uploaded", name), "rb") as reader:
            with_files[name] = reader.read()
    return with_files


def _upload(folder):
    parts = []
    for name in task_adapter.FILES:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            with open(path, "rb") as reader:
                disposition = f'form-data; name="{name}"; filename="{name}"'
                parts.append(
                    f"--x\r\nContent-Disposition: {disposition}\r\n\r\n".encode() + reader.read()
                )
    body = b"\r\n".join([*parts, b"--x--\r\n"])
    head = f"PUT /v1/models/uploaded HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    head += "Content-Type: multipart/form-data; boundary=x\r\nConnection: close\r\n\r\n"
    _judge(head.encode() + body)
