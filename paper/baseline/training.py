"""Trains the no-BERT baseline and predicts with it, through an Estimator.

During training, the dev set is scored every `EVALUATE_EVERY` samples, in the training's graph. The
result of the training is the weights with the best score.
"""

import collections
import contextlib
import posixpath
import tempfile
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from adapter_bert.formats import checkpoints
from adapter_bert.ops import devices
from adapter_bert.paper.baseline import model, search_space, texts
from adapter_bert.paper.baseline.model import BATCH_SIZE, EmbeddedStrings, NetworkConfig, TextModule
from adapter_bert.paper.baseline.search_space import (
    EVALUATE_EVERY,
    Diverged,
    OnScore,
    TrialSettings,
)
from adapter_bert.shell import tf_estimator
from adapter_bert.tasks.text import classifier_results
from adapter_bert.tasks.text.classifier_results import Predictions
from adapter_bert.tasks.text.glue import TaskInfo
from adapter_bert.training import cluster, hooks, input_pipeline, rows

_PREDICT_BATCH_SIZE = 256
_MAX_CACHE_BYTES = 1 << 30  # Of embeddings and ids, which a search reads many times.


class Dataset(NamedTuple):
    """A task's examples for the baseline.

    Attributes:
      labels: of each split, [N] as in `classifier_results.scores`; [N, L] for sets of labels.
      has_labels: by split; if False, the split's `labels` are placeholders.
      max_words: the longest text in words; longer ones are truncated.
      where: the examples' folder, their name in errors and records.
    """

    task: TaskInfo
    texts: Dict[str, List[texts.TextPair]]
    labels: Dict[str, np.ndarray]
    has_labels: Dict[str, bool]
    max_words: int
    where: str


class Result(NamedTuple):
    """The result of a training.

    Attributes:
      score: the best score on the dev set, the higher the better.
      samples: number of samples trained on at that point.
      trained_parameters: number, including the module's if they train.
    """

    score: float
    samples: int
    trained_parameters: int


# Split → rows, their strings, and {"vectors": the embeddings} if they are computed.
_CacheEntry = Tuple[Dict[str, rows.Arrays], List[str], Dict[str, np.ndarray]]


class ModuleCache:
    """A cache of text embedding modules and their embeddings of a task's strings, within limits."""

    def __init__(self, data: Dataset):
        self._data = data
        self._modules: Dict[str, Tuple[TextModule, str]] = {}
        self._cache: collections.OrderedDict[Any, _CacheEntry] = collections.OrderedDict()

    def open_module(self, name: str) -> Tuple[TextModule, str]:
        """Returns (module, its unit) for a module's name in `search_space`."""
        if name not in self._modules:
            module = search_space.find_module(name)
            self._modules[name] = model.open_module(module.handle), module.unit
        return self._modules[name]

    def prepare(self, settings: TrialSettings) -> Tuple[Dict[str, rows.Arrays], EmbeddedStrings]:
        """Returns (split → rows without labels, their strings)."""
        module, unit = self.open_module(settings.module)
        max_ngram = settings.conv_max_ngram if settings.use_convolution and unit == "text" else 1
        cleaning = (settings.lowercase, settings.remove_non_alphanumeric)
        key = (settings.module, *cleaning, settings.use_convolution, max_ngram)
        if key in self._cache:
            self._cache.move_to_end(key)
        else:
            vocabulary = texts.StringVocabulary()
            has_pairs = any(b for pairs in self._data.texts.values() for _, b in pairs)
            self._cache[key] = (
                {
                    split: texts.encode_texts(
                        pairs, settings, unit, self._data.max_words, vocabulary, has_pairs
                    )
                    for split, pairs in self._data.texts.items()
                },
                vocabulary.strings(),
                {},
            )
        by_split, strings, embeddings = self._cache[key]
        if not settings.fine_tune_module and not embeddings:
            embeddings["vectors"] = model.compute_embeddings(module, strings)
        self._evict()
        vectors = None if settings.fine_tune_module else embeddings["vectors"]
        return by_split, EmbeddedStrings(strings, vectors)

    def _evict(self) -> None:
        """Evicts the least recently used entries while all are too large, but never the last."""
        while (
            len(self._cache) > 1 and sum(map(_num_bytes, self._cache.values())) > _MAX_CACHE_BYTES
        ):
            self._cache.popitem(last=False)


def _num_bytes(entry: _CacheEntry) -> int:
    """Returns the size in bytes of a cache entry's arrays."""
    by_split, _, embeddings = entry
    arrays = [array for columns in by_split.values() for array in columns.values()]
    return sum(array.nbytes for array in [*arrays, *embeddings.values()])


class Baseline:
    """A model of the search space on a task's data.

    Args:
      modules: the cache of this data.
      random_seed, precision: see `model.NetworkConfig`.
    """

    def __init__(
        self,
        settings: TrialSettings,
        data: Dataset,
        modules: ModuleCache,
        random_seed: int,
        precision: str = "float32",
    ):
        self._data = data
        module, unit = modules.open_module(settings.module)
        task = data.task
        self._network_config = NetworkConfig(
            settings, module, unit, task.kind, len(task.labels), random_seed, precision
        )
        prepared, self._strings = modules.prepare(settings)
        self._rows = {
            split: rows.PaddedRows(
                {**arrays, "label_ids": data.labels[split]}, untruncated=["label_ids"]
            )
            for split, arrays in prepared.items()
        }

    def train(
        self, folder: Optional[str] = None, patience: int = 0, on_score: Optional[OnScore] = None
    ) -> Result:
        """Trains for the settings' number of samples, or until the score stops rising.

        Args:
          folder: for the best weights and TensorBoard's files; progress is then printed. None:
            nothing is kept or printed.
          patience: number of evaluations without a better score after which to stop; 0 for never.
          on_score: may raise to end the training.

        Raises:
          Diverged: the loss is NaN or Inf before any weights were scored.
        """
        evaluation = DevSetHook(
            self._rows["dev"],
            self._score,
            patience,
            on_score,
            folder,
            self._network_config.num_steps,
        )
        try:
            with contextlib.ExitStack() as stack:
                if folder is None:
                    scratch = stack.enter_context(tempfile.TemporaryDirectory())
                estimator = self._estimator(
                    folder or scratch, evaluation, show_progress=folder is not None
                )
                interrupt = stack.enter_context(hooks.StopOnInterrupt())
                estimator.train(
                    input_pipeline.input_fn_builder(self._rows["train"], None, True, True),
                    hooks=[interrupt],
                    max_steps=self._network_config.num_steps,
                )
        except tf.train.NanLossDuringTrainingError as error:
            settings = self._network_config.settings
            message = (
                "The loss is NaN or Inf:"
                f" deep_learning_rate={settings.deep_learning_rate} or"
                f" wide_learning_rate={settings.wide_learning_rate} is too high for this model"
            )
            if not evaluation.result():
                raise Diverged(f"{message}.") from error
            logging.warning("%s; using the best weights before that.", message)
        return evaluation.result() or self._load_result(str(folder))

    def _load_result(self, folder: str) -> Result:
        """Returns the result of an earlier process that finished the training.

        Its last weights are the best; Estimator builds no training graph in this case.
        """
        parameters_hook = _ParametersHook()
        score = self._score(self.predict("dev", folder, [parameters_hook]))
        return Result(score, self._network_config.num_steps * BATCH_SIZE, parameters_hook.trained)

    def predict(
        self, split: str, folder: str, hooks: Sequence[tf.train.SessionRunHook] = ()
    ) -> Predictions:
        """Returns the predictions of a split's rows by the best weights in a folder.

        Args:
          split: name of the split.
          folder: of the weights.
          hooks: for the session that predicts.
        """
        split_rows = self._rows[split]
        order = input_pipeline.longest_first(split_rows.lengths)
        ordered = rows.OrderedRows(split_rows, order)
        input_fn = input_pipeline.input_fn_builder(ordered, None, False, False)
        indexed_predictions = zip(order, self._estimator(folder).predict(input_fn, hooks=hooks))
        return classifier_results.stack(input_pipeline.sort_by_index(indexed_predictions))

    def _score(self, predictions: Predictions) -> float:
        task = self._data.task
        return classifier_results.scores(task, self._data.labels["dev"], predictions)[task.score]

    def _estimator(
        self, folder: str, evaluation: Optional["DevSetHook"] = None, show_progress: bool = False
    ) -> tf_estimator.Estimator:
        is_training = evaluation is not None
        with cluster.hide():
            config = tf_estimator.RunConfig(
                tf_random_seed=self._network_config.random_seed,
                session_config=devices.session_config(),
                save_checkpoints_steps=None,
                save_checkpoints_secs=None,
                save_summary_steps=0,
                log_step_count_steps=None,
            )
        return tf_estimator.Estimator(
            model.model_fn_builder(self._network_config, self._strings, evaluation, show_progress),
            model_dir=folder,
            config=config,
            params={"batch_size": BATCH_SIZE if is_training else _PREDICT_BATCH_SIZE},
        )


class _ParametersHook(tf.train.SessionRunHook):
    """Counts the trainable parameters of the graph."""

    def begin(self) -> None:
        """Counts the parameters."""
        self.trained = _count_trained_parameters()


def _count_trained_parameters() -> int:
    return sum(int(np.prod(v.shape.as_list())) for v in tf.trainable_variables())


class DevSetHook(tf.train.SessionRunHook):
    """Scores the dev set during training, and saves the weights with the best score.

    Args:
      rows: rows of the dev set.
      score_fn: function of the rows' predictions.
      patience, on_score, folder: see `Baseline.train`.
      num_steps: the last step of the training.
    """

    def __init__(
        self,
        rows: rows.Rows,
        score_fn: Callable[[Predictions], float],
        patience: int,
        on_score: Optional[OnScore],
        folder: Optional[str],
        num_steps: int,
    ):
        self._rows, self._score_fn, self._num_steps = rows, score_fn, num_steps
        self._patience, self._on_score, self._folder = patience, on_score, folder
        self._best: Optional[Result] = None
        self._evaluations_since_best = 0

    def build(self, predict: Callable[[model.Tensors], model.Tensors]) -> None:
        """Adds the evaluation to the training's graph; `predict` maps features to predictions."""
        example = self._rows.take([0])
        self._features = {
            name: tf.placeholder(values.dtype, [None] * values.ndim)
            for name, values in example.items()
        }
        for name, values in example.items():
            if name == "label_ids":
                self._features[name].set_shape([None, *values.shape[1:]])
        self._predictions = predict(self._features)
        self._global_step = tf.train.get_or_create_global_step()
        self._trained_parameters = _count_trained_parameters()

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Scores the weights that an earlier process saved."""
        self._saver = tf.get_collection(tf.GraphKeys.SAVERS)[0]
        step = int(session.run(self._global_step))
        if step:  # The training resumes from these weights.
            score = self._score_fn(self._predict(session))
            self._best = Result(score, step * BATCH_SIZE, self._trained_parameters)

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: Any) -> None:
        """Scores every `EVALUATE_EVERY` samples, and stops when the patience is exhausted."""
        step = int(run_context.session.run(self._global_step))
        if step % (EVALUATE_EVERY // BATCH_SIZE) and step < self._num_steps:
            return
        predictions = self._predict(run_context.session)
        if np.isnan(predictions["loss"]).any():  # Such weights predict a constant class.
            raise tf.train.NanLossDuringTrainingError
        score = self._score_fn(predictions)
        self._record_score(score, step, run_context.session)
        if self._on_score:
            self._on_score(step * BATCH_SIZE, score)
        if 0 < self._patience <= self._evaluations_since_best:
            run_context.request_stop()

    def result(self) -> Optional[Result]:
        """Returns the best result, or None."""
        return self._best

    def _record_score(self, score: float, step: int, session: tf.Session) -> None:
        self._evaluations_since_best += 1
        if self._best is None or score > self._best.score:
            self._best = Result(score, step * BATCH_SIZE, self._trained_parameters)
            self._evaluations_since_best = 0
            if self._folder:
                prefix = posixpath.join(self._folder, checkpoints.MODEL_CHECKPOINT)
                self._saver.save(session, prefix, global_step=step, write_meta_graph=False)

    def _predict(self, session: tf.Session) -> Predictions:
        return classifier_results.stack(
            input_pipeline.sort_by_index(self._predict_batches(session))
        )

    def _predict_batches(self, session: tf.Session) -> Iterator[Tuple[int, Predictions]]:
        """Yields (index, predictions) of each row, the longest rows first."""
        order = input_pipeline.longest_first(self._rows.lengths)
        for indices in input_pipeline.evaluation_batches(order, _PREDICT_BATCH_SIZE):
            length = input_pipeline.bucket_of(
                self._rows.lengths[indices].max(initial=1), self._rows.max_seq_length
            )
            batch = self._rows.take(indices, length)
            feed = {self._features[name]: values for name, values in batch.items()}
            predictions = session.run(self._predictions, feed)
            for position, index in enumerate(indices):
                yield index, {name: values[position] for name, values in predictions.items()}
