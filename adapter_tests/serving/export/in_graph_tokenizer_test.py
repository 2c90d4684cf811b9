"""Tests of in_graph_tokenizer.py: compares its ids with those of the project's tokenizer."""

import os
import re
import subprocess
import sys
import tempfile
from unittest import mock

import hypothesis
import hypothesis.strategies as st
import numpy as np
import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert.serving.export import in_graph_tokenizer
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import classifier_features
from adapter_tests.support import file_cases, tiny
from adapter_tests.support.script_cases import FOLDER

_LETTERS = "abcdefgnotT .,'-\t\n\u00a0\u00e9\u00c9\u2026\u200b\ufffd\u72d7\u0130\ufb01\u0301$+"


class Numbers:
    """A tokenizer of texts that consist of ids."""

    def tokenize(self, text):
        return text.split()

    def convert_tokens_to_ids(self, tokens):
        return [{"[CLS]": 1, "[SEP]": 2}.get(token) or int(token) for token in tokens]


class PackedTest(tf.test.TestCase):
    def test_packed_rows_equal_rows_of_scripts(self):
        lengths = [(a, b, most) for a in range(5) for b in range(5) for most in range(4, 10)]
        firsts, seconds = (
            [list(range(start, start + length)) for length in some]
            for start, some in zip((10, 20), list(zip(*lengths))[:2])
        )
        with tf.Graph().as_default(), self.session() as session:
            segments = [tf.ragged.constant(some, tf.int32) for some in (firsts, seconds)]
            most = tf.constant([most for _, _, most in lengths])
            found = np.stack(session.run(in_graph_tokenizer.pack(segments, most, 1, 2)), 1)
        texts = [[" ".join(map(str, ids)) for ids in some] for some in (firsts, seconds)]
        for row, first, second, (_, _, most) in zip(found, *texts, lengths):
            example = classifier_features.InputExample("", first, second, "0")
            made = classifier_features.convert_single_example(9, example, ["0"], most, Numbers())
            for ids, expected in zip(row, (made.input_ids, made.input_mask, made.segment_ids)):
                self.assertAllEqual(ids, np.pad(expected, (0, len(ids) - most)), (first, second))


class LowerTest(tf.test.TestCase):
    def test_lower_casing_does_not_depend_on_locale(self):
        """In a Turkish locale, TensorFlow's own function converts I to an i without a dot."""
        texts = ["TITLE", "\u0130I", "I\u0307", "\u00c9"]
        program = (
            "import tensorflow.compat.v1 as tf\n"
            "from adapter_bert.serving.export import in_graph_tokenizer\n"
            "with tf.Graph().as_default(), tf.Session() as session:\n"
            f"    print(ascii(session.run(in_graph_tokenizer.lower({texts!a})).tolist()))"
        )
        found = subprocess.check_output(
            [sys.executable, "-c", program],
            cwd=FOLDER,
            env={**os.environ, "LC_ALL": "tr_TR.UTF-8", "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        expected = [text.lower().encode() for text in texts]
        self.assertEqual(found.decode().strip(), ascii(expected))


class EncoderTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if in_graph_tokenizer.tensorflow_text is None:
            raise cls.skipTest(cls, "tensorflow-text is not installed.")
        cls.vocab_file = os.path.join(tempfile.mkdtemp(dir=tf.test.get_temp_dir()), "vocab.txt")
        letters = "abcdefghijklmnopqrstuvwxyzTN"
        pieces = [
            *tiny.VOCABULARY,
            *letters,
            *("##" + letter for letter in letters),
            "\u2026",
            ",",
            "\u0e01",
            "##\u0e01",
            "\U00010330",
        ]
        pieces.append("##\U00010330")
        with open(cls.vocab_file, "w", encoding="utf-8") as writer:
            writer.write("\n".join(dict.fromkeys([*pieces, "'", "-", "$", "+", "\u72d7"])) + "\n")
        cls.graphs = {lower_case: cls.graph(lower_case) for lower_case in (True, False)}

    @classmethod
    def graph(cls, lower_case):
        """Returns (tokenizer, function of (first texts, second texts) that returns rows of ids)."""
        tokenizer = tokenization.FullTokenizer(cls.vocab_file, lower_case)
        encode = in_graph_tokenizer.make_encoder(tokenizer)
        with tf.Graph().as_default():
            texts = [tf.placeholder(tf.string, [None]) for _ in range(2)]
            rows = encode(*texts, tf.fill(tf.shape(texts[0]), 12))
            session = tf.Session()
        return tokenizer, lambda *values: session.run(rows, dict(zip(texts, values)))

    @hypothesis.given(
        st.lists(st.tuples(*[st.text(st.sampled_from(_LETTERS), max_size=30)] * 2), min_size=1),
        st.booleans(),
    )
    @hypothesis.settings(file_cases.many, max_examples=60)
    def test_ids_match_python_tokenizer(self, pairs, lower_case):
        tokenizer, encoded = self.graphs[lower_case]
        found = np.stack(encoded(*map(list, zip(*pairs))), 1)
        for row, (first, second) in zip(found, pairs):
            example = classifier_features.InputExample("", first, second, "0")
            expected = classifier_features.convert_single_example(9, example, ["0"], 12, tokenizer)
            expected = [expected.input_ids, expected.input_mask, expected.segment_ids]
            self.assertAllEqual(np.pad(row, [(0, 0), (0, 12 - row.shape[1])]), expected)

    def test_long_words_match_python_tokenizer(self):
        for lower_case, letter in (
            (True, "a"),
            (False, "a"),
            (True, "\u0e01"),
            (True, "\U00010330"),
        ):
            tokenizer, encoded = self.graphs[lower_case]
            for length in (33, 34, 100, 101, 199, 200, 201):
                text = letter * length
                ids = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text + " dog"))
                (row,), _, _ = encoded([text + " dog"], [""])
                expected = [tokenizer.vocab[name] for name in ("[CLS]", "[SEP]")]
                expected[1:1] = ids[:10]
                self.assertAllEqual(row, expected)

    def test_repeated_vocabulary_token_matches_python_tokenizer(self):
        path = os.path.join(self.get_temp_dir(), "twice.txt")
        with open(path, "w", encoding="utf-8") as writer:
            writer.write("\n".join(["dog", *tiny.VOCABULARY]) + "\n")
        tokenizer = tokenization.FullTokenizer(path, True)
        encode = in_graph_tokenizer.make_encoder(tokenizer)
        with tf.Graph().as_default(), self.session() as session:
            (row,), _, _ = session.run(encode(tf.constant(["the dog"]), tf.constant([9])))
        names = ("[CLS]", "the", "dog", "[SEP]")
        self.assertAllEqual(row, [tokenizer.vocab[name] for name in names])

    def test_missing_package_and_sentencepiece_are_refused(self):
        tokenizer, _ = self.graphs[True]
        release = re.match(r"\d+\.\d+", tf.__version__).group()
        install = re.escape(f'run `pip install "tensorflow-text=={release}.*"`')
        for holder, name, part in (
            (
                in_graph_tokenizer,
                "tensorflow_text",
                "--raw_text needs the tensorflow-text of TensorFlow.*" + install,
            ),
            (tokenizer, "basic_tokenizer", "not SentencePiece"),
        ):
            with mock.patch.object(holder, name, None), self.assertRaisesRegex(UserError, part):
                in_graph_tokenizer.make_encoder(tokenizer)
