"""AdapterHub's configs of adapters and heads, and the settings that they correspond to.

The layouts `double_seq_bn` (Houlsby et al. 2019), `seq_bn` (Pfeiffer et al. 2020) and `par_bn` (He
et al. 2021) correspond to settings of `configs.AdapterConfig`. A head with a hidden layer and tanh
on the first position corresponds to a trained BERT pooler below a head with one layer.

`description` stands for a `task_adapter.Description`, whose module imports this one for its cards.
"""

import json
from typing import Any, Dict, List, NamedTuple, Tuple

from adapter_bert.files import json_objects
from adapter_bert.model import configs, task_kinds
from adapter_bert.shell.errors import UserError

# The package's activations → ours. Its "gelu" is the exact form, ours the tanh form.
_ACTIVATIONS = {
    "gelu": "gelu_erf",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_accurate": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "leaky_relu": "leaky_relu",
    "leakyrelu": "leaky_relu",
    "linear": "linear",
    "relu": "relu",
    "relu6": "relu6",
    "sigmoid": "sigmoid",
    "swish": "swish",
    "silu": "swish",
    "tanh": "tanh",
}

# Our settings, and the fields that express them in the package.
_SITES: Dict[str, Dict[str, Any]] = {
    "both": {"mh_adapter": True, "output_adapter": True},
    "attention": {"mh_adapter": True, "output_adapter": False},
    "feed_forward": {"mh_adapter": False, "output_adapter": True},
}
_PLACEMENTS: Dict[str, Dict[str, Any]] = {
    name: {
        "is_parallel": is_parallel,
        "original_ln_before": is_normalized,
        "original_ln_after": True,
        "residual_before_ln": True,
    }
    for name, is_parallel, is_normalized in (
        ("sequential", False, False),
        ("parallel", True, False),
        ("normalized", False, True),
    )
}
# Other fields that change a bottleneck adapter's forward pass; we support only these values.
_FIXED = {"ln_before": False, "ln_after": False, "use_gating": False, "phm_layer": False}
# Values of "scaling" with which the package trains one factor, or D factors.
TRAINED_SCALINGS = ("learned", "channel")
_LAYOUTS: Dict[str, Dict[str, Any]] = {
    "double_seq_bn": {**_SITES["both"], **_PLACEMENTS["sequential"]},
    "seq_bn": {**_SITES["feed_forward"], **_PLACEMENTS["normalized"]},
    "par_bn": {**_SITES["feed_forward"], **_PLACEMENTS["parallel"], "scaling": 4.0},
}

_MAX_LABELS = 1 << 20  # A file may claim any number; unnamed labels get numbers as names.
# Our heads' variables → AdapterHub's.
HEAD_TENSOR_NAMES = {"output_weights": "weight", "output_bias": "bias"}


class Head(NamedTuple):
    """Describes a head: its kind of task, labels, hidden layer and bias."""

    kind: task_kinds.TaskKind
    labels: Tuple[str, ...]
    is_hidden: bool
    has_bias: bool


def layout_of(config: Dict[str, Any]) -> str:
    """Returns the name of an adapter's layout, whatever its activation is."""
    return next(
        (name for name, fields in _LAYOUTS.items() if {**config, **fields} == config),
        "bottleneck adapters",
    )


def check_adapter(description: Any) -> configs.AdapterConfig:
    """Returns the adapters' settings; raises UserError if the format does not support them."""
    adapter = description.adapter
    if adapter is None or adapter.function != configs.FEEDFORWARD_ADAPTER:
        raise UserError(
            "AdapterHub's format requires bottleneck adapters (--adapter_fn=feedforward_adapter),"
            f" but this adapter has --tuning={description.tuning.method}"
            + (f" with {adapter.fn}." if adapter else ".")
        )
    if "." in description.task:
        raise UserError(
            f"AdapterHub's format does not support a dot in the task's name, {description.task}:"
            " the name is that of a PyTorch module."
        )
    for name, value in adapter.variant().items():
        if name not in ("sites", "placement", "scaling"):
            raise UserError(f"AdapterHub's format does not support --adapter_{name}={value}.")
    if (adapter.activation.lower() or "linear") not in _ACTIVATIONS.values():
        raise UserError(
            f"AdapterHub's format does not support --adapter_activation={adapter.activation}."
        )
    kind = task_kinds.get(description.kind)
    if kind.adapterhub_head is None:
        known = [kind.name for kind in task_kinds.kinds() if kind.adapterhub_head]
        raise UserError(
            f"AdapterHub's format does not support heads of the kind {description.kind}, expected"
            f" {' or '.join(known)}."
        )
    for name in kind.head_shapes(len(description.labels), 0):
        if name.rpartition("/")[2] not in HEAD_TENSOR_NAMES:
            raise UserError(f"AdapterHub's format does not support a head with {name}.")
    if description.tuning.train_pooler and kind.reads_tokens:
        raise UserError("AdapterHub's format does not support a pooler below a token head.")
    return adapter


def adapter_config(description: Any) -> Dict[str, Any]:
    """Returns the config of adapters; raises UserError if the format does not support them."""
    adapter, config = check_adapter(description), description.backbone.config
    layer_indices = range(config["num_hidden_layers"])
    activation = adapter.activation.lower() or "linear"
    return {
        "adapter_residual_before_ln": False,
        "inv_adapter": None,
        **_FIXED,
        **_SITES[adapter.sites],
        **_PLACEMENTS[adapter.placement],
        "scaling": float(adapter.scaling),
        "reduction_factor": reduction_factor(config["hidden_size"], adapter.size),
        "non_linearity": next(name for name, ours in _ACTIVATIONS.items() if ours == activation),
        "leave_out": []
        if adapter.layers is None
        else sorted(set(layer_indices) - set(adapter.layers)),
    }


def reduction_factor(hidden_size: int, adapter_size: int) -> float:
    """Returns a float f for which the package computes size = hidden_size // f."""
    factor = hidden_size / adapter_size
    return (
        factor if int(hidden_size // factor) == adapter_size else hidden_size / (adapter_size + 0.5)
    )


def head_config(description: Any) -> Dict[str, Any]:
    """Returns the config of a head."""
    labels, kind = description.labels, task_kinds.get(description.kind)
    is_hidden = description.tuning.train_pooler
    config = {
        "head_type": kind.adapterhub_head,
        "num_labels": kind.num_outputs(len(labels)),
        "layers": 2 if is_hidden else 1,
        "activation_function": "tanh" if is_hidden else None,
        "label2id": {label: index for index, label in enumerate(labels)} or None,
        "dropout_prob": 0.1,
    }
    return config if kind.reads_tokens else {**config, "use_pooler": not is_hidden, "bias": True}


def adapter_of(config: Dict[str, Any], size: int, where: str) -> configs.AdapterConfig:
    """Returns the settings for a config, but for `layers`; raises UserError if it is unsupported.

    Args:
      config: the adapter's.
      size: of its bottleneck.
      where: beginning of error messages.
    """
    fixed = {"architecture": None, "inv_adapter": None, **_FIXED}
    for field, expected in fixed.items():
        if config.get(field, expected) != expected:
            raise UserError(f"{where}: {field} must be {expected}, but is {config[field]}.")
    activation, scaling = str(config.get("non_linearity")).lower(), config.get("scaling", 1.0)
    if activation not in _ACTIVATIONS:
        raise UserError(
            f"{where}: non_linearity must be one of {', '.join(_ACTIVATIONS)}, but is {activation}."
        )
    settings: Dict[str, Any] = {
        "sites": _setting(config, _SITES, where),
        "placement": _setting(_relevant(config), _PLACEMENTS, where),
    }
    try:
        scaling = 1.0 if scaling in TRAINED_SCALINGS else json_objects.require_type(scaling, float)
        return configs.AdapterConfig(
            size=size, activation=_ACTIVATIONS[activation], scaling=float(scaling), **settings
        )
    except ValueError as error:
        reason = str(error).rstrip(".")
        raise UserError(f"{where}: its size or scaling is not supported ({reason}).") from None


def _relevant(config: Dict[str, Any]) -> Dict[str, Any]:
    """Returns a config in which fields without effect have their values in `_PLACEMENTS`."""
    config = dict(config)
    if config.get("is_parallel") is True:
        config["original_ln_before"] = False
    if config.get("original_ln_before") is False:
        config["residual_before_ln"] = True
    return config


def _setting(config: Dict[str, Any], values: Dict[str, Dict[str, bool]], where: str) -> str:
    """Returns the key of the entry in `values` that matches a config's fields."""
    default = next(iter(values.values()))
    actual = {field: config.get(field, default[field]) for field in default}
    for value, expected in values.items():
        if actual == expected:
            return value
    raise UserError(f"{where}: adapters with {json.dumps(actual)} are not supported.")


def head_of(config: Dict[str, Any], where: str) -> Head:
    """Returns the head for a config; raises UserError if it is not supported here."""
    head_type, num_labels = config.get("head_type"), config.get("num_labels")
    kinds = [kind for kind in task_kinds.kinds() if kind.adapterhub_head]
    # Kinds with a fixed number of outputs have no labels; they take precedence.
    of_type = [kind for kind in kinds if kind.adapterhub_head == head_type]
    unlabelled = [kind for kind in of_type if kind.num_outputs(0) == num_labels]
    kind = next(iter([*unlabelled, *(kind for kind in of_type if not kind.num_outputs(0))]), None)
    if kind is None or type(num_labels) is not int or not 1 <= num_labels <= _MAX_LABELS:
        known = sorted({str(kind.adapterhub_head) for kind in kinds})
        raise UserError(
            f"{where}: expected a head of the type {', '.join(known)}, but found {head_type} with"
            f" {num_labels} outputs."
        )
    labels = () if kind.num_outputs(0) else _labels_of(config.get("label2id"), num_labels, where)
    layers, use_pooler = config.get("layers"), config.get("use_pooler", False)
    activation, has_bias = config.get("activation_function"), config.get("bias", True)
    is_plain = layers == 1 and (kind.reads_tokens or use_pooler is True)
    is_hidden = layers == 2 and activation == "tanh" and not (use_pooler or kind.reads_tokens)
    if not (is_plain or is_hidden) or not isinstance(has_bias, bool):
        raise UserError(
            f"{where}: the head must have one layer, with BERT's pooler if it labels texts, or two"
            f" with tanh and without pooler; but has layers {layers}, use_pooler {use_pooler},"
            f" activation_function {activation}, bias {has_bias}."
        )
    return Head(kind, labels, is_hidden, has_bias)


def _labels_of(label2id: Any, num_labels: int, where: str) -> Tuple[str, ...]:
    """Returns the labels in the order of the head's outputs; numbers if they have no names."""
    if label2id is None:
        return tuple(map(str, range(num_labels)))
    indices: List[Any] = list(label2id.values()) if isinstance(label2id, dict) else [None]
    if {type(index) for index in indices} != {int} or sorted(indices) != list(range(num_labels)):
        raise UserError(
            f"{where}: label2id in head_config.json must number its {num_labels} labels from 0."
        )
    return tuple(sorted(label2id, key=label2id.get))
