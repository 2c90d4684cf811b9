"""Means of losses and gradients over the replicas that share a batch."""

from typing import Any, Tuple

import tensorflow.compat.v1 as tf
from tensorflow.python.tpu import tpu_function


def mean_gradients(gradients: list, use_tpu: bool) -> Tuple[list, tf.Tensor]:
    """Averages gradients before clipping, so that N replicas of batch B / N match one of batch B.

    Args:
      gradients: list of this replica's gradients, Tensors or IndexedSlices.
      use_tpu: bool; whether the replicas are those of a TPU's program.

    Returns:
      (averaged gradients, their global norm).
    """
    num_replicas = _num_replicas(use_tpu)
    if num_replicas == 1:
        return gradients, tf.global_norm(gradients)
    averaged = mean_over_replicas([tf.convert_to_tensor(g) for g in gradients], use_tpu)
    # As on one replica, the norm counts each slice. With 1 / N of the rows, each slice is N times
    # as large, and so is the mean of the squares.
    is_sliced = [isinstance(gradient, tf.IndexedSlices) for gradient in gradients]
    squares = [
        tf.reduce_sum(tf.square(g.values)) for g, sliced in zip(gradients, is_sliced) if sliced
    ]
    norms = [tf.sqrt(square / num_replicas) for square in mean_over_replicas(squares, use_tpu)]
    norms += [tf.norm(g) for g, sliced in zip(averaged, is_sliced) if not sliced]
    return averaged, tf.norm(tf.stack(norms))


def summands(gradients: list, use_tpu: bool) -> list:
    """Divides the replicas' equal gradients, because a distribution strategy sums them."""
    num_replicas = 1 if use_tpu else _num_replicas(use_tpu)
    return [g / num_replicas for g in gradients] if num_replicas > 1 else gradients


def mean_over_replicas(tensors: list, use_tpu: bool = False) -> list:
    """Returns the means of float Tensors over the replicas.

    Args:
      tensors: list of this replica's Tensors.
      use_tpu: as in `mean_gradients`.
    """
    num_replicas = _num_replicas(use_tpu)
    if num_replicas == 1 or not tensors:
        return tensors
    if use_tpu:
        return [tf.tpu.cross_replica_sum(tensor) / num_replicas for tensor in tensors]

    def reduce(strategy: Any, tensors: list) -> list:
        # `all_reduce` would keep the graph alive; see `gradients`.
        pairs = list(zip(tensors, tensors))
        return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.MEAN, pairs)

    return tf.distribute.get_replica_context().merge_call(reduce, args=(tensors,))


def _num_replicas(use_tpu: bool) -> int:
    if use_tpu:
        return tpu_function.get_tpu_context().number_of_shards or 1  # None outside.
    return tf.distribute.get_replica_context().num_replicas_in_sync
