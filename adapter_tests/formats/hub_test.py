"""Tests of hub.py with the package huggingface_hub and a local server that replaces the Hub.

The package reads its settings at import, so each test runs the scripts in a new process.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import tensorflow.compat.v1 as tf

from adapter_bert.files import paths
from adapter_bert.formats import hub, task_adapter
from adapter_tests.support import mutations, own_models, task_adapters, tiny
from adapter_tests.support.hub_server import HubServer
from adapter_tests.support.refusals import RefusalTestCase

# Converts for each list of arguments, and prints a list of [exit code, stdout, stderr] as JSON.
CONVERT = """
import contextlib, io, json, sys
import convert_checkpoint
from adapter_bert.shell import errors
done = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = errors.exit_code(convert_checkpoint.main, arguments)
    done.append((code or 0, out.getvalue(), err.getvalue()))
print(json.dumps(done))
"""
HAS_PACKAGE = importlib.util.find_spec("huggingface_hub") is not None


class AddressTest(RefusalTestCase):
    def test_local_folders_are_returned_unchanged(self):
        for path in ("output/mrpc/adapter", "gs://bucket/adapter", "/x", "hf:/x", ""):
            self.assertEqual(hub.local_folder(path, "--adapter"), path)

    def test_invalid_addresses_are_refused(self):
        addresses = ("", "name", "a/b/c", "a/b@", "../b", "a/..", "a/b c", "a" * 200 + "/b")
        revisions = ("../../x", "../../..", "x/../../..", "refs//x", "x/")
        for address in (*addresses, *(f"a/b@{revision}" for revision in revisions)):
            with mock.patch.object(hub, "_library") as library:
                path = f"hf://{address}"
                self.assert_refused(["expected hf://"], hub.local_folder, path, "--adapter")
                library.assert_not_called()

    def test_task_has_the_name_of_its_repository(self):
        for path, name in (
            ("hf://me/mrpc", "mrpc"),
            ("hf://me/m.1@refs/pr/1", "m.1"),
            ("output/mrpc/adapter", None),
        ):
            self.assertEqual(hub.name_of(path), name)

    def test_missing_package_error_names_requirements_file(self):
        with mock.patch.dict(sys.modules, {"huggingface_hub": None}):
            self.assert_refused(["requirements-hub.txt"], hub.local_folder, "hf://a/b", "--adapter")


class PushedFilesTest(RefusalTestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        self.adapter = os.path.join(self.folder, "v3")
        task_adapter.save(self.adapter, task_adapters.random_adapter())
        patch = mock.patch.object(hub, "_library")
        library = patch.start()
        self.addCleanup(patch.stop)
        library.return_value.CommitOperationAdd = lambda name, content: (name, content)
        self.commit = library.return_value.HfApi.return_value.create_commit

    def test_links_out_of_the_folder_and_pipes_are_not_pushed(self):
        for name in ("README.md", "adapter.safetensors"):
            path, other = os.path.join(self.adapter, name), os.path.join(self.folder, "secret")
            shutil.move(path, other)
            for target in (other, os.path.join("..", "secret")):
                os.symlink(target, path)
                self.assert_refused(
                    [f"ADAPTER_DIR {path} leads out of the folder, to {os.path.realpath(other)};"],
                    *(hub.push, self.adapter, "me/mrpc"),
                )
                os.remove(path)
            os.mkfifo(path)
            self.assert_refused(["not a regular file"], hub.push, self.adapter, "me/mrpc")
            os.remove(path)
            shutil.move(other, path)
        self.commit.assert_not_called()

    def test_links_to_and_within_the_folder_are_pushed(self):
        expected = mutations.files_in(self.adapter)
        data = os.path.join(self.adapter, "..2026")
        os.mkdir(data)
        os.symlink("..2026", os.path.join(self.adapter, "..data"))  # As Kubernetes mounts volumes.
        for name in expected:
            os.rename(os.path.join(self.adapter, name), os.path.join(data, name))
            os.symlink(os.path.join("..data", name), os.path.join(self.adapter, name))
        os.symlink("v3", os.path.join(self.folder, "current"))
        for folder in (self.adapter, os.path.join(self.folder, "current") + "/", data):
            hub.push(folder, "me/mrpc")
            self.assertEqual(dict(self.commit.call_args[0][1]), expected)


@unittest.skipUnless(HAS_PACKAGE, "needs the package huggingface_hub")
class HubTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.get_temp_dir()
        self.bert = tiny.write_bert(self.path("bert"))
        self.adapter = self.path("adapter")
        adapter = own_models.build_task_adapter(self.bert, task="MRPC")
        task_adapter.save(self.adapter, adapter)
        self.hub = HubServer()
        stack = contextlib.ExitStack()
        stack.enter_context(self.hub.serving())
        self.addCleanup(stack.close)

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_script(self, *arguments, **changes):
        """Returns (exit code, stdout, stderr); None takes a variable from the environment."""
        environment = {
            **os.environ,
            "HF_ENDPOINT": self.hub.endpoint,
            "HF_HOME": self.path("cache"),
            "HF_TOKEN": "hf_secret",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "*",
            **changes,
        }
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=paths.PROJECT,
            env={name: value for name, value in environment.items() if value is not None},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout, done.stderr

    def convert(self, *conversions):
        """Returns [exit code, stdout, stderr] of each list of arguments, all in one process."""
        code, output, complaints = self.run_script("-c", CONVERT, json.dumps(conversions))
        self.assertEqual(code, 0, complaints)
        return json.loads(output)

    def converted(self, *conversions):
        """Returns stdout of each conversion, which must succeed."""
        done = self.convert(*conversions)
        self.assertEqual([code for code, _, _ in done], [0] * len(done), done)
        return [output for _, output, _ in done]

    def test_pushed_adapters_can_be_described(self):
        outputs = self.converted(
            ["push", self.adapter, "me/mrpc", "--private"],
            ["push", self.adapter, "hf://me/again"],
            ["describe", "hf://me/mrpc"],
            ["describe", "hf://me/again"],
        )
        address = f"hf://me/mrpc@{self.hub.sha('me/mrpc')}"
        self.assertIn(f"--adapter={address}", outputs[0])
        self.assertTrue(self.hub.is_private["me/mrpc"])
        self.assertIn("Bearer hf_secret", self.hub.tokens)
        self.assertEqual(self.hub.repositories["me/mrpc"][-1], mutations.files_in(self.adapter))
        for output in outputs[2:]:
            self.assertIn("Task adapter: MRPC, classification", output)

    def test_usage_data_is_sent_only_if_the_user_asks_for_it(self):
        code = (
            "from adapter_bert.formats import hub; hub._library()\n"
            "from huggingface_hub import constants; print(constants.HF_HUB_DISABLE_TELEMETRY)"
        )
        name = "HF_HUB_DISABLE_TELEMETRY"
        for value, expected in ((None, "True"), ("1", "True"), ("0", "False")):
            _, output, complaints = self.run_script("-c", code, **{name: value})
            self.assertEqual(output.strip(), expected, complaints)

    def test_push_adds_model_card_to_older_adapter(self):
        damaged = shutil.copytree(self.adapter, self.path("damaged"))
        for folder in (self.adapter, damaged):
            os.remove(os.path.join(folder, "README.md"))
        os.mkdir(os.path.join(damaged, "README.md"))
        (code, _, complaints), (refused, _, error) = self.convert(
            ["push", self.adapter, "me/mrpc"], ["push", damaged, "me/mrpc"]
        )
        self.assertEqual(code, 0, complaints)
        card = self.hub.repositories["me/mrpc"][-1]["README.md"]
        self.assertTrue(card.startswith(b"---\nlibrary_name: "), card)
        self.assertNotIn("README.md", os.listdir(self.adapter))
        self.assertEqual(refused, 1)
        self.assertRegex(error, "README.md cannot be read")

    def test_revision_selects_older_version_of_adapter(self):
        self.hub.repositories["me/mrpc"] = [mutations.files_in(self.adapter)]
        first = self.hub.sha("me/mrpc")
        task_adapter.save(self.adapter, own_models.build_task_adapter(self.bert, 1, task="CoLA"))
        self.hub.repositories["me/mrpc"].append(mutations.files_in(self.adapter))
        addresses = "hf://me/mrpc", f"hf://me/mrpc@{first}"
        outputs = self.converted(*(["describe", address] for address in addresses))
        for task, output in zip(("CoLA", "MRPC"), outputs):
            self.assertIn(f"Task adapter: {task}", output)

    def test_hub_errors_are_one_sentence(self):
        self.hub.repositories["me/empty"] = [{"README.md": b"text"}]
        damaged = mutations.files_in(self.adapter)
        damaged["adapter.safetensors"] = damaged["adapter.safetensors"][:-1] + b"\x01"
        self.hub.repositories["me/damaged"] = [damaged]
        self.hub.repositories["me/mrpc"] = [mutations.files_in(self.adapter)]
        parts = {
            "hf://me/nothing": "cannot be downloaded",
            "hf://me/mrpc@nowhere": "cannot be downloaded",
            "hf://me/empty": "is not a task adapter: it has no adapter_config.json",
            "hf://me/damaged": "adapter.safetensors is damaged",
        }
        conversions = [*(["describe", path] for path in parts), ["push", self.bert, "me/other"]]
        *described, (code, _, complaints) = self.convert(*conversions)
        for (path, part), (each, output, error) in zip(parts.items(), described):
            self.assertEqual((each, output), (1, ""), path)
            self.assertNotIn("Traceback", error)
            self.assertRegex(error, f"(?m)^Error: PATH .*{part}.*\n\\Z")
        self.assertEqual(code, 1)
        self.assertIn("is not a task adapter", complaints)
        self.assertNotIn("me/other", self.hub.repositories)

    def test_predictors_exports_and_servers_use_adapters_from_hub(self):
        self.hub.repositories["me/mrpc"] = [mutations.files_in(self.adapter)]
        code = "import sys; from adapter_bert import Predictor\n"
        code += "print(Predictor(sys.argv[1], sys.argv[2])('the dog', 'a cat'))"
        local, remote = (
            self.run_script("-c", code, adapter, self.bert)
            for adapter in (self.adapter, "hf://me/mrpc")
        )
        self.assertIn("probabilities", local[1], local[2])
        self.assertEqual(local[1], remote[1], remote[2])
        code = "from adapter_bert.formats import adapter_folders as f, task_adapter as t\n"
        code += "found = f.match_patterns(['hf://me/mrpc'])\n"  # Of serve.py and export_model.py.
        code += "print({name: t.describe(folder).task for name, folder in found.items()})"
        _, output, complaints = self.run_script("-c", code)
        self.assertEqual(output, "{'mrpc': 'MRPC'}\n", complaints)

    def test_run_classifier_evaluates_adapter_from_hub(self):
        self.hub.repositories["me/mrpc"] = [mutations.files_in(self.adapter)]
        data = self.path("data")
        tiny.write_mrpc(data)
        code, _, complaints = self.run_script(
            "run_classifier.py",
            "--do_eval",
            f"--data_dir={data}",
            "--verbosity=-1",
            "--adapter=hf://me/mrpc",
            f"--init_checkpoint={self.bert}/bert_model.ckpt",
            f"--bert_config_file={self.bert}/bert_config.json",
            f"--vocab_file={self.bert}/vocab.txt",
            f"--output_dir={self.path('evaluated')}",
        )
        self.assertEqual(code, 0, complaints)
        self.assertIn("eval_results.json", os.listdir(self.path("evaluated")))
