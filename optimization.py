"""Training steps as BERT takes them: schedule, Adam with decoupled weight decay, clipping.

The formulas stand alone as pure functions (`warmup_then_linear_decay`, `adam_weight_decay`); the
optimizer only keeps their state, and `create_optimizer` puts them together for the variables that
`tuning` selects.
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
    """The learning rate of a step (Devlin et al. 2018, appendix A.2).

    lr * t / W below W warmup steps, lr * (1 - t / N) from there on, both counted from step 0: the
    first step's rate is 0, and at W the rate falls to that of the decay.

    Args:
      step: t, integer Tensor, the number of steps taken so far.
      init_lr: lr, the peak.
      num_train_steps: N.
      num_warmup_steps: W, 0 or None for no warmup.

    Returns:
      scalar float32 Tensor.
    """
    step = tf.cast(step, tf.float32)
    rate = init_lr * (1.0 - tf.minimum(step / num_train_steps, 1.0))
    if not num_warmup_steps:
        return rate
    return tf.where(step < num_warmup_steps, init_lr * step / num_warmup_steps, rate)


# BERT's fine-tuning takes 2e-5 to 5e-5, adapter-bert 3e-4. At the former, adapters often learn
# nothing: BioBERT's run_ner.py, at 1e-5 to 5e-5, had an F score of 0.00 with them, else 0.44.
_MAX_FINE_TUNING_RATE = 1e-4


def warn_of_fine_tuning_rate(learning_rate, remedy: str) -> None:
    """Warns where a recipe of BERT's fine-tuning may have met adapters by their being the default.

    Args:
      learning_rate: what the user gave; not checked if it is a Tensor.
      remedy: what to do for full fine-tuning, in the user's terms; ends the sentence.
    """
    if isinstance(learning_rate, numbers.Real) and learning_rate <= _MAX_FINE_TUNING_RATE:
        logging.warning(
            "A learning rate of %g suits full fine-tuning. Adapters are trained, which may learn"
            " nothing at that rate: give about 3e-4 for them, or %s for full fine-tuning.",
            learning_rate,
            remedy,
        )


def adam_weight_decay(param, grad, m, v, learning_rate, weight_decay, beta_1, beta_2, epsilon):
    """Adam without bias correction, with decoupled weight decay (Loshchilov and Hutter 2017).

    All tensors have the shape of `param`; the rates are scalars.

    Returns:
      (param, m, v) after the step.
    """
    m = beta_1 * m + (1.0 - beta_1) * grad
    v = beta_2 * v + (1.0 - beta_2) * tf.square(grad)
    update = m / (tf.sqrt(v) + epsilon) + weight_decay * param
    return param - learning_rate * update, m, v


def moving_average(average, value, step, momentum: float = 0.99):
    """An exponential moving average after one more value.

    The momentum rises to its own as (1 + t) / (10 + t), as in `tf.train.ExponentialMovingAverage`:
    where the average started is soon forgotten. At 0.99 from the first step on, the variance of a
    bottleneck, about 1e-4, would be lost behind its start of 1 for 1,000 steps.

    Args:
      average, value: float32 Tensors of one shape.
      step: t, integer Tensor, the number of values so far.
      momentum: float, what the average keeps of itself.

    Returns:
      float32 Tensor of that shape.
    """
    step = tf.cast(step, tf.float32)
    momentum = tf.minimum(momentum, (1.0 + step) / (10.0 + step))
    return momentum * average + (1.0 - momentum) * value


class TrainStep(NamedTuple):
    """One training step: the op that takes it, and the scalars worth watching."""

    train_op: tf.Operation
    learning_rate: tf.Tensor
    gradient_norm: tf.Tensor


def create_optimizer(
    loss, init_lr: float, num_train_steps: int, num_warmup_steps: Optional[int], use_tpu: bool
):
    """The operation that takes one training step, as BERT's function of this name.

    Args:
      loss: scalar float Tensor, the mean over this replica's batch.
      init_lr: float, the learning rate's peak.
      num_train_steps: int, where the learning rate reaches 0.
      num_warmup_steps: int, how long it rises.
      use_tpu: bool; gradients are averaged over the TPU's replicas.

    Returns:
      The train op, which also advances the global step by one. It trains adapters, LayerNorms and
      head in a model with adapters, and everything in one without; the log says how much that is.
      As in BERT, variables that the loss does not depend on stay as they are; so does a variable
      inside an encoder with adapters that is not BERT's and in no collection. One warning names
      them.

    Raises:
      ValueError: the loss depends on no variable that trains.
    """
    learning_rate = warmup_then_linear_decay(
        tf.train.get_or_create_global_step(), init_lr, num_train_steps, num_warmup_steps
    )
    if devices.replica() == 0 and tuning.default_tuning().method == "adapters":
        warn_of_fine_tuning_rate(init_lr, "BertModel(..., adapter_fn=None)")
    variables = tuning.trained_variables(strict=False)
    return minimize(loss, variables, learning_rate, use_tpu).train_op


def minimize(loss, variables: list, learning_rate, use_tpu: bool = False) -> TrainStep:
    """Takes one step down the loss, see `take_step`; logs how much trains, and warns of the rest.

    Args:
      loss: scalar float Tensor, the mean over this replica's batch.
      variables, learning_rate, use_tpu: as there.

    Raises:
      ValueError: the loss depends on none of the variables.
    """
    gradients = tf.gradients(loss, variables)
    connected = [v for v, gradient in zip(variables, gradients) if gradient is not None]
    if not connected:
        raise ValueError(f"The loss depends on none of the {len(variables)} variables that train.")
    if devices.replica() == 0:
        logging.info(tuning.summary(connected))
        warning = tuning.warning_of_untrained(variables, connected)
        if warning:
            logging.warning("%s", warning)
    return take_step(gradients, variables, learning_rate, use_tpu)


def take_step(gradients: list, variables: list, learning_rate, use_tpu: bool = False) -> TrainStep:
    """Takes one step with BERT's optimizer and settings, moving statistics with it.

    Args:
      gradients: list of the loss's gradients, where None means that it does not depend on that
        variable, which stays as it is; the loss is the mean over this replica's batch.
      variables: list of the variables to train.
      learning_rate: scalar float Tensor.
      use_tpu: bool; gradients are averaged over the TPU's replicas.

    Returns:
      `TrainStep`; its op advances the global step by one, and its gradient norm is the one before
      clipping.

    Raises:
      ValueError: each of several replicas has statistics of its own.
    """
    variables = [v for v, gradient in zip(variables, gradients) if gradient is not None]
    gradients = [gradient for gradient in gradients if gradient is not None]
    global_step = tf.train.get_or_create_global_step()
    gradients, norm = _average_over_replicas(gradients, variables, use_tpu)
    gradients, norm = tf.clip_by_global_norm(gradients, clip_norm=1.0, use_norm=norm)
    if not use_tpu:
        # Under a distribution strategy `apply_gradients` adds up what the replicas hand it, which
        # by now is the same everywhere.
        num_replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        gradients = [g / num_replicas for g in gradients] if num_replicas > 1 else gradients
    optimizer = AdamWeightDecayOptimizer(
        learning_rate=learning_rate,
        weight_decay_rate=0.01,
        adapter_weight_decay_rate=0.01,
        exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias", "adapters/BatchNorm"],
    )
    updates = [optimizer.apply_gradients(list(zip(gradients, variables)))]
    # The step advances last, for the updates read it.
    with tf.control_dependencies(updates + _update_statistics(global_step, use_tpu)):
        train_op = tf.group(global_step.assign_add(1))
    return TrainStep(train_op, learning_rate, norm)


def _update_statistics(global_step, use_tpu):
    """A list of operations, one for each moving statistic that this batch changes."""
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
    """The loss of a batch and its gradients, computed in equal parts, one after the other.

    To float error they are those of the whole batch, but for dropout, whose masks are each part's
    own, and batch normalization, whose statistics are. The memory that they take is a part's.

    Args:
      loss_of: function (features, index of the part) → scalar float Tensor, the mean over the rows
        of the features. It is called twice, in one variable scope, if there are several parts.
      variables_of: function () → list of variables, called when they are made.
      features: dict of Tensors [B, ...].
      num_parts: int that divides B.

    Returns:
      (loss, gradients, variables), as `take_step` takes them.

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
        # Entered anew, a scope counts anew what has no name of its own.
        with tf.variable_scope(scope, reuse=reuse, auxiliary_name_scope=False):
            return loss_of(part, index)

    # The first part stands before the loop: it makes the variables, and tells which have gradients.
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
    """[B, ...] → [num_parts, B / num_parts, ...]."""
    rows, *inner = get_shape_list(tensor)
    if isinstance(rows, int) and rows % num_parts:
        raise ValueError(f"{name}: a batch of {rows} has no {num_parts} equal parts.")
    return tf.reshape(tensor, [num_parts, rows // num_parts, *inner])


def _mean_of_parts(first, compute_part, num_parts):
    """The mean of each of several values over all parts, one part computed after the other.

    Args:
      first: list of Tensors and IndexedSlices, the values of part 0.
      compute_part: function from a part's index to such a list.
      num_parts: int.

    Returns:
      Such a list.
    """

    def add_part(index, totals):
        return index + 1, [_add_to_total(*pair) for pair in zip(totals, compute_part(index))]

    totals = [_to_loop_variable(value) for value in first]
    with tf.control_dependencies(tf.nest.flatten(totals)):  # Else it would not wait for part 0.
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
    """What of IndexedSlices a loop carries: the Tensors that grow, or their shapes."""

    values: Any
    indices: Any


def _to_loop_variable(value):
    """A Tensor as it is, IndexedSlices as `_Slices`."""
    return _Slices(value.values, value.indices) if isinstance(value, tf.IndexedSlices) else value


def _add_to_total(total, value):
    """The total with a part's value. Slices are strung together, not added up: the norm that clips
    counts each, as it does those of a whole batch."""
    if isinstance(total, _Slices):
        return _Slices(*(tf.concat(pair, axis=0) for pair in zip(total, _to_loop_variable(value))))
    return total + value


def _shape_invariant(total):
    """The shape that a total has before any part and after it."""
    if isinstance(total, _Slices):
        return _Slices(*(tf.TensorShape([None]).concatenate(t.shape[1:]) for t in total))
    return total.shape


def _divide(total, divisor, original):
    """The total as a Tensor, or as IndexedSlices of the dense shape of `original`."""
    if isinstance(total, _Slices):
        return tf.IndexedSlices(total.values / divisor, total.indices, original.dense_shape)
    return total / divisor


def _average_over_replicas(gradients, variables, use_tpu):
    """Averages before clipping, so that N replicas of batch B / N step as one of batch B does.

    Args:
      gradients, variables, use_tpu: as in `take_step`, without None.

    Returns:
      (the averaged gradients, their global norm).
    """
    num_replicas, mean = _mean_over_replicas(variables, use_tpu)
    if num_replicas == 1:
        return gradients, tf.global_norm(gradients)
    averaged = mean([tf.convert_to_tensor(gradient) for gradient in gradients])
    # The norm counts each slice, as it does those of a batch on one replica: of 1 / N of the rows,
    # each is N times what it is there.
    is_sliced = [isinstance(gradient, tf.IndexedSlices) for gradient in gradients]
    squares = [
        tf.reduce_sum(tf.square(g.values)) for g, sliced in zip(gradients, is_sliced) if sliced
    ]
    norms = [tf.sqrt(square / num_replicas) for square in mean(squares)]
    norms += [tf.norm(g) for g, sliced in zip(averaged, is_sliced) if not sliced]
    return averaged, tf.norm(tf.stack(norms))


def _mean_over_replicas(variables, use_tpu):
    """(number of replicas, function of a list of Tensors that returns their means over these).

    Args:
      variables: list of variables, on whose devices the first means are needed.
      use_tpu: bool.
    """
    if use_tpu:
        num_replicas = tpu_function.get_tpu_context().number_of_shards or 1  # None outside of it.
        return num_replicas, lambda tensors: [
            tf.tpu.cross_replica_sum(tensor) / num_replicas for tensor in tensors
        ]
    context = tf.distribute.get_replica_context()

    def reduce(strategy, tensors):
        pairs = list(zip(tensors, variables))
        return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.MEAN, pairs)

    def mean(tensors):
        return context.merge_call(reduce, args=(tensors,)) if tensors else []

    return context.num_replicas_in_sync, mean


class AdamWeightDecayOptimizer(tf.train.Optimizer):
    """`adam_weight_decay` as a TensorFlow optimizer.

    Gradients are applied by its base class, which reduces them under distribution strategies; slots
    are named adam_m and adam_v, as in BERT's checkpoints.

    Args:
      learning_rate: float or scalar Tensor.
      weight_decay_rate: float, for all variables but the following.
      adapter_weight_decay_rate: float, for the variables in the collection `adapters`.
      beta_1, beta_2, epsilon: as in `adam_weight_decay`.
      exclude_from_weight_decay: list of regular expressions; a variable whose name one of them
        matches is not decayed.
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
        """The weight decay of the variable of that name."""
        return self._rate_of(name) if self._do_use_weight_decay(name) else 0.0

    def _rate_of(self, name):
        return self.adapter_weight_decay_rate if name in self._adapters else self.weight_decay_rate

    def _do_use_weight_decay(self, param_name):
        """Returns whether a variable decays; subclasses may override it, as in BERT."""
        patterns = self.exclude_from_weight_decay
        is_excluded = any(re.search(pattern, param_name) for pattern in patterns)
        return bool(self._rate_of(param_name)) and not is_excluded

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """The op that takes the step; as BERT's, it leaves `global_step` to be advanced by others.

        Args:
          grads_and_vars: pairs; a variable whose gradient is None stays as it is.
          global_step: not used.
          name: str, of the op.
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
        # Moments of rows that a batch does not touch decay as well, as in BERT's own training.
        return self._apply_dense(tf.convert_to_tensor(grad), var)

    def _resource_apply_sparse(self, grad, handle, indices):
        return self._apply_sparse(tf.IndexedSlices(grad, indices, tf.shape(handle)), handle)
