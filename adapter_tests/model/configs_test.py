"""Tests of configs.py.

The tests of `modeling` and `tuning` cover the classes that these modules export.
"""

import tensorflow.compat.v1 as tf

from adapter_bert.model import configs
from adapter_bert.ops import layers


class NamesTest(tf.test.TestCase):
    """Every name that a setting accepts has an implementation."""

    def test_every_activation_is_implemented(self):
        self.assertEqual(configs.ACTIVATIONS, tuple(layers.ACTIVATIONS))
