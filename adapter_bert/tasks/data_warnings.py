"""Sentences about a task's data that its user must know: a label has few rows, or none in dev."""

from typing import Dict, List, Optional, Sequence

from absl import logging

FEW = 20  # Fewer rows of a label are seldom enough to learn it.
MANY_NUMBERS = 20  # More numbers are seldom names of classes.
_MAX_SHOWN = 5


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


def log(warnings: Sequence[str]) -> None:
    """Logs each warning."""
    for warning in warnings:
        logging.warning("%s", warning)


def _have(labels: Sequence[str]) -> str:
    return "has" if len(labels) == 1 else "have"


def _shown(names: Sequence[str]) -> str:
    more = len(names) - _MAX_SHOWN
    return ", ".join(names[:_MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")
