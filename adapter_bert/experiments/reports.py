"""The tables and figures of Houlsby et al. 2019, from the records of finished trainings.

`REPORTS` lists them. Each is a function from a `Source` to a `Report`, whatever there is of the
tasks, sizes and seeds that the paper has; what is missing is a gap. `rendered` makes the files'
contents of it. Scores are in points, as in `selection`.
"""

import collections
import itertools
from typing import Any, Callable, Dict, List, NamedTuple

import numpy as np

from adapter_bert.experiments import figures, paper, report_tables, selection, studies
from adapter_bert.experiments.report_tables import Table, cells_along, cells_of, seeds_of, tasks_of
from adapter_bert.experiments.selection import (
    ADAPTERS,
    FULL,
    HEAD,
    LAYER_NORM,
    NO_BERT,
    TEST,
    TOP_LAYERS,
    VALIDATION,
)

_PERCENTILES = (20, 50, 80)  # Over tasks, interpolated linearly.
_SCALE, _RATE = "adapter_init_scale", "learning_rate"
_DEFAULT = "default"
_STYLES = dict(zip((ADAPTERS, TOP_LAYERS, LAYER_NORM, HEAD, FULL), figures.STYLES))
_PARAMETERS = "Trained parameters per task"
_SCORES = {
    "accuracy": "accuracy (%)",
    "f1": "F1 (%)",
    "matthews": "Matthews correlation (× 100)",
    "pearson": "Pearson correlation (× 100)",
    "spearman": "Spearman correlation (× 100)",
}


class Source(NamedTuple):
    """What reports are made from.

    Attributes:
      records: of finished trainings.
      ablations: what `studies.read_ablation` reads.
      searches: what `studies.read_search` reads.
    """

    records: List[dict]
    ablations: List[dict] = []
    searches: List[dict] = []


class Report(NamedTuple):
    """A table or figure before it is written.

    Attributes:
      title: one line.
      caption: sentences that say how the numbers came about.
      tables: list of `Table`.
      numbers: the numbers behind it, dicts with the same keys; none if nothing was found.
      panels: what `figures.draw` takes; empty for a mere table.
    """

    title: str
    caption: str
    tables: List[Table]
    numbers: List[Dict[str, Any]]
    panels: list = []


def table1(source):
    """GLUE: full fine-tuning, adapters of each task's best size, adapters of one size."""
    records, best = _glue(source.records), selection.choose_best
    adapters = selection.usual(records, ADAPTERS)
    by_size = selection.grouped(adapters, ADAPTERS.level_of)
    label = f"adapters, size chosen per task ({', '.join(map(str, by_size))})"
    cells = cells_of(FULL.label, selection.usual(records, FULL), VALIDATION, best)
    cells += cells_of(label, adapters, VALIDATION, best)
    accuracies = []
    for size, some in by_size.items():
        cells += cells_of(f"adapters {size}", some, VALIDATION, best)
        # Chosen by accuracy, in place of the task's own score.
        some = [{**record, "score": "eval_accuracy"} for record in some]
        accuracies += cells_of(f"adapters {size}", some, VALIDATION, best)
    tasks = tasks_of(cells)
    caption = (
        "Validation scores in points, for each task its own of GLUE: the best of all settings and"
        f" {seeds_of(cells)}, by that score. {_total_note(cells)}{_design_note(records)}"
    )
    tables = [report_tables.methods_table("", cells, len(tasks))]
    if len(by_size) > 1 and accuracies:
        heading = "Validation accuracy by adapter size"
        tables.append(report_tables.methods_table(heading, accuracies))
    tables += report_tables.published_1(tasks)
    # Where the task's own score is accuracy, both have the same cells.
    others = [cell for cell in accuracies if cell not in cells]
    return Report("GLUE", caption, tables, _numbers(cells + others))


def table2(source):
    """The further tasks: the baseline without BERT, full and variable fine-tuning, adapters."""
    records = _further(source.records)
    full, top_layers = (selection.usual(records, method) for method in (FULL, TOP_LAYERS))
    # Variable fine-tuning of all layers is full fine-tuning.
    varied = {record["task"] for record in top_layers}
    variable = top_layers + [record for record in full if record["task"] in varied]
    cells = [
        *cells_of(NO_BERT.label, selection.of_method(records, NO_BERT), TEST),
        *cells_of(FULL.label, full, TEST),
        *cells_of("variable fine-tuning", variable, TEST),
        *cells_of(ADAPTERS.label, selection.usual(records, ADAPTERS), TEST),
    ]
    tasks = tasks_of(cells)
    caption = (
        f"Test scores in points, {_over(cells)}; the setting, with the adapters' size or"
        " the number of top layers, is each task's best by mean validation score."
        f" {_total_note(cells)}{_design_note(records)}"
    )
    tables = [report_tables.transposed(report_tables.methods_table("", cells, len(tasks)))]
    tables += report_tables.published_2(tasks)
    return Report("Further tasks", caption, tables, _numbers(cells))


def figure1(source):
    """GLUE: what adapters and top layers score, less full fine-tuning, over the tasks."""
    return _percentiles(_glue(source.records), VALIDATION, "GLUE")


def figure3(source):
    """The further tasks: as `figure1`, with test scores."""
    return _percentiles(_further(source.records), TEST, "Further tasks")


def figure4(source):
    """Validation score against trained parameters, a panel for each task."""
    records = [record for record in source.records if record["script"] == "run_classifier.py"]
    return _against_parameters(records, "Score against trained parameters")


def figure5(source):
    """The same of SQuAD."""
    records = [record for record in source.records if record["script"] == "run_squad.py"]
    return _against_parameters(records, "SQuAD: score against trained parameters")


def figure6(source):
    """What the adapters of spans of layers are worth, and the scale of their initial weights."""
    numbers, panels, tables, captions = [], [], [], []
    if source.ablations:
        numbers += [
            row for some in source.ablations for row in _numbers(studies.ablation_cells(some))
        ]
        panels += [studies.ablation_panel(ablation) for ablation in source.ablations]
        tables.append(studies.ablation_table(source.ablations))
        captions.append(
            "Change of the validation score, in percentage points, when the adapters of a span of"
            " layers are removed from the trained model, which is not trained again. Layers count"
            " from 0; the diagonal has the single layers."
        )
    cells = _by_scale(source.records)
    if cells:
        numbers += _numbers(cells)
        panels.append(_scale_panel(cells))
        heading = "By the standard deviation of the initial weights"
        tables.append(report_tables.levels_table(heading, cells))
        captions.append(
            "Validation score by the standard deviation of the adapters' initial weights,"
            f" {_over(cells)}; the other settings are the best at each by mean validation score, of"
            " those trained with the majority of them."
        )
    title = "Adapters removed, and their initial weights"
    return Report(title, " ".join(captions), tables, numbers, panels)


def figure7(source):
    """The best score at each learning rate, adapters beside full fine-tuning."""
    cells = []
    for method in (ADAPTERS, FULL):
        records = [r for r in selection.usual(source.records, method) if _RATE in r["flags"]]
        cells += cells_along(method.label, records, _RATE)
    cells = _curves(cells)
    panels = [_panel(cells, task, (ADAPTERS, FULL), "Learning rate") for task in tasks_of(cells)]
    caption = (
        f"Validation score at each learning rate, {_over(cells)}; the other settings are"
        " the best at each by mean validation score, of those trained at the majority of the"
        f" rates.{_design_note(source.records)}"
    )
    tables = [report_tables.levels_table("", cells)]
    return Report("Robustness to the learning rate", caption, tables, _numbers(cells), panels)


def variants(source):
    """Section 3.6: adapters of other designs beside the usual one of their size."""
    records = selection.of_method(source.records, ADAPTERS)
    usual = selection.usual_design(records, ADAPTERS)
    # Other initial weights are a study of their own: figure 6.
    records = [record for record in records if _SCALE not in selection.difference(record, usual)]
    cells, differences = [], []
    for size, some in selection.grouped(records, ADAPTERS.level_of).items():
        designs = selection.grouped(some, lambda record: _design_label(record, usual))
        default = designs.pop("", [])
        # Trained otherwise than every variant, in another study, it is no measure of them.
        alike = _trained_as(default, [record for own in designs.values() for record in own])
        for label, group in {_DEFAULT: alike, **designs}.items():
            own = cells_of(label, group, VALIDATION, level=size)
            beside = cells_of(_DEFAULT, _trained_as(default, group), VALIDATION)
            values = {cell.task: cell.choice.value for cell in beside}
            cells += own
            differences += [
                c.choice.value - values[c.task] if c.task in values else None for c in own
            ]
    caption = (
        f"Validation scores in points, {_over(cells)}; the other settings are each adapter's best"
        " by mean validation score. A difference is from the default adapter of the same size at"
        f" its best of the settings that this adapter was trained with.{_design_note(records)}"
    )
    tables = [report_tables.variants_table(cells, differences)]
    numbers = [{**c.numbers(), "difference": d} for c, d in zip(cells, differences)]
    return Report("Variants of the adapter", caption, tables, numbers)


def searches(source):
    """The no-BERT baseline's searches: the score of each trial, and the best so far."""
    found = sorted(source.searches, key=lambda search: paper.order(search["task"]))
    numbers = [row for search in found for row in studies.search_numbers(search)]
    panels = []
    for search in found:
        score = search["score"][len(VALIDATION) + 1 :]
        y_label = f"Validation {_SCORES.get(score, f'{score} (× 100)')}"
        panels.append(studies.search_panel(search, paper.title(search["task"]), y_label))
    caption = (
        "The best validation score of each trial, in the order in which they began, and the best so"
        " far. Those stopped early were hopeless beside the others at the same number of samples."
        f" Settings were proposed by: {', '.join(sorted({some['sampler'] for some in found}))}."
    )
    titles = [paper.title(search["task"]) for search in found]
    tables = [
        Table("", *studies.search_summary(found, titles)),
        Table("Selected settings", *studies.selected(found, titles, report_tables.GAP)),
    ]
    return Report("Searches for the no-BERT baseline", caption, tables, numbers, panels)


class Builder(NamedTuple):
    """A row of `REPORTS`: how it is made, and of what, for whoever has none of it."""

    make: Callable[[Source], Report]
    needs: str


REPORTS = {
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


def rendered(name, report):
    """The files of a report: a dict from their names to str or bytes.

    Args:
      name: what the files' names begin with.
      report: `Report` of something.
    """
    images = figures.draw(report.panels) if report.panels else {}
    image = [f"![{report.title}]({name}.png)"] if images else []
    parts = [f"# {report.title}", *image, report.caption]
    parts += [report_tables.markdown(table) for table in report.tables]
    return {
        name + ".md": "\n\n".join(parts) + "\n",
        name + ".tsv": report_tables.tsv(report.numbers),
        **{f"{name}.{ending}": content for ending, content in images.items()},
    }


def _numbers(cells):
    return [cell.numbers() for cell in cells]


def _glue(records):
    """The records of GLUE's tasks; MNLI, whose two dev sets are two tasks there, gives two."""
    found = []
    for record in records:
        if record["task"] in paper.GLUE:
            found.append(record)
        elif record["task"] == "MNLI":
            found.append({**record, "task": "MNLI-m"})
            mismatched = {"eval_accuracy": record["scores"].get("eval_mismatched_accuracy")}
            scores = {**record["scores"], **mismatched}
            found.append({**record, "task": "MNLI-mm", "scores": scores})
    return found


def _further(records):
    """The records of other tasks that have test scores."""
    return [
        record
        for record in records
        if record["task"] not in (*paper.GLUE, "MNLI")
        and selection.points(record, TEST) is not None
    ]


def _over(cells):
    """How the seeds behind cells are taken together, for captions."""
    seeds = seeds_of(cells)
    return "one seed" if seeds == "1 seed" else f"mean ± standard error of the mean over {seeds}"


def _total_note(cells):
    return (
        f"Total parameters are those of {report_tables.counted(len(tasks_of(cells)), 'task')}, as a"
        " multiple of BERT's."
    )


def _design_note(records):
    """A sentence on the adapters where they are not the default ones."""
    flags = selection.usual_design(records, ADAPTERS)
    named = ", ".join(f"--{name}={value}" for name, value in flags.items())
    return f" The adapters are those of {named}." if named else ""


def _design_label(record, usual):
    """How a record's adapters differ from the usual ones, as in "depth 2"; "" if they do not."""
    different = selection.difference(record, usual).items()
    return ", ".join(f"{name.replace('adapter_', '')} {value}" for name, value in different)


def _trained_as(records, others):
    """The records whose settings, but for the design, some of the others have."""
    settings = {_settings_without_design(other) for other in others}
    return [record for record in records if _settings_without_design(record) in settings]


def _settings_without_design(record):
    """Task and settings of a record, but for the design of its adapters."""
    return record["task"], selection.other_settings(record, selection.design(record))


def _curves(cells):
    """The cells of the tasks of which some method has three levels: fewer make no curve."""
    counts = collections.Counter((cell.method, cell.task) for cell in cells)
    enough = {task for (_, task), count in counts.items() if count >= 3}
    return [cell for cell in cells if cell.task in enough]


def _by_scale(records):
    """The `Cell`s of adapters that differ in their initial weights' scale alone."""
    usual = selection.usual_design(records, ADAPTERS)
    alike = [
        record
        for record in selection.of_method(records, ADAPTERS)
        if set(selection.difference(record, usual)) <= {_SCALE}
        and selection.flag_of(record, _SCALE) > 0  # The axis is logarithmic.
    ]
    return _curves(cells_along(ADAPTERS.label, alike, _SCALE))


def _percentiles(records, split, title):
    """Figures 1 and 3: percentiles over tasks of the difference from full fine-tuning."""
    full = cells_of(FULL.label, selection.usual(records, FULL), split)
    baseline = {cell.task: cell.choice.value for cell in full}
    cells = []
    for method in (ADAPTERS, TOP_LAYERS):
        cells += cells_along(method.label, selection.usual(records, method), method.level, split)
    numbers = _percentile_rows(_complete(cells, baseline), baseline)
    series = []
    for method in (ADAPTERS, TOP_LAYERS):
        rows = [row for row in numbers if row["method"] == method.label]
        points = [(r["trained_parameters"], r["50th"], r["20th"], r["80th"]) for r in rows]
        if points:
            series.append(figures.Series(method.label, _STYLES[method], points, band=True))
    name = {VALIDATION: "validation", TEST: "test"}[split]
    tasks = [task for task in baseline if numbers and task in numbers[0]]
    caption = (
        f"Mean {name} score over seeds, in points, less full fine-tuning's on the same task:"
        f" percentiles over {', '.join(map(paper.title, tasks))}, against the mean of the"
        " parameters trained per task (logarithmic axis). The other settings are each task's best"
        " by mean validation score, of those trained at the majority of the sizes. Sizes and tasks"
        f" that would leave gaps are left out.{_design_note(records)}"
    )
    panel = figures.Panel(
        f"{title}: 20th, 50th and 80th percentile of tasks",
        _PARAMETERS,
        f"{name.capitalize()} score − full fine-tuning's (points)",
        series,
        zero=True,
    )
    title = f"{title}: difference from full fine-tuning"
    return Report(title, caption, [_percentiles_table(numbers)], numbers, [panel])


def _complete(cells, baseline):
    """The cells of the levels and tasks that make the largest table without a gap."""
    tasks_at = collections.defaultdict(set)
    for cell in cells:
        if cell.task in baseline and cell.choice.trained:
            tasks_at[cell.method, cell.level].add(cell.task)
    tasks = report_tables.complete(tasks_at.values())
    return [c for c in cells if c.task in tasks and tasks <= tasks_at[c.method, c.level]]


def _percentile_rows(cells, baseline):
    """For each level the percentiles of the differences from `baseline` (task → points)."""
    rows = []
    for method, level in dict.fromkeys((cell.method, cell.level) for cell in cells):
        own = [cell for cell in cells if (cell.method, cell.level) == (method, level)]
        differences = {cell.task: cell.choice.value - baseline[cell.task] for cell in own}
        values = np.percentile(list(differences.values()), _PERCENTILES)
        rows.append(
            {
                "method": method,
                "level": level,
                "trained_parameters": int(np.mean([cell.choice.trained for cell in own])),
                **{f"{p}th": float(value) for p, value in zip(_PERCENTILES, values)},
                **differences,
            }
        )
    return rows


def _percentiles_table(rows):
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


def _against_parameters(records, title):
    """Figures 4 and 5: sizes of adapters, numbers of top layers, and single marks."""
    methods, cells = (ADAPTERS, TOP_LAYERS, LAYER_NORM, HEAD, FULL), []
    for method in methods:
        cells += cells_along(method.label, selection.usual(records, method), method.level)
    cells = [cell for cell in cells if cell.choice.trained]
    panels = [_panel(cells, task, methods, _PARAMETERS) for task in tasks_of(cells)]
    caption = (
        "Validation score against the parameters trained per task (logarithmic axis): adapters by"
        " size, the top layers by their number, and what else was trained in one way only;"
        f" {_over(cells)}, the other settings the best of each by mean validation"
        f" score, of those trained at the majority of the sizes.{_design_note(records)}"
    )
    tables = [report_tables.levels_table("", cells)]
    return Report(title, caption, tables, _numbers(cells), panels)


def _panel(cells, task, methods, x_label):
    """A task's `figures.Panel`, against trained parameters or else against the cells' levels."""
    own = [cell for cell in cells if cell.task == task]
    series = []
    for method in methods:
        some = [cell for cell in own if cell.method == method.label]
        points = [
            _point(cell, cell.choice.trained if x_label == _PARAMETERS else cell.level)
            for cell in some
        ]
        if points:
            series.append(figures.Series(method.label, _STYLES[method], points))
    return figures.Panel(paper.title(task), x_label, _score_label(own[0]), series)


def _point(cell, x):
    """(x, y, ends of the error bar): one standard error to each side."""
    value, sem = cell.choice.value, cell.choice.sem
    return (x, value, None, None) if sem is None else (x, value, value - sem, value + sem)


def _score_label(cell):
    _, _, name = cell.choice.score.partition("_")
    return "Validation " + _SCORES.get(name, f"{name.replace('_', ' ')} (× 100)")


def _scale_panel(cells):
    series = [
        figures.Series(
            paper.title(task), style, [_point(c, c.level) for c in cells if c.task == task]
        )
        for task, style in zip(tasks_of(cells), itertools.cycle(figures.STYLES))
    ]
    x_label = "Standard deviation of initial weights"
    return figures.Panel("Initial weights", x_label, "Validation score (points)", series)
