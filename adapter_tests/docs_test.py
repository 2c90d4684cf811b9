"""Tests that the commands on the pages and in the scripts' docstrings work.

Each command must be parsed by the script that it calls. The commands in `RUN` are also run, in the
order of the pages, with a tiny BERT and tiny data. Their output must contain the lines that the
page shows; numbers may differ.
"""

import argparse
import ast
import contextlib
import functools
import glob
import importlib
import io
import itertools
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from typing import List, NamedTuple
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf
from absl import flags
from tensorboard import program

import convert_checkpoint
from adapter_bert.files.paths import PROJECT
from adapter_bert.paper import figures
from adapter_bert.shell.commands import COMMANDS
from adapter_tests.support import records, tf2_modules, tiny
from adapter_tests.support.tensorflows import SERVES

pytestmark = pytest.mark.without_xla

PAGES = ["README.md", "SCALE.md", "CONTRIBUTING.md", "results/README.md"]
PAGES += sorted(
    os.path.relpath(path, PROJECT) for path in glob.glob(os.path.join(PROJECT, "docs/*.md"))
)

# Page → beginnings of the commands that are run.
RUN = {
    "README.md": ("export", "make demo", "python run_classifier.py"),
    "docs/from_adapterhub.md": tuple(
        f"python convert_checkpoint.py {command}" for command in ("card", "describe", "from", "to")
    ),
    "docs/experiments.md": (
        "python run_ablation.py",
        "python run_report.py --compare",
        "python run_report.py --records=output/sizes",
        "python run_sweep.py",
    ),
    "docs/moving.md": ("python convert_checkpoint.py",),
    "docs/serving.md": ("python export_model.py",),
    "docs/tasks.md": (
        "export",
        "python run_classifier.py --adapter=output/glue_mrpc/adapter",
        "python run_classifier.py --task_name=MRPC",
        "python run_classifier.py --task_name=custom --data_dir=demo/MRPC",
        "python run_squad.py",
    ),
    "docs/training.md": ("python convert_checkpoint.py",),
    "results/README.md": ("python run_report.py",),
}
FURTHER = {"run_sweep.py": ["--dry_run"]}
# Flags that need several devices; adapter_tests/training/distribution_test.py tests them.
DEVICES = re.compile("--(distribution|num_tpu_cores)=")


class Command(NamedTuple):
    """A command on a page, and the lines of its output that the page shows."""

    page: str
    line: int
    text: str
    output: List[str]

    @property
    def place(self):
        return f"{self.page}:{self.line}: {self.text}"


class Block(NamedTuple):
    """A fenced block: its language, and its lines with their numbers."""

    language: str
    lines: list


@functools.lru_cache(maxsize=None)
def read(page):
    with open(os.path.join(PROJECT, page), encoding="utf-8") as reader:
        return reader.read()


def blocks(page):
    """Returns the fenced blocks of a page."""
    found, block = [], None
    for number, line in enumerate(read(page).splitlines(), 1):
        fence = re.match(r"\s*```(.*)$", line)
        if fence and block is None:
            block = Block(fence.group(1), [])
        elif fence:
            found, block = [*found, block], None
        elif block is not None:
            block.lines.append((number, line))
    return found


def texts_of(page, language):
    """Returns the contents of a page's blocks of a language."""
    found = (block for block in blocks(page) if block.language == language)
    return ["\n".join(line for _, line in block.lines) for block in found]


def is_whole(text):
    """Returns whether a command is complete, so that a shell would not wait for more."""
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return not text.endswith("\\")


def commands_of(block, page):
    """Returns the `Command`s of a block; outside of "bash" blocks they follow "$ "."""
    found, open_one = [], None
    for number, line in block.lines:
        if open_one is not None:
            open_one = open_one._replace(text=open_one.text + "\n" + line)
        elif block.language == "bash" or line.startswith("$ "):
            text = line.strip() if block.language == "bash" else line[2:]
            open_one = Command(page, number, text, [])
        elif found:
            found[-1].output.append(line)
        if open_one is not None and is_whole(open_one.text):
            found, open_one = [*found, open_one], None
    return found


PROGRAMS = r"(?:adapter-bert|python|make|pip|curl|tensorboard|saved_model_cli)"


@functools.lru_cache(maxsize=None)
def commands(page):
    """Returns all `Command`s in a page's blocks."""
    return [c for block in blocks(page) for c in commands_of(block, page) if c.text]


def commands_of_docstring(script):
    """Returns the `Command`s in a script's docstring."""
    text = ast.get_docstring(ast.parse(read(script)))
    found = re.findall(rf"^    ({PROGRAMS} (?:.*\\\n)*.*)", text, re.MULTILINE)
    return [Command(script, 1, command, []) for command in found]


def words_of(text, folder):
    """Returns the words into which a shell in a folder expands a command."""
    script = f"set -- {text}\nprintf '%s\\0' \"$@\""
    said = subprocess.check_output(["bash", "-c", script], cwd=folder)
    return said.decode().split("\0")[:-1]


def parses_arguments(call):
    """Checks that a call parses a command line with argparse, and ends it after that."""
    parse = argparse.ArgumentParser.parse_args

    def stop(parser, *arguments):
        parse(parser, *arguments)
        raise InterruptedError

    with mock.patch.object(argparse.ArgumentParser, "parse_args", stop):
        try:
            call()
        except InterruptedError:
            return
    raise AssertionError("no command line was parsed")


def values_of(script, arguments):
    """Returns (the module, its parsed flags, the remaining arguments)."""
    module = importlib.import_module(script[: -len(".py")])
    values, rest = parsed(module.define_flags, script, arguments)
    return module, values, rest


def parsed(define_flags, script, arguments):
    values = flags.FlagValues()
    define_flags(values)
    rest = values([script, *(a for a in arguments if a != "--help")])
    return values, rest[1:]


def parse_python(script, *arguments):
    if script == "convert_checkpoint.py":
        command = [a for a in arguments if a != "--help"]
        parses_arguments(lambda: convert_checkpoint.main(command))
        return
    if script.startswith("benchmarks/") and not SERVES:
        return  # Some benchmarks import the serving packages.
    with mock.patch.object(
        sys, "path", [os.path.dirname(os.path.join(PROJECT, script)), *sys.path]
    ):
        names = runpy.run_path(os.path.join(PROJECT, script))
    if "define_flags" in names:
        _, rest = parsed(names["define_flags"], script, arguments)
        assert not rest or "--" in arguments, f"{rest}: expected flags only"
    else:
        with mock.patch.object(sys, "argv", [script, *arguments]):
            parses_arguments(names["main"])


def parse_adapter_bert(command, *arguments):
    """Checks a subcommand's flags, which are its script's."""
    module = COMMANDS[command].module
    if module == "formats.demo":
        assert not arguments, arguments
    else:
        parse_python(f"{module}.py", *arguments)


def scripts_of_make(*targets):
    """Yields the scripts that make would run for its targets, each with its arguments."""
    said = subprocess.check_output(
        ["make", "--dry-run", "--always-make", *targets], cwd=PROJECT, universal_newlines=True
    )
    for line in said.replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        if words[0].endswith("/bin/python") and words[1].endswith(".py"):
            yield words[1:]


def parse_make(*targets):
    """Checks that make knows the targets, and that their scripts parse the arguments."""
    for words in scripts_of_make(*targets):
        parse_python(*words)


def parse_pip(command, *words):
    """Checks that the files of requirements exist."""
    assert command in ("install", "wheel", "download"), command
    for option, path in zip(words, words[1:]):
        assert option != "-r" or os.path.exists(os.path.join(PROJECT, path)), path


def parse_export(setting):
    name, value = setting.split("=", 1)
    if name == "TF_CONFIG":
        value = json.loads(value)
        assert value["task"]["type"] in value["cluster"], value


def parse_source(path):
    assert path == ".venv/bin/activate", path


def parse_tensorboard(*arguments):
    program.TensorBoard().configure(argv=["tensorboard", *arguments])


def parse_saved_model_cli(*arguments):
    tool = importlib.import_module("tensorflow.python.tools.saved_model_cli")
    tool.create_parser().parse_args(arguments)


def parse_curl(*arguments):
    """Checks the URL; `RunTest.check_serving` sends the requests of docs/serving.md."""
    assert arguments[-1].startswith("http://127.0.0.1:8501/v1/"), arguments


PARSERS = {
    "adapter-bert": parse_adapter_bert,
    "python": parse_python,
    ".venv/bin/python": parse_python,
    "make": parse_make,
    "pip": parse_pip,
    "export": parse_export,
    "source": parse_source,
    "tensorboard": parse_tensorboard,
    "saved_model_cli": parse_saved_model_cli,
    "curl": parse_curl,
}


class DocsTestCase(tf.test.TestCase):
    def enter(self, context):
        """Enters a context until the test ends."""
        context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)


class PagesTest(DocsTestCase):
    def test_every_documented_command_parses(self):
        names = "BERT_BASE_DIR", "GLUE_DIR", "SQUAD_DIR", "SQUAD_FILES"
        self.enter(mock.patch.dict(os.environ, dict.fromkeys(names, "/given")))
        modules = [path for path in sorted(os.listdir(PROJECT)) if path.endswith(".py")]
        scripts = [
            path for path in modules if re.search('^if __name__ == "__main__"', read(path), re.M)
        ]
        found = [c for page in PAGES for c in commands(page)]
        found += [c for script in scripts for c in commands_of_docstring(script)]
        self.assertLessEqual({*RUN, *scripts}, {c.page for c in found})
        for command in {command.text: command for command in found}.values():
            program_name, *arguments = words_of(command.text, PROJECT)
            with self.subTest(command.place):
                self.assertIn(program_name, PARSERS)
                # zsh refuses a glob without a match. No file name begins with the flag.
                self.assertNotRegex(command.text, r"--\w+=[^\s'\"$]*[*?]")
                try:
                    PARSERS[program_name](*arguments)
                except SystemExit as end:
                    self.assertEqual(end.code, 0)

    def test_links_have_existing_targets(self):
        for page in PAGES:
            for target in re.findall(r"\]\(([^)#\s]+)[^)\s]*\)", read(page)):
                path = os.path.join(PROJECT, os.path.dirname(page), target)
                self.assertTrue(target.startswith("http") or os.path.exists(path), target)

    def test_committed_figures_match_their_scripts(self):
        for name in ("adapter", "architecture"):
            folder = os.path.join(PROJECT, "docs", "figures")
            with mock.patch.object(sys, "path", [folder, *sys.path]):
                script = runpy.run_path(os.path.join(folder, name + ".py"))
            self.assertEqual(script["svg"](), read(f"docs/figures/{name}.svg"))


def masked(line):
    """Returns a line of output with 0 for each number and digest, which vary between runs."""
    return re.sub(r"[0-9a-f]{64}|-?\d[\d.,]*", "0", line)


def keys_of(value):
    """Returns the keys of all objects in a JSON value."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if isinstance(value, dict):
        return set(value).union(*map(keys_of, value.values()))
    return set()


class SessionTestCase(DocsTestCase):
    """Runs commands in a folder of the test, which also replaces /path/to on the pages."""

    def setUp(self):
        super().setUp()
        if tf.__version__.startswith("1."):
            self.skipTest("Their parts are tested on TensorFlow 1.15, too.")
        self.folder = self.get_temp_dir()
        sizes = {"num_hidden_layers": 1, "max_position_embeddings": 512}
        bert = tiny.write_bert(self.path("demo", "bert"), **sizes)
        for data in (self.path("glue", "MRPC"), self.path("demo", "MRPC")):
            tiny.write_mrpc(data)
        os.mkdir(self.path("squad"))
        for name in ("train", "dev"):
            tiny.write_squad(self.path("squad", name + "-v1.1.json"), 32)
        environment = {"BERT_BASE_DIR": bert, "GLUE_DIR": self.path("glue")}
        self.enter(mock.patch.dict(os.environ, environment))
        before = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, before)

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def words(self, command):
        """Returns a command's words, with this folder in place of /path/to."""
        return words_of(command.text.replace("/path/to", shlex.quote(self.folder)), self.folder)

    def run_command(self, command):
        """Runs a command, and checks that its output contains the lines that the page shows.

        If the page shows "...", only the lines after the last one are checked.
        """
        program_name, *arguments = self.words(command)
        if program_name == "export":
            name, value = arguments[0].split("=", 1)
            os.environ[name] = value
            return
        printed = io.StringIO()
        if program_name == "make":  # Only the training of what it would run.
            calls = (words for words in scripts_of_make(*arguments) if words[0].startswith("run_"))
        else:
            calls = [arguments]
        with contextlib.redirect_stdout(printed):
            for words in calls:
                print("\n".join(self.run_python(*words)))
        shown = command.output
        if "..." in shown:
            shown = shown[len(shown) - shown[::-1].index("...") :]
        found = [masked(line) for line in printed.getvalue().splitlines()]
        for line in filter(None, shown):
            self.assertIn(masked(line), found)

    def run_python(self, script, *arguments):
        """Runs a script; returns its report, a list of lines."""
        arguments = [*arguments, *FURTHER.get(script, ())]
        if script == "convert_checkpoint.py":
            convert_checkpoint.main(arguments)
            return []
        module, values, _ = values_of(script, arguments)
        return module.run(values)

    def run_page(self, page):
        """Runs a page's commands in `RUN`, each once; checks that the page has all of them."""
        texts, starts = set(), set()
        for command in commands(page):
            start = next((s for s in RUN[page] if command.text.startswith(s)), None)
            if start is None or command.text in texts:
                continue
            texts.add(command.text)
            starts.add(start)
            if not DEVICES.search(command.text):
                with self.subTest(command.place):
                    self.run_command(command)
        self.assertEqual(starts, set(RUN[page]))


class ResultsTest(SessionTestCase):
    def test_committed_tables_match_committed_records(self):
        for name in ("records", "ablations", "searches"):
            source = os.path.join(PROJECT, "results", name)
            shutil.copytree(source, self.path("results", name))
        drawn = {"png": b"", "svg": b""}  # Only texts are compared.
        with mock.patch.object(figures, "draw", return_value=drawn):
            self.run_page("results/README.md")
        found = [name for name in os.listdir("results") if name.endswith((".md", ".tsv"))]
        self.assertGreater(len(found), 4)
        for name in found:
            with self.subTest(name), open(self.path("results", name)) as reader:
                self.assertEqual(reader.read(), read("results/" + name))


@pytest.mark.slow
class RunTest(SessionTestCase):
    def test_commands_of_readme_and_docs_run(self):
        shutil.copytree(os.path.join(PROJECT, "results", "grids"), "results/grids")
        os.makedirs("output/sizes")
        with open("output/sizes/results.jsonl", "w") as writer:
            for entry in (*records.seeds("MRPC", [0.7, 0.8]), *records.seeds("CoLA", [0.2, 0.3])):
                writer.write(json.dumps(entry) + "\n")
        self.run_page("README.md")
        self.check_python()
        for page in ("docs/tasks.md", "docs/training.md", "docs/serving.md"):
            self.run_page(page)
        self.check_serving()
        self.check_experiments()
        self.check_moving()

    def check_python(self):
        """Checks that the README's Python trains, and gives a probability for each class."""
        words = itertools.cycle(tiny.WORDS)
        kinds = ["spam", "ham"] * 20
        frame = [{"message": " ".join(itertools.islice(words, 4)), "kind": kind} for kind in kinds]
        for text in texts_of("README.md", "python"):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(text, {"frame": frame})
            last = ast.literal_eval(printed.getvalue().splitlines()[-1])
            (answer,) = last if isinstance(last, list) else [last]
            self.assertAllClose(sum(answer["probabilities"].values()), 1)
            self.assertLen(answer["probabilities"], 2)

    def check_experiments(self):
        with open("my_grid.json", "w") as writer:
            writer.write("".join(texts_of("docs/experiments.md", "json")))
        for name in ("a", "b"):
            shutil.copytree("output/mrpc", name)
        with mock.patch.dict(os.environ, SQUAD_DIR=self.path("squad")):
            self.run_page("docs/experiments.md")

    @contextlib.contextmanager
    def served(self, *arguments):
        """Runs a server; yields (the first line that it prints, its port)."""
        port = tiny.free_port()
        process = subprocess.Popen(
            [sys.executable, os.path.join(PROJECT, "serve.py"), *arguments, f"--port={port}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            universal_newlines=True,
        )
        with process:
            try:
                yield process.stdout.readline(), port
            finally:
                process.kill()

    def check_serving(self):
        """Checks that the README's server answers each curl of docs/serving.md with status 200."""
        importlib.import_module("uvicorn")
        shutil.copytree("output/mrpc/adapter", "served/mrpc/adapter")
        beginning = "adapter-bert serve"
        start = next(c for c in commands("README.md") if c.text.startswith(beginning))
        # The folder has the task mrpc for docs/serving.md, so that the README's has another name.
        flags = [word.replace("output/mrpc", "output/demo") for word in self.words(start)[2:]]
        with self.served(*flags, "--adapter_dir=served") as (said, port):
            self.assertRegex(said, r"^Serving 2 tasks at http://127.0.0.1:\d+/ \(Ctrl-C stops\)$")
            for command in (c for c in commands("docs/serving.md") if c.text.startswith("curl")):
                words = [word.replace(":8501/", f":{port}/") for word in self.words(command)]
                with self.subTest(command.place):
                    answer = subprocess.check_output([*words, "--silent", "--fail"])
                    shown = "".join(command.output)
                    keys = set(re.findall(r'"(\w+)":', shown))
                    self.assertLessEqual(keys, keys_of(json.loads(answer)))

    def check_moving(self):
        bert = os.environ["BERT_BASE_DIR"]
        source = self.path("bert_en_uncased_L-12_H-768_A-12")
        tf2_modules.save_encoder(source, tf2_modules.tensors(tiny.config()))
        for command in (
            ["to_full_checkpoint", "output/mrpc/adapter", bert, "model.ckpt-343"],
            ["to_huggingface", bert, "huggingface_bert"],
            ["to_adapterhub", "output/mrpc/adapter", "saved_adapter"],
        ):
            with contextlib.redirect_stdout(io.StringIO()):
                convert_checkpoint.main(command)
        self.run_page("docs/moving.md")
        shutil.rmtree("output/bert", ignore_errors=True)
        shutil.rmtree("output/huggingface_bert", ignore_errors=True)
        self.run_page("docs/from_adapterhub.md")
