"""Tests of run_report.py: the reports that it writes and the input that it refuses."""

import json
import os

import tensorflow.compat.v1 as tf

import run_report
from adapter_bert.shell.errors import UserError
from adapter_tests.support import command_lines
from adapter_tests.support.records import ABLATION_FILE, record, seeds


class RunReportTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.get_temp_dir()
        self.out = os.path.join(self.folder, "out")
        self.write_records(
            [
                *seeds("CoLA", [0.2, 0.3], score="matthews"),
                *seeds("MRPC", [0.8, 0.8]),
                {**record("MRPC", 0.9), "status": "failed", "reason": "x"},
            ]
        )

    def write_records(self, records):
        with open(os.path.join(self.folder, "results.jsonl"), "w") as writer:
            writer.write("".join(json.dumps(entry) + "\n" for entry in records))

    def run_report(self, *arguments, records=True):
        given = [f"--records={self.folder}"] if records else []
        arguments = [f"--report_dir={self.out}", *given, *arguments]
        return run_report.run(command_lines.parsed(run_report.define_flags, *arguments))

    def read(self, name):
        with open(os.path.join(self.out, name), encoding="utf-8") as reader:
            return reader.read()

    def assert_refused(self, pattern, *arguments, **options):
        with self.assertRaisesRegex(UserError, pattern):
            self.run_report(*arguments, **options)
        self.assertFalse(os.path.exists(self.out))

    def test_all_available_reports_are_written(self):
        undated, *lines = self.run_report()
        self.assertRegex(undated, "^4 of 4 finished trials have no digest of their data")
        names = ["table1.md", "table1.tsv", *(f"figure4.{e}" for e in ("md", "tsv", "png", "svg"))]
        self.assertEqual(lines, [f"Written: {os.path.join(self.out, name)}" for name in names])
        self.assertEqual(sorted(os.listdir(self.out)), sorted(names))
        self.assertEqual(self.run_report("--report="), [undated, *lines])
        # The failed run's 90.0 is left out.
        self.assertIn("| adapters 64 | 30.0 | 80.0 | 55.0 |", self.read("table1.md"))

    def test_texts_of_records_are_cleaned(self):
        bad = "\x1b]0;x\x07<script>\u202e|$\n# y"
        self.write_records(seeds(bad, [0.2, 0.3], score=bad, init_checkpoint=bad))
        self.run_report("--report=figure4")
        for name in os.listdir(self.out):
            content = self.read(name) if not name.endswith(".png") else ""
            self.assertTrue(content.replace("\n", "").replace("\t", "").isprintable(), name)
            self.assertNotRegex(content, r"(?<!\\)<script>|\n# y" if name.endswith("md") else "\n#")

    def test_trainings_on_different_data_are_refused(self):
        others = [{**one, "data": {"dev": one["key"]}} for one in seeds("MRPC", [0.7, 0.8])]
        self.write_records([*others, record("CoLA", 0.2, score="matthews")])
        self.assert_refused("--records: found runs of MRPC on different data")
        self.run_report("--report=table1", "--tasks=CoLA")

    def test_name_and_tasks_flags_change_the_report(self):
        self.run_report("--report=figure4,figure4", "--tasks=MRPC", "--name=sizes")
        expected = [f"sizes.{ending}" for ending in ("md", "png", "svg", "tsv")]
        self.assertEqual(sorted(os.listdir(self.out)), expected)
        self.assertIn("](sizes.png)", self.read("sizes.md"))
        self.assertNotIn("CoLA", self.read("sizes.tsv"))

    def test_equal_epochs_leaves_out_epochs_of_one_method(self):
        self.write_records(
            [
                record("CoLA", 0.2, num_train_epochs=3),
                record("CoLA", 0.9, num_train_epochs=20),
                record("CoLA", 0.4, num_train_epochs=3, tuning="full"),
            ]
        )
        for flags, value in (((), "90.0"), (("--equal_epochs",), "20.0")):
            self.run_report("--report=table1", *flags)
            rows = [
                line for line in self.read("table1.md").split("\n") if "| adapters 64 |" in line
            ]
            self.assertIn(f"| adapters 64 | {value} |", rows[0])

    def test_ablation_report_needs_no_records(self):
        path = os.path.join(self.folder, "ablation.json")
        with open(path, "w") as writer:
            json.dump(ABLATION_FILE, writer)
        self.run_report("--report=figure6", f"--ablations={path}", records=False)
        self.assertIn("figure6.svg", os.listdir(self.out))

    def test_invalid_flags_are_refused(self):
        for pattern, *arguments in (
            ("--report=figure9: expected only all, or names from", "--report=figure9"),
            ("--report=all,figure4: expected only all, or", "--report=all,figure4"),
            ("missing table2: trainings of further tasks", "--report=table1,table2"),
            ("--tasks=RTE: no finished run; found CoLA, MRPC", "--tasks=RTE"),
            ("--name=x requires a single --report", "--report=all", "--name=x"),
        ):
            self.assert_refused(pattern, *arguments)
        self.assert_refused("--records is not given", records=False)
        missing = os.path.join(self.folder, "missing")
        self.assert_refused(f"--records: there is no folder {missing}", f"--records={missing}")
        os.mkdir(missing)
        self.assert_refused("the folder has no finished run", f"--records={missing}")
        self.write_records([record("own", 0.9, script="run_tagger.py")])
        self.assert_refused("^No report fits the finished runs; name one to see what")

    def test_records_of_several_berts_are_refused(self):
        backbones = [{"name": name, "fingerprint": name[::-1]} for name in ("base", "large")]
        records = [{**record("MRPC", 0.8), "backbone": backbone} for backbone in backbones]
        self.write_records(records)
        self.assert_refused(r"several BERTs \(base, large\)")
        self.write_records([records[0], {**records[1], "task": "RTE"}])
        self.run_report("--report=table1", "--tasks=MRPC")

    def test_ablations_of_another_bert_are_refused(self):
        base = {**record("MRPC", 0.8), "backbone": {"name": "base", "fingerprint": "b1"}}
        self.write_records([base])
        path = os.path.join(self.folder, "ablation.json")
        with open(path, "w") as writer:
            json.dump({**ABLATION_FILE, "backbone": "b2"}, writer)
        self.assert_refused("--ablations: another BERT", f"--ablations={path}")
        with open(path, "w") as writer:
            json.dump(ABLATION_FILE, writer)
        self.run_report("--report=claims", f"--ablations={path}")

    def test_unwritable_report_dir_is_refused(self):
        with open(self.out, "w"):
            pass
        with self.assertRaisesRegex(UserError, "cannot be written"):
            self.run_report("--report=table1")

    def test_compare_shows_accuracies_and_p_value(self):
        for name, text in (
            ("labels.tsv", "index\tlabel\n0\tno\n1\tyes\n"),
            ("a.tsv", "index\tlabel\tno\tyes\n0\tno\t1\t0\n1\tyes\t0\t1\n"),
            ("b.tsv", "index\tlabel\tno\tyes\n0\tyes\t0\t1\n1\tyes\t0\t1\n"),
        ):
            with open(os.path.join(self.folder, name), "w") as writer:
                writer.write(text)
        a, b, labels = (os.path.join(self.folder, n) for n in ("a.tsv", "b.tsv", "labels.tsv"))
        lines = self.run_report(f"--compare={a},{b}", f"--labels={labels}", records=False)
        self.assertIn("Accuracy: first 100.00%, second 50.00%, of 2 rows", lines)
        self.assertRegex(lines[-1], "p = 1$")
        for unused in ("--tasks=MRPC", "--select_by=score", "--name=x", "--equal_epochs"):
            with self.assertRaisesRegex(UserError, "^--compare needs no flag of tables"):
                self.run_report(f"--compare={a},{b}", f"--labels={labels}", unused, records=False)
        for given in ((f"--compare={a}", f"--labels={labels}"), (f"--compare={a},{b}",)):
            self.assert_refused("--compare requires two files", *given)
