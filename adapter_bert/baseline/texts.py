"""Texts of the no-BERT baseline → the strings that a text embedding module reads, by number.

A module embeds strings: whole texts and, for a convolution, words or n-grams. `StringNumbers`
numbers those that occur, so that each is embedded once and a row is a few numbers. N rows, T words.
"""

import itertools
import re
import unicodedata

import numpy as np

from adapter_bert.common.errors import UserError

NOTHING = 0  # The number of no string at all: padding, and the second text where there is one only.

_NOT_ALPHANUMERIC = re.compile(r"[\W_]+")


def cleaned(text, lowercase, remove_non_alphanumeric):
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
        text = _NOT_ALPHANUMERIC.sub(_parting, text)
    return " ".join(text.split())


def _parting(match):
    """What takes the place of non-alphanumerics: marks, such as vowels, stay on their letter."""
    marks = itertools.takewhile(lambda c: unicodedata.category(c).startswith("M"), match.group())
    kept = "".join(marks)
    return kept if kept == match.group() else kept + " "


class StringNumbers:
    """Strings by number, from 1 on; what has none gets the next."""

    def __init__(self):
        self._numbers = {"": NOTHING}

    def number(self, string):
        """Its number; `NOTHING` for the empty string."""
        return self._numbers.setdefault(string, len(self._numbers))

    def listed(self):
        """All of them in the order of their numbers, the empty one first."""
        return list(self._numbers)


def number_texts(texts, settings, unit, max_words, strings):
    """What a model reads of some examples, but for their labels.

    Args:
      texts: list of N pairs of a text and a second one, which may be None or empty.
      settings: `baseline_space.Settings`.
      unit: a key of `baseline_space.UNITS`.
      max_words: T; longer texts are cut.
      strings: `StringNumbers`, which gets those that occur.

    Returns:
      dict of arrays of numbers of strings: "text" [N], and "text_b" if any row has a second text;
      with a convolution "ngrams_n" (and "ngrams_b_n") [N, T] of the n-grams that begin at each
      word, for n = 1 or, where the unit is a text, each n to the longest. "input_mask" [N, T] is 1
      up to the longer text's last word: see `rows.PaddedRows`.
    """
    parts = {"": [a for a, _ in texts]}
    if any(b for _, b in texts):
        parts["_b"] = [b or "" for _, b in texts]
    arrays, mask = {}, np.zeros([len(texts), max_words], np.int32)
    lengths = range(1, settings.conv_max_ngram + 1) if unit == "text" else (1,)
    for end, some in parts.items():
        words = [
            cleaned(text, settings.lowercase, settings.remove_non_alphanumeric).split()[:max_words]
            for text in some
        ]
        arrays["text" + end] = np.array([strings.number(" ".join(w)) for w in words], np.int32)
        for row, own in enumerate(words):
            mask[row, : len(own)] = 1
        for n in lengths if settings.use_convolution else ():
            arrays[f"ngrams{end}_{n}"] = _ngrams(words, n, max_words, strings)
    return {**arrays, "input_mask": mask}


def _ngrams(words, n, max_words, strings):
    """int32 [N, T]: the n-grams that begin at each word, those at the end as long as they come."""
    found = np.full([len(words), max_words], NOTHING, np.int32)
    for row, own in enumerate(words):
        found[row, : len(own)] = [
            strings.number(" ".join(own[start : start + n])) for start in range(len(own))
        ]
    return found


def check(rows, settings, where):
    """Raises UserError unless some text has a word left.

    Args:
      rows: what `number_texts` made of the training texts.
      settings: `baseline_space.Settings`.
      where: what the texts are of, for the error.
    """
    if not rows["input_mask"].any():
        what = "what is not alphanumeric is removed"
        when = f" once {what}" if settings.remove_non_alphanumeric else ""
        raise UserError(
            f"{where}: found no word in any of {len(rows['text'])} training texts{when}, so that"
            " the vocabulary is empty; expected texts with words."
        )
