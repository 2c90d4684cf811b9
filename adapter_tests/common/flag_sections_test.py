"""Tests of cli.py: --help of every script, in sections, complete and in sentences."""

import importlib
import os
import re
import subprocess
import sys

import tensorflow.compat.v1 as tf
from absl import flags

from adapter_bert.common import cli, paths

SCRIPTS = ("run_classifier", "run_squad", "run_sweep", "run_report", "run_ablation", "run_baseline")
SCRIPTS += ("export_model", "serve", "embedding_module")
sys.path.append(os.path.join(paths.PROJECT, "demo"))


def defined(script):
    """Returns the flags that a script defines."""
    values = flags.FlagValues()
    importlib.import_module(script).define_flags(values)
    return values


def define(title, name, values):
    flags.DEFINE_string(name, None, "What it is.", **cli.section(title, values))


class FlagSectionsTest(tf.test.TestCase):
    def test_sections_and_their_order(self):
        values = flags.FlagValues()
        for title, name in (("Output", "b"), ("Training", "c"), ("Output", "a")):
            define(title, name, values)
        text = "\nTraining:\n  --c: What it is.\n\nOutput:\n  --a: What it is.\n  --b: What it is."
        self.assertEqual(cli.help_text(values), text)
        with self.assertRaisesRegex(ValueError, "'Outptu' is none of SECTIONS"):
            define("Outptu", "d", values)

    def test_a_flag_is_defined_once(self):
        values = flags.FlagValues()
        define("Output", "a", values)
        for title in ("Output", "Training"):
            with self.assertRaises(flags.DuplicateFlagError):
                define(title, "a", values)

    def test_every_flag_of_every_script_has_its_section_and_a_sentence(self):
        for script in SCRIPTS:
            values = defined(script)
            text = cli.help_text(values)
            shown = re.findall(r"^  --(?:\[no\])?(\w+): ", text, re.MULTILINE)
            self.assertEqual(sorted(shown), sorted(values), script)
            for name in values:
                self.assertRegex(values[name].help.split(";\n")[0], r"^\S.*\.$", name)

    def test_help_of_a_script(self):
        script = os.path.join(paths.PROJECT, "run_classifier.py")
        done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0)
        self.assertNotIn("Traceback", done.stderr)
        self.assertIn("adapters by default", done.stdout)
        titles = re.findall(r"^(\w[\w ]+):$", done.stdout, re.MULTILINE)
        self.assertEqual(titles, [title for title in cli.SECTIONS if title in titles])
        self.assertIn("Adapters", titles)
        self.assertIn(cli.help_text(defined("run_classifier"))[:300], done.stdout)


if __name__ == "__main__":
    tf.test.main()
