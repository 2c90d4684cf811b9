"""The registry of served tasks, which can change while the server answers.

Each version of a task is an entry in the bank. A request leases the versions that it starts with,
so that its texts, adapters and labels are of one version. A replaced or removed version leaves the
bank when its last lease ends.

The tasks below the root are found by name first. Each is added before it is first used, or by
`load_found`.
"""

import collections
import contextlib
import gc
import os
import posixpath
import shutil
import threading
import weakref
from concurrent import futures
from typing import BinaryIO, Callable, Iterable, Iterator, List, Mapping, NamedTuple, Optional

from absl import logging

from adapter_bert.files import atomic, gfile
from adapter_bert.formats import adapter_folders, task_adapter
from adapter_bert.serving.inference import bank, memory, request_texts
from adapter_bert.shell.errors import UserError

CHANGE_SECONDS = 60.0  # Maximum time of a change, and that a change of the same task waits for.
_FREEZE_EVERY = 256  # Tasks.
_MAX_LABEL_LENGTH = 256  # In characters. An answer repeats a tag for each word.


class TaskNotServed(UserError):
    """A request names a task that is not served."""


class ServedTask(NamedTuple):
    """A version of a task.

    Attributes:
      name: its name in requests.
      version: counted from 1; for an upload, the number of its folder.
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
        """Returns the `bank.Row`s of a `request_texts.EncodedRequest`."""
        return [bank.Row(self.key, *ids) for ids in request.rows]


class ServedTasks:
    """The served tasks of one bank, by name. Every method may be called from any thread.

    Args:
      adapter_bank: `bank.AdapterBank`; only this object may add tasks to it.
      encoding: `request_texts.TextEncoding` of the same BERT.
      root: folder of the adapters that requests may name, and of uploads; or None.
      keep_versions: number of uploads of a task that stay on disk.
    """

    def __init__(
        self,
        adapter_bank: bank.AdapterBank,
        encoding: request_texts.TextEncoding,
        root: Optional[str] = None,
        keep_versions: int = 2,
    ):
        self._bank, self._encoding = adapter_bank, encoding
        self._root, self._keep_versions = root, keep_versions
        self._tasks, self._versions = {}, collections.Counter()
        self._found = {}  # The names of tasks below the root that are not added yet.
        # Added by their descriptions: the older folders of each task, in case its tensors are
        # damaged.
        self._unread = {}
        self._closed = False
        self._lease_counts, self._retired = collections.Counter(), set()
        self._folders = {}  # From a version's key in the bank to its folder.
        self._remover = futures.ThreadPoolExecutor(1)  # Removing may wait for a batch or the disk.
        self._lock = threading.Lock()  # Never held while an adapter is read.
        self._memory = memory.Reservations()
        # By task, while an adapter is read and added: one that hangs blocks no other task.
        self._change_locks = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, name: str) -> bool:
        return name in self._tasks

    def current(self) -> List[ServedTask]:
        """Returns the current `ServedTask`s, a list sorted by name."""
        with self._lock:
            tasks = self._tasks.copy()
        return [tasks[name] for name in sorted(tasks)]

    def get(self, name: str) -> ServedTask:
        """Returns the current `ServedTask` of a name, after `read`; raises `TaskNotServed`."""
        self.read(name)
        try:
            return self._tasks[name]
        except KeyError:
            raise TaskNotServed(f"There is no task {name[:100]!r} here.") from None

    def put(self, name: str, folder: str, *, lazy: bool = False) -> ServedTask:
        """Adds or replaces a task.

        Args:
          name: letters, digits, ".", "_" and "-".
          folder: the task adapter's, which must not change afterwards.
          lazy: bool; its tensors are known to be valid and are read when they are needed.

        Returns:
          Its `ServedTask`.

        Raises:
          UserError: the name is invalid; the adapter is damaged or incompatible. Nothing changes.
        """
        adapter_folders.check_task_name(name)
        with self._changing(name):
            return self._put(name, folder, lazy)

    def _put(self, name: str, folder: str, lazy: bool) -> ServedTask:
        task = self._add_to_bank(name, folder, lazy)
        self._versions[name], self._folders[task.key] = task.version, folder
        with self._lock:
            old = self._tasks.get(name)
            self._tasks[name] = task
        if old:
            self._retire(old.key)
        return task

    def put_below_root(self, name: str, path: str) -> ServedTask:
        """Calls `put` for a path in a request, which must be below the root."""
        root = self._require_root()
        parts = path.split("/")
        if not path.isprintable() or "\\" in path or {"", ".", ".."} & set(parts):
            raise UserError(f"{path[:100]!r} is not a folder below --adapter_dir.")
        folder = posixpath.join(root, path)
        adapter_folders.check_below(root, folder)
        adapter_folder = adapter_folders.resolve(folder)
        if adapter_folder is None:
            raise UserError(f"There is no task adapter {path[:100]!r} below --adapter_dir.")
        adapter_folders.check_below(root, adapter_folder)
        return self.put(name, adapter_folder)

    def find_below_root(self) -> None:
        """Finds the names of all tasks below the root; call it once.

        Each is served from its newest valid folder. Invalid ones are logged.

        Raises:
          UserError: the root is not a folder, or cannot be read.
        """
        self._found = dict.fromkeys(adapter_folders.task_names(self._require_root()))

    def load_found(self) -> None:
        """Adds the found tasks by their descriptions, then reads their tensors to check them."""
        for reads_tensors in (False, True):
            for index, name in enumerate([*self._found, *self._unread]):
                if self._closed:
                    return
                try:
                    with self._locked(name):
                        self._add_found(name, reads_tensors)
                except Exception as error:  # One task must not keep the others from loading.
                    logging.warning("Task %s is not loaded yet: %r", name, error)
                if index % _FREEZE_EVERY == _FREEZE_EVERY - 1:
                    gc.freeze()  # A collection would scan all descriptions, and stop all threads.

    def num_loading(self) -> int:
        """Returns the number of found tasks that are not added yet."""
        return len(self._found)

    def is_read(self, name: str) -> bool:
        """Returns whether `read` has nothing to do."""
        return name not in self._found and name not in self._unread

    def read(self, name: str) -> None:
        """Adds a task that was found, if it is valid; reads its files unless `is_read`.

        Raises:
          memory.Exhausted: too little memory is free.
          TimeoutError: another thread changes the task for too long.
        """
        if not self.is_read(name):
            with self._changing(name):
                pass

    def _add_found(self, name: str, reads_tensors: bool) -> None:
        """Adds a found task, unless it is added: the newest version whose description is valid.

        Args:
          name: the task's, which this thread has locked.
          reads_tensors: whether its tensors must be valid, too.
        """
        if name in self._found:
            # Only a valid adapter replaces one of --adapters.
            lazy = not reads_tensors and name not in self._tasks
            self._put_first(name, iter(adapter_folders.find(self._require_root(), name)), lazy)
            del self._found[name]
        if reads_tensors and name in self._unread:
            task = self._tasks[name]
            folder = self._folders[task.key]
            try:
                with self._memory.reserved(_reading_bytes(folder), f"Task {name}: {folder}"):
                    self._bank.check(task.key)
            except memory.Exhausted:
                raise
            except Exception as error:
                logging.warning("Not served: %s", error)
                with self._lock:
                    del self._tasks[name], self._versions[name]
                self._retire(task.key)
                self._put_first(name, self._unread[name], lazy=False)
            del self._unread[name]

    def _put_first(self, name: str, folders: Iterator[str], lazy: bool) -> None:
        """Puts the first valid one of a task's folders; logs the others."""
        old = self._folders.get(self._tasks[name].key) if name in self._tasks else None
        for folder in folders:
            try:
                adapter_folders.check_below(self._require_root(), folder)
                self._put(name, folder, lazy)
            except UserError as error:
                logging.warning("Not served: %s", error)
            except Exception as error:  # One folder must not keep the others from starting.
                logging.warning("Not served: %s: %r", folder, error)
            else:
                if old not in (None, folder):
                    logging.warning("%r is served from %s, not from %s.", name, folder, old)
                if lazy:
                    self._unread[name] = folders
                return

    def upload(self, name: str, contents: Mapping[str, BinaryIO]) -> ServedTask:
        """Saves a task adapter as `<root>/<name>/<number>`, and adds or replaces the task.

        Args:
          name: see `put`.
          contents: dict from the names of the two files to open files.

        Returns:
          Its `ServedTask`.

        Raises:
          gfile.WriteError: the files cannot be written.
          UserError: see `put`; nothing is saved.
        """
        adapter_folders.check_task_name(name)  # Before it becomes a path.
        root = self._require_root()
        task_folder = posixpath.join(root, name)
        with self._changing(name):
            adapter_folders.check_below(root, task_folder)
            is_new = not gfile.exists(task_folder)
            try:
                number = max([self._versions[name], *adapter_folders.version_numbers(task_folder)])
                task = self._upload(name, f"{task_folder}/{number + 1}", contents)
            except BaseException:
                if is_new:
                    _remove_if_empty(task_folder)
                raise
            self._remove_old_uploads(name)
        return task

    def _upload(self, name: str, folder: str, contents: Mapping[str, BinaryIO]) -> ServedTask:
        with atomic.atomic_folder(folder) as partial:
            for file in task_adapter.FILES:
                with gfile.open_file(posixpath.join(partial, file), "wb") as writer:
                    shutil.copyfileobj(contents[file], writer)
            atomic.write_atomically(posixpath.join(partial, _marker(folder)), "")
            # Checked before the folder has its number: a server that restarts serves numbered ones.
            self._bank.remove(self._add_to_bank(name, partial).key)
        try:
            return self.put(name, folder, lazy=True)
        except BaseException:
            gfile.rmtree(folder)
            raise

    def remove(self, name: str) -> ServedTask:
        """Removes a task from the server; its files stay. Raises `TaskNotServed`."""
        with self._changing(name):
            with self._lock:
                task = self.get(name)
                del self._tasks[name]
            self._retire(task.key)
        return task

    def are_in_memory(self, tasks: Iterable[ServedTask]) -> bool:
        """Returns whether the adapters of all these `ServedTask`s are in memory."""
        return all(self._bank.is_in_memory(task.key) for task in tasks)

    def load(self, tasks: Iterable[ServedTask]) -> None:
        """Reads adapters into memory, without blocking batches."""
        for key in dict.fromkeys(task.key for task in tasks):
            with contextlib.suppress(UserError):  # The batch raises it again.
                self._bank.load(key)

    @contextlib.contextmanager
    def lease(self) -> "Iterator[Lease]":
        """Yields a `Lease` that ends with the context."""
        lease = Lease(self._acquire, self._release)
        try:
            yield lease
        finally:
            lease.end()

    def without_root(self, text: str) -> str:
        """Returns an error for clients, which names folders as they do: relative to the root."""
        root = self._root or ""
        for path in (os.path.realpath(root), os.path.abspath(root), root):
            if os.path.isabs(path):
                text = text.replace(path.rstrip("/") + "/", "")
        return text

    @property
    def encoding(self) -> request_texts.TextEncoding:
        """The `request_texts.TextEncoding` of all tasks."""
        return self._encoding

    def close(self) -> None:
        """Ends `load_found`, and waits until all removed versions have left the bank."""
        self._closed = True
        self._remover.shutdown()

    def _add_to_bank(self, name: str, folder: str, lazy: bool = False) -> ServedTask:
        """Adds a task adapter to the bank as the next version of a task."""
        version = self._versions[name] + 1
        parent, number = posixpath.split(folder)
        if adapter_folders.is_version(number) and parent == posixpath.join(self._root or "", name):
            version = max(version, int(number))
        key, where = f"{name}@{version}", f"Task {name}:"
        with contextlib.ExitStack() as stack:
            if not lazy:
                num_bytes = _reading_bytes(folder)
                stack.enter_context(self._memory.reserved(num_bytes, f"{where} {folder}"))
            description = self._bank.add(key, folder, lazy=lazy, label=where)
        try:
            longest = max(map(len, description.labels), default=0)
            if longest > _MAX_LABEL_LENGTH:
                raise UserError(
                    f"{where} {folder} has a label of {longest:,} characters; expected at most"
                    f" {_MAX_LABEL_LENGTH}."
                )
            texts = request_texts.TaskTexts(description, self._encoding, f"{where} {folder}")
        except BaseException:
            self._bank.remove(key)
            raise
        return ServedTask(name, version, description, texts, key)

    def _acquire(self, name: str) -> ServedTask:
        self.read(name)
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
        """Removes a version from the bank if it is retired and not leased."""
        if self._lease_counts[key]:
            return
        del self._lease_counts[key]
        if key in self._retired:
            self._retired.remove(key)
            del self._folders[key]
            self._remover.submit(self._bank.remove, key)

    @contextlib.contextmanager
    def _changing(self, name: str) -> Iterator[None]:
        """Locks a task, and adds it first if it was found; raises as `read` does."""
        with self._locked(name):
            self._add_found(name, reads_tensors=True)
            yield

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Lets one thread at a time change a task; raises TimeoutError if it waits too long."""
        with self._lock:
            lock = self._change_locks.setdefault(name, threading.RLock())
        if not lock.acquire(timeout=CHANGE_SECONDS):
            raise TimeoutError
        try:
            yield
        finally:
            lock.release()

    def _remove_old_uploads(self, name: str) -> None:
        """Removes a task's uploads, except the last `keep_versions` and those that it serves."""
        task_folder = posixpath.join(self._require_root(), name)
        numbers = sorted(adapter_folders.version_numbers(task_folder))
        uploads = list(filter(_is_upload, (f"{task_folder}/{number}" for number in numbers)))
        # A served folder may be a link to an upload.
        served = set(map(os.path.realpath, list(self._folders.values())))
        for folder in uploads[: -self._keep_versions]:
            if os.path.realpath(folder) in served:
                continue
            try:
                # The config first: if the process is killed now, the rest is no valid adapter.
                with contextlib.suppress(FileNotFoundError):
                    gfile.remove(f"{folder}/{task_adapter.CONFIG_FILE}")
                gfile.rmtree(folder)
            except OSError as error:
                logging.warning("%s cannot be removed: %s.", folder, gfile.reason(error))

    def _require_root(self) -> str:
        if self._root is None:
            raise UserError("Adding adapters needs a server that was started with --adapter_dir.")
        return self._root


class Lease:
    """The versions of tasks that a request uses."""

    def __init__(self, acquire: Callable[[str], ServedTask], release: Callable[[str], None]):
        self._acquire, self._release = acquire, release
        self._tasks, self._ended = {}, False
        self._lock = threading.Lock()

    def get(self, name: str) -> ServedTask:
        """Returns a task's `ServedTask`, always the same one; raises `TaskNotServed`."""
        with self._lock:
            if self._ended:
                raise TaskNotServed(f"The request for {name[:100]!r} has ended.")
            if name not in self._tasks:
                self._tasks[name] = self._acquire(name)
            return self._tasks[name]

    def names(self) -> List[str]:
        """Returns the names of the leased tasks."""
        return list(self._tasks)

    def end(self) -> None:
        """Releases the versions."""
        with self._lock:
            self._ended = True
            for task in self._tasks.values():
                self._release(task.key)


def _reading_bytes(folder: str) -> int:
    """Returns the memory that reading an adapter takes: its file, and a copy of its tensors."""
    path = f"{atomic.current_folder(folder)}/{task_adapter.TENSORS_FILE}"
    return 2 * gfile.size(path) if gfile.exists(path) else 0


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


def _remove_if_empty(folder: str) -> None:
    if gfile.exists(folder) and not gfile.listdir(folder):
        gfile.rmtree(folder)
