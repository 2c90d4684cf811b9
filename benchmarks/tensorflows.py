"""Compares the newest TensorFlow with 2.15: a step, a forward pass, an epoch, the first step.

    python benchmarks/tensorflows.py --glue_dir=... --bert_dir=...

In float32, which both support equally. MiniLM, batch 32, 128 tokens; the epoch is MRPC's.
"""

import os
import statistics

import epoch
import harness

_NEWEST, _OLDER = "newest TensorFlow", "TensorFlow 2.15"


def on_both(contestant, older):
    """Returns a contestant for this Python, and one for the older TensorFlow's."""
    script = contestant.command[1:]
    return [
        contestant._replace(name=_NEWEST),
        contestant._replace(name=_OLDER, command=[older, *script]),
    ]


def main():
    parser = harness.arguments(__doc__, peers=False)
    harness.data_arguments(parser)
    older = os.path.join(harness.ROOT, ".venv-tf2.15", "bin", "python")
    parser.add_argument("--older", default=older, help="Python of `make .venv-tf2.15/installed`")
    values = harness.parse(parser)
    rows, versions = [], []

    def measure(what, take_turns, contestant, of=lambda timing: timing.median):
        timings = take_turns(on_both(contestant, values.older), values.repeats)
        newest, older = map(of, timings)
        rows.append([what, f"{newest:.3g} s", f"{older:.3g} s", f"{newest / older:.2f}×"])
        versions.extend(harness.versions_of(timings))

    for work, what in (("step", "a training step"), ("forward", "a forward pass")):
        options = ["--model=minilm-l6", "--work=" + work, "--precision=float32"]
        measure(what, harness.take_turns, harness.project_script("", "own_model.py", *options))
    data = (values.glue_dir, values.bert_dir, "--precision=float32")
    measure("an epoch, data to checkpoint", harness.take_turns_whole, epoch.ours("", *data))
    short = epoch.ours("", *data, epoch.epochs_flag(values.glue_dir, 3))
    measure("process start to first step", harness.take_turns_whole, short, first_step)
    title = "The newest TensorFlow and 2.15"
    header = ["", _NEWEST, _OLDER, "newest takes"]
    harness.publish(values, "tensorflows", title, harness.table(header, rows), versions)


def first_step(timing):
    """Returns the median seconds from a process's start to the end of its first step."""
    marks = timing.facts["marks"]
    return statistics.median(harness.first_mark(run, "step") for run in marks)


if __name__ == "__main__":
    main()
