"""Encodes sentences as rows, and marks the positions at which each word's tag is read.

A word's tag is read at its first WordPiece (Devlin et al. 2018, section 5.3). A sentence that is
too long for a row is read in overlapping windows. Each word's tag is read only in the window that
shows most context around it, so that it is trained and predicted once.

Axes: N rows, S positions, T WordPieces of all rows.
"""

import weakref
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence

import numpy as np

from adapter_bert.training.rows import PARTS, TextRows

# The values of "label_ids"; tag i is encoded as i + FIRST_TAG.
IGNORED = 0  # No tag is read at this position.
UNKNOWN = 1  # A tag is read here, but the true one is unknown or not in the task's labels.
FIRST_TAG = 2

_MAX_CACHED_WORDS = 100000  # Per tokenizer.
_MAX_CACHED_LENGTH = 30  # Characters of a cached word.
_CACHES: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()  # Tokenizer → word → ids.
_TOKENS_PER_PART = 1 << 18  # Tokens that `add_rows` passes on at a time.


class WordWindow(NamedTuple):
    """The words [start, end) of a sentence, of which the tags of [first, last) are read."""

    start: int
    end: int
    first: int
    last: int


def windows(lengths: Sequence[int], room: int) -> List[WordWindow]:
    """Returns windows of a sentence such that each word's tag is read in exactly one.

    Adjacent windows share about half of their WordPieces. The tag of a shared word is read in the
    window that has more WordPieces on the word's shorter side.

    Args:
      lengths: number of WordPieces of each word, from 1 to `room`.
      room: the most WordPieces of a window.
    """
    num_words = len(lengths)
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    result: List[WordWindow] = []
    start, first = 0, 0
    while num_words:
        end = int(np.searchsorted(ends, ends[start] + room, "right")) - 1
        if end >= num_words:
            result.append(WordWindow(start, num_words, first, num_words))
            break
        # The overlap is at most half of a window, and leaves room for one more word.
        shared = min(room // 2, room - int(lengths[end]))
        next_start = max(start + 1, int(np.searchsorted(ends, ends[end] - shared, "left")))
        middle = (ends[next_start] + ends[end]) / 2
        last = int(np.clip(np.searchsorted(ends, middle, "left"), next_start, end))
        result.append(WordWindow(start, end, first, last))
        start, first = next_start, last
    return result


class WordPieces:
    """The ids of words, each word truncated to the length of a row.

    Args:
      tokenizer: `tokenization.FullTokenizer`.
      max_seq_length: of a row, including [CLS] and [SEP].
    """

    def __init__(self, tokenizer: Any, max_seq_length: int):
        self.room = max_seq_length - 2
        self._tokenizer = tokenizer
        self._ids: Dict[str, List[int]] = _CACHES.setdefault(tokenizer, {})

    def ids(self, word: str) -> List[int]:
        """Returns a word's ids; [UNK] for one without WordPieces, such as a control character."""
        ids = self._ids.get(word)
        if ids is None:
            if len(self._ids) >= _MAX_CACHED_WORDS:
                self._ids.clear()
            tokens = self._tokenizer.tokenize(word) or ["[UNK]"]
            ids = list(self._tokenizer.convert_tokens_to_ids(tokens))
            if len(word) <= _MAX_CACHED_LENGTH:
                self._ids[word] = ids
        return ids[: self.room]


class EncodedWindow(NamedTuple):
    """A window's ids without [CLS] and [SEP], and a label for each; see `IGNORED`."""

    ids: List[int]
    labels: List[int]


def rows_of(
    words: Sequence[str], tag_ids: Optional[Sequence[int]], pieces: WordPieces
) -> Iterable[EncodedWindow]:
    """Yields the rows of a sentence.

    Args:
      words: list of str.
      tag_ids: index of each word's tag, -1 if it is not among the task's; None if all tags are
        unknown.
      pieces: `WordPieces`.
    """
    word_ids = [pieces.ids(word) for word in words]
    for window in windows([len(ids) for ids in word_ids], pieces.room):
        row = EncodedWindow([], [])
        for index in range(window.start, window.end):
            label = IGNORED
            if window.first <= index < window.last:
                tag_id = -1 if tag_ids is None else tag_ids[index]
                label = UNKNOWN if tag_id < 0 else tag_id + FIRST_TAG
            row.ids.extend(word_ids[index])
            row.labels.extend([label] + [IGNORED] * (len(word_ids[index]) - 1))
        yield row


def add_rows(sentences: Iterable[tuple], pieces: WordPieces, add: Callable) -> None:
    """Passes the arrays of `TaggedRows` on in parts.

    Args:
      sentences: iterable of (words, tag_ids); see `rows_of`.
      pieces: `WordPieces`.
      add: function of a dict of arrays; the parts' arrays are to be concatenated.
    """
    ids: List[int] = []
    labels: List[int] = []
    starts: List[int] = []
    lengths: List[int] = []
    offset = 0

    def flush() -> None:
        zeros = np.zeros(len(starts), np.int64)
        add(
            {
                "tokens": np.array(ids, np.int32),
                "labels": np.array(labels, np.int32),
                "a_start": np.array(starts, np.int64),
                "a_length": np.array(lengths, np.int64),
                "b_start": zeros,
                "b_length": zeros,
            }
        )
        for values in (ids, labels, starts, lengths):
            values.clear()

    for words, tag_ids in sentences:
        for row in rows_of(words, tag_ids, pieces):
            starts.append(offset + len(ids))
            lengths.append(len(row.ids))
            ids += row.ids
            labels += row.labels
        if len(ids) >= _TOKENS_PER_PART:
            offset += len(ids)
            flush()
    if starts:
        flush()


class TaggedRows:
    """`rows.TextRows` with a column "label_ids" [N, S], stored without padding like the ids.

    Attributes:
      key: digest of the rows, if it is known.

    Args:
      arrays: concatenated parts of `add_rows`.
      cls_id, sep_id: ids of [CLS] and [SEP].
      max_seq_length: S.
    """

    key: Optional[str] = None

    def __init__(
        self, arrays: Dict[str, np.ndarray], cls_id: int, sep_id: int, max_seq_length: int
    ):
        text = {name: values for name, values in arrays.items() if name != "labels"}
        labels = {name: arrays[name] for name in PARTS}
        labels["tokens"] = arrays["labels"]
        self._text = TextRows(text, cls_id, sep_id, max_seq_length)
        self._labels = TextRows(labels, IGNORED, IGNORED, max_seq_length)
        self.max_seq_length, self.lengths = max_seq_length, self._text.lengths
        self.num_learned = int(np.sum(arrays["labels"] >= FIRST_TAG))

    def __len__(self) -> int:
        return len(self._text)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._text[name]

    def take(self, indices: Any, length: Optional[int] = None) -> Dict[str, np.ndarray]:
        """Returns the arrays of the selected rows; see `rows.TextRows`."""
        labels = self._labels.take(indices, length)["input_ids"]
        return {**self._text.take(indices, length), "label_ids": labels}

    def positions(self, row: int) -> np.ndarray:
        """Returns the positions of a row at which tags are read, in the order of the words."""
        (labels,) = self._labels.take([row])["input_ids"]
        return np.flatnonzero(labels != IGNORED)
