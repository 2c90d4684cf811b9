"""Tests of hooks.py on a graph that only counts its steps."""

import ctypes
import os
import signal
import time

import tensorflow.compat.v1 as tf

from adapter_bert.shell.errors import UserError
from adapter_bert.training import hooks
from adapter_tests.support import tiny


class Kill(tf.train.SessionRunHook):
    """Sends signals to its own process after each step."""

    def __init__(self, *numbers):
        self._numbers = numbers

    def after_run(self, run_context, run_values):
        for number in self._numbers:
            os.kill(os.getpid(), number)


class OneSessionTest(tf.test.TestCase):
    def test_only_a_second_session_of_a_prediction_is_refused(self):
        hook = hooks.OneSession()
        for _ in range(2):
            hook.begin()
            hook.after_create_session(None, None)
        with self.assertRaisesRegex(UserError, "lost during the prediction"):
            hook.after_create_session(None, None)


class HooksTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        tiny.enable_signals(self)

    def train(self, steps, *own_hooks, loss_of=tf.cast):
        """Counts to `steps` from the folder's last checkpoint; returns the step.

        The loss of step t is `loss_of(t, tf.float32)`.
        """
        folder = self.get_temp_dir()
        with tf.Graph().as_default():
            step = tf.train.get_or_create_global_step()
            train_op = step.assign_add(1)
            with tf.control_dependencies([train_op]):  # As in Estimator.
                tf.add_to_collection(tf.GraphKeys.LOSSES, loss_of(train_op, tf.float32))
            saver = tf.train.Saver([step])
            tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
            with tf.train.MonitoredTrainingSession(
                hooks=[tf.train.StopAtStepHook(last_step=steps), *own_hooks],
                scaffold=tf.train.Scaffold(saver=saver),
                checkpoint_dir=folder,
                save_checkpoint_secs=None,
                log_step_count_steps=None,
                save_summaries_steps=None,
            ) as session:
                reached = 0
                while not session.should_stop():
                    reached = session.run(train_op)
                return reached

    def saved(self):
        names = os.listdir(self.get_temp_dir())
        return sorted(
            int(name.split("-")[1].split(".")[0]) for name in names if name.endswith(".index")
        )

    def test_checkpoints_are_saved_at_multiples_and_at_the_end(self):
        self.train(7, hooks.SaveHook(self.get_temp_dir(), 3))
        self.assertEqual(self.saved(), [3, 6, 7])
        self.train(9, hooks.SaveHook(self.get_temp_dir(), 3))
        self.assertEqual(self.saved(), [3, 6, 7, 9])
        self.assertEmpty([n for n in os.listdir(self.get_temp_dir()) if n.endswith(".meta")])

    def test_step_with_non_finite_loss_is_not_saved(self):
        def loss_of(step, dtype):
            return tf.constant(1.0, dtype) / tf.cast(5 - step, dtype)

        with self.assertRaises(tf.train.NanLossDuringTrainingError):
            self.train(7, hooks.SaveHook(self.get_temp_dir(), 1), loss_of=loss_of)
        self.assertEqual(self.saved(), [1, 2, 3, 4])

    def test_signal_stops_after_the_step_and_handler_is_restored(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before = signal.getsignal(number)
            with self.assertRaises(KeyboardInterrupt), hooks.StopOnInterrupt() as interrupt:
                reached = self.train(5, Kill(number), interrupt)
            self.assertEqual(reached, 1)
            self.assertEqual(signal.getsignal(number), before)

    def test_signal_handler_replaced_by_tensorflow_is_restored(self):
        class Take(tf.train.SessionRunHook):
            def begin(self):  # Bypasses Python, like TensorFlow's server for several workers.
                ctypes.CDLL(None).signal(signal.SIGTERM, int(signal.SIG_IGN))

        with self.assertRaises(KeyboardInterrupt), hooks.StopOnInterrupt() as interrupt:
            reached = self.train(5, Take(), Kill(signal.SIGTERM), interrupt)
        self.assertEqual(reached, 1)

    def test_signal_before_the_session_counts_as_the_first(self):
        with self.assertRaises(KeyboardInterrupt), hooks.StopOnInterrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGTERM)
            self.train(5, Kill(signal.SIGTERM), interrupt, hooks.SaveHook(self.get_temp_dir(), 1))
        self.assertEmpty(self.saved())

    def test_second_signal_stops_at_once_only_if_it_is_the_same(self):
        """A scheduler may signal a sweep and its trials; the sweep then interrupts them, too."""
        with self.assertRaises(KeyboardInterrupt), hooks.StopOnInterrupt() as interrupt:
            reached = self.train(5, Kill(signal.SIGTERM), Kill(signal.SIGINT), interrupt)
        self.assertEqual(reached, 1)
        twice = Kill(signal.SIGTERM, signal.SIGTERM)
        with self.assertRaises(KeyboardInterrupt), hooks.StopOnInterrupt() as interrupt:
            self.train(5, twice, interrupt, hooks.SaveHook(self.get_temp_dir(), 1))
        self.assertEmpty(self.saved())

    def test_ctrl_c_replaces_errors_except_user_errors(self):
        for raised, expected in ((ValueError(), KeyboardInterrupt), (UserError("full"), UserError)):
            with self.assertRaises(expected), hooks.StopOnInterrupt():
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)  # Python runs the handler between two instructions.
                raise raised

    def test_training_without_signals_ends_normally(self):
        with hooks.StopOnInterrupt() as interrupt:
            self.assertEqual(self.train(2, interrupt), 2)
