"""Holds the current version of each served task, and the versions that requests still use.

Each version is an entry in the bank. A request leases the versions that it starts with, so that its
texts, adapters and labels are of one version. A replaced or removed version leaves the bank when
its last lease ends.
"""

import collections
import contextlib
import datetime
import posixpath
import threading
from concurrent import futures
from typing import ContextManager, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from adapter_bert.files import atomic, gfile
from adapter_bert.formats import adapter_folders, task_adapter
from adapter_bert.serving.inference import bank, memory, request_texts
from adapter_bert.shell.errors import UserError

_MAX_LABEL_LENGTH = 256  # In characters. An answer repeats a tag for each word.
_MAX_REMOVED = 10_000  # Removed tasks whose time of removal is kept.
_DIGEST_DIGITS = 12


class TaskNotServed(UserError):
    """A request names a task that is not served."""


class ServedTask(NamedTuple):
    """A version of a task.

    Attributes:
      name: its name in requests.
      version: the number of its folder; without one, when its config was written, in Unix seconds.
      digest: the first digits of the SHA-256 of its tensors' file.
      modified: when its config was written, in Unix seconds.
      num_bytes: size of its tensors' file.
      description: `task_adapter.Description`.
      texts: `request_texts.TaskTexts`.
      key: its name in the bank.
      source: `adapter_folders.Snapshot` of its folder.
    """

    name: str
    version: int
    digest: str
    modified: int
    num_bytes: int
    description: task_adapter.Description
    texts: request_texts.TaskTexts
    key: str
    source: adapter_folders.Snapshot

    def rows(self, request: request_texts.EncodedRequest) -> List[bank.Row]:
        """Returns the `bank.Row`s of a `request_texts.EncodedRequest`."""
        return [bank.Row(self.key, *ids) for ids in request.rows]


class ServedTasks:
    """The served tasks of one bank, by label. Every method may be called from any thread.

    Args:
      adapter_bank: `bank.AdapterBank`; only this object may add tasks to it.
      encoding: `request_texts.TextEncoding` of the same BERT.
    """

    def __init__(self, adapter_bank: bank.AdapterBank, encoding: request_texts.TextEncoding):
        self._bank, self.encoding = adapter_bank, encoding
        # By name, and by label: the numbered versions that requests have named.
        self._tasks: Dict[str, ServedTask] = {}
        self._numbered: Dict[str, ServedTask] = {}
        self._removed: Dict[str, str] = {}  # From a label to the time of its removal.
        self._counts = collections.Counter()  # The versions so far, by label.
        # By key: (version that is served or leased, how often).
        self._uses: Dict[str, Tuple[ServedTask, int]] = {}
        self.lock = threading.Lock()  # Never held while an adapter is read.
        self._memory = memory.Reservations()
        self._remover = futures.ThreadPoolExecutor(1)  # Removing may wait for a batch or the disk.

    def __len__(self) -> int:
        """Returns the number of tasks."""
        return len(self._tasks)

    def __contains__(self, label: str) -> bool:
        return label in self._of_kind(label)

    def _of_kind(self, label: str) -> Dict[str, ServedTask]:
        return self._numbered if "/" in label else self._tasks

    def current(self) -> List[ServedTask]:
        """Returns the current `ServedTask`s, a list sorted by name."""
        return [task for _, task in sorted(self._tasks.copy().items())]

    def find(self, label: str) -> Optional[ServedTask]:
        """Returns what is served under a label, or None."""
        return self._of_kind(label).get(label)

    def resolve(self, label: str) -> Optional[ServedTask]:
        """Returns the `ServedTask` that a request means by a label, or None.

        A number may be that of the current version. A task that is not served has no versions.
        """
        name = label.partition("/")[0]
        task = self._tasks.get(name)
        is_current = task is None or label in (name, f"{name}/{task.version}")
        return task if is_current else self._numbered.get(label)

    def get(self, label: str) -> ServedTask:
        """Returns `resolve(label)`; raises `TaskNotServed`."""
        task = self.resolve(label)
        if task is not None:
            return task
        name, _, version = label.partition("/")
        what = f"version {version[:100]!r} of " if version else ""
        when = f"; it was removed at {self._removed[name]}" if name in self._removed else ""
        raise TaskNotServed(f"There is no {what}task {name[:100]!r} here{when}.")

    def serve(self, label: str, source: adapter_folders.Snapshot, lazy: bool) -> ServedTask:
        """Adds or replaces a label's task, and returns it; `lazy` reads its tensors only for use.

        Raises UserError if it is invalid, or `memory.Exhausted`; then nothing changes.
        """
        task, old = self._add(label, source, lazy), self.find(label)
        # No request then waits for the new one.
        is_unreadable = old and self._bank.is_in_memory(old.key) and not self.load([task])
        if is_unreadable and adapter_folders.snapshot(source.folder) != source:
            self._bank.remove(task.key)
            raise UserError(f"Task {task.name}: {source.folder} changed while it was read.")
        with self.lock:
            self._of_kind(label)[label] = task
            self._removed.pop(label, None)
            self.change_uses(task, 1)
            if old:
                self.change_uses(old, -1)
        return task

    def check_folder(self, name: str, folder: str) -> None:
        """Raises as `serve` does, without serving the folder's adapter."""
        source = adapter_folders.Snapshot(folder, ())
        self._bank.remove(self._add(name, source, lazy=False).key)

    def check(self, task: ServedTask) -> None:
        """Reads the tensors of a task that `serve` added lazily; raises as it does without."""
        with self._reading(f"Task {task.name}:", task.source.folder):
            self._bank.check(task.key)

    def drop(self, label: str, was_removed: bool = False) -> None:
        """Removes what is served under a label; notes the time if its user removed it."""
        with self.lock:
            task = self._of_kind(label).pop(label)
            if was_removed:
                now = datetime.datetime.now(datetime.timezone.utc)
                self._removed[label] = f"{now:%Y-%m-%d %H:%M:%S} UTC"
                for name in list(self._removed)[:-_MAX_REMOVED]:
                    del self._removed[name]
            self.change_uses(task, -1)

    def _add(self, label: str, source: adapter_folders.Snapshot, lazy: bool) -> ServedTask:
        """Adds a task adapter to the bank as the next version of a label."""
        name, folder = label.partition("/")[0], source.folder
        self._counts[label] += 1
        key, where = f"{label}@{self._counts[label]}", f"Task {name}:"
        with contextlib.nullcontext() if lazy else self._reading(where, folder):
            description = self._bank.add(key, folder, lazy=lazy, label=where)
        try:
            longest = max(map(len, description.labels), default=0)
            if longest > _MAX_LABEL_LENGTH:
                raise UserError(
                    f"{where} {folder} has a label of {longest:,} characters; expected at most"
                    f" {_MAX_LABEL_LENGTH}."
                )
            texts = request_texts.TaskTexts(description, self.encoding, f"{where} {folder}")
            current = atomic.current_folder(folder)
            modified = gfile.modified_ns(f"{current}/{task_adapter.CONFIG_FILE}") // 10**9
            num_bytes = gfile.size(f"{current}/{task_adapter.TENSORS_FILE}")
        except BaseException:
            self._bank.remove(key)
            raise
        number = posixpath.basename(folder)
        version = int(number) if adapter_folders.is_version(number) else modified
        digest = (self._bank.sha256(key) or "")[:_DIGEST_DIGITS]
        return ServedTask(
            name, version, digest, modified, num_bytes, description, texts, key, source
        )

    def _reading(self, where: str, folder: str) -> ContextManager:
        """Reserves the memory that reading an adapter takes: its file and a copy of its tensors."""
        path = f"{atomic.current_folder(folder)}/{task_adapter.TENSORS_FILE}"
        num_bytes = 2 * gfile.size(path) if gfile.exists(path) else 0
        return self._memory.reserved(num_bytes, f"{where} {folder}")

    def is_in_memory(self, task: ServedTask) -> bool:
        """Returns whether the adapter of a `ServedTask` is in memory."""
        return self._bank.is_in_memory(task.key)

    def load(self, tasks: Iterable[ServedTask]) -> bool:
        """Reads adapters into memory; returns whether all are there. Does not block batches."""
        are_loaded = True
        for key in dict.fromkeys(task.key for task in tasks):
            try:
                self._bank.load(key)
            except UserError:
                are_loaded = False
        return are_loaded

    def lease(self) -> "Lease":
        """Returns a new `Lease`."""
        return Lease(self)

    def change_uses(self, task: ServedTask, change: int) -> None:
        """Counts the uses of a version, which leaves the bank after the last one; locked."""
        count = self._uses.pop(task.key, (task, 0))[1] + change
        if count:
            self._uses[task.key] = task, count
        else:
            self._remover.submit(self._bank.remove, task.key)

    def used_folders(self) -> Set[str]:
        """Returns the folders of all versions that are served or leased."""
        with self.lock:
            return {task.source.folder for task, _ in self._uses.values()}

    def close(self) -> None:
        """Waits until all removed versions have left the bank."""
        self._remover.shutdown()


class Lease:
    """The versions of tasks that a request uses, a context manager: they stay in the bank in it."""

    def __init__(self, served: ServedTasks):
        self._served, self._tasks, self._ended = served, {}, False

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: object) -> None:
        with self._served.lock:
            self._ended = True
            for task in self._tasks.values():
                self._served.change_uses(task, -1)

    def __contains__(self, label: str) -> bool:
        return label in self._tasks

    def get(self, label: str) -> ServedTask:
        """Returns a label's `ServedTask`, always the same one; raises `TaskNotServed`."""
        with self._served.lock:
            if self._ended:
                raise TaskNotServed(f"The request for {label[:100]!r} has ended.")
            if label not in self._tasks:
                self._tasks[label] = self._served.get(label)
                self._served.change_uses(self._tasks[label], 1)
            return self._tasks[label]

    def tasks(self) -> List[ServedTask]:
        """Returns the leased `ServedTask`s, in the order of their first use."""
        return list(self._tasks.values())
