"""Cross-validation: a run for each fold as the dev set, and a last one on all rows.

    output_dir/fold_1 ...               the folds' runs
    output_dir/                         the last run: the adapter, without a dev set
    output_dir/cross_validation.json    the scores of each fold, their means and deviations

The same command resumes a cross-validation that was stopped, as each run resumes.
"""

import dataclasses
import posixpath
from typing import Any, Callable, Dict, List, Optional, Union

import numpy as np
from absl import logging

from adapter_bert.files import json_objects
from adapter_bert.formats import task_adapter
from adapter_bert.model import task_kinds
from adapter_bert.training import evaluations
from adapter_bert.training.run import Run
from adapter_bert.training.run_folder import CROSS_VALIDATION
from adapter_bert.training.starting_point import StartingPoint
from adapter_bert.training.task import Task

_PREFIX = "cross_validation_"


def run_of(
    config: Any, task: Task, model_fn_builder: Callable, start: Optional[StartingPoint] = None
) -> "Union[Run, CrossValidation]":
    """Returns the run that the settings name: with --folds, a `CrossValidation`.

    See `Run` for the arguments and errors.
    """
    kind: Any = CrossValidation if getattr(config, "folds", 0) else Run
    return kind(config, task, model_fn_builder, start)


class CrossValidation:
    """The runs of a cross-validation.

    Args:
      config: `FinetuningConfig` with `folds`, of the last run, and `of_fold`.
      task, model_fn_builder, start: as in `Run`.

    Attributes:
      folder: `RunFolder` of the last run.
      scores: means and deviations, named cross_validation_f1 and cross_validation_f1_std, and the
        last run's scores.
    """

    def __init__(
        self,
        config: Any,
        task: Task,
        model_fn_builder: Callable,
        start: Optional[StartingPoint] = None,
    ):
        self._config, self._task = config, task
        self._arguments = model_fn_builder, start
        self._last = Run(config, task, *self._arguments)  # First, as it checks all it can.
        self.folder, self.scores = self._last.folder, {}

    def execute(self) -> List[str]:
        """Executes all runs; returns the report."""
        folds = [self._scores_of_fold(number + 1) for number in range(self._config.folds)]
        logging.info("Training on all rows.")
        report, summary = self._last.execute(), summarize(folds)
        adapter = self.folder.load_adapter()
        scores = {**adapter.description.scores, **summary}
        description = dataclasses.replace(adapter.description, scores=scores)
        task_adapter.save(self.folder.adapter_folder, adapter._replace(description=description))
        self.scores = {**self._last.scores, **summary}
        path = posixpath.join(self.folder.path, CROSS_VALIDATION)
        json_objects.write_object(path, {**self._task.metadata("eval"), "folds": folds, **summary})
        return [*report, f"Cross-validation: {path}", *self._lines(folds, summary)]

    def _scores_of_fold(self, number: int) -> Dict[str, float]:
        """Returns the dev scores of the run of a fold, without eval_."""
        logging.info("Fold %d of %d.", number, self._config.folds)
        config = self._config.of_fold(number, posixpath.join(self.folder.path, f"fold_{number}"))
        run = Run(config, self._task.with_config(config), *self._arguments)
        run.execute()
        scores = evaluations.scalars(run.scores, "eval_")
        return {name: scores[name] for name in scores if not task_kinds.is_reference(name)}

    def _lines(self, folds: List[Dict[str, float]], summary: Dict[str, float]) -> List[str]:
        """Returns the main score of each fold, and the summary of all scores, main one first."""
        main = self._task.score
        shown = ", ".join(f"{fold[main]:.4f}" for fold in folds)
        means = {
            name[len(_PREFIX) :]: f"{summary[name]:.4f} ± {summary[name + '_std']:.4f}"
            for name in summary
            if name + "_std" in summary
        }
        summaries = [f"{main} {means.pop(main)}", *map(" ".join, means.items())]
        return [
            f"{main} of the {len(folds)} folds: {shown}",
            f"{self._task.name}, mean and standard deviation of the folds: {', '.join(summaries)}",
        ]


def summarize(folds: List[Dict[str, float]]) -> Dict[str, float]:
    """Returns the mean and the sample standard deviation of each score that all folds have."""
    names = set.intersection(*map(set, folds))
    summary = {}
    for name in sorted(names):
        values = [fold[name] for fold in folds]
        summary[_PREFIX + name] = float(np.mean(values))
        summary[f"{_PREFIX}{name}_std"] = float(np.std(values, ddof=1))
    return summary
