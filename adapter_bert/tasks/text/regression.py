"""Regression: each text has a number."""

from typing import Any, Collection, Dict, List, Sequence, Tuple

import numpy as np

from adapter_bert.model import task_kinds
from adapter_bert.tasks import metrics
from adapter_bert.tasks.text import text_kind


class Regression(text_kind.TextKind):
    """Predicts a number, trained by squared error; `TextKind` documents the methods."""

    name = "regression"
    score = "pearson"
    prediction = "prediction"
    label_type = "float"
    label_format = "a number"
    min_labels = 0
    ablation_score = "spearman"
    answer_types = {"prediction": "DT_FLOAT"}
    adapterhub_head = "classification"

    def num_outputs(self, num_labels: int) -> int:
        """Returns 1, as a number needs one output and no labels."""
        return 1

    def is_label(self, text: str, labels: Collection[str]) -> bool:
        """Returns whether a text is a number in the range of float32."""
        try:
            number = float(text)
        except ValueError:
            return False
        # Python parses 1_0 as 10.
        return "_" not in text and abs(number) <= float(np.finfo(np.float32).max)

    def describe_labels(self, labels: Sequence[str]) -> str:
        """Returns the expectation for error messages."""
        return "a number"

    def placeholder(self, labels: Sequence[str]) -> str:
        """Returns "0"."""
        return "0"

    def predict(self, logits: Any, labels: Any) -> Dict[str, Any]:
        """Returns the number and its squared error."""
        import tensorflow.compat.v1 as tf

        number = logits[:, 0]
        return {"loss": tf.square(number - labels), "prediction": number}

    def answers(self, predictions: Dict[str, np.ndarray]) -> np.ndarray:
        """Returns the numbers [...]."""
        return predictions["prediction"]

    def scores(self, labels: Any, answers: Any, num_labels: int) -> Dict[str, float]:
        """Returns `metrics.regression`."""
        return metrics.regression(labels, answers)

    def score_names(self, num_labels: int) -> Tuple[str, ...]:
        """Returns the names of the correlations, as a lower error is better."""
        return ("pearson", "spearman")

    def texts(self, answers: Any, labels: Sequence[str]) -> List[str]:
        """Returns the numbers as text."""
        return [str(value) for value in answers]

    def submitted(self, texts: List[str]) -> List[str]:
        """Returns the numbers clipped to 0 to 5, the range of STS-B."""
        return [f"{np.clip(float(text), 0, 5):.3f}" for text in texts]

    def decode(self, logits: Any) -> task_kinds.Outputs:
        """Returns the number."""
        return {"prediction": float(logits[0])}

    def answer(self, outputs: task_kinds.Outputs, labels: Sequence[str]) -> float:
        """Returns the number as a plain JSON number."""
        return task_kinds.round_float(outputs["prediction"])

    def export(self, logits: Any, labels: Any, is_label: Any) -> Dict[str, Any]:
        """Returns the number."""
        return {"prediction": logits[:, 0]}

    def export_onnx(
        self, graph: Any, logits: str, shape: List[Any]
    ) -> Dict[str, Tuple[str, List[Any]]]:
        """Adds the number [B]."""
        return {"prediction": (graph.op("Reshape", logits, graph.ints(-1)), shape[:1])}


KIND = Regression()
