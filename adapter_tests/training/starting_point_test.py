"""Tests of starting_point.py: --adapter, and --init_checkpoint instead of it."""

import dataclasses
import os

import tensorflow.compat.v1 as tf

import modeling
import run_classifier
import tuning
from adapter_bert.formats import task_adapter
from adapter_bert.training import starting_point
from adapter_tests.support import command_lines, own_models, tiny


class AdapterTest(tf.test.TestCase):
    def test_adapter_supplies_every_adapter_flag(self):
        root = self.get_temp_dir()
        adapter = modeling.AdapterConfig(
            *(3, "relu", 0.5, "Feedforward_adapter", (1,), "layer", 2),
            *("attention", "parallel", "multiply", 2.0),
        )
        for field in dataclasses.fields(adapter):
            self.assertNotEqual(getattr(adapter, field.name), field.default, field.name)
        method = tuning.Tuning(train_pooler=True, layer_norms="none")
        made = own_models.build_task_adapter(
            tiny.write_bert(os.path.join(root, "bert")), adapter=adapter, method=method
        )
        task_adapter.save(os.path.join(root, "adapter"), made)
        values = command_lines.classifier_flags("--adapter=" + os.path.join(root, "adapter"))
        start = starting_point.find(values, "mrpc")
        config = run_classifier.ClassifierConfig.from_flags(values, start.supplied)
        self.assertEqual((config.tuning, config.adapter), (method, adapter))
        self.assertEqual((config.task_name, config.max_seq_length), ("task0", 16))
        self.assertFalse(values["adapter_size"].present)
        self.assertEqual(values.adapter_size, 64)  # The parsed flags are not modified.


class BertOfRunTest(tf.test.TestCase):
    def test_given_vocabulary_overrides_recorded_hub_address(self):
        folder = tiny.write_bert(self.get_temp_dir())
        values = command_lines.classifier_flags("--vocab_file=" + os.path.join(folder, "vocab.txt"))
        recorded = {"bert_hub_module_handle": "https://hub.example/bert/1"}
        self.assertEqual(starting_point._run_bert_flags(values, recorded), {})
