"""Tests a clone as a package inside another project, as google-research/bert is used."""

import glob
import os
import shutil
import subprocess
import sys
import tempfile

import tensorflow.compat.v1 as tf

from adapter_bert.files import paths

# Uses the clone as scripts for named-entity recognition with BERT do.
PROJECT = """
import common, files, layers

from {clone} import modeling, optimization, tokenization

import modeling as at_the_top
import tensorflow.compat.v1 as tf

assert modeling is at_the_top
assert (common.OWN, files.OWN, layers.OWN) == (1, 2, 3)
import {clone}.run_classifier as script
assert script.modeling is modeling and script.InputExample("0", "a").text_a == "a"
from adapter_bert import Predictor, __version__
from adapter_bert.shell.errors import UserError
assert issubclass(UserError, ValueError)

config = modeling.BertConfig(30, 8, 1, 2, 16, max_position_embeddings=8, type_vocab_size=2)
ids = tf.zeros([2, 8], tf.int32)
model = modeling.BertModel(
    config=config, is_training=True, input_ids=ids, input_mask=ids, token_type_ids=ids,
    use_one_hot_embeddings=False,
)
weights = tf.get_variable("output_weights", [9, 8])
logits = tf.matmul(tf.reshape(model.get_sequence_output(), [-1, 8]), weights, transpose_b=True)
loss = tf.reduce_mean(-tf.nn.log_softmax(logits)[:, 0])
optimization.create_optimizer(loss, 3e-4, 10, 1, False)
print(sorted({{v.op.name.split("/")[0] for v in tf.trainable_variables()}}))
print(tokenization.BasicTokenizer().tokenize("Adapters work."))
"""


class CloneTest(tf.test.TestCase):
    def test_clone_works_in_project_with_same_module_names(self):
        for clone in ("bert", "adapter_bert"):
            folder = tempfile.mkdtemp(dir=self.get_temp_dir())
            shutil.copytree(
                os.path.join(paths.PROJECT, "adapter_bert"),
                os.path.join(folder, clone, "adapter_bert"),
            )
            for path in glob.glob(os.path.join(paths.PROJECT, "*.py")):
                shutil.copy(path, os.path.join(folder, clone))
            os.mkdir(os.path.join(folder, "common"))
            own = {"common/__init__.py": 1, "files.py": 2, "layers.py": 3}
            for file, number in own.items():
                with open(os.path.join(folder, file), "w") as writer:
                    writer.write(f"OWN = {number}\n")
            script = os.path.join(folder, "train.py")
            with open(script, "w") as writer:
                writer.write("import tensorflow.compat.v1 as tf\ntf.disable_eager_execution()\n")
                writer.write(PROJECT.format(clone=clone))
            environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
            done = subprocess.run(
                [sys.executable, script], env=environ, capture_output=True, text=True
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(
                done.stdout.splitlines(),
                ["['bert', 'output_weights']", "['adapters', 'work', '.']"],
            )
