"""One trial of a sweep: its folder, its process, and what it came to."""

import contextlib
import glob
import os
import re
import shutil
import signal
import subprocess

import files
import metrics
import progress
import sweep_grids
import sweep_records
import task_adapters
from errors import UserError
from sweep_records import DONE, FAILED

_STARTED = "\n$ "  # Before each command in the log.
_PATIENCE = 120.0  # Seconds that an interrupted trial has for saving its step.


class TrialFolder:
    """A trial's output_dir, with a lock that only one process has, and what the trial printed.

    Args:
      path: local path; it need not be there.
    """

    def __init__(self, path):
        self._path = path
        self._log = os.path.join(path, "log.txt")
        self._lock = os.path.join(path, ".lock")
        self._unkept = os.path.join(path, ".unkept")

    def lock(self):
        """An open file that holds the lock until all who have it closed it; None if it is held."""
        with files.written(self._path):
            os.makedirs(self._path, exist_ok=True)
            lock = os.open(self._lock, os.O_CREAT | os.O_RDWR)
        if files.lock(lock):
            return lock
        os.close(lock)
        return None

    def is_running(self):
        """Whether some process has the lock; nothing is written."""
        if not (os.path.exists(self._log) and os.path.exists(self._lock)):
            return False
        lock = os.open(self._lock, os.O_RDONLY)
        try:
            return not files.lock(lock, shared=True)
        finally:
            os.close(lock)

    def start(self, command, lock, cores=None):
        """Starts a trial's process.

        Args:
          command: list of str.
          lock: see above; the process has it too, should the one that starts it be killed.
          cores: indices of the processor's cores that it may use, None for all.
        """
        with files.written(self._log), open(self._log, "ab") as log:
            log.write((_STARTED + " ".join(command) + "\n").encode())
            log.flush()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[lock],
                preexec_fn=_heed_its_sweep,
            )
        if cores:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, cores)
        return process

    def last_line(self):
        """What the trial printed last."""
        return _lines(self._said()[-2000:])[-1]

    def outcome(self, return_code, trial):
        """What a record says of how the trial ended, see `sweep_records`.

        Args:
          return_code: its process's.
          trial: `sweep_grids.Trial`.
        """
        if return_code < 0:
            return {"status": FAILED, "reason": f"killed by signal {-return_code}"}
        if return_code:
            _, _, said = self._said().rpartition(_STARTED)
            return {"status": FAILED, "reason": reason_in(said)}
        try:
            return self._result(trial)
        except UserError as error:
            return {"status": FAILED, "reason": str(error)}

    def _result(self, trial):
        """What a record says of a finished trial; UserError if it left not all that it should."""
        path = os.path.join(self._path, "eval_results.json")
        found = files.read_object(path)
        scores = metrics.numbers(found)
        test = os.path.join(self._path, "test_scores.json")
        if os.path.exists(test):
            scores.update(metrics.numbers(files.read_object(test)))
        made = task_adapters.describe(os.path.join(self._path, task_adapters.FOLDER))
        progress.write_settings(self._path, dict(trial.flags))
        result = {
            "status": DONE,
            "task": sweep_grids.task_of(found["task"], dict(trial.flags).get("data_dir")),
            "score": found["score"],
            "scores": scores,
            "backbone": {"name": made.backbone.name, "fingerprint": made.backbone.fingerprint},
        }
        sweep_records.check_scores(result, path)
        return result

    def will_lose(self, patterns):
        """Notes what is not kept once the trial is recorded: what matches one of these patterns."""
        files.write_atomically(self._unkept, "".join(pattern + "\n" for pattern in patterns))

    def lose(self):
        """Removes what `will_lose` noted last, where that has not been done yet."""
        with contextlib.suppress(FileNotFoundError):  # It has; or another sweeper does it now.
            with open(self._unkept) as reader:
                patterns = reader.read().splitlines()
            for pattern in patterns:
                for path in glob.glob(os.path.join(glob.escape(self._path), pattern)):
                    shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
            os.remove(self._unkept)

    def _said(self):
        with open(self._log, "rb") as log:
            return log.read().decode(errors="replace")


def _heed_its_sweep():
    """Has Ctrl-C come to a trial once, from the one that started it, who may ignore its own."""
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt(processes):
    """Has trials save their step and end."""
    for process in processes:
        process.send_signal(signal.SIGINT)
    for process in processes:
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()


def reason_in(said):
    """The sentence by which a script that stopped says why, else the last line."""
    lines = _lines(said)
    errors = [line[len("Error: ") :] for line in lines if line.startswith("Error: ")]
    return (errors or lines)[-1]


def _lines(said):
    return [line.strip() for line in re.split(r"[\r\n]+", said) if line.strip()] or [""]
