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
import re
import shlex

from absl import flags

from adapter_bert.common import cli
from adapter_bert.common.cli import section
from adapter_bert.common.errors import UserError
from adapter_bert.experiments import grids, records, sweep
from adapter_bert.experiments.records import DONE


def define_flags(flag_values=flags.FLAGS):
    """Defines all flags of this script."""
    _define_trials(section("Trials", flag_values))
    _define_processes(section("What is done", flag_values))
    at = section("Output", flag_values)
    flags.DEFINE_string("output_dir", "output/sweep", "Where trials and results go.", **at)
    flags.DEFINE_enum(
        "keep",
        "adapters",
        list(sweep.KEEP),
        "What stays of a trial that is done, beside its scores and its log: its task adapter"
        " (of full fine-tuning all of BERT), nothing, or the checkpoints too.",
        **at,
    )


def _define_trials(at):
    presets = "; ".join(f"{name}: {title}" for name, (title, _) in grids.PRESETS.items())
    flags.DEFINE_enum(
        "preset", None, list(grids.PRESETS), f"One of the paper's grids. {presets}.", **at
    )
    flags.DEFINE_string(
        "grid", None, "JSON file with grids of flags: see the first lines of grids.py.", **at
    )
    flags.DEFINE_multi_string(
        "set",
        [],
        "flag=value[,value...]: other values for a flag, in the grids that have it, else in all.",
        **at,
    )
    flags.DEFINE_multi_string(
        "only", [], "flag=value[,value...]: only the trials with one of these values.", **at
    )


def _define_processes(at):
    flags.DEFINE_integer("jobs", 1, "Trials that run at a time.", 1, **at)
    flags.DEFINE_string(
        "shard", "1/1", "i/n: of every n trials the i-th, for the i-th of n machines.", **at
    )
    flags.DEFINE_bool("retry_failed", False, "Run the trials again that failed.", **at)
    flags.DEFINE_bool("status", False, "Show how far the sweep is, and end.", **at)
    flags.DEFINE_bool("dry_run", False, "Show the commands that are left to run, and end.", **at)


def run(values, extra_flags=()):
    """Does what the flags ask for.

    Args:
      values: parsed flags of `define_flags`.
      extra_flags: those of every trial's command.

    Returns:
      The report that ends the run: a list of lines.
    """
    runner = sweep.Sweep(
        _trials(values),
        sweep.Settings(
            folder=values.output_dir,
            jobs=values.jobs,
            shard=_shard(values.shard),
            extra_flags=tuple(extra_flags),
            keep=values.keep,
            retry_failed=values.retry_failed,
        ),
    )
    if values.dry_run:
        return [" ".join(map(shlex.quote, command)) for command in runner.commands()]
    if not values.status:
        runner.check_flags()
        print("\n".join(_table(runner)), flush=True)
        runner.run()
    return _table(runner)


def _trials(values):
    if (values.preset is None) == (values.grid is None):
        raise UserError("Give --preset or --grid, one of them.")
    if values.preset:
        source, (_, trial_grids) = f"--preset={values.preset}", grids.PRESETS[values.preset]
    else:
        source, trial_grids = f"--grid={values.grid}", grids.read_grids(values.grid)
    settings = {}
    for text in values.set:
        name, flag_values = grids.parse_setting(text, "--set")
        if name in settings:
            raise UserError(f"--set={text}: {name} is given twice.")
        settings[name] = flag_values
    only = [grids.parse_setting(text, "--only") for text in values.only]
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
