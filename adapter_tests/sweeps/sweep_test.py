"""Tests of sweep.py with a script that stands in for a training."""

import concurrent.futures
import contextlib
import errno
import fcntl
import functools
import itertools
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf
from absl.testing import parameterized

from adapter_bert.files import atomic, gfile
from adapter_bert.formats import tfhub
from adapter_bert.ops import devices
from adapter_bert.shell.errors import UserError
from adapter_bert.sweeps import grids, records, sweep
from adapter_tests.support import huggingface, tiny
from adapter_tests.support.sweeps import CHECKPOINTS, ROOT, SweepTestCase

# Runs a sweep in a separate process, which can be killed.
SWEEPER = """
import sys
sys.path[:0] = [{root!r}]
from adapter_bert.files import paths
from adapter_bert.shell import errors
from adapter_bert.sweeps import grids, sweep
paths.PROJECT = {scripts!r}
trials = grids.expand_grids([{{"adapter_size": {sizes}, **{flags}}}])
runner = sweep.Sweep(trials, {folder!r}, jobs={jobs})
sys.exit(errors.exit_code(runner.run))
"""


class TrialsTest(SweepTestCase):
    def test_every_trial_is_run_once_and_recorded(self):
        self.go()
        runner = self.sweep([8, 64], {"do_predict": True})
        self.assertLen(runner.commands(), 2)
        # The clock may change while a trial runs.
        with mock.patch.object(time, "time", side_effect=itertools.count(2e9, -1000)):
            runner.run()
        self.assertEqual(self.starts(), [8, 64])
        record = list(runner.records().values())[1]
        self.assertEqual(record["scores"], {"eval_f1": 0.64, "test_f1": 0.32})
        self.assertEqual((record["task"], record["score"]), ("MRPC", "eval_f1"))
        self.assertEqual(record["backbone"], {"name": "tiny", "fingerprint": "f" * 64})
        self.assertEqual(record["flags"]["adapter_size"], 64)
        self.assertBetween(record["seconds"], 0.01, 600)
        again = self.sweep([8, 64, 128], {"do_predict": True})
        self.assertLen(again.commands(), 1)
        again.run()
        self.assertEqual(self.starts(), [8, 64, 128])
        self.assertEqual(self.scores(), {8: 0.08, 64: 0.64, 128: 1.28})

    def test_precision_is_measured_once_for_all_trials(self):
        self.go()
        measured = mock.Mock(return_value={"float32": 2.0, "bfloat16": 1.0})
        processor = {"has_bfloat16": lambda: True, "product_seconds": measured}
        with mock.patch.multiple(devices, **processor):
            first = self.sweep([8, 64])
            first.run()
            second = self.sweep([4], {"precision": "float32"})
            second.run()
            third = self.sweep([2, 16])
            # An interrupted trial resumes in its own precision.
            os.makedirs(self.trial_folder(16, third))
            open(os.path.join(self.trial_folder(16, third), "checkpoint"), "w").close()
            third.run()
        self.assertEqual(measured.call_count, 1)
        given = {
            size: re.findall("--precision=([a-z0-9]+)", self.log(size, runner))
            for runner, sizes in ((first, (8, 64)), (second, (4,)), (third, (2, 16)))
            for size in sizes
        }
        half = ["bfloat16"]
        self.assertEqual(given, {8: half, 64: half, 4: ["float32"], 2: half, 16: []})

    def test_precision_is_measured_once_by_two_sweepers(self):
        runner, measured = self.sweep([8, 64]), itertools.cycle(["float32", "bfloat16"])
        os.makedirs(self.folder)

        def choose_precision(*_):
            time.sleep(0.5)
            return next(measured)

        measuring = mock.patch.object(devices, "choose_precision", choose_precision)
        with measuring, concurrent.futures.ThreadPoolExecutor() as pool:
            flags = list(pool.map(runner._precision_flags, runner.trials))
        self.assertEqual(flags, [["--precision=float32"]] * 2)

    def test_folder_name_may_contain_shell_characters(self):
        self.go()
        self.folder += " $HOME"
        runner = self.sweep([8], {"precision": "float32"})
        (command,) = runner.commands()
        runner.run()
        self.assertEqual(self.scores(), {8: 0.08})
        dollar, *logged = shlex.split(self.log(8, runner).split("\n")[1])
        self.assertEqual((dollar, logged), ("$", command))

    def test_custom_task_is_named_after_its_data_folder(self):
        self.go()
        runner = self.sweep([8], {"task_name": "custom", "data_dir": "/data/reviews"})
        runner.run()
        self.assertEqual([record["task"] for record in runner.records().values()], ["reviews"])
        runner = self.sweep([16], {"task_name": "custom", "data_dir": "/data/2", "name": "mails"})
        runner.run()
        self.assertEqual([record["task"] for record in runner.records().values()], ["mails"])
        files = [f"/data/{name}/part-*.parquet" for name in ("letters", "notes")]
        runner = self.sweep([32], {"task_name": "custom", "train_file": files})
        self.assertEqual([trial.task for trial in runner.trials.values()], ["letters", "notes"])

    def test_trial_that_predicts_one_label_says_so(self):
        self.go()
        with self.assertLogs("absl", "INFO") as logs:
            self.sweep([77, 8]).run()
        ends = [line for line in logs.output if " has eval_f1 " in line]
        self.assertIn("has eval_f1 0.7700, but predicts only one label (", ends[0])
        self.assertIn("has eval_f1 0.0800 (", ends[1])

    def test_failed_trial_is_recorded_and_the_sweep_continues(self):
        self.go()
        sizes = [13, 9, 40, 66, 8]
        runner = self.sweep(sizes)
        runner.run()
        reasons = self.reasons(runner)
        self.assertRegex(reasons.pop(40), "eval_results.json: cannot be read")
        self.assertRegex(reasons.pop(66), "eval_results.json: eval_f1 is nan; expected")
        self.assertEqual(reasons, {13: "13 brings bad luck.", 9: "killed by signal 9", 8: None})
        self.sweep(sizes).run()
        self.assertEqual(self.starts(), sizes)
        with open(os.path.join(self.scripts, "crash"), "w"):
            pass
        self.sweep(sizes, retry_failed=True).run()
        self.assertEqual(self.starts(), [*sizes, 13, 9, 40, 66])
        # The log also holds the first failure, but the latest one counts.
        self.assertEqual(self.reasons(runner)[13], "ValueError: x")

    def test_extra_flags_are_recorded_except_machine_flags(self):
        self.go()
        places = ("--feature_cache_dir=/tmp/a", "--tpu_name=first", "--spm_model_file=/tmp/b")
        flags = ("--precision=float32", "--random_seed=5", *places)
        runner = self.sweep([8], extra_flags=flags)
        self.assertContainsSubset(flags, runner.commands()[0])
        runner.run()
        (record,) = runner.records().values()
        self.assertContainsSubset({"precision": "float32", "random_seed": 5}, record["flags"])
        self.assertNoCommonElements(
            ("feature_cache_dir", "tpu_name", "spm_model_file"), record["flags"]
        )
        same = grids.expand_grids([{"adapter_size": 8, "precision": "float32", "random_seed": 5}])
        self.assertEqual(sweep.Sweep(same, self.folder).commands(), [])
        self.assertLen(self.sweep([8]).commands(), 1)

    def test_keep_decides_which_files_remain(self):
        self.go()
        for keep, size, left in (
            ("adapters", 1, {"adapter", "other.txt"}),
            ("scores", 2, {"other.txt"}),
            ("all", 3, {"adapter", "other.txt", *CHECKPOINTS}),
        ):
            runner = self.sweep([size], keep=keep)
            runner.run()
            found = set(os.listdir(self.trial_folder(size, runner)))
            always = {"log.txt", "eval_results.json"}
            found = {name for name in found - always if "tfevents" not in name}
            self.assertEqual(found, left)

    def test_finished_trial_whose_record_is_lost_runs_again(self):
        self.go()
        for keep, size in (("adapters", 8), ("scores", 16)):
            runner = self.sweep([size], keep=keep)
            full = mock.patch.object(records, "append", side_effect=UserError("The disk is full."))
            with full, self.assertRaisesRegex(UserError, "full"):
                runner.run()
            adapter, popen = (
                os.path.join(self.trial_folder(size, runner), "adapter"),
                subprocess.Popen,
            )

            def start(*args, adapter=adapter, popen=popen, **options):
                # The script would refuse an adapter without its checkpoints.
                self.assertFalse(os.path.exists(adapter))
                return popen(*args, **options)

            with mock.patch.object(subprocess, "Popen", start):
                self.sweep([size], keep=keep).run()
        self.assertEqual(self.starts(), [8, 8, 16, 16])
        self.assertEqual(self.scores(), {8: 0.08, 16: 0.16})

    def test_parallel_trials_share_the_cores(self):
        with mock.patch.object(os, "sched_getaffinity", return_value={0, 1, 2, 5, 6}):
            self.assertEqual(sweep._assigned_cores(0, 2), [0, 2, 6])
            self.assertEqual(sweep._assigned_cores(1, 2), [1, 5])
            self.assertIsNone(sweep._assigned_cores(0, 1))
            self.assertIsNone(sweep._assigned_cores(0, 6))

    def test_parallel_trials_share_the_gpus(self):
        self.addCleanup(sweep._gpus.cache_clear)
        for visible, shares in (
            ("0,1", ["0", "1"]),
            ("GPU-a,GPU-b,3", ["GPU-a,3", "GPU-b"]),
            ("5", [None, None]),
            ("", [None, None]),
        ):
            sweep._gpus.cache_clear()
            with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=visible):
                self.assertEqual([sweep._assigned_gpus(slot, 2) for slot in range(2)], shares)
                self.assertIsNone(sweep._assigned_gpus(0, 1))
        sweep._gpus.cache_clear()
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="4,7"):
            self.go()
            runner = self.sweep([8, 16], {"precision": "float32"}, jobs=3)
            self.assertEqual(sweep._assigned_gpus(2, 3), "4")
            runner.run()
        seen = {re.search("GPUs (.*)", self.log(size, runner)).group(1) for size in (8, 16)}
        self.assertEqual(seen, {"4", "7"})

    def test_gpus_are_listed_by_nvidia_smi(self):
        self.addCleanup(sweep._gpus.cache_clear)
        program = os.path.join(self.scripts, "nvidia-smi")
        with open(program, "w") as writer:
            writer.write(
                '#!/bin/sh\necho "GPU 0: H200 (UUID: GPU-a)"; echo "GPU 1: H200 (UUID: b)"'
            )
        os.chmod(program, 0o755)
        environment = {name: v for name, v in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        for path, gpus in ((self.scripts + ":/bin", ["0", "1"]), ("/none", [])):
            sweep._gpus.cache_clear()
            with mock.patch.dict(os.environ, {**environment, "PATH": path}, clear=True):
                self.assertEqual(sweep._gpus(), gpus)


class KeysTest(SweepTestCase):
    def test_other_bert_makes_new_trials(self):
        self.go()
        self.sweep([8]).run()
        self.assertEqual(self.sweep([8]).commands(), [])
        with open(os.path.join(os.environ["BERT_BASE_DIR"], "vocab.txt"), "a") as writer:
            writer.write("another\n")
        self.sweep([8]).run()
        self.assertEqual(self.starts(), [8, 8])
        self.assertEqual(self.sweep([8]).commands(), [])
        self.assertLen(os.listdir(os.path.join(self.folder, "trials")), 2)  # It has a new folder.
        other = os.path.join(self.get_temp_dir(), "other")
        os.environ["BERT_BASE_DIR"] = tiny.write_bert(other, hidden_size=16)
        self.assertLen(self.sweep([8]).commands(), 1)

    def test_changed_tf_hub_module_makes_new_trials(self):
        self.go()
        module = os.path.join(self.scripts, "module")
        os.makedirs(module)
        flags = {"bert_hub_module_handle": "$MODULE_DIR/module"}
        bert = mock.Mock(config=tiny.config())
        variables = mock.patch.dict(os.environ, {"MODULE_DIR": self.scripts})
        read_bert = mock.patch.object(tfhub, "read_bert", return_value=bert)
        with variables, read_bert as read:
            for content in ("first", "second"):
                with open(os.path.join(module, "saved_model.pb"), "w") as writer:
                    writer.write(content)
                self.assertLen(self.sweep([8], flags).commands(), 1)
                self.sweep([8], flags).run()
                self.assertEqual(self.sweep([8], flags).commands(), [])
        read.assert_called_with(module)
        self.assertEqual(self.starts(), [8, 8])

    def test_bert_of_another_format_is_identified_by_its_weights(self):
        source = os.path.join(self.scripts, "bert")
        os.mkdir(source)
        huggingface.write_source(source, huggingface.random_tensors(huggingface.ENCODER))
        with mock.patch.dict(os.environ, {"SOURCE_DIR": self.scripts, "BERT_BASE_DIR": "/none"}):
            (key,) = self.keys_with("--bert=$SOURCE_DIR/bert")
            os.rename(source, source + "2")
            self.assertEqual(self.keys_with("--bert=$SOURCE_DIR/bert2"), {key})
            tensors = huggingface.random_tensors(huggingface.ENCODER, seed=1)
            huggingface.write_source(source + "2", tensors)
            self.assertNotIn(key, self.keys_with("--bert=$SOURCE_DIR/bert2"))

    def keys_with(self, flag):
        trials = grids.expand_grids([{"adapter_size": [8]}])
        return set(sweep.Sweep(trials, self.folder, extra_flags=[flag]).trials)

    def test_changed_data_make_new_trials(self):
        self.go()
        dev = os.path.join(self.write_mrpc(), "dev.tsv")
        given = {"task_name": "MRPC", "data_dir": "$GLUE_DIR/MRPC"}
        for flags in (given, {"task_name": "MRPC"}):
            self.sweep([8], flags).run()
            self.assertEqual(self.sweep([8], flags).commands(), [])
        with open(dev) as reader:
            header, *rows = reader.read().splitlines()
        with open(dev, "w") as writer:  # Inverts every label.
            inverted = (f"{1 - int(row[0])}{row[1:]}" for row in rows)
            writer.write("\n".join([header, *inverted]) + "\n")
        for flags in (given, {"task_name": "MRPC"}):
            self.assertLen(self.sweep([8], flags).commands(), 1)
        self.write_mrpc("others", seed=1)
        self.assertLen(self.sweep([8], given).commands(), 1)
        self.write_mrpc("copy")
        self.assertEqual(self.sweep([8], given).commands(), [])
        self.assertLen(self.sweep([8], {**given, "do_predict": True}).commands(), 1)

    def test_records_of_earlier_versions_count_if_finished(self):
        """Keys of earlier versions, as in 0.1's results; see `grids_test` for their digests."""
        self.write_mrpc()
        bert = gfile.sha256(os.path.join(os.environ["BERT_BASE_DIR"], "bert_model.ckpt.index"))
        flags = {"task_name": "MRPC", "random_seed": "$SEED"}
        with mock.patch.dict(os.environ, SEED="3"):
            runner = self.sweep([8], flags)
            ((key, trial),) = runner.trials.items()
            data, expanded = runner._data[key], trial.with_flags({"random_seed": 3})
            files = sweep._bert_files_digest(None, None, None, None)
            self.assertEqual(expanded.key([bert, files], data), key)
            os.makedirs(self.folder)
            for earlier in (
                trial.key(bert),
                expanded.key(bert, data),
                trial.key([bert, files]),  # Its data could not be read.
                key,
            ):
                for status, remaining in (("failed", int(earlier != key)), ("done", 0)):
                    scores = {"task": "MRPC", "score": "eval_f1", "scores": {"eval_f1": 0.5}}
                    record = {"key": earlier, "script": trial.script, "flags": {}}
                    record.update(status=status, finished=records.now(), reason="x", **scores)
                    records.append(self.folder, (0, 1), record)
                    self.assertLen(self.sweep([8], flags).commands(), remaining)
                os.remove(os.path.join(self.folder, "results.jsonl"))

    def test_result_without_data_stays_valid_once_data_exist(self):
        self.go()
        os.environ["GLUE_DIR"] = os.path.join(self.scripts, "missing")
        self.sweep([8], {"task_name": "MRPC"}).run()
        self.write_mrpc()
        self.assertEqual(self.sweep([8], {"task_name": "MRPC"}).commands(), [])

    def test_trial_does_not_start_if_its_data_have_changed(self):
        train = os.path.join(self.write_mrpc(), "train.tsv")
        runner = self.sweep([1, 2], {"task_name": "MRPC"})
        with open(train, "a") as writer:
            writer.write("1\t8\t9\tthe cat .\tthe cat .\n")
        with self.assertRaisesRegex(UserError, "^MRPC: its data have changed"):
            runner.run()
        self.assertEqual(self.starts(), [])

    def test_trial_fails_if_its_data_change_while_it_runs(self):
        self.go()
        train, flags = os.path.join(self.write_mrpc(), "train.tsv"), {"task_name": "MRPC"}
        start = sweep.TrialFolder.start

        def change(mode, folder, *arguments):
            process = start(folder, *arguments)
            with open(train, mode) as writer:
                writer.write("1\t8\t9\tthe cat .\tthe cat .\n" if mode == "a" else content)
            return process

        with open(train) as reader:
            content = reader.read()
        for size, mode in ((1, "w"), (2, "a")):  # First, its content stays the same.
            runner = self.sweep([size], flags)
            with mock.patch.object(sweep.TrialFolder, "start", lambda *a, m=mode: change(m, *a)):
                runner.run()
        self.assertEqual(self.scores(), {1: 0.01})
        self.assertRegex(self.reasons(runner)[2], "its data have changed")
        self.assertLen(self.sweep([2], flags).commands(), 1)

    def test_data_files_are_hashed_once_for_all_trials(self):
        self.go()
        self.write_mrpc()
        with mock.patch.object(gfile, "sha256", wraps=gfile.sha256) as sha256:
            runner = self.sweep([2, 8], {"task_name": "MRPC", "random_seed": [1, 2]})
            runner.run()
        self.assertLen(runner.records(), 4)
        read = [os.path.basename(call[0][0]) for call in sha256.call_args_list]
        bert = ["bert_model.ckpt.index", "bert_config.json", "vocab.txt"]
        self.assertCountEqual(read, [*bert, "train.tsv", "dev.tsv"])

    def test_flags_of_a_script_are_defined_once_for_all_values(self):
        with mock.patch.object(grids, "_flags_of", wraps=grids._flags_of) as flags_of:
            self.assertLen(self.sweep([8], {"random_seed": list(range(500))}).trials, 500)
        self.assertEqual(flags_of.call_count, 1)

    def test_variables_in_non_data_flags_are_expanded(self):
        self.go()
        self.write_mrpc()
        flags = {"random_seed": "$SEED", "learning_rate": "$RATE", "data_dir": "$GLUE_DIR/MRPC"}
        keys = []
        for seed in ("1", "3"):
            with mock.patch.dict(os.environ, SEED=seed, RATE="1e-3"):
                runner = self.sweep([8], {"task_name": "MRPC", **flags})
                keys += runner.trials
        with mock.patch.dict(os.environ, SEED="3", RATE="1e-3"):
            runner.run()
        given = {**flags, "random_seed": 3, "learning_rate": 1e-3}
        keys += self.sweep([8], {"task_name": "MRPC", **given}).trials
        self.assertNotEqual(keys[0], keys[1])
        self.assertEqual(keys[1], keys[2])
        (recorded,) = records.read(self.folder)
        self.assertContainsSubset(given, recorded["flags"])

    def test_values_of_variables_are_not_recorded_or_shown(self):
        """A stranger's grid may name a variable that holds a secret."""
        self.go()
        secret = {"SECRET": "hunter2", "NUMBER": "0.001", "FOLDER": "/home/me/data", "WORD": "auto"}
        values = mock.patch.dict(os.environ, secret)
        values.start()
        self.addCleanup(values.stop)
        flags = {"label_column": "x$SECRET", "data_dir": "$FOLDER/a", "learning_rate": "$NUMBER"}
        runner = self.sweep([8, 13], {**flags, "precision": "$WORD"})
        (line, _) = map(sweep.shell_line, runner.commands())
        self.assertIn(' --label_column=x"$SECRET" ', line)
        shown = subprocess.run(["sh", "-c", f"echo {line}"], stdout=subprocess.PIPE, text=True)
        self.assertIn(" --label_column=xhunter2 ", shown.stdout)
        with self.assertLogs("absl", "INFO") as logs:
            runner.run()
        self.assertEqual(self.reasons(runner)[13], "13 brings bad luck. x$SECRET")
        self.assertIn("label x$SECRET", self.log(8, runner))
        for record in runner.records().values():
            self.assertContainsSubset({**flags, "learning_rate": 0.001}, record["flags"])
        written = [path for path, _ in gfile.file_digests(self.folder)]
        contents = [gfile.read_bytes(path, path).decode(errors="replace") for path in written]
        for text in [*contents, *logs.output, line]:
            self.assertNotRegex(text, "hunter2|/home/me")


@pytest.mark.slow
class ProcessesTest(SweepTestCase):
    def sweeper(self, sizes, jobs=1, **flags):
        """Starts a sweep in a separate process; returns the process."""
        settings = dict(root=ROOT, scripts=self.scripts, sizes=list(sizes), folder=self.folder)
        program = SWEEPER.format(**settings, jobs=jobs, flags=flags)
        return subprocess.Popen([sys.executable, "-c", program])

    def wait_for(self, condition):
        for _ in range(1200):
            if condition():
                return
            time.sleep(0.1)
        self.fail("It has not come within two minutes.")

    def test_two_sweepers_with_two_jobs_share_a_folder(self):
        sweepers = [self.sweeper(range(1, 6), jobs=jobs) for jobs in (1, 2)]
        self.wait_for(lambda: len(self.starts()) == 3)
        runner = self.sweep(range(1, 6))
        self.wait_for(lambda: set(runner.running().values()) == {"step 1/2"})
        self.assertLen(runner.running(), 3)
        self.go()
        self.assertEqual([sweeper.wait() for sweeper in sweepers], [0, 0])
        self.assertEqual(sorted(self.starts()), [1, 2, 3, 4, 5])
        self.assertEqual(self.scores(), {size: size / 100 for size in range(1, 6)})

    def test_sweepers_share_trials_while_processes_are_killed(self):
        """ADAPTER_BERT_SWEEPERS=10 kills processes of as many sweepers, with 200 trials."""
        count = int(os.environ.get("ADAPTER_BERT_SWEEPERS", 3))
        sizes, choose = range(100, 100 + 2 * count**2), random.Random(0)
        self.go(seconds=0.2)
        start = functools.partial(self.sweeper, sizes)
        sweepers, killed = [start() for _ in range(count)], 0
        while len(self.scores()) < len(sizes):
            time.sleep(choose.uniform(0.1, 0.6))
            if killed < 2 * count and len(self.starts()) > killed:
                slot = choose.randrange(count)
                self.kill(sweepers[slot], with_trials=choose.random() < 0.7)
                sweepers[slot], killed = start(), killed + 1
            self.assertIn(None, [sweeper.poll() for sweeper in sweepers])
        self.assertEqual([sweeper.wait() for sweeper in sweepers], [0] * count)
        self.assertEqual(self.scores(), {size: size / 100 for size in sizes})
        with open(os.path.join(self.folder, "results.jsonl")) as reader:
            keys = [json.loads(line)["key"] for line in reader]
        self.assertLen(set(keys), len(sizes))
        self.assertLen(keys, len(sizes))  # Each is recorded once.
        self.assertLessEqual(len(self.starts()), len(sizes) + killed)  # A kill costs one start.
        self.assertEqual(self.overlaps(), [])

    def kill(self, sweeper, with_trials):
        """Kills a sweeper, and its trials too, as a scheduler kills a job."""
        children = f"/proc/{sweeper.pid}/task/{sweeper.pid}/children"
        with contextlib.suppress(FileNotFoundError), open(children) as reader:
            trials = [int(process) for process in reader.read().split()]
            sweeper.kill()
            for process in trials if with_trials else ():
                os.kill(process, signal.SIGKILL)
        sweeper.wait()

    def overlaps(self):
        """Returns the trials whose folder had two processes at a time."""
        path = os.path.join(self.scripts, "overlaps")
        return gfile.read_bytes(path, path).split() if os.path.exists(path) else []

    def test_two_shards_share_a_folder(self):
        self.go()
        for index in range(2):
            self.sweep(range(1, 6), shard=(index, 2)).run()
        self.assertEqual(self.starts(), [1, 3, 5, 2, 4])
        with open(os.path.join(self.folder, "results.0-of-2.jsonl")) as reader:
            sizes = [json.loads(line)["flags"]["adapter_size"] for line in reader]
        self.assertEqual(sizes, [1, 3, 5])
        self.assertEqual(self.scores(), {size: size / 100 for size in range(1, 6)})

    def test_sweeper_waits_for_another_machine_without_file_locks(self):
        self.go()
        with mock.patch.object(fcntl, "flock", side_effect=OSError(errno.ENOLCK, "No locks")):
            runner = self.sweep([8, 16])
            held = os.path.join(self.trial_folder(8, runner), "log.txt.held")
            os.makedirs(os.path.dirname(held))
            open(os.path.join(os.path.dirname(held), "log.txt"), "w").close()
            atomic.write_atomically(held, "12 elsewhere")
            self.assertLen(runner.running(), 1)

            def end_other(_):
                if 16 in self.scores() and os.path.exists(held):
                    os.remove(held)

            with self.assertLogs("absl", "INFO") as logs, mock.patch.object(
                time, "sleep", end_other
            ):
                runner.run()
        said = f"runs elsewhere .process 12 on elsewhere; if it was killed, remove {held}"
        self.assertLen(re.findall(said, "\n".join(logs.output)), 1)
        self.assertEqual(self.starts(), [16, 8])
        self.assertFalse(os.path.exists(held))

    def test_resumed_sweep_waits_for_trials_that_still_run(self):
        sweeper = self.sweeper([1, 2])
        self.wait_for(lambda: self.starts() == [1])
        sweeper.kill()
        sweeper.wait()
        second = self.sweeper([1, 2])
        self.wait_for(lambda: self.starts() == [1, 2])  # Trial 1 still runs, so it is not started.
        self.go()
        self.assertEqual(second.wait(), 0)
        # No sweep was running when trial 1 ended. It is started again and finds that it is done.
        self.assertEqual(self.starts(), [1, 2, 1])
        self.assertEqual(self.scores(), {1: 0.01, 2: 0.02})

    def test_sigterm_makes_running_trials_save(self):
        sweeper = self.sweeper([1, 2])
        self.wait_for(lambda: self.starts() == [1])
        runner = self.sweep([1, 2])
        sweeper.send_signal(signal.SIGTERM)
        self.assertEqual(sweeper.wait(), 130)
        self.assertTrue(os.path.exists(os.path.join(self.trial_folder(1, runner), "saved")))
        self.assertEqual(runner.running(), {})
        self.assertEqual(records.read(self.folder), [])

    def test_ctrl_c_during_the_start_of_a_trial_ends_it(self):
        tiny.enable_signals(self)
        started, popen = [], subprocess.Popen

        def start(*args, **kwargs):
            started.append(popen(*args, **kwargs))
            os.kill(os.getpid(), signal.SIGINT)
            return started[0]

        runner = self.sweep([8], {"precision": "float32"})
        popen_patch = mock.patch.object(subprocess, "Popen", start)
        with popen_patch, self.assertRaises(KeyboardInterrupt):
            runner.run()
        (process,) = started
        self.addCleanup(process.kill)
        self.assertIsNotNone(process.poll())


class RefusedTest(parameterized.TestCase, SweepTestCase):
    @parameterized.parameters(
        "flagfile", "run_with_profiling", "undefok", "verbosity", "adaptr_size"
    )
    def test_flags_that_are_not_the_scripts_own_are_refused(self, name):
        with self.assertRaisesRegex(UserError, f"^run_classifier.py does not .* --{name}\\."):
            self.sweep([8], {name: "1"})
        with self.assertRaisesRegex(UserError, f"does not accept .* --{name}"):
            self.sweep([8], extra_flags=[f"--{name}=1"])

    @parameterized.parameters(
        ({"flagfile=/x": "1"}, {}, "does not accept the trials' flag --"),
        ({"output_dir=/home/me": "1"}, {}, "does not accept the trials' flag --"),
        ({"train_batch_size": [3, "ten"]}, {}, "run_classifier.py does not .*train_batch_size=ten"),
        ({"learning_rate": float("inf")}, {}, "does not accept .*learning_rate=inf"),
        ({"learning_rate": "$RATE"}, {}, r"does not accept .*learning_rate=\$RATE: "),
        ({"init_checkpoint": "$NO_DIR/a.ckpt"}, {}, r"--init_checkpoint=.*\$NO_DIR is not set"),
        ({}, {"folder": "gs://bucket/sweep"}, "needs a local folder"),
        ({}, {"folder": "/there/a[1]"}, "TensorFlow cannot find checkpoints"),
        ({}, {"extra_flags": ("--adapter_size=3",)}, "--adapter_size is a flag of the grid"),
        ({}, {"extra_flags": ("precision",)}, "precision: expected a flag"),
        ({}, {"extra_flags": ("--a=1", "--a=2")}, "--a is given twice"),
        ({}, {"extra_flags": ("--output_dir=x",)}, "output_dir: the sweep sets"),
    )
    def test_invalid_settings_are_refused_before_any_trial(self, flags, settings, complaint):
        trials = grids.expand_grids([{"adapter_size": 1, **flags}])
        rate = mock.patch.dict(os.environ, RATE="1e-4x")
        with rate, self.assertRaisesRegex(UserError, complaint):
            sweep.Sweep(trials, **{"folder": self.folder, **settings})

    def test_missing_bert_is_refused(self):
        os.environ["BERT_BASE_DIR"] = self.scripts
        with self.assertRaisesRegex(UserError, "index cannot be read|no bert"):
            self.sweep([1])

    def test_two_data_sets_of_one_name_are_refused(self):
        folders = [os.path.join(self.scripts, place, "mails") for place in ("here", "there")]
        for folder in folders:
            os.makedirs(folder)
            atomic.write_atomically(os.path.join(folder, "train.csv"), "text,label\n")
        flags = {"task_name": "custom", "data_dir": [*folders, folders[0] + "/"]}
        self.assertLen(self.sweep([8], flags).trials, 3)
        with open(os.path.join(folders[1], "train.csv"), "a") as writer:
            writer.write("x,1\n")
        with self.assertRaisesRegex(UserError, "^--output_dir=.*mails on different data .digest"):
            self.sweep([8], flags)
        files = [os.path.join(folder, "train.csv") for folder in folders]  # A study of sizes.
        flags = {"script": "run_squad.py", "train_file": files, "predict_file": files[0]}
        self.assertLen(self.sweep([8], flags).trials, 2)

    def test_two_columns_of_labels_in_one_task_are_refused(self):
        flags = {"task_name": "custom", "data_dir": "/here/mails", "label_column": ["a", "b"]}
        with self.assertRaisesRegex(UserError, "mails on different data .--label_column: a and b"):
            self.sweep([8], flags)


class TrialFolderTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "trial")
        self.trial = sweep.TrialFolder(self.folder)

    def test_lock_has_at_most_one_holder(self):
        other = sweep.TrialFolder(self.folder)
        with self.trial.lock_log():
            self.assertIsNone(other.lock_log())
        with other.lock_log() as log:
            self.assertIsNotNone(log)

    def test_running_trial_is_detected_on_a_read_only_disk(self):
        def read_only(path, mode, **options):
            if mode != "rb":
                raise OSError(errno.EROFS, "Read-only file system")
            return open(path, mode, **options)

        self.assertFalse(self.trial.is_running())
        self.assertFalse(os.path.exists(self.folder))
        log = self.trial.lock_log()
        with mock.patch.object(gfile, "open", read_only, create=True):
            self.assertTrue(self.trial.is_running())
            log.close()
            self.assertFalse(self.trial.is_running())

    def test_trial_handles_sigint_if_its_sweep_ignores_it(self):
        """Shell scripts start background commands ("&") with SIGINT ignored."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        program = "import signal; print(signal.getsignal(2) is signal.default_int_handler)"
        with self.trial.lock_log() as log:
            process = self.trial.start([sys.executable, "-c", program], log)
        self.assertEqual(process.wait(), 0)
        self.assertEqual(self.trial.last_line(), "True")

    def test_large_logs_are_read_from_their_end(self):
        """A stranger's sparse log of 20 GB, or a trial's very long line."""
        with self.trial.lock_log() as log:
            log.truncate(20 << 30)
            log.write(b"\n$ run.py\nError: a.\n" + b"x" * 10_000 + b"\nlast\n")
            log.flush()
            self.assertEqual(self.trial.last_line(), "last")
            self.assertEqual(self.trial.outcome(1, None)["reason"], "a.")

    def test_failure_reason_is_the_last_error_or_last_line(self):
        for said, reason in (
            ("Error: a\nError: b.\nmore\n", "b."),
            ("Traceback\r\nValueError: x\n\n", "ValueError: x"),
            ("", ""),
        ):
            self.assertEqual(sweep.failure_reason(said), reason)
