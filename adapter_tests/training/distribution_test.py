"""Tests of distribution.py: several replicas train as one, on devices and in processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.files import paths
from adapter_bert.formats import checkpoints
from adapter_bert.ops import xla
from adapter_bert.shell.errors import UserError
from adapter_bert.training import cluster, distribution
from adapter_tests.support import command_lines, distributed_training, tiny
from adapter_tests.support.checkpoint_cases import trained_tensors

pytestmark = pytest.mark.estimator

TWO = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
ONE = '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'
TF1 = tf.__version__.startswith("1.")
# The first case runs on two replicas, the others on more. With DISTRIBUTED_CASES=all, all cases
# run on any number of replicas.
CASES = ("adapters/classifier", "full/span", "adapters/tagging")
ALL_CASES = (*CASES, "adapters/span", "full/classifier")

# The span head's softmax over positions does not depend on these variables. Their gradients are
# only rounding errors, which Adam scales up.
FLAT = ("cls/squad/output_bias", "bert/encoder/layer_1/output/LayerNorm/beta")


class ChooseTest(tf.test.TestCase):
    def choose(self, kind, use_tpu=False, tf_config=""):
        with mock.patch.dict(os.environ, {"TF_CONFIG": tf_config}):
            return distribution.choose(kind, use_tpu)

    def refusal(self, *args, **kwargs):
        with self.assertRaises(UserError) as caught:
            self.choose(*args, **kwargs)
        return str(caught.exception)

    def test_distribution_none_has_no_strategy(self):
        self.assertEqual(self.choose("none"), distribution.Distribution())
        self.assertIsNone(self.choose("none").strategy())
        # TPU pods' hosts may have the variable set for other programs.
        self.assertEqual(self.choose("none", True, TWO).kind, "none")

    def test_conflicting_flags_are_refused(self):
        for kind in ("mirrored", "multi_worker"):
            with self.assertRaisesRegex(UserError, f"--distribution={kind} .* --use_tpu=True"):
                command_lines.classifier_config(f"--distribution={kind}", "--use_tpu=True")
        for kind in ("none", "mirrored"):
            message = self.refusal(kind, tf_config=TWO)
            self.assertRegex(message, f"cluster of 2 workers.*multi_worker.*--distribution={kind}")

    @unittest.skipUnless(TF1, "TensorFlow 2 can")
    def test_tensorflow_1_is_refused(self):
        for kind in ("mirrored", "multi_worker"):
            self.assertRegex(self.refusal(kind), f"--distribution={kind} needs TensorFlow 2")

    @unittest.skipIf(TF1, "refused as a whole")
    def test_missing_tf_config_and_gpus_are_reported(self):
        self.assertRegex(self.refusal("multi_worker"), "requires TF_CONFIG, which is not set")
        with mock.patch.object(distribution, "_gpus", return_value=[]):
            self.assertRegex(self.refusal("mirrored"), "TensorFlow finds none")
        self.assertRegex(self.refusal("multi_worker", tf_config="{"), "is invalid")

    @unittest.skipIf(TF1, "refused as a whole")
    def test_replicas_are_counted_over_workers_and_gpus(self):
        workers = cluster.Cluster(("a:1", "b:1"), 1)
        for gpus, replicas in ((0, 2), (1, 2), (4, 8)):
            with mock.patch.object(distribution, "_gpus", return_value=["gpu"] * gpus):
                found = self.choose("multi_worker", tf_config=TWO)
            self.assertEqual(found, ("multi_worker", replicas, workers))


@unittest.skipIf(TF1, "--distribution needs TensorFlow 2")
@pytest.mark.slow
class TrainingTest(tf.test.TestCase):
    """Trains 20 steps on the same global batches as on one device."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tempfile.mkdtemp()
        tiny.write_bert(os.path.join(cls.folder, "bert"))
        cases = ALL_CASES if cls.tries_all() else CASES
        with contextlib.ExitStack() as restored:  # Undoes the changes of `main`.
            restored.enter_context(mock.patch.object(modeling, "dropout"))
            restored.enter_context(mock.patch.object(xla, "can_fuse"))
            restored.enter_context(mock.patch.dict(os.environ, TF_CONFIG=ONE))
            distributed_training.main("none", 1, os.path.join(cls.folder, "none1"), *cases)

    @staticmethod
    def tries_all():
        return os.environ.get("DISTRIBUTED_CASES") == "all"

    @classmethod
    def run_all(cls, kind, replicas, cases):
        """Trains in the required number of processes; returns the folder of the results."""
        folder = os.path.join(cls.folder, f"{kind}{replicas}")
        command = [sys.executable, "-m", "adapter_tests.support.distributed_training"]
        command += [kind, str(replicas), folder]
        if kind != "multi_worker":  # These kinds ignore a cluster of one.
            cls.run_processes([(*command, *cases)], [{**os.environ, "TF_CONFIG": ONE}])
            return folder
        for case in cases:  # TensorFlow's collectives support one training per process.
            workers = [f"127.0.0.1:{tiny.free_port()}" for _ in range(replicas)]
            environments = []
            for index in range(replicas):
                task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
                environments.append({**os.environ, "TF_CONFIG": json.dumps(task)})
            cls.run_processes([(*command, case)] * replicas, environments)
        return folder

    @staticmethod
    def run_processes(commands, environments):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        processes = [
            subprocess.Popen(command, cwd=paths.PROJECT, env=env, **pipes)
            for command, env in zip(commands, environments)
        ]
        for process in processes:
            said, _ = process.communicate(timeout=550)
            assert process.returncode == 0, said.decode()[-5000:]

    @staticmethod
    def shown_losses(folder):
        """Returns the list of (step, loss) that TensorBoard shows."""
        (path,) = tf.io.gfile.glob(os.path.join(folder, "events.out.tfevents.*"))
        return [
            (event.step, value.simple_value)
            for event in tf.train.summary_iterator(path)
            for value in event.summary.value
            if value.tag == "loss"
        ]

    def check(self, kind, replicas):
        cases = ALL_CASES if self.tries_all() else CASES[:1] if replicas == 2 else CASES[1:]
        folder = self.run_all(kind, replicas, cases)
        for case in cases:
            name = case.replace("/", "_")
            one, many = (
                tf.train.load_checkpoint(os.path.join(parent, name))
                for parent in (os.path.join(self.folder, "none1"), folder)
            )
            shapes = one.get_variable_to_shape_map()
            self.assertEqual(many.get_variable_to_shape_map(), shapes)
            self.assertEqual(many.get_tensor("global_step"), 20)
            furthest = max(
                np.abs(one.get_tensor(v) - many.get_tensor(v)).max()
                for v in shapes
                if "adam" not in v and not (case.endswith("span") and v in FLAT)
            )
            tolerance = 1e-5 if case.startswith("adapters") else 1e-4
            self.assertLess(furthest, tolerance, case)
            expected, shown = (
                self.shown_losses(os.path.join(parent, name))
                for parent in (os.path.join(self.folder, "none1"), folder)
            )
            self.assertEqual([step for step, _ in expected], [10, 20])
            self.assertAllClose(shown, expected, rtol=0, atol=tolerance)

    def test_four_devices_train_like_one(self):
        self.check("mirrored", 4)

    def test_three_processes_train_like_one(self):
        self.check("multi_worker", 3)


@unittest.skipIf(TF1, "--distribution needs TensorFlow 2")
@pytest.mark.slow
class LostWorkerTest(tf.test.TestCase):
    """`python run_classifier.py` in two processes, of which one is lost."""

    def setUp(self):
        super().setUp()
        self.folder = self.get_temp_dir()
        bert = tiny.write_bert(os.path.join(self.folder, "bert"))
        self.command = [
            sys.executable,
            os.path.join(paths.PROJECT, "run_classifier.py"),
            "--task_name=MRPC",
            "--do_train",
            "--do_eval",
            "--distribution=multi_worker",
            "--worker_timeout=60",
            "--data_dir=" + tiny.write_mrpc(os.path.join(self.folder, "mrpc"), rows=40),
            "--bert_config_file=" + os.path.join(bert, "bert_config.json"),
            "--vocab_file=" + os.path.join(bert, "vocab.txt"),
            "--init_checkpoint=" + os.path.join(bert, "bert_model.ckpt"),
            "--feature_cache_dir=none",
            "--precision=float32",
            "--max_seq_length=24",
            "--train_batch_size=4",
            "--num_train_epochs=20",
            "--save_checkpoints_steps=20",
        ]

    def start(self, name, indices=(0, 1), flags=()):
        """Starts the command on some of two workers; returns the processes."""
        addresses = [f"127.0.0.1:{tiny.free_port()}" for _ in range(2)]
        processes = []
        for index in indices:
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            process = subprocess.Popen(
                [*self.command, "--output_dir=" + os.path.join(self.folder, name), *flags],
                env={**os.environ, "TF_CONFIG": json.dumps(task)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                universal_newlines=True,
            )
            self.addCleanup(process.stdout.close)
            self.addCleanup(process.kill)
            processes.append(process)
        return processes

    def end(self, process, code=0):
        """Returns the output of a process, which must end by itself with a code."""
        output, _ = process.communicate(timeout=300)
        self.assertEqual(process.returncode, code, output)
        return output

    def lose(self, name, step, index, signum):
        """Trains to a step, sends a signal to one worker, and returns the other's output."""
        both = self.start(name)
        deadline = time.time() + 200
        while checkpoints.last_step(os.path.join(self.folder, name)) < step:
            self.assertLess(time.time(), deadline, f"No checkpoint of step {step}.")
            self.assertIsNone(both[index].poll())
            time.sleep(0.05)
        both[index].send_signal(signum)
        output = self.end(both[1 - index], code=1)
        both[index].kill()
        both[index].wait()
        return output

    def results(self, name):
        """Returns the trained tensors and the scores of a run."""
        folder = os.path.join(self.folder, name)
        with open(os.path.join(folder, "eval_results.txt")) as reader:
            return trained_tensors(tf.train.latest_checkpoint(folder)), reader.read()

    def test_training_resumes_bit_for_bit_after_lost_workers(self):
        chief, other = map(self.end, self.start("straight"))
        self.assertIn("at step 200", chief)
        self.assertIn("Worker 1 is done", other)
        self.assertNotIn("dev:", other)
        is_lost = r"Error: TF_CONFIG: another worker has ended or does not answer; .*\.\n$"
        self.assertRegex(self.lose("resumed", 40, 1, signal.SIGKILL), is_lost)
        self.assertRegex(self.lose("resumed", 80, 0, signal.SIGSTOP), is_lost)
        chief, _ = map(self.end, self.start("resumed"))
        self.assertRegex(chief, r"Resuming from the checkpoint of step [89]\d|step 1\d\d")
        (expected, expected_scores), (tensors, scores) = map(self.results, ("straight", "resumed"))
        self.assertEqual(scores, expected_scores)
        self.assertEqual(set(tensors), set(expected))
        for name in expected:
            self.assertAllEqual(tensors[name], expected[name])

    def test_missing_worker_ends_the_chief(self):
        (chief,) = self.start("missing", [0], ["--worker_timeout=5"])
        self.assertIn("another worker has ended or does not answer", self.end(chief, code=1))
