"""Tests of run.py through run_classifier: saved files, resuming, the best step, --adapter."""

import dataclasses
import functools
import itertools
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
from absl.testing import parameterized

import modeling
import optimization
from adapter_bert.files import gfile
from adapter_bert.formats import checkpoints, task_adapter
from adapter_bert.model import configs, model_variables, task_kinds
from adapter_bert.ops import devices
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import classifier_data
from adapter_bert.training import cluster, distribution, estimator, starting_point
from adapter_bert.training import run as training_run
from adapter_bert.training.run_folder import RunFolder
from adapter_tests.support import tiny
from adapter_tests.support.checkpoint_cases import all_tensors
from adapter_tests.support.command_lines import classifier_config, classifier_flags
from adapter_tests.support.mutations import files_in
from adapter_tests.support.script_cases import FOLDER, ScriptTestCase, bert_flags, read, write

pytestmark = pytest.mark.estimator

# Number of kills per run. The first is in the middle of training, the next at random moments.
KILLS = int(os.environ.get("ADAPTER_BERT_KILLS", "1"))
MOMENTS = random.SystemRandom()  # Other generators restart in tf.test.TestCase.setUp.

CONFIG = tiny.config(num_hidden_layers=1)  # Of the case's BERT.
SITES = ("attention/output", "output")
ADAPTERS = [
    f"bert/encoder/layer_0/{site}/adapters/{part}"
    for site in SITES
    for part in ("weights1", "biases1", "weights2", "biases2")
]
LAYER_NORMS = [
    f"bert/{scope}/LayerNorm/{part}"
    for scope in ("embeddings", *("encoder/layer_0/" + site for site in SITES))
    for part in ("beta", "gamma")
]
HEAD = ["output_weights", "output_bias"]
RESULTS = ("eval_results.txt", "eval_results.json", "test_results.tsv", "predictions.tsv")
RESULTS += ("dev_predictions.tsv", "submission/MRPC.tsv")


def predictions_counted():
    """Counts predictions while entered."""
    real = estimator.Estimator.predict_stacked
    return mock.patch.object(
        estimator.Estimator, "predict_stacked", autospec=True, side_effect=real
    )


class TrainedTestCase(ScriptTestCase):
    """Provides the folder of a finished run, with a checkpoint of each of its three steps."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        stages = ["--do_train", "--do_eval", "--do_predict"]
        cls.trained, cls.report = cls.train_once(*stages, "--save_checkpoints_steps=1")
        cls.adapter = os.path.join(cls.trained, "adapter")
        cls.expected = read(os.path.join(cls.trained, "test_results.tsv"), "rb")

    def copy_trained(self, step=3, name="output"):
        """Copies the run, as a kill would have left it after an earlier step; returns the copy."""
        folder = shutil.copytree(self.trained, os.path.join(self.folder, name))
        if step < 3:
            shutil.rmtree(os.path.join(folder, "adapter"))
            for later in range(step + 1, 4):
                for path in gfile.glob(os.path.join(folder, f"partial.ckpt-{later}.*")):
                    os.remove(path)
            checkpoints.write_record(folder, [f"partial.ckpt-{step}"])
        return folder

    def predict(self, output_dir, *arguments):
        """Runs --do_predict; returns test_results.tsv as bytes."""
        self.succeed("--do_predict", *arguments, output_dir=output_dir)
        return read(os.path.join(output_dir, "test_results.tsv"), "rb")


class SavedTest(TrainedTestCase):
    def test_saved_adapter_equals_the_last_checkpoint(self):
        reader = tf.train.NewCheckpointReader(os.path.join(self.trained, "partial.ckpt-3"))
        tensors = safetensors.numpy.load_file(os.path.join(self.adapter, "adapter.safetensors"))
        self.assertEqual(set(tensors), {*ADAPTERS, *LAYER_NORMS, *HEAD})
        for name, value in tensors.items():
            np.testing.assert_array_equal(value, reader.get_tensor(name), err_msg=name)
        # Adapters of size 3 after both sub-layers, 3 LayerNorms, 2 labels; width 8.
        parameters = 2 * (8 * 3 + 3 + 3 * 8 + 8) + 3 * 2 * 8 + 2 * 8 + 2
        self.assertEqual(sum(value.nbytes for value in tensors.values()), 4 * parameters)
        self.assertIn(f"Adapter: {self.adapter} (0.0 MB)", self.report)

    def test_description_records_task_training_and_scores(self):
        described = task_adapter.describe(self.adapter)
        found = described.task, described.labels, described.max_seq_length, described.adapter.size
        self.assertEqual(found, ("MRPC", ("0", "1"), 16, 3))
        found = described.global_step, described.training["learning_rate"], described.backbone.name
        self.assertEqual(found, (3, 0.01, "bert"))
        scores = json.loads(read(os.path.join(self.trained, "eval_results.json")))
        self.assertAllClose(described.scores["eval_accuracy"], scores["eval_accuracy"])

    def test_full_and_top_layers_save_the_tensors_they_trained(self):
        two = tiny.write_bert(os.path.join(self.folder, "two"))
        # Width 8, intermediate size 16, 40 positions, 2 segments, adapters of 3, 2 labels
        layer = 4 * (8 * 8 + 8) + (8 * 16 + 16) + (16 * 8 + 8) + 2 * 2 * 8
        pooler, head, adapters = 8 * 8 + 8, 2 * 8 + 2, 2 * (8 * 3 + 3 + 3 * 8 + 8)
        total = (len(tiny.VOCABULARY) + 40 + 2) * 8 + 2 * 8 + layer + pooler + head
        counted = f"Trained: {adapters + 3 * 2 * 8 + head:,} of {total + adapters:,} parameters"
        self.assertIn(counted, self.report)
        everything, of_two = map(set, map(model_variables.encoder_shapes, (CONFIG, tiny.config())))
        top = {name for name in of_two if "/layer_1/" in name or "/pooler/" in name}
        flags_of_top = ["--tuning=top_layers", "--num_top_layers=1", *bert_flags(two)]
        for flags, names, trained, size in (
            (flags_of_top, top, layer + pooler + head, total + layer),
            (["--tuning=full"], everything, total, total),
        ):
            output_dir, report = self.train_once("--do_train", "--do_predict", *flags)
            self.assertIn(f"Trained: {trained:,} of {size:,} parameters", report)
            adapter = task_adapter.load(os.path.join(output_dir, "adapter"))
            self.assertEqual(set(adapter.tensors), names | set(HEAD), flags)
            self.assertIsNone(adapter.description.adapter)
            checkpoint = tf.train.latest_checkpoint(output_dir)
            self.assertIsNotNone(checkpoints.identity_of(checkpoint))
            predicted = self.predict(
                os.path.join(self.folder, flags[0]), f"--adapter={output_dir}/adapter", *flags[2:]
            )
            self.assertEqual(predicted, read(os.path.join(output_dir, "test_results.tsv"), "rb"))

    def test_full_checkpoint_without_moving_statistics_is_refused(self):
        flags = ["--adapter_normalization=batch"]
        report = self.succeed("--save_full_checkpoint", "--do_train", *flags)
        parameters = 2 * (8 * 3 + 3 + 3 * 8 + 8 + 2 * 3) + 3 * 2 * 8 + 2 * 8 + 2
        self.assertIn(f"Trained: {parameters} of ", report)
        full = os.path.join(self.folder, "full.ckpt")
        tensors = all_tensors(self.path("full_model.ckpt"))
        checkpoints.write(full, {n: v for n, v in tensors.items() if "/moving_" not in n})
        parts, other = [full, "/moving_variance", "--do_train"], os.path.join(self.folder, "other")
        self.refuse(parts, "--do_eval", *flags, "--init_checkpoint=" + full, output_dir=other)

    def test_adapters_settings_are_compared_with_the_runs(self):
        """Its settings.json lacks those with defaults, like one of an older version."""
        self.copy_trained()
        settings = json.loads(read(self.path("settings.json")))
        names = ("normalization", "depth", "sites", "placement", "interaction")
        self.assertEqual({"adapter_" + name for name in names} & set(settings["model"]), set())
        self.refuse(["--adapter_depth", "2"], "--do_train", "--adapter_depth=2")
        flag = "--adapter_init_scale"
        self.refuse([flag, "0.001", "0.5"], "--do_train", flag + "=0.5")


class ResumedRunTest(TrainedTestCase):
    def found(self):
        return {name for name in RESULTS if os.path.exists(self.path(name))}

    def test_a_run_of_an_older_version_resumes(self):
        """The checkpoint is named like a whole model's and does not record its run."""
        self.copy_trained(step=1)
        tensors = all_tensors(self.path("partial.ckpt-1"))
        del tensors[checkpoints.IDENTITY]
        for path in gfile.glob(self.path("partial.ckpt-*")):
            os.remove(path)
        checkpoints.write(self.path("model.ckpt-1"), tensors)
        checkpoints.write_record(self.output_dir, ["model.ckpt-1"])
        with self.assertLogs("absl", "INFO") as logs:
            self.succeed("--do_train", "--do_eval", "--save_full_checkpoint")
        log = "\n".join(logs.output)
        self.assertEqual(log.count("model.ckpt-1 does not record which run saved it"), 1)
        self.assertIn("from the checkpoint of step 1", log)
        self.assertEqual(tf.train.latest_checkpoint(self.output_dir), self.path("partial.ckpt-3"))
        self.assertEqual(files_in(self.path("adapter")), files_in(self.adapter))
        self.assertTrue(os.path.exists(self.path("full_model.ckpt.index")))

    def test_resumed_training_removes_results_of_old_weights(self):
        self.copy_trained(step=1)
        for name in ("predictions_old.tsv", "submission/all.zip"):
            write(self.path(name), "mine")
        labels = read(self.path("dev_labels.tsv"))
        self.assertEqual(self.found(), set(RESULTS))
        with mock.patch.object(task_adapter, "save", side_effect=KeyboardInterrupt):
            code, _, _ = self.call(self.output_dir, "--do_train")
        self.assertEqual(code, 130)
        self.assertEqual(self.found(), set())
        for name in ("predictions_old.tsv", "submission/all.zip"):
            self.assertEqual(read(self.path(name)), "mine")
        self.assertEqual(read(self.path("dev_labels.tsv")), labels)

    def test_finished_run_keeps_adapter_and_results(self):
        self.copy_trained()
        for stages in (["--do_train"], ["--do_train", "--do_eval"]):
            # As after an upgrade.
            with mock.patch.object(task_adapter, "versions", return_value={"tensorflow": "9"}):
                self.succeed(*stages)
            self.assertEqual(files_in(self.path("adapter")), files_in(self.adapter))
            self.assertEqual(self.found(), set(RESULTS))

    def test_more_epochs_continue_a_finished_training(self):
        """The training follows the new schedule from the old step on and removes old results."""
        first = ["--do_train", "--num_train_epochs=0.4", "--save_full_checkpoint"]
        trained, _ = self.train_once(*first)
        resumed = shutil.copytree(trained, os.path.join(self.folder, "resumed"))
        shutil.copytree(trained, self.output_dir)
        for name in (*RESULTS, "ablation.json", "notes.txt"):
            write(self.path(name), "{}")
        with self.assertLogs("absl", "WARNING") as log:
            self.succeed("--do_train", "--num_train_epochs=1")
        self.assertRegex("\n".join(log.output), "of 1 steps continues to step 3")
        self.assertEqual(task_adapter.describe(self.path("adapter")).global_step, 3)
        self.assertEqual(self.found(), set())
        for name, stays in (("full_model.ckpt.index", False), ("ablation.json", False)):
            self.assertEqual(os.path.exists(self.path(name)), stays, name)
        self.assertTrue(os.path.exists(self.path("notes.txt")))
        # A training of 3 steps that finds a checkpoint of step 1 gives the same adapter.
        write(os.path.join(resumed, "settings.json"), read(self.path("settings.json")))
        self.succeed("--do_train", "--num_train_epochs=1", output_dir=resumed)
        self.assertEqual(files_in(self.path("adapter")), files_in(resumed + "/adapter"))


class InitCheckpointTest(TrainedTestCase):
    """Predictions as in BERT's README: --init_checkpoint names the trained model."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.whole, _ = cls.train_once("--do_train", "--do_predict", "--tuning=full")
        cls.whole_checkpoint = tf.train.latest_checkpoint(cls.whole)
        cls.prefix = os.path.join(cls.bert, "bert_model.ckpt")

    def readme(self, init_checkpoint, *arguments, output_dir=None):
        """Returns (test_results.tsv as bytes, log) of the command in BERT's README."""
        names = ("task_name", "data_dir", "bert_config_file", "vocab_file", "max_seq_length")
        own = [flag for flag in self.base_flags if flag[2:].split("=")[0] in names]
        output_dir = output_dir or os.path.join(self.folder, "predicted")
        with mock.patch.object(type(self), "base_flags", own), self.assertLogs("absl") as log:
            results = self.predict(output_dir, "--init_checkpoint=" + init_checkpoint, *arguments)
        return results, "\n".join(log.output)

    def supplied(self, init_checkpoint, *arguments):
        """Returns the flags that this --init_checkpoint supplies to a prediction."""
        flags = "--do_predict", "--init_checkpoint=" + init_checkpoint, "--output_dir=nowhere"
        return starting_point.find(classifier_flags(*flags, *arguments), "mrpc").supplied

    def test_run_folder_or_checkpoint_selects_its_adapter_and_bert(self):
        results, log = self.readme(self.trained)
        self.assertEqual(results, self.expected)
        self.assertEqual(log.count("belongs to a run"), 1)
        self.assertIn(f"using its task adapter, {self.adapter}, on its BERT, {self.prefix}", log)
        last = tf.train.latest_checkpoint(self.trained)
        adapters = self.adapter, self.adapter + "/"
        for named in (self.trained, self.trained + "/", last, last + ".index", *adapters):
            replacements = self.supplied(named).replacements
            self.assertEqual(replacements["adapter"], self.adapter, named)
            self.assertEqual(replacements["init_checkpoint"], self.prefix, named)

    def test_bert_comes_from_run_settings_or_config_folder(self):
        run = self.copy_trained()
        settings = json.loads(read(self.path("settings.json")))
        files = {**settings["pretrained"]}
        self.assertEqual(files["init_checkpoint"], self.prefix)
        found = self.supplied(run).replacements
        self.assertEqual({name: found[name] for name in files}, files)
        for recorded in ({"init_checkpoint": "/nowhere/bert_model.ckpt"}, {}):
            write(self.path("settings.json"), json.dumps({**settings, "pretrained": recorded}))
            found = self.supplied(run, "--bert_config_file=" + files["bert_config_file"])
            self.assertEqual(found.replacements["init_checkpoint"], self.prefix)

    def test_earlier_checkpoint_predicts_with_its_own_tensors(self):
        run = self.copy_trained(name="run")
        earlier = os.path.join(run, "partial.ckpt-1")
        results, log = self.readme(earlier)
        self.assertIn(f"using its task adapter, {earlier},", log)
        self.assertNotEqual(results, self.expected)
        self.assertEqual(results, self.predict(self.copy_trained(step=1, name="rewound")))
        # The run's own folder must not get the results of an earlier step.
        given = "--do_predict", "--init_checkpoint=" + earlier
        self.refuse([earlier], *given, output_dir=run)
        shutil.rmtree(os.path.join(run, "adapter"))
        self.refuse([earlier], *given)

    def test_bert_checkpoint_with_head_selects_full_fine_tuning(self):
        """The folder holds only what BERT's code leaves, with Adam's moments and "checkpoint"."""
        run, last = os.path.join(self.folder, "bert_output"), self.whole_checkpoint
        for path in [os.path.join(self.whole, "checkpoint"), *gfile.glob(last + ".*")]:
            write(os.path.join(run, os.path.basename(path)), read(path, "rb"), "wb")
        checkpoint = os.path.join(run, os.path.basename(last))
        # BERT's folder does not record a precision.
        results, log = self.readme(checkpoint, "--precision=float32")
        expected = read(os.path.join(self.whole, "test_results.tsv"), "rb")
        self.assertEqual(results, expected)
        self.assertEqual(log.count("holds a head and no adapters: using --tuning=full"), 1)
        for named, prefix in ((checkpoint, checkpoint), (run, checkpoint), (last, last)):
            found = self.supplied(named)
            self.assertEqual(found, ({"tuning": "full"}, {"init_checkpoint": prefix}), named)
        values = classifier_flags("--do_predict", "--init_checkpoint=" + checkpoint)
        supplied = starting_point.find(values, "mrpc").supplied
        config = training_run.FinetuningConfig.from_flags(values, supplied)
        self.assertEqual(config.folder_of("mrpc"), "output/mrpc_full")
        # A training starts from it as from any BERT, by default with adapters. Predictions in the
        # training's folder use these adapters.
        self.succeed("--do_train", "--num_train_epochs=0.4", "--init_checkpoint=" + checkpoint)
        self.assertEqual(task_adapter.describe(self.path("adapter")).tuning.method, "adapters")
        results, log = self.readme(checkpoint, "--adapter_size=3", output_dir=self.output_dir)
        self.assertNotIn("--tuning=full", log)
        self.assertNotEqual(results, expected)

    def test_full_checkpoint_predicts_like_its_adapter(self):
        self.copy_trained()
        report = self.succeed("--do_train", "--save_full_checkpoint")
        self.assertIn("(hidden_size=3) only: BERT's own code", report)
        full = self.path("full_model.ckpt")
        names = {*model_variables.encoder_shapes(CONFIG), *ADAPTERS, *HEAD, "global_step"}
        self.assertEqual(set(all_tensors(full)), names)
        results, log = self.readme(full)
        self.assertEqual(results, self.expected)
        self.assertIn("holds a head and its adapters: using --adapter_size=3", log)
        # The folder of a training that died before its first checkpoint holds only its settings.
        dead = os.path.join(self.folder, "dead")
        write(os.path.join(dead, "settings.json"), read(self.path("settings.json")))
        for output_dir, expected in ((dead, {"adapter_size": 3}), (self.output_dir, {})):
            found = self.supplied(full, "--output_dir=" + output_dir)
            self.assertEqual(found.defaults, expected)
        flags = ["--do_predict", "--tuning=full", "--init_checkpoint=" + full]
        self.refuse([full, "8 tensors"], *flags, output_dir=os.path.join(self.folder, "other"))


class PrecisionTest(TrainedTestCase):
    """--precision=auto on a processor with a given speedup of bfloat16."""

    RECORDED = "float32, as recorded (--precision=auto)."

    def succeed_where(self, speedup, *arguments):
        """Runs the script; returns the precision in its eval_results.json and in its log."""
        measured = {"float32": 0.01 * speedup, "bfloat16": 0.01}
        seconds = mock.Mock(return_value=measured)
        seen = mock.patch.multiple(devices, has_bfloat16=lambda: True, product_seconds=seconds)
        with seen, self.assertLogs("absl", "INFO") as logs:
            self.succeed("--precision=auto", *arguments)
        (line,) = [line for line in logs.output if "Computing in" in line]
        if "--do_eval" in arguments:
            precision = json.loads(read(self.path("eval_results.json")))["precision"]
            self.assertIn(precision, line)
        return line.partition("Computing in ")[2]

    def test_measured_precision_is_recorded(self):
        train = ["--do_train", "--do_eval", "--num_train_epochs=0.4", "--overwrite_output_dir"]
        for speedup, precision in ((2.0, "bfloat16"), (0.5, "float32")):
            said = self.succeed_where(speedup, *train)
            self.assertStartsWith(said, precision)
            self.assertIn(f"{10 * speedup:.2f} ms in float32, 10.00 ms in bfloat16", said)
            description = task_adapter.describe(self.path("adapter"))
            self.assertEqual(description.training["precision"], precision)

    def test_a_run_keeps_its_precision(self):
        self.copy_trained()
        for flags in (["--do_train", "--do_eval"], ["--do_eval"]):
            self.assertEqual(self.succeed_where(2.0, *flags), self.RECORDED)
        # An adapter is enough.
        alone = os.path.join(self.folder, "alone")
        shutil.copytree(self.adapter, os.path.join(alone, "adapter"))
        said = self.succeed_where(2.0, "--do_predict", "--output_dir=" + alone)
        self.assertEqual(said, self.RECORDED)

    def test_run_without_checkpoints_does_not_set_the_precision(self):
        settings = json.loads(read(os.path.join(self.trained, "settings.json")))
        settings["training"]["precision"] = "bfloat16"
        write(self.path("settings.json"), json.dumps(settings))
        said = self.succeed_where(0.5, "--do_train", "--num_train_epochs=0.4")
        self.assertStartsWith(said, "float32 (--precision=auto): ")

    def test_adapter_is_evaluated_in_its_recorded_precision(self):
        given = "--adapter=" + self.adapter
        self.assertEqual(self.succeed_where(2.0, "--do_eval", given), self.RECORDED)
        said = self.succeed_where(2.0, "--do_eval", given, "--precision=bfloat16")
        self.assertEqual(said, "bfloat16 (--precision=bfloat16).")
        # A training that starts from the adapter is a new run, so it measures again.
        train = ["--do_train", "--num_train_epochs=0.4", "--overwrite_output_dir"]
        self.assertStartsWith(self.succeed_where(2.0, given, *train), "bfloat16")

    @unittest.skipIf(tf.__version__.startswith("1."), "TensorFlow 1 has no bfloat16 on CPU.")
    def test_full_checkpoint_is_evaluated_in_recorded_precision(self):
        run = os.path.join(self.folder, "run")
        train = ["--do_train", "--save_full_checkpoint", "--num_train_epochs=0.4"]
        self.succeed(*train, "--precision=bfloat16", output_dir=run)
        full = "--init_checkpoint=" + os.path.join(run, "full_model.ckpt")
        said = self.succeed_where(0.5, "--do_eval", full)
        self.assertEqual(said, "bfloat16, as recorded (--precision=auto).")


class VariantTest(ScriptTestCase):
    def test_batch_normalization_refuses_split_batches(self):
        batch = "--adapter_normalization=batch"
        replicas = distribution.Distribution("mirrored", 2)
        with mock.patch.object(distribution, "choose", return_value=replicas):
            self.refuse([batch, "--distribution="], "--do_train", batch)
        with mock.patch.object(devices, "find_tpu", return_value=(True, None)):
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

        def all_variables(*_, **__):
            return tf.trainable_variables()

        fewer = {name: listed[name] for name in listed if name != "biases2"}
        own = functools.partial(adapter, modeling.feedforward_adapter)
        for change, parts in (
            (functions(fewer), ["_adapter has no variable biases2: list it in `FUNCTIONS` of"]),
            (
                mock.patch.object(modeling, "feedforward_adapter", own),
                ["adapters/own trains, but would not be saved: list it in `FUNCTIONS` of"],
            ),
            (
                mock.patch.object(optimization, "trained_variables", all_variables),
                ["bert/embeddings/position_embeddings trains, but would not be saved"],
            ),
            (functions({**listed, "gate": gate}), ["/gate is in `FUNCTIONS` of", "not train it"]),
            (head(hidden=(8, 8)), ["hidden is in `head_shapes`", "does not train it"]),
            (head(output_bias=(1, 2)), ["output_bias has the shape [2], but [1, 2] in `head_sh"]),
        ):
            with change:
                self.refuse(parts, "--do_train", "--overwrite_output_dir")
            self.assertEqual(tf.io.gfile.glob(self.path("*.index")), [])

    def test_worker_reports_no_evaluation_and_no_predictions(self):
        connect = estimator.connect_for_training
        workers = cluster.Cluster(("a:1", "b:1"), 1)

        def connect_as_worker(*arguments):
            run, use_tpu = connect(*arguments)
            replicas = distribution.Distribution("multi_worker", 2, workers)
            return dataclasses.replace(run, distribution=replicas), use_tpu

        with mock.patch.object(estimator, "connect_for_training", connect_as_worker):
            self.assertEqual(self.succeed("--do_eval", "--do_predict").strip(), "")
            self.refuse(["--keep_best", "multi_worker"], "--do_train", "--do_eval", "--keep_best")


@pytest.mark.slow
class BestTest(ScriptTestCase):
    def scores_by_step(self):
        """Returns the f1 of each checkpoint, evaluated separately."""
        states = tf.train.get_checkpoint_state(self.output_dir).all_model_checkpoint_paths
        scores = {}
        for prefix in states:
            step = checkpoints.step_of(prefix)
            probe = shutil.copytree(self.output_dir, os.path.join(self.folder, f"probe{step}"))
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
        # Each step is evaluated once. The first is predicted again if it is the best.
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
        flags += ["--do_train", "--do_eval"]
        # The second run trains nothing, and evaluates the adapter of the first step.
        for stages, num_predictions in ((["--do_predict"], 4), ([], 1)):
            with predictions_counted() as counted:
                self.succeed(*flags, *stages)
            self.assertEqual(checkpoints.last_step(self.output_dir), 6)
            self.assertEqual(counted.call_count, num_predictions)
        for name in RESULTS:
            self.assertTrue(os.path.exists(self.path(name)), name)
        evaluated = json.loads(read(self.path("evaluations.json")))
        self.assertEqual(sorted(map(int, evaluated)), [3, 6])
        self.assertEqual(task_adapter.describe(self.path("adapter")).global_step, 3)

    def test_best_adapter_survives_the_loss_of_its_evaluations(self):
        # At this rate the weights do not change, so the first evaluation is the best.
        flags = ["--num_train_epochs=5", "--learning_rate=1e-30", "--early_stopping_patience=2"]
        flags += ["--do_train", "--do_eval", "--keep_best"]
        self.succeed(*flags)
        self.assertEqual(checkpoints.last_step(self.output_dir), 9)
        before = task_adapter.load(self.path("adapter"))
        self.assertEqual(before.description.global_step, 3)
        os.remove(self.path("evaluations.json"))
        # Label descriptions are not part of the training: they change, and the scores stay.
        meanings = write(os.path.join(self.folder, "meanings.json"), '{"0": "another"}')
        self.assertIn("at step 3", self.succeed(*flags, "--label_descriptions=" + meanings))
        after = task_adapter.load(self.path("adapter"))
        self.assertEqual(task_adapter.tensors_digest(after), task_adapter.tensors_digest(before))
        presentation = after.description.presentation
        self.assertEqual(presentation.label_descriptions, {"0": "another"})
        earlier = dataclasses.replace(
            after.description, presentation=before.description.presentation
        )
        self.assertEqual(earlier, before.description)


class SavedScoreTest(ScriptTestCase):
    def test_the_report_ends_with_the_scores_of_the_saved_adapter(self):
        stages = ["--do_train", "--do_eval", "--num_train_epochs=1", "--learning_rate=0.05"]
        selections = [], ["--keep_best"], ["--early_stopping_patience=1"]
        evaluations = [], ["--eval_every_steps=1"]
        calibrations = [], ["--calibrate"]
        for flags in itertools.product(selections, evaluations, calibrations):
            selection, *_ = flags
            given = [*stages, *itertools.chain(*flags), "--metric=accuracy"]
            output_dir = os.path.join(self.folder, "_".join(given[3:]).replace("/", ""))
            with self.subTest(given[4:]):
                report = self.succeed(*given, output_dir=output_dir).splitlines()
                adapter = os.path.join(output_dir, "adapter")
                again = self.succeed(*given, output_dir=output_dir).splitlines()
                self.assertEqual(again[-1], report[-1])
                probe = output_dir + "_probe"
                self.succeed("--do_eval", "--adapter=" + adapter, output_dir=probe)
                found = json.loads(read(os.path.join(probe, "eval_results.json")))
                kept = json.loads(read(os.path.join(output_dir, "eval_results.json")))
                names = {"eval_accuracy", "eval_f1", "eval_loss", "global_step"}
                for name in names:
                    self.assertAllClose(kept[name], found[name], rtol=1e-6, msg=name)
                described = task_adapter.describe(adapter)
                self.assertEqual(described.scores["eval_loss"], kept["eval_loss"])
                self.assertIn(f"accuracy {kept['eval_accuracy']:.1%}", report[-1])
                which = "the best of" if selection else "the last; majority class: accuracy 0."
                step = described.global_step
                self.assertIn(f"at step {step}, of the saved adapter, {which}", report[-1])

    def test_calibration_divides_the_head(self):
        flags = ["--do_train", "--do_eval", "--num_train_epochs=1", "--learning_rate=0.05"]
        self.succeed(*flags)
        before = task_adapter.load(self.path("adapter"))
        probabilities = self.probabilities()
        labels = [
            int(line.split("\t")[1]) for line in read(self.path("dev_labels.tsv")).split("\n")[1:-1]
        ]
        self.assertIn("Calibrated: temperature", self.succeed(*flags, "--calibrate"))
        after = task_adapter.load(self.path("adapter"))
        temperature = after.description.training["temperature"]
        for name, value in before.tensors.items():
            factor = temperature if name.startswith("output_") else 1.0
            self.assertAllClose(after.tensors[name] * factor, value, rtol=1e-5)
        powers = probabilities ** (1 / temperature)
        expected = powers / powers.sum(-1, keepdims=True)
        self.assertAllClose(self.probabilities(), expected, atol=1e-4)
        loss = -np.mean(np.log(expected[np.arange(len(labels)), labels]))
        self.assertAllClose(after.description.scores["eval_loss"], loss, atol=1e-4)
        self.assertLess(loss, before.description.scores["eval_loss"])
        self.refuse(["--calibrate", "--do_eval"], "--do_train", "--calibrate")

    def probabilities(self):
        lines = read(self.path("dev_predictions.tsv")).splitlines()[1:]
        return np.array([line.split("\t")[2:4] for line in lines], float)

    def test_the_metric_decides_what_is_best(self):
        flags = ["--do_train", "--do_eval", "--keep_best", "--eval_every_steps=2"]
        flags += ["--num_train_epochs=3", "--learning_rate=0.1"]
        for metric in ("accuracy", "matthews"):
            output_dir = os.path.join(self.folder, metric)
            self.succeed(*flags, "--metric=" + metric, output_dir=output_dir)
            evaluated = json.loads(read(os.path.join(output_dir, "evaluations.json")))
            best = max(scores["eval_" + metric] for scores in evaluated.values())
            description = task_adapter.describe(os.path.join(output_dir, "adapter"))
            self.assertEqual(description.scores["eval_" + metric], best)
            results = json.loads(read(os.path.join(output_dir, "eval_results.json")))
            self.assertEqual(results["score"], "eval_" + metric)
        self.refuse(
            ["--metric", "matthews", "accuracy"], *flags, "--metric=accuracy", output_dir=output_dir
        )
        self.refuse(["--metric=pearson", "expected one of accuracy"], "--metric=pearson")

    def test_a_run_reports_warns_and_draws(self):
        flags = ["--do_train", "--do_eval", "--do_predict", "--plots", "--learning_rate=1e-30"]
        lines = self.succeed(*flags).splitlines()
        self.assertEqual(lines[0], "dev, 24 rows:")
        written = read(self.path("eval_results.txt"))
        self.assertIn("Confusion matrix (rows: true label", written)
        self.assertIn("\n\ndev, 24 rows:", written)
        warnings = [line for line in lines if line.startswith("Warning: ")]
        self.assertLen([each for each in warnings if "fewer than 20 training rows" in each], 1)
        self.assertLen([each for each in warnings if "24 dev rows" in each], 1)
        (pictures,) = [line for line in lines if line.startswith("Pictures: ")]
        for path in pictures[len("Pictures: ") :].split(", "):
            self.assertEqual(read(path, "rb")[:4], b"\x89PNG")
        self.assertIn("curves.png", pictures)
        self.assertStartsWith(lines[-1], "MRPC dev: f1 ")


class ChecksTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(
        ('{"PER": "a person", "O": ""}', None),
        ("{", "is not valid JSON"),
        (r'{"O": "\ud800"}', "surrogates not allowed"),
        ("[]", "expected JSON"),
        ('{"O": 1}', "expected JSON"),
        ('{"O": "a", "O": "b"}', "twice"),
        ('{"LOC": "a place"}', "'LOC' is not a label of the task; its labels: O, B-PER"),
    )
    def test_label_descriptions_are_read_or_refused(self, content, refused):
        path = write(os.path.join(self.get_temp_dir(), "labels.json"), content)
        task = "T", ("O", "B-PER", "I-PER")
        if refused is None:
            expected = json.loads(content)
            self.assertEqual(training_run.label_descriptions(path, *task), expected)
            with self.assertRaisesRegex(UserError, "STS-B has no labels to describe"):
                training_run.label_descriptions(path, "STS-B", ())
        else:
            with self.assertRaisesRegex(UserError, f"--label_descriptions={path}.*{refused}"):
                training_run.label_descriptions(path, *task)

    @parameterized.parameters(
        (True, "--learning_rate=2e-5"),
        (True, "--learning_rate=1e-4"),
        (False, "--learning_rate=2e-5", "--tuning=adapters"),
        (False, "--learning_rate=2e-5", "--adapter=folder"),
        (False, "--learning_rate=2e-5", "--tuning=full"),
        (False, "--learning_rate=3e-4"),
        (False,),
    )
    def test_low_rate_with_default_adapters_logs_a_warning(self, is_warned_of, *arguments):
        config = classifier_config(*arguments)
        with mock.patch.object(optimization.logging, "warning") as warning:
            training_run.warn_of_rate(config)
        self.assertEqual(warning.call_count, int(is_warned_of))
        if is_warned_of:
            self.assertIn("--tuning=full", warning.call_args[0])

    def test_evaluated_rows_must_not_be_those_of_the_training(self):
        texts = mock.Mock(**{"presentation.fields": ("text", "text_b")})
        for given in (
            ({}, None, ("text",), "a"),
            ({"data": "a"}, texts, ("text_b", "text"), "a"),
            ({"data": "a"}, texts, (), None),
        ):
            classifier_data.check_data(*given, {})
        with self.assertRaisesRegex(UserError, "trained with text and text_b, but.* has text;"):
            classifier_data.check_data({}, texts, ("text",), None, {})
        with self.assertRaisesRegex(UserError, "not those of the training"):
            classifier_data.check_data({"data": "a"}, None, (), "b", {})


@pytest.mark.slow
class SavedAdapterTest(TrainedTestCase):
    """Runs with --adapter, or with only a task adapter in output_dir."""

    def test_adapter_is_used_under_its_temporary_name(self):
        shutil.copytree(self.adapter, self.path("adapter.replaced"))
        self.assertEqual(self.predict(self.output_dir), self.expected)

    def test_adapter_with_other_settings_is_refused(self):
        shutil.copytree(self.adapter, self.path("adapter"))
        for flag, old, new in (("--adapter_size", "3", "8"), ("--tuning", "adapters", "head")):
            self.refuse(["--output_dir", flag, old, new], "--do_predict", f"{flag}={new}")
            self.assertEqual(os.listdir(self.output_dir), ["adapter"])

    def test_predictions_depend_neither_on_seed_nor_on_an_unused_tpu(self):
        given = "--adapter=" + self.adapter, "--random_seed=7", "--tpu_name=my-tpu"
        self.assertEqual(self.predict(self.output_dir, *given), self.expected)
        written = ["predictions.tsv", "submission", "test_results.tsv"]
        self.assertEqual(sorted(os.listdir(self.output_dir)), written)

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
        sizes = {"initializer_range": 0.1, "num_hidden_layers": 1}
        bert = tiny.write_bert(os.path.join(self.folder, "bert"), **sizes)
        own = "--adapter=" + self.adapter
        for stage, arguments, parts in (
            ("--do_predict", [own, "--adapter_size=4"], ["--adapter_size", "3", "4"]),
            ("--do_train", [own, "--init_checkpoint=" + bert + "/bert_model.ckpt"], ["--init_ch"]),
            ("--do_train", ["--adapter=" + self.folder], [self.folder, "adapter_config.json"]),
        ):
            self.refuse(["--adapter", *parts], stage, *arguments)

    def test_further_training_does_not_replace_its_own_adapter(self):
        self.copy_trained()
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


@pytest.mark.slow
class ProcessTest(TrainedTestCase):
    """The script in a separate process, which may be ended early."""

    def start(self, *arguments, **options):
        defaults = {
            "stdout": subprocess.DEVNULL,
            # The background job of a shell would otherwise ignore Ctrl-C.
            "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        }
        script = os.path.join(FOLDER, "run_classifier.py")
        process = subprocess.Popen(
            [
                sys.executable,
                script,
                *self.base_flags,
                f"--output_dir={self.output_dir}",
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
        process, step = self.start(*flags), MOMENTS.randint(1, 30)
        while process.poll() is None and checkpoints.last_step(self.output_dir) < step:
            time.sleep(MOMENTS.uniform(0, 0.02))
        self.assertIsNone(process.poll())
        self.kill(process)
        self.assertBetween(checkpoints.last_step(self.output_dir), 2, 59)

    def interrupt(self, flags):
        """Sends Ctrl-C at the first logged step; checks that this step or a later one is saved."""
        before = checkpoints.last_step(self.output_dir)
        process = self.start(*flags, stdout=subprocess.PIPE)
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
        step = checkpoints.last_step(self.output_dir)
        self.assertRegex(line, rf"^step {before + 1}/60 ")
        self.assertEqual(process.returncode, 130)
        self.assertBetween(step, before + 1, 59)
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
        flags = ["--do_train", "--save_checkpoints_steps=2", "--num_train_epochs=20"]
        straight = os.path.join(self.folder, "straight")
        begun = time.time()
        self.assertEqual(self.start(*flags, "--output_dir=" + straight).wait(), 0)
        seconds = time.time() - begun
        self.kill_in_the_middle(flags)
        self.interrupt(flags)
        self.kill_at_any_moment(flags, seconds)
        process = self.start(*flags)
        _, stderr = process.communicate()
        self.assertEqual(process.returncode, 0, stderr)

        adapters = [os.path.join(run, "adapter") for run in (self.output_dir, straight)]
        self.assertEqual(*map(files_in, adapters))
        found, expected = (tf.train.load_checkpoint(path) for path in (self.output_dir, straight))
        names = set(expected.get_variable_to_shape_map())
        self.assertEqual(set(found.get_variable_to_shape_map()), names)
        for name in names:
            np.testing.assert_array_equal(found.get_tensor(name), expected.get_tensor(name), name)
        files_left = os.listdir(self.output_dir)
        leftovers = [name for name in files_left if ".partial" in name or ".tempstate" in name]
        self.assertEqual(leftovers, [])

    def test_full_disk_is_reported_and_keeps_the_adapter(self):
        self.copy_trained()

        def limit(size):
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        # Coverage could not write its data either, and would report that.
        env = {k: v for k, v in os.environ.items() if k != "COVERAGE_PROCESS_CONFIG"}
        other = "--output_dir=" + os.path.join(self.folder, "other")
        for size, flags, what in (
            (2000, ["--do_train", other], "partial.ckpt-3"),
            (50, ["--do_eval"], "(tfevents.*|eval_results.txt|task_.*.ckpt)"),
        ):
            process = self.start(*flags, preexec_fn=functools.partial(limit, size), env=env)
            _, stderr = process.communicate()
            self.assertEqual(process.returncode, 1)
            self.assertRegex(stderr, rf"(?m)^Error: .*{what} cannot be written \([^\n]+\)\.$")
            self.assertNotIn("Traceback", stderr)
        self.assertEqual(files_in(self.path("adapter")), files_in(self.adapter))
