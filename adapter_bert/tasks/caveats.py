"""Sentences that warn of data that teach little, and of scores that look better than the model is.

A model that predicts only the most frequent label has a high score where that label is frequent.
"""

import math
from typing import Dict, List, Optional, Sequence, Tuple

from adapter_bert.shell import printing

FEW = 20  # Fewer rows of a label are seldom enough to learn it.
MANY_NUMBERS = 20  # More numbers are seldom names of classes.
_MAX_SHOWN = 5
_MAX_NAME = 60  # Characters of a label's name in a sentence.


def of_labels(
    labels: Sequence[str],
    train: Optional[Dict[str, int]],
    dev: Optional[Dict[str, int]],
    noun: str = "labels",
    unit: str = "rows",
) -> List[str]:
    """Returns the warnings about labels with few rows, or none in the dev set.

    Args:
      labels: all labels, or types of chunks.
      train, dev: how many rows have each label, in the training and the dev set; None for a set
        that the run does not read.
      noun, unit: what the labels and the rows are called.
    """
    warnings, total = [], len(labels)
    if train is not None:
        counts = {label: train.get(label, 0) for label in labels}
        few = sorted((label for label in labels if counts[label] < FEW), key=lambda x: counts[x])
        if few:
            shown = _shown([f"{label} ({counts[label]})" for label in few])
            warnings.append(
                f"{len(few)} of {total} {noun} {_have(few)} fewer than {FEW} training {unit}, which"
                f" seldom suffices to learn: {shown}."
            )
    if dev is not None:
        lacking = [label for label in labels if not dev.get(label)]
        if train is not None:
            lacking = [label for label in lacking if train.get(label)]
        if lacking:
            warnings.append(
                f"{len(lacking)} of {total} {noun} {_have(lacking)} no {unit} in the dev set, which"
                f" therefore cannot score {'it' if len(lacking) == 1 else 'them'}:"
                f" {_shown(lacking)}."
            )
    return warnings


def of_numbers(labels: Sequence[str], are_numbers: bool) -> List[str]:
    """Returns the warning about classes that may be quantities."""
    if not are_numbers or len(labels) <= MANY_NUMBERS:
        return []
    return [
        f"All {len(labels)} labels are numbers, learned as classes; to predict a quantity, set"
        " --label_type=float."
    ]


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


def _have(labels: Sequence[str]) -> str:
    return "has" if len(labels) == 1 else "have"


def _shown(names: Sequence[str]) -> str:
    more = len(names) - _MAX_SHOWN
    return ", ".join(names[:_MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")
