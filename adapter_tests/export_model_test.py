"""Tests of export_model.py: flags in, SavedModel or ONNX file out."""

import os
import re
import shutil
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

import export_model
from adapter_bert.formats import task_adapter
from adapter_bert.serving.export import in_graph_tokenizer
from adapter_bert.shell.errors import UserError
from adapter_tests.support import command_lines, own_models, tiny


def parsed(*arguments):
    return command_lines.parsed(export_model.define_flags, *arguments)


class ExportModelTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        if tf.__version__.startswith("1."):
            self.skipTest("SavedModels are written by TensorFlow 2 alone.")
        self.root = self.get_temp_dir()
        self.bert = tiny.write_bert(os.path.join(self.root, "bert"))
        self.export_dir = os.path.join(self.root, "exported")

    def save(self, name, seed=0, **changes):
        folder = os.path.join(self.root, name, "adapter")
        task_adapter.save(folder, own_models.build_task_adapter(self.bert, seed, **changes))
        return folder

    def run_it(self, *arguments):
        return export_model.run(
            parsed(
                "--bert_config_file=" + os.path.join(self.bert, "bert_config.json"),
                "--init_checkpoint=" + os.path.join(self.bert, "bert_model.ckpt"),
                "--export_dir=" + self.export_dir,
                *arguments,
            )
        )

    def vocabulary(self):
        return "--vocab_file=" + os.path.join(self.bert, "vocab.txt")

    def test_tasks_are_exported_as_saved_model(self):
        self.save("mrpc")
        self.save("stars", 1, kind="regression", labels=())
        self.save("old", training={"precision": "bfloat16"})
        with self.assertLogs("absl", "INFO") as log:
            report = self.run_it("--adapters=" + os.path.join(self.root, "*", "adapter"))
        self.assertIn("The model computes in float32", "\n".join(log.output))
        self.assertLen([line for line in log.output if "old was trained in bfloat16" in line], 1)
        self.assertEqual(
            report[0], "Tasks: mrpc (classification), old (classification), stars (regression)"
        )
        path = os.path.join(self.export_dir, "1")
        self.assertRegex(report[1], rf"^SavedModel: {re.escape(path)} \([\d.]+ MB\)$")
        signatures = tf.saved_model.contains_saved_model(path)
        self.assertTrue(signatures)

    def test_name_of_the_berts_folder_is_no_pattern(self):
        folder, bert = self.save("mrpc"), os.path.join(self.root, "x[e]\\rt")
        shutil.copytree(self.bert, bert)
        prefix = os.path.join(bert, "bert_model.ckpt")
        self.run_it("--adapters=" + folder, "--init_checkpoint=" + prefix)
        self.assertTrue(tf.saved_model.contains_saved_model(os.path.join(self.export_dir, "1")))

    def test_tasks_are_exported_as_onnx(self):
        halved = {"training": {"precision": "bfloat16"}}
        stars = {"kind": "regression", "labels": ()}
        folders = [self.save("mrpc", **halved), self.save("stars", 1, **stars)]
        for number, (count, precision) in enumerate(((1, "float32"), (2, "int8"))):
            with self.assertLogs("absl", "INFO") as log:
                report = self.run_it(
                    "--adapters=" + ",".join(folders[:count]),
                    "--format=onnx",
                    f"--precision={precision}",
                    self.vocabulary(),
                )
            said = "\n".join(log.output)
            self.assertIn(f"The model computes in {precision}", said)
            self.assertEqual("about 3e-4" in said, precision == "float32")
            folder = os.path.join(self.export_dir, str(number + 1))
            path = os.path.join(folder, "model.onnx")
            self.assertRegex(report[1], rf"^ONNX file: {re.escape(path)} \([\d.]+ MB\)$")
            self.assertCountEqual(os.listdir(folder), ["model.onnx", "tasks.json", "vocab.txt"])

    def test_raw_text_adds_text_signatures(self):
        if in_graph_tokenizer.tensorflow_text is None:
            self.skipTest("tensorflow-text is not installed.")
        folder = self.save("mrpc")
        self.run_it("--adapters=" + folder, "--raw_text", self.vocabulary())
        with tf.Graph().as_default(), tf.Session() as session:
            loaded = tf.saved_model.load(session, ["serve"], os.path.join(self.export_dir, "1"))
        self.assertEqual(sorted(loaded.signature_def), ["serving_default", "text", "text_pair"])
        self.assertEqual(sorted(loaded.signature_def["text_pair"].inputs), ["text", "text_b"])

    def test_invalid_arguments_are_refused(self):
        one = self.save("one")
        cased = self.save("cased", do_lower_case=False)
        other = self.save("other", vocabulary="0" * 16)
        full = self.save("full", method="full")
        squad = self.save("squad", kind="span", labels=())
        windows = self.save("windows", training={"long_texts": "windows"})
        diverged = self.save("diverged")
        made = task_adapter.load(diverged)
        tensors = {**made.tensors, "output_bias": np.float32([0, np.nan])}
        task_adapter.save(diverged, made._replace(tensors=tensors))
        for arguments, part in (
            ([f"--adapters={squad}", "--raw_text"], "--raw_text: tasks of span have no signature"),
            ([f"--adapters={windows}", "--raw_text"], "windows was trained with --long_texts"),
            ([f"--adapters={one}", "--raw_text", "--format=onnx"], "--raw_text requires --form"),
            ([f"--adapters={one}", "--precision=int8"], "--precision=int8 requires --format=onnx"),
            ([], "--adapters is not given"),
            ([f"--adapters={one}", "--export_dir="], "--export_dir is not given"),
            (["--adapters=nothing"], "--adapters=nothing: no such folder"),
            ([f"--adapters={one},{cased}", "--raw_text"], "some tasks lower-case"),
            ([f"--adapters={other}", "--raw_text"], "other was trained with another vocabulary"),
            ([f"--adapters={other}", "--format=onnx"], "other was trained with another vocab"),
            ([f"--adapters={other}"], "other was trained with another vocabulary"),
            ([f"--adapters={full}"], f"--adapters {full} .*--tuning=full.* cannot; train it by"),
            (
                [f"--adapters={diverged}"],
                f"--adapters {diverged}: its output_bias holds NaN or Inf",
            ),
        ):
            with self.assertRaisesRegex(UserError, part):
                self.run_it(self.vocabulary(), *arguments)
        self.assertFalse(os.path.exists(self.export_dir))


class TensorFlow1Test(tf.test.TestCase):
    def test_tensorflow_1_is_refused(self):
        one = mock.patch.object(tf, "__version__", "1.15.5")
        sentence = r"export_model\.py needs TensorFlow 2; this is 1\.15\.5\.$"
        with one, self.assertRaisesRegex(UserError, sentence):
            export_model.run(parsed("--adapters=one", "--export_dir=exported"))
