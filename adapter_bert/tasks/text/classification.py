"""Classification: each text has one label."""

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from adapter_bert.model import task_kinds
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks import metrics
from adapter_bert.tasks.text import text_kind


class Classification(text_kind.TextKind):
    """A softmax over the labels; `TextKind` documents the methods."""

    name = "classification"
    score = "accuracy"
    label_type = "class"
    label_format = "the name of one class"
    min_labels = 2
    is_single_label = True
    answer_types = {"label": "DT_STRING", "probabilities": "DT_FLOAT"}
    predicted = "label"
    adapterhub_head = "classification"

    def parse_label(self, text: str, where: str) -> str:
        """Returns the cell's text as the label; raises UserError if it is empty."""
        if not text:
            raise UserError(f"{where}: the label is empty; expected one in each row.")
        return text

    def predict(self, logits: Any, labels: Any) -> Dict[str, Any]:
        """Returns each row's cross entropy and the probabilities of all labels."""
        import tensorflow.compat.v1 as tf

        one_hot_labels = tf.one_hot(labels, depth=logits.shape[-1])
        losses = -tf.reduce_sum(one_hot_labels * tf.nn.log_softmax(logits), axis=-1)
        return {"loss": losses, "probabilities": tf.nn.softmax(logits)}

    def answers(self, predictions: Dict[str, np.ndarray]) -> np.ndarray:
        """Returns the ids [...] of the most probable labels."""
        return np.argmax(predictions["probabilities"], axis=-1)

    def scores(self, labels: Any, answers: Any, num_labels: int) -> Dict[str, float]:
        """Returns `metrics.classification`."""
        return metrics.classification(labels, answers, num_labels)

    def score_names(self, num_labels: int) -> Tuple[str, ...]:
        """Returns the names of `metrics.classification`."""
        return ("accuracy", "matthews", *(["f1"] * (num_labels == 2)), "macro_f1")

    def texts(self, answers: Any, labels: Sequence[str]) -> List[str]:
        """Returns the labels' names."""
        return [labels[index] for index in answers]

    def decode(self, logits: Any) -> task_kinds.Outputs:
        """Returns the probabilities [L]."""
        exponentials = np.exp(logits - np.max(logits))
        return {"probabilities": exponentials / np.sum(exponentials)}

    def answer(self, outputs: task_kinds.Outputs, labels: Sequence[str]) -> Dict[str, Any]:
        """Returns the most probable label and the probabilities of all labels."""
        return {
            "label": labels[int(self.answers(outputs))],
            "probabilities": text_kind.class_probabilities(outputs["probabilities"], labels),
        }

    def export(self, logits: Any, labels: Any, is_label: Any) -> Dict[str, Any]:
        """Returns the probabilities, the labels' names and the most probable label."""
        import tensorflow.compat.v1 as tf

        logits = logits[:, : labels.shape[1]]
        excluded = tf.fill(tf.shape(logits), -np.inf)
        probabilities = tf.nn.softmax(tf.where(is_label, logits, excluded))
        return text_kind.export_probabilities(probabilities, labels, is_label)

    def export_onnx(
        self, graph: Any, logits: str, shape: List[Any]
    ) -> Dict[str, Tuple[str, List[Any]]]:
        """Adds the probabilities [B, L]."""
        return {"probabilities": (graph.op("Softmax", logits, axis=-1), shape)}


KIND = Classification()
