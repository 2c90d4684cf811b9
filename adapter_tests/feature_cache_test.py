"""Tests of feature_cache.py: what is made once, what is made anew, and what costs no run."""

import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

import feature_cache
import tables


class CacheTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "features")
        self.made = 0

    def make(self):
        self.made += 1
        return {"ids": np.arange(5, dtype=np.int32), "length": np.array(7), "none": np.zeros([0])}

    def cached(self, key="key"):
        found = feature_cache.cached(self.folder, key, self.make)
        for name, value in self.make().items():
            self.assertEqual(found[name].dtype, value.dtype)
            np.testing.assert_array_equal(found[name], value)
        self.made -= 1  # The one above.
        return self.made

    def test_made_once(self):
        self.assertEqual([self.cached(), self.cached(), self.cached("other")], [1, 1, 2])
        self.assertEqual(sorted(os.listdir(self.folder)), ["key.npz", "other.npz"])

    def test_a_damaged_file_is_made_anew(self):
        self.cached()
        path = os.path.join(self.folder, "key.npz")
        with open(path, "rb") as reader:
            whole = reader.read()
        middle = whole.index(np.arange(5, dtype=np.int32).tobytes()) + 4
        damaged = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
        for content in (b"", b"no archive", whole[:-10], damaged):
            with open(path, "wb") as writer:
                writer.write(content)
            before = self.made
            with self.assertLogs("absl", "WARNING"):
                self.assertEqual(self.cached(), before + 1)
            self.assertEqual(self.cached(), before + 1)

    def test_a_folder_that_cannot_be_written(self):
        with open(self.folder, "w"):
            pass  # A file is in its place.
        with self.assertLogs("absl", "WARNING") as log:
            self.assertEqual(self.cached(), 1)
        self.assertIn("Features are not kept", log.output[0])


class KeyTest(tf.test.TestCase):
    def test_it_depends_on_every_part_and_on_the_code(self):
        parts = ["a", None, 5, ("b", "c"), "\ud800"]
        keys = [feature_cache.key_of(parts, [tables])]
        for place in range(len(parts)):
            changed = [*parts[:place], "other", *parts[place + 1 :]]
            keys.append(feature_cache.key_of(changed, [tables]))
        keys.append(feature_cache.key_of(parts, [feature_cache]))
        keys.append(feature_cache.key_of(parts[::-1], [tables]))
        self.assertLen(set(keys), len(keys))
        self.assertEqual(feature_cache.key_of(iter(parts), [tables]), keys[0])


if __name__ == "__main__":
    tf.test.main()
