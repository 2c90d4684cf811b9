"""The registry of served tasks, which changes as the folders of their adapters change.

`ServedTasks.update` compares the folders with the served tasks, and adds, replaces and removes what
differs: at the start, at each poll, and at SIGHUP. A request for a task that is not read yet, or
whose folder has just changed, looks at that task's folders at once.

Each version of a task is an entry in the bank. A request leases the versions that it starts with,
so that its texts, adapters and labels are of one version. A replaced or removed version leaves the
bank when its last lease ends.
"""

import collections
import contextlib
import datetime
import gc
import os
import posixpath
import shutil
import threading
import time
import weakref
from concurrent import futures
from typing import (
    Any,
    BinaryIO,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
)

from absl import logging

from adapter_bert.files import atomic, gfile
from adapter_bert.formats import adapter_folders, hub, task_adapter
from adapter_bert.serving.inference import bank, memory, request_texts
from adapter_bert.shell.errors import UserError

CHANGE_SECONDS = 60.0  # Maximum time of a change, and that a change of the same task waits for.
_FREEZE_EVERY = 256  # Tasks.
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
    """

    name: str
    version: int
    digest: str
    modified: int
    num_bytes: int
    description: task_adapter.Description
    texts: request_texts.TaskTexts
    key: str

    def rows(self, request: request_texts.EncodedRequest) -> List[bank.Row]:
        """Returns the `bank.Row`s of a `request_texts.EncodedRequest`."""
        return [bank.Row(self.key, *ids) for ids in request.rows]


class _Found(NamedTuple):
    """The folders on disk from which a label may be served, the first one first; or their hashes.

    Attributes:
      pinned: the `adapter_folders.Snapshot` of the folder that a request has put, or None.
      others: tuple of those of the label's own folders.
    """

    pinned: Any
    others: Any

    def hashed(self) -> "_Found":
        """Returns the hashes, which take less memory."""
        return _Found(hash(self.pinned), hash(self.others))


class ServedTasks:
    """The served tasks of one bank. Every method may be called from any thread.

    A label is a task's name, or "<name>/<number>" for one of its numbered folders.

    Args:
      adapter_bank: `bank.AdapterBank`; only this object may add tasks to it.
      encoding: `request_texts.TextEncoding` of the same BERT.
      root: folder of the adapters that requests may name, and of uploads; or None.
      keep_versions: number of uploads of a task that stay on disk.
      patterns: of the folders of further tasks, see `adapter_folders.match_patterns`.
    """

    def __init__(
        self,
        adapter_bank: bank.AdapterBank,
        encoding: request_texts.TextEncoding,
        root: Optional[str] = None,
        keep_versions: int = 2,
        patterns: Sequence[str] = (),
    ):
        self._bank, self._encoding = adapter_bank, encoding
        self._root, self._keep_versions, self._patterns = root, keep_versions, patterns
        # By name, and by label: the versions that requests have named.
        self._tasks: Dict[str, ServedTask] = {}
        self._numbered: Dict[str, ServedTask] = {}
        self._found: Dict[str, None] = {}  # Names on disk that no update has looked at yet.
        self._unread: Dict[str, None] = {}  # Names added by their descriptions only.
        self._is_loaded = False  # Whether the first update has read all descriptions.
        # From a name to the folder that the patterns match, and that was downloaded.
        self._matched: Dict[str, str] = {}
        self._downloaded: Dict[str, str] = {}
        self._problem, self._has_changed = "", False  # Of the last update.
        self._pinned: Dict[str, str] = {}  # From a name to the folder that a request has put.
        self._seen: Dict[str, Any] = {}  # From a label to `_Found.hashed` or an error's text.
        self._damaged: Dict[str, Any] = {}  # From a folder to its `Snapshot.files`.
        self._sources: Dict[str, adapter_folders.Snapshot] = {}  # By a version's key in the bank.
        self._removed: Dict[str, float] = {}  # From a name to the time when its task was removed.
        self._closed = False
        self._counts, self._lease_counts = collections.Counter(), collections.Counter()
        self._retired = set()
        self._remover = futures.ThreadPoolExecutor(1)  # Removing may wait for a batch or the disk.
        self._lock = threading.Lock()  # Never held while an adapter is read.
        self._memory = memory.Reservations()
        # By label, while an adapter is read and added: one that hangs blocks no other task.
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

    def label(self, name: str, version: Optional[str]) -> str:
        """Returns the label of a task, or of one of its versions; raises `TaskNotServed`."""
        self.read(name)
        is_current = version in (None, str(self.get(name).version))
        return name if is_current else f"{name}/{version}"

    def get(self, label: str) -> ServedTask:
        """Returns the current `ServedTask` of a label, after `read`; raises `TaskNotServed`."""
        self.read(label)
        return self._get(label)

    def _get(self, label: str) -> ServedTask:
        try:
            return self._served(label)[label]
        except KeyError:
            name, _, version = label.partition("/")
            what = f"task {name[:100]!r}"
            if version:
                what = f"version {version[:100]!r} of {what}"
            sentence = f"There is no {what} here"
            if name in self._removed:
                removed = datetime.datetime.fromtimestamp(
                    self._removed[name], datetime.timezone.utc
                )
                sentence += f"; it was removed at {removed:%Y-%m-%d %H:%M:%S} UTC"
            raise TaskNotServed(sentence + ".") from None

    def _served(self, label: str) -> Dict[str, ServedTask]:
        return self._numbered if "/" in label else self._tasks

    def put(self, name: str, folder: str, *, lazy: bool = False) -> ServedTask:
        """Adds or replaces a task; it stays until the folders of its name change.

        Args:
          name: letters, digits, ".", "_" and "-".
          folder: the task adapter's.
          lazy: bool; its tensors are known to be valid and are read when they are needed.

        Returns:
          Its `ServedTask`.

        Raises:
          UserError: the name is invalid; the adapter is damaged or incompatible. Nothing changes.
        """
        adapter_folders.check_task_name(name)
        with self._changing(name):
            snapshot = adapter_folders.snapshot(folder)
            task = self._put(name, snapshot or adapter_folders.Snapshot(folder, ()), lazy)
            self._pinned[name] = folder
            self._seen[name] = self._find(name).hashed()
        return task

    def _put(self, label: str, source: adapter_folders.Snapshot, lazy: bool) -> ServedTask:
        task = self._add_to_bank(label, source.folder, lazy)
        served = self._served(label)
        old = served.get(label)
        if old and self._bank.is_in_memory(old.key):  # No request then waits for the new one.
            with contextlib.suppress(UserError):
                self._bank.load(task.key)
        self._sources[task.key] = source
        with self._lock:
            served[label] = task
            self._removed.pop(label, None)
        if old:
            self._retire(old.key)
        if self._is_loaded:
            logging.info("Task %s: serving version %d, %s.", label, task.version, source.folder)
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

    def start(self) -> None:
        """Serves the tasks of the patterns, and finds the names below the root for `update`.

        Raises:
          UserError: a pattern matches nothing or an invalid adapter; the root cannot be read.
        """
        self._matched = adapter_folders.match_patterns(self._patterns)
        self._patterns = [each for each in self._patterns if not hub.is_address(each)]
        local = adapter_folders.match_patterns(self._patterns)
        self._downloaded = {n: f for n, f in self._matched.items() if n not in local}
        for name, folder in self._matched.items():
            adapter_folders.check_task_name(name)
            source = adapter_folders.snapshot(folder) or adapter_folders.Snapshot(folder, ())
            self._put(name, source, lazy=False)
        self._list_names()

    def _list_names(self) -> List[str]:
        """Returns the labels whose folders may have changed; notes the new names as found."""
        names = dict.fromkeys(self._matched)
        if self._root is not None:
            names.update(dict.fromkeys(adapter_folders.task_names(self._root)))
        known = {*self._seen, *self._tasks}
        self._found = {name: None for name in names if name not in known}
        return list({**names, **dict.fromkeys([*self._seen, *self._tasks])})

    def update(self) -> bool:
        """Compares all folders with the served tasks, and adds, replaces and removes what differs.

        A task is served from the first valid one of its folders, and stays as it is if none is
        valid. The first update adds all tasks by their descriptions before it reads tensors.

        Returns:
          Whether folders have changed since the last update.
        """
        self._has_changed = False
        try:
            local = adapter_folders.match_patterns(self._patterns, skips=True)
            self._matched = {**self._downloaded, **local}
            labels, self._problem = self._list_names(), ""
        except (OSError, UserError) as error:
            if self._problem != str(error):
                logging.warning("The tasks stay as they are: %s", error)
            self._problem = str(error)
            return False
        self._for_each(labels, self._update)
        self._is_loaded, self._found = True, {}
        self._for_each(list(self._unread), self._check)
        return self._has_changed

    def _for_each(self, labels: List[str], function: Callable[[str], None]) -> None:
        """Calls a function of a label for each of them, and logs its errors."""
        for index, label in enumerate(labels):
            if self._closed:
                return
            try:
                function(label)
            except Exception as error:  # One task must not keep the others from loading.
                logging.warning("Task %s is not loaded yet: %r", label, error)
            if not self._is_loaded and index % _FREEZE_EVERY == _FREEZE_EVERY - 1:
                gc.freeze()  # A collection would scan all descriptions, and stop all threads.

    def _update(self, label: str) -> None:
        """Looks at a label's folders if they have changed; logs an unreadable one once."""
        try:
            if label in self._seen and self._find(label).hashed() == self._seen[label]:
                return
            with self._locked(label):
                # Only a valid adapter replaces another one.
                self._look(label, lazy=not self._is_loaded and label not in self._tasks)
            self._has_changed = True
        except memory.Exhausted:
            raise
        except UserError as error:
            if self._seen.get(label) != str(error):
                logging.warning("Not served: %s: %s", label, error)
            self._seen[label] = str(error)
        self._found.pop(label, None)

    def num_loading(self) -> int:
        """Returns the number of tasks that the first update has not added yet."""
        return 0 if self._is_loaded else len(self._found)

    def is_read(self, label: str) -> bool:
        """Returns whether `read` has nothing to do."""
        if "/" in label:
            return label in self._numbered
        return label not in self._found and label not in self._unread

    def read(self, label: str) -> None:
        """Adds a task that was found, if it is valid; reads its files unless `is_read`.

        Raises:
          memory.Exhausted: too little memory is free.
          TimeoutError: another thread changes the task for too long.
        """
        if not self.is_read(label):
            with self._changing(label):
                pass

    def is_ready(self, label: str) -> bool:
        """Returns whether `prepare` has nothing to do."""
        task = self._served(label).get(label)
        return self.is_read(label) and (task is None or self._bank.is_in_memory(task.key))

    def prepare(self, label: str) -> None:
        """Reads a task's adapter into memory; raises as `read` does.

        If the adapter can no longer be read, its folder has changed since the last look.
        """
        self.read(label)
        for _ in range(2):
            task = self._served(label).get(label)
            if task is None:
                return
            try:
                self._bank.load(task.key)
                return
            except UserError:  # If it is not mended here, the batch raises it again.
                with self._locked(label):
                    self._look(label)

    def _find(self, label: str) -> _Found:
        """Returns what is on disk for a label; raises UserError if a folder cannot be read."""
        name, _, number = label.partition("/")
        folders: List[str] = []
        if number:
            if self._root and name in self._tasks and adapter_folders.is_version(number):
                folders = [posixpath.join(self._root, label)]
        else:
            if self._root is not None:
                folders += adapter_folders.candidates(posixpath.join(self._root, name))
            folders += [self._matched[name]] if name in self._matched else []
        pinned = self._pinned.get(label)
        return _Found(
            adapter_folders.snapshot(pinned) if pinned else None,
            tuple(filter(None, map(adapter_folders.snapshot, folders))),
        )

    def _look(self, label: str, lazy: bool = False) -> None:
        """Serves a label from the first valid one of its folders, if any; this thread locked it.

        Raises:
          memory.Exhausted: too little memory is free for the adapter.
          UserError: a folder cannot be read, or its name is no task's.
        """
        name, _, number = label.partition("/")
        found, old = self._find(label), self._served(label).get(label)
        seen = self._seen.get(label)
        if found.others and isinstance(seen, _Found) and seen.others != hash(found.others):
            self._pinned.pop(label, None)  # The folders have changed after the request.
            found = found._replace(pinned=None)
        if found.others and not number:
            adapter_folders.check_task_name(name)
        snapshots = [*filter(None, [found.pinned]), *found.others]
        source = self._sources[old.key] if old else None
        for snapshot in snapshots:
            if snapshot == source:
                break
            if self._try_to_put(label, snapshot, lazy):
                if source and source.folder == self._matched.get(name):
                    logging.warning(
                        "%r is served from %s, not from %s.", name, snapshot.folder, source.folder
                    )
                break
        if old and not snapshots:
            self._drop(label, was_removed=True)
            logging.info("Task %s is no longer served: its folder is gone.", label)
        path = posixpath.join(self._root, name) if self._root and not number else None
        if snapshots or path and gfile.exists(path):
            self._seen[label] = found.hashed()
        else:
            self._seen.pop(label, None)
        is_odd = path and gfile.isdir(path) and adapter_folders.is_task_name(name)
        if is_odd and not snapshots and not old:
            logging.warning(
                "Not served: %s: there is no task adapter in it, in its folder `adapter` or in a"
                " numbered one.",
                name,
            )

    def _try_to_put(self, label: str, snapshot: adapter_folders.Snapshot, lazy: bool) -> bool:
        """Puts a task; returns whether its folder is valid. The reason why not is logged once."""
        if self._damaged.get(snapshot.folder) == snapshot.files:
            return False
        try:
            if snapshot.folder != self._matched.get(label):
                adapter_folders.check_below(self._require_root(), snapshot.folder)
            self._put(label, snapshot, lazy)
        except memory.Exhausted:
            raise
        except Exception as error:  # One folder must not keep the others from starting.
            reason = str(error) if isinstance(error, UserError) else f"{snapshot.folder}: {error!r}"
            logging.warning("Not served: %s", reason)
            self._damaged[snapshot.folder] = snapshot.files
            return False
        if lazy:
            self._unread[label] = None
        return True

    def _check(self, label: str) -> None:
        """Reads the tensors of a task; if they are damaged, an older folder takes its place."""
        with self._locked(label):
            task = self._tasks.get(label)
            if label in self._unread and task is not None:
                source = self._sources[task.key]
                try:
                    what = f"Task {label}: {source.folder}"
                    with self._memory.reserved(_reading_bytes(source.folder), what):
                        self._bank.check(task.key)
                except memory.Exhausted:
                    raise
                except Exception as error:
                    logging.warning("Not served: %s", error)
                    self._damaged[source.folder] = source.files
                    self._drop(label)
                    self._look(label)
            self._unread.pop(label, None)

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
                served = [self._tasks[name].version] if name in self._tasks else [0]
                number = max([*served, *adapter_folders.version_numbers(task_folder)])
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
        """Removes a task from the server until its folders change; they stay.

        Raises:
          TaskNotServed: there is no such task.
        """
        with self._changing(name):
            task = self.get(name)
            self._pinned.pop(name, None)
            self._seen[name] = self._find(name).hashed()
            self._drop(name, was_removed=True)
        return task

    def _drop(self, label: str, was_removed: bool = False) -> None:
        """Removes what is served under a label; notes the time if its user removed it."""
        with self._lock:
            task = self._served(label).pop(label)
            if was_removed:
                self._removed[label] = time.time()
                for name in list(self._removed)[:-_MAX_REMOVED]:
                    del self._removed[name]
        self._retire(task.key)

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
        """Ends `update`, and waits until all removed versions have left the bank."""
        self._closed = True
        self._remover.shutdown()

    def _add_to_bank(self, label: str, folder: str, lazy: bool = False) -> ServedTask:
        """Adds a task adapter to the bank as the next version of a label."""
        name = label.partition("/")[0]
        self._counts[label] += 1
        key, where = f"{label}@{self._counts[label]}", f"Task {name}:"
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
            current = atomic.current_folder(folder)
            modified = gfile.modified_ns(f"{current}/{task_adapter.CONFIG_FILE}") // 10**9
            num_bytes = gfile.size(f"{current}/{task_adapter.TENSORS_FILE}")
        except BaseException:
            self._bank.remove(key)
            raise
        number = posixpath.basename(folder)
        version = int(number) if adapter_folders.is_version(number) else modified
        digest = (self._bank.sha256(key) or "")[:_DIGEST_DIGITS]
        return ServedTask(name, version, digest, modified, num_bytes, description, texts, key)

    def _acquire(self, label: str) -> ServedTask:
        self.read(label)
        with self._lock:
            task = self._get(label)
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
            del self._sources[key]
            self._remover.submit(self._bank.remove, key)

    @contextlib.contextmanager
    def _changing(self, label: str) -> Iterator[None]:
        """Locks a label, and reads it first if it was found; raises as `read` does."""
        with self._locked(label):
            if not self.is_read(label):
                self._read(label)
            yield

    def _read(self, label: str) -> None:
        """Adds a task that was found and reads its tensors; this thread has locked it."""
        if label in self._unread:
            self._check(label)
            return
        try:
            self._look(label)
        except memory.Exhausted:
            raise
        except UserError as error:
            logging.warning("Not served: %s: %s", label, error)
        self._found.pop(label, None)

    @contextlib.contextmanager
    def _locked(self, label: str) -> Iterator[None]:
        """Lets one thread at a time change a label; raises TimeoutError if it waits too long."""
        with self._lock:
            lock = self._change_locks.setdefault(label, threading.RLock())
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
        served = {os.path.realpath(source.folder) for source in list(self._sources.values())}
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

    def get(self, label: str) -> ServedTask:
        """Returns a label's `ServedTask`, always the same one; raises `TaskNotServed`."""
        with self._lock:
            if self._ended:
                raise TaskNotServed(f"The request for {label[:100]!r} has ended.")
            if label not in self._tasks:
                self._tasks[label] = self._acquire(label)
            return self._tasks[label]

    def tasks(self) -> List[ServedTask]:
        """Returns the leased `ServedTask`s, in the order of their first use."""
        return list(self._tasks.values())

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
