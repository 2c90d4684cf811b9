"""Sentences → the rows that BERT reads, and the place in them where each word's tag is read.

A word's tag is read at its first WordPiece (Devlin et al. 2018, section 5.3). A sentence that is
longer than a row is read in windows that overlap, and each word in the one that shows more around
it, so that it is learned and predicted once.

Axes: N rows, S positions, T WordPieces of all rows.
"""

from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence

import numpy as np

from adapter_bert.training.rows import PARTS, TextRows

# What "label_ids" hold: the tag with the index i is i + FIRST_TAG.
IGNORED = 0  # A position at which no tag is read.
UNKNOWN = 1  # One whose tag is read, and none of the task's.
FIRST_TAG = 2

_KEPT_WORDS = 100000  # Whose pieces are remembered.
_TOKENS_A_PART = 1 << 18  # That `add_rows` hands on at a time.


class Window(NamedTuple):
    """The words [start, end) of a sentence; the tags of [first, last) are read in it."""

    start: int
    end: int
    first: int
    last: int


def windows(lengths: Sequence[int], room: int) -> List[Window]:
    """Returns windows of a sentence, of which each word is read in one.

    Where there are several, about half of a window is in the next one too. A word of both is read
    in that which has more WordPieces on its shorter side.

    Args:
      lengths: the number of WordPieces of each word, from 1 to `room`.
      room: the most WordPieces of a window.
    """
    num_words = len(lengths)
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    found: List[Window] = []
    start, first = 0, 0
    while num_words:
        end = int(np.searchsorted(ends, ends[start] + room, "right")) - 1
        if end >= num_words:
            found.append(Window(start, num_words, first, num_words))
            break
        # The next window overlaps by no more than half, and has room for a further word.
        shared = min(room // 2, room - int(lengths[end]))
        next_start = max(start + 1, int(np.searchsorted(ends, ends[end] - shared, "left")))
        middle = (ends[next_start] + ends[end]) / 2
        last = int(np.clip(np.searchsorted(ends, middle, "left"), next_start, end))
        found.append(Window(start, end, first, last))
        start, first = next_start, last
    return found


class WordPieces:
    """The ids of words, each at least one and no more than a row has room for.

    Args:
      tokenizer: `tokenization.FullTokenizer`.
      max_seq_length: of a row, with [CLS] and [SEP].
    """

    def __init__(self, tokenizer, max_seq_length: int):
        self.room = max_seq_length - 2
        self._tokenizer = tokenizer
        self._ids: Dict[str, List[int]] = {}

    def ids(self, word: str) -> List[int]:
        """Returns a word's ids; what has no WordPiece, as a control character, is unknown."""
        ids = self._ids.get(word)
        if ids is None:
            if len(self._ids) >= _KEPT_WORDS:
                self._ids.clear()
            tokens = self._tokenizer.tokenize(word)[: self.room] or ["[UNK]"]
            ids = self._ids[word] = list(self._tokenizer.convert_tokens_to_ids(tokens))
        return ids


class Row(NamedTuple):
    """A window's ids without [CLS] and [SEP], and as many labels: see `IGNORED`."""

    ids: List[int]
    labels: List[int]


def rows_of(
    words: Sequence[str], tag_ids: Optional[Sequence[int]], pieces: WordPieces
) -> Iterable[Row]:
    """Yields the rows of a sentence.

    Args:
      words: list of str.
      tag_ids: the index of each word's tag, -1 for one that the task does not have; None if no tag
        is known.
      pieces: `WordPieces`.
    """
    word_ids = [pieces.ids(word) for word in words]
    for window in windows([len(ids) for ids in word_ids], pieces.room):
        row = Row([], [])
        for index in range(window.start, window.end):
            label = IGNORED
            if window.first <= index < window.last:
                tag_id = -1 if tag_ids is None else tag_ids[index]
                label = UNKNOWN if tag_id < 0 else tag_id + FIRST_TAG
            row.ids.extend(word_ids[index])
            row.labels.extend([label] + [IGNORED] * (len(word_ids[index]) - 1))
        yield row


def add_rows(sentences: Iterable[tuple], pieces: WordPieces, add: Callable) -> None:
    """Hands on the arrays of `TaggedRows`, a part at a time.

    Args:
      sentences: iterable of (words, tag_ids), see `rows_of`.
      pieces: `WordPieces`.
      add: function of dicts of arrays, which are joined along their first axis.
    """
    ids: List[int] = []
    labels: List[int] = []
    starts: List[int] = []
    lengths: List[int] = []
    offset = 0

    def hand_on():
        zeros = np.zeros(len(starts), np.int64)
        add(
            {
                "tokens": np.array(ids, np.int32),
                "labels": np.array(labels, np.int32),
                "a_start": np.array(starts, np.int64),
                "a_length": np.array(lengths, np.int64),
                "b_start": zeros,
                "b_length": zeros,
                "is_real_example": np.ones(len(starts), np.int32),
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
        if len(ids) >= _TOKENS_A_PART:
            offset += len(ids)
            hand_on()
    if starts:
        hand_on()


class TaggedRows:
    """`rows.TextRows` with a column "label_ids" [N, S], which takes no more memory than the ids.

    Args:
      arrays: those of `add_rows`.
      cls_id, sep_id: ids of [CLS] and [SEP].
      max_seq_length: S.
    """

    def __init__(
        self, arrays: Dict[str, np.ndarray], cls_id: int, sep_id: int, max_seq_length: int
    ):
        text = {name: values for name, values in arrays.items() if name != "labels"}
        labels = {name: arrays[name] for name in (*PARTS, "is_real_example")}
        labels["tokens"] = arrays["labels"]
        self._text = TextRows(text, cls_id, sep_id, max_seq_length)
        self._labels = TextRows(labels, IGNORED, IGNORED, max_seq_length)
        self._flat = arrays["labels"], arrays["a_start"], arrays["a_length"]
        self.max_seq_length, self.lengths = max_seq_length, self._text.lengths
        self.nbytes = self._text.nbytes + self._labels.nbytes
        self.num_learned = int(np.sum(arrays["labels"] >= FIRST_TAG))

    def __len__(self):
        return len(self._text)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._text[name]

    def take(self, indices, length: Optional[int] = None) -> Dict[str, np.ndarray]:
        """Returns the arrays of some rows, as `rows.TextRows` does."""
        labels = self._labels.take(indices, length)["input_ids"]
        return {**self._text.take(indices, length), "label_ids": labels}

    def in_graph(self) -> Callable:
        """Returns `take` for Tensors, as `rows.TextRows` does."""
        text, labels = self._text.in_graph(), self._labels.in_graph()
        return lambda indices: {**text(indices), "label_ids": labels(indices)["input_ids"]}

    def positions(self, row: int) -> np.ndarray:
        """Returns the positions in a row at which tags are read, in the order of the words."""
        labels, starts, lengths = self._flat
        start = starts[row]
        return 1 + np.flatnonzero(labels[start : start + lengths[row]] != IGNORED)
