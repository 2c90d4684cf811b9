"""Tests of record_files.py: BERT's TFRecord files, written by hand and by itself, and damaged."""

import itertools
import os

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.formats import task_adapter
from adapter_bert.tasks.text import classifier_features, glue, record_files
from adapter_bert.training import input_pipeline, rows
from adapter_tests.support import mutations, tiny
from adapter_tests.support.file_cases import tiny_tokenizer
from adapter_tests.support.refusals import RefusalTestCase
from adapter_tests.support.script_cases import ScriptTestCase, read


def _record(row):
    """Returns a record as BERT's file_based_convert_examples_to_features writes it."""
    example = tf.train.Example()
    for name, values in row.items():
        example.features.feature[name].int64_list.value.extend(values)
    return example.SerializeToString()


class TfRecordTest(RefusalTestCase):
    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.get_temp_dir(), "train.tf_record")

    def write(self, *rows):
        with tf.python_io.TFRecordWriter(self.path) as writer:
            for row in rows:
                writer.write(_record(row))

    def row(self, length):
        return {
            "input_ids": list(range(101, 101 + length)),
            "input_mask": [1] * (length - 1) + [0],
            "segment_ids": [0] * (length - 1) + [1],
            "label_ids": [2],
            "is_real_example": [1],
        }

    def batches(self, input_fn, count=None):
        """Returns the first `count`, or all, batches of an input_fn, 4 rows each."""
        with tf.Graph().as_default(), tf.Session() as session:
            dataset = input_fn({"batch_size": 4}).take(-1 if count is None else count)
            batch = tf.data.make_one_shot_iterator(dataset).get_next()
            batches = []
            while True:
                try:
                    batches.append(session.run(batch))
                except tf.errors.OutOfRangeError:
                    return batches

    def test_hand_written_tfrecord_is_read(self):
        self.write(self.row(4), dict(self.row(4), label_ids=[0], is_real_example=[0]))
        input_fn = record_files.file_based_input_fn_builder(self.path, 4, False, False)
        (arrays,) = self.batches(input_fn)
        self.assertEqual({values.dtype for values in arrays.values()}, {np.dtype(np.int32)})
        self.assertEqual(
            {name: values.tolist() for name, values in arrays.items()},
            {
                "input_ids": [[101, 102, 103, 104]] * 2,
                "input_mask": [[1, 1, 1, 0]] * 2,
                "segment_ids": [[0, 0, 0, 1]] * 2,
                "label_ids": [2, 0],
                "is_real_example": [1, 0],
            },
        )

    def test_files_that_match_a_pattern_are_read_in_order(self):
        for name, label in (("b", 1), ("a", 0), ("c", 2)):
            self.write(dict(self.row(4), label_ids=[label]))
            os.rename(self.path, os.path.join(self.get_temp_dir(), f"part-{name}.tf_record"))
        pattern = os.path.join(self.get_temp_dir(), "part-*.tf_record")
        input_fn = record_files.file_based_input_fn_builder(pattern, 4, False, False)
        (arrays,) = self.batches(input_fn)
        self.assertAllEqual(arrays["label_ids"], [0, 1, 2])
        build = record_files.file_based_input_fn_builder
        self.assert_refused(["none-*", "no such file"], build, "none-*", 4, False, False)

    def test_records_are_those_of_berts_script(self):
        path, example = self.path, classifier_features.InputExample("", "the dog", "a cat", "1")
        args = [example, classifier_features.PaddingInputExample()], ["0", "1"], 9, tiny_tokenizer()
        record_files.file_based_convert_examples_to_features(*args, path)
        records = [
            {
                name: list(feature.int64_list.value)
                for name, feature in tf.train.Example.FromString(record).features.feature.items()
            }
            for record in tf.python_io.tf_record_iterator(path)
        ]
        expected = {
            "input_ids": [2, 5, 7, 3, 6, 8, 3, 0, 0],
            "input_mask": [1] * 7 + [0] * 2,
            "segment_ids": [0] * 4 + [1] * 3 + [0] * 2,
            "label_ids": [1],
            "is_real_example": [1],
        }
        zeros = {name: [0] * len(values) for name, values in expected.items()}
        self.assertEqual(records, [expected, zeros])

    def test_batches_equal_those_of_the_script(self):
        """The script's `add_rows` and `input_fn_builder` are the reference."""
        random = np.random.RandomState(0)
        # More than the 1,024 rows that are parsed at once.
        examples = [
            classifier_features.InputExample("", tiny.sentence(random), None, str(i % 3))
            for i in range(1030)
        ]
        args = examples, ["0", "1", "2"], 7, tiny_tokenizer()
        record_files.file_based_convert_examples_to_features(*args, self.path)
        parts = []
        classifier_features.add_rows(*args, parts.append)
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        packed = rows.PackedRows(arrays, 7)
        for is_training, count in ((False, None), (True, 300)):
            found, expected = (
                self.batches(builder(data, 7, is_training, False), count)
                for builder, data in (
                    (record_files.file_based_input_fn_builder, self.path),
                    (input_pipeline.input_fn_builder, packed),
                )
            )
            self.assertLen(found, count or 258)
            for ours, theirs in itertools.zip_longest(found, expected):
                self.assertEqual(set(ours), set(theirs))
                for name, values in theirs.items():
                    self.assertEqual(ours[name].dtype, values.dtype)
                    self.assertAllEqual(ours[name], values)

    def test_invalid_tfrecord_files_are_refused(self):
        def refused(seq_length, *parts):
            given = self.path, seq_length, True, True
            builder = record_files.file_based_input_fn_builder
            self.assert_refused([self.path, *parts], builder, *given)

        refused(4)  # There is no file.
        self.write(self.row(4))
        for seq_length in (5, 3):
            refused(seq_length, str(seq_length))
        self.write()
        refused(4, "no rows")
        with open(self.path, "w") as writer:
            writer.write("Quality\t#1 ID\t#2 ID\n" * 10)
        refused(4)


def write_shards(folder, split, data):
    """Writes the 24 rows of MRPC's split as three TFRecord files; returns the flag of them."""
    examples = glue.MrpcProcessor().get_examples(split, data)
    for number in range(3):
        path = os.path.join(folder, f"{split}.tf_record-{number:05}-of-00003")
        args = examples[number * 8 :][:8], ["0", "1"], 16, tiny_tokenizer(), path
        record_files.file_based_convert_examples_to_features(*args)
    return f"--{split}_file={folder}/{split}.tf_record-*"


class RecordRunsTest(ScriptTestCase):
    """run_classifier.py on TFRecords of MRPC, compared with the same on MRPC's own files."""

    def shards(self):
        return [write_shards(self.folder, split, self.data) for split in ("train", "dev", "test")]

    def tensors(self, output_dir):
        return task_adapter.load(os.path.join(output_dir, "adapter")).tensors

    def test_training_and_predictions_equal_those_of_texts(self):
        stages = "--do_train", "--do_eval", "--do_predict"
        texts, _ = self.train_once(*stages)
        shards = self.shards()
        self.succeed(*stages, *shards)
        expected, found = self.tensors(texts), self.tensors(self.output_dir)
        for name, values in expected.items():
            self.assertAllEqual(found[name], values)
        for name in ("test_results.tsv", "eval_results.txt", "submission/MRPC.tsv"):
            there = read(os.path.join(texts, name)).split("\n\n")[0]
            self.assertEqual(read(self.path(name)).split("\n\n")[0], there)
        header, first, *_ = read(self.path("predictions.tsv")).splitlines()
        self.assertEqual(header.split("\t")[-2:], ["text", "text_b"])
        self.assertStartsWith(first.split("\t")[-2], "[CLS] ")

        # Another run reads TFRecords for training alone; the dev set is MRPC's own file.
        self.succeed("--do_train", "--do_eval", shards[0], output_dir=self.path("mixed"))
        for name, values in self.tensors(self.path("mixed")).items():
            self.assertAllEqual(values, expected[name])

    def test_custom_task_has_the_labels_of_its_ids(self):
        flags = ["--task_name=custom", "--name=pairs", "--data_dir=", *self.shards()]
        report = self.succeed("--do_train", "--do_eval", "--do_predict", *flags)
        self.assertIn("pairs dev: accuracy", report)
        adapter = task_adapter.load(self.path("adapter"))
        self.assertEqual(list(adapter.description.labels), ["0", "1"])
        self.assertEqual(list(adapter.description.presentation.fields), ["text", "text_b"])
        given = "--adapter=" + self.path("adapter"), "--do_predict", flags[-1]
        again = self.path("again")
        self.succeed("--task_name=custom", "--data_dir=", *given, output_dir=again)
        expected = read(self.path("test_results.tsv"))
        self.assertEqual(read(os.path.join(again, "test_results.tsv")), expected)

    def test_padding_rows_are_left_out(self):
        shards = self.shards()
        path = os.path.join(self.folder, "dev.tf_record-00003-of-00003")
        padding = [classifier_features.PaddingInputExample()] * 3
        args = padding, ["0", "1"], 16, tiny_tokenizer(), path
        record_files.file_based_convert_examples_to_features(*args)
        self.succeed("--do_train", "--do_eval", *shards)
        self.assertLen(read(self.path("dev_predictions.tsv")).splitlines(), 25)

    def test_records_that_do_not_fit_are_refused(self):
        flag, *_ = self.shards()
        path = os.path.join(self.folder, "train.tf_record-00001-of-00003")
        good = {
            "input_ids": [2, 5, 3] + [0] * 13,
            "input_mask": [1] * 3 + [0] * 13,
            "segment_ids": [0] * 16,
            "label_ids": [1],
            "is_real_example": [1],
        }

        def refuse(parts, *flags, **changes):
            row = {n: values for n, values in {**good, **changes}.items() if values is not None}
            with tf.python_io.TFRecordWriter(path) as writer:
                for values in [good, row]:
                    writer.write(_record(values))
            self.refuse(parts, "--do_train", "--do_eval", flag, *flags)

        size = len(tiny.VOCABULARY)
        for name in ("segment_ids", "label_ids"):
            refuse([f"{path}, record 1: {name} has no value"], **{name: None})
        refuse([path, "input_ids has 15 integers", "16", "--max_seq_length"], input_ids=[2] * 15)
        refuse([path, "label_ids has 2 integers; expected 1"], label_ids=[0, 1])
        refuse([path, "label_ids is 2; expected 0 to 1"], label_ids=[2])
        refuse([path, "input_mask is 2"], input_mask=[1, 2] + [0] * 14)
        refuse([path, "segment_ids is -1"], segment_ids=[-1] * 16)
        too_large = [2, size, 3] + [0] * 13
        refuse([path, f"input_ids is {size}; expected 0 to {size - 1}"], input_ids=too_large)
        large = [2, 2**32 + 5, 3] + [0] * 13  # As an int32, it would be 5.
        refuse([path, f"input_ids is {2**32 + 5}"], input_ids=large)
        other = [5, 6, 3] + [0] * 13
        refuse([path, "the first of input_ids is 5; expected 2", "[CLS]"], input_ids=other)
        refuse([flag, "--long_texts"], "--long_texts=windows")
        refuse([flag, "STS-B", "regression"], "--task_name=STS-B")
        refuse([flag, "airline"], "--task_name=airline", "--data_dir=")
        refuse(["--dev_file=", "TFRecord"], "--task_name=custom", "--data_dir=")
        refuse([path.replace("00001-of", "00000-of"), "15"], "--max_seq_length=15")
        with open(path, "r+b") as writer:
            writer.seek(40)
            writer.write(b"xxxx")
        self.refuse([path, "TFRecord"], "--do_train", "--do_eval", flag)


class DamagedFilesTest(tf.test.TestCase):
    def test_a_damaged_tfrecord_is_read_or_refused(self):
        examples = [classifier_features.InputExample("", "the dog", None, "1")] * 12
        args = examples, ["0", "1"], 10, tiny_tokenizer()

        def write(folder):
            path = os.path.join(folder, "features.tf_record")
            record_files.file_based_convert_examples_to_features(*args, path)

        def read(folder):
            path = os.path.join(folder, "features.tf_record")
            record_files.file_based_input_fn_builder(path, 10, False, False)

        mutations.check(mutations.written_by(write), read)
