"""Tables: rows with named columns, of files and in memory.

A table in memory is a pandas.DataFrame, a pyarrow.Table, a datasets.Dataset, a dict of columns, or
a list of rows, each a dict or a tuple. None of these packages is imported here.
"""

import bisect
import json
import math
import unicodedata
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from adapter_bert.shell.errors import UserError

_EXPECTED = "a DataFrame, an Arrow table, a Dataset, a dict of columns, a list of rows, or a path"
MISSING = object()  # The value of a key that a JSON object lacks.


class TableRow(NamedTuple):
    """The fields of a row, and the number of its first line."""

    line: int
    fields: Any  # List of str; for a JSON object, a dict from column to value.


class DataTable(NamedTuple):
    """The rows of a file or of a table in memory, and the names of its columns.

    Attributes:
      path: of the file; for a table in memory, what errors call it.
      rows: a list, or another sequence such as `stored_tables.StoredRows`.
      unit: what errors call a row's `line`.
      files: (number before a file's first line, its path) of each file, if the table has several.
    """

    path: str
    columns: Tuple[str, ...]
    rows: Sequence[TableRow]
    unit: str = "line"
    files: Sequence[Tuple[int, str]] = ()

    def where(self, row: TableRow) -> str:
        """Returns the place of a row, which begins an error."""
        if not self.files:
            return f"{self.path}, {self.unit} {row.line}"
        starts = [start for start, _ in self.files]
        start, path = self.files[bisect.bisect_right(starts, row.line) - 1]
        return f"{path}, {self.unit} {row.line - start}"

    def column(self, name: str, flag: str) -> int:
        """Returns the index of a column.

        Args:
          name: str.
          flag: the flag that gave the name; of a named task, the task. For the error.

        Raises:
          UserError: there is no such column, or more than one.
        """
        if self.columns.count(name) != 1:
            raise self.column_error(name, flag)
        return self.columns.index(name)

    def column_error(self, name: str, flag: str) -> UserError:
        """Returns the UserError for a column that is missing or occurs twice."""
        times = "twice" if name in self.columns else "not"
        names = ", ".join(self.columns)
        where = f"the columns of {self.path}: {names}"
        if flag.startswith("--task_name="):
            return UserError(
                f"{flag} expects the column {name}, which is {times} in {where}; use"
                " --task_name=custom with --text_column and --label_column."
            )
        return UserError(f"{flag}={name} is {times} in {where}.")

    def text(self, row: TableRow, column: int, accepts_list: bool = False) -> str:
        """Returns a row's text in a column, by its index; of JSON, a number or list is JSON text.

        Args:
          row: of this table.
          column: index.
          accepts_list: bool; whether a JSON list is valid.

        Raises:
          UserError: the row's JSON has no such key, or another value.
        """
        field = self._field(row, column)
        if isinstance(field, str):
            return field
        is_float = isinstance(field, float) and math.isfinite(field)
        is_number = is_float or isinstance(field, int) and not isinstance(field, bool)
        if is_number or accepts_list and isinstance(field, list):
            return json.dumps(field, ensure_ascii=False)
        raise self.value_error(row, column, "a string or a number")

    def text_or_blank(self, row: TableRow, column: int) -> str:
        """Returns a row's text in a column, "" if it has none; any other value is JSON text."""
        if self.is_blank(row, column):
            return ""
        field = self._field(row, column)
        is_text = isinstance(field, str)
        return field if is_text else json.dumps(field, ensure_ascii=False, default=str)

    def value_error(self, row: TableRow, column: int, expected: str) -> UserError:
        """Returns the UserError for a value of another type than expected."""
        field, found = self._field(row, column), "missing"
        if field is not MISSING:
            found = json.dumps(field, ensure_ascii=False, default=repr)[:60]
        return UserError(
            f"{self.where(row)}: {self.columns[column]} is {found}; expected {expected}."
        )

    def is_blank(self, row: TableRow, column: int) -> bool:
        """Returns whether a row has no text in a column; in JSON, null, NaN, [] or no such key."""
        return is_blank(self._field(row, column))

    def _field(self, row: TableRow, column: int) -> Any:
        is_object = isinstance(row.fields, dict)
        return row.fields.get(column, MISSING) if is_object else row.fields[column]


def is_blank(value: Any) -> bool:
    """Returns whether a cell has no text; see `DataTable.is_blank`."""
    if isinstance(value, str):
        return value.strip() in ("", "[]")
    return value in (None, MISSING, []) or value != value


def normalize(name: str) -> str:
    """Returns a column's or label's name in one form of Unicode, without invisible marks."""
    return unicodedata.normalize("NFC", name.strip("\ufeff\u200b"))


def from_memory(data: Any, name: str, columns: Sequence[str] = ()) -> DataTable:
    """Returns a table in memory, whose rows count from 0.

    Args:
      data: see the module's docstring.
      name: what errors call the table.
      columns: names of the values in rows that are tuples.

    Raises:
      UserError: the data is no table, has no rows or a column twice, or a tuple has another number
        of values.
    """
    names: List[str] = []
    rows = list(number_records(records_of(data, name, columns), name, names))
    return DataTable(name, tuple(names), rows, unit="row")


def number_records(
    records: Iterable[Dict[Any, Any]], name: str, columns: List[str]
) -> Iterator[TableRow]:
    """Yields dicts as rows, and adds the names of their keys to `columns`.

    Args:
      records: the result of `records_of`.
      name: what errors call the table.
      columns: [].

    Raises:
      UserError: there are no records.
    """
    indices: Dict[str, int] = {}
    number = -1
    for number, record in enumerate(records):
        fields = {}
        for key, value in record.items():
            column = normalize(str(key))
            if column not in indices:
                indices[column] = len(columns)
                columns.append(column)
            fields[indices[column]] = _plain(value)
        yield TableRow(number, fields)
    if number < 0:
        raise UserError(f"{name}: the table has no rows.")


def records_of(data: Any, name: str, columns: Sequence[str] = ()) -> List[Dict[Any, Any]]:
    """Returns the rows of a table in memory as dicts; see `from_memory`."""
    if hasattr(data, "to_pylist") and hasattr(data, "schema"):  # An Arrow table.
        _check_names(data.column_names, name)
        return _with_label_names(data.to_pylist(), _features_of(data.schema.metadata))
    if hasattr(data, "features") and hasattr(data, "with_format"):  # A Dataset.
        return _with_label_names(
            list(data.with_format(None)), data.features and data.features.to_dict()
        )
    if hasattr(data, "columns") and hasattr(data, "iloc"):  # A DataFrame.
        _check_names(list(data.columns), name)
        values = data.astype(object)
        return values.where(data.notna(), None).to_dict("records")
    if isinstance(data, dict):
        return _rows_of_columns(data, name)
    if not isinstance(data, (list, tuple)):
        raise UserError(f"{name}: found a {type(data).__name__}; expected {_EXPECTED}.")
    records = []
    for number, row in enumerate(data):
        if isinstance(row, (list, tuple)) and len(row) == len(columns):
            row = dict(zip(columns, row))
        if not isinstance(row, dict):
            expected = f"a dict, or {', '.join(columns)}" if columns else "a dict"
            raise UserError(f"{name}, row {number}: found {row!r:.60}; expected {expected}.")
        records.append(row)
    return records


def _rows_of_columns(columns: Dict[Any, Any], name: str) -> List[Dict[Any, Any]]:
    for key, values in columns.items():
        if hasattr(values, "columns") or hasattr(values, "features"):
            raise UserError(
                f"{name}: found a dict of tables, {', '.join(map(str, columns))}; expected one of"
                " them, and others as dev and test."
            )
        if isinstance(values, (str, dict)) or not hasattr(values, "__len__"):
            raise UserError(f"{name}: the column {key} is {values!r:.60}; expected a list.")
    lengths = {key: len(values) for key, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(f"{name}: the columns differ in length: {lengths}.")
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def _check_names(names: Sequence[Any], name: str) -> None:
    for column in names:
        if list(names).count(column) > 1:
            raise UserError(f"{name}: the column {column} occurs twice.")


def _features_of(metadata: Optional[Dict[bytes, bytes]]) -> Any:
    """Returns the features of the Dataset that wrote an Arrow table, as JSON; {} without one."""
    try:
        recorded = json.loads((metadata or {}).get(b"huggingface", b"{}"))
        return recorded.get("info", {}).get("features")
    except (ValueError, AttributeError):  # Another program's.
        return {}


def _with_label_names(records: List[Dict[str, Any]], features: Any) -> List[Dict[str, Any]]:
    """Returns records in which the numbers of ClassLabels are their names.

    Args:
      records: of a Dataset, or of a table that one wrote.
      features: the Dataset's features as JSON; None if they are unknown.
    """
    for column, feature in features.items() if isinstance(features, dict) else ():
        names = _label_names(feature)
        if names:
            for record in records:
                record[column] = _named(record.get(column), names)
    return records


def _label_names(feature: Any) -> Optional[List[str]]:
    """Returns the names of a ClassLabel, or of the one in a list; None for another feature."""
    if isinstance(feature, list):
        return _label_names(feature[0]) if feature else None
    if not isinstance(feature, dict):
        return None
    is_label = feature.get("_type") == "ClassLabel"
    return feature.get("names") if is_label else _label_names(feature.get("feature"))


def _named(value: Any, names: Sequence[str]) -> Any:
    """Returns the name of a label's number, or a list of names; None for -1, which means none."""
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    is_known = isinstance(value, int) and 0 <= value < len(names)
    return names[value] if is_known else None


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it: NumPy's as Python's, a bool as its name, pandas.NA as None.

    Values that JSON does not have, such as times, stay as they are; `DataTable.text` refuses them.
    """
    if hasattr(value, "tolist") and value.dtype.kind not in "mM":
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    return str(value) if isinstance(value, bool) else value
