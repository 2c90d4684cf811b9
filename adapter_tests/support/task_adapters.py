"""Descriptions and random tensors of tiny task adapters, and a test case that saves them."""

import json
import os
import tempfile

import numpy as np

import modeling
import tuning
from adapter_bert.formats import task_adapter
from adapter_tests.support import tiny
from adapter_tests.support.refusals import RefusalTestCase


def description(**changes):
    """Returns a description of a tiny task adapter."""
    values = {
        "task": "MRPC",
        "kind": "classification",
        "labels": ("0", "1"),
        "max_seq_length": 16,
        "do_lower_case": True,
        "vocabulary": "0123456789abcdef",
        "backbone": task_adapter.Backbone("tiny", "f" * 64, tiny.config().to_dict()),
        "tuning": tuning.Tuning(),
        "adapter": modeling.AdapterConfig(size=4),
        "global_step": 12,
        "training": {"learning_rate": 3e-4, "data": "abc"},
        "scores": {"eval_accuracy": 0.75},
        "versions": {"tensorflow": "2.15.1"},
    }
    return task_adapter.Description(**{**values, **changes})


def tensors(seed=0, **changes):
    rng = np.random.RandomState(seed)
    shapes = task_adapter.shapes(description(**changes))
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def random_adapter(
    size=4,
    layers=None,
    layer_norms="all",
    labels=("no", "yes"),
    kind=None,
    train_pooler=False,
    **adapter,
):
    """Returns a task adapter for `tiny.config()` with random weights."""
    adapter = modeling.AdapterConfig(size, layers=layers, **adapter)
    method = tuning.Tuning(layer_norms=layer_norms, train_pooler=train_pooler)
    rng = np.random.RandomState(3)
    kind = kind or ("classification" if labels else "regression")
    described = description(labels=labels, kind=kind, adapter=adapter, tuning=method)
    tensors = {
        name: rng.normal(0, 0.5, shape).astype(np.float32)
        for name, shape in task_adapter.shapes(described).items()
    }
    return task_adapter.TaskAdapter(described, tensors)


class TaskAdaptersTestCase(RefusalTestCase):
    """Saves task adapters into a folder of the test."""

    def setUp(self):
        super().setUp()
        self.root = tempfile.mkdtemp(dir=self.get_temp_dir())
        self.folder = os.path.join(self.root, "adapter")
        self.config_file = os.path.join(self.folder, "adapter_config.json")
        self.tensors_file = os.path.join(self.folder, "adapter.safetensors")

    def save(self, seed=0, folder=None, **changes):
        adapter = task_adapter.TaskAdapter(description(**changes), tensors(seed, **changes))
        task_adapter.save(folder or self.folder, adapter)
        return adapter

    def read(self, path):
        with open(path, "rb") as reader:
            return reader.read()

    def write(self, path, content):
        with open(path, "wb") as writer:
            writer.write(content)

    def record(self):
        return json.loads(self.read(self.config_file).decode())

    def write_record(self, record):
        self.write(self.config_file, json.dumps(record).encode())

    def assert_equal_adapters(self, actual, expected):
        self.assertEqual(actual.description, expected.description)
        self.assertEqual(set(actual.tensors), set(expected.tensors))
        for name, value in expected.tensors.items():
            self.assertEqual(actual.tensors[name].dtype, np.float32)
            np.testing.assert_array_equal(actual.tensors[name], value, err_msg=name)

    def assert_refused(self, *parts):
        """Checks that loading fails with one sentence that contains the flag and each part."""
        parts = (f"--adapter {self.folder}", *parts)
        super().assert_refused(parts, task_adapter.load, self.folder)
