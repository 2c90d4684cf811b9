"""Tests of estimator_training.py; distribution_test trains several workers with it."""

import json
import os
import unittest
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.shell import tf_estimator

pytestmark = pytest.mark.estimator

if tf.__version__.startswith("1."):
    estimator_training = None  # Imports modules that TensorFlow 1.15 has under other names.
else:
    from adapter_bert.shell import estimator_training

WORKERS = {"worker": ["a:1", "b:1", "c:1"]}


@unittest.skipIf(tf.__version__.startswith("1."), "--distribution needs TensorFlow 2")
class RunConfigTest(tf.test.TestCase):
    def config(self, tf_config, **options):
        """Returns a RunConfig that estimator_training has completed, for any TensorFlow."""
        with mock.patch.dict(os.environ, TF_CONFIG=json.dumps(tf_config)):
            config = tf_estimator.RunConfig(model_dir=self.get_temp_dir(), **options)
            estimator_training.init_run_config(config, tf_config)
        return config

    def test_single_process_is_chief(self):
        for strategy in (None, tf.distribute.OneDeviceStrategy("/cpu:0")):
            config = self.config({}, train_distribute=strategy)
            self.assertFalse(estimator_training.should_run_distribute_coordinator(config))
            self.assertTrue(config.is_chief)
            self.assertEqual((config.task_type, config.num_worker_replicas), ("worker", 1))

    def test_cluster_is_coordinated_only_with_a_strategy(self):
        for strategy, together in (
            (None, False),
            (tf.distribute.OneDeviceStrategy("/cpu:0"), True),
        ):
            task = {"cluster": WORKERS, "task": {"type": "worker", "index": 1}}
            if not together:
                task["cluster"] = {**WORKERS, "chief": ["d:1"]}  # As Estimator requires.
            config = self.config(task, train_distribute=strategy)
            found = estimator_training.should_run_distribute_coordinator(config)
            self.assertEqual(found, together)
            self.assertEqual(config.cluster_spec.num_tasks("worker"), 3)

    def test_worker_gets_its_global_id_and_replica_count(self):
        for jobs, kind, index, expected in (
            (WORKERS, "worker", 0, (0, 3)),
            (WORKERS, "worker", 2, (2, 3)),
            ({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "chief", 0, (0, 3)),
            ({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "worker", 1, (2, 3)),
        ):
            worker = mock.Mock(
                cluster_spec=tf.train.ClusterSpec(jobs),
                task_type=kind,
                task_id=index,
                master_target="grpc://here:1",
                is_chief=index == 0 and kind != "worker" or "chief" not in jobs and index == 0,
            )
            config = self.config({})
            estimator_training._describe_worker(config, worker)
            self.assertEqual((config.global_id_in_cluster, config.num_worker_replicas), expected)
            self.assertEqual((config.master, config.task_id), ("grpc://here:1", index))
            self.assertEqual(config.is_chief, expected[0] == 0)

    def test_unsupported_calls_raise_not_implemented_error(self):
        for call in (
            lambda: estimator_training.estimator_train(None, None, []),
            lambda: estimator_training.estimator_evaluate(None, None, []),
            lambda: estimator_training._evaluate(None),
        ):
            with self.assertRaises(NotImplementedError):
                call()
