"""Tests of results/README.md: compares its numbers with the records in the same folder."""

import csv
import glob
import os
import re

import tensorflow.compat.v1 as tf

import run_classifier
import run_squad
import run_tagger
from adapter_bert.sweeps import grids
from adapter_tests.support import command_lines

RESULTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "results")
SCRIPTS = {
    "run_classifier.py": run_classifier,
    "run_squad.py": run_squad,
    "run_tagger.py": run_tagger,
}


def read(name):
    with open(os.path.join(RESULTS, name), encoding="utf-8") as reader:
        return reader.read()


def tables_of(text):
    return [table.rstrip("\n") for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]


class PageTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        # docs_test generates the reports' pages from the records again, and compares them.
        names = [os.path.basename(path) for path in glob.glob(os.path.join(RESULTS, "*.md"))]
        self.reported = [
            table for name in names if name != "README.md" for table in tables_of(read(name))
        ]
        self.page = read("README.md")

    def test_every_table_on_the_page_is_from_a_report(self):
        tables = tables_of(self.page)
        self.assertNotEmpty(tables)
        for table in tables:
            self.assertIn(table, self.reported, table.split("\n", 1)[0])

    def test_readme_table_matches_table_1_records(self):
        rows = list(csv.DictReader(read("table1.tsv").splitlines(), delimiter="\t"))
        best = "adapters, size chosen per task (8, 64, 256)"
        labels = {"full": "full fine-tuning", "best": best, "8": "adapters 8", "64": "adapters 64"}
        points = {
            label: {row["task"]: row for row in reversed(rows) if row["method"] == name}
            for label, name in labels.items()
        }

        def texts(label, tasks):
            """Returns the mean score of tasks, and its difference from full fine-tuning."""
            mean, full = (
                sum(float(points[name][task]["points"]) for task in tasks) / len(tasks)
                for name in (label, "full")
            )
            difference = "" if label == "full" else f" ({mean - full:+.1f})".replace("-", "−")
            return f"{mean:.1f}{difference}"

        tasks = ["CoLA", "MRPC", "STS-B", "SST-2"]
        readme = read("../README.md")
        for label, beginning in (
            ("full", "full fine-tuning | 100%"),
            ("best", "adapters, best size for each task¹ | 3.48%"),
            ("8", "adapters, size 8 | 0.39%"),
            ("64", "adapters, size 64 (the default) | 2.67%"),
        ):
            cells = [texts(label, [task]) for task in tasks] + [texts(label, tasks)]
            self.assertIn(f"| {beginning} | {' | '.join(cells)} |", readme)
            if label != "full":
                trained = [int(points[label][task]["trained_parameters"]) for task in tasks]
                self.assertIn(f"{sum(trained) / 4 / 22_713_216:.2%}", beginning)

    def test_scripts_accept_the_flags_of_grids(self):
        for path in glob.glob(os.path.join(RESULTS, "grids", "*.json")):
            seen = set()
            for trial in grids.expand_grids(grids.read_grids(path)):
                names = tuple(name for name, _ in trial.flags)
                if (trial.script, names) not in seen:
                    seen.add((trial.script, names))
                    flags = [f"--{name}={value}" for name, value in trial.flags]
                    command_lines.parsed(SCRIPTS[trial.script].define_flags, *flags)
