"""How a training shows itself: a line (on a terminal a bar) and TensorBoard's scalars."""

import sys
import time

import tensorflow.compat.v1 as tf
from tqdm import tqdm

_SUMMARY_EVERY_STEPS = 10
_KEPT = "progress"  # Graph collection of `keep`'s variables.
_BAR_FORMAT = "{l_bar}{bar}| step {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


class ProgressHook(tf.train.SessionRunHook):
    """Shows step of total, loss, learning rate, examples per second and time left.

    Args:
      num_steps: int, the last step of the training.
      batch_size: int, examples a step.
      scalars: dict from name to scalar Tensor: all become summaries, "loss" and "learning_rate"
        stand in the line too. None for those that `keep` has kept.
      summary_dir: where summaries go, None for nowhere.
      every_seconds: how often a line is printed; the first and the last always are.
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
        kept = tf.get_collection(_KEPT)
        self._kept = {variable.op.name.split("/")[-1]: variable for variable in kept}
        self._initialize = tf.variables_initializer(kept)

    def after_create_session(self, session, coord):
        session.run(self._initialize)
        step = int(session.run(self._global_step))
        now = time.monotonic()
        self._shown = self._summarized = (step, now)  # At which step, and when.
        self._due = now
        # A file is named by the second: a training resumed in the same one would overwrite it.
        self._writer = self._summary_dir and tf.summary.FileWriter(
            self._summary_dir, filename_suffix=f".{step}"
        )
        self._bar = None
        if self._stream.isatty():
            self._bar = tqdm(
                total=self._num_steps, initial=step, file=self._stream, bar_format=_BAR_FORMAT
            )

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(dict(self._scalars or {}))

    def after_run(self, run_context, run_values):
        # Among the fetches the step would race with its update. This session is the bare one,
        # without hooks: the read takes a fraction of a millisecond.
        step = int(run_context.session.run(self._global_step))
        now = time.monotonic()
        is_last = step >= self._num_steps
        scalars = run_values.results
        if self._scalars is None:
            scalars = run_context.session.run(self._kept)
        if self._bar is not None:
            self._bar.update(step - self._bar.n)
        if is_last or now >= self._due:
            self._show(step, now, scalars)
        # A TPU's steps come many at a time: a summary is due whenever they pass a multiple.
        passed = step // _SUMMARY_EVERY_STEPS > self._summarized[0] // _SUMMARY_EVERY_STEPS
        if self._writer and (is_last or passed):
            self._summarize(step, now, scalars)

    def end(self, session):
        if self._bar is not None:
            self._bar.close()
        if self._writer:
            self._writer.close()

    def _rate(self, since, step, now):
        """Examples per second since (step, time)."""
        return (step - since[0]) * self._batch_size / max(now - since[1], 1e-9)

    def _show(self, step, now, scalars):
        rate = self._rate(self._shown, step, now)
        state = _describe(scalars, rate)
        if self._bar is not None:
            self._bar.set_postfix_str(state)
        else:
            seconds = (self._num_steps - step) * self._batch_size / rate if rate else 0
            left = tqdm.format_interval(seconds)
            line = f"step {step}/{self._num_steps}  {state}  {left} left"
            print(line, file=self._stream, flush=True)
        self._shown = (step, now)
        self._due = now + self._every_seconds

    def _summarize(self, step, now, scalars):
        rate = self._rate(self._summarized, step, now)
        self._writer.add_summary(_summary(dict(scalars, examples_per_second=rate)), step)
        self._summarized = (step, now)


def keep(**scalars):
    """TPUEstimator's host_call: keeps what a TPU sends to its host, for `ProgressHook` to read.

    Args:
      scalars: float Tensors [replicas] by name, of which the mean is kept.

    Returns:
      The op that does.
    """
    kept = []
    for name, values in scalars.items():
        variable = tf.get_variable(
            f"progress/{name}",
            [],
            initializer=tf.zeros_initializer(),
            trainable=False,
            collections=[tf.GraphKeys.LOCAL_VARIABLES, _KEPT],
            use_resource=True,
        )
        kept.append(variable.assign(tf.reduce_mean(values)))
    return tf.group(kept)


def write_scalars(folder, step, scalars):
    """Writes numbers of one step where TensorBoard finds them.

    Args:
      folder: path; the name of its last part is what TensorBoard calls the run.
      step: int.
      scalars: dict from names to floats.
    """
    with tf.Graph().as_default():  # Outside of one TensorFlow 2 makes no such writer.
        writer = tf.summary.FileWriter(folder, filename_suffix=f".{step}")
    writer.add_summary(_summary(scalars), step)
    writer.close()


def _summary(scalars):
    return tf.Summary(
        value=[tf.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
    )


def _describe(scalars, rate):
    parts = []
    if "loss" in scalars:
        parts.append("loss {:.4f}".format(scalars["loss"]))
    if "learning_rate" in scalars:
        parts.append("lr {:.2e}".format(scalars["learning_rate"]))
    return "  ".join([*parts, f"{rate:.1f} examples/s"])
