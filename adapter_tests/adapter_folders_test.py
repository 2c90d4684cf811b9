"""Tests of adapter_folders.py."""

import os
import shutil
import tempfile

import tensorflow.compat.v1 as tf

import adapter_folders
import task_adapters
from adapter_tests import served
from errors import UserError


class FoldersTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.root = tempfile.mkdtemp(dir=self.get_temp_dir())

    def test_adapters_by_name_and_by_pattern(self):
        served.save_all(self.root, ["sms", "stars", "topics"])
        pattern = os.path.join(self.root, "s*", "adapter")
        self.assertEqual(
            adapter_folders.named([pattern, os.path.join(self.root, "topics")]),
            {name: os.path.join(self.root, name, "adapter") for name in ("sms", "stars", "topics")},
        )

    def test_adapters_that_are_none(self):
        served.save_all(self.root, ["sms"])
        shutil.copytree(os.path.join(self.root, "sms"), os.path.join(self.root, "b", "sms"))
        for pattern, sentence in (
            ("nothing*", "there is no such folder"),
            ("b", "is no task adapter"),
            ("**/adapter,b/sms/adapter", "are both called 'sms'"),
        ):
            patterns = [os.path.join(self.root, one) for one in pattern.split(",")]
            with self.subTest(pattern), self.assertRaisesRegex(UserError, sentence):
                adapter_folders.named(patterns)

    def test_what_folders_are_called(self):
        for folder, name in (
            ("output/mrpc/adapter", "mrpc"),
            ("/a/mrpc/adapter/", "mrpc"),
            ("mrpc", "mrpc"),
            ("adapters/mrpc/12", "mrpc"),
            ("adapter", "adapter"),
            ("gs://bucket/mrpc/adapter", "mrpc"),
        ):
            self.assertEqual(adapter_folders.name_of(folder), name)
            ("output/2024/adapter", "2024"),
            ("output/adapter/3", "adapter"),

    def test_folders_that_are_no_adapters_are_passed_over(self):
        served.save_all(self.root, ["sms", "stars"])
        os.makedirs(os.path.join(self.root, "empty", "adapter"))
        os.makedirs(os.path.join(self.root, ".hidden"))
        found = adapter_folders.below(self.root)
        self.assertEqual(sorted(found), ["sms", "stars"])
        with self.assertRaisesRegex(UserError, "--adapter_dir=.* is no folder"):
            adapter_folders.below(os.path.join(self.root, "nothing"))

    def test_what_a_kill_left_is_no_task_of_its_own(self):
        task_adapters.save(os.path.join(self.root, "sms"), served.made()[1]["sms"])
        folder = os.path.join(self.root, "sms")
        shutil.copytree(folder, folder + ".partial")
        for _ in range(2):
            self.assertEqual(adapter_folders.below(self.root), {"sms": folder})
            pattern = os.path.join(self.root, "*")
            self.assertEqual(adapter_folders.named([pattern]), {"sms": folder})
            if os.path.exists(folder):
                os.rename(folder, folder + ".replaced")
        self.assertEqual(task_adapters.describe(folder).task, "sms")
        for name in ("sms.partial", "sms.replaced"):
            self.assertFalse(adapter_folders.is_name(name))


if __name__ == "__main__":
    tf.test.main()
