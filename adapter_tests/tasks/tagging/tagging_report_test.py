"""Tests of tagging_report.py: seqeval's and scikit-learn's numbers, and hand-counted confusions."""

import os

import seqeval.metrics
import sklearn.metrics
import tensorflow.compat.v1 as tf

from adapter_bert.tasks.tagging import tagging_report

WORDS = [["EU", "rejects", "call"], ["Rome"], ["a", "b"]]
TAGS = [["B-ORG", "O", "O"], ["B-LOC"], ["B-PER", "I-PER"]]
PREDICTED = [["O", "B-PER", "O"], ["B-LOC"], ["B-PER", "B-PER"]]


class DescribeTest(tf.test.TestCase):
    def describe(self, tags, predicted, is_chunks=True):
        return tagging_report.describe("dev:", WORDS, tags, predicted, is_chunks).split("\n")

    def test_types_are_scored_by_seqeval(self):
        lines = self.describe(TAGS, PREDICTED)
        expected = seqeval.metrics.classification_report(TAGS, PREDICTED, digits=3, zero_division=0)
        expected = [line.rstrip() for line in expected.rstrip().split("\n")]
        self.assertEqual(lines[2 : 2 + len(expected)], expected)

    def test_words_are_counted_by_type(self):
        names, true, predicted = tagging_report.type_ids(TAGS, PREDICTED, True)
        self.assertEqual(names, ["O", "LOC", "ORG", "PER"])
        self.assertEqual((true, predicted), ([2, 0, 0, 1, 3, 3], [0, 3, 0, 1, 3, 3]))
        lines = self.describe(TAGS, PREDICTED)
        first = lines.index(
            "Confusion matrix (rows: true type of word, columns: predicted type of word):"
        )
        self.assertEqual(lines[first + 3].split(), ["O", "1", "0", "0", "1"])
        self.assertEqual(lines[first + 5].split(), ["ORG", "1", "0", "0", "0"])

    def test_sentences_with_the_most_wrong_words_come_first(self):
        lines = self.describe(TAGS, PREDICTED)
        first = lines.index("The worst 2 of 2 sentences with errors (counted from 0):")
        self.assertEqual(
            lines[first + 1 :],
            [
                "",
                "sentence 0, 2 of 3 words wrong: EU rejects call",
                "    EU: B-ORG → O",
                "    rejects: O → B-PER",
                "",
                "sentence 2, 1 of 2 words wrong: a b",
                "    b: I-PER → B-PER",
                "",
            ],
        )
        self.assertIn("No errors.", self.describe(TAGS, TAGS))

    def test_plain_tags_are_scored_by_scikit_learn(self):
        tags, predicted = [["N", "V", "N"], ["N"], ["D", "N"]], [["N", "N", "N"], ["V"], ["D", "N"]]
        lines = self.describe(tags, predicted, is_chunks=False)
        flat = [sum(side, []) for side in (tags, predicted)]
        expected = sklearn.metrics.classification_report(*flat, digits=3, zero_division=0)
        expected = [line.rstrip() for line in expected.rstrip().split("\n")]
        self.assertEqual(lines[2 : 2 + len(expected)], expected)

    def test_odd_types_and_none_are_shown(self):
        outside = [["O"] * 3, ["O"], ["O"] * 2]
        self.assertIn("No spans, neither true nor predicted.", self.describe(outside, outside))
        untyped = [["B", "I", "O"], ["O"], ["O", "B"]]
        self.assertTrue(any("(no type)" in line for line in self.describe(untyped, outside)))
        kinds = "long " * 20 + "x", "long " * 20 + "y", "X-Y\x1b[2J"
        odd = [["B-" + kinds[0], "I-" + kinds[0], "O"], ["B-" + kinds[1]], ["B-" + kinds[2], "O"]]
        lines = self.describe(odd, odd)
        scores = [line.split()[-4:] for line in lines[4:7]]
        self.assertEqual(scores, [["1.000", "1.000", "1.000", "1"]] * 3)
        self.assertLess(max(map(len, lines)), 110)
        self.assertNotIn("\x1b", "".join(lines))

    def test_picture_of_types_or_tags_is_drawn(self):
        path = os.path.join(self.get_temp_dir(), "dev_confusion.png")
        for tags, predicted, is_chunks in (
            (TAGS, PREDICTED, True),
            ([["N", "V"]], [["N", "N"]], False),
        ):
            found = tagging_report.plot(path, "dev", tags, predicted, is_chunks)
            self.assertEqual(found, path)
            self.assertTrue(os.path.exists(path))
            os.remove(path)
