"""The Python that a script runs in: one with TensorFlow, or one sentence why not.

    import environment

    if __name__ == "__main__":
        environment.prepare()

stands first in every script, before anything that imports TensorFlow. A script without a training
needs no Estimator: `prepare(with_estimator=False)`.
"""

import contextlib
import importlib
import importlib.util
import os
import subprocess
import sys
import threading
import warnings
from typing import Any

_PREPARED = os.path.join(os.path.dirname(os.path.abspath(__file__)), ".venv", "bin", "python")
# What TensorFlow logs while it is imported, whatever TF_CPP_MIN_LOG_LEVEL says; F, fatal, stays.
_NOTES = (r"/^[IWE]0000 /d", r"/^WARNING: All log messages before absl::InitializeLog/d")

# TensorFlow's C++ start-up notes hide the script's own; a setting of the user's stays.
_IS_QUIET = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "3"


def has_tensorflow(with_estimator=True):
    """Returns whether TensorFlow, and Estimator if it is needed, are installed."""
    packages = ["tensorflow", *(["tensorflow_estimator"] if with_estimator else [])]
    return all(importlib.util.find_spec(package) for package in packages)


def prepare(with_estimator=True):
    """Imports TensorFlow, or continues in the Python that `make demo` prepared.

    Exits with 1 and a sentence if neither Python has it.

    Args:
      with_estimator: bool; Estimator is imported too, in a version that goes with TensorFlow.
    """
    if has_tensorflow(with_estimator):
        try:
            with _without_notes() if _IS_QUIET else contextlib.nullcontext():
                importlib.import_module("tf_estimator" if with_estimator else "tensorflow")
        except ImportError as error:
            sys.exit(f"Error: {error}")
        return
    version = ".".join(map(str, sys.version_info[:2]))
    needed = "TensorFlow with Estimator" if with_estimator else "TensorFlow"
    problem = f"Python {version} ({sys.executable}) has no {needed}"
    if os.path.exists(_PREPARED) and os.path.abspath(sys.executable) != _PREPARED:
        print(f"{problem}; continuing with {_PREPARED}.", file=sys.stderr, flush=True)
        os.execv(_PREPARED, [_PREPARED] + sys.argv)
    sys.exit(
        f"Error: {problem}; run `make demo`, or `pip install -r requirements.txt` with a Python"
        " from 3.9 to 3.13."
    )


@contextlib.contextmanager
def _without_notes():
    """Filters `_NOTES` out of stderr; a process of its own does, which a crash does not stop."""
    try:
        stderr = os.dup(2)
        command = ["sed", *(part for note in _NOTES for part in ("-e", note))]
        sed: Any = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stderr)
    except OSError:  # No stderr, or no sed.
        yield
        return
    os.dup2(sed.stdin.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        sed.communicate()


_report_in_full: Any = getattr(threading, "excepthook", None)  # Python 3.7 calls none.


def silence_tensorflow():
    """Turns TensorFlow's log off, whose errors come as exceptions too; --verbosity=1 keeps it."""
    # Only now are they known to be there.
    import tensorflow.compat.v1 as tf
    from absl import logging

    tf.get_logger().propagate = False  # absl's handler would print it once more.
    talkative = logging.get_verbosity() > logging.INFO
    tf.logging.set_verbosity(tf.logging.INFO if talkative else tf.logging.FATAL)
    if not talkative:
        warnings.filterwarnings("ignore", "To make it possible to preserve tf.data options")
        threading.excepthook = _report_thread


def _report_thread(failure):
    """Python's report of an error in a thread, but for one that the main thread raises again."""
    if failure.thread.name != "EventLoggerThread":
        _report_in_full(failure)
