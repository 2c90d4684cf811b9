"""Tests of significance.py: hand-computed p-values of McNemar's test, and mismatched files."""

import fractions
import os

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.paper import significance
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import classifier_results
from adapter_bert.tasks.text.glue import TASKS, TaskInfo
from adapter_tests.support import mutations


class McNemarTest(tf.test.TestCase):
    def test_p_values_match_hand_computation(self):
        # Twice the lower tail of a binomial distribution: 2 (1 + 7) / 2^7, 2 (1 + 12 + 66) / 2^12.
        self.assertAlmostEqual(significance.mcnemar(6, 1), 0.125)
        self.assertAlmostEqual(significance.mcnemar(1, 6), 0.125)
        self.assertAlmostEqual(significance.mcnemar(10, 2), 158 / 4096)

    def test_equal_counts_give_p_value_1(self):
        self.assertEqual(significance.mcnemar(0, 0), 1.0)
        self.assertEqual(significance.mcnemar(5, 5), 1.0)

    def test_p_value_of_many_pairs_matches_exact_fraction(self):
        # Agresti's poll on the prime minister: of 236 people who changed their minds, 150 and 86.
        row = [1]
        for _ in range(236):
            row = [1, *(a + b for a, b in zip(row, row[1:])), 1]
        expected = fractions.Fraction(2 * sum(row[:87]), 2**236)
        self.assertAllClose(significance.mcnemar(150, 86), float(expected), rtol=1e-9)


class CompareTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.get_temp_dir()
        self.labels = self.write(
            "labels.tsv", "index\tlabel\n0\tno\n1\tyes\n2\tyes\n3\tno\n4\tno\n"
        )
        self.first = self.write("first.tsv", self.predictions("no yes yes no yes"))
        # In another order: rows are matched by index.
        self.second = self.write("second.tsv", self.predictions("no no yes yes yes", reverse=True))

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as writer:
            writer.write(text)
        return path

    def predictions(self, answers, reverse=False):
        rows = [f"{index}\t{answer}\t0.5\t0.5\n" for index, answer in enumerate(answers.split())]
        return "index\tlabel\tno\tyes\n" + "".join(rows[::-1] if reverse else rows)

    def assert_refused(self, pattern, first=None, second=None, labels=None):
        with self.assertRaisesRegex(UserError, pattern):
            significance.compare(first or self.first, second or self.second, labels or self.labels)

    def test_compare_counts_correct_predictions(self):
        # The first is right in rows 0 to 3, the second in rows 0 and 2.
        found = significance.compare(self.first, self.second, self.labels)
        self.assertEqual(found, (2, 2, 0, 1))

    def test_describe_formats_the_counts_and_p_value(self):
        lines = significance.describe(significance.Comparison(1200, 10, 2, 188))
        self.assertEqual(lines[0].split(), ["second", "right", "second", "wrong"])
        self.assertEqual(lines[1].split(), ["first", "right", "1,200", "10"])
        self.assertEqual(lines[2].split(), ["first", "wrong", "2", "188"])
        self.assertIn("first 86.43%, second 85.86%, of 1,400 rows", lines[3])
        self.assertRegex(lines[4], r"exact \(binomial\), two-sided: p = 0\.03857$")

    def test_missing_rows_are_refused(self):
        short = self.write("short.tsv", self.predictions("no yes yes no"))
        self.assert_refused(r"labels.tsv, line 6: \S*short.tsv has no index 4", second=short)
        long = self.write("long.tsv", self.predictions("no yes yes no no no"))
        self.assert_refused(r"long.tsv, line 7: \S*labels.tsv has no index 5", first=long)

    def test_duplicate_indices_are_refused(self):
        twice = self.write("twice.tsv", self.predictions("no yes yes no no") + "3\tno\t1\t0\n")
        self.assert_refused(r"twice.tsv, line 7: the index 3 occurs a second time", first=twice)

    def test_unknown_labels_are_refused(self):
        other = self.write("other.tsv", "index\tlabel\n0\tno\n1\tmaybe\n2\tyes\n3\tno\n4\tno\n")
        pattern = r"other.tsv, line 3: found the label 'maybe'; expected one of no, yes"
        self.assert_refused(pattern, labels=other)

    def test_empty_labels_are_refused(self):
        path = self.write("unlabelled.tsv", "index\tlabel\n0\tno\n1\t\n2\tyes\n3\tno\n4\tno\n")
        self.assert_refused("unlabelled.tsv, line 3: found the label ''", labels=path)

    def test_multilabel_truth_accepts_single_label_predictions(self):
        labels = "index\tlabel\n0\tno\n1\tyes,no\n2\t\n3\tno\n4\tno\n"
        labels = self.write("sets.tsv", labels)
        found = significance.compare(self.first, self.second, labels)
        # The first is right in rows 0 and 3, the second in row 0.
        self.assertEqual(found, (1, 1, 0, 3))

    def test_null_labels_and_indices_are_refused(self):
        lines = "".join(f'{{"index": "{index}", "label": "no"}}\n' for index in range(4))
        for last, name in (
            ('{"index": "4", "label": null}', "label"),
            ('{"index": null, "label": "no"}', "index"),
        ):
            other = self.write("null.jsonl", lines + last)
            self.assert_refused(f"null.jsonl, line 5: {name} is null", labels=other)

    def test_predictions_of_different_labels_are_refused(self):
        text = self.predictions("no yes yes no no").replace("no\tyes", "no\tyes\tmaybe", 1)
        text = text.replace("0.5\n", "0.5\t0.0\n")
        self.assert_refused("predictions of the same labels", first=self.write("more.tsv", text))

    def test_columns_of_texts_are_no_labels(self):
        lines = self.predictions("no yes yes no yes").splitlines()
        rows = [f"{line}\t{index}\t0.5\n" for index, line in enumerate(lines[1:])]
        path = self.write("texts.tsv", f"{lines[0]}\tid\ttext\n" + "".join(rows))
        self.assertEqual(significance.compare(path, self.second, self.labels), (2, 2, 0, 1))

    def test_regression_predictions_are_refused(self):
        numbers = self.write("numbers.tsv", "index\tlabel\n0\t1.5\n")
        self.assert_refused(r"numbers.tsv, line 1: .* regression", first=numbers)

    def test_missing_and_malformed_files_are_refused(self):
        self.assert_refused(r"--compare: \S*missing.tsv does not exist", first="missing.tsv")
        self.assert_refused(r"--labels: \S*missing.tsv does not exist", labels="missing.tsv")
        other = self.write("test_results.tsv", "0.5\t0.5\n0.25\t0.75\n")
        self.assert_refused(r"line 1: found the columns 0.5, 0.5; expected index", first=other)


class OwnFilesTest(tf.test.TestCase):
    """Compares files that `classifier_results` writes."""

    def compare(self, task, labels, probabilities):
        folder = self.get_temp_dir()
        predictions = {"probabilities": probabilities, "loss": np.zeros(len(labels))}
        classifier_results.write_answers(folder, task, "dev", labels, predictions)
        path = os.path.join(folder, "dev_predictions.tsv")
        return significance.compare(path, path, os.path.join(folder, "dev_labels.tsv"))

    def test_single_label_files_can_be_compared(self):
        probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
        found = self.compare(TASKS["rte"], np.array([0, 1, 1]), probabilities)
        self.assertEqual(found, (2, 0, 0, 1))

    def test_multilabel_files_can_be_compared(self):
        task = TaskInfo("tags", ("a", "c", "d"), {}, kind="multilabel", score="micro_f1")
        probabilities = np.array([[0.9, 0.8, 0.1], [0.2, 0.1, 0.1], [0.6, 0.4, 0.7]])
        labels = np.array([[1, 1, 0], [0, 0, 0], [1, 1, 1]])
        self.assertEqual(self.compare(task, labels, probabilities), (2, 0, 0, 1))


class DamagedFilesTest(tf.test.TestCase):
    def test_damaged_predictions_are_compared_or_refused(self):
        rows = "".join(f"{i}\t{'ab'[i % 2]}\t0.4\t0.6\n" for i in range(12))
        predictions = ("index\tlabel\ta\tb\n" + rows).encode()
        labels = ("index\tlabel\n" + "".join(f"{i}\ta\n" for i in range(12))).encode()
        names = ("first.tsv", "second.tsv", "labels.tsv")

        def read(folder):
            paths = (os.path.join(folder, name) for name in names)
            significance.describe(significance.compare(*paths))

        mutations.check(dict(zip(names, (predictions, predictions, labels))), read)
