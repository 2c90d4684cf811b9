"""Tests of processes.py: values in order, and errors, of forked processes."""

import itertools
import os
import sys
import time
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.shell import control_groups, processes
from adapter_bert.shell.errors import UserError

needs_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are forked on Linux alone"
)


class MapInOrderTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        cores = mock.patch.object(control_groups, "num_processors", return_value=3)
        self.num_processors = cores.start()
        self.addCleanup(cores.stop)

    def test_values_are_in_order(self):
        for count in (0, 1, 31, 32, 47, 48, 100):
            found = list(processes.map_in_order(lambda i: (i, os.getpid()), range(count)))
            self.assertEqual([value for value, _ in found], list(range(count)))

    @needs_linux
    def test_many_values_come_from_several_processes(self):
        ids = set(processes.map_in_order(lambda _: os.getpid(), range(100)))
        self.assertLen(ids, 3)
        self.assertNotIn(os.getpid(), ids)
        for process in ids:
            self.assertFalse(os.path.exists(f"/proc/{process}"))

    def test_one_core_computes_here(self):
        self.num_processors.return_value = 1
        ids = set(processes.map_in_order(lambda _: os.getpid(), range(100)))
        self.assertEqual(ids, {os.getpid()})

    def test_first_error_is_raised(self):
        def fail(number):
            if number >= 50:
                raise UserError(f"number {number}")
            return number

        values = processes.map_in_order(fail, range(100))
        self.assertEqual(list(itertools.islice(values, 50)), list(range(50)))
        with self.assertRaisesRegex(UserError, "number 50"):
            next(values)

    @needs_linux
    def test_killed_process_is_an_error(self):
        def end(number):
            return number if number < 50 else os._exit(1)

        with self.assertRaisesRegex(RuntimeError, "has ended"):
            list(processes.map_in_order(end, range(100)))

    @needs_linux
    def test_processes_end_with_their_reader(self):
        values = processes.map_in_order(lambda _: (os.getpid(), "x" * 1_000_000), range(100))
        (process, _) = next(values)
        values.close()
        time.sleep(0.1)
        self.assertFalse(os.path.exists(f"/proc/{process}"))


if __name__ == "__main__":
    tf.test.main()
