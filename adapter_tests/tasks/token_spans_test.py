"""Tests of token_spans.py: characters by hand, and by a walk over the text's characters."""

import unicodedata

import numpy as np
import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert.tasks import token_spans
from adapter_tests.support.file_cases import FileTestCase

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"()'-.,a", *(f"##{c}" for c in "abcdefs")]
VOCABULARY += ["cafe", "s", "b", "c", "un", "##able", "i", "##s", "北", "京", "か", "##な", "19"]
VOCABULARY += ["\u1112", "##\u1161", "##\u11ab", "#", "##ß", "20", "##1"]


def walk(text, pieces_of):
    """Returns (tokens, characters) of a lower-casing WordPiece tokenizer, word by word."""
    tokens, spans, word = [], [], []

    def finish():
        letters = [
            (letter, index)
            for index in word
            for letter in unicodedata.normalize("NFD", text[index].lower())
            if unicodedata.category(letter) != "Mn"
        ]
        for piece in pieces_of("".join(letter for letter, _ in letters)):
            length = len(piece) - 2 * (piece[:2] == "##" and len(piece) > 2)
            covered = letters[: len(letters) if piece == "[UNK]" else length]
            tokens.append(piece)
            spans.append((covered[0][1], covered[-1][1] + 1))
            del letters[: len(covered)]
        word.clear()

    for index, char in enumerate(text):
        alone = unicodedata.category(char)[0] == "P" or "\u4e00" <= char <= "\u9fff"
        if alone or char.isspace():
            finish()
        if not char.isspace():
            word.append(index)
        if alone:
            finish()
    finish()
    return tokens, spans


class WordPieceTest(FileTestCase):
    def tokenizer(self, do_lower_case=True):
        path = self.write("vocab.txt", "\n".join(VOCABULARY) + "\n")
        return tokenization.FullTokenizer(path, do_lower_case)

    def parts(self, text, tokenizer):
        tokens = tokenizer.tokenize(text)
        spans = zip(*token_spans.token_to_chars(text, tokens, tokenizer))
        return tokens, [text[start:end] for start, end in spans]

    def test_characters_by_hand(self):
        tokenizer = self.tokenizer()
        for text, tokens, parts in (
            ("Café's", "cafe ' s", "Café ' s"),
            ("(Cafe\u0301s", "( cafe ##s", "( Cafe\u0301 s"),
            ("\u0130s", "i ##s", "\u0130 s"),  # Lower-cased to an i and a dot, which is dropped.
            ("unABLE", "un ##able", "un ABLE"),
            ("a\u200bb.\ufffd", "a ##b .", "a b ."),
            ("a\u00a0b\u3000a", "a b a", "a b a"),
            ("zz-a", "[UNK] - a", "zz - a"),
            ("北京,魚京", "北 京 , [UNK] 京", "北 京 , 魚 京"),
            ("\ud55c", "\u1112 ##\u1161 ##\u11ab", "\ud55c \ud55c \ud55c"),  # A syllable's letters.
            ("x" * 201 + "a,", "[UNK] ,", "x" * 201 + "a ,"),
            ("##1", "# # [UNK]", "# # 1"),
            ("\u0301\u200b", "", ""),
        ):
            expected = tokens.split(), parts.split(" ") if parts else []
            self.assertEqual(self.parts(text, tokenizer), expected, text)
        cased = self.tokenizer(False)
        self.assertEqual(self.parts("zCafé-a", cased), (["[UNK]", "-", "a"], ["zCafé", "-", "a"]))

    def test_random_texts_equal_walk(self):
        tokenizer, random = self.tokenizer(), np.random.RandomState(0)
        letters = [*"aabcdefsABsßé", "e\u0301", *"北京魚かなカ(,.-'1920", "\u00a0", "\ud55c"]
        for _ in range(300):
            text = "".join(random.choice(letters, random.randint(1, 30)))
            tokens, spans = walk(text, tokenizer.wordpiece_tokenizer.tokenize)
            self.assertEqual(tokens, tokenizer.tokenize(text))
            found = token_spans.token_to_chars(text, tokens, tokenizer)
            ends = [end + (text[end : end + 1] == "\u0301") for _, end in spans]
            # An accent belongs to the last token of its letter.
            self.assertEqual(found, ([start for start, _ in spans], ends), text)


class PiecesTest(tf.test.TestCase):
    """SentencePiece normalizes characters: NFKC, lower case, without invisible ones."""

    def test_characters_by_hand(self):
        thai = "\u0e17\u0e35\u0e48", "\u0e01\u0e23\u0e38\u0e07"
        for text, pieces, parts in (
            ("(\uff11\uff19\uff18\uff15)", "\u2581( 19 85 )", "( \uff11\uff19 \uff18\uff15 )"),
            ("\ufb01sh,", "\u2581f ish ,", "\ufb01 \ufb01sh ,"),  # A ligature.
            ("a\u200bbc\u00ad\ud83dd", "\u2581a \u2581b c d", "a b c d"),
            ("(Cafe\u0301)", "\u2581 ( caf \u00e9 )", " ( Caf e\u0301 )"),
            ("\u30ab\uff76\uff9e.", "\u2581\u30ab \u30ac .", "\u30ab \uff76\uff9e ."),
            ("".join(thai), f"\u2581{thai[0]} {thai[1]}", " ".join(thai)),
            ("The\u03a3\u03a3", "\u2581 the \u03c3 \u03c2", " The \u03a3 \u03a3"),
            ("北京北京", "\u2581北京 北京", "北京 北京"),
            # Bytes of a character that the model lacks.
            ("a\u00fea", "\u2581a <0xC3> <0xBE> a", "a \u00fe \u00fe a"),
            ("a\u00fe", "\u2581a <0xC3> <0xBE>", "a \u00fe \u00fe"),
        ):
            spans = token_spans.token_to_chars(text, pieces.split(" "), object())
            self.assertEqual([text[a:b] for a, b in zip(*spans)], parts.split(" "), text)
