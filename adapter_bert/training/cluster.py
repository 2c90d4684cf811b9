"""A cluster of workers that train together, described by TF_CONFIG.

    {"cluster": {"worker": ["host-a:2222", "host-b:2222"]}, "task": {"type": "worker", "index": 0}}

The chief is the task "chief", or else the first worker. It alone writes the run's files, evaluates
and predicts. With different settings TensorFlow would train silently, so the chief writes its own
to a file in --output_dir, with which the other workers compare theirs. A lost worker ends the
training of all; a scheduler starts them again, and they resume from the last checkpoint.
"""

import contextlib
import json
import os
import posixpath
import re
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

import tensorflow.compat.v1 as tf
from absl import logging
from tensorflow.python.training import monitored_session

from adapter_bert.files import gfile, json_objects
from adapter_bert.shell.errors import UserError

VARIABLE = "TF_CONFIG"
FOLDER = "workers"  # In --output_dir.

_EXPECTED = (
    'expected {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
)
_FILE = "chief.json"  # In FOLDER.
_POLL_SECONDS = 0.5

Settings = Callable[[Dict[str, Any]], Dict[str, Any]]

# Of a broken connection, and of a worker that is silent.
_LOSSES = (tf.errors.AbortedError, tf.errors.DeadlineExceededError, tf.errors.UnavailableError)


class Cluster(NamedTuple):
    """The processes that train together.

    Attributes:
      addresses: "host:port" of every worker, the chief's first.
      index: this process's index in `addresses`.
    """

    addresses: Tuple[str, ...] = ()
    index: int = 0  # type: ignore[assignment]  # It hides tuple.index, which nothing calls.

    @property
    def is_chief(self) -> bool:
        """Returns whether this process saves and reports."""
        return self.index == 0


def from_environment() -> Cluster:
    """Returns the `Cluster` that TF_CONFIG describes; one without addresses if it is not set.

    Raises:
      UserError: TF_CONFIG is not such JSON, or names a task that does not train.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        os.environ.pop(VARIABLE, None)  # TensorFlow would parse an empty value as JSON.
        return Cluster()
    try:
        config = json_objects.parse_json(text)
        return _parse(config.get("cluster", {}), config.get("task", {}))
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{VARIABLE} is invalid: {error}; {_EXPECTED}.") from error


def _parse(jobs: Dict[str, Any], task: Dict[str, Any]) -> Cluster:
    """Returns the `Cluster` of TF_CONFIG's two parts; raises ValueError or the like if invalid."""
    if not jobs:
        return Cluster()
    for name in ("type", "index"):
        if name not in task:
            raise ValueError(f"the task has no {name}")
    others = sorted({*jobs, task["type"]} - {"chief", "worker"})
    if others:
        raise ValueError(f"{', '.join(others)} does not train, only chief and worker do")
    chiefs, workers = jobs.get("chief", []), jobs.get("worker", [])
    addresses, index = tuple(chiefs + workers), int(task["index"])
    for address in addresses:
        match = re.fullmatch(r"[^\s/]+:(\d+)", address)
        if not match or not 0 < int(match.group(1)) < 1 << 16:
            raise ValueError(f"{address!r} is not host:port")
    if len(set(addresses)) < len(addresses):
        raise ValueError(f"it names an address twice: {', '.join(addresses)}")
    if len(chiefs) > 1 or not 0 <= index < len(jobs.get(task["type"], [])):
        members = f"{len(chiefs)} chief and {len(workers)} workers"
        raise ValueError(f"it has {members}, task {task['type']} {index}")
    return Cluster(addresses, index + (len(chiefs) if task["type"] == "worker" else 0))


@contextlib.contextmanager
def hide() -> Iterator[None]:
    """Hides the cluster from TensorFlow while entered, for work that one process does alone."""
    text = os.environ.pop(VARIABLE, None)
    try:
        yield
    finally:
        if text is not None:
            os.environ[VARIABLE] = text


def agree(
    workers: Cluster,
    output_dir: str,
    settings: Settings,
    decided: Dict[str, Any],
    timeout_seconds: float,
) -> List[tf.train.SessionRunHook]:
    """Makes sure that all workers train with the chief's settings, and returns hooks to train with.

    The chief writes its settings; another worker waits until its own are the same. Before, the file
    may be that of a chief that was killed.

    Args:
      workers: `Cluster`; a single worker agrees with itself.
      output_dir: path of the folder that all workers share.
      settings: function (the chief's `decided`) → dict of JSON values that must equal the chief's;
        errors quote its keys.
      decided: dict of JSON values that the chief decides for all workers.
      timeout_seconds: how long to wait for the chief's settings.

    Raises:
      UserError: the file cannot be written, or is missing or differs for that long.
    """
    if len(workers.addresses) < 2:
        return []
    path = posixpath.join(output_dir, FOLDER, _FILE)
    if workers.is_chief:
        with gfile.convert_write_errors(path):
            gfile.makedirs(posixpath.dirname(path))
        json_objects.write_object(path, {"decided": decided, "settings": settings(decided)})
        return []
    deadline, reported = time.monotonic() + timeout_seconds, ""
    logging.info("Waiting for the settings of the chief (%s).", workers.addresses[0])
    while True:
        problem = _difference(path, settings)
        if not problem:
            return [_ComparisonHook(path, settings)]
        if time.monotonic() > deadline:
            raise UserError(f"{VARIABLE}: {problem}, after {timeout_seconds:g} seconds.")
        if problem != reported:
            logging.info("Waiting, as %s.", problem)
            reported = problem
        time.sleep(_POLL_SECONDS)


def _difference(path: str, settings: Settings) -> str:
    """Returns a clause about how this worker's settings differ from the chief's, "" if equal."""
    try:
        record = json_objects.read_object(path)
    except UserError:
        return f"the chief has written no {path}, although all workers must share --output_dir"
    chiefs = record["settings"]
    own = json.loads(json.dumps(settings(record["decided"])))  # JSON has no tuples.
    for name in {**chiefs, **own}:
        value, chief_value = own.get(name), chiefs.get(name)
        if value != chief_value:
            return f"{name} of this worker differs from the chief's: {value}, not {chief_value}"
    return ""


class _ComparisonHook(tf.train.SessionRunHook):
    """Compares again once TensorFlow has connected the workers, as a new chief may be among them.

    The file that a worker compares first may be that of an earlier chief, which was killed.
    """

    def __init__(self, path: str, settings: Settings) -> None:
        self._path, self._settings = path, settings

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Raises UserError unless this worker's settings are the chief's."""
        problem = _difference(self._path, self._settings)
        if problem:
            raise UserError(f"{VARIABLE}: {problem}.")


@contextlib.contextmanager
def connect(workers: Cluster) -> Iterator[None]:
    """Lets TensorFlow connect the workers while entered; the loss of one ends the training.

    The timeout for a silent worker is the session's `operation_timeout_in_ms`.

    Raises:
      UserError: another worker ends, or does not answer in time, or the port is in use.
    """
    recovered_errors = monitored_session._PREEMPTION_ERRORS
    # After these, TensorFlow would connect again, which fails for ever.
    monitored_session._PREEMPTION_ERRORS = ()
    try:
        # Outside of a graph, the strategy would wait for all workers without a timeout.
        with tf.Graph().as_default():
            yield
    except _LOSSES as error:
        logging.warning("TensorFlow reports: %s.", gfile.reason(error))
        raise UserError(
            f"{VARIABLE}: another worker has ended or does not answer; start all workers again"
            " with the same command, which resumes from the last checkpoint."
        ) from error
    except tf.errors.UnknownError as error:
        if "gRPC server" not in error.message:
            raise
        address = workers.addresses[workers.index]
        raise UserError(f"{VARIABLE}: cannot listen on {address}; is its port in use?") from error
    finally:
        monitored_session._PREEMPTION_ERRORS = recovered_errors
