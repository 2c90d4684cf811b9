"""Tests of regression.py: head and loss against NumPy, answers, and numbers in files."""

import numpy as np

from adapter_bert.tasks.text.regression import KIND
from adapter_tests.support.head_case import HeadCase


class RegressionTest(HeadCase):
    def test_head_matches_numpy(self):
        labels = np.array([0.5, -1.0, 3.0, 0.0], np.float32)
        loss, predictions = self.run_head("regression", 0, labels)
        expected = self.POOLED @ self.WEIGHTS[0]
        self.assertAllClose(predictions["prediction"], expected, atol=1e-5)
        self.assertAllClose(predictions["loss"], (expected - labels) ** 2, atol=1e-5)
        self.assertAllClose(loss, np.mean((expected - labels) ** 2), atol=1e-5)

    def test_prediction_is_the_output(self):
        self.assertEqual(KIND.decode(np.array([1.0], np.float32)), {"prediction": 1.0})

    def test_answers_are_predictions_of_one_or_many_rows(self):
        numbers = np.array([[0.5, -1.0], [2.0, 0.0]])
        self.assertAllEqual(KIND.answers({"prediction": numbers}), numbers)
        self.assertEqual(KIND.answers({"prediction": numbers[0, 1]}), -1.0)
        self.assertEqual(KIND.answer({"prediction": float(np.float32(0.1))}, ()), 0.1)

    def test_labels_in_files_are_finite_numbers(self):
        for text in ("0.5", "-3", "1e3", "7."):
            self.assertTrue(KIND.is_label(text, ()), text)
        for text in ("", "two", "1_0", "nan", "inf", "1e39"):
            self.assertFalse(KIND.is_label(text, ()), text)
        self.assertTrue(KIND.is_label(KIND.placeholder(()), ()))
        self.assertEqual(KIND.describe_labels(()), "a number")
        self.assertEqual(KIND.submitted(["-0.5", "2.34567", "7"]), ["0.000", "2.346", "5.000"])
