"""Tests of huggingface.py: reads and writes tiny BERTs, and checks each tensor by a name table."""

import json
import os

import numpy as np
import safetensors
import safetensors.numpy
import tensorflow.compat.v1 as tf

import convert_checkpoint
from adapter_bert.formats import huggingface
from adapter_tests.support import mutations, tiny
from adapter_tests.support.huggingface import (
    CONFIG,
    ENCODER,
    POOLER,
    as_google,
    random_tensors,
    write_source,
)
from adapter_tests.support.refusals import RefusalTestCase

PREDICTIONS = [
    (
        "cls.predictions.transform.dense.weight",
        (4, 4),
        "cls/predictions/transform/dense/kernel",
    ),
    ("cls.predictions.transform.dense.bias", (4,), "cls/predictions/transform/dense/bias"),
    (
        "cls.predictions.transform.LayerNorm.weight",
        (4,),
        "cls/predictions/transform/LayerNorm/gamma",
    ),
    ("cls.predictions.transform.LayerNorm.bias", (4,), "cls/predictions/transform/LayerNorm/beta"),
    ("cls.predictions.bias", (9,), "cls/predictions/output_bias"),
]
SEQ_RELATIONSHIP = [
    ("cls.seq_relationship.weight", (2, 4), "cls/seq_relationship/output_weights"),
    ("cls.seq_relationship.bias", (2,), "cls/seq_relationship/output_bias"),
]


class HuggingFaceTestCase(RefusalTestCase):
    def setUp(self):
        super().setUp()
        self.source = self.get_temp_dir()

    def write_source(self, tensors, **config):
        write_source(self.source, tensors, **config)

    def read(self):
        """Returns the tensors by Google's names."""
        return huggingface.read(self.source, "SOURCE_DIR").tensors

    def config(self):
        return huggingface.read(self.source, "SOURCE_DIR").config

    def assert_equal_tensors(self, actual, expected):
        self.assertEqual(set(actual), set(expected))
        for name, value in expected.items():
            self.assertEqual(actual[name].dtype, np.float32)
            np.testing.assert_array_equal(actual[name], value, err_msg=name)

    def assert_refused(self, *parts):
        super().assert_refused(parts, self.read)


class TensorsTest(HuggingFaceTestCase):
    def test_all_encoder_tensors_are_read(self):
        tensors = random_tensors(ENCODER)
        self.write_source(tensors)
        self.assert_equal_tensors(self.read(), as_google(ENCODER, tensors))

    def test_tensor_names_of_first_releases_are_read(self):
        table = ENCODER + PREDICTIONS + SEQ_RELATIONSHIP
        tensors = random_tensors(table)
        spelt = {}
        for name, value in tensors.items():
            name = name if name.startswith("cls.") else "bert." + name
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            spelt[name.replace("LayerNorm.bias", "LayerNorm.beta")] = value
        self.write_source(spelt)
        self.assert_equal_tensors(self.read(), as_google(table, tensors))

    def test_buffers_are_ignored(self):
        tensors = random_tensors(ENCODER)
        for prefix in ("", "bert."):
            buffers = {
                prefix + "embeddings.position_ids": np.arange(8)[np.newaxis],
                prefix + "embeddings.token_type_ids": np.zeros([1, 8], np.int64),
            }
            self.write_source(dict(tensors, **buffers))
            self.assert_equal_tensors(self.read(), as_google(ENCODER, tensors))

    def test_model_with_only_one_head_is_read(self):
        table = ENCODER + PREDICTIONS
        tensors = random_tensors(table)
        self.write_source(tensors)
        self.assert_equal_tensors(self.read(), as_google(table, tensors))

    def test_incomplete_head_is_refused(self):
        tensors = random_tensors(ENCODER + SEQ_RELATIONSHIP)
        del tensors["cls.seq_relationship.bias"]
        self.write_source(tensors)
        self.assert_refused("model.safetensors", "1 tensors", "missing (cls.seq_relationship.bias)")

    def test_duplicate_tensors_are_ignored_and_must_be_equal(self):
        table = ENCODER + PREDICTIONS
        tensors = random_tensors(table)
        tied = {
            "cls.predictions.decoder.weight": tensors["embeddings.word_embeddings.weight"].copy(),
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].copy(),
        }
        self.write_source(dict(tensors, **tied))
        self.assert_equal_tensors(self.read(), as_google(table, tensors))
        for name in tied:
            self.write_source(dict(tensors, **{name: tied[name] + 1}))
            self.assert_refused("model.safetensors", name, "must equal")

    def test_unexpected_tensors_are_listed(self):
        table = ENCODER + [("decoder.weight", (2, 4), ""), ("cls.weight", (2,), "")]
        self.write_source(random_tensors(table))
        self.assert_refused(
            "model.safetensors", "do not belong to BERT (cls.weight, decoder.weight)"
        )

    def test_missing_tensors_are_listed(self):
        self.write_source(random_tensors(ENCODER[:-4] + POOLER))
        self.assert_refused("2 tensors", "1.output.LayerNorm.bias, encoder.layer.1.output.Layer")
        self.write_source(random_tensors(ENCODER[:-1]))  # Half of a pooler is no new one.
        self.assert_refused("1 tensors", "missing (pooler.dense.bias)")

    def test_heads_of_tasks_are_dropped_and_missing_poolers_are_started(self):
        encoder = ENCODER[: -len(POOLER)]
        classifier = [("classifier.weight", (3, 4), ""), ("classifier.bias", (3,), "")]
        questions = [("qa_outputs.weight", (2, 4), ""), ("qa_outputs.bias", (2,), "")]
        poolers = []
        for table, head, notes in (
            (ENCODER, classifier, ["classifier.bias, classifier.weight"]),
            (encoder, classifier, ["classifier.bias, classifier.weight", "new pooler"]),
            (encoder, questions, ["qa_outputs.bias, qa_outputs.weight", "new pooler"]),
            (encoder + PREDICTIONS, [], ["new pooler"]),
            (ENCODER, [], []),
        ):
            tensors = random_tensors(table + head)
            self.write_source(tensors)
            bert = huggingface.read(self.source, "SOURCE_DIR")
            self.assertLen(bert.notes, len(notes))
            for part, note in zip(notes, bert.notes):
                self.assertIn(part, note)
            read = dict(bert.tensors)
            if "new pooler" in notes:
                poolers.append(
                    [read.pop(f"bert/pooler/dense/{part}") for part in ("kernel", "bias")]
                )
            self.assert_equal_tensors(read, as_google(table, tensors))
        for kernel, bias in poolers:
            np.testing.assert_array_equal(kernel, poolers[0][0])  # Equal in each conversion.
            self.assertEqual((kernel.dtype, kernel.shape), (np.float32, (4, 4)))
            self.assertBetween(np.abs(kernel).max(), 0.03, 0.1)  # initializer_range is 0.05.
            np.testing.assert_array_equal(bias, np.zeros(4, np.float32))

    def test_weights_in_several_files_are_read(self):
        tensors = random_tensors(ENCODER)
        names = sorted(tensors)
        self.write_source({name: tensors[name] for name in names[:20]})
        parts = [f"model-0000{index}-of-00002.safetensors" for index in (1, 2)]
        os.rename(self.path("model.safetensors"), self.path(parts[0]))
        last = {name: tensors[name] for name in names[20:]}
        safetensors.numpy.save_file(last, self.path(parts[1]))
        weight_map = {name: parts[name in last] for name in names}
        self.write_index(weight_map)
        self.assert_equal_tensors(self.read(), as_google(ENCODER, tensors))
        first = names[0]
        for weight_map, *expected in (
            ({first: "../model.safetensors"}, "index.json is no index", "'../model.safetensors'"),
            ({first: "/etc/hostname"}, "index.json is no index", "/etc/hostname"),
            ({first: "config.json"}, "index.json is no index", "config.json"),
            ([first], "index.json is no index"),
            ({}, "index.json is no index", "empty"),
            ({first: 3}, "index.json is no index"),
            ({first: "none.safetensors"}, "none.safetensors", "cannot be read"),
            ({first: parts[0]}, "index.json", "17 tensors that", "missing"),
        ):
            self.write_index(weight_map)
            self.assert_refused(*expected)

    def path(self, name):
        return os.path.join(self.source, name)

    def write_index(self, weight_map):
        with open(self.path("model.safetensors.index.json"), "w") as writer:
            json.dump({"metadata": {"total_size": 0}, "weight_map": weight_map}, writer)

    def test_tensor_under_two_names_is_refused(self):
        tensors = random_tensors(ENCODER)
        tensors["bert.pooler.dense.bias"] = tensors["pooler.dense.bias"] + 1
        self.write_source(tensors)
        self.assert_refused("pooler.dense.bias twice")

    def test_wrong_shape_is_refused(self):
        self.write_source(random_tensors(ENCODER), intermediate_size=7)
        self.assert_refused(
            "encoder.layer.0.intermediate.dense.weight has the shape [6, 4]", "[4, 7]"
        )


class ConfigTest(HuggingFaceTestCase):
    def test_config_has_fields_of_google_bert(self):
        self.write_source(random_tensors(ENCODER))
        self.assertEqual(
            self.config().to_dict(),
            {
                "attention_probs_dropout_prob": 0.2,
                "hidden_act": "gelu_erf",
                "hidden_dropout_prob": 0.3,
                "hidden_size": 4,
                "initializer_range": 0.05,
                "intermediate_size": 6,
                "max_position_embeddings": 8,
                "num_attention_heads": 2,
                "num_hidden_layers": 2,
                "type_vocab_size": 2,
                "vocab_size": 9,
            },
        )

    def test_activations_are_translated_or_refused(self):
        tensors = random_tensors(ENCODER)
        for theirs, ours in (
            ("gelu", "gelu_erf"),
            ("gelu_python", "gelu_erf"),
            *((name, "gelu") for name in ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")),
            ("relu", "relu"),
        ):
            self.write_source(tensors, hidden_act=theirs)
            self.assertEqual(self.config().hidden_act, ours)
        self.write_source(tensors, hidden_act="swish")
        self.assert_refused("config.json", "gelu, gelu_python, gelu_new,", "'swish'")

    def test_configs_unsupported_by_google_bert_are_refused(self):
        tensors = random_tensors(ENCODER)
        for field, value in (
            ("position_embedding_type", "relative_key"),
            ("is_decoder", True),
            ("layer_norm_eps", 1e-5),
            ("embedding_size", 2),
        ):
            self.write_source(tensors, **{field: value})
            os.remove(os.path.join(self.source, "vocab.txt"))  # The model is checked first.
            self.assert_refused("config.json", field, "must be", repr(value))
        self.write_source(tensors, model_type="roberta")
        self.assert_refused("config.json: its model_type is roberta, another architecture than")

    def test_invalid_configs_are_refused(self):
        self.write_source(random_tensors(ENCODER))
        for name, value in (
            ("hidden_size", [4]),
            ("num_hidden_layers", 0),
            ("hidden_dropout_prob", "0.1"),
            ("hidden_act", ["gelu"]),
        ):
            with open(os.path.join(self.source, "config.json"), "w") as stream:
                json.dump({**CONFIG, name: value}, stream)
            self.assert_refused("config.json", name)
        with open(os.path.join(self.source, "config.json"), "w") as stream:
            json.dump({key: CONFIG[key] for key in CONFIG if key != "vocab_size"}, stream)
        self.assert_refused("config.json", "lacks vocab_size")
        os.remove(os.path.join(self.source, "config.json"))
        os.mkdir(os.path.join(self.source, "config.json"))
        self.assert_refused("config.json", "cannot be read")


class FilesTest(HuggingFaceTestCase):
    def test_missing_files_are_named(self):
        self.assert_refused("config.json", "model.safetensors", "vocab.txt", "no file")
        self.write_source(random_tensors(ENCODER))
        os.remove(os.path.join(self.source, "vocab.txt"))
        self.assert_refused("no file " + os.path.join(self.source, "vocab.txt"))

    def test_tokenizer_fields_are_read_or_refused(self):
        self.write_source(random_tensors(ENCODER))
        path = os.path.join(self.source, "tokenizer_config.json")
        for fields, expected in (
            ({}, None),
            ({"do_lower_case": True, "strip_accents": None}, True),
            ({"do_lower_case": False, "tokenizer_class": "BertTokenizer"}, False),
            ({"do_basic_tokenize": True, "tokenize_chinese_chars": True}, None),
            ({"strip_accents": True}, None),  # The tokenizer lower-cases by default.
        ):
            with open(path, "w") as writer:
                json.dump(fields, writer)
            self.assertIs(huggingface.read(self.source, "SOURCE_DIR").do_lower_case, expected)
        for fields, part in (
            ({"tokenizer_class": "BertJapaneseTokenizer"}, "BertJapaneseTokenizer is not"),
            ({"do_lower_case": True, "strip_accents": False}, "strip_accents is False"),
            ({"do_basic_tokenize": False}, "do_basic_tokenize is false"),
            ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars is false"),
        ):
            with open(path, "w") as writer:
                json.dump(fields, writer)
            self.assert_refused("tokenizer_config.json", part)


class WriteTest(HuggingFaceTestCase):
    def write(self, table):
        tensors = as_google(table, random_tensors(table))
        self.write_source(random_tensors(ENCODER))
        huggingface.write_model(self.source, self.config(), tensors)
        return tensors

    def test_written_model_is_read_back_equal(self):
        for table in (ENCODER, ENCODER + PREDICTIONS + SEQ_RELATIONSHIP, ENCODER + PREDICTIONS):
            tensors = self.write(table)
            self.assert_equal_tensors(self.read(), tensors)

    def test_plain_encoder_is_written_as_bert_model(self):
        self.write(ENCODER)
        actual = safetensors.numpy.load_file(os.path.join(self.source, "model.safetensors"))
        self.assert_equal_tensors(actual, random_tensors(ENCODER))
        with open(os.path.join(self.source, "config.json")) as stream:
            written = json.load(stream)
        self.assertEqual(written["hidden_act"], "gelu")
        self.assertEqual(written["architectures"], ["BertModel"])
        self.assertEqual(written["model_type"], "bert")
        self.assertEqual(written["hidden_dropout_prob"], 0.3)

    def test_activations_are_written_by_huggingfaces_names(self):
        for ours, theirs in (("gelu", "gelu_new"), ("gelu_erf", "gelu"), ("relu", "relu")):
            self.assertEqual(huggingface.activation_name(ours), theirs)

    def test_pretraining_model_is_written_with_bert_prefix(self):
        table = ENCODER + PREDICTIONS + SEQ_RELATIONSHIP
        self.write(table)
        path = os.path.join(self.source, "model.safetensors")
        expected = {
            name if name.startswith("cls.") else "bert." + name: value
            for name, value in random_tensors(table).items()
        }
        self.assert_equal_tensors(safetensors.numpy.load_file(path), expected)
        with safetensors.safe_open(path, "np") as opened:
            self.assertEqual(opened.metadata(), {"format": "pt"})


class DamagedFilesTest(tf.test.TestCase):
    def test_a_damaged_bert_is_converted_or_rejected(self):
        bert = tiny.write_bert(os.path.join(self.get_temp_dir(), "bert"))
        contents = mutations.written_by(
            lambda folder: convert_checkpoint.main(["to_huggingface", bert, folder])
        )

        def read(folder):
            convert_checkpoint.main(["from_huggingface", folder, os.path.join(folder, "made")])

        mutations.check(contents, read, huggingface.FILES)
        error = mutations.refusal({**contents, "vocab.txt": mutations.FOLDER}, read)
        mutations.assert_one_sentence(error, ["vocab.txt cannot be read"])
