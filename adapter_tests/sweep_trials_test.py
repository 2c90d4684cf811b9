"""Tests of sweep_trials.py; what a trial comes to is tested with sweeps.py."""

import os
import tempfile

import tensorflow.compat.v1 as tf

import sweep_trials


class SweepTrialsTest(tf.test.TestCase):
    def test_a_lock_is_one_holders(self):
        folder = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "trial")
        one, other = sweep_trials.TrialFolder(folder), sweep_trials.TrialFolder(folder)
        lock = one.lock()
        self.assertIsNone(other.lock())
        os.close(lock)
        self.assertIsNotNone(other.lock())

    def test_the_reason_is_the_last_error_else_the_last_line(self):
        for said, reason in (
            ("Error: a\nError: b.\nmore\n", "b."),
            ("Traceback\r\nValueError: x\n\n", "ValueError: x"),
            ("", ""),
        ):
            self.assertEqual(sweep_trials.reason_in(said), reason)


if __name__ == "__main__":
    tf.test.main()
