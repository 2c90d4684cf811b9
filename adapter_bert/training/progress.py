"""How far a run is: a line now and then (on a terminal a bar), and what TensorBoard shows of it."""

import contextlib
import re
import sys
import time

import tensorflow.compat.v1 as tf
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams import summary as hparams
from tqdm import tqdm

from adapter_bert.common import files

_SUMMARY_EVERY_STEPS = 10
_STORED_SCALARS = "progress"  # Graph collection of `store_scalars`'s variables.
_BAR_FORMAT = "{{l_bar}}{{bar}}| {} {{n_fmt}}/{{total_fmt}} [{{elapsed}}<{{remaining}}{{postfix}}]"


class _Display:
    """A line every few seconds, the last one always; on a terminal a bar in its place.

    Args:
      unit: what is counted, in the singular.
      done, total: ints, how many there are now and in the end.
      examples: int, how many examples one of them is.
      every_seconds: how often a line is printed.
      delay_seconds: seconds until the first line.
      stream: text stream, stdout by default.
    """

    def __init__(self, unit, done, total, examples, every_seconds, delay_seconds=0.0, stream=None):
        self._unit, self._total, self._examples = unit, total, examples
        self._every_seconds = every_seconds
        self._stream = stream or sys.stdout
        now = time.monotonic()
        self._last_shown = (done, now)  # How many, and when.
        self._due_time = now + delay_seconds
        self._bar = None
        if self._stream.isatty():
            bar_format = _BAR_FORMAT.format(unit)
            self._bar = tqdm(total=total, initial=done, file=self._stream, bar_format=bar_format)

    def update(self, done, now, parts=()):
        """Shows that so many are done, if it is time to; parts are texts to stand in the line."""
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
        if done < self._total and now < self._due_time:
            return
        rate = _rate(self._last_shown, (done, now), self._examples)
        state = "  ".join([*parts, f"{rate:.1f} examples/s"])
        if self._bar is not None:
            self._bar.set_postfix_str(state)
        else:
            seconds = (self._total - done) * self._examples / rate if rate else 0
            remaining = tqdm.format_interval(seconds)
            line = f"{self._unit} {done}/{self._total}  {state}  {remaining} left"
            print(line, file=self._stream, flush=True)
        self._last_shown = (done, now)
        self._due_time = now + self._every_seconds

    def close(self):
        if self._bar is not None:
            self._bar.close()


def show_progress(examples, total, every_seconds=5.0, stream=None):
    """Yields some examples, and shows meanwhile how many have come and how long it still takes.

    Counting begins with the first, which had to wait until everything was made ready.

    Args:
      examples: iterable.
      total: int, how many there are.
      every_seconds, stream: as in `ProgressHook`.
    """
    display = None
    for done, example in enumerate(examples, 1):
        if display is None:
            display = _Display("example", 1, total, 1, every_seconds, every_seconds, stream)
        display.update(done, time.monotonic())
        yield example
    if display:
        display.close()


class ProgressHook(tf.train.SessionRunHook):
    """Shows step of total, loss, learning rate, examples per second and time left.

    Args:
      num_steps: int, the last step of the training.
      batch_size: int, examples a step.
      scalars: dict from name to scalar Tensor: all become summaries, "loss" and "learning_rate"
        stand in the line too. None for those that `store_scalars` has kept.
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
        self._stream = stream

    def begin(self):
        """Makes what reads the step, and what `store_scalars` has kept."""
        self._global_step = tf.train.get_global_step()
        variables = tf.get_collection(_STORED_SCALARS)
        self._stored_scalars = {variable.op.name.split("/")[-1]: variable for variable in variables}
        self._initialize = tf.variables_initializer(variables)

    def after_create_session(self, session, coord):
        """Starts the line, and the file of summaries."""
        session.run(self._initialize)
        step = int(session.run(self._global_step))
        self._summarized = (step, time.monotonic())  # At which step, and when.
        # A file is named by the second: a training resumed in the same one would overwrite it.
        self._writer = self._summary_dir and tf.summary.FileWriter(
            self._summary_dir, filename_suffix=f".{step}"
        )
        self._display = _Display(
            "step", step, self._num_steps, self._batch_size, self._every_seconds, 0.0, self._stream
        )

    def before_run(self, run_context):
        """Asks for the scalars."""
        return tf.train.SessionRunArgs(dict(self._scalars or {}))

    def after_run(self, run_context, run_values):
        """Shows the line and writes a summary, if one is due."""
        # Among the fetches the step would race with its update. This session is the bare one,
        # without hooks: the read takes a fraction of a millisecond.
        step = int(run_context.session.run(self._global_step))
        now = time.monotonic()
        scalars = run_values.results
        if self._scalars is None:
            scalars = run_context.session.run(self._stored_scalars)
        self._display.update(step, now, _format_scalars(scalars))
        # A TPU's steps come many at a time: a summary is due whenever they pass a multiple.
        is_summary_due = step // _SUMMARY_EVERY_STEPS > self._summarized[0] // _SUMMARY_EVERY_STEPS
        if self._writer and (is_summary_due or step >= self._num_steps):
            self._summarize(step, now, scalars)

    def end(self, session):
        """Closes both."""
        self._display.close()
        if self._writer:
            self._writer.close()

    def _summarize(self, step, now, scalars):
        rate = _rate(self._summarized, (step, now), self._batch_size)
        self._writer.add_summary(_summary(dict(scalars, examples_per_second=rate)), step)
        self._summarized = (step, now)


def store_scalars(**scalars):
    """TPUEstimator's host_call: keeps what a TPU sends to its host, for `ProgressHook` to read.

    Args:
      scalars: float Tensors [replicas] by name, of which the mean is kept.

    Returns:
      The op that does.
    """
    assignments = []
    for name, values in scalars.items():
        variable = tf.get_variable(
            f"progress/{name}",
            [],
            initializer=tf.zeros_initializer(),
            trainable=False,
            collections=[tf.GraphKeys.LOCAL_VARIABLES, _STORED_SCALARS],
            use_resource=True,
        )
        assignments.append(variable.assign(tf.reduce_mean(values)))
    return tf.group(assignments)


def write_scalars(folder, step, scalars):
    """Writes numbers of one step where TensorBoard finds them.

    Args:
      folder: path; the name of its last part is what TensorBoard calls the run.
      step: int.
      scalars: dict from names to floats.

    Raises:
      files.WriteError: the file system has no room, or no leave.
    """
    with _writer(folder, f".{step}") as writer:
        writer.add_summary(_summary(scalars), step)


def write_settings(folder, settings):
    """Writes what a finished run was made with where TensorBoard's HParams page finds it.

    Args:
      folder: path of the run, whose scalars lie in or below it.
      settings: dict from names to str, bool, int or float.

    Raises:
      files.WriteError: as of `write_scalars`.
    """
    with _writer(folder, ".hparams") as writer:
        writer.add_summary(hparams.session_start_pb(settings))
        writer.add_summary(hparams.session_end_pb(api_pb2.STATUS_SUCCESS))


@contextlib.contextmanager
def convert_write_errors():
    """While entered, a file for TensorBoard that has no room is a `files.WriteError`."""
    try:
        yield
    except (IndexError, RuntimeError) as error:  # Of a file that may not grow, or of the disk.
        # TensorFlow's writer of them gives its reason in words alone.
        match = re.match(r"(.+tfevents.*); (.+)", str(error))
        if not match:
            raise
        path, reason = match.groups()
        raise files.WriteError(f"{path} cannot be written ({reason}).") from error


@contextlib.contextmanager
def _writer(folder, suffix):
    """Yields a FileWriter."""
    with convert_write_errors(), files.convert_write_errors(folder):
        with tf.Graph().as_default():  # Outside of one TensorFlow 2 makes no such writer.
            writer = tf.summary.FileWriter(folder, filename_suffix=suffix)
        with writer:
            yield writer


def _summary(scalars):
    return tf.Summary(
        value=[tf.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
    )


def _format_scalars(scalars):
    parts = []
    if "loss" in scalars:
        parts.append("loss {:.4f}".format(scalars["loss"]))
    if "learning_rate" in scalars:
        parts.append("lr {:.2e}".format(scalars["learning_rate"]))
    return parts


def _rate(before, after, examples):
    """Examples a second between two (count, time), of which each counts for so many."""
    return (after[0] - before[0]) * examples / max(after[1] - before[1], 1e-9)
