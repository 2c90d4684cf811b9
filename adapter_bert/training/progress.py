"""Progress of a run: log lines, or a bar on a terminal, and summaries for TensorBoard."""

import contextlib
import re
import sys
import time
import warnings
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, TypeVar

import tensorflow.compat.v1 as tf
from absl import logging

from adapter_bert.files import gfile

with warnings.catch_warnings():  # A notebook without ipywidgets gets the terminal's bar.
    warnings.simplefilter("ignore")
    from tqdm.auto import tqdm

_LINE_EVERY_SECONDS = 5.0
# A summary is due every 10 steps; more often in a training with less than 50 of them.
_MAX_SUMMARY_STEPS, _MIN_SUMMARIES = 10, 50
_STORED_SCALARS = "progress"  # Graph collection of `store_scalars`'s variables.
_BAR_FORMAT = "{{l_bar}}{{bar}}| {} {{n_fmt}}/{{total_fmt}} [{{elapsed}}<{{remaining}}{{postfix}}]"


T = TypeVar("T")
Scalars = Dict[str, Any]  # Names → numbers or scalar Tensors.


class _Display:
    """A progress line every few seconds and at the end, on stdout; a bar in a terminal or notebook.

    Nothing is shown if the log is not.

    Args:
      unit: name of what is counted, in the singular.
      done, total: ints, the current and the final count.
      examples: int, examples per unit.
      delay_seconds: seconds before the first line.
    """

    def __init__(
        self,
        unit: str,
        done: int,
        total: int,
        examples: int,
        delay_seconds: float,
    ) -> None:
        self._unit, self._total, self._examples = unit, total, examples
        # None if the shell started the script with >&-.
        self._stream = sys.stdout if logging.get_verbosity() >= logging.INFO else None
        now = time.monotonic()
        self._last_shown = (done, now)  # (count, time).
        self._due_time = now + delay_seconds
        self._bar = None
        is_notebook = type(self._stream).__module__.startswith("ipykernel.")
        if self._stream and (is_notebook or self._stream.isatty()):
            bar_format = _BAR_FORMAT.format(unit)
            self._bar = tqdm(total=total, initial=done, file=self._stream, bar_format=bar_format)

    def update(self, done: int, now: float, parts: Sequence[str] = ()) -> None:
        """Shows the count if a line is due; `parts` are texts to include in it."""
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
        if self._stream is None or done < self._total and now < self._due_time:
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
        self._due_time = now + _LINE_EVERY_SECONDS

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def show_progress(examples: Iterable[T], total: int) -> Iterator[T]:
    """Yields examples, and shows how many have come and the time left.

    Timing starts at the first example, which includes the preparation of the graph.

    Args:
      examples: iterable.
      total: int, the number of examples.
    """
    display = None
    for done, example in enumerate(examples, 1):
        if display is None:
            display = _Display("example", 1, total, 1, _LINE_EVERY_SECONDS)
        display.update(done, time.monotonic())
        yield example
    if display:
        display.close()


class ProgressHook(tf.train.SessionRunHook):
    """Shows step of total, loss, learning rate, examples per second and time left.

    Args:
      num_steps: int, the last step of the training.
      batch_size: int, examples per step.
      scalars: dict from names to scalar Tensors. All become summaries; the line also shows "loss"
        and "learning_rate". None for the scalars of `store_scalars`.
      summary_dir: folder for summaries, or None.

    Raises:
      OSError: stdout cannot be written. Raised at the end of the training, which stops after
        this step, so that the step is saved.
    """

    def __init__(
        self,
        num_steps: int,
        batch_size: int,
        scalars: Optional[Scalars],
        summary_dir: Optional[str] = None,
    ) -> None:
        self._num_steps = num_steps
        self._batch_size = batch_size
        self._scalars = scalars
        self._summary_dir = summary_dir
        self._error: Optional[OSError] = None

    def begin(self) -> None:
        """Finds the global step and the variables of `store_scalars`."""
        self._global_step = tf.train.get_global_step()
        variables = tf.get_collection(_STORED_SCALARS)
        self._stored_scalars = {variable.op.name.split("/")[-1]: variable for variable in variables}
        self._initialize = tf.variables_initializer(variables)

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Starts the display and the file of summaries."""
        session.run(self._initialize)
        step = int(session.run(self._global_step))
        self._summary_every = max(1, min(_MAX_SUMMARY_STEPS, self._num_steps // _MIN_SUMMARIES))
        self._summarized = (step, time.monotonic())  # (step, time).
        # Files are named by the second: without the suffix, a quick resume would overwrite one.
        self._writer: Any = self._summary_dir and tf.summary.FileWriter(
            self._summary_dir, filename_suffix=f".{step}"
        )
        self._display = _Display("step", step, self._num_steps, self._batch_size, 0.0)

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        """Requests the scalars."""
        return tf.train.SessionRunArgs(dict(self._scalars or {}))

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: Any) -> None:
        """Shows a line and writes a summary, if they are due."""
        # Fetching the step with the training op would race with its update. This session has no
        # hooks; the read takes a fraction of a millisecond.
        step = int(run_context.session.run(self._global_step))
        now = time.monotonic()
        scalars = run_values.results
        if self._scalars is None:
            scalars = run_context.session.run(self._stored_scalars)
        try:
            self._display.update(step, now, _format_scalars(scalars))
        except OSError as error:  # Ctrl-C also ends the `tee` to which stdout may lead.
            self._error = error
            run_context.request_stop()
        # On a TPU many steps pass at a time: a summary is due when they pass a multiple.
        is_summary_due = step // self._summary_every > self._summarized[0] // self._summary_every
        if self._writer and (is_summary_due or step >= self._num_steps):
            self._summarize(step, now, scalars)

    def end(self, session: tf.Session) -> None:
        """Closes the display and the file of summaries."""
        self._display.close()
        if self._writer:
            self._writer.close()
        if self._error:
            raise self._error

    def _summarize(self, step: int, now: float, scalars: Scalars) -> None:
        rate = _rate(self._summarized, (step, now), self._batch_size)
        self._writer.add_summary(_summary(dict(scalars, examples_per_second=rate)), step)
        self._summarized = (step, now)


def store_scalars(**scalars: tf.Tensor) -> tf.Operation:
    """Stores the scalars that a TPU sends to its host, for `ProgressHook`; used as host_call.

    Args:
      scalars: float Tensors [replicas] by name; their means are stored.

    Returns:
      The op that stores them.
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


def write_scalars(folder: str, step: int, scalars: Scalars) -> None:
    """Writes the numbers of one step as summaries for TensorBoard.

    Args:
      folder: path; its last part is the name of the run in TensorBoard.
      step: int.
      scalars: dict from names to floats.

    Raises:
      gfile.WriteError: the disk is full, or permission is missing.
    """
    with _writer(folder, f".{step}") as writer:
        writer.add_summary(_summary(scalars), step)


def write_settings(folder: str, settings: Dict[str, Any]) -> None:
    """Writes the settings of a finished run for TensorBoard's HParams page.

    Args:
      folder: path of the run; its scalars are in or below it.
      settings: dict from names to str, bool, int or float.

    Raises:
      gfile.WriteError: as in `write_scalars`.
    """
    from tensorboard.plugins.hparams import api_pb2  # A sixth of a second at the start of a run.
    from tensorboard.plugins.hparams import summary as hparams

    with _writer(folder, ".hparams") as writer:
        writer.add_summary(hparams.session_start_pb(settings))
        writer.add_summary(hparams.session_end_pb(api_pb2.STATUS_SUCCESS))


@contextlib.contextmanager
def convert_write_errors() -> Iterator[None]:
    """Converts a failed write of a TensorBoard file to a `gfile.WriteError`, while entered."""
    try:
        yield
    except (IndexError, RuntimeError) as error:  # From a size limit, or from the disk.
        # TensorFlow's summary writer gives its reason only in the message.
        match = re.match(r"(.+tfevents.*); (.+)", str(error))
        if not match:
            raise
        path, reason = match.groups()
        raise gfile.WriteError(f"{path} cannot be written ({reason}).") from error


@contextlib.contextmanager
def _writer(folder: str, suffix: str) -> Iterator[Any]:
    """Yields a FileWriter for summaries."""
    with convert_write_errors(), gfile.convert_write_errors(folder):
        gfile.makedirs(folder)
        with tf.Graph().as_default():  # TensorFlow 2 requires a graph.
            writer = tf.summary.FileWriter(folder, filename_suffix=suffix)
        with writer:
            yield writer


def _summary(scalars: Scalars) -> tf.Summary:
    return tf.Summary(
        value=[tf.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
    )


def _format_scalars(scalars: Scalars) -> List[str]:
    parts = []
    if "loss" in scalars:
        parts.append("loss {:.4f}".format(scalars["loss"]))
    if "learning_rate" in scalars:
        parts.append("lr {:.2e}".format(scalars["learning_rate"]))
    return parts


def _rate(before: Tuple[int, float], after: Tuple[int, float], examples: int) -> float:
    """Returns the examples per second between two (count, time); a count is `examples` examples."""
    return (after[0] - before[0]) * examples / max(after[1] - before[1], 1e-9)
