"""Tests of studies.py: results of run_baseline.py and run_ablation.py, in tables and curves."""

import dataclasses
import json
import math
import os
import tempfile

import tensorflow.compat.v1 as tf

from adapter_bert.baseline.search_space import PRESETS, SPACE
from adapter_bert.common.errors import UserError
from adapter_bert.experiments import studies
from adapter_tests.support.records import ABLATION, ABLATION_FILE


def trial(number, score, pruned=False, preset="airline", **changes):
    settings = dataclasses.asdict(PRESETS[preset])
    return {
        "number": number,
        "score": score,
        "pruned": pruned,
        "samples": 20_000,
        "seconds": 90.0,
        "settings": {**settings, **changes},
    }


TRIALS = [
    trial(0, 0.5),
    trial(1, 0.75, preset="sms_spam", module="/some/where/english/"),
    trial(2, None, True),
    trial(3, 0.625, True),
    trial(4, 0.75, hidden_layers=0),
]


class SearchResultsTest(tf.test.TestCase):
    def write(self, content):
        path = os.path.join(self.get_temp_dir(), "search.json")
        with open(path, "w") as writer:
            writer.write(content)
        return path

    def read(self, trials=TRIALS):
        search = {"task": "airline", "score": "eval_accuracy", "sampler": "tpe", "trials": trials}
        return studies.read_search(self.write(json.dumps({**search, "pruner": "none"})))

    def test_the_best_is_the_first_of_equals(self):
        self.assertEqual(studies.best_trial(self.read())["number"], 1)

    def test_numbers(self):
        numbers = studies.search_rows(self.read())
        self.assertEqual([row["points"] for row in numbers], [50.0, 75.0, None, 62.5, 75.0])
        self.assertEqual([row["trial"] for row in numbers], [0, 1, 2, 3, 4])
        self.assertEqual(list(numbers[0])[-len(SPACE) :], list(SPACE))
        self.assertEqual(numbers[1]["module"], "english")  # No path of anybody's.

    def test_tables(self):
        search = self.read()
        columns, rows = studies.search_summary([search], ["Airline"])
        self.assertEqual(rows, [["Airline", "5", "2", "1", "75.0", "0.12"]])
        self.assertLen(columns, 6)
        others = self.read(TRIALS[4:])
        columns, rows = studies.selected_settings([search, others], ["A", "B"])
        self.assertEqual(columns, ["", "A", "B"])
        rows = {name: values for name, *values in rows}
        self.assertEqual(list(rows), [name.replace("_", " ") for name in SPACE])
        self.assertEqual(rows["module"], ["english", "English-big"])
        self.assertEqual(rows["use convolution"], ["yes", "yes"])
        self.assertEqual(rows["conv filters"], ["54", "200"])
        self.assertEqual(rows["hidden layers"], ["1", "0"])
        self.assertEqual(rows["hidden size"], ["128", "–"])
        flat = self.read([trial(0, 0.5, use_convolution=False)])
        rows = dict(studies.selected_settings([flat], ["A"])[1])
        self.assertEqual((rows["conv filters"], rows["lowercase"]), ("–", "no"))

    def test_panel(self):
        panel = studies.search_panel(self.read(), "Airline", "accuracy (%)")
        self.assertTrue(panel.is_linear)
        points = {series.label: [p[:2] for p in series.points] for series in panel.series}
        self.assertEqual(points["trial"], [(0, 50.0), (1, 75.0), (4, 75.0)])
        self.assertEqual(points["stopped early"], [(3, 62.5)])
        steps = [(0, 50.0), (1, 50.0), (1, 75.0), (3, 75.0), (3, 75.0), (4, 75.0), (4, 75.0)]
        self.assertEqual(points["best so far"], steps)

    def test_what_is_no_search(self):
        for content in ("{}", '{"trials": []}', '{"trials": [{"score": 1}]}'):
            with self.assertRaisesRegex(UserError, "^--searches: .*search.json is no search.json"):
                studies.read_search(self.write(content))
        for change in (
            {"score": "0.5"},
            {"score": 10**400},
            {"score": math.nan},
            {"seconds": math.inf},
            {"settings": {**TRIALS[0]["settings"], "conv_dropout": math.nan}},
            {"number": "0"},
            {"seconds": None},
            {"pruned": 0},
            {"settings": {"module": "english"}},
            {"settings": {**TRIALS[0]["settings"], "conv_dropout": ["0.1"]}},
        ):
            with self.assertRaisesRegex(UserError, "^--searches: .*search.json is no search.json"):
                self.read([{**TRIALS[0], **change}])
        for content in ("", "[]"):
            with self.assertRaisesRegex(UserError, "^--searches: .*search.json: (is not|expected)"):
                studies.read_search(self.write(content))
        with self.assertRaisesRegex(UserError, r"^--searches: nowhere: cannot be read \(.*No such"):
            studies.read_search("nowhere")


class AblationResultsTest(tf.test.TestCase):
    def write(self, content):
        path = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "ablation.json")
        with open(path, "w") as writer:
            json.dump(content, writer)
        return path

    def test_it_is_read_in_points(self):
        (found,) = studies.read_ablations([self.write(ABLATION_FILE)])
        self.assertEqual(found._replace(spans={}), ABLATION._replace(spans={}))
        self.assertAllClose(found.spans, ABLATION.spans)

    def test_models_of_a_task_form_one_ablation(self):
        second = {**ABLATION_FILE, "adapter": "b2", "all": 0.77}
        mrpc = {**ABLATION_FILE, "task": "MRPC"}  # The same adapter on other data.
        paths = [self.write(content) for content in (ABLATION_FILE, mrpc, second)]
        cola, other = studies.read_ablations(paths)
        self.assertEqual((cola.task, other.task), ("CoLA", "MRPC"))
        self.assertAllClose(cola.full, [75.0, 77.0])
        self.assertAllClose(cola.changes(0, 0), [-0.5, -2.5])
        # Mean 76, standard error sqrt(2) / sqrt(2) = 1.
        row = studies.ablation_table([cola]).rows[0]
        self.assertEqual(row[:5], ["CoLA", "accuracy", "2", "76.0 ± 1.0", "74.5 ± 0.0"])

    def test_models_that_do_not_match(self):
        first = self.write(ABLATION_FILE)
        for change, problem in (
            ({}, "of the same adapter as an earlier file"),
            ({"adapter": "b2", "majority": 0.5}, "an earlier file of CoLA differ in setting, BERT"),
            ({"adapter": "b2", "data": "d4"}, "an earlier file of CoLA differ in setting, BERT"),
            ({"adapter": "b2", "setting": "s5"}, "an earlier file of CoLA differ in setting, BERT"),
        ):
            with self.assertRaisesRegex(UserError, problem):
                studies.read_ablations([first, self.write({**ABLATION_FILE, **change})])

    def test_a_regression_has_no_majority(self):
        content = {name: value for name, value in ABLATION_FILE.items() if name != "majority"}
        (found,) = studies.read_ablations([self.write(content)])
        self.assertEqual(studies.ablation_table([found]).rows[0][-1], "–")
        methods = [cell.method for cell in studies.ablation_cells(found)]
        self.assertEqual(methods, ["all adapters", "no adapters", *["layers removed"] * 3])

    def test_broken_files(self):
        with self.assertRaisesRegex(UserError, "--ablations: missing.json: cannot be read"):
            studies.read_ablations(["missing.json"])
        broken_spans = [[1, 1], [1, 2, 0.5], [1, 0, 0.5], ["1", "1", 0.5], [1.0, 1, 0.5]]
        broken_spans += [[1, 1, "0.5"], [1, 1, 10**400]]
        *others, _ = ABLATION_FILE["spans"]
        changes = [{"spans": [*others, span]} for span in broken_spans]
        changes += [{"spans": others}, {"spans": 5}]
        changes += [{"all": "x"}, {"all": []}, {"none": None}, {"majority": "x"}, {"task": ["a"]}]
        changes += [{"num_layers": 10**9}, {"num_layers": None}, {"score": 1}]
        changes += [{"num_layers": 0, "spans": []}, {"all": math.nan}, {"none": math.inf}]
        for broken in ({"task": "CoLA"}, *({**ABLATION_FILE, **change} for change in changes)):
            with self.assertRaisesRegex(UserError, "is no ablation.json"):
                studies.read_ablations([self.write(broken)])
        nested = os.path.join(self.get_temp_dir(), "nested.json")
        with open(nested, "w") as writer:
            writer.write("[" * 100000)
        with self.assertRaisesRegex(UserError, "is not valid JSON"):
            studies.read_ablations([nested])
        with self.assertRaisesRegex(UserError, "expected a JSON object"):
            studies.read_ablations([self.write([])])
