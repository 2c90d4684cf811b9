"""Tests of claims.py: differences, errors and verdicts, computed by hand."""

import math

import tensorflow.compat.v1 as tf

from adapter_bert.paper import claims, estimates
from adapter_tests.support.records import ABLATION, record, seeds


def swept(task, scores, **flags):
    """Returns records of two rates × two numbers of epochs; the first pair has the given scores.

    Two equal scores would leave a claim open, so equal scores become three.
    """
    scores = scores if len(set(scores)) > 1 else [scores[0]] * 3
    return [
        entry
        for penalty, (rate, epochs) in zip((0, 0.1, 0.1, 0.1), ((1, 3), (1, 9), (2, 3), (2, 9)))
        for entry in seeds(
            task,
            [score - penalty for score in scores],
            learning_rate=rate * 1e-4,
            num_train_epochs=epochs,
            **flags,
        )
    ]


def of_one_seed(records):
    return [entry for entry in records if entry["flags"]["random_seed"] == 1]


def rows(records, ablations=()):
    return {row.claim: row for row in claims.rows(records, list(ablations))}


CHOSEN = "GLUE: adapters, best size per task, minus full fine-tuning"
POOLER = "GLUE: adapters, best size per task, pooler trained, minus full fine-tuning"
FIXED = "GLUE: adapters of size 64, minus full fine-tuning"


class DifferenceTest(tf.test.TestCase):
    def test_difference_has_mean_and_error_over_common_tasks(self):
        # MRPC: 70 − 72 with standard errors 2 and 1; RTE: 61 − 60 with 0 and 1.
        first = claims.side(
            "a",
            [
                *seeds("MRPC", [0.68, 0.72], trained=100),
                *seeds("RTE", [0.61, 0.61], trained=300),
                *seeds("QNLI", [0.9, 0.9]),
            ],
        )
        second = claims.side("b", [*seeds("MRPC", [0.71, 0.73]), *seeds("RTE", [0.59, 0.61])])
        by_task, share = claims.difference(first, second)
        mean = estimates.mean(by_task.values())
        self.assertAlmostEqual(mean.value, (-2 + 1) / 2)
        self.assertAlmostEqual(mean.sem, math.sqrt(4 + 1 + 0 + 1) / 2)
        self.assertEqual(list(by_task), ["MRPC", "RTE"])
        self.assertAlmostEqual(by_task["MRPC"].sem, math.sqrt(4 + 1))
        self.assertAlmostEqual(share, (0.01 + 0.03) / 2)

    def test_confidence_intervals_follow_student_and_welch(self):
        # Mean 3, standard error 2 / sqrt(3); Student's t with 2 degrees of freedom is 4.303.
        first = claims.side("a", seeds("MRPC", [0.01, 0.03, 0.05])).estimate("MRPC")
        self.assertAllClose([first.moved(-1), first.moved(1)], [3 - 4.968, 3 + 4.968], atol=1e-3)
        # Squared errors of 4/3 and 1/16, with 2 and 1 degrees of freedom.
        second = claims.side("b", seeds("MRPC", [0.02, 0.025])).estimate("MRPC")
        expected = (4 / 3 + 1 / 16) ** 2 / ((4 / 3) ** 2 / 2 + (1 / 16) ** 2)
        self.assertAlmostEqual(first.minus(second).freedom, expected)

    def test_several_differences_are_bonferroni_corrected(self):
        # 1.6 ± 0.51: Student's t with 4 degrees of freedom is 2.78, or 3.50 for two differences.
        values = [0.2, 0.8, 1.6, 2.4, 3.0]
        for sign, verdict in ((1, estimates.at_most), (-1, estimates.at_least)):
            beyond = estimates.over_seeds([sign * value for value in values])
            self.assertEqual(verdict([beyond], 0), "differs")
            self.assertEqual(verdict([beyond, estimates.NOTHING], 0), "unclear")
            # "agrees" requires that all estimates agree, so it needs no correction.
            self.assertEqual(verdict([beyond, estimates.NOTHING], sign * 3.1), "agrees")

    def test_error_needs_two_seeds_and_difference_a_common_task(self):
        first = claims.side("a", [record("MRPC", 0.7)])
        by_task, _ = claims.difference(first, claims.side("b", [record("MRPC", 0.6)]))
        self.assertIsNone(by_task["MRPC"].sem)
        self.assertEqual(str(by_task["MRPC"]), "+10.0")
        other = claims.side("b", [record("RTE", 0.6)])
        self.assertEqual(claims.difference(first, other), ({}, None))


class VerdictTest(tf.test.TestCase):
    def records(self, adapters=(0.809, 0.811), **flags):
        return [
            entry
            for task in ("MRPC", "QNLI", "RTE")
            for entry in (
                *swept(task, [0.81, 0.81], tuning="full", trained=10_000),
                *swept(task, adapters, adapter_size=64, trained=360, **flags),
            )
        ]

    def test_complete_sweep_gets_a_verdict(self):
        row = rows(self.records())[CHOSEN]
        # Three tasks, each with a standard error of 0.1.
        self.assertEqual(
            row.ours,
            "0.0 ± 0.1 (MRPC, QNLI, RTE), 3.60% trained; only size 64 on MRPC, QNLI, RTE",
        )
        self.assertEqual(row.agrees_if, "at least −0.4, at most 3.6% trained")
        self.assertEqual((row.paper, row.settings), ("−0.4, 3.6% trained", "4 per method and task"))
        self.assertEqual((row.seeds, row.verdict), ("2 to 3", "agrees"))

    def test_epochs_missing_from_one_method_are_ignored(self):
        expected = rows(self.records())
        flags = {"adapter_size": 64, "learning_rate": 1, "trained": 360}
        longer = [record("MRPC", 0.99, seed, num_train_epochs=20, **flags) for seed in (1, 2)]
        self.assertEqual(rows(self.records() + longer)[CHOSEN], expected[CHOSEN])
        self.assertEqual(rows(self.records() + longer)[FIXED], expected[FIXED])

    def test_difference_below_the_limit_differs(self):
        found = rows(self.records(adapters=(0.80, 0.80)))
        self.assertEqual((found[CHOSEN].ours[:4], found[CHOSEN].verdict), ("−1.0", "differs"))
        found = rows(self.records(adapters=(0.804, 0.804)))
        self.assertEqual((found[CHOSEN].verdict, found[FIXED].verdict), ("differs", "agrees"))

    def test_limit_within_the_confidence_interval_is_unclear(self):
        # −0.8 ± 0.3: three tasks, each with a standard error of 0.5. Student's t is 3.18.
        found = rows(self.records(adapters=(0.797, 0.807)))
        self.assertEqual(
            (found[CHOSEN].ours[:10], found[CHOSEN].verdict), ("−0.8 ± 0.3", "unclear")
        )
        found = rows(self.records(adapters=(0.791, 0.801)))  # −1.4 ± 0.3
        self.assertEqual((found[CHOSEN].verdict, found[FIXED].verdict), ("differs", "unclear"))
        found = rows(self.records(adapters=(0.80, 0.82)))  # 0.0 ± 0.6
        self.assertEqual((found[CHOSEN].verdict, found[FIXED].verdict), ("unclear", "unclear"))
        found = rows(self.records(adapters=(0.806, 0.814)))  # 0.0 ± 0.2
        self.assertEqual((found[CHOSEN].verdict, found[FIXED].verdict), ("unclear", "agrees"))

    def test_training_more_parameters_than_the_paper_differs(self):
        records = self.records()
        for entry in records:
            if "tuning" not in entry["flags"]:
                entry["scores"]["trained_parameters"] = 370
        self.assertEqual(rows(records)[CHOSEN].verdict, "differs")

    def test_incomplete_sweep_leaves_the_claim_open(self):
        for lacking, keep in (
            ("one learning rate", lambda flags: flags["learning_rate"] == 1e-4),
            ("one number of epochs", lambda flags: flags["num_train_epochs"] == 3),
            ("one seed", lambda flags: flags["random_seed"] == 1),
        ):
            records = [
                entry
                for entry in self.records()
                if entry["flags"].get("tuning") == "full" or keep(entry["flags"])
            ]
            self.assertEqual(rows(records)[CHOSEN].verdict, f"open: {lacking}")

    def test_two_equal_scores_leave_the_claim_open(self):
        records = [
            entry
            for entry in self.records()
            if entry["flags"].get("tuning") != "full" or entry["flags"]["random_seed"] < 3
        ]
        self.assertEqual(rows(records)[CHOSEN].verdict, "open: two equal scores")

    def test_incomplete_tasks_are_ignored_if_enough_remain(self):
        records = [
            *self.records(),
            record("CoLA", 0.5, tuning="full"),
            record("CoLA", 0.1, adapter_size=64),
        ]
        row = rows(records)[CHOSEN]
        self.assertEqual((row.ours[:28], row.verdict), ("0.0 ± 0.1 (MRPC, QNLI, RTE),", "agrees"))
        records = [r for r in records if r["task"] not in ("QNLI", "RTE")]
        row = rows(records)[CHOSEN]
        self.assertEqual(row.ours[:20], "−20.0 (CoLA, MRPC), ")
        self.assertEqual(
            row.verdict,
            "open: one learning rate (CoLA), one number of epochs (CoLA), one seed (CoLA), 2 tasks",
        )

    def test_each_adapter_size_needs_a_complete_sweep(self):
        flags = {"adapter_size": 8, "learning_rate": 1e-4, "num_train_epochs": 3}
        records = [*self.records(), record("MRPC", 0.1, **flags)]
        row = rows(records)[CHOSEN]
        self.assertRegex(row.verdict, "^open: one learning rate")
        self.assertEndsWith(row.ours, "; only size 64 on QNLI, RTE")
        self.assertEqual(rows(records)[FIXED].verdict, "agrees")

    def test_sweep_requires_equal_other_settings(self):
        records = self.records()
        for entry in records:
            if entry["flags"]["num_train_epochs"] == 9:
                entry["flags"]["adapter_init_scale"] = 0.01
        self.assertEqual(rows(records)[CHOSEN].verdict, "open: one number of epochs")

    def test_uncrossed_rates_and_epochs_leave_the_claim_open(self):
        records = [
            entry
            for entry in self.records()
            if (entry["flags"]["learning_rate"], entry["flags"]["num_train_epochs"])
            in ((1e-4, 3), (2e-4, 9))
        ]
        row = rows(records)[CHOSEN]
        self.assertEqual(row.verdict, "open: one learning rate, one number of epochs")

    def test_adapters_with_trained_pooler_get_a_separate_row(self):
        pooler = [r for r in self.records(train_pooler=True) if "train_pooler" in r["flags"]]
        found = rows([*self.records(), *pooler])
        self.assertEqual(found[POOLER].verdict, "agrees")
        del found[POOLER]
        self.assertIn(CHOSEN, found)
        self.assertNotIn(POOLER, rows(self.records()))

    def test_layer_norms_are_compared_by_accuracy(self):
        for spread, verdict in ((0.003, "agrees"), (0.03, "unclear")):
            records = []
            for tuning, accuracies in (
                ("layer_norm", (0.70 - spread, 0.70 + spread)),
                ("full", (0.75, 0.75, 0.75)),
            ):
                for task in ("CoLA", "MRPC"):
                    scores = [0.3 + accuracy / 1000 for accuracy in accuracies]
                    for entry in swept(task, scores, score="matthews", tuning=tuning):
                        seed = entry["flags"]["random_seed"]
                        entry["scores"]["eval_accuracy"] = accuracies[seed - 1]
                        records.append(entry)
            row = rows(records)["LayerNorms alone, minus full fine-tuning, accuracy"]
            # The standard error of two scores is half of their difference.
            error = f"−5.0 ± {100 * spread:.1f}"
            self.assertEqual(row.ours, f"{error} (CoLA), {error} (MRPC)")
            self.assertEqual(row.verdict, verdict)

    def test_worst_task_decides_a_claim_about_each_task(self):
        for top, verdict in ((0.45, "agrees"), (0.55, "differs")):
            flags = {"tuning": "top_layers", "num_top_layers": 1, "score": "accuracy"}
            records = [
                *swept("CoLA", [0.1, 0.1], **flags),
                *swept("CoLA", [0.5, 0.5], adapter_size=64, score="accuracy"),
                *swept("MRPC", [top, top], **flags),
                *swept("MRPC", [0.5, 0.5], adapter_size=64, score="accuracy"),
            ]
            row = rows(records)["Top layer alone, minus adapters of size 64, accuracy"]
            self.assertEqual(row.ours[:19], "−40.0 ± 0.0 (CoLA),")
            self.assertEqual(row.verdict, verdict)

    def test_sizes_agree_if_their_mean_accuracies_are_close(self):
        for accuracies, verdict in (((0.80, 0.802), "agrees"), ((0.79, 0.812), "unclear")):
            records = [
                entry
                for task in ("MRPC", "QNLI", "RTE")
                for size, scores in ((8, [0.8, 0.8]), (64, accuracies), (256, [0.8, 0.8]))
                for entry in swept(task, scores, adapter_size=size, score="accuracy")
            ]
            row = rows(records)["GLUE: mean accuracy of adapters by size"]
            self.assertEqual(row.verdict, verdict)
        # Size 64 has ± 1.1 on each of three tasks.
        self.assertEqual(
            row.ours, "size 8: 80.0 ± 0.0, 64: 80.1 ± 0.6, 256: 80.0 ± 0.0 (MRPC, QNLI, RTE)"
        )

    def test_variants_are_compared_with_the_default(self):
        records = [
            *swept("MRPC", [0.809, 0.811], adapter_size=64),
            *swept("MRPC", [0.70, 0.70], adapter_size=64, adapter_parallel=True),
            *swept("MRPC", [0.79, 0.79], adapter_size=64, adapter_residual=False),
        ]
        row = rows(records)["2 variants of the adapter minus the default: worst to best"]
        self.assertEqual(row.ours, "−11.0 ± 0.1 to −2.0 ± 0.1 (MRPC)")
        self.assertEqual(row.verdict, "agrees")
        # Only settings that the default was also trained with count.
        longer = record("MRPC", 0.9, adapter_size=64, adapter_parallel=True, num_train_epochs=20)
        self.assertEqual(rows([*records, longer])[row.claim], row)
        # A design with one seed does not count.
        deep = of_one_seed(swept("MRPC", [0.9], adapter_size=64, adapter_depth=3))
        self.assertEqual(rows([*records, *deep])[row.claim], row)
        # A design that may be better than the best one makes the verdict unclear.
        records += swept("MRPC", [0.76, 0.80], adapter_size=64, adapter_depth=2)
        row = rows(records)["3 variants of the adapter minus the default: worst to best"]
        self.assertEndsWith(row.ours, " to −2.0 ± 0.1 (MRPC)")
        self.assertEqual(row.verdict, "unclear")

    def test_variants_may_have_unusual_initial_weights(self):
        records = [
            *swept("QNLI", [0.5, 0.5], adapter_size=64),
            *swept("RTE", [0.5, 0.5], adapter_size=64),
            *swept("MRPC", [0.80, 0.82], adapter_size=64, adapter_init_scale=0.1),
            *swept("MRPC", [0.7, 0.7], adapter_size=64, adapter_init_scale=0.1, adapter_depth=2),
        ]
        row = rows(records)["1 variants of the adapter minus the default: worst to best"]
        self.assertEqual(row.ours, "−11.0 ± 1.0 to −11.0 ± 1.0 (MRPC)")

    def test_each_variant_is_compared_on_its_tasks(self):
        default = [
            *swept("MRPC", [0.8, 0.8], adapter_size=64),
            *swept("QNLI", [0.8, 0.8], adapter_size=64),
        ]
        deep = swept("MRPC", [0.7, 0.7], adapter_size=64, adapter_depth=2)
        wide = swept("QNLI", [0.75, 0.75], adapter_size=64, adapter_placement="parallel")
        found = rows([*default, *deep, *wide])
        name = "2 variants of the adapter minus the default: worst to best"
        self.assertEqual(found[name].ours, "−10.0 ± 0.0 to −5.0 ± 0.0 (MRPC, QNLI)")
        deep += swept("QNLI", [0.9, 0.9], adapter_size=64, adapter_depth=2)
        row = rows([*default, *deep, *wide])[name]
        self.assertEqual(row.ours, "−5.0 ± 0.0 to 0.0 ± 0.0 (MRPC, QNLI)")

    def test_identical_runs_have_zero_difference(self):
        tasks = ("airline", "disasters", "sms_spam")
        full = [
            entry for task in tasks for entry in seeds(task, [0.7, 0.8], [0.7, 0.8], tuning="full")
        ]
        top = [
            entry
            for task in tasks
            for entry in seeds(task, [0.5, 0.5], [0.5, 0.5], tuning="top_layers", num_top_layers=1)
        ]
        row = rows([*full, *top])[
            "Further tasks: top layers, best number per task, minus full fine-tuning, test accuracy"
        ]
        self.assertStartsWith(row.ours, "0.0 ± 0.0 (")

    def test_top_layers_are_compared_at_shared_epochs_if_any(self):
        name = (
            "Further tasks: top layers, best number per task, minus full fine-tuning, test accuracy"
        )
        for top_epochs, full_epochs, ours in (
            ((2, 3), (5, 10), "+10.0 (airline)"),  # No number of epochs is shared.
            ((3, 5), (3, 5, 20), "+10.0 (airline)"),  # At 20 epochs, full gains 20 points.
        ):
            records = [
                record(
                    "airline",
                    0.9,
                    test=0.9,
                    tuning="top_layers",
                    num_top_layers=1,
                    num_train_epochs=e,
                )
                for e in top_epochs
            ]
            records += [
                record("airline", score, test=score, tuning="full", num_train_epochs=e)
                for e in full_epochs
                for score in [1.0 if e == 20 else 0.8]
            ]
            self.assertEqual(rows(records)[name].ours, ours)

    def test_initial_weight_rows_accept_trained_poolers(self):
        records = [
            record("CoLA", score, adapter_init_scale=scale, train_pooler=True)
            for scale, score in ((1e-3, 0.8), (1e-2, 0.7), (1.0, 0.5))
        ]
        row = rows(records)["Initial standard deviations up to 1e-2: worst minus best score"]
        self.assertEqual(row.ours, "−10.0 (CoLA)")

    def test_each_trial_of_a_search_counts_as_a_setting(self):
        baseline = {"script": "run_baseline.py", "test": 0.7}
        search = record("airline", 0.7, trials=60, **baseline)
        again = record("airline", 0.7, seed=2, preset="airline", **baseline)
        row = rows([search, again, record("airline", 0.8, test=0.8, tuning="full")])[
            "Further tasks: no-BERT baseline, minus full fine-tuning, test accuracy"
        ]
        self.assertEqual(
            (row.ours, row.settings), ("−10.0 (airline)", "1 to 60 per method and task")
        )

    def test_squad_is_compared_by_f1_at_shared_epochs(self):
        squad = {"score": "f1", "script": "run_squad.py"}
        records = [
            *swept("SQuAD", [60.0, 62.0], tuning="full", **squad),
            *swept("SQuAD", [60.0, 60.0], adapter_size=64, **squad),
        ]
        row = rows(records)["SQuAD: F1 of adapters of size 64, minus full fine-tuning"]
        self.assertEqual((row.ours, row.verdict), ("−1.0 ± 1.0 (SQuAD)", "unclear"))
        # Adapters were trained for 3 epochs only, so 9 epochs of full fine-tuning do not count.
        shorter = [
            r for r in records if "tuning" in r["flags"] or r["flags"]["num_train_epochs"] == 3
        ]
        longer = record("SQuAD", 70.0, tuning="full", num_train_epochs=9, **squad)
        row = rows([*shorter, longer])[row.claim]
        self.assertEqual(row.ours, "−1.0 ± 1.0 (SQuAD)")
        self.assertEqual(row.verdict, "open: one number of epochs")

    def test_ablation_rows_give_changes_and_verdicts(self):
        layer = "Removing one layer's adapters: change in accuracy, worst layer"
        every = "All adapters removed: accuracy, minus majority-class accuracy"
        found = rows([], [ABLATION])
        # Removing a layer changes 75.0 to 74.5 or 76.0.
        self.assertEqual(
            (found[layer].ours, found[layer].verdict), ("−0.5 (CoLA)", "open: one seed")
        )
        self.assertEqual(found[every].ours, "+0.2 (CoLA)")  # 69.0 − 68.75.
        # A second model scores 77 without adapters. 69 and 77 exceed 68.75 by 0.25 and 8.25.
        spans = {(0, 0): [74.4, 74.6], (0, 1): [69.0, 77.0], (1, 1): [76.0, 76.2]}
        two = ABLATION._replace(full=[75.0, 75.0], none=[69.0, 77.0], spans=spans)
        found = rows([], [two, ABLATION._replace(task="MRPC")])
        self.assertEqual(
            [(found[claim].ours, found[claim].verdict) for claim in (layer, every)],
            [("−0.5 ± 0.1 (CoLA)", "agrees"), ("+4.2 ± 4.0 (CoLA)", "unclear")],
        )
        # Within its confidence interval, the other layer may cost more than the worst one.
        found = rows([], [two._replace(spans={**spans, (1, 1): [76.0, 75.0]})])
        self.assertEqual(found[layer].verdict, "unclear")
        # A layer that is not the worst one has two equal scores.
        found = rows(
            [], [two._replace(spans={**spans, (0, 0): [74.5, 74.5], (1, 1): [74.2, 74.3]})]
        )
        self.assertEqual(found[layer].verdict, "open: two equal scores")
        found = rows([], [two._replace(none=[31.0, 31.5])])
        self.assertEqual(found[every].verdict, "differs")
        found = rows([], [two._replace(none=[31.0, 31.0])])
        self.assertEqual(found[every].verdict, "open: two equal scores")
        self.assertEqual(rows([], [two._replace(score="spearman")]), {})

    def test_incomplete_tasks_and_scales_keep_the_verdict(self):
        def scales(task, sizes=(1e-4, 1e-2, 1), runs=swept):
            return [
                entry
                for scale in sizes
                for entry in runs(task, (0.6 - scale / 10,) * 2, adapter_init_scale=scale)
            ]

        name = "Initial standard deviations up to 1e-2: worst minus best score"
        expected = rows(scales("CoLA"))[name]
        self.assertEqual(expected.verdict, "agrees")
        others = ([1e-4, 1e-2, 1], [1e-3, 2e-3, 0.1])
        further = scales("STS-B", [5e-3]), of_one_seed(scales("CoLA", [5e-3]))
        for more in (*(scales("MRPC", other, seeds) for other in others), *further):
            found = rows([*scales("CoLA"), *more])[name]
            self.assertEqual((found.ours, found.verdict), (expected.ours, expected.verdict))

    def test_explicit_default_rate_is_not_a_second_rate(self):
        records = self.records()
        for entry in records:
            flags = entry["flags"]
            is_full = flags.get("tuning") == "full"
            if flags["learning_rate"] == 2e-4:
                flags["learning_rate"] = 5e-5 if is_full else 3e-4
            else:
                del flags["learning_rate"]
        self.assertIn("one learning rate", rows(records)[CHOSEN].verdict)

    def test_initial_weights_are_compared_by_scale(self):
        # The differences from the best, 60, are −1 and −10, with the error of the best.
        for best, error, verdict in (
            ((0.6, 0.6), "0.0", "agrees"),
            ((0.54, 0.66), "6.0", "unclear"),
        ):
            scores = {1e-4: best, 1e-2: (0.59, 0.59), 1: (0.5, 0.5)}
            found = rows(
                [
                    entry
                    for scale, pair in scores.items()
                    for entry in swept("CoLA", pair, adapter_init_scale=scale)
                ]
            )
            low = found["Initial standard deviations up to 1e-2: worst minus best score"]
            self.assertEqual((low.ours, low.verdict), (f"−1.0 ± {error} (CoLA)", verdict))
            high = found[
                "Initial standard deviations above 1e-2: worst score, minus the best up to 1e-2"
            ]
            self.assertEqual((high.ours, high.verdict), (f"−10.0 ± {error} (CoLA)", verdict))

    def test_no_initial_scale_is_compared_with_itself(self):
        scores = {
            1e-4: (0.538, 0.504, 0.506),
            1e-2: (0.499, 0.504, 0.496),
            1: (0.438, 0.441, 0.436),
        }
        found = rows([r for s in scores for r in swept("CoLA", scores[s], adapter_init_scale=s)])
        self.assertEqual({row.verdict for row in found.values()}, {"agrees"})

    def test_learning_rates_near_the_best_are_counted(self):
        # Full fine-tuning at 3e-4 is 3 points behind, ± the error.
        for error, seed_count, verdict in (
            (0.001, 2, "agrees"),
            (0.01, 2, "unclear"),
            (0.001, 1, "open: one seed"),
        ):
            records = [
                record("CoLA", score, seed, learning_rate=rate, num_train_epochs=epochs, **flags)
                for epochs in (3, 20)
                for flags, by_rate in (
                    ({}, {1e-4: 0.5, 3e-4: 0.51, 1e-3: 0.1}),
                    ({"tuning": "full"}, {1e-4: 0.5, 3e-4: 0.47, 1e-3: 0.1}),
                )
                for rate, score in by_rate.items()
                for seed, score in ((1, score - error), (2, score + error))
                if seed == 1 or rate == 1e-4 or seed_count == 2
            ]
            row = rows(records)[
                "Number of learning rates (2e-5 to 1e-3) within 2 points of the best"
            ]
            self.assertEqual(row.ours, "CoLA: adapters 2 of 3, full fine-tuning 1 of 3")
            self.assertEqual(row.verdict, verdict)
            if seed_count == 2:
                equal = [
                    {**entry, "scores": {**entry["scores"], "eval_accuracy": 0.1}}
                    if entry["flags"]["learning_rate"] == 1e-3
                    else entry
                    for entry in records
                ]
                self.assertEqual(rows(equal)[row.claim].verdict, "open: two equal scores")
            # Adds a rate out of range, a rate of a single method, and a task with too few runs.
            records += [
                record("CoLA", 0.51, seed, learning_rate=rate, num_train_epochs=epochs)
                for rate, seed in ((3e-3, 1), (3e-3, 2), (2e-4, 1))
                for epochs in (3, 20)
            ]
            records += [
                record("MRPC", 0.5, learning_rate=rate, num_train_epochs=3, **flags)
                for rate in (1e-4, 3e-4, 1e-3)
                for flags in ({}, {"tuning": "full"})
            ]
            if seed_count == 2:
                more = rows(records)[row.claim]
                self.assertEqual((more.ours, more.verdict), (row.ours, verdict))
