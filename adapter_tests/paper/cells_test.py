"""Tests of cells.py: which records and settings a report is about, found by hand."""

import tensorflow.compat.v1 as tf

from adapter_bert.paper import cells
from adapter_bert.sweeps import selection
from adapter_bert.sweeps.selection import ADAPTERS, FULL, NO_BERT, TOP_LAYERS, VALIDATION
from adapter_tests.support.records import record, run


class GlueTest(tf.test.TestCase):
    def mnli(self, matched, mismatched, **flags):
        entry = record("MNLI", matched, **flags)
        entry["scores"].update(
            {
                "eval_mismatched_accuracy": mismatched,
                "eval_predicted_labels": 3.0,
                "eval_mismatched_predicted_labels": 1.0,
                "eval_majority_accuracy": 0.35,
                "eval_mismatched_majority_accuracy": 0.36,
            }
        )
        return entry

    def test_mnli_is_two_tasks_with_settings_of_their_own(self):
        records = [
            self.mnli(0.80, 0.70, learning_rate=1e-4),
            self.mnli(0.78, 0.75, learning_rate=1e-3),
        ]
        runs = cells.glue(selection.read(records, "accuracy"))
        found = cells.cells_of("adapters", runs, VALIDATION)
        self.assertEqual(
            [(c.task, round(c.points, 6), c.setting["learning_rate"]) for c in found],
            [("MNLI-m", 80.0, 1e-4), ("MNLI-mm", 75.0, 1e-3)],
        )
        self.assertEqual([cell.one_label for cell in found], [0, 1])
        majority = cells.majority_cells(found, VALIDATION)
        self.assertEqual(
            [(cell.task, cell.points) for cell in majority],
            [("MNLI-m", 35.0), ("MNLI-mm", 36.0)],
        )

    def test_samples_need_full_fine_tuning_and_other_scripts_do_not_count(self):
        sample = run("mnli_9k", 0.6)
        others = [run("airline", 0.5), run("CoLA", 0.5, script="run_baseline.py")]
        self.assertEqual(cells.glue([sample, *others]), [])
        full = run("mnli_9k", 0.7, tuning="full")
        self.assertEqual(cells.glue([sample, *others, full]), [sample, full])


class MethodTest(tf.test.TestCase):
    def test_adapters_are_the_paper_s_with_any_initial_weights(self):
        runs = [
            run("MRPC", 0.1, adapter_size=8),
            run("MRPC", 0.1, adapter_size=64, adapter_init_scale=0.01),
            run("MRPC", 0.1, adapter_size=64, adapter_depth=2),
            run("MRPC", 0.1, adapter_size=8, train_pooler=True, adapter_init_scale=0.01),
            run("MRPC", 0.1, adapter_size=64, train_pooler=True),
            run("MRPC", 0.1, adapter_size=8, adapter_depth=2, train_pooler=True),
            run("MRPC", 0.1, tuning="full"),
        ]
        self.assertEqual(cells.of_method(runs, ADAPTERS), runs[:2])
        self.assertEqual(cells.of_method(runs, ADAPTERS, (64, 256)), runs[1:2])
        self.assertEqual(cells.of_method(runs, ADAPTERS, pooler=True), runs[3:5])
        self.assertEqual(cells.of_method(runs, ADAPTERS, [64], pooler=True), runs[4:5])
        self.assertEqual(cells.of_method(runs, FULL), runs[6:])
        self.assertEqual(cells.of_method(runs, NO_BERT), [])

    def test_variable_fine_tuning_is_that_of_top_layers_or_of_all(self):
        top = {"tuning": "top_layers", "trained": 100}
        runs = [
            run("airline", 0.1, num_top_layers=2, **top),
            run("airline", 0.1, num_top_layers=6, tuning="top_layers", trained=1000),
            run("airline", 0.1, tuning="full"),
            run("sms_spam", 0.1, tuning="full"),  # Its top layers were not trained.
        ]
        for entry in runs:
            entry.scores["total_parameters"] = 1000
        self.assertEqual(cells.of_method(runs, cells.VARIABLE), runs[:3])
        self.assertEqual(cells.of_method(runs, FULL), runs[1:])
        self.assertEqual(cells.of_method(runs, TOP_LAYERS), runs[:2])


class EqualEpochsTest(tf.test.TestCase):
    def of(self, task, tuning, *epochs, **options):
        return [run(task, 0.5, tuning=tuning, num_train_epochs=n, **options) for n in epochs]

    def test_numbers_of_epochs_that_all_methods_share_stay(self):
        three, twenty = self.of("MRPC", "adapters", 3, 20)
        full = self.of("MRPC", "full", 3, 20)
        (top,) = self.of("MRPC", "top_layers", 3, num_top_layers=1)
        runs = [three, twenty, *full, top]
        self.assertEqual(cells.at_equal_epochs(runs), [three, full[0], top])
        self.assertEqual(cells.at_equal_epochs(runs[:4]), runs[:4])

    def test_tasks_without_shared_epochs_are_left_out(self):
        rte = [*self.of("RTE", "adapters", 3), *self.of("RTE", "full", 5)]
        cola = self.of("CoLA", "adapters", 3, 20)  # A single method shares all.
        self.assertEqual(cells.at_equal_epochs([*rte, *cola]), cola)

    def test_the_baseline_without_bert_stays(self):
        baseline = run("airline", 0.6, script="run_baseline.py")
        adapters, full = (self.of("airline", tuning, 3) for tuning in ("adapters", "full"))
        runs = [baseline, *adapters, *full, *self.of("airline", "full", 5)]
        self.assertCountEqual(
            map(str, cells.at_equal_epochs(runs)), map(str, [baseline, *adapters, *full])
        )

    def test_a_missing_flag_counts_as_the_default(self):
        squad = {"script": "run_squad.py", "score": "f1"}
        full = run("SQuAD", 60.0, tuning="full", **squad)  # 3 epochs.
        adapters = self.of("SQuAD", "adapters", 2, 3, **squad)
        found = cells.at_equal_epochs([full, *adapters])
        self.assertEqual(found, [full, adapters[1]])


class ComparableTest(tf.test.TestCase):
    def test_settings_with_few_values_of_the_flag_are_left_out(self):
        curve = [run("MRPC", 0.5, adapter_size=size) for size in (8, 64, 256)]
        # Lacks the largest size, which may have failed.
        nearly = [run("MRPC", 0.5, adapter_size=size, learning_rate=1e-4) for size in (8, 64)]
        other = [run("MRPC", 0.5, adapter_size=64, learning_rate=1e-3)]
        alone = [run("CoLA", 0.5, seed, adapter_size=64) for seed in (1, 2)]
        found = cells.comparable([*other, *curve, *nearly, *alone], "adapter_size")
        self.assertCountEqual(map(str, found), map(str, [*curve, *nearly, *alone]))
        single = [run("CoLA", 0.5, tuning="full", learning_rate=rate) for rate in (1e-5, 5e-5)]
        self.assertCountEqual(map(str, cells.comparable(single, None)), map(str, single))


class CurveTest(tf.test.TestCase):
    def levels(self, found):
        return [(cell.task, cell.level, round(cell.points, 6)) for cell in found]

    def test_curve_has_the_best_setting_of_each_level(self):
        runs = [
            run("MRPC", 0.5, adapter_size=8),
            run("MRPC", 0.6, adapter_size=8, num_train_epochs=20),
            run("MRPC", 0.8, adapter_size=64),
            run("MRPC", 0.7, adapter_size=64, num_train_epochs=20),
            run("CoLA", 0.3, adapter_size=64),
            run("MRPC", 0.9, tuning="full"),
        ]
        found = self.levels(cells.curve(runs, ADAPTERS))
        self.assertEqual(found, [("MRPC", 8, 60.0), ("CoLA", 64, 30.0), ("MRPC", 64, 80.0)])
        self.assertEqual(self.levels(cells.curve(runs, FULL)), [("MRPC", None, 90.0)])

    def test_curve_along_a_flag_needs_three_values_besides_0(self):
        scales = (0.001, 0.01, 0.1)
        runs = [
            *(run("MRPC", 0.5 + scale, adapter_init_scale=scale) for scale in scales),
            run("MRPC", 0.9, adapter_init_scale=0.0),
            *(run("RTE", 0.5, adapter_init_scale=scale) for scale in (0.0, *scales[:2])),
        ]
        found = self.levels(cells.curve(runs, ADAPTERS, "adapter_init_scale"))
        self.assertEqual(found, [("MRPC", s, 50 + 100 * s) for s in scales])
        runs = [run("MRPC", 0.5, learning_rate=rate) for rate in (1e-4, 1e-3)]
        self.assertEqual(cells.curve(runs, ADAPTERS, "learning_rate"), [])
        # The default rate is a third one.
        found = self.levels(cells.curve([*runs, run("MRPC", 0.6)], ADAPTERS, "learning_rate"))
        self.assertEqual(found, [("MRPC", 1e-4, 50.0), ("MRPC", 3e-4, 60.0), ("MRPC", 1e-3, 50.0)])


class VariantsTest(tf.test.TestCase):
    def values(self, runs):
        """Returns (label, size, task) → [score, the default's if it has one] of variants."""
        found = {}
        for cell, default in cells.variants(runs):
            pair = [one.points for one in (cell, default) if one]
            found[cell[:3]] = pair
        return found

    def test_variant_without_shared_settings_has_no_default(self):
        runs = [
            run("CoLA", 0.30),
            run("CoLA", 0.25, adapter_depth=2, num_train_epochs=20),
            run("CoLA", 0.35, adapter_depth=2, adapter_size=8),
            run("CoLA", 0.50, adapter_depth=3, adapter_init_scale=0.01),
            run("CoLA", 0.70, train_pooler=True),
            # The settings are shared on another task only.
            run("MRPC", 0.80),
            run("MRPC", 0.70, adapter_activation="tanh"),
            run("CoLA", 0.45, adapter_activation="tanh", num_train_epochs=3),
        ]
        self.assertAllClose(
            self.values(runs),
            {
                ("depth 2", 8, "CoLA"): (35.0,),
                ("depth 2", 64, "CoLA"): (25.0,),
                ("depth 3", 64, "CoLA"): (50.0,),
                ("default", 64, "MRPC"): (80.0, 80.0),
                ("activation tanh", 64, "MRPC"): (70.0, 80.0),
                ("activation tanh", 64, "CoLA"): (45.0,),
            },
        )

    def test_default_and_variant_are_at_their_best_shared_settings(self):
        rates = {"learning_rate": 1e-4}, {"learning_rate": 1e-3}
        runs = [
            run("CoLA", 0.30, **rates[0]),
            run("CoLA", 0.40, **rates[1]),
            run("CoLA", 0.90, num_train_epochs=20, **rates[0]),  # No variant has 20 epochs.
            run("CoLA", 0.25, adapter_depth=2, **rates[0]),
            run("CoLA", 0.35, adapter_activation="relu", **rates[0]),
            run("CoLA", 0.20, adapter_activation="relu", **rates[1]),
        ]
        self.assertAllClose(
            self.values(runs),
            {
                ("default", 64, "CoLA"): (40.0, 40.0),
                ("depth 2", 64, "CoLA"): (25.0, 30.0),
                ("activation relu", 64, "CoLA"): (35.0, 40.0),
            },
        )
