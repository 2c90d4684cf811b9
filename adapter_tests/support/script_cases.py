"""Test cases that run a training script in the tests' process."""

import contextlib
import functools
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf

import run_classifier
from adapter_bert.shell import environment, errors
from adapter_bert.training import record, stored_predictions
from adapter_tests.support import command_lines, tiny

FOLDER = os.path.dirname(os.path.abspath(run_classifier.__file__))


def read(path, mode="r"):
    with open(path, mode) as reader:
        return reader.read()


def write(path, content, mode="w"):
    """Writes a file, creating its folder if necessary, and returns its path."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, mode) as writer:
        writer.write(content)
    return path


_RUNS = {}  # (script, arguments) → (folder, report) of `train_once`.


@pytest.mark.without_xla  # The scripts' behaviour does not depend on how the model is computed.
class AnyScriptTestCase(tf.test.TestCase):
    """Runs a script. A subclass sets its module, SCRIPT, and the `base_flags` of every run."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.root = tempfile.mkdtemp(dir=tf.test.get_temp_dir())

    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.root)
        self.output_dir = os.path.join(self.folder, "output")

    @classmethod
    def call(cls, output_dir, *arguments):
        """Runs the script; later flags win. Returns (exit code, report, stderr)."""
        report = []
        given = [*cls.base_flags, "--output_dir=" + output_dir, *arguments]
        values = command_lines.parsed(cls.SCRIPT.define_flags, *given)
        environment.silence_tensorflow()  # As in main; another test may have reverted it.
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            code = errors.exit_code(lambda: report.extend(cls.SCRIPT.run(values)))
        return code, "\n".join(report), stderr.getvalue()

    @classmethod
    def train_once(cls, *arguments):
        """Returns (output_dir, report) of a run, one for all tests of this process.

        Tests copy the folder and do not change it.
        """
        key = (cls.SCRIPT, *cls.base_flags, *arguments)
        if key not in _RUNS:
            output_dir = os.path.join(tempfile.mkdtemp(dir=tf.test.get_temp_dir()), "trained")
            code, report, stderr = cls.call(output_dir, *arguments)
            assert code is None, stderr
            _RUNS[key] = output_dir, report
        return _RUNS[key]

    def succeed(self, *arguments, output_dir=None):
        """Runs the script, which must succeed, and returns its report."""
        code, report, stderr = self.call(output_dir or self.output_dir, *arguments)
        self.assertIsNone(code, stderr)
        return report

    def refuse(self, parts, *arguments, output_dir=None):
        """Runs the script, which must exit with 1 and one sentence with all parts; returns it."""
        code, _, stderr = self.call(output_dir or self.output_dir, *arguments)
        with self.subTest(arguments=arguments, stderr=stderr):
            self.assert_one_sentence(code, stderr, parts)
        return stderr

    def assert_one_sentence(self, code, stderr, parts):
        self.assertEqual(code, 1)
        self.assertRegex(stderr, r"\AError: [^\n]+\.\n\Z")
        self.assertNotRegex(stderr[:-1].replace(self.root, ""), r"\. [A-Z]")
        for part in parts:
            self.assertIn(part, stderr)

    def killed(self, where, *flags):
        """Runs the script in a process that a SIGKILL ends in the third call of a function."""
        code = f"""
import os, runpy, signal, sys
from adapter_bert.ops import xla
from adapter_bert.tasks import stored_tables
from adapter_bert.training import stored_predictions
stored_tables._ROWS_PER_PART, stored_predictions._SECONDS_BETWEEN_RECORDS = 3, -1
xla.can_fuse = lambda: False  # As in this process.
function, calls = {where}, []
def kill(*arguments):
    calls.append(1)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return function(*arguments)
{where} = kill
sys.argv = ["script.py", *{[*self.base_flags, *flags]}]
runpy.run_path({self.SCRIPT.__file__!r}, run_name="__main__")
"""
        process = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, capture_output=True)
        self.assertEqual(process.returncode, -signal.SIGKILL, process.stderr.decode())

    def resume(self, cache, *flags, output_dir=None):
        """Runs the script after a kill; returns (rows that were already predicted, all rows)."""
        (stored,) = [name for name in os.listdir(cache) if name.startswith("predictions-")]
        num_done = json.loads(read(os.path.join(cache, stored, "progress.json")))["num_done"]
        add = stored_predictions.StoredPredictions.add
        with mock.patch.object(
            stored_predictions.StoredPredictions, "add", autospec=True, side_effect=add
        ) as added:
            self.succeed(*flags, output_dir=output_dir)
        self.assertFalse([name for name in os.listdir(cache) if name.startswith("predictions-")])
        return num_done, num_done + sum(len(call[0][1]) for call in added.call_args_list)

    def path(self, name):
        return os.path.join(self.output_dir, name)

    def assert_settings_have_flags(self):
        """Checks that errors name a flag for each setting of the last run that may differ."""
        settings = json.loads(read(self.path("settings.json")))
        names = {**settings["model"], **settings["training"]}
        names.update({"bert_config." + name: 0 for name in names.pop("bert_config")})
        known = command_lines.parsed(self.SCRIPT.define_flags)
        for name in set(names) - {"task", "kind", "labels"}:  # run_squad.py determines them.
            (told,) = record.describe([(name, 1, 2)], self.SCRIPT.define_flags.__self__)
            said = re.findall(r"--(\w+)", told)
            self.assertTrue(any(flag in known for flag in said), told)


@functools.lru_cache(maxsize=None)
def _bert_and_data():
    """Returns the folders of a BERT of one layer and a tiny MRPC, which no test may change."""
    root = tempfile.mkdtemp(dir=tf.test.get_temp_dir())
    bert = tiny.write_bert(os.path.join(root, "bert"), num_hidden_layers=1)
    data = tiny.write_mrpc(os.path.join(root, "data"))
    for split in ("train", "dev"):
        path = os.path.join(data, split + ".tsv")
        write(path, b"\xef\xbb\xbf" + read(path, "rb"), "wb")  # As in the real MRPC.
    # The test set is the dev set, so results on one are known from the other.
    shutil.copy(os.path.join(data, "dev.tsv"), os.path.join(data, "test.tsv"))
    return bert, data


def bert_flags(folder):
    """Returns the flags of the BERT in a folder."""
    files = {"bert_config_file": "bert_config.json", "vocab_file": "vocab.txt"}
    files["init_checkpoint"] = "bert_model.ckpt"
    return [f"--{flag}={os.path.join(folder, name)}" for flag, name in files.items()]


class ScriptTestCase(AnyScriptTestCase):
    """run_classifier.py on a BERT of one layer, which trains fastest, and a tiny MRPC."""

    SCRIPT = run_classifier

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bert, cls.data = _bert_and_data()
        cls.base_flags = [
            "--task_name=mrpc",
            "--data_dir=" + cls.data,
            *bert_flags(cls.bert),
            "--max_seq_length=16",
            "--adapter_size=3",
            "--train_batch_size=8",
            "--num_train_epochs=1",
            "--learning_rate=0.01",
            "--precision=float32",  # "auto" measures, and may differ between two runs.
        ]

    def results(self):
        """Returns the scores of eval_results.txt, which a report follows, as a dict of str."""
        scores, _, _ = read(self.path("eval_results.txt")).partition("\n\n")
        return dict(line.split(" = ") for line in scores.splitlines())
