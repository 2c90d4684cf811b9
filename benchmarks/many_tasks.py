"""Measures serve.py with thousands of task adapters in its folder.

    python benchmarks/many_tasks.py --tasks=1000,10000

The adapters are copies of an untrained one over a tiny BERT. The first request asks for the last
task at once. The server then reads the descriptions of all tasks, and after that their tensors. The
memory of adapters is measured over a BERT of Base's width and depth, with small other sizes.
"""

import harness  # First: it makes the project's modules importable.

# isort: split
import http.client
import json
import os
import shutil
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

import random_weights
import serving
import worker
from adapter_bert.files import gfile, json_objects
from adapter_bert.formats import onnx_backbone, task_adapter

_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog"]
_COMMON = {"vocab_size": len(_WORDS), "max_position_embeddings": 128, "type_vocab_size": 2}
_TINY = dict(
    _COMMON, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
)
_WIDE = dict(
    _COMMON, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=64
)
_BODY = json.dumps({"instances": ["the dog"]}).encode()


def write_bert(folder, sizes):
    """Writes a random BERT and its vocabulary; returns the folder."""
    os.makedirs(folder)
    config, prefix = random_weights.write_bert(folder, sizes)
    json_objects.write_object(os.path.join(folder, "bert_config.json"), config.to_dict())
    with open(os.path.join(folder, "vocab.txt"), "w", encoding="utf-8") as writer:
        writer.writelines(f"{word}\n" for word in _WORDS)
    onnx_backbone.write(prefix, config)
    return folder


def write_tasks(root, bert_dir, count, size):
    """Writes copies of a task adapter as `<root>/task-<index>`; returns the bytes of one."""
    first = os.path.join(root, "task-0")
    task_adapter.save(first, random_weights.adapter_for(bert_dir, "task", size))
    for index in range(1, count):
        shutil.copytree(first, os.path.join(root, f"task-{index}"))
    return gfile.size(os.path.join(first, task_adapter.TENSORS_FILE))


def ask(address, path, body=None):
    """Returns (status, bytes) of an answer."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(address + path, body) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def milliseconds(address, path, count):
    """Returns the median and the 99th percentile of the times of a path's answers."""
    times = []
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(address).netloc)
    for _ in range(count):
        start = time.perf_counter()
        connection.request("GET", "/" + path)
        connection.getresponse().read()
        times.append(1000 * (time.perf_counter() - start))
        time.sleep(0.01)
    connection.close()
    times.sort()
    return f"{times[count // 2]:.1f} ({times[int(0.99 * count)]:.1f})"


def loading(root, bert_dir, count):
    """Returns a row of the table: the work of a start with so many tasks."""
    requests = root + ".requests"
    with open(requests, "w", encoding="utf-8") as writer:
        writer.write(f"/v1/models/task-{count - 1}:predict\t{_BODY.decode()}\n")
    with serving.serving(["serve.py", f"--adapter_dir={root}", "--port=0"], bert_dir, requests) as (
        address,
        pid,
    ):
        used, memory = [serving.cpu_seconds(pid)], [worker.resident_mb(pid)]
        while ask(address, "readyz")[0] != 200:
            time.sleep(0.1)
        used.append(serving.cpu_seconds(pid))
        memory.append(worker.resident_mb(pid))
        probes = milliseconds(address, "healthz", 300)
        while serving.cpu_seconds(pid) - used[-1] > 0.05 or len(used) < 3:
            used.append(serving.cpu_seconds(pid))
            time.sleep(1)
        scrapes = milliseconds(address, "metrics", 20)
        idle = milliseconds(address, "healthz", 300)
    described, read = (1000 * (b - a) / count for a, b in ((used[0], used[1]), (used[1], used[-1])))
    size = 1000 * (memory[1] - memory[0]) / count
    times = [f"{used[0]:.2f} s", f"{described:.2f} ms", f"{read:.2f} ms"]
    return [f"{count:,}", *times, f"{size:.1f} kB", probes, idle, scrapes]


def resident_mb(root, bert_dir, count, limit):
    """Returns the memory of a server after it has answered for `count` tasks."""
    requests = root + ".requests"
    with open(requests, "w", encoding="utf-8") as writer:
        writer.write(f"/v1/models/task-0:predict\t{_BODY.decode()}\n")
    command = ["serve.py", f"--adapter_dir={root}", "--port=0", f"--most_in_memory={limit}"]
    with serving.serving(command, bert_dir, requests) as (address, pid):
        for index in range(count):
            ask(address, f"v1/models/task-{index}:predict", _BODY)
        return worker.resident_mb(pid)


def in_memory(root, bert_dir, count, limit):
    """Returns a sentence on the memory that `limit` of `count` adapters take."""
    due = (limit - 1) * write_tasks(root, bert_dir, count, 64) / 1e6
    one, all_of_them = (resident_mb(root, bert_dir, count, each) for each in (1, limit))
    return (
        f"After an answer of each of {count} tasks, --most_in_memory={limit} holds"
        f" {all_of_them - one:.0f} MB more than --most_in_memory=1; the files of {limit - 1}"
        f" adapters have {due:.0f} MB."
    )


def main():
    parser = harness.arguments(__doc__, peers=False, repeats=False)
    parser.add_argument("--tasks", default="1000,10000", help="numbers of tasks")
    values = harness.parse(parser)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bert_dir = write_bert(os.path.join(folder, "tiny"), _TINY)
        for count in map(int, values.tasks.split(",")):
            root = os.path.join(folder, f"tasks-{count}")
            write_tasks(root, bert_dir, count, 4)
            rows.append(loading(root, bert_dir, count))
            shutil.rmtree(root)
        bert_dir = write_bert(os.path.join(folder, "wide"), _WIDE)
        sentence = in_memory(os.path.join(folder, "adapters"), bert_dir, 120, 60)
    header = ["tasks", "first answer", "description", "tensors", "memory"]
    header += ["probe while reading", "probe afterwards", "scrape"]
    lines = [*harness.table(header, rows), "", sentence]
    how = (
        "The first answer: CPU time from the start. Description, tensors (checked in the"
        " background) and memory: CPU time and bytes of a task. Probes and scrapes: medians (99th"
        " percentiles) in ms."
    )
    harness.publish(values, "many tasks", "Thousands of tasks in a server", lines, [], how)


if __name__ == "__main__":
    main()
