"""Settings → Estimator: the one model_fn, and how every script trains, evaluates and predicts.

A script brings a head and its settings:

    def head(encoder, features, is_training, dropout_key): ...   # → HeadOutput
    runner = Runner(ModelSettings(...), RunSettings(...), head)
    runner.train(arrays), runner.evaluate(arrays, score_fn), runner.predict(arrays)

Loading weights, choosing variables, optimizing, checkpoints and progress are written here, once.
"""

import contextlib
import dataclasses
import posixpath
import re
from typing import Any, Callable, Dict, NamedTuple, Optional

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

import modeling
import optimization
import tuning
from adapter_bert.common import devices, metrics, tf_estimator
from adapter_bert.common.errors import UserError
from adapter_bert.formats import checkpoints
from adapter_bert.ops.layers import moving_variables, variable_name
from adapter_bert.training import cluster, hooks, input_pipeline, progress, restore
from adapter_bert.training.distribution import Distribution
from adapter_bert.training.rows import as_rows
from tuning import Tuning

# At BERT's own rate and epochs adapters stay at the majority class of MRPC; 3e-4 and 5 are those
# of adapter-bert's README. What trains the backbone's own weights keeps BERT's.
_ADAPTER_SCHEDULE = (3e-4, 5.0)
_BERT_SCHEDULE = (5e-5, 3.0)


def default_schedule(method):
    """(learning rate, epochs) of a tuning method for which the user gives none."""
    return _BERT_SCHEDULE if method in ("full", "top_layers") else _ADAPTER_SCHEDULE


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """What decides the weights that come out of a training, besides the data.

    Attributes:
      bert_config: `modeling.BertConfig`.
      init_checkpoint: prefix of the pretrained checkpoint, None for random weights. What does not
        train is read from it at every start, and never written.
      task_checkpoint: prefix of a checkpoint that training starts from: it holds the variables that
        train and moving statistics, all of them and no other.
      adapter_fn: as in `modeling.BertModel`.
      tuning: `tuning.Tuning`; None chooses by the graph, see `tuning.default_tuning`.
      learning_rate: peak of the schedule.
      num_train_steps, num_warmup_steps: length of the schedule and of its rise; None where
        nothing is trained.
      use_tpu: the model runs on a TPU.
      use_one_hot_embeddings: as in `modeling.BertModel`.
      random_seed: of initial values and dropout masks; None for TensorFlow's own dropout.
      precision: "float32" or "bfloat16", of what lies between the variables and the outputs.
      pooled_only: the head reads the pooled output alone, see `modeling.BertModel`.
      recompute_activations: as in `modeling.BertModel`.
      gradient_accumulation_steps: number of equal parts in which a batch is computed, one after
        the other, before the optimizer takes its one step.
      run_identity: digest of all that decides the weights, the data too, by which checkpoints say
        which run they are of; None for none.
    """

    bert_config: modeling.BertConfig
    init_checkpoint: Optional[str] = None
    task_checkpoint: Optional[str] = None
    adapter_fn: Any = "feedforward_adapter"
    tuning: Optional[Tuning] = None
    learning_rate: float = _ADAPTER_SCHEDULE[0]
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


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Where and how a run takes place; none of it but train_batch_size changes the weights."""

    output_dir: str
    train_batch_size: int = 32
    eval_batch_size: int = 8
    predict_batch_size: int = 8
    save_checkpoints_steps: int = 1000
    iterations_per_loop: int = 1000
    num_tpu_cores: int = 8
    tpu_cluster: Any = None
    master: Optional[str] = None
    distribution: Distribution = Distribution()


class HeadOutput(NamedTuple):
    """What a head makes of the encoder's output for a batch.

    Attributes:
      loss: scalar float Tensor, the batch's mean.
      predictions: dict of Tensors [B, ...].
      metric_fn, metric_inputs: `metric_fn(*metric_inputs)` → dict of tf.metrics.
    """

    loss: tf.Tensor
    predictions: Dict[str, tf.Tensor]
    metric_fn: Callable
    metric_inputs: list


def model_fn_builder(settings, head):
    """The model_fn of every script.

    Args:
      settings: `ModelSettings`.
      head: function (encoder, features, is_training, dropout_key) → `HeadOutput`.

    Returns:
      model_fn(features, labels, mode, params) for TPUEstimator; `labels` is not used, they lie
      among the features.
    """

    def model_fn(features, labels, mode, params, config=None):
        del labels
        if mode == tf_estimator.ModeKeys.TRAIN:
            return _training_spec(settings, head, features, params, config)
        output = _forward(settings, head, features, is_training=False)
        trained = tuning.trained_variables(settings.tuning)
        scaffold_fn = _scaffold_fn(settings, trained, config)
        if mode == tf_estimator.ModeKeys.PREDICT:
            return tf_estimator.tpu.TPUEstimatorSpec(
                mode, predictions=output.predictions, scaffold_fn=scaffold_fn
            )
        return tf_estimator.tpu.TPUEstimatorSpec(
            mode,
            loss=output.loss,
            eval_metrics=(output.metric_fn, output.metric_inputs),
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
    """The TPUEstimatorSpec of a training step: gradients, the optimizer, and progress shown."""
    loss, gradients, trained = optimization.mean_gradients(
        lambda part, index: _forward(settings, head, part, True, micro_step=index).loss,
        lambda: tuning.trained_variables(settings.tuning),
        features,
        settings.gradient_accumulation_steps,
    )
    tuning.check_gradients(trained, gradients)
    reached = [v for v, gradient in zip(trained, gradients) if gradient is not None]
    is_chief = config is None or config.is_chief
    if is_chief and devices.replica() == 0:
        logging.info(tuning.summary(reached))
        if settings.tuning is None and tuning.default_tuning().method == "adapters":
            optimization.warn_of_fine_tuning_rate(settings.learning_rate, "adapter_fn=None")
        logging.vlog(1, "Trained: %s", ", ".join(variable_name(variable) for variable in reached))
    learning_rate = optimization.warmup_then_linear_decay(
        tf.train.get_or_create_global_step(),
        settings.learning_rate,
        settings.num_train_steps,
        settings.num_warmup_steps,
    )
    scaffold_fn = _scaffold_fn(settings, trained, config)
    step = optimization.take_step(gradients, trained, learning_rate, settings.use_tpu)
    scalars = {
        "loss": loss,
        "learning_rate": step.learning_rate,
        "gradient_norm": step.gradient_norm,
    }
    host_call = None
    if settings.use_tpu:  # Its tensors cannot be fetched: they are sent to the host.
        host_call = progress.keep, {name: scalars[name][tf.newaxis] for name in scalars}
    output_dir = config and config.model_dir
    batch_size = params.get("train_batch_size", params["batch_size"])
    fetched = None if host_call else scalars
    hook = progress.ProgressHook(settings.num_train_steps, batch_size, fetched, output_dir)
    return tf_estimator.tpu.TPUEstimatorSpec(
        tf_estimator.ModeKeys.TRAIN,
        loss=loss,
        train_op=step.train_op,
        host_call=host_call,
        training_hooks=[hook] if is_chief else [],
        scaffold_fn=scaffold_fn,
    )


def _scaffold_fn(settings, trained, config):
    return restore.scaffold_fn(
        trained,
        settings.init_checkpoint,
        settings.task_checkpoint,
        settings.use_tpu,
        config,
        settings.run_identity,
    )


def build_estimator(model, run, head):
    """The TPUEstimator of what one process does alone, on TPU, GPU or CPU.

    Args:
      model: `ModelSettings`.
      run: `RunSettings`.
      head: see `model_fn_builder`.
    """
    alone = contextlib.nullcontext() if model.use_tpu else cluster.hidden()
    with alone:
        config = tf_estimator.tpu.RunConfig(
            cluster=run.tpu_cluster,
            master=run.master,
            tpu_config=tf_estimator.tpu.TPUConfig(
                iterations_per_loop=run.iterations_per_loop,
                num_shards=run.num_tpu_cores,
                per_host_input_for_training=tf_estimator.tpu.InputPipelineConfig.PER_HOST_V2,
            ),
            session_config=devices.session_config(one_device=not model.use_tpu),
            **_run_config(model, run),
        )
    return tf_estimator.tpu.TPUEstimator(
        model_fn_builder(model, head),
        config=config,
        params={"train_batch_size": run.train_batch_size},
        use_tpu=model.use_tpu,
        train_batch_size=run.train_batch_size,
        eval_batch_size=run.eval_batch_size,
        predict_batch_size=run.predict_batch_size,
        export_to_tpu=False,
    )


def _distributed_estimator(model, run, head):
    """The Estimator that trains on several replicas, see `build_estimator`."""
    model_fn = model_fn_builder(model, head)
    config = tf_estimator.RunConfig(
        train_distribute=run.distribution.strategy(),
        session_config=devices.session_config(one_device=False),
        **_run_config(model, run),
    )
    return tf_estimator.Estimator(
        lambda features, labels, mode, params, config: model_fn(
            features, labels, mode, params, config
        ).as_estimator_spec(),
        config=config,
        params={
            "train_batch_size": run.train_batch_size,
            "batch_size": run.train_batch_size // run.distribution.num_replicas,
        },
    )


def _run_config(model, run):
    """Arguments of every RunConfig: `SaveHook` saves, `ProgressHook` prints and summarizes."""
    return {
        "model_dir": run.output_dir,
        "tf_random_seed": model.random_seed,
        "save_checkpoints_steps": None,
        "save_checkpoints_secs": None,
        "save_summary_steps": 0,
        "log_step_count_steps": None,
    }


class Runner:
    """A model, the place where it runs, and the three things that can be done with them.

    Args:
      model: `ModelSettings`.
      run: `RunSettings`.
      head: see `model_fn_builder`.

    `arrays`, below, is `rows.TextRows`, or a dict of NumPy arrays whose rows are examples:
    input_ids, input_mask, segment_ids [rows, S], is_real_example [rows], and what the head reads;
    perhaps adapter_gates [rows, L], as in `modeling.BertModel`. All [rows, S] are of a token each,
    and cut with them; `rows.PaddedRows` takes the names of others.
    """

    def __init__(self, model, run, head):
        self._model = model
        self._run = run
        self._head = head
        self._estimator = build_estimator(model, run, head)
        evaluated = dataclasses.replace(run, predict_batch_size=run.eval_batch_size)
        self._evaluator = build_estimator(model, evaluated, head)

    def train(self, arrays, stop=None):
        """Trains from the last checkpoint, if there is one, to a step; by default to the last."""
        first_step, last_step = self.last_step(), stop or self._model.num_train_steps
        if first_step >= last_step:
            logging.info("Trained already: the last checkpoint is of step %d.", first_step)
            return
        if first_step:
            logging.info("Going on from the checkpoint of step %d.", first_step)
        if self._model.use_tpu:
            input_fn = input_pipeline.input_fn_for_tpu(arrays, last_step=last_step)
        else:
            input_fn = input_pipeline.input_fn_of(arrays, True, True, fixed_length=False)
        try:
            save = hooks.SaveHook(self._run.output_dir, self._run.save_checkpoints_steps)
            saving = [save] if self._run.distribution.workers.is_chief else []
            with self._explained(), hooks.StopOnInterrupt() as interrupt:
                self._train(input_fn, [interrupt, *saving], last_step)
        except KeyboardInterrupt:
            logging.warning(
                "Stopped; the same command, without --overwrite_output_dir, goes on from step %d,"
                " the last checkpoint.",
                self.last_step(),
            )
            raise

    def _train(self, input_fn, hooks, last_step):
        kind = self._run.distribution.kind
        if kind == "none":
            self._estimator.train(input_fn, hooks=hooks, max_steps=last_step)
            return
        if kind == "mirrored":
            with cluster.hidden():  # It may be one of this machine alone.
                estimator = _distributed_estimator(self._model, self._run, self._head)
                estimator.train(input_fn, hooks=hooks, max_steps=last_step)
            return
        # The one way in that brings the workers together; with no evaluator among them it
        # evaluates nothing.
        tf_estimator.train_and_evaluate(
            _distributed_estimator(self._model, self._run, self._head),
            tf_estimator.TrainSpec(input_fn, last_step, hooks),
            tf_estimator.EvalSpec(input_fn),
        )

    def evaluate(self, arrays, score_fn, checkpoint=None):
        """Scores of the predictions of all rows; TensorBoard gets them too.

        Args:
          arrays: see above.
          score_fn: function (arrays, list of the rows' predictions) → dict of floats, and of lists
            of lists of them, which TensorBoard does not get.
          checkpoint: prefix of what was trained, the last checkpoint by default.

        Returns:
          That dict, with "global_step".
        """
        checkpoint = checkpoint or self._trained(arrays)
        batch_size = self._run.eval_batch_size
        predictions = list(self._predictions(self._evaluator, batch_size, arrays, checkpoint))
        step = checkpoints.step_of(checkpoint) if checkpoint else 0
        scores = score_fn(arrays, predictions)
        with self._explained():
            folder = posixpath.join(self._run.output_dir, "eval")
            progress.write_scalars(folder, step, metrics.scalars(scores))
        return {**scores, "global_step": step}

    def predict(self, arrays, checkpoint=None):
        """Yields the head's predictions of each row, in order: a dict of NumPy arrays.

        All rows are predicted before the first one is yielded. What the head gives for each token
        is as long as the batch that the row was in.

        Args:
          arrays: see above.
          checkpoint: prefix of what was trained, the last checkpoint by default.
        """
        checkpoint = checkpoint or self._trained(arrays)
        batch_size = self._run.predict_batch_size
        return self._predictions(self._estimator, batch_size, arrays, checkpoint)

    def stream(self, arrays, checkpoint=None):
        """Yields (index, predictions) of each row as soon as its batch of the evaluation is there.

        In the order of the batches. For more rows than memory has room for predictions.

        Args:
          arrays, checkpoint: as in `predict`.
        """
        checkpoint = checkpoint or self._trained(arrays)
        return self._as_computed(self._evaluator, self._run.eval_batch_size, arrays, checkpoint)

    def last_step(self):
        """The global step of the last checkpoint, 0 before the first."""
        with self._explained():
            return checkpoints.last_step(self._run.output_dir)

    def _predictions(self, estimator, batch_size, arrays, checkpoint):
        computed = self._as_computed(estimator, batch_size, arrays, checkpoint)
        yield from input_pipeline.in_order(computed)

    def _as_computed(self, estimator, batch_size, arrays, checkpoint):
        input_fn, order = self._planned_rows(as_rows(arrays), batch_size)
        with self._explained():
            yield from zip(order, estimator.predict(input_fn, checkpoint_path=checkpoint))

    @contextlib.contextmanager
    def _explained(self):
        """UserError for a loss that diverged, too little memory or disk, a damaged checkpoint."""
        try:
            with progress.written():
                yield
        except tf.train.NanLossDuringTrainingError as error:
            raise UserError(
                f"The loss is no longer a number: --learning_rate={self._model.learning_rate} is"
                " too high, or the pretrained weights are broken."
            ) from error
        except tf.errors.OpError as error:
            if re.search(r"\bOOM\b|\b[Oo]ut of memory\b", error.message):
                raise UserError(
                    "Memory has no room for a batch: give a smaller --train_batch_size,"
                    " --predict_batch_size, --max_seq_length or, where there is one,"
                    " --eval_batch_size; a training may compute a batch in parts by"
                    " --gradient_accumulation_steps."
                ) from error
            # TensorFlow names a wrong checksum, but not always whose: only now read all tensors.
            own = tf.train.latest_checkpoint(self._run.output_dir)
            for flag, prefix in (
                ("--output_dir", own),
                ("--init_checkpoint", self._model.init_checkpoint),
            ):
                if prefix:
                    checkpoints.check_tensors(prefix, flag)
            raise

    def _planned_rows(self, rows, batch_size):
        """Returns (input_fn, order); order[i] is the row that comes at place i.

        TPUs take full batches in the rows' order. Elsewhere the longest rows come first, and
        batches are as long as they need to be.
        """
        if self._model.use_tpu:
            order = np.arange(len(rows))
            padded = input_pipeline.padded_to(order, batch_size)
            return input_pipeline.input_fn_for_tpu(rows, order=padded), order
        order = input_pipeline.longest_first(rows.lengths)
        return input_pipeline.input_fn_of(
            rows, False, False, fixed_length=False, order=order
        ), order

    def _trained(self, arrays):
        """The prefix of the last checkpoint.

        None before there is one: all weights come from init_checkpoint, which is a task's own then.

        Raises:
          UserError: neither holds a trained adapter and head.
        """
        checkpoint = tf.train.latest_checkpoint(self._run.output_dir)
        if checkpoint:
            return checkpoint
        init_checkpoint = self._model.init_checkpoint
        held = tf.train.list_variables(init_checkpoint) if init_checkpoint else []
        held = {name for name, _ in held}
        with tf.Graph().as_default():
            row = {name: tf.constant(one) for name, one in as_rows(arrays).take([0]).items()}
            _forward(self._model, self._head, row, is_training=False)
            variables = tf.trainable_variables() + moving_variables()
            names = [variable_name(variable) for variable in variables]
        untrained = [name for name in names if name not in held]
        if untrained:
            raise UserError(
                f"Nothing is trained yet: --output_dir {self._run.output_dir} holds no"
                " checkpoint, and --init_checkpoint"
                f" {init_checkpoint} no {untrained[-1]}; train first (--do_train)."
            )
        ignored = sorted(name for name in held - set(names) if "/adapters/" in name)
        ignored = [name for name in ignored if not name.endswith(checkpoints.MOMENTS)]
        if ignored:
            raise UserError(
                f"--init_checkpoint {init_checkpoint} holds {len(ignored)} tensors of adapters that"
                f" this model would ignore, {ignored[0]} among them; give the flags that it was"
                " trained with."
            )
        return None
