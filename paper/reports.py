"""Builds the tables and figures of Houlsby et al. 2019 from the records of finished runs.

`REPORTS` lists them. Each is a function from a `Results` to a `Report`; missing tasks, sizes and
seeds are gaps. `render` returns the files' contents. Scores are in points, as in `selection`. As in
the paper, figures show accuracy for GLUE too, and Table 1 each task's score.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Union

import numpy as np

from adapter_bert.paper import ablation_results, figures, published, report_tables, search_results
from adapter_bert.paper import cells as paper_cells
from adapter_bert.paper import claims as paper_claims
from adapter_bert.paper.cells import (
    MAJORITY,
    VARIABLE,
    Cell,
    by_accuracy,
    cells_of,
    count_seeds,
    curve,
    majority_cells,
    of_method,
    tasks_of,
)
from adapter_bert.paper.report_tables import Table
from adapter_bert.shell import printing
from adapter_bert.sweeps import selection
from adapter_bert.sweeps.selection import (
    ADAPTERS,
    FULL,
    HEAD,
    INIT_SCALE,
    LAYER_NORM,
    NO_BERT,
    TEST,
    TOP_LAYERS,
    VALIDATION,
    Run,
)

_PERCENTILES = ("20th", "50th", "80th")
_BAND = "20th to 80th percentile"
_STYLES = {
    method.label: style
    for method, style in zip((ADAPTERS, TOP_LAYERS, LAYER_NORM, HEAD, FULL), figures.STYLES)
}
_PARAMETERS = "Trained parameters per task"
_SCORES = {
    "accuracy": "accuracy (%)",
    "f1": "F1 (%)",
    "matthews": "Matthews corr. (× 100)",
    "pearson": "Pearson correlation (× 100)",
    "spearman": "Spearman correlation (× 100)",
}


class Results(NamedTuple):
    """The input of reports.

    Attributes:
      runs: the finished ones.
      ablations: results of `ablation_results.read`.
      searches: results of `search_results.read`.
      is_equal_epochs: whether `paper_cells.at_equal_epochs` selected the runs.
    """

    runs: List[Run]
    ablations: List[ablation_results.Ablation] = []
    searches: List[search_results.Search] = []
    is_equal_epochs: bool = False


class Report(NamedTuple):
    """A report's content.

    Attributes:
      title: one line.
      caption: sentences on how the numbers were computed.
      numbers: the numbers, dicts with equal keys; empty if the records have none.
      panels: the panels for `figures.draw`; empty for a table.
    """

    title: str
    caption: str
    tables: List[Table]
    numbers: List[Dict[str, Any]]
    panels: figures.Panels = ()


def _without_empty(tables: List[Table]) -> List[Table]:
    return [table for table in tables if table.rows]


def claims(results: Results) -> Report:
    """Returns the comparison of the paper's claims with the records."""
    rows: List[Dict[str, Any]] = list(paper_claims.rows(results.runs, results.ablations))
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
    for row in rows:
        row["verdict"], _, row["open because the runs have only"] = row["verdict"].partition(": ")
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
    return Report("The paper's claims", caption, _without_empty(tables), rows)


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
        f" {count_seeds(cells)}."
        f"{_total_note(cells)}{_design_note(cells)}"
    )
    methods_table = report_tables.methods_table
    tables = [
        methods_table("", cells + majority, len(tasks_of(cells))),
        *report_tables.paper_table_1(tasks_of(cells)),
        methods_table(
            "Not in the paper: adapters with the pooler trained", pooled, len(tasks_of(pooled))
        ),
    ]
    return Report("GLUE", caption, _without_empty(tables), _rows(cells + pooled + majority))


def _by_size(runs: List[Run], pooler: bool = False) -> List[Cell]:
    """Returns the best cells of adapters, with or without a trained pooler.

    The first choose the size for each task, from the paper's sizes, and then from all.
    """
    note = ", pooler trained" if pooler else ""
    runs = of_method(runs, ADAPTERS, pooler=pooler)
    by_size = selection.group_by(runs, lambda run: run.setting.flag(selection.SIZE))
    chosen = [size for size in by_size if size in paper_claims.SIZES]
    rows = {
        f"adapters, size chosen per task ({', '.join(map(str, sizes))}){note}": [
            run for size in sizes for run in by_size[size]
        ]
        for sizes in (chosen, list(by_size))
        if len(sizes) > 1
    }
    rows.update({f"adapters {size}{note}": group for size, group in by_size.items()})
    return [
        cell
        for label, group in rows.items()
        for cell in cells_of(label, group, VALIDATION, selection.choose_best)
    ]


def table2(results: Results) -> Report:
    """Returns the further tasks' table: baseline, full and variable fine-tuning, adapters."""
    runs = paper_cells.further(results.runs)
    cells = [
        cell
        for method in (NO_BERT, FULL, VARIABLE, ADAPTERS)
        for cell in cells_of(method.label, of_method(runs, method), TEST)
    ]
    tasks = tasks_of(cells)
    caption = (
        f"Test scores in points, {_describe_seeds(cells)}. The setting, with the adapter size or"
        " the number of top layers, is each task's best on the dev set."
        f"{_total_note(cells)}{_design_note(cells)}"
    )
    cells += majority_cells(cells, TEST)
    table = report_tables.methods_table("", cells, len(tasks))
    tables = [report_tables.transpose(table), *report_tables.paper_table_2(tasks)]
    return Report("Further tasks", caption, tables, _rows(cells))


def figure1(results: Results) -> Report:
    """Returns GLUE's percentiles over tasks of the difference from full fine-tuning."""
    runs = by_accuracy(paper_cells.glue(results.runs))
    return _percentiles_report(runs, VALIDATION, "GLUE")


def figure3(results: Results) -> Report:
    """Returns the further tasks' percentiles, like `figure1` but with test scores."""
    return _percentiles_report(paper_cells.further(results.runs), TEST, "Further tasks")


def figure4(results: Results) -> Report:
    """Returns the dev score against trained parameters, with a panel for each task."""
    runs = [run for run in results.runs if run.setting.script == "run_classifier.py"]
    return _parameters_report(by_accuracy(runs), "Score against trained parameters")


def figure5(results: Results) -> Report:
    """Returns `figure4` for SQuAD."""
    runs = [run for run in results.runs if run.setting.script == "run_squad.py"]
    return _parameters_report(runs, "SQuAD: score against trained parameters")


def figure6(results: Results) -> Report:
    """Returns the ablation of spans of layers, and the scale of initial weights."""
    numbers, tables, captions = [], [], []
    panels: List[Union[figures.Panel, figures.Heatmap]] = []
    if results.ablations:
        ablated = [cell for one in results.ablations for cell in ablation_results.cells(one)]
        numbers += _rows(ablated)
        tables.append(ablation_results.table(results.ablations))
        panels += map(ablation_results.panel, results.ablations)
        scores = " or ".join(sorted({one.score for one in results.ablations}))
        seeds = count_seeds([cell for cell in ablated if cell.method != MAJORITY])
        captions.append(
            f"Mean change in the dev {scores}, in points, over the models of {seeds}, when the"
            " adapters of a span of layers are removed without further training. Layers count from"
            " 0; the diagonal has the single layers."
        )
    cells = curve(by_accuracy(results.runs), ADAPTERS, INIT_SCALE)
    if cells:
        numbers += _rows(cells)
        x_label = "Standard deviation of initial weights"
        cells.sort(key=lambda cell: published.sort_key(cell.task))
        tables.append(
            report_tables.levels_table("By the standard deviation of the initial weights", cells)
        )
        panels.append(
            _panel("Initial weights", x_label, cells, lambda cell: published.title(cell.task))
        )
        captions.append(
            "Dev score by the standard deviation of the adapters' initial weights,"
            f" {_describe_seeds(cells)}.{_notes(cells)}"
        )
    title = "Adapters removed, and their initial weights"
    return Report(title, " ".join(captions), tables, numbers, panels)


def figure7(results: Results) -> Report:
    """Returns the best score at each learning rate, for adapters and full fine-tuning."""
    runs = by_accuracy(results.runs)
    cells = [c for method in (ADAPTERS, FULL) for c in curve(runs, method, selection.RATE)]
    caption = f"Dev score at each learning rate, {_describe_seeds(cells)}."
    return _curves_report("Robustness to the learning rate", caption, cells, "Learning rate")


def variants(results: Results) -> Report:
    """Returns the variants of section 3.6, compared with the default adapter of their size."""
    found = paper_cells.variants(by_accuracy(results.runs))
    cells = [cell for cell, _ in found]
    differences = {
        cell[:3]: cell.choice.value - default.choice.value for cell, default in found if default
    }

    def suffix(cell: Cell) -> str:
        return f" ({differences[cell[:3]]:+.1f})" if cell[:3] in differences else ""

    rates, epochs = _values(cells, selection.RATE), _values(cells, selection.EPOCHS)
    caption = (
        f"Dev scores in points, {_describe_seeds(cells)}. The number after the name is the size."
        " The other settings are each adapter's best on the dev set. In parentheses, the difference"
        " from the default adapter of the same size; both are at their best among the settings that"
        f" both were trained with. Learning rates: {rates}; epochs: {epochs}.{_design_note(cells)}"
    )
    tables = [report_tables.levels_table("", cells, suffix)]
    numbers = [{**cell.to_row(), "difference": differences.get(cell[:3])} for cell in cells]
    return Report("Variants of the adapter", caption, tables, numbers)


def searches(results: Results) -> Report:
    """Returns the baseline's searches: the score of each trial, and the best so far."""
    ordered = sorted(results.searches, key=lambda search: published.sort_key(search["task"]))
    numbers = [row for search in ordered for row in search_results.trial_rows(search)]
    panels = [search_results.panel(search, _axis_label(search["score"])) for search in ordered]
    samplers = sorted({search["sampler"] for search in ordered})
    caption = (
        "The best dev score of each trial, in the order in which they began, and the best so"
        " far. Trials stopped early scored worse than others at the same number of samples."
        f" Settings were proposed by: {', '.join(samplers)}."
    )
    tables = [search_results.summary(ordered), search_results.selected_settings(ordered)]
    return Report("Searches for the no-BERT baseline", caption, tables, numbers, panels)


class Builder(NamedTuple):
    """A report's function, and the input to name when it is missing."""

    make: Callable[[Results], Report]
    needs: str


REPORTS = {
    "claims": Builder(claims, "trainings that a claim of the paper is about, or --ablations"),
    "table1": Builder(table1, "trainings of GLUE's tasks"),
    "table2": Builder(table2, "trainings of further tasks, with test scores"),
    "figure1": Builder(figure1, "adapters or top layers, and full fine-tuning, of GLUE's tasks"),
    "figure3": Builder(figure3, "adapters or top layers, and full fine-tuning, of further tasks"),
    "figure4": Builder(figure4, "trainings by run_classifier.py"),
    "figure5": Builder(figure5, "trainings by run_squad.py"),
    "figure6": Builder(figure6, "--ablations, or adapters with three --adapter_init_scale or more"),
    "figure7": Builder(figure7, "trainings with three --learning_rate or more"),
    "variants": Builder(variants, "adapters of other designs than the default"),
    "searches": Builder(searches, "--searches, the search.json of run_baseline.py"),
}


def render(name: str, report: Report) -> Dict[str, Union[str, bytes]]:
    """Returns the content of a report's files by their names, which begin with `name`."""
    images = figures.draw(report.panels) if report.panels else {}
    title = printing.markdown(report.title)
    image = [f"![{title}]({name}.png)"] if images else []
    parts = [f"# {title}", *image, "\n".join(map(printing.markdown, report.caption.split("\n")))]
    parts += [report_tables.to_markdown(table) for table in report.tables]
    return {
        name + ".md": "\n\n".join(parts) + "\n",
        name + ".tsv": report_tables.to_tsv(report.numbers),
        **{f"{name}.{ending}": content for ending, content in images.items()},
    }


def _rows(cells: List[Cell]) -> List[Dict[str, Any]]:
    return [cell.to_row() for cell in cells]


def _describe_seeds(cells: List[Cell]) -> str:
    """Returns a caption's text on how seeds are combined."""
    seeds = count_seeds(cells)
    return "one seed" if seeds == "1 seed" else f"mean ± standard error of the mean over {seeds}"


def _describe_scores(cells: List[Cell]) -> str:
    """Returns the cells' tasks, each with its score if that is not accuracy."""
    names = {cell.task: cell.choice.score.partition("_")[2] for cell in cells}
    return ", ".join(
        published.title(task) + ("" if names[task] == "accuracy" else f" ({names[task]})")
        for task in tasks_of(cells)
    )


def _values(cells: List[Cell], flag: str) -> str:
    """Returns the values of a flag with which cells were trained: "3 or 10"."""
    values = {run.setting.flag(flag) for cell in cells for run in cell.runs}
    return " or ".join(f"{value:g}" for value in sorted(values))


def _total_note(cells: List[Cell]) -> str:
    tasks = paper_cells.pluralize(len(tasks_of(cells)), "task")
    return f" Total parameters are those of {tasks}, as a multiple of BERT's."


def _design_note(cells: List[Cell]) -> str:
    """Returns a caption's sentence on the scale of initial weights, or "" for the default one."""
    adapters = selection.of_method((run for cell in cells for run in cell.runs), ADAPTERS)
    scales = sorted({run.setting.flag(INIT_SCALE) for run in adapters})
    if scales in ([], [selection.DEFAULTS[INIT_SCALE]]):
        return ""
    text = " or ".join(f"{scale:g}" for scale in scales)
    return f" Adapters were trained with --{INIT_SCALE}={text}."


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
    curves = [*curve(runs, ADAPTERS, split=split), *curve(runs, TOP_LAYERS, split=split)]
    cells = _select_complete([c for c in curves if c.task in full and c.choice.trained])
    numbers, texts, points = [], [], {}
    for (method, level), by_task in report_tables.by_level(cells).items():
        trained = int(np.mean([cell.choice.trained or 0 for cell in by_task.values()]))
        differences = {
            task: cell.choice.value - full[task].choice.value for task, cell in by_task.items()
        }
        percentiles = np.percentile(list(differences.values()), (20, 50, 80)).tolist()
        low, middle, high = percentiles
        first = {"method": method, "level": level, "trained_parameters": trained}
        numbers.append({**first, **dict(zip(_PERCENTILES, percentiles)), **differences})
        texts.append([f"{method}, {level}", f"{trained:,}", *(f"{p:+.1f}" for p in percentiles)])
        points.setdefault(method, {})[str(level)] = (trained, middle, low, high)
    series = [
        figures.Series(method, _STYLES[method], list(by_level.values()), _BAND, tuple(by_level))
        for method, by_level in points.items()
    ]
    name = {VALIDATION: "dev", TEST: "test"}[split]
    compared = cells + [full[task] for task in tasks_of(cells)]
    caption = (
        f"Mean {name} score over seeds, in points, minus that of full fine-tuning on the same task."
        f" Percentiles are over {_describe_scores(cells)}. The x axis is the mean of the parameters"
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


def _select_complete(cells: List[Cell]) -> List[Cell]:
    """Returns the cells of the levels and tasks that give the largest table without gaps."""
    levels = report_tables.by_level(cells)
    tasks = report_tables.find_complete_tasks([row.keys() for row in levels.values()])
    return [
        cell
        for cell in cells
        if cell.task in tasks and tasks <= levels[cell.method, cell.level].keys()
    ]


def _parameters_report(runs: List[Run], title: str) -> Report:
    """Returns scores by sizes of adapters, numbers of top layers etc.: figures 4 and 5."""
    methods = (ADAPTERS, TOP_LAYERS, LAYER_NORM, HEAD, FULL)
    cells = [c for method in methods for c in curve(runs, method) if c.choice.trained]
    caption = (
        "Dev score against the parameters trained per task (logarithmic axis),"
        f" {_describe_seeds(cells)}. Curves are adapters by size and top layers by number; marks"
        " are the other methods."
    )
    return _curves_report(title, caption, cells, _PARAMETERS)


def _curves_report(title: str, caption: str, cells: List[Cell], x_label: str) -> Report:
    """Returns a panel for each task, with a line at the score of the most frequent label."""
    majority = majority_cells(cells, VALIDATION)
    lines = {cell.task: (MAJORITY, cell.choice.value) for cell in majority}
    panels = []
    for task in tasks_of(cells):
        task_cells = [cell for cell in cells if cell.task == task]
        panel = _panel(published.title(task), x_label, task_cells, lambda cell: cell.method)
        panels.append(panel._replace(line=lines.get(task)))
    tables = [report_tables.levels_table("", cells + majority)]
    caption += _notes(cells) + _design_note(cells)
    return Report(title, caption, tables, _rows(cells + majority), panels)


def _panel(
    title: str, x_label: str, cells: List[Cell], label_of: Callable[[Cell], str]
) -> figures.Panel:
    """Returns a panel with a series for each label, over trained parameters or cells' levels."""
    series = []
    for label in dict.fromkeys(map(label_of, cells)):
        points = []
        for cell in cells:
            if label_of(cell) == label:
                x: Any = cell.choice.trained if x_label == _PARAMETERS else cell.level
                value, sem = cell.choice.value, cell.choice.sem
                bar = (None, None) if sem is None else (value - sem, value + sem)
                points.append((x, value, *bar))
        style = _STYLES.get(label, figures.STYLES[len(series) % len(figures.STYLES)])
        series.append(figures.Series(label, style, points))
    scores = dict.fromkeys(_axis_label(cell.choice.score) for cell in cells)
    return figures.Panel(title, x_label, " / ".join(scores), series)


def _axis_label(score: str) -> str:
    """Returns the label of a dev score, such as "eval_accuracy"."""
    name = score.partition("_")[2]
    return "Dev " + _SCORES.get(name, f"{name.replace('_', ' ')} (× 100)")
