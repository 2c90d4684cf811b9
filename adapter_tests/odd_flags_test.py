"""Tests of every script with odd values of its flags: they are accepted, or refused in a sentence.

A run is stopped where it would begin to compute. Flags that reach this point are accepted.
"""

import contextlib
import importlib
import io
import json
import os
import re
import tempfile
import unittest
from unittest import mock

import hypothesis.strategies as st
import tensorflow.compat.v1 as tf
from absl import flags

import convert_checkpoint
from adapter_bert.files.paths import PROJECT
from adapter_bert.formats import task_adapter
from adapter_bert.shell import cli, errors
from adapter_bert.shell.errors import UserError
from adapter_bert.training import run as training_run
from adapter_tests.support import mutations, own_models, tf2_modules, tiny

ODD_VALUES = (
    *(text for text in mutations.ODD_TEXTS if "\0" not in text and len(text) < 1000),
    "x" * 300,  # Too long for the name of a file.
    *("1e308", "-inf", "1_000", "１", "0x10", "0-", "3-1", "0,0,1", "1,2,", ",", "=", "a=b", "lr="),
    *("1/0", "2/1", "/", "/dev/null", "no/such/place", "*", "[", "~", "$HOME", "localhost", "::"),
    *("sqlite:///", "True,False", "--", "2147483647", "4", "0.1", "gelu"),
)
NUMBERS = (
    *("-1", "0", "1", "2", "3", "4", "7", "33", "1000000", "2147483647", "9" * 25),
    *("0.5", "0.999", "1e-9", "1e308", "nan", "inf", "-0.0"),
)
ARGUMENTS = "arguments.json"
# The names of convert_checkpoint.py's positional arguments in errors.
POSITIONAL = ("COMMAND", "CHECKPOINT", "_DIR", "PATH", "bert_config.json")


class Begins(Exception):
    """Raised where a run would begin to compute."""


def begin(*arguments, **options):
    raise Begins


def as_file(arguments):
    return {ARGUMENTS: json.dumps(arguments).encode()}


def names_of(contents):
    """Returns texts of which a refusal contains one: flags, and values as errors show them."""
    given = json.loads(contents[ARGUMENTS].decode())
    values = given.values() if isinstance(given, dict) else given
    texts = (re.sub(r"^--\w+=", "", str(value)) for value in values)
    shown = [str(UserError(text.rstrip("/") or text)) or repr(text) for text in texts]
    paths = [name for name in given if "_file" in name] if isinstance(given, dict) else []
    # A text of one or two characters may occur by chance, except at the start of a sentence.
    texts = (text if len(text) > 2 else "Error: " + text for text in shown)
    return ("--", *POSITIONAL, *paths, *texts)


def value_of(flag):
    """Returns a strategy for a flag's text, which usually has the flag's type."""
    kind, odd = flag.flag_type(), st.sampled_from(ODD_VALUES)
    if kind in ("int", "float"):
        return st.sampled_from(NUMBERS) | st.sampled_from(NUMBERS) | odd
    if kind == "bool":
        return st.sampled_from(("true", "false")) | odd
    if kind == "string enum":
        return st.sampled_from(flag.parser.enum_values) | odd
    return odd


def ended(main, *arguments):
    """Calls a script's main as the script does; raises UserError with the error that it printed."""
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr):
        try:
            code = errors.exit_code(main, *arguments)
        except SystemExit as error:  # From argparse.
            code = error.code
    if code:
        raise UserError(stderr.getvalue().strip().split("\n")[-1])


@contextlib.contextmanager
def inside(folder):
    """Resolves relative paths in a folder while entered."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def given_in(folder):
    with open(os.path.join(folder, ARGUMENTS), encoding="utf-8") as reader:
        return json.load(reader)


class OddFlagsTest(tf.test.TestCase):
    RUN = ((training_run.Run, "execute"),)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.root = tempfile.mkdtemp(dir=tf.test.get_temp_dir())
        cls.bert_dir = tiny.write_bert(cls.path("bert"), initializer_range=0.4)
        cls.adapter = cls.path("mrpc/adapter")
        os.makedirs(cls.path("mrpc"))
        task_adapter.save(cls.adapter, own_models.build_task_adapter(cls.bert_dir, task="MRPC"))
        cls.bert = {
            "bert_config_file": cls.path("bert/bert_config.json"),
            "vocab_file": cls.path("bert/vocab.txt"),
            "init_checkpoint": cls.path("bert/bert_model.ckpt"),
        }
        cls.cache = {"feature_cache_dir": cls.path("features")}
        cls.mrpc = {"task_name": "MRPC", "data_dir": tiny.write_mrpc(cls.path("MRPC"))}

    @classmethod
    def path(cls, name):
        return os.path.join(cls.root, name)

    def check(self, name, given, *ends):
        """Checks a script with one to three odd flags.

        Args:
          name: name of the script.
          given: the flags of a valid command: dict.
          *ends: (class or module, attribute) of the functions at which a run begins to compute.
        """
        script, known = importlib.import_module(name), flags.FlagValues()
        script.define_flags(known)

        @st.composite
        def odd_flags(draw, contents):
            odd = draw(st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=3))
            return as_file({**given, **{flag: draw(value_of(known[flag])) for flag in odd}})

        def read(folder):
            values = flags.FlagValues()
            script.define_flags(values)
            arguments = [f"--{flag}={value}" for flag, value in given_in(folder).items()]
            with contextlib.ExitStack() as stack:
                stack.enter_context(inside(folder))
                for place, attribute in ends:
                    stack.enter_context(mock.patch.object(place, attribute, begin))
                stack.enter_context(mock.patch.object(flags, "FLAGS", values))
                stack.enter_context(contextlib.suppress(Begins))
                cli._parse_all([name + ".py", *arguments])
                ended(script.main, [name + ".py"])

        read.__qualname__ = name
        mutations.check(as_file(given), read, names_of, odd_flags)

    def test_run_classifier(self):
        given = {**self.bert, **self.cache, **self.mrpc, "output_dir": "out", "do_train": True}
        given.update(max_seq_length=16, train_batch_size=4)
        self.check("run_classifier", given, *self.RUN)

    def test_run_squad(self):
        context = "The big dog sees a small bird and hears the old cat ."
        question = {"question": "What sees the dog ?"}
        question["answers"] = [{"text": "bird", "answer_start": 25}]
        qas = [{"id": str(i), **question} for i in range(8)]
        content = {"data": [{"title": "T", "paragraphs": [{"context": context, "qas": qas}]}]}
        path = self.path("squad.json")
        with open(path, "w") as writer:
            json.dump(content, writer)
        given = {**self.bert, **self.cache, "train_file": path, "predict_file": path}
        given.update(max_seq_length=24, max_query_length=8, doc_stride=4, train_batch_size=4)
        given["output_dir"] = "out"
        self.check("run_squad", given, *self.RUN)

    def test_run_tagger(self):
        path = self.path("train.conll")
        with open(path, "w") as writer:
            writer.write("the O\ndog B-X\n\n" * 8)
        given = {**self.bert, **self.cache, "train_file": path, "dev_file": path}
        given.update(token_column="1", tag_column="2", max_seq_length=16, train_batch_size=4)
        given["output_dir"] = "out"
        self.check("run_tagger", given, *self.RUN)

    def test_run_ablation(self):
        given = {**self.bert, **self.cache, **self.mrpc, "output_dir": "out"}
        given.update(max_seq_length=16, adapter=self.adapter)
        self.check("run_ablation", given, (training_run.LoadedModel, "estimator_of"))

    def test_run_baseline(self):
        from adapter_bert.paper.baseline import training

        given = {**self.mrpc, "module": self.path("no module"), "output_dir": "out", "trials": 1}
        self.check("run_baseline", given, (training.ModuleCache, "open_module"))

    def test_run_sweep(self):
        from adapter_bert.sweeps import sweep

        settings = {"task_name": "MRPC", "init_checkpoint": self.bert["init_checkpoint"]}
        path = self.path("grid.json")
        with open(path, "w") as writer:
            json.dump({"grids": [settings, {**settings, "adapter_size": [8, 16]}]}, writer)
        given = {"grid": path, "output_dir": "out", "dry_run": True}
        self.check("run_sweep", given, (sweep.Sweep, "run"))

    def test_run_report(self):
        from adapter_bert.paper import report_tables

        given = {"records": os.path.join(PROJECT, "results/records"), "report": "table1"}
        self.check("run_report", {**given, "report_dir": "out"}, (report_tables, "render"))

    @unittest.skipIf(tf2_modules.IS_TF1, "needs TensorFlow 2")
    def test_export_model(self):
        from adapter_bert.serving.export import saved_model

        given = {**self.bert, "adapters": self.adapter, "export_dir": "out"}
        self.check("export_model", given, (saved_model, "write"))

    @unittest.skipIf(tf2_modules.IS_TF1, "needs TensorFlow 2")
    def test_serve(self):
        from adapter_bert.serving.inference import bank

        given = {**self.bert, "adapters": self.adapter, "port": 0}
        self.check("serve", given, (bank.AdapterBank, "__init__"))

    def test_convert_checkpoint(self):
        bert, adapter, task = self.bert_dir, self.adapter, ["--task=MRPC", "--labels=0,1"]
        hub, huggingface, full = map(self.path, ("adapterhub", "huggingface", "full.ckpt"))
        convert_checkpoint.to_adapterhub(adapter, hub)
        convert_checkpoint.to_huggingface(bert, huggingface)
        convert_checkpoint.to_full_checkpoint(adapter, bert, full)
        commands = (
            ["from_adapterhub", hub, bert, "made", "--max_seq_length=16"],
            ["from_huggingface", huggingface, "made"],
            ["to_huggingface", bert, "made"],
            ["from_adapter_bert", full, bert, "made", *task],
            ["to_full_checkpoint", adapter, bert, "made"],
            ["to_adapterhub", adapter, "made"],
            ["describe", adapter],
        )

        @st.composite
        def odd_argument(draw, contents):
            command = list(draw(st.sampled_from(commands)))
            index, odd = draw(st.integers(0, len(command) - 1)), draw(st.sampled_from(ODD_VALUES))
            head, equals, _ = command[index].partition("=")
            command[index] = head + equals + odd if equals else odd
            return as_file(command)

        def read(folder):
            with inside(folder):
                ended(convert_checkpoint.main, given_in(folder))

        mutations.check(as_file(commands[0]), read, names_of, odd_argument)
