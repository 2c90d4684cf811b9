"""Tests of input_pipeline.py: the plan of batches, and the Datasets that follow it."""

import collections
import itertools
import os
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.tasks.text import classifier_features
from adapter_bert.training import input_pipeline, rows
from adapter_tests.support import tiny

Config = collections.namedtuple("Config", "model_dir tf_random_seed")


def take(iterator, count):
    return [rows.tolist() for rows in itertools.islice(iterator, count)]


def flat(batches):
    return [row for batch in batches for row in batch]


def run(dataset, count=None):
    """Returns the first `count`, or all, batches of a Dataset, as dicts of arrays."""
    with tf.Session() as session:
        iterator = tf.data.make_initializable_iterator(dataset)
        batch = iterator.get_next()
        session.run(tf.global_variables_initializer())
        session.run(iterator.initializer)
        batches = []
        while count is None or len(batches) < count:
            try:
                batches.append(session.run(batch))
            except tf.errors.OutOfRangeError:
                break
        return batches


class PlanTest(tf.test.TestCase):
    def test_epoch_order_depends_on_seed_and_epoch(self):
        orders = {
            (seed, epoch): tuple(input_pipeline.epoch_order(50, seed, epoch))
            for seed in range(4)
            for epoch in range(4)
        }
        self.assertEqual(len(set(orders.values())), 16)
        for (seed, epoch), order in orders.items():
            self.assertAllEqual(input_pipeline.epoch_order(50, seed, epoch), order)

    def test_training_batches_permute_each_epoch_and_resume(self):
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
        """Checks that the rows are whole permutations, each in its epoch's order."""
        for epoch, first in enumerate(range(0, len(rows) - num_rows + 1, num_rows)):
            order = rows[first : first + num_rows]
            self.assertEqual(sorted(order), list(range(num_rows)))
            self.assertEqual(order, input_pipeline.epoch_order(num_rows, 7, epoch).tolist())

    def test_training_resumes_at_step_one_million(self):
        # Step 10 ** 6 of 10 rows in batches of 32 begins in epoch 3,200,000, at its first row.
        batch = next(input_pipeline.training_batches(10, 32, 7, 10**6)).tolist()
        self.assertEqual(batch[:10], input_pipeline.epoch_order(10, 7, 3200000).tolist())

    def test_replicas_get_equal_shares_of_each_batch(self):
        batches = [np.arange(6), np.arange(6, 12)]
        for num_replicas, own, expected in (
            (1, range(1), [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]),
            (2, range(1, 2), [[3, 4, 5], [9, 10, 11]]),
            (3, range(2), [[0, 1], [2, 3], [6, 7], [8, 9]]),
            (3, range(0), []),
        ):
            found = take(input_pipeline.shares(batches, num_replicas, own), None)
            self.assertEqual(found, expected)

    def test_evaluation_batches_cover_all_rows_in_order(self):
        def batches(num_rows, batch_size):
            return take(input_pipeline.evaluation_batches(np.arange(num_rows), batch_size), None)

        self.assertEqual(batches(5, 2), [[0, 1], [2, 3], [4]])
        self.assertEqual(batches(4, 2), [[0, 1], [2, 3]])
        self.assertEqual(batches(2, 8), [[0, 1]])
        self.assertEqual(batches(0, 8), [])


class PlanByLengthTest(tf.test.TestCase):
    """Uses pools of 4 batches, except where a test sets BATCHES_PER_POOL itself."""

    def setUp(self):
        super().setUp()
        patch = mock.patch.object(input_pipeline, "BATCHES_PER_POOL", 4)
        patch.start()
        self.addCleanup(patch.stop)
        self.lengths = np.random.RandomState(3).randint(3, 60, 100)

    def plan(self, steps, lengths=None, batch_size=5, seed=7, start=0):
        lengths = self.lengths if lengths is None else lengths
        return take(
            input_pipeline.training_batches_by_length(lengths, batch_size, seed, start), steps
        )

    def test_pool_equals_hand_computed_batches(self):
        # All lengths differ and the epoch is one pool, so batches are known up to their order.
        lengths = np.array([9, 2, 7, 4, 5, 6, 3, 8])
        by_length = [[1, 6], [3, 4], [5, 2], [7, 0]]
        epochs = [self.plan(4, lengths, 2, seed=seed) for seed in range(10)]
        for batches in epochs:
            self.assertEqual(sorted(batches), sorted(by_length))
        self.assertGreater(len({str(batches) for batches in epochs}), 5)

    def test_pools_contain_the_rows_of_the_plain_order(self):
        # 6 pools of 20 rows. Epochs of 57 or 83 rows do not end with a pool.
        for num_rows in (57, 60, 83):
            lengths = self.lengths[:num_rows]
            plain = take(input_pipeline.training_batches(num_rows, 5, 7), 24)
            batches = self.plan(24, lengths)
            for first in range(0, 24, 4):
                rows = flat(plain[first : first + 4])
                # sorted() keeps equal lengths in the random order they came in.
                rows = sorted(rows, key=lambda row: lengths[row])  # noqa: B023
                expected = [rows[start : start + 5] for start in range(0, 20, 5)]
                pool = batches[first : first + 4]
                self.assertEqual(sorted(map(str, pool)), sorted(map(str, expected)))

    def test_each_row_occurs_once_per_epoch(self):
        # An epoch is 5 pools.
        batches = self.plan(60)
        for first in (0, 20, 40):
            self.assertEqual(sorted(flat(batches[first : first + 20])), list(range(100)))
        # An epoch is 3.8 pools: after any pool, row counts differ by at most one.
        for steps in range(4, 80, 4):
            counts = np.bincount(flat(self.plan(steps, self.lengths[:76])), minlength=76)
            self.assertLessEqual(counts.max() - counts.min(), 1, steps)

    def test_resumed_batches_equal_uninterrupted_ones(self):
        # Pools have 4 batches; for few rows they have 3, 2 or 1.
        for num_rows, batch_size in ((57, 5), (19, 5), (14, 5), (7, 5), (3, 5), (1, 1), (12, 12)):
            with self.subTest(num_rows=num_rows, batch_size=batch_size):
                lengths = self.lengths[:num_rows]
                batches = self.plan(30, lengths, batch_size)
                self.assertEqual({len(batch) for batch in batches}, {batch_size})
                for start in range(30):
                    resumed = self.plan(30 - start, lengths, batch_size, start=start)
                    self.assertEqual(resumed, batches[start:])

    def test_fewer_than_two_batches_keep_the_plain_batches(self):
        for num_rows in (1, 3, 5, 9):
            plain = take(input_pipeline.training_batches(num_rows, 5, 7), 12)
            rows = [sorted(batch) for batch in self.plan(12, self.lengths[:num_rows])]
            self.assertEqual(rows, [sorted(batch) for batch in plain])

    def test_batches_differ_between_epochs(self):
        epochs = [self.plan(20, start=start) for start in (0, 20)]
        batches = [{tuple(sorted(batch)) for batch in epoch} for epoch in epochs]
        self.assertEmpty(batches[0] & batches[1])

    def test_batches_by_length_have_less_padding(self):
        with mock.patch.object(input_pipeline, "BATCHES_PER_POOL", 16):
            lengths = np.random.RandomState(0).normal(53, 13, 3000).clip(19, 103).astype(int)
            by_length = self.plan(300, lengths, 32)
        plain = take(input_pipeline.training_batches(3000, 32, 7), 300)
        tokens = [sum(lengths[b].max() * 32 for b in batches) for batches in (by_length, plain)]
        real = [lengths[flat(batches)].sum() for batches in (by_length, plain)]
        self.assertLess(tokens[0] / real[0], 1.1)
        self.assertGreater(tokens[1] / real[1], 1.4)


class LengthTest(tf.test.TestCase):
    def test_batches_of_tokens_grow_as_rows_get_shorter(self):
        lengths = np.sort(np.random.RandomState(0).randint(3, 513, 3000))[::-1]
        batches = list(input_pipeline.batches_of_tokens(lengths, 512))
        self.assertAllEqual(np.concatenate(batches), np.arange(3000))
        for batch in batches[:-1]:
            padded = input_pipeline.bucket_of(lengths[batch[0]], 512)
            self.assertLen(batch, 8192 // padded)
        done = len(batches[0]) + len(batches[1])
        rest = list(input_pipeline.batches_of_tokens(lengths[done:], 512))
        self.assertEqual([len(each) for each in rest], [len(each) for each in batches[2:]])
        (first, _) = input_pipeline.batches_of_tokens(np.array([9000] * 9), 9000)
        self.assertLen(first, input_pipeline.MIN_BATCH_SIZE)
        self.assertEqual(list(input_pipeline.batches_of_tokens(lengths[:0], 512)), [])

    def test_longest_first_sorts_by_decreasing_length(self):
        lengths = np.array([2, 4, 0, 1, 2])
        self.assertAllEqual(input_pipeline.longest_first(lengths), [1, 0, 4, 3, 2])

    def test_sort_by_index_restores_the_order(self):
        came = zip([2, 0, 1], "cab")
        self.assertEqual(input_pipeline.sort_by_index(came), ["a", "b", "c"])
        self.assertEqual(input_pipeline.sort_by_index([]), [])

    def test_bucket_of_rounds_lengths_up(self):
        for length, longest, expected in (
            (0, 128, 8),
            (8, 128, 8),
            (9, 128, 12),
            (32, 128, 32),
            (33, 128, 40),
            (129, 384, 144),
            (257, 384, 288),
            (481, 512, 512),
            (600, 600, 600),
            (43, 45, 45),
        ):
            found = input_pipeline.bucket_of(length, longest)
            self.assertEqual(found, expected, (length, longest))

    def test_buckets_are_monotone_and_at_most_a_third_longer(self):
        for longest in (5, 100, 128, 384, 512):
            found = [input_pipeline.bucket_of(n, longest) for n in range(1, longest + 1)]
            self.assertEqual(found, sorted(found))
            self.assertEqual(found[-1], longest)
            for length, bucket in enumerate(found, 1):
                self.assertBetween(bucket, length, max(8, length * 1.34))

    def test_last_batch_is_padded_with_index_minus_one(self):
        order = np.array([3, 0, 1, 2, 4])
        self.assertAllEqual(input_pipeline.pad_to_multiple(order, 4), [3, 0, 1, 2, 4, -1, -1, -1])
        for multiple in (1, 5):
            self.assertAllEqual(input_pipeline.pad_to_multiple(order, multiple), order)


class InputFnTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        graph = tf.Graph().as_default()
        graph.__enter__()
        self.addCleanup(graph.__exit__, None, None, None)
        self.model_dir = self.get_temp_dir()
        # The row's index is its label.
        self.arrays = dict(
            tiny.arrays(rows=7, seq_length=20), label_ids=np.arange(7, dtype=np.int32)
        )

    def check(self, batches, rows, fixed_length=True):
        """Checks that the batches hold exactly these rows."""
        self.assertEqual([batch["label_ids"].tolist() for batch in batches], rows)
        for batch, indices in zip(batches, rows):
            self.assertEqual(set(batch), set(self.arrays))
            for name, values in batch.items():
                expected = self.arrays[name][indices]
                if expected.ndim == 2 and not fixed_length:
                    longest = self.arrays["input_mask"][indices].sum(axis=1).max()
                    expected = expected[:, : max(8, 4 * -(-longest // 4))]
                self.assertEqual(values.dtype, expected.dtype)
                self.assertAllEqual(values, expected)

    def shapes(self, dataset):
        shapes = tf.data.get_output_shapes(dataset)
        return {name: shape.as_list() for name, shape in shapes.items()}

    def make_step(self, step):
        """Creates the graph's global step with this initial value; returns it."""
        collections_of_it = [tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.GLOBAL_STEP]
        return tf.get_variable(
            "global_step", initializer=np.int64(step), collections=collections_of_it
        )

    def save_step(self, step):
        with tf.Graph().as_default(), tf.Session() as session:
            tf.get_variable("global_step", initializer=np.int64(step), use_resource=False)
            session.run(tf.global_variables_initializer())
            tf.train.Saver().save(session, os.path.join(self.model_dir, "model.ckpt"), step)

    def input_fn(self, fixed_length, *args, **kwargs):
        seq_length = 20 if fixed_length else None
        return input_pipeline.input_fn_builder(self.arrays, seq_length, *args, **kwargs)

    def plan(self, fixed_length, steps):
        """Returns the rows of the first steps with seed 11."""
        if fixed_length:
            return take(input_pipeline.training_batches(7, 3, 11), steps)
        lengths = self.arrays["input_mask"].sum(axis=1)
        return take(input_pipeline.training_batches_by_length(lengths, 3, 11), steps)

    def test_training_follows_the_plan(self):
        self.assertNotEqual(self.plan(True, 8), self.plan(False, 8))
        for fixed_length in (True, False):
            input_fn = self.input_fn(fixed_length, True, True)
            dataset = input_fn({"batch_size": 3}, Config(self.model_dir, 11))
            self.check(run(dataset, 8), self.plan(fixed_length, 8), fixed_length)

    def test_features_rows_and_arrays_give_the_same_batches(self):
        columns = [self.arrays[name].tolist() for name in ("input_ids", "input_mask")]
        columns += [self.arrays["segment_ids"].tolist(), self.arrays["label_ids"]]
        features = [classifier_features.InputFeatures(*values) for values in zip(*columns)]
        packed = rows.PackedRows(rows.pack(features), 20)
        args = {"batch_size": 3}, Config(self.model_dir, 11)
        for given, seq_length in itertools.product((features, packed), (20, None)):
            input_fn = input_pipeline.input_fn_builder(given, seq_length, True, True)
            fixed_length = seq_length is not None
            self.check(run(input_fn(*args), 8), self.plan(fixed_length, 8), fixed_length)
            input_fn = input_pipeline.input_fn_builder(given, seq_length, False, False)
            self.check(run(input_fn(*args)), [[0, 1, 2], [3, 4, 5], [6]], fixed_length)

    def test_other_lengths_and_no_features_are_refused(self):
        with self.assertRaisesRegex(ValueError, "seq_length=21.* 20"):
            input_pipeline.input_fn_builder(self.arrays, 21, True, True)
        with self.assertRaisesRegex(ValueError, "at least one"):
            input_pipeline.input_fn_builder([], 20, True, True)

    def test_training_without_config_uses_seed_0(self):
        dataset = self.input_fn(True, True, True)({"batch_size": 3})
        self.check(run(dataset, 3), take(input_pipeline.training_batches(7, 3, 0), 3))

    def test_training_resumes_after_the_last_checkpoint(self):
        for step, fixed_length in itertools.product((5, 8), (True, False)):
            self.save_step(step)
            input_fn = self.input_fn(fixed_length, True, True)
            dataset = input_fn({"batch_size": 3}, Config(self.model_dir, 11))
            self.check(run(dataset, 3), self.plan(fixed_length, step + 3)[step:], fixed_length)

    def test_evaluation_follows_given_row_order(self):
        order = np.array([4, 6, 0, 1])
        self.save_step(5)  # Does not affect an evaluation.
        ordered = rows.OrderedRows(rows.PaddedRows(self.arrays), order)
        input_fn = input_pipeline.input_fn_builder(ordered, None, False, False)
        self.check(
            run(input_fn({"batch_size": 3}, Config(self.model_dir, 11))),
            [[4, 6, 0], [1]],
            fixed_length=False,
        )

    def test_evaluation_can_drop_the_remainder(self):
        input_fn = self.input_fn(True, False, True)
        self.check(run(input_fn({"batch_size": 3})), [[0, 1, 2], [3, 4, 5]])
        self.check(run(input_fn({"batch_size": 7})), [list(range(7))])
        self.check(run(input_fn({"batch_size": 8})), [])

    def together(self, datasets, each, steps):
        """Returns the rows of every step, assembled from several hosts with `each` replicas."""
        hosts = [run(dataset, each * steps) for dataset in datasets]
        rows = []
        for step in range(steps):
            shares = [host[step * each : (step + 1) * each] for host in hosts]
            rows.append([row for share in shares for b in share for row in b["label_ids"].tolist()])
        return rows

    def test_replicas_share_the_batches_of_one_device(self):
        self.save_step(4)
        lengths = self.arrays["input_mask"].sum(axis=1)
        plan = take(input_pipeline.training_batches_by_length(lengths, 4, 11), 10)[4:]
        input_fn = input_pipeline.input_fn_builder(self.arrays, None, True, True)
        for hosts, each in ((1, 1), (1, 2), (2, 1), (2, 2), (4, 1)):
            datasets = [
                input_fn(
                    {"batch_size": 4 // (hosts * each)},
                    Config(self.model_dir, 11),
                    tf.distribute.InputContext(hosts, host, hosts * each),
                )
                for host in range(hosts)
            ]
            self.assertEqual(self.together(datasets, each, 6), plan)

    def test_tpu_hosts_share_the_batches_of_one_device(self):
        self.save_step(4)
        self.make_step(4)
        plan = take(input_pipeline.training_batches(7, 4, 11), 10)[4:]
        input_fn = input_pipeline.input_fn_for_tpu(self.arrays, self.model_dir, last_step=10)
        for hosts, each in ((1, 1), (1, 4), (2, 2)):
            datasets = []
            for host in range(hosts):
                context = mock.Mock(num_replicas=hosts * each)
                context.current_input_fn_deployment.return_value = ("cpu", host, hosts, each)
                params = {"batch_size": 4 // (hosts * each), "context": context}
                datasets.append(input_fn(params, Config(self.model_dir, 11)))
            self.assertEqual(self.together(datasets, each, 6), plan)
            self.assertEmpty(run(datasets[0])[6 * each :])

    def test_new_tpu_session_resumes_from_restored_step(self):
        self.save_step(4)
        step = self.make_step(4)
        plan = take(input_pipeline.training_batches(7, 6, 11), 10)
        context = mock.Mock(num_replicas=2)
        context.current_input_fn_deployment.return_value = ("cpu", 0, 1, 2)
        input_fn = input_pipeline.input_fn_for_tpu(self.arrays, self.model_dir, last_step=10)
        dataset = input_fn({"batch_size": 3, "context": context}, Config(self.model_dir, 11))
        iterator = tf.data.make_initializable_iterator(dataset)
        rows = iterator.get_next()["label_ids"]
        with tf.Session() as session:
            for restored in (4, 7, 10):
                session.run(step.assign(restored))
                session.run(iterator.initializer)
                found = [session.run(rows).tolist() for _ in range(2 * (10 - restored))]
                self.assertEqual(flat(found), flat(plan[restored:]))
                with self.assertRaises(tf.errors.OutOfRangeError):
                    session.run(rows)

    def test_tpu_batches_have_fixed_shapes_and_no_py_func(self):
        order = np.array([4, 6, -1, 1, 3])
        params, config = {"batch_size": 2}, Config(self.model_dir, 11)
        with tf.Graph().as_default() as graph:
            dataset = input_pipeline.input_fn_for_tpu(self.arrays, self.model_dir, order)(
                params, config
            )
            found = run(dataset)
            for shape in self.shapes(dataset).values():
                self.assertEqual(shape[0], 2)
                self.assertNotIn(None, shape)
            definition = graph.as_graph_def()
        nodes = [definition.node, *(function.node_def for function in definition.library.function)]
        self.assertNotRegex(" ".join(node.op for some in nodes for node in some), "PyFunc")
        self.check(found[:1], [[4, 6]])
        self.assertAllEqual(found[1]["is_real_example"], [0, 1])
        self.assertAllEqual(found[1]["input_ids"][0], np.zeros(20))
        self.assertLen(found, 2)  # The last row does not fill a batch.

    def test_rows_for_a_tpu_equal_taken_rows(self):
        random, folder = np.random.RandomState(5), os.path.join(self.model_dir, "rows")
        columns = {
            "a_float": random.rand(7).astype(np.float32),
            "several": random.randint(-9, 9, [7, 3]).astype(np.int32),
            "bytes": random.randint(0, 9, [7, 2]).astype(np.uint8),
            "long": random.randint(-9, 9, 7) << 40,
        }
        for some in (self.arrays, {**self.arrays, **columns}):
            order, taken = np.array([6, -1, 3, 0]), rows.as_rows(some)
            input_fn = input_pipeline.input_fn_for_tpu(some, folder, order)
            (found,) = run(input_fn({"batch_size": 4}, Config(self.model_dir, 11)))
            expected = taken.take(order)
            self.assertEqual(set(found), set(expected))
            for name, values in expected.items():
                self.assertEqual(found[name].dtype, values.dtype, name)
                self.assertAllEqual(found[name], values, name)

    def test_autotuning_is_disabled(self):
        # With autotuning, closing a session would wait up to a minute for the tuning thread.
        dataset = self.input_fn(True, True, True)({"batch_size": 3})
        options = dataset.options()
        if tf.__version__.startswith("1."):
            self.assertFalse(options.experimental_optimization.autotune)
        else:
            self.assertFalse(options.autotune.enabled)

    def test_static_shapes_are_set_for_fixed_dimensions(self):
        for is_training, drop_remainder, fixed_length, num_rows, columns in (
            (True, True, True, 3, 20),
            (True, False, True, 3, 20),
            (False, True, True, 3, 20),
            (False, False, True, None, 20),
            (True, True, False, 3, None),
            (False, False, False, None, None),
        ):
            input_fn = self.input_fn(fixed_length, is_training, drop_remainder)
            self.assertEqual(
                self.shapes(input_fn({"batch_size": 3})),
                {
                    "input_ids": [num_rows, columns],
                    "input_mask": [num_rows, columns],
                    "segment_ids": [num_rows, columns],
                    "label_ids": [num_rows],
                    "is_real_example": [num_rows],
                },
            )
