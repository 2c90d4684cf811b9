"""Tests of robustness/: bad inputs of some readers, and that each kind of outcome is told apart."""

import contextlib
import io
import os
import random
import shutil
import subprocess
import sys
import textwrap
import unittest
from unittest import mock

import tensorflow.compat.v1 as tf

from adapter_bert.common.errors import UserError

sys.path.append(
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "robustness")
)

import bad_inputs  # noqa: E402
import faults  # noqa: E402
import house  # noqa: E402
import mutants  # noqa: E402
import mutations  # noqa: E402
from bad_inputs import FAULT, READ, REFUSED  # noqa: E402

READERS = (
    "MRPC",
    "custom multilabel .jsonl",
    "SQuAD v2.0 training",
    "results.jsonl",
    "TensorFlow checkpoint by bytes",
    "task adapter (span) sealed",
    "feature cache",
)

# Stands in for the process that reads: input 2 ends it, input 4 never ends.
PROGRAM = """
import json, os, sys, time
for name, first, last in json.load(sys.stdin):
    for index in range(first, last):
        print(json.dumps(["begun", name, index]), flush=True)
        if index == 2:
            os._exit(3)
        if index == 4:
            time.sleep(60)
        print(json.dumps(["ended", name, index, "read", ""]), flush=True)
"""

# A module's test, and mutants of it: one of the length of the next, and one that does not compile.
MODULES_TEST = """
import tuning

def test_double():
    assert tuning.double(2) == 4
"""
TRY_MUTANTS = """
import mutants
texts = ["x * 3", "x + 2", "x - 2", "x *", "2 * x"]
sources = ["def double(x):\\n    return " + text for text in texts]
listed = list(zip(range(5), "abcde", sources))
tests = mutants.Tests("tuning", False)
print([number for number, *_ in mutants.survivors_of("tuning", listed, tests)])
"""


# Stands in for a training: goes on by one checkpoint, and then never ends.
TRAINS = """
import os, sys, time
record, step = os.path.join(sys.argv[1], "checkpoint"), 0
if os.path.exists(record):
    step = int(open(record).read().split("-")[1])
with open(record + ".new", "w") as writer:
    writer.write(f"ckpt-{step + 4}")
os.rename(record + ".new", record)
time.sleep(60)
"""


def raising(error):
    def read(folder):
        raise error

    return read


class BadInputsTest(tf.test.TestCase):
    def test_no_faults(self):
        readers = bad_inputs.readers()
        for name in READERS:
            found = {READ: 0, REFUSED: 0}
            self.assertEqual(
                bad_inputs.outcome_of(readers[name], readers[name].valid())[0], READ, name
            )
            for index in range(40):
                kind, said = bad_inputs.outcome_of(
                    readers[name], bad_inputs.bad_input(readers[name], index)
                )
                self.assertIn(kind, found, f"{name} {index}: {said}")
                found[kind] += 1
            self.assertNotIn(40, (found[READ],) if name != "feature cache" else (), name)

    def test_outcomes(self):
        for read, expected in (
            (lambda folder: None, (READ, "")),
            (raising(UserError("a.tsv, line 3: no.")), (REFUSED, "a.tsv, line 3: no.")),
            (raising(UserError("no.")), (FAULT, "no name of the file: 'no.'")),
        ):
            reader = house.Reader("any", lambda: {"a.tsv": b"x"}, read)
            self.assertEqual(bad_inputs.outcome_of(reader, {"a.tsv": b"x"}), expected)
        odd = bad_inputs.readers()["convert_checkpoint flags"]
        given = {"arguments.json": b'["describe", "--task=no/such", "", "3"]'}
        for sentence, expected in (
            ("no/such: no.", REFUSED),
            ("--task: no.", REFUSED),
            ("A file cannot be read in line 3.", FAULT),
        ):
            reader = odd._replace(read=raising(UserError(sentence)))
            self.assertEqual(bad_inputs.outcome_of(reader, given)[0], expected, sentence)
        reader = house.Reader("any", None, raising(KeyError("x")))
        kind, said = bad_inputs.outcome_of(reader, {"a.tsv": mutations.FOLDER})
        self.assertEqual(kind, FAULT)
        self.assertRegex(said, "^KeyError at robustness_test.py:")

    def test_the_same_inputs_each_time(self):
        content = {"a.json": b'{"a": [1, 2, {"b": "c"}]}', "b.tsv": b"1\t2\n3\t4\n"}
        found = [
            [mutations.mutated(random.Random(seed), content) for seed in range(200)]
            for _ in range(2)
        ]
        self.assertEqual(found[0], found[1])
        changed = [files for files in found[0] if files != content]
        self.assertGreater(len(changed), 180)

    def test_crashes_and_hangs_cost_their_own_input_alone(self):
        program = os.path.join(self.get_temp_dir(), "program.py")
        with open(program, "w") as writer:
            writer.write(textwrap.dedent(PROGRAM))
        with mock.patch.object(bad_inputs, "SECONDS", 2):
            campaign = bad_inputs.Campaign([sys.executable, program])
            campaign.run([("a", 0, 6), ("b", 5, 7)])
        self.assertEqual(campaign.counts["a"], {READ: 4, FAULT: 2})
        self.assertEqual(campaign.counts["b"], {READ: 2})
        faults = [(name, index) for name, index, _ in campaign.faults]
        self.assertEqual(faults, [("a", 2), ("a", 4)])
        self.assertIn("ended with 3", campaign.faults[0][2])
        self.assertIn("no end after 2 seconds", campaign.faults[1][2])
        self.assertIn("| all | 8 | 6 | 0 | 2 |", bad_inputs.table(campaign))


class KilledTest(tf.test.TestCase):
    def test_each_kill_meets_a_process_that_has_written_a_checkpoint(self):
        folder, program = self.get_temp_dir(), os.path.join(self.get_temp_dir(), "trains.py")
        with open(program, "w") as writer:
            writer.write(TRAINS)

        class Stand(faults.Training):
            def __init__(self, name):
                self.folder, self._command = folder, [sys.executable, program, folder]

        with mock.patch.multiple(faults, Training=Stand, verdict=lambda training: "the same"):
            ((_, ended, _),) = faults.kill()
        self.assertEqual(ended, ", ".join(f"-9 at step {step}" for step in (4, 8, 12, 16, 20)))


# Writes a and b, of which it syncs b with its name, and then other content and another name.
WRITES = """
import os, sys
os.chdir(sys.argv[1])
for name, text in (("a", "1"), ("b", "1")):
    with open(name, "w") as writer:
        writer.write(text)
        writer.flush()
        if name == "b":
            os.fsync(writer.fileno())
os.fsync(os.open(".", os.O_RDONLY))
with open("b", "a") as writer:
    writer.write("2")
os.rename("a", "c")
"""


@unittest.skipIf(shutil.which("cc") is None, "needs a C compiler")
class PowerLossTest(tf.test.TestCase):
    def test_what_is_not_synced_is_lost(self):
        for keeps_names, left in ((False, {"a": b"", "b": b"1"}), (True, {"b": b"1", "c": b""})):
            folder = os.path.join(self.get_temp_dir(), f"disk{keeps_names}")
            disk = faults.Disk(folder)
            command = [sys.executable, "-c", WRITES, folder]
            subprocess.check_call(command, env=disk.environment)
            disk.lose_power(keeps_names)
            self.assertEqual(house.files_in(folder), left)
            disk.lose_power(keeps_names)  # What is left is on disk.
            self.assertEqual(house.files_in(folder), left)


class CommandLinesTest(tf.test.TestCase):
    def test_what_is_refused(self):
        for script, arguments, sentence in (
            (
                bad_inputs,
                ["--readers=typo"],
                "--readers: there is no 'typo', expected some of CoLA",
            ),
            (faults, ["--faults=kill,typo"], "--faults: there is no 'typo', expected some of kill"),
            (faults, ["--faults=kill,read_only"], "takes root; without it --faults=kill."),
            (mutants, ["tuning"], "no none; `make .venv-mutants/installed` makes one"),
        ):
            said = io.StringIO()
            given = mock.patch.object(sys, "argv", ["script", *arguments])
            with given, mock.patch.object(os, "geteuid", lambda: 1000), contextlib.redirect_stderr(
                said
            ), mock.patch.object(mutants, "LISTER", ["none"]), self.assertRaises(SystemExit):
                script.main()
            self.assertIn(sentence, said.getvalue())


class MutantsTest(tf.test.TestCase):
    def test_survivors_are_those_that_no_test_notices(self):
        house = os.path.join(self.get_temp_dir(), "house")
        for file, text in (
            ("tuning.py", "def double(x):\n    return x * 2\n"),
            ("adapter_tests/tuning_test.py", MODULES_TEST),
            ("benchmarks/a.py", ""),
            ("robustness/b.py", ""),
            ("pyproject.toml", '[tool.pytest.ini_options]\npythonpath = ["."]\n'),
        ):
            os.makedirs(os.path.dirname(os.path.join(house, file)), exist_ok=True)
            with open(os.path.join(house, file), "w") as writer:
                writer.write(text)
        environment = dict(os.environ, PYTHONPATH=os.path.dirname(mutants.__file__))
        found = subprocess.check_output(
            [sys.executable, "-c", TRY_MUTANTS], cwd=house, env=environment, universal_newlines=True
        )
        self.assertEqual(
            found.splitlines(),
            ["0 a killed", "1 b survived", "2 c killed", "3 d killed", "4 e survived", "[1, 4]"],
        )


if __name__ == "__main__":
    tf.test.main()
