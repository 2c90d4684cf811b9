"""What a training does between its steps: end when asked to, and save."""

import contextlib
import posixpath
import signal

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from adapter_bert.common import interrupts
from adapter_bert.common.errors import UserError
from adapter_bert.formats import checkpoints


class StopOnInterrupt(tf.train.SessionRunHook):
    """While entered, Ctrl-C, SIGTERM and SIGHUP end a training after its step, which is saved.

    Leaving raises KeyboardInterrupt then, whatever else ended the training meanwhile; but what kept
    the step from being saved is told. The same signal once more does not wait.
    """

    def __enter__(self):
        self._is_stop_requested = False
        self._signal_handlers = contextlib.ExitStack()
        self._signal_handlers.enter_context(interrupts.handle_signals(self._request_stop))
        return self

    def after_create_session(self, session, coord):
        """Takes SIGTERM back from TensorFlow, which keeps it when it connects workers."""
        interrupts.restore_handlers()

    def _request_stop(self, signum, frame):
        self._is_stop_requested = True
        # Another one does not: a scheduler's may come twice, from itself and from `sweep`.
        signal.signal(signum, signal.default_int_handler)
        name = interrupts.signal_name(signum)
        logging.warning("Stopping after this step; %s once more stops at once.", name)

    def after_run(self, run_context, run_values):
        """Ends the training if a signal came."""
        if self._is_stop_requested:
            run_context.request_stop()

    def __exit__(self, kind, error, trace):
        self._signal_handlers.close()
        propagated = (KeyboardInterrupt, UserError, OSError, tf.errors.OpError)
        if self._is_stop_requested and not isinstance(error, propagated):
            raise KeyboardInterrupt from error


class SaveHook(tf.train.SessionRunHook):
    """Saves the variables at the multiples of some number of steps, and at the end.

    Estimator's own hook also writes the graph, three times in two formats, and what is not trained
    yet: seconds of every start. Its check of the loss comes after this one's turn: what diverged
    would be saved, and gone on from.

    Args:
      output_dir: path.
      every_steps: int.

    Raises:
      tf.train.NanLossDuringTrainingError: a step's loss is infinite or no number.
    """

    def __init__(self, output_dir, every_steps):
        self._prefix = posixpath.join(output_dir, checkpoints.MODEL_CHECKPOINT)
        self._every_steps = every_steps

    def after_create_session(self, session, coord):
        """Notes where the training starts."""
        self._global_step = tf.train.get_global_step()
        self._saver = tf.get_collection(tf.GraphKeys.SAVERS)[0]  # Each replica has one.
        self._saved_step = session.run(self._global_step)

    def before_run(self, run_context):
        """Asks for the loss, which Estimator is the last to put there."""
        return tf.train.SessionRunArgs(tf.get_collection(tf.GraphKeys.LOSSES)[-1])

    def after_run(self, run_context, run_values):
        """Saves if the step has passed a multiple: a TPU's steps come many at a time."""
        if not np.isfinite(run_values.results):
            raise tf.train.NanLossDuringTrainingError
        step = run_context.session.run(self._global_step)
        if step // self._every_steps > self._saved_step // self._every_steps:
            self._save(run_context.session, step)

    def end(self, session):
        """Saves what the last multiple did not."""
        step = session.run(self._global_step)
        if step > self._saved_step:
            self._save(session, step)

    def _save(self, session, step):
        self._saver.save(session, self._prefix, global_step=step, write_meta_graph=False)
        self._saved_step = step
