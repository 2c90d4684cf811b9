"""Which data a trial of a sweep reads: a digest of each split's files.

Where files lie does not count, nor do those of other splits: {"train": "8f2a…", "dev": "07c1…"}.
"""

import functools
import os
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from adapter_bert.common import files, paths
from adapter_bert.common.errors import UserError
from adapter_bert.experiments import grids as sweep_grids
from adapter_bert.formats import task_adapter
from adapter_bert.tasks import custom_tasks, glue

_CUSTOM = custom_tasks.Layout("custom", text_a="", label="")  # Columns do not decide on files.


class Source(NamedTuple):
    """The flags that decide what a trial reads, environment variables filled in; None if not given.

    Attributes:
      splits: "train", "dev", and "test" where the trial predicts.
    """

    script: str
    splits: Tuple[str, ...]
    task_name: Optional[str]
    data_dir: Optional[str]
    train_file: Optional[str]
    predict_file: Optional[str]


def source_of(trial: sweep_grids.Trial) -> Source:
    """Returns the `Source` of a trial.

    Raises:
      UserError: an environment variable is not set.
    """
    flags = dict(trial.flags)
    splits = ("train", "dev", "test") if flags.get("do_predict") else ("train", "dev")
    values = (
        sweep_grids.expanded(name, flags[name]) if name in flags else None
        for name in ("task_name", *sweep_grids.DATA_FLAGS)
    )
    return Source(trial.script, splits, *values)


class Digests:
    """Digests of what trials read; a file is read once, and again only when it has changed."""

    def __init__(self):
        # Once for each task: a long sweep asks after every trial, and finding them is logged.
        self._find_data_dir = functools.lru_cache(maxsize=None)(paths.find_data_dir)
        self._files = {}  # Path → ((length, time of the last change), SHA-256).

    def of(self, source: Source) -> Dict[str, str]:
        """Returns a digest for each split of a `Source`.

        Raises:
          UserError: a flag or a file is missing, or a file cannot be read.
        """
        digests = {}
        for split, (split_paths, shares) in self._reads(source).items():
            if not split_paths:
                raise UserError(f"The {split} split has no file.")
            named = [pair for path in split_paths for pair in _files_in(path)]
            contents = [(name, self._sha256(path)) for name, path in named]
            digests[split] = task_adapter.digest([*contents, *shares])
        return digests

    def _sha256(self, path: str) -> str:
        try:
            stamp = files.size(path), files.modified_ns(path)
        except OSError as error:
            raise UserError(f"{path} cannot be read ({files.reason(error)}).") from error
        if self._files.get(path, (None,))[0] != stamp:
            self._files[path] = stamp, files.sha256(path)
        return self._files[path][1]

    def _reads(self, source: Source) -> Dict[str, Tuple[List[str], List[str]]]:
        """Returns for each split its paths, and the splits with which it shares training rows."""
        if source.script == "run_squad.py":
            given = {"train": source.train_file, "dev": source.predict_file}
            return {split: ([path] if path else [], []) for split, path in given.items()}
        if not source.task_name:
            raise UserError("--task_name is not given.")
        is_custom = source.task_name.lower() == "custom"
        layout = _CUSTOM if is_custom else custom_tasks.layout_of(source.task_name)
        if layout is None:
            processor = glue.get_processor(source.task_name)
            folder = processor.task.folder or processor.task.name
            data_dir = self._find_data_dir(source.data_dir, folder)
            return {split: (processor.files_of(split, data_dir), []) for split in source.splits}
        data_dir = self._find_data_dir(source.data_dir, layout.name)
        all_splits = ("train", "dev", "test")
        own = {split: custom_tasks.files_of(layout, split, data_dir) for split in all_splits}
        shares = [split for split in all_splits if not own[split]]
        return {
            split: (own[split] or own["train"], shares if split in ("train", *shares) else [])
            for split in source.splits
        }


def _files_in(path: str) -> Iterator[Tuple[str, str]]:
    """Yields name and path of a file, or of each file below a folder."""
    if not files.isdir(path):
        yield os.path.basename(path), path
        return
    try:
        walked = list(files.walk(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({files.reason(error)}).") from error
    below = [os.path.join(folder, name) for folder, _, names in walked for name in names]
    for file in sorted(below):
        yield os.path.relpath(file, path), file
