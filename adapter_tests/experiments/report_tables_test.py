"""Tests of report_tables.py: cells and tables by hand, with gaps."""

import tensorflow.compat.v1 as tf

from adapter_bert.experiments import report_tables, selection
from adapter_bert.experiments.report_tables import Cell, Table
from adapter_bert.experiments.selection import FULL, TEST, VALIDATION
from adapter_tests.support.records import record, seeds


def cell(method, task, value, sem=None, level=None, share=0.01, trained=100):
    choice = selection.Selected("eval_accuracy", value, sem, 3, trained, share, {"tuning": "full"})
    return Cell(method, level, task, choice)


class CellsTest(tf.test.TestCase):
    def test_of_each_task_in_the_papers_order(self):
        records = [
            *seeds("sms_spam", [0.9, 0.8], [0.7, 0.9]),
            *seeds("CoLA", [0.1, 0.3], [0.2, 0.4]),
            record("MRPC", 0.5),
        ]
        found = report_tables.cells_of("adapters", records, TEST, level=64)
        self.assertEqual([c.task for c in found], ["CoLA", "sms_spam"])
        self.assertEqual([c.text for c in found], ["30.0 ± 10.0", "80.0 ± 10.0"])
        self.assertEqual([c[:2] for c in found], 2 * [("adapters", 64)])

    def test_along_levels(self):
        records = [
            record("CoLA", 0.3, adapter_size=64),
            record("CoLA", 0.2, adapter_size=8),
            record("MRPC", 0.1, adapter_size=8),
        ]
        found = report_tables.cells_along("adapters", records, "adapter_size")
        expected = [(8, "CoLA", "20.0"), (8, "MRPC", "10.0"), (64, "CoLA", "30.0")]
        self.assertEqual([(c.level, c.task, c.text) for c in found], expected)

    def test_by_the_best(self):
        records = seeds("CoLA", [0.1, 0.3])
        (found,) = report_tables.cells_of("all", records, VALIDATION, selection.choose_best)
        self.assertEqual(found.text, "30.0")


class MethodsTableTest(tf.test.TestCase):
    def test_gaps_means_and_costs(self):
        cells = [
            cell(FULL.label, "CoLA", 50.0, share=1.001),
            cell(FULL.label, "MRPC", 80.0, share=1.001),
            cell(FULL.label, "airline", 70.0, share=1.001),
            cell("adapters", "airline", 60.0, share=0.02),
            cell("adapters", "CoLA", 40.0, 1.25, share=0.04),
            cell("baseline", "CoLA", 20.0, share=None),
            cell("baseline", "airline", 21.0, share=None),
        ]
        found = report_tables.methods_table("all", cells, num_tasks=5)
        gap = report_tables.GAP
        # Means are over CoLA and airline; 1 + 5 * 0.03 = 1.15.
        self.assertEqual(
            found,
            Table(
                "all",
                [
                    *("", "CoLA", "MRPC", "airline", "mean of CoLA, airline"),
                    *("total parameters", "trained per task"),
                ],
                [
                    [FULL.label, "50.0", "80.0", "70.0", "60.0", "5.00×", "100%"],
                    ["adapters", "40.0 ± 1.2", gap, "60.0", "50.0", "1.15×", "3.00%"],
                    ["baseline", "20.0", gap, "21.0", "20.5", gap, gap],
                ],
            ),
        )
        without = report_tables.methods_table("", cells[:2])
        self.assertEqual(without.columns, ["", "CoLA", "MRPC", "mean"])
        self.assertEqual(without.rows, [[FULL.label, "50.0", "80.0", "65.0"]])

    def test_means_are_over_the_same_tasks(self):
        cells = [
            *(cell(method, task, 50.0) for method in "ab" for task in ("CoLA", "MRPC")),
            cell("b", "RTE", 80.0),
            cell("c", "MRPC", 50.0),
        ]
        # Two tasks of two methods are more than one task of three, or three tasks of one.
        table = report_tables.methods_table("", cells)
        self.assertEqual(table.columns, ["", "CoLA", "MRPC", "RTE", "mean of CoLA, MRPC"])
        means = [row[4] for row in table.rows]
        self.assertEqual(means, ["50.0", "50.0", report_tables.GAP])
        self.assertEqual(report_tables.methods_table("", []).rows, [])

    def test_turned(self):
        table = Table("all", ["", "x", "y"], [["a", "1", "2"], ["b", "3", "4"], ["c", "5", "6"]])
        turned = Table("all", ["", "a", "b", "c"], [["x", "1", "3", "5"], ["y", "2", "4", "6"]])
        self.assertEqual(report_tables.transpose(table), turned)


class OtherTablesTest(tf.test.TestCase):
    def test_levels(self):
        cells = [
            cell("adapters", "CoLA", 20.0, 0.5, level=8, trained=100),
            cell("adapters", "MRPC", 80.0, level=8, trained=1200),
            cell("adapters", "CoLA", 25.0, level=0.0001),
            cell("head only", "MRPC", 70.0),
        ]
        found = report_tables.levels_table("", cells)
        self.assertEqual(found.columns, ["", "CoLA", "MRPC", "trained parameters"])
        self.assertEqual(
            found.rows,
            [
                ["adapters, 8", "20.0 ± 0.5", "80.0", "650"],
                ["adapters, 0.0001", "25.0", "–", "100"],
                ["head only", "–", "70.0", "100"],
            ],
        )

    def test_variants(self):
        cells = [
            cell("default", "CoLA", 20.0, level=64),
            cell("depth 2", "CoLA", 21.26, 1.0, level=64, trained=300),
            cell("depth 2", "MRPC", 80.0, level=64, trained=302),
        ]
        found = report_tables.variants_table(cells, [0.0, 1.26, None])
        expected = ["adapter", "size", "CoLA", "difference", "MRPC", "difference"]
        self.assertEqual(found.columns, [*expected, "trained parameters"])
        self.assertEqual(
            found.rows,
            [
                ["default", "64", "20.0", "+0.0", "–", "–", "100"],
                ["depth 2", "64", "21.3 ± 1.0", "+1.3", "80.0", "–", "301"],
            ],
        )

    def test_the_papers(self):
        (table,) = report_tables.paper_table_1(["CoLA", "MRPC", "airline"])
        self.assertEqual(table.columns[1:4], ["CoLA", "MRPC", "mean"])
        self.assertEqual(table.rows[0][1:], ["60.5", "89.3", "74.9", "9.0×", "100%"])
        self.assertEqual(report_tables.paper_table_1(["airline"]), [])
        (table,) = report_tables.paper_table_2(["CoLA", "airline", "sms_spam"])
        self.assertEqual(
            table.rows,
            [
                ["airline", "84.5", "83.6 ± 0.3", "84.0 ± 0.1", "84.5 ± 0.2"],
                ["SMS spam", "98.5", "99.3 ± 0.2", "99.3 ± 0.2", "95.1 ± 2.2"],
                ["mean", "91.5", "91.4", "91.7", "89.8"],
                ["total parameters", "–", "17×", "9.9×", "1.19×"],
                ["trained per task", "–", "100%", "52.9%", "1.14%"],
            ],
        )
        self.assertEqual(report_tables.paper_table_2(["CoLA"]), [])


class TextTest(tf.test.TestCase):
    def test_markdown(self):
        table = Table("", ["", "x"], [["a", "1"]])
        self.assertEqual(report_tables.to_markdown(table), "|  | x |\n| --- | --- |\n| a | 1 |")
        titled = report_tables.to_markdown(table._replace(heading="Title"))
        self.assertTrue(titled.startswith("## Title\n\n|  | x |\n"))

    def test_tsv(self):
        numbers = [
            {"task": "CoLA", "level": None, "points": 25.125, "trained": 22713986},
            {"task": "MRPC", "level": 1e-7, "points": 1 / 3, "trained": 5},
        ]
        self.assertEqual(
            report_tables.to_tsv(numbers),
            "task\tlevel\tpoints\ttrained\nCoLA\t\t25.125\t22713986\nMRPC\t1e-07\t0.333333\t5\n",
        )

    def test_seeds(self):
        cells = [cell("a", "CoLA", 1.0), cell("a", "MRPC", 1.0)]
        self.assertEqual(report_tables.count_seeds(cells), "3 seeds")
        cells[1] = cells[1]._replace(choice=cells[1].choice._replace(seeds=1))
        self.assertEqual(report_tables.count_seeds(cells), "1 to 3 seeds")
        self.assertEqual(report_tables.count_seeds(cells[1:]), "1 seed")
