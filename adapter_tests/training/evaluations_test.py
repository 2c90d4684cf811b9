"""Tests of output_dir.py: what is best, for how long, and what a restart finds."""

import json
import math
import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.common.errors import UserError
from adapter_bert.training.output_dir import EVALUATIONS_FILE, Evaluations, write_results
from adapter_tests.support import mutations


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
        broken = ["", "[]", '{"a": {"f1": 1}}', '{"5": 1}', "[" * 100000, '{"5": {}}']
        broken += [f'{{"5": {{"f1": {score}}}}}' for score in ('"0.5"', "null", "[1]", "9" * 400)]
        for text in broken:
            with open(os.path.join(self.folder, "evaluations.json"), "w") as writer:
                writer.write(text)
            with self.assertRaisesRegex(UserError, "evaluations.json: (expected|is not)"):
                Evaluations(self.folder, "f1")


class ResultsTest(tf.test.TestCase):
    def test_both_files(self):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        result = {
            "eval_f1": 0.5,
            "eval_confusion_matrix": [[1, 0], [2, 3]],
            "loss": np.float32(0.25),
            "precision": "float32",
        }
        path = write_results(folder, result, {"task": "MRPC", "labels": ["0", "1"]})
        self.assertEqual(path, os.path.join(folder, "eval_results.txt"))
        with open(path) as reader:
            self.assertEqual(reader.read(), "eval_f1 = 0.5\nloss = 0.25\nprecision = float32\n")
        with open(os.path.join(folder, "eval_results.json")) as reader:
            record = json.load(reader)
        self.assertEqual(record, {**result, "task": "MRPC", "labels": ["0", "1"]})


class DamagedFilesTest(tf.test.TestCase):
    def test_damaged_evaluations_are_read_or_refused(self):
        scores = {"eval_f1": 0.5, "eval_accuracy": 0.6, "loss": 0.7}
        by_step = {str(step): {**scores, "global_step": step} for step in (3, 6, 9)}

        def read(folder):
            evaluations = Evaluations(folder, "eval_f1")
            evaluations.best(), evaluations.since_best(), evaluations.at(3)
            evaluations.add(12, {"eval_f1": 0.7})
            evaluations.best(), evaluations.since_best()

        mutations.check({EVALUATIONS_FILE: json.dumps(by_step).encode()}, read)


if __name__ == "__main__":
    tf.test.main()
