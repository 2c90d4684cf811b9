"""Tests of tokenization.py against hand-computed values, a character-wise reference
implementation, golden files, and sentencepiece."""

import gzip
import json
import os
import pickle
import random
import re
import sys
import types
import unicodedata
from unittest import mock

import sentencepiece
import tensorflow.compat.v1 as tf
from absl.testing import parameterized

import tokenization
from adapter_bert.shell.errors import UserError
from adapter_tests.support import mutations, tiny
from adapter_tests.support.shared import SHARED, needs_shared

UNCASED_VOCAB = "checkpoints/minilm-l6-uncased/vocab.txt"
CASED_VOCAB = "data/vocab/bert-base-cased-vocab.txt"
CHINESE_VOCAB = "checkpoints/indexes/chinese_L-12_H-768_A-12/vocab.txt"


class TokenizationTestCase(tf.test.TestCase):
    def write(self, content, name="vocab.txt"):
        """Writes a file with this content (bytes, or lines of text); returns its path."""
        if not isinstance(content, bytes):
            content = "".join(line + "\n" for line in content).encode("utf-8")
        path = os.path.join(self.get_temp_dir(), name)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def assert_says(self, *parts):
        """Expects a UserError of one line that contains all of `parts`, in this order."""
        pattern = r"(?s)^(?!.*\n).*" + ".*".join(map(re.escape, parts))
        return self.assertRaisesRegex(UserError, pattern)


class CheckpointCasingTest(TokenizationTestCase):
    LOWER_CASED = [
        "uncased_L-12_H-768_A-12",
        "uncased_L-24_H-1024_A-16",
        "wwm_uncased_L-24_H-1024_A-16",
        "multilingual_L-12_H-768_A-12",
        "chinese_L-12_H-768_A-12",
        "uncased_L-2_H-128_A-2",
        "uncased_L-4_H-256_A-4",
        "uncased_L-10_H-512_A-8",
    ]
    CASED = [
        "cased_L-12_H-768_A-12",
        "cased_L-24_H-1024_A-16",
        "wwm_cased_L-24_H-1024_A-16",
        "multi_cased_L-12_H-768_A-12",
    ]

    def test_released_models_need_their_casing(self):
        for models, right in [(self.LOWER_CASED, True), (self.CASED, False)]:
            for model in models:
                path = f"gs://bucket/{model}/bert_model.ckpt"
                tokenization.validate_case_matches_checkpoint(right, path)
                parts = f"--do_lower_case={not right}", path, f"pass --do_lower_case={right}"
                with self.subTest(model), self.assert_says(*parts):
                    tokenization.validate_case_matches_checkpoint(not right, path)

    def test_other_checkpoints_are_accepted(self):
        paths = [None, "", "bert_model.ckpt", "my_cased/bert_model.ckpt", "uncased/model.ckpt-10"]
        paths.append("uncased_L-12_H-768_A-12/mine/bert_model.ckpt")
        paths.append("cased_L-12_H-768_A-12/model.ckpt-100")
        for path in paths:
            for do_lower_case in (True, False):
                tokenization.validate_case_matches_checkpoint(do_lower_case, path)


class VocabCasingTest(TokenizationTestCase):
    def test_cased_vocabulary_is_refused_with_lower_casing(self):
        vocab = _vocab(["[CLS]"] + [f"t{i}" for i in range(97)] + ["##B", "Ab", "ÉC"])
        with self.assert_says("cased.txt", "3%", "'##B'", "--do_lower_case=False"):
            tokenization.check_vocab_casing(vocab, True, "cased.txt")
        tokenization.check_vocab_casing(vocab, False, "cased.txt")

    def test_a_few_capitals_are_accepted(self):
        vocab = _vocab([f"t{i}" for i in range(98)] + ["A", "B"])
        tokenization.check_vocab_casing(vocab, True, "vocab.txt")

    def test_special_tokens_are_ignored(self):
        vocab = _vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<0x0A>", "<S>", "the"])
        tokenization.check_vocab_casing(vocab, True, "vocab.txt")
        with self.assert_says("33%"):
            tokenization.check_vocab_casing(_vocab(["[CLS]", "[", "]", "A"]), True, "vocab.txt")

    @needs_shared
    def test_casing_of_real_vocabularies_is_checked(self):
        for name, cased in [(UNCASED_VOCAB, False), (CHINESE_VOCAB, False), (CASED_VOCAB, True)]:
            vocab = tokenization.load_vocab(os.path.join(SHARED, name))
            if cased:
                with self.assert_says(name, "29%"):
                    tokenization.check_vocab_casing(vocab, True, name)
            else:
                tokenization.check_vocab_casing(vocab, True, name)


class VocabSizeTest(TokenizationTestCase):
    def test_vocab_size_must_not_be_below_the_vocabulary(self):
        for tokens, vocab_size in ((100, 99), (105, 104), (30522, 28996)):
            vocab = _vocab(f"t{i}" for i in range(tokens))
            with self.assert_says("vocab.txt", str(tokens), str(vocab_size), "--bert_config_file"):
                tokenization.check_vocab_size(vocab, vocab_size, "vocab.txt")

    def test_vocab_size_above_the_vocabulary_is_logged(self):
        for tokens, vocab_size in ((100, 104), (100, 103), (31748, 32000), (100, 100)):
            vocab = _vocab(f"t{i}" for i in range(tokens))
            with mock.patch.object(tokenization.logging, "warning") as warning:
                tokenization.check_vocab_size(vocab, vocab_size, "vocab.txt")
            lines = [template % tuple(values) for _, (template, *values), _ in warning.mock_calls]
            self.assertLen(lines, int(tokens < vocab_size))
            for part in ("vocab.txt", str(tokens), str(vocab_size)):
                self.assertIn(part, "".join(lines) or part)

    def test_blank_last_line_is_named(self):
        vocab = tokenization.load_vocab(self.write(b"a\nb\n\n"))
        with self.assert_says("3", "2", "last line, a blank one"):
            tokenization.check_vocab_size(vocab, 2, "vocab.txt")

    def test_repeated_token_uses_two_rows(self):
        vocab = tokenization.load_vocab(self.write(["a", "b", "a"]))
        tokenization.check_vocab_size(vocab, 3, "vocab.txt")
        with self.assert_says("vocab.txt", "3", "2"):
            tokenization.check_vocab_size(vocab, 2, "vocab.txt")


class UnicodeTest(TokenizationTestCase):
    def test_str_and_bytes_are_converted_to_str(self):
        for convert in (tokenization.convert_to_unicode, tokenization.printable_text):
            self.assertEqual(convert("caf\u00e9"), "caf\u00e9")
            self.assertEqual(convert(b"caf\xc3\xa9"), "caf\u00e9")
            self.assertEqual(convert(b"a\xffb\xc3"), "ab")

    def test_other_types_raise_value_error(self):
        for convert in (tokenization.convert_to_unicode, tokenization.printable_text):
            for value in (None, 7, ["a"]):
                with self.assertRaisesRegex(ValueError, type(value).__name__):
                    convert(value)

    def test_whitespace_tokenize_splits_at_white_space(self):
        self.assertEqual(tokenization.whitespace_tokenize(" a\t b\n\u3000c "), ["a", "b", "c"])
        self.assertEqual(tokenization.whitespace_tokenize(" \n"), [])


class BasicTokenizerTest(parameterized.TestCase):
    """`ReferenceTest` compares each kind of character."""

    @parameterized.parameters(
        ("", []),
        (" \tGood MORNING,\n world!! ", ["good", "morning", ",", "world", "!", "!"]),
        ("don't e-mail $5^2", ["don", "'", "t", "e", "-", "mail", "$", "5", "^", "2"]),
        ("e\u0301te\u0301 A\u030angstro\u0308m", ["ete", "angstrom"]),
        ("\u0130stanbul Stra\u00dfe \u0141\u00f3d\u017a", ["istanbul", "straße", "łodz"]),
        # At the end of a word, a capital sigma becomes a final sigma.
        ("\u039f\u0394\u039f\u03a3, \u03a3", ["\u03bf\u03b4\u03bf\u03c2", ",", "\u03c3"]),
        # NFD decomposes a Hangul syllable: ieung, a, nieun.
        ("\uc548", ["\u110b\u1161\u11ab"]),
        # NFD converts the Greek question mark to a semicolon.
        ("\u03b1\u037e\u03b2", ["\u03b1", ";", "\u03b2"]),
        # Japanese: kanji are split, kana are not; the voicing mark of "de" counts as an accent.
        ("\u65e5\u672c\u3067\u3059", ["\u65e5", "\u672c", "\u3066\u3059"]),
        # Line and paragraph separators are kept, and split words like white space.
        ("a\u2028b\u2029c", ["a", "b", "c"]),
        ("a\x00b\ufffdc\x07d\u200be\u00adf\ufeff", ["abcdef"]),
        ("É!".encode(), ["e", "!"]),
        (b"a\xffb", ["ab"]),
    )
    def test_text_is_split_into_words(self, text, words):
        self.assertEqual(tokenization.BasicTokenizer().tokenize(text), words)

    def test_long_run_of_accents_is_stripped(self):
        text = "e" + "\u0301" * 3000 + "\u0316" * 3000 + "\u00fc"
        self.assertEqual(tokenization.BasicTokenizer().tokenize(text), ["eu"])

    def test_run_strip_accents_can_be_overridden(self):
        class German(tokenization.BasicTokenizer):
            def _run_strip_accents(self, text):
                return text

        self.assertEqual(German().tokenize("Über-Öl ZU"), ["über", "-", "öl", "zu"])
        self.assertEqual(German(False).tokenize("Über-Öl"), ["Über", "-", "Öl"])
        strip = tokenization.BasicTokenizer()._run_strip_accents
        self.assertEqual([strip("éte\u0301 ñ"), strip("ete")], ["ete n", "ete"])


class WordpieceTokenizerTest(TokenizationTestCase):
    def test_words_are_split_greedily_into_pieces(self):
        vocab = _vocab(
            ["[UNK]", "play", "re", "##play", "##ing", "##in", "##s", "abc", "ab", "##cd"]
        )
        tokenizer = tokenization.WordpieceTokenizer(vocab)
        table = [
            ("", []),
            ("play", ["play"]),
            ("replaying", ["re", "##play", "##ing"]),
            ("plays  replay\n", ["play", "##s", "re", "##play"]),
            ("playx replay", ["[UNK]", "re", "##play"]),
            # A piece at the beginning of a word is never a continuation, nor vice versa.
            ("playre ing", ["[UNK]", "[UNK]"]),
            # Greedy: takes "abc" and fails at "d", although "ab" and "##cd" would match.
            ("abcd", ["[UNK]"]),
            (b"replay\xff", ["re", "##play"]),
        ]
        for text, expected in table:
            self.assertEqual(tokenizer.tokenize(text), expected, text)

    def test_words_over_the_length_limit_are_unknown(self):
        vocab = _vocab(["a", "##a"])
        tokenizer = tokenization.WordpieceTokenizer(vocab)
        self.assertEqual(tokenizer.tokenize("a" * 200), ["a"] + ["##a"] * 199)
        self.assertEqual(tokenizer.tokenize("a" * 201 + " a"), ["[UNK]", "a"])
        tokenizer = tokenization.WordpieceTokenizer(vocab, "<?>", 2)
        self.assertEqual(tokenizer.tokenize("aa aaa b"), ["a", "##a", "<?>", "<?>"])
        tokenizer = tokenization.WordpieceTokenizer(_vocab(["aaa"]), max_input_chars_per_word=2)
        self.assertEqual(tokenizer.tokenize("aaa"), ["[UNK]"])

    def test_tokenizers_do_not_share_caches(self):
        tokenizers = [
            tokenization.WordpieceTokenizer(_vocab(["ab", "##cd"])),
            tokenization.WordpieceTokenizer(_vocab(["abc", "##d"])),
            tokenization.WordpieceTokenizer(_vocab(["ab"]), "<?>"),
        ]
        for _ in range(2):
            pieces = [tokenizer.tokenize("abcd") for tokenizer in tokenizers]
            self.assertEqual(pieces, [["ab", "##cd"], ["abc", "##d"], ["<?>"]])

    def test_changed_settings_clear_the_cache(self):
        tokenizer = tokenization.WordpieceTokenizer(_vocab(["ab", "##cd"]))
        self.assertEqual(tokenizer.tokenize("abcd x"), ["ab", "##cd", "[UNK]"])
        tokenizer.unk_token = "<?>"
        self.assertEqual(tokenizer.tokenize("abcd x"), ["ab", "##cd", "<?>"])
        tokenizer.max_input_chars_per_word = 3
        self.assertEqual(tokenizer.tokenize("abcd x"), ["<?>", "<?>"])
        tokenizer.max_input_chars_per_word = 4
        tokenizer.vocab["##c"] = tokenizer.vocab["##d"] = 7
        del tokenizer.vocab["##cd"]
        self.assertEqual(tokenizer.tokenize("abcd x"), ["ab", "##c", "##d", "<?>"])
        tokenizer.vocab["abcd"] = tokenizer.vocab.pop("ab")
        self.assertEqual(tokenizer.tokenize("abcd x"), ["abcd", "<?>"])
        tokenizer.vocab = _vocab(["x"])
        self.assertEqual(tokenizer.tokenize("abcd x"), ["<?>", "x"])

    def test_modified_results_do_not_change_the_cache(self):
        tokenizer = tokenization.WordpieceTokenizer(_vocab(["ab", "##cd"]))
        for text in ("abcd", "abx", "ab"):
            expected = list(tokenizer.tokenize(text))
            tokenizer.tokenize(text).append("more")
            self.assertEqual(tokenizer.tokenize(text), expected)

    def test_cache_is_bounded(self):
        words = [f"{first}{second}" for first in "abcdefgh" for second in "abcdefgh"]
        vocab = _vocab(["a", "b", "##c", "##d"])
        expected = [_reference_pieces(word, vocab) for word in words]
        with mock.patch.object(tokenization, "_MAX_SPLITS", 10):
            tokenizer = tokenization.WordpieceTokenizer(vocab)
            for word, pieces in list(zip(words, expected)) * 2:
                self.assertEqual(tokenizer.tokenize(word), pieces, word)
                self.assertIn(word, tokenizer._splits)
                self.assertLessEqual(len(tokenizer._splits), 10)
        self.assertEqual(tokenizer.tokenize("a" * 201), ["[UNK]"])
        self.assertNotIn("a" * 201, tokenizer._splits)


class ReferenceTest(TokenizationTestCase):
    """Compares the tokenizers with `_reference_words` and `_reference_pieces` on random text."""

    # Spaces and letters are drawn most often.
    KINDS = [
        "   ",
        "aaeeinorstABCXYZ059",
        "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
        "\t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2003\u2028\u2029\u3000",  # kinds of white space
        "\x00\x01\x08\x7f\x80\xad\u200b\u200d\u202e\ufeff\ufffd\U000e0020",  # removed
        "\u0300\u0301\u0323\u0307\u20dd\u302a\U0001d165",  # combining marks
        "\xc0\xc9\xe9\xf1\xdf\u0130\u0131\u0141\u017f\u01c5\u1e9e\ufb01\u212a\u2126",
        "\u03a3\u03c3\u03c2\u0391\u03b1\u03d3\u0345\u1fb3\u037e\u0387",  # Greek
        "\u4e00\u9fff\u3400\uf900\U00020000\u3007\u3042\u3067\uac00\u1100",  # East Asia
        "\u2014\u2019\u3002\uff01\xbf\xb7\u20ac\xb4\u2116\xbd\u0660",
        "\ue000\ud83d\udc00\U0001f600\u0378\U0010ffff\u05d0\u0627\u0e01\u0915\u093f",
    ]

    def random_texts(self, count):
        generator = random.Random(0)
        for _ in range(count):
            kinds = generator.sample(self.KINDS, 4) + self.KINDS[:1] + self.KINDS[1:2] * 6
            length = generator.choice([1, 3, 10, 40])
            yield "".join(generator.choice(generator.choice(kinds)) for _ in range(length))

    def random_vocab(self, do_lower_case, texts):
        """Returns random pieces of the texts' words, and pieces that are hard for `_split_word`."""
        generator = random.Random(1)
        vocab = ["", "##", "[UNK]"]
        for text in texts:
            for word in _reference_words(text, do_lower_case):
                start = generator.randrange(len(word))
                piece = word[start : start + generator.randint(1, 5)]
                vocab.append("##" + piece if start else piece)
        return _vocab(vocab)

    def test_random_text_matches_reference(self):
        texts = list(self.random_texts(3000))
        for do_lower_case in (True, False):
            vocab = self.random_vocab(do_lower_case, texts[::30])
            tokenizer = tokenization.FullTokenizer(
                self.write(["[UNK]", "[CLS]", "[SEP]"]), do_lower_case
            )
            tokenizer.wordpiece_tokenizer = tokenization.WordpieceTokenizer(
                vocab, max_input_chars_per_word=8
            )
            known = unknown = 0
            for text in texts:
                words = _reference_words(text, do_lower_case)
                pieces = [p for word in words for p in _reference_pieces(word, vocab, 8)]
                self.assertEqual(tokenizer.basic_tokenizer.tokenize(text), words, ascii(text))
                self.assertEqual(tokenizer.tokenize(text), pieces, ascii(text))
                unknown += pieces.count("[UNK]")
                known += len(pieces)
            self.assertBetween(unknown / known, 0.1, 0.6)

    def test_wordpiece_alone_matches_reference(self):
        # Text without BasicTokenizer: only `str.split` precedes WordPiece.
        texts = list(self.random_texts(500))
        vocab = self.random_vocab(False, texts)
        tokenizer = tokenization.WordpieceTokenizer(vocab)
        for text in texts:
            expected = [p for word in text.split() for p in _reference_pieces(word, vocab)]
            self.assertEqual(tokenizer.tokenize(text), expected, ascii(text))
            data = text.encode("utf-8", "ignore")
            self.assertEqual(tokenizer.tokenize(data), tokenizer.tokenize(data.decode()))

    def test_unicode_characters_match_reference(self):
        # Each character alone and within a word. Of ideographs, Hangul and the higher planes, only
        # one character in 61.
        codes = [*range(0x3400), *range(0xF900, 0x10000), *range(0x3400, sys.maxunicode + 1, 61)]
        codes += [end + step for ends in _IDEOGRAPHS for end in ends for step in (-1, 0)]
        for do_lower_case in (True, False):
            tokenizer = tokenization.BasicTokenizer(do_lower_case)
            for start in range(0, len(codes), 256):
                text = " ".join(f"{chr(c)} A{chr(c)}b" for c in codes[start : start + 256])
                expected = _reference_words(text, do_lower_case)
                self.assertEqual(tokenizer.tokenize(text), expected, hex(codes[start]))


class LoadVocabTest(TokenizationTestCase):
    def test_oversized_files_are_refused(self):
        path = self.write(b"\n" * 4_000_001)
        with self.assert_says(path, "more than 4,000,000 lines"):
            tokenization.load_vocab(path)
        with open(path, "wb") as writer:
            writer.truncate((64 << 20) + 1)  # Sparse, of NUL bytes.
        with self.assert_says(path, "more than 67,108,864 bytes"):
            tokenization.load_vocab(path)

    def test_load_vocab_keeps_order_and_strips_lines(self):
        vocab = tokenization.load_vocab(self.write(b" the\t\r\n##s\n\n\xe4\xb8\x80"))
        self.assertEqual(list(vocab.items()), [("the", 0), ("##s", 1), ("", 2), ("\u4e00", 3)])

    def test_only_line_feeds_end_a_line(self):
        vocab = tokenization.load_vocab(self.write(["a\u2028b", "c\x0bd", "\u2028", "e"]))
        self.assertEqual(list(vocab.items()), [("a\u2028b", 0), ("c\x0bd", 1), ("", 2), ("e", 3)])

    def test_the_last_of_equal_tokens_wins(self):
        vocab = tokenization.load_vocab(self.write(["a", "b", "a", "c"]))
        self.assertEqual(list(vocab.items()), [("a", 2), ("b", 1), ("c", 3)])

    def test_byte_order_mark_is_removed(self):
        self.assertIn("[PAD]", tokenization.load_vocab(self.write(b"\xef\xbb\xbf[PAD]\na\n")))

    def test_tokens_and_ids_are_converted_both_ways(self):
        vocab = _vocab(["a", "b", "c"])
        self.assertEqual(tokenization.convert_by_vocab(vocab, ["b", "c", "b"]), [1, 2, 1])
        self.assertEqual(tokenization.convert_tokens_to_ids(vocab, ("c", "a")), [2, 0])
        self.assertEqual(tokenization.convert_ids_to_tokens({0: "a", 5: "f"}, [5, 0]), ["f", "a"])
        with self.assert_says("'##d'", "3 entries"):
            tokenization.convert_tokens_to_ids(vocab, ["a", "##d"])
        with self.assert_says("17"):
            tokenization.convert_ids_to_tokens({0: "a"}, [0, 17])


def _vocab(tokens):
    return {token: index for index, token in enumerate(tokens)}


def _reference_words(text, do_lower_case):
    """Splits a str into words by BERT's rules, one character at a time."""
    cleaned = ""
    for char in text:
        category = unicodedata.category(char)
        if char in "\t\n\r" or category == "Zs":
            cleaned += " "
        elif char != "\ufffd" and category not in ("Cc", "Cf"):
            cleaned += f" {char} " if _reference_is_ideograph(ord(char)) else char
    words = []
    for chunk in cleaned.split():
        if do_lower_case:
            chunk = unicodedata.normalize("NFD", chunk.lower())
            chunk = "".join(char for char in chunk if unicodedata.category(char) != "Mn")
        word = ""
        for char in chunk:
            if unicodedata.category(char)[0] == "P" or char in "$+<=>^`|~":
                words += [word, char]
                word = ""
            else:
                word += char
        words.append(word)
    return [word for word in words if word]


# The first character of each block, and the first one after the block.
_IDEOGRAPHS = [(0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00), (0x20000, 0x2A6E0)]
_IDEOGRAPHS += [(0x2A700, 0x2CEB0), (0x2F800, 0x2FA20)]


def _reference_is_ideograph(code):
    return any(code in range(*ends) for ends in _IDEOGRAPHS)


def _reference_pieces(word, vocab, limit=200):
    """Splits a word into pieces by trying all pieces at each position, the longest first."""
    pieces, start = [], 0
    while start < len(word) <= limit:
        ends = [
            end
            for end in range(start + 1, len(word) + 1)
            if ("##" if start else "") + word[start:end] in vocab
        ]
        if not ends:
            return ["[UNK]"]
        pieces.append(("##" if start else "") + word[start : ends[-1]])
        start = ends[-1]
    return pieces or ["[UNK]"]


VIETNAMESE_MODEL = "data/vocab/albertvi_30k-clean.model"


class FullTokenizerTest(TokenizationTestCase):
    TOKENS = ["[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed", "wa", "un", "runn", "##ing", ","]

    def test_text_is_converted_to_ids_and_back(self):
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

    def test_unknown_tokens_and_ids_are_refused(self):
        tokenizer = tokenization.FullTokenizer(self.write(self.TOKENS))
        with self.assert_says("'[MASK]'", "11 entries"):
            tokenizer.convert_tokens_to_ids(["[CLS]", "[MASK]"])
        with self.assert_says("11"):
            tokenizer.convert_ids_to_tokens([11])
        with self.assertRaisesRegex(KeyError, "^'.MASK.' is not in"):  # Code for BERT catches it.
            tokenizer.convert_tokens_to_ids(["[MASK]"])

    def test_missing_special_tokens_are_refused(self):
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

    def test_basic_and_wordpiece_tokenizers_can_be_replaced(self):
        """Users can replace either tokenizer."""

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

    def test_pickled_tokenizer_is_an_independent_copy(self):
        tokenizer = tokenization.FullTokenizer(self.write(self.TOKENS))
        expected = tokenizer.tokenize("unwanted running, wall")
        copy = pickle.loads(pickle.dumps(tokenizer))
        self.assertEqual(copy.tokenize("unwanted running, wall"), expected)
        copy.vocab["##ll"] = 11
        self.assertEqual(copy.tokenize("wall"), ["wa", "##ll"])
        self.assertEqual(tokenizer.tokenize("wall"), ["[UNK]"])

    def test_missing_vocab_file_is_refused(self):
        for path in (os.path.join(self.get_temp_dir(), "none.txt"), self.get_temp_dir()):
            with self.assert_says("vocab_file", path):
                tokenization.FullTokenizer(path)

    def test_tokenizer_without_any_file_is_refused(self):
        for path in (None, ""):
            with self.assert_says("vocab_file", "spm_model_file"):
                tokenization.FullTokenizer(path)

    def test_invalid_vocab_files_are_refused(self):
        table = [
            (b"", ["empty"]),
            (b"[UNK]\n[CLS]\nok\ncaf\xe9\n", ["line 4", "UTF-8", "0xe9"]),
            (b"\xef\xbb\xbf[UNK]\n\xff\n", ["line 2", "0xff"]),
        ]
        for content, parts in table:
            path = self.write(content)
            with self.subTest(parts), self.assert_says(path, *parts):
                tokenization.FullTokenizer(path)

    @needs_shared
    def test_tokens_match_goldens(self):
        uncased = tokenization.FullTokenizer(os.path.join(SHARED, UNCASED_VOCAB))
        cased = tokenization.FullTokenizer(os.path.join(SHARED, CASED_VOCAB), do_lower_case=False)
        path = os.path.join(SHARED, "goldens", "tokenization_public.jsonl.gz")
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        self.assertGreater(len(rows), 2000)
        for number, row in enumerate(rows, 1):
            self.assertEqual(uncased.tokenize(row["text"]), row["uncased"], number)
            self.assertEqual(cased.tokenize(row["text"]), row["cased"], number)


class SentencePieceTokenizerTest(TokenizationTestCase):
    """Compares FullTokenizer on SentencePiece models with sentencepiece."""

    TEXTS = [
        "the red cat plays",
        "  The RED\tcat\n\n plays ,  a caf\u00e9 ",
        "a blue dog \u4e2d\u56fd runs",  # two characters that are not in the training data
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

    def test_fingerprint_depends_on_file_casing_and_version(self):
        other = _train("--pad_id=0 --unk_id=1 --control_symbols=[CLS],[SEP] --model_type=bpe")
        vocab = self.write(["[UNK]", "[CLS]", "[SEP]", "a"])
        twice = self.write(["[UNK]", "[CLS]", "[SEP]", "a", "[UNK]"], "twice.txt")  # The same keys.
        options = [
            dict(vocab_file=None, do_lower_case=case, spm_model_file=path)
            for path in (self.path, self.write(other, "other.model"))
            for case in (True, False)
        ]
        options += [dict(vocab_file=path) for path in (vocab, twice)]
        actual = [tokenization.FullTokenizer(**each).fingerprint for each in options]
        self.assertLen(set(actual), len(options))
        again = [tokenization.FullTokenizer(**each).fingerprint for each in options]
        self.assertEqual(actual, again)
        with mock.patch.object(sentencepiece, "__version__", "0", create=True):
            later = [tokenization.FullTokenizer(**each).fingerprint for each in options]
        self.assertEqual([a == b for a, b in zip(actual, later)], 4 * [False] + 2 * [True])
        # sentencepiece 0.1.96 has no __version__.
        old = types.SimpleNamespace(SentencePieceProcessor=sentencepiece.SentencePieceProcessor)
        with mock.patch.object(tokenization, "sentencepiece", old):
            self.assertNotIn(tokenization.FullTokenizer(**options[0]).fingerprint, actual)

    def test_pieces_and_ids_match_sentencepiece(self):
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
                # The model's normalizer is "identity": it keeps accents and punctuation.
                self.assertEqual(self.reference.decode_pieces(tokens), expected)

    def test_invalid_bytes_and_lone_surrogates_are_dropped(self):
        tokenizer = tokenization.FullTokenizer("", spm_model_file=self.path)
        expected = self.reference.encode_as_pieces("red caf\u00e9")
        self.assertEqual(tokenizer.tokenize(b"red caf\xc3\xa9\xff"), expected)
        self.assertEqual(tokenizer.tokenize("red caf\u00e9\ud83d"), expected)

    def test_vocab_matches_sentencepiece(self):
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

    def test_special_pieces_may_have_other_names(self):
        model = _train(
            "--pad_id=2 --pad_piece=[PAD] --unk_id=0 --unk_piece=[UNK] --bos_id=1 "
            "--user_defined_symbols=[CLS],[SEP]"
        )
        path = self.write(model, "named.model")
        tokenizer = tokenization.FullTokenizer(None, False, spm_model_file=path)
        self.assertEqual(tokenizer.convert_tokens_to_ids(["[PAD]", "[UNK]", "\u4e2d"]), [2, 0, 0])
        # A user-defined symbol also matches in text.
        tokens = tokenizer.tokenize("red [SEP] dog")
        self.assertIn("[SEP]", tokens)
        self.assertEqual(tokens, _processor(model).encode_as_pieces("red [SEP] dog"))

    def test_models_without_special_pieces_are_refused(self):
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

    def test_invalid_model_files_are_refused(self):
        for content in (b"", b"[UNK]\n[CLS]\n[SEP]\n", self.model[:-1]):
            path = self.write(content, "bad.model")
            with self.assert_says("spm_model_file", path, "not a SentencePiece model"):
                tokenization.FullTokenizer(None, spm_model_file=path)
        path = os.path.join(self.get_temp_dir(), "none.model")
        with self.assert_says("spm_model_file", path, "cannot be read"):
            tokenization.FullTokenizer(None, spm_model_file=path)

    @needs_shared
    def test_real_model_matches_sentencepiece(self):
        path = os.path.join(SHARED, VIETNAMESE_MODEL)
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
    """Trains a small SentencePiece model that keeps white space and case; returns its bytes."""
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


class DamagedVocabularyTest(tf.test.TestCase):
    TEXT = "The dog, sees a BIRD. 狗 \u2028 naïve"

    def test_a_damaged_vocabulary_is_loaded_or_rejected(self):
        def read(folder):
            path = os.path.join(folder, "vocab.txt")
            for lower_case in (True, False):
                tokenizer = tokenization.FullTokenizer(path, lower_case)
                tokenizer.check_special_tokens()
                tokenizer.convert_tokens_to_ids(tokenizer.tokenize(self.TEXT))
                tokenization.check_vocab_casing(tokenizer.vocab, False, path)
                tokenization.check_vocab_size(tokenizer.vocab, len(tiny.VOCABULARY), path)

        mutations.check({"vocab.txt": "\n".join([*tiny.VOCABULARY, ""]).encode()}, read)

    def test_a_damaged_sentencepiece_model_is_loaded_or_rejected(self):
        sentences = ["the dog sees a bird", "the cat hears a man", "a woman likes the small cat"]
        options = {"vocab_size": 40, "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
        options["control_symbols"] = "[CLS],[SEP]"

        def read(folder):
            path = os.path.join(folder, "spm.model")
            tokenizer = tokenization.FullTokenizer(None, True, spm_model_file=path)
            tokenizer.convert_tokens_to_ids(tokenizer.tokenize(self.TEXT))
            tokenization.check_vocab_size(tokenizer.vocab, len(tokenizer.vocab), path)

        mutations.check({"spm.model": tiny.train_sentencepiece(sentences, **options)}, read)
