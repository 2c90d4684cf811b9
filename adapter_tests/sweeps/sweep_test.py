"""Tests of sweep.py with a script that stands in for a training."""

import concurrent.futures
import contextlib
import errno
import fcntl
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from unittest import mock

import tensorflow.compat.v1 as tf

from adapter_bert.files import atomic, gfile, paths
from adapter_bert.formats import task_adapter
from adapter_bert.ops import devices
from adapter_bert.shell.errors import UserError
from adapter_bert.sweeps import grids, records, sweep
from adapter_bert.training import progress
from adapter_tests.support import task_adapters, tiny

ROOT = paths.PROJECT  # Tests replace `paths.PROJECT`.

CHECKPOINTS = {"checkpoint", "model.ckpt-2.index", "partial.ckpt-3.index"}

# Stands in for run_classifier.py: records each start, waits for the file "go", and then writes the
# files of a training.
SCRIPT = """
import json, os, shutil, signal, sys, time
here = os.path.dirname(os.path.abspath(__file__))
flags = dict(argument[2:].split("=", 1) for argument in sys.argv[1:] if "=" in argument)
if "--only_check_args" in sys.argv:
    if "adaptr_size" in flags:
        sys.exit("Error: Unknown command line flag 'adaptr_size'.")
    if "--train_batch_size=ten" in sys.argv:  # As absl reads each of several values.
        sys.exit("Error: --train_batch_size=ten: expected a number.")
    sys.exit()
def interrupted(*_):
    open(os.path.join(flags["output_dir"], "saved"), "w").close()
    sys.exit(130)
signal.signal(signal.SIGINT, interrupted)
with open(os.path.join(here, "starts"), "a") as starts:
    starts.write(flags["adapter_size"] + "\\n")
print("label", flags.get("label_column"))
print("step 1/2", flush=True)
while not os.path.exists(os.path.join(here, "go")):
    time.sleep(0.05)
if flags["adapter_size"] == "13":
    if os.path.exists(os.path.join(here, "crash")):
        sys.exit("Traceback\\nValueError: x")
    print("Error: 13 brings bad luck.", flags.get("label_column", ""))
    print("a line after it")
    sys.exit(1)
if flags["adapter_size"] == "9":
    os.kill(os.getpid(), signal.SIGKILL)
output_dir = flags["output_dir"]
if flags["adapter_size"] == "40":
    sys.exit()  # Leaves nothing.
if not os.path.exists(os.path.join(output_dir, "adapter")):
    shutil.copytree(os.path.join(here, "adapter"), os.path.join(output_dir, "adapter"))
for name in ("checkpoint", "model.ckpt-2.index", "partial.ckpt-3.index", "other.txt"):
    open(os.path.join(output_dir, name), "w").close()
size = int(flags["adapter_size"])
task = "custom" if flags.get("task_name") == "custom" else "MRPC"
score = size / 100 if size != 66 else float("nan")
record = {"task": task, "score": "eval_f1", "eval_f1": score, "labels": ["0", "1"]}
with open(os.path.join(output_dir, "eval_results.json"), "w") as writer:
    json.dump(record, writer)
if "do_predict" in flags:
    with open(os.path.join(output_dir, "test_scores.json"), "w") as writer:
        json.dump({"task": "MRPC", "test_f1": size / 200}, writer)
"""

# Runs a sweep in a separate process, which can be killed.
SWEEPER = """
import sys
sys.path[:0] = [{root!r}]
from adapter_bert.files import paths
from adapter_bert.shell import errors
from adapter_bert.sweeps import grids, sweep
paths.PROJECT = {scripts!r}
trials = grids.expand_grids([{{"adapter_size": {sizes}, **{flags}}}])
runner = sweep.Sweep(trials, {folder!r}, jobs={jobs}, shard={shard})
sys.exit(errors.exit_code(runner.run))
"""


class SweepsTestCase(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        root = tempfile.mkdtemp(dir=self.get_temp_dir())
        self.scripts, self.folder = os.path.join(root, "scripts"), os.path.join(root, "sweep")
        bert = tiny.write_bert(os.path.join(root, "bert"))
        os.environ["BERT_BASE_DIR"] = bert
        self.addCleanup(os.environ.pop, "BERT_BASE_DIR")
        os.makedirs(self.scripts)
        with open(os.path.join(self.scripts, "run_classifier.py"), "w") as writer:
            writer.write(SCRIPT)
        adapter = task_adapter.TaskAdapter(task_adapters.description(), task_adapters.tensors())
        task_adapter.save(os.path.join(self.scripts, "adapter"), adapter)
        before, paths.PROJECT = paths.PROJECT, self.scripts
        self.addCleanup(setattr, paths, "PROJECT", before)

    def go(self):
        """Lets trials end from now on."""
        with open(os.path.join(self.scripts, "go"), "w"):
            pass

    def starts(self):
        path = os.path.join(self.scripts, "starts")
        if not os.path.exists(path):
            return []
        with open(path) as reader:
            return [int(size) for size in reader.read().split()]

    def sweep(self, sizes, flags=(), **settings):
        trials = grids.expand_grids([{"adapter_size": list(sizes), **dict(flags)}])
        return sweep.Sweep(trials, self.folder, **settings)

    def sweeper(self, sizes, jobs=1, shard=(0, 1), **flags):
        """Starts a sweep in a separate process; returns the process."""
        program = SWEEPER.format(
            root=ROOT,
            scripts=self.scripts,
            sizes=list(sizes),
            folder=self.folder,
            jobs=jobs,
            shard=shard,
            flags=flags,
        )
        return subprocess.Popen([sys.executable, "-c", program])

    def wait_for(self, condition):
        for _ in range(1200):
            if condition():
                return
            time.sleep(0.1)
        self.fail("It has not come within two minutes.")

    def scores(self):
        return {
            record["flags"]["adapter_size"]: record["scores"]["eval_f1"]
            for record in records.read(self.folder)
            if record["status"] == "done"
        }

    def reasons(self, runner):
        recorded = runner.records().values()
        return {record["flags"]["adapter_size"]: record.get("reason") for record in recorded}

    def trial_folder(self, size, runner):
        (name,) = (
            runner.name(key)
            for key, trial in runner.trials.items()
            if dict(trial.flags)["adapter_size"] == size
        )
        return os.path.join(self.folder, "trials", name)

    def log(self, size, runner):
        with open(os.path.join(self.trial_folder(size, runner), "log.txt")) as reader:
            return reader.read()


class SweepsTest(SweepsTestCase):
    def test_every_trial_is_run_once_and_recorded(self):
        self.go()
        runner = self.sweep([8, 64], {"do_predict": True})
        self.assertLen(runner.commands(), 2)
        runner.run()
        self.assertEqual(self.starts(), [8, 64])
        record = list(runner.records().values())[1]
        self.assertEqual(record["scores"], {"eval_f1": 0.64, "test_f1": 0.32})
        self.assertEqual((record["task"], record["score"]), ("MRPC", "eval_f1"))
        self.assertEqual(record["backbone"], {"name": "tiny", "fingerprint": "f" * 64})
        self.assertEqual(record["flags"]["adapter_size"], 64)
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
            os.makedirs(
                self.trial_folder(16, third)
            )  # An interrupted trial resumes in its own precision.
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

    def test_changed_tf_hub_module_makes_new_trials(self):
        self.go()
        module = os.path.join(self.scripts, "module")
        os.makedirs(module)
        flags = {"bert_hub_module_handle": "$MODULE_DIR/module"}
        bert = mock.Mock(config=tiny.config())
        variables = mock.patch.dict(os.environ, {"MODULE_DIR": self.scripts})
        read_bert = mock.patch.object(sweep.tfhub, "read_bert", return_value=bert)
        with variables, read_bert as read:
            for content in ("first", "second"):
                with open(os.path.join(module, "saved_model.pb"), "w") as writer:
                    writer.write(content)
                self.assertLen(self.sweep([8], flags).commands(), 1)
                self.sweep([8], flags).run()
                self.assertEqual(self.sweep([8], flags).commands(), [])
        read.assert_called_with(module)
        self.assertEqual(self.starts(), [8, 8])

    def test_custom_task_is_named_after_its_data_folder(self):
        self.go()
        runner = self.sweep([8], {"task_name": "custom", "data_dir": "/data/reviews"})
        runner.run()
        self.assertEqual([record["task"] for record in runner.records().values()], ["reviews"])

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

    def test_full_disk_at_the_end_of_a_trial_fails_it(self):
        self.go()
        full = RuntimeError("/there/events.out.tfevents.1; No space left on device")
        runner = self.sweep([8])
        with mock.patch.object(progress.tf.summary, "FileWriter", side_effect=full):
            runner.run()
        sentence = "/there/events.out.tfevents.1 cannot be written (No space left on device)."
        self.assertEqual(self.reasons(runner), {8: sentence})
        self.sweep([8], retry_failed=True).run()
        self.assertEqual(self.scores(), {8: 0.08})

    def test_trial_seconds_ignore_clock_changes(self):
        self.go()
        runner = self.sweep([8])
        with mock.patch.object(time, "time", side_effect=itertools.count(2e9, -1000)):
            runner.run()
        (record,) = runner.records().values()
        self.assertBetween(record["seconds"], 0.01, 600)

    def test_extra_flags_are_recorded_except_machine_flags(self):
        self.go()
        places = ("--feature_cache_dir=/tmp/a", "--tpu_name=first", "--spm_model_file=/tmp/b")
        flags = ("--precision=float32", "--random_seed=5", *places)
        runner = self.sweep([8], extra_flags=flags)
        self.assertContainsSubset(flags, runner.commands()[0])
        runner.run()
        (record,) = runner.records().values()
        self.assertEqual(
            (record["flags"]["precision"], record["flags"]["random_seed"]), ("float32", 5)
        )
        self.assertNoCommonElements(
            ("feature_cache_dir", "tpu_name", "spm_model_file"), record["flags"]
        )
        same = grids.expand_grids([{"adapter_size": 8, "precision": "float32", "random_seed": 5}])
        self.assertEqual(sweep.Sweep(same, self.folder).commands(), [])
        self.assertLen(self.sweep([8]).commands(), 1)

    def test_sweep_works_without_file_locks(self):
        self.go()
        error = OSError(errno.ENOSYS, "Function not implemented")
        with mock.patch.object(fcntl, "flock", side_effect=error):
            runner = self.sweep([8])
            runner.run()
            self.assertEqual(runner.running(), {})
        self.assertEqual(self.scores(), {8: 0.08})

    def test_two_sweepers_share_a_folder_without_file_locks(self):
        self.go()
        with mock.patch.object(fcntl, "flock", side_effect=OSError(errno.ENOLCK, "No locks")):
            runner = self.sweep([8, 16])
            held = os.path.join(self.trial_folder(8, runner), "log.txt.held")
            sweep._close(runner._trial_folder(next(iter(runner.trials))).lock_log())
            atomic.write_atomically(held, "12 elsewhere")  # As on another machine.
            (key,) = runner.running()
            self.assertEqual(runner.name(key), os.path.basename(os.path.dirname(held)))
            holder = f"{runner.name(key)} runs .*12 on elsewhere; if it was killed, remove {held}"
            refused = self.assertRaisesRegex(UserError, holder)
            with self.assertLogs("absl", "INFO") as logs, refused:
                runner.run()
            self.assertLen(re.findall(holder, "\n".join(logs.output)), 1)
            self.assertEqual(self.starts(), [16])  # The others are not held.
            atomic.write_atomically(held, f"{os.getppid()} {socket.gethostname()}")
            waits = mock.patch.object(time, "sleep", side_effect=[None] * 9 + [KeyboardInterrupt])
            with waits, self.assertRaises(KeyboardInterrupt):
                runner.run()
            for process in (2**30, os.getpid()):
                atomic.write_atomically(held, f"{process} {socket.gethostname()}")
                with self.assertRaisesRegex(UserError, f"{held} is left of process {process}"):
                    runner.run([key])
            os.remove(held)
            os.mkfifo(held)
            with waits, self.assertRaises(KeyboardInterrupt):
                runner.run()
            os.remove(held)
            runner.run()
            self.assertEqual(self.starts(), [16, 8])
            self.assertFalse(os.path.exists(held))

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

    def test_unkept_files_are_removed_after_a_kill(self):
        self.go()
        left = CHECKPOINTS
        for keep, size in (("adapters", 1), ("scores", 2), ("all", 3)):
            killed = mock.patch.object(shutil, "rmtree", side_effect=SystemExit)
            if keep != "scores":
                killed = mock.patch.object(os, "remove", side_effect=SystemExit)
            with killed, contextlib.suppress(SystemExit):
                self.sweep([size], keep=keep).run()
        runner = self.sweep([1, 2, 3], keep="scores")
        self.assertEqual(sorted(self.scores()), [1, 2, 3])
        self.assertContainsSubset(left, os.listdir(self.trial_folder(1, runner)))
        self.assertIn("adapter", os.listdir(self.trial_folder(2, runner)))
        for _ in range(2):  # Later files stay, and so do kept files.
            runner.run()
            for size, kept in ((1, {"adapter"}), (2, set()), (3, {"adapter", *left})):
                found = set(os.listdir(self.trial_folder(size, runner)))
                self.assertEqual(found & {"adapter", *left, ".unkept"}, kept)
            with open(os.path.join(self.trial_folder(1, runner), "model.ckpt-9"), "w"):
                pass
        self.assertIn("model.ckpt-9", os.listdir(self.trial_folder(1, runner)))
        self.assertEqual(self.starts(), [1, 2, 3])

    def test_files_in_a_sweep_do_not_name_what_is_removed(self):
        """A stranger's folder of a finished sweep; the same sweep runs again."""
        self.go()
        runner = self.sweep([8])
        runner.run()
        folder = self.trial_folder(8, runner)
        home = tempfile.mkdtemp(dir=self.get_temp_dir())
        private = os.path.join(home, "checkpoint")
        atomic.write_atomically(private, "")
        for mark in (".unkept", ".unkept-scores"):
            for pattern in (home, private, os.path.relpath(private, folder), "../../*", "*"):
                atomic.write_atomically(os.path.join(folder, mark), pattern + "\n")
                runner.run()
                self.assertTrue(os.path.exists(private))
                self.assertIn("other.txt", os.listdir(folder))
        os.symlink(home, os.path.join(folder, "adapter"))
        os.symlink(private, os.path.join(folder, ".unkept-scores"))
        runner.run()
        self.assertTrue(os.path.exists(private))
        self.assertNoCommonElements(os.listdir(folder), ["adapter", ".unkept-scores"])
        for name in ("submission", "eval", "workers"):  # Of a trial whose record is lost.
            os.symlink(home, os.path.join(folder, name))
        for name in ("data.tsv", "test_results.tsv", "0.json"):
            atomic.write_atomically(os.path.join(home, name), "")
        os.mkdir(os.path.join(folder, "adapter"))
        os.remove(os.path.join(self.folder, "results.jsonl"))
        runner.run()
        kept = ["0.json", "checkpoint", "data.tsv", "test_results.tsv"]
        self.assertEqual(sorted(os.listdir(home)), kept)
        self.assertNoCommonElements(os.listdir(folder), ["submission", "eval", "workers"])
        atomic.write_atomically(os.path.join(home, ".unkept-all"), "")
        for path in (folder, os.path.dirname(folder)):
            gfile.rmtree(path)
            os.symlink(home, path)
            with self.assertRaisesRegex(UserError, f"^{path} is a link, which a sweep does"):
                runner.run()
        self.assertTrue(os.path.exists(private))

    def test_links_in_a_sweep_are_not_written_through(self):
        self.go()
        runner = self.sweep([8])
        log = os.path.join(self.trial_folder(8, runner), "log.txt")
        os.makedirs(os.path.dirname(log))
        private = os.path.join(self.get_temp_dir(), "private")
        atomic.write_atomically(private, "")
        records_file, precision_lock = (
            os.path.join(self.folder, name) for name in ("results.jsonl", "precision.json.lock")
        )
        for path in (records_file, log, precision_lock):
            os.symlink(private, path)
            with self.assertRaisesRegex(UserError, f"^{path} .*is a link, "):
                runner.run()
            os.remove(path)
        self.assertEqual((os.path.getsize(private), self.starts()), (0, []))

    def test_finished_trial_whose_record_is_lost_runs_again(self):
        self.go()
        runner = self.sweep([8])
        runner.run()
        adapter = os.path.join(self.trial_folder(8, runner), "adapter")
        os.remove(os.path.join(self.folder, "results.jsonl"))
        real = subprocess.Popen

        def start(*args, **options):
            # The script would refuse an adapter without its checkpoints.
            self.assertFalse(os.path.exists(adapter))
            return real(*args, **options)

        with mock.patch.object(subprocess, "Popen", start):
            self.sweep([8]).run()
        self.assertEqual(self.starts(), [8, 8])
        self.assertEqual(self.scores(), {8: 0.08})

    def test_different_bert_makes_new_trials(self):
        self.go()
        self.sweep([8]).run()
        other = os.path.join(self.get_temp_dir(), "other")
        tiny.write_bert(other, hidden_size=16)
        os.environ["BERT_BASE_DIR"] = other
        self.assertLen(self.sweep([8]).commands(), 1)

    def write_mrpc(self, folder, seed=0):
        """Writes data of MRPC and makes $GLUE_DIR lead to them; returns their folder."""
        glue = os.path.join(os.path.dirname(self.folder), folder)
        os.environ["GLUE_DIR"] = glue
        self.addCleanup(os.environ.pop, "GLUE_DIR", None)
        return tiny.write_mrpc(os.path.join(glue, "MRPC"), seed=seed)

    def test_changed_vocabulary_makes_new_trials(self):
        self.go()
        self.sweep([8]).run()
        self.assertEqual(self.sweep([8]).commands(), [])
        with open(os.path.join(os.environ["BERT_BASE_DIR"], "vocab.txt"), "a") as writer:
            writer.write("another\n")
        self.assertLen(self.sweep([8]).commands(), 1)
        self.sweep([8]).run()
        self.assertEqual(self.starts(), [8, 8])
        self.assertEqual(self.sweep([8]).commands(), [])
        self.assertLen(os.listdir(os.path.join(self.folder, "trials")), 2)  # It has a new folder.

    def test_changed_data_make_new_trials(self):
        self.go()
        dev = os.path.join(self.write_mrpc("glue"), "dev.tsv")
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

    def test_trial_fails_if_its_data_change_while_it_runs(self):
        train = os.path.join(self.write_mrpc("glue"), "train.tsv")
        sweeper = self.sweeper([1, 2], task_name="MRPC")
        self.wait_for(lambda: self.starts() == [1])
        os.utime(train)  # Its content stays the same.
        self.go()
        self.assertEqual(sweeper.wait(), 0)
        self.assertEqual(self.scores(), {1: 0.01, 2: 0.02})
        os.remove(os.path.join(self.scripts, "go"))
        sweeper = self.sweeper([3], task_name="MRPC")
        self.wait_for(lambda: self.starts() == [1, 2, 3])
        before = self.sweep([3], {"task_name": "MRPC"})
        with open(train, "a") as writer:
            writer.write("1\t8\t9\tthe cat .\tthe cat .\n")
        self.go()
        self.assertEqual(sweeper.wait(), 0)
        self.assertRegex(self.reasons(before)[3], "its data have changed")
        self.assertLen(self.sweep([3], {"task_name": "MRPC"}).commands(), 1)

    def test_trial_does_not_start_if_its_data_have_changed(self):
        train = os.path.join(self.write_mrpc("glue"), "train.tsv")
        runner = self.sweep([1, 2], {"task_name": "MRPC"})
        with open(train, "a") as writer:
            writer.write("1\t8\t9\tthe cat .\tthe cat .\n")
        with self.assertRaisesRegex(
            UserError, "^MRPC: its data have changed .* run the sweep again"
        ):
            runner.run()
        self.assertEqual(self.starts(), [])

    def test_variables_in_non_data_flags_are_expanded(self):
        self.write_mrpc("glue")
        keys = []
        for seed in ("1", "2"):
            os.environ["SEED"] = seed
            self.addCleanup(os.environ.pop, "SEED", None)
            keys += self.sweep([8], {"task_name": "MRPC", "random_seed": "$SEED"}).trials
        keys += self.sweep([8], {"task_name": "MRPC", "random_seed": 2}).trials
        self.assertNotEqual(keys[0], keys[1])
        self.assertEqual(keys[1], keys[2])
        self.go()
        os.environ["SEED"], os.environ["RATE"] = "3", "1e-3"
        self.addCleanup(os.environ.pop, "RATE")
        flags = {"random_seed": "$SEED", "learning_rate": "$RATE", "data_dir": "$GLUE_DIR/MRPC"}
        self.sweep([8], {"task_name": "MRPC", **flags}).run()
        (recorded,) = records.read(self.folder)
        self.assertEqual([recorded["flags"][name] for name in flags], [3, 1e-3, "$GLUE_DIR/MRPC"])

    def test_values_of_variables_are_not_recorded_or_shown(self):
        """A stranger's grid may name a variable that holds a secret."""
        self.go()
        secret = {"SECRET": "hunter2", "NUMBER": "0.001", "FOLDER": "/home/me/data", "WORD": "dev"}
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

    def test_flags_that_are_not_the_scripts_own_are_refused(self):
        for name in ("flagfile", "run_with_profiling", "profile_file", "undefok", "verbosity"):
            with self.assertRaisesRegex(UserError, f"^run_classifier.py does not .* --{name}\\."):
                self.sweep([8], {name: "1"})
            with self.assertRaisesRegex(UserError, f"does not accept .* --{name}"):
                self.sweep([8], extra_flags=[f"--{name}=1"])
        for name in ("flagfile=/x", "output_dir=/home/me", "-alsologtostderr", "a b", "train_file"):
            with self.assertRaisesRegex(UserError, "does not accept the trials' flag --"):
                self.sweep([8], {name: "1"})
        self.assertEqual(self.starts(), [])

    def test_failure_without_data_is_retried_once_data_exist(self):
        flags = {"task_name": "MRPC"}
        os.environ["GLUE_DIR"] = os.path.join(self.scripts, "missing")
        trial = self.sweep([8], flags)
        os.makedirs(self.folder)
        records.append(
            self.folder,
            (0, 1),
            {
                "key": next(iter(trial.trials)),
                "script": "run_classifier.py",
                "flags": {"adapter_size": 8, **flags},
                "finished": records.now(),
                "status": "failed",
                "reason": "no data",
            },
        )
        self.assertEqual(self.sweep([8], flags).commands(), [])
        self.write_mrpc("glue")
        self.assertLen(self.sweep([8], flags).commands(), 1)

    def test_result_without_data_stays_valid_once_data_exist(self):
        self.go()
        os.environ["GLUE_DIR"] = os.path.join(self.scripts, "missing")
        self.sweep([8], {"task_name": "MRPC"}).run()
        self.write_mrpc("glue")
        self.assertEqual(self.sweep([8], {"task_name": "MRPC"}).commands(), [])

    def test_data_files_are_hashed_once_for_all_trials(self):
        self.go()
        self.write_mrpc("glue")
        with mock.patch.object(gfile, "sha256", wraps=gfile.sha256) as sha256:
            runner = self.sweep([2, 8, 64], {"task_name": "MRPC", "random_seed": [1, 2, 3]})
            runner.run()
        self.assertLen(runner.records(), 9)
        read = [os.path.basename(call[0][0]) for call in sha256.call_args_list]
        bert = ["bert_model.ckpt.index", "bert_config.json", "vocab.txt"]
        self.assertCountEqual(read, [*bert, "train.tsv", "dev.tsv"])

    def test_parallel_trials_share_the_cores(self):
        with mock.patch.object(os, "sched_getaffinity", return_value={0, 1, 2, 5, 6}):
            self.assertEqual(sweep._assigned_cores(0, 2), [0, 2, 6])
            self.assertEqual(sweep._assigned_cores(1, 2), [1, 5])
            self.assertIsNone(sweep._assigned_cores(0, 1))
            self.assertIsNone(sweep._assigned_cores(0, 6))

    def test_two_jobs_run_in_parallel(self):
        sweeper = self.sweeper([1, 2, 3], jobs=2)
        self.wait_for(lambda: len(self.starts()) == 2)
        runner = self.sweep([1, 2, 3])
        self.wait_for(lambda: set(runner.running().values()) == {"step 1/2"})
        self.assertLen(runner.running(), 2)
        self.go()
        self.assertEqual(sweeper.wait(), 0)
        self.assertEqual(sorted(self.starts()), [1, 2, 3])

    def test_two_sweepers_share_a_folder(self):
        sweepers = [self.sweeper(range(1, 6)) for _ in range(2)]
        self.wait_for(lambda: len(self.starts()) == 2)
        self.go()
        self.assertEqual([sweeper.wait() for sweeper in sweepers], [0, 0])
        self.assertEqual(sorted(self.starts()), [1, 2, 3, 4, 5])
        self.assertEqual(self.scores(), {size: size / 100 for size in range(1, 6)})

    def test_two_shards_share_a_folder(self):
        self.go()
        sweepers = [self.sweeper(range(1, 6), shard=(index, 2)) for index in range(2)]
        self.assertEqual([sweeper.wait() for sweeper in sweepers], [0, 0])
        self.assertEqual(sorted(self.starts()), [1, 2, 3, 4, 5])
        with open(os.path.join(self.folder, "results.0-of-2.jsonl")) as reader:
            sizes = [json.loads(line)["flags"]["adapter_size"] for line in reader]
        self.assertEqual(sizes, [1, 3, 5])
        self.assertEqual(self.scores(), {size: size / 100 for size in range(1, 6)})

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

    def test_data_folders_with_the_same_name_are_refused(self):
        def sweep_over(*folders):
            return self.sweep([8], {"task_name": "custom", "data_dir": list(folders)})

        with self.assertRaisesRegex(
            UserError,
            "^--data_dir=/there/mails and --data_dir=/here/mails have the same name, mails",
        ):
            sweep_over("/here/mails/", "/here/reviews", "/there/mails")
        self.assertLen(sweep_over("/here/mails", "/here/mails/", "/there/reviews").trials, 3)

    def test_two_columns_of_labels_in_one_task_are_refused(self):
        common = {"task_name": "custom", "data_dir": "/here/mails", "text_column": ["a", "b"]}
        with self.assertRaisesRegex(
            UserError, "found runs of mails on different data .--label_column: topic and tone"
        ):
            self.sweep([8], {**common, "label_column": ["topic", "tone"]})
        tags = {"script": "run_tagger.py", "task_name": "ner", "tag_column": ["2", "3"]}
        with self.assertRaisesRegex(UserError, "of ner on different data .--tag_column: 2 and 3"):
            self.sweep([8], tags)
        self.assertLen(self.sweep([8], {**common, "label_column": "tone"}).trials, 2)

    def test_invalid_settings_are_refused_before_any_trial(self):
        with self.assertRaisesRegex(UserError, "run_classifier.py does not accept .*adaptr_size"):
            self.sweep([1], {"adaptr_size": 2}).check_flags()
        with self.assertRaisesRegex(UserError, "--train_batch_size=ten: expected"):
            self.sweep([1], {"train_batch_size": [3, "ten"]}).check_flags()
        self.sweep([1]).check_flags()
        many = mock.patch.object(subprocess, "run", side_effect=OSError(errno.E2BIG, "Too long"))
        with many, self.assertRaisesRegex(UserError, r"classifier.py cannot be started \(Too long"):
            self.sweep([1]).check_flags()
        with mock.patch.dict(os.environ, {"RATE": "1e-4x"}), self.assertRaisesRegex(
            UserError, r"^--learning_rate: expected a number; found \$RATE"
        ):
            self.sweep([1], {"learning_rate": "$RATE"})
        for settings, complaint in (
            ({"folder": "gs://bucket/sweep"}, "needs a local folder"),
            ({"folder": self.folder + "[1]"}, "TensorFlow cannot find checkpoints"),
            ({"extra_flags": ("--adapter_size=3",)}, "--adapter_size is a flag of the grid"),
            ({"extra_flags": ("precision",)}, "precision: expected a flag"),
            ({"extra_flags": ("--a=1", "--a=2")}, "--a is given twice"),
            ({"extra_flags": ("--output_dir=x",)}, "output_dir: the sweep sets"),
            ({"extra_flags": ("--do_eval=False",)}, "every trial trains and evaluates"),
        ):
            trials = grids.expand_grids([{"adapter_size": 1}])
            with self.assertRaisesRegex(UserError, complaint):
                sweep.Sweep(trials, **{"folder": self.folder, **settings})
        with self.assertRaisesRegex(UserError, r"--init_checkpoint=.*\$NO_DIR is not set"):
            self.sweep([1], {"init_checkpoint": "$NO_DIR/bert_model.ckpt"})
        os.environ["BERT_BASE_DIR"] = self.scripts
        with self.assertRaisesRegex(UserError, "index cannot be read|no bert"):
            self.sweep([1])
        self.assertEqual(self.starts(), [])


class TrialFolderTest(tf.test.TestCase):
    def test_lock_has_at_most_one_holder(self):
        folder = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "trial")
        one, other = sweep.TrialFolder(folder), sweep.TrialFolder(folder)
        with one.lock_log():
            self.assertIsNone(other.lock_log())
        with other.lock_log() as log:
            self.assertIsNotNone(log)

    def test_running_trial_is_detected_on_a_read_only_disk(self):
        folder = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "trial")
        trial = sweep.TrialFolder(folder)

        def read_only(path, mode, **options):
            if mode != "rb":
                raise OSError(errno.EROFS, "Read-only file system")
            return open(path, mode, **options)

        self.assertFalse(trial.is_running())
        self.assertFalse(os.path.exists(folder))
        log = trial.lock_log()
        with mock.patch.object(gfile, "open", read_only, create=True):
            self.assertTrue(trial.is_running())
            log.close()
            self.assertFalse(trial.is_running())

    def test_log_that_is_a_pipe_is_refused_at_once(self):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        os.mkfifo(os.path.join(folder, "log.txt"))
        with self.assertRaisesRegex(UserError, r"log.txt cannot be read \(it is not a regular"):
            sweep.TrialFolder(folder).is_running()

    def test_trial_handles_sigint_if_its_sweep_ignores_it(self):
        """Shell scripts start background commands ("&") with SIGINT ignored."""
        folder = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "trial")
        trial = sweep.TrialFolder(folder)
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        log = trial.lock_log()
        program = "import signal; print(signal.getsignal(2) is signal.default_int_handler)"
        process = trial.start([sys.executable, "-c", program], log)
        log.close()
        self.assertEqual(process.wait(), 0)
        self.assertEqual(trial.last_line(), "True")

    def test_trial_that_cannot_start_is_refused(self):
        trial = sweep.TrialFolder(os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "trial"))
        with trial.lock_log() as log, self.assertRaisesRegex(
            UserError, r"^run.py cannot be started \(No such file"
        ):
            trial.start(["no/such/python", "run.py"], log)

    def test_large_logs_are_read_from_their_end(self):
        """A stranger's sparse log of 20 GB, or a trial's very long line."""
        trial = sweep.TrialFolder(os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "trial"))
        with trial.lock_log() as log:
            log.truncate(20 << 30)
            log.write(b"\n$ run.py\nError: a.\n" + b"x" * 10_000 + b"\nlast\n")
            log.flush()
            self.assertEqual(trial.last_line(), "last")
            self.assertEqual(trial.outcome(1, None)["reason"], "a.")

    def test_failure_reason_is_the_last_error_or_last_line(self):
        for said, reason in (
            ("Error: a\nError: b.\nmore\n", "b."),
            ("Traceback\r\nValueError: x\n\n", "ValueError: x"),
            ("", ""),
        ):
            self.assertEqual(sweep.failure_reason(said), reason)
