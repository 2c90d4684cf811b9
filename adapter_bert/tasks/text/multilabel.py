"""Multi-label classification: each text has any number of labels."""

import itertools
import json
import re
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from adapter_bert.files import json_objects
from adapter_bert.model import task_kinds
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks import metrics
from adapter_bert.tasks.text import text_kind

THRESHOLD = 0.5  # A label with a higher probability is predicted.


class Multilabel(text_kind.TextKind):
    """A sigmoid for each label; `TextKind` documents the methods."""

    name = "multilabel"
    score = "micro_f1"
    label_type = "multilabel"
    label_format = "a set of names, as in a,b,c, or a list in .jsonl files"
    answer_types = {"labels": "DT_STRING", "probabilities": "DT_FLOAT"}
    predicted = "labels"
    adapterhub_head = "multilabel_classification"
    accepts_lists = True

    def parse_label(self, text: str, where: str) -> Tuple[str, ...]:
        """Returns a tuple of labels from "a,b" or the JSON list ["a", "b"]; () from "".

        Raises:
          UserError: a list is not JSON, or a label in it is null or has a comma.
        """
        try:
            labels = json_objects.parse_json(text) if text.startswith("[") else None
        except ValueError:
            labels = None
        if labels is None:
            # A list, set or tuple as Python prints it, or an object: its parts would be nonsense.
            if re.fullmatch(r"\[.*\]|[({]\s*['\"].*[)}]", text, re.DOTALL):
                raise UserError(
                    f"{where}: found {text}, which is not a JSON list; expected labels as in a,b or"
                    ' ["a", "b"].'
                )
            labels = text.split(",")
        for label in labels:
            if label is None or isinstance(label, (bool, list, dict)) or "," in str(label):
                raise UserError(
                    f"{where}: found {json.dumps(label)} in a list; labels must be texts or"
                    " numbers, without commas, which separate labels in other files."
                )
        # Labels from JSON may contain line breaks or tabs, which table files cannot hold.
        return tuple(label for label in (" ".join(str(part).split()) for part in labels) if label)

    def placeholder(self, labels: Sequence[str]) -> Tuple[str, ...]:
        """Returns the empty set."""
        return ()

    def predict(self, logits: Any, labels: Any) -> Dict[str, Any]:
        """Returns the mean of the labels' cross entropies, and their probabilities."""
        import tensorflow.compat.v1 as tf

        losses = tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.cast(labels, tf.float32), logits=logits
        )
        return {"loss": tf.reduce_mean(losses, 1), "probabilities": tf.sigmoid(logits)}

    def answers(self, predictions: Dict[str, np.ndarray]) -> np.ndarray:
        """Returns a bool array [..., L]: whether each label is predicted."""
        return predictions["probabilities"] > THRESHOLD

    def scores(self, labels: Any, answers: Any, num_labels: int) -> Dict[str, float]:
        """Returns `metrics.multilabel`."""
        return metrics.multilabel(labels, answers)

    def score_names(self, num_labels: int) -> Tuple[str, ...]:
        """Returns the names of `metrics.multilabel`."""
        return ("accuracy", "micro_f1", "macro_f1")

    def texts(self, answers: Any, labels: Sequence[str]) -> List[str]:
        """Returns the labels' names, joined by commas."""
        return [",".join(itertools.compress(labels, row)) for row in answers]

    def decode(self, logits: Any) -> task_kinds.Outputs:
        """Returns the probabilities [L]."""
        # The logistic function of logits of any size.
        return {"probabilities": np.exp(-np.logaddexp(np.zeros_like(logits), -logits))}

    def answer(self, outputs: task_kinds.Outputs, labels: Sequence[str]) -> Dict[str, Any]:
        """Returns the predicted labels and the probabilities of all labels."""
        return {
            "labels": list(itertools.compress(labels, self.answers(outputs))),
            "probabilities": text_kind.class_probabilities(outputs["probabilities"], labels),
        }

    def export(self, logits: Any, labels: Any, is_label: Any) -> Dict[str, Any]:
        """Returns the probabilities, the labels' names and the most probable label."""
        import tensorflow.compat.v1 as tf

        probabilities = tf.sigmoid(logits[:, : labels.shape[1]])
        return text_kind.export_probabilities(probabilities, labels, is_label)

    def export_onnx(
        self, graph: Any, logits: str, shape: List[Any]
    ) -> Dict[str, Tuple[str, List[Any]]]:
        """Adds the probabilities [B, L]."""
        return {"probabilities": (graph.op("Sigmoid", logits), shape)}


KIND = Multilabel()
