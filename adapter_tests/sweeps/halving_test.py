"""Tests of halving.py: each stage's trials against lists by hand, and kills at each stage."""

import collections
import json
import os
import signal
import subprocess
import sys
import time

import tensorflow.compat.v1 as tf

import run_sweep
from adapter_bert.files import paths
from adapter_bert.formats import task_adapter
from adapter_bert.shell.errors import UserError
from adapter_bert.sweeps import grids, halving, records, selection
from adapter_tests.support import command_lines, task_adapters, tiny

ROOT = paths.PROJECT  # Tests replace paths.PROJECT.


def trials_of(*trial_grids):
    """Returns an ordered dict from numbers to trials."""
    return collections.OrderedDict(enumerate(grids.expand_grids(list(trial_grids))))


def result(trial, score):
    """Returns a trial's record with the fields that halving reads; failed if the score is None."""
    outcome = {"status": "failed", "reason": "x"}
    if score is not None:
        outcome = {"status": "done", "score": "eval_f1", "scores": {"eval_f1": score}}
    return {"script": trial.script, "flags": dict(trial.flags), **outcome}


def train_all(trials, score):
    """Trains until no new key is admitted; returns the list of new keys of each stage."""
    stages, known = [], {}
    while True:
        admitted = halving.admitted_keys(trials, known)
        new = [key for key in admitted if key not in known]
        if not new:
            return stages
        stages.append(new)
        known.update({key: result(trials[key], score(dict(trials[key].flags))) for key in new})


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
        scores = {1: None, 2: 0.5, 3: 0.5, 4: 0.5}
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


# Stands in for run_classifier.py. It records its start, waits until the test lets it end, and
# writes the files of a training. Rate 2 is the best of 1 to 4.
SCRIPT = """
import json, os, shutil, sys, time
here = os.path.dirname(os.path.abspath(__file__))
flags = dict(argument[2:].split("=", 1) for argument in sys.argv[1:] if "=" in argument)
if "--only_check_args" in sys.argv:
    sys.exit()
rate, epochs = flags["learning_rate"], flags["num_train_epochs"]
with open(os.path.join(here, "starts"), "a") as starts:
    starts.write(f"{rate}@{epochs} {os.getpid()}\\n")
while not os.path.exists(os.path.join(here, f"go{rate}@{epochs}")):
    time.sleep(0.02)
output_dir = flags["output_dir"]
shutil.copytree(os.path.join(here, "adapter"), os.path.join(output_dir, "adapter"))
score = 1 / (1 + abs(2 - int(rate))) - 0.01 * int(rate) + 0.001 * int(epochs)
record = {"task": "MRPC", "score": "eval_f1", "eval_f1": score, "labels": ["0", "1"]}
with open(os.path.join(output_dir, "eval_results.json"), "w") as writer:
    json.dump(record, writer)
"""

SWEEPER = """
import sys
sys.path[:0] = [{root!r}]
import run_sweep
from adapter_bert.files import paths
from adapter_tests.support import command_lines
paths.PROJECT = {scripts!r}
arguments = "--grid={grid}", "--output_dir={folder}", "--halving"
print("\\n".join(run_sweep.run(command_lines.parsed(run_sweep.define_flags, *arguments))))
"""

# Rates 1 to 4, best score first, are 2, 1, 3, 4.
STAGES = [["1@1", "2@1", "3@1", "4@1"], ["1@2", "2@2"], ["2@4"]]


class KilledTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        root = self.get_temp_dir()
        self.scripts, self.folder = os.path.join(root, "scripts"), os.path.join(root, "sweep")
        os.environ["BERT_BASE_DIR"] = tiny.write_bert(os.path.join(root, "bert"))
        self.addCleanup(os.environ.pop, "BERT_BASE_DIR")
        os.makedirs(self.scripts)
        self.write("run_classifier.py", SCRIPT)
        adapter = task_adapter.TaskAdapter(task_adapters.description(), task_adapters.tensors())
        task_adapter.save(os.path.join(self.scripts, "adapter"), adapter)
        grid = {"learning_rate": [1, 2, 3, 4], "num_train_epochs": [1, 2, 4]}
        self.grid = self.write("grid.json", json.dumps({"grids": [{"adapter_size": 8, **grid}]}))

    def write(self, name, content=""):
        path = os.path.join(self.scripts, name)
        with open(path, "w") as writer:
            writer.write(content)
        return path

    def sweeper(self):
        program = SWEEPER.format(
            root=ROOT, scripts=self.scripts, grid=self.grid, folder=self.folder
        )
        return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)

    def starts(self):
        """Returns (rate@epochs, process id) of each start."""
        path = os.path.join(self.scripts, "starts")
        if not os.path.exists(path):
            return []
        with open(path) as reader:
            return [(name, int(number)) for name, number in map(str.split, reader)]

    def wait_for_start(self, name, count):
        for _ in range(2400):
            found = self.starts()
            if [start for start, _ in found].count(name) == count:
                return found[-1][1]
            time.sleep(0.05)
        raise AssertionError(f"{name} has not started within two minutes.")

    def test_sweep_resumes_after_a_kill_at_each_stage(self):
        for stage in STAGES:
            for name in stage[:-1]:
                self.write("go" + name)
            sweeper = self.sweeper()
            process = self.wait_for_start(stage[-1], 1)
            sweeper.kill()
            sweeper.communicate()
            os.kill(process, signal.SIGKILL)  # In the middle of the stage's last training.
            self.write("go" + stage[-1])
            for name in stage[:-1]:
                self.assertEqual([start for start, _ in self.starts()].count(name), 1)
        output, _ = self.sweeper().communicate()
        # Finished trials are not trained again. Killed trials are started again.
        killed = [stage[-1] for stage in STAGES]
        expected = collections.Counter([name for stage in STAGES for name in stage] + killed)
        self.assertEqual(collections.Counter(name for name, _ in self.starts()), expected)
        self.assertLen(records.read(self.folder), 7)
        table = output.decode().splitlines()
        self.assertEqual(table[-1], "halving: 7 of 12 trials selected")
        self.assertRegex(table[-3], r"adapters +12 +7 +0 +0 +eval_f1 0.9840 learning_rate=2")
        settings = selection.chosen_grids(records.read(self.folder))
        self.assertEqual([(s["learning_rate"], s["num_train_epochs"]) for s in settings], [(2, 4)])

    def test_shard_is_refused_and_dry_run_lists_first_stage(self):
        before, paths.PROJECT = paths.PROJECT, self.scripts
        self.addCleanup(setattr, paths, "PROJECT", before)

        def run(*arguments):
            arguments = f"--output_dir={self.folder}", "--halving", *arguments
            return run_sweep.run(command_lines.parsed(run_sweep.define_flags, *arguments))

        with self.assertRaisesRegex(UserError, "^--shard=1/2: --halving compares all trials"):
            run(f"--grid={self.grid}", "--shard=1/2")
        self.assertLen(run(f"--grid={self.grid}", "--dry_run"), 4)
