"""Compares each variant of the adapter in all forms that answer with the graph that trained it."""

import dataclasses
import os
import tempfile

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

pytest.importorskip("onnxruntime", reason="Python 3.7 has no ONNX Runtime of today")

# isort: split
import modeling
from adapter_bert.common import configs
from adapter_bert.formats import onnx_backbone
from adapter_bert.serving import onnx_export, onnx_runtime
from adapter_bert.serving.bank import AdapterBank, Row
from adapter_tests.support import own_models, tiny

A = modeling.AdapterConfig
# Every value of each field. A field that is not here fails: add values that show its effect.
VALUES = {**configs.VARIANTS, "depth": (1, 2, 4), "scaling": (1.0, 0.5)}
VARIANTS = {
    **{f"{name} {value}": A(4, **{name: value}) for name in VALUES for value in VALUES[name]},
    # AdapterHub's layouts.
    "double_seq_bn": A(4, "swish"),
    "seq_bn": A(4, "relu", sites="feed_forward", placement="normalized"),
    "par_bn": A(4, "relu", sites="feed_forward", placement="parallel", scaling=4.0),
    # Values that interact.
    "deep layer": A(5, "elu", normalization="layer", depth=3, layers=(0,)),
    "deep batch": A(3, "sigmoid", normalization="batch", depth=3, placement="parallel"),
    "multiply parallel": A(4, interaction="multiply", placement="parallel", scaling=2.0),
    "multiply normalized": A(4, interaction="multiply", placement="normalized"),
    "normalized attention": A(4, placement="normalized", sites="attention", layers=(1,)),
    "linear": A(4, "linear"),
    "size 1": A(1, depth=2),
}
ROWS = [[2, 7, 9, 11, 3], [2, 8, 3], [2, 6, 9, 3]]


def segments(row):
    return [int(index > 1) for index in range(len(row))]


class VariantsTest(tf.test.TestCase):
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
        cls.expected = {
            name: [cls.own(adapter, row) for row in ROWS] for name, adapter in cls.tasks.items()
        }

    @classmethod
    def own(cls, adapter, row):
        """Returns the probabilities of the training's graph."""
        return cls.models.predictions(adapter, row, segments(row))["probabilities"]

    def mates(self, name):
        """Returns tasks that share an architecture: the variant, one of another size, and none."""
        adapter = VARIANTS[name]
        size = adapter.size if adapter.normalization == "layer" else 2 * adapter.size + 1
        other = dataclasses.replace(adapter, size=size, sites="both", layers=(1,), init_scale=0.1)
        other = own_models.build_task_adapter(self.bert, 100, adapter=other)
        return {name: self.tasks[name], "other": other, "without": self.without_adapters}

    def bank(self, tasks):
        bank = AdapterBank(tiny.config(), self.prefix)
        self.addCleanup(bank.close)
        for name, adapter in tasks.items():
            bank.add(name, adapter)
        return bank

    def assert_probabilities(self, actual, expected, message):
        self.assertAllClose(actual[: len(expected)], expected, atol=1e-5, rtol=1e-5, msg=message)

    def assert_answers(self, bank, rows):
        results = bank.predict([Row(name, ROWS[i], segments(ROWS[i])) for name, i in rows])
        for (name, index), result in zip(rows, results):
            self.assert_probabilities(result["probabilities"], self.expected[name][index], name)

    def test_variants_change_the_predictions(self):
        """Else the comparisons would show nothing."""
        values = np.array([probabilities[0][0] for probabilities in self.expected.values()])
        self.assertGreater(np.ptp(values), 0.2)

    def test_banks_match_the_training_graph(self):
        mixed = self.bank(self.tasks)
        self.assert_answers(mixed, [(name, index) for index in range(3) for name in VARIANTS])
        for name in VARIANTS:
            self.assert_answers(self.bank({name: self.tasks[name]}), [(name, 0), (name, 1)])
            mates = self.mates(name)
            bank = self.bank(mates)
            self.expected.update({mate: [self.own(mates[mate], r) for r in ROWS] for mate in mates})
            self.assert_answers(bank, [(mate, index) for index in range(3) for mate in mates])
            self.assertLen(bank._engine._sessions, 1, name)

    def test_onnx_files_match_the_training_graph(self):
        backbone = onnx_backbone.load(self.prefix, tiny.config()).tensors
        vocabulary = os.path.join(self.bert, "vocab.txt")
        for name in VARIANTS:
            mates = dict(sorted(self.mates(name).items()))
            for tasks in ({name: self.tasks[name]}, mates):
                folder = tempfile.mkdtemp(dir=self.root)
                path = onnx_export.write(folder, tiny.config(), backbone, tasks, vocabulary)
                inputs = self.padded(ROWS)
                if len(tasks) > 1:
                    inputs["task_ids"] = np.arange(3)
                (values, *_) = onnx_runtime.onnxruntime.InferenceSession(path).run(None, inputs)
                if len(tasks) > 1:
                    odds = np.exp(values)
                for index, task in enumerate(tasks if len(tasks) > 1 else [name] * 3):
                    expected = self.own(tasks[task], ROWS[index])
                    if len(tasks) > 1:
                        odds = np.exp(values[index][: len(expected)])
                        values[index][: len(expected)] = odds / odds.sum()
                    self.assert_probabilities(values[index], expected, (name, task))

    def padded(self, rows):
        """Returns the inputs of exported models, arrays."""
        length = max(map(len, rows))
        return {
            "input_ids": np.array([row + [0] * (length - len(row)) for row in rows]),
            "input_mask": np.array([[1] * len(row) + [0] * (length - len(row)) for row in rows]),
            "segment_ids": np.array([segments(row) + [0] * (length - len(row)) for row in rows]),
        }
