"""Builds the wheel, installs it outside the clone, and runs it there, as a user would.

Runs only with ADAPTER_BERT_PACKAGE=1, as .ci/run sets it: pip downloads packages.
"""

import csv
import glob
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import unittest
import urllib.request

import tensorflow.compat.v1 as tf

from adapter_bert.files import paths
from adapter_bert.shell import commands
from adapter_tests.support import tiny

if not os.environ.get("ADAPTER_BERT_PACKAGE"):
    raise unittest.SkipTest("Set ADAPTER_BERT_PACKAGE=1 to build and install the package.")

TRAINING = """
import sys
from adapter_bert import train
texts, labels = ["the dog sees", "a cat likes", "old man hears"], ["dog", "cat", "man"]
flags = dict(zip(("bert_config_file", "vocab_file", "init_checkpoint"), sys.argv[1:]))
flags.update(max_seq_length=8, train_batch_size=8, num_train_epochs=1, verbose=False)
run = train(list(zip(texts * 20, labels * 20)), **flags)
(answer,) = run.predictor()(["the dog sees"])
assert set(answer["probabilities"]) == {"dog", "cat", "man"}, answer
print(run.adapter)
"""


class PackageTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.root = tempfile.mkdtemp(dir=tf.test.get_temp_dir())
        cls.run_in(
            cls.root, sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", "dist", paths.PROJECT
        )
        (cls.wheel,) = glob.glob(os.path.join(cls.root, "dist", "*.whl"))

    @classmethod
    def run_in(cls, folder, *command, code=0):
        """Runs a command without this clone on Python's path; returns (stdout, stderr)."""
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
        assert done.returncode == code, (command, done.stdout, done.stderr)
        return done.stdout, done.stderr

    def environment(self, name, packages=None):
        """Makes a virtual environment with the wheel; returns (its bin folder, its site-packages).

        Args:
          name: of its folder.
          packages: folder of packages that it shares; None to download the wheel's own.
        """
        folder = os.path.join(self.root, name)
        self.run_in(self.root, sys.executable, "-m", "venv", folder)
        (site,) = glob.glob(os.path.join(folder, "lib", "python*", "site-packages"))
        if packages:
            with open(os.path.join(site, "shared.pth"), "w") as writer:
                writer.write(packages + "\n")
        pip = [os.path.join(folder, "bin", "python"), "-m", "pip", "install", "--quiet"]
        self.run_in(self.root, *pip, *(["--no-deps"] if packages else []), self.wheel)
        return os.path.join(folder, "bin"), site

    def test_core_predicts_without_tensorflow_and_leaves_nothing(self):
        folder, site = self.environment("core")
        python, command = (os.path.join(folder, name) for name in ("python", "adapter-bert"))
        (record,) = glob.glob(os.path.join(site, "adapter_bert-*.dist-info", "RECORD"))
        with open(record) as reader:
            files = [row[0] for row in csv.reader(reader)]
        own = [file for file in files if not file.startswith("../")]
        tops = {file.split("/")[0] for file in own}
        self.assertLen(tops, 2)
        self.assertTrue(all(re.fullmatch(r"adapter_bert(-.*\.dist-info)?", top) for top in tops))
        self.run_in(self.root, python, "-m", "pip", "check")
        self.run_in(
            self.root, python, "-c", "from adapter_bert import AdapterBank, Predictor, train"
        )
        listed, _ = self.run_in(self.root, command, "--help")
        for name in commands.COMMANDS:
            self.assertRegex(listed, rf"(?m)^  {name} ")
        _, said = self.run_in(self.root, command, "train", code=1)
        self.assertRegex(
            said, r"^Error: .* no TensorFlow.* `pip install 'adapter-bert\[train\]'`.*\n$"
        )
        _, said = self.run_in(self.root, command, "serve", code=1)
        self.assertIn("`pip install 'adapter-bert[serve]'`", said)
        self.run_in(self.root, python, "-m", "pip", "uninstall", "--quiet", "--yes", "adapter-bert")
        self.assertEqual(glob.glob(os.path.join(site, "adapter*")), [])
        self.assertFalse(os.path.exists(command))

    def test_commands_train_and_serve_from_any_folder(self):
        folder, _ = self.environment("all", sysconfig.get_paths()["purelib"])
        python, command = (os.path.join(folder, name) for name in ("python", "adapter-bert"))
        work = tempfile.mkdtemp(dir=self.root)
        # A user's own modules with the root's names.
        for name in ("tokenization", "modeling"):
            with open(os.path.join(work, name + ".py"), "w") as writer:
                writer.write("raise ImportError('the user\\'s own')\n")
        for name in commands.COMMANDS:
            if name != "demo":  # It has no flags.
                with self.subTest(name):
                    helped, _ = self.run_in(work, command, name, "--help")
                    self.assertIn("--", helped)
        bert = tiny.write_bert(os.path.join(work, "bert"))
        names = ("bert_config.json", "vocab.txt", "bert_model.ckpt")
        files = [os.path.join(bert, name) for name in names]
        script = os.path.join(work, "program.py")
        with open(script, "w") as writer:
            writer.write(TRAINING)
        trained, _ = self.run_in(work, python, script, *files)
        self.assertTrue(os.path.exists(os.path.join(work, trained.splitlines()[-1])))
        tiny.write_mrpc(os.path.join(work, "MRPC"))
        flags = ("bert_config_file", "vocab_file", "init_checkpoint")
        self.run_in(
            work,
            *(command, "train", "--task_name=MRPC", f"--data_dir={work}/MRPC"),
            *("--max_seq_length=16", "--output_dir=mrpc", "--num_train_epochs=2"),
            *(f"--{flag}={path}" for flag, path in zip(flags, files)),
        )
        self.check_sweep(work, command, bert)
        self.check_server(work, command, bert)

    def check_sweep(self, work, command, bert):
        """Checks that a sweep finds the script of its trial."""
        with open(os.path.join(work, "grid.json"), "w") as writer:
            common = {"task_name": "MRPC", "data_dir": f"{work}/MRPC", "max_seq_length": 16}
            grid = {"adapter_size": 2, "num_train_epochs": 2}
            json.dump({"common": common, "grids": [grid]}, writer)
        swept, _ = self.run_in(
            *(work, command, "sweep", "--grid=grid.json", "--output_dir=swept"),
            *("--", f"--bert={bert}"),
        )
        self.assertIn("MRPC", swept)

    def check_server(self, work, command, bert):
        """Checks that the adapter in the folder mrpc is served."""
        port = tiny.free_port()
        serve = [command, "serve", "--adapters=mrpc/adapter", f"--port={port}"]
        environ = {**os.environ, "BERT_BASE_DIR": bert}
        environ.pop("PYTHONPATH", None)
        with subprocess.Popen(
            serve,
            cwd=work,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as server:
            try:
                self.assertRegex(server.stdout.readline(), "^Serving 1 task at ")
                request = urllib.request.Request(
                    f"http://127.0.0.1:{port}/v1/models/mrpc:predict",
                    json.dumps({"instances": [{"text": "a dog", "text_b": "a cat"}]}).encode(),
                    {"Content-Type": "application/json"},
                )
                answer = json.load(urllib.request.urlopen(request))
            finally:
                server.kill()
        self.assertLen(answer["predictions"][0]["probabilities"], 2)
