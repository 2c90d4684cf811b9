"""Adapter modules: what is inserted into the layers of an encoder, and the settings that say how.

Houlsby et al. 2019 (https://arxiv.org/abs/1902.00751): section 2.1, and the variants of section
3.6. An adapter adds to a sub-layer's output what a bottleneck makes of it, whose last weights are
near 0 at first: each variant starts near the identity. Where variants differ by a function, it
stands in a table.

Axes in shape comments: D hidden size, m adapter size.
"""

import functools
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from adapter_bert.common.configs import FEEDFORWARD_ADAPTER, SITES, AdapterConfig
from adapter_bert.common.errors import UserError
from adapter_bert.common.model_variables import ADAPTERS
from adapter_bert.ops import layers, xla
from adapter_bert.ops.layers import (
    create_initializer,
    get_activation,
    get_shape_list,
    variable_name,
)

# Of the bottleneck [rows, m], before its activation; statistics as in `layers.batch_norm`.
NORMALIZATIONS = {
    "none": lambda bottleneck, statistics: bottleneck,
    "layer": lambda bottleneck, statistics: layers.layer_norm(bottleneck, collections=[ADAPTERS]),
    "batch": lambda bottleneck, statistics: layers.batch_norm(
        bottleneck, statistics, collections=[ADAPTERS]
    ),
}
# What is added to x, of x and what the bottleneck makes: x + f, or x * (1 + f).
INTERACTIONS = {"add": lambda x, change: change, "multiply": lambda x, change: x * change}


class Adapter(NamedTuple):
    """An adapter function, and what of a sub-layer it adapts.

    Attributes:
      function: function of (input, residual=None, statistics=None), as `feedforward_adapter`.
      sites: scopes of the projections that it follows.
      is_parallel: bool; it reads what the sub-layer reads, and stands beside it.
      layers: indices of the layers that have one; None for all.
    """

    function: Callable
    sites: Tuple[str, ...] = SITES["both"]
    is_parallel: bool = False
    layers: Optional[Sequence[int]] = None

    def __call__(self, output, sublayer_input=None, statistics=None):
        """Adapts a sub-layer.

        Args:
          output: float Tensor [..., D], the sub-layer's output.
          sublayer_input: float Tensor [..., D], what the sub-layer reads.
          statistics: as in `layers.batch_norm`.

        Returns:
          list of float Tensors [..., D], whose sum is the adapted output.
        """
        if self.is_parallel:
            terms = self.function(sublayer_input, residual=output, statistics=statistics)
        else:
            terms = self.function(output, statistics=statistics)
        return list(terms) if isinstance(terms, (list, tuple)) else [terms]


def build(config: AdapterConfig) -> "Optional[Adapter]":
    """Returns the `Adapter` of a config, or None for "none"."""
    function = get_adapter(config.fn)
    return function and Adapter(
        functools.partial(
            function,
            hidden_size=config.size,
            init_scale=config.init_scale,
            activation=config.activation,
            return_terms=True,
            normalization=config.normalization,
            depth=config.depth,
            interaction=config.interaction,
        ),
        SITES[config.sites],
        config.placement == "parallel",
        config.layers,
    )


# `modeling.AdapterConfig(...).build()` is public; the class itself imports no TensorFlow.
AdapterConfig.build = build  # type: ignore[attr-defined]


def shapes(config: AdapterConfig, width: int) -> Dict[str, Tuple[int, ...]]:
    """Returns the variables of one adapter of any function, read from its graph.

    `model_variables.adapter_shapes` computes those of `feedforward_adapter` without TensorFlow.

    Args:
      config: `AdapterConfig`.
      width: D, the width of the sub-layer's output.

    Returns:
      A dict from names, below the scope of the projection that the adapter follows, to tuples of
      int; moving statistics are among them.
    """
    # Nothing is run, or compiled: machines that train together start TensorFlow together.
    with tf.Graph().as_default(), xla.portable():
        adapter, x = build(config), tf.zeros([1, width])
        if adapter:
            adapter(x, x)
        return {variable_name(v): tuple(v.shape.as_list()) for v in tf.global_variables()}


def adapters_of_layers(
    adapter_fn,
    adapter_layers: Optional[Sequence[int]],
    num_layers: int,
    statistics: Optional[list],
    gates=None,
) -> List[Dict[str, Callable]]:
    """The adapters of an encoder.

    Args:
      adapter_fn: `Adapter`, or a function of a sub-layer's output alone, or None.
      adapter_layers: indices of the layers that have adapters; None for the `Adapter`'s own.
      num_layers: L.
      statistics: as in `layers.batch_norm`.
      gates: float Tensor [B, L]: 1 where the adapters of a layer count for a sequence, 0 where it
        is as if there were none; or None, where all count.

    Returns:
      A list of a dict for each layer: from the projections' scopes to functions of (output,
      sublayer_input) that return lists of terms, see `Adapter`.

    Raises:
      ValueError: the encoder has no layer of such an index.
    """
    if adapter_fn is None:
        return [{}] * num_layers
    if not isinstance(adapter_fn, Adapter):
        function = adapter_fn
        adapter_fn = Adapter(lambda output, statistics: function(output))
    layer_indices = range(num_layers)
    adapted_layers = next(
        a for a in (adapter_layers, adapter_fn.layers, layer_indices) if a is not None
    )
    unknown_layers = sorted(set(adapted_layers) - set(layer_indices))
    if unknown_layers:
        raise ValueError(
            f"The encoder has layers 0 to {num_layers - 1}, but adapters are asked for in"
            f" {', '.join(map(str, unknown_layers))}."
        )
    adapt = functools.partial(adapter_fn, statistics=statistics)
    adapters: List[Dict[str, Callable]] = []
    for index in layer_indices:
        adapter = adapt if gates is None else functools.partial(_gated, adapt, gates[:, index])
        adapters.append(dict.fromkeys(adapter_fn.sites if index in adapted_layers else (), adapter))
    return adapters


def _gated(adapt, gate, output, sublayer_input):
    """Terms whose sum is gate * adapted + (1 - gate) * output.

    gate is [B]; output, sublayer_input and the terms are [B * F, D].
    """
    terms = adapt(output, sublayer_input)
    rows_per_example = get_shape_list(output)[0] // get_shape_list(gate)[0]
    gate = tf.cast(tf.repeat(gate, rows_per_example)[:, tf.newaxis], output.dtype)
    if terms[0] is output:  # Only what is added to it comes and goes.
        return [output, *(gate * term for term in terms[1:])]
    return [*(gate * term for term in terms), (1 - gate) * output]


def get_adapter(function_string):
    """The adapter function of a name.

    Args:
      function_string: "feedforward_adapter"; None, "" or "none" for no adapter; or a function,
        which is returned as it is.

    Raises:
      UserError: an unknown name.
    """
    if not isinstance(function_string, str):
        return function_string
    name = function_string.lower()
    if name in ("", "none"):
        return None
    if name not in _ADAPTER_FUNCTIONS:
        raise UserError(
            "--adapter_fn={}: there is no such adapter; known are {} and none.".format(
                function_string, ", ".join(_ADAPTER_FUNCTIONS)
            )
        )
    return _ADAPTER_FUNCTIONS[name]


def feedforward_adapter(
    input_tensor,
    hidden_size: int = 64,
    init_scale: float = 1e-3,
    *,
    activation: str = "gelu",
    return_terms: bool = False,
    normalization: str = "none",
    depth: int = 1,
    interaction: str = "add",
    residual=None,
    statistics: Optional[list] = None,
):
    """A bottleneck with an inner skip connection (Houlsby et al. 2019, section 2.1, figure 2).

    x + f(x), f(x) = act(x W1 + b1) W2 + b2, which has 2mD + m + D parameters and starts near the
    identity. The variants are those of section 3.6.

    Args:
      input_tensor: float Tensor [..., D], x; its dtype is that of the products.
      hidden_size: m, the width of the bottleneck.
      init_scale: stddev of the truncated normal of W1 and W2.
      activation: a name that `get_activation` knows.
      return_terms: bool; return x and what is added to it as a pair. A caller who adds them up
        in float32 keeps what bfloat16 would round off.
      normalization: a key of `NORMALIZATIONS`, of x W1 + b1: 2m parameters.
      depth: k, the number of hidden layers; each beyond the first is h → act(h W + b), W [m, m].
      interaction: a key of `INTERACTIONS`; "multiply" makes it x * (1 + f(x)).
      residual: float Tensor [..., D], y; makes it y + f(x) or y * (1 + f(x)).
      statistics: as in `layers.batch_norm`: a list in training, else None.

    Returns:
      float Tensor [..., D], or two.
    """
    shape = get_shape_list(input_tensor)
    act = get_activation(activation) or tf.identity
    with tf.variable_scope("adapters"):
        rows = tf.reshape(input_tensor, [-1, shape[-1]])
        projected = _project(rows, "1", hidden_size, init_scale)
        hidden = act(NORMALIZATIONS[normalization](projected, statistics))
        for index in range(2, depth + 1):
            # These keep the scale of what they read, and of gradients; init_scale would end both.
            hidden = act(_project(hidden, f"_hidden{index}", hidden_size, hidden_size**-0.5))
        change = tf.reshape(_project(hidden, "2", shape[-1], init_scale), shape)
    skip = input_tensor if residual is None else residual
    update = INTERACTIONS[interaction](skip, change)
    return (skip, update) if return_terms else skip + update


_ADAPTER_FUNCTIONS = {FEEDFORWARD_ADAPTER: feedforward_adapter}


def _project(rows, name: str, units: int, init_scale: float):
    """rows W + b, with W = weights<name> [in, columns] and b = biases<name> [1, columns]."""

    def variable(name, shape, initializer):
        collections = [ADAPTERS, tf.GraphKeys.GLOBAL_VARIABLES]
        return tf.get_variable(name, shape, initializer=initializer, collections=collections)

    shape = [get_shape_list(rows)[-1], units]
    weights = variable("weights" + name, shape, create_initializer(init_scale))
    biases = variable("biases" + name, [1, units], tf.zeros_initializer())
    return layers.affine(rows, weights, biases[0])
