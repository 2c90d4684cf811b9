"""Tests of onnx_backbone.py."""

import contextlib
import glob
import io
import os
import shutil
import subprocess
import sys
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

pytest.importorskip("onnxruntime", reason="Python 3.7 has no ONNX Runtime of today")

# isort: split
from adapter_bert.files import paths
from adapter_bert.formats import adapter_checkpoints, checkpoints, onnx_backbone
from adapter_bert.shell.errors import UserError
from adapter_tests.support import mutations, tiny

# Loads a BERT. Prints its fingerprint, and whether TensorFlow was imported.
_LOAD = """
import json, sys
from adapter_bert.model import configs
from adapter_bert.shell import errors
from adapter_bert.formats import onnx_backbone
prefix, config = sys.argv[1:]
def main():
    backbone = onnx_backbone.load(prefix, configs.BertConfig.from_json_file(config))
    print(backbone.fingerprint, "tensorflow" in sys.modules)
sys.exit(errors.exit_code(main))
"""


class OnnxBackboneTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.bert = tiny.write_bert(os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "bert"))
        self.prefix = os.path.join(self.bert, "bert_model.ckpt")
        self.path = os.path.join(self.bert, "backbone.onnx")

    def load(self, config=None):
        """Loads the BERT; returns (backbone, stderr)."""
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            backbone = onnx_backbone.load(self.prefix, config or tiny.config())
        return backbone, stderr.getvalue()

    def load_elsewhere(self, before=""):
        return subprocess.run(
            [sys.executable, "-c", before + _LOAD, self.prefix, self.bert + "/bert_config.json"],
            capture_output=True,
            text=True,
            cwd=paths.PROJECT,
        )

    def test_checkpoint_is_converted_once(self):
        backbone, printed = self.load()
        self.assertRegex(printed, r"^Converted .*bert_model.ckpt to .*backbone.onnx in [\d.]+ s")
        reader = tf.train.NewCheckpointReader(self.prefix)
        for name, value in backbone.tensors.items():
            self.assertEqual(value.dtype, np.float32)
            self.assertAllEqual(value, reader.get_tensor(name))
        expected = adapter_checkpoints.backbone_of(self.prefix, tiny.config()).fingerprint
        self.assertEqual(backbone.fingerprint, expected)
        again, printed = self.load()
        self.assertEqual((again.fingerprint, printed), (expected, ""))

    def test_changed_checkpoint_is_converted_again(self):
        old, _ = self.load()
        other = tiny.write_bert(os.path.join(self.get_temp_dir(), "other"), initializer_range=0.3)
        for name in os.listdir(other):
            shutil.copy(os.path.join(other, name), self.bert)
        new, printed = self.load()
        self.assertIn("Converted", printed)
        self.assertNotEqual(new.fingerprint, old.fingerprint)

    def test_checkpoint_replaced_during_reading_is_refused(self):
        other = tiny.write_bert(os.path.join(self.get_temp_dir(), "next"), initializer_range=0.3)
        read_tensor = checkpoints.read_tensor

        def read_and_replace(reader, name, where):
            value = read_tensor(reader, name, where)
            if name == "bert/pooler/dense/kernel":
                for file in os.listdir(other):
                    shutil.copy(os.path.join(other, file), self.bert)
            return value

        replaced = mock.patch.object(checkpoints, "read_tensor", read_and_replace)
        with replaced, self.assertRaisesRegex(UserError, "changed while it was .* try again"):
            self.load()
        new = tf.train.NewCheckpointReader(self.prefix)
        for name, value in self.load()[0].tensors.items():
            self.assertAllEqual(value, new.get_tensor(name))

    def test_damaged_onnx_file_is_converted_again(self):
        expected, _ = self.load()
        with open(self.path, "rb") as reader:
            content = bytearray(reader.read())
        for damaged in (content[:100], b"", content[:-400] + bytes(400), b"text"):
            with open(self.path, "wb") as writer:
                writer.write(damaged)
            actual, printed = self.load()
            self.assertIn("Converted", printed)
            self.assertEqual(actual.fingerprint, expected.fingerprint)
        # Flips a bit of a weight.
        with open(self.path, "rb") as reader:
            content = bytearray(reader.read())
        weight = expected.tensors["bert/pooler/dense/kernel"].tobytes()
        content[content.index(weight)] ^= 1
        with open(self.path, "wb") as writer:
            writer.write(content)
        self.assertIn("Converted", self.load()[1])

    def test_unwritable_folder_falls_back_to_the_cache(self):
        os.mkdir(self.path)
        cache = os.path.join(self.get_temp_dir(), "cache")
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": cache}):
            backbone, printed = self.load()
            self.assertIn(f"to {cache}/adapter-bert/", printed)
            again, printed = self.load()
            (folder,) = glob.glob(os.path.join(cache, "adapter-bert", "*"))
            self.assertEqual(os.stat(folder).st_mode & 0o777, 0o700)
            os.chmod(folder, 0o777)
            self.assertEqual(self.load()[1], "")
            self.assertEqual(os.stat(folder).st_mode & 0o777, 0o700)
            stranger = mock.patch.object(os, "geteuid", return_value=os.geteuid() + 1)
            refused = self.assertRaisesRegex(UserError, "onnx cannot be written")
            with stranger, self.assertLogs("absl", "WARNING") as logs, refused:
                self.load()
            self.assertIn(f"{folder} belongs to another user", logs.output[0])
        self.assertEqual((again.fingerprint, printed), (backbone.fingerprint, ""))
        neither = {"XDG_CACHE_HOME": os.path.join(self.bert, "vocab.txt")}
        refused = self.assertRaisesRegex(UserError, "vocab.txt/adapter-bert/.* cannot be written")
        with mock.patch.dict(os.environ, neither), refused:
            self.load()

    def test_onnx_file_loads_without_the_checkpoint(self):
        expected, _ = self.load()
        for name in os.listdir(self.bert):
            if name.startswith("bert_model.ckpt"):
                os.remove(os.path.join(self.bert, name))
        self.assertEqual(self.load()[0].fingerprint, expected.fingerprint)
        with self.assertRaisesRegex(
            UserError, "backbone.onnx does not match bert_config.json: its bert"
        ):
            self.load(tiny.config(intermediate_size=24))
        os.remove(self.path)
        with self.assertRaisesRegex(UserError, "^--init_checkpoint .* is not the prefix"):
            self.load()

    def test_converted_bert_loads_without_tensorflow(self):
        without = "import sys; sys.modules['tensorflow'] = None\n"
        for state, part in (("missing", "is missing"), ("damaged", "of another .* or damaged")):
            if state == "damaged":
                with open(self.path, "wb") as writer:
                    writer.write(b"cut")
            done = self.load_elsewhere(without)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(
                done.stderr, f"^Error: --init_checkpoint .* {part}.* to_onnx BERT_DIR` "
            )
        os.remove(self.path)
        done = self.load_elsewhere()
        self.assertRegex(done.stderr, r"Converted .* in [\d.]+ s")
        fingerprint = adapter_checkpoints.backbone_of(self.prefix, tiny.config()).fingerprint
        self.assertEqual(done.stdout, f"{fingerprint} False\n")
        done = self.load_elsewhere(without)
        self.assertEqual(done.stdout.split()[0], fingerprint)

    def test_conversion_subprocess_inherits_pythonpath(self):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        with open(os.path.join(folder, "sitecustomize.py"), "w") as writer:
            writer.write("import os; os.mkdir(f'{os.path.dirname(__file__)}/{os.getpid()}')")
        with mock.patch.dict(os.environ, PYTHONPATH=folder):
            done = self.load_elsewhere()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLen([name for name in os.listdir(folder) if name.isdigit()], 2)

    def test_conversion_subprocess_refuses_incomplete_checkpoint(self):
        os.remove(self.prefix + ".data-00000-of-00001")
        done = self.load_elsewhere()
        self.assertRegex(done.stderr, r"^Error: --init_checkpoint .* is incomplete: its data files")

    def test_damaged_files_without_their_checkpoint(self):
        self.load()
        with open(self.path, "rb") as reader:
            contents = {"backbone.onnx": reader.read()}

        def read(folder):
            onnx_backbone.load(os.path.join(folder, "bert_model.ckpt"), tiny.config())

        mutations.check(contents, read)

    def test_bert_above_the_onnx_size_limit_is_refused(self):
        limit = mock.patch.object(onnx_backbone, "_MAX_BYTES", 100)
        with limit, self.assertRaisesRegex(UserError, "an ONNX file holds at most 2 GB"):
            self.load()
        self.assertFalse(os.path.exists(self.path))
