"""Reads the results of baseline searches and of ablations, and builds their tables and panels."""

import dataclasses
import math
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from adapter_bert.baseline import search_space
from adapter_bert.baseline.search_space import SPACE
from adapter_bert.common import files
from adapter_bert.common.errors import UserError
from adapter_bert.experiments import figures, paper, report_tables, selection

# Fields of ablation.json that a task's models share: they differ in their seeds only.
_SAME = (
    *("backbone", "setting", "data", "num_rows", "max_seq_length", "precision"),
    *("long_texts", "window_pooling"),
)
_TYPES = {"number": int, "pruned": bool, "samples": int, "seconds": float}
_STYLES = {
    "trial": figures.Style("#08519c", "o", ""),
    "stopped early": figures.Style("#999999", "x", ""),
    "best so far": figures.Style("#e6842a", "", "-"),
}


def read_search(path):
    """Returns a search of run_baseline.py, a dict with scores in points.

    Raises:
      UserError: the file is missing or has another format.
    """
    return files.read_as(path, "--searches", "search.json", _search_in_points)


def _search_in_points(record):
    trials = [_parse_trial(trial) for trial in record["trials"]]
    if all(trial["points"] is None for trial in trials):
        raise ValueError("no trial with a score")
    names = {name: files.require_type(record[name], str) for name in ("task", "score", "sampler")}
    return {**names, "trials": trials}


def _parse_trial(record):
    """Returns a recorded trial; raises KeyError, TypeError or ValueError if it is invalid."""
    score, recorded_settings = record["score"], record["settings"]
    types: Dict[str, Any] = {
        field.name: field.type for field in dataclasses.fields(search_space.Settings)
    }
    settings = {name: _require_type(recorded_settings[name], types[name]) for name in SPACE}
    return {
        **{
            name: _require_type(record[name], expected_type)
            for name, expected_type in _TYPES.items()
        },
        "points": None if score is None else _points(score),
        "settings": settings,
    }


def best_trial(search):
    """Returns the trial with the best score; of equal ones, the first."""
    scored = [trial for trial in search["trials"] if trial["points"] is not None]
    return max(scored, key=lambda trial: (trial["points"], -trial["number"]))


def search_rows(search):
    """Returns a dict for each trial, all with equal keys."""
    return [
        {
            "task": search["task"],
            "trial": trial["number"],
            **{name: trial[name] for name in ("points", "pruned", "samples", "seconds")},
            **_with_module_name(trial["settings"]),
        }
        for trial in search["trials"]
    ]


def search_summary(searches, titles):
    """Returns (columns, rows) of a table with a row for each search.

    Args:
      searches: list of searches.
      titles: the searches' names.
    """
    rows = []
    for search, title in zip(searches, titles):
        best, trials = best_trial(search), search["trials"]
        hours = sum(trial["seconds"] for trial in trials) / 3600
        counts = len(trials), sum(trial["pruned"] for trial in trials), best["number"]
        rows.append([title, *map(str, counts), f"{best['points']:.1f}", f"{hours:.2f}"])
    columns = ["", "trials", "stopped early", "the best", "its dev score", "hours"]
    return columns, rows


def selected_settings(searches, titles):
    """Returns (columns, rows) of a table of the searches' selected settings, one per row.

    Args:
      searches, titles: see `search_summary`.
    """
    best_settings = [best_trial(search)["settings"] for search in searches]
    rows = [
        [name.replace("_", " "), *(_format_parameter(name, best) for best in best_settings)]
        for name in SPACE
    ]
    return ["", *titles], rows


def search_panel(search, title, y_label):
    """Returns a `figures.Panel` of the trials' scores and the best score so far."""
    scored = [trial for trial in search["trials"] if trial["points"] is not None]
    points, best = {"trial": [], "stopped early": []}, []
    for trial in sorted(scored, key=lambda trial: trial["number"]):
        number, score = trial["number"], trial["points"]
        points["stopped early" if trial["pruned"] else "trial"].append((number, score, None, None))
        if best:
            best.append((number, best[-1][1], None, None))  # Draws a step.
        best.append((number, max([score, *(point[1] for point in best[-1:])]), None, None))
    series = [
        figures.Series(label, _STYLES[label], series_points)
        for label, series_points in {**points, "best so far": best}.items()
        if series_points
    ]
    return figures.Panel(title, "Trial", y_label, series, is_linear=True)


def _with_module_name(settings):
    """Returns the settings with the module's name instead of its URL or folder."""
    return {**settings, "module": search_space.short_name(settings["module"])}


def _format_parameter(name, settings):
    """Returns a parameter's value as a text, or a gap if another parameter disables it."""
    part, unused = name.split("_")[0], set()
    if not settings["use_convolution"]:
        unused.add("conv")
    if not settings["hidden_layers"] and name != "hidden_layers":
        unused.add("hidden")
    value = _with_module_name(settings)[name]
    if part in unused:
        return report_tables.GAP
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


class Ablation(NamedTuple):
    """The ablations of a task's models, in points.

    Attributes:
      task: its name.
      score: name of the score.
      num_layers: L.
      full: the scores with all adapters, one per model.
      none: the scores without any adapter, one per model.
      majority: the share of the most frequent label; None for a regression.
      spans: (first layer, last layer) → the scores without these layers' adapters, one per model.
    """

    task: str
    score: str
    num_layers: int
    full: List[float]
    none: List[float]
    majority: Optional[float]
    spans: Dict[Tuple[int, int], List[float]]

    def changes(self, first, last):
        """Returns what the removal of a span changes, one number per model."""
        return list(np.subtract(self.spans[first, last], self.full))


def read_ablations(paths):
    """Returns the `Ablation` of each task in the files of run_ablation.py, one file per model.

    Raises:
      UserError: a file is missing or has another format, or files of a task do not match.
    """
    models: Dict[str, Ablation] = {}
    sources: Dict[str, Any] = {}  # By task; all its files must have the same.
    digests = set()
    for path in paths:
        record, model = files.read_as(path, "--ablations", "ablation.json", _ablation_in_points)
        source = _source(record, model)
        key = model.task, record["adapter"]
        if key in digests:
            raise UserError(f"--ablations: {path} is of the same adapter as an earlier file.")
        digests.add(key)
        before = models.get(model.task)
        if before is None:
            models[model.task], sources[model.task] = model, source
            continue
        if source != sources[model.task]:
            raise UserError(
                f"--ablations: {path} and an earlier file of {model.task} differ in setting, BERT"
                " or data."
            )
        models[model.task] = before._replace(
            full=before.full + model.full,
            none=before.none + model.none,
            spans={span: values + model.spans[span] for span, values in before.spans.items()},
        )
    return sorted(models.values(), key=lambda ablation: paper.sort_key(ablation.task))


def _ablation_in_points(record):
    """Returns a file's content, and the `Ablation` of its model."""
    num_layers = files.require_type(record["num_layers"], int)
    spans = {
        (files.require_type(first, int), files.require_type(last, int)): [_points(value)]
        for first, last, value in record["spans"]
    }
    is_complete = len(spans) == num_layers * (num_layers + 1) // 2 > 0
    if not is_complete or not all(0 <= first <= last < num_layers for first, last in spans):
        raise ValueError(f"the spans do not match {num_layers} layers")
    files.require_type(record["adapter"], str)
    return record, Ablation(
        task=files.require_type(record["task"], str),
        score=files.require_type(record["score"], str),
        num_layers=num_layers,
        full=[_points(record["all"])],
        none=[_points(record["none"])],
        # A regression has no classes.
        majority=_points(record["majority"]) if "majority" in record else None,
        spans=spans,
    )


def _points(value):
    return 100 * _require_type(value, float)


def _require_type(value, kind):
    """Returns a JSON value after checking its type, and that it is not NaN or Inf."""
    value = files.require_type(value, kind)
    if kind is float and not math.isfinite(value):
        raise ValueError(f"expected a finite number, found {value}")
    return value


def _source(record, ablation):
    same = [record.get(name) for name in _SAME]
    return same, ablation.score, ablation.num_layers, ablation.majority


def ablation_cells(ablation):
    """Returns a `report_tables.Cell` for each score."""
    scores: List[Any] = [
        ("all adapters", None, ablation.full),
        ("no adapters", None, ablation.none),
    ]
    if ablation.majority is not None:
        scores.append(("majority class", None, [ablation.majority]))
    scores += [("layers removed", f"{a}-{b}", v) for (a, b), v in sorted(ablation.spans.items())]
    score = f"{selection.VALIDATION}_{ablation.score}"
    return [
        report_tables.Cell(
            *(method, level, ablation.task),
            selection.Selected(
                *(score, float(np.mean(values)), selection.standard_error(values), len(values)),
                *(None, None, {}),
            ),
        )
        for method, level, values in scores
    ]


def ablation_table(ablations):
    """Returns a `report_tables.Table` with a row for each ablation."""
    columns = ["", "score", "models", "all adapters", "worst single layer removed"]
    columns += ["lower half removed", "upper half removed", "all removed", "majority class"]
    rows = []
    for ablation in ablations:
        spans, num_layers = ablation.spans, ablation.num_layers
        scores = [
            ablation.full,
            min((spans[layer, layer] for layer in range(num_layers)), key=np.mean),
            spans.get((0, num_layers // 2 - 1)),  # A single layer has no lower half.
            spans[num_layers // 2, num_layers - 1],
            ablation.none,
            None if ablation.majority is None else [ablation.majority],
        ]
        texts = [
            report_tables.GAP
            if values is None
            else report_tables.format_score(np.mean(values), selection.standard_error(values))
            for values in scores
        ]
        models = str(len(ablation.full))
        rows.append([paper.title(ablation.task), ablation.score, models, *texts])
    return report_tables.Table("", columns, rows)


def ablation_panel(ablation):
    """Returns a `figures.Heatmap` of the scores' mean changes, by the span's ends."""
    values = np.full([ablation.num_layers, ablation.num_layers], np.nan)
    for span in ablation.spans:
        values[span] = np.mean(ablation.changes(*span))
    title = f"{paper.title(ablation.task)}: {ablation.score}"
    labels = "Last layer removed", "First layer removed"
    return figures.Heatmap(title, *labels, values, "Change (points)")
