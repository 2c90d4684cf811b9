"""Tests of http_server.py, over real sockets: timeouts, limits, signals and damaged requests."""

import asyncio
import collections
import contextlib
import http.client
import json
import os
import signal
import socket
import tempfile
import threading
import time
from concurrent import futures
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf

pytest.importorskip("uvicorn", reason="requirements-serving.txt is not installed")

# isort: split
from adapter_bert.formats import task_adapter
from adapter_bert.serving.http import admission, http_server, rest_api
from adapter_bert.shell.errors import UserError
from adapter_tests.support import mutations, served, servers, tiny

LARGE = 64 << 20


async def echo(scope, receive, send):
    """Answers with the request body.

    "/ignore" does not read the body. "/slow" waits before it answers. "/large" answers with more
    bytes than any buffer holds.
    """
    if scope["path"] == "/slow":
        await asyncio.sleep(0.5)
    body, more = b"", scope["path"] != "/ignore"
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    if scope["path"] == "/large":
        body = bytes(LARGE)
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


class HttpServerTest(tf.test.TestCase):
    def ask(self, port, body=b"hello", path="/"):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, 20)) as connection:
            connection.request("POST", path, body)
            response = connection.getresponse()
            return response.status, response.read()

    def connect(self, port, sent=b""):
        connection = socket.create_connection(("127.0.0.1", port), 20)
        self.addCleanup(connection.close)
        connection.sendall(sent)
        return connection

    def test_idle_connections_are_closed_after_read_timeout(self):
        request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab"
        whole = (b"", b"POST / HT", b"POST / HTTP/1.1\r\nHost: x\r\n", request, request * 2)
        with servers.serving(echo, read_seconds=0.3) as port:
            for sent, connection in [(sent, self.connect(port, sent)) for sent in whole]:
                with self.subTest(sent):
                    # Reads until the server closes the connection.
                    received = b"".join(iter(lambda c=connection: c.recv(1000), b""))
                    self.assertEqual(received.count(b"200 OK"), sent.count(request))

    def test_connection_closes_after_protocol_upgrade_request(self):
        offer = b"GET /ignore HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
        with servers.serving(echo, read_seconds=60.0) as port:
            connection = self.connect(port, offer)  # Reads time out after 20 seconds.
            received = b"".join(iter(lambda: connection.recv(1000), b""))
            self.assertIn(b"200 OK", received)

    def test_read_timeout_does_not_apply_to_request_body(self):
        with servers.serving(echo, read_seconds=0.3) as port:
            connection = self.connect(
                port, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"
            )
            time.sleep(0.5)  # Longer than a head may take.
            connection.sendall(b"ab")
            self.assertIn(b"200 OK", connection.recv(1000))

    def test_unread_request_body_does_not_prevent_response(self):
        with servers.serving(echo) as port:
            self.assertEqual(self.ask(port, b"x" * (8 << 20), "/ignore"), (200, b""))

    def test_oversized_request_heads_get_431(self):
        limit = http_server.MAX_HEAD_BYTES
        first_line, chunked = b"GET / HTTP/1.1\r\n", b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
        with servers.serving(echo) as port:
            for start, part in (
                (b"GET /", b"a" * 1000),
                (first_line + b"a: ", b"a" * 1000),
                (first_line, b"a" * 1000),
                (first_line, b"a: b\r\n" * 100),
                (b"POST / HTTP/1.1\r\nHost: x\r\n" + chunked + b"0\r\n", b"a: b\r\n" * 100),
                (b"POST / HTTP/1.1\r\nHost: x\r\n" + chunked + b"1;", b"a" * 1000),
            ):
                with self.subTest(start):
                    connection = self.connect(port, start)
                    received = self.flood(connection, part, 20 * limit)
                    connection.close()
                    self.assertIn(b"HTTP/1.1 431 ", received)
                    self.assertIn(
                        "headers", json.loads(received.partition(b"\r\n\r\n")[2])["error"]
                    )
            self.assertEqual(self.ask(port), (200, b"hello"))

    def flood(self, connection, part, size):
        """Returns the bytes received while a part is sent repeatedly, until the connection ends."""
        connection.setblocking(False)
        received, unsent = b"", b""
        end = time.monotonic() + 10
        while time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                unsent = unsent or (part if size > 0 else b"")
                size -= len(part)
                with contextlib.suppress(ConnectionError):
                    unsent = unsent[connection.send(unsent) :] if unsent else b""
            try:
                data = connection.recv(1 << 16)
                received += data
                if not data:
                    break
            except BlockingIOError:
                continue
            except ConnectionError:
                break
        return received

    def test_head_limit_does_not_apply_to_request_body(self):
        body = b"x" * (4 * http_server.MAX_HEAD_BYTES)
        with servers.serving(echo) as port:
            self.assertEqual(self.ask(port, body), (200, body))
            chunks = b"".join(b"1;%s\r\na\r\n" % (b"e" * 1000) for _ in range(200)) + b"0\r\n\r\n"
            head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked"
            connection = self.connect(port, head + b"\r\n\r\n" + chunks)
            received = b"".join(iter(lambda: connection.recv(1000), b""))
            self.assertIn(b"\r\n\r\n" + b"a" * 200, received)

    def test_connections_over_the_limit_get_503(self):
        with servers.serving(echo, max_connections=4) as port:
            idle = [self.connect(port) for _ in range(4)]
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, 20)) as another:
                another.request("POST", "/", b"x" * (1 << 20))
                response = another.getresponse()
                self.assertEqual(response.status, 503)
                self.assertEqual(response.headers["Retry-After"], "1")
                self.assertIn("connections", json.loads(response.read())["error"])
            idle[0].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertIn(b"200 OK", idle[0].recv(1000))
            for connection in idle:
                connection.close()
            statuses = iter(lambda: self.ask(port)[0], 200)  # Until the server has seen them close.
            self.assertTrue(all(status == 503 for status in statuses))

    def test_server_limited_to_one_connection_answers(self):
        with servers.serving(echo, max_connections=1) as port:
            self.assertEqual(self.ask(port), (200, b"hello"))

    def test_both_slow_pipelined_requests_are_answered(self):
        request = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"
        with servers.serving(echo, read_seconds=0.3) as port:
            connection = self.connect(port, request * 2)
            received = b"".join(iter(lambda: connection.recv(1000), b""))
        self.assertEqual(received.count(b"200 OK"), 2)

    def test_too_many_pipelined_requests_get_400(self):
        request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
        with servers.serving(echo) as port:
            for count, is_refused in ((17, False), (5000, True)):
                connection = self.connect(port, request * count)
                connection.shutdown(socket.SHUT_WR)
                received = b"".join(iter(lambda c=connection: c.recv(1000), b""))
                self.assertEqual(b"HTTP/1.1 400" in received, is_refused, received)
                self.assertLessEqual(received.count(b"200 OK"), 17)
        error = json.loads(received.rpartition(b"\r\n\r\n")[2])["error"]
        self.assertEqual(error, "expected HTTP/1.1, with at most 16 pipelined requests")

    def test_stalled_readers_are_disconnected_but_slow_ones_are_not(self):
        last = b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        request = last.replace(b"Connection: close\r\n", b"")
        with servers.serving(echo, read_seconds=1.0) as port:
            silent = [self.connect(port, sent) for sent in (last, request * 3, request)]
            slow = {self.connect(port, last): LARGE, self.connect(port, request + last): 2 * LARGE}
            time.sleep(0.5)  # Until all buffers are full.
            silent[-1].sendall(request)
            taken = collections.Counter()
            for _ in range(10):
                for connection in slow:
                    taken[connection] += len(connection.recv(1 << 20, socket.MSG_WAITALL))
                time.sleep(0.25)
            with futures.ThreadPoolExecutor() as pool:  # In parallel, so that neither stalls.
                rests = dict(zip(slow, pool.map(self.rest, slow)))
            for connection, size in slow.items():
                self.assertGreater(taken[connection] + rests[connection], size)
            for connection in silent:
                with contextlib.suppress(ConnectionError):
                    self.assertLess(self.rest(connection), LARGE)

    def rest(self, connection):
        """Returns the number of bytes that are still received."""
        return sum(map(len, iter(lambda: connection.recv(1 << 20), b"")))

    def test_clients_that_read_too_slowly_are_disconnected(self):
        request = b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        # Each part arrives before the timeout, but the whole would take longer than this rate.
        with mock.patch.object(http_server, "_MIN_RATE", 1 << 40), servers.serving(
            echo, read_seconds=0.5
        ) as port:
            for size in (1 << 10, 1 << 16, 1 << 20):
                connection, taken = self.connect(port, request), 0
                with contextlib.suppress(ConnectionError):
                    for _ in range(30):
                        taken += len(connection.recv(size))
                        time.sleep(0.05)
                    taken += self.rest(connection)
                self.assertLess(taken, LARGE)

    def test_slowest_readers_are_disconnected_if_too_many_bytes_wait(self):
        request = b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        # At the usual rate, a buffer that takes 1 MB less of an answer gives its client more time.
        with mock.patch.object(http_server, "_MIN_RATE", 1 << 40), servers.serving(
            echo, max_unsent_bytes=2 * LARGE
        ) as port:
            self.assertEqual(self.ask(port), (200, b"hello"))
            slow = []
            for _ in range(4):
                slow.append(self.connect(port))
                # A buffer that Linux enlarges may take a third of an answer.
                slow[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
                slow[-1].sendall(request)
                slow[-1].recv(1)  # Until it has its answer.
            self.assertEqual(self.ask(port), (200, b"hello"))
            for connection, is_cut in zip(slow, (True, True, False, False)):
                with contextlib.suppress(ConnectionError):
                    self.assertEqual(self.rest(connection) < LARGE, is_cut)

    def test_unread_400_response_aborts_the_connection(self):
        async def check(request):
            server = http_server.make_server(
                echo, max_connections=9, read_seconds=0.05, stop_seconds=5
            )
            config = server.config
            config.load()
            transport = mock.Mock()
            transport.get_extra_info.return_value = None
            transport.get_write_buffer_size.return_value = 10000  # The client reads nothing.
            transport.is_closing.return_value = False
            protocol = config.http_protocol_class(config, server.server_state, {})
            protocol.connection_made(transport)
            protocol.data_received(request)
            await asyncio.sleep(0.5)
            return transport

        # The second is larger than a head may be, and still gets one answer.
        for request in (b"GET http://h HTTP/1.1\r\nHost: x\r\n\r\n", b"\0" * 200_000):
            with mock.patch.object(http_server, "_LINGER_SECONDS", 0.05):
                transport = asyncio.run(check(request))
            transport.write.assert_called_once()
            self.assertIn(b"400", transport.write.call_args_list[0].args[0])
            transport.abort.assert_called()

    def test_server_answers_with_1000_idle_connections(self):
        http_server._raise_file_limit(3000)  # This process holds both ends of each connection.
        with servers.serving(echo, max_connections=2000) as port:
            for _ in range(1000):
                self.connect(port)
            self.assertEqual(self.ask(port), (200, b"hello"))

    def test_listen_refuses_busy_port_and_invalid_hosts(self):
        with http_server.listen("127.0.0.1", 0) as bound:
            port = bound.getsockname()[1]
            self.assertEqual(http_server.url_of(bound), f"http://127.0.0.1:{port}/")
            with self.assertRaisesRegex(UserError, f"--port={port}: cannot listen there .*in use"):
                http_server.listen("127.0.0.1", port)
        with self.assertRaisesRegex(UserError, "--host=192.0.2.1 --port=0: cannot listen"):
            http_server.listen("192.0.2.1", 0)
        for nowhere in ("no such host", "a..b"):
            with self.assertRaisesRegex(UserError, f"--host={nowhere}"):
                http_server.listen(nowhere, 0)

    def test_is_loopback_recognizes_loopback_hosts(self):
        for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
            self.assertTrue(http_server.is_loopback(host), host)
        for host in ("0.0.0.0", "::", "192.0.2.1", "example.org", ""):
            self.assertFalse(http_server.is_loopback(host), host)

    def test_signals_stop_server_and_handlers_are_restored(self):
        tiny.enable_signals(self)
        before = signal.getsignal(signal.SIGTERM)
        for number in (signal.SIGTERM, signal.SIGINT):
            hangups = []
            with http_server.listen("127.0.0.1", 0) as bound:
                server = http_server.make_server(
                    echo, max_connections=10, read_seconds=5, stop_seconds=5
                )
                port, answers = bound.getsockname()[1], []

                def ask_and_stop(port=port, number=number, answers=answers):
                    try:
                        connection = self.connect(port, b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
                        answers.append(self.ask(port))  # By then the other request waits, too.
                    finally:
                        for each in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, number):
                            os.kill(os.getpid(), each)
                    answers.append(connection.recv(1000)[:15])

                asking = threading.Thread(target=ask_and_stop)
                asking.start()
                http_server.run(server, bound, lambda hangups=hangups: hangups.append(1))
                asking.join()
            self.assertEqual(hangups, [1])
            self.assertEqual(answers, [(200, b"hello"), b"HTTP/1.1 200 OK"])
            self.assertEqual(signal.getsignal(signal.SIGTERM), before)

    def test_requests_that_have_arrived_when_the_server_stops_are_answered(self):
        is_blocked = threading.Event()

        async def block(scope, receive, send):
            if scope["path"] == "/block":
                is_blocked.set()
                time.sleep(0.5)  # The server reads nothing meanwhile.
            await echo(scope, receive, send)

        request = b"POST /ignore HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
        with futures.ThreadPoolExecutor(1) as pool:
            with servers.serving(block) as port:
                pool.submit(self.ask, port, path="/block")
                is_blocked.wait()
                connections = [self.connect(port, request) for _ in range(8)]
            for connection in connections:
                self.assertIn(b"200 OK", connection.recv(1000))

    def test_sigterm_drains_and_a_second_one_stops_at_once(self):
        tiny.enable_signals(self)
        for seconds, signals, least, most in ((0.5, 1, 0.5, 5), (60, 2, 0, 5)):
            drains, times = [], []
            with http_server.listen("127.0.0.1", 0) as bound:
                server = http_server.make_server(
                    echo,
                    max_connections=10,
                    read_seconds=5,
                    stop_seconds=5,
                    drain_seconds=seconds,
                    on_drain=lambda drains=drains: drains.append(1),
                )
                port = bound.getsockname()[1]

                def ask_and_stop(port=port, signals=signals, times=times):
                    self.ask(port)
                    times.append(time.monotonic())
                    for _ in range(signals):
                        os.kill(os.getpid(), signal.SIGTERM)
                        if signals == 1:
                            self.assertEqual(self.ask(port), (200, b"hello"))
                        else:
                            time.sleep(0.2)

                asking = threading.Thread(target=ask_and_stop)
                asking.start()
                http_server.run(server, bound)
                asking.join()
            self.assertEqual(drains, [1])
            self.assertBetween(time.monotonic() - times[0], least, most)


class DamagedRequestsTest(tf.test.TestCase):
    """Checks that any request to the whole server gets 2xx or 4xx, or a closed connection."""

    REQUEST = "request.json"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        limits = admission.RequestLimits(max_body_bytes=1 << 18, read_seconds=0.3)
        with contextlib.ExitStack() as stack:

            def opened(resource):
                return stack.enter_context(contextlib.closing(resource))

            bank = opened(served.make_bank())
            tasks = opened(served.tasks_of(bank, served.save_all(tempfile.mkdtemp())))
            application = opened(rest_api.RestApi(tasks, bank, limits)).application()
            cls.port = stack.enter_context(
                servers.serving(application, max_connections=64, read_seconds=0.3, stop_seconds=1)
            )
            cls.stack = stack.pop_all()

    @classmethod
    def tearDownClass(cls):
        cls.stack.close()
        super().tearDownClass()

    def exchange(self, request):
        """Returns what the server sends until it closes the connection."""
        received = b""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        with connection, contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(request)
            for part in iter(lambda: connection.recv(1 << 16), b""):
                received += part
        return received

    def send(self, first_line, body, content_type="application/json"):
        """Sends a request; raises UserError if it is refused."""
        head = f"{first_line} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.judge(self.exchange(head.encode() + body))

    def judge(self, answer):
        if not answer:
            raise UserError("HTTP: the connection was closed")
        statuses = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
        self.assertTrue(statuses, answer[:100])
        self.assertNotIn(500, statuses, answer[:300])
        if statuses[0] < 400:
            return
        head, _, body = answer.partition(b"\r\n\r\n")
        if b"application/json" in head.lower():
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            error = json.loads(body[:length].decode())
            self.assertEqual(list(error), ["error"])
            self.assertTrue(error["error"].isprintable() and len(error["error"]) < 2000, error)
        raise UserError(f"HTTP {statuses[0]}")

    def check(self, contents, send):
        """Checks `send` on damaged contents of a request; the server must still answer after it."""

        def read(folder):
            try:
                send(mutations.files_in(folder))
            finally:
                health = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                self.assertIn(b"200 OK", self.exchange(health))

        read.__qualname__ = self.id()
        mutations.check(contents, read, ("HTTP",))

    def test_damaged_raw_requests_never_get_500(self):
        body = json.dumps({"instances": [{"text": "the dog", "text_b": "a cat"}, "a bird"]})
        request = "POST /v1/models/sms:predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        request += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"

        def send(contents):
            self.judge(self.exchange(contents.get("request", b"")))

        self.check({"request": request.encode()}, send)

    def test_missing_host_is_accepted_but_foreign_host_gets_403(self):
        self.assertIn(b" 200 OK", self.exchange(b"GET /healthz HTTP/1.0\r\n\r\n"))
        self.assertIn(b" 403 ", self.exchange(b"GET /healthz HTTP/1.0\r\nHost: a.b\r\n\r\n"))

    def test_damaged_json_never_gets_500(self):
        pair, ids = {"text": "the dog", "text_b": "a cat"}, [2, 5, 3]
        row = {"input_ids": ids, "segment_ids": [0, 0, 0], "input_mask": [1, 1, 1]}
        columns = {"text": ["the dog", "a cat"], "text_b": ["a", "b"]}
        span = {"question": "who", "context": "the dog sees a bird"}
        several = [{"task": "sms", "text": "the dog"}, {"task": "sets", "text": "a"}]
        for path, body in (
            ("/sms:predict", {"instances": [pair, "a bird"]}),
            ("/topics:predict", {"instances": [row]}),
            ("/stars:predict", {"inputs": columns, "signature_name": "serving_default"}),
            ("/squad:predict", {"instances": [span]}),
            (":predict", {"instances": several}),
        ):

            def send(contents, path=path):
                self.send("POST /v1/models" + path, contents.get(self.REQUEST, b""))

            with self.subTest(path):
                self.check({self.REQUEST: json.dumps(body).encode()}, send)

    def test_damaged_uploads_never_get_500(self):
        def send(contents):
            parts = []
            for name, content in contents.items():
                head = f'Content-Disposition: form-data; name="{name}"; filename="{name}"'
                parts.append(f"--x\r\n{head}\r\n\r\n".encode() + content)
            body = b"\r\n".join([*parts, b"--x--\r\n"])
            self.send("PUT /v1/models/uploaded", body, "multipart/form-data; boundary=x")

        adapter = served.prepare()[1]["sms"]
        written = mutations.written_by(lambda folder: task_adapter.save(folder, adapter))
        self.check({name: written[name] for name in task_adapter.FILES}, send)
