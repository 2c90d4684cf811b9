"""A sweep over a script that stands in for a training."""

import json
import os
import tempfile

import tensorflow.compat.v1 as tf

from adapter_bert.files import paths
from adapter_bert.formats import task_adapter
from adapter_bert.sweeps import grids, records, sweep
from adapter_tests.support import task_adapters, tiny

ROOT = paths.PROJECT  # Tests replace `paths.PROJECT`.
CHECKPOINTS = {"checkpoint", "model.ckpt-2.index", "partial.ckpt-3.index"}

# Stands in for run_classifier.py: records each start, waits for the file "go", and then writes the
# files of a training; that of size 77 predicts only one label. The score follows from size, rate
# and epochs: rate 2 is the best, then 1.
SCRIPT = """
import fcntl, json, os, shutil, signal, sys, time
here = os.path.dirname(os.path.abspath(__file__))
flags = dict(argument[2:].split("=", 1) for argument in sys.argv[1:] if "=" in argument)
def interrupted(*_):
    open(os.path.join(flags["output_dir"], "saved"), "w").close()
    sys.exit(130)
signal.signal(signal.SIGINT, interrupted)
with open(os.path.join(here, "starts"), "a") as starts:
    starts.write(json.dumps(flags) + "\\n")
print("label", flags.get("label_column"))
print("GPUs", os.environ.get("CUDA_VISIBLE_DEVICES"))
alone = open(os.path.join(here, os.path.basename(flags["output_dir"])), "w")
try:
    fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    with open(os.path.join(here, "overlaps"), "a") as overlaps:
        overlaps.write(flags["adapter_size"] + "\\n")
print("step 1/2", flush=True)
while not os.path.exists(os.path.join(here, "go")):
    time.sleep(0.05)
with open(os.path.join(here, "go")) as reader:
    time.sleep(float(reader.read() or 0))
size = int(flags["adapter_size"])
if size == 13:
    if os.path.exists(os.path.join(here, "crash")):
        sys.exit("Traceback\\nValueError: x")
    print("Error: 13 brings bad luck.", flags.get("label_column", ""))
    print("a line after it")
    sys.exit(1)
if size == 9:
    os.kill(os.getpid(), signal.SIGKILL)
if size == 40:
    sys.exit()  # Leaves nothing.
output_dir = flags["output_dir"]
if not os.path.exists(os.path.join(output_dir, "adapter")):
    shutil.copytree(os.path.join(here, "adapter"), os.path.join(output_dir, "adapter"))
for name in ("checkpoint", "model.ckpt-2.index", "partial.ckpt-3.index", "other.txt"):
    open(os.path.join(output_dir, name), "w").close()
rate, epochs = float(flags.get("learning_rate", 2)), float(flags.get("num_train_epochs", 0))
score = size / 100 - abs(2 - rate) / 100 - rate / 1000 + 2 / 1000 + epochs / 1e5
score = float("nan") if size == 66 else round(score, 6)
task = "custom" if flags.get("task_name") == "custom" else "MRPC"
record = {"task": task, "score": "eval_f1", "eval_f1": score, "labels": ["0", "1"]}
if size == 77:
    record["eval_predicted_labels"] = 1
with open(os.path.join(output_dir, "eval_results.json"), "w") as writer:
    json.dump(record, writer)
if "do_predict" in flags:
    with open(os.path.join(output_dir, "test_scores.json"), "w") as writer:
        json.dump({"task": "MRPC", "test_f1": size / 200}, writer)
"""


class SweepTestCase(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        root = tempfile.mkdtemp(dir=self.get_temp_dir())
        self.scripts, self.folder = os.path.join(root, "scripts"), os.path.join(root, "sweep")
        os.environ["BERT_BASE_DIR"] = tiny.write_bert(os.path.join(root, "bert"))
        self.addCleanup(os.environ.pop, "BERT_BASE_DIR")
        os.makedirs(self.scripts)
        with open(os.path.join(self.scripts, "run_classifier.py"), "w") as writer:
            writer.write(SCRIPT)
        adapter = task_adapter.TaskAdapter(task_adapters.description(), task_adapters.tensors())
        task_adapter.save(os.path.join(self.scripts, "adapter"), adapter)
        before, paths.PROJECT = paths.PROJECT, self.scripts
        self.addCleanup(setattr, paths, "PROJECT", before)

    def go(self, seconds=0):
        """Lets trials end from now on, after some seconds."""
        path = os.path.join(self.scripts, "go")
        with open(path + ".new", "w") as writer:
            writer.write(str(seconds))
        os.replace(path + ".new", path)

    def started_flags(self):
        """Returns the flags, a dict of str, of each start of the script."""
        path = os.path.join(self.scripts, "starts")
        if not os.path.exists(path):
            return []
        with open(path) as reader:
            return [json.loads(line) for line in reader]

    def starts(self):
        return [int(flags["adapter_size"]) for flags in self.started_flags()]

    def sweep(self, sizes, flags=(), **settings):
        trials = grids.expand_grids([{"adapter_size": list(sizes), **dict(flags)}])
        return sweep.Sweep(trials, self.folder, **settings)

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

    def write_mrpc(self, folder="glue", seed=0):
        """Writes data of MRPC and makes $GLUE_DIR lead to them; returns their folder."""
        glue = os.path.join(os.path.dirname(self.folder), folder)
        os.environ["GLUE_DIR"] = glue
        self.addCleanup(os.environ.pop, "GLUE_DIR", None)
        return tiny.write_mrpc(os.path.join(glue, "MRPC"), seed=seed)
