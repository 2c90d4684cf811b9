"""Builds the tables and figures of Houlsby et al. 2019 from the records of finished runs.

`REPORTS` lists them. Each is a function from a `Results` to a `Report`; missing tasks, sizes and
seeds are gaps. `render` returns the files' contents. Scores are in points, as in `selection`. As in
the paper, figures show the accuracy of GLUE's classification tasks, and Table 1 each task's score.
"""

import collections
import itertools
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple, Union

import numpy as np

from adapter_bert.paper import ablation_results, figures, published, report_tables, search_results
from adapter_bert.paper import cells as paper_cells
from adapter_bert.paper import claims as paper_claims
from adapter_bert.paper.cells import (
    MAJORITY,
    VARIABLE,
    Cell,
    by_accuracy,
    cells_along,
    cells_of,
    comparable,
    count_seeds,
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
    Method,
    Record,
)

_PERCENTILES = (20, 50, 80)
_BAND = "20th to 80th percentile"
_LEARNING_RATE = "learning_rate"
_EPOCHS = "num_train_epochs"
_DEFAULT = "default"
_STYLES = dict(zip((ADAPTERS, TOP_LAYERS, LAYER_NORM, HEAD, FULL), figures.STYLES))
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
      records: records of finished runs.
      ablations: results of `ablation_results.read`.
      searches: results of `search_results.read`.
      is_equal_epochs: whether `paper_cells.at_equal_epochs` selected the records.
    """

    records: List[Record]
    ablations: List[ablation_results.Ablation] = []
    searches: List["search_results.Search"] = []
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


def claims(results: Results) -> Report:
    """Returns the comparison of the paper's claims with the records."""
    rows = paper_claims.rows(results.records, results.ablations)
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
            " and 2. Its −0.4 and −0.8 for GLUE are differences of Table 1's Total, GLUE's own"
            " mean; the means of the table's columns differ by −0.5 and −0.9.",
            "- Differs: the 95% confidence interval excludes the condition (Student's t, with the"
            " paper's standard errors where it has them, and with Bonferroni's correction where one"
            " of several values can refute the claim). Agrees: the interval meets the condition."
            " Unclear: neither.",
            "- Open: fewer than two learning rates for a method and size, or two seeds with"
            " different scores (or three equal ones); or fewer than three such tasks for a mean"
            " over tasks. Other tasks are left out if these are enough. Removing adapters needs two"
            " seeds only.",
            "- Trained: parameters including the head, divided by BERT's.",
        ]
    )
    verdicts = [row.verdict.partition(": ")[::2] for row in rows]
    of_paper = [(row, word) for row, (word, _) in zip(rows, verdicts) if row.agrees_if]
    tables = [
        Table(
            "",
            ["claim", "paper", "paper, same tasks", "ours", "verdict"],
            [
                [row.claim, row.paper, row.paper_same_tasks or report_tables.GAP, row.ours, word]
                for row, word in of_paper
            ],
        ),
        Table(
            "Not in the paper",
            ["comparison", "ours"],
            [[row.claim, row.ours] for row in rows if not row.agrees_if],
        ),
        Table(
            "What the verdicts rest on",
            [
                *("claim", "agrees if", "settings tried", "seeds"),
                "open because the runs have only",
            ],
            [
                [
                    *(row.claim, row.agrees_if or report_tables.GAP, row.settings, row.seeds),
                    reasons or report_tables.GAP,
                ]
                for row, (_, reasons) in zip(rows, verdicts)
            ],
        ),
    ]
    numbers = [
        {name.replace("_", " "): text for name, text in row._asdict().items()} for row in rows
    ]
    return Report("The paper's claims", caption, [t for t in tables if t.rows], numbers)


def table1(results: Results) -> Report:
    """Returns GLUE's table: full fine-tuning and adapters by size; ours, with the pooler."""
    records = paper_cells.glue(results.records)
    full = cells_of(FULL.label, of_method(records, FULL), VALIDATION, selection.choose_best)
    cells, accuracies = _by_size(records, is_pooler_trained=False)
    cells = full + cells if full or cells else []
    majority = majority_cells(records, cells, VALIDATION)
    tasks = tasks_of(cells)
    caption = (
        "Dev scores in points, the GLUE score of each task. Each is that of the best run on"
        f" the dev set, over all settings and {count_seeds(cells)}."
        f" {_total_note(cells)}{_design_note(records)}"
    )
    tables = [report_tables.methods_table("", cells + majority, len(tasks))] if cells else []
    if len({cell.method for cell in accuracies}) > 1:
        heading = "Dev accuracy by adapter size"
        tables.append(report_tables.methods_table(heading, accuracies))
    tables += report_tables.paper_table_1(tasks)
    pooled, more = _by_size(records, is_pooler_trained=True)
    if pooled:
        heading = "Not in the paper: adapters with the pooler trained"
        tables.append(report_tables.methods_table(heading, pooled, len(tasks_of(pooled))))
    # Without duplicates: for tasks whose score is accuracy, both lists have the same cells.
    listed = cells + pooled
    distinct = [cell for cell in accuracies + more if cell not in listed]
    return Report("GLUE", caption, tables, _rows(listed + distinct + majority))


def _by_size(records: List[Record], is_pooler_trained: bool) -> Tuple[List[Cell], List[Cell]]:
    """Returns the best cells of adapters, by the task's score and by accuracy.

    The first rows choose the size for each task, from the paper's sizes, and then from all.
    """
    note = ", pooler trained" if is_pooler_trained else ""
    adapters = of_method(records, ADAPTERS, pooler=is_pooler_trained)
    by_size = selection.group_by(adapters, ADAPTERS.level_of)
    chosen = [size for size in by_size if size in paper_claims.SIZES]
    rows = {
        f"adapters, size chosen per task ({', '.join(map(str, sizes))}){note}": [
            record for size in sizes for record in by_size[size]
        ]
        for sizes in (chosen, list(by_size))
        if len(sizes) > 1
    }
    rows.update({f"adapters {size}{note}": group for size, group in by_size.items()})
    cells, accuracies = [], []
    for label, group in rows.items():
        cells += cells_of(label, group, VALIDATION, selection.choose_best)
        accurate = [record for record in by_accuracy(group) if "eval_accuracy" in record["scores"]]
        if "chosen" not in label:
            accuracies += cells_of(label, accurate, VALIDATION, selection.choose_best)
    return cells, accuracies


def table2(results: Results) -> Report:
    """Returns the further tasks' table: baseline, full and variable fine-tuning, adapters."""
    records = paper_cells.further(results.records)
    cells = [
        cell
        for method in (NO_BERT, FULL, VARIABLE, ADAPTERS)
        for cell in cells_of(method.label, of_method(records, method), TEST)
    ]
    tasks = tasks_of(cells)
    caption = (
        f"Test scores in points, {_describe_seeds(cells)}. The setting, with the adapter size or"
        " the number of top layers, is each task's best on the dev set."
        f" {_total_note(cells)}{_design_note(records)}"
    )
    cells += majority_cells(records, cells, TEST)
    tables = [report_tables.transpose(report_tables.methods_table("", cells, len(tasks)))]
    tables += report_tables.paper_table_2(tasks)
    return Report("Further tasks", caption, tables, _rows(cells))


def figure1(results: Results) -> Report:
    """Returns GLUE's percentiles over tasks of the difference from full fine-tuning."""
    records = by_accuracy(paper_cells.glue(results.records))
    return _percentiles_report(records, VALIDATION, "GLUE")


def figure3(results: Results) -> Report:
    """Returns the further tasks' percentiles, like `figure1` but with test scores."""
    return _percentiles_report(paper_cells.further(results.records), TEST, "Further tasks")


def figure4(results: Results) -> Report:
    """Returns the dev score against trained parameters, with a panel for each task."""
    records = [r for r in results.records if r["script"] == "run_classifier.py"]
    return _parameters_report(by_accuracy(records), "Score against trained parameters")


def figure5(results: Results) -> Report:
    """Returns `figure4` for SQuAD."""
    records = [record for record in results.records if record["script"] == "run_squad.py"]
    return _parameters_report(records, "SQuAD: score against trained parameters")


def figure6(results: Results) -> Report:
    """Returns the ablation of spans of layers, and the scale of initial weights."""
    numbers, tables, captions = [], [], []
    panels: List[Union[figures.Panel, figures.Heatmap]] = []
    if results.ablations:
        numbers += [
            row for ablation in results.ablations for row in _rows(ablation_results.cells(ablation))
        ]
        panels += [ablation_results.panel(ablation) for ablation in results.ablations]
        tables.append(ablation_results.table(results.ablations))
        captions.append(
            "Mean change in the dev score over models, in points, when the adapters of a"
            " span of layers are removed from a trained model without further training. Layers"
            " count from 0; the diagonal has the single layers."
        )
    cells = _init_scale_cells(results.records)
    if cells:
        numbers += _rows(cells)
        panels.append(_scale_panel(cells))
        heading = "By the standard deviation of the initial weights"
        tables.append(report_tables.levels_table(heading, cells))
        captions.append(
            "Dev score by the standard deviation of the adapters' initial weights,"
            f" {_describe_seeds(cells)}. At each, the other settings are the best on the dev set,"
            f" among those trained with most of these values.{_singles_note(cells)}"
        )
    title = "Adapters removed, and their initial weights"
    return Report(title, " ".join(captions), tables, numbers, panels)


def figure7(results: Results) -> Report:
    """Returns the best score at each learning rate, for adapters and full fine-tuning."""
    records = [r for r in by_accuracy(results.records) if _LEARNING_RATE in r["flags"]]
    by_method = {
        method: comparable(of_method(records, method), _LEARNING_RATE)
        for method in (ADAPTERS, FULL)
    }
    cells = _select_curves(
        [
            cell
            for method, group in by_method.items()
            for cell in cells_along(method.label, group, _LEARNING_RATE)
        ]
    )
    caption = (
        f"Dev score at each learning rate, {_describe_seeds(cells)}. At each, the other"
        " settings are the best on the dev set, among those trained at most of the"
        f" rates.{_notes(by_method, cells)}"
    )
    return _curves_report("Robustness to the learning rate", caption, records, cells, by_method)


def variants(results: Results) -> Report:
    """Returns the variants of section 3.6, compared with the default adapter of their size."""
    found = paper_cells.variants(by_accuracy(results.records))
    cells = [cell for variant in found for cell in variant.cells]
    differences = {
        (cell.method, cell.level, cell.task): cell.choice.value - default.choice.value
        for variant in found
        for cell in variant.cells
        for default in variant.defaults
        if default.task == cell.task
    }

    def difference(cell: Cell) -> Optional[float]:
        return differences.get((cell.method, cell.level, cell.task))

    def suffix(cell: Cell) -> str:
        points = difference(cell)
        return "" if points is None else f" ({points:+.1f})"

    drawn = [record for cell in cells for record in cell.records]
    caption = (
        f"Dev scores in points, {_describe_seeds(cells)}. The number after the name is the size."
        " The other settings are each adapter's best on the dev set. In parentheses, the difference"
        " from the default adapter of the same size; both are at their best among the settings that"
        f" both were trained with.{_tried_note(drawn)}{_design_note(drawn)}"
    )
    columns = {"trained parameters": report_tables.mean_trained}
    tables = [report_tables.table_of("", cells, columns, suffix)]
    numbers = [{**cell.to_row(), "difference": difference(cell)} for cell in cells]
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
    "figure6": Builder(figure6, "--ablations, or adapters with several --adapter_init_scale"),
    "figure7": Builder(figure7, "trainings with several --learning_rate"),
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


def _rows(cells: Iterable[Cell]) -> List[Dict[str, Any]]:
    return [cell.to_row() for cell in cells]


def _describe_seeds(cells: List[Cell]) -> str:
    """Returns a caption's text on how seeds are combined."""
    seeds = count_seeds(cells)
    return "one seed" if seeds == "1 seed" else f"mean ± standard error of the mean over {seeds}"


def _total_note(cells: List[Cell]) -> str:
    tasks = paper_cells.pluralize(len(tasks_of(cells)), "task")
    return f"Total parameters are those of {tasks}, as a multiple of BERT's."


def _design_note(records: List[Record]) -> str:
    """Returns a caption's sentence on the scale of initial weights, or "" for the default one."""
    adapters = selection.filter_by_method(records, ADAPTERS)
    scales = sorted({selection.flag_of(record, INIT_SCALE) for record in adapters})
    if scales in ([], [selection.DEFAULTS[INIT_SCALE]]):
        return ""
    text = " or ".join(f"{scale:g}" for scale in scales)
    return f" Adapters were trained with --{INIT_SCALE}={text}."


def _notes(by_method: Dict[Method, List[Record]], cells: List[Cell]) -> str:
    """Returns a caption's sentences on epochs, single seeds and initial weights."""
    tasks = tasks_of(cells)
    drawn = {m: [r for r in group if r["task"] in tasks] for m, group in by_method.items()}
    texts = [f"{m.label} {_tried(group, _EPOCHS)}" for m, group in drawn.items() if group]
    epochs = f" Epochs: {', '.join(texts)}." if texts else ""
    return epochs + _singles_note(cells) + _design_note(drawn.get(ADAPTERS, []))


def _select_curves(cells: List[Cell]) -> List[Cell]:
    """Returns the cells of tasks with enough levels for a curve.

    A task needs one method with three levels, and two levels for every method.
    """
    counts = collections.Counter((cell.method, cell.task) for cell in cells)
    longest, shortest = collections.defaultdict(int), {}
    for (_, task), count in counts.items():
        longest[task] = max(longest[task], count)
        shortest[task] = min(shortest.get(task, count), count)
    return [cell for cell in cells if longest[cell.task] >= 3 and shortest[cell.task] >= 2]


def _tried_note(records: List[Record]) -> str:
    """Returns a caption's sentence on the learning rates and numbers of epochs."""
    rates, epochs = _tried(records, _LEARNING_RATE), _tried(records, _EPOCHS)
    return f" Learning rates: {rates}; epochs: {epochs}." if records else ""


def _tried(records: List[Record], flag: str) -> str:
    """Returns the values of the learning rate or number of epochs: "3 or 10"."""
    values = {selection.schedule_of(record)[flag] for record in records}
    return " or ".join(f"{value:g}" for value in sorted(values))


def _singles_note(cells: List[Cell]) -> str:
    if not any(_is_bimodal(cell.choice.values) for cell in cells):
        return ""
    return " Hollow marks are single seeds, where some are 10 points or more from the others."


def _is_bimodal(values: Tuple[float, ...]) -> bool:
    """Returns whether scores over seeds form two groups, so that their mean is misleading.

    The gap between the groups is 10 points or more, and at least twice as wide as either group.
    """
    ordered = sorted(values)
    gaps = [right - left for left, right in zip(ordered, ordered[1:])]
    if not gaps:
        return False
    index = int(np.argmax(gaps))
    widest = max(ordered[index] - ordered[0], ordered[-1] - ordered[index + 1])
    return gaps[index] >= 10 and gaps[index] >= 2 * widest


def _init_scale_cells(records: List[Record]) -> List[Cell]:
    """Returns the cells of adapters by the scale of their initial weights."""
    adapters = comparable(of_method(by_accuracy(records), ADAPTERS), INIT_SCALE)
    # The axis is logarithmic.
    positive = [record for record in adapters if selection.flag_of(record, INIT_SCALE) > 0]
    return _select_curves(cells_along(ADAPTERS.label, positive, INIT_SCALE))


def _percentiles_report(records: List[Record], split: str, title: str) -> Report:
    """Returns percentiles over tasks of the difference from full fine-tuning: figures 1 and 3."""
    by_method = {
        method: comparable(of_method(records, method), method.level)
        for method in (ADAPTERS, TOP_LAYERS, FULL)
    }
    full = cells_of(FULL.label, by_method[FULL], split)
    baseline = {cell.task: cell.choice.value for cell in full}
    cells = [
        cell
        for method in (ADAPTERS, TOP_LAYERS)
        for cell in cells_along(method.label, by_method[method], method.level, split)
    ]
    cells = _select_complete(cells, baseline)
    numbers = _percentile_rows(cells, baseline)
    series = []
    for method in (ADAPTERS, TOP_LAYERS):
        rows = [row for row in numbers if row["method"] == method.label]
        points = [(r["trained_parameters"], r["50th"], r["20th"], r["80th"]) for r in rows]
        names = tuple(str(row["level"]) for row in rows)
        if points:
            series.append(figures.Series(method.label, _STYLES[method], points, _BAND, names))
    name = {VALIDATION: "dev", TEST: "test"}[split]
    caption = (
        f"Mean {name} score over seeds, in points, minus that of full fine-tuning on the same task."
        f" Percentiles are over {_describe_scores(cells)}. The x axis is the mean of"
        " the parameters trained per task (logarithmic). The numbers at the points are adapter"
        " sizes and numbers of top layers. The other settings are each task's best on the dev set,"
        " among those trained at most of the sizes. Sizes and tasks with gaps are left"
        f" out.{_notes(by_method, cells)}"
    )
    panel = figures.Panel(
        f"{title}: percentiles of tasks",
        _PARAMETERS,
        f"{name.capitalize()} accuracy, difference (points)",
        series,
        has_zero_line=True,
    )
    title = f"{title}: difference from full fine-tuning"
    return Report(title, caption, [_percentiles_table(numbers)], numbers, [panel])


def _describe_scores(cells: List[Cell]) -> str:
    """Returns the cells' tasks, each with its score if that is not accuracy."""
    names = {cell.task: cell.choice.score.partition("_")[2] for cell in cells}
    return ", ".join(
        published.title(task) + ("" if names[task] == "accuracy" else f" ({names[task]})")
        for task in tasks_of(cells)
    )


def _select_complete(cells: List[Cell], baseline: Dict[str, float]) -> List[Cell]:
    """Returns the cells of the levels and tasks that give the largest table without gaps."""
    counted = [cell for cell in cells if cell.task in baseline and cell.choice.trained]
    levels = report_tables.by_level(counted)
    tasks = report_tables.find_complete_tasks([row.keys() for row in levels.values()])
    return [
        cell
        for cell in counted
        if cell.task in tasks and tasks <= levels[cell.method, cell.level].keys()
    ]


def _percentile_rows(cells: List[Cell], baseline: Dict[str, float]) -> List[Dict[str, Any]]:
    """Returns each level's percentiles of the differences from `baseline` (task → points)."""
    rows = []
    for (method, level), by_task in report_tables.by_level(cells).items():
        differences = {task: cell.choice.value - baseline[task] for task, cell in by_task.items()}
        trained = [cell.choice.trained for cell in by_task.values() if cell.choice.trained]
        values = np.percentile(list(differences.values()), _PERCENTILES)
        rows.append(
            {
                "method": method,
                "level": level,
                "trained_parameters": int(np.mean(trained)),
                **{f"{p}th": float(value) for p, value in zip(_PERCENTILES, values)},
                **differences,
            }
        )
    return rows


def _percentiles_table(rows: List[Dict[str, Any]]) -> Table:
    names = [f"{p}th" for p in _PERCENTILES]
    texts = [
        [
            f"{row['method']}, {row['level']}",
            f"{row['trained_parameters']:,.0f}",
            *(f"{row[name]:+.1f}" for name in names),
        ]
        for row in rows
    ]
    columns = ["", "trained parameters", *(f"{name} percentile" for name in names)]
    return Table("", columns, texts)


def _parameters_report(records: List[Record], title: str) -> Report:
    """Returns scores by sizes of adapters, numbers of top layers etc.: figures 4 and 5."""
    by_method = {
        method: comparable(of_method(records, method), method.level)
        for method in (ADAPTERS, TOP_LAYERS, LAYER_NORM, HEAD, FULL)
    }
    cells = [
        cell
        for method, group in by_method.items()
        for cell in cells_along(method.label, group, method.level)
        if cell.choice.trained
    ]
    caption = (
        "Dev score against the parameters trained per task (logarithmic axis),"
        f" {_describe_seeds(cells)}. Curves are adapters by size and top layers by number; marks"
        " are the other methods. At each point, the other settings are the best on the dev set,"
        f" among those trained at most of the sizes.{_notes(by_method, cells)}"
    )
    return _curves_report(title, caption, records, cells, by_method, _PARAMETERS)


def _curves_report(
    title: str,
    caption: str,
    records: List[Record],
    cells: List[Cell],
    methods: Iterable[Method],
    x_label: str = "Learning rate",
) -> Report:
    """Returns a panel for each task, with a line at the score of the most frequent label."""
    majority = majority_cells(records, cells, VALIDATION)
    lines = {cell.task: (MAJORITY, cell.choice.value) for cell in majority}
    panels = [
        _panel(cells, task, methods, x_label)._replace(line=lines.get(task))
        for task in tasks_of(cells)
    ]
    tables = [report_tables.levels_table("", cells + majority)]
    return Report(title, caption, tables, _rows(cells + majority), panels)


def _panel(cells: List[Cell], task: str, methods: Iterable[Method], x_label: str) -> figures.Panel:
    """Returns a task's panel, over trained parameters or over the cells' levels."""
    task_cells = [cell for cell in cells if cell.task == task]
    series = []
    for method in methods:
        method_cells = [cell for cell in task_cells if cell.method == method.label]
        if method_cells:
            x = [c.choice.trained if x_label == _PARAMETERS else c.level for c in method_cells]
            series.append(_series(method.label, _STYLES[method], method_cells, x))
    return figures.Panel(
        published.title(task), x_label, _axis_label(task_cells[0].choice.score), series
    )


def _series(label: str, style: figures.Style, cells: List[Cell], x: List[Any]) -> figures.Series:
    """Returns a series of cells at these x values."""
    points = [_point(cell, cell_x) for cell, cell_x in zip(cells, x)]
    singles = [
        (cell_x, value)
        for cell, cell_x in zip(cells, x)
        if _is_bimodal(cell.choice.values)
        for value in cell.choice.values
    ]
    return figures.Series(label, style, points, singles=tuple(singles))


def _point(cell: Cell, x: float) -> Tuple[float, float, Optional[float], Optional[float]]:
    """Returns (x, y, low, high), with an error bar of one standard error to each side."""
    value, sem = cell.choice.value, cell.choice.sem
    return (x, value, None, None) if sem is None else (x, value, value - sem, value + sem)


def _axis_label(score: str) -> str:
    """Returns the label of a dev score, such as "eval_accuracy"."""
    name = score.partition("_")[2]
    return "Dev " + _SCORES.get(name, f"{name.replace('_', ' ')} (× 100)")


def _scale_panel(cells: List[Cell]) -> figures.Panel:
    """Returns a panel with the first task's score on the left y axis, another one on the right."""
    by_task = {task: [cell for cell in cells if cell.task == task] for task in tasks_of(cells)}
    labels = {task: _axis_label(task_cells[0].choice.score) for task, task_cells in by_task.items()}
    left, *right = dict.fromkeys(labels.values())
    series = []
    for (task, task_cells), style in zip(by_task.items(), itertools.cycle(figures.STYLES)):
        curve = _series(published.title(task), style, task_cells, [c.level for c in task_cells])
        series.append(curve._replace(is_right=labels[task] != left))
    return figures.Panel(
        "Initial weights",
        "Standard deviation of initial weights",
        left,
        series,
        right_label=" / ".join(right) or None,
        has_legend=True,
    )
