"""Tests of errors.py: how a run ends."""

import contextlib
import io
import os
import pty
import signal
import subprocess
import sys
import time

import tensorflow.compat.v1 as tf

from adapter_bert.files import paths
from adapter_bert.shell import errors
from adapter_tests.support import tiny

# Prints what `PRINTED` stands for, after stdin has ended.
PROGRAM = """
import sys
from adapter_bert.shell import errors
sys.stdin.read()
sys.exit(errors.exit_code(lambda: print(PRINTED)))
"""


def raising(error):
    raise error


def started(printed, **options):
    """Starts a process that prints a Python expression."""
    command = [sys.executable, "-c", PROGRAM.replace("PRINTED", printed)]
    pipe = subprocess.PIPE
    options = {"stdin": pipe, "stdout": pipe, "stderr": pipe, **options}
    return subprocess.Popen(command, cwd=paths.PROJECT, **options)


class ExitCodeTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        tiny.enable_signals(self)

    def call(self, main, *arguments):
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            code = errors.exit_code(main, *arguments)
        return code, stderr.getvalue()

    def test_exit_code_is_the_return_value_of_main(self):
        self.assertEqual(self.call(lambda: None), (None, ""))
        self.assertEqual(self.call(lambda code: code, 7), (7, ""))

    def test_user_errors_print_one_sentence_and_exit_with_1(self):
        for message, line in (
            ("a.tsv: is empty.", "Error: a.tsv: is empty.\n"),
            ("a.tsv: is empty", "Error: a.tsv: is empty.\n"),
            (
                "a.tsv: cannot be read (no host\n\t when reading a.tsv).",
                "Error: a.tsv: cannot be read (no host when reading a.tsv).\n",
            ),
            ("Did you mean: b ?", "Error: Did you mean: b ?\n"),
        ):
            self.assertEqual(self.call(raising, errors.UserError(message)), (1, line))

    def test_quoted_file_contents_are_escaped_and_shortened(self):
        for held, shown in (
            ("a\nb\u2028c", "a b c"),
            ("\x1b[31m\0", "\\x1b[31m\\x00"),
            ("\u202e\ufeff\ud800\udcff", "\\u202e\\ufeff\\ud800\\udcff"),
            ("naïve 狗 😀 C:\\new", "naïve 狗 😀 C:\\new"),
        ):
            self.assertEqual(
                str(errors.UserError(f"a.tsv: found {held}.")), f"a.tsv: found {shown}."
            )
        long = str(errors.UserError(f"a.tsv: found {'x' * 1_000_000}, expected 1."))
        self.assertRegex(long, r"^a\.tsv: found x+ \.\.\. x+, expected 1\.$")
        self.assertLess(len(long), 2000)

    def test_names_that_are_not_utf8_are_user_errors(self):
        code, said = self.call(lambda name: name.encode("utf-8"), os.fsdecode(b"b\xe9rt"))
        self.assertEqual(code, 1)
        self.assertEqual(said, r"Error: 'b\udce9rt' is not UTF-8; expected names in UTF-8." + "\n")

    def test_ctrl_c_exits_with_130(self):
        self.assertEqual(self.call(raising, KeyboardInterrupt()), (130, "Interrupted.\n"))

    def test_sigterm_and_sighup_exit_with_130(self):
        def main(number):
            try:
                os.kill(os.getpid(), number)
                time.sleep(60)
            finally:
                done.append(number)

        ends, done = [signal.SIGTERM, signal.SIGHUP], []
        for number in ends:
            self.assertEqual(self.call(main, number), (130, "Interrupted.\n"))
        self.assertEqual(done, ends)

    def test_closed_output_pipe_exits_with_141(self):
        for flush in (True, False):  # Printed in main, or flushed only at the end.
            process = started(f"'x' * 100_000, flush={flush}")
            process.stdout.close()
            process.stdin.close()
            self.assertEqual(process.stderr.read(), b"")
            process.stderr.close()
            self.assertEqual(process.wait(), 141)
        with self.assertRaises(BrokenPipeError):  # From another pipe or a socket.
            self.call(raising, BrokenPipeError())

    def test_closed_stdout_is_ignored_and_full_disk_is_reported(self):
        full = "Error: The output cannot be written (No space left on device).\n"
        for target, code, said in ((">&-", 0, ""), (">/dev/full", 1, full)):
            process = subprocess.run(
                [
                    "sh",
                    "-c",
                    f'"$0" -c "$1" {target}',
                    sys.executable,
                    PROGRAM.replace("PRINTED", "1"),
                ],
                cwd=paths.PROJECT,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            self.assertEqual((process.returncode, process.stderr.decode()), (code, said))

    def test_closed_terminal_is_reported(self):
        terminal, end = pty.openpty()
        process = started("'x'", stdout=end, start_new_session=True)
        os.close(end)
        os.close(terminal)
        _, said = process.communicate()
        self.assertEqual(process.returncode, 1)
        self.assertEqual(said, b"Error: The output cannot be written (Input/output error).\n")

    def test_unsupported_file_systems_are_user_errors(self):
        code, said = self.call(tf.io.gfile.exists, "nothing://bucket/folder")
        self.assertEqual(code, 1)
        self.assertRegex(said, "^Error: .*'nothing' not implemented.* cannot read .*\n$")

    def test_inaccessible_local_paths_are_user_errors(self):
        for error in (
            PermissionError(13, "Permission denied", "/data/a"),
            NotADirectoryError(20, "Not a directory", "/data/a"),
        ):
            code, said = self.call(raising, error)
            self.assertEqual((code, said), (1, f"Error: /data/a: {error.strerror}.\n"))

    def test_unreachable_remote_paths_are_user_errors(self):
        code, said = self.call(raising, OSError(5, "Could not resolve the host", "gs://bucket/a"))
        self.assertEqual((code, said), (1, "Error: gs://bucket/a: Could not resolve the host.\n"))

    def test_characters_outside_stdout_encoding_are_escaped(self):
        process = started("'na \u0142'", env={**os.environ, "PYTHONIOENCODING": "latin-1"})
        stdout, _ = process.communicate()
        self.assertEqual((process.returncode, stdout), (0, b"na \\u0142\n"))

    def test_unexpected_errors_are_raised(self):
        with self.assertRaises(tf.errors.UnimplementedError):
            errors.exit_code(raising, tf.errors.UnimplementedError(None, None, "an operation"))
        for bug in (ValueError("v"), RuntimeError("r"), OSError("o"), PermissionError("p")):
            with self.assertRaises(type(bug)):
                errors.exit_code(raising, bug)
