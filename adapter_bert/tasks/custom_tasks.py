"""Classification tasks whose rows stand in tables with named columns: your own, and the paper's.

`LAYOUTS` has a row for each of the 17 further tasks of Houlsby et al. 2019 (section 3.4, table 3),
as their files are published.
"""

import collections
import itertools
import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
from absl import logging

from adapter_bert.common import files
from adapter_bert.common.errors import UserError
from adapter_bert.tasks import table_readers, text_kind
from adapter_bert.tasks.classifier_features import InputExample
from adapter_bert.tasks.glue import (
    SplitProcessor,
    Task,
    TaskProcessor,
    get_processor,
)

_ENDINGS = ("tsv", "txt", "csv", "jsonl")
_FILE_NAMES = {"train": ("train",), "dev": ("dev", "valid", "validation"), "test": ("test",)}
_SPLIT_SEED = 0


class Layout(NamedTuple):
    """Which columns of a table hold what.

    Attributes:
      name: the task's.
      text_a, text_b, label: names of columns; text_b is None where one text is classified.
      kind: as in `glue.Task`.
      files: the names of what was published: one file, or folders with a folder for each label. It
        is split. Where it is missing, files train, dev and test with the same columns are read.
      columns: the names of columns of a published file that has no header.
      labels: in the order of their ids; empty where they are found in the training rows.
      aliases: other spellings of labels in the file, compared without surrounding spaces.
      excluded_labels: labels whose rows are not read.
      skip_empty: rows without a text are not read.
      is_label_prefix: the label is the first column whose name begins as `label` says.
    """

    name: str
    text_a: str
    label: str
    text_b: Optional[str] = None
    kind: str = "classification"
    files: Tuple[str, ...] = ()
    columns: Tuple[str, ...] = ()
    labels: Tuple[str, ...] = ()
    aliases: Dict[str, str] = {}
    excluded_labels: Tuple[str, ...] = ()
    skip_empty: bool = False
    is_label_prefix: bool = False

    def label_column(self, table: table_readers.Table) -> Optional[int]:
        """The place of the label's column in a `table_readers.Table`; None if it has none."""
        if self.is_label_prefix:
            names = [name for name in table.columns if name.startswith(self.label)]
            return table.columns.index(names[0]) if names else None
        if self.label not in table.columns:
            return None
        return table.column(self.label, "--label_column")


_NEWS = ("ID", "TITLE", "URL", "PUBLISHER", "CATEGORY", "STORY", "HOSTNAME", "TIMESTAMP")

LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout(
            "airline",
            "text",
            "airline_sentiment",
            files=("Tweets.csv",),
            labels=("negative", "neutral", "positive"),
        ),
        Layout(
            "corporate_messaging",
            "text",
            "category",
            files=("Corporate-messaging-DFE.csv",),
            labels=("Action", "Dialogue", "Exclude", "Information"),
        ),
        Layout(
            "disasters",
            "text",
            "choose_one",
            files=("socialmedia-disaster-tweets-DFE.csv",),
            labels=("Not Relevant", "Relevant"),
            excluded_labels=("Can't Decide",),
        ),
        Layout(
            "economic_news_relevance",
            "text",
            "relevance",
            files=("Full-Economic-News-DFE-839861.csv",),
            labels=("no", "yes"),
            excluded_labels=("not sure",),
        ),
        Layout("newsgroups", "text", "label", files=("20news-bydate-train", "20news-bydate-test")),
        Layout("emotion", "content", "sentiment", files=("text_emotion.csv",)),
        Layout(
            "global_warming",
            "tweet",
            "existence",
            files=("1377884570_tweet_global_warming.csv",),
            labels=("No", "Yes"),
            aliases={"N": "No", "Y": "Yes"},
            excluded_labels=("", "NA", "N/A"),
        ),
        Layout(
            "political_audience",
            "text",
            "audience",
            files=("political_social_media.csv",),
            labels=("constituency", "national"),
        ),
        Layout(
            "political_bias",
            "text",
            "bias",
            files=("political_social_media.csv",),
            labels=("neutral", "partisan"),
        ),
        Layout("political_message", "text", "message", files=("political_social_media.csv",)),
        Layout(
            "primary_emotions", "sentence", "emotion", files=("primary-plutchik-wheel-DFE.csv",)
        ),
        Layout(
            "progressive_opinion",
            "tweet",
            "q2_",
            files=("progressive-tweet-sentiment.csv",),
            is_label_prefix=True,
        ),
        Layout(
            "progressive_stance",
            "tweet",
            "q1_",
            files=("progressive-tweet-sentiment.csv",),
            is_label_prefix=True,
        ),
        Layout(
            "us_economic_performance",
            "text",
            "positivity",
            files=("us-economic-newspaper.csv",),
            labels=("no", "yes"),
            aliases={"": "no", **{str(i): "yes" for i in range(1, 10)}},
        ),
        Layout(
            "customer_complaints",
            "Consumer complaint narrative",
            "Issue",
            files=("Consumer_Complaints.csv",),
            skip_empty=True,
        ),
        Layout(
            "news_aggregator",
            "TITLE",
            "CATEGORY",
            files=("newsCorpora.csv",),
            columns=_NEWS,
            labels=("b", "e", "m", "t"),
        ),
        Layout(
            "sms_spam",
            "text",
            "label",
            files=("SMSSpamCollection",),
            columns=("label", "text"),
            labels=("ham", "spam"),
        ),
    )
}


def layout_of(task_name: str) -> Optional[Layout]:
    """Returns the `Layout` of a further task by its name, in any case; None if there is none."""
    return LAYOUTS.get(task_name.lower().replace("-", "_"))


def look_up(
    task_name: Optional[str], custom: Optional[Layout] = None
) -> Tuple[Union[Layout, TaskProcessor], str]:
    """Looks a task up by its name, in any case.

    Args:
      task_name: the value of --task_name.
      custom: the `Layout` of --task_name=custom.

    Returns:
      (`Layout` of a task that is read by columns, or else its `glue.TaskProcessor`; the name of
      the folder of its data).

    Raises:
      UserError: the name is missing or unknown.
    """
    if not task_name:
        raise UserError("--task_name is not given, for example --task_name=MRPC.")
    layout = custom if task_name.lower() == "custom" else layout_of(task_name)
    if layout is not None:
        return layout, layout.name
    processor = get_processor(task_name, [*LAYOUTS, "custom"])
    return processor, processor.task.folder or processor.task.name


def files_of(layout: Layout, split: str, data_dir: str) -> List[str]:
    """Returns the paths, of files or folders, that a split is read from.

    Args:
      layout: `Layout`.
      split: "train", "dev" or "test".
      data_dir: folder of the files.

    Returns:
      List of str; empty where the split is a share of the training rows, or is missing.

    Raises:
      UserError: several files could be the split.
    """
    published = [os.path.join(data_dir, name) for name in layout.files]
    if published and all(map(files.exists, published)):
        return published if split == "train" else []
    paths = [
        os.path.join(data_dir, f"{name}.{ending}")
        for name in _FILE_NAMES[split]
        for ending in _ENDINGS
    ]
    existing = [path for path in paths if files.exists(path)]
    if len(existing) > 1:
        raise UserError(f"{data_dir}: found {' and '.join(existing)}, expected one of them.")
    return existing


class TableProcessor(SplitProcessor):
    """The processor of a `Layout`.

    Args:
      layout: `Layout`.
      data_dir: folder of the files.
      labels: those of a trained model, in place of what the training file holds; or None.

    Raises:
      UserError: files or columns are missing, or a row is wrong; file and line are named.
    """

    def __init__(self, layout: Layout, data_dir: str, labels: Optional[Sequence[str]] = None):
        self._layout = layout
        self._kind = text_kind.get(layout.kind)
        self._data_dir = data_dir
        self._tables = {}
        if labels is None:
            labels = layout.labels or self._read_labels()
        super().__init__(
            Task(layout.name, tuple(labels), {}, kind=layout.kind, score=self._kind.score)
        )
        self._known = frozenset(labels)

    def splits_of(self, stage: str, data_dir: str) -> List[str]:
        """There is one split for each stage."""
        del data_dir
        return [stage]

    def has_labels(self, split: str) -> bool:
        """Only a test file's rows may be without."""
        return split != "test" or self._layout.label_column(self._split(split)) is not None

    def get_examples(self, split: str, data_dir: str) -> List[InputExample]:
        """The examples of a split, in the order of its file."""
        del data_dir
        table = self._split(split)
        layout, label = self._layout, self._layout.label_column(table)
        if label is None and split != "test":
            raise table.column_error(layout.label, "--label_column")
        text_a = table.column(layout.text_a, "--text_column")
        text_b = table.column(layout.text_b, "--text_b_column") if layout.text_b else None
        return [
            InputExample(
                f"{split}-{row.line}",
                table.text(row, text_a),
                None if text_b is None else table.text(row, text_b),
                self._label(table, row, label),
            )
            for row in table.rows
        ]

    def _split(self, split: str) -> table_readers.Table:
        """The `Table` of a split: its own file, or its share of the training file's rows."""
        path = self._path(split)
        if path and split != "train":
            return self._table(path)
        table = self._training_table()
        missing = [name for name in ("dev", "test") if not self._path(name)]
        if split == "train" and not missing:
            return table
        shares = {"train": 10 - len(missing), **dict.fromkeys(missing, 1)}
        parts = split_rows(table.rows, shares)
        rows = parts[split]
        if split == "train":
            set_apart = " and ".join(f"{len(parts[name])} as {name}" for name in missing)
            logging.info(
                "%s: of %d rows, %s are set apart.", table.path, len(table.rows), set_apart
            )
        if not rows:
            raise UserError(
                f"{table.path}: {len(table.rows)} rows are too few to set some apart as {split};"
                f" give a file {split}.tsv, .csv or .jsonl."
            )
        return table._replace(rows=rows)

    def _training_table(self) -> table_readers.Table:
        """The `Table` of the training file, before anything is set apart."""
        path = self._path("train")
        if path is None:
            expected = self._layout.files or [f"train.{ending}" for ending in _ENDINGS]
            missing = [
                name for name in expected if not files.exists(os.path.join(self._data_dir, name))
            ]
            raise UserError(f"{self._data_dir}: found no {' or '.join(missing)} in --data_dir.")
        return self._table(path)

    def _path(self, split: str) -> Optional[str]:
        """Where a split lies; None if it is to be a share of the training file."""
        paths = files_of(self._layout, split, self._data_dir)
        return paths[0] if paths else None

    def _table(self, path: str) -> table_readers.Table:
        """A file's `Table`, but for the rows that are left out."""
        if path not in self._tables:
            self._tables[path] = self._filter_rows(self._read(path))
        return self._tables[path]

    def _read(self, path: str) -> table_readers.Table:
        layout = self._layout
        if os.path.basename(path) not in layout.files:
            return table_readers.read_table(path)
        if files.isdir(path):
            folders = [os.path.join(self._data_dir, name) for name in layout.files]
            return table_readers.read_folders(folders, (layout.label, layout.text_a))
        return table_readers.read_table(path, layout.columns, allow_latin1=True)

    def _filter_rows(self, table: table_readers.Table) -> table_readers.Table:
        layout, label = self._layout, self._layout.label_column(table)
        rows = table.rows
        if layout.excluded_labels and label is not None:
            rows = [
                row
                for row in rows
                if self._canonical_label(table, row, label) not in layout.excluded_labels
            ]
        if layout.skip_empty:
            text = table.column(layout.text_a, "--text_column")
            rows = [row for row in rows if table.text(row, text).strip()]
        if not rows:
            raise UserError(f"{table.path}: all {len(table.rows)} rows are left out.")
        return table._replace(rows=rows)

    def _read_labels(self) -> Sequence[str]:
        if not self._kind.min_labels:
            return ()
        table = self._training_table()
        label = self._layout.label_column(table)
        if label is None:
            raise table.column_error(self._layout.label, "--label_column")
        rows = [_names_in(self._parse_label(table, row, label)) for row in table.rows]
        labels = sorted(set(itertools.chain.from_iterable(rows)))
        if not labels:
            raise UserError(f"{table.path}: found no label in {len(rows)} rows, expected some.")
        if len(labels) < self._kind.min_labels:
            raise UserError(
                f"{table.path}: found only the label {labels[0]!r} in {len(rows)} rows,"
                " expected two labels or more."
            )
        return labels

    def _canonical_label(
        self, table: table_readers.Table, row: table_readers.Row, column: int
    ) -> str:
        """A row's label as the task has it, on one line."""
        label = " ".join(table.text(row, column).split())
        return self._layout.aliases.get(label, label)

    def _parse_label(self, table: table_readers.Table, row: table_readers.Row, column: int) -> Any:
        """Returns a row's label, a str or a tuple of str, if a file can hold it."""
        where = f"{table.path}, line {row.line}"
        label = self._kind.parse_label(self._canonical_label(table, row, column), where)
        for name in _names_in(label):
            if any("\ud800" <= character <= "\udfff" for character in name):
                raise UserError(
                    f"{where}: found half a surrogate pair in the label {name!r}, expected text."
                )
        return label

    def _label(self, table: table_readers.Table, row: table_readers.Row, column: Optional[int]):
        """Returns a row's label, one of the task's; a placeholder where there is no column."""
        if column is None:
            return self._kind.placeholder(self.task.labels)
        label = self._parse_label(table, row, column)
        for name in _names_in(label):
            if not self._kind.is_label(name, self._known):
                expected = self._kind.describe_labels(self.task.labels)
                raise UserError(
                    f"{table.path}, line {row.line}: found the label {name!r}, expected {expected}."
                )
        return label


def _names_in(label) -> Tuple[str, ...]:
    """Returns the labels in a set of them, or the one label that a row has."""
    return label if isinstance(label, tuple) else (label,)


def split_rows(rows: list, shares: Dict[str, int]) -> Dict[str, list]:
    """Deals rows out at random, always in the same way.

    Four fifths are for training, and of the rest the first half (rounded down) is dev, as in the
    paper's table 3; where there is a file for one of these, the other takes a tenth.

    Args:
      rows: list.
      shares: dict from "train" and one or both of "dev" and "test" to their weights.

    Returns:
      A dict from the same names to lists of rows, in the order of `rows`.
    """
    order = np.random.RandomState(_SPLIT_SEED).permutation(len(rows))
    remaining, weight, parts = order, sum(shares.values()), collections.OrderedDict()
    for name, share in shares.items():
        count = len(remaining) * share // weight
        parts[name], remaining = remaining[:count], remaining[count:]
        weight -= share
    return {name: [rows[i] for i in sorted(indices)] for name, indices in parts.items()}
