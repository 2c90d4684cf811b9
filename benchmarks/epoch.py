"""One epoch of MRPC, from the data to the checkpoint, as complete processes.

    python benchmarks/epoch.py --glue_dir=... --bert_dir=...

Ours in the best precision and in float32; the same training in float32 with every pair padded to
128, on plain TensorFlow; PyTorch adapters in bfloat16, each batch padded to its longest pair.
"""

import os
import statistics
import subprocess
import sys
import tempfile

import harness
import workload
from harness import Target

_OURS = "ours, --precision=auto"
_PLAIN = "plain TensorFlow, float32, padded to 128"
_TORCH = "PyTorch adapters, bfloat16, padded dynamically"
_TARGETS = [Target(_PLAIN, 0.2), Target(_TORCH, 0.7)]


def prepare(folder, *options):
    """Has prepare.py write into a folder, in a process of its own."""
    script = os.path.join(harness.FOLDER, "prepare.py")
    environment = dict(os.environ, PYTHONPATH=harness.ROOT)
    command = [sys.executable, script, folder, *options]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"prepare.py failed:\n{done.stderr[-4000:]}")


def ours(name, glue_dir, bert_dir, *options):
    """A contestant that trains one epoch with run_classifier.py."""
    return harness.own(
        name,
        "traced.py",
        "run_classifier.py",
        "--task_name=MRPC",
        "--do_train",
        "--num_train_epochs=1",
        f"--learning_rate={workload.LEARNING_RATE}",
        "--output_dir={scratch}/output",
        f"--data_dir={os.path.join(glue_dir, 'MRPC')}",
        f"--bert_config_file={os.path.join(bert_dir, 'bert_config.json')}",
        f"--vocab_file={os.path.join(bert_dir, 'vocab.txt')}",
        f"--init_checkpoint={os.path.join(bert_dir, 'bert_model.ckpt')}",
        *options,
    )


def plain(name, glue_dir, bert_dir, *options):
    """A contestant that trains with plain TensorFlow."""
    paths = ["--glue_dir=" + glue_dir, "--bert_dir=" + bert_dir, "--output_dir={scratch}"]
    return harness.own(name, "plain_mrpc.py", *paths, *options)


def torch(name, python, work, glue_dir, prepared, *options):
    """A contestant that trains or predicts with PyTorch; `prepared` is prepare.py's folder."""
    paths = ["--glue_dir=" + glue_dir, "--bert_dir=" + os.path.join(prepared, "huggingface")]
    paths.append("--output_dir={scratch}")
    return harness.peer(name, python, "torch_mrpc.py", work, *paths, *options)


def training_seconds(timing):
    """The median time from the beginning of the first step to the end of the last."""
    return statistics.median(
        harness.last_mark(marks, "step") - harness.first_mark(marks, "session")
        for marks in timing.facts["marks"]
    )


def main():
    parser = harness.arguments(__doc__)
    harness.data_arguments(parser)
    values = harness.parse(parser)
    glue_dir, bert_dir = values.glue_dir, values.bert_dir
    with tempfile.TemporaryDirectory() as folder:
        prepared = os.path.join(folder, "prepared")
        prepare(prepared, "--bert_dir=" + bert_dir)
        contestants = [
            ours(_OURS, glue_dir, bert_dir),
            ours("ours, --precision=float32", glue_dir, bert_dir, "--precision=float32"),
            plain(_PLAIN, glue_dir, bert_dir),
            torch(_TORCH, values.peers, "train", glue_dir, prepared),
        ]
        timings = harness.take_turns_whole(contestants, values.repeats)
    lines = harness.compare(timings, _OURS)
    lines += ["", "Of which the steps took, without what comes before and after:", ""]
    lines += [f"- {timing.name}: {training_seconds(timing):.3g} s" for timing in timings]
    lines += ["", *harness.judge(timings, _OURS, _TARGETS)]
    title = "One epoch of MRPC, data to checkpoint"
    harness.publish(values, "epoch", title, lines, harness.versions_of(timings))


if __name__ == "__main__":
    main()
