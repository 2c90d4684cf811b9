"""SavedModels of one backbone and tasks over it, for plain TensorFlow 2 and TensorFlow Serving.

Signatures take token ids, or raw text with `in_graph_tokenizer`; where there are several tasks they
take each row's, too. Label names lie inside. A SavedModel needs nothing of this project, and
nothing in it is compiled by XLA, which a server may lack.

Axes in shape comments: B batch, S positions, L the most labels that a task has.
"""

import collections
import dataclasses
import posixpath
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.common import configs, devices, files
from adapter_bert.common.errors import UserError
from adapter_bert.formats import task_adapter
from adapter_bert.ops import xla
from adapter_bert.serving import encoder as mixed_encoder

Adapters = Dict[str, task_adapter.TaskAdapter]

TASKS_FILE = "assets.extra/tasks.json"  # Their descriptions, for people and programs.


def write(
    folder: str,
    config: configs.BertConfig,
    init_checkpoint: str,
    adapters: Adapters,
    encode: Optional[Callable] = None,
) -> str:
    """Writes a SavedModel into a new numbered folder, as TensorFlow Serving expects them.

    Args:
      folder: the model's; the SavedModel is in `<folder>/<number>`, the number after the last.
      config: `configs.BertConfig`.
      init_checkpoint: prefix of the pretrained checkpoint.
      adapters: ordered dict from names of tasks to `task_adapter.TaskAdapter`, all over this BERT.
        With a single one no signature asks for a task.
      encode: what `in_graph_tokenizer.encoder` returns; None leaves signatures of raw
        text out.

    Returns:
      Path of the SavedModel.

    Raises:
      UserError: the adapters cannot share a graph; the folder cannot be written.
    """
    kind = _common_architecture(adapters)
    places, values = _laid_out(
        config, mixed_encoder.backbone_rows(config, init_checkpoint), adapters
    )
    with tf.Graph().as_default() as graph, xla.portable():
        sizes = {mixed_encoder.pool_of(name): len(value) for name, value in values.items()}
        tables = mixed_encoder.Tables(config, sizes)
        model = _Model(config, kind, tables, _Tasks(adapters, places))
        signatures, main_op = _signatures(model, encode), tf.tables_initializer()
        with tf.Session(graph=graph, config=devices.session_config()) as session:
            _initialize(session, tables, values, init_checkpoint)
            return _save(folder, session, signatures, main_op, adapters)


def _common_architecture(adapters: Adapters) -> mixed_encoder.Architecture:
    """The `mixed_encoder.Architecture` of all that adapt something; UserError if they differ."""
    settings = [adapter.description.adapter for adapter in adapters.values()]
    kinds = {mixed_encoder.architecture_of(some) for some in settings if some} or {
        mixed_encoder.Architecture()
    }
    if len(kinds) > 1:
        listed = " and ".join(sorted("/".join(kind) for kind in kinds))
        raise UserError(
            f"Adapters of different activation, placement or interaction ({listed}) cannot share a"
            " SavedModel: export their tasks apart."
        )
    return kinds.pop()


def _laid_out(
    config: configs.BertConfig, of_backbone: Dict[str, np.ndarray], adapters: Adapters
) -> Tuple[List[mixed_encoder.SlotIndices], Dict[str, np.ndarray]]:
    """(list of the tasks' `mixed_encoder.SlotIndices`, dict from tables to their values)."""
    used, slots = dict(mixed_encoder.RESERVED_ROWS), []
    for adapter in adapters.values():
        rows = {}
        for pool, count in mixed_encoder.rows_needed(adapter).items():
            rows[pool] = list(range(used[pool], used[pool] + count))
            used[pool] += count
        slots.append(mixed_encoder.slots_of(rows))
    values = {
        name: np.zeros((used[mixed_encoder.pool_of(name)], *shape), np.float32)
        for name, shape in mixed_encoder.row_shapes(config).items()
    }
    for name, value in mixed_encoder.first_rows(of_backbone).items():
        values[name][0] = value
    for adapter, place in zip(adapters.values(), slots):
        tensors = {**of_backbone, **adapter.tensors}
        for name, (own, some) in mixed_encoder.table_rows(config, tensors, place).items():
            values[name][own] = some
    return slots, values


class _Tasks:
    """What the graph knows of the tasks, as constants with a row for each.

    Args:
      adapters: dict from names to `task_adapter.TaskAdapter`.
      slots: list of their `mixed_encoder.SlotIndices`.
    """

    def __init__(self, adapters: Adapters, slots: List[mixed_encoder.SlotIndices]):
        descriptions = [adapter.description for adapter in adapters.values()]
        self.names = list(adapters)
        self.kinds = [description.kind for description in descriptions]
        self.max_tokens = [description.max_seq_length for description in descriptions]
        self.num_labels = [len(description.labels) for description in descriptions]
        self.labels = [
            [*description.labels, *[""] * (max(1, *self.num_labels) - len(description.labels))]
            for description in descriptions
        ]
        self.adapter_sizes = [len(place.bottleneck) for place in slots]
        self.slots = mixed_encoder.batch_of(slots, max(1, *self.adapter_sizes))
        keys = tf.lookup.KeyValueTensorInitializer(
            self.names, list(range(len(slots))), tf.string, tf.int32
        )
        self._table = tf.lookup.StaticHashTable(keys, -1)

    def index_of(self, names):
        """int32 [B] of string [B]; an unknown task ends the call with its name."""
        index = self._table.lookup(names)
        unknown = tf.boolean_mask(names, index < 0)
        message = ["There is no such task:", unknown]
        with tf.control_dependencies([tf.Assert(tf.reduce_all(index >= 0), message)]):
            return tf.identity(index)

    def slots_of(self, index) -> mixed_encoder.SlotIndices:
        """`SlotIndices` of int32 [B], no wider than the largest adapter of the batch."""
        adapter_size = tf.maximum(1, tf.reduce_max(tf.gather(self.adapter_sizes, index)))
        slots = mixed_encoder.SlotIndices(*(tf.gather(rows, index) for rows in self.slots))
        return slots._replace(bottleneck=slots.bottleneck[:, :adapter_size])


class _Model(NamedTuple):
    """What every signature computes with."""

    config: configs.BertConfig
    kind: mixed_encoder.Architecture
    tables: mixed_encoder.Tables
    tasks: _Tasks

    def outputs(self, index, *ids_mask_and_segments):
        """What is predicted: a dict of Tensors with a row for each of int32 [B] indices of tasks.

        probabilities [B, L], labels [B, L] (their names) and label [B], the most probable;
        prediction [B]; start_logits and end_logits [B, S]: those that any of the tasks has. What a
        row's own task has not is 0 or "".
        """
        kinds, spans = set(self.tasks.kinds), "span" in self.tasks.kinds
        found = mixed_encoder.build(
            self.config,
            self.kind,
            self.tables,
            self.tasks.slots_of(index),
            *ids_mask_and_segments,
            spans=spans,
            precision="float32",
        )
        outputs = collections.OrderedDict()
        if kinds & {"classification", "multilabel"}:
            outputs.update(self._probabilities(index, found.logits))
        if "regression" in kinds:
            is_number = self._is_of("regression", index)
            outputs["prediction"] = found.logits[:, 0] * tf.cast(is_number, tf.float32)
        if spans:
            is_span = tf.cast(self._is_of("span", index), tf.float32)
            logits = tf.unstack(found.span_logits * is_span[:, tf.newaxis, tf.newaxis], axis=2)
            outputs["start_logits"], outputs["end_logits"] = logits
        return outputs

    def _is_of(self, kind: str, index):
        """bool [B]: whether rows' tasks are of that kind."""
        return tf.gather([kind == own for own in self.tasks.kinds], index)

    def _probabilities(self, index, logits):
        tasks, most = self.tasks, len(self.tasks.labels[0])
        own = tf.sequence_mask(tf.gather(tasks.num_labels, index), most)
        logits = logits[:, :most]
        exclusive = tf.nn.softmax(tf.where(own, logits, tf.fill(tf.shape(logits), -np.inf)))
        several = tf.tile(self._is_of("multilabel", index)[:, tf.newaxis], [1, most])
        probabilities = tf.where(several, tf.sigmoid(logits), exclusive)
        probabilities = tf.where(own, probabilities, tf.zeros_like(logits))
        labels = tf.gather(tasks.labels, index)
        best = tf.argmax(probabilities, -1, output_type=tf.int32)
        return {
            "probabilities": probabilities,
            "labels": labels,
            "label": tf.gather(labels, best, batch_dims=1),
        }


def _signatures(model: _Model, encode: Optional[Callable]) -> Dict[str, Any]:
    """Signature definitions by name: of ids by default, and "text" and "text_pair"."""
    numbers = ("input_ids", "input_mask", "segment_ids")
    ids = {name: tf.placeholder(tf.int32, [None, None], name) for name in numbers}
    signatures = {"serving_default": _signature(model, ids, lambda index: ids.values())}
    if encode and set(model.tasks.kinds) != {"span"}:
        max_tokens = model.tasks.max_tokens
        for name, columns in (("text", 1), ("text_pair", 2)):
            texts = {
                key: tf.placeholder(tf.string, [None], f"{name}/{key}")
                for key in ("text", "text_b")[:columns]
            }
            signatures[name] = _signature(
                model,
                texts,
                lambda index, texts=texts: encode(*texts.values(), tf.gather(max_tokens, index)),
            )
    return signatures


def _signature(model: _Model, inputs: Dict[str, Any], ids_of: Callable):
    """A signature of these inputs, and of the rows' tasks if there are several.

    Args:
      model: `_Model`.
      inputs: dict from names to placeholders.
      ids_of: function of int32 [B], the tasks' indices, that returns ids, mask and segments.
    """
    rows = tf.shape(next(iter(inputs.values())))[:1]
    index = tf.zeros(rows, tf.int32)
    if len(model.tasks.names) > 1:
        inputs = {**inputs, "task": tf.placeholder(tf.string, [None], "task")}
        index = model.tasks.index_of(inputs["task"])
    outputs = model.outputs(index, *ids_of(index))
    return tf.saved_model.predict_signature_def(inputs, outputs)


def _initialize(
    session, tables: mixed_encoder.Tables, values: Dict[str, np.ndarray], init_checkpoint: str
) -> None:
    """Gives every variable of the graph its value."""
    rest = tf.trainable_variables()
    assignment, _ = modeling.get_assignment_map_from_checkpoint(rest, init_checkpoint)
    tf.train.init_from_checkpoint(init_checkpoint, assignment)
    session.run(tf.variables_initializer(rest))
    for name, variable in tables.variables.items():
        session.run(variable.initializer, {variable.initial_value: values[name]})


def _save(folder: str, session, signatures: Dict[str, Any], main_op, adapters: Adapters) -> str:
    """Writes the session's model; it appears whole or not at all. Returns its path."""
    with files.convert_write_errors(folder):
        files.makedirs(folder)
        names = [name.rstrip("/") for name in files.listdir(folder)]
    path = posixpath.join(folder, str(1 + max(map(int, filter(str.isdecimal, names)), default=0)))
    with files.atomic_folder(path) as partial:
        builder = tf.saved_model.Builder(partial)
        builder.add_meta_graph_and_variables(
            session,
            [tf.saved_model.tag_constants.SERVING],
            signatures,
            assets_collection=tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS),
            main_op=main_op,
            strip_default_attrs=True,
        )
        builder.save()
        tasks = {name: _task_record(adapter.description) for name, adapter in adapters.items()}
        tasks_file = posixpath.join(partial, TASKS_FILE)
        files.makedirs(posixpath.dirname(tasks_file))
        files.write_object(tasks_file, tasks)
    return path


def _task_record(description: task_adapter.Description) -> Any:
    facts = dataclasses.asdict(description)
    facts["backbone"].pop("config")
    return facts
