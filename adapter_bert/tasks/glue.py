"""The GLUE tasks and XNLI: a table of their files, and a reader from files to examples.

`TASKS` gives each task's files and columns; `read_examples` turns a file into `InputExample`s. To
add a task, add a row to the table. A format that no row can express needs a subclass of
`DataProcessor`, as in BERT. Names, positional arguments and results are those of BERT's
run_classifier.py; GLUE's files are described at https://gluebenchmark.com/tasks.
"""

import difflib
import os
from typing import Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from absl import logging

from adapter_bert.common import files
from adapter_bert.common.errors import UserError
from adapter_bert.tasks import text_kind
from adapter_bert.tasks.classifier_features import InputExample
from adapter_bert.tasks.table_readers import read_rows


class Split(NamedTuple):
    """The file and columns of one split; columns count from 0, or from the end if negative."""

    file: str  # Relative to data_dir; "{language}" is replaced by the task's language.
    set_type: str  # The first part of each guid.
    text_a: int
    text_b: Optional[int] = None
    label: Optional[int] = None  # None: the split has no labels.
    language: Optional[int] = None  # Rows in other languages than the task's are skipped.
    header: bool = True
    skip_short: bool = False  # Rows with too few columns are skipped; the log gives their number.

    @property
    def width(self) -> int:
        """The fewest columns of a valid row, in which the split's columns are all distinct."""
        given = (self.text_a, self.text_b, self.label, self.language)
        columns = [column for column in given if column is not None]
        return max(columns) + 1 - min(min(columns), 0)

    def path(self, data_dir: str, language: Optional[str]) -> str:
        """Returns the path of the split's file in a folder."""
        return os.path.join(data_dir, self.file.format(language=language))


class Task(NamedTuple):
    """Describes a task, one row of `TASKS`.

    The names of splits begin with the stage that reads them: "train", "dev" or "test".
    """

    name: str
    labels: Tuple[str, ...]  # The first is the placeholder in splits without labels.
    splits: Dict[str, Split]
    kind: str = "classification"  # Name of a `text_kind.TextKind`.
    score: str = "accuracy"  # GLUE's main score, one of the metrics of the task's kind.
    folder: Optional[str] = None  # In $GLUE_DIR; by default the task's name.
    submission: Dict[str, str] = {}  # Test split → name of its file for GLUE's server.
    guid: Optional[int] = None  # Column of the guid's second part; None: the row's number.
    aliases: Dict[str, str] = {}  # Other spellings of labels in the files.
    language: Optional[str] = None


_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("contradiction", "entailment", "neutral")


def _uniform_splits(
    text_a: int, text_b: Optional[int] = None, label: int = -1, **options
) -> Dict[str, Split]:
    """Returns splits train, dev and test with the same columns; test has no label."""
    columns = dict(text_a=text_a, text_b=text_b, **options)
    return {
        "train": Split("train.tsv", "train", label=label, **columns),
        "dev": Split("dev.tsv", "dev", label=label, **columns),
        "test": Split("test.tsv", "test", **columns),
    }


def _glue(name: str, labels: Tuple[str, ...], splits: Dict[str, Split], **options) -> Task:
    submission = options.pop("submission", {"test": name})
    return Task(name, labels, splits, submission=submission, **options)


TASKS = {
    task.name.lower(): task
    for task in (
        _glue(
            "CoLA",
            _BINARY,
            {
                **_uniform_splits(3, label=1, header=False),
                "test": Split("test.tsv", "test", text_a=1),
            },
            score="matthews",
        ),
        _glue(
            "SST-2",
            _BINARY,
            {**_uniform_splits(0, label=1), "test": Split("test.tsv", "test", text_a=1)},
        ),
        _glue("MRPC", _BINARY, _uniform_splits(3, 4, label=0), score="f1"),
        _glue("STS-B", (), _uniform_splits(7, 8), kind="regression", score="spearman"),
        _glue(
            "QQP",
            _BINARY,
            {
                **_uniform_splits(3, 4, label=5, skip_short=True),
                "test": Split("test.tsv", "test", 1, 2),
            },
            score="f1",
        ),
        _glue(
            "MNLI",
            _NLI,
            {
                "train": Split("train.tsv", "train", 8, 9, label=-1),
                "dev": Split("dev_matched.tsv", "dev_matched", 8, 9, label=-1),
                "dev_mismatched": Split("dev_mismatched.tsv", "dev_mismatched", 8, 9, label=-1),
                "test": Split("test_matched.tsv", "test", 8, 9),
                "test_mismatched": Split("test_mismatched.tsv", "test_mismatched", 8, 9),
            },
            submission={"test": "MNLI-m", "test_mismatched": "MNLI-mm"},
            guid=0,
        ),
        _glue("QNLI", _ENTAILMENT, _uniform_splits(1, 2)),
        _glue("RTE", _ENTAILMENT, _uniform_splits(1, 2)),
        _glue("WNLI", _BINARY, _uniform_splits(1, 2)),
        _glue(
            "AX",
            _NLI,
            {"test": Split("diagnostic.tsv", "test", 1, 2)},
            score="matthews",
            folder="diagnostic",
        ),
        Task(
            "XNLI",
            _NLI,
            {
                "train": Split("multinli/multinli.train.{language}.tsv", "train", 0, 1, label=2),
                "dev": Split("xnli.dev.tsv", "dev", 6, 7, label=1, language=0),
            },
            aliases={"contradictory": "contradiction"},
            language="zh",
        ),
    )
}


class DataProcessor:
    """Base class of a task's reader: the `InputExample`s of each split, and the labels."""

    def get_train_examples(self, data_dir: str) -> List[InputExample]:
        """Returns the training set from the files in a folder."""
        raise NotImplementedError()

    def get_dev_examples(self, data_dir: str) -> List[InputExample]:
        """Returns the dev set from the files in a folder."""
        raise NotImplementedError()

    def get_test_examples(self, data_dir: str) -> List[InputExample]:
        """Returns the test set from the files in a folder."""
        raise NotImplementedError()

    def get_labels(self) -> List[str]:
        """Returns all labels, in the order of their ids."""
        raise NotImplementedError()

    @classmethod
    def _read_tsv(cls, input_file: str, quotechar: Optional[str] = None) -> List[List[str]]:
        """Returns the rows of a tab-separated file; see `table_readers.read_rows`."""
        return read_rows(input_file, quotechar)


class SplitProcessor(DataProcessor):
    """Base class of a processor that has a `Task` and reads any split by name.

    Args:
      task: `Task`.
    """

    def __init__(self, task: Task):
        self.task = task

    def get_train_examples(self, data_dir: str) -> List[InputExample]:
        """Returns the split "train"; see `get_examples`."""
        return self.get_examples("train", data_dir)

    def get_dev_examples(self, data_dir: str) -> List[InputExample]:
        """Returns the split "dev"; see `get_examples`."""
        return self.get_examples("dev", data_dir)

    def get_test_examples(self, data_dir: str) -> List[InputExample]:
        """Returns the split "test"; see `get_examples`."""
        return self.get_examples("test", data_dir)

    def get_labels(self) -> List[str]:
        """Returns the labels in the order of their ids; [] for regression."""
        return list(self.task.labels)

    def splits_of(self, stage: str, data_dir: str) -> List[str]:
        """Returns the names of the splits that a stage ("train", "dev" or "test") reads."""
        raise NotImplementedError()

    def has_labels(self, split: str) -> bool:
        """Returns whether the split has labels."""
        raise NotImplementedError()

    def is_held_out(self, split: str) -> bool:
        """Returns whether the split is a share of the training file's rows."""
        del split
        return False

    def get_examples(self, split: str, data_dir: str) -> List[InputExample]:
        """Returns the examples of a split, by name."""
        raise NotImplementedError()


class TaskProcessor(SplitProcessor):
    """The processor of a task in `TASKS`; `language` may be set before reading, as in BERT."""

    def __init__(self, task: Task):
        super().__init__(task)
        self.language = task.language

    def splits_of(self, stage: str, data_dir: str) -> List[str]:
        """Returns a stage's splits; a second one, as MNLI has, only if its file exists."""
        names = [name for name in self.task.splits if name.split("_")[0] == stage]
        first, *extra_splits = names or [stage]
        existing = [
            name
            for name in extra_splits
            if files.exists(self.task.splits[name].path(data_dir, self.language))
        ]
        for name in set(extra_splits) - set(existing):
            logging.info("%s has no %s: skipping it.", data_dir, self.task.splits[name].file)
        return [first, *existing]

    def files_of(self, stage: str, data_dir: str) -> List[str]:
        """Returns the paths of the files that a stage reads."""
        splits = [self.task.splits.get(name) for name in self.splits_of(stage, data_dir)]
        return [split.path(data_dir, self.language) for split in splits if split]

    def has_labels(self, split: str) -> bool:
        """Returns whether the split has a column of labels."""
        return self.task.splits[split].label is not None

    def get_examples(self, split: str, data_dir: str) -> List[InputExample]:
        """Returns the examples of any of the task's splits; see `read_examples`."""
        task = self.task._replace(language=self.language, labels=tuple(self.get_labels()))
        return read_examples(task, split, data_dir)


class ColaProcessor(TaskProcessor):
    """CoLA: is the sentence grammatical English?"""

    def __init__(self):
        super().__init__(TASKS["cola"])


class MnliProcessor(TaskProcessor):
    """MNLI, matched: does the premise entail or contradict the hypothesis?"""

    def __init__(self):
        super().__init__(TASKS["mnli"])


class MrpcProcessor(TaskProcessor):
    """MRPC: are the two sentences paraphrases?"""

    def __init__(self):
        super().__init__(TASKS["mrpc"])


class XnliProcessor(TaskProcessor):
    """XNLI: NLI in other languages, by default Chinese; trains on the translated MultiNLI."""

    def __init__(self):
        super().__init__(TASKS["xnli"])


def get_processor(task_name: str, other_names: Iterable[str] = ()) -> TaskProcessor:
    """Returns the processor of a task by its name, in any case and with or without hyphens.

    Args:
      task_name: str.
      other_names: further valid names, for the error message.

    Raises:
      UserError: the name is unknown.
    """
    normalized = _normalize(task_name)
    for task in TASKS.values():
        if _normalize(task.name) == normalized:
            return TaskProcessor(task)
    names = {
        _normalize(name): name for name in (*(task.name for task in TASKS.values()), *other_names)
    }
    closest = [names[match] for match in difflib.get_close_matches(normalized, names)]
    if closest:
        verb = "names are" if len(closest) > 1 else "name is"
        expected = f"the closest {verb} {', '.join(closest)} (--help lists all)"
    else:
        expected = f"expected one of {', '.join(names.values())}"
    raise UserError(f"--task_name={task_name} is unknown; {expected}.")


def _normalize(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def read_examples(task: Task, split_name: str, data_dir: str) -> List[InputExample]:
    """Returns the examples in one split of a task.

    Args:
      task: a `Task`.
      split_name: one of its splits.
      data_dir: the folder of the task's files.

    Returns:
      A list of at least one `InputExample`, in the order of the file. Without labels, each example
      has the task's first label, or 0 for regression.

    Raises:
      UserError: the task has no such split, or its file is missing, empty, not UTF-8, or has a
        blank line, a row with too few columns, an unknown label, or data instead of a header.
    """
    split = task.splits.get(split_name)
    if split is None:
        expected = ", ".join(task.splits)
        raise UserError(f"{task.name} has no {split_name} split; expected one of {expected}.")
    if not data_dir:
        raise UserError(f"--data_dir is required: the folder with {split.file}.")
    path = split.path(data_dir, task.language)
    rows = read_rows(path)
    while rows and not rows[-1]:
        rows.pop()
    short = _check_layout(rows, task, split, path)
    examples = [
        _example(row, number, task, split, path)
        for number, row in enumerate(rows)
        if number >= split.header and number not in short and _in_language(row, task, split)
    ]
    if not examples and split.language is not None:
        languages = sorted({row[split.language] for row in rows[split.header :]})
        raise UserError(
            f"{path}: found the languages {', '.join(languages)}, expected {task.language} among"
            " them."
        )
    return examples


def _in_language(row: List[str], task: Task, split: Split) -> bool:
    return split.language is None or row[split.language] == task.language


def _check_layout(rows: List[List[str]], task: Task, split: Split, path: str) -> Set[int]:
    """Raises `UserError` unless all rows have enough columns and a header precedes the data.

    Returns:
      The set of the indices of short rows, if the split skips them.
    """
    short = {index for index, row in enumerate(rows) if len(row) < split.width}
    if short and (min(short) == 0 or not split.skip_short):
        row = rows[min(short)]
        content = f"{len(row)} columns" if row else "a blank line"
        raise UserError(
            f"{path}, line {min(short) + 1}: found {content}, expected at least {split.width}"
            " columns between tabs."
        )
    if short:
        logging.info("%s: skipped %d rows with too few columns.", path, len(short))
    if len(rows) - len(short) <= split.header:
        content = "only a header" if rows else "an empty file"
        raise UserError(f"{path}: found {content}, expected rows of data.")
    if split.header and _is_data(rows[0], task, split):
        raise UserError(
            f"{path}, line 1: found a row of data, expected a header, as line 1 is skipped."
        )
    return short


def _is_data(row: List[str], task: Task, split: Split) -> bool:
    """Returns whether the first row is data: has a label or, without labels, a leading number."""
    if split.label is None:
        return row[0].isdigit()
    return text_kind.get(task.kind).is_label(_label(row[split.label], task), task.labels)


def _label(label: str, task: Task) -> str:
    """Returns a file's label in the task's spelling."""
    return task.aliases.get(label, label)


def _example(row: List[str], number: int, task: Task, split: Split, path: str) -> InputExample:
    kind = text_kind.get(task.kind)
    label = kind.placeholder(task.labels) if split.label is None else _label(row[split.label], task)
    if not kind.is_label(label, task.labels):
        expected = kind.describe_labels(task.labels)
        hint = " (this file has no header)" if number == 0 else ""
        raise UserError(
            f"{path}, line {number + 1}: found the label {label!r}, expected {expected}{hint}."
        )
    return InputExample(
        guid=f"{split.set_type}-{number if task.guid is None else row[task.guid]}",
        text_a=row[split.text_a],
        text_b=None if split.text_b is None else row[split.text_b],
        label=label,
    )
