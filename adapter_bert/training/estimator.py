"""The devices that a model runs on, and the Estimator that trains, evaluates and predicts.

    estimator = Estimator(ModelSettings(...), RunSettings(...), model_fn_builder)
    estimator.train(rows), estimator.evaluate(rows, score_fn), estimator.predict(rows)

In this module, `rows` is an object with the interface of `training.rows`, or a dict of NumPy arrays
with an example per row: input_ids, input_mask and segment_ids [rows, S], is_real_example [rows],
what the head reads, and optionally adapter_gates [rows, L] as in `modeling.BertModel`. Arrays
[rows, S] are taken to be per token and are truncated with the tokens; `rows.PaddedRows` can name
exceptions.
"""

import contextlib
import dataclasses
import posixpath
import re
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Generator,
    Iterable,
    Iterator,
    List,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from adapter_bert.files import gfile
from adapter_bert.formats import checkpoints
from adapter_bert.ops import devices
from adapter_bert.shell import tf_estimator
from adapter_bert.shell.errors import UserError
from adapter_bert.training import (
    cluster,
    distribution,
    evaluations,
    hooks,
    input_pipeline,
    prediction,
    progress,
    stored_predictions,
)
from adapter_bert.training.config import DeviceConfig, FinetuningConfig
from adapter_bert.training.distribution import Distribution
from adapter_bert.training.model_fn import ModelSettings
from adapter_bert.training.rows import Features, Rows, as_rows

Prediction = Dict[str, np.ndarray]

_TPU_ROWS = "tpu_rows"  # The folder in output_dir of rows for a TPU.

# From this many rows, predictions come in batches of many tokens, which are 4 times as fast as
# BERT's batches of 8. Predictions of fewer rows equal those of earlier versions bit for bit.
_MANY_ROWS = 4096


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """The devices and batch sizes of a run.

    Only train_batch_size and, by rounding and dropout, the number of replicas affect the weights.
    """

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
    worker_timeout: float = 300.0  # Of a step, in seconds, if several workers train.
    eval_every_steps: int = 0  # During training; 0 for never.
    chosen_batches: FrozenSet[str] = frozenset()  # Batch sizes that the user has not given.


def connect(config: Any, output_dir: str) -> Tuple[RunSettings, bool]:
    """Connects to the devices that a model is evaluated on, and returns their settings.

    Args:
      config: `DeviceConfig` with an eval_batch_size.
      output_dir: path.

    Returns:
      (`RunSettings` with the defaults of a training, use_tpu).

    Raises:
      UserError: the TPU cannot be reached, or a batch cannot be split equally over its cores.
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
    # SQuAD has neither: it is evaluated with --predict_batch_size.
    names = [name for name in ("eval_batch_size", "batch_size") if name in vars(config)]
    _check_batches(config, run, use_tpu, names)
    return run, use_tpu


def connect_for_training(config: FinetuningConfig, output_dir: str) -> Tuple[RunSettings, bool]:
    """Connects to the devices that train together, and returns their settings, as `connect` does.

    Args:
      config: `FinetuningConfig`.
      output_dir: path.

    Raises:
      UserError: the TPU cannot be reached, the machine does not support --distribution or
        --recompute_activations, or a batch cannot be split equally over the replicas.
    """
    run, use_tpu = connect(config, output_dir)
    run_distribution = distribution.choose(config.distribution, use_tpu)
    batch_names = {"eval_batch_size", "predict_batch_size"} - set(config.given_flags)
    run = dataclasses.replace(
        run,
        train_batch_size=config.train_batch_size,
        predict_batch_size=config.predict_batch_size,
        chosen_batches=frozenset() if use_tpu else frozenset(batch_names),
        save_checkpoints_steps=config.save_checkpoints_steps,
        iterations_per_loop=config.iterations_per_loop,
        distribution=run_distribution,
        worker_timeout=config.worker_timeout,
    )
    # Off a TPU, a single device predicts.
    is_training = "train" in config.stages
    batch_flags = ["train_batch_size"] * is_training + ["predict_batch_size"] * use_tpu
    _check_batches(config, run, use_tpu, batch_flags)
    num_replicas, replicas_flag = _replicas(run, use_tpu)
    parts = config.gradient_accumulation_steps
    if is_training and run.train_batch_size % (parts * num_replicas):
        raise UserError(
            f"--gradient_accumulation_steps={parts} does not divide"
            f" --train_batch_size={run.train_batch_size} into equal parts on each of the"
            f" {num_replicas} replicas of {replicas_flag}."
        )
    if config.recompute_activations and use_tpu:
        # TensorFlow 1's XLA would merge the recomputation with the original; see `xla.recompute`.
        devices.require_tensorflow_2("--recompute_activations on a TPU")
    return run, use_tpu


def check_paths_for_tpu(config: DeviceConfig, **paths: str) -> None:
    """Raises UserError unless the TPU's host can read the paths that it accesses itself.

    Args:
      config: `DeviceConfig`.
      **paths: flag → path.
    """
    host = config.tpu_name or config.master
    if host in (None, "", "local"):
        return
    for flag, path in paths.items():
        if not gfile.is_remote(path):
            raise UserError(
                f"--{flag}={path}: the host of the TPU {host} cannot read this machine's files;"
                " expected a gs:// path."
            )


def _replicas(run: RunSettings, use_tpu: bool) -> Tuple[int, str]:
    """Returns (number of replicas that share a batch, the flag that sets it)."""
    if use_tpu:
        return run.num_tpu_cores, f"--num_tpu_cores={run.num_tpu_cores}"
    return run.distribution.num_replicas, f"--distribution={run.distribution.kind}"


def _check_batches(
    config: DeviceConfig, run: RunSettings, use_tpu: bool, names: Iterable[str]
) -> None:
    """Raises UserError unless the batch sizes of these flags are multiples of the replicas."""
    num_replicas, replicas_flag = _replicas(run, use_tpu)
    for name in names:
        batch_size = getattr(config, name)
        if batch_size % num_replicas:
            raise UserError(
                f"--{name}={batch_size} cannot be split equally over the {num_replicas} replicas of"
                f" {replicas_flag}; choose a multiple of {num_replicas}."
            )


def build_estimator(model: ModelSettings, run: RunSettings, model_fn_builder: Callable) -> Any:
    """Returns the TPUEstimator for a single process, on TPU, GPU or CPU.

    Args:
      model: `model_fn.ModelSettings`.
      run: `RunSettings`.
      model_fn_builder: see `Estimator`.
    """
    with cluster.hide():
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
        model_fn_builder(**vars(model)),
        config=config,
        params={"train_batch_size": run.train_batch_size},
        use_tpu=model.use_tpu,
        train_batch_size=run.train_batch_size,
        eval_batch_size=run.eval_batch_size,
        predict_batch_size=run.predict_batch_size,
        export_to_tpu=False,
    )


def _run_config(model: ModelSettings, run: RunSettings) -> Dict[str, Any]:
    """Returns the arguments of every RunConfig, which leave saving and progress to our hooks."""
    return {
        "model_dir": run.output_dir,
        "tf_random_seed": model.random_seed,
        "save_checkpoints_steps": None,
        "save_checkpoints_secs": None,
        "save_summary_steps": 0,
        "log_step_count_steps": None,
    }


class Estimator:
    """A TPUEstimator on rows of tokens that converts common failures to user errors.

    A training on several devices needs a separate Estimator, as its RunConfig has a strategy.

    Args:
      model: `model_fn.ModelSettings`.
      run: `RunSettings`.
      model_fn_builder: the script's function of this name, of the fields of `model`.
    """

    def __init__(self, model: ModelSettings, run: RunSettings, model_fn_builder: Callable) -> None:
        self.model, self.run, self._model_fn_builder = model, run, model_fn_builder
        self._estimator = build_estimator(model, run, model_fn_builder)
        self._session: Optional[Tuple[Any, prediction.PredictionSession]] = None

    def with_model(self, **changes: Any) -> "Estimator":
        """Returns a copy of this Estimator in which some fields of `ModelSettings` differ."""
        model = dataclasses.replace(self.model, **changes)
        return Estimator(model, self.run, self._model_fn_builder)

    def train(
        self,
        rows: Features,
        evaluate: Optional[Callable[[], bool]] = None,
        train_hooks: Sequence[tf.train.SessionRunHook] = (),
    ) -> None:
        """Trains from the last checkpoint, if there is one, to the last step.

        Args:
          rows: see the module's docstring.
          evaluate: function that is called when a step of `RunSettings.eval_every_steps`, or the
            last one, is saved; if it returns True, the training ends.
          train_hooks: further hooks, such as those of `cluster.agree`.
        """
        with self._explain_errors():  # Fails for a checkpoint of another run.
            checkpoints.latest(self.run.output_dir, self.model.run_identity)
        first_step, last_step = self.last_step(), self.model.num_train_steps
        if first_step >= last_step:
            logging.info("Already trained: the last checkpoint is of step %d.", first_step)
            return
        if first_step:
            logging.info("Resuming from the checkpoint of step %d.", first_step)
        interval = self.run.eval_every_steps if evaluate else 0
        stops, in_session = [last_step], None
        if interval and (self.model.use_tpu or self.run.distribution.kind != "none"):
            # The session of a TPU excludes another one, and a strategy's scope another graph.
            stops = [
                *range(first_step // interval * interval + interval, last_step, interval),
                last_step,
            ]
        else:
            in_session = evaluate
        for stop in stops:
            save_hook = hooks.SaveHook(
                self.run.output_dir, self.run.save_checkpoints_steps, interval, in_session
            )
            self._train_to(stop, rows, save_hook, train_hooks)
            if save_hook.is_ended or evaluate and evaluate():
                return

    def _train_to(
        self,
        stop: int,
        rows: Features,
        save_hook: hooks.SaveHook,
        train_hooks: Sequence[tf.train.SessionRunHook],
    ) -> None:
        """Trains in one session, to a step or to the end of `save_hook`."""
        try:
            save_hooks = [save_hook] if self.run.distribution.workers.is_chief else []
            with contextlib.ExitStack() as stack:
                stack.enter_context(self._explain_errors())
                interrupt_hook = stack.enter_context(hooks.StopOnInterrupt())
                if self.model.use_tpu:
                    folder = stack.enter_context(self._tpu_rows())
                    input_fn = input_pipeline.input_fn_for_tpu(rows, folder, last_step=stop)
                else:
                    input_fn = input_pipeline.input_fn_builder(rows, None, True, True)
                self._train(input_fn, [interrupt_hook, *save_hooks, *train_hooks], stop)
        except KeyboardInterrupt:
            logging.warning(
                "Stopped; the same command, without --overwrite_output_dir, resumes from step %d.",
                self.last_step(),
            )
            raise
        # TPUEstimator ends as usual if its TPU is lost.
        if save_hooks and not save_hook.is_ended and self.last_step() < stop:
            raise UserError(
                f"A device was lost: the training ended at step {self.last_step()} of"
                f" {self.model.num_train_steps}; the same command resumes it."
            )

    def _train(
        self, input_fn: Callable, train_hooks: List[tf.train.SessionRunHook], last_step: int
    ) -> None:
        kind = self.run.distribution.kind
        if kind == "multi_worker":
            # Only this call connects the workers. Without an evaluator it does not evaluate.
            with cluster.connect(self.run.distribution.workers):
                tf_estimator.train_and_evaluate(
                    self._distributed(),
                    tf_estimator.TrainSpec(input_fn, last_step, train_hooks),
                    tf_estimator.EvalSpec(input_fn),
                )
            return
        with cluster.hide():  # TF_CONFIG may describe a cluster of this machine alone.
            estimator = self._estimator if kind == "none" else self._distributed()
            estimator.train(input_fn, hooks=train_hooks, max_steps=last_step)

    def _distributed(self) -> Any:
        """Returns the Estimator that trains on several replicas."""
        model_fn = self._model_fn_builder(**vars(self.model))
        session_config = devices.session_config(one_device=False)
        if self.run.distribution.kind == "multi_worker":
            session_config.operation_timeout_in_ms = int(1000 * self.run.worker_timeout)
        config = tf_estimator.RunConfig(
            train_distribute=self.run.distribution.strategy(),
            session_config=session_config,
            **_run_config(self.model, self.run),
        )
        return tf_estimator.Estimator(
            lambda features, labels, mode, params, config: model_fn(
                features, labels, mode, params, config
            ).as_estimator_spec(),
            config=config,
            params={
                "train_batch_size": self.run.train_batch_size,
                "batch_size": self.run.train_batch_size // self.run.distribution.num_replicas,
            },
        )

    def evaluate(
        self,
        rows: Features,
        score_fn: Callable[[Any], Dict[str, Any]],
        checkpoint: Optional[str] = None,
        chooses_batches: bool = False,
    ) -> Dict[str, Any]:
        """Returns the scores of all rows' predictions, and writes them for TensorBoard.

        Args:
          rows: see the module's docstring.
          score_fn: function of the result of `predict_stacked` → dict of floats, and of nested
            lists, which TensorBoard does not get.
          checkpoint: prefix of the trained checkpoint; by default the last one.
          chooses_batches: as in `predict_stacked`.

        Returns:
          The dict of score_fn, with "global_step".
        """
        checkpoint = checkpoint or tf.train.latest_checkpoint(self.run.output_dir)
        predictions = self.predict_stacked(rows, checkpoint, "eval_batch_size", chooses_batches)
        step = checkpoints.step_of(checkpoint) if checkpoint else 0
        scores = score_fn(predictions)
        with self._explain_errors():
            folder = posixpath.join(self.run.output_dir, "eval")
            progress.write_scalars(folder, step, evaluations.scalars(scores))
        return {**scores, "global_step": step}

    def predict(self, rows: Features, checkpoint: Optional[str] = None) -> Iterator[Prediction]:
        """Yields the head's predictions of each row, in order: a dict of NumPy arrays.

        All rows are predicted, into temporary files, before the first is yielded.

        Args:
          rows: see the module's docstring.
          checkpoint: prefix of the trained checkpoint; by default the last one.
        """
        yield from stored_predictions.rows_of(self.predict_stacked(rows, checkpoint))

    def predict_stacked(
        self,
        features: Features,
        checkpoint: Optional[str] = None,
        batch_flag: str = "predict_batch_size",
        chooses_batches: bool = False,
        folder: Optional[str] = None,
        parts: Sequence[Any] = (),
    ) -> stored_predictions.StoredPredictions:
        """Returns the head's predictions of all rows, arrays [rows, ...] in files.

        Predictions per token have as many columns as the longest row's batch, see
        `StoredPredictions.add`.

        Args:
          features: rows; see the module's docstring.
          checkpoint: as in `predict`.
          batch_flag: name of the field of `RunSettings` with the batch size.
          chooses_batches: whether many rows come in batches of many tokens, if the user has given
            no batch size.
          folder: of a cache, where the same prediction resumes after a kill; None for none.
          parts: what the predictions depend on besides the checkpoints and the batches.
        """
        rows = as_rows(features)
        checkpoint = checkpoint or tf.train.latest_checkpoint(self.run.output_dir)
        batch_size: Optional[int] = getattr(self.run, batch_flag)
        is_chosen = chooses_batches and batch_flag in self.run.chosen_batches
        if is_chosen and len(rows) >= _MANY_ROWS:
            batch_size = None
        key = None
        if folder and checkpoint and not self.model.use_tpu:
            parts = [*parts, batch_size, tf.__version__]
            key = stored_predictions.key_of(parts, checkpoint, self.model.init_checkpoint)
        stored = stored_predictions.StoredPredictions(folder, key, len(rows))
        with self._explain_errors():
            if self.model.use_tpu:
                size = batch_size or self.run.predict_batch_size
                for index, values in self._predict_on_tpu(rows, size, checkpoint):
                    stored.add(np.array([index]), {n: v[np.newaxis] for n, v in values.items()})
                return stored
            order = input_pipeline.longest_first(rows.lengths)[stored.num_done :]
            if len(order):
                session = self._session_for(rows, batch_size)
                start = 0
                for batch in session.batches(rows, order, checkpoint):
                    stop = start + len(next(iter(batch.values())))
                    stored.add(order[start:stop], batch)
                    start = stop
                stored.record()
        return stored

    def stream(
        self, rows: Features, checkpoint: Optional[str] = None
    ) -> Iterator[Tuple[int, Prediction]]:
        """Yields (index, predictions) of each row as soon as its evaluation batch is computed.

        Rows come in the order of the batches. For predictions that do not fit into memory.

        Args:
          rows, checkpoint: as in `predict`.
        """
        return self._predict_in_batch_order(rows, self.run.eval_batch_size, checkpoint)

    def stream_batches(
        self,
        batches: Iterable[Any],
        input_fn_builder: Callable[[Callable], Callable],
        checkpoint: Optional[str] = None,
    ) -> Generator[Prediction, None, None]:
        """Yields each row's predictions from a stream of batches, in their order.

        Not for TPUs, whose batches have a fixed shape.

        Args:
          batches: iterable of batches. A thread reads it a few batches ahead; its exceptions are
            raised here.
          input_fn_builder: function of a function that returns the batches → the input_fn.
          checkpoint: as in `predict`.
        """
        failures = []

        def read() -> Iterator[Any]:
            try:
                yield from batches
            except Exception as error:  # TensorFlow would wrap it in an error of its own.
                failures.append(error)

        with self._explain_errors():
            yield from self._estimator.predict(input_fn_builder(read), checkpoint_path=checkpoint)
        if failures:
            raise failures[0]

    def last_step(self) -> int:
        """Returns the global step of the last checkpoint, 0 before the first."""
        with self._explain_errors():
            return checkpoints.last_step(self.run.output_dir)

    def _predict_in_batch_order(
        self, features: Features, batch_size: int, checkpoint: Optional[str]
    ) -> Iterator[Tuple[int, Prediction]]:
        rows = as_rows(features)
        with self._explain_errors():
            if self.model.use_tpu:
                yield from self._predict_on_tpu(rows, batch_size, checkpoint)
                return
            # The longest rows come first, and batches are only as long as they need to be.
            order = input_pipeline.longest_first(rows.lengths)
            checkpoint = checkpoint or tf.train.latest_checkpoint(self.run.output_dir)
            session = self._session_for(rows, batch_size)
            yield from zip(order, session.predict(rows, order, checkpoint))

    def _session_for(self, rows: Rows, batch_size: Optional[int]) -> prediction.PredictionSession:
        """Returns the session of the last prediction if it can read the rows, or else a new one."""
        key = batch_size, prediction.columns_of(rows)
        if self._session is None or self._session[0] != key:
            self._session = None  # Frees its memory first.
            model_fn = self._model_fn_builder(**vars(self.model))
            config = self._estimator.config
            session = prediction.PredictionSession(model_fn, config, rows, batch_size)
            self._session = key, session
        return self._session[1]

    def _predict_on_tpu(
        self, rows: Rows, batch_size: int, checkpoint: Optional[str]
    ) -> Iterator[Tuple[int, Prediction]]:
        """Yields the predictions of rows in their order; the last batch is padded."""
        order = np.arange(len(rows))
        padded = input_pipeline.pad_to_multiple(order, batch_size)
        estimator = self._estimator
        if batch_size != self.run.predict_batch_size:  # It is fixed in a TPU's Estimator.
            run = dataclasses.replace(self.run, predict_batch_size=batch_size)
            estimator = build_estimator(self.model, run, self._model_fn_builder)
        with self._tpu_rows() as folder:
            predictions = estimator.predict(
                input_pipeline.input_fn_for_tpu(rows, folder, padded),
                hooks=[hooks.OneSession()],
                checkpoint_path=checkpoint,
            )
            yield from zip(order, predictions)
            for _ in predictions:  # Padding. TPUEstimator releases the TPU after the last one.
                pass

    @contextlib.contextmanager
    def _tpu_rows(self) -> Iterator[str]:
        """Yields a folder for rows that the TPU's host reads, and removes it afterwards."""
        folder = posixpath.join(self.run.output_dir, _TPU_ROWS)
        try:
            yield folder
        finally:
            if gfile.isdir(folder):
                gfile.rmtree(folder)

    @contextlib.contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Raises UserError for a diverged loss, too little memory or disk, or a bad checkpoint."""
        try:
            with progress.convert_write_errors():
                yield
        except (tf.train.NanLossDuringTrainingError, tf.errors.OpError) as error:
            is_loss = isinstance(error, tf.train.NanLossDuringTrainingError)
            # TPUEstimator checks all variables within the step.
            if is_loss or re.search(r"\bTensor had (NaN|-?Inf)", error.message):
                raise UserError(
                    f"The loss is NaN or Inf: --learning_rate={self.model.learning_rate} is too"
                    " high, or the pretrained weights are broken."
                ) from error
            if re.search(r"\bOOM\b|\b[Oo]ut of memory\b", error.message):
                raise UserError(
                    "Out of memory: a batch does not fit. Give a smaller batch size or"
                    " --max_seq_length; for training, --gradient_accumulation_steps computes a"
                    " batch in parts."
                ) from error
            # TensorFlow reports a wrong checksum, but not always the file: now read all tensors.
            latest = tf.train.latest_checkpoint(self.run.output_dir)
            for flag, prefix in (
                ("--output_dir", latest),
                ("--init_checkpoint", self.model.init_checkpoint),
            ):
                if prefix:
                    checkpoints.check_tensors(prefix, flag)
            raise
