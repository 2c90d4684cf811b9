"""Compiles TPUEstimator's program for a TPU v5e without having one; prints the compiler's figures.

    python tools/tpu_ahead_of_time.py --bert=base --batch_size=32 --topology=2x2
    python tools/tpu_ahead_of_time.py --table

A step is that of run_classifier.py in bfloat16, with random weights: forward, backward, the
sum of gradients over replicas, clipping, Adam. The lower bounds of time assume 197 TFLOP/s or 819
GB/s and no other work. "GB moved" is the compiler's count of bytes that operations read and write,
including those in the core's own memory; "of memory" counts only what the compiled program moves
between main memory and the core, and gives the bound. Exits with code 1 and a sentence if a step
does not compile or has a dynamic shape.
"""

import argparse
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from typing import NamedTuple

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(_FOLDER)
sys.path += [_ROOT, os.path.join(_ROOT, "benchmarks")]

from adapter_bert.shell import environment  # noqa: F401  Sets variables that TensorFlow reads.

# isort: split
import tensorflow.compat.v1 as tf

import harness
import hlo_text
import modeling
import run_classifier
import tpu_program
import tuning
import workload
from adapter_bert.training import model_fn

_FLOPS_PER_SECOND, _BYTES_PER_SECOND = 197e12, 819e9  # Of a v5e core: bfloat16, main memory.
_REPLICAS = {"1x1": 1, "2x2": 4}
_SIZES = {"base": workload.MODELS["bert-base"], "large": workload.LARGE}
_TABLE_LENGTHS, _TABLE_BATCHES = (128, 256, 512), (32, 128, 256)


class Setting(NamedTuple):
    """The setting to compile: one value for each flag of that name."""

    bert: str
    work: str
    tuning: str
    topology: str
    batch_size: int
    max_seq_length: int
    adapter_size: int
    recompute_activations: bool = False


class NotCompiled(SystemExit):
    """A setting does not compile; the message is the compiler's."""


def compile_step(setting, python):
    """Returns the compiler's figures for a setting.

    Returns:
      A dict: the output of tpu_compiler.py, "collectives", a list of `hlo_text.Collective`,
      "traffic", bytes moved to and from main memory, and "trained", the bytes of the trained
      variables.

    Raises:
      SystemExit: with a sentence, if the step does not compile or is not static.
    """
    harness.log(f"compiling {setting}")
    replicas = _REPLICAS[setting.topology]
    if setting.batch_size % replicas:
        raise SystemExit(f"--batch_size={setting.batch_size} is no multiple of {replicas} cores.")
    program = tpu_program.lower(
        _model(setting),
        functools.partial(run_classifier.model_fn_builder, num_labels=workload.NUM_LABELS),
        setting.work,
        setting.batch_size,
        setting.max_seq_length,
        replicas,
    )
    facts, compiled = _compile(program.serialized, replicas, python, setting)
    for text in (program.text, compiled):
        dynamic = hlo_text.dynamic_shapes(text)
        if dynamic:
            raise SystemExit(f"{setting}: the program has dynamic shapes: {', '.join(dynamic)}.")
    facts.update(
        collectives=hlo_text.collectives(compiled),
        traffic=hlo_text.memory_traffic(compiled),
        trained=program.trained_bytes,
    )
    return facts


def _model(setting):
    """Returns the `model_fn.ModelSettings` of a run on a TPU."""
    adapter = None
    if setting.tuning == "adapters":
        adapter = modeling.AdapterConfig(size=setting.adapter_size)
    return model_fn.ModelSettings(
        bert_config=modeling.BertConfig(**_SIZES[setting.bert]),
        adapter_fn=adapter,
        tuning=tuning.Tuning(setting.tuning),
        num_train_steps=1000,  # The length of the schedule does not affect the cost.
        num_warmup_steps=100,
        use_tpu=True,
        use_one_hot_embeddings=setting.tuning == "full",  # As in a training of the embeddings.
        random_seed=12345,
        precision="bfloat16",
        recompute_activations=setting.recompute_activations,
    )


def _compile(serialized, replicas, python, setting):
    """Returns (the output of tpu_compiler.py, the compiled program's text)."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = (os.path.join(folder, name) for name in ("program", "compiled"))
        with open(source, "wb") as writer:
            writer.write(serialized)
        script = os.path.join(_FOLDER, "tpu_compiler.py")
        done = subprocess.run(
            [python, script, source, str(replicas), target],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            errors = re.findall(r"^[\w.]+(?:Error|Exception): (.*)", done.stderr, re.MULTILINE)
            reason = errors[-1] if errors else "no reason given"
            raise NotCompiled(f"{setting} does not compile for a TPU: {reason}")
        with open(target, encoding="utf-8") as reader:
            return json.loads(done.stdout.splitlines()[-1]), reader.read()


def row_of(setting, facts):
    """Returns a row of the table with `HEADER`."""
    memory = facts["arguments"] + facts["outputs"] + facts["temporaries"]
    exchanged = sum(collective.bytes for collective in facts["collectives"])
    return [
        f"{setting.bert}, {setting.work}, {setting.tuning}",
        setting.topology,
        str(setting.batch_size),
        str(setting.max_seq_length),
        f"{facts['flops'] / 1e12:.3g}",
        f"{facts['bytes'] / 1e9:.3g}",
        f"{facts['traffic'] / 1e9:.3g}",
        f"{1e3 * facts['flops'] / _FLOPS_PER_SECOND:.3g}",
        f"{1e3 * facts['traffic'] / _BYTES_PER_SECOND:.3g}",
        *(f"{facts[name] / 1e9:.2f}" for name in ("arguments", "outputs", "temporaries")),
        f"{memory / 1e9:.2f}",
        f"{exchanged / 1e6:.1f}",
        f"{facts['trained'] / 1e6:.1f}",
        f"{facts['seconds']:.0f}",
    ]


HEADER = [
    "step",
    "cores",
    "batch",
    "tokens",
    "TFLOP",
    "GB moved",
    "of memory, GB",
    "arithmetic, ms",
    "memory, ms",
    "arguments, GB",
    "outputs, GB",
    "temporaries, GB",
    "memory, GB",
    "between cores, MB",
    "trained, MB",
    "compiling, s",
]


def settings(values):
    """Returns the list of `Setting` that the command line selects."""
    asked = Setting(*(getattr(values, name) for name in Setting._fields))
    if not values.table:
        return [asked]
    return [
        asked._replace(bert=bert, max_seq_length=length, batch_size=batch_size)
        for bert in _SIZES
        for length in _TABLE_LENGTHS
        for batch_size in _TABLE_BATCHES
    ]


def exchange(facts):
    """Returns a Markdown line about the data that cores exchange, and the trained variables."""
    counts = Counter(collective.kind for collective in facts["collectives"])
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "nothing"
    total = sum(collective.bytes for collective in facts["collectives"])
    return (
        f"- Between cores: {kinds}; {total:,} bytes, and {facts['trained']:,} bytes of variables"
        " train."
    )


def _parse():
    parser = argparse.ArgumentParser(description=__doc__)
    python = os.path.join(_ROOT, ".venv-tpu", "bin", "python")
    parser.add_argument("--jax_python", default=python, help="Python with requirements-tpu.txt")
    parser.add_argument("--bert", choices=sorted(_SIZES), default="base")
    parser.add_argument("--work", choices=tpu_program.WORKS, default="train")
    parser.add_argument("--tuning", choices=["adapters", "full"], default="adapters")
    parser.add_argument("--topology", choices=sorted(_REPLICAS), default="1x1")
    parser.add_argument("--batch_size", type=int, default=32, help="total over all cores")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--adapter_size", type=int, default=64)
    parser.add_argument("--recompute_activations", action="store_true")
    parser.add_argument("--table", action="store_true", help="all lengths, batches, Base and Large")
    values = parser.parse_args()
    if not os.access(values.jax_python, os.X_OK):
        parser.error(
            f"--jax_python: there is no {values.jax_python}; run `make .venv-tpu/installed`."
        )
    return values


def main():
    values = _parse()
    rows, lines, versions = [], [], {"TensorFlow " + tf.__version__}
    for setting in settings(values):
        try:
            facts = compile_step(setting, values.jax_python)
        except NotCompiled as error:
            if not values.table:
                raise
            lines.append(f"- {error}")  # Some batches and lengths do not fit into memory.
            continue
        rows.append(row_of(setting, facts))
        lines.append(exchange(facts))
        versions.add(facts["version"])
        harness.log(" ".join(rows[-1]))
    lines = [*harness.table(HEADER, rows), "", *sorted(set(lines)), "", *harness.machine(versions)]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
