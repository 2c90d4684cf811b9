"""Tests of tools/attacks.py: its command line."""

import contextlib
import io
import os
import sys
import unittest
from unittest import mock

import tensorflow.compat.v1 as tf

from adapter_bert.common import paths

sys.path.append(os.path.join(paths.PROJECT, "tools"))

if tf.__version__.startswith("1."):
    raise unittest.SkipTest("Benchmarks, whose code it uses, run on TensorFlow 2.")

import attacks  # noqa: E402


class CommandLineTest(tf.test.TestCase):
    def test_unknown_attack_is_refused(self):
        stderr = io.StringIO()
        command = ["attacks.py", "--bert_dir=bert", "--attacks", "flood", "bogus"]
        with mock.patch.object(sys, "argv", command), contextlib.redirect_stderr(
            stderr
        ), self.assertRaises(SystemExit):
            attacks.main()
        self.assertIn("invalid choice: 'bogus'", stderr.getvalue())
