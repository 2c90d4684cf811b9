"""Tests of run_baseline.py: the whole script on a toy task, and its errors for invalid input."""

import contextlib
import csv
import dataclasses
import datetime
import io
import json
import os
import shutil
import time
import unittest
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf
from absl.testing import parameterized

import run_baseline
import run_report
from adapter_bert.files import gfile, json_objects
from adapter_bert.ops import devices
from adapter_bert.paper import search_results
from adapter_bert.paper.baseline import search, search_space, training
from adapter_bert.paper.baseline.training import Baseline
from adapter_bert.shell.errors import UserError
from adapter_bert.sweeps import records
from adapter_tests.support import command_lines, tf2_modules, tiny


def parsed(*arguments):
    return command_lines.parsed(run_baseline.define_flags, *arguments)


def read_json(*path):
    with open(os.path.join(*path)) as reader:
        return json.load(reader)


def read_rows(*path):
    with open(os.path.join(*path), newline="") as reader:
        return list(csv.reader(reader, delimiter="\t"))


class ScriptTestCase(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.get_temp_dir()
        self.module = tiny.write_text_module(os.path.join(self.folder, "module"))
        self.data = os.path.join(self.folder, "data")
        self.out = os.path.join(self.folder, "out")
        self.write_data()

    def write_data(self, splits=("train", "dev", "test"), label=None):
        """Writes sentences; by default the label says whether the word "not" is in them."""
        os.makedirs(self.data, exist_ok=True)
        random = np.random.RandomState(0)
        for split in splits:
            with open(os.path.join(self.data, split + ".tsv"), "w") as writer:
                writer.write("text\tlabel\n")
                for row in range(100):
                    text = tiny.sentence(random)[:-2] + (" not" if row % 3 else "")
                    truth = "yes" if "not" in text.split() else "no"
                    writer.write(f"{text}\t{label(row) if label else truth}\n")

    def run_script(self, *arguments, steps=10):
        """Runs the script; returns its report. A training has `steps` steps and two evaluations."""
        common = ["--task_name=custom", "--text_column=text", "--label_column=label"]
        common += [f"--data_dir={self.data}", f"--output_dir={self.out}", "--random_seed=1"]
        settings = training.NetworkConfig
        with mock.patch.object(settings, "num_steps", steps), mock.patch.object(
            training, "EVALUATE_EVERY", 50 * steps
        ), contextlib.redirect_stdout(io.StringIO()):
            return run_baseline.run(parsed(*common, *arguments))

    def search(self, *arguments, **options):
        return self.run_script(
            f"--module={self.module}", "--sampler=random", "--trials=3", *arguments, **options
        )


class SearchTest(ScriptTestCase):
    def test_search_writes_results_that_run_report_reads(self):
        report = self.search()
        self.assertRegex(report[0], r"^Search: 3 trials \(\d stopped early\), the best is trial \d")
        found = read_json(self.out, "search.json")
        self.assertEqual(found["task"], "data")  # As in a sweep's records.
        best = max(trial["score"] for trial in found["trials"])
        (chosen, *_) = [t for t in found["trials"] if t["score"] == best]
        results = read_json(self.out, "eval_results.json")
        # The best model is trained again, from the same seed and to its end, so it is no worse.
        self.assertGreaterEqual(results["eval_accuracy"], best)
        self.assertEqual(results["score"], "eval_accuracy")
        # The files are those of run_classifier.py, and the scores follow from them.
        for stage, start in (("eval", "dev_"), ("test", "")):
            labels = read_rows(self.out, start + "labels.tsv")[1:]
            rows = read_rows(self.out, start + "predictions.tsv")
            self.assertEqual(rows[0], ["index", "label", "no", "yes"])
            right = np.mean([row[1] == label[1] for row, label in zip(rows[1:], labels)])
            name = "test_scores.json" if stage == "test" else "eval_results.json"
            self.assertAlmostEqual(read_json(self.out, name)[stage + "_accuracy"], right)
        self.assertLen(read_rows(self.out, "test_results.tsv"), 100)
        self.assertIn(f"eval_accuracy = {results['eval_accuracy']}", self.read("eval_results.txt"))
        settings = read_json(self.out, "settings.json")["training"]
        self.assertEqual({n: settings[n] for n in chosen["settings"]}, chosen["settings"])
        # run_report.py accepts the record.
        reports = os.path.join(self.folder, "reports")
        search_file = os.path.join(self.out, "search.json")
        arguments = [
            f"--records={self.out}",
            f"--searches={search_file}",
            f"--report_dir={reports}",
        ]
        arguments.append("--report=table2,searches")
        run_report.run(command_lines.parsed(run_report.define_flags, *arguments))
        with open(os.path.join(reports, "table2.md")) as reader:
            test = 100 * read_json(self.out, "test_scores.json")["test_accuracy"]
            self.assertRegex(reader.read(), rf"no-BERT baseline \|.*\n.*\n\| data \| {test:.1f} \|")
        # Another run trains nothing and repeats the report.
        with mock.patch.object(Baseline, "train", side_effect=AssertionError):
            self.assertEqual(self.search(), report)

    def test_search_of_10_000_trials_can_be_reported(self):
        space = dataclasses.replace(
            search_space.PRESETS["sms_spam"],
            module="/data/modules/universal-sentence-encoder-lite/2",
            conv_dropout=1 / 3,
        )
        trials = [
            search.SearchTrial(number, 2 / 3, False, 100_000, 200 / 3, space)
            for number in range(10_000)
        ]
        setup = mock.Mock()
        setup.data.task.configure_mock(name="airline", score="accuracy")
        setup.data.where, setup.output.path = "", self.folder
        settings = mock.Mock(sampler="tpe", pruner="none")
        self.assertEqual(run_baseline._best(setup, settings, trials)[0], space)
        found = search_results.read(os.path.join(self.folder, "search.json"))
        self.assertLen(found["trials"], 10_000)
        name = search_space.short_name(space.module)
        expected = {**dataclasses.asdict(space), "module": name}
        self.assertEqual(found["trials"][-1]["settings"], expected)

    def read(self, name):
        with open(os.path.join(self.out, name)) as reader:
            return reader.read()

    def test_cluster_of_the_environment_is_ignored(self):
        cluster = {"cluster": {"worker": ["127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}}
        with mock.patch.dict(os.environ, {"TF_CONFIG": json.dumps(cluster)}):
            report = self.run_script("--preset=airline", f"--module={self.module}", steps=2)
        self.assertIn("accuracy", "\n".join(report))

    def test_better_trial_of_a_resumed_search_replaces_the_model(self):
        scores, trained = iter([0.5, 0.6, 0.9, 0.7]), []

        def train(model, folder=None, patience=0, on_score=None):
            if folder is None:
                return training.Result(next(scores), 100, 10)
            trained.append(model._network_config.settings)
            if len(trained) == 2:
                raise InterruptedError
            return real(model, folder, patience, on_score)

        real = Baseline.train
        with mock.patch.object(Baseline, "train", train):
            self.search("--trials=2", "--pruner=none")
            with self.assertRaises(InterruptedError):
                self.search("--trials=3", "--pruner=none")
            self.search("--trials=3", "--pruner=none")
            report = self.search("--trials=4", "--pruner=none")
        self.assertLen(trained, 3)
        # The earlier best model's record stays.
        recorded = list(map(json.loads, self.read("results.jsonl").splitlines()))
        self.assertEqual([record["flags"]["trials"] for record in recorded], [2, 3, 4])
        self.assertIn("the best is trial 2 with accuracy 0.9000", report[0])
        found = read_json(self.out, "search.json")["trials"]
        self.assertEqual(found[2]["settings"]["conv_dropout"], trained[2].conv_dropout)
        settings = read_json(self.out, "settings.json")["training"]
        self.assertEqual({n: settings[n] for n in found[2]["settings"]}, found[2]["settings"])

    def test_preset_with_the_values_of_a_search_leaves_its_folder_to_it(self):
        report = self.search("--trials=1", "--pruner=none")
        (line,) = [line for line in report if line.startswith("Settings: ")]
        given = [f"--setting={setting}" for setting in line[len("Settings: ") :].split(", ")]
        with mock.patch.object(Baseline, "train", side_effect=AssertionError):  # It is trained.
            self.run_script("--preset=airline", *given)
            self.search("--trials=1", "--pruner=none")
            with self.assertRaisesRegex(UserError, "settings.json belongs to a run with other"):
                self.run_script("--preset=airline", *given, "--random_seed=2")

    def test_search_refuses_output_dir_of_another_run(self):
        self.run_script("--preset=airline", f"--module={self.module}")
        kept = self.contents()
        with mock.patch.object(Baseline, "train", side_effect=AssertionError):
            with self.assertRaisesRegex(UserError, "settings.json: the model there is not of"):
                self.search()
            self.assertEqual({name: self.contents()[name] for name in kept}, kept)
            for damaged in ([], 3):
                json_objects.write_object(
                    os.path.join(self.out, "settings.json"), {"search": damaged}
                )
                with self.assertRaisesRegex(UserError, "settings.json: the model there is not of"):
                    self.search()

    def contents(self):
        """Returns the bytes of the files in output_dir by name."""
        found = {}
        for name in os.listdir(self.out):
            if os.path.isfile(os.path.join(self.out, name)):
                with open(os.path.join(self.out, name), "rb") as reader:
                    found[name] = reader.read()
        return found

    def test_search_refuses_to_resume_with_other_data_or_module(self):
        self.search("--search_only", "--trials=1")
        with open(os.path.join(self.data, "dev.tsv"), "a") as writer:
            writer.write("one more\tno\n")
        with self.assertRaisesRegex(UserError, "its study custom was started with another data;"):
            self.search()
        self.write_data()
        shutil.rmtree(self.module)
        tiny.write_text_module(self.module, seed=1)
        with self.assertRaisesRegex(UserError, "was started with another module_files"):
            self.search()

    @unittest.skipIf(tf2_modules.IS_TF1, "TensorFlow 1 computes in float32 alone.")
    def test_search_resumes_in_recorded_precision(self):
        with mock.patch.object(devices, "has_bfloat16", return_value=True):
            for seconds in (2.0, 1.0):
                measured = {"float32": seconds, "bfloat16": 1.0}
                with mock.patch.object(devices, "product_seconds", return_value=measured):
                    self.search("--trials=1", *(["--search_only"] if seconds == 2 else []))
            settings = read_json(self.out, "settings.json")
            self.assertEqual(settings["training"]["precision"], "bfloat16")
            self.assertEqual(settings["search"]["precision"], "bfloat16")
            with self.assertRaisesRegex(UserError, "started with another precision; give the same"):
                self.search("--precision=float32")

    def test_concurrent_searches_leave_best_model_to_one_process(self):
        (line,) = self.search("--search_only", "--trials=1")
        self.assertIn("a process without --search_only trains the best model", line)
        self.assertNotIn("eval_results.txt", os.listdir(self.out))
        with search.SearchLock(self.out):
            (line,) = self.search("--trials=1")
            self.assertIn("the last process to end trains the best model", line)
            with self.assertRaisesRegex(UserError, "--overwrite_output_dir: another process"):
                self.search("--overwrite_output_dir")
        # A --search_only process that is still searching leaves the best model to the other.
        real, reports = search.Search.run, []

        def run(original_search, train):
            if not reports:
                reports.append(None)
                reports[0] = self.search("--trials=1")[0]
            real(original_search, train)

        with mock.patch.object(search.Search, "run", run):
            self.search("--search_only", "--trials=1")
        self.assertIn("Search: 1 trials", reports[0])
        with mock.patch.object(Baseline, "train", side_effect=InterruptedError), self.assertRaises(
            InterruptedError
        ):
            self.search("--overwrite_output_dir")

    def test_refused_runs_leave_output_dir_unchanged(self):
        preset = ["--preset=airline", "--overwrite_output_dir"]
        own = f"--module={self.module}"
        self.run_script(*preset, own)
        before = self.contents()
        inside = tiny.write_text_module(os.path.join(self.out, "eval", "module"))
        nowhere = os.path.join(self.folder, "nowhere")
        cases = [
            ([*preset, f"--module={inside}"], f"would remove --module={inside}"),
            ([*preset, f"--module={nowhere}"], nowhere),
            (["--overwrite_output_dir", f"--module={nowhere}"], nowhere),
            ([*preset, own, "--label_column=none"], "none"),
        ]
        for arguments, part in cases:
            with self.subTest(arguments=arguments), self.assertRaisesRegex(UserError, part):
                self.run_script(*arguments)
            self.assertTrue(os.path.exists(os.path.join(inside, "saved_model.pb")))
            shutil.move(os.path.join(self.out, "eval"), os.path.join(self.folder, "aside"))
            self.assertEqual(self.contents(), before)
            shutil.move(os.path.join(self.folder, "aside"), os.path.join(self.out, "eval"))

    def test_preset_trains_one_model_without_search(self):
        arguments = ["--preset=airline", f"--module={self.module}", "--setting=hidden_layers=2"]
        report = self.run_script(*arguments)
        self.assertRegex(report[2], r"use_convolution=True, conv_activation=leaky_relu.*layers=2")
        self.assertFalse(os.path.exists(os.path.join(self.out, "search.db")))
        record = json.loads(self.read("results.jsonl").splitlines()[0])
        self.assertEqual(record["flags"]["preset"], "airline")
        with mock.patch.object(Baseline, "train", side_effect=AssertionError):
            self.assertEqual(self.run_script(*arguments), report)
        with self.assertRaisesRegex(UserError, "conv_filters was 200, is now 100"):
            self.run_script(*arguments, "--setting=conv_filters=100")
        self.run_script(*arguments, "--setting=conv_filters=100", "--overwrite_output_dir")
        with search.SearchLock(self.out), self.assertRaisesRegex(
            UserError, "another process is working there"
        ):
            self.run_script(*arguments)


class RecordsTest(ScriptTestCase):
    """Replaces training by one step, and prediction by the same probabilities for all texts."""

    def setUp(self):
        super().setUp()
        self.records = os.path.join(self.folder, "records")
        self.trained = []
        self.probabilities = [0.25, 0.75]  # Of "no" and "yes".

    def train(self, folder, patience):
        with tf.Graph().as_default(), tf.Session() as session:
            step = tf.train.create_global_step()
            session.run(step.initializer)
            tf.train.Saver().save(session, os.path.join(folder, "model.ckpt"), global_step=1)
        self.trained.append(folder)
        return training.Result(0.5, 100, 10)

    def predict(self, split, folder):
        return {"loss": np.zeros(100), "probabilities": np.tile(self.probabilities, [100, 1])}

    def run_preset(self, *arguments):
        """Runs a preset; returns all records."""
        with mock.patch.multiple(Baseline, train=self.train, predict=self.predict):
            preset = ["--preset=airline", f"--module={self.module}"]
            self.run_script(*preset, f"--records_dir={self.records}", *arguments)
        return records.read(self.records)

    def test_other_settings_get_separate_records(self):
        for further in (["--setting=hidden_layers=3"], [], ["--max_words=5"], ["--max_words=128"]):
            recorded = self.run_preset("--overwrite_output_dir", *further)
        self.assertEqual(recorded, self.run_preset())  # The last value is the default.
        self.assertLen({record["key"] for record in recorded}, 3)

    def test_other_folders_and_columns_get_separate_records(self):
        for name in ("train", "dev", "test"):
            rows = [row + row[:1] for row in read_rows(self.data, name + ".tsv")]
            rows[0][2] = "again"
            with open(os.path.join(self.data, name + ".tsv"), "w") as writer:
                writer.writelines("\t".join(row) + "\n" for row in rows)
        self.run_preset()
        other = os.path.join(self.folder, "other")
        shutil.copytree(self.data, other)
        of_other = [f"--data_dir={other}", f"--output_dir={self.out}_2"]
        self.run_preset(*of_other)
        third = [f"--output_dir={self.out}_3", "--text_b_column=again"]
        recorded = self.run_preset(*third)
        self.assertEqual([record["task"] for record in recorded], ["data", "other", "data"])
        self.assertLen({record["key"] for record in recorded}, 3)
        folders = [record["flags"]["data_dir"] for record in recorded]
        self.assertEqual(folders, [self.data, other, self.data])
        self.assertEqual(self.run_preset(*of_other), recorded)

    def test_other_data_and_modules_of_one_name_get_separate_records(self):
        self.run_preset()
        self.write_data(["dev"], label=lambda row: "no" if row else "yes")
        more = ["--overwrite_output_dir"]
        first, second = self.run_preset(*more)
        self.assertEqual(first["data"]["train"], second["data"]["train"])
        self.assertNotEqual(first["data"]["dev"], second["data"]["dev"])
        with self.assertRaisesRegex(UserError, "different data"):
            records.check_same_data([first, second], "--records")
        module = os.path.join(self.folder, "elsewhere", os.path.basename(self.module))
        shutil.copytree(self.module, module)
        self.assertLen(self.run_preset(*more, f"--module={module}"), 2)  # The same files.
        with open(os.path.join(module, "note.txt"), "w"):
            pass
        self.assertLen(self.run_preset(*more, f"--module={module}"), 3)

    def test_finish_time_is_recorded_in_utc(self):
        self.addCleanup(time.tzset)
        with mock.patch.dict(os.environ, {"TZ": "XYZ-9"}):
            time.tzset()
            (record,) = self.run_preset()
        finished = datetime.datetime.strptime(record["finished"], "%Y-%m-%dT%H:%M:%S")
        ago = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None) - finished
        self.assertBetween(ago.total_seconds(), 0, 3600)

    def test_later_test_scores_are_added_to_the_record(self):
        (record,) = self.run_preset("--nodo_predict")
        self.assertNotIn("test_accuracy", record["scores"])
        (record,) = self.run_preset()
        right = np.mean([label == "yes" for _, label in read_rows(self.data, "test.tsv")[1:]])
        self.assertAlmostEqual(record["scores"]["test_accuracy"], right)
        self.assertEqual(self.run_preset(), [record])
        self.assertEqual(self.run_preset("--nodo_predict"), [record])
        self.assertLen(self.trained, 1)
        with open(os.path.join(self.records, "results.jsonl")) as reader:
            self.assertLen(reader.readlines(), 2)

    def test_rerun_records_scores_after_a_write_error(self):
        self.run_preset()
        self.probabilities = [0.75, 0.25]
        full = mock.patch.object(records, "append", side_effect=UserError("The disk is full."))
        with full, self.assertRaisesRegex(UserError, "full"):
            self.run_preset("--overwrite_output_dir")
        (record,) = self.run_preset()
        right = np.mean([label == "no" for _, label in read_rows(self.data, "dev.tsv")[1:]])
        self.assertAlmostEqual(record["scores"]["eval_accuracy"], right)

    def test_overwriting_removes_an_unfinished_better_model(self):
        better = os.path.join(self.out, "better_model")
        os.makedirs(better)
        self.run_preset("--overwrite_output_dir")
        self.assertFalse(os.path.exists(better))

    def test_damaged_scores_are_refused(self):
        self.run_preset()
        with open(os.path.join(self.out, "eval_results.json"), "w") as writer:
            writer.write("{}")
        with self.assertRaisesRegex(UserError, "eval_results.json is no eval_results.json .KeyErr"):
            self.run_preset()

    def test_scores_without_a_checkpoint_are_discarded(self):
        self.run_preset()
        for arguments in ([], ["--setting=conv_filters=100"]):
            for path in gfile.glob(f"{self.out}/model.ckpt-*") + [f"{self.out}/checkpoint"]:
                os.remove(path)
            # An interrupted training must not leave old scores next to its own weights.
            with mock.patch.object(self, "train", side_effect=InterruptedError), self.assertRaises(
                InterruptedError
            ):
                self.run_preset(*arguments)
            self.assertNotIn("eval_results.json", os.listdir(self.out))
            self.run_preset(*arguments)
        self.assertLen(self.trained, 3)


class RefusedTest(parameterized.TestCase, ScriptTestCase):
    def assert_refused(self, pattern, *arguments):
        with self.assertRaisesRegex(UserError, pattern):
            self.run_script(f"--module={self.module}", *arguments)

    @parameterized.parameters(
        ("--setting=hidden_layers=4: expected one of 0", "--setting=hidden_layers=4"),
        ("is given twice", "--setting=lowercase=true", "--setting=lowercase=false"),
        ("give only one", "--setting=module=a"),
        ("expected one value of lowercase", "--preset=airline", "--setting=lowercase=true,false"),
        ("^--search_only: --preset trains one", "--preset=airline", "--search_only"),
        ("^--trials: --preset trains one model", "--preset=airline", "--trials=20"),
        ("^--storage: --preset trains one model", "--preset=airline", "--storage=x.journal"),
    )
    def test_invalid_flags_are_refused(self, *case):
        self.assert_refused(*case)

    def test_missing_and_invalid_modules_are_refused(self):
        missing = os.path.join(self.folder, "missing")
        self.assert_refused("TF-Hub module .*missing: cannot be downloaded", f"--module={missing}")
        # One missing module among several is refused, too.
        both = f"--module={self.module},{missing}"
        self.assert_refused("TF-Hub module .*missing: cannot be downloaded", both)
        with mock.patch.object(gfile, "walk", side_effect=AssertionError("A large folder.")):
            self.assert_refused("expected a module in TensorFlow 1's", f"--module={self.data}")

    def test_invalid_folders_are_refused_before_training(self):
        damaged = os.path.join(self.folder, "damaged")
        os.makedirs(damaged)
        with open(os.path.join(damaged, "results.jsonl"), "w") as writer:
            writer.write("[]\n")
        for pattern, argument in (
            ("results.jsonl, line 1: expected the record", f"--records_dir={damaged}"),
            ("results.jsonl, line 1: expected the record", f"--output_dir={damaged}"),
            ("ram://folder: records need a local folder", "--records_dir=ram://folder"),
            ("--output_dir=ram://folder: a baseline needs a local", "--output_dir=ram://folder"),
        ):
            with mock.patch.object(Baseline, "train", side_effect=AssertionError):
                self.assert_refused(pattern, argument)
