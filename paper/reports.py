"""Builds the tables and figures of Houlsby et al. 2019 from the records of finished runs.

`REPORTS` lists them. Each is a function from a `Results` to a `Report`; missing tasks, sizes and
seeds are gaps. `render` returns the files' contents. Scores are in points, as in `selection`.
"""

import collections
import itertools
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple, Union

import numpy as np

from adapter_bert.paper import ablation_results, figures, published, report_tables, search_results
from adapter_bert.paper import claims as paper_claims
from adapter_bert.paper.report_tables import (
    Cell,
    Table,
    cells_along,
    cells_of,
    count_seeds,
    majority_cells,
    tasks_of,
)
from adapter_bert.shell import printing
from adapter_bert.sweeps import selection
from adapter_bert.sweeps.selection import (
    ADAPTERS,
    FULL,
    HEAD,
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
_INIT_SCALE, _LEARNING_RATE = selection.INIT_SCALE, "learning_rate"
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
    """

    records: List[Record]
    ablations: List[ablation_results.Ablation] = []
    searches: List["search_results.Search"] = []


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
    caption = "\n".join(
        [
            "- Scores are on the dev set unless the claim says test. ±: the standard error over"
            " seeds, without the choice of the setting and the size of the dev set.",
            "- Methods are compared at the numbers of epochs that both were trained with, if any.",
            "- Trained: parameters including the head, divided by BERT's.",
            "- Open: fewer than two learning rates, two numbers of epochs, or two seeds with"
            " different scores (or three equal ones), for a method and size; or fewer than three"
            " such tasks (top layer and LayerNorms: two). Other tasks are left out if these are"
            " enough. Removing adapters needs two seeds only.",
            "- Unclear: the ends of the 95% confidence interval give different verdicts (Student's"
            " t, with Bonferroni's correction where one of several differences can refute the"
            " claim).",
        ]
    )
    verdicts = [row.verdict.partition(": ")[::2] for row in rows]
    tables = [
        Table(
            "",
            ["claim", "paper", "ours", "verdict"],
            [[row.claim, row.paper, row.ours, word] for row, (word, _) in zip(rows, verdicts)],
        ),
        Table(
            "What the verdicts rest on",
            [
                *("claim", "agrees if", "settings tried", "seeds"),
                "open because the runs have only",
            ],
            [
                [row.claim, row.agrees_if, row.settings, row.seeds, reasons or report_tables.GAP]
                for row, (_, reasons) in zip(rows, verdicts)
            ],
        ),
    ]
    numbers = [
        {name.replace("_", " "): text for name, text in row._asdict().items()} for row in rows
    ]
    return Report("The paper's claims", caption, tables, numbers)


def table1(results: Results) -> Report:
    """Returns GLUE's table: full fine-tuning, and adapters by size, with and without the pooler."""
    records, best = _split_glue(results.records), selection.choose_best
    cells = cells_of(FULL.label, selection.select_usual(records, FULL), VALIDATION, best)
    designs = {
        note: selection.select_adapters(records, pooler)
        for note, pooler in (("", False), (", pooler trained", True))
    }
    sizes = sorted({ADAPTERS.level_of(r) for adapters in designs.values() for r in adapters})
    labels, accuracies = [FULL.label], []
    for note, adapters in designs.items():
        if not sizes:
            break
        by_size = selection.group_by(adapters, ADAPTERS.level_of)
        label = f"adapters, size chosen per task ({', '.join(map(str, by_size or sizes))}){note}"
        cells += cells_of(label, adapters, VALIDATION, best)
        labels += [label, *(f"adapters {size}{note}" for size in sizes)]
        for size, size_records in by_size.items():
            label = f"adapters {size}{note}"
            cells += cells_of(label, size_records, VALIDATION, best)
            # Selected by accuracy instead of the task's score.
            size_records = [{**record, "score": "eval_accuracy"} for record in size_records]
            accuracies += cells_of(label, size_records, VALIDATION, best)
    tasks = tasks_of(cells)
    designed = [selection.without(r, "train_pooler") for r in sum(designs.values(), [])]
    caption = (
        "Dev scores in points, the GLUE score of each task. Each is that of the best run on"
        f" the dev set, over all settings and {count_seeds(cells)}."
        f" {_total_note(cells)}{_design_note(designed)}"
    )
    majority = majority_cells(records, cells, VALIDATION)
    labels += [report_tables.MAJORITY] * bool(majority)
    table = report_tables.methods_table("", cells + majority, len(tasks))
    tables = [_with_untrained(table, labels)]
    if len(sizes) > 1 and accuracies:
        heading = "Dev accuracy by adapter size"
        tables.append(report_tables.methods_table(heading, accuracies))
    tables += report_tables.paper_table_1(tasks)
    # Without duplicates: for tasks whose score is accuracy, both lists have the same cells.
    distinct = [cell for cell in accuracies if cell not in cells]
    return Report("GLUE", caption, tables, _rows(cells + distinct + majority))


def _with_untrained(table: Table, labels: List[str]) -> Table:
    """Returns a table with a row for each label; "not trained yet" if it has no records."""
    rows = {row[0]: row for row in table.rows}
    gaps = [report_tables.GAP] * (len(table.columns) - 2)
    labelled = [rows.get(label, [label, "not trained yet", *gaps]) for label in labels]
    return table._replace(rows=labelled if table.rows else [])


def table2(results: Results) -> Report:
    """Returns the further tasks' table: baseline, full and variable fine-tuning, adapters."""
    records = _filter_further_tasks(results.records)
    full, top_layers = (selection.select_usual(records, method) for method in (FULL, TOP_LAYERS))
    # Variable fine-tuning of all layers is full fine-tuning.
    varied = {record["task"] for record in top_layers}
    variable = top_layers + [record for record in full if record["task"] in varied]
    cells = [
        *cells_of(NO_BERT.label, selection.filter_by_method(records, NO_BERT), TEST),
        *cells_of(FULL.label, full, TEST),
        *cells_of("variable fine-tuning", variable, TEST),
        *cells_of(ADAPTERS.label, selection.select_usual(records, ADAPTERS), TEST),
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
    return _percentiles_report(_split_glue(results.records), VALIDATION, "GLUE")


def figure3(results: Results) -> Report:
    """Returns the further tasks' percentiles, like `figure1` but with test scores."""
    return _percentiles_report(_filter_further_tasks(results.records), TEST, "Further tasks")


def figure4(results: Results) -> Report:
    """Returns the dev score against trained parameters, with a panel for each task."""
    records = [record for record in results.records if record["script"] == "run_classifier.py"]
    return _parameters_report(records, "Score against trained parameters")


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
    records = [record for record in results.records if _LEARNING_RATE in record["flags"]]
    by_method = _comparable(records, (ADAPTERS, FULL), _LEARNING_RATE)
    cells = _select_curves(
        [
            cell
            for method, records in by_method.items()
            for cell in cells_along(method.label, records, _LEARNING_RATE)
        ]
    )
    majority = majority_cells(records, cells, VALIDATION)
    panels = _panels(cells, (ADAPTERS, FULL), "Learning rate", majority)
    caption = (
        f"Dev score at each learning rate, {_describe_seeds(cells)}. At each, the other"
        " settings are the best on the dev set, among those trained at most of the"
        f" rates.{_epochs_note(by_method, tasks_of(cells))}{_singles_note(cells)}"
        f"{_design_note(by_method[ADAPTERS])}"
    )
    tables = [report_tables.levels_table("", cells + majority)]
    rows = _rows(cells + majority)
    return Report("Robustness to the learning rate", caption, tables, rows, panels)


def variants(results: Results) -> Report:
    """Returns the variants of section 3.6, compared with the usual design of their size."""
    records = selection.filter_by_method(results.records, ADAPTERS)
    usual_design = selection.find_usual_design(
        [selection.without(record, _INIT_SCALE) for record in records], ADAPTERS
    )
    cells, differences, drawn = [], [], []
    for size, size_records in selection.group_by(records, ADAPTERS.level_of).items():
        designs = selection.group_by(
            size_records, lambda record: _design_label(record, usual_design)
        )
        default = designs.pop("", [])
        # Only settings that some variant was trained with, so that the two are comparable.
        default_records = selection.match_settings(
            default, [record for design_records in designs.values() for record in design_records]
        )
        if not default_records:  # Nothing to compare with.
            continue
        for label, variant_records in {_DEFAULT: default_records, **designs}.items():
            variant_records = selection.match_settings(variant_records, default) or variant_records
            design_records = cells_of(label, variant_records, VALIDATION, level=size)
            baseline_cells = cells_of(
                _DEFAULT, selection.match_settings(default, variant_records), VALIDATION
            )
            values = {cell.task: cell.choice.value for cell in baseline_cells}
            drawn += variant_records
            cells += design_records
            differences += [
                c.choice.value - values[c.task] if c.task in values else None
                for c in design_records
            ]
    defaults = [record for record in drawn if not _design_label(record, usual_design)]
    caption = (
        f"Dev scores in points, {_describe_seeds(cells)}. The other settings are each"
        " adapter's best on the dev set. A difference is from the default adapter of the"
        " same size; both are at their best among the settings that both were trained"
        f" with.{_tried_note(drawn)}{_design_note(defaults)}"
    )
    tables = [report_tables.variants_table(cells, differences)]
    numbers = [{**c.to_row(), "difference": d} for c, d in zip(cells, differences)]
    return Report("Variants of the adapter", caption, tables, numbers)


def searches(results: Results) -> Report:
    """Returns the baseline's searches: the score of each trial, and the best so far."""
    ordered = sorted(results.searches, key=lambda search: published.sort_key(search["task"]))
    numbers = [row for search in ordered for row in search_results.trial_rows(search)]
    panels = []
    for search in ordered:
        score = search["score"][len(VALIDATION) + 1 :]
        y_label = f"Dev {_SCORES.get(score, f'{score} (× 100)')}"
        panels.append(search_results.panel(search, published.title(search["task"]), y_label))
    samplers = sorted({search["sampler"] for search in ordered})
    caption = (
        "The best dev score of each trial, in the order in which they began, and the best so"
        " far. Trials stopped early scored worse than others at the same number of samples."
        f" Settings were proposed by: {', '.join(samplers)}."
    )
    titles = [published.title(search["task"]) for search in ordered]
    tables = [
        search_results.summary(ordered, titles),
        search_results.selected_settings(ordered, titles),
    ]
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


def _split_glue(records: List[Record]) -> List[Record]:
    """Returns the records of GLUE's tasks; MNLI's become two, one for each dev set.

    Samples of a task's rows only count if full fine-tuning was trained on them too.
    """
    result = []
    compared = {r["task"] for r in selection.filter_by_method(records, FULL)}
    for record in records:
        task = record["task"]
        if task == "MNLI":
            result.append({**record, "task": "MNLI-m"})
            names = ("accuracy", "majority_accuracy", "predicted_labels")
            mismatched = {f"eval_{n}": record["scores"].get(f"eval_mismatched_{n}") for n in names}
            scores = {**record["scores"], **mismatched}
            result.append({**record, "task": "MNLI-mm", "scores": scores})
        elif task in published.GLUE or (published.is_glue(task) and task in compared):
            result.append(record)
    return result


def _filter_further_tasks(records: List[Record]) -> List[Record]:
    """Returns the records of classification outside GLUE that have test scores."""
    return [
        record
        for record in records
        if record["script"] in selection.TEXT_SCRIPTS
        and not published.is_glue(record["task"])
        and selection.points(record, TEST) is not None
    ]


def _describe_seeds(cells: List[Cell]) -> str:
    """Returns a caption's text on how seeds are combined."""
    seeds = count_seeds(cells)
    return "one seed" if seeds == "1 seed" else f"mean ± standard error of the mean over {seeds}"


def _total_note(cells: List[Cell]) -> str:
    tasks = report_tables.pluralize(len(tasks_of(cells)), "task")
    return f"Total parameters are those of {tasks}, as a multiple of BERT's."


def _design_note(records: List[Record]) -> str:
    """Returns a caption's sentence on the adapters' design, or "" for the default one."""
    adapters = selection.select_usual(records, ADAPTERS)
    flags = selection.find_usual_design(adapters, ADAPTERS)
    scales = sorted({selection.flag_of(record, _INIT_SCALE) for record in adapters})
    if len(scales) > 1:
        flags = {**flags, _INIT_SCALE: " or ".join(f"{scale:g}" for scale in scales)}
    flag_text = ", ".join(f"--{name}={value}" for name, value in flags.items())
    return f" Adapters were trained with {flag_text}." if flag_text else ""


def _design_label(record: Record, usual_design: Dict[str, Any]) -> str:
    """Returns how a record's adapters differ from the usual ones: "depth 2", or "".

    The scale of initial weights is a setting here; Figure 6 compares scales.
    """
    plain = selection.without(record, _INIT_SCALE)
    design_flags = selection.design_difference(plain, usual_design).items()
    return ", ".join(f"{name.replace('adapter_', '')} {value}" for name, value in design_flags)


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


def _epochs_note(by_method: Dict[Method, List[Record]], tasks: List[str]) -> str:
    """Returns a caption's sentence on the numbers of epochs of each method."""
    texts = []
    for method, records in by_method.items():
        numbers = _tried([record for record in records if record["task"] in tasks], _EPOCHS)
        if numbers:
            texts.append(f"{method.label} {numbers}")
    return f" Epochs: {', '.join(texts)}." if texts else ""


def _tried_note(records: List[Record]) -> str:
    """Returns a caption's sentence on the learning rates and numbers of epochs."""
    rates, epochs = _tried(records, _LEARNING_RATE), _tried(records, _EPOCHS)
    return f" Learning rates: {rates}; epochs: {epochs}." if records else ""


def _tried(records: List[Record], flag: str) -> str:
    """Returns the values of the learning rate or number of epochs: "3 or 10"."""
    values = {selection.schedule_of(record)[flag] for record in records}
    return " or ".join(f"{value:g}" for value in sorted(values))


def _singles_note(cells: List[Cell]) -> str:
    if not any(selection.is_bimodal(cell.choice.values) for cell in cells):
        return ""
    return " Hollow marks are single seeds, where some are 10 points or more from the others."


def _init_scale_cells(records: List[Record]) -> List[Cell]:
    """Returns the cells of adapters that differ only in the scale of initial weights."""
    records = [
        record
        for record in selection.select_by_scale(records)
        if selection.flag_of(record, _INIT_SCALE) > 0  # The axis is logarithmic.
    ]
    return _select_curves(cells_along(ADAPTERS.label, records, _INIT_SCALE))


def _comparable(
    records: List[Record], methods: Iterable[Method], flag: Optional[str] = None
) -> Dict[Method, List[Record]]:
    """Returns each method's comparable records of its usual design, at equal numbers of epochs.

    Args:
      flag: see `selection.select_comparable`; by default, that of the method's level.
    """
    return selection.at_equal_epochs(
        {
            method: selection.select_comparable(
                selection.select_usual(records, method), flag or method.level
            )
            for method in methods
        }
    )


def _percentiles_report(records: List[Record], split: str, title: str) -> Report:
    """Returns percentiles over tasks of the difference from full fine-tuning: figures 1 and 3."""
    by_method = _comparable(records, (ADAPTERS, TOP_LAYERS, FULL))
    full = cells_of(FULL.label, by_method[FULL], split)
    baseline = {cell.task: cell.choice.value for cell in full}
    cells = []
    for method in (ADAPTERS, TOP_LAYERS):
        cells += cells_along(method.label, by_method[method], method.level, split)
    numbers = _percentile_rows(_select_complete(cells, baseline), baseline)
    series = []
    for method in (ADAPTERS, TOP_LAYERS):
        rows = [row for row in numbers if row["method"] == method.label]
        points = [(r["trained_parameters"], r["50th"], r["20th"], r["80th"]) for r in rows]
        names = tuple(str(row["level"]) for row in rows)
        if points:
            series.append(figures.Series(method.label, _STYLES[method], points, _BAND, names))
    name = {VALIDATION: "dev", TEST: "test"}[split]
    tasks = [task for task in baseline if numbers and task in numbers[0]]
    caption = (
        f"Mean {name} score over seeds, in points, minus that of full fine-tuning on the same task."
        f" Percentiles are over {', '.join(map(published.title, tasks))}. The x axis is the mean of"
        " the parameters trained per task (logarithmic). The numbers at the points are adapter"
        " sizes and numbers of top layers. The other settings are each task's best on the dev set,"
        " among those trained at most of the sizes. Sizes and tasks with gaps are left"
        f" out.{_epochs_note(by_method, tasks)}"
        f"{_design_note(by_method[ADAPTERS])}"
    )
    panel = figures.Panel(
        f"{title}: percentiles of tasks",
        _PARAMETERS,
        f"{name.capitalize()} score, difference (points)",
        series,
        has_zero_line=True,
    )
    title = f"{title}: difference from full fine-tuning"
    return Report(title, caption, [_percentiles_table(numbers)], numbers, [panel])


def _select_complete(cells: List[Cell], baseline: Dict[str, float]) -> List[Cell]:
    """Returns the cells of the levels and tasks that give the largest table without gaps."""
    tasks_by_level = collections.defaultdict(set)
    for cell in cells:
        if cell.task in baseline and cell.choice.trained:
            tasks_by_level[cell.method, cell.level].add(cell.task)
    tasks = report_tables.find_complete_tasks(list(tasks_by_level.values()))
    return [c for c in cells if c.task in tasks and tasks <= tasks_by_level[c.method, c.level]]


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
    methods = (ADAPTERS, TOP_LAYERS, LAYER_NORM, HEAD, FULL)
    by_method = _comparable(records, methods)
    cells = [
        cell
        for method in methods
        for cell in cells_along(method.label, by_method[method], method.level)
        if cell.choice.trained
    ]
    majority = majority_cells(records, cells, VALIDATION)
    panels = _panels(cells, methods, _PARAMETERS, majority)
    caption = (
        "Dev score against the parameters trained per task (logarithmic axis),"
        f" {_describe_seeds(cells)}. Curves are adapters by size and top layers by number; marks"
        " are the other methods. At each point, the other settings are the best on the dev set,"
        " among those trained at most of the sizes."
        f"{_epochs_note(by_method, tasks_of(cells))}{_singles_note(cells)}"
        f"{_design_note(by_method[ADAPTERS])}"
    )
    tables = [report_tables.levels_table("", cells + majority)]
    return Report(title, caption, tables, _rows(cells + majority), panels)


def _panels(
    cells: List[Cell], methods: Iterable[Method], x_label: str, majority: List[Cell]
) -> List[figures.Panel]:
    """Returns the panel of each task, with a line at its cell of `majority`, if there is one."""
    lines = {cell.task: (report_tables.MAJORITY, cell.choice.value) for cell in majority}
    return [
        _panel(cells, task, methods, x_label)._replace(line=lines.get(task))
        for task in tasks_of(cells)
    ]


def _panel(cells: List[Cell], task: str, methods: Iterable[Method], x_label: str) -> figures.Panel:
    """Returns a task's panel, over trained parameters or over the cells' levels."""
    task_cells = [cell for cell in cells if cell.task == task]
    series = []
    for method in methods:
        method_cells = [cell for cell in task_cells if cell.method == method.label]
        if method_cells:
            x = [c.choice.trained if x_label == _PARAMETERS else c.level for c in method_cells]
            series.append(_series(method.label, _STYLES[method], method_cells, x))
    return figures.Panel(published.title(task), x_label, _score_axis_label(task_cells[0]), series)


def _series(label: str, style: figures.Style, cells: List[Cell], x: List[Any]) -> figures.Series:
    """Returns a series of cells at these x values."""
    points = [_point(cell, cell_x) for cell, cell_x in zip(cells, x)]
    singles = [
        (cell_x, value)
        for cell, cell_x in zip(cells, x)
        if selection.is_bimodal(cell.choice.values)
        for value in cell.choice.values
    ]
    return figures.Series(label, style, points, singles=tuple(singles))


def _point(cell: Cell, x: float) -> Tuple[float, float, Optional[float], Optional[float]]:
    """Returns (x, y, low, high), with an error bar of one standard error to each side."""
    value, sem = cell.choice.value, cell.choice.sem
    return (x, value, None, None) if sem is None else (x, value, value - sem, value + sem)


def _score_axis_label(cell: Cell) -> str:
    _, _, name = cell.choice.score.partition("_")
    return "Dev " + _SCORES.get(name, f"{name.replace('_', ' ')} (× 100)")


def _scale_panel(cells: List[Cell]) -> figures.Panel:
    """Returns a panel with the first task's score on the left y axis, another one on the right."""
    by_task = {task: [cell for cell in cells if cell.task == task] for task in tasks_of(cells)}
    labels = {task: _score_axis_label(task_cells[0]) for task, task_cells in by_task.items()}
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
