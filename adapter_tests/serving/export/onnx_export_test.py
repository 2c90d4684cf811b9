"""Tests of onnx_export.py: exported files, run in a process without this project."""

import itertools
import json
import os
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

pytest.importorskip("onnxruntime", reason="Python 3.7 has no ONNX Runtime of today")

# isort: split
import onnx

import modeling
from adapter_bert.formats import onnx_backbone
from adapter_bert.serving.export import onnx_export
from adapter_bert.serving.inference import onnx_runtime
from adapter_bert.shell.errors import UserError
from adapter_tests.support import alone, own_models, tiny

# Runs a file on the inputs in stdin with ONNX Runtime's defaults. Writes the outputs as JSON.
_RUN = """
import json, sys
for name in ("tensorflow", "onnx", "scipy"):
    sys.modules[name] = None
import numpy as np, onnxruntime
path, inputs = json.load(sys.stdin)
session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
inputs = {name: np.array(value) for name, value in inputs.items()}
values = session.run(None, inputs)
names = [output.name for output in session.get_outputs()]
metadata = session.get_modelmeta().custom_metadata_map
assert not any(name.startswith(("adapter_bert", "modeling")) for name in sys.modules)
json.dump([{name: value.tolist() for name, value in zip(names, values)}, metadata], sys.stdout)
"""
KINDS = {
    "labels": {"labels": ("no", "yes", "perhaps")},
    "sets": {"kind": "multilabel", "labels": ("x", "y")},
    "number": {"kind": "regression", "labels": ()},
    "span": {"kind": "span", "labels": ()},
    "tags": {"kind": "tagging", "labels": ("O", "B-x", "I-x")},
}
ROWS = [[2, 7, 9, 11, 3], [2, 8, 3], [2, 6, 9, 3]]


class OnnxExportTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.root = tempfile.mkdtemp(dir=tf.test.get_temp_dir())
        cls.bert = tiny.write_bert(os.path.join(cls.root, "bert"), initializer_range=0.4)
        cls.models = own_models.SingleTaskModels(cls.bert)

    def write(self, adapters, precision="float32"):
        prefix = os.path.join(self.bert, "bert_model.ckpt")
        backbone = onnx_backbone.load(prefix, tiny.config())
        return onnx_export.write(
            tempfile.mkdtemp(dir=self.root),
            tiny.config(),
            backbone.tensors,
            adapters,
            os.path.join(self.bert, "vocab.txt"),
            precision,
        )

    def outputs(self, path, rows=ROWS, **inputs):
        """Returns (outputs by name, metadata) of rows, padded to the longest."""
        return alone.call(_RUN, path, {**own_models.padded(rows), **inputs})

    def test_each_kind_of_task_is_exported_with_equal_outputs(self):
        for seed, changes in enumerate(
            (
                {"labels": ("no", "yes", "perhaps")},
                {"adapter": modeling.AdapterConfig(3, "swish", sites="attention")},
                {"adapter": modeling.AdapterConfig(3, layers=(1,), interaction="multiply")},
                {"kind": "multilabel", "labels": ("x", "y", "z")},
                {"kind": "regression", "labels": ()},
                {"kind": "span", "labels": ()},
                {"method": "layer_norm"},
            )
        ):
            scores = {"eval_loss": float("nan"), "eval_f1": 0.5}
            adapter = own_models.build_task_adapter(self.bert, seed, scores=scores, **changes)
            path = self.write({"task": adapter})
            found, metadata = self.outputs(path)
            for index, row in enumerate(ROWS):
                expected = self.models.predictions(adapter, row)
                self.assertEqual(set(found), set(expected))
                for name, value in expected.items():
                    actual = np.array(found[name][index])
                    if name.endswith("_logits"):
                        actual = actual[: len(row)]
                    self.assertAllClose(actual, value, atol=1e-5, msg=changes)
            self.assertEqual(
                os.path.relpath(path, self.root).split(os.sep)[1:], ["1", "model.onnx"]
            )
            description = json.loads(metadata["tasks"])["task"]
            self.assertEqual(tuple(description["labels"]), adapter.description.labels)
            self.assertEqual(description["max_seq_length"], 16)
            self.assertEqual(description["do_lower_case"], True)
            self.assertEqual(description["scores"], {"eval_loss": None, "eval_f1": 0.5})
            with open(os.path.join(os.path.dirname(path), "tasks.json")) as reader:
                self.assertEqual(json.load(reader)["task"], description)
            with open(os.path.join(os.path.dirname(path), "vocab.txt")) as reader:
                self.assertEqual(reader.read().split(), tiny.VOCABULARY)

    def test_exported_tagger_predicts_equal_tags(self):
        adapter = own_models.build_task_adapter(self.bert, kind="tagging", labels=("O", "B-x"))
        (found, _) = self.outputs(self.write({"tags": adapter}))
        for logits, row in zip(found["logits"], ROWS):
            tags = np.argmax(logits, -1)[: len(row)]
            self.assertAllEqual(tags, self.models.predictions(adapter, row)["tag_ids"])

    def test_tasks_of_different_kinds_share_one_file(self):
        adapters = [
            own_models.build_task_adapter(self.bert, seed, **changes)
            for seed, changes in enumerate(
                (
                    {"adapter": modeling.AdapterConfig(3)},
                    {"kind": "span", "labels": (), "adapter": modeling.AdapterConfig(7)},
                    {"kind": "regression", "labels": (), "method": "layer_norm"},
                )
            )
        ]
        tasks = dict(zip(("pairs", "answers", "numbers"), adapters))
        path = self.write(tasks)
        with open(os.path.join(os.path.dirname(path), "tasks.json")) as reader:
            names = list(json.load(reader))
        asked = ["answers", "pairs", "numbers"]
        found, metadata = self.outputs(path, task_ids=[names.index(name) for name in asked])
        self.assertEqual(list(json.loads(metadata["tasks"])), names)
        span, pair, number = (
            self.models.predictions(tasks[name], row) for name, row in zip(asked, ROWS)
        )
        tokens = np.array(found["token_logits"][0])
        self.assertAllClose(tokens[:, 0], span["start_logits"], atol=1e-5)
        self.assertAllClose(tokens[:, 1], span["end_logits"], atol=1e-5)
        odds = np.exp(found["logits"][1])
        self.assertAllClose(odds / odds.sum(), pair["probabilities"], atol=1e-5)
        self.assertAllClose(found["logits"][2], [number["prediction"], 0.0], atol=1e-5)

    def sessions(self):
        """Yields (path, session, two rows of inputs) of files of each kind, of one and of three."""
        made = {
            name: own_models.build_task_adapter(self.bert, seed, **changes)
            for seed, (name, changes) in enumerate(KINDS.items())
        }
        groups = (*zip(KINDS), ("labels", "number", "span"), ("span", "tags"))
        for names, precision in zip(groups, itertools.cycle(("float32", "int8"))):
            path = self.write({name: made[name] for name in names}, precision)
            session = onnx_runtime.onnxruntime.InferenceSession(path)
            mask = np.array([[1, 1, 1], [1, 1, 0]])
            inputs = {"input_ids": mask * 7, "input_mask": mask, "segment_ids": mask * [0, 0, 1]}
            if len(names) > 1:
                inputs["task_ids"] = np.array([1, 0])
            yield path, session, inputs

    def test_numbers_out_of_range_fail(self):
        words, types = len(tiny.VOCABULARY), tiny.config().type_vocab_size
        wrong = {
            "input_ids": (-1, -words, words, np.iinfo(np.int64).min),
            "segment_ids": (-1, -types, types),
            "input_mask": (-1, -2, 2, 1 << 32),
            "task_ids": (-1, -2, 3),
        }
        for path, session, inputs in self.sessions():
            session.run(None, inputs)
            for name in inputs:
                for value in wrong[name]:
                    changed = inputs[name].copy()
                    changed.flat[1] = value
                    with self.assertRaisesRegex(Exception, "out of data bounds", msg=(path, name)):
                        session.run(None, {**inputs, name: changed})
            for number in (0, 3, 4) if "task_ids" in inputs else ():  # Two rows want two.
                with self.assertRaisesRegex(Exception, "broadcast"):
                    session.run(None, {**inputs, "task_ids": np.zeros([number], np.int64)})
            double = {name: np.concatenate([value, value]) for name, value in inputs.items()}
            if "task_ids" in inputs:
                with self.assertRaisesRegex(Exception, "broadcast"):
                    session.run(None, {**double, "task_ids": inputs["task_ids"]})

    def test_zero_rows_get_zero_rows(self):
        for path, session, inputs in self.sessions():
            outputs = session.get_outputs()
            for positions in (3, 0, 1, tiny.config().max_position_embeddings):
                empty = {
                    name: np.zeros([0, positions][: value.ndim], np.int64)
                    for name, value in inputs.items()
                }
                for output, value in zip(outputs, session.run(None, empty)):
                    sizes = {"B": 0, "S": positions}
                    expected = [sizes.get(size, size) for size in output.shape]
                    self.assertEqual(list(value.shape), expected, path)

    def test_files_state_their_shapes(self):
        for path, session, inputs in self.sessions():
            onnx.checker.check_model(path, full_check=True)
            for output, value in zip(session.get_outputs(), session.run(None, inputs)):
                self.assertEqual(
                    [{"B": 2, "S": 3}.get(size, size) for size in output.shape], list(value.shape)
                )

    def test_int8_probabilities_are_close_to_float32(self):
        adapter = own_models.build_task_adapter(self.bert)
        exact, rounded = (
            self.outputs(self.write({"task": adapter}, precision))[0]["probabilities"]
            for precision in ("float32", "int8")
        )
        self.assertAllClose(exact, rounded, atol=0.2)
        self.assertNotAllClose(exact, rounded, atol=1e-6)

    def test_model_above_the_onnx_size_limit_is_refused(self):
        adapter = own_models.build_task_adapter(self.bert)
        limit = mock.patch.object(onnx_export, "_MAX_BYTES", 1000)
        with limit, self.assertRaisesRegex(UserError, "exceeds 2 GB"):
            self.write({"task": adapter})

    def test_tasks_with_different_activations_are_refused(self):
        adapters = {
            name: own_models.build_task_adapter(
                self.bert, adapter=modeling.AdapterConfig(4, activation)
            )
            for name, activation in (("a", "gelu"), ("b", "relu"))
        }
        with self.assertRaisesRegex(UserError, "share a model: export their tasks separately"):
            self.write(adapters)
