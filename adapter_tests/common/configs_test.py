"""Tests of configs.py; what `modeling` and `tuning` offer of it is tested with these."""

import subprocess
import sys

import tensorflow.compat.v1 as tf

import modeling
import tuning
from adapter_bert.common import configs
from adapter_bert.ops import adapters, layers


class NamesTest(tf.test.TestCase):
    """A name that a setting may have is that of something that is computed."""

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


class ImportTest(tf.test.TestCase):
    def test_without_tensorflow(self):
        for module in (
            "tokenization",
            "adapter_bert.common.configs",
            "adapter_bert.common.files",
            "adapter_bert.common.paths",
            "adapter_bert.tasks.table_readers",
            "adapter_bert.tasks.squad_data",
        ):
            code = f"import sys; import {module}; sys.exit('tensorflow' in sys.modules)"
            self.assertEqual(subprocess.call([sys.executable, "-c", code]), 0, module)

    def test_a_remote_path_needs_tensorflow_and_says_so(self):
        code = (
            "import sys; sys.modules['tensorflow'] = None;"
            "from adapter_bert.common import errors, files;"
            "sys.exit(errors.exit_code(files.exists, 'gs://bucket/file'))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^Error: gs://bucket/file: [^\n]+TensorFlow[^\n]+\n$")


if __name__ == "__main__":
    tf.test.main()
