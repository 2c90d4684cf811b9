"""Tests of halving.py: each stage's trials against lists by hand, and kills at each stage."""

import collections
import json
import math
import os

import tensorflow.compat.v1 as tf

import run_sweep
from adapter_bert.shell.errors import UserError
from adapter_bert.sweeps import grids, halving, records, selection
from adapter_tests.support import command_lines
from adapter_tests.support.sweeps import SweepTestCase


def trials_of(*trial_grids):
    """Returns an ordered dict from numbers to trials."""
    return collections.OrderedDict(enumerate(grids.expand_grids(list(trial_grids))))


def train_all(trials, score):
    """Trains until no new key is admitted; returns the list of new keys of each stage."""
    stages, known = [], {}
    while True:
        admitted = halving.admitted_keys(trials, known)
        new = [key for key in admitted if key not in known]
        if not new:
            return stages
        stages.append(new)
        for key in new:
            known[key] = score(dict(trials[key].flags))


class AdmittedKeysTest(tf.test.TestCase):
    def stages(self, trials, score, *names):
        """Returns the stages; each trial is a tuple of the values of the named flags."""
        return [
            [tuple(dict(trials[key].flags)[name] for name in names) for key in stage]
            for stage in train_all(trials, score)
        ]

    def test_better_half_of_settings_gets_more_epochs(self):
        trials = trials_of({"learning_rate": [1, 2, 3, 4, 5], "num_train_epochs": [20, 3, 10]})
        scores = {1: 0.3, 2: 0.5, 3: 0.9, 4: 0.7, 5: 0.1}
        stages = self.stages(
            trials,
            lambda flags: scores[flags["learning_rate"]],
            "learning_rate",
            "num_train_epochs",
        )
        self.assertEqual(
            stages,
            [
                [(1, 3), (2, 3), (3, 3), (4, 3), (5, 3)],
                [(2, 10), (3, 10), (4, 10)],
                [(3, 20), (4, 20)],
            ],
        )

    def test_seeds_are_averaged_and_admitted_together(self):
        trials = trials_of(
            {"learning_rate": [1, 2], "num_train_epochs": [3, 10], "random_seed": [1, 2]}
        )
        scores = {(1, 1): 0.9, (1, 2): 0.1, (2, 1): 0.6, (2, 2): 0.6}
        stages = self.stages(
            trials,
            lambda flags: scores[flags["learning_rate"], flags["random_seed"]],
            *("learning_rate", "num_train_epochs", "random_seed"),
        )
        self.assertEqual(stages[1], [(2, 10, 1), (2, 10, 2)])

    def test_sizes_tasks_and_methods_do_not_compete(self):
        common = {
            "task_name": ["MRPC", "CoLA"],
            "learning_rate": [1, 2],
            "num_train_epochs": [3, 10],
        }
        trials = trials_of({**common, "adapter_size": [8, 64]}, {**common, "tuning": "full"})
        stages = self.stages(
            trials,
            lambda flags: flags["learning_rate"] * (1 if flags["task_name"] == "MRPC" else -1),
            *("task_name", "learning_rate"),
        )
        self.assertLen(stages[0], 2 * 2 * 3)
        self.assertCountEqual(stages[1], 3 * [("MRPC", 2), ("CoLA", 1)])

    def test_failed_trials_lose_and_ties_keep_grid_order(self):
        trials = trials_of({"learning_rate": [1, 2, 3, 4], "num_train_epochs": [3, 10]})
        scores = {1: -math.inf, 2: 0.5, 3: 0.5, 4: 0.5}
        stages = self.stages(trials, lambda flags: scores[flags["learning_rate"]], "learning_rate")
        self.assertEqual(stages[1], [(2,), (3,)])

    def test_settings_without_epochs_have_the_default(self):
        trials = trials_of(
            {"learning_rate": [1, 2]}, {"learning_rate": [1, 2], "num_train_epochs": [3, 10]}
        )
        stages = [
            [dict(trials[key].flags).get("num_train_epochs", 5) for key in stage]
            for stage in train_all(trials, lambda flags: flags["learning_rate"])
        ]
        self.assertEqual(stages, [[3, 3], [5], [10]])

    def test_settings_with_one_number_of_epochs_train_at_once(self):
        trials = trials_of(
            {"learning_rate": [1, 2], "num_train_epochs": [3, 10]},
            {"tuning": "full", "learning_rate": [1, 2], "num_train_epochs": 3},
        )
        stages = train_all(trials, lambda flags: flags["learning_rate"])
        self.assertEqual([len(stage) for stage in stages], [4, 1])
        with self.assertRaisesRegex(UserError, "^--halving: each setting has one number of epochs"):
            halving.admitted_keys(trials_of({"learning_rate": [1, 2], "num_train_epochs": 3}), {})
        with self.assertRaisesRegex(
            UserError, "^--halving: num_train_epochs is '.EPOCHS'; expected"
        ):
            halving.admitted_keys(trials_of({"num_train_epochs": [3, "$EPOCHS"]}), {})


class SweepTest(SweepTestCase):
    def run_sweep(self, *arguments):
        path = os.path.join(self.scripts, "grid.json")
        grid = {"adapter_size": 8, "learning_rate": [1, 2, 3, 4], "num_train_epochs": [1, 2, 4]}
        with open(path, "w") as writer:
            json.dump({"grids": [grid]}, writer)
        given = f"--grid={path}", f"--output_dir={self.folder}", "--halving", *arguments
        return run_sweep.run(command_lines.parsed(run_sweep.define_flags, *given))

    def starts(self):
        return [f"{f['learning_rate']}@{f['num_train_epochs']}" for f in self.started_flags()]

    def test_sweep_resumes_in_each_stage(self):
        self.go()
        stages = [["1@1", "2@1", "3@1", "4@1"], ["1@2", "2@2"], ["2@4"]]
        expected = [name for stage in stages for name in stage]
        table = self.run_sweep()
        self.assertEqual(self.starts(), expected)
        self.assertEqual(table[-1], "halving: 7 of 12 trials selected")
        self.assertRegex(table[1], r"adapters +12 +7 +0 +0 +eval_f1 0.0800 learning_rate=2")
        settings = selection.chosen_grids(records.read(self.folder), "score")
        self.assertEqual([(s["learning_rate"], s["num_train_epochs"]) for s in settings], [(2, 4)])
        path = os.path.join(self.folder, "results.jsonl")
        with open(path) as reader:
            lines = reader.readlines()
        for recorded in (3, 5, 6):  # As if a kill came in the last trial of each stage.
            with open(path, "w") as writer:
                writer.writelines(lines[:recorded])
            os.remove(os.path.join(self.scripts, "starts"))
            self.assertEqual(self.run_sweep()[-1], table[-1])
            self.assertEqual(self.starts(), expected[recorded:])

    def test_shard_is_refused_and_dry_run_lists_first_stage(self):
        with self.assertRaisesRegex(UserError, "^--shard=1/2: --halving compares all trials"):
            self.run_sweep("--shard=1/2")
        self.assertLen(self.run_sweep("--dry_run"), 4)
