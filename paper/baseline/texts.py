"""Encodes the no-BERT baseline's texts as ids of the strings that an embedding module reads.

A module embeds strings: whole texts and, for a convolution, words or n-grams. `StringVocabulary`
assigns an id to each string, so it is embedded once and a row is a few ids. N rows, T words.
"""

import itertools
import re
import unicodedata
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from adapter_bert.paper.baseline.search_space import TrialSettings

TextPair = Tuple[str, Optional[str]]  # A text, and a second one or None.
PADDING_ID = 0  # The empty string: padding, or a missing second text.

_NOT_ALPHANUMERIC = re.compile(r"[\W_]+")


def clean(text: str, lowercase: bool, remove_non_alphanumeric: bool) -> str:
    """Returns a text's words, joined by single spaces.

    Args:
      text: lone surrogates, which JSON may contain but UTF-8 cannot, are dropped.
      remove_non_alphanumeric: whether all characters except letters and digits of any script,
        and marks on them, separate words.
    """
    text = text.encode("utf-8", "ignore").decode("utf-8")
    if lowercase:
        text = text.lower()
    if remove_non_alphanumeric:
        text = _NOT_ALPHANUMERIC.sub(_replacement, text)
    return " ".join(text.split())


def _replacement(match: "re.Match[str]") -> str:
    """Returns a separator for non-alphanumerics, but keeps marks, such as vowels, on a letter."""
    marks = itertools.takewhile(lambda c: unicodedata.category(c).startswith("M"), match.group())
    mark_text = "".join(marks)
    return mark_text if mark_text == match.group() else mark_text + " "


class StringVocabulary:
    """Ids of strings, counted from 1; a new string gets the next id."""

    def __init__(self) -> None:
        self._ids = {"": PADDING_ID}

    def to_id(self, string: str) -> int:
        """Returns a string's id; `PADDING_ID` for the empty string."""
        return self._ids.setdefault(string, len(self._ids))

    def strings(self) -> List[str]:
        """Returns all strings in the order of their ids; the first one is empty."""
        return list(self._ids)


def encode_texts(
    texts: Sequence[TextPair],
    settings: TrialSettings,
    unit: str,
    max_words: int,
    vocabulary: StringVocabulary,
    has_pairs: bool,
) -> Dict[str, np.ndarray]:
    """Returns the encoded texts of examples, without labels.

    Args:
      texts: N pairs, whose second text may also be empty.
      unit: see `search_space.Module`.
      max_words: T; longer texts are truncated.
      vocabulary: gets new strings.
      has_pairs: whether any split of the task has second texts.

    Returns:
      Arrays of string ids: "text" [N], and "text_b" if `has_pairs`. With a
      convolution also "ngrams_n" (and "ngrams_b_n") [N, T], the n-grams that begin at each word,
      for n = 1, or for all lengths if the unit is a text. "input_mask" [N, T] is 1 up to the longer
      text's last word; see `rows.PaddedRows`.
    """
    texts_by_suffix = {"": [a for a, _ in texts]}
    if has_pairs:
        texts_by_suffix["_b"] = [b or "" for _, b in texts]
    arrays, mask = {}, np.zeros([len(texts), max_words], np.int32)
    ngram_lengths = range(1, settings.conv_max_ngram + 1) if unit == "text" else (1,)
    for suffix, side_texts in texts_by_suffix.items():
        words = [
            clean(text, settings.lowercase, settings.remove_non_alphanumeric).split()[:max_words]
            for text in side_texts
        ]
        arrays["text" + suffix] = np.array([vocabulary.to_id(" ".join(w)) for w in words], np.int32)
        for row, row_words in enumerate(words):
            mask[row, : len(row_words)] = 1
        for n in ngram_lengths if settings.use_convolution else ():
            arrays[f"ngrams{suffix}_{n}"] = _ngram_ids(words, n, max_words, vocabulary)
    return {**arrays, "input_mask": mask}


def _ngram_ids(
    words: List[List[str]], n: int, max_words: int, vocabulary: StringVocabulary
) -> np.ndarray:
    """Returns int32 [N, T], the n-grams that begin at each word; those at the end are shorter."""
    ids = np.full([len(words), max_words], PADDING_ID, np.int32)
    for row, row_words in enumerate(words):
        ids[row, : len(row_words)] = [
            vocabulary.to_id(" ".join(row_words[start : start + n]))
            for start in range(len(row_words))
        ]
    return ids
