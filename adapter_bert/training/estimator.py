"""Where a model runs, and the Estimator that trains, evaluates and predicts with it.

    estimator = Estimator(ModelSettings(...), RunSettings(...), head)
    estimator.train(rows), estimator.evaluate(rows, score_fn), estimator.predict(rows)

`rows`, here, is `rows.TextRows`, or a dict of NumPy arrays whose rows are examples: input_ids,
input_mask, segment_ids [rows, S], is_real_example [rows], and what the head reads; perhaps
adapter_gates [rows, L], as in `modeling.BertModel`. All [rows, S] are of a token each, and cut with
them; `rows.PaddedRows` takes the names of others.
"""

import contextlib
import dataclasses
import posixpath
import re
from typing import Any, Optional

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from adapter_bert.common import devices, files, metrics, tf_estimator
from adapter_bert.common.errors import UserError
from adapter_bert.formats import checkpoints
from adapter_bert.training import cluster, distribution, hooks, input_pipeline, progress
from adapter_bert.training.distribution import Distribution
from adapter_bert.training.model_fn import model_fn_builder
from adapter_bert.training.rows import as_rows


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
    eval_every_steps: int = 0  # During a training; 0 for never.


def connect(config, output_dir):
    """Connects to the TPU if one is asked for: where a model is evaluated.

    Args:
      config: `DeviceConfig` with an eval_batch_size.
      output_dir: path.

    Returns:
      (`RunSettings` with the defaults of a training, use_tpu).

    Raises:
      UserError: the TPU cannot be reached, or a batch has no equal parts.
    """
    use_tpu, tpu_cluster = devices.find_tpu(
        config.use_tpu,
        config.tpu_name,
        config.tpu_zone,
        config.gcp_project,
        config.master,
        config.num_tpu_cores,
    )
    run = RunSettings(
        output_dir=output_dir,
        eval_batch_size=config.eval_batch_size,
        num_tpu_cores=config.num_tpu_cores,
        tpu_cluster=tpu_cluster,
        master=(use_tpu and config.master) or None,
    )
    if "eval_batch_size" in vars(config):  # SQuAD is evaluated in --predict_batch_size.
        _check_batches(run, use_tpu, ["eval_batch_size"])
    return run, use_tpu


def connect_for_training(config, output_dir):
    """Connects to what trains together, as `connect`.

    Args:
      config: `FinetuningConfig`.
      output_dir: path.

    Raises:
      UserError: the TPU cannot be reached, the machine lacks what --distribution or
        --recompute_activations need, or a batch has no equal parts.
    """
    run_distribution = distribution.choose(config.distribution, config.use_tpu)
    run, use_tpu = connect(config, output_dir)
    run = dataclasses.replace(
        run,
        train_batch_size=config.train_batch_size,
        predict_batch_size=config.predict_batch_size,
        save_checkpoints_steps=config.save_checkpoints_steps,
        iterations_per_loop=config.iterations_per_loop,
        distribution=run_distribution,
    )
    # Predictions are a single device's, or a TPU's.
    batch_flags = ["train_batch_size", "predict_batch_size"] if use_tpu else ["train_batch_size"]
    _check_batches(run, use_tpu, batch_flags)
    num_replicas, replicas_flag = _replicas(run, use_tpu)
    parts = config.gradient_accumulation_steps
    if run.train_batch_size % (parts * num_replicas):
        raise UserError(
            f"--gradient_accumulation_steps={parts} does not divide"
            f" --train_batch_size={run.train_batch_size} into equal parts on each of the"
            f" {num_replicas} replicas of {replicas_flag}."
        )
    if config.recompute_activations and use_tpu:
        # XLA would take the second computation for the first, and keep that: see `xla.recompute`.
        devices.require_tensorflow_2("--recompute_activations on a TPU")
    return run, use_tpu


def check_paths_for_tpu(config, output_dir, init_checkpoint):
    """Raises UserError unless the host of the TPU can read what it is to read itself.

    Args:
      config: `DeviceConfig`.
      output_dir, init_checkpoint: paths.
    """
    host = config.tpu_name or config.master
    if host in (None, "", "local"):
        return
    for flag, path in (("output_dir", output_dir), ("init_checkpoint", init_checkpoint)):
        if not files.is_remote(path):
            raise UserError(
                f"--{flag}={path}: the host of the TPU {host} cannot read this machine's files;"
                " expected a gs:// path."
            )


def _replicas(run, use_tpu):
    """Returns (how many replicas share a batch, the flag that says so)."""
    if use_tpu:
        return run.num_tpu_cores, f"--num_tpu_cores={run.num_tpu_cores}"
    return run.distribution.num_replicas, f"--distribution={run.distribution.kind}"


def _check_batches(run, use_tpu, names):
    """Raises UserError unless each replica's batches of these flags are equal."""
    num_replicas, replicas_flag = _replicas(run, use_tpu)
    for name in names:
        if getattr(run, name) % num_replicas:
            raise UserError(
                f"--{name}={getattr(run, name)} does not fall into equal parts for the"
                f" {num_replicas} replicas of {replicas_flag}; choose a multiple of {num_replicas}."
            )


def build_estimator(model, run, head):
    """Returns the TPUEstimator of what one process does alone, on TPU, GPU or CPU.

    Args:
      model: `model_fn.ModelSettings`.
      run: `RunSettings`.
      head: see `model_fn.model_fn_builder`.
    """
    cluster_scope = contextlib.nullcontext() if model.use_tpu else cluster.hide()
    with cluster_scope:
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
    """Returns the Estimator that trains on several replicas, see `build_estimator`."""
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
    """Returns arguments of every RunConfig: `SaveHook` saves, `ProgressHook` shows progress."""
    return {
        "model_dir": run.output_dir,
        "tf_random_seed": model.random_seed,
        "save_checkpoints_steps": None,
        "save_checkpoints_secs": None,
        "save_summary_steps": 0,
        "log_step_count_steps": None,
    }


class Estimator:
    """A TPUEstimator on rows of tokens, which explains what goes wrong.

    Only a training on several devices has an Estimator of its own, for its strategy's RunConfig.

    Args:
      model: `model_fn.ModelSettings`.
      run: `RunSettings`.
      head: see `model_fn.model_fn_builder`.
    """

    def __init__(self, model, run, head):
        self.model, self.run, self._head = model, run, head
        self._estimator = build_estimator(model, run, head)

    def with_model(self, **changes):
        """Returns the same Estimator of `ModelSettings` in which some fields differ."""
        return Estimator(dataclasses.replace(self.model, **changes), self.run, self._head)

    def train(self, rows, stop=None):
        """Trains from the last checkpoint, if there is one, to a step; by default to the last."""
        first_step, last_step = self.last_step(), stop or self.model.num_train_steps
        if first_step >= last_step:
            logging.info("Trained already: the last checkpoint is of step %d.", first_step)
            return
        if first_step:
            logging.info("Resuming from the checkpoint of step %d.", first_step)
        if self.model.use_tpu:
            input_fn = input_pipeline.input_fn_for_tpu(rows, last_step=last_step)
        else:
            input_fn = input_pipeline.input_fn_of(rows, True, True, fixed_length=False)
        try:
            save_hook = hooks.SaveHook(self.run.output_dir, self.run.save_checkpoints_steps)
            save_hooks = [save_hook] if self.run.distribution.workers.is_chief else []
            with self._explain_errors(), hooks.StopOnInterrupt() as interrupt_hook:
                self._train(input_fn, [interrupt_hook, *save_hooks], last_step)
        except KeyboardInterrupt:
            logging.warning(
                "Stopped; the same command, without --overwrite_output_dir, resumes from step %d,"
                " the last checkpoint.",
                self.last_step(),
            )
            raise

    def _train(self, input_fn, hooks, last_step):
        kind = self.run.distribution.kind
        if kind == "none":
            self._estimator.train(input_fn, hooks=hooks, max_steps=last_step)
            return
        if kind == "mirrored":
            with cluster.hide():  # It may be one of this machine alone.
                estimator = _distributed_estimator(self.model, self.run, self._head)
                estimator.train(input_fn, hooks=hooks, max_steps=last_step)
            return
        # The one way in that brings the workers together; with no evaluator among them it
        # evaluates nothing.
        tf_estimator.train_and_evaluate(
            _distributed_estimator(self.model, self.run, self._head),
            tf_estimator.TrainSpec(input_fn, last_step, hooks),
            tf_estimator.EvalSpec(input_fn),
        )

    def evaluate(self, rows, score_fn, checkpoint=None):
        """Scores the predictions of all rows; TensorBoard gets the scores too.

        Args:
          rows: see above.
          score_fn: function of a list of the rows' predictions → dict of floats, and of lists of
            lists of them, which TensorBoard does not get.
          checkpoint: prefix of what was trained, the last checkpoint by default.

        Returns:
          That dict, with "global_step".
        """
        checkpoint = checkpoint or tf.train.latest_checkpoint(self.run.output_dir)
        indexed_predictions = self._predict_in_batch_order(
            rows, self.run.eval_batch_size, checkpoint
        )
        predictions = input_pipeline.sort_by_index(indexed_predictions)
        step = checkpoints.step_of(checkpoint) if checkpoint else 0
        scores = score_fn(predictions)
        with self._explain_errors():
            folder = posixpath.join(self.run.output_dir, "eval")
            progress.write_scalars(folder, step, metrics.scalars(scores))
        return {**scores, "global_step": step}

    def predict(self, rows, checkpoint=None):
        """Yields the head's predictions of each row, in order: a dict of NumPy arrays.

        All rows are predicted before the first one is yielded. What the head gives for each token
        is as long as the batch that the row was in.

        Args:
          rows: see above.
          checkpoint: prefix of what was trained, the last checkpoint by default.
        """
        yield from input_pipeline.sort_by_index(
            self._predict_in_batch_order(rows, self.run.predict_batch_size, checkpoint)
        )

    def stream(self, rows, checkpoint=None):
        """Yields (index, predictions) of each row as soon as its batch of the evaluation is there.

        In the order of the batches. For more rows than memory has room for predictions.

        Args:
          rows, checkpoint: as in `predict`.
        """
        return self._predict_in_batch_order(rows, self.run.eval_batch_size, checkpoint)

    def stream_batches(self, batches, checkpoint=None):
        """Yields each row's predictions, in the order of batches that need not fit into memory.

        Not on a TPU, whose batches have one shape.

        Args:
          batches: iterable of dicts of int32 arrays [B, S]: input_ids, input_mask, segment_ids. It
            is read by another thread, a few batches ahead. What it raises, this raises.
          checkpoint: as in `predict`.
        """
        failures = []

        def read():
            try:
                yield from batches
            except Exception as error:  # TensorFlow would wrap it.
                failures.append(error)

        with self._explain_errors():
            yield from self._estimator.predict(
                input_pipeline.input_fn_of_batches(read), checkpoint_path=checkpoint
            )
        if failures:
            raise failures[0]

    def last_step(self):
        """Returns the global step of the last checkpoint, 0 before the first."""
        with self._explain_errors():
            return checkpoints.last_step(self.run.output_dir)

    def _predict_in_batch_order(self, rows, batch_size, checkpoint):
        input_fn, order = self._plan_prediction(as_rows(rows), batch_size)
        checkpoint = checkpoint or tf.train.latest_checkpoint(self.run.output_dir)
        with self._explain_errors():
            predictions = self._predictor(batch_size).predict(input_fn, checkpoint_path=checkpoint)
            yield from zip(order, predictions)

    def _plan_prediction(self, rows, batch_size):
        """Returns (input_fn, order); order[i] is the row that comes at place i.

        TPUs take full batches in the rows' order. Elsewhere the longest rows come first, and
        batches are as long as they need to be.
        """
        if self.model.use_tpu:
            order = np.arange(len(rows))
            padded = input_pipeline.pad_to_multiple(order, batch_size)
            return input_pipeline.input_fn_for_tpu(rows, order=padded), order
        order = input_pipeline.longest_first(rows.lengths)
        input_fn = input_pipeline.input_fn_of(rows, False, False, fixed_length=False, order=order)
        return lambda params: input_fn({**params, "batch_size": batch_size}), order

    def _predictor(self, batch_size):
        """Returns the TPUEstimator that predicts in batches of a size: on TPUs it is built in."""
        if not self.model.use_tpu or batch_size == self.run.predict_batch_size:
            return self._estimator
        run = dataclasses.replace(self.run, predict_batch_size=batch_size)
        return build_estimator(self.model, run, self._head)

    @contextlib.contextmanager
    def _explain_errors(self):
        """UserError for a loss that diverged, too little memory or disk, a damaged checkpoint."""
        try:
            with progress.convert_write_errors():
                yield
        except tf.train.NanLossDuringTrainingError as error:
            raise UserError(
                f"The loss is no longer a number: --learning_rate={self.model.learning_rate} is"
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
            latest = tf.train.latest_checkpoint(self.run.output_dir)
            for flag, prefix in (
                ("--output_dir", latest),
                ("--init_checkpoint", self.model.init_checkpoint),
            ):
                if prefix:
                    checkpoints.check_tensors(prefix, flag)
            raise
