"""Selects the records that tables, figures and claims are about, and a `Cell` for each task.

Reports are about the paper's adapter, with initial weights of any scale; `variants` has the others.
"""

import collections
from typing import Any, Callable, Collection, Dict, Iterable, List, NamedTuple, Optional, Tuple

from adapter_bert.model import task_kinds
from adapter_bert.paper import published
from adapter_bert.sweeps import selection
from adapter_bert.sweeps.selection import (
    ADAPTERS,
    FULL,
    INIT_SCALE,
    NO_BERT,
    TEST,
    TOP_LAYERS,
    VALIDATION,
    Method,
    Record,
)

MAJORITY = "majority class"  # The label of cells of the most frequent label.
DEFAULT = "default"  # The label of the default adapter.
POOLER = "train_pooler"
VARIABLE = Method("variable", "variable fine-tuning", "num_top_layers")  # Table 2.


class Cell(NamedTuple):
    """A method's selected score on a task, at a level: a size, a learning rate, ... or None.

    Attributes:
      method: its label.
      records: those from which the setting was selected.
    """

    method: str
    level: Any
    task: str
    choice: selection.Selected
    records: List[Record] = []

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


def glue(records: List[Record]) -> List[Record]:
    """Returns the records of GLUE's tasks; MNLI's become two, one for each dev set.

    Samples of a task's rows only count if full fine-tuning was trained on them too.
    """
    result = []
    compared = {r["task"] for r in selection.filter_by_method(records, FULL)}
    for record in records:
        task = record["task"]
        if record["script"] != "run_classifier.py":
            continue
        if task == "MNLI":
            result.append({**record, "task": "MNLI-m"})
            names = ("accuracy", f"{task_kinds.MAJORITY}accuracy", task_kinds.PREDICTED_LABELS)
            mismatched = {f"eval_{n}": record["scores"].get(f"eval_mismatched_{n}") for n in names}
            scores = {**record["scores"], **mismatched}
            result.append({**record, "task": "MNLI-mm", "scores": scores})
        elif task in published.GLUE or (published.is_glue(task) and task in compared):
            result.append(record)
    return result


def further(records: List[Record]) -> List[Record]:
    """Returns the records of classification outside GLUE that have test scores."""
    return [
        record
        for record in records
        if record["script"] in selection.TEXT_SCRIPTS
        and not published.is_glue(record["task"])
        and selection.points(record, TEST) is not None
    ]


def by_accuracy(records: List[Record]) -> List[Record]:
    """Returns the records with accuracy as their score, if a classifier's have it.

    The paper's figures 3 and 4 show it for GLUE too. It does not say what they show for STS-B,
    which keeps its score.
    """
    return [
        {**record, "score": selection.ACCURACY} if selection.has_accuracy(record) else record
        for record in records
    ]


def of_method(
    records: List[Record], method: Method, sizes: Collection[int] = (), pooler: bool = False
) -> List[Record]:
    """Returns the records of a method as in the paper, with adapters of any initial scale.

    Args:
      records: those of any methods.
      method: the method.
      sizes: values of --adapter_size; empty for all.
      pooler: whether adapters are trained together with the pooler, unlike in the paper.
    """
    if method is VARIABLE:  # Of all layers, it is full fine-tuning.
        top = of_method(records, TOP_LAYERS)
        tasks = {record["task"] for record in top}
        full = of_method(records, FULL)
        return top + [r for r in full if r["task"] in tasks and TOP_LAYERS.level_of(r) is None]
    design = {INIT_SCALE, POOLER} if pooler else {INIT_SCALE}
    return [
        record
        for record in selection.filter_by_method(records, method)
        if set(selection.design(record)) <= design
        and selection.flag_of(record, POOLER) == pooler
        and (not sizes or method.level_of(record) in sizes)
    ]


def at_equal_epochs(records: List[Record]) -> List[Record]:
    """Returns the records with a number of epochs that all methods of their task share.

    The baseline without BERT has none. Tasks whose methods share none are left out.
    """

    def epochs(record: Record) -> Any:
        return selection.schedule_of(record).get("num_train_epochs")

    result = selection.filter_by_method(records, NO_BERT)
    trained = [record for record in records if epochs(record) is not None]
    for group in selection.group_by(trained, lambda record: record["task"]).values():
        by_method = selection.group_by(group, lambda r: selection.flag_of(r, "tuning"))
        shared = set.intersection(*(set(map(epochs, rs)) for rs in by_method.values()))
        result += [record for record in group if epochs(record) in shared]
    return result


def comparable(records: List[Record], flag: Optional[str]) -> List[Record]:
    """Returns the records whose other settings were trained with most values of a flag.

    A setting needs more than half as many values as the setting with the most. Otherwise, values
    that a further study tried with more settings would look better. Tasks are treated separately.
    """
    result = []
    for task_records in selection.group_by(records, lambda record: record["task"]).values():
        curves = selection.group_by(task_records, lambda record: _setting_without(record, {flag}))
        counts = {
            key: len({selection.flag_of(record, flag) for record in curve})
            for key, curve in curves.items()
        }
        for key, curve in curves.items():
            result += curve if 2 * counts[key] > max(counts.values()) else []
    return result


def _setting_without(record: Record, flags: Collection[Optional[str]]) -> str:
    """Returns a canonical text of a record's setting without some flags."""
    return selection.setting_key(record, frozenset(flags))


def variants(records: List[Record]) -> List[Tuple[Cell, Optional[Cell]]]:
    """Returns the variants of the adapter (section 3.6), each with the default adapter's cell.

    A cell's method is the difference from the default adapter: "depth 2". Its level is the size. A
    variant and its default are at their best among the settings that both were trained with, on the
    same task: the learning rate, the number of epochs and the scale of initial weights. A variant
    without such a setting has None. Defaults with such a setting are in the list too.
    """
    adapters = [
        record
        for record in selection.filter_by_method(records, ADAPTERS)
        if not selection.flag_of(record, POOLER)
    ]
    default = of_method(records, ADAPTERS)
    others = [record for record in adapters if _design_label(record)]

    def variant_of(record: Record) -> Tuple[int, str, Tuple[int, str]]:
        task = published.sort_key(record["task"])
        return ADAPTERS.level_of(record), _design_label(record), task

    result: List[Tuple[Cell, Optional[Cell]]] = []
    for (size, label, _), group in selection.group_by(adapters, variant_of).items():
        matched = _match(group, default if label else others)
        chosen = matched or (group if label else [])
        first, *_ = *cells_of(DEFAULT, _match(default, matched), VALIDATION, level=size), None
        cells = cells_of(label or DEFAULT, chosen, VALIDATION, level=size)
        result += [(cell, first) for cell in cells]
    return result


def _design_label(record: Record) -> str:
    """Returns how an adapter differs from the default one, "" if only in its initial weights."""
    design = {name: v for name, v in selection.design(record).items() if name != INIT_SCALE}
    return ", ".join(f"{name.replace('adapter_', '')} {value}" for name, value in design.items())


def _match(records: List[Record], others: List[Record]) -> List[Record]:
    """Returns the records whose task and setting, except the design, occur among the others."""

    def plain(record: Record) -> Tuple[str, str]:
        design = set(selection.design(record)) - {INIT_SCALE}
        return record["task"], _setting_without(record, design)

    settings = set(map(plain, others))
    return [record for record in records if plain(record) in settings]


def cells_of(
    label: str,
    records: List[Record],
    split: str,
    choose: Callable[[List[Record], str], Optional[selection.Selected]] = selection.choose_mean,
    level: Any = None,
) -> List[Cell]:
    """Returns the `Cell` of each task that has a score, in the paper's order.

    Args:
      label, level: the cells' method and level.
      records: the records of this method and level.
      split: the split to score.
      choose: `selection.choose_mean` or `selection.choose_best`.
    """
    by_task = selection.group_by(records, lambda record: published.sort_key(record["task"]))
    choices = ((task, choose(group, split), group) for (_, task), group in by_task.items())
    return [Cell(label, level, task, choice, group) for task, choice, group in choices if choice]


def curve(
    records: List[Record], method: Method, flag: Optional[str] = None, split: str = VALIDATION
) -> List[Cell]:
    """Returns a method's `Cell`s, one for each task and level, or each value of another flag.

    Only given values of another flag count, without 0, as axes are logarithmic; a task needs three.
    """
    name = flag or method.level
    chosen = [r for r in of_method(records, method) if not flag or selection.flag_of(r, flag)]
    by_level = selection.group_by(comparable(chosen, name), lambda r: selection.flag_of(r, name))
    cells = [
        cell
        for level, group in by_level.items()
        for cell in cells_of(method.label, group, split, level=level)
    ]
    counts = collections.Counter(cell.task for cell in cells)
    return [cell for cell in cells if not flag or counts[cell.task] >= 3]


def majority_cells(cells: Iterable[Cell], split: str) -> List[Cell]:
    """Returns a `Cell` of always predicting the most frequent label, for each task of cells.

    Tasks whose records are too old to have this score have none.
    """
    records = [record for cell in cells for record in cell.records]
    return cells_of(MAJORITY, records, split, _majority)


def _majority(records: List[Record], split: str) -> Optional[selection.Selected]:
    for record in records:
        name = selection.score_name(record, split)
        majority = f"{split}_{task_kinds.MAJORITY}{name[len(split) + 1 :]}"
        value = selection.to_points(record, majority)
        if value is not None:
            return selection.Selected(name, value)
    return None


def tasks_of(cells: Iterable[Cell]) -> List[str]:
    """Returns the cells' tasks, in the paper's order."""
    return sorted({cell.task for cell in cells}, key=published.sort_key)


def count_seeds(cells: Iterable[Cell]) -> str:
    """Returns the numbers of seeds of cells: "3 seeds", "1 to 3 seeds"."""
    counts = sorted({cell.choice.seeds for cell in cells}) or [0]
    prefix = f"{counts[0]} to " if len(counts) > 1 else ""
    return prefix + pluralize(counts[-1], "seed")
