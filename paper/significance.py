"""Compares two classifiers on the same rows with McNemar's test."""

from typing import Dict, List, NamedTuple, Tuple

import scipy.stats

from adapter_bert.files import gfile
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks import table_readers, tables


class Comparison(NamedTuple):
    """Numbers of rows that both, only one, or neither of two classifiers predicts correctly."""

    both: int
    only_first: int
    only_second: int
    neither: int


class _Labels(NamedTuple):
    """The labels in a file.

    Attributes:
      path: the file.
      by_index: a row's index → (line number, label).
      names: the labels with a column of probabilities.
    """

    path: str
    by_index: Dict[str, Tuple[int, str]]
    names: Tuple[str, ...]


def compare(first: str, second: str, labels: str) -> Comparison:
    """Counts the correct predictions in two files.

    Args:
      first, second: paths of predictions.tsv or dev_predictions.tsv.
      labels: path of the corresponding labels.tsv or dev_labels.tsv.

    Raises:
      UserError: a file is missing or has another format, an index is missing or occurs twice, or a
        label is not among the predicted ones.
    """
    truth = _read_labels(labels, "--labels")
    predictions = [_read_labels(path, "--compare") for path in (first, second)]
    for prediction in predictions:
        _check_alignment(prediction, truth)
    if predictions[0].names != predictions[1].names:
        names = " and ".join(
            f"{prediction.path} of {', '.join(prediction.names)}" for prediction in predictions
        )
        raise UserError(f"--compare: expected predictions of the same labels; found {names}.")
    is_correct = [
        tuple(prediction.by_index[index][1] == label for prediction in predictions)
        for index, (_, label) in truth.by_index.items()
    ]
    cases = ((True, True), (True, False), (False, True), (False, False))
    return Comparison(*(is_correct.count(case) for case in cases))


def mcnemar(only_first: int, only_second: int) -> float:
    """Returns the p-value of McNemar's test (1947): do two classifiers err equally often?

    This is the exact, two-sided test: under the null hypothesis, the number of rows that only the
    first classifier predicts correctly is binomial with p = 1/2.
    """
    smaller, discordant = min(only_first, only_second), only_first + only_second
    return min(1.0, 2 * float(scipy.stats.binom.cdf(smaller, discordant, 0.5)))


def describe(comparison: Comparison) -> List[str]:
    """Returns the lines of a report: the 2×2 table, the accuracies and the test."""
    both, first, second, neither = comparison
    num_rows = sum(comparison)
    return [
        f"{'':14}{'second right':>14}{'second wrong':>14}",
        f"{'first right':14}{both:14,}{first:14,}",
        f"{'first wrong':14}{second:14,}{neither:14,}",
        f"Accuracy: first {(both + first) / num_rows:.2%}, second {(both + second) / num_rows:.2%},"
        f" of {num_rows:,} rows",
        f"McNemar's test, exact (binomial), two-sided: p = {mcnemar(first, second):.4g}",
    ]


def _read_labels(path: str, flag: str) -> _Labels:
    if not gfile.exists(path):
        raise UserError(f"{flag}: {path} does not exist.")
    table = table_readers.read_table(path)
    if table.columns[:2] != ("index", "label"):
        columns = ", ".join(table.columns[:2])
        raise UserError(f"{path}, line 1: found the columns {columns}; expected index, label.")
    by_index = {}
    for row in table.rows:
        index, label = table.text(row, 0), table.text(row, 1)
        if index in by_index:
            raise UserError(f"{path}, line {row.line}: the index {index} occurs a second time.")
        by_index[index] = row.line, label
    return _Labels(path, by_index, _label_names(table))


def _label_names(table: tables.DataTable) -> Tuple[str, ...]:
    """Returns the names of the columns of probabilities; columns of texts follow them."""
    end = 2
    while end < len(table.columns) and all(
        _is_probability(table.text_or_blank(row, end)) for row in table.rows
    ):
        end += 1
    return table.columns[2:end]


def _is_probability(text: str) -> bool:
    try:
        return not (float(text) < 0 or float(text) > 1)  # It may be NaN.
    except ValueError:
        return False


def _check_alignment(predictions: _Labels, truth: _Labels) -> None:
    """Raises UserError unless predictions and truth have the same rows and labels."""
    if not predictions.names:
        raise UserError(
            f"{predictions.path}, line 1: expected a column of probabilities for each label. A"
            " regression's predictions cannot be compared."
        )
    are_sets = _are_sets(predictions.by_index, predictions.names)
    are_sets = are_sets or _are_sets(truth.by_index, predictions.names)
    for reference, candidate in ((truth, predictions), (predictions, truth)):
        for index, (line, label) in reference.by_index.items():
            if index not in candidate.by_index:
                raise UserError(
                    f"{reference.path}, line {line}: {candidate.path} has no index {index}."
                )
            if not _is_known_label(label, predictions.names, are_sets):
                names = ", ".join(predictions.names)
                raise UserError(
                    f"{reference.path}, line {line}: found the label {label!r}; expected one of"
                    f" {names}."
                )


def _are_sets(by_index: Dict[str, Tuple[int, str]], names: Tuple[str, ...]) -> bool:
    """Returns whether a label is a set of several names, so that an empty one is a set, too."""
    return any("," in label and label not in names for _, label in by_index.values())


def _is_known_label(label: str, names: Tuple[str, ...], is_set: bool) -> bool:
    """Returns whether a label is one of the names, or a set of names."""
    return label in names or is_set and all(part in names for part in label.split(",") if part)
