"""Reads the results of ablations, and builds their cells, table and panels."""

from typing import Any, Dict, Iterable, List, Sequence

import numpy as np

from adapter_bert.files import json_objects
from adapter_bert.paper import figures, published
from adapter_bert.paper.cells import MAJORITY
from adapter_bert.paper.report_tables import Report, count_seeds, numbers_of, table_of, transpose
from adapter_bert.shell.errors import UserError
from adapter_bert.sweeps import selection
from adapter_bert.sweeps.selection import Cell

# What a task's ablation.json files share, and "scores": `ALL`, `NONE`, `MAJORITY` or a span of
# layers ("0-2") → the scores in points without these layers' adapters, one per model.
Ablation = Dict[str, Any]
ALL, NONE = "all adapters", "no adapters"
# Fields of ablation.json in which a task's models differ, as their seeds do.
_OWN = ("adapter", "all", "none", "spans", "other_scores")


def read(paths: Iterable[str]) -> List[Ablation]:
    """Returns the ablation of each task in the files of run_ablation.py, one file per model.

    Raises:
      UserError: a file is missing or has another format, or files of a task do not match.
    """
    ablations: Dict[str, Ablation] = {}
    adapters = set()
    for path in paths:
        record, scores = json_objects.read_as(path, "--ablations", "ablation.json", _in_points)
        shared = {name: value for name, value in record.items() if name not in _OWN}
        task, adapter = record["task"], record["adapter"]
        if (task, adapter) in adapters:
            raise UserError(f"--ablations: {path} is of the same adapter as an earlier file.")
        adapters.add((task, adapter))
        one = ablations.setdefault(task, {**shared, "scores": {name: [] for name in scores}})
        if one != {**shared, "scores": one["scores"]}:
            raise UserError(
                f"--ablations: {path} and an earlier file of {task} differ in setting, BERT or"
                " data."
            )
        for name, score in scores.items():
            one["scores"][name].append(score)
    return sorted(ablations.values(), key=lambda one: published.sort_key(one["task"]))


def _in_points(record: Dict[str, Any]) -> Any:
    """Returns a file's content, and its scores in points."""
    require_type, require_finite = json_objects.require_type, json_objects.require_finite
    for name in ("task", "score", "adapter", "backbone"):
        require_type(record[name], str)
    num_layers = require_type(record["num_layers"], int)
    scores = {ALL: record["all"], NONE: record["none"]}
    if "majority" in record:  # A regression has no classes.
        scores[MAJORITY] = record["majority"]
    spans = {
        f"{require_type(first, int)}-{require_type(last, int)}": value
        for first, last, value in record["spans"]
    }
    layers = range(num_layers if len(spans) == num_layers * (num_layers + 1) // 2 else 0)
    expected = [f"{first}-{last}" for first in layers for last in layers[first:]]
    if not expected or spans.keys() != set(expected):
        raise ValueError(f"the spans do not match {num_layers} layers")
    scores.update((name, spans[name]) for name in expected)
    return record, {name: 100 * require_finite(value, float) for name, value in scores.items()}


def report(ablations: Sequence[Ablation]) -> Report:
    """Returns the scores without the adapters of spans of layers, and heatmaps of the changes."""
    cells, columns, panels = [], [], []
    for one in ablations:
        scores, task, num_layers = one["scores"], one["task"], one["num_layers"]
        found = {}
        for name, values in scores.items():
            method, level = ("layers removed", name) if "-" in name else (name, None)
            values = values[:1] if name == MAJORITY else values  # One for all models.
            mean = selection.mean_over_seeds(values)
            found[name] = Cell(method, level, task, f"eval_{one['score']}", *mean)
        cells += found.values()
        layers = [f"{layer}-{layer}" for layer in range(num_layers)]
        for title, name in {
            ALL: ALL,
            "worst single layer removed": min(layers, key=lambda name: found[name].points),
            "lower half removed": f"0-{num_layers // 2 - 1}",  # A single layer has none.
            "upper half removed": f"{num_layers // 2}-{num_layers - 1}",
            "all removed": NONE,
            MAJORITY: MAJORITY,
        }.items():
            if name in found:
                columns.append(found[name]._replace(method=title, level=None))
        changes = np.full([num_layers, num_layers], np.nan)
        for name in scores:
            if "-" in name:
                span = tuple(map(int, name.split("-")))
                changes[span] = np.mean(np.subtract(scores[name], scores[ALL]))
        title = f"{published.title(task)}: {one['score']}"
        labels = "Last layer removed", "First layer removed"
        panels.append(figures.Heatmap(title, *labels, changes, "Change (points)"))
    names = " or ".join(sorted({one["score"] for one in ablations}))
    caption = (
        f"Mean change in the dev {names}, in points, over the models of"
        f" {count_seeds([cell for cell in cells if cell.method != MAJORITY])}, when the adapters of"
        " a span of layers are removed without further training. Layers count from 0; the diagonal"
        " has the single layers."
    )
    tables = [transpose(table_of("", columns, {}))] if columns else []
    return Report(
        "Adapters removed, and their initial weights",
        caption if cells else "",
        tables,
        numbers_of(cells),
        panels,
    )
