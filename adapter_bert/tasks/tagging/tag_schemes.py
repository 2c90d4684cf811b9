"""Converts chunk tags of several schemes to chunks, and back.

Chunks are decoded as in conlleval, for any scheme: B and S begin a chunk. So do I and E after O,
after the end of a chunk, or after a chunk of another type.

    Peter  Blackburn  BRUSSELS  saw  EU
    I-PER  I-PER      I-LOC     O    I-ORG    IOB1: B only between adjacent chunks of one type
    B-PER  I-PER      B-LOC     O    B-ORG    IOB2: B begins every chunk
    B-PER  E-PER      S-LOC     O    S-ORG    IOBES: E ends a chunk, S is a single word

BILOU has L and U for E and S, BMES has M for I, and BMEWO has M for I and W for S. The type may
follow an underscore, as in B_PER, or be missing: B, I and O mark chunks of a single, unnamed type.
"""

import re
from typing import Collection, Iterable, List, NamedTuple, Optional, Sequence, Tuple

OUTSIDE = "O"
# Scheme → the letters of a chunk's first word, inner words and last word, and of a single word.
SCHEMES = {
    "IOB1": "IIII",
    "IOB2": "BIIB",
    "IOBES": "BIES",
    "BILOU": "BILU",
    "BMES": "BMES",
    "BMEWO": "BMEW",
}
_TAG = re.compile("([BIESLUMW])(?:([-_])(.+))?", re.DOTALL)
_AS_IOBES = {"L": "E", "U": "S", "M": "I", "W": "S"}


class Chunk(NamedTuple):
    """A labelled chunk: the words [start, end). The label is "" in tags without types."""

    label: str
    start: int
    end: int


class Notation(NamedTuple):
    """How tags mark chunks.

    Attributes:
      scheme: one of `SCHEMES`.
      separator: between letter and type, "-" or "_"; "" for tags without types.
    """

    scheme: str = "IOB2"
    separator: str = "-"

    def is_tag(self, tag: str) -> bool:
        """Returns whether a tag is O, or a letter of any scheme with a type, or without one."""
        match = _TAG.fullmatch(tag)
        return tag == OUTSIDE or match is not None and (match.group(2) or "") == self.separator

    def tags_of(self, sentence_chunks: Iterable[Chunk], length: int) -> List[str]:
        """Returns the tags of a sentence's chunks, in order, and its number of words."""
        first, inner, last, single = list(SCHEMES[self.scheme])
        tags = [OUTSIDE] * length
        previous = None
        for chunk in sentence_chunks:
            label, start, end = chunk
            letters = [first, *[inner] * (end - start - 2), last] if end - start > 1 else [single]
            follows = previous is not None and (previous.label, previous.end) == (label, start)
            if self.scheme == "IOB1" and follows:
                letters[0] = "B"
            separator = self.separator if label else ""
            tags[start:end] = [f"{letter}{separator}{label}" for letter in letters]
            previous = chunk
        return tags


IOB2 = Notation()  # Of the labels that models learn.


def mark_chunks(labels: Collection[str]) -> bool:
    """Returns whether a task's labels are chunk tags: O, and others of which half are as B-PER.

    Labels of a single, unnamed type are O, B and I.
    """
    others = set(labels) - {OUTSIDE}
    if OUTSIDE not in labels or not others:
        return False
    return others == {"B", "I"} or len(others) <= 2 * sum(map(IOB2.is_tag, others))


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
        continues = label is not None and tag_label == label and letter in "IE"
        if label is not None and not continues:
            result.append(Chunk(label, start, index))
            label = None
        if tag_label is not None and label is None:
            label, start = tag_label, index
        if label is not None and letter in "ES":
            result.append(Chunk(label, start, index + 1))
            label = None
    return result


def type_of(tag: str) -> str:
    """Returns the type of a chunk tag, "" without one; of O and other tags, the tag."""
    _, label = _split(tag)
    return tag if label is None else label


def _split(tag: str) -> Tuple[str, Optional[str]]:
    """Returns a tag's letter in IOBES and its type, "" without one; None for O."""
    match = _TAG.fullmatch(tag)
    if match is None:
        return OUTSIDE, None
    letter = match.group(1)
    return _AS_IOBES.get(letter, letter), match.group(3) or ""


def to_iob2(tags: Sequence[str]) -> List[str]:
    """Returns a sentence's tags, given in any scheme, in IOB2."""
    return IOB2.tags_of(chunks(tags), len(tags))


def notation_of(
    sentences: Sequence[Sequence[str]], scheme: str = "auto", like: Optional[Notation] = None
) -> Optional[Notation]:
    """Returns the notation of a file's tags; None if they do not mark chunks.

    Tags mark chunks if they are O and others of which at least half are as B-PER or as B_PER; or O
    and others that are all letters, among them B or I. In files without O, as of segmented words,
    all tags are as B-NP, some with B; or are B and I; or are letters, among them B, E or B, L, U.

    IOB1 and IOB2 are decided by majority: CoNLL-2003's eng.train is IOB1 except for two tags. If
    several schemes fit, it is that of `like`, or else IOB2.

    Args:
      sentences: the tags of each sentence.
      scheme: one of `SCHEMES`, "auto", or "none" for tags that do not mark chunks.
      like: the notation of the training file, if it is known.
    """
    if scheme == "none":
        return None
    tags = {tag for each in sentences for tag in each}
    others = tags - {OUTSIDE}
    by_separator = {
        separator: {tag for tag in others if Notation(separator=separator).is_tag(tag)}
        for separator in ((like or IOB2).separator, "-", "_", "")
    }
    separator = max(by_separator, key=lambda each: len(by_separator[each]))
    chunk_tags = by_separator[separator]
    letters = {tag[0] for tag in chunk_tags}
    if scheme != "auto":
        return Notation(scheme, separator)
    if OUTSIDE not in tags:
        is_typed = bool(separator) and "B" in letters
        is_untyped = letters == {"B", "I"} or any(set(each) <= letters for each in ("BE", "BLU"))
        is_notation = chunk_tags == others and (is_typed or is_untyped)
    elif separator:
        is_notation = 0 < len(others) <= 2 * len(chunk_tags)
    else:
        is_notation = chunk_tags == others and bool(letters & {"B", "I"})
    if not is_notation:
        return None
    by_letter = (("BMEWO", "W"), ("BMES", "M"), ("IOBES", "ES"), ("BILOU", "LU"))
    schemes = [name for name, others in by_letter if set(others) & letters][:1] or ["IOB2", "IOB1"]
    if like:
        schemes.insert(0, like.scheme)
    return Notation(min(schemes, key=lambda each: _errors(sentences, each)), separator)


def _errors(sentences: Iterable[Sequence[str]], scheme: str) -> int:
    """Returns how many tags have another letter in a scheme."""
    return sum(
        a[0] != b[0]
        for tags in sentences
        for a, b in zip(Notation(scheme).tags_of(chunks(tags), len(tags)), tags)
    )
