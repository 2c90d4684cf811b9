"""Trains a grid of settings, each in its own process, and reports the best on the dev set.

    python run_sweep.py --preset=glue --output_dir=output/glue --jobs=2
    python run_sweep.py --grid=results/grids/sizes.json -- --precision=float32
    python run_sweep.py --chosen_from=output/glue --select_by=accuracy --set=random_seed=1,2,3

The same command resumes a sweep, or joins one that runs on another machine with the same folder.
run_report.py draws the results.
"""

from adapter_bert.shell import environment

if __name__ == "__main__":
    environment.prepare(environment.SWEEPS)

import dataclasses
import math
import re
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from adapter_bert.files import paths
from adapter_bert.paper import presets
from adapter_bert.shell import cli, printing
from adapter_bert.shell.errors import UserError
from adapter_bert.shell.settings import Settings, flag
from adapter_bert.sweeps import grids, halving, records, selection, sweep
from adapter_bert.sweeps.records import DONE


@dataclasses.dataclass(frozen=True)
class SweepConfig(Settings):
    """The settings of this script."""

    preset: Optional[str] = flag(
        None,
        "Grid of the paper. "
        + "; ".join(f"{name}: {title}" for name, (title, _) in presets.PRESETS.items())
        + ".",
        "Trials",
        choices=presets.PRESETS,
    )
    grid: Optional[str] = flag(
        None, "JSON file with grids of flags, in the format of docs/experiments.md.", "Trials"
    )
    chosen_from: Optional[str] = flag(
        None,
        "Folder of a sweep. Trains the settings that it selects for each task, method, size and"
        " adapter design.",
        "Trials",
    )
    set: Tuple[str, ...] = flag(
        (),
        "flag=value[,value...]: replaces a flag's values in the grids that have it, or else in all"
        " grids on which the flag has an effect.",
        "Trials",
        is_multiple=True,
    )
    only: Tuple[str, ...] = flag(
        (),
        "flag=value[,value...]: keeps only the trials with one of these values.",
        "Trials",
        is_multiple=True,
    )
    halving: bool = flag(
        False,
        "Successive halving: train all settings with the fewest epochs of the grid, the better half"
        " with the next larger number, and so on.",
        "Execution",
    )
    select_by: Optional[str] = flag(
        None,
        "Criterion that selects settings on the dev set: accuracy (if a task has it), or the task's"
        " score. Default: accuracy with --preset, as in the paper, else score.",
        "Execution",
        choices=selection.CRITERIA,
    )
    jobs: int = flag(1, "Number of trials that run in parallel.", "Execution", lower=1)
    shard: str = flag("1/1", "i/n: this machine runs every n-th trial, from the i-th.", "Execution")
    retry_failed: bool = flag(False, "Run failed trials again.", "Execution")
    status: bool = flag(False, "Print the sweep's progress and exit.", "Execution")
    dry_run: bool = flag(False, "Print the remaining commands and exit.", "Execution")
    output_dir: str = flag("output/sweep", "Folder of trials and results.", "Output")
    keep: str = flag(
        "adapters",
        "Files to keep of a finished trial, besides scores and log. adapters: the task adapter (for"
        " full fine-tuning, all of BERT); scores: none; all: also the checkpoints.",
        "Output",
        choices=sweep.KEEP,
    )


def run(values: Any, extra_flags: Sequence[str] = ()) -> List[str]:
    """Runs the sweep, or prints its status or commands; returns the report as lines.

    Args:
      values: the parsed flags.
      extra_flags: flags for every trial's command.

    Raises:
      UserError: a flag is invalid, or a trial of the sweep failed.
    """
    config = SweepConfig.from_flags(values)
    if config.halving and _shard(config.shard) != (0, 1):
        raise UserError(
            f"--shard={config.shard}: --halving compares all trials of a stage; expected 1/1. Use"
            " --only to give each machine its tasks."
        )
    trials = _trials(config)
    with grids.hide_values_in_errors(grids.variables(trials)):
        return _run(config, trials, extra_flags)


def _run(config: SweepConfig, trials: List[grids.Trial], extra_flags: Sequence[str]) -> List[str]:
    runner = sweep.Sweep(
        trials,
        config.output_dir,
        jobs=config.jobs,
        shard=_shard(config.shard),
        extra_flags=extra_flags,
        keep=config.keep,
        retry_failed=config.retry_failed,
    )
    criterion = config.select_by or ("accuracy" if config.preset else "score")
    if config.dry_run:
        commands = runner.commands(_admitted_keys(runner, config, criterion))
        return list(map(sweep.shell_line, commands))
    if not config.status:
        print("\n".join(_table(runner, criterion)), flush=True)
        environment.import_for_training()
        environment.silence_tensorflow()
        _run_stages(runner, config, criterion)
    lines = _table(runner, criterion)
    if config.halving:
        admitted = len(_admitted_keys(runner, config, criterion))
        lines.append(f"halving: {admitted} of {len(runner.trials)} trials selected")
    failed = sum(record["status"] != DONE for record in runner.records().values())
    if failed and not config.status:
        print("\n".join(lines))
        raise UserError(
            f"{failed} of {len(runner.trials)} trials failed for the reasons above; add"
            " --retry_failed to run them again."
        )
    return lines


def _run_stages(runner: sweep.Sweep, config: SweepConfig, criterion: str) -> None:
    """Runs all trials, or with --halving the remaining ones of each stage."""
    finished, keys = set(), _admitted_keys(runner, config, criterion)
    while keys != finished:
        runner.run(keys - finished)
        finished, keys = keys, _admitted_keys(runner, config, criterion)


def _admitted_keys(runner: sweep.Sweep, config: SweepConfig, criterion: str) -> Set[str]:
    """Returns the keys of the trials to run, as far as the records decide it."""
    if not config.halving:
        return set(runner.trials)
    by_key = runner.records()
    done = _done_runs(by_key, criterion)
    scores = {key: done[key].criterion_points if key in done else -math.inf for key in by_key}
    return set(halving.admitted_keys(runner.trials, scores))


def _done_runs(by_key: Dict[str, Dict[str, Any]], criterion: str) -> Dict[str, selection.Run]:
    """Returns the runs of finished records, by key."""
    done = {key: record for key, record in by_key.items() if record["status"] == DONE}
    return dict(zip(done, selection.read(done.values(), criterion)))


def _trials(config: SweepConfig) -> List[grids.Trial]:
    sources = {name: getattr(config, name) for name in ("preset", "grid", "chosen_from")}
    given = [f"--{name}={value}" for name, value in sources.items() if value is not None]
    if len(given) != 1:
        raise UserError("Set exactly one of --preset, --grid and --chosen_from.")
    (source,) = given
    if config.preset:
        _, trial_grids = presets.PRESETS[config.preset]
    elif config.grid:
        trial_grids = grids.read_grids(config.grid)
    else:
        trial_grids = _chosen_grids(config)
    settings = {}
    for text in config.set:
        name, flag_values = grids.parse_setting(text, "--set")
        if name in settings:
            raise UserError(f"--set={text}: {name} is given twice.")
        settings[name] = flag_values
    only = [grids.parse_setting(text, "--only") for text in config.only]
    return grids.expand_grids(grids.override_flags(trial_grids, settings), only, source)


def _chosen_grids(config: SweepConfig) -> List[Dict[str, Any]]:
    folder, flag = str(config.chosen_from), f"--chosen_from={config.chosen_from}"
    paths.existing_folder(folder, "--chosen_from")
    # Without the baseline's records: its settings come from its own search.
    done = [
        record
        for record in records.read(folder)
        if record["status"] == DONE and record["script"] in grids.scripts()
    ]
    if not done:
        raise UserError(f"{flag}: the folder has no finished run.")
    records.check_same_backbone(done, flag)
    records.check_same_data(done, flag)
    return selection.chosen_grids(done, config.select_by or "score")


def _shard(text: str) -> Tuple[int, int]:
    """Returns (i modulo n, n) of the text i/n."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    index, count = map(int, match.groups()) if match else (0, 0)
    if not index <= count or not count:
        raise UserError(f"--shard={text}: expected i/n, as in 1/2 and 2/2.")
    return index % count, count


def _table(runner: sweep.Sweep, criterion: str) -> List[str]:
    """Returns the sweep's progress as lines: by task and method, with the best on the dev set."""
    by_key, running = runner.records(), runner.running()
    runs = _done_runs(by_key, criterion)
    groups = {}
    for key, trial in runner.trials.items():
        groups.setdefault((trial.task, trial.method), []).append(key)
    rows = [("task", "method", "trials", "done", "failed", "running", "best on the dev set")]
    notes = []
    for group, keys in groups.items():
        done = [key for key in keys if key in runs]
        failed = sum(key in by_key for key in keys) - len(done)
        counts = len(keys), len(done), failed, sum(key in running for key in keys)
        best = max(done, key=lambda key: runs[key].criterion_points, default="")
        varied = _varied([dict(runner.trials[key].flags) for key in keys])
        text = _describe(by_key[best], runs[best], varied) if best else ""
        rows.append((*group, *map(str, counts), text))
        one_label = sum(runs[key].predicts_one_label() for key in done)
        if one_label:
            count = f"{one_label} of {len(done)} finished trials"
            notes.append(f"one label: {' '.join(group)}: {count} predict only one label")
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in rows]
    lines += [f"running: {runner.name(key)}: {line}" for key, line in running.items()]
    lines += [
        f"failed: {runner.name(key)}: {record['reason']}"
        for key, record in by_key.items()
        if record["status"] != DONE
    ]
    lines += notes
    lines += records.missing_digests_note(by_key.values())
    return [printing.one_line(line).rstrip() for line in lines]


def _varied(flags: List[Dict[str, Any]]) -> List[str]:
    """Returns the names of the flags that differ."""
    names = sorted({name for one in flags for name in one})
    return [name for name in names if len({one.get(name) for one in flags}) > 1]


def _describe(record: Dict[str, Any], run: selection.Run, names: List[str]) -> str:
    """Returns a record's score and the values of the named flags, as a text."""
    given = [name for name in names if name in record["flags"]]
    setting = " ".join(f"{name}={record['flags'][name]}" for name in given)
    note = " (predicts only one label)" if run.predicts_one_label() else ""
    return f"{record['score']} {record['scores'][record['score']]:.4f} {setting}{note}"


define_flags = SweepConfig.define_flags
main = cli.main_of(run, define_flags, accepts_arguments=True)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
