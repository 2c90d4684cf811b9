"""Places adapters in an encoder, and computes their variants.

The variants are those of section 3.6 of Houlsby et al. 2019 (https://arxiv.org/abs/1902.00751) and
of AdapterHub's layouts; see `configs.AdapterConfig`. The adapter itself is
`modeling.feedforward_adapter`.

Axes in shape comments: B batch, D hidden size, m adapter size.
"""

import functools
from typing import Any, Callable, NamedTuple, Optional, Sequence

import tensorflow.compat.v1 as tf

from adapter_bert.model.configs import SITES, AdapterConfig
from adapter_bert.model.model_variables import ADAPTER_TABLE, ADAPTERS
from adapter_bert.ops import layers
from adapter_bert.ops.layers import Sum, create_initializer, get_shape_list
from adapter_bert.ops.parameters import VARIABLES, Parameters
from adapter_bert.shell.errors import UserError


class Place(NamedTuple):
    """The variant of an adapter, and the tensors at its place in the encoder.

    Attributes:
      config: `AdapterConfig`.
      output: float Tensor [..., D], y, the sub-layer's output, which the adapter changes.
      statistics: as in `layers.batch_norm`.
      parameters: the source of the weights.
    """

    config: AdapterConfig
    output: Any
    statistics: Optional[list] = None
    parameters: Parameters = VARIABLES

    def weight(self, width: int, size: int, name: str, stddev: float = 0.0) -> tf.Tensor:
        """Returns a weight of the adapter.

        Args:
          width, size: D and m.
          name: a key of `AdapterConfig.variables`, which has its axes.
          stddev: of the truncated normal that initializes a new variable.

        Returns:
          float Tensor or variable; with one more axis [B, ...] if each example has its own.

        Raises:
          UserError: the adapter has no such variable.
        """
        sizes, variables = {"D": width, "m": size, "1": 1}, self.config.variables()
        if name not in variables:
            raise UserError(f"{self.config.fn} has no variable {name}: list it in {ADAPTER_TABLE}.")
        shape = [sizes[axis] for axis in variables[name].axes]
        initializer = create_initializer(stddev) if stddev else tf.zeros_initializer()
        return self.parameters.get(name, shape, initializer, collections=[ADAPTERS])

    def normalize(self, bottleneck: tf.Tensor) -> tf.Tensor:
        """Normalizes the bottleneck [rows, m] before its activation."""
        options: Any = dict(collections=[ADAPTERS], parameters=self.parameters)
        if self.config.normalization == "layer":
            return layers.layer_norm(bottleneck, **options)
        if self.config.normalization == "batch":
            return layers.batch_norm(bottleneck, self.statistics, **options)
        return bottleneck

    def combine(self, change: tf.Tensor) -> Sum:
        """Returns y + f(x) or, for the interaction "multiply", y + y f(x), from f(x)."""
        if self.config.scaling != 1.0:
            change = self.config.scaling * change
        is_factor = self.config.interaction == "multiply"
        return Sum(self.output, self.output * change if is_factor else change)


class Adapter(NamedTuple):
    """The adapters of an encoder, or of one layer.

    Attributes:
      function: None for no adapter. With a config, one such as `modeling.feedforward_adapter`.
        Without, a function from the sub-layer's output [rows, D] to the adapted output, or to
        several Tensors whose sum it is.
      config: `AdapterConfig`, or None.
      layers: indices of the layers with adapters; None for all.
      gate: float Tensor [B]: 1 applies the adapters to the example, 0 skips them. None applies them
        to all examples.
    """

    function: Any = None
    config: Optional[AdapterConfig] = None
    layers: Optional[Sequence[int]] = None
    gate: Any = None

    def in_layer(self, index: int, gates: Optional[tf.Tensor] = None) -> "Adapter":
        """Returns the `Adapter` of one layer; gates are those of `modeling.BertModel`."""
        if self.layers is not None and index not in self.layers:
            return Adapter()
        return self._replace(gate=None if gates is None else gates[:, index])

    def after(self, site: str, sublayer_input: tf.Tensor, forward: Any) -> Callable:
        """Returns the function that a layer applies after a projection.

        Args:
          site: scope of the projection.
          sublayer_input: float Tensor [rows, D], the input of the sub-layer.
          forward: `modeling.ForwardPass`.

        Returns:
          Function from the sub-layer's output [rows, D] to the adapted output, a `Sum`.
        """
        if self.function is None or (self.config and site not in SITES[self.config.sites]):
            return Sum
        return functools.partial(self._adapt, sublayer_input, forward)

    def _adapt(self, sublayer_input: tf.Tensor, forward: Any, output: tf.Tensor) -> Sum:
        config = self.config
        if config is None:
            adapted = Sum(*tf.nest.flatten(self.function(output)))
        else:
            source = output
            if config.placement == "parallel":
                source = sublayer_input
            elif config.placement == "normalized":
                source = forward.layer_norm(Sum(output) + sublayer_input, "LayerNorm")
            place = Place(config, output, forward.statistics, forward.parameters)
            adapted = self.function(source, config.size, config.init_scale, place=place)
        return adapted if self.gate is None else _gated(adapted, output, self.gate)


def _gated(adapted: Sum, output: tf.Tensor, gate: tf.Tensor) -> Sum:
    """Returns gate * adapted + (1 - gate) * output.

    All terms are [B * F, D], the gate is [B].
    """
    first, *others = adapted.terms
    rows_per_example = get_shape_list(output)[0] // get_shape_list(gate)[0]
    gate = tf.cast(tf.repeat(gate, rows_per_example)[:, tf.newaxis], output.dtype)
    if first is output:  # Then only the other terms need the gate.
        return Sum(output, *(gate * term for term in others))
    return Sum(*(gate * term for term in (first, *others)), (1 - gate) * output)
