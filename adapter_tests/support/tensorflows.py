"""The version of TensorFlow that the tests run on, and whether it is one that serves."""

import importlib.util

import tensorflow.compat.v1 as tf

_VERSION = tuple(map(int, tf.__version__.split(".")[:2]))
HAS_ESTIMATOR, IS_TF2 = _VERSION < (2, 16), _VERSION >= (2, 0)
# Python 3.7 has no ONNX Runtime of today, and serves nothing.
SERVES = importlib.util.find_spec("onnxruntime") is not None
