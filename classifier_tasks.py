"""The classification tasks: a table of them, and the way from rows over examples to features.

`TASKS` says for each task which files it has and what stands in which column; `read_examples` turns
a file into `InputExample`s by it, and `convert_examples_to_features` turns those into the ids that
BERT reads. A new task is a new row of the table. A task in a layout that no row can express is a
subclass of `DataProcessor`, as BERT's users write it. Names, positional arguments and results are
those of BERT's run_classifier.py; GLUE's files are described at https://gluebenchmark.com/tasks.

Shapes: N examples, S = max_seq_length.
"""

import codecs
import csv
import io
import itertools
import os
import typing

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from errors import UserError

_CSV_FIELD_LIMIT = 2**31 - 1  # csv's own 131,072 characters is less than some real fields have.
_LOGGED_EXAMPLES = 3
_PROGRESS_EVERY = 10000


class Split(typing.NamedTuple):
    """Where one split of a task lies; columns count from 0, or from the end if negative."""

    file: str  # Under data_dir; "{language}" stands for the task's language.
    set_type: str  # The first part of each guid.
    text_a: int
    text_b: typing.Optional[int] = None
    label: typing.Optional[int] = None  # None: the split has no labels.
    language: typing.Optional[int] = None  # Rows in another language than the task's are left out.
    header: bool = True

    @property
    def width(self):
        """The fewest columns of a row in which no two of the split's columns fall together."""
        columns = {self.text_a, self.text_b, self.label, self.language} - {None}
        return max(columns) + 1 - min(min(columns), 0)


class Task(typing.NamedTuple):
    """One row of `TASKS`."""

    name: str
    labels: typing.Tuple[str, ...]  # The first one is the placeholder where a split has no labels.
    splits: typing.Dict[str, Split]  # By "train", "dev" and "test".
    guid: typing.Optional[int] = None  # Column of the guid's second part; None: the row's number.
    aliases: typing.Dict[str, str] = {}  # Other spellings of labels in the files.
    language: typing.Optional[str] = None


_NLI_LABELS = ("contradiction", "entailment", "neutral")

TASKS = {
    task.name.lower(): task
    for task in (
        Task(
            name="CoLA",
            labels=("0", "1"),
            splits={
                "train": Split("train.tsv", "train", text_a=3, label=1, header=False),
                "dev": Split("dev.tsv", "dev", text_a=3, label=1, header=False),
                "test": Split("test.tsv", "test", text_a=1),
            },
        ),
        Task(
            name="MNLI",
            labels=_NLI_LABELS,
            splits={
                "train": Split("train.tsv", "train", text_a=8, text_b=9, label=-1),
                "dev": Split("dev_matched.tsv", "dev_matched", text_a=8, text_b=9, label=-1),
                "test": Split("test_matched.tsv", "test", text_a=8, text_b=9),
            },
            guid=0,
        ),
        Task(
            name="MRPC",
            labels=("0", "1"),
            splits={
                "train": Split("train.tsv", "train", text_a=3, text_b=4, label=0),
                "dev": Split("dev.tsv", "dev", text_a=3, text_b=4, label=0),
                "test": Split("test.tsv", "test", text_a=3, text_b=4),
            },
        ),
        Task(
            name="XNLI",
            labels=_NLI_LABELS,
            splits={
                "train": Split(
                    "multinli/multinli.train.{language}.tsv", "train", text_a=0, text_b=1, label=2
                ),
                "dev": Split("xnli.dev.tsv", "dev", text_a=6, text_b=7, label=1, language=0),
            },
            aliases={"contradictory": "contradiction"},
            language="zh",
        ),
    )
}


class InputExample:
    """One row: a text or a pair of texts, and its label.

    Attributes:
      guid: a str, unique among the examples of a split.
      text_a: a str, not tokenized.
      text_b: a str, or None where a single text is classified.
      label: a str out of the task's labels (any of them where the true one is not known).
    """

    def __init__(self, guid, text_a, text_b=None, label=None):
        self.guid = guid
        self.text_a = text_a
        self.text_b = text_b
        self.label = label


class PaddingInputExample:
    """Fills the last batch where batches must be full, as on a TPU; weighs nothing in a metric."""


class InputFeatures:
    """What BERT reads of one example.

    Attributes:
      input_ids: list of S ints, the tokens' ids, 0 after the last one.
      input_mask: list of S ints, 1 for tokens and 0 for padding.
      segment_ids: list of S ints, 1 for the tokens of text_b and its [SEP], else 0.
      label_id: int, the label's place in the list of labels.
      is_real_example: False for what a `PaddingInputExample` became.
    """

    def __init__(self, input_ids, input_mask, segment_ids, label_id, is_real_example=True):
        self.input_ids = input_ids
        self.input_mask = input_mask
        self.segment_ids = segment_ids
        self.label_id = label_id
        self.is_real_example = is_real_example


class DataProcessor:
    """Base of a task's reader: lists of `InputExample` for each split, and the list of labels."""

    def get_train_examples(self, data_dir):
        raise NotImplementedError()

    def get_dev_examples(self, data_dir):
        raise NotImplementedError()

    def get_test_examples(self, data_dir):
        raise NotImplementedError()

    def get_labels(self):
        raise NotImplementedError()

    @classmethod
    def _read_tsv(cls, input_file, quotechar=None):
        """The rows of a tab-separated file: see `read_rows`."""
        return read_rows(input_file, quotechar)


class TaskProcessor(DataProcessor):
    """The processor of one row of `TASKS`; `language` may be set before reading, as in BERT."""

    def __init__(self, task):
        self.task = task
        self.language = task.language

    def get_train_examples(self, data_dir):
        return self._examples("train", data_dir)

    def get_dev_examples(self, data_dir):
        return self._examples("dev", data_dir)

    def get_test_examples(self, data_dir):
        return self._examples("test", data_dir)

    def get_labels(self):
        return list(self.task.labels)

    def _examples(self, split_name, data_dir):
        return read_examples(self.task._replace(language=self.language), split_name, data_dir)


class ColaProcessor(TaskProcessor):
    """CoLA: is a sentence acceptable English?"""

    def __init__(self):
        super().__init__(TASKS["cola"])


class MnliProcessor(TaskProcessor):
    """MNLI, matched: does a premise entail or contradict a hypothesis?"""

    def __init__(self):
        super().__init__(TASKS["mnli"])


class MrpcProcessor(TaskProcessor):
    """MRPC: do two sentences say the same?"""

    def __init__(self):
        super().__init__(TASKS["mrpc"])


class XnliProcessor(TaskProcessor):
    """XNLI: MNLI in other languages, Chinese by default; trains on the translated MultiNLI."""

    def __init__(self):
        super().__init__(TASKS["xnli"])


def get_processor(task_name):
    """The processor of a task by its name, in any case; raises `UserError` for an unknown one."""
    task = TASKS.get(task_name.lower())
    if task is None:
        expected = ", ".join(sorted(TASKS))
        raise UserError(f"--task_name={task_name} is unknown, expected one of {expected}.")
    return TaskProcessor(task)


def read_rows(path, quotechar=None):
    r"""Reads a tab-separated UTF-8 file, from any place that TensorFlow can read.

    Lines end with \n or \r\n, and nothing else ends one: U+2028 and the like occur within texts.
    A byte order mark at the start is dropped.

    Args:
      path: the file.
      quotechar: None, as in GLUE: a field is what stands between two tabs, quotes and all. Or a
        character that encloses fields, by the rules of Python's csv.

    Returns:
      A list of rows, each a list of str; a blank line is an empty list.

    Raises:
      UserError: the file is missing, unreadable, not UTF-8 or (with a quotechar) not CSV.
    """
    lines = _decoded_lines(_read_bytes(path), path)
    if quotechar is not None:
        return _parse_quoted(lines, quotechar, path)
    lines = (line.rstrip("\r\n") for line in lines)
    return [line.split("\t") if line else [] for line in lines]


def _read_bytes(path):
    try:
        with tf.io.gfile.GFile(path, "rb") as stream:
            return stream.read()
    except tf.errors.NotFoundError:
        folder = os.path.dirname(path) or "."
        missing = "" if tf.io.gfile.isdir(folder) else ", and neither does its folder"
        raise UserError(
            f"{path} does not exist{missing}; expected it in the folder that --data_dir names."
        ) from None
    except tf.errors.OpError as error:
        raise UserError(f"{path} cannot be read: {error.message}.") from error


def _decoded_lines(data, path):
    """Yields the lines of UTF-8 bytes with their line ends, without a byte order mark."""
    # UTF-16 without a byte order mark shows by the empty half of its first character; as long as
    # it is ASCII, it is valid UTF-8.
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in data[:2]:
        raise UserError(f"{path}, line 1: found what looks like UTF-16, expected UTF-8.")
    for number, line in enumerate(io.BytesIO(data), start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}, line {number}: found bytes that are not UTF-8 ({error.reason}), "
                "expected UTF-8."
            ) from None


def _parse_quoted(lines, quotechar, path):
    reader = csv.reader(lines, delimiter="\t", quotechar=quotechar)
    previous_limit = csv.field_size_limit(_CSV_FIELD_LIMIT)
    try:
        return list(reader)
    except csv.Error as error:
        raise UserError(
            f"{path}, line {reader.line_num}: found {error}, expected fields between tabs, quoted "
            f"by {quotechar} or not at all."
        ) from error
    finally:
        csv.field_size_limit(previous_limit)


def read_examples(task, split_name, data_dir):
    """Reads one split of a task.

    Args:
      task: a `Task`.
      split_name: "train", "dev" or "test".
      data_dir: the folder of the task's files.

    Returns:
      A list of at least one `InputExample`, in the order of the file. A split without labels has
      the task's first label everywhere.

    Raises:
      UserError: the task has no such split, or its file is missing, empty, not UTF-8, or has a
        blank line, a short row, an unknown label, or data where its header should be.
    """
    split = task.splits.get(split_name)
    if split is None:
        expected = ", ".join(task.splits)
        raise UserError(f"{task.name} has no {split_name} split, expected one of {expected}.")
    if not data_dir:
        raise UserError(f"--data_dir is not set, expected the folder of {split.file}.")
    path = os.path.join(data_dir, split.file.format(language=task.language))
    rows = read_rows(path)
    while rows and not rows[-1]:
        rows.pop()
    _check_layout(rows, task, split, path)
    examples = [
        _example(row, number, task, split, path)
        for number, row in enumerate(rows)
        if number >= split.header and _in_language(row, task, split)
    ]
    if not examples:
        found = sorted({row[split.language] for row in rows[split.header :]})
        raise UserError(
            f"{path}: found the languages {', '.join(found)}, expected {task.language} among them."
        )
    return examples


def _in_language(row, task, split):
    return split.language is None or row[split.language] == task.language


def _check_layout(rows, task, split, path):
    """Raises `UserError` unless all rows are wide enough, and the header is one and not alone."""
    for number, row in enumerate(rows, start=1):
        if len(row) < split.width:
            found = f"{len(row)} columns" if row else "a blank line"
            raise UserError(
                f"{path}, line {number}: found {found}, expected at least {split.width} columns "
                "between tabs."
            )
    if len(rows) <= split.header:
        found = "only a header" if rows else "an empty file"
        raise UserError(f"{path}: found {found}, expected rows of data.")
    if split.header and _is_data(rows[0], task, split):
        raise UserError(
            f"{path}, line 1: found a row of data, expected a header (which would be skipped)."
        )


def _is_data(row, task, split):
    """Whether the first row is no header: it has a label, or (without labels) a number in front."""
    if split.label is None:
        return row[0].isdigit()
    return _label(row, task, split) in task.labels


def _label(row, task, split):
    label = row[split.label]
    return task.aliases.get(label, label)


def _example(row, number, task, split, path):
    label = task.labels[0] if split.label is None else _label(row, task, split)
    if label not in task.labels:
        hint = " (this file has no header)" if number == 0 else ""
        raise UserError(
            f"{path}, line {number + 1}: found the label {label!r}, "
            f"expected one of {', '.join(task.labels)}{hint}."
        )
    return InputExample(
        guid=f"{split.set_type}-{number if task.guid is None else row[task.guid]}",
        text_a=row[split.text_a],
        text_b=None if split.text_b is None else row[split.text_b],
        label=label,
    )


def convert_single_example(ex_index, example, label_list, max_seq_length, tokenizer):
    """Turns an example into features: [CLS] text_a [SEP], or [CLS] text_a [SEP] text_b [SEP].

    Args:
      ex_index: the example's place in its list; the first few are logged at absl's verbosity 1.
      example: an `InputExample` or `PaddingInputExample`.
      label_list: the task's labels.
      max_seq_length: S, the special tokens included. Longer texts lose their end.
      tokenizer: has `tokenize(text)` and `convert_tokens_to_ids(tokens)`.

    Returns:
      `InputFeatures`. Those of a `PaddingInputExample` are zeros.

    Raises:
      UserError: the label is not in label_list, or not even the special tokens fit into S.
    """
    if isinstance(example, PaddingInputExample):
        zeros = [0] * max_seq_length
        return InputFeatures(zeros, list(zeros), list(zeros), label_id=0, is_real_example=False)

    input_ids, length_a, label_id = _encode(
        ex_index, example, label_list, max_seq_length, tokenizer
    )
    length = len(input_ids)
    padding = [0] * (max_seq_length - length)
    return InputFeatures(
        input_ids=input_ids + padding,
        input_mask=[1] * length + padding,
        segment_ids=[0] * length_a + [1] * (length - length_a) + padding,
        label_id=label_id,
    )


def _encode(ex_index, example, label_list, max_seq_length, tokenizer):
    """`convert_single_example` without padding, and without `PaddingInputExample`s.

    Returns:
      ids: list of at most S ints.
      length_a: int, how many of them, from the start on, are of segment 0.
      label_id: int.
    """
    label_id = _label_id(example, label_list)
    # Copies: they are cut in place, and belong to the tokenizer.
    tokens_a = list(tokenizer.tokenize(example.text_a))
    tokens_b = list(tokenizer.tokenize(example.text_b)) if example.text_b else []
    specials = 3 if tokens_b else 2
    if max_seq_length < specials:
        raise UserError(
            f"--max_seq_length={max_seq_length} is too small, expected at least {specials} for "
            "[CLS] and [SEP]."
        )
    _truncate_seq_pair(tokens_a, tokens_b, max_seq_length - specials)
    tokens = ["[CLS]", *tokens_a, "[SEP]"]
    length_a = len(tokens)
    if tokens_b:
        tokens += tokens_b
        tokens.append("[SEP]")
    if ex_index < _LOGGED_EXAMPLES:
        logging.vlog(
            1, "Example %s: %s; label %s (%d)", example.guid, tokens, example.label, label_id
        )
    return list(tokenizer.convert_tokens_to_ids(tokens)), length_a, label_id


def _label_id(example, label_list):
    if example.label not in label_list:
        expected = ", ".join(map(repr, label_list))
        raise UserError(
            f"Example {example.guid} has the label {example.label!r}, expected one of {expected} "
            "(any of them where the true one is not known)."
        )
    return label_list.index(example.label)


def _truncate_seq_pair(tokens_a, tokens_b, max_length):
    """Shortens two lists in place to max_length together, always the longer one by its last token.

    So each token cut off comes from the text that has more to spare; in a tie it is tokens_b's.
    """
    if len(tokens_a) + len(tokens_b) <= max_length:
        return
    length_b = max(max_length // 2, max_length - len(tokens_a))
    del tokens_b[length_b:]
    del tokens_a[max_length - len(tokens_b) :]


def convert_examples_to_features(examples, label_list, max_seq_length, tokenizer):
    """`convert_single_example` of each example: a list of `InputFeatures` in the same order."""
    return [
        convert_single_example(index, example, label_list, max_seq_length, tokenizer)
        for index, example in _with_progress(examples)
    ]


def _with_progress(examples):
    """`enumerate(examples)`, with a line in the log now and then."""
    for index, example in enumerate(examples):
        if index and index % _PROGRESS_EVERY == 0:
            logging.info("Converted %d of %d examples.", index, len(examples))
        yield index, example


def examples_to_arrays(examples, label_list, max_seq_length, tokenizer):
    """`features_to_arrays` of `convert_examples_to_features`, without the lists in between.

    Padding takes most of those lists, and most of their time.
    """
    if not examples:
        raise ValueError("expected at least one example")
    is_real = [not isinstance(example, PaddingInputExample) for example in examples]
    ids, lengths_a, label_ids = zip(
        *(
            _encode(index, example, label_list, max_seq_length, tokenizer)
            if is_real[index]
            else ((), 0, 0)
            for index, example in _with_progress(examples)
        )
    )
    lengths = [len(row) for row in ids]
    positions = np.arange(max_seq_length)
    input_mask = positions < np.expand_dims(lengths, 1)
    input_ids = np.zeros(input_mask.shape, dtype=np.int32)
    input_ids[input_mask] = list(itertools.chain.from_iterable(ids))
    arrays = {
        "input_ids": input_ids,
        "input_mask": input_mask,
        "segment_ids": input_mask & (positions >= np.expand_dims(lengths_a, 1)),
        "label_ids": label_ids,
        "is_real_example": is_real,
    }
    return {name: np.asarray(values, dtype=np.int32) for name, values in arrays.items()}


def features_to_arrays(features):
    """Stacks features into int32 arrays.

    Args:
      features: a list of at least one `InputFeatures`, all of the same length S.

    Returns:
      A dict: "input_ids", "input_mask" and "segment_ids" [N, S]; "label_ids" and
      "is_real_example" [N].
    """
    if not features:
        raise ValueError("expected at least one InputFeatures")
    columns = {
        "input_ids": "input_ids",
        "input_mask": "input_mask",
        "segment_ids": "segment_ids",
        "label_ids": "label_id",
        "is_real_example": "is_real_example",
    }
    return {
        name: np.array([getattr(f, attribute) for f in features], dtype=np.int32)
        for name, attribute in columns.items()
    }
