"""Tests of tag_schemes.py: hand-written examples of each scheme, and comparisons with seqeval."""

import numpy as np
import tensorflow.compat.v1 as tf
from seqeval.metrics import sequence_labeling

from adapter_bert.tasks.tagging import tag_schemes
from adapter_bert.tasks.tagging.tag_schemes import Chunk, Notation

# One sentence in each scheme.
CHUNKS = [Chunk("PER", 0, 2), Chunk("PER", 2, 3), Chunk("LOC", 3, 4), Chunk("ORG", 5, 8)]
SENTENCES = {
    "IOB1": "I-PER I-PER B-PER I-LOC O I-ORG I-ORG I-ORG",
    "IOB2": "B-PER I-PER B-PER B-LOC O B-ORG I-ORG I-ORG",
    "IOBES": "B-PER E-PER S-PER S-LOC O B-ORG I-ORG E-ORG",
    "BILOU": "B-PER L-PER U-PER U-LOC O B-ORG I-ORG L-ORG",
    "BMES": "B-PER E-PER S-PER S-LOC O B-ORG M-ORG E-ORG",
    "BMEWO": "B-PER E-PER W-PER W-LOC O B-ORG M-ORG E-ORG",
}


def random_chunks(random, length=20, labels=("A", "B")):
    chunks, start = [], 0
    while start < length:
        end = min(length, start + random.randint(1, 4))
        if random.rand() < 0.6:
            chunks.append(Chunk(random.choice(labels), start, end))
        start = end
    return chunks


class TagSchemesTest(tf.test.TestCase):
    def test_every_scheme_has_the_same_chunks(self):
        self.assertEqual(set(SENTENCES), set(tag_schemes.SCHEMES))
        for scheme, text in SENTENCES.items():
            for separator in "-_":
                tags = text.replace("-", separator).split()
                notation = Notation(scheme, separator)
                self.assertEqual(tag_schemes.chunks(tags), CHUNKS, scheme)
                self.assertEqual(notation.tags_of(CHUNKS, 8), tags)
                self.assertEqual(tag_schemes.to_iob2(tags), SENTENCES["IOB2"].split())
                self.assertEqual(tag_schemes.notation_of([["O"], tags]), notation)
            # Without types, the first three are adjacent chunks of one type.
            tags = [tag[0] for tag in text.split()]
            if scheme == "IOB1":
                tags[3] = "B"
            untyped = [Chunk("", start, end) for _, start, end in CHUNKS]
            notation = Notation(scheme, "")
            self.assertEqual(tag_schemes.chunks(tags), untyped, scheme)
            self.assertEqual(notation.tags_of(untyped, 8), tags)
            self.assertEqual(tag_schemes.to_iob2(tags), ["B", "I", "B", "B", "O", "B", "I", "I"])
            self.assertEqual(tag_schemes.notation_of([["O"], tags]), notation)

    def test_chunks_of_malformed_tags_equal_conlleval(self):
        for text, expected in (
            ("O I-PER O", [Chunk("PER", 1, 2)]),
            ("B-PER I-LOC", [Chunk("PER", 0, 1), Chunk("LOC", 1, 2)]),
            ("E-PER E-PER I-PER", [Chunk("PER", i, i + 1) for i in range(3)]),
            ("S-PER I-PER", [Chunk("PER", 0, 1), Chunk("PER", 1, 2)]),
            ("B-A-B I-A-B I-A", [Chunk("A-B", 0, 2), Chunk("A", 2, 3)]),
            ("", []),
        ):
            self.assertEqual(tag_schemes.chunks(text.split()), expected, text)

    def test_chunks_of_random_tags_equal_seqeval(self):
        random = np.random.RandomState(0)
        for types, none in ((("-X", "-Y-Z"), None), (("",), "_")):
            tags = ["O", *(f"{letter}{name}" for letter in "BIES" for name in types)]
            for _ in range(200):
                sentence = random.choice(tags, random.randint(1, 12)).tolist()
                expected = [
                    ("" if name == none else name, start, end + 1)
                    for name, start, end in sequence_labeling.get_entities(sentence)
                ]
                found = [tuple(chunk) for chunk in tag_schemes.chunks(sentence)]
                self.assertEqual(found, expected, sentence)

    def test_random_chunks_round_trip_in_every_scheme(self):
        random = np.random.RandomState(1)
        for _ in range(100):
            for separator, labels in (("-", "AB"), ("_", "AB"), ("", [""])):
                chunks = random_chunks(random, labels=list(labels))
                for scheme in tag_schemes.SCHEMES:
                    tags = Notation(scheme, separator).tags_of(chunks, 20)
                    self.assertEqual(tag_schemes.chunks(tags), chunks)

    def test_notation_of_a_file_is_detected(self):
        for sentences, expected in (
            (["B-X I-X O", "O B-X"], "IOB2-"),
            (["I-X I-X", "O"], "IOB1-"),
            (["I-X B-X", "O"], "IOB1-"),
            (["I-X", "B-X", "O"], "IOB2-"),
            (["I-X", "B-X", "O I-Y"], "IOB1-"),  # All tags but one fit.
            (["I-X", "B-X", "O B-Y"], "IOB2-"),
            (["B-X I-X E-X", "O"], "IOBES-"),
            (["U-X O"], "BILOU-"),
            (["O B_X I_X"], "IOB2_"),
            (["O B I"], "IOB2"),
            (["O I I"], "IOB1"),
            (["B O"], "IOB2"),
            (["B E S", "B M M E"], "BMES"),  # Segmented words.
            (["B-NN E-NN S-VB"], "IOBES-"),
            (["B I", "B"], "IOB2"),
            (["B L U", "B I L"], "BILOU"),
            (["B-NP I-NP B-VP"], "IOB2-"),  # Chunks without gaps.
            (["I_NP B_NP I_VP"], "IOB1_"),
            (["B-X"], "IOB2-"),
            (["O I-NP broken"], "IOB1-"),
            # Other tags.
            (["O O"], None),
            (["I-X S-Y"], None),
            (["B-X NN I-X"], None),
            (["B", "I N"], None),
            (["B L"], None),
            (["N V B"], None),
            (["O E-MAIL PHONE URL"], None),
            (["NN VB O"], None),
            (["O B I N"], None),
            (["O S E"], None),
            (["O b-PER i-PER"], None),
            (["O BPER IPER"], None),
        ):
            found = tag_schemes.notation_of([sentence.split() for sentence in sentences])
            self.assertEqual(found and "".join(found), expected, sentences)
        self.assertIsNone(tag_schemes.notation_of([["O", "B", "I"]], "none"))
        self.assertEqual(tag_schemes.notation_of([["O", "B_X"]], "BMES"), ("BMES", "_"))

    def test_scheme_of_the_training_file_is_taken_if_it_fits_as_well(self):
        for text, like, expected in (
            ("B E S", "BMES", "BMES"),
            ("B E O", "BMEWO", "BMEWO"),
            ("O I", "BILOU", "IOB1"),
            ("B I E S", "BMES", "IOBES"),
            ("B I O", "IOBES", "IOB2"),
            ("B I O", "IOB1", "IOB2"),
            ("O I", "IOB2", "IOB1"),
            ("S O", "BMES", "BMES"),
            ("U B I L", "IOB2", "BILOU"),
        ):
            tags = [letter + "_X" * (letter != "O") for letter in text.split()]
            found = tag_schemes.notation_of([["O"], tags], "auto", Notation(like, "-"))
            self.assertEqual(found, (expected, "_"), (tags, like))

    def test_labels_of_chunks_are_recognized(self):
        for labels, expected in (
            (("O", "B-PER", "I-PER"), True),
            (("B", "I", "O"), True),
            (("O", "B_PER", "I_PER"), False),  # Of an older version, which learned them as others.
            (("O", "B"), False),
            (("B-PER", "I-PER"), False),
            (("O",), False),
            (("N", "V"), False),
        ):
            self.assertEqual(tag_schemes.mark_chunks(labels), expected, labels)
