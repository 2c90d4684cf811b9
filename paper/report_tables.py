"""Cells of selected scores, and tables of cells, for `reports`."""

import collections
from typing import (
    AbstractSet,
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from adapter_bert.paper import published
from adapter_bert.shell import printing
from adapter_bert.sweeps import selection
from adapter_bert.sweeps.selection import FULL, VALIDATION, Record

GAP = "–"
MAJORITY = "majority class"  # The label of cells of `selection.majority`.
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class Cell(NamedTuple):
    """A method's selected score on a task, at a level: a size, a learning rate, ... or None."""

    method: str
    level: Any
    task: str
    choice: selection.Selected

    @property
    def text(self) -> str:
        """The score's text in tables."""
        return format_score(self.choice.value, self.choice.sem)

    @property
    def note(self) -> str:
        """Returns the note on runs that predict only one label; "" without them."""
        runs = pluralize(len(self.choice.values), "run")
        count = self.choice.one_label
        return f"predicts only one label in {count} of {runs}" if count else ""

    def to_row(self) -> Dict[str, Any]:
        """Returns all of the cell's values by name."""
        choice = self.choice
        setting = " ".join(f"{name}={value}" for name, value in choice.setting.items())
        return {
            "method": self.method,
            "level": self.level,
            "task": self.task,
            "score": choice.score,
            "points": choice.value,
            "sem": choice.sem,
            "seeds": choice.seeds,
            "trained_parameters": choice.trained,
            "setting": setting,
        }


class Table(NamedTuple):
    """A heading, the columns' titles (the first is usually empty), rows of texts, and notes."""

    heading: str
    columns: List[str]
    rows: List[List[str]]
    notes: Sequence[str] = ()


def cells_of(
    label: str,
    records: List[Record],
    split: str,
    choose: Callable[[List[Record], str], Optional[selection.Selected]] = selection.choose_mean,
    level: Any = None,
) -> List[Cell]:
    """Returns the `Cell` of each task that has a score.

    Args:
      label, level: the cells' method and level.
      records: the records of this method and level.
      split: the split to score.
      choose: `selection.choose_mean` or `selection.choose_best`.
    """
    by_task = selection.group_by(records, lambda record: published.sort_key(record["task"]))
    choices = {task: choose(task_records, split) for (_, task), task_records in by_task.items()}
    return [Cell(label, level, task, choice) for task, choice in choices.items() if choice]


def majority_cells(records: List[Record], cells: Iterable[Cell], split: str) -> List[Cell]:
    """Returns a `Cell` of the most frequent label for each task of cells whose records have one."""
    tasks = set(tasks_of(cells))
    records = [record for record in records if record["task"] in tasks]
    return cells_of(MAJORITY, records, split, selection.majority)


def cells_along(
    label: str, records: List[Record], flag: Optional[str], split: str = VALIDATION
) -> List[Cell]:
    """Returns the `Cell`s of records, one for each task and value of a flag."""
    by_level = selection.group_by(records, lambda record: selection.flag_of(record, flag))
    return [
        cell
        for level, level_records in by_level.items()
        for cell in cells_of(label, level_records, split, level=level)
    ]


def tasks_of(cells: Iterable[Cell]) -> List[str]:
    """Returns the cells' tasks, in the paper's order."""
    return sorted({cell.task for cell in cells}, key=published.sort_key)


def count_seeds(cells: Iterable[Cell]) -> str:
    """Returns the numbers of seeds of cells: "3 seeds", "1 to 3 seeds"."""
    counts = sorted({cell.choice.seeds for cell in cells}) or [0]
    prefix = f"{counts[0]} to " if len(counts) > 1 else ""
    return prefix + pluralize(counts[-1], "seed")


def pluralize(count: int, noun: str) -> str:
    """Returns a count with its noun: "1 seed", "2 seeds"."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def methods_table(heading: str, cells: List[Cell], num_tasks: Optional[int] = None) -> Table:
    """Returns a table: a row for each method, a column for each task, and a mean over tasks.

    The mean is over `find_complete_tasks`.

    Args:
      num_tasks: N; adds the columns total parameters, as a multiple of BERT's for N tasks,
        and trained parameters per task. Full fine-tuning needs N times BERT; a method that trains a
        share p of BERT for each task needs 1 + N p.
    """
    tasks, by_method = tasks_of(cells), collections.defaultdict(dict)
    for cell in cells:
        by_method[cell.method][cell.task] = cell
    averaged = find_complete_tasks(
        [by_task.keys() for method, by_task in by_method.items() if method != MAJORITY]
    )
    marks = _marks(cells)
    suffix = "" if averaged == set(tasks) else f" of {titles(averaged)}"
    columns = ["", *map(published.title, tasks), "mean" + suffix]
    columns += ["total parameters", "trained per task"] if num_tasks else []
    rows = []
    for method, by_task in by_method.items():
        is_averaged = averaged <= by_task.keys()
        mean = _format_mean([by_task[task].choice.value for task in averaged if is_averaged])
        costs = _costs(by_task, num_tasks) if num_tasks else []
        rows.append([method, *_texts(by_task, tasks, marks), mean, *costs])
    return Table(heading, columns, rows, _notes(marks))


def titles(tasks: Iterable[str]) -> str:
    """Returns the tasks' display names, in the paper's order: "CoLA, MRPC"."""
    return ", ".join(map(published.title, sorted(tasks, key=published.sort_key)))


def find_complete_tasks(sets_of_tasks: List[AbstractSet[str]]) -> AbstractSet[str]:
    """Returns the tasks that give the largest table without gaps.

    Means over different sets of tasks are not comparable.
    """
    candidates = dict.fromkeys(map(frozenset, sets_of_tasks))
    for tasks in list(candidates):
        candidates.update(dict.fromkeys([tasks & other for other in candidates]))

    def size(tasks: AbstractSet[str]) -> Tuple[int, int]:
        return len(tasks) * sum(tasks <= other for other in sets_of_tasks), len(tasks)

    return max(candidates, key=size, default=frozenset())


def mean_share(choices: List[selection.Selected]) -> Optional[float]:
    """Returns the mean share of BERT's parameters that train; None if one is unknown."""
    shares = [choice.share for choice in choices if choice.share is not None]
    return float(np.mean(shares)) if shares and len(shares) == len(choices) else None


def _costs(cells: Dict[str, Cell], num_tasks: int) -> List[str]:
    """Returns [total parameters, trained per task] of a method's cells by task."""
    share = mean_share([cell.choice for cell in cells.values()])
    if share is None:
        return [GAP, GAP]
    if next(iter(cells.values())).method == FULL.label:  # Heads are not counted.
        return [f"{num_tasks:.2f}×", "100%"]
    return [f"{1 + num_tasks * share:.2f}×", f"{share:.2%}"]


def _texts(by_task: Dict[str, Cell], tasks: List[str], marks: Dict[str, str]) -> List[str]:
    """Returns the text and mark of each task's cell."""
    cells = [by_task.get(task) for task in tasks]
    return [GAP if cell is None else cell.text + marks[cell.note] for cell in cells]


def _marks(cells: Iterable[Cell]) -> Dict[str, str]:
    """Returns note → its mark, ¹ for the first; that of "" is empty."""
    notes = [note for note in dict.fromkeys(cell.note for cell in cells) if note]
    marks = {note: str(i).translate(_SUPERSCRIPTS) for i, note in enumerate(notes, start=1)}
    return {"": "", **marks}


def _notes(marks: Dict[str, str]) -> List[str]:
    return [f"{mark} {note}" for note, mark in marks.items() if note]


def by_level(cells: Iterable[Cell]) -> Dict[Tuple[str, Any], Dict[str, Cell]]:
    """Returns the cells of each method and level, by task."""
    result = collections.defaultdict(dict)
    for cell in cells:
        result[cell.method, cell.level][cell.task] = cell
    return result


def levels_table(heading: str, cells: List[Cell]) -> Table:
    """Returns a table: a row for each method and level, a column for each task and parameters."""
    tasks, marks = tasks_of(cells), _marks(cells)
    rows = []
    for (method, level), by_task in by_level(cells).items():
        label = method if level is None else f"{method}, {level:g}"
        trained = _format_mean_trained(by_task.values())
        rows.append([label, *_texts(by_task, tasks, marks), trained])
    columns = ["", *map(published.title, tasks), "trained parameters"]
    return Table(heading, columns, rows, _notes(marks))


def variants_table(cells: List[Cell], differences: List[Optional[float]]) -> Table:
    """Returns a table: a row for each method and level, a score and a difference for each task.

    Args:
      differences: each cell's difference from the default, in points, or None.
    """
    tasks, marks = tasks_of(cells), _marks(cells)
    by_key = {(c.method, c.level, c.task): d for c, d in zip(cells, differences)}
    rows = []
    for (method, level), by_task in by_level(cells).items():
        row = [method, str(level)]
        for task, text in zip(tasks, _texts(by_task, tasks, marks)):
            difference = by_key.get((method, level, task))
            row += [text, GAP if difference is None else f"{difference:+.1f}"]
        rows.append([*row, _format_mean_trained(by_task.values())])
    task_columns = [text for task in tasks for text in (published.title(task), "difference")]
    columns = ["adapter", "size", *task_columns, "trained parameters"]
    return Table("", columns, rows, _notes(marks))


def transpose(table: Table) -> Table:
    """Returns a table with rows and columns swapped."""
    first, *rows = zip(table.columns, *table.rows)
    return table._replace(columns=list(first), rows=[list(row) for row in rows])


def paper_table_1(tasks: List[str]) -> List[Table]:
    """Returns the paper's Table 1 for these tasks: a list of one, or empty."""
    tasks = [task for task in tasks if task in published.TABLE_1[0].scores]
    columns = ["", *tasks, "mean", "total parameters", "trained per task"]
    rows = []
    for row in published.TABLE_1:
        values = [row.scores[task] for task in tasks]
        texts = [f"{value:.1f}" for value in values]
        rows.append([row.label, *texts, _format_mean(values), row.total, row.trained])
    heading = "The paper's, with BERT-Large: test scores; parameters with all nine tasks"
    return [Table(heading, columns, rows)] if tasks else []


def paper_table_2(tasks: List[str]) -> List[Table]:
    """Returns the paper's Table 2 for these tasks: a list of one, or empty."""
    paper_rows = [published.TABLE_2[task] for task in tasks if task in published.TABLE_2]
    rows = [[row.title, *(format_score(*pair) for pair in row[1:])] for row in paper_rows]
    pairs = zip(*(row[1:] for row in paper_rows))
    rows.append(["mean", *(_format_mean([value for value, _ in column]) for column in pairs)])
    for label, costs in published.COSTS_2.items():
        rows.append([label, *(cost or GAP for cost in costs)])
    heading = "The paper's, with BERT-Base; parameters with all 17 tasks"
    return [Table(heading, ["", *published.COLUMNS_2], rows)] if paper_rows else []


def _format_mean_trained(cells: Iterable[Cell]) -> str:
    """Returns the mean number of trained parameters; tasks differ by their heads."""
    trained = [cell.choice.trained for cell in cells if cell.choice.trained]
    return f"{np.mean(trained):,.0f}" if trained else GAP


def _format_mean(values: List[float]) -> str:
    return f"{np.mean(values):.1f}" if values else GAP


def format_score(value: float, sem: Optional[float]) -> str:
    """Returns a score with its standard error, "80.0 ± 0.4"."""
    return f"{value:.1f}{format_error(sem)}"


def format_error(sem: Optional[float]) -> str:
    """Returns a standard error as it follows a number, " ± 0.4"; "" for None."""
    return "" if sem is None else f" ± {sem:.1f}"


def to_markdown(table: Table) -> str:
    """Returns a table as Markdown."""
    header, *rows = [list(map(printing.markdown, row)) for row in [table.columns, *table.rows]]
    rows = [header, ["---"] * len(table.columns), *rows]
    lines = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    lines += "".join(f"\n\n{printing.markdown(note)}" for note in table.notes)
    return f"## {printing.markdown(table.heading)}\n\n{lines}" if table.heading else lines


def to_tsv(numbers: List[Dict[str, Any]]) -> str:
    """Returns dicts with equal keys as the text of a .tsv; None is an empty field."""
    columns = list(numbers[0])
    rows = [columns, *([_format_field(row[name]) for name in columns] for row in numbers)]
    return "".join("\t".join(row) + "\n" for row in rows)


def _format_field(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else printing.one_line(str(value))
