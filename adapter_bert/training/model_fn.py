"""The model_fn of every script, a pure function of the model's settings and of what builds it.

    def create_model(features, is_training, **options): ...    # → ModelOutput
    model_fn = model_fn_builder(ModelSettings(...), create_model)     # for an Estimator

It loads weights, calls `optimization.create_optimizer` and shows progress.
"""

import dataclasses
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from adapter_bert import modeling, optimization, tuning
from adapter_bert.model import model_variables
from adapter_bert.ops import accumulation, devices, replicas
from adapter_bert.shell import tf_estimator
from adapter_bert.training import config as training_config
from adapter_bert.training import progress, restore
from adapter_bert.tuning import Tuning

Tensors = Dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """The settings that, besides the data, determine the trained weights.

    Attributes:
      bert_config: `modeling.BertConfig`.
      init_checkpoint: prefix of the pretrained checkpoint, None for random weights. Frozen
        variables are read from it at every start, and never written.
      task_checkpoint: prefix of a checkpoint to start training from, with exactly the variables
        that train and moving statistics.
      adapter_fn: as in `modeling.BertModel`.
      tuning: `tuning.Tuning`; None chooses by the graph, see `tuning.default_tuning`.
      learning_rate: peak of the schedule.
      num_train_steps, num_warmup_steps: length of the schedule and of its warm-up; None without
        training.
      use_tpu: whether the model runs on a TPU.
      use_one_hot_embeddings: as in `modeling.BertModel`.
      random_seed: of initial values and dropout masks; None for TensorFlow's own dropout.
      precision: "float32" or "bfloat16", of everything between the variables and the outputs.
      recompute_activations: as in `modeling.BertModel`.
      gradient_accumulation_steps: number of equal parts of a batch, computed one after the other
        before the one step of the optimizer.
      run_identity: digest of everything that determines the weights, including the data; it marks
        the run's checkpoints. None for no mark.
      saved_shapes: as in `optimization.create_optimizer`.
    """

    bert_config: modeling.BertConfig
    init_checkpoint: Optional[str] = None
    task_checkpoint: Optional[str] = None
    adapter_fn: Any = "feedforward_adapter"
    tuning: Optional[Tuning] = None
    learning_rate: float = training_config.ADAPTER_SCHEDULE[0]
    num_train_steps: int = None  # type: ignore[assignment]  # None only without training.
    num_warmup_steps: Optional[int] = None
    use_tpu: bool = False
    use_one_hot_embeddings: bool = False
    random_seed: Optional[int] = None
    precision: str = "float32"
    recompute_activations: bool = False
    gradient_accumulation_steps: int = 1
    run_identity: Optional[str] = None
    saved_shapes: Optional[model_variables.Shapes] = None


class ModelOutput(NamedTuple):
    """A model's loss, predictions and metrics for a batch.

    Attributes:
      loss: scalar float Tensor, the mean over the batch.
      predictions: dict of Tensors [B, ...].
      metric_fn, metric_inputs: `metric_fn(*metric_inputs)` → dict of tf.metrics, for the mode EVAL
        of BERT's own code; our scripts compute scores from predictions.
    """

    loss: tf.Tensor
    predictions: Dict[str, tf.Tensor]
    metric_fn: Optional[Callable] = None
    metric_inputs: Sequence = ()


# A feature [B] of a batch that is computed in parts: the mean of `row_weights` over all parts.
MEAN_ROW_WEIGHT = "mean_row_weight"


def model_fn_builder(
    settings: ModelSettings,
    create_model: Callable[..., ModelOutput],
    row_weights: Optional[Callable[[Tensors], tf.Tensor]] = None,
) -> Callable[..., Any]:
    """Returns the model_fn for the given settings and model.

    Args:
      settings: `ModelSettings`.
      create_model: function (features, is_training, **options) → `ModelOutput`; the options are
        keyword arguments of `modeling.BertModel`.
      row_weights: function of the features that returns float [B], if the loss is a weighted mean
        over rows. If there is a feature `MEAN_ROW_WEIGHT`, the loss divides by the sum of this
        feature, so that the mean over the parts of a batch is that of the batch.

    Returns:
      model_fn(features, labels, mode, params) for TPUEstimator. `labels` is unused, as labels are
      among the features.
    """

    def model_fn(
        features: Tensors, labels: Any, mode: str, params: Dict[str, Any], config: Any = None
    ) -> Any:
        del labels
        if mode == tf_estimator.ModeKeys.TRAIN:
            features = _with_mean_row_weight(settings, row_weights, features)
            return _training_spec(settings, create_model, features, params, config)
        output = create_model(features, False, **_options(settings, features))
        trained = tuning.trained_variables(settings.tuning, strict=bool(settings.tuning))
        scaffold_fn = restore.scaffold_fn(settings, trained, config)
        if mode == tf_estimator.ModeKeys.PREDICT:
            return tf_estimator.tpu.TPUEstimatorSpec(
                mode, predictions=output.predictions, scaffold_fn=scaffold_fn
            )
        return tf_estimator.tpu.TPUEstimatorSpec(
            mode,
            loss=output.loss,
            eval_metrics=output.metric_fn and (output.metric_fn, output.metric_inputs),
            scaffold_fn=scaffold_fn,
        )

    return model_fn


def _options(
    settings: ModelSettings, features: Tensors, dropout_key: Optional[modeling.DropoutKey] = None
) -> Dict[str, Any]:
    """Returns the keyword arguments of `modeling.BertModel` that all models share."""
    return {
        "scope": "bert",
        "adapter_fn": settings.adapter_fn,
        "dropout_key": dropout_key,
        "dtype": tf.as_dtype(settings.precision),
        "adapter_gates": features.get("adapter_gates"),
    }


def _training_spec(
    settings: ModelSettings,
    create_model: Callable[..., ModelOutput],
    features: Tensors,
    params: Dict[str, Any],
    config: Any,
) -> Any:
    """Returns the TPUEstimatorSpec of a training step, with its optimizer and progress."""

    def loss_of(part: Tensors, index: Any) -> tf.Tensor:
        dropout_key = None
        if settings.random_seed is not None:
            step = tf.train.get_or_create_global_step()
            replica = devices.tpu_replica() if settings.use_tpu else devices.replica()
            dropout_key = modeling.DropoutKey(settings.random_seed, step, index, replica)
        options = _options(settings, part, dropout_key)
        options["recompute_activations"] = settings.recompute_activations
        return create_model(part, True, **options).loss

    loss = accumulation.mean_loss(loss_of, features, settings.gradient_accumulation_steps)
    trained = tuning.trained_variables(settings.tuning, strict=bool(settings.tuning))
    scaffold_fn = restore.scaffold_fn(settings, trained, config)
    scalars = {}
    train_op = optimization.create_optimizer(
        loss,
        settings.learning_rate,
        settings.num_train_steps,
        settings.num_warmup_steps,
        settings.use_tpu,
        tuning=settings.tuning,
        saved_shapes=settings.saved_shapes,
        scalars=scalars,
    )
    # That of the whole batch, as on one device; `store_scalars` averages those of TPU replicas.
    (scalars["loss"],) = replicas.mean_over_replicas([scalars["loss"]])
    hook, host_call = _progress(settings, scalars, params, config)
    return tf_estimator.tpu.TPUEstimatorSpec(
        tf_estimator.ModeKeys.TRAIN,
        loss=scalars["loss"],
        train_op=train_op,
        host_call=host_call,
        training_hooks=[hook] if config is None or config.is_chief else [],
        scaffold_fn=scaffold_fn,
    )


def _with_mean_row_weight(
    settings: ModelSettings,
    row_weights: Optional[Callable[[Tensors], tf.Tensor]],
    features: Tensors,
) -> Tensors:
    """Returns the features, with `MEAN_ROW_WEIGHT` if it is needed: see `model_fn_builder`."""
    is_split = settings.gradient_accumulation_steps > 1 or settings.use_tpu
    if row_weights is None or not (is_split or tf.distribute.has_strategy()):
        return features
    weights = row_weights(features)
    mean_weight = tf.reduce_mean(weights)
    (mean,) = replicas.mean_over_replicas([mean_weight], settings.use_tpu)
    return {**features, MEAN_ROW_WEIGHT: tf.fill(tf.shape(weights), mean)}


def _progress(
    settings: ModelSettings, scalars: Tensors, params: Dict[str, Any], config: Any
) -> Tuple[progress.ProgressHook, Any]:
    """Returns (the hook that shows the scalars, the host_call that sends them from a TPU)."""
    host_call = None
    if settings.use_tpu:  # A TPU's tensors cannot be fetched.
        host_call = progress.store_scalars, {name: scalars[name][tf.newaxis] for name in scalars}
    output_dir = config and config.model_dir
    batch_size = params.get("train_batch_size", params["batch_size"])
    fetched_scalars = None if host_call else scalars
    hook = progress.ProgressHook(settings.num_train_steps, batch_size, fetched_scalars, output_dir)
    return hook, host_call
