"""Compares each variant of the adapter in all forms that answer with the graph that trained it."""

import contextlib
import dataclasses
import io
import os
import tempfile

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

pytest.importorskip("onnxruntime", reason="Python 3.7 has no ONNX Runtime of today")

# isort: split
import convert_checkpoint
import modeling
from adapter_bert.formats import onnx_backbone
from adapter_bert.model import configs
from adapter_bert.serving.export import onnx_export, saved_model
from adapter_bert.serving.inference import onnx_runtime
from adapter_bert.serving.inference.bank import AdapterBank, Row
from adapter_tests.support import own_models, tiny

A = modeling.AdapterConfig
# Values of each field. A field of `configs.VARIANTS` that is not here fails: add values.
VALUES = {**configs.VARIANTS, "depth": (2,), "scaling": (0.5,)}
VARIANTS = {
    "default": A(4),
    **{
        f"{name} {value}": A(4, **{name: value})
        for name in VALUES
        for value in VALUES[name]
        if value != getattr(A(), name)
    },
    # AdapterHub's layouts.
    "double_seq_bn": A(4, "swish"),
    "seq_bn": A(4, "relu", sites="feed_forward", placement="normalized"),
    "par_bn": A(4, "relu", sites="feed_forward", placement="parallel", scaling=4.0),
    # Settings that interact.
    "deep layer": A(5, "elu", normalization="layer", depth=3, layers=(0,)),
    "deep batch": A(3, "sigmoid", normalization="batch", depth=3, placement="parallel"),
    "multiply parallel": A(4, interaction="multiply", placement="parallel", scaling=2.0),
    "multiply normalized": A(4, interaction="multiply", placement="normalized"),
    "linear": A(4, "linear"),
    "size 1": A(1, depth=2),
    "whole scaling": A(4, scaling=2),
}
# Those whose mixed batches also have an adapter of another size and in other layers.
SIZED = ("seq_bn", "par_bn", "deep layer", "deep batch", "multiply normalized", "size 1")
EXPORTED = (*SIZED, "default", "sites attention", "scaling 0.5")  # They have each of `VALUES`.
ROWS = [[2, 7, 9, 11, 3], [2, 8, 3], [2, 6, 9, 3]]
GOLDENS = os.path.join(os.path.dirname(os.path.abspath(own_models.__file__)), "adapterhub")


def convert(*arguments):
    with contextlib.redirect_stdout(io.StringIO()):
        convert_checkpoint.main(list(arguments))


def run_saved_model(path, inputs):
    """Returns the outputs of a SavedModel's signature of ids, a dict of arrays."""
    with tf.Graph().as_default(), tf.Session() as session:
        model = tf.saved_model.loader.load(session, ["serve"], path)
        signature = model.signature_def["serving_default"]
        feeds = {signature.inputs[name].name: value for name, value in inputs.items()}
        return session.run({k: info.name for k, info in signature.outputs.items()}, feeds)


class AdapterHubTest(tf.test.TestCase):
    def test_banks_give_the_packages_predictions(self):
        """Compares with AdapterHub's package; see `support/make_adapterhub_goldens.py`."""
        root = tempfile.mkdtemp(dir=self.get_temp_dir())
        bert = os.path.join(root, "bert")
        convert("from_huggingface", os.path.join(GOLDENS, "bert"), bert)
        config = modeling.BertConfig.from_json_file(os.path.join(bert, "bert_config.json"))
        bank = AdapterBank(config, os.path.join(bert, "bert_model.ckpt"))
        self.addCleanup(bank.close)
        batch = np.load(os.path.join(GOLDENS, "batch.npz"))
        rows, expected = [], []
        for name in ("houlsby", "pfeiffer", "parallel", "static_head"):
            source, folder = os.path.join(GOLDENS, name), os.path.join(root, name)
            convert("from_adapterhub", source, bert, folder, "--max_seq_length=16")
            bank.add(name, folder)
            odds = np.exp(np.load(os.path.join(source, "logits.npy")))
            expected += list(odds / odds.sum(-1, keepdims=True))
            for ids, mask, segments in zip(*(batch[field] for field in batch.files)):
                length = int(mask.sum())
                rows.append(Row(name, ids[:length].tolist(), segments[:length].tolist()))
        for row, value, result in zip(rows, expected, bank.predict(rows)):
            self.assertAllClose(result["probabilities"], value, atol=1e-5, rtol=0, msg=row.task)


@pytest.mark.slow
class ServedVariantsTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.root = tempfile.mkdtemp(dir=tf.test.get_temp_dir())
        cls.bert = tiny.write_bert(os.path.join(cls.root, "bert"), initializer_range=0.4)
        cls.prefix = os.path.join(cls.bert, "bert_model.ckpt")
        cls.models = own_models.SingleTaskModels(cls.bert)
        cls.tasks = {
            name: own_models.build_task_adapter(cls.bert, seed, adapter=adapter)
            for seed, (name, adapter) in enumerate(VARIANTS.items())
        }
        cls.without_adapters = own_models.build_task_adapter(
            cls.bert, 99, method="layer_norm", labels=("a", "b", "c")
        )

    @classmethod
    def own(cls, adapter, row):
        """Returns the probabilities of the training's graph."""
        return cls.models.predictions(adapter, row)["probabilities"]

    def mates(self, name):
        """Returns tasks of one architecture: the variant, another adapter, and none, by name."""
        settings = VARIANTS[name]
        if name in SIZED:
            changes = {"sites": "both", "layers": (1,), "init_scale": 0.1}
            if settings.normalization != "layer":
                changes["size"] = 2 * settings.size + 1
            settings = dataclasses.replace(settings, **changes)
        other = own_models.build_task_adapter(self.bert, 100, adapter=settings)
        return {name: self.tasks[name], "other": other, "without": self.without_adapters}

    def assert_probabilities(self, actual, adapter, row, message):
        expected = self.own(adapter, row)
        self.assertAllClose(actual[: len(expected)], expected, atol=1e-5, rtol=0, msg=message)

    def assert_answers(self, tasks):
        """Checks a bank's answers to all `ROWS` for all tasks in one batch; returns the bank."""
        bank = AdapterBank(tiny.config(), self.prefix)
        self.addCleanup(bank.close)
        for name, adapter in tasks.items():
            bank.add(name, adapter)
        asked = [(name, row) for row in ROWS for name in tasks]
        results = bank.predict([Row(name, row, own_models.segments(row)) for name, row in asked])
        for (name, row), result in zip(asked, results):
            self.assert_probabilities(result["probabilities"], tasks[name], row, name)
        return bank

    def test_variants_change_the_predictions(self):
        """Else the comparisons would show nothing."""
        values = [self.own(adapter, ROWS[0])[0] for adapter in self.tasks.values()]
        self.assertGreater(np.ptp(values), 0.2)

    def test_banks_match_the_training_graph(self):
        self.assert_answers(self.tasks)
        for name in VARIANTS:
            mates = self.mates(name)
            self.assert_answers({name: mates[name]})
            bank = self.assert_answers(mates)
            self.assertEqual(len(bank._engine._sessions), 1, name)

    def test_onnx_files_match_the_training_graph(self):
        backbone = onnx_backbone.load(self.prefix, tiny.config()).tensors
        vocabulary = os.path.join(self.bert, "vocab.txt")
        for name in VARIANTS:
            mates = dict(sorted(self.mates(name).items()))
            for tasks in ({name: mates[name]}, mates):
                folder = tempfile.mkdtemp(dir=self.root)
                path = onnx_export.write(folder, tiny.config(), backbone, tasks, vocabulary)
                session = onnx_runtime.onnxruntime.InferenceSession(path)
                inputs = {k: np.array(v) for k, v in own_models.padded(ROWS).items()}
                if len(tasks) == 1:
                    (values,) = session.run(["probabilities"], inputs)
                else:
                    (logits,) = session.run(["logits"], {**inputs, "task_ids": np.arange(3)})
                    num_labels = [len(adapter.description.labels) for adapter in mates.values()]
                    values = [
                        np.exp(row[:count]) / np.exp(row[:count]).sum()
                        for row, count in zip(logits, num_labels)
                    ]
                for adapter, row, value in zip([*tasks.values()] * 3, ROWS, values):
                    self.assert_probabilities(value, adapter, row, [name, *tasks])

    def test_saved_models_match_the_training_graph(self):
        for field, values in VALUES.items():
            self.assertContainsSubset(values, {getattr(VARIANTS[name], field) for name in EXPORTED})
        for name in EXPORTED:
            mates = self.mates(name)
            is_alone = name in ("seq_bn", "deep batch")  # Without tables, it is the same graph.
            for tasks in ({name: mates[name]}, mates) if is_alone else (mates,):
                folder = tempfile.mkdtemp(dir=self.root)
                path = saved_model.write(folder, tiny.config(), self.prefix, tasks)
                inputs = own_models.padded(ROWS)
                if len(tasks) > 1:
                    inputs["task"] = list(tasks)
                values = run_saved_model(path, inputs)["probabilities"]
                for adapter, row, value in zip([*tasks.values()] * 3, ROWS, values):
                    self.assert_probabilities(value, adapter, row, [name, *tasks])
