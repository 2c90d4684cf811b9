"""Folders of task adapters, and what the tasks are called: "mrpc" for output/mrpc/adapter."""

import contextlib
import glob
import os
import posixpath
import re
from typing import Dict, Iterable, Iterator, List, Optional

from absl import logging

from adapter_bert.common import files
from adapter_bert.common.errors import UserError
from adapter_bert.formats import task_adapter


def is_task_name(text: str) -> bool:
    """Whether a task can be called so: letters, digits, ".", "_" and "-", at most 100 of them.

    A folder of that name must not be taken for what a killed `files.atomic_folder` left.
    """
    is_match = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", text) is not None
    return is_match and files.final_folder(text) == text


def check_task_name(text: str) -> None:
    """Raises UserError unless `is_task_name`."""
    if not is_task_name(text):
        raise UserError(
            f"{text[:100]!r} is no name of a task; expected letters, digits, '.', '_' and '-', a"
            " letter or digit first, at most 100 of them, and no .partial or .replaced at the end."
        )


def match_patterns(patterns: Iterable[str]) -> Dict[str, str]:
    """The task adapters that --adapters names: dict from tasks' names to folders.

    Raises:
      UserError: a pattern fits nothing, what it fits is no task adapter or cannot be read, or two
        have one name.
    """
    adapters = {}
    for pattern in patterns:
        folders = _expand(pattern)
        if not folders:
            raise UserError(f"--adapters={pattern}: there is no such folder.")
        for path in map(files.final_folder, folders):
            folder = resolve(path)
            if folder is None:
                raise UserError(
                    f"--adapters={pattern}: {path} is no task adapter, a folder with"
                    " adapter_config.json, as a training leaves it in output_dir/adapter."
                )
            name = task_name(folder)
            if adapters.setdefault(name, folder) != folder:
                raise UserError(
                    f"--adapters: {adapters[name]} and {folder} are both called {name!r};"
                    " rename one."
                )
    return adapters


def find_all(root: str) -> Dict[str, List[str]]:
    """The task adapters in a folder of folders: dict from names to their `candidates`.

    The log tells of those that cannot be read, and of those whose folder's name is none of a task.

    Raises:
      UserError: it is no folder, or cannot be read.
    """
    if not files.isdir(root):
        raise UserError(f"--adapter_dir={root} is no folder.")
    adapters = {}
    for name in sorted(set(map(files.final_folder, _list_names(root, "--adapter_dir=")))):
        try:
            folders = candidates(posixpath.join(root, name))
            if folders:
                check_task_name(name)
                adapters[name] = folders
        except UserError as error:
            logging.warning("Not served: %s: %s", name, error)
    return adapters


def candidates(folder: str) -> List[str]:
    """The folders of task adapters that a name stands for, the one to take first.

    They are `<folder>/<number>`, as uploads are kept, the highest first; `<folder>`; and
    `<folder>/adapter`, as a run leaves it.

    Raises:
      UserError: the folder cannot be read.
    """
    numbers = sorted(version_numbers(folder), reverse=True)
    paths = [posixpath.join(folder, str(number)) for number in numbers]
    paths += [folder, posixpath.join(folder, task_adapter.FOLDER)]
    return [
        path
        for path in paths
        if files.exists(posixpath.join(files.current_folder(path), task_adapter.CONFIG_FILE))
    ]


def resolve(folder: str) -> Optional[str]:
    """The first of a folder's `candidates`, or None; raises UserError as that does."""
    return next(iter(candidates(folder)), None)


def check_below(root: str, folder: str) -> None:
    """Makes sure that links lead neither a folder nor a task adapter's files in it out of another.

    Raises:
      UserError: one does.
    """
    if files.is_remote(root):
        return
    current = files.current_folder(folder)
    for path in (current, *(posixpath.join(current, name) for name in task_adapter.FILES)):
        real_root, real_path = os.path.realpath(root), os.path.realpath(path)
        if os.path.commonpath([real_root, real_path]) != real_root:
            raise UserError(f"{path[:300]} leads out of --adapter_dir.")


def task_name(folder: str) -> str:
    """What a task is called after its adapter's folder: "mrpc" for output/mrpc/adapter."""
    components = [component for component in folder.split("/") if component not in ("", ".")]
    if len(components) > 1 and (components[-1] == task_adapter.FOLDER or components[-1].isdigit()):
        components.pop()
    return components[-1] if components else ""


def version_numbers(folder: str) -> List[int]:
    """The numbers that folders in a folder are called by, a list.

    Raises:
      UserError: the folder cannot be read.
    """
    if not files.isdir(folder):
        return []
    names = _list_names(folder)
    return [int(name) for name in names if re.fullmatch("[1-9][0-9]{0,8}", name)]


def _expand(pattern: str) -> List[str]:
    """The paths that a pattern fits, sorted; one without wildcards elsewhere is such a path."""
    if not files.is_remote(pattern):
        return sorted(glob.glob(pattern))
    if not glob.has_magic(pattern):
        return [pattern]
    with _convert_read_errors("--adapters=" + pattern):
        return sorted(files.glob(pattern))


def _list_names(folder: str, flag: str = "") -> List[str]:
    """What lies in a folder; raises UserError, which `flag` begins, if it cannot be read."""
    with _convert_read_errors(flag + folder):
        return [name.rstrip("/") for name in files.listdir(folder)]


@contextlib.contextmanager
def _convert_read_errors(where: str) -> Iterator[None]:
    """An error of the file system is a UserError, which `where` begins."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{where} cannot be read ({files.reason(error)}).") from error
