"""Tests of classifier_tasks.py: small files with hand-computed examples and features, each error,
and (where ADAPTER_BERT_DATA names the shared folder) the real files and the original's features."""

import csv
import itertools
import os
import random
import unittest
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import classifier_tasks as ct
from errors import UserError

SHARED = os.environ.get("ADAPTER_BERT_DATA")
needs_shared = unittest.skipUnless(SHARED, "ADAPTER_BERT_DATA does not name the shared folder")


class WordTokenizer:
    """Splits at spaces; a word's id is its place in the vocabulary below."""

    ids = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "b": 4, "c": 5, "d": 6, "x": 7, "y": 8}

    def tokenize(self, text):
        return text.split()

    def convert_tokens_to_ids(self, tokens):
        return [self.ids[token] for token in tokens]


class FileTestCase(tf.test.TestCase):
    """Writes files into a folder of the test's own."""

    def setUp(self):
        super().setUp()
        self.folder = os.path.join(self.get_temp_dir(), self.id().rpartition(".")[2])
        os.makedirs(self.folder)

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as stream:
            stream.write(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    def assert_refused(self, parts, function, *args):
        """Checks that the message holds each of parts, and is one sentence."""
        with self.assertRaises(UserError) as caught:
            function(*args)
        message = str(caught.exception)
        for part in parts:
            self.assertIn(part, message)
        self.assertTrue(message.endswith("."), message)
        self.assertNotIn("\n", message)


def as_tuples(examples):
    return [(e.guid, e.text_a, e.text_b, e.label) for e in examples]


MNLI_ROW = "{}\tp\tq\tgenre\tb1\tb2\tp1\tp2\t{}\t{}"
XNLI_DEV_ROW = "{}\t{}\tx\tx\tx\tx\t{}\t{}\t12"

# By task and split: the file's name, its content, and what must come out of it.
EXPECTED = {
    ("cola", "train"): (
        "train.tsv",
        "gj04\t1\t\tIt rains.\ngj04\t0\t*\tRains it.\n",
        [("train-0", "It rains.", None, "1"), ("train-1", "Rains it.", None, "0")],
    ),
    ("cola", "dev"): (
        "dev.tsv",
        "gj04\t0\t*\tRains it.",
        [("dev-0", "Rains it.", None, "0")],
    ),
    ("cola", "test"): (
        "test.tsv",
        "index\tsentence\n0\tIt snows.\n1\tSnows.\n",
        [("test-1", "It snows.", None, "0"), ("test-2", "Snows.", None, "0")],
    ),
    ("mrpc", "train"): (
        "train.tsv",
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\t" One "\tOne "\n'
        "0\t9\t10\tTwo\tThree\n",
        [("train-1", '" One "', 'One "', "1"), ("train-2", "Two", "Three", "0")],
    ),
    ("mrpc", "dev"): (
        "dev.tsv",
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n0\t7\t8\tOne\tTwo\r\n",
        [("dev-1", "One", "Two", "0")],
    ),
    ("mrpc", "test"): (
        "test.tsv",
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t7\t8\tOne\tTwo\n",
        [("test-1", "One", "Two", "0")],
    ),
    ("mnli", "train"): (
        "train.tsv",
        MNLI_ROW.format("index", "sentence1", "sentence2")
        + "\tlabel1\tgold_label\n"
        + MNLI_ROW.format("31193", "One.", "Two.")
        + "\tneutral\tentailment\n",
        [("train-31193", "One.", "Two.", "entailment")],
    ),
    ("mnli", "dev"): (
        "dev_matched.tsv",
        MNLI_ROW.format("index", "sentence1", "sentence2")
        + "\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label\n"
        + MNLI_ROW.format("4", "One.", "Two.")
        + "\tentailment\tentailment\tentailment\tneutral\tneutral\tneutral\n",
        [("dev_matched-4", "One.", "Two.", "neutral")],
    ),
    ("mnli", "test"): (
        "test_matched.tsv",
        MNLI_ROW.format("index", "sentence1", "sentence2")
        + "\n"
        + MNLI_ROW.format("9", "One.", "Two.")
        + "\n",
        [("test-9", "One.", "Two.", "contradiction")],
    ),
    ("xnli", "train"): (
        "multinli/multinli.train.zh.tsv",
        "premise\thypo\tlabel\n他来了\t他走了\tcontradictory\n甲\t乙\tneutral\n",
        [("train-1", "他来了", "他走了", "contradiction"), ("train-2", "甲", "乙", "neutral")],
    ),
    ("xnli", "dev"): (
        "xnli.dev.tsv",
        "\n".join(
            [
                XNLI_DEV_ROW.format("language", "gold_label", "sentence1", "sentence2"),
                XNLI_DEV_ROW.format("ar", "neutral", "x", "y"),
                XNLI_DEV_ROW.format("zh", "entailment", "甲", "乙"),
            ]
        ),
        [("dev-2", "甲", "乙", "entailment")],
    ),
}

LABELS = {
    "cola": ["0", "1"],
    "mrpc": ["0", "1"],
    "mnli": ["contradiction", "entailment", "neutral"],
    "xnli": ["contradiction", "entailment", "neutral"],
}


class TableTest(FileTestCase):
    def test_every_split_of_every_task_is_tested(self):
        splits = {(name, split) for name, task in ct.TASKS.items() for split in task.splits}
        self.assertEqual(splits, set(EXPECTED))

    def test_examples(self):
        for (task_name, split), (file_name, content, expected) in EXPECTED.items():
            with self.subTest(task=task_name, split=split):
                folder = os.path.join(self.folder, task_name)
                self.write(os.path.join(task_name, file_name), content)
                processor = ct.get_processor(task_name)
                examples = getattr(processor, f"get_{split}_examples")(folder)
                self.assertEqual(as_tuples(examples), expected)

    def test_named_processors_read_their_task(self):
        classes = {
            "cola": ct.ColaProcessor,
            "mnli": ct.MnliProcessor,
            "mrpc": ct.MrpcProcessor,
            "xnli": ct.XnliProcessor,
        }
        for task_name, processor in classes.items():
            file_name, content, expected = EXPECTED[task_name, "dev"]
            self.write(os.path.join(task_name, file_name), content)
            examples = processor().get_dev_examples(os.path.join(self.folder, task_name))
            self.assertEqual(as_tuples(examples), expected)

    def test_labels(self):
        for task_name, labels in LABELS.items():
            self.assertEqual(ct.get_processor(task_name).get_labels(), labels)

    def test_name_in_any_case(self):
        self.assertEqual(ct.get_processor("MrPc").task.name, "MRPC")

    def test_unknown_name(self):
        self.assert_refused(
            ["--task_name=mprc", "cola, mnli, mrpc, xnli"], ct.get_processor, "mprc"
        )

    def test_language(self):
        self.write("multinli/multinli.train.ar.tsv", "premise\thypo\tlabel\nx\ty\tneutral\n")
        self.write("xnli.dev.tsv", EXPECTED["xnli", "dev"][1])
        processor = ct.XnliProcessor()
        processor.language = "ar"
        self.assertEqual(
            as_tuples(processor.get_train_examples(self.folder)),
            [("train-1", "x", "y", "neutral")],
        )
        self.assertEqual(
            as_tuples(processor.get_dev_examples(self.folder)), [("dev-1", "x", "y", "neutral")]
        )

    def test_language_missing_from_file(self):
        path = self.write("xnli.dev.tsv", EXPECTED["xnli", "dev"][1])
        processor = ct.XnliProcessor()
        processor.language = "fr"
        self.assert_refused(
            [path, "found the languages ar, zh", "expected fr"],
            processor.get_dev_examples,
            self.folder,
        )

    def test_split_that_the_task_lacks(self):
        self.assert_refused(
            ["XNLI has no test split", "train, dev"],
            ct.XnliProcessor().get_test_examples,
            self.folder,
        )

    def test_base_class_leaves_everything_to_the_user(self):
        processor = ct.DataProcessor()
        for split in ("train", "dev", "test"):
            with self.assertRaises(NotImplementedError):
                getattr(processor, f"get_{split}_examples")(self.folder)
        with self.assertRaises(NotImplementedError):
            processor.get_labels()


class ReadTsvTest(FileTestCase):
    def read(self, content, quotechar=None):
        return ct.DataProcessor._read_tsv(self.write("rows.tsv", content), quotechar)

    def test_quotes_stay(self):
        self.assertEqual(self.read('"a\t b"\n"c\td\n'), [['"a', ' b"'], ['"c', "d"]])

    def test_only_newlines_end_lines(self):
        odd = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh"
        self.assertEqual(self.read(odd + "\t1\n2\t3\n"), [[odd, "1"], ["2", "3"]])

    def test_crlf_and_no_final_newline(self):
        self.assertEqual(self.read("a\tb\r\nc\td"), [["a", "b"], ["c", "d"]])

    def test_empty_fields_and_blank_lines(self):
        self.assertEqual(self.read("\ta\t\n\nb\n"), [["", "a", ""], [], ["b"]])

    def test_empty_file(self):
        self.assertEqual(self.read(""), [])

    def test_byte_order_mark_goes_only_at_the_start(self):
        self.assertEqual(self.read("\ufeffa\n\ufeffb\n"), [["a"], ["\ufeffb"]])

    def test_quotechar(self):
        self.assertEqual(
            self.read('"a\tb"\tc\n"d\n\u2028e"\t"f""g"\n', quotechar='"'),
            [["a\tb", "c"], ["d\n\u2028e", 'f"g']],
        )

    def test_long_fields(self):
        limit = csv.field_size_limit()
        long = "x" * 200000
        self.assertEqual(self.read(f"1\t{long}\n"), [["1", long]])
        self.assertEqual(self.read(f'1\t"{long}"\n', quotechar='"'), [["1", long]])
        self.assertEqual(csv.field_size_limit(), limit)

    def test_malformed_csv(self):
        self.assert_refused(["rows.tsv, line 2"], self.read, "a\tb\nc\rd\te\n", '"')

    def test_not_utf8(self):
        self.assert_refused(["rows.tsv, line 2", "not UTF-8"], self.read, b"a\tb\nc\xe9t\td\n")

    def test_utf16(self):
        for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
            self.assert_refused(
                ["rows.tsv, line 1", "UTF-16"], self.read, "a\tb\n".encode(encoding)
            )

    def test_missing_file(self):
        path = os.path.join(self.folder, "train.tsv")
        self.assert_refused(
            [path + " does not exist;", "--data_dir"], ct.DataProcessor._read_tsv, path
        )

    def test_unreadable_file(self):
        self.assert_refused(
            [self.folder, "cannot be read"], ct.DataProcessor._read_tsv, self.folder
        )


MRPC_HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


class RefusedRowsTest(FileTestCase):
    """What the reader of a task refuses, and where it says the mistake is."""

    def assert_split_refused(self, parts, processor, split, file_name, content):
        path = self.write(file_name, content)
        read = getattr(processor(), f"get_{split}_examples")
        self.assert_refused([path + part for part in parts[:1]] + parts[1:], read, self.folder)

    def test_data_dir(self):
        read = ct.MrpcProcessor().get_train_examples
        self.assert_refused(["--data_dir is not set", "train.tsv"], read, None)
        self.assert_refused(["--data_dir is not set", "train.tsv"], read, "")
        missing = os.path.join(self.folder, "nowhere")
        self.assert_refused(
            [os.path.join(missing, "train.tsv"), "neither does its folder", "--data_dir"],
            read,
            missing,
        )

    def test_too_few_columns(self):
        self.assert_split_refused(
            [", line 3: found 4 columns", "at least 5 columns"],
            *(ct.MrpcProcessor, "train", "train.tsv"),
            MRPC_HEADER + "1\t1\t2\ta\tb\n1\t1\t2\ta b\n",
        )

    def test_too_few_columns_before_a_label_at_the_end(self):
        # Ten columns hold both texts and would give the second one as the label.
        header, row, _ = EXPECTED["mnli", "train"][1].split("\n")
        self.assert_split_refused(
            [", line 2: found 10 columns", "at least 11 columns"],
            *(ct.MnliProcessor, "train", "train.tsv"),
            header + "\n" + "\t".join(row.split("\t")[:10]),
        )

    def test_wrong_separator(self):
        self.assert_split_refused(
            [", line 1: found 1 columns", "at least 4 columns"],
            *(ct.ColaProcessor, "dev", "dev.tsv"),
            "gj04,1,,It rains.\n",
        )

    def test_blank_line(self):
        self.assert_split_refused(
            [", line 2: found a blank line"],
            *(ct.ColaProcessor, "train", "train.tsv"),
            "gj04\t1\t\ta\n\ngj04\t1\t\tb\n",
        )

    def test_blank_lines_at_the_end_are_no_rows(self):
        self.write("train.tsv", "gj04\t1\t\ta\r\n\r\n\n")
        examples = ct.ColaProcessor().get_train_examples(self.folder)
        self.assertEqual(as_tuples(examples), [("train-0", "a", None, "1")])

    def test_unknown_label(self):
        self.assert_split_refused(
            [", line 3: found the label '2'", "expected one of 0, 1"],
            *(ct.MrpcProcessor, "dev", "dev.tsv"),
            MRPC_HEADER + "1\t1\t2\ta\tb\n2\t1\t2\ta\tb\n",
        )
        self.assert_split_refused(
            [", line 2: found the label '-'", "contradiction, entailment, neutral"],
            *(ct.MnliProcessor, "dev", "dev_matched.tsv"),
            EXPECTED["mnli", "dev"][1].rpartition("\t")[0] + "\t-\n",
        )

    def test_empty(self):
        for content in ("", "\n\n"):
            self.assert_split_refused(
                [": found an empty file"], ct.ColaProcessor, "train", "train.tsv", content
            )

    def test_only_a_header(self):
        self.assert_split_refused(
            [": found only a header"], ct.MrpcProcessor, "train", "train.tsv", MRPC_HEADER
        )

    def test_data_instead_of_a_header(self):
        cases = [
            (ct.MrpcProcessor, "train", "train.tsv", "1\t7\t8\ta\tb\n0\t7\t8\ta\tb\n"),
            (ct.MrpcProcessor, "test", "test.tsv", "0\t7\t8\ta\tb\n1\t7\t8\ta\tb\n"),
            (ct.ColaProcessor, "test", "test.tsv", "0\ta\n1\tb\n"),
            (
                *(ct.XnliProcessor, "train", "multinli/multinli.train.zh.tsv"),
                "a\tb\tcontradictory\na\tb\tneutral\n",
            ),
        ]
        for case in cases:
            self.assert_split_refused([", line 1: found a row of data", "a header"], *case)

    def test_header_instead_of_data(self):
        self.assert_split_refused(
            [", line 1: found the label 'label'", "no header"],
            *(ct.ColaProcessor, "train", "train.tsv"),
            "source\tlabel\tmark\tsentence\ngj04\t1\t\ta\n",
        )


class ConvertSingleExampleTest(tf.test.TestCase):
    def convert(self, text_a, text_b, length, label="1", index=5):
        example = ct.InputExample("train-1", text_a, text_b, label)
        return ct.convert_single_example(index, example, ["0", "1"], length, WordTokenizer())

    def assert_features(self, features, input_ids, input_mask, segment_ids):
        self.assertEqual(features.input_ids, input_ids)
        self.assertEqual(features.input_mask, input_mask)
        self.assertEqual(features.segment_ids, segment_ids)
        self.assertEqual(features.label_id, 1)
        self.assertIs(features.is_real_example, True)

    def test_single(self):
        self.assert_features(
            self.convert("a b", None, 6),
            [1, 3, 4, 2, 0, 0],
            [1, 1, 1, 1, 0, 0],
            [0, 0, 0, 0, 0, 0],
        )

    def test_pair(self):
        self.assert_features(
            self.convert("a b", "x", 8),
            [1, 3, 4, 2, 7, 2, 0, 0],
            [1, 1, 1, 1, 1, 1, 0, 0],
            [0, 0, 0, 0, 1, 1, 0, 0],
        )

    def test_single_is_cut_at_its_end(self):
        self.assert_features(self.convert("a b c d", None, 4), [1, 3, 4, 2], [1] * 4, [0] * 4)

    def test_pair_is_cut_where_it_is_longer(self):
        self.assert_features(
            self.convert("a b c d", "x y", 7),
            [1, 3, 4, 2, 7, 8, 2],
            [1] * 7,
            [0, 0, 0, 0, 1, 1, 1],
        )

    def test_second_text_without_tokens_has_no_segment(self):
        for text_b in ("", " "):
            self.assert_features(
                self.convert("a", text_b, 4), [1, 3, 2, 0], [1, 1, 1, 0], [0, 0, 0, 0]
            )

    def test_smallest_lengths(self):
        self.assert_features(self.convert("a", None, 2), [1, 2], [1, 1], [0, 0])
        # As in the original, a second text of which nothing is left loses its [SEP] too.
        self.assert_features(self.convert("a", "x", 3), [1, 2, 0], [1, 1, 0], [0, 0, 0])

    def test_too_small_lengths(self):
        with self.assertRaisesRegex(UserError, "--max_seq_length=1 .* at least 2 "):
            self.convert("a", None, 1)
        with self.assertRaisesRegex(UserError, "--max_seq_length=2 .* at least 3 "):
            self.convert("a", "x", 2)

    def test_unknown_label(self):
        for label in ("2", 1, None):
            with self.assertRaisesRegex(UserError, f"train-1 .*{label!r}.*'0', '1'"):
                self.convert("a", None, 4, label=label)

    def test_padding_example(self):
        features = ct.convert_single_example(0, ct.PaddingInputExample(), ["0"], 3, WordTokenizer())
        self.assertEqual(features.input_ids, [0, 0, 0])
        self.assertEqual(features.input_mask, [0, 0, 0])
        self.assertEqual(features.segment_ids, [0, 0, 0])
        self.assertEqual(features.label_id, 0)
        self.assertIs(features.is_real_example, False)

    def test_tokenizer_keeps_its_lists(self):
        tokens = ["a", "b", "c"]

        class Memo(WordTokenizer):
            def tokenize(self, text):
                return tokens

        example = ct.InputExample("train-1", "a b c", None, "0")
        ct.convert_single_example(0, example, ["0"], 3, Memo())
        self.assertEqual(tokens, ["a", "b", "c"])

    def test_only_the_first_examples_are_logged_and_quietly(self):
        with self.assertLogs("absl", "DEBUG") as logged:
            for index in range(10):
                self.convert("a", None, 4, index=index)
        self.assertEqual([record.levelname for record in logged.records], ["DEBUG"] * 3)


class TruncateSeqPairTest(tf.test.TestCase):
    def test_longer_first_and_second_in_a_tie(self):
        cases = [
            ("abcd", "xy", 6, "abcd", "xy"),
            ("abcd", "xy", 4, "ab", "xy"),
            ("abcd", "xy", 3, "ab", "x"),
            ("ab", "wxyz", 5, "ab", "wxy"),
            ("ab", "xy", 3, "ab", "x"),
            ("ab", "xy", 0, "", ""),
        ]
        for a, b, length, expected_a, expected_b in cases:
            tokens_a, tokens_b = list(a), list(b)
            ct._truncate_seq_pair(tokens_a, tokens_b, length)
            self.assertEqual((tokens_a, tokens_b), (list(expected_a), list(expected_b)))

    def test_against_token_by_token(self):
        for length_a, length_b, length in itertools.product(range(8), range(8), range(15)):
            tokens_a, tokens_b = list("abcdefg"[:length_a]), list("tuvwxyz"[:length_b])
            expected_a, expected_b = list(tokens_a), list(tokens_b)
            while len(expected_a + expected_b) > length:
                longer = expected_a if len(expected_a) > len(expected_b) else expected_b
                longer.pop()
            ct._truncate_seq_pair(tokens_a, tokens_b, length)
            self.assertEqual((tokens_a, tokens_b), (expected_a, expected_b))


class ConvertExamplesTest(tf.test.TestCase):
    def assert_arrays(self, arrays, expected):
        self.assertEqual(set(arrays), set(expected))
        for name, values in expected.items():
            self.assertEqual(arrays[name].dtype, np.int32)
            self.assertAllEqual(arrays[name], values)

    def test_features_and_arrays(self):
        examples = [
            ct.InputExample("dev-1", "a", "x", "1"),
            ct.InputExample("dev-2", "b c", None, "0"),
            ct.PaddingInputExample(),
        ]
        expected = {
            "input_ids": [[1, 3, 2, 7, 2], [1, 4, 5, 2, 0], [0] * 5],
            "input_mask": [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0], [0] * 5],
            "segment_ids": [[0, 0, 0, 1, 1], [0] * 5, [0] * 5],
            "label_ids": [1, 0, 0],
            "is_real_example": [1, 1, 0],
        }
        features = ct.convert_examples_to_features(examples, ["0", "1"], 5, WordTokenizer())
        self.assert_arrays(ct.features_to_arrays(features), expected)
        arrays = ct.examples_to_arrays(examples, ["0", "1"], 5, WordTokenizer())
        self.assert_arrays(arrays, expected)

    def test_arrays_without_features(self):
        generator = random.Random(0)
        words = list("abcdxy")
        examples = [ct.PaddingInputExample()]
        for index in range(200):
            text_a, text_b = (
                " ".join(generator.choice(words) for _ in range(generator.randrange(12)))
                for _ in range(2)
            )
            text_b = generator.choice([text_b, None])
            examples.append(ct.InputExample(index, text_a, text_b, generator.choice("01")))
        examples.append(ct.PaddingInputExample())
        for length in (3, 8, 40):
            arguments = (examples, ["0", "1"], length, WordTokenizer())
            features = ct.convert_examples_to_features(*arguments)
            expected = ct.features_to_arrays(features)
            self.assert_arrays(ct.examples_to_arrays(*arguments), expected)

    def test_arrays_of_padding_alone(self):
        arrays = ct.examples_to_arrays([ct.PaddingInputExample()], ["0"], 3, WordTokenizer())
        zeros = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), [[0, 0, 0]])
        self.assert_arrays(arrays, dict(zeros, label_ids=[0], is_real_example=[0]))

    def test_arrays_without_features_raise_the_same(self):
        with self.assertRaisesRegex(UserError, "dev-7 .*'2'"):
            example = ct.InputExample("dev-7", "a", None, "2")
            ct.examples_to_arrays([example], ["0", "1"], 5, WordTokenizer())
        with self.assertRaisesRegex(UserError, "--max_seq_length=2 "):
            example = ct.InputExample("dev-7", "a", "b", "1")
            ct.examples_to_arrays([example], ["0", "1"], 2, WordTokenizer())
        with self.assertRaisesRegex(ValueError, "at least one"):
            ct.examples_to_arrays([], ["0", "1"], 5, WordTokenizer())

    def test_progress(self):
        examples = [ct.InputExample("dev-1", "a", None, "0")] * 5
        for convert in (ct.convert_examples_to_features, ct.examples_to_arrays):
            with mock.patch.object(ct, "_PROGRESS_EVERY", 2), self.assertLogs(
                "absl", "INFO"
            ) as log:
                convert(examples, ["0"], 4, WordTokenizer())
            self.assertEqual(
                [record.getMessage() for record in log.records],
                ["Converted 2 of 5 examples.", "Converted 4 of 5 examples."],
            )

    def test_no_features(self):
        with self.assertRaisesRegex(ValueError, "at least one"):
            ct.features_to_arrays([])


@needs_shared
class SharedDataTest(tf.test.TestCase):
    def glue(self, *parts):
        return os.path.join(SHARED, "data", "glue", *parts)

    def test_row_counts(self):
        # By data/README.md for train and MNLI, else the sizes that GLUE publishes.
        counts = {
            ("CoLA", "train"): 8551,
            ("CoLA", "dev"): 1043,
            ("CoLA", "test"): 1063,
            ("MRPC", "train"): 3668,
            ("MRPC", "dev"): 408,
            ("MRPC", "test"): 1725,
            ("MNLI", "train"): 240,
            ("MNLI", "dev"): 240,
        }
        for (task_name, split), count in counts.items():
            examples = ct.read_examples(ct.TASKS[task_name.lower()], split, self.glue(task_name))
            self.assertLen(examples, count)

    def test_features_are_the_originals(self):
        tokenization = pytest.importorskip("tokenization")
        tokenizer = tokenization.FullTokenizer(
            os.path.join(SHARED, "checkpoints", "minilm-l6-uncased", "vocab.txt"), True
        )
        golden = np.load(os.path.join(SHARED, "goldens", "classifier_features_public.npz"))
        sets = {
            "mrpc": ("mrpc", "dev", "MRPC"),
            "cola": ("cola", "dev", "CoLA"),
            "mrpc_test": ("mrpc", "test", "MRPC"),
            "cola_test": ("cola", "test", "CoLA"),
        }
        for name, (task_name, split, folder) in sets.items():
            task = ct.TASKS[task_name]
            examples = ct.read_examples(task, split, self.glue(folder))[:100]
            for length in (128, 32):
                arguments = (examples, list(task.labels), length, tokenizer)
                features = ct.convert_examples_to_features(*arguments)
                for arrays in (ct.features_to_arrays(features), ct.examples_to_arrays(*arguments)):
                    for field in ("input_ids", "input_mask", "segment_ids", "label_ids"):
                        expected = golden[f"{name}_{length}_{field}"]
                        self.assertAllEqual(arrays[field], expected, f"{name} {length} {field}")


if __name__ == "__main__":
    tf.test.main()
