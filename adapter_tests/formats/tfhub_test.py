"""Tests of tfhub.py with hub modules that the tests export."""

import os
import shutil
import subprocess
import sys
import unittest
import urllib.error
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import saved_model_pb2

import modeling
import run_classifier
from adapter_bert.files import paths
from adapter_bert.formats import checkpoints, task_adapter, tfhub
from adapter_bert.model import model_variables
from adapter_bert.training import pretrained, starting_point
from adapter_tests.support import command_lines, tf2_modules, tiny
from adapter_tests.support.checkpoint_cases import TINY, CheckpointTestCase, changed

hub = tfhub.library()


class HubTestCase(CheckpointTestCase):
    def setUp(self):
        super().setUp()
        self.module = os.path.join(self.folder, "module")
        self.assets = os.path.join(self.module, "assets")

    def export(self, config=TINY, tokenization=None, vocabulary="vocab.txt"):
        """Exports a BERT like Google's hub modules; returns its variables by name."""
        vocab_file = os.path.join(self.folder, vocabulary)
        with open(vocab_file, "w") as stream:
            stream.write("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")

        def build():
            ids = tf.placeholder(tf.int32, [None, None], name="input_ids")
            model = modeling.BertModel(config, False, ids, adapter_fn=None)
            path = tf.constant(vocab_file)
            tf.add_to_collection(tf.GraphKeys.ASSET_FILEPATHS, path)
            hub.add_signature("tokens", {"input_ids": ids}, {"pooled": model.get_pooled_output()})
            if tokenization is not None:
                constants = {name: tf.constant(value) for name, value in tokenization.items()}
                hub.add_signature("tokenization_info", outputs={"vocab_file": path, **constants})

        return self.export_module(build)

    def export_module(self, build):
        with tf.Graph().as_default(), tf.Session() as session:
            module = hub.Module(hub.create_module_spec(build))
            session.run(tf.global_variables_initializer())
            module.export(self.module, session)
            return session.run(module.variable_map)


class HubTest(HubTestCase):
    def test_module_supplies_weights_vocabulary_and_config(self):
        exported = self.export(tokenization={"do_lower_case": True})
        actual = tfhub.read_bert(self.module)
        self.assertEqual(actual.config.to_dict(), TINY.to_dict())
        self.assertEqual(actual.vocab_file, os.path.join(self.assets, "vocab.txt"))
        self.assertIs(actual.do_lower_case, True)
        reader = checkpoints.open_checkpoint(actual.init_checkpoint)
        self.assertEqual(set(exported), set(model_variables.encoder_shapes(TINY)))
        for name, value in exported.items():
            self.assertAllEqual(reader.get_tensor(name), value)

    def test_bert_flag_accepts_modules(self):
        self.export(tokenization={"do_lower_case": False})
        values = command_lines.classifier_flags(f"--bert={self.module}/", "--do_train")
        start = starting_point.find(values, "mrpc")
        config = run_classifier.ClassifierConfig.from_flags(values, start.supplied)
        self.assertIs(config.do_lower_case, False)
        bert, _ = pretrained.load(config)
        self.assertEqual(bert.init_checkpoint, tfhub.read_bert(self.module).init_checkpoint)
        recorded = pretrained.recorded_flags(config, bert)
        self.assertEqual(recorded, {"bert_hub_module_handle": self.module})

    def test_do_lower_case_is_read_from_the_signature_if_it_has_it(self):
        for tokenization, expected in (({"do_lower_case": False}, False), (None, None), ({}, None)):
            self.export(tokenization=tokenization)
            self.assertIs(tfhub.read_bert(self.module).do_lower_case, expected)
            shutil.rmtree(self.module)

    def test_number_of_heads_follows_from_hidden_size(self):
        self.export(changed(TINY, hidden_size=128, num_attention_heads=2, num_hidden_layers=11))
        config = tfhub.read_bert(self.module).config
        self.assertEqual((config.num_attention_heads, config.num_hidden_layers), (2, 11))

    def test_hidden_size_not_divisible_by_head_size_is_refused(self):
        self.export(changed(TINY, hidden_size=96))
        self.assert_refused(
            ["the hidden size, 96, is not a multiple of 64"], tfhub.read_bert, self.module
        )

    def test_bert_config_file_takes_precedence(self):
        config = changed(TINY, hidden_size=96, num_attention_heads=3, hidden_act="relu")
        self.export(config)
        for folder in (self.assets, self.module):
            config_file = os.path.join(folder, "bert_config.json")
            with open(config_file, "w") as stream:
                stream.write(config.to_json_string())
            actual = tfhub.read_bert(self.module).config
            self.assertEqual(actual.to_dict(), config.to_dict())
            with open(config_file, "w") as stream:
                stream.write(changed(config, num_hidden_layers=3).to_json_string())
            self.assert_refused(["lacks 16 of"], tfhub.read_bert, self.module)
            os.remove(config_file)

    def test_sole_text_file_in_assets_is_the_vocabulary(self):
        self.export(vocabulary="pieces.txt")
        expected = os.path.join(self.assets, "pieces.txt")
        self.assertEqual(tfhub.read_bert(self.module).vocab_file, expected)
        second = shutil.copy(expected, os.path.join(self.assets, "licence.txt"))
        self.assert_refused(
            ["one WordPiece vocabulary", "licence.txt, pieces.txt"],
            tfhub.read_bert,
            self.module,
        )
        os.rename(second, os.path.join(self.assets, "vocab.txt"))
        expected = os.path.join(self.assets, "vocab.txt")
        self.assertEqual(tfhub.read_bert(self.module).vocab_file, expected)

    def test_sentencepiece_vocabulary_is_refused(self):
        self.export(vocabulary="30k-clean.model")
        self.assert_refused(["WordPiece", "30k-clean.model"], tfhub.read_bert, self.module)

    def test_network_error_names_address_and_reason(self):
        address = "https://tfhub.dev/google/bert/1"
        failure = urllib.error.URLError("Name or service not known")
        with mock.patch.object(hub, "resolve", side_effect=failure):
            self.assert_refused([address, "service not known"], tfhub.read_bert, address)

    def test_saved_model_without_hub_format_is_refused(self):
        with tf.Graph().as_default(), tf.Session() as session:
            x = tf.placeholder(tf.float32, [1])
            y = x * tf.get_variable("bert/w", initializer=[1.0])
            session.run(tf.global_variables_initializer())
            tf.saved_model.simple_save(session, self.module, {"x": x}, {"y": y})
        self.assert_refused(["hub format", self.module], tfhub.read_bert, self.module)

    def test_damaged_saved_model_is_refused(self):
        self.export(tokenization={"do_lower_case": True})
        path = os.path.join(self.module, "saved_model.pb")
        with open(path, "rb") as reader:
            content = reader.read()
        for damaged in (content[: len(content) // 2], b"\xff" * 20, b"\x0c" * 20):
            with open(path, "wb") as writer:
                writer.write(damaged)
            self.assert_refused(["saved_model.pb cannot be read"], tfhub.read_bert, self.module)

    def test_cyclic_do_lower_case_is_refused(self):
        self.export(tokenization={"do_lower_case": True})
        path = os.path.join(self.module, "saved_model.pb")
        with open(path, "rb") as reader:
            model = saved_model_pb2.SavedModel.FromString(reader.read())
        for graph in model.meta_graphs:
            output = graph.signature_def["tokenization_info"].outputs["do_lower_case"].name
            for node in graph.graph_def.node:
                if node.name == output.split(":")[0]:
                    node.op = "Identity"
                    node.input[:] = [node.name]
        with open(path, "wb") as writer:
            writer.write(model.SerializeToString())
        self.assert_refused(["do_lower_case", "a constant"], tfhub.read_bert, self.module)

    def test_reading_a_folder_imports_neither_hub_nor_estimator(self):
        self.export(tokenization={"do_lower_case": True})
        modules = {"tensorflow_hub", "adapter_bert.shell.tf_estimator"}
        program = (
            "import sys; from adapter_bert.formats import tfhub; tfhub.read_bert(sys.argv[1]);"
            f" print({modules} & set(sys.modules))"
        )
        root = paths.PROJECT
        printed = subprocess.check_output([sys.executable, "-c", program, self.module], cwd=root)
        self.assertEqual(printed.decode().strip(), "set()")

    def test_module_without_bert_variables_is_refused(self):
        def build():
            x = tf.placeholder(tf.float32, [1])
            y = x * tf.get_variable("scale", initializer=[1.0])
            hub.add_signature(inputs={"x": x}, outputs={"y": y})

        self.export_module(build)
        self.assert_refused(
            ["variables of a BERT", "bert/embeddings/word_embeddings", "only scale"],
            tfhub.read_bert,
            self.module,
        )


@pytest.mark.without_xla
class HostileTest(HubTestCase):
    """Trains on modules whose graphs write a file, so that a test notices if a graph runs."""

    def setUp(self):
        super().setUp()
        self.written = os.path.join(self.folder, "written")

    def export_hostile(self, is_constant):
        """Exports a BERT that writes a file whenever an output is computed."""
        vocab_file = tf2_modules.write_vocabulary(self.folder)

        def build():
            ids = tf.placeholder(tf.int32, [None, None], name="input_ids")
            model = modeling.BertModel(tiny.config(hidden_size=64), False, ids, adapter_fn=None)
            path = tf.constant(vocab_file)
            tf.add_to_collection(tf.GraphKeys.ASSET_FILEPATHS, path)
            with tf.control_dependencies([tf.io.write_file(self.written, "hostile")]):
                pooled = tf.identity(model.get_pooled_output())
                path, lower = tf.identity(path), tf.identity(tf.constant(True))
            if not is_constant:
                lower = tf.logical_not(tf.logical_not(lower))
            hub.add_signature("tokens", {"input_ids": ids}, {"pooled": pooled})
            outputs = {"vocab_file": path, "do_lower_case": lower}
            hub.add_signature("tokenization_info", outputs=outputs)

        return self.export_module(build)

    def train(self, *more):
        """Trains a classifier on the module."""
        data = tiny.write_mrpc(os.path.join(self.folder, "data"))
        arguments = ["--task_name=MRPC", "--data_dir=" + data, "--tuning=head", "--do_train"]
        arguments += ["--bert_hub_module_handle=" + self.module, "--num_train_epochs=1"]
        arguments += ["--max_seq_length=16", "--train_batch_size=8"]
        arguments += ["--output_dir=" + os.path.join(self.folder, "output"), *more]
        return run_classifier.run(command_lines.classifier_flags(*arguments))

    def assert_trained_from(self, config, tensors):
        """Checks that the adapter's backbone has these tensors."""
        backbone = task_adapter.describe(os.path.join(self.folder, "output", "adapter")).backbone
        self.assertEqual(backbone.fingerprint, model_variables.fingerprint(tensors.get, config))

    def test_training_does_not_run_graph_of_hub_module(self):
        tensors = self.export_hostile(is_constant=True)
        for flags, parts in (
            (["--do_lower_case=false"], ["--do_lower_case=False", "value is True"]),
            (
                ["--vocab_file=x", "--init_checkpoint=y"],
                ["--bert_hub_module_handle replaces", "--vocab_file", "--init_checkpoint"],
            ),
        ):
            self.assert_refused(parts, self.train, *flags)
        self.assertIn("Trained: ", "\n".join(self.train()))
        self.assertFalse(os.path.exists(self.written))
        self.assert_trained_from(tiny.config(hidden_size=64, num_attention_heads=1), tensors)
        with tf.Graph().as_default(), tf.Session() as session:  # It writes the file when it runs.
            outputs = hub.Module(self.module)(signature="tokenization_info", as_dict=True)
            session.run(outputs["do_lower_case"])
        self.assertTrue(os.path.exists(self.written))

    def test_computed_do_lower_case_is_rejected(self):
        self.export_hostile(is_constant=False)
        parts = ["do_lower_case must be a constant", "--init_checkpoint=" + self.module]
        self.assert_refused(parts, self.train)
        self.assertFalse(os.path.exists(self.written))

    @unittest.skipIf(tf2_modules.IS_TF1, tf2_modules.WITHOUT)
    def test_a_checkpoint_resumes_the_run_of_its_saved_model(self):
        values = tf2_modules.tensors(tiny.config())
        tf2_modules.save_encoder(self.module, values)
        self.assertIn("Trained: ", "\n".join(self.train()))
        self.assert_trained_from(tiny.config(), tf2_modules.by_google_name(tiny.config(), values))
        self.module = os.path.join(self.folder, "checkpoint")
        tf2_modules.save_checkpoint(self.module, values)
        with self.assertLogs("absl", "INFO") as logs:
            self.train()
        self.assertIn("Already trained", "\n".join(logs.output))
