"""Readers of .tsv, .csv and .jsonl files, which check every line, and of Arrow files."""

import codecs
import collections
import contextlib
import csv
import gzip
import io
import itertools
import os
import re
import zlib
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from absl import logging

from adapter_bert.files import gfile, json_objects
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks import arrow_files, tables
from adapter_bert.tasks.tables import DataTable, TableRow

_GZ = ".gz"
_CSV_FIELD_LIMIT = 2**31 - 1  # The csv module's default of 131,072 characters is too small.
_CSV_ROWS_PER_PART = 1000
_TEXT_ENDINGS = (".tsv", ".txt", ".csv", ".jsonl")
# Of files that `read_table` reads; "" is a folder of `Dataset.save_to_disk`.
ENDINGS = (*_TEXT_ENDINGS, *(f"{ending}.gz" for ending in _TEXT_ENDINGS), ".parquet", "")
DEV_NAMES = ("dev", "val", "valid", "validation")  # Of a dev set's file, without an extension.
# First bytes → format, of files that may be named like a table.
_BINARY_FORMATS = {
    rb"\x1f\x8b": "gzip",
    rb"PK\x03\x04": "ZIP or Excel",
    rb"\xfd7zXZ\0": "xz",
    rb"BZh[1-9]1AY&SY": "bzip2",
    rb"7z\xbc\xaf": "7-Zip",
    rb"\x28\xb5\x2f\xfd": "Zstandard",
    rb"PAR1[^ -~\s]": "Parquet",
    rb"ARROW1\0": "Arrow",
    rb"\xd0\xcf\x11\xe0": "Excel",
}
# A field of a tab-separated file in quotes, with doubled quotes inside; within a line, or not.
_QUOTED_IN_LINE = re.compile(r'(?:^|(?<=\t))"[^"\t\n]*(?:""[^"\t\n]*)*"(?=[\t\r\n]|$)', re.M)
_QUOTED = re.compile(r'(?:^|(?<=\t))"[^"]*(?:""[^"]*)*"(?=[\t\r\n]|$)', re.M)


class TableStream(NamedTuple):
    """The rows of a table, read one after the other, so that they are never all in memory.

    Attributes:
      path, unit: as in `DataTable`.
      columns: names of the columns; of JSON objects, they are complete after the last row.
      rows: iterator over `TableRow`s, which raises UserError for an invalid row.
      files: as in `DataTable`, complete after the last row.
    """

    path: str
    columns: List[str]
    rows: Iterator[TableRow]
    unit: str = "line"
    files: Sequence[Tuple[int, str]] = ()


def read_table(path: str, columns: Sequence[str] = (), allow_legacy: bool = False) -> DataTable:
    """Returns the rows of a file with named columns, or with a JSON object per line.

    Args:
      path: UTF-8 file. .csv: comma-separated; fields with commas, quotes or newlines are in double
        quotes. .jsonl: an object per line. .gz after an extension: the same, compressed. .parquet,
        or a folder of `Dataset.save_to_disk`: see `arrow_files`. Any other extension:
        tab-separated; quotes are ordinary characters unless the file is quoted throughout, as
        pandas does.
      columns: names of the columns of a tab-separated file without a header.
      allow_legacy: bool; whether a file that is not UTF-8 is read as Windows-1252 or Latin-1.

    Returns:
      `DataTable` of at least one row, all as wide as `columns`; blank lines are skipped.

    Raises:
      UserError: the file is missing, not UTF-8, empty or malformed, or a row has another width;
        names the file and line.
    """
    stream = stream_table(path, columns, allow_legacy)
    rows = list(stream.rows)  # First, as they complete the columns.
    return DataTable(path, tuple(stream.columns), rows, stream.unit)


def stream_table(path: str, columns: Sequence[str] = (), allow_legacy: bool = False) -> TableStream:
    """Returns the `TableStream` of a file; arguments and errors are those of `read_table`."""
    if arrow_files.is_arrow(path):
        names: List[str] = []
        return TableStream(
            path, names, tables.number_records(_arrow_records(path), path, names), "row"
        )
    has_header = not columns
    is_json = has_objects(path) and has_header
    lines: Iterable[str]
    if allow_legacy:
        text, encoding = _decode(_read_bytes(path))
        if encoding != "UTF-8":
            logging.info("%s is not UTF-8: reading it as %s.", path, encoding)
        content = io.BytesIO(text.encode("utf-8")).readlines()
        lines = list(_check_lines(_decode_lines(content, path, has_header and not is_json), path))
    else:
        lines = FileLines(path, has_header and not is_json)
    names = list(columns)
    if is_json:
        rows = _parse_objects(lines, path, names)
    elif not has_header:
        rows = _without_blank_lines(split_tabs(lines), path)
    else:
        is_csv = without_gz(path).endswith(".csv")
        rows = _without_blank_lines((_parse_commas if is_csv else parse_tabs)(lines, path), path)
        header = next(rows, TableRow(1, [])).fields
        names += [tables.normalize(name.strip()) for name in header]
    return TableStream(path, names, _checked_rows(rows, names, path, has_header))


def stream_tables(path: str, paths: Sequence[str]) -> TableStream:
    """Returns the `TableStream` of several files with the same columns, one after the other.

    Args:
      path: what errors call the table.
      paths: of the files.

    Raises:
      UserError: as in `read_table`; or a file has other columns than the first.
    """
    first, columns = stream_table(paths[0]), []
    files: List[Tuple[int, str]] = []

    def read() -> Iterator[TableRow]:
        start = 0
        for index, each in enumerate(paths):
            stream = stream_table(each) if index else first
            files.append((start, each))
            line = -1
            for line, fields in _renumbered(stream, columns, paths[0]):
                yield TableRow(start + line, fields)
            start += line + 1

    return TableStream(path, columns, read(), first.unit, files)


def _renumbered(stream: TableStream, columns: List[str], first: str) -> Iterator[TableRow]:
    """Yields a file's rows with the numbers of the columns of all files, which may become more."""
    numbers: List[int] = []
    is_first = not columns
    for row in stream.rows:
        for name in stream.columns[len(numbers) :]:
            if name not in columns or is_first and isinstance(row.fields, list):
                columns.append(name)
            numbers.append(columns.index(name))
        if isinstance(row.fields, dict):
            yield row._replace(fields={numbers[c]: value for c, value in row.fields.items()})
        elif numbers == list(range(len(columns))) or is_first:
            yield row
        elif sorted(numbers) == list(range(len(columns))):
            fields = dict(zip(numbers, row.fields))
            yield row._replace(fields=[fields[number] for number in range(len(columns))])
        else:
            raise UserError(
                f"{stream.path}: found the columns {', '.join(stream.columns)}; expected those of"
                f" {first}."
            )


def _arrow_records(path: str) -> Iterator[Dict[Any, Any]]:
    """Yields the rows of a Parquet file or a Dataset's folder."""
    for table in arrow_files.read_parts(path):
        yield from tables.records_of(table, path)


def _checked_rows(
    rows: Iterator[TableRow], columns: List[str], path: str, has_header: bool
) -> Iterator[TableRow]:
    """Yields rows; raises UserError if one has another width or is the header, or without rows."""
    header = sorted(name.lower() for name in columns) if has_header else []
    row = None
    for row in rows:
        if isinstance(row.fields, list):
            # A header of one column may be a text.
            if len(header) > 1 and _is_header(row.fields, header):
                raise UserError(f"{path}, line {row.line}: found the header again.")
            if len(row.fields) != len(columns):
                as_in = ", as in the first line" if has_header else ""
                raise UserError(
                    f"{path}, line {row.line}: found {len(row.fields)} columns, expected"
                    f" {len(columns)}{as_in}."
                )
        yield row
    if row is None:
        content = "only a header" if columns and has_header else "an empty file"
        raise UserError(f"{path}: found {content}, expected rows of data.")


def _is_header(fields: List[str], header: List[str]) -> bool:
    """Returns whether a row has the names of all columns, as joined files have."""
    return fields[0].strip().lower() in header and header == sorted(
        field.strip().lower() for field in fields
    )


def without_gz(path: str) -> str:
    """Returns a path without the ending of a compressed file."""
    return path[: -len(_GZ)] if path.endswith(_GZ) else path


def without_copies(paths: List[str]) -> List[str]:
    """Returns paths without those of compressed files whose uncompressed ones are also there."""
    return [path for path in paths if without_gz(path) == path or without_gz(path) not in paths]


def has_objects(path: str) -> bool:
    """Returns whether a file's rows are objects, whose values may be lists."""
    return arrow_files.is_arrow(path) or without_gz(path).endswith(".jsonl")


def read_folders(paths: Sequence[str], columns: Sequence[str]) -> DataTable:
    """Returns the texts in folders that have a subfolder per label and a file per text.

    Args:
      paths: list of folders; files are UTF-8, Windows-1252 or Latin-1. Hidden files and folders
        are skipped.
      columns: names for the label's column and the text's.

    Returns:
      `DataTable`, sorted by path; a row's line is the number of its file.

    Raises:
      UserError: there are no files, or one cannot be read.
    """
    texts = []
    for path in paths:
        for label in _visible_names(path):
            folder = os.path.join(path, label)
            if gfile.isdir(folder):
                texts += [(label, os.path.join(folder, name)) for name in _visible_names(folder)]
    if not texts:
        raise UserError(f"{paths[0]}: found no text, expected a folder of texts for each label.")
    rows, counts = [], collections.Counter()
    for number, (label, path) in enumerate(texts, start=1):
        text, encoding = _decode(_read_bytes(path))
        rows.append(TableRow(number, [label, text]))
        counts[encoding] += 1
    if len(rows) > counts["UTF-8"]:
        logging.info("%s: files by encoding: %s.", paths[0], dict(counts))
    return DataTable(paths[0], tuple(columns), rows)


def _visible_names(folder: str) -> List[str]:
    return sorted(n.rstrip("/") for n in gfile.listdir(folder) if not n.startswith("."))


def _decode(data: bytes) -> Tuple[str, str]:
    """Returns bytes as text, and the encoding in which they are valid."""
    for encoding in ("UTF-8", "Windows-1252"):
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode(encoding), encoding
    return data.decode("Latin-1"), "Latin-1"


def _check_lines(lines: Iterable[str], path: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if "\0" in line:
            raise UserError(f"{path}, line {number}: found a NUL byte, expected text.")
        yield line


def check_label(label: str, where: str) -> None:
    """Raises UserError, prefixed by `where`, if a label from JSON cannot be written as UTF-8."""
    if not label.isascii() and re.search("[\ud800-\udfff]", label):
        raise UserError(
            f"{where}: found half a surrogate pair in the label {label!r}, expected text."
        )


def _without_blank_lines(rows: Iterable[TableRow], path: str) -> Iterator[TableRow]:
    """Yields the rows with fields; in a file of one column, others may come only at its end."""
    has_one_column, blank = False, None
    for row in rows:
        if not row.fields:
            blank = blank or row.line
            continue
        if has_one_column and blank:
            raise UserError(
                f"{path}, line {blank}: found a blank line, expected a text; a .csv file can hold"
                ' an empty one, as "".'
            )
        has_one_column, blank = len(row.fields) == 1, None
        yield row


def parse_tabs(lines: Iterable[str], path: str) -> Iterator[TableRow]:
    """Returns the rows of tab-separated lines; quotes enclose fields if `_is_quoted`.

    Args:
      lines: list or `FileLines`, as they are read twice.
      path: of their file.
    """
    if _is_quoted(lines):
        logging.info("%s: fields are in quotes, as in CSV; reading them without.", path)
        return _parse_csv(lines, path, delimiter="\t", strict=True)
    return split_tabs(lines)


def _is_quoted(lines: Iterable[str]) -> bool:
    """Returns whether a CSV writer wrote tab-separated lines, so that all quotes enclose fields.

    In such a file, each quote belongs to a quoted field; and the header is quoted, or a field has
    a doubled quote, tab or newline, or all fields of a column are quoted.
    """
    if not any('"' in line for line in lines):
        return False
    has_quotes_inside = spans_lines = False
    widths: Set[int] = set()
    header: List[bool] = []
    columns: List[bool] = []  # Whether all fields of a column are quoted.
    for text in _balanced(lines):
        if '"' in text:
            if '"' in _QUOTED.sub("", text):
                return False
            spans_lines = spans_lines or '"' in _QUOTED_IN_LINE.sub("", text)
            has_quotes_inside = has_quotes_inside or any(
                '""' in match.group()[1:-1] for match in _QUOTED_IN_LINE.finditer(text)
            )
        for row in split_tabs(io.StringIO(text)):
            if not row.fields:
                continue
            widths.add(len(row.fields))
            are_quoted = [bool(_QUOTED_IN_LINE.fullmatch(field)) for field in row.fields]
            if not header:
                header = are_quoted
            else:
                columns = are_quoted if not columns else list(map(min, columns, are_quoted))
    if len(widths) > 1:  # Quoted fields with tabs or newlines, or no table.
        return True
    return not spans_lines and (has_quotes_inside or all(header) or any(columns))


def _balanced(lines: Iterable[str]) -> Iterator[str]:
    """Yields consecutive lines, joined where a quote may enclose a line's end."""
    pending: List[str] = []
    is_open = False
    for line in lines:
        is_open ^= line.count('"') % 2 == 1
        pending.append(line)
        if not is_open:
            yield "".join(pending)
            pending = []
    if pending:
        yield "".join(pending)


def split_tabs(lines: Iterable[str]) -> Iterator[TableRow]:
    """Yields the rows of tab-separated lines, in which quotes are ordinary characters."""
    for number, line in enumerate(lines, start=1):
        line = line.rstrip("\r\n")
        yield TableRow(number, line.split("\t") if line else [])


def _parse_commas(lines: Iterable[str], path: str) -> Iterator[TableRow]:
    """Returns the rows of a comma-separated file; quotes may follow blanks, as in: text, "pos"."""
    options = {"strict": True}
    if any(' "' in line and re.search('(?:^|,) +"', line) for line in lines):
        options["skipinitialspace"] = _needs_skipping(lines, path)
    return _parse_csv(lines, path, **options)


def _needs_skipping(lines: Iterable[str], path: str) -> bool:
    """Returns whether quotes after blanks enclose fields, so that other rows are read with them."""
    skipping = _parse_csv(lines, path, strict=True, skipinitialspace=True)
    plain = _parse_csv(lines, path, strict=True)
    with contextlib.suppress(UserError):  # The reader chosen raises its own again.
        for first, second in itertools.zip_longest(plain, skipping):
            stripped = [
                row and (row.line, [field.lstrip(" ") for field in row.fields])
                for row in (first, second)
            ]
            if stripped[0] != stripped[1]:
                return True
        return False
    return True


def _parse_csv(lines: Iterable[str], path: str, **dialect: Any) -> Iterator[TableRow]:
    reader = csv.reader(lines, **dialect)
    is_done = False
    while not is_done:
        rows, error = [], None
        with _long_csv_fields():  # In parts, as the limit is of the whole process.
            start_line = reader.line_num + 1
            try:
                for fields in itertools.islice(reader, _CSV_ROWS_PER_PART):
                    rows.append(TableRow(start_line, fields))
                    start_line = reader.line_num + 1
            except csv.Error as raised:
                error = raised
        yield from rows
        if error is not None:
            is_cr = "new-line" in str(error)  # Python's advice is for programmers.
            reason = "a carriage return alone ends only some lines" if is_cr else error
            separators = "tabs" if reader.dialect.delimiter == "\t" else "commas"
            raise UserError(
                f"{path}, line {start_line}: found a row that is not valid CSV ({reason}), expected"
                f" {separators} between fields, and {reader.dialect.quotechar} around any with"
                f" {separators}, quotes or newlines."
            ) from error
        is_done = len(rows) < _CSV_ROWS_PER_PART


def parse_object(line: str, where: str) -> Dict[str, Any]:
    """Returns the JSON object in a line; raises UserError, prefixed by `where`, without one."""
    if line.lstrip().startswith("["):
        raise UserError(f"{where}: found a JSON list, expected a JSON object per line.")
    try:
        record = json_objects.parse_json(line)
    except json_objects.DuplicateKeyError as error:
        raise UserError(f"{where}: {error}; expected each key once.") from error
    except ValueError as error:
        raise UserError(f"{where}: is not valid JSON ({error}).") from error
    if not isinstance(record, dict):
        raise UserError(f"{where}: expected a JSON object.")
    return record


def _parse_objects(lines: Iterable[str], path: str, columns: List[str]) -> Iterator[TableRow]:
    """Yields the rows of JSON lines, and adds the names of their keys to `columns`."""
    indices: Dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        fields = {}
        for key, value in parse_object(line, f"{path}, line {number}").items():
            name = tables.normalize(key)
            if name not in indices:
                indices[name] = len(columns)
                columns.append(name)
            fields[indices[name]] = value
        yield TableRow(number, fields)


def read_rows(path: str, quotechar: Optional[str] = None) -> List[List[str]]:
    r"""Returns the rows of a tab-separated UTF-8 file, local or remote.

    Only \n and \r\n end a line, as U+2028 and the like occur within texts. Byte order marks at the
    start of lines are dropped, as joined files have them.

    Args:
      path: of the file.
      quotechar: None, as in GLUE: quotes are ordinary characters. Otherwise a character that
        encloses fields, by the rules of Python's csv module.

    Returns:
      A list of rows, each a list of str; a blank line is an empty list.

    Raises:
      UserError: as in `read_lines`; or with a quotechar, the file is not CSV.
    """
    lines = read_lines(path)
    if quotechar is None:
        return [row.fields for row in split_tabs(lines)]
    return [row.fields for row in _parse_csv(lines, path, delimiter="\t", quotechar=quotechar)]


def read_lines(path: str, has_header: bool = False) -> Iterator[str]:
    """Yields the lines of a UTF-8 file with their line ends, without byte order marks.

    Args:
      path: of the file.
      has_header: whether the first line names the columns. Then a later mark is refused.

    Raises:
      UserError: the file is missing, unreadable or not UTF-8, or has a NUL byte.
    """
    return _check_lines(_decode_lines(_binary_lines(path), path, has_header), path)


class FileLines(Iterable[str]):
    """The lines of `read_lines`, which each iteration reads from the file again."""

    def __init__(self, path: str, has_header: bool = False):
        self._arguments = path, has_header
        _check_exists(path)

    def __iter__(self) -> Iterator[str]:
        return read_lines(*self._arguments)


def _check_exists(path: str) -> None:
    if not gfile.exists(path):
        folder = os.path.dirname(path) or "."
        missing = "" if gfile.isdir(folder) else ", and neither does its folder"
        raise UserError(f"{path} does not exist{missing}; expected it in --data_dir.")


def _read_bytes(path: str) -> bytes:
    return b"".join(_binary_lines(path))


def _binary_lines(path: str) -> Iterator[bytes]:
    """Yields the lines of a file, uncompressed; raises UserError if it cannot be plain text."""
    _check_exists(path)
    with gfile.convert_read_errors(path), gfile.open_regular(path) as reader:
        lines: Iterable[bytes] = reader
        if path.endswith(_GZ):
            lines = _decompressed_lines(reader, path)
        for number, line in enumerate(lines):
            if number == 0:
                for pattern, name in _BINARY_FORMATS.items():
                    if re.match(pattern, line):
                        raise UserError(
                            f"{path}: the file's content is {name}; expected plain text in UTF-8."
                        )
            yield line


def _decompressed_lines(reader: Any, path: str) -> Iterator[bytes]:
    try:
        yield from io.BufferedReader(gzip.GzipFile(fileobj=reader))
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} is not a valid gzip file ({error}).") from error


def _decode_lines(lines: Iterable[bytes], path: str, has_header: bool = False) -> Iterator[str]:
    """Yields the lines of UTF-8 bytes with their line ends, without byte order marks.

    Raises:
      UserError: the bytes are not UTF-8; or with a header, a later line begins with a mark.
    """
    for number, line in enumerate(_split_at_returns(lines), start=1):
        # UTF-16 without a byte order mark: ASCII text in it is valid UTF-8, but has a NUL in its
        # first two bytes.
        is_utf16 = line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in line[:2]
        if number == 1 and is_utf16:
            raise UserError(f"{path}, line 1: the file looks like UTF-16; expected UTF-8.")
        if has_header and number > 1 and line.startswith(codecs.BOM_UTF8):
            raise UserError(
                f"{path}, line {number}: found a byte order mark, as at the start of another file;"
                " join files without their headers and marks."
            )
        try:
            yield line.decode("utf-8").lstrip("\ufeff")  # Joined files have several marks.
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}, line {number}: found bytes that are not UTF-8 ({error.reason}), expected"
                " UTF-8."
            ) from None


def _split_at_returns(lines: Iterable[bytes]) -> Iterator[bytes]:
    r"""Yields lines; if there is but one, those that \r alone ends in it, as on old Macs."""
    lines = iter(lines)
    first: List[bytes] = []
    for line in lines:  # Blank lines after the first do not count.
        first.append(line)
        if len(first) > 1 and line.strip(b"\r\n"):
            break
    else:
        yield from io.BytesIO(re.sub(b"\r(?!\n)", b"\n", b"".join(first)))
        return
    yield from first
    yield from lines


@contextlib.contextmanager
def _long_csv_fields() -> Iterator[None]:
    """Lets the csv module read long fields, while entered."""
    previous_limit = csv.field_size_limit(_CSV_FIELD_LIMIT)
    try:
        yield
    finally:
        csv.field_size_limit(previous_limit)
