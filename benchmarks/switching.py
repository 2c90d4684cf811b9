"""Measures how long a model in memory takes to switch to another task.

    python benchmarks/switching.py --model=bert-base

One contestant reads a task adapter, checks it and assigns its tensors. The other one restores a
checkpoint of the whole model, which each task would need without adapters.
"""

import harness  # First: it makes the project's modules importable.

# isort: split
from adapter_bert.shell import environment

# isort: split
import os
import statistics
import tempfile
import time

import tensorflow.compat.v1 as tf

import own_model
import random_weights
import tuning
import workload
from adapter_bert.files import gfile
from adapter_bert.formats import task_adapter


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
    session = own_model.build_for_predicting(model)
    saver = tf.train.Saver(tf.trainable_variables())
    trained = tuning.trained_variables(model.tuning)
    inputs = [tf.placeholder(v.dtype.base_dtype, v.shape) for v in trained]
    assign = [variable.assign(value).op for variable, value in zip(trained, inputs)]
    with tempfile.TemporaryDirectory() as root:
        folder, prefix = os.path.join(root, "adapter"), os.path.join(root, "model.ckpt")
        backbone = task_adapter.Backbone("random", "", model.bert_config.to_dict())
        task_adapter.save(folder, random_weights.random_adapter(backbone, "MRPC"))
        saver.save(session, prefix, write_meta_graph=False)

        def put_in_place():
            found = task_adapter.load(folder).tensors
            session.run(assign, {x: found[v.op.name] for v, x in zip(trained, inputs)})

        names = ("task adapter", "full checkpoint")
        runs = dict(zip(names, (put_in_place, lambda: saver.restore(session, prefix))))
        sizes = [gfile.readable_size(folder + "/"), gfile.readable_size(prefix + ".")]
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
