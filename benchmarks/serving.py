"""Measures serve.py under load, compared with a minimal server of one task.

    python benchmarks/serving.py --glue_dir=... --bert_dir=...

Each of wrk's clients (`apt install wrk`) sends one pair of MRPC's sentences at a time to one of
several tasks, and waits for the answer. Clients and server share the machine. Without HTTP,
`AdapterBank.predict` computes batches of pairs of similar length; its median and p99 are those of
batches. The log has each server's start-up time and memory.
"""

import harness  # First: it makes the project's modules importable.

# isort: split
from adapter_bert.shell import environment

# isort: split
import contextlib
import functools
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import numpy as np

import random_weights
import serve
import worker
from adapter_bert.formats import task_adapter
from adapter_bert.model import configs
from adapter_bert.serving.inference import bank, request_texts
from adapter_bert.serving.inference.onnx_runtime import onnxruntime
from adapter_bert.tasks.text import glue

_CLIENTS = (1, 8, 32, 64)
_SECONDS = 8
_SERVERS = {"float32": (), "int8": ("--precision=int8",)}
_BATCH_SIZE = 16  # For the bank without HTTP.


def save_adapters(root, bert_dir, num_tasks):
    """Saves untrained task adapters as `<root>/<name>`; returns their names."""
    names = [f"task-{index}" for index in range(num_tasks)]
    for seed, name in enumerate(names):
        adapter = random_weights.adapter_for(bert_dir, name, seed=seed)
        task_adapter.save(os.path.join(root, name), adapter)
    return names


def instances_of(glue_dir):
    """Returns MRPC's dev set as a list of instances."""
    processor = glue.get_processor("MRPC", [])
    examples = processor.get_examples("dev", os.path.join(glue_dir, "MRPC"))
    return [{"text": example.text_a, "text_b": example.text_b} for example in examples]


@contextlib.contextmanager
def serving(command, bert_dir, requests):
    """Yields a server's (address, process id); logs its start-up time and memory."""
    without_token = {n: v for n, v in os.environ.items() if n != serve.TOKEN_VARIABLE}
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=harness.ROOT,
        env={**without_token, "BERT_BASE_DIR": bert_dir},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            first = process.stdout.readline()
            address = re.search(r"http://\S+", first)
            if address is None:
                raise SystemExit(f"{' '.join(command)} failed: {first}")
            ask_once(address.group(), requests)
            seconds = time.perf_counter() - start
            harness.log(
                f"{' '.join(command)}: {seconds:.2f} s from start to first answer,"
                f" {worker.resident_mb(process.pid):.0f} MB"
            )
            yield address.group(), process.pid
        finally:
            process.terminate()
            process.stdout.read()


def ask_once(address, requests):
    """Sends the first line of a file of requests."""
    with open(requests, encoding="utf-8") as reader:
        path, body = reader.readline().split("\t")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(address.rstrip("/") + path, body.encode()) as response:
        response.read()


def cpu_seconds(pid):
    """Returns a process's CPU time."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as reader:
        fields = reader.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(address, pid, clients, requests):
    """Returns wrk's report: dict of requests, seconds, p50, p99, failed, and the server's cpu time.

    A failed request ends the benchmark.
    """
    script = os.path.join(harness.FOLDER, "serving.lua")
    command = ["wrk", "-t1", f"-c{clients}", f"-d{_SECONDS}s", "--timeout", "60s", "-s", script]
    used = cpu_seconds(pid)
    result = subprocess.run(
        [*command, address, "--", requests], stdout=subprocess.PIPE, check=True, text=True
    )
    report = {**json.loads(result.stdout.splitlines()[-1]), "cpu": cpu_seconds(pid) - used}
    if report["failed"]:
        raise SystemExit(f"{clients} clients: {report['failed']} requests failed: {report}")
    return report


@contextlib.contextmanager
def in_batches(root, bert_dir, names, instances, precision):
    """Yields a function that returns such a report for a bank, in batches of similar length."""
    config = configs.BertConfig.from_json_file(os.path.join(bert_dir, "bert_config.json"))
    prefix = os.path.join(bert_dir, "bert_model.ckpt")
    adapter_bank = bank.AdapterBank(config, prefix, precision=precision)
    tokenizers = request_texts.Tokenizers(os.path.join(bert_dir, "vocab.txt"))
    reading = request_texts.TextEncoding(config, tokenizers, max_text_length=10**6)
    with contextlib.closing(adapter_bank):
        rows = []
        for name, instance in zip(itertools.cycle(names), instances):
            if name not in adapter_bank.names():
                adapter_bank.add(name, os.path.join(root, name))
            texts = request_texts.TaskTexts(adapter_bank.describe(name), reading, name)
            rows += [bank.Row(name, *ids) for ids in texts.encode(instance).rows]
        rows.sort(key=lambda row: len(row.input_ids))

        def run():
            seconds, used = [], time.process_time()
            for first in range(0, len(rows), _BATCH_SIZE):
                start = time.perf_counter()
                adapter_bank.predict(rows[first : first + _BATCH_SIZE])
                seconds.append(time.perf_counter() - start)
            return {
                "requests": len(rows),
                "seconds": sum(seconds),
                "p50": np.median(seconds),
                "p99": np.percentile(seconds, 99),
                "cpu": time.process_time() - used,
            }

        yield run


def export_onnx(root, name, bert_dir, folder):
    """Returns the path of one task's exported model."""
    command = [sys.executable, "export_model.py", "--format=onnx"]
    command += [f"--adapters={root}/{name}", f"--export_dir={folder}/onnx"]
    environment_of = {**os.environ, "BERT_BASE_DIR": bert_dir}
    subprocess.run(command, cwd=harness.ROOT, env=environment_of, check=True, capture_output=True)
    return os.path.join(folder, "onnx", "1", "model.onnx")


def row_of(clients, name, reports):
    """Returns a row of the table, with medians over reports."""
    rate = statistics.median(one["requests"] / one["seconds"] for one in reports)
    p50, p99 = (statistics.median(one[key] for one in reports) for key in ("p50", "p99"))
    cpu = statistics.median(one["cpu"] / max(one["requests"], 1) for one in reports)
    milliseconds = [f"{1000 * value:.0f} ms" for value in (p50, p99, cpu)]
    return [str(clients), name, f"{rate:.1f}", *milliseconds]


def main():
    parser = harness.arguments(__doc__, peers=False)
    harness.data_arguments(parser)
    parser.add_argument("--tasks", type=int, default=8)
    values = harness.parse(parser)
    if shutil.which("wrk") is None:
        parser.error("there is no wrk, the load's generator; Debian's package is called wrk.")
    with tempfile.TemporaryDirectory() as root, contextlib.ExitStack() as stack:
        adapters, requests = os.path.join(root, "adapters"), os.path.join(root, "requests")
        names = save_adapters(adapters, values.bert_dir, values.tasks)
        instances = instances_of(values.glue_dir)
        with open(requests, "w", encoding="utf-8") as writer:
            for index, instance in enumerate(instances):
                body = json.dumps({"instances": [instance]})
                writer.write(f"/v1/models/{names[index % len(names)]}:predict\t{body}\n")
        command = ["serve.py", f"--adapter_dir={adapters}", "--port=0"]
        commands = {name: [*command, *options] for name, options in _SERVERS.items()}
        plain = os.path.join(harness.FOLDER, "plain_server.py")
        vocab_file = os.path.join(values.bert_dir, "vocab.txt")
        model_file = export_onnx(adapters, names[0], values.bert_dir, root)
        commands["minimal server, one task"] = [plain, model_file, vocab_file]
        servers = {
            name: stack.enter_context(serving(command, values.bert_dir, requests))
            for name, command in commands.items()
        }
        runs = {
            (clients, name): functools.partial(load, *server, clients, requests)
            for clients in _CLIENTS
            for name, server in servers.items()
        }
        for precision in _SERVERS:
            alone = in_batches(adapters, values.bert_dir, names, instances, precision)
            runs["–", precision + ", without HTTP"] = stack.enter_context(alone)
        reports = {key: [] for key in runs}
        for turn in range(values.repeats + 1):
            for key, run in runs.items():
                report = run()
                harness.log(f"{key}: {report}")
                if turn:  # The first one is not counted.
                    reports[key].append(report)
    rows = [row_of(*key, own) for key, own in reports.items()]
    header = ["clients", "server", "requests/s", "median", "p99", "CPU per request"]
    title = f"serve.py under load: {values.tasks} tasks, one MRPC pair per request"
    version = "ONNX Runtime " + onnxruntime.__version__
    harness.publish(values, "serving", title, harness.table(header, rows), [version])


if __name__ == "__main__":
    environment.silence_tensorflow()
    main()
