"""serve.py under load: requests a second and latencies, beside a server without batches.

    python benchmarks/serving.py --glue_dir=... --bert_dir=...

Clients send one pair of MRPC's sentences at a time, each to one of several tasks, and the next when
they have the answer. They are wrk's (`apt install wrk`), and share the machine with the server. One
server batches as it does by default, the other (--max_batch_size=1) computes row by row; without
HTTP, `AdapterBank.predict` is called for one row after the other, once for all pairs in each turn.
"""

import harness  # First of all: with it the project's modules are found.

# isort: split
from adapter_bert.common import environment  # Before TensorFlow: it sets what TensorFlow reads.

# isort: split
import contextlib
import dataclasses
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

import numpy as np
import tensorflow.compat.v1 as tf

import bank_worker
import modeling
import serve
from adapter_bert.formats import adapter_checkpoints, task_adapter
from adapter_bert.serving import bank, request_texts
from adapter_bert.tasks import glue

_CLIENTS = (1, 8, 32, 64)
_SECONDS = 8
_SERVERS = {"batches across tasks": (), "row by row": ("--max_batch_size=1",)}


def save_adapters(root, bert_dir, num_tasks):
    """Saves task adapters that nobody trained as `<root>/<name>`; returns their names."""
    config = modeling.BertConfig.from_json_file(os.path.join(bert_dir, "bert_config.json"))
    prefix = os.path.join(bert_dir, "bert_model.ckpt")
    backbone = adapter_checkpoints.backbone_of(prefix, config)
    vocabulary = request_texts.Tokenizers(os.path.join(bert_dir, "vocab.txt")).digest
    names = [f"task-{index}" for index in range(num_tasks)]
    for seed, name in enumerate(names):
        made = bank_worker.random_adapter(backbone, name, seed=seed)
        about = dataclasses.replace(made.description, vocabulary=vocabulary)
        task_adapter.save(os.path.join(root, name), made._replace(description=about))
    return names


def instances_of(glue_dir):
    """MRPC's dev set as a list of instances."""
    processor = glue.get_processor("MRPC", [])
    examples = processor.get_examples("dev", os.path.join(glue_dir, "MRPC"))
    return [{"text": example.text_a, "text_b": example.text_b} for example in examples]


@contextlib.contextmanager
def serving(root, bert_dir, options):
    """(address, process id) of a server of all below root."""
    without_token = {n: v for n, v in os.environ.items() if n != serve.TOKEN_VARIABLE}
    command = [sys.executable, "serve.py", f"--adapter_dir={root}", "--port=0", *options]
    process = subprocess.Popen(
        command,
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
            yield address.group(), process.pid
        finally:
            process.terminate()
            process.stdout.read()


def cpu_seconds(pid):
    """What a process has computed so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as reader:
        fields = reader.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(address, pid, clients, requests):
    """wrk's report of so many clients: dict of requests, seconds, p50, p99, failed; and cpu, what
    the server's process computed meanwhile. A request that fails ends the benchmark."""
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
def one_by_one(root, bert_dir, names, instances):
    """A function () → such a report of a bank that predicts each instance alone, from its text."""
    config = modeling.BertConfig.from_json_file(os.path.join(bert_dir, "bert_config.json"))
    prefix = os.path.join(bert_dir, "bert_model.ckpt")
    adapter_bank = bank.AdapterBank(config, prefix)
    tokenizers = request_texts.Tokenizers(os.path.join(bert_dir, "vocab.txt"))
    reading = request_texts.TextEncoding(config, tokenizers, max_text_length=10**6)
    with contextlib.closing(adapter_bank):
        texts = {}
        for name in names:
            description = adapter_bank.add(name, os.path.join(root, name))
            texts[name] = request_texts.TaskTexts(description, reading, name)

        def run():
            seconds, used = [], time.process_time()
            for name, instance in zip(itertools.cycle(names), instances):
                start = time.perf_counter()
                asked = texts[name].encode(instance)
                rows = [bank.Row(name, *ids) for ids in asked.rows]
                asked.decode(adapter_bank.predict(rows))
                seconds.append(time.perf_counter() - start)
            return {
                "requests": len(seconds),
                "seconds": sum(seconds),
                "p50": np.median(seconds),
                "p99": np.percentile(seconds, 99),
                "cpu": time.process_time() - used,
            }

        yield run


def row_of(clients, name, reports):
    """A line of the table, of the medians over some reports."""
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
        servers = {
            name: stack.enter_context(serving(adapters, values.bert_dir, options))
            for name, options in _SERVERS.items()
        }
        runs = {
            (clients, name): functools.partial(load, *server, clients, requests)
            for clients in _CLIENTS
            for name, server in servers.items()
        }
        alone = one_by_one(adapters, values.bert_dir, names, instances)
        runs["–", "without HTTP"] = stack.enter_context(alone)
        reports = {key: [] for key in runs}
        for turn in range(values.repeats + 1):
            for key, run in runs.items():
                report = run()
                harness.log(f"{key}: {report}")
                if turn:  # The first one is not counted.
                    reports[key].append(report)
    rows = [row_of(*key, own) for key, own in reports.items()]
    header = ["clients", "server", "requests/s", "median", "p99", "CPU a request"]
    title = f"serve.py under load: {values.tasks} tasks, one MRPC pair a request"
    version = "TensorFlow " + tf.__version__
    harness.publish(values, "serving", title, harness.table(header, rows), [version])


if __name__ == "__main__":
    environment.silence_tensorflow()
    main()
