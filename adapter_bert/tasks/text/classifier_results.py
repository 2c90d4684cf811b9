"""Scores and files from a classification task's predictions.

Predictions are a dict of arrays over N rows: "loss" [N], and what the `text_kind.TextKind`
predicts, "probabilities" [N, L] of L labels or "prediction" [N].
"""

import itertools
import posixpath
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from adapter_bert.files import atomic, gfile, json_objects
from adapter_bert.model import task_kinds
from adapter_bert.tasks import caveats, metrics
from adapter_bert.tasks.text import text_kind
from adapter_bert.tasks.text.classifier_features import InputExample
from adapter_bert.tasks.text.glue import TaskInfo
from adapter_bert.training import evaluations, stored_predictions

Predictions = Dict[str, np.ndarray]

# A larger matrix adds half a megabyte of JSON to each evaluation, which nobody reads.
_MAX_MATRIX_LABELS = 200
NO_LABEL = "no label"  # The empty set of labels.


def stack(predictions: Any) -> Predictions:
    """Returns a sequence of N dicts of arrays as one dict of arrays [N, ...], which stays one."""
    if isinstance(predictions, dict):
        return predictions
    rows = list(predictions)
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]} if rows else {}


def of_texts(predictions: Any, task: TaskInfo, rows: Any) -> Predictions:
    """Returns the predictions of texts, from those of rows or of the texts' windows.

    Args:
      predictions: of each row, or the arrays of all rows by name.
      task: `glue.TaskInfo`.
      rows: `rows.PackedRows`.
    """
    return join(stack(predictions), task, rows)


def join(predictions: Predictions, task: TaskInfo, rows: Any) -> Predictions:
    """Returns the predictions of texts, as in `of_texts`, from those of all rows."""
    windows = getattr(rows, "windows", None)
    if windows is None:
        return predictions
    return windows.join(predictions, text_kind.get(task.kind).is_single_label)


def scores(task: TaskInfo, labels: np.ndarray, predictions: Predictions) -> Dict[str, Any]:
    """Returns the scores of a task's predictions.

    Args:
      task: `glue.TaskInfo`.
      labels: array [N], label ids or numbers; [N, L] for a multi-label task.
      predictions: see the module's docstring.

    Returns:
      A dict of numbers: the `metrics` of the task's kind, and "loss", the mean over rows. With
      labels also majority_..., the task's main score of predicting the most frequent label, or set
      of labels, for each row; and "predicted_labels", how many labels are predicted. For up to 200
      classes also "confusion_matrix", L lists of L counts.
    """
    kind, num_labels = text_kind.get(task.kind), len(task.labels)
    answers = answers_of(task, predictions)
    result: Dict[str, Any] = {
        **kind.scores(labels, answers, num_labels),
        "loss": float(np.mean(predictions["loss"])),
    }
    if num_labels:
        _, constant = majority(task, labels)
        result[task_kinds.MAJORITY + task.score] = constant[task.score]
        is_set = np.ndim(answers) > 1
        result[task_kinds.PREDICTED_LABELS] = (
            int(np.sum(np.any(answers, axis=0))) if is_set else len(np.unique(answers))
        )
    if kind.is_single_label and num_labels <= _MAX_MATRIX_LABELS:
        confusion = metrics.confusion_matrix(labels, answers, num_labels)
        result["confusion_matrix"] = confusion.tolist()
    return result


def answers_of(task: TaskInfo, predictions: Predictions) -> np.ndarray:
    """Returns the predicted labels of all rows; see `text_kind.TextKind.answers`."""
    kind = text_kind.get(task.kind)
    parts = [kind.answers(part) for _, part in stored_predictions.pieces(predictions)]
    return np.concatenate(parts)


def majority(task: TaskInfo, labels: np.ndarray) -> Tuple[str, Dict[str, float]]:
    """Returns the most frequent label, or set of labels, and the scores of always predicting it."""
    kind = text_kind.get(task.kind)
    values, counts = np.unique(labels, axis=0, return_counts=True)
    frequent = values[np.argmax(counts)]
    constant = np.broadcast_to(frequent, np.shape(labels))
    (name,) = kind.texts(frequent[np.newaxis], task.labels)
    return name, kind.scores(labels, constant, len(task.labels))


def warnings(
    task: TaskInfo,
    split: str,
    labels: np.ndarray,
    predictions: Predictions,
    values: Dict[str, Any],
) -> Tuple[str, ...]:
    """Returns sentences on predictions that are worth less than their scores; see `caveats`.

    Args:
      task: `glue.TaskInfo`.
      split: name of the dev or test set.
      labels, predictions: as in `scores`.
      values: the result of `scores`.
    """
    kind = text_kind.get(task.kind)
    rows = f"{len(labels):,} {split.replace('_', ' ')} rows"
    diverged = caveats.of_loss(rows, values["loss"])
    if diverged or not task.labels:
        return diverged
    label, constant = majority(task, labels)
    predicted, true = (
        kind.texts(np.unique(each, axis=0), task.labels)
        for each in (np.asarray(answers_of(task, predictions), int), labels)
    )
    return caveats.of_predictions(rows, predicted, true, label, NO_LABEL) or caveats.of_score(
        task.score, values, constant, label or NO_LABEL
    )


def dev_scores(
    split: str, values: Dict[str, Any], losses: np.ndarray, batch_size: int
) -> Dict[str, Any]:
    """Returns the scores of a dev set, named eval_...

    Scores of a second dev set carry its name, as in eval_mismatched_accuracy.

    Args:
      split: name of the dev set.
      values: the result of `scores`.
      losses: [N], of its rows.
      batch_size: of the evaluation. "loss" is the mean over batches, as in BERT's script.
    """
    suffix = split[len("dev_") :]
    if suffix:
        return add_prefix("eval_" + suffix, values)
    return {**add_prefix("eval", values), "loss": mean_of_batches(losses, batch_size)}


def metadata(task: TaskInfo, stage: str) -> Dict[str, Any]:
    """Returns the header of a file of scores: the task, its main score and its labels."""
    return {"task": task.name, "score": f"{stage}_{task.score}", "labels": list(task.labels)}


def add_prefix(prefix: str, scores: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the scores with a prefix before each name."""
    return {f"{prefix}_{name}": value for name, value in scores.items()}


def summary(task: TaskInfo, stage: str, result: Dict[str, Any]) -> str:
    """Returns a stage's scores on one line: the task's main score first, the loss last."""
    shown = evaluations.scalars(result, stage + "_")
    names = [name for name in shown if not task_kinds.is_reference(name)]
    return ", ".join(
        f"{name} {shown[name]:.1%}" if name.endswith("accuracy") else f"{name} {shown[name]:.4f}"
        for name in sorted(names, key=lambda name: (name != task.score, "loss" in name, name))
    )


def mean_of_batches(losses: np.ndarray, batch_size: int) -> float:
    """Returns the mean over batches of the mean loss, BERT's "loss"; the last may be smaller."""
    batches = [losses[start : start + batch_size] for start in range(0, len(losses), batch_size)]
    return float(np.mean([np.mean(batch) for batch in batches]))


def write_predictions(
    folder: str,
    task: TaskInfo,
    split: str,
    predictions: Predictions,
    examples: Sequence[InputExample] = (),
) -> List[str]:
    """Writes the files of a test split's predictions, and returns their paths.

    test_results.tsv has BERT's format, probabilities only. predictions.tsv also names the labels,
    and ends with the columns of `columns_of`. submission/<NAME>.tsv has the format of GLUE's
    server. File names of a second test split carry its name.

    Args:
      folder: path.
      task: `glue.TaskInfo`.
      split: name of one of the task's splits.
      predictions: see the module's docstring.
      examples: of its rows; () leaves the texts out.

    Returns:
      The paths, test_results.tsv first.
    """
    kind = text_kind.get(task.kind)
    values = {kind.prediction: predictions[kind.prediction]}
    tables: Dict[str, Iterable[Sequence[str]]] = {
        file_name("test_results", split): (
            list(map(str, np.atleast_1d(row)))
            for _, part in stored_predictions.pieces(values)
            for row in part[kind.prediction]
        ),
        file_name("predictions", split): _prediction_rows(task, predictions, examples),
    }
    if split in task.submission:
        submission = posixpath.join(folder, "submission")
        with gfile.convert_write_errors(submission):
            gfile.makedirs(submission)
        texts = kind.texts(answers_of(task, predictions), task.labels)
        tables[f"submission/{task.submission[split]}.tsv"] = [
            ["index", "prediction"],
            *([str(index), text] for index, text in enumerate(kind.submitted(texts))),
        ]
    return [_write_rows(folder, name, rows) for name, rows in tables.items()]


def scores_of_test(
    task: TaskInfo, labels: np.ndarray, predictions: Predictions
) -> Dict[str, float]:
    """Returns the `scores` of a test split, named test_..."""
    return add_prefix("test", scores(task, labels, predictions))


def write_test(
    folder: str,
    task: TaskInfo,
    split: str,
    predictions: Predictions,
    known: Optional[Tuple[np.ndarray, Dict[str, float]]] = None,
    examples: Sequence[InputExample] = (),
) -> List[str]:
    """Writes the predictions of a test split and, if it has labels, its scores.

    The scores go to test_scores.json, or to a file with a second split's name. Those of an earlier
    run are removed first.

    Args:
      folder, task, split, predictions, examples: as in `write_predictions`.
      known: (labels as in `scores`, the result of `scores_of_test`); None without labels.

    Returns:
      The report's lines.
    """
    path = posixpath.join(folder, file_name("test_scores", split, ".json"))
    # Scores and labels of an earlier run would not match these predictions.
    for old_path in (path, posixpath.join(folder, file_name("labels", split))):
        gfile.remove_if_exists(old_path)
    written = write_predictions(folder, task, split, predictions, examples)
    report = [f"Predictions: {', '.join(written)} ({len(predictions['loss'])} rows)"]
    if known is None:
        return report
    labels, test_scores = known
    write_answers(folder, task, split, labels)
    json_objects.write_object(path, {**metadata(task, "test"), **test_scores})
    report.append(f"{task.name} test: {summary(task, 'test', test_scores)} ({path})")
    return report


def remove_unread(folder: str, task: TaskInfo, splits: Iterable[str]) -> None:
    """Removes an earlier run's files of second splits that this run has no data of.

    Args:
      folder: path.
      task: `glue.TaskInfo`.
      splits: the names of all splits that the run has evaluated or predicted.
    """
    read = set(splits)
    for split in set(task.splits) - read:
        stage, _, suffix = split.partition("_")
        if suffix and stage in read:
            names = [file_name(name, split) for name in ("predictions", "labels", "test_results")]
            names += [file_name("test_scores", split, ".json")]
            names += [f"submission/{task.submission.get(split)}.tsv"]
            for name in names:
                gfile.remove_if_exists(posixpath.join(folder, name))


def write_answers(
    folder: str,
    task: TaskInfo,
    split: str,
    labels: np.ndarray,
    predictions: Optional[Predictions] = None,
    examples: Sequence[InputExample] = (),
) -> None:
    """Writes the labels of a split, and optionally its predictions, for a row-by-row comparison.

    Labels go to labels.tsv or dev_labels.tsv, with the columns index and label. A dev split's
    predictions go to dev_predictions.tsv, in the format of predictions.tsv.

    Args:
      folder, task, split: as in `write_predictions`; a dev split, or a test split with labels.
      labels: as in `scores`.
      predictions: as in `write_predictions`; None if they are already written.
      examples: as in `write_predictions`.
    """
    kind = text_kind.get(task.kind)
    texts = enumerate(
        text
        for _, part in stored_predictions.pieces({"labels": labels})
        for text in kind.texts(part["labels"], task.labels)
    )
    rows = ([str(index), text] for index, text in texts)
    header = [["index", "label"]]
    _write_rows(folder, file_name("labels", split), itertools.chain(header, rows))
    if predictions is not None:
        name = file_name("predictions", split)
        _write_rows(folder, name, _prediction_rows(task, predictions, examples))


def file_name(name: str, split: str, extension: str = ".tsv") -> str:
    """Returns predictions.tsv for "test", dev_predictions_mismatched.tsv for "dev_mismatched"."""
    stage, _, suffix = split.partition("_")
    return ("dev_" if stage == "dev" else "") + name + (f"_{suffix}" if suffix else "") + extension


def _write_rows(folder: str, name: str, rows: Iterable[Sequence[str]]) -> str:
    path = posixpath.join(folder, name)
    # Labels of a converted adapter may contain tabs and line breaks.
    with gfile.convert_write_errors(path), atomic.atomic_file(path) as writer:
        for row in rows:
            line = "\t".join(" ".join(field.split()) for field in row)
            writer.write((line + "\n").encode())
    return path


def _prediction_rows(
    task: TaskInfo, predictions: Predictions, examples: Sequence[InputExample]
) -> Iterator[List[str]]:
    """Yields the rows of predictions.tsv, which are never all in memory.

    Their columns are index, label, unless regression the probability of each label, and those of
    `columns_of`.
    """
    kind = text_kind.get(task.kind)
    has_probabilities = predictions[kind.prediction].ndim > 1
    has_pairs = getattr(examples, "has_pairs", None)  # Of `custom_tasks.StoredExamples`.
    if has_pairs is None:
        has_pairs = any(example.text_b is not None for example in examples)
    names = columns_of(examples[:1], has_pairs)[0] if len(examples) else []
    yield ["index", "label", *(task.labels if has_probabilities else ()), *names]
    for start, part in stored_predictions.pieces(predictions):
        texts, values = kind.texts(kind.answers(part), task.labels), part[kind.prediction]
        cells: List[List[str]] = [[]] * len(texts)
        if len(examples):
            cells = columns_of(examples[start : start + len(texts)], has_pairs)[1]
        for index, text in enumerate(texts):
            probabilities = map(str, values[index]) if has_probabilities else ()
            yield [str(start + index), text, *probabilities, *cells[index]]


def columns_of(
    examples: Sequence[InputExample], has_pairs: Optional[bool] = None
) -> Tuple[List[str], List[List[str]]]:
    """Returns the columns that predictions repeat: those of --id_columns, text and text_b.

    Args:
      examples: at least one.
      has_pairs: whether there is a column text_b; by default, if an example has one.

    Returns:
      (names, the cells of each example's row).
    """
    if has_pairs is None:
        has_pairs = any(example.text_b is not None for example in examples)
    names = [*examples[0].columns, "text", *["text_b"] * has_pairs]
    return names, [
        [*each.columns.values(), each.text_a, *[each.text_b or ""] * has_pairs] for each in examples
    ]
