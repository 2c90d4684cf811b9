"""The model_fn of every script, a pure function of the model's settings and its head.

    def head(encoder, features, is_training, dropout_key): ...   # → HeadOutput
    model_fn = model_fn_builder(ModelSettings(...), head)        # for an Estimator

It loads weights, selects the variables to train, optimizes and shows progress.
"""

import dataclasses
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence

import tensorflow.compat.v1 as tf
from absl import logging

import modeling
import optimization
import tuning
from adapter_bert.common import devices, tf_estimator
from adapter_bert.ops.layers import variable_name
from adapter_bert.training import config as training_config
from adapter_bert.training import progress, restore
from tuning import Tuning


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
      pooled_only: whether the head reads only the pooled output; see `modeling.BertModel`.
      recompute_activations: as in `modeling.BertModel`.
      gradient_accumulation_steps: number of equal parts of a batch, computed one after the other
        before the one step of the optimizer.
      run_identity: digest of everything that determines the weights, including the data; it marks
        the run's checkpoints. None for no mark.
    """

    bert_config: modeling.BertConfig
    init_checkpoint: Optional[str] = None
    task_checkpoint: Optional[str] = None
    adapter_fn: Any = "feedforward_adapter"
    tuning: Optional[Tuning] = None
    learning_rate: float = training_config.ADAPTER_SCHEDULE[0]
    num_train_steps: Optional[int] = None
    num_warmup_steps: Optional[int] = None
    use_tpu: bool = False
    use_one_hot_embeddings: bool = False
    random_seed: Optional[int] = None
    precision: str = "float32"
    pooled_only: bool = False
    recompute_activations: bool = False
    gradient_accumulation_steps: int = 1
    run_identity: Optional[str] = None


class HeadOutput(NamedTuple):
    """A head's loss, predictions and metrics for a batch.

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


def model_fn_builder(settings, head):
    """Returns the model_fn for the given settings and head.

    Args:
      settings: `ModelSettings`.
      head: function (encoder, features, is_training, dropout_key) → `HeadOutput`. If its loss is a
        weighted mean over rows, it has an attribute `row_weights`, a function of the features that
        returns float [B]. If there is a feature `MEAN_ROW_WEIGHT`, it divides by the sum of this
        feature, so that the mean over the parts of a batch is that of the batch.

    Returns:
      model_fn(features, labels, mode, params) for TPUEstimator. `labels` is unused, as labels are
      among the features.
    """

    def model_fn(features, labels, mode, params, config=None):
        del labels
        if mode == tf_estimator.ModeKeys.TRAIN:
            return _training_spec(settings, head, features, params, config)
        output = _forward(settings, head, features, is_training=False)
        trained = tuning.trained_variables(settings.tuning)
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


def _forward(settings, head, features, is_training, micro_step=0):
    dropout_key = None
    if is_training and settings.random_seed is not None:
        step = tf.train.get_or_create_global_step()
        replica = devices.tpu_replica() if settings.use_tpu else devices.replica()
        dropout_key = modeling.DropoutKey(settings.random_seed, step, micro_step, replica)
    encoder = modeling.BertModel(
        settings.bert_config,
        is_training,
        features["input_ids"],
        features["input_mask"],
        features["segment_ids"],
        settings.use_one_hot_embeddings,
        scope="bert",
        adapter_fn=settings.adapter_fn,
        dropout_key=dropout_key,
        dtype=tf.as_dtype(settings.precision),
        pooled_only=settings.pooled_only,
        recompute_activations=settings.recompute_activations and is_training,
        adapter_gates=features.get("adapter_gates"),
    )
    return head(encoder, features, is_training, dropout_key)


def _training_spec(settings, head, features, params, config):
    """Returns the TPUEstimatorSpec of a training step, with its optimizer and progress."""
    features = _with_mean_row_weight(settings, head, features)
    loss, gradients, trained = optimization.mean_gradients(
        lambda part, index: _forward(settings, head, part, True, micro_step=index).loss,
        lambda: tuning.trained_variables(settings.tuning),
        features,
        settings.gradient_accumulation_steps,
    )
    tuning.check_gradients(trained, gradients)
    updated = [v for v, gradient in zip(trained, gradients) if gradient is not None]
    is_chief = config is None or config.is_chief
    if is_chief and devices.replica() == 0:
        logging.info(tuning.summary(updated))
        if settings.tuning is None and tuning.default_tuning().method == "adapters":
            optimization.warn_of_fine_tuning_rate(settings.learning_rate, "adapter_fn=None")
        logging.vlog(1, "Trained: %s", ", ".join(variable_name(variable) for variable in updated))
    learning_rate = optimization.warmup_then_linear_decay(
        tf.train.get_or_create_global_step(),
        settings.learning_rate,
        settings.num_train_steps,
        settings.num_warmup_steps,
    )
    scaffold_fn = restore.scaffold_fn(settings, trained, config)
    train_op, norm = optimization.take_step(gradients, trained, learning_rate, settings.use_tpu)
    # That of the whole batch, as on one device; `store_scalars` averages those of TPU replicas.
    (loss,) = optimization.mean_over_replicas([loss])
    scalars = {"loss": loss, "learning_rate": learning_rate, "gradient_norm": norm}
    hook, host_call = _progress(settings, scalars, params, config)
    return tf_estimator.tpu.TPUEstimatorSpec(
        tf_estimator.ModeKeys.TRAIN,
        loss=loss,
        train_op=train_op,
        host_call=host_call,
        training_hooks=[hook] if is_chief else [],
        scaffold_fn=scaffold_fn,
    )


def _with_mean_row_weight(settings, head, features):
    """Returns the features, with `MEAN_ROW_WEIGHT` if the head needs it: see `model_fn_builder`."""
    is_split = settings.gradient_accumulation_steps > 1 or settings.use_tpu
    if not hasattr(head, "row_weights") or not (is_split or tf.distribute.has_strategy()):
        return features
    weights = head.row_weights(features)
    mean_weight = tf.reduce_mean(weights)
    (mean,) = optimization.mean_over_replicas([mean_weight], settings.use_tpu)
    return {**features, MEAN_ROW_WEIGHT: tf.fill(tf.shape(weights), mean)}


def _progress(settings, scalars, params, config):
    """Returns (the hook that shows the scalars, the host_call that sends them from a TPU)."""
    host_call = None
    if settings.use_tpu:  # A TPU's tensors cannot be fetched.
        host_call = progress.store_scalars, {name: scalars[name][tf.newaxis] for name in scalars}
    output_dir = config and config.model_dir
    batch_size = params.get("train_batch_size", params["batch_size"])
    fetched_scalars = None if host_call else scalars
    hook = progress.ProgressHook(settings.num_train_steps, batch_size, fetched_scalars, output_dir)
    return hook, host_call
