"""Tests of progress.py: the output of a training with fake steps and time."""

import contextlib
import errno
import glob
import io
import os
import resource
import unittest
from unittest import mock

import tensorflow.compat.v1 as tf
from absl import logging
from absl.testing import parameterized
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

from adapter_bert.shell.errors import UserError
from adapter_bert.training import progress
from adapter_bert.training.progress import ProgressHook


def show_log(test):
    """Sets the verbosity of scripts, without which nothing is shown, for a test."""
    test.addCleanup(logging.set_verbosity, logging.get_verbosity())
    logging.set_verbosity(logging.INFO)


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    """A stand-in for the module `time` that the test advances."""

    now = 1000.0

    def monotonic(self):
        return self.now


class ProgressTest(parameterized.TestCase, tf.test.TestCase):
    """Trains a toy model whose loss is 100 - t in the step that makes global_step t."""

    def setUp(self):
        super().setUp()
        show_log(self)
        self.folder = self.get_temp_dir()
        self.clock = Clock()
        patch = mock.patch.object(progress, "time", self.clock)
        patch.start()
        self.addCleanup(patch.stop)

    def train(self, first, last, stream=None, seconds=2.0, by=1, scalars=None, total=30, **options):
        """Trains from step `first` to `last` in batches of 8; returns the text on stdout.

        Each run takes that many seconds and `by` steps.
        """
        with tf.Graph().as_default():
            step = tf.get_variable(
                "global_step",
                initializer=tf.constant(first, tf.int64),
                collections=[tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.GLOBAL_STEP],
                use_resource=False,
            )
            loss = 99.0 - tf.cast(step, tf.float32)
            if scalars is None:
                scalars = {"loss": loss, "learning_rate": loss * 1e-5, "gradient_norm": loss * 2.0}
            with tf.control_dependencies([loss]):
                train_op = tf.assign_add(step, by)
            hook = ProgressHook(total, 8, scalars, **options)
            with contextlib.redirect_stdout(stream or io.StringIO()) as shown:
                self.run_steps(train_op, len(range(first, last, by)), seconds, hooks=[hook])
        return shown.getvalue()

    def run_steps(self, train_op, count, seconds, session=tf.train.SingularMonitoredSession, **own):
        with session(**own) as session:
            for _ in range(count):
                self.clock.now += seconds
                session.run(train_op)

    def summaries(self):
        """Returns the summaries in the folder: {step: {tag: value}}."""
        return {
            event.step: {value.tag: value.simple_value for value in event.summary.value}
            for path in glob.glob(os.path.join(self.folder, "events.out.tfevents.*"))
            for event in tf.train.summary_iterator(path)
            if event.HasField("summary")
        }

    # Batches of 8 examples; a line is due every 5 seconds, and at the last step, 30.
    @parameterized.parameters(
        (
            (0, 8, 2.0),
            "step 1/30  loss 99.0000  lr 9.90e-04  4.0 examples/s  00:58 left",
            "step 4/30  loss 96.0000  lr 9.60e-04  4.0 examples/s  00:52 left",
            "step 7/30  loss 93.0000  lr 9.30e-04  4.0 examples/s  00:46 left",
        ),
        (
            (27, 30, 0.5),
            "step 28/30  loss 72.0000  lr 7.20e-04  16.0 examples/s  00:01 left",
            "step 30/30  loss 70.0000  lr 7.00e-04  16.0 examples/s  00:00 left",
        ),
    )
    def test_lines(self, training, *lines):
        first, last, seconds = training
        self.assertEqual(self.train(first, last, seconds=seconds).splitlines(), list(lines))

    def test_closed_stdout_stops_the_training_after_its_step(self):
        closed = io.StringIO()
        closed.write = mock.Mock(side_effect=BrokenPipeError(errno.EPIPE, "Broken pipe"))
        ends = mock.Mock()

        class Saving(tf.train.SessionRunHook):
            def end(self, session):
                ends(session.run(tf.train.get_global_step()))

        with tf.Graph().as_default():
            train_op = tf.train.get_or_create_global_step().assign_add(1)
            hooks = [Saving(), ProgressHook(30, 8, {})]
            with self.assertRaises(BrokenPipeError), contextlib.redirect_stdout(closed):
                self.run_steps(train_op, 1, 1.0, hooks=hooks)
        ends.assert_called_once_with(1)

    def test_tpu_scalars_are_averaged_over_replicas(self):
        # Two replicas send a value each; the line shows the mean.
        with tf.Graph().as_default():
            step = tf.train.get_or_create_global_step()
            values = tf.stack([1.0, 3.0]) * tf.cast(step + 1, tf.float32)
            host_call = progress.store_scalars(
                loss=values, learning_rate=values / 100, other=values
            )
            with tf.control_dependencies([host_call]):
                train_op = step.assign_add(1)
            self.assertEmpty([v for v in tf.global_variables() if "progress" in v.name])
            hook = ProgressHook(2, 8, None, self.folder)
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                self.run_steps(train_op, 2, 8.0, hooks=[hook])
        self.assertEqual(
            shown.getvalue().splitlines(),
            [
                "step 1/2  loss 2.0000  lr 2.00e-02  1.0 examples/s  00:08 left",
                "step 2/2  loss 4.0000  lr 4.00e-02  1.0 examples/s  00:00 left",
            ],
        )
        self.assertEqual(
            set(self.summaries()[2]), {"loss", "learning_rate", "other", "examples_per_second"}
        )

    def test_grouped_steps_are_shown_without_scalars(self):
        # 56 examples in 2.8 seconds.
        toy = {"seconds": 2.8, "by": 7, "scalars": {}}
        self.assertEqual(
            self.train(0, 21, summary_dir=self.folder, **toy).splitlines(),
            ["step 7/30  20.0 examples/s  00:09 left", "step 21/30  20.0 examples/s  00:03 left"],
        )
        self.assertIn("step 21/30", self.train(0, 21, Terminal(), **toy).split("\r")[-1])
        found = self.summaries()
        self.assertEqual(sorted(found), [7, 14, 21])
        for values in found.values():
            self.assertEqual(set(values), {"examples_per_second"})
            self.assertAllClose(values["examples_per_second"], 20.0)

    def test_summaries_are_written_every_ten_steps_of_a_long_training(self):
        self.train(0, 30, summary_dir=self.folder, total=500)
        found = self.summaries()
        self.assertEqual(sorted(found), [10, 20, 30])
        for step, values in found.items():
            expected = {
                "loss": 100.0 - step,
                "learning_rate": (100.0 - step) * 1e-5,
                "gradient_norm": (100.0 - step) * 2.0,
                "examples_per_second": 4.0,
            }
            self.assertEqual(set(values), set(expected))
            for tag, value in expected.items():
                self.assertAllClose(values[tag], value, rtol=1e-6)

    def test_resumed_training_summarizes_its_last_step(self):
        for first, last in ((17, 27), (27, 30)):
            self.train(first, last, summary_dir=self.folder)
        losses = {step: values["loss"] for step, values in self.summaries().items()}
        self.assertEqual(losses, {step: 100.0 - step for step in range(18, 31)})

    def test_terminal_shows_a_bar_from_the_resumed_step(self):
        text = self.train(20, 30, Terminal())
        self.assertEqual(text.count("\n"), 1)
        drawn = text.split("\r")
        self.assertRegex(drawn[1], r"67%\|.*\| step 20/30")
        self.assertIn("loss 79.0000  lr 7.90e-04  4.0 examples/s", text)
        self.assertRegex(
            drawn[-1],
            r"^100%\|.*\| step 30/30 \[.*<.*, loss 70.0000  lr 7.00e-04  4.0 examples/s\]\n$",
        )

    def test_lines_start_at_restored_step(self):
        # As in an Estimator: the first step is known only once the checkpoint is restored.
        for steps, first_line in ((4, "step 1/30 "), (3, "step 5/30 ")):
            with tf.Graph().as_default():
                train_op = tf.assign_add(tf.train.get_or_create_global_step(), 1)
                with contextlib.redirect_stdout(io.StringIO()) as shown:
                    self.run_steps(
                        train_op,
                        steps,
                        1.0,
                        tf.train.MonitoredTrainingSession,
                        hooks=[ProgressHook(30, 8, {})],
                        checkpoint_dir=self.folder,
                        log_step_count_steps=None,
                    )
            self.assertStartsWith(shown.getvalue(), first_line)


class CountedTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        show_log(self)

    def count(self, seconds, total, stream=None):
        """Returns the output for examples that take `seconds` each, after a minute of waiting."""
        clock = Clock()

        def come():
            clock.now += 60.0
            for example, wait in enumerate(seconds):
                clock.now += wait
                yield example

        redirected = contextlib.redirect_stdout(stream or io.StringIO())
        with mock.patch.object(progress, "time", clock), redirected as shown:
            found = list(progress.show_progress(come(), total))
        self.assertEqual(found, list(range(len(seconds))))
        return shown.getvalue()

    def test_examples_print_lines_at_intervals(self):
        self.assertEqual(
            self.count([2.0] * 10, 10).splitlines(),
            [
                "example 4/10  0.5 examples/s  00:12 left",
                "example 7/10  0.5 examples/s  00:06 left",
                "example 10/10  0.5 examples/s  00:00 left",
            ],
        )
        self.assertEqual(
            self.count([3.0] * 3, 9000).splitlines(),
            ["example 3/9000  0.3 examples/s  7:29:51 left"],
        )
        self.assertEqual(self.count([], 0), "")

    def test_nothing_is_shown_without_the_log(self):
        logging.set_verbosity(logging.WARNING)
        self.assertEqual(self.count([2.0] * 10, 10), "")
        self.assertEqual(self.count([2.0] * 10, 10, Terminal()), "")

    def test_closed_stdout_is_accepted(self):
        with mock.patch.object(progress.sys, "stdout", None):
            self.assertEqual(list(progress.show_progress(iter("ab"), 2)), ["a", "b"])

    def test_terminal_shows_a_bar(self):
        text = self.count([2.0] * 4, 4, Terminal())
        self.assertEqual(text.count("\n"), 1)
        self.assertRegex(text.split("\r")[-1], r"\| example 4/4 \[.*, 0.5 examples/s\]\n$")


class SettingsTest(tf.test.TestCase):
    def test_written_settings_can_be_read_back(self):
        folder = self.get_temp_dir()
        progress.write_settings(folder, {"adapter_size": 64, "task_name": "CoLA"})
        (path,) = glob.glob(os.path.join(folder, "*.hparams"))
        data = {
            value.tag: plugin_data_pb2.HParamsPluginData.FromString(
                value.metadata.plugin_data.content
            )
            for event in tf.train.summary_iterator(path)
            for value in event.summary.value
        }
        start = data["_hparams_/session_start_info"].session_start_info.hparams
        self.assertEqual(start["adapter_size"].number_value, 64)
        self.assertEqual(start["task_name"].string_value, "CoLA")
        end = data["_hparams_/session_end_info"].session_end_info
        self.assertEqual(end.status, api_pb2.STATUS_SUCCESS)


class FullDiskTest(tf.test.TestCase):
    @unittest.skipIf(tf.__version__.startswith("1."), "TensorFlow 1's writer tells nobody")
    def test_full_disk_raises_user_error(self):
        folder = self.get_temp_dir()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, before)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        with self.assertRaisesRegex(UserError, r"tfevents.* cannot be written \(.+\)\.$"):
            progress.write_scalars(folder, 3, {"loss": 1.0})

    def test_impossible_folder_raises_user_error(self):
        file = os.path.join(self.get_temp_dir(), "file")
        with open(file, "w"):
            pass
        with self.assertRaisesRegex(UserError, f"^{file}/eval cannot be written "):
            progress.write_settings(f"{file}/eval", {"adapter_size": 64})

    def test_other_errors_are_not_converted(self):
        with self.assertRaisesRegex(RuntimeError, "^broken$"), progress.convert_write_errors():
            raise RuntimeError("broken")
