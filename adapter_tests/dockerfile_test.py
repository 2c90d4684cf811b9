"""Runs the Dockerfile's steps in a clean environment, and sends its server a request.

It installs packages, so it runs only with ADAPTER_BERT_DOCKERFILE=1, as in .ci/run.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

pytest.importorskip("onnxruntime", reason="requirements-serving.txt is not installed")

# isort: split
from adapter_bert.files import paths
from adapter_bert.formats import onnx_backbone
from adapter_tests.support import own_models, served, tiny

MAX_MB = 300


@unittest.skipUnless(
    os.environ.get("ADAPTER_BERT_DOCKERFILE"), "ADAPTER_BERT_DOCKERFILE is not set"
)
class DockerfileTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.root = tempfile.mkdtemp(dir=self.get_temp_dir())
        self.image = os.path.join(self.root, "image")
        subprocess.check_call([sys.executable, "-m", "venv", os.path.join(self.root, "venv")])
        self.environment = {
            "PATH": os.path.join(self.root, "venv", "bin") + ":/usr/bin:/bin",
            "HOME": self.root,
            **{n: v for n, v in os.environ.items() if n.startswith("PIP_") or n.endswith("_proxy")},
        }

    def build(self):
        """Runs the Dockerfile; returns its entry point."""
        with open(os.path.join(paths.PROJECT, "Dockerfile")) as reader:
            lines = re.sub(r"\\\n", "", reader.read()).splitlines()
        for line in lines:
            step, _, rest = line.partition(" ")
            if step == "COPY":
                *sources, target = rest.split()
                for source in sources:
                    self.copy(source, os.path.join(self.image, target))
            elif step == "RUN":
                subprocess.check_call(rest, shell=True, cwd=self.image, env=self.environment)
            elif step == "ENV":
                self.environment.update(part.split("=") for part in shlex.split(rest))
            elif step == "ENTRYPOINT":
                return json.loads(rest)
        return self.fail("The Dockerfile has no ENTRYPOINT.")

    def copy(self, source, target):
        path = os.path.join(paths.PROJECT, source)
        if os.path.isdir(path):
            shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            os.makedirs(target, exist_ok=True)
            shutil.copy(path, target)

    def test_dockerfile_builds_a_server_below_300_mb(self):
        bert, adapters = served.prepare()
        os.makedirs(os.path.join(self.root, "bert"))
        onnx_backbone.write(os.path.join(bert, "bert_model.ckpt"), tiny.config())
        for name in ("bert_config.json", "vocab.txt", onnx_backbone.FILE):
            shutil.copy(os.path.join(bert, name), os.path.join(self.root, "bert"))
        served.save_all(os.path.join(self.root, "adapters"))
        _, script, *options = self.build()
        size = subprocess.check_output(["du", "-sm", os.path.join(self.root, "venv")])
        self.assertLess(int(size.split()[0]), MAX_MB)
        options = [
            option.replace("=/adapters", f"={self.root}/adapters").replace("0.0.0.0", "127.0.0.1")
            for option in options
        ]
        self.environment["BERT_BASE_DIR"] = os.path.join(self.root, "bert")
        process = subprocess.Popen(
            ["python", script, *options, "--port=0"],
            cwd=self.image,
            env=self.environment,
            stdout=subprocess.PIPE,
            universal_newlines=True,
        )
        with process, contextlib.ExitStack() as stack:
            stack.callback(process.kill)
            url = re.search(r"http://\S+", process.stdout.readline()).group()
            body = json.dumps({"instances": [{"input_ids": [2, 5, 6, 3]}]}).encode()
            with urllib.request.urlopen(url + "v1/models/topics:predict", body) as response:
                (answer,) = json.loads(response.read())["predictions"]
        expected = own_models.SingleTaskModels(bert).predictions(
            adapters["topics"], [2, 5, 6, 3], [0] * 4
        )["probabilities"]
        np.testing.assert_allclose(list(answer["probabilities"].values()), expected, 1e-4, 1e-5)
