"""Tests of evaluations.py: what is best, for how long, and what a restart finds."""

import math
import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

from errors import UserError
from evaluations import Evaluations


class EvaluationsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())

    def test_before_the_first(self):
        evaluations = Evaluations(self.folder, "f1")
        self.assertEqual((evaluations.best(), evaluations.since_best()), (-math.inf, 0))
        self.assertIsNone(evaluations.at(0))
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_restart_finds_them(self):
        found = []
        for step, f1 in ((5, 0.25), (10, 0.5), (100, 0.5), (105, np.float32(0.125))):
            Evaluations(self.folder, "f1").add(step, {"f1": f1, "loss": 9.0})
            evaluations = Evaluations(self.folder, "f1")
            self.assertEqual(evaluations.at(step), {"f1": f1, "loss": 9.0})
            found.append((evaluations.best(), evaluations.since_best()))
        self.assertEqual(found, [(0.25, 0), (0.5, 0), (0.5, 1), (0.5, 2)])
        self.assertEqual(os.listdir(self.folder), ["evaluations.json"])

    def test_a_damaged_file(self):
        for text in ("", "[]", '{"a": {}}', '{"5": 1}', "[" * 100000):
            with open(os.path.join(self.folder, "evaluations.json"), "w") as writer:
                writer.write(text)
            with self.assertRaisesRegex(UserError, "evaluations.json: expected"):
                Evaluations(self.folder, "f1")


if __name__ == "__main__":
    tf.test.main()
