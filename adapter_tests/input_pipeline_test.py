"""Tests of input_pipeline.py: the plan as arithmetic, and the Datasets that follow it."""

import collections
import itertools
import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

import input_pipeline
from adapter_tests import tiny
from errors import UserError

Config = collections.namedtuple("Config", "model_dir tf_random_seed")


def take(iterator, count):
    return [rows.tolist() for rows in itertools.islice(iterator, count)]


def flat(batches):
    return [row for batch in batches for row in batch]


def run(dataset, count=None):
    """The batches of a Dataset as lists of dicts of arrays: the first `count`, or all."""
    with tf.Session() as session:
        iterator = tf.data.make_initializable_iterator(dataset)
        batch = iterator.get_next()
        session.run(iterator.initializer)
        batches = []
        while count is None or len(batches) < count:
            try:
                batches.append(session.run(batch))
            except tf.errors.OutOfRangeError:
                break
        return batches


class PlanTest(tf.test.TestCase):
    def test_an_epoch_is_a_permutation(self):
        for num_rows in (1, 2, 7, 100):
            order = input_pipeline.epoch_order(num_rows, 3, 5)
            self.assertEqual(order.dtype, np.int64)
            self.assertEqual(sorted(order.tolist()), list(range(num_rows)))

    def test_an_epoch_follows_from_seed_and_number(self):
        orders = {
            (seed, epoch): tuple(input_pipeline.epoch_order(50, seed, epoch))
            for seed in range(4)
            for epoch in range(4)
        }
        self.assertEqual(len(set(orders.values())), 16)
        for (seed, epoch), order in orders.items():
            self.assertAllEqual(input_pipeline.epoch_order(50, seed, epoch), order)

    def test_training_batches(self):
        for num_rows, batch_size in itertools.product((1, 2, 5, 6, 12), (1, 2, 3, 4, 12, 31)):
            with self.subTest(num_rows=num_rows, batch_size=batch_size):
                steps = 4 * num_rows // batch_size + 2
                batches = take(input_pipeline.training_batches(num_rows, batch_size, 7), steps)
                self.assertEqual({len(batch) for batch in batches}, {batch_size})
                self.check_epochs(flat(batches), num_rows)
                for start in range(steps):
                    resumed = input_pipeline.training_batches(num_rows, batch_size, 7, start)
                    self.assertEqual(take(resumed, steps - start), batches[start:])

    def check_epochs(self, rows, num_rows):
        """Checks that the rows are whole permutations, each the order of its epoch."""
        for epoch, first in enumerate(range(0, len(rows) - num_rows + 1, num_rows)):
            order = rows[first : first + num_rows]
            self.assertEqual(sorted(order), list(range(num_rows)))
            self.assertEqual(order, input_pipeline.epoch_order(num_rows, 7, epoch).tolist())

    def test_resuming_late(self):
        # Step 10 ** 6 of 10 rows in batches of 32 begins in epoch 3,200,000, at its first row.
        batch = next(input_pipeline.training_batches(10, 32, 7, 10**6)).tolist()
        self.assertEqual(batch[:10], input_pipeline.epoch_order(10, 7, 3200000).tolist())

    def test_training_depends_on_the_seed(self):
        first, second = (take(input_pipeline.training_batches(20, 5, seed), 4) for seed in (1, 2))
        self.assertNotEqual(first, second)

    def test_evaluation_batches(self):
        def batches(num_rows, batch_size):
            return take(input_pipeline.evaluation_batches(num_rows, batch_size), None)

        self.assertEqual(batches(5, 2), [[0, 1], [2, 3], [4]])
        self.assertEqual(batches(4, 2), [[0, 1], [2, 3]])
        self.assertEqual(batches(2, 8), [[0, 1]])
        self.assertEqual(batches(0, 8), [])
        for num_rows, batch_size in itertools.product(range(20), range(1, 8)):
            self.assertEqual(flat(batches(num_rows, batch_size)), list(range(num_rows)))


class PadRowsTest(tf.test.TestCase):
    def test_rows_of_weight_0_fill_the_last_batch(self):
        arrays = tiny.arrays(rows=5, seq_length=6)
        padded = input_pipeline.pad_rows(arrays, 4)
        self.assertEqual(set(padded), set(arrays))
        for name, values in padded.items():
            self.assertEqual(values.dtype, arrays[name].dtype)
            self.assertEqual(values.shape, (8,) + arrays[name].shape[1:])
            self.assertAllEqual(values[:5], arrays[name])
            self.assertAllEqual(values[5:], np.zeros((3,) + arrays[name].shape[1:]))

    def test_full_batches_stay_as_they_are(self):
        arrays = tiny.arrays(rows=8)
        for multiple in (1, 4, 8):
            self.assertAllEqual(
                input_pipeline.pad_rows(arrays, multiple)["input_ids"], arrays["input_ids"]
            )


class TrimTest(tf.test.TestCase):
    def batch(self, lengths, seq_length):
        mask = (np.arange(seq_length) < np.array(lengths)[:, None]).astype(np.int32)
        return {
            "input_ids": mask * np.arange(1, seq_length + 1, dtype=np.int32),
            "input_mask": mask,
            "label_ids": np.arange(len(lengths)),
        }

    def test_lengths(self):
        # (longest rows, columns, multiple) → columns that stay.
        for lengths, seq_length, multiple, expected in (
            ([3, 5], 32, 8, 8),
            ([8, 1], 32, 8, 8),
            ([9, 8], 32, 8, 16),
            ([32, 1], 32, 8, 32),
            ([17, 1], 20, 8, 20),
            ([3], 5, 8, 5),
            ([3, 2], 32, 1, 3),
            ([3, 2], 32, 5, 5),
            ([0, 0], 32, 8, 8),
            ([0, 11], 32, 8, 16),
        ):
            batch = self.batch(lengths, seq_length)
            trimmed = input_pipeline.trim(batch, multiple)
            message = (lengths, seq_length, multiple)
            self.assertEqual(trimmed["input_ids"].shape, (len(lengths), expected), message)
            self.assertAllEqual(trimmed["input_ids"], batch["input_ids"][:, :expected])
            self.assertEqual(trimmed["input_ids"].sum(), batch["input_ids"].sum(), message)
            self.assertEqual(trimmed["input_mask"].shape, (len(lengths), expected), message)
            self.assertAllEqual(trimmed["label_ids"], batch["label_ids"])

    def test_a_gap_in_the_mask_is_no_end(self):
        batch = {"input_mask": np.array([[1] + [0] * 8 + [1] + [0] * 14])}
        self.assertEqual(input_pipeline.trim(batch)["input_mask"].shape, (1, 16))

    def test_what_is_not_as_long_as_the_sequence_stays_whole(self):
        batch = dict(
            self.batch([3, 5], 32), scores=np.ones([2, 12]), pairs=np.ones([2, 32, 2], np.int32)
        )
        trimmed = input_pipeline.trim(batch)
        self.assertEqual(trimmed["scores"].shape, (2, 12))
        self.assertEqual(trimmed["pairs"].shape, (2, 32, 2))


class InputFnTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        graph = tf.Graph().as_default()
        graph.__enter__()
        self.addCleanup(graph.__exit__, None, None, None)
        self.model_dir = tempfile.mkdtemp(dir=self.get_temp_dir())
        # The row's number is its label.
        self.arrays = dict(tiny.arrays(rows=7, seq_length=20), label_ids=np.arange(7))

    def check(self, batches, rows, fixed_length=True):
        """Checks that the batches hold these rows, whole."""
        self.assertEqual([batch["label_ids"].tolist() for batch in batches], rows)
        for batch, indices in zip(batches, rows):
            self.assertEqual(set(batch), set(self.arrays))
            for name, values in batch.items():
                expected = self.arrays[name][indices]
                if expected.ndim == 2 and not fixed_length:
                    longest = self.arrays["input_mask"][indices].sum(axis=1).max()
                    expected = expected[:, : min(20, 8 * -(-longest // 8))]
                self.assertEqual(values.dtype, expected.dtype)
                self.assertAllEqual(values, expected)

    def shapes(self, dataset):
        shapes = tf.data.get_output_shapes(dataset)
        return {name: shape.as_list() for name, shape in shapes.items()}

    def save_step(self, step):
        with tf.Graph().as_default(), tf.Session() as session:
            tf.get_variable("global_step", initializer=np.int64(step), use_resource=False)
            session.run(tf.global_variables_initializer())
            tf.train.Saver().save(session, os.path.join(self.model_dir, "model.ckpt"), step)

    def test_training_follows_the_plan(self):
        for fixed_length in (True, False):
            input_fn = input_pipeline.input_fn_of(self.arrays, True, True, fixed_length)
            dataset = input_fn({"batch_size": 3}, Config(self.model_dir, 11))
            batches = run(dataset, 8)
            plan = take(input_pipeline.training_batches(7, 3, 11), 8)
            self.check(batches, plan, fixed_length)

    def test_training_without_a_config(self):
        dataset = input_pipeline.input_fn_of(self.arrays, True, True)({"batch_size": 3})
        self.check(run(dataset, 3), take(input_pipeline.training_batches(7, 3, 0), 3))

    def test_training_goes_on_after_the_last_checkpoint(self):
        input_fn = input_pipeline.input_fn_of(self.arrays, True, True)
        unbroken = take(input_pipeline.training_batches(7, 3, 11), 12)
        for step in (5, 9):
            self.save_step(step)
            dataset = input_fn({"batch_size": 3}, Config(self.model_dir, 11))
            self.check(run(dataset, 3), unbroken[step : step + 3])

    def test_evaluation_is_complete_and_in_order(self):
        self.save_step(5)  # Which is nothing to an evaluation.
        for fixed_length in (True, False):
            input_fn = input_pipeline.input_fn_of(self.arrays, False, False, fixed_length)
            batches = run(input_fn({"batch_size": 3}, Config(self.model_dir, 11)))
            self.check(batches, [[0, 1, 2], [3, 4, 5], [6]], fixed_length)

    def test_evaluation_without_the_remainder(self):
        input_fn = input_pipeline.input_fn_of(self.arrays, False, True)
        self.check(run(input_fn({"batch_size": 3})), [[0, 1, 2], [3, 4, 5]])
        self.check(run(input_fn({"batch_size": 7})), [list(range(7))])
        self.check(run(input_fn({"batch_size": 8})), [])

    def test_shapes_that_are_known_before_the_run(self):
        for is_training, drop_remainder, fixed_length, rows, columns in (
            (True, True, True, 3, 20),
            (True, False, True, 3, 20),
            (False, True, True, 3, 20),
            (False, False, True, None, 20),
            (True, True, False, 3, None),
            (False, False, False, None, None),
        ):
            input_fn = input_pipeline.input_fn_of(
                self.arrays, is_training, drop_remainder, fixed_length
            )
            self.assertEqual(
                self.shapes(input_fn({"batch_size": 3})),
                {
                    "input_ids": [rows, columns],
                    "input_mask": [rows, columns],
                    "segment_ids": [rows, columns],
                    "label_ids": [rows],
                    "is_real_example": [rows],
                },
            )


class TfRecordTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.path = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "train.tf_record")

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

    def test_what_is_written(self):
        input_pipeline.write_tfrecord(tiny.arrays(rows=3, seq_length=4), self.path)
        expected = tiny.arrays(rows=3, seq_length=4)
        records = list(tf.python_io.tf_record_iterator(self.path))
        self.assertEqual(len(records), 3)
        for row, record in enumerate(records):
            feature = tf.train.Example.FromString(record).features.feature
            self.assertEqual(set(feature), set(expected))
            for name, values in expected.items():
                self.assertEqual(
                    list(feature[name].int64_list.value), np.ravel(values[row]).tolist()
                )

    def test_a_file_written_by_hand(self):
        self.write(self.row(4), dict(self.row(4), label_ids=[0], is_real_example=[0]))
        arrays = input_pipeline.read_tfrecord(self.path, 4)
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

    def test_round_trip(self):
        # More than the 1,024 rows that are parsed at once.
        arrays = tiny.arrays(rows=1030, seq_length=5, num_labels=3)
        input_pipeline.write_tfrecord(arrays, self.path)
        read = input_pipeline.read_tfrecord(self.path, 5)
        self.assertEqual(set(read), set(arrays))
        for name, values in arrays.items():
            self.assertAllEqual(read[name], values)

    def refused(self, seq_length, *parts):
        with self.assertRaises(UserError) as caught:
            input_pipeline.read_tfrecord(self.path, seq_length)
        message = str(caught.exception)
        for part in (self.path, *parts):
            self.assertIn(part, message)
        self.assertNotIn("\n", message)

    def test_another_length(self):
        self.write(self.row(4))
        self.refused(5, "5")
        self.refused(3, "3")

    def test_no_rows(self):
        self.write()
        self.refused(4, "no rows")

    def test_no_file(self):
        self.refused(4)

    def test_no_tfrecord(self):
        with open(self.path, "w") as writer:
            writer.write("Quality\t#1 ID\t#2 ID\n" * 10)
        self.refused(4)


if __name__ == "__main__":
    tf.test.main()
