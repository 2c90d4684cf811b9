"""Random task adapters, and reference models that are built as the scripts build theirs."""

import functools
import os

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
import run_classifier
import run_squad
import run_tagger
import tuning
from adapter_bert.formats import adapter_checkpoints, task_adapter
from adapter_bert.ops import devices, xla
from adapter_bert.shell import tf_estimator
from adapter_bert.training import model_fn
from adapter_tests.support import tiny


def build_task_adapter(bert, seed=0, *, adapter=None, method="adapters", **changes):
    """Returns a random `TaskAdapter` with weights large enough to affect predictions.

    Args:
      bert: folder of the backbone, from `tiny.write_bert`.
      seed: random seed of the tensors.
      adapter: `modeling.AdapterConfig`, by default of size 4; only for method "adapters".
      method: a method of `tuning.Tuning`, or a `Tuning`.
      **changes: other fields of the description.
    """
    method = tuning.Tuning(method) if isinstance(method, str) else method
    config = modeling.BertConfig.from_json_file(os.path.join(bert, "bert_config.json"))
    fields = {
        "task": f"task{seed}",
        "kind": "classification",
        "labels": ("0", "1"),
        "max_seq_length": 16,
        "do_lower_case": True,
        "vocabulary": task_adapter.digest(tiny.VOCABULARY),
        "backbone": adapter_checkpoints.backbone_of(os.path.join(bert, "bert_model.ckpt"), config),
        "tuning": method,
        "adapter": (adapter or modeling.AdapterConfig(4)) if method.method == "adapters" else None,
        "global_step": 10,
        "training": {},
        "scores": {},
        "versions": {},
    }
    description = task_adapter.Description(**{**fields, **changes})
    random = np.random.RandomState(seed)
    tensors = {
        name: random.normal(1.0 if name.endswith("gamma") else 0.0, 0.4, shape).astype(np.float32)
        for name, shape in task_adapter.shapes(description).items()
    }
    for name in tensors:
        if name.endswith("/moving_variance"):
            tensors[name] = 0.1 + np.abs(tensors[name])
    return task_adapter.TaskAdapter(description, tensors)


def segments(row):
    """Returns the segment ids of a pair, whose second text begins at the third token."""
    return [int(index > 1) for index in range(len(row))]


def padded(rows):
    """Returns rows of ids as the inputs of exported models, lists by name."""
    length = max(map(len, rows))
    columns = {
        "input_ids": rows,
        "input_mask": [[1] * len(row) for row in rows],
        "segment_ids": list(map(segments, rows)),
    }
    return {
        name: [values + [0] * (length - len(values)) for values in column]
        for name, column in columns.items()
    }


class SingleTaskModels:
    """Reference models for single tasks, from the graph that the scripts build.

    Tasks of the same kind, labels, adapter and tuning share a graph.

    Args:
      bert: folder of the backbone.
    """

    def __init__(self, bert):
        self._backbone = tf.train.NewCheckpointReader(os.path.join(bert, "bert_model.ckpt"))
        self._built = {}

    def predictions(self, adapter, input_ids, segment_ids=None):
        """Returns the predictions of a `TaskAdapter`'s model for one sequence, a dict of arrays.

        The default of segment_ids is `segments`.
        """
        segment_ids = segments(input_ids) if segment_ids is None else segment_ids
        description = adapter.description
        form = description.kind, description.labels, description.adapter, description.tuning
        if form not in self._built:
            with tf.Graph().as_default(), xla.portable():  # XLA would compile each length.
                self._built[form] = _build(description)
        ids, types, predicted, variables, session = self._built[form]
        with session.graph.as_default():
            names = [modeling.variable_name(variable) for variable in variables]
            own, read = adapter.tensors, self._backbone.get_tensor
            values = [own[name] if name in own else read(name) for name in names]
            tiny.load(session, variables, values)
        found = session.run(predicted, {ids: [input_ids], types: [segment_ids]})
        return {name: value[0] for name, value in found.items() if name != "loss"}


def _build(description):
    """Returns (placeholders of ids and segments [1, S], predictions, variables, session)."""
    ids, segments = (tf.placeholder(tf.int32, [1, None]) for _ in range(2))
    labels = tf.zeros_like(ids) if description.kind == "tagging" else _labels(description)
    features = {
        "input_ids": ids,
        "input_mask": tf.ones_like(ids),
        "segment_ids": segments,
        "label_ids": labels,
    }
    settings = model_fn.ModelSettings(
        description.backbone.bert_config(),
        adapter_fn=description.adapter,
        tuning=description.tuning,
    )
    spec = builder(description.kind, len(description.labels))(**vars(settings))(
        features, None, tf_estimator.ModeKeys.PREDICT, {}
    )
    predicted = spec.predictions
    return (
        ids,
        segments,
        predicted,
        tf.global_variables(),
        tf.Session(config=devices.session_config()),
    )


def builder(kind, num_labels):
    """Returns the model_fn_builder with which the script of a kind trains."""
    if kind == "span":
        return run_squad.model_fn_builder
    if kind == "tagging":
        return functools.partial(run_tagger.model_fn_builder, num_labels=num_labels)
    return functools.partial(
        run_classifier.model_fn_builder, num_labels=num_labels, kind=kind, predicts_loss=True
    )


def _labels(description):
    """Returns arbitrary labels, which the head's loss needs."""
    if description.kind == "multilabel":
        return tf.zeros([1, len(description.labels)], tf.int32)
    return tf.zeros([1], tf.float32 if description.kind == "regression" else tf.int32)
