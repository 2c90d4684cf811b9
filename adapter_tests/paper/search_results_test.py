"""Tests of search_results.py: results of run_baseline.py, in tables and curves."""

import dataclasses
import json
import math
import os

import tensorflow.compat.v1 as tf

from adapter_bert.paper import search_results
from adapter_bert.paper.baseline.search_space import PRESETS, SPACE
from adapter_bert.shell.errors import UserError


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
        return search_results.read(self.write(json.dumps({**search, "pruner": "none"})))

    def test_numbers_are_the_trials_scores_and_settings(self):
        numbers = search_results.report([self.read()]).numbers
        self.assertEqual([row["points"] for row in numbers], [50.0, 75.0, None, 62.5, 75.0])
        self.assertEqual([row["trial"] for row in numbers], [0, 1, 2, 3, 4])
        self.assertEqual(list(numbers[0])[-len(SPACE) :], list(SPACE))
        self.assertEqual(numbers[1]["module"], "english")  # The user's path is left out.

    def test_tables_show_the_first_of_equally_good_trials(self):
        other = {**self.read(TRIALS[4:]), "task": "sms_spam"}
        summary, settings = search_results.report([other, self.read()]).tables
        self.assertEqual(summary.rows[0], ["airline", "5", "2", "1", "75.0", "0.12"])
        self.assertEqual(settings.columns, ["", "airline", "SMS spam"])
        rows = {name: values for name, *values in settings.rows}
        self.assertEqual(list(rows), [name.replace("_", " ") for name in SPACE])
        self.assertEqual(rows["module"], ["english", "English-big"])
        self.assertEqual(rows["use convolution"], ["yes", "yes"])
        self.assertEqual(rows["conv filters"], ["54", "200"])
        self.assertEqual(rows["hidden layers"], ["1", "0"])
        self.assertEqual(rows["hidden size"], ["128", "–"])
        flat = self.read([trial(0, 0.5, use_convolution=False)])
        rows = dict(search_results.report([flat]).tables[1].rows)
        self.assertEqual((rows["conv filters"], rows["lowercase"]), ("–", "no"))

    def test_panel_shows_trials_and_best_score_so_far(self):
        (panel,) = search_results.report([self.read()]).panels
        self.assertEqual((panel.title, panel.y_label), ("airline", "Dev accuracy (%)"))
        self.assertTrue(panel.is_linear)
        points = {series.label: [p[:2] for p in series.points] for series in panel.series}
        self.assertEqual(points["trial"], [(0, 50.0), (1, 75.0), (4, 75.0)])
        self.assertEqual(points["stopped early"], [(3, 62.5)])
        steps = [(0, 50.0), (1, 50.0), (1, 75.0), (3, 75.0), (3, 75.0), (4, 75.0), (4, 75.0)]
        self.assertEqual(points["best so far"], steps)

    def test_invalid_search_files_are_refused(self):
        for content in ("{}", '{"trials": []}', '{"trials": [{"score": 1}]}'):
            with self.assertRaisesRegex(UserError, "^--searches: .*search.json is no search.json"):
                search_results.read(self.write(content))
        for change in (
            {"score": "0.5"},
            {"score": 10**400},
            {"score": math.nan},
            {"seconds": math.inf},
            {"seconds": 1e308},
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
                search_results.read(self.write(content))
        with self.assertRaisesRegex(UserError, r"^--searches: nowhere: cannot be read \(.*No such"):
            search_results.read("nowhere")
