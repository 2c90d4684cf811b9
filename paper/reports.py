"""Builds the tables and figures of Houlsby et al. 2019 from the records of finished runs.

`REPORTS` lists them. Each is a function from a `Results` to a `Report`; missing tasks, sizes and
seeds are gaps. `report_tables.render` returns the files' contents. Scores are in points, as in
`selection`. As in the paper, figures show accuracy for GLUE too, and Table 1 each task's score.
"""

from typing import Any, Callable, List, NamedTuple

import numpy as np

from adapter_bert.paper import ablation_results, figures, published, report_tables, search_results
from adapter_bert.paper import cells as paper_cells
from adapter_bert.paper import claims as paper_claims
from adapter_bert.paper.cells import MAJORITY, cells_of, curve, majority_cells, of_method, tasks_of
from adapter_bert.paper.report_tables import Report, Table
from adapter_bert.sweeps import selection
from adapter_bert.sweeps.selection import ADAPTERS, FULL, TEST, VALIDATION, Cell, Run

_PERCENTILES = ("20th", "50th", "80th")
_BAND = "20th to 80th percentile"
_STYLES = {
    method.label: style
    for method, style in zip(
        (ADAPTERS, selection.TOP_LAYERS, selection.LAYER_NORM, selection.HEAD, FULL), figures.STYLES
    )
}
_PARAMETERS = "Trained parameters per task"
_TOTAL = "Total parameters are those of the table's tasks, as a multiple of BERT's."


class Results(NamedTuple):
    """The input of reports: finished runs, and the results of ablations and searches.

    `is_equal_epochs` is whether `paper_cells.at_equal_epochs` selected the runs.
    """

    runs: List[Run]
    ablations: List[ablation_results.Ablation] = []
    searches: List[search_results.Search] = []
    is_equal_epochs: bool = False


def claims(results: Results) -> Report:
    """Returns the comparison of the paper's claims with the records."""
    rows = paper_claims.rows(results.runs, results.ablations)
    epochs = (
        "Methods are compared at the numbers of epochs that all of a task's methods share"
        " (--equal_epochs)."
        if results.is_equal_epochs
        else "Each method is at its own best number of epochs, as in the paper."
    )
    caption = "\n".join(
        [
            "- Scores are means over seeds on the dev set, or on the test set if the claim says so."
            " ±: the standard error over seeds, without the choice of the setting and the size of"
            " the set.",
            f"- {epochs}",
            "- Paper, same tasks: the paper's value on the tasks that were run, from its Tables 1"
            " and 2 and sections 3.4 and 3.5. Its −0.4 and −0.8 for GLUE are differences of Table"
            " 1's column Total, which is not the mean of the other columns; that differs by −0.48"
            " and −0.92.",
            "- Verdicts are on the paper's numbers. A better result also differs: it is higher.",
            "- Each claim has a condition. We compute a 95% confidence interval of our value or,"
            " where the paper has a value on the same tasks, of the difference from it. Agrees: the"
            " whole interval meets the condition, tolerance included. Differs: no part of it meets"
            " the condition without the tolerance. Unclear: anything else.",
            "- Intervals use Student's t and, where Table 2 has them, the paper's standard errors."
            ' If one of several values could refute a claim, the intervals that decide "differs"'
            " are widened (Bonferroni).",
            "- Open: a method and size has one learning rate only; or its best setting has one"
            " seed, or two with equal scores; or a mean has fewer than three tasks that meet these"
            " rules. If enough tasks meet them, only those count. Removing adapters needs two seeds"
            " only.",
            "- Trained: trained parameters, the head included, as a share of BERT's.",
        ]
    )
    of_paper = ["claim", "paper", "paper, same tasks", "ours", "verdict"]
    grounds = ["claim", "agrees if", "settings tried", "seeds", "open because the runs have only"]
    tables = [
        Table(heading, columns, [[row[c] or report_tables.GAP for c in columns] for row in listed])
        for heading, columns, listed in (
            ("", of_paper, [row for row in rows if row["verdict"]]),
            ("Not in the paper", ["claim", "ours"], [row for row in rows if not row["verdict"]]),
            ("What the verdicts rest on", grounds, rows),
        )
    ]
    return Report("The paper's claims", caption, tables, rows)


def table1(results: Results) -> Report:
    """Returns GLUE's table: full fine-tuning and adapters by size; ours, with the pooler."""
    runs = paper_cells.glue(results.runs)
    cells = cells_of(FULL.label, of_method(runs, FULL), VALIDATION, selection.choose_best)
    cells += _by_size(runs)
    pooled = _by_size(runs, pooler=True)
    majority = majority_cells(cells, VALIDATION)
    is_by_accuracy = any(run.criterion != run.score for run in runs)
    criterion = "dev accuracy (STS-B: Spearman)" if is_by_accuracy else "dev score"
    caption = (
        "Dev scores in points, the GLUE score of each task. Each is that of the run with the best"
        f" {criterion} and, of equal runs, the best score, over all settings and"
        f" {report_tables.count_seeds(cells)}. {_TOTAL}{_design_note(cells)}"
    )
    of_paper = "The paper's, with BERT-Large: test scores; parameters with all nine tasks"
    tables = [
        _methods_table("", cells, majority),
        report_tables.paper_table(of_paper, tasks_of(cells), published.COSTS_1),
        _methods_table("Not in the paper: adapters with the pooler trained", pooled, []),
    ]
    return Report("GLUE", caption, tables, report_tables.numbers_of(cells + pooled + majority))


def _methods_table(heading: str, cells: List[Cell], majority: List[Cell]) -> Table:
    columns = {**report_tables.means(cells + majority), **report_tables.costs(cells)}
    return report_tables.table_of(heading, cells + majority, columns)


def _by_size(runs: List[Run], pooler: bool = False) -> List[Cell]:
    """Returns the best cells of adapters, with or without a trained pooler.

    The first choose the size for each task, from the paper's sizes, and then from all.
    """
    note = ", pooler trained" if pooler else ""
    adapters = of_method(runs, ADAPTERS, pooler=pooler)
    found = sorted({run.setting.flag(selection.SIZE) for run in adapters})
    of_paper = [size for size in found if size in paper_claims.SIZES]
    rows = {
        f"adapters, size chosen per task ({', '.join(map(str, sizes))}){note}": sizes
        for sizes in (of_paper, found)
        if len(sizes) > 1
    }
    rows.update({f"adapters {size}{note}": [size] for size in found})
    cells = []
    for label, sizes in rows.items():
        chosen = of_method(adapters, ADAPTERS, sizes, pooler)
        cells += cells_of(label, chosen, VALIDATION, selection.choose_best)
    return cells


def table2(results: Results) -> Report:
    """Returns the further tasks' table: baseline, full and variable fine-tuning, adapters."""
    runs = paper_cells.further(results.runs)
    cells = [
        cell
        for method in (selection.NO_BERT, FULL, paper_cells.VARIABLE, ADAPTERS)
        for cell in cells_of(method.label, of_method(runs, method), TEST)
    ]
    caption = (
        f"Test scores in points, {_mean_over_seeds(cells)}. The setting, with the adapter size or"
        " the number of top layers, is each task's best on the dev set."
        f" {_TOTAL}{_design_note(cells)}"
    )
    majority = majority_cells(cells, TEST)
    heading = "The paper's, with BERT-Base; parameters with all 17 tasks"
    tables = [
        report_tables.transpose(_methods_table("", cells, majority)),
        report_tables.transpose(
            report_tables.paper_table(heading, tasks_of(cells), published.COSTS_2)
        ),
    ]
    return Report("Further tasks", caption, tables, report_tables.numbers_of(cells + majority))


def figure1(results: Results) -> Report:
    """Returns GLUE's percentiles over tasks of the difference from full fine-tuning."""
    runs = selection.by_accuracy(paper_cells.glue(results.runs))
    return _percentiles_report(runs, VALIDATION, "GLUE")


def figure3(results: Results) -> Report:
    """Returns the further tasks' percentiles, like `figure1` but with test scores."""
    return _percentiles_report(paper_cells.further(results.runs), TEST, "Further tasks")


def figure4(results: Results) -> Report:
    """Returns the dev score against trained parameters, with a panel for each task."""
    return _parameters_report(results, "run_classifier.py", "Score against trained parameters")


def figure5(results: Results) -> Report:
    """Returns `figure4` for SQuAD."""
    title = "SQuAD: score against trained parameters"
    return _parameters_report(results, "run_squad.py", title)


def figure6(results: Results) -> Report:
    """Returns the ablation of spans of layers, and the scale of initial weights."""
    first = ablation_results.report(results.ablations)
    cells = curve(selection.by_accuracy(results.runs), ADAPTERS, selection.INIT_SCALE)
    if not cells:
        return first
    numbers = first.numbers + report_tables.numbers_of(cells)
    cells.sort(key=lambda cell: published.sort_key(cell.task))
    trained = report_tables.trained_parameters(cells)
    heading = "By the standard deviation of the initial weights"
    table = report_tables.table_of(heading, cells, trained)
    x_label = "Standard deviation of initial weights"
    panel = _panel("Initial weights", x_label, cells, lambda cell: published.title(cell.task))
    caption = (
        f"{first.caption} Dev score by the standard deviation of the adapters' initial weights,"
        f" {_mean_over_seeds(cells)}.{_notes(cells)}"
    )
    return Report(
        first.title, caption.strip(), [*first.tables, table], numbers, [*first.panels, panel]
    )


def figure7(results: Results) -> Report:
    """Returns the best score at each learning rate, for adapters and full fine-tuning."""
    runs = selection.by_accuracy(results.runs)
    cells = [cell for method in (ADAPTERS, FULL) for cell in curve(runs, method, selection.RATE)]
    caption = f"Dev score at each learning rate, {_mean_over_seeds(cells)}."
    return _curves_report("Robustness to the learning rate", caption, cells, "Learning rate")


def variants(results: Results) -> Report:
    """Returns the variants of section 3.6, compared with the default adapter of their size."""
    found = paper_cells.variants(selection.by_accuracy(results.runs))
    cells = [cell for cell, _ in found]
    differences = {cell[:3]: cell.points - default.points for cell, default in found if default}
    suffixes = {key: f" ({difference:+.1f})" for key, difference in differences.items()}
    caption = (
        f"Dev scores in points, {_mean_over_seeds(cells)}. The number after the name is the size."
        " The other settings are each adapter's best on the dev set. In parentheses, the difference"
        " from the default adapter of the same size; both are at their best among the settings that"
        f" both were trained with. Learning rates: {_values(cells, selection.RATE)}; epochs:"
        f" {_values(cells, selection.EPOCHS)}.{_design_note(cells)}"
    )
    numbers = [
        {**row, "difference": differences.get(cell[:3])}
        for row, cell in zip(report_tables.numbers_of(cells), cells)
    ]
    table = report_tables.table_of("", cells, report_tables.trained_parameters(cells), suffixes)
    return Report("Variants of the adapter", caption, [table], numbers)


def searches(results: Results) -> Report:
    """Returns the baseline's searches: the score of each trial, and the best so far."""
    return search_results.report(results.searches)


# Name → function, and the input that it needs.
REPORTS = {
    "claims": (claims, "trainings that a claim of the paper is about, or --ablations"),
    "table1": (table1, "trainings of GLUE's tasks"),
    "table2": (table2, "trainings of further tasks, with test scores"),
    "figure1": (figure1, "adapters or top layers, and full fine-tuning, of GLUE's tasks"),
    "figure3": (figure3, "adapters or top layers, and full fine-tuning, of further tasks"),
    "figure4": (figure4, "trainings by run_classifier.py"),
    "figure5": (figure5, "trainings by run_squad.py"),
    "figure6": (figure6, "--ablations, or adapters with three --adapter_init_scale or more"),
    "figure7": (figure7, "trainings with three --learning_rate or more"),
    "variants": (variants, "adapters of other designs than the default"),
    "searches": (searches, "--searches, the search.json of run_baseline.py"),
}


def _mean_over_seeds(cells: List[Cell]) -> str:
    seeds = report_tables.count_seeds(cells)
    return seeds if seeds == "1 seed" else f"mean ± standard error of the mean over {seeds}"


def _values(cells: List[Cell], flag: str, method: str = "") -> str:
    """Returns the values of a flag with which cells, or a method, were trained: "3 or 10"."""
    runs = [run for cell in cells for run in cell.runs if method in ("", run.setting.method)]
    return " or ".join(f"{value:g}" for value in sorted({run.setting.flag(flag) for run in runs}))


def _design_note(cells: List[Cell]) -> str:
    """Returns a caption's sentence on the scale of initial weights, or "" for the default one."""
    flag = selection.INIT_SCALE
    scales = _values(cells, flag, ADAPTERS.name)
    is_default = scales in ("", f"{selection.DEFAULTS[flag]:g}")
    return "" if is_default else f" Adapters were trained with --{flag}={scales}."


def _notes(cells: List[Cell]) -> str:
    """Returns a caption's sentences on the other settings and epochs."""
    labels = dict.fromkeys(cell.method for cell in cells)
    epochs = ", ".join(
        f"{label} {_values([cell for cell in cells if cell.method == label], selection.EPOCHS)}"
        for label in labels
    )
    return (
        " At each point, the other settings are the best on the dev set, among those trained at"
        f" most of the points. Epochs: {epochs}."
    )


def _percentiles_report(runs: List[Run], split: str, title: str) -> Report:
    """Returns percentiles over tasks of the difference from full fine-tuning: figures 1 and 3."""
    full = {cell.task: cell for cell in curve(runs, FULL, split=split)}
    cells = [*curve(runs, ADAPTERS, split=split), *curve(runs, selection.TOP_LAYERS, split=split)]
    cells = [cell for cell in cells if cell.task in full and cell.trained_parameters]
    rows = report_tables.rows_of(cells)
    tasks = report_tables.find_complete_tasks(list(rows.values()))
    cells = [cell for row in rows.values() if tasks <= row.keys() for cell in row.values()]
    cells = [cell for cell in cells if cell.task in tasks]
    numbers, texts, points = [], [], {}
    for label, row in report_tables.rows_of(cells).items():
        differences = {task: cell.points - full[task].points for task, cell in row.items()}
        percentiles = np.percentile(list(differences.values()), (20, 50, 80)).tolist()
        trained = int(np.mean([cell.trained_parameters for cell in row.values()]))
        texts.append([label, f"{trained:,}", *(f"{number:+.1f}" for number in percentiles)])
        method, level, *_ = next(iter(row.values()))
        low, middle, high = percentiles
        points.setdefault(method, {})[str(level)] = (trained, middle, low, high)
        first = {"method": method, "level": level, "trained_parameters": trained}
        numbers.append({**first, **dict(zip(_PERCENTILES, percentiles)), **differences})
    series = [
        figures.Series(method, _STYLES[method], list(by_level.values()), _BAND, tuple(by_level))
        for method, by_level in points.items()
    ]
    scores = {cell.task: cell.score.partition("_")[2] for cell in cells}
    described = ", ".join(
        published.title(task) + ("" if scores[task] == "accuracy" else f" ({scores[task]})")
        for task in tasks_of(cells)
    )
    name = {VALIDATION: "dev", TEST: "test"}[split]
    compared = cells + [full[task] for task in tasks_of(cells)]
    caption = (
        f"Mean {name} score over seeds, in points, minus that of full fine-tuning on the same task."
        f" Percentiles are over {described}. The x axis is the mean of the parameters"
        " trained per task (logarithmic). The numbers at the points are adapter sizes and numbers"
        " of top layers. Sizes and tasks with gaps are left out."
        f"{_notes(compared)}{_design_note(compared)}"
    )
    y_label = f"{name.capitalize()} accuracy, difference (points)"
    panel = figures.Panel(
        f"{title}: percentiles of tasks", _PARAMETERS, y_label, series, has_zero_line=True
    )
    columns = ["", "trained parameters", *(f"{name} percentile" for name in _PERCENTILES)]
    title = f"{title}: difference from full fine-tuning"
    return Report(title, caption, [Table("", columns, texts)], numbers, [panel])


def _parameters_report(results: Results, script: str, title: str) -> Report:
    """Returns scores by sizes of adapters, numbers of top layers etc.: figures 4 and 5."""
    runs = selection.by_accuracy(run for run in results.runs if run.setting.script == script)
    methods = (ADAPTERS, selection.TOP_LAYERS, selection.LAYER_NORM, selection.HEAD, FULL)
    cells = [c for method in methods for c in curve(runs, method) if c.trained_parameters]
    caption = (
        "Dev score against the parameters trained per task (logarithmic axis),"
        f" {_mean_over_seeds(cells)}. Curves are adapters by size and top layers by number; marks"
        " are the other methods."
    )
    return _curves_report(title, caption, cells, _PARAMETERS)


def _curves_report(title: str, caption: str, cells: List[Cell], x_label: str) -> Report:
    """Returns a panel for each task, with a line at the score of the most frequent label."""
    majority = majority_cells(cells, VALIDATION)
    lines = {cell.task: (MAJORITY, cell.points) for cell in majority}
    panels = []
    for task in tasks_of(cells):
        task_cells = [cell for cell in cells if cell.task == task]
        panel = _panel(published.title(task), x_label, task_cells, lambda cell: cell.method)
        panels.append(panel._replace(line=lines.get(task)))
    trained = report_tables.trained_parameters(cells)
    tables = [report_tables.table_of("", cells + majority, trained)]
    caption += _notes(cells) + _design_note(cells)
    return Report(title, caption, tables, report_tables.numbers_of(cells + majority), panels)


def _panel(
    title: str, x_label: str, cells: List[Cell], label_of: Callable[[Cell], str]
) -> figures.Panel:
    """Returns a panel with a series for each label, over trained parameters or cells' levels."""
    series = []
    for label in dict.fromkeys(map(label_of, cells)):
        points = []
        for cell in cells:
            if label_of(cell) == label:
                x: Any = cell.trained_parameters if x_label == _PARAMETERS else cell.level
                value, sem = cell.points, cell.sem
                bar = (None, None) if sem is None else (value - sem, value + sem)
                points.append((x, value, *bar))
        style = _STYLES.get(label, figures.STYLES[len(series) % len(figures.STYLES)])
        series.append(figures.Series(label, style, points))
    scores = dict.fromkeys(report_tables.axis_label(cell.score) for cell in cells)
    return figures.Panel(title, x_label, " / ".join(scores), series)
