"""Measures one way to predict rows of several shapes; prints the milliseconds per shape as JSON.

python benchmarks/engine_worker.py rival FILE.onnx
python benchmarks/engine_worker.py bank BERT_DIR --precision=int8 --tasks=8
.venv-openvino/bin/python benchmarks/engine_worker.py openvino FILE.onnx --precision=int8
"""

import argparse
import json
import os
import sys
import time

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import numpy as np

SHAPES = ((1, 32), (1, 64), (8, 64), (32, 128))  # Rows and tokens.
_SECONDS = 0.5  # Per shape, after a first call.


def milliseconds(function):
    """Returns the median time of a function's calls."""
    function()
    times, end = [], time.perf_counter() + _SECONDS
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1000 * float(np.median(times))


def rival(path):
    """Returns a function from ids [B, S] to a function to time: a session of one file."""
    from adapter_bert.serving.inference.onnx_runtime import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def of_batch(ids):
        inputs = _inputs(ids)
        return lambda: session.run(None, inputs)

    return of_batch


def in_openvino(path, precision):
    """Returns a function like `rival`'s; for int8, NNCF finds the ranges with random ids."""
    import nncf
    import openvino

    core, options = openvino.Core(), {"PERFORMANCE_HINT": "LATENCY"}
    model = core.read_model(path)
    if precision == "int8":  # What is not quantized is bfloat16, if the processor has it.
        samples = nncf.Dataset([_inputs(_random_ids(32, 128))])
        transformer = nncf.ModelType.TRANSFORMER
        model = nncf.quantize(model, samples, model_type=transformer, subset_size=1)
    else:
        options["INFERENCE_PRECISION_HINT"] = "f32"
    compiled = core.compile_model(model, "CPU", options)

    def of_batch(ids):
        inputs = _inputs(ids)
        return lambda: compiled(inputs)

    return of_batch


def _random_ids(count, length):
    return np.random.RandomState(0).randint(1000, 30000, (count, length)).astype(np.int64)


def _inputs(ids):
    """Returns the inputs of PyTorch's exported model."""
    return {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.zeros_like(ids),
    }


def of_bank(folder, precision, num_tasks):
    """Returns a function like `rival`'s for a bank whose batches mix `num_tasks` tasks."""
    from adapter_bert.formats import task_adapter
    from adapter_bert.model import configs
    from adapter_bert.serving.inference import bank

    config = configs.BertConfig.from_json_file(os.path.join(folder, "bert_config.json"))
    adapter_bank = bank.AdapterBank(
        config, os.path.join(folder, "bert_model.ckpt"), precision=precision
    )
    for name in sorted(os.listdir(os.path.join(folder, "tasks"))):
        adapter_bank.add(name, task_adapter.load(os.path.join(folder, "tasks", name)))
    names = adapter_bank.names()[:num_tasks]

    def of_batch(ids):
        rows = [
            bank.Row(names[index % len(names)], row, [0] * len(row))
            for index, row in enumerate(ids.tolist())
        ]
        return lambda: adapter_bank.predict(rows)

    return of_batch


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=["rival", "bank", "openvino"])
    parser.add_argument("path")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--tasks", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.way == "rival":
        of_batch = rival(arguments.path)
    elif arguments.way == "openvino":
        of_batch = in_openvino(arguments.path, arguments.precision)
    else:
        of_batch = of_bank(arguments.path, arguments.precision, arguments.tasks)
    result = []
    for count, length in SHAPES:
        if arguments.tasks > count:  # A batch has at most one task per row.
            result.append(None)
            continue
        result.append(milliseconds(of_batch(_random_ids(count, length))))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
