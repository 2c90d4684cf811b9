"""Tests of heads.py beside NumPy: logits, losses, and padding that is never an answer."""

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.tasks import heads


class FakeEncoder:
    def __init__(self, output):
        self.output = tf.constant(output, tf.float32)

    def get_pooled_output(self):
        return self.output

    get_sequence_output = get_pooled_output


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


class SpanHeadTest(tf.test.TestCase):
    def test_against_numpy(self):
        random = np.random.RandomState(0)
        sequence, weights = random.normal(size=[2, 5, 4]), random.normal(size=[2, 4])
        bias = np.array([0.5, -0.25])
        lengths, starts, ends = [5, 3], [1, 0], [4, 2]
        mask = (np.arange(5) < np.array(lengths)[:, None]).astype(np.int32)
        features = {"input_mask": mask, "start_positions": starts, "end_positions": ends}
        with tf.Graph().as_default(), tf.Session() as session:
            tensors = {name: tf.constant(values) for name, values in features.items()}
            output = heads.squad_head(FakeEncoder(sequence), tensors, True, None)
            session.run(tf.global_variables_initializer())
            for variable, value in zip(tf.trainable_variables(), (weights, bias)):
                variable.load(value, session)
            names = [variable.op.name for variable in tf.trainable_variables()]
            loss, predictions = session.run((output.loss, output.predictions))
        self.assertEqual(names, ["cls/squad/output_weights", "cls/squad/output_bias"])
        logits = np.moveaxis(sequence @ weights.T + bias, -1, 0)
        losses = []
        for row, length in enumerate(lengths):
            for kind, positions in enumerate((starts, ends)):
                odds = np.exp(logits[kind, row, :length])
                losses.append(-np.log(odds[positions[row]] / odds.sum()))
        self.assertAllClose(loss, np.mean(losses), rtol=1e-5)
        for name, expected in zip(("start_logits", "end_logits"), logits):
            self.assertAllClose(predictions[name][0], expected[0], atol=1e-5)
            self.assertAllClose(predictions[name][1, :3], expected[1, :3], atol=1e-5)
            self.assertAllLess(predictions[name][1, 3:], -9000)


if __name__ == "__main__":
    tf.test.main()
