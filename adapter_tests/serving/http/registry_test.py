"""Tests of registry.py: which version answers, when it is removed, and valid folders."""

import collections
import contextlib
import dataclasses
import functools
import io
import itertools
import os
import shutil
import sys
import tempfile
import threading
from concurrent import futures
from unittest import mock

import pytest

pytest.importorskip("onnxruntime", reason="Python 3.7 has no ONNX Runtime of today")

# isort: split
from adapter_bert.formats import adapter_folders, task_adapter
from adapter_bert.serving.http.registry import TaskNotServed
from adapter_bert.serving.inference import memory, request_texts
from adapter_bert.shell.errors import UserError
from adapter_tests.support import served


class ServedTasksTest(served.ServedTestCase):
    NAMES = ("sms", "stars")

    def upload(self, name, *seeds):
        """Uploads a version of a task for each seed of its weights."""
        for seed in seeds:
            self.tasks.upload(name, self.contents(served.other("topics", seed)))

    def uploads(self, name):
        return sorted(os.listdir(os.path.join(self.root, name)))

    def contents(self, adapter):
        folder = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "made")
        task_adapter.save(folder, adapter)
        found = {}
        for name in task_adapter.FILES:
            with open(os.path.join(folder, name), "rb") as reader:
                found[name] = io.BytesIO(reader.read())
        return found

    def predicted(self, task, bank=None):
        rows = task.rows(task.texts.encode("the dog sees"))
        (output,) = (bank or self.bank).predict(rows)
        return output["probabilities"].tolist()

    @contextlib.contextmanager
    def restarted(self, **options):
        """Yields (tasks, bank) of another server of the same folder."""
        with contextlib.closing(served.make_bank()) as bank:
            tasks = served.tasks_of(bank, self.root, **options)
            yield tasks, bank
            tasks.close()

    def test_tasks_are_found_by_name(self):
        self.assertEqual([task.name for task in self.tasks.current()], ["sms", "stars"])
        self.assertEqual(self.tasks.get("sms").description.labels, ("ham", "spam"))
        self.assertEqual(self.tasks.get("sms").version, 1)
        with self.assertRaisesRegex(TaskNotServed, "no task 'spam' here"):
            self.tasks.get("spam")

    def test_load_reads_each_adapter_into_memory_once(self):
        tasks = [self.tasks.get(name) for name in ("sms", "stars")]
        self.assertFalse(self.tasks.are_in_memory(tasks))
        load = self.bank.load
        with mock.patch.object(self.bank, "load", side_effect=load) as loads:
            self.tasks.load(tasks * 3)
        self.assertEqual(loads.call_count, 2)
        self.assertTrue(self.tasks.are_in_memory(tasks))
        self.assertEqual(self.bank.names_in_memory(), [task.key for task in tasks])

    def test_lease_keeps_its_version_after_replacement(self):
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

    def test_removed_task_still_serves_open_leases(self):
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

    def test_ended_lease_refuses_tasks(self):
        with self.tasks.lease() as lease:
            pass
        with self.assertRaises(TaskNotServed):
            lease.get("sms")

    def test_version_numbers_continue_after_removal(self):
        self.tasks.remove("sms")
        self.assertEqual(self.tasks.put_below_root("sms", "sms/adapter").version, 2)
        # A digit, but not a decimal number.
        shutil.copytree(os.path.join(self.root, "sms/adapter"), os.path.join(self.root, "sms/²"))
        self.assertEqual(self.tasks.put_below_root("sms", "sms/²").version, 3)

    def test_incompatible_adapter_keeps_the_served_version(self):
        strange = served.own_models.build_task_adapter(served.prepare()[0], vocabulary="0" * 16)
        task_adapter.save(os.path.join(self.root, "strange"), strange)
        folder = os.path.join(self.root, "strange")
        with self.assertRaisesRegex(UserError, f"^Task sms: {folder} was .* another vocabulary"):
            self.tasks.put_below_root("sms", "strange")
        self.assertEqual(self.tasks.get("sms").version, 1)
        self.assertEqual(self.bank.names(), ["sms@1", "stars@1"])

    def test_a_long_label_is_refused(self):
        adapter = served.other("topics")
        for length, is_refused in ((256, False), (257, True)):
            labels = ("x" * length, *adapter.description.labels[1:])
            description = dataclasses.replace(adapter.description, labels=labels)
            contents = self.contents(adapter._replace(description=description))
            if is_refused:
                with self.assertRaisesRegex(
                    UserError, "a label of 257 characters; expected at most 256"
                ):
                    self.tasks.upload("long", contents)
            else:
                self.tasks.upload("long", contents)

    def test_paths_outside_the_root_are_refused(self):
        outside = tempfile.mkdtemp(dir=self.get_temp_dir())
        served.save_all(outside, ["sms"])
        link = os.path.join(self.root, "link")
        os.symlink(outside, link)
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

    def test_invalid_task_names_are_refused(self):
        for name in ("", ".", "..", "../x", "a/b", "a b", "-x", "a@1", "ä", "x" * 101, "a\n"):
            with self.subTest(name):
                with self.assertRaisesRegex(UserError, "not a valid task name"):
                    self.tasks.put_below_root(name, "sms")
                with self.assertRaisesRegex(UserError, "not a valid task name"):
                    self.tasks.upload(name, {})

    def test_uploads_are_served_after_a_restart(self):
        for number in (1, 2):
            contents = self.contents(served.other("topics", number))
            with mock.patch.object(task_adapter, "load", wraps=task_adapter.load) as loads:
                task = self.tasks.upload("fresh", contents)
            loads.assert_called_once()  # It is checked before its folder has a number.
            self.assertEqual(task.version, number)
        self.assertEqual(self.uploads("fresh"), ["1", "2"])
        found = adapter_folders.find(self.root, "fresh")
        self.assertEqual(found[0], os.path.join(self.root, "fresh", "2"))
        with self.restarted() as (tasks, bank):
            again = tasks.get("fresh")
            self.assertEqual(again.version, 2)
            self.assertAllClose(self.predicted(again, bank), self.predicted(task))

    def found(self, **options):
        """Returns (tasks below the root that are only found, their bank) of another server."""
        bank = served.make_bank()
        self.addCleanup(bank.close)
        tasks = served.tasks_of(bank, **options)
        self.addCleanup(tasks.close)
        tasks._root = self.root
        tasks.find_below_root()
        return tasks, bank

    def test_a_found_task_is_added_before_its_first_use(self):
        tasks, bank = self.found()
        self.assertEqual((tasks.num_loading(), tasks.current(), bank.names()), (2, [], []))
        with tasks.lease() as lease:
            self.predicted(lease.get("sms"), bank)
        self.assertEqual((tasks.num_loading(), bank.names()), (1, ["sms@1"]))
        with self.assertRaises(TaskNotServed):
            tasks.get("spam")
        tasks.load_found()
        self.assertEqual((tasks.num_loading(), bank.names()), (0, ["sms@1", "stars@1"]))
        self.assertEqual(bank.names_in_memory(), ["sms@1"])

    def test_all_descriptions_are_read_before_tensors(self):
        tasks, load, numbers = self.found()[0], task_adapter.load, []

        def load_and_count(*arguments):
            numbers.append((tasks.num_loading(), len(tasks)))
            return load(*arguments)

        with mock.patch.object(task_adapter, "load", load_and_count):
            tasks.load_found()
        self.assertEqual(numbers, [(0, 2), (0, 2)])

    def test_a_change_of_a_found_task_is_not_undone(self):
        tasks, bank = self.found()
        self.assertEqual(tasks.put_below_root("sms", "stars").version, 2)
        self.assertEqual(tasks.remove("stars").version, 1)
        tasks.load_found()
        tasks.close()
        self.assertEqual([task.name for task in tasks.current()], ["sms"])
        self.assertEqual(bank.names(), ["sms@2"])

    def test_first_use_of_a_damaged_version_gets_an_older_one(self):
        self.upload("fresh", 1, 2)
        with open(os.path.join(self.root, "fresh", "2", "adapter.safetensors"), "ab") as file:
            file.write(b"x")
        for is_described in (False, True):
            tasks, bank = self.found()
            if is_described:
                tasks._add_found("fresh", reads_tensors=False)
                self.assertEqual(bank.names(), ["fresh@2"])
            with self.assertLogs("absl", "WARNING") as logs:
                self.assertEqual(tasks.get("fresh").version, 1)
            self.assertRegex(logs.output[0], "Not served: .*fresh/2.* is damaged")
            tasks.close()
            self.assertEqual(bank.names(), ["fresh@1"])

    def test_without_memory_a_found_task_waits(self):
        tasks, bank = self.found()
        tasks._add_found("sms", reads_tensors=False)
        with mock.patch.object(memory, "free", return_value=(0, "ulimit -v")):
            with self.assertRaises(memory.Exhausted), tasks.lease() as lease:
                lease.get("sms")
            tasks.load_found()
        self.assertEqual(bank.names(), ["sms@1", "stars@1"])
        self.predicted(tasks.get("sms"), bank)

    def test_adding_a_task_costs_the_same_with_many_others(self):
        folder, calls = os.path.join(self.root, "sms", "adapter"), collections.Counter()
        for index in range(60):
            name = f"many-{index:02d}"
            sys.setprofile(lambda frame, event, argument, name=name: calls.update([name]))
            try:
                self.tasks.put(name, folder, lazy=True)
            finally:
                sys.setprofile(None)
        numbers = list(calls.values())
        self.assertAllClose(numbers[10:15], numbers[55:60], atol=20)

    def test_upload_takes_precedence_over_the_trained_adapter(self):
        task = self.tasks.upload("sms", self.contents(served.other("sms")))
        self.assertEqual(
            adapter_folders.find(self.root, "sms")[0], os.path.join(self.root, "sms", "2")
        )
        again = self.tasks.put_below_root("again", "sms")
        self.assertAllClose(self.predicted(again), self.predicted(task))

    def test_unexpected_upload_error_leaves_no_files(self):
        contents = self.contents(served.other("sms"))
        broken = mock.patch.object(request_texts, "TaskTexts", side_effect=MemoryError)
        with broken, self.assertRaises(MemoryError):
            self.tasks.upload("sms", contents)
        self.assertEqual(self.uploads("sms"), ["adapter"])
        self.assertEqual(self.bank.names(), ["sms@1", "stars@1"])
        contents = self.contents(served.other("sms"))
        self.assertEqual(self.tasks.upload("sms", contents).version, 2)

    def test_upload_gets_its_number_after_validation(self):
        contents, numbers = self.contents(served.other("sms")), []

        def killed(*_):
            numbers.extend(adapter_folders.version_numbers(os.path.join(self.root, "sms")))
            raise KeyboardInterrupt

        checked = mock.patch.object(request_texts, "TaskTexts", killed)
        with checked, self.assertRaises(KeyboardInterrupt):
            self.tasks.upload("sms", contents)
        self.assertEqual(numbers, [])

    def test_damaged_upload_leaves_no_files(self):
        before = sorted(os.listdir(self.root))
        for name in ("sms", "fresh"):
            contents = self.contents(served.other("sms"))
            contents["adapter.safetensors"].truncate(1000)
            with self.assertRaisesRegex(UserError, f"^Task {name}: .* is damaged"):
                self.tasks.upload(name, contents)
        self.assertEqual(self.uploads("sms"), ["adapter"])
        self.assertEqual(sorted(os.listdir(self.root)), before)
        self.assertEqual(self.tasks.get("sms").version, 1)

    def test_links_out_of_the_root_are_not_served_or_written(self):
        outside = served.save_all(tempfile.mkdtemp(dir=self.get_temp_dir()), ["topics"])
        untouched = os.listdir(os.path.join(outside, "topics", "adapter"))
        os.makedirs(os.path.join(self.root, "deep", "er"))
        for link in ("topics", "deep/adapter", "deep/er/adapter"):
            path = os.path.join(self.root, link)
            os.symlink(os.path.join(outside, "topics", "adapter"), path)
        with self.assertLogs("absl", "WARNING") as logs, self.restarted() as (tasks, _):
            self.assertEqual([task.name for task in tasks.current()], ["sms", "stars"])
        self.assertEqual(sum("leads out of" in line for line in logs.output), 2)
        for path in ("topics", "deep", "deep/adapter", "deep/er"):
            with self.subTest(path), self.assertRaisesRegex(UserError, "leads out of"):
                self.tasks.put_below_root("new", path)
        with self.assertRaisesRegex(UserError, "leads out of"):
            self.tasks.upload("topics", self.contents(served.other("topics")))
        self.assertEqual(os.listdir(os.path.join(outside, "topics", "adapter")), untouched)

    def test_newest_valid_version_is_served_after_a_restart(self):
        for number in (2, 3, 4):
            self.tasks.upload("sms", self.contents(served.other("sms", number)))
        self.tasks.close()
        expected = self.predicted(self.tasks.get("sms"))
        newest = os.path.join(self.root, "sms", "5")
        shutil.copytree(os.path.join(self.root, "sms", "4"), newest)
        with open(os.path.join(newest, "adapter.safetensors"), "r+b") as file:
            file.truncate(100)
        with self.assertLogs("absl", "WARNING") as logs, self.restarted() as (tasks, bank):
            self.assertEqual(tasks.get("sms").version, 4)
            self.assertAllClose(self.predicted(tasks.get("sms"), bank), expected)
        self.assertRegex(logs.output[0], "Not served: .*sms/5.* is damaged")

    def test_folder_with_an_unexpected_error_is_not_served(self):
        texts, spoilt = request_texts.TaskTexts, os.path.join(self.root, "sms", "adapter")

        def raising(description, encoding, where):
            if spoilt in where:
                raise ZeroDivisionError("odd")
            return texts(description, encoding, where)

        broken = mock.patch.object(request_texts, "TaskTexts", raising)
        with broken, self.assertLogs("absl", "WARNING") as logs, self.restarted() as (tasks, _):
            self.assertEqual([task.name for task in tasks.current()], ["stars"])
        self.assertRegex(logs.output[0], "Not served: .*sms/adapter: ZeroDivisionError.*odd")

    def test_old_uploads_not_in_use_are_removed_from_disk(self):
        folder = os.path.join(self.root, "fresh")
        with self.tasks.lease() as lease:
            for number in range(1, 6):
                self.upload("fresh", number)
                if number == 2:
                    held = lease.get("fresh")
                    self.tasks.put_below_root("other", "fresh/1")
            os.mkdir(os.path.join(folder, "3.partial"))
            self.tasks._remover.submit(int).result(10)
            self.assertEqual(self.uploads("fresh"), ["1", "2", "3.partial", "4", "5"])
            self.predicted(held)
        self.tasks.remove("other")
        self.upload("fresh", 6)
        self.tasks.close()
        self.assertEqual(self.uploads("fresh"), ["3.partial", "5", "6"])

    def test_an_upload_served_through_a_link_is_kept(self):
        self.upload("fresh", 1, 2)
        os.symlink("fresh/1", os.path.join(self.root, "stable"))
        self.tasks.put_below_root("stable", "stable")
        self.upload("fresh", 3, 4)
        self.tasks.close()
        self.assertEqual(self.uploads("fresh"), list("134"))

    def test_only_uploads_are_removed_from_disk(self):
        folder = os.path.join(self.root, "fresh")
        self.upload("fresh", 1, 2)
        for copy in ("fresh/3", "fresh/4", "copied/2"):
            shutil.copytree(os.path.join(folder, "2"), os.path.join(self.root, copy))
        self.tasks.put_below_root("fresh", "fresh/4")
        self.tasks.remove("fresh")
        self.tasks._remover.submit(int).result(10)
        self.assertEqual(self.uploads("fresh"), list("1234"))
        for name in ("fresh", "copied"):
            self.upload(name, 5, 6, 7)
        self.tasks.close()
        self.assertEqual(self.uploads("fresh"), list("3467"))
        self.assertEqual(self.uploads("copied"), list("245"))

    def test_uploads_of_one_name_from_many_threads_leave_few_versions(self):
        go, contents = threading.Event(), [self.contents(served.other("sms", n)) for n in range(8)]
        self.tasks._remover.submit(go.wait, 20)  # Versions that leave the bank late.
        with futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda files: self.tasks.upload("fresh", files), contents))
        self.assertEqual(self.uploads("fresh"), ["7", "8"])
        go.set()
        self.predicted(self.tasks.get("fresh"))

    def test_pipes_and_devices_are_refused_at_once(self):
        sms = os.path.join(self.root, "sms", "adapter")
        for file, make in itertools.product(
            task_adapter.FILES, (os.mkfifo, functools.partial(os.symlink, "/dev/null"))
        ):
            folder = os.path.join(self.root, f"odd{len(os.listdir(self.root))}")
            shutil.copytree(sms, folder)
            os.remove(os.path.join(folder, file))
            make(os.path.join(folder, file))
            with self.assertRaisesRegex(UserError, "is not a regular file"):
                self.tasks.put("odd", folder)
        with self.assertLogs("absl", "WARNING"), self.restarted() as (tasks, _):
            self.assertEqual([task.name for task in tasks.current()], ["sms", "stars"])

    def test_version_numbers_continue_after_disk_cleanup(self):
        self.upload("fresh", *range(1, 5))
        self.tasks.close()
        with self.restarted(keep_versions=1) as (tasks, _):
            task = tasks.upload("fresh", self.contents(served.other("topics", 5)))
            self.assertEqual(task.version, 5)
        self.assertEqual(self.uploads("fresh"), ["5"])

    def test_links_and_files_do_not_stop_removal_of_old_uploads(self):
        elsewhere = os.path.join(self.get_temp_dir(), "elsewhere")
        task_adapter.save(elsewhere, served.other("topics", 0))
        os.remove(os.path.join(elsewhere, "README.md"))  # Uploads have no README.md.
        os.makedirs(os.path.join(self.root, "fresh"))
        link = os.path.join(self.root, "fresh", "1")
        os.symlink(elsewhere, link)
        with open(os.path.join(self.root, "fresh", "2"), "w"):
            pass
        self.upload("fresh", *range(3, 7))
        self.tasks.close()
        self.assertEqual(self.uploads("fresh"), list("1256"))
        self.assertEqual(set(os.listdir(elsewhere)), set(task_adapter.FILES))

    def test_a_folder_with_other_files_is_not_removed(self):
        for number in range(1, 4):
            self.upload("fresh", number)
            with open(os.path.join(self.root, "fresh", str(number), "notes.txt"), "w"):
                pass
        self.tasks.close()
        self.assertEqual(self.uploads("fresh"), ["1", "2", "3"])
