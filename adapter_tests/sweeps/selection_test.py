"""Tests of selection.py on hand-made records, with choices and errors computed by hand."""

import math

import tensorflow.compat.v1 as tf

from adapter_bert.sweeps import selection
from adapter_bert.sweeps.selection import TEST, VALIDATION
from adapter_tests.support.records import record, run, seeds


def choose_mean(records, split=VALIDATION):
    return selection.choose_mean(selection.read(records), split)


def choose_best(records, split=VALIDATION):
    return selection.choose_best(selection.read(records), split)


class PointsTest(tf.test.TestCase):
    def test_fractions_are_scaled_and_squad_percents_kept(self):
        found = run("CoLA", 0.25, score="matthews").points(VALIDATION)
        self.assertAlmostEqual(found, 25.0)
        found = run("airline", 0.5, test=0.75).points(TEST)
        self.assertAlmostEqual(found, 75.0)
        squad = run("SQuAD", 63.5, score="f1", script="run_squad.py")
        self.assertEqual(squad.points(VALIDATION), 63.5)

    def test_missing_and_nan_scores_give_no_points(self):
        self.assertIsNone(run("CoLA", 0.25).points(TEST))
        self.assertIsNone(run("CoLA", math.nan).points(VALIDATION))
        self.assertIsNone(run("CoLA", 0.1)._replace(scores={}).points(VALIDATION))


class OneLabelTest(tf.test.TestCase):
    def test_runs_that_predict_one_label_are_known_by_their_scores(self):
        tagger, spans = {"script": "run_tagger.py"}, {"eval_f1": 0.5}
        for options, scores, expected in (
            ({}, {}, False),
            ({}, {"eval_predicted_labels": 1.0}, True),
            ({}, {"eval_predicted_labels": 2.0}, False),
            ({"script": "run_baseline.py"}, {"eval_predicted_labels": 1.0}, True),
            (tagger, {"eval_predicted_labels": 1.0}, True),
            # A type of spans is predicted besides O.
            (tagger, {"eval_predicted_labels": 1.0, **spans}, False),
            (tagger, {"eval_predicted_labels": 0.0, **spans}, True),
        ):
            entry = run("task", 0.5, **options)
            entry.scores.update(scores)
            self.assertEqual(entry.predicts_one_label(), expected, (options, scores))
            self.assertFalse(entry.predicts_one_label(TEST))


class MeanTest(tf.test.TestCase):
    def test_mean_and_standard_error_equal_hand_computed_values(self):
        # Deviations -2, -2, 4: the sample variance is 24 / 2.
        self.assertAllClose(selection.mean_over_seeds([1.0, 1.0, 7.0]), (3.0, 2.0, 3))
        self.assertEqual(selection.mean_over_seeds([4.0]), (4.0, None, 1))


class ChooseMeanTest(tf.test.TestCase):
    def test_setting_is_chosen_by_validation_score(self):
        records = [
            *seeds("airline", [0.5, 0.6, 0.7], [0.1, 0.2, 0.3], learning_rate=1e-4, trained=7),
            *seeds("airline", [0.9, 0.3, 0.3], [0.8, 0.9, 1.0], learning_rate=1e-3),
        ]
        found = choose_mean(records, TEST)
        self.assertEqual(found.score, "test_accuracy")
        self.assertAlmostEqual(found.points, 20.0)
        self.assertAlmostEqual(found.sem, 10 / math.sqrt(3))
        self.assertEqual((found.seeds, found.trained_parameters, found.share), (3, 7, 7 / 10_000))
        self.assertEqual(
            found.setting, {"adapter_size": 64, "learning_rate": 1e-4, "num_train_epochs": 5}
        )

    def test_settings_are_compared_over_shared_seeds(self):
        # Both rates were tried with seed 1. Then only the better one was tried with seeds 2 and 3.
        records = [
            *seeds("MRPC", [0.80, 0.70, 0.72], learning_rate=1e-4),
            *seeds("MRPC", [0.79], learning_rate=1e-3),
        ]
        found = choose_mean(records)
        self.assertEqual(found.setting["learning_rate"], 1e-4)
        self.assertEqual(found.seeds, 3)
        self.assertAlmostEqual(found.points, 74.0)

    def test_worse_setting_does_not_reduce_shared_seeds(self):
        records = [
            *seeds("MRPC", [0.80, 0.70, 0.70], learning_rate=1e-4),
            *seeds("MRPC", [0.79, 0.79, 0.79], learning_rate=3e-4),
            *seeds("MRPC", [0.10], learning_rate=1e-3),  # Abandoned after its first seed.
        ]
        self.assertEqual(choose_mean(records).setting["learning_rate"], 3e-4)

    def test_tie_goes_to_the_setting_with_more_seeds(self):
        records = [
            *seeds("MRPC", [0.86, 0.86, 0.86], adapter_size=64),
            *seeds("MRPC", [0.87, 0.80, 0.80], adapter_size=8, learning_rate=1e-4),
            *seeds("MRPC", [0.87], adapter_size=8, learning_rate=1e-3),
        ]
        choice = choose_mean(records)
        self.assertAlmostEqual(choice.points, 86.0)
        self.assertEqual((choice.setting["adapter_size"], choice.seeds), (64, 3))

    def test_settings_that_tie_on_permuted_seeds_are_chosen_from(self):
        # In points, 0.2 + 0.3 + 0.1 is 0.6, and 0.2 + 0.1 + 0.3 is more.
        records = [
            record("MRPC", thousandths / 1000, seed, learning_rate=rate)
            for rate, scores in ((1e-4, {1: 2, 2: 3, 3: 1}), (1e-3, {1: 2, 3: 3, 2: 1}))
            for seed, thousandths in scores.items()
        ]
        self.assertAlmostEqual(choose_mean(records).points, 0.2)

    def test_all_seeds_are_compared_if_settings_share_no_seed(self):
        records = [
            record("MRPC", 0.8, 1, learning_rate=1e-4),
            record("MRPC", 0.9, 2, learning_rate=1e-3),
        ]
        self.assertEqual(choose_mean(records).setting["learning_rate"], 1e-3)

    def test_trained_is_an_integer_and_baseline_has_no_share(self):
        # All scores are floats, even a number of parameters.
        found = choose_mean([record("MRPC", 0.8, trained=22713986.0)])
        self.assertEqual(repr(found.trained_parameters), "22713986")
        found = choose_mean([record("airline", 0.8, script="run_baseline.py")])
        self.assertIsNone(found.share)

    def test_seeds_of_a_baseline_are_the_runs_of_one_model(self):
        search = record("airline", 0.8, script="run_baseline.py", trials=60)
        same = record("airline", 0.6, 2, script="run_baseline.py", preset="airline")
        other = record("airline", 0.9, 2, script="run_baseline.py", preset="airline")
        other["settings"] = {"hidden_size": 128}
        shorter = record("airline", 0.7, script="run_baseline.py", max_words=64)
        for records, points, num_seeds in (
            ([search, same], 70, 2),
            ([search, other], 90, 1),
            ([search, shorter], 80, 1),
        ):
            found = choose_mean(records)
            self.assertEqual((found.points, found.seeds), (points, num_seeds))

    def test_explicit_and_implied_default_seed_count_once(self):
        records = [record("CoLA", 0.6), record("CoLA", 0.6, seed=12345)]
        del records[0]["flags"]["random_seed"]
        self.assertEqual(choose_mean(records).seeds, 1)
        self.assertEqual(choose_best(records).seeds, 1)

    def test_setting_without_a_score_is_not_chosen(self):
        records = [
            record("airline", 0.9, test=None, learning_rate=1e-3),
            record("airline", 0.5, test=0.4, learning_rate=1e-4),
        ]
        self.assertAlmostEqual(choose_mean(records, TEST).points, 40.0)
        self.assertIsNone(choose_mean(records[:1], TEST))
        self.assertIsNone(choose_mean([]))

    def test_default_flags_and_stages_do_not_split_a_setting(self):
        records = [
            record("MRPC", 0.6, 1, adapter_size=64, do_train=True, do_eval=True),
            record("MRPC", 0.8, 2, tuning="adapters", do_predict=True, adapter_activation="gelu"),
        ]
        found = choose_mean(records)
        self.assertEqual(found.seeds, 2)
        self.assertAlmostEqual(found.points, 70.0)
        self.assertAlmostEqual(found.sem, 10.0)

    def test_explicit_default_schedule_does_not_split_a_setting(self):
        for tuning, rate, epochs in (("adapters", 3e-4, 5), ("full", 5e-5, 3)):
            records = [
                record("MRPC", 0.9, 1, tuning=tuning),
                record("MRPC", 0.8, 2, tuning=tuning, learning_rate=rate),
                record("MRPC", 0.7, 3, tuning=tuning, num_train_epochs=epochs),
            ]
            found = choose_mean(records)
            self.assertEqual(found.seeds, 3)
            self.assertAlmostEqual(found.points, 80.0)

    def test_repeated_run_of_a_seed_counts_once(self):
        records = [record("MRPC", 0.6), record("MRPC", 0.6, adapter_size=64)]
        self.assertEqual(choose_mean(records).seeds, 1)


class ChooseBestTest(tf.test.TestCase):
    def test_best_run_is_chosen_over_settings_and_seeds(self):
        records = [
            *seeds("airline", [0.5, 0.6, 0.7], [0.1, 0.2, 0.3], adapter_size=8),
            *seeds("airline", [0.9, 0.3], [0.4, 0.9], adapter_size=256),
        ]
        found = choose_best(records, TEST)
        self.assertAlmostEqual(found.points, 40.0)
        self.assertIsNone(found.sem)
        self.assertEqual(found.seeds, 3)
        self.assertEqual((found.setting["adapter_size"], found.setting["random_seed"]), (256, 1))
        self.assertIsNone(choose_best(records[:0]))


class CriterionTest(tf.test.TestCase):
    def records(self):
        """Returns records of CoLA; the first rate is the best by score, the second by accuracy."""
        found = []
        for rate, score, accuracy in ((1e-4, 0.5, 0.7), (1e-3, 0.4, 0.8)):
            entry = record("CoLA", score, score="matthews", learning_rate=rate)
            entry["scores"]["eval_accuracy"] = accuracy
            found.append(entry)
        return found

    def test_accuracy_selects_but_the_task_score_is_reported(self):
        for criterion, rate, value in (("score", 1e-4, 50.0), ("accuracy", 1e-3, 40.0)):
            runs = selection.read(self.records(), criterion)
            for choose in (selection.choose_mean, selection.choose_best):
                found = choose(runs)
                self.assertEqual(found.setting["learning_rate"], rate)
                self.assertAlmostEqual(found.points, value)
                self.assertEqual(found.score, "eval_matthews")

    def test_tasks_without_accuracy_are_selected_by_score(self):
        tagger = record("CoNLL", 0.5, score="f1", script="run_tagger.py")
        tagger["scores"]["eval_accuracy"] = 0.9  # Accuracy per word.
        for entry in (tagger, record("STS-B", 0.8, score="spearman")):
            (found,) = selection.read([entry], "accuracy")
            self.assertEqual(found.criterion_points, found.points(VALIDATION))

    def test_chosen_grids_hold_best_setting_of_each_curve_point(self):
        records = [
            *seeds("MRPC", [0.8, 0.9], adapter_size=8, learning_rate=1e-4),
            *seeds("MRPC", [0.7, 0.7], adapter_size=8, learning_rate=1e-3),
            *seeds("MRPC", [0.6, 0.6], adapter_size=64, learning_rate=1e-3),
            *seeds("MRPC", [0.9, 0.9], tuning="full", learning_rate=1e-5),
            *seeds("MRPC", [0.9, 0.9], adapter_size=8, learning_rate=1e-2, train_pooler=True),
            *seeds("CoLA", [0.9, 0.9], adapter_size=8, learning_rate=1e-2),
        ]
        found = selection.chosen_grids(records, "score")
        self.assertCountEqual(
            [(g["task_name"], g.get("adapter_size"), g["learning_rate"]) for g in found],
            [
                *(("MRPC", 8, 1e-4), ("MRPC", 64, 1e-3), ("MRPC", None, 1e-5)),
                *(("MRPC", 8, 1e-2), ("CoLA", 8, 1e-2)),
            ],
        )
        self.assertEqual({grid["script"] for grid in found}, {"run_classifier.py"})


class AccuracyTest(tf.test.TestCase):
    def test_accuracy_replaces_the_score_of_classifiers_that_have_it(self):
        cola = run("CoLA", 0.3, score="matthews")
        sts, squad = (
            run("STS-B", 0.8, score="spearman"),
            run("SQuAD", 60.0, score="f1", script="run_squad.py"),
        )
        tagger = run("conll", 0.5, score="f1", script="run_tagger.py")
        for entry in (cola, tagger):
            entry.scores["eval_accuracy"] = 0.7
        names = [entry.score for entry in selection.by_accuracy([cola, sts, squad, tagger])]
        self.assertEqual(names, ["accuracy", "spearman", "f1", "f1"])


class FullTest(tf.test.TestCase):
    def test_all_top_layers_are_also_full_fine_tuning(self):
        top = {"tuning": "top_layers", "script": "run_squad.py", "score": "f1"}
        # BERT-Base has 108.9 million parameters without the pooler, and a pooler of 0.6 million.
        runs = [
            run("SQuAD", 80.0, num_top_layers=11, trained=78_000_000, **top),
            run("SQuAD", 81.0, num_top_layers=12, trained=108_900_000, **top),
            run("SQuAD", 79.0, num_top_layers=12, **top),  # Its parameters were not recorded.
        ]
        for entry in runs[:2]:
            entry.scores["total_parameters"] = 109_500_000
        self.assertEqual([entry.is_full for entry in runs], [False, True, False])

    def test_implied_layer_norms_do_not_change_the_design(self):
        for flags, value, is_same in (
            ({}, "all", True),
            ({}, "adapted", False),
            ({}, "none", False),
            ({"adapter_layers": "6-11"}, "adapted", True),
            ({"adapter_layers": "6-11"}, "all", False),
        ):
            expected = flags if is_same else {**flags, "layer_norms": value}
            found = run("MRPC", 0.1, layer_norms=value, **flags)
            self.assertEqual(found.setting.design, expected, value)
