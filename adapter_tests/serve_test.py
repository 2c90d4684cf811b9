"""Tests of serve.py: its flags, and the program from start to end."""

import contextlib
import dataclasses
import inspect
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from concurrent import futures
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf
from absl import flags

pytest.importorskip("uvicorn", reason="requirements-serving.txt is not installed")
pytest.importorskip("onnxruntime", reason="Python 3.7 has no ONNX Runtime of today")

# isort: split
import serve
from adapter_bert.files import paths
from adapter_bert.formats import onnx_backbone, task_adapter
from adapter_bert.serving.http import (
    admission,
    http_server,
    rest_api,
    served_tasks,
    task_folders,
)
from adapter_bert.serving.inference import bank, memory
from adapter_bert.shell.errors import UserError
from adapter_tests.support import command_lines, own_models, served, tiny


class ServeTestCase(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.root = tempfile.mkdtemp(dir=self.get_temp_dir())

    def values(self, *arguments):
        return command_lines.parsed(serve.define_flags, *arguments)


class ServeFlagsTest(ServeTestCase):
    def arguments(self, *flags, **environment):
        """Runs the script without its server; returns the arguments of its calls by name."""
        served.save_all(self.root, ["sms"])
        places = {bank: "AdapterBank", rest_api: "RestApi", http_server: "make_server"}
        places.update({served_tasks: "ServedTasks", task_folders: "TaskFolders"})
        given = {"BERT_BASE_DIR": served.prepare()[0], **environment}
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.dict(os.environ, given))
            stack.enter_context(mock.patch.object(http_server, "run"))
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            called = {}
            for module, name in places.items():
                real = getattr(module, name)
                spied = stack.enter_context(mock.patch.object(module, name, side_effect=real))
                called[name] = inspect.signature(real), spied
            serve.run(self.values(f"--adapter_dir={self.root}", "--port=0", *flags))
            return {
                name: signature.bind(*spied.call_args[0], **spied.call_args[1]).arguments
                for name, (signature, spied) in called.items()
            }

    def test_changes_need_a_token_or_a_loopback_host(self):
        def allowed(*flags, **environment):
            api = self.arguments(*flags, **environment)["RestApi"]
            return api["token"], api["allows_changes"], api["address"]

        with mock.patch.dict(os.environ):
            os.environ.pop(serve.TOKEN_VARIABLE, None)
            self.assertEqual(allowed(), (None, True, "127.0.0.1"))
            everybody = "--host=0.0.0.0"
            with self.assertLogs("absl", "WARNING") as logs:
                self.assertEqual(allowed(everybody), (None, False, "0.0.0.0"))
            self.assertIn("--host=0.0.0.0 without --token", logs.output[0])
            secret = {serve.TOKEN_VARIABLE: "secret"}
            self.assertEqual(allowed(everybody, **secret), ("secret", True, "0.0.0.0"))
            found = allowed(everybody, "--token=other", **secret)
            self.assertEqual(found, ("other", True, "0.0.0.0"))

    def test_limit_flags_are_passed_on(self):
        found = self.arguments(
            *("--max_body_mb=2", "--max_upload_mb=3", "--max_instances=4", "--max_queue_size=5"),
            *("--max_batch_size=6", "--read_timeout=7", "--answer_timeout=8"),
            *("--most_in_memory=9", "--keep_versions=10", "--max_text_length=11"),
            *("--max_connections=12", "--precision=int8", "--num_threads=13"),
            *("--max_task_metrics=14", "--drain_seconds=15"),
            "--cors_origins=https://a.org,https://b.org",
        )
        self.assertEqual(
            found["RestApi"]["limits"],
            admission.RequestLimits(
                max_body_bytes=2 * 1024 * 1024,
                max_upload_bytes=3 * 1024 * 1024,
                max_instances=4,
                max_queue_rows=5,
                max_batch_rows=6,
                read_seconds=7.0,
                answer_seconds=8.0,
                max_task_metrics=14,
            ),
        )
        made = found["AdapterBank"]
        self.assertEqual((made["max_in_memory"], made["precision"]), (9, "int8"))
        self.assertEqual(made["num_threads"], 13)
        made = found["TaskFolders"]
        self.assertEqual((made["root"], made["keep_versions"]), (self.root, 10))
        self.assertEqual(found["ServedTasks"]["encoding"].max_text_length, 11)
        self.assertEqual(found["RestApi"]["cors_origins"], ("https://a.org", "https://b.org"))
        made = found["make_server"]
        self.assertEqual(made["drain_seconds"], 15.0)
        self.assertEqual((made["max_connections"], made["read_seconds"]), (12, 7.0))
        self.assertGreater(made["stop_seconds"], 7.0 + 8.0)

    def test_invalid_flags_are_refused(self):
        with http_server.listen("127.0.0.1", 0) as bound:
            taken = f"--port={bound.getsockname()[1]}"
            for arguments, sentence in (
                ([], "Nothing to serve"),
                (["--token="], "--token: expected"),
                (["--token=ä"], "--token: expected"),
                (["--token=x"], "--token: expected 4 to 8,192 printable"),
                (["--token= secret"], "--token: expected .* no blank at either end"),
                (["--token=" + "x" * 8193], "--token: expected 4 to 8,192"),
                ([taken], "cannot listen there"),
                (["--adapter_dir=/no/such/folder"], "is not a folder"),
            ):
                if arguments != [taken]:
                    arguments = [*arguments, "--port=0"]
                with self.subTest(arguments), self.assertRaisesRegex(UserError, sentence):
                    serve.run(self.values(*arguments))

    def test_start_without_enough_memory_is_refused(self):
        served.save_all(self.root, ["sms"])
        values = self.values(f"--adapter_dir={self.root}", "--port=0")
        bert = mock.patch.dict(os.environ, BERT_BASE_DIR=served.prepare()[0])
        with bert, mock.patch.object(memory, "free", return_value=(5e6, "ulimit -v")):
            sentence = r"bert_model.ckpt needs about \d+ MB of memory; 5 MB are free \(ulimit -v\)"
            with self.assertRaisesRegex(UserError, sentence):
                serve.run(values)

    def test_little_memory_limits_waiting_rows_and_unsent_bytes(self):
        with mock.patch.object(memory, "free", return_value=(68 << 20, "ulimit -v")):
            made = self.arguments()
        unsent, rows = made["make_server"], made["RestApi"]["limits"].max_queue_rows
        self.assertBetween(unsent["max_unsent_bytes"], 32 << 20, 33 << 20)
        self.assertBetween(rows, 204, 211)  # In as many bytes, 160 kB each.

    @pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux's /proc")
    def test_process_without_memory_for_imports_ends_with_a_sentence(self):
        for kilobytes in (100_000, 300_000):
            command = f"ulimit -v {kilobytes}; exec {sys.executable} serve.py --port=0"
            done = subprocess.run(
                ["sh", "-c", command], cwd=paths.PROJECT, capture_output=True, text=True
            )
            self.assertRegex(done.stderr, r"^Error: serve.py needs about \d+ MB .* \(ulimit -v\)")
            self.assertNotIn("Traceback", done.stderr)

    def test_empty_token_variable_is_refused(self):
        empty = mock.patch.dict(os.environ, {serve.TOKEN_VARIABLE: ""})
        with empty, self.assertRaisesRegex(UserError, r"^\$ADAPTER_BERT_TOKEN: expected"):
            serve.run(self.values("--port=0"))

    def test_batch_size_above_limit_is_refused(self):
        with self.assertRaisesRegex(flags.IllegalFlagValueError, "max_batch_size=33"):
            self.values("--max_batch_size=33")

    def load(self, *flags):
        config = serve.ServerConfig.from_flags(self.values(*flags))
        return serve._load(config, serve._find_bert(config)[0])

    def test_duplicate_task_name_causes_a_warning(self):
        served.save_all(self.root, ["sms"])
        one = os.path.join(served.save_all(os.path.join(self.root, "a.b"), ["sms"]), "sms")
        found = mock.patch.dict(os.environ, BERT_BASE_DIR=served.prepare()[0])
        with found, self.assertLogs("absl", "WARNING") as logs:
            tasks, adapter_bank = self.load(f"--adapters={one}", f"--adapter_dir={self.root}")
            tasks.update()
        for opened in (tasks, adapter_bank):
            opened.close()
        self.assertRegex(
            "\n".join(logs.output), "'sms' is served from .*/sms/adapter, not from .*/a.b/sms"
        )

    def test_adapter_with_hostile_config_is_not_served(self):
        served.save_all(self.root, ["sms"])
        adapter = served.prepare()[1]["stars"]
        backbone = adapter.description.backbone
        hostile = dataclasses.replace(backbone, config={**backbone.config, "__class__": 1})
        description = dataclasses.replace(adapter.description, backbone=hostile)
        folder = os.path.join(self.root, "stars", "adapter")
        task_adapter.save(folder, adapter._replace(description=description))
        found = mock.patch.dict(os.environ, BERT_BASE_DIR=served.prepare()[0])
        with found, self.assertLogs("absl", "WARNING") as logs:
            tasks, adapter_bank = self.load(f"--adapter_dir={self.root}")
            tasks.update()
        for opened in (tasks, adapter_bank):
            self.addCleanup(opened.close)
        self.assertEqual([task.name for task in tasks.served.current()], ["sms"])
        self.assertRegex(logs.output[0], "Not served: .*__class__")
        with found, self.assertRaisesRegex(UserError, "__class__"):
            self.load(f"--adapters={folder}")

    def test_missing_package_raises_user_error(self):
        absent = mock.patch("builtins.__import__", side_effect=ImportError("No 'uvicorn'"))
        with self.assertRaisesRegex(UserError, "'uvicorn'.*requirements-serving.txt"), absent:
            serve._http_modules()


class ProgramTest(ServeTestCase):
    @contextlib.contextmanager
    def running(self, *arguments):
        """Runs a server of this test's folder, without TensorFlow; yields (process, URL)."""
        bert, without_tensorflow = served.prepare()[0], tempfile.mkdtemp(dir=self.get_temp_dir())
        onnx_backbone.write(os.path.join(bert, "bert_model.ckpt"), tiny.config())
        with open(os.path.join(without_tensorflow, "tensorflow.py"), "w") as writer:
            writer.write("raise ImportError('There is no TensorFlow.')\n")
        process = subprocess.Popen(
            [sys.executable, "serve.py", f"--adapter_dir={self.root}", *arguments],
            cwd=paths.PROJECT,
            env={**os.environ, "BERT_BASE_DIR": bert, "PYTHONPATH": without_tensorflow},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            # The tests may run under nohup.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
        said = self.said = []
        with process:
            try:
                for line in process.stdout:
                    said.append(line)
                    if line.startswith("Serving"):
                        break
                else:
                    self.fail("".join(said))
                yield process, re.search(r"http://\S+", said[-1]).group()
            finally:
                process.kill()

    def call(self, url, value=None, method=None):
        body = None if value is None else json.dumps(value).encode()
        with urllib.request.urlopen(urllib.request.Request(url, body, method=method)) as response:
            return json.loads(response.read())

    def predicted(self, url, name):
        body = {"instances": [{"input_ids": [2, 5, 6, 3]}]}
        answer = self.call(f"{url}v1/models/{name}:predict", body)["predictions"][0]
        return list(answer["probabilities"].values())

    def test_killed_server_restarts_and_stops_gracefully(self):
        served.save_all(self.root, ["sms", "topics"])
        expected = own_models.SingleTaskModels(served.prepare()[0]).predictions(
            served.prepare()[1]["topics"], [2, 5, 6, 3], [0] * 4
        )["probabilities"]
        port = f"--port={tiny.free_port()}"
        with self.running(port, "--precision=float32") as (process, url):
            self.assertAllClose(self.predicted(url, "topics"), expected, 1e-5, 1e-5)
            self.call(url + "v1/models/more", {"adapter": "sms"}, "PUT")
            process.kill()
        with self.running(port, "--precision=float32") as (process, url):
            self.assertAllClose(self.predicted(url, "topics"), expected, 1e-5, 1e-5)
            answer = self.stop_under_way(process, url)
            self.assertIn(b"200 OK", answer)
            rest = process.stdout.read()
            self.assertEqual(process.wait(30), 0, rest)
        self.assertRegex(rest, r"Stopped; 3 requests were answered\.\n$")

    def test_folders_are_looked_at_by_polls_and_at_sighup(self):
        served.save_all(self.root, ["sms"])
        for seconds in (0, 0.1):
            with self.running("--port=0", f"--poll_seconds={seconds}") as (process, url):
                self.wait(lambda url=url: self.call(url + "readyz"))
                self.predicted(url, "sms")
                os.rename(f"{self.root}/sms", f"{self.root}/other")
                if not seconds:
                    time.sleep(0.3)
                    self.predicted(url, "sms")
                    process.send_signal(signal.SIGHUP)
                self.wait(lambda url=url: self.predicted(url, "other"))
                self.wait(lambda url=url: self.assert_gone(url, "sms"))  # An update has an order.
                os.rename(f"{self.root}/other", f"{self.root}/sms")

    def assert_gone(self, url, name):
        with self.assertRaisesRegex(urllib.error.HTTPError, "404"):
            self.predicted(url, name)

    def wait(self, call):
        """Calls a function until it raises no error."""
        for _ in range(200):
            with contextlib.suppress(urllib.error.HTTPError, AssertionError):
                return call()
            time.sleep(0.05)
        raise AssertionError("The server does not get there.")

    def test_probes_answer_while_a_bert_is_loading_and_while_draining(self):
        served.save_all(self.root, ["sms"])
        begun, go, port = threading.Event(), threading.Event(), tiny.free_port()

        def load(*arguments):
            begun.set()
            go.wait(20)
            raise UserError("damaged")

        def status(path):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}") as response:
                    return response.status
            except urllib.error.HTTPError as error:
                return error.code

        def probe():
            begun.wait(20)
            try:
                return [status(path) for path in ("healthz", "readyz", "v1/models")]
            finally:
                go.set()

        bert = mock.patch.dict(os.environ, BERT_BASE_DIR=served.prepare()[0])
        values = self.values(f"--adapter_dir={self.root}", f"--port={port}")
        with bert, mock.patch.object(serve, "_load", load), futures.ThreadPoolExecutor(1) as pool:
            probing = pool.submit(probe)
            with self.assertRaisesRegex(UserError, "damaged"):
                serve.run(values)
            self.assertEqual(probing.result(), [200, 503, 503])
        with self.running(f"--port={port}", "--drain_seconds=60") as (process, _):
            self.wait(lambda: self.call(f"http://127.0.0.1:{port}/readyz"))
            process.send_signal(signal.SIGTERM)
            while status("readyz") == 200:
                time.sleep(0.01)
            self.assertEqual([status("healthz"), status("v1/models")], [200, 200])
            process.send_signal(signal.SIGTERM)
            rest = process.stdout.read()
            self.assertEqual(process.wait(30), 0, rest)

    def test_names_of_folders_cannot_send_controls_to_the_terminal(self):
        names = ("a\x1b[31mred", "b\rc", "d\u202ee")
        served.save_all(self.root, ["sms"])
        for name in names:
            shutil.copytree(os.path.join(self.root, "sms"), os.path.join(self.root, name))
        with self.running("--port=0") as (process, url):
            printed = [next(line for line in process.stdout if "Not served" in line) for _ in names]
            process.send_signal(signal.SIGTERM)
        for name in names:
            line = next(line for line in printed if f"Not served: {name[0]}" in line)
            self.assertTrue(line.rstrip("\n").isprintable(), line)

    def stop_under_way(self, process, url):
        """Sends SIGTERM to a server that has half of a request; returns the request's answer."""
        host, port = re.search(r"//([\d.]+):(\d+)/", url).groups()
        body = json.dumps({"instances": [{"input_ids": [2, 5, 6, 3]}]}).encode()
        head = "POST /v1/models/sms:predict HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Length: {len(body)}"
        with socket.create_connection((host, int(port)), 30) as connection:
            connection.sendall(head.encode() + b"\r\n\r\n" + body[:5])
            self.predicted(url, "sms")  # By then the server has read that half.
            process.send_signal(signal.SIGTERM)
            with self.assertRaises(OSError):  # New connections are refused.
                while True:
                    socket.create_connection((host, int(port)), 30).close()
            connection.sendall(body[5:])
            return b"".join(iter(lambda: connection.recv(1000), b""))
