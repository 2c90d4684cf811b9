"""Tests of cluster.py: TF_CONFIG, and the comparison of the workers' settings, also in scripts."""

import json
import os
import shutil
import socket
import tempfile
import time
import unittest
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf
from absl.testing import parameterized

from adapter_bert.ops import devices
from adapter_bert.shell.errors import UserError
from adapter_bert.training import cluster, estimator
from adapter_tests.support import mutations, tiny
from adapter_tests.support.script_cases import ScriptTestCase

TF1 = tf.__version__.startswith("1.")
FIRST = {"type": "worker", "index": 0}


def workers(addresses, task=None, **jobs):
    return {"cluster": {"worker": addresses, **jobs}, "task": FIRST if task is None else task}


def read(config):
    text = config if isinstance(config, str) else json.dumps(config)
    with mock.patch.dict(os.environ, {cluster.VARIABLE: text}):
        try:
            return cluster.from_environment()
        finally:  # TensorFlow cannot parse an empty value.
            assert (cluster.VARIABLE in os.environ) == bool(text.strip())


class FromEnvironmentTest(parameterized.TestCase):
    def test_empty_tf_config_means_no_cluster(self):
        for config in ("", " ", {}, {"cluster": {}}, {"task": FIRST}):
            self.assertEqual(read(config), cluster.Cluster())
        with mock.patch.dict(os.environ):
            os.environ.pop(cluster.VARIABLE, None)
            self.assertEqual(cluster.from_environment(), cluster.Cluster())

    def test_workers_are_read_from_tf_config(self):
        config = workers(["a:1", "b:2", "c:3"], {"type": "worker", "index": 2})
        self.assertEqual(read(config), cluster.Cluster(("a:1", "b:2", "c:3"), 2))
        self.assertFalse(read(config).is_chief)
        self.assertTrue(read(workers(["a:1", "b:2"], {"type": "worker", "index": "0"})).is_chief)

    def test_chief_precedes_workers(self):
        for kind, index, place in (("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)):
            task = {"type": kind, "index": index}
            config = workers(["b:2", "[::1]:3"], task, chief=["a:1"])
            self.assertEqual(read(config), cluster.Cluster(("a:1", "b:2", "[::1]:3"), place))

    @parameterized.parameters(
        ("{", "is invalid"),
        ("[]", "is invalid"),
        ("[" * 100000, "levels of lists"),
        ({"cluster": ["a:1"], "task": FIRST}, "a:1 does not train"),
        (workers("a:1"), "is invalid"),
        (workers(["a"]), "'a' is not host:port"),
        (workers(["a:b"]), "'a:b' is not host:port"),
        (workers(["a:99999"]), "'a:99999' is not host:port"),
        (workers(["http://a:1"]), "'http://a:1' is not host:port"),
        (workers([1]), "is invalid"),
        (workers(["a:1", "a:1"]), "an address twice"),
        (workers(["a:1"], {"type": "worker", "index": 1}), "task worker 1"),
        (workers(["a:1"], {"type": "worker", "index": -1}), "task worker -1"),
        (workers(["a:1"], {"type": "worker", "index": "x"}), "is invalid"),
        (workers(["a:1"], {"type": "worker", "index": float("inf")}), "is invalid"),
        (workers(["a:1"], {"type": "chief", "index": 0}), "task chief 0"),
        (workers(["a:1"], {"type": "evaluator", "index": 0}), "evaluator does not train"),
        (workers(["a:1"], ps=["b:1"]), "ps does not train"),
        (workers(["c:1"], chief=["a:1", "b:1"]), "2 chief"),
        (workers(["a:1", "b:1"], {"index": 1}), "the task has no type"),
        (workers(["a:1", "b:1"], {"type": "worker"}), "the task has no index"),
    )
    def test_invalid_tf_config_is_refused(self, config, reason):
        with self.assertRaisesRegex(UserError, reason) as caught:
            read(config)
        self.assertRegex(str(caught.exception), r"^TF_CONFIG is invalid: [^\n]*; expected .*\.$")

    def test_damaged_tf_config_is_read_or_refused(self):
        def read_damaged(folder):
            content = b"".join(mutations.files_in(folder).values()).replace(b"\0", b"")
            read(content.decode("utf-8", "surrogateescape"))

        config = workers(["b:1", "c:2"], {"type": "worker", "index": 1}, chief=["a:1234"])
        content = json.dumps(config).encode()
        mutations.check({"TF_CONFIG.json": content}, read_damaged, ("TF_CONFIG",))

    def test_hide_removes_tf_config_temporarily(self):
        with mock.patch.dict(os.environ, {"TF_CONFIG": "x"}):
            with cluster.hide():
                self.assertNotIn("TF_CONFIG", os.environ)
            self.assertEqual(os.environ["TF_CONFIG"], "x")


class AgreeTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.output_dir = tempfile.mkdtemp(dir=self.get_temp_dir())
        patch = mock.patch.object(cluster, "_POLL_SECONDS", 0.001)
        patch.start()
        self.addCleanup(patch.stop)

    def agree(self, index, settings, decided=None, addresses=("a:1", "b:1"), seconds=0.1):
        """Agrees as one worker; `settings` may be a function of the chief's decisions."""
        as_function = settings if callable(settings) else lambda decided: settings
        worker = cluster.Cluster(addresses, index)
        return cluster.agree(worker, self.output_dir, as_function, decided or {}, seconds)

    def refusal(self, settings):
        with self.assertRaises(UserError) as caught:
            self.agree(1, settings)
        return str(caught.exception)

    def test_worker_agrees_with_equal_settings(self):
        for folder in [self.output_dir, *([] if TF1 else ["ram://cluster_test/output"])]:
            self.output_dir = folder
            self.assertEqual(self.agree(0, {"weights": (1, 2), "size": None}), [])
            (hook,) = self.agree(1, {"weights": [1, 2], "size": None})
            hook.after_create_session(None, None)

    def test_single_worker_writes_nothing(self):
        self.assertEqual(self.agree(0, {}, addresses=("a:1",)), [])
        self.assertEqual(os.listdir(self.output_dir), [])

    def test_first_difference_is_named(self):
        self.agree(0, {"model: size": 8, "rate": 0.1})
        differs = "of this worker differs from the chief's"
        for settings, difference in (
            ({"model: size": 4, "rate": 0.2}, f"model: size {differs}: 4, not 8"),
            ({"model: size": 8}, f"rate {differs}: None, not 0.1"),
            ({"model: size": 8, "rate": 0.1, "x": [1]}, rf"x {differs}: [1], not None"),
        ):
            message = f"TF_CONFIG: {difference}, after 0.1 seconds."
            self.assertEqual(self.refusal(settings), message)

    def test_missing_chief_is_reported(self):
        path = os.path.join(self.output_dir, "workers", "chief.json")
        self.assertRegex(self.refusal({}), f"the chief has written no {path}, .* must share")

    def test_worker_waits_while_file_is_an_earlier_chiefs(self):
        self.agree(0, {"last checkpoint": 20})
        again = mock.Mock(side_effect=lambda _: self.agree(0, {"last checkpoint": 40}))
        with mock.patch.object(time, "sleep", again):
            self.agree(1, {"last checkpoint": 40})
        self.assertEqual(again.call_count, 1)

    def test_connected_worker_is_refused_if_another_chief_came(self):
        self.agree(0, {"size": 8})
        (hook,) = self.agree(1, {"size": 8})
        self.agree(0, {"size": 4})
        with self.assertRaisesRegex(UserError, "^TF_CONFIG: size .*: 8, not 4.$"):
            hook.after_create_session(None, None)

    def test_settings_depend_on_the_chiefs_decisions(self):
        self.agree(0, dict, decided={"precision": "bfloat16"})
        self.agree(1, dict, decided={"precision": "float64"})
        with self.assertRaisesRegex(UserError, "cannot be read"):  # Not as a missing chief.
            self.agree(1, mock.Mock(side_effect=UserError("--output_dir cannot be read.")))

    def test_unwritable_folder_is_reported(self):
        with open(os.path.join(self.output_dir, cluster.FOLDER), "w"), self.assertRaisesRegex(
            UserError, "cannot be written"
        ):
            self.agree(0, {})


class ConnectTest(parameterized.TestCase):
    """Trainings of several processes are in distribution_test."""

    @parameterized.parameters("AbortedError", "DeadlineExceededError", "UnavailableError")
    def test_lost_worker_is_one_sentence(self, error):
        expected = self.assertRaisesRegex(UserError, "^TF_CONFIG: another worker has ended or")
        with expected, cluster.connect(cluster.Cluster()):
            raise getattr(tf.errors, error)(None, None, "Connection reset by peer")

    def test_other_errors_remain(self):
        with self.assertRaises(tf.errors.UnknownError), cluster.connect(cluster.Cluster()):
            raise tf.errors.UnknownError(None, None, "a bug")

    def test_port_in_use_is_reported(self):
        address = f"127.0.0.1:{tiny.free_port()}"
        with socket.socket() as other:
            other.bind(("127.0.0.1", int(address.split(":")[1])))
            other.listen(1)
            expected = self.assertRaisesRegex(UserError, f"cannot listen on {address}")
            with expected, cluster.connect(cluster.Cluster(("a:1", address), 1)):
                tf.train.Server({"worker": [address]})


@unittest.skipIf(TF1, "--distribution needs TensorFlow 2")
@pytest.mark.estimator
class ScriptTest(ScriptTestCase):
    """Every worker stops where it would compare its settings."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.trained, _ = cls.train_once("--do_train")

    def agree(self, index, *arguments, then=lambda settings, decided: settings(decided)):
        """Runs a worker up to `cluster.agree`; returns `then` of its `settings` and `decided`."""
        results = []

        def agree(worker, output_dir, settings, decided, timeout_seconds):
            self.assertEqual((worker.index, output_dir), (index, self.output_dir))
            results.append(then(settings, decided))
            raise UserError("All agree.")

        config = json.dumps(workers(["a:1", "b:1"], {"type": "worker", "index": index}))
        environ = mock.patch.dict(os.environ, TF_CONFIG=config)
        with environ, mock.patch.object(cluster, "agree", agree):
            flags = ["--do_train", "--distribution=multi_worker", "--precision=auto", *arguments]
            code, _, stderr = self.call(self.output_dir, *flags)
        self.assert_one_sentence(code, stderr, ["All agree"])
        return results[0]

    def test_differing_flags_yield_differing_settings(self):
        chief = self.agree(0)
        self.assertEqual(self.agree(1), chief)
        for flag, name in (
            ("--class_weights=1,2", "training: class_weights"),
            ("--adapter_normalization=layer", "model: adapter_normalization"),
        ):
            other = self.agree(1, flag)
            differing = {key for key in {**chief, **other} if chief.get(key) != other.get(key)}
            self.assertIn(name, differing)

    def test_chief_measures_and_decides_precision(self):
        def trained(settings, decided):
            precision = settings({"precision": "bfloat16"})["training: precision"]
            (model, *_), _ = built.call_args
            self.assertEqual(model.precision, precision)
            return decided["precision"], precision, model.run_identity

        measured = mock.Mock(return_value={"float32": 2.0, "bfloat16": 1.0})
        processor = {"has_bfloat16": lambda: True, "product_seconds": measured}
        spied = mock.patch.object(
            estimator, "build_estimator", side_effect=estimator.build_estimator
        )
        with mock.patch.multiple(devices, **processor), spied as built:
            *chief, chiefs_identity = self.agree(0, then=trained)
            self.assertEqual(chief, ["bfloat16", "bfloat16"])
            _, worker, identity = self.agree(1, then=trained)
            self.assertEqual((worker, identity), ("bfloat16", chiefs_identity))
            _, worker, identity = self.agree(1, "--precision=float32", then=trained)
            self.assertEqual(worker, "float32")  # It differs, so the worker is refused.
            self.assertNotEqual(identity, chiefs_identity)
        self.assertEqual(measured.call_count, 1)

    def test_settings_include_the_last_checkpoint(self):
        name = "last checkpoint in --output_dir"
        self.assertEqual(self.agree(1)[name], 0)
        shutil.rmtree(self.output_dir, ignore_errors=True)
        shutil.copytree(self.trained, self.output_dir)
        self.assertGreater(self.agree(1)[name], 0)
