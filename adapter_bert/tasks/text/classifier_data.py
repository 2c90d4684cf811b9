"""A text classification task and its data: settings, examples and encoded rows."""

import collections
import dataclasses
import itertools
import math
import posixpath
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np
from absl import logging

from adapter_bert import tokenization
from adapter_bert.files import json_objects, paths
from adapter_bert.formats import task_adapter
from adapter_bert.shell.errors import UserError
from adapter_bert.shell.settings import Settings, flag
from adapter_bert.tasks import tables
from adapter_bert.tasks.text import classifier_features, custom_tasks, glue, text_kind, text_windows
from adapter_bert.training import feature_cache, record, rows
from adapter_bert.training.config import SPLITS, EvaluationConfig, FinetuningConfig
from adapter_bert.training.rows import PackedRows

_KNOWN = ", ".join([*(task.name for task in glue.TASKS.values()), *custom_tasks.LAYOUTS, "custom"])
_COLUMN = "--task_name=custom: the column, or the key in .jsonl files, of the "

Splits = Dict[str, List["classifier_features.InputExample"]]  # By name of the split.


@dataclasses.dataclass(frozen=True)
class TaskConfig(Settings):
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
    text_column: Optional[str] = flag(None, _COLUMN + "text.", "Task and data")
    text_b_column: Optional[str] = flag(None, _COLUMN + "second text of a pair.", "Task and data")
    label_column: Optional[str] = flag(None, _COLUMN + "label.", "Task and data")
    label_type: str = flag(
        "class",
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
class ClassifierConfig(TaskConfig, LongTextConfig, EvaluationConfig, FinetuningConfig):
    """The settings of run_classifier.py."""

    class_weights: Optional[str] = flag(
        None,
        "Class weights of the training loss: balanced, or one per label in order, as in 1,5.",
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
        check_window_pooling(self, "window_pooling" in self.given_flags)


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
    data_dir = "" if tables else paths.find_data_dir(config.data_dir, folder)
    trained = trained_adapter and trained_adapter.description
    kind = task.task.kind if isinstance(task, glue.TaskProcessor) else task.kind
    if trained and trained.kind != kind:
        flag = "--label_type" if folder == "custom" else "--task_name"
        raise UserError(
            f"--adapter was trained on {trained.task}, a {trained.kind} task; expected {kind}"
            f" ({flag})."
        )
    id_columns = getattr(config, "id_columns", None)
    if isinstance(task, glue.TaskProcessor):
        if id_columns:
            raise UserError(
                f"--id_columns={id_columns}: {task.task.name} has no table with named columns;"
                " expected --task_name=custom or a further task of the paper."
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
    )
    processor.id_columns = _column_names(id_columns)
    return processor, data_dir


def _column_names(text: Optional[str]) -> List[str]:
    """Returns the names in a list of columns, as in id,url."""
    names = (name.strip() for name in (text or "").split(","))
    return [tables.normalize(name) for name in names if name]


def earlier_labels(config: Any, run_folder: Optional[str]) -> List[str]:
    """Returns the labels of an earlier run in the folder, in the order of their ids; [] if none."""
    if not run_folder or config.overwrite_output_dir:
        return []
    path = posixpath.join(run_folder, paths.SETTINGS_FILE)
    labels: Any = record.recorded(path, "model").get("labels")
    is_list = isinstance(labels, list) and all(isinstance(label, str) for label in labels)
    return labels if is_list else []


def _custom_layout(config: TaskConfig) -> "Optional[custom_tasks.Layout]":
    """Returns the `custom_tasks.Layout` of --task_name=custom, or None for another task.

    Raises:
      UserError: a column of a custom task is missing or has two meanings, or a column is given for
        another task.
    """
    if not config.task_name:
        return None
    if config.task_name.lower() == "custom":
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
    names = ("text_column", "text_b_column", "label_column", "label_type")
    for name in config.changed_flags(names):
        raise UserError(f"--{name} requires --task_name=custom; got {config.task_name}.")
    return None


def encode_examples(
    examples: List[Any], labels: Sequence[str], config: Any, tokenizer: Any
) -> PackedRows:
    """Returns the `PackedRows` of examples, from the cache if they are in it.

    Args:
      examples: list of `InputExample`.
      labels: the task's labels; see `classifier_features.convert_single_example`.
      config: `TextConfig` and `LongTextConfig`.
      tokenizer: `tokenization.FullTokenizer`.
    """
    in_windows = config.long_texts == "windows"
    key = feature_cache.key_of(
        itertools.chain(
            [tokenizer.fingerprint, tuple(labels), config.max_seq_length],
            ["windows"] * in_windows,
            ((e.text_a, e.text_b, e.label) for e in examples),
        ),
        [classifier_features, rows, text_windows, tokenization],
    )

    def make(add: Callable) -> None:
        classifier_features.add_rows(
            examples, labels, config.max_seq_length, tokenizer, add, in_windows
        )

    arrays = feature_cache.load_or_build(config.feature_folder, key, make)
    if in_windows:
        return WindowRows(arrays, config.max_seq_length, config.window_pooling)
    return PackedRows(arrays, config.max_seq_length)


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
    examples = {}
    for stage in stages:
        for split in processor.splits_of(SPLITS[stage], data_dir):
            if split in readers:
                examples[split] = readers[split](data_dir)
            else:  # MNLI's second dev and test sets.
                examples[split] = processor.get_examples(split, data_dir)
    labels = processor.get_labels()
    if labels and "train" in examples:
        names = itertools.chain.from_iterable(
            custom_tasks.names_in(example.label) for example in examples["train"]
        )
        counts = collections.Counter(names)
        shown = ", ".join(f"{label} ({counts[label]:,})" for label in labels[:50])
        more = ", ..." if len(labels) > 50 else ""
        logging.info("%d labels in order (training rows): %s%s.", len(labels), shown, more)
    return examples


def fields_of(examples: Splits) -> Tuple[str, ...]:
    """Returns the names of the texts that each example has, as in a server's requests."""
    has_pairs = any(e.text_b is not None for split in examples.values() for e in split)
    return ("text", "text_b") if has_pairs else ("text",)


def trained_on(processor: "glue.SplitProcessor", examples: Splits, data_dir: str) -> Optional[str]:
    """Returns the digest of the training rows, or None if no other rows of their file are used.

    Args:
      processor: `glue.SplitProcessor`.
      examples: the result of `read_examples`.
      data_dir: folder of the task's data.
    """
    if not any(map(processor.is_held_out, examples)):
        return None
    return digest(examples.get("train") or processor.get_train_examples(data_dir))


def check_data(
    training: Dict[str, Any],
    description: "Optional[task_adapter.Description]",
    fields: Tuple[str, ...],
    trained_on: Optional[str],
) -> None:
    """Raises UserError if rows to evaluate were trained on, or have other texts than the adapter's.

    Args:
      training: the recorded settings of the training, if any.
      description: of the adapter that is evaluated, or None.
      fields: names of the texts that a row has.
      trained_on: digest of the training rows, if the rows to evaluate were set apart from the same
        file; None in training or if they have their own file.
    """
    known = description.presentation.fields if description else ()
    if known and fields and set(known) != set(fields):
        raise UserError(
            f"The task adapter was trained with {' and '.join(known)}, but the data has"
            f" {' and '.join(fields)}; check --text_b_column."
        )
    if trained_on and training.get("data", trained_on) != trained_on:
        raise UserError(
            "--data_dir: dev or test rows are set apart from the training file, whose other rows"
            " are not those of the training: some may have been trained on; give files dev and"
            " test, or the earlier training file."
        )


def digest(*splits: Iterable["classifier_features.InputExample"]) -> str:
    """Returns a short hash of the content of lists of examples."""
    examples = itertools.chain.from_iterable(splits)
    return task_adapter.digest((e.text_a, e.text_b, e.label) for e in examples)


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
    if text and not text_kind.get(task.kind).is_single_label:
        raise UserError("--class_weights requires labels that are classes (--label_type=class).")
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
