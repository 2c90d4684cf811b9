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
import functools
import json
import os
import posixpath
import re
import socket
import sys
import threading
import time
import uuid
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
_OBJECTS = ("members", "settings", "decided")  # Fields of a record.
_POLL_SECONDS = 0.5
_BEAT_SECONDS = 10.0  # Interval of heartbeats.
_SILENCE_SECONDS = 60.0  # A worker without a heartbeat for so long is lost.


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
def rendezvous(
    workers, output_dir, settings, decided, timeout_seconds, needs_all=True, clean_up=lambda: None
):
    """Waits for all workers; while entered, restarts this process if another worker is lost.

    A new process with the same command replaces this one and resumes from the last checkpoint.

    Args:
      workers: `Cluster`; a single worker does not wait.
      output_dir: path of the folder that all workers share.
      settings: function (the chief's `decided`) → dict of JSON values that must equal the chief's;
        errors quote its keys. A worker calls it once the chief is there.
      decided: dict of JSON values that the chief decides for all workers.
      timeout_seconds: how long to wait for the other workers.
      needs_all: bool; if False, the chief continues without workers that are late.
      clean_up: function () that removes temporary files, called before the process is replaced.

    Raises:
      UserError: a worker does not arrive in time or has other settings, or the port is in use.
    """
    if len(workers.addresses) < 2:
        yield
        return
    _check_port(workers.addresses[workers.index])
    records = _Records(workers, output_dir)
    try:
        if workers.is_chief:
            members = _gather(records, settings, decided, timeout_seconds, needs_all)
        else:
            members = _report_to_chief(records, settings, timeout_seconds)
        with _watch_peers(records, members, functools.partial(_restart, clean_up)):
            yield
    except BaseException:
        with contextlib.suppress(UserError):
            records.write(left=True)
        raise
    records.close(members)


class _Records:
    """The workers' records: JSON files in a subfolder of --output_dir, which all workers share.

    Each process has a random id, so that records of earlier processes are ignored.
    """

    def __init__(self, workers, output_dir):
        self.workers, self.output_dir = workers, output_dir
        self.id = uuid.uuid4().hex
        self._record = {"id": self.id, "done": False}

    def read(self, index):
        """Returns a worker's record, {} without a valid one."""
        path, kinds = self._path(index), {"id": str, **dict.fromkeys(_OBJECTS, dict)}
        try:
            record = json_objects.read_object(path)
        except UserError:
            return {}
        is_valid = all(isinstance(record.get(name, kind()), kind) for name, kind in kinds.items())
        return record if is_valid and "id" in record else {}

    def write(self, **changes):
        """Updates this process's record; raises UserError if it cannot be written."""
        self._record.update(changes)
        path = self._path(self.workers.index)
        with gfile.convert_write_errors(path):
            gfile.makedirs(posixpath.dirname(path))
        json_objects.write_object(path, self._record)

    def close(self, members):
        """Records that this worker is done; the last member to finish removes all records."""
        with contextlib.suppress(UserError, OSError):
            self.write(done=True)
            if all(self.read(index).get("done", True) for index in members):
                gfile.rmtree(posixpath.join(self.output_dir, FOLDER))

    def name(self, index):
        """Returns a worker's name for messages."""
        role = f"worker {index}" if index else "the chief"
        return f"{role} ({self.workers.addresses[index]})"

    def _path(self, index):
        return posixpath.join(self.output_dir, FOLDER, f"{index}.json")


def _gather(records, settings, decided, timeout_seconds, needs_all):
    """Waits as the chief for the other workers; returns index → id of those that arrived."""
    deadline = time.monotonic() + timeout_seconds
    expected = json.loads(json.dumps(settings(decided)))  # JSON has no tuples.
    records.write(members={}, decided=decided)
    peer_indices = range(1, len(records.workers.addresses))
    logging.info("Waiting for %s.", " and ".join(map(records.name, peer_indices)))
    while True:
        peer_records = {index: records.read(index) for index in peer_indices}
        arrived = {
            index: record
            for index, record in peer_records.items()
            if record.get("chief") == records.id and not record.get("left")
        }
        missing = [records.name(index) for index in peer_indices if index not in arrived]
        problem = _difference(records, arrived, expected)
        if problem or not missing or time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
    if missing and not problem:
        timeout_message = f"{' and '.join(missing)} did not arrive in {timeout_seconds:g} seconds"
        if needs_all:
            problem = (
                f"{timeout_message}; all workers must share --output_dir ({records.output_dir})"
            )
        else:
            logging.info("%s: continuing without.", timeout_message)
    members = {0: records.id, **{index: record["id"] for index, record in arrived.items()}}
    records.write(members=members, problem=problem)
    if problem:
        raise UserError(f"{VARIABLE}: {problem}.")
    return members


def _difference(records, arrived, expected):
    """Returns a clause about the first setting that differs from the chief's, or None."""
    for index, record in arrived.items():
        settings = record.get("settings", {})
        for name in {**expected, **settings}:
            value, chief_value = settings.get(name), expected.get(name)
            if value != chief_value:
                worker = records.name(index)
                return f"{name} of {worker} differs from the chief's: {value}, not {chief_value}"
    return None


def _report_to_chief(records, settings, timeout_seconds):
    """Sends this worker's settings to the chief; returns index → id of the members."""
    deadline, chief_id = time.monotonic() + timeout_seconds, None
    logging.info("Worker %d: waiting for %s.", records.workers.index, records.name(0))
    while time.monotonic() < deadline:
        chief = records.read(0)
        members = chief.get("members", {})
        if members.get(str(records.workers.index)) == records.id:
            if chief.get("problem"):
                raise UserError(f"{VARIABLE}: {chief['problem']}.")
            indices = range(len(records.workers.addresses))
            return {index: members[str(index)] for index in indices if str(index) in members}
        if chief and chief["id"] != chief_id:  # A first record may be that of a killed chief.
            chief_id = chief["id"]
            records.write(chief=chief_id, settings=settings(chief.get("decided", {})))
        time.sleep(_POLL_SECONDS)
    raise UserError(
        f"{VARIABLE}: {records.name(0)} did not answer within {timeout_seconds:g} seconds; all"
        f" workers must share --output_dir ({records.output_dir})."
    )


def _check_port(address):
    """Raises UserError if this process cannot listen on its port, as TensorFlow will."""
    host, _, port = address.rpartition(":")
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", int(port)))
    except OSError as error:
        raise UserError(f"{VARIABLE}: cannot listen on {address} ({error}).") from error


@contextlib.contextmanager
def _watch_peers(records, members, on_loss):
    """Watches the other workers in a thread while entered; see `_run_watch`."""
    stop_event = threading.Event()
    peers = {
        index: process_id for index, process_id in members.items() if index != records.workers.index
    }
    thread = threading.Thread(
        target=_run_watch, args=(records, peers, stop_event, on_loss), daemon=True
    )
    thread.start()
    try:
        yield
    except tf.errors.OpError as error:
        # If a lost worker is the cause, the watch soon notices and replaces this process.
        logging.warning("A worker may be lost. TensorFlow reports: %s.", gfile.reason(error))
        thread.join(_SILENCE_SECONDS + 2 * _BEAT_SECONDS)
        raise
    finally:
        stop_event.set()
        thread.join()


def _run_watch(records, peers, stop_event, on_loss):
    """Writes heartbeats; calls on_loss with a worker's name once that worker is lost.

    A worker is lost if a new process has replaced it, if it has left before it was done, or if its
    heartbeats stop. A worker that is done, or without a record, is not missed.
    """
    start, beat = time.monotonic(), 0
    beats = dict.fromkeys(peers, (None, start))  # index → (last heartbeat, its time).
    while not stop_event.wait(_POLL_SECONDS):
        now = time.monotonic()
        if int((now - start) / _BEAT_SECONDS) != beat:
            beat = int((now - start) / _BEAT_SECONDS)
            with contextlib.suppress(UserError):  # The disk may be full temporarily.
                records.write(beat=beat)
        for index, process_id in peers.items():
            record = records.read(index)
            if not record or record.get("beat") != beats[index][0]:
                beats[index] = (record.get("beat"), now)
            is_silent = now - beats[index][1] > _SILENCE_SECONDS
            is_lost = record.get("id") != process_id or record.get("left") or is_silent
            if is_lost and not record.get("done", True) and not stop_event.is_set():
                on_loss(records.name(index))
                return


def _restart(clean_up, worker):
    """Replaces this process by a new one with the same command, free of TensorFlow's state."""
    logging.warning("%s is lost: restarting from the last checkpoint.", worker)
    sys.stdout.flush()
    clean_up()
    # The last occurrence of a flag wins.
    os.execv(sys.executable, [sys.executable, *sys.argv, "--nooverwrite_output_dir"])
