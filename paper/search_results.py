"""Reads the results of baseline searches, and builds their tables and panels."""

from typing import Any, Dict, List

from adapter_bert.files import json_objects
from adapter_bert.paper import figures, published, report_tables
from adapter_bert.paper.baseline import search_space
from adapter_bert.paper.baseline.search_space import SPACE
from adapter_bert.paper.report_tables import Table

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
    names = {
        name: json_objects.require_type(record[name], str) for name in ("task", "score", "sampler")
    }
    return {**names, "trials": trials}


def _parse_trial(record: Dict[str, Any]) -> Dict[str, Any]:
    """Returns a recorded trial; raises KeyError, TypeError or ValueError if it is invalid."""
    score = record["score"]
    return {
        **{
            name: json_objects.require_finite(record[name], expected_type)
            for name, expected_type in _TYPES.items()
        },
        "points": None if score is None else 100 * json_objects.require_finite(score, float),
        "settings": vars(search_space.TrialSettings(**record["settings"])),
    }


def best_trial(search: Search) -> Dict[str, Any]:
    """Returns the trial with the best score; of equal ones, the first."""
    scored = [trial for trial in search["trials"] if trial["points"] is not None]
    return max(scored, key=lambda trial: (trial["points"], -trial["number"]))


def trial_rows(search: Search) -> List[Dict[str, Any]]:
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


def summary(searches: List[Search]) -> Table:
    """Returns a table with a row for each search."""
    rows = []
    for search in searches:
        best, trials = best_trial(search), search["trials"]
        hours = sum(trial["seconds"] for trial in trials) / 3600
        counts = len(trials), sum(trial["pruned"] for trial in trials), best["number"]
        title = published.title(search["task"])
        rows.append([title, *map(str, counts), f"{best['points']:.1f}", f"{hours:.2f}"])
    columns = ["", "trials", "stopped early", "the best", "its dev score", "hours"]
    return Table("", columns, rows)


def selected_settings(searches: List[Search]) -> Table:
    """Returns a table of the searches' selected settings, one per row."""
    titles = [published.title(search["task"]) for search in searches]
    best_settings = [best_trial(search)["settings"] for search in searches]
    rows = [
        [name.replace("_", " "), *(_format_parameter(name, best) for best in best_settings)]
        for name in SPACE
    ]
    return Table("Selected settings", ["", *titles], rows)


def panel(search: Search, y_label: str) -> figures.Panel:
    """Returns a panel of the trials' scores and the best score so far."""
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
    return figures.Panel(published.title(search["task"]), "Trial", y_label, series, is_linear=True)


def _with_module_name(settings: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the settings with the module's name instead of its URL or folder."""
    return {**settings, "module": search_space.short_name(settings["module"])}


def _format_parameter(name: str, settings: Dict[str, Any]) -> str:
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
