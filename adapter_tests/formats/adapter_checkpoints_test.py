"""Tests of adapter_checkpoints.py; tests of training cover `find_run_adapter`."""

import dataclasses
import os

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.formats import adapter_checkpoints
from adapter_bert.model import model_variables
from adapter_bert.shell.errors import UserError
from adapter_tests.support import tiny
from adapter_tests.support.task_adapters import TaskAdaptersTestCase


class CheckpointsTest(TaskAdaptersTestCase):
    def test_to_checkpoint_saves_adapter_and_global_step(self):
        prefix = os.path.join(self.root, "adapter.ckpt")
        saved = self.save()
        adapter_checkpoints.to_checkpoint(saved, prefix)
        reader = tf.train.NewCheckpointReader(prefix)
        self.assertEqual(set(reader.get_variable_to_shape_map()), {*saved.tensors, "global_step"})
        self.assertEqual(reader.get_tensor("global_step"), 12)
        for name, value in saved.tensors.items():
            np.testing.assert_array_equal(reader.get_tensor(name), value)

    def test_to_full_checkpoint_merges_adapter_and_backbone(self):
        bert = os.path.join(tiny.write_bert(os.path.join(self.root, "bert")), "bert_model.ckpt")
        backbone = adapter_checkpoints.backbone_of(bert, tiny.config())
        self.assertEqual(backbone.name, "bert")
        saved = self.save(backbone=backbone)
        prefix = os.path.join(self.root, "full.ckpt")
        adapter_checkpoints.to_full_checkpoint(saved, bert, prefix)
        full, plain = tf.train.NewCheckpointReader(prefix), tf.train.NewCheckpointReader(bert)
        names = set(model_variables.encoder_shapes(tiny.config()))
        self.assertEqual(
            set(full.get_variable_to_shape_map()), {*names, *saved.tensors, "global_step"}
        )
        for name in names:
            expected = saved.tensors.get(name, plain.get_tensor(name))
            np.testing.assert_array_equal(full.get_tensor(name), expected, err_msg=name)

    def test_full_checkpoint_use_names_compatible_code(self):
        use = adapter_checkpoints.full_checkpoint_use
        plain = modeling.AdapterConfig(48, init_scale=0.1)
        for adapter, expected in (
            (None, "^BERT's own code can load it"),
            (plain, r"adapter-bert \(hidden_size=48\) only: BERT's own code .* ignores"),
            (
                dataclasses.replace(plain, fn="Feedforward_Adapter", activation="GELU"),
                "^Load it in this project or in google-research/adapter-bert",
            ),
            (dataclasses.replace(plain, activation="relu"), "^Load it in this project only:"),
            (dataclasses.replace(plain, layers=(1,)), "^Load it in this project only:"),
            (dataclasses.replace(plain, depth=2), "^Load it in this project only:"),
        ):
            described = dataclasses.replace(self.save().description, adapter=adapter)
            self.assertRegex(use(described), expected)

    def test_to_full_checkpoint_refuses_another_backbone(self):
        bert = os.path.join(tiny.write_bert(os.path.join(self.root, "bert")), "bert_model.ckpt")
        prefix = os.path.join(self.root, "full.ckpt")
        with self.assertRaisesRegex(UserError, "is not the backbone .* tiny"):
            adapter_checkpoints.to_full_checkpoint(self.save(), bert, prefix)
        self.assertFalse(os.path.exists(prefix + ".index"))
