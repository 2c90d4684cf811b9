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
Columns = Mapping[str, Mapping[str, str]]  # Title → label of a row → text.


class Table(NamedTuple):
    """A heading, the columns' titles (the first is usually empty), and rows of texts."""

    heading: str
    columns: List[str]
    rows: List[List[str]]


class Report(NamedTuple):
    """A report's title, caption, tables, numbers for the .tsv, and panels for `figures.draw`.

    `numbers` are dicts with equal keys, none if the records do not allow the report.
    """

    title: str
    caption: str
    tables: List[Table]
    numbers: List[Dict[str, Any]]
    panels: figures.Panels = ()


def table_of(
    heading: str, cells: List[Cell], columns: Columns, suffixes: Mapping[Any, str] = {}
) -> Table:
    """Returns a table: a row for each method and level, a column for each task, then `columns`.

    `suffixes` are texts after scores, by method, level and task. Scores of runs that predict only
    one label are marked.
    """
    tasks, rows = tasks_of(cells), []
    for label, row in rows_of(cells).items():
        scores = {}
        for task, cell in row.items():
            error = "" if cell.sem is None else f" ± {cell.sem:.1f}"
            note = f" (runs with one label: {cell.one_label})" if cell.one_label else ""
            scores[task] = f"{cell.points:.1f}{error}{suffixes.get(cell[:3], '')}{note}"
        others = [column.get(label, GAP) for column in columns.values()]
        rows.append([label, *(scores.get(task, GAP) for task in tasks), *others])
    return Table(heading, ["", *map(published.title, tasks), *columns], rows)


def rows_of(cells: Iterable[Cell]) -> Dict[str, Dict[str, Cell]]:
    """Returns the cells of each method and level, by task; both are in the label, "adapters, 8"."""
    rows: Dict[str, Dict[str, Cell]] = {}
    for cell in cells:
        label = cell.method if cell.level is None else f"{cell.method}, {cell.level:g}"
        rows.setdefault(label, {})[cell.task] = cell
    return rows


def trained_parameters(cells: List[Cell]) -> Columns:
    """Returns the column of the mean of trained parameters; tasks differ by their heads."""
    rows = rows_of(cell for cell in cells if cell.trained_parameters)
    numbers = {
        label: np.mean([cell.trained_parameters for cell in row.values()])
        for label, row in rows.items()
    }
    return {"trained parameters": {label: f"{mean:,.0f}" for label, mean in numbers.items()}}


def means(cells: List[Cell]) -> Columns:
    """Returns the column of means over `find_complete_tasks`."""
    rows, tasks = rows_of(cells), tasks_of(cells)
    averaged = find_complete_tasks([row for label, row in rows.items() if label != MAJORITY])
    titles = ", ".join(published.title(task) for task in tasks if task in averaged)
    column = {
        label: f"{np.mean([row[task].points for task in averaged]):.1f}"
        for label, row in rows.items()
        if averaged and averaged <= row.keys()
    }
    return {"mean" if averaged == set(tasks) else f"mean of {titles}": column}


def costs(cells: List[Cell]) -> Columns:
    """Returns the columns of total parameters, as a multiple of BERT's, and those trained per task.

    For N tasks, those of the cells, full fine-tuning needs N times BERT; a method that trains a
    share p of BERT for each task needs 1 + N p.
    """
    totals, trained, num_tasks = {}, {}, len(tasks_of(cells))
    for label, row in rows_of(cells).items():
        # Heads do not count.
        shares = [1.0 if label == FULL.label else cell.share for cell in row.values()]
        if None not in shares:
            share = float(np.mean(shares))  # type: ignore[arg-type]
            totals[label] = f"{num_tasks * share + (share < 1):.2f}×"
            trained[label] = "100%" if share == 1 else f"{share:.2%}"
    return {"total parameters": totals, "trained per task": trained}


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


def transpose(table: Table) -> Table:
    """Returns a table with rows and columns swapped."""
    first, *rows = zip(table.columns, *table.rows)
    return table._replace(columns=list(first), rows=[list(row) for row in rows])


def paper_table(heading: str, tasks: List[str], costs: Columns) -> Table:
    """Returns the paper's table of the methods that have costs, for those of the tasks it has."""
    cells = [
        Cell(label, None, task, "", *published.scores(label)[task])
        for label in costs["total parameters"]
        for task in tasks
        if task in published.scores(label)
    ]
    return table_of(heading, cells, {**means(cells), **costs})


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
