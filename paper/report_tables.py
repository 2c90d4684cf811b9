"""Tables of cells, for `reports`, and their texts."""

from typing import (
    AbstractSet,
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from adapter_bert.paper import published
from adapter_bert.paper.cells import MAJORITY, Cell, tasks_of
from adapter_bert.shell import printing
from adapter_bert.sweeps.selection import FULL

GAP = "–"
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class Table(NamedTuple):
    """A heading, the columns' titles (the first is usually empty), rows of texts, and notes."""

    heading: str
    columns: List[str]
    rows: List[List[str]]
    notes: Sequence[str] = ()


def table_of(
    heading: str,
    cells: Sequence[Cell],
    columns: Mapping[str, Callable[[Dict[str, Cell]], str]],
    suffix: Callable[[Cell], str] = lambda cell: "",
) -> Table:
    """Returns a table: a row for each method and level, a column for each task, then `columns`.

    Args:
      heading: the table's heading, or "".
      cells: those of the table.
      columns: title → function of a row's cells by task.
      suffix: the text after a cell's score.
    """
    tasks = tasks_of(cells)
    notes = [note for note in dict.fromkeys(cell.note for cell in cells) if note]
    marks = {note: str(i).translate(_SUPERSCRIPTS) for i, note in enumerate(notes, start=1)}

    def text(cell: Optional[Cell]) -> str:
        if cell is None:
            return GAP
        score = format_score(cell.choice.value, cell.choice.sem)
        return score + suffix(cell) + marks.get(cell.note, "")

    rows = []
    for (method, level), by_task in by_level(cells).items():
        label = method if level is None else f"{method}, {level:g}"
        texts = [text(by_task.get(task)) for task in tasks]
        rows.append([label, *texts, *(column(by_task) for column in columns.values())])
    titles = map(published.title, tasks)
    return Table(
        heading, ["", *titles, *columns], rows, [f"{marks[note]} {note}" for note in notes]
    )


def methods_table(heading: str, cells: List[Cell], num_tasks: Optional[int] = None) -> Table:
    """Returns a table of methods with their means over `find_complete_tasks`.

    Args:
      heading: the table's heading, or "".
      cells: those of the table.
      num_tasks: N; adds the columns total parameters, as a multiple of BERT's for N tasks,
        and trained parameters per task. Full fine-tuning needs N times BERT; a method that trains a
        share p of BERT for each task needs 1 + N p.
    """
    rows = by_level(cells)
    averaged = find_complete_tasks([row.keys() for key, row in rows.items() if key[0] != MAJORITY])
    tasks = tasks_of(cells)
    titles = ", ".join(published.title(task) for task in tasks if task in averaged)
    suffix = "" if averaged == set(tasks) else f" of {titles}"

    def mean(by_task: Dict[str, Cell]) -> str:
        complete = averaged and averaged <= by_task.keys()
        return format_mean([by_task[task].choice.value for task in averaged]) if complete else GAP

    def share(by_task: Dict[str, Cell]) -> Optional[float]:
        if next(iter(by_task.values())).method == FULL.label:  # Heads are not counted.
            return 1.0
        shares = [cell.choice.share for cell in by_task.values()]
        return None if None in shares else float(np.mean(shares))  # type: ignore[arg-type]

    def total(by_task: Dict[str, Cell]) -> str:
        part = share(by_task)
        rest = 1 if part != 1 else 0
        return GAP if part is None or not num_tasks else f"{rest + num_tasks * part:.2f}×"

    def trained(by_task: Dict[str, Cell]) -> str:
        part = share(by_task)
        return GAP if part is None else "100%" if part == 1 else f"{part:.2%}"

    costs = {"total parameters": total, "trained per task": trained} if num_tasks else {}
    return table_of(heading, cells, {"mean" + suffix: mean, **costs})


def levels_table(
    heading: str, cells: List[Cell], suffix: Callable[[Cell], str] = lambda cell: ""
) -> Table:
    """Returns a table of methods and levels, with the mean of their trained parameters."""

    def trained(by_task: Dict[str, Cell]) -> str:
        # Tasks differ by their heads.
        numbers = [cell.choice.trained for cell in by_task.values() if cell.choice.trained]
        return f"{np.mean(numbers):,.0f}" if numbers else GAP

    return table_of(heading, cells, {"trained parameters": trained}, suffix)


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


def by_level(cells: Iterable[Cell]) -> Dict[Tuple[str, Any], Dict[str, Cell]]:
    """Returns the cells of each method and level, by task."""
    result: Dict[Tuple[str, Any], Dict[str, Cell]] = {}
    for cell in cells:
        result.setdefault((cell.method, cell.level), {})[cell.task] = cell
    return result


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
        rows.append([row.label, *texts, format_mean(values), row.total, row.trained])
    heading = "The paper's, with BERT-Large: test scores; parameters with all nine tasks"
    return [Table(heading, columns, rows)] if tasks else []


def paper_table_2(tasks: List[str]) -> List[Table]:
    """Returns the paper's Table 2 for these tasks: a list of one, or empty."""
    paper_rows = [published.TABLE_2[task] for task in tasks if task in published.TABLE_2]
    rows = [[row.title, *(format_score(*pair) for pair in row[1:])] for row in paper_rows]
    pairs = zip(*(row[1:] for row in paper_rows))
    rows.append(["mean", *(format_mean([value for value, _ in column]) for column in pairs)])
    for label, costs in published.COSTS_2.items():
        rows.append([label, *(cost or GAP for cost in costs)])
    heading = "The paper's, with BERT-Base; parameters with all 17 tasks"
    return [Table(heading, ["", *published.COLUMNS_2], rows)] if paper_rows else []


def format_mean(values: List[float]) -> str:
    """Returns the mean of scores, "80.0", or a gap without any."""
    return f"{np.mean(values):.1f}" if values else GAP


def format_score(value: float, sem: Optional[float]) -> str:
    """Returns a score with its standard error, "80.0 ± 0.4"."""
    return f"{value:.1f}" + ("" if sem is None else f" ± {sem:.1f}")


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
