"""Which variables train: one rule for every method, script and head; and what they count.

`role_of` gives every variable exactly one role, by its name and by adapter-bert's graph
collections; `trained_variables` turns a method of the paper into the list of what trains. A
variable of the encoder's scope that is neither BERT's own nor in a collection would silently stay
as it was initialized. In our scripts it is an error; `optimization.create_optimizer`, which serves
models written for BERT, warns of it.
"""

import re
from collections import OrderedDict
from typing import Collection, Dict, Iterable, List, NamedTuple, Optional, Sequence

import tensorflow.compat.v1 as tf

from adapter_bert.common.configs import Tuning
from adapter_bert.ops.layers import variable_name
from modeling import ADAPTERS, HEAD, LAYER_NORM


class Role(NamedTuple):
    """What a variable is: kind is one of adapter, layer_norm, embeddings, layer, pooler, head;
    layer is the index of its Transformer layer, None outside of them."""

    kind: str
    layer: Optional[int] = None


UNCLAIMED = Role("unclaimed")  # Inside an encoder, but neither BERT's nor in a collection.

# The variables of an encoder, by their names below its scope; the first that matches decides.
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
    """The scopes of the encoders among variables of these names: each ends in "/", or is ""."""
    table = "embeddings/word_embeddings"
    return sorted(name[: -len(table)] for name in names if f"/{name}".endswith(f"/{table}"))


def role_of(name: str, scopes: Sequence[str], collections: Sequence[str] = ()) -> Role:
    """The one role of a variable.

    Args:
      name: the variable's name, without ":0".
      scopes: what `encoder_scopes` gives for the graph.
      collections: which of the collections adapters, layer_norm and head hold it.

    Raises:
      ValueError: nothing covers the variable.
    """
    scope = max(filter(name.startswith, scopes), key=len, default=None)
    inside = "" if scope is None else name[len(scope) :]
    in_layer = _LAYER.match(inside)
    layer = int(in_layer.group(1)) if in_layer else None
    if ADAPTERS in collections:
        return Role("adapter", layer)
    if HEAD in collections or scope is None:
        return Role("head")
    if LAYER_NORM in collections:
        return Role("layer_norm", layer)
    for kind, pattern in _KINDS.items():
        if pattern.fullmatch(inside):
            return Role(kind, layer)
    raise ValueError(
        f"Variable {name} lies in the encoder's scope {scope!r}, but is not BERT's, and no"
        " collection claims it: whoever makes it must add it to the collection adapters or head."
    )


def roles(strict: bool = True) -> Dict[str, Role]:
    """An ordered dict from the name of each trainable variable of the graph to its `Role`.

    Args:
      strict: whether a variable that nothing covers is an error; else its role is `UNCLAIMED`.

    Raises:
      ValueError: a variable that nothing covers, see `role_of`.
    """
    names = [variable_name(variable) for variable in tf.trainable_variables()]
    claims = {
        key: {variable_name(variable) for variable in tf.get_collection(key)}
        for key in (ADAPTERS, LAYER_NORM, HEAD)
    }
    scopes = encoder_scopes(names)
    by_name = OrderedDict()
    for name in names:
        try:
            by_name[name] = role_of(name, scopes, [key for key in claims if name in claims[key]])
        except ValueError:
            if strict:
                raise
            by_name[name] = UNCLAIMED
    return by_name


def default_tuning() -> Tuning:
    """The method for a graph of which no one said: adapters if it has any, else everything.

    A `BertModel` with an adapter function, even one that makes no variables, puts its LayerNorms
    into the collection `layer_norm`; one without does not. A head's may lie there either way.
    """
    scopes = encoder_scopes(variable_name(v) for v in tf.trainable_variables())
    layer_norms = {variable_name(v) for v in tf.get_collection(LAYER_NORM)}
    has_adapters = tf.get_collection(ADAPTERS) or any(
        scope + "embeddings/LayerNorm/gamma" in layer_norms for scope in scopes
    )
    return Tuning("adapters" if has_adapters else "full")


def is_trained(
    role: Role, tuning: Tuning, num_layers: int, adapted_layers: Collection[int] = ()
) -> bool:
    """Whether a variable of that role trains.

    Args:
      role: `Role`.
      tuning: `Tuning`.
      num_layers: L, the encoder's number of layers.
      adapted_layers: the indices of those that hold an adapter.
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


def trained_variables(tuning: Optional[Tuning] = None, strict: bool = True) -> list:
    """The variables of the graph that train, in the order of their making.

    Args:
      tuning: `Tuning`; `default_tuning` by default.
      strict: as of `roles`; else what nothing covers trains only where everything does.

    Raises:
      UserError: more top layers than the encoder has.
      ValueError: a variable that nothing covers, see `role_of`.
    """
    tuning = tuning or default_tuning()
    variables = tf.trainable_variables()
    if tuning.method == "full":
        return variables
    role = roles(strict)
    num_layers = 1 + max((r.layer for r in role.values() if r.layer is not None), default=-1)
    tuning.check_depth(num_layers)
    adapted = {r.layer for r in role.values() if r.kind == "adapter" and r.layer is not None}
    return [v for v in variables if is_trained(role[variable_name(v)], tuning, num_layers, adapted)]


def check_gradients(variables: list, gradients: list) -> None:
    """Makes sure that the loss depends on every adapter and on the head.

    Raises:
      ValueError: an adapter or a variable of the head has no gradient: it would never be trained.
    """
    missing = [variable_name(v) for v, gradient in zip(variables, gradients) if gradient is None]
    if not missing:
        return
    role = roles()
    lost = [name for name in missing if role[name].kind in ("adapter", "head")]
    if lost:
        raise ValueError(
            f"The loss does not depend on {len(lost)} of the variables that are to be trained,"
            " the first"
            f" being {lost[0]}."
        )


def warning_of_untrained(variables: list, reached: list) -> str:
    """Returns one line that names what stays as it is and might be expected to train, or "".

    BERT's pooler is not named: a head that reads tokens never depends on it.

    Args:
      variables: list of the variables that are to train.
      reached: list of those that the loss depends on.
    """
    role, wanted = roles(strict=False), {variable_name(v) for v in variables}
    missing = wanted - {variable_name(v) for v in reached}
    unreached = [name for name in role if name in missing and role[name].kind != "pooler"]
    unclaimed = [name for name in role if role[name] == UNCLAIMED and name not in wanted]
    groups = []
    if unreached:
        groups.append(f"{', '.join(unreached)} (the loss does not depend on them)")
    if unclaimed:
        groups.append(
            f"{', '.join(unclaimed)} (inside the encoder's scope, but in neither of the collections"
            " adapters and head)"
        )
    return f"These variables do not train: {'; '.join(groups)}." if groups else ""


def count_parameters(variables: list) -> int:
    """The number of scalars in these variables."""
    return sum(variable.shape.num_elements() for variable in variables)


def summary(trained: list) -> str:
    """One sentence that says how many parameters train, are frozen, and their share.

    Args:
      trained: list of variables; all others of the graph that could train count as frozen.
    """
    count, total = count_parameters(trained), count_parameters(tf.trainable_variables())
    return (
        f"Training {count:,} of {total:,} parameters ({100.0 * count / total:.2f}%);"
        f" {total - count:,} are frozen."
    )
