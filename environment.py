"""Imported first by every script: a Python with the right TensorFlow, or one sentence why not.

TensorFlow's Estimator ended with TensorFlow 2.15, and with it Python 3.11. Where this Python has
none, the script is handed to the one that `make demo` prepared, and says so.
"""

import importlib.util
import os
import sys
import threading
import warnings
from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_DEMO = os.path.join(_FOLDER, "demo")
_PREPARED = os.path.join(_FOLDER, ".venv", "bin", "python")

# TensorFlow's C++ start-up notes hide the script's own; a setting of the user's stays.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def has_estimator():
    """Whether a TensorFlow with Estimator is installed.

    An update of TensorFlow leaves an older one's Estimator behind, of which the new one knows
    nothing: only TensorFlow itself tells, which every script imports anyway.
    """
    packages = ("tensorflow", "tensorflow_estimator")
    if not all(importlib.util.find_spec(package) for package in packages):
        return False
    import tensorflow

    return hasattr(tensorflow, "estimator")


def ensure_estimator():
    """Goes on in the prepared Python if this one has no Estimator; without one, exits with 1."""
    if has_estimator():
        return
    version = ".".join(map(str, sys.version_info[:2]))
    problem = f"Python {version} ({sys.executable}) has no TensorFlow with Estimator"
    if os.path.exists(_PREPARED) and os.path.abspath(sys.executable) != _PREPARED:
        print(f"{problem}; going on with {_PREPARED}.", file=sys.stderr, flush=True)
        os.execv(_PREPARED, [_PREPARED] + sys.argv)
    sys.exit(
        f"Error: {problem}; run `make demo`, or install requirements.txt with Python 3.9, 3.10 or"
        " 3.11."
    )


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


# Only the project's own scripts may be restarted; whoever imports one sees Python's own error.
_SCRIPT = os.path.abspath(sys.argv[0])
if os.path.dirname(_SCRIPT) in (_FOLDER, _DEMO) and _SCRIPT.endswith(".py"):
    ensure_estimator()
