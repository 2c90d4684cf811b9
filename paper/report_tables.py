"""Reports, the tables of cells in them, and their files."""

from typing import AbstractSet, Any, Dict, Iterable, List, Mapping, NamedTuple, Tuple, Union

import numpy as np

from adapter_bert.paper import figures, published
from adapter_bert.paper.cells import MAJORITY, tasks_of
from adapter_bert.shell import printing
from adapter_bert.sweeps.selection import FULL, Cell

GAP = "–"
_SCORES = {
    "accuracy": "accuracy (%)",
    "f1": "F1 (%)",
    "matthews": "Matthews corr. (× 100)",
    "pearson": "Pearson correlation (× 100)",
    "spearman": "Spearman correlation (× 100)",
}
Costs = Mapping[str, Tuple[str, str]]  # Method → total parameters, and those trained per task.


class Table(NamedTuple):
    """A heading, the columns' titles (the first is usually empty), and rows of texts."""

    heading: str
    columns: List[str]
    rows: List[List[str]]


class Report(NamedTuple):
    """A report's content.

    Attributes:
      title: one line.
      caption: sentences on how the numbers were computed.
      tables: those without rows are left out.
      numbers: the numbers, dicts with equal keys; empty if the records have none.
      panels: the panels for `figures.draw`; empty for a table.
    """

    title: str
    caption: str
    tables: List[Table]
    numbers: List[Dict[str, Any]]
    panels: figures.Panels = ()


def table_of(
    heading: str,
    cells: List[Cell],
    columns: Mapping[str, Mapping[Any, str]],
    suffixes: Mapping[Any, str],
) -> Table:
    """Returns a table: a row for each method and level, a column for each task, then `columns`.

    Args:
      heading: the table's heading, or "".
      cells: those of the table.
      columns: title → (method, level) → text.
      suffixes: (method, level, task) → text after the score.
    """
    tasks, rows = tasks_of(cells), []
    for key, by_task in by_level(cells).items():
        method, level = key
        scores = {}
        for task, cell in by_task.items():
            error = "" if cell.sem is None else f" ± {cell.sem:.1f}"
            scores[task] = f"{cell.points:.1f}{error}{suffixes.get((*key, task), '')}"
        label = method if level is None else f"{method}, {level:g}"
        others = [column.get(key, GAP) for column in columns.values()]
        rows.append([label, *(scores.get(task, GAP) for task in tasks), *others])
    return Table(heading, ["", *map(published.title, tasks), *columns], rows)


def methods_table(heading: str, cells: List[Cell], costs: Costs) -> Table:
    """Returns a table of methods with their means over `find_complete_tasks`, and their costs."""
    levels = by_level(cells)
    averaged = find_complete_tasks([row for key, row in levels.items() if key[0] != MAJORITY])
    means = {
        key: f"{np.mean([row[task].points for task in averaged]):.1f}"
        for key, row in levels.items()
        if averaged and averaged <= row.keys()
    }
    tasks = tasks_of(cells)
    titles = ", ".join(published.title(task) for task in tasks if task in averaged)
    mean = "mean" if averaged == set(tasks) else f"mean of {titles}"
    totals, shares = ({(name, None): cost[i] for name, cost in costs.items()} for i in (0, 1))
    columns = {mean: means, "total parameters": totals, "trained per task": shares}
    return table_of(heading, cells, columns, {})


def costs_of(cells: List[Cell]) -> Costs:
    """Returns methods' costs for N tasks, those of the cells.

    Full fine-tuning needs N times BERT; a method that trains a share p of BERT for each task needs
    1 + N p. Methods whose share is unknown are left out.
    """
    result, num_tasks = {}, len(tasks_of(cells))
    for (method, _), by_task in by_level(cells).items():
        # Heads do not count.
        shares = [1.0 if method == FULL.label else cell.share for cell in by_task.values()]
        if None not in shares:
            share = float(np.mean(shares))  # type: ignore[arg-type]
            total = num_tasks * share + (share < 1)
            result[method] = f"{total:.2f}×", "100%" if share == 1 else f"{share:.2%}"
    return result


def levels_table(heading: str, cells: List[Cell], suffixes: Mapping[Any, str] = {}) -> Table:
    """Returns a table of methods and levels, with the mean of their trained parameters."""
    trained = {
        # Tasks differ by their heads.
        key: f"{np.mean([cell.trained_parameters for cell in row.values()]):,.0f}"
        for key, row in by_level(cell for cell in cells if cell.trained_parameters).items()
    }
    return table_of(heading, cells, {"trained parameters": trained}, suffixes)


def find_complete_tasks(rows: List[Dict[str, Cell]]) -> AbstractSet[str]:
    """Returns the tasks that give the largest table without gaps.

    Means over different sets of tasks are not comparable.
    """
    sets_of_tasks = [frozenset(row) for row in rows]
    candidates = dict.fromkeys(sets_of_tasks)
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


def paper_table(heading: str, tasks: List[str], costs: Costs) -> Table:
    """Returns the paper's table of the methods in `costs`, with those of the tasks that it has."""
    cells = [
        Cell(label, None, task, "", *published.scores(label)[task])
        for label in costs
        for task in tasks
        if task in published.scores(label)
    ]
    return methods_table(heading, cells, costs)


def numbers_of(cells: List[Cell]) -> List[Dict[str, Any]]:
    """Returns the cells' fields up to the setting."""
    fields = Cell._fields[: Cell._fields.index("setting")]
    return [
        {
            **dict(zip(fields, cell)),
            "setting": " ".join(f"{name}={value}" for name, value in cell.setting.items()),
        }
        for cell in cells
    ]


def count_seeds(cells: List[Cell]) -> str:
    """Returns the numbers of seeds of cells: "3 seeds", "1 to 3 seeds"."""
    counts = sorted({cell.seeds for cell in cells}) or [0]
    low = f"{counts[0]} to " if len(counts) > 1 else ""
    return f"{low}{counts[-1]} seed{'' if counts[-1] == 1 else 's'}"


def axis_label(score: str) -> str:
    """Returns the label of a dev score, such as "eval_accuracy"."""
    name = score.partition("_")[2]
    return "Dev " + _SCORES.get(name, f"{name.replace('_', ' ')} (× 100)")


def render(name: str, report: Report) -> Dict[str, Union[str, bytes]]:
    """Returns the content of a report's files by their names, which begin with `name`."""
    images = figures.draw(report.panels) if report.panels else {}
    title = printing.markdown(report.title)
    image = [f"![{title}]({name}.png)"] if images else []
    parts = [f"# {title}", *image, "\n".join(map(printing.markdown, report.caption.split("\n")))]
    parts += [_markdown(table) for table in report.tables if table.rows]
    # Dicts with equal keys.
    rows = [list(report.numbers[0]), *(map(_field, row.values()) for row in report.numbers)]
    return {
        name + ".md": "\n\n".join(parts) + "\n",
        name + ".tsv": "".join("\t".join(row) + "\n" for row in rows),
        **{f"{name}.{ending}": content for ending, content in images.items()},
    }


def _markdown(table: Table) -> str:
    header, *rows = [list(map(printing.markdown, row)) for row in [table.columns, *table.rows]]
    rows = [header, ["---"] * len(table.columns), *rows]
    lines = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return f"## {printing.markdown(table.heading)}\n\n{lines}" if table.heading else lines


def _field(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else printing.one_line(str(value))
