"""Tests of cluster.py: TF_CONFIG, and the workers' rendezvous through files, also in scripts."""

import json
import os
import queue
import shutil
import socket
import tempfile
import threading
import time
import unittest
from concurrent import futures
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.files import gfile
from adapter_bert.ops import devices
from adapter_bert.shell.errors import UserError
from adapter_bert.training import cluster, estimator
from adapter_tests.support import mutations, tiny
from adapter_tests.support.script_cases import ScriptTestCase

TIMEOUT = 30


class FromEnvironmentTest(tf.test.TestCase):
    def read(self, config):
        text = config if isinstance(config, str) else json.dumps(config)
        with mock.patch.dict(os.environ, {"TF_CONFIG": text}):
            try:
                return cluster.from_environment()
            finally:  # TensorFlow cannot parse an empty value.
                self.assertEqual("TF_CONFIG" in os.environ, bool(text.strip()))

    def test_empty_tf_config_means_no_cluster(self):
        for config in ("", " ", {}, {"cluster": {}}, {"task": {"type": "worker", "index": 0}}):
            self.assertEqual(self.read(config), cluster.Cluster())
        with mock.patch.dict(os.environ):
            os.environ.pop("TF_CONFIG", None)
            self.assertEqual(cluster.from_environment(), cluster.Cluster())

    def test_workers_are_read_from_tf_config(self):
        jobs = {"worker": ["a:1", "b:2", "c:3"]}
        found = self.read({"cluster": jobs, "task": {"type": "worker", "index": 2}})
        self.assertEqual(found, cluster.Cluster(("a:1", "b:2", "c:3"), 2))
        self.assertFalse(found.is_chief)
        found = self.read({"cluster": jobs, "task": {"type": "worker", "index": "0"}})
        self.assertTrue(found.is_chief)

    def test_chief_precedes_workers(self):
        jobs = {"worker": ["b:2", "[::1]:3"], "chief": ["a:1"]}
        addresses = ("a:1", "b:2", "[::1]:3")
        for kind, index, place in (("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)):
            found = self.read({"cluster": jobs, "task": {"type": kind, "index": index}})
            self.assertEqual(found, cluster.Cluster(addresses, place))

    def test_malformed_tf_config_is_refused_with_reason(self):
        own = {"type": "worker", "index": 0}

        def worker(addresses, task=own):
            return {"cluster": {"worker": addresses}, "task": task}

        for config, part in (
            ("{", "cannot be read"),
            ("[]", "cannot be read"),
            ("[" * 100000, "cannot be read"),
            ({"cluster": ["a:1"]}, "cannot be read"),
            (worker("a:1"), "worker is not a list"),
            (worker(["a"]), "'a' is not host:port"),
            (worker(["a:b"]), "'a:b' is not host:port"),
            (worker(["a:99999"]), "'a:99999' is not host:port"),
            (worker(["http://a:1"]), "'http://a:1' is not host:port"),
            (worker([1]), "cannot be read"),
            (worker(["a:1", "a:1"]), "an address twice"),
            (worker(["a:1"], {"type": "worker", "index": 1}), "task worker 1"),
            (worker(["a:1"], {"type": "worker", "index": -1}), "task worker -1"),
            (worker(["a:1"], {"type": "worker", "index": "x"}), "cannot be read"),
            (worker(["a:1"], {"type": "worker", "index": float("inf")}), "cannot be read"),
            (worker(["a:1"], {"type": "chief", "index": 0}), "task chief 0"),
            (worker(["a:1"], {"type": "evaluator", "index": 0}), "names evaluator"),
            ({"cluster": {"worker": ["a:1"], "ps": ["b:1"]}}, "names ps"),
            ({"cluster": {"chief": ["a:1", "b:1"], "worker": ["c:1"]}, "task": own}, "2 chief"),
            (worker(["a:1", "b:1"], {}), "no type and index of the task"),
            (worker(["a:1", "b:1"], {"index": 1}), "no type of the task"),
            (worker(["a:1", "b:1"], {"type": "worker"}), "no index of the task"),
        ):
            with self.assertRaises(UserError) as caught:
                self.read(config)
            self.assertIn(part, str(caught.exception))
            self.assertRegex(str(caught.exception), r"^TF_CONFIG [^\n]*\.$")

    def test_hide_removes_tf_config_temporarily(self):
        with mock.patch.dict(os.environ, {"TF_CONFIG": "x"}):
            with cluster.hide():
                self.assertNotIn("TF_CONFIG", os.environ)
            self.assertEqual(os.environ["TF_CONFIG"], "x")


class RendezvousTest(tf.test.TestCase):
    """Workers are threads with their own ids. They record a lost worker instead of restarting."""

    def setUp(self):
        super().setUp()
        self.output_dir = tempfile.mkdtemp(dir=self.get_temp_dir())
        self.addresses = tuple(f"127.0.0.1:{tiny.free_port()}" for _ in range(3))
        self.losses = queue.Queue()  # (index of the worker that notices, the lost worker's name).
        self.is_over = threading.Event()
        self.pool = futures.ThreadPoolExecutor(8)
        patched = {"_POLL_SECONDS": 0.02, "_BEAT_SECONDS": 0.05, "_SILENCE_SECONDS": 3.0}
        patched["_restart"] = lambda index, lost: self.losses.put((index, lost))
        patch = mock.patch.multiple(cluster, **patched)
        patch.start()
        self.addCleanup(patch.stop)  # Runs last, when no thread can restart.
        self.addCleanup(self.pool.shutdown)
        self.addCleanup(self.is_over.set)

    def work(self, index, settings=dict, seconds=20.0, train=None, decided=None, **options):
        """Starts a worker; returns the future of its error, None on success.

        By default the worker trains until `is_over`. `settings` is a function of the chief's
        decisions if `decided` is set, and otherwise a function without arguments.
        """
        workers = cluster.Cluster(self.addresses, index)
        train = train or (lambda: self.assertTrue(self.is_over.wait(TIMEOUT)))
        options["clean_up"] = index
        of_chief = settings if decided is not None else lambda decided: settings()

        def come():
            try:
                with cluster.rendezvous(
                    workers, self.output_dir, of_chief, decided or {}, seconds, **options
                ):
                    train()
            except BaseException as error:
                return error
            return None

        return self.pool.submit(come)

    def work_all(self, settings=({}, {}, {}), **options):
        """Returns the errors, as texts, of workers that end without training."""
        started = [
            self.work(index, lambda own=own: own, train=lambda: None, **options)
            for index, own in enumerate(settings)
        ]
        return [str(future.result(TIMEOUT)) for future in started]

    def train_all(self):
        """Returns the futures of three workers that are training."""
        trains = threading.Semaphore(0)

        def train():
            trains.release()
            self.assertTrue(self.is_over.wait(TIMEOUT))

        started = [self.work(index, train=train) for index in range(3)]
        for _ in started:
            self.assertTrue(trains.acquire(timeout=TIMEOUT), started)
        return started

    def end(self, *started):
        self.is_over.set()
        self.assertEqual([future.result(TIMEOUT) for future in started], [None] * len(started))

    def path(self, index):
        return os.path.join(self.output_dir, "workers", f"{index}.json")

    def write(self, index, content):
        """Writes a record as another process would: its fields, or invalid bytes."""
        if not isinstance(content, bytes):
            content = json.dumps({"done": False, **content}).encode()
        os.makedirs(os.path.dirname(self.path(index)), exist_ok=True)
        with open(self.path(index) + ".new", "wb") as writer:
            writer.write(content)
        os.replace(self.path(index) + ".new", self.path(index))

    def read(self, index):
        return cluster._Records(cluster.Cluster(self.addresses), self.output_dir).read(index)

    def wait_for(self, condition):
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def chief_id(self):
        self.wait_for(lambda: self.read(0))
        return self.read(0)["id"]

    def name(self, index):
        return f"worker {index} ({self.addresses[index]})" if index else self.chief()

    def chief(self):
        return f"the chief ({self.addresses[0]})"

    def work_with_one_by_hand(self, index, **options):
        """Writes the records of worker `index` by hand; returns the futures of the other workers.

        That worker has the id "hand" and sends no heartbeats.
        """
        if index == 0:
            self.write(0, {"id": "hand"})
        others = [i for i in range(len(self.addresses)) if i != index]
        started = [self.work(i, **options) for i in others]
        if index:
            self.write(index, {"id": "hand", "chief": self.chief_id(), "settings": {}})
        else:
            self.wait_for(lambda: all(self.read(i).get("chief") == "hand" for i in others))
            members = {"0": "hand", **{str(i): self.read(i)["id"] for i in others}}
            self.write(0, {"id": "hand", "members": members})
        return started

    def work_before_chief(self, index):
        """Returns the future of a worker that has reported to an earlier chief and is waiting."""
        self.write(0, {"id": "killed"})
        worker = self.work(index)
        self.wait_for(lambda: self.read(index))
        return worker

    def assert_losses(self, *expected):
        found = [self.losses.get(timeout=TIMEOUT) for _ in expected]
        self.assertCountEqual(found, expected)
        self.assertTrue(self.losses.empty())

    def test_all_workers_train_and_end_without_losses(self):
        remote = [] if tf.__version__.startswith("1.") else ["ram://cluster_test/output"]
        for output_dir in [self.output_dir, *remote]:
            self.output_dir = output_dir
            self.is_over.clear()
            for _ in range(2):
                self.end(*self.train_all())
            self.assertEqual(gfile.listdir(output_dir), [])
            self.assertTrue(self.losses.empty())

    def test_finished_workers_are_not_reported_lost(self):
        chief = self.work(0)
        others = [self.work(index, train=lambda: None) for index in (1, 2)]
        self.assertEqual([other.result(TIMEOUT) for other in others], [None, None])
        beat = self.read(0).get("beat", 0)
        self.wait_for(lambda: self.read(0).get("beat", 0) > beat + 5)
        self.end(chief)
        self.assertTrue(self.losses.empty())

    def test_single_worker_does_not_wait(self):
        self.addresses = self.addresses[:1]
        self.assertEqual(self.work_all([{}]), ["None"])
        self.assertEqual(os.listdir(self.output_dir), [])

    def test_differing_settings_are_refused_on_all_workers(self):
        started = [self.work(index, lambda: {"model: size": 8}) for index in (0, 1)]
        self.wait_for(lambda: self.read(1))
        started.append(self.work(2, lambda: {"model: size": 4}))
        message = f"model: size of {self.name(2)} differs from the chief's: 4, not 8."
        errors = [str(future.result(TIMEOUT)) for future in started]
        self.assertEqual(errors, ["TF_CONFIG: " + message] * 3)

    def test_setting_missing_on_one_worker_is_refused(self):
        self.addresses = self.addresses[:2]
        for own, others in (({}, {"weights": [1, 2]}), ({"weights": (1, 2)}, {})):
            for error in self.work_all([own, others]):
                self.assertIn("weights of worker 1 (", error)
                self.assertIn(f": {others.get('weights')}, not ", error)
        self.assertEqual(self.work_all([{"weights": (1, 2)}] * 2), ["None"] * 2)

    def test_workers_adopt_the_chiefs_decisions(self):
        """The chief's decisions override those of a killed chief and those of the worker itself."""
        self.write(0, {"id": "killed", "decided": {"precision": "bfloat16"}})
        asked, own = [], {"precision": "float64"}

        def settings(decided):
            asked.append(decided["precision"])
            return decided

        others = [self.work(index, settings, decided=own) for index in (1, 2)]
        self.wait_for(lambda: len(asked) == 2)
        self.end(self.work(0, settings, decided={"precision": "float32"}), *others)
        self.assertEqual(asked, ["bfloat16"] * 2 + ["float32"] * 3)

    def test_worker_error_is_not_reported_as_missing_chief(self):
        def broken():
            raise UserError("--output_dir cannot be read.")

        self.write(0, {"id": "chief"})
        error = self.work(1, broken).result(TIMEOUT)
        self.assertEqual(str(error), "--output_dir cannot be read.")

    def test_missing_worker_or_chief_is_reported(self):
        share = f"; all workers must share --output_dir ({self.output_dir})."
        late = f"TF_CONFIG: {self.name(2)} did not arrive in 2 seconds{share}"
        other = self.work_before_chief(1)
        chief = self.work(0, seconds=2.0)
        self.assertEqual([str(f.result(TIMEOUT)) for f in (chief, other)], [late] * 2)
        other = self.work(1, seconds=0.1).result(TIMEOUT)  # Only the old chief's record exists.
        late = f"TF_CONFIG: {self.chief()} did not answer within 0.1 seconds{share}"
        self.assertEqual(str(other), late)

    def test_chief_continues_without_an_unneeded_worker(self):
        other = self.work_before_chief(1)
        started = self.work(0, seconds=2.0, needs_all=False), other
        self.wait_for(lambda: self.read(0).get("members"))
        self.assertEqual(self.read(0)["members"], {str(i): self.read(i)["id"] for i in (0, 1)})
        self.end(*started)
        self.assertTrue(self.losses.empty())

    def test_worker_that_timed_out_can_be_started_again(self):
        chief = self.work(0)
        self.chief_id()
        self.assertIn("did not answer", str(self.work(1, seconds=0.5).result(TIMEOUT)))
        self.assertTrue(self.read(1)["left"])
        self.end(chief, self.work(1), self.work(2))
        self.assertTrue(self.losses.empty())

    def test_answer_remains_readable_after_chief_ends(self):
        self.addresses = self.addresses[:2]
        (chief,) = self.work_with_one_by_hand(1, train=lambda: None)
        self.assertIsNone(chief.result(TIMEOUT))
        self.assertEqual(self.read(0)["members"]["1"], "hand")

    def test_records_of_earlier_runs_are_ignored(self):
        self.write(0, {"id": "a", "members": {"0": "a", "1": "b"}, "problem": "other settings"})
        self.write(1, {"id": "b", "chief": "a", "settings": {"step": 7}, "left": True})
        self.write(2, {"id": "c", "chief": "a", "settings": {}})
        asked = []

        def settings():  # The chief removes the checkpoint of step 20 meanwhile.
            asked.append(0 if asked else 20)
            return {"step": asked[-1]}

        others = self.work(1, settings), self.work(2, lambda: {"step": 0})
        self.wait_for(lambda: asked)
        self.end(self.work(0, lambda: {"step": 0}), *others)
        self.assertEqual(asked, [20, 0])

    def test_worker_killed_while_waiting_can_be_restarted(self):
        chief = self.work(0)
        self.write(1, {"id": "killed", "chief": self.chief_id(), "settings": {}})
        other = self.work(1)
        self.wait_for(lambda: self.read(1)["id"] != "killed")
        self.end(chief, other, self.work(2))
        self.assertTrue(self.losses.empty())

    def test_worker_restarted_during_training_is_reported_lost(self):
        for index in (0, 1):
            self.output_dir = os.path.join(self.output_dir, str(index))
            others = [i for i in range(3) if i != index]
            with mock.patch.object(cluster, "_SILENCE_SECONDS", 1000.0):
                started = self.work_with_one_by_hand(index)
                self.wait_for(lambda o=others: all(self.read(i).get("beat") for i in o))
                again = self.work(index, seconds=1.0)
                self.assert_losses(*((i, self.name(index)) for i in others))
            self.assertIsInstance(again.result(TIMEOUT), UserError)  # No peer joins it here.
            self.end(*started)
            self.is_over.clear()

    def test_silent_worker_is_reported_lost(self):
        for index in (0, 1):
            self.output_dir = os.path.join(self.output_dir, str(index))
            started = self.work_with_one_by_hand(index)
            self.assert_losses(*((i, self.name(index)) for i in range(3) if i != index))
            self.end(*started)
            self.is_over.clear()

    def test_failed_or_interrupted_worker_is_reported_lost(self):
        """A process that is training restarts. One that was interrupted or that failed does not."""
        for error in (KeyboardInterrupt(), UserError("--learning_rate."), ValueError("a bug")):
            leaves = self.work(1, train=mock.Mock(side_effect=error))
            started = [self.work(index) for index in (0, 2)]
            self.assertIs(leaves.result(TIMEOUT), error)
            self.assert_losses((0, self.name(1)), (2, self.name(1)))
            self.end(*started)
            self.is_over.clear()

    def test_lost_chief_is_reported_after_connection_error(self):
        self.addresses = self.addresses[:2]
        error = tf.errors.UnavailableError(None, None, "Connection reset by peer")
        (other,) = self.work_with_one_by_hand(0, train=mock.Mock(side_effect=error))
        self.assert_losses((1, self.chief()))
        self.assertIs(other.result(TIMEOUT), error)

    def test_tensorflow_error_without_lost_peer_ends_the_worker(self):
        self.addresses = self.addresses[:2]
        fails = mock.Mock(side_effect=tf.errors.InvalidArgumentError(None, None, "a bug"))
        chief, other = self.work(0), self.work(1, train=fails)
        self.assertIsInstance(other.result(TIMEOUT), tf.errors.InvalidArgumentError)
        self.assert_losses((0, self.name(1)))
        self.end(chief)

    def test_damaged_records_are_ignored(self):
        damaged = [b"", b"{", b"[]", b"[" * 100000, b"\xff"]
        damaged += [{}, {"id": 1}, {"id": "a", "members": []}, {"id": "a", "settings": "x"}]
        for content in damaged:
            self.write(0, content)
            self.assertEqual(self.read(0), {}, str(content)[:20])
        for content in damaged[:4]:
            for index in range(3):
                self.write(index, content)
            self.assertEqual(self.work_all(), ["None"] * 3)
        started = self.train_all()
        self.write(1, b"{")
        self.wait_for(lambda: self.read(1))
        self.end(*started)
        self.assertTrue(self.losses.empty())

    def test_unwritable_folder_is_reported(self):
        with open(os.path.dirname(self.path(0)), "w"):
            self.assertIn("cannot be written", str(self.work(0).result(TIMEOUT)))

    def test_port_in_use_is_reported(self):
        for index in (0, 1):
            with socket.socket() as other:
                other.bind(("127.0.0.1", int(self.addresses[index].split(":")[1])))
                other.listen(1)
                error = str(self.work(index).result(TIMEOUT))
            self.assertRegex(error, f"{self.addresses[index]} .*in use")
        self.assertEqual(os.listdir(self.output_dir), [])

    def test_training_workers_leave_their_ports_closed(self):
        started = self.train_all()
        for address in self.addresses:
            with socket.socket() as client:
                self.assertTrue(client.connect_ex(("127.0.0.1", int(address.split(":")[1]))))
        self.end(*started)


class StartAgainTest(tf.test.TestCase):
    def test_restart_cleans_up_before_exec(self):
        done = mock.Mock()
        with mock.patch.object(os, "execv", done.execv):
            cluster._restart(done.clean_up, "worker 1")
        self.assertEqual([call[0] for call in done.method_calls], ["clean_up", "execv"])


@unittest.skipIf(tf.__version__.startswith("1."), "--distribution needs TensorFlow 2")
@pytest.mark.estimator
class ScriptRendezvousTest(ScriptTestCase):
    """Every worker stops at its rendezvous."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.trained = os.path.join(cls.root, "trained")
        code, _, stderr = cls.call(cls.trained, "--do_train")
        assert code is None, stderr

    def rendezvous(self, index, *arguments, then=None):
        """Runs a worker up to its rendezvous; returns its settings, or the result of `then`.

        `then` gets the arguments of `cluster.rendezvous` from `settings` on.
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
            flags = ["--do_train", "--distribution=multi_worker", "--precision=auto", *arguments]
            code, _, stderr = self.call(self.output_dir, *flags)
        self.assert_one_sentence(code, stderr, ["All have come"])
        return found[0]

    def test_differing_flags_yield_differing_settings(self):
        chief = self.rendezvous(0)
        self.assertEqual(self.rendezvous(1), chief)
        for flag, name in (
            ("--class_weights=1,2", "training: class_weights"),
            ("--adapter_normalization=layer", "model: adapter_normalization"),
        ):
            other = self.rendezvous(1, flag)
            differing = {key for key in {**chief, **other} if chief.get(key) != other.get(key)}
            self.assertIn(name, differing)

    def test_only_the_chief_measures_precision(self):
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
            self.assertEqual(workers, "float32")  # Differs from the chief's, so that it is refused.
        self.assertEqual(measured.call_count, 1)

    def test_worker_adopts_chiefs_precision_and_run_identity(self):
        def trained(settings, decided, *rest):
            settings({"precision": "bfloat16"})
            (model, *_), _ = built.call_args
            return model.precision, model.run_identity

        half = {"float32": 2.0, "bfloat16": 1.0}
        processor = {"has_bfloat16": lambda: True, "product_seconds": lambda *_: half}
        spied = mock.patch.object(
            estimator, "build_estimator", side_effect=estimator.build_estimator
        )
        with mock.patch.multiple(devices, **processor), spied as built:
            chief = self.rendezvous(0, then=trained)
            self.assertEqual(chief[0], "bfloat16")
            self.assertEqual(self.rendezvous(1, then=trained), chief)

    def test_settings_include_the_last_checkpoint(self):
        name = "last checkpoint in --output_dir"
        self.assertEqual(self.rendezvous(1)[name], 0)
        shutil.rmtree(self.output_dir, ignore_errors=True)
        shutil.copytree(self.trained, self.output_dir)
        self.assertGreater(self.rendezvous(1)[name], 0)

    def test_no_worker_is_needed_after_the_last_step(self):
        def needs_all(settings, decided, seconds, needed, clean_up):
            return needed

        self.assertTrue(self.rendezvous(0, then=needs_all))
        shutil.rmtree(self.output_dir)
        shutil.copytree(self.trained, self.output_dir)
        self.assertFalse(self.rendezvous(0, then=needs_all))
        with mock.patch.object(estimator.Estimator, "last_step", side_effect=self.fail):
            self.rendezvous(1, then=needs_all)  # The chief may be clearing the folder.

    def test_cleanup_removes_copy_of_supplied_adapter(self):
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


class DamagedConfigTest(tf.test.TestCase):
    def test_a_damaged_tf_config_is_read_or_refused(self):
        machines = {"chief": ["a:1234"], "worker": ["b:1", "c:2"]}
        config = {"cluster": machines, "task": {"type": "worker", "index": 1}}

        def read(folder):
            content = b"".join(mutations.files_in(folder).values()).replace(b"\0", b"")
            value = content.decode("utf-8", "surrogateescape")
            with mock.patch.dict(os.environ, {cluster.VARIABLE: value}):
                cluster.from_environment()

        mutations.check({"TF_CONFIG.json": json.dumps(config).encode()}, read, ("TF_CONFIG",))
