"""What TensorBoard's HParams page shows of a run: its settings, beside its scalars."""

import tensorflow.compat.v1 as tf
from tensorboard.plugins.hparams import api_pb2, summary


def write(folder, settings):
    """Tells TensorBoard what a finished run was made with.

    Args:
      folder: path of the run, whose scalars lie in or below it.
      settings: dict from names to str, bool, int or float.
    """
    with tf.Graph().as_default():  # Outside of one TensorFlow 2 makes no such writer.
        writer = tf.summary.FileWriter(folder, filename_suffix=".hparams")
    writer.add_summary(summary.session_start_pb(settings))
    writer.add_summary(summary.session_end_pb(api_pb2.STATUS_SUCCESS))
    writer.close()
