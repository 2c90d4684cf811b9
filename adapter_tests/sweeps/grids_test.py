"""Tests of grids.py against trials listed by hand."""

import itertools
import json
import os
from unittest import mock

import tensorflow.compat.v1 as tf

import run_sweep
from adapter_bert.shell.errors import UserError
from adapter_bert.sweeps import grids
from adapter_tests.support import command_lines, mutations


def flags_of(trials):
    return [dict(trial.flags) for trial in trials]


class TrialsTest(tf.test.TestCase):
    def test_grid_expands_to_all_combinations(self):
        trials = grids.expand_grids([{"adapter_size": [8, 64], "random_seed": [1, 2, 3], "a": 5}])
        on = {"do_train": True, "do_eval": True, "a": 5}
        wanted = [{**on, "adapter_size": s, "random_seed": r} for s in (8, 64) for r in (1, 2, 3)]
        self.assertEqual(flags_of(trials), wanted)

    def test_duplicate_trials_of_grids_are_dropped(self):
        trial_grids = [{"adapter_size": [8, 64]}, {"adapter_size": [64.0, 256]}]
        sizes = [flags["adapter_size"] for flags in flags_of(grids.expand_grids(trial_grids))]
        self.assertEqual(sizes, [8, 64, 256])

    def test_only_filters_trials_by_flag_values(self):
        trial_grids = [{"adapter_size": [8, 64], "task_name": ["CoLA", "MRPC"]}, {"tuning": "full"}]
        trials = grids.expand_grids(trial_grids, [("task_name", ["CoLA"]), ("adapter_size", [64])])
        self.assertLen(trials, 1)
        # A grid without "tuning" trains adapters.
        trials = grids.expand_grids(trial_grids, [("tuning", ["adapters"])])
        self.assertEqual([flags["adapter_size"] for flags in flags_of(trials)], [8, 8, 64, 64])
        with self.assertRaisesRegex(UserError, "no trial is left"):
            grids.expand_grids(trial_grids, [("task_name", ["RTE"])])

    def test_overrides_replace_flags_or_add_them(self):
        trial_grids = [{"adapter_size": 8}, {"tuning": "full"}]
        self.assertEqual(
            grids.override_flags(trial_grids, {"adapter_size": [1, 2], "random_seed": [3]}),
            [{"adapter_size": [1, 2], "random_seed": [3]}, {"tuning": "full", "random_seed": [3]}],
        )
        trial_grids = [{"adapter_size": 8, "random_seed": 5}, {"tuning": "full"}]
        overridden = grids.override_flags(trial_grids, {"random_seed": [1, 2]})
        self.assertEqual([grid["random_seed"] for grid in overridden], [[1, 2], [1, 2]])

    def test_overrides_skip_methods_that_ignore_the_flag(self):
        methods = ["adapters", "layer_norm", "top_layers", "full", ["full", "adapters"]]
        trial_grids = [{"tuning": method} for method in methods]
        for name, changed in (
            ("adapter_depth", [0, 4]),
            ("layer_norms", [0, 4]),
            ("train_pooler", [0, 1, 4]),
            ("num_top_layers", [2]),
        ):
            overridden = grids.override_flags(trial_grids, {name: [1, 2]})
            self.assertEqual([i for i, grid in enumerate(overridden) if name in grid], changed)
        for name in ("adapter_size", "num_top_layers"):
            with self.assertRaisesRegex(UserError, f"^--set={name}: it has no effect on"):
                grids.override_flags(trial_grids[3:4], {name: [8]})
        for tuning in ({}, [["full"]]):
            overridden = grids.override_flags([{"tuning": tuning}], {"train_pooler": [1]})
            with self.assertRaisesRegex(UserError, "tuning: expected texts, numbers"):
                grids.expand_grids(overridden)

    def test_settings_parse_as_numbers_booleans_or_strings(self):
        self.assertEqual(
            grids.parse_setting("--a=3e-4,1,True,CoLA,null", "--set"),
            ("a", [3e-4, 1, True, "CoLA", "null"]),
        )
        # Flags accept numbers that are not valid JSON.
        self.assertEqual(
            grids.parse_setting("learning_rate=.001,+1e-3,$RATE", "--set"),
            ("learning_rate", [1e-3, 1e-3, "$RATE"]),
        )
        self.assertEqual(repr(grids.parse_setting("num_train_epochs=3.", "--set")[1]), "[3]")
        for wrong in ("learning_rate", "=3", "learning_rate="):
            with self.assertRaisesRegex(UserError, "^--only=.*: expected a flag and its values"):
                grids.parse_setting(wrong, "--only")
        # Absl would accept 0x40, but readers of the trial's record would not.
        for wrong in ("adapter_size=0x40", "learning_rate=1e-4x", "num_train_epochs=ten"):
            with self.assertRaisesRegex(UserError, "^--set=.*: expected a number; found"):
                grids.parse_setting(wrong, "--set")
        with self.assertRaisesRegex(UserError, "^--set=output_dir=here: the sweep sets"):
            grids.parse_setting("output_dir=here", "--set")
        with self.assertRaisesRegex(UserError, "^--set=script=run_squad.py: script is not a flag"):
            grids.parse_setting("script=run_squad.py", "--set")

    def test_invalid_flags_and_values_are_refused(self):
        for grid, complaint in (
            ({"adapter_size": [None]}, "adapter_size: expected"),
            ({"adapter_size": {"a": 1}}, "adapter_size: expected"),
            ({"output_dir": "here"}, "the sweep sets each trial"),
            ({"overwrite_output_dir": True}, "the sweep sets"),
            ({"do_eval": False}, "do_eval: every trial trains and evaluates; found False"),
            ({"script": "run_away.py"}, "run_away.py"),
            ({"script": 3}, "script 3: expected"),
            ({"adapter_size": []}, "adapter_size: expected at least one value; found an"),
        ):
            with self.assertRaisesRegex(UserError, "^--grid=a.json: .*" + complaint):
                grids.expand_grids([grid], source="--grid=a.json")
        with self.assertRaisesRegex(UserError, "^--grid=a.json: no trial is left"):
            grids.expand_grids([], source="--grid=a.json")

    def test_keys_identify_trial_backbone_and_data(self):
        one, other = grids.expand_grids([{"random_seed": [1, 2]}])
        same = grids.expand_grids([{"random_seed": [1.0, "1"], "do_eval": "true"}])[0]
        self.assertEqual(one.key("a"), same.key("a"))
        self.assertLen({one.key("a"), one.key("b"), other.key("a")}, 3)
        # Folders of results depend on this key, so later versions must not change it.
        self.assertEqual(one.key("a"), "86d5cd8d66fb73bd")
        data = {"train": "b", "dev": "c"}
        self.assertLen({one.key("a"), one.key("a", data), one.key("a", {**data, "dev": "b"})}, 3)
        self.assertEqual(one.key("a", data), one.key("a", dict(reversed(list(data.items())))))

    def test_column_folder_and_file_names_stay_strings(self):
        names = {"label_column": "1.0", "text_column": "true", "data_dir": "1e3", "dev_file": "2.0"}
        (trial,) = grids.expand_grids([names])
        given = [f"--{name}={value}" for name, value in names.items()]
        self.assertContainsSubset(given, trial.command("out"))
        name, values = grids.parse_setting("tag_column=2", "--set")
        self.assertEqual(*(grids.expand_grids([{name: value}]) for value in (2, values)))

    def test_task_of_trial_follows_from_its_flags(self):
        for axes, task in (
            ({"task_name": "CoLA"}, "CoLA"),
            ({"script": "run_squad.py"}, "squad"),
            ({"task_name": "custom", "data_dir": "$GLUE_DIR/mnli_9k"}, "mnli_9k"),
            ({"task_name": "custom", "data_dir": "/data/reviews/"}, "reviews"),
            ({"task_name": "Custom", "data_dir": 2019}, "2019"),
            ({"task_name": "custom"}, "custom"),
            ({"task_name": "custom", "name": "spam", "data_dir": "/data/x"}, "spam"),
            ({"task_name": "CoLA", "data_dir": "/data/reviews"}, "CoLA"),
        ):
            self.assertEqual(grids.expand_grids([axes])[0].task, task)

    def test_command_expands_environment_variables(self):
        trial = grids.expand_grids([{"train_file": "$HERE_DIR/train.json"}])[0]
        with self.assertRaisesRegex(UserError, r"--train_file=.*\$HERE_DIR is not set"):
            trial.command("out")
        os.environ["HERE_DIR"] = "/data"
        self.addCleanup(os.environ.pop, "HERE_DIR")
        command = trial.command("out$HERE_DIR")
        self.assertEqual(command[0], "run_classifier.py")
        self.assertIn("--train_file=/data/train.json", command)
        self.assertIn("--output_dir=out$HERE_DIR", command)  # The sweep creates and reads it as is.


class HiddenValuesTest(tf.test.TestCase):
    VALUES = {"AA": "/home/u", "BB": "/home/u/tokenXYZ", "CC": "tokenXYZ/\u00fc", "DD": "1234"}

    def setUp(self):
        super().setUp()
        values = mock.patch.dict(os.environ, self.VALUES)
        values.start()
        self.addCleanup(values.stop)

    def test_longest_values_are_hidden_first(self):
        for text, hidden in (
            ("/home/u/tokenXYZ", "$BB"),
            ("/home/u/token, /home/u/tokenXYZ/z", "$AA/token, $BB/z"),
            ("/x/tokenXYZ/\u00fc 1234", "/x/$CC 1234"),
        ):
            for names in itertools.permutations(self.VALUES):
                self.assertEqual(grids.hide_values(text, names), hidden)

    def test_values_in_files_are_hidden(self):
        text = "a\u00fc/home/u/tokenXYZ\n/home/u/c/tokenXYZ/\u00fc /home/u\n".encode() + b"\xff"
        expected = "a\u00fc$BB\n$AA/c/$CC $AA\n".encode() + b"\xff"
        for content, hidden in ((text, expected), (b"\xffa\n", b"\xffa\n"), (b"", b"")):
            path = os.path.join(self.get_temp_dir(), "log.txt")
            with open(path, "wb") as writer:
                writer.write(content)
            with open(path, "ab+") as file:
                grids.hide_values_in_file(file, self.VALUES)
            with open(path, "rb") as reader:
                self.assertEqual(reader.read(), hidden)


class FileTest(tf.test.TestCase):
    def read(self, content):
        path = os.path.join(self.get_temp_dir(), "grid.json")
        with open(path, "w") as writer:
            writer.write(content)
        return grids.read_grids(path)

    def test_common_flags_are_merged_into_each_grid(self):
        content = {"common": {"random_seed": [1, 2], "a": 1}, "grids": [{"a": 2}, {"b": 3}]}
        self.assertEqual(
            self.read(json.dumps(content)),
            [{"random_seed": [1, 2], "a": 2}, {"random_seed": [1, 2], "a": 1, "b": 3}],
        )

    def test_broken_files_are_refused(self):
        for content, complaint in (
            ("{", "is not valid JSON"),
            ("[" * 100000, "is not valid JSON"),
            ("[]", "expected an object with grids"),
            ('{"grid": []}', "expected an object with grids"),
            ('{"grids": [], "more": 1}', "expected an object with grids"),
            ('{"grids": {}}', "grids a list"),
            ('{"grids": [1]}', "grids a list"),
            ('{"grids": [{"adapter_size": 8, "adapter_size": 64}]}', 'key "adapter_size" twice'),
        ):
            with self.assertRaisesRegex(UserError, complaint):
                self.read(content)
        with self.assertRaisesRegex(UserError, "cannot be read"):
            grids.read_grids(os.path.join(self.get_temp_dir(), "missing.json"))


class DamagedFilesTest(tf.test.TestCase):
    def test_a_damaged_grid_is_read_or_refused(self):
        grid = {
            "common": {"task_name": ["MRPC", "CoLA"], "random_seed": [1, 2, 3]},
            "grids": [
                {"adapter_size": [8, 64], "learning_rate": [3e-4, 1e-3]},
                {"tuning": "full", "script": "run_squad.py", "train_file": "squad.json"},
            ],
        }

        def read(folder):
            given = ["--set=learning_rate=1e-4", "--set=adapter_size=8,16"]
            given.append("--grid=" + os.path.join(folder, "grid.json"))
            for trial in run_sweep._trials(command_lines.parsed(run_sweep.define_flags, *given))[
                :50
            ]:
                trial.command("output")
                trial.key("backbone")
                str(trial.task), str(trial.method)

        contents = {"grid.json": json.dumps(grid).encode()}
        mutations.check(contents, read, ("--grid=", "--set=", "is not set."))
