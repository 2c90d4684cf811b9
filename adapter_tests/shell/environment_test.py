"""Tests of environment.py with fake interpreters: nothing is restarted or uninstalled."""

import contextlib
import importlib.util
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import tensorflow.compat.v1 as tf
from absl import logging

from adapter_bert.files import paths
from adapter_bert.shell import environment, tf_estimator
from adapter_tests.support import tiny
from adapter_tests.support.tensorflows import HAS_ESTIMATOR, IS_TF2, SERVES

SCRIPTS = (
    "run_classifier",
    "run_squad",
    "run_tagger",
    "run_sweep",
    "run_report",
    "run_ablation",
    "run_baseline",
    "convert_checkpoint",
    "extract_features",
    "export_model",
    "serve",
)


SHELL = (
    "__init__",
    "clone",
    "environment",
    "errors",
    "extras",
    "imports",
    "interrupts",
    "printing",
)  # What a script imports first.


def installed(*packages):
    """Returns a patch of find_spec for a Python that has only these packages."""
    return mock.patch.object(
        importlib.util, "find_spec", lambda name: object() if name in packages else None
    )


class MissingTest(tf.test.TestCase):
    def test_missing_packages_are_listed(self):
        for packages, training, models in (
            (("tensorflow", "tensorflow_estimator"), [], []),
            (("tensorflow",), ["Estimator"], []),  # TensorFlow 2.16 and later, without the wheel
            (("tensorflow_estimator",), ["TensorFlow"], ["TensorFlow"]),
            ((), ["TensorFlow", "Estimator"], ["TensorFlow"]),
        ):
            with installed(*packages):
                self.assertEqual(
                    environment.missing_packages(environment.TRAINING), training, packages
                )
                self.assertEqual(environment.missing_packages(environment.MODELS), models, packages)

        with installed("absl", "matplotlib"):
            self.assertEqual(environment.missing_packages(environment.REPORTS), ["SciPy"])
        for packages in (environment.TRAINING, environment.MODELS, environment.REPORTS):
            self.assertEqual(environment.missing_packages(packages), [])


class PrepareTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.prepared = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "python")
        self.execv = mock.Mock(side_effect=SystemExit("handed over"))

    def ensure(self, executable, *packages):
        """Returns the exit code and stderr of `prepare` in a Python with only these packages."""
        argv = ["run_classifier.py", "--task_name=MRPC"]
        with contextlib.ExitStack() as stack:
            for patch in (
                installed(*packages),
                mock.patch.object(environment, "_DEMO_PYTHON", self.prepared),
                mock.patch.object(sys, "executable", executable),
                mock.patch.object(sys, "argv", argv),
                mock.patch.object(sys, "meta_path", list(sys.meta_path)),
                mock.patch.object(os, "execv", self.execv),
            ):
                stack.enter_context(patch)
            stderr = stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            try:
                environment.prepare()
            except SystemExit as exit:
                return exit.code, stderr.getvalue()
        return None, stderr.getvalue()

    def make_prepared(self):
        open(self.prepared, "w").close()

    def test_complete_python_is_not_restarted(self):
        self.make_prepared()
        result = self.ensure("/usr/bin/python3", "tensorflow", "tensorflow_estimator")
        self.assertEqual(result, (None, ""))
        self.execv.assert_not_called()

    def test_incomplete_python_restarts_in_the_prepared_python(self):
        self.make_prepared()
        code, stderr = self.ensure("/usr/bin/python3")
        self.assertEqual(code, "handed over")
        self.execv.assert_called_once_with(
            self.prepared, [self.prepared, "run_classifier.py", "--task_name=MRPC"]
        )
        self.assertIn("/usr/bin/python3", stderr)
        self.assertIn("continuing with " + self.prepared, stderr)

    def assert_refused(self, code):
        # sys.exit with a text prints it and exits with code 1.
        self.assertRegex(code, r"^Error: [^\n]+\.$")
        self.assertIn("make demo", code)
        self.assertIn("requirements.txt", code)
        self.execv.assert_not_called()

    def test_missing_prepared_python_gives_installation_advice(self):
        code, stderr = self.ensure("/usr/bin/python3", "tensorflow")
        self.assert_refused(code)
        self.assertIn("/usr/bin/python3", code)
        self.assertEqual(stderr, "")

    def test_incomplete_prepared_python_is_not_restarted(self):
        self.make_prepared()
        code, _ = self.ensure(self.prepared)
        self.assert_refused(code)


class ScriptTest(tf.test.TestCase):
    """Runs scripts in separate processes, some of them without site-packages."""

    def run_bare(self, folder, code):
        path = os.path.join(folder, "script.py")
        with open(path, "w") as writer:
            writer.write(code)
        return subprocess.run(
            [sys.executable, "-S", path],
            env={"PYTHONPATH": paths.PROJECT, "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
        )

    def test_every_script_reports_missing_packages(self):
        """Runs copies of the scripts, without a .venv next to them, from another folder."""
        project = paths.PROJECT
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        os.makedirs(os.path.join(folder, "adapter_bert", "shell"))
        os.mkdir(os.path.join(folder, "demo"))
        for file in ("__init__.py", *(f"shell/{name}.py" for name in SHELL)):
            shutil.copy(
                os.path.join(project, "adapter_bert", file),
                os.path.join(folder, "adapter_bert", file),
            )
        for script in (*(name + ".py" for name in SCRIPTS), "demo/embedding_module.py"):
            shutil.copy(os.path.join(project, script), os.path.join(folder, script))
            done = subprocess.run(
                [sys.executable, "-S", os.path.join(folder, script)],
                capture_output=True,
                text=True,
            )
            self.assertEqual((done.returncode, done.stdout), (1, ""), script)
            self.assertRegex(
                done.stderr,
                r"^Error: Python [^\n]+ has no (TensorFlow|absl-py|ONNX Runtime)[^\n]+\.\n$",
            )

    @unittest.skipIf(HAS_ESTIMATOR, "this TensorFlow has an Estimator of its own")
    def test_incompatible_estimator_wheel_is_refused(self):
        folder = os.path.join(self.get_temp_dir(), "tensorflow_estimator-2.12.0.dist-info")
        os.makedirs(folder)
        with open(os.path.join(folder, "METADATA"), "w") as writer:
            writer.write("Metadata-Version: 2.1\nName: tensorflow-estimator\nVersion: 2.12.0\n")
        project = paths.PROJECT
        done = subprocess.run(
            [sys.executable, os.path.join(project, "run_classifier.py"), "--task_name=MRPC"],
            env=dict(os.environ, PYTHONPATH=os.path.dirname(folder)),
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 1)
        self.assertRegex(
            done.stderr, r"^Error: TensorFlow [^\n]+ but 2\.12\.0 is installed[^\n]+\n$"
        )

    def test_conversions_run_in_any_locale(self):
        bert = tiny.write_bert(os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "bért"))
        script = os.path.join(paths.PROJECT, "convert_checkpoint.py")
        locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        command = [sys.executable, script, "to_huggingface", bert, bert + ".ä"]
        done = subprocess.run(command, env={**os.environ, **locale}, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(os.listdir(os.path.dirname(bert))), ["bért", "bért.ä"])

    @unittest.skipUnless(IS_TF2, "TensorFlow 1.15 itself needs docstrings")
    def test_scripts_and_packages_that_edit_docstrings_run_without_them(self):
        bert = tiny.write_bert(os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "bert"))
        code = "import sys, convert_checkpoint\nconvert_checkpoint.main(sys.argv[1:])\n"
        code += "from adapter_bert.shell import tf_estimator\nprint(tf_estimator.tpu.TPUEstimator)"
        if SERVES:
            code += "\nfrom adapter_bert.serving.export import in_graph_tokenizer"
        command = [sys.executable, "-OO", "-c", code, "to_huggingface", bert, bert + ".hf"]
        done = subprocess.run(command, cwd=paths.PROJECT, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("TPUEstimator", done.stdout)

    def run_without(self, packages, script, *arguments):
        """Runs a script in a Python that cannot import these packages."""
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        for package in packages:
            os.mkdir(os.path.join(folder, package))
            with open(os.path.join(folder, package, "__init__.py"), "w") as writer:
                writer.write("raise ImportError('not installed')\n")
        project = paths.PROJECT
        return subprocess.run(
            [sys.executable, os.path.join(project, script + ".py"), *arguments],
            env=dict(os.environ, PYTHONPATH=folder),
            capture_output=True,
            text=True,
        )

    def test_scripts_that_do_not_train_import_no_estimator(self):
        packages = ("tensorflow_estimator", "tensorflow_hub")  # The second imports the first.
        for script, arguments in (
            ("serve", ()),
            ("export_model", ()),
            ("convert_checkpoint", ("describe", "/nowhere")),
        ):
            if script == "serve" and not SERVES:
                continue
            done = self.run_without(packages, script, *arguments)
            self.assertEqual(done.returncode, 1, script + done.stderr)
            self.assertRegex(done.stderr, r"^Error: [^\n]+\n$", script)

    def test_help_needs_no_tensorflow(self):
        for script in SCRIPTS if SERVES else sorted(set(SCRIPTS) - {"serve"}):
            done = self.run_without(("tensorflow", "sklearn", "optuna"), script, "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""), script)

    def test_reports_need_no_tensorflow(self):
        project = paths.PROJECT
        records = os.path.join(project, "results", "records")
        folder = os.path.join(self.get_temp_dir(), "report")
        flags = f"--records={records}", "--report=figure4", f"--report_dir={folder}"
        done = self.run_without(("tensorflow",), "run_report", *flags)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("figure4.svg", os.listdir(folder))

    def test_only_startup_messages_are_filtered_from_stderr(self):
        """Even the last output of a crashing process is kept."""
        code = (
            "import os, sys; from adapter_bert.shell import environment\n"
            "os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\n"
            "with environment._quiet_import():\n"
            "    os.write(2, b'WARNING: All log messages before absl::InitializeLog() ...\\n')\n"
            "    os.write(2, b'I0000 00:00:1.2 7 port.cc:153] oneDNN\\nF0000 no AVX\\n')\n"
            "    if len(sys.argv) < 2: os.abort()\n"
        )
        done = self.run_bare(self.get_temp_dir(), code)
        self.assertEqual((done.returncode, done.stderr), (-signal.SIGABRT, "F0000 no AVX\n"))
        done = self.run_bare(self.get_temp_dir(), code.replace("os.abort()", "print('ended')"))
        self.assertEqual((done.stdout, done.stderr), ("ended\n", "F0000 no AVX\n"))

    def test_installed_tensorflow_starts_without_messages(self):
        code = (
            "from adapter_bert.shell import environment;"
            "environment.prepare(); environment.load(); print('ready')"
        )
        environ = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            env=dict(environ, PYTHONPATH=paths.PROJECT),
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.stdout, "ready\n")
        if tuple(map(int, tf.__version__.split(".")[:2])) > tf_estimator.NEWEST_TESTED:
            self.assertRegex(done.stderr, r"^[^\n]*newer than[^\n]*\n$")
        else:
            self.assertEqual(done.stderr, "")

    def test_tensorflow_log_level_is_3_unless_set_by_the_user(self):
        program = (
            "import os; from adapter_bert.shell import environment; {};"
            "print(os.environ.get('TF_CPP_MIN_LOG_LEVEL'))"
        )
        prepare = "environment.prepare(environment.Packages({}))"
        for call, given, expected in (
            ("pass", {}, "None"),  # An import changes no program.
            (prepare, {}, "3"),
            (prepare, {"TF_CPP_MIN_LOG_LEVEL": "0"}, "0"),
            ("environment.import_for_training()", {}, "3"),
            ("environment.import_for_training()", {"TF_CPP_MIN_LOG_LEVEL": "0"}, "0"),
        ):
            done = subprocess.run(
                [sys.executable, "-c", program.format(call)],
                env=dict(given, PYTHONPATH=paths.PROJECT),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            self.assertEqual(done.stdout, expected + "\n")


class FindPythonTest(tf.test.TestCase):
    """Tests find_python.sh with fake Pythons that only print a version."""

    def find(self, *versions, on_path=(), in_pyenv=(), in_home=()):
        """Returns the script's stdout, with paths relative to the test's folder, and stderr."""
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        for place, names in (
            ("path", on_path),
            ("pyenv/versions/{}.5/bin", in_pyenv),
            ("home/.local/bin", in_home),
        ):
            for name in names:
                version = name.replace("python", "")
                path = os.path.join(
                    folder, place.format(version), "python" if "{" in place else name
                )
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w") as writer:
                    writer.write(f"#!/bin/sh\necho {version}\n")
                os.chmod(path, 0o755)
        os.symlink(shutil.which("sed"), os.path.join(folder, "sed"))
        environ = {"PATH": f"{folder}/path:{folder}", "HOME": f"{folder}/home"}
        environ["PYENV_ROOT"] = f"{folder}/pyenv"
        script = os.path.join(paths.PROJECT, "find_python.sh")
        done = subprocess.run(
            ["/bin/sh", script, *versions], env=environ, capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 1 if done.stderr else 0)
        return done.stdout.replace(folder + "/", "").strip(), done.stderr

    def test_first_version_wins_in_any_location(self):
        for places, expected in (
            ({"on_path": ["python3.12", "python3.13"]}, "path/python3.13"),
            (
                {"on_path": ["python3.12"], "in_pyenv": ["python3.13"]},
                "pyenv/versions/3.13.5/bin/python",
            ),
            ({"in_home": ["python3.12"]}, "home/.local/bin/python3.12"),
            ({"on_path": ["python3.14"], "in_pyenv": ["python3.12"]}, None),
        ):
            found, stderr = self.find("3.13", "3.12", **places)
            self.assertEqual(found, expected or "pyenv/versions/3.12.5/bin/python", stderr)

    def test_missing_python_gives_install_commands(self):
        found, stderr = self.find("3.13", "3.12", on_path=["python3.14"])
        self.assertEqual(found, "")
        self.assertRegex(stderr, r"^Error: found no Python 3\.13, 3\.12\. [^\n]+\.\n$")
        for command in ("apt install python3.13 ", "brew install python@3.13", "uv python install"):
            self.assertIn(command, stderr)


class SilenceTensorflowTest(tf.test.TestCase):
    def test_debug_verbosity_restores_tensorflow_log(self):
        self.addCleanup(logging.set_verbosity, logging.get_verbosity())
        self.addCleanup(tf.logging.set_verbosity, tf.logging.get_verbosity())
        for verbosity, expected in (
            (logging.INFO, tf.logging.FATAL),
            (logging.DEBUG, tf.logging.INFO),
        ):
            logging.set_verbosity(verbosity)
            environment.silence_tensorflow()
            self.assertEqual(tf.logging.get_verbosity(), expected)
