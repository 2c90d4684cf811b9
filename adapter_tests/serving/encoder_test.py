"""Tests of encoder.py: its tables, its batches, and what it computes beside the ONNX graph."""

import os
import tempfile

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

pytest.importorskip("onnxruntime", reason="Python 3.7 has no ONNX Runtime of today")

# isort: split
import modeling
from adapter_bert.common import task_kinds
from adapter_bert.serving import compatibility, encoder, engine, saved_model
from adapter_bert.serving.encoder import SlotIndices
from adapter_tests.support import own_models, tiny


class BatchTest(tf.test.TestCase):
    def test_it_is_padded_with_row_0(self):
        small, large = SlotIndices(3, 0, [5], [7, 8]), SlotIndices(4, 1, [1, 9, 2], [6])
        task, pooler, bottleneck, output = encoder.batch_slots([small, large, small], 4)
        self.assertAllEqual(task, [3, 4, 3])
        self.assertAllEqual(pooler, [0, 1, 0])
        self.assertAllEqual(bottleneck, [[5, 0, 0, 0], [1, 9, 2, 0], [5, 0, 0, 0]])
        self.assertAllEqual(output, [[7, 8], [6, 0], [7, 8]])
        self.assertAllEqual(encoder.batch_slots([SlotIndices(3, 0, [], [7])], 1).bottleneck, [[0]])


class TablesTest(tf.test.TestCase):
    def test_rows_of_a_task(self):
        scope = "bert/encoder/layer_0/output/adapters/"
        head = {"cls/squad/output_weights": np.ones([2, 8]), "cls/squad/output_bias": [7, 8]}
        tensors = {
            scope + "weights1": np.arange(24).reshape(8, 3),
            scope + "biases1": [[1, 2, 3]],
            scope + "biases2": [range(8)],
            **head,
        }
        tensors = {name: np.asarray(value, np.float32) for name, value in tensors.items()}
        rows = encoder.table_rows(tiny.config(), tensors, SlotIndices(4, 0, [9, 2, 5], [3, 6]))
        expected = {
            scope + "weights1": ([9, 2, 5], np.arange(24).reshape(8, 3).T),
            scope + "biases1": ([9, 2, 5], [1, 2, 3]),
            scope + "weights2": ([9, 2, 5], np.zeros([3, 8])),
            scope + "biases2": ([4], [range(8)]),
            "output_bias": ([3, 6], [7, 8]),
            "bert/pooler/dense/kernel": ([], np.zeros([0, 8, 8])),
        }
        for name, (places, values) in expected.items():
            self.assertAllEqual(rows[name][0], places)
            self.assertAllEqual(rows[name][1], values)
        self.assertEqual(set(rows), set(compatibility.row_shapes(tiny.config())))


class GraphTest(tf.test.TestCase):
    def test_it_computes_what_the_onnx_graph_does(self):
        bert = tiny.write_bert(tempfile.mkdtemp(dir=self.get_temp_dir()), initializer_range=0.4)
        prefix, config = os.path.join(bert, "bert_model.ckpt"), tiny.config()
        adapters = {
            str(seed): own_models.build_task_adapter(
                bert, seed, kind=kind, labels=tuple("abcde"[:labels]), adapter=adapter
            )
            for seed, (kind, labels, adapter) in enumerate(
                (
                    ("classification", 2, modeling.AdapterConfig(3)),
                    ("tagging", 5, modeling.AdapterConfig(7, layers=(1,))),
                    ("span", 0, modeling.AdapterConfig(1, sites="attention")),
                    ("regression", 0, modeling.AdapterConfig(16)),
                    ("multilabel", 3, modeling.AdapterConfig(2)),
                )
            )
        }
        random, lengths = np.random.RandomState(0), [9, 4, 17, 1, 9, 12, 5]
        tasks = ["0", "1", "2", "3", "4", "1", "0"]
        rows = [
            (random.randint(5, 20, n).tolist(), random.randint(0, 2, n).tolist()) for n in lengths
        ]
        onnx = engine.Engine(config, prefix, "float32")
        arrays = {name: onnx.load(adapter) for name, adapter in adapters.items()}
        architecture = compatibility.Architecture()
        found = onnx.run(architecture, rows, [arrays[name] for name in tasks], True)

        slots, values = saved_model._lay_out_tables(
            config, encoder.backbone_rows(config, prefix), adapters
        )
        batch_slots = encoder.batch_slots([slots[int(name)] for name in tasks], 16)
        inputs = engine._pad(rows)
        with tf.Graph().as_default(), self.session() as session:
            tables = encoder.Tables({name: value.shape for name, value in values.items()})
            outputs = encoder.build(
                config,
                architecture,
                tables,
                encoder.SlotIndices(*map(tf.constant, batch_slots)),
                *(tf.constant(inputs[name]) for name in inputs),
                with_token_logits=True,
            )
            saved_model._initialize(session, tables, values, prefix)
            logits, token_logits = session.run(outputs)
        for index, name in enumerate(tasks):
            kind = task_kinds.get(adapters[name].description.kind)
            count = kind.num_outputs(len(adapters[name].description.labels))
            self.assertAllClose(found[0][index, :count], logits[index, :count], atol=1e-5)
            span = slice(lengths[index])
            self.assertAllClose(
                found[1][index, span, :count], token_logits[index, span, :count], atol=1e-5
            )
