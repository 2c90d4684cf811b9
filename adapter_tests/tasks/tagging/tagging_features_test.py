"""Tests of tagging_features.py: rows computed by hand, and windows that lose no word."""

import os
import tempfile
import tracemalloc
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert.tasks.tagging import tagging_features as features
from adapter_tests.support import tiny


class WindowsTest(tf.test.TestCase):
    def test_windows_equal_hand_computed_windows(self):
        self.assertEqual(features.windows([1, 2, 1], 4), [(0, 3, 0, 3)])
        self.assertEqual(features.windows([], 4), [])
        # The windows of "a b c d e f" are abcd and cdef; d has more context in the second.
        self.assertEqual(features.windows([1] * 6, 4), [(0, 4, 0, 3), (2, 6, 3, 6)])
        self.assertEqual(features.windows([4, 4], 4), [(0, 1, 0, 1), (1, 2, 1, 2)])

    def test_each_word_is_read_in_exactly_one_window(self):
        random = np.random.RandomState(0)
        for _ in range(300):
            room = random.randint(1, 20)
            lengths = random.randint(1, random.randint(1, room + 1) + 1, random.randint(1, 60))
            windows = features.windows(lengths, room)
            read = [word for window in windows for word in range(window.first, window.last)]
            self.assertEqual(read, list(range(len(lengths))))
            for window in windows:
                self.assertLessEqual(lengths[window.start : window.end].sum(), room)
                self.assertTrue(window.start <= window.first <= window.last <= window.end)

    def test_inner_windows_keep_24_words_of_context(self):
        windows = features.windows([1] * 1000, 100)
        for window in windows[1:-1]:
            self.assertGreaterEqual(window.first - window.start, 24)
            self.assertGreaterEqual(window.end - window.last, 24)
        self.assertLess(len(windows), 21)

    def test_windows_cover_a_sentence_of_10000_words(self):
        windows = features.windows([1, 2] * 5000, 126)
        self.assertEqual(sum(window.last - window.first for window in windows), 10000)


class RowsTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        path = os.path.join(tempfile.mkdtemp(dir=tf.test.get_temp_dir()), "vocab.txt")
        with open(path, "w") as writer:
            writer.write("\n".join(tiny.VOCABULARY) + "\n")
        cls.tokenizer = tokenization.FullTokenizer(path)

    def ids(self, text):
        return self.tokenizer.convert_tokens_to_ids(text.split())

    def rows(self, sentences, max_seq_length=8):
        pieces = features.WordPieces(self.tokenizer, max_seq_length)
        parts = []
        features.add_rows(sentences, pieces, parts.append)
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return features.TaggedRows(arrays, *self.ids("[CLS] [SEP]"), max_seq_length)

    def test_long_words_are_not_cached(self):
        pieces = features.WordPieces(self.tokenizer, 8)
        tracemalloc.start()
        for number in range(20):
            self.assertEqual(pieces.ids("d" * (100000 + number)), self.ids("[UNK]"))
        for number in range(5000):
            pieces.ids(f"{number:031}")
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        self.assertLess(size, 1000000)

    def test_all_sequence_lengths_share_a_cache(self):
        tokenizer = mock.Mock(wraps=self.tokenizer)
        for max_seq_length, num_pieces in ((8, 2), (3, 1), (8, 2)):
            ids = features.WordPieces(tokenizer, max_seq_length).ids("dogs")
            self.assertEqual(ids, self.ids("dog ##s")[:num_pieces])
        tokenizer.tokenize.assert_called_once_with("dogs")

    def test_the_first_piece_carries_the_tag(self):
        rows = self.rows([(["The", "dogs", "Xs", "."], [0, 1, -1, 2]), (["a"], None)])
        self.assertLen(rows, 2)
        self.assertAllEqual(rows.lengths, [7, 3])
        found = rows.take([0, 1])
        expected = [
            [*self.ids("[CLS] the dog ##s [UNK] . [SEP]"), 0],
            [*self.ids("[CLS] a [SEP]"), 0, 0, 0, 0, 0],
        ]
        self.assertAllEqual(found["input_ids"], expected)
        self.assertAllEqual(found["label_ids"], [[0, 2, 3, 0, 1, 4, 0, 0], [0, 1] + [0] * 6])
        self.assertAllEqual(found["segment_ids"], np.zeros([2, 8]))
        self.assertAllEqual(found["input_mask"].sum(1), rows.lengths)
        self.assertAllEqual(rows["is_real_example"], [1, 1])
        self.assertAllEqual(rows.positions(0), [1, 2, 4, 5])
        self.assertAllEqual(rows.positions(1), [1])
        self.assertEqual(rows.num_learned, 3)
        self.assertEqual(rows.take([0], 7)["label_ids"].shape, (1, 7))
        self.assertAllEqual(rows.take([-1])["label_ids"], np.zeros([1, 8]))

    def test_empty_and_overlong_words_keep_their_tags(self):
        long_word = ".".join("abc")
        words = ["\u200b", "x" * 10000, "." * 10000, long_word, "a"]
        rows = self.rows([(words, [0, 1, 2, 3, 4])], 6)
        read = [
            label
            for row in range(len(rows))
            for label in rows.take([row])["label_ids"][0, rows.positions(row)]
        ]
        self.assertEqual(read, [2, 3, 4, 5, 6])
        self.assertAllEqual(rows.take([0])["input_ids"][0, :3], self.ids("[CLS] [UNK] [UNK]"))

    def test_rows_added_in_parts_equal_rows_added_at_once(self):
        sentences = [(["the", "dogs"] * 3, [0, 1] * 3)] * 5
        whole = self.rows(sentences)
        before, features._TOKENS_PER_PART = features._TOKENS_PER_PART, 10
        try:
            parted = self.rows(sentences)
        finally:
            features._TOKENS_PER_PART = before
        every = np.arange(len(whole))
        for name, values in whole.take(every).items():
            self.assertAllEqual(parted.take(every)[name], values)
