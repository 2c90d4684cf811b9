"""Tests of configs.py; the parts that `modeling` and `tuning` export are tested with these."""

import tensorflow.compat.v1 as tf

import modeling
import tuning
from adapter_bert.common import configs
from adapter_bert.ops import adapters, layers


class NamesTest(tf.test.TestCase):
    """Every name that a setting accepts has an implementation."""

    def test_activations(self):
        self.assertEqual(configs.ACTIVATIONS, tuple(layers.ACTIVATIONS))

    def test_variants(self):
        for field, table in (
            ("normalization", adapters.NORMALIZATIONS),
            ("interaction", adapters.INTERACTIONS),
        ):
            self.assertEqual(configs.VARIANTS[field], tuple(table))

    def test_public_names(self):
        self.assertIs(modeling.BertConfig, configs.BertConfig)
        self.assertIs(modeling.AdapterConfig, configs.AdapterConfig)
        self.assertIs(tuning.Tuning, configs.Tuning)
