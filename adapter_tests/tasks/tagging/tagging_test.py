"""Tests of tagging.py: the head against NumPy, words in texts, and requests and answers."""

import dataclasses
import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

import run_tagger
import tokenization
from adapter_bert.serving.inference import request_texts
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.tagging import tagging
from adapter_bert.tasks.tagging.tagging import KIND
from adapter_tests.support import own_models, tiny
from adapter_tests.support.head_case import fixed_encoder

LABELS = ("O", "B-ANIMAL", "I-ANIMAL", "B-PER", "I-PER")


def head(sequence, labels, num_labels, is_training=False):
    """Returns what run_tagger.py's model computes on a fixed sequence output."""
    config = tiny.config(hidden_size=sequence.shape[-1], num_attention_heads=1)
    with fixed_encoder(sequence):
        return run_tagger.create_model(config, is_training, *[None] * 3, labels, num_labels, False)


class HeadTest(tf.test.TestCase):
    def test_head_matches_numpy(self):
        random = np.random.RandomState(0)
        sequence, weights = random.normal(size=[2, 5, 4]), random.normal(size=[3, 4])
        bias = np.array([0.5, -0.25, 0.1])
        labels = np.array([[0, 2, 0, 4, 1], [0, 3, 1, 0, 0]])
        with tf.Graph().as_default(), tf.Session() as session:
            loss, row_losses, _, tag_ids = head(sequence, tf.constant(labels, tf.int32), 3)
            session.run(tf.global_variables_initializer())
            for variable, value in zip(tf.trainable_variables(), (weights, bias)):
                variable.load(value, session)
            names = [variable.op.name for variable in tf.trainable_variables()]
            loss, row_losses, tag_ids = session.run((loss, row_losses, tag_ids))
        self.assertEqual(names, ["cls/tagging/output_weights", "cls/tagging/output_bias"])
        logits = sequence @ weights.T + bias
        log_odds = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        losses = [-(log_odds[0, 1, 0] + log_odds[0, 3, 2]), -log_odds[1, 1, 1]]
        self.assertAllClose(row_losses, losses, rtol=1e-5)
        self.assertAllClose(loss, sum(losses) / 3, rtol=1e-5)
        self.assertAllEqual(tag_ids, logits.argmax(-1))
        self.assertAllEqual(KIND.decode(logits[0])["tag_ids"], tag_ids[0])
        expected = {names[0]: (3, 4), names[1]: (3,)}
        self.assertEqual(KIND.head_shapes(3, 4), expected)

    def test_loss_is_zero_without_tags_and_random_in_training(self):
        sequence = np.ones([2, 3, 1000])
        with tf.Graph().as_default(), tf.Session() as session:
            loss, *_ = head(sequence, tf.ones([2, 3], tf.int32), 2)
            session.run(tf.global_variables_initializer())
            self.assertEqual(session.run(loss), 0.0)
        losses = []
        for is_training in (True, False):
            with tf.Graph().as_default(), tf.Session() as session:
                loss, *_ = head(sequence, 2 + tf.zeros([2, 3], tf.int32), 2, is_training)
                session.run(tf.global_variables_initializer())
                losses.append([session.run(loss) for _ in range(2)])
        self.assertNotEqual(*losses[0])
        self.assertEqual(*losses[1])


class WordsTest(tf.test.TestCase):
    def test_split_text_separates_words_and_punctuation(self):
        for text, words in (
            ("EU rejects German call.", ["EU", "rejects", "German", "call", "."]),
            ('He said: "U.S. (1985)"', ["He", "said", ":", '"', "U.S", ".", "(", "1985", ")", '"']),
            ("state-of-the-art 1.5% A/B", ["state-of-the-art", "1.5", "%", "A/B"]),
            ("a,b , c ... ", ["a,b", ",", "c", ".", ".", "."]),
            ("\u5317\u4eac Paris", ["\u5317", "\u4eac", "Paris"]),
            ("\u5317\u4eac,\u4e0a\u6d77", ["\u5317", "\u4eac", ",", "\u4e0a", "\u6d77"]),
            ("a.\u5317.b.c", ["a", ".", "\u5317", ".", "b.c"]),
            ("caf\u00e9 \u00a0\u0130x\u00adz\n", ["caf\u00e9", "\u0130x\u00adz"]),
            ("a \u00ad b", ["a", "b"]),
            (" \n", []),
            ("", []),
        ):
            found = tagging.split_text(text)
            self.assertEqual([word.text for word in found], words)
            self.assertEqual([text[word.start : word.end] for word in found], words)
        rng = np.random.RandomState(0)
        for _ in range(300):
            text = "".join(rng.choice(list("ab.-'\u5317 \t\u00e9\u00ad"), 12))
            found = tagging.split_text(text)
            kept = "".join(word.text for word in found)
            wanted = "".join(tokenization.BasicTokenizer(False).tokenize(text))
            self.assertEqual(kept.replace("\u00ad", ""), wanted)

    def test_tags_are_joined_into_entities(self):
        words = tagging.join_words(["New", "York", "saw", "Ann"])
        answer = tagging.tagged(
            "New York saw Ann", words, ["I-PER", "I-PER", "O", "B-ANIMAL"], True
        )
        self.assertEqual(
            answer,
            {
                "tokens": ["New", "York", "saw", "Ann"],
                "tags": ["B-PER", "I-PER", "O", "B-ANIMAL"],
                "entities": [
                    {"text": "New York", "label": "PER", "start": 0, "end": 8},
                    {"text": "Ann", "label": "ANIMAL", "start": 13, "end": 16},
                ],
            },
        )
        answer = tagging.tagged("a b", tagging.join_words(["a", "b"]), ["X", "Y"], False)
        self.assertEqual(answer, {"tokens": ["a", "b"], "tags": ["X", "Y"]})


class ServedTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        root = tempfile.mkdtemp(dir=tf.test.get_temp_dir())
        bert = tiny.write_bert(os.path.join(root, "bert"))
        adapter = own_models.build_task_adapter(
            bert, kind="tagging", labels=LABELS, max_seq_length=10
        )
        vocab_file = os.path.join(bert, "vocab.txt")
        tokenizers = request_texts.Tokenizers(vocab_file)
        encoding = request_texts.TextEncoding(tiny.config(), tokenizers, 200)
        cls.description, cls.encoding = adapter.description, encoding
        cls.texts = request_texts.TaskTexts(adapter.description, encoding, "Task mine")
        cls.tokenizer = tokenization.FullTokenizer(vocab_file)

    def ids(self, text):
        return self.tokenizer.convert_tokens_to_ids(text.split())

    def test_requests_are_encoded_and_answers_decoded(self):
        text = "The dogs, and a cat."
        request = self.texts.encode(text)
        ((ids, segments),) = request.rows
        self.assertEqual(ids, self.ids("[CLS] the dog ##s [UNK] and a cat . [SEP]"))
        self.assertEqual(segments, [0] * 10)
        tag_ids = np.array([4, 0, 1, 4, 2, 0, 0, 3, 0, 4])
        expected = {
            "tokens": ["The", "dogs", ",", "and", "a", "cat", "."],
            "tags": ["O", "B-ANIMAL", "I-ANIMAL", "O", "O", "B-PER", "O"],
            "entities": [
                {"text": "dogs,", "label": "ANIMAL", "start": 4, "end": 9},
                {"text": "cat", "label": "PER", "start": 16, "end": 19},
            ],
        }
        self.assertEqual(request.decode([{"tag_ids": tag_ids}]), expected)
        request = self.texts.encode({"tokens": expected["tokens"]})
        self.assertEqual(request.rows, [(ids, segments)])
        answer = request.decode([{"tag_ids": tag_ids}])
        self.assertEqual(answer["entities"][0]["text"], "dogs ,")
        by_ids = self.texts.encode({"input_ids": ids})
        tags = [LABELS[index] for index in tag_ids]
        self.assertEqual(by_ids.decode([{"tag_ids": tag_ids}]), {"tags": tags})
        for instance in (" ", {"text": ""}, {"tokens": []}):
            with self.assertRaisesRegex(UserError, "no words"):
                self.texts.encode(instance)
        with self.assertRaisesRegex(UserError, "expected text or tokens"):
            self.texts.encode({"text": "a", "tokens": ["a"]})

    def test_entities_depend_on_labels_and_recorded_scheme(self):
        none = {"answers": {"tag_scheme": "none"}}
        for labels, training, expected in (
            (("O", "B", "I"), {}, ["", ""]),
            (("B", "I", "O"), {}, ["", ""]),
            (("O", "B-X", "I-X"), {}, ["X", "X"]),
            (("O", "B-X", "I-X"), none, None),
            (("O", "B_X", "I_X"), {}, None),
        ):
            about = dataclasses.replace(self.description, labels=labels, training=training)
            request = request_texts.TaskTexts(about, self.encoding, "Task mine").encode("a dog cat")
            begin, inside = ([label[0] for label in labels].index(letter) for letter in "BI")
            tag_ids = np.array([0, begin, inside, begin, 0])
            answer = request.decode([{"tag_ids": tag_ids}])
            entities = [entity["label"] for entity in answer.get("entities", [])]
            self.assertEqual(entities if "entities" in answer else None, expected)
        about = dataclasses.replace(self.description, training={"answers": {"tag_scheme": 3}})
        with self.assertRaisesRegex(UserError, "training.answers.tag_scheme is 3"):
            request_texts.TaskTexts(about, self.encoding, "Task mine")

    def test_windows_of_long_text_are_merged(self):
        words = ["dog", "cat", "bird", "man"] * 8
        request = self.texts.encode({"tokens": words})
        self.assertGreater(len(request.rows), 3)
        # The prediction at a position belongs to its word.
        labels = dict(zip(self.ids("dog cat bird man"), range(1, 5)))
        outputs = [
            {"tag_ids": np.array([labels.get(index, 0) for index in ids])}
            for ids, _ in request.rows
        ]
        answer = request.decode(outputs)
        self.assertEqual(answer["tokens"], words)
        raw = ["B-ANIMAL", "I-ANIMAL", "B-PER", "I-PER"] * 8
        self.assertEqual(answer["tags"], raw)

    def test_exported_tags_are_the_best_labels_of_each_row(self):
        logits = np.random.RandomState(0).normal(size=[2, 3, 6])
        labels = [[b"a", b"b", b"c", b"d"], [b"x", b"y", b"", b""]]
        is_label = [[True] * 4, [True, True, False, False]]
        with tf.Graph().as_default(), tf.Session() as session:
            outputs = KIND.export(
                tf.constant(logits, tf.float32), tf.constant(labels), tf.constant(is_label)
            )
            self.assertEqual(outputs["tags"].shape.as_list(), [2, 3])
            found = session.run(outputs)["tags"]
        expected = [
            [labels[row][np.argmax(logits[row, i, : 4 if row == 0 else 2])] for i in range(3)]
            for row in range(2)
        ]
        self.assertAllEqual(found, expected)
