"""What a run leaves in its output_dir, and whose directory it is.

settings.json says which model lies there and how it was trained:

    {"model": {...},      what the graph is built from; compared by every run in the directory
     "training": {...}}   what else decides the weights; compared by runs that train

All files are written whole or not at all.
"""

import json
import posixpath

import tensorflow.compat.v1 as tf
from absl import logging

import checkpoints
from errors import UserError

SETTINGS_FILE = "settings.json"

# What belongs to a run, and goes when it is overwritten; nothing else in the directory is touched.
_RUN_FILES = (
    "checkpoint",
    "model.ckpt-*",
    "graph.pbtxt",
    "events.out.tfevents.*",
    "eval",
    SETTINGS_FILE,
    "eval_results.txt",
    "test_results.tsv",
)


def write_atomically(path, text):
    """Writes a text file: a reader, or a kill, sees the old content or the new, nothing between."""
    temporary = path + ".tmp"
    with tf.io.gfile.GFile(temporary, "w") as writer:
        writer.write(text)
    tf.io.gfile.rename(temporary, path, overwrite=True)


def claim(output_dir, settings, trains, overwrite=False):
    """Makes sure that a run may use the directory, and records its settings there if it trains.

    Args:
      output_dir: path; made if need be.
      settings: {"model": dict, "training": dict} of JSON values.
      trains: bool; whether the run trains.
      overwrite: bool; whether a training run removes an earlier run's files first.

    Raises:
      UserError: another model lies there, or a run with other training settings would go on with
        its weights (the differences are named), or the last checkpoint there is lost or broken.
    """
    path = posixpath.join(output_dir, SETTINGS_FILE)
    _make(output_dir)
    if trains and overwrite:
        _clear(output_dir)
    checkpoint = _latest_checkpoint(output_dir)
    # JSON has no tuples: what is compared is what will be read.
    settings = json.loads(json.dumps(settings, sort_keys=True))
    if checkpoint:
        checkpoints.open_checkpoint(checkpoint, flag="--output_dir")
        _compare(path, settings, ("model", "training") if trains else ("model",))
    if trains:
        write_atomically(path, json.dumps(settings, indent=2, sort_keys=True) + "\n")


def _latest_checkpoint(output_dir):
    """The prefix of the last checkpoint, or None; UserError if it is recorded, but not there."""
    record = posixpath.join(output_dir, "checkpoint")
    try:
        checkpoint = tf.train.latest_checkpoint(output_dir)
    except UnicodeDecodeError:
        checkpoint = None
    # TensorFlow would only log it, and train from the start over what is left.
    if checkpoint is None and tf.io.gfile.exists(record):
        raise UserError(
            f"{record}: names no checkpoint that is there; restore the missing files, give another"
            " --output_dir, or --overwrite_output_dir with --do_train."
        )
    return checkpoint


def _make(output_dir):
    try:
        tf.io.gfile.makedirs(output_dir)
        probe = posixpath.join(output_dir, ".writable")
        write_atomically(probe, "")
        tf.io.gfile.remove(probe)
    except tf.errors.OpError as error:
        raise UserError(
            f"--output_dir={output_dir}: cannot be written to ({error.message})."
        ) from error


def _clear(output_dir):
    for pattern in _RUN_FILES:
        for path in tf.io.gfile.glob(posixpath.join(output_dir, pattern)):
            logging.info("--overwrite_output_dir removes %s", path)
            if tf.io.gfile.isdir(path):
                tf.io.gfile.rmtree(path)
            else:
                tf.io.gfile.remove(path)


def _compare(path, settings, sections):
    recorded = _read(path)
    if recorded is None:
        if "training" in sections:
            raise UserError(
                f"{path}: missing, though the folder holds checkpoints, so that training cannot go"
                " on from them; give another --output_dir, or --overwrite_output_dir."
            )
        return
    differences = [
        f"{name} was {_show(before)}, is now {_show(now)}"
        for section in sections
        for name, before, now in _differences(recorded.get(section, {}), settings[section])
    ]
    if differences:
        raise UserError(
            "{} is of a run with other settings: {}; give those, another --output_dir, or"
            " --overwrite_output_dir with --do_train.".format(path, "; ".join(differences))
        )


def _read(path):
    if not tf.io.gfile.exists(path):
        return None
    try:
        with tf.io.gfile.GFile(path, "r") as reader:
            recorded = json.loads(reader.read())
    except (ValueError, tf.errors.OpError) as error:
        raise UserError(f"{path}: cannot be read ({error}).") from error
    if not isinstance(recorded, dict) or not all(isinstance(s, dict) for s in recorded.values()):
        raise UserError(f"{path}: expected the objects model and training, found other JSON.")
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
