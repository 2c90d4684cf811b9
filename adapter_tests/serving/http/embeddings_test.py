"""Tests of embeddings.py: compares the server's vectors with the output of extract_features.py."""

import base64
import os

import numpy as np
import pytest

pytest.importorskip("starlette", reason="requirements-serving.txt is not installed")
pytest.importorskip("onnxruntime", reason="Python 3.7 has no ONNX Runtime of today")

# isort: split
from starlette.testclient import TestClient

import extract_features
from adapter_bert.serving.http import embeddings
from adapter_tests.support import command_lines, served

TEXTS = ["The dog sees a big bird.", "A cat", "the small dog likes the big old cat " * 4]


class EmbeddingsTest(served.ServedTestCase):
    def setUp(self):
        super().setUp()
        application = self.api().application()
        self.client = TestClient(application, "http://127.0.0.1", raise_server_exceptions=False)

    def post(self, **body):
        response = self.client.post("/v1/embeddings", json=body)
        self.assertEqual(response.status_code, 200, response.text)
        return response.json()

    def vectors(self, **body):
        """Returns the vectors of an answer, after a check of its form."""
        answer = self.post(**body)
        self.assertEqual((answer["object"], answer["model"]), ("list", body["model"]))
        items = answer["data"]
        self.assertEqual([item["index"] for item in items], list(range(len(items))))
        self.assertEqual({item["object"] for item in items}, {"embedding"})
        return [item["embedding"] for item in items]

    def extracted(self, model, pooling):
        """Returns what extract_features.py writes for the texts: [N, layers, D]."""
        bert, _ = served.prepare()
        source, output = (os.path.join(self.root, name) for name in ("texts.txt", "vectors.npy"))
        with open(source, "w") as writer:
            writer.writelines(text + "\n" for text in TEXTS)
        flags = [f"--bert={bert}", f"--input_file={source}", f"--output_file={output}"]
        flags += ["--layers=0,-1", f"--pooling={pooling}", "--max_seq_length=16"]
        if model != embeddings.BERT:
            flags.append(f"--adapter={self.root}/{model}/adapter")
        extract_features.run(command_lines.parsed(extract_features.define_flags, *flags))
        return np.load(output)

    def test_vectors_are_those_of_extract_features(self):
        for model in ("sms", "topics", "squad", embeddings.BERT):
            for pooling in ("mean", "cls"):
                expected = self.extracted(model, pooling)
                for index, layer in enumerate((0, -1)):
                    with self.subTest(f"{model} {pooling} {layer}"):
                        texts = [text[:60] for text in TEXTS] if model == embeddings.BERT else TEXTS
                        found = self.vectors(model=model, input=texts, layer=layer, pooling=pooling)
                        rows = slice(2) if model == embeddings.BERT else slice(3)
                        self.assertAllClose(found[rows], expected[rows, index], 0, 1e-5)

    def test_formats_of_clients_are_known(self):
        (plain,) = self.vectors(model="sms", input="a dog")
        whole = {"encoding_format": "base64", "dimensions": len(plain), "user": "me"}
        (coded,) = self.vectors(model="sms", input=["a dog"], **whole)
        self.assertAllClose(np.frombuffer(base64.b64decode(coded), "<f4"), plain, 0, 1e-6)
        usage = self.post(model="sms", input=["a dog", "cats"])["usage"]
        self.assertEqual(usage["prompt_tokens"], usage["total_tokens"])
        self.assertEqual(self.post(model="sms", input="a dog")["usage"]["total_tokens"], 4)

    def test_batches_mix_vectors_and_predictions(self):
        """BERT without an adapter needs no task, and shares the tasks' session."""
        rows = self.bank_rows()
        together = self.bank.predict(rows)
        for row, found in zip(rows, together):
            (alone,) = self.bank.predict([row])
            self.assertEqual(found.keys(), alone.keys())
            for name in found:
                self.assertAllClose(found[name], alone[name], 1e-5, 1e-5)
        self.assertLen(self.bank._engine.architectures(), 1)

    def bank_rows(self):
        features = embeddings.bank.Features
        (sms, squad) = (self.tasks.served.get(name).key for name in ("sms", "squad"))
        tasks = [(sms, None), (None, features(0, "cls")), (squad, None), (sms, features())]
        return [
            embeddings.bank.Row(
                task, [2, 5, 6, 7 + index, 3][index % 2 :], [0] * (5 - index % 2), each
            )
            for index, (task, each) in enumerate(tasks)
        ]

    def test_invalid_requests_are_refused(self):
        for body, part in (
            ({"input": "a"}, "expected {"),
            ({"model": "sms", "input": [1, 2]}, "input[0]: text is not a string"),
            ({"model": "sms", "input": []}, "found 0 texts; expected 1 to 128"),
            ({"model": "sms", "input": "a", "layer": 9}, "no layer 9"),
            ({"model": "sms", "input": "a", "layer": 1.5}, "layer: expected a whole number"),
            ({"model": "sms", "input": "a", "pooling": "max"}, "expected a pooling, mean or cls"),
            ({"model": "sms", "input": "a", "dimensions": 3}, "dimensions: expected"),
            ({"model": "sms", "input": "a", "encoding_format": "int8"}, "float or base64"),
            ({"model": "sms", "input": "a", "more": 1}, "expected {"),
        ):
            response = self.client.post("/v1/embeddings", json=body)
            self.assertEqual(response.status_code, 400, response.text)
            self.assertIn(part, response.json()["error"])
        response = self.client.post("/v1/embeddings", json={"model": "none", "input": "a"})
        self.assertEqual(response.status_code, 404)
