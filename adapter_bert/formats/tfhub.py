"""BERT in TF-Hub's formats: a module's weights, vocabulary and config.

A module is a closed graph, into which adapters cannot be inserted. Only its variables (an ordinary
checkpoint), vocabulary and constants are read. Its graphs are never loaded or run.
"""

import functools
import os
from typing import Any, List, Optional

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import saved_model_pb2

from adapter_bert.files import gfile
from adapter_bert.formats import checkpoints, tf2
from adapter_bert.formats.bert import describe_encoder
from adapter_bert.model import configs
from adapter_bert.shell.errors import UserError

_HUB_MODULE = "tfhub_module.pb"


def library() -> Any:
    """Returns the package tensorflow_hub, which is slow to import, as it imports Estimator."""
    from adapter_bert.shell import tf_estimator  # noqa: F401  tensorflow_hub finds Estimator in TensorFlow.

    # isort: split
    import tensorflow_hub

    return tensorflow_hub


def find_module(handle: str) -> str:
    """Returns the folder of a module; downloads the module if the handle is an address.

    Args:
      handle: address or folder of the module.

    Raises:
      UserError: the module cannot be downloaded.
    """
    if gfile.isdir(handle):
        return handle
    try:
        return library().resolve(handle)
    except (OSError, ValueError, RuntimeError, tf.errors.OpError) as error:
        raise UserError(
            f"TF-Hub module {handle}: cannot be downloaded ({gfile.reason(error)}); expected a"
            " reachable address, or the folder of a module."
        ) from error


def matches(path: str) -> bool:
    """Returns whether a path is the folder of a module in TensorFlow 1's hub format."""
    names = (_HUB_MODULE, tf2.SAVED_MODEL)
    return all(gfile.exists(os.path.join(path, name)) for name in names)


def describe(path: str, argument: str) -> List[str]:
    """Returns lines that describe a module for people.

    Args:
      path: folder of the module.
      argument: what errors call the folder, such as "PATH".

    Raises:
      UserError: the module is damaged, or is not a BERT.
    """
    bert = read_bert(path)
    reader = checkpoints.open_checkpoint(bert.init_checkpoint, argument)
    read = functools.partial(checkpoints.read_tensor, reader, where=f"{argument} {path}")
    return ["TF-Hub module", describe_encoder(bert.config, read)]


def read_bert(handle: str) -> configs.PretrainedBert:
    """Returns the weights, vocabulary and config of a BERT module, without running its code.

    Weights in TensorFlow 2's formats are first written as a checkpoint with Google's names; see
    `tf2.checkpoint_of`.

    Args:
      handle: the module's address; or a folder in TensorFlow 1's hub format, of a SavedModel, or
        of an object-based checkpoint.

    Returns:
      `configs.PretrainedBert`.

    Raises:
      UserError: the module cannot be downloaded, or is not a BERT with a WordPiece vocabulary.
    """
    where = f"TF-Hub module {handle}:"
    folder = find_module(handle)
    if not matches(folder):
        return _read_tf2(folder, where)
    prefix = os.path.join(folder, "variables", "variables")
    shapes = checkpoints.open_checkpoint(prefix, where).get_variable_to_shape_map()
    config = tf2.find_config(folder, where) or tf2.config_from_shapes(shapes, where)
    checkpoints.check_encoder(prefix, config, flag=where)
    vocab_file = tf2.find_vocabulary(folder, where)
    return configs.PretrainedBert(config, vocab_file, prefix, _lower_case_of(folder, where))


def _read_tf2(folder: str, where: str) -> configs.PretrainedBert:
    is_saved_model = gfile.exists(os.path.join(folder, tf2.SAVED_MODEL))
    if is_saved_model and not is_tf2(folder, where):
        raise UserError(
            f"{where} expected a module in TensorFlow 1's hub format or TensorFlow 2's SavedModel,"
            f" but {folder} is neither."
        )
    encoder = tf2.read(folder, where)
    return configs.PretrainedBert(
        encoder.config,
        encoder.vocab_file,
        tf2.checkpoint_of(encoder),
        encoder.do_lower_case,
    )


def read_saved_model(folder: str, where: str) -> saved_model_pb2.SavedModel:
    """Loads a folder's saved_model.pb as a protocol buffer.

    Raises:
      UserError: the file is missing or damaged.
    """
    path = os.path.join(folder, tf2.SAVED_MODEL)
    try:
        with gfile.open_regular(path) as reader:
            return tf2.parse_message(saved_model_pb2.SavedModel, reader.read())
    except (*tf2.PARSE_ERRORS, OSError) as error:
        raise UserError(f"{where} {path} cannot be read ({gfile.reason(error)}).") from error


def is_tf2(folder: str, where: str) -> bool:
    """Returns whether a folder has a SavedModel with an object graph, as in TensorFlow 2.

    Raises:
      UserError: as for `read_saved_model`.
    """
    if not gfile.exists(os.path.join(folder, tf2.SAVED_MODEL)):
        return False
    return any(
        graph.object_graph_def.nodes for graph in read_saved_model(folder, where).meta_graphs
    )


def _lower_case_of(folder: str, where: str) -> Optional[bool]:
    """Returns the constant "do_lower_case" of the signature "tokenization_info", or None.

    Raises:
      UserError: the value is not a constant; the error names flags to use instead of the module.
    """
    graphs = read_saved_model(folder, where).meta_graphs
    for graph in sorted(graphs, key=lambda graph: len(graph.meta_info_def.tags)):
        outputs = graph.signature_def["tokenization_info"].outputs
        if "do_lower_case" in outputs:
            value = _constant(graph.graph_def, outputs["do_lower_case"].name)
            if value is None:
                raise UserError(
                    f"{where} do_lower_case must be a constant, because the graph is not run; set"
                    " --vocab_file, --bert_config_file and"
                    f" --init_checkpoint={os.path.join(folder, 'variables', 'variables')} instead."
                )
            return value
    return None


def _constant(graph_def: Any, name: str) -> Optional[bool]:
    """Returns the value of a boolean constant in a GraphDef; None if it is not a constant."""
    nodes = {node.name: node for node in graph_def.node}
    node = nodes.get(_node_name(name))
    for _ in nodes:  # Limits the number of steps, because a damaged graph may have cycles.
        if node is None or node.op != "Identity" or not node.input:
            break
        node = nodes.get(_node_name(node.input[0]))
    if node is None or node.op != "Const":
        return None
    value = node.attr["value"].tensor
    if value.dtype != types_pb2.DT_BOOL or value.tensor_shape.dim:
        return None
    if value.tensor_content:
        return bool(np.frombuffer(value.tensor_content, np.uint8)[0])
    return bool(value.bool_val[0]) if value.bool_val else None


def _node_name(tensor: str) -> str:
    """Returns the name of a Tensor's node; a control input, "^node", is not a Tensor."""
    return tensor.rpartition(":")[0] if ":" in tensor else tensor
