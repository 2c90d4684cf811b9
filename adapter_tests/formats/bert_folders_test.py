"""Tests of bert_folders.py and --bert: BERTs of each format, read from where they are.

`support/huggingface_goldens` holds models and outputs of the package `transformers`.
"""

import contextlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np
import pytest
import safetensors.numpy
import tensorflow.compat.v1 as tf

import extract_features
import run_classifier
from adapter_bert.files import paths
from adapter_bert.formats import bert_folders, task_adapter
from adapter_bert.training import pretrained, starting_point
from adapter_tests.support import (
    command_lines,
    hub_server,
    mutations,
    own_models,
    script_cases,
    tf2_modules,
    tiny,
)
from adapter_tests.support.refusals import RefusalTestCase
from adapter_tests.support.tensorflows import SERVES

GOLDENS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "support/huggingface_goldens")
GOLDEN_IS_CASED = {"uncased": False, "cased_sharded": True, "cased_tokenizer_json": True}
TOLERANCE = 1e-5


class BertFoldersTestCase(RefusalTestCase):
    """Gives each test a cache folder of its own."""

    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        self.cache = self.path("cache")
        environment = {"XDG_CACHE_HOME": self.cache, "BERT_BASE_DIR": ""}
        patch = mock.patch.dict(os.environ, environment)
        patch.start()
        self.addCleanup(patch.stop)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def copy(self, golden):
        return shutil.copytree(os.path.join(GOLDENS, golden), self.path(golden))

    def find(self, source):
        """Returns (the local folder of a BERT, what was printed)."""
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            return bert_folders.local_folder(source, "--bert"), stderr.getvalue()


def golden_outputs(name):
    with np.load(os.path.join(GOLDENS, name, "outputs.npz")) as outputs:
        return dict(outputs)


def golden_rows(outputs):
    """Returns the ids of each text without padding."""
    masks = outputs["input_mask"] == 1
    return [ids[mask].tolist() for ids, mask in zip(outputs["input_ids"], masks)]


@pytest.mark.without_xla
class GoldensTest(BertFoldersTestCase):
    def test_hidden_states_and_tokens_are_those_of_transformers(self):
        for name in GOLDEN_IS_CASED:
            outputs = golden_outputs(name)
            texts = "".join(f"{text}\n" for text in outputs["texts"])
            values = command_lines.parsed(
                extract_features.define_flags,
                f"--bert={os.path.join(GOLDENS, name)}",
                f"--input_file={script_cases.write(self.path('input.txt'), texts)}",
                f"--output_file={self.path('output.jsonl')}",
                "--layers=0,1",
                "--max_seq_length=16",
            )
            with contextlib.redirect_stderr(io.StringIO()):
                extract_features.run(values)
            vocabulary = script_cases.read(self.cached_file("vocab.txt")).split("\n")
            lines = script_cases.read(self.path("output.jsonl")).splitlines()
            for index, ids in enumerate(golden_rows(outputs)):
                tokens = json.loads(lines[index])["features"]
                self.assertEqual([token["token"] for token in tokens], [vocabulary[i] for i in ids])
                actual = [[layer["values"] for layer in token["layers"]] for token in tokens]
                expected = outputs["hidden_states"][1:, index, : len(ids)].swapaxes(0, 1)
                self.assertAllClose(actual, expected, rtol=0, atol=TOLERANCE)
            shutil.rmtree(self.cache)

    def cached_file(self, name):
        """Returns the path of a file of the only conversion."""
        (entry,) = os.scandir(os.path.join(self.cache, "adapter-bert", "bert"))
        (folder,) = os.scandir(entry.path)
        return os.path.join(folder.path, name)

    @unittest.skipUnless(SERVES, "needs ONNX Runtime")
    def test_onnx_outputs_are_those_of_transformers(self):
        from adapter_bert.serving.inference import bank

        for name in GOLDEN_IS_CASED:
            outputs, (folder, _) = golden_outputs(name), self.find(os.path.join(GOLDENS, name))
            heads = {}
            for kind, labels in (("span", ()), ("classification", tuple("abcdefgh"))):
                adapter = own_models.build_task_adapter(
                    folder, method="head", kind=kind, labels=labels, task=kind
                )
                heads[kind] = adapter.tensors
                task_adapter.save(self.path(name, kind), adapter)
            config = own_models.modeling.BertConfig.from_json_file(
                os.path.join(folder, "bert_config.json")
            )
            with contextlib.redirect_stderr(io.StringIO()):
                tasks = bank.AdapterBank(config, os.path.join(folder, "bert_model.ckpt"))
            for kind in heads:
                tasks.add(kind, self.path(name, kind))
            for index, ids in enumerate(golden_rows(outputs)):
                rows = [bank.Row(kind, ids, [0] * len(ids)) for kind in ("span", "classification")]
                span, classes = tasks.predict(rows)
                last = outputs["hidden_states"][-1, index, : len(ids)]
                actual = np.stack([span["start_logits"], span["end_logits"]], axis=1)
                expected = self.head(outputs, heads["span"], last)
                self.assertAllClose(actual, expected, rtol=0, atol=TOLERANCE)
                logits = self.head(outputs, heads["classification"], outputs["pooled"][index])
                expected = np.exp(logits) / np.exp(logits).sum()
                self.assertAllClose(classes["probabilities"], expected, rtol=0, atol=TOLERANCE)
            tasks.close()

    def head(self, outputs, tensors, vectors):
        """Returns the logits of a head in NumPy."""
        names = {name.split("/")[-1]: value for name, value in tensors.items()}
        weights = names["output_weights"], names["output_bias"]
        return vectors @ weights[0].T + weights[1]

    def test_casing_comes_from_the_tokenizer_unless_a_flag_gives_it(self):
        for name, is_cased in GOLDEN_IS_CASED.items():
            flag = f"--bert={os.path.join(GOLDENS, name)}"
            for flags, expected in (([], not is_cased), ([f"--do_lower_case={is_cased}"], None)):
                values = command_lines.classifier_flags(flag, "--do_train", *flags)
                with contextlib.redirect_stderr(io.StringIO()):
                    start = starting_point.find(values, "mrpc")
                config = run_classifier.ClassifierConfig.from_flags(values, start.supplied)
                if expected is None:
                    parts = [f"--do_lower_case={is_cased} contradicts --bert=", str(not is_cased)]
                    self.assert_refused(parts, pretrained.load, config)
                else:
                    _, tokenizer = pretrained.load(config)
                    self.assertEqual(config.do_lower_case, expected)
                    self.assertEqual(tokenizer.tokenize("The"), ["the" if expected else "The"])


class LocalFolderTest(BertFoldersTestCase):
    def test_conversion_is_written_once_and_again_after_a_change(self):
        source = self.copy("uncased")
        folder, printed = self.find(source)
        message = rf"^Converted {source} to {folder} in [\d.]+ s; later runs reuse it.\n$"
        self.assertRegex(printed, message)
        self.assertEqual(os.path.basename(folder), "uncased")
        self.assertEqual(bert_folders.source_of(folder), source)
        written = mutations.files_in(folder)
        for spelling in (source, source + "/", os.path.relpath(source)):
            self.assertEqual(self.find(spelling), (folder, ""))
        self.assertEqual(mutations.files_in(folder), written)
        tensors = safetensors.numpy.load_file(os.path.join(source, "model.safetensors"))
        tensors["pooler.dense.bias"] += 1
        safetensors.numpy.save_file(tensors, os.path.join(source, "model.safetensors"))
        changed, _ = self.find(source)
        biases = [self.pooler_bias(each) for each in (folder, changed)]
        self.assertAllClose(biases[1], biases[0] + 1)

    def pooler_bias(self, folder):
        prefix = os.path.join(folder, "bert_model.ckpt")
        return tf.train.load_checkpoint(prefix).get_tensor("bert/pooler/dense/bias")

    def test_large_files_are_identified_by_size_and_time(self):
        source = self.copy("uncased")
        with mock.patch.object(bert_folders, "_MAX_HASHED_BYTES", 9000):
            folder, _ = self.find(source)
            os.utime(os.path.join(source, "model.safetensors"), (1, 1))
            self.assertNotEqual(self.find(source)[0], folder)

    def test_incomplete_conversion_is_replaced(self):
        folder, _ = self.find(os.path.join(GOLDENS, "uncased"))
        written = mutations.files_in(folder)
        os.remove(os.path.join(folder, "bert_model.ckpt.index"))
        again, printed = self.find(os.path.join(GOLDENS, "uncased"))
        self.assertEqual(again, folder)
        self.assertStartsWith(printed, "Converted ")
        self.assertEqual(set(mutations.files_in(folder)), set(written))
        self.assertEqual(len(os.listdir(os.path.dirname(os.path.dirname(folder)))), 1)

    def test_process_without_tensorflow_converts_in_another(self):
        code = (
            "import sys; from adapter_bert.formats import bert_folders as b\n"
            "print(b.local_folder(sys.argv[1], '--bert')); print('tensorflow' in sys.modules)"
        )
        source = os.path.join(GOLDENS, "cased_tokenizer_json")
        command = [sys.executable, "-c", code, source]
        done = subprocess.run(command, cwd=paths.PROJECT, capture_output=True, text=True)
        folder, is_imported = done.stdout.splitlines()
        self.assertEqual(is_imported, "False", done.stderr)
        self.assertStartsWith(done.stderr, f"Converted {source} to {folder} in ")
        vocabulary = script_cases.read(os.path.join(folder, "vocab.txt"))
        self.assertEqual(vocabulary.split("\n")[12:], ["The", "Dog", "A", "Cat", ""])
        command[2] = "import sys; sys.modules['tensorflow'] = None\n" + code
        done = subprocess.run(command, cwd=paths.PROJECT, capture_output=True, text=True)
        self.assertStartsWith(done.stdout, folder + "\n")
        command[3] = os.path.join(GOLDENS, "uncased")
        done = subprocess.run(command, cwd=paths.PROJECT, capture_output=True, text=True)
        self.assertRegex(done.stderr, "must be converted, which requires TensorFlow; run `pip")

    def test_folders_of_google_and_tf_hub_are_used_in_place(self):
        google = tiny.write_bert(self.path("google"))
        for name in ("tfhub_module.pb", "saved_model.pb"):
            script_cases.write(self.path("module", name), "")
        served = self.path("served")
        script_cases.write(os.path.join(served, "backbone.onnx"), "")
        for folder in (google, served, self.path("module")):
            self.assertEqual(self.find(folder), (folder, ""))
        self.assertFalse(os.path.exists(self.cache))

    @unittest.skipIf(tf2_modules.IS_TF1, tf2_modules.WITHOUT)
    def test_folders_of_tensorflow_2_are_converted(self):
        config = tiny.config(hidden_size=64, num_attention_heads=1)
        values = tf2_modules.tensors(config)
        expected = tf2_modules.by_google_name(config, values)["bert/pooler/dense/bias"]
        prefix = tf2_modules.save_checkpoint(self.path("checkpoint"), values)
        for suffix in (".index", ".data-00000-of-00001"):  # The name in Google's releases.
            os.rename(prefix + suffix, self.path("checkpoint", "bert_model.ckpt") + suffix)
        saved_model = tf2_modules.save_encoder(self.path("cased"), values, do_lower_case=False)
        for source, is_lower_cased in ((self.path("checkpoint"), True), (saved_model, False)):
            folder, _ = self.find(source)
            self.assertAllClose(self.pooler_bias(folder), expected)
            config = command_lines.classifier_config(f"--bert={folder}")
            bert = pretrained.find(config)
            self.assertEqual(pretrained.is_lower_cased(bert), is_lower_cased)

    def test_other_folders_are_refused(self):
        os.mkdir(self.path("empty"))
        for source, parts in (
            (self.path("none"), ["there is no folder", "none; expected", "hf://owner/name"]),
            ("google-bert/bert-base-uncased", ["there is no folder", "hf://owner/name"]),
            (self.path("empty"), ["empty is not a BERT", "bert_model.ckpt.index", "config.json"]),
            ("hf://bert-base-uncased", ["expected hf://owner/name"]),
        ):
            self.assert_refused(parts, bert_folders.local_folder, source, "--bert")

    def test_other_architectures_are_refused(self):
        source = self.copy("uncased")
        path = os.path.join(source, "config.json")
        config = json.loads(script_cases.read(path))
        for model_type in ("roberta", "distilbert", "modernbert", "electra"):
            script_cases.write(path, json.dumps({**config, "model_type": model_type}))
            part = f"{path}: its model_type is {model_type}, another architecture than BERT;"
            self.assert_refused([part], bert_folders.local_folder, source, "--bert")
        self.assertEqual(os.listdir(os.path.join(self.cache, "adapter-bert", "bert")), [])

    def test_sentence_transformers_folder_is_read(self):
        source = self.copy("uncased")
        for name in ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json"):
            script_cases.write(os.path.join(source, name), "{}")
        self.assertTrue(os.path.exists(os.path.join(self.find(source)[0], "vocab.txt")))

    def test_flags_of_one_bert_exclude_those_of_another(self):
        bert = f"--bert={os.path.join(GOLDENS, 'uncased')}"
        names = [*paths.BERT_FILES, "spm_model_file", "bert_hub_module_handle"]
        for name in names:
            values = command_lines.classifier_flags(bert, f"--{name}=x", "--do_eval")
            parts = [f"--bert replaces --{name}: give one or the other"]
            self.assert_refused(parts, starting_point.find, values, "mrpc")


class RunTest(script_cases.ScriptTestCase):
    SCRIPT = run_classifier

    def setUp(self):
        super().setUp()
        self.source = os.path.join(GOLDENS, "cased_sharded")
        self.cache = os.path.join(self.folder, "cache")
        patch = mock.patch.dict(os.environ, {"XDG_CACHE_HOME": self.cache, "BERT_BASE_DIR": ""})
        patch.start()
        self.addCleanup(patch.stop)
        self.flags = [f"--{name}=" for name in paths.BERT_FILES]
        self.flags += [f"--bert={self.source}", "--max_seq_length=16", "--num_train_epochs=1"]

    def test_runs_record_and_find_a_converted_bert(self):
        self.succeed(*self.flags, "--do_train", "--do_eval")
        settings = json.loads(script_cases.read(self.path("settings.json")))["pretrained"]
        self.assertEqual(settings.pop("bert"), self.source)
        for name, path in settings.items():
            self.assertEqual(os.path.basename(path), paths.BERT_FILES[name])
            self.assertStartsWith(path, self.cache)
        description = task_adapter.describe(self.path("adapter"))
        self.assertFalse(description.do_lower_case)
        self.assertEqual(description.backbone.name, "cased_sharded")
        evaluated = ["--do_eval", "--max_seq_length=16", f"--init_checkpoint={self.output_dir}"]
        evaluated += ["--vocab_file=", "--bert_config_file="]
        self.succeed(*evaluated, output_dir=self.path("evaluated"))
        if SERVES:
            self.check_exports_and_servers()
            self.check_predictors()
        shutil.rmtree(self.cache)
        advice = f"use --adapter={self.path('adapter')} --bert={self.source}."
        self.refuse(["is no longer at", advice], *evaluated, output_dir=self.path("again"))
        adapter = f"--adapter={self.path('adapter')}"
        self.succeed(*self.flags, "--do_eval", adapter, output_dir=self.path("last"))

    def check_exports_and_servers(self):
        import export_model
        import serve

        flags = [f"--bert={self.source}", f"--adapters={self.path('adapter')}"]
        values = command_lines.parsed(serve.define_flags, *flags)
        with contextlib.redirect_stderr(io.StringIO()):
            config = serve.ServerConfig.from_flags(values)
            tasks, bank = serve._load(config, serve._find_bert(config)[0])
            self.assertLen(tasks.served, 1)
            tasks.close()
            bank.close()
            flags += [f"--export_dir={self.path('exported')}", "--format=onnx"]
            report = export_model.run(command_lines.parsed(export_model.define_flags, *flags))
        self.assertStartsWith(report[1], f"ONNX file: {self.path('exported')}")

    def check_predictors(self):
        from adapter_bert import Predictor
        from adapter_bert.shell.errors import UserError

        adapter, texts = self.path("adapter"), ("The dog sees", "a cat")
        with contextlib.redirect_stderr(io.StringIO()):
            expected = Predictor(adapter)(*texts)
            self.assertEqual(Predictor(adapter, self.source)(*texts), expected)
            shutil.rmtree(self.cache)
            with self.assertRaisesRegex(UserError, f"again, set bert={self.source}."):
                Predictor(adapter)
            self.assertEqual(Predictor(adapter, self.source)(*texts), expected)


@unittest.skipUnless(
    importlib.util.find_spec("huggingface_hub"), "needs the package huggingface_hub"
)
class HubTest(BertFoldersTestCase):
    CODE = (
        "import sys; from adapter_bert.formats import bert_folders\n"
        "from adapter_bert.shell import errors\n"
        "show = lambda: print(bert_folders.local_folder(sys.argv[1], '--bert'))\n"
        "sys.exit(errors.exit_code(show))"
    )

    def setUp(self):
        super().setUp()
        self.hub = hub_server.HubServer()
        stack = contextlib.ExitStack()
        stack.enter_context(self.hub.serving())
        self.addCleanup(stack.close)
        self.hub.repositories["me/bert"] = [
            {**mutations.files_in(os.path.join(GOLDENS, name)), "pytorch_model.bin": b"unused"}
            for name in ("uncased", "cased_sharded")
        ]

    def resolve(self, address, **changes):
        """Returns (exit code, the folder, the log) of a new process."""
        environment = {
            **os.environ,
            "HF_ENDPOINT": self.hub.endpoint,
            "HF_HOME": self.path("hub"),
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "*",
            **changes,
        }
        command = [sys.executable, "-c", self.CODE, address]
        done = subprocess.run(
            command, cwd=paths.PROJECT, env=environment, capture_output=True, text=True
        )
        return done.returncode, done.stdout.strip(), done.stderr

    def requested(self):
        names = [path.rsplit("/", 1)[1] for _, path in self.hub.requests if "/resolve/" in path]
        self.hub.requests.clear()
        return set(names)

    def test_bert_is_downloaded_and_converted_once(self):
        code, folder, log = self.resolve("hf://me/bert")
        self.assertEqual(code, 0, log)
        address = f"hf://me/bert@{self.hub.sha('me/bert')}"
        self.assertIn(f"Converted {address} to {folder} in ", log)
        self.assertEqual(bert_folders.source_of(folder), address)
        self.assertEqual(os.path.basename(folder), "bert")
        requested = self.requested()
        self.assertIn("model-00002-of-00002.safetensors", requested)
        self.assertNotIn("pytorch_model.bin", requested)
        shutil.rmtree(self.path("hub"))  # The conversion replaces the download.
        self.assertEqual(self.resolve("hf://me/bert")[:2], (0, folder))
        self.assertEqual(self.requested(), {"config.json"})
        self.assertEqual(self.resolve(address)[:2], (0, folder))
        self.assertEqual(self.hub.requests, [])
        first = f"hf://me/bert@{self.hub.sha('me/bert', 0)}"
        self.assertNotIn(self.resolve(first)[1], ("", folder))

    def test_weights_of_pytorch_are_downloaded_if_there_are_no_others(self):
        folder = os.path.join(os.path.dirname(GOLDENS), "adapterhub", "bert")
        files = mutations.files_in(folder)
        del files["model.safetensors"]
        vocabulary = "".join(f"{token}\n" for token in tiny.VOCABULARY[:20])
        self.hub.repositories["me/old"] = [{**files, "vocab.txt": vocabulary.encode()}]
        code, folder, log = self.resolve("hf://me/old")
        self.assertEqual(code, 0, log)
        self.assertIn("pytorch_model.bin", self.requested())
        self.assertTrue(os.path.exists(os.path.join(folder, "bert_model.ckpt.index")))

    def test_hub_errors_are_one_sentence(self):
        files = dict(self.hub.repositories["me/bert"][0])
        files["config.json"] = files["config.json"].replace(b'"bert"', b'"roberta"')
        self.hub.repositories["me/roberta"] = [files]
        offline = {"HF_ENDPOINT": "http://127.0.0.1:9"}
        for address, changes, part in (
            ("hf://me/nothing", {}, "--bert hf://me/nothing cannot be downloaded"),
            ("hf://me/bert@nowhere", {}, "--bert hf://me/bert@nowhere cannot be downloaded"),
            ("hf://me/bert", offline, "--bert hf://me/bert cannot be downloaded"),
            ("hf://me/bert", {"HF_HUB_OFFLINE": "1"}, "--bert hf://me/bert cannot be downloaded"),
            ("hf://me/roberta", {}, "its model_type is roberta, another architecture than BERT"),
        ):
            code, output, log = self.resolve(address, **changes)
            self.assertEqual((code, output), (1, ""), address)
            self.assertRegex(log, rf"(\A|\n)Error: [^\n]*{part}[^\n]*\.\n\Z")
            self.assertNotIn("Traceback", log)
        self.assertNotIn("model.safetensors", self.requested())
        with mock.patch.dict(sys.modules, {"huggingface_hub": None}):
            arguments = "hf://me/bert", "--bert"
            self.assert_refused(["requirements-hub.txt"], bert_folders.local_folder, *arguments)
