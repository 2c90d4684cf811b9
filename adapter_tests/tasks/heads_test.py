"""Tests of heads.py: the metrics of BERT's classification head."""

import tensorflow.compat.v1 as tf

from adapter_bert.tasks import heads


class HeadsTest(tf.test.TestCase):
    def test_metrics_ignore_padding_rows(self):
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
        # Rows 0 and 1 are correct, row 2 is wrong, rows 3 (correct) and 4 (wrong) do not count.
        self.assertAllClose(values, {"eval_accuracy": 2 / 3, "eval_loss": 4.5 / 3})
