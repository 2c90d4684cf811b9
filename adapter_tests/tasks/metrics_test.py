"""Tests of metrics.py: scores equal the formulas, and are finite where a formula is undefined."""

import itertools
import math
import sys

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.tasks import metrics


def counts(labels, predictions):
    """Returns (true positives, false positives, false negatives, true negatives)."""
    pairs = list(zip(labels, predictions))
    return [sum(pair == case for pair in pairs) for case in ((1, 1), (0, 1), (1, 0), (0, 0))]


def f1(labels, predictions):
    tp, fp, fn, _ = counts(labels, predictions)
    return 2 * tp / (2 * tp + fp + fn) if tp else 0.0


def matthews(labels, predictions):
    tp, fp, fn, tn = counts(labels, predictions)
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return (tp * tn - fp * fn) / math.sqrt(product) if product else 0.0


def ranks(values):
    """Returns ranks from 1; ties share their mean rank."""
    return [
        np.mean([1 + i for i, other in enumerate(sorted(values)) if other == value])
        for value in values
    ]


def correlation(x, y):
    x, y = x - np.mean(x), y - np.mean(y)
    return np.sum(x * y) / math.sqrt(np.sum(x * x) * np.sum(y * y))


class ClassificationTest(tf.test.TestCase):
    def test_two_label_scores_equal_formulas(self):
        for labels in itertools.product([0, 1], repeat=4):
            for predictions in itertools.product([0, 1], repeat=4):
                found = metrics.classification(labels, predictions, 2)
                self.assertEqual(set(found), {"accuracy", "f1", "macro_f1", "matthews"})
                same = sum(a == b for a, b in zip(labels, predictions))
                self.assertAlmostEqual(found["accuracy"], same / 4)
                self.assertAlmostEqual(found["f1"], f1(labels, predictions))
                swapped = f1(*(np.subtract(1, each) for each in (labels, predictions)))
                self.assertAlmostEqual(found["macro_f1"], (found["f1"] + swapped) / 2)
                self.assertAlmostEqual(found["matthews"], matthews(labels, predictions))

    def test_multiclass_scores_equal_formulas(self):
        rng = np.random.RandomState(0)
        labels, predictions = rng.randint(0, 4, [2, 50])
        found = metrics.classification(labels, predictions, 5)  # Label 4 never occurs.
        each = [f1((labels == i).astype(int), (predictions == i).astype(int)) for i in range(5)]
        self.assertAlmostEqual(found["macro_f1"], np.mean(each))
        # Gorodkin's coefficient is the correlation of the two indicator matrices.
        x, y = (np.eye(5)[rows] for rows in (labels, predictions))
        x, y = x - x.mean(0), y - y.mean(0)
        expected = np.sum(x * y) / math.sqrt(np.sum(x * x) * np.sum(y * y))
        self.assertAlmostEqual(found["matthews"], expected)

    def test_scores_of_no_rows_are_zero(self):
        expected = {"accuracy": 0.0, "macro_f1": 0.0, "matthews": 0.0}
        self.assertEqual(metrics.classification([], [], 3), expected)
        self.assertEqual(metrics.classification([], [], 2), {**expected, "f1": 0.0})

    def test_confusion_matrix_counts_label_prediction_pairs(self):
        found = metrics.confusion_matrix([0, 0, 1, 2, 2, 2], [0, 1, 1, 0, 2, 2], 4)
        expected = [[1, 1, 0, 0], [0, 1, 0, 0], [1, 0, 2, 0], [0, 0, 0, 0]]
        self.assertAllEqual(found, expected)
        self.assertAllEqual(metrics.confusion_matrix([], [], 2), [[0, 0], [0, 0]])


class MultilabelTest(tf.test.TestCase):
    def test_multilabel_scores_equal_formulas(self):
        labels, predictions = np.random.RandomState(1).randint(0, 2, [2, 20, 3])
        predictions[:, 2] = labels[:, 2] = 0  # Neither true nor predicted in any row.
        found = metrics.multilabel(labels, predictions)
        self.assertAlmostEqual(found["micro_f1"], f1(labels.ravel(), predictions.ravel()))
        each = [f1(labels[:, i], predictions[:, i]) for i in range(3)]
        self.assertAlmostEqual(found["macro_f1"], np.mean(each))
        same = [list(a) == list(b) for a, b in zip(labels, predictions)]
        self.assertAlmostEqual(found["accuracy"], np.mean(same))

    def test_micro_and_macro_f1_of_one_label_equal_f1(self):
        for labels, predictions in (([1, 0, 0, 0], [0] * 4), ([1, 1, 0, 0], [1, 0, 1, 0])):
            found = metrics.multilabel(np.array(labels)[:, None], np.array(predictions)[:, None])
            expected = f1(labels, predictions)
            self.assertAllClose((found["micro_f1"], found["macro_f1"]), (expected, expected))

    def test_scores_of_no_rows_are_zero(self):
        empty = np.zeros([0, 3], int)
        self.assertEqual(
            metrics.multilabel(empty, empty), {"accuracy": 0.0, "micro_f1": 0.0, "macro_f1": 0.0}
        )


class RegressionTest(tf.test.TestCase):
    def test_regression_scores_equal_formulas(self):
        rng = np.random.RandomState(2)
        targets = rng.randint(0, 6, 40) / 2  # With ties, as in STS-B.
        predictions = (targets + rng.normal(size=40)).astype(np.float32)
        found = metrics.regression(targets, predictions)
        self.assertAlmostEqual(found["pearson"], correlation(targets, predictions), places=6)
        expected = correlation(ranks(targets), ranks(predictions))
        self.assertAlmostEqual(found["spearman"], expected, places=6)
        self.assertAlmostEqual(found["mse"], np.mean((targets - predictions) ** 2), places=6)

    def test_two_rows_are_perfectly_correlated(self):
        found = metrics.regression([1.0, 2.0], [5.0, 3.0])
        self.assertAllClose(found, {"pearson": -1.0, "spearman": -1.0, "mse": 8.5})

    def test_undefined_correlation_is_zero(self):
        for targets, predictions in (
            ([1.0, 2.0, 3.0], [2.5, 2.5, 2.5]),
            ([1.0, 2.0, 3.0], [0.1, 0.1, 0.1]),  # Their mean is not exactly 0.1.
            ([2.0, 2.0], [1.0, 3.0]),
            ([1.0], [1.0]),
            ([], []),
        ):
            found = metrics.regression(targets, predictions)
            self.assertEqual((found["pearson"], found["spearman"]), (0.0, 0.0))
            self.assertTrue(np.isfinite(found["mse"]))

    def test_non_finite_predictions_get_worst_scores(self):
        for prediction in (math.nan, math.inf, -math.inf):
            found = metrics.regression([1.0, 2.0, 3.0], [prediction, 2.0, 3.0])
            worst = {"pearson": 0.0, "spearman": 0.0, "mse": sys.float_info.max}
            self.assertEqual(found, worst)
