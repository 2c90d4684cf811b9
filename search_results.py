"""What run_baseline.py's searches came to: read, and as numbers, tables and curves.

A search is a dict: "task"; "score", its name, as in "eval_accuracy"; "sampler"; and "trials", dicts
of "number" from 0, "points" or None, "pruned", "samples", "seconds" and "settings". Points are
hundredths, as in `selection`.
"""

import dataclasses
from typing import Any, Dict

import baseline_space
import figures
import files
from baseline_space import SPACE

_KINDS = {"number": int, "pruned": bool, "samples": int, "seconds": float}
_STYLES = {
    "trial": figures.Style("#08519c", "o", ""),
    "stopped early": figures.Style("#999999", "x", ""),
    "best so far": figures.Style("#e6842a", "", "-"),
}


def read(path):
    """What run_baseline.py wrote of a search: a dict, with scores in points.

    Raises:
      UserError: it is missing, or no such file.
    """
    return files.read_as(path, "--searches", "search.json", _in_points)


def _in_points(found):
    trials = [_trial(trial) for trial in found["trials"]]
    if all(trial["points"] is None for trial in trials):
        raise ValueError("no trial with a score")
    about = {name: files.checked(found[name], str) for name in ("task", "score", "sampler")}
    return {**about, "trials": trials}


def _trial(found):
    """A trial as it was written; raises KeyError, TypeError or ValueError for what is none."""
    score, own = found["score"], found["settings"]
    kinds: Dict[str, Any] = {
        field.name: field.type for field in dataclasses.fields(baseline_space.Settings)
    }
    settings = {name: files.checked(own[name], kinds[name]) for name in SPACE}
    return {
        **{name: files.checked(found[name], kind) for name, kind in _KINDS.items()},
        "points": None if score is None else 100 * files.checked(score, float),
        "settings": settings,
    }


def best_trial(search):
    """The first of those with the best score."""
    scored = [trial for trial in search["trials"] if trial["points"] is not None]
    return max(scored, key=lambda trial: (trial["points"], -trial["number"]))


def numbers(search):
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


def summary(searches, titles):
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


def panel(search, title, y_label):
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
