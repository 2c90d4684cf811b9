"""A cluster of workers, as TF_CONFIG describes it, and how they come together.

    {"cluster": {"worker": ["host-a:2222", "host-b:2222"]}, "task": {"type": "worker", "index": 0}}

The chief is the task "chief", else the first worker. It alone writes, evaluates and predicts.
Before TensorFlow takes the ports over, the workers meet at the chief's: one that is missing or that
runs something else is named, where TensorFlow would wait for it, or train on without a word. The
connections stay, so that each end is told at once when the other is gone.
"""

import contextlib
import functools
import json
import os
import re
import select
import socket
import sys
import threading
import time
from typing import NamedTuple, Tuple

from absl import logging

import files
from errors import UserError

VARIABLE = "TF_CONFIG"

_EXPECTED = (
    'expected {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
)
_POLL_SECONDS = 0.5
_ANSWER_SECONDS = 5
_LONGEST_LINE = 1 << 22
_DONE = b"."
# Seconds until, and between, the questions to a silent host, and how many stay without an answer: a
# host that loses its power or network is missed within a minute. By default Linux waits two hours.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


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
        config = json.loads(text)
        jobs, task = config.get("cluster", {}), config.get("task", {})
        chiefs, workers = (_addresses(jobs, name) for name in ("chief", "worker"))
        kind, index = task.get("type", "worker"), int(task.get("index", 0))
    except (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError) as error:
        raise UserError(f"{VARIABLE} cannot be read ({error}); {_EXPECTED}.") from error
    others = sorted(set(jobs) - {"chief", "worker"})
    if others or kind not in ("chief", "worker"):
        raise UserError(
            f"{VARIABLE} names {', '.join(others) or kind}, but only chief and worker train;"
            f" {_EXPECTED}."
        )
    if not jobs:
        return Cluster()
    missing = [name for name in ("type", "index") if name not in task]
    if missing:
        raise UserError(f"{VARIABLE} has no {' and '.join(missing)} of the task; {_EXPECTED}.")
    own = {"chief": chiefs, "worker": workers}[kind]
    if len(chiefs) > 1 or not 0 <= index < len(own):
        found = f"{len(chiefs)} chief and {len(workers)} workers, task {kind} {index}"
        raise UserError(f"{VARIABLE} has {found}; {_EXPECTED}.")
    if len(set(chiefs + workers)) < len(chiefs + workers):
        raise UserError(f"{VARIABLE} names an address twice: {', '.join(chiefs + workers)}.")
    return Cluster(chiefs + workers, index + (len(chiefs) if kind == "worker" else 0))


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
def hidden():
    """While entered, TensorFlow sees no cluster: for what one process does alone."""
    text = os.environ.pop(VARIABLE, None)
    try:
        yield
    finally:
        if text is not None:
            os.environ[VARIABLE] = text


class Meeting:
    """A worker's connections: of the chief to all others, of these to the chief.

    Args:
      connections: dict from a name ("worker 1 (host:port)") to a connected socket.
      on_loss: function of a name, called once, in a thread, when that worker has gone before it
        said that it had done its part.
    """

    def __init__(self, connections, on_loss):
        self._connections = connections
        self._over = threading.Event()
        self._lost = threading.Lock()
        for name, connection in connections.items():
            connection.settimeout(None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE.items():
                if hasattr(socket, option):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
            watch = threading.Thread(target=self._watch, args=(name, connection, on_loss))
            watch.daemon = True
            watch.start()

    def _watch(self, name, connection, on_loss):
        try:
            is_done = connection.recv(1) == _DONE
        except OSError:
            is_done = False
        if not is_done and not self._over.is_set() and self._lost.acquire(blocking=False):
            on_loss(name)

    def leave(self):
        """Nobody is missed from now on; this worker will be, as soon as its process ends."""
        self._over.set()

    def end(self):
        """Says that this worker has done its part; nobody is missed from now on."""
        self.leave()
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.sendall(_DONE)
                connection.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def met(workers, facts, seconds, needs_all, clean_up):
    """While entered, all workers are there; one that goes has this one start again.

    Args:
      workers, facts, seconds, needs_all: as of `meet`; of a single worker nothing is asked.
      clean_up: function () that removes what only the end of this process would, before it starts
        again.
    """
    if len(workers.addresses) < 2:
        yield
        return
    start_again = functools.partial(_start_again, clean_up)
    meeting = meet(workers, facts, seconds, start_again, needs_all)
    try:
        yield
    except (KeyboardInterrupt, UserError):  # Other errors may come of another worker's loss.
        meeting.leave()
        raise
    meeting.end()  # Not after an error: the others are to notice.


def _start_again(clean_up, lost):
    """Replaces this process by a new one of the same command, without the state of TensorFlow's.

    As if it were killed, which nothing here loses by.
    """
    logging.warning("%s has gone: starting again from the last checkpoint.", lost)
    sys.stdout.flush()
    clean_up()
    # The last of two flags is the one that counts.
    os.execv(sys.executable, [sys.executable, *sys.argv, "--nooverwrite_output_dir"])


def meet(workers, facts, seconds, on_loss, needs_all=True):
    """Waits until all workers have come, and makes sure that they are to do the same.

    Args:
      workers: `Cluster`.
      facts: function () → dict of JSON values that must be those of the chief; their names are for
        messages. Called when the chief is there.
      seconds: how long each waits for the others.
      on_loss: see `Meeting`.
      needs_all: bool; False has the chief go on without those that do not come in time.

    Returns:
      `Meeting`.

    Raises:
      UserError: a worker does not come in time, or has other facts.
    """
    deadline = time.monotonic() + seconds
    if workers.is_chief:
        connections = _receive(workers, facts, deadline, seconds, needs_all)
    else:
        connections = _report_to_chief(workers, facts, deadline, seconds)
    return Meeting(connections, on_loss)


def _receive(workers, facts, deadline, seconds, needs_all):
    """The chief's side: takes every worker's facts, and answers all when all are there."""
    others = {i: f"worker {i} ({workers.addresses[i]})" for i in range(1, len(workers.addresses))}
    arrived, problem, own = {}, None, facts()
    with contextlib.closing(_listener(workers.addresses[0])) as listener:
        logging.info("Waiting for %s.", " and ".join(others.values()))
        while not problem and len(arrived) < len(others):
            listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection, _ = listener.accept()
            except socket.timeout:
                arrived = _still_there(arrived)
                missing = [name for i, name in others.items() if i not in arrived]
                late = f"{' and '.join(missing)} did not come within {seconds:g} seconds"
                if needs_all:
                    problem = late
                else:
                    logging.info("%s: going on without.", late)
                break
            connection.settimeout(_ANSWER_SECONDS)
            try:
                message = json.loads(_read_line(connection))
                index = files.checked(message["index"], int)
                found = files.checked(message["facts"], dict)
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                continue  # Not one of ours, or stopped meanwhile.
            if index in others:
                arrived = {**_still_there(arrived), index: connection}
                problem = _difference(others[index], found, own)
    for connection in arrived.values():
        with contextlib.suppress(OSError):
            connection.sendall(_line({"problem": problem}))
    if problem:
        raise UserError(f"{VARIABLE}: {problem}.")
    return {others[index]: connection for index, connection in arrived.items()}


def _still_there(arrived):
    """Those of the connections whose workers wait still: one may have been stopped meanwhile."""
    return {index: connection for index, connection in arrived.items() if _is_open(connection)}


def _report_to_chief(workers, facts, deadline, seconds):
    """A worker's side: tells the chief its facts, and waits for the answer."""
    chief = f"the chief ({workers.addresses[0]})"
    host, _, port = workers.addresses[0].rpartition(":")
    logging.info("Worker %d: waiting for %s.", workers.index, chief)
    while time.monotonic() < deadline:
        try:
            left = max(0.01, deadline - time.monotonic())
            connection = socket.create_connection((host.strip("[]"), int(port)), timeout=left)
        except OSError:
            time.sleep(_POLL_SECONDS)
            continue
        message = _line({"index": workers.index, "facts": facts()})
        try:
            connection.sendall(message)
            problem = json.loads(_read_line(connection))["problem"]
        except (OSError, ValueError, KeyError, TypeError):
            connection.close()  # Still the TensorFlow of a training that is about to end.
            time.sleep(_POLL_SECONDS)
            continue
        if problem:
            raise UserError(f"{VARIABLE}: {problem}.")
        return {chief: connection}
    raise UserError(f"{VARIABLE}: {chief} did not answer within {seconds:g} seconds.")


def _listener(address):
    host, _, port = address.rpartition(":")
    try:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", int(port)))
        listener.listen()
    except OSError as error:
        raise UserError(f"{VARIABLE}: {address} cannot be listened at ({error}).") from error
    return listener


def _is_open(connection):
    """Whether the other end, which waits for an answer and says nothing, is there."""
    readable, _, _ = select.select([connection], [], [], 0)
    return not readable


def _line(message):
    return json.dumps(message).encode() + b"\n"


def _read_line(connection):
    """A line, and not a byte more: what comes after it is for `Meeting`."""
    received = b""
    while not received.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(received) > _LONGEST_LINE:
            raise ValueError("no line")
        received += byte
    return received.decode()


def _difference(who, found, expected):
    """A clause that names the first fact that differs; None if none does."""
    for name in {**expected, **found}:
        value, expected_value = found.get(name), expected.get(name)
        if value != expected_value:
            return f"{who} has another {name} than the chief: {value}, not {expected_value}"
    return None
