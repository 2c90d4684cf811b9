"""Tests of task.py: the dev rows that are shown as examples."""

import tensorflow.compat.v1 as tf

from adapter_bert.training import task


class ShortExamplesTest(tf.test.TestCase):
    def examples(self, *rows):
        lengths, labels = [len(text) for text, _ in rows], [label for _, label in rows]
        shown = task.short_examples(
            lengths, len(set(labels)), lambda row: ({"text": rows[row][0]}, labels[row])
        )
        return [example["text"] for example in shown]

    def test_examples_are_of_different_labels_in_the_shorter_half(self):
        rows = [("aaaa", 0), ("bbb", 0), ("cc", 1), ("d", (1, 2))]
        long_rows = [(5 * "e" + str(i), i) for i in range(4)]
        self.assertEqual(self.examples(*rows, *long_rows), ["aaaa", "cc", "d"])
        self.assertEqual(self.examples(*long_rows, *rows[:2]), ["eeeee0", "aaaa", "bbb"])

    def test_long_equal_and_empty_texts_are_not_shown(self):
        rows = [("a" * 121, 0), ("b" * 120, 0), ("", 1), ("b" * 120, 1), *3 * [("c" * 200, 1)]]
        self.assertEqual(self.examples(*rows), ["b" * 120])
        self.assertEqual(self.examples(), [])


if __name__ == "__main__":
    tf.test.main()
