"""Reads and writes tagged sentences: CoNLL's columns, JSON lines and Arrow tables.

    EU NNP I-NP I-ORG                                {"tokens": ["EU", "rejects"],
    rejects VBZ I-VP O                                "tags": ["I-ORG", "O"]}

A line of a column file is a word; a blank line ends a sentence. Columns are separated by tabs if
the first word's line has one, otherwise by spaces. When predictions are written, all lines without
a word (comments, -DOCSTART-, blank lines) are kept.
"""

import json
import re
import unicodedata
from typing import (
    Any,
    Collection,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from absl import logging

from adapter_bert.files import gfile
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks import arrow_files, table_readers, tables

_DOCUMENT = "-DOCSTART-"
# Names of a split's file in a data_dir, without the extension.
_NAMES = {
    "train": r"train|\w+\.train",
    "dev": r"(?:\w+\.)?(?:{})|\w+\.testa".format("|".join(table_readers.DEV_NAMES)),
    "test": r"test|\w+\.(?:test|testb)",
}
_EXTENSIONS = r"(?:\.parquet|\.(?:txt|conll|conllu|tsv|iob2?|bio|bioes|jsonl)(?:\.gz)?)?"
_CONLLU_RANGE = re.compile(r"\d+[-.]\d+\t")  # Not a word: its parts have lines of their own.
_FIELD = re.compile("[^ \t]+")


class Sentence(NamedTuple):
    """The words of a sentence.

    Attributes:
      words: list of str.
      tags: list of str, one per word; None if the file has none.
      lines: the line number of each word.
    """

    words: List[str]
    tags: Optional[List[str]]
    lines: List[int]


class TaggedFile:
    """The sentences of a file, and the file's format.

    Attributes:
      path: str.
      sentences: list of `Sentence`; at least one has a word, and all or none have tags.
      extension: "txt" or "jsonl", for a file in this format.
    """

    extension = "txt"

    def __init__(self, path: str, sentences: List[Sentence]):
        if not any(sentence.words for sentence in sentences):
            raise UserError(
                f"{path}: found no words, expected a word and its tag per line, or JSON lines."
            )
        self.path, self.sentences = path, sentences

    def check_tags(self, tags: Iterable[str]) -> None:
        """Raises UserError if the file's format cannot hold one of the tags."""

    def part(self, indices: Sequence[int]) -> "TaggedFile":
        """Returns the file with some of its sentences."""
        raise NotImplementedError

    def with_tags(self, tags: Sequence[Sequence[str]]) -> bytes:
        """Returns the file's content with other tags, one list per sentence."""
        raise NotImplementedError


def read(
    source: Union[str, tables.DataTable],
    word_column: Optional[str] = None,
    tag_column: Optional[str] = None,
    requires_tags: bool = True,
    known: Collection[str] = (),
) -> TaggedFile:
    """Returns the sentences of a tagged file.

    Args:
      source: path of a UTF-8 file: JSON lines if its name ends in .jsonl, otherwise columns, either
        also gzip'd; or of a Parquet file or Dataset's folder, or a table in memory, which are read
        like JSON lines.
      word_column, tag_column: number of a column as a str, from 1, or from -1 for the last; by
        default the first and the last. Where `has_keys`, the key, by default "tokens" and "tags".
      requires_tags: bool; if False, a file may have only words, in one column or without the key.
      known: tags that stay as they are. Others are in Unicode's form NFC, so that a tag is one.

    Raises:
      UserError: the file is missing, not UTF-8, without a word, or malformed; names the file and
        line.
    """
    if not isinstance(source, str) or has_keys(source):
        keys = word_column or "tokens", tag_column or "tags"
        return _normalize_tags(_read_objects(source, *keys, requires_tags), known)
    columns = (
        _column_number(word_column or "1", "--token_column"),
        _column_number(tag_column or "-1", "--tag_column"),
    )
    return _normalize_tags(_read_columns(source, columns, requires_tags), known)


def has_keys(source: Union[str, tables.DataTable]) -> bool:
    """Returns whether words and tags are found by a key, not by the number of a column."""
    return not isinstance(source, str) or table_readers.has_objects(source)


def _normalize_tags(file: TaggedFile, known: Collection[str]) -> TaggedFile:
    for sentence in file.sentences:
        if sentence.tags is not None:
            sentence.tags[:] = [
                tag if tag.isascii() or tag in known else unicodedata.normalize("NFC", tag)
                for tag in sentence.tags
            ]
    return file


def find_files(values: Dict[str, Optional[str]]) -> Dict[str, List[str]]:
    """Returns the paths of each split, "train", "dev" and "test": those in data_dir, or the named.

    Args:
      values: data_dir, train_file, dev_file and test_file; None for a flag that is not given.

    Raises:
      UserError: a named file or folder does not exist.
    """
    names = []
    if values["data_dir"]:
        if not gfile.isdir(values["data_dir"]):
            raise UserError(f"--data_dir={values['data_dir']}: there is no such folder.")
        try:
            names = sorted(gfile.listdir(values["data_dir"]))
        except OSError as error:
            raise UserError(f"--data_dir={values['data_dir']}: {gfile.reason(error)}.") from error
    result = {}
    for split, pattern in _NAMES.items():
        given = values[f"{split}_file"]
        if given and not gfile.exists(given):
            raise UserError(f"--{split}_file {given} does not exist.")
        expression = re.compile(f"(?:{pattern}){_EXTENSIONS}")
        matches = [name for name in names if expression.fullmatch(name.rstrip("/"))]
        paths = [f"{values['data_dir']}/{name}" for name in matches]
        result[split] = [given] if given else table_readers.without_copies(paths)
    return result


# ---- Columns


def is_column_number(text: str) -> bool:
    """Returns whether a text is the number of a column, from 1, or from -1 for the last."""
    return re.fullmatch("-?[1-9][0-9]{0,3}", text) is not None


def _column_number(text: str, flag: str) -> int:
    """Returns the Python index of a column."""
    if not is_column_number(text):
        raise UserError(
            f"{flag}={text}: expected the number of a column, from 1, or from -1 for the last."
        )
    number = int(text)
    return number - 1 if number > 0 else number


class _Columns(NamedTuple):
    """The format of a file's lines; `words` and `tags` are indices of columns."""

    has_tabs: bool
    width: int
    words: int
    tags: Optional[int]

    def fields(self, line: str) -> List[str]:
        """Returns a line's fields; blank ones after the last column do not count."""
        fields = _fields(line, self.has_tabs)
        while len(fields) > self.width and not fields[-1].strip(" "):
            fields.pop()
        return fields


class _ColumnFile(TaggedFile):
    def __init__(self, path: str, sentences: List[Sentence], lines: List[str], columns: _Columns):
        super().__init__(path, sentences)
        self._lines, self._columns = lines, columns

    def check_tags(self, tags: Iterable[str]) -> None:
        """Raises UserError if a tag would not be one column of one line."""
        for tag in tags:
            if self._columns.fields(tag) != [tag] or re.search("[\r\n]", tag):
                raise UserError(
                    f"{self.path}: predictions in its format cannot hold the tag {shown(tag)},"
                    " which has white space; expected a file of JSON lines."
                )

    def part(self, indices: Sequence[int]) -> TaggedFile:
        """Returns the file with some of its sentences, whose lines keep their numbers."""
        sentences = [self.sentences[index] for index in indices]
        lines = [""] * len(self._lines)
        for sentence in sentences:
            for number in sentence.lines:
                lines[number - 1] = self._lines[number - 1]
            lines[sentence.lines[-1] - 1] = lines[sentence.lines[-1] - 1].rstrip("\r\n") + "\n\n"
        return _ColumnFile(self.path, sentences, lines, self._columns)

    def with_tags(self, tags: Sequence[Sequence[str]]) -> bytes:
        """Returns the file's content with other tags; appends a column if it had none."""
        lines = list(self._lines)
        for sentence, sentence_tags in zip(self.sentences, tags):
            for number, tag in zip(sentence.lines, sentence_tags):
                lines[number - 1] = self._line_with(lines[number - 1], tag)
        return "".join(lines).encode("utf-8")

    def _line_with(self, line: str, tag: str) -> str:
        text = line.rstrip("\r\n")
        column, has_tabs = self._columns.tags, self._columns.has_tabs
        end = line[len(text) :]
        if column is None:
            return (text.rstrip("\t") + f"\t{tag}{end}") if has_tabs else f"{text} {tag}{end}"
        if has_tabs:
            fields = text.split("\t")
            fields[column] = tag
            return "\t".join(fields) + end
        start, stop = list(_FIELD.finditer(text))[column].span()
        return text[:start] + tag + text[stop:] + end


def _fields(line: str, has_tabs: bool) -> List[str]:
    return line.split("\t") if has_tabs else _FIELD.findall(line)


def _read_columns(path: str, numbers: Tuple[int, int], requires_tags: bool) -> TaggedFile:
    raw = list(table_readers.read_lines(path))
    lines = [line.rstrip("\r\n") for line in raw]
    for number, line in enumerate(lines, start=1):
        if "\r" in line:
            raise UserError(
                f"{path}, line {number}: found a carriage return inside the line; expected lines"
                " that all end alike."
            )
    is_word = [_may_be_word(line, path) for line in lines]
    first = next((i for i, line in enumerate(lines) if is_word[i] and line[0] != "#"), None)
    if first is None:
        return _ColumnFile(path, [], raw, _Columns(False, 0, 0, None))
    words = [line for line, each in zip(lines, is_word) if each and line[0] != "#"]
    columns = _find_columns(words, numbers, requires_tags, f"{path}, line {first + 1}")
    _leave_out_comments(lines, is_word, columns, path)
    sentences, begun = [], None
    for index, line in enumerate(lines):
        if not is_word[index]:
            is_comment = line.startswith("#") or line.strip(" \t")
            begun = begun if is_comment and not line.startswith(_DOCUMENT) else None
            continue
        word, tag = _word_and_tag(line, columns, f"{path}, line {index + 1}")
        if begun is None:
            begun = Sentence([], None if columns.tags is None else [], [])
            sentences.append(begun)
        begun.words.append(word)
        begun.lines.append(index + 1)
        if begun.tags is not None:
            begun.tags.append(tag)
    return _ColumnFile(path, sentences, raw, columns)


def _may_be_word(line: str, path: str) -> bool:
    if not line.strip(" \t") or line.startswith(_DOCUMENT):
        return False
    is_conllu = table_readers.without_gz(path).endswith(".conllu")
    return not (is_conllu and _CONLLU_RANGE.match(line))


def _find_columns(
    lines: List[str], numbers: Tuple[int, int], requires_tags: bool, where: str
) -> _Columns:
    """Returns the columns of the first of the words' lines, without last ones that all leave blank.

    `where` names that line.
    """
    has_tabs = "\t" in lines[0]
    width = len(_fields(lines[0], has_tabs))
    if has_tabs:
        rows = [line.split("\t") for line in lines]
        while width > 1 and not any("".join(row[width - 1 :]).strip(" ") for row in rows):
            width -= 1
    if width == 1:
        if requires_tags:
            raise UserError(f"{where}: found one column, expected a word and its tag.")
        return _Columns(has_tabs, width, 0, None)
    indices = []
    for number, flag in zip(numbers, ("--token_column", "--tag_column")):
        if not -width <= number < width:
            given = number + 1 if number >= 0 else number
            raise UserError(f"{where}: {flag}={given}, but the line has {width} columns.")
        indices.append(number % width)
    if indices[0] == indices[1]:
        raise UserError(
            f"{where}: --token_column and --tag_column both select column {indices[0] + 1} of"
            f" {width}."
        )
    return _Columns(has_tabs, width, *indices)


def _leave_out_comments(
    lines: List[str], is_word: List[bool], columns: _Columns, path: str
) -> None:
    """Sets is_word to False for comments.

    A line that begins with # is a word's if it has the right number of columns and is #word, not
    "# text", before a tab; or has a plausible tag: one that another line has, or the word itself,
    as in Penn Treebank's tag for #.
    """
    hashed = [i for i, line in enumerate(lines) if is_word[i] and line[0] == "#"]
    if not hashed:
        return
    column = columns.tags
    rows = (columns.fields(line) for i, line in enumerate(lines) if is_word[i])
    others = [row for row in rows if len(row) == columns.width and row[0][:1] != "#"]
    tags = set() if column is None else {row[column] for row in others}
    for index in hashed:
        row = columns.fields(lines[index])
        has_width = len(row) == columns.width
        is_hashtag = columns.has_tabs and not lines[index].startswith("# ")
        is_word[index] = has_width and (
            column is None or is_hashtag or row[column] in {*tags, row[columns.words]}
        )
        if has_width and not is_word[index] and row[0] != "#":
            logging.warning(
                "%s, line %d is taken for a comment; for a word, use tabs between columns.",
                path,
                index + 1,
            )


def _word_and_tag(line: str, columns: _Columns, where: str) -> Tuple[str, str]:
    fields = columns.fields(line)
    if len(fields) != columns.width:
        raise UserError(
            f"{where}: found {_count(len(fields))}, expected {columns.width}, as in the first"
            " word's line."
        )
    word = fields[columns.words].strip(" ")
    tag = fields[columns.tags].strip(" ") if columns.tags is not None else "-"
    for text, name, other in ((word, "word", "tag"), (tag, "tag", "word")):
        if not text:
            raise UserError(f"{where}: found a {other} without a {name}.")
    return word, tag


def _count(width: int) -> str:
    return "one column" if width == 1 else f"{width} columns"


# ---- JSON lines


class _JsonFile(TaggedFile):
    extension = "jsonl"

    def __init__(
        self, path: str, sentences: List[Sentence], records: List[Dict[str, Any]], tags_key: str
    ):
        super().__init__(path, sentences)
        self._records, self._tags_key = records, tags_key

    def part(self, indices: Sequence[int]) -> TaggedFile:
        """Returns the file with some of its sentences."""
        sentences = [self.sentences[index] for index in indices]
        records = [self._records[index] for index in indices]
        return _JsonFile(self.path, sentences, records, self._tags_key)

    def with_tags(self, tags: Sequence[Sequence[str]]) -> bytes:
        """Returns the file's objects with other tags and all their other keys."""
        lines = (
            json.dumps(
                {**record, self._tags_key: list(sentence_tags)}, ensure_ascii=False, default=str
            )
            + "\n"
            for record, sentence_tags in zip(self._records, tags)
        )
        # JSON can escape a lone surrogate, which UTF-8 cannot encode.
        return "".join(lines).encode("utf-8", "backslashreplace")


def _objects(source: Union[str, tables.DataTable]) -> Iterator[Tuple[str, int, Any]]:
    """Yields (where, line, object) of each line of a file, or row of a table."""
    if isinstance(source, str) and not arrow_files.is_arrow(source):
        for number, line in enumerate(table_readers.read_lines(source), start=1):
            if line.strip():
                where = f"{source}, line {number}"
                yield where, number, table_readers.parse_object(line, where)
        return
    table = table_readers.read_table(source) if isinstance(source, str) else source
    for row in table.rows:
        record = {table.columns[column]: value for column, value in row.fields.items()}
        yield table.where(row), row.line, record


def _read_objects(
    source: Union[str, tables.DataTable], words_key: str, tags_key: str, requires_tags: bool
) -> TaggedFile:
    sentences: List[Sentence] = []
    records = []
    for where, number, record in _objects(source):
        words = _texts(record, words_key, where)
        tags = None
        if requires_tags or tags_key in record:
            tags = _texts(record, tags_key, where)
            for tag in tags:
                table_readers.check_label(tag, where)
            if len(tags) != len(words):
                raise UserError(
                    f"{where}: found {len(tags)} {tags_key!r} for {len(words)} {words_key!r};"
                    " expected one tag per word."
                )
        if sentences and (sentences[0].tags is None) != (tags is None):
            raise UserError(
                f"{where}: only some lines have {tags_key!r}; expected it in all of them or in"
                " none."
            )
        sentences.append(Sentence(words, tags, [number] * len(words)))
        records.append(record)
    path = source if isinstance(source, str) else source.path
    return _JsonFile(path, sentences, records, tags_key)


def _texts(record: Dict[str, Any], key: str, where: str) -> List[str]:
    values = record.get(key)
    if not isinstance(values, list):
        raise UserError(f"{where}: {key!r} is not a list; expected a list of strings.")
    for value in values:
        if not isinstance(value, str) or not value:
            raise UserError(
                f"{where}: found {shown(value)} in {key!r}, expected non-empty strings."
            )
    return values


def shown(value: Any) -> str:
    """Returns a value for an error message: printable, at most 60 characters."""
    return ascii(value)[:60] if not isinstance(value, str) else ascii(value[:40])


def tags_at(sentences: Iterable[Sentence]) -> Iterable[Tuple[int, str]]:
    """Yields (line, tag) for all words with a tag."""
    for sentence in sentences:
        yield from zip(sentence.lines, sentence.tags or ())
