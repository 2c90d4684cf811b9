"""What run_ablation.py's ablations came to: read, and as cells, a table and a heatmap.

An ablation is a dict: "task"; "score", its name, as in "accuracy"; "num_layers"; "all" and "none",
the points with every adapter and without any; "majority", those of the most frequent label or None;
and "spans", (first, last) layer removed → points. Points are hundredths, as in `selection`.
"""

from typing import Any, List

import numpy as np

import figures
import files
import published
import report_tables
import selection

_MOST_LAYERS = 1000


def read(path):
    """What run_ablation.py wrote: a dict, with scores in points.

    Raises:
      UserError: it is missing, or no such file.
    """
    return files.read_as(path, "--ablations", "ablation.json", _in_points)


def _in_points(found):
    size = files.checked(found["num_layers"], int)
    spans = {
        (files.checked(first, int), files.checked(last, int)): _points(value)
        for first, last, value in found["spans"]
    }
    if not 0 < size <= _MOST_LAYERS or not all(0 <= first <= last < size for first, last in spans):
        raise ValueError(f"a span that does not lie in {size} layers")
    return {
        **{name: files.checked(found[name], str) for name in ("task", "score")},
        **{name: _points(found[name]) for name in ("all", "none")},
        "num_layers": size,
        # A regression has no classes.
        "majority": _points(found["majority"]) if "majority" in found else None,
        "spans": spans,
    }


def _points(value):
    return 100 * files.checked(value, float)


def cells(ablation):
    """A `report_tables.Cell` for each score, so that all of figure 6 stands in one file."""
    removed: List[Any] = [
        ("all adapters", None, ablation["all"]),
        ("no adapters", None, ablation["none"]),
    ]
    if ablation["majority"] is not None:
        removed.append(("majority class", None, ablation["majority"]))
    removed += [
        ("layers removed", f"{a}-{b}", v) for (a, b), v in sorted(ablation["spans"].items())
    ]
    score = f"{selection.VALIDATION}_{ablation['score']}"
    choice = selection.Choice(score, 0.0, None, None, None, None, {})
    return [
        report_tables.Cell(method, level, ablation["task"], choice._replace(value=value))
        for method, level, value in removed
    ]


def table(ablations):
    """A `report_tables.Table` with a row for each ablation."""
    columns = ["", "score", "all adapters", "worst single layer removed", "lower half removed"]
    columns += ["upper half removed", "all removed", "majority class"]
    rows = []
    for ablation in ablations:
        spans, size = ablation["spans"], ablation["num_layers"]
        single = [spans[layer, layer] for layer in range(size) if (layer, layer) in spans]
        values = [
            *(ablation["all"], min(single, default=None)),
            *(spans.get((0, size // 2 - 1)), spans.get((size // 2, size - 1))),
            *(ablation["none"], ablation["majority"]),
        ]
        texts = [report_tables.GAP if value is None else f"{value:.1f}" for value in values]
        rows.append([published.title(ablation["task"]), ablation["score"], *texts])
    return report_tables.Table("", columns, rows)


def panel(ablation):
    """What each span costs, by its first and last layer: a `figures.Heatmap`."""
    size = ablation["num_layers"]
    values = np.full([size, size], np.nan)
    for (first, last), value in ablation["spans"].items():
        values[first, last] = value - ablation["all"]
    title = f"{published.title(ablation['task'])}: {ablation['score']}"
    labels = "Last layer removed", "First layer removed"
    return figures.Heatmap(title, *labels, values, "Change (percentage points)")
