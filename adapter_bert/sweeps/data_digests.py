"""Identifies a trial's data by a digest of each split's files.

Digests do not depend on paths: {"train": "8f2a…", "dev": "07c1…"}.
"""

import functools
import os
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from adapter_bert.files import gfile, paths
from adapter_bert.formats import task_adapter
from adapter_bert.shell.errors import UserError
from adapter_bert.sweeps import grids
from adapter_bert.tasks.splits import STRATIFIED, SplitConfig
from adapter_bert.tasks.text import custom_tasks, glue, text_kind

_CUSTOM = custom_tasks.Layout("custom", text_a="", label="")  # Files do not depend on columns.


class DataSource(NamedTuple):
    """The flags that name a trial's data, with environment variables expanded; None if not given.

    Attributes:
      splits: "train", "dev", and "test" if the trial predicts.
    """

    script: str
    splits: Tuple[str, ...]
    task_name: Optional[str]
    data_dir: Optional[str]
    train_file: Optional[str]
    predict_file: Optional[str]
    dev_file: Optional[str]
    test_file: Optional[str]
    split: Optional[str]
    dev_share: Optional[str]
    test_share: Optional[str]

    def split_config(self) -> SplitConfig:
        """Returns the settings of the rows that are set apart."""
        dev, test = (
            None if share is None else float(share) for share in (self.dev_share, self.test_share)
        )
        return SplitConfig(self.split, dev, test)


def data_source_of(trial: grids.Trial) -> DataSource:
    """Returns the `DataSource` of a trial.

    Raises:
      UserError: an environment variable is not set.
    """
    flags = dict(trial.flags)
    splits = ("train", "dev", "test") if flags.get("do_predict") else ("train", "dev")
    values = (
        grids.expand_variables(name, flags[name]) if name in flags else None
        for name in ("task_name", *grids.DATA_FLAGS, *grids.SPLIT_FLAGS)
    )
    return DataSource(trial.script, splits, *values)


class DataDigests:
    """Computes digests of trials' data; reads a file again only if it has changed."""

    def __init__(self) -> None:
        # Cached, because it is called after every trial and logs the folder.
        self._find_data_dir = functools.lru_cache(maxsize=None)(paths.find_data_dir)
        self._files = {}  # From a path to ((length, modification time), SHA-256).

    def compute(self, source: DataSource) -> Dict[str, str]:
        """Returns a digest for each split of a `DataSource`.

        Raises:
          UserError: a flag or a file is missing, or a file cannot be read.
        """
        digests = {}
        for split, (split_paths, shared_splits) in self._paths_by_split(source).items():
            if not split_paths:
                raise UserError(f"The {split} split has no file.")
            named_paths = [pair for path in split_paths for pair in _iter_files(path)]
            contents = [(name, self._sha256(path)) for name, path in named_paths]
            digests[split] = task_adapter.digest([*contents, *shared_splits])
        return digests

    def _sha256(self, path: str) -> str:
        with gfile.convert_read_errors(path):
            stamp = gfile.size(path), gfile.modified_ns(path)
        if self._files.get(path, (None,))[0] != stamp:
            self._files[path] = stamp, gfile.sha256(path)
        return self._files[path][1]

    def _paths_by_split(self, source: DataSource) -> Dict[str, Tuple[List[str], List[str]]]:
        """Returns for each split its paths, and how it shares training rows with which splits."""
        kind = grids.scripts()[source.script]
        if not isinstance(kind, text_kind.TextKind):
            files = kind.data_paths(source._asdict())
            apart = ["dev"] if source.test_share is None else ["dev", "test"]
            missing = [split for split in apart if kind.sets_rows_apart and not files[split]]
            return _share_rows(source, files, missing)
        task, folder = custom_tasks.look_up(source.task_name, _CUSTOM)
        data_dir = ""
        if custom_tasks.needs_folder(source):
            data_dir = self._find_data_dir(source.data_dir, folder)
        find_files = functools.partial(
            custom_tasks.files_of, task, data_dir=data_dir, config=source
        )
        if isinstance(task, glue.TaskProcessor):
            return {split: (find_files(split), []) for split in source.splits}
        files = {split: find_files(split) for split in custom_tasks.SPLITS}
        missing = [split for split in files if not files[split]]
        return _share_rows(source, files, missing, task.default_split)


def _share_rows(
    source: DataSource, files: Dict[str, List[str]], missing: List[str], default: str = STRATIFIED
) -> Dict[str, Tuple[List[str], List[str]]]:
    """Returns the result of `DataDigests._paths_by_split`.

    Args:
      source: `DataSource`.
      files: the paths of each split's files.
      missing: the splits that are set apart from the training rows.
      default: of --split.
    """
    held_out = [split for split in missing if split != "train"]
    settings = source.split_config().split_settings(held_out, default)
    shared = [*missing, *(f"{name}={value}" for name, value in settings.items())]
    return {
        split: (
            files["train"] if split in held_out else files[split],
            shared if split in ("train", *missing) else [],
        )
        for split in source.splits
        if split in files
    }


def _iter_files(path: str) -> Iterator[Tuple[str, str]]:
    """Yields the name and path of a file, or of each file below a folder."""
    if not gfile.isdir(path):
        yield os.path.basename(path), path
        return
    with gfile.convert_read_errors(path):
        entries = list(gfile.walk(path))
    file_paths = [os.path.join(folder, name) for folder, _, names in entries for name in names]
    for file in sorted(file_paths):
        yield os.path.relpath(file, path), file
