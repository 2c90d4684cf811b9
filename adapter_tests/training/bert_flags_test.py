"""Tests of bert_flags.py: the BERT that flags name, and what texts it takes."""

import os
import tempfile
from unittest import mock

import tensorflow.compat.v1 as tf

import run_classifier
from adapter_bert.common.errors import UserError
from adapter_bert.training import bert_flags
from adapter_tests.support import command_lines, tiny


def parsed(*arguments):
    return command_lines.parsed(run_classifier.define_flags, *arguments)


class PretrainedBertTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tiny.write_bert(tempfile.mkdtemp(dir=tf.test.get_temp_dir()))

    def test_by_flags_and_by_folder(self):
        file = {name: os.path.join(self.folder, name) for name in os.listdir(self.folder)}
        prefix = os.path.join(self.folder, "bert_model.ckpt")
        by_flags = parsed(
            "--bert_config_file=" + file["bert_config.json"],
            "--vocab_file=" + file["vocab.txt"],
            "--init_checkpoint=" + prefix,
        )
        for values, base in ((by_flags, ""), (parsed(), self.folder)):
            with mock.patch.dict(os.environ, {"BERT_BASE_DIR": base}):
                bert, tokenizer = bert_flags.pretrained_bert(values)
            self.assertEqual(bert.config.to_dict(), tiny.config().to_dict())
            self.assertEqual(bert.init_checkpoint, prefix)
            self.assertEqual(list(tokenizer.vocab), tiny.VOCABULARY)
            self.assertEqual(tokenizer.tokenize("The DOG"), ["the", "dog"])

    def test_do_lower_case(self):
        with mock.patch.dict(os.environ, {"BERT_BASE_DIR": self.folder}):
            _, tokenizer = bert_flags.pretrained_bert(parsed("--do_lower_case=false"))
        self.assertEqual(tokenizer.tokenize("The dog"), ["[UNK]", "dog"])

    def test_a_vocabulary_without_special_tokens(self):
        vocab_file = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "vocab.txt")
        tokens = [token if token != "[CLS]" else "[cls]" for token in tiny.VOCABULARY]
        with open(vocab_file, "w", encoding="utf-8") as stream:
            stream.write("\n".join(tokens))
        values = parsed("--vocab_file=" + vocab_file)
        with mock.patch.dict(os.environ, {"BERT_BASE_DIR": self.folder}), self.assertRaisesRegex(
            UserError, rf"{vocab_file} lacks \[CLS\]:"
        ):
            bert_flags.pretrained_bert(values)


class TakeRecordedFlagsTest(tf.test.TestCase):
    def test_a_recorded_address_beside_flags_that_are_given(self):
        folder = tiny.write_bert(tempfile.mkdtemp(dir=self.get_temp_dir()))
        values = parsed("--vocab_file=" + os.path.join(folder, "vocab.txt"))
        recorded = {"bert_hub_module_handle": "https://hub.example/bert/1"}
        bert_flags.take_recorded_flags(values, recorded)
        self.assertIsNone(values.bert_hub_module_handle)
        self.assertEqual(values.vocab_file, os.path.join(folder, "vocab.txt"))


class CheckSequenceLengthTest(tf.test.TestCase):
    def test_room_for_a_text_and_within_the_position_table(self):
        config = tiny.config(max_position_embeddings=40)
        for length in (4, 40):
            values = parsed(f"--max_seq_length={length}")
            bert_flags.check_sequence_length(values, config, shortest=4)
        for length, part in ((41, "40 positions"), (3, "4 or more"), (0, "short"), (-1, "short")):
            with self.assertRaises(UserError) as caught:
                bert_flags.check_sequence_length(
                    parsed(f"--max_seq_length={length}"), config, shortest=4
                )
            self.assertIn(f"--max_seq_length={length} ", str(caught.exception))
            self.assertIn(part, str(caught.exception))


if __name__ == "__main__":
    tf.test.main()
