"""Tests that new kinds of tasks are served once they are registered, with two toy kinds."""

import os
import tempfile

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

pytest.importorskip("onnxruntime", reason="Python 3.7 has no ONNX Runtime of today")

# isort: split
from adapter_bert.serving.export import saved_model
from adapter_bert.serving.inference import bank, request_texts
from adapter_bert.shell.errors import UserError
from adapter_tests.support import own_models, tiny
from adapter_tests.support.toy_kinds import Marks, Ordinal, registered


class NewKindTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.root = tempfile.mkdtemp(dir=tf.test.get_temp_dir())
        cls.bert = tiny.write_bert(os.path.join(cls.root, "bert"), initializer_range=0.4)
        cls.checkpoint = os.path.join(cls.bert, "bert_model.ckpt")

    def setUp(self):
        super().setUp()
        kinds = registered(Ordinal(), Marks())
        kinds.__enter__()
        self.addCleanup(kinds.__exit__, None, None, None)
        self.adapters = {
            "news": own_models.build_task_adapter(self.bert, 0, labels=("a", "b", "c", "d")),
            "squad": own_models.build_task_adapter(self.bert, 1, kind="span", labels=()),
            "grades": own_models.build_task_adapter(
                self.bert, 2, kind="ordinal", labels=("bad", "fair", "good")
            ),
            "marks": own_models.build_task_adapter(self.bert, 3, kind="marks", labels=()),
        }
        # "marks" is the network of "squad" with only its first output.
        squad, marks = (self.adapters[name].tensors for name in ("squad", "marks"))
        for name in marks:
            head = name.replace("toy/marks/", "cls/squad/")
            marks[name] = squad[name] if head == name else squad[head][:1]
        grades = self.adapters["grades"].tensors
        grades["output_weights"][:] = 0.0
        grades["output_bias"][:] = 10.0, -10.0

    def make_bank(self):
        adapter_bank = bank.AdapterBank(tiny.config(), self.checkpoint)
        self.addCleanup(adapter_bank.close)
        for name, adapter in self.adapters.items():
            adapter_bank.add(name, adapter)
        return adapter_bank

    def texts(self, name):
        tokenizers = request_texts.Tokenizers(os.path.join(self.bert, "vocab.txt"))
        encoding = request_texts.TextEncoding(tiny.config(), tokenizers, 100)
        return request_texts.TaskTexts(self.adapters[name].description, encoding, "Task:")

    def test_requests_of_new_kinds_are_answered(self):
        adapter_bank = self.make_bank()
        asked = {name: self.texts(name).encode("a dog sees a cat") for name in ("grades", "marks")}
        ((ids, segments),) = asked["marks"].rows
        rows = [bank.Row(name, ids, segments) for name in self.adapters]
        outputs = dict(zip(self.adapters, adapter_bank.predict(rows)))
        self.assertEqual(asked["grades"].decode([outputs["grades"]]), {"level": "fair"})
        expected = outputs["squad"]["start_logits"]
        self.assertAllClose(outputs["marks"]["mark_logits"], expected, atol=1e-5)
        marked = {"marked": np.flatnonzero(expected > 0).tolist()}
        self.assertEqual(asked["marks"].decode([outputs["marks"]]), marked)
        by_ids = self.texts("marks").encode({"input_ids": ids, "segment_ids": segments})
        self.assertEqual(by_ids.decode([outputs["marks"]]), marked)
        words = ["a", "dog", "sees", "a", "cat"]
        self.assertEqual(self.texts("marks").encode({"words": words}).rows, [(ids, segments)])
        for instance, expected in (
            (
                {"text": "a", "text_b": "dog"},
                "expected text or words, or input_ids and segment_ids",
            ),
            ({"text": "a", "words": words}, "expected text or words, or input_ids and segment_ids"),
            ({"words": "a"}, "words is not a list of strings"),
            ({"words": ["a", 1]}, "words is not a list of strings"),
            ({"words": ["a"] * 51}, "words has 102 characters; expected at most 100"),
        ):
            with self.assertRaisesRegex(UserError, expected):
                self.texts("marks").encode(instance)
        with self.assertRaisesRegex(UserError, "found words; expected text"):
            self.texts("grades").encode({"words": words})

    def test_saved_model_serves_new_kinds(self):
        if tf.__version__.startswith("1."):
            self.skipTest("SavedModels are written by TensorFlow 2 alone.")
        path = saved_model.write(self.root, tiny.config(), self.checkpoint, self.adapters)
        ids = [[2, 7, 9, 11, 3]] * 4
        inputs = {
            "input_ids": ids,
            "input_mask": np.ones_like(ids).tolist(),
            "segment_ids": np.zeros_like(ids).tolist(),
            "task": list(self.adapters),
        }
        with tf.Graph().as_default(), tf.Session() as session:
            loaded = tf.saved_model.load(session, ["serve"], path)
            signature = loaded.signature_def["serving_default"]
            feed = {signature.inputs[name].name: value for name, value in inputs.items()}
            fetches = {name: info.name for name, info in signature.outputs.items()}
            found = session.run(fetches, feed)
        self.assertAllEqual(found["level"], [0, 0, 1, 0])
        self.assertAllEqual(found["label"][1:], [b""] * 3)
        self.assertAllClose(found["probabilities"].sum(1), [1, 0, 0, 0])
        self.assertAllClose(found["mark_logits"][3], found["start_logits"][1], atol=1e-5)
        self.assertAllEqual(found["mark_logits"][:3], np.zeros([3, 5]))
        (marks,) = self.make_bank().predict([bank.Row("marks", ids[0], [0] * 5)])
        self.assertAllClose(found["mark_logits"][3], marks["mark_logits"], atol=1e-4)
