"""Encodes the no-BERT baseline's texts as ids of the strings that an embedding module reads.

A module embeds strings: whole texts and, for a convolution, words or n-grams. `StringVocabulary`
assigns an id to each string, so it is embedded once and a row is a few ids. N rows, T words.
"""

import itertools
import re
import unicodedata

import numpy as np

PADDING_ID = 0  # The empty string: padding, or a missing second text.

_NOT_ALPHANUMERIC = re.compile(r"[\W_]+")


def clean(text, lowercase, remove_non_alphanumeric):
    """Returns a text's words, joined by single spaces.

    Args:
      text: str; lone surrogates, which JSON may contain but UTF-8 cannot, are dropped.
      lowercase: bool.
      remove_non_alphanumeric: bool; whether all characters except letters and digits of any script,
        and marks on them, separate words.
    """
    text = text.encode("utf-8", "ignore").decode("utf-8")
    if lowercase:
        text = text.lower()
    if remove_non_alphanumeric:
        text = _NOT_ALPHANUMERIC.sub(_replacement, text)
    return " ".join(text.split())


def _replacement(match):
    """Returns a separator for non-alphanumerics, but keeps marks, such as vowels, on a letter."""
    marks = itertools.takewhile(lambda c: unicodedata.category(c).startswith("M"), match.group())
    mark_text = "".join(marks)
    return mark_text if mark_text == match.group() else mark_text + " "


class StringVocabulary:
    """Ids of strings, counted from 1; a new string gets the next id."""

    def __init__(self):
        self._ids = {"": PADDING_ID}

    def to_id(self, string):
        """Returns a string's id; `PADDING_ID` for the empty string."""
        return self._ids.setdefault(string, len(self._ids))

    def strings(self):
        """Returns all strings in the order of their ids; the first one is empty."""
        return list(self._ids)


def encode_texts(texts, settings, unit, max_words, vocabulary, has_pairs):
    """Returns the encoded texts of examples, without labels.

    Args:
      texts: list of N pairs of a text and a second one, which may be None or empty.
      settings: `search_space.TrialSettings`.
      unit: see `search_space.Module`.
      max_words: T; longer texts are truncated.
      vocabulary: `StringVocabulary`, to which new strings are added.
      has_pairs: whether any split of the task has second texts.

    Returns:
      dict of arrays of string ids: "text" [N], and "text_b" if `has_pairs`. With a
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


def _ngram_ids(words, n, max_words, vocabulary):
    """Returns int32 [N, T], the n-grams that begin at each word; those at the end are shorter."""
    ids = np.full([len(words), max_words], PADDING_ID, np.int32)
    for row, row_words in enumerate(words):
        ids[row, : len(row_words)] = [
            vocabulary.to_id(" ".join(row_words[start : start + n]))
            for start in range(len(row_words))
        ]
    return ids
