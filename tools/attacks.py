"""Attacks serve.py on this machine, and prints the effect of each attack as a Markdown table.

    python tools/attacks.py --bert_dir=demo/bert [--attacks headers flood]

Each attack has its own server, with untrained tasks. During an attack, /healthz is called and the
server's memory is read ten times a second.
"""

import argparse
import contextlib
import datetime
import http.client
import io
import json
import os
import re
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent import futures

_PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path += [_PROJECT, os.path.join(_PROJECT, "benchmarks")]

import harness
import random_weights
import worker
from adapter_bert.formats import task_adapter

_ATTACKS = {}
_TEXT = "See you at lunch, or after the film if the trains are late again?"
_SIZES = {"sms": 64, "topics": 16}


def attack(function):
    """Registers an attack: a function of a `Server` that returns a description of its effect."""
    _ATTACKS[function.__name__] = function
    return function


class Server:
    """Runs serve.py in a process, as a context manager.

    Args:
      values: this script's arguments.
      root: the server's --adapter_dir.
    """

    def __init__(self, values, root):
        options = shlex.split(values.options)
        command = [sys.executable, "serve.py", f"--adapter_dir={root}", "--port=0", *options]
        environment = {**os.environ, "BERT_BASE_DIR": os.path.abspath(values.bert_dir)}
        environment.pop("ADAPTER_BERT_TOKEN", None)  # The attacks send none.
        self.root = root
        self.process = subprocess.Popen(
            command, cwd=_PROJECT, env=environment, stdout=subprocess.PIPE, text=True
        )
        line = self.process.stdout.readline()
        match = re.search(r"http://([\d.]+):(\d+)", line)
        if match is None:
            raise SystemExit(f"{' '.join(command)} failed: {line}")
        self.address = match.group(1), int(match.group(2))
        self.stalls, self.memory = [0.0], []
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch)

    def __enter__(self):
        for _ in range(3):
            self.predict(_TEXT)
        self.memory.append(worker.resident_mb(self.process.pid))
        self._watcher.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._watcher.join()
        self.process.kill()
        self.process.communicate()

    def _watch(self):
        while not self._done.wait(0.1):
            start = time.perf_counter()
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.call("GET", "/healthz")
            self.stalls.append(time.perf_counter() - start)
            with contextlib.suppress(OSError, StopIteration):  # The process may have ended.
                self.memory.append(worker.resident_mb(self.process.pid))

    def call(self, method, path, body=None, headers=()):
        """Returns the (status, body) of a response."""
        connection = http.client.HTTPConnection(*self.address, timeout=120)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            return response.status, response.read()

    def predict(self, text, task="sms"):
        body = json.dumps({"instances": [text]})
        return self.call("POST", f"/v1/models/{task}:predict", body)

    def send(self, parts):
        """Sends parts of a request; returns the first line of the response."""
        received = []
        with socket.create_connection(self.address, 60) as connection:

            def read():
                with contextlib.suppress(OSError):
                    received.append(connection.recv(4096))

            reader = threading.Thread(target=read)
            reader.start()
            with contextlib.suppress(OSError):
                for part in parts:
                    connection.sendall(part)
            reader.join(60)
        return (b"".join(received).split(b"\r\n")[0] or b"nothing").decode()

    def watched(self):
        """Returns the observed memory and stalls, as a text."""
        return (
            f"memory {self.memory[0]:.0f} → {max(self.memory):.0f} MB, /healthz at most"
            f" {max(self.stalls):.2f} s"
        )


@attack
def headers(server):
    """192 MB of headers on one connection"""
    line = b"x-a: " + b"a" * 8000 + b"\r\n"
    return server.send([b"GET / HTTP/1.1\r\nHost: localhost\r\n", *[line * 100] * 240])


@attack
def long_header(server):
    """75 MB in one header"""
    return server.send([b"GET / HTTP/1.1\r\nx-a: ", *[b"a" * 1000000] * 75])


@attack
def put_json(server):
    """PUT of 60 MB of [[],[],…"""
    body = b"[" + b"[]," * 20000000 + b"[]]"
    head = f"PUT /v1/models/sms HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    parts = [body[i : i + 1000000] for i in range(0, len(body), 1000000)]
    return server.send([head.encode(), *parts])


@attack
def upload_json(server):
    """an upload whose adapter_config.json is 48 MB of [[],[],…"""
    folder = os.path.join(server.root, "bomb")
    os.mkdir(folder)
    for name in task_adapter.FILES:
        with open(os.path.join(folder, name), "wb") as writer:
            writer.write(b"[" + b"[]," * 16000000 + b"[]]")
    return server.call("PUT", "/v1/models/sms", *_form(folder))[0]


@attack
def flood(server, seconds=20):
    """20 clients with valid requests of 1 MB"""
    alone = statistics.median(_timed(server)[1] for _ in range(20))
    body = json.dumps({"instances": [" ".join([_TEXT] * 120)] * 127})
    end, statuses = time.monotonic() + seconds, []

    def ask():
        while time.monotonic() < end:
            statuses.append(server.call("POST", "/v1/models/sms:predict", body)[0])
            if statuses[-1] == 503:
                time.sleep(0.1)

    with futures.ThreadPoolExecutor(20) as pool:
        for _ in range(20):
            pool.submit(ask)
        time.sleep(2)
        others = []
        while time.monotonic() < end:
            others.append(_timed(server))
    times = [spent for _, spent in others]
    median = 1000 * statistics.median(times)
    return (
        f"{_counts(statuses)}; another's {_counts(status for status, _ in others)}, median"
        f" {1000 * alone:.0f} → {median:.0f} ms, at most {max(times):.2f} s"
    )


def _timed(server):
    start = time.perf_counter()
    return server.predict(_TEXT)[0], time.perf_counter() - start


def _counts(statuses):
    statuses = list(statuses)
    return ", ".join(f"{statuses.count(s)} × {s}" for s in sorted(set(statuses)))


@attack
def uploads(server, seconds=60):
    """60 s of uploads"""
    form, headers = _form(os.path.join(server.root, "sms", "adapter"))
    end, statuses = time.monotonic() + seconds, []
    while time.monotonic() < end:
        statuses.append(server.call("PUT", "/v1/models/fresh", form, headers)[0])
    time.sleep(0.5)
    folder = os.path.join(server.root, "fresh")
    size = sum(
        os.path.getsize(os.path.join(f, n)) for f, _, names in os.walk(folder) for n in names
    )
    return f"{_counts(statuses)}, {size / 1e6:.0f} MB in {sorted(os.listdir(folder))[-3:]}"


@attack
def replaced_under_load(server, seconds=60):
    """replaced, removed and added for 60 s under load of 8 clients"""
    form, headers = _form(os.path.join(server.root, "sms", "adapter"))
    other, _ = _form(os.path.join(server.root, "topics", "adapter"))
    for name, content in (("a", form), ("b", other)):
        server.call("PUT", "/v1/models/" + name, content, headers)
    expected = [json.loads(server.predict(_TEXT, name)[1])["predictions"][0] for name in "ab"]
    end, statuses, wrong, changes = time.monotonic() + seconds, [], [], 0

    def ask():
        while time.monotonic() < end:
            status, body = server.predict(_TEXT, "changing")
            statuses.append(status)
            answer = json.loads(body).get("predictions", [None])[0]
            if status == 200 and not any(_are_close(answer, one) for one in expected):
                wrong.append(answer)

    server.call("PUT", "/v1/models/changing", form, headers)
    with futures.ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            pool.submit(ask)
        while time.monotonic() < end:
            server.call("PUT", "/v1/models/changing", (form, other)[changes % 2], headers)
            server.call("PUT", "/v1/models/passing", form, headers)
            server.call("DELETE", "/v1/models/passing")
            changes += 1
    return f"{3 * changes} changes; {_counts(statuses)}; {len(wrong)} answers of neither version"


@attack
def folders_changed(server, seconds=180):
    """folders added, replaced and removed for 180 s under load of 32 clients"""
    expected, statuses, wrong, changes = {}, [], [], 0
    for name in ("sms", "topics"):
        status, digest, answer = _predict_version(server, name)
        expected[digest] = answer
    end = time.monotonic() + seconds

    def ask():
        while time.monotonic() < end:
            status, digest, answer = _predict_version(server, "changing")
            statuses.append(status)
            if status == 200 and not _are_close(answer, expected[digest]):
                wrong.append(answer)

    with futures.ThreadPoolExecutor(32) as pool:
        asking = [pool.submit(ask) for _ in range(32)]
        while time.monotonic() < end:
            for change in ("sms", "topics", None, "topics/2", "sms/3", None):
                folder = os.path.join(server.root, "changing")
                if change is None:
                    shutil.rmtree(folder)
                else:
                    source, _, number = change.partition("/")
                    files = os.path.join(server.root, source, "adapter")
                    shutil.copytree(files, os.path.join(folder, number), dirs_exist_ok=True)
                server.process.send_signal(signal.SIGHUP)
                time.sleep(0.3)
                changes += 1
        for future in asking:
            future.result()
    return f"{changes} changes; {_counts(statuses)}; {len(wrong)} answers of another version"


def _predict_version(server, task):
    """Returns the (status, X-Adapter-Version, prediction) of a request."""
    connection = http.client.HTTPConnection(*server.address, timeout=120)
    with contextlib.closing(connection):
        body = json.dumps({"instances": [_TEXT]})
        connection.request("POST", f"/v1/models/{task}:predict", body)
        response = connection.getresponse()
        answer = json.loads(response.read()).get("predictions", [None])[0]
        return response.status, response.headers["X-Adapter-Version"], answer


def _are_close(one, other):
    pairs = zip(one["probabilities"].values(), other["probabilities"].values())
    return all(abs(a - b) < 1e-4 for a, b in pairs)


@attack
def soak(server):
    """3,000 requests and 300 uploads"""
    form, headers = _form(os.path.join(server.root, "sms", "adapter"))
    memory = []
    for _ in range(6):
        with futures.ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(lambda _: server.predict(_TEXT)[0], range(500)))
        statuses += [server.call("PUT", "/v1/models/fresh", form, headers)[0] for _ in range(50)]
        memory.append(f"{worker.resident_mb(server.process.pid):.0f}")
        if set(statuses) - {200, 201}:
            return f"failed: {_counts(statuses)}"
    return f"memory after each sixth: {', '.join(memory)} MB"


@attack
def terminated(server):
    """SIGTERM under load of 16 clients"""
    statuses, refused = [], []

    def ask():
        try:
            while True:
                statuses.append(server.predict(_TEXT)[0])
        except ConnectionRefusedError:
            refused.append(1)
        except (OSError, http.client.HTTPException) as error:
            refused.append(error)

    with futures.ThreadPoolExecutor(16) as pool:
        for _ in range(16):
            pool.submit(ask)
        time.sleep(2)
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(60)
    lost = [error for error in refused if error != 1]
    return f"exit {code}; {_counts(statuses)}; {len(lost)} connections without an answer"


def killed_during_uploads(values, root, times=10):
    """SIGKILL during uploads, 10 times"""
    kept = []
    for turn in range(times):
        with Server(values, root) as server:
            form, headers = _form(os.path.join(root, "sms", "adapter"))
            before = server.call("GET", "/v1/models/fresh")

            def put(server=server, form=form, headers=headers):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    while True:
                        server.call("PUT", "/v1/models/fresh", form, headers)

            thread = threading.Thread(target=put)
            thread.start()
            time.sleep(0.3 + 0.05 * turn)
            server.process.kill()
            thread.join()
        kept.append(before[0])
    with Server(values, root) as server:
        status, _ = server.predict(_TEXT, "fresh")
    files = sorted(os.listdir(os.path.join(root, "fresh")))
    return (
        f"served after each restart: {kept[1:].count(200)} of {times - 1}, {status}; left {files}"
    )


def _form(folder):
    """Returns the (body, headers) of an upload."""
    body = io.BytesIO()
    for name in task_adapter.FILES:
        head = f'Content-Disposition: form-data; name="{name}"; filename="{name}"'
        with open(os.path.join(folder, name), "rb") as reader:
            body.write(f"--x\r\n{head}\r\n\r\n".encode() + reader.read() + b"\r\n")
    body.write(b"--x--\r\n")
    return body.getvalue(), {"Content-Type": "multipart/form-data; boundary=x"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bert_dir", required=True)
    names = [*_ATTACKS, "killed_during_uploads"]
    parser.add_argument("--attacks", nargs="+", choices=names, default=names)
    parser.add_argument("--options", default="", help="options of serve.py: '--precision=int8'")
    values = parser.parse_args()
    print("| attack | effect |\n|---|---|")
    for name in values.attacks:
        with tempfile.TemporaryDirectory() as root:
            for seed, (task, size) in enumerate(_SIZES.items()):
                adapter = random_weights.adapter_for(values.bert_dir, task, size, seed)
                task_adapter.save(os.path.join(root, task, "adapter"), adapter)
            if name == "killed_during_uploads":
                print(
                    f"| {killed_during_uploads.__doc__} | {killed_during_uploads(values, root)} |"
                )
                continue
            with Server(values, root) as server:
                effect = _ATTACKS[name](server)
            print(f"| {_ATTACKS[name].__doc__} | {effect}; {server.watched()} |", flush=True)
    print(f"\n{datetime.date.today()}, revision {harness.revision()}.")


if __name__ == "__main__":
    main()
