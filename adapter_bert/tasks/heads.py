"""The variables of heads, and losses. B rows, S tokens, L labels, D hidden size."""

from typing import Any, Sequence, Tuple

import tensorflow.compat.v1 as tf

from adapter_bert import modeling


def linear_variables(scope: str, num_outputs: int, width: int) -> Tuple[Any, Any]:
    """Returns the variables of a head's linear layer: weights [outputs, D] and bias [outputs].

    Args:
      scope: prefix of their names, "" or ending with "/".
      num_outputs: int.
      width: D.
    """
    collections = [modeling.HEAD, tf.GraphKeys.GLOBAL_VARIABLES]
    weights = tf.get_variable(
        scope + "output_weights",
        [num_outputs, width],
        initializer=modeling.create_initializer(),
        collections=collections,
    )
    bias = tf.get_variable(
        scope + "output_bias",
        [num_outputs],
        initializer=tf.zeros_initializer(),
        collections=collections,
    )
    return weights, bias


def smoothed_loss(losses: Any, logits: Any, smoothing: float) -> Any:
    """Returns cross entropies [B] with smoothed targets (Szegedy et al. 2016, section 7).

    A row's target is 1 - smoothing for its label, plus smoothing / L for every label.

    Args:
      losses: float Tensor [B], the cross entropies of the rows' labels.
      logits: float Tensor [B, L].
      smoothing: float from 0 to 1.
    """
    uniform = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
    return (1.0 - smoothing) * losses + smoothing * uniform


# Added to the logits of padding, which must never be predicted as an answer.
_MASKED_LOGIT = -10000.0


def masked_logits(logits: Any, input_mask: Any) -> Any:
    """Returns logits [B, S], those of padding so low that it is never an answer.

    Args:
      logits: float Tensor [B, S].
      input_mask: int32 Tensor [B, S], 1 for a token and 0 for padding.
    """
    return logits + (1.0 - tf.cast(input_mask, tf.float32)) * _MASKED_LOGIT


def span_loss(logits: Sequence[Any], positions: Sequence[Any]) -> Any:
    """Returns the mean cross entropy of the start and end positions.

    BERT's script includes padding, so its loss depends on the batch's amount of padding.

    Args:
      logits: the pair of `masked_logits` of start and end.
      positions: the pair of int32 Tensors [B].
    """
    losses = [
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=each)
        for labels, each in zip(positions, logits)
    ]
    return tf.reduce_mean(tf.add_n(losses) / 2.0)
