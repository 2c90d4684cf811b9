"""Places adapters in an encoder, and computes their variants.

The variants follow Houlsby et al. 2019 (https://arxiv.org/abs/1902.00751), section 3.6; the paper's
main adapter is `modeling.feedforward_adapter`.

Axes in shape comments: B batch, L layers, D hidden size, m adapter size.
"""

import functools
from typing import Any, Callable, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from adapter_bert.common.configs import SITES
from adapter_bert.common.model_variables import ADAPTERS
from adapter_bert.ops import layers
from adapter_bert.ops.layers import create_initializer, get_shape_list
from adapter_bert.ops.parameters import VARIABLES, Parameters

# Functions of the bottleneck [rows, m] before its activation; statistics as in `layers.batch_norm`.
NORMALIZATIONS = {
    "none": lambda bottleneck, statistics, parameters: bottleneck,
    "layer": lambda bottleneck, statistics, parameters: layers.layer_norm(
        bottleneck, collections=[ADAPTERS], parameters=parameters
    ),
    "batch": lambda bottleneck, statistics, parameters: layers.batch_norm(
        bottleneck, statistics, collections=[ADAPTERS], parameters=parameters
    ),
}
# Functions of x and the bottleneck's output f; their result is added to x: x + f, or x * (1 + f).
INTERACTIONS = {"add": lambda x, change: change, "multiply": lambda x, change: x * change}


def project(rows, name: str, units: int, init_scale: float, *, parameters: Parameters = VARIABLES):
    """Returns rows W + b, where W = weights<name> [in, units] and b = biases<name> [1, units]."""
    shape, initializer = [get_shape_list(rows)[-1], units], create_initializer(init_scale)
    weights = parameters.get("weights" + name, shape, initializer, collections=[ADAPTERS])
    zeros = tf.zeros_initializer()
    biases = parameters.get("biases" + name, [1, units], zeros, collections=[ADAPTERS])
    return layers.affine(rows, weights, biases[0])


def deepen(hidden, depth: int, act: Callable, *, parameters: Parameters = VARIABLES):
    """Applies depth - 1 more hidden layers, h → act(h W + b), to the bottleneck [rows, m]."""
    size = get_shape_list(hidden)[-1]
    for index in range(2, depth + 1):
        # m**-0.5 preserves the scale of activations and gradients; init_scale would shrink both.
        name, init_scale = f"_hidden{index}", size**-0.5
        hidden = act(project(hidden, name, size, init_scale, parameters=parameters))
    return hidden


class Adapter(NamedTuple):
    """Holds an adapter function and its position in the encoder.

    Attributes:
      function: function of (input, residual=None, statistics=None, parameters=VARIABLES), such as
        `modeling.feedforward_adapter`.
      sites: scopes of the projections that adapters follow.
      is_parallel: bool; the adapter reads the sub-layer's input, and its output is added to the
        sub-layer's output.
      layers: indices of the layers with adapters; None for all.
      is_normalized: bool; the adapter reads LayerNorm(sub-layer's output + input), and its output
        is added to the sub-layer's before the same LayerNorm (Pfeiffer et al. 2020, arXiv
        2005.00247).
    """

    function: Callable
    sites: Tuple[str, ...] = SITES["both"]
    is_parallel: bool = False
    layers: Optional[Sequence[int]] = None
    is_normalized: bool = False

    def adapt(
        self,
        output,
        sublayer_input,
        *,
        statistics: Optional[list] = None,
        gate=None,
        parameters: Parameters = VARIABLES,
        layer_norm: Any = None,
    ):
        """Applies the adapter to the output of a sub-layer.

        Args:
          output: float Tensor [rows, D], the sub-layer's output.
          sublayer_input: float Tensor [rows, D], the sub-layer's input.
          statistics: as in `layers.batch_norm`.
          gate: float Tensor [B]: 1 applies the adapter to the example, 0 skips it. None applies it
            to all examples.
          parameters: the source of the weights.
          layer_norm: the sub-layer's LayerNorm, a function of (Tensor, name, plus=Tensor); required
            if `is_normalized`.

        Returns:
          float Tensor [rows, D], or several Tensors whose sum is the adapted output.
        """
        options = dict(statistics=statistics, parameters=parameters)
        if self.is_parallel:
            terms = self.function(sublayer_input, residual=output, **options)
        elif self.is_normalized:
            normalized = layer_norm(sublayer_input, "LayerNorm", plus=output)
            terms = self.function(normalized, residual=output, **options)
        else:
            terms = self.function(output, **options)
        return terms if gate is None else _gated(terms, output, gate)


def as_adapter(adapter_fn, adapter_layers: Optional[Sequence[int]], num_layers: int) -> Adapter:
    """Returns the `Adapter` of an encoder.

    Args:
      adapter_fn: `Adapter`; a function of a sub-layer's output; or None for no adapters.
      adapter_layers: indices of the layers with adapters; None for those of the `Adapter`.
      num_layers: L.

    Raises:
      ValueError: a layer index is out of range.
    """
    if adapter_fn is None:
        return Adapter(tf.identity, layers=())
    if not isinstance(adapter_fn, Adapter):
        function = adapter_fn
        adapter_fn = Adapter(lambda output, **_: function(output))
    adapted_layers = adapter_fn.layers if adapter_layers is None else adapter_layers
    adapted_layers = range(num_layers) if adapted_layers is None else adapted_layers
    unknown_layers = sorted(set(adapted_layers) - set(range(num_layers)))
    if unknown_layers:
        raise ValueError(
            f"adapter_layers must be from 0 to {num_layers - 1}, but names"
            f" {', '.join(map(str, unknown_layers))}."
        )
    return adapter_fn._replace(layers=tuple(adapted_layers))


def of_layer(adapter: Optional[Adapter], **options) -> list:
    """Returns the functions that a layer applies after its attention and feed-forward projections.

    Args:
      adapter: `Adapter`, or None for a layer without adapters.
      **options: keyword arguments of `Adapter.adapt`.

    Returns:
      Two functions of a sub-layer's (output, input) that return the adapted output, or the output
      unchanged where there is no adapter.
    """
    if adapter is None:
        return [_leave, _leave]
    adapt = functools.partial(adapter.adapt, **options)
    return [adapt if site in adapter.sites else _leave for site in SITES["both"]]


def _leave(output, sublayer_input):
    del sublayer_input
    return output


def _gated(terms, output, gate):
    """Returns terms whose sum is gate * sum(terms) + (1 - gate) * output.

    All terms are [B * F, D], the gate is [B].
    """
    first, *others = tf.nest.flatten(terms)
    rows_per_example = get_shape_list(output)[0] // get_shape_list(gate)[0]
    gate = tf.cast(tf.repeat(gate, rows_per_example)[:, tf.newaxis], output.dtype)
    if first is output:  # Then only the other terms need the gate.
        return [output, *(gate * term for term in others)]
    return [*(gate * term for term in (first, *others)), (1 - gate) * output]
