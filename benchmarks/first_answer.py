"""Measures the time from process start to a Predictor's first answer, by phase.

python benchmarks/first_answer.py --bert_dir=demo/bert

The BERT is converted before; the conversion is measured once, in a separate process.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

import harness  # First: it makes the project's modules importable.

# isort: split

import random_weights
from adapter_bert.formats import onnx_backbone, task_adapter
from adapter_bert.model import configs
from adapter_bert.serving.inference.onnx_runtime import onnxruntime

_PHASES = (
    ("imports", "the interpreter starts, imports"),
    ("built", "Predictor(...)"),
    ("first", "the first answer"),
    ("second", "the second answer"),
)
_WORKER = """
import sys, worker
from adapter_bert import Predictor
Predictor
worker.mark("imports", version="{version}")
predict = Predictor(*sys.argv[1:])
worker.mark("built")
predict("The firm sold it.", "It was sold by the firm.")
worker.mark("first")
predict("The firm sold it.", "It was sold by the firm.")
worker.mark("second")
assert "tensorflow" not in sys.modules
"""


def save_adapter(bert_dir, folder):
    """Saves a task adapter with random weights, and converts the BERT."""
    task_adapter.save(folder, random_weights.adapter_for(bert_dir, "task"))
    config = configs.BertConfig.from_json_file(os.path.join(bert_dir, "bert_config.json"))
    onnx_backbone.load(os.path.join(bert_dir, "bert_model.ckpt"), config)


def conversion_seconds(bert_dir):
    """Returns how long the command takes that converts the BERT, in a folder of links to it."""
    with tempfile.TemporaryDirectory() as folder:
        for name in os.listdir(bert_dir):
            if name != onnx_backbone.FILE:
                os.symlink(os.path.join(bert_dir, name), os.path.join(folder, name))
        command = [sys.executable, "convert_checkpoint.py", "to_onnx", folder]
        start = time.monotonic()
        subprocess.run(command, cwd=harness.ROOT, stdout=sys.stderr, check=True)
        return time.monotonic() - start


def main():
    parser = harness.arguments(__doc__, peers=False)
    harness.bert_argument(parser)
    values = harness.parse(parser)
    version = "ONNX Runtime " + onnxruntime.__version__
    with tempfile.TemporaryDirectory() as folder:
        save_adapter(values.bert_dir, os.path.join(folder, "adapter"))
        code = f"import sys; sys.path.append({harness.FOLDER!r})" + _WORKER.format(version=version)
        command = [sys.executable, "-c", code, os.path.join(folder, "adapter"), values.bert_dir]
        (timing,) = harness.take_turns_whole(
            [harness.Contestant("Predictor", command)], values.repeats, warm_up=1
        )
    runs = timing.facts["marks"]
    ends = [[harness.first_mark(marks, name) for name, _ in _PHASES] for marks in runs]
    rows = []
    for index, (_, text) in enumerate(_PHASES):
        seconds = [end[index] - (end[index - 1] if index else 0.0) for end in ends]
        rows.append([text, f"{1000 * statistics.median(seconds):.0f} ms"])
    first = statistics.median(end[2] for end in ends)
    converting = conversion_seconds(values.bert_dir)
    lines = [
        *harness.table(["phase", "median"], rows),
        "",
        f"- The first answer comes {first:.2f} s after the start of the process, which holds"
        f" {timing.bytes / 1e9:.2f} GB at most.",
        f"- Converting this BERT takes {converting:.1f} s, once, most of it TensorFlow's import.",
    ]
    title = "From process start to an answer: " + os.path.relpath(values.bert_dir, harness.ROOT)
    harness.publish(values, "first_answer", title, lines, [version])


if __name__ == "__main__":
    main()
