"""Selects the runs that tables, figures and claims are about, and a `Cell` for each task.

Reports are about the paper's adapter, with initial weights of any scale; `variants` has the others.
"""

import collections
from typing import Any, Callable, Collection, Dict, Iterable, List, Optional, Set, Tuple

from adapter_bert.model import task_kinds
from adapter_bert.paper import published
from adapter_bert.sweeps import selection
from adapter_bert.sweeps.selection import ADAPTERS, FULL, INIT_SCALE, NO_BERT, Cell, Method, Run

MAJORITY = "majority class"  # The label of cells of the most frequent label.
DEFAULT = "default"  # The label of the default adapter.
VARIABLE = Method("variable", "variable fine-tuning", selection.LAYERS)  # Table 2.


def glue(runs: List[Run]) -> List[Run]:
    """Returns the runs of GLUE's tasks; MNLI's become two, one for each dev set.

    Samples of a task's rows only count if full fine-tuning was trained on them too.
    """
    result = []
    compared = {run.task for run in runs if run.is_full}
    names = ("accuracy", f"{task_kinds.MAJORITY}accuracy", task_kinds.PREDICTED_LABELS)
    for run in runs:
        if run.setting.script != "run_classifier.py":
            continue
        if run.task == "MNLI":
            mismatched = {f"eval_{n}": run.scores.get(f"eval_mismatched_{n}") for n in names}
            result.append(run._replace(task="MNLI-m"))
            result.append(run._replace(task="MNLI-mm", scores={**run.scores, **mismatched}))
        elif run.task in published.GLUE or (published.is_glue(run.task) and run.task in compared):
            result.append(run)
    return result


def further(runs: List[Run]) -> List[Run]:
    """Returns the runs of classification outside GLUE that have test scores."""
    return [
        run
        for run in runs
        if run.setting.script in selection.TEXT_SCRIPTS
        and not published.is_glue(run.task)
        and run.points(selection.TEST) is not None
    ]


def of_method(
    runs: List[Run], method: Method, levels: Collection[int] = (), pooler: bool = False
) -> List[Run]:
    """Returns the runs of a method as in the paper, with adapters of any initial scale.

    Args:
      runs: those of any methods.
      method: the method. All top layers are also full fine-tuning.
      levels: sizes of adapters, or numbers of top layers; empty for all.
      pooler: whether adapters are trained together with the pooler, unlike in the paper.
    """
    if method is VARIABLE:  # Of all layers, it is full fine-tuning.
        top = of_method(runs, selection.TOP_LAYERS)
        tasks = {run.task for run in top}
        return top + [run for run in runs if run.setting.method == FULL.name and run.task in tasks]
    design = {selection.POOLER} if pooler else set()
    return [
        run
        for run in runs
        if (run.setting.method == method.name or method is FULL and run.is_full)
        and run.setting.design.keys() - {INIT_SCALE} == design
        and (not levels or run.setting.flag(method.level) in levels)
    ]


def at_equal_epochs(runs: List[Run]) -> List[Run]:
    """Returns the runs with a number of epochs that all methods of their task share.

    The baseline without BERT has none. Tasks whose methods share none are left out.
    """
    shared: Dict[str, Set[Any]] = {}
    trained = [run for run in runs if run.setting.method != NO_BERT.name]
    by_method = selection.group_by(trained, lambda run: (run.task, run.setting.method))
    for (task, _), group in by_method.items():
        epochs = {run.setting.flag(selection.EPOCHS) for run in group}
        shared[task] = shared.get(task, epochs) & epochs
    return [
        run
        for run in runs
        if run.setting.method == NO_BERT.name
        or run.setting.flag(selection.EPOCHS) in shared[run.task]
    ]


def comparable(runs: List[Run], flag: Optional[str]) -> List[Run]:
    """Returns the runs whose other settings were trained with most values of a flag.

    A setting needs more than half as many values as the setting with the most. Otherwise, values
    that a further study tried with more settings would look better. Tasks are treated separately.
    """
    key_without = selection.key_without
    groups = selection.group_by(runs, lambda run: (run.task, key_without(run.setting.key, flag)))
    counts = {key: len({run.setting.flag(flag) for run in each}) for key, each in groups.items()}
    most: Dict[str, int] = {}
    for (task, _), count in counts.items():
        most[task] = max(most.get(task, 0), count)
    kept = (each for key, each in groups.items() if 2 * counts[key] > most[key[0]])
    return [run for each in kept for run in each]


def variants(runs: List[Run]) -> List[Tuple[Cell, Optional[Cell]]]:
    """Returns the variants of the adapter (section 3.6), each with the default adapter's cell.

    A cell's method is the difference from the default adapter: "depth 2". Its level is the size. A
    variant and its default are at their best among the settings that both were trained with, on the
    same task: the learning rate, the number of epochs and the scale of initial weights. A variant
    without such a setting has None. Defaults with such a setting are in the list too.
    """
    adapters = [run for run in runs if run.setting.method == ADAPTERS.name]
    adapters = [run for run in adapters if not run.setting.flag(selection.POOLER)]
    defaults = [run for run in adapters if not _variant(run)]
    others = [run for run in adapters if _variant(run)]

    def common(run: Run) -> Tuple[str, str]:
        names = sorted(run.setting.design.keys() - {INIT_SCALE})
        return run.task, selection.key_without(run.setting.key, *names)

    def matched(some: List[Run], by: List[Run]) -> List[Run]:
        shared = set(map(common, by))
        return [run for run in some if common(run) in shared]

    result = []
    groups = selection.group_by(
        adapters, lambda run: (run.setting.flag(selection.SIZE), _variant(run))
    )
    for (size, name), group in groups.items():
        chosen = matched(group, defaults if name else others)
        if name:
            tasks = {run.task for run in chosen}
            chosen += [run for run in group if run.task not in tasks]
        same = cells_of(DEFAULT, matched(defaults, chosen), selection.VALIDATION)
        default = {cell.task: cell for cell in same}
        cells = cells_of(name or DEFAULT, chosen, selection.VALIDATION, level=size)
        result += [(cell, default.get(cell.task)) for cell in cells]
    return result


def _variant(run: Run) -> str:
    """Returns how an adapter differs from the default one, "" if only in its initial weights."""
    design = {name: v for name, v in run.setting.design.items() if name != INIT_SCALE}
    return ", ".join(f"{name.replace('adapter_', '')} {value}" for name, value in design.items())


def cells_of(
    label: str,
    runs: List[Run],
    split: str,
    choose: Callable[[List[Run], str], Optional[Cell]] = selection.choose_mean,
    level: Any = None,
) -> List[Cell]:
    """Returns the `Cell` of each task that has a score on a split, in the paper's order.

    `label` and `level` are the cells' method and level, and `choose` is `selection.choose_mean` or
    `selection.choose_best`.
    """
    by_task = selection.group_by(runs, lambda run: published.sort_key(run.task))
    cells = [choose(group, split) for group in by_task.values()]
    return [cell._replace(method=label, level=level) for cell in cells if cell]


def curve(
    runs: List[Run], method: Method, flag: Optional[str] = None, split: str = selection.VALIDATION
) -> List[Cell]:
    """Returns a method's `Cell`s, one for each task and level, or each value of another flag.

    Values of another flag count without 0, as axes are logarithmic; a task needs three.
    """
    name = flag or method.level
    chosen = [run for run in of_method(runs, method) if not flag or run.setting.flag(flag)]
    by_level = selection.group_by(comparable(chosen, name), lambda run: run.setting.flag(name))
    cells = [
        cell
        for level, group in by_level.items()
        for cell in cells_of(method.label, group, split, level=level)
    ]
    counts = collections.Counter(cell.task for cell in cells)
    return [cell for cell in cells if not flag or counts[cell.task] >= 3]


def majority_cells(cells: List[Cell], split: str) -> List[Cell]:
    """Returns a `Cell` of always predicting the most frequent label, for each task of cells.

    Tasks whose runs are too old to have this score have none.
    """
    found: Dict[str, Cell] = {}
    for cell in cells:
        for run in cell.runs:
            points = run.points(split, task_kinds.MAJORITY + run.score)
            if points is not None:
                found.setdefault(cell.task, Cell(MAJORITY, None, cell.task, cell.score, points))
    return [found[task] for task in sorted(found, key=published.sort_key)]


def tasks_of(cells: Iterable[Cell]) -> List[str]:
    """Returns the cells' tasks, in the paper's order."""
    return sorted({cell.task for cell in cells}, key=published.sort_key)
