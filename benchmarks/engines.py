"""Compares the bank with ONNX Runtime on one task's model exported from PyTorch.

    python benchmarks/engines.py --model=minilm-l6

The rivals are the model without adapters, and the model with one task's adapters; and OpenVINO with
the former, whose int8 is static, by NNCF, and computes in bfloat16 what it does not quantize. Each
measurement runs in its own process, one at a time, because the threads of several sessions would
disturb each other.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import harness  # First: it makes the project's modules importable.

# isort: split

import random_weights
import workload
from adapter_bert.formats import onnx_backbone, task_adapter
from adapter_bert.serving.inference.onnx_runtime import onnxruntime
from engine_worker import SHAPES

_TASKS = 32
_WORKER = os.path.join(harness.FOLDER, "engine_worker.py")
_PRECISIONS = ("float32", "int8")
_MAX_BUSY_SHARE, _MAX_RUNS = 0.03, 6  # The share is of the cores' time, for other processes.
_PLAIN, _EXPORTED = "ONNX Runtime, no adapters", "ONNX Runtime, one task, exported from PyTorch"
_OPENVINO = "OpenVINO, no adapters"
_OURS = {1: "the bank, one task", 8: "the bank, 8 tasks", 32: "the bank, 32 tasks"}
# Limits: multiples of the time of the rival without adapters, for 1 × 32, one task, several tasks.
_LIMITS = {"float32": (1.25, 1.15, 1.25), "int8": (1.40, 1.30, 1.30)}


def prepare(folder, peers, model):
    """Writes the rivals' files, and a BERT with `_TASKS` task adapters."""
    for name in ("plain", "exported"):
        os.mkdir(os.path.join(folder, name))
        script = os.path.join(harness.FOLDER, "torch_onnx.py")
        options = [f"--model={model}", f"--folder={folder}/{name}"]
        options += ["--adapters"] * (name == "exported")
        subprocess.run([peers, script, *options], check=True, stdout=sys.stderr)
    config, prefix = random_weights.write_bert(folder, workload.MODELS[model])
    with open(os.path.join(folder, "bert_config.json"), "w") as writer:
        writer.write(config.to_json_string())
    onnx_backbone.write(prefix, config)
    fingerprint = onnx_backbone.load(prefix, config).fingerprint
    backbone = task_adapter.Backbone("bert", fingerprint, config.to_dict())
    for seed in range(_TASKS):
        adapter = random_weights.random_adapter(backbone, f"task {seed}", seed=seed)
        task_adapter.save(os.path.join(folder, "tasks", str(seed)), adapter)


def measure(folder, openvino, repeats):
    """Returns a dict from (contestant, precision) to the medians of each shape, ms or None."""
    runs = {}
    for turn in range(repeats):
        for precision in _PRECISIONS:
            ways = {
                _PLAIN: ["rival", f"{folder}/plain/{precision}.onnx"],
                _EXPORTED: ["rival", f"{folder}/exported/{precision}.onnx"],
            }
            in_precision = f"--precision={precision}"
            for tasks, name in _OURS.items():
                ways[name] = ["bank", folder, in_precision, f"--tasks={tasks}"]
            ways[_OPENVINO] = ["openvino", f"{folder}/plain/float32.onnx", in_precision]
            for name, options in ways.items():
                python = openvino if name == _OPENVINO else sys.executable
                times = run_undisturbed([python, _WORKER, *options])
                runs.setdefault((name, precision), []).append(times)
                harness.log(f"{turn}: {name}, {precision}: {times}")
    return {
        key: [None if None in times else statistics.median(times) for times in zip(*values)]
        for key, values in runs.items()
    }


def run_undisturbed(command):
    """Returns a worker's output; repeats the run while other processes compute."""
    results = []
    for _ in range(_MAX_RUNS):
        start, busy = time.monotonic(), harness.busy_seconds()
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{' '.join(command)} failed.")
        others = harness.busy_seconds() - busy - usage.ru_utime - usage.ru_stime
        share = others / (time.monotonic() - start) / os.cpu_count()
        results.append((share, json.loads(output.splitlines()[-1])))  # NNCF prints, too.
        if share < _MAX_BUSY_SHARE:
            break
    return min(results)[1]


def describe(medians):
    """Returns Markdown lines: the table and the targets."""
    header = ["ms", *(f"{count} × {length}" for count, length in SHAPES)]
    rows, verdicts = [], []
    for (name, precision), times in medians.items():
        plain = medians[_PLAIN, precision]
        cells = [
            "–" if time is None else f"{time:.1f} ({time / base:.2f}×)"
            for time, base in zip(times, plain)
        ]
        rows.append([f"{name}, {precision}", *cells])
        if name in _OURS.values():
            for shape, time, base in zip(SHAPES, times, plain):
                limit = _LIMITS[precision][0 if shape == (1, 32) else 1 if name == _OURS[1] else 2]
                if time is not None and time / base > limit:
                    at = " × ".join(map(str, shape))
                    verdicts.append(
                        f"- {name}, {precision}, {at}: {time / base:.2f}×; target {limit}×: missed."
                    )
    return [*harness.table(header, rows), "", *(verdicts or ["All targets are reached."])]


def main():
    parser = harness.arguments(__doc__)
    parser.add_argument("--model", choices=sorted(workload.MODELS), default="minilm-l6")
    python = os.path.join(harness.ROOT, ".venv-openvino", "bin", "python")
    parser.add_argument("--openvino", default=python, help="Python with requirements-openvino.txt")
    values = harness.parse(parser)
    with tempfile.TemporaryDirectory() as folder:
        prepare(folder, values.peers, values.model)
        medians = measure(folder, values.openvino, values.repeats)
    title = f"The bank compared with one exported model: {values.model}, rows × tokens"
    how = (
        f"Medians of {values.repeats} processes of each, in turns, each the median of half a"
        " second's calls after the first; in brackets the time divided by that of ONNX Runtime"
        " without adapters."
    )
    ask = "import importlib.metadata; print(importlib.metadata.version('openvino'))"
    openvino = subprocess.check_output([values.openvino, "-c", ask], text=True).strip()
    versions = ["ONNX Runtime " + onnxruntime.__version__, "OpenVINO " + openvino]
    harness.publish(values, f"engines {values.model}", title, describe(medians), versions, how)


if __name__ == "__main__":
    main()
