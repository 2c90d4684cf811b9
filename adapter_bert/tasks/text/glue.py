"""The GLUE tasks and XNLI: a table of their files, and a reader from files to examples.

`TASKS` gives each task's files and columns; `read_examples` turns a file into `InputExample`s. To
add a task, add a row to the table. A format that no row can express needs a subclass of
`DataProcessor`, as in BERT. Names, positional arguments and results are those of BERT's
run_classifier.py; GLUE's files are described at https://gluebenchmark.com/tasks.
"""

import difflib
import itertools
import os
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from absl import logging

from adapter_bert.files import gfile
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks import table_readers
from adapter_bert.tasks.text import text_kind
from adapter_bert.tasks.text.classifier_features import InputExample

# Columns in GLUE's files → the same columns in tables of the Hugging Face Hub.
_HUB_NAMES = {
    "#1 String": "sentence1",
    "#2 String": "sentence2",
    "sentence1": "premise",
    "sentence2": "hypothesis",
    "hypo": "hypothesis",
    "index": "idx",
    "id": "idx",
    **dict.fromkeys(("Quality", "is_duplicate", "score", "gold_label"), "label"),
}
_GLUE_ONLY = set(_HUB_NAMES) - set(_HUB_NAMES.values())


class SplitFile(NamedTuple):
    """The file of one split and GLUE's names of its columns; `_HUB_NAMES` are read too."""

    file: str  # Relative to data_dir; "{language}" is replaced by the task's language.
    set_type: str  # The first part of each guid.
    text_a: str
    text_b: Optional[str] = None
    label: Optional[str] = None  # None: the split has no labels.
    language: Optional[str] = None  # Rows in other languages than the task's are skipped.
    columns: Tuple[str, ...] = ()  # Of a file that GLUE ships without a header.
    number: str = "index"  # The row's number from 0, a column that may be missing.
    skip_short: bool = False  # Rows with too few columns are skipped; the log gives their number.

    def path(self, data_dir: str, language: Optional[str]) -> str:
        """Returns the path of the split's file in a folder."""
        return os.path.join(data_dir, self.file.format(language=language))


class TaskInfo(NamedTuple):
    """Describes a task, one row of `TASKS`.

    The names of splits begin with the stage that reads them: "train", "dev" or "test".
    """

    name: str
    labels: Tuple[str, ...]  # The first is the placeholder in splits without labels.
    splits: Dict[str, SplitFile]
    kind: str = "classification"  # Name of a `text_kind.TextKind`.
    score: str = "accuracy"  # GLUE's main score, one of the metrics of the task's kind.
    folder: Optional[str] = None  # In $GLUE_DIR; by default the task's name.
    submission: Dict[str, str] = {}  # Test split → name of its file for GLUE's server.
    has_number_guid: bool = False  # The guid's second part is from the column `number`.
    bounds: Optional[Tuple[float, float]] = None  # Of labels that are numbers.
    aliases: Dict[str, str] = {}  # Other spellings of labels in the files.
    language: Optional[str] = None


_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("contradiction", "entailment", "neutral")
_PAIR = ("sentence1", "sentence2")


def _uniform_splits(
    text_a: str, text_b: Optional[str] = None, label: str = "label", **options: Any
) -> Dict[str, SplitFile]:
    """Returns splits train and dev with the same columns and options, and test without labels."""
    return {
        "train": SplitFile("train.tsv", "train", text_a, text_b, label, **options),
        "dev": SplitFile("dev.tsv", "dev", text_a, text_b, label, **options),
        "test": SplitFile("test.tsv", "test", text_a, text_b),
    }


def _glue(
    name: str, labels: Tuple[str, ...], splits: Dict[str, SplitFile], **options: Any
) -> TaskInfo:
    submission = options.pop("submission", {"test": name})
    return TaskInfo(name, labels, splits, submission=submission, **options)


TASKS = {
    task.name.lower(): task
    for task in (
        _glue(
            "CoLA",
            _BINARY,
            _uniform_splits("sentence", columns=("source", "label", "mark", "sentence")),
            score="matthews",
        ),
        _glue("SST-2", _BINARY, _uniform_splits("sentence")),
        _glue("MRPC", _BINARY, _uniform_splits("#1 String", "#2 String", "Quality"), score="f1"),
        _glue(
            "STS-B",
            (),
            _uniform_splits("sentence1", "sentence2", "score"),
            kind="regression",
            score="spearman",
            bounds=(0, 5),
        ),
        _glue(
            "QQP",
            _BINARY,
            {
                **_uniform_splits("question1", "question2", "is_duplicate", skip_short=True),
                "test": SplitFile("test.tsv", "test", "question1", "question2", number="id"),
            },
            score="f1",
        ),
        _glue(
            "MNLI",
            _NLI,
            {
                "train": SplitFile("train.tsv", "train", *_PAIR, "gold_label"),
                "dev": SplitFile("dev_matched.tsv", "dev_matched", *_PAIR, "gold_label"),
                "dev_mismatched": SplitFile(
                    "dev_mismatched.tsv", "dev_mismatched", *_PAIR, "gold_label"
                ),
                "test": SplitFile("test_matched.tsv", "test", *_PAIR),
                "test_mismatched": SplitFile("test_mismatched.tsv", "test_mismatched", *_PAIR),
            },
            submission={"test": "MNLI-m", "test_mismatched": "MNLI-mm"},
            has_number_guid=True,
        ),
        _glue("QNLI", _ENTAILMENT, _uniform_splits("question", "sentence")),
        _glue("RTE", _ENTAILMENT, _uniform_splits(*_PAIR)),
        _glue("WNLI", _BINARY, _uniform_splits(*_PAIR)),
        _glue(
            "AX",
            _NLI,
            {"test": SplitFile("diagnostic.tsv", "test", *_PAIR)},
            score="matthews",
            folder="diagnostic",
        ),
        TaskInfo(
            "XNLI",
            _NLI,
            {
                "train": SplitFile(
                    "multinli/multinli.train.{language}.tsv", "train", "premise", "hypo", "label"
                ),
                "dev": SplitFile("xnli.dev.tsv", "dev", *_PAIR, "gold_label", "language"),
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
        return table_readers.read_rows(input_file, quotechar)


class SplitProcessor(DataProcessor):
    """Base class of a processor that has a `TaskInfo` and reads any split by name.

    Args:
      task: `TaskInfo`.
    """

    def __init__(self, task: TaskInfo) -> None:
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

    def split_settings(self) -> Dict[str, Any]:
        """Returns the settings to record about the rows that are set apart; {} for none."""
        return {}

    def get_examples(self, split: str, data_dir: str) -> List[InputExample]:
        """Returns the examples of a split, by name."""
        raise NotImplementedError()


class TaskProcessor(SplitProcessor):
    """The processor of a task in `TASKS`; `language` may be set before reading, as in BERT."""

    def __init__(self, task: TaskInfo) -> None:
        super().__init__(task)
        self.language = task.language

    def splits_of(self, stage: str, data_dir: str) -> List[str]:
        """Returns a stage's splits; a second one, as MNLI has, only if its file exists."""
        names = [name for name in self.task.splits if name.split("_")[0] == stage]
        first, *extra_splits = names or [stage]
        existing = [
            name
            for name in extra_splits
            if gfile.exists(self.task.splits[name].path(data_dir, self.language))
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

    def __init__(self) -> None:
        super().__init__(TASKS["cola"])


class MnliProcessor(TaskProcessor):
    """MNLI, matched: does the premise entail or contradict the hypothesis?"""

    def __init__(self) -> None:
        super().__init__(TASKS["mnli"])


class MrpcProcessor(TaskProcessor):
    """MRPC: are the two sentences paraphrases?"""

    def __init__(self) -> None:
        super().__init__(TASKS["mrpc"])


class XnliProcessor(TaskProcessor):
    """XNLI: NLI in other languages, by default Chinese; trains on the translated MultiNLI."""

    def __init__(self) -> None:
        super().__init__(TASKS["xnli"])


_PROCESSORS = {
    "cola": ColaProcessor,
    "mnli": MnliProcessor,
    "mrpc": MrpcProcessor,
    "xnli": XnliProcessor,
}


def get_processor(task_name: str, other_names: Iterable[str] = ()) -> TaskProcessor:
    """Returns the processor of a task by its name, in any case and with or without hyphens.

    Args:
      task_name: str.
      other_names: further valid names, for the error message.

    Raises:
      UserError: the name is unknown.
    """
    normalized = _normalize(task_name)
    for key, task in TASKS.items():
        if _normalize(task.name) == normalized:
            return _PROCESSORS[key]() if key in _PROCESSORS else TaskProcessor(task)
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


def read_examples(task: TaskInfo, split_name: str, data_dir: str) -> List[InputExample]:
    """Returns the examples in one split of a task.

    Args:
      task: a `TaskInfo`.
      split_name: one of its splits.
      data_dir: the folder of the task's files.

    Returns:
      A list of at least one `InputExample`, in the order of the file. Without labels, each example
      has the task's first label, or 0 for regression.

    Raises:
      UserError: the task has no such split, or its file is missing, empty, not UTF-8, or has a
        blank line, a row with too few columns, an unknown label, or a header without the columns.
    """
    split = task.splits.get(split_name)
    if split is None:
        expected = ", ".join(task.splits)
        raise UserError(f"{task.name} has no {split_name} split; expected one of {expected}.")
    if not data_dir:
        raise UserError(f"--data_dir is required: the folder with {split.file}.")
    path = split.path(data_dir, task.language)
    rows = _read_rows(path, split)
    first = next(rows, None)
    if first is None:
        raise UserError(f"{path}: found an empty file, expected rows of data.")
    columns, header = _find_columns(first, split, path)
    if not header:
        rows = itertools.chain([first], rows)
    examples: List[InputExample] = []
    numbers: List[str] = []
    languages: Set[str] = set()
    # A row's other columns are freed at once: MNLI's are five times as long.
    for index, row in _checked(rows, columns, header, split, path):
        if "number" in columns and split_name in task.submission:
            numbers.append(row[columns["number"]])
        if "language" in columns:
            languages.add(row[columns["language"]])
            if row[columns["language"]] != task.language:
                continue
        examples.append(_example(row, index, task, split, columns, path))
    if not examples:
        raise UserError(
            f"{path}: found the languages {', '.join(sorted(languages))}, expected"
            f" {task.language} among them."
        )
    _check_numbers(numbers, path)
    return examples


def _read_rows(path: str, split: SplitFile) -> Iterator[List[str]]:
    """Yields the rows of a split's file, without blank lines at the end."""
    lines = table_readers.FileLines(path, has_header=not split.columns)
    header = [name.strip(' "\r\n') for name in next(iter(lines), "").split("\t")]
    if _indices(header, split.text_a) and not _GLUE_ONLY & set(header):
        # The Hub's table, as pandas may write it; in GLUE's, quotes are ordinary characters.
        parsed = table_readers.parse_tabs(lines, path)
    else:
        parsed = table_readers.split_tabs(lines)
    num_blank = 0
    for row in parsed:
        if not row.fields:
            num_blank += 1
            continue
        for _ in range(num_blank):
            yield []
        num_blank = 0
        yield list(row.fields)


def _find_columns(
    first: List[str], split: SplitFile, path: str
) -> Tuple[Dict[str, int], List[str]]:
    """Returns the columns that the header names, or those of GLUE's file without a header.

    Returns:
      (field of `SplitFile` → index of the column that it names, the header or []).
    """
    header: Sequence[str] = [name.strip() for name in first]
    roles = ("text_a", "text_b", "label", "language")
    names = {role: getattr(split, role) for role in roles if getattr(split, role) is not None}
    has_header = not split.columns or all(_indices(header, name) for name in names.values())
    if not has_header:
        header = split.columns
    found = {role: _indices(header, name) for role, name in names.items()}
    if any(len(indices) != 1 for indices in found.values()):
        shown = ", ".join(repr(name[:40]) for name in header[:20])
        expected = [
            f"{name} (or {_HUB_NAMES[name]})" if name in _HUB_NAMES else name
            for name in names.values()
        ]
        raise UserError(
            f"{path}, line 1: found the columns {shown}, expected a header with each of these once:"
            f" {', '.join(expected)}."
        )
    found["number"] = _indices(header, split.number)
    columns = {role: indices[0] for role, indices in found.items() if indices}
    return columns, first if has_header else []


def _indices(header: Sequence[str], name: str) -> List[int]:
    """Returns the indices of the columns with a name of GLUE or its Hub's name."""
    return [i for i, column in enumerate(header) if column in (name, _HUB_NAMES.get(name))]


def _checked(
    rows: Iterable[List[str]],
    columns: Dict[str, int],
    header: List[str],
    split: SplitFile,
    path: str,
) -> Iterator[Tuple[int, List[str]]]:
    """Yields (index in the file, row), without the short rows if the split skips them.

    Raises:
      UserError: a row has too few or too many columns or is the header again, or there is none.
    """
    width, num_short, num_rows = max(columns.values()) + 1, 0, 0
    for index, row in enumerate(rows, start=int(bool(header))):
        if len(row) < width:
            if index and split.skip_short:
                num_short += 1
                continue
            content = f"{len(row)} columns" if row else "a blank line"
            raise UserError(
                f"{path}, line {index + 1}: found {content}, expected at least {width}"
                " columns between tabs."
            )
        if header and len(row) > len(header):
            raise UserError(
                f"{path}, line {index + 1}: found {len(row)} columns, expected"
                f" {len(header)}, as in the header."
            )
        if row == header:
            raise UserError(f"{path}, line {index + 1}: found the header again.")
        num_rows += 1
        yield index, row
    if num_short:
        logging.info("%s: skipped %d rows with too few columns.", path, num_short)
    if not num_rows:
        raise UserError(f"{path}: found only a header, expected rows of data.")


def _check_numbers(numbers: List[str], path: str) -> None:
    """Warns if a test file does not number its rows from 0, as submissions do."""
    for expected, number in enumerate(numbers):
        if number != str(expected):
            logging.warning(
                "%s: row %d has the index %r; the file in submission/ numbers the rows from 0, in"
                " this order.",
                *(path, expected, number),
            )
            return


def _example(
    row: List[str],
    number: int,
    task: TaskInfo,
    split: SplitFile,
    columns: Dict[str, int],
    path: str,
) -> InputExample:
    kind = text_kind.get(task.kind)
    label = kind.placeholder(task.labels)
    if "label" in columns:
        label = task.aliases.get(row[columns["label"]], row[columns["label"]])
    is_valid = kind.is_label(label, task.labels)
    if not is_valid or (task.bounds and not task.bounds[0] <= float(label) <= task.bounds[1]):
        expected = kind.describe_labels(task.labels)
        expected += " from {} to {}".format(*task.bounds) if task.bounds else ""
        hint = " (this file has no header)" if number == 0 else ""
        raise UserError(
            f"{path}, line {number + 1}: found the label {label!r}, expected {expected}{hint}."
        )
    has_number = task.has_number_guid and "number" in columns
    return InputExample(
        guid=f"{split.set_type}-{row[columns['number']] if has_number else number}",
        text_a=row[columns["text_a"]],
        text_b=row[columns["text_b"]] if "text_b" in columns else None,
        label=label,
    )
