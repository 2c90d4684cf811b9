"""Scores of predictions, by scikit-learn and SciPy; defined for every input.

Where a textbook's formula divides by zero (one class only, constant scores, no rows at all) the
number is 0. N rows, L labels. The two libraries are imported for the first score: they take as long
as a training's first step.
"""

import warnings
from typing import Any, Callable, Dict, Sequence, Union

import numpy as np

Values = Union[Sequence[Any], np.ndarray]


def classification(labels: Values, predictions: Values, num_labels: int) -> Dict[str, float]:
    """Returns the scores of single-label predictions.

    Args:
      labels, predictions: int arrays [N], from 0 to L - 1.
      num_labels: L.

    Returns:
      A dict of floats: accuracy; matthews, the correlation coefficient (for many classes that of
      Gorodkin 2004); macro_f1, the mean of all labels' F1; and f1 of label 1 where L is 2.
    """
    if not len(labels):
        names = ("accuracy", "matthews", "macro_f1", *["f1"] * (num_labels == 2))
        return dict.fromkeys(names, 0.0)
    import sklearn.metrics

    scores = {
        "accuracy": float(np.mean(np.equal(labels, predictions))),
        "matthews": _without_warnings(sklearn.metrics.matthews_corrcoef, labels, predictions),
        "macro_f1": _f1(labels, predictions, average="macro", labels=np.arange(num_labels)),
    }
    if num_labels == 2:
        scores["f1"] = _f1(labels, predictions, average="binary")
    return scores


def multilabel(labels: Values, predictions: Values) -> Dict[str, float]:
    """Returns the scores of multi-label predictions.

    Args:
      labels, predictions: 0/1 arrays [N, L].

    Returns:
      A dict of floats: accuracy, the share of rows with exactly the right set; micro_f1 over all
      decisions; macro_f1, the mean of all labels' F1.
    """
    if not len(labels):
        return dict.fromkeys(("accuracy", "micro_f1", "macro_f1"), 0.0)
    # Flat 0/1 arrays: for a matrix [N, 1] scikit-learn would also count the zeros as a class.
    labels, predictions = np.asarray(labels, int), np.asarray(predictions, int)
    f1_per_label = [_f1(*columns, average="binary") for columns in zip(labels.T, predictions.T)]
    return {
        "accuracy": float(np.mean(np.all(np.equal(labels, predictions), axis=1))),
        "micro_f1": _f1(labels.ravel(), predictions.ravel(), average="binary"),
        "macro_f1": float(np.mean(f1_per_label)),
    }


def regression(targets: Values, predictions: Values) -> Dict[str, float]:
    """Returns the scores of predicted numbers.

    Args:
      targets, predictions: float arrays [N].

    Returns:
      A dict of floats: pearson and spearman, the correlations; mse, the mean squared error. If any
      number is NaN or Inf, as after a training that diverged, the worst scores: 0, 0 and the
      largest float.
    """
    targets, predictions = np.asarray(targets, np.float64), np.asarray(predictions, np.float64)
    if not len(targets):
        return dict.fromkeys(("pearson", "spearman", "mse"), 0.0)
    if not np.isfinite([targets, predictions]).all():
        return {"pearson": 0.0, "spearman": 0.0, "mse": float(np.finfo(np.float64).max)}
    import scipy.stats

    return {
        "pearson": _correlation(scipy.stats.pearsonr, targets, predictions),
        "spearman": _correlation(scipy.stats.spearmanr, targets, predictions),
        "mse": float(np.mean(np.square(targets - predictions))),
    }


def confusion_matrix(labels: Values, predictions: Values, num_labels: int) -> np.ndarray:
    """Returns an int array [L, L]: entry [i, j] counts the rows of label i predicted as j."""
    cells = np.asarray(labels, int) * num_labels + np.asarray(predictions, int)
    return np.bincount(cells, minlength=num_labels**2).reshape(num_labels, num_labels)


def _f1(y_true: Values, y_pred: Values, **options: Any) -> float:
    import sklearn.metrics

    return float(sklearn.metrics.f1_score(y_true, y_pred, zero_division=0, **options))


def _correlation(metric: Callable, targets: Values, predictions: Values) -> float:
    if len(targets) < 2:
        return 0.0
    return _without_warnings(lambda: np.nan_to_num(metric(targets, predictions)[0]))


def _without_warnings(metric: Callable, *arguments: Any) -> float:
    """Returns the float of a metric without its warnings about (nearly) constant inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(metric(*arguments))
