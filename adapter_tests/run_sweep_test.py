"""Tests of run_sweep.py: real trainings of a tiny model."""

import contextlib
import io
import json
import os
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf

import run_sweep
from adapter_bert.shell.errors import UserError
from adapter_bert.sweeps import records, sweep
from adapter_tests.support import command_lines, tiny
from adapter_tests.support.records import seeds, with_majority


class RunSweepTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.root = self.get_temp_dir()
        self.folder = os.path.join(self.root, "sweep")
        bert = tiny.write_bert(os.path.join(self.root, "bert"), num_hidden_layers=1)
        os.environ["BERT_BASE_DIR"] = bert
        os.environ["GLUE_DIR"] = self.root
        tiny.write_mrpc(os.path.join(self.root, "MRPC"))
        for name in ("BERT_BASE_DIR", "GLUE_DIR"):
            self.addCleanup(os.environ.pop, name)

    def run_sweep(self, *arguments, further_flags=("--max_seq_length=16",)):
        arguments = [f"--output_dir={self.folder}", *arguments]
        return run_sweep.run(
            command_lines.parsed(run_sweep.define_flags, *arguments), further_flags
        )

    def grid(self, **common):
        path = os.path.join(self.root, "grid.json")
        trial_grids = [
            {"adapter_size": [2, 4]},
            {"tuning": "top_layers", "num_top_layers": [1, 99]},
        ]
        with open(path, "w") as writer:
            json.dump({"common": {"task_name": "MRPC", **common}, "grids": trial_grids}, writer)
        return "--grid=" + path

    @pytest.mark.slow
    def test_sweep_runs_its_grid_and_prints_a_table(self):
        grid = self.grid(num_train_epochs=1, train_batch_size=12)
        with contextlib.redirect_stdout(io.StringIO()) as stdout, self.assertRaisesRegex(
            UserError, "^1 of 4 trials failed for the reasons above; add --retry_failed"
        ):
            self.run_sweep(grid, "--set=random_seed=7")
        _, header, rows = stdout.getvalue().rpartition("task ")
        table = (header + rows).splitlines()
        self.assertRegex(table[1], r"^MRPC  adapters +2 +2 +0 +0 +eval_f1 \d\.\d+ adapter_size=\d")
        self.assertRegex(table[2], r"^MRPC  top_layers  2 +1 +1 +0 +eval_f1 ")
        self.assertRegex(table[3], r"^failed: MRPC-top_layers-\w+: .*the encoder has 1 layers")
        self.assertEqual(self.run_sweep(grid, "--set=random_seed=7", "--status"), table)
        self.assertEqual(self.run_sweep(grid, "--set=random_seed=7", "--dry_run"), [])
        for record in records.read(self.folder):
            if record["flags"].get("adapter_size"):
                self.check_counts(record)

    def check_counts(self, record):
        """Compares with a count by hand.

        h = 8 wide (see tiny.config), one layer with 2 adapters, 3 LayerNorms.
        """
        width, size = tiny.config().hidden_size, record["flags"]["adapter_size"]
        adapters = 2 * (2 * width * size + size + width)
        trained = adapters + 3 * 2 * width + 2 * width + 2
        scores = record["scores"]
        self.assertEqual(scores["trained_parameters"], trained)
        self.assertEqual(
            scores["total_parameters"], scores["backbone_parameters"] + adapters + 2 * width + 2
        )

    def test_status_counts_trials_that_predict_one_label(self):
        grid = self.grid()
        with mock.patch.object(sweep.Sweep, "records", autospec=True) as read:
            read.side_effect = lambda runner: {
                key: {**entry, "key": key}
                for key, entry in zip(
                    runner.trials,
                    with_majority(
                        seeds("MRPC", [0.8, 0.7], score="f1", adapter_size=2), 0.8, [1, 3]
                    ),
                )
            }
            table = self.run_sweep(grid, "--status")
        self.assertRegex(table[1], r"eval_f1 0\.8000 adapter_size=2 \(predicts only one label\)$")
        expected = "one label: MRPC adapters: 1 of 2 finished trials predict only one label"
        self.assertIn(expected, table)

    def test_shards_count_from_0_or_1(self):
        self.assertEqual([run_sweep._shard(text) for text in ("1/2", "2/2")], [(1, 2), (0, 2)])
        self.assertEqual([run_sweep._shard(text) for text in ("0/2", "1/1")], [(0, 2), (0, 1)])
        for wrong in ("3/2", "1", "1/0", "-1/2", "a/b", "0/0", "1/" + "9" * 5000):
            with self.assertRaisesRegex(UserError, "expected i/n"):
                run_sweep._shard(wrong)

    def test_invalid_flags_and_grids_are_refused(self):
        for arguments in ((), ("--preset=glue", self.grid())):
            with self.assertRaisesRegex(UserError, "Set exactly one of --preset, --grid"):
                self.run_sweep(*arguments)
        with self.assertRaisesRegex(UserError, "^--chosen_from: there is no folder nowhere"):
            self.run_sweep("--chosen_from=nowhere")
        with self.assertRaisesRegex(UserError, "^--chosen_from=.*: the folder has no finished run"):
            self.run_sweep(f"--chosen_from={self.root}")
        twice = "--set=random_seed=1", "--set=--random_seed=2"
        with self.assertRaisesRegex(
            UserError, "^--set=--random_seed=2: random_seed is given twice"
        ):
            self.run_sweep(self.grid(), *twice)
        with self.assertRaisesRegex(UserError, "adaptr_size.*Did you mean"):
            self.run_sweep(self.grid(adaptr_size=3))

    def test_dry_run_lists_commands_of_preset_shard(self):
        arguments = "--preset=glue", "--only=task_name=MRPC", "--only=tuning=full"
        commands = self.run_sweep(*arguments, "--dry_run", "--shard=1/3")
        self.assertLen(commands, 7)  # The first of every three commands, for 4 rates and 5 seeds.
        self.assertIn("--task_name=MRPC", commands[0])
        self.assertIn("--max_seq_length=16", commands[0])

    def test_chosen_from_repeats_best_settings_of_another_sweep(self):
        entries = [
            *seeds("MRPC", [0.7, 0.8], score="f1", adapter_size=4, learning_rate=1e-3),
            *seeds("MRPC", [0.7, 0.9], score="f1", adapter_size=4, learning_rate=1e-2),
            *seeds("MRPC", [0.7, 0.9], score="f1", tuning="full", learning_rate=1e-5),
            *seeds("sms_spam", [0.7], script="run_baseline.py", hidden_layers=3),
        ]
        for entry, accuracy in zip(entries, (0.9, 0.9, 0.8, 0.8, 0.5, 0.5)):
            entry["scores"]["eval_accuracy"] = accuracy
        other = os.path.join(self.root, "other")
        os.makedirs(other)
        with open(os.path.join(other, "results.jsonl"), "w") as writer:
            writer.writelines(json.dumps(entry) + "\n" for entry in entries)
        arguments = f"--chosen_from={other}", "--set=random_seed=1,2,3", "--dry_run"
        for criterion, rate in (("score", 0.01), ("accuracy", 0.001)):
            commands = self.run_sweep(*arguments, f"--select_by={criterion}")
            adapters = [command for command in commands if "--adapter_size=4" in command]
            self.assertLen(adapters, 3)
            self.assertTrue(all(f"--learning_rate={rate} " in command for command in adapters))
            self.assertLen([command for command in commands if "--tuning=full" in command], 3)

    def test_chosen_from_refuses_several_data_sets_and_berts(self):
        for name, values in (
            ("data", [{"train": "a1"}, {"train": "b2"}]),
            ("backbone", [{"name": n, "fingerprint": n} for n in ("base", "large")]),
        ):
            with open(os.path.join(self.root, "results.jsonl"), "w") as writer:
                for entry, value in zip(seeds("MRPC", [0.7, 0.8], score="f1"), values):
                    writer.write(json.dumps({**entry, name: value}) + "\n")
            expected = "^--chosen_from=.*: found runs of (MRPC on different data|several BERTs)"
            with self.assertRaisesRegex(UserError, expected):
                self.run_sweep(f"--chosen_from={self.root}", "--dry_run")
