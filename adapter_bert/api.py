"""Training from Python: `train`, a thin layer over what the scripts run.

    from adapter_bert import train

    run = train(frame, text="message", label="kind", adapter_size=64)
    run.scores, run.adapter, run.predictor()(["Win a prize now"])

It parses its keywords as the script's flags, makes the script's settings, task and starting point,
and executes a `Run`. It imports TensorFlow once the data and the keywords are checked, leaves eager
execution as it is, and raises errors instead of ending the process.
"""

import contextlib
import dataclasses
import difflib
import importlib
import inspect
import json
import os
import tempfile
from typing import Any, Dict, List, Optional, Sequence, Tuple

from absl import flags, logging

from adapter_bert.files import gfile
from adapter_bert.model import configs
from adapter_bert.shell import cli, environment
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks import arrow_files, table_readers, tables
from adapter_bert.tasks import splits as data_splits
from adapter_bert.tasks.squad import squad_task
from adapter_bert.tasks.tagging import tagging_data, tagging_task
from adapter_bert.tasks.text import classifier_data
from adapter_bert.tasks.text import task as text_task
from adapter_bert.training import pretrained
from adapter_bert.training.task import Tables

_ARGUMENTS = {  # Flags that `train` sets from its arguments.
    **dict.fromkeys(("data_dir", "train_file"), "data"),
    **dict.fromkeys(("dev_file", "predict_file"), "dev"),
    "test_file": "test",
    "text_column": "text",
    "text_b_column": "text_b",
    "label_column": "label",
    "token_column": "tokens",
    "tag_column": "tags",
}
_FILES = ("train_file", "dev_file", "test_file")  # run_tagger.py's flags.


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """The results of `train`.

    Attributes:
      scores: dict from names, as eval_accuracy and test_accuracy, to numbers.
      adapter: path of the folder of the task adapter.
      output_dir: path of the run's folder, with checkpoints and predictions.
      report: the lines that the script would print.
    """

    scores: Dict[str, Any]
    adapter: str
    output_dir: str
    report: List[str]

    def predictor(self, **options: Any) -> Any:
        """Returns a `Predictor` of the task adapter; the options are its keyword arguments."""
        from adapter_bert.serving.inference.predictor import Predictor

        return Predictor(self.adapter, **options)


def train(
    data: Any,
    *,
    text: str = "text",
    text_b: Optional[str] = None,
    label: str = "label",
    tokens: Optional[str] = None,
    tags: Optional[str] = None,
    question: Optional[str] = None,
    context: str = "context",
    answers: str = "answers",
    dev: Any = None,
    test: Any = None,
    verbose: bool = True,
    **keywords: Any,
) -> TrainedRun:
    """Trains a task adapter, evaluates it, and predicts the test set.

    Without `dev` or `test`, a tenth of the rows is set apart for each, stratified, as the log says;
    of tags and questions, only for `dev`. dev_share=0.2 and test_share=0.2 set other shares. The
    same data and flags give the same weights as the script.

    Args:
      data: training rows: pandas.DataFrame, pyarrow.Table, datasets.Dataset, dict of columns, list
        of dicts, list of tuples (text, label) or (text, second text, label), or the path of a file
        that the script reads or of a folder of `Dataset.save_to_disk`; or the path of a folder with
        files of all splits.
      text: column of the text.
      text_b: column of the second text of a pair.
      label: column of the label. For a number as a label, give label_type="float"; for a list of
        labels, label_type="multilabel".
      tokens: column of the words of a sentence, a list. It or `tags` selects tagging.
      tags: column of the words' tags, a list of the same length.
      question: column of questions. It selects question answering.
      context: column of the paragraphs that answer the questions.
      answers: column of the answers: a text of the paragraph, or SQuAD's {"text": [...],
        "answer_start": [...]}, where a start counts characters.
      dev: rows to evaluate on; like `data`.
      test: rows to predict; like `data`. They may lack the label.
      verbose: show the log.
      **keywords: flags of run_classifier.py, run_tagger.py or run_squad.py, without dashes, such as
        adapter_size=64, num_train_epochs=3, output_dir="output/spam"; adapter_fn may also be a
        function, see `configs.register`.

    Returns:
      The scores, the folders of the task adapter and of the run, and the report.

    Raises:
      UserError: data or keywords are invalid, or something is missing; one sentence says what, and
        nothing was written if it could be known before the first step.
      KeyboardInterrupt: the training was interrupted; the same call resumes it.
    """
    splits = {"train": data, "dev": dev, "test": test}
    splits = {
        name: os.fspath(rows) if isinstance(rows, os.PathLike) else rows
        for name, rows in splits.items()
        if rows is not None or name == "train"
    }
    _check_paths(splits)
    with contextlib.ExitStack() as stack:
        if verbose:
            stack.enter_context(cli.shown_log())
        if question is not None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            keywords, split_config = _without_split(keywords)
            columns = {"question": question, "context": context, "answers": answers}
            given = _question_files(splits, folder, columns, split_config)
            parts: Any = squad_task.from_flags(_parse(squad_task.SquadConfig, given, keywords))
            script = "run_squad"
        elif tokens is not None or tags is not None:
            given, given_tables = _sentences(splits, tokens, tags, keywords)
            values = _parse(tagging_task.TaggerConfig, given, keywords)
            parts = tagging_task.from_flags(values, given_tables)
            script = "run_tagger"
        else:
            given, given_tables = _texts(splits, text, text_b, label, keywords)
            values = _parse(classifier_data.ClassifierConfig, given, keywords)
            parts = text_task.from_flags(values, given_tables)
            script = "run_classifier"
        return _execute(script, *parts)


def _execute(script: str, config: Any, task: Any, start: Any) -> TrainedRun:
    """Returns the results of a script's run; TensorFlow is imported once the data are read."""
    task.load_once(config.stages)
    _check_bert(config)
    environment.import_for_training()
    with environment.silenced_tensorflow():
        from adapter_bert.training import cross_validation

        model_fn_builder = importlib.import_module(f"adapter_bert.{script}").model_fn_builder
        run = cross_validation.run_of(config, task, model_fn_builder, start)
        report = run.execute()
    for line in report:
        logging.info("%s", line)
    return TrainedRun(run.scores, run.folder.adapter_folder, run.folder.path, report)


def _check_bert(config: Any) -> None:
    """Raises UserError, before TensorFlow's import, if no BERT is found; `Run` logs what is."""
    if config.bert_hub_module_handle:  # TensorFlow reads it.
        return
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        pretrained.find(config, reads_checkpoint=False)
    finally:
        logging.set_verbosity(verbosity)


def _parse(
    settings_class: Any, given: Dict[str, Any], keywords: Dict[str, Any]
) -> flags.FlagValues:
    """Returns flags that `train` sets, and keywords, as parsed flags.

    Raises:
      UserError: a keyword is unknown, has a wrong value, or is one that `train` sets.
    """
    parsed = flags.FlagValues()
    settings_class.define_flags(parsed)
    for name in keywords:
        if name in _ARGUMENTS:
            raise UserError(f"train() has no keyword {name}; give {_ARGUMENTS[name]}.")
        if name not in parsed:
            arguments = inspect.signature(train).parameters
            names = [*parsed, *arguments]
            near = difflib.get_close_matches(name, names, n=1) or [n for n in names if name in n]
            guess = f"; did you mean {near[0]}?" if near else "."
            raise UserError(f"train() has no keyword {name}{guess}")
    values = {name: value for name, value in {**given, **keywords}.items() if value is not None}
    stages = ("do_train", "do_eval", "do_predict")
    if "do_train" in parsed and not any(values.get(name) for name in stages):
        values.update(do_train=True, do_eval=True)
    cli.parse(parsed, ["train", *(f"--{n}={_as_flag(value)}" for n, value in values.items())])
    return parsed


def _as_flag(value: Any) -> str:
    if callable(value):
        return configs.register(value)
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _is_folder(data: Any) -> bool:
    """Returns whether data is the path of a folder of all splits."""
    return isinstance(data, str) and gfile.isdir(data) and not arrow_files.is_dataset(data)


def _check_paths(splits: Dict[str, Any]) -> None:
    """Raises UserError for a path that does not exist, or a folder beside other data."""
    for name, rows in splits.items():
        if isinstance(rows, str) and not gfile.exists(rows):
            raise UserError(f"{name}: there is no file or folder {rows}.")
        if _is_folder(rows) and len(splits) > 1:
            raise UserError(
                f"{name}: {rows} is a folder, which has all splits; expected it alone, as data."
            )


def _table(rows: Any, name: str, columns: Sequence[str]) -> tables.DataTable:
    """Returns the table in a file or in memory; `columns` are those of tuples."""
    if isinstance(rows, str):
        return table_readers.read_table(rows)
    return tables.from_memory(rows, name, columns)


def _texts(
    splits: Dict[str, Any],
    text: str,
    text_b: Optional[str],
    label: str,
    keywords: Dict[str, Any],
) -> Tuple[Dict[str, Any], Optional[Tables]]:
    """Returns the flags and tables of texts with labels."""
    task_name = keywords.get("task_name", "custom")
    stages = {"do_train": True, "do_eval": True, "do_predict": True}
    if _is_folder(splits["train"]):
        given = {**stages, "task_name": task_name, "data_dir": splits["train"]}
        if task_name != "custom":
            return given, None
        return {**given, "text_column": text, "text_b_column": text_b, "label_column": label}, None
    if text_b is None and _width(splits["train"]) == 3:
        text_b = "text_b"
    arguments = {"text": text, "text_b": text_b, "label": label}
    columns = {name: column for name, column in arguments.items() if column is not None}
    *texts, _ = columns.values()
    found = {}
    for name, rows in splits.items():
        is_unlabeled = name == "test" and _width(rows) == len(texts)
        found[name] = _table(rows, name, texts if is_unlabeled else [*texts, label])
        for argument, column in columns.items():
            if (name, argument) != ("test", "label"):
                found[name].column(tables.normalize(str(column)), argument)
    given = {f"{argument}_column": column for argument, column in columns.items()}
    stages["do_eval"] = _has_rows("dev", splits, keywords)
    stages["do_predict"] = _has_rows("test", splits, keywords)
    return {**stages, "task_name": task_name, **given}, found


def _has_rows(split: str, splits: Dict[str, Any], keywords: Dict[str, Any]) -> bool:
    """Returns whether a split is given, or training rows are set apart for it."""
    share = keywords.get(f"{split}_share", 0 if keywords.get("folds") else None)
    return split in splits or share not in (0, "0")


def _width(rows: Any) -> int:
    """Returns the number of values in rows that are tuples; 0 for others."""
    is_list = isinstance(rows, (list, tuple)) and len(rows) > 0
    return len(rows[0]) if is_list and isinstance(rows[0], (list, tuple)) else 0


def _sentences(
    splits: Dict[str, Any],
    tokens: Optional[str],
    tags: Optional[str],
    keywords: Dict[str, Any],
) -> Tuple[Dict[str, Any], Optional[Tables]]:
    """Returns the flags and tables of tagged sentences."""
    has_share = keywords.get("test_share") is not None and _has_rows("test", splits, keywords)
    stages = {
        "do_train": True,
        "do_eval": _has_rows("dev", splits, keywords),
        "do_predict": "test" in splits or has_share,
    }
    given: Dict[str, Any] = {**stages, "token_column": tokens, "tag_column": tags}
    if _is_folder(splits["train"]):
        named = {"data_dir": splits["train"], **dict.fromkeys(_FILES)}
        has_test = bool(tagging_data.find_files(named)["test"])
        return {
            **given,
            "data_dir": splits["train"],
            "do_predict": has_test or has_share,
        }, None
    if all(isinstance(rows, str) for rows in splits.values()):
        return {**given, **{f"{name}_file": path for name, path in splits.items()}}, None
    columns = tokens or "tokens", tags or "tags"
    found = {}
    for name, rows in splits.items():
        if isinstance(rows, str) and not table_readers.has_objects(rows):
            raise UserError(
                f"{name}: {rows} has a word per line; give the other splits as files, too."
            )
        found[name] = _table(rows, name, columns)
        for argument, column in zip(("tokens", "tags"), columns):
            if (name, argument) != ("test", "tags"):
                found[name].column(tables.normalize(str(column)), argument)
    return given, found


def _without_split(
    keywords: Dict[str, Any],
) -> Tuple[Dict[str, Any], data_splits.SplitConfig]:
    """Returns keywords without those about rows set apart, which run_squad.py lacks, and those."""
    of_split = ("split", "dev_share", "test_share")
    given = {name: value for name, value in keywords.items() if name in of_split}
    others = {name: value for name, value in keywords.items() if name not in of_split}
    for name in ("test_share", "folds"):
        if others.pop(name, None) or given.pop(name, None):
            raise UserError(
                f"{name}: question answering evaluates and predicts the questions of dev."
            )
    config = data_splits.SplitConfig.from_flags(_parse(data_splits.SplitConfig, {}, given))
    return others, config


def _question_files(
    splits: Dict[str, Any],
    folder: str,
    columns: Dict[str, str],
    split_config: data_splits.SplitConfig,
) -> Dict[str, Any]:
    """Returns the flags of questions, after writing them as SQuAD's JSON into a folder."""
    given: Dict[str, Any] = {"do_train": True, "do_eval": True}
    if "test" in splits:
        raise UserError("test: question answering predicts the questions of dev; give only dev.")
    paths = {"train": "train_file", "dev": "predict_file"}
    found = {}
    for name, rows in splits.items():
        if isinstance(rows, str) and rows.endswith(".json"):
            given[paths[name]] = rows
            continue
        found[name] = _table(rows, name, tuple(columns.values()))
        for argument, column in columns.items():
            found[name].column(tables.normalize(column), argument)
    if "dev" not in splits:
        if not found:
            raise UserError("train: SQuAD's JSON is not split; give dev.")
        table = found["train"]
        answered = table.columns.index(tables.normalize(columns["answers"]))
        keys = ["answer" if row.fields.get(answered) else "none" for row in table.rows]
        partition = data_splits.Partition(split_config, ["dev"], data_splits.keys_of(keys), "train")
        for name in ("train", "dev"):
            found[name] = table._replace(rows=partition.select(name, table.rows))
    for name, table in found.items():
        paragraphs = [_paragraph(table, row, tuple(columns.values())) for row in table.rows]
        if any(not qa["answers"] for each in paragraphs for qa in each["qas"]):
            given["version_2_with_negative"] = True
        path = os.path.join(folder, f"{name}.json")
        with open(path, "w", encoding="utf-8") as writer:
            json.dump({"data": [{"title": name, "paragraphs": paragraphs}]}, writer)
        given[paths[name]] = path
    return given


def _paragraph(
    table: tables.DataTable, row: tables.TableRow, columns: Sequence[str]
) -> Dict[str, Any]:
    """Returns a row as a paragraph of SQuAD's JSON with one question."""
    question, context, answers = (table.columns.index(tables.normalize(name)) for name in columns)
    text = table.text(row, context)
    value = row.fields.get(answers)
    if isinstance(value, str):
        value = {"text": [value], "answer_start": [text.find(value)]} if value else None
    if isinstance(value, dict):
        value = [
            {"text": answer, "answer_start": start}
            for answer, start in zip(value.get("text", ()), value.get("answer_start", ()))
        ]
    if not isinstance(value, (list, type(None))):
        raise table.value_error(row, answers, "a text, or SQuAD's texts and answer_starts")
    value = value or []
    for answer in value:
        start = answer.get("answer_start") if isinstance(answer, dict) else None
        is_answer = isinstance(start, int) and start >= 0 and isinstance(answer.get("text"), str)
        if not is_answer:
            raise UserError(
                f"{table.where(row)}: found the answer {answer!r:.80}, which is not in the"
                f" {columns[1]}; expected a text of it."
            )
    qa = {"id": str(row.line), "question": table.text(row, question), "answers": value}
    return {"context": text, "qas": [{**qa, "is_impossible": not value}]}
