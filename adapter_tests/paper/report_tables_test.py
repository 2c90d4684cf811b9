"""Tests of report_tables.py: means with gaps, and the paper's tables."""

import tensorflow.compat.v1 as tf

from adapter_bert.paper import published, report_tables
from adapter_bert.sweeps.selection import Cell


def cell(method, task, value):
    return Cell(method, None, task, "eval_accuracy", value)


class TablesTest(tf.test.TestCase):
    def test_mean_is_over_the_largest_table_without_gaps(self):
        cells = [
            *(cell(method, task, 50.0) for method in "ab" for task in ("CoLA", "MRPC")),
            cell("b", "RTE", 80.0),
            cell("c", "MRPC", 50.0),
        ]
        # Two tasks of two methods are more cells than one task of three, or three tasks of one.
        table = report_tables.methods_table("", cells, {})
        self.assertEqual(table.columns[:5], ["", "CoLA", "MRPC", "RTE", "mean of CoLA, MRPC"])
        means = [row[4] for row in table.rows]
        self.assertEqual(means, ["50.0", "50.0", report_tables.GAP])
        self.assertEqual(report_tables.methods_table("", [], {}).rows, [])

    def test_mean_may_cover_only_tasks_shared_by_all_methods(self):
        tasks = {"a": ("CoLA", "SST-2"), "b": ("CoLA", "MRPC"), "c": ("CoLA", "RTE")}
        cells = [cell(method, task, 50.0) for method in tasks for task in tasks[method]]
        # One task of three methods is more cells than two tasks of one.
        table = report_tables.methods_table("", cells, {})
        self.assertEqual(table.columns[5], "mean of CoLA")
        self.assertEqual([row[5] for row in table.rows], ["50.0"] * 3)


class PaperTableTest(tf.test.TestCase):
    def test_paper_tables_contain_the_requested_tasks(self):
        costs = {"full fine-tuning": ("9.0×", "100%")}
        table = report_tables.paper_table("", ["CoLA", "MRPC", "own"], costs)
        self.assertEqual(table.columns[1:4], ["CoLA", "MRPC", "mean"])
        self.assertEqual(table.rows[0][1:], ["60.5", "89.3", "74.9", "9.0×", "100%"])
        self.assertEqual(report_tables.paper_table("", ["own"], costs).rows, [])
        tasks = ["airline", "sms_spam"]
        table = report_tables.paper_table("", tasks, published.COSTS_2)
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
