"""Writes the paper's tables and figures from finished runs, and compares two classifiers.

    python run_report.py --records=output/sweep --report=figure4 --report_dir=output/figures

writes figure4.md, figure4.tsv (the numbers), figure4.png and figure4.svg.

    python run_report.py --compare=a/dev_predictions.tsv,b/dev_predictions.tsv \\
        --labels=a/dev_labels.tsv

prints how often both, one or neither is right, with McNemar's test.
"""

from adapter_bert.shell import environment

if __name__ == "__main__":
    environment.prepare(environment.REPORTS)

import dataclasses
import posixpath
from typing import Any, Dict, List, Optional, Tuple

from adapter_bert.files import atomic, gfile, paths
from adapter_bert.paper import (
    ablation_results,
    cells,
    report_tables,
    reports,
    search_results,
    significance,
)
from adapter_bert.shell import cli
from adapter_bert.shell.errors import UserError
from adapter_bert.shell.settings import Settings, flag
from adapter_bert.sweeps import grids, records, selection


@dataclasses.dataclass(frozen=True)
class ReportConfig(Settings):
    """The settings of this script."""

    records: Optional[str] = flag(
        None, "Folder of a sweep, with its results*.jsonl files.", "Tables and figures"
    )
    report: Tuple[str, ...] = flag(
        ("all",),
        f"Reports to write: {', '.join(reports.REPORTS)}; or all, those that the records allow.",
        "Tables and figures",
    )
    tasks: Tuple[str, ...] = flag(
        (), "Tasks to report. Default: all tasks in the records.", "Tables and figures"
    )
    select_by: str = flag(
        "accuracy",
        "Criterion that selects settings on the dev set: accuracy, as in the paper (if a task has"
        " it), or the task's score.",
        "Tables and figures",
        choices=selection.CRITERIA,
    )
    equal_epochs: bool = flag(
        False,
        "Use only the numbers of epochs that all methods of a task share. Default: each method's"
        " own, as in the paper.",
        "Tables and figures",
    )
    ablations: Tuple[str, ...] = flag(
        (),
        "Files ablation.json of run_ablation.py, one per model, for figure6 and claims.",
        "Tables and figures",
    )
    searches: Tuple[str, ...] = flag(
        (), "Files search.json of run_baseline.py, for --report=searches.", "Tables and figures"
    )
    compare: Tuple[str, ...] = flag(
        (),
        "Two predictions.tsv files of the same rows, to compare with --labels.",
        "Comparison of two classifiers",
    )
    labels: Optional[str] = flag(
        None, "The labels.tsv file of these rows.", "Comparison of two classifiers"
    )
    report_dir: str = flag("output/report", "Output folder.", "Output")
    name: Optional[str] = flag(
        None, "Prefix of the files' names. Default: the report's name.", "Output"
    )


def run(values: Any) -> List[str]:
    """Runs the script with the parsed flags; returns the report, a list of lines."""
    config = ReportConfig.from_flags(values)
    if config.compare or config.labels:
        if len(config.compare) != 2 or not config.labels:
            raise UserError("--compare requires two files of predictions, and --labels.")
        others = "records", "ablations", "searches", "tasks", "select_by", "equal_epochs", "name"
        if config.changed_flags(others) or not _is_all(config):
            raise UserError("--compare needs no flag of tables and figures; remove them.")
        first, second = config.compare
        return significance.describe(significance.compare(first, second, config.labels))
    names = _names(config)
    results, notes = _read_results(config)
    by_name = {name: reports.REPORTS[name][0](results) for name in names}
    available_reports = {name: report for name, report in by_name.items() if report.numbers}
    missing = [name for name in names if name not in available_reports]
    if _is_all(config) and not available_reports:
        raise UserError("No report fits the finished runs; name one to see what it requires.")
    if missing and not _is_all(config):
        needs = "; ".join(f"{name}: {reports.REPORTS[name][1]}" for name in missing)
        raise UserError(f"--report={','.join(config.report)}: missing {needs}.")
    with gfile.convert_write_errors(f"--report_dir={config.report_dir}"):
        gfile.makedirs(config.report_dir)
    written = []
    for name, report in available_reports.items():
        for file_name, content in report_tables.render(config.name or name, report).items():
            written.append(posixpath.join(config.report_dir, file_name))
            atomic.write_atomically(written[-1], content)
    return [*notes, *(f"Written: {path}" for path in written)]


def _is_all(config: ReportConfig) -> bool:
    """Returns whether the flags ask for all reports that the records allow."""
    return config.report in ((), ("all",))


def _names(config: ReportConfig) -> List[str]:
    """Returns the names of the requested reports; raises UserError if one is unknown."""
    names = list(reports.REPORTS if _is_all(config) else dict.fromkeys(config.report))
    for name in names:
        if name not in reports.REPORTS:
            raise UserError(
                f"--report={','.join(config.report)}: expected only all, or names from"
                f" {', '.join(reports.REPORTS)}."
            )
    if config.name and len(names) > 1:
        raise UserError(f"--name={config.name} requires a single --report; got {len(names)}.")
    return names


def _read_results(config: ReportConfig) -> Tuple[reports.Results, List[str]]:
    """Returns the results that the flags name, limited to --tasks, and notes on them."""
    ablations = ablation_results.read(config.ablations)
    searches = [search_results.read(path) for path in config.searches]
    if not (config.records or ablations or searches):
        raise UserError("--records is not given; expected the folder of a sweep.")
    if config.records:
        paths.existing_folder(config.records, "--records")
    trainings = records.read(config.records) if config.records else []
    trainings = [record for record in trainings if record["status"] == records.DONE]
    if not (trainings or ablations or searches):
        raise UserError(f"--records={config.records}: the folder has no finished run.")
    tasks = {result["task"] for result in (*trainings, *searches, *ablations)}
    for task in config.tasks:
        if task not in tasks:
            available = ", ".join(sorted(tasks)) or "none"
            raise UserError(f"--tasks={task}: no finished run; found {available}.")

    def select(results: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
        return [result for result in results if result["task"] in (config.tasks or tasks)]

    trainings, searches, ablations = map(select, (trainings, searches, ablations))
    backbones = records.check_same_backbone(trainings, "--records")
    if len(backbones | {ablation["backbone"] for ablation in ablations}) > 1:
        raise UserError("--ablations: another BERT than that of the other files or of --records.")
    records.check_same_data(trainings, "--records")
    runs = selection.read(trainings, config.select_by)
    if config.equal_epochs:
        runs = cells.at_equal_epochs(runs)
    trials = [record for record in trainings if record["script"] in grids.scripts()]
    notes = records.missing_digests_note(trials)
    return reports.Results(runs, ablations, searches, config.equal_epochs), notes


define_flags = ReportConfig.define_flags
main = cli.main_of(run, define_flags)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
