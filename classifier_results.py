"""What a classification task's predictions become: scores, and files.

A task's predictions are a dict of arrays over its N rows: "loss" [N], and "probabilities" [N, L] of
its L labels (each for itself in a multilabel task) or, for a regression, "prediction" [N].
"""

import posixpath

import numpy as np
import tensorflow.compat.v1 as tf

import files
import metrics


def stacked(rows):
    """A list of N dicts of arrays as one dict of arrays [N, ...]."""
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]} if rows else {}


def scores(task, labels, predictions):
    """The scores of a task's predictions.

    Args:
      task: `classifier_tasks.Task`.
      labels: array [N], label ids or a regression's numbers; [N, L] in a multilabel task.
      predictions: see above.

    Returns:
      A dict of floats, those of `metrics` for the task's kind and "loss", the mean over rows; and
      for classes "confusion_matrix", L lists of L counts.
    """
    if task.kind == "regression":
        found = metrics.regression(labels, predictions["prediction"])
    elif task.kind == "multilabel":
        found = metrics.multilabel(labels, predictions["probabilities"] > 0.5)
    else:
        answers = np.argmax(predictions["probabilities"], axis=-1)
        found = metrics.classification(labels, answers, len(task.labels))
        confusion = metrics.confusion_matrix(labels, answers, len(task.labels))
        found["confusion_matrix"] = confusion.tolist()
    return {**found, "loss": float(np.mean(predictions["loss"]))}


def mean_of_batches(losses, batch_size):
    """The mean of batches' means, the last of which may be small: BERT's "loss"."""
    batches = [losses[start : start + batch_size] for start in range(0, len(losses), batch_size)]
    return float(np.mean([np.mean(batch) for batch in batches]))


def write_predictions(folder, task, split, predictions):
    """Writes a test split's predictions.

    test_results.tsv is BERT's: probabilities, nothing else. predictions.tsv says what they are of.
    submission/<NAME>.tsv is what GLUE's server takes. The files of a second test split end in its
    name.

    Args:
      folder: path.
      task: `classifier_tasks.Task`.
      split: the split's name, one of the task's.
      predictions: see above.

    Returns:
      The paths, test_results.tsv first.
    """
    end = split[len("test") :] + ".tsv"
    numbers = predictions["prediction"][:, None] if task.kind == "regression" else None
    values = predictions["probabilities"] if numbers is None else numbers
    answers = _answers(task, predictions)
    names = task.labels if task.labels else ()
    tables = {
        "test_results" + end: [list(map(str, row)) for row in values],
        "predictions" + end: [
            ["index", "label", *names],
            *(
                [str(index), answer, *(map(str, row) if names else ())]
                for index, (answer, row) in enumerate(zip(answers, values))
            ),
        ],
    }
    if split in task.submission:
        tf.io.gfile.makedirs(posixpath.join(folder, "submission"))
        tables[f"submission/{task.submission[split]}.tsv"] = [
            ["index", "prediction"],
            *([str(index), answer] for index, answer in enumerate(_submitted(task, answers))),
        ]
    paths = []
    for name, rows in tables.items():
        paths.append(posixpath.join(folder, name))
        files.write_atomically(paths[-1], "".join("\t".join(row) + "\n" for row in rows))
    return paths


def _answers(task, predictions):
    """What is predicted, as texts: labels, or numbers."""
    if task.kind == "regression":
        return [str(value) for value in predictions["prediction"]]
    if task.kind == "multilabel":
        return [
            ",".join(label for label, probability in zip(task.labels, row) if probability > 0.5)
            for row in predictions["probabilities"]
        ]
    return [task.labels[index] for index in np.argmax(predictions["probabilities"], axis=-1)]


def _submitted(task, answers):
    """As GLUE's server takes them: STS-B's scores go from 0 to 5."""
    if task.kind == "regression":
        return [f"{np.clip(float(answer), 0, 5):.3f}" for answer in answers]
    return answers
