"""Finds folders of task adapters, and names the tasks: "mrpc" for output/mrpc/adapter."""

import glob
import posixpath
import re
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

from adapter_bert.files import atomic, gfile, json_objects, paths
from adapter_bert.formats import hub, task_adapter
from adapter_bert.formats.bert import count_text
from adapter_bert.shell import printing
from adapter_bert.shell.errors import UserError

# Of --adapters, whose values `match_patterns` reads.
FLAG_HELP = (
    "Folders of task adapters, or patterns such as output/*/adapter. A task has the name of the"
    " run's folder: mrpc for output/mrpc/adapter; or of its repository: name for hf://owner/name."
)
TASK_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,99}"  # A regular expression.


class Snapshot(NamedTuple):
    """A task adapter's folder at one time; another adapter in the folder makes it differ.

    Attributes:
      folder: path.
      files: the `gfile.stamp` of each of its files, None if it is missing.
    """

    folder: str
    files: Tuple[Optional[Tuple[int, ...]], ...]


def matches(path: str) -> bool:
    """Returns whether a path is a task adapter, or the output_dir of a run that has one."""
    return any(_is_task_adapter(folder) for folder in (path, _of_run(path)))


def _is_task_adapter(folder: str) -> bool:
    """Returns whether a folder has this format's config; other formats use the same file name."""
    folder = atomic.current_folder(folder)
    config = posixpath.join(folder, task_adapter.CONFIG_FILE)
    if not gfile.exists(config):
        return False
    try:
        record = json_objects.read_object(config)
    except UserError:  # Damaged: with tensors of this format, `load` then reports the error.
        return gfile.exists(posixpath.join(folder, task_adapter.TENSORS_FILE))
    return record.get("format") == task_adapter.FORMAT


def _of_run(path: str) -> str:
    return posixpath.join(path, task_adapter.FOLDER)


def describe(path: str, argument: str) -> List[str]:
    """Returns lines that describe a task adapter for people.

    Args:
      path: folder of the task adapter, or output_dir of its run.
      argument: what errors call the path, such as "PATH".

    Raises:
      UserError: the task adapter is damaged.
    """
    folder = path if _is_task_adapter(path) else _of_run(path)
    loaded = task_adapter.load(folder, argument)
    description, adapter = loaded.description, loaded.description.adapter
    adapters = f"adapters of size {adapter.size}, " if adapter else ""
    if adapter and adapter.variant():
        variant = ", ".join(f"{name} {value}" for name, value in adapter.variant().items())
        adapters = f"adapters of size {adapter.size} ({variant}), "
    parameters = task_adapter.parameters(loaded.tensors)
    size = gfile.readable_size(atomic.current_folder(folder) + "/")
    lines = [
        f"Task adapter: {description.task}, {description.kind}, trained with {adapters}"
        f"--tuning={description.tuning.method}, {description.global_step} steps",
        f"Labels: {', '.join(description.labels) or 'none'}",
        f"Holds: {count_text(parameters)}, {size}",
        f"Backbone: {description.backbone.name}, fingerprint {description.backbone.fingerprint}",
    ]
    scores = [f"{n} {printing.score(value)}" for n, value in sorted(description.scores.items())]
    return lines + ([f"Dev scores: {', '.join(scores)}"] if scores else [])


def is_task_name(text: str) -> bool:
    """Returns whether a text is a valid task name: up to 100 letters, digits, ".", "_" and "-".

    Names that `atomic.atomic_folder` gives to temporary folders are not valid.
    """
    is_match = re.fullmatch(TASK_NAME, text) is not None
    return is_match and atomic.final_folder(text) == text


def check_task_name(text: str) -> None:
    """Raises UserError unless `is_task_name`."""
    if not is_task_name(text):
        raise UserError(
            f"{text[:100]!r} is not a valid task name; expected at most 100 letters, digits, '.',"
            " '_' and '-', with a letter or digit first and no .partial or .replaced at the end."
        )


def match_patterns(patterns: Iterable[str], *, skips: bool = False) -> Dict[str, str]:
    """Returns a dict from task names to the folders that the patterns of --adapters match.

    Addresses on the Hub are downloaded.

    Args:
      patterns: the flag's values.
      skips: bool; whether to skip patterns without a match and matches without a task adapter.

    Raises:
      UserError: an address cannot be downloaded; a pattern matches nothing; a match is not a task
        adapter or cannot be read; or two tasks have the same name.
    """
    adapters = {}
    for pattern in patterns:
        folders = _expand(hub.local_folder(pattern, "--adapters"))
        if not folders and not skips:
            raise UserError(f"--adapters={pattern}: no such folder.")
        for path in map(atomic.final_folder, folders):
            folder = resolve(path)
            if folder is None and skips:
                continue
            if folder is None:
                raise UserError(
                    f"--adapters={pattern}: {path} is not a task adapter; expected a folder with"
                    " adapter_config.json, such as output_dir/adapter of a training."
                )
            name = hub.name_of(pattern) or task_name(folder)
            if adapters.setdefault(name, folder) != folder:
                raise UserError(
                    f"--adapters: {adapters[name]} and {folder} are both named {name!r};"
                    " rename one."
                )
    return adapters


def task_names(root: str) -> List[str]:
    """Returns the sorted names of the subfolders and files of --adapter_dir.

    Raises:
      UserError: `root` is not a folder, or cannot be read.
    """
    if not gfile.isdir(root):
        raise UserError(f"--adapter_dir={root} is not a folder.")
    return sorted(set(map(atomic.final_folder, _list_names(root, "--adapter_dir="))))


def candidates(folder: str) -> List[str]:
    """Returns the folders of task adapters in a task's folder, in order of preference.

    These are `<folder>/<number>` of uploads, the highest number first; `<folder>`; and
    `<folder>/adapter` of a run.

    Raises:
      UserError: the folder cannot be read.
    """
    numbers = sorted(version_numbers(folder), reverse=True)
    folders = [posixpath.join(folder, str(number)) for number in numbers]
    folders += [folder, posixpath.join(folder, task_adapter.FOLDER)]
    return [
        path
        for path in folders
        if gfile.exists(posixpath.join(atomic.current_folder(path), task_adapter.CONFIG_FILE))
    ]


def snapshot(folder: str) -> Optional[Snapshot]:
    """Returns the `Snapshot` of a task adapter's folder; None if it has no config.

    Raises:
      UserError: it cannot be read.
    """
    current = atomic.current_folder(folder)
    with gfile.convert_read_errors(folder):
        files = tuple(gfile.stamp(posixpath.join(current, name)) for name in task_adapter.FILES)
    return Snapshot(folder, files) if files[0] else None


def resolve(folder: str) -> Optional[str]:
    """Returns the first of a folder's `candidates`, or None."""
    return next(iter(candidates(folder)), None)


def check_below(root: str, folder: str) -> None:
    """Raises UserError if links lead a task adapter's folder or files out of `root`."""
    if gfile.is_remote(root):
        return
    current = atomic.current_folder(folder)
    for path in (current, *(posixpath.join(current, name) for name in task_adapter.FILES)):
        if not paths.is_inside(path, root):
            raise UserError(f"{folder[:300]} leads out of --adapter_dir.")


def task_name(folder: str) -> str:
    """Returns the task name for an adapter's folder: "mrpc" for output/mrpc/adapter."""
    components = [component for component in folder.split("/") if component not in ("", ".")]
    if len(components) > 1 and (components[-1] == task_adapter.FOLDER or components[-1].isdigit()):
        components.pop()
    return components[-1] if components else ""


def version_numbers(folder: str) -> List[int]:
    """Returns the names of subfolders that are numbers, as ints.

    Raises:
      UserError: the folder cannot be read.
    """
    if not gfile.isdir(folder):
        return []
    names = _list_names(folder)
    return [int(name) for name in names if is_version(name)]


def is_version(name: str) -> bool:
    """Returns whether a folder's name is a version: a number of up to 18 digits."""
    return re.fullmatch("[1-9][0-9]{0,17}", name) is not None


def _expand(pattern: str) -> List[str]:
    """Returns the sorted paths that match; an existing folder matches itself, whatever its name."""
    if not gfile.is_remote(pattern):
        is_folder = gfile.isdir(atomic.current_folder(pattern))
        return [pattern] if is_folder else sorted(glob.glob(pattern))
    if not glob.has_magic(pattern):
        return [pattern]
    with gfile.convert_read_errors("--adapters=" + pattern):
        return sorted(gfile.glob(pattern))


def _list_names(folder: str, flag: str = "") -> List[str]:
    """Returns the names in a folder; raises UserError, which begins with `flag`."""
    with gfile.convert_read_errors(flag + folder):
        return [name.rstrip("/") for name in gfile.listdir(folder)]
