"""Tests of tfhub.py on hub modules that the tests export themselves."""

import os
import shutil
import urllib.error
from unittest import mock

import tensorflow.compat.v1 as tf

import checkpoints
import modeling
import tfhub
from adapter_tests.checkpoints_test import TINY, CheckpointTestCase, changed
from tfhub import hub


class HubTest(CheckpointTestCase):
    def setUp(self):
        super().setUp()
        self.module = os.path.join(self.folder, "module")
        self.assets = os.path.join(self.module, "assets")

    def export(self, config=TINY, tokenization=None, vocabulary="vocab.txt"):
        """Exports a BERT as Google's hub modules are built; returns its variables by name."""
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
                told = {name: tf.constant(value) for name, value in tokenization.items()}
                hub.add_signature("tokenization_info", outputs={"vocab_file": path, **told})

        return self.export_module(build)

    def export_module(self, build):
        with tf.Graph().as_default(), tf.Session() as session:
            module = hub.Module(hub.create_module_spec(build))
            session.run(tf.global_variables_initializer())
            module.export(self.module, session)
            return session.run(module.variable_map)

    def test_weights_vocabulary_and_config(self):
        exported = self.export(tokenization={"do_lower_case": True})
        found = tfhub.read_bert(self.module)
        self.assertEqual(found.config.to_dict(), TINY.to_dict())
        self.assertEqual(found.vocab_file, os.path.join(self.assets, "vocab.txt"))
        self.assertIs(found.do_lower_case, True)
        reader = checkpoints.open_checkpoint(found.init_checkpoint)
        self.assertEqual(set(exported), set(checkpoints.encoder_shapes(TINY)))
        for name, value in exported.items():
            self.assertAllEqual(reader.get_tensor(name), value)

    def test_a_cased_module(self):
        self.export(tokenization={"do_lower_case": False})
        self.assertIs(tfhub.read_bert(self.module).do_lower_case, False)

    def test_a_module_that_does_not_tell_its_case(self):
        for tokenization in (None, {}):
            self.export(tokenization=tokenization)
            self.assertIsNone(tfhub.read_bert(self.module).do_lower_case)
            shutil.rmtree(self.module)

    def test_the_number_of_heads_follows_from_the_width(self):
        self.export(changed(TINY, hidden_size=128, num_attention_heads=2, num_hidden_layers=11))
        config = tfhub.read_bert(self.module).config
        self.assertEqual((config.num_attention_heads, config.num_hidden_layers), (2, 11))

    def test_a_width_that_tells_no_number_of_heads(self):
        self.export(changed(TINY, hidden_size=96))
        self.assert_refused(["multiple of 64", "is 96"], tfhub.read_bert, self.module)

    def test_a_config_in_the_module_comes_first(self):
        config = changed(TINY, hidden_size=96, num_attention_heads=3, hidden_act="relu")
        self.export(config)
        for place in (self.assets, self.module):
            config_file = os.path.join(place, "bert_config.json")
            with open(config_file, "w") as stream:
                stream.write(config.to_json_string())
            found = tfhub.read_bert(self.module).config
            self.assertEqual(found.to_dict(), config.to_dict())
            with open(config_file, "w") as stream:
                stream.write(changed(config, num_hidden_layers=3).to_json_string())
            self.assert_refused(["lacks 16 of"], tfhub.read_bert, self.module)
            os.remove(config_file)

    def test_the_only_text_among_the_assets_is_the_vocabulary(self):
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

    def test_a_sentencepiece_model_is_no_vocabulary(self):
        self.export(vocabulary="30k-clean.model")
        self.assert_refused(
            ["WordPiece vocabulary", "30k-clean.model"], tfhub.read_bert, self.module
        )

    def test_no_such_module(self):
        self.assert_refused(
            [self.module, "does not exist"],
            tfhub.read_bert,
            self.module,
        )

    def test_no_network(self):
        failure = urllib.error.URLError("Name or service not known")
        with mock.patch.object(hub, "resolve", side_effect=failure):
            self.assert_refused(
                ["https://tfhub.dev/google/bert/1", "Name or service not known"],
                tfhub.read_bert,
                "https://tfhub.dev/google/bert/1",
            )

    def test_a_saved_model_that_is_no_hub_module(self):
        with tf.Graph().as_default(), tf.Session() as session:
            x = tf.placeholder(tf.float32, [1])
            y = x * tf.get_variable("bert/w", initializer=[1.0])
            session.run(tf.global_variables_initializer())
            tf.saved_model.simple_save(session, self.module, {"x": x}, {"y": y})
        self.assert_refused(["hub format", self.module], tfhub.read_bert, self.module)

    def test_a_hub_module_of_something_else(self):
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


if __name__ == "__main__":
    tf.test.main()
