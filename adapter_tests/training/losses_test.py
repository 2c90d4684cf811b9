"""Tests of losses.py: the losses of resumed trainings, and those that do not fall."""

import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.training import losses, progress


class LossesTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())

    def test_losses_of_a_resumed_training_are_joined(self):
        self.assertEqual(losses.read(self.folder), [])
        for step, loss in ((10, 3.0), (20, 2.0), (30, 8.0)):
            progress.write_scalars(self.folder, step, {"loss": loss, "learning_rate": 0.1})
        # A run that resumed at step 20 wrote a later file; one of them was cut by a kill.
        paths = sorted(os.listdir(self.folder))
        for step, loss in ((30, 1.5), (40, 1.0)):
            name = f"events.out.tfevents.9999999999.host.{step}"
            with tempfile.TemporaryDirectory() as other:
                progress.write_scalars(other, step, {"loss": loss})
                (written,) = os.listdir(other)
                os.rename(os.path.join(other, written), os.path.join(self.folder, name))
        progress.write_scalars(os.path.join(self.folder, "eval"), 40, {"loss": 99.0})
        with open(os.path.join(self.folder, paths[0]), "ab") as writer:
            writer.write(b"cut")
        self.assertAllClose(losses.read(self.folder), [(10, 3.0), (20, 2.0), (30, 1.5), (40, 1.0)])

    def test_a_loss_that_does_not_fall_is_warned_of(self):
        random = np.random.RandomState(1)
        noise = random.normal(0, 0.05, 60)
        falling = np.linspace(0.7, 0.4, 60)
        self.assertEqual(losses.warnings(falling + noise), [])
        (warning,) = losses.warnings(0.69 + noise)
        self.assertRegex(warning, r"has not fallen: 0\.\d+ in the first fifth .* --learning_rate")
        self.assertLen(losses.warnings(falling[::-1]), 1)
        for too_few in ([], [0.7] * 9):
            self.assertEqual(losses.warnings(too_few), [])


if __name__ == "__main__":
    tf.test.main()
