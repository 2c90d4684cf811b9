"""The files of a run in its output_dir, and the check that the folder belongs to the run.

settings.json describes the model in the folder and its training:

    {"model": {...},      the settings of the graph; compared by every run in the folder
     "training": {...},   further settings that affect the weights; compared by training runs
     "pretrained": {...}, the flags that name the BERT; never compared
     ...}                 sections that a script compares itself

All files are written atomically.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import math
import os
import posixpath
import re
import shutil
import tempfile
import uuid
import weakref
from typing import Any

import numpy as np
from absl import logging

from adapter_bert.files import atomic, gfile, json_objects, locks, paths
from adapter_bert.formats import adapter_checkpoints, checkpoints, task_adapter
from adapter_bert.shell.errors import UserError
from adapter_bert.training import cluster, evaluations

FULL_CHECKPOINT = "full_model.ckpt"
_WEIGHT_SECTIONS = ("model", "training")  # The sections that affect the weights.
# The training settings with which a trained model must also be evaluated.
_READING_SETTINGS = {
    *("max_seq_length", "long_texts", "window_pooling"),
    *("doc_stride", "max_query_length", "version_2_with_negative"),
}

# Results of a run's weights, which are outdated once the training continues. They are removed
# without being asked for, so the names are as narrow as possible.
_RESULT_FILES = (
    *("eval_results.txt", "eval_results.json"),
    *("predictions.json", "nbest_predictions.json", "null_odds.json"),
    *("predictions.jsonl", "predictions.txt"),
    *("dev_predictions.json", "dev_predictions.jsonl", "dev_predictions.txt"),
    *("test_results.tsv", "test_scores.json", "predictions.tsv", "dev_predictions.tsv"),
    *("test_results_mismatched.tsv", "test_scores_mismatched.json"),
    *("predictions_mismatched.tsv", "dev_predictions_mismatched.tsv"),
    "submission/*.tsv",
    *(FULL_CHECKPOINT + ".index", FULL_CHECKPOINT + ".data-00000-of-00001"),
    *("ablation.json", "ablation.txt"),
)

# The files of a run, which overwriting removes in this order; others are never touched. After a
# kill later ones may remain, so scores must go before the weights that they belong to.
_RUN_FILES = (
    evaluations.FILE,
    *_RESULT_FILES,
    *checkpoints.TRAINING_FILES,
    *("graph.pbtxt", "events.out.tfevents.*", "eval"),
    paths.SETTINGS_FILE,
    cluster.FOLDER,
    task_adapter.FOLDER,
    *(FULL_CHECKPOINT + ".*", "task_*.ckpt.*"),
    *("labels.tsv", "labels_mismatched.tsv", "dev_labels.tsv", "dev_labels_mismatched.tsv"),
    "submission",
)

# The folders that runs make in their folder, besides the adapter's.
BETTER_MODEL = "better_model"  # Of a training whose model will replace the one in output_dir.
_FOLDERS = ("eval", "submission", cluster.FOLDER, BETTER_MODEL)

# Training settings that depend on --num_train_epochs.
_LENGTH_SETTINGS = {"num_train_steps", "num_warmup_steps"}


class _Scratch:
    """A place for a run's temporary checkpoints, which are removed with this object.

    It is a folder on this machine, or output_dir if that is remote, as a TPU's host needs.
    """

    def __init__(self, output_dir):
        self._output_dir = output_dir
        self._folder = None
        self._removals = []

    def prefix(self):
        """Returns the prefix for a new checkpoint.

        Raises:
          UserError: this machine has no place for temporary files.
        """
        name = f"task_{uuid.uuid4().hex[:8]}.ckpt"  # Unique, as other runs may use the folder.
        if gfile.is_remote(self._output_dir):
            self._remove_at_exit(_remove_quietly, self._output_dir, name + ".*")
            return posixpath.join(self._output_dir, name)
        if self._folder is None:
            with gfile.convert_write_errors("The folder for temporary files"):
                self._folder = tempfile.mkdtemp()
            self._remove_at_exit(shutil.rmtree, self._folder, ignore_errors=True)
        return posixpath.join(self._folder, name)

    def _remove_at_exit(self, *args, **kwargs):
        self._removals.append(weakref.finalize(self, *args, **kwargs))

    def remove(self):
        """Removes the checkpoints now, for a process that will not exit normally."""
        for remove in self._removals:
            remove()


# How errors name recorded settings that have another name than their flag.
_FLAG_NAMES = {
    "task": "task (--task_name)",
    "kind": "kind of task (--label_type)",
    "labels": "labels (--data_dir)",
    "method": "--tuning",
    "hidden_act": "hidden_act (--bert_config_file)",
    "num_attention_heads": "num_attention_heads (--bert_config_file)",
    "num_train_steps": "number of steps (--num_train_epochs)",
    "num_warmup_steps": "number of warm-up steps (--warmup_proportion)",
    "evaluated_every": "--eval_every_steps",
}
# How errors name recorded settings whose value is a digest, which they do not print.
_DIGEST_NAMES = {
    "vocabulary": "the vocabulary (--vocab_file)",
    "backbone": "the BERT (--init_checkpoint)",
    "data": "the training data (--data_dir, --train_file)",
    "dev_data": "the dev data (--data_dir, --predict_file, --dev_file)",
    "started_from": "the task adapter that it starts from (--adapter)",
}
# Settings whose runs also record the dev data, and how often and how it is scored.
_SELECTIONS = ("keep_best", "early_stopping_patience")
# Settings that exactly the runs with adapters record.
_ADAPTER_SETTINGS = ("adapter_fn", "adapter_size", "adapter_activation", "adapter_init_scale")


def check_fits(actual, expected, where):
    """Checks that a task adapter is compatible with the model of a run.

    Args:
      actual: `task_adapter.Description` of the task adapter.
      expected: that of the run.
      where: beginning of the error message, such as "--adapter output/mrpc/adapter".

    Raises:
      UserError: a compatibility field differs.
    """
    differences = list(_differences(*map(task_adapter.compatibility_fields, (actual, expected))))
    if differences:
        raise UserError(
            f"{where} (task {actual.task}, backbone {actual.backbone.name}) does not fit:"
            f" {'; '.join(describe_by_flags(differences))}."
        )


def describe_by_flags(differences):
    """Returns phrases about how settings differ, named by their flags.

    Settings that only one run has because of another difference are omitted: those of adapters if
    --tuning differs, and all others if --keep_best or --early_stopping_patience does.

    Args:
      differences: list of (name, before, now), as in `OutputDir.claim`.
    """
    other_method = any(name == "method" for name, _, _ in differences)
    selections = {
        name
        for name, before, now in differences
        if name in _SELECTIONS and bool(before) != bool(now)
    }

    def is_consequence(name):
        if other_method and name in _ADAPTER_SETTINGS:
            return True
        return bool(selections) and name not in selections

    return [
        _describe_by_flag(name, before, now)
        for name, before, now in differences
        if not (None in (before, now) and is_consequence(name))
    ]


def _describe_by_flag(name, before, now):
    if name in _DIGEST_NAMES:
        return f"{_DIGEST_NAMES[name]} is not the same"
    if name.startswith("bert_config."):
        flag = f"{name[len('bert_config.') :]} (--bert_config_file)"
    else:
        flag = _FLAG_NAMES.get(name, f"--{name}")
    return f"{flag} was {_show(before)}, is now {_show(now)}"


def check_path(path):
    """Raises UserError if TensorFlow would take an output_dir for a pattern."""
    if set(path) & set("*?[\\"):
        raise UserError(
            f"--output_dir={path}: TensorFlow cannot find checkpoints in a path with *, ?, [ or a"
            " backslash."
        )


class OutputDir:
    """The folder of a run.

    Args:
      path: of the folder, which need not exist.

    Attributes:
      path: as above.
      adapter_folder: path of the run's task adapter.
      description: `task_adapter.Description` of the model that the run trains or uses, without
        steps and scores yet; None before `finetuning.begin`.
      score: name of the dev score, the higher the better, by which the best step is chosen.
    """

    def __init__(self, path):
        self.path = path
        self.adapter_folder = posixpath.join(path, task_adapter.FOLDER)
        self._settings_file = posixpath.join(path, paths.SETTINGS_FILE)
        self.description: Any = None
        self.score = None
        self._lock = None
        self._run_identity = None
        self._scratch = _Scratch(path)
        self._adapter_checkpoint = None

    def create(self):
        """Creates the folder if necessary; raises UserError if it is not writable.

        Removes links in place of the folders in it, so that the run writes nothing elsewhere.
        """
        check_path(self.path)
        with gfile.convert_write_errors(f"--output_dir={self.path}"):
            gfile.makedirs(self.path)
            if not gfile.is_remote(self.path) and not os.access(self.path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            for path in (posixpath.join(self.path, name) for name in _FOLDERS):
                if gfile.is_link(path):
                    logging.warning("Removing %s: it was a link.", path)
                    gfile.remove(path)

    def recorded(self, section):
        """Returns a section of the recorded settings; {} without a valid record."""
        try:
            return (_read(self._settings_file) or {}).get(section, {})
        except UserError:  # `claim` reports it.
            return {}

    def claim(self, settings, is_training, overwrite=False, inputs=()):
        """Checks that the run may use the folder, and records its settings if it trains.

        A finished training may be continued for more steps; see `_is_longer`. A training locks the
        folder as long as this object lives.

        Args:
          settings: {"model": dict, "training": dict, ...} of JSON values.
          is_training: bool; whether the run trains.
          overwrite: bool; whether a training run first removes an earlier run's files.
          inputs: as in `clear`.

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
                _check_inputs(_matching(self.path, _RESULT_FILES), inputs, "The training")
        _recover_record(self.path)
        checkpoint = _latest_checkpoint(self.path, is_training)
        # JSON has no tuples: compares what a later run will read.
        settings = json.loads(json.dumps(settings, sort_keys=True))
        if checkpoint:
            checkpoints.open_checkpoint(checkpoint, flag="--output_dir")
            sections = _WEIGHT_SECTIONS if is_training else ("model",)
            step = checkpoints.step_of(checkpoint)
            _compare(self._settings_file, settings, sections, step)
            _check_identity(checkpoint, self._settings_file, is_training)
        elif is_training and gfile.exists(self.adapter_folder):
            raise UserError(
                f"{self.adapter_folder} is a finished task adapter whose checkpoints are gone, so"
                " its training cannot resume; give another --output_dir, or --overwrite_output_dir."
            )
        elif is_training and not gfile.exists(self._settings_file):
            results = _matching(self.path, _RESULT_FILES)
            if results:
                raise UserError(
                    f"{results[0]} is a result of another run, which the training would remove;"
                    " give another --output_dir, or --overwrite_output_dir."
                )
        elif not is_training and self.has_adapter():
            _compare(self._settings_file, settings, (), 0)
        if is_training:
            _remove_leftovers(self.path, checkpoint)
            self._run_identity = identity(settings)
            json_objects.write_object(self._settings_file, settings)

    def clear(self, inputs=()):
        """Removes an earlier run's files, for --overwrite_output_dir.

        Args:
          inputs: list of (flag, path) of the run's inputs; a checkpoint is given by its prefix.

        Raises:
          UserError: an input would be removed; nothing has been removed.
        """
        run_files = _matching(self.path, _RUN_FILES)
        _check_inputs(run_files, inputs, "--overwrite_output_dir")
        _remove(run_files, "--overwrite_output_dir removes %s")

    def remove_results(self):
        """Removes scores and predictions, before a training changes the weights."""
        _remove(
            _matching(self.path, _RESULT_FILES),
            "Removing %s: it will be outdated, as the training resumes.",
        )

    def check_best(self):
        """Raises UserError if the best adapter so far, of --keep_best, is gone."""
        if self.evaluations().best() > -math.inf and not self.has_adapter():
            raise UserError(
                f"--keep_best: {self.adapter_folder}, the best task adapter of this training, is"
                " gone; restore it, or give another --output_dir, or --overwrite_output_dir."
            )

    def evaluations(self):
        """Returns the `Evaluations` of the training."""
        return evaluations.Evaluations(self.path, self.score)

    def write_results(self, result, metadata):
        """Writes eval_results.txt in BERT's format and eval_results.json with all results.

        Args:
          result: dict from names to numbers, lists and texts.
          metadata: dict, further content of eval_results.json.

        Returns:
          The path of eval_results.txt.
        """
        path = posixpath.join(self.path, "eval_results.txt")
        names = sorted(name for name in result if np.ndim(result[name]) == 0)
        atomic.write_atomically(path, "".join(f"{name} = {result[name]}\n" for name in names))
        json_objects.write_object(
            posixpath.join(self.path, "eval_results.json"), {**metadata, **result}
        )
        return path

    def has_checkpoints(self):
        """Returns whether a training has saved a checkpoint here, even if none can be read."""
        return bool(_matching(self.path, checkpoints.TRAINING_FILES))

    def has_adapter(self):
        """Returns whether the folder has a task adapter, possibly where a kill left it."""
        return gfile.exists(atomic.current_folder(self.adapter_folder))

    def load_adapter(self):
        """Returns the folder's `task_adapter.TaskAdapter`."""
        return task_adapter.load(self.adapter_folder, "--output_dir")

    def describe_adapter(self):
        """Returns the `task_adapter.Description` of the folder's task adapter."""
        return task_adapter.describe(self.adapter_folder, "--output_dir")

    def trained_adapter(self, scores=None):
        """Returns the `task_adapter.TaskAdapter` in the last checkpoint.

        Raises:
          UserError: another run than that of `claim` saved it, or it lacks a tensor that the
            description lists.
        """
        checkpoint = checkpoints.latest(self.path, self._run_identity)
        assert checkpoint is not None
        tensors = checkpoints.trained_tensors(checkpoint, task_adapter.shapes(self.description))
        description = dataclasses.replace(
            self.description,
            global_step=checkpoints.step_of(checkpoint),
            scores=dict(scores or {}),
        )
        return task_adapter.TaskAdapter(description, tensors)

    def save_adapter(self, adapter):
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

    def as_checkpoint(self, adapter):
        """Writes a task adapter as a TensorFlow checkpoint that exists as long as this object.

        Returns:
          The checkpoint's prefix.
        """
        prefix = self._scratch.prefix()
        adapter_checkpoints.to_checkpoint(adapter, prefix)
        return prefix

    def adapter_checkpoint(self):
        """Returns the folder's task adapter as the prefix of a checkpoint; None without one.

        Raises:
          UserError: the adapter does not fit the model.
        """
        if self._adapter_checkpoint is None and self.has_adapter():
            adapter = self.load_adapter()
            where = f"--output_dir {self.path}: its task adapter"
            check_fits(adapter.description, self.description, where)
            self._adapter_checkpoint = self.as_checkpoint(adapter)
        return self._adapter_checkpoint

    def remove_scratch(self):
        """Removes the checkpoints of `as_checkpoint`, for a process that will not exit normally.

        Also ends the lock of `claim`.
        """
        self._scratch.remove()
        if self._lock:
            locks.unlock(self._lock.held)


class _FolderLock:
    """A local folder that is locked until this object or the process ends."""

    def __init__(self, folder):
        descriptor = os.open(folder, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        self.held = os.path.join(folder, locks.HELD)
        with gfile.convert_write_errors(self.held):
            self.is_acquired = locks.lock(descriptor, self.held)
        weakref.finalize(self, locks.unlock, self.held)


_LOCKS = weakref.WeakValueDictionary()  # Real path → lock that this process holds.


def _lock_folder(output_dir):
    """Returns the folder's `_FolderLock`, so that two trainings never mix; None if unreadable."""
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


def _recover_record(output_dir):
    """Restores the file "checkpoint", by which TensorFlow finds checkpoints, if it is lost."""
    record = posixpath.join(output_dir, "checkpoint")
    if gfile.exists(record):
        return
    names = (checkpoints.MODEL_CHECKPOINT, checkpoints.PARTIAL_CHECKPOINT)
    indices = _matching(output_dir, [name + "-*.index" for name in names])
    matches = [re.fullmatch(r"(.+-(\d+))\.index", posixpath.basename(path)) for path in indices]
    if any(matches):
        name = max((match for match in matches if match), key=lambda match: int(match[2]))[1]
        logging.warning("%s was missing; it now names %s.", record, name)
        checkpoints.write_record(output_dir, [name])


def _latest_checkpoint(output_dir, is_training):
    """Returns the last checkpoint's prefix, or None; raises UserError if a recorded one is lost."""
    record = posixpath.join(output_dir, "checkpoint")
    try:
        checkpoint = checkpoints.latest(output_dir)
    except UserError:  # It is a ValueError, too.
        raise
    except ValueError:  # The record is not text, or has no path.
        checkpoint = None
    # TensorFlow would only log this, and retrain from the start over the remaining files.
    if checkpoint is None and gfile.exists(record):
        raise UserError(
            f"{record}: the checkpoint that it names is missing; restore its files, give another"
            f" --output_dir, or {_overwrite_flags(is_training)}."
        )
    return checkpoint


def _remove_leftovers(output_dir, checkpoint):
    """Removes files that a kill or a full disk left incomplete.

    Without a checkpoint, also removes the scores, as all steps will be trained again.
    """
    leftovers = ["*.tempstate*", "checkpoint.tmp*", FULL_CHECKPOINT + ".partial.*"]
    leftovers.append(atomic.PARTIAL_FILES)
    if checkpoint is None:
        leftovers.append(evaluations.FILE)
    for path in _matching(output_dir, leftovers):
        gfile.remove(path)


def _remove(paths, message):
    for path in paths:
        logging.info(message, path)
        gfile.rmtree(path)


def _remove_quietly(folder, pattern):
    with contextlib.suppress(OSError):
        for path in _matching(folder, [pattern]):
            gfile.remove(path)


def _check_inputs(run_files, inputs, cause):
    """Raises UserError if an input of the run is among files that are to be removed.

    Args:
      run_files: list of paths.
      inputs: as in `OutputDir.clear`.
      cause: what removes the files.
    """
    for flag, path in inputs:
        if any(paths.is_removed_with(run_file, path) for run_file in run_files):
            raise UserError(
                f"{cause} would remove {flag}={path} before it is read; give another --output_dir,"
                " or move it out of this one."
            )


def _matching(folder, patterns):
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


def _compare(path, settings, sections, step):
    recorded = _read(path)
    if recorded is None:
        if "training" in sections:
            raise UserError(
                f"{path} is missing, but the folder holds checkpoints, so training cannot resume"
                " from them; give another --output_dir, or --overwrite_output_dir."
            )
        return
    is_training = "training" in sections
    before, now = (record.get("training", {}) for record in (recorded, settings))
    is_longer = is_training and _is_longer(before, now, step)
    differences = [
        setting
        for section in sections
        for setting in _differences(recorded.get(section, {}), settings[section])
        if not (is_longer and section == "training")
    ]
    if not is_training and before:
        differences += [
            setting for setting in _differences(before, now) if setting[0] in _READING_SETTINGS
        ]
    if differences:
        raise UserError(
            "{} belongs to a run with other settings: {}; give those, another --output_dir, or"
            " {}.".format(
                path, "; ".join(describe_by_flags(differences)), _overwrite_flags(is_training)
            )
        )
    if is_longer:
        logging.warning(
            "%s: the finished training of %d steps continues to step %d. Its learning rate had"
            " decayed to 0 and rises again, so the weights will differ from those of a single"
            " training of %d steps. For those of a single training, set another --output_dir.",
            path,
            step,
            now["num_train_steps"],
            now["num_train_steps"],
        )


def identity(settings):
    """Returns a digest of a run's settings, which marks the run's checkpoints.

    Two runs have the same digest if `claim` finds no difference in their settings, or only in the
    number of steps: a continued run resumes from the checkpoints of the shorter training.

    Args:
      settings: as in `claim`.
    """
    leaves = {
        f"{section}.{name}": _normalize_numbers(value)
        for section in _WEIGHT_SECTIONS
        for name, value in _leaves(settings.get(section, {}))
        if value is not None  # `claim` treats it like a missing setting.
        and name not in _LENGTH_SETTINGS
    }
    return hashlib.sha256(json.dumps(leaves, sort_keys=True).encode()).hexdigest()


def _normalize_numbers(value):
    """Returns a JSON value in which equal numbers have the same text: 1 for 1.0 and True."""
    if isinstance(value, (list, tuple)):
        return [_normalize_numbers(item) for item in value]
    is_whole = isinstance(value, bool) or isinstance(value, float) and value.is_integer()
    return int(value) if is_whole else value


def _check_identity(checkpoint, path, is_training):
    """Raises UserError if a checkpoint belongs to another run than the recorded settings."""
    recorded = _read(path)
    if recorded is None:
        return
    saved_identity = checkpoints.identity_of(checkpoint)
    if saved_identity is None:
        logging.info("%s does not record which run saved it.", checkpoint)
    elif saved_identity != identity(recorded):
        raise UserError(
            f"{checkpoint} belongs to another run than {path}; restore this run's files,"
            f" give another --output_dir, or {_overwrite_flags(is_training)}."
        )


def _is_longer(before, now, step):
    """Returns whether the settings only lengthen a finished training.

    Args:
      before, now: dicts, the recorded training settings and the new ones.
      step: int, of the last checkpoint.
    """
    differing = {name for name, _, _ in _differences(before, now)}
    return (
        "num_train_steps" in differing
        and differing <= _LENGTH_SETTINGS
        and step == before.get("num_train_steps")
        and step < now.get("num_train_steps", 0)
    )


def _overwrite_flags(is_training):
    """Returns the flags that overwrite the folder; only a training can."""
    return "--overwrite_output_dir" + ("" if is_training else " with --do_train")


def _read(path):
    if not gfile.exists(path):
        return None
    expected = "the objects model and training"
    recorded = json_objects.read_object(path, expected=expected)
    if not all(isinstance(section, dict) for section in recorded.values()):
        raise UserError(f"{path}: expected {expected}, found other JSON.")
    return recorded


def _differences(before, now):
    """Yields (dotted name, before, now) for every leaf in which two nested dicts differ."""
    before, now = dict(_leaves(before)), dict(_leaves(now))
    for name in sorted(set(before) | set(now)):
        if before.get(name) != now.get(name):
            yield name, before.get(name), now.get(name)


def _leaves(value, name=""):
    """Yields (dotted name, leaf) for all leaves of nested dicts."""
    if not isinstance(value, dict):
        yield name, value
        return
    for key, inner in value.items():
        yield from _leaves(inner, f"{name}.{key}" if name else key)


def _show(value):
    return "not set" if value is None else json.dumps(value)
