"""Runs a sweep: each trial in its own process, recorded when it ends.

    folder/results*.jsonl        the trials' results, see `records`
    folder/trials/<name>/        a trial's output_dir, with its output in log.txt
    folder/precision.json        the measured precision for trials with --precision=auto

Several sweepers may share a folder, on any machines whose file system has locks between them: each
trial's log is locked while the sweeper or the trial has it open, so after a kill the next sweeper
waits for trials that still run. This module imports TensorFlow only to start trials.
"""

import collections
import contextlib
import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from typing import (
    Any,
    BinaryIO,
    Collection,
    Deque,
    Dict,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from absl import logging
from tqdm import tqdm

from adapter_bert.files import gfile, json_objects, locks, paths
from adapter_bert.formats import bert_folders, task_adapter
from adapter_bert.model import configs
from adapter_bert.shell import interrupts
from adapter_bert.shell.errors import UserError
from adapter_bert.sweeps import data_digests, grids, records, selection
from adapter_bert.sweeps.records import DONE, FAILED
from adapter_bert.training import evaluations, pretrained

_POLL_SECONDS = 0.3
_COMMAND_PREFIX = "\n$ "  # Precedes each command in the log.
_INTERRUPT_TIMEOUT = 120.0  # Seconds in which an interrupted trial must save its step.
_DATA_CHANGED = (
    "its data have changed since the sweep began, or cannot be read; run the sweep again"
)

KEEP = ("adapters", "scores", "all")  # What stays of a finished trial.

# Flags of the BERT's files that its checkpoint does not contain.
_BERT_FILES = ("bert_config_file", "vocab_file", "spm_model_file")

# Flags that name a location or a device. As extra flags, they are not part of a trial's key, in
# which `_backbone_fingerprint` identifies the BERT.
_LOCATION_FLAGS = (
    *("bert", *_BERT_FILES, "init_checkpoint", "bert_hub_module_handle", "feature_cache_dir"),
    *("tpu_name", "tpu_zone", "gcp_project", "master"),
)

# Flags that decide which BERT and which data a trial reads.
_IDENTITY_FLAGS = {
    *_LOCATION_FLAGS,
    *("task_name", "name", "do_predict", *grids.DATA_FLAGS, *grids.SPLIT_FLAGS),
}


class _Running(NamedTuple):
    key: str
    process: subprocess.Popen
    log: BinaryIO
    start: float


class Sweep:
    """Trials and the folder of their results.

    Args:
      trials: list of `grids.Trial`.
      folder: local path.
      jobs: number of trials that run in parallel; each gets its share of CPU cores and GPUs.
      shard: (i, n): this sweeper runs every n-th trial, from the i-th.
      extra_flags: "--name=value" flags for every trial. They count like the grid's, except those
        that locate BERT, the cache or a TPU.
      keep: one of `KEEP`.
      retry_failed: run failed trials again.

    Attributes:
      trials: ordered dict from keys to trials.

    Raises:
      UserError: a trial needs an environment variable that is not set, or a missing BERT; a flag is
        given twice, is not the script's, has an invalid value, or is one that the sweep sets; two
        custom tasks have folders of one name; one task has several columns of labels; or the
        folder is not local, or has a name that TensorFlow takes for a pattern.
    """

    def __init__(
        self,
        trials: Sequence[grids.Trial],
        folder: str,
        *,
        jobs: int = 1,
        shard: Tuple[int, int] = (0, 1),
        extra_flags: Iterable[str] = (),
        keep: str = "adapters",
        retry_failed: bool = False,
    ):
        self._root, self._jobs, self._shard = folder, jobs, shard
        self._keep, self._retry_failed = keep, retry_failed
        if gfile.is_remote(folder):
            raise UserError(f"--output_dir={folder}: a sweep needs a local folder.")
        paths.check_output_dir(folder)
        new_flags = _parse_flags(extra_flags, {name for trial in trials for name, _ in trial.flags})
        self._location_flags = {
            name: new_flags.pop(name) for name in _LOCATION_FLAGS if name in new_flags
        }
        trials = [trial.with_flags(new_flags) for trial in trials]
        all_flags = [trial.with_flags(self._location_flags) for trial in trials]
        self._variables = grids.variables(all_flags)
        grids.check_flags(all_flags)
        self.trials: Dict[str, grids.Trial] = {}
        self._data: Dict[str, Optional[Dict[str, str]]] = {}
        self._digests = data_digests.DataDigests()
        self._flags_of_bert = functools.lru_cache(maxsize=None)(_flags_of_bert)
        once = functools.lru_cache(maxsize=None)  # Reads files once for all trials.
        self._fingerprint_of, self._digest_of = once(_backbone_fingerprint), once(self._digest)
        self._digest_of_bert_files = once(_bert_files_digest)
        self._identity_of = once(self._read_identity)
        for trial in trials:
            backbone, _, data = self._identity(trial)
            key = _expand_flags(trial).key(backbone, data)
            self.trials[key], self._data[key] = trial, data
        self._check_same_data()
        self._records = records.Reader(folder)
        self._keys_of: Dict[str, List[str]] = {}
        self._durations: List[float] = []
        self._awaited: Set[str] = set()

    def name(self, key: str) -> str:
        """Returns a trial's name, which is also its folder's."""
        trial = self.trials[key]
        return re.sub(r"[^\w.-]+", "_", f"{trial.task}-{trial.method}-{key[:8]}")

    def records(self) -> Dict[str, Dict[str, Any]]:
        """Returns the trials' records, a dict by key; of earlier versions, the finished ones."""
        by_key = self._records.by_key()
        by_trial = {key: by_key[key] for key in self.trials if key in by_key}
        others = [record for key, record in by_key.items() if key not in self.trials]
        if not others:
            return by_trial
        for record in sorted(others, key=lambda record: record["finished"]):
            for key in self._earlier_keys().get(record["key"], ()):
                if record["status"] == DONE and key not in by_key:
                    by_trial[key] = record
        return {key: by_trial[key] for key in self.trials if key in by_trial}

    def running(self) -> Dict[str, str]:
        """Returns the last line of output of each running trial, a dict by key."""
        folder = os.path.join(self._root, "trials")
        names = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        known = self.records() if names else {}
        folders = {
            key: self._trial_folder(key)
            for key in (self.trials if names else ())
            if not (key in known and known[key]["status"] == DONE) and self.name(key) in names
        }
        return {
            key: self._hide(folder.last_line())
            for key, folder in folders.items()
            if folder.is_running()
        }

    def commands(self, keys: Optional[Collection[str]] = None) -> List[List[str]]:
        """Returns the command of each remaining trial of this sweeper, a list of str.

        It names environment variables; see `shell_line`.

        Args:
          keys: the keys of the trials to run; None for all.
        """
        remaining = self._remaining_keys(self.records(), keys)
        return [self._command(key, is_expanded=False) for key in remaining]

    def run(self, keys: Optional[Collection[str]] = None) -> None:
        """Runs the remaining trials, and waits for those that other sweepers run.

        Args:
          keys: the keys of the trials to run; None for all.

        Raises:
          UserError: a record cannot be written, or a trial's data have changed.
          KeyboardInterrupt: Ctrl-C; the trials have saved their last step.
        """
        queue = collections.deque(self._remaining_keys(self.records(), keys))
        self._initial_records = dict(self._records.by_key())
        running: Dict[int, _Running] = {}
        self._awaited.clear()
        try:
            while queue or running:
                self._poll(queue, running)
                time.sleep(_POLL_SECONDS)
        finally:
            interrupt([trial.process for trial in running.values()])

    def _identity(self, trial: grids.Trial) -> Tuple[Any, Any, Optional[Dict[str, str]]]:
        """Returns what identifies a trial's BERT, as now and in earlier versions, and its data."""
        flags = tuple(pair for pair in trial.flags if pair[0] in _IDENTITY_FLAGS)
        return self._identity_of(grids.Trial(trial.script, flags))

    def _read_identity(self, trial: grids.Trial) -> Tuple[Any, Any, Optional[Dict[str, str]]]:
        flags = self._expanded_locations(trial)
        handle = flags.get("bert_hub_module_handle")
        bert = self._fingerprint_of(handle, flags.get("init_checkpoint"))
        other_files = self._digest_of_bert_files(handle, *map(flags.get, _BERT_FILES))
        data = self._digest_of(data_digests.data_source_of(trial), trial.task)
        return [bert, other_files] if other_files else bert, bert, data

    def _earlier_keys(self) -> Dict[str, List[str]]:
        """Returns the keys that trials had in earlier versions, a dict to their keys now.

        They lack the digests of the data, of the BERT's other files, or both; and a trial whose
        data could not be read had no digest of them.
        """
        if not self._keys_of:
            self._keys_of = collections.defaultdict(list)
            for key, trial in self.trials.items():
                backbone, bert, data = self._identity(trial)
                earlier = trial.key(backbone), _expand_flags(trial).key(bert, data), trial.key(bert)
                for recorded_key in {*earlier} - {key}:
                    self._keys_of[recorded_key].append(key)
        return self._keys_of

    def _check_same_data(self) -> None:
        """Raises UserError if a custom task's trials read different data, or other labels."""
        names = ("task_name", *records.COLUMNS)
        different = {}
        for (key, trial), data in zip(self.trials.items(), self._data.values()):
            labels = map(dict(trial.flags).get, names)
            different[(trial.script, trial.task, *labels, id(data))] = key
        runs = [self._description(key) for key in different.values()]
        custom = [run for run in runs if str(run["flags"].get("task_name")).lower() == "custom"]
        for some in (custom, [{**run, "data": {}} for run in runs]):
            records.check_same_data(some, f"--output_dir={self._root}")

    def _description(self, key: str) -> Dict[str, Any]:
        """Returns the part of a trial's record that is known before it runs; see `records`."""
        trial, data = self.trials[key], self._data[key]
        # Other values of environment variables may be secret; reports need the numbers.
        numbers = {n: v for n, v in _expand_flags(trial).flags if n in records.NUMBERS}
        return {
            "key": key,
            "script": trial.script,
            "task": trial.task,
            "flags": {**dict(trial.flags), **numbers},
            **({"data": data} if data else {}),
        }

    def _expanded_locations(self, trial: grids.Trial) -> Dict[str, Any]:
        """Returns a trial's flags, a dict, with environment variables in locations expanded.

        --bert is replaced by the flags that it stands for.
        """
        flags = {**dict(trial.flags), **self._location_flags}
        expanded = {
            name: grids.expand_variables(name, value) if name in _LOCATION_FLAGS else value
            for name, value in flags.items()
        }
        if expanded.get("bert"):
            expanded.update(self._flags_of_bert(expanded.pop("bert")))
        return expanded

    def _digest(self, source: data_digests.DataSource, task: str) -> Optional[Dict[str, str]]:
        """Returns the digests of a `data_digests.DataSource`, or None if it cannot be read."""
        try:
            return self._digests.compute(source)
        except UserError as error:
            logging.warning(
                "%s: its data cannot be read (%s). Trials that finished with this data do not"
                " count, and later changes to it are not detected.",
                task,
                self._hide(str(error).rstrip(".")),
            )
            return None

    def _has_changed_data(self, key: str) -> bool:
        """Returns whether a trial's data have changed since its key was computed."""
        trial, data = self.trials[key], self._data[key]
        source = data_digests.data_source_of(trial)
        return data is not None and data != self._digest(source, trial.task)

    def _poll(self, queue: Deque[str], running: Dict[int, _Running]) -> None:
        """Records ended trials, and starts others in their slots."""
        for slot, run in list(running.items()):
            if run.process.poll() is not None:
                del running[slot]
                self._finish(run, len(queue) + len(running))
        for slot in set(range(self._jobs)) - set(running):
            self._start_next(queue, running, slot)

    def _remaining_keys(
        self, known_records: Dict[str, Dict[str, Any]], keys: Optional[Collection[str]] = None
    ) -> List[str]:
        """Returns the keys of this shard's trials that are left to run."""
        index, count = self._shard
        ended = (DONE,) if self._retry_failed else (DONE, FAILED)
        return [
            key
            for key in list(self.trials)[index::count]
            if (keys is None or key in keys)
            and not (key in known_records and known_records[key]["status"] in ended)
        ]

    def _start_next(self, queue: Deque[str], running: Dict[int, _Running], slot: int) -> None:
        """Starts the first waiting trial that no other sweeper runs, and adds it to `running`."""
        known_records = self._records.by_key() if queue else {}
        for _ in range(len(queue)):
            key = queue.popleft()
            if self._was_recorded(key, known_records):
                continue
            log = self._trial_folder(key).lock_log()
            if log is None:
                queue.append(key)
                self._log_wait(key)
            elif self._was_recorded(key, self._records.by_key()):
                _close(log)  # Another sweeper has finished it.
            elif self._has_changed_data(key):
                _close(log)
                raise UserError(f"{self.trials[key].task}: {_DATA_CHANGED}.")
            else:
                gpus = _assigned_gpus(slot, self._jobs)
                where = f" on GPU {gpus}" if gpus else ""
                logging.info("Running %s%s", self.name(key), where)
                precision = self._precision_flags(key)
                command = [*self._command(key), *precision]
                line = shell_line([*self._command(key, is_expanded=False), *precision])
                with interrupts.postpone_signals():  # Else Ctrl-C would leave it running.
                    process = self._trial_folder(key).start(
                        command, log, line, _assigned_cores(slot, self._jobs), gpus
                    )
                    running[slot] = _Running(key, process, log, time.monotonic())
                return

    def _was_recorded(self, key: str, known_records: Dict[str, Dict[str, Any]]) -> bool:
        """Returns whether a trial got a record since this run began."""
        return known_records.get(key) != self._initial_records.get(key)

    def _log_wait(self, key: str) -> None:
        """Logs once why a trial has to wait."""
        if key not in self._awaited:
            self._awaited.add(key)
            logging.info(
                "%s runs elsewhere%s.", self.name(key), locks.holder(self._trial_folder(key).held)
            )

    def _finish(self, run: _Running, num_remaining: int) -> None:
        """Records a trial whose process has ended, after removing the files that need not stay."""
        seconds, folder = time.monotonic() - run.start, self._trial_folder(run.key)
        record = {
            **self._description(run.key),
            "seconds": round(seconds, 1),
            "finished": records.now(),
            **folder.outcome(run.process.returncode, self.trials[run.key]),
        }
        with gfile.convert_write_errors(run.log.name):
            grids.hide_values_in_file(run.log, self._variables)
        if record["status"] == DONE and self._has_changed_data(run.key):
            reason = f"{_DATA_CHANGED} with --retry_failed"
            record = {**record, "status": FAILED, "reason": reason}
        if record["status"] == DONE:
            folder.clean_up(self._keep)
        else:
            record["reason"] = self._hide(record["reason"])
        records.append(self._root, self._shard, record)
        _close(run.log)
        self._durations.append(seconds)
        remaining_seconds = sum(self._durations) / len(self._durations) * num_remaining / self._jobs
        logging.info(
            "%s %s (%s; %d to go, about %s)",
            self.name(run.key),
            _describe_record(record),
            tqdm.format_interval(seconds),
            num_remaining,
            tqdm.format_interval(remaining_seconds),
        )

    def _hide(self, text: str) -> str:
        """Returns a text without the values of environment variables; see `grids.hide_values`."""
        return grids.hide_values(text, self._variables)

    def _command(self, key: str, is_expanded: bool = True) -> List[str]:
        trial = self.trials[key].with_flags(self._location_flags)
        script, *flags = trial.command(self._folder(key), is_expanded)
        return [sys.executable, os.path.join(paths.PROJECT, script), *flags]

    def _precision_flags(self, key: str) -> List[str]:
        """Returns --precision for a trial with "auto": measured once per BERT's width.

        A trial that has a checkpoint resumes with its precision.
        """
        flags = self._expanded_locations(self.trials[key])
        is_resumed = _run_folder(self._folder(key)).has_checkpoints()
        if flags.get("precision", "auto") != "auto" or flags.get("use_tpu") or is_resumed:
            return []
        from adapter_bert.ops import devices

        config = _bert_config(flags.get("bert_hub_module_handle"), flags.get("bert_config_file"))
        width = config.hidden_size, config.intermediate_size
        path = os.path.join(self._root, "precision.json")
        lock = path + ".lock"
        writing = gfile.convert_write_errors(lock)
        with writing, gfile.open_to_append(lock) as file, locks.waited(file):
            precisions = json_objects.read_object(path) if os.path.exists(path) else {}
            if str(width) not in precisions:  # Nor has another sweeper measured it.
                precisions[str(width)] = devices.choose_precision("auto", False, width)
                json_objects.write_object(path, precisions)
        return [f"--precision={precisions[str(width)]}"]

    def _folder(self, key: str) -> str:
        return os.path.join(self._root, "trials", self.name(key))

    def _trial_folder(self, key: str) -> "TrialFolder":
        return TrialFolder(self._folder(key))


def _describe_record(record: Dict[str, Any]) -> str:
    if record["status"] != DONE:
        return f"failed: {record['reason']}"
    (run,) = selection.read([record])
    note = ", but predicts only one label" if run.predicts_one_label() else ""
    return f"has {record['score']} {record['scores'][record['score']]:.4f}{note}"


def _assigned_cores(slot: int, jobs: int) -> Optional[List[int]]:
    """Returns the CPU cores for one of several parallel trials; None for all cores."""
    if jobs == 1 or not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return cores[slot::jobs] if len(cores) >= jobs else None


def _assigned_gpus(slot: int, jobs: int) -> Optional[str]:
    """Returns CUDA_VISIBLE_DEVICES for one of several parallel trials; None for all GPUs."""
    gpus = _gpus() if jobs > 1 else []
    if len(gpus) < 2:
        return None
    return ",".join(gpus[slot::jobs]) or gpus[slot % len(gpus)]


@functools.lru_cache(maxsize=None)
def _gpus() -> List[str]:
    """Returns the names of this process's GPUs for CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", "--list-gpus"]
    listed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    gpus = [line for line in listed.decode().splitlines() if line.startswith("GPU ")]
    return [str(index) for index in range(len(gpus))]


def _parse_flags(texts: Iterable[str], known: Collection[str]) -> Dict[str, Any]:
    """Returns the values of flags for every trial, by name.

    Args:
      texts: "--name=value" flags.
      known: names of the flags in the grid.

    Raises:
      UserError: a text has another format, or a flag is given twice.
    """
    flags: Dict[str, Any] = {}
    for text in texts:
        match = re.fullmatch(r"--?(\w+)=(.*)", text, re.DOTALL)
        if not match:
            raise UserError(f"{text}: expected a flag of the trials, written as --name=value.")
        name, value = match.groups()
        if name in known:
            raise UserError(f"--{name} is a flag of the grid already; change it with --set.")
        if name in flags:
            raise UserError(f"--{name} is given twice.")
        is_location = name in _LOCATION_FLAGS
        flags[name] = value if is_location else grids.read_value(name, value, "--" + name)
    return flags


def _expand_flags(trial: grids.Trial) -> grids.Trial:
    """Returns a trial with environment variables expanded, except in locations.

    Data and BERT have digests in the key, which do not depend on their folders.
    """
    named = [(name, value) for name, value in trial.flags if "$" in str(value)]
    return trial.with_flags(
        {
            name: _expand(name, value)
            for name, value in named
            if name not in (*grids.DATA_FLAGS, *_LOCATION_FLAGS)
        }
    )


def _expand(name: str, value: object) -> Any:
    with grids.hide_values_in_errors(grids.variables([grids.Trial("", ((name, value),))])):
        return grids.read_value(name, grids.expand_variables(name, value), f"--{name}")


def _flags_of_bert(source: str) -> Dict[str, str]:
    """Returns the flags that locate the BERT of --bert, which is converted if need be."""
    return pretrained.location_flags(bert_folders.local_folder(source, "--bert"))


@functools.lru_cache(maxsize=None)  # Reading a TF-Hub module is slow.
def _bert_config(handle: Optional[str], config_file: Optional[str]) -> configs.BertConfig:
    """Returns the `configs.BertConfig` that a trial's flags name."""
    if handle:
        from adapter_bert.formats import tfhub

        return tfhub.read_bert(handle).config
    return configs.BertConfig.from_json_file(paths.find_bert("bert_config_file", config_file))


def _backbone_fingerprint(handle: Optional[str], init_checkpoint: Optional[str]) -> str:
    """Returns what identifies a BERT, without reading its tensors."""
    if handle:
        digests = [digest for _, digest in gfile.file_digests(handle)]  # None of an address.
        return task_adapter.digest(digests) if digests else handle
    prefix = paths.find_bert("init_checkpoint", init_checkpoint)
    return gfile.sha256(prefix + ".index")  # The index has a checksum of each tensor.


def _bert_files_digest(
    handle: Optional[str],
    config_file: Optional[str],
    vocab_file: Optional[str],
    spm_model_file: Optional[str],
) -> Optional[str]:
    """Returns a digest of the BERT's config and vocabulary; None for a module, or without them."""
    if handle:
        return None
    names = {"bert_config_file": config_file, "vocab_file": vocab_file}
    if spm_model_file:  # It replaces the vocabulary.
        names = {"bert_config_file": config_file, "spm_model_file": spm_model_file}
    try:
        return task_adapter.digest(
            gfile.sha256(paths.find_bert(name, value)) for name, value in names.items()
        )
    except (UserError, OSError):  # A trial that needs the file reports it.
        return None


class TrialFolder:
    """A trial's output_dir and log. Only one sweeper at a time can lock the log.

    Args:
      path: local path; the folder need not exist.

    Attributes:
      held: the file that stands for the log's lock on a file system without locks.
    """

    def __init__(self, path: str):
        self._path = path
        self._log = os.path.join(path, "log.txt")
        self.held = self._log + locks.HELD

    def lock_log(self) -> Optional[BinaryIO]:
        """Returns the log, open and locked until all processes with the file have closed it.

        Returns:
          A binary file; None if another process has the lock.
        """
        with gfile.convert_write_errors(self._log):
            os.makedirs(self._path, exist_ok=True)
            log = gfile.open_to_append(self._log)
            is_locked = locks.lock(log.fileno(), self.held)
        if is_locked:
            return log
        log.close()
        return None

    def is_running(self) -> bool:
        """Returns whether a process has locked the log."""
        if not os.path.exists(self._log):
            return False
        with gfile.convert_read_errors(self._log), gfile.open_regular(self._log) as log:
            return not locks.lock(log.fileno(), self.held, shared=True)

    def start(
        self,
        command: List[str],
        log: BinaryIO,
        line: Optional[str] = None,
        cores: Optional[List[int]] = None,
        gpus: Optional[str] = None,
    ) -> subprocess.Popen:
        """Starts a trial's process.

        Args:
          command: list of str.
          log: from `lock_log`. The process inherits the lock, in case the sweeper is killed.
          line: the command for the log; None for `shell_line(command)`.
          cores: indices of the CPU cores that it may use; None for all.
          gpus: CUDA_VISIBLE_DEVICES; None for all.
        """
        run = _run_folder(self._path)
        if run.has_adapter() and not run.has_checkpoints():
            run.clear()  # The trial finished and was cleaned up, but its record is lost.
        with gfile.convert_write_errors(self._log):
            log.write(f"{_COMMAND_PREFIX}{line or shell_line(command)}\n".encode())
            log.flush()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **({"CUDA_VISIBLE_DEVICES": gpus} if gpus else {})},
            preexec_fn=_isolate_signals,
        )
        if cores:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, cores)
        return process

    def last_line(self) -> str:
        """Returns the trial's last line of output."""
        return _nonempty_lines(self._log_end(2000))[-1]

    def outcome(self, return_code: int, trial: grids.Trial) -> Dict[str, Any]:
        """Returns the part of the record that describes how the trial ended; see `records`.

        Args:
          return_code: the process's.
          trial: `grids.Trial`.
        """
        if return_code < 0:
            return {"status": FAILED, "reason": f"killed by signal {-return_code}"}
        if return_code:
            _, _, output = self._log_end(1 << 16).rpartition(_COMMAND_PREFIX)
            return {"status": FAILED, "reason": failure_reason(output)}
        try:
            return self._result(trial)
        except UserError as error:
            return {"status": FAILED, "reason": str(error)}

    def _result(self, trial: grids.Trial) -> Dict[str, Any]:
        """Returns a finished trial's results; raises UserError if a file is missing."""
        from adapter_bert.training import progress

        path = os.path.join(self._path, "eval_results.json")
        results = json_objects.read_object(path)
        scores = evaluations.scalars(results)
        test = os.path.join(self._path, "test_scores.json")
        if os.path.exists(test):
            scores.update(evaluations.scalars(json_objects.read_object(test)))
        description = task_adapter.describe(os.path.join(self._path, task_adapter.FOLDER))
        progress.write_settings(self._path, dict(trial.flags))
        is_custom = str(dict(trial.flags).get("task_name")).lower() == "custom"
        result = {
            "status": DONE,
            "task": trial.task if is_custom else results["task"],
            "score": results["score"],
            "scores": scores,
            "backbone": {
                "name": description.backbone.name,
                "fingerprint": description.backbone.fingerprint,
            },
        }
        records.check_score(result, path)
        return result

    def clean_up(self, keep: str) -> None:
        """Removes the files that need not stay; `keep` is of `KEEP`."""
        from adapter_bert.formats import checkpoints

        patterns = [] if keep == "all" else [*checkpoints.TRAINING_FILES]
        patterns += [task_adapter.FOLDER] if keep == "scores" else []
        for pattern in patterns:
            for path in gfile.glob(pattern, self._path):
                gfile.rmtree(path)

    def _log_end(self, num_bytes: int) -> str:
        with open(self._log, "rb") as log:
            log.seek(max(0, os.path.getsize(self._log) - num_bytes))
            return log.read(num_bytes).decode(errors="replace")


def _run_folder(path: str) -> Any:
    """Returns the `run_folder.RunFolder` of a trial."""
    from adapter_bert.training import run_folder

    return run_folder.RunFolder(path)


def _close(log: BinaryIO) -> None:
    """Closes a log of `TrialFolder.lock_log`, which ends this process's lock."""
    log.close()
    locks.unlock(log.name + locks.HELD)


def _isolate_signals() -> None:
    """Isolates a trial from Ctrl-C, which the sweeper then forwards once."""
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def shell_line(command: Iterable[str]) -> str:
    """Returns a trial's command as a line for a shell, which expands the $NAME in its flags.

    Args:
      command: list of str; $ is part of a name in the script's path and in --output_dir.
    """

    def quote(word: str) -> str:
        is_flag = word.startswith("--") and not word.startswith("--output_dir=")
        parts = re.split(r"(\$\w+)", word) if is_flag else [word]
        return "".join(
            f'"{part}"' if index % 2 else shlex.quote(part)
            for index, part in enumerate(parts)
            if part
        )

    return " ".join(map(quote, command))


def interrupt(processes: Iterable[subprocess.Popen]) -> None:
    """Interrupts trials and waits until they have saved their step."""
    processes = list(processes)
    for process in processes:
        process.send_signal(signal.SIGINT)
    for process in processes:
        try:
            process.wait(_INTERRUPT_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()


def failure_reason(text: str) -> str:
    """Returns a failed script's error message, or else its last line."""
    lines = _nonempty_lines(text)
    errors = [line[len("Error: ") :] for line in lines if line.startswith("Error: ")]
    return (errors or lines)[-1]


def _nonempty_lines(text: str) -> List[str]:
    return [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()] or [""]
