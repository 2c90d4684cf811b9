"""Tests of tag_schemes.py: hand-written examples of each scheme, and comparisons with seqeval."""

import numpy as np
import tensorflow.compat.v1 as tf
from seqeval.metrics import sequence_labeling

from adapter_bert.tasks import tag_schemes
from adapter_bert.tasks.tag_schemes import Chunk

# One sentence in each scheme.
CHUNKS = [Chunk("PER", 0, 2), Chunk("PER", 2, 3), Chunk("LOC", 3, 4), Chunk("ORG", 5, 8)]
NOTATIONS = {
    "IOB1": "I-PER I-PER B-PER I-LOC O I-ORG I-ORG I-ORG",
    "IOB2": "B-PER I-PER B-PER B-LOC O B-ORG I-ORG I-ORG",
    "IOBES": "B-PER E-PER S-PER S-LOC O B-ORG I-ORG E-ORG",
    "BILOU": "B-PER L-PER U-PER U-LOC O B-ORG I-ORG L-ORG",
}


class TagSchemesTest(tf.test.TestCase):
    def test_every_scheme_has_the_same_chunks(self):
        for scheme, text in NOTATIONS.items():
            tags = text.split()
            self.assertEqual(tag_schemes.chunks(tags), CHUNKS, scheme)
            self.assertEqual(tag_schemes.tags_of(CHUNKS, 8, scheme), tags)
            self.assertEqual(tag_schemes.to_iob2(tags), NOTATIONS["IOB2"].split())
            self.assertEqual(tag_schemes.scheme_of([["O"], tags]), scheme)

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
        tags = ["O", *(f"{letter}-{name}" for letter in "BIES" for name in ("X", "Y-Z"))]
        for _ in range(200):
            sentence = random.choice(tags, random.randint(1, 12)).tolist()
            expected = [
                (name, start, end + 1)
                for name, start, end in sequence_labeling.get_entities(sentence)
            ]
            self.assertEqual([tuple(c) for c in tag_schemes.chunks(sentence)], expected, sentence)

    def test_random_chunks_round_trip_in_every_scheme(self):
        random = np.random.RandomState(1)
        for _ in range(100):
            chunks, start = [], 0
            while start < 20:
                end = start + random.randint(1, 4)
                if random.rand() < 0.6:
                    chunks.append(Chunk(random.choice(["A", "B"]), start, end))
                start = end
            for scheme in NOTATIONS:
                tags = tag_schemes.tags_of(chunks, start, scheme)
                self.assertEqual(tag_schemes.chunks(tags), chunks)

    def test_scheme_of_a_file_is_detected(self):
        for sentences, expected in (
            (["O O"], "IOB2"),
            (["B-X I-X O", "O B-X"], "IOB2"),
            (["I-X I-X", "O"], "IOB1"),
            (["I-X B-X"], "IOB1"),
            (["I-X", "B-X"], "IOB2"),
            (["I-X", "B-X", "O I-Y"], "IOB1"),  # All tags but one fit.
            (["I-X", "B-X", "O B-Y"], "IOB2"),
            (["B-X I-X E-X"], "IOBES"),
            (["U-X"], "BILOU"),
        ):
            found = tag_schemes.scheme_of([sentence.split() for sentence in sentences])
            self.assertEqual(found, expected, sentences)

    def test_chunk_tags_are_recognized(self):
        for tags, expected in (
            ({"O", "B-PER"}, True),
            ({"O", "I-NP", "broken"}, True),
            ({"O", "E-MAIL", "PHONE", "URL"}, False),
            ({"NN", "VB", "O"}, False),
            ({"O"}, False),
            ({"B-PER"}, False),
        ):
            self.assertEqual(tag_schemes.are_chunk_tags(tags), expected, tags)
        self.assertTrue(tag_schemes.is_chunk_tag("E-x"))
        for tag in ("B", "B-", "b-PER", "X-PER", "BPER", ""):
            self.assertFalse(tag_schemes.is_chunk_tag(tag), tag)
