"""Tables of plain text on predictions: scores of each label, confusions, and errors.

Labels and texts come from files, so they are shown on one line and shortened. N rows, L labels.
"""

import collections
from typing import Any, Collection, List, Sequence

import numpy as np

from adapter_bert.shell import printing

MAX_LABELS = 20  # Of a confusion matrix; a larger one lists its largest cells.
NUM_ERRORS = 10  # That a report shows.
_NAME, _TEXT = 24, 100  # Characters of a label's name and of a text.
_WIDTH = 100  # Of a matrix whose columns have names.


def names_of(labels: Sequence[str]) -> List[str]:
    """Returns the names of labels for a table: short, on one line, and distinct."""
    names = list(map(shorten_name, labels))
    counts = collections.Counter(names)
    return [
        name if name and counts[name] == 1 else f"{name} ({index})".strip()
        for index, name in enumerate(names)
    ]


def shorten_name(name: str) -> str:
    """Returns a label's name on one line, at most 24 characters."""
    return printing.shorten(name, _NAME)


def shorten(text: str, num_texts: int = 1) -> str:
    """Returns a text on one line, at most 100 characters, or its share of several texts'."""
    return printing.shorten(text, _TEXT // num_texts)


def table(rows: Sequence[Sequence[str]], left: Collection[int] = ()) -> List[str]:
    """Returns the lines of a table.

    Args:
      rows: of equally many cells, the header first.
      left: indices of the columns that are aligned on the left; others are on the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


def per_label(labels: Any, predictions: Any, names: Sequence[str]) -> List[str]:
    """Returns the lines of scikit-learn's classification_report, and one on the lowest F1.

    Args:
      labels, predictions: int arrays [N] of ids, or 0/1 arrays [N, L] of sets.
      names: of all labels, in the order of their ids.
    """
    import sklearn.metrics

    ids = list(range(len(names)))
    if np.ndim(labels) > 1 and len(names) == 1:  # scikit-learn takes it for labels 0 and 1.
        labels, predictions, ids = np.ravel(labels), np.ravel(predictions), [1]
    arguments = {"labels": ids, "zero_division": 0}
    report = sklearn.metrics.classification_report(
        *(labels, predictions), target_names=list(names), digits=3, **arguments
    )
    lines = [line.rstrip() for line in report.rstrip().split("\n")]
    *_, f1, support = sklearn.metrics.precision_recall_fscore_support(
        labels, predictions, **arguments
    )
    scored = np.flatnonzero(support)
    if len(scored) > 1:
        lowest = np.min(f1[scored])
        worst, *others = (names[int(index)] for index in scored if f1[index] == lowest)
        more = f" and {len(others)} more" if others else ""
        lines += ["", f'The lowest F1, {lowest:.3f}, is that of "{worst}"{more}.']
    return lines


def confusions(matrix: np.ndarray, names: Sequence[str], unit: str = "label") -> List[str]:
    """Returns the lines of a confusion matrix, or of the largest confusions of over 20 labels.

    Args:
      matrix: int array [L, L]; [i, j] counts label i predicted as j.
      names: of the labels.
      unit: what a label is called.
    """
    if len(names) > MAX_LABELS:
        return _largest_confusions(matrix, names, unit)
    columns = list(names)
    rows = [[name, *map(str, counts)] for name, counts in zip(names, matrix)]
    if sum(len(name) + 2 for name in names) > _WIDTH:
        columns = [str(index) for index in range(len(names))]
        rows = [[f"{index} {row[0]}", *row[1:]] for index, row in enumerate(rows)]
    title = f"Confusion matrix (rows: true {unit}, columns: predicted {unit}):"
    return [title, "", *table([["", *columns], *rows], left=[0])]


def _largest_confusions(matrix: np.ndarray, names: Sequence[str], unit: str) -> List[str]:
    errors = np.where(np.eye(len(names), dtype=bool), 0, matrix)
    order = np.argsort(-errors, axis=None, kind="stable")[:NUM_ERRORS]
    cells = [np.unravel_index(index, errors.shape) for index in order]
    rows = [[names[i], "→", names[j], str(errors[i, j])] for i, j in cells if errors[i, j]]
    title = f"The most frequent confusions of {len(names)} {unit}s:"
    header = [f"true {unit}", "", f"predicted {unit}", "count"]
    return [title, "", *table([header, *rows], left=[0, 1, 2])] if rows else ["No confusions."]
