"""Tests of restore.py: initializing, restoring and saving a graph's variables."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.formats import checkpoints
from adapter_bert.shell.errors import UserError
from adapter_bert.training import model_fn, restore
from adapter_tests.support import tiny

pytestmark = pytest.mark.estimator


class ScaffoldTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        folder = tiny.write_bert(self.get_temp_dir())
        self.prefix = os.path.join(folder, "bert_model.ckpt")
        self.pretrained = tf.train.load_checkpoint(self.prefix)
        self.frozen = "bert/pooler/dense/kernel"
        self.trained = "bert/embeddings/LayerNorm/gamma"

    def run_once(
        self,
        output_dir,
        step,
        task_checkpoint=None,
        on_tpu=False,
        pretrained=True,
        identity=None,
        adapter_fn=None,
    ):
        """Starts a session as Estimator does, adds 1 and saves; returns the initial values."""
        with tf.Graph().as_default():
            modeling.BertModel(
                tiny.config(),
                False,
                tf.zeros([1, 2], tf.int32),
                scope="bert",
                adapter_fn=adapter_fn,
            )
            tf.train.get_or_create_global_step()
            variables = {variable.op.name: variable for variable in tf.trainable_variables()}
            trained = variables[self.trained]
            add = tf.assign_add(trained, tf.ones_like(trained))
            settings = model_fn.ModelSettings(
                tiny.config(),
                init_checkpoint=self.prefix if pretrained else None,
                task_checkpoint=task_checkpoint,
                use_tpu=on_tpu,
                run_identity=identity,
            )
            build = restore.scaffold_fn(settings, [trained])
            with tf.train.MonitoredTrainingSession(
                scaffold=build(), checkpoint_dir=output_dir, save_checkpoint_steps=None
            ) as session:
                found = session.run({name: variables[name] for name in (self.frozen, self.trained)})
                session.run(add)
                (saver,) = tf.get_collection(tf.GraphKeys.SAVERS)
                path = os.path.join(output_dir, "model.ckpt")
                self.saved = saver.save(session._tf_sess(), path, global_step=step)
                self.variables = {variable.op.name for variable in tf.global_variables()}
        return found

    def test_checkpoint_without_frozen_weights_is_named_partial(self):
        for pretrained, name in ((True, "partial.ckpt-1"), (False, "model.ckpt-1")):
            output_dir = os.path.join(self.get_temp_dir(), name)
            self.run_once(output_dir, 1, pretrained=pretrained)
            self.assertEqual(self.saved, os.path.join(output_dir, name))
            self.assertEqual(tf.train.latest_checkpoint(output_dir), self.saved)
            names = {name for name, _ in tf.train.list_variables(self.saved)}
            self.assertEqual(self.frozen in names, not pretrained)

    def test_restart_keeps_pretrained_and_resumes_trained_weights(self):
        for on_tpu in (False, True):
            output_dir = os.path.join(self.get_temp_dir(), f"tpu_{on_tpu}")
            first = self.run_once(output_dir, 1, on_tpu=on_tpu)
            for name in (self.frozen, self.trained):
                self.assertAllEqual(first[name], self.pretrained.get_tensor(name))
            saved = tf.train.list_variables(os.path.join(output_dir, "partial.ckpt-1"))
            self.assertEqual({name for name, _ in saved}, {self.trained, "global_step"})

            second = self.run_once(output_dir, 2, on_tpu=on_tpu)
            self.assertAllEqual(second[self.frozen], first[self.frozen])
            self.assertAllEqual(second[self.trained], first[self.trained] + 1)

    def test_checkpoint_records_the_run_identity(self):
        """The identity is a tensor, not a variable. A checkpoint without it is also restored."""
        output_dir = os.path.join(self.get_temp_dir(), "run")
        first = self.run_once(output_dir, 1)
        self.assertIsNone(checkpoints.identity_of(self.saved))
        for step, identity in ((2, "a" * 64), (3, "b" * 64)):
            found = self.run_once(output_dir, step, identity=identity)
            self.assertAllEqual(found[self.trained], first[self.trained] + step - 1)
            self.assertEqual(checkpoints.identity_of(self.saved), identity)
            self.assertEqual(self.variables, {*self.pretrained_names(), "global_step"})
            names = {name for name, _ in tf.train.list_variables(self.saved)}
            self.assertEqual(names, {self.trained, "global_step", checkpoints.IDENTITY})
        tensors = checkpoints.trained_tensors(self.saved, [self.trained])
        self.assertEqual(set(tensors), {self.trained})

    def test_frozen_adapters_are_saved(self):
        # No pretrained checkpoint has them.
        self.run_once(os.path.join(self.get_temp_dir(), "a"), 1, adapter_fn="feedforward_adapter")
        adapters = {name for name in self.variables if "/adapters/" in name}
        self.assertLen(adapters, 2 * 2 * 4)
        names = {name for name, _ in tf.train.list_variables(self.saved)}
        self.assertEqual(names, {self.trained, "global_step", *adapters})

    def pretrained_names(self):
        return self.pretrained.get_variable_to_shape_map()

    def test_partial_checkpoint_needs_pretrained_weights(self):
        output_dir = os.path.join(self.get_temp_dir(), "alone")
        self.run_once(output_dir, 1)
        expected = r"partial.ckpt-1 lacks \d+ variables, such as bert/\S+: .* init_checkpoint"
        with self.assertRaisesRegex(UserError, expected):
            self.run_once(output_dir, 2, pretrained=False)

    def test_task_checkpoint_overrides_pretrained_weights(self):
        task = os.path.join(self.get_temp_dir(), "task.ckpt")
        given = np.arange(8, dtype=np.float32)
        checkpoints.write(task, {self.trained: given})
        found = self.run_once(os.path.join(self.get_temp_dir(), "run"), 1, task_checkpoint=task)
        self.assertAllEqual(found[self.trained], given)
        self.assertAllEqual(found[self.frozen], self.pretrained.get_tensor(self.frozen))
