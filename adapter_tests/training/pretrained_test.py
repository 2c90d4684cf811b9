"""Tests of pretrained.py: the BERT that settings select, and its sequence lengths."""

import os
import tempfile
from unittest import mock

import tensorflow.compat.v1 as tf

from adapter_bert.shell.errors import UserError
from adapter_bert.training import pretrained
from adapter_tests.support import command_lines, tiny


class PretrainedTestCase(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tiny.write_bert(tempfile.mkdtemp(dir=tf.test.get_temp_dir()))

    def load(self, *arguments, base=None):
        """Returns (the BERT, its tokenizer) for a command line."""
        config = command_lines.classifier_config(*arguments)
        with mock.patch.dict(os.environ, {"BERT_BASE_DIR": self.folder if base is None else base}):
            return pretrained.load(config)


class LoadTest(PretrainedTestCase):
    def test_bert_is_found_by_flags_or_folder(self):
        file = {name: os.path.join(self.folder, name) for name in os.listdir(self.folder)}
        prefix = os.path.join(self.folder, "bert_model.ckpt")
        by_flags = [
            "--bert_config_file=" + file["bert_config.json"],
            "--vocab_file=" + file["vocab.txt"],
            "--init_checkpoint=" + prefix,
        ]
        for arguments, base in ((by_flags, ""), ([], self.folder)):
            bert, tokenizer = self.load(*arguments, base=base)
            self.assertEqual(bert.config.to_dict(), tiny.config().to_dict())
            self.assertEqual(bert.init_checkpoint, prefix)
            self.assertEqual(list(tokenizer.vocab), tiny.VOCABULARY)
            self.assertEqual(tokenizer.tokenize("The DOG"), ["the", "dog"])
        other = tiny.write_bert(tempfile.mkdtemp(dir=self.get_temp_dir()))
        with self.assertLogs("absl", "WARNING") as logs:
            self.load(by_flags[0], by_flags[2], base=other)
        self.assertRegex("".join(logs.output), f"--vocab_file is not set, and {other}/vocab.txt")

    def test_hub_module_requires_tensorflow(self):
        absent = mock.patch("builtins.__import__", side_effect=ImportError)
        message = "--bert_hub_module_handle=x requires TensorFlow"
        with self.assertRaisesRegex(UserError, message), absent:
            pretrained.read_hub_bert("x")

    def test_tokenizer_keeps_case_without_do_lower_case(self):
        _, tokenizer = self.load("--do_lower_case=false")
        self.assertEqual(tokenizer.tokenize("The dog"), ["[UNK]", "dog"])

    def test_vocabulary_without_special_tokens_is_refused(self):
        vocab_file = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "vocab.txt")
        tokens = [token if token != "[CLS]" else "[cls]" for token in tiny.VOCABULARY]
        with open(vocab_file, "w", encoding="utf-8") as stream:
            stream.write("\n".join(tokens))
        with self.assertRaisesRegex(UserError, rf"{vocab_file} lacks \[CLS\]:"):
            self.load("--vocab_file=" + vocab_file)


class CheckSequenceLengthTest(tf.test.TestCase):
    def test_sequence_length_must_fit_text_and_position_table(self):
        config = tiny.config(max_position_embeddings=40)
        for length in (4, 40):
            pretrained.check_sequence_length(length, config)
        for length, part in ((41, "40 positions"), (3, "at least 4"), (0, "short"), (-1, "short")):
            with self.assertRaisesRegex(UserError, f"--max_seq_length={length} .*{part}"):
                pretrained.check_sequence_length(length, config)
