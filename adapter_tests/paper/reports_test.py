"""Tests of reports.py: reports from hand-written records with gaps, and their files."""

import dataclasses
import json
import os

import numpy as np
import tensorflow.compat.v1 as tf

import run_report
from adapter_bert.paper import report_tables, reports
from adapter_bert.paper.baseline import search_space
from adapter_bert.paper.reports import REPORTS, Results
from adapter_bert.sweeps import selection
from adapter_tests.support import command_lines, mutations
from adapter_tests.support.records import ABLATION, record, seeds, with_majority


def rows_by_label(table):
    """Returns a table's rows by their first cell."""
    return {row[0]: row[1:] for row in table.rows}


def results(records, *others, criterion="score", **options):
    return Results(selection.read(records, criterion), *others, **options)


def curves(panel):
    """Returns label → [(x, y), ...] of a panel, with rounded y."""
    return {s.label: [(x, round(y, 6)) for x, y, _, _ in s.points] for s in panel.series}


def with_accuracy(entries, values):
    """Returns records that also have an accuracy, unlike their task's score."""
    for entry, value in zip(entries, values):
        entry["scores"]["eval_accuracy"] = value
    return entries


def tables(report):
    """Returns the tables that are shown."""
    return [table for table in report.tables if table.rows]


class MajorityTest(tf.test.TestCase):
    def test_figure_and_its_table_have_the_majority_class(self):
        records = [
            *with_majority(seeds("MRPC", [0.82, 0.84], adapter_size=64), 0.68, [1, 2]),
            *with_majority(seeds("MRPC", [0.68, 0.68], adapter_size=8), 0.68, [1, 1]),
            *seeds("MRPC", [0.85, 0.86], adapter_size=256, trained=400),
            *seeds("CoLA", [0.7, 0.7], adapter_size=64),  # Older records do not have it.
        ]
        report = reports.figure4(results(records))
        rows = rows_by_label(report.tables[0])
        self.assertEqual(
            rows["adapters, 64"], ["70.0 ± 0.0", "83.0 ± 1.0 (runs with one label: 1)", "200"]
        )
        self.assertEqual(rows["adapters, 8"][1], "68.0 ± 0.0 (runs with one label: 2)")
        self.assertEqual(rows["majority class"], ["–", "68.0", "–"])
        lines = {panel.title: panel.line for panel in report.panels}
        self.assertEqual(lines, {"CoLA": None, "MRPC": ("majority class", 68.0)})
        found = [(row["method"], row["points"]) for row in report.numbers]
        self.assertIn(("majority class", 68.0), found)

    def test_table2_has_the_majority_class_of_the_test_set(self):
        entries = seeds("airline", [0.8, 0.8], [0.62, 0.62])
        with_majority(with_majority(entries, 0.6, [2, 2]), 0.61, [2, 2], "test")
        table, _ = reports.table2(results(entries)).tables
        self.assertEqual(table.columns, ["", "adapters", "majority class"])
        self.assertEqual(table.rows[0], ["airline", "62.0 ± 0.0", "61.0"])

    def test_older_records_have_neither(self):
        report = reports.figure4(results(seeds("MRPC", [0.81, 0.81], adapter_size=8)))
        self.assertNotIn("one label", str(report.tables[0].rows))
        self.assertNotIn("majority class", rows_by_label(report.tables[0]))


class GlueTest(tf.test.TestCase):
    def records(self):
        full = {"tuning": "full", "trained": 10_010}
        return [
            *seeds("CoLA", [0.50, 0.54], score="matthews", **full),
            *seeds("SST-2", [0.90, 0.92], **full),
            *seeds("CoLA", [0.40, 0.42], score="matthews", adapter_size=8, trained=100),
            *seeds("CoLA", [0.48, 0.41], score="matthews", adapter_size=64, trained=300),
            *seeds("SST-2", [0.88, 0.89], adapter_size=8, trained=100),
            *seeds("airline", [0.99, 0.99], adapter_size=8),
        ]

    def test_table1_compares_adapter_sizes_with_full_fine_tuning(self):
        records = self.records()
        report = reports.table1(results(records))
        first, paper = tables(report)
        columns = ["CoLA", "SST-2", "mean", "total parameters", "trained per task"]
        self.assertEqual(first.columns, ["", *columns])
        # Three rows have both tasks, and thus a mean. 1 + 2 * (0.03 + 0.01) / 2 = 1.04.
        self.assertEqual(
            rows_by_label(first),
            {
                "full fine-tuning": ["54.0", "92.0", "73.0", "2.00×", "100%"],
                "adapters, size chosen per task (8, 64)": [
                    *("48.0", "89.0", "68.5", "1.04×", "2.00%")
                ],
                "adapters 8": ["42.0", "89.0", "65.5", "1.02×", "1.00%"],
                "adapters 64": ["48.0", "–", "–", "1.06×", "3.00%"],
            },
        )
        self.assertEqual(rows_by_label(paper)["adapters 64"][:2], ["56.9", "94.2"])
        self.assertIn("2 seeds", report.caption)
        self.assertIn("Total parameters are those of the table's tasks", report.caption)

    def test_mean_is_not_over_the_tasks_of_the_majority_class(self):
        records = self.records()
        with_majority(records[:1], 0.0, [2])
        rows = rows_by_label(reports.table1(results(records)).tables[0])
        self.assertEqual(rows["full fine-tuning"][:3], ["54.0", "92.0", "73.0"])
        self.assertEqual(rows["majority class"][:3], ["0.0", "–", "–"])

    def test_table1_chooses_among_the_paper_s_sizes_and_among_all(self):
        records = [
            *self.records(),
            *seeds("CoLA", [0.46, 0.40], score="matthews", adapter_size=256, trained=900),
            *seeds("CoLA", [0.49, 0.40], score="matthews", adapter_size=16, trained=150),
            *seeds("SST-2", [0.60, 0.60], adapter_size=16, trained=150),
        ]
        rows = rows_by_label(reports.table1(results(records)).tables[0])
        chosen = "adapters, size chosen per task"
        self.assertEqual(rows[f"{chosen} (8, 64, 256)"][:3], ["48.0", "89.0", "68.5"])
        self.assertEqual(rows[f"{chosen} (8, 16, 64, 256)"][:3], ["49.0", "89.0", "69.0"])

    def test_trained_poolers_have_a_table_of_their_own(self):
        before = tables(reports.table1(results(self.records())))
        self.assertNotIn("Not in the paper", " ".join(table.heading for table in before))
        pooler = {"adapter_size": 64, "train_pooler": True, "trained": 400}
        records = [*self.records(), *seeds("SST-2", [0.91, 0.90], **pooler)]
        records += seeds("SST-2", [0.80, 0.95], **{**pooler, "adapter_size": 8})
        report = reports.table1(results(records))
        self.assertEqual(report.tables[:-1], before)
        table = report.tables[-1]
        self.assertEqual(table.heading, "Not in the paper: adapters with the pooler trained")
        # One task: 1 + 0.04.
        costs = ["1.04×", "4.00%"]
        self.assertEqual(
            rows_by_label(table),
            {
                "adapters, size chosen per task (8, 64), pooler trained": ["95.0", "95.0", *costs],
                "adapters 8, pooler trained": ["95.0", "95.0", *costs],
                "adapters 64, pooler trained": ["91.0", "91.0", *costs],
            },
        )
        methods = {row["method"] for row in report.numbers}
        self.assertIn("adapters 64, pooler trained", methods)

    def test_table1_caption_names_all_initial_weight_scales(self):
        records = [
            *seeds("CoLA", [0.5], score="matthews", adapter_size=8),
            *seeds("CoLA", [0.6], score="matthews", adapter_size=64, adapter_init_scale=1e-2),
        ]
        caption = reports.table1(results(records)).caption
        self.assertEndsWith(
            caption, " Adapters were trained with --adapter_init_scale=0.001 or 0.01."
        )

    def test_figure1_shows_percentiles_over_tasks(self):
        records = self.records()
        for task, value in (("MRPC", 0.80), ("RTE", 0.60)):
            records.append(record(task, value, tuning="full"))
            records.append(record(task, value - 0.05, adapter_size=8, trained=140))
        records.append(record("QNLI", 0.9, adapter_size=8))  # Full fine-tuning is missing.
        report = reports.figure1(results(records))
        # Only CoLA has size 64. It is left out: its percentiles would be over other tasks.
        (eight,) = report.numbers
        # Differences: CoLA 41 - 52, SST-2 88.5 - 91, MRPC and RTE -5; sorted: -11, -5, -5, -2.5.
        # The percentiles are at positions 0.6, 1.5 and 2.4 of 0 to 3: -11 + 0.6 * 6, -5, and
        # -5 + 0.4 * 2.5.
        self.assertAllClose([eight[p] for p in ("20th", "50th", "80th")], [-7.4, -5.0, -4.0])
        self.assertEqual((eight["level"], eight["trained_parameters"]), (8, 120))
        self.assertAllClose(eight["CoLA"], -11.0)
        (panel,) = report.panels
        self.assertEqual(curves(panel), {"adapters": [(120.0, -5.0)]})
        self.assertAllClose(panel.series[0].points[0][2:], [-7.4, -4.0])
        self.assertIn("Percentiles are over CoLA (matthews), SST-2, MRPC, RTE.", report.caption)
        self.assertEqual(report.tables[0].rows, [["adapters, 8", "120", "-7.4", "-5.0", "-4.0"]])

    def test_figure1_shows_accuracy_but_the_score_of_sts_b(self):
        records = [
            record("STS-B", 0.80, score="spearman", tuning="full"),
            record("STS-B", 0.83, score="spearman"),
            *with_accuracy([record("CoLA", 0.5, score="matthews", tuning="full")], [0.70]),
            *with_accuracy([record("CoLA", 0.9, score="matthews")], [0.69]),
        ]
        mnli = [record("MNLI", 0.80, tuning="full"), record("MNLI", 0.78)]
        for entry, value in zip(mnli, (0.81, 0.77)):
            entry["scores"]["eval_mismatched_accuracy"] = value
        report = reports.figure1(results([*records, *mnli]))
        (row,) = report.numbers
        differences = {"CoLA": -1.0, "STS-B": 3.0, "MNLI-m": -2.0, "MNLI-mm": -4.0}
        self.assertAllClose({task: row[task] for task in differences}, differences)
        self.assertAllClose(row["50th"], -1.5)
        expected = "Percentiles are over CoLA, STS-B (spearman), MNLI-m, MNLI-mm."
        self.assertIn(expected, report.caption)
        self.assertEqual(report.panels[0].y_label, "Dev accuracy, difference (points)")

    def test_every_level_of_figure1_has_the_same_tasks(self):
        records = self.records()
        top = {"tuning": "top_layers", "num_top_layers": 1, "trained": 12_345_678}
        records.append(record("MRPC", 0.80, tuning="full"))
        for setting in ({"adapter_size": 8}, {"adapter_size": 64, "trained": 300}, top):
            records.append(record("MRPC", 0.79, **setting))
        records.append(record("CoLA", 0.50, score="matthews", **top))
        report = reports.figure1(results(records))
        # Two tasks at three levels give a larger table than three tasks, with SST-2, at one.
        self.assertEqual(
            {(row["method"], row["level"]): (row["CoLA"], row["MRPC"]) for row in report.numbers},
            {
                ("adapters", 8): (41.0 - 52.0, 79.0 - 80.0),
                ("adapters", 64): (44.5 - 52.0, 79.0 - 80.0),
                ("top layers", 1): (50.0 - 52.0, 79.0 - 80.0),
            },
        )
        self.assertIn("Percentiles are over CoLA (matthews), MRPC.", report.caption)
        files = report_tables.render("figure1", report)
        self.assertIn("top layers\t1\t12345678\t", files["figure1.tsv"])

    def test_task_samples_are_listed_only_with_full_fine_tuning(self):
        records = [*self.records(), record("mnli_9k", 0.6, adapter_size=8)]
        self.assertNotIn("MNLI (9k rows)", reports.table1(results(records)).tables[0].columns)
        records.append(record("mnli_9k", 0.65, tuning="full"))
        self.assertIn("MNLI (9k rows)", reports.table1(results(records)).tables[0].columns)

    def test_mnli_dev_sets_are_separate_columns(self):
        mnli = record("MNLI", 0.8, tuning="full")
        mnli["scores"]["eval_mismatched_accuracy"] = 0.82
        report = reports.table1(results([mnli]))
        self.assertEqual(report.tables[0].columns[1:3], ["MNLI-m", "MNLI-mm"])
        self.assertEqual(report.tables[0].rows[0][1:4], ["80.0", "82.0", "81.0"])
        report = reports.table1(results([record("MNLI", 0.8, tuning="full")]))
        self.assertEqual(report.tables[0].columns[1:3], ["MNLI-m", "mean"])

    def test_table1_marks_runs_that_predict_only_one_label(self):
        records = self.records()
        with_majority(records[:2], 0.0, [2, 1])
        with_majority(records[2:4], 0.5, [2, 2])
        with_majority(records[8:10], 0.5, [1, 1])
        report = reports.table1(results(records))
        rows = rows_by_label(report.tables[0])
        # The best run of CoLA is the one that predicts only one label.
        self.assertEqual(
            rows["full fine-tuning"][:3], ["54.0 (runs with one label: 1)", "92.0", "73.0"]
        )
        self.assertEqual(rows["adapters 8"][:3], ["42.0", "89.0 (runs with one label: 1)", "65.5"])
        self.assertEqual(rows["majority class"], ["0.0", "50.0", "25.0", "–", "–"])
        self.assertIn("2 seeds", report.caption)


class FurtherTasksTest(tf.test.TestCase):
    def records(self):
        top = {"tuning": "top_layers"}
        return [
            *seeds("airline", [0.8, 0.8], [0.84, 0.86], tuning="full"),
            *seeds("sms_spam", [0.9, 0.9], [0.92, 0.94], tuning="full"),
            # The best of three settings by dev score, the worst by test score.
            *seeds("airline", [0.9, 0.9], [0.80, 0.82], num_top_layers=2, trained=2000, **top),
            *seeds("airline", [0.7, 0.7], [0.90, 0.92], num_top_layers=1, trained=1000, **top),
            *seeds("airline", [0.7, 0.8], [0.70, 0.72], adapter_size=8, trained=100),
            *seeds("airline", [0.8, 0.8], [0.60, 0.64], adapter_size=64, trained=300),
            record("sms_spam", 0.7, test=0.75, script="run_baseline.py", hidden_layers=3),
            record("CoLA", 0.5, test=0.5, tuning="full"),
            record("RTE", 0.5, tuning="full"),
            record("mails", 0.5, tuning="full"),  # No test scores.
            record("conll", 0.5, test=0.5, score="f1", script="run_tagger.py", tuning="full"),
        ]

    def test_table2_compares_baseline_fine_tuning_and_adapters(self):
        report = reports.table2(results(self.records()))
        first, paper = report.tables
        columns = ["no-BERT baseline", "full fine-tuning", "variable fine-tuning", "adapters"]
        self.assertEqual(first.columns, ["", *columns])
        self.assertEqual(
            rows_by_label(first),
            {
                "airline": ["–", "85.0 ± 1.0", "81.0 ± 1.0", "62.0 ± 2.0"],
                "SMS spam": ["75.0", "93.0 ± 1.0", "–", "–"],
                "mean of airline": ["–", "85.0", "81.0", "62.0"],
                # 1 + 2 * 0.2, 1 + 2 * 0.03.
                "total parameters": ["–", "2.00×", "1.40×", "1.06×"],
                "trained per task": ["–", "100%", "20.00%", "3.00%"],
            },
        )
        labels = ["airline", "SMS spam", "mean", "total parameters", "trained per task"]
        self.assertEqual([row[0] for row in paper.rows], labels)
        self.assertIn("1 to 2 seeds", report.caption)

    def test_figure3_shows_test_scores_of_further_tasks(self):
        report = reports.figure3(results(self.records()))
        found = curves(report.panels[0])
        self.assertEqual(found["adapters"], [(100.0, -14.0), (300.0, -23.0)])
        self.assertEqual(found["top layers"], [(1000.0, 6.0), (2000.0, -4.0)])
        self.assertEqual(report.panels[0].y_label, "Test accuracy, difference (points)")

    def test_variable_fine_tuning_includes_full_fine_tuning(self):
        records = self.records()
        for entry in records[:2]:
            entry["scores"]["eval_accuracy"] = 0.95
        report = reports.table2(results(records))
        self.assertEqual(rows_by_label(report.tables[0])["airline"][2], "85.0 ± 1.0")


class ParametersFigureTest(tf.test.TestCase):
    def test_figures4_and_5_plot_scores_against_parameters(self):
        records = [
            *seeds("MRPC", [0.80, 0.82], score="f1", adapter_size=8, trained=100),
            *seeds("MRPC", [0.84, 0.80], score="f1", adapter_size=64, trained=300),
            record("MRPC", 0.9, score="f1", adapter_size=8, adapter_depth=2, trained=110),
            record("MRPC", 0.7, score="f1", tuning="layer_norm", trained=30),
            record("CoLA", 0.1, score="matthews", tuning="head", trained=5),
            record("SQuAD", 60.0, score="f1", script="run_squad.py", trained=100),
        ]
        report = reports.figure4(results(records))
        self.assertEqual([panel.title for panel in report.panels], ["CoLA", "MRPC"])
        cola, mrpc = report.panels
        self.assertEqual(cola.y_label, "Dev Matthews corr. (× 100)")
        self.assertEqual(mrpc.y_label, "Dev F1 (%)")
        self.assertEqual(curves(cola), {"head only": [(5, 10.0)]})
        expected = {"adapters": [(100, 81.0), (300, 82.0)], "LayerNorms only": [(30, 70.0)]}
        self.assertEqual(curves(mrpc), expected)
        # Error bars: one standard error to each side, none for a single seed.
        self.assertAllClose(mrpc.series[0].points[1][2:], [80.0, 84.0])
        self.assertEqual(mrpc.series[1].points[0][2:], (None, None))

        report = reports.figure5(results(records))
        self.assertEqual([panel.title for panel in report.panels], ["SQuAD"])
        self.assertEqual(curves(report.panels[0]), {"adapters": [(100, 60.0)]})

    def test_figure4_shows_the_accuracy_of_glue(self):
        records = [
            *with_accuracy(seeds("CoLA", [0.1, 0.2], score="matthews"), (0.71, 0.73)),
            record("STS-B", 0.8, score="spearman"),
        ]
        panels = {panel.title: panel for panel in reports.figure4(results(records)).panels}
        self.assertEqual(panels["CoLA"].y_label, "Dev accuracy (%)")
        self.assertEqual(curves(panels["CoLA"]), {"adapters": [(200, 72.0)]})
        self.assertEqual(panels["STS-B"].y_label, "Dev Spearman correlation (× 100)")

    def test_figure4_caption_names_nondefault_adapter_flags(self):
        records = [record("MRPC", 0.8, adapter_size=8, adapter_init_scale=0.01)]
        report = reports.figure4(results(records))
        self.assertIn("--adapter_init_scale=0.01.", report.caption)
        self.assertIn("(logarithmic axis), 1 seed. Curves", report.caption)

    def test_all_top_layers_are_drawn_as_full_fine_tuning_too(self):
        squad = {"score": "f1", "script": "run_squad.py", "tuning": "top_layers"}
        records = [
            record("SQuAD", 70.0, num_top_layers=5, trained=500, **squad),
            record("SQuAD", 80.0, num_top_layers=6, trained=995, **squad),  # Without the pooler.
            record("SQuAD", 75.0, **{**squad, "tuning": "full"}, trained=995),
        ]
        for entry in records:
            entry["scores"]["total_parameters"] = 1000
        panel = reports.figure5(results(records)).panels[0]
        expected = {"top layers": [(500, 70.0), (995, 80.0)], "full fine-tuning": [(995, 80.0)]}
        self.assertEqual(curves(panel), expected)

    def test_figure4_leaves_out_settings_of_a_single_size(self):
        records = [
            record("MRPC", 0.7, adapter_size=8, learning_rate=3e-4, trained=100),
            record("MRPC", 0.8, adapter_size=64, learning_rate=3e-4, trained=300),
            record("MRPC", 0.9, adapter_size=64, adapter_init_scale=0.01, trained=300),
        ]
        report = reports.figure4(results(records))
        self.assertEqual(curves(report.panels[0]), {"adapters": [(100, 70.0), (300, 80.0)]})
        self.assertNotIn("adapter_init_scale", report.caption)  # It is not drawn.


class ScaleAndAblationTest(tf.test.TestCase):
    def test_figure6_shows_ablation_of_layer_spans(self):
        report = reports.figure6(results([], [ABLATION]))
        (panel,) = report.panels
        self.assertAllClose(panel.values, [[-0.5, -6.0], [np.nan, 1.0]])
        self.assertEqual((panel.x_label, panel.y_label)[0][:4], "Last")
        shown = ["75.0", "74.5", "74.5", "76.0", "69.0", "68.8"]
        self.assertEqual(rows_by_label(report.tables[0]), {"CoLA": shown})
        self.assertIn(
            "change in the dev accuracy, in points, over the models of 1 seed", report.caption
        )
        found = {(row["method"], row["level"]): row["points"] for row in report.numbers}
        self.assertAllClose(found["layers removed", "0-1"], 69.0)
        self.assertAllClose(found["majority class", None], 68.75)

    def test_figure6_shows_accuracies_by_initial_weight_scale(self):
        scales = [1e-3, 1e-2, 1e-1]
        records = [
            *with_accuracy(
                [record("CoLA", 0.1, adapter_init_scale=s, score="matthews") for s in scales],
                [0.7 - s for s in scales],
            ),
            *(
                record("MRPC", 0.8 - s, seed, adapter_init_scale=s)
                for s in scales
                for seed in (1, 2)
            ),
            record("CoLA", 0.9, adapter_size=8),  # Only one scale.
            record("CoLA", 0.9, num_train_epochs=10),  # Only one scale.
            record("CoLA", 0.9, adapter_init_scale=1e-2, adapter_depth=2),
            record("CoLA", 0.9, adapter_init_scale=0.0),
            *(record("RTE", 0.5, adapter_init_scale=s) for s in scales[:2]),  # Too few for a curve.
        ]
        report = reports.figure6(results(records))
        (panel,) = report.panels
        self.assertEqual(
            curves(panel),
            {
                "CoLA": [(1e-3, 69.9), (1e-2, 69.0), (1e-1, 60.0)],
                "MRPC": [(1e-3, 79.9), (1e-2, 79.0), (1e-1, 70.0)],
            },
        )
        self.assertEqual(panel.y_label, "Dev accuracy (%)")
        self.assertNotIn("removed", report.caption)


class LearningRateTest(tf.test.TestCase):
    def test_figure7_shows_scores_by_learning_rate(self):
        rates = [1e-4, 3e-4, 1e-3]
        records = [
            *(record("MRPC", 0.7, learning_rate=r, num_train_epochs=3) for r in rates),
            *(record("MRPC", 0.7 + 10 * r, learning_rate=r, num_train_epochs=20) for r in rates),
            record("MRPC", 0.99, learning_rate=3e-4, adapter_size=256),  # Only one rate.
            record("MRPC", 0.99, learning_rate=3e-4, num_train_epochs=10),  # Only one rate.
            record("MRPC", 0.98),  # The learning rate is not recorded.
            *(  # Other epochs than those of adapters.
                record("MRPC", 0.8 - 100 * r, learning_rate=r, num_train_epochs=5, tuning="full")
                for r in rates
            ),
            *(record("CoLA", 0.5, learning_rate=r) for r in rates[:2]),  # Too few for a curve.
        ]
        report = reports.figure7(results(records))
        (panel,) = report.panels
        self.assertEqual(panel.title, "MRPC")
        self.assertEqual(
            curves(panel),
            {
                "adapters": [(1e-4, 70.1), (3e-4, 70.3), (1e-3, 71.0)],
                "full fine-tuning": [(1e-4, 79.0), (3e-4, 77.0), (1e-3, 70.0)],
            },
        )


class EpochsTest(tf.test.TestCase):
    """Checks that each method is at its own best number of epochs."""

    def squad(self, score, epochs, **flags):
        flags = {"score": "f1", "script": "run_squad.py", "num_train_epochs": epochs, **flags}
        return record("SQuAD", score, **flags)

    def test_each_method_is_at_its_own_best_number_of_epochs(self):
        records = [
            *(self.squad(60.0 + epochs, epochs, adapter_size=64) for epochs in (3, 10, 20)),
            *(self.squad(70.0 - epochs, epochs, tuning="full", trained=9) for epochs in (2, 5)),
            record("SQuAD", 60.0, score="f1", script="run_squad.py", tuning="full"),  # 3 epochs.
        ]
        report = reports.figure5(results(records))
        expected = {"adapters": [(200, 80.0)], "full fine-tuning": [(9, 68.0)]}
        self.assertEqual(curves(report.panels[0]), expected)
        expected = "Epochs: adapters 3 or 10 or 20, full fine-tuning 2 or 3 or 5."
        self.assertIn(expected, report.caption)

    def test_claims_say_which_epochs_are_compared(self):
        own, equal = (
            reports.claims(results([], [ABLATION], [], is_equal)).caption
            for is_equal in (False, True)
        )
        self.assertIn("Each method is at its own best number of epochs, as in the paper.", own)
        self.assertIn("at the numbers of epochs that all of a task's methods share", equal)

    def test_figure7_uses_best_epochs_and_size_at_each_rate(self):
        rates = (1e-4, 3e-4, 1e-3)
        records = [
            record(
                *("CoLA", 0.1 * size / 64 + 0.01 * epochs - rate),
                adapter_size=size,
                num_train_epochs=epochs,
                learning_rate=rate,
            )
            for rate in rates
            for epochs in (3, 20)
            for size in (8, 64)
        ]
        records += [
            record("CoLA", 0.3, tuning="full", num_train_epochs=3, learning_rate=rate)
            for rate in rates
        ]
        panel = reports.figure7(results(records)).panels[0]
        # 64 units and 20 epochs: 0.1 + 0.2.
        expected = [(rate, round(100 * (0.3 - rate), 6)) for rate in rates]
        self.assertEqual(curves(panel)["adapters"], expected)

    def test_figure7_shows_accuracy(self):
        rates = (1e-4, 3e-4, 1e-3)
        records = [record("CoLA", 0.1, score="matthews", learning_rate=rate) for rate in rates]
        with_accuracy(records, (0.7, 0.72, 0.69))
        panel = reports.figure7(results(records)).panels[0]
        expected = [(1e-4, 70.0), (3e-4, 72.0), (1e-3, 69.0)]
        self.assertEqual(curves(panel), {"adapters": expected})

    def test_figure7_needs_three_rates_for_a_curve(self):
        records = [record("CoLA", 0.1, learning_rate=rate) for rate in (1e-4, 3e-4, 1e-3)]
        records += [record("CoLA", 0.2, learning_rate=r, tuning="full") for r in (1e-4, 3e-4)]
        report = reports.figure7(results(records))
        self.assertEqual(list(curves(report.panels[0])), ["adapters"])
        self.assertEqual({row["method"] for row in report.numbers}, {"adapters"})


class VariantsTest(tf.test.TestCase):
    def test_variants_are_compared_with_the_default(self):
        init = {"adapter_init_scale": 0.01}
        cola = seeds("CoLA", [0.1, 0.1], score="matthews", **init)
        records = [
            *with_accuracy(cola, (0.2, 0.3)),
            *seeds("MRPC", [0.8, 0.8], **init),
            *seeds("RTE", [0.6, 0.6], **init),  # No variant has this task.
            *seeds("CoLA", [0.9, 0.9], num_train_epochs=10, **init),  # No variant has 10 epochs.
            *seeds("CoLA", [0.3, 0.3], adapter_depth=2, trained=400, **init),
            record("CoLA", 0.21, adapter_placement="parallel", adapter_depth=2, **init),
            *seeds("MRPC", [0.7, 0.8], adapter_activation="relu", **init),
            *seeds("CoLA", [0.9, 0.9]),  # No variant has these initial weights.
            *seeds("CoLA", [0.9, 0.9], adapter_size=8, **init),  # No variant has this size.
            record("CoLA", 0.9, train_pooler=True, **init),  # Not a variant of the paper.
            record("CoLA", 0.4, adapter_size=2, adapter_activation="tanh"),  # Has no default.
        ]
        report = reports.variants(results(records))
        (table,) = report.tables
        self.assertEqual(table.columns, ["", "CoLA", "MRPC", "trained parameters"])
        self.assertEqual(
            rows_by_label(table),
            {
                "activation tanh, 2": ["40.0", "–", "200"],
                "default, 64": ["25.0 ± 5.0 (+0.0)", "80.0 ± 0.0 (+0.0)", "200"],
                "activation relu, 64": ["–", "75.0 ± 5.0 (-5.0)", "200"],
                "depth 2, 64": ["30.0 ± 0.0 (+5.0)", "–", "400"],
                "depth 2, placement parallel, 64": ["21.0 (-4.0)", "–", "200"],
            },
        )
        differences = {(r["method"], r["task"]): r["difference"] for r in report.numbers}
        self.assertIsNone(differences["activation tanh", "CoLA"])
        self.assertAllClose(differences["activation relu", "MRPC"], -5.0)
        self.assertIn("--adapter_init_scale=0.001 or 0.01", report.caption)


class FilesTest(tf.test.TestCase):
    def test_empty_results_give_empty_reports(self):
        for name, (make, _) in REPORTS.items():
            self.assertEqual(make(results([])).numbers, [], name)

    def test_single_record_appears_in_its_reports(self):
        for entry, expected in (
            (record("CoLA", 0.5), ["table1", "figure4"]),
            (record("airline", 0.5, test=0.5, tuning="full"), ["table2", "figure4"]),
            (record("SQuAD", 50.0, score="f1", script="run_squad.py"), ["figure5"]),
        ):
            rendered_reports = {name: make(results([entry])) for name, (make, _) in REPORTS.items()}
            found = [name for name, report in rendered_reports.items() if report.numbers]
            self.assertEqual(found, expected)
            for name in found:
                self.assertIn(name + ".md", report_tables.render(name, rendered_reports[name]))

    def test_rendered_files_are_complete(self):
        source = results(
            [
                *seeds("CoLA", [0.2, 0.3], score="matthews"),
                *seeds("CoLA", [0.3, 0.4], score="matthews", tuning="full"),
            ],
            [],
        )
        files = {}
        for name in ("table1", "figure1", "figure4"):
            files.update(report_tables.render(name, REPORTS[name][0](source)))
        self.assertEqual(
            set(files),
            {
                *("table1.md", "table1.tsv"),
                *(f"{n}.{e}" for n in ("figure1", "figure4") for e in ("md", "tsv", "png", "svg")),
            },
        )
        self.assertTrue(files["figure4.png"].startswith(b"\x89PNG"))
        self.assertIn("![", files["figure4.md"])
        self.assertIn("](figure4.png)", files["figure4.md"])
        self.assertNotIn("![", files["table1.md"])
        header, *rows = [line.split("\t") for line in files["figure4.tsv"].splitlines()]
        self.assertEqual(
            " ".join(header),
            "method level task score points sem seeds trained_parameters setting",
        )
        self.assertEqual(rows[0][:4], ["adapters", "64", "CoLA", "eval_matthews"])
        setting = "adapter_size=64 learning_rate=0.0003 num_train_epochs=5"
        self.assertEqual(rows[0][4:], ["25", "5", "2", "200", setting])


class DamagedFilesTest(tf.test.TestCase):
    def check(self, name, content, names, flag, reports):
        """Checks that reports from a damaged file are built or refused."""

        def read(folder):
            given = f"--{flag}=" + os.path.join(folder, "" if flag == "records" else name)
            values = command_lines.parsed(run_report.define_flags, given)
            source, _ = run_report._read_results(run_report.ReportConfig.from_flags(values))
            for report in reports:
                REPORTS[report][0](source)

        mutations.check({name: content.encode()}, read, names)

    def test_damaged_records_are_read_or_refused(self):
        trials = [
            *seeds("CoLA", (0.1, 0.2), (0.1, 0.3), score="matthews", adapter_size=8),
            *seeds("MRPC", (0.7, 0.8), (0.7, 0.8), score="f1", adapter_size=64),
            *seeds("MRPC", (0.7, 0.8), (0.7, 0.8), score="f1", tuning="full", learning_rate=1e-4),
            *seeds("MRPC", (0.7, 0.8), (0.7, 0.8), score="f1", tuning="full", learning_rate=1e-5),
            *seeds("MRPC", (0.7, 0.8), (0.7, 0.8), tuning="top_layers", num_top_layers=1),
            *seeds("MRPC", (0.7, 0.8), (0.7, 0.8), tuning="top_layers", num_top_layers=2),
        ]
        lines = [json.dumps({**trial, "key": str(i)}) for i, trial in enumerate(trials)]
        names = ("--records", "results.jsonl")
        self.check("results.jsonl", "\n".join([*lines, ""]), names, "records", REPORTS)

    def test_a_damaged_ablation_is_read_or_refused(self):
        spans = [[i, j, 0.5 + 0.01 * (i + j)] for i in range(3) for j in range(i, 3)]
        content = {"task": "MRPC", "score": "accuracy", "num_layers": 3, "num_rows": 10}
        content.update({"all": 0.8, "none": 0.6, "majority": 0.6, "spans": spans, "adapter": "a1"})
        content["backbone"] = "b1"
        name = "ablation.json"
        self.check(name, json.dumps(content), (name,), "ablations", ["figure6"])

    def test_a_damaged_search_is_read_or_refused(self):
        settings = dataclasses.asdict(search_space.PRESETS["airline"])
        trial = {"pruned": False, "samples": 100, "seconds": 1.5, "settings": settings}
        content = {"task": "airline", "score": "eval_accuracy", "sampler": "tpe", "pruner": "none"}
        content["trials"] = [
            {**trial, "number": i, "score": 0.1 * i, "pruned": i == 2} for i in range(5)
        ]
        name = "search.json"
        self.check(name, json.dumps(content), (name,), "searches", ["searches"])
