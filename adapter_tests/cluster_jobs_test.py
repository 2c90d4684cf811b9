"""Tests of jobs.py in a cluster: what each worker brings to the meeting before the training."""

import json
import os
import unittest
from unittest import mock

import tensorflow.compat.v1 as tf

import cluster
from adapter_tests.script_cases import ScriptTestCase
from errors import UserError


@unittest.skipIf(tf.__version__.startswith("1."), "--distribution needs TensorFlow 2")
class ClusterTest(ScriptTestCase):
    """Every worker ends where it would meet the others."""

    def facts(self, index, *arguments, output_dir=None):
        """What a worker tells the others."""
        found = []

        def met(workers, facts, *_):
            self.assertEqual(workers.index, index)
            found.append(facts())
            raise UserError("They have met.")

        addresses = {"worker": ["a:1", "b:1"]}
        config = {"cluster": addresses, "task": {"type": "worker", "index": index}}
        environ = mock.patch.dict(os.environ, TF_CONFIG=json.dumps(config))
        with environ, mock.patch.object(cluster, "met", met):
            flags = ["--do_train", "--distribution=multi_worker", *arguments]
            code, _, stderr = self.call(output_dir or self.output_dir, *flags)
        self.assert_one_sentence(code, stderr, ["They have met"])
        return found[0]

    def test_settings_that_only_another_worker_has(self):
        chief = self.facts(0)
        self.assertIsNone(cluster._difference("worker 1", self.facts(1), chief))
        for flag, name in (
            ("--class_weights=1,2", "training: class_weights"),
            ("--adapter_normalization=layer", "model: adapter_normalization"),
        ):
            difference = cluster._difference("worker 1", self.facts(1, flag), chief)
            self.assertIn(f"another {name} than the chief", difference)

    def test_another_folder_before_there_is_a_checkpoint(self):
        chief = self.facts(0)
        other = self.facts(1, output_dir=os.path.join(self.folder, "other"))
        difference = cluster._difference("worker 1", other, chief)
        self.assertIn("another settings.json in the shared --output_dir than", difference)


if __name__ == "__main__":
    tf.test.main()
