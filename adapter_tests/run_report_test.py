"""Tests of run_report.py: the reports that it writes and the input that it refuses."""

import json
import os
import shutil

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
        self.write_records(seeds(bad, [0.2, 0.3], score=bad, adapter_fn=bad))
        self.run_report("--report=figure4")
        for name in os.listdir(self.out):
            content = self.read(name) if not name.endswith(".png") else ""
            self.assertTrue(content.replace("\n", "").replace("\t", "").isprintable(), name)
            self.assertNotRegex(content, r"(?<!\\)<script>|\n# y" if name.endswith("md") else "\n#")

    def test_trainings_on_different_data_are_refused(self):
        def on(data, *some):
            return [{**one, "data": {"train": "a1", **data}} for one in some]

        cola = record("CoLA", 0.2, score="matthews")
        same = on({"dev": "b2"}, *seeds("MRPC", [0.7, 0.8]))
        tested = on({"dev": "b2", "test": "c3"}, record("MRPC", 0.9, do_predict=True))
        copied = on({"dev": "b2"}, record("MRPC", 0.9, data_dir="/there/MRPC"))
        self.write_records([cola, *same, *tested, *copied])
        self.assertRegex(self.run_report()[0], "^1 of 5 finished trials have no digest")
        shutil.rmtree(self.out)
        for flags in ({}, {"data_dir": "/there/MRPC"}):
            others = on({"dev": "f6"}, record("MRPC", 0.9, **flags))
            self.write_records([*same, *others, *on({}, cola)])
            self.assert_refused("of MRPC on different data .digest of the dev split: b2 and f6")
        self.assertNotIn("digest", self.run_report("--tasks=CoLA")[0])
        shutil.rmtree(self.out)
        for name in ("label_column", "tag_column"):
            self.write_records([record("mails", 0.9, **{name: "2"}), record("mails", 0.9)])
            self.assert_refused(f"of mails on different data .--{name}: 2 and not given")

    def test_name_and_tasks_flags_change_the_report(self):
        self.run_report("--report=figure4", "--tasks=MRPC", "--name=sizes")
        expected = [f"sizes.{ending}" for ending in ("md", "png", "svg", "tsv")]
        self.assertEqual(sorted(os.listdir(self.out)), expected)
        self.assertIn("](sizes.png)", self.read("sizes.md"))
        self.assertNotIn("CoLA", self.read("sizes.tsv"))

    def test_duplicate_report_names_are_written_once(self):
        self.run_report("--report=table1,table1")
        self.assertEqual(sorted(os.listdir(self.out)), ["table1.md", "table1.tsv"])

    def test_ablation_report_needs_no_records(self):
        path = os.path.join(self.folder, "ablation.json")
        with open(path, "w") as writer:
            json.dump(ABLATION_FILE, writer)
        self.run_report("--report=figure6", f"--ablations={path}", records=False)
        self.assertIn("figure6.svg", os.listdir(self.out))

    def test_invalid_flags_are_refused(self):
        self.assert_refused(
            "--report=figure9: expected only all, or names from claims, table1", "--report=figure9"
        )
        self.assert_refused("--report=all,figure4: expected only all, or", "--report=all,figure4")
        self.assert_refused(
            "--report=table1,table2: missing table2: trainings of further tasks",
            "--report=table1,table2",
        )
        self.assert_refused("--tasks=RTE: no finished run; found CoLA, MRPC", "--tasks=RTE")
        self.assert_refused("--name=x requires a single --report", "--report=all", "--name=x")
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
        path = os.path.join(self.folder, "ablation.json")
        for backbone, is_refused in (("b1", False), ("b2", True)):
            self.write_records(
                [{**record("MRPC", 0.8), "backbone": {"name": "base", "fingerprint": "b1"}}]
            )
            with open(path, "w") as writer:
                json.dump({**ABLATION_FILE, "backbone": backbone}, writer)
            if is_refused:
                shutil.rmtree(self.out)
                self.assert_refused("--ablations: another BERT", f"--ablations={path}")
            else:
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
        for unused in ("--tasks=MRPC", "--select_by=score", "--name=x"):
            with self.assertRaisesRegex(UserError, "^--compare needs no flag of tables"):
                self.run_report(f"--compare={a},{b}", f"--labels={labels}", unused, records=False)
        self.assertRegex(lines[-1], "p = 1$")
        self.assert_refused("--compare requires two files", f"--compare={a}", f"--labels={labels}")
        self.assert_refused("--compare requires two files", f"--compare={a},{b}")
        self.assert_refused(
            "--compare needs no flag of tables", f"--compare={a},{b}", f"--labels={labels}"
        )
