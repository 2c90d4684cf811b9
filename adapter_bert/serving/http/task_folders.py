"""Finds the folders of adapters that a server may serve, and saves uploads there.

A label is a task's name, or "<name>/<number>" for one of its numbered folders.
"""

import contextlib
import os
import posixpath
import shutil
from typing import BinaryIO, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from absl import logging

from adapter_bert.files import atomic, gfile
from adapter_bert.formats import adapter_folders, hub, task_adapter
from adapter_bert.shell.errors import UserError

Snapshots = Tuple[adapter_folders.Snapshot, ...]


class TaskFolders:
    """The folders of a server's tasks. Every method may be called from any thread.

    Args:
      root: folder of the adapters that requests may name, and of uploads; or None.
      patterns: of the folders of further tasks, see `adapter_folders.match_patterns`.
      keep_versions: number of uploads of a task that stay on disk.
    """

    def __init__(
        self, root: Optional[str] = None, patterns: Sequence[str] = (), keep_versions: int = 2
    ):
        self._root, self._patterns, self._keep_versions = root, patterns, keep_versions
        # From a name to the folder that the patterns match, and that was downloaded.
        self._matched: Dict[str, str] = {}
        self._downloaded: Dict[str, str] = {}

    def match(self) -> Dict[str, str]:
        """Returns a dict from task names to the patterns' folders; downloads those of the Hub.

        Raises UserError if a pattern matches nothing, or an invalid adapter or task name.
        """
        self._matched = adapter_folders.match_patterns(self._patterns)
        for name in self._matched:
            adapter_folders.check_task_name(name)
        self._patterns = [each for each in self._patterns if not hub.is_address(each)]
        local = adapter_folders.match_patterns(self._patterns)
        self._downloaded = {n: f for n, f in self._matched.items() if n not in local}
        return self._matched

    def names(self) -> List[str]:
        """Returns the names that the patterns match now, and those of all that is in the root.

        Raises UserError if a folder cannot be read, or two tasks have the same name.
        """
        local = adapter_folders.match_patterns(self._patterns, skips=True)
        self._matched = {**self._downloaded, **local}
        below = [] if self._root is None else adapter_folders.task_names(self._root)
        return list(dict.fromkeys([*self._matched, *below]))

    def snapshots(self, label: str) -> Snapshots:
        """Returns the folders from which a label may be served now, the first one first.

        Raises UserError if a folder cannot be read, or its name is no task's.
        """
        snapshots = tuple(filter(None, map(adapter_folders.snapshot, self._folders(label))))
        if snapshots:
            adapter_folders.check_task_name(label.partition("/")[0])
        return snapshots

    def _folders(self, label: str) -> List[str]:
        name, _, number = label.partition("/")
        folders = []
        if self._root is not None and not number:
            folders = adapter_folders.candidates(posixpath.join(self._root, name))
        elif self._root is not None and adapter_folders.is_version(number):
            folders = [posixpath.join(self._root, label)]
        return folders + [self._matched[label]] if label in self._matched else folders

    def number(self, name: str, folder: str) -> Optional[int]:
        """Returns the number of a task's folder, None if it has none or is elsewhere."""
        parent, number = posixpath.split(folder)
        is_own = self._root is not None and parent == posixpath.join(self._root, name)
        return int(number) if is_own and adapter_folders.is_version(number) else None

    def exists(self, name: str, is_folder: bool = False) -> bool:
        """Returns whether the root has a file or folder, or a folder, of this name."""
        exists = gfile.isdir if is_folder else gfile.exists
        return self._root is not None and exists(posixpath.join(self._root, name))

    def check(self, label: str, folder: str) -> None:
        """Raises UserError if a folder is not the patterns' and leads out of the root."""
        if folder != self._matched.get(label):
            adapter_folders.check_below(self._require_root(), folder)

    def resolve(self, path: str) -> str:
        """Returns the folder of the adapter at a path that a request names, below the root."""
        root = self._require_root()
        parts = path.split("/")
        if not path.isprintable() or "\\" in path or {"", ".", ".."} & set(parts):
            raise UserError(f"{path[:100]!r} is not a folder below --adapter_dir.")
        folder = posixpath.join(root, path)
        adapter_folders.check_below(root, folder)
        adapter_folder = adapter_folders.resolve(folder)
        if adapter_folder is None:
            raise UserError(f"There is no task adapter {path[:100]!r} below --adapter_dir.")
        return adapter_folder

    @contextlib.contextmanager
    def upload(
        self,
        name: str,
        contents: Mapping[str, BinaryIO],
        last_version: int,
        check: Callable[[str], None],
    ) -> Iterator[str]:
        """Saves an upload as `<root>/<name>/<number>` and yields the folder; an error removes it.

        Args:
          name: a valid task name.
          contents: dict from the names of the two files to open files.
          last_version: the folder's number is higher.
          check: function of the complete folder, called before it has a number and can be served.
        """
        root = self._require_root()
        task_folder = posixpath.join(root, name)
        adapter_folders.check_below(root, task_folder)
        is_new = not gfile.exists(task_folder)
        numbers = [last_version, *adapter_folders.version_numbers(task_folder)]
        folder = f"{task_folder}/{max(numbers) + 1}"
        try:
            with atomic.atomic_folder(folder) as partial:
                for file in task_adapter.FILES:
                    with gfile.open_file(posixpath.join(partial, file), "wb") as writer:
                        shutil.copyfileobj(contents[file], writer)
                atomic.write_atomically(posixpath.join(partial, _marker(folder)), "")
                check(partial)
            try:
                yield folder
            except BaseException:
                gfile.rmtree(folder)
                raise
        except BaseException:
            if is_new and gfile.exists(task_folder) and not gfile.listdir(task_folder):
                gfile.rmtree(task_folder)
            raise

    def remove_old_uploads(self, name: str, used: Set[str]) -> None:
        """Removes a task's uploads, except the last `keep_versions` and the used folders."""
        task_folder = posixpath.join(self._require_root(), name)
        numbers = sorted(adapter_folders.version_numbers(task_folder))
        uploads = list(filter(_is_upload, (f"{task_folder}/{number}" for number in numbers)))
        used = set(map(os.path.realpath, used))  # A served folder may be a link to an upload.
        for folder in uploads[: -self._keep_versions]:
            if os.path.realpath(folder) in used:
                continue
            try:
                # The config first: if the process is killed now, the rest is no valid adapter.
                with contextlib.suppress(FileNotFoundError):
                    gfile.remove(f"{folder}/{task_adapter.CONFIG_FILE}")
                gfile.rmtree(folder)
            except OSError as error:
                logging.warning("%s cannot be removed: %s.", folder, gfile.reason(error))

    def without_root(self, text: str) -> str:
        """Returns an error for clients, which names folders as they do: relative to the root."""
        root = self._root or ""
        for path in (os.path.realpath(root), os.path.abspath(root), root):
            if os.path.isabs(path):
                text = text.replace(path.rstrip("/") + "/", "")
        return text

    def _require_root(self) -> str:
        if self._root is None:
            raise UserError("Adding adapters needs a server that was started with --adapter_dir.")
        return self._root


def snapshot(folder: str) -> adapter_folders.Snapshot:
    """Returns a folder's `Snapshot`, without files if it has no adapter."""
    return adapter_folders.snapshot(folder) or adapter_folders.Snapshot(folder, ())


def _marker(folder: str) -> str:
    """Returns the name of the file that marks a folder as an upload.

    It contains the folder's name, so that a copy under another name is no upload.
    """
    task_folder, number = posixpath.split(folder)
    return f"{posixpath.basename(task_folder)}-{number}.upload"


def _is_upload(folder: str) -> bool:
    """Returns whether a path is a folder, no link, with an upload's files and no others."""
    try:
        names = set() if os.path.islink(folder) else set(gfile.listdir(folder))
    except OSError:  # It is a file, or not readable.
        return False
    return _marker(folder) in names and names <= {_marker(folder), *task_adapter.FILES}
