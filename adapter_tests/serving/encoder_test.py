"""Tests of encoder.py's tables and batches; what it computes is in adapter_bank_test.py."""

import tempfile
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.common.errors import UserError
from adapter_bert.serving import encoder
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
    def test_shapes(self):
        sizes = {"task": 2, "pooler": 3, "bottleneck": 5, "output": 7}
        with tf.Graph().as_default():
            tables = encoder.Tables(tiny.config(), sizes)
            with self.session() as session:
                session.run([v.initializer for v in tables.variables.values()])
                found = {n: v.shape for n, v in session.run(tables.variables).items()}
        # 5 LayerNorms of 2, 4 adapters of 4, the pooler's 2 and the head's 2; D is 8.
        self.assertLen(found, 5 * 2 + 4 * 4 + 2 + 2)
        adapter = "bert/encoder/layer_1/attention/output/adapters/"
        expected = {
            "bert/embeddings/LayerNorm/gamma": (2, 8),
            adapter + "weights1": (5, 8),
            adapter + "biases1": (5,),
            adapter + "weights2": (5, 8),
            adapter + "biases2": (2, 8),
            "bert/pooler/dense/kernel": (3, 8, 8),
            "output_weights": (7, 8),
            "output_bias": (7,),
        }
        self.assertEqual({name: found[name] for name in expected}, expected)

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
        self.assertEqual(set(rows), set(encoder.row_shapes(tiny.config())))


class CheckTest(tf.test.TestCase):
    def test_only_variants_that_it_computes(self):
        bert = tiny.write_bert(tempfile.mkdtemp(dir=self.get_temp_dir()))
        adapter = modeling.AdapterConfig(
            4, sites="attention", placement="parallel", interaction="multiply"
        )
        made = own_models.build_task_adapter(bert, adapter=adapter).description
        encoder.check_compatible(made, made.backbone, "Here")
        later = {**adapter.variant(), "of_a_later_version": 1}
        changed = mock.patch.object(modeling.AdapterConfig, "variant", lambda self: later)
        with changed, self.assertRaisesRegex(UserError, "^Here .* have plain adapters"):
            encoder.check_compatible(made, made.backbone, "Here")


if __name__ == "__main__":
    tf.test.main()
