"""BERT's training step: learning rate schedule, Adam with decoupled weight decay, clipping.

The formulas are pure functions (`warmup_then_linear_decay`, `adam_weight_decay`). The optimizer
stores their state. `create_optimizer` applies them to the variables that `tuning` selects.
"""

import numbers
import re
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf
from absl import logging
from tensorflow.python.tpu import tpu_function

import tuning
from adapter_bert.common import devices
from adapter_bert.ops import graph_functions
from adapter_bert.ops.layers import get_shape_list, keep_statistics, take_statistics, variable_name
from modeling import ADAPTERS


def warmup_then_linear_decay(
    step, init_lr: float, num_train_steps: int, num_warmup_steps: Optional[int]
):
    """Returns the learning rate of a step (Devlin et al. 2018, appendix A.2).

    lr * t / W for t < W, then lr * (1 - t / N). Both count t from 0: the first step's rate is 0,
    and at t = W the rate drops to lr * (1 - W / N).

    Args:
      step: t, integer Tensor, the number of completed steps.
      init_lr: lr, the peak.
      num_train_steps: N.
      num_warmup_steps: W; 0 or None for no warmup.

    Returns:
      scalar float32 Tensor.
    """
    step = tf.cast(step, tf.float32)
    rate = init_lr * (1.0 - tf.minimum(step / num_train_steps, 1.0))
    if not num_warmup_steps:
        return rate
    return tf.where(step < num_warmup_steps, init_lr * step / num_warmup_steps, rate)


# BERT is fine-tuned at 2e-5 to 5e-5, adapters are trained at 3e-4. At BERT's rates, adapters often
# learn nothing: BioBERT's run_ner.py, at 1e-5 to 5e-5, scored F1 0.00 with them, 0.44 without.
_MAX_FINE_TUNING_RATE = 1e-4


def warn_of_fine_tuning_rate(learning_rate, remedy: str) -> None:
    """Logs a warning if the learning rate suits full fine-tuning, but not adapters.

    Adapters are the default, so a recipe for BERT's fine-tuning may train them unintentionally.

    Args:
      learning_rate: the user's value; a Tensor is not checked.
      remedy: how to request full fine-tuning, such as a flag; completes "or ... for full
        fine-tuning".
    """
    if isinstance(learning_rate, numbers.Real) and learning_rate <= _MAX_FINE_TUNING_RATE:
        logging.warning(
            "A learning rate of %g suits full fine-tuning. Adapters are trained, which may learn"
            " nothing at that rate: give about 3e-4 for them, or %s for full fine-tuning.",
            learning_rate,
            remedy,
        )


def adam_weight_decay(param, grad, m, v, learning_rate, weight_decay, beta_1, beta_2, epsilon):
    """Takes a step of Adam with decoupled weight decay (Loshchilov and Hutter 2017).

    There is no bias correction, as in BERT. All tensors have the shape of `param`; the rates are
    scalars.

    Returns:
      (param, m, v) after the step.
    """
    m = beta_1 * m + (1.0 - beta_1) * grad
    v = beta_2 * v + (1.0 - beta_2) * tf.square(grad)
    update = m / (tf.sqrt(v) + epsilon) + weight_decay * param
    return param - learning_rate * update, m, v


def moving_average(average, value, step):
    """Updates an exponential moving average with a value.

    The momentum is min(0.99, (1 + t) / (10 + t)), as in `tf.train.ExponentialMovingAverage`,
    so that the initial value is soon forgotten. With 0.99 from the first step, the initial value 1
    of a moving variance would hide the variance of a bottleneck, about 1e-4, for 1,000 steps.

    Args:
      average, value: float32 Tensors of one shape.
      step: t, integer Tensor, the number of earlier values.

    Returns:
      float32 Tensor of that shape.
    """
    step = tf.cast(step, tf.float32)
    momentum = tf.minimum(0.99, (1.0 + step) / (10.0 + step))
    return momentum * average + (1.0 - momentum) * value


def create_optimizer(
    loss, init_lr: float, num_train_steps: int, num_warmup_steps: Optional[int], use_tpu: bool
):
    """Returns the op of one training step, like BERT's function of this name.

    In a model with adapters it trains adapters, LayerNorms and head, otherwise all variables. It
    logs the number of trained parameters. As in BERT, variables without a gradient do not train;
    nor do variables of an encoder with adapters that are neither BERT's nor in a collection. A
    warning lists both.

    Args:
      loss: scalar float Tensor, the mean over this replica's batch.
      init_lr: float, the peak learning rate.
      num_train_steps: int, the step at which the learning rate reaches 0.
      num_warmup_steps: int, the number of steps in which it rises.
      use_tpu: bool; average gradients over the TPU's replicas.

    Returns:
      The train op, which also increments the global step.

    Raises:
      ValueError: no variable to train has a gradient.
    """
    learning_rate = warmup_then_linear_decay(
        tf.train.get_or_create_global_step(), init_lr, num_train_steps, num_warmup_steps
    )
    variables = tuning.trained_variables(strict=False)
    gradients = tf.gradients(loss, variables)
    connected = [v for v, gradient in zip(variables, gradients) if gradient is not None]
    if not connected:
        raise ValueError(f"The loss depends on none of the {len(variables)} variables that train.")
    if devices.replica() == 0:
        if tuning.default_tuning().method == "adapters":
            warn_of_fine_tuning_rate(init_lr, "BertModel(..., adapter_fn=None)")
        logging.info(tuning.summary(connected))
        warning = tuning.warning_of_untrained(variables, connected)
        if warning:
            logging.warning("%s", warning)
    return take_step(gradients, variables, learning_rate, use_tpu)[0]


def take_step(gradients: list, variables: list, learning_rate, use_tpu: bool = False) -> tuple:
    """Applies gradients with BERT's optimizer and settings.

    It also updates the moving statistics of batch normalization.

    Args:
      gradients: list of the gradients of the mean loss over this replica's batch; a variable whose
        gradient is None does not change.
      variables: list of the variables to train.
      learning_rate: scalar float Tensor.
      use_tpu: bool; average gradients over the TPU's replicas.

    Returns:
      (train op, which also increments the global step; global norm of the gradients before
      clipping).

    Raises:
      ValueError: there are batch statistics and several replicas.
    """
    variables = [v for v, gradient in zip(variables, gradients) if gradient is not None]
    gradients = [gradient for gradient in gradients if gradient is not None]
    global_step = tf.train.get_or_create_global_step()
    gradients, norm = _average_over_replicas(gradients, use_tpu)
    gradients, norm = tf.clip_by_global_norm(gradients, clip_norm=1.0, use_norm=norm)
    if not use_tpu:
        # Under a distribution strategy `apply_gradients` sums over the replicas, whose gradients
        # are already averaged and equal.
        num_replicas = _num_replicas(use_tpu)
        gradients = [g / num_replicas for g in gradients] if num_replicas > 1 else gradients
    optimizer = AdamWeightDecayOptimizer(
        learning_rate=learning_rate,
        weight_decay_rate=0.01,
        adapter_weight_decay_rate=0.01,
        exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias", "adapters/BatchNorm"],
    )
    updates = [optimizer.apply_gradients(list(zip(gradients, variables)))]
    # Last, because the updates read the global step.
    with tf.control_dependencies(updates + _update_statistics(global_step, use_tpu)):
        train_op = tf.group(global_step.assign_add(1))
    return train_op, norm


def _update_statistics(global_step, use_tpu):
    """Returns the ops that update the moving statistics with those of this batch."""
    statistics = take_statistics()
    if statistics and (use_tpu or tf.distribute.has_strategy()):
        raise ValueError("Batch normalization in training needs the whole batch on one device.")
    return [
        variable.assign(moving_average(variable, value, global_step)).op
        for variable, value in statistics
    ]


def mean_gradients(
    loss_of: Callable, variables_of: Callable, features: Dict[str, Any], num_parts: int = 1
) -> Tuple[Any, list, list]:
    """Returns the loss of a batch and its gradients, accumulated over equal parts of the batch.

    Up to float error they equal those of the whole batch, except that each part has its own
    dropout masks and batch statistics. They need the memory of one part.

    Args:
      loss_of: function (features, index of the part) → scalar float Tensor, the mean over the rows
        of the features. With several parts it is called twice, in one variable scope.
      variables_of: function () → list of variables, called after they are created.
      features: dict of Tensors [B, ...].
      num_parts: int, a divisor of B.

    Returns:
      (loss, gradients, variables); the latter two as for `take_step`.

    Raises:
      ValueError: `num_parts` does not divide B.
    """
    if num_parts == 1:
        loss, variables = loss_of(features, 0), variables_of()
        return loss, tf.gradients(loss, variables), variables
    parts = {name: _split(tensor, num_parts, name) for name, tensor in features.items()}
    scope = tf.get_variable_scope()

    def loss_of_part(index, reuse):
        part = {name: tf.gather(tensor, index) for name, tensor in parts.items()}
        # Entering the scope again restarts the numbering of default names, such as "LayerNorm_1".
        with tf.variable_scope(scope, reuse=reuse, auxiliary_name_scope=False):
            return loss_of(part, index)

    # Before the loop, the first part creates the variables and shows which have gradients.
    loss, variables = loss_of_part(0, reuse=None), variables_of()
    statistics = take_statistics()
    gradients = tf.gradients(loss, variables)
    connected = [v for v, gradient in zip(variables, gradients) if gradient is not None]

    def compute_part(index):
        loss = loss_of_part(index, reuse=True)
        values = [value for _, value in take_statistics()]
        return [loss, *tf.gradients(loss, connected), *values]

    first = [loss, *(gradient for gradient in gradients if gradient is not None)]
    first += [value for _, value in statistics]
    loss, *means = _mean_of_parts(first, compute_part, num_parts)
    means = iter(means)
    gradients = [None if g is None else next(means) for g in gradients]
    keep_statistics(zip([variable for variable, _ in statistics], means))
    return loss, gradients, variables


def _split(tensor, num_parts, name):
    """Reshapes [B, ...] to [num_parts, B / num_parts, ...]."""
    rows, *inner = get_shape_list(tensor)
    if isinstance(rows, int) and rows % num_parts:
        raise ValueError(f"{name}: a batch of {rows} cannot be split into {num_parts} equal parts.")
    return tf.reshape(tensor, [num_parts, rows // num_parts, *inner])


def _mean_of_parts(first, compute_part, num_parts):
    """Returns the mean of each value over all parts, which are computed one after the other.

    Args:
      first: list of Tensors and IndexedSlices, the values of part 0.
      compute_part: function from a part's index to the list of its values.
      num_parts: int.

    Returns:
      List of Tensors and IndexedSlices.
    """

    def add_part(index, totals):
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


def _to_loop_variable(value):
    """Returns IndexedSlices as `_Slices`, a Tensor unchanged."""
    return _Slices(value.values, value.indices) if isinstance(value, tf.IndexedSlices) else value


def _add_to_total(total, value):
    """Returns the total plus a part's value.

    Slices are concatenated, not summed: as in a whole batch, the global norm counts each slice."""
    if isinstance(total, _Slices):
        return _Slices(*(tf.concat(pair, axis=0) for pair in zip(total, _to_loop_variable(value))))
    return total + value


def _shape_invariant(total):
    """Returns the shape of a total; the number of slices varies."""
    if isinstance(total, _Slices):
        return _Slices(*(tf.TensorShape([None]).concatenate(t.shape[1:]) for t in total))
    return total.shape


def _divide(total, divisor, original):
    """Returns total / divisor; `_Slices` become IndexedSlices with the shape of `original`."""
    if isinstance(total, _Slices):
        return tf.IndexedSlices(total.values / divisor, total.indices, original.dense_shape)
    return total / divisor


def _average_over_replicas(gradients, use_tpu):
    """Averages gradients before clipping, so that N replicas of batch B / N match one of batch B.

    Args:
      gradients, use_tpu: as in `take_step`, without None.

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


def mean_over_replicas(tensors: list, use_tpu: bool = False) -> list:
    """Returns the means of float Tensors over the replicas.

    Args:
      tensors: list of this replica's Tensors.
      use_tpu: as in `take_step`.
    """
    num_replicas = _num_replicas(use_tpu)
    if num_replicas == 1 or not tensors:
        return tensors
    if use_tpu:
        return [tf.tpu.cross_replica_sum(tensor) / num_replicas for tensor in tensors]

    def reduce(strategy, tensors):  # `all_reduce` would keep the graph alive; see `gradients`.
        pairs = list(zip(tensors, tensors))
        return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.MEAN, pairs)

    return tf.distribute.get_replica_context().merge_call(reduce, args=(tensors,))


def _num_replicas(use_tpu):
    if use_tpu:
        return tpu_function.get_tpu_context().number_of_shards or 1  # None outside.
    return tf.distribute.get_replica_context().num_replicas_in_sync


class AdamWeightDecayOptimizer(tf.train.Optimizer):
    """Implements `adam_weight_decay` as a TensorFlow optimizer.

    The base class applies the gradients, and sums them under distribution strategies. Slots are
    named adam_m and adam_v, as in BERT's checkpoints.

    Args:
      learning_rate: float or scalar Tensor.
      weight_decay_rate: float, for variables that are not adapters.
      adapter_weight_decay_rate: float, for variables in the collection `adapters`.
      beta_1, beta_2, epsilon: as in `adam_weight_decay`.
      exclude_from_weight_decay: list of regular expressions; variables whose names match one have
        no weight decay.
      name: str.
    """

    def __init__(
        self,
        learning_rate,
        weight_decay_rate: float = 0.0,
        adapter_weight_decay_rate: float = 0.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        exclude_from_weight_decay: Optional[Sequence[str]] = None,
        name: str = "AdamWeightDecayOptimizer",
    ):
        super().__init__(use_locking=False, name=name)
        self.learning_rate = learning_rate
        self.weight_decay_rate = weight_decay_rate
        self.adapter_weight_decay_rate = adapter_weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.exclude_from_weight_decay = exclude_from_weight_decay or []
        self._adapters = {variable_name(variable) for variable in tf.get_collection(ADAPTERS)}

    def decay_of(self, name: str) -> float:
        """Returns the weight decay of a variable."""
        return self._rate_of(name) if self._do_use_weight_decay(name) else 0.0

    def _rate_of(self, name):
        return self.adapter_weight_decay_rate if name in self._adapters else self.weight_decay_rate

    def _do_use_weight_decay(self, param_name):
        """Returns whether a variable has weight decay; can be overridden, as in BERT."""
        patterns = self.exclude_from_weight_decay
        is_excluded = any(re.search(pattern, param_name) for pattern in patterns)
        return bool(self._rate_of(param_name)) and not is_excluded

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Returns the op that updates the variables; like BERT's, it does not touch `global_step`.

        Args:
          grads_and_vars: list of pairs; a variable whose gradient is None does not change.
          global_step: ignored.
          name: str, name of the op.
        """
        del global_step
        return super().apply_gradients(grads_and_vars, name=name)

    def _create_slots(self, var_list):
        for variable in var_list:
            self._zeros_slot(variable, "m", "adam_m")
            self._zeros_slot(variable, "v", "adam_v")

    def _apply_dense(self, grad, var):
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        updated = graph_functions.elementwise(
            adam_weight_decay,
            var,
            grad,
            m,
            v,
            tf.cast(self.learning_rate, var.dtype.base_dtype),
            weight_decay=self.decay_of(variable_name(var)),
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
        )
        return tf.group(
            *(old.assign(new, read_value=False) for old, new in zip((var, m, v), updated))
        )

    def _resource_apply_dense(self, grad, handle):
        return self._apply_dense(grad, handle)

    def _apply_sparse(self, grad, var):
        # Dense, as in BERT: the moments of rows without gradients decay, too.
        return self._apply_dense(tf.convert_to_tensor(grad), var)

    def _resource_apply_sparse(self, grad, handle, indices):
        return self._apply_sparse(tf.IndexedSlices(grad, indices, tf.shape(handle)), handle)
