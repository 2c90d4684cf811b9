"""TensorFlow's Estimator, on TensorFlow 1.15 and from 2.12 to the newest.

    from adapter_bert.common import tf_estimator

    tf_estimator.tpu.TPUEstimator(model_fn, ...)

TensorFlow dropped `tf.estimator` with 2.16. Its last wheel, tensorflow-estimator 2.15, is pure
Python and still runs on TensorFlow's sessions, hooks and strategies, which are all there. It only
imports a few of TensorFlow's modules that went with it; `_REPLACEMENTS` has them. The result
is also set as `tf.compat.v1.estimator`, where code written for BERT and tensorflow-hub look for it.
"""

import contextlib
import importlib
import importlib.util
import os
import sys
import types
from typing import Any

import tensorflow.compat.v1 as tf
from absl import logging

from adapter_bert.common import environment

_WHEEL = "2.15"
_NEWEST_TESTED = (2, 21)


class _Removed(types.ModuleType):
    """A module that TensorFlow no longer has, of which the wheel only names classes and functions.

    Any name in it is a class, so that it may be imported, subclassed and tested for; making an
    instance of it, or calling it, raises NotImplementedError.
    """

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        setattr(self, name, _removed_class(self.__name__, name))
        return getattr(self, name)


class _RemovedClass(type):
    """The metaclass of such classes, which have any attributes, likewise."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(cls, name, _removed_class(f"{cls.__module__}.{cls.__name__}", name))
        return getattr(cls, name)


def _removed_class(module, name):
    def refuse(self, *args, **kwargs):
        raise NotImplementedError(f"{module}.{name} is not in TensorFlow {tf.__version__}.")

    return _RemovedClass(name, (), {"__init__": refuse, "__module__": module})


def _estimator_export():
    """The wheel's decorator registers names in tables that TensorFlow removed in 2.18."""
    module: Any = types.ModuleType("estimator_export")
    module.estimator_export = lambda *names, **options: lambda symbol: symbol
    return module


def _estimator_training():
    return importlib.import_module("adapter_bert.common.estimator_training")


def _session_support():
    """Shuts a TPU's workers down when one of them reports that it is about to be taken away.

    Estimator asks for it by default. Without it a worker that goes ends the training, which the
    same command resumes from its last checkpoint.
    """
    os.environ.setdefault("TF_TPU_GRACEFUL_SHUTDOWN_MODE", "")
    return _Removed("tensorflow.python.tpu.session_support")


# Module that the wheel imports → function that makes what takes its place where TensorFlow has
# none. The two of TPU embeddings are for feature columns, which no BERT has.
_REPLACEMENTS = {
    "tensorflow.python.distribute.estimator_training": _estimator_training,
    "tensorflow.python.tpu.session_support": _session_support,
    "tensorflow.python.tpu.tpu_embedding": lambda: _Removed("tensorflow.python.tpu.tpu_embedding"),
    "tensorflow.python.tpu.tpu_embedding_gradient": lambda: _Removed(
        "tensorflow.python.tpu.tpu_embedding_gradient"
    ),
}


def _load() -> Any:
    """Returns TensorFlow's own estimator module, or else the wheel's.

    Raises:
      ImportError: TensorFlow has none, and the wheel is not installed or is another version.
    """
    with _without_keras():
        return tf.estimator if hasattr(tf, "estimator") else _load_wheel()


@contextlib.contextmanager
def _without_keras():
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
        with environment.hidden("pandas"):
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


def _check_wheel():
    from importlib import metadata  # Python 3.8; where TensorFlow has no estimator there is one.

    try:
        version = metadata.version("tensorflow-estimator")
    except metadata.PackageNotFoundError:
        version = "none"
    if not version.startswith(_WHEEL + "."):
        raise ImportError(
            f"TensorFlow {tf.__version__} needs tensorflow-estimator {_WHEEL}, but {version} is"
            " installed; run `pip install -r requirements.txt`."
        )
    if tuple(map(int, tf.__version__.split(".")[:2])) > _NEWEST_TESTED:
        newest = ".".join(map(str, _NEWEST_TESTED))
        logging.warning("TensorFlow %s is newer than %s, the newest tried.", tf.__version__, newest)


_ESTIMATOR = _load()


def __getattr__(name):
    return getattr(_ESTIMATOR, name)
