"""Measures one epoch of MRPC, from data to checkpoint, as complete processes.

    python benchmarks/epoch.py --glue_dir=... --bert_dir=...

Ours in the best precision and in float32; the same training in float32 with every pair padded to
128, on plain TensorFlow; PyTorch adapters in bfloat16, each batch padded to its longest pair.
"""

import contextlib
import os
import subprocess
import sys
import tempfile

import harness
import mrpc
import workload
from harness import Target

_OURS = "ours, --precision=auto"
_PLAIN = "plain TensorFlow, float32, padded to 128"
_TORCH = "PyTorch adapters, bfloat16, padded dynamically"
_TARGETS = [Target(_PLAIN, 0.2), Target(_TORCH, 0.7)]


@contextlib.contextmanager
def prepared(*options):
    """Yields a temporary folder with the output of prepare.py."""
    script = os.path.join(harness.FOLDER, "prepare.py")
    environment = dict(os.environ, PYTHONPATH=harness.ROOT)
    with tempfile.TemporaryDirectory() as parent:
        folder = os.path.join(parent, "prepared")
        command = [sys.executable, script, folder, *options]
        done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"prepare.py failed:\n{done.stderr[-4000:]}")
        yield folder


def ours(name, glue_dir, bert_dir, *options):
    """Returns a contestant that trains one epoch with run_classifier.py."""
    rate = f"--learning_rate={workload.LEARNING_RATE}"
    training = ["--do_train", "--num_train_epochs=1", rate]
    return run_classifier(name, glue_dir, bert_dir, *training, *options)


def run_classifier(name, glue_dir, bert_dir, *options):
    """Returns a contestant that runs run_classifier.py with options."""
    flags = ["--output_dir={scratch}/output", *mrpc.flags(glue_dir, bert_dir), *options]
    return harness.project_script(name, "traced.py", "run_classifier.py", *flags)


def epochs_flag(glue_dir, num_steps):
    """Returns the flag of run_classifier.py for a training of `num_steps` steps."""
    num_rows = len(mrpc.read(glue_dir, "train"))
    return f"--num_train_epochs={(num_steps + 0.5) * workload.BATCH_SIZE / num_rows}"


def plain(name, glue_dir, bert_dir, *options):
    """Returns a contestant that trains with plain TensorFlow."""
    paths = ["--glue_dir=" + glue_dir, "--bert_dir=" + bert_dir, "--output_dir={scratch}"]
    return harness.project_script(name, "plain_mrpc.py", *paths, *options)


def torch(name, python, work, glue_dir, folder, *options):
    """Returns a contestant that trains or predicts with PyTorch; `folder` is from `prepared`."""
    paths = ["--glue_dir=" + glue_dir, "--bert_dir=" + os.path.join(folder, "huggingface")]
    paths.append("--output_dir={scratch}")
    return harness.peer(name, python, "torch_mrpc.py", work, *paths, *options)


def steps_alone(timing):
    """Returns a contestant's time from the start of its first step to the end of its last."""
    seconds = [
        harness.last_mark(marks, "step") - harness.first_mark(marks, "session")
        for marks in timing.facts["marks"]
    ]
    return timing._replace(seconds=seconds, first=seconds[0])


def main():
    parser = harness.arguments(__doc__)
    harness.data_arguments(parser)
    values = harness.parse(parser)
    glue_dir, bert_dir = values.glue_dir, values.bert_dir
    with prepared("--bert_dir=" + bert_dir) as folder:
        contestants = [
            ours(_OURS, glue_dir, bert_dir),
            ours("ours, --precision=float32", glue_dir, bert_dir, "--precision=float32"),
            plain(_PLAIN, glue_dir, bert_dir),
            torch(_TORCH, values.peers, "train", glue_dir, folder),
        ]
        timings = harness.take_turns_whole(contestants, values.repeats)
    lines = harness.compare(timings, _OURS)
    lines += ["", "The training steps alone:", ""]
    lines += [f"- {timing.name}: {steps_alone(timing).median:.3g} s" for timing in timings]
    lines += ["", *harness.judge(timings, _OURS, _TARGETS)]
    title = "One epoch of MRPC, data to checkpoint"
    harness.publish(values, "epoch", title, lines, harness.versions_of(timings))


if __name__ == "__main__":
    main()
