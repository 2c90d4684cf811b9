"""Contestant: adapter-tuned BERT on plain TensorFlow, operation by operation, in float32.

The original's arithmetic without optimizations: float masks for dropout, GELU from its parts,
LayerNorm by moments, an attention mask for every pair of positions. Variables have the names of
BERT's checkpoints. It needs nothing of the project.

Axes as in modeling.py.
"""

import math
import re

import tensorflow.compat.v1 as tf

import worker
import workload

_TRAINED = re.compile(r"adapters|LayerNorm|^output_")


def trained_variables():
    """Returns the variables of adapters, LayerNorms and head."""
    return [v for v in tf.trainable_variables() if _TRAINED.search(v.op.name)]


def classifier(sizes, features, dropout_rate=0.1):
    """Builds BERT with adapters, and a classifier over its pooled output.

    Args:
      sizes: a value of `workload.MODELS`.
      features: dict of int32 Tensors, as `workload.features` names them.
      dropout_rate: float, 0 for predicting.

    Returns:
      (loss [], probabilities [B, labels]).
    """
    pooled = _encoder(sizes, features, dropout_rate)
    width = sizes["hidden_size"]
    weights = _weights("output_weights", [workload.NUM_LABELS, width])
    logits = tf.matmul(_dropout(pooled, dropout_rate), weights, transpose_b=True)
    logits = tf.nn.bias_add(logits, _zeros("output_bias", [workload.NUM_LABELS]))
    one_hot = tf.one_hot(features["label_ids"], workload.NUM_LABELS)
    losses = -tf.reduce_sum(one_hot * tf.nn.log_softmax(logits), axis=-1)
    return tf.reduce_mean(losses), tf.nn.softmax(logits)


def train_op(loss, learning_rate):
    """Returns a step of Adam without bias correction, with weight decay, clipped to norm 1."""
    variables = trained_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 1.0)
    updates = []
    for variable, gradient in zip(variables, gradients):
        name = variable.op.name
        m, v = (
            tf.get_variable(f"{name}/{slot}", initializer=tf.zeros_like(variable), trainable=False)
            for slot in ("adam_m", "adam_v")
        )
        next_m = 0.9 * m + 0.1 * gradient
        next_v = 0.999 * v + 0.001 * tf.square(gradient)
        update = next_m / (tf.sqrt(next_v) + 1e-6)
        if not re.search("LayerNorm|bias", name):
            update += 0.01 * variable
        updates += [
            variable.assign(variable - learning_rate * update),
            m.assign(next_m),
            v.assign(next_v),
        ]
    return tf.group(*updates, tf.train.get_or_create_global_step().assign_add(1))


def _encoder(sizes, features, dropout_rate):
    """Returns the pooled output [B, D]."""
    ids = features["input_ids"]
    batch_size, length = tf.shape(ids)[0], tf.shape(ids)[1]
    width, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    with tf.variable_scope("bert"):
        with tf.variable_scope("embeddings"):
            hidden = _embeddings(sizes, ids, features["segment_ids"], dropout_rate)
        visible = tf.ones([batch_size, length, 1]) * tf.cast(
            features["input_mask"][:, tf.newaxis, :], tf.float32
        )  # [B, F, T]
        hidden = tf.reshape(hidden, [-1, width])
        for index in range(sizes["num_hidden_layers"]):
            with tf.variable_scope(f"encoder/layer_{index}"):
                hidden = _layer(hidden, visible, sizes, heads, dropout_rate)
        first = tf.reshape(hidden, [batch_size, length, width])[:, 0, :]
        return _dense(first, width, "pooler/dense", tf.tanh)


def _embeddings(sizes, ids, segments, dropout_rate):
    """Returns the normalized sum of words, segments and positions [B, S, D]."""
    width, types = sizes["hidden_size"], sizes["type_vocab_size"]
    words = tf.gather(_weights("word_embeddings", [sizes["vocab_size"], width]), ids)
    table = _weights("token_type_embeddings", [types, width])
    one_hot = tf.one_hot(tf.reshape(segments, [-1]), types)
    words += tf.reshape(tf.matmul(one_hot, table), tf.shape(words))
    positions = _weights("position_embeddings", [sizes["max_position_embeddings"], width])
    words += positions[: tf.shape(words)[1]][tf.newaxis]
    return _dropout(_layer_norm(words), dropout_rate)


def _layer(hidden, visible, sizes, heads, dropout_rate):
    """Returns the output of a Transformer layer [B * S, D]."""
    width = sizes["hidden_size"]
    with tf.variable_scope("attention/self"):
        context = _attention(hidden, visible, heads, dropout_rate)
    with tf.variable_scope("attention/output"):
        attended = _add_and_norm(context, hidden, dropout_rate)
    inner = _dense(attended, sizes["intermediate_size"], "intermediate/dense", _gelu)
    with tf.variable_scope("output"):
        output = _add_and_norm(inner, attended, dropout_rate)
    output.set_shape([None, width])
    return output


def _attention(hidden, visible, heads, dropout_rate):
    """Returns the contexts [B * F, D] of all heads."""
    batch_size, length = tf.shape(visible)[0], tf.shape(visible)[1]
    width = hidden.shape.as_list()[-1]

    def split(name):
        shape = [batch_size, length, heads, width // heads]
        return tf.transpose(tf.reshape(_dense(hidden, width, name), shape), [0, 2, 1, 3])

    query, key, value = split("query"), split("key"), split("value")
    scores = tf.matmul(query, key, transpose_b=True)
    scores = tf.multiply(scores, 1.0 / math.sqrt(width // heads))
    scores += (1.0 - visible[:, tf.newaxis]) * -10000.0
    probs = _dropout(tf.nn.softmax(scores), dropout_rate)
    context = tf.transpose(tf.matmul(probs, value), [0, 2, 1, 3])
    return tf.reshape(context, [-1, width])


def _add_and_norm(inputs, residual, dropout_rate):
    """Returns projection, dropout, adapter, residual and LayerNorm: [B * S, D]."""
    width = residual.shape.as_list()[-1]
    output = _dropout(_dense(inputs, width, "dense"), dropout_rate)
    with tf.variable_scope("adapters"):
        size = workload.ADAPTER_SIZE
        down = tf.tensordot(output, _weights("weights1", [width, size], 1e-3), 1)
        down = _gelu(down + _zeros("biases1", [1, size]))
        up = tf.tensordot(down, _weights("weights2", [size, width], 1e-3), 1)
        output += up + _zeros("biases2", [1, width])
    return _layer_norm(output + residual)


def _layer_norm(x):
    width = x.shape.as_list()[-1]
    with tf.variable_scope("LayerNorm"):
        gamma = tf.get_variable("gamma", [width], initializer=tf.ones_initializer())
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        beta = _zeros("beta", [width])
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-12)


def _dense(x, units, name, activation=tf.identity):
    with tf.variable_scope(name):
        kernel = _weights("kernel", [x.shape.as_list()[-1], units])
        return activation(tf.nn.bias_add(tf.matmul(x, kernel), _zeros("bias", [units])))


def _gelu(x):
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * tf.pow(x, 3))
    return x * 0.5 * (1.0 + tf.tanh(inner))


def _dropout(x, rate):
    return tf.nn.dropout(x, rate=rate) if rate else x


def _weights(name, shape, stddev=0.02):
    return tf.get_variable(name, shape, initializer=tf.truncated_normal_initializer(stddev=stddev))


def _zeros(name, shape):
    return tf.get_variable(name, shape, initializer=tf.zeros_initializer())


def main():
    parser = workload.parser(__doc__, precision=False)
    arguments = parser.parse_args()
    sizes = workload.MODELS[arguments.model]
    batch = workload.features(sizes["vocab_size"])
    inputs = {name: tf.placeholder(tf.int32, values.shape) for name, values in batch.items()}
    is_step = arguments.work == "step"
    loss, probabilities = classifier(sizes, inputs, 0.1 if is_step else 0.0)
    fetches = (loss, train_op(loss, workload.LEARNING_RATE)) if is_step else probabilities
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    feed = {inputs[name]: values for name, values in batch.items()}
    facts = {"version": "TensorFlow " + tf.__version__}
    worker.serve(lambda: session.run(fetches, feed), facts=facts)


if __name__ == "__main__":
    tf.disable_eager_execution()
    main()
