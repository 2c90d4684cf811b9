"""BERT's heads for classification and question answering, and functions that other heads share.

A head is a function for `model_fn.model_fn_builder`. Kinds of tasks import this module only to
build one. B rows, S tokens, D the width of the output.
"""

import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.training import model_fn


def classification_loss(pooled_output, labels, num_labels, is_training, dropout_key=None):
    """Adds a softmax classifier over the pooled output (Devlin et al. 2018, section 4.1).

    Args:
      pooled_output: float Tensor [B, D].
      labels: int32 Tensor [B].
      num_labels: int.
      is_training: bool; if true, dropout of 10% is applied to the pooled output.
      dropout_key: `modeling.DropoutKey` or None.

    Returns:
      (loss [], per_example_loss [B], logits [B, num_labels], probabilities [B, num_labels]).
    """
    logits = pooled_logits(pooled_output, num_labels, is_training, dropout_key)
    one_hot_labels = tf.one_hot(labels, depth=num_labels)
    per_example_loss = -tf.reduce_sum(one_hot_labels * tf.nn.log_softmax(logits), axis=-1)
    return tf.reduce_mean(per_example_loss), per_example_loss, logits, tf.nn.softmax(logits)


def pooled_logits(pooled_output, num_outputs, is_training, dropout_key):
    """Adds a linear layer over the pooled output, with variables output_weights and output_bias.

    Args:
      pooled_output: float Tensor [B, D].
      num_outputs: int.
      is_training, dropout_key: as in `classification_loss`.

    Returns:
      float Tensor [B, num_outputs].
    """
    weights, bias = linear_variables("", num_outputs, pooled_output.shape[-1])
    with tf.variable_scope("loss"):
        if is_training:
            pooled_output = modeling.dropout(pooled_output, 0.1, key=dropout_key)
        return tf.nn.bias_add(tf.matmul(pooled_output, weights, transpose_b=True), bias)


def linear_variables(scope, num_outputs, width):
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


def classifier_head(num_labels, class_weights=None):
    """Returns the classification head for `model_fn.model_fn_builder`.

    Args:
      num_labels: int.
      class_weights: list with a factor of the training loss per label, or None.
    """

    def head(encoder, features, is_training, dropout_key):
        labels = features["label_ids"]
        loss, per_example_loss, logits, probabilities = classification_loss(
            encoder.get_pooled_output(), labels, num_labels, is_training, dropout_key
        )
        if class_weights is not None:
            loss = tf.reduce_mean(tf.gather(class_weights, labels) * per_example_loss)
        weights = tf.cast(features.get("is_real_example", tf.ones_like(labels)), tf.float32)
        return model_fn.HeadOutput(
            loss=loss,
            predictions={"probabilities": probabilities, "loss": per_example_loss},
            metric_fn=metric_fn,
            metric_inputs=[per_example_loss, labels, logits, weights],
        )

    return head


def head_output(predictions):
    """Returns the `model_fn.HeadOutput` of predictions with a "loss" [B]; its loss is the mean."""
    return model_fn.HeadOutput(tf.reduce_mean(predictions["loss"]), predictions)


def metric_fn(per_example_loss, label_ids, logits, is_real_example):
    """Returns metrics: accuracy and mean loss over the rows that are not padding (weight 0)."""
    predictions = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return {
        "eval_accuracy": tf.metrics.accuracy(label_ids, predictions, weights=is_real_example),
        "eval_loss": tf.metrics.mean(per_example_loss, weights=is_real_example),
    }


# Added to the logits of padding, which must never be predicted as an answer.
_MASKED_LOGIT = -10000.0


def span_logits(sequence_output):
    """Adds a linear layer on each token, for the answer's start and end (Devlin et al. 2018, 4.2).

    Args:
      sequence_output: float Tensor [B, S, D].

    Returns:
      (start_logits [B, S], end_logits [B, S]).
    """
    weights, bias = linear_variables("cls/squad/", 2, sequence_output.shape[-1])
    logits = tf.einsum("bsd,kd->kbs", sequence_output, weights) + bias[:, None, None]
    return tuple(tf.unstack(logits))


def squad_head(encoder, features, is_training, dropout_key):
    """Builds the question answering head for `model_fn.model_fn_builder`.

    The loss is the mean cross entropy of the start and end positions over real tokens. BERT's
    script includes padding, so its loss depends on the batch's amount of padding.
    """
    del is_training, dropout_key
    padding = 1.0 - tf.cast(features["input_mask"], tf.float32)
    start, end = (
        logits + padding * _MASKED_LOGIT for logits in span_logits(encoder.get_sequence_output())
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
    return model_fn.HeadOutput(loss, {"start_logits": start, "end_logits": end})
