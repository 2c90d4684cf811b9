"""Tests of heads.py beside the formulas in NumPy."""

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.tasks import heads


class FakeEncoder:
    def __init__(self, pooled):
        self.pooled = tf.constant(pooled, tf.float32)

    def get_pooled_output(self):
        return self.pooled


class HeadsTest(tf.test.TestCase):
    POOLED = np.random.RandomState(3).normal(size=[4, 5]).astype(np.float32)
    WEIGHTS = np.random.RandomState(4).normal(size=[3, 5]).astype(np.float32)

    def run_head(self, head, labels):
        """(loss, predictions) of a head whose weights are the rows of WEIGHTS, without a bias."""
        with tf.Graph().as_default(), tf.Session() as session:
            output = head(FakeEncoder(self.POOLED), {"label_ids": tf.constant(labels)}, False, None)
            session.run(tf.global_variables_initializer())
            weights, bias = tf.trainable_variables()
            self.assertEqual((weights.op.name, bias.op.name), ("output_weights", "output_bias"))
            weights.load(self.WEIGHTS[: weights.shape[0]], session)
            return session.run((output.loss, output.predictions))

    def test_class_weights(self):
        labels, factors = [0, 2, 2, 1], [1.0, 0.0, 5.0]
        loss, predictions = self.run_head(heads.head_of("classification", 3, factors), labels)
        odds = np.exp(self.POOLED @ self.WEIGHTS.T)
        losses = -np.log(odds[np.arange(4), labels] / odds.sum(axis=1))
        self.assertAllClose(loss, np.mean(np.array(factors)[labels] * losses), atol=1e-5)
        self.assertAllClose(predictions["loss"], losses, atol=1e-5)

    def test_regression(self):
        labels = np.array([0.5, -1.0, 3.0, 0.0], np.float32)
        loss, predictions = self.run_head(heads.head_of("regression", 0), labels)
        expected = self.POOLED @ self.WEIGHTS[0]
        self.assertAllClose(predictions["prediction"], expected, atol=1e-5)
        self.assertAllClose(predictions["loss"], (expected - labels) ** 2, atol=1e-5)
        self.assertAllClose(loss, np.mean((expected - labels) ** 2), atol=1e-5)

    def test_sets_of_labels(self):
        labels = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])
        loss, predictions = self.run_head(heads.head_of("multilabel", 3), labels)
        expected = 1 / (1 + np.exp(-self.POOLED @ self.WEIGHTS.T))
        losses = -np.log(np.where(labels, expected, 1 - expected)).mean(axis=1)
        self.assertAllClose(predictions["probabilities"], expected, atol=1e-5)
        self.assertAllClose(predictions["loss"], losses, atol=1e-5)
        self.assertAllClose(loss, losses.mean(), atol=1e-5)

    def test_metrics_leave_padding_out(self):
        logits = [[2.0, 1.0], [0.0, 3.0], [1.0, 0.0], [9.0, 0.0], [0.0, 9.0]]
        with tf.Graph().as_default(), tf.Session() as session:
            metrics = heads.metric_fn(
                tf.constant([0.5, 1.0, 3.0, 100.0, 100.0]),
                tf.constant([0, 1, 1, 0, 0]),
                tf.constant(logits),
                tf.constant([1.0, 1.0, 1.0, 0.0, 0.0]),
            )
            session.run(tf.local_variables_initializer())
            session.run([update for _, update in metrics.values()])
            values = session.run({name: value for name, (value, _) in metrics.items()})
        # Rows 0 and 1 are right, row 2 is wrong, rows 3 (right) and 4 (wrong) do not count.
        self.assertAllClose(values, {"eval_accuracy": 2 / 3, "eval_loss": 4.5 / 3})


if __name__ == "__main__":
    tf.test.main()
