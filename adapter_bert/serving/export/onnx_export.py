"""Writes ONNX files of tasks over one backbone, for plain ONNX Runtime.

A file of several tasks has one more input, task_ids, which selects each row's weights from tables
in the graph. The tasks' descriptions and the vocabulary are next to the file; the descriptions are
also in its metadata.

Axes in shape comments: B batch, S positions, L the largest number of outputs of a task.
"""

import json
import os
import posixpath
from typing import Any, Dict, List, Tuple

import numpy as np

from adapter_bert.files import atomic, gfile, json_objects
from adapter_bert.formats import task_adapter
from adapter_bert.model import configs, task_kinds
from adapter_bert.serving.inference import (
    compatibility,
    onnx_encoder,
    onnx_graph,
    onnx_parameters,
    quantization,
)
from adapter_bert.shell.errors import UserError

MODEL_FILE, TASKS_FILE = "model.onnx", "tasks.json"

_MAX_BYTES = (1 << 31) - (1 << 24)  # A protocol buffer's limit, less the graph without constants.


def write(
    folder: str,
    config: configs.BertConfig,
    backbone: onnx_graph.Tensors,
    adapters: Dict[str, task_adapter.TaskAdapter],
    vocab_file: str,
    precision: str = "float32",
) -> str:
    """Writes an ONNX file, the tasks' descriptions and the vocabulary into a new numbered folder.

    Args:
      folder: the file is `<folder>/<number>/model.onnx`, with the next free number.
      config: `configs.BertConfig`.
      backbone: dict of its tensors, see `onnx_backbone.BackboneWeights`.
      adapters: dict from names of tasks to `task_adapter.TaskAdapter`, all of this BERT. Their
        task_ids are the positions of their sorted names, as in the descriptions' file.
      vocab_file: the BERT's.
      precision: "float32", or "int8" for the backbone's products.

    Returns:
      Path of the ONNX file.

    Raises:
      UserError: the adapters cannot share a graph; the file would exceed 2 GB, or cannot be
        written.
    """
    adapters = dict(sorted(adapters.items()))
    graph = onnx_graph.Graph()
    _build(graph, config, backbone, list(adapters.values()), precision)
    tasks = {name: task_adapter.summary(adapter.description) for name, adapter in adapters.items()}
    model = graph.model({"tasks": json.dumps(tasks), "vocabulary": os.path.basename(vocab_file)})
    # Not ByteSize(), which fails beyond the limit.
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > _MAX_BYTES:
        raise UserError("The model exceeds 2 GB, the limit of an ONNX file: export fewer tasks.")
    path = atomic.next_numbered_folder(folder)
    with atomic.atomic_folder(path) as partial:
        with gfile.open_file(posixpath.join(partial, MODEL_FILE), "wb") as writer:
            writer.write(model.SerializeToString())
        json_objects.write_object(posixpath.join(partial, TASKS_FILE), tasks)
        gfile.copy(vocab_file, posixpath.join(partial, os.path.basename(vocab_file)))
    return posixpath.join(path, MODEL_FILE)


def _build(
    graph: onnx_graph.Graph,
    config: configs.BertConfig,
    backbone: onnx_graph.Tensors,
    adapters: List[task_adapter.TaskAdapter],
    precision: str,
) -> None:
    architecture = compatibility.common_architecture(adapters)
    arrays = [onnx_parameters.task_arrays(config, backbone, each) for each in adapters]
    kinds = [task_kinds.get(adapter.description.kind) for adapter in adapters]
    given = onnx_encoder.inputs(graph, onnx_graph.INT64)
    sizes = graph.op("Shape", given.input_ids)
    padding = _padding(graph, sizes)
    batch = onnx_encoder.InputNames(*(_checked(graph, ids, padding) for ids in given))
    is_token = graph.constant(np.array([0, 1], np.int32))
    batch = batch._replace(input_mask=graph.op("Gather", is_token, batch.input_mask))
    num_rows = graph.op("Shape", batch.input_ids, start=0, end=1)
    if len(adapters) == 1:
        parameters = onnx_parameters.constant_parameters(graph, config, architecture, arrays[0])
    else:
        task_ids = graph.input("task_ids", ["B"], onnx_graph.INT64)
        rows_only = graph.op("Gather", padding, graph.ints(0, 2))
        task_ids = _checked(graph, task_ids, rows_only)
        parameters = onnx_parameters.gathered_parameters(
            graph, config, architecture, arrays, task_ids, num_rows
        )
    reads_tokens = any(kind.reads_tokens for kind in kinds)
    maxima = quantization.activation_maxima(config, backbone) if precision == "int8" else None
    encoder = onnx_encoder.OnnxEncoder(
        graph, config, backbone, architecture, parameters, batch, maxima
    )
    outputs = encoder.outputs(None if reads_tokens else graph.ints(1))
    num_outputs = max(value.head.shape[1] for value in arrays)
    named: Dict[str, Tuple[str, List[Any]]] = {}
    if not all(kind.reads_tokens for kind in kinds):
        shape = graph.op("Concat", num_rows, graph.ints(num_outputs), axis=0)
        named["logits"] = graph.op("Reshape", outputs.logits, shape), ["B", num_outputs]
    if reads_tokens:
        shape = graph.op("Shape", batch.input_ids)
        shape = graph.op("Concat", shape, graph.ints(num_outputs), axis=0)
        logits = graph.op("Reshape", outputs.token_logits, shape)
        named["token_logits"] = logits, ["B", "S", num_outputs]
    if len(adapters) == 1:
        ((logits, dims),) = named.values()
        named = kinds[0].export_onnx(graph, logits, dims)
    for name, (tensor, dims) in named.items():
        axes = range(len({"B", "S"} & set(dims)))
        ends = graph.op("Slice", sizes, graph.ints(0), graph.ints(len(axes)))
        tensor = graph.op("Slice", tensor, graph.ints(*[0] * len(axes)), ends, graph.ints(*axes))
        graph.output(name, tensor, dims)


def _padding(graph: onnx_graph.Graph, sizes: str) -> str:
    """Returns the pads [4] that turn zero rows into one, as some operators refuse empty Tensors.

    Args:
      graph: `Graph`.
      sizes: int64 Tensor [2], the numbers of rows and positions.
    """
    one = graph.ints(1)
    missing = graph.op("Sub", one, graph.op("Min", sizes, one))
    rows = graph.op("Slice", missing, graph.ints(0), one)
    return graph.op("Concat", graph.ints(0, 0), graph.op("Mul", rows, missing), axis=0)


def _checked(graph: onnx_graph.Graph, ids: str, padding: str) -> str:
    """Returns padded ids, with which a Gather fails if one is negative: it counts from the end."""
    zero, least = (graph.constant(np.array(value)) for value in (0, np.iinfo(np.int64).min))
    ids = graph.op("Pad", ids, padding)
    return graph.op("Where", graph.op("Less", ids, zero), least, ids)
