"""The contestant's side of `harness`: answers its parent, and tells how much memory it took.

Runs in every contestant's environment, so it needs nothing but Python.
"""

import ctypes
import json
import os
import sys
import time

REPLIES = "BENCHMARK_REPLIES"  # Number of the file descriptor that answers go to.
MARKS = "BENCHMARK_MARKS"  # File that a process run whole writes how far it has got to.


def serve(run, *, facts=None, prepare=None):
    """Answers "first", "run" and "memory" on stdin until it closes.

    "first" is answered with the seconds of a call that nothing precedes, "run" with those of a call
    after one that is not timed. In between the process holds no more memory than it must, so that
    many can wait side by side; the call that is not timed gets it back.

    Args:
      run: function without arguments, the work that is timed.
      facts: dict for the first answer, which says that the contestant is ready.
      prepare: function without arguments, called untimed before each `run`.
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
                reply(bytes=peak_memory())
                continue
            if line == "run\n":
                timed()
            seconds = timed()
            ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what was freed, several gigabytes.
            reply(seconds=seconds)


def peak_memory():
    """Returns the most bytes of RAM that this process has held so far."""
    with open("/proc/self/status", encoding="ascii") as reader:
        kilobytes = next(line.split()[1] for line in reader if line.startswith("VmHWM:"))
    return 1024 * int(kilobytes)


def mark(name, **values):
    """Notes that the process has got as far as `name` now; `values` go along."""
    path = os.environ.get(MARKS)
    if path:
        with open(path, "a", encoding="utf-8") as writer:
            writer.write(json.dumps(dict(values, name=name, time=time.time())) + "\n")
