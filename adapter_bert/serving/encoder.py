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
from adapter_bert.common import configs
from adapter_bert.common.errors import UserError
from adapter_bert.formats import checkpoints, task_adapter
from adapter_bert.ops import adapters

# What a row of a table belongs to: a task, its own pooler, a unit of its bottlenecks, an output of
# its head; and how many rows at a pool's begin are no task's: the backbone's pooler, and rows of 0.
POOLS = {"task": 0, "pooler": 1, "bottleneck": 1, "output": 1}
_BOTTLENECK = ("adapters/weights1", "adapters/biases1", "adapters/weights2")
_SPAN_SCOPE = "cls/squad/"


class Kind(NamedTuple):
    """What all adapters in one encoder agree on; see `configs.AdapterConfig`."""

    activation: str = "gelu"
    placement: str = "sequential"
    interaction: str = "add"


class Places(NamedTuple):
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
    """float Tensors or arrays: logits [B, L], and span_logits [B, S, 2] or None."""

    logits: Any
    span_logits: Any = None


def kind_of(adapter: Optional[configs.AdapterConfig]) -> Kind:
    """The `Kind` of a `configs.AdapterConfig`; of None the default, as that goes with any."""
    if adapter is None:
        return Kind()
    return Kind(adapter.activation.lower(), adapter.placement, adapter.interaction)


def check(
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
    own, its = _identity(backbone), _identity(description.backbone)
    for name in (name for name in own if own[name] != its[name]):
        raise UserError(
            f"{where} was trained on another BERT, {description.backbone.name}, whose {name} is"
            f" {its[name]}; expected {own[name]} ({backbone.name})."
        )
    trained = set(map(_table_of, task_adapter.shapes(description)))
    strange = sorted(trained - set(row_shapes(backbone.bert_config())))
    settings = description.adapter
    if settings and not _is_plain(settings):
        strange = ["adapters with normalization, of several layers or of a function of their own"]
    if strange:
        raise UserError(
            f"{where} (--tuning={description.tuning.method}) trained {strange[0]}; tasks that share"
            " a model have plain adapters, LayerNorms, pooler and head of their own, and no more."
        )


def _is_plain(settings: configs.AdapterConfig) -> bool:
    """Whether adapters are what `_adapter_function` computes, whatever their size."""
    is_known = settings.fn.lower() == "feedforward_adapter"
    # A `Kind` tells variants apart, and sites lie in the tables' names.
    return is_known and set(settings.variant()) <= {"sites", *Kind._fields}


def _identity(backbone: task_adapter.Backbone) -> Dict[str, Any]:
    """What tells a BERT from others; the sizes, as nothing else keeps a fingerprint's word."""
    names = "hidden_size", "num_hidden_layers", "num_attention_heads", "hidden_act"
    return {"fingerprint": backbone.fingerprint, **{n: backbone.config.get(n) for n in names}}


def backbone_rows(config: configs.BertConfig, init_checkpoint: str) -> Dict[str, np.ndarray]:
    """The backbone's own tensors of those that a task may train: a dict from names to arrays."""
    reader = checkpoints.open_checkpoint(init_checkpoint)
    where = f"--init_checkpoint {init_checkpoint}"
    return {
        name: checkpoints.read_tensor(reader, name, where)
        for name in checkpoints.encoder_shapes(config)
        if is_of_tasks(name)
    }


def rows_needed(adapter: task_adapter.TaskAdapter) -> Dict[str, int]:
    """How many rows of each pool a `task_adapter.TaskAdapter` takes: a dict by `POOLS`."""
    settings = adapter.description.adapter
    (bias,) = (v for name, v in adapter.tensors.items() if _table_of(name) == "output_bias")
    return {
        "task": 1,
        "pooler": int(any(map(_is_poolers, adapter.tensors))),
        "bottleneck": settings.size if settings else 0,
        "output": len(bias),
    }


def places_of(rows: Dict[str, List[int]]) -> Places:
    """The `Places` of a task that has got a list of rows of each pool: a dict by `POOLS`."""
    (pooler,) = rows["pooler"] or [0]
    return Places(rows["task"][0], pooler, rows["bottleneck"], rows["output"])


def rows_by_pool(places: Places) -> Dict[str, List[int]]:
    """The other way round: `Places` as a dict by `POOLS` of the lists of the task's own rows."""
    pooler = [places.pooler] if places.pooler else []
    return {**places._asdict(), "task": [places.task], "pooler": pooler}


def table_rows(
    config: configs.BertConfig, tensors: Dict[str, np.ndarray], places: Places
) -> Dict[str, Tuple[List[int], np.ndarray]]:
    """What goes where when a task gets its place.

    Args:
      config: `configs.BertConfig`.
      tensors: dict from names to arrays: a task adapter's, over `backbone_rows`.
      places: the task's `Places`.

    Returns:
      A dict from the names of all tables to (list of rows, float32 array [rows, ...]). Where the
      task adapts nothing, that is 0.
    """
    values = {_table_of(name): value for name, value in tensors.items()}
    rows = rows_by_pool(places)
    result = {}
    for name, shape in row_shapes(config).items():
        some = rows[pool_of(name)]
        value = values.get(name, np.zeros([]))
        value = value.T if name.endswith("adapters/weights1") else value
        shape = (len(some), *shape)
        there = value.ndim and some
        result[name] = some, np.reshape(value, shape) if there else np.zeros(shape, "f4")
    return result


def first_rows(of_backbone: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """Row 0 of the tables that do not begin with 0, of `backbone_rows`: a dict by name."""
    return {name: value for name, value in of_backbone.items() if _is_poolers(name)}


def _table_of(name: str) -> str:
    """The table of a task adapter's tensor: the heads of all kinds share theirs."""
    return name[len(_SPAN_SCOPE) :] if name.startswith(_SPAN_SCOPE) else name


def batch_of(places: List[Places], size: int = 1) -> Places:
    """The `Places` of a batch, int32 arrays, of those of its sequences.

    Args:
      places: list of B `Places`.
      size: of the bottlenecks, to which they are padded.
    """
    outputs = max(len(place.output) for place in places)
    batch = Places(
        np.array([place.task for place in places], np.int32),
        np.array([place.pooler for place in places], np.int32),
        np.zeros([len(places), size], np.int32),
        np.zeros([len(places), outputs], np.int32),
    )
    for index, place in enumerate(places):
        batch.bottleneck[index, : len(place.bottleneck)] = place.bottleneck
        batch.output[index, : len(place.output)] = place.output
    return batch


def inputs() -> tuple:
    """Placeholders for a batch: `Places`, and input_ids, input_mask and segment_ids [B, S]."""
    ranks = Places(task=1, pooler=1, bottleneck=2, output=2)
    places = Places(*(tf.placeholder(tf.int32, [None] * rank) for rank in ranks))
    return (places, *(tf.placeholder(tf.int32, [None, None]) for _ in range(3)))


class Tables:
    """The tables of what tasks train over an encoder, as variables of the default graph.

    Args:
      config: `configs.BertConfig`.
      num_rows: dict from each of `POOLS` to how many rows its tables start with.
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

    def gather(self, name: str, places: Places):
        """The rows of a table for each sequence: [B, ...], [B, m, ...] or [B, L, ...]."""
        return tf.gather(self.variables[name], getattr(places, pool_of(name)))


def pool_of(name: str) -> str:
    """Which of `POOLS` the rows of a tensor's table belong to."""
    if name.endswith(_BOTTLENECK):
        return "bottleneck"
    if _is_poolers(name):
        return "pooler"
    return "output" if name in ("output_weights", "output_bias") else "task"


def row_shapes(config: configs.BertConfig) -> checkpoints.Shapes:
    """A dict from the names of tables to the shape of a row."""
    width = config.hidden_size
    encoder = checkpoints.encoder_shapes(config)
    shapes = {name: shape for name, shape in encoder.items() if is_of_tasks(name)}
    for index in range(config.num_hidden_layers):
        for site in configs.SITES["both"]:
            scope = f"bert/encoder/layer_{index}/{site}/adapters/"
            shapes[scope + "weights1"] = shapes[scope + "weights2"] = (width,)
            shapes[scope + "biases1"] = ()
            shapes[scope + "biases2"] = (width,)
    shapes["output_weights"] = (width,)
    shapes["output_bias"] = ()
    return shapes


def is_of_tasks(name: str) -> bool:
    """Whether a tensor of the encoder may differ from task to task: LayerNorms and the pooler."""
    return "/LayerNorm/" in name or _is_poolers(name)


def _is_poolers(name: str) -> bool:
    return name.startswith("bert/pooler/")


def build(
    config: configs.BertConfig,
    kind: Kind,
    tables: Tables,
    places: Places,
    input_ids,
    input_mask,
    segment_ids,
    *,
    spans: bool,
    precision: str,
) -> Outputs:
    """The encoder and heads on a batch of several tasks' sequences.

    The variables that are no task's are made in the default graph, under BERT's names, or are
    those that an earlier call made.

    Args:
      config: `configs.BertConfig`.
      kind: `Kind` of the adapters.
      tables: `Tables`.
      places: `Places` of the batch, integer Tensors.
      input_ids, input_mask, segment_ids: int32 Tensors [B, S].
      spans: bool; compute span_logits, for which the last layer is computed at every position.
      precision: "float32" or "bfloat16".

    Returns:
      `Outputs`.
    """

    def of_tasks(getter, name, *arguments, **options):
        if is_of_tasks(name):
            return tables.gather(name, places)
        return getter(name, *arguments, **options)

    adapter = adapters.Adapter(
        _adapter_function(kind, tables, places), is_parallel=kind.placement == "parallel"
    )
    with tf.variable_scope("", custom_getter=of_tasks, reuse=tf.AUTO_REUSE):
        encoder = modeling.BertModel(
            config,
            False,
            input_ids,
            input_mask,
            segment_ids,
            scope="bert",
            adapter_fn=adapter,
            dtype=tf.as_dtype(precision),
            pooled_only=not spans,
        )
    weights, bias = (tables.gather(name, places) for name in ("output_weights", "output_bias"))
    pooled = encoder.get_pooled_output()
    logits = tf.matmul(weights, pooled[:, :, tf.newaxis])[:, :, 0] + bias
    if not spans:
        return Outputs(logits)
    span_logits = tf.matmul(encoder.get_sequence_output(), weights[:, :2], transpose_b=True)
    return Outputs(logits, span_logits + bias[:, tf.newaxis, :2])


def _adapter_function(kind: Kind, tables: Tables, places: Places) -> Callable:
    """`adapters.feedforward_adapter` with weights of its own for each sequence."""
    act = modeling.get_activation(kind.activation) or tf.identity
    interact = adapters.INTERACTIONS[kind.interaction]

    def adapt(x, beside=None, statistics=None):
        del statistics
        scope = tf.get_variable_scope().name + "/adapters/"
        weights1, biases1, weights2, biases2 = (
            tf.cast(tables.gather(scope + name, places), x.dtype)
            for name in ("weights1", "biases1", "weights2", "biases2")
        )
        shape = modeling.get_shape_list(x)
        rows = tf.reshape(x, [tf.shape(weights1)[0], -1, shape[-1]])
        hidden = act(tf.matmul(rows, weights1, transpose_b=True) + biases1[:, tf.newaxis])
        change = tf.reshape(tf.matmul(hidden, weights2) + biases2[:, tf.newaxis], shape)
        adapted = x if beside is None else beside
        return adapted, interact(adapted, change)

    return adapt
