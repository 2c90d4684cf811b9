"""Tests of cross_validation.py: its scores, its files, and how it resumes."""

import json
import os
import shutil
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

import run_classifier
import run_tagger
from adapter_bert.formats import task_adapter
from adapter_bert.training import cross_validation, run
from adapter_tests.support import tiny
from adapter_tests.support.script_cases import AnyScriptTestCase, bert_flags, read, write


class SummaryTest(tf.test.TestCase):
    def test_mean_and_sample_deviation(self):
        folds = [{"f1": 0.5, "loss": 1.0}, {"f1": 0.7, "loss": 1.0}, {"f1": 0.9, "other": 1.0}]
        summary = cross_validation.summarize(folds)
        # 0.2² + 0 + 0.2², over two.
        expected = {"cross_validation_f1": 0.7, "cross_validation_f1_std": 0.2}
        self.assertAllClose(summary, expected)


class FoldsTestCase(AnyScriptTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        bert = tiny.write_bert(os.path.join(cls.root, "bert"))
        cls.data = os.path.join(cls.root, "data")
        cls.write_data()
        cls.base_flags = [
            *bert_flags(bert),
            "--max_seq_length=16",
            "--adapter_size=4",
            "--train_batch_size=8",
            "--num_train_epochs=1",
            "--learning_rate=0.03",
            "--feature_cache_dir=none",
            "--precision=float32",
        ]

    def json(self, *names):
        return json.loads(read(os.path.join(self.output_dir, *names)))


class TextsTest(FoldsTestCase):
    SCRIPT = run_classifier

    @classmethod
    def write_data(cls):
        random = np.random.RandomState(0)
        rows = [
            (" ".join(random.choice(tiny.WORDS, 4)), ("yes", "no")[i % 3 == 0]) for i in range(60)
        ]
        text = "".join(f"{text},{label}\n" for text, label in rows)
        write(os.path.join(cls.data, "train.csv"), "one,kind\n" + text)

    def flags(self, *more):
        columns = ["--text_column=one", "--label_column=kind"]
        return ["--task_name=custom", "--data_dir=" + self.data, *columns, *more]

    def test_scores_of_folds_are_summarized_and_the_adapter_is_of_all_rows(self):
        flags = self.flags("--folds=3")
        report = self.succeed(*flags)
        scores = [self.json(f"fold_{number}", "eval_results.json") for number in (1, 2, 3)]
        losses = [each["eval_loss"] for each in scores]
        found = self.json("cross_validation.json")
        self.assertAllClose(found["cross_validation_loss"], np.mean(losses))
        self.assertAllClose(found["cross_validation_loss_std"], np.std(losses, ddof=1))
        self.assertEqual([fold["loss"] for fold in found["folds"]], losses)
        self.assertRegex(report, r"accuracy of the 3 folds: [\d.]+, [\d.]+, [\d.]+\n")
        self.assertRegex(report, r"deviation of the folds: accuracy [\d.]+ ± [\d.]+, ")
        described = task_adapter.describe(self.path("adapter"))
        self.assertEqual(described.global_step, 60 // 8)
        for name, value in described.scores.items():
            self.assertEqual(value, found[name])
        self.assertIn("cross_validation_accuracy_std", described.scores)
        steps = [task_adapter.describe(self.path(f"fold_{i}/adapter")).global_step for i in (1, 2)]
        self.assertEqual(steps, [40 // 8] * 2)
        # It has seen all rows.
        self.refuse(["may have been trained on"], *self.flags("--do_eval"))
        # The same command trains nothing again.
        before = os.stat(self.path("fold_2/checkpoint")).st_mtime_ns
        again = self.succeed(*flags)
        self.assertEqual(os.stat(self.path("fold_2/checkpoint")).st_mtime_ns, before)
        self.assertEqual(self.json("cross_validation.json"), found)
        self.assertEqual(task_adapter.describe(self.path("adapter")), described)
        self.assertIn("3 folds", again)
        self.refuse(["fold_1", "--folds was 3, is now 4"], *self.flags("--folds=4"))
        # What the last run refuses, it refuses before the first fold.
        shutil.rmtree(self.path("fold_1"))
        self.refuse(["settings.json", "adapter_size"], *self.flags("--folds=3", "--adapter_size=3"))
        self.assertFalse(os.path.exists(self.path("fold_1")))

    def test_killed_cross_validation_resumes(self):
        save = run.Run.save

        def save_or_stop(self):
            if self.folder.path.endswith("fold_2"):
                raise KeyboardInterrupt
            save(self)

        with mock.patch.object(run.Run, "save", save_or_stop):
            code, _, _ = self.call(self.output_dir, *self.flags("--folds=2"))
        self.assertEqual(code, 130)
        self.assertFalse(os.path.exists(self.path("adapter")))
        self.assertTrue(os.path.exists(self.path("fold_1/checkpoint")))
        before = os.stat(self.path("fold_1/checkpoint")).st_mtime_ns
        self.succeed(*self.flags("--folds=2"))
        self.assertEqual(os.stat(self.path("fold_1/checkpoint")).st_mtime_ns, before)
        self.assertIn("cross_validation_loss", self.json("cross_validation.json"))

    def test_test_rows_are_set_apart_if_there_is_a_share(self):
        self.succeed(*self.flags("--folds=2", "--test_share=0.2", "--do_train", "--do_predict"))
        self.assertLen(read(self.path("predictions.tsv")).splitlines(), 1 + 12)
        self.assertEqual(task_adapter.describe(self.path("adapter")).global_step, 48 // 8)
        other = os.path.join(self.folder, "other")
        adapter = "--adapter=" + self.path("adapter")
        self.succeed(*self.flags(adapter, "--do_predict"), output_dir=other)
        self.assertEqual(
            read(os.path.join(other, "test_results.tsv")), read(self.path("test_results.tsv"))
        )

    def test_impossible_combinations_are_refused(self):
        for flags, parts in (
            (["--folds=1"], ["--folds=1"]),
            (["--folds=3", "--keep_best"], ["--folds", "--keep_best"]),
            (["--folds=3", "--early_stopping_patience=2"], ["--early_stopping_patience"]),
            (["--folds=3", "--eval_every_steps=2"], ["--eval_every_steps"]),
            (["--folds=3", "--calibrate"], ["--calibrate"]),
            (["--folds=3", "--do_eval"], ["--folds requires --do_train"]),
            (["--folds=3", "--dev_share=0.2"], ["--dev_share"]),
            (["--folds=61"], ["--folds=61: 60 rows"]),
            (["--folds=3", "--do_train", "--do_predict"], ["--test_share=0"]),
        ):
            self.refuse(parts, *self.flags(*flags))
        folder = tiny.write_mrpc(os.path.join(self.folder, "mrpc"))
        self.refuse(
            ["--folds", "the dev set of MRPC has a file"],
            *("--task_name=MRPC", "--data_dir=" + folder, "--folds=3"),
        )


class TagsTest(FoldsTestCase):
    SCRIPT = run_tagger

    @classmethod
    def write_data(cls):
        random = np.random.RandomState(0)
        words = [random.choice(tiny.WORDS, 4) for _ in range(48)]
        lines = [[f"{word} {'B-X' if word == 'cat' else 'O'}" for word in each] for each in words]
        write(os.path.join(cls.data, "train.txt"), "\n\n".join(map("\n".join, lines)) + "\n")

    def test_folds_of_sentences(self):
        self.succeed("--data_dir=" + self.data, "--folds=2")
        found = self.json("cross_validation.json")
        f1 = [self.json(f"fold_{number}", "eval_results.json")["eval_f1"] for number in (1, 2)]
        self.assertAllClose(found["cross_validation_f1"], np.mean(f1))
        self.assertEqual(task_adapter.describe(self.path("adapter")).global_step, 48 // 8)
        self.assertEqual(task_adapter.describe(self.path("fold_1/adapter")).global_step, 24 // 8)
