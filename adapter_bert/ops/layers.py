"""The layers of a Transformer: matrix products, and the element-wise operations between them.

Between matrix products a step is bound by memory: as single operations, GELU alone passes over its
tensor ten times. So each run of element-wise operations is one function with a hand-written
gradient. On a CPU, XLA compiles it into one pass (`xla.fused`); elsewhere TensorFlow computes the
same result operation by operation. Activations have the run's dtype, float32 or bfloat16; inside
such a function everything is float32, above all sums and statistics.

Axes in shape comments:
    B  batch            F  "from" positions (queries)    N  attention heads
    S  positions        T  "to" positions (keys)         H  size of one head
    D  hidden size, N * H
"""

import functools
import math
import re
import zlib
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from adapter_bert.model import configs
from adapter_bert.model.model_variables import LAYER_NORM, MOVING
from adapter_bert.ops import xla
from adapter_bert.ops.dropout import DropoutKey, drop, random_source
from adapter_bert.ops.gradients import apply
from adapter_bert.ops.parameters import VARIABLES, Parameters

_STATISTICS = "batch_statistics"  # Graph collection, see `keep_statistics`.


class Sum:
    """A sum of Tensors of one shape and any float dtypes that `layer_norm` computes with its own.

    The sum of activations is an operation less, and float32: bfloat16 would round an adapter's
    small changes away. TensorFlow's operations take it as a Tensor.

    Args:
      *terms: Tensors.
    """

    def __init__(self, *terms: tf.Tensor):
        self.terms = terms

    def __add__(self, other: tf.Tensor) -> "Sum":
        """Returns the sum with one more Tensor, which comes first."""
        return Sum(other, *self.terms)

    def __mul__(self, factor: Any) -> tf.Tensor:
        """Returns the product with a Tensor or a number, a Tensor."""
        return tf.convert_to_tensor(self) * factor

    __rmul__ = __mul__

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of each term."""
        return self.terms[0].shape

    @property
    def dtype(self) -> tf.DType:
        """The dtype of the sum as a Tensor, that of its first term."""
        return self.terms[0].dtype


def _to_tensor(
    value: Sum, dtype: Optional[tf.DType] = None, name: Optional[str] = None, as_ref: bool = False
) -> tf.Tensor:
    del name, as_ref
    total = tf.add_n(_float32(*value.terms))
    return tf.cast(total, dtype or value.dtype)


tf.register_tensor_conversion_function(Sum, _to_tensor)


def _float32(*tensors: tf.Tensor) -> List[tf.Tensor]:
    return [tf.cast(tensor, tf.float32) for tensor in tensors]


# ---- Activations


def gelu(x: tf.Tensor) -> tf.Tensor:
    """Applies GELU in its tanh form (Hendrycks and Gimpel 2016, arXiv 1606.08415).

    BERT was trained with this form; it differs from the exact one by at most 5e-4.
    """
    return apply(gelu_forward, gelu_backward, x)


_GELU_SCALE = math.sqrt(2 / math.pi)


@xla.fused
def _tanh_gelu(x: tf.Tensor) -> tf.Tensor:
    (u,) = _float32(x)
    tanh = tf.tanh(_GELU_SCALE * (u + 0.044715 * u * u * u))
    return tf.cast(0.5 * u * (1.0 + tanh), x.dtype)


@xla.fused
def gelu_backward(x: tf.Tensor, d_output: tf.Tensor) -> tf.Tensor:
    """Returns the gradient of x."""
    u, d = _float32(x, d_output)
    tanh = tf.tanh(_GELU_SCALE * (u + 0.044715 * u * u * u))
    slope = _GELU_SCALE * (1.0 + 3 * 0.044715 * u * u)
    return tf.cast(0.5 * d * (1.0 + tanh + u * (1.0 - tanh * tanh) * slope), x.dtype)


def gelu_forward(x: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    """Returns (GELU of x, saved for backward)."""
    return _tanh_gelu(x), x


def gelu_erf(x: tf.Tensor) -> tf.Tensor:
    """Applies GELU in its exact form, x * Phi(x), as HuggingFace's "gelu" does."""
    return apply(gelu_erf_forward, gelu_erf_backward, x)


def _normal_cdf(u: tf.Tensor) -> tf.Tensor:
    return 0.5 * (1.0 + tf.math.erf(u * math.sqrt(0.5)))


@xla.fused
def _exact_gelu(x: tf.Tensor) -> tf.Tensor:
    (u,) = _float32(x)
    return tf.cast(u * _normal_cdf(u), x.dtype)


@xla.fused
def gelu_erf_backward(x: tf.Tensor, d_output: tf.Tensor) -> tf.Tensor:
    """Returns the gradient of x."""
    u, d = _float32(x, d_output)
    density = math.sqrt(0.5 / math.pi) * tf.exp(-0.5 * u * u)
    return tf.cast(d * (_normal_cdf(u) + u * density), x.dtype)


def gelu_erf_forward(x: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    """Returns (GELU of x, saved for backward)."""
    return _exact_gelu(x), x


def swish(x: tf.Tensor) -> tf.Tensor:
    """Applies x * sigmoid(x) (Ramachandran et al. 2017, arXiv 1710.05941).

    `tf.nn.swish` keeps each graph as long as the process lives; see `gradients`.
    """
    return apply(lambda x: (x * tf.sigmoid(x), x), _swish_backward, x)


def _swish_backward(x: tf.Tensor, d_output: tf.Tensor) -> tf.Tensor:
    sigmoid = tf.sigmoid(x)
    return d_output * (sigmoid * (1.0 + x * (1.0 - sigmoid)))


ACTIVATIONS = {
    "elu": tf.nn.elu,
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    # The negative slope of Maas et al. 2013 and of PyTorch.
    "leaky_relu": functools.partial(tf.nn.leaky_relu, alpha=0.01),
    "linear": None,
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "sigmoid": tf.sigmoid,
    "swish": swish,
    "tanh": tf.tanh,
}


def get_activation(activation_string: Union[str, Callable, None]) -> Any:
    """Returns the activation function with a name.

    Args:
      activation_string: a key of `ACTIVATIONS` in upper or lower case; or None or a function, which
        are returned unchanged.

    Returns:
      A function; None for "linear" and "".

    Raises:
      UserError: the name is unknown, or the argument is neither a name nor a function.
    """
    configs.check_activation(activation_string)
    if activation_string is None or callable(activation_string):
        return activation_string
    return ACTIVATIONS[activation_string.lower() or "linear"]


# ---- Sums over rows: normalization and attention


def layer_norm(
    input_tensor: Union[tf.Tensor, Sum],
    name: Optional[str] = None,
    *,
    dtype: Optional[tf.DType] = None,
    collections: Sequence[str] = (LAYER_NORM,),
    training: bool = True,
    parameters: Parameters = VARIABLES,
) -> tf.Tensor:
    """Normalizes the last axis (Ba et al. 2016, arXiv 1607.06450) with epsilon 1e-12.

    Args:
      input_tensor: float Tensor or `Sum` [..., D].
      name: variable scope; by default "LayerNorm", then "LayerNorm_1" and so on.
      dtype: dtype of the result; by default that of input_tensor.
      collections: graph collections for beta and gamma.
      training: bool; save Tensors for the gradient, which otherwise recomputes them.
      parameters: the source of beta and gamma.

    Returns:
      float Tensor [..., D].
    """
    terms = input_tensor.terms if isinstance(input_tensor, Sum) else [input_tensor]
    with tf.variable_scope(name, default_name="LayerNorm"):
        get = functools.partial(parameters.get_for_rows, rows=terms[0], collections=collections)
        beta = tf.convert_to_tensor(get("beta", initializer=tf.zeros_initializer()))
        gamma = tf.convert_to_tensor(get("gamma", initializer=tf.ones_initializer()))
        dtype = tf.as_dtype(dtype or input_tensor.dtype)
        inputs = [gamma, beta, *terms]
        if training:
            return apply(layer_norm_forward, layer_norm_backward, *inputs, dtype=dtype)
        return apply(layer_norm_inference, layer_norm_inference_backward, *inputs, dtype=dtype)


@xla.fused
def _normalize(
    gamma: tf.Tensor, beta: tf.Tensor, *terms: tf.Tensor, dtype: tf.DType
) -> List[tf.Tensor]:
    """Returns [output]."""
    normalized, _ = _normalized_sum(*terms)
    return [tf.cast(normalized * gamma + beta, dtype)]


@xla.fused
def _normalize_and_save(
    gamma: tf.Tensor, beta: tf.Tensor, *terms: tf.Tensor, dtype: tf.DType
) -> List[tf.Tensor]:
    """Returns [output, normalized sum], both in `dtype`, and float32 1 / stddev, in one list."""
    normalized, inverse_stddev = _normalized_sum(*terms)
    output = tf.cast(normalized * gamma + beta, dtype)
    return [output, tf.cast(normalized, dtype), inverse_stddev]


def _normalized_sum(*terms: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    total = tf.add_n(_float32(*terms))
    centered = total - tf.reduce_mean(total, -1, keepdims=True)
    variance = tf.reduce_mean(centered * centered, -1, keepdims=True)
    inverse_stddev = tf.math.rsqrt(variance + 1e-12)
    return centered * inverse_stddev, inverse_stddev


@xla.fused
def _normalized_sum_gradient(
    gamma: tf.Tensor, normalized: tf.Tensor, inverse_stddev: tf.Tensor, d_output: tf.Tensor
) -> tf.Tensor:
    x_hat, d = _float32(normalized, d_output)
    d = d * gamma
    projection = x_hat * tf.reduce_mean(d * x_hat, -1, keepdims=True)
    d_sum = inverse_stddev * (d - tf.reduce_mean(d, -1, keepdims=True) - projection)
    return tf.cast(d_sum, d_output.dtype)


def layer_norm_forward(
    gamma: tf.Tensor, beta: tf.Tensor, *terms: tf.Tensor, dtype: tf.DType
) -> Tuple[tf.Tensor, Any]:
    """Returns (LayerNorm of the terms' sum, saved for backward); gamma and beta are [D]."""
    output, normalized, inverse_stddev = _normalize_and_save(gamma, beta, *terms, dtype=dtype)
    saved = [xla.saved_for_backward(tensor) for tensor in (normalized, inverse_stddev)]
    return output, (gamma, *saved, [term.dtype for term in terms])


def layer_norm_backward(saved: Any, d_output: tf.Tensor) -> List[tf.Tensor]:
    """Returns the gradients of gamma, beta and the terms."""
    gamma, normalized, inverse_stddev, dtypes = saved
    d_sum = _normalized_sum_gradient(gamma, normalized, inverse_stddev, d_output)
    d_gamma, d_beta = _column_sums(d_output * normalized), _column_sums(d_output)
    d_parameters = [tf.cast(d, gamma.dtype) for d in (d_gamma, d_beta)]
    return [*d_parameters, *(tf.cast(d_sum, dtype) for dtype in dtypes)]


def layer_norm_inference(*inputs: tf.Tensor, dtype: tf.DType) -> Tuple[tf.Tensor, Any]:
    """Returns (LayerNorm of the terms' sum, saved for backward); saves only the inputs."""
    (output,) = _normalize(*inputs, dtype=dtype)
    return output, (inputs, dtype)


def layer_norm_inference_backward(saved: Any, d_output: tf.Tensor) -> List[tf.Tensor]:
    """Returns the gradients of gamma, beta and the terms, after recomputing the forward pass."""
    inputs, dtype = saved
    _, recomputed = layer_norm_forward(*inputs, dtype=dtype)
    return layer_norm_backward(recomputed, d_output)


def _column_sums(x: tf.Tensor) -> tf.Tensor:
    """Sums [..., D] over all axes but the last."""
    rows = x if x.shape.ndims == 2 else tf.reshape(x, [-1, get_shape_list(x)[-1]])
    if x.dtype == tf.float32 or xla.is_in_xla():
        return tf.reduce_sum(tf.cast(rows, tf.float32), 0)
    # TensorFlow sums bfloat16 in bfloat16, which stops growing at 256 times a summand. Its matrix
    # products accumulate in float32.
    ones = tf.ones([1, get_shape_list(rows)[0]], x.dtype)
    return tf.squeeze(tf.matmul(ones, rows), 0)


def batch_norm(
    input_tensor: tf.Tensor,
    statistics: Optional[list] = None,
    name: Optional[str] = None,
    *,
    collections: Sequence[str] = (),
    parameters: Parameters = VARIABLES,
) -> tf.Tensor:
    """Normalizes each column over all rows (Ioffe and Szegedy 2015, arXiv 1502.03167).

    Args:
      input_tensor: float Tensor [rows, in]. All rows count, also those of padding.
      statistics: a list in training: the batch's mean and variance are used, and are appended to it
        as pairs (moving variable, float32 Tensor [in]). None: the moving statistics are used.
      name: variable scope; by default "BatchNorm", then "BatchNorm_1" and so on.
      collections: graph collections for beta and gamma. The moving statistics, which do not train,
        are in none.
      parameters: the source of beta, gamma and the moving statistics.

    Returns:
      float Tensor [rows, in].
    """
    assert_rank(input_tensor, 2)
    zeros, ones = tf.zeros_initializer(), tf.ones_initializer()
    with tf.variable_scope(name, default_name="BatchNorm"):
        get = functools.partial(parameters.get_for_rows, rows=input_tensor)
        beta = get("beta", initializer=zeros, collections=collections)
        gamma = get("gamma", initializer=ones, collections=collections)
        moving = [
            get("moving_mean", initializer=zeros, trainable=False),
            get("moving_variance", initializer=ones, trainable=False),
        ]
    (rows,) = _float32(input_tensor)
    moments = moving
    if statistics is not None:
        moments = tf.nn.moments(rows, [0])
        statistics.extend(zip(moving, moments))
    # Much less than the variance of a bottleneck with weights of stddev 1e-3, which is about 1e-4.
    output = tf.nn.batch_normalization(rows, *moments, beta, gamma, variance_epsilon=1e-6)
    return tf.cast(output, input_tensor.dtype)


def keep_statistics(statistics: Iterable[tuple]) -> None:
    """Stores pairs (moving variable, batch statistic) in the graph for `take_statistics`."""
    tf.get_collection_ref(_STATISTICS).extend(statistics)


def take_statistics() -> List[tuple]:
    """Returns the list of pairs that `keep_statistics` stored, and removes them from the graph."""
    collection = tf.get_collection_ref(_STATISTICS)
    statistics, collection[:] = collection[:], []
    return statistics


def dot_product_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    attention_mask: Optional[tf.Tensor] = None,
    dropout_prob: Optional[float] = 0.0,
    *,
    dropout_key: Optional[DropoutKey] = None,
) -> tf.Tensor:
    """Applies scaled dot-product attention (Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1).

    Args:
      query: float Tensor [B, N, F, H].
      key, value: float Tensors [B, N, T, H].
      attention_mask: Tensor [B, F, T], or [B, 1, T] if all queries share it; 0 masks a key. None:
        every query attends to all keys.
      dropout_prob, dropout_key: dropout of the attention probabilities; see `dropout`.

    Returns:
      float Tensor [B, N, F, H].
    """
    scale = 1.0 / math.sqrt(get_shape_list(query)[-1])
    # -10000 before the softmax gives a probability of 0, and is finite in half precision.
    additive_mask = (
        tf.zeros([1, 1, 1, 1])
        if attention_mask is None
        else -10000.0 * (1.0 - tf.cast(attention_mask, tf.float32))[:, tf.newaxis]
    )
    inputs = [query, key, value, additive_mask]
    if dropout_prob and dropout_key is not None:
        shape = [*get_shape_list(query)[:3], get_shape_list(key)[2]]
        inputs.append(random_source(dropout_key, tf.stack(shape)))
    # A TPU recomputes the probabilities faster than it writes and reads them. Without a key, their
    # dropout mask would change.
    recompute = xla.is_in_xla() and (dropout_key is not None or not dropout_prob)
    return apply(
        attention_forward,
        attention_backward,
        *inputs,
        recompute=recompute,
        scale=scale,
        dropout_prob=dropout_prob,
    )


def attention_forward(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    mask: tf.Tensor,
    random: Optional[tf.Tensor] = None,
    *,
    scale: float,
    dropout_prob: Optional[float],
) -> Tuple[tf.Tensor, Any]:
    """Returns (context [B, N, F, H], saved for backward).

    `mask` is added to the scores [B, N, F, T]. `random` is a `random_source` for dropout of the
    probabilities; None for TensorFlow's own dropout.
    """
    scores = tf.matmul(query, key, transpose_b=True)
    probs = tf.nn.softmax(_scale_and_mask(scores, mask, scale=scale))
    dropped = probs
    if dropout_prob and random is not None:
        dropped = drop(probs, random, dropout_prob=dropout_prob)
    elif dropout_prob:
        dropped = tf.nn.dropout(probs, rate=dropout_prob)
    context = tf.matmul(dropped, value)
    return context, (query, key, value, probs, dropped, context, scale, random is not None)


def attention_backward(saved: Any, d_context: tf.Tensor) -> list:
    """Returns the gradients of query, key and value, and None for mask and random source."""
    query, key, value, probs, dropped, context, scale, has_random = saved
    d_value = tf.matmul(dropped, d_context, transpose_a=True)
    d_dropped = tf.matmul(d_context, value, transpose_b=True)
    d_scores = _softmax_gradient(probs, dropped, d_dropped, context, d_context, scale=scale)
    d_query, d_key = tf.matmul(d_scores, key), tf.matmul(d_scores, query, transpose_a=True)
    return [d_query, d_key, d_value, None] + [None] * has_random


@xla.fused
def _scale_and_mask(scores: tf.Tensor, mask: tf.Tensor, *, scale: float) -> tf.Tensor:
    return tf.cast(scale * tf.cast(scores, tf.float32) + mask, scores.dtype)


@xla.fused
def _softmax_gradient(
    probs: tf.Tensor,
    dropped: tf.Tensor,
    d_dropped: tf.Tensor,
    context: tf.Tensor,
    d_context: tf.Tensor,
    *,
    scale: float,
) -> tf.Tensor:
    """Returns the gradient of the scores, through dropout, softmax and scaling.

    The softmax gradient subtracts from each row sum(probabilities * their gradients) over T keys.
    It equals sum(context * its gradient) over H values, which are fewer (Dao et al. 2022, arXiv
    2205.14135, appendix B.2).
    """
    p, a, d = _float32(probs, dropped, d_dropped)
    if xla.is_in_xla():  # XLA fuses the longer sum, so the context need not be saved.
        row_sums = tf.reduce_sum(a * d, -1, keepdims=True)
    else:
        c, d_c = _float32(context, d_context)
        row_sums = tf.reduce_sum(c * d_c, -1, keepdims=True)
    return tf.cast(scale * (a * d - p * row_sums), probs.dtype)


# ---- Variables


def variable_name(variable: Any) -> str:
    """Returns a variable's name, without the suffix of its copy on a replica."""
    return re.sub(r"(/replica_\d+)?:\d+$", "", variable.name)


def moving_variables() -> list:
    """Returns the moving statistics of all batch normalizations in the graph."""
    return [v for v in tf.global_variables() if variable_name(v).endswith(MOVING)]


def create_initializer(initializer_range: float = 0.02) -> Callable:
    """Returns an initializer that draws from a truncated normal with that stddev.

    In a graph with a seed, values depend only on the seed and the variable's name. With
    TensorFlow's initializer they would change whenever the graph gets another operation.
    """

    def initialize(
        shape: Any, dtype: tf.DType = tf.float32, partition_info: Any = None
    ) -> tf.Tensor:
        del partition_info
        graph = tf.get_default_graph()
        seed = None if graph.seed is None else zlib.crc32(graph.get_name_scope().encode())
        return tf.truncated_normal(shape, stddev=initializer_range, dtype=dtype, seed=seed)

    return initialize


# ---- Matrix products


def affine(input_tensor: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Returns x W + b, after casting W and b to the dtype of x.

    Args:
      input_tensor: float Tensor [rows, in].
      kernel: float Tensor or variable [in, units]; or [B, in, units], one for the rows of each of B
        examples, which are equally many and adjacent.
      bias: float Tensor or variable [units] or [1, units]; for B examples [B, units] or
        [B, 1, units].

    Returns:
      float Tensor [rows, units].
    """
    dtype = input_tensor.dtype
    kernel, bias = tf.cast(kernel, dtype), tf.cast(bias, dtype)
    if kernel.shape.ndims == 2:
        bias = bias[0] if bias.shape.ndims == 2 else bias
        return apply(affine_forward, affine_backward, input_tensor, kernel, bias)
    num_examples, width, units = get_shape_list(kernel)
    rows = tf.reshape(input_tensor, [num_examples, -1, width])
    output = tf.matmul(rows, kernel) + tf.reshape(bias, [num_examples, 1, units])
    return tf.reshape(output, [-1, units])


def affine_forward(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> Tuple[tf.Tensor, Any]:
    """Returns (x W + b, saved for backward)."""
    return tf.nn.bias_add(tf.matmul(x, kernel), bias), (x, kernel)


def affine_backward(saved: Any, d_output: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the gradients of x, W and b."""
    x, kernel = saved
    d_x = tf.matmul(d_output, kernel, transpose_b=True)
    return d_x, tf.matmul(x, d_output, transpose_a=True), _column_sums(d_output)


def split_heads(projected: tf.Tensor, batch_size: Any, num_heads: int) -> tf.Tensor:
    """Reshapes [B * S, N * H] to [B, N, S, H]."""
    width = get_shape_list(projected)[-1]
    heads = tf.reshape(projected, [batch_size, -1, num_heads, width // num_heads])
    return tf.transpose(heads, [0, 2, 1, 3])


def merge_heads(context: tf.Tensor) -> tf.Tensor:
    """Reshapes [B, N, S, H] to [B * S, N * H]."""
    _, num_heads, _, size = get_shape_list(context, expected_rank=4)
    return tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [-1, num_heads * size])


# ---- Shapes


def get_shape_list(
    tensor: tf.Tensor,
    expected_rank: Union[int, Iterable[int], None] = None,
    name: Optional[str] = None,
) -> list:
    """Returns a tensor's shape as a list; sizes that are not known statically are scalar Tensors.

    Args:
      tensor: Tensor.
      expected_rank: int or collection of ints; None for any rank.
      name: what the error calls the tensor.

    Raises:
      ValueError: the rank is not an expected one.
    """
    if expected_rank is not None:
        assert_rank(tensor, expected_rank, name)
    static = tensor.shape.as_list()
    if None not in static:
        return static
    dynamic = tf.unstack(tf.shape(tensor))  # One operation; a slice has four.
    return [dynamic[axis] if size is None else size for axis, size in enumerate(static)]


def assert_rank(
    tensor: tf.Tensor, expected_rank: Union[int, Iterable[int]], name: Optional[str] = None
) -> None:
    """Raises ValueError if the rank is not `expected_rank`, an int or a collection of ints."""
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
