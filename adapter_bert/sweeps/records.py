"""Reads and writes the records of a sweep's trials: append-only files of JSON lines in a folder.

Each process of a sweep writes its shard's file and reads all files. A record:

    {"key": "3f9c…",             see `grids.Trial.key`
     "script": "run_classifier.py", "flags": {"task_name": "CoLA", "adapter_size": 64, …},
     "status": "done",           or "failed", with its "reason"
     "seconds": 412.3,           since its last start
     "finished": "2026-11-22T12:00:00",      in UTC
     "data": {"train": "8f2a…", "dev": …},   see `data_digests`; optional
     "backbone": {"name": …, "fingerprint": …},
     "task": "CoLA", "score": "eval_matthews",
     "scores": {"eval_matthews": 0.23, …, "trained_parameters": 605954, …}}
"""

import io
import json
import math
import os
import time

from absl import logging

from adapter_bert.files import gfile, json_objects
from adapter_bert.shell.errors import UserError

DONE, FAILED = "done", "failed"
_FILES = "results*.jsonl"
_MAX_LINE = json_objects.MAX_JSON_BYTES
_MAX_NAME = 300  # A file's name has at most 255 characters.
# Flags whose values are compared as numbers.
NUMBERS = (
    "adapter_size",
    "num_top_layers",
    "adapter_init_scale",
    "learning_rate",
    "num_train_epochs",
    "random_seed",
    "trials",
)
_MAY_BE_ZERO = ("adapter_init_scale", "random_seed")
_COLUMNS = ("label_column", "tag_column")  # They select a task's labels from its data.


def now():
    """Returns the current time in UTC, in the format of records."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())


def read(folder):
    """Returns all records in a folder, in the order in which the trials finished.

    Of two records with one key the later counts, but a failure never replaces a finished trial. A
    truncated line, which a killed process may leave, is skipped with a warning.

    Args:
      folder: local path.

    Returns:
      List of dicts.

    Raises:
      UserError: the folder is remote, a file cannot be read, or a line is not a record.
    """
    return Reader(folder).read()


class Reader:
    """Reads a folder repeatedly, and parses each line once.

    Args:
      folder: local path.
    """

    def __init__(self, folder):
        if gfile.is_remote(folder):
            raise UserError(f"{folder}: records need a local folder.")
        self._folder = folder
        self._parsed = {"": None}  # From a line to its record; None if the line has none.

    def read(self):
        """Returns all records; see the function `read`."""
        paths = sorted(gfile.glob(_FILES, self._folder))
        all_records = [record for path in paths for record in self._read_records(path)]
        records = {}
        for record in sorted(all_records, key=lambda record: record["finished"]):
            earlier = records.get(record["key"], record)
            if record["status"] == DONE or earlier["status"] == FAILED:
                records.pop(record["key"], None)
                records[record["key"]] = record
        return list(records.values())

    def _read_records(self, path):
        """Yields a file's records."""
        for number, line in enumerate(_read_lines(path), 1):
            if line not in self._parsed:
                self._parsed[line] = _parse_record(line, f"{path}, line {number}")
            if self._parsed[line] is not None:
                yield self._parsed[line]


def append(folder, shard, record):
    """Appends a record to a shard's file, and syncs it to disk.

    Args:
      folder: local path.
      shard: (i, n), shard i of n.
      record: dict.

    Raises:
      UserError: the file cannot be written.
    """
    path = os.path.join(folder, _file_name(shard))
    line = json.dumps(record, sort_keys=True, default=float) + "\n"
    with gfile.convert_write_errors(path), gfile.open_to_append(path) as writer:
        if writer.tell() and not _ends_with_newline(writer):
            line = "\n" + line  # Ends a truncated line of a killed process.
        writer.write(line.encode())
        writer.flush()
        os.fsync(writer.fileno())
        gfile.sync(folder)  # The file may be new.


def check_same_backbone(trainings, flag):
    """Returns the set of the BERT's fingerprint, or of none if no record has it.

    Raises:
      UserError: the runs used several BERTs, which tables do not distinguish.
    """
    backbones = [record["backbone"] for record in trainings if record.get("backbone")]
    names = {backbone["fingerprint"]: backbone["name"] for backbone in backbones}
    if len(names) > 1:
        raise UserError(
            f"{flag}: found runs of several BERTs ({', '.join(sorted(map(str, names.values())))});"
            " use one folder per BERT."
        )
    return set(names)


def check_same_data(trainings, flag):
    """Raises UserError if a task's runs read different data or labels."""
    known = {}
    for record in trainings:
        data = record.get("data", {})
        values = {f"digest of the {split} split": digest for split, digest in data.items()}
        # In records of earlier versions, a column's number may be an int.
        values.update(
            (f"--{name}", str(record["flags"].get(name, "not given"))) for name in _COLUMNS
        )
        for name, value in values.items():
            key = (record["script"], record["task"], name)
            if known.setdefault(key, value) != value:
                raise UserError(
                    f"{flag}: found runs of {record['task']} on different data ({name}:"
                    f" {known[key]} and {value}); use one folder per data set."
                )


def _check_names(record, where):
    """Raises UserError if a record has a name that is too long for a table."""
    names = [record[name] for name in ("key", "script", "finished", "task") if name in record]
    parts = [record.get(name) for name in ("flags", "scores", "data", "backbone")]
    # Those of a failed trial may have any type.
    flags, scores, data, backbone = [part if isinstance(part, dict) else {} for part in parts]
    names += [*flags, *scores, *data, *data.values(), *backbone.values()]
    for name in map(str, names):
        if len(name) > _MAX_NAME:
            raise UserError(
                f"{where}: {name[:50]}... has {len(name):,} characters; expected a name of at most"
                f" {_MAX_NAME}."
            )


def check_scores(record, where):
    """Raises UserError if a finished trial's score or number of parameters is out of range.

    Args:
      record: dict; a failed trial is not checked.
      where: begins the error message.
    """
    if record["status"] != DONE:
        return
    for name, value in record["scores"].items():
        if name == record.get("score") and not abs(value) < json_objects.MAX_NUMBER:
            raise UserError(f"{where}: {name} is {value}; expected a finite number below 2^63.")
        if name.endswith("_parameters") and not 0 <= value < json_objects.MAX_NUMBER:
            raise UserError(f"{where}: {name} is {value}; expected 0 to 2^63.")


def _check_flags(record, where):
    """Raises UserError if a flag of a finished trial has a number that no training accepts."""
    if record["status"] != DONE:
        return
    for name, value in record["flags"].items():
        if name in NUMBERS and not (0 < value < math.inf or value == 0 and name in _MAY_BE_ZERO):
            raise UserError(f"{where}: --{name} is {value}; expected a finite number above 0.")
        if isinstance(value, (int, float)) and not abs(value) < json_objects.MAX_NUMBER:
            raise UserError(f"{where}: --{name} is {value}; expected a number below 2^63.")


def missing_digests_note(records):
    """Returns a list with a line on the number of finished trials without digests of their data.

    Args:
      records: dicts; failed trials do not count.

    Returns:
      [] if all finished trials have digests.
    """
    done = [record for record in records if record["status"] == DONE]
    count = sum("data" not in record for record in done)
    if not count:
        return []
    return [
        f"{count} of {len(done)} finished trials have no digest of their data, so a task's trials"
        " may have read different data."
    ]


def _file_name(shard):
    index, count = shard
    return f"results.{index}-of-{count}.jsonl" if count > 1 else "results.jsonl"


def _ends_with_newline(writer):
    writer.seek(-1, os.SEEK_END)
    return writer.read(1) == b"\n"


def _read_lines(path):
    try:
        with gfile.open_regular(path) as reader, io.TextIOWrapper(reader, "utf-8") as text:
            lines = list(iter(lambda: text.readline(_MAX_LINE + 1), ""))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({gfile.reason(error)}).") from error
    for number, line in enumerate(lines, 1):
        if len(line) > _MAX_LINE:
            raise UserError(
                f"{path}, line {number}: it has more than {_MAX_LINE:,} characters; expected the"
                " record of a trial."
            )
    return [line.rstrip("\n") for line in lines]


def _parse_record(line, where):
    """Returns a line's record, or None if the line is truncated."""
    try:
        record = json_objects.parse_json(line)
    except json_objects.DuplicateKeyError as error:  # The line is complete but invalid.
        raise UserError(f"{where}: {error}; expected the record of a trial.") from error
    except ValueError:
        record = None
    if _is_record(record):
        _check_names(record, where)
        check_scores(record, where)
        _check_flags(record, where)
        return record
    if record is not None or not line.startswith("{"):
        raise UserError(f"{where}: expected the record of a trial.")
    logging.warning("%s: skipped a truncated or damaged record; its trial does not count.", where)
    return None


def _is_record(value):
    try:
        for name in ("key", "script", "finished"):
            json_objects.require_type(value[name], str)
        for digest in json_objects.require_type(value.get("data", {}), dict).values():
            json_objects.require_type(digest, str)
        for name, setting in json_objects.require_type(value["flags"], dict).items():
            # A trial may have failed because of such a flag.
            must_be_number = name in NUMBERS and value["status"] == DONE
            is_number = must_be_number or not isinstance(setting, (str, bool))
            json_objects.require_type(setting, float if is_number else type(setting))
        if json_objects.require_type(value["status"], str) == FAILED:
            json_objects.require_type(value["reason"], str)
            return True
        return value["status"] == DONE and _has_scores(value)
    except (KeyError, TypeError, ValueError):
        return False


def _has_scores(record):
    json_objects.require_type(record["task"], str)
    if record["script"] == "run_baseline.py":
        json_objects.require_type(record["settings"], dict)
    for score in json_objects.require_type(record["scores"], dict).values():
        json_objects.require_type(score, float)
    backbone = record.get("backbone") or {"name": "", "fingerprint": ""}
    for name in ("name", "fingerprint"):
        json_objects.require_type(backbone[name], str)
    return record["score"] in record["scores"]
