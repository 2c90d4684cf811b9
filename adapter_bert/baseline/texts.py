"""Encodes texts of the no-BERT baseline as ids of the strings that an embedding module reads.

A module embeds strings: whole texts and, for a convolution, words or n-grams. `StringVocabulary`
gives each string an id, so that it is embedded once and a row is a few ids. N rows, T words.
"""

import itertools
import re
import unicodedata

import numpy as np

from adapter_bert.common.errors import UserError

PADDING_ID = 0  # Of the empty string: padding, and the second text where there is only one.

_NOT_ALPHANUMERIC = re.compile(r"[\W_]+")


def clean(text, lowercase, remove_non_alphanumeric):
    """A text's words, with one space between them.

    Args:
      text: str.
      lowercase: bool.
      remove_non_alphanumeric: bool; what is neither letter nor digit, in any script, nor a mark on
        one, parts words.

    Half a surrogate pair, which JSON may hold and UTF-8 may not, is left out.
    """
    text = text.encode("utf-8", "ignore").decode("utf-8")
    if lowercase:
        text = text.lower()
    if remove_non_alphanumeric:
        text = _NOT_ALPHANUMERIC.sub(_replacement, text)
    return " ".join(text.split())


def _replacement(match):
    """What takes the place of non-alphanumerics: marks, such as vowels, stay on their letter."""
    marks = itertools.takewhile(lambda c: unicodedata.category(c).startswith("M"), match.group())
    mark_text = "".join(marks)
    return mark_text if mark_text == match.group() else mark_text + " "


class StringVocabulary:
    """Ids of strings, from 1 on; a new string gets the next id."""

    def __init__(self):
        self._ids = {"": PADDING_ID}

    def to_id(self, string):
        """Returns a string's id; `PADDING_ID` for the empty string."""
        return self._ids.setdefault(string, len(self._ids))

    def strings(self):
        """Returns all strings in the order of their ids, the empty one first."""
        return list(self._ids)


def encode_texts(texts, settings, unit, max_words, vocabulary):
    """What a model reads of some examples, but for their labels.

    Args:
      texts: list of N pairs of a text and a second one, which may be None or empty.
      settings: `search_space.Settings`.
      unit: a key of `search_space.UNITS`.
      max_words: T; longer texts are cut.
      vocabulary: `StringVocabulary`, which gets those that occur.

    Returns:
      dict of arrays of ids of strings: "text" [N], and "text_b" if any row has a second text;
      with a convolution "ngrams_n" (and "ngrams_b_n") [N, T] of the n-grams that begin at each
      word, for n = 1 or, where the unit is a text, each n to the longest. "input_mask" [N, T] is 1
      up to the longer text's last word: see `rows.PaddedRows`.
    """
    texts_by_suffix = {"": [a for a, _ in texts]}
    if any(b for _, b in texts):
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
    """int32 [N, T]: the n-grams that begin at each word, those at the end as long as they come."""
    ids = np.full([len(words), max_words], PADDING_ID, np.int32)
    for row, row_words in enumerate(words):
        ids[row, : len(row_words)] = [
            vocabulary.to_id(" ".join(row_words[start : start + n]))
            for start in range(len(row_words))
        ]
    return ids


def check_not_empty(rows, settings, where):
    """Raises UserError unless some text has a word left.

    Args:
      rows: what `encode_texts` made of the training texts.
      settings: `search_space.Settings`.
      where: what the texts are of, for the error.
    """
    if not rows["input_mask"].any():
        removal = "what is not alphanumeric is removed"
        condition = f" once {removal}" if settings.remove_non_alphanumeric else ""
        raise UserError(
            f"{where}: found no word in any of {len(rows['text'])} training texts{condition}, so"
            " that the vocabulary is empty; expected texts with words."
        )
