"""The paper's tables and figures from finished trainings, and a test between two of them.

    python run_report.py --records=output/sweep --report=figure4 --report_dir=output/figures

writes figure4.md, figure4.tsv (the numbers), figure4.png and figure4.svg; see `reports.REPORTS`.

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
from adapter_bert.experiments import grids, records, reports, significance, studies


def define_flags(flag_values=flags.FLAGS):
    """Defines all flags of this script."""
    at = section("Tables and figures", flag_values)
    flags.DEFINE_string("records", None, "Folder of a sweep, with its results*.jsonl.", **at)
    flags.DEFINE_list(
        "report",
        ["all"],
        f"What to write: {', '.join(reports.REPORTS)}; all: those that there are records for.",
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
        first, second = values.compare
        return significance.describe(significance.compare(first, second, values.labels))
    names = _names(values)
    results = _read_results(values)
    by_name = {name: reports.REPORTS[name].make(results) for name in names}
    available_reports = {name: report for name, report in by_name.items() if report.numbers}
    if not available_reports or (len(available_reports) < len(names) and values.report != ["all"]):
        missing = [name for name in names if name not in available_reports]
        needs = "; ".join(f"{name}: {reports.REPORTS[name].needs}" for name in missing)
        raise UserError(f"--report={','.join(values.report)}: found none of these: {needs}.")
    with files.convert_write_errors(f"--report_dir={values.report_dir}"):
        files.makedirs(values.report_dir)
    written = []
    for name, report in available_reports.items():
        for file_name, content in reports.render(values.name or name, report).items():
            written.append(posixpath.join(values.report_dir, file_name))
            files.write_atomically(written[-1], content)
    trials = [record for record in results.records if record["script"] in grids.SCRIPTS]
    return [*records.missing_digests_note(trials), *(f"Written: {path}" for path in written)]


def _names(values):
    """The names of the reports that are asked for, checked."""
    names = list(reports.REPORTS) if values.report == ["all"] else values.report
    for name in names:
        if name not in reports.REPORTS:
            raise UserError(
                f"--report={name}: expected all, or some of {', '.join(reports.REPORTS)}."
            )
    if values.name and len(names) > 1:
        raise UserError(f"--name={values.name} is for one --report, not for {len(names)}.")
    return names


def _read_results(values):
    """The `reports.Results` that the flags name, of --tasks alone if given."""
    ablations = [studies.read_ablation(path) for path in values.ablations]
    searches = [studies.read_search(path) for path in values.searches]
    if not (values.records or ablations or searches):
        raise UserError("--records is not given, expected the folder of a sweep.")
    if values.records:
        paths.existing_folder(values.records, "--records")
    trainings = records.read(values.records) if values.records else []
    trainings = [record for record in trainings if record["status"] == records.DONE]
    if not (trainings or ablations or searches):
        raise UserError(f"--records={values.records}: found no finished training there.")
    _check_backbones(trainings)
    tasks = {result["task"] for result in (*trainings, *ablations, *searches)}
    for task in values.tasks:
        if task not in tasks:
            available = ", ".join(sorted(tasks)) or "none"
            raise UserError(f"--tasks={task}: nothing finished of it; found {available}.")

    def select(results):
        return [result for result in results if result["task"] in (values.tasks or tasks)]

    _check_data(select(trainings))
    return reports.Results(select(trainings), select(ablations), select(searches))


def _check_backbones(trainings):
    """Raises UserError if the scores are of several BERTs, which no table could tell apart."""
    backbones = [record["backbone"] for record in trainings if record.get("backbone")]
    names = {backbone["fingerprint"]: backbone["name"] for backbone in backbones}
    if len(names) > 1:
        raise UserError(
            "--records: found trainings of several BERTs"
            f" ({', '.join(sorted(map(str, names.values())))}); give each a folder of its own."
        )


def _check_data(trainings):
    """Raises UserError if files of the same names differed between trainings of a task."""
    digests = {}
    for record in trainings:
        data_flags = [record["flags"].get(name) for name in grids.DATA_FLAGS]
        for split, digest in record.get("data", {}).items():
            key = (record["script"], record["task"], split, *data_flags)
            if digests.setdefault(key, digest) != digest:
                raise UserError(
                    f"--records: found trainings of {record['task']} on different data (digests"
                    f" {digests[key]} and {digest} of the {split} split); give each a folder of its"
                    " own."
                )


main = cli.main_of(run)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
