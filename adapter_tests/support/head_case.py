"""A test case that computes heads and losses for a fixed encoder output."""

from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
import run_classifier
from adapter_bert.tasks.text import text_kind
from adapter_tests.support import tiny


class FakeEncoder:
    def __init__(self, output):
        self.output = tf.constant(output, tf.float32)

    def get_pooled_output(self):
        return self.output

    def get_sequence_output(self):
        return self.output


def fixed_encoder(output):
    """Replaces `modeling.BertModel` by an encoder with that output, while entered."""
    return mock.patch.object(modeling, "BertModel", lambda *_, **__: FakeEncoder(output))


class HeadCase(tf.test.TestCase):
    POOLED = np.random.RandomState(3).normal(size=[4, 5]).astype(np.float32)
    WEIGHTS = np.random.RandomState(4).normal(size=[3, 5]).astype(np.float32)

    def run_head(self, kind, num_labels, labels, is_training=False, **options):
        """Returns (loss, predictions) of run_classifier.py's model on a fixed pooled output.

        The head has rows of WEIGHTS as weights and no bias; nothing is dropped out.
        """
        config = tiny.config(hidden_size=5, num_attention_heads=1)
        no_dropout = mock.patch.object(modeling, "dropout", lambda tensor, *_, **__: tensor)
        with tf.Graph().as_default(), tf.Session() as session, fixed_encoder(
            self.POOLED
        ), no_dropout:
            loss, losses, _, predictions = run_classifier.create_model(
                config,
                is_training,
                *[None] * 3,
                tf.constant(labels),
                num_labels,
                False,
                kind=kind,
                **options,
            )
            session.run(tf.global_variables_initializer())
            weights, bias = tf.trainable_variables()
            self.assertEqual((weights.op.name, bias.op.name), ("output_weights", "output_bias"))
            weights.load(self.WEIGHTS[: weights.shape[0]], session)
            outputs = {"loss": losses, text_kind.get(kind).prediction: predictions}
            return session.run((loss, outputs))

    def run_predict(self, kind, logits, labels):
        with tf.Graph().as_default(), tf.Session() as session:
            return session.run(kind.predict(tf.constant(logits), tf.constant(labels)))
