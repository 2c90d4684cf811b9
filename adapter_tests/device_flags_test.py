"""Tests of device_flags.py: the TPU that flags name, and what it can read."""

from unittest import mock

import tensorflow.compat.v1 as tf

import device_flags
import run_ablation
from adapter_tests import command_lines
from errors import UserError


def parsed(*arguments):
    return command_lines.parsed(run_ablation.define_flags, *arguments)


class DeviceFlagsTest(tf.test.TestCase):
    def test_the_tpu(self):
        arguments = ["use_tpu", "tpu_name=n", "tpu_zone=z", "gcp_project=p", "master=grpc://h:1"]
        with mock.patch.object(
            device_flags.devices, "find_tpu", return_value=(True, "cluster")
        ) as find:
            run, use_tpu = device_flags.evaluation_settings(
                parsed(*("--" + argument for argument in arguments)), "out", 8
            )
        find.assert_called_once_with(True, "n", "z", "p", "grpc://h:1", 8)
        self.assertTrue(use_tpu)
        self.assertEqual((run.tpu_cluster, run.master), ("cluster", "grpc://h:1"))

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
