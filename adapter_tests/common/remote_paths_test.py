"""A whole run on paths that are no local files, as gs:// paths are.

TensorFlow's ram:// stands for gs://. It takes every prefix of a name for a folder and renames no
folders; that much is mended here.
"""

import os
import tempfile
import unittest
from unittest import mock

import tensorflow.compat.v1 as tf
from tensorflow.python.platform import gfile as platform_gfile

import export_model
import run_classifier
from adapter_bert.common import errors
from adapter_tests.support import command_lines, tiny

ROOT = "ram://bucket"


def _is_listed(path):
    parent, _, name = path.rstrip("/").rpartition("/")
    if not path.startswith(ROOT + "/") or parent == ROOT:
        return True
    return name in [entry.rstrip("/") for entry in _REAL["listdir"](parent)]


_REAL = {name: getattr(tf.io.gfile, name) for name in ("exists", "isdir", "listdir", "rename")}


def _exists(path):
    return _REAL["exists"](path) and _is_listed(path)


def _isdir(path):
    return _REAL["isdir"](path) and _is_listed(path)


def _rename(source, target, overwrite=False):
    if not _isdir(source):
        _REAL["rename"](source, target, overwrite)
        return
    tf.io.gfile.makedirs(target)
    for folder, _, names in list(tf.io.gfile.walk(source)):
        for name in names:
            moved = folder.replace(source, target, 1)
            _REAL["rename"](f"{folder}/{name}", f"{moved}/{name}", overwrite)
    tf.io.gfile.rmtree(source)


@unittest.skipIf(tf.__version__.startswith("1."), "TensorFlow 1 has no ram://")
class RemotePathsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        patches = {"exists": _exists, "isdir": _isdir, "rename": _rename}
        self.enter(mock.patch.multiple(tf.io.gfile, **patches))
        self.enter(mock.patch.object(platform_gfile, "IsDirectory", _isdir))

    def enter(self, context):
        context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)

    def upload(self, folder, target):
        tf.io.gfile.makedirs(target)
        for name in os.listdir(folder):
            tf.io.gfile.copy(os.path.join(folder, name), f"{target}/{name}")

    def run_script(self, **given):
        arguments = [f"--{name}={value}" for name, value in given.items()]
        values = command_lines.parsed(run_classifier.define_flags, *arguments)
        return "\n".join(run_classifier.run(values))

    def export(self, given, **more):
        bert = ("bert_config_file", "vocab_file", "init_checkpoint")
        given = {**{name: given[name] for name in bert}, **more}
        arguments = [f"--{name}={value}" for name, value in given.items()]
        values = command_lines.parsed(export_model.define_flags, *arguments)
        return "\n".join(export_model.run(values))

    def test_train_evaluate_predict_and_go_on(self):
        with tempfile.TemporaryDirectory() as folder:
            self.upload(tiny.write_bert(os.path.join(folder, "bert")), ROOT + "/bert")
            self.upload(tiny.write_mrpc(os.path.join(folder, "mrpc")), ROOT + "/mrpc")
        given = {
            "task_name": "MRPC",
            "data_dir": ROOT + "/mrpc",
            "bert_config_file": ROOT + "/bert/bert_config.json",
            "vocab_file": ROOT + "/bert/vocab.txt",
            "init_checkpoint": ROOT + "/bert/bert_model.ckpt",
            "feature_cache_dir": "none",
            "max_seq_length": 32,
            "train_batch_size": 12,
            "num_train_epochs": 2,
        }
        first, second = ROOT + "/first", ROOT + "/second"
        report = self.run_script(
            do_train=True, do_eval=True, keep_best=True, output_dir=first, **given
        )
        self.assertIn(f"Adapter: {first}/adapter", report)
        for _ in range(2):  # The second one has nothing left to train.
            report = self.run_script(
                do_train=True,
                do_predict=True,
                save_full_checkpoint=True,
                adapter=first + "/adapter",
                output_dir=second,
                **given,
            )
        self.assertIn(f"{second}/submission/MRPC.tsv", report)
        for name in ("checkpoint", "adapter", "full_model.ckpt.index", "test_results.tsv"):
            self.assertTrue(_exists(f"{second}/{name}"), name)
        self.assertEmpty([n for n in _REAL["listdir"](second) if n.startswith("task_")])
        for number in (1, 2):  # Each export has a folder of its own.
            exported = self.export(given, adapters=second + "/adapter", export_dir=ROOT + "/export")
            self.assertIn(f"SavedModel: {ROOT}/export/{number} (", exported)
            for name in ("variables/variables.index", "assets.extra/tasks.json"):
                self.assertTrue(_exists(f"{ROOT}/export/{number}/{name}"), name)
        self.assertEmpty([name for name in os.listdir(".") if name.startswith("ram:")])

    def test_what_is_not_there(self):
        with self.assertRaisesRegex(errors.UserError, "ram://bucket/none"):
            self.run_script(task_name="MRPC", data_dir=ROOT + "/none")


if __name__ == "__main__":
    tf.test.main()
