"""TensorFlow's Estimator, for TensorFlow 1.15 and for 2.12 and newer.

    from adapter_bert.shell import tf_estimator

    tf_estimator.tpu.TPUEstimator(model_fn, ...)

TensorFlow removed `tf.estimator` in 2.16. The last wheel, tensorflow-estimator 2.15, is pure Python
and builds on TensorFlow's sessions, hooks and strategies, which still exist. It imports a few
modules that were removed with it; `_REPLACEMENTS` supplies them. The loaded module is also set as
`tf.compat.v1.estimator`, which code written for BERT and tensorflow-hub reads.
"""

import contextlib
import importlib
import importlib.util
import os
import sys
import types
from typing import Any, Iterator

import tensorflow.compat.v1 as tf
from absl import logging

from adapter_bert.shell import extras, imports

_WHEEL = "2.15"
NEWEST_TESTED = (2, 21)


class _Removed(types.ModuleType):
    """A removed TensorFlow module, whose classes and functions the wheel only refers to.

    Every attribute is a class, so it can be imported, subclassed and used in isinstance. Creating
    an instance, or calling it as a function, raises NotImplementedError.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        setattr(self, name, _removed_class(self.__name__, name))
        return getattr(self, name)


class _RemovedClass(type):
    """The metaclass of such classes, which have any attributes, likewise."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(cls, name, _removed_class(f"{cls.__module__}.{cls.__name__}", name))
        return getattr(cls, name)


def _removed_class(module: str, name: str) -> type:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"{module}.{name} is not in TensorFlow {tf.__version__}.")

    return _RemovedClass(name, (), {"__init__": refuse, "__module__": module})


def _estimator_export() -> Any:
    """Returns a stand-in for the wheel's decorator, whose tables TensorFlow removed in 2.18."""
    module: Any = types.ModuleType("estimator_export")
    module.estimator_export = lambda *names, **options: lambda symbol: symbol
    return module


def _estimator_training() -> Any:
    return importlib.import_module("adapter_bert.shell.estimator_training")


def _session_support() -> Any:
    """Returns a stand-in for the shutdown of TPU workers that are about to be preempted.

    Estimator enables that by default; the environment variable turns it off. A preempted worker
    then ends the training, and the same command resumes it from the last checkpoint.
    """
    os.environ.setdefault("TF_TPU_GRACEFUL_SHUTDOWN_MODE", "")
    return _Removed("tensorflow.python.tpu.session_support")


# Module that the wheel imports → function that creates its replacement where TensorFlow lacks it.
# The TPU embedding modules serve feature columns, which BERT does not use.
_REPLACEMENTS = {
    "tensorflow.python.distribute.estimator_training": _estimator_training,
    "tensorflow.python.tpu.session_support": _session_support,
    "tensorflow.python.tpu.tpu_embedding": lambda: _Removed("tensorflow.python.tpu.tpu_embedding"),
    "tensorflow.python.tpu.tpu_embedding_gradient": lambda: _Removed(
        "tensorflow.python.tpu.tpu_embedding_gradient"
    ),
}


def _load() -> Any:
    """Returns TensorFlow's own estimator module, or the wheel's.

    Raises:
      ImportError: TensorFlow has none, and the wheel is missing or has another version.
    """
    with _without_keras(), imports.docstrings():
        module = tf.estimator if hasattr(tf, "estimator") else _load_wheel()
    tpu: Any = importlib.import_module("tensorflow_estimator.python.estimator.tpu.tpu_estimator")
    # It would let Ctrl-C kill a training on a TPU before it has saved its step.
    tpu.InstallSignalHandlerHook = tf.train.SessionRunHook
    return module


@contextlib.contextmanager
def _without_keras() -> Iterator[None]:
    """Keeps the wheel's own models of Keras from importing it, and its input of pandas that.

    Both take longer than all the rest of it, and nothing here needs them.
    """
    lazy = [
        (module, name, value)
        for module in (tf, sys.modules["tensorflow"])
        for name, value in list(vars(module).items())
        if type(value).__name__ == "KerasLazyLoader"
    ]
    for module, name, _ in lazy if "keras" not in sys.modules else ():
        setattr(module, name, _Removed(f"tensorflow.{name}"))
    try:
        with imports.hidden("pandas"):
            yield
    finally:
        for module, name, value in lazy:
            setattr(module, name, value)


def _load_wheel() -> Any:
    _check_wheel()
    for name, replacement in _REPLACEMENTS.items():
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            parent, _, child = name.rpartition(".")
            sys.modules[name] = replacement()
            setattr(importlib.import_module(parent), child, sys.modules[name])
    sys.modules["tensorflow_estimator.python.estimator.estimator_export"] = _estimator_export()
    module = importlib.import_module("tensorflow_estimator.python.estimator.api._v1.estimator")
    tf.estimator = module
    return module


def _check_wheel() -> None:
    from importlib import metadata  # Python 3.8; TensorFlow without an Estimator is never on 3.7.

    try:
        version = metadata.version("tensorflow-estimator")
    except metadata.PackageNotFoundError:
        version = "none"
    if not version.startswith(_WHEEL + "."):
        raise ImportError(
            f"TensorFlow {tf.__version__} needs tensorflow-estimator {_WHEEL}, but {version} is"
            f" installed; run {extras.install_command('train')}."
        )
    if tuple(map(int, tf.__version__.split(".")[:2])) > NEWEST_TESTED:
        newest = ".".join(map(str, NEWEST_TESTED))
        logging.warning(
            "TensorFlow %s is newer than %s, the newest tested version.", tf.__version__, newest
        )


_ESTIMATOR = _load()


def __getattr__(name: str) -> Any:
    return getattr(_ESTIMATOR, name)
