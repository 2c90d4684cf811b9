"""Gradient checkpointing (Chen et al. 2016, arXiv 1604.06174): saves memory by recomputing.

Backpropagation saves all activations of the forward pass. A function wrapped in `recomputed` saves
only its inputs, and the backward pass recomputes the rest.
"""

from typing import Any, Callable, Sequence

import tensorflow.compat.v1 as tf

from adapter_bert.ops import xla
from adapter_bert.ops.gradients import with_gradients


def recomputed(function: Callable, *inputs: tf.Tensor) -> tf.Tensor:
    """Returns `function(*inputs)`, and saves only the inputs for the backward pass.

    The backward pass calls `function` again in the same variable scope. The second call must build
    the same computation, so dropout needs a key. Gradients flow to the inputs and to the variables
    that `function` gets by `tf.get_variable`, and equal those without recomputation. Any other
    Tensor that `function` reads counts as a constant.

    Args:
      function: function from Tensors to one Tensor.
      *inputs: Tensors.

    Returns:
      The function's Tensor.

    Raises:
      ValueError: `function` draws random numbers without a key; raised when the gradients are
        built.
    """
    saved_for_backward = [tf.convert_to_tensor(tensor) for tensor in inputs]
    scope = tf.get_variable_scope()
    variables = []

    def record_variable(getter: Callable, *args: Any, **kwargs: Any) -> Any:
        variable = getter(*args, **kwargs)
        # A variable that is recorded twice would get its gradient twice.
        if not any(recorded is variable for recorded in variables):
            variables.append(variable)
        return variable

    with tf.variable_scope(scope, custom_getter=record_variable, auxiliary_name_scope=False):
        output = function(*saved_for_backward)

    def backward(gradient: tf.Tensor) -> list:
        num_operations = len(output.graph.get_operations())
        # The control dependency delays recomputation until the backward pass needs it, and prevents
        # TensorFlow's graph optimizer from merging it with the forward pass.
        with tf.control_dependencies([gradient]):
            recomputed_inputs = [
                tf.identity(tensor) for tensor in xla.recompute(gradient, *saved_for_backward)
            ]
            with tf.variable_scope(scope, reuse=True, auxiliary_name_scope=False):
                recomputed_output = function(*recomputed_inputs)
        _check_repeatable(output.graph.get_operations()[num_operations:])
        sources = recomputed_inputs + variables
        return tf.gradients(recomputed_output, sources, gradient, stop_gradients=recomputed_inputs)

    # Of a variable that is not a resource, only the value is a Tensor that can have a gradient.
    values = [tf.convert_to_tensor(variable) for variable in variables]

    return with_gradients(output, [*saved_for_backward, *values], backward)


def _check_repeatable(operations: Sequence[tf.Operation]) -> None:
    """Raises ValueError if an operation draws different random numbers in each pass."""
    for operation in operations:
        if operation.type.startswith("Random"):
            raise ValueError(
                f"{operation.name} would draw different random numbers when it is recomputed: give"
                " dropout a key (set --random_seed)."
            )
