"""Tests of jobs.py in a cluster: what each worker brings to the meeting before the training."""

import json
import os
import shutil
import tempfile
import unittest
from unittest import mock

import tensorflow.compat.v1 as tf

import cluster
import training
from adapter_tests.script_cases import ScriptTestCase
from errors import UserError


@unittest.skipIf(tf.__version__.startswith("1."), "--distribution needs TensorFlow 2")
class ClusterTest(ScriptTestCase):
    """Every worker ends where it would meet the others."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.trained = os.path.join(cls.root, "trained")
        code, _, stderr = cls.call(cls.trained, "--do_train")
        assert code is None, stderr

    def meet(self, index, *arguments, then=None, output_dir=None):
        """What `then`, which is called as `cluster.met` without the workers, returns."""
        found = []

        def met(workers, *args):
            self.assertEqual(workers.index, index)
            found.append(then(*args) if then else args[0]())
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
        chief = self.meet(0)
        self.assertIsNone(cluster._difference("worker 1", self.meet(1), chief))
        for flag, name in (
            ("--class_weights=1,2", "training: class_weights"),
            ("--adapter_normalization=layer", "model: adapter_normalization"),
        ):
            difference = cluster._difference("worker 1", self.meet(1, flag), chief)
            self.assertIn(f"another {name} than the chief", difference)

    def test_another_folder_before_there_is_a_checkpoint(self):
        chief = self.meet(0)
        other = self.meet(1, output_dir=os.path.join(self.folder, "other"))
        difference = cluster._difference("worker 1", other, chief)
        self.assertIn("another settings.json in the shared --output_dir than", difference)

    def test_after_the_last_step_nobody_is_needed(self):
        def needs_all(facts, seconds, needed, clean_up):
            return needed

        self.assertTrue(self.meet(0, then=needs_all))
        shutil.rmtree(self.output_dir)
        shutil.copytree(self.trained, self.output_dir)
        self.assertFalse(self.meet(0, then=needs_all))
        with mock.patch.object(training.Runner, "last_step", side_effect=self.fail):
            self.meet(1, then=needs_all)  # The chief may be clearing the folder.

    def test_who_starts_again_leaves_no_copy_of_the_given_adapter(self):
        scratch = os.path.join(self.folder, "scratch")
        os.mkdir(scratch)

        def left(facts, seconds, needed, clean_up):
            before = os.listdir(scratch)
            clean_up()
            return len(before), len(os.listdir(scratch))

        with mock.patch.object(tempfile, "tempdir", scratch):
            self.assertEqual(
                self.meet(1, "--adapter=" + os.path.join(self.trained, "adapter"), then=left),
                (1, 0),
            )


if __name__ == "__main__":
    tf.test.main()
