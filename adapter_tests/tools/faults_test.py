"""Tests of tools/faults.py: kills, the files left by a power loss, mounting without root."""

import contextlib
import io
import os
import shutil
import subprocess
import sys
import unittest
from unittest import mock

import tensorflow.compat.v1 as tf

from adapter_bert.files import paths

sys.path.append(os.path.join(paths.PROJECT, "tools"))

import faults  # noqa: E402

# Stands in for a training: writes the next checkpoint and then does not end.
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


class KillsTest(tf.test.TestCase):
    def test_each_kill_follows_a_new_checkpoint(self):
        folder, program = self.get_temp_dir(), os.path.join(self.get_temp_dir(), "trains.py")
        with open(program, "w") as writer:
            writer.write(TRAINS)

        class Stand(faults.Training):
            def __init__(self, name):
                self.folder, self._command = folder, [sys.executable, program, folder]

        with mock.patch.multiple(faults, Training=Stand, verdict=lambda training: "the same"):
            ((_, ended, _),) = faults.kill()
        self.assertEqual(ended, ", ".join(f"-9 at step {step}" for step in (4, 8, 12, 16, 20)))


# Writes a and b; syncs both names and the content of b. Then appends to b and renames a, without
# syncing either.
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
    def test_unsynced_changes_are_lost_on_power_loss(self):
        for keeps_names, left in ((False, {"a": b"", "b": b"1"}), (True, {"b": b"1", "c": b""})):
            folder = os.path.join(self.get_temp_dir(), f"disk{keeps_names}")
            disk = faults.Disk(folder)
            command = [sys.executable, "-c", WRITES, folder]
            subprocess.check_call(command, env=disk.environment)
            disk.lose_power(keeps_names)
            self.assertEqual(faults.files_in(folder), left)
            disk.lose_power(keeps_names)  # The remaining files are on disk.
            self.assertEqual(faults.files_in(folder), left)


class MountingTest(tf.test.TestCase):
    def test_mounting_is_refused_without_root(self):
        stderr = io.StringIO()
        command = ["faults.py", "--faults", "kill", "read_only"]
        with mock.patch.object(sys, "argv", command), mock.patch.object(
            os, "geteuid", lambda: 1000
        ), contextlib.redirect_stderr(stderr), self.assertRaises(SystemExit):
            faults.main()
        self.assertIn("requires root; without it: --faults kill\n", stderr.getvalue())
