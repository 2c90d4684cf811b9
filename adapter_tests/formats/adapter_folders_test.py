"""Tests of adapter_folders.py."""

import errno
import os
import re
import shutil
import tempfile
import unittest
from unittest import mock

import tensorflow.compat.v1 as tf

from adapter_bert.files import gfile, json_objects
from adapter_bert.formats import adapter_folders, task_adapter
from adapter_bert.shell.errors import UserError
from adapter_tests.support import served


class FoldersTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.root = tempfile.mkdtemp(dir=self.get_temp_dir())

    def test_patterns_and_paths_match_adapters(self):
        served.save_all(self.root, ["sms", "stars", "topics"])
        pattern = os.path.join(self.root, "s*", "adapter")
        self.assertEqual(
            adapter_folders.match_patterns([pattern, os.path.join(self.root, "topics")]),
            {name: os.path.join(self.root, name, "adapter") for name in ("sms", "stars", "topics")},
        )

    def test_folder_name_may_contain_brackets(self):
        served.save_all(self.root, ["sms"])
        folder = os.path.join(self.root, "sms[1]", "adapter")
        os.rename(os.path.join(self.root, "sms"), os.path.dirname(folder))
        self.assertEqual(adapter_folders.match_patterns([folder]), {"sms[1]": folder})

    def test_replaced_folder_is_found_after_a_kill(self):
        served.save_all(self.root, ["sms"])
        folder = os.path.join(self.root, "sms", "adapter")
        before = adapter_folders.describe(folder, "PATH")
        os.rename(folder, folder + ".replaced")
        self.assertEqual(adapter_folders.match_patterns([folder]), {"sms": folder})
        self.assertTrue(adapter_folders.matches(os.path.dirname(folder)))
        self.assertEqual(adapter_folders.describe(folder, "PATH"), before)

    def test_invalid_and_duplicate_adapters_are_refused(self):
        served.save_all(self.root, ["sms"])
        shutil.copytree(os.path.join(self.root, "sms"), os.path.join(self.root, "b", "sms"))
        for pattern, sentence in (
            ("nothing*", "no such folder"),
            ("b", "is not a task adapter"),
            ("**/adapter,b/sms/adapter", "are both named 'sms'"),
        ):
            patterns = [os.path.join(self.root, one) for one in pattern.split(",")]
            with self.subTest(pattern), self.assertRaisesRegex(UserError, sentence):
                adapter_folders.match_patterns(patterns)

    def test_task_name_is_derived_from_the_path(self):
        for folder, name in (
            ("output/mrpc/adapter", "mrpc"),
            ("/a/mrpc/adapter/", "mrpc"),
            ("mrpc", "mrpc"),
            ("adapters/mrpc/12", "mrpc"),
            ("adapter", "adapter"),
            ("output/2024/adapter", "2024"),
            ("output/adapter/3", "adapter"),
            ("gs://bucket/mrpc/adapter", "mrpc"),
        ):
            self.assertEqual(adapter_folders.task_name(folder), name)

    def test_names_of_tasks_are_those_in_the_root(self):
        served.save_all(self.root, ["sms", "stars"])
        os.makedirs(os.path.join(self.root, "sms.partial"))
        self.assertEqual(adapter_folders.task_names(self.root), ["sms", "stars"])
        with self.assertRaisesRegex(UserError, "--adapter_dir=.* is not a folder"):
            adapter_folders.task_names(os.path.join(self.root, "nothing"))

    def test_candidates_with_the_highest_number_come_first(self):
        folder = os.path.join(self.root, "sms")
        for name in ("2", "adapter", "1700000000", ".", "x3", "03"):
            path = os.path.join(folder, name)
            os.makedirs(path, exist_ok=True)
            with open(os.path.join(path, task_adapter.CONFIG_FILE), "w"):
                pass
        expected = [os.path.join(folder, name) for name in ("1700000000", "2", "", "adapter")]
        expected[2] = folder
        self.assertEqual(adapter_folders.candidates(folder), expected)
        self.assertEqual(adapter_folders.resolve(folder), expected[0])

    def test_links_out_of_the_folder_are_rejected_at_every_depth(self):
        outside = served.save_all(tempfile.mkdtemp(dir=self.get_temp_dir()), ["sms"])
        adapter = os.path.join(outside, "sms", "adapter")
        inside = os.path.join(self.root, "inside")
        shutil.copytree(adapter, inside)
        os.symlink(inside, os.path.join(self.root, "to_inside"))
        os.symlink(adapter, os.path.join(self.root, "folder"))
        os.symlink(outside, os.path.join(self.root, "nested"))
        os.makedirs(os.path.join(self.root, "parts"))
        shutil.copy(os.path.join(adapter, "adapter_config.json"), os.path.join(self.root, "parts"))
        tensors = os.path.join(self.root, "parts", "adapter.safetensors")
        os.symlink(os.path.join(adapter, "adapter.safetensors"), tensors)
        for path in ("inside", "to_inside", ""):
            adapter_folders.check_below(self.root, os.path.join(self.root, path))
        for path in ("folder", "nested", "nested/sms/adapter", "parts"):
            with self.subTest(path), self.assertRaisesRegex(UserError, "leads out of"):
                adapter_folders.check_below(self.root, os.path.join(self.root, path))

    def test_unreadable_folders_are_refused(self):
        served.save_all(self.root, ["sms", "stars"])
        closed, listdir = os.path.join(self.root, "sms"), gfile.listdir

        def list_some(path):
            if path == closed:
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return listdir(path)

        with mock.patch.object(gfile, "listdir", list_some):
            sentence = f"{closed} cannot be read (Permission denied)."
            with self.assertRaisesRegex(UserError, re.escape(sentence)):
                adapter_folders.match_patterns([closed])
            closed = self.root
            with self.assertRaisesRegex(UserError, "--adapter_dir=.* cannot be read"):
                adapter_folders.task_names(self.root)
        error = PermissionError(errno.EACCES, "Permission denied", "s://bucket")
        with mock.patch.object(gfile, "glob", side_effect=error):
            sentence = r"--adapters=s://bucket/\* cannot be read \(Permission denied\)"
            with self.assertRaisesRegex(UserError, sentence):
                adapter_folders.match_patterns(["s://bucket/*"])

    @unittest.skipIf(tf.__version__.startswith("1."), "TensorFlow 1 has no ram://")
    def test_patterns_match_remote_folders(self):
        root = "ram://adapter_folders_test"
        for name in ("sms", "stars", "topics"):
            gfile.makedirs(f"{root}/{name}/adapter")
            json_objects.write_object(f"{root}/{name}/adapter/{task_adapter.CONFIG_FILE}", {})
        actual = adapter_folders.match_patterns([f"{root}/s*/adapter", f"{root}/topics/adapter"])
        expected = {name: f"{root}/{name}/adapter" for name in ("sms", "stars", "topics")}
        self.assertEqual(actual, expected)
        with self.assertRaisesRegex(UserError, "no such folder"):
            adapter_folders.match_patterns([f"{root}/x*/adapter"])

    def test_temporary_folders_are_not_tasks(self):
        task_adapter.save(os.path.join(self.root, "sms"), served.prepare()[1]["sms"])
        folder = os.path.join(self.root, "sms")
        shutil.copytree(folder, folder + ".partial")
        for _ in range(2):
            self.assertEqual(adapter_folders.task_names(self.root), ["sms"])
            self.assertEqual(adapter_folders.candidates(folder), [folder])
            pattern = os.path.join(self.root, "*")
            self.assertEqual(adapter_folders.match_patterns([pattern]), {"sms": folder})
            if os.path.exists(folder):
                os.rename(folder, folder + ".replaced")
        self.assertEqual(task_adapter.describe(folder).task, "sms")
        for name in ("sms.partial", "sms.replaced"):
            self.assertFalse(adapter_folders.is_task_name(name))
