"""Measures the time from process start to the first training step on MRPC, by phase.

python benchmarks/startup.py --glue_dir=... --bert_dir=...
"""

import statistics

import epoch
import harness

_STEPS = 3
_OURS = "ours, --precision=auto"

# From the mark that ends a phase to the phase's name.
_PHASES = (
    ("python", "the interpreter starts"),
    ("imports", "imports"),
    ("data", "flags, checks, reading and tokenizing"),
    ("graph", "building the model"),
    ("session", "loading weights, making the session"),
    ("step", "the first step"),
)


def phases(marks):
    """Returns the seconds of each phase of a run, in the order of `_PHASES`."""
    ends = [harness.first_mark(marks, name) for name, _ in _PHASES]
    return [end - start for start, end in zip([0.0, *ends], ends)]


def describe(timings):
    """Returns a Markdown table: a row for each phase, a column for each contestant."""
    columns = []
    for timing in timings:
        runs = timing.facts["marks"]
        split = [statistics.median(seconds) for seconds in zip(*map(phases, runs))]
        total = statistics.median(harness.first_mark(marks, "step") for marks in runs)
        later = statistics.median(
            (harness.last_mark(marks, "step") - harness.first_mark(marks, "step")) / (_STEPS - 1)
            for marks in runs
        )
        columns.append([f"{seconds:.2f} s" for seconds in (*split, total, later)])
    names = [name for _, name in _PHASES] + ["**process start to first step**", "each later step"]
    header = ["phase"] + [timing.name for timing in timings]
    return harness.table(header, [list(row) for row in zip(names, *columns)])


def main():
    parser = harness.arguments(__doc__)
    harness.data_arguments(parser)
    values = harness.parse(parser)
    glue_dir, bert_dir = values.glue_dir, values.bert_dir
    with epoch.prepared("--bert_dir=" + bert_dir) as folder:
        steps = f"--max_steps={_STEPS}"
        contestants = [
            epoch.ours(_OURS, glue_dir, bert_dir, epoch.epochs_flag(glue_dir, _STEPS)),
            epoch.plain("plain TensorFlow, float32, padded to 128", glue_dir, bert_dir, steps),
            epoch.torch(
                "PyTorch adapters, bfloat16", values.peers, "train", glue_dir, folder, steps
            ),
        ]
        timings = harness.take_turns_whole(contestants, values.repeats, warm_up=1)
    title = "From process start to the first step (MRPC)"
    versions = harness.versions_of(timings)
    harness.publish(values, "startup", title, describe(timings), versions)


if __name__ == "__main__":
    main()
