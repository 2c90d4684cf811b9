"""Tests of files: what readers find after a write that succeeded, failed or was killed."""

import contextlib
import errno
import fcntl
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl.testing import parameterized

from adapter_bert.files import atomic, gfile, json_objects, locks, paths
from adapter_bert.formats import checkpoints
from adapter_bert.shell.errors import UserError

KILLED = 9  # An exit code that nothing else uses.


class FilesTestCase(parameterized.TestCase, tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.root = tempfile.mkdtemp(dir=self.get_temp_dir())
        self.path = os.path.join(self.root, "thing")

    def content(self, *names):
        with open(os.path.join(self.path, *names)) as reader:
            return reader.read()

    def write_folder(self, text):
        with atomic.atomic_folder(self.path) as partial:
            for name in ("a", "b"):
                with open(os.path.join(partial, name), "w") as writer:
                    writer.write(text)


class WriteAtomicallyTest(FilesTestCase):
    def test_write_creates_and_replaces_file(self):
        for text in ("first", "the second one"):
            atomic.write_atomically(self.path, text)
            self.assertEqual(self.content(), text)
            self.assertEqual(os.listdir(self.root), ["thing"])

    def test_interrupted_write_keeps_old_file(self):
        atomic.write_atomically(self.path, "first")
        killed = mock.patch.object(gfile, "rename", side_effect=KeyboardInterrupt)
        with killed, self.assertRaises(KeyboardInterrupt):
            atomic.write_atomically(self.path, "second")
        self.assertEqual(self.content(), "first")
        self.assertEqual(os.listdir(self.root), ["thing"])

    def test_last_of_two_concurrent_writers_wins(self):
        def in_between(source, path, overwrite):
            with mock.patch.object(gfile, "rename", rename):
                atomic.write_atomically(path, "second")
            rename(source, path, overwrite)

        rename = gfile.rename
        with mock.patch.object(gfile, "rename", in_between):
            atomic.write_atomically(self.path, "first")
        self.assertEqual(self.content(), "first")
        self.assertEqual(os.listdir(self.root), ["thing"])

    def test_write_replaces_a_link_and_not_what_it_leads_to(self):
        atomic.write_atomically(self.path, "a user's file")
        for target in ("thing", "nothing", "."):
            link = os.path.join(self.root, "link")
            os.symlink(target, link)
            json_objects.write_object(link, {"a": 1})
            self.assertFalse(os.path.islink(link))
            self.assertEqual(json_objects.read_object(link), {"a": 1})
            self.assertEqual(self.content(), "a user's file")
            self.assertEqual(sorted(os.listdir(self.root)), ["link", "thing"])
            os.remove(link)

    def test_only_a_regular_file_is_opened_to_append(self):
        with gfile.open_to_append(self.path) as file:
            file.write(b"a")
        with gfile.open_to_append(self.path) as file:
            file.write(b"b")
            file.seek(0)
            self.assertEqual(file.read(), b"ab")
        paths = [os.path.join(self.root, name) for name in ("link", "dangling", "pipe", "folder")]
        os.symlink("thing", paths[0])
        os.symlink("nothing", paths[1])
        os.mkfifo(paths[2])
        os.mkdir(paths[3])
        for path in paths:
            with self.assertRaisesRegex(OSError, "it is a link, or no regular file"):
                gfile.open_to_append(path)
        self.assertNotIn("nothing", os.listdir(self.root))

    def test_write_below_a_file_is_refused(self):
        atomic.write_atomically(self.path, "a file, not a folder")
        inside = os.path.join(self.path, "inside")
        with self.assertRaisesRegex(UserError, rf"^{inside} cannot be written \([^\n]+\)\.$"):
            atomic.write_atomically(inside, "text")


class ObjectTest(FilesTestCase):
    def test_valid_object_round_trips_and_invalid_json_is_refused(self):
        json_objects.write_object(self.path, {"b": [[0, 1, 0.1]], "a": np.float32(0.5)})
        self.assertEqual(json_objects.read_object(self.path), {"a": 0.5, "b": [[0, 1, 0.1]]})
        for text in ("", "[]", '{"a": ', "[" * 100_000, '{"label": "\\ud800"}'):
            with open(self.path, "w") as writer:
                writer.write(text)
            with self.assertRaisesRegex(UserError, "thing: "):
                json_objects.read_object(self.path)

    def test_json_above_4_mb_is_refused(self):
        atomic.write_atomically(self.path, '{"a": 1}' + " " * ((4 << 20) - 8))
        self.assertEqual(json_objects.read_object(self.path), {"a": 1})
        with open(self.path, "a") as writer:
            writer.write(" ")
        with self.assertRaisesRegex(UserError, "thing has 4,194,305 bytes; expected at most"):
            json_objects.read_object(self.path)

    def test_errors_quote_blank_paths(self):
        with self.assertRaisesRegex(UserError, "^' ': cannot be read"):
            json_objects.read_object(" ")
        with self.assertRaisesRegex(UserError, "^' ' cannot be read"):
            gfile.sha256(" ")
        with self.assertRaisesRegex(UserError, "^'' cannot be written"), gfile.convert_write_errors(
            ""
        ):
            open("")  # noqa: SIM115  Opening fails.

    def test_duplicate_key_in_an_object_is_refused(self):
        for text in ('{"size": 8, "size": 64}', '{"a": [{"b": {"size": 8, "c": 1, "size": 8}}]}'):
            with open(self.path, "w") as writer:
                writer.write(text)
            with self.assertRaisesRegex(UserError, 'thing: .*key "size" twice'):
                json_objects.read_object(self.path)
        with open(self.path, "w") as writer:
            writer.write('{"a": {"size": 8}, "b": {"size": 64}}')
        self.assertEqual(json_objects.read_object(self.path), {"a": {"size": 8}, "b": {"size": 64}})

    def test_json_of_more_than_100_levels_is_refused(self):
        strings = json.dumps({"a\\": ['"[\\"[' * 200, "\\\\", "]}" * 200], '\\"': "[" * 200})
        for text in (
            "[" * 100 + "]" * 100,
            '{"a":' * 99 + "[]" + "}" * 99,
            strings,
            "[" + "[], {}, " * 300 + "[]]",
        ):
            self.assertEqual(json_objects.parse_json(text), json.loads(text))
        for text in (
            "[" * 101 + "]" * 101,
            '{"a":' * 2000 + "0" + "}" * 2000,
            '["\\\\", ' * 200_000,
            '{"\\"[[[":[' * 60 + "]}" * 60,
            "[" * 300 + '"' + '\\"' * 100_000,
        ):
            with self.assertRaisesRegex(ValueError, "more than 100 levels"):
                json_objects.parse_json(text)
        atomic.write_atomically(self.path, '{"a":' * 2000 + "0" + "}" * 2000)
        with self.assertRaisesRegex(UserError, "thing: .*100 levels"):
            json_objects.read_object(self.path)

    @unittest.skipUnless(hasattr(os, "mkfifo"), "needs pipes")
    def test_pipes_and_devices_are_refused_at_once(self):
        os.mkfifo(self.path)
        os.symlink("/dev/null", self.path + ".link")

        def write():  # A reader that waits for the pipe gets an object.
            with contextlib.suppress(BrokenPipeError), open(self.path, "w") as writer:
                writer.write("{}")

        threading.Thread(target=write, daemon=True).start()
        for path in (self.path, self.path + ".link"):
            for read in (json_objects.read_object, gfile.sha256):
                with self.assertRaisesRegex(UserError, r"\(it is not a regular file\)"):
                    read(path)

    def test_unsupported_scheme_is_not_reported_as_invalid_json(self):
        with self.assertRaisesRegex(UserError, "nosuch.* cannot read") as caught:
            json_objects.read_object("nosuch://folder/thing")
        self.assertNotIn("JSON", str(caught.exception))


class RemoteTest(tf.test.TestCase):
    @unittest.skipIf(tf.__version__.startswith("1."), "TensorFlow 1 has no ram://")
    def test_errors_for_remote_files_name_the_path(self):
        path = "ram://files_test/missing"
        with self.assertRaises(FileNotFoundError) as caught:
            gfile.size(path)
        self.assertEqual(caught.exception.filename, path)
        with self.assertRaises(FileNotFoundError) as caught, gfile.open_file(path) as reader:
            reader.read()
        self.assertEqual(caught.exception.filename, path)

    @unittest.skipIf(tf.__version__.startswith("1."), "TensorFlow 1 names no schemes")
    def test_scheme_that_tensorflow_lacks_is_read_by_fsspec(self):
        fsspec = pytest.importorskip("fsspec")
        root = "memory://files_test"
        memory = fsspec.filesystem("memory")
        for name, content in (("a/part-0.txt", "one\r\ntwo"), ("a/part-1.txt", "ä"), ("b.txt", "")):
            memory.pipe(f"{root}/{name}", content.encode())
        path = root + "/a/part-1.txt"
        self.assertEqual(
            [gfile.exists(path), gfile.isdir(path), gfile.size(path)], [True, False, 2]
        )
        self.assertEqual([gfile.exists(root), gfile.isdir(root + "/a")], [True, True])
        self.assertFalse(gfile.exists(root + "/c"))
        self.assertCountEqual(gfile.listdir(root), ["a", "b.txt"])
        found = [gfile.glob(root + "/a/part-*.txt"), gfile.glob("part-*.txt", root + "/a")]
        read = [[], []]
        for paths_found, contents in zip(found, read):
            for each in sorted(paths_found):
                with gfile.open_file(each) as reader:
                    contents.append(reader.read())
        self.assertEqual(read, [["one\r\ntwo", "ä"]] * 2)
        names = [(len(folders), sorted(names)) for _, folders, names in gfile.walk(root)]
        self.assertEqual(names, [(1, ["b.txt"]), (0, ["part-0.txt", "part-1.txt"])])
        before = gfile.stamp(path)
        self.assertEqual(gfile.stamp(path), before)
        memory.pipe(path, b"other")
        self.assertNotEqual(gfile.stamp(path), before)
        self.assertIsNone(gfile.stamp(root + "/c"))
        for write in (
            lambda: gfile.makedirs(root + "/d"),
            lambda: gfile.remove(path),
            lambda: gfile.copy(path, root + "/d"),
        ):
            with self.assertRaisesRegex(UserError, "memory://.*cannot write to memory://"):
                write()


class ExistsTest(FilesTestCase):
    def test_path_with_null_character_does_not_exist(self):
        for function in (gfile.exists, gfile.isdir):
            self.assertFalse(function(self.root + "\0b"))
        # Python 3.7 raises ValueError.
        raising = mock.Mock(side_effect=ValueError("embedded null byte"))
        with mock.patch.multiple(os.path, exists=raising, isdir=raising):
            for function in (gfile.exists, gfile.isdir):
                self.assertFalse(function("a\0b"))


class WholeFolderTest(FilesTestCase):
    def test_write_creates_and_replaces_folder(self):
        for text in ("first", "second"):
            self.write_folder(text)
            self.assertEqual((self.content("a"), self.content("b")), (text, text))
            self.assertEqual(os.listdir(self.root), ["thing"])

    def test_new_folder_keeps_no_files_of_the_old_one(self):
        self.write_folder("first")
        with atomic.atomic_folder(self.path + "/") as partial:
            open(os.path.join(partial, "c"), "w").close()
        self.assertEqual(os.listdir(self.path), ["c"])

    def test_write_replaces_links_and_not_the_folders_that_they_lead_to(self):
        elsewhere = tempfile.mkdtemp(dir=self.get_temp_dir())
        atomic.write_atomically(os.path.join(elsewhere, "a"), "a user's file")
        for name in ("thing", "thing.partial", "thing.replaced"):
            for target in (elsewhere, elsewhere + "/missing"):
                os.symlink(target, os.path.join(self.root, name))
                self.write_folder("text")
                self.assertEqual(self.content("a"), "text")
                self.assertEqual(os.listdir(self.root), ["thing"])
                self.assertFalse(os.path.islink(self.path))
                self.assertEqual(os.listdir(elsewhere), ["a"])
                gfile.rmtree(self.path)

    def test_removal_of_a_link_keeps_the_folder(self):
        self.write_folder("text")
        link = os.path.join(self.root, "link")
        os.symlink(self.path, link)
        gfile.rmtree(link)
        self.assertEqual(os.listdir(self.root), ["thing"])
        self.assertEqual(self.content("a"), "text")

    def test_error_during_write_keeps_old_folder(self):
        self.write_folder("first")
        with self.assertRaises(KeyError), atomic.atomic_folder(self.path) as partial:
            open(os.path.join(partial, "a"), "w").close()
            raise KeyError
        self.assertEqual((self.content("a"), self.content("b")), ("first", "first"))
        self.assertEqual(os.listdir(self.root), ["thing"])

    def test_second_concurrent_writer_is_refused(self):
        refused = r"thing cannot be written \(another process .*\)\.$"
        with atomic.atomic_folder(self.path) as partial:
            with open(os.path.join(partial, "a"), "w") as writer:
                writer.write("first")
            with self.assertRaisesRegex(UserError, refused):
                self.write_folder("second")
            with self.assertRaisesRegex(UserError, refused):
                atomic.recover(self.path)
        self.assertEqual(self.content("a"), "first")
        self.assertEqual(os.listdir(self.root), ["thing"])
        self.write_folder("third")
        self.assertEqual(self.content("a"), "third")

    def test_full_disk_is_reported_and_keeps_old_folder(self):
        self.write_folder("first")
        sentence = r"thing cannot be written \(No space left on device\)\.$"
        with self.assertRaisesRegex(UserError, sentence), atomic.atomic_folder(self.path):
            raise OSError(28, "No space left on device")
        self.assertEqual(self.content("a"), "first")

    def test_kill_at_any_step_leaves_a_complete_folder(self):
        # The three file system operations that replace a folder.
        steps = (("rename", 0), ("rename", 1), ("rmtree", 0))
        for operation, count in steps:
            for done in (False, True):
                with self.subTest(operation=operation, count=count, done=done):
                    self._kill(operation, count, done)

    def _kill(self, operation, count, done):
        self.write_folder("first")
        child = os.fork()
        if not child:
            self._die_at(operation, count, done)
            self.write_folder("second")
            os._exit(0)
        self.assertEqual(os.WEXITSTATUS(os.waitpid(child, 0)[1]), KILLED)
        atomic.recover(self.path)
        text = self.content("a")
        self.assertIn(text, ("first", "second"))
        self.assertEqual(self.content("b"), text)
        self.assertEqual(os.listdir(self.root), ["thing"])
        atomic.recover(self.path)
        gfile.rmtree(self.path)

    def _die_at(self, operation, count, done):
        """Ends this process before, or if `done` after, call `count` (from 0) of the operation."""
        module = atomic if hasattr(atomic, operation) else gfile
        original, calls = getattr(module, operation), []

        def dying(*arguments, **options):
            calls.append(arguments)
            if len(calls) <= count or done:
                original(*arguments, **options)
            if len(calls) > count:
                os._exit(KILLED)

        setattr(module, operation, dying)


class RecoverTest(FilesTestCase):
    def test_recover_changes_nothing_without_leftovers(self):
        atomic.recover(self.path)
        self.assertEqual(os.listdir(self.root), [])
        self.write_folder("first")
        atomic.recover(self.path)
        self.assertEqual(self.content("a"), "first")

    def test_recover_removes_partial_folder(self):
        os.mkdir(self.path + ".partial")
        atomic.recover(self.path)
        self.assertEqual(os.listdir(self.root), [])

    def test_recover_restores_replaced_folder(self):
        self.write_folder("first")
        os.rename(self.path, self.path + ".replaced")
        os.mkdir(self.path + ".partial")
        atomic.recover(self.path)
        self.assertEqual(os.listdir(self.root), ["thing"])
        self.assertEqual(self.content("b"), "first")

    def test_current_folder_finds_replaced_folder(self):
        self.assertEqual(atomic.current_folder(self.path + "/"), self.path)
        self.write_folder("first")
        self.assertEqual(atomic.current_folder(self.path), self.path)
        os.rename(self.path, self.path + ".replaced")
        self.assertEqual(atomic.current_folder(self.path), self.path + ".replaced")

    def test_recover_reports_missing_permission(self):
        self.write_folder("first")
        os.mkdir(self.path + ".partial")
        refused = PermissionError(errno.EACCES, "not yours")
        removal = mock.patch.object(gfile, "rmtree", side_effect=refused)
        with removal, self.assertRaisesRegex(UserError, "cannot be written .not yours."):
            atomic.recover(self.path)

    def test_failure_between_renames_keeps_old_folder(self):
        self.write_folder("first")
        rename = gfile.rename

        def failing(source, destination, **options):
            if source.endswith(".partial"):
                raise KeyboardInterrupt
            rename(source, destination, **options)

        interrupted = mock.patch.object(gfile, "rename", failing)
        with interrupted, self.assertRaises(KeyboardInterrupt):
            self.write_folder("second")
        self.assertEqual(os.listdir(self.root), ["thing"])
        self.assertEqual(self.content("a"), "first")


class SyncTest(FilesTestCase):
    """Checks the order of syncs and renames, which decides what survives a power loss."""

    def setUp(self):
        super().setUp()
        self.log = []
        fsync, rename = os.fsync, gfile.rename

        def noting_fsync(descriptor):
            self.log.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
            fsync(descriptor)

        def noting_rename(source, path, overwrite=False):
            self.log.append(("rename", path))
            rename(source, path, overwrite)

        self.enter(mock.patch.object(os, "fsync", noting_fsync))
        self.enter(mock.patch.object(gfile, "rename", noting_rename))

    def enter(self, patch):
        patch.start()
        self.addCleanup(patch.stop)

    def noted(self):
        """Returns the log since the last call, with names instead of paths."""
        log = [(what, os.path.relpath(path, self.root)) for what, path in self.log]
        self.log.clear()
        return log

    def test_file_is_synced_before_rename(self):
        atomic.write_atomically(self.path, "text")
        (first, partial), *rest = self.noted()
        self.assertEqual((first, partial[:6], partial[-8:]), ("fsync", "thing.", ".partial"))
        self.assertEqual(rest, [("rename", "thing"), ("fsync", ".")])

    def test_folder_content_is_synced_before_rename(self):
        new = [("fsync", "thing.partial/" + name) for name in ("a", "b")]
        new.append(("fsync", "thing.partial"))
        self.write_folder("first")
        made, *noted = self.noted()
        self.assertEqual(made, ("fsync", "."))
        self.assertEqual(sorted(noted[:3]), sorted(new))
        self.assertEqual(noted[3:], [("rename", "thing"), ("fsync", ".")])
        self.write_folder("second")
        noted = self.noted()[4:]
        renames = [("rename", "thing.replaced"), ("rename", "thing")]
        self.assertEqual(noted, [*renames, ("fsync", "."), ("fsync", ".")])
        with atomic.atomic_folder(self.path) as partial:
            os.makedirs(os.path.join(partial, "c", "d"))
            atomic.write_atomically(os.path.join(partial, "c", "d", "e"), "text")
            self.noted()
        inside = {("fsync", "thing.partial" + name) for name in ("", "/c", "/c/d", "/c/d/e")}
        self.assertEqual(set(self.noted()[:4]), inside)

    def test_makedirs_syncs_parents_of_new_folders(self):
        gfile.makedirs(os.path.join(self.path, "a", "b"))
        self.assertEqual(set(self.noted()), {("fsync", name) for name in (".", "thing", "thing/a")})
        gfile.makedirs(os.path.join(self.path, "a"))
        self.assertEqual(self.noted(), [])

    def test_checkpoint_is_synced_before_its_record_is_written(self):
        ends = (".data-00000-of-00001", ".index")
        with tf.Graph().as_default(), tf.Session() as session:
            session.run(tf.Variable(np.zeros(3), name="a").initializer)
            saver = checkpoints.Saver(max_to_keep=1)
            for step in (1, 2):
                saver.save(session, self.path, step, write_meta_graph=False)
                log = self.noted()
                self.assertEqual(
                    log[:3], [*(("fsync", f"thing-{step}{end}") for end in ends), ("fsync", ".")]
                )
                self.assertEqual(log[4:], [("rename", "checkpoint"), ("fsync", ".")])
        self.assertEqual(
            set(os.listdir(self.root)), {"checkpoint", *("thing-2" + end for end in ends)}
        )
        checkpoints.write(self.path, {"a": np.zeros(3)})
        parts = [[("fsync", "thing.partial" + end)] for end in ends]
        parts += [
            [("fsync", "thing.partial" + end), ("rename", "thing" + end), ("fsync", ".")]
            for end in ends
        ]
        self.assertEqual(self.noted(), sum(parts, []))

    def test_disk_errors_of_sync_are_reported(self):
        for error, is_refused in ((5, True), (28, True), (22, False)):
            failing = mock.patch.object(os, "fsync", side_effect=OSError(error, "It fails"))
            with failing, contextlib.ExitStack() as stack:
                if is_refused:
                    stack.enter_context(
                        self.assertRaisesRegex(UserError, r"thing cannot be written \(It fails\)")
                    )
                atomic.write_atomically(self.path, str(error))
        self.assertEqual(self.content(), "22")
        self.assertEqual(os.listdir(self.root), ["thing"])

    def test_write_succeeds_in_an_unlistable_folder(self):
        """An unreadable folder cannot be synced; an unreadable file is still an error."""
        opened = os.open

        def without_leave(path, *arguments, **options):
            if os.path.isdir(path) == self.refuses_folders:
                raise PermissionError(errno.EACCES, "No leave", path)
            return opened(path, *arguments, **options)

        with mock.patch.object(os, "open", without_leave):
            self.refuses_folders = True
            atomic.write_atomically(self.path, "written")
            self.refuses_folders = False
            with self.assertRaisesRegex(UserError, "cannot be written .No leave"):
                atomic.write_atomically(self.path, "not written")
        self.assertEqual(self.content(), "written")


class LockTest(FilesTestCase):
    def setUp(self):
        super().setUp()
        self.held = self.path + locks.HELD

    def test_lock_is_exclusive_unless_all_holders_share_it(self):
        with open(self.path, "w") as a, open(self.path) as b:
            lock_by = [functools.partial(locks.lock, file.fileno(), self.held) for file in (a, b)]
            self.assertTrue(lock_by[0]())
            self.assertFalse(lock_by[1]())
            self.assertFalse(lock_by[1](shared=True))
            self.assertTrue(lock_by[0](shared=True))
            self.assertTrue(lock_by[1](shared=True))
            self.assertFalse(lock_by[0]())
            b.close()
            self.assertTrue(lock_by[0]())
        self.assertEqual(os.listdir(self.root), ["thing"])

    @parameterized.parameters(errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
    def test_without_locks_the_creator_of_a_file_holds_the_lock(self, code):
        lock = functools.partial(locks.lock, 0, self.held)
        with mock.patch.object(fcntl, "flock", side_effect=OSError(code, "No locks")):
            self.assertTrue(lock())
            self.assertTrue(lock())  # Converted.
            with mock.patch.dict(locks._HELD, clear=True):  # As in another process.
                with mock.patch.object(os, "getpid", return_value=os.getppid()):
                    self.assertFalse(lock())
                with self.assertRaisesRegex(UserError, "left of process .* ended; remove it"):
                    lock()  # The process of the same id in a restarted container.
                self.assertFalse(lock(shared=True))
                locks.unlock(self.held)
                self.assertTrue(os.path.exists(self.held))
            self.assertIn(f" (process {os.getpid()} on ", locks.holder(self.held))
            self.assertIn(f"; if it was killed, remove {self.held})", locks.holder(self.held))
            locks.unlock(self.held)
            self.assertEqual(locks.holder(self.held), "")
            self.assertTrue(lock(shared=True))
            self.assertFalse(os.path.exists(self.held))
            for host, is_left in ((socket.gethostname(), True), ("elsewhere", False)):
                atomic.write_atomically(self.held, f"{self.ended_process()} {host}")
                if is_left:
                    with self.assertRaisesRegex(UserError, "left of process .* ended; remove it"):
                        lock()
                else:
                    self.assertFalse(lock())

    def test_an_exit_ends_the_lock_without_locks(self):
        program = f"""if True:
            import errno, fcntl, os, sys
            sys.path.insert(0, {paths.PROJECT!r})
            from adapter_bert.files import locks
            def flock(*_):
                raise OSError(errno.ENOLCK, "No locks")
            fcntl.flock = flock
            assert locks.lock(0, {self.held!r})
            if os.fork():
                os.wait()
                assert os.path.exists({self.held!r})
            """
        subprocess.run([sys.executable, "-c", program], check=True)
        self.assertFalse(os.path.exists(self.held))

    def ended_process(self):
        process = subprocess.Popen(["true"])
        process.wait()
        return process.pid


class MegabytesTest(FilesTestCase):
    def test_readable_size_sums_files_with_the_prefix(self):
        for name, size in (("a.i", 40000), ("a.data", 1100000), ("a.data1", 60000), ("b", 5000000)):
            with open(os.path.join(self.root, name), "wb") as writer:
                writer.write(bytes(size))
        os.symlink("nothing", os.path.join(self.root, ".#a"))
        for prefix, expected in (("a.", "1.2 MB"), ("", "6.2 MB"), ("a.data", "1.1 MB")):
            self.assertEqual(gfile.readable_size(os.path.join(self.root, prefix)), expected)
