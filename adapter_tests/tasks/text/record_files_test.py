"""Tests of record_files.py: BERT's TFRecord files, written by hand and by itself, and damaged."""

import itertools
import os

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.tasks.text import classifier_features, record_files
from adapter_bert.training import input_pipeline, rows
from adapter_tests.support import mutations, tiny
from adapter_tests.support.file_cases import tiny_tokenizer
from adapter_tests.support.refusals import RefusalTestCase


class TfRecordTest(RefusalTestCase):
    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.get_temp_dir(), "train.tf_record")

    def write(self, *rows):
        """Writes rows as BERT's file_based_convert_examples_to_features does."""
        with tf.python_io.TFRecordWriter(self.path) as writer:
            for row in rows:
                example = tf.train.Example()
                for name, values in row.items():
                    example.features.feature[name].int64_list.value.extend(values)
                writer.write(example.SerializeToString())

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
        self.assert_refused(["none-*", "no file matches"], build, "none-*", 4, False, False)

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
