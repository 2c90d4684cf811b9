"""Tests of tf2.py: compares encoders in TensorFlow 2's formats with their original values."""

import json
import os
import shutil
import unittest
from unittest import mock

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

import modeling
from adapter_bert.files import paths
from adapter_bert.formats import checkpoints
from adapter_bert.formats import tf2 as tf2_bert
from adapter_bert.formats.bert import Bert
from adapter_tests.support import tf2_modules, tiny
from adapter_tests.support.refusals import RefusalTestCase

CONFIG = tiny.config(num_hidden_layers=11)  # Sorting puts layer_10 before layer_2.


def output_of(encoder, features):
    """Returns (sequence output, pooled output) of our model with these weights."""
    prefix = tf2_bert.checkpoint_of(encoder)
    with tf.Graph().as_default(), tf.Session() as session:
        names = ("input_word_ids", "input_mask", "input_type_ids")
        ids, mask, types = (tf.constant(features[name]) for name in names)
        model = modeling.BertModel(
            encoder.config, False, ids, mask, types, scope="bert", adapter_fn=None
        )
        tf.train.init_from_checkpoint(prefix, {v.op.name: v for v in tf.global_variables()})
        session.run(tf.global_variables_initializer())
        return session.run([model.get_sequence_output(), model.get_pooled_output()])


def inputs():
    random = np.random.RandomState(1)
    mask = (np.arange(9) < np.array([9, 6, 2])[:, None]).astype(np.int32)
    return {
        "input_word_ids": random.randint(0, CONFIG.vocab_size, mask.shape).astype(np.int32),
        "input_mask": mask,
        "input_type_ids": random.randint(0, 2, mask.shape).astype(np.int32),
    }


class EncoderTestCase(RefusalTestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.get_temp_dir()
        self.source = os.path.join(self.folder, "source")

    def read(self):
        return tf2_bert.read(self.source, "SOURCE x:")

    def refuse(self, *parts):
        self.assert_refused(["SOURCE x: ", *parts], self.read)

    def assert_holds(self, encoder, values, config=CONFIG):
        """Checks that an encoder has exactly these values, bit for bit."""
        expected = tf2_modules.by_google_name(config, values)
        self.assertEqual(set(encoder.tensors), set(expected))
        for name, value in expected.items():
            self.assertEqual(encoder.tensors[name].shape, value.shape)
            self.assertEqual(encoder.tensors[name].tobytes(), value.tobytes(), name)
        self.assertEqual(encoder.config.to_dict(), config.to_dict())


@unittest.skipIf(tf2_modules.IS_TF1, tf2_modules.WITHOUT)
class FormatsTest(EncoderTestCase):
    def test_saved_model_matches_tensorflow_2(self):
        features = inputs()
        for names in (tf2_modules.TODAY, tf2_modules.FIRST):
            values = tf2_modules.tensors(CONFIG, names)
            tf2_modules.save_encoder(self.source, values)
            with mock.patch.object(tf2.saved_model, "load", side_effect=AssertionError):
                encoder = self.read()  # Runs none of its code.
            self.assert_holds(encoder, values)
            self.assertIs(encoder.do_lower_case, True)
            with open(encoder.vocab_file) as reader:
                self.assertEqual(reader.read().split(), tiny.VOCABULARY)
            loaded = tf2.saved_model.load(self.source)
            expected = loaded({name: tf2.constant(value) for name, value in features.items()})
            sequence, pooled = output_of(encoder, features)
            self.assertAllClose(sequence, expected["sequence_output"].numpy(), 0, 1e-5)
            self.assertAllClose(pooled, expected["pooled_output"].numpy(), 0, 1e-5)
            shutil.rmtree(self.source)

    def test_do_lower_case_is_read_from_the_saved_model(self):
        for expected in (False, None):
            values = tf2_modules.tensors(CONFIG)
            tf2_modules.save_encoder(self.source, values, do_lower_case=expected)
            self.assertIs(self.read().do_lower_case, expected)

    def test_checkpoint_is_read_by_folder_or_prefix(self):
        values = tf2_modules.tensors(CONFIG)
        prefix = tf2_modules.save_checkpoint(self.source, values)
        self.assert_holds(self.read(), values)
        self.assert_holds(tf2_bert.read(prefix, "SOURCE"), values)

    def test_optimizer_slots_are_ignored(self):
        values = tf2_modules.tensors(CONFIG)
        slots = [tf2.Variable(value * 2, name="m/" + name) for (name, _), value in values.items()]
        tf2_modules.save_checkpoint(self.source, values, optimizer=tf2.Module(), slots=slots)
        self.assert_holds(self.read(), values)

    def test_two_unnamed_encoders_are_refused(self):
        values = tf2_modules.tensors(CONFIG)
        tf2_modules.save_checkpoint(self.source, values, other=tf2_modules.Encoder(values))
        self.refuse("expected one BERT encoder")

    def test_two_named_encoders_are_listed_in_the_error(self):
        values = tf2_modules.tensors(CONFIG)
        query, document = (
            {(f"{scope}/{name}", google): value for (name, google), value in values.items()}
            for scope in ("query", "document")
        )
        other = tf2_modules.Encoder(document)
        tf2_modules.save_checkpoint(self.source, query, other=other)
        self.refuse("expected one BERT encoder, but found document and query")

    def test_activation_is_read_from_keras_metadata(self):
        tf2_modules.save_encoder(self.source, tf2_modules.tensors(CONFIG))
        path = os.path.join(self.source, "keras_metadata.pb")
        for recorded, activation in (("Text>gelu", "gelu"), ("relu", "relu")):
            with open(path, "w") as writer:
                json.dump({"inner_activation": recorded, "norm_first": False}, writer)
            self.assertEqual(self.read().config.hidden_act, activation)
        with open(os.path.join(self.source, "bert_config.json"), "w") as writer:
            writer.write(CONFIG.to_json_string())
        for metadata, part in (
            ({"inner_activation": "relu"}, "has the activation relu, but its bert_config.json"),
            ({"inner_activation": "swish"}, "activation swish"),
            ({"norm_first": True}, "norm_first"),
        ):
            with open(path, "w") as writer:
                json.dump(metadata, writer)
            self.refuse(part)
        os.remove(path)
        os.mkdir(path)
        self.refuse("keras_metadata.pb cannot be read")


class WrittenByHandTest(EncoderTestCase):
    """Tests checkpoints with any content, which all versions of TensorFlow can write."""

    def write(self, values, graph=None, config=None):
        """Writes a checkpoint of tensors with these full names."""
        if graph is None:
            graph = trackable_object_graph_pb2.TrackableObjectGraph()
            for name in values:
                node = graph.nodes.add()
                node.attributes.add(
                    name="VARIABLE_VALUE", full_name=name, checkpoint_key="k/" + name
                )
            graph = graph.SerializeToString()
        shutil.rmtree(self.source, ignore_errors=True)
        tf2_modules.write_vocabulary(self.source)
        held = {"k/" + name: value for name, value in values.items()}
        held[checkpoints.OBJECT_GRAPH] = np.array(graph, object)
        checkpoints.write(os.path.join(self.source, "bert_model.ckpt"), held)
        if config:
            with open(os.path.join(self.source, "bert_config.json"), "w") as writer:
                writer.write(config.to_json_string())

    def values(self, config=CONFIG):
        return {name: value for (name, _), value in tf2_modules.tensors(config).items()}

    def test_object_based_checkpoint_is_read(self):
        self.write(self.values())
        self.assert_holds(self.read(), tf2_modules.tensors(CONFIG))

    def test_bert_config_takes_precedence(self):
        config = tiny.config(num_hidden_layers=11, hidden_act="relu", hidden_dropout_prob=0.3)
        self.write(self.values(), config=config)
        self.assertEqual(self.read().config.to_dict(), config.to_dict())
        for wrong, part in (
            ({"num_attention_heads": 4}, "2 attention heads"),
            ({"num_hidden_layers": 2}, "11 layers"),
            ({"num_hidden_layers": 12}, "lacks 16 of"),
        ):
            self.write(self.values(), config=tiny.config(**{"num_hidden_layers": 11, **wrong}))
            self.refuse(part)

    def test_other_architectures_are_refused(self):
        values = self.values()
        query = "transformer/layer_3/self_attention/query/kernel"
        for changes, parts in (
            ({query: None}, ["lacks 1 of", "layer_3/attention/self/query/kernel"]),
            ({query: values[query].transpose(1, 0, 2)}, ["shape"]),
            ({query: values[query].astype(np.float64)}, ["float32", "float64"]),
            ({"word_embeddings/embeddings": None}, ["there is no word_embeddings/embeddings"]),
            ({"word_embeddings/embeddings": np.zeros([], np.float32)}, ["rank 2"]),
            ({"position_embedding/embeddings": None}, ["position_embeddings"]),
            ({"embedding_projection/kernel": np.ones([4, 8], np.float32)}, ["ALBERT"]),
        ):
            changed = {**values, **changes}
            self.write({name: value for name, value in changed.items() if value is not None})
            self.refuse(*parts)
        self.write({"dense/kernel": np.ones([2, 2], np.float32)})
        self.refuse("BERT encoder", "dense/kernel")

    def test_zero_attention_heads_are_refused(self):
        values = self.values()
        for name in values:
            if name.startswith("transformer/layer_0/self_attention/query"):
                shape = [8, 0, 2] if name.endswith("kernel") else [0, 2]
                values[name] = np.zeros(shape, np.float32)
        self.write(values)
        self.refuse("has 0 heads")

    def test_damaged_object_graphs_are_refused(self):
        for graph in (b"", b"\xff\xff\xff\xff", os.urandom(1000)):
            self.write(self.values(), graph)
            self.refuse()

    def test_missing_and_empty_sources_are_refused(self):
        self.refuse("is not the prefix of a TensorFlow checkpoint")
        os.makedirs(self.source)
        self.refuse("expected a SavedModel or a folder with one checkpoint", "neither")

    def test_name_based_checkpoint_is_refused(self):
        tiny.write_bert(self.source)
        self.refuse("object-based")

    def test_init_checkpoint_in_tf2_format_is_refused(self):
        self.write(self.values())
        prefix = os.path.join(self.source, "bert_model.ckpt")
        self.assert_refused(["from_tf2"], checkpoints.check_encoder, prefix, CONFIG)


class CheckpointTest(EncoderTestCase):
    def encoder(self, seed):
        values = tf2_modules.tensors(CONFIG, seed=seed)
        actual = tf2_modules.by_google_name(CONFIG, values)
        return Bert(CONFIG, actual, "vocab.txt", None)

    def test_checkpoint_is_written_once_per_content(self):
        cache = os.path.join(self.folder, "cache")
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": cache}):
            first = tf2_bert.checkpoint_of(self.encoder(0))
            written = os.stat(first + ".index").st_mtime_ns
            self.assertEqual(tf2_bert.checkpoint_of(self.encoder(0)), first)
            self.assertEqual(os.stat(first + ".index").st_mtime_ns, written)
            other = tf2_bert.checkpoint_of(self.encoder(1))
            self.assertNotEqual(other, first)
            self.assertLen(os.listdir(paths.cache_folder("bert")), 2)
            self.assertEqual(os.stat(paths.cache_folder("bert")).st_mode & 0o777, 0o700)
            for folder in (paths.cache_folder("bert"), os.path.dirname(first)):
                os.chmod(folder, 0o775)  # As earlier versions made it under umask 002.
                self.assertEqual(tf2_bert.checkpoint_of(self.encoder(0)), first)
                self.assertEqual(os.stat(folder).st_mode & 0o777, 0o700)
            with mock.patch.object(os, "geteuid", return_value=os.geteuid() + 1):
                self.assert_refused(["another user"], tf2_bert.checkpoint_of, self.encoder(0))
        reader = checkpoints.open_checkpoint(other)
        for name, value in self.encoder(1).tensors.items():
            self.assertAllEqual(reader.get_tensor(name), value)

    def test_unwritable_cache_is_refused(self):
        path = os.path.join(self.folder, "file")
        with open(path, "w"), mock.patch.dict(os.environ, {"XDG_CACHE_HOME": path}):
            self.assert_refused(["cannot be written"], tf2_bert.checkpoint_of, self.encoder(0))
