"""Executes the notebooks of examples/ on the demo's BERT.

Runs only with ADAPTER_BERT_PACKAGE=1, as .ci/run sets it: the BERT is downloaded once.
"""

import glob
import os
import tempfile
import unittest
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf
from absl.testing import parameterized

from adapter_bert.files import paths
from adapter_bert.formats import demo

if not os.environ.get("ADAPTER_BERT_PACKAGE"):
    raise unittest.SkipTest("Set ADAPTER_BERT_PACKAGE=1 to download a BERT and run the examples.")
nbclient, nbformat = map(pytest.importorskip, ("nbclient", "nbformat"))

NOTEBOOKS = sorted(glob.glob(os.path.join(paths.PROJECT, "examples", "*.ipynb")))


class ExamplesTest(parameterized.TestCase, tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bert = paths.DEMO_BERT
        if not os.path.isdir(cls.bert):
            cls.bert = os.path.join(tempfile.mkdtemp(dir=tf.test.get_temp_dir()), "bert")
            demo.fetch(cls.bert)

    @parameterized.named_parameters(
        (os.path.basename(path)[: -len(".ipynb")], path) for path in NOTEBOOKS
    )
    def test_notebook_runs(self, path):
        notebook = nbformat.read(path, as_version=4)
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        variables = {"BERT_BASE_DIR": self.bert, "PYTHONPATH": paths.PROJECT}
        with mock.patch.dict(os.environ, variables):
            client = nbclient.NotebookClient(
                notebook, timeout=300, resources={"metadata": {"path": folder}}
            )
            client.execute()  # Raises the error of a cell.
