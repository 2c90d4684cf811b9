"""Serves what is on disk: adds, replaces and removes tasks as the folders of their adapters change.

    task_folders.TaskFolders  ->  registry.Registry  ->  served_tasks.ServedTasks
    what is on disk               the difference         what is served

`Registry.update` looks at all folders: at the start, at each poll, and at SIGHUP. A request for a
task that is not read yet, or whose folder has just changed, looks at that task's folders at once.
"""

import contextlib
import functools
import gc
import threading
import weakref
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from absl import logging

from adapter_bert.formats import adapter_folders
from adapter_bert.serving.http import served_tasks, task_folders
from adapter_bert.serving.inference import memory
from adapter_bert.shell.errors import UserError

CHANGE_SECONDS = 60.0  # Maximum time of a change, and that a change of the same task waits for.
_FREEZE_EVERY = 256  # Tasks.


class Registry:
    """The difference between folders and served tasks. Any thread may call every method.

    Attributes:
      folders: `task_folders.TaskFolders`.
      served: `served_tasks.ServedTasks`; only this object may change them.
    """

    def __init__(self, folders: task_folders.TaskFolders, served: served_tasks.ServedTasks):
        self.folders, self.served = folders, served
        self._seen: Dict[str, task_folders.Snapshots] = {}  # By label: at the last look.
        # Names that no update has looked at yet, or that were added by their descriptions only.
        self._unread: Dict[str, None] = {}
        self._damaged: Dict[str, adapter_folders.Snapshot] = {}  # By folder.
        self._problems: Dict[str, str] = {}  # By label, or "" for all: logged at the last update.
        self._is_loaded = False  # Whether the first update has read all descriptions.
        self._closed = False
        # By label, while an adapter is read and added: one that hangs blocks no other task.
        self._locks = weakref.WeakValueDictionary()
        self._lock = threading.Lock()  # Of these locks.

    def start(self) -> None:
        """Serves the tasks of the patterns, and finds the names below the root for `update`.

        Raises UserError if an adapter is invalid, or as the methods of `TaskFolders` do.
        """
        for name, folder in self.folders.match().items():
            task = self._serve(name, task_folders.snapshot(folder))
            self._seen[name] = (task.source,)
        self._labels()

    def _labels(self) -> List[str]:
        """Returns the labels of all that is on disk or served; notes the new ones as unread."""
        names = self.folders.names()
        self._unread.update((name, None) for name in names if name not in self._seen)
        return list(dict.fromkeys([*names, *self._seen]))

    def update(self) -> bool:
        """Adds, replaces and removes what differs on disk; returns whether anything has changed.

        A task is served from the first valid one of its folders, and stays as it is if none is
        valid. The first update adds all tasks by their descriptions before it reads tensors.
        """
        try:
            labels = self._labels()
        except (OSError, UserError) as error:
            self._warn_once("", f"The tasks stay as they are: {error}")
            return False
        self._problems.pop("", None)
        has_changed = self._for_each(labels, self._update)
        self._is_loaded = True
        self._for_each([name for name in [*self._unread] if name in self.served], self.read)
        return has_changed

    def _for_each(self, labels: List[str], function: Callable[[str], Optional[bool]]) -> bool:
        """Calls a function of each label; returns whether any returned True. Logs their errors."""
        result = False
        for index, label in enumerate(labels):
            if self._closed:
                break
            try:
                result |= bool(function(label))
                self._problems.pop(label, None)
            except Exception as error:  # One task must not keep the others from loading.
                self._warn_once(label, f"Not served: {label}: {str(error) or repr(error)}")
            if not self._is_loaded and index % _FREEZE_EVERY == _FREEZE_EVERY - 1:
                gc.freeze()  # A collection would scan all descriptions, and stop all threads.
        return result

    def _update(self, label: str) -> bool:
        """Looks at a label's folders if they have changed, and returns whether they have."""
        if self._snapshots(label) == self._seen.get(label):
            return False
        with self._locked(label):
            if self._snapshots(label) == self._seen.get(label):
                return False  # A request has seen them meanwhile.
            # Only a valid adapter replaces another one.
            self._look(label, lazy=not self._is_loaded and label not in self.served)
        return True

    def _snapshots(self, label: str) -> task_folders.Snapshots:
        """Returns the folders from which a label may be served, the first one first.

        A folder that a request has put goes first, until the label's own ones change. A numbered
        version has none without its task.
        """
        if label.partition("/")[0] not in self.served and "/" in label:
            return ()
        own, task = self.folders.snapshots(label), self.served.find(label)
        if task is None or task.source.folder in [snapshot.folder for snapshot in own]:
            return own
        put = adapter_folders.snapshot(task.source.folder)
        seen = (each for each in self._seen.get(label, ()) if each.folder != task.source.folder)
        return (put, *own) if put and own in ((), tuple(seen)) else own

    def _look(self, label: str, lazy: bool = False) -> None:
        """Serves a label, which this thread has locked, from the first valid one of its folders."""
        snapshots, old = self._snapshots(label), self.served.find(label)
        for snapshot in snapshots:
            if old and snapshot == old.source:
                break
            if self._try(snapshot, functools.partial(self._serve, label, snapshot, lazy)):
                break
        if old and not snapshots:
            self.served.drop(label, was_removed=True)
            logging.info("Task %s is no longer served: its folder is gone.", label)
        may_exist = "/" not in label  # Else a request has written it: not a path to look at.
        if snapshots or (may_exist and self.folders.exists(label)):
            self._seen[label] = snapshots
        else:
            self._seen.pop(label, None)
        is_odd = adapter_folders.is_task_name(label) and self.folders.exists(label, is_folder=True)
        if is_odd and not snapshots and not old:
            logging.warning(
                "Not served: %s: there is no task adapter in it, in its folder `adapter` or in a"
                " numbered one.",
                label,
            )
        if label not in self.served:
            self._unread.pop(label, None)

    def _try(self, source: adapter_folders.Snapshot, read: Callable[[], Any]) -> bool:
        """Calls a function that reads a folder; logs once and returns False if that fails."""
        if self._damaged.get(source.folder) == source:
            return False
        try:
            read()
        except memory.Exhausted:
            raise
        except Exception as error:  # One folder must not keep the others from starting.
            reason = str(error) if isinstance(error, UserError) else f"{source.folder}: {error!r}"
            logging.warning("Not served: %s", reason)
            self._damaged[source.folder] = source
            return False
        return True

    def _serve(
        self, label: str, source: adapter_folders.Snapshot, lazy: bool = False
    ) -> served_tasks.ServedTask:
        """Serves a folder; `lazy`: its tensors are known to be valid, or are checked later."""
        self.folders.check(label, source.folder)
        old, task = self.served.find(label), self.served.serve(label, source, lazy)
        if self._is_loaded:
            logging.info("Task %s: serving version %d, %s.", label, task.version, source.folder)
        elif old:
            folders = source.folder, old.source.folder
            logging.warning("%r is served from %s, not from %s.", label, *folders)
        if lazy and not self._is_loaded:
            self._unread[label] = None
        else:
            self._unread.pop(label, None)
        return task

    def num_loading(self) -> int:
        """Returns the number of tasks that the first update has not added yet."""
        return 0 if self._is_loaded else sum(name not in self.served for name in [*self._unread])

    def _is_read(self, label: str) -> bool:
        is_known = "/" not in label or self.served.resolve(label) is not None
        return label not in self._unread and is_known

    def read(self, label: str) -> None:
        """Looks at a label, or reads its tensors, for the first time.

        Raises `memory.Exhausted`, or TimeoutError if another thread changes the task for too long.
        """
        if self._is_read(label):
            return
        with self._locked(label):
            if self._is_read(label):  # By another thread.
                return
            task = self.served.find(label)
            if task and not self._try(task.source, lambda: self.served.check(task)):
                self.served.drop(label)
            try:
                if label not in self.served:
                    self._look(label)
            except memory.Exhausted:
                raise
            except UserError as error:
                logging.warning("Not served: %s: %s", label, error)
            self._unread.pop(label, None)

    def is_ready(self, label: str) -> bool:
        """Returns whether `prepare` has nothing to do."""
        name, task = label.partition("/")[0], self.served.resolve(label)
        is_read = self._is_read(name) and self._is_read(label)
        return is_read and (task is None or self.served.is_in_memory(task))

    def prepare(self, label: str) -> None:
        """Serves a label if it is on disk and valid, and reads its adapter into memory.

        If the adapter can no longer be read, looks whether its folders have changed. Raises as
        `read` does.
        """
        name = label.partition("/")[0]
        self.read(name)
        self.read(label)
        for _ in range(2):  # What is not mended then, the batch reports.
            task = self.served.resolve(label)
            if task is None or self.served.load([task]):
                return
            self._update(label if label in self.served else name)

    def versions(self, name: str) -> List[Tuple[int, bool]]:
        """Returns (number, whether it is served) of a task's versions; raises `TaskNotServed`.

        They are the current one and the numbered folders that are not damaged, the newest first.
        """
        numbers = {self.served.get(name).version: True}
        for snapshot in self._seen.get(name, ()):
            number = self.folders.number(name, snapshot.folder)
            if number and self._damaged.get(snapshot.folder) != snapshot:
                numbers.setdefault(number, f"{name}/{number}" in self.served)
        return sorted(numbers.items(), reverse=True)

    def put(self, name: str, folder: str, *, lazy: bool = False) -> served_tasks.ServedTask:
        """Serves a task from a folder until the folders of its name change.

        Raises UserError if its name or adapter is invalid; then nothing changes.
        """
        adapter_folders.check_task_name(name)
        with self._locked(name):
            self.read(name)
            task = self._serve(name, task_folders.snapshot(folder), lazy)
            self._seen[name] = self._snapshots(name)
        return task

    def put_below_root(self, name: str, path: str) -> served_tasks.ServedTask:
        """Calls `put` for a path in a request, which must be below the root."""
        return self.put(name, self.folders.resolve(path))

    def upload(self, name: str, contents: Mapping[str, BinaryIO]) -> served_tasks.ServedTask:
        """Saves the two files of a task adapter as `<root>/<name>/<number>`, and serves it.

        Raises `gfile.WriteError`, or UserError as `put` does; then nothing is saved.
        """
        adapter_folders.check_task_name(name)  # Before it becomes a path.
        with self._locked(name):
            self.read(name)
            old = self.served.find(name)
            check = functools.partial(self.served.check_folder, name)
            last_version = old.version if old else 0
            with self.folders.upload(name, contents, last_version, check) as folder:
                task = self.put(name, folder, lazy=True)
            self.folders.remove_old_uploads(name, self.served.used_folders())
        return task

    def remove(self, name: str) -> served_tasks.ServedTask:
        """Removes a task until its folders change; they stay. Raises `TaskNotServed`."""
        with self._locked(name):
            self.read(name)
            task = self.served.get(name)
            self._seen[name] = self.folders.snapshots(name)
            self.served.drop(name, was_removed=True)
        return task

    def close(self) -> None:
        """Ends `update`, and waits until all removed versions have left the bank."""
        self._closed = True
        self.served.close()

    @contextlib.contextmanager
    def _locked(self, label: str) -> Iterator[None]:
        """Lets one thread at a time change a label; raises TimeoutError if it waits too long."""
        with self._lock:
            lock = self._locks.setdefault(label, threading.RLock())
        if not lock.acquire(timeout=CHANGE_SECONDS):
            raise TimeoutError
        try:
            yield
        finally:
            lock.release()

    def _warn_once(self, label: str, sentence: str) -> None:
        if self._problems.get(label) != sentence:
            logging.warning(sentence)
        self._problems[label] = sentence
