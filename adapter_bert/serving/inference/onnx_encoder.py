"""Builds the encoder for batches that mix tasks as an ONNX graph.

The backbone's tensors are constants of the graph. The task-specific ones come from
`onnx_parameters`.

A batch of B rows consists of G groups of equal size, each of one task. Each group is one matrix in
a batched product, so a batch of one task (G = 1) needs plain matrix products only.

Axes in shape comments: B batch, G groups, R positions of a group's rows, S positions, F positions
of the last layer, D hidden size, m size of an adapter (1 where a position has none), L outputs, K
pooled vectors of a row and layer (0 or 1).
"""

import functools
from typing import Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from adapter_bert.model import configs
from adapter_bert.serving.inference.onnx_graph import INT32, Graph, Tensors
from adapter_bert.serving.inference.onnx_parameters import GroupParameters
from adapter_bert.shell.errors import UserError

# The number of outlier channels in a product's input, for int8. See `quantization`.
_NUM_LARGE = 4
_EPSILON, _BATCH_NORM_EPSILON = 1e-12, 1e-6  # As in `ops.layers`.


class InputNames(NamedTuple):
    """Names of a batch's integer Tensors [B, S]; see `modeling.BertModel`."""

    input_ids: str
    input_mask: str
    segment_ids: str


def inputs(graph: Graph, dtype: int = INT32) -> InputNames:
    """Adds `InputNames` of an integer type as inputs of the graph; `encode` needs an int32 mask."""
    return InputNames(*(graph.input(name, ["B", "S"], dtype) for name in InputNames._fields))


class OutputNames(NamedTuple):
    """Names of the outputs.

    Attributes:
      logits: [G, B / G, L].
      token_logits: [G, R, L] of B * F positions.
      features: [B, K * N, D], of N layers; None without pooling weights.
    """

    logits: str
    token_logits: str
    features: Optional[str] = None


class OnnxEncoder:
    """Adds the encoder and the heads to a graph; hidden states are [G, R, D].

    Args:
      graph: `Graph`, of float16 if that is the precision.
      config: `configs.BertConfig`.
      backbone: dict of its tensors, see `model_variables.encoder_shapes`.
      architecture: the adapters' architecture.
      parameters: `GroupParameters`.
      batch: `InputNames`.
      maxima: see `quantization.activation_maxima`, to quantize the backbone's products to int8;
        None for float products.

    Raises:
      UserError: ONNX Runtime cannot compute the activation or the adapters.
    """

    def __init__(
        self,
        graph: Graph,
        config: configs.BertConfig,
        backbone: Tensors,
        architecture: configs.AdapterConfig,
        parameters: GroupParameters,
        batch: InputNames,
        maxima: Optional[Tensors] = None,
    ):
        if callable(config.hidden_act):
            raise UserError("hidden_act must be the activation's name for ONNX, but is a function.")
        if architecture.fn not in _FUNCTIONS:
            raise _not_computed(f"--adapter_fn={architecture.fn}")
        unknown = sorted(architecture.variant().keys() - _VARIANTS)
        if unknown:
            raise _not_computed(f"--adapter_{unknown[0]}")
        self._graph, self._config, self._backbone = graph, config, backbone
        self._architecture, self._parameters, self._batch = architecture, parameters, batch
        self._maxima = maxima
        width = graph.ints(config.hidden_size)
        self._grouped = graph.op("Concat", parameters.num_groups, graph.ints(-1), width, axis=0)
        sizes = graph.op("Shape", batch.input_ids)
        self._batched = graph.op("Concat", sizes, width, axis=0)
        self._num_rows = graph.op("Shape", batch.input_ids, start=0, end=1)

    def outputs(self, num_positions: Optional[str], pooling: Optional[str] = None) -> OutputNames:
        """Returns the `OutputNames` of all tasks' heads, and of all layers.

        Args:
          num_positions: int64 [1], F: the last layer is computed at the first F positions only. 1
            if every task reads the pooled output; None for all positions.
          pooling: float [B, K, S], the weights of a row's positions in its features; F must be S
            unless K is 0. With None, there are no features.
        """
        last = self._config.num_hidden_layers - 1
        hidden, features = self._embed(), []
        for index in range(last + 1):
            positions = num_positions if index == last else None
            hidden = self._layer(index, hidden, positions)
            if pooling:
                features.append(self._pool(hidden, pooling, positions))
        logits = self._head(self._pooled_output(hidden))
        all_features = self._graph.op("Concat", *features, axis=1) if pooling else None
        return OutputNames(logits, self._head(hidden), all_features)

    def _pool(self, hidden: str, pooling: str, num_positions: Optional[str]) -> str:
        """Returns a layer's features [B, K, D]: the weighted sums of its positions."""
        graph = self._graph
        if num_positions is not None:
            pooling = graph.op("Slice", pooling, graph.ints(0), num_positions, graph.ints(2))
        return graph.op("MatMul", pooling, self._rows(hidden))

    def _embed(self) -> str:
        """Returns the embeddings after LayerNorm."""
        graph = self._graph

        def table(name: str) -> str:
            return graph.constant(self._backbone[f"bert/embeddings/{name}_embeddings"])

        words = graph.op("Gather", table("word"), self._batch.input_ids)
        segments = graph.op("Gather", table("token_type"), self._batch.segment_ids)
        length = graph.op("Shape", self._batch.input_ids, start=1, end=2)
        positions = graph.op("Slice", table("position"), graph.ints(0), length, graph.ints(0))
        summed = graph.op("Add", graph.op("Add", words, segments), positions)
        return self._layer_norm(graph.op("Reshape", summed, self._grouped), 0)

    def _layer(self, index: int, hidden: str, num_positions: Optional[str]) -> str:
        """Returns a Transformer layer's output, at the first `num_positions` positions or all."""
        graph, scope = self._graph, f"bert/encoder/layer_{index}"
        rows = graph.op("Reshape", hidden, self._batched)
        if num_positions is None:
            context = self._attention(rows, f"{scope}/attention/self")
        else:
            queries = graph.op("Slice", rows, graph.ints(0), num_positions, graph.ints(1))
            context = self._cross_attention(queries, rows, f"{scope}/attention/self")
            hidden = graph.op("Reshape", queries, self._grouped)
        context = graph.op("Reshape", context, self._grouped)
        output = self._product(context, *self._weights(f"{scope}/attention/output/dense"))
        hidden = self._add_and_norm(output, hidden, 2 * index)
        output = self._feed_forward(hidden, f"{scope}/intermediate/dense", f"{scope}/output/dense")
        return self._add_and_norm(output, hidden, 2 * index + 1)

    def _rows(self, hidden: str) -> str:
        """Returns hidden states as [B, S or F, D]."""
        graph = self._graph
        shape = graph.op("Concat", self._num_rows, graph.ints(-1, self._config.hidden_size), axis=0)
        return graph.op("Reshape", hidden, shape)

    def _pooled_output(self, hidden: str) -> str:
        """Returns BERT's pooled output, [G, B / G, D]."""
        graph, parameters = self._graph, self._parameters
        ends = graph.ints(0), graph.ints(1), graph.ints(1)
        first = graph.op("Slice", self._rows(hidden), *ends)
        first = graph.op("Reshape", first, self._grouped)
        pooled = graph.op("MatMul", first, parameters.pooler)
        return graph.op("Tanh", graph.op("Add", pooled, parameters.vectors[-1]))

    def _head(self, rows: str) -> str:
        graph, parameters = self._graph, self._parameters
        return graph.op("Add", graph.op("MatMul", rows, parameters.head), parameters.head_bias)

    def _attention(self, rows: str, scope: str) -> str:
        """Returns self-attention at all positions: [B, S, D] → [B, S, D]."""
        graph, heads = self._graph, self._config.num_attention_heads
        kernels, biases = self._projections(scope)
        kernel, bias = np.concatenate(kernels, 1), graph.constant(np.concatenate(biases))
        mask = self._batch.input_mask
        if self._maxima is None:
            kernel_constant = graph.constant(kernel)
            return graph.own_op("Attention", rows, kernel_constant, bias, mask, num_heads=heads)
        rows, factors = self._divided(rows, self._maxima[scope])
        quantized, scale, zero = graph.ops("DynamicQuantizeLinear", 3, rows)
        weights, weights_scale = map(graph.constant, _quantize(kernel * factors))
        return graph.own_op(
            "QAttention",
            *(quantized, weights, bias, scale, weights_scale, mask, zero),
            num_heads=heads,
        )

    def _cross_attention(self, queries: str, rows: str, scope: str) -> str:
        """Returns attention of queries [B, F, D] to rows [B, S, D]: [B, F, D].

        ONNX Runtime's MultiHeadAttention has a bug up to 1.20: if F is not S, the mask is wrong.
        """
        graph, heads = self._graph, self._config.num_attention_heads
        size = self._config.hidden_size // heads

        def project(source: str, kernel: np.ndarray, bias: np.ndarray, order: List[int]) -> str:
            product = self._product(source, kernel, bias, scope)
            split = graph.op("Reshape", product, graph.ints(0, -1, heads, size))
            return graph.op("Transpose", split, perm=order)

        (w_q, w_k, w_v), (b_q, b_k, b_v) = self._projections(scope)
        query = project(queries, w_q, b_q, [0, 2, 1, 3])
        key = project(rows, w_k, b_k, [0, 2, 3, 1])
        value = project(rows, w_v, b_v, [0, 2, 1, 3])
        scores = graph.op(
            "Mul", graph.op("MatMul", query, key), graph.constant(np.array(size**-0.5))
        )
        probabilities = graph.op("Softmax", graph.op("Add", scores, self._mask_bias()), axis=-1)
        context = graph.op("MatMul", probabilities, value)
        context = graph.op("Transpose", context, perm=[0, 2, 1, 3])
        return graph.op("Reshape", context, graph.ints(0, -1, heads * size))

    def _mask_bias(self) -> str:
        """Returns the mask to add to scores, [B, 1, 1, S]: -10000 at padding, as in `modeling`."""
        graph = self._graph
        mask = graph.op("Unsqueeze", self._batch.input_mask, graph.ints(1, 2))
        is_padding = graph.op("Sub", graph.constant(np.array(1, np.int32)), mask)
        is_padding = graph.op("Cast", is_padding, to=graph.type)
        return graph.op("Mul", is_padding, graph.constant(np.array(-10000.0)))

    @functools.cached_property
    def _unit_scale(self) -> str:
        return self._graph.constant(np.ones(self._config.hidden_size))

    def _projections(self, scope: str) -> Tuple[List[np.ndarray], List[np.ndarray]]:
        names = [f"{scope}/{name}" for name in ("query", "key", "value")]
        kernels, biases = (
            [self._backbone[f"{name}/{part}"] for name in names] for part in ("kernel", "bias")
        )
        return kernels, biases

    def _feed_forward(self, rows: str, first: str, second: str) -> str:
        """Returns the two dense layers of those scopes: [G, R, D] → [G, R, D].

        With int8, the units of the largest outputs are computed in float.
        """
        graph, activation = self._graph, self._config.hidden_act
        (kernel, bias), (out_kernel, out_bias) = map(self._weights, (first, second))
        if self._maxima is None:
            return self._dense(self._dense(rows, first, activation), second)
        large = np.argsort(self._maxima[second])[-_NUM_LARGE:]
        others = np.ones(len(bias), np.float32)
        others[large] = 0
        hidden = self._product(rows, kernel * others, bias * others, first)
        hidden = _activate(graph, hidden, activation)
        output = self._product(hidden, out_kernel * others[:, np.newaxis], out_bias)
        hidden = self._float_dense(rows, kernel[:, large], bias[large], activation)
        return graph.op(
            "Add", output, graph.op("MatMul", hidden, graph.constant(out_kernel[large]))
        )

    def _dense(self, rows: str, scope: str, activation: Optional[str] = None) -> str:
        """Returns a dense layer of the backbone, in float: [G, R, in] → [G, R, out]."""
        return self._float_dense(rows, *self._weights(scope), activation)

    def _float_dense(
        self, rows: str, kernel: np.ndarray, bias: np.ndarray, activation: Optional[str] = None
    ) -> str:
        graph, bias_constant = self._graph, self._graph.constant(bias)
        product = graph.op("MatMul", rows, graph.constant(kernel))
        if activation in _GELU_WITH_BIAS:
            return graph.own_op(_GELU_WITH_BIAS[activation], product, bias_constant)
        return _activate(graph, graph.op("Add", product, bias_constant), activation)

    def _weights(self, scope: str) -> Tuple[np.ndarray, np.ndarray]:
        return self._backbone[f"{scope}/kernel"], self._backbone[f"{scope}/bias"]

    def _product(
        self, rows: str, kernel: np.ndarray, bias: np.ndarray, scope: Optional[str] = None
    ) -> str:
        """Returns rows * kernel + bias; the scope of the maxima of rows, if some are large."""
        if self._maxima is None:
            return self._float_dense(rows, kernel, bias)
        if scope:
            rows, factors = self._divided(rows, self._maxima[scope])
            kernel = kernel * factors
        weights, scale = map(self._graph.constant, _quantize(kernel))
        arguments = rows, weights, scale, "", self._graph.constant(bias)
        return self._graph.own_op("DynamicQuantizeMatMul", *arguments)

    def _divided(self, rows: str, maxima: np.ndarray) -> Tuple[str, np.ndarray]:
        """Returns rows / factors, and the factors [in, 1] by which to multiply the weights.

        They divide the largest channels down to the next one: int8 has one scale for all channels
        (Xiao et al. 2023, SmoothQuant, arXiv 2211.10438, section 4).
        """
        limit = np.sort(maxima)[-1 - _NUM_LARGE :][0]
        factors = np.maximum(maxima / (limit or maxima.max() or 1), 1).astype(np.float32)
        divided = self._graph.op("Mul", rows, self._graph.constant(1 / factors))
        return divided, factors[:, np.newaxis]

    def _add_and_norm(self, output: str, residual: str, index: int) -> str:
        """Returns LayerNorm(adapter(output) + residual); see `ops.adapters.Adapter`."""
        graph, architecture = self._graph, self._architecture
        weights = dict(self._parameters.adapters[index])
        summed = graph.op("Add", output, residual)
        if weights:
            source = {
                "sequential": lambda: output,
                "parallel": lambda: residual,
                "normalized": lambda: self._layer_norm(summed, 2 + 2 * index),
            }[architecture.placement]()
            change = _FUNCTIONS[architecture.fn](self, source, weights)
            if weights:
                raise _not_computed(f"An adapter's {', '.join(weights)}")
            update = {
                "add": lambda: change,
                "multiply": lambda: graph.op("Mul", output, change),
            }[architecture.interaction]()
            summed = graph.op("Add", summed, update)
        return self._layer_norm(summed, 2 + 2 * index)

    def _feedforward_adapter(self, rows: str, weights: Dict[str, str]) -> str:
        """Returns f(rows), [G, R, D], as `modeling.feedforward_adapter`; takes its weights."""
        graph, architecture = self._graph, self._architecture

        def project(rows: str, name: str) -> str:
            product = graph.op("MatMul", rows, weights.pop("weights" + name))
            return graph.op("Add", product, weights.pop("biases" + name))

        hidden = project(rows, "1")
        hidden = _NORMALIZATIONS[architecture.normalization](graph, hidden, weights)
        hidden = _activate(graph, hidden, architecture.activation)
        for index in range(2, architecture.depth + 1):
            hidden = project(hidden, f"_hidden{index}")
            hidden = _activate(graph, hidden, architecture.activation)
        change = project(hidden, "2")
        if architecture.scaling == 1.0:
            return change
        scaling = graph.constant(np.array(architecture.scaling, graph.dtype))
        return graph.op("Mul", change, scaling)

    def _layer_norm(self, rows: str, index: int) -> str:
        graph, (gamma, beta) = self._graph, self._parameters.vectors[index : index + 2]
        options = {"axis": -1, "epsilon": _EPSILON}
        if self._parameters.is_constant:
            return graph.op("LayerNormalization", rows, gamma, beta, **options)
        # With a gamma for each group, ONNX Runtime's operator takes twice as long as these three.
        normalized = graph.op("LayerNormalization", rows, self._unit_scale, **options)
        return graph.op("Add", graph.op("Mul", normalized, gamma), beta)


# The fields of `configs.VARIANTS` that this module computes; another one must not be left out.
_VARIANTS = {"normalization", "depth", "placement", "interaction", "scaling"}


def _not_computed(what: str) -> UserError:
    return UserError(
        f"{what} cannot be computed by ONNX Runtime yet: predict with the script, export a"
        " SavedModel, or add it to serving/inference/onnx_encoder.py."
    )


# The functions of `configs.FUNCTIONS`. Each returns f(rows), and takes all weights that it reads.
_FUNCTIONS = {configs.FEEDFORWARD_ADAPTER: OnnxEncoder._feedforward_adapter}


def _layer_normalize(graph: Graph, rows: str, weights: Dict[str, str]) -> str:
    """Normalizes each row of the bottleneck, [G, R, m], as `ops.layers.layer_norm`."""
    gamma, beta = (weights.pop(f"LayerNorm/{name}") for name in ("gamma", "beta"))
    size = graph.op("Shape", gamma, start=-1)
    ones = graph.op("Expand", graph.constant(np.ones(1)), size)
    normalized = graph.op("LayerNormalization", rows, ones, axis=-1, epsilon=_EPSILON)
    return graph.op("Add", graph.op("Mul", normalized, gamma), beta)


def _batch_normalize(graph: Graph, rows: str, weights: Dict[str, str]) -> str:
    """Normalizes the bottleneck, [G, R, m], as `ops.layers.batch_norm` by moving statistics."""
    names = "gamma", "beta", "moving_mean", "moving_variance"
    gamma, beta, mean, variance = (weights.pop(f"BatchNorm/{name}") for name in names)
    variance = graph.op("Add", variance, graph.constant(np.array(_BATCH_NORM_EPSILON)))
    scale = graph.op("Div", gamma, graph.op("Sqrt", variance))
    return graph.op("Add", graph.op("Mul", graph.op("Sub", rows, mean), scale), beta)


_NORMALIZATIONS = {
    "none": lambda graph, rows, weights: rows,
    "layer": _layer_normalize,
    "batch": _batch_normalize,
}


def _quantize(kernel: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Returns symmetric quantization per column: int8 [in, out] and a float32 scale [out]."""
    scale = np.maximum(np.abs(kernel).max(0), np.finfo(np.float32).tiny) / np.float32(127)
    return np.rint(kernel / scale).astype(np.int8), scale.astype(np.float32)


def _activate(graph: Graph, tensor: str, activation: Optional[str]) -> str:
    """Returns an activation's output; its name is in `configs.ACTIVATIONS`, "" or None."""
    name = (activation or "linear").lower()
    return _ACTIVATIONS[name](graph, tensor)


def _relu6(graph: Graph, tensor: str) -> str:
    return graph.op(
        "Clip", tensor, *(graph.constant(np.array(value, np.float32)) for value in (0, 6))
    )


_GELU_WITH_BIAS = {"gelu": "FastGelu", "gelu_erf": "BiasGelu"}
# The slope of leaky_relu is that of `ops.layers`. FastGelu is gelu's tanh approximation.
_ACTIVATIONS = {
    "elu": lambda graph, x: graph.op("Elu", x),
    "gelu": lambda graph, x: graph.own_op("FastGelu", x),
    "gelu_erf": lambda graph, x: graph.own_op("Gelu", x),
    "leaky_relu": lambda graph, x: graph.op("LeakyRelu", x, alpha=0.01),
    "linear": lambda graph, x: x,
    "relu": lambda graph, x: graph.op("Relu", x),
    "relu6": _relu6,
    "sigmoid": lambda graph, x: graph.op("Sigmoid", x),
    "swish": lambda graph, x: graph.op("Mul", x, graph.op("Sigmoid", x)),
    "tanh": lambda graph, x: graph.op("Tanh", x),
}
