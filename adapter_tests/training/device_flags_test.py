"""Tests of device_flags.py: the TPU that flags name, and what it can read."""

from unittest import mock

import tensorflow.compat.v1 as tf

import run_ablation
from adapter_bert.common.errors import UserError
from adapter_bert.training import device_flags
from adapter_tests.support import command_lines


def parsed(*arguments):
    return command_lines.parsed(run_ablation.define_flags, *arguments)


class DeviceFlagsTest(tf.test.TestCase):
    def settings(self, cluster, *arguments):
        """(the run's settings, what `find_tpu` was asked) where it finds this cluster."""
        found = mock.patch.object(device_flags.devices, "find_tpu", return_value=(True, cluster))
        with found as find:
            run, use_tpu = device_flags.evaluation_settings(
                parsed("--use_tpu", *arguments), "out", 8
            )
        self.assertTrue(use_tpu)
        return run, find.call_args[0]

    def test_the_tpu(self):
        arguments = ("--tpu_name=n", "--tpu_zone=z", "--gcp_project=p", "--master=")
        run, asked = self.settings("cluster", *arguments)
        self.assertEqual(asked, (True, "n", "z", "p", "", 8))
        # TensorFlow takes one of both alone.
        self.assertEqual((run.tpu_cluster, run.master), ("cluster", None))
        run, asked = self.settings(None, "--master=grpc://h:1")
        self.assertEqual(asked, (True, None, None, None, "grpc://h:1", 8))
        self.assertEqual((run.tpu_cluster, run.master), (None, "grpc://h:1"))

    def test_paths_that_a_tpus_host_cannot_read(self):
        def check(output_dir, init_checkpoint, *arguments):
            device_flags.check_paths_for_tpu(parsed(*arguments), output_dir, init_checkpoint)

        check("out", "bert.ckpt")
        check("out", "bert.ckpt", "--tpu_name=local")
        check("gs://b/out", "gs://b/bert.ckpt", "--tpu_name=my-tpu")
        with self.assertRaisesRegex(UserError, "--output_dir=out: .* TPU my-tpu .* gs:// path"):
            check("out", "gs://b/bert.ckpt", "--tpu_name=my-tpu")
        with self.assertRaisesRegex(UserError, "--init_checkpoint=bert.ckpt: .* grpc://h:1"):
            check("gs://b/out", "bert.ckpt", "--master=grpc://h:1")


if __name__ == "__main__":
    tf.test.main()
