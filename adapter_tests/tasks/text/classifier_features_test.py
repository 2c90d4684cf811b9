"""Tests of classifier_features.py: hand-computed features, each error, and (where
ADAPTER_BERT_DATA names the shared folder) the original's features of real data."""

import itertools
import os
import random
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf
from absl.testing import parameterized

import tokenization
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import classifier_features, glue
from adapter_bert.training import rows
from adapter_tests.support import tiny
from adapter_tests.support.shared import SHARED, needs_shared


class WordTokenizer:
    """Splits at spaces; a word's id is its index in the vocabulary below."""

    ids = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "b": 4, "c": 5, "d": 6, "x": 7, "y": 8}

    def tokenize(self, text):
        return text.split()

    def convert_tokens_to_ids(self, tokens):
        return [self.ids[token] for token in tokens]


def added_arrays(*args, **kwargs):
    """Returns the arrays that `add_rows` passes on, concatenated."""
    parts = []
    classifier_features.add_rows(*args, parts.append, **kwargs)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def taken_rows(examples, label_list, max_seq_length, tokenizer):
    """Returns all rows of `add_rows`, padded."""
    arrays = added_arrays(examples, label_list, max_seq_length, tokenizer)
    return rows.PackedRows(arrays, max_seq_length).take(np.arange(len(examples)))


def padded(features):
    """Returns the arrays of a list of features by columns."""
    names = ("input_ids", "input_mask", "segment_ids", "label_id", "is_real_example")
    columns = {name: np.array([getattr(f, name) for f in features]) for name in names}
    columns["label_ids"] = columns.pop("label_id")
    return columns


class ConvertSingleExampleTest(parameterized.TestCase):
    def convert(self, text_a, text_b, length, label="1", index=5):
        example = classifier_features.InputExample("train-1", text_a, text_b, label)
        return classifier_features.convert_single_example(
            index, example, ["0", "1"], length, WordTokenizer()
        )

    @parameterized.parameters(
        ("a b", None, 6, [1, 3, 4, 2], []),
        ("a b", "x", 8, [1, 3, 4, 2], [7, 2]),
        ("a b c d", None, 4, [1, 3, 4, 2], []),
        ("a b c d", "x y", 7, [1, 3, 4, 2], [7, 8, 2]),  # The longer text is truncated.
        ("a", "", 4, [1, 3, 2], []),
        ("a", " ", 4, [1, 3, 2], []),
        ("a", None, 2, [1, 2], []),
        # As in the original, a second text that is truncated to nothing also loses its [SEP].
        ("a", "x", 3, [1, 2], []),
    )
    def test_features_equal_hand_computed_ones(self, text_a, text_b, length, first, second):
        features = self.convert(text_a, text_b, length)
        padding = [0] * (length - len(first) - len(second))
        self.assertEqual(features.input_ids, first + second + padding)
        self.assertEqual(features.input_mask, [1] * len(first + second) + padding)
        self.assertEqual(features.segment_ids, [0] * len(first) + [1] * len(second) + padding)
        self.assertEqual(features.label_id, 1)
        self.assertIs(features.is_real_example, True)

    def test_too_small_max_seq_lengths_are_refused(self):
        with self.assertRaisesRegex(UserError, "--max_seq_length=1 .* at least 2,"):
            self.convert("a", None, 1)
        with self.assertRaisesRegex(UserError, "--max_seq_length=2 .* at least 3,"):
            self.convert("a", "x", 2)

    def test_unknown_label_is_refused(self):
        for label in ("2", 1, None):
            with self.assertRaisesRegex(UserError, f"train-1 .*{label!r}.*'0', '1'"):
                self.convert("a", None, 4, label=label)

    def test_padding_example_has_zero_features(self):
        features = classifier_features.convert_single_example(
            0, classifier_features.PaddingInputExample(), ["0"], 3, WordTokenizer()
        )
        lists = features.input_ids, features.input_mask, features.segment_ids
        self.assertEqual(lists, ([0] * 3,) * 3)
        self.assertEqual(features.label_id, 0)
        self.assertIs(features.is_real_example, False)

    def test_tokenizer_output_is_not_modified(self):
        tokens = ["a", "b", "c"]

        class Memo(WordTokenizer):
            def tokenize(self, text):
                return tokens

        example = classifier_features.InputExample("train-1", "a b c", None, "0")
        classifier_features.convert_single_example(0, example, ["0"], 3, Memo())
        self.assertEqual(tokens, ["a", "b", "c"])

    def test_first_three_examples_are_logged_at_debug_level(self):
        with self.assertLogs("absl", "DEBUG") as logged:
            for index in range(10):
                self.convert("a", None, 4, index=index)
        self.assertEqual([record.levelname for record in logged.records], ["DEBUG"] * 3)


class TruncateSeqPairTest(tf.test.TestCase):
    def test_truncation_equals_token_by_token_removal(self):
        for length_a, length_b, length in itertools.product(range(8), range(8), range(15)):
            tokens_a, tokens_b = list("abcdefg"[:length_a]), list("tuvwxyz"[:length_b])
            expected_a, expected_b = list(tokens_a), list(tokens_b)
            while len(expected_a + expected_b) > length:
                longer = expected_a if len(expected_a) > len(expected_b) else expected_b
                longer.pop()
            classifier_features.truncate_pair(tokens_a, tokens_b, length)
            self.assertEqual((tokens_a, tokens_b), (expected_a, expected_b))


class ConvertExamplesTest(tf.test.TestCase):
    def assert_arrays(self, arrays, expected):
        self.assertEqual(set(arrays), set(expected))
        for name, values in expected.items():
            self.assertEqual(arrays[name].dtype, np.int32)
            self.assertAllEqual(arrays[name], values)

    def test_added_rows_equal_features(self):
        generator = random.Random(0)
        words = list("abcdxy")
        examples = [classifier_features.PaddingInputExample()]
        for index in range(200):
            text_a, text_b = (
                " ".join(generator.choice(words) for _ in range(generator.randrange(12)))
                for _ in range(2)
            )
            text_b = generator.choice([text_b, None])
            examples.append(
                classifier_features.InputExample(index, text_a, text_b, generator.choice("01"))
            )
        examples.append(classifier_features.PaddingInputExample())
        for length in (3, 8, 40):
            arguments = (examples, ["0", "1"], length, WordTokenizer())
            features = classifier_features.convert_examples_to_features(*arguments)
            with mock.patch.object(classifier_features, "_EXAMPLES_PER_PART", 7):
                self.assert_arrays(taken_rows(*arguments), padded(features))

    def test_windows_equal_the_features_of_their_texts(self):
        texts = ["a b c d x y", "a", "b c d x"]
        examples = [
            classifier_features.InputExample(str(i), text, "y", str(i % 2))
            for i, text in enumerate(texts)
        ]
        windows = [("a b", 0), ("c d", 0), ("x y", 0), ("a", 1), ("b c", 0), ("d x", 0)]
        expected = classifier_features.convert_examples_to_features(
            [classifier_features.InputExample("", a, "y", str(label)) for a, label in windows],
            ["0", "1"],
            6,
            WordTokenizer(),
        )
        arguments = examples, ["0", "1"], 6, WordTokenizer()
        found = classifier_features.convert_examples_to_features(*arguments, in_windows=True)
        self.assertEqual([each.window_index for each in found], [0, 1, 2, 0, 0, 1])
        for name in ("input_ids", "input_mask", "segment_ids", "label_id"):
            self.assertEqual(
                [getattr(f, name) for f in found], [getattr(f, name) for f in expected]
            )
        arrays = added_arrays(*arguments, in_windows=True)
        self.assertAllEqual(arrays.pop("is_first"), [1, 0, 0, 1, 1, 0])
        self.assert_arrays(rows.PackedRows(arrays, 6).take(np.arange(6)), padded(expected))

    def test_other_layouts_of_features_are_kept(self):
        """An edited `convert_single_example` is what the scripts read."""
        features = classifier_features.InputFeatures(
            [9, 8, 7, 6, 5, 0], [1, 0, 1, 1, 0, 0], [2, 0, 1, 2, 0, 0], 1
        )
        with mock.patch.object(
            classifier_features, "convert_single_example", return_value=features
        ):
            arrays = taken_rows([None] * 2, ["0", "1"], 6, WordTokenizer())
        self.assertAllEqual(arrays["input_ids"], [[9, 8, 7, 6, 0, 0]] * 2)
        self.assertAllEqual(arrays["input_mask"], [[1, 0, 1, 1, 0, 0]] * 2)
        self.assertAllEqual(arrays["segment_ids"], [[2, 0, 1, 2, 0, 0]] * 2)

    def test_no_examples_are_refused(self):
        with self.assertRaisesRegex(ValueError, "at least one"):
            classifier_features.add_rows([], ["0", "1"], 6, WordTokenizer(), list().append)

    def test_label_lookup_does_not_scan_all_labels(self):
        labels = [tiny.CountedText(f"label {i}") for i in range(50)]
        examples = [
            classifier_features.InputExample("dev-1", "a", None, f"label {i % 50}")
            for i in range(200)
        ]
        arguments = (examples, labels, 3, WordTokenizer())
        for label_ids in (
            lambda: [
                f.label_id for f in classifier_features.convert_examples_to_features(*arguments)
            ],
            lambda: added_arrays(*arguments)["label_ids"],
            lambda: classifier_features.label_column(examples, labels),
        ):
            before = tiny.CountedText.comparisons
            self.assertAllEqual(label_ids(), np.arange(200) % 50)
            self.assertLess(tiny.CountedText.comparisons - before, 2 * (50 + 200))

    def test_progress_is_logged(self):
        examples = [classifier_features.InputExample("dev-1", "a", None, "0")] * 5
        for convert in (classifier_features.convert_examples_to_features, added_arrays):
            every = mock.patch.object(classifier_features, "_PROGRESS_EVERY", 2)
            with every, self.assertLogs("absl", "INFO") as log:
                convert(examples, ["0"], 4, WordTokenizer())
            found = [record.getMessage() for record in log.records]
            self.assertEqual(found, [f"Converted {i} of 5 examples." for i in (2, 4)])


class LabelListTest(tf.test.TestCase):
    def test_any_sequence_of_labels_is_accepted(self):
        examples, numbers = (
            [classifier_features.InputExample("0", "a", None, label) for label in labels]
            for labels in ("yx", ["1.5"])
        )
        keys = {"x": 1, "y": 2}.keys()
        for labels in (["x", "y"], ("x", "y"), np.array(["x", "y"]), keys, {"x": 0, "y": 1}):
            found = classifier_features.convert_examples_to_features(
                examples, labels, 4, WordTokenizer()
            )
            self.assertEqual([features.label_id for features in found], [1, 0])
            self.assertAllEqual(classifier_features.label_column(examples, labels), [1, 0])
        for none in (None, [], np.array([])):
            (found,) = classifier_features.convert_examples_to_features(
                numbers, none, 4, WordTokenizer()
            )
            self.assertEqual(found.label_id, 1.5)


@needs_shared
class GoldenTest(tf.test.TestCase):
    def test_features_equal_the_original_features(self):
        tokenizer = tokenization.FullTokenizer(
            os.path.join(SHARED, "checkpoints", "minilm-l6-uncased", "vocab.txt"), True
        )
        golden = np.load(os.path.join(SHARED, "goldens", "classifier_features_public.npz"))
        for name in ("mrpc", "cola", "mrpc_test", "cola_test"):
            task, split = glue.TASKS[name[:4]], name[5:] or "dev"
            folder = os.path.join(SHARED, "data", "glue", task.name)
            examples = glue.read_examples(task, split, folder)[:100]
            for length in (128, 32):
                arguments = (examples, list(task.labels), length, tokenizer)
                features = classifier_features.convert_examples_to_features(*arguments)
                for arrays in (padded(features), taken_rows(*arguments)):
                    for field in ("input_ids", "input_mask", "segment_ids", "label_ids"):
                        expected = golden[f"{name}_{length}_{field}"]
                        self.assertAllEqual(arrays[field], expected, f"{name} {length} {field}")
