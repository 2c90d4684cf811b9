"""Default locations of data and BERT: BERT's environment variables, then the demo's files."""

import os
from typing import Iterable, Optional

from absl import logging

from adapter_bert import IS_INSTALLED, PACKAGE
from adapter_bert.files import gfile
from adapter_bert.shell.errors import UserError

# The folder with the scripts.
PROJECT = PACKAGE if IS_INSTALLED else os.path.dirname(PACKAGE)

SETTINGS_FILE = "settings.json"  # In a run's folder; it names the run's BERT.

# Flag → file in the folder $BERT_BASE_DIR, named as in Google's archives.
BERT_FILES = {
    "bert_config_file": "bert_config.json",
    "vocab_file": "vocab.txt",
    "init_checkpoint": "bert_model.ckpt",
}


def cache_folder(name: str) -> str:
    """Returns the path of one of this project's folders in the user's cache folder.

    Without a home folder, as in containers of an unknown user, it is in the project's folder.
    """
    home = os.path.expanduser("~")  # "~" if there is none.
    default = os.path.join(home if os.path.isabs(home) else PROJECT, ".cache")
    cache = os.environ.get("XDG_CACHE_HOME", "")  # By its specification, an absolute path counts.
    return os.path.join(cache if os.path.isabs(cache) else default, "adapter-bert", name)


DEMO_DATA = os.path.join(PROJECT, "demo")
DEMO_BERT = cache_folder("demo_bert") if IS_INSTALLED else os.path.join(DEMO_DATA, "bert")


def find_data_dir(data_dir: Optional[str], task: str) -> str:
    """Returns the folder with a task's files: the flag, else $GLUE_DIR/<task>, else the demo's.

    Args:
      data_dir: value of --data_dir or None.
      task: the folder's name in GLUE, such as "MRPC".

    Raises:
      UserError: the named folder does not exist, or no folder is known.
    """
    if data_dir:
        return existing_folder(data_dir, "--data_dir")
    glue_dir = os.environ.get("GLUE_DIR")
    if glue_dir:
        folder = existing_folder(os.path.join(glue_dir, task), "$GLUE_DIR/" + task)
        logging.info("Data: %s (from $GLUE_DIR)", folder)
        return folder
    folder = os.path.join(DEMO_DATA, task)
    if gfile.isdir(folder):
        logging.info("Data: %s (the demo's, as neither --data_dir nor $GLUE_DIR is set)", folder)
        return folder
    raise UserError(
        f"No data for {task}: give --data_dir, or set GLUE_DIR to the parent folder of {task}."
    )


def is_same_path(path: str, other: str) -> bool:
    """Returns whether two paths refer to the same file or folder."""
    return os.path.realpath(path) == os.path.realpath(other)


def is_inside(path: str, folder: str) -> bool:
    """Returns whether a path leads to a folder or below it, also where it has symbolic links."""
    real_folder = os.path.realpath(folder)
    return os.path.commonpath([real_folder, os.path.realpath(path)]) == real_folder


def check_inside(folder: str, file_paths: Iterable[str], where: str) -> None:
    """Raises UserError if a symbolic link leads a path out of the folder."""
    for path in file_paths:
        if not is_inside(path, folder):
            raise UserError(
                f"{where} {path} leads out of the folder, to {os.path.realpath(path)}; copy the"
                " file."
            )


def is_removed_with(path: str, other: str) -> bool:
    """Returns whether removing `path` would also remove the file, folder or checkpoint `other`.

    Args:
      path: of the file or folder to remove.
      other: path, or prefix of a checkpoint.
    """
    path, other = os.path.realpath(path), os.path.realpath(other)
    return (other + "/").startswith(path + "/") or os.path.splitext(path)[0] == other


def find_bert(flag: str, value: Optional[str], setting: str = "") -> str:
    """Returns the path of a pretrained file: the flag, else in $BERT_BASE_DIR, else the demo's.

    Args:
      flag: a key of `BERT_FILES`.
      value: the flag's value or None.
      setting: how an error names the flag; by default as in a command.

    Raises:
      UserError: no such file is known.
    """
    if value:
        return value
    name = BERT_FILES[flag]
    base = os.environ.get("BERT_BASE_DIR")
    if base:
        path = os.path.join(existing_folder(base, "$BERT_BASE_DIR"), name)
        logging.info("--%s: %s (from $BERT_BASE_DIR)", flag, path)
        return path
    path = os.path.join(DEMO_BERT, name)
    if gfile.glob(name + "*", DEMO_BERT):
        logging.info("--%s: %s (the demo's)", flag, path)
        return path
    demo = "adapter-bert demo" if IS_INSTALLED else "make demo"
    raise UserError(
        f"No pretrained BERT: give {setting or '--' + flag}, or set BERT_BASE_DIR to a folder with"
        f" {', '.join(BERT_FILES.values())}, or run `{demo}`."
    )


def existing_folder(path: str, source: str) -> str:
    """Returns the path of a folder; raises UserError, prefixed by `source`, if it is missing."""
    if not gfile.isdir(path):
        if gfile.exists(path):
            raise UserError(f"{source}: {path} is a file; expected the folder that it is in.")
        raise UserError(f"{source}: there is no folder {path}.")
    return path


def check_output_dir(path: str) -> None:
    """Raises UserError if TensorFlow would take an output_dir for a pattern."""
    if set(path) & set("*?[\\"):
        raise UserError(
            f"--output_dir={path}: TensorFlow cannot find checkpoints in a path with *, ?, [ or a"
            " backslash."
        )
