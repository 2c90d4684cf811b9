"""Hooks that run between training steps: stopping on signals, and saving."""

import contextlib
import posixpath
import signal
from types import FrameType, TracebackType
from typing import Any, Callable, Optional, Type

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from adapter_bert.formats import checkpoints
from adapter_bert.shell import interrupts
from adapter_bert.shell.errors import UserError


class StopOnInterrupt(tf.train.SessionRunHook):
    """While entered, Ctrl-C, SIGTERM and SIGHUP end the training after the current step, saved.

    On exit it then raises KeyboardInterrupt, unless the step could not be saved: that error is
    raised instead. A second signal of the same kind stops at once.
    """

    def __enter__(self) -> "StopOnInterrupt":
        self._is_stop_requested = False
        self._signal_handlers = contextlib.ExitStack()
        self._signal_handlers.enter_context(interrupts.handle_signals(self._request_stop))
        return self

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Restores our SIGTERM handler, which TensorFlow replaces when it connects workers."""
        interrupts.restore_handlers()

    def _request_stop(self, signum: int, frame: Optional[FrameType]) -> None:
        self._is_stop_requested = True
        # Only this signal: a scheduler may send SIGTERM twice, directly and through `sweep`.
        signal.signal(signum, signal.default_int_handler)
        name = interrupts.signal_name(signum)
        logging.warning("Stopping after this step; a second %s stops at once.", name)

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: Any) -> None:
        """Ends the training if a signal was received."""
        if self._is_stop_requested:
            run_context.request_stop()

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._signal_handlers.close()
        propagated = (KeyboardInterrupt, UserError, OSError, tf.errors.OpError)
        if self._is_stop_requested and not isinstance(error, propagated):
            raise KeyboardInterrupt from error


class OneSession(tf.train.SessionRunHook):
    """Ends a prediction whose session is lost: a new one would start again at the first row.

    Raises:
      UserError: a second session is created.
    """

    def begin(self) -> None:
        """Forgets the session of an earlier prediction."""
        self._has_session = False

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Refuses any session but the first."""
        if self._has_session:
            raise UserError("A device was lost during the prediction; run the same command again.")
        self._has_session = True


class SaveHook(tf.train.SessionRunHook):
    """Saves the variables at multiples of a number of steps, and at the end; and evaluates.

    Estimator's own hook also writes the graph, three times in two formats, and the untrained model,
    which takes seconds at each start. It also saves before Estimator checks the loss, so a diverged
    model would be saved and resumed from.

    Args:
      output_dir: path.
      every_steps: int.
      evaluate_every: number of steps after which it saves and evaluates; 0 for never.
      evaluate: function that returns whether the training has to end; None to save only.

    Attributes:
      is_ended: whether `evaluate` ended the training.

    Raises:
      tf.train.NanLossDuringTrainingError: a step's loss is NaN or Inf.
    """

    def __init__(
        self,
        output_dir: str,
        every_steps: int,
        evaluate_every: int = 0,
        evaluate: Optional[Callable[[], bool]] = None,
    ) -> None:
        self._prefix = posixpath.join(output_dir, checkpoints.MODEL_CHECKPOINT)
        self._every_steps = every_steps
        self._evaluate_every, self._evaluate = evaluate_every, evaluate
        self.is_ended = False

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Records the step at which the training starts."""
        self._global_step = tf.train.get_global_step()
        self._saver = tf.get_collection(tf.GraphKeys.SAVERS)[0]  # Each replica adds one.
        self._saved_step = self._last_step = session.run(self._global_step)

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        """Requests the loss, which Estimator adds last to its collection."""
        return tf.train.SessionRunArgs(tf.get_collection(tf.GraphKeys.LOSSES)[-1])

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: Any) -> None:
        """Saves if the step passed a multiple; on a TPU many steps pass at a time."""
        if not np.isfinite(run_values.results):
            raise tf.train.NanLossDuringTrainingError
        before, step = self._last_step, run_context.session.run(self._global_step)
        self._last_step = step
        is_evaluated = self._evaluate is not None and _passes(self._evaluate_every, before, step)
        if is_evaluated or _passes(self._every_steps, before, step):
            self._save(run_context.session, step)
        if self._evaluate is not None and is_evaluated and self._evaluate():
            self.is_ended = True
            run_context.request_stop()

    def end(self, session: tf.Session) -> None:
        """Saves the last step, if it is not saved yet."""
        step = session.run(self._global_step)
        if step > self._saved_step:
            self._save(session, step)

    def _save(self, session: tf.Session, step: int) -> None:
        self._saver.save(session, self._prefix, global_step=step, write_meta_graph=False)
        self._saved_step = step


def _passes(every: int, before: int, step: int) -> bool:
    """Returns whether a multiple of a number lies in (before, step]; there is none of 0."""
    return every > 0 and step // every > before // every
