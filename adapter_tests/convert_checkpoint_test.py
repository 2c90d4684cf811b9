"""Tests of convert_checkpoint.py: conversions in both directions, and the folders they write."""

import contextlib
import dataclasses
import filecmp
import io
import json
import os
import shutil
import unittest
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import convert_checkpoint
import modeling
import run_classifier
import tokenization
from adapter_bert.formats import (
    adapter_checkpoints,
    checkpoints,
    onnx_backbone,
    task_adapter,
)
from adapter_bert.shell import errors
from adapter_bert.shell.errors import UserError
from adapter_tests.support import huggingface as huggingface_files
from adapter_tests.support import mutations, own_models, task_adapters, tf2_modules, tiny
from adapter_tests.support.checkpoint_cases import all_tensors
from adapter_tests.support.huggingface import ENCODER, as_google, random_tensors
from adapter_tests.support.refusals import RefusalTestCase
from adapter_tests.support.shared import SHARED, needs_shared


class ConvertTestCase(RefusalTestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.get_temp_dir()
        self.source = os.path.join(self.folder, "source")
        self.destination = os.path.join(self.folder, "destination")
        os.mkdir(self.source)

    def write_source(self, tensors):
        huggingface_files.write_source(self.source, tensors)

    def convert(self, **options):
        convert_checkpoint.from_huggingface(self.source, self.destination, **options)

    def converted(self):
        return all_tensors(os.path.join(self.destination, "bert_model.ckpt"))

    def assert_equal_tensors(self, found, expected):
        self.assertEqual(set(found), set(expected))
        for name, value in expected.items():
            self.assertEqual(found[name].dtype, np.float32)
            np.testing.assert_array_equal(found[name], value, err_msg=name)

    def assert_refused(self, *parts, **options):
        """Checks that the error is one sentence with all parts, and that nothing was written."""
        before = sorted(os.listdir(self.folder))
        super().assert_refused(parts, self.convert, **options)
        self.assertEqual(sorted(os.listdir(self.folder)), before)


class FilesTest(ConvertTestCase):
    def test_conversion_writes_a_complete_folder(self):
        self.write_source(random_tensors(ENCODER))
        self.convert()
        self.assertEqual(sorted(os.listdir(self.folder)), ["destination", "source"])
        self.assertEqual(
            sorted(os.listdir(self.destination)),
            [
                "bert_config.json",
                "bert_model.ckpt.data-00000-of-00001",
                "bert_model.ckpt.index",
                "vocab.txt",
            ],
        )
        paths = [os.path.join(folder, "vocab.txt") for folder in (self.source, self.destination)]
        self.assertTrue(filecmp.cmp(*paths, shallow=False))

    def test_used_destination_requires_overwrite(self):
        first, second = random_tensors(ENCODER), random_tensors(ENCODER, seed=1)
        os.mkdir(self.destination)  # An empty folder counts as unused.
        self.write_source(first)
        self.convert()
        self.write_source(second)
        self.assert_refused(self.destination, "--overwrite")
        self.assert_equal_tensors(self.converted(), as_google(ENCODER, first))
        self.convert(overwrite=True)
        self.assert_equal_tensors(self.converted(), as_google(ENCODER, second))
        self.assertEqual(sorted(os.listdir(self.folder)), ["destination", "source"])

    def test_overwrite_removes_the_onnx_backbone(self):
        pytest.importorskip("onnxruntime", reason="Python 3.7 has no ONNX Runtime of today")
        self.write_source(random_tensors(ENCODER))
        self.convert()
        with contextlib.redirect_stdout(io.StringIO()) as stdout:
            convert_checkpoint.main(["to_onnx", self.destination])
        path = os.path.join(self.destination, "backbone.onnx")
        self.assertRegex(stdout.getvalue(), rf"^{path}: wrote [\d.]+ MB\.\n$")
        config = modeling.BertConfig.from_json_file(self.destination + "/bert_config.json")
        prefix = os.path.join(self.destination, "bert_model.ckpt")
        self.assert_equal_tensors(onnx_backbone.load(prefix, config).tensors, self.converted())
        self.convert(overwrite=True)
        self.assertFalse(os.path.exists(path))

    def test_from_tf2_refuses_the_folder_of_its_source(self):
        folder = os.path.join(self.get_temp_dir(), "bert")
        prefix = os.path.join(folder, "bert_model.ckpt")
        os.makedirs(folder)
        for source in (folder, prefix):
            with self.assertRaisesRegex(UserError, "is that of SOURCE"):
                convert_checkpoint.from_tf2(source, folder + "/", overwrite=True)

    def test_other_files_are_not_overwritten(self):
        self.write_source(random_tensors(ENCODER))
        self.convert()
        open(os.path.join(self.destination, "thesis.txt"), "w").close()
        self.assert_refused(self.destination, "thesis.txt", overwrite=True)
        self.assertTrue(os.path.exists(os.path.join(self.destination, "thesis.txt")))
        shutil.rmtree(self.destination)
        open(self.destination, "w").close()
        self.assert_refused(self.destination, "is a file", overwrite=True)
        self.destination = os.path.join(self.source, "vocab.txt", "inside")
        self.assert_refused("inside cannot be written")

    def test_interrupted_conversion_changes_nothing(self):
        def interrupted(prefix, tensors):
            del tensors
            open(prefix + ".index", "w").close()
            raise KeyboardInterrupt

        first = random_tensors(ENCODER)
        self.write_source(first)
        broken = mock.patch.object(checkpoints, "write", interrupted)
        with broken, self.assertRaises(KeyboardInterrupt):
            self.convert()
        self.assertEqual(os.listdir(self.folder), ["source"])
        self.convert()
        with broken, self.assertRaises(KeyboardInterrupt):
            self.convert(overwrite=True)
        self.assertEqual(sorted(os.listdir(self.folder)), ["destination", "source"])
        self.assert_equal_tensors(self.converted(), as_google(ENCODER, first))


@unittest.skipIf(tf2_modules.IS_TF1, tf2_modules.WITHOUT)
class FromTensorFlow2Test(ConvertTestCase):
    def test_saved_model_and_checkpoint_are_converted(self):
        config = tiny.config()
        values = tf2_modules.tensors(config)
        saved_model = tf2_modules.save_encoder(os.path.join(self.folder, "saved"), values)
        prefix = tf2_modules.save_checkpoint(self.source, values)
        for source, said in ((saved_model, "--do_lower_case=True"), (prefix, "wrote 39 tensors")):
            said_of = io.StringIO()
            with contextlib.redirect_stdout(said_of):
                convert_checkpoint.from_tf2(source, self.destination, overwrite=True)
            self.assertIn(said, said_of.getvalue())
            expected = tf2_modules.by_google_name(config, values)
            self.assert_equal_tensors(self.converted(), expected)
            path = os.path.join(self.destination, "bert_config.json")
            found = modeling.BertConfig.from_json_file(path)
            self.assertEqual(found.to_dict(), config.to_dict())
            vocabulary = tokenization.load_vocab(os.path.join(self.destination, "vocab.txt"))
            self.assertEqual(list(vocabulary), tiny.VOCABULARY)
        with self.assertRaisesRegex(UserError, "or --overwrite"):
            convert_checkpoint.from_tf2(saved_model, self.destination)


class AdapterTestCase(tf.test.TestCase):
    """A tiny BERT, and a task adapter that fits it."""

    def setUp(self):
        super().setUp()
        self.folder = self.get_temp_dir()
        self.bert = tiny.write_bert(self.path("bert"))
        self.prefix = os.path.join(self.bert, "bert_model.ckpt")
        made = task_adapters.random_adapter()
        vocabulary = tokenization.load_vocab(os.path.join(self.bert, "vocab.txt"))
        self.made = made._replace(
            description=dataclasses.replace(
                made.description,
                vocabulary=task_adapter.digest(vocabulary),
                backbone=adapter_checkpoints.backbone_of(self.prefix, tiny.config()),
            )
        )
        self.adapter = self.path("adapter")
        task_adapter.save(self.adapter, self.made)

    def path(self, name):
        return os.path.join(self.folder, name)

    def assert_same_tensors(self, found):
        self.assertEqual(set(found), set(self.made.tensors))
        for name, value in self.made.tensors.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)

    def assert_same_fields(self, description):
        actual, expected = map(
            task_adapter.compatibility_fields, (description, self.made.description)
        )
        self.assertEqual(actual, expected)

    def output(self, *arguments):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            convert_checkpoint.main(list(arguments))
        return output.getvalue()


class AdapterBertTest(AdapterTestCase):
    def from_adapter_bert(
        self, checkpoint, labels="no,yes", max_seq_length=16, cased=False, task="MRPC"
    ):
        return self.output(
            "from_adapter_bert",
            checkpoint,
            self.bert,
            self.path("taken"),
            "--task=" + task,
            "--labels=" + labels,
            f"--max_seq_length={max_seq_length}",
            *(["--cased"] if cased else []),
        )

    def test_full_checkpoint_converts_back_to_equal_adapter(self):
        full = self.path("full.ckpt")
        output = self.output("to_full_checkpoint", self.adapter, self.bert, full)
        self.assertIn("only: BERT's own code loads it, but silently ignores the adapters", output)
        self.from_adapter_bert(full)
        found = task_adapter.load(self.path("taken"))
        self.assert_same_tensors(found.tensors)
        self.assert_same_fields(found.description)
        self.assertEqual(found.description.global_step, self.made.description.global_step)

    def test_checkpoint_with_adapters_is_not_converted_as_a_bert(self):
        folder = self.path("full_bert")
        shutil.copytree(self.bert, folder)
        self.output(
            "to_full_checkpoint",
            self.adapter,
            self.bert,
            os.path.join(folder, "bert_model.ckpt"),
            "--overwrite",
        )
        for command in (["to_huggingface", folder, self.path("hf")], ["to_onnx", folder]):
            with self.assertRaisesRegex(UserError, "^BERT_DIR .*bert_model.ckpt holds adapters"):
                self.output(*command)

    def test_optimizer_tensors_are_ignored(self):
        full, with_slots = self.path("full.ckpt"), self.path("slots.ckpt")
        self.output("to_full_checkpoint", self.adapter, self.bert, full)
        before = self.output("describe", full)
        for slots, others in (
            (("/adam_m", "/adam_v"), {}),
            (("/Momentum",), {}),
            (("/Adam", "/Adam_1"), {"beta1_power": np.float32(0.9)}),
        ):
            tensors = {
                name + slot: np.ones_like(value)
                for name, value in self.made.tensors.items()
                for slot in slots
            }
            checkpoints.write(with_slots, {**all_tensors(full), **tensors, **others})
            self.from_adapter_bert(with_slots)
            self.assert_same_tensors(task_adapter.load(self.path("taken")).tensors)
            shutil.rmtree(self.path("taken"))
            described = self.output("describe", with_slots)
            self.assertIn(f"Optimizer: {402 * len(slots)} parameters", described)
            self.assertEqual("Others: 1 parameters" in described, bool(others))
            for part in ("Adapters: ", "Backbone: ", "Head: "):
                (line,) = [line for line in before.splitlines() if line.startswith(part)]
                self.assertIn(line, described)

    def test_adapters_of_another_kind_are_refused(self):
        full = self.path("full.ckpt")
        self.output("to_full_checkpoint", self.adapter, self.bert, full)
        gate = "bert/encoder/layer_0/output/adapters/gate"
        checkpoints.write(full, {**all_tensors(full), gate: np.ones([8], np.float32)})
        with self.assertRaisesRegex(
            UserError, f"holds {gate}, which is not part of .*adapter-bert"
        ):
            self.from_adapter_bert(full)

    def test_invalid_arguments_are_refused(self):
        full = self.path("full.ckpt")
        self.output("to_full_checkpoint", self.adapter, self.bert, full)
        with self.assertRaisesRegex(UserError, "--labels=a,b,c: .* has 2 outputs"):
            self.from_adapter_bert(full, labels="a,b,c")
        for labels in ("a,a", "a,"):
            with self.assertRaisesRegex(UserError, f"--labels={labels}.* none twice"):
                self.from_adapter_bert(full, labels=labels)
        for length in (0, -5, 3, 41):
            with self.assertRaisesRegex(UserError, f"--max_seq_length={length}: expected 4 to 40"):
                self.from_adapter_bert(full, max_seq_length=length)
        with self.assertRaisesRegex(UserError, "expected adapters of one size, found none"):
            self.from_adapter_bert(self.prefix)
        with self.assertRaisesRegex(UserError, "--task: expected the task's name"):
            self.from_adapter_bert(full, task="")
        partial = self.path("partial.ckpt")
        checkpoints.write(partial, self.made.tensors)  # As a run saves it.
        with self.assertRaisesRegex(UserError, "lacks bert/.*; expected a whole model"):
            self.from_adapter_bert(partial)
        with open(os.path.join(self.bert, "vocab.txt"), "w") as writer:
            writer.writelines(f"{word.title()}\n" for word in tiny.VOCABULARY)
        with self.assertRaisesRegex(UserError, "BERT_DIR .* is cased: add --cased"):
            self.from_adapter_bert(full)
        self.from_adapter_bert(full, cased=True)
        self.assertFalse(task_adapter.load(self.path("taken")).description.do_lower_case)
        shutil.rmtree(self.path("taken"))
        tiny.write_bert(self.bert, initializer_range=0.1)
        with self.assertRaisesRegex(UserError, "was not trained from BERT_DIR"):
            self.from_adapter_bert(full)
        self.assertFalse(os.path.exists(self.path("taken")))

    def test_existing_checkpoint_requires_overwrite(self):
        full = self.path("full.ckpt")
        arguments = ("to_full_checkpoint", self.adapter, self.bert, full)
        self.output(*arguments)
        with self.assertRaisesRegex(UserError, "is there already"):
            self.output(*arguments)
        self.output(*arguments, "--overwrite")
        checkpoints.check_tensors(full)
        for folder in (self.folder, self.path("new") + "/"):
            with self.assertRaisesRegex(UserError, f"CHECKPOINT {folder} is a folder"):
                self.output(*arguments[:-1], folder)
        self.assertEqual([name for name in os.listdir(self.folder) if "partial" in name], [])
        with self.assertRaisesRegex(UserError, "^CHECKPOINT is empty"):
            self.output(*arguments[:-1], "")

    def test_berts_own_checkpoint_is_not_overwritten(self):
        before = self.output("describe", self.bert)
        with self.assertRaisesRegex(UserError, "is that of BERT_DIR; use a new name"):
            self.output("to_full_checkpoint", self.adapter, self.bert, self.prefix, "--overwrite")
        self.assertEqual(self.output("describe", self.bert), before)

    @needs_shared
    def test_original_weights_give_original_logits(self):
        golden = np.load(os.path.join(SHARED, "goldens", "model_public.npz"))
        self.bert = os.path.join(SHARED, "checkpoints", "minilm-l6-uncased")
        tensors = all_tensors(os.path.join(self.bert, "bert_model.ckpt"))
        added = {name[5:]: golden[name] for name in golden.files if name.startswith("init/")}
        tensors.update((name, value.astype(np.float32)) for name, value in added.items())
        original, full = self.path("original.ckpt"), self.path("full.ckpt")
        checkpoints.write(original, tensors)
        self.from_adapter_bert(original, labels="0,1")
        self.output("to_full_checkpoint", self.path("taken"), self.bert, full)
        config = modeling.BertConfig.from_json_file(os.path.join(self.bert, "bert_config.json"))
        batch = (golden["batch/" + n][:8] for n in ("input_ids", "input_mask", "segment_ids"))
        with tf.Graph().as_default(), tf.Session() as session:
            labels = np.zeros(8, np.int32)
            logits = run_classifier.create_model(config, False, *batch, labels, 2, False)[2]
            tf.train.Saver().restore(session, full)
            found = session.run(logits)
        self.assertAllClose(found, golden["forward/logits"], atol=1e-4, rtol=0)


class OtherFormatsTest(AdapterTestCase):
    def test_to_adapterhub_prints_how_to_load_the_files_and_what_they_lack(self):
        made = own_models.build_task_adapter(self.bert, training={"long_texts": "windows"})
        task_adapter.save(self.path("windows"), made)
        for name, is_lost in (("windows", True), ("adapter", False)):
            printed = self.output("to_adapterhub", self.path(name), self.path(name + "_hub"))
            self.assertEqual("does not record long_texts:" in printed, is_lost)
            self.assertIn(f'load_adapter("{self.path(name)}_hub"', printed)

    def test_from_adapterhub_checks_and_saves_span_flags(self):
        made = own_models.build_task_adapter(self.bert, kind="span", labels=())
        task_adapter.save(self.path("questions"), made)
        for name in ("questions", "adapter"):
            self.output("to_adapterhub", self.path(name), self.path(name + "_hub"))
        flags = ("--max_seq_length=16", "--max_query_length=5", "--doc_stride=3")
        flags += ("--version_2_with_negative",)
        for name, given, part in (
            ("questions", flags[:1], "--max_seq_length=16 leaves no room"),
            ("questions", (*flags, "--doc_stride=0"), "--doc_stride=0: expected at least 1"),
            ("questions", (*flags, "--max_query_length=0"), "max_query_length is 0"),
            ("adapter", flags, "--doc_stride requires .* but this one is for classification"),
        ):
            arguments = ("from_adapterhub", self.path(name + "_hub"), self.bert, self.path("back"))
            with self.subTest(given), self.assertRaisesRegex(UserError, part):
                self.output(*arguments, *given)
        hub = self.path("questions_hub")
        self.output("from_adapterhub", hub, self.bert, self.path("back"), *flags)
        expected = {"max_query_length": 5, "doc_stride": 3, "version_2_with_negative": True}
        self.assertEqual(task_adapter.describe(self.path("back")).training, expected)

    def test_folders_of_another_kind_are_not_replaced(self):
        before = task_adapter.load(self.adapter)
        with self.assertRaisesRegex(UserError, "is no conversion of this kind"):
            self.output("to_adapterhub", self.adapter, self.adapter, "--overwrite")
        with self.assertRaisesRegex(UserError, "DESTINATION_DIR / is no conversion of this kind"):
            self.output("to_huggingface", self.bert, "/")
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.adapter)  # If "/" lost its slash, it would mean this folder.
        with self.assertRaisesRegex(UserError, "^PATH / is of an unknown format"):
            self.output("describe", "/")
        self.assertEqual(task_adapter.load(self.adapter).description, before.description)

    def test_bert_without_vocabulary_is_refused(self):
        os.remove(os.path.join(self.bert, "vocab.txt"))
        with self.assertRaisesRegex(UserError, "BERT_DIR .*there is no vocab.txt"):
            self.output("to_huggingface", self.bert, self.path("theirs"))

    def test_misshapen_or_incomplete_pretraining_head_is_refused(self):
        prefix = os.path.join(self.bert, "bert_model.ckpt")
        tensors = all_tensors(prefix)
        weights = "cls/seq_relationship/output_weights"
        for head, part in (
            ({weights: np.zeros([3, 4], np.float32)}, f"{weights} has the shape"),
            ({"cls/seq_relationship/output_bias": np.zeros(2, np.float32)}, f"lacks {weights}"),
        ):
            checkpoints.write(prefix, {**tensors, **head})
            with self.assertRaisesRegex(UserError, part):
                self.output("to_huggingface", self.bert, self.path("theirs"))

    def test_damaged_bert_is_refused(self):
        data = self.prefix + ".data-00000-of-00001"
        with open(data, "r+b") as writer:
            writer.seek(100)
            writer.write(b"damage")
        for arguments in (
            ("to_huggingface", self.bert, self.path("theirs")),
            ("to_full_checkpoint", self.adapter, self.bert, self.path("full.ckpt")),
        ):
            with self.assertRaisesRegex(UserError, "BERT_DIR .* is damaged"):
                self.output(*arguments)


class DescribeTest(AdapterTestCase):
    def test_task_adapter_is_described(self):
        printed = self.output("describe", self.adapter)
        for part in (
            "Task adapter: MRPC, classification, trained with adapters of size 4",
            "Labels: no, yes",
            "28 tensors, 402 parameters",
            self.made.description.backbone.fingerprint,
            "eval_accuracy 0.7500",
        ):
            self.assertIn(part, printed)

    def test_all_labels_are_listed(self):
        labels = tuple(f"label number {index}" for index in range(300))
        task_adapter.save(self.path("many"), task_adapters.random_adapter(labels=labels))
        self.assertIn(", ".join(labels), self.output("describe", self.path("many")))

    def test_run_folder_is_described_but_not_converted(self):
        run = self.path("run")
        task_adapter.save(os.path.join(run, "adapter"), self.made)
        self.assertEqual(self.output("describe", run), self.output("describe", self.adapter))
        with self.assertRaisesRegex(UserError, f"{run} is not .*there is one in {run}/adapter\\.$"):
            convert_checkpoint.to_adapterhub(run, self.path("new"))

    def test_empty_paths_do_not_mean_the_root(self):
        with self.assertRaisesRegex(UserError, "^PATH  "):
            self.output("describe", "")
        with self.assertRaisesRegex(UserError, "^DESTINATION_DIR is empty"):
            self.output("to_huggingface", self.bert, "")

    def test_adapter_variant_and_its_statistics_are_described(self):
        adapter = modeling.AdapterConfig(4, normalization="batch", depth=2)
        made = self.made._replace(
            description=dataclasses.replace(self.made.description, adapter=adapter)
        )
        shapes = task_adapter.shapes(made.description)
        tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        task_adapter.save(self.adapter, made._replace(tensors=tensors))
        printed = self.output("describe", self.adapter)
        self.assertIn("adapters of size 4 (normalization batch, depth 2), --tuning", printed)
        # 402 as above. Each of 4 adapters adds a hidden layer (4 * 4 + 4), and gamma and beta (8).
        self.assertIn(f", {402 + 4 * 28} parameters", printed)
        full = self.path("full.ckpt")
        self.output("to_full_checkpoint", self.adapter, self.bert, full)
        self.assertIn("Statistics: 32 parameters", self.output("describe", full))

    def test_parameters_of_checkpoints_are_described_by_part(self):
        full = self.path("full.ckpt")
        self.output("to_full_checkpoint", self.adapter, self.bert, full)
        fingerprint = self.made.description.backbone.fingerprint
        plain = self.output("describe", self.bert)
        self.assertIn("Backbone: ", plain)
        self.assertIn(fingerprint, plain)
        printed = self.output("describe", full)
        self.assertIn("Adapters: 304 parameters", printed)
        self.assertIn("Head: 18 parameters", printed)
        self.assertNotIn("Optimizer", printed)

    def test_checkpoint_size_excludes_files_of_other_checkpoints(self):
        first, tenth = self.path("model.ckpt-1"), self.path("model.ckpt-10")
        checkpoints.write(first, {"x": np.zeros(300_000, np.float32)})
        checkpoints.write(tenth, {"x": np.zeros(700_000, np.float32)})
        self.assertIn("Checkpoint: 1 tensors, 1.2 MB", self.output("describe", first))

    def test_tensors_are_counted_by_their_part_of_a_model(self):
        embeddings = np.zeros([5, 4], np.float32)
        tensors = {
            "bert/embeddings/word_embeddings": embeddings,
            "bert/encoder/transformer/group_0/inner_group_0/x": embeddings,  # Of an ALBERT.
            "output_weights": np.zeros([2, 4], np.float32),
            "output_bias": np.zeros(2, np.float32),
            checkpoints.IDENTITY: np.array("0" * 64, "S"),
        }
        checkpoints.write(self.path("odd.ckpt"), tensors)
        described = self.output("describe", self.path("odd.ckpt"))
        for line in ("Others: 20 parameters", "Backbone: 20 parameters", "Head: 10 parameters"):
            self.assertIn(line, described)

    def test_tensors_of_wrong_type_or_rank_are_refused(self):
        tensors = all_tensors(self.prefix)
        path = self.path("odd.ckpt")
        words = np.array([[b"a"]])
        checkpoints.write(path, {**tensors, "bert/embeddings/token_type_embeddings": words})
        with self.assertRaisesRegex(UserError, "expected float32, but bert/emb.* is string"):
            self.output("describe", path)
        scope = "bert/encoder/layer_0/output/adapters/"
        checkpoints.write(path, {**tensors, scope + "weights1": np.float32(1)})
        with self.assertRaisesRegex(UserError, "expected adapters of one size, found none"):
            self.output(
                *("from_adapter_bert", path, self.bert, self.path("taken"), "--task=MRPC"),
                *("--labels=no,yes", "--max_seq_length=16"),
            )

    def test_bert_without_pooler_is_described_as_incomplete(self):
        tensors = all_tensors(self.prefix)
        kept = {name: value for name, value in tensors.items() if "/pooler/" not in name}
        checkpoints.write(self.path("part.ckpt"), kept)
        printed = self.output("describe", self.path("part.ckpt"))
        self.assertIn("Incomplete BERT: lacks 2 tensors, such as bert/pooler/dense/kernel", printed)

    def test_huggingface_bert_keeps_the_casing(self):
        vocabularies = {True: tiny.VOCABULARY, False: [w.title() for w in tiny.VOCABULARY]}
        for lower_cased, vocabulary in vocabularies.items():
            with open(os.path.join(self.bert, "vocab.txt"), "w") as writer:
                writer.writelines(f"{word}\n" for word in vocabulary)
            theirs, back = self.path(f"theirs_{lower_cased}"), self.path(f"back_{lower_cased}")
            self.output("to_huggingface", self.bert, theirs)
            fingerprint = self.made.description.backbone.fingerprint
            self.assertIn(fingerprint, self.output("describe", theirs))
            with open(os.path.join(theirs, "tokenizer_config.json")) as reader:
                self.assertEqual(json.load(reader)["do_lower_case"], lower_cased)
            self.assertIn(
                f"need --do_lower_case={lower_cased}.",
                self.output("from_huggingface", theirs, back),
            )
        self.output("to_huggingface", self.bert, theirs, "--overwrite")
        os.remove(os.path.join(theirs, "tokenizer_config.json"))  # As earlier versions wrote it.
        self.output("to_huggingface", self.bert, theirs, "--overwrite")


class CommandLineTest(ConvertTestCase):
    def run_main(self, *arguments):
        """Returns (exit code, stdout, stderr)."""
        output, complaints = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(complaints):
            code = errors.exit_code(convert_checkpoint.main, list(arguments))
        return code, output.getvalue(), complaints.getvalue()

    def test_from_huggingface_prints_counts_or_an_error(self):
        self.write_source(random_tensors(ENCODER))
        arguments = ("from_huggingface", self.source, self.destination + "/")
        code, output, _ = self.run_main(*arguments)
        self.assertIn(code, (None, 0))
        # (9 + 2 + 8 + 2) * 4, two layers of 4 * (16 + 4) + 2 * 24 + 6 + 4 + 4 * 4, and 16 + 4.
        self.assertEqual(output, f"{self.destination}: wrote 39 tensors, 412 parameters.\n")
        code, output, complaints = self.run_main(*arguments)
        self.assertEqual((code, output), (1, ""))
        self.assertEqual(
            complaints,
            f"Error: DESTINATION_DIR {self.destination} holds a conversion already; use a new "
            "folder, or --overwrite.\n",
        )
        for flags, expected in (([], "gelu_erf"), (["--hidden_act=relu"], "relu")):
            self.assertIn(self.run_main(*arguments, *flags, "--overwrite")[0], (None, 0))
            config = modeling.BertConfig.from_json_file(self.destination + "/bert_config.json")
            self.assertEqual(config.hidden_act, expected)
        with self.assertRaises(SystemExit):
            self.run_main(*arguments, "--hidden_act=mish")

    def test_changes_of_the_model_are_printed(self):
        table = [*ENCODER[:-2], ("classifier.weight", (2, 4), ""), ("classifier.bias", (2,), "")]
        self.write_source(random_tensors(table))
        _, output, _ = self.run_main("from_huggingface", self.source, self.destination)
        self.assertIn("dropped the head of a task, classifier.bias, classifier.weight.", output)
        self.assertIn("started a new pooler", output)
        config = modeling.BertConfig.from_json_file(self.destination + "/bert_config.json")
        prefix = self.destination + "/bert_model.ckpt"
        self.assertIn("bert/pooler/dense/kernel", checkpoints.read_encoder(prefix, config))

    def test_vocabulary_that_does_not_fit_is_refused(self):
        bert = tiny.write_bert(os.path.join(self.folder, "bert"))
        with open(os.path.join(bert, "vocab.txt"), "a") as writer:
            writer.write("\n")
        code, _, complaints = self.run_main("to_huggingface", bert, self.destination)
        self.assertEqual(code, 1)
        self.assertIn("remove its last line, a blank one.", complaints)

    def test_a_command_is_required(self):
        with self.assertRaises(SystemExit) as caught:
            self.run_main()
        self.assertEqual(caught.exception.code, 2)


class DamagedFilesTest(tf.test.TestCase):
    def test_a_damaged_checkpoint_of_adapter_bert_is_converted_or_refused(self):
        bert = tiny.write_bert(os.path.join(self.get_temp_dir(), "bert"))
        prefix = os.path.join(bert, "bert_model.ckpt")
        adapter = own_models.build_task_adapter(bert)

        def write(folder):
            adapter_checkpoints.to_full_checkpoint(
                adapter, prefix, os.path.join(folder, "full.ckpt")
            )

        def read(folder):
            prefix, made = (os.path.join(folder, name) for name in ("full.ckpt", "made"))
            convert_checkpoint.main(["describe", prefix])
            options = ["--task=MRPC", "--labels=0,1", "--max_seq_length=16"]
            convert_checkpoint.main(["from_adapter_bert", prefix, bert, made, *options])

        mutations.check(mutations.written_by(write), read, ("full.ckpt", "--labels"))
