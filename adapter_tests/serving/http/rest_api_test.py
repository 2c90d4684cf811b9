"""Tests of rest_api.py over a tiny BERT.

Answers are compared with those of each task's own model.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import errno
import gzip
import hashlib
import io
import json
import os
import socket
import tempfile
import threading
import time
import urllib.request
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("starlette", reason="requirements-serving.txt is not installed")
pytest.importorskip("onnxruntime", reason="Python 3.7 has no ONNX Runtime of today")

# isort: split
from starlette.testclient import TestClient

from adapter_bert.formats import task_adapter
from adapter_bert.serving.http import (
    bodies,
    changes,
    messages,
    registry,
    request_log,
    rest_api,
)
from adapter_bert.serving.http.admission import Overloaded
from adapter_bert.serving.inference import memory
from adapter_tests.support import own_models, served, servers, tiny

TEXT = "The dog sees a big bird."
WORDS = ["[CLS]", "the", "dog", "sees", "a", "big", "bird", ".", "[SEP]"]
ROW = [tiny.VOCABULARY.index(word) for word in WORDS]


class RestApiTestCase(served.ServedTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = own_models.SingleTaskModels(served.prepare()[0])

    def client(self, bank=None, token=None, may_change=True, address="127.0.0.1", **limits):
        api = self.api(bank, token, may_change, address, **limits)
        self.batcher, self.queue = api._predictions.batcher, api._predictions.queue
        return TestClient(api.application(), "http://127.0.0.1", raise_server_exceptions=False)

    def own(self, adapter, row=ROW, segments=None):
        """Returns the prediction of a task adapter's own model."""
        return self.models.predictions(adapter, row, segments or [0] * len(row))

    def assert_error(self, response, status, *parts):
        self.assertEqual(response.status_code, status, response.text)
        (error,) = response.json().items()
        self.assertEqual(error[0], "error")
        self.assertTrue(error[1].isprintable(), error[1])
        for part in parts:
            self.assertIn(part, error[1])


class PredictionsTest(RestApiTestCase):
    def test_predictions_match_single_task_models(self):
        adapters, client = served.prepare()[1], self.client()
        for name in ("sms", "topics", "sets"):
            labels = adapters[name].description.labels
            expected = self.own(adapters[name])["probabilities"]
            response = client.post(f"/v1/models/{name}:predict", json={"instances": [TEXT]})
            self.assertEqual(response.status_code, 200, response.text)
            (found,) = response.json()["predictions"]
            self.assertEqual(list(found["probabilities"]), list(labels))
            self.assertAllClose(list(found["probabilities"].values()), expected, 1e-5, 1e-5)
            if name == "sets":
                self.assertEqual(found["labels"], [x for x, p in zip(labels, expected) if p > 0.5])
            else:
                self.assertEqual(found["label"], labels[np.argmax(expected)])
        response = client.post("/v1/models/stars:predict", json={"instances": [{"text": TEXT}]})
        expected = self.own(adapters["stars"])["prediction"]
        self.assertAllClose(response.json()["predictions"], [expected], 1e-5, 1e-5)

    def test_row_and_column_formats_give_equal_answers(self):
        client = self.client()
        pairs = [("the dog", "a cat"), ("a bird sees", "the man and the woman")]
        rows = [{"text": a, "text_b": b} for a, b in pairs]
        columns = {"text": [a for a, _ in pairs], "text_b": [b for _, b in pairs]}
        url = "/v1/models/sms:predict"
        by_row = client.post(url, json={"instances": rows}).json()["predictions"]
        by_column = client.post(url, json={"inputs": columns}).json()["outputs"]
        self.assertEqual(by_column["label"], [answer["label"] for answer in by_row])
        self.assertEqual(by_column["probabilities"], [one["probabilities"] for one in by_row])
        body = {"signature_name": "serving_default", "inputs": ["the dog"]}
        found = client.post("/v1/models/stars:predict", json=body).json()
        body = {"instances": ["the dog"]}
        same = client.post("/v1/models/stars:predict", json=body).json()
        self.assertEqual(found["outputs"], same["predictions"])

    def test_request_may_mix_tasks(self):
        client = self.client()
        instances = [
            {"task": "topics", "text": "a dog"},
            {"task": "squad", "question": "who", "context": "The man sees a dog. " * 3},
            {"task": "stars", "text": "a dog"},
            {"task": "topics", "text": "the bird", "text_b": "a cat"},
        ]
        found = client.post("/v1/models:predict", json={"instances": instances}).json()
        self.assertTrue(found["predictions"][1]["answer"])  # Of several windows.
        for instance, answer in zip(instances, found["predictions"]):
            own = {name: value for name, value in instance.items() if name != "task"}
            url = f"/v1/models/{instance['task']}:predict"
            alone = client.post(url, json={"instances": [own]}).json()
            self.assert_same(answer, alone["predictions"][0])

    def assert_same(self, found, expected):
        """Checks that names, their order and texts are equal, and numbers up to rounding."""
        self.assertEqual(type(found), type(expected))
        if isinstance(found, dict):
            self.assertEqual(list(found), list(expected))
            for name in found:
                self.assert_same(found[name], expected[name])
        elif isinstance(found, float):
            self.assertAllClose(found, expected, 1e-5, 1e-5)
        else:
            self.assertEqual(found, expected)

    def test_malformed_requests_get_400(self):
        client = self.client(max_instances=3, max_body_bytes=2000)
        deep = b"[" * 1999
        for contents, part in (
            ((b"{", b"", b"\xff\xfe", deep, b'{"instances": [NaN]}'), "JSON"),
            ((b'{"instances": ["a"], "instances": ["b"]}',), '"instances" twice'),
            ((b"[]", b"{}", b'{"instances": [], "inputs": []}'), '"inputs"'),
            ((b'{"instances": ["a"], "signature": "x"}',), '"inputs"'),
            ((b'{"instances": ["a"], "signature_name": "x"}',), "serving_default"),
            ((b'{"instances": "a"}',), "instances:"),
            ((b'{"instances": []}', b'{"instances": ["a", "a", "a", "a"]}'), "1 to 3"),
            ((b'{"instances": ["a", 5]}',), "instances[1]:"),
            ((b'{"instances": [{"text": 5}]}',), "instances[0]: text"),
            ((b'{"inputs": "a"}', b'{"inputs": {"text": "a"}}'), "inputs:"),
            ((b'{"inputs": {"text": ["a"], "text_b": []}}',), "inputs"),
        ):
            for body in contents:
                with self.subTest(body[:40]):
                    response = client.post("/v1/models/sms:predict", content=body)
                    self.assert_error(response, 400, part)
        for body, part in (
            ({"instances": ["a"]}, '"task"'),
            ({"inputs": {"text": ["a"]}}, "instances"),
        ):
            self.assert_error(client.post("/v1/models:predict", json=body), 400, part)
        ask = {"instances": ["the dog"]}
        self.assertEqual(client.post("/v1/models/sms:predict", json=ask).status_code, 200)

    def test_columnar_request_with_mixed_inputs_gets_400(self):
        asked = [{"question": "who", "context": "The man sees."}, {"input_ids": [2, 3]}]
        response = self.client().post("/v1/models/squad:predict", json={"inputs": asked})
        self.assert_error(response, 400, "inputs:")

    def test_lone_surrogate_is_accepted_in_text(self):
        body = b'{"instances": ["the \\ud83d dog"]}'
        response = self.client().post("/v1/models/sms:predict", content=body)
        self.assertEqual(response.status_code, 200, response.text)

    def test_unknown_tasks_paths_and_methods_get_404_or_405(self):
        client, ask = self.client(), {"instances": ["a"]}
        for response in (
            client.post("/v1/models/nothing:predict", json=ask),
            client.post("/v1/models:predict", json={"instances": [{"task": "nothing"}]}),
            client.get("/v1/models/nothing"),
            client.get("/v1/models/nothing/metadata"),
            client.delete("/v1/models/nothing"),
        ):
            self.assert_error(response, 404, "'nothing'")
        self.assert_error(client.get("/v2%0A%1B"), 404, "/v2")
        response = client.get("/v1/models/sms:predict")
        self.assert_error(response, 405)
        self.assertEqual(response.headers["allow"], "POST")
        response = client.post("/v1/models/sms", json=ask)
        self.assert_error(response, 405)
        self.assertEqual(set(response.headers["allow"].split(", ")) - {"HEAD"}, {*_CHANGES, "GET"})

    def test_bodies_in_gzip_are_read_and_other_encodings_get_415(self):
        client, url = self.client(max_body_bytes=2000), "/v1/models/sms:predict"
        body = b'{"instances": ["the dog"]}'
        plain, packed = client.post(url, content=body), gzip.compress(body)

        def post(content, encoding="gzip"):
            return client.post(url, content=content, headers={"Content-Encoding": encoding})

        for content, encoding in ((packed, "gzip"), (packed, "GZIP"), (body, "identity")):
            self.assertEqual(post(content, encoding).text, plain.text)
        parts = (packed[i : i + 5] for i in range(0, len(packed), 5))
        self.assertEqual(post(parts).text, plain.text)
        for content in (body, packed[:-1], packed + b"x", packed * 2, b""):
            self.assert_error(post(content), 400, "not valid gzip")
        self.assert_error(post(gzip.compress(b"[" * (64 << 20))), 413, "2,000 bytes")
        for encoding in ("br", "GZIP, identity"):
            self.assert_error(post(packed, encoding), 415, "Content-Encoding")
        sent = {"Content-Encoding": "gzip"}
        response = client.put("/v1/models/new", content=packed, headers=sent)
        self.assert_error(response, 415, "Content-Encoding")

    def test_long_answers_are_compressed_for_clients_that_accept_gzip(self):
        client, body = self.client(), {"instances": ["the dog"] * 30}
        answers = {}
        for accepted in ("identity", "br;q=1, gzip;q=0.5", "gzip;q=0", "gzip;q=0.0, *"):
            headers = {"Accept-Encoding": accepted}
            answer = client.post("/v1/models/sms:predict", json=body, headers=headers)
            answers[accepted] = answer.headers.get("content-encoding"), len(answer.json())
        self.assertEqual([encoding for encoding, _ in answers.values()], [None, "gzip", None, None])
        short = client.post("/v1/models/sms:predict", json={"instances": ["the dog"]})
        self.assertNotIn("content-encoding", short.headers)

    def test_byte_order_marks_are_skipped(self):
        client, url = self.client(), "/v1/models/sms:predict"
        body = b'{"instances": ["the dog"]}'
        plain, marked = (client.post(url, content=mark + body) for mark in (b"", b"\xef\xbb\xbf"))
        self.assertEqual((plain.status_code, marked.text), (200, plain.text))
        change = b'\xef\xbb\xbf{"adapter": "sms/adapter"}'
        self.assertEqual(client.put("/v1/models/new", content=change).status_code, 201)

    def test_answers_name_the_versions_that_computed_them(self):
        client, digests = self.client(), {}
        for name in ("sms", "topics"):
            with open(f"{self.root}/{name}/adapter/adapter.safetensors", "rb") as reader:
                digests[name] = hashlib.sha256(reader.read()).hexdigest()[:12]
        response = client.post("/v1/models/sms:predict", json={"instances": [TEXT]})
        self.assertEqual(response.headers["x-adapter-version"], digests["sms"])
        self.assertEqual(response.headers["x-task-version"], str(served.VERSION))
        instances = [{"task": name, "text": TEXT} for name in ("topics", "sms", "topics")]
        response = client.post("/v1/models:predict", json={"instances": instances})
        expected = f"{digests['topics']}, {digests['sms']}"
        self.assertEqual(response.headers["x-adapter-version"], expected)
        models = {task["name"]: task for task in client.get("/v1/models").json()["models"]}
        found = {name: models["sms"][name] for name in ("digest", "steps", "date", "size")}
        size = os.path.getsize(f"{self.root}/sms/adapter/adapter.safetensors")
        self.assertEqual(
            found,
            {"digest": digests["sms"], "steps": 10, "date": "1970-01-01T00:16:40Z", "size": size},
        )

    def test_a_task_lists_its_versions(self):
        client = self.client()
        for number in (1, 2, 9, 10):
            folder = os.path.join(self.root, "sms", str(number))
            task_adapter.save(folder, served.other("sms", number))
        with open(f"{self.root}/sms/10/adapter.safetensors", "ab") as file:
            file.write(b"x")
        self.tasks.update()  # Finds that 10 is damaged.
        client.get("/v1/models/sms/versions/1")

        def states(name):
            found = client.get("/v1/models/" + name).json()["model_version_status"]
            return [(each["version"], each["state"]) for each in found]

        self.assertEqual(states("sms"), [("9", "AVAILABLE"), ("2", "START"), ("1", "AVAILABLE")])
        self.assertEqual(states("stars"), [("1000", "AVAILABLE")])
        client.put("/v1/models/stars", json={"adapter": "sms/1"})  # It is no version of stars.
        self.assertEqual(states("stars"), [("1", "AVAILABLE")])

    def test_versions_on_disk_have_the_endpoints_of_tensorflow_serving(self):
        client, adapters = self.client(), [served.other("sms", seed) for seed in (1, 2)]
        for number, adapter in enumerate(adapters, start=1):
            task_adapter.save(os.path.join(self.root, "sms", str(number)), adapter)
        self.tasks.update()
        for number, adapter in enumerate(adapters, start=1):
            url = f"/v1/models/sms/versions/{number}"
            response = client.post(url + ":predict", json={"instances": [TEXT]})
            found = list(response.json()["predictions"][0]["probabilities"].values())
            self.assertAllClose(found, self.own(adapter)["probabilities"], 1e-5, 1e-5)
            self.assertEqual(response.headers["x-task-version"], str(number))
            (state,) = client.get(url).json()["model_version_status"]
            self.assertEqual((state["version"], state["state"]), (str(number), "AVAILABLE"))
            spec = client.get(url + "/metadata").json()["model_spec"]
            self.assertEqual((spec["name"], spec["version"]), ("sms", str(number)))
        for number in ("3", "adapter", "0", "1" * 5000):
            url = f"/v1/models/sms/versions/{number}"
            self.assert_error(client.get(url), 404, "no version")
            response = client.post(url + ":predict", json={"instances": [TEXT]})
            self.assert_error(response, 404, "no version")
        self.assertEqual(len(client.get("/v1/models").json()["models"]), len(served.TASKS))
        client.delete("/v1/models/sms")
        self.assert_error(client.get("/v1/models/sms/versions/1"), 404, "it was removed at")

    def test_a_numbered_version_answers_though_another_replaces_it_meanwhile(self):
        client, read, numbers = self.client(), bodies.Body.read, iter((2, 3, 4))

        def write(number):
            folder = os.path.join(self.root, "sms", str(number))
            task_adapter.save(folder, served.other("sms", number))
            self.tasks.update()

        async def read_slowly(body, *args):
            content = await read(body, *args)
            write(next(numbers))
            return content

        write(1)
        with mock.patch.object(bodies.Body, "read", read_slowly):
            for number in (1, 2, 1):
                url = f"/v1/models/sms/versions/{number}:predict"
                response = client.post(url, json={"instances": [TEXT]})
                self.assertEqual(response.headers["x-task-version"], str(number))
                own = self.own(served.other("sms", number))["probabilities"]
                found = list(response.json()["predictions"][0]["probabilities"].values())
                self.assertAllClose(found, own, 1e-5, 1e-5)

    def test_large_bodies_get_413_with_or_without_length(self):
        client, url = self.client(max_body_bytes=100), "/v1/models/sms:predict"
        self.assert_error(client.post(url, content=b"x" * 101), 413, "100 bytes")
        parts = (b"x" * 50 for _ in range(3))
        self.assert_error(client.post(url, content=parts), 413, "100 bytes")

    def test_answer_with_too_many_labels_gets_413(self):
        client, instances = self.client(), {"instances": ["a", "the"]}
        with mock.patch("adapter_bert.serving.http.instances._MAX_LABELS", 5):
            response = client.post("/v1/models/topics:predict", json=instances)
            self.assert_error(response, 413, "over 5 labels")
            response = client.post("/v1/models/sms:predict", json=instances)
        self.assertEqual(response.status_code, 200)

    def test_protocol_upgrade_with_body_gets_400(self):
        client = self.client()
        headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c"}
        twice = [("Connection", "Upgrade"), ("Connection", "close"), ("Upgrade", "h2c")]
        for sent in (headers, twice):
            response = client.post("/v1/models/sms:predict", content=b"", headers=sent)
            self.assert_error(response, 400, "HTTP/1.1", "Upgrade")
        self.assertEqual(client.get("/healthz", headers=headers).status_code, 200)


_CHANGES = ("PUT", "DELETE")


class OverloadTest(RestApiTestCase):
    @contextlib.contextmanager
    def blocked(self, **limits):
        """Sends a first request, which waits until an event is set or the context ends.

        Yields (client, URL, future of the first request's response, the event).
        """
        begun, go = threading.Event(), threading.Event()

        def predict(rows, return_errors):
            begun.set()
            go.wait(20)
            return self.bank.predict(rows)

        client, url = (
            self.client(mock.Mock(self.bank, predict=predict), **limits),
            "/v1/models/stars:predict",
        )
        # As in a server, one event loop handles all requests.
        with client, concurrent.futures.ThreadPoolExecutor(4) as pool:
            try:
                first = pool.submit(client.post, url, json={"instances": ["the dog"]})
                self.assertTrue(begun.wait(20))
                yield client, url, first, go
            finally:
                go.set()

    def test_request_to_full_queue_gets_503(self):
        with self.blocked(max_queue_rows=2) as (client, url, first, go):
            large = {"instances": ["a" * 9000]}  # So long that it counts as two rows.
            response = client.post(url, json=large)
            self.assert_error(response, 503, "too many rows")
            self.assertEqual(response.headers["retry-after"], "1")
            go.set()
            self.assertEqual(first.result().status_code, 200)
            self.assertEqual(client.post(url, json={"instances": ["a"]}).status_code, 200)
            three = {"instances": ["a", "the", "dog"]}
            self.assert_error(client.post(url, json=three), 413, "over 2 rows")

    def test_body_without_declared_length_counts_by_actual_size(self):
        pool = concurrent.futures.ThreadPoolExecutor(2)
        with pool, self.blocked(max_queue_rows=3) as (client, url, first, go):
            body = b'{"instances": ["a"]}'
            short = [pool.submit(client.post, url, content=iter([body])) for _ in range(2)]
            while len(self.batcher) < 2 and not any(one.done() for one in short):
                time.sleep(0.01)
            long = client.post(url, content=(b"a" * 9000 for _ in range(9)))
            self.assert_error(long, 503, "too many rows")
            go.set()
            self.assertEqual([one.result().status_code for one in short], [200, 200])

    def test_short_request_displaces_waiting_long_request(self):
        with self.blocked(max_queue_rows=3) as (client, url, first, go):
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                long = pool.submit(client.post, url, json={"instances": ["a " * 450] * 2})
                while len(self.batcher) < 2:  # Until its texts are read.
                    time.sleep(0.01)
                short = pool.submit(client.post, url, json={"instances": ["a"]})
                self.assert_error(long.result(), 503, "too many rows")
                go.set()
                self.assertEqual(short.result().status_code, 200)
            self.assertEqual(first.result().status_code, 200)

    def test_work_of_a_disconnected_client_is_cancelled(self):
        body = json.dumps({"instances": ["the dog"] * 100})
        request = "POST /v1/models/stars:predict HTTP/1.1\r\nHost: localhost\r\n"
        request = f"{request}Content-Length: {len(body)}\r\n\r\n{body}".encode()
        batches, begun, go = [], threading.Event(), threading.Event()

        def predict(rows, return_errors):
            batches.append(len(rows))
            begun.set()
            go.wait(20)
            return self.bank.predict(rows)

        for sent, end in (
            (request, socket.socket.close),
            (request, lambda client: client.shutdown(socket.SHUT_WR)),
            (request * 2, socket.socket.close),  # Pipelined.
        ):
            client = self.client(mock.Mock(self.bank, predict=predict), max_queue_rows=100)
            with servers.serving(client.app) as port:
                gone = socket.create_connection(("127.0.0.1", port))
                self.addCleanup(gone.close)
                gone.sendall(sent)
                self.assertTrue(begun.wait(20))
                end(gone)
                for _ in range(1000):
                    if len(self.queue):
                        time.sleep(0.01)
                self.assertEqual(len(self.queue), 0)
                url = f"http://127.0.0.1:{port}/v1/models/stars:predict"
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    alive = pool.submit(urllib.request.urlopen, url, body.encode(), 20)
                    while len(self.queue) < 100 and not alive.done():
                        time.sleep(0.01)
                    go.set()
                    self.assertEqual(alive.result().status, 200)
            self.assertEqual(sum(batches), batches[0] + 100)
            batches.clear(), begun.clear(), go.clear()

    def test_slow_answer_gets_504(self):
        with self.blocked(answer_seconds=1.0) as (client, url, first, _):
            self.assert_error(first.result(), 504, "1 seconds")

    def test_computation_error_gets_500_without_details(self):
        def broken(rows, return_errors):
            raise ValueError("secret")

        client = self.client(mock.Mock(self.bank, predict=broken))
        response = client.post("/v1/models/sms:predict", json={"instances": ["a"]})
        self.assert_error(response, 500)
        self.assertNotIn("secret", response.text)

    def test_huge_weights_fail_only_their_own_instances(self):
        huge, client = served.other("sms"), self.client()
        tensors = {name: value * np.float32(1e30) for name, value in huge.tensors.items()}
        task_adapter.save(os.path.join(self.root, "huge"), huge._replace(tensors=tensors))
        self.assertEqual(client.put("/v1/models/huge", json={"adapter": "huge"}).status_code, 201)
        instances = [
            {"task": name, "text": text}
            for name, text in (("sms", TEXT), ("huge", TEXT), ("topics", TEXT), ("huge", "a"))
        ]
        response = client.post("/v1/models:predict", json={"instances": instances})
        self.assertEqual(response.status_code, 200, response.text)
        answers = response.json()["predictions"]
        for index in (1, 3):
            self.assertIn("the task's adapter failed", answers[index]["error"])
        for index, name in ((0, "sms"), (2, "topics")):
            expected = self.own(served.prepare()[1][name])["probabilities"]
            found = list(answers[index]["probabilities"].values())
            self.assertAllClose(found, expected, 1e-5, 1e-5)
        for body in ({"instances": ["a"]}, {"inputs": {"text": ["a", "the"]}}):
            response = client.post("/v1/models/huge:predict", json=body)
            self.assert_error(response, 500, "the task's adapter failed")
        metrics = client.get("/metrics").text
        self.assertIn('adapter_bert_instances_total{task="sms"} 1.0', metrics)
        self.assertNotIn('adapter_bert_instances_total{task="huge"}', metrics)

    def test_predictions_get_503_after_batcher_closes(self):
        client = self.client()
        self.assertEqual(client.get("/readyz").status_code, 200)
        self.batcher.close()
        self.assert_error(client.get("/readyz"), 503)
        response = client.post("/v1/models/sms:predict", json={"instances": ["a"]})
        self.assert_error(response, 503)
        self.assertEqual(client.get("/healthz").status_code, 200)


class DescriptionsTest(RestApiTestCase):
    def test_state_and_metadata_follow_tensorflow_serving(self):
        client = self.client()
        status = {"error_code": "OK", "error_message": ""}
        self.assertEqual(
            client.get("/v1/models/sms").json(),
            {"model_version_status": [{"version": "1000", "state": "AVAILABLE", "status": status}]},
        )
        found = client.get("/v1/models/squad/metadata").json()
        self.assertEqual(
            found["model_spec"], {"name": "squad", "signature_name": "", "version": "1000"}
        )
        signature = found["metadata"]["signature_def"]["signature_def"]["serving_default"]
        self.assertEqual(set(signature["inputs"]), {"question", "context"})
        self.assertEqual(signature["outputs"]["answer"]["dtype"], "DT_STRING")
        self.assertEqual(signature["outputs"]["probability"]["dtype"], "DT_FLOAT")

    def test_descriptions_are_built_once_for_each_change(self):
        client = self.client()
        for path, count in (("", len(served.TASKS)), ("/sms/metadata", 1), ("/squad/metadata", 1)):
            with mock.patch.object(messages, "summary", wraps=messages.summary) as summaries:
                texts = {client.get("/v1/models" + path).text for _ in range(3)}
                self.assertEqual((len(texts), summaries.call_count), (1, count))
        task_adapter.save(os.path.join(self.root, "sms/2000"), served.other("sms"))
        client.put("/v1/models/sms", json={"adapter": "sms"})
        client.delete("/v1/models/topics")
        found = {task["name"]: task for task in client.get("/v1/models").json()["models"]}
        self.assertEqual(set(found), set(served.TASKS) - {"topics"})
        self.assertEqual(found["sms"]["version"], "2000")
        spec = client.get("/v1/models/sms/metadata").json()["model_spec"]
        self.assertEqual(spec["version"], "2000")
        self.assert_error(client.get("/v1/models/topics/metadata"), 404)
        with mock.patch.object(rest_api, "_MAX_SHARED", 2):
            for name in ("stars", "sets", "squad", "stars"):
                spec = client.get(f"/v1/models/{name}/metadata").json()["model_spec"]
                self.assertEqual(spec["name"], name)

    def test_non_finite_scores_become_null(self):
        made = served.other("sms")
        scores = {"eval_loss": float("nan"), "eval_mse": float("inf"), "eval_accuracy": 0.5}
        description = dataclasses.replace(made.description, scores=scores)
        task_adapter.save(os.path.join(self.root, "odd"), made._replace(description=description))
        client = self.client()
        self.assertEqual(client.put("/v1/models/odd", json={"adapter": "odd"}).status_code, 201)
        found = {task["name"]: task for task in client.get("/v1/models").json()["models"]}
        odd = found["odd"]
        self.assertEqual(odd["scores"], {"eval_loss": None, "eval_mse": None, "eval_accuracy": 0.5})
        self.assertEqual((odd["kind"], odd["labels"]), ("classification", ["ham", "spam"]))

    def test_metrics_count_requests_instances_and_tasks(self):
        client = self.client()
        client.post("/v1/models/sms:predict", json={"instances": ["a", "the"]})
        client.post("/v1/models/nothing:predict", json={"instances": ["a"]})
        client.get("/nowhere")
        response = client.get("/metrics")
        self.assertStartsWith(response.headers["content-type"], "text/plain")
        for line in (
            'adapter_bert_requests_total{endpoint="predict",status="200"} 1.0',
            'adapter_bert_requests_total{endpoint="predict",status="404"} 1.0',
            'adapter_bert_requests_total{endpoint="none",status="404"} 1.0',
            'adapter_bert_instances_total{task="sms"} 2.0',
            'adapter_bert_request_seconds_count{endpoint="predict"} 2.0',
            'adapter_bert_task_seconds_count{task="sms"} 1.0',
            f"adapter_bert_tasks {len(self.tasks.served)}.0",
            "adapter_bert_queue_rows 0.0",
            "adapter_bert_tasks_in_memory 1.0",
        ):
            self.assertIn(line, response.text)
        self.assertNotIn("nothing", response.text)
        self.assertEqual(client.delete("/v1/models/sms").status_code, 200)
        self.assertNotIn('task="sms"', client.get("/metrics").text)

    def test_task_removed_during_prediction_leaves_no_metrics(self):
        client = None

        def remove_and_predict(rows, return_errors):
            client.delete("/v1/models/sms")
            return self.bank.predict(rows, return_errors)

        client = self.client(mock.Mock(self.bank, predict=remove_and_predict))
        response = client.post("/v1/models/sms:predict", json={"instances": ["a"]})
        self.assertEqual(response.status_code, 200, response.text)
        self.assertNotIn('task="sms"', client.get("/metrics").text)

    def put_slowly(self, headers, seconds):
        """Returns the status of a PUT whose body arrives after some seconds."""

        async def receive():
            await asyncio.sleep(seconds)
            return {"type": "http.request", "body": b"--b--", "more_body": False}

        async def send(message):
            sent.append(message)

        sent, path = [], "/v1/models/up"
        scope = {"type": "http", "method": "PUT", "path": path, "raw_path": path.encode()}
        scope.update(query_string=b"", client=("127.0.0.1", 1))
        scope["headers"] = [(b"host", b"127.0.0.1"), *headers.items()]
        asyncio.run(self.client(read_seconds=0.1).app(scope, receive, send))
        return sent[0]["status"]

    def test_body_that_arrives_late_gets_408(self):
        self.assertEqual(self.put_slowly({}, seconds=60), 408)
        form = {b"content-type": b"multipart/form-data; boundary=b"}
        for length, status in ((b"5", 408), (b"125000", 400)):  # The larger has 1.1 seconds.
            headers = {**form, b"content-length": length}
            self.assertEqual(self.put_slowly(headers, seconds=0.3), status)

    def test_pages_of_cors_origins_may_read_answers(self):
        origin = "https://example.org"
        wants = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "a"}
        url, allowed = "/v1/models/sms:predict", "access-control-allow-origin"
        api = self.api(None, "secret", True, "127.0.0.1", [origin])
        client = TestClient(api.application(), "http://127.0.0.1")
        wants["Access-Control-Request-Headers"] = "authorization, content-type"
        for asks, status in ((origin, 200), ("https://example.com", 400)):
            response = client.options(url, headers={"Origin": asks, **wants})
            self.assertEqual(response.status_code, status)
            self.assertEqual(response.headers.get(allowed), origin if status == 200 else None)
        wants["Access-Control-Request-Method"] = "DELETE"
        response = client.options(url, headers={"Origin": origin, **wants})
        self.assertEqual(response.status_code, 400)
        headers = {"Origin": origin, "Authorization": "Bearer secret"}
        response = client.post(url, json={"instances": [TEXT]}, headers=headers)
        self.assertEqual((response.status_code, response.headers[allowed]), (200, origin))
        self.assertIn("X-Adapter-Version", response.headers["access-control-expose-headers"])
        self.assertEqual(client.post(url, headers={"Origin": origin}).status_code, 401)

    def test_requests_are_logged_on_demand_and_refusals_always(self):
        for style in (None, "text", "json"):
            log, printed = request_log.RequestLog(style), io.StringIO()
            api = self.api(None, None, True, "127.0.0.1", (), log, max_queue_rows=1)
            client = TestClient(api.application(), "http://127.0.0.1")
            shown = contextlib.redirect_stdout(printed)
            with client, shown, self.assertLogs("absl", "WARNING") as logs:
                client.post("/v1/models/sms:predict", json={"instances": [TEXT]})
                with mock.patch.object(self.tasks.served, "lease", side_effect=Overloaded):
                    for _ in range(3):
                        client.post("/v1/models/sms:predict", json={"instances": [TEXT]})
                client.get("/healthz")
                time.sleep(1.2)
            self.assertLen(logs.output, 1)
            self.assertIn("3 × 503; the last one: POST /v1/models/sms:predict", logs.output[0])
            lines = printed.getvalue().splitlines()
            if style is None:
                self.assertEqual(lines, [])
                continue
            self.assertLen(lines, 5)
            if style == "text":
                pattern = (
                    r"20\d\d-\d\d-\d\dT[0-9:.+-]+ POST /v1/models/sms:predict task=sms version=1000"
                    r" adapter=[0-9a-f]{12} rows=1 milliseconds=[0-9.]+ status=200"
                )
                self.assertRegex(lines[0], f"^{pattern}$")
                continue
            records = list(map(json.loads, lines))
            self.assertEqual([r["status"] for r in records], [200, 503, 503, 503, 200])
            self.assertEqual(records[0]["version"], "1000")
            self.assertEqual(records[4]["request"], "GET /healthz")

    def test_entrance_answers_from_start_to_end(self):
        entrance = rest_api.Entrance()
        client = TestClient(entrance, "http://127.0.0.1")
        self.assertEqual(client.get("/healthz").json(), {"status": "alive"})
        for path in ("/readyz", "/v1/models"):
            self.assert_error(client.get(path), 503, "is loading")
        entrance.open(self.api().application())
        self.assertEqual(client.get("/readyz").json(), {"status": "ready"})
        entrance.drain()
        self.assert_error(client.get("/readyz"), 503, "is stopping")
        for path in ("/healthz", "/v1/models"):
            self.assertEqual(client.get(path).status_code, 200)

    def test_page_loads_no_external_resources(self):
        response = self.client(token="secret").get("/")
        self.assertStartsWith(response.headers["content-type"], "text/html")
        self.assertIn("default-src 'none'", response.headers["content-security-policy"])
        self.assertEqual(response.headers["x-content-type-options"], "nosniff")
        self.assertNotRegex(response.text, r"https?://|src=|@import|url\(")


class LoadingTest(RestApiTestCase):
    NAMES = ("sms", "topics", "stars", "sets")

    def setUp(self):
        super().setUp()
        self.empty()
        self.tasks = served.tasks_of(self.bank)
        self.tasks.folders._root = self.root
        self.tasks.start()

    def test_tasks_are_answered_before_all_are_loaded(self):
        client, adapters = self.client(), served.prepare()[1]
        sentence = "the server answers for 0 tasks; 4 are being loaded"
        self.assert_error(client.get("/readyz"), 503, sentence)
        self.assertEqual(client.get("/healthz").status_code, 200)
        instances = [{"task": name, "input_ids": ROW} for name in ("sms", "topics")]
        found = client.post("/v1/models:predict", json={"instances": instances}).json()
        for name, prediction in zip(("sms", "topics"), found["predictions"]):
            actual = list(prediction["probabilities"].values())
            self.assertAllClose(actual, self.own(adapters[name])["probabilities"], atol=1e-5)
        sentence = "the server answers for 2 tasks; 2 are being loaded"
        self.assert_error(client.get("/readyz"), 503, sentence)
        (state,) = client.get("/v1/models/stars").json()["model_version_status"]
        self.assertEqual((state["version"], state["state"]), ("1000", "AVAILABLE"))
        answer = client.put("/v1/models/sets", json={"adapter": "sets"})
        self.assertEqual(answer.status_code, 200)
        self.assertEqual(client.get("/readyz").json(), {"status": "ready"})
        self.assert_error(client.post("/v1/models/no:predict", json={"instances": [""]}), 404)

    def test_a_found_task_that_hangs_blocks_no_other_task(self):
        client, check, go = self.client(), self.bank.check, threading.Event()

        def hang(key):
            if key != "sms@1":
                go.wait(20)
            check(key)

        names = ("topics", "stars", "sets")
        with mock.patch.object(self.bank, "check", hang), concurrent.futures.ThreadPoolExecutor(
            9
        ) as pool:
            try:

                def ask(name):
                    url = f"/v1/models/{name}:predict"
                    return client.post(url, json={"instances": [{"input_ids": ROW}]}).status_code

                self.tasks._update("sms")
                for name in names:
                    self.tasks._update(name)
                hanging = [pool.submit(ask, name) for name in names * 2]
                self.assertEqual(ask("sms"), 200)
                self.assertFalse(any(future.done() for future in hanging))
            finally:
                go.set()
            self.assertEqual({future.result(20) for future in hanging}, {200})


class ChangesTest(RestApiTestCase):
    def predicted(self, client, name):
        response = client.post(f"/v1/models/{name}:predict", json={"instances": [TEXT]})
        return list(response.json()["predictions"][0]["probabilities"].values())

    def test_tasks_are_added_replaced_and_removed_by_folder(self):
        client, new = self.client(), served.other("sms")
        task_adapter.save(os.path.join(self.root, "later/7"), new)
        response = client.put("/v1/models/extra", json={"adapter": "later"})
        self.assertEqual((response.status_code, response.json()["version"]), (201, "7"))
        response = client.put("/v1/models/sms", json={"adapter": "later"})
        self.assertEqual((response.status_code, response.json()["version"]), (200, "7"))
        expected = self.own(new)["probabilities"]
        for name in ("extra", "sms"):
            self.assertAllClose(self.predicted(client, name), expected, 1e-5, 1e-5)
        response = client.delete("/v1/models/extra")
        self.assertEqual(response.json(), {"name": "extra", "version": "7"})
        self.assert_error(client.get("/v1/models/extra"), 404, "'extra'")
        self.assertTrue(os.path.exists(os.path.join(self.root, "later/7/adapter_config.json")))

    def test_uploads_are_validated_and_served(self):
        folder, adapter = os.path.join(self.root, "..", "made"), served.other("topics")
        task_adapter.save(folder, adapter)
        files = {}
        for name in task_adapter.FILES:
            with open(os.path.join(folder, name), "rb") as reader:
                files[name] = (name, reader.read())
        client = self.client()
        response = client.put("/v1/models/up", files=files)
        self.assertEqual(response.status_code, 201, response.text)
        expected = self.own(adapter)["probabilities"]
        self.assertAllClose(self.predicted(client, "up"), expected, 1e-5, 1e-5)
        response = client.put(
            "/v1/models/up", content=b"", headers={"content-type": "MULTIPART/Form-Data"}
        )
        self.assert_error(response, 400, "expected a form of the two files")
        one = {"adapter_config.json": files["adapter_config.json"]}
        response = client.put("/v1/models/up", files=one)
        self.assert_error(response, 400, "adapter.safetensors")
        broken = {"content-type": "multipart/form-data; boundary=b"}
        for body in (b"no boundary", b"--b\r\nno header\r\n\r\n", b"--b\r\n:\r\n\r\n--b--"):
            response = client.put("/v1/models/up", content=body, headers=broken)
            self.assert_error(response, 400, "expected a form of the two files")
        broken["content-type"] += "; charset=undefined"
        body = b'--b\r\nContent-Disposition: form-data; name="a"; filename="a"\r\n\r\n\r\n--b--\r\n'
        response = client.put("/v1/models/up", content=body, headers=broken)
        self.assert_error(response, 400, "expected a form of the two files")
        small = self.client(max_upload_bytes=1000)
        self.assert_error(small.put("/v1/models/up", files=files), 413, "1,000 bytes")
        with open(os.path.join(self.root, "taken"), "w"):  # A file blocks the task's folder.
            response = client.put("/v1/models/taken", files=files)
        self.assert_error(response, 507, "taken/1")

    def test_invalid_changes_are_refused(self):
        client = self.client()
        for name, body, status, part in (
            ("new", {"adapter": "../sms"}, 400, "--adapter_dir"),
            ("new", {"adapter": 5}, 400, "adapter"),
            ("new", {"folder": "sms"}, 400, "adapter"),
            ("-new", {"adapter": "sms"}, 400, "'-new'"),
            ("..%2Fnew", {"adapter": "sms"}, 404, ""),
        ):
            with self.subTest(body):
                self.assert_error(client.put(f"/v1/models/{name}", json=body), status, part)
        bare = self.client(may_change=False)
        for response in (
            bare.put("/v1/models/sms", json={"adapter": "sms/adapter"}),
            bare.delete("/v1/models/sms"),
        ):
            self.assert_error(response, 403, "--token")
        self.assertEqual(self.tasks.served.get("sms").version, served.VERSION)

    def test_a_change_that_hangs_ends_and_blocks_no_other_task(self):
        describe, go = task_adapter.describe_with_digest, threading.Event()
        for name in ("hangs", "other"):
            task_adapter.save(os.path.join(self.root, name), served.other("sms"))

        def hanging(folder, *arguments):
            if folder.endswith("/hangs"):
                go.wait(60)
            return describe(folder, *arguments)

        client, change = self.client(), {"adapter": "hangs"}
        # One event loop handles all requests.
        with client, mock.patch.object(task_adapter, "describe_with_digest", hanging):
            with mock.patch.object(registry, "CHANGE_SECONDS", 0.3):
                self.assert_error(client.put("/v1/models/sms", json=change), 504, "0.3 seconds")
                self.assert_error(client.delete("/v1/models/sms"), 504, "0.3 seconds")
            for response in (
                client.put("/v1/models/topics", json={"adapter": "other"}),
                client.put("/v1/models/new", json={"adapter": "other"}),
                client.delete("/v1/models/stars"),
            ):
                self.assertIn(response.status_code, (200, 201), response.text)
            with mock.patch.object(changes, "_MAX_CHANGES", 1):
                full = self.client()
            with full, concurrent.futures.ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(full.put, "/v1/models/sets", json=change)
                while not waiting.done() and full.delete("/v1/models/none").status_code != 503:
                    time.sleep(0.01)
                go.set()
                self.assertEqual(waiting.result().status_code, 200)

    def test_errors_of_changes_name_no_folder_outside_the_root(self):
        adapter, client = served.other("sms"), self.client()
        for name in ("damaged", "other/deep"):
            task_adapter.save(os.path.join(self.root, name), adapter)
            with open(os.path.join(self.root, name, "adapter.safetensors"), "ab") as writer:
                writer.write(b"more")
        outside = tempfile.mkdtemp()
        task_adapter.save(os.path.join(outside, "sms"), adapter)
        os.symlink(outside, os.path.join(self.root, "out"))
        files = {name: (name, b"{}") for name in task_adapter.FILES}
        with open(os.path.join(self.root, "taken"), "w"):
            for response, part in (
                (client.put("/v1/models/a", json={"adapter": "damaged"}), "a: damaged: "),
                (client.put("/v1/models/a", json={"adapter": "other/deep"}), "other/deep: "),
                (client.put("/v1/models/a", json={"adapter": "out/sms"}), "out/sms leads out"),
                (client.put("/v1/models/a", files=files), "a: a/1.partial: "),
                (client.put("/v1/models/taken", files=files), "taken/1 cannot be written"),
            ):
                self.assertIn(response.status_code, (400, 507))
                self.assert_error(response, response.status_code, part)
                self.assertNotRegex(response.text, f"{self.root}|{outside}|: /")

    def test_a_change_without_memory_gets_503(self):
        client, change = self.client(), {"adapter": "sms/adapter"}
        with mock.patch.object(memory, "free", return_value=(100.0, "ulimit -v")):
            response = client.put("/v1/models/new", json=change)
            self.assert_error(response, 503, "new: sms/adapter: too little memory")
        self.assertEqual(client.put("/v1/models/new", json=change).status_code, 201)

    def test_host_must_name_this_machine_without_token(self):
        here, everywhere = self.client(), self.client(address="0.0.0.0")
        own_name = socket.gethostname()
        for host, from_here, from_elsewhere in (
            ("127.0.0.1:8501", True, True),
            ("localhost", True, True),
            ("[::1]:8501", True, True),
            ("192.0.2.1:8501", False, True),
            (own_name + ":8501", own_name == "localhost", True),
            ("example.org:8501", False, False),
            ("127.0.0.1.example.org", False, False),
            ("[", False, False),
            ("", False, False),
        ):
            for client, is_allowed in ((here, from_here), (everywhere, from_elsewhere)):
                with self.subTest(host):
                    response = client.get("/metrics", headers={"Host": host})
                    if is_allowed:
                        self.assertEqual(response.status_code, 200, response.text)
                    else:
                        self.assert_error(response, 403, "--token")
        foreign = {"Host": "example.org"}
        self.assert_error(here.delete("/v1/models/sms", headers=foreign), 403, "--token")
        foreign["Authorization"] = "Bearer secret"
        response = self.client(token="secret").delete("/v1/models/sms", headers=foreign)
        self.assertEqual(response.status_code, 200)

    def test_trailing_slash_gets_404_instead_of_redirect(self):
        client = self.client(token="secret")
        headers = {"Host": "example.org", "Authorization": "Bearer secret"}
        for path in ("/v1/models/", "/healthz/"):
            response = client.get(path, headers=headers, follow_redirects=False)
            self.assertEqual(response.status_code, 404)

    def test_large_headers_get_431_before_token_check(self):
        client = self.client(token="secret")
        for size, status in ((60000, 401), (66000, 431)):
            for headers in (
                {"x-a": "b" * size},
                {f"x-{n}": "b" * (size // 100) for n in range(99)},
            ):
                self.assert_error(client.get("/v1/models", headers=headers), status)

    def test_long_change_without_upload_gets_413(self):
        client, url = self.client(), "/v1/models/new"
        body = b"[" + b"[]," * 30000 + b"[]]"
        self.assert_error(client.put(url, content=body), 413, "65,536 bytes")
        self.assert_error(client.put(url, content=iter([body])), 413, "65,536 bytes")
        self.assert_error(client.put(url, content=body[:60000]), 400, "JSON")

    def test_upload_gets_507_if_disk_is_full(self):
        files = {name: (name, b"x" * (2 << 20)) for name in task_adapter.FILES}
        no_room = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with mock.patch.object(tempfile, "TemporaryFile", side_effect=no_room):
            response = self.client().put("/v1/models/up", files=files)
        self.assert_error(response, 507, "temporary file (No space left on device)")
        self.assertFalse(os.path.exists(os.path.join(self.root, "up")))

    def test_answers_stay_correct_while_tasks_are_replaced(self):
        adapters = [served.other("sms", seed) for seed in (100, 101)]
        for index, adapter in enumerate(adapters):
            task_adapter.save(os.path.join(self.root, f"new{index}"), adapter)
        versions = [served.prepare()[1]["sms"], *adapters]
        expected = [self.own(adapter)["probabilities"] for adapter in versions]
        client, done = self.client(), threading.Event()

        def ask():
            found = []
            while not done.is_set():
                found.append(self.predicted(client, "sms"))
            return found

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(ask) for _ in range(4)]
            for turn in range(10):
                response = client.put("/v1/models/sms", json={"adapter": f"new{turn % 2}"})
                self.assertEqual(response.status_code, 200, response.text)
            done.set()
            answers = [answer for future in asking for answer in future.result()]
        for answer in answers:
            near = [np.allclose(answer, one, 1e-5, 1e-5) for one in expected]
            self.assertEqual(near.count(True), 1)
        self.assertAllClose(self.predicted(client, "sms"), expected[2], 1e-5, 1e-5)

    def test_requests_except_open_paths_need_the_token(self):
        client = self.client(token="secret")
        for path in ("/", "/healthz", "/readyz"):
            self.assertEqual(client.get(path).status_code, 200)
        for headers in ({}, {"Authorization": "secret"}, {"Authorization": "Bearer secre"}):
            for path in ("/v1/models", "/metrics", "/nowhere"):
                response = client.get(path, headers=headers)
                self.assert_error(response, 401, "Authorization: Bearer")
                self.assertEqual(response.headers["www-authenticate"], "Bearer")
        self.assert_error(client.post("/", headers={"Host": "["}), 405, "/")
        good = {"Authorization": "Bearer secret"}
        self.assertEqual(client.get("/v1/models", headers=good).status_code, 200)
