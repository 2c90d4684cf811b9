"""Tests of splits.py: which rows are set apart, by scikit-learn and by hand."""

import collections
import dataclasses
import os
import tempfile
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf
from absl.testing import parameterized
from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit, train_test_split

from adapter_bert.shell.errors import UserError
from adapter_bert.tasks import splits
from adapter_tests.support.refusals import RefusalTestCase

TENTHS = {"dev": 0.1, "test": 0.1}


def set_apart(shares, keys, is_stratified):
    parts = splits.set_apart(shares, splits.keys_of(keys), is_stratified)
    return {name: indices.tolist() for name, indices in parts.items()}


def strata(keys, *args, **options):
    return splits.strata(splits.keys_of(keys), *args, **options)


def counts_of(keys, indices):
    return dict(collections.Counter(keys[i] for i in indices))


class SetApartTest(parameterized.TestCase, tf.test.TestCase):
    def check_partition(self, parts, num_rows):
        self.assertCountEqual(sum(parts.values(), []), range(num_rows))
        for indices in parts.values():
            self.assertEqual(indices, sorted(indices))

    def test_random_rows_are_those_of_earlier_versions(self):
        for num_rows in (1, 9, 10, 105, 999):
            order = np.random.RandomState(0).permutation(num_rows)
            # As computed by earlier versions, in whole numbers.
            train = num_rows * 8 // 10
            dev = (num_rows - train) // 2
            expected = np.split(order, [train, train + dev])
            parts = set_apart(TENTHS, [""] * num_rows, False)
            self.assertEqual(list(parts), ["train", "dev", "test"])
            for part, indices in zip(parts.values(), expected):
                self.assertEqual(part, sorted(indices))
            (train_rows, dev_rows) = set_apart({"dev": 0.1}, [""] * num_rows, False).values()
            self.assertEqual(train_rows, sorted(order[: num_rows * 9 // 10]))
            self.check_partition({"train": train_rows, "dev": dev_rows}, num_rows)

    def test_dev_rows_are_those_of_scikit_learn(self):
        keys = [label for label in "abc" for _ in range({"a": 50, "b": 30, "c": 20}[label])]
        splitter = StratifiedShuffleSplit(1, test_size=20, train_size=80, random_state=0)
        ((_, expected),) = splitter.split(keys, keys)
        parts = set_apart({"dev": 0.2}, keys, True)
        self.assertEqual(parts["dev"], sorted(expected))
        _, expected = train_test_split(range(100), test_size=20, stratify=keys, random_state=0)
        self.assertEqual(parts["dev"], sorted(expected))
        self.assertEqual(counts_of(keys, parts["dev"]), {"a": 10, "b": 6, "c": 4})

    def test_six_dev_rows_have_all_four_labels(self):
        keys = ["abcd"[i % 4] for i in range(60)]
        parts = set_apart(TENTHS, keys, True)
        self.check_partition(parts, 60)
        self.assertEqual([len(part) for part in parts.values()], [48, 6, 6])
        self.assertEqual(
            parts["dev"], [2, 3, 12, 25, 29, 44]
        )  # As in all versions of scikit-learn.
        for part in parts.values():
            self.assertEqual(set(counts_of(keys, part)), set("abcd"))

    @parameterized.parameters(
        (["a"] * 20,),
        (["a"] * 19 + ["b"],),
        (["a"] * 18 + ["b", "c"],),
        ([str(i) for i in range(20)],),
        ([str(i // 2) for i in range(40)],),
        (["a"] * 30 + [str(i) for i in range(10)],),
        ([1.5] * 20,),
        ([0.0] * 15 + [float(i) for i in range(15)],),
        (["a", "b"] * 5,),
        (["a", "b", "a"],),
        (["a"],),
    )
    def test_any_labels_give_parts_of_the_random_sizes(self, keys):
        for shares in (TENTHS, {"dev": 0.1}, {"test": 0.34}, {"dev": 0.0, "test": 0.3}):
            parts = set_apart(shares, keys, True)
            self.check_partition(parts, len(keys))
            random = set_apart(shares, keys, False)
            for split, part in parts.items():
                self.assertLen(part, len(random[split]))

    def test_numbers_are_stratified_by_quantile(self):
        keys = np.random.RandomState(1).permutation(100).astype(float).tolist()
        parts = set_apart({"dev": 0.1}, keys, True)
        tens = [keys[index] // 10 for index in parts["dev"]]
        self.assertCountEqual(tens, range(10))

    def test_rarest_labels_are_one_group(self):
        keys = ["a"] * 6 + ["b"] * 4 + ["c"] * 2 + ["d"]
        groups = strata(keys, 10)
        # d has one row, so that it joins c, the next rarest.
        self.assertAllEqual(groups, [0] * 6 + [1] * 4 + [2] * 3)
        self.assertAllEqual(strata(keys, 2), [0] * 6 + [1] * 7)
        self.assertAllEqual(strata(keys, 1), [0] * 13)
        self.assertAllEqual(strata(keys, 10, min_rows=4), [0] * 6 + [1] * 7)

    def test_rarest_label_of_each_row(self):
        rows = [("a", "b"), ("a",), (), ("a", "c", "b"), ("b", "b")]
        # a is in three rows, b in three, c in one.
        self.assertEqual(splits.rarest(rows), ["a", "a", "", "c", "b"])
        self.assertEqual(splits.rarest([("a", "b"), ("b",)], [1, 3]), ["a", "b"])
        self.assertEqual(splits.rarest([("a", "b"), ("a",)], [5, 1]), ["b", "a"])


class PartitionTest(RefusalTestCase):
    def partition(self, *args, num_rows=2000, missing=("dev", "test")):
        keys = ["ab"[i % 2] for i in range(num_rows)]
        return splits.Partition(
            splits.SplitConfig(*args), missing, splits.keys_of(keys), "data.csv"
        )

    def test_log_says_how_many_rows_are_set_apart(self):
        for arguments, expected in (
            (
                [],
                "data.csv: 200 of its 2,000 rows are set apart as dev and 200 as test, stratified.",
            ),
            (
                ["random", 0.25, 0.0],
                "data.csv: 500 of its 2,000 rows are set apart as dev, at random.",
            ),
        ):
            with self.assertLogs("absl", "INFO") as logs:
                self.partition(*arguments)
            self.assertEqual(logs.records[0].getMessage(), expected)

    def test_rows_are_selected_in_order(self):
        partition, rows = self.partition(None, 0.25, num_rows=20, missing=("dev",)), range(20)
        train, dev = (partition.select(split, rows) for split in ("train", "dev"))
        self.assertLen(dev, 5)
        self.assertEqual(sorted([*train, *dev]), list(rows))
        self.assertEqual(dev, sorted(dev))

    def test_rows_of_large_files_are_drawn_once(self):
        @dataclasses.dataclass(frozen=True)
        class Config(splits.SplitConfig):
            feature_folder: str = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "cache")

        def indices(keys, cache_key="file", **settings):
            keys = splits.keys_of(keys)
            partition = splits.Partition(
                Config(**settings), ["dev", "test"], keys, "x", cache_key=cache_key
            )
            return [partition.indices(split).tolist() for split in ("train", "dev", "test")]

        keys = ["ab"[i % 3 == 0] for i in range(60)]
        for settings in ({}, {"split": "random"}, {"dev_share": 0.3}, {"fold": (2, 3)}):
            expected = indices(keys, **settings)
            with mock.patch.object(splits, "_MANY_ROWS", 60):
                self.assertEqual(indices(keys, **settings), expected)
                with mock.patch.object(splits, "set_apart", side_effect=AssertionError):
                    self.assertEqual(indices(keys, **settings), expected)
                    with self.assertRaises(AssertionError):
                        indices(keys, "other file", **settings)

    def test_shares_without_rows_are_refused(self):
        self.assert_refused(
            ["--dev_share=0.5 and --test_share=0.5"], self.partition, None, 0.5, 0.5
        )
        self.assert_refused(["--dev_share=1.5 "], self.partition, None, 1.5, missing=["dev"])
        partition = self.partition(None, 0.0)
        parts = ["--dev_share=0", "file dev.csv"]
        self.assert_refused(parts, partition.select, "dev", range(2000), "a file {}.csv")
        few = self.partition(num_rows=5)
        self.assert_refused(["data.csv: 5 rows", "give dev"], few.select, "dev", range(5))
        self.assertLen(few.select("train", range(5)), 4)


class FoldsTest(RefusalTestCase):
    def folds(self, keys, count, **options):
        """Returns the (train, dev, test) rows of each fold."""
        found = []
        for number in range(1, count + 1):
            config = splits.SplitConfig(fold=(number, count), dev_share=0.0, **options)
            partition = splits.Partition(config, ["dev", "test"], splits.keys_of(keys), "data.csv")
            parts = [partition.select(split, range(len(keys))) for split in ("train", "dev")]
            test = partition.select("test", range(len(keys))) if config.test_share else []
            found.append((*parts, test))
        return found

    def test_folds_are_those_of_scikit_learn(self):
        keys = ["ab"[i % 3 == 0] for i in range(60)]
        found = self.folds(keys, 5, test_share=0.0)
        splitter = StratifiedKFold(5, shuffle=True, random_state=0)
        for (train, dev, _), expected in zip(found, splitter.split(keys, keys)):
            self.assertEqual([train, dev], [part.tolist() for part in expected])
            self.assertEqual(counts_of(keys, dev), {"a": 8, "b": 4})
        self.assertCountEqual(sum((dev for _, dev, _ in found), []), range(60))

    def test_test_rows_are_in_no_fold(self):
        keys = ["abc"[i % 3] for i in range(60)]
        found = self.folds(keys, 4, test_share=0.2)
        for train, dev, test in found:
            self.assertLen(test, 12)
            self.assertEqual(test, found[0][2])
            self.assertCountEqual([*train, *dev, *test], range(60))
        random = self.folds(keys, 4, test_share=0.2, split="random")
        self.assertNotEqual([dev for _, dev, _ in random], [dev for _, dev, _ in found])

    def test_rare_labels_and_numbers_have_folds(self):
        numbers = [float(i) for i in range(20)]
        for keys in (["a"] * 18 + ["b", "c"], list(map(str, range(20))), numbers):
            found = self.folds(keys, 5, test_share=0.0)
            self.assertCountEqual(sum((dev for _, dev, _ in found), []), range(20))
            self.assertEqual({len(dev) for _, dev, _ in found}, {4})
        parts = ["--folds=5: 4 rows are too few"]
        self.assert_refused(parts, self.folds, "abab", 5, test_share=0.0)


class SettingsTest(RefusalTestCase):
    def test_recorded_settings_give_back_the_flags(self):
        settings = splits.SplitConfig(dev_share=0.2).split_settings(["dev", "test"])
        expected = {"split": "stratified", "dev_share": 0.2, "test_share": 0.1}
        self.assertEqual(settings, expected)
        self.assertEqual(splits.recorded({"data": "x", **settings}), expected)
        self.assertEqual(splits.SplitConfig().split_settings([]), {})
        # As in earlier versions.
        self.assertEqual(splits.SplitConfig("random").split_settings(["dev", "test"]), {})
        self.assertEqual(splits.SplitConfig().split_settings(["dev"], "random"), {})
        self.assertEqual(splits.recorded({}), {"split": "random"})
        for name, value in (("split", "other"), ("dev_share", "0.1"), ("test_share", 1.0)):
            with self.assertRaisesRegex(UserError, f"training.{name}"):
                splits.recorded({name: value})

    def test_other_settings_than_the_training_s_are_named(self):
        before = splits.SplitConfig().split_settings(["dev", "test"])
        training = {"data": "a", **before}
        splits.check_trained(training, None, {})
        splits.check_trained(training, "a", {})
        splits.check_trained({}, "b", {})
        for config, parts in (
            (("random",), ["--split was stratified", "is now random"]),
            ((None, None, 0.2), ["--test_share was 0.1", "is now 0.2"]),
            ((), ["training file"]),
        ):
            now = splits.SplitConfig(*config).split_settings(["dev", "test"])
            self.assert_refused(parts, splits.check_trained, training, "b", now)
