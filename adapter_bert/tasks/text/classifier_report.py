"""The report on a split's predictions: scores of each label, confusions, and the worst errors."""

import posixpath
from typing import Iterable, List, Sequence

import numpy as np

from adapter_bert.tasks import metrics, text_tables
from adapter_bert.tasks.text import classifier_results, text_kind
from adapter_bert.tasks.text.classifier_features import InputExample
from adapter_bert.tasks.text.classifier_results import Predictions
from adapter_bert.tasks.text.glue import TaskInfo
from adapter_bert.training import plots, stored_predictions


def describe(
    task: TaskInfo,
    split: str,
    labels: np.ndarray,
    predictions: Predictions,
    examples: Sequence[InputExample],
) -> str:
    """Returns the report, lines of plain text.

    Args:
      task: `glue.TaskInfo`.
      split: name of the dev or test set.
      labels, predictions: as in `classifier_results.scores`.
      examples: of the split's N rows.
    """
    answers = classifier_results.answers_of(task, predictions)
    lines = [f"{split.replace('_', ' ')}, {len(labels):,} rows:", ""]
    if task.labels:
        names = text_tables.names_of(task.labels)
        lines += text_tables.per_label(labels, np.asarray(answers, int), names)
        label, constant = classifier_results.majority(task, labels)
        label = text_tables.shorten_name(label or classifier_results.NO_LABEL)
        shown = [f"{name} {constant[name]:.3f}" for name in dict.fromkeys((task.score, "accuracy"))]
        lines.append(f"Always predicting {label}: {', '.join(shown)}.")
        if np.ndim(labels) == 1:
            matrix = metrics.confusion_matrix(labels, answers, len(names))
            lines += ["", *text_tables.confusions(matrix, names)]
        lines += ["", *_errors(task, labels, answers, predictions, examples)]
    else:
        lines += _largest_errors(labels, answers, examples)
    return "\n".join(lines) + "\n"


def plot(
    folder: str, task: TaskInfo, split: str, labels: np.ndarray, predictions: Predictions
) -> List[str]:
    """Draws the confusion matrix of classes, or predicted over true numbers; returns the paths.

    Args:
      folder: path.
      task, split, labels, predictions: as in `describe`.
    """
    answers = classifier_results.answers_of(task, predictions)
    title = f"{task.name} {split.replace('_', ' ')}"
    name = "confusion" if task.labels else "scatter"
    path = posixpath.join(folder, classifier_results.file_name(name, split, ".png"))
    if not task.labels:
        return [plots.draw_scatter(path, title, labels, answers)]
    if np.ndim(labels) > 1:
        return []
    names = text_tables.names_of(task.labels)
    matrix = metrics.confusion_matrix(labels, answers, len(names))
    return [plots.draw_matrix(path, title, names, matrix, "label")]


def _errors(
    task: TaskInfo,
    labels: np.ndarray,
    answers: np.ndarray,
    predictions: Predictions,
    examples: Sequence[InputExample],
) -> List[str]:
    """Returns the lines of the most confident errors."""
    kind = text_kind.get(task.kind)
    is_wrong = np.not_equal(answers, labels)
    parts = []
    for start, part in stored_predictions.pieces({"value": predictions["probabilities"]}):
        probabilities = part["value"]
        if np.ndim(labels) > 1:  # A set is as confident as its most confident wrong label.
            decided = np.maximum(probabilities, 1 - probabilities)
            probabilities = np.where(is_wrong[start : start + len(decided)], decided, 0)
        parts.append(probabilities.max(axis=1))
    confidences = np.concatenate(parts)
    if np.ndim(labels) > 1:
        is_wrong = is_wrong.any(axis=1)
    wrong = np.flatnonzero(is_wrong)
    if not len(wrong):
        return ["No errors."]
    shown = wrong[np.argsort(-confidences[wrong], kind="stable")[: text_tables.NUM_ERRORS]]
    true, predicted = (_names(kind.texts(each[shown], task.labels)) for each in (labels, answers))
    values = [f"{confidences[index]:.3f}" for index in shown]
    cells = zip(values, true, predicted)
    header = ["probability", "true", "predicted"]
    title = f"The {len(shown)} most confident of {len(wrong):,} errors"
    return _table(title, header, list(map(list, cells)), shown, examples)


def _names(texts: Sequence[str]) -> List[str]:
    return [
        text_tables.shorten_name(text) if text else classifier_results.NO_LABEL for text in texts
    ]


def _largest_errors(
    labels: np.ndarray, answers: np.ndarray, examples: Sequence[InputExample]
) -> List[str]:
    """Returns the lines of a regression's mean error and largest errors."""
    errors = np.subtract(answers, labels, dtype=np.float64)
    shown = np.argsort(-np.abs(errors), kind="stable")[: text_tables.NUM_ERRORS]
    rows = [
        [f"{errors[index]:+.3f}", f"{labels[index]:g}", f"{answers[index]:g}"] for index in shown
    ]
    mean = np.mean(np.abs(np.subtract(labels, np.mean(labels))))
    return [
        f"Mean absolute error: {np.mean(np.abs(errors)):.3f} ({mean:.3f} of always predicting the"
        " mean).",
        "",
        *_table(
            f"The {len(shown)} largest errors",
            ["error", "true", "predicted"],
            rows,
            shown,
            examples,
        ),
    ]


def _table(
    title: str,
    header: List[str],
    rows: List[List[str]],
    indices: Iterable[int],
    examples: Sequence[InputExample],
) -> List[str]:
    """Returns the lines of a table of rows, to which index, columns and texts are added."""
    names, columns = classifier_results.columns_of([examples[index] for index in indices])
    num_texts = 2 if names[-1] == "text_b" else 1
    lines = [[*header, "index", *map(text_tables.shorten_name, names)]]
    for row, index, cells in zip(rows, indices, columns):
        lines.append([*row, str(index), *(text_tables.shorten(each, num_texts) for each in cells)])
    left = set(range(1, len(lines[0]))) - {len(header)}
    return [f"{title} (index: the row of the set, from 0):", "", *text_tables.table(lines, left)]
