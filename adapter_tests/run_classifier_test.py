"""Tests of run_classifier.py: the whole script on a tiny BERT and a tiny MRPC, its errors on bad
input, and its functions as BERT's users call them."""

import functools
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np
import pytest
import sentencepiece
import tensorflow.compat.v1 as tf
from tensorflow.python.platform import gfile as platform_gfile

import export_model
import modeling
import run_classifier
import tokenization
from adapter_bert.formats import adapter_checkpoints, task_adapter
from adapter_bert.ops import xla
from adapter_bert.shell import errors, tf_estimator
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks import stored_tables, tables
from adapter_bert.tasks.text import classifier_data, classifier_features, glue
from adapter_bert.training import run as training_run
from adapter_bert.training import stored_predictions
from adapter_tests.support import command_lines, own_models, tiny
from adapter_tests.support.mutations import files_in
from adapter_tests.support.script_cases import FOLDER, ScriptTestCase, bert_flags, read, write


def read_probabilities(path):
    return np.array([line.split("\t") for line in read(path).splitlines()], np.float64)


class MetricsTest(tf.test.TestCase):
    def test_metrics_ignore_padding_rows(self):
        logits = [[2.0, 1.0], [0.0, 3.0], [1.0, 0.0], [9.0, 0.0], [0.0, 9.0]]
        with tf.Graph().as_default(), tf.Session() as session:
            metrics = run_classifier.metric_fn(
                tf.constant([0.5, 1.0, 3.0, 100.0, 100.0]),
                tf.constant([0, 1, 1, 0, 0]),
                tf.constant(logits),
                tf.constant([1.0, 1.0, 1.0, 0.0, 0.0]),
            )
            session.run(tf.local_variables_initializer())
            session.run([update for _, update in metrics.values()])
            values = session.run({name: value for name, (value, _) in metrics.items()})
        # Rows 0 and 1 are correct, row 2 is wrong, rows 3 (correct) and 4 (wrong) do not count.
        self.assertAllClose(values, {"eval_accuracy": 2 / 3, "eval_loss": 4.5 / 3})


class ClassWeightsTest(tf.test.TestCase):
    def weights(self, text, labels, rows):
        label_ids = np.array([labels.index(label) for label in rows])
        return classifier_data.class_weights(text, glue.TaskInfo("T", tuple(labels), {}), label_ids)

    def test_class_weights_are_parsed_or_refused(self):
        labels, rows = ["a", "b", "c"], ["a"] * 6 + ["b"] * 2
        self.assertAllClose(self.weights("balanced", labels, rows), [8 / (3 * 6), 8 / (3 * 2), 0.0])
        self.assertEqual(self.weights("1,0.5,2", labels, rows), [1.0, 0.5, 2.0])
        self.assertIsNone(self.weights(None, labels, rows))
        for text in ("1,2", "1,2,x", "1,2,-1", "1,2,nan", "1,2,inf", "0,0,0", "Balanced", ""):
            with self.assertRaisesRegex(UserError, "--class_weights=.*a, b, c"):
                self.weights(text, labels, rows)

    def test_class_weights_require_one_label_per_row(self):
        for kind in ("multilabel", "regression"):
            task = glue.TaskInfo("T", ("a", "b"), {}, kind=kind)
            with self.assertRaisesRegex(UserError, "--class_weights requires"):
                classifier_data.class_weights("1,2", task, None)
            with self.assertRaisesRegex(UserError, "--label_smoothing requires"):
                classifier_data.check_single_label("label_smoothing", 0.1, task)


class ScriptTest(ScriptTestCase):
    def test_script_trains_and_evaluates_by_default_then_predicts(self):
        report = self.succeed()
        for part in (" dev: f1 ", "accuracy ", "Trained: ", "eval_results.txt", "Adapter: "):
            self.assertIn(part, report)
        self.assertFalse(os.path.exists(self.path("test_results.tsv")))
        self.assertEqual(
            list(self.results()),
            [
                "backbone_parameters",
                "eval_accuracy",
                "eval_f1",
                "eval_loss",
                "eval_macro_f1",
                "eval_majority_f1",
                "eval_matthews",
                "eval_predicted_labels",
                "global_step",
                "loss",
                "precision",
                "total_parameters",
                "trained_parameters",
            ],
        )
        first = self.results()
        self.assertEqual(first["global_step"], "3")

        # 24 rows are a multiple of neither 7 nor 5.
        self.succeed("--do_eval", "--do_predict", "--eval_batch_size=7", "--predict_batch_size=5")
        again = self.results()
        for name in ("eval_accuracy", "eval_loss"):
            self.assertAllClose(float(first[name]), float(again[name]), rtol=1e-5)
        probabilities = read_probabilities(self.path("test_results.tsv"))
        self.assertEqual(probabilities.shape, (24, 2))
        self.assertAllClose(probabilities.sum(axis=1), np.ones(24))
        labels = np.arange(24) % 2
        self.assertAllClose(
            float(first["eval_accuracy"]), np.mean(probabilities.argmax(axis=1) == labels)
        )
        losses = -np.log(probabilities[np.arange(24), labels])
        self.assertAllClose(float(first["eval_loss"]), losses.mean(), rtol=1e-4)

    def test_name_of_the_berts_folder_is_no_pattern(self):
        train = "--do_train", "--num_train_epochs=0.7", "--tuning=head"
        plain, _ = self.train_once(*train)
        bert = tiny.write_bert(os.path.join(self.folder, "b[e]\\rt"), num_hidden_layers=1)
        self.succeed(*train, "--init_checkpoint=" + os.path.join(bert, "bert_model.ckpt"))
        found, expected = (
            task_adapter.tensors_digest(task_adapter.load(os.path.join(run, "adapter")))
            for run in (self.output_dir, plain)
        )
        self.assertEqual(found, expected)

    def custom_flags(self):
        """Writes a task whose three splits have the same 27 rows; returns its flags."""
        folder = os.path.join(self.folder, "mails")
        rows = "".join(
            f'"{{""subject"": ""dog""}}\nthe woman likes it","{kind}",{score}\n'
            for kind, score in 9 * [("play", 1.5), ("work, hard", -2), ("rest", 0)]
        )
        for name in ("train", "dev", "test"):
            write(os.path.join(folder, name + ".csv"), "body,folder,score\n" + rows)
        return ["--task_name=custom", "--data_dir=" + folder, "--text_column=body"]

    def test_id_columns_are_repeated_in_predictions_or_refused(self):
        flags = [*self.custom_flags(), "--label_column=folder", "--num_train_epochs=1"]
        self.succeed(*flags, "--do_train", "--do_eval", "--do_predict", "--id_columns=score, body")
        for name in ("predictions.tsv", "dev_predictions.tsv"):
            header, first, *_ = (line.split("\t") for line in read(self.path(name)).splitlines())
            self.assertEqual(header[-3:], ["score", "body", "text"])
            body = '{"subject": "dog"} the woman likes it'
            self.assertEqual(first[-3:], ["1.5", body, body])
        parts = ["--id_columns=uid is not in the columns of", "body, folder, score"]
        self.refuse(parts, *flags, "--id_columns=score,uid", "--do_eval")
        self.refuse(["--id_columns=id: MRPC has no table with named columns"], "--id_columns=id")

    def test_custom_task_trains_evaluates_and_predicts(self):
        flags = [*self.custom_flags(), "--do_train", "--do_eval", "--do_predict"]
        report = self.succeed(*flags, "--label_column=folder")
        self.assertRegex(report, r"mails dev: accuracy [\d.]+%, macro_f1 [\d.]+, matthews ")
        self.assertRegex(report, r"mails test: accuracy [\d.]+%, ")
        dev, test = (
            json.loads(read(self.path(name))) for name in ("eval_results.json", "test_scores.json")
        )
        # The three splits have the same rows, so dev, test and the predictions must agree.
        self.assertEqual(dev["labels"], ["play", "rest", "work, hard"])
        self.assertEqual(test["score"], "test_accuracy")
        for name in ("accuracy", "macro_f1", "confusion_matrix"):
            self.assertEqual(dev["eval_" + name], test["test_" + name])
        lines = read(self.path("predictions.tsv")).splitlines()
        header, *lines = [line.split("\t") for line in lines]
        self.assertEqual(header, ["index", "label", *dev["labels"], "text"])
        found = np.zeros([3, 3], int)
        for line, label in zip(lines, 9 * [0, 2, 1]):
            found[label, dev["labels"].index(line[1])] += 1
            answer = dev["labels"].index(line[1])
            self.assertEqual(np.argmax(np.array(line[2:-1], float)), answer)
            self.assertEqual(line[-1], '{"subject": "dog"} the woman likes it')
        self.assertAllEqual(dev["eval_confusion_matrix"], found)

        # So must the files that are kept for comparing this training with another.
        for name in ("predictions.tsv", "labels.tsv"):
            self.assertEqual(read(self.path(name)), read(self.path("dev_" + name)))
        labels = [line.split("\t") for line in read(self.path("labels.tsv")).splitlines()]
        expected = [[str(i), dev["labels"][label]] for i, label in enumerate(9 * [0, 2, 1])]
        self.assertEqual(labels, [["index", "label"], *expected])

        numbers = os.path.join(self.folder, "numbers")
        more = ["--label_column=score", "--label_type=float"]
        report = self.succeed(*flags, *more, output_dir=numbers)
        self.assertRegex(report, r"mails dev: pearson \S+, mse \S+, spearman \S+, loss ")
        self.assertLen(read(os.path.join(numbers, "test_results.tsv")).splitlines(), 27)

    def test_killed_caching_and_prediction_resume_to_the_same_files(self):
        flags = [*self.custom_flags(), "--label_column=folder", "--tuning=head"]
        self.succeed(*flags, "--do_train", "--num_train_epochs=1")
        predict = [*flags, "--adapter=" + self.path("adapter"), "--do_predict"]
        predict.append("--predict_batch_size=2")
        undisturbed, resumed, cache = (os.path.join(self.folder, n) for n in ("a", "b", "cache"))
        self.succeed(*predict, "--feature_cache_dir=none", output_dir=undisturbed)
        predict.append("--feature_cache_dir=" + cache)
        self.killed("stored_tables._Writer.write", *predict, "--output_dir=" + resumed)
        where = "stored_predictions.StoredPredictions.add"
        self.killed(where, *predict, "--output_dir=" + resumed)
        self.assertEqual(self.resume(cache, *predict, output_dir=resumed), (4, 27))
        names = sorted(os.listdir(undisturbed))
        self.assertIn("predictions.tsv", names)
        for name in names:
            same = [read(os.path.join(each, name), "rb") for each in (undisturbed, resumed)]
            self.assertEqual(*same, msg=name)

    def test_pieces_of_three_rows_give_the_same_files(self):
        flags = [*self.custom_flags(), "--label_column=folder", "--feature_cache_dir=none"]
        flags += ["--do_train", "--do_eval", "--do_predict", "--num_train_epochs=1"]
        whole = os.path.join(self.folder, "whole")
        self.succeed(*flags, output_dir=whole)
        pieces = functools.partial(stored_predictions.pieces, num_rows=3)
        with mock.patch.object(stored_tables, "_ROWS_PER_PART", 3), mock.patch.object(
            stored_predictions, "pieces", pieces
        ), mock.patch.object(classifier_features, "_EXAMPLES_PER_PART", 3):
            self.succeed(*flags)
        for name in ("predictions.tsv", "dev_predictions.tsv", "test_scores.json", "labels.tsv"):
            self.assertEqual(read(self.path(name)), read(os.path.join(whole, name)))
        name = os.path.join("adapter", "adapter.safetensors")
        self.assertEqual(read(self.path(name), "rb"), read(os.path.join(whole, name), "rb"))

    def test_adapter_supplies_name_and_columns_of_a_custom_task(self):
        columns = ["--label_column=score", "--label_type=float", "--tuning=head"]
        # Its name is not that of a task of GLUE.
        self.succeed(*self.custom_flags(), *columns, "--name=MRPC", "--do_train")
        description = task_adapter.describe(self.path("adapter"))
        self.assertEqual((description.task, description.kind), ("MRPC", "regression"))
        expected = {"text_column": "body", "label_column": "score", "label_type": "float"}
        self.assertEqual(description.training["answers"], expected)
        new = os.path.join(self.folder, "new")
        write(os.path.join(new, "test.csv"), "day,body\n1,the dog\n2,a cat\n")
        given = [flag for flag in self.base_flags if not flag.startswith("--task_name")]
        given += ["--adapter=" + self.path("adapter"), "--data_dir=" + new]
        code, report = self.run_without_base_flags(*given, "--do_predict")
        self.assertIsNone(code, report)
        self.assertLen(read(os.path.join(self.folder, "again", "test_results.tsv")).splitlines(), 2)
        shutil.copy(os.path.join(self.folder, "mails", "dev.csv"), new)
        code, report = self.run_without_base_flags(*given, "--do_eval")
        self.assertIsNone(code, report)
        self.assertRegex(report, "MRPC dev: pearson ")
        code, report = self.run_without_base_flags(*given, "--do_eval", "--task_name=MRPC")
        self.assertIn("--adapter was trained on MRPC, a regression task; expected", report)

    def test_adapter_of_a_custom_task_has_examples_and_a_license(self):
        flags = [*self.custom_flags(), "--label_column=folder", "--tuning=head"]
        data = flags[1].split("=")[1]
        rows = [
            ("a dog", "play"),
            ("the woman likes it", "rest"),
            ("a " * 70, "rest"),
            ("b", "play"),
        ]
        rows += [("the man", "rest"), ("a cat", "play"), ("c " * 90, "play")]
        write(os.path.join(data, "dev.csv"), "\n".join(["body,folder", *map(",".join, rows)]))
        self.succeed(*flags, "--license=cc-by-4.0", "--do_train", "--do_eval")
        described = task_adapter.describe(self.path("adapter"))
        self.assertNotIn("loss", described.scores)
        self.assertIn("eval_loss", described.scores)
        shown = described.presentation
        # Of the shorter half, the longest of each label first.
        expected = [{"text": text} for text in ("the man", "a cat", "a dog")]
        self.assertEqual((list(shown.examples), shown.license), (expected, "cc-by-4.0"))
        self.succeed(*flags, "--do_train", "--do_eval", "--no_examples")
        shown = task_adapter.describe(self.path("adapter")).presentation
        self.assertEqual((shown.examples, shown.license), ((), "cc-by-4.0"))
        glue_run, _ = self.train_once()
        shown = task_adapter.describe(os.path.join(glue_run, "adapter")).presentation
        self.assertEqual((shown.examples, shown.license), ((), ""))

    def run_without_base_flags(self, *arguments):
        """Returns (exit code, report or error) of a run in the folder "again"."""
        with mock.patch.object(type(self), "base_flags", []):
            output_dir = os.path.join(self.folder, "again")
            code, report, stderr = self.call(output_dir, *arguments)
        return code, report or stderr

    def test_custom_tasks_of_earlier_versions_keep_their_name(self):
        flags = [*self.custom_flags(), "--label_column=folder", "--tuning=head", "--do_train"]
        unnamed = mock.patch.object(classifier_data, "name_of", lambda *_: "custom")
        with unnamed, mock.patch.object(classifier_data.ClassifierConfig, "answers", {}):
            self.succeed(*flags)  # As an earlier version: without a name and columns.
        adapter = task_adapter.load(self.path("adapter"))
        self.assertEqual(adapter.description.task, "custom")
        self.assertNotIn("answers", adapter.description.training)
        self.assertIn("custom dev: accuracy", self.succeed(*flags, "--do_eval"))
        again = task_adapter.load(self.path("adapter"))
        self.assertEqual(task_adapter.tensors_digest(again), task_adapter.tensors_digest(adapter))
        given = "--adapter=" + self.path("adapter")
        report = self.succeed(*flags[:-1], given, "--do_eval", output_dir=self.folder + "/again")
        self.assertIn("custom dev: accuracy", report)
        self.refuse(["task (--task_name, --name)", '"custom"', '"x"'], *flags, "--name=x")
        # The data's folder may be renamed.
        named = os.path.join(self.folder, "named")
        self.succeed(*flags, output_dir=named)
        shutil.move(os.path.join(self.folder, "mails"), os.path.join(self.folder, "moved"))
        flags[1] = "--data_dir=" + os.path.join(self.folder, "moved")
        self.assertIn("mails dev: ", self.succeed(*flags, "--do_eval", output_dir=named))

    def test_name_of_a_custom_task_is_checked(self):
        self.refuse(["--name requires --task_name=custom; got mrpc"], "--name=x")
        self.refuse(["--name=a/b"], *self.custom_flags(), "--label_column=folder", "--name=a/b")

    def test_label_descriptions_persist_in_repeated_and_further_runs(self):
        flags = [*self.custom_flags(), "--label_column=folder", "--tuning=head", "--no_examples"]
        given = write(os.path.join(self.folder, "labels.json"), '{"play": "for fun"}')
        self.succeed(*flags, "--label_descriptions=" + given)
        described = task_adapter.describe(self.path("adapter"))
        expected = task_adapter.Presentation({"play": "for fun"}, ("text",))
        self.assertEqual(described.presentation, expected)
        self.assertNotEmpty(described.scores)
        # So do edits of the adapter's config.
        path = self.path("adapter/adapter_config.json")
        config = json.loads(read(path))
        config["presentation"]["label_descriptions"]["rest"] = "no work"
        write(path, json.dumps(config))
        more = write(os.path.join(self.folder, "more.json"), '{"work, hard": "a job"}')
        self.succeed(*flags, "--do_train", "--label_descriptions=" + more)
        again = os.path.join(self.folder, "again")
        self.succeed(*flags, "--do_train", "--adapter=" + self.path("adapter"), output_dir=again)
        expected = {"play": "for fun", "rest": "no work", "work, hard": "a job"}
        for folder in (self.path("adapter"), os.path.join(again, "adapter")):
            shown = task_adapter.describe(folder).presentation.label_descriptions
            self.assertEqual(shown, expected)
        self.assertEqual(task_adapter.describe(self.path("adapter")).scores, described.scores)

    def test_evaluated_rows_must_fit_the_training(self):
        rows = "".join(f"the dog sees {i},a cat,{'yes' if i % 2 else 'no'}\n" for i in range(30))
        header, data = "one,two,kind\n", os.path.join(self.folder, "own")
        path = write(os.path.join(data, "train.csv"), header + rows)
        flags = ["--task_name=custom", "--data_dir=" + data, "--text_column=one"]
        flags += ["--label_column=kind", "--tuning=head"]
        pairs = [*flags, "--text_b_column=two"]
        self.succeed(*pairs, "--do_train")
        given, other = "--adapter=" + self.path("adapter"), os.path.join(self.folder, "other")
        named = ["trained with text and text_b", "--text_b_column"]
        self.refuse(named, *flags, "--do_eval")
        self.succeed(*flags, "--do_eval", given, output_dir=other)  # It names its columns.
        shutil.rmtree(other)
        # Of more rows, others would be set apart for dev and test.
        write(path, header + rows + "a new one,a cat,yes\n")
        for stage, arguments, folder in (
            ("--do_eval", [], self.output_dir),
            ("--do_predict", [given], other),
        ):
            self.refuse(["training file"], *pairs, stage, *arguments, output_dir=folder)
        with self.assertLogs("absl", "WARNING") as logs:
            self.succeed(*pairs, given, "--do_train", "--do_eval", output_dir=other)
        self.assertIn("not new to the adapter", "".join(logs.output))
        write(os.path.join(data, "dev.csv"), header + "a new one,a cat,yes\n")
        self.succeed(*pairs, "--do_eval")

    def test_split_is_recorded_and_read_from_the_adapter(self):
        rows = "".join(f"the dog sees {i},{'yes' if i % 3 else 'no'}\n" for i in range(60))
        data = os.path.join(self.folder, "own")
        write(os.path.join(data, "train.csv"), "one,kind\n" + rows)
        flags = ["--task_name=custom", "--data_dir=" + data, "--text_column=one"]
        flags += ["--label_column=kind", "--tuning=head"]
        self.succeed(*flags, "--do_train", "--do_eval", "--dev_share=0.2")
        adapter, other = self.path("adapter"), os.path.join(self.folder, "other")
        training = task_adapter.describe(adapter).training
        recorded = [training[name] for name in ("split", "dev_share", "test_share")]
        self.assertEqual(recorded, ["stratified", 0.2, 0.1])
        scores = json.loads(read(self.path("eval_results.json")))
        self.succeed(*flags, "--do_eval", "--adapter=" + adapter, output_dir=other)
        again = json.loads(read(os.path.join(other, "eval_results.json")))
        self.assertEqual(again["eval_loss"], scores["eval_loss"])
        parts = ["--dev_share was 0.2 in the training and is now 0.1"]
        self.refuse(parts, *flags, "--do_eval", "--adapter=" + adapter, "--dev_share=0.1")
        self.refuse(parts, *flags, "--do_eval")
        parts = ["settings.json", "--split"]
        self.refuse(parts, *flags, "--do_train", "--dev_share=0.2", "--split=random")
        self.refuse(["settings.json", "--dev_share was 0.2, is now 0.1"], *flags, "--do_train")
        # An adapter of an earlier version has random tenths, and records neither.
        self.succeed(*flags, "--do_train", "--do_eval", "--split=random", "--overwrite_output_dir")
        self.assertNotIn("split", task_adapter.describe(adapter).training)
        self.succeed(*flags, "--do_eval", "--adapter=" + adapter, output_dir=other)

    def test_shares_without_effect_are_warned_of(self):
        with self.assertLogs("absl", "WARNING") as logs:
            self.succeed("--do_eval", "--do_train", "--dev_share=0.3", "--split=random")
        self.assertIn("--dev_share has no effect: the dev set has a file.", "".join(logs.output))
        self.assertIn("--split has no effect", "".join(logs.output))

    def test_texts_are_freed_before_training(self):
        folder = os.path.join(self.folder, "own")
        write(os.path.join(folder, "train.csv"), "body,kind\n" + 12 * "dog,a\ncat,b\n")
        held = []

        def texts():
            kinds = (run_classifier.InputExample, tables.TableRow)
            return [some for some in gc.get_objects() if type(some) in kinds]

        others = set(map(id, texts()))  # Left by other tests in this process.

        def train(*_):
            held.append([some for some in texts() if id(some) not in others])
            return []

        flags = ["--task_name=custom", "--text_column=body", "--label_column=kind", "--do_train"]
        with mock.patch.object(training_run.Run, "execute", train):
            self.succeed(*flags, "--data_dir=" + folder)
        self.assertEqual(held, [[]])

    def write_mnli(self):
        """Writes a tiny MNLI with mismatched sets larger than the matched; returns its folder."""
        random = np.random.RandomState(0)
        folder = os.path.join(self.folder, "mnli")
        labels = ("neutral", "contradiction", "entailment")
        for name, count in (
            ("train", 9),
            ("dev_matched", 6),
            ("dev_mismatched", 7),
            ("test_matched", 4),
            ("test_mismatched", 5),
        ):
            rows = [["index", *("x" * 7), "sentence1", "sentence2", "gold_label"]]
            for i in range(count):
                texts = [tiny.sentence(random) for _ in range(2)]
                rows.append([str(i), *("x" * 7), *texts, labels[i % 3]])
            lines = ["\t".join(row[:-1] if "test" in name else row) for row in rows]
            write(os.path.join(folder, name + ".tsv"), "\n".join(lines) + "\n")
        return folder

    def test_mnli_results_cover_matched_and_mismatched_sets(self):
        flags = ["--task_name=mnli", "--data_dir=" + self.write_mnli(), "--tuning=head"]
        best = ["--keep_best", "--eval_every_steps=1", "--num_train_epochs=3"]
        self.succeed(*flags, *best, "--do_train", "--do_eval", "--do_predict")
        adapter = self.path("adapter")
        results = json.loads(read(self.path("eval_results.json")))
        by_step = json.loads(read(self.path("evaluations.json")))
        self.assertEqual(
            results["eval_accuracy"], max(s["eval_accuracy"] for s in by_step.values())
        )
        given = os.path.join(self.folder, "given")
        self.succeed(*flags, "--do_eval", "--adapter=" + adapter, output_dir=given)
        again = json.loads(read(os.path.join(given, "eval_results.json")))
        for end, name, num_dev, num_test in (
            ("", "eval_accuracy", 6, 4),
            ("_mismatched", "eval_mismatched_accuracy", 7, 5),
        ):
            found, labels = (
                [line.split("\t")[1] for line in read(self.path(file)).splitlines()[1:]]
                for file in (f"dev_predictions{end}.tsv", f"dev_labels{end}.tsv")
            )
            expected = ("neutral", "contradiction", "entailment") * 3
            self.assertEqual(labels, list(expected[:num_dev]))
            self.assertAllClose(results[name], np.mean(np.array(found) == labels))
            self.assertEqual(again[name], results[name])
            self.assertLen(read_probabilities(self.path(f"test_results{end}.tsv")), num_test)
        # Later data without mismatched sets must not leave the earlier ones' files.
        matched = os.path.join(self.folder, "matched")
        shutil.copytree(os.path.join(self.folder, "mnli"), matched)
        for stage in ("dev", "test"):
            os.remove(os.path.join(matched, stage + "_mismatched.tsv"))
        self.succeed(*flags, "--data_dir=" + matched, "--do_eval", "--do_predict")
        names = [name for _, _, each in os.walk(self.output_dir) for name in each]
        self.assertEqual([n for n in names if "mismatched" in n or "MNLI-mm" in n], [])
        self.assertIn("MNLI-m.tsv", names)

    def test_class_weights_affect_training_and_are_recorded(self):
        path = os.path.join(self.folder, "data", "train.tsv")
        header, *lines = read(os.path.join(self.data, "train.tsv")).splitlines()
        lines = [line for line in lines if line.startswith("0")]
        write(path, "\n".join([header, *lines]) + "\n")
        train = ["--do_train", "--tuning=head", "--data_dir=" + os.path.dirname(path)]
        self.succeed(*train, "--class_weights=0,1")
        adapter = task_adapter.load(self.path("adapter"))
        self.assertEqual(adapter.description.training["class_weights"], [0.0, 1.0])
        # All rows have the label with weight 0.
        self.assertAllEqual(adapter.tensors["output_bias"], [0.0, 0.0])
        parts = ["--class_weights", "[0.0, 1.0]", "[1.0, 1.0]", "--overwrite_output_dir"]
        self.refuse(parts, *train, "--class_weights=1,1")
        self.refuse(parts[:2], *train)

    def test_label_smoothing_affects_training_and_is_recorded(self):
        train = ["--do_train", "--tuning=head", "--learning_rate=0.01"]
        plain, _ = self.train_once(*train)
        self.succeed(*train, "--label_smoothing=0.5")
        smoothed = task_adapter.load(self.path("adapter"))
        self.assertEqual(smoothed.description.training["label_smoothing"], 0.5)
        earlier = task_adapter.load(os.path.join(plain, "adapter"))
        self.assertNotIn("label_smoothing", earlier.description.training)
        weights = [adapter.tensors["output_weights"] for adapter in (earlier, smoothed)]
        self.assertNotAllClose(*weights)
        self.refuse(["--label_smoothing was 0.5, is now not set"], *train)
        for value in ("1", "-0.1"):
            self.refuse(["--label_smoothing=", "below 1"], *train, "--label_smoothing=" + value)
        sts = ["--task_name=STS-B", "--data_dir=" + self.data, "--do_train"]
        self.refuse(["--label_smoothing requires"], *sts, "--label_smoothing=0.1")

    def test_evaluation_and_prediction_need_a_trained_model(self):
        for stage in ("--do_eval", "--do_predict"):
            self.refuse(["--do_train"], stage)

    def test_repeated_run_needs_same_settings_or_overwriting(self):
        train = ["--do_train", "--num_train_epochs=0.7", "--tuning=head"]
        trained, _ = self.train_once(*train)
        shutil.copytree(trained, self.output_dir)
        write(self.path("notes.txt"), "mine")
        before = files_in(self.output_dir)
        with self.assertLogs("absl", "INFO") as log:
            report = self.succeed(*train)
        self.assertIn("Already trained: the last checkpoint is of step 2", "\n".join(log.output))
        self.assertIn("Adapter: " + self.path("adapter"), report)
        self.assertEqual(files_in(self.output_dir), before)
        # Other settings need another folder or --overwrite_output_dir.
        for flag, old, new in (
            ("--tuning", "head", "adapters"),
            ("--train_batch_size", "8", "9"),
            ("--random_seed", "12345", "1"),
            ("--learning_rate", "0.01", "0.0001"),
        ):
            parts = [flag, old, new, "--overwrite_output_dir"]
            stderr = self.refuse(parts, *train, f"{flag}={new}")
            self.assertEqual(files_in(self.output_dir), before)
            self.assertNotIn("adapter_", stderr)
        self.succeed(*train, "--num_train_epochs=1", "--random_seed=1", "--overwrite_output_dir")
        self.assertEqual(tf.train.latest_checkpoint(self.output_dir), self.path("partial.ckpt-3"))
        self.assertFalse(os.path.exists(self.path("partial.ckpt-2.index")))
        settings = json.loads(read(self.path("settings.json")))
        self.assertEqual(settings["training"]["random_seed"], 1)
        self.assertEqual(read(self.path("notes.txt")), "mine")

    def test_script_trains_with_a_sentencepiece_model(self):
        random = np.random.RandomState(0)
        prefix = os.path.join(self.folder, "pieces")
        model = tiny.train_sentencepiece(
            [tiny.sentence(random) for _ in range(200)],
            vocab_size=48,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols="[CLS],[SEP],[MASK]",
        )
        write(prefix + ".model", model, "wb")
        pieces = sentencepiece.SentencePieceProcessor()
        pieces.Load(prefix + ".model")
        bert = tiny.write_bert(
            os.path.join(self.folder, "bert"), vocab_size=pieces.get_piece_size()
        )
        spm = ["--vocab_file=", "--spm_model_file=" + prefix + ".model"]
        report = self.succeed("--do_train", "--tuning=head", *bert_flags(bert), *spm)
        self.assertIn("Trained: 18 of", report)


class BadInputTest(ScriptTestCase):
    """Checks that one sentence names each mistake, and that an earlier run's files stay."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train = ["--do_train", "--num_train_epochs=0.7", "--tuning=head"]
        cls.trained, _ = cls.train_once(*cls.train)
        cls.prefix = os.path.join(cls.bert, "bert_model.ckpt")

    def refuse_all(self, cases):
        """Checks that each of (arguments, parts of the error) is refused for the trained folder."""
        before = files_in(self.trained)
        for arguments, parts in cases:
            given = ["--do_train", "--overwrite_output_dir", *arguments]
            self.refuse(parts, *given, output_dir=self.trained)
            self.assertEqual(files_in(self.trained), before)

    def test_missing_and_unreadable_files_are_refused(self):
        nowhere, vocab_file = (
            os.path.join(self.folder, "nowhere"),
            os.path.join(self.bert, "vocab.txt"),
        )
        empty = write(os.path.join(self.folder, "empty"), "")
        files = ("data_dir", "vocab_file", "bert_config_file", "init_checkpoint", "spm_model_file")
        self.refuse_all([([f"--{flag}={nowhere}"], [nowhere]) for flag in files])
        self.refuse_all(
            [
                (["--data_dir=" + self.bert], ["train.tsv", "--data_dir"]),
                (["--bert_config_file=" + vocab_file], [vocab_file, "JSON"]),
                (["--bert_config_file=" + self.bert], [self.bert]),
                (["--vocab_file=" + self.bert], [self.bert]),
                (["--vocab_file=" + empty], [empty, "empty"]),
                (["--vocab_file=" + self.prefix + ".index"], [".index"]),
                (["--spm_model_file=" + vocab_file], [vocab_file, "SentencePiece"]),
            ]
        )

    def test_mismatched_checkpoints_are_refused(self):
        bigger = os.path.join(tiny.write_bert(self.folder, hidden_size=16), "bert_model.ckpt")
        self.refuse_all([(["--init_checkpoint=" + bigger], [bigger, "[23, 16]", "[23, 8]"])])
        full = os.path.join(self.folder, "full.ckpt")
        adapter = own_models.build_task_adapter(self.bert)
        adapter_checkpoints.to_full_checkpoint(adapter, self.prefix, full)
        ignored = [full, "8 tensors of adapters that this model would ignore"]
        self.refuse_all([(["--init_checkpoint=" + full, "--tuning=full"], ignored)])

    def test_pairs_need_a_second_segment_id(self):
        bert = tiny.write_bert(os.path.join(self.folder, "one_type"), type_vocab_size=1)
        parts = ["MRPC", "text and text_b", "type_vocab_size 1"]
        self.refuse_all([(bert_flags(bert), parts)])

    def test_mismatched_vocabularies_are_refused(self):
        longer, cased = (
            write(os.path.join(self.folder, name), "\n".join([*tiny.VOCABULARY[:-2], *more]) + "\n")
            for name, more in (("longer", ["x", "y", "z"]), ("cased", ["The", "Dog"]))
        )
        googles = os.path.join(self.folder, "cased_L-12_H-768_A-12", "bert_model.ckpt")
        shutil.copytree(self.bert, os.path.dirname(googles))
        self.refuse_all(
            [
                (["--vocab_file=" + longer], [longer, "24 tokens", "23"]),
                (["--vocab_file=" + cased], [cased, "--do_lower_case"]),
                (["--init_checkpoint=" + googles], [googles, "--do_lower_case=False"]),
            ]
        )

    def test_rows_with_unknown_labels_are_refused(self):
        data = shutil.copytree(self.data, os.path.join(self.folder, "data"))
        train = os.path.join(data, "train.tsv")
        write(train, read(train, "rb") + b"yes\t1\t2\ta\tb\n", "wb")
        self.refuse_all([(["--data_dir=" + data], [train, "line 26", "'yes'", "0, 1"])])

    def test_invalid_flags_are_refused(self):
        for flags, *parts in (
            ("--task_name=what", "--task_name=what", "MRPC", "sms_spam", "custom"),
            ("--max_seq_length=41", "--max_seq_length=41", "40"),
            ("--train_batch_size=25", "24", "--train_batch_size"),
            ("--tuning=top_layers --num_top_layers=3", "--num_top_layers", "1 layer"),
            ("--use_tpu --tpu_name=grpc://127.0.0.1:1", "--tpu_name=grpc://127"),
        ):
            self.refuse_all([(flags.split(), parts)])

    def test_checkpoint_with_damaged_tensors_is_refused(self):
        folder = shutil.copytree(self.bert, os.path.join(self.folder, "bert"))
        prefix = os.path.join(folder, "bert_model.ckpt")
        data = prefix + ".data-00000-of-00001"
        write(data, b"\xff" * len(read(data, "rb")), "wb")
        self.refuse(["--init_checkpoint", prefix], "--init_checkpoint=" + prefix)

    def test_damaged_output_dir_is_refused(self):
        """An incomplete checkpoint is run_folder_test's."""
        shutil.copytree(self.trained, self.output_dir)
        shutil.rmtree(self.path("adapter"))  # It would suffice for evaluation.
        data = self.path("partial.ckpt-2.data-00000-of-00001")
        write(data, b"\xff" * len(read(data, "rb")), "wb")
        before = files_in(self.output_dir)
        for arguments in (self.train, ["--do_eval", "--tuning=head"]):
            self.refuse([self.output_dir, "partial.ckpt-2"], *arguments)
            self.assertEqual(files_in(self.output_dir), before)


class CommandLineTest(ScriptTestCase):
    """Runs the script as a separate process."""

    def test_report_is_printed_and_every_log_line_has_a_time(self):
        script = os.path.join(FOLDER, "run_classifier.py")
        arguments = ["--output_dir=" + self.output_dir, "--num_train_epochs=0.4", "--tuning=head"]
        # TensorFlow 2.12 sets this variable itself when it is imported.
        environ = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
        done = subprocess.run(
            [sys.executable, script, *self.base_flags, *arguments],
            capture_output=True,
            text=True,
            env=environ,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("step 1/1", done.stdout)
        self.assertIn("MRPC dev: f1", done.stdout)
        self.assertIn("Scores: " + self.path("eval_results.txt"), done.stdout)
        for line in done.stderr.splitlines():
            self.assertRegex(line, r"^\d\d:\d\d:\d\d ")


# TensorFlow's ram:// stands in for gs://. It treats every prefix of a name as a folder and cannot
# rename folders; the functions below correct both.
BUCKET = "ram://bucket"


def _is_listed(path):
    parent, _, name = path.rstrip("/").rpartition("/")
    if not path.startswith(BUCKET + "/") or parent == BUCKET:
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
@pytest.mark.without_xla
class RemotePathsTest(tf.test.TestCase):
    """Runs whole scripts on paths that are not local files, like gs:// paths."""

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
        values = command_lines.classifier_flags(*arguments)
        return "\n".join(run_classifier.run(values))

    def export(self, given, **more):
        bert = ("bert_config_file", "vocab_file", "init_checkpoint")
        given = {**{name: given[name] for name in bert}, **more}
        arguments = [f"--{name}={value}" for name, value in given.items()]
        values = command_lines.parsed(export_model.define_flags, *arguments)
        return "\n".join(export_model.run(values))

    def test_training_prediction_and_export_use_remote_paths(self):
        with tempfile.TemporaryDirectory() as folder:
            bert = tiny.write_bert(os.path.join(folder, "bert"), num_hidden_layers=1)
            self.upload(bert, BUCKET + "/bert")
            self.upload(tiny.write_mrpc(os.path.join(folder, "mrpc")), BUCKET + "/mrpc")
        given = {
            "task_name": "MRPC",
            "data_dir": BUCKET + "/mrpc",
            "bert_config_file": BUCKET + "/bert/bert_config.json",
            "vocab_file": BUCKET + "/bert/vocab.txt",
            "init_checkpoint": BUCKET + "/bert/bert_model.ckpt",
            "feature_cache_dir": "none",
            "max_seq_length": 32,
            "train_batch_size": 12,
            "num_train_epochs": 2,
        }
        first, second = BUCKET + "/first", BUCKET + "/second"
        report = self.run_script(
            do_train=True, do_eval=True, keep_best=True, output_dir=first, **given
        )
        self.assertIn(f"Adapter: {first}/adapter", report)
        for _ in range(2):  # The second run has nothing left to train.
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
        for number in (1, 2):  # Each export has its own folder.
            exported = self.export(
                given, adapters=second + "/adapter", export_dir=BUCKET + "/export"
            )
            self.assertIn(f"SavedModel: {BUCKET}/export/{number} (", exported)
            for name in ("variables/variables.index", "assets.extra/tasks.json"):
                self.assertTrue(_exists(f"{BUCKET}/export/{number}/{name}"), name)
        self.assertEmpty([name for name in os.listdir(".") if name.startswith("ram:")])

    def test_patterns_of_remote_files_are_read(self):
        pyarrow = pytest.importorskip("pyarrow", reason="Python 3.7 has no pyarrow of today")
        parquet = pytest.importorskip("pyarrow.parquet")
        with tempfile.TemporaryDirectory() as folder:
            data = os.path.join(folder, "data")
            bert = tiny.write_bert(os.path.join(folder, "bert"), num_hidden_layers=1)
            tokenizer = tokenization.FullTokenizer(bert + "/vocab.txt")
            examples = run_classifier.MrpcProcessor().get_train_examples(
                tiny.write_mrpc(os.path.join(folder, "mrpc"))
            )
            for part in range(2):
                rows = examples[part::2]
                lines = [f"{e.label}\t{e.text_a}\t{e.text_b}\n" for e in rows]
                write(f"{data}/part-{part}.tsv", "".join(["label\ta\tb\n", *lines]))
                columns = zip(*((e.label, e.text_a, e.text_b) for e in rows))
                table = pyarrow.table(dict(zip(("label", "a", "b"), columns)))
                parquet.write_table(table, f"{data}/part-{part}.parquet")
                run_classifier.file_based_convert_examples_to_features(
                    rows, ["0", "1"], 32, tokenizer, f"{data}/part-{part}.tf_record"
                )
            self.upload(data, BUCKET + "/parts")
            given = {
                "task_name": "custom",
                "name": "pairs",
                "tuning": "head",
                "precision": "float32",  # The default depends on the machine's load.
                "do_train": True,
                "do_eval": True,
                "max_seq_length": 32,
                "train_batch_size": 12,
                "bert_config_file": bert + "/bert_config.json",
                "vocab_file": bert + "/vocab.txt",
                "init_checkpoint": bert + "/bert_model.ckpt",
            }
            columns = {"text_column": "a", "text_b_column": "b", "label_column": "label"}
            losses = set()
            for ending, more in (("tsv", columns), ("parquet", columns), ("tf_record", {})):
                output = os.path.join(folder, ending)
                pattern = f"{BUCKET}/parts/part-*.{ending}"
                files = dict.fromkeys(["train_file", "dev_file", "test_file"], pattern)
                self.run_script(output_dir=output, **given, **files, **more)
                with open(os.path.join(output, "eval_results.json")) as reader:
                    losses.add(json.load(reader)["eval_loss"])
            self.assertLen(losses, 1)

    def test_missing_remote_data_is_refused(self):
        with self.assertRaisesRegex(errors.UserError, "ram://bucket/none"):
            self.run_script(task_name="MRPC", data_dir=BUCKET + "/none")


SEQ_LENGTH = 16

WEATHER = "".join(
    f"{label}\t{word} likes the dog .\n"
    for word in ("woman", "man")
    for label in ("sun", "rain", "snow")
)


class WeatherProcessor(run_classifier.DataProcessor):
    """A user's own task, written as BERT's README describes."""

    def get_train_examples(self, data_dir):
        return self._create_examples(self._read_tsv(os.path.join(data_dir, "train.tsv")), "train")

    def get_dev_examples(self, data_dir):
        return self._create_examples(self._read_tsv(os.path.join(data_dir, "dev.tsv")), "dev")

    def get_labels(self):
        return ["sun", "rain", "snow"]

    def _create_examples(self, lines, set_type):
        return [
            run_classifier.InputExample(
                guid=f"{set_type}-{i}",
                text_a=tokenization.convert_to_unicode(line[1]),
                text_b=None,
                label=tokenization.convert_to_unicode(line[0]),
            )
            for i, line in enumerate(lines)
        ]


@pytest.mark.estimator
class LibraryTest(tf.test.TestCase):
    """Runs code that was written for BERT's run_classifier."""

    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        self.bert = tiny.write_bert(os.path.join(self.folder, "bert"), num_hidden_layers=1)
        self.init_checkpoint = os.path.join(self.bert, "bert_model.ckpt")
        self.tokenizer = tokenization.FullTokenizer(
            vocab_file=os.path.join(self.bert, "vocab.txt"), do_lower_case=True
        )
        self.config = modeling.BertConfig.from_json_file(
            os.path.join(self.bert, "bert_config.json")
        )

    def test_module_has_the_public_names_of_berts_script(self):
        for name in (
            *("InputExample", "PaddingInputExample", "InputFeatures", "DataProcessor"),
            *("XnliProcessor", "MnliProcessor", "MrpcProcessor", "ColaProcessor"),
            *("convert_single_example", "convert_examples_to_features", "input_fn_builder"),
            *("file_based_convert_examples_to_features", "file_based_input_fn_builder"),
            *("create_model", "model_fn_builder"),
        ):
            self.assertTrue(hasattr(run_classifier, name), name)

    def estimator(self, model_fn, output_dir="output"):
        run_config = tf_estimator.tpu.RunConfig(
            model_dir=os.path.join(self.folder, output_dir),
            save_checkpoints_steps=1000,
            keep_checkpoint_max=1,
            tpu_config=tf_estimator.tpu.TPUConfig(iterations_per_loop=1000, num_shards=8),
        )
        return tf_estimator.tpu.TPUEstimator(
            use_tpu=False,
            model_fn=model_fn,
            config=run_config,
            train_batch_size=4,
            eval_batch_size=4,
            predict_batch_size=4,
            export_to_tpu=False,
        )

    def record_file(self, name, examples):
        """Writes weather examples to a TFRecord file; returns its path."""
        path = os.path.join(self.folder, name + ".tf_record")
        run_classifier.file_based_convert_examples_to_features(
            examples, WeatherProcessor().get_labels(), SEQ_LENGTH, self.tokenizer, path
        )
        return path

    def test_custom_processor_trains_evaluates_and_predicts(self):
        data_dir, processor = os.path.join(self.folder, "data"), WeatherProcessor()
        for split in ("train", "dev"):
            write(os.path.join(data_dir, split + ".tsv"), WEATHER)
        model_fn = run_classifier.model_fn_builder(
            bert_config=self.config,
            num_labels=len(processor.get_labels()),
            init_checkpoint=self.init_checkpoint,
            learning_rate=1e-3,
            num_train_steps=2,
            num_warmup_steps=0,
            use_tpu=False,
            use_one_hot_embeddings=False,
        )
        estimator = self.estimator(model_fn)

        train_file = self.record_file("train", processor.get_train_examples(data_dir))
        train_input_fn = run_classifier.file_based_input_fn_builder(
            input_file=train_file, seq_length=SEQ_LENGTH, is_training=True, drop_remainder=True
        )
        estimator.train(input_fn=train_input_fn, max_steps=2)

        eval_examples = processor.get_dev_examples(data_dir)
        while len(eval_examples) % 4:
            eval_examples.append(run_classifier.PaddingInputExample())
        eval_input_fn = run_classifier.file_based_input_fn_builder(
            self.record_file("eval", eval_examples), SEQ_LENGTH, False, True
        )
        result = estimator.evaluate(input_fn=eval_input_fn, steps=2)
        self.assertEqual(set(result), {"eval_accuracy", "eval_loss", "global_step", "loss"})
        self.assertEqual(result["global_step"], 2)

        rows = list(estimator.predict(input_fn=eval_input_fn))
        self.assertLen(rows, 8)
        self.assertEqual({name for row in rows for name in row}, {"probabilities"})
        probabilities = np.array([row["probabilities"] for row in rows])[:6]
        labels = [0, 1, 2, 0, 1, 2]
        self.assertAllClose(probabilities.sum(axis=1), np.ones(6))
        # The padding rows, two of eight, have weight 0.
        self.assertAllClose(
            result["eval_accuracy"], np.mean(probabilities.argmax(axis=1) == labels)
        )
        losses = -np.log(probabilities[np.arange(6), labels])
        self.assertAllClose(result["eval_loss"], losses.mean(), rtol=1e-5)

    def test_positional_arguments_and_in_memory_features_work(self):
        data = tiny.write_mrpc(os.path.join(self.folder, "data"), rows=6)
        processor = run_classifier.MrpcProcessor()
        features = run_classifier.convert_examples_to_features(
            processor.get_dev_examples(data), processor.get_labels(), SEQ_LENGTH, self.tokenizer
        )
        self.assertIsInstance(features[0], run_classifier.InputFeatures)
        self.assertEqual([feature.label_id for feature in features], [0, 1, 0, 1, 0, 1])
        model_fn = run_classifier.model_fn_builder(
            self.config, 2, self.init_checkpoint, 5e-5, 2, 1, False, False
        )
        estimator = self.estimator(model_fn)
        with self.assertLogs("absl", "WARNING") as log:
            estimator.train(
                run_classifier.input_fn_builder(features, SEQ_LENGTH, True, True), max_steps=2
            )
        warnings = [line for line in log.output if "learning rate of 5e-05" in line]
        self.assertLen(warnings, 1)
        self.assertIn("adapter_fn=None for full fine-tuning", warnings[0])
        input_fn = run_classifier.input_fn_builder(features, SEQ_LENGTH, False, False)
        self.assertEqual(estimator.evaluate(input_fn)["global_step"], 2)
        self.assertLen(list(estimator.predict(input_fn)), 6)
        names = estimator.get_variable_names()
        for name in (
            "bert/encoder/layer_0/output/adapters/weights2",
            "bert/encoder/layer_0/output/adapters/weights2/adam_m",
            "output_weights/adam_v",
        ):
            self.assertIn(name, names)
        # Frozen variables are read from the pretrained checkpoint, and never written.
        self.assertNotIn("bert/pooler/dense/kernel", names)
        # Checkpoints are saved before the first step and after the last; keep_checkpoint_max is 1.
        saved = tf.io.gfile.glob(os.path.join(estimator.model_dir, "*.index"))
        self.assertEqual([os.path.basename(path) for path in saved], ["partial.ckpt-2.index"])
        self.check_export(estimator, features, input_fn)

    def check_export(self, estimator, features, input_fn):
        """Checks that a SavedModel predicts like its estimator after the BERT is deleted."""
        names = ("input_ids", "input_mask", "segment_ids")

        def receiver():
            tensors = {name: tf.placeholder(tf.int32, [None, SEQ_LENGTH]) for name in names}
            ones = tf.ones_like(tensors["input_ids"][:, 0])
            own = {**tensors, "label_ids": ones, "is_real_example": ones}
            return tf_estimator.export.ServingInputReceiver(own, tensors)

        expected = [row["probabilities"] for row in estimator.predict(input_fn)]
        with xla.portable():
            path = estimator.export_saved_model(os.path.join(self.folder, "export"), receiver)
        shutil.rmtree(self.bert)
        shutil.rmtree(estimator.model_dir)
        with tf.Graph().as_default(), tf.Session() as session:
            loaded = tf.saved_model.loader.load(session, ["serve"], path.decode())
            signature = loaded.signature_def["serving_default"]
            self.assertEqual(list(signature.outputs), ["probabilities"])
            feeds = {
                signature.inputs[name].name: [getattr(row, name) for row in features]
                for name in names
            }
            found = session.run(signature.outputs["probabilities"].name, feeds)
        self.assertAllClose(found, expected, atol=1e-6)

    def test_create_model_computes_loss_and_probabilities(self):
        arrays = tiny.arrays(rows=5, num_labels=3)
        labels = arrays["label_ids"]
        with tf.Graph().as_default(), tf.Session() as session:
            outputs = run_classifier.create_model(
                self.config,
                False,
                arrays["input_ids"],
                arrays["input_mask"],
                arrays["segment_ids"],
                labels,
                3,
                False,
            )
            session.run(tf.global_variables_initializer())
            weights, bias = (
                next(v for v in tf.trainable_variables() if v.op.name == name)
                for name in ("output_weights", "output_bias")
            )
            bias.load(np.float32([0.5, -1.0, 2.0]), session)
            weights.load(np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8), session)
            self.assertEqual(set(tf.get_collection("head")), {weights, bias})
            self.assertLen(tf.get_collection("adapters"), 2 * 4)
            pooled = tf.get_default_graph().get_tensor_by_name("bert/pooler/dense/Tanh:0")
            pooled, loss, per_example_loss, logits, probabilities = session.run((pooled, *outputs))
        expected = pooled @ np.linspace(-1, 1, 24).reshape(3, 8).T + [0.5, -1.0, 2.0]
        odds = np.exp(expected)
        expected_losses = -np.log(odds[np.arange(5), labels] / odds.sum(axis=1))
        self.assertAllClose(logits, expected, atol=1e-5)
        self.assertAllClose(probabilities, odds / odds.sum(axis=1, keepdims=True), atol=1e-5)
        self.assertAllClose(per_example_loss, expected_losses, atol=1e-5)
        self.assertAllClose(loss, expected_losses.mean(), atol=1e-5)
