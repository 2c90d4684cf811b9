"""A cluster of workers, described by TF_CONFIG, and their rendezvous.

    {"cluster": {"worker": ["host-a:2222", "host-b:2222"]}, "task": {"type": "worker", "index": 0}}

The chief is the task "chief", or else the first worker. It alone writes the run's files, evaluates
and predicts. Before TensorFlow connects the workers, they hold a rendezvous through files in
--output_dir. It reports a missing worker, for which TensorFlow would wait, and a worker with other
settings, with which TensorFlow would train silently. During training, the same files detect a lost
worker: after a broken connection, TensorFlow's session catches UnavailableError and waits forever.

    workers/0.json  {"id", "decided": {...}, "members": {index: id}, "problem": null or a clause}
    workers/1.json  {"id", "chief": the chief's id, "settings": {...}, ...}
    ...             {"beat": a counter, "left": bool, "done": bool}
"""

import contextlib
import json
import os
import posixpath
import re
import time
from typing import NamedTuple, Tuple

import tensorflow.compat.v1 as tf
from absl import logging

from adapter_bert.files import gfile, json_objects
from adapter_bert.shell.errors import UserError

VARIABLE = "TF_CONFIG"
FOLDER = "workers"  # In --output_dir.

_EXPECTED = (
    'expected {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
)
_FILE = "chief.json"  # In FOLDER.
_POLL_SECONDS = 0.5
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
    def is_chief(self):
        """Returns whether this process saves and reports."""
        return self.index == 0


def from_environment():
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
        jobs, task = config.get("cluster", {}), config.get("task", {})
        chiefs, workers = (_addresses(jobs, name) for name in ("chief", "worker"))
        job, index = task.get("type", "worker"), int(task.get("index", 0))
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{VARIABLE} cannot be read ({error}); {_EXPECTED}.") from error
    other_jobs = sorted(set(jobs) - {"chief", "worker"})
    if other_jobs or job not in ("chief", "worker"):
        raise UserError(
            f"{VARIABLE} names {', '.join(other_jobs) or job}, but only chief and worker train;"
            f" {_EXPECTED}."
        )
    if not jobs:
        return Cluster()
    missing_fields = [name for name in ("type", "index") if name not in task]
    if missing_fields:
        raise UserError(
            f"{VARIABLE} has no {' and '.join(missing_fields)} of the task; {_EXPECTED}."
        )
    addresses = {"chief": chiefs, "worker": workers}[job]
    if len(chiefs) > 1 or not 0 <= index < len(addresses):
        members = f"{len(chiefs)} chief and {len(workers)} workers, task {job} {index}"
        raise UserError(f"{VARIABLE} has {members}; {_EXPECTED}.")
    if len(set(chiefs + workers)) < len(chiefs + workers):
        raise UserError(f"{VARIABLE} names an address twice: {', '.join(chiefs + workers)}.")
    return Cluster(chiefs + workers, index + (len(chiefs) if job == "worker" else 0))


def _addresses(jobs, name):
    addresses = jobs.get(name, [])
    if not isinstance(addresses, list):
        raise ValueError(f"{name} is not a list")
    for address in addresses:
        match = re.fullmatch(r"[^\s/]+:(\d+)", address)
        if not match or not 0 < int(match.group(1)) < 1 << 16:
            raise ValueError(f"{address!r} is not host:port")
    return tuple(addresses)


@contextlib.contextmanager
def hide():
    """Hides the cluster from TensorFlow while entered, for work that one process does alone."""
    text = os.environ.pop(VARIABLE, None)
    try:
        yield
    finally:
        if text is not None:
            os.environ[VARIABLE] = text


@contextlib.contextmanager
def agree(workers, output_dir, settings, decided, timeout_seconds):
    """Makes all workers train with the chief's settings; the chief's file is there while entered.

    Args:
      workers: `Cluster`; a single worker shares nothing.
      output_dir: path of the folder that all workers share.
      settings: function (the chief's `decided`) → dict of JSON values that must equal the chief's;
        errors quote its keys. A worker calls it until they do.
      decided: dict of JSON values that the chief decides for all workers.
      timeout_seconds: how long to wait for the chief.

    Yields:
      The hooks of the training.

    Raises:
      UserError: the chief does not write its settings in time, they differ from this worker's, or
        another worker is lost while entered.
    """
    if len(workers.addresses) < 2:
        yield []
        return
    folder = posixpath.join(output_dir, FOLDER)
    path = posixpath.join(folder, _FILE)
    try:
        if workers.is_chief:
            with gfile.convert_write_errors(path):
                gfile.makedirs(folder)
            record = {"decided": decided, "settings": settings(decided)}
            json_objects.write_object(path, record)
            yield []
        else:
            record = _wait_for_chief(workers, path, settings, timeout_seconds)
            yield [_SameChief(path, record)]
    except _LOSSES as error:
        raise UserError(
            f"{VARIABLE}: another worker is lost, or silent for {timeout_seconds:g} seconds"
            f" ({gfile.reason(error)}); start all workers again to resume from the last checkpoint."
        ) from error
    finally:
        if workers.is_chief:
            with contextlib.suppress(OSError):
                gfile.rmtree(folder)


def _wait_for_chief(workers, path, settings, timeout_seconds):
    """Returns the chief's record, once this worker's settings equal it.

    Until then, the record may be that of an earlier chief that was killed.
    """
    deadline, problem = time.monotonic() + timeout_seconds, None
    logging.info("Waiting for the settings of the chief (%s).", workers.addresses[0])
    while time.monotonic() < deadline:
        record = _read(path)
        if record:
            difference = _difference(settings(record["decided"]), record["settings"])
            if not difference:
                return record
            if difference != problem:
                logging.warning("Waiting, as %s.", difference)
            problem = difference
        time.sleep(_POLL_SECONDS)
    if not problem:
        problem = f"the chief ({workers.addresses[0]}) has written no settings for {timeout_seconds:g} seconds; all workers must share --output_dir ({posixpath.dirname(posixpath.dirname(path))})"
    raise UserError(f"{VARIABLE}: {problem}.")


def _read(path):
    try:
        return json_objects.read_object(path)
    except UserError:
        return None


def _difference(settings, chiefs):
    """Returns a clause about the first setting that differs from the chief's, or None."""
    settings = json.loads(json.dumps(settings))  # JSON has no tuples.
    for name in {**chiefs, **settings}:
        value, chief_value = settings.get(name), chiefs.get(name)
        if value != chief_value:
            return f"{name} of this worker differs from the chief's: {value}, not {chief_value}"
    return None


class _SameChief(tf.train.SessionRunHook):
    def __init__(self, path, record):
        self._path, self._record = path, record

    def after_create_session(self, session, coord):
        if _read(self._path) != self._record:
            raise UserError(f"{VARIABLE}: the chief has other settings")
