"""Tests of graph_functions.py: shared layers compute the same as separately built layers."""

import unittest
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf
from absl.testing import parameterized

import modeling
import optimization
import tuning
from adapter_bert.ops import graph_functions, xla
from adapter_tests.support import tiny

IDS = np.array([[3, 1, 4, 1], [5, 9, 2, 0]])
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])


def calls(graph):
    """Returns the number of calls of layers, which XLA does not compile."""
    nodes = graph.as_graph_def().node
    return sum(
        node.op == "PartitionedCall" and not node.attr["_XlaMustCompile"].b for node in nodes
    )


@unittest.skipUnless(xla.can_fuse(), "layers are built one by one here")
class SharedLayerTest(parameterized.TestCase, tf.test.TestCase):
    def train(self, shared, steps=2, **options):
        """Returns (calls, [(name, value)] of variables after some steps, norm of gradients)."""
        can_share = graph_functions.can_share
        patch = mock.patch.object(graph_functions, "can_share", lambda: shared and can_share())
        with patch, tf.Graph().as_default() as graph, self.session() as session:
            tf.set_random_seed(3)
            step = tf.train.get_or_create_global_step()
            model = modeling.BertModel(
                tiny.config(num_hidden_layers=3),
                True,
                IDS,
                MASK,
                dropout_key=modeling.DropoutKey(5, step),
                **options,
            )
            loss = tf.reduce_sum(model.get_pooled_output() ** 2)
            scalars = {}
            train_op = optimization.create_optimizer(loss, 0.1, 10**9, 0, False, scalars=scalars)
            gradient_norm = scalars["gradient_norm"]
            session.run(tf.global_variables_initializer())
            for _ in range(steps):
                norm, _ = session.run([gradient_norm, train_op])
            names = [v.op.name for v in tf.global_variables()]
            return calls(graph), list(zip(names, session.run(tf.global_variables()))), norm

    @parameterized.parameters(
        (2 * 3, {}),
        (2 * 2, {"pooled_only": True, "dtype": tf.bfloat16}),
        # All three layers have gradients, as the embeddings' LayerNorm below them trains.
        (2 * 3, {"adapter_layers": (0, 2)}),
        (2 * 3, {"adapter_fn": None}),
        (2 * 3, {"adapter_fn": modeling.AdapterConfig(size=3, normalization="layer", depth=2)}),
    )
    def test_shared_layers_match_separate_layers(self, count, options):
        """Checks that results are bit-identical to those of separately built layers."""
        actual_calls, actual, norm = self.train(True, **options)
        no_calls, expected, expected_norm = self.train(False, **options)
        self.assertEqual((actual_calls, no_calls), (count, 0))
        self.assertEqual(norm, expected_norm)
        self.assertGreater(norm, 0.0)
        self.assertEqual([name for name, _ in actual], [name for name, _ in expected])
        for (name, value), (_, reference) in zip(actual, expected):
            self.assertAllEqual(value, reference, name)

    def test_unsupported_options_build_layers_separately(self):
        batch_norm = modeling.AdapterConfig(size=3, normalization="batch")
        for options in (
            {"adapter_fn": batch_norm},
            {"adapter_fn": lambda output: output},
            {"recompute_activations": True},
            {"adapter_gates": np.ones([2, 2])},
        ):
            with self.subTest(**options), tf.Graph().as_default() as graph:
                key, config = modeling.DropoutKey(5, 0), tiny.config()
                model = modeling.BertModel(config, True, IDS, MASK, dropout_key=key, **options)
                loss = tf.reduce_sum(model.get_pooled_output() ** 2)
                tf.gradients(loss, tuning.trained_variables())
                self.assertEqual(calls(graph), 0)

    def test_gradients_can_be_built_after_a_session_run(self):
        with tf.Graph().as_default(), self.session() as session:
            key = modeling.DropoutKey(5, 0)
            model = modeling.BertModel(tiny.config(), True, IDS, MASK, dropout_key=key)
            session.run(tf.global_variables_initializer())
            output = model.get_pooled_output()
            session.run(output)
            gradients = tf.gradients(output, tf.get_collection("adapters"))
            for gradient in session.run(gradients):
                self.assertTrue(np.isfinite(gradient).all())

    def test_layers_with_keyless_dropout_are_not_shared(self):
        with tf.Graph().as_default() as graph:
            modeling.BertModel(tiny.config(), True, IDS, MASK)
            self.assertEqual(calls(graph), 0)

    def test_sharing_is_off_in_functions_loops_and_strategies(self):
        actual = []

        def body(i):
            actual.append(graph_functions.can_share())
            return i + 1

        with tf.Graph().as_default():
            tf.while_loop(lambda i: i < 2, body, [0])
            tf.function(body, autograph=False).get_concrete_function(0)
            with xla.portable():
                body(0)
            with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
                body(0)
            self.assertEqual(actual, [False] * len(actual))
            body(0)
            self.assertTrue(actual[-1])


class UpdateTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(True, False)
    def test_update_accepts_any_shape_and_settings(self, use_resource):
        def shift(x, y, by, *, scale):
            return x + y * by * scale, y

        with tf.Graph().as_default(), self.session() as session:
            with tf.variable_scope("of", use_resource=use_resource):
                pairs = [
                    [
                        tf.get_variable(f"{name}_{index}", shape, initializer=tf.ones_initializer())
                        for name in "xy"
                    ]
                    for index, shape in enumerate(([2], [2, 3], []))
                ]
            updates = [
                graph_functions.update(shift, pair, tf.constant(2.0), scale=scale)
                for pair, scale in zip(pairs, (3.0, 3.0, 4.0))
            ]
            session.run(tf.global_variables_initializer())
            session.run(updates)
            actual = session.run([x for x, _ in pairs])
        for value, expected in zip(actual, ([7.0, 7.0], [[7.0] * 3] * 2, 9.0)):
            self.assertAllEqual(value, expected)
