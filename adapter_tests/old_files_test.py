"""Files of earlier versions are read: support/old_files has a few, written at c5f2c13."""

import json
import os

import tensorflow.compat.v1 as tf

from adapter_bert.common import paths
from adapter_bert.experiments import records
from adapter_bert.formats import task_adapter

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "support", "old_files")


class OldFilesTest(tf.test.TestCase):
    def test_a_task_adapter(self):
        with open(os.path.join(FOLDER, "expected.json")) as reader:
            expected = json.load(reader)
        adapter = task_adapter.load(os.path.join(FOLDER, "adapter"))
        self.assertEqual(task_adapter.tensors_digest(adapter), expected["tensors"])
        self.assertEqual(adapter.description.task, expected["task"])
        self.assertEqual(list(adapter.description.labels), expected["labels"])
        self.assertEqual(adapter.description.adapter.depth, 2)
        self.assertTrue(adapter.description.tuning.train_pooler)

    def test_records_of_sweeps(self):
        """Those of results/ were written over months, the last before the modules moved."""
        read = records.read(os.path.join(paths.PROJECT, "results", "records"))
        self.assertGreater(len([r for r in read if r["status"] == records.DONE]), 250)


if __name__ == "__main__":
    tf.test.main()
