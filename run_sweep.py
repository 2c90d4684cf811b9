"""Many trainings, each in a process of its own, and which of them validate best.

    python run_sweep.py --preset=glue --output_dir=output/glue --jobs=2
    python run_sweep.py --grid=results/grids/sizes.json -- --precision=float32

What is done is never run twice: started again, or on several machines with --shard=1/2 and
--shard=2/2 into one folder, it goes on with what is left. run_report.py draws what came out.
"""

from adapter_bert.common import environment

if __name__ == "__main__":
    environment.prepare()

import collections
import dataclasses
import re
import shlex
from typing import Optional, Tuple

from absl import flags

from adapter_bert.common import cli
from adapter_bert.common.errors import UserError
from adapter_bert.common.settings import Settings, flag
from adapter_bert.experiments import grids, records, sweep
from adapter_bert.experiments.records import DONE


@dataclasses.dataclass(frozen=True)
class SweepConfig(Settings):
    """The settings of this script."""

    preset: Optional[str] = flag(
        None,
        "One of the paper's grids. "
        + "; ".join(f"{name}: {title}" for name, (title, _) in grids.PRESETS.items())
        + ".",
        "Trials",
        choices=grids.PRESETS,
    )
    grid: Optional[str] = flag(
        None, "JSON file with grids of flags: see the first lines of grids.py.", "Trials"
    )
    set: Tuple[str, ...] = flag(
        (),
        "flag=value[,value...]: other values for a flag, in the grids that have it, else in all.",
        "Trials",
        is_multiple=True,
    )
    only: Tuple[str, ...] = flag(
        (),
        "flag=value[,value...]: only the trials with one of these values.",
        "Trials",
        is_multiple=True,
    )
    jobs: int = flag(1, "Trials that run at a time.", "What is done", lower=1)
    shard: str = flag(
        "1/1", "i/n: of every n trials the i-th, for the i-th of n machines.", "What is done"
    )
    retry_failed: bool = flag(False, "Run the trials again that failed.", "What is done")
    status: bool = flag(False, "Show how far the sweep is, and end.", "What is done")
    dry_run: bool = flag(False, "Show the commands that are left to run, and end.", "What is done")
    output_dir: str = flag("output/sweep", "Where trials and results go.", "Output")
    keep: str = flag(
        "adapters",
        "What stays of a trial that is done, beside its scores and its log: its task adapter"
        " (of full fine-tuning all of BERT), nothing, or the checkpoints too.",
        "Output",
        choices=sweep.KEEP,
    )


def define_flags(flag_values=flags.FLAGS):
    """Defines all flags of this script."""
    SweepConfig.define_flags(flag_values)


def run(values, extra_flags=()):
    """Does what the flags ask for.

    Args:
      values: parsed flags of `define_flags`.
      extra_flags: those of every trial's command.

    Returns:
      The report that ends the run: a list of lines.
    """
    config = SweepConfig.from_flags(values)
    runner = sweep.Sweep(
        _trials(config),
        sweep.Settings(
            folder=config.output_dir,
            jobs=config.jobs,
            shard=_shard(config.shard),
            extra_flags=tuple(extra_flags),
            keep=config.keep,
            retry_failed=config.retry_failed,
        ),
    )
    if config.dry_run:
        return [" ".join(map(shlex.quote, command)) for command in runner.commands()]
    if not config.status:
        runner.check_flags()
        print("\n".join(_table(runner)), flush=True)
        runner.run()
    return _table(runner)


def _trials(config):
    if (config.preset is None) == (config.grid is None):
        raise UserError("Give --preset or --grid, one of them.")
    if config.preset:
        source, (_, trial_grids) = f"--preset={config.preset}", grids.PRESETS[config.preset]
    else:
        source, trial_grids = f"--grid={config.grid}", grids.read_grids(config.grid)
    settings = {}
    for text in config.set:
        name, flag_values = grids.parse_setting(text, "--set")
        if name in settings:
            raise UserError(f"--set={text}: {name} is given twice.")
        settings[name] = flag_values
    only = [grids.parse_setting(text, "--only") for text in config.only]
    return grids.expand_grids(grids.override_flags(trial_grids, settings), only, source)


def _shard(text):
    """i/n as (index from 0, n)."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    index, count = map(int, match.groups()) if match else (0, 0)
    if not index <= count or not count:
        raise UserError(f"--shard={text}: expected i/n, as in 1/2 and 2/2.")
    return index % count, count


def _table(runner):
    """How far a sweep is, as lines: by task and method, with the best validation score."""
    by_key, running = runner.records(), runner.running()
    groups = collections.OrderedDict()
    for key, trial in runner.trials.items():
        groups.setdefault((trial.task, trial.method), []).append(key)
    rows = [("task", "method", "trials", "done", "failed", "running", "best on the dev set")]
    for group, keys in groups.items():
        done = [by_key[key] for key in keys if key in by_key and by_key[key]["status"] == DONE]
        failed = sum(key in by_key for key in keys) - len(done)
        counts = len(keys), len(done), failed, sum(key in running for key in keys)
        rows.append((*group, *map(str, counts), _best(done, [runner.trials[key] for key in keys])))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in rows]
    lines += [f"running: {runner.name(key)}: {line}" for key, line in running.items()]
    lines += [
        f"failed: {runner.name(key)}: {record['reason']}"
        for key, record in by_key.items()
        if record["status"] != DONE
    ]
    return [line.rstrip() for line in [*lines, *records.missing_digests_note(by_key.values())]]


def _best(done, trials):
    """The best score of some records, and by which values of the flags that vary."""
    if not done:
        return ""
    best = max(done, key=lambda record: record["scores"][record["score"]])
    varied_flags = {
        name
        for name, value in best["flags"].items()
        for t in trials
        if dict(t.flags).get(name) != value
    }
    setting = " ".join(f"{name}={best['flags'][name]}" for name in sorted(varied_flags))
    return f"{best['score']} {best['scores'][best['score']]:.4f} {setting}"


main = cli.main_of(run, accepts_arguments=True)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
