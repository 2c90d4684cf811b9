"""The flags that name a classification task and its data, and what they become: examples, rows.

As `bert_flags`: a script's main module defines them, and functions read the parsed values.
"""

import itertools

from absl import flags

import tokenization
from adapter_bert.common import paths
from adapter_bert.common.cli import section
from adapter_bert.common.errors import UserError
from adapter_bert.tasks import classifier_features, custom_tasks, glue
from adapter_bert.training import bert_flags, feature_cache
from adapter_bert.training.rows import TextRows

_KINDS = {"class": "classification", "float": "regression", "multilabel": "multilabel"}


def define(flag_values=flags.FLAGS):
    """Defines them all."""
    define_task(flag_values)
    flags.DEFINE_integer(
        "max_seq_length",
        128,
        "WordPieces of a text or pair, longer ones are cut.",
        **section("Task and data", flag_values),
    )
    bert_flags.define_feature_cache(flag_values)
    flags.DEFINE_integer(
        "eval_batch_size",
        8,
        "Examples in a batch of the evaluation.",
        1,
        **section("Evaluation and prediction", flag_values),
    )


def define_task(flag_values):
    """Defines those that name the task and its data."""
    at = section("Task and data", flag_values)
    names = [task.name for task in glue.TASKS.values()]
    known = ", ".join([*names, *custom_tasks.LAYOUTS, "custom"])
    flags.DEFINE_string("task_name", None, f"The task: {known}.", **at)
    flags.DEFINE_string(
        "data_dir",
        None,
        "Folder with the task's files. Default: $GLUE_DIR/<task>, of AX $GLUE_DIR/diagnostic, else"
        " the demo's.",
        **at,
    )
    column = "--task_name=custom: the column, or the key in .jsonl files, of the "
    flags.DEFINE_string("text_column", None, column + "text.", **at)
    flags.DEFINE_string("text_b_column", None, column + "second text of a pair.", **at)
    flags.DEFINE_string("label_column", None, column + "label.", **at)
    flags.DEFINE_enum(
        "label_type",
        "class",
        sorted(_KINDS),
        "--task_name=custom: labels are names of classes; numbers to be predicted; or sets of"
        " labels, a,b,c or a list in .jsonl files.",
        **at,
    )


def find_task(values, given):
    """The task that the flags name.

    Args:
      values: parsed flags.
      given: `task_adapter.TaskAdapter` of --adapter, or None.

    Returns:
      (`glue.SplitProcessor`, the folder of its data).

    Raises:
      UserError: there is no such task, or no data.
    """
    task, folder = custom_tasks.look_up(values.task_name, _custom_layout(values))
    data_dir = paths.find_data_dir(values.data_dir, folder)
    if isinstance(task, glue.TaskProcessor):
        return task, data_dir
    if given and given.description.kind != task.kind:
        flag = " (--label_type)" if task.name == "custom" else ""
        raise UserError(
            f"--adapter is of a {given.description.kind} task, {given.description.task}; expected"
            f" {task.kind}{flag}."
        )
    known = given.description.labels if given else None
    return custom_tasks.TableProcessor(task, data_dir, known), data_dir


def _custom_layout(values):
    """Returns the `custom_tasks.Layout` of --task_name=custom; None for another task.

    Raises:
      UserError: a column of a custom task is missing, or one is given for another task.
    """
    if values.task_name and values.task_name.lower() == "custom":
        if values.text_column is None or values.label_column is None:
            raise UserError("--task_name=custom needs --text_column and --label_column.")
        kind = _KINDS[values.label_type]
        columns = values.text_column, values.label_column, values.text_b_column
        return custom_tasks.Layout("custom", *columns, kind)
    for flag in ("text_column", "text_b_column", "label_column", "label_type"):
        if values.task_name and values[flag].value != values[flag].default:
            raise UserError(f"--{flag} goes with --task_name=custom, which reads data of any kind.")
    return None


def encode_examples(examples, labels, values, tokenizer):
    """The `TextRows` of some examples, from the cache if they have been made before.

    Args:
      examples: list of `InputExample`.
      labels: the task's, see `classifier_features.convert_single_example`.
      values: parsed flags.
      tokenizer: `tokenization.FullTokenizer`.
    """
    key = feature_cache.key_of(
        itertools.chain(
            [tokenizer.fingerprint, tuple(labels), values.max_seq_length],
            ((e.text_a, e.text_b, e.label) for e in examples),
        ),
        [classifier_features, tokenization],
    )

    def make(add):
        add(classifier_features.text_arrays(examples, labels, values.max_seq_length, tokenizer))

    arrays = feature_cache.cached(bert_flags.feature_folder(values), key, make)
    cls_id, sep_id = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    return TextRows(arrays, cls_id, sep_id, values.max_seq_length)
