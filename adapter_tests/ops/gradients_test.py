"""Tests of gradients.py: custom gradients, and the freeing of graphs."""

import gc
import weakref

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.ops import gradients
from adapter_bert.ops.layers import swish
from adapter_tests.support import tiny


def scaled_forward(x, factor, offset):
    return x * factor + offset, (factor, tf.identity(x, name="saved"))


def scaled_backward(saved, d_output):
    factor, x = saved
    return [d_output * factor, tf.reduce_sum(7.0 * x * d_output), None]


class ApplyTest(tf.test.TestCase):
    def test_only_the_custom_gradient_is_used(self):
        for recompute in (False, True):
            with tf.Graph().as_default() as graph, self.session() as session:
                x, factor, offset = tf.constant([1.0, 2.0]), tf.constant(3.0), tf.constant(1.0)
                output = gradients.apply(
                    scaled_forward, scaled_backward, x, factor, offset, recompute=recompute
                )
                half = gradients.apply(lambda y: (y + 0.0, None), lambda _, d: 0.5 * d, output)
                actual = tf.gradients(2.0 * half, [x, factor, offset])
                self.assertIsNone(actual[2])
                actual = session.run([output, *actual[:2]])
                self.assertLen(
                    [op for op in graph.get_operations() if "saved" in op.name], 1 + recompute
                )
            for value, expected in zip(actual, ([4.0, 7.0], [3.0, 3.0], 7.0 * (1 + 2))):
                self.assertAllEqual(value, expected)


class LifetimeTest(tf.test.TestCase):
    def test_model_graph_is_freed(self):
        def build():
            with tf.Graph().as_default() as graph, tf.Session() as session:
                key = modeling.DropoutKey(1, 2, 0, 0)
                model = modeling.BertModel(
                    tiny.config(), True, np.ones([2, 4], np.int32), dropout_key=key
                )
                loss = tf.reduce_sum(swish(model.get_pooled_output()))
                gradients = tf.gradients(loss, tf.trainable_variables()[:1])
                session.run(tf.global_variables_initializer())
                session.run(gradients)
            return weakref.ref(graph)

        graph = build()
        gc.collect()
        self.assertIsNone(graph())
