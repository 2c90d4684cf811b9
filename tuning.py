"""Selects the variables of a graph that train, and counts their parameters.

`roles` gives every variable exactly one role (`model_variables.role_of`). `trained_variables`
returns the variables that a tuning method trains. A variable in the encoder's scope that is neither
part of BERT nor in a collection would silently keep its initial value. In our scripts this is an
error; `optimization.create_optimizer`, which also trains models written for BERT, logs a warning.
"""

from collections import OrderedDict
from typing import Dict, Optional

import tensorflow.compat.v1 as tf

from adapter_bert.model.configs import Tuning
from adapter_bert.model.model_variables import (
    ADAPTERS,
    HEAD,
    LAYER_NORM,
    UNCLAIMED,
    Role,
    encoder_scopes,
    is_trained,
    role_of,
)
from adapter_bert.ops.layers import variable_name


def roles(strict: bool = True) -> Dict[str, Role]:
    """Returns an ordered dict from the name of each trainable variable of the graph to its `Role`.

    Args:
      strict: bool; raise an error for a variable that no rule covers. Otherwise its role is
        `UNCLAIMED`.

    Raises:
      ValueError: no rule covers a variable; see `role_of`.
    """
    names = [variable_name(variable) for variable in tf.trainable_variables()]
    names_by_collection = {
        key: {variable_name(variable) for variable in tf.get_collection(key)}
        for key in (ADAPTERS, LAYER_NORM, HEAD)
    }
    scopes = encoder_scopes(names)
    roles_by_name = OrderedDict()
    for name in names:
        try:
            roles_by_name[name] = role_of(
                name,
                scopes,
                [key for key in names_by_collection if name in names_by_collection[key]],
            )
        except ValueError:
            if strict:
                raise
            roles_by_name[name] = UNCLAIMED
    return roles_by_name


def default_tuning() -> Tuning:
    """Returns the default tuning of a graph: "adapters" if it has adapters, otherwise "full".

    An adapter function may create no variables. The graph also has adapters if the encoder's
    LayerNorms are in the collection `layer_norm`: a `BertModel` without adapters does not put them
    there. LayerNorms of a head may be in the collection in either case, and do not count.
    """
    scopes = encoder_scopes(variable_name(v) for v in tf.trainable_variables())
    layer_norms = {variable_name(v) for v in tf.get_collection(LAYER_NORM)}
    has_adapters = tf.get_collection(ADAPTERS) or any(
        scope + "embeddings/LayerNorm/gamma" in layer_norms for scope in scopes
    )
    return Tuning("adapters" if has_adapters else "full")


def trained_variables(tuning: Optional[Tuning] = None, strict: bool = True) -> list:
    """Returns the variables of the graph to train, in the order of their creation.

    Args:
      tuning: `Tuning`; by default `default_tuning`.
      strict: as in `roles`; if False, variables that no rule covers train only with "full".

    Raises:
      UserError: the encoder has fewer layers than num_top_layers.
      ValueError: no rule covers a variable; see `role_of`.
    """
    tuning = tuning or default_tuning()
    variables = tf.trainable_variables()
    if tuning.method == "full":
        return variables
    roles_by_name = roles(strict)
    num_layers = 1 + max(
        (r.layer for r in roles_by_name.values() if r.layer is not None), default=-1
    )
    tuning.check_num_top_layers(num_layers)
    adapted_layers = {
        r.layer for r in roles_by_name.values() if r.kind == "adapter" and r.layer is not None
    }
    return [
        v
        for v in variables
        if is_trained(roles_by_name[variable_name(v)], tuning, num_layers, adapted_layers)
    ]


def check_gradients(variables: list, gradients: list) -> None:
    """Raises ValueError unless every variable of the adapters and the head has a gradient.

    Args:
      variables: list of the variables to train.
      gradients: list of their gradients, or None.
    """
    missing = [variable_name(v) for v, gradient in zip(variables, gradients) if gradient is None]
    if not missing:
        return
    roles_by_name = roles()
    untrained = [name for name in missing if roles_by_name[name].kind in ("adapter", "head")]
    if untrained:
        raise ValueError(
            f"The loss does not depend on {len(untrained)} of the variables to train, the first"
            f" being {untrained[0]}."
        )


def warning_of_untrained(variables: list, connected: list) -> str:
    """Returns a warning that lists variables that unexpectedly do not train, or "".

    It does not list BERT's pooler, on which a head that reads tokens never depends.

    Args:
      variables: list of the variables to train.
      connected: list of those among them on which the loss depends.
    """
    roles_by_name, trained_names = roles(strict=False), {variable_name(v) for v in variables}
    missing = trained_names - {variable_name(v) for v in connected}
    unconnected = [
        name for name in roles_by_name if name in missing and roles_by_name[name].kind != "pooler"
    ]
    unclaimed = [
        name
        for name in roles_by_name
        if roles_by_name[name] == UNCLAIMED and name not in trained_names
    ]
    groups = []
    if unconnected:
        groups.append(f"{', '.join(unconnected)} (the loss does not depend on them)")
    if unclaimed:
        groups.append(
            f"{', '.join(unclaimed)} (in the encoder's scope, but in neither of the collections"
            " adapters and head)"
        )
    return f"These variables do not train: {'; '.join(groups)}." if groups else ""


def count_parameters(variables: list) -> int:
    """Returns the number of parameters in a list of variables."""
    return sum(variable.shape.num_elements() for variable in variables)


def summary(trained: list) -> str:
    """Returns a sentence with the numbers of trained and frozen parameters, and the percentage.

    Args:
      trained: list of variables; all other trainable variables of the graph count as frozen.
    """
    count, total = count_parameters(trained), count_parameters(tf.trainable_variables())
    return (
        f"Training {count:,} of {total:,} parameters ({100.0 * count / total:.2f}%);"
        f" {total - count:,} are frozen."
    )
