"""Base class of the kinds that label a whole text or pair, from one row and its pooled output.

`glue` and `custom_tasks` define their tasks. Axes: N rows, L outputs of the head.
"""

from typing import Any, Callable, Collection, Dict, List, Optional, Sequence, Tuple

import numpy as np

from adapter_bert.model import task_kinds
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import classifier_features, text_windows


class TextKind(task_kinds.TaskKind):
    """Base class of the kinds that run_classifier.py trains: they label a text or a pair.

    Predictions are a dict of arrays: "loss" [N], and `prediction`.

    Attributes:
      prediction: name of the prediction: "probabilities" [N, L] of the labels, or "prediction" [N].
      label_type: value of --label_type for this kind.
      label_format: format of a label in a table, for --help.
      accepts_lists: whether a label in .jsonl files may be a list.
      min_labels: the fewest labels that a task has; 0 if its labels are numbers.
      is_single_label: whether each row has exactly one label, so that labels can be counted and
        weighted, and have a confusion matrix.
      ablation_score: the score in the figure of the paper's ablations.
    """

    prediction = "probabilities"
    label_type: str
    label_format: str
    accepts_lists = False
    min_labels = 1
    is_single_label = False
    sets_rows_apart = True
    ablation_score = "accuracy"
    fields = ("text", "text_b")
    example = {
        "text": "See you at lunch, or after the film if the trains are late.",
        "text_b": "",
    }
    has_text_signature = True
    result_files = (
        *("test_results.tsv", "test_scores.json", "predictions.tsv", "dev_predictions.tsv"),
        *("test_results_mismatched.tsv", "test_scores_mismatched.json"),
        *("predictions_mismatched.tsv", "dev_predictions_mismatched.tsv"),
        *("submission/*.tsv", "ablation.json", "ablation.txt"),
        *("confusion.png", "confusion_mismatched.png", "scatter.png"),
        *("dev_confusion.png", "dev_confusion_mismatched.png", "dev_scatter.png"),
    )
    other_files = (
        *("labels.tsv", "labels_mismatched.tsv", "dev_labels.tsv", "dev_labels_mismatched.tsv"),
        "submission",
    )

    # Labels in files.

    def parse_label(self, text: str, where: str) -> Any:
        """Returns the label in a table's cell: a str, or a tuple of str for a set of labels.

        Args:
          text: content of the cell.
          where: prefix of error messages.

        Raises:
          UserError: the text is no label of this kind.
        """
        return text

    def is_label(self, text: str, labels: Collection[str]) -> bool:
        """Returns whether a text is a valid label of a task with these labels."""
        return text in labels

    def describe_labels(self, labels: Sequence[str]) -> str:
        """Returns the description of valid labels for error messages."""
        return f"one of {', '.join(labels[:10])}{', ...' if len(labels) > 10 else ''}"

    def placeholder(self, labels: Sequence[str]) -> Any:
        """Returns the label of examples with an unknown label."""
        return labels[0]

    # Training.

    def predict(self, logits: Any, labels: Any) -> Dict[str, Any]:
        """Returns the predictions and their loss.

        Args:
          logits: float Tensor [N, L].
          labels: Tensor [N, ...], the label ids of `classifier_features`.

        Returns:
          Tensors by name: "loss" [N], and `prediction`.
        """
        raise NotImplementedError

    # Results.

    def answers(self, predictions: Dict[str, np.ndarray]) -> np.ndarray:
        """Returns the predicted labels, in the form of the true ones.

        Args:
          predictions: of all rows or of one row.
        """
        raise NotImplementedError

    def scores(self, labels: Any, answers: Any, num_labels: int) -> Dict[str, float]:
        """Returns the scores of `answers`, named as in `metrics`.

        Args:
          labels, answers: arrays [N, ...].
          num_labels: of the task.
        """
        raise NotImplementedError

    def score_names(self, num_labels: int) -> Tuple[str, ...]:
        """Returns the names of the scores by which adapters may be compared; higher is better."""
        raise NotImplementedError

    def texts(self, answers: Any, labels: Sequence[str]) -> List[str]:
        """Returns `answers`, or labels in that form, as text for files."""
        raise NotImplementedError

    def submitted(self, texts: List[str]) -> List[str]:
        """Returns `texts` in the format of GLUE's server."""
        return texts

    # Serving.

    def request_reader(self, description: Any, tokenizer: Any, where: str) -> Callable:
        """Returns a function that encodes a text, and optionally a second one, as rows."""
        try:
            long_texts = text_windows.recorded(description.training)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        in_windows = long_texts["long_texts"] == "windows"
        windows = text_windows.Windows(np.zeros(1, int), long_texts["window_pooling"])

        def read(text: str, text_b: Optional[str]) -> Tuple[List[task_kinds.Ids], Callable]:
            example = classifier_features.InputExample("", text, text_b)
            arguments = example, description.max_seq_length, tokenizer
            if in_windows:
                pairs = classifier_features.windows_of(*arguments)
            else:
                pairs = [classifier_features.truncated_tokens(*arguments)]
            rows = [classifier_features.join_pair(*pair) for pair in pairs]
            encode = tokenizer.convert_tokens_to_ids
            return [(list(encode(tokens)), segments) for tokens, segments in rows], answer

        def answer(outputs: List[task_kinds.Outputs]) -> Any:
            if len(outputs) == 1:  # Pooling would not change it, but take longer.
                return self.answer(outputs[0], description.labels)
            stacked = {name: np.stack([each[name] for each in outputs]) for name in outputs[0]}
            joined = windows.join(stacked, self.is_single_label)
            output = {name: values[0] for name, values in joined.items()}
            return self.answer(output, description.labels)

        return read


def get(name: str) -> TextKind:
    """Returns the kind with a name; raises `UserError` if it does not label whole texts."""
    kind = task_kinds.get(name)
    if not isinstance(kind, TextKind):
        raise UserError(f"kind={name}: expected a kind of task that labels a text.")
    return kind


def by_label_type() -> Dict[str, TextKind]:
    """Returns --label_type → kind."""
    return {kind.label_type: kind for kind in task_kinds.kinds() if isinstance(kind, TextKind)}


def label_formats() -> str:
    """Returns the help text for the values of --label_type."""
    formats = (f"{name}: {kind.label_format}" for name, kind in by_label_type().items())
    return "; ".join(formats) + "."


def class_probabilities(probabilities: Sequence[float], labels: Sequence[str]) -> Dict[str, float]:
    """Returns label → probability, for JSON."""
    return {label: task_kinds.round_float(value) for label, value in zip(labels, probabilities)}


def export_probabilities(probabilities: Any, labels: Any, is_label: Any) -> Dict[str, Any]:
    """Returns the outputs of a SavedModel from probabilities [B, N]; see `TaskKind.export`.

    Returns:
      "probabilities" [B, N], 0 for padding; "labels" [B, N]; and "label" [B], the most probable.
    """
    import tensorflow.compat.v1 as tf

    probabilities = tf.where(is_label, probabilities, tf.zeros_like(probabilities))
    best = tf.argmax(probabilities, -1, output_type=tf.int32)
    return {
        "probabilities": probabilities,
        "labels": labels,
        "label": tf.gather(labels, best, batch_dims=1),
    }
