"""Task adapters in AdapterHub's format: the package `adapters` for PyTorch, version 1.3.

    adapter_config.json, adapter.safetensors     the bottleneck adapters
    head_config.json, model_head.safetensors     the head
    layer_norms.safetensors                      the LayerNorms, which that format has no place for

`LOADING` are the lines of Python that load all three.
"""

import dataclasses
import json
import os
from typing import Any, Dict, List, Tuple

import numpy as np

import tuning
from adapter_bert.common import configs, files, model_variables, task_kinds
from adapter_bert.common.errors import UserError
from adapter_bert.formats import huggingface, task_adapter

Tensors = Dict[Tuple[str, str], np.ndarray]  # By file and PyTorch's name.

_ADAPTER, _HEAD, _LAYER_NORMS = "adapter", "model_head", "layer_norms"
_ADAPTER_CONFIG, HEAD_CONFIG = "adapter_config.json", "head_config.json"
FILES = (
    _ADAPTER_CONFIG,
    HEAD_CONFIG,
    *(name + ".safetensors" for name in (_ADAPTER, _HEAD, _LAYER_NORMS)),
)

LOADING = """\
from adapters import AutoAdapterModel
from safetensors.torch import load_file

model = AutoAdapterModel.from_pretrained(BERT, hidden_act="{hidden_act}")
name = model.load_adapter("{folder}", use_safetensors=True, set_active=True)
model.load_state_dict(load_file("{folder}/layer_norms.safetensors"), strict=False)
model.eval()
"""

_ACTIVATIONS = {
    huggingface.activation_name(name): name
    for name in ("gelu", "leaky_relu", "linear", "relu", "relu6", "sigmoid", "swish", "tanh")
}
# The variants that the package has, the default first, and what they are there.
_VARIANTS = {
    "sites": {
        "both": {"mh_adapter": True, "output_adapter": True},
        "attention": {"mh_adapter": True, "output_adapter": False},
        "feed_forward": {"mh_adapter": False, "output_adapter": True},
    },
    "placement": {"sequential": {"is_parallel": False}, "parallel": {"is_parallel": True}},
}
_DOWN_BIAS = "adapter_down.0.bias"
_TENSOR_NAMES = {
    "weights1": "adapter_down.0.weight",
    "biases1": _DOWN_BIAS,
    "weights2": "adapter_up.weight",
    "biases2": "adapter_up.bias",
}
_HEAD_TENSOR_NAMES = {"output_weights": "weight", "output_bias": "bias"}

# What the package can vary in a bottleneck adapter besides, and how Houlsby et al. have it.
_HOULSBY = {
    "original_ln_before": False,
    "original_ln_after": True,
    "ln_before": False,
    "ln_after": False,
    "residual_before_ln": True,
    "adapter_residual_before_ln": False,
    "scaling": 1.0,
    "use_gating": False,
    "phm_layer": False,
    "inv_adapter": None,
}


def write(folder: str, adapter: task_adapter.TaskAdapter) -> None:
    """Writes a task adapter into a folder that exists.

    Args:
      folder: path.
      adapter: `task_adapter.TaskAdapter`.

    Raises:
      UserError: the format has no place for it.
    """
    description = adapter.description
    configs = {
        _ADAPTER_CONFIG: _adapter_config(description, _check_adapter(description)),
        HEAD_CONFIG: _head_config(description),
    }
    name = description.task
    tensors = {_ADAPTER: {}, _HEAD: {}, _LAYER_NORMS: {}}
    for google_name, value in adapter.tensors.items():
        file, pytorch_name = _file_and_name(google_name, name)
        tensors[file][pytorch_name] = (
            value.reshape(-1) if "/biases" in google_name else _transpose_adapter(file, value)
        )
    for file, content in tensors.items():
        huggingface.write_safetensors(os.path.join(folder, file + ".safetensors"), content)
    common_fields = {
        "hidden_size": description.backbone.config["hidden_size"],
        "model_class": "BertAdapterModel",
        "model_name": description.backbone.name,
        "model_type": "bert",
        "name": name,
        "version": "adapters.1.3.0",
    }
    for file, config in configs.items():
        record = {**common_fields, "config": config}
        with files.open_file(os.path.join(folder, file), "w") as writer:
            writer.write(json.dumps(record, indent=2, sort_keys=True) + "\n")


def _check_adapter(description: task_adapter.Description) -> configs.AdapterConfig:
    """Its adapters' settings; raises UserError unless the format can hold the task adapter."""
    adapter = description.adapter
    if adapter is None or adapter.fn != "feedforward_adapter":
        raise UserError(
            "AdapterHub's format holds bottleneck adapters (--adapter_fn=feedforward_adapter), but"
            f" this is of --tuning={description.tuning.method}"
            + (f" with {adapter.fn}." if adapter else ".")
        )
    for name, value in adapter.variant().items():
        if name not in _VARIANTS:
            raise UserError(
                f"AdapterHub's format has no adapters like these (--adapter_{name}={value})."
            )
    activation = adapter.activation
    if huggingface.activation_name(activation) not in _ACTIVATIONS:
        raise UserError(
            f"The package adapters has no such activation (--adapter_activation={activation})."
        )
    if not task_kinds.get(description.kind).has_adapterhub_head:
        known = [name for name in task_kinds.names() if task_kinds.get(name).has_adapterhub_head]
        raise UserError(
            f"A head of the kind {description.kind} has no counterpart here in AdapterHub's format,"
            f" expected {' or '.join(known)}."
        )
    if description.tuning.train_pooler:
        raise UserError("AdapterHub's format has no place for a trained pooler (--train_pooler).")
    return adapter


def _adapter_config(
    description: task_adapter.Description, adapter: configs.AdapterConfig
) -> Dict[str, Any]:
    config = description.backbone.config
    layer_indices = range(config["num_hidden_layers"])
    return {
        "architecture": None,
        **_HOULSBY,
        **_VARIANTS["sites"][adapter.sites],
        **_VARIANTS["placement"][adapter.placement],
        "reduction_factor": reduction_factor(config["hidden_size"], adapter.size),
        "non_linearity": huggingface.activation_name(adapter.activation),
        "leave_out": []
        if adapter.layers is None
        else sorted(set(layer_indices) - set(adapter.layers)),
    }


def reduction_factor(hidden_size: int, adapter_size: int) -> float:
    """The float f of which the package makes the width: size = hidden_size // f."""
    factor = hidden_size / adapter_size
    return (
        factor if int(hidden_size // factor) == adapter_size else hidden_size / (adapter_size + 0.5)
    )


def _head_config(description: task_adapter.Description) -> Dict[str, Any]:
    labels = description.labels
    return {
        "head_type": "classification",
        "num_labels": len(labels) or 1,
        "layers": 1,
        "activation_function": None,
        "label2id": {label: index for index, label in enumerate(labels)} or None,
        "use_pooler": True,
        "bias": True,
        "dropout_prob": 0.1,
    }


def _file_and_name(name: str, adapter: str) -> Tuple[str, str]:
    """(file, PyTorch's name) of a trained tensor; adapter is the name that the format gives it."""
    kind = model_variables.role_of(name, ["bert/"]).kind
    if kind == "head":
        # The head's first module is its dropout.
        return _HEAD, f"heads.{adapter}.1.{_HEAD_TENSOR_NAMES[name]}"
    if kind == "layer_norm":
        return _LAYER_NORMS, "bert." + huggingface.parameter_name(name)
    scope, _, part = name.rpartition("/")
    return _ADAPTER, f"bert.{huggingface.parameter_name(scope)}.{adapter}.{_TENSOR_NAMES[part]}"


def _transpose_adapter(file: str, value: np.ndarray) -> np.ndarray:
    """Our layout as PyTorch's, or back: an adapter's weights are transposed, its biases [1, m]."""
    return value.T if file == _ADAPTER else value


def read(folder: str, description: task_adapter.Description) -> task_adapter.TaskAdapter:
    """Reads what `write` wrote, or `save_adapter` and a `layer_norms.safetensors` beside it.

    Without that file the LayerNorms are the backbone's, as the package itself leaves them.

    Args:
      folder: path.
      description: `task_adapter.Description`; what the format tells takes the place of its task,
        kind, labels, tuning and adapter.

    Returns:
      `task_adapter.TaskAdapter`.

    Raises:
      UserError: a file is missing or damaged; the adapters are not of this kind; a tensor is
        missing, of another shape or has no place.
    """
    where = f"SOURCE_DIR {folder}"
    name, adapter_config, head_config, tensors = read_files(folder, where)
    adapter = _adapter_of(adapter_config, tensors, description.backbone.config, where)
    labels = labels_of(head_config, where)
    description = dataclasses.replace(
        description,
        task=name,
        kind="classification" if labels else "regression",
        labels=labels,
        tuning=tuning.Tuning(layer_norms=_layer_norms_of(tensors)),
        adapter=adapter,
    )
    return task_adapter.TaskAdapter(description, _to_google(tensors, description, where))


def read_files(folder: str, where: str) -> Tuple[str, Dict[str, Any], Dict[str, Any], Tensors]:
    """What lies in a folder of this format, as it is.

    Args:
      folder: path.
      where: begins the error's sentence.

    Returns:
      (the adapter's name, the adapters' config, the head's config, dict from (file, PyTorch's name)
      to float32 arrays).

    Raises:
      UserError: a file is missing or damaged; the LayerNorms' may be missing.
    """
    name, adapter_config = _read_config(folder, _ADAPTER_CONFIG, where)
    _, head_config = _read_config(folder, HEAD_CONFIG, where)
    tensors = {}
    for file in (_ADAPTER, _HEAD, _LAYER_NORMS):
        path = os.path.join(folder, file + ".safetensors")
        if file != _LAYER_NORMS or files.exists(path):
            content = huggingface.read_safetensors(path)
            tensors.update(((file, pytorch_name), value) for pytorch_name, value in content.items())
    return name, adapter_config, head_config, tensors


def _read_config(folder: str, file: str, where: str) -> Tuple[str, Dict[str, Any]]:
    """(the adapter's name, the object "config") of a JSON file."""
    path = os.path.join(folder, file)
    if not files.exists(path):
        raise UserError(f"{where} is not of AdapterHub's format: there is no {path}.")
    record = files.read_object(path)
    if "name" not in record or not isinstance(record.get("config"), dict):
        raise UserError(f"{path}: expected an object with name and config.")
    return str(record["name"]), record["config"]


def _adapter_of(
    config: Dict[str, Any], tensors: Tensors, backbone: Dict[str, Any], where: str
) -> configs.AdapterConfig:
    """The `configs.AdapterConfig` that a config of the package's stands for."""
    for field, expected in _HOULSBY.items():
        actual = config.get(field, expected)
        if actual != expected:
            raise UserError(
                f"{where}: adapters as in Houlsby et al. have {field} {expected}, these {actual}."
            )
    activation, leave_out = str(config.get("non_linearity")), config.get("leave_out") or []
    if activation not in _ACTIVATIONS or not isinstance(leave_out, list):
        raise UserError(
            f"{where}: its non_linearity must be one of {', '.join(_ACTIVATIONS)}, but is"
            f" {activation}; its leave_out must be a list, but is {leave_out}."
        )
    sizes = {value.size for (_, name), value in tensors.items() if name.endswith(_DOWN_BIAS)}
    if len(sizes) != 1:
        raise UserError(f"{where}: its adapters must have one size, but have {sorted(sizes)}.")
    layers = tuple(i for i in range(backbone["num_hidden_layers"]) if i not in leave_out)
    variant: Dict[str, Any] = {name: _variant_of(config, name, where) for name in _VARIANTS}
    return configs.AdapterConfig(
        size=sizes.pop(),
        activation=_ACTIVATIONS[activation],
        layers=layers if leave_out else None,
        **variant,
    )


def _variant_of(config: Dict[str, Any], name: str, where: str) -> str:
    """The value of the field of that name of a `configs.AdapterConfig`."""
    values = _VARIANTS[name]
    default = next(iter(values.values()))
    actual = {field: config.get(field, default[field]) for field in default}
    for value, expected in values.items():
        if actual == expected:
            return value
    raise UserError(f"{where}: there are no adapters with {json.dumps(actual)}.")


def labels_of(config: Dict[str, Any], where: str) -> Tuple[str, ...]:
    """The labels that a head's config numbers, in the head's order; none for a regression.

    Raises:
      UserError: it is not of a classification head like BERT's.
    """
    expected = {"head_type": "classification", "layers": 1, "use_pooler": True, "bias": True}
    for field, value in expected.items():
        if config.get(field) != value:
            raise UserError(
                f"{where}: BERT's classification head has {field} {value}, this one"
                f" {config.get(field)}."
            )
    if config.get("num_labels") == 1:
        return ()
    label2id: Any = config.get("label2id")
    indices: List[Any] = list(label2id.values()) if isinstance(label2id, dict) else [None]
    if {type(index) for index in indices} != {int} or sorted(indices) != list(range(len(indices))):
        raise UserError(f"{where}: head_config.json must number its labels from 0 in label2id.")
    return tuple(sorted(label2id, key=label2id.get))


def _layer_norms_of(tensors: Tensors) -> str:
    """Which LayerNorms there are, as `tuning.Tuning.layer_norms` says it."""
    names = [name for file, name in tensors if file == _LAYER_NORMS]
    if not names:
        return "none"
    return "all" if any(name.startswith("bert.embeddings.") for name in names) else "adapted"


def _to_google(
    tensors: Tensors, description: task_adapter.Description, where: str
) -> Dict[str, np.ndarray]:
    """Gives every tensor our name and layout; raises UserError unless they are all there are."""
    shapes = task_adapter.shapes(description)
    locations = {
        google_name: _file_and_name(google_name, description.task) for google_name in shapes
    }
    mismatched = set(locations.values()) ^ set(tensors)
    if mismatched:
        file, name = min(mismatched)
        problem = "has no place" if (file, name) in tensors else "is missing"
        raise UserError(f"{where}: in {file}.safetensors {name} {problem}.")
    result = {}
    for google_name, (file, name) in locations.items():
        value = _transpose_adapter(file, tensors[file, name])
        if (
            value.size != np.prod(shapes[google_name])
            or value.shape != shapes[google_name][-value.ndim :]
        ):
            raise UserError(
                f"{where}: {name} has the shape {list(tensors[file, name].shape)}, which does not"
                f" fit {google_name} {list(shapes[google_name])}."
            )
        result[google_name] = value.reshape(shapes[google_name])
    return result
