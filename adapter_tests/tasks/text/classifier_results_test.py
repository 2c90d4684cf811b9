"""Tests of classifier_results.py: hand-computed scores, and files in BERT's and GLUE's formats."""

import os
import re
import tempfile
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import classifier_results
from adapter_bert.tasks.text.classifier_features import InputExample
from adapter_bert.tasks.text.glue import TASKS, TaskInfo

TAGS = TaskInfo("tags", ("x", "y"), {}, kind="multilabel", score="micro_f1")


def probabilities(answers, num_labels):
    """Returns predictions that give these answers a probability of 0.7."""
    rest = 0.3 / (num_labels - 1)
    rows = np.where(np.eye(num_labels, dtype=bool)[answers], 0.7, rest).astype(np.float32)
    return {"probabilities": rows, "loss": np.zeros(len(rows), np.float32)}


def numbers(*values):
    return {"prediction": np.array(values, np.float32), "loss": np.zeros(len(values), np.float32)}


class ScoresTest(tf.test.TestCase):
    def test_classification_scores_equal_hand_computed_ones(self):
        predictions = probabilities([1, 0, 1, 1, 0], 2)
        predictions["loss"] = np.array([1.0, 2.0, 3.0, 4.0, 9.0], np.float32)
        found = classifier_results.scores(TASKS["mrpc"], [1, 0, 0, 1, 1], predictions)
        # 2 true positives, 1 false positive, 1 false negative, 1 true negative.
        expected = {
            "accuracy": 3 / 5,
            "f1": 2 * 2 / (2 * 2 + 1 + 1),
            "matthews": (2 * 1 - 1 * 1) / np.sqrt(3 * 3 * 2 * 2),
            "macro_f1": (4 / 6 + 2 / 4) / 2,
            "majority_f1": 2 * 3 / (2 * 3 + 2),
            "predicted_labels": 2,
            "confusion_matrix": [[1, 1], [1, 2]],
            "loss": 19 / 5,
        }
        self.assertEqual(set(found), set(expected))
        for name, value in expected.items():
            self.assertAllClose(found[name], value, msg=name)

    def test_confusion_matrix_is_limited_to_200_labels(self):
        for num_labels, has_matrix in ((200, True), (201, False)):
            task = TaskInfo("many", tuple(map(str, range(num_labels))), {})
            found = classifier_results.scores(task, [0, 199], probabilities([0, 5], num_labels))
            self.assertEqual("confusion_matrix" in found, has_matrix)
            self.assertEqual(found["accuracy"], 0.5)

    def test_mean_of_batches_weights_batches_equally(self):
        losses = np.array([1.0, 2.0, 3.0, 4.0, 9.0], np.float32)
        self.assertAllClose(classifier_results.mean_of_batches(losses, 2), (1.5 + 3.5 + 9) / 3)
        self.assertAllClose(classifier_results.mean_of_batches(losses, 8), 19 / 5)

    def test_regression_scores_equal_hand_computed_ones(self):
        found = classifier_results.scores(TASKS["sts-b"], [0.0, 5.0, 4.0], numbers(1, 3, 2))
        self.assertEqual(set(found), {"pearson", "spearman", "mse", "loss"})
        self.assertAlmostEqual(found["spearman"], 1.0)
        self.assertAlmostEqual(found["mse"], (1 + 4 + 4) / 3)

    def test_multilabel_scores_equal_hand_computed_ones(self):
        predictions = {
            "probabilities": np.array([[0.9, 0.8], [0.6, 0.4], [0.1, 0.2]]),
            "loss": np.ones(3),
        }
        labels = np.array([[1, 1], [0, 1], [0, 0]])
        found = classifier_results.scores(TAGS, labels, predictions)
        # Correct: x and y of the first row. Wrong: x of the second. Missed: y of the second.
        self.assertAllClose(found["micro_f1"], 2 * 2 / (2 * 2 + 1 + 1))
        self.assertAllClose(found["accuracy"], 2 / 3)
        # Each set occurs once, so the first in order, the empty one, is the constant.
        self.assertEqual((found["majority_micro_f1"], found["predicted_labels"]), (0.0, 2))

    def test_majority_score_is_of_the_most_frequent_label_or_set(self):
        labels = [2, 1, 2, 0]
        task = TaskInfo("three", ("a", "b", "c"), {}, score="macro_f1")
        found = classifier_results.scores(task, labels, probabilities([1, 1, 1, 1], 3))
        self.assertAllClose(found["majority_macro_f1"], 2 * 2 / (2 * 2 + 2) / 3)
        self.assertEqual(found["predicted_labels"], 1)
        sets = np.array([[1, 0], [0, 1], [0, 1]])
        found = classifier_results.scores(
            TAGS, sets, {"probabilities": np.ones([3, 2]) * [0.1, 0.9], "loss": np.ones(3)}
        )
        self.assertAllClose(found["majority_micro_f1"], 2 / 3)
        self.assertEqual(found["predicted_labels"], 1)

    def test_summary_shows_the_main_score_first_and_no_reference(self):
        found = classifier_results.scores(TASKS["mrpc"], [1, 0, 1], probabilities([1, 0, 0], 2))
        named = classifier_results.add_prefix("test", {**found, "loss": 0.25})
        self.assertEqual(
            classifier_results.summary(TASKS["mrpc"], "test", named),
            "f1 0.6667, accuracy 66.7%, macro_f1 0.6667, matthews 0.5000, loss 0.2500",
        )

    def test_scores_include_the_main_score_of_every_task(self):
        for name, task in TASKS.items():
            is_regression = task.kind == "regression"
            predictions = (
                numbers(0, 0) if is_regression else probabilities([0, 1], len(task.labels))
            )
            self.assertIn(task.score, classifier_results.scores(task, [0, 1], predictions), name)


class WarningsTest(tf.test.TestCase):
    def warnings(self, task, labels, predictions, split="dev"):
        labels = np.array(labels)
        values = classifier_results.scores(task, labels, predictions)
        return classifier_results.warnings(task, split, labels, predictions, values)

    def test_predictions_of_one_label_are_told_in_one_sentence(self):
        mrpc = TASKS["mrpc"]
        majority = "the model has learned nothing but the majority label."
        for labels, answers, expected in (
            ([1, 1, 0], [1, 1, 1], f"All 3 dev rows are predicted as 1: {majority}"),
            ([1, 1, 0], [0, 0, 0], "All 3 dev rows are predicted as 0, though most have 1."),
            (
                [1, 1, 1],
                [1, 1, 1],
                "All 3 dev rows are predicted as 1, which is true, but the scores cannot tell"
                " whether the model knows anything else.",
            ),
        ):
            found = self.warnings(mrpc, labels, probabilities(answers, 2))
            self.assertEqual(found, (expected,))
        found = self.warnings(TASKS["mnli"], [2, 2, 1], probabilities([2] * 3, 3), "dev_mismatched")
        expected = f"All 3 dev mismatched rows are predicted as neutral: {majority}"
        self.assertEqual(found, (expected,))

    def test_one_set_of_labels_is_told_and_may_be_empty(self):
        labels = [[1, 0], [0, 0], [0, 0]]
        for row, expected in (
            ([0.1, 0.2], "to have no label: the model has learned nothing but the majority label."),
            ([0.9, 0.8], "as x,y, though most have no label."),
        ):
            predictions = {"probabilities": np.array([row] * 3), "loss": np.ones(3)}
            found = self.warnings(TAGS, labels, predictions, "test")
            self.assertEqual(found, (f"All 3 test rows are predicted {expected}",))

    def test_score_that_does_not_exceed_the_majoritys_is_told(self):
        qnli, rte = TASKS["qnli"], TASKS["rte"]
        labels, as_good = [0, 0, 0, 1], [0, 0, 1, 1]
        expected = "accuracy 0.750 is no better than 0.750 of always predicting entailment."
        self.assertEqual(self.warnings(qnli, labels, probabilities(as_good, 2)), (expected,))
        self.assertEqual(self.warnings(rte, labels, probabilities([0, 0, 0, 1], 2)), ())
        # The majority has a Matthews of 0 by definition, so the accuracies are compared.
        expected = "accuracy 0.750 is no better than 0.750 of always predicting 0."
        cola = TASKS["cola"]
        self.assertEqual(self.warnings(cola, labels, probabilities(as_good, 2)), (expected,))
        self.assertEqual(self.warnings(cola, [0, 0, 1, 1], probabilities(as_good, 2)), ())

    def test_loss_that_is_no_number_is_told_alone(self):
        for task, labels, predictions in (
            (TASKS["mrpc"], [1, 1, 0], probabilities([1, 1, 1], 2)),
            (TASKS["sts-b"], [1.0, 2.0, 3.0], numbers(1, 2, 3)),
        ):
            for value in (np.nan, np.inf):
                predictions["loss"][1] = value
                (found,) = self.warnings(task, labels, predictions)
                self.assertStartsWith(found, f"The loss of the 3 dev rows is {value}: the training")
            predictions["loss"][1] = 0
        self.assertEqual(self.warnings(task, labels, predictions), ())


class FilesTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())

    def rows(self, name):
        """Returns the lines of a file, with "|" for a tab."""
        with open(os.path.join(self.folder, name)) as reader:
            return reader.read().replace("\t", "|").splitlines()

    def names(self, folder=""):
        return sorted(os.listdir(os.path.join(self.folder, folder)))

    def write(self, task, split, predictions):
        return classifier_results.write_predictions(self.folder, task, split, predictions)

    def test_submission_follows_a_link_or_is_refused(self):
        submission, elsewhere = (
            os.path.join(self.folder, name) for name in ("submission", "other")
        )
        os.symlink(elsewhere, submission)
        self.write(TASKS["rte"], "test", probabilities([1], 2))
        self.assertEqual(os.listdir(elsewhere), ["RTE.tsv"])
        os.remove(submission)
        with open(submission, "w"), self.assertRaisesRegex(UserError, f"^{submission}"):
            self.write(TASKS["rte"], "test", probabilities([1], 2))

    def test_classification_predictions_are_written(self):
        paths = self.write(TASKS["rte"], "test", probabilities([1, 0], 2))
        names = ["test_results.tsv", "predictions.tsv", "submission/RTE.tsv"]
        self.assertEqual(paths, [os.path.join(self.folder, name) for name in names])
        self.assertEqual(self.rows("test_results.tsv"), ["0.3|0.7", "0.7|0.3"])
        self.assertEqual(
            self.rows("predictions.tsv"),
            [
                "index|label|entailment|not_entailment",
                "0|not_entailment|0.3|0.7",
                "1|entailment|0.7|0.3",
            ],
        )
        expected = ["index|prediction", "0|not_entailment", "1|entailment"]
        self.assertEqual(self.rows("submission/RTE.tsv"), expected)

    def test_regression_predictions_are_written_and_clipped(self):
        self.write(TASKS["sts-b"], "test", numbers(-0.5, 2.34567, 7.0))
        self.assertEqual(self.rows("test_results.tsv"), ["-0.5", "2.34567", "7.0"])
        expected = ["index|label", "0|-0.5", "1|2.34567", "2|7.0"]
        self.assertEqual(self.rows("predictions.tsv"), expected)
        expected = ["index|prediction", "0|0.000", "1|2.346", "2|5.000"]
        self.assertEqual(self.rows("submission/STS-B.tsv"), expected)

    def test_dev_labels_and_predictions_are_written(self):
        predictions, labels = probabilities([1, 0], 2), np.array([1, 1])
        for split in ("dev", "dev_mismatched"):
            classifier_results.write_answers(self.folder, TASKS["rte"], split, labels, predictions)
        names = [
            f"dev_{of}{end}.tsv" for of in ("labels", "predictions") for end in ("", "_mismatched")
        ]
        self.assertEqual(self.names(), names)
        for end in ("", "_mismatched"):
            expected = ["index|label", "0|not_entailment", "1|not_entailment"]
            self.assertEqual(self.rows(f"dev_labels{end}.tsv"), expected)
            found = self.rows(f"dev_predictions{end}.tsv")
            self.assertEqual(found[1:], ["0|not_entailment|0.3|0.7", "1|entailment|0.7|0.3"])

    def test_dev_answers_may_be_numbers_or_label_sets(self):
        sets = {"probabilities": np.array([[0.9, 0.8], [0.6, 0.4]]), "loss": np.zeros(2)}
        for task, labels, predictions, expected in (
            (TASKS["sts-b"], [2.5, 0.0], numbers(1.5, 3), (["2.5", "0.0"], ["1.5", "3.0"])),
            (TAGS, [[0, 1], [0, 0]], sets, (["y", ""], ["x,y", "x"])),
        ):
            classifier_results.write_answers(
                self.folder, task, "dev", np.array(labels), predictions
            )
            for name, answers in zip(("dev_labels.tsv", "dev_predictions.tsv"), expected):
                found = [row.split("|")[1] for row in self.rows(name)]
                self.assertEqual(found, ["label", *answers])

    def test_predictions_end_with_columns_and_texts(self):
        texts = [("a\tb\n", None, "x"), ("c", "d e", "")]
        for pairs, header, expected in (
            (texts[:1] * 2, "id|text", ["x|a b", "x|a b"]),
            (texts, "id|text|text_b", ["x|a b|", "|c|d e"]),
        ):
            examples = [
                InputExample(str(index), a, b, "0", {"id": name})
                for index, (a, b, name) in enumerate(pairs)
            ]
            predictions = probabilities([1, 0], 2)
            arguments = TASKS["rte"], "test", predictions
            classifier_results.write_test(self.folder, *arguments, None, examples)
            classifier_results.write_answers(
                *(self.folder, TASKS["rte"], "dev", np.array([0, 1]), predictions, examples)
            )
            labels = "index|label|entailment|not_entailment"
            starts = ["0|not_entailment|0.3|0.7", "1|entailment|0.7|0.3"]
            rows = [f"{start}|{end}" for start, end in zip(starts, expected)]
            for name in ("predictions.tsv", "dev_predictions.tsv"):
                self.assertEqual(self.rows(name), [f"{labels}|{header}", *rows])
            # Other programs read these.
            self.assertEqual(self.rows("test_results.tsv"), ["0.3|0.7", "0.7|0.3"])
            self.assertEqual(
                self.rows("submission/RTE.tsv")[1:], ["0|not_entailment", "1|entailment"]
            )
        examples = [InputExample("0", "how old", None, "0")]
        classifier_results.write_test(
            self.folder, TASKS["sts-b"], "test", numbers(2.5), None, examples
        )
        self.assertEqual(self.rows("predictions.tsv"), ["index|label|text", "0|2.5|how old"])

    def test_labels_with_tabs_and_line_breaks_are_written_with_spaces(self):
        task = TaskInfo("cities", ("New\tYork", "b\n"), {})
        predictions = probabilities([1, 0], 2)
        classifier_results.write_answers(self.folder, task, "test", np.array([0, 1]), predictions)
        self.assertEqual(self.rows("labels.tsv")[1:], ["0|New York", "1|b"])
        self.assertEqual(self.rows("predictions.tsv")[0], "index|label|New York|b")

    def test_labels_of_a_test_set_are_written(self):
        classifier_results.write_answers(self.folder, TASKS["sts-b"], "test", np.array([2.5, 0.0]))
        self.assertEqual(self.names(), ["labels.tsv"])
        self.assertEqual(self.rows("labels.tsv"), ["index|label", "0|2.5", "1|0.0"])

    def test_unlabeled_test_set_removes_labels_of_earlier_one(self):
        task, predictions, labels = TASKS["sts-b"], numbers(1.5, 3), np.array([2.5, 0.0])
        for split, end in (("test", ""), ("test_second", "_second")):
            scores = classifier_results.scores_of_test(task, labels, predictions)
            classifier_results.write_test(self.folder, task, split, predictions, (labels, scores))
            self.assertIn(f"labels{end}.tsv", self.names())
            self.assertIn(f"test_scores{end}.json", self.names())
        classifier_results.write_test(self.folder, task, "test", predictions)
        left = {name.split(".")[0] for name in self.names()}
        names = {"predictions", "test_results"}
        second = {name + "_second" for name in (*names, "labels", "test_scores")}
        self.assertEqual(left, {*names, "submission", *second})

    def test_interrupted_write_leaves_no_scores_of_earlier_predictions(self):
        labels = np.array([2.5, 0.0])
        task, predictions = TASKS["sts-b"], numbers(1.5, 3)
        scores = classifier_results.scores_of_test(task, labels, predictions)
        arguments = self.folder, task, "test", predictions, (labels, scores)
        classifier_results.write_test(*arguments)
        killed = mock.patch.object(
            classifier_results, "write_answers", side_effect=KeyboardInterrupt
        )
        with killed, self.assertRaises(KeyboardInterrupt):
            classifier_results.write_test(*arguments)
        self.assertIn("predictions.tsv", self.names())
        self.assertEmpty({"labels.tsv", "test_scores.json"} & set(self.names()))

    def test_two_test_sets_are_written_to_separate_files(self):
        for split in ("test", "test_mismatched"):
            self.write(TASKS["mnli"], split, probabilities([2], 3))
        names = [
            f"{of}{end}.tsv"
            for of in ("predictions", "test_results")
            for end in ("", "_mismatched")
        ]
        self.assertCountEqual(self.names(), [*names, "submission"])
        self.assertEqual(self.names("submission"), ["MNLI-m.tsv", "MNLI-mm.tsv"])
        self.assertEqual(self.rows("submission/MNLI-mm.tsv")[1:], ["0|neutral"])


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
                    predictions = numbers(*rng.uniform(-1, 6, num_rows))
                else:
                    answers = rng.randint(len(task.labels), size=num_rows)
                    predictions = probabilities(answers, len(task.labels))
                classifier_results.write_predictions(folder, task, split, predictions)
        written = os.listdir(os.path.join(folder, "submission"))
        self.assertEqual(sorted(written), sorted(name + ".tsv" for name in SERVER))
        for name in written:
            check_submission(os.path.join(folder, "submission", name))
