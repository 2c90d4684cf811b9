"""Tests of ablation_results.py: reads run_ablation.py's results into a table and cells."""

import json
import math
import os
import tempfile

import tensorflow.compat.v1 as tf

from adapter_bert.paper import ablation_results
from adapter_bert.shell.errors import UserError
from adapter_tests.support.records import ABLATION, ABLATION_FILE


class AblationResultsTest(tf.test.TestCase):
    def write(self, content):
        path = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "ablation.json")
        with open(path, "w") as writer:
            json.dump(content, writer)
        return path

    def test_scores_are_read_in_points(self):
        (found,) = ablation_results.read([self.write(ABLATION_FILE)])
        self.assertAllClose(found.pop("scores"), ABLATION["scores"])
        self.assertEqual({**found, "scores": ABLATION["scores"]}, ABLATION)

    def test_models_of_a_task_form_one_ablation(self):
        second = {**ABLATION_FILE, "adapter": "b2", "all": 0.77}
        mrpc = {**ABLATION_FILE, "task": "MRPC"}  # The same adapter on other data.
        paths = [self.write(content) for content in (ABLATION_FILE, mrpc, second)]
        report = ablation_results.report(ablation_results.read(paths))
        self.assertAllClose(report.panels[0].values[0, 0], -1.5)
        # Mean 76, standard error sqrt(2) / sqrt(2) = 1.
        (table,) = report.tables
        self.assertEqual(table.rows[0][:3], ["CoLA", "76.0 ± 1.0", "74.5 ± 0.0"])
        self.assertEqual(table.rows[1][:3], ["MRPC", "75.0", "74.5"])
        self.assertEqual([row[-1] for row in table.rows], ["68.8", "68.8"])

    def test_duplicate_or_mismatched_models_are_refused(self):
        first = self.write(ABLATION_FILE)
        for change, problem in (
            ({}, "of the same adapter as an earlier file"),
            ({"adapter": "b2", "majority": 0.5}, "an earlier file of CoLA differ in setting, BERT"),
            ({"adapter": "b2", "data": "d4"}, "an earlier file of CoLA differ in setting, BERT"),
            ({"adapter": "b2", "setting": "s5"}, "an earlier file of CoLA differ in setting, BERT"),
        ):
            with self.assertRaisesRegex(UserError, problem):
                ablation_results.read([first, self.write({**ABLATION_FILE, **change})])

    def test_regression_has_no_majority_score(self):
        content = {name: value for name, value in ABLATION_FILE.items() if name != "majority"}
        report = ablation_results.report(ablation_results.read([self.write(content)]))
        self.assertEqual(report.tables[0].columns[-1], "all removed")
        methods = [row["method"] for row in report.numbers]
        self.assertEqual(methods, ["all adapters", "no adapters", *["layers removed"] * 3])
        classifier = {**ABLATION_FILE, "task": "MRPC", "majority": 0.68}
        both = ablation_results.read([self.write(content), self.write(classifier)])
        (table,) = ablation_results.report(both).tables
        self.assertEqual(table.columns[-1], "majority class")
        self.assertEqual([row[-1] for row in table.rows], ["–", "68.0"])

    def test_invalid_files_are_refused(self):
        with self.assertRaisesRegex(UserError, "--ablations: missing.json: cannot be read"):
            ablation_results.read(["missing.json"])
        broken_spans = [[1, 1], [1, 2, 0.5], [1, 0, 0.5], ["1", "1", 0.5], [1.0, 1, 0.5]]
        broken_spans += [[1, 1, "0.5"], [1, 1, 10**400]]
        *others, _ = ABLATION_FILE["spans"]
        changes = [{"spans": [*others, span]} for span in broken_spans]
        changes += [{"spans": others}, {"spans": 5}]
        changes += [{"all": "x"}, {"all": []}, {"none": None}, {"majority": "x"}, {"task": ["a"]}]
        changes += [{"num_layers": 10**9}, {"num_layers": None}, {"score": 1}]
        changes += [
            {"num_layers": 0, "spans": []},
            {"all": math.nan},
            {"none": math.inf},
            {"all": 1e308},
        ]
        for broken in ({"task": "CoLA"}, *({**ABLATION_FILE, **change} for change in changes)):
            with self.assertRaisesRegex(UserError, "is no ablation.json"):
                ablation_results.read([self.write(broken)])
        nested = os.path.join(self.get_temp_dir(), "nested.json")
        with open(nested, "w") as writer:
            writer.write("[" * 100000)
        with self.assertRaisesRegex(UserError, "is not valid JSON"):
            ablation_results.read([nested])
        with self.assertRaisesRegex(UserError, "expected a JSON object"):
            ablation_results.read([self.write([])])
