"""Writes training steps and forward passes of this project as XLA programs, which gpu.py measures.

    python benchmarks/gpu_program.py --folder=DIR

Runs on a CPU. XLA compiles each program as a whole, as for a TPU; a program is the model_fn's step
of fixed shapes, without TensorFlow's runtime. Its weights are its arguments, so a file is small.
"""

import argparse
import functools
import json
import os
import re

import harness  # First: it makes the project's modules importable.

# isort: split
from adapter_bert.shell import environment  # noqa: F401  First: it sets TensorFlow's environment.

# isort: split
import sys

import tensorflow.compat.v1 as tf

import modeling
import run_classifier
import run_squad
import tuning
import workload
from adapter_bert.shell import tf_estimator
from adapter_bert.training import model_fn

sys.path.append(os.path.join(harness.ROOT, "tools"))

import tpu_program

_BUILDERS = {
    "text": functools.partial(run_classifier.model_fn_builder, num_labels=workload.NUM_LABELS),
    "squad": run_squad.model_fn_builder,
}
_MODES = {"step": tf_estimator.ModeKeys.TRAIN, "forward": tf_estimator.ModeKeys.PREDICT}
_UPDATE = re.compile(r"{\d+}: \((\d+), {}, (?:may|must)-alias\)")
_STEPS = 1000  # The schedule's length, which has no influence on the time.


def settings(work, sizes):
    """Returns the `model_fn.ModelSettings` of a `workload.GpuWork`."""
    adapter = modeling.AdapterConfig(size=workload.ADAPTER_SIZE)
    return model_fn.ModelSettings(
        bert_config=modeling.BertConfig(**sizes),
        adapter_fn=adapter if work.method == "adapters" else None,
        tuning=tuning.Tuning(work.method),
        learning_rate=workload.LEARNING_RATE,
        num_train_steps=_STEPS,
        num_warmup_steps=0,  # With a warm-up, the first step would change nothing.
        # Else TensorFlow sums the embeddings' gradient by `tf.unique`, which XLA makes a slow loop.
        use_one_hot_embeddings=work.method == "full",
        random_seed=12345,
        precision=work.precision,
    )


def lower(work, sizes):
    """Returns (a tf.function of the features, the features, its variables) of a work.

    Args:
      work: `workload.GpuWork`.
      sizes: a value of `workload.MODELS`.

    Returns:
      The function returns loss or predictions, in a list. The variables are a dict by name.
    """
    model, features = settings(work, sizes), workload.gpu_features(work, sizes["vocab_size"])
    graph = tf.Graph()
    with graph.as_default(), tpu_program.whole_program():
        inputs = {name: tf.placeholder(tf.int32, a.shape) for name, a in features.items()}
        with tf.variable_scope("", use_resource=True):
            tf.train.get_or_create_global_step()
            params = {"batch_size": work.batch_size}
            spec = _BUILDERS[work.task](**vars(model))(inputs, None, _MODES[work.kind], params)
        updates = [spec.train_op] if work.kind == "step" else []
        results = [spec.loss] if updates else list(spec.predictions.values())
        with tf.control_dependencies(updates):
            outputs = [tf.identity(result) for result in results]
        variables = tf.global_variables()
    definition = tpu_program.importable(graph, outputs)
    fed = {name: tensor.name for name, tensor in inputs.items()}
    values = {
        v.op.name: tf.Variable(workload.initial(v.op.name, v.shape.as_list(), v.dtype.name))
        for v in variables
    }

    @tf.function(jit_compile=True, autograph=False)
    def run(arrays):
        given = {fed[name]: array for name, array in arrays.items()}
        return tpu_program.imported(definition, outputs, given, values)

    return run, {name: tf.constant(a) for name, a in features.items()}, values


def write(folder, work, sizes, num_losses=0):
    """Writes NAME.hlo and NAME.json, the program's arguments; with losses computed here."""
    run, features, variables = lower(work, sizes)
    program = run.experimental_get_compiler_ir(features)
    names = {id(variable.handle): name for name, variable in variables.items()}
    captured = run.get_concrete_function(features).captured_inputs
    facts = {
        "sizes": sizes,
        "variables": [
            (name, variables[name].shape.as_list(), variables[name].dtype.name)
            for name in (names[id(handle)] for handle in captured)
        ],
        # The results after the first are new values of these arguments.
        "updated": [int(index) for index in _UPDATE.findall(program(stage="hlo"))],
        "losses": [float(run(features)[0]) for _ in range(num_losses)],
        "version": "TensorFlow " + tf.__version__,
    }
    path = os.path.join(folder, work.name)
    with open(path + ".hlo", "wb") as writer:
        writer.write(program(stage="hlo_serialized"))
    with open(path + ".json", "w", encoding="utf-8") as writer:
        json.dump(facts, writer)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--model", choices=sorted(workload.MODELS), default="bert-base")
    parser.add_argument(
        "--losses", type=int, default=0, help="steps to run here, whose losses gpu.py compares"
    )
    values = parser.parse_args()
    os.makedirs(values.folder, exist_ok=True)
    for work in workload.GPU_WORKS:
        harness.log(work.name)
        num_losses = values.losses if work.kind == "step" else 0
        write(values.folder, work, workload.MODELS[values.model], num_losses)


if __name__ == "__main__":
    main()
