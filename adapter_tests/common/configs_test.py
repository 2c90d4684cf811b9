"""Tests of configs.py.

The tests of `modeling` and `tuning` cover the classes that these modules export.
"""

import tensorflow.compat.v1 as tf

import modeling
import tuning
from adapter_bert.common import configs
from adapter_bert.ops import adapters, layers


class NamesTest(tf.test.TestCase):
    """Every name that a setting accepts has an implementation."""

    def test_every_activation_is_implemented(self):
        self.assertEqual(configs.ACTIVATIONS, tuple(layers.ACTIVATIONS))

    def test_every_adapter_variant_is_implemented(self):
        for field, table in (
            ("normalization", adapters.NORMALIZATIONS),
            ("interaction", adapters.INTERACTIONS),
        ):
            self.assertEqual(configs.VARIANTS[field], tuple(table))

    def test_modeling_and_tuning_export_config_classes(self):
        self.assertIs(modeling.BertConfig, configs.BertConfig)
        self.assertIs(modeling.AdapterConfig, configs.AdapterConfig)
        self.assertIs(tuning.Tuning, configs.Tuning)
