"""Tests of finetuning.py in a cluster: the settings each worker brings to the rendezvous."""

import json
import os
import shutil
import tempfile
import unittest
from unittest import mock

import tensorflow.compat.v1 as tf

from adapter_bert.common import devices
from adapter_bert.common.errors import UserError
from adapter_bert.training import cluster, estimator
from adapter_tests.support.script_cases import ScriptTestCase


@unittest.skipIf(tf.__version__.startswith("1."), "--distribution needs TensorFlow 2")
class ClusterTest(ScriptTestCase):
    """Every worker ends at its rendezvous."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.trained = os.path.join(cls.root, "trained")
        code, _, stderr = cls.call(cls.trained, "--do_train")
        assert code is None, stderr

    def rendezvous(self, index, *arguments, then=None):
        """What `then` makes of the arguments of `cluster.rendezvous` from `settings` on.

        By default a worker's settings.
        """
        found, then = [], then or (lambda settings, decided, *rest: settings(decided))

        def rendezvous(workers, output_dir, *rest):
            self.assertEqual((workers.index, output_dir), (index, self.output_dir))
            found.append(then(*rest))
            raise UserError("All have come.")

        addresses = {"worker": ["a:1", "b:1"]}
        config = {"cluster": addresses, "task": {"type": "worker", "index": index}}
        environ = mock.patch.dict(os.environ, TF_CONFIG=json.dumps(config))
        with environ, mock.patch.object(cluster, "rendezvous", rendezvous):
            flags = ["--do_train", "--distribution=multi_worker", *arguments]
            code, _, stderr = self.call(self.output_dir, *flags)
        self.assert_one_sentence(code, stderr, ["All have come"])
        return found[0]

    def test_settings_that_differ(self):
        chief = self.rendezvous(0)
        self.assertEqual(self.rendezvous(1), chief)
        for flag, name in (
            ("--class_weights=1,2", "training: class_weights"),
            ("--adapter_normalization=layer", "model: adapter_normalization"),
        ):
            other = self.rendezvous(1, flag)
            differing = {key for key in {**chief, **other} if chief.get(key) != other.get(key)}
            self.assertIn(name, differing)

    def test_the_chief_measures_for_all(self):
        def decided(settings, decided, *rest):
            return decided["precision"], settings({"precision": "bfloat16"})["training: precision"]

        half = {"float32": 2.0, "bfloat16": 1.0}
        measured = mock.Mock(return_value=half)
        processor = {"has_bfloat16": lambda: True, "product_seconds": measured}
        with mock.patch.multiple(devices, **processor):
            self.assertEqual(self.rendezvous(0, then=decided), ("bfloat16", "bfloat16"))
            self.assertEqual(measured.call_count, 1)
            _, workers = self.rendezvous(1, then=decided)
            self.assertEqual(workers, "bfloat16")
            _, workers = self.rendezvous(1, "--precision=float32", then=decided)
            self.assertEqual(workers, "float32")  # It differs, and is refused.
        self.assertEqual(measured.call_count, 1)

    def test_a_worker_that_takes_the_chiefs_precision_trains_the_chiefs_run(self):
        def trained(settings, decided, *rest):
            settings({"precision": "bfloat16"})
            (model, *_), _ = runner.call_args
            return model.precision, model.run_identity

        half = {"float32": 2.0, "bfloat16": 1.0}
        processor = {"has_bfloat16": lambda: True, "product_seconds": lambda *_: half}
        spied = mock.patch.object(estimator, "Runner", wraps=estimator.Runner)
        with mock.patch.multiple(devices, **processor), spied as runner:
            chief = self.rendezvous(0, then=trained)
            self.assertEqual(chief[0], "bfloat16")
            self.assertEqual(self.rendezvous(1, then=trained), chief)

    def test_the_last_checkpoint(self):
        name = "last checkpoint in --output_dir"
        self.assertEqual(self.rendezvous(1)[name], 0)
        shutil.rmtree(self.output_dir, ignore_errors=True)
        shutil.copytree(self.trained, self.output_dir)
        self.assertGreater(self.rendezvous(1)[name], 0)

    def test_after_the_last_step_nobody_is_needed(self):
        def needs_all(settings, decided, seconds, needed, clean_up):
            return needed

        self.assertTrue(self.rendezvous(0, then=needs_all))
        shutil.rmtree(self.output_dir)
        shutil.copytree(self.trained, self.output_dir)
        self.assertFalse(self.rendezvous(0, then=needs_all))
        with mock.patch.object(estimator.Runner, "last_step", side_effect=self.fail):
            self.rendezvous(1, then=needs_all)  # The chief may be clearing the folder.

    def test_who_starts_again_leaves_no_copy_of_the_given_adapter(self):
        scratch = os.path.join(self.folder, "scratch")
        os.mkdir(scratch)

        def left(settings, decided, seconds, needed, clean_up):
            before = os.listdir(scratch)
            clean_up()
            return len(before), len(os.listdir(scratch))

        with mock.patch.object(tempfile, "tempdir", scratch):
            self.assertEqual(
                self.rendezvous(1, "--adapter=" + os.path.join(self.trained, "adapter"), then=left),
                (1, 0),
            )


if __name__ == "__main__":
    tf.test.main()
