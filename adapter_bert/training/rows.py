"""Rows of token ids, accessed by index and padded only on access.

All classes have `len(rows)`, `rows.lengths` (int [N], tokens) and `rows.take(indices, length)`. All
but `ProductRows` also have `rows[name]`, a whole column. S is max_seq_length.
"""

import array
from typing import Any, Dict, List, Optional, Sequence, Union

import numpy as np

Arrays = Dict[str, np.ndarray]

# The arrays that define the texts of `TextRows`; all others are columns.
PARTS = ("tokens", "a_start", "a_length", "b_start", "b_length")


class Rows:
    """Base class of all rows; a subclass computes its arrays in `_take`.

    Attributes:
      key: digest of the rows, if it is known.
    """

    key: Optional[str] = None
    lengths: np.ndarray
    max_seq_length: int
    _columns: Arrays

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._columns[name]

    def take(self, indices: Any, length: Optional[int] = None) -> Arrays:
        """Returns the arrays of the selected rows.

        Args:
          indices: int [B]; -1 is a padding row.
          length: padded length, S by default; no selected row may be longer.

        Returns:
          dict of "input_ids", "input_mask" and "segment_ids", int32 [B, length], and the columns
          [B, ...].
        """
        return self._take(np.asarray(indices), length or self.max_seq_length)

    def _take(self, indices: np.ndarray, length: int) -> Arrays:
        raise NotImplementedError


class TextRows(Rows):
    """Rows of a text or a pair of texts, whose tokens are slices of one array.

    A row is [CLS] a [SEP] or, if b is not empty, [CLS] a [SEP] b [SEP]. Rows may share slices, as
    all questions about a paragraph do.

    Args:
      arrays: dict of "tokens", int [T]; "a_start", "a_length", "b_start" and "b_length", int [N],
        the slices of each row; and columns [N, ...]. The column is_real_example, 0 only for
        padding, is added.
      cls_id, sep_id: ids of [CLS] and [SEP].
      max_seq_length: S.
    """

    def __init__(self, arrays: Arrays, cls_id: int, sep_id: int, max_seq_length: int):
        self._parts = {name: arrays[name] for name in PARTS}
        if not len(self._parts["tokens"]):
            self._parts["tokens"] = np.zeros(1, np.int32)  # `take` needs a valid index.
        self._columns = {name: values for name, values in arrays.items() if name not in PARTS}
        self._columns["is_real_example"] = np.ones(len(arrays["a_start"]), np.int32)
        self._cls_id, self._sep_id = cls_id, sep_id
        self.max_seq_length = max_seq_length
        length_b = self._parts["b_length"]
        self.lengths = self._parts["a_length"] + length_b + np.where(length_b > 0, 3, 2)

    def _take(self, indices: np.ndarray, length: int) -> Arrays:
        start_a, length_a, start_b, length_b = (
            _take_rows(self._parts[name], indices)[:, None] for name in PARTS[1:]
        )
        total = _take_rows(self.lengths, indices)[:, None]
        positions = np.arange(length)
        offset_b = length_a + 2  # The position of b's first token.
        in_a = (positions >= 1) & (positions <= length_a)
        in_b = (positions >= offset_b) & (positions < offset_b + length_b)
        sources = np.where(in_a, start_a + positions - 1, start_b + positions - offset_b)
        is_text = in_a | in_b
        tokens = self._parts["tokens"][np.where(is_text, sources, 0)]
        specials = np.where(positions < 1, np.int32(self._cls_id), np.int32(self._sep_id))
        mask = (positions < total).astype(np.int32)
        return {
            "input_ids": mask * np.where(is_text, tokens.astype(np.int32), specials),
            "input_mask": mask,
            "segment_ids": mask * (positions >= offset_b),
            **{name: _take_rows(values, indices) for name, values in self._columns.items()},
        }


# The arrays per token of `PackedRows`.
PER_TOKEN = (("input_ids", np.int32), ("input_mask", np.uint8), ("segment_ids", np.uint8))


def pack(features: Sequence[Any]) -> Arrays:
    """Returns the arrays of `PackedRows` from features; those of lists can be concatenated.

    A row ends after the last 1 of its input_mask.

    Args:
      features: list of `classifier_features.InputFeatures`, or of objects with its attributes;
        lists or arrays.
    """
    lengths, ids, mask, segments = [], array.array("i"), bytearray(), bytearray()
    for each in features:
        ones = list(each.input_mask)
        length = _length_of(ones)
        lengths.append(length)
        ids.fromlist(list(each.input_ids[:length]))
        mask += bytes(ones[:length])
        segments += bytes(list(each.segment_ids[:length]))
    return {
        "length": np.array(lengths),
        **{name: np.array(v, t) for (name, t), v in zip(PER_TOKEN, (ids, mask, segments))},
        "label_ids": column([each.label_id for each in features]),
        "is_real_example": column([each.is_real_example for each in features]),
    }


def _length_of(mask: List[int]) -> int:
    """Returns the number of items until the last 1 of a list."""
    return len(mask) - mask[::-1].index(1) if 1 in mask else 0


def column(values: Any) -> np.ndarray:
    """Returns a list of values as int32, or as float32 if they are no integers."""
    values = np.asarray(values)
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int32)


class PackedRows(Rows):
    """Rows whose features are stored one after the other, without padding.

    Args:
      arrays: dict of "length", int [N], the tokens of each row; "input_ids", "input_mask" and
        "segment_ids", int [T], those of all rows; and columns [N, ...].
      max_seq_length: S.
    """

    def __init__(self, arrays: Arrays, max_seq_length: int):
        self._columns = dict(arrays)
        self.lengths = self._columns.pop("length")
        self._ends = np.cumsum(self.lengths)
        self._tokens = {name: self._columns.pop(name) for name, _ in PER_TOKEN}
        if not self.lengths.any():  # `take` needs a valid index.
            self._tokens = {name: np.zeros(1, dtype) for name, dtype in PER_TOKEN}
        self.max_seq_length = max_seq_length

    def _take(self, indices: np.ndarray, length: int) -> Arrays:
        lengths, ends = (
            _take_rows(values, indices)[:, None] for values in (self.lengths, self._ends)
        )
        positions = np.arange(length)
        is_token = positions < lengths
        sources = np.where(is_token, ends - lengths + positions, 0)
        return {
            **{
                name: values[sources].astype(np.int32) * is_token
                for name, values in self._tokens.items()
            },
            **{name: _take_rows(values, indices) for name, values in self._columns.items()},
        }


class PaddedRows(Rows):
    """Rows that are padded arrays.

    Args:
      arrays: dict of NumPy arrays [N, ...], including "input_mask" [N, S].
      untruncated: names of arrays that are not per token, though they have the shape [N, S].
    """

    def __init__(self, arrays: Arrays, untruncated: Sequence[str] = ()):
        self._columns = arrays
        mask = arrays["input_mask"]
        self.max_seq_length = mask.shape[1]
        token_names = {
            name for name, values in arrays.items() if values.shape[1:] == mask.shape[1:]
        }
        self._truncated = token_names - set(untruncated)
        after_last = self.max_seq_length - np.argmax(mask[:, ::-1] > 0, axis=1)
        self.lengths = np.where(mask.any(axis=1), after_last, 0)

    def _take(self, indices: np.ndarray, length: int) -> Arrays:
        taken = {name: _take_rows(values, indices) for name, values in self._columns.items()}
        return {
            name: values[:, :length] if name in self._truncated else values
            for name, values in taken.items()
        }


class ProductRows(Rows):
    """The product of rows and the values of a further column, without copies of the rows.

    Row r with value v has the index r * V + v.

    Args:
      rows: `PackedRows` or another class of this module.
      name: of the further column.
      values: array [V, ...].
    """

    def __init__(self, rows: Rows, name: str, values: np.ndarray):
        self._rows, self._name, self._values = rows, name, values
        self.max_seq_length = rows.max_seq_length
        self.lengths = np.repeat(rows.lengths, len(values))

    def _take(self, indices: np.ndarray, length: int) -> Arrays:
        count = len(self._values)
        values = self._values[indices % count]
        return {**self._rows._take(indices // count, length), self._name: values}


class OrderedRows(Rows):
    """Some rows in an order, with indices from 0; `select` exchanges them for others.

    Args:
      rows: of another class of this module.
      order: int [N], indices of rows.
    """

    def __init__(self, rows: Rows, order: np.ndarray):
        self.select(rows, order)

    def select(self, rows: Rows, order: np.ndarray) -> None:
        """Replaces the rows; the arguments are those of the class."""
        self._rows, self._order = rows, order
        self.lengths, self.max_seq_length = rows.lengths[order], rows.max_seq_length

    def take(self, indices: Any, length: Optional[int] = None) -> Arrays:
        """Returns the arrays of the selected rows; see `Rows`."""
        return self._rows.take(self._order[indices], length)


Features = Union[Rows, Arrays, Sequence[Any]]  # What `as_rows` accepts.


def as_rows(features: Features) -> Rows:
    """Returns `PackedRows` for a list, `PaddedRows` for a dict of arrays; other rows unchanged.

    Args:
      features: rows, a dict as in `PaddedRows`, or a list as in `pack`.

    Raises:
      ValueError: the list is empty.
    """
    if isinstance(features, dict):
        return PaddedRows(features)
    if not isinstance(features, Sequence):
        return features
    if not features:
        raise ValueError("expected at least one InputFeatures")
    return PackedRows(pack(features), len(features[0].input_ids))


def _take_rows(values: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Returns values[indices], with zeros for indices of -1."""
    taken = values[np.maximum(indices, 0)]
    is_row = (indices >= 0)[(...,) + (None,) * (values.ndim - 1)]
    return taken * is_row.astype(values.dtype)
