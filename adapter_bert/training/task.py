"""The base class of the tasks that a run trains; `tasks` has a subclass for each script."""

from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Set, Tuple

import numpy as np
from absl import logging

Tables = Dict[str, Any]  # Split, of train, dev and test → its `tables.DataTable`.

_NUM_EXAMPLES, _MAX_CHARACTERS = 3, 120


class Evaluated(NamedTuple):
    """The decoded predictions of a split, and their scores.

    Attributes:
      answers: decoded predictions, for `Task.write`.
      scores: numbers, and nested lists, by name: eval_f1. {} for a split without labels.
      warnings: sentences that the user must know: only one label is predicted.
    """

    answers: Any
    scores: Dict[str, Any]
    warnings: Tuple[str, ...] = ()


class Calibration(NamedTuple):
    """A temperature, and the expected calibration error of probabilities without and with it."""

    temperature: float
    error_before: float
    error_after: float


class Task:
    """A task: reads and encodes its data, builds its head, scores and writes its predictions.

    Attributes:
      name, kind, labels: as in `task_adapter.Description`.
      score: name of the dev score, the higher the better, by which task adapters are compared.
      folder: path of output_dir.
      fields: those of the kind's `fields` that an example has.
      num_examples: size of the training set.
      settings: JSON values by name that affect the weights, such as the data's digest.
      dev_settings: those that affect the dev scores; they matter if scores choose the weights.
      answer_settings: how answers are chosen from outputs; recorded, and free to change.
      warnings: sentences about the data that the user must know, from `load`: a label has few rows.
      calibrates: whether `calibrate` fits a temperature to the dev set.
      examples: texts by field of a few dev rows, for `task_adapter.Presentation`.
      chooses_batches: whether many rows are predicted in batches of many tokens.

    `fields` and all below it are known after `encode`.
    """

    name: str
    kind: str
    labels: Tuple[str, ...] = ()
    score: str
    folder: str
    fields: Tuple[str, ...] = ()
    num_examples = 0
    settings: Dict[str, Any] = {}
    dev_settings: Dict[str, Any] = {}
    answer_settings: Dict[str, Any] = {}
    warnings: Sequence[str] = ()
    calibrates = False
    examples: Tuple[Dict[str, str], ...] = ()
    chooses_batches = False
    _loaded: Sequence[str] = ()

    def with_config(self, config: Any) -> "Task":
        """Returns the task with other settings, as for a fold of a cross-validation."""
        raise NotImplementedError

    def load_once(self, stages: Sequence[str]) -> None:
        """Calls `load` unless it was called for these stages, and logs what it warns of."""
        if list(self._loaded) != list(stages):
            self.load(stages)
            self._loaded = stages
            for warning in self.warnings:
                logging.warning("%s", warning)

    def load(self, stages: Sequence[str]) -> None:
        """Reads the examples of stages, of train, eval and predict; raises UserError."""
        raise NotImplementedError

    def encode(self, tokenizer: Any) -> Dict[str, Any]:
        """Returns the rows of each split that `load` read, and forgets the training examples.

        Args:
          tokenizer: `tokenization.FullTokenizer`.

        Returns:
          {"train": rows, "dev...": rows, "test...": rows}, rows as in `estimator`.
        """
        raise NotImplementedError

    def check_trained(self, description: Any, training: Dict[str, Any]) -> None:
        """Raises UserError if the encoded rows must not be evaluated by a trained model.

        Args:
          description: `task_adapter.Description` of the adapter, or None.
          training: the recorded settings of its training, if any.
        """

    def check_further_training(self, adapter: Any) -> None:
        """Warns if training from a `TaskAdapter`, or None, makes this task's scores too high."""

    def head(self) -> Dict[str, Any]:
        """Returns the arguments of the script's `model_fn_builder` that this task decides."""
        return {}

    def evaluate(self, split: str, predictions: Any) -> Evaluated:
        """Returns the decoded predictions of a split's rows, and their scores.

        Args:
          split: name.
          predictions: arrays [rows, ...] by name; see `stored_predictions.rows_of`.
        """
        raise NotImplementedError

    def calibrate(self, split: str, predictions: Any) -> Calibration:
        """Returns the temperature that fits a split's rows best."""
        raise NotImplementedError

    def write(self, folder: str, split: str, evaluated: Evaluated) -> List[str]:
        """Writes the files of a split's predictions; returns lines for the report."""
        raise NotImplementedError

    def describe(self, split: str, evaluated: Evaluated) -> str:
        """Returns a report on a split's predictions, such as the scores of each label; "" if none.

        It follows the scores in eval_results.txt, and is shown.
        """
        return ""

    def plot(self, folder: str, split: str, evaluated: Evaluated) -> List[str]:
        """Draws a split's predictions, as for --plots; returns the paths of the pictures."""
        return []

    def metadata(self, stage: str) -> Dict[str, Any]:
        """Returns the header of a file of scores: the task, its main score and its labels."""
        return {"task": self.name, "score": f"{stage}_{self.score}", "labels": list(self.labels)}

    def summary(self, stage: str, scores: Dict[str, Any]) -> str:
        """Returns the scores of a stage, "eval" or "test", on one line, the main score first."""
        raise NotImplementedError


def short_examples(
    lengths: Any, num_labels: int, read: Callable[[int], Tuple[Dict[str, str], Any]]
) -> Tuple[Dict[str, str], ...]:
    """Returns the texts of up to three rows, short ones of different labels if there are any.

    They are the longest in the shorter half of the rows, as the shortest texts say little.

    Args:
      lengths: int [N], the characters of each row's texts.
      num_labels: of the rows; with texts of each, the others need not be read.
      read: function of a row's index → (its texts by field, its label).
    """
    lengths = np.asarray(lengths)
    rows = np.argsort(lengths, kind="stable")[: (len(lengths) + 1) // 2]
    rows = rows[lengths[rows] <= _MAX_CHARACTERS]
    shown: List[Dict[str, str]] = []  # The first texts of each label.
    others: List[Dict[str, str]] = []
    labels: Set[Any] = set()
    for length in sorted(set(lengths[rows].tolist()), reverse=True):
        texts_of: Dict[Tuple[str, ...], Tuple[Dict[str, str], Any]] = {}
        for row in rows[lengths[rows] == length].tolist():
            texts, label = read(row)
            texts_of[tuple(texts.values())] = texts, label
        for texts, label in reversed(list(texts_of.values())):
            if all(texts.values()):
                (others if label in labels else shown).append(texts)
                labels.add(label)
        has_all = len(shown) >= num_labels and len(shown) + len(others) >= _NUM_EXAMPLES
        if has_all or len(shown) >= _NUM_EXAMPLES:
            break
    return tuple([*shown, *others][:_NUM_EXAMPLES])
