"""Reads the results of ablations, and builds their table and panels."""

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

import numpy as np

from adapter_bert.files import json_objects
from adapter_bert.paper import figures, published, report_tables
from adapter_bert.paper.cells import MAJORITY, Cell
from adapter_bert.shell.errors import UserError
from adapter_bert.sweeps import selection

# Fields of ablation.json in which a task's models differ, as their seeds do.
_OWN = ("adapter", "all", "none", "spans", "other_scores")


class Ablation(NamedTuple):
    """The ablations of a task's models, in points.

    Attributes:
      task: its name.
      score: name of the score.
      num_layers: L.
      full: the scores with all adapters, one per model.
      none: the scores without any adapter, one per model.
      majority: the share of the most frequent label; None for a regression.
      backbone: the fingerprint of the BERT.
      spans: (first layer, last layer) → the scores without these layers' adapters, one per model.
    """

    task: str
    score: str
    num_layers: int
    full: List[float]
    none: List[float]
    majority: Optional[float]
    backbone: str
    spans: Dict[Tuple[int, int], List[float]]

    def changes(self, first: int, last: int) -> List[float]:
        """Returns what the removal of a span changes, one number per model."""
        return list(np.subtract(self.spans[first, last], self.full))

    def join(self, other: "Ablation") -> "Ablation":
        """Returns the ablations of both objects' models."""
        return self._replace(
            full=self.full + other.full,
            none=self.none + other.none,
            spans={span: values + other.spans[span] for span, values in self.spans.items()},
        )


def read(paths: Iterable[str]) -> List[Ablation]:
    """Returns the ablations of each task in the files of run_ablation.py, one file per model.

    Raises:
      UserError: a file is missing or has another format, or files of a task do not match.
    """
    models: Dict[str, Ablation] = {}
    sources: Dict[str, Any] = {}  # By task; all its files must have the same.
    digests = set()
    for path in paths:
        record, model = json_objects.read_as(
            path, "--ablations", "ablation.json", _ablation_in_points
        )
        task, before = model.task, models.get(model.task)
        if (task, record["adapter"]) in digests:
            raise UserError(f"--ablations: {path} is of the same adapter as an earlier file.")
        digests.add((task, record["adapter"]))
        source = {name: value for name, value in record.items() if name not in _OWN}
        if source != sources.setdefault(task, source):
            raise UserError(
                f"--ablations: {path} and an earlier file of {task} differ in setting, BERT or"
                " data."
            )
        models[task] = before.join(model) if before else model
    return sorted(models.values(), key=lambda ablation: published.sort_key(ablation.task))


def _ablation_in_points(record: Dict[str, Any]) -> Tuple[Dict[str, Any], Ablation]:
    """Returns a file's content, and the ablations of its model."""
    num_layers = json_objects.require_type(record["num_layers"], int)
    spans = {
        (json_objects.require_type(first, int), json_objects.require_type(last, int)): [
            _points(value)
        ]
        for first, last, value in record["spans"]
    }
    is_complete = len(spans) == num_layers * (num_layers + 1) // 2 > 0
    if not is_complete or not all(0 <= first <= last < num_layers for first, last in spans):
        raise ValueError(f"the spans do not match {num_layers} layers")
    json_objects.require_type(record["adapter"], str)
    return record, Ablation(
        task=json_objects.require_type(record["task"], str),
        score=json_objects.require_type(record["score"], str),
        num_layers=num_layers,
        full=[_points(record["all"])],
        none=[_points(record["none"])],
        # A regression has no classes.
        majority=_points(record["majority"]) if "majority" in record else None,
        backbone=json_objects.require_type(record["backbone"], str),
        spans=spans,
    )


def _points(value: Any) -> float:
    return 100 * json_objects.require_finite(value, float)


def cells(ablation: Ablation) -> List[Cell]:
    """Returns a cell for each score."""
    whole = {"all adapters": ablation.full, "no adapters": ablation.none}
    if ablation.majority is not None:
        whole[MAJORITY] = [ablation.majority]
    return [
        *(_cell(ablation, method, None, values) for method, values in whole.items()),
        *(
            _cell(ablation, "layers removed", f"{first}-{last}", values)
            for (first, last), values in sorted(ablation.spans.items())
        ),
    ]


def _cell(ablation: Ablation, method: str, level: Optional[str], values: List[float]) -> Cell:
    score = f"{selection.VALIDATION}_{ablation.score}"
    mean, sem = float(np.mean(values)), selection.standard_error(values)
    return Cell(method, level, ablation.task, selection.Selected(score, mean, sem, len(values)))


def table(ablations: List[Ablation]) -> report_tables.Table:
    """Returns a table with a row for each task."""
    columns = []
    for ablation in ablations:
        spans, half = ablation.spans, ablation.num_layers // 2
        layers = [spans[layer, layer] for layer in range(ablation.num_layers)]
        scores = {
            "all adapters": ablation.full,
            "worst single layer removed": min(layers, key=np.mean),
            "lower half removed": spans.get((0, half - 1)),  # A single layer has no lower half.
            "upper half removed": spans[half, ablation.num_layers - 1],
            "all removed": ablation.none,
            MAJORITY: None if ablation.majority is None else [ablation.majority],
        }
        columns += [
            _cell(ablation, title, None, values) for title, values in scores.items() if values
        ]
    return report_tables.transpose(report_tables.table_of("", columns, {}))


def panel(ablation: Ablation) -> figures.Heatmap:
    """Returns a heatmap of the scores' mean changes, by the span's ends."""
    values = np.full([ablation.num_layers, ablation.num_layers], np.nan)
    for span in ablation.spans:
        values[span] = np.mean(ablation.changes(*span))
    title = f"{published.title(ablation.task)}: {ablation.score}"
    labels = "Last layer removed", "First layer removed"
    return figures.Heatmap(title, *labels, values, "Change (points)")
