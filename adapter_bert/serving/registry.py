"""The tasks that a server offers: named, numbered, added, replaced and removed while it answers.

Each version of a task has an entry of its own in the bank. A request holds the versions that it
began with until it is answered, so that its texts, adapters and labels are always of one version,
and a version that was replaced or removed leaves the bank when nobody holds it any more.
"""

import collections
import contextlib
import os
import posixpath
import threading
from concurrent import futures
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional

from adapter_bert.common import files
from adapter_bert.common.errors import UserError
from adapter_bert.formats import adapter_folders, task_adapter
from adapter_bert.serving import bank, request_texts


class TaskNotServed(UserError):
    """A task that is not served."""


class ServedTask(NamedTuple):
    """A version of a task.

    Attributes:
      name: what requests call it.
      version: counted from 1 since the server's start.
      description: `task_adapter.Description`.
      texts: `request_texts.TaskTexts`.
      key: its name in the bank.
    """

    name: str
    version: int
    description: task_adapter.Description
    texts: request_texts.TaskTexts
    key: str

    def rows(self, request: request_texts.EncodedRequest) -> List[bank.Row]:
        """The `bank.Row`s of a `request_texts.EncodedRequest`."""
        return [bank.Row(self.key, *ids) for ids in request.rows]


class ServedTasks:
    """Tasks by name over one bank. Every method may be called from any thread.

    Args:
      bank: `bank.AdapterBank`, which nobody else adds to.
      encoding: `request_texts.TextEncoding` of the same BERT.
      root: folder below which adapters may be named and uploaded while the server runs, or None.
    """

    def __init__(
        self,
        adapter_bank: bank.AdapterBank,
        encoding: request_texts.TextEncoding,
        root: Optional[str] = None,
    ):
        self._bank, self._encoding, self._root = adapter_bank, encoding, root
        self._tasks, self._versions = {}, collections.Counter()
        self._lease_counts, self._retired = collections.Counter(), set()
        self._remover = futures.ThreadPoolExecutor(1)  # The bank may be busy with a batch.
        self._lock = threading.Lock()  # For moments.
        self._change_lock = threading.RLock()  # For as long as an adapter is read and added.

    def __len__(self):
        return len(self._tasks)

    def __contains__(self, name):
        return name in self._tasks

    def current(self) -> List[ServedTask]:
        """A list of the current `ServedTask`s, by name."""
        return [task for _, task in sorted(self._tasks.items())]

    def get(self, name: str) -> ServedTask:
        """The current `ServedTask` of a name; raises `TaskNotServed`."""
        try:
            return self._tasks[name]
        except KeyError:
            raise TaskNotServed(f"There is no task {name[:100]!r} here.") from None

    def put(self, name: str, folder: str) -> ServedTask:
        """Serves a task adapter, in place of the one of this name if there is one.

        Args:
          name: letters, digits, ".", "_" and "-".
          folder: of the task adapter, which must stay as it is.

        Returns:
          Its `ServedTask`.

        Raises:
          UserError: the name is none; the adapter is damaged or does not fit. What was served
            before stays.
        """
        adapter_folders.check_task_name(name)
        with self._change_lock:
            task = self._add_to_bank(name, folder)
            self._versions[name] = task.version
            with self._lock:
                old = self._tasks.get(name)
                self._tasks = {**self._tasks, name: task}
            if old:
                self._retire(old.key)
        return task

    def put_below_root(self, name: str, path: str) -> ServedTask:
        """`put` for a path that a request names; raises UserError for one not below the root."""
        root = self._require_root()
        parts = path.split("/")
        if not path.isprintable() or "\\" in path or {"", ".", ".."} & set(parts):
            raise UserError(f"{path[:100]!r} is no folder below --adapter_dir.")
        folder = posixpath.join(root, path)
        if not files.is_remote(root):
            real_root, real_folder = os.path.realpath(root), os.path.realpath(folder)
            if os.path.commonpath([real_root, real_folder]) != real_root:
                raise UserError(f"{path[:100]!r} leads out of --adapter_dir.")
        adapter_folder = adapter_folders.resolve(folder)
        if adapter_folder is None:
            raise UserError(f"There is no task adapter {path[:100]!r} below --adapter_dir.")
        return self.put(name, adapter_folder)

    def upload(self, name: str, contents: Dict[str, bytes]) -> ServedTask:
        """Saves a task adapter as `<root>/<name>/<number>`, and serves it.

        Args:
          name: as of `put`.
          contents: dict of the bytes of the two files, by their names.

        Returns:
          Its `ServedTask`.

        Raises:
          files.WriteError: it cannot be saved.
          UserError: as of `put`; nothing is saved then.
        """
        adapter_folders.check_task_name(name)  # Before it becomes a path.
        task_folder = posixpath.join(self._require_root(), name)
        with self._change_lock:
            folder = posixpath.join(
                task_folder, str(max([0, *adapter_folders.version_numbers(task_folder)]) + 1)
            )
            with files.atomic_folder(folder) as partial:
                for file in task_adapter.FILES:
                    with files.open_file(posixpath.join(partial, file), "wb") as writer:
                        writer.write(contents[file])
                # Before it has a number, by which a restart after a kill would serve it.
                self._bank.remove(self._add_to_bank(name, partial).key)
            try:
                return self.put(name, folder)
            except BaseException:
                files.rmtree(folder)
                raise

    def remove(self, name: str) -> ServedTask:
        """Serves a task no longer; its files stay. Raises `TaskNotServed`."""
        with self._change_lock:
            with self._lock:
                task = self.get(name)
                self._tasks = {other: t for other, t in self._tasks.items() if other != name}
            self._retire(task.key)
        return task

    def are_in_memory(self, tasks: Iterable[ServedTask]) -> bool:
        """Whether the adapters of `ServedTask`s are in memory: a batch need not read one."""
        return all(self._bank.is_in_memory(task.key) for task in tasks)

    def load(self, tasks: Iterable[ServedTask]) -> None:
        """Reads adapters into memory, while batches go on.

        Raises:
          UserError: one cannot be read any more.
        """
        for task in tasks:
            self._bank.load(task.key)

    @contextlib.contextmanager
    def lease(self) -> "Iterator[Lease]":
        """Yields a `Lease` that ends with the context."""
        lease = Lease(self._acquire, self._release)
        try:
            yield lease
        finally:
            lease.end()

    def close(self) -> None:
        """Ends when all that was removed has left the bank."""
        self._remover.shutdown()

    def _add_to_bank(self, name: str, folder: str) -> ServedTask:
        """Has the bank hold a task adapter as the next version of a task, if it fits."""
        version = self._versions[name] + 1
        key, where = f"{name}@{version}", f"Task {name}:"
        description = self._bank.add(key, folder, label=where)
        try:
            texts = request_texts.TaskTexts(description, self._encoding, f"{where} {folder}")
        except BaseException:
            self._bank.remove(key)
            raise
        return ServedTask(name, version, description, texts, key)

    def _acquire(self, name: str) -> ServedTask:
        with self._lock:
            task = self.get(name)
            self._lease_counts[task.key] += 1
        return task

    def _release(self, key: str) -> None:
        with self._lock:
            self._lease_counts[key] -= 1
            self._remove_if_unused(key)

    def _retire(self, key: str) -> None:
        with self._lock:
            self._retired.add(key)
            self._remove_if_unused(key)

    def _remove_if_unused(self, key: str) -> None:
        """Has the bank forget a version that is retired, if nobody holds it."""
        if self._lease_counts[key]:
            return
        del self._lease_counts[key]
        if key in self._retired:
            self._retired.remove(key)
            self._remover.submit(self._bank.remove, key)

    def _require_root(self) -> str:
        if self._root is None:
            raise UserError(
                "Adapters can be added to a server that was started with --adapter_dir."
            )
        return self._root


class Lease:
    """The versions of tasks that a request is answered with."""

    def __init__(self, acquire: Callable[[str], ServedTask], release: Callable[[str], None]):
        self._acquire, self._release = acquire, release
        self._tasks, self._ended = {}, False
        self._lock = threading.Lock()

    def get(self, name: str) -> ServedTask:
        """The `ServedTask` of a name, the same one each time; raises `TaskNotServed`."""
        with self._lock:
            if self._ended:
                raise TaskNotServed(f"The request for {name[:100]!r} has ended.")
            if name not in self._tasks:
                self._tasks[name] = self._acquire(name)
            return self._tasks[name]

    def end(self) -> None:
        """Lets the versions go."""
        with self._lock:
            self._ended = True
            for task in self._tasks.values():
                self._release(task.key)
