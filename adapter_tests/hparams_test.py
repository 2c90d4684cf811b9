"""Tests of hparams.py: the page's own messages, read back from the file."""

import glob
import os
import tempfile

import tensorflow.compat.v1 as tf
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

import hparams


class HparamsTest(tf.test.TestCase):
    def test_settings_are_read_back(self):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        hparams.write(folder, {"adapter_size": 64, "task_name": "CoLA"})
        (path,) = glob.glob(os.path.join(folder, "*.hparams"))
        data = {
            value.tag: plugin_data_pb2.HParamsPluginData.FromString(
                value.metadata.plugin_data.content
            )
            for event in tf.train.summary_iterator(path)
            for value in event.summary.value
        }
        start = data["_hparams_/session_start_info"].session_start_info.hparams
        self.assertEqual(start["adapter_size"].number_value, 64)
        self.assertEqual(start["task_name"].string_value, "CoLA")
        end = data["_hparams_/session_end_info"].session_end_info
        self.assertEqual(end.status, api_pb2.STATUS_SUCCESS)


if __name__ == "__main__":
    tf.test.main()
