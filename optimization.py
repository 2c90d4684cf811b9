"""BERT's training step: learning rate schedule, Adam with decoupled weight decay, clipping.

The formulas are pure functions (`warmup_then_linear_decay`, `adam_weight_decay`). The optimizer
stores their state. `create_optimizer` applies them to the variables that `tuning` selects.
"""

import numbers
import re
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf
from absl import logging

from adapter_bert.model import model_variables
from adapter_bert.modeling import ADAPTERS
from adapter_bert.ops import accumulation, devices, graph_functions, replicas
from adapter_bert.ops.layers import moving_variables, take_statistics, variable_name
from adapter_bert.ops.parameters import zeros
from adapter_bert.tuning import (
    Tuning,
    check_gradients,
    default_tuning,
    summary,
    trained_variables,
    warning_of_untrained,
)


def warmup_then_linear_decay(
    step: tf.Tensor, init_lr: float, num_train_steps: int, num_warmup_steps: Optional[int]
) -> tf.Tensor:
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


def warn_of_fine_tuning_rate(learning_rate: Any, remedy: str) -> None:
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


def adam_weight_decay(
    param: tf.Tensor,
    grad: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    learning_rate: Any,
    weight_decay: float,
    beta_1: float,
    beta_2: float,
    epsilon: float,
) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
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


def _adam_weight_decay(
    param: tf.Tensor, m: tf.Tensor, v: tf.Tensor, grad: tf.Tensor, rate: tf.Tensor, **settings: Any
) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Calls `adam_weight_decay`, with the variables first."""
    return adam_weight_decay(param, grad, m, v, rate, **settings)


def moving_average(average: tf.Tensor, value: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
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
    loss: Any,
    init_lr: float,
    num_train_steps: int,
    num_warmup_steps: Optional[int],
    use_tpu: bool,
    *,
    tuning: Optional[Tuning] = None,
    saved_shapes: Optional[model_variables.Shapes] = None,
    scalars: Optional[Dict[str, Any]] = None,
) -> tf.Operation:
    """Returns the op of one training step, like BERT's function of this name.

    In a model with adapters it trains adapters, LayerNorms and head, otherwise all variables. It
    logs the number of trained parameters, and updates the moving statistics of batch normalization.

    Args:
      loss: scalar float Tensor, the mean over this replica's batch; or an
        `accumulation.AccumulatedLoss`.
      init_lr: float, the peak learning rate.
      num_train_steps: int, the step at which the learning rate reaches 0.
      num_warmup_steps: int, the number of steps in which it rises from 0; 0 or None for none.
      use_tpu: bool; average gradients over the TPU's replicas.
      tuning: `Tuning`. With one, the loss must depend on all adapters and the head, and a rule must
        cover each variable. Without, other variables do not train, as in BERT, and a warning lists
        them.
      saved_shapes: shapes of the variables that the task adapter will hold, and of moving
        statistics, by name; a model that trains others is refused. None for any.
      scalars: dict that gets the Tensors "loss", "learning_rate" and "gradient_norm", the norm
        before clipping.

    Returns:
      The train op, which also increments the global step.

    Raises:
      UserError: the variables that train are not those in `saved_shapes`.
      ValueError: no variable to train has a gradient; the tuning demands more; or there are batch
        statistics and several replicas.
    """
    global_step = tf.train.get_or_create_global_step()
    learning_rate = warmup_then_linear_decay(
        global_step, init_lr, num_train_steps, num_warmup_steps
    )
    tvars = trained_variables(tuning, strict=bool(tuning))  # Adapters, LayerNorms and the head.
    _check_saved(tvars, saved_shapes)
    loss, grads = accumulation.loss_and_gradients(loss, tvars)
    tvars, grads = _connected(tvars, grads, tuning, init_lr)
    grads, norm = replicas.mean_gradients(grads, use_tpu)
    grads, _ = tf.clip_by_global_norm(grads, clip_norm=1.0, use_norm=norm)
    optimizer = AdamWeightDecayOptimizer(
        learning_rate=learning_rate,
        weight_decay_rate=0.01,
        adapter_weight_decay_rate=0.01,
        exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias", "adapters/BatchNorm"],
    )
    update = optimizer.apply_gradients(list(zip(replicas.summands(grads, use_tpu), tvars)))
    if scalars is not None:
        scalars.update(loss=loss, learning_rate=learning_rate, gradient_norm=norm)
    # Last, because the updates read the global step.
    with tf.control_dependencies([update, *_update_statistics(global_step, use_tpu)]):
        return tf.group(global_step.assign_add(1))


def _check_saved(tvars: list, saved_shapes: Optional[model_variables.Shapes]) -> None:
    """Raises UserError unless the variables that train are those that will be saved."""
    if saved_shapes is not None:
        variables = [*tvars, *moving_variables()]
        shapes = {variable_name(v): tuple(v.shape.as_list()) for v in variables}
        model_variables.check_listed(shapes, saved_shapes)


def _connected(
    tvars: list, grads: list, tuning: Optional[Tuning], learning_rate: float
) -> Tuple[list, list]:
    """Returns the variables that have a gradient, and their gradients; logs and checks them."""
    connected = [v for v, grad in zip(tvars, grads) if grad is not None]
    if not connected:
        raise ValueError(f"The loss depends on none of the {len(tvars)} variables that train.")
    if tuning:
        check_gradients(tvars, grads)
    if devices.replica() == 0:
        if not tuning and default_tuning().method == "adapters":
            warn_of_fine_tuning_rate(learning_rate, "adapter_fn=None")
        logging.info(summary(connected))
        logging.vlog(1, "Trained: %s", ", ".join(map(variable_name, connected)))
        warning = "" if tuning else warning_of_untrained(tvars, connected)
        if warning:
            logging.warning("%s", warning)
    return connected, [grad for grad in grads if grad is not None]


def _update_statistics(global_step: tf.Tensor, use_tpu: bool) -> List[tf.Operation]:
    """Returns the ops that update the moving statistics with those of this batch."""
    statistics = take_statistics()
    if statistics and (use_tpu or tf.distribute.has_strategy()):
        raise ValueError("Batch normalization in training needs the whole batch on one device.")
    return [
        variable.assign(moving_average(variable, value, global_step)).op
        for variable, value in statistics
    ]


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
        learning_rate: Any,
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

    def _rate_of(self, name: str) -> float:
        return self.adapter_weight_decay_rate if name in self._adapters else self.weight_decay_rate

    def _do_use_weight_decay(self, param_name: str) -> bool:
        """Returns whether a variable has weight decay; can be overridden, as in BERT."""
        patterns = self.exclude_from_weight_decay
        is_excluded = any(re.search(pattern, param_name) for pattern in patterns)
        return bool(self._rate_of(param_name)) and not is_excluded

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple], global_step: Any = None, name: Optional[str] = None
    ) -> tf.Operation:
        """Returns the op that updates the variables; like BERT's, it does not touch `global_step`.

        Args:
          grads_and_vars: list of pairs; a variable whose gradient is None does not change.
          global_step: ignored.
          name: str, name of the op.
        """
        del global_step
        return super().apply_gradients(grads_and_vars, name=name)

    def _create_slots(self, var_list: list) -> None:
        for var in var_list:
            options = var, zeros, var.shape, var.dtype.base_dtype
            self._get_or_make_slot_with_initializer(*options, "m", "adam_m")
            self._get_or_make_slot_with_initializer(*options, "v", "adam_v")

    def _apply_dense(self, grad: tf.Tensor, var: Any) -> tf.Operation:
        return graph_functions.update(
            _adam_weight_decay,
            [var, self.get_slot(var, "m"), self.get_slot(var, "v")],
            grad,
            tf.cast(self.learning_rate, var.dtype.base_dtype),
            weight_decay=self.decay_of(variable_name(var)),
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
        )

    def _resource_apply_dense(self, grad: tf.Tensor, handle: Any) -> tf.Operation:
        return self._apply_dense(grad, handle)

    def _apply_sparse(self, grad: tf.IndexedSlices, var: Any) -> tf.Operation:
        # Dense, as in BERT: the moments of rows without gradients decay, too.
        return self._apply_dense(tf.convert_to_tensor(grad), var)

    def _resource_apply_sparse(
        self, grad: tf.Tensor, handle: Any, indices: tf.Tensor
    ) -> tf.Operation:
        return self._apply_sparse(tf.IndexedSlices(grad, indices, tf.shape(handle)), handle)
