"""Tests of run.py through run_classifier: the files of a training, and --adapter."""

import dataclasses
import functools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest
from unittest import mock

import numpy as np
import pytest
import safetensors.numpy
import tensorflow.compat.v1 as tf

import modeling
import optimization
from adapter_bert.files import gfile
from adapter_bert.formats import checkpoints, task_adapter
from adapter_bert.model import configs, model_variables, task_kinds
from adapter_bert.ops import devices
from adapter_bert.shell.errors import UserError
from adapter_bert.training import (
    cluster,
    distribution,
    estimator,
    starting_point,
)
from adapter_bert.training import run as training_run
from adapter_bert.training.run_folder import RunFolder
from adapter_tests.support import tiny
from adapter_tests.support.checkpoint_cases import all_tensors
from adapter_tests.support.command_lines import classifier_config, classifier_flags
from adapter_tests.support.mutations import files_in
from adapter_tests.support.refusals import RefusalTestCase
from adapter_tests.support.script_cases import FOLDER, ScriptTestCase, read, write

pytestmark = pytest.mark.estimator

# Number of kills per run. The first is in the middle of training, the next at random moments.
KILLS = int(os.environ.get("ADAPTER_BERT_KILLS", "1"))
MOMENTS = random.SystemRandom()  # Other generators restart in tf.test.TestCase.setUp.

ADAPTERS = [
    f"bert/encoder/layer_{layer}/{site}/adapters/{part}"
    for layer in range(2)
    for site in ("attention/output", "output")
    for part in ("weights1", "biases1", "weights2", "biases2")
]
LAYER_NORMS = [
    f"bert/{scope}/LayerNorm/{part}"
    for scope in (
        "embeddings",
        *(f"encoder/layer_{i}/{site}" for i in range(2) for site in ("attention/output", "output")),
    )
    for part in ("beta", "gamma")
]
HEAD = ["output_weights", "output_bias"]


def predictions_counted():
    """Counts predictions while entered."""
    real = estimator.Estimator._predict_in_batch_order
    return mock.patch.object(
        estimator.Estimator, "_predict_in_batch_order", autospec=True, side_effect=real
    )


class JobsTestCase(ScriptTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.trained = os.path.join(cls.root, "trained")
        code, cls.report, stderr = cls.call(cls.trained)
        assert code is None, stderr
        cls.adapter = os.path.join(cls.trained, "adapter")

    def predict(self, output_dir, *arguments):
        """Runs --do_predict; returns test_results.tsv as bytes."""
        self.succeed("--do_predict", *arguments, output_dir=output_dir)
        return read(os.path.join(output_dir, "test_results.tsv"), "rb")


class SavedTest(JobsTestCase):
    def test_saved_adapter_equals_the_last_checkpoint(self):
        reader = tf.train.NewCheckpointReader(os.path.join(self.trained, "partial.ckpt-3"))
        tensors = safetensors.numpy.load_file(os.path.join(self.adapter, "adapter.safetensors"))
        self.assertEqual(set(tensors), {*ADAPTERS, *LAYER_NORMS, *HEAD})
        for name, value in tensors.items():
            np.testing.assert_array_equal(value, reader.get_tensor(name), err_msg=name)
        # Adapters of size 3 after both sub-layers of 2 layers, 5 LayerNorms, 2 labels; width 8.
        parameters = 4 * (8 * 3 + 3 + 3 * 8 + 8) + 5 * 2 * 8 + 2 * 8 + 2
        self.assertEqual(sum(value.nbytes for value in tensors.values()), 4 * parameters)
        self.assertIn(f"Adapter: {self.adapter} (0.0 MB)", self.report)

    def test_description_records_task_training_and_scores(self):
        described = task_adapter.describe(self.adapter)
        self.assertEqual(described.task, "MRPC")
        self.assertEqual(described.labels, ("0", "1"))
        self.assertEqual(described.max_seq_length, 16)
        self.assertEqual(described.adapter.size, 3)
        self.assertEqual(described.global_step, 3)
        self.assertEqual(described.training["learning_rate"], 0.01)
        self.assertEqual(described.backbone.name, "bert")
        scores = dict(
            line.split(" = ")
            for line in read(os.path.join(self.trained, "eval_results.txt")).splitlines()
        )
        self.assertAllClose(described.scores["eval_accuracy"], float(scores["eval_accuracy"]))

    def test_resuming_after_an_upgrade_keeps_adapter_and_scores(self):
        shutil.copytree(self.trained, self.output_dir)
        for stages in (["--do_train"], ["--do_train", "--do_eval"]):
            with mock.patch.object(task_adapter, "versions", return_value={"tensorflow": "9"}):
                self.succeed(*stages)
            self.assertEqual(files_in(self.path("adapter")), files_in(self.adapter))

    def test_training_flags_without_do_train_log_a_warning(self):
        adapter = "--adapter=" + self.adapter
        with self.assertLogs("absl", "WARNING") as log:
            self.succeed(adapter, "--do_eval", "--save_full_checkpoint", "--keep_best")
        for name in ("--save_full_checkpoint", "--keep_best"):
            self.assertIn(name + " has no effect without --do_train.", "\n".join(log.output))

    def test_full_and_top_layers_save_the_tensors_they_trained(self):
        everything = set(model_variables.encoder_shapes(tiny.config()))
        layer = {name for name in everything if "/layer_1/" in name}
        pooler = {name for name in everything if "/pooler/" in name}
        # Width 8, 2 layers, intermediate size 16, 40 positions, 2 segments, adapters of 3, 2 labels
        sizes = {
            "head": 2 * 8 + 2,
            "layer_norms": (1 + 2 * 2) * 2 * 8,
            "adapters": 2 * 2 * (8 * 3 + 3 + 3 * 8 + 8),
            "layer": 4 * (8 * 8 + 8) + (8 * 16 + 16) + (16 * 8 + 8),
            "pooler": 8 * 8 + 8,
            "embeddings": (len(tiny.VOCABULARY) + 40 + 2) * 8,
        }
        total = sum(sizes.values()) - sizes["adapters"] + sizes["layer"]
        trained = sizes["adapters"] + sizes["layer_norms"] + sizes["head"]
        counted = f"Trained: {trained:,} of {total + sizes['adapters']:,} parameters"
        self.assertIn(counted, self.report)
        of_top = sizes["layer"] + 2 * 2 * 8 + sizes["pooler"] + sizes["head"]
        for method, top, names, trained in (
            ("top_layers", ["--num_top_layers=1"], layer | pooler, of_top),
            ("full", [], everything, total),
        ):
            output_dir = os.path.join(self.folder, method)
            flags = ["--tuning=" + method, "--num_train_epochs=0.4", *top]
            report = self.succeed("--do_train", *flags, output_dir=output_dir)
            self.assertIn(f"Trained: {trained:,} of {total:,} parameters", report)
            adapter = task_adapter.load(os.path.join(output_dir, "adapter"))
            self.assertEqual(set(adapter.tensors), names | set(HEAD), method)
            self.assertIsNone(adapter.description.adapter)
            checkpoint = tf.train.latest_checkpoint(output_dir)
            self.assertIsNotNone(checkpoints.identity_of(checkpoint))
            self.assertEqual(
                self.predict(
                    os.path.join(self.folder, "p" + method), "--adapter=" + output_dir + "/adapter"
                ),
                self.predict(output_dir, *flags),
            )

    def test_full_checkpoint_without_moving_statistics_is_refused(self):
        flags = ["--adapter_normalization=batch"]
        report = self.succeed("--save_full_checkpoint", "--do_train", *flags)
        parameters = 4 * (8 * 3 + 3 + 3 * 8 + 8 + 2 * 3) + 5 * 2 * 8 + 2 * 8 + 2
        self.assertIn(f"Trained: {parameters} of ", report)
        full = os.path.join(self.folder, "full.ckpt")
        tensors = all_tensors(self.path("full_model.ckpt"))
        checkpoints.write(full, {n: v for n, v in tensors.items() if "/moving_" not in n})
        other = os.path.join(self.folder, "other")
        for stage in ("--do_eval", "--do_predict"):
            code, _, stderr = self.call(other, stage, *flags, "--init_checkpoint=" + full)
            self.assert_one_sentence(code, stderr, [full, "/moving_variance", "--do_train"])

    def test_a_run_of_an_older_version_resumes(self):
        """The checkpoint is named like a whole model's and does not record its run."""
        self.succeed("--do_train", "--save_checkpoints_steps=1")
        straight = files_in(self.path("adapter"))
        shutil.rmtree(self.path("adapter"))
        tensors = all_tensors(self.path("partial.ckpt-1"))
        del tensors[checkpoints.IDENTITY]
        for path in gfile.glob(self.path("partial.ckpt-*")):
            os.remove(path)
        checkpoints.write(self.path("model.ckpt-1"), tensors)
        tf.train.update_checkpoint_state(self.output_dir, self.path("model.ckpt-1"))
        with self.assertLogs("absl", "INFO") as logs:
            self.succeed("--do_train", "--save_full_checkpoint")
        log = "\n".join(logs.output)
        self.assertEqual(log.count("model.ckpt-1 does not record which run saved it"), 1)
        self.assertIn("from the checkpoint of step 1", log)
        self.assertEqual(tf.train.latest_checkpoint(self.output_dir), self.path("partial.ckpt-3"))
        self.assertEqual(files_in(self.path("adapter")), straight)
        self.assertTrue(os.path.exists(self.path("full_model.ckpt.index")))

    def test_checkpoint_of_another_run_is_refused(self):
        other = os.path.join(self.folder, "other")
        flags = ["--do_train", "--save_checkpoints_steps=1", "--random_seed=99"]
        self.succeed(*flags, output_dir=other)
        shutil.copytree(self.trained, self.output_dir)
        shutil.rmtree(self.path("adapter"))
        for path in gfile.glob(os.path.join(other, "partial.ckpt-2.*")):
            shutil.copy(path, self.output_dir)
        checkpoint = self.path("partial.ckpt-2")
        tf.train.update_checkpoint_state(self.output_dir, checkpoint)
        for stage in ("--do_train", "--do_predict"):
            self.refuse(["another run", checkpoint], stage)

    def test_resuming_with_another_init_scale_is_refused(self):
        shutil.copytree(self.trained, self.output_dir)
        self.refuse(
            ["--adapter_init_scale", "0.001", "0.5"], "--do_train", "--adapter_init_scale=0.5"
        )

    def test_run_of_an_older_version_refuses_new_variants(self):
        """The run's settings.json lacks the newer settings. It resumes only with their defaults."""
        shutil.copytree(self.trained, self.output_dir)
        settings = json.loads(read(self.path("settings.json")))
        names = ("normalization", "depth", "sites", "placement", "interaction")
        self.assertEqual({"adapter_" + name for name in names} & set(settings["model"]), set())
        self.refuse(["--adapter_depth", "2"], "--do_train", "--adapter_depth=2")
        self.succeed("--do_train")


class InitCheckpointTest(JobsTestCase):
    """Predictions as in BERT's README: --init_checkpoint names the trained model."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.whole = os.path.join(cls.root, "whole")
        code, _, stderr = cls.call(cls.whole, "--do_train", "--tuning=full")
        assert code is None, stderr

    def readme(self, init_checkpoint, *arguments, output_dir=None):
        """Returns (test_results.tsv as bytes, log, report) of the command in BERT's README."""
        output_dir = output_dir or os.path.join(self.folder, "predicted")
        names = ("task_name", "data_dir", "bert_config_file", "vocab_file", "max_seq_length")
        own = [flag for flag in self.base_flags if flag[2:].split("=")[0] in names]
        with mock.patch.object(type(self), "base_flags", own), self.assertLogs("absl") as log:
            report = self.succeed(
                "--do_predict=true",
                "--init_checkpoint=" + init_checkpoint,
                *arguments,
                output_dir=output_dir,
            )
        results = read(os.path.join(output_dir, "test_results.tsv"), "rb")
        return results, "\n".join(log.output), report

    def copied(self, run):
        folder = os.path.join(self.folder, "copy")
        shutil.rmtree(folder, ignore_errors=True)
        return shutil.copytree(run, folder)

    def supplied(self, init_checkpoint):
        """Returns the flags that this --init_checkpoint supplies to a prediction."""
        flags = "--do_predict", "--init_checkpoint=" + init_checkpoint, "--output_dir=nowhere"
        values = classifier_flags(*flags)
        return starting_point.find(values, "mrpc").supplied

    def test_run_folder_or_checkpoint_selects_its_adapter_and_bert(self):
        results, log, _ = self.readme(self.trained)
        self.assertEqual(results, self.predict(self.copied(self.trained)))
        bert = os.path.join(self.bert, "bert_model.ckpt")
        self.assertEqual(log.count("belongs to a run"), 1)
        self.assertIn(f"using its task adapter, {self.adapter}, on its BERT, {bert}", log)
        last = tf.train.latest_checkpoint(self.trained)
        adapters = self.adapter, self.adapter + "/"
        for named in (self.trained, self.trained + "/", last, last + ".index", *adapters):
            replacements = self.supplied(named).replacements
            self.assertEqual(replacements["adapter"], self.adapter, named)
            self.assertEqual(replacements["init_checkpoint"], bert, named)

    def test_bert_comes_from_run_settings_or_config_folder(self):
        expected = self.predict(self.copied(self.trained))
        elsewhere = mock.patch.dict(
            os.environ,
            {
                "BERT_BASE_DIR": tiny.write_bert(
                    os.path.join(self.folder, "other_bert"), initializer_range=0.1
                )
            },
        )
        with elsewhere:
            unnamed = self.readme(self.trained, "--bert_config_file=", "--vocab_file=")
            self.assertEqual(unnamed[0], expected)
            run = self.copied(self.trained)
            settings = json.loads(read(os.path.join(run, "settings.json")))
            self.assertEqual(
                settings["pretrained"]["init_checkpoint"],
                os.path.join(self.bert, "bert_model.ckpt"),
            )
            for pretrained in ({"init_checkpoint": "/nowhere/bert_model.ckpt"}, {}):
                settings["pretrained"] = pretrained
                with open(os.path.join(run, "settings.json"), "w") as writer:
                    json.dump(settings, writer)
                self.assertEqual(self.readme(run)[0], expected)

    def test_earlier_checkpoint_predicts_with_its_own_tensors(self):
        run = os.path.join(self.folder, "run")
        self.succeed("--do_train", "--save_checkpoints_steps=1", output_dir=run)
        earlier = re.sub("-3$", "-1", tf.train.latest_checkpoint(run))
        results, log, _ = self.readme(earlier)
        self.assertIn(f"using its task adapter, {earlier},", log)
        self.assertNotEqual(results, self.predict(self.copied(run)))
        rewound = self.copied(run)
        shutil.rmtree(os.path.join(rewound, "adapter"))
        last = os.path.join(rewound, os.path.basename(earlier))
        tf.train.update_checkpoint_state(rewound, last)
        self.assertEqual(results, self.predict(rewound))
        # The run's own folder must not get the results of an earlier step.
        self.refuse(
            [earlier],
            "--do_predict",
            "--init_checkpoint=" + earlier,
            output_dir=run,
        )
        shutil.rmtree(os.path.join(run, "adapter"))
        self.refuse(
            [earlier],
            "--do_predict",
            "--init_checkpoint=" + earlier,
        )

    def test_bert_checkpoint_with_head_selects_full_fine_tuning(self):
        """The folder holds only what BERT's code leaves, with Adam's moments and "checkpoint"."""
        precision = "--precision=float32"  # BERT's folder does not record one.
        expected = self.predict(self.copied(self.whole), "--tuning=full")
        run = os.path.join(self.folder, "bert_output")
        os.mkdir(run)
        last = tf.train.latest_checkpoint(self.whole)
        for name in os.listdir(self.whole):
            if name == "checkpoint" or name.startswith(os.path.basename(last) + "."):
                shutil.copy(os.path.join(self.whole, name), run)
        checkpoint = os.path.join(run, os.path.basename(last))
        results, log, _ = self.readme(checkpoint, precision)
        self.assertEqual(results, expected)
        self.assertEqual(log.count("holds a head and no adapters: using --tuning=full"), 1)
        for named, prefix in ((checkpoint, checkpoint), (run, checkpoint), (last, last)):
            found = self.supplied(named)
            self.assertEqual(found, ({"tuning": "full"}, {"init_checkpoint": prefix}), named)
        # A training starts from it as from any BERT, by default with adapters. Predictions in the
        # training's folder use these adapters.
        self.succeed("--do_train", "--init_checkpoint=" + checkpoint)
        self.assertEqual(task_adapter.describe(self.path("adapter")).tuning.method, "adapters")
        results, log, _ = self.readme(checkpoint, "--adapter_size=3", output_dir=self.output_dir)
        self.assertNotIn("--tuning=full", log)
        self.assertNotEqual(results, expected)

    def test_default_output_dir_is_named_after_full_fine_tuning(self):
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        last = tf.train.latest_checkpoint(self.whole)
        bert = os.path.join(self.folder, "bert_output", os.path.basename(last))
        os.mkdir(os.path.dirname(bert))
        for path in gfile.glob(last + ".*"):
            shutil.copy(path, os.path.dirname(bert))
        self.succeed("--do_predict", f"--init_checkpoint={bert}", "--output_dir=")
        (folder,) = os.listdir("output")
        self.assertEndsWith(folder, "_full")
        self.assertIn("test_results.tsv", os.listdir(os.path.join("output", folder)))

    def test_full_checkpoint_predicts_like_its_adapter(self):
        shutil.copytree(self.trained, self.output_dir)
        report = self.succeed("--do_train", "--save_full_checkpoint")
        self.assertIn("(hidden_size=3) only: BERT's own code", report)
        full = self.path("full_model.ckpt")
        names = {*model_variables.encoder_shapes(tiny.config()), *ADAPTERS, *HEAD, "global_step"}
        self.assertEqual(set(all_tensors(full)), names)
        expected = self.predict(self.output_dir)
        other = os.path.join(self.folder, "other")
        self.assertEqual(self.predict(other, "--init_checkpoint=" + full), expected)
        results, log, _ = self.readme(full)
        self.assertEqual(results, expected)
        self.assertIn("holds a head and its adapters: using --adapter_size=3", log)
        # The folder of a training that died before its first checkpoint holds only its settings.
        dead = os.path.join(self.folder, "dead")
        os.mkdir(dead)
        shutil.copy(self.path("settings.json"), dead)
        self.assertEqual(self.readme(full, output_dir=dead)[0], expected)
        self.refuse(
            [full, "16"],
            "--do_predict",
            "--tuning=full",
            "--init_checkpoint=" + full,
            output_dir=other,
        )


class PrecisionTest(JobsTestCase):
    """--precision=auto on a processor with a given speedup of bfloat16."""

    def succeed_where(self, speedup, *arguments):
        """Runs the script; returns the precision in its eval_results.json and in its log."""
        measured = {"float32": 0.01 * speedup, "bfloat16": 0.01}
        seconds = mock.Mock(return_value=measured)
        seen = mock.patch.multiple(devices, has_bfloat16=lambda: True, product_seconds=seconds)
        with seen, self.assertLogs("absl", "INFO") as logs:
            self.succeed("--precision=auto", *arguments)
        (line,) = [line for line in logs.output if "Computing in" in line]
        with open(self.path("eval_results.json")) as reader:
            self.assertIn(json.load(reader)["precision"], line)
        return line.partition("Computing in ")[2]

    def test_measured_precision_is_recorded(self):
        for speedup, precision in ((2.0, "bfloat16"), (0.5, "float32")):
            said = self.succeed_where(speedup, "--do_train", "--do_eval", "--overwrite_output_dir")
            self.assertStartsWith(said, precision)
            self.assertIn(f"{10 * speedup:.2f} ms in float32, 10.00 ms in bfloat16", said)
            description = task_adapter.describe(self.path("adapter"))
            self.assertEqual(description.training["precision"], precision)

    def test_a_run_keeps_its_precision(self):
        shutil.copytree(self.trained, self.output_dir)
        os.remove(self.path("eval_results.json"))
        for flags in (["--do_train", "--do_eval"], ["--do_eval"]):
            said = self.succeed_where(2.0, *flags)
            self.assertEqual(said, "float32, as recorded (--precision=auto).")

    def test_run_without_checkpoints_does_not_set_the_precision(self):
        settings = json.loads(read(os.path.join(self.trained, "settings.json")))
        settings["training"]["precision"] = "bfloat16"
        write(self.path("settings.json"), json.dumps(settings))
        said = self.succeed_where(0.5, "--do_train", "--do_eval")
        self.assertStartsWith(said, "float32 (--precision=auto): ")

    def test_adapter_is_evaluated_in_its_recorded_precision(self):
        given = "--adapter=" + self.adapter
        said = self.succeed_where(2.0, "--do_eval", given)
        self.assertEqual(said, "float32, as recorded (--precision=auto).")
        said = self.succeed_where(2.0, "--do_eval", given, "--precision=bfloat16")
        self.assertEqual(said, "bfloat16 (--precision=bfloat16).")
        # A training that starts from the adapter is a new run, so it measures again.
        said = self.succeed_where(2.0, "--do_train", "--do_eval", given, "--overwrite_output_dir")
        self.assertStartsWith(said, "bfloat16")

    @unittest.skipIf(tf.__version__.startswith("1."), "TensorFlow 1 has no bfloat16 on CPU.")
    def test_full_checkpoint_is_evaluated_in_recorded_precision(self):
        shutil.copytree(self.trained, os.path.join(self.folder, "float32"))
        for precision, speedup in (("float32", 2.0), ("bfloat16", 0.5)):
            train = ["--do_train", "--save_full_checkpoint", "--precision=" + precision]
            run = os.path.join(self.folder, precision)
            self.succeed(*train, output_dir=run)
            full = "--init_checkpoint=" + os.path.join(run, "full_model.ckpt")
            said = self.succeed_where(speedup, "--do_eval", full)
            self.assertEqual(said, f"{precision}, as recorded (--precision=auto).")


class VariantTest(ScriptTestCase):
    def test_batch_normalization_refuses_split_batches(self):
        batch = "--adapter_normalization=batch"
        replicas = distribution.Distribution("mirrored", 2)
        with mock.patch.object(distribution, "choose", return_value=replicas):
            self.refuse([batch, "--distribution="], "--do_train", batch)
        found = mock.patch.object(devices, "find_tpu", return_value=(True, None))
        with found:
            self.refuse([batch, "--use_tpu=True"], "--do_train", "--use_tpu", batch)
        parts = "--gradient_accumulation_steps=8"
        self.refuse([batch, "--train_batch_size=8", parts], "--do_train", batch, parts)
        self.assertFalse(os.path.exists(self.output_dir))

    def test_a_model_must_train_what_its_description_lists(self):
        listed = configs.AdapterConfig(3).variables()
        gate = configs.AdapterVariable(("1", "D"))
        head_shapes = task_kinds.TaskKind.head_shapes

        def functions(variables):
            table = {configs.FEEDFORWARD_ADAPTER: lambda adapter: variables}
            return mock.patch.object(configs, "FUNCTIONS", table)

        def head(**more):
            def shapes(kind, num_labels, hidden_size):
                return {**head_shapes(kind, num_labels, hidden_size), **more}

            return mock.patch.object(task_kinds.TaskKind, "head_shapes", shapes)

        def adapter(function, *arguments, **options):
            output = function(*arguments, **options)
            with tf.variable_scope("adapters"):
                keys = [tf.GraphKeys.GLOBAL_VARIABLES, model_variables.ADAPTERS]
                tf.get_variable("own", [8], collections=keys)
            return output

        fewer = {name: listed[name] for name in listed if name != "biases2"}
        own = functools.partial(adapter, modeling.feedforward_adapter)
        for change, parts in (
            (functions(fewer), ["_adapter has no variable biases2: list it in `FUNCTIONS` of"]),
            (
                mock.patch.object(modeling, "feedforward_adapter", own),
                ["adapters/own trains, but would not be saved: list it in `FUNCTIONS` of"],
            ),
            (
                mock.patch.object(
                    optimization, "trained_variables", lambda *_, **__: tf.trainable_variables()
                ),
                ["bert/embeddings/position_embeddings trains, but would not be saved"],
            ),
            (functions({**listed, "gate": gate}), ["/gate is in `FUNCTIONS` of", "not train it"]),
            (head(hidden=(8, 8)), ["hidden is in `head_shapes`", "does not train it"]),
            (head(output_bias=(1, 2)), ["output_bias has the shape [2], but [1, 2] in `head_sh"]),
        ):
            with change:
                self.refuse(parts, "--do_train", "--overwrite_output_dir")
            self.assertEqual(tf.io.gfile.glob(self.path("*.index")), [])

    def test_tpu_name_without_use_tpu_is_ignored(self):
        self.succeed("--do_train", "--num_train_epochs=0.4", "--tpu_name=my-tpu")

    def test_worker_reports_no_evaluation_and_no_predictions(self):
        connect = estimator.connect_for_training
        workers = cluster.Cluster(("a:1", "b:1"), 1)

        def connect_as_worker(*arguments):
            run, use_tpu = connect(*arguments)
            replicas = distribution.Distribution("multi_worker", 2, workers)
            return dataclasses.replace(run, distribution=replicas), use_tpu

        with mock.patch.object(estimator, "connect_for_training", connect_as_worker):
            self.assertEqual(self.succeed("--do_eval", "--do_predict").strip(), "")


@pytest.mark.slow
class BestTest(ScriptTestCase):
    def scores_by_step(self):
        """Returns the f1 of each checkpoint, evaluated separately."""
        states = tf.train.get_checkpoint_state(self.output_dir).all_model_checkpoint_paths
        scores = {}
        for prefix in states:
            step = checkpoints.step_of(prefix)
            probe = os.path.join(self.folder, f"probe{step}")
            shutil.copytree(self.output_dir, probe)
            shutil.rmtree(os.path.join(probe, "adapter"))
            tf.train.update_checkpoint_state(probe, os.path.join(probe, os.path.basename(prefix)))
            self.succeed("--do_eval", output_dir=probe)
            results = read(os.path.join(probe, "eval_results.txt"))
            scores[step] = float(re.search(r"eval_f1 = (\S+)", results).group(1))
        return scores

    def test_the_best_adapter_is_kept(self):
        # At this rate scores fall, so the last step is not the best. Steps 4, 8, 9 are evaluated.
        training_flags = ["--do_train", "--num_train_epochs=3", "--learning_rate=0.1"]
        flags = [*training_flags, "--eval_every_steps=4", "--keep_best"]
        report = self.succeed("--do_eval", "--do_predict", *flags)
        scores = self.scores_by_step()
        best = max(scores, key=lambda step: (scores[step], -step))
        self.assertEqual(set(scores), {4, 8, 9})
        self.assertNotEqual(best, 9)
        described = task_adapter.describe(self.path("adapter"))
        self.assertEqual(described.global_step, best)
        self.assertAllClose(described.scores["eval_f1"], scores[best])
        self.assertIn(f"at step {best}", report)
        kept = json.loads(read(self.path("eval_results.json")))
        self.assertEqual(kept["global_step"], best)
        # The predictions and the files for comparisons come from the saved adapter.
        given = os.path.join(self.folder, "given")
        own = "--adapter=" + self.path("adapter")
        self.succeed("--do_eval", "--do_predict", own, output_dir=given)
        for name in ("test_results.tsv", "dev_predictions.tsv", "dev_labels.tsv"):
            self.assertEqual(read(self.path(name), "rb"), read(os.path.join(given, name), "rb"))
        found = json.loads(read(os.path.join(given, "eval_results.json")))
        self.assertEqual(kept["eval_confusion_matrix"], found["eval_confusion_matrix"])
        self.assertEqual(np.sum(kept["eval_confusion_matrix"]), 24)
        # The evaluations do not change the training.
        other = os.path.join(self.folder, "other")
        self.succeed(*training_flags, output_dir=other)
        last, without = (
            tf.train.NewCheckpointReader(tf.train.latest_checkpoint(folder))
            for folder in (self.output_dir, other)
        )
        for name in set(last.get_variable_to_shape_map()) - {checkpoints.IDENTITY}:
            np.testing.assert_array_equal(last.get_tensor(name), without.get_tensor(name))
        # Overwriting removes all of the run's files.
        RunFolder(self.output_dir).clear()
        self.assertEqual(os.listdir(self.output_dir), [])

    def test_resuming_with_other_evaluations_is_refused(self):
        flags = ["--do_train", "--do_eval", "--num_train_epochs=0.7"]
        keeping = [*flags, "--eval_every_steps=1", "--keep_best"]
        with predictions_counted() as counted:
            self.succeed(*keeping)
        before = files_in(self.path("adapter"))
        # Each step is evaluated once. The first is evaluated again if it is the best.
        best = task_adapter.describe(self.path("adapter")).global_step
        self.assertEqual(counted.call_count, {1: 3, 2: 2}[best])
        self.refuse(["--keep_best", "true"], *flags)
        moved = os.path.join(self.folder, "moved")
        shutil.move(self.path("adapter"), moved)
        self.refuse(["--keep_best", "best task adapter", "is gone"], *keeping)
        shutil.move(moved, self.path("adapter"))
        other = tiny.write_mrpc(os.path.join(self.folder, "other"), seed=5)
        shutil.copy(os.path.join(self.data, "train.tsv"), other)
        self.refuse(["--data_dir"], *keeping, "--data_dir=" + other)
        self.assert_settings_have_flags()
        self.succeed("--do_eval", "--data_dir=" + other)
        self.assertEqual(files_in(self.path("adapter")), before)

    def test_early_stopping_ends_training_after_its_patience(self):
        # At this rate the weights do not change, so no evaluation is better than the first.
        flags = ["--num_train_epochs=5", "--learning_rate=1e-30", "--early_stopping_patience=1"]
        with predictions_counted() as counted:
            self.succeed(*flags)
        self.assertEqual(checkpoints.last_step(self.output_dir), 6)
        self.assertEqual(counted.call_count, 2)
        self.succeed("--do_predict")
        # The second run trains nothing, reuses the first evaluation and keeps the predictions.
        with predictions_counted() as counted:
            self.succeed(*flags)
        self.assertEqual(checkpoints.last_step(self.output_dir), 6)
        self.assertEqual(counted.call_count, 1)
        results = {"eval_results.txt", "eval_results.json", "dev_predictions.tsv"}
        results |= {"test_results.tsv", "predictions.tsv", "submission"}
        self.assertContainsSubset(results, os.listdir(self.output_dir))
        evaluated = json.loads(read(self.path("evaluations.json")))
        self.assertEqual(sorted(map(int, evaluated)), [3, 6])
        self.assertEqual(task_adapter.describe(self.path("adapter")).global_step, 6)
        kept = os.path.join(self.folder, "kept")
        keeping = [*flags, "--keep_best", "--early_stopping_patience=2"]
        self.succeed(*keeping, output_dir=kept)
        self.assertEqual(checkpoints.last_step(kept), 9)
        self.assertEqual(task_adapter.describe(os.path.join(kept, "adapter")).global_step, 3)
        # If the file of evaluations is lost, the best adapter stays the same.
        before = files_in(os.path.join(kept, "adapter"))
        os.remove(os.path.join(kept, "evaluations.json"))
        self.assertIn("at step 3", self.succeed(*keeping, output_dir=kept))
        self.assertEqual(files_in(os.path.join(kept, "adapter")), before)
        # Label descriptions are not part of the training: they change, and the scores stay.
        kept_scores = task_adapter.describe(os.path.join(kept, "adapter")).scores
        meanings = write(os.path.join(self.folder, "meanings.json"), '{"0": "another"}')
        self.succeed(*keeping, "--label_descriptions=" + meanings, output_dir=kept)
        described = task_adapter.describe(os.path.join(kept, "adapter"))
        self.assertEqual(described.presentation.label_descriptions, {"0": "another"})
        self.assertEqual(described.scores, kept_scores)


class ScheduleTest(RefusalTestCase):
    def schedule(self, *arguments, method="adapters", num_examples=3668):
        top = ["--num_top_layers=1"] if method == "top_layers" else []
        config = classifier_config("--tuning=" + method, *top, *arguments)
        return config.schedule(num_examples)

    def test_each_method_has_its_default_schedule(self):
        # MRPC has 3668 rows: 3668 / 32 = 114.625 batches; a tenth of the steps is warm-up.
        small = {"learning_rate": 3e-4, "num_train_steps": 573, "num_warmup_steps": 57}
        berts = {"learning_rate": 5e-5, "num_train_steps": 343, "num_warmup_steps": 34}
        expected = {
            "adapters": small,
            "layer_norm": small,
            "head": small,
            "full": berts,
            "top_layers": berts,
        }
        self.assertEqual(set(expected), set(configs.METHODS))
        for method, schedule in expected.items():
            self.assertEqual(self.schedule(method=method), schedule, method)

    def test_flags_override_default_schedules(self):
        arguments = ["--learning_rate=1e-3", "--num_train_epochs=2", "--warmup_proportion=0.25"]
        for method in configs.METHODS:
            self.assertEqual(
                self.schedule(*arguments, "--train_batch_size=4", method=method, num_examples=100),
                {"learning_rate": 1e-3, "num_train_steps": 50, "num_warmup_steps": 12},
            )

    def test_each_flag_overrides_only_its_own_default(self):
        rate = self.schedule("--learning_rate=1e-5")
        self.assertEqual((rate["learning_rate"], rate["num_train_steps"]), (1e-5, 573))
        epochs = self.schedule("--num_train_epochs=3")
        self.assertEqual((epochs["learning_rate"], epochs["num_train_steps"]), (3e-4, 343))

    def test_evaluation_interval_follows_flag_or_is_one_epoch(self):
        for arguments, expected in (
            ([], 0),
            (["--eval_every_steps=7"], 7),
            (["--eval_every_steps=7", "--keep_best"], 7),
            (["--keep_best"], 114),  # An epoch of 3668 rows in batches of 32.
            (["--early_stopping_patience=2", "--train_batch_size=5000"], 1),
        ):
            config = classifier_config(*arguments)
            self.assertEqual(config.evaluation_interval(3668), expected)

    def test_warmup_proportion_0_gives_no_warmup_steps(self):
        self.assertEqual(self.schedule("--warmup_proportion=0")["num_warmup_steps"], 0)

    def test_warmup_is_a_proportion_of_whole_steps(self):
        # 15.9 batches are 15 steps. 0.13 of 15 is less than 2, but 0.13 of 15.9 is not.
        arguments = ["--train_batch_size=10", "--num_train_epochs=1", "--warmup_proportion=0.13"]
        found = self.schedule(*arguments, num_examples=159)
        self.assertEqual((found["num_train_steps"], found["num_warmup_steps"]), (15, 1))

    def test_schedule_allows_the_largest_number_of_steps(self):
        most = self.schedule("--train_batch_size=1", "--num_train_epochs=1", num_examples=2**31 - 1)
        self.assertEqual(most["num_train_steps"], 2**31 - 1)

    def test_invalid_schedule_flags_are_refused(self):
        for flag, values in (
            ("learning_rate", ("0", "-1e-3")),
            ("num_train_epochs", ("0", "-1", "0.001", "1e308")),
            ("warmup_proportion", ("2", "1", "-0.1")),
        ):
            for value in values:
                parts = [f"--{flag}", str(float(value))]
                self.assert_refused(parts, self.schedule, f"--{flag}={value}")
        for arguments, parts in (
            (["--train_batch_size=20000"], ["3668", "20000"]),
            (["--train_batch_size=1", "--num_train_epochs=585482"], ["2147483647"]),
        ):
            self.assert_refused(parts, self.schedule, *arguments)


class LabelDescriptionsTest(RefusalTestCase):
    def test_invalid_label_descriptions_are_refused(self):
        path = os.path.join(self.get_temp_dir(), "labels.json")
        task = "T", ("O", "B-PER", "I-PER")
        for content, sentence in (
            ('{"PER": "a person", "O": ""}', None),
            ("{", "is not valid JSON"),
            (r'{"O": "\ud800"}', "surrogates not allowed"),
            ("[]", "expected JSON"),
            ('{"O": 1}', "expected JSON"),
            ('{"O": "a", "O": "b"}', "twice"),
            ('{"LOC": "a place"}', "'LOC' is not a label of the task; its labels: O, B-PER"),
        ):
            with open(path, "w") as writer:
                writer.write(content)
            with self.subTest(content):
                if sentence is None:
                    expected = json.loads(content)
                    self.assertEqual(training_run.label_descriptions(path, *task), expected)
                else:
                    with self.assertRaisesRegex(
                        UserError, f"--label_descriptions={path}.*{sentence}"
                    ):
                        training_run.label_descriptions(path, *task)
        with self.assertRaisesRegex(UserError, "cannot be read"):
            training_run.label_descriptions(path + "x", *task)
        with self.assertRaisesRegex(UserError, "STS-B has no labels to describe"):
            training_run.label_descriptions(path, "STS-B", ())


class WarnOfRateTest(tf.test.TestCase):
    def test_low_rate_with_default_adapters_logs_a_warning(self):
        for rate in ("2e-5", "1e-4"):
            with self.assertLogs("absl", "WARNING") as log:
                training_run.warn_of_rate(classifier_config("--learning_rate=" + rate))
            self.assertRegex(log.output[0], "Adapters.*3e-4.*--tuning=full")
            self.assertLen(log.output, 1)
        for arguments in (
            ["--learning_rate=2e-5", "--tuning=adapters"],
            ["--learning_rate=2e-5", "--adapter=folder"],
            ["--learning_rate=2e-5", "--tuning=full"],
            ["--learning_rate=3e-4"],
            [],
        ):
            with self.assertRaises(AssertionError), self.assertLogs("absl", "WARNING"):
                training_run.warn_of_rate(classifier_config(*arguments))


@pytest.mark.slow
class SavedAdapterTest(JobsTestCase):
    """Runs with --adapter, or with only a task adapter in output_dir."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        code, _, stderr = cls.call(cls.trained, "--do_predict")
        assert code is None, stderr
        cls.expected = read(os.path.join(cls.trained, "test_results.tsv"), "rb")

    def test_recorded_precision_overrides_measured_precision(self):
        shutil.copytree(self.adapter, self.path("adapter"))
        half = {"float32": 2.0, "bfloat16": 1.0}
        processor = {"has_bfloat16": lambda: True, "product_seconds": lambda *_: half}
        with mock.patch.multiple(devices, **processor):
            found = self.predict(self.output_dir, "--precision=auto")
        self.assertEqual(found, self.expected)

    def test_adapter_is_used_under_its_temporary_name(self):
        shutil.copytree(self.adapter, self.path("adapter.replaced"))
        self.assertEqual(self.predict(self.output_dir), self.expected)

    def test_adapter_with_other_settings_is_refused(self):
        shutil.copytree(self.adapter, self.path("adapter"))
        for flag, old, new in (("--adapter_size", "3", "8"), ("--tuning", "adapters", "head")):
            self.refuse(["--output_dir", flag, old, new], "--do_predict", f"{flag}={new}")
            self.assertEqual(os.listdir(self.output_dir), ["adapter"])

    def test_training_does_not_replace_the_adapter(self):
        shutil.copytree(self.adapter, self.path("adapter"))
        self.refuse(["--overwrite_output_dir"], "--do_train")
        self.assertEqual(files_in(self.path("adapter")), files_in(self.adapter))

    def test_predictions_do_not_depend_on_the_seed(self):
        found = self.predict(self.output_dir, "--adapter=" + self.adapter, "--random_seed=7")
        self.assertEqual(found, self.expected)
        self.assertEqual(
            sorted(os.listdir(self.output_dir)),
            ["predictions.tsv", "submission", "test_results.tsv"],
        )

    def test_training_starts_from_the_adapter(self):
        given = task_adapter.load(self.adapter)
        frozen = ["--learning_rate=1e-30", "--adapter=" + self.adapter]
        self.succeed("--do_train", *frozen)
        found = task_adapter.load(self.path("adapter"))
        for name, value in given.tensors.items():
            np.testing.assert_array_equal(found.tensors[name], value, err_msg=name)
        self.assertEqual(
            found.description.training["started_from"], task_adapter.tensors_digest(given)
        )
        self.assertEqual(found.description.global_step, 3)

    def test_mismatched_adapters_are_refused(self):
        bert = tiny.write_bert(os.path.join(self.folder, "bert"), initializer_range=0.1)
        own = "--adapter=" + self.adapter
        for arguments, parts in (
            ([own, "--adapter_size=4"], ["--adapter_size", "3", "4"]),
            ([own, "--init_checkpoint=" + bert + "/bert_model.ckpt"], ["--init_checkpoint"]),
            (["--adapter=" + self.folder], [self.folder, "adapter_config.json"]),
        ):
            for stage in ("--do_predict", "--do_train"):
                self.refuse(["--adapter", *parts], stage, *arguments)

    def test_further_training_does_not_replace_its_own_adapter(self):
        shutil.copytree(self.trained, self.output_dir)
        own = "--adapter=" + self.path("adapter/")
        for arguments in ([own], [own, "--overwrite_output_dir"]):
            self.refuse(["--adapter", "--output_dir"], "--do_train", *arguments)
            self.assertEqual(files_in(self.path("adapter")), files_in(self.adapter))

    def test_output_dir_of_another_adapter_is_refused(self):
        given = task_adapter.load(self.adapter)
        given.tensors["output_bias"] = given.tensors["output_bias"] + 1
        other = os.path.join(self.folder, "other")
        task_adapter.save(other, given)
        shutil.copytree(self.adapter, self.path("adapter"))
        self.refuse(["--output_dir"], "--do_predict", "--adapter=" + other)
        self.assertEqual(os.listdir(self.output_dir), ["adapter"])
        # A copy of the folder's adapter counts as the same.
        self.predict(self.output_dir, "--adapter=" + self.adapter)

    def test_training_checkpoint_as_init_checkpoint_is_refused(self):
        prefix = os.path.join(self.trained, "partial.ckpt-3")
        self.refuse([prefix, "--adapter"], "--init_checkpoint=" + prefix)


@pytest.mark.slow
class ProcessTest(JobsTestCase):
    """The script in a separate process, which may be ended early."""

    def start(self, *arguments, **options):
        defaults = {
            "stdout": subprocess.DEVNULL,
            # The background job of a shell would otherwise ignore Ctrl-C.
            "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        }
        process = subprocess.Popen(
            [
                sys.executable,
                os.path.join(FOLDER, "run_classifier.py"),
                *self.base_flags,
                "--output_dir=" + self.output_dir,
                *arguments,
            ],
            stderr=subprocess.PIPE,
            universal_newlines=True,
            **{**defaults, **options},
        )
        self.addCleanup(process.stderr.close)
        return process

    def assert_whole(self):
        """Checks that completed files are readable."""
        if os.path.exists(self.path("adapter")):
            task_adapter.load(self.path("adapter"))
        checkpoint = tf.train.latest_checkpoint(self.output_dir)
        if checkpoint:
            checkpoints.check_tensors(checkpoint)

    def kill(self, process):
        process.kill()
        process.communicate()
        self.assert_whole()

    def kill_in_the_middle(self, flags):
        process, step = self.start(*flags), MOMENTS.randint(1, 60)
        while process.poll() is None and checkpoints.last_step(self.output_dir) < step:
            time.sleep(MOMENTS.uniform(0, 0.02))
        self.assertIsNone(process.poll())
        self.kill(process)
        self.assertBetween(checkpoints.last_step(self.output_dir), 2, 119)

    def interrupt(self, flags):
        """Sends Ctrl-C at the first logged step; checks that this step or a later one is saved."""
        before = checkpoints.last_step(self.output_dir)
        process = self.start(*flags, stdout=subprocess.PIPE)
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
        step = checkpoints.last_step(self.output_dir)
        self.assertRegex(line, rf"^step {before + 1}/120 ")
        self.assertEqual(process.returncode, 130)
        self.assertBetween(step, before + 1, 119)
        self.assertRegex(stderr, rf"the same command, .*, resumes from .*step {step}\b")
        self.assertRegex(stderr, r"\nInterrupted\.\n\Z")
        self.assertNotIn("Traceback", stderr)

    def kill_at_any_moment(self, flags, seconds):
        had_adapter = False
        for _ in range(KILLS - 1):
            process = self.start(*flags)
            time.sleep(MOMENTS.uniform(0, seconds))
            self.kill(process)
            # A finished adapter may be under its temporary name, but is never gone.
            has_adapter = any(
                os.path.exists(self.path(name)) for name in ("adapter", "adapter.replaced")
            )
            self.assertTrue(has_adapter or not had_adapter)
            had_adapter = has_adapter

    def test_killed_and_interrupted_training_gives_the_same_bits(self):
        flags = ["--save_checkpoints_steps=2", "--num_train_epochs=40"]
        straight = os.path.join(self.folder, "straight")
        begun = time.time()
        self.assertEqual(self.start(*flags, "--output_dir=" + straight).wait(), 0)
        seconds = time.time() - begun
        self.kill_in_the_middle(flags)
        self.interrupt(flags)
        self.kill_at_any_moment(flags, seconds)
        process = self.start(*flags, "--do_train", "--do_eval", "--do_predict")
        _, stderr = process.communicate()
        self.assertEqual(process.returncode, 0, stderr)

        adapter = self.path("adapter")
        self.assertEqual(files_in(adapter), files_in(os.path.join(straight, "adapter")))
        found, expected = (tf.train.load_checkpoint(path) for path in (self.output_dir, straight))
        names = set(expected.get_variable_to_shape_map())
        self.assertEqual(set(found.get_variable_to_shape_map()), names)
        for name in names:
            np.testing.assert_array_equal(found.get_tensor(name), expected.get_tensor(name), name)
        files_left = os.listdir(self.output_dir)
        leftovers = [name for name in files_left if ".partial" in name or ".tempstate" in name]
        self.assertEqual(leftovers, [])
        # Another process with another seed predicts the same from the adapter alone.
        given = os.path.join(self.folder, "given")
        flags = ["--do_predict", "--adapter=" + adapter, "--random_seed=9"]
        self.assertEqual(self.start(*flags, "--output_dir=" + given).wait(), 0)
        predicted = read(os.path.join(given, "test_results.tsv"), "rb")
        self.assertEqual(read(self.path("test_results.tsv"), "rb"), predicted)

    def test_full_disk_is_reported_and_keeps_the_adapter(self):
        shutil.copytree(self.trained, self.output_dir)

        def limit(size):
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        # Coverage could not write its data either, and would report that.
        env = {k: v for k, v in os.environ.items() if k != "COVERAGE_PROCESS_CONFIG"}
        other = "--output_dir=" + os.path.join(self.folder, "other")
        for size, flags, what in (
            (2000, ["--do_train", "--do_eval", "--save_full_checkpoint"], "full_model.ckpt"),
            (2000, ["--do_train", other], "partial.ckpt-3"),
            (50, ["--do_eval"], "(tfevents.*|eval_results.txt|task_.*.ckpt)"),
        ):
            process = self.start(*flags, preexec_fn=functools.partial(limit, size), env=env)
            _, stderr = process.communicate()
            self.assertEqual(process.returncode, 1)
            self.assertRegex(stderr, rf"(?m)^Error: .*{what} cannot be written \([^\n]+\)\.$")
            self.assertNotIn("Traceback", stderr)
        self.assertEqual(files_in(self.path("adapter")), files_in(self.adapter))
