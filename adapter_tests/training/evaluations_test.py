"""Tests of evaluations.py: the scores of a training's evaluated steps, across restarts."""

import json
import math
import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.shell.errors import UserError
from adapter_bert.training.evaluations import Evaluations, scalars
from adapter_tests.support import mutations


class EvaluationsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())

    def test_new_evaluations_are_empty(self):
        evaluations = Evaluations(self.folder, "f1")
        self.assertEqual((evaluations.best(), evaluations.since_best()), (-math.inf, 0))
        self.assertIsNone(evaluations.at(0))
        self.assertEqual(os.listdir(self.folder), [])

    def test_restart_reads_earlier_evaluations(self):
        found = []
        for step, f1 in ((5, 0.25), (10, 0.5), (100, 0.5), (105, np.float32(0.125))):
            Evaluations(self.folder, "f1").add(step, {"f1": f1, "loss": 9.0})
            evaluations = Evaluations(self.folder, "f1")
            self.assertEqual(evaluations.at(step), {"f1": f1, "loss": 9.0})
            found.append((evaluations.best(), evaluations.since_best()))
        self.assertEqual(found, [(0.25, 0), (0.5, 0), (0.5, 1), (0.5, 2)])
        self.assertEqual(os.listdir(self.folder), ["evaluations.json"])

    def test_only_numbers_are_kept(self):
        Evaluations(self.folder, "f1").add(7, {"f1": 0.5, "confusion_matrix": [[1, 2], [3, 4]]})
        self.assertEqual(Evaluations(self.folder, "f1").at(7), {"f1": 0.5})

    def test_invalid_evaluations_files_are_refused(self):
        broken = ["", "[]", '{"a": {"f1": 1}}', '{"5": 1}', "[" * 100000, '{"5": {}}']
        broken += [f'{{"5": {{"f1": {score}}}}}' for score in ('"0.5"', "null", "[1]", "9" * 400)]
        for text in broken:
            with open(os.path.join(self.folder, "evaluations.json"), "w") as writer:
                writer.write(text)
            with self.assertRaisesRegex(UserError, "evaluations.json: (expected|is not)"):
                Evaluations(self.folder, "f1")


class DamagedEvaluationsTest(tf.test.TestCase):
    def test_damaged_evaluations_are_read_or_refused(self):
        scores = {"eval_f1": 0.5, "eval_accuracy": 0.6, "loss": 0.7}
        by_step = {str(step): {**scores, "global_step": step} for step in (3, 6, 9)}

        def read(folder):
            evaluations = Evaluations(folder, "eval_f1")
            evaluations.best(), evaluations.since_best(), evaluations.at(3)
            evaluations.add(12, {"eval_f1": 0.7})
            evaluations.best(), evaluations.since_best()

        mutations.check({"evaluations.json": json.dumps(by_step).encode()}, read)


class NumbersTest(tf.test.TestCase):
    def test_scalars_omit_lists_and_strings(self):
        scores = {"f1": np.float32(0.5), "matrix": [[1, 0]], "step": 3, "precision": "float32"}
        found = scalars(scores)
        self.assertEqual(found, {"f1": 0.5, "step": 3.0})

    def test_scalars_select_and_strip_prefix(self):
        scores = {"eval_f1": 0.5, "eval_matrix": [[1]], "loss": 2.0, "eval_loss": 3}
        self.assertEqual(scalars(scores, "eval_"), {"f1": 0.5, "loss": 3.0})
