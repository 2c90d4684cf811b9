"""Tests of xla.py: which functions are compiled, and which are not."""

import os
import sys
import unittest
from unittest import mock

import tensorflow.compat.v1 as tf

from adapter_bert.ops import devices, layers, xla

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "tools"))

import tpu_program  # noqa: E402


def compiled_calls(graph):
    """Returns the number of calls of functions in a graph that XLA must compile."""
    return sum(
        "_XlaMustCompile" in node.attr and node.attr["_XlaMustCompile"].b
        for node in graph.as_graph_def().node
    )


class GraphDictTest(tf.test.TestCase):
    def test_each_graph_and_owner_has_its_own_dict(self):
        a, b = tf.Graph(), tf.Graph()
        xla.graph_dict(a, "x")["key"] = 1
        self.assertEqual(xla.graph_dict(a, "x"), {"key": 1})
        self.assertEqual(xla.graph_dict(a, "y"), {})
        self.assertEqual(xla.graph_dict(b, "x"), {})


class FusedTest(tf.test.TestCase):
    def built(self):
        """Returns (number of compiled calls, 2 * 3 + 1 as computed by the graph)."""
        function = xla.fused(lambda x, y: x * y + 1.0)
        with tf.Graph().as_default() as graph, self.session() as session:
            result = function(tf.constant(2.0), tf.constant(3.0))
            return compiled_calls(graph), session.run(result)

    def test_keyword_settings_apply_to_each_call(self):
        function = xla.fused(lambda x, *, factor: factor * x)
        with tf.Graph().as_default(), self.session() as session:
            x = tf.constant(2.0)
            actual = [function(x, factor=factor) for factor in (3.0, 5.0, 3.0)]
            self.assertEqual(session.run(actual), [6.0, 10.0, 6.0])

    @unittest.skipUnless(xla.can_fuse(), "there is no XLA for single functions here")
    def test_fused_function_is_compiled(self):
        self.assertEqual(self.built(), (1, 7.0))

    def test_portable_graphs_are_not_compiled(self):
        with xla.portable():
            self.assertEqual(self.built(), (0, 7.0))

    def test_gradients_of_portable_graphs_are_not_compiled(self):
        with tf.Graph().as_default() as graph, self.session() as session:
            x = tf.constant([0.5, -1.0])
            with xla.portable():
                output = layers.gelu(x)
            (gradient,) = tf.gradients(output, x)
            self.assertEqual(compiled_calls(graph), 0)
            # d/dx of 0.5 x (1 + tanh(...)), by central differences in float64.
            self.assertAllClose(session.run(gradient), [0.8674, -0.0830], atol=1e-4)

    def test_functions_are_not_compiled_on_a_gpu(self):
        with mock.patch.object(devices, "has_gpu", return_value=True):
            self.assertFalse(xla.can_fuse.__wrapped__())

    def test_tensors_are_unchanged_outside_of_xla(self):
        with tf.Graph().as_default():
            tensor = tf.constant(2.0)
            self.assertIs(xla.saved_for_backward(tensor), tensor)
            self.assertIs(xla.recompute(tf.constant(1.0), tensor)[0], tensor)
            self.assertFalse(xla.is_in_xla())

    @unittest.skipIf(tf.__version__.startswith("1."), "TensorFlow 1 shows no XLA program.")
    def test_recompute_prevents_merging(self):
        self.assertEqual(self.tanhs(xla.recompute), 2)
        self.assertEqual(self.tanhs(lambda _, x: [x]), 1)

    def tanhs(self, again):
        """Returns the number of tanh operations in a program with the gradient of tanh."""

        @tf.function(jit_compile=True, autograph=False)
        def step(x, gradient):
            with tpu_program.whole_program():
                (second,) = again(gradient, x)
                return tf.tanh(x), gradient * tf.tanh(second)

        numbers = tf.constant([0.5, 0.25])
        program = step.experimental_get_compiler_ir(numbers, numbers)(stage="optimized_hlo")
        return program.count(" tanh(")
