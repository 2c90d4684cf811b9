"""Tests of stored_predictions.py: arrays in files, and what a killed process leaves."""

import json
import os
import tempfile
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.training import stored_predictions
from adapter_bert.training.stored_predictions import StoredPredictions

VALUES = {"loss": np.arange(7, dtype=np.float32), "p": np.arange(21.0).reshape(7, 3)}
ORDER = np.array([3, 6, 0, 5, 1, 2, 4])


class StoredPredictionsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.cache = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "features")
        seconds = mock.patch.object(stored_predictions, "_SECONDS_BETWEEN_RECORDS", -1)
        seconds.start()
        self.addCleanup(seconds.stop)

    def open(self, key="key", num_rows=7):
        return StoredPredictions(self.cache, key, num_rows)

    def add(self, stored, positions):
        for start in range(0, len(positions), 2):
            indices = ORDER[positions[start : start + 2]]
            stored.add(indices, {name: values[indices] for name, values in VALUES.items()})

    def check(self, stored):
        self.assertEqual((sorted(stored), stored.num_done), (["loss", "p"], 7))
        for name, values in VALUES.items():
            self.assertEqual(stored[name].dtype, values.dtype)
            np.testing.assert_array_equal(stored[name], values)

    def test_rows_are_stored_in_any_order(self):
        stored = self.open()
        self.add(stored, range(7))
        self.check(stored)
        stored.remove()
        self.assertEqual(os.listdir(self.cache), [])
        self.check(stored)  # Its files stay readable.

    def test_later_process_continues(self):
        killed = self.open()
        self.add(killed, range(4))
        killed.close()
        stored = self.open()
        self.assertEqual(stored.num_done, 4)
        self.add(stored, range(4, 7))
        self.check(stored)

    def test_rows_after_the_last_record_are_predicted_again(self):
        killed = self.open()
        self.add(killed, range(2))
        with mock.patch.object(stored_predictions, "_SECONDS_BETWEEN_RECORDS", 1000):
            self.add(killed, range(2, 6))
        killed.close()
        stored = self.open()
        self.assertEqual(stored.num_done, 2)
        self.add(stored, range(2, 7))
        self.check(stored)

    def test_other_keys_and_processes_have_their_own_files(self):
        first = self.open()
        self.add(first, range(4))
        self.assertEqual(self.open("other").num_done, 0)
        second = self.open()  # The first holds the folder's lock.
        self.assertEqual(second.num_done, 0)
        self.add(second, range(7))
        self.check(second)
        self.add(first, range(4, 7))
        self.check(first)

    def test_damaged_files_are_not_used(self):
        killed = self.open()
        self.add(killed, range(4))
        killed.close()
        folder = os.path.join(self.cache, "predictions-key")
        with open(os.path.join(folder, "progress.json")) as reader:
            progress = json.load(reader)
        for name, content in (
            ("p.npy", b"x"),
            ("p.npy", None),
            ("progress.json", b"["),
            ("progress.json", b"{}"),
            ("progress.json", json.dumps({**progress, "names": 3}).encode()),
        ):
            path = os.path.join(folder, name)
            with open(path, "rb") as reader:
                before = reader.read()
            if content is None:
                os.remove(path)
            else:
                with open(path, "wb") as writer:
                    writer.write(content)
            stored = self.open()
            self.assertEqual((stored.num_done, dict(stored)), (0, {}))
            stored.close()
            with open(path, "wb") as writer:
                writer.write(before)
        longer = self.open(num_rows=8)
        self.assertEqual(longer.num_done, 0)
        longer.close()
        self.assertEqual(self.open().num_done, 4)

    def test_nothing_is_left_without_a_key(self):
        stored = StoredPredictions(self.cache, None, 7)
        self.add(stored, range(7))
        self.check(stored)
        self.assertFalse(os.path.exists(self.cache))

    def test_abandoned_predictions_are_removed(self):
        self.add(self.open("old"), range(2))
        self.add(self.open("young"), range(2))
        os.utime(os.path.join(self.cache, "predictions-old"), (1, 1))
        stored = self.open()
        self.assertNotIn("predictions-old", os.listdir(self.cache))
        self.assertIn("predictions-young", os.listdir(self.cache))
        stored.close()

    def test_rows_of_shorter_batches_are_filled(self):
        stored = self.open(num_rows=3)
        first = {"a": np.ones([1, 4], np.float32), "tags": np.ones([1, 4, 2], np.int32)}
        stored.add(np.array([1]), {**first, "loss": np.array([5.0])})
        later = {"a": np.ones([2, 2], np.float32), "tags": np.ones([2, 2, 2], np.int32)}
        stored.add(np.array([2, 0]), {**later, "loss": np.array([7.0, 3.0])})
        rows = list(stored_predictions.rows_of(stored))
        self.assertEqual([row["loss"] for row in rows], [3.0, 5.0, 7.0])
        self.assertAllEqual(rows[0]["a"], [1, 1, -np.inf, -np.inf])
        self.assertAllEqual(rows[1]["a"], [1, 1, 1, 1])
        self.assertAllEqual(rows[2]["tags"], [[1, 1], [1, 1], [0, 0], [0, 0]])
        self.assertEqual(rows[2]["tags"].dtype, np.int32)

    def test_pieces_have_all_rows(self):
        for num_rows in (1, 3, 7, 100):
            parts = list(stored_predictions.pieces(VALUES, num_rows))
            self.assertEqual([start for start, _ in parts], list(range(0, 7, num_rows)))
            np.testing.assert_array_equal(np.concatenate([p["p"] for _, p in parts]), VALUES["p"])


if __name__ == "__main__":
    tf.test.main()
