"""Tests of sweep.py; what a trial comes to is tested with sweep.py."""

import errno
import os
import signal
import sys
import tempfile
from unittest import mock

import tensorflow.compat.v1 as tf

from adapter_bert.experiments import sweep


class SweepTrialsTest(tf.test.TestCase):
    def test_a_lock_is_one_holders(self):
        folder = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "trial")
        one, other = sweep.TrialFolder(folder), sweep.TrialFolder(folder)
        lock = one.lock()
        self.assertIsNone(other.lock())
        os.close(lock)
        self.assertIsNotNone(other.lock())

    def test_whether_it_runs_is_seen_where_nothing_can_be_written(self):
        folder = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "trial")
        trial, real = sweep.TrialFolder(folder), os.open

        def read_only(path, flags, *more, **options):
            if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                raise OSError(errno.EROFS, "Read-only file system")
            return real(path, flags, *more, **options)

        self.assertFalse(trial.is_running())
        self.assertFalse(os.path.exists(folder))
        lock = trial.lock()
        with open(os.path.join(folder, "log.txt"), "w"):
            pass
        with mock.patch.object(os, "open", read_only):
            self.assertTrue(trial.is_running())
            os.close(lock)
            self.assertFalse(trial.is_running())

    def test_it_can_be_interrupted_though_its_sweep_cannot(self):
        """A shell's script starts what stands before "&" so."""
        folder = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "trial")
        trial = sweep.TrialFolder(folder)
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        lock = trial.lock()
        program = "import signal; print(signal.getsignal(2) is signal.default_int_handler)"
        process = trial.start([sys.executable, "-c", program], lock)
        os.close(lock)
        self.assertEqual(process.wait(), 0)
        self.assertEqual(trial.last_line(), "True")

    def test_the_reason_is_the_last_error_else_the_last_line(self):
        for said, reason in (
            ("Error: a\nError: b.\nmore\n", "b."),
            ("Traceback\r\nValueError: x\n\n", "ValueError: x"),
            ("", ""),
        ):
            self.assertEqual(sweep.failure_reason(said), reason)


if __name__ == "__main__":
    tf.test.main()
