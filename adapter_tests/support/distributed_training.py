"""Trains tiny models for `distribution_test` in a process with its own devices.

    python -m adapter_tests.support.distributed_training KIND DEVICES FOLDER METHOD/HEAD...

Trains each METHOD/HEAD for 20 steps of 12 rows, without dropout, into FOLDER/METHOD_HEAD.
"""

import os
import sys

import tensorflow.compat.v1 as tf

import modeling
import tuning
from adapter_bert.ops import xla
from adapter_bert.shell import environment
from adapter_bert.training import distribution, estimator, model_fn
from adapter_tests.support import own_models, tiny

assert environment


def make_devices(count):
    """Splits the CPU into `count` virtual devices."""
    (cpu,) = tf.config.experimental.list_physical_devices("CPU")
    one = tf.config.experimental.VirtualDeviceConfiguration()
    tf.config.experimental.set_virtual_device_configuration(cpu, [one] * count)


def train(distributed, bert, method, head, output_dir):
    adapter_fn = modeling.AdapterConfig(size=3) if method == "adapters" else None
    model = model_fn.ModelSettings(
        bert_config=tiny.config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        init_checkpoint=os.path.join(bert, "bert_model.ckpt"),
        adapter_fn=adapter_fn,
        tuning=tuning.Tuning(method),
        learning_rate=0.01 if method == "adapters" else 0.001,
        num_train_steps=20,
        num_warmup_steps=2,
        random_seed=7,
    )
    run = estimator.RunSettings(output_dir, train_batch_size=12, distribution=distributed)
    arrays = tiny.arrays(rows=50)
    if head == "span":
        arrays["start_positions"] = arrays["label_ids"]
        arrays["end_positions"] = arrays["label_ids"] + 1
    if head == "tagging":
        arrays = tiny.tagged(arrays)
    kind = "classification" if head == "classifier" else head
    estimator.Estimator(model, run, own_models.builder(kind, 2)).train(arrays)


def main(kind, devices, folder, *cases):
    modeling.dropout = lambda tensor, *_, **__: tensor  # The classifier's head has dropout, too.
    xla.can_fuse = lambda: False  # XLA would compile the same functions for each replica.
    if kind == "mirrored":
        make_devices(int(devices))
    distributed = distribution.choose(kind, use_tpu=False)
    assert distributed.num_replicas == int(devices), distributed
    for case in cases:
        method, head = case.split("/")
        output_dir = os.path.join(folder, f"{method}_{head}")
        train(distributed, os.path.join(os.path.dirname(folder), "bert"), method, head, output_dir)


if __name__ == "__main__":
    main(*sys.argv[1:])
