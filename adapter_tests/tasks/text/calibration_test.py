"""Tests of calibration.py against scikit-learn's log loss and hand-computed errors."""

import numpy as np
import sklearn.metrics
import tensorflow.compat.v1 as tf

from adapter_bert.tasks.text import calibration, text_windows


def softmax(logits):
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def drawn(seed, rows, num_labels):
    """Returns logits and labels that are drawn from their softmax."""
    random = np.random.RandomState(seed)
    logits = random.normal(0, 1.5, [rows, num_labels])
    return logits, np.array([random.choice(num_labels, p=p) for p in softmax(logits)])


class CalibrationTest(tf.test.TestCase):
    def test_temperature_has_the_least_cross_entropy(self):
        logits, labels = drawn(0, 2000, 4)
        for factor in (0.4, 1.0, 3.0):
            predictions = {"probabilities": np.float32(softmax(factor * logits))}
            found = calibration.fit(predictions, labels, dict, True)

            grid = np.geomspace(0.1, 10, 400)
            losses = [
                sklearn.metrics.log_loss(labels, softmax(factor * logits / temperature))
                for temperature in grid
            ]
            best = grid[np.argmin(losses)]
            self.assertAllClose(found.temperature, best, rtol=0.015)
            self.assertAllClose(found.temperature, factor, rtol=0.1)
            self.assertLess(found.error_after, 0.03)
        self.assertGreater(found.error_before, 0.1)

    def test_sets_of_labels_are_decisions_of_their_own(self):
        random = np.random.RandomState(1)
        logits = random.normal(0, 1, [1500, 3])
        labels = (random.uniform(size=logits.shape) < 1 / (1 + np.exp(-logits))).astype(int)
        probabilities = 1 / (1 + np.exp(-2.5 * logits))
        found = calibration.fit({"probabilities": probabilities}, labels, dict, False)
        self.assertAllClose(found.temperature, 2.5, rtol=0.1)
        self.assertLess(found.error_after, found.error_before / 3)

    def test_windows_of_a_text_are_pooled(self):
        logits, labels = drawn(2, 600, 3)
        windows = text_windows.Windows(np.arange(0, 1200, 2), "mean")
        predictions = {"probabilities": softmax(2 * np.repeat(logits, 2, axis=0))}
        found = calibration.fit(predictions, labels, lambda p: windows.join(p, True), True)
        alone = calibration.fit({"probabilities": softmax(2 * logits)}, labels, dict, True)
        self.assertAllClose(found, alone, rtol=1e-4)

    def test_rows_without_errors_fit_no_temperature(self):
        probabilities = np.array([[0.6, 0.4], [0.3, 0.7]])
        found = calibration.fit({"probabilities": probabilities}, np.array([0, 1]), dict, True)
        self.assertEqual(found.temperature, 1.0)
        self.assertEqual(found.error_after, found.error_before)

    def test_expected_calibration_error_by_hand(self):
        # Bins [0.8, 0.867) with 0.82 and 0.84, of which one is right, and [0.933, 1] with 0.95.
        probabilities = np.array([[0.82, 0.18], [0.16, 0.84], [0.95, 0.05]])
        found = calibration.expected_calibration_error(probabilities, np.array([0, 0, 0]), True)
        self.assertAllClose(found, (2 * abs(0.5 - 0.83) + abs(1 - 0.95)) / 3)
        sets = calibration.expected_calibration_error(
            np.array([[0.82, 0.05]]), np.array([[1, 0]]), False
        )
        self.assertAllClose(sets, ((1 - 0.82) + (1 - 0.95)) / 2)


if __name__ == "__main__":
    tf.test.main()
