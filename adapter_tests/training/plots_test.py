"""Tests of plots.py: pictures of odd names and sizes."""

import os
import tempfile

import matplotlib
import matplotlib.image
import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.training import plots, progress


class PlotsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        self.path = os.path.join(self.folder, "picture.png")

    def pixels(self, path):
        """Returns the picture as a float array [height, width, 4]."""
        return matplotlib.image.imread(path)

    def test_curves_are_drawn_with_or_without_evaluations(self):
        evaluated = {20: {"eval_f1": 0.5, "eval_loss": 2.0}, 40: {"eval_f1": 0.75}}
        pictures = []
        for trained, scores, step in (
            (False, {}, None),
            (True, {}, None),
            (True, evaluated, None),
            (True, evaluated, 20),
        ):
            if trained:
                for at in range(10, 50, 10):
                    progress.write_scalars(self.folder, at, {"loss": 100 / at})
            path = plots.draw_curves(self.folder, scores, "eval_f1", step)
            self.assertEqual(path, os.path.join(self.folder, "curves.png"))
            pictures.append(self.pixels(path))
        for one, other in zip(pictures, pictures[1:]):
            self.assertNotAllEqual(one, other)

    def test_matrix_colors_are_the_shares_of_rows(self):
        """The darkest of two cells in a row is on the right, whatever the row's size."""
        matrix = np.array([[0, 4], [0, 4000]])
        for size, names in (
            (2, ["a$b\n", "\u4e00"]),
            (150, [f"label {i} " * 9 for i in range(150)]),
        ):
            large = np.zeros([size, size], int)
            large[:2, :2] = matrix
            plots.draw_matrix(self.path, "dev $\x1b", names, large, "label")
            self.assertLess(np.max(self.pixels(self.path).shape[:2]), 2100)
        plots.draw_matrix(self.path, "dev", ["a", "b"], np.array([[4, 0], [4000, 0]]), "label")
        left = self.pixels(self.path)
        plots.draw_matrix(self.path, "dev", ["a", "b"], matrix, "label")
        right = self.pixels(self.path)
        darker = right.sum(-1) < left.sum(-1) - 1
        columns, expected = np.flatnonzero(darker.mean(0) > 0.3), darker.shape[1]
        lighter = np.flatnonzero((right.sum(-1) > left.sum(-1) + 1).mean(0) > 0.3)
        self.assertGreater(columns.min(), lighter.max() - expected // 20)

    def test_numbers_and_bars_are_drawn(self):
        true = np.array([1.0, 2.0, 3.0])
        for predicted in (true + 1, np.array([np.nan, 1.0, np.inf])):
            plots.draw_scatter(self.path, "dev", true, predicted)
            self.assertGreater(self.pixels(self.path).std(), 0.01)
        plots.draw_bars(self.path, "SQuAD", "F1", ["all (3)", "what (3)"], [50.0, 0.0])
        self.assertGreater(self.pixels(self.path).std(), 0.01)

    def test_global_state_of_matplotlib_stays(self):
        before = dict(matplotlib.rcParams)
        plots.draw_bars(self.path, "SQuAD", "F1", ["all"], [50.0])
        self.assertEqual(dict(matplotlib.rcParams), before)
