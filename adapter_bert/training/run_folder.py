"""The folder of a run: its files, its lock, and what earlier or killed runs left in it.

All files are written atomically. Kinds of tasks declare the files of their results.
"""

import contextlib
import dataclasses
import errno
import math
import os
import posixpath
import re
import shutil
import tempfile
import uuid
import weakref
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np
from absl import logging

from adapter_bert.files import atomic, gfile, json_objects, locks, paths
from adapter_bert.formats import adapter_checkpoints, checkpoints, task_adapter
from adapter_bert.model import task_kinds
from adapter_bert.shell.errors import UserError
from adapter_bert.training import cluster, evaluations, plots
from adapter_bert.training.record import Record, identity, read, recorded

FULL_CHECKPOINT = "full_model.ckpt"
_RESULTS = ("eval_results.txt", "eval_results.json")
CROSS_VALIDATION = "cross_validation.json"
Inputs = Iterable[Tuple[str, str]]  # (flag, path); a checkpoint is given by its prefix.


def result_files() -> List[str]:
    """Returns the patterns of results of a run's weights, which more training outdates.

    They are removed without being asked for, so the names are as narrow as possible.
    """
    of_kinds = [pattern for kind in task_kinds.kinds() for pattern in kind.result_files]
    full = [FULL_CHECKPOINT + ".index", FULL_CHECKPOINT + ".data-00000-of-00001"]
    return [*_RESULTS, CROSS_VALIDATION, plots.CURVES, *of_kinds, *full]


def run_files() -> List[str]:
    """Returns the patterns of all files of a run, in the order in which overwriting removes them.

    After a kill later ones may remain, so scores go before the weights that they belong to.
    """
    return [
        evaluations.FILE,
        *result_files(),
        *checkpoints.TRAINING_FILES,
        *("graph.pbtxt", "events.out.tfevents.*", "eval"),
        paths.SETTINGS_FILE,
        cluster.FOLDER,
        task_adapter.FOLDER,
        *(FULL_CHECKPOINT + ".*", "task_*.ckpt.*"),
        *(pattern for kind in task_kinds.kinds() for pattern in kind.other_files),
    ]


class RunFolder:
    """The folder of a run.

    Args:
      path: of the folder, which need not exist.

    Attributes:
      path: as above.
      adapter_folder: path of the run's task adapter.
    """

    def __init__(self, path: str):
        self.path = path
        self.adapter_folder = posixpath.join(path, task_adapter.FOLDER)
        self._settings_file = posixpath.join(path, paths.SETTINGS_FILE)
        self._lock: Any = None

    def create(self) -> None:
        """Creates the folder if necessary; raises UserError if it is not writable.

        Removes links in place of the folders in it, so that the run writes nothing elsewhere.
        """
        paths.check_output_dir(self.path)
        with gfile.convert_write_errors(f"--output_dir={self.path}"):
            gfile.makedirs(self.path)
            if not gfile.is_remote(self.path) and not os.access(self.path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            for name in {"eval", cluster.FOLDER, *map(posixpath.dirname, run_files())} - {""}:
                path = posixpath.join(self.path, name)
                if gfile.is_link(path):
                    logging.warning("Removing %s: it was a link.", path)
                    gfile.remove(path)

    def recorded(self, section: str) -> Dict[str, Any]:
        """Returns a section of the recorded settings; {} without a valid record."""
        return recorded(self._settings_file, section)

    def claim(
        self, record: Record, is_training: bool, overwrite: bool = False, inputs: Inputs = ()
    ) -> None:
        """Checks that the run may use the folder, and records its settings if it trains.

        A finished training may be continued for more steps; see `Record.is_longer`. A training
        locks the folder as long as this object lives.

        Args:
          record: of the run.
          is_training: whether the run trains.
          overwrite: whether a training run first removes an earlier run's files.
          inputs: (flag, path) of the run's inputs.

        Raises:
          UserError: another process trains in the folder; it holds another model; a training run
            with other settings would resume from its weights or replace its task adapter (the error
            names the differences); its last checkpoint is lost, broken or another run's; or an
            input or another run's results would be removed.
        """
        self.create()
        if is_training:
            self._lock = _lock_folder(self.path)
            atomic.recover(self.adapter_folder)
            if overwrite:
                self.clear(inputs)
            else:
                _check_inputs(self._matching(result_files()), inputs, "The training")
        self._recover_checkpoint_record()
        checkpoint = self._latest_checkpoint(is_training)
        if checkpoint or not is_training and self.has_adapter():
            self._compare(record, is_training, checkpoint)
        elif is_training:
            self._check_no_results()
        if is_training:
            self._remove_leftovers(checkpoint)
            json_objects.write_object(self._settings_file, record.sections)

    def _compare(self, record: Record, is_training: bool, checkpoint: Optional[str]) -> None:
        """Raises UserError unless the run may use the weights in the folder."""
        earlier, advice = read(self._settings_file), "give another --output_dir, or"
        overwrite, step = _overwrite_flags(is_training), 0
        if checkpoint:
            checkpoints.open_checkpoint(checkpoint, flag="--output_dir")
            step = checkpoints.step_of(checkpoint)
            if earlier is None and is_training:
                raise UserError(
                    f"{self._settings_file} is missing, but the folder holds checkpoints, so"
                    f" training cannot resume from them; {advice} {overwrite}."
                )
        if earlier is None:
            return
        if is_training and record.is_longer(earlier, step):
            total = record.sections["training"]["num_train_steps"]
            logging.warning(
                "%s: the finished training of %d steps continues to step %d. Its learning rate had"
                " decayed to 0 and rises again, so the weights will differ from those of a single"
                " training of %d steps. For those of a single training, set another --output_dir.",
                *(self._settings_file, step, total, total),
            )
        else:
            differences = record.differences(earlier, is_training, bool(checkpoint))
            if differences:
                raise UserError(
                    f"{self._settings_file} belongs to a run with other settings:"
                    f" {'; '.join(differences)}; give those, another --output_dir, or {overwrite}."
                )
        saved = checkpoints.identity_of(checkpoint) if checkpoint else None
        if checkpoint and saved is None:
            logging.info("%s does not record which run saved it.", checkpoint)
        elif saved is not None and saved != identity(earlier):
            raise UserError(
                f"{checkpoint} belongs to another run than {self._settings_file}; restore this"
                f" run's files, {advice} {overwrite}."
            )

    def _check_no_results(self) -> None:
        """Raises UserError if the folder without checkpoints has results of another run."""
        if gfile.exists(self.adapter_folder):
            raise UserError(
                f"{self.adapter_folder} is a finished task adapter whose checkpoints are gone, so"
                " its training cannot resume; give another --output_dir, or --overwrite_output_dir."
            )
        results = self._matching(result_files())
        if results and not gfile.exists(self._settings_file):
            raise UserError(
                f"{results[0]} is a result of another run, which the training would remove;"
                " give another --output_dir, or --overwrite_output_dir."
            )

    def clear(self, inputs: Inputs = ()) -> None:
        """Removes an earlier run's files, for --overwrite_output_dir.

        Raises:
          UserError: an input would be removed; nothing has been removed.
        """
        files = self._matching(run_files())
        _check_inputs(files, inputs, "--overwrite_output_dir")
        _remove(files, "--overwrite_output_dir removes %s")

    def remove_results(self) -> None:
        """Removes scores and predictions, before a training changes the weights."""
        message = "Removing %s: it will be outdated, as the training resumes."
        _remove(self._matching(result_files()), message)

    def evaluations(self, score: str) -> evaluations.Evaluations:
        """Returns the `Evaluations` of the training by a score; see there."""
        return evaluations.Evaluations(self.path, score)

    def check_best(self, score: str) -> None:
        """Raises UserError if the best adapter so far, of --keep_best, is gone."""
        if self.evaluations(score).best() > -math.inf and not self.has_adapter():
            raise UserError(
                f"--keep_best: {self.adapter_folder}, the best task adapter of this training, is"
                " gone; restore it, or give another --output_dir, or --overwrite_output_dir."
            )

    def write_results(
        self, result: Dict[str, Any], metadata: Dict[str, Any], description: str = ""
    ) -> str:
        """Writes eval_results.txt in BERT's format and eval_results.json with all results.

        Args:
          result: dict from names to numbers, lists and texts.
          metadata: further content of eval_results.json.
          description: text that follows the numbers in eval_results.txt.

        Returns:
          The path of eval_results.txt.
        """
        path, json_path = (posixpath.join(self.path, name) for name in _RESULTS)
        names = sorted(name for name in result if np.ndim(result[name]) == 0)
        lines = "".join(f"{name} = {result[name]}\n" for name in names)
        atomic.write_atomically(path, lines + (f"\n{description}\n" if description else ""))
        json_objects.write_object(json_path, {**metadata, **result})
        return path

    def has_checkpoints(self) -> bool:
        """Returns whether a training has saved a checkpoint here, even if none can be read."""
        return bool(self._matching(checkpoints.TRAINING_FILES))

    def has_adapter(self) -> bool:
        """Returns whether the folder has a task adapter, possibly where a kill left it."""
        return gfile.exists(atomic.current_folder(self.adapter_folder))

    def load_adapter(self) -> task_adapter.TaskAdapter:
        """Returns the folder's task adapter."""
        return task_adapter.load(self.adapter_folder, "--output_dir")

    def describe_adapter(self) -> task_adapter.Description:
        """Returns the description of the folder's task adapter."""
        return task_adapter.describe(self.adapter_folder, "--output_dir")

    def trained_adapter(
        self, description: task_adapter.Description, run_identity: str
    ) -> task_adapter.TaskAdapter:
        """Returns the task adapter in the last checkpoint, with its step.

        Raises:
          UserError: another run saved it, or it lacks a tensor that the description lists.
        """
        checkpoint = checkpoints.latest(self.path, run_identity)
        assert checkpoint is not None
        tensors = checkpoints.trained_tensors(checkpoint, task_adapter.shapes(description))
        step = checkpoints.step_of(checkpoint)
        return task_adapter.TaskAdapter(dataclasses.replace(description, global_step=step), tensors)

    def save_adapter(self, adapter: task_adapter.TaskAdapter) -> None:
        """Saves a task adapter, unless the same one is already saved.

        If its tensors are already saved, their scores and versions stay: the versions name the
        programs that made the tensors.
        """
        digest = task_adapter.tensors_digest
        saved = self.load_adapter() if gfile.exists(self.adapter_folder) else None
        if saved and digest(saved) == digest(adapter):
            description = dataclasses.replace(
                adapter.description,
                scores=saved.description.scores,
                versions=saved.description.versions,
            )
            if description == saved.description:
                return
            adapter = adapter._replace(description=description)
        task_adapter.save(self.adapter_folder, adapter)

    def as_checkpoint(self, adapter: task_adapter.TaskAdapter) -> str:
        """Returns the prefix of a checkpoint of an adapter, which is removed with this object.

        Raises:
          UserError: this machine has no place for temporary files.
        """
        name = f"task_{uuid.uuid4().hex[:8]}.ckpt"  # Unique, as other runs may use the folder.
        if gfile.is_remote(self.path):  # A TPU's host cannot read this machine's files.
            folder = self.path
            weakref.finalize(self, _remove_quietly, folder, name + ".*")
        else:
            with gfile.convert_write_errors("The folder for temporary files"):
                folder = tempfile.mkdtemp()
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        adapter_checkpoints.to_checkpoint(adapter, posixpath.join(folder, name))
        return posixpath.join(folder, name)

    def _matching(self, patterns: Sequence[str]) -> List[str]:
        return _matching(self.path, patterns)

    def _recover_checkpoint_record(self) -> None:
        """Restores the file "checkpoint", by which TensorFlow finds checkpoints, if it is lost."""
        record = posixpath.join(self.path, "checkpoint")
        if gfile.exists(record):
            return
        names = (checkpoints.MODEL_CHECKPOINT, checkpoints.PARTIAL_CHECKPOINT)
        indices = map(posixpath.basename, self._matching([name + "-*.index" for name in names]))
        matches = [
            match for name in indices for match in [re.fullmatch(r"(.+-(\d+))\.index", name)]
        ]
        if any(matches):
            name = max((match for match in matches if match), key=lambda match: int(match[2]))[1]
            logging.warning("%s was missing; it now names %s.", record, name)
            checkpoints.write_record(self.path, [name])

    def _latest_checkpoint(self, is_training: bool) -> Optional[str]:
        """Returns the last checkpoint's prefix, or None; raises UserError if it is lost."""
        record = posixpath.join(self.path, "checkpoint")
        try:
            checkpoint = checkpoints.latest(self.path)
        except UserError:  # It is a ValueError, too.
            raise
        except ValueError:  # The record is not text, or has no path.
            checkpoint = None
        # TensorFlow would only log this, and retrain from the start over the remaining files.
        if checkpoint is None and gfile.exists(record):
            raise UserError(
                f"{record}: the checkpoint that it names is missing; restore its files, give"
                f" another --output_dir, or {_overwrite_flags(is_training)}."
            )
        return checkpoint

    def _remove_leftovers(self, checkpoint: Optional[str]) -> None:
        """Removes files that a kill or a full disk left incomplete.

        Without a checkpoint, also removes the scores, as all steps will be trained again.
        """
        leftovers = ["*.tempstate*", "checkpoint.tmp*", FULL_CHECKPOINT + ".partial.*"]
        leftovers.append(atomic.PARTIAL_FILES)
        if checkpoint is None:
            leftovers.append(evaluations.FILE)
        for path in self._matching(leftovers):
            gfile.remove(path)


class _FolderLock:
    """A local folder that is locked until this object or the process ends."""

    def __init__(self, folder: str):
        descriptor = os.open(folder, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        self.held = os.path.join(folder, locks.HELD)
        with gfile.convert_write_errors(self.held):
            self.is_acquired = locks.lock(descriptor, self.held)
        weakref.finalize(self, locks.unlock, self.held)


_LOCKS: Any = weakref.WeakValueDictionary()  # Real path → lock that this process holds.


def _lock_folder(output_dir: str) -> Optional[_FolderLock]:
    """Returns the folder's lock, so that two trainings never mix; None if unreadable."""
    if gfile.is_remote(output_dir):
        return None
    path = os.path.realpath(output_dir)
    try:
        lock = _LOCKS.get(path) or _FolderLock(path)
    except OSError:
        return None
    if not lock.is_acquired:
        raise UserError(
            f"--output_dir={output_dir}: another process is training there"
            f"{locks.holder(lock.held)}; wait until it ends, or give another --output_dir."
        )
    _LOCKS[path] = lock
    return lock


def _overwrite_flags(is_training: bool) -> str:
    """Returns the flags that overwrite the folder; only a training can."""
    return "--overwrite_output_dir" + ("" if is_training else " with --do_train")


def _remove(files: Iterable[str], message: str) -> None:
    for path in files:
        logging.info(message, path)
        gfile.rmtree(path)


def _remove_quietly(folder: str, pattern: str) -> None:
    with contextlib.suppress(OSError):
        for path in _matching(folder, [pattern]):
            gfile.remove(path)


def _check_inputs(files: Sequence[str], inputs: Inputs, cause: str) -> None:
    """Raises UserError if an input of the run is among files that `cause` would remove."""
    for flag, path in inputs:
        if any(paths.is_removed_with(file, path) for file in files):
            raise UserError(
                f"{cause} would remove {flag}={path} before it is read; give another --output_dir,"
                " or move it out of this one."
            )


def _matching(folder: str, patterns: Sequence[str]) -> List[str]:
    """Returns the paths in a folder that match patterns, none of them through a link in it."""
    matches = []
    for pattern in patterns:
        subfolder = posixpath.dirname(pattern)
        if subfolder and gfile.is_link(posixpath.join(folder, subfolder)):
            continue  # What it leads to is not the run's.
        # TensorFlow 1 raises it if the folder of a remote pattern does not exist.
        with contextlib.suppress(FileNotFoundError):
            matches += gfile.glob(pattern, folder)
    return list(dict.fromkeys(matches))  # Patterns overlap.
