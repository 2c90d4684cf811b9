"""Measures a bank of a thousand tasks with a hundred of them in memory.

    python benchmarks/many_tasks.py --model=minilm-l6

Start-up is the time to add all tasks by their folders. A hit is a row of 128 tokens for a random
task in memory, a miss is one for a random task that is not. Then hits are measured while another
thread reads one task after another from disk.
"""

import harness  # First: it makes the project's modules importable.

# isort: split
from adapter_bert.common import environment  # First: it sets TensorFlow's environment.

# isort: split
import os
import tempfile
import threading
import time

import numpy as np
import onnxruntime
import tensorflow.compat.v1 as tf

import bank_worker
import worker
import workload
from adapter_bert.common import configs
from adapter_bert.formats import task_adapter
from adapter_bert.serving import bank


def timed(function, *arguments):
    """Returns (seconds, the function's result)."""
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result


def latencies(adapter_bank, names, sizes, count, random):
    """Returns (seconds of hits, seconds of misses), lists of `count` alternating rows."""
    hits, misses = [], []
    while len(misses) < count:
        here = adapter_bank.names_in_memory()
        absent = sorted(set(names) - set(here))
        for seconds, among in ((hits, here), (misses, absent)):
            row = bank_worker.random_rows([among[random.randint(len(among))]], sizes, 1)
            seconds.append(timed(adapter_bank.predict, row)[0])
    return hits, misses


def _arguments():
    parser = harness.arguments(__doc__, peers=False)
    parser.add_argument("--model", choices=sorted(workload.MODELS), default="minilm-l6")
    parser.add_argument("--precision", choices=configs.ANSWER_PRECISIONS, default="float32")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--in_memory", type=int, default=100)
    parser.add_argument("--size", type=int, default=workload.ADAPTER_SIZE, help="of the adapters")
    values = harness.parse(parser)
    if not 0 < values.in_memory < values.tasks:
        parser.error(f"--in_memory={values.in_memory}: expected fewer than --tasks, at least 1.")
    return values


def hits_beside_reading(adapter_bank, names, sizes, count):
    """Returns (list of seconds of one task's hits, number of tasks that another thread read)."""
    row = bank_worker.random_rows(names[:1], sizes, 1)
    hits, done, num_read = [], threading.Event(), 0
    adapter_bank.predict(row)

    def read():
        nonlocal num_read
        while not done.is_set():
            for name in names[1:]:
                if not done.is_set() and name not in adapter_bank.names_in_memory():
                    adapter_bank.load(name)
                    num_read += 1

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(count):
        hits.append(timed(adapter_bank.predict, row)[0])
    done.set()
    thread.join()
    return hits, num_read


def main():
    values = _arguments()
    sizes, random = workload.MODELS[values.model], np.random.RandomState(0)
    count = 40 * values.repeats
    with tempfile.TemporaryDirectory() as root:
        config, prefix = bank_worker.write_bert(root, sizes)
        limits = {"precision": values.precision, "max_in_memory": values.in_memory}
        adapter_bank = bank.AdapterBank(config, prefix, **limits)
        names = [f"task-{index}" for index in range(values.tasks)]
        for seed, name in enumerate(names):
            made = bank_worker.random_adapter(adapter_bank.backbone, name, values.size, seed)
            task_adapter.save(os.path.join(root, name), made)
        before = worker.peak_memory()
        folders = {name: os.path.join(root, name) for name in names}
        start, _ = timed(lambda: [adapter_bank.add(n, f, lazy=True) for n, f in folders.items()])
        checked, _ = timed(
            lambda: [adapter_bank.add(n, f, replace=True) for n, f in folders.items()]
        )
        first = bank_worker.random_rows(names[: values.in_memory], sizes, values.in_memory)
        fill, _ = timed(adapter_bank.predict, first)
        adapter_bank.predict(
            bank_worker.random_rows(names[:1], sizes, 1)
        )  # The first of its shape.
        hits, misses = latencies(adapter_bank, names, sizes, count, random)
        beside, num_read = hits_beside_reading(adapter_bank, names, sizes, count)
        after = worker.peak_memory()
    rows = [
        [name, f"{1000 * np.median(some):.1f} ms", f"{1000 * np.percentile(some, 99):.1f} ms"]
        for name, some in (
            ("hit", hits),
            ("miss", misses),
            (f"hit, while a thread reads tasks from disk ({num_read} of them)", beside),
        )
    ]
    lines = [
        f"- {values.tasks:,} tasks were registered in {start:.1f} s, in {checked:.1f} s where every"
        " tensor is read and checked at once;",
        f"- the first {values.in_memory} came to memory, and a row of each was answered, in"
        f" {fill:.1f} s;",
        f"- the process held {after / 1e9:.2f} GB at most, {before / 1e9:.2f} GB of it before the"
        " first task.",
        "",
        *harness.table(["one row", "median", "99th percentile"], rows),
    ]
    bert = f"{values.model}, {values.precision}"
    title = f"{values.tasks:,} tasks over one {bert}, {values.in_memory} in memory"
    how = f"{count} hits and {count} misses, in turns; all else once."
    section = f"many_tasks {values.model}"
    harness.publish(values, section, title, lines, ["ONNX Runtime " + onnxruntime.__version__], how)


if __name__ == "__main__":
    environment.silence_tensorflow()
    tf.disable_eager_execution()
    main()
