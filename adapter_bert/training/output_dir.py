"""What a run leaves in its output_dir, and whose directory it is.

settings.json says which model lies there and how it was trained:

    {"model": {...},      what the graph is built from; compared by every run in the directory
     "training": {...},   what else decides the weights; compared by runs that train
     "pretrained": {...}, the flags that name its BERT; compared by none
     ...}                 what a script compares itself

All files are written atomically.
"""

import contextlib
import dataclasses
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
import tensorflow.compat.v1 as tf
from absl import logging

from adapter_bert.common import files, paths
from adapter_bert.common.errors import UserError
from adapter_bert.formats import adapter_checkpoints, checkpoints, task_adapter
from adapter_bert.training import cluster

EVALUATIONS_FILE = "evaluations.json"


class Evaluations:
    """What was scored at which step.

    Args:
      folder: output_dir.
      score: name of the score, the larger the better, that tells what is best.

    Raises:
      UserError: the file there is damaged.
    """

    def __init__(self, folder, score):
        self._path = posixpath.join(folder, EVALUATIONS_FILE)
        self._score = score
        self._by_step = {}
        if files.exists(self._path):
            self._by_step = self._read()

    def _read(self):
        scores_by_step = files.read_object(self._path)
        try:
            for scores in scores_by_step.values():
                files.require_type(scores[self._score], float)
            return {int(step): scores for step, scores in scores_by_step.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{self._path}: expected scores by step, each with {self._score} ({error})."
            ) from error

    def at(self, step):
        """A step's scores, None if it was not evaluated."""
        return self._by_step.get(step)

    def add(self, step, scores):
        """Records a step's scores (JSON values); the file is written whole or not at all."""
        self._by_step[step] = scores
        files.write_object(self._path, self._by_step)

    def best(self):
        """The best score, -inf before the first."""
        return max((scores[self._score] for scores in self._by_step.values()), default=-math.inf)

    def since_best(self):
        """How many evaluations have come after the first with the best score."""
        best = self.best()
        scores = [self._by_step[step][self._score] for step in sorted(self._by_step)]
        return len(scores) - 1 - scores.index(best) if scores else 0


SETTINGS_FILE = "settings.json"
_WEIGHT_SECTIONS = ("model", "training")  # Its sections that decide the weights.

# What belongs to a run, and goes when it is overwritten; nothing else in the directory is touched.
# A kill may leave the later ones: never scores without what they are of.
_RUN_FILES = (
    EVALUATIONS_FILE,
    "eval_results.txt",
    "eval_results.json",
    *checkpoints.TRAINING_FILES,
    "graph.pbtxt",
    "events.out.tfevents.*",
    "eval",
    SETTINGS_FILE,
    cluster.FOLDER,
    task_adapter.FOLDER,
    "full_model.ckpt.*",
    "task_*.ckpt.*",
    "test_results*.tsv",
    "test_scores*.json",
    "predictions*.tsv",
    "predictions.json",
    "predictions.jsonl",
    "predictions.txt",
    "dev_predictions.json",
    "dev_predictions.jsonl",
    "dev_predictions.txt",
    "nbest_predictions.json",
    "null_odds.json",
    "labels*.tsv",
    "dev_predictions*.tsv",
    "dev_labels*.tsv",
    "submission",
    "ablation.json",
    "ablation.txt",
)

# What is made of a run's weights alone, and is of others once the training goes on; nobody asks for
# its removal, so that no name is wider than need be.
_RESULT_FILES = (
    *("eval_results.txt", "eval_results.json"),
    *("predictions.json", "nbest_predictions.json", "null_odds.json"),
    *("predictions.jsonl", "predictions.txt"),
    *("dev_predictions.json", "dev_predictions.jsonl", "dev_predictions.txt"),
    *("test_results.tsv", "test_scores.json", "predictions.tsv", "dev_predictions.tsv"),
    *("test_results_mismatched.tsv", "test_scores_mismatched.json"),
    *("predictions_mismatched.tsv", "dev_predictions_mismatched.tsv"),
    "submission/*.tsv",
    *("full_model.ckpt.index", "full_model.ckpt.data-00000-of-00001"),
    *("ablation.json", "ablation.txt"),
)

# What --num_train_epochs decides, of the training's settings.
_LENGTH_SETTINGS = {"num_train_steps", "num_warmup_steps"}


class _Scratch:
    """Where a run's checkpoints for its own use lie, as long as this does.

    In a folder of this machine; in output_dir, if that is remote: a TPU's host reads no other.
    """

    def __init__(self, output_dir):
        self._output_dir = output_dir
        self._folder = None
        self._removals = []

    def prefix(self):
        """The prefix of one more checkpoint.

        Raises:
          UserError: this machine has no place for it.
        """
        name = f"task_{uuid.uuid4().hex[:8]}.ckpt"  # Another run may have its own there.
        if files.is_remote(self._output_dir):
            self._remove_at_exit(_remove_quietly, self._output_dir, name + ".*")
            return posixpath.join(self._output_dir, name)
        if self._folder is None:
            with files.convert_write_errors("The folder for temporary files"):
                self._folder = tempfile.mkdtemp()
            self._remove_at_exit(shutil.rmtree, self._folder, ignore_errors=True)
        return posixpath.join(self._folder, name)

    def _remove_at_exit(self, *args, **kwargs):
        self._removals.append(weakref.finalize(self, *args, **kwargs))

    def remove(self):
        """Removes them now, for a process that does not live to its end."""
        for remove in self._removals:
            remove()


def describe_difference(name, before, now):
    """Returns a phrase: how a setting differs from the one that is recorded; None is not set."""
    return f"{name} was {_show(before)}, is now {_show(now)}"


# What errors call a recorded setting whose name is not that of the flag that decides it.
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
# What errors call a recorded setting whose value is a digest, which they do not print.
_DIGEST_NAMES = {
    "vocabulary": "the vocabulary (--vocab_file)",
    "backbone": "the BERT (--init_checkpoint)",
    "data": "the training data (--data_dir, --train_file)",
    "dev_data": "the dev data (--data_dir, --predict_file, --dev_file)",
    "started_from": "the task adapter that it starts from (--adapter)",
}
# The settings that every run with adapters records, and no other run.
_ADAPTER_SETTINGS = ("adapter_fn", "adapter_size", "adapter_activation", "adapter_init_scale")


def describe_by_flags(differences):
    """Returns phrases that say how settings differ, by the flags that decide them.

    Where --tuning differs, and one of the methods has no adapters, their settings are left out.

    Args:
      differences: list of (name, before, now), as of `OutputDir.claim`.
    """
    other_method = any(name == "method" for name, _, _ in differences)
    return [
        _describe_by_flag(name, before, now)
        for name, before, now in differences
        if not (other_method and name in _ADAPTER_SETTINGS and None in (before, now))
    ]


def _describe_by_flag(name, before, now):
    if name in _DIGEST_NAMES:
        return f"{_DIGEST_NAMES[name]} is not the same"
    if name.startswith("bert_config."):
        flag = f"{name[len('bert_config.') :]} (--bert_config_file)"
    else:
        flag = _FLAG_NAMES.get(name, f"--{name}")
    return describe_difference(flag, before, now)


def _describe_by_name(differences):
    return [describe_difference(*setting) for setting in differences]


class OutputDir:
    """The folder of a run: whose it is, and what lies in it.

    Args:
      path: of the folder, which may not be there yet.

    Attributes:
      path: the same.
      adapter_folder: path of the task adapter that the run leaves.
      description: `task_adapter.Description` of the model that the run trains or uses, so far
        without steps and scores; None until `finetuning.begin`.
      score: name of the dev score, the larger the better, by which the best step is chosen.
    """

    def __init__(self, path):
        self.path = path
        self.adapter_folder = posixpath.join(path, task_adapter.FOLDER)
        self._settings_file = posixpath.join(path, SETTINGS_FILE)
        self.description: Any = None
        self.score = None
        self._lock = None
        self._scratch = _Scratch(path)
        self._adapter_checkpoint = None

    def create(self):
        """Makes the folder, if need be; raises UserError if a run cannot write there."""
        if set(self.path) & set("*?[\\"):
            raise UserError(
                f"--output_dir={self.path}: TensorFlow finds no checkpoint where the path holds"
                " *, ?, [ or a backslash."
            )
        probe = posixpath.join(self.path, ".writable")
        with files.convert_write_errors(f"--output_dir={self.path}"):
            files.makedirs(self.path)
            with files.open_file(probe, "w") as writer:
                writer.write("")
            with contextlib.suppress(FileNotFoundError):  # Another process's probe was the same.
                files.remove(probe)

    def recorded(self, section):
        """Returns a section of the settings of the run in the folder; {} without a sound record."""
        try:
            return (_read(self._settings_file) or {}).get(section, {})
        except UserError:  # `claim` refuses it where it counts.
            return {}

    def claim(self, settings, is_training, overwrite=False, inputs=(), describe=_describe_by_name):
        """Makes sure that a run may use the folder, and records its settings there if it trains.

        A finished training may be continued to more steps, see `_is_longer`. A training holds the
        folder as long as this object lives.

        Args:
          settings: {"model": dict, "training": dict, ...} of JSON values.
          is_training: bool; whether the run trains.
          overwrite: bool; whether a training run removes an earlier run's files first.
          inputs: as of `clear`.
          describe: function of a list of (dotted name, before, now), the settings that differ →
            phrases for the error, which by default call a setting by its name.

        Raises:
          UserError: another process trains there; another model lies there, or a run with other
            training settings would resume from its weights (the differences are named), or replace
            its task adapter; the last checkpoint there is lost, broken or another run's; or
            overwriting would remove what the run reads.
        """
        self.create()
        if is_training:
            self._lock = _lock_folder(self.path)
            files.recover(self.adapter_folder)
            if overwrite:
                self.clear(inputs)
        _recover_record(self.path)
        checkpoint = _latest_checkpoint(self.path, is_training)
        # JSON has no tuples: what is compared is what will be read.
        settings = json.loads(json.dumps(settings, sort_keys=True))
        if checkpoint:
            checkpoints.open_checkpoint(checkpoint, flag="--output_dir")
            sections = _WEIGHT_SECTIONS if is_training else ("model",)
            step = checkpoints.step_of(checkpoint)
            _compare(self._settings_file, settings, sections, step, describe)
            _check_identity(checkpoint, self._settings_file, is_training)
        elif is_training and files.exists(self.adapter_folder):
            raise UserError(
                f"{self.adapter_folder} is a finished task adapter, whose checkpoints are gone;"
                " give another --output_dir, or --overwrite_output_dir."
            )
        if is_training:
            _remove_leftovers(self.path, checkpoint)
            files.write_object(self._settings_file, settings)

    def clear(self, inputs=()):
        """Removes an earlier run's files, as --overwrite_output_dir asks for.

        Args:
          inputs: list of (flag, path), what the command reads; its checkpoint by the prefix.

        Raises:
          UserError: it would remove one of them; all is as it was.
        """
        run_files = _matching(self.path, _RUN_FILES)
        for flag, path in inputs:
            if any(paths.is_removed_with(run_file, path) for run_file in run_files):
                raise UserError(
                    f"--overwrite_output_dir would remove {flag}={path} before it is read; give"
                    " another --output_dir, or move it out of this one."
                )
        _remove(run_files, "--overwrite_output_dir removes %s")

    def remove_results(self):
        """Removes scores and predictions, before a training changes the weights they are of."""
        _remove(
            _matching(self.path, _RESULT_FILES),
            "Removing %s: the training resumes to other weights.",
        )

    def evaluations(self):
        """Returns the `Evaluations` during the training."""
        return Evaluations(self.path, self.score)

    def write_results(self, result, metadata):
        """Writes eval_results.txt, BERT's, and eval_results.json, which has all there is.

        Args:
          result: dict from names to numbers, lists and texts.
          metadata: dict, what else the latter tells.

        Returns:
          The path of eval_results.txt.
        """
        path = posixpath.join(self.path, "eval_results.txt")
        names = sorted(name for name in result if np.ndim(result[name]) == 0)
        files.write_atomically(path, "".join(f"{name} = {result[name]}\n" for name in names))
        files.write_object(posixpath.join(self.path, "eval_results.json"), {**metadata, **result})
        return path

    def has_adapter(self):
        """Returns whether a task adapter lies there, perhaps where a kill left it."""
        return files.exists(files.current_folder(self.adapter_folder))

    def load_adapter(self):
        """Returns the `task_adapter.TaskAdapter` that lies there."""
        return task_adapter.load(self.adapter_folder, "--output_dir")

    def describe_adapter(self):
        """Returns the `task_adapter.Description` of the one that lies there."""
        return task_adapter.describe(self.adapter_folder, "--output_dir")

    def trained_adapter(self, scores=None):
        """Returns the `task_adapter.TaskAdapter` in the last checkpoint."""
        step = checkpoints.last_step(self.path)
        tensors = checkpoints.trained_tensors(tf.train.latest_checkpoint(self.path))
        description = dataclasses.replace(
            self.description, global_step=step, scores=dict(scores or {})
        )
        return task_adapter.TaskAdapter(description, tensors)

    def save_adapter(self, adapter):
        """Saves a task adapter, unless it lies there already, perhaps with its scores.

        That one was made by the programs that it names, whatever their versions are now.
        """
        if files.exists(self.adapter_folder):
            saved, description = self.load_adapter(), adapter.description
            saved_description = dataclasses.replace(
                saved.description, scores={}, versions=description.versions
            )
            digest = task_adapter.tensors_digest
            if saved_description == description and digest(saved) == digest(adapter):
                return
        task_adapter.save(self.adapter_folder, adapter)

    def as_checkpoint(self, adapter):
        """Writes a task adapter where TensorFlow can read it, as long as this object lives.

        Returns:
          The checkpoint's prefix.
        """
        prefix = self._scratch.prefix()
        adapter_checkpoints.to_checkpoint(adapter, prefix)
        return prefix

    def adapter_checkpoint(self):
        """Returns the prefix of the task adapter that lies there as a checkpoint; None without one.

        Raises:
          UserError: the adapter does not fit the model.
        """
        if self._adapter_checkpoint is None and self.has_adapter():
            adapter = self.load_adapter()
            where = f"--output_dir {self.path}: its task adapter"
            task_adapter.check_fits(adapter.description, self.description, where, describe_by_flags)
            self._adapter_checkpoint = self.as_checkpoint(adapter)
        return self._adapter_checkpoint

    def remove_scratch(self):
        """Removes what `as_checkpoint` wrote, for a process that does not live to its end."""
        self._scratch.remove()


class _FolderLock:
    """A local folder that is open, and locked, until this is gone or the process is."""

    def __init__(self, folder):
        descriptor = os.open(folder, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        self.is_acquired = files.lock(descriptor)


_LOCKS = weakref.WeakValueDictionary()  # By their real paths, what this process holds.


def _lock_folder(output_dir):
    """The folder's `_FolderLock`; None if it cannot be opened. Two trainings would mix weights."""
    if files.is_remote(output_dir):
        return None
    path = os.path.realpath(output_dir)
    try:
        lock = _LOCKS.get(path) or _FolderLock(path)
    except OSError:
        return None
    if not lock.is_acquired:
        raise UserError(
            f"--output_dir={output_dir}: another process trains there; wait for its end, or give"
            " another --output_dir."
        )
    _LOCKS[path] = lock
    return lock


def _recover_record(output_dir):
    """Has the record of checkpoints name the last one, should it be lost: they are found by it."""
    record = posixpath.join(output_dir, "checkpoint")
    if files.exists(record):
        return
    names = (checkpoints.MODEL_CHECKPOINT, checkpoints.PARTIAL_CHECKPOINT)
    indices = _matching(output_dir, [name + "-*.index" for name in names])
    matches = [re.fullmatch(r"(.+-(\d+))\.index", posixpath.basename(path)) for path in indices]
    if any(matches):
        name = max((match for match in matches if match), key=lambda match: int(match[2]))[1]
        logging.warning("%s was missing; it names %s again.", record, name)
        checkpoints.write_record(output_dir, [name])


def _latest_checkpoint(output_dir, is_training):
    """The prefix of the last checkpoint, or None; UserError if it is recorded, but not there."""
    record = posixpath.join(output_dir, "checkpoint")
    try:
        checkpoint = tf.train.latest_checkpoint(output_dir)
    except ValueError:  # No text, or no path in it.
        checkpoint = None
    # TensorFlow would only log it, and train from the start over what is left.
    if checkpoint is None and files.exists(record):
        raise UserError(
            f"{record}: names no checkpoint that is there; restore the missing files, give another"
            f" --output_dir, or {_overwrite_flags(is_training)}."
        )
    return checkpoint


def _remove_leftovers(output_dir, checkpoint):
    """Removes what a kill or a full disk left half-written; TensorFlow names most of it itself.

    Without a checkpoint, the scores of such go too: the steps are trained again.
    """
    leftovers = ["*.tempstate*", "checkpoint.tmp*", "full_model.ckpt.partial.*"]
    leftovers.append(files.PARTIAL_FILES)
    if checkpoint is None:
        leftovers.append(EVALUATIONS_FILE)
    for path in _matching(output_dir, leftovers):
        files.remove(path)


def _remove(paths, message):
    for path in paths:
        logging.info(message, path)
        if files.isdir(path):
            files.rmtree(path)
        else:
            files.remove(path)


def _remove_quietly(folder, pattern):
    with contextlib.suppress(OSError):
        for path in _matching(folder, [pattern]):
            files.remove(path)


def _matching(folder, patterns):
    matches = []
    for pattern in patterns:
        # TensorFlow 1 raises it where a remote pattern's own folder is not there.
        with contextlib.suppress(FileNotFoundError):
            matches += files.glob(posixpath.join(folder, pattern))
    return matches


def _compare(path, settings, sections, step, describe):
    recorded = _read(path)
    if recorded is None:
        if "training" in sections:
            raise UserError(
                f"{path}: missing, though the folder holds checkpoints, so that training cannot go"
                " on from them; give another --output_dir, or --overwrite_output_dir."
            )
        return
    before, now = (record.get("training", {}) for record in (recorded, settings))
    if "training" in sections and _is_longer(before, now, step):
        logging.warning(
            "%s: the finished training of %d steps continues to step %d. Its learning rate had"
            " fallen to 0 and rises again, so that the weights differ from those of a single"
            " training of %d steps; for that, give another --output_dir.",
            path,
            step,
            now["num_train_steps"],
            now["num_train_steps"],
        )
        sections = ("model",)
    differences = [
        setting
        for section in sections
        for setting in _differences(recorded.get(section, {}), settings[section])
    ]
    if differences:
        raise UserError(
            "{} is of a run with other settings: {}; give those, another --output_dir, or"
            " {}.".format(
                path, "; ".join(describe(differences)), _overwrite_flags("training" in sections)
            )
        )


def identity(settings):
    """Returns what tells a run's checkpoints from another run's: a digest of its settings.

    Two runs have the same one if `claim` finds no difference between their settings, or one only
    trains for longer: a run that is continued goes on from its shorter training's checkpoints.

    Args:
      settings: as of `claim`.
    """
    leaves = {
        f"{section}.{name}": _normalize_numbers(value)
        for section in _WEIGHT_SECTIONS
        for name, value in _leaves(settings.get(section, {}))
        if value is not None
        and name not in _LENGTH_SETTINGS  # What is not set may be missing, too.
    }
    return hashlib.sha256(json.dumps(leaves, sort_keys=True).encode()).hexdigest()


def _normalize_numbers(value):
    """Returns a JSON value in which equal numbers have one text, 1 for 1.0 and True."""
    if isinstance(value, (list, tuple)):
        return [_normalize_numbers(item) for item in value]
    is_whole = isinstance(value, bool) or isinstance(value, float) and value.is_integer()
    return int(value) if is_whole else value


def _check_identity(checkpoint, path, is_training):
    """Raises UserError if a checkpoint is of another run than the settings in the folder are."""
    recorded = _read(path)
    if recorded is None:
        return
    saved_identity = checkpoints.identity_of(checkpoint)
    if saved_identity is None:
        logging.info("%s does not say which run saved it.", checkpoint)
    elif saved_identity != identity(recorded):
        raise UserError(
            f"{checkpoint} is a checkpoint of another run than {path}; restore this run's files,"
            f" give another --output_dir, or {_overwrite_flags(is_training)}."
        )


def _is_longer(before, now, step):
    """Whether settings are those of a finished training but for more steps.

    Args:
      before, now: dicts, the recorded settings of a training and those of this one.
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
    """The flags by which the run would take the directory's place; only a training does."""
    return "--overwrite_output_dir" + ("" if is_training else " with --do_train")


def _read(path):
    if not files.exists(path):
        return None
    expected = "the objects model and training"
    recorded = files.read_object(path, expected=expected)
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
