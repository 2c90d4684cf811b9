"""A bank: the adapters of any number of tasks over one frozen BERT, which a batch may mix.

    bank = AdapterBank(config, "bert/bert_model.ckpt", max_in_memory=100)
    bank.add("mrpc", "output/mrpc/adapter")
    bank.add("sms_spam", "output/spam/adapter")
    bank.predict([Row("sms_spam", ids, segments), Row("mrpc", ids, segments)])

Tasks come and go one by one, and none touches another (Houlsby et al. 2019, section 1). What is not
in memory is read from its folder when a batch asks for it, and what was asked for longest ago makes
room. `encoder` is the model.
"""

import collections
import threading
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Union

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.common import devices, files, task_kinds
from adapter_bert.common.errors import UserError
from adapter_bert.formats import adapter_checkpoints, checkpoints, task_adapter
from adapter_bert.serving import encoder
from adapter_bert.serving.batcher import BATCH_SIZE
from adapter_bert.training import input_pipeline

AdapterSource = Union[str, task_adapter.TaskAdapter]  # A folder, or the adapter itself.

_INITIAL_ROWS = {"task": 4, "pooler": 1, "bottleneck": 65, "output": 9}
_BATCH_SIZES = (1, 2, 4, 8, *range(12, BATCH_SIZE + 1, 4))
_ADAPTER_SIZES = tuple(1 << power for power in range(13))
_GROWTH_FACTOR = 1.25  # Copies each value 4 times on average, and leaves a tenth unused.


class UnknownTask(UserError):
    """A task that is not in the bank."""


class Row(NamedTuple):
    """A sequence of one task.

    Attributes:
      task: its name in the bank.
      input_ids: ints, with [CLS] and [SEP] and without padding.
      segment_ids: as many ints.
    """

    task: str
    input_ids: Sequence[int]
    segment_ids: Sequence[int]


class _Entry:
    """A task of the bank; another adapter of the same name is another entry.

    Args:
      source: a folder, or the `task_adapter.TaskAdapter` itself.
      description: its `task_adapter.Description`.
      digest: its `_digest` from before that was read, so that a folder which is replaced
        meanwhile is refused when it is read again.
      called: what errors call a folder.
    """

    def __init__(
        self,
        source: AdapterSource,
        description: task_adapter.Description,
        digest: Optional[str],
        label: str,
    ):
        self.description = description
        self.architecture = encoder.architecture_of(description.adapter)
        self.slots: Any = None  # In memory: `encoder.SlotIndices`.
        self._source, self._digest, self._label = source, digest, label

    def read(self) -> task_adapter.TaskAdapter:
        """The `task_adapter.TaskAdapter`, which must be the one that was added."""
        if not isinstance(self._source, str):
            return self._source
        where = f"{self._label} {self._source}"
        adapter = task_adapter.load(self._source, self._label)
        if _digest(self._source) != self._digest:
            raise UserError(
                f"{where} holds another adapter than the one that was added to the bank: add it"
                " again."
            )
        task_adapter.check_finite(adapter.tensors, where)
        return adapter


class AdapterBank:
    """Many tasks over one BERT. Every method may be called from any thread.

    Args:
      config: `modeling.BertConfig`.
      init_checkpoint: prefix of the pretrained checkpoint.
      precision: one of `configs.PRECISIONS`.
      max_in_memory: how many tasks the memory holds, None for all that were asked for. A batch of
        more tasks than that has them all in memory until the next one.
      lengths: ascending ints, what the longest row of a batch is padded to the next of. Each is
        compiled when it first comes, and fewer are compiled sooner.

    Attributes:
      backbone: `task_adapter.Backbone`.
      precision: what it computes in.

    Raises:
      UserError: the checkpoint is not that BERT's.
    """

    def __init__(
        self,
        config: modeling.BertConfig,
        init_checkpoint: str,
        *,
        precision: str = "float32",
        max_in_memory: Optional[int] = None,
        lengths: Sequence[int] = input_pipeline.BUCKETS,
    ):
        if max_in_memory is not None and max_in_memory < 1:
            raise UserError(f"max_in_memory must be at least 1, but is {max_in_memory}.")
        checkpoints.check_encoder(init_checkpoint, config)
        self.backbone = adapter_checkpoints.backbone_of(init_checkpoint, config)
        precision = devices.choose_precision(
            precision, False, (config.hidden_size, config.intermediate_size)
        )
        self.precision = precision
        self._model = _Model(config, init_checkpoint, precision, lengths)
        self._config, self._max_in_memory = config, max_in_memory
        self._entries = {}  # Never changed, but replaced: it can be read at any time.
        self._in_memory = collections.OrderedDict()  # Names, the one asked for last at the end.
        self._lock = threading.Lock()  # Of whoever replaces these, or uses the model.

    def add(
        self,
        name: str,
        adapter: AdapterSource,
        *,
        replace: bool = False,
        lazy: bool = False,
        label: str = "Folder",
    ) -> task_adapter.Description:
        """Adds a task, or replaces it: batches under way get all of the old one, later ones none.

        Args:
          name: str.
          adapter: folder of a task adapter, or a `task_adapter.TaskAdapter`, which then stays in
            the process's memory.
          replace: bool; whether there may be a task of that name.
          lazy: bool; leave the tensors of a folder unread until a batch asks for the task, which
            is then refused if they are damaged or diverged.
          label: what errors call a folder, such as the flag that named it.

        Returns:
          Its `task_adapter.Description`.

        Raises:
          UserError: the name is taken; the adapter is damaged, or of another BERT, or trained more
            than a bank can hold, or diverged. The bank is then as it was.
        """
        digest = _digest(adapter)
        if isinstance(adapter, str):
            where, description = f"{label} {adapter}", task_adapter.describe(adapter, label)
        else:
            where, description, lazy = f"The adapter of {name!r}", adapter.description, False
        # First: a BERT of a billion layers would fill the memory with the names of its tensors.
        encoder.check_compatible(description, self.backbone, where)
        if not lazy:
            _check_tensors(adapter, label, where)
        entry = _Entry(adapter, description, digest, label)
        with self._lock:
            if name in self._entries and not replace:
                raise UserError(f"There is a task {name!r} in the bank already.")
            self._unload(name)
            self._entries = {**self._entries, name: entry}
        return description

    def remove(self, name: str) -> None:
        """Removes a task; raises `UnknownTask`."""
        with self._lock:
            self._entry(name)
            self._unload(name)
            self._entries = {other: e for other, e in self._entries.items() if other != name}

    def names(self) -> List[str]:
        """All tasks, a sorted list of str."""
        return sorted(self._entries)

    def names_in_memory(self) -> List[str]:
        """Those whose adapters are in memory, the one that was asked for last at the end."""
        return list(self._in_memory)

    def describe(self, name: str) -> task_adapter.Description:
        """The `task_adapter.Description` of a task; raises `UnknownTask`."""
        return self._entry(name).description

    def predict(self, rows: Iterable[Row]) -> List[Dict[str, Any]]:
        """What each task's own model would say.

        Args:
          rows: iterable of `Row`, of any tasks in any order.

        Returns:
          A list of a dict for each row, as the tasks' heads predict: "probabilities", float32 [L];
          "prediction", a float; or "start_logits" and "end_logits", float32 [S] for S tokens.

        Raises:
          UnknownTask: a row's task is not in the bank.
          UserError: a row is no sequence of this BERT; an adapter cannot be read any more, or gives
            NaN or Inf.
        """
        rows = list(rows)
        for row in rows:
            self._check_row(row)
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index].input_ids))
        results: List[Any] = [None] * len(rows)
        for start in range(0, len(rows), BATCH_SIZE):
            batch = order[start : start + BATCH_SIZE]
            for index, result in zip(batch, self._predict_batch([rows[index] for index in batch])):
                results[index] = result
        return results

    def close(self) -> None:
        """Frees the memory; the bank is of no use then."""
        with self._lock:
            self._model.close()

    def _entry(self, name: str) -> _Entry:
        try:
            return self._entries[name]
        except KeyError:
            raise UnknownTask(f"There is no task {name!r} in the bank.") from None

    def _check_row(self, row: Row) -> None:
        config, length = self._config, len(row.input_ids)
        self._entry(row.task)
        if not 0 < length <= config.max_position_embeddings or length != len(row.segment_ids):
            raise UserError(
                f"A row of task {row.task!r} has {length} input_ids and {len(row.segment_ids)}"
                f" segment_ids, expected as many of both, 1 to {config.max_position_embeddings}."
            )
        for name, size in (
            ("input_ids", config.vocab_size),
            ("segment_ids", config.type_vocab_size),
        ):
            values = getattr(row, name)
            if min(values) < 0 or max(values) >= size:
                raise UserError(
                    f"A row of task {row.task!r} has {name} from {min(values)} to {max(values)},"
                    f" expected 0 to {size - 1}."
                )

    def _predict_batch(self, rows: List[Row]) -> List[Dict[str, Any]]:
        """`predict` for as many rows as one pass takes."""
        names, adapters_read = dict.fromkeys(row.task for row in rows), {}
        while True:
            with self._lock:
                entries = {name: self._entry(name) for name in names}
                missing = [
                    e for e in entries.values() if e.slots is None and e not in adapters_read
                ]
                if not missing:
                    self._load_adapters(entries, adapters_read)
                    return self._run(rows, entries)
            for entry in missing:  # Other threads' batches may go on meanwhile.
                adapters_read[entry] = entry.read()

    def _load_adapters(
        self, entries: Dict[str, _Entry], adapters_read: Dict[_Entry, task_adapter.TaskAdapter]
    ) -> None:
        """Has the adapters of some entries in memory, and no more others than there is room for."""
        for name in entries:
            if name in self._in_memory:
                self._in_memory.move_to_end(name)
        for name, entry in entries.items():
            if entry.slots is None:
                self._evict(entries)
                entry.slots = self._model.load(adapters_read[entry])
                self._in_memory[name] = None

    def _evict(self, needed: Dict[str, _Entry]) -> None:
        """Forgets the tasks that were asked for longest ago, until there is room for one more."""
        if self._max_in_memory is not None:
            evictable = [name for name in self._in_memory if name not in needed]
            for name in evictable[: max(0, len(self._in_memory) + 1 - self._max_in_memory)]:
                self._unload(name)

    def _unload(self, name: str) -> None:
        """Takes a task's adapter out of memory, if it is there."""
        if self._in_memory.pop(name, self) is None:
            self._model.free(self._entries[name].slots)
            self._entries[name].slots = None

    def _run(self, rows: List[Row], entries: Dict[str, _Entry]) -> List[Dict[str, Any]]:
        """One pass for each kind of adapters, in practice one for all."""
        results: List[Any] = [None] * len(rows)
        by_architecture = {}
        for index, row in enumerate(rows):
            by_architecture.setdefault(entries[row.task].architecture, []).append(index)
        for architecture, indices in by_architecture.items():
            group = [rows[index] for index in indices]
            descriptions = [entries[row.task].description for row in group]
            outputs = self._model.run(
                architecture,
                group,
                [entries[row.task].slots for row in group],
                any(task_kinds.get(description.kind).reads_tokens for description in descriptions),
            )
            for index, *row_and_output in zip(indices, group, descriptions, *outputs):
                results[index] = _make_prediction(*row_and_output)
        return results


def _digest(source: AdapterSource) -> Optional[str]:
    """What tells a folder's adapter from another; None where there is no folder's."""
    if not isinstance(source, str):
        return None
    path = f"{files.current_folder(source)}/{task_adapter.CONFIG_FILE}"  # Has the tensors' digest.
    return files.sha256(path) if files.exists(path) else None


def _check_tensors(source: AdapterSource, label: str, where: str) -> None:
    """Raises UserError if an adapter's tensors are damaged, incomplete or not finite."""
    if isinstance(source, str):
        source = task_adapter.load(source, label)
    else:
        task_adapter.check_tensors(source.tensors, source.description, where)
    task_adapter.check_finite(source.tensors, where)


def _make_prediction(
    row: Row, description: task_adapter.Description, logits, token_logits
) -> Dict[str, Any]:
    """A row's outputs as its task's own head would give them."""
    kind = task_kinds.get(description.kind)
    if kind.reads_tokens:
        logits = token_logits[: len(row.input_ids)]
    logits = logits[..., : kind.num_outputs(len(description.labels))]
    if not np.isfinite(logits).all():
        raise UserError(f"Task {row.task!r}: its adapter gives NaN or Inf for this text.")
    return kind.decode(logits)


def _pad_batch(
    rows: List[Row], slots: List[encoder.SlotIndices], lengths: Sequence[int], max_length: int
) -> tuple:
    """A batch of few shapes: each new one costs the compilation of its kernels.

    Returns:
      Values for `encoder.placeholders`. It has more rows than `rows` where that
      makes a rounder number, and they are the last one again.
    """
    num_missing = _round_up(len(rows), _BATCH_SIZES) - len(rows)
    rows, slots = rows + rows[-1:] * num_missing, slots + slots[-1:] * num_missing
    length = min(max_length, _round_up(max(len(row.input_ids) for row in rows), lengths))
    input_ids, input_mask, segment_ids = np.zeros([3, len(rows), length], np.int32)
    for index, row in enumerate(rows):
        span = slice(len(row.input_ids))
        input_ids[index, span], input_mask[index, span] = row.input_ids, 1
        segment_ids[index, span] = row.segment_ids
    adapter_size = _round_up(max(len(row_slots.bottleneck) for row_slots in slots), _ADAPTER_SIZES)
    return encoder.batch_slots(slots, adapter_size), input_ids, input_mask, segment_ids


def _round_up(value: int, steps: Sequence[int]) -> int:
    """The first of ascending steps that is not below a value, or the value beyond them all."""
    return next((step for step in steps if step >= value), value)


class _RowPool:
    """The numbers of a table's rows, of which some are free."""

    def __init__(self, size: int, num_pads: int):
        self.size = size
        self._free = list(range(size - 1, num_pads - 1, -1))

    def shortage(self, count: int) -> int:
        """How many more rows there must be for so many to be free."""
        return max(0, count - len(self._free))

    def grow(self, count: int) -> None:
        self._free[:0] = range(self.size + count - 1, self.size - 1, -1)
        self.size += count

    def allocate(self, count: int) -> List[int]:
        return [self._free.pop() for _ in range(count)]

    def free(self, rows: List[int]) -> None:
        self._free.extend(reversed(rows))


class _Model:
    """`encoder` in a graph and a session of its own, and which rows of the tables are whose.

    One thread at a time may call it.
    """

    def __init__(
        self,
        config: modeling.BertConfig,
        init_checkpoint: str,
        precision: str,
        lengths: Sequence[int],
    ):
        self._config, self._init_checkpoint = config, init_checkpoint
        self._precision, self._lengths = precision, lengths
        self._pools = {
            pool: _RowPool(size, encoder.RESERVED_ROWS[pool])
            for pool, size in _INITIAL_ROWS.items()
        }
        self._graph = tf.Graph()
        with self._graph.as_default():
            self.tables = encoder.Tables(config, _INITIAL_ROWS, precision)
            self._inputs = encoder.placeholders()
            self._session = tf.Session(config=devices.session_config())
            self._session.run(tf.variables_initializer(list(self.tables.variables.values())))
            self._updates, self._growth = self._build_updates(), self._build_growth()
        self._fetches = {}  # By architecture, and whether there are token logits.
        self._backbone_rows = encoder.backbone_rows(config, init_checkpoint)
        for name, value in encoder.reserved_row_values(self._backbone_rows).items():
            rows, values, update = self._updates[name]
            self._session.run(update, {rows: [0], values: [value]})

    def _build_updates(self):
        """By table: (placeholder of rows' numbers, of their values, operation that writes them)."""
        rows = {pool: tf.placeholder(tf.int32, [None]) for pool in encoder.RESERVED_ROWS}
        updates = {}
        for name, table in self.tables.variables.items():
            indices = rows[encoder.pool_of(name)]
            values = tf.placeholder(tf.float32, [None, *table.shape[1:]])
            update = tf.raw_ops.ResourceScatterUpdate(
                resource=table.handle, indices=indices, updates=tf.cast(values, table.dtype)
            )
            updates[name] = indices, values, update
        return updates

    def _build_growth(self):
        """By pool: (placeholder of how many rows more, operation that gives its tables these)."""
        growth = {}
        for pool in encoder.RESERVED_ROWS:
            num_new, assignments = tf.placeholder(tf.int32, []), []
            for name, table in self.tables.variables.items():
                if encoder.pool_of(name) == pool:
                    zeros = tf.zeros(tf.stack([num_new, *table.shape.as_list()[1:]]), table.dtype)
                    assignments.append(table.assign(tf.concat([table, zeros], 0), read_value=False))
            growth[pool] = num_new, tf.group(*assignments)
        return growth

    def load(self, adapter: task_adapter.TaskAdapter) -> encoder.SlotIndices:
        """Writes an adapter into the tables; returns its `encoder.SlotIndices`."""
        rows = {}
        try:
            for pool, count in encoder.rows_needed(adapter).items():
                rows[pool] = self._allocate(pool, count)
            slots = encoder.slots_of(rows)
            self._write(adapter, slots)
        except BaseException:
            self._free_rows(rows)
            raise
        return slots

    def _write(self, adapter: task_adapter.TaskAdapter, slots: encoder.SlotIndices) -> None:
        tensors = {**self._backbone_rows, **adapter.tensors}
        feed = {}
        for name, rows_and_values in encoder.table_rows(self._config, tensors, slots).items():
            feed.update(zip(self._updates[name], rows_and_values))
        self._session.run([update for _, _, update in self._updates.values()], feed)

    def free(self, slots: encoder.SlotIndices) -> None:
        """Gives the rows of a task back."""
        self._free_rows(encoder.rows_by_pool(slots))

    def _free_rows(self, rows: Dict[str, List[int]]) -> None:
        for pool, indices in rows.items():
            self._pools[pool].free(indices)

    def _allocate(self, name: str, count: int) -> List[int]:
        pool = self._pools[name]
        if pool.shortage(count):
            num_new = max(pool.shortage(count), int(pool.size * (_GROWTH_FACTOR - 1)))
            size, grow = self._growth[name]
            self._session.run(grow, {size: num_new})
            pool.grow(num_new)
        return pool.allocate(count)

    def run(
        self,
        architecture: encoder.Architecture,
        rows: List[Row],
        slots: List[encoder.SlotIndices],
        has_token_logits: bool,
    ) -> tuple:
        """The outputs of a batch.

        Args:
          architecture: `encoder.Architecture` of its adapters.
          rows: list of `Row`.
          slots: list of the `encoder.SlotIndices` of their tasks.
          has_token_logits: whether a row's task reads the output of each token.

        Returns:
          (logits [B, L], token_logits [B, S, L]), arrays; of None where no task reads tokens.
        """
        if (architecture, has_token_logits) not in self._fetches:
            self._build(architecture, has_token_logits)
        batch = _pad_batch(rows, slots, self._lengths, self._config.max_position_embeddings)
        feed = dict(zip(tf.nest.flatten(self._inputs), tf.nest.flatten(batch)))
        logits, *token_logits = self._session.run(
            self._fetches[architecture, has_token_logits], feed
        )
        return logits, (token_logits[0] if has_token_logits else [None] * len(rows))

    def _build(self, architecture: encoder.Architecture, has_token_logits: bool) -> None:
        with self._graph.as_default():
            num_known = len(tf.trainable_variables())
            outputs = encoder.build(
                self._config,
                architecture,
                self.tables,
                *self._inputs,
                with_token_logits=has_token_logits,
                precision=self._precision,
            )
            new_variables = tf.trainable_variables()[num_known:]
            if new_variables:  # The first time.
                assignment, _ = modeling.get_assignment_map_from_checkpoint(
                    new_variables, self._init_checkpoint
                )
                tf.train.init_from_checkpoint(self._init_checkpoint, assignment)
                self._session.run(tf.variables_initializer(new_variables))
        self._fetches[architecture, has_token_logits] = [
            tensor for tensor in outputs if tensor is not None
        ]

    def close(self) -> None:
        self._session.close()
