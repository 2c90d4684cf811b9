"""Gradient accumulation: the loss of a batch and its gradients, computed in parts.

    loss = mean_loss(loss_of, features, num_parts)
    loss, gradients = loss_and_gradients(loss, variables)

Up to float error they equal those of the whole batch, except that each part has its own dropout
masks and batch statistics. They need the memory of one part.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

from adapter_bert.ops.layers import get_shape_list, keep_statistics, take_statistics


def mean_loss(loss_of: Callable, features: Dict[str, Any], num_parts: int = 1) -> Any:
    """Returns the mean loss of a batch: a scalar Tensor, or an `AccumulatedLoss` for several parts.

    Args:
      loss_of: function (features, index of the part) → scalar float Tensor, the mean over the rows
        of the features. With several parts it is called twice, in one variable scope.
      features: dict of Tensors [B, ...].
      num_parts: int, a divisor of B.

    Raises:
      ValueError: `num_parts` does not divide B.
    """
    return loss_of(features, 0) if num_parts == 1 else AccumulatedLoss(loss_of, features, num_parts)


def loss_and_gradients(loss: Any, variables: list) -> Tuple[Any, list]:
    """Returns a loss as a scalar Tensor, and its gradients; that of a variable may be None.

    Args:
      loss: scalar Tensor or `AccumulatedLoss`.
      variables: list of variables.
    """
    if isinstance(loss, AccumulatedLoss):
        return loss.with_gradients(variables)
    return loss, tf.gradients(loss, variables)


class AccumulatedLoss:
    """The mean loss of a batch in equal parts, of which only the first has been built.

    Args:
      loss_of, features, num_parts: as for `mean_loss`.
    """

    def __init__(self, loss_of: Callable, features: Dict[str, Any], num_parts: int):
        self._loss_of, self._num_parts = loss_of, num_parts
        self._parts = {name: _split(tensor, num_parts, name) for name, tensor in features.items()}
        self._scope = tf.get_variable_scope()
        # Before the loop, the first part creates the variables and shows which have gradients.
        self._first_loss = self._loss_of_part(0, reuse=None)
        self._statistics = take_statistics()

    def _loss_of_part(self, index: Any, reuse: Optional[bool]) -> tf.Tensor:
        part = {name: tf.gather(tensor, index) for name, tensor in self._parts.items()}
        # Entering the scope again restarts the numbering of default names, such as "LayerNorm_1".
        with tf.variable_scope(self._scope, reuse=reuse, auxiliary_name_scope=False):
            return self._loss_of(part, index)

    def with_gradients(self, variables: list) -> Tuple[Any, list]:
        """Returns (the mean loss, its gradients); see `loss_and_gradients`."""
        gradients = tf.gradients(self._first_loss, variables)
        connected = [v for v, gradient in zip(variables, gradients) if gradient is not None]

        def compute_part(index: tf.Tensor) -> List[Any]:
            loss = self._loss_of_part(index, reuse=True)
            values = [value for _, value in take_statistics()]
            return [loss, *tf.gradients(loss, connected), *values]

        first = [self._first_loss, *(gradient for gradient in gradients if gradient is not None)]
        first += [value for _, value in self._statistics]
        loss, *means = _mean_of_parts(first, compute_part, self._num_parts)
        remaining = iter(means)
        gradients = [None if g is None else next(remaining) for g in gradients]
        keep_statistics(zip([variable for variable, _ in self._statistics], remaining))
        return loss, gradients


def _split(tensor: tf.Tensor, num_parts: int, name: str) -> tf.Tensor:
    """Reshapes [B, ...] to [num_parts, B / num_parts, ...]."""
    rows, *inner = get_shape_list(tensor)
    if isinstance(rows, int) and rows % num_parts:
        raise ValueError(f"{name}: a batch of {rows} cannot be split into {num_parts} equal parts.")
    return tf.reshape(tensor, [num_parts, rows // num_parts, *inner])


def _mean_of_parts(first: List[Any], compute_part: Callable, num_parts: int) -> List[Any]:
    """Returns the mean of each value over all parts, which are computed one after the other.

    Args:
      first: list of Tensors and IndexedSlices, the values of part 0.
      compute_part: function from a part's index to the list of its values.
      num_parts: int.

    Returns:
      List of Tensors and IndexedSlices.
    """

    def add_part(index: tf.Tensor, totals: List[Any]) -> Tuple[tf.Tensor, List[Any]]:
        return index + 1, [_add_to_total(*pair) for pair in zip(totals, compute_part(index))]

    totals = [_to_loop_variable(value) for value in first]
    with tf.control_dependencies(tf.nest.flatten(totals)):  # Run part 0 first.
        index = tf.constant(1)
    _, totals = tf.while_loop(
        lambda index, _: index < num_parts,
        add_part,
        (index, totals),
        (index.shape, [_shape_invariant(total) for total in totals]),
        parallel_iterations=1,
        back_prop=False,
    )
    return [_divide(total, num_parts, value) for total, value in zip(totals, first)]


class _Slices(NamedTuple):
    """Holds the Tensors of IndexedSlices as loop variables, or the shapes of these."""

    values: Any
    indices: Any


def _to_loop_variable(value: Any) -> Any:
    """Returns IndexedSlices as `_Slices`, a Tensor unchanged."""
    return _Slices(value.values, value.indices) if isinstance(value, tf.IndexedSlices) else value


def _add_to_total(total: Any, value: Any) -> Any:
    """Returns the total plus a part's value.

    Slices are concatenated, not summed: as in a whole batch, the global norm counts each slice."""
    if isinstance(total, _Slices):
        return _Slices(*(tf.concat(pair, axis=0) for pair in zip(total, _to_loop_variable(value))))
    return total + value


def _shape_invariant(total: Any) -> Any:
    """Returns the shape of a total; the number of slices varies."""
    if isinstance(total, _Slices):
        return _Slices(*(tf.TensorShape([None]).concatenate(t.shape[1:]) for t in total))
    return total.shape


def _divide(total: Any, divisor: int, original: Any) -> Any:
    """Returns total / divisor; `_Slices` become IndexedSlices with the shape of `original`."""
    if isinstance(total, _Slices):
        return tf.IndexedSlices(total.values / divisor, total.indices, original.dense_shape)
    return total / divisor
