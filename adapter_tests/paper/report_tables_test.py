"""Tests of report_tables.py: means with gaps, and the paper's tables."""

import tensorflow.compat.v1 as tf

from adapter_bert.paper import published, report_tables
from adapter_bert.sweeps.selection import Cell


class MeansTest(tf.test.TestCase):
    def test_means_are_over_the_largest_table_without_gaps(self):
        for tasks, expected in (
            # Two tasks of two methods are more cells than one task of three, or three of one.
            (
                {"a": ("CoLA", "MRPC"), "b": ("CoLA", "MRPC", "RTE"), "c": ("MRPC",)},
                {"mean of CoLA, MRPC": {"a": "50.0", "b": "50.0"}},
            ),
            # One task of three methods is more cells than two tasks of one.
            (
                {"a": ("CoLA", "SST-2"), "b": ("CoLA", "MRPC"), "c": ("CoLA", "RTE")},
                {"mean of CoLA": {"a": "50.0", "b": "50.0", "c": "50.0"}},
            ),
            ({}, {"mean": {}}),
        ):
            cells = [
                Cell(method, None, task, "eval_accuracy", 80.0 if task == "RTE" else 50.0)
                for method, of_method in tasks.items()
                for task in of_method
            ]
            self.assertEqual(report_tables.means(cells), expected)


class PaperTableTest(tf.test.TestCase):
    def test_paper_tables_contain_the_requested_tasks(self):
        table = report_tables.paper_table("", ["CoLA", "MRPC", "own"], published.COSTS_1)
        self.assertEqual(table.columns[1:4], ["CoLA", "MRPC", "mean"])
        self.assertEqual(table.rows[0][1:], ["60.5", "89.3", "74.9", "9.0×", "100%"])
        self.assertEqual(report_tables.paper_table("", ["own"], published.COSTS_1).rows, [])
        table = report_tables.paper_table("", ["airline", "sms_spam"], published.COSTS_2)
        self.assertEqual(
            report_tables.transpose(table).rows,
            [
                ["airline", "84.5", "83.6 ± 0.3", "84.0 ± 0.1", "84.5 ± 0.2"],
                ["SMS spam", "98.5", "99.3 ± 0.2", "99.3 ± 0.2", "95.1 ± 2.2"],
                ["mean", "91.5", "91.4", "91.7", "89.8"],
                ["total parameters", "–", "17×", "9.9×", "1.19×"],
                ["trained per task", "–", "100%", "52.9%", "1.14%"],
            ],
        )
