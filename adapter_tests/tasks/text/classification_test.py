"""Tests of classification.py: head and loss against NumPy, answers, labels in files."""

import numpy as np

from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text.classification import KIND
from adapter_tests.support.head_case import HeadCase


class ClassificationTest(HeadCase):
    ODDS = np.array([[[0.9, 0.8, 0.1], [0.2, 0.6, 0.7]], [[0.4, 0.3, 0.5], [0.0, 0.1, 0.0]]])

    def test_class_weights_scale_the_loss(self):
        labels, factors = [0, 2, 2, 1], [1.0, 0.0, 5.0]
        loss, predictions = self.run_head("classification", 3, labels, class_weights=factors)
        odds = np.exp(self.POOLED @ self.WEIGHTS.T)
        losses = -np.log(odds[np.arange(4), labels] / odds.sum(axis=1))
        self.assertAllClose(loss, np.mean(np.array(factors)[labels] * losses), atol=1e-5)
        self.assertAllClose(predictions["loss"], losses, atol=1e-5)

    def test_label_smoothing_mixes_targets_in_training_only(self):
        labels, factors, smoothing = [0, 2, 2, 1], np.array([1.0, 0.5, 5.0]), 0.3
        odds = np.exp(self.POOLED @ self.WEIGHTS.T)
        logs = np.log(odds / odds.sum(axis=1, keepdims=True))
        targets = np.eye(3)[labels] * (1 - smoothing) + smoothing / 3
        smoothed, plain = -(targets * logs).sum(axis=1), -logs[np.arange(4), labels]
        for is_training, losses in ((True, smoothed), (False, plain)):
            for weights in (None, factors):
                loss, predictions = self.run_head(
                    "classification",
                    3,
                    labels,
                    is_training,
                    label_smoothing=smoothing,
                    class_weights=None if weights is None else weights.tolist(),
                )
                weighted = losses if weights is None else weights[labels] * losses
                self.assertAllClose(loss, np.mean(weighted), atol=1e-5)
                self.assertAllClose(predictions["loss"], plain, atol=1e-5)

    def test_loss_and_probabilities_match_numpy(self):
        logits = np.array([[1.0, -1.0, 0.5], [0.0, 2.0, 0.0]], np.float32)
        found = self.run_predict(KIND, logits, np.array([0, 2], np.int32))
        softmax = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        self.assertAllClose(found["probabilities"], softmax)
        self.assertAllClose(found["loss"], -np.log(softmax[[0, 1], [0, 2]]))
        self.assertAllClose(KIND.decode(logits[0]), {"probabilities": softmax[0]})

    def test_answers_are_the_most_probable_labels(self):
        self.assertAllEqual(KIND.answers({"probabilities": self.ODDS}), [[0, 2], [2, 1]])
        self.assertEqual(KIND.answers({"probabilities": self.ODDS[0, 1]}), 2)
        outputs = {"probabilities": np.array([0.25, 0.75], np.float32)}
        self.assertEqual(
            KIND.answer(outputs, ("no", "yes")),
            {"label": "yes", "probabilities": {"no": 0.25, "yes": 0.75}},
        )

    def test_labels_in_files_are_parsed_and_described(self):
        self.assertEqual(KIND.parse_label("a, b", "f, line 2"), "a, b")
        with self.assertRaisesRegex(UserError, "^f, line 2: .*empty"):
            KIND.parse_label("", "f, line 2")
        self.assertEqual(KIND.placeholder(("x", "y")), "x")
        self.assertEqual(KIND.describe_labels(["x", "y"]), "one of x, y")
        self.assertTrue(KIND.describe_labels([*"abcdefghijkl"]).endswith("i, j, ..."))
        self.assertEqual(KIND.texts([1, 0], ("x", "y")), ["y", "x"])
