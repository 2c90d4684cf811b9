"""Tests of graphs.py: gradients of one's own, and graphs that are forgotten."""

import gc
import weakref

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.ops import graphs
from adapter_tests.support import tiny


class CustomGradientTest(tf.test.TestCase):
    def test_the_given_gradient_counts_and_no_other(self):
        @graphs.custom_gradient
        def scaled(x, factor, offset):
            return x * factor + offset, lambda d: [d * factor, tf.reduce_sum(7.0 * d), None]

        @graphs.custom_gradient
        def half(x):
            return tf.identity(x), lambda d: 0.5 * d

        with tf.Graph().as_default(), self.session() as session:
            x, factor, offset = tf.constant([1.0, 2.0]), tf.constant(3.0), tf.constant(1.0)
            output = half(scaled(x, factor, offset))
            d_x, d_factor, d_offset = tf.gradients(2.0 * output, [x, factor, offset])
            self.assertIsNone(d_offset)
            found = session.run([output, d_x, d_factor])
        for value, expected in zip(found, ([4.0, 7.0], [3.0, 3.0], 14.0)):
            self.assertAllEqual(value, expected)


class BelongingsTest(tf.test.TestCase):
    def test_one_dict_for_each_graph_and_owner(self):
        a, b = tf.Graph(), tf.Graph()
        graphs.graph_dict(a, "x")["key"] = 1
        self.assertEqual(graphs.graph_dict(a, "x"), {"key": 1})
        self.assertEqual(graphs.graph_dict(a, "y"), {})
        self.assertEqual(graphs.graph_dict(b, "x"), {})

    def test_the_graph_of_a_model_is_forgotten(self):
        def build():
            with tf.Graph().as_default() as graph, tf.Session() as session:
                key = modeling.DropoutKey(1, 2, 0, 0)
                model = modeling.BertModel(
                    tiny.config(), True, np.ones([2, 4], np.int32), dropout_key=key
                )
                loss = tf.reduce_sum(model.get_pooled_output())
                gradients = tf.gradients(loss, tf.trainable_variables()[:1])
                session.run(tf.global_variables_initializer())
                session.run(gradients)
            return weakref.ref(graph)

        graph = build()
        gc.collect()
        self.assertIsNone(graph())


if __name__ == "__main__":
    tf.test.main()
