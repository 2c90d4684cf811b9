"""The paper's tables and figures from finished trainings, and a test between two of them.

    python run_report.py --records=output/sweep --report=figure4 --report_dir=output/figures

writes figure4.md, figure4.tsv (the numbers), figure4.png and figure4.svg; see `reporting.REPORTS`.

    python run_report.py --compare=a/dev_predictions.tsv,b/dev_predictions.tsv \\
        --labels=a/dev_labels.tsv

prints how often both, one or neither is right, and McNemar's test.
"""

from adapter_bert.common import environment

if __name__ == "__main__":
    environment.prepare(environment.REPORTS)

import posixpath

from absl import flags

from adapter_bert.common import cli, files, paths
from adapter_bert.common.cli import section
from adapter_bert.common.errors import UserError
from adapter_bert.experiments import grids as sweep_grids
from adapter_bert.experiments import records as sweep_records
from adapter_bert.experiments import reports as reporting
from adapter_bert.experiments import significance, studies


def define_flags(flag_values=flags.FLAGS):
    """Defines all flags of this script."""
    at = section("Tables and figures", flag_values)
    flags.DEFINE_string("records", None, "Folder of a sweep, with its results*.jsonl.", **at)
    flags.DEFINE_list(
        "report",
        ["all"],
        f"What to write: {', '.join(reporting.REPORTS)}; all: those that there are records for.",
        **at,
    )
    flags.DEFINE_list(
        "tasks", [], "Only these tasks. Default: all that there are records of.", **at
    )
    flags.DEFINE_list("ablations", [], "ablation.json of run_ablation.py, for figure6.", **at)
    flags.DEFINE_list("searches", [], "search.json of run_baseline.py, for searches.", **at)
    at = section("Comparison of two classifiers", flag_values)
    flags.DEFINE_list(
        "compare", [], "Two predictions.tsv of the same rows, to be compared with --labels.", **at
    )
    flags.DEFINE_string("labels", None, "The labels.tsv of these rows.", **at)
    at = section("Output", flag_values)
    flags.DEFINE_string("report_dir", "output/report", "Where to write.", **at)
    flags.DEFINE_string(
        "name", None, "What the files' names begin with, if not the report's name.", **at
    )


def run(values):
    """Does what the flags ask for.

    Args:
      values: parsed flags of `define_flags`.

    Returns:
      The report that ends the run: a list of lines.
    """
    if values.compare or values.labels:
        if len(values.compare) != 2 or not values.labels:
            raise UserError("--compare takes two files of predictions, and needs --labels.")
        one, other = values.compare
        return significance.described(significance.compare(one, other, values.labels))
    names = _names(values)
    source = _source(values)
    reports = {name: reporting.REPORTS[name].make(source) for name in names}
    found = {name: report for name, report in reports.items() if report.numbers}
    if not found or (len(found) < len(names) and values.report != ["all"]):
        missing = [name for name in names if name not in found]
        needs = "; ".join(f"{name}: {reporting.REPORTS[name].needs}" for name in missing)
        raise UserError(f"--report={','.join(values.report)}: found none of these: {needs}.")
    with files.convert_write_errors(f"--report_dir={values.report_dir}"):
        files.makedirs(values.report_dir)
    written = []
    for name, report in found.items():
        for file_name, content in reporting.rendered(values.name or name, report).items():
            written.append(posixpath.join(values.report_dir, file_name))
            files.write_atomically(written[-1], content)
    trials = [record for record in source.records if record["script"] in sweep_grids.SCRIPTS]
    return [*sweep_records.undated(trials), *(f"Written: {path}" for path in written)]


def _names(values):
    """The names of the reports that are asked for, checked."""
    names = list(reporting.REPORTS) if values.report == ["all"] else values.report
    for name in names:
        if name not in reporting.REPORTS:
            raise UserError(
                f"--report={name}: expected all, or some of {', '.join(reporting.REPORTS)}."
            )
    if values.name and len(names) > 1:
        raise UserError(f"--name={values.name} is for one --report, not for {len(names)}.")
    return names


def _source(values):
    """The `reporting.Source` that the flags name, of --tasks alone if given."""
    further = [
        *(studies.read_ablation(path) for path in values.ablations),
        *(studies.read_search(path) for path in values.searches),
    ]
    if not values.records and not further:
        raise UserError("--records is not given, expected the folder of a sweep.")
    if values.records:
        paths.existing_folder(values.records, "--records")
    records = sweep_records.read(values.records) if values.records else []
    records = [record for record in records if record["status"] == sweep_records.DONE]
    if not records and not further:
        raise UserError(f"--records={values.records}: found no finished training there.")
    _check_backbones(records)
    tasks = {some["task"] for some in (*records, *further)}
    for task in values.tasks:
        if task not in tasks:
            found = ", ".join(sorted(tasks)) or "none"
            raise UserError(f"--tasks={task}: nothing finished of it; found {found}.")
    wanted = values.tasks or tasks
    _check_data([record for record in records if record["task"] in wanted])
    parts = records, further[: len(values.ablations)], further[len(values.ablations) :]
    return reporting.Source(*([item for item in some if item["task"] in wanted] for some in parts))


def _check_backbones(records):
    """Raises UserError if the scores are of several BERTs, which no table could tell apart."""
    backbones = [record["backbone"] for record in records if record.get("backbone")]
    names = {backbone["fingerprint"]: backbone["name"] for backbone in backbones}
    if len(names) > 1:
        raise UserError(
            "--records: found trainings of several BERTs"
            f" ({', '.join(sorted(map(str, names.values())))}); give each a folder of its own."
        )


def _check_data(records):
    """Raises UserError if files of the same names differed between trainings of a task."""
    known = {}
    for record in records:
        named = [record["flags"].get(name) for name in sweep_grids.DATA_FLAGS]
        for split, digest in record.get("data", {}).items():
            place = (record["script"], record["task"], split, *named)
            if known.setdefault(place, digest) != digest:
                raise UserError(
                    f"--records: found trainings of {record['task']} on different data (digests"
                    f" {known[place]} and {digest} of the {split} split); give each a folder of its"
                    " own."
                )


main = cli.main_of(run)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
