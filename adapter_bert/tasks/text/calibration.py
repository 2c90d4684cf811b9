"""Temperature scaling of probabilities (Guo et al. 2017, arXiv 1706.04599, section 4.2).

N texts, W rows or windows of them, L labels.
"""

from typing import Callable, Dict

import numpy as np

from adapter_bert.training.task import Calibration

_NUM_BINS = 15  # As in section 2 of the paper.
_TINY = 1e-12
_RANGE = (0.05, 20.0)  # Of the temperature.

Predictions = Dict[str, np.ndarray]


def fit(
    predictions: Predictions,
    labels: np.ndarray,
    join: Callable[[Predictions], Predictions],
    is_single_label: bool,
) -> Calibration:
    """Returns the temperature with the lowest cross entropy; 1 if there are no errors to fit.

    Args:
      predictions: of rows: "probabilities" [W, L], and others that `join` needs.
      labels: ids [N], or for sets of labels 0/1 [N, L].
      join: function from predictions of rows to those of texts, [N, L].
      is_single_label: whether the probabilities are a softmax; otherwise each is a sigmoid.
    """
    import scipy.optimize

    probabilities = np.asarray(predictions["probabilities"], np.float64)

    def scaled(temperature: float) -> np.ndarray:
        scale = _scale_softmax if is_single_label else _scale_sigmoid
        return join({**predictions, "probabilities": scale(probabilities, temperature)})[
            "probabilities"
        ]

    def loss(log_temperature: float) -> float:
        confidences = _of_true(scaled(np.exp(log_temperature)), labels, is_single_label)
        return -float(np.mean(np.log(np.maximum(confidences, _TINY))))

    found = scipy.optimize.minimize_scalar(loss, bounds=np.log(_RANGE), method="bounded")
    temperature = float(np.exp(found.x))
    if temperature < 1.01 * _RANGE[0]:  # Without errors, the lower the better.
        temperature = 1.0
    before, after = (
        expected_calibration_error(scaled(each), labels, is_single_label)
        for each in (1.0, temperature)
    )
    return Calibration(temperature, before, after)


def expected_calibration_error(
    probabilities: np.ndarray, labels: np.ndarray, is_single_label: bool
) -> float:
    """Returns the mean difference between confidence and accuracy, over 15 bins of confidence.

    Args:
      probabilities: [N, L].
      labels, is_single_label: as in `fit`. Of a set of labels, each of the L decisions counts.
    """
    if is_single_label:
        confidences, is_correct = probabilities.max(-1), probabilities.argmax(-1) == labels
    else:
        confidences = np.maximum(probabilities, 1 - probabilities).ravel()
        is_correct = np.equal(probabilities > 0.5, labels).ravel()
    bins = np.minimum((confidences * _NUM_BINS).astype(int), _NUM_BINS - 1)
    sums = np.bincount(bins, confidences - is_correct, minlength=_NUM_BINS)
    return float(np.abs(sums).sum() / max(1, len(confidences)))


def _of_true(probabilities: np.ndarray, labels: np.ndarray, is_single_label: bool) -> np.ndarray:
    """Returns the probabilities of the true labels, or of the true decision on each."""
    if is_single_label:
        return probabilities[np.arange(len(labels)), labels]
    return np.where(np.asarray(labels, bool), probabilities, 1 - probabilities)


def _scale_softmax(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    logits = np.log(np.maximum(probabilities, _TINY)) / temperature
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def _scale_sigmoid(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    clipped = np.clip(probabilities, _TINY, 1 - _TINY)
    return 1 / (1 + (1 / clipped - 1) ** (1 / temperature))
