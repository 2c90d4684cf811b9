"""Tests of encoder.py: its tables and its batches; saved_model_test compares its outputs."""

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.serving import compatibility, encoder
from adapter_bert.serving.encoder import SlotIndices
from adapter_tests.support import tiny


class BatchTest(tf.test.TestCase):
    def test_batches_of_slots_are_padded_with_row_0(self):
        small, large = SlotIndices(3, 0, [5], [7, 8]), SlotIndices(4, 1, [1, 9, 2], [6])
        task, pooler, bottleneck, output = encoder.batch_slots([small, large, small], 4)
        self.assertAllEqual(task, [3, 4, 3])
        self.assertAllEqual(pooler, [0, 1, 0])
        self.assertAllEqual(bottleneck, [[5, 0, 0, 0], [1, 9, 2, 0], [5, 0, 0, 0]])
        self.assertAllEqual(output, [[7, 8], [6, 0], [7, 8]])
        self.assertAllEqual(encoder.batch_slots([SlotIndices(3, 0, [], [7])], 1).bottleneck, [[0]])


class TablesTest(tf.test.TestCase):
    def test_tensors_of_a_task_are_split_into_table_rows(self):
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
