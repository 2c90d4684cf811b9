"""Kinds of tasks for tests only, and their registration, as for any new kind."""

import contextlib
import sys
import types
from unittest import mock

import numpy as np

from adapter_bert.model import task_kinds
from adapter_bert.tasks.text import text_kind


class Ordinal(text_kind.TextKind):
    """Ordinal classification: labels are ordered, with an output for each step between neighbours.

    The predicted label is the number of steps with a positive output.
    """

    name = "ordinal"
    score = "mean_error"
    prediction = "prediction"
    label_type = "steps"
    label_format = "one of some names in order"
    min_labels = 2
    answer_types = {"level": "DT_STRING"}

    def num_outputs(self, num_labels):
        return num_labels - 1

    def predict(self, logits, labels):
        import tensorflow.compat.v1 as tf

        steps = tf.sequence_mask(labels, logits.shape[1], tf.float32)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=steps, logits=logits)
        level = tf.reduce_sum(tf.cast(logits > 0, tf.int32), 1)
        return {"loss": tf.reduce_sum(losses, 1), "prediction": level}

    def answers(self, predictions):
        return predictions["prediction"]

    def scores(self, labels, answers, num_labels):
        return {"mean_error": float(np.mean(np.abs(np.subtract(labels, answers))))}

    def texts(self, answers, labels):
        return [labels[index] for index in answers]

    def decode(self, logits):
        return {"prediction": int(np.sum(logits > 0))}

    def answer(self, outputs, labels):
        return {"level": labels[outputs["prediction"]]}

    def export(self, logits, labels, is_label):
        import tensorflow.compat.v1 as tf

        is_step = tf.cast(is_label[:, 1:], tf.float32)
        steps = tf.cast(logits[:, : labels.shape[1] - 1] > 0, tf.float32) * is_step
        return {"level": tf.cast(tf.reduce_sum(steps, 1), tf.int32)}


class Marks(task_kinds.TaskKind):
    """Marks tokens of a text: one logit per token."""

    name = "marks"
    reads_tokens = True
    head_scope = "toy/marks/"
    score = "accuracy"
    words_field = "words"
    answer_types = {"marked": "DT_INT32"}
    script = "run_marks.py"

    def num_outputs(self, num_labels):
        return 1

    def head(self, num_labels):
        raise AssertionError("nobody trains it")

    def decode(self, logits):
        return {"mark_logits": logits[:, 0]}

    def answer(self, outputs, labels):
        return {"marked": np.flatnonzero(outputs["mark_logits"] > 0).tolist()}

    def request_reader(self, description, tokenizer, where):
        def read(text):
            text = text if isinstance(text, str) else " ".join(text)
            ids = tokenizer.convert_tokens_to_ids(["[CLS]", *tokenizer.tokenize(text), "[SEP]"])
            return [(ids, [0] * len(ids))], lambda outputs: self.answer(*outputs, ())

        return read

    def data_paths(self, values):
        return {"train": [values["train_file"]], "dev": [values["dev_file"]]}

    def export(self, logits, labels, is_label):
        return {"mark_logits": logits[:, :, 0]}


@contextlib.contextmanager
def registered(*kinds):
    """Registers kinds while entered, each in a separate module with an entry in the table."""
    modules = {f"toy_{kind.name}": types.ModuleType(kind.name) for kind in kinds}
    for module, kind in zip(modules.values(), kinds):
        module.KIND = kind
    entries = {kind.name: name for name, kind in zip(modules, kinds)}
    # `mock.patch.dict` would also remove modules imported meanwhile, and ONNX cannot be imported
    # twice.
    sys.modules.update(modules)
    try:
        with mock.patch.dict(task_kinds._MODULES, entries):
            yield
    finally:
        for name in modules:
            del sys.modules[name]
