"""Tests of records.py: lines truncated by kills, several files, broken files."""

import concurrent.futures
import fcntl
import json
import math
import os
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

    def test_reader_notices_a_replaced_file(self):
        reader = records.Reader(self.folder)
        for names in ("ab", "c", "", "cd"):
            self.write("".join(json.dumps(record(name)) + "\n" for name in names))
            self.assertEqual([found["key"] for found in reader.read()], list(names))

    def test_append_waits_while_another_process_appends(self):
        path = os.path.join(self.folder, "results.jsonl")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            with open(path, "ab") as other:
                fcntl.flock(other, fcntl.LOCK_EX)
                appending = pool.submit(records.append, self.folder, (0, 1), record("b"))
                with self.assertRaises(concurrent.futures.TimeoutError):
                    appending.result(timeout=0.3)
                other.write(json.dumps(record("a")).encode())  # It is killed before the newline.
            appending.result(timeout=60)
        self.assertEqual(self.keys(), ["a", "b"])

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
        with open(os.path.join(self.folder, "results.jsonl"), "wb") as writer:
            writer.write(b"\xff\xfe")
        with self.assertRaisesRegex(UserError, "cannot be read"):
            records.read(self.folder)

    def test_invalid_scores_are_refused_by_name(self):
        for value in (math.nan, math.inf, 1e308):
            self.write(json.dumps(record("b", scores={"eval_accuracy": value})))
            with self.assertRaisesRegex(UserError, "line 1: eval_accuracy is .*; expected "):
                records.read(self.folder)
        scores = {"eval_accuracy": 0.5, "eval_loss": float("nan"), "loss": float("inf")}
        self.write(
            json.dumps(record("a", scores=scores)) + "\r\n"
        )  # As an editor on Windows saves.
        self.assertEqual(self.keys(), ["a"])

    def test_invalid_values_of_a_failed_trial_are_accepted(self):
        flags = {"adapter_size": "", "learning_rate": "1e-4x"}
        for scores in (5, None, {"eval_accuracy": "a text"}, {"eval_accuracy": math.nan}):
            failed = record("a", status="failed", scores=scores, flags=flags)
            self.write(json.dumps(failed) + "\n")
            self.assertEqual(self.keys(), ["a"])

    def test_append_to_a_missing_folder_is_refused(self):
        with self.assertRaisesRegex(UserError, "cannot be written"):
            records.append(os.path.join(self.folder, "missing"), (0, 1), record("a"))

    def test_remote_folder_is_refused(self):
        with self.assertRaisesRegex(UserError, "^gs://bucket/sweep: records need a local folder"):
            records.read("gs://bucket/sweep")


class SameTest(tf.test.TestCase):
    def run_of(self, data=None, **flags):
        more = {} if data is None else {"data": data}
        return record("a", flags=flags, **more)

    def test_runs_of_a_task_on_different_data_are_refused(self):
        plain, tested = self.run_of({"dev": "b2"}), self.run_of({"dev": "b2", "test": "c3"})
        copied = self.run_of({"dev": "b2"}, data_dir="/there/MRPC")
        other_task = {**self.run_of({"dev": "f6"}), "task": "CoLA"}
        same = [self.run_of(), plain, tested, copied, other_task]
        records.check_same_data(same, "--records")
        for other, shown in (
            (self.run_of({"dev": "f6"}), "digest of the dev split: b2 and f6"),
            (self.run_of({"dev": "f6"}, data_dir="/x"), "digest of the dev split: b2 and f6"),
            (self.run_of(label_column="2"), "--label_column: not given and 2"),
            (self.run_of(tag_column="2"), "--tag_column: not given and 2"),
        ):
            expected = f"^--records: found runs of MRPC on different data .{shown}"
            with self.assertRaisesRegex(UserError, expected):
                records.check_same_data([*same, other], "--records")

    def test_runs_of_several_berts_are_refused(self):
        base, large = (
            {**self.run_of(), "backbone": {"name": name, "fingerprint": name[::-1]}}
            for name in ("base", "large")
        )
        self.assertEqual(records.check_same_backbone([base, self.run_of()], "--a"), {"esab"})
        with self.assertRaisesRegex(UserError, r"^--a: .* several BERTs \(base, large\)"):
            records.check_same_backbone([base, large], "--a")

    def test_finished_trials_without_digests_are_counted(self):
        failed = {**self.run_of(), "status": "failed"}
        self.assertEqual(records.missing_digests_note([self.run_of({"dev": "b2"}), failed]), [])
        (note,) = records.missing_digests_note([self.run_of({"dev": "b2"}), self.run_of()])
        self.assertRegex(note, "^1 of 2 finished trials have no digest")
