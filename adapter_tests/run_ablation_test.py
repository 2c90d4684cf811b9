"""Tests of run_ablation.py: each of its scores equals the score of an edited adapter."""

import contextlib
import csv
import io
import json
import os
import re
import shutil
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
import run_ablation
import run_classifier
import tuning
from adapter_bert.formats import task_adapter
from adapter_bert.shell import cli, errors
from adapter_bert.tasks.text import classification
from adapter_tests.support import command_lines, own_models, task_adapters, tiny
from adapter_tests.support.mutations import files_in
from adapter_tests.support.script_cases import ScriptTestCase, bert_flags, read, write


def parsed(*arguments):
    return command_lines.parsed(run_ablation.define_flags, *arguments)


class PartsTest(tf.test.TestCase):
    def test_span_gates_remove_each_span_of_layers(self):
        self.assertEqual(run_ablation.spans(3), [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)])
        self.assertAllEqual(
            run_ablation.span_gates(3),
            [[1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 0], [1, 0, 1], [1, 0, 0], [1, 1, 0]],
        )
        self.assertAllEqual(
            run_ablation.span_gates(3, (0, 2)),
            [[1, 1, 1], [0, 1, 1], [0, 1, 1], [0, 1, 0], [1, 1, 1], [1, 1, 0], [1, 1, 0]],
        )
        self.assertLen(run_ablation.span_gates(12), 79)

    def record(self, **changes):
        spans = [[0, 0, 0.75], [0, 1, 0.5], [0, 2, 0.25], [1, 1, 0.7496], [1, 2, 0.5], [2, 2, 0.5]]
        record = {"task": "MRPC", "num_layers": 3, "num_rows": 408, "score": "accuracy"}
        return {**record, "all": 0.75, "none": 0.25, "majority": 0.3, "spans": spans, **changes}

    def test_report_shows_changes_and_averages(self):
        # The middle layer counts in both halves: (0 + 0.04) / 2 and (0.04 + 25) / 2.
        self.assertEqual(
            run_ablation.report(self.record()),
            [
                "MRPC dev, 408 rows: accuracy 75.0%. Change in points without the adapters of"
                " layers (row) to (column):",
                "          0      1      2",
                "   0    0.0  -25.0  -50.0",
                "   1           0.0  -25.0",
                "   2                -25.0",
                "Removing one layer's adapters costs at most 25.0 points (layer 2); removing all"
                " leaves 25.0% (majority class: 30.0%). On average, a layer of the lower half costs"
                " 0.0, of the upper half 12.5.",
            ],
        )

    def test_report_covers_regression_and_a_single_layer(self):
        record = self.record(score="spearman", num_layers=1, spans=[[0, 0, 0.8]], none=0.8)
        del record["majority"]
        self.assertEqual(
            run_ablation.report(record)[2:],
            [
                "   0    5.0",
                "Removing one layer's adapters costs at most -5.0 points (layer 0); removing all"
                " leaves 0.8000. On average, a layer of the lower half costs -5.0, of the upper"
                " half -5.0.",
            ],
        )


class AblationTest(ScriptTestCase):
    """Provides a BERT of 3 layers and an adapter whose every layer changes the predictions."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bert3 = tiny.write_bert(
            os.path.join(cls.root, "bert3"), num_hidden_layers=3, initializer_range=0.4
        )
        cls.bert_flags = [*bert_flags(cls.bert3), "--feature_cache_dir=none"]
        cls.base_flags += cls.bert_flags
        cls.adapter = cls.balanced(cls.make("mrpc", task="MRPC"))

    @classmethod
    def balanced(cls, adapter):
        """Copies an adapter, to predict "1" for half of the dev set; returns the copy's folder."""
        output_dir = adapter + "_predicting"
        code, _, stderr = cls.call(output_dir, "--do_eval", "--adapter=" + adapter)
        assert code is None, stderr
        lines = read(os.path.join(output_dir, "dev_predictions.tsv")).splitlines()
        rows = csv.DictReader(lines, delimiter="\t")
        logits = np.log([[float(row["0"]), float(row["1"])] for row in rows])
        bias = np.array([0, np.median(logits[:, 0] - logits[:, 1])])
        return cls.edited(adapter, adapter + "_balanced", "output_bias", lambda _: bias)

    @classmethod
    def make(cls, name, training=(), **changes):
        """Saves a random adapter; returns its folder."""
        changes = {"adapter": modeling.AdapterConfig(3), "task": "own", **changes}
        training = {"precision": "float32", **dict(training)}
        made = own_models.build_task_adapter(cls.bert3, 1, training=training, **changes)
        folder = os.path.join(cls.root, name + "_adapter")
        tensors = {  # Large weights without biases; LayerNorms as in a BERT.
            name: 1.5 * value if value.ndim > 1 else np.full_like(value, name.endswith("gamma"))
            for name, value in made.tensors.items()
        }
        task_adapter.save(folder, made._replace(tensors=tensors))
        return folder

    @staticmethod
    def edited(folder, new_folder, part, edit):
        """Saves a copy of a task adapter with some tensors edited; returns its folder.

        Args:
          folder: the task adapter.
          new_folder: the copy.
          part: pattern for names of tensors; those that contain it are edited.
          edit: function from a tensor to the edited one.
        """
        made = task_adapter.load(folder)
        tensors = {
            name: edit(value).astype(np.float32) if re.search(part, name) else value
            for name, value in made.tensors.items()
        }
        task_adapter.save(new_folder, made._replace(tensors=tensors))
        return new_folder

    def without(self, adapter, first, last):
        """Returns the folder of an adapter whose layers from first to last add nothing."""
        layers = "|".join(map(str, range(first, last + 1)))
        part = f"layer_({layers})/.*/(weights2|biases2)"
        return self.edited(adapter, f"{adapter}_{first}_{last}", part, np.zeros_like)

    def scores(self, adapter, *arguments):
        """Returns the scores of run_classifier.py for an adapter on the dev set."""
        output_dir = os.path.join(self.folder, os.path.basename(adapter))
        self.succeed("--do_eval", "--adapter=" + adapter, *arguments, output_dir=output_dir)
        return json.loads(read(os.path.join(output_dir, "eval_results.json")))

    def ablate(self, *arguments, adapter=None):
        """Runs run_ablation.py; returns (exit code, report, stderr, stdout)."""
        report = []
        flags = ["--data_dir=" + self.data, "--output_dir=" + self.output_dir, *self.bert_flags]
        values = parsed(*flags, "--adapter=" + (adapter or self.adapter), *arguments)
        err, out = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
            code = errors.exit_code(lambda: report.extend(run_ablation.run(values)))
        return code, "\n".join(report), err.getvalue(), out.getvalue()

    def record(self, *arguments, adapter=None):
        """Returns ablation.json of a run that must succeed."""
        code, _, stderr, _ = self.ablate(*arguments, adapter=adapter)
        self.assertIsNone(code, stderr)
        return json.loads(read(self.path("ablation.json")))

    def test_scores_equal_scores_of_edited_adapters(self):
        original = run_classifier.create_model
        counted = mock.patch.object(run_classifier, "create_model", side_effect=original)
        with counted as graphs, cli.shown_log():  # Progress is shown with the log.
            code, report, stderr, shown = self.ablate("--eval_batch_size=7")
        self.assertIsNone(code, stderr)
        self.assertEqual(graphs.call_count, 1)
        self.assertRegex(shown, r"example 168/168  .* 00:00 left\n\Z")  # 24 rows, 7 times.
        found = json.loads(read(self.path("ablation.json")))
        spans, f1 = found.pop("spans"), found["other_scores"]["f1"].pop("spans")
        self.assertEqual([tuple(span[:2]) for span in spans], run_ablation.spans(3))
        for (first, last, accuracy), of_f1 in zip(spans, f1):
            expected = self.scores(self.without(self.adapter, first, last))
            self.assertEqual([first, last, expected["eval_f1"]], of_f1)
            self.assertEqual(expected["eval_accuracy"], accuracy)
        whole = self.scores(self.adapter)
        self.assertGreater(len({(a[2], b[2]) for a, b in zip(spans, f1)}), 2)
        for name in ("adapter", "setting", "data"):
            self.assertTrue(found.pop(name))
        described = task_adapter.describe(self.adapter)
        self.assertEqual(found.pop("backbone"), described.backbone.fingerprint)
        expected = {
            "task": "MRPC",
            "labels": ["0", "1"],
            "num_layers": 3,
            "num_rows": 24,
            "score": "accuracy",
            "all": whole["eval_accuracy"],
            "none": spans[2][2],
            "majority": 0.5,
            "other_scores": {"f1": {"all": whole["eval_f1"], "none": f1[2][2]}},
            "max_seq_length": 16,
            "precision": "float32",
        }
        self.assertEqual(found, expected)
        path = self.path("ablation.json")
        self.assertEqual(read(self.path("ablation.txt")) + "Ablation: " + path, report)

    def own_task(self, label, *arguments):
        """Writes a custom task with the first sentences of the tiny MRPC; returns its flags.

        Args:
          label: function from the index of a row to its label.
          *arguments: further flags.
        """
        folder = os.path.join(self.folder, "own")
        rows = read(os.path.join(self.data, "dev.tsv")).splitlines()[1:]
        lines = [f"{row.split(chr(9))[3]}\t{label(index)}\n" for index, row in enumerate(rows)]
        for split in ("train", "dev"):
            write(os.path.join(folder, split + ".tsv"), "text\tlabel\n" + "".join(lines))
        columns = ["--text_column=text", "--label_column=label"]
        return ["--task_name=custom", "--data_dir=" + folder, *columns, *arguments]

    def test_regression_scores_match_edited_adapters(self):
        task = self.own_task(lambda index: index % 5 - 1.5, "--label_type=float")
        adapter = self.make("numbers", kind="regression", labels=())
        found = self.record(*task, adapter=adapter)
        self.assertEqual((found["task"], found["score"]), ("own", "spearman"))
        self.assertEqual(found["labels"], [])
        self.assertNotIn("majority", found)
        pearson = found["other_scores"]["pearson"]
        expected = self.scores(adapter, *task)
        self.assertAllClose(found["all"], expected["eval_spearman"])
        self.assertAllClose(pearson["all"], expected["eval_pearson"])
        expected = self.scores(self.without(adapter, 1, 1), *task)
        self.assertAllClose(found["spans"][3], [1, 1, expected["eval_spearman"]])
        self.assertAllClose(pearson["spans"][3], [1, 1, expected["eval_pearson"]], rtol=1e-4)
        self.assertLen({found["all"], *(spearman for _, _, spearman in found["spans"])}, 7)

    def test_adapter_of_a_custom_task_supplies_its_name_and_columns(self):
        _, data_dir, *_ = self.own_task(lambda index: index % 5 - 1.5)
        answers = {"text_column": "text", "label_column": "label", "label_type": "float"}
        training = {"answers": answers}
        adapter = self.make("named", training, task="MRPC", kind="regression", labels=())
        found = self.record(data_dir, adapter=adapter)
        self.assertEqual((found["task"], found["score"]), ("MRPC", "spearman"))

    def test_only_layers_with_adapters_affect_the_score(self):
        task = self.own_task(lambda index: index % 5 - 1.5, "--label_type=float")
        adapter = self.make(
            "upper",
            kind="regression",
            labels=(),
            adapter=modeling.AdapterConfig(3, layers=(1,)),
            method=tuning.Tuning(layer_norms="adapted"),
        )
        found = self.record(*task, adapter=adapter)
        with_it, without_it = found["all"], found["none"]
        self.assertEqual(
            [score for _, _, score in found["spans"]],
            [with_it, without_it, without_it, without_it, without_it, with_it],
        )
        expected = self.scores(self.without(adapter, 1, 1), *task)["eval_spearman"]
        self.assertAllClose(without_it, expected)
        self.assertNotAllClose(with_it, without_it)

    def test_window_scores_match_edited_adapters(self):
        task = self.own_task(lambda index: index % 5 - 1.5, "--label_type=float")
        task.append("--max_seq_length=6")
        adapter = self.make(
            "windows",
            {"long_texts": "windows", "window_pooling": "mean"},
            kind="regression",
            labels=(),
            max_seq_length=6,
        )
        found = self.record(*task, adapter=adapter)
        self.assertEqual((found["num_rows"], found["long_texts"]), (24, "windows"))
        for first, last, spearman in [*found["spans"][:2], [None, None, found["all"]]]:
            folder = adapter if first is None else self.without(adapter, first, last)
            self.assertAllClose(spearman, self.scores(folder, *task)["eval_spearman"])
        again = self.scores(adapter, *task, "--long_texts=cut", "--overwrite_output_dir")
        self.assertNotAllClose(found["all"], again["eval_spearman"])
        code, _, stderr, _ = self.ablate(
            *task, "--long_texts=cut", "--window_pooling=max", adapter=adapter
        )
        self.assert_one_sentence(code, stderr, ["--window_pooling=max requires --long_texts"])

    def test_setting_digest_ignores_the_seed(self):
        first = task_adapters.description(training={"random_seed": 1, "train_batch_size": 8})
        second = task_adapters.description(training={"train_batch_size": 8, "random_seed": 2})
        other = task_adapters.description(training={"train_batch_size": 9, "random_seed": 2})
        digests = list(map(run_ablation._setting_digest, (first, second, other)))
        self.assertEqual(digests[0], digests[1])
        self.assertNotEqual(digests[1], digests[2])

    def test_multilabel_scores_match_edited_adapters(self):
        sets = ["a", "b", "a,b", "b"]
        task = self.own_task(lambda index: sets[index % 4], "--label_type=multilabel")
        adapter = self.make("sets", kind="multilabel", labels=("a", "b"))
        found = self.record(*task, adapter=adapter)
        self.assertEqual((found["score"], found["majority"]), ("accuracy", 0.5))
        expected = self.scores(self.without(adapter, 1, 1), *task)
        self.assertEqual(found["spans"][3], [1, 1, expected["eval_accuracy"]])
        micro = found["other_scores"]["micro_f1"]["spans"][3]
        self.assertEqual(micro, [1, 1, expected["eval_micro_f1"]])

    def test_finished_ablation_is_not_recomputed(self):
        found = self.record()
        write(self.path("ablation.json"), json.dumps({**found, "none": 0.125}))
        before = files_in(self.output_dir)
        code, report, stderr, shown = self.ablate()
        self.assertIsNone(code, stderr)
        self.assertIn("removing all leaves 12.5% ", report)
        self.assertEqual(shown, "")
        self.assertEqual(files_in(self.output_dir), before)
        self.assertEqual(self.record("--overwrite_output_dir"), found)

    def test_result_of_another_adapter_or_data_is_not_replaced(self):
        other, dev = self.without(self.adapter, 0, 0), os.path.join(self.folder, "data")
        tiny.write_mrpc(dev, seed=5)
        windows = ["--long_texts=windows", "--window_pooling=max"]
        both = "different long_texts and window_pooling"
        for recorded, cases in (
            (
                [],
                (
                    ([], other, "with a different adapter;"),
                    (["--data_dir=" + dev], None, "with a different data;"),
                    (["--max_seq_length=9"], other, "different adapter and max_seq"),
                    (windows, None, both),
                ),
            ),
            (windows, (([], None, both), (windows[:1], None, "different window_pooling"))),
        ):
            self.record(*recorded, "--overwrite_output_dir")
            before = files_in(self.output_dir)
            for arguments, adapter, part in cases:
                code, _, stderr, _ = self.ablate(*arguments, adapter=adapter)
                self.assert_one_sentence(code, stderr, [part, "--overwrite_output_dir"])
            self.assertEqual(files_in(self.output_dir), before)

    def test_output_dir_of_another_adapter_is_refused(self):
        shutil.copytree(self.adapter, self.path("adapter"))
        other = self.without(self.adapter, 0, 0)
        code, _, stderr, _ = self.ablate(adapter=other)
        self.assert_one_sentence(code, stderr, [self.output_dir, "another task adapter"])

    def test_interrupt_leaves_no_files(self):
        kind, calls = classification.KIND, []
        answers = kind.answers

        def killed(*arguments):
            calls.append(arguments)
            if len(calls) > 100:
                raise KeyboardInterrupt
            return answers(*arguments)

        with mock.patch.object(kind, "answers", killed):
            self.assertEqual(self.ablate()[0], 130)
        self.assertEqual(files_in(self.output_dir), {})

    def test_invalid_runs_are_refused(self):
        bare = self.make("bare", method="head")
        code, _, stderr, _ = self.ablate(adapter=bare)
        self.assert_one_sentence(code, stderr, [bare, "--tuning=head", "no adapters to remove"])
        with self.assertRaisesRegex(errors.UserError, "--adapter is not given"):
            run_ablation.run(parsed("--task_name=mrpc"))
        for arguments, part in (
            (bert_flags(self.bert), "the BERT (--bert, --init_checkpoint) is not the same"),
            (["--task_name=mnli"], "dev_matched.tsv"),
            (["--do_lower_case=false"], "--do_lower_case was true, is now false"),
            (["--max_seq_length=3"], "too short"),
            (["--output_dir=" + os.path.join(self.adapter, "adapter_config.json")], "written"),
        ):
            code, _, stderr, _ = self.ablate(*arguments)
            self.assert_one_sentence(code, stderr, [part])
        for content, part in (("[", "is not valid JSON"), ('{"task": "MRPC"}', "ablation.json")):
            write(self.path("ablation.json"), content)
            code, _, stderr, _ = self.ablate()
            self.assert_one_sentence(code, stderr, [self.path("ablation.json"), part])
