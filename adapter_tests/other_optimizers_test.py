"""Tests that another optimizer in `optimization` needs no other change.

A run with it trains, resumes, predicts, and saves exactly the tensors that its description lists.
"""

import contextlib
import io
import os
import shutil
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import convert_checkpoint
import optimization
from adapter_bert.formats import task_adapter
from adapter_tests.support.checkpoint_cases import all_tensors
from adapter_tests.support.script_cases import ScriptTestCase, read

# Optimizer of a learning rate → (the suffixes of its slots, its other variables).
OPTIMIZERS = {
    tf.train.GradientDescentOptimizer: ((), ()),
    tf.train.AdamOptimizer: (("/Adam", "/Adam_1"), ("beta1_power", "beta2_power")),
}


def replaced(optimizer):
    """Replaces BERT's optimizer while entered."""
    return mock.patch.object(
        optimization,
        "AdamWeightDecayOptimizer",
        lambda learning_rate, **_: optimizer(learning_rate),
    )


@pytest.mark.slow
class OtherOptimizersTest(ScriptTestCase):
    def test_runs_with_another_optimizer_train_save_load_and_resume(self):
        for index, (optimizer, (slots, others)) in enumerate(OPTIMIZERS.items()):
            self.output_dir = os.path.join(self.folder, f"output{index}")
            with self.subTest(slots=slots), replaced(optimizer):
                self.check_run(slots, others)

    def test_a_run_of_another_optimizer_is_not_resumed(self):
        trained, _ = self.train_once("--do_train")
        shutil.copytree(trained, self.output_dir)
        with replaced(lambda rate: tf.train.MomentumOptimizer(rate, 0.9)):
            self.refuse(
                ["another optimizer", "/Momentum", "--overwrite_output_dir"],
                *("--num_train_epochs=2", "--do_train"),
            )

    def check_run(self, slots, others):
        flags = ["--num_train_epochs=2", "--save_checkpoints_steps=2"]
        self.succeed(*flags, "--do_train", "--do_predict")
        adapter = task_adapter.load(self.path("adapter"))
        listed = set(task_adapter.shapes(adapter.description))
        self.assertEqual(set(adapter.tensors), listed)
        checkpoint = tf.train.latest_checkpoint(self.output_dir)
        saved = all_tensors(checkpoint)
        slot_names = {name + slot for name in listed for slot in slots}
        expected = {*listed, *slot_names, *others, "global_step", "_RUN_IDENTITY"}
        self.assertEqual(set(saved), expected)
        predicted = read(self.path("test_results.tsv"))
        self.check_saved(adapter, checkpoint, slots, predicted)
        self.check_resumed(flags, saved)

    def check_saved(self, adapter, checkpoint, slots, predicted):
        """Checks that the adapter and the checkpoint are read, as their own files describe them."""
        other = os.path.join(self.folder, "other")
        for flag in ("--adapter=" + self.path("adapter"), "--init_checkpoint=" + checkpoint):
            self.succeed(flag, "--do_predict", output_dir=other)
            self.assertEqual(read(os.path.join(other, "test_results.tsv")), predicted)
            shutil.rmtree(other)
        lines = self.describe(checkpoint)
        count = sum(value.size for value in adapter.tensors.values())
        optimizer = [line for line in lines if line.startswith("Optimizer: ")]
        expected = [f"Optimizer: {len(slots) * count:,} parameters"] if slots else []
        self.assertEqual(optimizer, expected)
        self.assertIn("Head: 18 parameters", lines)
        message = "only the trained weights of a task"
        self.refuse([message], "--init_checkpoint=" + checkpoint, "--do_train", output_dir=other)

    def check_resumed(self, flags, saved):
        """Checks that a run that stopped at step 4 of 6 ends in the same weights."""
        state = tf.train.get_checkpoint_state(self.output_dir)
        (earlier,) = [p for p in state.all_model_checkpoint_paths if p.endswith("-4")]
        stopped = os.path.join(self.folder, "stopped")
        shutil.copytree(self.output_dir, stopped)
        tf.train.update_checkpoint_state(stopped, os.path.join(stopped, os.path.basename(earlier)))
        shutil.rmtree(os.path.join(stopped, "adapter"))
        with self.assertLogs("absl", "INFO") as log:
            self.succeed(*flags, "--do_train", output_dir=stopped)
        self.assertIn("Resuming from the checkpoint of step 4", "".join(log.output))
        resumed = all_tensors(tf.train.latest_checkpoint(stopped))
        self.assertEqual(set(resumed), set(saved))
        for name, value in saved.items():
            np.testing.assert_array_equal(resumed[name], value, err_msg=name)
        shutil.rmtree(stopped)

    def describe(self, path):
        """Returns the lines that convert_checkpoint.py prints about a checkpoint."""
        with contextlib.redirect_stdout(io.StringIO()) as output:
            convert_checkpoint.main(["describe", path])
        return output.getvalue().splitlines()
