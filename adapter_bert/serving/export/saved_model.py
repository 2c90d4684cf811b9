"""Writes SavedModels of tasks over one backbone, for plain TensorFlow 2 and TensorFlow Serving.

Signatures accept token ids, or raw text with `in_graph_tokenizer`. With several tasks they also
require each row's task. The SavedModel contains the labels' names and needs no code of this
project. It avoids XLA, which a server may lack.

Axes in shape comments: B batch, S positions, L the largest number of labels of a task.
"""

import posixpath
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert import modeling
from adapter_bert.files import atomic, gfile, json_objects
from adapter_bert.formats import checkpoints, task_adapter
from adapter_bert.model import configs, task_kinds
from adapter_bert.ops import devices, xla
from adapter_bert.serving.export import multi_task_bert

Adapters = Dict[str, task_adapter.TaskAdapter]

TASKS_FILE = "assets.extra/tasks.json"  # The tasks' descriptions.


def write(
    folder: str,
    config: configs.BertConfig,
    init_checkpoint: str,
    adapters: Adapters,
    encode: Optional[Callable] = None,
) -> str:
    """Writes a SavedModel into a new numbered folder, as TensorFlow Serving expects it.

    Args:
      folder: the SavedModel is in `<folder>/<number>`, with the next free number.
      config: `configs.BertConfig`.
      init_checkpoint: prefix of the pretrained checkpoint.
      adapters: ordered dict from names of tasks to `task_adapter.TaskAdapter`, all of this BERT.
        With a single task, no signature requires a task's name.
      encode: the function of `in_graph_tokenizer.make_encoder`, or None for no signatures of raw
        text.

    Returns:
      Path of the SavedModel.

    Raises:
      UserError: the adapters cannot share a graph; the folder cannot be written.
    """
    tables = multi_task_bert.make_tables(config, init_checkpoint, list(adapters.values()))
    with tf.Graph().as_default() as graph, xla.portable():
        model = _Model(config, tables, _TaskConstants(adapters))
        signatures, main_op = _signatures(model, encode), tf.tables_initializer()
        with tf.Session(graph=graph, config=devices.session_config()) as session:
            _initialize(session, tables.values, init_checkpoint)
            return _save(folder, session, signatures, main_op, adapters)


class _TaskConstants:
    """The tasks' settings in the graph: constants with a row for each task.

    Args:
      adapters: dict from names to `task_adapter.TaskAdapter`.
    """

    def __init__(self, adapters: Adapters):
        descriptions = [adapter.description for adapter in adapters.values()]
        self.names = list(adapters)
        self.kinds = [description.kind for description in descriptions]
        self.max_tokens = [description.max_seq_length for description in descriptions]
        self.num_labels = [len(description.labels) for description in descriptions]
        self.labels = [
            [*description.labels, *[""] * (max(1, *self.num_labels) - len(description.labels))]
            for description in descriptions
        ]
        keys = tf.lookup.KeyValueTensorInitializer(
            self.names, list(range(len(adapters))), tf.string, tf.int32
        )
        self._table = tf.lookup.StaticHashTable(keys, -1)

    def index_of(self, names: tf.Tensor, reads_texts: bool = False) -> tf.Tensor:
        """Returns the tasks' indices, int32 [B], of their names.

        An unknown name is an error; with `reads_texts`, so is a task without text signatures.
        """
        index = self._table.lookup(names)
        is_valid = index >= 0
        if reads_texts:
            has_texts = [task_kinds.get(kind).has_text_signature for kind in self.kinds]
            is_valid = tf.logical_and(is_valid, tf.gather(has_texts, tf.maximum(index, 0)))
        invalid = tf.boolean_mask(names, tf.logical_not(is_valid))
        expected = "task that reads texts" if reads_texts else "task"
        message = [f"There is no such {expected}:", invalid]
        with tf.control_dependencies([tf.Assert(tf.reduce_all(is_valid), message)]):
            return tf.identity(index)


class _Model(NamedTuple):
    """The parts of the model that all signatures share."""

    config: configs.BertConfig
    tables: multi_task_bert.Tables
    tasks: _TaskConstants

    def outputs(self, index: tf.Tensor, *ids_mask_and_segments: tf.Tensor) -> Dict[str, tf.Tensor]:
        """Returns the outputs by name, Tensors with a row for each task index in int32 [B].

        They are the exported outputs of all kinds of tasks. An output that a row's task lacks is 0
        or "".
        """
        tasks = self.tasks
        kinds = [task_kinds.get(name) for name in dict.fromkeys(tasks.kinds)]
        model_outputs = multi_task_bert.build(
            self.config,
            self.tables,
            index,
            *ids_mask_and_segments,
            with_token_logits=any(kind.reads_tokens for kind in kinds),
        )
        labels = tf.gather(tasks.labels, index)
        is_label = tf.sequence_mask(tf.gather(tasks.num_labels, index), len(tasks.labels[0]))
        outputs = {}
        for kind in kinds:
            logits = model_outputs.token_logits if kind.reads_tokens else model_outputs.logits
            is_of_kind = tf.gather([kind.name == name for name in tasks.kinds], index)
            for name, value in kind.export(logits, labels, is_label).items():
                rows = tf.reshape(is_of_kind, [-1] + [1] * (value.shape.ndims - 1))
                others = outputs.get(name, tf.zeros_like(value))
                outputs[name] = tf.where_v2(rows, value, others)
        return outputs


def _signatures(model: _Model, encode: Optional[Callable]) -> Dict[str, Any]:
    """Returns signature definitions by name: the default one of ids, "text" and "text_pair"."""
    numbers = ("input_ids", "input_mask", "segment_ids")
    ids = {name: tf.placeholder(tf.int32, [None, None], name) for name in numbers}
    signatures = {
        "serving_default": _signature(model, ids, lambda _, *ids: _checked(model.config, *ids))
    }
    if encode and any(task_kinds.get(kind).has_text_signature for kind in model.tasks.kinds):
        max_tokens = model.tasks.max_tokens
        for name, columns in (("text", 1), ("text_pair", 2))[: model.config.type_vocab_size]:
            texts = {
                key: tf.placeholder(tf.string, [None], f"{name}/{key}")
                for key in ("text", "text_b")[:columns]
            }
            signatures[name] = _signature(
                model,
                texts,
                lambda index, *texts: encode(*texts, tf.gather(max_tokens, index)),
            )
    return signatures


def _signature(model: _Model, inputs: Dict[str, Any], ids_of: Callable) -> Any:
    """Returns a signature of these inputs, and of each row's task if there are several.

    Args:
      model: `_Model`.
      inputs: dict from names to placeholders.
      ids_of: function of the task indices, int32 [B], and the inputs' values, that returns ids,
        mask and segments.
    """
    values = list(inputs.values())
    num_rows = tf.shape(values[0])[0]
    index = tf.zeros([num_rows], tf.int32)
    if len(model.tasks.names) > 1:
        inputs = {**inputs, "task": tf.placeholder(tf.string, [None], "task")}
        index = model.tasks.index_of(inputs["task"], reads_texts="text" in inputs)
    index, *values = map(_without_emptiness, (index, *values))
    outputs = model.outputs(index, *ids_of(index, *values))
    outputs = {name: value[:num_rows] for name, value in outputs.items()}
    return tf.saved_model.predict_signature_def(inputs, outputs)


def _without_emptiness(value: tf.Tensor) -> tf.Tensor:
    """Returns a Tensor of at least one row, as the encoder needs; zero rows also get a column."""
    missing = 1 - tf.minimum(tf.shape(value), 1)
    ends = missing * missing[0]
    return tf.pad(value, tf.stack([tf.zeros_like(ends), ends], 1))


def _checked(
    config: configs.BertConfig, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
) -> List[Any]:
    """Returns ids, mask and segments; a number out of range, or another shape, is an error.

    The encoder computes with them: for a wrong segment it adds nothing, and it scales by the mask.
    """
    checks = []
    for name, value, size in (
        ("input_ids", input_ids, config.vocab_size),
        ("input_mask", input_mask, 2),
        ("segment_ids", segment_ids, config.type_vocab_size),
    ):
        has_shape = tf.reduce_all(tf.equal(tf.shape(value), tf.shape(input_ids)))
        is_in_range = tf.reduce_all(tf.logical_and(value >= 0, value < size))
        message = f"{name}: expected numbers from 0 to {size - 1}, as many as input_ids."
        checks.append(tf.Assert(tf.logical_and(has_shape, is_in_range), [message]))
    with tf.control_dependencies(checks):
        return list(map(tf.identity, (input_ids, input_mask, segment_ids)))


def _initialize(session: tf.Session, values: Dict[str, np.ndarray], init_checkpoint: str) -> None:
    """Initializes every variable of the graph: by its value, else from the checkpoint."""
    variables = {modeling.variable_name(variable): variable for variable in tf.global_variables()}
    trained = {name: variables.pop(name) for name in values}
    backbone = list(variables.values())
    init_checkpoint = checkpoints.literal_prefix(init_checkpoint)
    assignment, _ = modeling.get_assignment_map_from_checkpoint(backbone, init_checkpoint)
    tf.train.init_from_checkpoint(init_checkpoint, assignment)
    session.run(tf.variables_initializer(backbone))
    for name, variable in trained.items():
        session.run(variable.initializer, {variable.initial_value: values[name]})


def _save(
    folder: str,
    session: tf.Session,
    signatures: Dict[str, Any],
    main_op: tf.Operation,
    adapters: Adapters,
) -> str:
    """Writes the session's model atomically; returns its path."""
    path = atomic.next_numbered_folder(folder)
    with atomic.atomic_folder(path) as partial:
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
        tasks = {
            name: task_adapter.summary(adapter.description) for name, adapter in adapters.items()
        }
        tasks_file = posixpath.join(partial, TASKS_FILE)
        gfile.makedirs(posixpath.dirname(tasks_file))
        json_objects.write_object(tasks_file, tasks)
    return path
