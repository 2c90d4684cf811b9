"""Tests of tokenization.FullTokenizer, on goldens and on sentencepiece itself."""

import gzip
import json
import os
import pickle
import types
from unittest import mock

import sentencepiece
import tensorflow.compat.v1 as tf

import tokenization
from adapter_tests.support import mutations, tiny
from adapter_tests.tokenization_test import (
    CASED_VOCAB,
    DATA,
    UNCASED_VOCAB,
    TokenizationTestCase,
    needs_data,
)

VIETNAMESE_MODEL = "data/vocab/albertvi_30k-clean.model"


class FullTokenizerTest(TokenizationTestCase):
    TOKENS = ["[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed", "wa", "un", "runn", "##ing", ","]

    def test_text_to_ids_and_back(self):
        tokenizer = tokenization.FullTokenizer(self.write(self.TOKENS))
        tokens = tokenizer.tokenize("UNwant\u00e9d,Running  \u4e00")
        self.assertEqual(tokens, ["un", "##want", "##ed", ",", "runn", "##ing", "[UNK]"])
        ids = tokenizer.convert_tokens_to_ids(tokens)
        self.assertEqual(ids, [7, 4, 5, 10, 8, 9, 0])
        self.assertEqual(tokenizer.convert_ids_to_tokens(ids), tokens)
        self.assertEqual(list(tokenizer.vocab), self.TOKENS)
        self.assertEqual(tokenizer.inv_vocab[10], ",")
        self.assertEqual(tokenizer.basic_tokenizer.tokenize("A,b"), ["a", ",", "b"])
        self.assertEqual(tokenizer.wordpiece_tokenizer.tokenize("unwanted"), tokens[:3])

    def test_cased(self):
        tokenizer = tokenization.FullTokenizer(self.write(self.TOKENS + ["UN"]), False)
        self.assertEqual(tokenizer.tokenize("UNwanted Want"), ["UN", "##want", "##ed", "[UNK]"])

    def test_unknown_token(self):
        tokenizer = tokenization.FullTokenizer(self.write(self.TOKENS))
        with self.assert_says("'[MASK]'", "11 entries"):
            tokenizer.convert_tokens_to_ids(["[CLS]", "[MASK]"])
        with self.assert_says("11"):
            tokenizer.convert_ids_to_tokens([11])
        with self.assertRaisesRegex(KeyError, "^'.MASK.' is not in"):  # As code for BERT catches.
            tokenizer.convert_tokens_to_ids(["[MASK]"])

    def test_special_tokens_are_asked_for_where_they_are_needed(self):
        for tokens, missing in (
            (["the", "[UNK]", "[SEP]"], "lacks [CLS]:"),
            (["the", "[unk]"], "lacks [UNK], [CLS], [SEP]:"),
        ):
            path = self.write(tokens)
            tokenizer = tokenization.FullTokenizer(path)
            self.assertEqual(tokenizer.convert_tokens_to_ids(tokenizer.tokenize("the The")), [0, 0])
            with self.assert_says(path, missing):
                tokenizer.check_special_tokens()
            with self.assertRaises(KeyError):
                tokenizer.convert_tokens_to_ids(["[CLS]"])
        tokenization.FullTokenizer(self.write(self.TOKENS)).check_special_tokens()

    def test_own_steps(self):
        """Either step may be replaced by a user's own."""

        class Hyphens:
            def tokenize(self, text):
                return text.split("-")

        class Reversed(tokenization.WordpieceTokenizer):
            def tokenize(self, text):
                return super().tokenize(text)[::-1]

        tokenizer = tokenization.FullTokenizer(self.write(self.TOKENS))
        tokenizer.basic_tokenizer = Hyphens()
        self.assertEqual(tokenizer.tokenize("want-un"), ["want", "un"])
        tokenizer.wordpiece_tokenizer = Reversed(tokenizer.vocab)
        self.assertEqual(tokenizer.tokenize("unwanted"), ["##ed", "##want", "un"])

    def test_pickle(self):
        tokenizer = tokenization.FullTokenizer(self.write(self.TOKENS))
        expected = tokenizer.tokenize("unwanted running, wall")
        copy = pickle.loads(pickle.dumps(tokenizer))
        self.assertEqual(copy.tokenize("unwanted running, wall"), expected)
        copy.vocab["##ll"] = 11
        self.assertEqual(copy.tokenize("wall"), ["wa", "##ll"])
        self.assertEqual(tokenizer.tokenize("wall"), ["[UNK]"])

    def test_missing_file(self):
        for path in (os.path.join(self.get_temp_dir(), "none.txt"), self.get_temp_dir()):
            with self.assert_says("vocab_file", path):
                tokenization.FullTokenizer(path)

    def test_no_file(self):
        for path in (None, ""):
            with self.assert_says("vocab_file", "spm_model_file"):
                tokenization.FullTokenizer(path)

    def test_bad_files(self):
        table = [
            (b"", ["empty"]),
            (b"[UNK]\n[CLS]\nok\ncaf\xe9\n", ["line 4", "UTF-8", "0xe9"]),
            (b"\xef\xbb\xbf[UNK]\n\xff\n", ["line 2", "0xff"]),
        ]
        for content, parts in table:
            path = self.write(content)
            with self.subTest(parts), self.assert_says(path, *parts):
                tokenization.FullTokenizer(path)

    @needs_data
    def test_goldens(self):
        uncased = tokenization.FullTokenizer(os.path.join(DATA, UNCASED_VOCAB))
        cased = tokenization.FullTokenizer(os.path.join(DATA, CASED_VOCAB), do_lower_case=False)
        path = os.path.join(DATA, "goldens", "tokenization_public.jsonl.gz")
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        self.assertGreater(len(rows), 2000)
        for number, row in enumerate(rows, 1):
            self.assertEqual(uncased.tokenize(row["text"]), row["uncased"], number)
            self.assertEqual(cased.tokenize(row["text"]), row["cased"], number)


class SentencePieceTest(TokenizationTestCase):
    """FullTokenizer on SentencePiece models, against sentencepiece itself."""

    TEXTS = [
        "the red cat plays",
        "  The RED\tcat\n\n plays ,  a caf\u00e9 ",
        "a blue dog \u4e2d\u56fd runs",  # two characters that the model never saw
        "[CLS] dog [SEP]",
        "",
    ]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = _train("--pad_id=0 --unk_id=1 --control_symbols=[CLS],[SEP]")

    def setUp(self):
        super().setUp()
        self.path = self.write(self.model, "test.model")
        self.reference = _processor(self.model)

    def test_fingerprint(self):
        other = _train("--pad_id=0 --unk_id=1 --control_symbols=[CLS],[SEP] --model_type=bpe")
        vocab = self.write(["[UNK]", "[CLS]", "[SEP]", "a"])
        twice = self.write(["[UNK]", "[CLS]", "[SEP]", "a", "[UNK]"], "twice.txt")  # The same keys.
        options = [
            dict(vocab_file=None, do_lower_case=case, spm_model_file=path)
            for path in (self.path, self.write(other, "other.model"))
            for case in (True, False)
        ]
        options += [dict(vocab_file=path) for path in (vocab, twice)]
        found = [tokenization.FullTokenizer(**each).fingerprint for each in options]
        self.assertLen(set(found), len(options))
        again = [tokenization.FullTokenizer(**each).fingerprint for each in options]
        self.assertEqual(found, again)
        with mock.patch.object(sentencepiece, "__version__", "0", create=True):
            later = [tokenization.FullTokenizer(**each).fingerprint for each in options]
        self.assertEqual([a == b for a, b in zip(found, later)], 4 * [False] + 2 * [True])
        # 0.1.96 does not tell its version.
        old = types.SimpleNamespace(SentencePieceProcessor=sentencepiece.SentencePieceProcessor)
        with mock.patch.object(tokenization, "sentencepiece", old):
            self.assertNotIn(tokenization.FullTokenizer(**options[0]).fingerprint, found)

    def test_pieces_and_ids(self):
        for do_lower_case in (True, False):
            tokenizer = tokenization.FullTokenizer(None, do_lower_case, spm_model_file=self.path)
            for text in self.TEXTS:
                expected = " ".join(text.split())
                expected = expected.lower() if do_lower_case else expected
                tokens = tokenizer.tokenize(text)
                self.assertEqual(tokens, self.reference.encode_as_pieces(expected))
                self.assertEqual(
                    tokenizer.convert_tokens_to_ids(tokens), self.reference.encode_as_ids(expected)
                )
                # The model's normalizer is "identity": accents and punctuation are left alone.
                self.assertEqual(self.reference.decode_pieces(tokens), expected)

    def test_bytes_and_half_a_surrogate_pair(self):
        tokenizer = tokenization.FullTokenizer("", spm_model_file=self.path)
        expected = self.reference.encode_as_pieces("red caf\u00e9")
        self.assertEqual(tokenizer.tokenize(b"red caf\xc3\xa9\xff"), expected)
        self.assertEqual(tokenizer.tokenize("red caf\u00e9\ud83d"), expected)

    def test_vocab(self):
        tokenizer = tokenization.FullTokenizer("", spm_model_file=self.path)
        size = self.reference.get_piece_size()
        pieces = [self.reference.id_to_piece(index) for index in range(size)]
        self.assertEqual(list(tokenizer.vocab.items()), [(p, i) for i, p in enumerate(pieces)])
        self.assertEqual(tokenizer.inv_vocab, dict(enumerate(pieces)))
        self.assertEqual(tokenizer.convert_ids_to_tokens([0, 1, size - 1])[:2], ["<pad>", "<unk>"])
        special = ["[CLS]", "[SEP]", "never a piece"]
        expected = [self.reference.piece_to_id(piece) for piece in special]
        self.assertEqual(tokenizer.convert_tokens_to_ids(special), expected)
        self.assertEqual(expected[2], 1)
        with self.assert_says(str(size)):
            tokenizer.convert_ids_to_tokens([size])

    def test_other_names_of_special_pieces(self):
        model = _train(
            "--pad_id=2 --pad_piece=[PAD] --unk_id=0 --unk_piece=[UNK] --bos_id=1 "
            "--user_defined_symbols=[CLS],[SEP]"
        )
        path = self.write(model, "named.model")
        tokenizer = tokenization.FullTokenizer(None, False, spm_model_file=path)
        self.assertEqual(tokenizer.convert_tokens_to_ids(["[PAD]", "[UNK]", "\u4e2d"]), [2, 0, 0])
        # A user-defined symbol is found in running text.
        tokens = tokenizer.tokenize("red [SEP] dog")
        self.assertIn("[SEP]", tokens)
        self.assertEqual(tokens, _processor(model).encode_as_pieces("red [SEP] dog"))

    def test_lacking_pieces(self):
        table = [
            ("--pad_id=0 --unk_id=1 --control_symbols=[CLS]", "lacks [SEP]:"),
            ("--unk_id=0 --control_symbols=[CLS],[SEP]", "lacks <pad> or [PAD]:"),
            (
                "--pad_id=0 --unk_id=1 --unk_piece=?? --user_defined_symbols=[SEP]",
                "lacks [CLS], <unk> or [UNK]:",
            ),
        ]
        for options, message in table:
            path = self.write(_train(options), "lacking.model")
            with self.subTest(message), self.assert_says("spm_model_file", path, message):
                tokenization.FullTokenizer(None, spm_model_file=path)

    def test_bad_files(self):
        for content in (b"", b"[UNK]\n[CLS]\n[SEP]\n", self.model[: len(self.model) // 2]):
            path = self.write(content, "bad.model")
            with self.assert_says("spm_model_file", path, "not a SentencePiece model"):
                tokenization.FullTokenizer(None, spm_model_file=path)
        path = os.path.join(self.get_temp_dir(), "none.model")
        with self.assert_says("spm_model_file", path, "cannot be read"):
            tokenization.FullTokenizer(None, spm_model_file=path)

    @needs_data
    def test_real_model(self):
        path = os.path.join(DATA, VIETNAMESE_MODEL)
        with open(path, "rb") as file:
            reference = _processor(file.read())
        tokenizer = tokenization.FullTokenizer(None, False, spm_model_file=path)
        self.assertLen(tokenizer.vocab, 30000)
        ids = tokenizer.convert_tokens_to_ids(["<pad>", "<unk>", "[CLS]", "[SEP]"])
        self.assertEqual(ids, [0, 1, 2, 3])
        text = "H\u00e0 N\u1ed9i  l\u00e0 th\u1ee7 \u0111\u00f4 c\u1ee7a Vi\u1ec7t Nam. \U0001f600"
        tokens = tokenizer.tokenize(text)
        self.assertEqual(tokens, reference.encode_as_pieces(" ".join(text.split())))
        self.assertEqual(tokenizer.convert_tokens_to_ids(tokens), reference.encode_as_ids(text))
        with self.assert_says(path, "52%"):
            tokenization.check_vocab_casing(tokenizer.vocab, True, path)


def _train(options):
    """Returns the bytes of a small SentencePiece model that keeps white space and case."""
    subjects = ["the red cat", "a blue dog", "The Red fox", "my old caf\u00e9", "RED , BLUE"]
    verbs = ["plays", "runs", "played", "is running", "sat", "cried"]
    places = ["", " in the house", " at Home", " on the [CLS] mat [SEP]"]
    lines = [" ".join((s, v)) + p for s in subjects for v in verbs for p in places]
    settings = {"bos_id": "-1", "eos_id": "-1", "pad_id": "-1"}
    settings.update(option[2:].split("=", 1) for option in options.split())
    return tiny.train_sentencepiece(
        lines,
        vocab_size=120,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        **settings,
    )


def _processor(model):
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    return processor


class DamagedFilesTest(tf.test.TestCase):
    TEXT = "The dog, sees a BIRD. 狗 \u2028 naïve"

    def test_a_damaged_vocabulary_is_read_or_refused(self):
        def read(folder):
            path = os.path.join(folder, "vocab.txt")
            for lower_case in (True, False):
                tokenizer = tokenization.FullTokenizer(path, lower_case)
                tokenizer.check_special_tokens()
                tokenizer.convert_tokens_to_ids(tokenizer.tokenize(self.TEXT))
                tokenization.check_vocab_casing(tokenizer.vocab, False, path)
                tokenization.check_vocab_size(tokenizer.vocab, len(tiny.VOCABULARY), path)

        mutations.check({"vocab.txt": "\n".join([*tiny.VOCABULARY, ""]).encode()}, read)

    def test_a_damaged_sentencepiece_model_is_read_or_refused(self):
        sentences = ["the dog sees a bird", "the cat hears a man", "a woman likes the small cat"]
        options = {"vocab_size": 40, "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
        options["control_symbols"] = "[CLS],[SEP]"

        def read(folder):
            path = os.path.join(folder, "spm.model")
            tokenizer = tokenization.FullTokenizer(None, True, spm_model_file=path)
            tokenizer.convert_tokens_to_ids(tokenizer.tokenize(self.TEXT))
            tokenization.check_vocab_size(tokenizer.vocab, len(tokenizer.vocab), path)

        mutations.check({"spm.model": tiny.train_sentencepiece(sentences, **options)}, read)


if __name__ == "__main__":
    tf.test.main()
