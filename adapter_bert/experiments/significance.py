"""Two classifiers on the same rows: where each is right, and whether chance explains it."""

from typing import Dict, NamedTuple, Tuple

import scipy.stats

from adapter_bert.common import files
from adapter_bert.common.errors import UserError
from adapter_bert.tasks import table_readers


class Comparison(NamedTuple):
    """Numbers of rows: those that both predict right, one of them alone, and neither."""

    both: int
    only_first: int
    only_second: int
    neither: int


class _Answers(NamedTuple):
    """A file's labels.

    Attributes:
      path: the file.
      by_index: a row's index → (number of its line, label).
      names: the labels that the file has probabilities of.
    """

    path: str
    by_index: Dict[str, Tuple[int, str]]
    names: Tuple[str, ...]


def compare(first, second, labels):
    """Counts where two files of predictions are right.

    Args:
      first, second: paths of what `classifier_results` writes as predictions.tsv or
        dev_predictions.tsv.
      labels: path of the labels.tsv or dev_labels.tsv beside it.

    Returns:
      `Comparison`.

    Raises:
      UserError: a file is missing or no such file, an index is missing or occurs twice, or a label
        is not among those that are predicted.
    """
    truth = _read(labels, "--labels")
    answers = [_read(path, "--compare") for path in (first, second)]
    for some in answers:
        _check(some, truth)
    if answers[0].names != answers[1].names:
        names = " and ".join(f"{some.path} of {', '.join(some.names)}" for some in answers)
        raise UserError(f"--compare: expected predictions of the same labels, found {names}.")
    right = [
        tuple(some.by_index[index][1] == label for some in answers)
        for index, (_, label) in truth.by_index.items()
    ]
    cases = ((True, True), (True, False), (False, True), (False, False))
    return Comparison(*(right.count(case) for case in cases))


def mcnemar(only_first, only_second):
    """The p-value of McNemar's test, two-sided: do two classifiers err equally often?

    Of the rows that one of them alone predicts right each would be as likely right, so that their
    number has a binomial distribution with p = 1/2. This is the exact test, for any number; the
    chi-squared one (McNemar 1947) approximates it where there are many.

    Args:
      only_first, only_second: int, see `Comparison`.
    """
    fewer, pairs = min(only_first, only_second), only_first + only_second
    return min(1.0, 2 * float(scipy.stats.binom.cdf(fewer, pairs, 0.5)))


def described(comparison):
    """The 2×2 table, the accuracies and the test, as lines."""
    both, first, second, neither = comparison
    rows = sum(comparison)
    return [
        f"{'':14}{'second right':>14}{'second wrong':>14}",
        f"{'first right':14}{both:14,}{first:14,}",
        f"{'first wrong':14}{second:14,}{neither:14,}",
        f"Accuracy: first {(both + first) / rows:.2%}, second {(both + second) / rows:.2%},"
        f" of {rows:,} rows",
        f"McNemar's test, exact (binomial), two-sided: p = {mcnemar(first, second):.4g}",
    ]


def _read(path, flag):
    if not files.exists(path):
        raise UserError(f"{flag}: {path} does not exist.")
    table = table_readers.read_table(path)
    if table.columns[:2] != ("index", "label"):
        found = ", ".join(table.columns[:2])
        raise UserError(f"{path}, line 1: found the columns {found}, expected index, label.")
    by_index = {}
    for row in table.rows:
        index, label = table.text(row, 0), table.text(row, 1)
        if index in by_index:
            raise UserError(f"{path}, line {row.line}: the index {index} occurs a second time.")
        by_index[index] = row.line, label
    return _Answers(path, by_index, table.columns[2:])


def _check(answers, truth):
    """Raises UserError unless predictions and truth are of the same rows and labels."""
    if not answers.names:
        raise UserError(
            f"{answers.path}, line 1: expected a column of probabilities for each label; numbers"
            " (a regression's) are not right or wrong."
        )
    for one, other in ((truth, answers), (answers, truth)):
        for index, (line, label) in one.by_index.items():
            if index not in other.by_index:
                raise UserError(f"{one.path}, line {line}: {other.path} has no index {index}.")
            if not _known(label, answers.names):
                names = ", ".join(answers.names)
                raise UserError(
                    f"{one.path}, line {line}: found the label {label!r}, expected one of {names}."
                )


def _known(label, names):
    """Whether it is one of the labels, or a set of them."""
    return label in names or all(part in names for part in label.split(",") if part)
