"""Selects a Python that has TensorFlow, and defers imports until the flags are parsed.

    from adapter_bert.shell import environment

    if __name__ == "__main__":
        environment.prepare()

comes first in every script. After it, a project module is imported only when one of its attributes
is first used, so --help and flag errors do not wait for TensorFlow. `load` imports the rest once
the flags are parsed.
"""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import subprocess
import sys
import threading
import types
import warnings
from typing import Any, Dict, Iterator, List, NamedTuple

from adapter_bert import IS_INSTALLED, PACKAGE
from adapter_bert.shell import extras, imports
from adapter_bert.shell.errors import UserError

_DEMO_PYTHON = os.path.join(os.path.dirname(PACKAGE), ".venv", "bin", "python")  # In a clone.


class Packages(NamedTuple):
    """Packages that a script may need.

    Attributes:
      names: their display names by package.
      extra: what installs them.
      is_deferred: whether the script imports them itself, and only if it trains.
    """

    names: Dict[str, str]
    extra: str = "train"
    is_deferred: bool = False


TRAINING = Packages({"tensorflow": "TensorFlow", "tensorflow_estimator": "Estimator"})
SWEEPS = TRAINING._replace(is_deferred=True)
MODELS = Packages({"tensorflow": "TensorFlow"})
SERVING = Packages(
    {"onnxruntime": "ONNX Runtime", "starlette": "Starlette", "uvicorn": "uvicorn"}, "serve"
)
REPORTS = Packages({"absl": "absl-py", "matplotlib": "matplotlib", "scipy": "SciPy"})
# Logged during TensorFlow's import whatever TF_CPP_MIN_LOG_LEVEL is; fatal messages (F) stay.
_STARTUP_MESSAGES = (r"/^[IWE]0000 /d", r"/^WARNING: All log messages before absl::InitializeLog/d")

_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def missing_packages(packages: Packages) -> List[str]:
    """Returns the display names, such as "TensorFlow", of the packages that this Python lacks.

    Args:
      packages: `TRAINING`, `MODELS`, `SERVING`, `REPORTS` or `SWEEPS`.
    """
    names = packages.names.items()
    return [name for package, name in names if not importlib.util.find_spec(package)]


def prepare(packages: Packages = TRAINING) -> None:
    """Restarts the script in the Python of `make demo` if this one lacks a package.

    Also restarts it in UTF-8 if the locale has another encoding: TensorFlow takes names for UTF-8.
    Exits with code 1 and a sentence if neither has all packages. Imports of project modules after
    this call are deferred until `load`.

    Args:
      packages: `TRAINING`, `MODELS`, `SERVING`, `REPORTS` or `SWEEPS`.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        # From Python 3.10 with the interpreter's options.
        command = getattr(sys, "orig_argv", [sys.executable, *sys.argv])
        os.execv(sys.executable, command)
    # TensorFlow's C++ start-up messages would hide the script's own; a value set by the user stays.
    os.environ.setdefault(_LOG_LEVEL, "3")
    missing = missing_packages(packages)
    if not missing:
        sys.meta_path.insert(0, _DeferringFinder(packages))
        return
    version = ".".join(map(str, sys.version_info[:2]))
    problem = f"Python {version} ({sys.executable}) has no {' and no '.join(missing)}"
    if os.path.exists(_DEMO_PYTHON) and os.path.abspath(sys.executable) != _DEMO_PYTHON:
        print(f"{problem}; continuing with {_DEMO_PYTHON}.", file=sys.stderr, flush=True)
        os.execv(_DEMO_PYTHON, [_DEMO_PYTHON] + sys.argv)
    advice = extras.install_command(packages.extra)
    if packages.extra == "train" and not IS_INSTALLED:
        advice = f"`make demo`, or {advice}"
    pythons = "3.10 to 3.13" if packages.extra == "serve" else "3.9 to 3.13"
    sys.exit(f"Error: {problem}. Run {advice} with Python {pythons}.")


@contextlib.contextmanager
def deferred_imports() -> Iterator[None]:
    """Defers the project's modules that are imported while entered until their first use."""
    finder = _DeferringFinder(TRAINING)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def load() -> None:
    """Imports the modules that `prepare` deferred, TensorFlow first; without any, does nothing.

    Exits with code 1 and a sentence if TensorFlow and Estimator are incompatible.
    """
    for finder in [f for f in sys.meta_path if isinstance(f, _DeferringFinder)]:
        sys.meta_path.remove(finder)
        logging.disable(logging.INFO)  # matplotlib logs the fonts that it finds.
        try:
            with _quiet_import():
                names = () if finder.packages.is_deferred else finder.packages.names
                if "tensorflow" in names:
                    imports.import_tensorflow()
                if "tensorflow_estimator" in names:
                    from adapter_bert.shell import tf_estimator  # noqa: F401
        except ImportError as error:
            sys.exit(f"Error: {error}")
        for name in finder.deferred:
            getattr(sys.modules.get(name), "__doc__", None)  # Executes the module.
        logging.disable(logging.NOTSET)


def import_for_training() -> None:
    """Imports TensorFlow and Estimator into a program that is not one of the scripts.

    Raises:
      UserError: they are missing or incompatible.
    """
    missing = missing_packages(TRAINING)
    if missing:
        raise UserError(
            f"Training needs {' and '.join(missing)}; run {extras.install_command(TRAINING.extra)}."
        )
    os.environ.setdefault(_LOG_LEVEL, "3")
    try:
        with _quiet_import():
            imports.import_tensorflow()
            importlib.import_module("adapter_bert.shell.tf_estimator")
    except ImportError as error:
        raise UserError(str(error)) from error


class _Loader(importlib.util.LazyLoader):
    """Defers a module until an attribute is read, but not `__spec__`, as each import reads that."""

    def exec_module(self, module: Any) -> None:
        """Prepares a module; does not execute it yet."""
        super().exec_module(module)
        lazy = type(module)

        class Deferred(types.ModuleType):
            def __getattribute__(self, name: str) -> Any:
                if name == "__spec__":
                    return object.__getattribute__(self, name)
                object.__setattr__(self, "__class__", lazy)
                return getattr(self, name)

        module.__class__ = Deferred


class _DeferringFinder(importlib.abc.MetaPathFinder):
    """Finds the project's modules; each is executed on the first access to an attribute."""

    def __init__(self, packages: Packages):
        self.packages = packages
        self.deferred: List[str] = []

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if not fullname.startswith("adapter_bert."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None or spec.submodule_search_locations is not None:
            return None
        spec.loader = _Loader(spec.loader)
        self.deferred.append(fullname)
        return spec


@contextlib.contextmanager
def _quiet_import() -> Iterator[None]:
    """Filters `_STARTUP_MESSAGES` out of stderr by a child process, which survives our crash.

    Only if the log level is `prepare`'s, and TensorFlow is not imported yet.
    """
    if os.environ.get(_LOG_LEVEL) != "3" or "tensorflow" in sys.modules:
        yield
        return
    try:
        stderr = os.dup(2)
        command = ["sed", *(part for message in _STARTUP_MESSAGES for part in ("-e", message))]
        filter_process: Any = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stderr)
    except OSError:  # No stderr, or no sed.
        yield
        return
    os.dup2(filter_process.stdin.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        filter_process.communicate()


_default_excepthook: Any = getattr(threading, "excepthook", None)  # Python 3.7 has none.


def silence_tensorflow() -> None:
    """Silences TensorFlow's log, as its errors also come as exceptions; --verbosity=1 keeps it."""
    if "tensorflow" not in sys.modules:
        return
    # `prepare` also runs where these packages are missing.
    import tensorflow.compat.v1 as tf
    from absl import logging as absl_logging

    tf.get_logger().propagate = False  # absl's handler would print each message again.
    is_verbose = absl_logging.get_verbosity() > absl_logging.INFO
    tf.logging.set_verbosity(tf.logging.INFO if is_verbose else tf.logging.FATAL)
    if not is_verbose:
        warnings.filterwarnings("ignore", "To make it possible to preserve tf.data options")
        threading.excepthook = _report_thread


@contextlib.contextmanager
def silenced_tensorflow() -> Iterator[None]:
    """Calls `silence_tensorflow`, and reverts it at the end."""
    import tensorflow.compat.v1 as tf

    logger, hook = tf.get_logger(), threading.excepthook
    before = logger.propagate, tf.logging.get_verbosity()
    try:
        with warnings.catch_warnings():
            silence_tensorflow()
            yield
    finally:
        logger.propagate, threading.excepthook = before[0], hook
        tf.logging.set_verbosity(before[1])


def _report_thread(failure: Any) -> None:
    """Reports an error in a thread, except one that the main thread raises again."""
    if failure.thread.name != "EventLoggerThread":
        _default_excepthook(failure)
