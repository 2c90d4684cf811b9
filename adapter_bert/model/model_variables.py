"""The variables of a BERT with adapters: names, shapes, roles and fingerprint; without TensorFlow.

`encoder_shapes` is the only table of a plain BERT encoder's variables, `AdapterConfig.variables` of
an adapter's. `role_of` gives each variable exactly one role; `is_trained` is the only rule of what
trains.
"""

import functools
import hashlib
import re
from collections import OrderedDict
from typing import (
    Callable,
    Collection,
    Dict,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import numpy as np

from adapter_bert.model import configs
from adapter_bert.shell.errors import UserError

Shapes = Dict[str, Tuple[int, ...]]

# Graph collections, named as in google-research/adapter-bert: variables of adapters, LayerNorms of
# an encoder with adapters, and variables of a task's layers.
ADAPTERS, LAYER_NORM, HEAD = "adapters", "layer_norm", "head"
# Suffixes of moving statistics: the forward pass reads them, but they get no gradient.
MOVING = ("/moving_mean", "/moving_variance")
ADAPTER_TABLE = "`FUNCTIONS` of adapter_bert/model/configs.py"  # For errors.


class EncoderSizes(NamedTuple):
    """The sizes of an encoder, named as in bert_config.json."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int


def encoder_shapes(config: "Union[configs.BertConfig, EncoderSizes]") -> Shapes:
    """Returns the shapes of a plain BERT encoder, in the order in which `BertModel` creates them.

    Args:
      config: `configs.BertConfig`, or anything with the same sizes as attributes.

    Returns:
      A dictionary from the names of Google's checkpoints to shapes (tuples of int).
    """
    hidden, intermediate = config.hidden_size, config.intermediate_size
    shapes: Shapes = {
        "bert/embeddings/word_embeddings": (config.vocab_size, hidden),
        "bert/embeddings/token_type_embeddings": (config.type_vocab_size, hidden),
        "bert/embeddings/position_embeddings": (config.max_position_embeddings, hidden),
    }

    def dense(scope: str, rows: int, columns: int) -> None:
        shapes[scope + "/kernel"] = (rows, columns)
        shapes[scope + "/bias"] = (columns,)

    def layer_norm(scope: str) -> None:
        shapes[scope + "/LayerNorm/beta"] = (hidden,)
        shapes[scope + "/LayerNorm/gamma"] = (hidden,)

    layer_norm("bert/embeddings")
    for index in range(config.num_hidden_layers):
        layer = f"bert/encoder/layer_{index}"
        for projection in ("query", "key", "value"):
            dense(f"{layer}/attention/self/{projection}", hidden, hidden)
        dense(layer + "/attention/output/dense", hidden, hidden)
        layer_norm(layer + "/attention/output")
        dense(layer + "/intermediate/dense", hidden, intermediate)
        dense(layer + "/output/dense", intermediate, hidden)
        layer_norm(layer + "/output")
    dense("bert/pooler/dense", hidden, hidden)
    return shapes


def adapter_shapes(adapter: configs.AdapterConfig, width: int) -> Shapes:
    """Returns the shapes of one adapter's variables, including its moving statistics.

    Args:
      adapter: `configs.AdapterConfig`.
      width: D, the width of the sub-layer's output.

    Returns:
      A dictionary from names, below the scope of the projection that the adapter follows, to
      shapes (tuples of int), in the order in which the adapter creates them.
    """
    sizes = {"D": width, "m": adapter.size, "1": 1}
    return {
        f"adapters/{name}": tuple(sizes[axis] for axis in variable.axes)
        for name, variable in adapter.variables().items()
    }


def check_listed(trained: Shapes, listed: Shapes) -> None:
    """Checks, before a training, that its graph trains what the task adapter will hold.

    Args:
      trained: the shapes of the variables that train, and of moving statistics, by name.
      listed: those that the adapter's description lists; see `task_adapter.shapes`.

    Raises:
      UserError: a variable is in only one of them, or its shapes differ.
    """
    for name in sorted({*trained, *listed}):
        table = "`head_shapes` of the task's kind"
        if "/adapters/" in name:
            table = ADAPTER_TABLE
        elif name.startswith("bert/"):
            table = "`is_trained` of adapter_bert/model/model_variables.py"
        if name not in listed:
            raise UserError(f"Variable {name} trains, but would not be saved: list it in {table}.")
        if name not in trained:
            raise UserError(f"Variable {name} is in {table}, but the model does not train it.")
        if trained[name] != listed[name]:
            raise UserError(
                f"Variable {name} has the shape {list(trained[name])}, but {list(listed[name])} in"
                f" {table}."
            )


def adapters_shapes(
    adapter: configs.AdapterConfig, config: Union[configs.BertConfig, EncoderSizes]
) -> Shapes:
    """Returns the shapes of all adapters' variables in an encoder, by their names in checkpoints.

    Args:
      adapter: `configs.AdapterConfig`.
      config: as in `encoder_shapes`.
    """
    shapes = adapter_shapes(adapter, config.hidden_size)
    return {
        f"bert/encoder/layer_{layer}/{site}/{name}": shape
        for layer in adapter.layers or range(config.num_hidden_layers)
        for site in configs.SITES[adapter.sites]
        for name, shape in shapes.items()
    }


def fingerprint(get_tensor: Callable, config: Union[configs.BertConfig, EncoderSizes]) -> str:
    """Returns a hash that identifies a pretrained encoder, whatever file format it comes from.

    It is `sha256_of` all tensors in `encoder_shapes`.

    Args:
      get_tensor: function from a name to an array, such as a checkpoint reader's.
      config: `configs.BertConfig` or `EncoderSizes`.

    Returns:
      str, 64 hexadecimal digits.
    """
    return sha256_of(get_tensor, encoder_shapes(config))


def sha256_of(get_tensor: Callable, shapes: Shapes) -> str:
    """Returns the SHA-256 of tensors, as 64 hexadecimal digits.

    Hashes the tensors sorted by name: for each a line with name and shape, then its values as
    little-endian float32.

    Args:
      get_tensor: function from a name to an array.
      shapes: dict from names to shapes.
    """
    sha256 = hashlib.sha256()
    for name, shape in sorted(shapes.items()):
        sha256.update(f"{name} {list(shape)}\n".encode())
        sha256.update(np.ascontiguousarray(get_tensor(name), "<f4").data)
    return sha256.hexdigest()


class Role(NamedTuple):
    """The role of a variable.

    Attributes:
      kind: "adapter", "layer_norm", "embeddings", "layer", "pooler", "head" or "unclaimed".
      layer: index of its Transformer layer, or None outside of the layers.
    """

    kind: str
    layer: Optional[int] = None


UNCLAIMED = Role("unclaimed")  # Inside an encoder, but neither part of BERT nor in a collection.

# The variables of an encoder, named relative to its scope; the first match decides.
_KINDS = OrderedDict(
    (kind, re.compile(pattern))
    for kind, pattern in [
        ("adapter", r"encoder/layer_\d+/(attention/)?output/adapters/.+"),
        (
            "layer_norm",
            r"(embeddings|encoder/layer_\d+/(attention/)?output)/LayerNorm/(beta|gamma)",
        ),
        ("embeddings", r"embeddings/(word|token_type|position)_embeddings"),
        (
            "layer",
            r"encoder/layer_\d+/(attention/self/(query|key|value)"
            r"|(attention/output|intermediate|output)/dense)/(kernel|bias)",
        ),
        ("pooler", r"pooler/dense/(kernel|bias)"),
    ]
)
_LAYER = re.compile(r"encoder/layer_(\d+)/")


def encoder_scopes(names: Iterable[str]) -> List[str]:
    """Returns the scopes of the encoders among these variables; each ends in "/" or is "".

    Every encoder has one word embedding table, which locates it.
    """
    table = "embeddings/word_embeddings"
    return sorted(name[: -len(table)] for name in names if f"/{name}".endswith(f"/{table}"))


def role_of(name: str, scopes: Sequence[str], collections: Sequence[str] = ()) -> Role:
    """Returns the role of a variable.

    Args:
      name: the variable's name, without ":0".
      scopes: the graph's `encoder_scopes`.
      collections: the collections (adapters, layer_norm, head) that hold the variable.

    Raises:
      ValueError: no rule covers the variable.
    """
    scope = max(filter(name.startswith, scopes), key=len, default=None)
    relative_name = "" if scope is None else name[len(scope) :]
    layer_match = _LAYER.match(relative_name)
    layer = int(layer_match.group(1)) if layer_match else None
    if ADAPTERS in collections:
        return Role("adapter", layer)
    if HEAD in collections or scope is None:
        return Role("head")
    if LAYER_NORM in collections:
        return Role("layer_norm", layer)
    kind = _kind_of(relative_name)
    if kind:
        return Role(kind, layer)
    raise ValueError(
        f"Variable {name} lies in the encoder's scope {scope!r}, but is not part of BERT and in no"
        " collection: add it to the collection adapters or head where it is created."
    )


@functools.lru_cache(maxsize=4096)
def _kind_of(relative_name: str) -> Optional[str]:
    return next(
        (kind for kind, pattern in _KINDS.items() if pattern.fullmatch(relative_name)), None
    )


def is_trained(
    role: Role, tuning: configs.Tuning, num_layers: int, adapted_layers: Collection[int] = ()
) -> bool:
    """Returns whether a variable with that role trains.

    Args:
      role: `Role`.
      tuning: `configs.Tuning`.
      num_layers: L, the encoder's number of layers.
      adapted_layers: indices of the layers with an adapter.
    """
    top_layers = tuning.num_top_layers or 0
    if role.kind == "head" or tuning.method == "full" or top_layers == num_layers:
        return True
    if role.kind == "pooler":
        return tuning.train_pooler or tuning.method == "top_layers"
    if tuning.method == "top_layers":
        return role.layer is not None and role.layer >= num_layers - top_layers
    if role.kind == "layer_norm" and tuning.method in ("adapters", "layer_norm"):
        return tuning.layer_norms == "all" or (
            tuning.layer_norms == "adapted" and role.layer in adapted_layers
        )
    return role.kind == "adapter" and tuning.method == "adapters"
