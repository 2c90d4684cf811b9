"""Gradients of one's own: `apply` joins a forward and a backward pass that are written by hand.

They are freed with their graph. TensorFlow's own `custom_gradient` would keep both as long as the
process lives, and a process that evaluates while it trains builds a hundred graphs.
"""

from typing import Callable

import tensorflow.compat.v1 as tf

from adapter_bert.ops import xla

_GRADIENT = "AdapterBertGradient"


def apply(forward: Callable, backward: Callable, *inputs, recompute: bool = False, **settings):
    """Returns what `forward` computes, which `tf.gradients` differentiates by `backward`.

    Args:
      forward: function (*inputs, **settings) → (output, saved): a Tensor, and what the backward
        pass reads.
      backward: function (saved, d_output) → the gradients of the inputs, one or a list; None for
        an input that has none.
      *inputs: Tensors.
      recompute: bool; save the inputs alone. The backward pass then calls `forward` again.
      **settings: what else `forward` needs.
    """
    inputs = tuple(map(tf.convert_to_tensor, inputs))
    output, saved = forward(*inputs, **settings)

    def gradients(d_output):
        if not recompute:
            return backward(saved, d_output)
        _, recomputed = forward(*xla.recompute(d_output, *inputs), **settings)
        return backward(recomputed, d_output)

    return with_gradients(output, inputs, gradients)


def with_gradients(output, inputs, gradients: Callable):
    """Returns an output whose gradients are given.

    Args:
      output: Tensor.
      inputs: list of the Tensors that it depends on.
      gradients: function of the output's gradient that returns that of each input, one or a list.
    """
    graph = tf.get_default_graph()
    # The inputs pass through too, as it is they whose gradients are given.
    with graph.gradient_override_map({"IdentityN": _GRADIENT}):
        output, *_ = tf.identity_n([output, *inputs])
    xla.graph_dict(graph, _GRADIENT)[output.op.name] = gradients
    return output


@tf.RegisterGradient(_GRADIENT)
def _gradients(operation, d_output, *_):
    d_inputs = xla.graph_dict(operation.graph, _GRADIENT)[operation.name](d_output)
    return [None, *(d_inputs if isinstance(d_inputs, (list, tuple)) else [d_inputs])]
