"""Tests of registry.py: which version answers, when it goes, and which folders are taken."""

import contextlib
import os
import tempfile
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf

pytest.importorskip("onnxruntime", reason="Python 3.7 has no ONNX Runtime of today")

# isort: split
from adapter_bert.common.errors import UserError
from adapter_bert.formats import adapter_folders, task_adapter
from adapter_bert.serving import request_texts
from adapter_bert.serving.registry import TaskNotServed
from adapter_tests.support import served


class ServedTasksTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bank = served.make_bank()

    @classmethod
    def tearDownClass(cls):
        cls.bank.close()
        super().tearDownClass()

    def setUp(self):
        super().setUp()
        self.root = tempfile.mkdtemp(dir=self.get_temp_dir())
        served.save_all(self.root, ["sms", "stars"])
        self.tasks = served.tasks_of(self.bank, self.root)
        self.addCleanup(self.empty)

    def empty(self):
        self.tasks.close()
        for name in self.bank.names():
            self.bank.remove(name)

    def contents(self, adapter):
        folder = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "made")
        task_adapter.save(folder, adapter)
        found = {}
        for name in task_adapter.FILES:
            with open(os.path.join(folder, name), "rb") as reader:
                found[name] = reader.read()
        return found

    def predicted(self, task):
        (output,) = self.bank.predict(task.rows(task.texts.encode("the dog sees")))
        return output["probabilities"].tolist()

    def test_tasks_by_name(self):
        self.assertEqual([task.name for task in self.tasks.current()], ["sms", "stars"])
        self.assertEqual(self.tasks.get("sms").description.labels, ("ham", "spam"))
        self.assertEqual(self.tasks.get("sms").version, 1)
        with self.assertRaisesRegex(TaskNotServed, "no task 'spam' here"):
            self.tasks.get("spam")

    def test_what_is_read_before_a_batch_asks_for_it(self):
        tasks = [self.tasks.get(name) for name in ("sms", "stars")]
        self.assertFalse(self.tasks.are_in_memory(tasks))
        self.tasks.load(tasks)
        self.assertTrue(self.tasks.are_in_memory(tasks))
        self.assertEqual(self.bank.names_in_memory(), [task.key for task in tasks])

    def test_a_request_keeps_the_version_that_it_began_with(self):
        old = self.predicted(self.tasks.get("sms"))
        task_adapter.save(os.path.join(self.root, "new"), served.other("sms"))
        with self.tasks.lease() as lease:
            held = lease.get("sms")
            new = self.tasks.put_below_root("sms", "new")
            self.assertEqual((held.version, new.version), (1, 2))
            self.assertEqual(self.tasks.get("sms"), new)
            self.assertEqual(lease.get("sms"), held)
            self.assertEqual(self.predicted(held), old)
            self.assertNotAllClose(self.predicted(new), old)
            self.assertEqual(self.bank.names(), ["sms@1", "sms@2", "stars@1"])
        self.tasks.close()
        self.assertEqual(self.bank.names(), ["sms@2", "stars@1"])

    def test_a_removed_task_answers_who_holds_it(self):
        with self.tasks.lease() as one, self.tasks.lease() as two:
            held = one.get("sms")
            two.get("sms")
            self.tasks.remove("sms")
            with self.assertRaises(TaskNotServed):
                two.get("spam")
            self.assertEqual(two.get("sms"), held)
            self.predicted(held)
        self.tasks.close()
        self.assertEqual(self.bank.names(), ["stars@1"])
        with self.assertRaises(TaskNotServed):
            self.tasks.remove("sms")

    def test_a_lease_that_ended_takes_nothing(self):
        with self.tasks.lease() as lease:
            pass
        with self.assertRaises(TaskNotServed):
            lease.get("sms")

    def test_versions_go_on_after_a_removal(self):
        self.tasks.remove("sms")
        self.assertEqual(self.tasks.put_below_root("sms", "sms/adapter").version, 2)

    def test_what_does_not_fit_leaves_what_was(self):
        strange = served.own_models.build_task_adapter(served.prepare()[0], vocabulary="0" * 16)
        task_adapter.save(os.path.join(self.root, "strange"), strange)
        folder = os.path.join(self.root, "strange")
        with self.assertRaisesRegex(UserError, f"^Task sms: {folder} was .* another vocabulary"):
            self.tasks.put_below_root("sms", "strange")
        self.assertEqual(self.tasks.get("sms").version, 1)
        self.assertEqual(self.bank.names(), ["sms@1", "stars@1"])

    def test_only_folders_below_the_root(self):
        outside = tempfile.mkdtemp(dir=self.get_temp_dir())
        served.save_all(outside, ["sms"])
        link = os.path.join(self.root, "link")
        os.symlink(outside, link)
        self.addCleanup(os.remove, link)
        for path in (
            "../" + os.path.basename(outside) + "/sms",
            os.path.join(outside, "sms"),
            "sms/../../sms",
            "./sms",
            "",
            "a\0b",
            "\ud800",
            "a\\b",
            "link/sms",
        ):
            with self.subTest(ascii(path)), self.assertRaisesRegex(UserError, "adapter_dir"):
                self.tasks.put_below_root("new", path)
        with self.assertRaisesRegex(UserError, "no task adapter 'nothing' below"):
            self.tasks.put_below_root("new", "nothing")
        with self.assertRaisesRegex(UserError, "was started with --adapter_dir"):
            served.tasks_of(self.bank).put_below_root("new", "sms")

    def test_names_that_are_none(self):
        for name in ("", ".", "..", "../x", "a/b", "a b", "-x", "a@1", "ä", "x" * 101, "a\n"):
            with self.subTest(name):
                with self.assertRaisesRegex(UserError, "no name of a task"):
                    self.tasks.put_below_root(name, "sms")
                with self.assertRaisesRegex(UserError, "no name of a task"):
                    self.tasks.upload(name, {})

    def test_an_upload_is_there_after_a_restart(self):
        for number in (1, 2):
            adapter = served.other("topics", number)
            task = self.tasks.upload("fresh", self.contents(adapter))
            self.assertEqual(task.version, number)
        self.assertEqual(sorted(os.listdir(os.path.join(self.root, "fresh"))), ["1", "2"])
        found = adapter_folders.find_all(self.root)
        self.assertEqual(found["fresh"], os.path.join(self.root, "fresh", "2"))
        with contextlib.closing(served.make_bank()) as bank:
            again = served.tasks_of(bank, self.root).get("fresh")
            (output,) = bank.predict(again.rows(again.texts.encode("the dog sees")))
        self.assertAllClose(output["probabilities"], self.predicted(task))

    def test_an_upload_goes_before_what_was_trained(self):
        task = self.tasks.upload("sms", self.contents(served.other("sms")))
        self.assertEqual(
            adapter_folders.find_all(self.root)["sms"], os.path.join(self.root, "sms", "1")
        )
        again = self.tasks.put_below_root("again", "sms")
        self.assertAllClose(self.predicted(again), self.predicted(task))

    def test_an_error_of_any_kind_leaves_nothing(self):
        contents = self.contents(served.other("sms"))
        broken = mock.patch.object(request_texts, "TaskTexts", side_effect=MemoryError)
        with broken, self.assertRaises(MemoryError):
            self.tasks.upload("sms", contents)
        self.assertEqual(os.listdir(os.path.join(self.root, "sms")), ["adapter"])
        self.assertEqual(self.bank.names(), ["sms@1", "stars@1"])
        self.assertEqual(self.tasks.upload("sms", contents).version, 2)

    def test_an_upload_has_no_number_before_it_is_checked(self):
        contents, numbers = self.contents(served.other("sms")), []

        def killed(*_):
            numbers.extend(adapter_folders.version_numbers(os.path.join(self.root, "sms")))
            raise KeyboardInterrupt

        checked = mock.patch.object(request_texts, "TaskTexts", killed)
        with checked, self.assertRaises(KeyboardInterrupt):
            self.tasks.upload("sms", contents)
        self.assertEqual(numbers, [])

    def test_a_damaged_upload_leaves_nothing(self):
        contents = self.contents(served.other("sms"))
        contents["adapter.safetensors"] = contents["adapter.safetensors"][:-1]
        with self.assertRaisesRegex(UserError, "^Task sms: .* is damaged"):
            self.tasks.upload("sms", contents)
        self.assertEqual(os.listdir(os.path.join(self.root, "sms")), ["adapter"])
        self.assertEqual(self.tasks.get("sms").version, 1)


if __name__ == "__main__":
    tf.test.main()
