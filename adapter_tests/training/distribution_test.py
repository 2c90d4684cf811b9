"""Tests of distribution.py: several replicas train as one, on devices and in processes."""

import json
import os
import signal
import subprocess
import sys
import unittest
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf
from absl.testing import parameterized

from adapter_bert.files import paths
from adapter_bert.formats import checkpoints
from adapter_bert.shell.errors import UserError
from adapter_bert.training import cluster, distribution
from adapter_tests.support import command_lines, distributed_training, tiny
from adapter_tests.support.checkpoint_cases import all_tensors
from adapter_tests.support.script_cases import ScriptTestCase, bert_flags, read

TWO = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
ONE = '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'
TF1 = tf.__version__.startswith("1.")
SEVERAL = ("mirrored", "multi_worker")


def choose(kind, use_tpu=False, tf_config=""):
    with mock.patch.dict(os.environ, TF_CONFIG=tf_config):
        return distribution.choose(kind, use_tpu)


@pytest.mark.estimator
class ChooseTest(parameterized.TestCase):
    def assert_refused(self, reason, kind, tf_config=""):
        with self.assertRaisesRegex(UserError, reason):
            choose(kind, tf_config=tf_config)

    def test_distribution_none_has_no_strategy(self):
        self.assertEqual(choose("none"), distribution.Distribution())
        self.assertIsNone(choose("none").strategy())
        # TPU pods' hosts may have the variable set for other programs.
        self.assertEqual(choose("none", True, TWO).kind, "none")

    @parameterized.parameters(*SEVERAL)
    def test_distribution_with_a_tpu_is_refused(self, kind):
        with self.assertRaisesRegex(UserError, f"--distribution={kind} .* --use_tpu=True"):
            command_lines.classifier_config(f"--distribution={kind}", "--use_tpu=True")

    @parameterized.parameters("none", "mirrored")
    def test_cluster_of_several_workers_requires_multi_worker(self, kind):
        self.assert_refused(f"of 2 workers.*multi_worker.*--distribution={kind}", kind, TWO)

    @unittest.skipUnless(TF1, "TensorFlow 2 can")
    def test_tensorflow_1_is_refused(self):
        for kind in SEVERAL:
            self.assert_refused(f"--distribution={kind} needs TensorFlow 2", kind)

    @unittest.skipIf(TF1, "refused as a whole")
    def test_missing_tf_config_and_gpus_are_reported(self):
        self.assert_refused("requires TF_CONFIG, which is not set", "multi_worker")
        with mock.patch.object(distribution, "_gpus", return_value=[]):
            self.assert_refused("TensorFlow finds none", "mirrored")

    @unittest.skipIf(TF1, "refused as a whole")
    def test_replicas_are_counted_over_workers_and_gpus(self):
        workers = cluster.Cluster(("a:1", "b:1"), 1)
        for gpus, replicas in ((0, 2), (1, 2), (4, 8)):
            with mock.patch.object(distribution, "_gpus", return_value=["gpu"] * gpus):
                found = choose("multi_worker", tf_config=TWO)
            self.assertEqual(found, ("multi_worker", replicas, workers))


@unittest.skipIf(TF1, "--distribution needs TensorFlow 2")
@pytest.mark.slow
class TrainingTest(ScriptTestCase):
    """Two replicas take the steps of one device, and resume them bit for bit."""

    FLAGS = ("--do_train", "--train_batch_size=12", "--num_train_epochs=5", "--class_weights=1,3")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        sizes = {"num_hidden_layers": 1, "hidden_dropout_prob": 0.0}  # Masks depend on the replica.
        sizes["attention_probs_dropout_prob"] = 0.0
        bert = tiny.write_bert(os.path.join(cls.root, "bert"), **sizes)
        cls.base_flags = [*cls.base_flags, *bert_flags(bert)]

    def start(self, name, *flags, devices=1, lost_after=0, tf_config=ONE):
        """Starts the script in a process, which trains 10 steps; returns the process."""
        command = [sys.executable, "-m", "adapter_tests.support.distributed_training"]
        output_dir = "--output_dir=" + os.path.join(self.folder, name)
        given = [*self.base_flags, *self.FLAGS, output_dir, *flags]
        process = subprocess.Popen(
            [*command, str(devices), str(lost_after), *given],
            cwd=paths.PROJECT,
            env={**os.environ, "TF_CONFIG": tf_config},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        return process

    def start_workers(self, name, *flags, indices=(0, 1), lost_after=0):
        """Starts some of two workers, of which the second may be lost; returns the processes."""
        flags = ["--distribution=multi_worker", *flags]
        addresses = [f"127.0.0.1:{tiny.free_port()}" for _ in range(2)]
        processes = []
        for index in indices:
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            lost = lost_after if index else 0
            processes.append(self.start(name, *flags, lost_after=lost, tf_config=json.dumps(task)))
        return processes

    def end(self, process, code=0):
        """Returns the output of a process, which must end by itself with a code."""
        output, _ = process.communicate(timeout=300)
        self.assertEqual(process.returncode, code, output)
        return output

    def check_steps(self, name, tolerance, *flags):
        """Compares a training's weights and shown loss with those of one device."""
        alone = os.path.join(self.folder, "alone")
        with distributed_training.without_head_dropout():
            self.succeed(*self.FLAGS, *flags, output_dir=alone)
        folder = os.path.join(self.folder, name)
        one, many = (all_tensors(tf.train.latest_checkpoint(path)) for path in (alone, folder))
        self.assertEqual(set(many), set(one))
        self.assertEqual((one["global_step"], many["global_step"]), (10, 10))
        for variable, value in one.items():
            if "adam" not in variable and variable != checkpoints.IDENTITY:
                self.assertAllClose(many[variable], value, 0, tolerance, variable)
        shown = shown_losses(folder)
        self.assertEqual([step for step, _ in shown], list(range(1, 11)))
        self.assertAllClose(shown, shown_losses(alone), 0, tolerance)

    @pytest.mark.estimator
    def test_two_devices_train_like_one(self):
        full = ["--tuning=full", "--learning_rate=0.001"]
        self.end(self.start("devices", *full, "--distribution=mirrored", devices=2))
        self.check_steps("devices", 1e-4, *full)

    def test_two_workers_train_like_one_and_resume_after_the_loss_of_one(self):
        chief, other = map(self.end, self.start_workers("straight", "--do_eval"))
        self.assertIn("at step 10", chief)
        self.assertIn("Worker 1 is done", other)
        self.assertNotIn("dev:", other)
        self.check_steps("straight", 1e-5)

        save = ["--do_eval", "--save_checkpoints_steps=2"]
        chief, other = self.start_workers("resumed", *save, lost_after=5)
        lost = r"Error: TF_CONFIG: another worker has ended or does not answer; .*\.\n$"
        self.assertRegex(self.end(chief, 1), lost)
        self.end(other, -signal.SIGKILL)
        chief, _ = map(self.end, self.start_workers("resumed", *save))
        self.assertIn("Resuming from the checkpoint of step 4", chief)
        folders = [os.path.join(self.folder, name) for name in ("straight", "resumed")]
        expected, found = (all_tensors(tf.train.latest_checkpoint(path)) for path in folders)
        self.assertEqual(set(found), set(expected))
        for name, value in expected.items():
            self.assertAllEqual(found[name], value, name)
        expected, found = (read(os.path.join(path, "eval_results.txt")) for path in folders)
        self.assertEqual(found, expected)

    def test_missing_worker_ends_the_chief(self):
        (chief,) = self.start_workers("missing", "--worker_timeout=5", indices=[0])
        self.assertIn("another worker has ended or does not answer", self.end(chief, 1))


def shown_losses(folder):
    """Returns the list of (step, loss) that TensorBoard shows."""
    (path,) = tf.io.gfile.glob(os.path.join(folder, "events.out.tfevents.*"))
    return [
        (event.step, value.simple_value)
        for event in tf.train.summary_iterator(path)
        for value in event.summary.value
        if value.tag == "loss"
    ]
