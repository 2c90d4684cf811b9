"""The order of the packages, and the modules that import without TensorFlow."""

import os
import runpy
import subprocess
import sys
from unittest import mock

import tensorflow.compat.v1 as tf

from adapter_tests.support.tensorflows import SERVES

PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FIGURES = os.path.join(PROJECT, "docs/figures")
# Packages on one line do not import each other.
ORDER = [
    {"shell"},
    {"files"},
    {"model"},
    {"tokenization", "ops"},
    {"modeling"},
    {"tuning"},
    {"optimization", "formats"},
    {"training"},
    {"tasks"},
    {"features", "serving", "sweeps"},
    {"paper"},
    {"scripts"},
]
WITHOUT_TENSORFLOW = [
    "tokenization",
    "adapter_bert.files.json_objects",
    "adapter_bert.files.paths",
    "adapter_bert.model.configs",
    "adapter_bert.model.model_variables",
    "adapter_bert.formats.task_adapter",
    "adapter_bert.formats.onnx_backbone",
    "adapter_bert.tasks.table_readers",
    "adapter_bert.tasks.squad.squad_data",
    "adapter_bert.sweeps.sweep",
]
if SERVES:
    WITHOUT_TENSORFLOW += [
        "adapter_bert.serving.inference.bank",
        "adapter_bert.serving.inference.predictor",
        "adapter_bert.serving.http.rest_api",
        "serve",
    ]


class StructureTest(tf.test.TestCase):
    def test_packages_import_only_lower_packages(self):
        with mock.patch.object(sys, "path", [FIGURES, *sys.path]):
            script = runpy.run_path(os.path.join(FIGURES, "architecture.py"))
        ranks = {name: rank for rank, names in enumerate(ORDER) for name in names}
        arrows = script["arrows"]()
        self.assertEqual({package for pair in arrows for package in pair}, set(ranks))
        for (package, imported), path in arrows.items():
            self.assertLess(ranks[imported], ranks[package], f"{path} imports {imported}")

    def test_modules_import_without_tensorflow(self):
        names = ", ".join(WITHOUT_TENSORFLOW)
        code = f"import sys; sys.modules['tensorflow'] = None; import {names}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_remote_path_without_tensorflow_is_a_user_error(self):
        code = (
            "import sys; sys.modules['tensorflow'] = None;"
            "from adapter_bert.files import gfile; from adapter_bert.shell import errors;"
            "sys.exit(errors.exit_code(gfile.exists, 'gs://bucket/file'))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^Error: gs://bucket/file: [^\n]+TensorFlow[^\n]+\n$")
