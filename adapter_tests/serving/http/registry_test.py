"""Tests of registry.py: which version answers, when it is removed, and valid folders."""

import collections
import contextlib
import dataclasses
import errno
import functools
import hashlib
import io
import itertools
import os
import shutil
import sys
import tempfile
import threading
import time
from concurrent import futures
from unittest import mock

import pytest

pytest.importorskip("onnxruntime", reason="Python 3.7 has no ONNX Runtime of today")

# isort: split
from adapter_bert.files import gfile
from adapter_bert.formats import adapter_folders, task_adapter
from adapter_bert.serving.http.served_tasks import TaskNotServed
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
        self.assertEqual([task.name for task in self.tasks.served.current()], ["sms", "stars"])
        self.assertEqual(self.tasks.served.get("sms").description.labels, ("ham", "spam"))
        self.assertEqual(self.tasks.served.get("sms").version, served.VERSION)
        with self.assertRaisesRegex(TaskNotServed, "no task 'spam' here"):
            self.tasks.served.get("spam")

    def test_load_reads_each_adapter_into_memory_once(self):
        tasks = [self.tasks.served.get(name) for name in ("sms", "stars")]
        self.assertFalse(any(map(self.tasks.served.is_in_memory, tasks)))
        load = self.bank.load
        with mock.patch.object(self.bank, "load", side_effect=load) as loads:
            self.tasks.served.load(tasks * 3)
        self.assertEqual(loads.call_count, 2)
        self.assertTrue(all(map(self.tasks.served.is_in_memory, tasks)))
        self.assertEqual(self.bank.names_in_memory(), [task.key for task in tasks])

    def test_lease_keeps_its_version_after_replacement(self):
        old = self.predicted(self.tasks.served.get("sms"))
        task_adapter.save(os.path.join(self.root, "new"), served.other("sms"))
        with self.tasks.served.lease() as lease:
            held = lease.get("sms")
            new = self.tasks.put_below_root("sms", "new")
            self.assertEqual(held.version, served.VERSION)
            self.assertEqual(self.tasks.served.get("sms"), new)
            self.assertEqual(lease.get("sms"), held)
            self.assertEqual(self.predicted(held), old)
            self.assertNotAllClose(self.predicted(new), old)
            self.assertEqual(self.bank.names(), ["sms@1", "sms@2", "stars@1"])
        self.tasks.close()
        self.assertEqual(self.bank.names(), ["sms@2", "stars@1"])

    def test_removed_task_still_serves_open_leases(self):
        with self.tasks.served.lease() as one, self.tasks.served.lease() as two:
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
        with self.tasks.served.lease() as lease:
            pass
        with self.assertRaises(TaskNotServed):
            lease.get("sms")

    def test_version_is_the_number_of_the_folder_or_the_time_of_its_config(self):
        for name, version in (("7", 7), ("²", served.VERSION)):  # A digit, but not a number.
            shutil.copytree(f"{self.root}/sms/adapter", f"{self.root}/sms/{name}")
            self.assertEqual(self.tasks.put_below_root("sms", "sms/" + name).version, version)
        with open(f"{self.root}/sms/7/{task_adapter.TENSORS_FILE}", "rb") as reader:
            digest = hashlib.sha256(reader.read()).hexdigest()
        self.assertEqual(self.tasks.served.get("sms").digest, digest[:12])

    def test_incompatible_adapter_keeps_the_served_version(self):
        strange = served.own_models.build_task_adapter(served.prepare()[0], vocabulary="0" * 16)
        task_adapter.save(os.path.join(self.root, "strange"), strange)
        folder = os.path.join(self.root, "strange")
        with self.assertRaisesRegex(UserError, f"^Task sms: {folder} was .* another vocabulary"):
            self.tasks.put_below_root("sms", "strange")
        self.assertEqual(self.tasks.served.get("sms").version, served.VERSION)
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
        with self.restarted() as (tasks, bank):
            again = tasks.served.get("fresh")
            self.assertEqual(again.version, 2)
            self.assertAllClose(self.predicted(again, bank), self.predicted(task))

    def found(self, **options):
        """Returns (tasks below the root that are only found, their bank) of another server."""
        bank = served.make_bank()
        self.addCleanup(bank.close)
        tasks = served.tasks_of(bank, **options)
        self.addCleanup(tasks.close)
        tasks.folders._root = self.root
        tasks.start()
        return tasks, bank

    def test_a_found_task_is_added_before_its_first_use(self):
        tasks, bank = self.found()
        self.assertEqual((tasks.num_loading(), tasks.served.current(), bank.names()), (2, [], []))
        tasks.read("sms")
        with tasks.served.lease() as lease:
            self.predicted(lease.get("sms"), bank)
        self.assertEqual((tasks.num_loading(), bank.names()), (1, ["sms@1"]))
        with self.assertRaises(TaskNotServed):
            tasks.served.get("spam")
        tasks.update()
        self.assertEqual((tasks.num_loading(), bank.names()), (0, ["sms@1", "stars@1"]))
        self.assertEqual(bank.names_in_memory(), ["sms@1"])

    def test_all_descriptions_are_read_before_tensors(self):
        tasks, load, numbers = self.found()[0], task_adapter.load, []

        def load_and_count(*arguments):
            numbers.append((tasks.num_loading(), len(tasks.served)))
            return load(*arguments)

        with mock.patch.object(task_adapter, "load", load_and_count):
            tasks.update()
        self.assertEqual(numbers, [(0, 2), (0, 2)])

    def test_a_change_of_a_found_task_is_not_undone(self):
        tasks, bank = self.found()
        self.assertEqual(tasks.put_below_root("sms", "stars").description.task, "stars")
        self.assertEqual(tasks.remove("stars").version, served.VERSION)
        tasks.update()
        tasks.close()
        self.assertEqual([task.name for task in tasks.served.current()], ["sms"])
        self.assertEqual(bank.names(), ["sms@2"])

    def test_first_use_of_a_damaged_version_gets_an_older_one(self):
        self.upload("fresh", 1, 2)
        with open(os.path.join(self.root, "fresh", "2", "adapter.safetensors"), "ab") as file:
            file.write(b"x")
        for is_described in (False, True):
            tasks, bank = self.found()
            if is_described:
                tasks._update("fresh")
                self.assertEqual(bank.names(), ["fresh@1"])
            with self.assertLogs("absl", "WARNING") as logs:
                tasks.read("fresh")
            self.assertEqual(tasks.served.get("fresh").version, 1)
            self.assertRegex(logs.output[0], "Not served: .*fresh/2.* is damaged")
            tasks.close()
            self.assertEqual(bank.names(), ["fresh@2"])

    def test_without_memory_a_found_task_waits(self):
        tasks, bank = self.found()
        tasks._update("sms")
        with mock.patch.object(memory, "free", return_value=(0, "ulimit -v")):
            with self.assertRaises(memory.Exhausted):
                tasks.read("sms")
            tasks.update()
        self.assertEqual(bank.names(), ["sms@1", "stars@1"])
        tasks.read("sms")
        self.predicted(tasks.served.get("sms"), bank)

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
        self.assertEqual(task.version, served.VERSION + 1)
        self.assertIn(str(task.version), self.uploads("sms"))
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
        self.assertEqual(self.tasks.upload("sms", contents).version, served.VERSION + 1)

    def test_upload_gets_its_number_after_validation(self):
        contents, numbers = self.contents(served.other("sms")), []

        def killed(*_):
            numbers.extend(adapter_folders.version_numbers(os.path.join(self.root, "sms")))
            raise KeyboardInterrupt

        checked = mock.patch.object(request_texts, "TaskTexts", killed)
        with checked, self.assertRaises(KeyboardInterrupt):
            self.tasks.upload("sms", contents)
        self.assertEqual(numbers, [])

    def test_failed_upload_leaves_a_folder_that_was_copied_meanwhile(self):
        copied = os.path.join(self.root, "sms", str(served.VERSION + 1))

        def fail(*_):
            shutil.copytree(os.path.join(self.root, "sms", "adapter"), copied)
            raise UserError("damaged")

        failing = mock.patch.object(self.tasks.served, "check_folder", fail)
        with failing, self.assertRaisesRegex(UserError, "damaged"):
            self.upload("sms", 1)
        self.assertTrue(os.path.exists(os.path.join(copied, task_adapter.CONFIG_FILE)))

    def test_update_leaves_a_task_that_a_request_changed_while_it_waited(self):
        for number in (1, 2):
            task_adapter.save(os.path.join(self.root, "sms", str(number)), served.other("sms", 1))
        with self.tasks._locked("sms"):
            update = threading.Thread(target=self.tasks.update)
            update.start()
            time.sleep(0.2)
            self.tasks.put_below_root("sms", "sms/1")
        update.join()
        self.assertEqual(self.tasks.served.get("sms").version, 1)

    def test_names_that_requests_invent_are_not_kept(self):
        known = set(self.tasks._seen)
        for name in ("./sms", "../" * 9 + "etc/passwd", "/etc/passwd", "sms/77", "nobody"):
            self.tasks.read(name)
        self.assertEqual(set(self.tasks._seen), known)

    def test_damaged_upload_leaves_no_files(self):
        before = sorted(os.listdir(self.root))
        for name in ("sms", "fresh"):
            contents = self.contents(served.other("sms"))
            contents["adapter.safetensors"].truncate(1000)
            with self.assertRaisesRegex(UserError, f"^Task {name}: .* is damaged"):
                self.tasks.upload(name, contents)
        self.assertEqual(self.uploads("sms"), ["adapter"])
        self.assertEqual(sorted(os.listdir(self.root)), before)
        self.assertEqual(self.tasks.served.get("sms").version, served.VERSION)

    def test_links_out_of_the_root_are_not_served_or_written(self):
        outside = served.save_all(tempfile.mkdtemp(dir=self.get_temp_dir()), ["topics"])
        untouched = os.listdir(os.path.join(outside, "topics", "adapter"))
        os.makedirs(os.path.join(self.root, "deep", "er"))
        for link in ("topics", "deep/adapter", "deep/er/adapter"):
            path = os.path.join(self.root, link)
            os.symlink(os.path.join(outside, "topics", "adapter"), path)
        with self.assertLogs("absl", "WARNING") as logs, self.restarted() as (tasks, _):
            self.assertEqual([task.name for task in tasks.served.current()], ["sms", "stars"])
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
        expected = self.predicted(self.tasks.served.get("sms"))
        last = served.VERSION + 3
        newest = os.path.join(self.root, "sms", str(last + 1))
        shutil.copytree(os.path.join(self.root, "sms", str(last)), newest)
        with open(os.path.join(newest, "adapter.safetensors"), "r+b") as file:
            file.truncate(100)
        with self.assertLogs("absl", "WARNING") as logs, self.restarted() as (tasks, bank):
            self.assertEqual(tasks.served.get("sms").version, last)
            self.assertAllClose(self.predicted(tasks.served.get("sms"), bank), expected)
        self.assertRegex(logs.output[0], f"Not served: .*sms/{last + 1}.* is damaged")

    def test_folder_with_an_unexpected_error_is_not_served(self):
        texts, spoilt = request_texts.TaskTexts, os.path.join(self.root, "sms", "adapter")

        def raising(description, encoding, where):
            if spoilt in where:
                raise ZeroDivisionError("odd")
            return texts(description, encoding, where)

        broken = mock.patch.object(request_texts, "TaskTexts", raising)
        with broken, self.assertLogs("absl", "WARNING") as logs, self.restarted() as (tasks, _):
            self.assertEqual([task.name for task in tasks.served.current()], ["stars"])
        self.assertRegex(logs.output[0], "Not served: .*sms/adapter: ZeroDivisionError.*odd")

    def test_old_uploads_not_in_use_are_removed_from_disk(self):
        folder = os.path.join(self.root, "fresh")
        with self.tasks.served.lease() as lease:
            for number in range(1, 6):
                self.upload("fresh", number)
                if number == 2:
                    held = lease.get("fresh")
                    self.tasks.put_below_root("other", "fresh/1")
            os.mkdir(os.path.join(folder, "3.partial"))
            self.tasks.served._remover.submit(int).result(10)
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
        self.tasks.served._remover.submit(int).result(10)
        self.assertEqual(self.uploads("fresh"), list("1234"))
        for name in ("fresh", "copied"):
            self.upload(name, 5, 6, 7)
        self.tasks.close()
        self.assertEqual(self.uploads("fresh"), list("3467"))
        self.assertEqual(self.uploads("copied"), list("245"))

    def test_uploads_of_one_name_from_many_threads_leave_few_versions(self):
        go, contents = threading.Event(), [self.contents(served.other("sms", n)) for n in range(8)]
        self.tasks.served._remover.submit(go.wait, 20)  # Versions that leave the bank late.
        with futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda files: self.tasks.upload("fresh", files), contents))
        self.assertEqual(self.uploads("fresh"), ["7", "8"])
        go.set()
        self.predicted(self.tasks.served.get("fresh"))

    def test_pipes_and_devices_are_refused_at_once(self):
        sms = os.path.join(self.root, "sms", "adapter")
        for file, make in itertools.product(
            task_adapter.FILES, (os.mkfifo, functools.partial(os.symlink, "/dev/null"))
        ):
            folder = os.path.join(self.root, f"odd{len(os.listdir(self.root))}")
            shutil.copytree(sms, folder)
            os.remove(os.path.join(folder, file))
            make(os.path.join(folder, file))
            with self.assertRaisesRegex(UserError, "is not a regular file|leads out of"):
                self.tasks.put("odd", folder)
        with self.assertLogs("absl", "WARNING"), self.restarted() as (tasks, _):
            self.assertEqual([task.name for task in tasks.served.current()], ["sms", "stars"])

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


class UpdateTest(served.ServedTestCase):
    """Tests of `update`: folders change while tasks are served from them."""

    NAMES = ("sms", "stars")

    def save(self, name, adapter):
        task_adapter.save(os.path.join(self.root, name), adapter)

    def served(self):
        """Returns a dict from names to (version, first digits of the digest) after an update."""
        self.tasks.update()
        return {task.name: (task.version, task.digest) for task in self.tasks.served.current()}

    def digest(self, folder):
        with open(os.path.join(self.root, folder, task_adapter.TENSORS_FILE), "rb") as reader:
            return hashlib.sha256(reader.read()).hexdigest()[:12]

    def test_changed_folders_are_served_after_an_update(self):
        self.assertFalse(self.tasks.update())
        self.save("topics/adapter", served.other("topics"))
        self.save("sms/3", served.other("sms", 1))
        shutil.rmtree(os.path.join(self.root, "stars"))
        found = self.served()
        self.assertEqual(sorted(found), ["sms", "topics"])
        self.assertEqual(found["sms"], (3, self.digest("sms/3")))
        self.assertFalse(self.tasks.update())
        self.save("sms/3", served.other("sms", 2))
        self.assertEqual(self.served()["sms"], (3, self.digest("sms/3")))
        shutil.rmtree(os.path.join(self.root, "sms/3"))
        self.assertEqual(self.served()["sms"], (served.VERSION, self.digest("sms/adapter")))
        removed = r"no task 'stars' here; it was removed at 20\d\d-.* UTC\."
        with self.assertRaisesRegex(TaskNotServed, removed):
            self.tasks.served.get("stars")

    def test_a_folder_is_served_once_it_is_complete(self):
        self.save("sms/2", served.other("sms"))
        config, tensors = (os.path.join(self.root, "sms/2", name) for name in task_adapter.FILES)
        with open(config) as reader, open(tensors, "rb") as tensors_reader:
            config_text, content = reader.read(), tensors_reader.read()
        os.remove(config)
        self.assertEqual(self.served()["sms"][0], served.VERSION)
        with open(config, "w") as writer:
            writer.write(config_text)
        with open(tensors, "wb") as writer:
            writer.write(content[:-1])
        with self.assertLogs("absl", "WARNING") as logs:
            self.assertEqual(self.served()["sms"][0], served.VERSION)
            self.assertFalse(self.tasks.update())
        self.assertLen(logs.output, 1)
        with open(tensors, "wb") as writer:
            writer.write(content)
        self.assertEqual(self.served()["sms"], (2, self.digest("sms/2")))

    def test_a_request_changes_a_task_until_its_folders_change(self):
        self.save("new/1", served.other("sms"))
        self.tasks.remove("stars")
        self.tasks.put_below_root("sms", "new/1")
        self.assertEqual(self.served()["sms"], (1, self.digest("new/1")))
        self.assertNotIn("stars", self.served())
        self.save("new/1", served.other("sms", 2))
        self.assertEqual(self.served()["sms"], (1, self.digest("new/1")))
        for name in ("sms", "stars"):
            self.save(name + "/5", served.other(name))
        found = self.served()
        self.assertEqual([found[name][0] for name in ("sms", "stars")], [5, 5])

    def test_a_folder_that_vanishes_while_it_is_read_replaces_nothing(self):
        self.tasks.prepare("sms")
        self.save("sms/2", served.other("sms"))

        def load(key):
            shutil.rmtree(os.path.join(self.root, "sms/2"))
            raise UserError("The folder is gone.")

        with mock.patch.object(self.bank, "load", load), self.assertLogs("absl", "WARNING"):
            self.assertEqual(self.served()["sms"][0], served.VERSION)
        self.assertEqual(self.bank.names(), ["sms@1", "stars@1"])

    def test_an_older_version_stays_if_it_cannot_be_loaded(self):
        for number in (1, 2):
            self.save(f"sms/{number}", served.other("sms", number))
        self.tasks.update()
        self.tasks.put_below_root("sms", "sms/1")
        with mock.patch.object(self.bank, "load", side_effect=UserError("Too little memory.")):
            self.tasks.prepare("sms")
        self.assertEqual(self.served()["sms"], (1, self.digest("sms/1")))

    def test_a_request_finds_a_replaced_folder_before_the_update(self):
        self.save("sms/2", served.other("sms", 1))
        self.assertEqual(self.served()["sms"][0], 2)
        self.save("sms/2", served.other("sms", 2))
        self.assertFalse(self.tasks.is_ready("sms"))
        self.tasks.prepare("sms")
        self.assertEqual(self.tasks.served.get("sms").digest, self.digest("sms/2"))
        shutil.rmtree(os.path.join(self.root, "stars"))
        self.tasks.prepare("stars")
        with self.assertRaises(TaskNotServed):
            self.tasks.served.get("stars")

    def test_a_version_on_disk_is_served_until_its_folder_is_removed(self):
        for number in (1, 2):
            self.save(f"sms/{number}", served.other("sms", number))
        self.tasks.update()
        self.assertIs(self.tasks.served.get("sms/2"), self.tasks.served.get("sms"))
        label = "sms/1"
        self.tasks.prepare(label)
        self.assertEqual(self.tasks.served.get(label).digest, self.digest("sms/1"))
        self.assertLen(self.tasks.served, 2)
        for other in ("sms/3", "sms/adapter", "sms/../sms/1", "none/1"):
            self.tasks.read(other)
            with self.assertRaises(TaskNotServed):
                self.tasks.served.get(other)
        shutil.rmtree(os.path.join(self.root, "sms/1"))
        self.tasks.update()
        with self.assertRaisesRegex(TaskNotServed, "no version '1' of task 'sms'"):
            self.tasks.served.get(label)

    def test_an_unreadable_folder_changes_nothing(self):
        before, listdir = self.served(), gfile.listdir
        for closed, sentence in (
            ("stars", "Not served: stars: .*Permission denied"),
            ("", "The tasks stay as they are: .*Permission denied"),
        ):

            def list_some(path, closed=closed):
                if path.rstrip("/") == os.path.join(self.root, closed).rstrip("/"):
                    raise PermissionError(errno.EACCES, "Permission denied", path)
                return listdir(path)

            unreadable = mock.patch.object(gfile, "listdir", list_some)
            with unreadable, self.assertLogs("absl", "WARNING") as logs:
                self.assertEqual(self.served(), before)
                self.assertEqual(self.served(), before)
            self.assertLen(logs.output, 1)
            self.assertRegex(logs.output[0], sentence)

    def test_folders_that_are_no_tasks_are_logged_once(self):
        os.makedirs(os.path.join(self.root, "empty", "adapter"))
        os.makedirs(os.path.join(self.root, "_empty"))
        shutil.copytree(os.path.join(self.root, "sms"), os.path.join(self.root, "sms+bf16"))
        with open(os.path.join(self.root, "file"), "w"):
            pass
        with self.assertLogs("absl", "WARNING") as logs:
            self.assertEqual(sorted(self.served()), ["sms", "stars"])
            self.assertFalse(self.tasks.update())
        self.assertLen(logs.output, 2)
        self.assertIn("Not served: empty: there is no task adapter in it", logs.output[0])
        self.assertIn("Not served: sms+bf16: 'sms+bf16' is not a valid task name", logs.output[1])

    def test_patterns_are_matched_again(self):
        with contextlib.closing(served.make_bank()) as bank:
            patterns = [os.path.join(self.root, "s*", "adapter")]
            tasks = served.tasks_of(bank, patterns=patterns)
            tasks.start()
            tasks.update()
            os.rename(f"{self.root}/stars/adapter", f"{self.root}/stars/kept")
            self.save("sets/adapter", served.other("sets"))
            tasks.update()
            self.assertEqual([task.name for task in tasks.served.current()], ["sets", "sms"])
            shutil.rmtree(self.root)
            tasks.update()
            self.assertEqual(tasks.served.current(), [])
            tasks.close()
