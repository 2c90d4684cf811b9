"""Tests of records.py: lines truncated by kills, several files, broken files."""

import functools
import itertools
import json
import math
import os
import re
import tempfile
from unittest import mock

import tensorflow.compat.v1 as tf

from adapter_bert.shell.errors import UserError
from adapter_bert.sweeps import records


def record(key, finished="2026-01-01T00:00:00", status="done", **more):
    return {
        "key": key,
        "script": "run_classifier.py",
        "flags": {},
        "status": status,
        "finished": finished,
        "task": "MRPC",
        "score": "eval_accuracy",
        "scores": {"eval_accuracy": 0.5},
        "reason": "",
        **more,
    }


class SweepRecordsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir(), prefix="a[b]")

    def write(self, text, name="results.jsonl", mode="w"):
        with open(os.path.join(self.folder, name), mode) as writer:
            writer.write(text)

    def keys(self):
        return [record["key"] for record in records.read(self.folder)]

    def test_records_are_read_in_order_of_finish_time(self):
        self.assertEqual(records.read(self.folder), [])
        self.assertEqual(records.read(os.path.join(self.folder, "missing")), [])
        records.append(self.folder, (0, 2), record("b", "2026-01-02T00:00:00"))
        records.append(self.folder, (1, 2), record("a", "2026-01-01T00:00:00"))
        records.append(self.folder, (0, 1), record("c", "2026-01-03T00:00:00"))
        self.assertEqual(self.keys(), ["a", "b", "c"])
        self.assertEqual(
            sorted(os.listdir(self.folder)),
            ["results.0-of-2.jsonl", "results.1-of-2.jsonl", "results.jsonl"],
        )
        self.assertEqual(records.read(self.folder)[0], record("a"))

    def test_later_failure_does_not_replace_a_success(self):
        for day, status in enumerate(("failed", "done", "failed"), 1):
            finished = f"2026-01-0{day}T00:00:00"
            records.append(self.folder, (0, 1), record("a", finished, status, day=day))
        records.append(self.folder, (0, 1), record("b", status="failed", reason="x"))
        found = {r["key"]: r for r in records.read(self.folder)}
        self.assertEqual((found["a"]["status"], found["a"]["day"]), ("done", 2))
        self.assertEqual(found["b"]["reason"], "x")

    def test_truncated_line_does_not_lose_other_records(self):
        line = json.dumps(record("a"))
        for length in range(len(line) - 1):
            self.write(json.dumps(record("z")) + "\n" + line[:length])
            self.assertEqual(self.keys(), ["z"])
            records.append(self.folder, (0, 1), record("b", "2026-01-02T00:00:00"))
            self.assertEqual(self.keys(), ["z", "b"])

    def test_reader_parses_only_new_lines(self):
        reader = records.Reader(self.folder)
        self.assertEqual(reader.read(), [])
        for number in range(10):
            records.append(self.folder, (number % 2, 2), record(str(number), status="failed"))
            with mock.patch.object(json, "loads", wraps=json.loads) as loads:
                found = reader.read()
            self.assertEqual(loads.call_count, 1)
            self.assertCountEqual(found, records.read(self.folder))
        self.write('{"key": "cut sh', mode="a")
        records.append(self.folder, (0, 1), record("0"))
        with self.assertLogs("absl", "WARNING") as logs:
            self.assertEqual(reader.read()[-1], record("0"))
            self.assertLen(reader.read(), 10)
        (warning,) = logs.output
        self.assertRegex(warning, r"results.jsonl, line \d")
        os.remove(os.path.join(self.folder, "results.0-of-2.jsonl"))
        self.assertEqual(reader.read(), records.read(self.folder))
        self.write("{}\n", mode="a")
        with self.assertRaisesRegex(UserError, "line 3"):
            reader.read()

    def test_invalid_records_are_refused_with_line_number(self):
        good = json.dumps(record("a")) + "\n"
        unscored = {name: value for name, value in record("b").items() if name != "scores"}
        changes = (
            {"task": 1},
            {"score": ["eval_accuracy"]},
            {"score": "eval_f1"},
            {"scores": {"eval_accuracy": "0.5"}},
            {"scores": {"eval_accuracy": 10**400}},
            {"flags": {"adapter_size": [8]}},
            {"flags": {"adapter_size": "8"}},
            {"flags": {"num_train_epochs": "3"}},
            {"flags": {"random_seed": "1"}},
            {"flags": {"trials": "60"}},
            {"backbone": {"name": "b", "fingerprint": ["f"]}},
            {"status": "failed", "reason": None},
            {"script": "run_baseline.py"},  # Without the settings of its model.
            {"data": "a1"},
            {"data": {"train": 1}},
        )
        broken = [json.dumps({**record("b"), **change}) for change in changes]
        for wrong in ("x", "[1]", '"text"', "{}", json.dumps(unscored), '{"key": 1}', *broken):
            self.write(good + wrong + "\n")
            with self.assertRaisesRegex(UserError, "results.jsonl, line 2: expected the record"):
                records.read(self.folder)
        self.write(good + json.dumps(record("b"))[:-1] + ', "key": "c"}\n')
        with self.assertRaisesRegex(UserError, 'line 2: .* key "key" twice'):
            records.read(self.folder)
        with open(os.path.join(self.folder, "results.jsonl"), "wb") as writer:
            writer.write(b"\xff\xfe")
        with self.assertRaisesRegex(UserError, "cannot be read"):
            records.read(self.folder)

    def test_pipes_and_devices_are_refused_at_once(self):
        path = os.path.join(self.folder, "results.jsonl")
        for make in (os.mkfifo, functools.partial(os.symlink, "/dev/zero")):
            make(path)
            with self.assertRaisesRegex(UserError, r"results.jsonl cannot be read \(it is not a"):
                records.read(self.folder)
            os.remove(path)

    def test_invalid_scores_are_refused_by_name(self):
        for name, values in (
            ("eval_accuracy", (math.nan, math.inf, 1e308, -1e20)),
            ("trained_parameters", (math.nan, math.inf, -5, 1e308)),
        ):
            for value in values:
                scores = {"eval_accuracy": 0.5, "eval_loss": float("nan"), name: value}
                valid_records = (record("a"), record("b", scores=scores))
                self.write("".join(json.dumps(each) + "\n" for each in valid_records))
                shown = re.escape(f"line 2: {name} is {value}; expected ")
                with self.assertRaisesRegex(UserError, shown + ".{,40}$"):
                    records.read(self.folder)

    def test_huge_lines_are_refused_before_they_are_parsed(self):
        good = json.dumps(record("a"))
        for huge in ('{"key":[' + "[]," * 2_000_000, "\0" * 5_000_000, json.dumps("é" * 5_000_000)):
            self.write(f"{good}\n\n{huge}\n{good}\n")
            parse = mock.patch.object(json, "loads", side_effect=json.loads)
            with parse as loads, self.assertRaisesRegex(UserError, "line 3: it has more than 4,1"):
                records.read(self.folder)
            loads.assert_not_called()
        self.write(f"{good}\r\n\r\n")  # As an editor on Windows saves it.
        self.assertEqual(self.keys(), ["a"])

    def test_long_names_are_refused_and_shown_in_short(self):
        for name, status in itertools.product(("x" * 200_000, "é" * 301), ("done", "failed")):
            for changes in (
                {"task": name},
                {"key": name},
                {"flags": {name: 1}},
                {"data": {"dev": name}},
                {"backbone": {"name": name, "fingerprint": "f"}},
                {"scores": {"eval_accuracy": 0.5, name: 0.5}},
            ):
                self.write(json.dumps(record("b")) + "\n")
                self.write(json.dumps({**record("a", status=status), **changes}), mode="a")
                shown = f"line 2: {name[0]}{{50}}\\.\\.\\. has {len(name):,} characters"
                with self.assertRaisesRegex(UserError, shown) as caught:
                    records.read(self.folder)
                self.assertLess(len(str(caught.exception)), 300)
        self.write(json.dumps(record("a", task="x" * 300, flags={"data_dir": "/x" * 2000})))
        self.assertEqual(self.keys(), ["a"])

    def test_invalid_flag_values_are_refused_by_name(self):
        zeros = {"adapter_init_scale": 0, "random_seed": 0}
        self.write(json.dumps(record("a", flags=zeros)) + "\n")
        self.assertEqual(self.keys(), ["a"])
        for name, value in (
            *(("learning_rate", rate) for rate in (0, -1, math.inf, math.nan)),
            ("adapter_size", 0),
            ("adapter_init_scale", -1),
            ("adapter_size", 1e308),
            *(("train_batch_size", size) for size in (-1e20, math.nan)),
        ):
            self.write(json.dumps(record("a", flags={name: value})) + "\n")
            shown = re.escape(f"line 1: --{name} is {value}; expected")
            with self.assertRaisesRegex(UserError, shown):
                records.read(self.folder)

    def test_invalid_scores_of_a_failed_trial_are_ignored(self):
        for scores in (5, "a text", None, {"eval_accuracy": "a text"}, {"eval_accuracy": math.nan}):
            failed = record("a", status="failed", scores=scores)
            self.write(json.dumps(failed) + "\n")
            self.assertEqual(self.keys(), ["a"])

    def test_invalid_flags_of_a_failed_trial_are_accepted(self):
        failed = record("a", status="failed", flags={"adapter_size": "", "learning_rate": "1e-4x"})
        self.write(json.dumps(failed) + "\n")
        self.assertEqual(self.keys(), ["a"])

    def test_non_finite_loss_is_accepted(self):
        scores = {"eval_accuracy": 0.5, "eval_loss": float("nan"), "loss": float("inf")}
        self.write(json.dumps(record("a", scores=scores)) + "\n")
        self.assertEqual(self.keys(), ["a"])

    def test_append_to_a_missing_folder_is_refused(self):
        with self.assertRaisesRegex(UserError, "cannot be written"):
            records.append(os.path.join(self.folder, "missing"), (0, 1), record("a"))

    def test_remote_folder_is_refused(self):
        with self.assertRaisesRegex(UserError, "^gs://bucket/sweep: records need a local folder"):
            records.read("gs://bucket/sweep")
