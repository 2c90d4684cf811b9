"""Tests of multi_task_bert.py: its tables. variants_test and saved_model_test compare outputs."""

import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
import tuning
from adapter_bert.serving.export import multi_task_bert
from adapter_tests.support import own_models, tiny

A = modeling.AdapterConfig
NORM, POOLER = "bert/embeddings/LayerNorm/gamma", "bert/pooler/dense/kernel"
SCOPE = "bert/encoder/layer_1/output/adapters/"


class TaskTablesTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bert = tiny.write_bert(tempfile.mkdtemp(dir=tf.test.get_temp_dir()))

    def tables(self, *changes):
        """Returns (`Tables` of tasks, their tensors)."""
        tasks = [
            own_models.build_task_adapter(self.bert, seed, **each)
            for seed, each in enumerate(changes)
        ]
        prefix = os.path.join(self.bert, "bert_model.ckpt")
        tables = multi_task_bert.make_tables(tiny.config(), prefix, tasks)
        return tables, [task.tensors for task in tasks]

    def test_a_single_task_has_values_and_no_tables(self):
        tables, (tensors,) = self.tables({"adapter": A(3, "ReLU", layers=(1,), sites="attention")})
        self.assertEqual(tables.rows, {})
        self.assertEqual(tables.adapter, A(3, "relu", layers=(1,), sites="attention"))
        for name, value in tensors.items():
            self.assertAllEqual(tables.values[name], value)
        pooler = tf.train.load_variable(os.path.join(self.bert, "bert_model.ckpt"), POOLER)
        self.assertAllEqual(tables.values[POOLER], pooler)
        self.assertLen(tables.values, len(tensors) + 2)  # The pooler's kernel and bias.

    def test_tables_have_distinct_values_of_the_largest_size(self):
        tables, (small, large, _, head) = self.tables(
            {"adapter": A(1, layers=(1,))},
            {"adapter": A(3, sites="feed_forward"), "labels": ("a", "b", "c")},
            {"method": "head"},
            {"method": "head", "kind": "span", "labels": ()},
        )
        self.assertEqual(tables.adapter, A(3, layers=(0, 1)))
        self.assertEqual(tables.rows[NORM], [0, 1, 2, 2])
        self.assertAllEqual(tables.values[NORM][:2], [small[NORM], large[NORM]])
        self.assertAllEqual(tables.values[NORM][2], np.ones([8]))
        self.assertNotIn(POOLER, tables.rows)
        self.assertEqual(tables.rows[SCOPE + "weights1"], [0, 1, 2, 2])
        weights = tables.values[SCOPE + "weights1"]
        self.assertAllEqual(weights[0], np.pad(small[SCOPE + "weights1"], [(0, 0), (0, 2)]))
        self.assertAllEqual(weights[1:], [large[SCOPE + "weights1"], np.zeros([8, 3])])
        self.assertEqual(tables.rows["output_bias"], [0, 1, 2, 3])
        self.assertAllEqual(tables.values["output_bias"][3], [*head["cls/squad/output_bias"], 0])
        # No task has an adapter here.
        self.assertAllEqual(
            tables.values["bert/encoder/layer_0/attention/output/adapters/weights2"],
            np.zeros([3, 8]),
        )

    def test_tasks_without_adapters_have_no_adapter(self):
        tables, _ = self.tables({"method": "head"}, {"method": tuning.Tuning("layer_norm")})
        self.assertIsNone(tables.adapter)
        self.assertFalse([name for name in tables.values if "adapters" in name])
