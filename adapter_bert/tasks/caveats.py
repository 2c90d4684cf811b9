"""Sentences that warn of scores which look better than the model is.

A model that predicts only the most frequent label has a high score where that label is frequent.
"""

import math
from typing import Dict, Sequence, Tuple

from adapter_bert.shell import printing

_MAX_NAME = 60  # Characters of a label's name in a sentence.


def of_predictions(
    rows: str,
    predicted: Sequence[str],
    true: Sequence[str],
    majority: str,
    nothing: str = "",
) -> Tuple[str, ...]:
    """Returns a sentence if all predictions are equal, else ().

    Args:
      rows: what is predicted, as in "408 dev rows".
      predicted, true: the distinct predictions and the distinct labels, as texts.
      majority: the most frequent label.
      nothing: the name of the prediction "", as in "no label".
    """
    if len(predicted) != 1:
        return ()
    (label,) = predicted
    as_label = f"as {_name(label)}" if label else f"to have {nothing}"
    if label != majority:
        other = _name(majority) if majority else nothing
        return (f"All {rows} are predicted {as_label}, though most have {other}.",)
    if len(true) == 1:
        return (
            f"All {rows} are predicted {as_label}, which is true, but the scores cannot tell"
            " whether the model knows anything else.",
        )
    return (
        f"All {rows} are predicted {as_label}: the model has learned nothing but the majority"
        " label.",
    )


def of_score(
    score: str, values: Dict[str, float], constant: Dict[str, float], majority: str
) -> Tuple[str, ...]:
    """Returns a sentence if a score does not exceed that of a constant prediction, else ().

    Accuracy is compared instead where the constant prediction has 0, as Matthews' coefficient is.

    Args:
      score: the task's main score, the higher the better.
      values: the scores of the predictions.
      constant: those of predicting the most frequent label for each row.
      majority: the name of that label.
    """
    name = score if constant[score] or "accuracy" not in constant else "accuracy"
    value, reached = values[name], constant[name]
    if value > reached:
        return ()
    return (
        f"{name} {value:.3f} is no better than {reached:.3f} of always predicting"
        f" {_name(majority)}.",
    )


def of_loss(rows: str, loss: float) -> Tuple[str, ...]:
    """Returns a sentence if the mean loss of rows is NaN or Inf, else ()."""
    if math.isfinite(loss):
        return ()
    return (
        f"The loss of the {rows} is {loss}: the training has diverged; try a lower"
        " --learning_rate.",
    )


def _name(label: str) -> str:
    return printing.shorten(label, _MAX_NAME)
