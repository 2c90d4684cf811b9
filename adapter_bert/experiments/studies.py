"""What a search for the baseline and an ablation came to: their files, tables and panels."""

import dataclasses
from typing import Any, Dict, List

import numpy as np

from adapter_bert.baseline import search_space as baseline_space
from adapter_bert.baseline.search_space import SPACE
from adapter_bert.common import files
from adapter_bert.experiments import figures, paper, report_tables, selection

_KINDS = {"number": int, "pruned": bool, "samples": int, "seconds": float}
_STYLES = {
    "trial": figures.Style("#08519c", "o", ""),
    "stopped early": figures.Style("#999999", "x", ""),
    "best so far": figures.Style("#e6842a", "", "-"),
}


def read_search(path):
    """What run_baseline.py wrote of a search: a dict, with scores in points.

    Raises:
      UserError: it is missing, or no such file.
    """
    return files.read_as(path, "--searches", "search.json", _search_in_points)


def _search_in_points(record):
    trials = [_trial(trial) for trial in record["trials"]]
    if all(trial["points"] is None for trial in trials):
        raise ValueError("no trial with a score")
    about = {name: files.require_type(record[name], str) for name in ("task", "score", "sampler")}
    return {**about, "trials": trials}


def _trial(record):
    """A trial as it was written; raises KeyError, TypeError or ValueError for what is none."""
    score, own = record["score"], record["settings"]
    kinds: Dict[str, Any] = {
        field.name: field.type for field in dataclasses.fields(baseline_space.Settings)
    }
    settings = {name: files.require_type(own[name], kinds[name]) for name in SPACE}
    return {
        **{name: files.require_type(record[name], kind) for name, kind in _KINDS.items()},
        "points": None if score is None else 100 * files.require_type(score, float),
        "settings": settings,
    }


def best_trial(search):
    """The first of those with the best score."""
    scored = [trial for trial in search["trials"] if trial["points"] is not None]
    return max(scored, key=lambda trial: (trial["points"], -trial["number"]))


def search_numbers(search):
    """A dict for each trial, all with the same keys."""
    return [
        {
            "task": search["task"],
            "trial": trial["number"],
            **{name: trial[name] for name in ("points", "pruned", "samples", "seconds")},
            **{name: _named(trial["settings"])[name] for name in SPACE},
        }
        for trial in search["trials"]
    ]


def search_summary(searches, titles):
    """(columns, rows) of a table with a row for each search.

    Args:
      searches: list of searches.
      titles: what they are called.
    """
    rows = []
    for search, title in zip(searches, titles):
        best, trials = best_trial(search), search["trials"]
        hours = sum(trial["seconds"] for trial in trials) / 3600
        counts = len(trials), sum(trial["pruned"] for trial in trials), best["number"]
        rows.append([title, *map(str, counts), f"{best['points']:.1f}", f"{hours:.2f}"])
    columns = ["", "trials", "stopped early", "the best", "its validation score", "hours"]
    return columns, rows


def selected(searches, titles, gap):
    """(columns, rows) of a table with a row for each parameter: what each search selected.

    Args:
      searches, titles: as in `summary`.
      gap: what stands where a parameter is not read.
    """
    chosen = [best_trial(search)["settings"] for search in searches]
    rows = [
        [name.replace("_", " "), *(_shown(name, settings, gap) for settings in chosen)]
        for name in SPACE
    ]
    return ["", *titles], rows


def search_panel(search, title, y_label):
    """Points for the trials, and a line for the best one so far: a `figures.Panel`."""
    scored = [trial for trial in search["trials"] if trial["points"] is not None]
    points, best = {"trial": [], "stopped early": []}, []
    for trial in sorted(scored, key=lambda trial: trial["number"]):
        place, score = trial["number"], trial["points"]
        points["stopped early" if trial["pruned"] else "trial"].append((place, score, None, None))
        if best:
            best.append((place, best[-1][1], None, None))  # A step: along, then up.
        best.append((place, max([score, *(point[1] for point in best[-1:])]), None, None))
    series = [
        figures.Series(label, _STYLES[label], some)
        for label, some in {**points, "best so far": best}.items()
        if some
    ]
    return figures.Panel(title, "Trial", y_label, series, linear=True)


def _named(settings):
    """Settings with the module's name in place of its address or folder."""
    return {**settings, "module": baseline_space.short_name(settings["module"])}


def _shown(name, settings, gap):
    """A parameter's value as a text; a gap where another parameter switches it off."""
    part, off = name.split("_")[0], set()
    if not settings["use_convolution"]:
        off.add("conv")
    if not settings["hidden_layers"] and name != "hidden_layers":
        off.add("hidden")
    value = _named(settings)[name]
    if part in off:
        return gap
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


_MAX_LAYERS = 1000


def read_ablation(path):
    """What run_ablation.py wrote: a dict, with scores in points.

    Raises:
      UserError: it is missing, or no such file.
    """
    return files.read_as(path, "--ablations", "ablation.json", _ablation_in_points)


def _ablation_in_points(record):
    size = files.require_type(record["num_layers"], int)
    spans = {
        (files.require_type(first, int), files.require_type(last, int)): _points(value)
        for first, last, value in record["spans"]
    }
    if not 0 < size <= _MAX_LAYERS or not all(0 <= first <= last < size for first, last in spans):
        raise ValueError(f"a span that does not lie in {size} layers")
    return {
        **{name: files.require_type(record[name], str) for name in ("task", "score")},
        **{name: _points(record[name]) for name in ("all", "none")},
        "num_layers": size,
        # A regression has no classes.
        "majority": _points(record["majority"]) if "majority" in record else None,
        "spans": spans,
    }


def _points(value):
    return 100 * files.require_type(value, float)


def ablation_cells(ablation):
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
    choice = selection.Selected(score, 0.0, None, None, None, None, {})
    return [
        report_tables.Cell(method, level, ablation["task"], choice._replace(value=value))
        for method, level, value in removed
    ]


def ablation_table(ablations):
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
        rows.append([paper.title(ablation["task"]), ablation["score"], *texts])
    return report_tables.Table("", columns, rows)


def ablation_panel(ablation):
    """What each span costs, by its first and last layer: a `figures.Heatmap`."""
    size = ablation["num_layers"]
    values = np.full([size, size], np.nan)
    for (first, last), value in ablation["spans"].items():
        values[first, last] = value - ablation["all"]
    title = f"{paper.title(ablation['task'])}: {ablation['score']}"
    labels = "Last layer removed", "First layer removed"
    return figures.Heatmap(title, *labels, values, "Change (percentage points)")
