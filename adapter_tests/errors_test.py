"""Tests of errors.py: what ends a run, in one process and through a script of its own."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile

import tensorflow.compat.v1 as tf

import errors

FOLDER = os.path.dirname(os.path.abspath(errors.__file__))

SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from absl import flags, logging
import errors

flags.DEFINE_integer("adapter_size", 64, "Width.", lower_bound=1)

def main(argv):
    logging.info("started")
    if argv[1:] == ["user"]:
        raise errors.UserError("rows.tsv, line 3: found 2 columns, expected 5")
    if argv[1:] == ["bug"]:
        raise ValueError("a bug")
    if argv[1:] == ["interrupt"]:
        raise KeyboardInterrupt()
    print("size", flags.FLAGS.adapter_size)

errors.run(main)
"""


def raising(error):
    raise error


class ExitCodeTest(tf.test.TestCase):
    def call(self, main, *arguments):
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            code = errors.exit_code(main, *arguments)
        return code, stderr.getvalue()

    def test_success_is_what_main_returns(self):
        self.assertEqual(self.call(lambda: None), (None, ""))
        self.assertEqual(self.call(lambda code: code, 7), (7, ""))

    def test_a_user_error_is_one_sentence_and_1(self):
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

    def test_what_a_file_holds_does_not_break_the_sentence(self):
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

    def test_ctrl_c_is_130(self):
        self.assertEqual(self.call(raising, KeyboardInterrupt()), (130, "Interrupted.\n"))

    def test_a_bug_flies_on(self):
        for bug in (ValueError("v"), RuntimeError("r"), OSError("o")):
            with self.assertRaises(type(bug)):
                errors.exit_code(raising, bug)

    def test_callers_may_catch_a_value_error(self):
        with self.assertRaises(ValueError):
            raising(errors.UserError("a.tsv: is empty."))


class RunTest(tf.test.TestCase):
    def run_script(self, *arguments):
        script = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "script.py")
        with open(script, "w") as writer:
            writer.write(SCRIPT.format(folder=FOLDER))
        done = subprocess.run(
            [sys.executable, script, *arguments],
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout, done.stderr

    def test_flags_are_parsed_and_the_log_is_shown(self):
        code, stdout, stderr = self.run_script("--adapter_size=8")
        self.assertEqual((code, stdout), (0, "size 8\n"))
        self.assertRegex(stderr, r"^\d\d:\d\d:\d\d started\n$")

    def test_verbosity_is_the_users(self):
        self.assertEqual(self.run_script("--verbosity=-1"), (0, "size 64\n", ""))

    def test_mistakes_end_with_one_sentence(self):
        for arguments, expected in (
            (["--adaptr_size=8"], ["'adaptr_size'", "Did you mean: adapter_size"]),
            (["--adapter_size=0"], ["--adapter_size=0"]),
            (["--adapter_size=many"], ["--adapter_size=many"]),
            (["--verbosity=-1", "user"], ["rows.tsv, line 3: found 2 columns, expected 5."]),
        ):
            code, stdout, stderr = self.run_script(*arguments)
            self.assertEqual((code, stdout), (1, ""))
            self.assertRegex(stderr, r"^Error: [^\n]+[.?]\n$")
            for part in expected:
                self.assertIn(part, stderr)

    def test_ctrl_c(self):
        result = self.run_script("--verbosity=-1", "interrupt")
        self.assertEqual(result, (130, "", "Interrupted.\n"))

    def test_a_bug_has_a_traceback(self):
        code, _, stderr = self.run_script("bug")
        self.assertEqual(code, 1)
        self.assertIn("Traceback (most recent call last)", stderr)
        self.assertIn("ValueError: a bug", stderr)

    def test_help_names_the_flags(self):
        _, stdout, _ = self.run_script("--help")
        self.assertIn("--adapter_size: Width.", stdout)


if __name__ == "__main__":
    tf.test.main()
