"""The contestant's side of `harness`: answers requests, and reports its memory.

Runs in every contestant's environment, so it needs only Python.
"""

import ctypes
import json
import os
import sys
import time

REPLIES = "BENCHMARK_REPLIES"  # Number of the file descriptor for answers.
MARKS = "BENCHMARK_MARKS"  # File for the marks of a complete process.


def serve(run, *, facts=None, prepare=None, memory=None):
    """Answers "first", "run" and "memory" on stdin until it closes.

    "first" returns the seconds of the first call, "run" those of a call after an untimed one.
    Between calls the process frees memory, so that many can wait in parallel.

    Args:
      run: function without arguments, the work to time.
      facts: dict for the first answer, which reports that the contestant is ready.
      prepare: function without arguments, called untimed before each `run`.
      memory: function without arguments that returns the bytes for "memory"; by default
        `peak_memory`.
    """

    def timed():
        if prepare:
            prepare()
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    with os.fdopen(int(os.environ[REPLIES]), "w") as replies:

        def reply(**values):
            replies.write(json.dumps(values) + "\n")
            replies.flush()

        reply(**(facts or {}))
        for line in sys.stdin:
            if line == "memory\n":
                reply(bytes=(memory or peak_memory)())
                continue
            if line == "run\n":
                timed()
            seconds = timed()
            ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what was freed, several gigabytes.
            reply(seconds=seconds)


def peak_memory():
    """Returns this process's peak memory in bytes."""
    return 1024 * _kilobytes("self", "VmHWM")


def resident_mb(pid):
    """Returns a process's resident memory in megabytes."""
    return _kilobytes(pid, "VmRSS") / 1000


def _kilobytes(pid, name):
    with open(f"/proc/{pid}/status", encoding="ascii") as reader:
        return next(int(line.split()[1]) for line in reader if line.startswith(name + ":"))


def mark(name, **values):
    """Writes a mark of the current time and of the peak memory, with a name and values."""
    path = os.environ.get(MARKS)
    if path:
        with open(path, "a", encoding="utf-8") as writer:
            mark = dict(values, name=name, time=time.time(), bytes=peak_memory())
            writer.write(json.dumps(mark) + "\n")
