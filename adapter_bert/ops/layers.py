"""The parts of a Transformer: matrix products, and the arithmetic between them.

Between the products a step is bound by memory: written operation by operation, GELU alone passes
over its tensor ten times. So each element-wise stretch is one function with a gradient of its own,
which XLA compiles into one pass where it can (`xla.fused`), and TensorFlow computes operation by
operation, with the same result, where it cannot. The tensors between the products have the run's
dtype, float32 or bfloat16; inside a stretch everything is float32, sums and statistics above all.

Axes in shape comments:
    B  batch            F  "from" positions (queries)    N  attention heads
    S  positions        T  "to" positions (keys)         H  size of one head
    D  hidden size, N * H
"""

import functools
import math
import re
import zlib
from typing import Any, Callable, Optional, Sequence

import tensorflow.compat.v1 as tf

from adapter_bert.common import configs
from adapter_bert.common.model_variables import LAYER_NORM, MOVING
from adapter_bert.ops import xla
from adapter_bert.ops.dropout import DropoutKey, dropout
from adapter_bert.ops.graphs import custom_gradient

_STATISTICS = "batch_statistics"  # Graph collection of what `keep_statistics` leaves.


def _float32(*tensors):
    return [tf.cast(tensor, tf.float32) for tensor in tensors]


# ---- Activations


def gelu(x):
    """Gaussian error linear unit, tanh form (Hendrycks and Gimpel 2016, arXiv 1606.08415).

    The form that BERT was trained with; at most 5e-4 from the exact one.
    """

    @custom_gradient
    def run(x):
        return _gelu(x), lambda d_output: _gelu_gradient(x, d_output)

    return run(tf.convert_to_tensor(x))


_GELU_SCALE = math.sqrt(2 / math.pi)


@xla.fused
def _gelu(x):
    (u,) = _float32(x)
    tanh = tf.tanh(_GELU_SCALE * (u + 0.044715 * u * u * u))
    return tf.cast(0.5 * u * (1.0 + tanh), x.dtype)


@xla.fused
def _gelu_gradient(x, d_output):
    u, d = _float32(x, d_output)
    tanh = tf.tanh(_GELU_SCALE * (u + 0.044715 * u * u * u))
    slope = _GELU_SCALE * (1.0 + 3 * 0.044715 * u * u)
    return tf.cast(0.5 * d * (1.0 + tanh + u * (1.0 - tanh * tanh) * slope), x.dtype)


ACTIVATIONS = {
    "elu": tf.nn.elu,
    "gelu": gelu,
    # The slope below 0 of Maas et al. 2013, and of PyTorch.
    "leaky_relu": functools.partial(tf.nn.leaky_relu, alpha=0.01),
    "linear": None,
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "sigmoid": tf.sigmoid,
    "swish": tf.nn.swish,
    "tanh": tf.tanh,
}


def get_activation(activation_string):
    """The activation of a name, a key of `ACTIVATIONS` in any case.

    Returns:
      A function; None for "linear" and ""; what is no string as it is.

    Raises:
      UserError: an unknown name, or neither a name nor a function.
    """
    configs.check_activation(activation_string)
    if activation_string is None or callable(activation_string):
        return activation_string
    return ACTIVATIONS[activation_string.lower() or "linear"]


# ---- Sums over rows: normalization and attention


def layer_norm(
    input_tensor,
    name: Optional[str] = None,
    *,
    plus=(),
    dtype=None,
    collections: Sequence[str] = (LAYER_NORM,),
    training: bool = True,
):
    """Normalizes the last axis (Ba et al. 2016, arXiv 1607.06450), epsilon 1e-12.

    Args:
      input_tensor: float Tensor [..., D].
      name: variable scope; by default "LayerNorm", then "LayerNorm_1" and so on.
      plus: Tensors of the same shape, of any float dtype, which are added first, in float32: what
        a small adapter changes would be lost if bfloat16 rounded the sum.
      dtype: of the result, that of input_tensor by default.
      collections: graph collections that beta and gamma join.
      training: bool; keep what the gradient needs. Without, a gradient recomputes it, and there
        should be none.
    """
    width = get_shape_list(input_tensor)[-1]
    with tf.variable_scope(name, default_name="LayerNorm"):
        collections = list(collections) + [tf.GraphKeys.GLOBAL_VARIABLES]
        beta = tf.get_variable(
            "beta", [width], initializer=tf.zeros_initializer(), collections=collections
        )
        gamma = tf.get_variable(
            "gamma", [width], initializer=tf.ones_initializer(), collections=collections
        )
        dtype, terms = dtype or input_tensor.dtype, [input_tensor, *plus]
        if _is_per_example(gamma, 1):
            return _normalized_per_example(terms, gamma, beta, dtype)
        return _normalized_sum(terms, gamma, beta, dtype, training)


def _normalized_per_example(terms, gamma, beta, dtype):
    """With gamma and beta [B, D], each for one of B equal parts of the rows; no gradient."""
    parts = [tf.reshape(term, [tf.shape(gamma)[0], -1, gamma.shape[-1]]) for term in terms]
    (output,) = _normalize(dtype, False)(gamma[:, tf.newaxis], beta[:, tf.newaxis], *parts)
    return tf.reshape(output, tf.shape(terms[0]))


def _normalized_sum(terms, gamma, beta, dtype, training):
    @custom_gradient
    def run(gamma, beta, *terms):
        output, *saved = _normalize(dtype, training)(gamma, beta, *terms)
        saved = [xla.saved_for_backward(tensor) for tensor in saved]

        def gradient(d_output):
            normalized, inverse_stddev = saved or _normalize(dtype, True)(gamma, beta, *terms)[1:]
            d_sum = _normalize_gradient(gamma, normalized, inverse_stddev, d_output)
            d_terms = [tf.cast(d_sum, term.dtype) for term in terms]
            d_gamma, d_beta = _column_sums(d_output * normalized), _column_sums(d_output)
            return [tf.cast(d_gamma, gamma.dtype), tf.cast(d_beta, beta.dtype), *d_terms]

        return output, gradient

    return run(tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta), *terms)


@functools.lru_cache(maxsize=None)
def _normalize(dtype, training):
    """The function of (gamma, beta, terms) that returns a list: the output in that dtype and, if it
    `training`, the normalized sum, likewise, and one over the standard deviation, float32."""

    @xla.fused
    def normalize(gamma, beta, *terms):
        total = tf.add_n(_float32(*terms))
        centered = total - tf.reduce_mean(total, -1, keepdims=True)
        variance = tf.reduce_mean(centered * centered, -1, keepdims=True)
        inverse_stddev = tf.math.rsqrt(variance + 1e-12)
        normalized = centered * inverse_stddev
        output = tf.cast(normalized * gamma + beta, dtype)
        return [output, tf.cast(normalized, dtype), inverse_stddev] if training else [output]

    return normalize


@xla.fused
def _normalize_gradient(gamma, normalized, inverse_stddev, d_output):
    x_hat, d = _float32(normalized, d_output)
    d = d * gamma
    projection = x_hat * tf.reduce_mean(d * x_hat, -1, keepdims=True)
    d_sum = inverse_stddev * (d - tf.reduce_mean(d, -1, keepdims=True) - projection)
    return tf.cast(d_sum, d_output.dtype)


def _column_sums(x):
    """[D], the sums of [..., D] over all axes but the last."""
    rows = tf.reshape(x, [-1, get_shape_list(x)[-1]])
    if x.dtype == tf.float32 or xla.is_in_xla():
        return tf.reduce_sum(tf.cast(rows, tf.float32), 0)
    # TensorFlow's sums of bfloat16 stop growing at 256 times a summand; its products are summed in
    # float32.
    return tf.matmul(tf.ones([1, tf.shape(rows)[0]], x.dtype), rows)[0]


def batch_norm(
    input_tensor,
    statistics: Optional[list] = None,
    name: Optional[str] = None,
    *,
    collections: Sequence[str] = (),
):
    """Normalizes each column over all rows (Ioffe and Szegedy 2015, arXiv 1502.03167).

    Args:
      input_tensor: float Tensor [rows, in]. Each row counts, those of padding too.
      statistics: list, in training: the rows' own mean and variance normalize them, and are added
        to it as pairs (moving variable, float32 Tensor [in]). None: the moving ones normalize.
      name: variable scope; by default "BatchNorm", then "BatchNorm_1" and so on.
      collections: graph collections that beta and gamma join; the moving mean and variance, which
        do not train, join none.

    Returns:
      float Tensor [rows, in].
    """
    width = get_shape_list(input_tensor, expected_rank=2)[-1]
    zeros, ones = tf.zeros_initializer(), tf.ones_initializer()
    with tf.variable_scope(name, default_name="BatchNorm"):
        collections = list(collections) + [tf.GraphKeys.GLOBAL_VARIABLES]
        beta = tf.get_variable("beta", [width], initializer=zeros, collections=collections)
        gamma = tf.get_variable("gamma", [width], initializer=ones, collections=collections)
        moving = [
            tf.get_variable("moving_mean", [width], initializer=zeros, trainable=False),
            tf.get_variable("moving_variance", [width], initializer=ones, trainable=False),
        ]
    (rows,) = _float32(input_tensor)
    moments = moving
    if statistics is not None:
        moments = tf.nn.moments(rows, [0])
        statistics.extend(zip(moving, moments))
    # Small against the variance of a bottleneck whose weights have a stddev of 1e-3, about 1e-4.
    output = tf.nn.batch_normalization(rows, *moments, beta, gamma, variance_epsilon=1e-6)
    return tf.cast(output, input_tensor.dtype)


def keep_statistics(statistics):
    """Leaves pairs (moving variable, value of this batch) for `take_statistics`."""
    tf.get_collection_ref(_STATISTICS).extend(statistics)


def take_statistics():
    """The pairs that training's `batch_norm` has left in the graph since the last call, a list."""
    collection = tf.get_collection_ref(_STATISTICS)
    statistics, collection[:] = collection[:], []
    return statistics


def dot_product_attention(
    query,
    key,
    value,
    input_mask,
    dropout_prob: float = 0.0,
    *,
    dropout_key: Optional[DropoutKey] = None,
):
    """Scaled dot-product attention (Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1).

    Args:
      query: float Tensor [B, N, F, H].
      key, value: float Tensors [B, N, T, H].
      input_mask: int32 Tensor [B, T]; positions with 0 are attended to by none.
      dropout_prob, dropout_key: of the attention probabilities, see `dropout`.

    Returns:
      float Tensor [B, N, F, H].
    """
    scale = 1.0 / math.sqrt(get_shape_list(query)[-1])
    # -10000 before the softmax is as good as removal, and stays finite in half precision.
    additive_mask = -10000.0 * (1.0 - tf.cast(input_mask, tf.float32))[:, tf.newaxis, tf.newaxis, :]
    # A TPU computes them faster than it writes and reads them. Without a key they would be others.
    is_recomputed = xla.is_in_xla() and (dropout_key is not None or not dropout_prob)
    scope = tf.get_variable_scope()

    def probabilities(query, key):
        """[B, N, F, T], before and after dropout."""
        scores = tf.matmul(query, key, transpose_b=True)
        probs = tf.nn.softmax(_scale_and_mask(scale)(scores, additive_mask))
        with tf.variable_scope(scope, auxiliary_name_scope=False):
            return probs, dropout(probs, dropout_prob, key=dropout_key)

    @custom_gradient
    def run(query, key, value):
        saved_for_backward = probabilities(query, key)
        context = tf.matmul(saved_for_backward[1], value)

        def gradient(d_context):
            probs, dropped = (
                probabilities(*xla.recompute(d_context, query, key))
                if is_recomputed
                else saved_for_backward
            )
            d_value = tf.matmul(dropped, d_context, transpose_a=True)
            d_dropped = tf.matmul(d_context, value, transpose_b=True)
            d_scores = _softmax_gradient(scale)(probs, dropped, d_dropped, context, d_context)
            return tf.matmul(d_scores, key), tf.matmul(d_scores, query, transpose_a=True), d_value

        return context, gradient

    return run(query, key, value)


@functools.lru_cache(maxsize=None)
def _scale_and_mask(scale):
    @xla.fused
    def scale_and_mask(scores, mask):
        return tf.cast(scale * tf.cast(scores, tf.float32) + mask, scores.dtype)

    return scale_and_mask


@functools.lru_cache(maxsize=None)
def _softmax_gradient(scale):
    """Through dropout, softmax and scaling. What a softmax takes off each row, the sum of
    probabilities times their gradients, is that of the context times its own, which is shorter
    (Dao et al. 2022, arXiv 2205.14135, appendix B.2)."""

    @xla.fused
    def softmax_gradient(probs, dropped, d_dropped, context, d_context):
        p, a, d = _float32(probs, dropped, d_dropped)
        if xla.is_in_xla():  # There the longer sum costs nothing, and to keep the context does.
            row_sums = tf.reduce_sum(a * d, -1, keepdims=True)
        else:
            c, d_c = _float32(context, d_context)
            row_sums = tf.reduce_sum(c * d_c, -1, keepdims=True)
        return tf.cast(scale * (a * d - p * row_sums), probs.dtype)

    return softmax_gradient


# ---- Variables


def variable_name(variable) -> str:
    """A variable's name, the same for the copies that several replicas have of it."""
    return re.sub(r"(/replica_\d+)?:\d+$", "", variable.name)


def moving_variables():
    """The moving statistics of all batch normalizations of the graph."""
    return [v for v in tf.global_variables() if variable_name(v).endswith(MOVING)]


def _is_per_example(parameter, rank: int) -> bool:
    """Whether, where a variable of that rank is asked for, there is a Tensor with one for each of B
    equal parts of the rows: the custom getter of `encoder.build` gives each task its own."""
    return parameter.shape.ndims == rank + 1


def create_initializer(initializer_range: float = 0.02) -> Callable:
    """A truncated normal of that stddev.

    In a graph with a seed a variable's values follow from the seed and its name alone. TensorFlow's
    own initializer draws others as soon as a graph has one operation more.
    """

    def initialize(shape, dtype=tf.float32, partition_info=None):
        del partition_info
        graph = tf.get_default_graph()
        seed = None if graph.seed is None else zlib.crc32(graph.get_name_scope().encode())
        return tf.truncated_normal(shape, stddev=initializer_range, dtype=dtype, seed=seed)

    return initialize


# ---- Matrix products


def dense(
    input_tensor,
    units: int,
    name: str,
    *,
    activation: Optional[Callable] = None,
    initializer_range: float = 0.02,
):
    """act(x W + b) with variables `<name>/kernel` and `<name>/bias`, float32.

    Args:
      input_tensor: float Tensor [rows, in]; its dtype is that of the product and of the result.
      units: the width of the output.
      name: variable scope.
      activation: act, a function from Tensors to Tensors; None for none.
      initializer_range: stddev of the truncated normal that W starts from; b starts from 0.

    Returns:
      float Tensor [rows, units].
    """
    rows = get_shape_list(input_tensor, expected_rank=2, name=name)
    with tf.variable_scope(name):
        kernel = tf.get_variable(
            "kernel", [rows[-1], units], initializer=create_initializer(initializer_range)
        )
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        output = affine(input_tensor, kernel, bias)
        return activation(output) if activation else output


def affine(input_tensor, kernel, bias):
    """x W + b in the dtype of x, whatever that of W and b.

    Args:
      input_tensor: float Tensor [rows, in].
      kernel: float Tensor or variable [in, units]; or a Tensor [B, in, units], each kernel of it
        for one of B equal parts of the rows.
      bias: float Tensor or variable [units], or [B, units].
    """
    if _is_per_example(kernel, 2):
        return _affine_per_example(input_tensor, kernel, bias)

    @custom_gradient
    def run(x, kernel, bias):
        def gradient(d_output):
            d_x = tf.matmul(d_output, kernel, transpose_b=True)
            d_kernel = tf.matmul(x, d_output, transpose_a=True)
            return d_x, d_kernel, _column_sums(d_output)

        return tf.nn.bias_add(tf.matmul(x, kernel), bias), gradient

    return run(*[tf.cast(tensor, input_tensor.dtype) for tensor in (input_tensor, kernel, bias)])


def _affine_per_example(x, kernel, bias):
    kernel, bias = tf.cast(kernel, x.dtype), tf.cast(bias, x.dtype)
    parts = tf.reshape(x, [tf.shape(kernel)[0], -1, kernel.shape[1]])
    return tf.reshape(tf.matmul(parts, kernel) + bias[:, tf.newaxis], [-1, kernel.shape[2]])


def split_heads(projected, batch_size: Any, num_heads: int):
    """[B * S, N * H] → [B, N, S, H]."""
    width = get_shape_list(projected)[-1]
    heads = tf.reshape(projected, [batch_size, -1, num_heads, width // num_heads])
    return tf.transpose(heads, [0, 2, 1, 3])


def merge_heads(context):
    """[B, N, S, H] → [B * S, N * H]."""
    _, num_heads, _, size = get_shape_list(context, expected_rank=4)
    return tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [-1, num_heads * size])


# ---- Shapes


def get_shape_list(tensor, expected_rank=None, name: Optional[str] = None) -> list:
    """A tensor's shape as a list: ints where known, scalar Tensors where not.

    Raises:
      ValueError: the rank is not `expected_rank` (an int or a collection of ints).
    """
    if expected_rank is not None:
        assert_rank(tensor, expected_rank, name)
    static = tensor.shape.as_list()
    if None not in static:
        return static
    dynamic = tf.shape(tensor)
    return [dynamic[axis] if size is None else size for axis, size in enumerate(static)]


def assert_rank(tensor, expected_rank, name: Optional[str] = None) -> None:
    """Raises ValueError, naming tensor and scope, if the rank is not (one of) `expected_rank`."""
    expected = [expected_rank] if isinstance(expected_rank, int) else list(expected_rank)
    if tensor.shape.ndims not in expected:
        raise ValueError(
            "Tensor {} in scope {!r} must have rank {}, but its shape is {}.".format(
                name or tensor.name,
                tf.get_variable_scope().name,
                " or ".join(str(rank) for rank in expected),
                tensor.shape,
            )
        )
