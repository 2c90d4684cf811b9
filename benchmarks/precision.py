"""Trains MRPC in float32 and in bfloat16 from the same seeds, and compares the results.

    python benchmarks/precision.py --glue_dir=... --bert_dir=...

Prints the paired difference of dev accuracy with its standard error, and the difference of training
losses.
"""

import harness  # First: it makes the project's modules importable.

# isort: split
from adapter_bert.shell import environment  # noqa: F401  First: it sets TensorFlow's environment.

# isort: split
import os
import statistics
import subprocess
import sys
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

import mrpc
import run_classifier
from adapter_bert.shell import cli
from adapter_bert.training import progress

_PRECISIONS = ("float32", "bfloat16")
_SEEDS, _EPOCHS = 10, 3
_SMOOTHED_STEPS = 20  # A single batch's loss is noisy, so means over steps are compared.


def train(values, seed, precision):
    """Trains and evaluates in a new process; returns (dev accuracy, losses by step)."""
    harness.log(f"seed {seed}, {precision}")
    with tempfile.TemporaryDirectory() as output_dir:
        command = [
            *(sys.executable, __file__, "run_classifier"),
            *mrpc.flags(values.glue_dir, values.bert_dir),
            f"--num_train_epochs={_EPOCHS}",
            f"--random_seed={seed}",
            f"--precision={precision}",
            f"--output_dir={output_dir}",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(output_dir, "eval_results.txt"), encoding="utf-8") as reader:
            scores = dict(line.rstrip("\n").split(" = ") for line in reader)
        return float(scores["eval_accuracy"]), read_losses(output_dir)


def read_losses(output_dir):
    """Returns the training losses [steps] that a run wrote for TensorBoard."""
    losses = {}
    for path in tf.io.gfile.glob(os.path.join(output_dir, "events.out.tfevents.*")):
        for event in tf.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag == "loss":
                    losses[event.step] = value.simple_value
    return np.array([losses[step] for step in sorted(losses)])


def smoothed(losses):
    """Returns the running mean of `_SMOOTHED_STEPS` losses."""
    return np.convolve(losses, np.full(_SMOOTHED_STEPS, 1 / _SMOOTHED_STEPS), mode="valid")


def report(accuracies, losses):
    """Returns the report's Markdown lines.

    Args:
      accuracies: dict from precision to a list, one per seed.
      losses: dict from precision to a list of float [steps], one per seed.
    """
    full, half = (accuracies[precision] for precision in _PRECISIONS)
    differences = [100 * (b - a) for a, b in zip(full, half)]
    error = statistics.stdev(differences) / len(differences) ** 0.5
    rows = [[str(i + 1), f"{a:.1%}", f"{b:.1%}"] for i, (a, b) in enumerate(zip(full, half))]
    rows.append(["mean", f"{statistics.mean(full):.2%}", f"{statistics.mean(half):.2%}"])
    mean = [smoothed(np.mean(losses[precision], axis=0)) for precision in _PRECISIONS]
    apart = np.abs(mean[1] / mean[0] - 1)
    single = [np.abs(smoothed(b) / smoothed(a) - 1).max() for a, b in zip(*losses.values())]
    return [
        *harness.table(["seed", *_PRECISIONS], rows),
        "",
        f"bfloat16 minus float32, paired: {statistics.mean(differences):+.2f} points of dev"
        f" accuracy, standard error {error:.2f}.",
        "",
        f"Training loss, running mean of {_SMOOTHED_STEPS} steps: averaged over the seeds at most"
        f" {apart.max():.2%} apart along the training, {np.mean(apart):.2%} on average; of a"
        f" single seed at most {max(single):.2%}.",
    ]


def main():
    parser = harness.arguments(__doc__, peers=False, repeats=False)
    harness.data_arguments(parser)
    values = harness.parse(parser)
    accuracies, losses = ({precision: [] for precision in _PRECISIONS} for _ in range(2))
    for seed in range(1, _SEEDS + 1):
        for precision in _PRECISIONS:
            accuracy, run_losses = train(values, seed, precision)
            accuracies[precision].append(accuracy)
            losses[precision].append(run_losses)
    title = f"MRPC in float32 and bfloat16, {_SEEDS} seeds, {_EPOCHS} epochs"
    lines = report(accuracies, losses)
    how = "A training of each seed in each precision, in turns."
    harness.publish(values, "precision", title, lines, ["TensorFlow " + tf.__version__], how)


def main_of_a_run():
    progress._SUMMARY_EVERY_STEPS = 1
    del sys.argv[1]
    run_classifier.define_flags()
    cli.run(run_classifier.main)


if __name__ == "__main__":
    if sys.argv[1:2] == ["run_classifier"]:
        main_of_a_run()
    else:
        main()
