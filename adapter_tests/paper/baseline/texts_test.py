"""Tests of texts.py: text cleaning, numbered strings and n-grams."""

import dataclasses

import tensorflow.compat.v1 as tf

from adapter_bert.paper.baseline import texts
from adapter_bert.paper.baseline.search_space import PRESETS

_PLAIN = dataclasses.replace(
    PRESETS["airline"], lowercase=False, remove_non_alphanumeric=False, use_convolution=False
)
_CONVOLVED = dataclasses.replace(_PLAIN, use_convolution=True, conv_max_ngram=3)


class CleanedTest(tf.test.TestCase):
    def test_clean_applies_each_combination_of_options(self):
        text = " It's  GREAT_value: 5€ für Ärger\n"
        for lowercase, remove, expected in (
            (False, False, "It's GREAT_value: 5€ für Ärger"),
            (True, False, "it's great_value: 5€ für ärger"),
            (False, True, "It s GREAT value 5 für Ärger"),
            (True, True, "it s great value 5 für ärger"),
        ):
            self.assertEqual(texts.clean(text, lowercase, remove), expected)

    def test_combining_marks_stay_with_their_letters(self):
        for text in ("हिन्दी में की", "ภาษาไทยที่นี่", "A\u0308rger שָׁלוֹם"):
            self.assertEqual(texts.clean(text, False, True), text)
        self.assertEqual(texts.clean("great❤\ufe0f! की, हाँ।", False, True), "great की हाँ")

    def test_lone_surrogates_are_removed(self):
        # A .jsonl file with "\\ud83d" is read as this.
        self.assertEqual(texts.clean("a\ud83d b \ud83d", False, False), "a b")


class RowsTest(tf.test.TestCase):
    def rows(self, pairs, settings, unit="word", max_words=4, has_pairs=False):
        strings = texts.StringVocabulary()
        rows = texts.encode_texts(pairs, settings, unit, max_words, strings, has_pairs)
        listed = strings.strings()

        def spelled(numbers):
            if numbers.ndim > 1:
                return [spelled(row) for row in numbers]
            return [listed[number] for number in numbers]

        mask = rows.pop("input_mask")
        return {name: spelled(numbers) for name, numbers in rows.items()}, mask, listed

    def test_texts_are_encoded_with_word_masks(self):
        rows, mask, listed = self.rows([("a  b", None), ("c", None), ("a b", "")], _PLAIN)
        self.assertEqual(rows, {"text": ["a b", "c", "a b"]})
        self.assertAllEqual(mask, [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0]])
        self.assertEqual(listed, ["", "a b", "c"])  # Each string once, after the empty one.

    def test_convolution_over_words_gets_only_unigrams(self):
        rows, mask, _ = self.rows([("a b c d e", None), ("", None)], _CONVOLVED)
        self.assertEqual(
            rows, {"text": ["a b c d", ""], "ngrams_1": [["a", "b", "c", "d"], [""] * 4]}
        )
        self.assertAllEqual(mask, [[1, 1, 1, 1], [0, 0, 0, 0]])

    def test_text_modules_get_ngrams_up_to_the_maximum(self):
        rows, _, _ = self.rows([("a b c", None)], _CONVOLVED, "text")
        self.assertEqual(rows["ngrams_1"], [["a", "b", "c", ""]])
        self.assertEqual(rows["ngrams_2"], [["a b", "b c", "c", ""]])
        self.assertEqual(rows["ngrams_3"], [["a b c", "b c", "c", ""]])

    def test_text_pairs_have_a_second_set_of_features(self):
        pairs = [("a", "b c"), ("a b c", None)]
        rows, mask, _ = self.rows(pairs, _CONVOLVED, has_pairs=True)
        # A split without second texts has the same features.
        self.assertEqual(set(self.rows(pairs[1:], _CONVOLVED, has_pairs=True)[0]), set(rows))
        self.assertEqual(rows["text_b"], ["b c", ""])
        self.assertEqual(rows["ngrams_b_1"], [["b", "c", "", ""], [""] * 4])
        self.assertAllEqual(mask, [[1, 1, 0, 0], [1, 1, 1, 0]])  # The mask of the longer text.
