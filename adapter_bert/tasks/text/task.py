"""The task of run_classifier.py: labels a text or a pair."""

import functools
from typing import Any, Dict, List, Optional, Sequence, Tuple

from absl import logging

from adapter_bert.formats import task_adapter
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import (
    calibration,
    classifier_data,
    classifier_report,
    classifier_results,
    record_files,
    text_kind,
    text_windows,
)
from adapter_bert.training import starting_point
from adapter_bert.training.task import Calibration, Evaluated, Tables, Task, short_examples


def from_flags(
    values: Any, tables: Optional[Tables] = None
) -> "Tuple[classifier_data.ClassifierConfig, TextTask, starting_point.StartingPoint]":
    """Returns the settings, task and starting point of run_classifier.py's flags.

    Args:
      values: parsed flags.
      tables: see `TextTask`.

    Raises:
      UserError: see `TextTask`, `FinetuningConfig` and `starting_point.find`.
    """
    name = classifier_data.name_of(values).lower()
    settings_of = functools.partial(classifier_data.trained_settings, values)
    start = starting_point.find(values, name, settings_of, "run_classifier.py")
    config = classifier_data.ClassifierConfig.from_flags(values, start.supplied)
    return config, TextTask(config, start.adapter, tables), start


def _shown(examples: classifier_data.Examples) -> Tuple[Dict[str, str], ...]:
    """Returns the texts of a few `InputExample`s by field; see `short_examples`."""
    if isinstance(examples, record_files.RecordExamples):
        return ()

    def read(row: int) -> Tuple[Dict[str, str], Any]:
        example = examples[row]
        second = {} if example.text_b is None else {"text_b": example.text_b}
        return {"text": example.text_a, **second}, example.label

    lengths = classifier_data.num_characters(examples)
    return short_examples(lengths, classifier_data.num_labels(examples), read)


class TextTask(Task):
    """A text classification task, or regression; see `Task`.

    Args:
      config: `ClassifierConfig`.
      adapter: the task adapter of --adapter, or None.
      tables: of splits in memory, instead of files; for --task_name=custom.

    Raises:
      UserError: the task is unknown, its data is missing, or --class_weights or --label_smoothing
        does not fit it.
    """

    chooses_batches = True

    def __init__(
        self,
        config: classifier_data.ClassifierConfig,
        adapter: Optional[task_adapter.TaskAdapter] = None,
        tables: Optional[Tables] = None,
    ):
        self.config, self._arguments = config, (adapter, tables)
        name = classifier_data.name_of(config, adapter and adapter.description)
        self.folder = config.folder_of(name.lower())
        self._processor: Any
        self._processor, self._data_dir = classifier_data.find_task(
            config, adapter, self.folder, tables
        )
        task, self.answer_settings = self._processor.task, config.answers
        names = text_kind.get(task.kind).score_names(len(task.labels))
        self._task = task._replace(score=config.choose_score(names, task.score))
        self.calibrates = config.calibrate and "train" in config.stages
        if config.calibrate and text_kind.get(task.kind).prediction != "probabilities":
            raise UserError(f"--calibrate: a {task.kind} task has no probabilities.")
        if classifier_data.is_custom(config.task_name):
            earlier = None if config.name else classifier_data.earlier_name(config, self.folder)
            self._task = self._task._replace(name=earlier or name)
        self.name, self.kind, self.score = self._task.name, self._task.kind, self._task.score
        self.labels = tuple(self._processor.get_labels())
        # Fails before the encoding.
        self._weights = classifier_data.class_weights(config.class_weights, self._task, None)
        classifier_data.check_single_label("label_smoothing", config.label_smoothing, self._task)
        missing = list(filter(self._processor.is_held_out, ("dev", "test")))
        config.warn_of_unused(missing)
        config.check_dev_set(missing, self.name)
        self._examples: classifier_data.Splits = {}
        self._rows: Dict[str, Any] = {}

    def with_config(self, config: Any) -> "TextTask":
        """Returns the task with other settings; see `Task`."""
        return TextTask(config, *self._arguments)

    def load(self, stages: Sequence[str]) -> None:
        """Reads the examples of the stages; see `Task`."""
        self._examples = classifier_data.read_examples(self._processor, stages, self._data_dir)
        self.warnings = classifier_data.warnings_of(self._task, self._examples)

    def encode(self, tokenizer: Any) -> Dict[str, Any]:
        """Returns the `rows.PackedRows` of each split; see `Task`."""
        examples, config = self._examples, self.config
        self._rows = {
            split: classifier_data.encode_examples(examples[split], self.labels, config, tokenizer)
            for split in examples
        }
        train = self._rows.get("train")
        label_ids = None if train is None else train["label_ids"]
        self._weights = classifier_data.class_weights(config.class_weights, self._task, label_ids)
        self.num_examples = len(self._rows.get("train", ()))
        cache = config.feature_folder
        train_examples = examples.get("train", ())
        self.settings = {"data": classifier_data.digest(train_examples, folder=cache)}
        if self._weights:
            self.settings["class_weights"] = self._weights
        if config.label_smoothing and train is not None:
            self.settings["label_smoothing"] = config.label_smoothing
        self._split_settings = self._processor.split_settings()
        self.settings.update({**config.window_settings(), **self._split_settings})
        dev_sets = [examples[split] for split in examples if split.startswith("dev")]
        self.dev_settings = {"dev_data": classifier_data.digest(*dev_sets, folder=cache)}
        self.fields = classifier_data.fields_of(examples)
        if config.answers:  # GLUE's tasks have examples that were written for them.
            self.examples = _shown(examples.get("dev", ()))
        self._trained_on = classifier_data.trained_on(
            self._processor, examples, self._data_dir, cache
        )
        self._labeled = {split for split in examples if self._processor.has_labels(split)}
        # Frees the texts of the training; those of the other splits are written with predictions.
        self._examples = {split: examples[split] for split in examples if split != "train"}
        self._processor = None
        return self._rows

    def check_trained(
        self, description: Optional[task_adapter.Description], training: Dict[str, Any]
    ) -> None:
        """Raises UserError if the rows were trained on, or have other texts than the adapter's."""
        classifier_data.check_data(
            training, description, self.fields, self._trained_on, self._split_settings
        )

    def check_further_training(self, adapter: Optional[task_adapter.TaskAdapter]) -> None:
        """Warns if the adapter may have been trained on rows that are now dev or test rows."""
        before = adapter.description.training.get("data") if adapter else None
        if before and self._trained_on and before != self._trained_on:
            logging.warning(
                "--adapter was trained on other rows. If these include rows of this training file,"
                " its dev and test rows are not new to the adapter, and scores are too high."
            )

    def head(self) -> Dict[str, Any]:
        """Returns the arguments of run_classifier.py's `model_fn_builder`."""
        return {
            "num_labels": len(self.labels),
            "kind": self.kind,
            "class_weights": self._weights,
            "label_smoothing": self.config.label_smoothing,
            "predicts_loss": True,
        }

    def evaluate(self, split: str, predictions: Any) -> Evaluated:
        """Returns the texts' predictions by name, see `classifier_results`, and their scores."""
        rows, task = self._rows[split], self._task
        answers = classifier_results.of_texts(predictions, task, rows)
        if split not in self._labeled:
            return Evaluated(answers, {})
        labels = text_windows.labels_of(rows)
        values = classifier_results.scores(task, labels, answers)
        warnings = classifier_results.warnings(task, split, labels, answers, values)
        if split.startswith("dev"):
            batch_size = self.config.eval_batch_size
            named = classifier_results.dev_scores(split, values, answers["loss"], batch_size)
        else:
            named = classifier_results.add_prefix("test", values)
        return Evaluated(answers, named, warnings)

    def calibrate(self, split: str, predictions: Any) -> Calibration:
        """Returns the temperature that fits a split's labels best; see `calibration.fit`."""
        rows, is_single_label = self._rows[split], text_kind.get(self.kind).is_single_label
        return calibration.fit(
            classifier_results.stack(predictions),
            text_windows.labels_of(rows),
            functools.partial(classifier_results.join, task=self._task, rows=rows),
            is_single_label,
        )

    def write(self, folder: str, split: str, evaluated: Evaluated) -> List[str]:
        """Writes a split's predictions and, if it has them, labels and scores; see `Task`."""
        task, answers = self._task, evaluated.answers
        classifier_results.remove_unread(folder, task, self._rows)
        labels = text_windows.labels_of(self._rows[split])
        examples = self._examples[split]
        if split.startswith("dev"):
            classifier_results.write_answers(folder, task, split, labels, answers, examples)
            return []
        known = (labels, evaluated.scores) if split in self._labeled else None
        return classifier_results.write_test(folder, task, split, answers, known, examples)

    def describe(self, split: str, evaluated: Evaluated) -> str:
        """Returns the scores of each label, confusions and the worst errors; see `Task`."""
        if split not in self._labeled:
            return ""
        labels, examples = text_windows.labels_of(self._rows[split]), self._examples[split]
        return classifier_report.describe(self._task, split, labels, evaluated.answers, examples)

    def plot(self, folder: str, split: str, evaluated: Evaluated) -> List[str]:
        """Draws the confusion matrix, or predicted over true numbers; see `Task`."""
        if split not in self._labeled:
            return []
        labels = text_windows.labels_of(self._rows[split])
        return classifier_report.plot(folder, self._task, split, labels, evaluated.answers)

    def summary(self, stage: str, scores: Dict[str, Any]) -> str:
        """Returns the scores of a stage on one line; see `Task`."""
        shown = classifier_results.summary(self._task, stage, scores)
        return f"{self.name} {'dev' if stage == 'eval' else stage}: {shown}"
