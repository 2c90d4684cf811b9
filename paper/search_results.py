"""Reads the results of baseline searches, and builds their tables and panels."""

from typing import Any, Dict, List

import numpy as np

from adapter_bert.files import json_objects
from adapter_bert.paper import figures, published
from adapter_bert.paper.baseline import search_space
from adapter_bert.paper.report_tables import GAP, Report, Table, axis_label

Search = Dict[str, Any]  # As in search.json, with scores in points.
_TYPES = {"number": int, "pruned": bool, "samples": int, "seconds": float}
_STYLES = {
    "trial": figures.Style("#08519c", "o", ""),
    "stopped early": figures.Style("#999999", "x", ""),
    "best so far": figures.Style("#e6842a", "", "-"),
}


def read(path: str) -> Search:
    """Returns a search of run_baseline.py.

    Raises:
      UserError: the file is missing or has another format.
    """
    # A trial takes about 1 KB.
    return json_objects.read_as(
        path, "--searches", "search.json", _search_in_points, max_bytes=100 << 20
    )


def _search_in_points(record: Dict[str, Any]) -> Search:
    trials = [_parse_trial(trial) for trial in record["trials"]]
    if all(trial["points"] is None for trial in trials):
        raise ValueError("no trial with a score")
    names = ("task", "score", "sampler")
    return {
        **{name: json_objects.require_type(record[name], str) for name in names},
        "trials": sorted(trials, key=lambda trial: trial["number"]),
    }


def _parse_trial(record: Dict[str, Any]) -> Dict[str, Any]:
    """Returns a recorded trial; raises KeyError, TypeError or ValueError if it is invalid."""
    score = record["score"]
    settings = vars(search_space.TrialSettings(**record["settings"]))
    return {
        **{name: json_objects.require_finite(record[name], kind) for name, kind in _TYPES.items()},
        "points": None if score is None else 100 * json_objects.require_finite(score, float),
        # Without the user's URL or path of the module.
        "settings": {**settings, "module": search_space.short_name(settings["module"])},
    }


def report(searches: List[Search]) -> Report:
    """Returns the searches: the score of each trial, and the best so far."""
    numbers, summary, panels, best_settings = [], [], [], {}
    for search in sorted(searches, key=lambda search: published.sort_key(search["task"])):
        trials, task = search["trials"], published.title(search["task"])
        scored = [trial for trial in trials if trial["points"] is not None]
        best = max(scored, key=lambda trial: trial["points"])  # Of equal ones, the first.
        best_settings[task] = best["settings"]
        counts = len(trials), sum(trial["pruned"] for trial in trials), best["number"]
        hours = sum(trial["seconds"] for trial in trials) / 3600
        summary.append([task, *map(str, counts), f"{best['points']:.1f}", f"{hours:.2f}"])
        numbers += [
            {
                "task": search["task"],
                "trial": trial["number"],
                **{name: trial[name] for name in ("points", "pruned", "samples", "seconds")},
                **trial["settings"],
            }
            for trial in trials
        ]
        points = {label: [] for label in _STYLES}
        for trial in scored:
            label = "stopped early" if trial["pruned"] else "trial"
            points[label].append((trial["number"], trial["points"], None, None))
        so_far = np.maximum.accumulate([trial["points"] for trial in scored])
        steps = zip(
            np.repeat([trial["number"] for trial in scored], 2)[1:], np.repeat(so_far, 2)[:-1]
        )
        points["best so far"] = [(number, score, None, None) for number, score in steps]
        series = [
            figures.Series(label, _STYLES[label], found) for label, found in points.items() if found
        ]
        y_label = axis_label(search["score"])
        panels.append(figures.Panel(task, "Trial", y_label, series, is_linear=True))
    samplers = sorted({search["sampler"] for search in searches})
    caption = (
        "The best dev score of each trial, in the order in which they began, and the best so"
        " far. Trials stopped early scored worse than others at the same number of samples."
        f" Settings were proposed by: {', '.join(samplers)}."
    )
    columns = ["", "trials", "stopped early", "the best", "its dev score", "hours"]
    settings = [
        [name.replace("_", " "), *(_text(name, of_task) for of_task in best_settings.values())]
        for name in search_space.SPACE
    ]
    tables = [
        Table("", columns, summary),
        Table("Selected settings", ["", *best_settings], settings),
    ]
    return Report("Searches for the no-BERT baseline", caption, tables, numbers, panels)


def _text(name: str, settings: Dict[str, Any]) -> str:
    """Returns a setting's value as a text, or a gap if another setting disables it."""
    value, part = settings[name], name.split("_")[0]
    is_disabled = (part == "conv" and not settings["use_convolution"]) or (
        part == "hidden" and name != "hidden_layers" and not settings["hidden_layers"]
    )
    if is_disabled:
        return GAP
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
