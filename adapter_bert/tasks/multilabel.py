"""Multi-label classification: a text has any number of several labels."""

import itertools
import json

from adapter_bert.common.errors import UserError
from adapter_bert.tasks import text_kind

THRESHOLD = 0.5  # Above this probability a label is one of a row's set.


class Multilabel(text_kind.TextKind):
    """A sigmoid for each label; see `TextKind` for what the methods do."""

    name = "multilabel"
    score = "micro_f1"
    label_type = "multilabel"
    label_format = "a set of names, a,b,c or a list in .jsonl files"
    answer_types = {"labels": "DT_STRING", "probabilities": "DT_FLOAT"}
    adapterhub_head = "multilabel_classification"

    def parse_label(self, text, where):
        """Returns a tuple of labels: of "a,b" or the JSON list ["a", "b"]; none of "".

        Raises:
          UserError: a list is not JSON, or a label in it is null or has a comma.
        """
        try:
            labels = json.loads(text) if text.startswith("[") else text.split(",")
        except (ValueError, RecursionError) as error:
            if text.endswith("]"):  # As Python prints a list, whose parts would become labels.
                raise UserError(
                    f"{where}: found {text}, which is no JSON; expected labels as in a,b or"
                    ' ["a", "b"].'
                ) from error
            labels = text.split(",")
        for label in labels:
            if label is None or "," in str(label):
                raise UserError(
                    f"{where}: found {json.dumps(label)} in a list, expected labels that are"
                    " neither null nor have commas, which stand between labels elsewhere."
                )
        # JSON has white space that a line of a file has not.
        return tuple(label for label in (" ".join(str(part).split()) for part in labels) if label)

    def placeholder(self, labels):
        """Returns the empty set."""
        return ()

    def predict(self, logits, labels):
        """Builds the mean of the labels' cross entropies, and their probabilities."""
        import tensorflow.compat.v1 as tf

        losses = tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.cast(labels, tf.float32), logits=logits
        )
        return {"loss": tf.reduce_mean(losses, 1), "probabilities": tf.sigmoid(logits)}

    def answers(self, predictions):
        """Returns a bool array [..., L]: which labels are in the set."""
        return predictions["probabilities"] > THRESHOLD

    def scores(self, labels, answers, num_labels):
        """Returns `metrics.multilabel`."""
        from adapter_bert.common import metrics  # scikit-learn, which no server needs.

        return metrics.multilabel(labels, answers)

    def texts(self, answers, labels):
        """Returns the sets' names, with commas between them."""
        return [",".join(itertools.compress(labels, row)) for row in answers]

    def decode(self, logits):
        """Returns the probabilities [L]."""
        import scipy.special  # As long as a step; predictions alone need it.

        return {"probabilities": scipy.special.expit(logits)}

    def answer(self, outputs, labels):
        """Returns the labels in the set, and the probabilities of all."""
        return {
            "labels": list(itertools.compress(labels, self.answers(outputs))),
            "probabilities": text_kind.class_probabilities(outputs["probabilities"], labels),
        }

    def export(self, logits, labels, is_label):
        """Builds the probabilities, the labels' names, and the most probable label."""
        import tensorflow.compat.v1 as tf

        probabilities = tf.sigmoid(logits[:, : labels.shape[1]])
        return text_kind.export_probabilities(probabilities, labels, is_label)


KIND = Multilabel()
