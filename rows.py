"""Rows that BERT reads, taken by index: padded when they are taken, not before.

Both kinds have the same three things: `len(rows)`, `rows.lengths` (int [N], tokens) and
`rows.take(indices, length)`; and `rows[name]`, a whole column. S is max_seq_length.
"""

import numpy as np

# What `TextRows` are made of; all other arrays are columns.
PARTS = ("tokens", "a_start", "a_length", "b_start", "b_length")


class TextRows:
    """Rows of a text, or of a pair, whose tokens are slices of one array.

    A row is [CLS] a [SEP] or, where b is not empty, [CLS] a [SEP] b [SEP]. Rows may share slices,
    as all questions about a paragraph do.

    Args:
      arrays: dict of "tokens", int [T]; "a_start", "a_length", "b_start" and "b_length", int [N],
        which slices of it make a row; and columns [N, ...], among them is_real_example, 0 for a row
        that is nothing but padding.
      cls_id, sep_id: ids of [CLS] and [SEP].
      max_seq_length: S.
    """

    def __init__(self, arrays, cls_id, sep_id, max_seq_length):
        self._parts = {name: arrays[name] for name in PARTS}
        self._columns = {name: values for name, values in arrays.items() if name not in PARTS}
        self._cls_id, self._sep_id = cls_id, sep_id
        self.max_seq_length = max_seq_length
        length_b = self._parts["b_length"]
        specials = np.where(length_b > 0, 3, 2) * (self._columns["is_real_example"] > 0)
        self.lengths = self._parts["a_length"] + length_b + specials

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, name):
        return self._columns[name]

    def take(self, indices, length=None):
        """The arrays of some rows.

        Args:
          indices: int [B]; -1 is a row of padding.
          length: what they are padded to, S by default; no row may be longer.

        Returns:
          dict of "input_ids", "input_mask" and "segment_ids", int32 [B, length], and the columns
          [B, ...].
        """
        start_a, length_a, start_b, length_b = (
            _taken(self._parts[name], indices)[:, None] for name in PARTS[1:]
        )
        total = _taken(self.lengths, indices)[:, None]
        places = np.arange(length or self.max_seq_length)
        offset_b = length_a + 2  # Where b begins.
        in_a = (places >= 1) & (places <= length_a)
        in_b = (places >= offset_b) & (places < offset_b + length_b)
        sources = np.where(in_a, start_a + places - 1, start_b + places - offset_b)
        mask = places < total
        input_ids = np.where(places == 0, self._cls_id, self._sep_id) * mask
        taken = in_a | in_b
        input_ids[taken] = self._parts["tokens"][sources[taken]]
        return {
            "input_ids": input_ids.astype(np.int32),
            "input_mask": mask.astype(np.int32),
            "segment_ids": (mask & (places >= offset_b)).astype(np.int32),
            **{name: _taken(values, indices) for name, values in self._columns.items()},
        }


def rows_of(arrays):
    """`PaddedRows` of a dict of arrays; anything else is rows already."""
    return PaddedRows(arrays) if isinstance(arrays, dict) else arrays


class PaddedRows:
    """Rows that are arrays already.

    Args:
      arrays: dict of NumPy arrays [N, ...], among them "input_mask" [N, S].
    """

    def __init__(self, arrays):
        self._arrays = arrays
        mask = arrays["input_mask"]
        self.max_seq_length = mask.shape[1]
        after_last = self.max_seq_length - np.argmax(mask[:, ::-1] > 0, axis=1)
        self.lengths = np.where(mask.any(axis=1), after_last, 0)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, name):
        return self._arrays[name]

    def take(self, indices, length=None):
        """As that of `TextRows`; the arrays [N, S] are cut to the length."""
        padded = (self.max_seq_length,)
        return {
            name: _taken(values, indices)[:, :length]
            if values.shape[1:] == padded
            else _taken(values, indices)
            for name, values in self._arrays.items()
        }


def _taken(values, indices):
    """values[indices], with zeros for the indices -1."""
    indices = np.asarray(indices)
    taken = np.array(values[indices])
    taken[indices < 0] = 0
    return taken
