"""Descriptions and random tensors of tiny task adapters."""

import numpy as np

import modeling
import tuning
from adapter_bert.formats import task_adapter
from adapter_tests.support import tiny


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
