"""BERT in TensorFlow 2's formats: a SavedModel of an encoder, or an object-based checkpoint.

TensorFlow's Model Garden writes both, TF-Hub and Kaggle publish them. Their weights are a
checkpoint with an object graph, which holds the name of each variable. This module converts the
names to those of Google's BERT. It never loads or runs a SavedModel.
"""

import os
import re
import warnings
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import trackable_object_graph_pb2

from adapter_bert.files import atomic, gfile, paths
from adapter_bert.formats import checkpoints
from adapter_bert.formats.bert import Bert, count_text, describe_encoder
from adapter_bert.model import configs, model_variables
from adapter_bert.shell.errors import UserError

_CONFIG, _VOCABULARY, _CHECKPOINT = paths.BERT_FILES.values()
SAVED_MODEL = "saved_model.pb"
_LOWER_CASE_KEY = "do_lower_case/.ATTRIBUTES/VARIABLE_VALUE"

# The size of an attention head in every BERT that Google released; used if the tensors' shapes do
# not show it.
_HEAD_SIZE = 64

# Patterns for the Model Garden's variables, of current and first encoders, and Google's names
# without "bert/".
_LAYER = r"(?:transformer|encoder)/layer_([0-9]{1,4})/"
_DENSE, _NORM = "(kernel|bias)", "(gamma|beta)"
_NAMES = [
    (re.compile(f"(?:(.*)/)?(?:{pattern})"), name)
    for pattern, name in (
        ("word_embeddings/embeddings", "embeddings/word_embeddings"),
        (
            "position_embedding/(?:position_)?embeddings"
            "|embedding_postprocessor/position_embeddings",
            "embeddings/position_embeddings",
        ),
        (
            "type_embeddings/embeddings|embedding_postprocessor/type_embeddings",
            "embeddings/token_type_embeddings",
        ),
        (f"(?:embeddings|embedding_postprocessor)/layer_norm/{_NORM}", "embeddings/LayerNorm/{}"),
        (
            f"{_LAYER}self_attention/(query|key|value)/{_DENSE}",
            "encoder/layer_{}/attention/self/{}/{}",
        ),
        (
            f"{_LAYER}self_attention(?:/attention)?_output/{_DENSE}",
            "encoder/layer_{}/attention/output/dense/{}",
        ),
        (
            f"{_LAYER}self_attention_layer_norm/{_NORM}",
            "encoder/layer_{}/attention/output/LayerNorm/{}",
        ),
        (f"{_LAYER}intermediate/{_DENSE}", "encoder/layer_{}/intermediate/dense/{}"),
        (f"{_LAYER}output/{_DENSE}", "encoder/layer_{}/output/dense/{}"),
        (f"{_LAYER}output_layer_norm/{_NORM}", "encoder/layer_{}/output/LayerNorm/{}"),
        (f"pooler_transform/{_DENSE}", "pooler/dense/{}"),
    )
]
_PROJECTION = "embedding_projection/kernel"
_WORD_EMBEDDINGS = "word_embeddings/embeddings"

# Keras activations, recorded in keras_metadata.pb of old models, and BERT's names. There "gelu" may
# be the exact form, which differs from BERT's tanh form by less than 1e-3.
_ACTIVATIONS = {"gelu": "gelu", "relu": "relu"}


# Raised by `parse_message`; protobuf raises SystemError for a warning that is an error.
PARSE_ERRORS = (DecodeError, RuntimeWarning, SystemError)


def parse_message(message_type: Any, content: Any) -> Any:
    """Parses bytes as a protocol buffer; raises one of `PARSE_ERRORS` if they are damaged."""
    with warnings.catch_warnings():
        # For bytes after a stray end of a group, protobuf on Python 3.7 only warns.
        warnings.simplefilter("error", RuntimeWarning)
        return message_type.FromString(content)


def is_object_based(reader: Any) -> bool:
    """Returns whether an open checkpoint has an object graph, as in TensorFlow 2."""
    return reader.has_tensor(checkpoints.OBJECT_GRAPH)


def matches(path: str) -> bool:
    """Returns whether a path is a folder with a SavedModel or an object-based checkpoint."""
    if gfile.exists(os.path.join(path, SAVED_MODEL)):
        return True
    try:
        if not gfile.isdir(path):
            return False
        prefix = _locate(path, "")[1]
        return gfile.exists(prefix + ".index") and is_object_based(
            checkpoints.open_checkpoint(prefix)
        )
    except UserError:
        return False


def describe(path: str, argument: str) -> List[str]:
    """Returns lines that describe a BERT for people; raises UserError as `read` does."""
    source = read(path, f"{argument} {path}:")
    return [
        f"TensorFlow 2 BERT: {count_text(source.tensors)}",
        describe_encoder(source.config, source.tensors.get),
    ]


def read(source: str, where: str) -> Bert:
    """Loads a BERT encoder without running any of its code.

    Args:
      source: folder of a SavedModel, folder of an object-based checkpoint, or prefix of such a
        checkpoint. The folder or its assets contain vocab.txt and may contain bert_config.json.
      where: beginning of error messages.

    Returns:
      `bert.Bert`.

    Raises:
      UserError: a file is missing or damaged; or the encoder is not a BERT with a WordPiece
        vocabulary.
    """
    folder, prefix = _locate(source, where)
    reader = checkpoints.open_checkpoint(prefix, where)
    if not is_object_based(reader):
        raise UserError(
            f"{where} expected an object-based checkpoint of TensorFlow 2, but {prefix}"
            " has no object graph."
        )
    keys = _keys_of_encoder(_variables(reader, where), where)
    shapes = reader.get_variable_to_shape_map()
    config = _config_of(folder, {name: shapes[key] for name, key in keys.items()}, where)
    checkpoints.check_float32(reader, keys, where, keys)
    vocab_file = find_vocabulary(folder, where)
    tensors = {}
    for name, shape in model_variables.encoder_shapes(config).items():
        tensors[name] = checkpoints.read_tensor(reader, keys[name], where).reshape(shape)
    return Bert(config, tensors, vocab_file, _lower_case_of(reader, where))


def _locate(source: str, where: str) -> Tuple[str, str]:
    """Returns (folder, prefix of the checkpoint)."""
    if not gfile.isdir(source):
        return os.path.dirname(source) or ".", source
    if gfile.exists(os.path.join(source, SAVED_MODEL)):
        return source, os.path.join(source, "variables", "variables")
    names = [name for name in gfile.listdir(source) if name.endswith(".index")]
    if len(names) != 1:
        raise UserError(
            f"{where} expected a SavedModel or a folder with one checkpoint, but found"
            f" {', '.join(sorted(names)) or 'neither'}."
        )
    return source, os.path.join(source, names[0][: -len(".index")])


def _variables(reader: Any, where: str) -> List[Tuple[str, str]]:
    """Returns (name, key in the checkpoint) of each variable in the object graph."""
    content = checkpoints.read_tensor(reader, checkpoints.OBJECT_GRAPH, where)
    try:
        graph = parse_message(trackable_object_graph_pb2.TrackableObjectGraph, content)
    except (*PARSE_ERRORS, TypeError) as error:
        raise UserError(f"{where} its object graph is damaged ({error}).") from error
    return sorted(
        {
            (attribute.full_name, attribute.checkpoint_key)
            for node in graph.nodes
            for attribute in node.attributes
            if reader.has_tensor(attribute.checkpoint_key)
        }
    )


def _keys_of_encoder(variables: Sequence[Tuple[str, str]], where: str) -> Dict[str, str]:
    """Returns a dict from Google's names to the checkpoint's keys of the encoder.

    Slots of an optimizer have the same names in an inner scope, such as "m/". So the encoder is the
    one with the outermost scope.
    """
    scopes: Dict[str, List[Tuple[str, str]]] = {}
    for full_name, key in variables:
        scope, name = _google_name(full_name)
        if name:
            scopes.setdefault(scope, []).append((name, key))
    encoder_scopes = [
        s for s in scopes if any(name.endswith("word_embeddings") for name, _ in scopes[s])
    ]
    if not encoder_scopes:
        names = sorted({full_name for full_name, _ in variables})
        raise UserError(
            f"{where} expected the variables of a BERT encoder, but there is no"
            f" {_WORD_EMBEDDINGS}, only {', '.join(names[:3]) or 'none'}."
        )
    outermost = min(
        encoder_scopes, key=lambda scope: (len(scope.split("/")) if scope else 0, scope)
    )
    depth = outermost.count("/")
    rivals = [s for s in encoder_scopes if s and outermost and s.count("/") == depth]
    if len(rivals) > 1:
        raise UserError(
            f"{where} expected one BERT encoder, but found {' and '.join(sorted(rivals))}."
        )
    scope = outermost + "/" if outermost else ""
    if any(full_name == scope + _PROJECTION for full_name, _ in variables):
        raise UserError(
            f"{where} expected a BERT, but {scope}{_PROJECTION} belongs to an encoder with"
            " factorized embeddings, such as ALBERT."
        )
    names = [name for name, _ in scopes[outermost]]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise UserError(
            f"{where} expected one BERT encoder, but found {duplicates[0]} more than once."
        )
    return dict(scopes[outermost])


def _google_name(full_name: str) -> Tuple[str, str]:
    """Returns (scope, Google's name) of a variable, or empty strings for other variables."""
    for pattern, name in _NAMES:
        match = pattern.fullmatch(full_name)
        if match:
            scope, *parts = match.groups()
            return scope or "", "bert/" + name.format(*parts)
    return "", ""


def _config_of(folder: str, shapes: Dict[str, Sequence[int]], where: str) -> configs.BertConfig:
    """Returns the encoder's `configs.BertConfig`, after checking it against the tensors' shapes."""
    query = shapes.get("bert/encoder/layer_0/attention/self/query/kernel", ())
    num_heads = int(query[1]) if len(query) == 3 else None
    config, activation = find_config(folder, where), _activation_of(folder, where)
    if config is None:
        config = config_from_shapes(shapes, where, num_heads)
        config.hidden_act = activation or "gelu"  # As in Google's models.
    elif activation not in (None, config.hidden_act):
        raise UserError(
            f"{where} has the activation {activation}, but its {_CONFIG} says {config.hidden_act}."
        )
    if num_heads not in (None, config.num_attention_heads):
        raise UserError(
            f"{where} has {num_heads} attention heads, but its {_CONFIG} says"
            f" {config.num_attention_heads}."
        )
    merged = model_variables.encoder_shapes(config)
    checkpoints.check_encoder_shapes(
        {
            name: merged.get(name, shape)
            if tuple(shape) == _shape_by_heads(name, config)
            else shape
            for name, shape in shapes.items()
        },
        config,
        where,
    )
    return config


def _shape_by_heads(name: str, config: configs.BertConfig) -> Optional[Tuple[int, ...]]:
    """Returns the shape of an attention tensor with an axis for heads; None for other tensors."""
    num_heads, width = config.num_attention_heads, config.hidden_size
    if name.endswith("/attention/output/dense/kernel"):
        return num_heads, width // num_heads, width
    if "/attention/self/" in name:
        shape = num_heads, width // num_heads
        return (width, *shape) if name.endswith("/kernel") else shape
    return None


def _activation_of(folder: str, where: str) -> Optional[str]:
    """Returns the activation in keras_metadata.pb, or None.

    Raises:
      UserError: BERT has no such activation; or LayerNorm precedes the sub-layers.
    """
    path = os.path.join(folder, "keras_metadata.pb")
    if not gfile.exists(path):
        return None
    metadata = gfile.read_bytes(path, f"{where} {path}").decode("utf-8", "replace")
    if re.search(r'"norm_first": true', metadata):
        raise UserError(f"{where} normalizes before each layer (norm_first), unlike BERT.")
    names = set(re.findall(r'"inner_activation": "(?:\w+>)?(\w+)"', metadata))
    if len(names) > 1 or not names <= set(_ACTIVATIONS):
        raise UserError(
            f"{where} has the activation {', '.join(sorted(names))}, expected gelu or relu."
        )
    return _ACTIVATIONS[names.pop()] if names else None


def _lower_case_of(reader: Any, where: str) -> Optional[bool]:
    """Returns the variable do_lower_case of an encoder's SavedModel, or None."""
    if not reader.has_tensor(_LOWER_CASE_KEY):
        return None
    value = np.asarray(checkpoints.read_tensor(reader, _LOWER_CASE_KEY, where))
    return bool(value) if value.shape == () and value.dtype == bool else None


def find_config(folder: str, where: str) -> Optional[configs.BertConfig]:
    """Returns the config in bert_config.json of a folder or its assets; None without that file.

    Raises:
      UserError: the file is damaged, or is a link out of the folder.
    """
    for path in (folder, os.path.join(folder, "assets")):
        config_file = os.path.join(path, _CONFIG)
        if gfile.exists(config_file):
            return configs.BertConfig.from_json_file(config_file)
    return None


def config_from_shapes(
    shapes: Dict[str, Sequence[int]], where: str, num_heads: Optional[int] = None
) -> configs.BertConfig:
    """Infers an encoder's config from its shapes; other fields are those of Google's models.

    Args:
      shapes: dict from Google's names to shapes.
      where: beginning of error messages.
      num_heads: number of attention heads; None if each has Google's size, 64.

    Raises:
      UserError: a required tensor is missing, or the hidden size is not a multiple of the head size
        or number of heads.
    """
    sizes = checkpoints.encoder_sizes(shapes, where)
    if num_heads is None and sizes.hidden_size % _HEAD_SIZE:
        raise UserError(
            f"{where} has no {_CONFIG}, and its number of attention heads cannot be inferred: the"
            f" hidden size, {sizes.hidden_size}, is not a multiple of {_HEAD_SIZE}."
        )
    num_heads = num_heads or sizes.hidden_size // _HEAD_SIZE
    if not num_heads or sizes.hidden_size % num_heads:
        raise UserError(
            f"{where} has {num_heads} heads, which is not a divisor of the hidden size,"
            f" {sizes.hidden_size}."
        )
    return configs.BertConfig(num_attention_heads=num_heads, **sizes._asdict())


def find_vocabulary(folder: str, where: str) -> str:
    """Returns the path of the WordPiece vocabulary: vocab.txt, or the only .txt file in the assets.

    Paths in protocol buffers are ignored, because they could lead anywhere.

    Raises:
      UserError: there is no vocabulary, or more than one; or it is a link out of the folder.
    """
    assets = os.path.join(folder, "assets")
    names = sorted(gfile.listdir(assets)) if gfile.isdir(assets) else []
    text_files = [name for name in names if name.endswith(".txt")]
    if _VOCABULARY in text_files:
        text_files = [_VOCABULARY]
    found = [os.path.join(assets, name) for name in text_files]
    if not found and gfile.exists(os.path.join(folder, _VOCABULARY)):
        found = [os.path.join(folder, _VOCABULARY)]
    if len(found) != 1:
        raise UserError(
            f"{where} expected one WordPiece vocabulary (.txt) among its assets, but found"
            f" {', '.join(names) or 'none'}."
        )
    return found[0]


def checkpoint_of(encoder: Bert) -> str:
    """Returns the prefix of an encoder's checkpoint with Google's names; writes it if missing.

    The checkpoint is in a subfolder of `paths.cache_folder("bert")` that is named after the
    fingerprint of all values. So the same weights have the same prefix in each run, and are never
    overwritten.

    Raises:
      UserError: the checkpoint cannot be written, or other users may write to the folder.
    """
    fingerprint = model_variables.fingerprint(encoder.tensors.get, encoder.config)
    folder = os.path.join(paths.cache_folder("bert"), fingerprint)

    def write(partial: str) -> None:
        checkpoints.write(os.path.join(partial, _CHECKPOINT), encoder.tensors)

    atomic.cached_folder(folder, _CHECKPOINT + ".index", write)
    return os.path.join(folder, _CHECKPOINT)
