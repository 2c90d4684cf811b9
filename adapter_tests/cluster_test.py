"""Tests of cluster.py: TF_CONFIG as it comes, and workers that meet over loopback."""

import contextlib
import json
import os
import socket
import threading
import time
import unittest
from concurrent import futures
from unittest import mock

import tensorflow.compat.v1 as tf

import cluster
from adapter_tests import tiny
from errors import UserError


class FromEnvironmentTest(tf.test.TestCase):
    def read(self, config):
        text = config if isinstance(config, str) else json.dumps(config)
        with mock.patch.dict(os.environ, {"TF_CONFIG": text}):
            try:
                return cluster.from_environment()
            finally:  # TensorFlow itself cannot read what is empty.
                self.assertEqual("TF_CONFIG" in os.environ, bool(text.strip()))

    def test_no_cluster(self):
        for config in ("", " ", {}, {"cluster": {}}, {"task": {"type": "worker", "index": 0}}):
            self.assertEqual(self.read(config), cluster.Cluster())
        with mock.patch.dict(os.environ):
            os.environ.pop("TF_CONFIG", None)
            self.assertEqual(cluster.from_environment(), cluster.Cluster())

    def test_workers(self):
        jobs = {"worker": ["a:1", "b:2", "c:3"]}
        found = self.read({"cluster": jobs, "task": {"type": "worker", "index": 2}})
        self.assertEqual(found, cluster.Cluster(("a:1", "b:2", "c:3"), 2))
        self.assertFalse(found.is_chief)
        found = self.read({"cluster": jobs, "task": {"type": "worker", "index": "0"}})
        self.assertTrue(found.is_chief)

    def test_a_chief(self):
        jobs = {"worker": ["b:2", "[::1]:3"], "chief": ["a:1"]}
        addresses = ("a:1", "b:2", "[::1]:3")
        for kind, index, place in (("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)):
            found = self.read({"cluster": jobs, "task": {"type": kind, "index": index}})
            self.assertEqual(found, cluster.Cluster(addresses, place))

    def test_what_is_malformed_is_named(self):
        own = {"type": "worker", "index": 0}

        def worker(addresses, task=own):
            return {"cluster": {"worker": addresses}, "task": task}

        for config, part in (
            ("{", "cannot be read"),
            ("[]", "cannot be read"),
            ("[" * 100000, "cannot be read"),
            ({"cluster": ["a:1"]}, "cannot be read"),
            (worker("a:1"), "worker is no list"),
            (worker(["a"]), "'a' is no host:port"),
            (worker(["a:b"]), "'a:b' is no host:port"),
            (worker(["a:99999"]), "'a:99999' is no host:port"),
            (worker(["http://a:1"]), "'http://a:1' is no host:port"),
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

    def test_hidden(self):
        with mock.patch.dict(os.environ, {"TF_CONFIG": "x"}):
            with cluster.hidden():
                self.assertNotIn("TF_CONFIG", os.environ)
            self.assertEqual(os.environ["TF_CONFIG"], "x")


class MeetingTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.addresses = tuple(f"127.0.0.1:{tiny.free_port()}" for _ in range(3))
        self.lost = []
        self.changed = threading.Event()

    def note_loss(self, name):
        self.lost.append(name)
        self.changed.set()

    def meet(self, facts, seconds=20.0, **options):
        """What each worker (index → facts) comes back with: its `Meeting`, or its UserError."""
        results = {}

        def come(index):
            workers = cluster.Cluster(self.addresses, index)
            try:
                results[index] = cluster.meet(
                    workers, lambda: facts[index], seconds, self.note_loss, **options
                )
            except UserError as error:
                results[index] = error

        threads = [threading.Thread(target=come, args=(index,)) for index in facts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def test_all_come_and_nobody_is_missed_after_the_end(self):
        meetings = self.meet({0: {"a": 1}, 1: {"a": 1}, 2: {"a": 1}})
        for meeting in meetings.values():
            meeting.end()
        self.assertFalse(self.changed.wait(0.5))

    def test_a_worker_that_goes_is_missed_once(self):
        meetings = self.meet({0: {}, 1: {}, 2: {}})
        (connection,) = meetings[2]._connections.values()
        meetings[2]._over.set()  # As if its process were gone.
        connection.shutdown(socket.SHUT_RDWR)
        connection.close()
        self.assertTrue(self.changed.wait(20))
        self.assertEqual(self.lost, [f"worker 2 ({self.addresses[2]})"])
        for index in (0, 1):
            meetings[index].end()

    def test_what_ends_a_worker_decides_whether_it_starts_again(self):
        """An error that is TensorFlow's may be of the other's loss; the others are its own."""
        self.addresses = self.addresses[:2]
        for error, starts in (
            (KeyboardInterrupt(), 0),
            (UserError("--learning_rate is too high."), 0),
            (tf.errors.UnavailableError(None, None, "gone"), 1),
        ):
            before = set(threading.enumerate())
            with mock.patch.object(cluster, "_start_again") as start_again:
                with futures.ThreadPoolExecutor(1) as pool:
                    chief = pool.submit(self.meet, {0: {}})
                    workers = cluster.Cluster(self.addresses, 1)
                    with self.assertRaises(type(error)), cluster.met(
                        workers, dict, 20.0, True, self.fail
                    ):
                        raise error
                meeting = chief.result()[0]
                meeting._over.set()
                (connection,) = meeting._connections.values()
                connection.shutdown(socket.SHUT_RDWR)  # The chief ends, too.
                connection.close()
                for watch in set(threading.enumerate()) - before:
                    watch.join(20)
            self.assertEqual(start_again.call_count, starts, error)

    def test_what_is_left_behind_goes_before_it_starts_again(self):
        done = mock.Mock()
        with mock.patch.object(os, "execv", done.execv):
            cluster._start_again(done.clean_up, "worker 1")
        self.assertEqual([call[0] for call in done.method_calls], ["clean_up", "execv"])

    @unittest.skipUnless(hasattr(socket, "TCP_KEEPIDLE"), "the system decides")
    def test_a_host_without_power_is_missed_within_a_minute(self):
        for meeting in self.meet({0: {}, 1: {}, 2: {}}).values():
            for connection in meeting._connections.values():
                self.assertTrue(connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
                idle, interval, count = (
                    connection.getsockopt(socket.IPPROTO_TCP, option)
                    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                )
                self.assertLessEqual(idle + interval * count, 60)
            meeting.end()

    def test_other_facts(self):
        results = self.meet({0: {"model: size": 8}, 1: {"model: size": 8}, 2: {"model: size": 4}})
        self.assertEqual(
            str(results[0]),
            f"TF_CONFIG: worker 2 ({self.addresses[2]}) has another model: size than the chief: 4,"
            " not 8.",
        )
        self.assertEqual(str(results[2]), str(results[0]))

    def test_a_fact_that_only_one_of_both_has(self):
        self.addresses = self.addresses[:2]
        for own, others in (({}, {"weights": [1, 2]}), ({"weights": [1, 2]}, {})):
            message = f"another weights than the chief: {others.get('weights')}, not"
            for refusal in self.meet({0: own, 1: others}).values():
                self.assertIn(message, str(refusal))

    def test_a_workers_own_error_is_not_taken_for_a_missing_chief(self):
        def broken():
            raise UserError("--output_dir cannot be read.")

        workers = cluster.Cluster(self.addresses, 1)
        with socket.socket() as chief:
            chief.bind(("127.0.0.1", int(self.addresses[0].split(":")[1])))
            chief.listen(1)
            with self.assertRaisesRegex(UserError, "--output_dir cannot be read"):
                cluster.meet(workers, broken, 2.0, self.note_loss)

    def test_a_missing_worker(self):
        with futures.ThreadPoolExecutor(1) as pool:
            chief = pool.submit(self.meet, {0: {}}, seconds=5.0)
            results = {**self.meet({1: {}}), **chief.result()}
        for refusal in results.values():
            self.assertEqual(
                str(refusal),
                f"TF_CONFIG: worker 2 ({self.addresses[2]}) did not come within 5 seconds.",
            )

    def test_a_missing_worker_that_is_not_needed(self):
        with futures.ThreadPoolExecutor(1) as pool:
            chief = pool.submit(self.meet, {0: {}}, seconds=8.0, needs_all=False)
            meetings = {**self.meet({1: {}}), **chief.result()}
        for meeting in meetings.values():
            self.assertIsInstance(meeting, cluster.Meeting, meeting)
            meeting.end()
        self.assertFalse(self.changed.wait(0.2))

    def test_a_worker_that_gave_up_is_not_waited_for_later(self):
        with futures.ThreadPoolExecutor(1) as pool:
            chief = pool.submit(self.meet, {0: {}}, seconds=5.0, needs_all=False)
            self.assertEqual(str(self.meet({1: {}}, seconds=2.0)[1]), self.no_chief())
            meeting = chief.result()[0]
        self.assertFalse(self.changed.wait(0.2))
        meeting.end()

    def test_a_missing_chief(self):
        self.assertEqual(str(self.meet({1: {}}, seconds=2.0)[1]), self.no_chief())

    def no_chief(self):
        return f"TF_CONFIG: the chief ({self.addresses[0]}) did not answer within 2 seconds."

    def test_a_port_that_is_taken(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", int(self.addresses[0].split(":")[1])))
            other.listen(1)
            self.assertRegex(str(self.meet({0: {}})[0]), "cannot be listened at .*in use")

    def test_strangers_and_workers_that_come_twice(self):
        said = (b"GET / HTTP/1.1\r\n\r\n", b'{"index": 7, "facts": {}}\n', b"", b"[]\n")
        said += (
            b'{"index": [], "facts": {}}\n',
            b'{"index": 1, "facts": 1}\n',
            b"[" * 9999 + b"\n",
        )
        # The last one stands for a worker 1 that was killed while it waited.
        said += (b'{"index": 1, "facts": {}}\n',)

        def disturb():
            host, port = self.addresses[0].split(":")
            for message in said:
                deadline = time.monotonic() + 10
                while time.monotonic() < deadline:
                    with contextlib.suppress(OSError):
                        with socket.create_connection((host, int(port)), timeout=5) as connection:
                            connection.sendall(message)
                        break
                    time.sleep(0.01)

        chief = threading.Thread(target=lambda: found.update(self.meet({0: {}})))
        found = {}
        chief.start()
        disturb()
        found.update(self.meet({1: {}, 2: {}}))
        chief.join()
        for meeting in found.values():
            self.assertIsInstance(meeting, cluster.Meeting, meeting)
        for meeting in found.values():
            meeting.end()


if __name__ == "__main__":
    tf.test.main()
