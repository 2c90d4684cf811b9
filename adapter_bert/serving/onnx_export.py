"""Writes ONNX files of tasks over one backbone, for plain ONNX Runtime.

A file of several tasks has one more input, task_ids, which selects each row's weights from tables
in the graph. The tasks' descriptions and the vocabulary are next to the file; the descriptions are
also in its metadata.

Axes in shape comments: B batch, S positions, L the largest number of outputs of a task.
"""

import json
import os
import posixpath
from typing import Any, Dict, List

from adapter_bert.common import configs, files, task_kinds
from adapter_bert.common.errors import UserError
from adapter_bert.formats import task_adapter
from adapter_bert.serving import compatibility, onnx_encoder

MODEL_FILE, TASKS_FILE = "model.onnx", "tasks.json"

_MAX_BYTES = (1 << 31) - (1 << 24)  # A protocol buffer's limit, less the graph without constants.


def write(
    folder: str,
    config: configs.BertConfig,
    backbone: onnx_encoder.Tensors,
    adapters: Dict[str, task_adapter.TaskAdapter],
    vocab_file: str,
    precision: str = "float32",
) -> str:
    """Writes an ONNX file, the tasks' descriptions and the vocabulary into a new numbered folder.

    Args:
      folder: the file is `<folder>/<number>/model.onnx`, with the next free number.
      config: `configs.BertConfig`.
      backbone: dict of its tensors, see `onnx_backbone.Backbone`.
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
    graph = onnx_encoder.Graph()
    _build(graph, config, backbone, list(adapters.values()), precision)
    tasks = {name: task_adapter.summary(adapter.description) for name, adapter in adapters.items()}
    model = graph.model({"tasks": json.dumps(tasks), "vocabulary": os.path.basename(vocab_file)})
    # Not ByteSize(), which fails beyond the limit.
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > _MAX_BYTES:
        raise UserError("The model exceeds 2 GB, the limit of an ONNX file: export fewer tasks.")
    path = files.next_numbered_folder(folder)
    with files.atomic_folder(path) as partial:
        with files.open_file(posixpath.join(partial, MODEL_FILE), "wb") as writer:
            writer.write(model.SerializeToString())
        files.write_object(posixpath.join(partial, TASKS_FILE), tasks)
        files.copy(vocab_file, posixpath.join(partial, os.path.basename(vocab_file)))
    return posixpath.join(path, MODEL_FILE)


def _build(
    graph: onnx_encoder.Graph,
    config: configs.BertConfig,
    backbone: onnx_encoder.Tensors,
    adapters: List[task_adapter.TaskAdapter],
    precision: str,
) -> None:
    arrays = [onnx_encoder.task_arrays(config, backbone, each.tensors) for each in adapters]
    kinds = [task_kinds.get(adapter.description.kind) for adapter in adapters]
    batch = onnx_encoder.inputs(graph, onnx_encoder.INT64)
    if len(adapters) == 1:
        parameters = onnx_encoder.constant_parameters(graph, arrays[0])
    else:
        task_ids = graph.input("task_ids", ["B"], onnx_encoder.INT64)
        parameters = onnx_encoder.gathered_parameters(graph, config, arrays, task_ids)
    reads_tokens = any(kind.reads_tokens for kind in kinds)
    outputs = onnx_encoder.encode(
        graph,
        config,
        backbone,
        compatibility.common_architecture(adapters),
        parameters,
        batch,
        None if reads_tokens else graph.ints(1),
        precision=precision,
    )
    num_outputs = max(value.head.shape[1] for value in arrays)
    sizes = graph.op("Shape", batch.input_ids)
    token_shape = graph.op("Concat", sizes, graph.ints(num_outputs), axis=0)
    logits = graph.op("Reshape", outputs.logits, graph.ints(-1, num_outputs))
    named: Dict[str, Any] = {"logits": logits}
    if reads_tokens:
        token_logits = graph.op("Reshape", outputs.token_logits, token_shape)
        named["token_logits"] = token_logits
    if len(adapters) == 1:
        named = kinds[0].export_onnx(graph, named["token_logits" if reads_tokens else "logits"])
    elif all(kind.reads_tokens for kind in kinds):
        del named["logits"]
    for name, tensor in named.items():
        graph.output(name, tensor)
