"""Tests of classifier_results.py: hand-computed scores, and files in BERT's and GLUE's formats."""

import os
import re
import tempfile
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import classifier_results
from adapter_bert.tasks.text.glue import TASKS, Task


def probabilities(answers, num_labels):
    """Returns rows that give these answers a probability of 0.7."""
    rest = 0.3 / (num_labels - 1)
    return np.where(np.eye(num_labels, dtype=bool)[answers], 0.7, rest).astype(np.float32)


class ScoresTest(tf.test.TestCase):
    def test_classification_scores_equal_hand_computed_ones(self):
        predictions = {
            "probabilities": probabilities([1, 0, 1, 1, 0], 2),
            "loss": np.array([1.0, 2.0, 3.0, 4.0, 9.0], np.float32),
        }
        found = classifier_results.scores(TASKS["mrpc"], [1, 0, 0, 1, 1], predictions)
        # 2 true positives, 1 false positive, 1 false negative, 1 true negative.
        expected = {
            "accuracy": 3 / 5,
            "f1": 2 * 2 / (2 * 2 + 1 + 1),
            "matthews": (2 * 1 - 1 * 1) / np.sqrt(3 * 3 * 2 * 2),
            "confusion_matrix": [[1, 1], [1, 2]],
            "loss": 19 / 5,
        }
        self.assertEqual(set(found), set(expected))
        for name, value in expected.items():
            self.assertAllClose(found[name], value, msg=name)

    def test_confusion_matrix_is_limited_to_200_labels(self):
        for num_labels, has_matrix in ((200, True), (201, False)):
            task = Task("many", tuple(map(str, range(num_labels))), {})
            predictions = {"probabilities": probabilities([0, 5], num_labels), "loss": np.ones(2)}
            found = classifier_results.scores(task, [0, 199], predictions)
            self.assertEqual("confusion_matrix" in found, has_matrix)
            self.assertEqual(found["accuracy"], 0.5)

    def test_mean_of_batches_weights_batches_equally(self):
        losses = np.array([1.0, 2.0, 3.0, 4.0, 9.0], np.float32)
        self.assertAllClose(classifier_results.mean_of_batches(losses, 2), (1.5 + 3.5 + 9) / 3)
        self.assertAllClose(classifier_results.mean_of_batches(losses, 8), 19 / 5)

    def test_regression_scores_equal_hand_computed_ones(self):
        predictions = {"prediction": np.array([1.0, 3.0, 2.0]), "loss": np.ones(3)}
        found = classifier_results.scores(TASKS["sts-b"], [0.0, 5.0, 4.0], predictions)
        self.assertEqual(set(found), {"pearson", "spearman", "mse", "loss"})
        self.assertAlmostEqual(found["spearman"], 1.0)
        self.assertAlmostEqual(found["mse"], (1 + 4 + 4) / 3)

    def test_multilabel_scores_equal_hand_computed_ones(self):
        task = Task("tags", ("x", "y"), {}, kind="multilabel", score="micro_f1")
        predictions = {
            "probabilities": np.array([[0.9, 0.8], [0.6, 0.4], [0.1, 0.2]]),
            "loss": np.ones(3),
        }
        labels = np.array([[1, 1], [0, 1], [0, 0]])
        found = classifier_results.scores(task, labels, predictions)
        # Correct: x and y of the first row. Wrong: x of the second. Missed: y of the second.
        self.assertAllClose(found["micro_f1"], 2 * 2 / (2 * 2 + 1 + 1))
        self.assertAllClose(found["accuracy"], 2 / 3)
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        paths = classifier_results.write_predictions(folder, task, "test", predictions)
        with open(paths[1]) as reader:
            self.assertEqual([line.split("\t")[1] for line in reader][1:], ["x,y", "x", ""])

    def test_scores_include_the_main_score_of_every_task(self):
        for name, task in TASKS.items():
            if task.kind == "regression":
                predictions = {"prediction": np.zeros(2), "loss": np.zeros(2)}
            else:
                predictions = {
                    "probabilities": probabilities([0, 1], len(task.labels)),
                    "loss": np.zeros(2),
                }
            found = classifier_results.scores(task, [0, 1], predictions)
            self.assertIn(task.score, found, name)


class FilesTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())

    def rows(self, *names):
        with open(os.path.join(self.folder, *names)) as reader:
            return [line.split("\t") for line in reader.read().splitlines()]

    def test_submission_follows_a_link_or_is_refused(self):
        predictions = {"probabilities": probabilities([1], 2)}
        submission, elsewhere = (
            os.path.join(self.folder, name) for name in ("submission", "other")
        )
        os.symlink(elsewhere, submission)
        classifier_results.write_predictions(self.folder, TASKS["rte"], "test", predictions)
        self.assertEqual(os.listdir(elsewhere), ["RTE.tsv"])
        os.remove(submission)
        with open(submission, "w"), self.assertRaisesRegex(UserError, f"^{submission}"):
            classifier_results.write_predictions(self.folder, TASKS["rte"], "test", predictions)

    def test_classification_predictions_are_written(self):
        predictions = {"probabilities": probabilities([1, 0, 1], 2)}
        task = TASKS["rte"]
        paths = classifier_results.write_predictions(self.folder, task, "test", predictions)
        names = ["test_results.tsv", "predictions.tsv", "submission/RTE.tsv"]
        self.assertEqual(paths, [os.path.join(self.folder, name) for name in names])
        self.assertEqual(
            self.rows("test_results.tsv"), [["0.3", "0.7"], ["0.7", "0.3"], ["0.3", "0.7"]]
        )
        self.assertEqual(
            self.rows("predictions.tsv"),
            [
                ["index", "label", "entailment", "not_entailment"],
                ["0", "not_entailment", "0.3", "0.7"],
                ["1", "entailment", "0.7", "0.3"],
                ["2", "not_entailment", "0.3", "0.7"],
            ],
        )
        self.assertEqual(
            self.rows("submission", "RTE.tsv"),
            [
                ["index", "prediction"],
                ["0", "not_entailment"],
                ["1", "entailment"],
                ["2", "not_entailment"],
            ],
        )

    def test_regression_predictions_are_written_and_clipped(self):
        predictions = {"prediction": np.array([-0.5, 2.34567, 7.0], np.float32)}
        classifier_results.write_predictions(self.folder, TASKS["sts-b"], "test", predictions)
        self.assertEqual(self.rows("test_results.tsv"), [["-0.5"], ["2.34567"], ["7.0"]])
        self.assertEqual(
            self.rows("predictions.tsv"),
            [["index", "label"], ["0", "-0.5"], ["1", "2.34567"], ["2", "7.0"]],
        )
        self.assertEqual(
            self.rows("submission", "STS-B.tsv"),
            [["index", "prediction"], ["0", "0.000"], ["1", "2.346"], ["2", "5.000"]],
        )

    def test_dev_labels_and_predictions_are_written(self):
        predictions = {"probabilities": probabilities([1, 0], 2), "loss": np.zeros(2)}
        for split in ("dev", "dev_mismatched"):
            classifier_results.write_answers(
                self.folder, TASKS["rte"], split, np.array([1, 1]), predictions
            )
        names = ["dev_labels", "dev_labels_mismatched"]
        names += ["dev_predictions", "dev_predictions_mismatched"]
        self.assertEqual(sorted(os.listdir(self.folder)), [f"{name}.tsv" for name in names])
        for end in ("", "_mismatched"):
            self.assertEqual(
                self.rows(f"dev_labels{end}.tsv"),
                [["index", "label"], ["0", "not_entailment"], ["1", "not_entailment"]],
            )
            self.assertEqual(
                self.rows(f"dev_predictions{end}.tsv"),
                [
                    ["index", "label", "entailment", "not_entailment"],
                    ["0", "not_entailment", "0.3", "0.7"],
                    ["1", "entailment", "0.7", "0.3"],
                ],
            )

    def test_labels_with_tabs_and_line_breaks_are_written_with_spaces(self):
        task = Task("cities", ("New\tYork", "b\n"), {})
        predictions = {"probabilities": probabilities([1, 0], 2), "loss": np.zeros(2)}
        classifier_results.write_answers(self.folder, task, "test", np.array([0, 1]), predictions)
        self.assertEqual(self.rows("labels.tsv")[1:], [["0", "New York"], ["1", "b"]])
        self.assertEqual(self.rows("predictions.tsv")[0], ["index", "label", "New York", "b"])

    def test_labels_of_a_test_set_are_written(self):
        classifier_results.write_answers(self.folder, TASKS["sts-b"], "test", np.array([2.5, 0.0]))
        self.assertEqual(os.listdir(self.folder), ["labels.tsv"])
        self.assertEqual(self.rows("labels.tsv"), [["index", "label"], ["0", "2.5"], ["1", "0.0"]])

    def test_unlabeled_test_set_removes_labels_of_earlier_one(self):
        predictions = {"prediction": np.array([1.5, 3.0]), "loss": np.zeros(2)}
        task, labels = TASKS["sts-b"], np.array([2.5, 0.0])
        names = ["predictions", "submission", "test_results"]
        for split, end in (("test", ""), ("test_second", "_second")):
            classifier_results.write_test(self.folder, task, split, predictions, labels)
            self.assertIn(f"labels{end}.tsv", os.listdir(self.folder))
            self.assertIn(f"test_scores{end}.json", os.listdir(self.folder))
        classifier_results.write_test(self.folder, task, "test", predictions)
        left = {name.split(".")[0] for name in os.listdir(self.folder)}
        second = {name + "_second" for name in ("predictions", "test_results", "labels")}
        self.assertEqual(left, {*names, *second, "test_scores_second"})

    def test_interrupted_write_leaves_no_scores_of_earlier_predictions(self):
        predictions = {"prediction": np.array([1.5, 3.0]), "loss": np.zeros(2)}
        arguments = self.folder, TASKS["sts-b"], "test", predictions, np.array([2.5, 0.0])
        classifier_results.write_test(*arguments)
        killed = mock.patch.object(
            classifier_results, "write_answers", side_effect=KeyboardInterrupt
        )
        with killed, self.assertRaises(KeyboardInterrupt):
            classifier_results.write_test(*arguments)
        left = os.listdir(self.folder)
        self.assertIn("predictions.tsv", left)
        self.assertEmpty({"labels.tsv", "test_scores.json"} & set(left))

    def test_dev_answers_may_be_numbers_or_label_sets(self):
        predictions = {"prediction": np.array([1.5, 3.0]), "loss": np.zeros(2)}
        classifier_results.write_answers(
            self.folder, TASKS["sts-b"], "dev", np.array([2.5, 0.0]), predictions
        )
        self.assertEqual(
            self.rows("dev_predictions.tsv"), [["index", "label"], ["0", "1.5"], ["1", "3.0"]]
        )
        task = Task("tags", ("x", "y"), {}, kind="multilabel", score="micro_f1")
        predictions = {"probabilities": np.array([[0.9, 0.8], [0.6, 0.4]]), "loss": np.zeros(2)}
        classifier_results.write_answers(
            self.folder, task, "dev", np.array([[0, 1], [0, 0]]), predictions
        )
        self.assertEqual([row[1] for row in self.rows("dev_labels.tsv")], ["label", "y", ""])
        self.assertEqual(
            [row[1] for row in self.rows("dev_predictions.tsv")], ["label", "x,y", "x"]
        )

    def test_two_test_sets_are_written_to_separate_files(self):
        predictions = {"probabilities": probabilities([2], 3)}
        for split in ("test", "test_mismatched"):
            classifier_results.write_predictions(self.folder, TASKS["mnli"], split, predictions)
        self.assertEqual(
            sorted(os.listdir(self.folder)),
            [
                "predictions.tsv",
                "predictions_mismatched.tsv",
                "submission",
                "test_results.tsv",
                "test_results_mismatched.tsv",
            ],
        )
        self.assertEqual(
            sorted(os.listdir(os.path.join(self.folder, "submission"))),
            ["MNLI-m.tsv", "MNLI-mm.tsv"],
        )
        self.assertEqual(self.rows("submission", "MNLI-mm.tsv")[1:], [["0", "neutral"]])


# The number of rows and the valid predictions that GLUE's server expects in each file.
_BINARY, _RTE = ("0", "1"), ("entailment", "not_entailment")
_NLI = ("contradiction", "entailment", "neutral")
SERVER = {
    "AX": (1104, _NLI),
    "CoLA": (1063, _BINARY),
    "MNLI-m": (9796, _NLI),
    "MNLI-mm": (9847, _NLI),
    "MRPC": (1725, _BINARY),
    "QNLI": (5463, _RTE),
    "QQP": (1000, _BINARY),  # Instead of 390965, which would take seconds.
    "RTE": (3000, _RTE),
    "SST-2": (1821, _BINARY),
    "STS-B": (1379, None),
    "WNLI": (146, _BINARY),
}


def check_submission(path):
    """Raises AssertionError unless GLUE's server would accept this file under its name."""
    name = os.path.splitext(os.path.basename(path))[0]
    num_rows, labels = SERVER[name]
    with open(path, encoding="utf-8", newline="") as reader:
        header, *rows = [line.split("\t") for line in reader.read().split("\n")[:-1]]
    assert header == ["index", "prediction"], header
    assert len(rows) == num_rows, (name, len(rows))
    assert [row[0] for row in rows] == [str(index) for index in range(num_rows)], name
    for _, value in rows:
        if labels:
            assert value in labels, (name, value)
        else:
            assert re.fullmatch(r"[0-5]\.\d{3}", value) and float(value) <= 5, (name, value)


class SubmissionTest(tf.test.TestCase):
    def test_submissions_of_every_glue_task_are_valid(self):
        folder, rng = self.get_temp_dir(), np.random.RandomState(0)
        for task in TASKS.values():
            for split, name in task.submission.items():
                num_rows = SERVER[name][0]
                if task.kind == "regression":
                    predictions = {"prediction": rng.uniform(-1, 6, num_rows)}
                else:
                    answers = rng.randint(len(task.labels), size=num_rows)
                    predictions = {"probabilities": probabilities(answers, len(task.labels))}
                classifier_results.write_predictions(folder, task, split, predictions)
        written = os.listdir(os.path.join(folder, "submission"))
        self.assertEqual(sorted(written), sorted(name + ".tsv" for name in SERVER))
        for name in written:
            check_submission(os.path.join(folder, "submission", name))
