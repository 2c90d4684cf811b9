"""Tables in memory-mapped files: memory does not grow with the rows, texts are read on access.

`store` reads a table once, row by row, into the cache of `feature_cache`. Axes: N rows, K distinct
values.
"""

import collections.abc
import hashlib
import itertools
import json
import sys
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np

from adapter_bert.files import gfile
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks import arrow_files, table_readers, tables
from adapter_bert.tasks.tables import DataTable, TableRow
from adapter_bert.training import feature_cache

_ROWS_PER_PART = 4096
# The types of cells.
_TEXT, _JSON, _ABSENT, _OTHER = range(4)
_MODULES = [arrow_files, table_readers, tables]  # Their code decides what is stored.


class Distinct(NamedTuple):
    """The distinct values of a column.

    Attributes:
      first: int [K], ascending; the index of the first row with each value.
      codes: int32 [N], the index of each row's value.
      counts: int [K], the number of rows with each value.
    """

    first: np.ndarray
    codes: np.ndarray
    counts: np.ndarray


class _Other:
    """A value that JSON does not have, such as a time, by its texts."""

    def __init__(self, text: str, description: str):
        self._text, self._description = text, description

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return self._description


class StoredRows(collections.abc.Sequence):
    """Rows of a stored table; each access reads a `TableRow` from the files.

    Args:
      arrays: as `_Writer` adds them.
      columns: the number of each stored column.
      indices: int [N], of the selected rows; None for all.

    Attributes:
      key: digest of all that the rows hold.
    """

    def __init__(
        self,
        arrays: feature_cache.Entry,
        columns: Sequence[int],
        indices: Optional[np.ndarray] = None,
    ):
        self._arrays, self._columns, self._indices = arrays, columns, indices
        self._distinct: Dict[int, Distinct] = {}
        digest = hashlib.sha256(arrays.digest.encode())
        if indices is not None:
            digest.update(np.ascontiguousarray(indices, np.int64).data)
        self.key = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._arrays["line"] if self._indices is None else self._indices)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._read(np.arange(*index.indices(len(self))))
        return self._read(np.array([range(len(self))[index]]))[0]

    def __iter__(self) -> Iterator[TableRow]:
        for start in range(0, len(self), _ROWS_PER_PART):
            yield from self[start : start + _ROWS_PER_PART]
            self.release()

    def release(self) -> None:
        """Frees the memory of what was read, which stays in the files."""
        for values in self._arrays.values():
            feature_cache.release(values)

    def select(self, indices: np.ndarray) -> "StoredRows":
        """Returns the rows with these indices."""
        return StoredRows(self._arrays, self._columns, self._in_table(indices))

    def values(self, name: str, column: int) -> np.ndarray:
        """Returns an array [N] about a column's cells.

        Args:
          name: "is_text"; "is_space", of a text without others than white space; "is_blank", as in
            `DataTable`; "characters", the length; or, of a label, "code".
          column: number of the column.
        """
        return self._select(self._arrays[f"{column}_{name}"])

    def distinct(self, column: int) -> Distinct:
        """Returns the distinct values of the label's column."""
        if column not in self._distinct:
            codes = self.values("code", column)
            first = np.full(int(codes.max()) + 1, len(codes))
            first[codes[::-1]] = np.arange(len(codes))[::-1]  # The last assignment counts.
            order = np.argsort(first, kind="stable")[: int((first < len(codes)).sum())]
            numbers = np.zeros(len(first), np.int32)
            numbers[order] = np.arange(len(order))
            codes = numbers[codes]
            self._distinct[column] = Distinct(first[order], codes, np.bincount(codes))
        return self._distinct[column]

    def _in_table(self, indices: np.ndarray) -> np.ndarray:
        return indices if self._indices is None else self._indices[indices]

    def _select(self, values: np.ndarray) -> np.ndarray:
        return values if self._indices is None else values[self._indices]

    def _read(self, indices: np.ndarray) -> List[TableRow]:
        """Returns the rows with these indices, which are close to each other."""
        indices = self._in_table(indices)
        fields: List[Dict[int, Any]] = [{} for _ in indices]
        for column in self._columns:
            for row, value in zip(fields, self._cells(column, indices)):
                if value is not tables.MISSING:
                    row[column] = value
        return list(map(TableRow, self._arrays["line"][indices].tolist(), fields))

    def _cells(self, column: int, indices: np.ndarray) -> Iterator[Any]:
        """Yields the values of a column, `tables.MISSING` for a key that a JSON object lacks."""
        if not len(indices):
            return
        content, ends = self._arrays[f"{column}_content"], self._arrays[f"{column}_end"]
        starts = np.where(indices > 0, ends[np.maximum(indices - 1, 0)], 0)
        first = int(starts.min())
        data = content[first : int(ends[indices].max())].tobytes()
        kinds = self._arrays[f"{column}_kind"][indices].tolist()
        spans = zip((starts - first).tolist(), (ends[indices] - first).tolist())
        for kind, (start, end) in zip(kinds, spans):
            yield _decode(kind, data[start:end].decode("utf-8", "surrogatepass"))


def store(
    source: Any,
    is_needed: Callable[[str], bool],
    is_label: Callable[[str], bool],
    folder: Optional[str],
    verify: bool = False,
    columns: Sequence[str] = (),
    allow_legacy: bool = False,
    names: Sequence[str] = (),
) -> DataTable:
    """Returns a table whose rows are `StoredRows`, from the cache if its file is unchanged.

    Args:
      source: path of a file that `table_readers.read_table` reads; or (name of the table, paths of
        files with the same columns); or a `DataTable` in memory.
      is_needed: function of a column's name → whether its cells are stored.
      is_label: function of a column's name → whether `StoredRows.distinct` can be called for it.
      folder, verify: as in `feature_cache.load_or_build`. A file is unchanged if size, time and
        samples of it are; with `verify`, if all of its bytes are.
      columns, allow_legacy: as in `table_readers.read_table`.
      names: what `is_needed` and `is_label` depend on.

    Raises:
      UserError: as in `table_readers.read_table`; or the file changes while it is read.
    """
    paths: List[str] = []
    if not isinstance(source, DataTable):
        name, paths = (source, [source]) if isinstance(source, str) else source

    def fingerprints() -> List[tuple]:
        return [(gfile.absolute(p), feature_cache.fingerprint(p, verify)) for p in paths]

    before = fingerprints()

    def build(add: Callable) -> None:
        stream: Any = source
        if isinstance(source, str):
            stream = table_readers.stream_table(source, columns, allow_legacy)
        elif paths:
            stream = table_readers.stream_tables(name, paths)
        writer = _Writer(add, stream.columns, is_needed, is_label)
        rows = iter(stream.rows)
        for part in iter(lambda: list(itertools.islice(rows, _ROWS_PER_PART)), []):
            writer.write(part)
        writer.finish(stream.unit, stream.files)
        if fingerprints() != before:
            raise UserError(f"{name} has changed while it was read; run again.")

    parts = [*before, tuple(columns), allow_legacy, tuple(names)]
    key = feature_cache.key_of(parts, [*_MODULES, sys.modules[__name__]])
    entry = feature_cache.load_or_build(folder if paths else None, key, build, verify)
    described = json.loads(entry["description"].tobytes().decode("utf-8", "surrogatepass"))
    return DataTable(
        name if paths else source.path,
        tuple(described["columns"]),
        StoredRows(entry, described["stored"]),
        described["unit"],
        described["files"],
    )


class _Writer:
    """Writes the cells of needed columns as arrays, in parts."""

    def __init__(
        self,
        add: Callable,
        columns: Sequence[str],
        is_needed: Callable[[str], bool],
        is_label: Callable[[str], bool],
    ):
        self._add, self._columns = add, columns
        self._is_needed, self._is_label = is_needed, is_label
        self._stored: List[int] = []
        self._ends: List[int] = []
        self._codes: Dict[int, Dict[Any, int]] = {}
        self._num_rows = self._num_columns = 0

    def write(self, rows: List[TableRow]) -> None:
        """Writes rows; their keys may be new columns, which all earlier rows lack."""
        while self._num_columns < len(self._columns):  # It grows with the keys of JSON objects.
            name, column = self._columns[self._num_columns], self._num_columns
            if self._is_needed(name) and name not in self._columns[:column]:
                self._start(column, self._is_label(name))
            self._num_columns += 1
        for number, column in enumerate(self._stored):
            cells = [_field(row, column) for row in rows]
            self._ends[number] = self._write_cells(column, cells, self._ends[number])
        self._add({"line": np.array([row.line for row in rows], np.int64)})
        self._num_rows += len(rows)

    def _start(self, column: int, is_label: bool) -> None:
        self._stored.append(column)
        self._ends.append(0)
        if is_label:
            self._codes[column] = {}
        for start in range(0, self._num_rows, _ROWS_PER_PART):
            count = min(_ROWS_PER_PART, self._num_rows - start)
            self._write_cells(column, [tables.MISSING] * count, 0)

    def _write_cells(self, column: int, cells: List[Any], end: int) -> int:
        kinds = [_TEXT if isinstance(cell, str) else _kind(cell) for cell in cells]
        texts = [cell if isinstance(cell, str) else _encode(cell) for cell in cells]
        joined = "".join(texts)
        characters = np.array(list(map(len, texts)), np.int32)
        sizes = characters
        if not joined.isascii():
            sizes = np.array([len(text.encode("utf-8", "surrogatepass")) for text in texts])
        ends = np.cumsum(sizes, dtype=np.int64) + end
        blank = [
            tables.is_blank(_decode(kind, text) if kind else text)
            for kind, text in zip(kinds, texts)
        ]
        arrays = {
            "content": np.frombuffer(joined.encode("utf-8", "surrogatepass"), np.uint8),
            "end": ends,
            "kind": np.array(kinds, np.uint8),
            "is_text": np.array(kinds, np.uint8) == _TEXT,
            "is_space": np.array([not text.strip() for text in texts]),
            "is_blank": np.array(blank, bool),
            "characters": characters,
        }
        if column in self._codes:
            codes = self._codes[column]
            pairs = zip(kinds, texts)
            arrays["code"] = np.array([codes.setdefault(p, len(codes)) for p in pairs], np.int32)
        self._add({f"{column}_{name}": values for name, values in arrays.items()})
        return int(ends[-1])

    def finish(self, unit: str, files: Sequence[Any]) -> None:
        """Writes the names of the columns, and what `DataTable` has besides."""
        described = {"columns": list(self._columns), "stored": self._stored}
        described.update(unit=unit, files=list(files))
        text = json.dumps(described).encode()
        self._add({"description": np.frombuffer(text, np.uint8)})


def _field(row: TableRow, column: int) -> Any:
    is_object = isinstance(row.fields, dict)
    return row.fields.get(column, tables.MISSING) if is_object else row.fields[column]


def _kind(value: Any) -> int:
    if value is tables.MISSING:
        return _ABSENT
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return _OTHER
    return _JSON


def _encode(value: Any) -> str:
    """Returns the text that is stored for a value that is no text."""
    kind = _kind(value)
    if kind == _OTHER:
        return json.dumps([str(value), repr(value)])
    return "" if kind == _ABSENT else json.dumps(value)


def _decode(kind: int, text: str) -> Any:
    if kind == _TEXT:
        return text
    if kind == _OTHER:
        return _Other(*json.loads(text))
    return tables.MISSING if kind == _ABSENT else json.loads(text)
