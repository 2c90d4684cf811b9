"""Tests that the changelog and the citation have the version of the package and one date."""

import os
import re
import subprocess
import sys

import tensorflow.compat.v1 as tf

import adapter_bert
from adapter_bert.files import paths


def _search(pattern, name):
    with open(os.path.join(paths.PROJECT, name), encoding="utf-8") as reader:
        return re.search(pattern, reader.read(), re.MULTILINE).groups()


class VersionTest(tf.test.TestCase):
    def test_changelog_and_citation_match_version(self):
        changelog = _search(r"^## (\S+) \((\S+)\)$", "CHANGELOG.md")
        citation = _search(r"^version: (\S+)\ndate-released: (\S+)$", "CITATION.cff")
        self.assertEqual(changelog, citation)
        self.assertEqual(changelog[0], adapter_bert.__version__)

    def test_scripts_print_the_version(self):
        for script in ("run_classifier.py", "convert_checkpoint.py"):
            command = [sys.executable, script, "--version"]
            done = subprocess.run(command, cwd=paths.PROJECT, stdout=subprocess.PIPE, text=True)
            self.assertEqual(done.stdout, f"adapter-bert {adapter_bert.__version__}\n")
            self.assertEqual(done.returncode, 0)
