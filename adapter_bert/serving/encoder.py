"""An encoder whose batch mixes tasks: every row goes through its own task's adapters.

What tasks train lies in tables, one for each tensor, a task's values in rows of it. A batch brings,
for each of its sequences, the rows to gather; then all sequences go through the frozen layers at
once, and through adapters, LayerNorms, pooler and head by batched products. The tables of
bottlenecks and of outputs have a row for each unit, so that adapters of any size and heads of any
number of labels share them and take no more than their own room; row 0 of these is 0, and pads.

Axes in shape comments: B batch, S positions, D hidden size, m adapter size, L outputs of a head.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.common import configs, model_variables
from adapter_bert.common.errors import UserError
from adapter_bert.formats import checkpoints, task_adapter
from adapter_bert.ops import adapters

# What a row of a table belongs to: a task, its own pooler, a unit of its bottlenecks, an output of
# its head; and how many rows at a pool's begin are no task's: the backbone's pooler, and rows of 0.
RESERVED_ROWS = {"task": 0, "pooler": 1, "bottleneck": 1, "output": 1}
_BOTTLENECK = ("adapters/weights1", "adapters/biases1", "adapters/weights2")
_HEAD = ("output_weights", "output_bias")


class Architecture(NamedTuple):
    """What all adapters in one encoder agree on; see `configs.AdapterConfig`."""

    activation: str = "gelu"
    placement: str = "sequential"
    interaction: str = "add"


class SlotIndices(NamedTuple):
    """Rows of the tables, for one task or for each sequence of a batch.

    Attributes:
      task: int, or an integer array or Tensor [B].
      pooler: likewise; 0 is the backbone's.
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


def architecture_of(adapter: Optional[configs.AdapterConfig]) -> Architecture:
    """The `Architecture` of a `configs.AdapterConfig`; of None the default, which fits any."""
    if adapter is None:
        return Architecture()
    return Architecture(adapter.activation.lower(), adapter.placement, adapter.interaction)


def check_compatible(
    description: task_adapter.Description, backbone: task_adapter.Backbone, where: str
) -> None:
    """Makes sure that a task can have its place beside others.

    Args:
      description: `task_adapter.Description`.
      backbone: `task_adapter.Backbone` of the encoder.
      where: begins the error's sentence.

    Raises:
      UserError: it was trained on another BERT, or trained more than tables hold.
    """
    expected, actual = _backbone_identity(backbone), _backbone_identity(description.backbone)
    for name in (name for name in expected if expected[name] != actual[name]):
        raise UserError(
            f"{where} was trained on another BERT, {description.backbone.name}, whose {name} is"
            f" {actual[name]}; expected {expected[name]} ({backbone.name})."
        )
    try:
        trained = set(map(_table_name, task_adapter.shapes(description)))
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    unsupported = sorted(trained - set(row_shapes(backbone.bert_config())))
    settings = description.adapter
    if settings and not _is_supported(settings):
        unsupported = [
            "adapters with normalization, scaling, several layers, the placement normalized or a"
            " function of their own"
        ]
    if unsupported:
        raise UserError(
            f"{where} (--tuning={description.tuning.method}) trained {unsupported[0]}; tasks that"
            " share a model have plain adapters, LayerNorms, pooler and head of their own, and no"
            " more."
        )


def _is_supported(settings: configs.AdapterConfig) -> bool:
    """Whether adapters are what `_adapter_function` computes, whatever their size."""
    is_known = settings.fn.lower() == "feedforward_adapter"
    # An `Architecture` tells variants apart, and sites lie in the tables' names.
    is_known = is_known and settings.placement != "normalized"
    return is_known and set(settings.variant()) <= {"sites", *Architecture._fields}


def _backbone_identity(backbone: task_adapter.Backbone) -> Dict[str, Any]:
    """What tells a BERT from others; the sizes, as nothing else keeps a fingerprint's word."""
    names = "hidden_size", "num_hidden_layers", "num_attention_heads", "hidden_act"
    return {"fingerprint": backbone.fingerprint, **{n: backbone.config.get(n) for n in names}}


def backbone_rows(config: configs.BertConfig, init_checkpoint: str) -> Dict[str, np.ndarray]:
    """The backbone's own tensors of those that a task may train: a dict from names to arrays."""
    reader = checkpoints.open_checkpoint(init_checkpoint)
    where = f"--init_checkpoint {init_checkpoint}"
    return {
        name: checkpoints.read_tensor(reader, name, where)
        for name in model_variables.encoder_shapes(config)
        if is_task_specific(name)
    }


def rows_needed(adapter: task_adapter.TaskAdapter) -> Dict[str, int]:
    """How many rows of each pool a `task_adapter.TaskAdapter` takes: a dict by pool."""
    settings = adapter.description.adapter
    (bias,) = (v for name, v in adapter.tensors.items() if _table_name(name) == "output_bias")
    return {
        "task": 1,
        "pooler": int(any(map(_is_pooler, adapter.tensors))),
        "bottleneck": settings.size if settings else 0,
        "output": len(bias),
    }


def slots_of(rows: Dict[str, List[int]]) -> SlotIndices:
    """The `SlotIndices` of a task that has got a list of rows of each pool: a dict by pool."""
    (pooler,) = rows["pooler"] or [0]
    return SlotIndices(rows["task"][0], pooler, rows["bottleneck"], rows["output"])


def rows_by_pool(slots: SlotIndices) -> Dict[str, List[int]]:
    """The other way round: the lists of a task's own rows, a dict by pool."""
    pooler = [slots.pooler] if slots.pooler else []
    return {**slots._asdict(), "task": [slots.task], "pooler": pooler}


def table_rows(
    config: configs.BertConfig, tensors: Dict[str, np.ndarray], slots: SlotIndices
) -> Dict[str, Tuple[List[int], np.ndarray]]:
    """What goes where when a task gets its place.

    Args:
      config: `configs.BertConfig`.
      tensors: dict from names to arrays: a task adapter's, over `backbone_rows`.
      slots: the task's `SlotIndices`.

    Returns:
      A dict from the names of all tables to (list of rows, float32 array [rows, ...]). Where the
      task adapts nothing, that is 0.
    """
    values = {_table_name(name): value for name, value in tensors.items()}
    rows = rows_by_pool(slots)
    result = {}
    for name, shape in row_shapes(config).items():
        indices = rows[pool_of(name)]
        value = values.get(name, np.zeros([]))
        value = value.T if name.endswith("adapters/weights1") else value
        shape = (len(indices), *shape)
        has_value = value.ndim and indices
        result[name] = indices, np.reshape(value, shape) if has_value else np.zeros(shape, "f4")
    return result


def reserved_row_values(backbone_values: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """Row 0 of the tables that do not begin with 0, of `backbone_rows`: a dict by name."""
    return {name: value for name, value in backbone_values.items() if _is_pooler(name)}


def _table_name(name: str) -> str:
    """The table of a task adapter's tensor: the heads of all kinds share theirs."""
    variable = name.rpartition("/")[2]
    return variable if variable in _HEAD else name


def batch_slots(slots: List[SlotIndices], adapter_size: int = 1) -> SlotIndices:
    """The `SlotIndices` of a batch, int32 arrays, of those of its sequences.

    Args:
      slots: list of B `SlotIndices`.
      adapter_size: of the bottlenecks, to which they are padded.
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


def placeholders() -> tuple:
    """Placeholders for a batch: `SlotIndices`, and input_ids, input_mask and segment_ids [B, S]."""
    ranks = SlotIndices(task=1, pooler=1, bottleneck=2, output=2)
    slots = SlotIndices(*(tf.placeholder(tf.int32, [None] * rank) for rank in ranks))
    return (slots, *(tf.placeholder(tf.int32, [None, None]) for _ in range(3)))


class Tables:
    """The tables of what tasks train over an encoder, as variables of the default graph.

    Args:
      config: `configs.BertConfig`.
      num_rows: dict from each pool to how many rows its tables start with.
      precision: of the bottlenecks' products; their tables hold what these read, no more.

    Attributes:
      variables: dict from the names of a task adapter's tensors to variables, whose first axis can
        grow. The head's are those of a classifier.
    """

    def __init__(
        self, config: configs.BertConfig, num_rows: Dict[str, int], precision: str = "float32"
    ):
        self.variables = {}
        with tf.variable_scope("tables"):
            for name, shape in row_shapes(config).items():
                pool = pool_of(name)
                dtype = tf.as_dtype(precision) if pool == "bottleneck" else tf.float32
                zeros = tf.zeros([num_rows[pool], *shape], dtype)
                self.variables[name] = tf.Variable(
                    zeros,
                    name=name,
                    shape=tf.TensorShape([None, *shape]),
                    validate_shape=False,
                    use_resource=True,
                    trainable=False,
                )

    def gather(self, name: str, slots: SlotIndices):
        """The rows of a table for each sequence: [B, ...], [B, m, ...] or [B, L, ...]."""
        return tf.gather(self.variables[name], getattr(slots, pool_of(name)))


def pool_of(name: str) -> str:
    """Which pool the rows of a tensor's table belong to."""
    if name.endswith(_BOTTLENECK):
        return "bottleneck"
    if _is_pooler(name):
        return "pooler"
    return "output" if name in _HEAD else "task"


def row_shapes(config: configs.BertConfig) -> model_variables.Shapes:
    """A dict from the names of tables to the shape of a row."""
    width = config.hidden_size
    encoder = model_variables.encoder_shapes(config)
    shapes = {name: shape for name, shape in encoder.items() if is_task_specific(name)}
    for index in range(config.num_hidden_layers):
        for site in configs.SITES["both"]:
            scope = f"bert/encoder/layer_{index}/{site}/adapters/"
            shapes[scope + "weights1"] = shapes[scope + "weights2"] = (width,)
            shapes[scope + "biases1"] = ()
            shapes[scope + "biases2"] = (width,)
    shapes["output_weights"] = (width,)
    shapes["output_bias"] = ()
    return shapes


def is_task_specific(name: str) -> bool:
    """Whether a tensor of the encoder may differ from task to task: LayerNorms and the pooler."""
    return "/LayerNorm/" in name or _is_pooler(name)


def _is_pooler(name: str) -> bool:
    return name.startswith("bert/pooler/")


def build(
    config: configs.BertConfig,
    architecture: Architecture,
    tables: Tables,
    slots: SlotIndices,
    input_ids,
    input_mask,
    segment_ids,
    *,
    with_token_logits: bool,
    precision: str,
) -> Outputs:
    """The encoder and heads on a batch of several tasks' sequences.

    The variables that are no task's are made in the default graph, under BERT's names, or are
    those that an earlier call made.

    Args:
      config: `configs.BertConfig`.
      architecture: `Architecture` of the adapters.
      tables: `Tables`.
      slots: `SlotIndices` of the batch, integer Tensors.
      input_ids, input_mask, segment_ids: int32 Tensors [B, S].
      with_token_logits: bool; compute token_logits, for which the last layer is computed at every
        position.
      precision: "float32" or "bfloat16".

    Returns:
      `Outputs`.
    """

    adapter = adapters.Adapter(
        _adapter_function(architecture, tables, slots),
        is_parallel=architecture.placement == "parallel",
    )
    parameters = _GatheredRows(tables, slots)
    forward = modeling.ForwardPass(tf.as_dtype(precision), is_training=False, parameters=parameters)
    with tf.variable_scope("bert", reuse=tf.AUTO_REUSE):
        with tf.variable_scope("embeddings"):
            embeddings, _ = modeling.embedding_lookup(
                input_ids, config.vocab_size, config.hidden_size
            )
            embeddings = modeling.embedding_postprocessor(
                embeddings,
                use_token_type=True,
                token_type_ids=segment_ids,
                token_type_vocab_size=config.type_vocab_size,
                max_position_embeddings=config.max_position_embeddings,
                dropout_prob=0.0,
                forward=forward,
            )
        with tf.variable_scope("encoder"):
            output = modeling.transformer_model(
                embeddings,
                attention_mask=input_mask[:, tf.newaxis, :],
                hidden_size=config.hidden_size,
                num_hidden_layers=config.num_hidden_layers,
                num_attention_heads=config.num_attention_heads,
                intermediate_size=config.intermediate_size,
                intermediate_act_fn=modeling.get_activation(config.hidden_act),
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                adapter_fn=adapter,
                forward=forward,
                first_position_only=not with_token_logits,
            )
    output = tf.cast(output, tf.float32)
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
    """Variables, but for what each sequence's own task trained: that is gathered from tables."""

    def __init__(self, tables: Tables, slots: SlotIndices):
        self._tables = tables
        self._slots = slots

    def get_for_rows(self, name, rows, initializer, *, collections=()):
        """Returns a LayerNorm's weight of each row's task, of the shape of the rows."""
        scope = tf.get_variable_scope().name
        of_sequences = self._tables.gather(f"{scope}/{name}", self._slots)
        shape = modeling.get_shape_list(rows)
        num_sequences = tf.shape(of_sequences)[0]
        repeats = tf.size(rows) // shape[-1] // num_sequences
        return tf.reshape(tf.repeat(of_sequences, repeats, axis=0), shape)


def _adapter_function(architecture: Architecture, tables: Tables, slots: SlotIndices) -> Callable:
    """`adapters.feedforward_adapter` with weights of its own for each sequence."""
    act = modeling.get_activation(architecture.activation) or tf.identity
    interact = adapters.INTERACTIONS[architecture.interaction]

    def adapt(x, residual=None, **_):
        scope = tf.get_variable_scope().name + "/adapters/"
        weights1, biases1, weights2, biases2 = (
            tf.cast(tables.gather(scope + name, slots), x.dtype)
            for name in ("weights1", "biases1", "weights2", "biases2")
        )
        shape = modeling.get_shape_list(x)
        rows = tf.reshape(x, [tf.shape(weights1)[0], -1, shape[-1]])
        hidden = act(tf.matmul(rows, weights1, transpose_b=True) + biases1[:, tf.newaxis])
        update = tf.reshape(tf.matmul(hidden, weights2) + biases2[:, tf.newaxis], shape)
        adapted = x if residual is None else residual
        return adapted, interact(adapted, update)

    return adapt
