"""The head on BERT's token outputs, as `training.model_fn_builder` takes it: the span of an answer.

B rows, S tokens, D the width of the output.
"""

import tensorflow.compat.v1 as tf

import modeling
import training

# What a logit of padding is lowered by: such a position is never taken for an answer's.
_NEVER = -10000.0


def span_logits(sequence_output):
    """A linear layer on each token: is it the answer's first, its last (Devlin et al. 2018, 4.2)?

    Args:
      sequence_output: float Tensor [B, S, D].

    Returns:
      (start_logits [B, S], end_logits [B, S]).
    """
    collections = [modeling.HEAD, tf.GraphKeys.GLOBAL_VARIABLES]
    weights = tf.get_variable(
        "cls/squad/output_weights",
        [2, sequence_output.shape[-1]],
        initializer=modeling.create_initializer(),
        collections=collections,
    )
    bias = tf.get_variable(
        "cls/squad/output_bias", [2], initializer=tf.zeros_initializer(), collections=collections
    )
    logits = tf.einsum("bsd,kd->kbs", sequence_output, weights) + bias[:, None, None]
    return tuple(tf.unstack(logits))


def squad_head(encoder, features, is_training, dropout_key):
    """The head that `training.model_fn_builder` takes.

    The loss is the mean of the cross entropies of the first and the last token, over the tokens
    that are there: BERT's script counts padding among them, of which a batch may have any amount.
    """
    del is_training, dropout_key
    padding = 1.0 - tf.cast(features["input_mask"], tf.float32)
    start, end = (
        logits + padding * _NEVER for logits in span_logits(encoder.get_sequence_output())
    )
    loss = tf.zeros([])
    if "start_positions" in features:
        losses = [
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=positions, logits=logits)
            for positions, logits in (
                (features["start_positions"], start),
                (features["end_positions"], end),
            )
        ]
        loss = tf.reduce_mean(tf.add_n(losses) / 2.0)
    return training.HeadOutput(
        loss=loss,
        predictions={"start_logits": start, "end_logits": end},
        metric_fn=lambda loss: {"eval_loss": tf.metrics.mean(loss)},
        metric_inputs=[loss],
    )
