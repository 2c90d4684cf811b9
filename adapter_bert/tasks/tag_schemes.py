"""Converts chunk tags of the schemes IOB1, IOB2, IOBES and BILOU to chunks, and back.

Chunks are decoded as in conlleval, for any scheme: B and S begin a chunk. So do I and E after O,
after the end of a chunk, or after a chunk of another type.

    Peter  Blackburn  BRUSSELS  saw  EU
    I-PER  I-PER      I-LOC     O    I-ORG    IOB1: B only between adjacent chunks of one type
    B-PER  I-PER      B-LOC     O    B-ORG    IOB2: B begins every chunk
    B-PER  E-PER      S-LOC     O    S-ORG    IOBES: E ends a chunk, S is a single word; BILOU: L, U
"""

import re
from typing import Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

OUTSIDE = "O"
_TAG = re.compile("([BIESLU])-(.+)", re.DOTALL)
_ENDS = {"IOBES": ("E", "S"), "BILOU": ("L", "U")}  # The letters of a last word and a single word.


class Chunk(NamedTuple):
    """A labelled chunk: the words [start, end)."""

    label: str
    start: int
    end: int


def is_chunk_tag(tag: str) -> bool:
    """Returns whether a tag is O, or a letter and a type as in B-PER."""
    return tag == OUTSIDE or _TAG.fullmatch(tag) is not None


def are_chunk_tags(tags: Iterable[str]) -> bool:
    """Returns whether tags are those of chunks: O, and at least half of the others as B-PER."""
    tags = set(tags)
    others = tags - {OUTSIDE}
    return OUTSIDE in tags and 0 < len(others) <= 2 * sum(map(is_chunk_tag, others))


def chunks(tags: Sequence[str]) -> List[Chunk]:
    """Returns the chunks of a sentence's tags, in order.

    Args:
      tags: chunk tags, in any scheme.
    """
    result: List[Chunk] = []
    label: Optional[str] = None  # Of the open chunk.
    start = 0
    for index, tag in enumerate([*tags, OUTSIDE]):
        letter, tag_label = _split(tag)
        continues = label is not None and tag_label == label and letter in "IEL"
        if label is not None and not continues:
            result.append(Chunk(label, start, index))
            label = None
        if tag_label is not None and label is None:
            label, start = tag_label, index
        if label is not None and letter in "ESLU":
            result.append(Chunk(label, start, index + 1))
            label = None
    return result


def _split(tag: str) -> Tuple[str, Optional[str]]:
    match = _TAG.fullmatch(tag)
    return (match.group(1), match.group(2)) if match else (OUTSIDE, None)


def tags_of(sentence_chunks: Iterable[Chunk], length: int, scheme: str = "IOB2") -> List[str]:
    """Returns the tags of a sentence's chunks.

    Args:
      sentence_chunks: in order.
      length: number of words in the sentence.
      scheme: one of IOB1, IOB2, IOBES and BILOU.
    """
    tags = [OUTSIDE] * length
    previous = None
    for chunk in sentence_chunks:
        label, start, end = chunk
        tags[start:end] = [f"I-{label}"] * (end - start)
        follows = previous is not None and (previous.label, previous.end) == (label, start)
        if scheme != "IOB1" or follows:
            tags[start] = f"B-{label}"
        if scheme in _ENDS:
            last, alone = _ENDS[scheme]
            tags[end - 1] = f"{last if end - start > 1 else alone}-{label}"
        previous = chunk
    return tags


def to_iob2(tags: Sequence[str]) -> List[str]:
    """Returns a sentence's tags, given in any scheme, in IOB2."""
    return tags_of(chunks(tags), len(tags))


def scheme_of(sentences: Iterable[Sequence[str]]) -> str:
    """Returns the scheme of a file's tags: IOB1, IOB2, IOBES or BILOU; IOB2 if several fit.

    IOB1 and IOB2 are decided by majority: CoNLL-2003's eng.train is IOB1 except for two tags.

    Args:
      sentences: the tags of each sentence.
    """
    letters: Set[str] = set()
    errors = {"IOB1": 0, "IOB2": 0}
    for tags in sentences:
        letters.update(_split(tag)[0] for tag in tags)
        for scheme in errors:
            expected = tags_of(chunks(tags), len(tags), scheme)
            errors[scheme] += sum(a != b for a, b in zip(expected, tags))
    for scheme, ends in _ENDS.items():
        if letters & set(ends):
            return scheme
    return "IOB1" if errors["IOB1"] < errors["IOB2"] else "IOB2"
