"""Custom gradients: `apply` joins a hand-written forward and backward pass.

Both are freed with their graph. `tf.custom_gradient` would keep them as long as the process lives,
and a training that evaluates builds a hundred graphs.
"""

from typing import Any, Callable, Sequence

import tensorflow.compat.v1 as tf

from adapter_bert.ops import xla

_GRADIENT = "AdapterBertGradient"


def apply(
    forward: Callable,
    backward: Callable,
    *inputs: tf.Tensor,
    recompute: bool = False,
    **settings: Any,
) -> tf.Tensor:
    """Returns the output of `forward`, whose gradients `backward` computes.

    Args:
      forward: function (*inputs, **settings) → (output, saved): a Tensor, and any object for
        `backward`.
      backward: function (saved, d_output) → the gradient of each input, a list or the only one;
        None for an input without a gradient.
      *inputs: Tensors.
      recompute: bool; save only the inputs, and call `forward` again in the backward pass.
      **settings: other arguments of `forward`.
    """
    inputs = tuple(map(tf.convert_to_tensor, inputs))
    output, saved = forward(*inputs, **settings)

    def gradients(d_output: tf.Tensor) -> Any:
        if not recompute:
            return backward(saved, d_output)
        _, recomputed = forward(*xla.recompute(d_output, *inputs), **settings)
        return backward(recomputed, d_output)

    return with_gradients(output, inputs, gradients)


def with_gradients(
    output: tf.Tensor, inputs: Sequence[tf.Tensor], gradients: Callable
) -> tf.Tensor:
    """Returns an output with a custom gradient function.

    Args:
      output: Tensor.
      inputs: list of Tensors on which the output depends.
      gradients: function from the output's gradient to the gradient of each input, a list or the
        only one.
    """
    graph = tf.get_default_graph()
    # Inputs must pass through the operation to receive its gradients.
    with graph.gradient_override_map({"IdentityN": _GRADIENT}):
        output, *_ = tf.identity_n([output, *inputs])
    xla.graph_dict(graph, _GRADIENT)[output.op.name] = xla.in_current_mode(gradients)
    return output


@tf.RegisterGradient(_GRADIENT)
def _gradients(operation: tf.Operation, d_output: tf.Tensor, *_: tf.Tensor) -> list:
    d_inputs = xla.graph_dict(operation.graph, _GRADIENT)[operation.name](d_output)
    return [None, *(d_inputs if isinstance(d_inputs, (list, tuple)) else [d_inputs])]
