"""Tests of cli.py: the start and end of a script, and the sections of --help."""

import contextlib
import importlib
import io
import os
import re
import subprocess
import sys
import tempfile
from unittest import mock

import tensorflow.compat.v1 as tf
from absl import flags

from adapter_bert.files import paths
from adapter_bert.shell import cli, errors
from adapter_bert.shell.errors import UserError

FOLDER = paths.PROJECT

DEFINITIONS = """
at = dict(flag_values=values, module_name="Adapters")
flags.DEFINE_integer("adapter_size", 64, "Width.", lower_bound=1, **at)
flags.DEFINE_float("rate", 0.1, "Rate.", flag_values=values, module_name="other")
flags.DEFINE_enum("fn", "a", ["a", "b"], "Kind.", flag_values=values, module_name="other")
flags.DEFINE_bool("train", True, "Train.", flag_values=values, module_name="other")
"""
SCRIPT = '''
"""What it is for."""
import sys
sys.path.insert(0, {folder!r})
from absl import flags, logging
from adapter_bert.shell import cli, errors

values = flags.FLAGS
{definitions}
def main(argv):
    logging.info("started")
    if argv[1:] == ["control"]:
        logging.warning("label %s", "\\x1b[31m\\u202e\\n12:00:00 ok")
        return
    if argv[1:] == ["user"]:
        raise errors.UserError("rows.tsv, line 3: found 2 columns, expected 5")
    if argv[1:] == ["bug"]:
        raise ValueError("a bug")
    print("size", flags.FLAGS.adapter_size)

cli.run(main)
'''


class RunTest(tf.test.TestCase):
    def run_script(self, *arguments):
        script = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "script.py")
        with open(script, "w") as writer:
            writer.write(SCRIPT.format(folder=FOLDER, definitions=DEFINITIONS))
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

    def test_control_characters_are_escaped_in_the_log(self):
        code, _, stderr = self.run_script("control")
        _, line = stderr.splitlines()
        self.assertEqual((code, line[9:]), (0, "label \\x1b[31m\\u202e 12:00:00 ok"))

    def test_verbosity_flag_suppresses_the_log(self):
        self.assertEqual(self.run_script("--verbosity=-1"), (0, "size 64\n", ""))

    def test_user_error_prints_one_sentence(self):
        code, stdout, stderr = self.run_script("--verbosity=-1", "user")
        self.assertEqual((code, stdout), (1, ""))
        self.assertEqual(stderr, "Error: rows.tsv, line 3: found 2 columns, expected 5.\n")

    def test_invalid_flags_are_refused_in_one_sentence(self):
        for arguments, expected in (
            (["--adaptr_size=8"], ["'adaptr_size'", "Did you mean: adapter_size"]),
            (["--adapter_size=0"], ["--adapter_size=0"]),
            (["--adapter_size=many"], ["--adapter_size=many: expected a positive integer."]),
            (["--adapter_size=a: b"], ["--adapter_size=a: b: expected a positive integer."]),
            (["--rate=fast"], ["--rate=fast: expected a number."]),
            (["--fn=none"], ["--fn=none", "one of <a|b>"]),
            (["--train=maybe"], ["--train=maybe", "boolean"]),
            (["--notrain=1"], ["--notrain=1"]),
        ):
            values = flags.FlagValues()
            exec(DEFINITIONS, {"flags": flags, "values": values})
            parsed = mock.patch.object(flags, "FLAGS", values)
            with parsed, contextlib.redirect_stderr(io.StringIO()) as stderr:
                code = errors.exit_code(cli._parse_all, ["script.py", *arguments])
            self.assertEqual(code, 1)
            self.assertRegex(stderr.getvalue(), r"^Error: [^\n]+[.?]\n$")
            for part in expected:
                self.assertIn(part, stderr.getvalue())

    def test_unexpected_errors_keep_their_traceback(self):
        code, _, stderr = self.run_script("bug")
        self.assertEqual(code, 1)
        self.assertIn("Traceback (most recent call last)", stderr)
        self.assertIn("ValueError: a bug", stderr)

    def test_help_shows_sections_and_helpfull_shows_all_flags(self):
        sections = "What it is for.\n\nAdapters:\n  --adapter_size: Width.\n"
        for flag in ("--help", "-?", "--helpshort"):
            code, stdout, stderr = self.run_script(flag)
            self.assertEqual((code, stderr), (0, ""))
            self.assertStartsWith(stdout, sections)
            self.assertNotIn("--verbosity", stdout)
        _, stdout, _ = self.run_script("--helpfull")
        self.assertRegex(stdout, r"(?s)\nAdapters:\n  --adapter_size: Width\..*--verbosity")


def define_size(values):
    flags.DEFINE_integer("size", 8, "Width.", flag_values=values)


class MainOfTest(tf.test.TestCase):
    def call(self, main, *argv):
        with contextlib.redirect_stdout(io.StringIO()) as stdout:
            main(["script.py", *argv])
        return stdout.getvalue()

    def test_main_prints_the_report_of_flags_that_app_run_parsed(self):
        seen = []
        main = cli.main_of(lambda values: seen.append(values) or ["one", "  t\x1bo"], define_size)
        with mock.patch.object(flags, "FLAGS", flags.FlagValues()):
            define_size(flags.FLAGS)
            flags.FLAGS(["script.py", "--size=3"])
            self.assertEqual(self.call(main), "one\n  t\\x1bo\n")
            self.assertEqual(seen, [flags.FLAGS])

    def test_main_can_be_called_again_with_other_flags(self):
        main = cli.main_of(lambda values: [str(values.size)], define_size)
        self.assertEqual([self.call(main, "--size=64"), self.call(main)], ["64\n", "8\n"])
        with self.assertRaisesRegex(UserError, "'sise'.*Did you mean: size"):
            self.call(main, "--sise=1")

    def test_positional_arguments_are_refused_unless_accepted(self):
        with self.assertRaisesRegex(UserError, "MRPC: .* --name=value"):
            cli.main_of(lambda values: [], define_size)(["script.py", "MRPC"])
        main = cli.main_of(lambda values, further: further, define_size, accepts_arguments=True)
        self.assertEqual(self.call(main, "--size=2", "--", "--a=1", "b"), "--a=1\nb\n")


SCRIPTS = ("run_classifier", "run_squad", "run_sweep", "run_report", "run_ablation", "run_baseline")
SCRIPTS += ("run_tagger", "export_model", "extract_features", "serve", "embedding_module")
sys.path.append(os.path.join(paths.PROJECT, "demo"))


def defined(script):
    """Returns the flags that a script defines."""
    values = flags.FlagValues()
    importlib.import_module(script).define_flags(values)
    return values


def define(title, name, values):
    flags.DEFINE_string(name, None, "What it is.", flag_values=values, module_name=title)


class FlagSectionsTest(tf.test.TestCase):
    def test_help_orders_sections_and_sorts_their_flags(self):
        values = flags.FlagValues()
        for title, name in (("Output", "b"), ("Training", "c"), ("Output", "a")):
            define(title, name, values)
        text = "\nTraining:\n  --c: What it is.\n\nOutput:\n  --a: What it is.\n  --b: What it is."
        self.assertEqual(cli.help_text(values), text)

    def test_help_of_every_script_lists_every_flag(self):
        for script in SCRIPTS:
            values = defined(script)
            text = cli.help_text(values)
            shown = re.findall(r"^  --(?:\[no\])?(\w+): ", text, re.MULTILINE)
            self.assertEqual(sorted(shown), sorted(values), script)
