"""Tables in memory, as rows of `table_readers`, so that they are checked and trained on like files.

A table is a pandas.DataFrame, a pyarrow.Table, a datasets.Dataset, a dict of columns, or a list of
rows, each a dict or a tuple. None of these packages is imported here.
"""

import os
from typing import Any, Dict, List, Sequence

from adapter_bert.shell.errors import UserError
from adapter_bert.tasks import table_readers

_EXPECTED = "a DataFrame, an Arrow table, a Dataset, a dict of columns, a list of rows, or a path"


def read(data: Any, name: str, columns: Sequence[str] = ()) -> table_readers.DataTable:
    """Returns a table in memory, or a file's.

    Args:
      data: see the module's docstring; or the path of a file, see `table_readers.read_table`.
      name: what errors call the table.
      columns: names of the values in rows that are tuples.

    Raises:
      UserError: the data is no table, has no rows, or a tuple has another number of values.
    """
    if isinstance(data, (str, os.PathLike)):
        return table_readers.read_table(os.fspath(data))
    records = _records(data, name, columns)
    if not records:
        raise UserError(f"{name}: the table has no rows.")
    names = dict.fromkeys(str(key) for record in records for key in record)
    indices = {column: index for index, column in enumerate(names)}
    rows = [
        table_readers.TableRow(
            number, {indices[str(key)]: _plain(value) for key, value in record.items()}
        )
        for number, record in enumerate(records)
    ]
    return table_readers.DataTable(name, tuple(indices), rows, unit="row")


def _records(data: Any, name: str, columns: Sequence[str]) -> List[Dict[Any, Any]]:
    if hasattr(data, "to_pylist") and hasattr(data, "schema"):  # An Arrow table.
        return data.to_pylist()
    if hasattr(data, "features") and hasattr(data, "column_names"):  # A Dataset.
        return _with_label_names(list(data), data.features)
    if hasattr(data, "columns") and hasattr(data, "to_dict"):  # A DataFrame.
        values = data.astype(object)
        return values.where(data.notna(), None).to_dict("records")
    if isinstance(data, dict):
        lengths = {key: len(values) for key, values in data.items()}
        if len(set(lengths.values())) > 1:
            raise UserError(f"{name}: the columns differ in length: {lengths}.")
        return [dict(zip(data, values)) for values in zip(*data.values())]
    if not isinstance(data, (list, tuple)):
        raise UserError(f"{name}: found {type(data).__name__}; expected {_EXPECTED}.")
    records = []
    for number, row in enumerate(data):
        if isinstance(row, (list, tuple)) and len(row) == len(columns):
            row = dict(zip(columns, row))
        if not isinstance(row, dict):
            expected = f"a dict, or {', '.join(columns)}" if columns else "a dict"
            raise UserError(f"{name}, row {number}: found {row!r:.60}; expected {expected}.")
        records.append(row)
    return records


def _with_label_names(records: List[Dict[str, Any]], features: Any) -> List[Dict[str, Any]]:
    """Returns records in which the numbers of a ClassLabel are its names."""
    for column, feature in features.items():
        names = getattr(feature, "names", None)
        if names:
            for record in records:
                index = record[column]
                is_known = isinstance(index, int) and 0 <= index < len(names)
                record[column] = names[index] if is_known else None
    return records


def _plain(value: Any) -> Any:
    """Returns a value as JSON would have it: NumPy's as Python's, and a bool as its name."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, bool) else value
