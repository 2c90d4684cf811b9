"""Measures how long a model in memory takes to switch to another task.

    python benchmarks/switching.py --model=bert-base

One contestant reads a task adapter, checks it and assigns its tensors. The other one restores a
checkpoint of the whole model, which each task would need without adapters.
"""

import harness  # First: it makes the project's modules importable.

# isort: split
from adapter_bert.common import environment  # First: it sets TensorFlow's environment.

# isort: split
import os
import statistics
import tempfile
import time

import tensorflow.compat.v1 as tf

import modeling
import own_model
import tuning
import workload
from adapter_bert.common import files, tf_estimator
from adapter_bert.formats import task_adapter
from adapter_bert.tasks import heads
from adapter_bert.training import model_fn


def build(model):
    """Builds a model for predicting, with random weights.

    Args:
      model: `model_fn.ModelSettings`.

    Returns:
      (session, list of the variables that a task trains, list of all variables).
    """
    features = {
        name: tf.constant(values)
        for name, values in workload.features(model.bert_config.vocab_size, 1, 8).items()
    }
    head = heads.classifier_head(workload.NUM_LABELS)
    mode = tf_estimator.ModeKeys.PREDICT
    model_fn.model_fn_builder(model, head)(features, None, mode, {"batch_size": 1})
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    return session, tuning.trained_variables(model.tuning), tf.trainable_variables()


def describe(model):
    """Returns a model's `task_adapter.Description`."""
    return task_adapter.Description(
        task="MRPC",
        kind="classification",
        labels=tuple(str(i) for i in range(workload.NUM_LABELS)),
        max_seq_length=128,
        do_lower_case=True,
        vocabulary="",
        backbone=task_adapter.Backbone("random", "", model.bert_config.to_dict()),
        tuning=model.tuning,
        adapter=modeling.AdapterConfig(size=workload.ADAPTER_SIZE),
        global_step=0,
        training={},
        scores={},
        versions=task_adapter.versions(),
    )


def take_turns(runs, repeats):
    """Calls functions in turns, after one untimed call each; returns name → list of seconds."""
    seconds = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def main():
    parser = harness.arguments(__doc__, peers=False)
    parser.add_argument("--model", choices=sorted(workload.MODELS), default="bert-base")
    values = harness.parse(parser)
    model = own_model.settings(workload.MODELS[values.model], "float32")
    session, trained, variables = build(model)
    saver = tf.train.Saver(variables)
    inputs = [tf.placeholder(v.dtype.base_dtype, v.shape) for v in trained]
    assign = [variable.assign(value).op for variable, value in zip(trained, inputs)]
    with tempfile.TemporaryDirectory() as root:
        folder, prefix = os.path.join(root, "adapter"), os.path.join(root, "model.ckpt")
        tensors = {v.op.name: value for v, value in zip(trained, session.run(trained))}
        task_adapter.save(folder, task_adapter.TaskAdapter(describe(model), tensors))
        saver.save(session, prefix, write_meta_graph=False)

        def put_in_place():
            found = task_adapter.load(folder).tensors
            session.run(assign, {x: found[v.op.name] for v, x in zip(trained, inputs)})

        names = ("task adapter", "full checkpoint")
        runs = dict(zip(names, (put_in_place, lambda: saver.restore(session, prefix))))
        sizes = [files.readable_size(folder + "/"), files.readable_size(prefix + ".")]
        seconds = take_turns(runs, values.repeats)
    medians = [statistics.median(seconds[name]) for name in names]
    rows = [
        [name, size, f"{1000 * median:.1f} ms", f"{medians[0] / median:.2f}×"]
        for name, size, median in zip(names, sizes, medians)
    ]
    header = ["what is loaded", "files", "median", "a task adapter takes"]
    title = f"Changing to another task ({values.model}, in memory)"
    section = "switching " + values.model
    version = "TensorFlow " + tf.__version__
    harness.publish(values, section, title, harness.table(header, rows), [version])


if __name__ == "__main__":
    environment.silence_tensorflow()
    tf.disable_eager_execution()
    main()
