"""An adapter bank: any number of tasks over one frozen BERT, mixed in a batch.

    bank = AdapterBank(config, "bert/bert_model.ckpt", max_in_memory=100)
    bank.add("mrpc", "output/mrpc/adapter")
    bank.add("sms_spam", "output/spam/adapter")
    bank.predict([Row("sms_spam", ids, segments), Row("mrpc", ids, segments)])

Adding a task never changes earlier tasks (Houlsby et al. 2019, section 1). An adapter is read from
its folder when a batch needs it, and the least recently used one is evicted. ONNX Runtime computes
(`engine`); TensorFlow is needed only to convert a BERT once (`formats.onnx_backbone`).
"""

import collections
import itertools
import math
import os
import threading
import weakref
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from adapter_bert.files import atomic, gfile
from adapter_bert.formats import task_adapter
from adapter_bert.model import configs, model_variables, task_kinds
from adapter_bert.serving.inference import compatibility
from adapter_bert.serving.inference.batcher import BATCH_SIZE, MAX_BATCH_TOKENS
from adapter_bert.shell.errors import UserError

# The largest adapter, and the most outputs, of a task that shares a pass with others. A pass copies
# the tensors of each row's task, padded to the largest: over BERT-base, 0.6 GB for 32 such tasks.
_MAX_SHARED_SIZE = 128

POOLINGS = "mean", "cls"

# Floats per token of a batch that a layer keeps at once: of the hidden size, of the intermediate
# size, and attention's scores.
_HIDDENS, _INTERMEDIATES, _SCORES = 12, 3, 3

AdapterSource = Union[str, task_adapter.TaskAdapter]  # A folder, or the adapter itself.


class UnknownTask(UserError):
    """A task that is not in the bank."""


class Features(NamedTuple):
    """The layer output that represents a text.

    Attributes:
      layer: -1 is the last and 0 the first.
      pooling: "mean", over all tokens with [CLS] and [SEP]; or "cls", the output of [CLS].
    """

    layer: int = -1
    pooling: str = "mean"


class Row(NamedTuple):
    """A token sequence for one task.

    Attributes:
      task: its name in the bank; None for BERT without an adapter, which has features only.
      input_ids: ints, with [CLS] and [SEP] and without padding.
      segment_ids: ints, one for each id: 0 in the first text, 1 in the second.
      features: `Features`, to get these instead of a prediction; or None.
    """

    task: Optional[str]
    input_ids: Sequence[int]
    segment_ids: Sequence[int]
    features: Optional[Features] = None


class _Entry:
    """A task of the bank; replacing its adapter makes a new entry.

    Args:
      source: a folder, or the `task_adapter.TaskAdapter` itself.
      description: its `task_adapter.Description`.
      digest: its `_digest` from before the description was read. `read` fails if the folder was
        replaced since.
      sha256: that of the tensors' file in a folder.
      label: the folder's name in errors.
    """

    def __init__(
        self,
        source: AdapterSource,
        description: task_adapter.Description,
        digest: Optional[str],
        sha256: Optional[str],
        label: str,
    ):
        self.description, self.sha256 = description, sha256
        adapter = description.adapter
        # None without adapters: every session computes such a task.
        self.architecture = compatibility.architecture_of(adapter) if adapter else None
        self.kind = task_kinds.get(description.kind)
        self.num_outputs = self.kind.num_outputs(len(description.labels))
        # A deep adapter counts as a wide one with as many weights.
        width = description.backbone.bert_config().hidden_size
        shapes = model_variables.adapter_shapes(adapter, width).values() if adapter else ()
        matrices = [shape for shape in shapes if len(shape) > 1 and min(shape) > 1]
        size = sum(map(math.prod, matrices)) / (2 * width)
        self.shares_passes = max(size, self.num_outputs) <= _MAX_SHARED_SIZE
        self.loaded: Any = None  # In memory: `onnx_parameters.TaskArrays`.
        self.reading = threading.Lock()  # Held by the thread that reads the tensors.
        self._source, self._digest, self._label = source, digest, label

    def read(self) -> task_adapter.TaskAdapter:
        """Returns the `task_adapter.TaskAdapter`; raises UserError if it was replaced."""
        if not isinstance(self._source, str):
            return self._source
        where = f"{self._label} {self._source}"
        # The digest first: without it, each row of a replaced task would read all tensors.
        if _digest(self._source) in (None, self._digest):
            adapter = task_adapter.load(self._source, self._label)
            if _digest(self._source) == self._digest:
                task_adapter.check_finite(adapter.tensors, where)
                return adapter
        raise UserError(
            f"{where} holds another adapter than the one added to the bank: add it again."
        )


class AdapterBank:
    """Many tasks over one frozen BERT. Every method may be called from any thread.

    Args:
      config: `configs.BertConfig` of the BERT.
      init_checkpoint: prefix of its checkpoint, as in "bert/bert_model.ckpt".
      precision: "float32"; "int8", which quantizes the backbone's matrix products and changes
        results slightly; or "float16", on a GPU.
      max_in_memory: maximum number of tasks in memory; None for no limit. A batch of more tasks
        exceeds it until another task is read.
      num_threads: CPU threads of a batch; None for one for each core that the process may use.

    Attributes:
      backbone: `task_adapter.Backbone`.
      precision: str, as given.

    Raises:
      UserError: the checkpoint does not match the config; it is not converted yet and TensorFlow
        is not installed; or float16 finds no GPU.
    """

    def __init__(
        self,
        config: configs.BertConfig,
        init_checkpoint: str,
        *,
        precision: str = "float32",
        max_in_memory: Optional[int] = None,
        num_threads: Optional[int] = None,
    ):
        for name, value in (("max_in_memory", max_in_memory), ("num_threads", num_threads)):
            if value is not None and value < 1:
                raise UserError(f"{name} must be at least 1, but is {value}.")
        from adapter_bert.serving.inference import engine

        self.precision = precision
        self._engine = engine.Engine(config, init_checkpoint, precision, num_threads)
        folder = os.path.basename(os.path.dirname(os.path.abspath(init_checkpoint)))
        self.backbone = task_adapter.Backbone(folder, self._engine.fingerprint, config.to_dict())
        self._config, self._max_in_memory = config, max_in_memory
        bert = task_adapter.untrained(self.backbone)
        self._bert = _Entry(bert, bert.description, None, None, "")
        self._bert.loaded = self._engine.load(bert)
        self._entries: Dict[str, _Entry] = {}
        self._architectures: Any = collections.Counter()  # Of the entries.
        self._in_memory: Any = collections.OrderedDict()  # The most recently used last.
        self._lock = threading.Lock()  # Never held while tensors are read or computed.
        _banks.add(self)

    def add(
        self,
        name: str,
        adapter: Union[AdapterSource, "os.PathLike[str]"],
        *,
        replace: bool = False,
        lazy: bool = False,
        label: str = "Folder",
    ) -> task_adapter.Description:
        """Adds or replaces a task. A running batch keeps using the old adapter.

        Args:
          name: the task's name, by which rows ask for it.
          adapter: folder of a task adapter, or a `task_adapter.TaskAdapter`, which stays in memory.
          replace: bool; whether a task of that name may exist.
          lazy: bool; read a folder's tensors at the first batch for the task. If they are damaged
            or contain NaN or Inf, that batch fails.
          label: the folder's name in errors, such as the flag that names it.

        Returns:
          Its `task_adapter.Description`.

        Raises:
          UserError: the name is taken; or the adapter is damaged, was trained on another BERT,
            contains NaN or Inf, or trained parameters that tasks must share. The bank is unchanged.
        """
        if isinstance(adapter, os.PathLike):
            adapter = os.fspath(adapter)
        digest = _digest(adapter)
        if isinstance(adapter, str):
            where = f"{label} {adapter}"
            description, sha256 = task_adapter.describe_with_digest(adapter, label)
        else:
            where, description, lazy = f"The adapter of {name!r}", adapter.description, False
            sha256 = None
        # Before the tensors: a description of a billion layers would fill the memory with names.
        compatibility.check_compatible(description, self.backbone, where)
        if not lazy:
            _check_tensors(adapter, label, where)
        entry = _Entry(adapter, description, digest, sha256, label)
        with self._lock:
            if name in self._entries and not replace:
                raise UserError(f"The bank has a task {name!r} already.")
            self._unload(name)
            replaced = self._entries.get(name)
            self._entries[name] = entry  # At once: `predict` reads without the lock.
            self._count(entry, 1)
            if replaced:
                self._count(replaced, -1)
        self._free_sessions()
        return description

    def remove(self, name: str) -> None:
        """Removes a task; raises `UnknownTask`."""
        with self._lock:
            self._entry(name)
            self._unload(name)
            self._count(self._entries.pop(name), -1)
        self._free_sessions()

    def names(self) -> List[str]:
        """Returns the names of all tasks, a sorted list of str."""
        return sorted(self._entries)

    def names_in_memory(self) -> List[str]:
        """Returns the names of the tasks in memory, the most recently used last."""
        return list(self._in_memory)

    def is_in_memory(self, name: str) -> bool:
        """Returns whether a task's adapter is in memory."""
        return name in self._in_memory

    def describe(self, name: Optional[str]) -> task_adapter.Description:
        """Returns a task's `task_adapter.Description`, or BERT's; raises `UnknownTask`."""
        return self._entry(name).description

    def sha256(self, name: str) -> Optional[str]:
        """Returns the SHA-256 of the file of a task's tensors; None if it came without a folder."""
        return self._entry(name).sha256

    def check(self, name: str) -> None:
        """Reads a task's tensors and drops them; raises as `add` does without `lazy`."""
        self._entry(name).read()

    def load(self, name: str) -> None:
        """Reads a task into memory and builds its session, so that a batch need not wait for them.

        Raises:
          UnknownTask: the task is not in the bank.
          UserError: its adapter can no longer be read; too little memory is free for its variant.
        """
        with self._lock:
            entries = self._ask_for([name])
        # The session first: batches wait for the session of a task that is in memory.
        self._engine.session(entries[name].architecture or self._any_architecture())
        self._loaded(name, entries[name], entries)

    def predict(self, rows: Iterable[Row], return_errors: bool = False) -> List[Dict[str, Any]]:
        """Returns a prediction for each row, as its task's own model computes it.

        Args:
          rows: iterable of `Row`, of any tasks in any order.
          return_errors: if an adapter gives NaN or Inf for a row, return the UserError as that
            row's prediction.

        Returns:
          A dict for each row. By kind of task, it has "probabilities", float32 [L] for L labels;
          "prediction", a float; or "start_logits" and "end_logits", float32 [S] for S tokens. For
          a row with `Features`, "features", float32 [D].

        Raises:
          UnknownTask: a row's task is not in the bank.
          UserError: a row has invalid ids, length or features; an adapter can no longer be read, or
            gives NaN or Inf; too little memory is free for a further variant of the adapters.
        """
        rows = list(rows)
        for row in rows:
            self._check_row(row)
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index].input_ids))
        results: List[Any] = [None] * len(rows)
        for start in range(0, len(rows), BATCH_SIZE):
            batch = order[start : start + BATCH_SIZE]
            for index, result in zip(batch, self._predict_batch([rows[index] for index in batch])):
                if isinstance(result, UserError) and not return_errors:
                    raise result
                results[index] = result
        return results

    def renew(self) -> None:
        """Makes the bank of a parent process usable in a forked one, where this is called."""
        self._lock = threading.Lock()
        for entry in self._entries.values():
            entry.reading = threading.Lock()
        self._engine.renew()

    def close(self) -> None:
        """Frees the memory; the bank cannot be used afterwards."""
        self._engine.close()

    def _entry(self, name: Optional[str]) -> _Entry:
        try:
            return self._bert if name is None else self._entries[name]
        except KeyError:
            raise UnknownTask(f"There is no task {name!r} in the bank.") from None

    def _check_row(self, row: Row) -> None:
        config, length = self._config, len(row.input_ids)
        self._entry(row.task)
        if row.features or row.task is None:
            check_features(row.features, config)
        if not 0 < length <= config.max_position_embeddings or length != len(row.segment_ids):
            raise UserError(
                f"A row of task {row.task!r} has {length} input_ids and {len(row.segment_ids)}"
                f" segment_ids; expected equal numbers, 1 to {config.max_position_embeddings}."
            )
        for name, size in (
            ("input_ids", config.vocab_size),
            ("segment_ids", config.type_vocab_size),
        ):
            values = getattr(row, name)
            is_whole = np.asarray(values).dtype.kind in "biu"
            if not is_whole or min(values) < 0 or max(values) >= size:
                raise UserError(
                    f"A row of task {row.task!r} has {name} from {min(values)} to {max(values)};"
                    f" expected whole numbers from 0 to {size - 1}."
                )

    def _predict_batch(self, rows: List[Row]) -> List[Any]:
        """Returns the predictions of at most `BATCH_SIZE` rows, or a row's UserError."""
        with self._lock:
            entries = self._ask_for(row.task for row in rows)
        tasks = {name: self._loaded(name, entry, entries) for name, entry in entries.items()}
        results: List[Any] = [None] * len(rows)
        any_architecture = self._any_architecture(entry.architecture for entry in entries.values())
        passes: Dict[Any, List[int]] = {}  # Usually one, of all rows.
        for index, row in enumerate(rows):
            entry = entries[row.task]
            own_task = None if entry.shares_passes else row.task
            passes.setdefault((entry.architecture or any_architecture, own_task), []).append(index)
        for (architecture, _), indices in passes.items():
            group = [rows[index] for index in indices]
            group_entries = [entries[row.task] for row in group]
            outputs = self._engine.run(
                architecture,
                [(row.input_ids, row.segment_ids) for row in group],
                [tasks[row.task] for row in group],
                any(entry.kind.reads_tokens for entry in group_entries),
                [row.features.pooling if row.features else "" for row in group],
            )
            for index, *row_and_output in zip(indices, group, group_entries, *outputs):
                results[index] = _make_prediction(*row_and_output)
        return results

    def _ask_for(self, names: "Iterable[Optional[str]]") -> Dict[Any, _Entry]:
        """Returns the tasks' entries, and marks them as the most recently used."""
        entries = {name: self._entry(name) for name in names}
        for name in entries:
            if name in self._in_memory:
                self._in_memory.move_to_end(name)
        return entries

    def _loaded(self, name: Any, entry: _Entry, needed: Dict[Any, _Entry]) -> Any:
        """Returns a task's arrays, read if necessary; other batches keep running."""
        with entry.reading:
            loaded = entry.loaded
            if loaded is None:
                loaded = self._engine.load(entry.read())
                with self._lock:
                    if self._entries.get(name) is entry:  # Another thread may have replaced it.
                        self._evict(needed)
                        entry.loaded = loaded
                        self._in_memory[name] = None
        return loaded

    def _evict(self, needed: Dict[Any, _Entry]) -> None:
        """Evicts the least recently used tasks until there is room for one more."""
        if self._max_in_memory is not None:
            evictable = (name for name in self._in_memory if name not in needed)
            excess = max(0, len(self._in_memory) + 1 - self._max_in_memory)
            for name in list(itertools.islice(evictable, excess)):
                self._unload(name)

    def _any_architecture(
        self, batch: Iterable[Optional[configs.AdapterConfig]] = ()
    ) -> configs.AdapterConfig:
        """Returns an architecture for tasks without adapters.

        If possible, it is one of the batch's, else one that has a session, else one of the bank.
        """
        sessions, every = self._engine.architectures(), list(self._architectures)
        return next(filter(None, [*batch, *sessions, *every, compatibility.DEFAULT]))

    def _free_sessions(self) -> None:
        """Frees the sessions that no task needs; an empty bank keeps all for its next task."""
        with self._lock:
            needed = set(self._architectures)
        if needed:
            self._engine.keep_only({each or self._any_architecture(needed) for each in needed})

    def _count(self, entry: _Entry, change: int) -> None:
        """Counts an entry that was added, 1, or removed, -1."""
        self._architectures[entry.architecture] += change
        if not self._architectures[entry.architecture]:
            del self._architectures[entry.architecture]

    def _unload(self, name: str) -> None:
        """Drops a task's adapter from memory; running batches keep their reference."""
        if self._in_memory.pop(name, self) is None:
            self._entries[name].loaded = None


def memory_of(config: configs.BertConfig) -> Tuple[int, int]:
    """Returns about (bytes of a BERT's weights, bytes of the largest batch without adapters)."""
    shapes = model_variables.encoder_shapes(config).values()
    floats_per_token = (
        _HIDDENS * config.hidden_size
        + _INTERMEDIATES * config.intermediate_size
        + _SCORES * config.num_attention_heads * config.max_position_embeddings
    )
    return 4 * sum(map(math.prod, shapes)), 4 * MAX_BATCH_TOKENS * floats_per_token


_banks: "weakref.WeakSet[AdapterBank]" = weakref.WeakSet()


def _renew_banks() -> None:
    for each in _banks:
        each.renew()


os.register_at_fork(after_in_child=_renew_banks)


def _digest(source: AdapterSource) -> Optional[str]:
    """Returns a digest that identifies the adapter in a folder, or None."""
    if not isinstance(source, str):
        return None
    # This file has the digest of the tensors.
    path = f"{atomic.current_folder(source)}/{task_adapter.CONFIG_FILE}"
    return gfile.sha256(path) if gfile.exists(path) else None


def _check_tensors(source: AdapterSource, label: str, where: str) -> None:
    """Raises UserError if an adapter's tensors are damaged, incomplete or not finite."""
    if isinstance(source, str):
        source = task_adapter.load(source, label)
    else:
        task_adapter.check_tensors(source.tensors, source.description, where)
    task_adapter.check_finite(source.tensors, where)


def check_features(features: Optional[Features], config: configs.BertConfig) -> None:
    """Raises UserError unless a BERT has these `Features`."""
    if features is None or features.pooling not in POOLINGS:
        raise UserError(f"features: expected a pooling, {' or '.join(POOLINGS)}, got {features}.")
    num_layers = config.num_hidden_layers
    if not -num_layers <= features.layer < num_layers:
        raise UserError(
            f"The BERT has no layer {features.layer}; expected {-num_layers} to -1, counted from"
            f" the last, or 0 to {num_layers - 1}."
        )


def _make_prediction(
    row: Row, entry: _Entry, logits: np.ndarray, token_logits: np.ndarray, features: np.ndarray
) -> Any:
    """Returns a row's features, or its prediction, cut to its task's outputs; or a UserError."""
    if row.features:
        values = features[row.features.layer]
    elif entry.kind.reads_tokens:
        values = token_logits[: len(row.input_ids), : entry.num_outputs]
    else:
        values = logits[: entry.num_outputs]
    if not np.isfinite(values).all():
        return UserError(f"Task {row.task!r}: its adapter gives NaN or Inf for this text.")
    return {"features": values} if row.features else entry.kind.decode(values)
