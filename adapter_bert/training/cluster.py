"""A cluster of workers, as TF_CONFIG describes it, and their rendezvous.

    {"cluster": {"worker": ["host-a:2222", "host-b:2222"]}, "task": {"type": "worker", "index": 0}}

The chief is the task "chief", else the first worker. It alone writes the run's files, evaluates and
predicts. Before TensorFlow connects the workers, they hold a rendezvous by files in --output_dir: a
worker that is missing or has other settings is named, where TensorFlow would wait for it or train
without a word. During the training the same files tell when a worker is lost: TensorFlow's session
catches the UnavailableError of a broken connection, and then waits for ever.

    workers/0.json  {"id", "decided": {...}, "members": {index: id}, "problem": null or a clause}
    workers/1.json  {"id", "chief": the chief's id, "settings": {...}, ...}
    ...             {"beat": counts while the process lives, "left": bool, "done": bool}
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

from adapter_bert.common import files
from adapter_bert.common.errors import UserError

VARIABLE = "TF_CONFIG"
FOLDER = "workers"  # In --output_dir.

_EXPECTED = (
    'expected {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
)
_OBJECTS = ("members", "settings", "decided")  # Fields of a record.
_POLL_SECONDS = 0.5
_BEAT_SECONDS = 10.0  # Between two signs of life.
_SILENCE_SECONDS = 60.0  # Without a sign of life, after which a worker is lost.


class Cluster(NamedTuple):
    """Who trains together.

    Attributes:
      addresses: "host:port" of every worker, the chief's first.
      index: which of them this process is.
    """

    addresses: Tuple[str, ...] = ()
    index: int = 0  # type: ignore[assignment]  # Nothing looks for a value in this tuple.

    @property
    def is_chief(self):
        """Whether this process saves and reports."""
        return self.index == 0


def from_environment():
    """The `Cluster` that TF_CONFIG describes; one without addresses if it is not set.

    Raises:
      UserError: it is no such JSON, or names a task that does not train.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        os.environ.pop(VARIABLE, None)  # TensorFlow would read JSON where there is nothing.
        return Cluster()
    try:
        config = files.parse_json(text)
        jobs, task = config.get("cluster", {}), config.get("task", {})
        chiefs, workers = (_addresses(jobs, name) for name in ("chief", "worker"))
        job, index = task.get("type", "worker"), int(task.get("index", 0))
    except (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError) as error:
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
        raise ValueError(f"{name} is no list")
    for address in addresses:
        match = re.fullmatch(r"[^\s/]+:(\d+)", address)
        if not match or not 0 < int(match.group(1)) < 1 << 16:
            raise ValueError(f"{address!r} is no host:port")
    return tuple(addresses)


@contextlib.contextmanager
def hide():
    """While entered, TensorFlow sees no cluster: for what one process does alone."""
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

    A new process of the same command replaces it, which resumes from the last checkpoint.

    Args:
      workers: `Cluster`; a single worker waits for nobody.
      output_dir: path of the folder that all workers share.
      settings: function (the chief's `decided`) → dict of JSON values that must equal the chief's;
        errors name its keys. A worker calls it after the chief has come.
      decided: dict of JSON values that the chief decides for all workers.
      timeout_seconds: how long to wait for the other workers.
      needs_all: bool; False has the chief continue without those that do not come in time.
      clean_up: function () that removes temporary files, called before the process is replaced.

    Raises:
      UserError: a worker does not come in time or has other settings, or the port is in use.
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
    """The workers' records: JSON files in a folder of --output_dir, which all workers share.

    Each process has a random id, so that the record of an earlier process never counts.
    """

    def __init__(self, workers, output_dir):
        self.workers, self.output_dir = workers, output_dir
        self.id = uuid.uuid4().hex
        self._record = {"id": self.id, "done": False}

    def read(self, index):
        """Returns a worker's record, {} if the worker has no valid one."""
        path, kinds = self._path(index), {"id": str, **dict.fromkeys(_OBJECTS, dict)}
        try:
            record = files.read_object(path)
        except UserError:
            return {}
        is_valid = all(isinstance(record.get(name, kind()), kind) for name, kind in kinds.items())
        return record if is_valid and "id" in record else {}

    def write(self, **changes):
        """Changes this process's record; UserError if the file cannot be written."""
        self._record.update(changes)
        path = self._path(self.workers.index)
        with files.convert_write_errors(path):
            files.makedirs(posixpath.dirname(path))
        files.write_object(path, self._record)

    def close(self, members):
        """Reports that this worker's part is done; the last of the members removes all records."""
        with contextlib.suppress(UserError, OSError):
            self.write(done=True)
            if all(self.read(index).get("done", True) for index in members):
                files.rmtree(posixpath.join(self.output_dir, FOLDER))

    def name(self, index):
        """Returns what messages call a worker."""
        role = f"worker {index}" if index else "the chief"
        return f"{role} ({self.workers.addresses[index]})"

    def _path(self, index):
        return posixpath.join(self.output_dir, FOLDER, f"{index}.json")


def _gather(records, settings, decided, timeout_seconds, needs_all):
    """Waits as the chief for the other workers; returns index → id of the workers that came."""
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
        timeout_message = f"{' and '.join(missing)} did not come within {timeout_seconds:g} seconds"
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
    """Returns a clause that names the first setting that differs from the chief's, or None."""
    for index, record in arrived.items():
        settings = record.get("settings", {})
        for name in {**expected, **settings}:
            value, chief_value = settings.get(name), expected.get(name)
            if value != chief_value:
                worker = records.name(index)
                return f"{worker} has another {name} than the chief: {value}, not {chief_value}"
    return None


def _report_to_chief(records, settings, timeout_seconds):
    """Gives the chief this worker's settings; returns index → id of the workers that came."""
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
        if chief and chief["id"] != chief_id:  # The first may be the record of a killed chief.
            chief_id = chief["id"]
            records.write(chief=chief_id, settings=settings(chief.get("decided", {})))
        time.sleep(_POLL_SECONDS)
    raise UserError(
        f"{VARIABLE}: {records.name(0)} did not answer within {timeout_seconds:g} seconds; all"
        f" workers must share --output_dir ({records.output_dir})."
    )


def _check_port(address):
    """Raises UserError if this process cannot listen at its port, as TensorFlow will."""
    host, _, port = address.rpartition(":")
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", int(port)))
    except OSError as error:
        raise UserError(f"{VARIABLE}: {address} cannot be listened at ({error}).") from error


@contextlib.contextmanager
def _watch_peers(records, members, on_loss):
    """While entered, a thread watches the other workers, see `_run_watch`."""
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
        # If it comes of a loss, the watch soon notices and replaces this process.
        logging.warning("Is another worker lost? TensorFlow says: %s.", files.reason(error))
        thread.join(_SILENCE_SECONDS + 2 * _BEAT_SECONDS)
        raise
    finally:
        stop_event.set()
        thread.join()


def _run_watch(records, peers, stop_event, on_loss):
    """Shows that this process lives; calls on_loss with a worker's name once that one is lost.

    A worker is lost if a new process has taken its place, if it has left before its part was done,
    or if it shows no sign of life. Once its part is done, or its record is gone, nobody misses it.
    """
    start, beat = time.monotonic(), 0
    beats = dict.fromkeys(peers, (None, start))  # index → (its last beat, since when)
    while not stop_event.wait(_POLL_SECONDS):
        now = time.monotonic()
        if int((now - start) / _BEAT_SECONDS) != beat:
            beat = int((now - start) / _BEAT_SECONDS)
            with contextlib.suppress(UserError):  # The disk may be full for a moment.
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
    """Replaces this process by a new one of the same command, without TensorFlow's state."""
    logging.warning("%s is lost: restarting from the last checkpoint.", worker)
    sys.stdout.flush()
    clean_up()
    # The last of two flags is the one that counts.
    os.execv(sys.executable, [sys.executable, *sys.argv, "--nooverwrite_output_dir"])
