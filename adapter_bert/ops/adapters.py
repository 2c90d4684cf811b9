"""Where an encoder has adapters, and what their variants compute.

Houlsby et al. 2019 (https://arxiv.org/abs/1902.00751), section 3.6. The paper's own adapter is
`modeling.feedforward_adapter`. Where variants differ by a function, it stands in a table.

Axes in shape comments: B batch, L layers, D hidden size, m adapter size.
"""

import functools
from typing import Callable, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from adapter_bert.common.configs import SITES
from adapter_bert.common.model_variables import ADAPTERS
from adapter_bert.ops import layers
from adapter_bert.ops.layers import create_initializer, get_shape_list
from adapter_bert.ops.parameters import VARIABLES, Parameters

# Of the bottleneck [rows, m], before its activation; statistics as in `layers.batch_norm`.
NORMALIZATIONS = {
    "none": lambda bottleneck, statistics, parameters: bottleneck,
    "layer": lambda bottleneck, statistics, parameters: layers.layer_norm(
        bottleneck, collections=[ADAPTERS], parameters=parameters
    ),
    "batch": lambda bottleneck, statistics, parameters: layers.batch_norm(
        bottleneck, statistics, collections=[ADAPTERS], parameters=parameters
    ),
}
# What is added to x, of x and what the bottleneck makes: x + f, or x * (1 + f).
INTERACTIONS = {"add": lambda x, change: change, "multiply": lambda x, change: x * change}


def project(rows, name: str, units: int, init_scale: float, *, parameters: Parameters = VARIABLES):
    """rows W + b, with W = weights<name> [in, units] and b = biases<name> [1, units]."""
    shape, initializer = [get_shape_list(rows)[-1], units], create_initializer(init_scale)
    weights = parameters.get("weights" + name, shape, initializer, collections=[ADAPTERS])
    zeros = tf.zeros_initializer()
    biases = parameters.get("biases" + name, [1, units], zeros, collections=[ADAPTERS])
    return layers.affine(rows, weights, biases[0])


def deepen(hidden, depth: int, act: Callable, *, parameters: Parameters = VARIABLES):
    """Passes the bottleneck [rows, m] through depth - 1 more hidden layers, h → act(h W + b)."""
    size = get_shape_list(hidden)[-1]
    for index in range(2, depth + 1):
        # These keep the scale of what they read, and of gradients; init_scale would end both.
        name, init_scale = f"_hidden{index}", size**-0.5
        hidden = act(project(hidden, name, size, init_scale, parameters=parameters))
    return hidden


class Adapter(NamedTuple):
    """An adapter function, and what of an encoder it adapts.

    Attributes:
      function: function of (input, residual=None, statistics=None, parameters=VARIABLES), as
        `modeling.feedforward_adapter`.
      sites: scopes of the projections that it follows.
      is_parallel: bool; it reads what the sub-layer reads, and stands beside it.
      layers: indices of the layers that have one; None for all.
      is_normalized: bool; it reads the LayerNorm of the sub-layer's output and input, and is added
        to that output before the same LayerNorm (Pfeiffer et al. 2020, arXiv 2005.00247).
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
        layer_norm: Optional[Callable] = None,
    ):
        """Adapts a sub-layer.

        Args:
          output: float Tensor [rows, D], the sub-layer's output.
          sublayer_input: float Tensor [rows, D], what the sub-layer reads.
          statistics: as in `layers.batch_norm`.
          gate: float Tensor [B]: 1 where the adapter counts for a sequence, 0 where it is as if
            there were none; None where it always counts.
          parameters: the source of the weights.
          layer_norm: the one that closes the sub-layer, a function of (Tensor, plus=Tensor); needed
            where `is_normalized`.

        Returns:
          float Tensor [rows, D], or several, whose sum is the adapted output.
        """
        options = dict(statistics=statistics, parameters=parameters)
        if self.is_parallel:
            terms = self.function(sublayer_input, residual=output, **options)
        elif self.is_normalized:
            assert layer_norm is not None
            normalized = layer_norm(sublayer_input, plus=output)
            terms = self.function(normalized, residual=output, **options)
        else:
            terms = self.function(output, **options)
        return terms if gate is None else _gated(terms, output, gate)


def as_adapter(adapter_fn, adapter_layers: Optional[Sequence[int]], num_layers: int) -> Adapter:
    """Returns the `Adapter` of an encoder.

    Args:
      adapter_fn: `Adapter`, or a function of a sub-layer's output alone, or None for no adapters.
      adapter_layers: indices of the layers that have adapters; None for the `Adapter`'s own.
      num_layers: L.

    Raises:
      ValueError: the encoder has no layer of such an index.
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
            f"The encoder has layers 0 to {num_layers - 1}, but adapters are asked for in"
            f" {', '.join(map(str, unknown_layers))}."
        )
    return adapter_fn._replace(layers=tuple(adapted_layers))


def of_layer(
    adapter: Optional[Adapter],
    statistics: Optional[list] = None,
    gate=None,
    parameters: Parameters = VARIABLES,
) -> list:
    """Returns what follows both projections of a layer: the adapter, or nothing.

    Args:
      adapter: `Adapter`, or None for a layer without.
      statistics, gate, parameters: as in `Adapter.adapt`.

    Returns:
      Two functions of a sub-layer's (output, input, layer_norm) that return the adapted output;
      layer_norm is as in `Adapter.adapt`.
    """
    if adapter is None:
        return [_leave, _leave]
    adapt = functools.partial(
        adapter.adapt, statistics=statistics, gate=gate, parameters=parameters
    )

    def adapt_before(output, sublayer_input, layer_norm=None):
        return adapt(output, sublayer_input, layer_norm=layer_norm)

    return [adapt_before if site in adapter.sites else _leave for site in SITES["both"]]


def _leave(output, sublayer_input, layer_norm=None):
    del sublayer_input, layer_norm
    return output


def _gated(terms, output, gate):
    """Terms whose sum is gate * adapted + (1 - gate) * output; all are [B * F, D], gate is [B]."""
    first, *others = tf.nest.flatten(terms)
    rows_per_example = get_shape_list(output)[0] // get_shape_list(gate)[0]
    gate = tf.cast(tf.repeat(gate, rows_per_example)[:, tf.newaxis], output.dtype)
    if first is output:  # Only what is added to it comes and goes.
        return [output, *(gate * term for term in others)]
    return [*(gate * term for term in (first, *others)), (1 - gate) * output]
