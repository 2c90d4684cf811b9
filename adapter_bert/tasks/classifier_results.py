"""What a classification task's predictions become: scores, and files.

A task's predictions are a dict of arrays over its N rows: "loss" [N], and what its
`text_kind.TextKind` predicts, "probabilities" [N, L] of its L labels or "prediction" [N].
"""

import posixpath
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np

from adapter_bert.common import files, metrics
from adapter_bert.tasks import text_kind, text_windows
from adapter_bert.tasks.glue import Task

Predictions = Dict[str, np.ndarray]

# A matrix of more takes half a megabyte of JSON and up for every evaluation, and nobody reads it.
_MAX_MATRIX_LABELS = 200


def stack(predictions: Iterable[Predictions]) -> Predictions:
    """Returns N dicts of arrays as one dict of arrays [N, ...]."""
    rows = list(predictions)
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]} if rows else {}


def of_texts(predictions: Iterable[Predictions], task: Task, rows: Any) -> Predictions:
    """Returns the predictions of rows as those of the texts that they are, or are windows of.

    Args:
      predictions: of each row.
      task: `glue.Task`.
      rows: `rows.TextRows`.
    """
    windows = getattr(rows, "windows", None)
    if windows is None:
        return stack(predictions)
    return windows.join(stack(predictions), text_kind.get(task.kind).is_single_label)


def scores(task: Task, labels: np.ndarray, predictions: Predictions) -> Dict[str, Any]:
    """The scores of a task's predictions.

    Args:
      task: `glue.Task`.
      labels: array [N], label ids or a regression's numbers; [N, L] in a multilabel task.
      predictions: see above.

    Returns:
      A dict of floats, those of `metrics` for the task's kind and "loss", the mean over rows; and
      for up to 200 classes "confusion_matrix", L lists of L counts.
    """
    kind, num_labels = text_kind.get(task.kind), len(task.labels)
    answers = kind.answers(predictions)
    result: Dict[str, Any] = {
        **kind.scores(labels, answers, num_labels),
        "loss": float(np.mean(predictions["loss"])),
    }
    if kind.is_single_label and num_labels <= _MAX_MATRIX_LABELS:
        confusion = metrics.confusion_matrix(labels, answers, num_labels)
        result["confusion_matrix"] = confusion.tolist()
    return result


def score_fn(
    task: Task, split: str, rows: Any, batch_size: int
) -> Callable[[Predictions], Dict[str, Any]]:
    """Returns the function that scores the predictions of a dev set's rows.

    A second dev set's scores have its name, as eval_mismatched_accuracy.

    Args:
      task: `glue.Task`.
      split: name of the dev set.
      rows: `rows.TextRows` with "label_ids".
      batch_size: of the evaluation, over whose batches BERT's "loss" is averaged.
    """
    suffix = split[len("dev_") :]

    def score(predictions):
        result = scores(task, text_windows.labels_of(rows), predictions)
        if suffix:
            return add_prefix("eval_" + suffix, result)
        loss = mean_of_batches(predictions["loss"], batch_size)
        return {**add_prefix("eval", result), "loss": loss}

    return score


def metadata(task: Task, stage: str) -> Dict[str, Any]:
    """What a file of scores tells of them: the task, its score, the labels of its matrix."""
    return {"task": task.name, "score": f"{stage}_{task.score}", "labels": list(task.labels)}


def add_prefix(prefix: str, scores: Dict[str, Any]) -> Dict[str, Any]:
    """Scores, with what their names begin with."""
    return {f"{prefix}_{name}": value for name, value in scores.items()}


def summary(task: Task, stage: str, result: Dict[str, Any]) -> str:
    """A stage's scores on a line, the one that GLUE takes first."""
    shown = metrics.scalars(result, stage + "_")
    return ", ".join(
        f"{name} {shown[name]:.1%}" if name.endswith("accuracy") else f"{name} {shown[name]:.4f}"
        for name in sorted(shown, key=lambda name: (name != task.score, name))
    )


def mean_of_batches(losses, batch_size: int) -> float:
    """The mean of batches' means, the last of which may be small: BERT's "loss"."""
    batches = [losses[start : start + batch_size] for start in range(0, len(losses), batch_size)]
    return float(np.mean([np.mean(batch) for batch in batches]))


def write_predictions(folder: str, task: Task, split: str, predictions: Predictions) -> List[str]:
    """Writes a test split's predictions.

    test_results.tsv is BERT's: probabilities, nothing else. predictions.tsv says what they are of.
    submission/<NAME>.tsv is what GLUE's server takes. The files of a second test split end in its
    name.

    Args:
      folder: path.
      task: `glue.Task`.
      split: the split's name, one of the task's.
      predictions: see above.

    Returns:
      The paths, test_results.tsv first.
    """
    suffix = split[len("test") :] + ".tsv"
    kind = text_kind.get(task.kind)
    texts = kind.texts(kind.answers(predictions), task.labels)
    values = predictions[kind.prediction]
    tables = {
        "test_results" + suffix: [list(map(str, np.atleast_1d(row))) for row in values],
        _file_name("predictions", split): _prediction_rows(task, texts, predictions),
    }
    if split in task.submission:
        files.makedirs(posixpath.join(folder, "submission"))
        tables[f"submission/{task.submission[split]}.tsv"] = [
            ["index", "prediction"],
            *([str(index), text] for index, text in enumerate(kind.submitted(texts))),
        ]
    return [_write_rows(folder, name, rows) for name, rows in tables.items()]


def write_test(
    folder: str,
    task: Task,
    split: str,
    predictions: Predictions,
    labels: Optional[np.ndarray] = None,
) -> Tuple[List[str], Dict[str, float]]:
    """Writes all that there is of a test split: predictions, and where it has labels the scores.

    test_scores.json, of a second split with its name, holds the latter. Without labels, those of an
    earlier run go.

    Args:
      folder, task, split, predictions: as in `write_predictions`.
      labels: as in `scores`; None where there are none.

    Returns:
      (the report's lines, the scores, named test_...).
    """
    path = posixpath.join(folder, f"test_scores{split[len('test') :]}.json")
    if labels is None:  # An earlier file's would stand beside other predictions.
        for old_path in (path, posixpath.join(folder, _file_name("labels", split))):
            with files.convert_write_errors(old_path):
                if files.exists(old_path):
                    files.remove(old_path)
    written = write_predictions(folder, task, split, predictions)
    report = [f"Predictions: {', '.join(written)} ({len(predictions['loss'])} rows)"]
    if labels is None:
        return report, {}
    write_answers(folder, task, split, labels)
    test_scores = add_prefix("test", scores(task, labels, predictions))
    files.write_object(path, {**metadata(task, "test"), **test_scores})
    report.append(f"{task.name} test: {summary(task, 'test', test_scores)} ({path})")
    return report, test_scores


def write_answers(
    folder: str,
    task: Task,
    split: str,
    labels: np.ndarray,
    predictions: Optional[Predictions] = None,
) -> None:
    """Writes what the rows of a split are, and what they are taken for: to be compared.

    labels.tsv (of a dev split dev_labels.tsv) has the columns index and label, dev_predictions.tsv
    is as predictions.tsv.

    Args:
      folder, task, split: as in `write_predictions`; a dev split, or a test split with labels.
      labels: as in `scores`.
      predictions: see above; None where they are written already.
    """
    kind = text_kind.get(task.kind)
    rows = [[str(index), text] for index, text in enumerate(kind.texts(labels, task.labels))]
    _write_rows(folder, _file_name("labels", split), [["index", "label"], *rows])
    if predictions is not None:
        texts = kind.texts(kind.answers(predictions), task.labels)
        rows = _prediction_rows(task, texts, predictions)
        _write_rows(folder, _file_name("predictions", split), rows)


def _file_name(name: str, split: str) -> str:
    """predictions.tsv of "test", dev_predictions_mismatched.tsv of "dev_mismatched"."""
    stage, _, suffix = split.partition("_")
    return ("dev_" if stage == "dev" else "") + name + (f"_{suffix}" if suffix else "") + ".tsv"


def _write_rows(folder: str, name: str, rows: Iterable[Sequence[str]]) -> str:
    path = posixpath.join(folder, name)
    files.write_atomically(path, "".join("\t".join(row) + "\n" for row in rows))
    return path


def _prediction_rows(task: Task, texts: List[str], predictions: Predictions) -> List[List[str]]:
    """The rows of predictions.tsv: index, answer and, if they are predicted, probabilities."""
    rows = [[str(index), text] for index, text in enumerate(texts)]
    values = predictions[text_kind.get(task.kind).prediction]
    if values.ndim == 1:
        return [["index", "label"], *rows]
    rows = [row + list(map(str, probabilities)) for row, probabilities in zip(rows, values)]
    return [["index", "label", *task.labels], *rows]
