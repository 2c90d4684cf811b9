"""A test case that computes heads and losses for a fixed encoder output."""

import numpy as np
import tensorflow.compat.v1 as tf


class FakeEncoder:
    def __init__(self, output):
        self.output = tf.constant(output, tf.float32)

    def get_pooled_output(self):
        return self.output

    def get_sequence_output(self):
        return self.output


class HeadCase(tf.test.TestCase):
    POOLED = np.random.RandomState(3).normal(size=[4, 5]).astype(np.float32)
    WEIGHTS = np.random.RandomState(4).normal(size=[3, 5]).astype(np.float32)

    def run_head(self, head, labels):
        """Returns (loss, predictions) of a head with rows of WEIGHTS as weights and no bias."""
        with tf.Graph().as_default(), tf.Session() as session:
            output = head(FakeEncoder(self.POOLED), {"label_ids": tf.constant(labels)}, False, None)
            session.run(tf.global_variables_initializer())
            weights, bias = tf.trainable_variables()
            self.assertEqual((weights.op.name, bias.op.name), ("output_weights", "output_bias"))
            weights.load(self.WEIGHTS[: weights.shape[0]], session)
            return session.run((output.loss, output.predictions))

    def run_predict(self, kind, logits, labels):
        with tf.Graph().as_default(), tf.Session() as session:
            return session.run(kind.predict(tf.constant(logits), tf.constant(labels)))
