"""Selects the runs that tables, figures and claims are about, and a `Cell` for each task.

Reports are about the paper's adapter, with initial weights of any scale; `variants` has the others.
"""

import collections
from typing import Any, Callable, Collection, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from adapter_bert.model import task_kinds
from adapter_bert.paper import published
from adapter_bert.sweeps import selection
from adapter_bert.sweeps.selection import (
    ADAPTERS,
    EPOCHS,
    FULL,
    INIT_SCALE,
    LAYERS,
    NO_BERT,
    POOLER,
    SIZE,
    TEST,
    TOP_LAYERS,
    VALIDATION,
    Method,
    Run,
    Selected,
)

MAJORITY = "majority class"  # The label of cells of the most frequent label.
DEFAULT = "default"  # The label of the default adapter.
VARIABLE = Method("variable", "variable fine-tuning", LAYERS)  # Table 2.


class Cell(NamedTuple):
    """A method's selected score on a task, at a level: a size, a learning rate, ... or None.

    Attributes:
      method: its label.
      runs: those from which the setting was selected.
    """

    method: str
    level: Any
    task: str
    choice: Selected
    runs: List[Run] = []

    @property
    def note(self) -> str:
        """The note on runs that predict only one label; "" without them."""
        count, runs = self.choice.one_label, len(self.choice.values)
        return f"predicts only one label in {count} of {pluralize(runs, 'run')}" if count else ""

    def to_row(self) -> Dict[str, Any]:
        """Returns all of the cell's values by name."""
        choice = self.choice
        return {
            "method": self.method,
            "level": self.level,
            "task": self.task,
            "score": choice.score,
            "points": choice.value,
            "sem": choice.sem,
            "seeds": choice.seeds,
            "trained_parameters": choice.trained,
            "setting": " ".join(f"{name}={value}" for name, value in choice.setting.items()),
        }


def pluralize(count: int, noun: str) -> str:
    """Returns a count with its noun: "1 seed", "2 seeds"."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


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
        and run.points(TEST) is not None
    ]


def by_accuracy(runs: List[Run]) -> List[Run]:
    """Returns the runs with accuracy as their score, if a classifier's have it.

    The paper's figures 3 and 4 show it for GLUE too. It does not say what they show for STS-B,
    which keeps its score.
    """
    return list(map(selection.by_accuracy, runs))


def of_method(
    runs: List[Run], method: Method, sizes: Collection[int] = (), pooler: bool = False
) -> List[Run]:
    """Returns the runs of a method as in the paper, with adapters of any initial scale.

    Args:
      runs: those of any methods.
      method: the method.
      sizes: values of --adapter_size; empty for all.
      pooler: whether adapters are trained together with the pooler, unlike in the paper.
    """
    if method is VARIABLE:  # Of all layers, it is full fine-tuning.
        top = of_method(runs, TOP_LAYERS)
        tasks = {run.task for run in top}
        return top + [run for run in runs if run.setting.method == FULL.name and run.task in tasks]
    design = {POOLER} if pooler else set()
    return [
        run
        for run in selection.of_method(runs, method)
        if run.setting.design.keys() - {INIT_SCALE} == design
        and (not sizes or run.setting.flag(SIZE) in sizes)
    ]


def at_equal_epochs(runs: List[Run]) -> List[Run]:
    """Returns the runs with a number of epochs that all methods of their task share.

    The baseline without BERT has none. Tasks whose methods share none are left out.
    """
    by_task: Dict[str, Dict[str, Set[Any]]] = collections.defaultdict(dict)
    for run in runs:
        if run.setting.method != NO_BERT.name:
            by_method = by_task[run.task].setdefault(run.setting.method, set())
            by_method.add(run.setting.flag(EPOCHS))
    shared = {task: set.intersection(*methods.values()) for task, methods in by_task.items()}
    return [
        run
        for run in runs
        if run.setting.method == NO_BERT.name or run.setting.flag(EPOCHS) in shared[run.task]
    ]


def comparable(runs: List[Run], flag: Optional[str]) -> List[Run]:
    """Returns the runs whose other settings were trained with most values of a flag.

    A setting needs more than half as many values as the setting with the most. Otherwise, values
    that a further study tried with more settings would look better. Tasks are treated separately.
    """
    values: Dict[Tuple[str, str], Set[Any]] = collections.defaultdict(set)
    others = [(run.task, _key_without(run, {flag})) for run in runs]
    for run, other in zip(runs, others):
        values[other].add(run.setting.flag(flag))
    most: Dict[str, int] = {}
    for (task, _), found in values.items():
        most[task] = max(most.get(task, 0), len(found))
    return [run for run, other in zip(runs, others) if 2 * len(values[other]) > most[run.task]]


def _key_without(run: Run, flags: Collection[Any]) -> str:
    return selection.key_without(run.setting.key, frozenset(flags))


def variants(runs: List[Run]) -> List[Tuple[Cell, Optional[Cell]]]:
    """Returns the variants of the adapter (section 3.6), each with the default adapter's cell.

    A cell's method is the difference from the default adapter: "depth 2". Its level is the size. A
    variant and its default are at their best among the settings that both were trained with, on the
    same task: the learning rate, the number of epochs and the scale of initial weights. A variant
    without such a setting has None. Defaults with such a setting are in the list too.
    """
    adapters = selection.of_method(runs, ADAPTERS)
    adapters = [run for run in adapters if not run.setting.flag(POOLER)]

    def common(run: Run) -> Tuple[str, str]:
        return run.task, _key_without(run, run.setting.design.keys() - {INIT_SCALE})

    default, others = (
        selection.group_by([r for r in adapters if bool(_variant(r)) == is_variant], common)
        for is_variant in (False, True)
    )
    result: List[Tuple[Cell, Optional[Cell]]] = []
    groups = selection.group_by(
        adapters, lambda r: (r.setting.flag(SIZE), _variant(r), published.sort_key(r.task))
    )
    for (size, name, _), group in groups.items():
        matched = [run for run in group if common(run) in (default if name else others)]
        same = [run for key in set(map(common, matched)) for run in default.get(key, ())]
        first, *_ = *cells_of(DEFAULT, same, VALIDATION, level=size), None
        chosen = matched or (group if name else [])
        cells = cells_of(name or DEFAULT, chosen, VALIDATION, level=size)
        result += [(cell, first) for cell in cells]
    return result


def _variant(run: Run) -> str:
    """Returns how an adapter differs from the default one, "" if only in its initial weights."""
    design = {name: v for name, v in run.setting.design.items() if name != INIT_SCALE}
    return ", ".join(f"{name.replace('adapter_', '')} {value}" for name, value in design.items())


def cells_of(
    label: str,
    runs: List[Run],
    split: str,
    choose: Callable[[List[Run], str], Optional[Selected]] = selection.choose_mean,
    level: Any = None,
) -> List[Cell]:
    """Returns the `Cell` of each task that has a score, in the paper's order.

    Args:
      label, level: the cells' method and level.
      runs: the runs of this method and level.
      split: the split to score.
      choose: `selection.choose_mean` or `selection.choose_best`.
    """
    by_task = selection.group_by(runs, lambda run: published.sort_key(run.task))
    choices = ((task, choose(group, split), group) for (_, task), group in by_task.items())
    return [Cell(label, level, task, choice, group) for task, choice, group in choices if choice]


def curve(
    runs: List[Run], method: Method, flag: Optional[str] = None, split: str = VALIDATION
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


def majority_cells(cells: Iterable[Cell], split: str) -> List[Cell]:
    """Returns a `Cell` of always predicting the most frequent label, for each task of cells.

    Tasks whose runs are too old to have this score have none.
    """
    runs = [run for cell in cells for run in cell.runs]
    return cells_of(MAJORITY, runs, split, _majority)


def _majority(runs: List[Run], split: str) -> Optional[Selected]:
    for run in runs:
        value = run.points(split, task_kinds.MAJORITY + run.score)
        if value is not None:
            return Selected(f"{split}_{run.score}", value)
    return None


def tasks_of(cells: Iterable[Cell]) -> List[str]:
    """Returns the cells' tasks, in the paper's order."""
    return sorted({cell.task for cell in cells}, key=published.sort_key)


def count_seeds(cells: Iterable[Cell]) -> str:
    """Returns the numbers of seeds of cells: "3 seeds", "1 to 3 seeds"."""
    counts = sorted({cell.choice.seeds for cell in cells}) or [0]
    prefix = f"{counts[0]} to " if len(counts) > 1 else ""
    return prefix + pluralize(counts[-1], "seed")
