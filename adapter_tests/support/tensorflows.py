"""The version of TensorFlow that the tests run on."""

import tensorflow.compat.v1 as tf

HAS_ESTIMATOR = tuple(map(int, tf.__version__.split(".")[:2])) < (2, 16)
