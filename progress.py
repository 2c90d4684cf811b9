"""How a training shows itself: a line (on a terminal a bar) and TensorBoard's scalars."""

import sys
import time

import tensorflow.compat.v1 as tf
from tqdm import tqdm

_SUMMARY_EVERY_STEPS = 10


class ProgressHook(tf.train.SessionRunHook):
    """Shows step of total, loss, learning rate, examples per second and time left.

    Args:
      num_steps: int, the last step of the training.
      batch_size: int, examples a step.
      scalars: dict from name to scalar Tensor: all become summaries, "loss" and "learning_rate"
        stand in the line too.
      summary_dir: where summaries go, None for nowhere.
      every_seconds: how often a line is printed; the first and the last step always are.
      stream: text stream of the line; on a terminal it carries a bar instead.
    """

    def __init__(
        self, num_steps, batch_size, scalars, summary_dir=None, every_seconds=5.0, stream=None
    ):
        self._num_steps = num_steps
        self._batch_size = batch_size
        self._scalars = scalars
        self._summary_dir = summary_dir
        self._every_seconds = every_seconds
        self._stream = stream or sys.stdout

    def begin(self):
        self._global_step = tf.train.get_global_step()

    def after_create_session(self, session, coord):
        step = int(session.run(self._global_step))
        self._reported = (step, time.time())  # the last line: at which step, and when
        self._summarized = self._reported
        self._writer = self._summary_dir and tf.summary.FileWriterCache.get(self._summary_dir)
        self._bar = None
        if self._stream.isatty():
            self._bar = tqdm(
                total=self._num_steps, initial=step, unit="step", file=self._stream, leave=True
            )

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(dict(self._scalars))

    def after_run(self, run_context, run_values):
        # The step as it was before this run, read by the host, would race with the update.
        step = int(run_context.session.run(self._global_step))
        now = time.time()
        scalars = run_values.results
        if self._writer and (step % _SUMMARY_EVERY_STEPS == 0 or step == self._num_steps):
            rate = self._rate(self._summarized, step, now)
            self._summarize(step, dict(scalars, examples_per_second=rate))
            self._summarized = (step, now)
        if self._bar is not None:
            self._bar.set_postfix_str(_describe(scalars), refresh=False)
            self._bar.update(step - self._bar.n)
        elif step in (1, self._num_steps) or now - self._reported[1] >= self._every_seconds:
            rate = self._rate(self._reported, step, now)
            print(self._line(step, scalars, rate), file=self._stream, flush=True)
            self._reported = (step, now)

    def end(self, session):
        if self._bar is not None:
            self._bar.close()
        if self._writer:
            self._writer.flush()

    def _rate(self, since, step, now):
        """Examples per second since (step, time)."""
        return (step - since[0]) * self._batch_size / max(now - since[1], 1e-9)

    def _line(self, step, scalars, rate):
        seconds = (self._num_steps - step) * self._batch_size / rate if rate else 0
        return (
            f"step {step}/{self._num_steps}  {_describe(scalars)}  {rate:.1f} examples/s "
            f" {tqdm.format_interval(seconds)} left"
        )

    def _summarize(self, step, scalars):
        values = [tf.Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._writer.add_summary(tf.Summary(value=values), step)


def _describe(scalars):
    parts = []
    if "loss" in scalars:
        parts.append("loss {:.4f}".format(scalars["loss"]))
    if "learning_rate" in scalars:
        parts.append("lr {:.2e}".format(scalars["learning_rate"]))
    return "  ".join(parts)
