"""Tests of text_tables.py: scikit-learn's numbers, and labels that could break a table."""

import numpy as np
import sklearn.metrics
import tensorflow.compat.v1 as tf

from adapter_bert.tasks import text_tables


class TextTablesTest(tf.test.TestCase):
    def test_names_are_short_distinct_and_on_one_line(self):
        long = "a very long name of a label that differs "
        labels = ["a\tb\nc", long + "here", long + "there", "\x1b[2J", "ok", " "]
        found = text_tables.names_of(labels)
        self.assertEqual(found[0], "a b c")
        self.assertEqual(found[3:], ["\\x1b[2J", "ok", "(5)"])
        self.assertEqual(len(set(found)), 6)
        self.assertLess(max(map(len, found)), 30)
        for text in ("a" * 99, "a" * 100):
            self.assertEqual(text_tables.shorten(text), text)
        self.assertEqual(text_tables.shorten("b" * 101), "b" * 99 + "…")
        self.assertLen(text_tables.shorten("\0" * 10**6), 100)

    def test_scores_of_each_label_are_scikit_learns(self):
        rng = np.random.RandomState(0)
        labels, predictions = rng.randint(0, 3, [2, 60])
        names = ["x", "y", "z", "never"]
        *report, _, worst = text_tables.per_label(labels, predictions, names)
        expected = sklearn.metrics.classification_report(
            *(labels, predictions), labels=range(4), target_names=names, digits=3, zero_division=0
        )
        self.assertEqual(report, [line.rstrip() for line in expected.rstrip().split("\n")])
        f1 = sklearn.metrics.f1_score(labels, predictions, average=None)
        self.assertEqual(
            worst, f'The lowest F1, {min(f1):.3f}, is that of "{names[np.argmin(f1)]}".'
        )

        *_, worst = text_tables.per_label([0, 1, 2, 2], [2, 2, 2, 2], names)
        self.assertEqual(worst, 'The lowest F1, 0.000, is that of "x" and 1 more.')

    def test_sets_of_one_label_are_reported(self):
        labels, predictions = np.array([[1], [1], [0], [0]]), np.array([[1], [0], [1], [0]])
        lines = text_tables.per_label(labels, predictions, ["only"])
        (row,) = [line.split() for line in lines if "only" in line]
        self.assertEqual(row, ["only", "0.500", "0.500", "0.500", "2"])

    def test_confusions_are_a_matrix_or_its_largest_cells(self):
        matrix = np.array([[5, 1], [12, 0]])
        self.assertEqual(
            text_tables.confusions(matrix, ["no", "yes"])[2:],
            ["     no  yes", "no    5    1", "yes  12    0"],
        )
        # Long names become numbers of columns.
        names = [f"a rather long name {i:03}" for i in range(150)]
        found = text_tables.confusions(np.eye(20, dtype=int), names[:20])
        self.assertEqual(found[2].split(), list(map(str, range(20))))
        self.assertStartsWith(found[3], "0 a rather long name 000   1  0")
        self.assertLess(max(map(len, found)), 130)
        matrix = np.eye(150, dtype=int) * 100
        matrix[3, 7], matrix[149, 0] = 2, 9
        _, _, header, *rows = text_tables.confusions(matrix, names)
        self.assertEqual(header.split(), ["true", "label", "predicted", "label", "count"])
        self.assertEqual(
            [" ".join(row.split()) for row in rows],
            [f"{names[149]} → {names[0]} 9", f"{names[3]} → {names[7]} 2"],
        )
        self.assertEqual(
            text_tables.confusions(np.eye(21), list(map(str, range(21)))), ["No confusions."]
        )
