"""Tests of classifier_report.py: hand-made predictions of each kind of task."""

import os

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.tasks.text import classifier_report, text_kind
from adapter_bert.tasks.text.classifier_features import InputExample
from adapter_bert.tasks.text.glue import TASKS, TaskInfo


def examples(texts, **columns):
    return [
        InputExample(
            str(i), text, None, None, {name: values[i] for name, values in columns.items()}
        )
        for i, text in enumerate(texts)
    ]


def rows_of(report, start):
    """Returns the cells of the table after the line that begins with `start`."""
    lines = report.split("\n")
    first = next(i for i, line in enumerate(lines) if line.startswith(start)) + 3
    return [line.split() for line in lines[first:] if line]


class DescribeTest(tf.test.TestCase):
    def test_most_confident_errors_are_shown_with_their_texts(self):
        first = np.array([0.9, 0.2, 0.6, 0.3])
        predictions = {"probabilities": np.stack([first, 1 - first], 1), "loss": np.ones(4)}
        texts = ["right", "wrong\tand\nsure", "wrong " + "x" * 200, "right"]
        found = classifier_report.describe(
            TASKS["rte"],
            "dev_second",
            np.array([0, 0, 1, 1]),
            predictions,
            examples(texts, id=["a", "b\x1b[0m", "c", "d"]),
        )
        self.assertStartsWith(found, "dev second, 4 rows:\n")
        self.assertIn("Always predicting entailment: accuracy 0.500.", found)
        self.assertEqual(
            rows_of(found, "The 2 most confident of 2 errors"),
            [
                ["0.800", "entailment", "not_entailment", "1", "b\\x1b[0m", "wrong", "and", "sure"],
                ["0.600", "not_entailment", "entailment", "2", "c", "wrong", "x" * 93 + "…"],
            ],
        )

    def test_predictions_without_errors_say_so(self):
        predictions = {"probabilities": np.eye(2), "loss": np.zeros(2)}
        found = classifier_report.describe(
            TASKS["rte"], "dev", np.array([0, 1]), predictions, examples("ab")
        )
        self.assertIn("\nNo errors.\n", found)

    def test_sets_of_labels_have_no_matrix(self):
        task = TaskInfo("tags", ("x", "y"), {}, kind="multilabel", score="micro_f1")
        predictions = {
            "probabilities": np.array([[0.9, 0.8], [0.6, 0.3], [0.1, 0.2]]),
            "loss": np.ones(3),
        }
        labels = np.array([[1, 1], [1, 1], [1, 0]])
        found = classifier_report.describe(task, "test", labels, predictions, examples("abc"))
        self.assertNotIn("Confusion", found)
        # The most confident wrong label counts: x of the last row has a probability of 0.1.
        self.assertEqual(
            rows_of(found, "The 2 most confident of 2 errors"),
            [["0.900", "x", "no", "label", "2", "c"], ["0.700", "x,y", "x", "1", "b"]],
        )

    def test_regression_has_its_mean_and_largest_errors(self):
        predictions = {"prediction": np.array([1.0, 2.5, 4.0], np.float32), "loss": np.ones(3)}
        labels = np.array([1.5, 2.5, 2.0], np.float32)
        found = classifier_report.describe(
            TASKS["sts-b"], "dev", labels, predictions, examples(["a", "b", "c"])
        )
        self.assertIn("Mean absolute error: 0.833 (0.333 of always predicting the mean).", found)
        expected = [["+2.000", "2", "4", "2", "c"], ["-0.500", "1.5", "1", "0", "a"]]
        self.assertEqual(rows_of(found, "The 3 largest errors")[:2], expected)

    def test_150_labels_stay_readable(self):
        rng = np.random.RandomState(0)
        labels = tuple(f"label {i} " + "long " * 30 for i in range(150))
        task = TaskInfo("many", labels, {})
        probabilities = rng.dirichlet(np.ones(150), 300)
        found = classifier_report.describe(
            *(task, "dev", rng.randint(0, 150, 300)),
            {"probabilities": probabilities, "loss": np.ones(300)},
            examples(["text"] * 300),
        )
        self.assertIn("The most frequent confusions of 150 labels:", found)
        self.assertLess(max(map(len, found.split("\n"))), 110)


class PlotTest(tf.test.TestCase):
    def test_pictures_are_among_the_results_that_further_training_removes(self):
        folder = self.get_temp_dir()
        classes = {"probabilities": np.eye(3)}
        for task, labels, predictions, split, name in (
            ("mnli", [0, 1, 1], classes, "dev", "dev_confusion.png"),
            ("mnli", [0, 1, 1], classes, "dev_mismatched", "dev_confusion_mismatched.png"),
            ("mnli", [0, 1, 1], classes, "test", "confusion.png"),
            ("sts-b", [1.0, 2.0], {"prediction": np.array([2.0, 2.5])}, "dev", "dev_scatter.png"),
        ):
            task = TASKS[task]
            (path,) = classifier_report.plot(folder, task, split, np.array(labels), predictions)
            self.assertEqual(path, os.path.join(folder, name))
            self.assertTrue(os.path.exists(path))
            self.assertIn(name, text_kind.get(task.kind).result_files)
        self.assertLen(os.listdir(folder), 4)

    def test_sets_of_labels_have_no_picture(self):
        task = TaskInfo("tags", ("x", "y"), {}, kind="multilabel", score="micro_f1")
        predictions = {"probabilities": np.eye(2)}
        found = classifier_report.plot("none", task, "dev", np.eye(2, dtype=int), predictions)
        self.assertEqual(found, [])
