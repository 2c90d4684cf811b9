"""A text classification task and its data: settings, examples and encoded rows."""

import collections
import dataclasses
import itertools
import math
import os
import posixpath
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np
from absl import logging

from adapter_bert import tokenization
from adapter_bert.files import json_objects, paths
from adapter_bert.formats import task_adapter
from adapter_bert.model import task_kinds
from adapter_bert.shell.errors import UserError
from adapter_bert.shell.settings import Settings, flag
from adapter_bert.tasks import caveats, splits, tables
from adapter_bert.tasks.text import (
    classifier_features,
    custom_tasks,
    glue,
    record_files,
    text_kind,
    text_windows,
)
from adapter_bert.training import feature_cache, record, rows
from adapter_bert.training.config import SPLITS, EvaluationConfig, check_task_name
from adapter_bert.training.rows import PackedRows

_KNOWN = ", ".join([*(task.name for task in glue.TASKS.values()), *custom_tasks.LAYOUTS, "custom"])
_COLUMN_FLAGS = ("text_column", "text_b_column", "label_column")
_LABEL_TYPE = "class"  # The default of --label_type.
_FILES = tuple(f"{split}_file" for split in custom_tasks.SPLITS)
_FILE = (
    "{}, of a task with named columns: a file, or a pattern of several such as data/part-*.parquet;"
    " of any task that assigns a class, TFRecord files of features, such as data/part-*.tfrecord."
    " Overrides --data_dir."
)
_COLUMN = "--task_name=custom: the column, or the key in .jsonl files, of the "

Examples = Sequence["classifier_features.InputExample"]  # A list, or `StoredExamples`.
Splits = Dict[str, Examples]  # By name of the split.


@dataclasses.dataclass(frozen=True)
class TaskConfig(splits.SplitConfig):
    """The settings that select the task and its data."""

    task_name: Optional[str] = flag(
        None, f"The task: {_KNOWN}.", "Task and data", records={"task": "task"}
    )
    data_dir: Optional[str] = flag(
        None,
        "Folder with the task's files. Default: $GLUE_DIR/<task> ($GLUE_DIR/diagnostic for AX), or"
        " the demo's data.",
        "Task and data",
        is_input=True,
        records={
            "labels": "labels",
            "data": "the training data",
            "dev_data": "the dev data",
        },
    )
    train_file: Optional[str] = flag(
        None, _FILE.format("Training rows"), "Task and data", is_input=True
    )
    dev_file: Optional[str] = flag(
        None, _FILE.format("Rows to evaluate on"), "Task and data", is_input=True
    )
    test_file: Optional[str] = flag(
        None, _FILE.format("Rows to predict"), "Task and data", is_input=True
    )
    text_column: Optional[str] = flag(None, _COLUMN + "text.", "Task and data")
    text_b_column: Optional[str] = flag(None, _COLUMN + "second text of a pair.", "Task and data")
    label_column: Optional[str] = flag(None, _COLUMN + "label.", "Task and data")
    label_type: str = flag(
        _LABEL_TYPE,
        "--task_name=custom: the format of a label. " + text_kind.label_formats(),
        "Task and data",
        choices=sorted(text_kind.by_label_type()),
        records={"kind": "kind of task"},
    )


@dataclasses.dataclass(frozen=True)
class LongTextConfig(Settings):
    """The settings for texts longer than --max_seq_length."""

    long_texts: str = flag(
        "cut",
        "Texts longer than --max_seq_length. cut: truncate them. windows: split them into windows"
        " of that length; each window trains with the text's label, and the predictions of a text's"
        " windows are pooled. Of a pair, the longer text is split.",
        "Task and data",
        choices=text_windows.LONG_TEXTS,
        binds_evaluation=True,
    )
    window_pooling: str = flag(
        "mean",
        "--long_texts=windows: how to pool the probabilities, or numbers, of a text's windows.",
        "Task and data",
        choices=text_windows.POOLINGS,
        binds_evaluation=True,
    )

    def window_settings(self) -> Dict[str, Any]:
        """Returns the settings that a run and its task adapter record; {} for truncation."""
        if self.long_texts == "cut":
            return {}
        return {"long_texts": self.long_texts, "window_pooling": self.window_pooling}


def check_window_pooling(config: LongTextConfig, is_given: bool) -> None:
    """Raises UserError if the flag --window_pooling is given but has no effect."""
    if is_given and config.long_texts == "cut" and config.window_pooling != "mean":
        raise UserError(f"--window_pooling={config.window_pooling} requires --long_texts=windows.")


@dataclasses.dataclass(frozen=True)
class ClassifierConfig(TaskConfig, LongTextConfig, EvaluationConfig, splits.FoldsConfig):
    """The settings of run_classifier.py."""

    name: Optional[str] = flag(
        None,
        "--task_name=custom: name of the task in reports. Default: that of the folder --data_dir.",
        "Task and data",
        records={"task": "task"},
    )
    class_weights: Optional[str] = flag(
        None,
        "Class weights of the training loss: balanced, or one per label in order, as in 1,5.",
        "Training",
    )
    calibrate: bool = flag(
        False,
        "After training, divide the head by the temperature that fits the dev set, so that"
        " probabilities are closer to the shares of correct answers.",
        "Training",
    )
    label_smoothing: float = flag(
        0.0,
        "Classification: share of each training target that is spread evenly over all labels, in"
        " [0, 1), as in 0.1.",
        "Training",
    )
    id_columns: Optional[str] = flag(
        None,
        "Tables with named columns: the columns to repeat in the files of predictions, as in"
        " id,url.",
        "Evaluation and prediction",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.calibrate and "train" in self.stages and "eval" not in self.stages:
            raise UserError("--calibrate requires --do_eval, which reads the dev set.")
        if not 0 <= self.label_smoothing < 1:
            value = self.label_smoothing
            raise UserError(f"--label_smoothing={value:g}: expected at least 0 and below 1.")
        check_window_pooling(self, "window_pooling" in self.given_flags)
        if "name" in self.given_flags and not is_custom(self.task_name):
            raise UserError(f"--name requires --task_name=custom; got {self.task_name}.")
        if self.name:
            check_task_name("name", self.name)

    @property
    def answers(self) -> Dict[str, str]:
        """The flags of a custom task that its adapter records; see `trained_settings`."""
        if not is_custom(self.task_name):
            return {}
        values = {name: getattr(self, name) for name in _COLUMN_FLAGS}
        if self.label_type != _LABEL_TYPE:
            values["label_type"] = self.label_type
        return {name: value for name, value in values.items() if value}


def is_custom(task_name: Optional[str]) -> bool:
    """Returns whether --task_name is the user's own task."""
    return (task_name or "").lower() == "custom"


def trained_settings(values: Any, training: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the flags that a task adapter supplies.

    Args:
      values: parsed flags; a --task_name that is not custom has no columns.
      training: as in `task_adapter.Description`.

    Raises:
      UserError: a recorded value is invalid.
    """
    return {
        **text_windows.recorded(training),
        **splits.recorded(training),
        **_trained_columns(values, training),
    }


def _trained_columns(values: Any, training: Dict[str, Any]) -> Dict[str, str]:
    """Returns the flags of the adapter's custom task, if it has one; see `trained_settings`."""
    if not task_kinds.is_custom(training) or not is_custom(values.task_name or "custom"):
        return {}
    recorded = {
        name: task_kinds.recorded_answer(training, name, "")
        for name in (*_COLUMN_FLAGS, "label_type")
    }
    columns = {name: value for name, value in recorded.items() if value}
    return {"task_name": "custom", **columns}


def name_of(config: Any, trained: "Optional[task_adapter.Description]" = None) -> str:
    """Returns the name of a task.

    That of a custom task is --name, or that of --adapter's custom task, or that of the data's
    folder.

    Args:
      config: `ClassifierConfig`, or parsed flags.
      trained: of the adapter of --adapter, or None.
    """
    if not is_custom(config.task_name):
        return config.task_name or ""
    if config.name:
        return config.name
    if trained and (task_kinds.is_custom(trained.training) or is_custom(trained.task)):
        return trained.task
    files = filter(None, (getattr(config, name) for name in _FILES))
    folders = map(os.path.dirname, map(os.path.abspath, files))
    return custom_tasks.name_of_folder(config.data_dir or next(folders, None))


def earlier_name(config: Any, run_folder: str) -> Optional[str]:
    """Returns the name of the custom task of an earlier run in the folder, or None.

    Runs of earlier versions have the name "custom"; and the data's folder may have moved.
    """
    name = _recorded_model(config, run_folder).get("task")
    return name if isinstance(name, str) and not custom_tasks.is_known(name) else None


class WindowRows(PackedRows):
    """Rows that are windows of texts; `windows` maps them to the texts."""

    def __init__(self, arrays: Dict[str, Any], max_seq_length: int, pooling: str):
        columns = dict(arrays)
        self.windows = text_windows.Windows(np.flatnonzero(columns.pop("is_first")), pooling)
        super().__init__(columns, max_seq_length)


def find_task(
    config: TaskConfig,
    trained_adapter: "Optional[task_adapter.TaskAdapter]",
    run_folder: Optional[str] = None,
    tables: "Optional[Dict[str, tables.DataTable]]" = None,
) -> "Tuple[glue.SplitProcessor, str]":
    """Returns the task that the settings select, and the folder of its data.

    Args:
      config: `TaskConfig`.
      trained_adapter: `task_adapter.TaskAdapter` of --adapter, or None.
      run_folder: output_dir of the run; an earlier run's labels keep their order.
      tables: of splits in memory, instead of files; for --task_name=custom.

    Returns:
      (`glue.SplitProcessor`, the folder of its data).

    Raises:
      UserError: the task is unknown, its data is missing, or --adapter is of another kind of task.
    """
    task, folder = custom_tasks.look_up(config.task_name, _custom_layout(config))
    data_dir = ""
    if not tables and custom_tasks.needs_folder(config):
        data_dir = paths.find_data_dir(config.data_dir, folder)
    trained = trained_adapter and trained_adapter.description
    kind = task.task.kind if isinstance(task, glue.TaskProcessor) else task.kind
    if trained and trained.kind != kind:
        flag = "--label_type" if folder == "custom" else "--task_name"
        raise UserError(
            f"--adapter was trained on {trained.task}, a {trained.kind} task; expected {kind}"
            f" ({flag})."
        )
    id_columns = getattr(config, "id_columns", None)
    if _has_records(config):
        return _record_processor(task, trained, config), data_dir
    if isinstance(task, glue.TaskProcessor):
        if id_columns:
            raise UserError(
                f"--id_columns={id_columns}: {task.task.name} has no table with named columns;"
                " expected --task_name=custom or a further task of the paper."
            )
        for name in config.changed_flags(_FILES):
            raise UserError(
                f"--{name}={getattr(config, name)}: {task.task.name} reads the files of --data_dir;"
                " expected TFRecord files, --task_name=custom or a further task of the paper."
            )
        return task, data_dir
    path = getattr(config, "label_descriptions", None)
    described = json_objects.read_object(path, f"--label_descriptions={path}") if path else {}
    processor = custom_tasks.TableProcessor(
        task,
        data_dir,
        trained.labels if trained else None,
        earlier_labels(config, run_folder),
        described,
        tables,
        config,
    )
    processor.id_columns = _column_names(id_columns)
    return processor, data_dir


def _has_records(config: Any) -> bool:
    """Returns whether a flag gives TFRecord files."""
    return any(record_files.is_record_file(getattr(config, name)) for name in _FILES)


def _record_processor(
    task: Any, trained: "Optional[task_adapter.Description]", config: Any
) -> "record_files.RecordProcessor":
    """Returns the processor of a task with TFRecord files; see `find_task`."""
    flag = next(n for n in _FILES if record_files.is_record_file(getattr(config, n)))
    where = f"--{flag}={getattr(config, flag)}: TFRecord files"
    others = task if isinstance(task, glue.TaskProcessor) else None
    info = others.task if others else glue.TaskInfo(task.name, (), {}, kind=task.kind)
    kind = text_kind.get(info.kind)
    if not kind.is_single_label:
        raise UserError(f"{where} have one class a row; {info.name} is a {info.kind} task.")
    if not others and task.name != "custom":
        raise UserError(f"{where} require a GLUE task or --task_name=custom; got {task.name}.")
    if not hasattr(config, "max_seq_length"):
        raise UserError(f"{where} have no texts, which this script requires.")
    if config.long_texts != "cut":
        raise UserError(f"{where} have no texts, which --long_texts={config.long_texts} requires.")
    if not others:
        labels = tuple(trained.labels) if trained else ()
        info = info._replace(labels=labels, score=kind.score)
    return record_files.RecordProcessor(info, others, config)


def _column_names(text: Optional[str]) -> List[str]:
    """Returns the names in a list of columns, as in id,url."""
    names = (name.strip() for name in (text or "").split(","))
    return [tables.normalize(name) for name in names if name]


def earlier_labels(config: Any, run_folder: Optional[str]) -> List[str]:
    """Returns the labels of an earlier run in the folder, in the order of their ids; [] if none."""
    labels: Any = _recorded_model(config, run_folder).get("labels")
    is_list = isinstance(labels, list) and all(isinstance(label, str) for label in labels)
    return labels if is_list else []


def _recorded_model(config: Any, run_folder: Optional[str]) -> Dict[str, Any]:
    """Returns the recorded settings of the model of an earlier run in the folder; {} if none."""
    if not run_folder or config.overwrite_output_dir:
        return {}
    return record.recorded(posixpath.join(run_folder, paths.SETTINGS_FILE), "model")


def _custom_layout(config: TaskConfig) -> "Optional[custom_tasks.Layout]":
    """Returns the `custom_tasks.Layout` of --task_name=custom, or None for another task.

    Raises:
      UserError: a column of a custom task is missing or has two meanings, or a column is given for
        another task.
    """
    if not config.task_name:
        return None
    if is_custom(config.task_name):
        if _has_records(config):
            kind = text_kind.by_label_type()[config.label_type].name
            return custom_tasks.Layout("custom", "", "", kind=kind)
        if config.text_column is None or config.label_column is None:
            raise UserError("--task_name=custom requires --text_column and --label_column.")
        kind = text_kind.by_label_type()[config.label_type].name
        normalize, second = tables.normalize, config.text_b_column
        text, label = normalize(config.text_column), normalize(config.label_column)
        text_b = None if second is None else normalize(second)
        if len({text, label, text_b}) < 3:
            raise UserError(
                "--text_column, --text_b_column and --label_column must name different columns; got"
                f" {config.text_column}, {config.text_b_column} and {config.label_column}."
            )
        return custom_tasks.Layout("custom", text, label, text_b, kind)
    for name in config.changed_flags((*_COLUMN_FLAGS, "label_type")):
        raise UserError(f"--{name} requires --task_name=custom; got {config.task_name}.")
    return None


def encode_examples(
    examples: Examples, labels: Sequence[str], config: Any, tokenizer: Any
) -> PackedRows:
    """Returns the `PackedRows` of examples, from the cache if they are in it.

    Args:
      examples: of a split.
      labels: the task's labels; see `classifier_features.convert_single_example`.
      config: `TextConfig` and `LongTextConfig`.
      tokenizer: `tokenization.FullTokenizer`.
    """
    if isinstance(examples, record_files.RecordExamples):
        return examples.encoded(tokenizer)
    in_windows = config.long_texts == "windows"
    key = feature_cache.key_of(
        itertools.chain(
            [tokenizer.fingerprint, tuple(labels), config.max_seq_length],
            ["windows"] * in_windows,
            _content_of(examples),
        ),
        [classifier_features, rows, text_windows, tokenization],
    )

    def make(add: Callable) -> None:
        classifier_features.add_rows(
            examples, labels, config.max_seq_length, tokenizer, add, in_windows
        )

    verify = getattr(config, "verify_data", False)
    arrays = feature_cache.load_or_build(config.feature_folder, key, make, verify)
    found: PackedRows
    if in_windows:
        found = WindowRows(arrays, config.max_seq_length, config.window_pooling)
    else:
        found = PackedRows(arrays, config.max_seq_length)
    found.key = arrays.digest
    return found


def _content_of(examples: Examples) -> Iterable[Any]:
    """Returns values that determine the texts and labels of examples."""
    if isinstance(examples, custom_tasks.StoredExamples):
        return [examples.key]
    return _contents(examples)


def _contents(examples: Examples) -> Iterable[Any]:
    """Returns values that determine the examples, whatever their files are."""
    if isinstance(examples, custom_tasks.StoredExamples):
        return examples.contents()
    return ((e.text_a, e.text_b, e.label) for e in examples)


def read_examples(processor: "glue.SplitProcessor", stages: Iterable[str], data_dir: str) -> Splits:
    """Returns the examples that the stages read, by name of the split; logs the training labels.

    Args:
      processor: `glue.SplitProcessor`.
      stages: of "train", "eval" and "predict".
      data_dir: folder of the task's data.
    """
    readers = {
        "train": processor.get_train_examples,
        "dev": processor.get_dev_examples,
        "test": processor.get_test_examples,
    }
    examples: Splits = {}
    for stage in stages:
        for split in processor.splits_of(SPLITS[stage], data_dir):
            if split in readers:
                examples[split] = readers[split](data_dir)
            else:  # MNLI's second dev and test sets.
                examples[split] = processor.get_examples(split, data_dir)
    labels = processor.get_labels()
    if labels and "train" in examples:
        counts = _count_labels(examples["train"])
        shown = ", ".join(f"{label} ({counts[label]:,})" for label in labels[:50])
        more = ", ..." if len(labels) > 50 else ""
        logging.info("%d labels in order (training rows): %s%s.", len(labels), shown, more)
    return examples


def _count_labels(examples: Examples) -> Dict[str, int]:
    """Returns how many examples have each label."""
    if isinstance(examples, custom_tasks.StoredExamples):
        return examples.count_labels()
    names = (custom_tasks.names_in(example.label) for example in examples)
    return collections.Counter(itertools.chain.from_iterable(names))


def warnings_of(task: "glue.TaskInfo", examples: Splits) -> List[str]:
    """Returns what the user must know about the result of `read_examples`; see `caveats`."""
    if not task.labels:
        return []
    train, dev = (
        _count_labels(examples[split]) if split in examples else None for split in ("train", "dev")
    )
    warnings = caveats.of_labels(task.labels, train, dev)
    is_class = train is not None and text_kind.get(task.kind).is_single_label
    are_numbers = is_class and custom_tasks.are_numbers(task.labels)
    return [*warnings, *caveats.of_numbers(task.labels, are_numbers)]


def fields_of(examples: Splits) -> Tuple[str, ...]:
    """Returns the names of the texts that each example has, as in a server's requests."""
    return ("text", "text_b") if any(map(has_pairs, examples.values())) else ("text",)


def has_pairs(examples: Examples) -> bool:
    """Returns whether some examples have a second text."""
    if isinstance(examples, custom_tasks.StoredExamples):
        return examples.has_pairs
    return any(example.text_b is not None for example in examples)


def num_characters(examples: Examples) -> np.ndarray:
    """Returns the number of characters of each example's texts, int [N]."""
    if isinstance(examples, custom_tasks.TableExamples):
        return examples.num_characters()
    return np.array([len(e.text_a) + len(e.text_b or "") for e in examples], np.int64)


def num_labels(examples: Examples) -> int:
    """Returns the number of distinct labels, or sets of labels, of examples."""
    if isinstance(examples, custom_tasks.StoredExamples):
        return examples.num_labels()
    return len({example.label for example in examples})


def trained_on(
    processor: "glue.SplitProcessor",
    examples: Splits,
    data_dir: str,
    folder: Optional[str] = None,
) -> Optional[str]:
    """Returns the digest of the training rows, or None if no other rows of their file are used.

    Args:
      processor: `glue.SplitProcessor`.
      examples: the result of `read_examples`.
      data_dir: folder of the task's data.
      folder: see `digest`.
    """
    if not any(map(processor.is_held_out, examples)):
        return None
    train = examples.get("train") or processor.get_train_examples(data_dir)
    return digest(train, folder=folder)


def check_data(
    training: Dict[str, Any],
    description: "Optional[task_adapter.Description]",
    fields: Tuple[str, ...],
    trained_on: Optional[str],
    split_settings: Dict[str, Any],
) -> None:
    """Raises UserError if rows to evaluate were trained on, or have other texts than the adapter's.

    Args:
      training: the recorded settings of the training, if any.
      description: of the adapter that is evaluated, or None.
      fields: names of the texts that a row has.
      trained_on, split_settings: see `splits.check_trained`.
    """
    known = description.presentation.fields if description else ()
    if known and fields and set(known) != set(fields):
        raise UserError(
            f"The task adapter was trained with {' and '.join(known)}, but the data has"
            f" {' and '.join(fields)}; check --text_b_column."
        )
    splits.check_trained(training, trained_on, split_settings)


def digest(*splits: Examples, folder: Optional[str] = None) -> str:
    """Returns a short hash of the content of lists of examples.

    Args:
      *splits: the lists.
      folder: of the cache that keeps the hashes of `custom_tasks.StoredExamples`; or None.
    """

    def compute() -> str:
        return task_adapter.digest(itertools.chain.from_iterable(map(_contents, splits)))

    keys = [each.key for each in splits if isinstance(each, custom_tasks.StoredExamples)]
    if folder is None or not splits or len(keys) < len(splits):
        return compute()
    key = feature_cache.key_of(["digest", *keys], [])
    entry = feature_cache.load_or_build(
        folder, key, lambda add: add({"digest": np.frombuffer(compute().encode(), np.uint8)})
    )
    return entry["digest"].tobytes().decode()


def check_single_label(flag: str, value: Any, task: "glue.TaskInfo") -> None:
    """Raises UserError if a flag is set that requires single-label classification."""
    if value and not text_kind.get(task.kind).is_single_label:
        raise UserError(f"--{flag} requires labels that are classes (--label_type=class).")


def class_weights(
    text: Optional[str], task: "glue.TaskInfo", label_ids: Optional[np.ndarray]
) -> Optional[List[float]]:
    """Returns --class_weights as one float per label, or None for equal weights.

    "balanced" gives each label the same total weight: N / (L n) for a label that n of the N rows
    have.

    Args:
      text: the flag.
      task: `glue.TaskInfo`, with L labels.
      label_ids: int array [N] of the training rows, of which a long text may have several; None
        without training.

    Raises:
      UserError: the text is no such list, or the task is not single-label classification.
    """
    check_single_label("class_weights", text, task)
    labels = task.labels
    if text in (None, "balanced"):
        if text is None or label_ids is None:
            return None
        counts = np.bincount(label_ids, minlength=len(labels)).tolist()
        return [len(label_ids) / (len(labels) * count) if count else 0.0 for count in counts]
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        weights = []
    is_valid = len(weights) == len(labels) and all(0 <= weight < math.inf for weight in weights)
    if not is_valid or not any(weights):
        raise UserError(
            f"--class_weights={text}: expected balanced, or {len(labels)} numbers from 0 up, one"
            f" per label ({', '.join(labels)}), not all of them 0."
        )
    return None if label_ids is None else weights
