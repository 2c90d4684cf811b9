"""Tests of feature_cache.py: caching, rebuilding, and failures that do not end the run."""

import errno
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.files import gfile, paths
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks import table_readers
from adapter_bert.training import feature_cache
from adapter_tests.support import mutations

# Builds an entry once its input is closed.
_BUILDER = """
import sys
import numpy as np
from adapter_bert.training import feature_cache

def build(add):
    print("builds", flush=True)
    sys.stdin.read()
    add({"ids": np.arange(3)})

feature_cache.load_or_build(sys.argv[1], "key", build)
"""


class CacheTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "features")
        self.made = 0

    def make(self, add):
        self.made += 1
        add({"ids": np.arange(5, dtype=np.int32), "pairs": np.ones([2, 3])})
        add({"ids": np.zeros([0], np.int32), "pairs": np.zeros([1, 3]), "none": np.zeros([0, 4])})
        add({"ids": np.array([9, 7], np.int32)})

    EXPECTED = {
        "ids": np.array([0, 1, 2, 3, 4, 9, 7], np.int32),
        "pairs": np.array([[1.0] * 3, [1.0] * 3, [0.0] * 3]),
        "none": np.zeros([0, 4]),
    }

    def cached(self, key="key", folder=None):
        found = feature_cache.load_or_build(folder or self.folder, key, self.make)
        self.assertEqual(set(found), set(self.EXPECTED))
        for name, value in self.EXPECTED.items():
            self.assertEqual(found[name].dtype, value.dtype)
            np.testing.assert_array_equal(found[name], value)
        return self.made

    def test_arrays_are_built_once_per_key(self):
        self.assertEqual([self.cached(), self.cached(), self.cached("other")], [1, 1, 2])
        self.assertEqual(sorted(os.listdir(self.folder)), ["key", "other"])

    def test_arrays_are_not_cached_without_a_folder(self):
        found = [feature_cache.load_or_build(None, "key", self.make)["ids"] for _ in range(2)]
        self.assertEqual(self.made, 2)
        for ids in found:
            np.testing.assert_array_equal(ids, self.EXPECTED["ids"])
        self.assertFalse(os.path.exists(self.folder))

    def test_damaged_files_are_rebuilt(self):
        self.cached()
        with open(os.path.join(self.folder, "key", "index.json")) as reader:
            index = reader.read()
        for name in ("ids.npy", "pairs.npy", "index.json"):
            path = os.path.join(self.folder, "key", name)
            with open(path, "rb") as reader:
                whole = reader.read()
            middle = len(whole) // 2
            flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
            fewer = index.replace('"ids"', '"idx"', 1).encode()
            contents = (b"", b"[]", b"[" * 100_000, whole[:-1], whole + b"0", flipped, fewer, None)
            for content in contents:
                if content is None:
                    os.remove(path)
                else:
                    with open(path, "wb") as writer:
                        writer.write(content)
                before = self.made
                with self.subTest(name=name, content=content), self.assertLogs("absl", "WARNING"):
                    self.assertEqual(self.cached(), before + 1)
                self.assertEqual(self.cached(), before + 1)

    def test_the_entry_of_another_key_is_rebuilt(self):
        def make_others(add):
            add({"ids": np.zeros(7, np.int32), "pairs": np.ones([3, 3]), "none": np.zeros([0, 4])})

        feature_cache.load_or_build(self.folder, "other", make_others)
        os.rename(os.path.join(self.folder, "other"), os.path.join(self.folder, "key"))
        with self.assertLogs("absl", "WARNING") as log:
            self.assertEqual(self.cached(), 1)
        (line,) = log.output
        self.assertRegex(line, f"{self.folder}/key .*the key other")

    def test_arrays_are_read_only_mapped_npy_files(self):
        found = feature_cache.load_or_build(self.folder, "key", self.make)
        for name, value in found.items():
            self.assertIsInstance(value, np.memmap)
            with self.assertRaises(ValueError):
                value.flags.writeable = True
            file = os.path.join(self.folder, "key", name + ".npy")
            np.testing.assert_array_equal(np.load(file), value)

    def test_unremovable_damaged_entry_disables_caching(self):
        """Such an entry may be in a folder of another user."""
        self.cached()
        entry, remove = os.path.join(self.folder, "key"), shutil.rmtree
        with open(os.path.join(entry, "ids.npy"), "wb"):
            pass

        def remove_others(path, *args, **options):
            if path != entry:
                remove(path, *args, **options)

        with mock.patch.object(shutil, "rmtree", remove_others), self.assertLogs(
            "absl", "WARNING"
        ) as log:
            self.assertEqual(self.cached(), 2)
        self.assertIn("Features are not cached", log.output[-1])

    def test_digest_of_an_unchanged_large_file_is_cached(self):
        path = os.path.join(self.get_temp_dir(), "large")
        with open(path, "wb") as writer:
            writer.write(b"a" * 3_000_000)

        def digest(**options):
            with mock.patch.object(feature_cache, "_LARGE_BYTES", 1):
                return feature_cache.file_sha256(self.folder, path, **options)

        before, stat = gfile.sha256(path), os.stat(path)
        self.assertEqual([digest(), digest()], [before] * 2)
        with open(path, "r+b") as writer:
            writer.seek(100_000)  # Not in a sample.
            writer.write(b"b")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        after = gfile.sha256(path)
        self.assertEqual([digest(), digest(verify=True)], [before, after])
        os.utime(path, (1, 1))
        self.assertEqual(digest(), after)

    def test_abandoned_folders_are_removed_after_a_day(self):
        old, young, others = (64 * "a" + ".abcdefgh", 64 * "b" + ".abcdefgh", "notes.txt")
        for name in (old, young, others):
            os.makedirs(os.path.join(self.folder, name))
        for name in (old, others):
            os.utime(os.path.join(self.folder, name), (0, 0))
        self.cached()
        self.assertEqual(sorted(os.listdir(self.folder)), sorted([young, others, "key"]))

    def test_build_errors_are_raised_unchanged(self):
        def fail(add):
            add({"ids": np.arange(3)})
            raise UserError("The data are wrong.")

        with self.assertRaisesRegex(UserError, "The data are wrong"):
            feature_cache.load_or_build(self.folder, "key", fail)
        self.assertEqual(os.listdir(self.folder), [])

    def test_concurrent_builds_leave_one_entry(self):
        def slow(add):
            self.cached()
            self.make(add)

        found = feature_cache.load_or_build(self.folder, "key", slow)
        np.testing.assert_array_equal(found["ids"], self.EXPECTED["ids"])
        self.assertEqual(os.listdir(self.folder), ["key"])

    def test_entry_that_another_process_builds_is_awaited(self):
        for is_killed in (False, True):
            folder, built = os.path.join(self.folder, str(is_killed)), []
            process = subprocess.Popen(
                [sys.executable, "-c", _BUILDER, folder],
                cwd=paths.PROJECT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self.addCleanup(process.kill)

            def load(folder=folder, built=built):
                entry = feature_cache.load_or_build(
                    folder, "key", lambda add: add({"ids": np.array([built.append(1) or 5])})
                )
                built.append(entry["ids"].tolist())

            self.assertEqual(process.stdout.readline(), b"builds\n")
            thread = threading.Thread(target=load)
            thread.start()
            thread.join(0.5)
            self.assertEmpty(built)
            if is_killed:
                process.kill()
            process.communicate()  # Closes its input.
            thread.join(60)
            self.assertEqual(built, [1, [5]] if is_killed else [[0, 1, 2]])

    def test_unwritable_folder_disables_caching(self):
        with open(self.folder, "w"):
            pass  # A file is in its place.
        with self.assertLogs("absl", "WARNING") as log:
            self.assertEqual(self.cached(), 1)
        self.assertIn("Features are not cached", log.output[0])

    def test_full_temporary_folder_raises_user_error(self):
        full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
        expected = r"\AThe folder for temporary files cannot be written \(.*No space.*\)\.\Z"
        with self.assertRaisesRegex(UserError, expected):
            feature_cache.load_or_build(None, "key", build=full)
        nowhere = mock.patch.object(tempfile, "TemporaryDirectory", full)
        with nowhere, self.assertRaisesRegex(UserError, expected):
            feature_cache.load_or_build(None, "key", self.make)

    def test_folder_is_private(self):
        self.cached()
        self.assertEqual(stat.S_IMODE(os.stat(self.folder).st_mode), 0o700)
        for mode, private in ((0o755, 0o755), (0o775, 0o700), (0o702, 0o700), (0o2777, 0o700)):
            os.chmod(self.folder, mode)  # 0o775 as earlier versions made it under umask 002.
            self.assertEqual(self.cached(), 1)
            self.assertEqual(stat.S_IMODE(os.stat(self.folder).st_mode) & 0o777, private)

    def test_folder_that_others_may_write_is_refused_or_not_used(self):
        self.cached()
        stranger = mock.patch.object(os, "geteuid", return_value=os.geteuid() + 1)
        failing = mock.patch.object(os, "chmod", side_effect=PermissionError("read-only"))
        for mode, patch, reason in (
            (0o700, stranger, "belongs to another user"),
            (0o775, failing, "is writable .*chmod go-w"),
            (0o1777, failing, "is writable .*chmod go-w"),
        ):
            os.chmod(self.folder, mode)
            with patch:
                with self.assertRaisesRegex(UserError, f"dir={self.folder} {reason}"):
                    self.cached()
                made, default = self.made, mock.Mock(return_value=self.folder)
                unnamed = mock.patch.object(paths, "cache_folder", default)
                with unnamed, self.assertLogs("absl", "WARNING") as logs:
                    self.assertEqual(self.cached(), made + 1)
                (line,) = logs.output
                self.assertRegex(line, f"not cached: .*{reason}")
        os.chmod(self.folder, 0o1777)  # A place like /tmp stays as it is.
        with self.assertRaisesRegex(UserError, "is writable"):
            self.cached()

    def test_entry_of_another_user_is_rebuilt(self):
        self.cached()
        is_own = mock.patch.object(gfile, "is_own", lambda path: path == self.folder)
        with is_own, self.assertLogs("absl", "WARNING") as logs:
            self.assertEqual(self.cached(), 2)
        self.assertRegex(logs.output[0], "Rebuilding .*another user")

    def test_remote_folder_is_refused(self):
        with self.assertRaisesRegex(UserError, "--feature_cache_dir=gs://a: .* local"):
            feature_cache.load_or_build("gs://a", "key", self.make)


class KeyTest(tf.test.TestCase):
    def test_key_depends_on_every_part_and_on_the_code(self):
        parts = ["a", None, 5, ("b", "c"), "\ud800"]
        keys = [feature_cache.key_of(parts, [table_readers])]
        for place in range(len(parts)):
            changed = [*parts[:place], "other", *parts[place + 1 :]]
            keys.append(feature_cache.key_of(changed, [table_readers]))
        keys.append(feature_cache.key_of(parts, [feature_cache]))
        keys.append(feature_cache.key_of(parts[::-1], [table_readers]))
        self.assertLen(set(keys), len(keys))
        self.assertEqual(feature_cache.key_of(iter(parts), [table_readers]), keys[0])


class DamagedFilesTest(tf.test.TestCase):
    def test_a_damaged_cache_gives_the_arrays_that_were_made(self):
        arrays = {"tokens": np.arange(50, dtype=np.int32), "label_ids": np.ones((7, 2), np.float32)}

        def cached(folder):
            return feature_cache.load_or_build(folder, "key", lambda add: add(arrays))

        def read(folder):
            values = cached(folder)
            self.assertEqual(set(values), set(arrays))
            for name, value in arrays.items():
                np.testing.assert_array_equal(values[name], value)

        mutations.check(mutations.written_by(cached), read, refuses=False)
