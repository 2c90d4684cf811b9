"""Builds `modeling.BertModel` for batches that mix tasks: each example has its task's weights.

A tensor that differs between tasks is a table with a row for each distinct value. `TaskParameters`
gathers each example's row, and the model multiplies each example by its own weights.

Axes in shape comments: B batch, S positions, D hidden size, L largest number of outputs of a head.
"""

import dataclasses
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert import modeling
from adapter_bert.formats import checkpoints, task_adapter
from adapter_bert.model import configs, model_variables
from adapter_bert.ops import layers
from adapter_bert.serving.inference import compatibility


class Tables(NamedTuple):
    """The tasks' weights.

    Attributes:
      adapter: the `configs.AdapterConfig` that has the adapters of all tasks, of the largest size;
        None if no task has adapters.
      values: dict from the names of all task-specific variables to float32 arrays: the value, or a
        table of the values, which is 0 where a task has no adapter or a smaller one.
      rows: dict from the names of the tables to a list of each task's row.
    """

    adapter: Optional[configs.AdapterConfig]
    values: Dict[str, np.ndarray]
    rows: Dict[str, List[int]]


def make_tables(
    config: configs.BertConfig, init_checkpoint: str, adapters: Sequence[task_adapter.TaskAdapter]
) -> Tables:
    """Returns the `Tables` of tasks.

    Args:
      config: `configs.BertConfig`.
      init_checkpoint: prefix of the pretrained checkpoint, for what a task did not train.
      adapters: the tasks.

    Raises:
      UserError: the adapters cannot share a graph.
    """
    reader = checkpoints.open_checkpoint(init_checkpoint)
    where = f"--init_checkpoint {init_checkpoint}"
    backbone = {
        name: checkpoints.read_tensor(reader, name, where)
        for name in model_variables.encoder_shapes(config)
        if compatibility.is_task_specific(name)
    }
    adapter = _union(config, adapters)
    shapes = {name: value.shape for name, value in backbone.items()}
    if adapter:
        shapes.update(model_variables.adapters_shapes(adapter, config))
    trained = [
        {compatibility.table_name(name): value for name, value in each.tensors.items()}
        for each in adapters
    ]
    for name in compatibility.HEAD:
        shapes[name] = max(tensors[name].shape for tensors in trained)
    values, rows = {}, {}
    for name, shape in shapes.items():
        distinct: Dict[bytes, np.ndarray] = {}
        keys = []
        for tensors in trained:
            value = tensors.get(name, backbone.get(name, np.zeros([0] * len(shape), np.float32)))
            value = np.pad(value, [(0, size - own) for size, own in zip(shape, value.shape)])
            keys.append(value.tobytes())
            distinct[keys[-1]] = value
        values[name] = np.stack(list(distinct.values()))
        if len(distinct) == 1:
            values[name] = values[name][0]
        else:
            rows[name] = list(map(list(distinct).index, keys))
    return Tables(adapter, values, rows)


def _union(
    config: configs.BertConfig, adapters: Sequence[task_adapter.TaskAdapter]
) -> Optional[configs.AdapterConfig]:
    """Returns `Tables.adapter`."""
    settings = [each.description.adapter for each in adapters if each.description.adapter]
    if not settings:
        return None
    every_layer = range(config.num_hidden_layers)
    sites = {each.sites for each in settings}
    return dataclasses.replace(
        compatibility.common_architecture(adapters),
        size=max(each.size for each in settings),
        layers=tuple(sorted({i for each in settings for i in each.layers or every_layer})),
        sites=sites.pop() if len(sites) == 1 else "both",
    )


class TaskParameters(modeling.Parameters):
    """Provides each example's weights.

    Args:
      rows: `Tables.rows`.
      task: int32 Tensor [B], each example's task.
    """

    def __init__(self, rows: Dict[str, List[int]], task: tf.Tensor):
        self._rows, self._task = rows, task

    def get(self, name: str, shape: Sequence[int], initializer: Any, **options: Any) -> tf.Tensor:
        """Returns a weight; with one more axis [B, ...], which comes first, if it has a table."""
        scope = tf.get_variable_scope().name
        rows = self._rows.get(f"{scope}/{name}" if scope else name)
        if rows is None:
            return super().get(name, shape, initializer, **options)
        table = super().get(name, [max(rows) + 1, *shape], initializer, **options)
        return tf.gather(table, tf.gather(rows, self._task))

    def get_for_rows(
        self, name: str, rows: tf.Tensor, initializer: Any, **options: Any
    ) -> tf.Tensor:
        """Returns the weight of rows [..., D]: [D], or [..., D] if it has a table."""
        weight = super().get_for_rows(name, rows, initializer, **options)
        if weight.shape.ndims == 1:
            return weight
        shape = modeling.get_shape_list(rows)
        num_repeats = tf.size(rows) // tf.size(weight)
        return tf.reshape(tf.repeat(weight, num_repeats, axis=0), shape)


class TaskLogits(NamedTuple):
    """float Tensors: logits [B, L], and token_logits [B, S, L] or None."""

    logits: Any
    token_logits: Any = None


def build(
    config: configs.BertConfig,
    tables: Tables,
    task: tf.Tensor,
    input_ids: tf.Tensor,
    input_mask: tf.Tensor,
    segment_ids: tf.Tensor,
    *,
    with_token_logits: bool,
) -> TaskLogits:
    """Builds the encoder and heads for a batch that mixes tasks.

    Variables are created in the default graph under BERT's names, tables under those of a task's
    variables; later calls reuse them.

    Args:
      config: `configs.BertConfig`.
      tables: `Tables`.
      task: int32 Tensor [B], each example's task.
      input_ids, input_mask, segment_ids: int32 Tensors [B, S].
      with_token_logits: bool; compute token_logits, which needs the last layer at every position.

    Returns:
      `TaskLogits`.
    """
    parameters = TaskParameters(tables.rows, task)
    with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE):
        encoder = modeling.BertModel(
            config,
            False,
            input_ids,
            input_mask,
            segment_ids,
            scope="bert",
            adapter_fn=tables.adapter,
            pooled_only=not with_token_logits,
            parameters=parameters,
        )
        num_outputs = tables.values["output_bias"].shape[-1]
        zeros = tf.zeros_initializer()
        weights = parameters.get("output_weights", [num_outputs, config.hidden_size], zeros)
        bias = parameters.get("output_bias", [num_outputs], zeros)
    kernel = tf.linalg.matrix_transpose(weights)
    logits = layers.affine(encoder.get_pooled_output(), kernel, bias)
    if not with_token_logits:
        return TaskLogits(logits)
    output = encoder.get_sequence_output()
    token_logits = layers.affine(modeling.reshape_to_matrix(output), kernel, bias)
    shape = [*modeling.get_shape_list(output)[:2], num_outputs]
    return TaskLogits(logits, tf.reshape(token_logits, shape))
