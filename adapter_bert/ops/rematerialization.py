"""Gradient checkpointing (Chen et al. 2016, arXiv 1604.06174): memory for arithmetic.

The backward pass of a network needs what the forward pass computed, all of it at once. A part
wrapped in `recomputed` keeps its inputs alone, and computes the rest again when its turn comes.
"""

from typing import Callable

import tensorflow.compat.v1 as tf

from adapter_bert.ops import xla
from adapter_bert.ops.gradients import with_gradients


def recomputed(function: Callable, *inputs):
    """`function(*inputs)`, of which only the inputs are kept for the backward pass.

    That pass calls `function` a second time, in the same variable scope: it must build the same
    computation again from the variables that it gets by `tf.get_variable`, so dropout needs a key.
    Gradients flow to the inputs and to those variables, with the values that they have without
    this function; whatever else `function` reads counts as a constant.

    Args:
      function: function from Tensors to one Tensor.
      *inputs: Tensors.

    Returns:
      The function's Tensor.

    Raises:
      ValueError: when gradients are asked for, if `function` draws random numbers without a key.
    """
    saved_for_backward = [tf.convert_to_tensor(tensor) for tensor in inputs]
    scope = tf.get_variable_scope()
    variables = []

    def record_variable(getter, *args, **kwargs):
        variable = getter(*args, **kwargs)
        # One that is recorded twice would get its gradient twice.
        if not any(recorded is variable for recorded in variables):
            variables.append(variable)
        return variable

    with tf.variable_scope(scope, custom_getter=record_variable, auxiliary_name_scope=False):
        output = function(*saved_for_backward)

    def backward(gradient):
        num_operations = len(output.graph.get_operations())
        # Behind the control dependency nothing starts before the backward pass arrives here, nor
        # does TensorFlow's optimizer see twice the same operation and merge both.
        with tf.control_dependencies([gradient]):
            recomputed_inputs = [
                tf.identity(tensor) for tensor in xla.recompute(gradient, *saved_for_backward)
            ]
            with tf.variable_scope(scope, reuse=True, auxiliary_name_scope=False):
                recomputed_output = function(*recomputed_inputs)
        _check_repeatable(output.graph.get_operations()[num_operations:])
        sources = recomputed_inputs + variables
        return tf.gradients(recomputed_output, sources, gradient, stop_gradients=recomputed_inputs)

    # The values of variables: one that is no resource has no other Tensor to take the gradient of.
    values = [tf.convert_to_tensor(variable) for variable in variables]

    return with_gradients(output, [*saved_for_backward, *values], backward)


def _check_repeatable(operations):
    """Raises ValueError if one of them draws other random numbers in each pass."""
    for operation in operations:
        if operation.type.startswith("Random"):
            raise ValueError(
                f"{operation.name} would draw other numbers when it is recomputed: give dropout a"
                " key (a run's --random_seed)."
            )
