"""Reads and writes the records of a sweep's trials: append-only files of JSON lines in a folder.

Each process of a sweep appends to its shard's file, which it locks, and reads all files. A record:

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

import dataclasses
import json
import os
import time
from typing import Any, BinaryIO, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from absl import logging

from adapter_bert.files import gfile, json_objects, locks
from adapter_bert.shell.errors import UserError

DONE, FAILED = "done", "failed"
_FILES = "results*.jsonl"
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
COLUMNS = ("label_column", "tag_column")  # They select a task's labels from its data.


def now() -> str:
    """Returns the current time in UTC, in the format of records."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())


def read(folder: str) -> List[Dict[str, Any]]:
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

    def __init__(self, folder: str):
        if gfile.is_remote(folder):
            raise UserError(f"{folder}: records need a local folder.")
        self._folder = folder
        self._forget()

    def _forget(self) -> None:
        self._files: Dict[str, _ReadFile] = {}
        self._records: Dict[str, Dict[str, Any]] = {}
        self._shared: Dict[Any, Any] = {}  # Equal objects of many records, such as a BERT.

    def read(self) -> List[Dict[str, Any]]:
        """Returns all records; see the function `read`."""
        return sorted(self.by_key().values(), key=lambda record: record["finished"])

    def by_key(self) -> Dict[str, Dict[str, Any]]:
        """Returns all records as a dict by key, which later calls update."""
        paths = sorted(gfile.glob(_FILES, self._folder))
        if not self._files.keys() <= set(paths) or any(
            os.path.getsize(path) < file.position for path, file in self._files.items()
        ):
            self._forget()  # A file was removed or replaced.
        for path in paths:
            for record in self._read_new_records(path):
                key = record["key"]
                if _rank(record) >= _rank(self._records.get(key, record)):
                    self._records.pop(key, None)
                    self._records[key] = record  # The last of those that end in one second.
        return self._records

    def _read_new_records(self, path: str) -> Iterator[Dict[str, Any]]:
        """Yields the records that were appended to a file since the last call."""
        file = self._files.setdefault(path, _ReadFile())
        try:
            with gfile.open_regular(path) as reader:
                reader.seek(file.position)
                for line in reader:
                    text, where = line.decode(), f"{path}, line {file.lines + 1}"
                    record = _parse_record(text, where, is_known=text == file.truncated)
                    if record is None and not text.endswith("\n"):
                        file.truncated = text  # A process may be writing the rest.
                        return
                    file.position += len(line)
                    file.lines += text.endswith("\n")
                    if record:
                        yield self._share(record)
        except UserError:  # It is a ValueError, too.
            raise
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read ({gfile.reason(error)}).") from error

    def _share(self, record: Dict[str, Any]) -> Dict[str, Any]:
        """Returns a record that shares equal objects with others, which saves memory."""
        for name in ("backbone", "data"):
            if record.get(name):
                record[name] = self._shared.setdefault((*record[name].items(),), record[name])
        return record


@dataclasses.dataclass
class _ReadFile:
    """How far a file has been read: bytes, whole lines, and the truncated line at its end."""

    position: int = 0
    lines: int = 0
    truncated: str = ""


def _rank(record: Dict[str, Any]) -> Tuple[bool, str]:
    return record["status"] == DONE, record["finished"]


def append(folder: str, shard: Tuple[int, int], record: Dict[str, Any]) -> None:
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
    writing = gfile.convert_write_errors(path)
    with writing, gfile.open_to_append(path) as writer, locks.waited(writer):
        # Appended by offset, as network file systems do not append atomically.
        if writer.seek(0, os.SEEK_END) and not _ends_with_newline(writer):
            line = "\n" + line  # Ends a truncated line of a killed process.
        writer.write(line.encode())
        writer.flush()
        os.fsync(writer.fileno())
        gfile.sync(folder)  # The file may be new.


def check_same_backbone(trainings: Iterable[Dict[str, Any]], flag: str) -> Set[str]:
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


def check_same_data(trainings: Iterable[Dict[str, Any]], flag: str) -> None:
    """Raises UserError if a task's runs read different data or labels."""
    known: Dict[Any, str] = {}
    for record in trainings:
        data = record.get("data", {})
        values = {f"digest of the {split} split": digest for split, digest in data.items()}
        # In records of earlier versions, a column's number may be an int.
        values.update(
            (f"--{name}", str(record["flags"].get(name, "not given"))) for name in COLUMNS
        )
        for name, value in values.items():
            key = (record["script"], record["task"], name)
            if known.setdefault(key, value) != value:
                raise UserError(
                    f"{flag}: found runs of {record['task']} on different data ({name}:"
                    f" {known[key]} and {value}); use one folder per data set."
                )


def check_score(record: Dict[str, Any], where: str) -> None:
    """Raises UserError if a finished trial's score is NaN, Inf or out of range.

    Args:
      record: dict.
      where: begins the error message.
    """
    name = record["score"]
    value = record["scores"][name]
    if not abs(value) < json_objects.MAX_NUMBER:
        raise UserError(f"{where}: {name} is {value}; expected a finite number below 2^63.")


def missing_digests_note(records: Iterable[Dict[str, Any]]) -> List[str]:
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


def _file_name(shard: Tuple[int, int]) -> str:
    index, count = shard
    return f"results.{index}-of-{count}.jsonl" if count > 1 else "results.jsonl"


def _ends_with_newline(writer: BinaryIO) -> bool:
    writer.seek(-1, os.SEEK_END)
    return writer.read(1) == b"\n"


def _parse_record(line: str, where: str, is_known: bool) -> Optional[Dict[str, Any]]:
    """Returns a line's record; None if the line is empty or truncated.

    Args:
      line: str.
      where: begins errors and the warning.
      is_known: whether the warning has been logged before.
    """
    if not line.strip():
        return None
    try:
        record = json_objects.parse_json(line)
    except ValueError:
        record = None
    if _is_record(record):
        if record["status"] == DONE:
            check_score(record, where)
        return record
    if record is not None or not line.startswith("{"):
        raise UserError(f"{where}: expected the record of a trial.")
    if not is_known:
        logging.warning(
            "%s: skipped a truncated or damaged record; its trial does not count.", where
        )
    return None


def _is_record(value: Any) -> bool:
    try:
        for name in ("key", "script", "finished"):
            json_objects.require_type(value[name], str)
        for digest in json_objects.require_type(value.get("data", {}), dict).values():
            json_objects.require_type(digest, str)
        for name, setting in json_objects.require_type(value["flags"], dict).items():
            # A trial may have failed because of such a flag.
            must_be_number = name in NUMBERS and value["status"] == DONE
            if must_be_number or not isinstance(setting, (str, bool)):
                json_objects.require_type(setting, float)
        if json_objects.require_type(value["status"], str) == FAILED:
            json_objects.require_type(value["reason"], str)
            return True
        return value["status"] == DONE and _has_scores(value)
    except (KeyError, TypeError, ValueError):
        return False


def _has_scores(record: Dict[str, Any]) -> bool:
    json_objects.require_type(record["task"], str)
    if record["script"] == "run_baseline.py":
        json_objects.require_type(record["settings"], dict)
    for score in json_objects.require_type(record["scores"], dict).values():
        if type(score) is not float:
            json_objects.require_type(score, float)
    backbone = record.get("backbone") or {"name": "", "fingerprint": ""}
    for name in ("name", "fingerprint"):
        json_objects.require_type(backbone[name], str)
    return record["score"] in record["scores"]
