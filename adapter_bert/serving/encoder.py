"""A TensorFlow encoder for batches that mix tasks: each sequence uses its own task's adapters.

Each trained tensor has a table that holds all tasks' values in its rows. A batch has slot indices:
the rows to gather for each of its sequences. All sequences share one pass through the frozen
layers; adapters, LayerNorms, pooler and head are batched matrix products of the gathered rows. The
tables of bottlenecks and outputs have a row for each unit, so adapters of any size and heads with
any number of labels need no padding in the tables. Their row 0 is zero, for padding in a batch.

Axes in shape comments: B batch, S positions, D hidden size, m adapter size, L outputs of a head.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.common import configs, model_variables
from adapter_bert.formats import checkpoints, task_adapter
from adapter_bert.ops import adapters
from adapter_bert.serving import compatibility

# From each pool of rows to its number of reserved rows, which come first: the backbone's pooler,
# and the rows of zeros. A row holds the values of a task, of its pooler, of a unit of its
# bottlenecks, or of an output of its head.
RESERVED_ROWS = {"task": 0, "pooler": 1, "bottleneck": 1, "output": 1}
_BOTTLENECK = ("adapters/weights1", "adapters/biases1", "adapters/weights2")


class SlotIndices(NamedTuple):
    """Indices of the tables' rows, for one task or for each sequence of a batch.

    Attributes:
      task: int, or an integer array or Tensor [B].
      pooler: like task; 0 is the backbone's pooler.
      bottleneck: list of m ints, or [B, m]; padded with 0.
      output: list of L ints, or [B, L]; padded with 0.
    """

    task: Any
    pooler: Any
    bottleneck: Any
    output: Any


class Outputs(NamedTuple):
    """float Tensors or arrays: logits [B, L], and token_logits [B, S, L] or None."""

    logits: Any
    token_logits: Any = None


def backbone_rows(config: configs.BertConfig, init_checkpoint: str) -> Dict[str, np.ndarray]:
    """Returns the backbone's values of the task-specific tensors, a dict from names to arrays."""
    reader = checkpoints.open_checkpoint(init_checkpoint)
    where = f"--init_checkpoint {init_checkpoint}"
    return {
        name: checkpoints.read_tensor(reader, name, where)
        for name in model_variables.encoder_shapes(config)
        if compatibility.is_task_specific(name)
    }


def rows_needed(adapter: task_adapter.TaskAdapter) -> Dict[str, int]:
    """Returns the number of rows that a `task_adapter.TaskAdapter` needs in each pool, a dict."""
    settings = adapter.description.adapter
    (bias,) = (
        v for name, v in adapter.tensors.items() if compatibility.table_name(name) == "output_bias"
    )
    return {
        "task": 1,
        "pooler": int(any(map(compatibility.is_pooler, adapter.tensors))),
        "bottleneck": settings.size if settings else 0,
        "output": len(bias),
    }


def slots_of(rows: Dict[str, List[int]]) -> SlotIndices:
    """Returns a task's `SlotIndices`, given its list of rows in each pool."""
    (pooler,) = rows["pooler"] or [0]
    return SlotIndices(rows["task"][0], pooler, rows["bottleneck"], rows["output"])


def table_rows(
    config: configs.BertConfig, tensors: Dict[str, np.ndarray], slots: SlotIndices
) -> Dict[str, Tuple[List[int], np.ndarray]]:
    """Returns the rows that a task writes into each table, with their values.

    Args:
      config: `configs.BertConfig`.
      tensors: dict from names to arrays: `backbone_rows`, updated with the task adapter's tensors.
      slots: the task's `SlotIndices`.

    Returns:
      A dict from the names of all tables to (list of rows, float32 array [rows, ...]). The array is
      0 where the task has no adapter.
    """
    values = {compatibility.table_name(name): value for name, value in tensors.items()}
    pooler = [slots.pooler] if slots.pooler else []
    rows = {**slots._asdict(), "task": [slots.task], "pooler": pooler}
    result = {}
    for name, shape in compatibility.row_shapes(config).items():
        indices = rows[pool_of(name)]
        value = values.get(name, np.zeros([]))
        value = value.T if name.endswith("adapters/weights1") else value
        shape = (len(indices), *shape)
        has_value = value.ndim and indices
        result[name] = indices, np.reshape(value, shape) if has_value else np.zeros(shape, "f4")
    return result


def batch_slots(slots: List[SlotIndices], adapter_size: int = 1) -> SlotIndices:
    """Returns a batch's `SlotIndices`, int32 arrays, from those of its sequences.

    Args:
      slots: list of B `SlotIndices`.
      adapter_size: the size to which bottlenecks are padded.
    """
    outputs = max(len(task_slots.output) for task_slots in slots)
    batch = SlotIndices(
        np.array([task_slots.task for task_slots in slots], np.int32),
        np.array([task_slots.pooler for task_slots in slots], np.int32),
        np.zeros([len(slots), adapter_size], np.int32),
        np.zeros([len(slots), outputs], np.int32),
    )
    for index, task_slots in enumerate(slots):
        batch.bottleneck[index, : len(task_slots.bottleneck)] = task_slots.bottleneck
        batch.output[index, : len(task_slots.output)] = task_slots.output
    return batch


class Tables:
    """The tables of all tasks' trained tensors, as variables of the default graph.

    Args:
      shapes: dict from the tables' names, see `table_rows`, to their shapes.

    Attributes:
      variables: dict from the tables' names to variables.
    """

    def __init__(self, shapes: Dict[str, Tuple[int, ...]]):
        with tf.variable_scope("tables"):
            self.variables = {
                name: tf.Variable(tf.zeros(shape), name=name, use_resource=True, trainable=False)
                for name, shape in shapes.items()
            }

    def gather(self, name: str, slots: SlotIndices):
        """Returns the rows of a table for each sequence: [B, ...], [B, m, ...] or [B, L, ...]."""
        return tf.gather(self.variables[name], getattr(slots, pool_of(name)))


def pool_of(name: str) -> str:
    """Returns the pool that the rows of a tensor's table belong to."""
    if name.endswith(_BOTTLENECK):
        return "bottleneck"
    if compatibility.is_pooler(name):
        return "pooler"
    return "output" if name in compatibility.HEAD else "task"


def build(
    config: configs.BertConfig,
    architecture: compatibility.Architecture,
    tables: Tables,
    slots: SlotIndices,
    input_ids,
    input_mask,
    segment_ids,
    *,
    with_token_logits: bool,
) -> Outputs:
    """Builds the encoder and heads for a batch that mixes tasks.

    The backbone's variables are created in the default graph under BERT's names; later calls reuse
    them.

    Args:
      config: `configs.BertConfig`.
      architecture: `compatibility.Architecture` of the adapters.
      tables: `Tables`.
      slots: `SlotIndices` of the batch, integer Tensors.
      input_ids, input_mask, segment_ids: int32 Tensors [B, S].
      with_token_logits: bool; compute token_logits, which needs the last layer at every position.

    Returns:
      `Outputs`.
    """
    adapter = adapters.Adapter(
        _adapter_function(architecture, tables, slots),
        is_parallel=architecture.placement == "parallel",
    )
    parameters = _GatheredRows(tables, slots)
    forward = modeling.ForwardPass(is_training=False, parameters=parameters)
    with tf.variable_scope("bert", reuse=tf.AUTO_REUSE):
        _, _, outputs = modeling.build_encoder(
            config,
            input_ids,
            input_mask,
            segment_ids,
            forward,
            adapter_fn=adapter,
            first_position_only=not with_token_logits,
        )
    return _heads(outputs[-1], tables, slots, with_token_logits)


def _heads(output, tables: Tables, slots: SlotIndices, with_token_logits: bool) -> Outputs:
    """Returns the `Outputs` of each sequence's pooler and head.

    Args:
      output: the last layer's, float [B, S, D], or [B, D] without token_logits.
      tables, slots, with_token_logits: as for `build`.
    """
    first = output[:, 0] if with_token_logits else output
    kernel, pooler_bias = (
        tables.gather("bert/pooler/dense/" + name, slots) for name in ("kernel", "bias")
    )
    pooled = tf.tanh(tf.matmul(first[:, tf.newaxis], kernel)[:, 0] + pooler_bias)
    weights, bias = (tables.gather(name, slots) for name in ("output_weights", "output_bias"))
    logits = tf.matmul(weights, pooled[:, :, tf.newaxis])[:, :, 0] + bias
    if not with_token_logits:
        return Outputs(logits)
    token_logits = tf.matmul(output, weights, transpose_b=True)
    return Outputs(logits, token_logits + bias[:, tf.newaxis])


class _GatheredRows(modeling.Parameters):
    """Parameters of the backbone as variables; task-specific ones are gathered from tables."""

    def __init__(self, tables: Tables, slots: SlotIndices):
        self._tables = tables
        self._slots = slots

    def get_for_rows(self, name, rows, initializer, *, collections=()):
        """Returns a LayerNorm's weight for each row's task, in the shape of the rows."""
        scope = tf.get_variable_scope().name
        weights = self._tables.gather(f"{scope}/{name}", self._slots)  # [B, D]
        shape = modeling.get_shape_list(rows)
        repeats = tf.size(rows) // shape[-1] // tf.shape(weights)[0]
        return tf.reshape(tf.repeat(weights, repeats, axis=0), shape)


def _adapter_function(
    architecture: compatibility.Architecture, tables: Tables, slots: SlotIndices
) -> Callable:
    """Returns `modeling.feedforward_adapter` with weights per example."""
    act = modeling.get_activation(architecture.activation) or tf.identity
    interact = adapters.INTERACTIONS[architecture.interaction]

    def adapt(x, residual=None, **_):
        scope = tf.get_variable_scope().name + "/adapters/"
        weights1, biases1, weights2, biases2 = (
            tables.gather(scope + name, slots)
            for name in ("weights1", "biases1", "weights2", "biases2")
        )
        shape = modeling.get_shape_list(x)
        rows = tf.reshape(x, [tf.shape(weights1)[0], -1, shape[-1]])
        hidden = act(tf.matmul(rows, weights1, transpose_b=True) + biases1[:, tf.newaxis])
        update = tf.reshape(tf.matmul(hidden, weights2) + biases2[:, tf.newaxis], shape)
        adapted = x if residual is None else residual
        return adapted, interact(adapted, update)

    return adapt
