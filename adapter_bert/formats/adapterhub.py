"""Task adapters in AdapterHub's format, that of the PyTorch package `adapters`.

    adapter_config.json, adapter.safetensors     the bottleneck adapters
    head_config.json, model_head.safetensors     the head
    layer_norms.safetensors                      the LayerNorms, which the format does not support

Writes the format of version 1.3. Reads all versions, also pytorch_adapter.bin and
pytorch_model_head.bin. `LOADING` is Python code that loads the written files.

The layouts `double_seq_bn` (Houlsby et al. 2019), `seq_bn` (Pfeiffer et al. 2020) and `par_bn` (He
et al. 2021) correspond to settings of `configs.AdapterConfig`. A head with a hidden layer and tanh
on the first position corresponds to a trained BERT pooler below a head with one layer.
"""

import dataclasses
import json
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from adapter_bert.files import gfile, json_objects
from adapter_bert.formats import huggingface, peft, task_adapter
from adapter_bert.formats.bert import count_text
from adapter_bert.model import configs, model_variables, task_kinds
from adapter_bert.shell.errors import UserError

Tensors = Dict[Tuple[str, str], np.ndarray]  # Keys are (file, PyTorch's name).

_ADAPTER, _HEAD, _LAYER_NORMS = "adapter", "model_head", "layer_norms"
_ADAPTER_CONFIG, HEAD_CONFIG = "adapter_config.json", "head_config.json"
FILES = (
    _ADAPTER_CONFIG,
    HEAD_CONFIG,
    *(name + ".safetensors" for name in (_ADAPTER, _HEAD, _LAYER_NORMS)),
)
_BIN_FILES = {_ADAPTER: "pytorch_adapter.bin", _HEAD: "pytorch_model_head.bin"}

LOADING = """\
from adapters import AutoAdapterModel
from safetensors.torch import load_file

model = AutoAdapterModel.from_pretrained(BERT, hidden_act="{hidden_act}")
name = model.load_adapter("{folder}", use_safetensors=True, set_active=True)
model.load_state_dict(load_file("{folder}/layer_norms.safetensors"), strict=False)
model.eval()
"""

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
# Files without a version were written before 2.0, which named the forms of GELU differently.
_OLD_ACTIVATIONS = {"gelu": "gelu_new", "gelu_orig": "gelu"}

# Our settings, and the fields that express them in the package.
_SITES = {
    "both": {"mh_adapter": True, "output_adapter": True},
    "attention": {"mh_adapter": True, "output_adapter": False},
    "feed_forward": {"mh_adapter": False, "output_adapter": True},
}
_PLACEMENTS = {
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
_TRAINED_SCALINGS = ("learned", "channel")
# The package's layouts; in its first versions, a config may be only a layout's name.
_LAYOUTS = {
    "double_seq_bn": {**_SITES["both"], **_PLACEMENTS["sequential"], "non_linearity": "swish"},
    "seq_bn": {**_SITES["feed_forward"], **_PLACEMENTS["normalized"], "non_linearity": "relu"},
    "par_bn": {
        **_SITES["feed_forward"],
        **_PLACEMENTS["parallel"],
        "non_linearity": "relu",
        "scaling": 4.0,
    },
}
_OLD_LAYOUTS = {"houlsby": "double_seq_bn", "pfeiffer": "seq_bn", "parallel": "par_bn"}

_MAX_LABELS = 1 << 20  # A file may claim any number; unnamed labels get numbers as names.

_ADAPTER_VARIABLES = configs.AdapterConfig().variables()
_DOWN_BIAS: Any = _ADAPTER_VARIABLES["biases1"].adapterhub
_HEAD_TENSOR_NAMES = {"output_weights": "weight", "output_bias": "bias"}
_POOLER_TENSOR_NAMES = {"bert/pooler/dense/kernel": "weight", "bert/pooler/dense/bias": "bias"}

# HuggingFace's model classes with a static head → the head's type and layer.
_STATIC_HEADS = {
    "BertForSequenceClassification": ("classification", "classifier"),
    "BertForTokenClassification": ("tagging", "classifier"),
    "BertForQuestionAnswering": ("question_answering", "qa_outputs"),
}


class Source(NamedTuple):
    """Holds the content of a folder in this format, converted to version 1.3.

    Attributes:
      name: the adapter's name.
      hidden_size: the model's hidden size; None if unknown.
      adapter: the adapters' config.
      head: the head's config.
      tensors: dict from (file, PyTorch's name) to float32 arrays.
    """

    name: str
    hidden_size: Optional[int]
    adapter: Dict[str, Any]
    head: Dict[str, Any]
    tensors: Tensors


class _Head(NamedTuple):
    """Describes a head: its kind of task, labels, hidden layer and bias."""

    kind: task_kinds.TaskKind
    labels: Tuple[str, ...]
    is_hidden: bool
    has_bias: bool


def matches(path: str) -> bool:
    """Returns whether a path is a folder of this format."""
    config = os.path.join(path, _ADAPTER_CONFIG)
    if gfile.exists(os.path.join(path, HEAD_CONFIG)):
        return True
    try:
        record = json_objects.read_object(config) if gfile.exists(config) else {}
    except UserError:
        return False
    return "config" in record and record.get("format") != task_adapter.FORMAT


def describe(path: str, argument: str) -> List[str]:
    """Returns lines that describe an adapter for people, and whether this project supports it.

    Args:
      path: its folder.
      argument: what errors call the folder, such as "PATH".

    Raises:
      UserError: a file is missing or damaged.
    """
    where = f"{argument} {path}"
    source = read_files(path, where)
    layout = next((n for n, fields in _LAYOUTS.items() if _is_like(source.adapter, fields)), None)
    lines = [
        f"AdapterHub task adapter: {source.name}, {layout or 'bottleneck adapters'}, reduction"
        f" factor {source.adapter.get('reduction_factor')}, {source.adapter.get('non_linearity')}",
        f"Holds: {count_text(source.tensors)}, {gfile.readable_size(path + '/')}",
    ]
    try:
        head = _head_of(source.head, where)
        _adapter_of(source, where)
    except UserError as error:
        return [*lines, f"Not supported here: {error}"]
    return [*lines, f"Labels: {', '.join(head.labels) or 'none'}, {head.kind.name}"]


def _is_like(config: Dict[str, Any], layout: Dict[str, Any]) -> bool:
    """Returns whether a config has all fields of a layout, except the activation."""
    return all(config.get(name) == layout[name] for name in layout if name != "non_linearity")


def write(folder: str, adapter: task_adapter.TaskAdapter) -> None:
    """Writes a task adapter to an existing folder.

    Args:
      folder: path.
      adapter: `task_adapter.TaskAdapter`.

    Raises:
      UserError: the format does not support the adapter.
    """
    description = adapter.description
    records = {
        _ADAPTER_CONFIG: _adapter_config(description, check_adapter(description)),
        HEAD_CONFIG: _head_config(description),
    }
    name = description.task
    tensors: Dict[str, Dict[str, np.ndarray]] = {_ADAPTER: {}, _HEAD: {}, _LAYER_NORMS: {}}
    for google_name, value in adapter.tensors.items():
        file, pytorch_name = _file_and_name(google_name, description)
        if "/biases" in google_name:
            value = value.reshape(-1)
        tensors[file][pytorch_name] = _transposed(google_name, value)
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
    for file, config in records.items():
        record = {**common_fields, "config": config}
        with gfile.open_file(os.path.join(folder, file), "w") as writer:
            writer.write(json.dumps(record, indent=2, sort_keys=True) + "\n")


def check_adapter(description: task_adapter.Description) -> configs.AdapterConfig:
    """Returns the adapters' settings; raises UserError if the format does not support them."""
    adapter = description.adapter
    if adapter is None or adapter.fn.lower() != configs.FEEDFORWARD_ADAPTER:
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
        if name.rpartition("/")[2] not in _HEAD_TENSOR_NAMES:
            raise UserError(f"AdapterHub's format does not support a head with {name}.")
    if description.tuning.train_pooler and kind.reads_tokens:
        raise UserError("AdapterHub's format does not support a pooler below a token head.")
    return adapter


def _adapter_config(
    description: task_adapter.Description, adapter: configs.AdapterConfig
) -> Dict[str, Any]:
    config = description.backbone.config
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


def _head_config(description: task_adapter.Description) -> Dict[str, Any]:
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


def _file_and_name(name: str, description: task_adapter.Description) -> Tuple[str, str]:
    """Returns (file, PyTorch's name) of a trained tensor."""
    adapter, is_hidden = description.task, description.tuning.train_pooler
    kind = model_variables.role_of(name, ["bert/"]).kind
    # A head's modules are 0: dropout, 1: layer; with a hidden layer also 2: its activation,
    # 3: dropout, 4: layer.
    if kind == "head":
        part = _HEAD_TENSOR_NAMES[name.rpartition("/")[2]]
        return _HEAD, f"heads.{adapter}.{4 if is_hidden else 1}.{part}"
    if kind == "pooler":
        return _HEAD, f"heads.{adapter}.1.{_POOLER_TENSOR_NAMES[name]}"
    if kind == "layer_norm":
        return _LAYER_NORMS, "bert." + huggingface.parameter_name(name)
    scope, _, part = name.rpartition("/")
    name_in_adapter = _ADAPTER_VARIABLES[part].adapterhub
    return _ADAPTER, f"bert.{huggingface.parameter_name(scope)}.{adapter}.{name_in_adapter}"


def _transposed(google_name: str, value: np.ndarray) -> np.ndarray:
    """Converts between our layout and PyTorch's: transposes weights of adapters and pooler."""
    is_transposed = "/adapters/" in google_name or google_name.endswith("/kernel")
    return value.T if is_transposed else value


def read(folder: str, description: task_adapter.Description) -> task_adapter.TaskAdapter:
    """Loads a task adapter written by `write` or the package's `save_adapter`.

    Without `layer_norms.safetensors` the LayerNorms are the backbone's, because the package does
    not train them. Trained scaling factors are multiplied into the adapters' last weights.

    Args:
      folder: path.
      description: `task_adapter.Description`; the files replace its task, kind, labels, tuning and
        adapter.

    Returns:
      `task_adapter.TaskAdapter`.

    Raises:
      UserError: a file is missing or damaged; adapters or head are not supported here; or a tensor
        is missing, unexpected or of a wrong shape.
    """
    where = f"SOURCE_DIR {folder}"
    source = read_files(folder, where)
    hidden_size, num_layers = (
        description.backbone.config[name] for name in ("hidden_size", "num_hidden_layers")
    )
    if source.hidden_size not in (None, hidden_size):
        raise UserError(
            f"{where} requires a model with hidden size {source.hidden_size}, but BERT_DIR"
            f" {description.backbone.name} has {hidden_size}."
        )
    adapter, leave_out = _adapter_of(source, where)
    layers = tuple(i for i in range(num_layers) if i not in leave_out)
    head = _head_of(source.head, where)
    description = dataclasses.replace(
        description,
        task=source.name,
        kind=head.kind.name,
        labels=head.labels,
        tuning=configs.Tuning(
            layer_norms=_layer_norms_of(source.tensors), train_pooler=head.is_hidden
        ),
        adapter=dataclasses.replace(adapter, layers=layers if leave_out else None),
    )
    tensors = dict(source.tensors)
    if not head.has_bias:
        bias = head.kind.head_scope + "output_bias"
        tensors[_file_and_name(bias, description)] = np.zeros(
            head.kind.num_outputs(len(head.labels)), np.float32
        )
    _apply_trained_scaling(tensors, source.adapter, where)
    return task_adapter.TaskAdapter(description, _to_google(tensors, description, where))


def read_files(folder: str, where: str) -> Source:
    """Reads a folder in any version of this format.

    Args:
      folder: path.
      where: beginning of the error message.

    Returns:
      `Source`.

    Raises:
      UserError: a file other than `layer_norms.safetensors` is missing; a file is damaged; or the
        adapter is PEFT's, or of another model than BERT.
    """
    peft.check_other(folder, where)
    record = _read_record(folder, _ADAPTER_CONFIG, where)
    name = str(record.get("name"))
    if record.get("model_type", "bert") != "bert":
        raise UserError(
            f"{where} requires a model of the type {record['model_type']}, but this project"
            " supports only BERT."
        )
    adapter = _adapter_fields(record, os.path.join(folder, _ADAPTER_CONFIG))
    head_record = _read_record(folder, HEAD_CONFIG, where)
    head, layer = _head_fields(head_record, os.path.join(folder, HEAD_CONFIG))
    tensors = {}
    for file in (_ADAPTER, _HEAD, _LAYER_NORMS):
        path = _tensor_file(folder, file)
        if file != _LAYER_NORMS or gfile.exists(path):
            for pytorch_name, value in huggingface.read_tensors(path).items():
                current = _current_name(pytorch_name, name, head_record, layer)
                if (file, current) in tensors:
                    raise UserError(f"{path}: holds {current} twice, with two spellings.")
                tensors[file, current] = value
    hidden_size = record.get("hidden_size")
    hidden_size = hidden_size if type(hidden_size) is int else None
    return Source(name, hidden_size, adapter, head, tensors)


def _tensor_file(folder: str, file: str) -> str:
    """Returns the path of a tensor file; safetensors takes precedence over PyTorch's format."""
    safe = os.path.join(folder, file + ".safetensors")
    old = os.path.join(folder, _BIN_FILES.get(file, ""))
    return old if file in _BIN_FILES and gfile.exists(old) and not gfile.exists(safe) else safe


def _read_record(folder: str, file: str, where: str) -> Dict[str, Any]:
    path = os.path.join(folder, file)
    if not gfile.exists(path):
        missing = "; it has no head, like a language adapter" if file == HEAD_CONFIG else ""
        raise UserError(
            f"{where} is not a task adapter in AdapterHub's format: there is no {path}{missing}."
        )
    return json_objects.read_object(path)


def _adapter_fields(record: Dict[str, Any], path: str) -> Dict[str, Any]:
    """Returns an adapter's config, converted to version 1.3."""
    config = record.get("config")
    if isinstance(config, str):
        layout = _OLD_LAYOUTS.get(config, config)
        if layout not in _LAYOUTS:
            raise UserError(f"{path}: expected a config, or one of {', '.join(_LAYOUTS)}.")
        return dict(_LAYOUTS[layout])
    if "name" not in record or not isinstance(config, dict):
        raise UserError(f"{path}: expected an object with name and config.")
    fields = {name.lower(): value for name, value in config.items()}  # Before 1.0: MH_Adapter.
    activation = str(fields.get("non_linearity")).lower()
    if "version" not in record:
        activation = _OLD_ACTIVATIONS.get(activation, activation)
    inverse = fields.pop("invertible_adapter", None)
    if inverse:
        fields["inv_adapter"] = inverse
    if record.get("type") == "text_task":  # Such a config names an inverse, but does not use it.
        fields["inv_adapter"] = None
    return {**_PLACEMENTS["sequential"], **fields, "non_linearity": activation}


def _head_fields(record: Dict[str, Any], path: str) -> Tuple[Dict[str, Any], Optional[str]]:
    """Returns a head's config, converted to version 1.3, and the layer of a static head."""
    config, model_class = record.get("config"), record.get("model_class")
    if isinstance(config, dict):
        return config, None
    if config is None and model_class in tuple(_STATIC_HEADS):  # It may be a list.
        head_type, layer = _STATIC_HEADS[model_class]
        fields = {name: record.get(name) for name in ("num_labels", "label2id")}
        return {"head_type": head_type, "layers": 1, "use_pooler": True, **fields}, layer
    raise UserError(
        f"{path}: expected an object config, or a model_class of {', '.join(_STATIC_HEADS)}."
    )


def _current_name(
    pytorch_name: str, adapter: str, head_record: Dict[str, Any], layer: Optional[str]
) -> str:
    """Converts a tensor's name to that in version 1.3, for a model with flexible heads."""
    # Before 2.0, adapters had separate modules for each site and purpose.
    name = re.sub(r"\.(attention|layer)_text_(task|lang)_adapters\.", ".adapters.", pytorch_name)
    if name.startswith(("encoder.", "embeddings.")):
        name = "bert." + name
    head_name = str(head_record.get("name"))
    if layer:
        is_head = name.startswith(layer + ".")
        return f"heads.{adapter}.1." + name[len(layer) + 1 :] if is_head else name
    if name.startswith(f"heads.{head_name}."):
        return f"heads.{adapter}." + name[len(f"heads.{head_name}.") :]
    return name


def _adapter_of(source: Source, where: str) -> Tuple[configs.AdapterConfig, List[int]]:
    """Returns the `configs.AdapterConfig` for a config, and the layers without adapters."""
    config = source.adapter
    architecture = config.get("architecture")
    if architecture is not None:
        raise UserError(
            f"{where}: expected bottleneck adapters, but its architecture is {architecture}."
        )
    for field, expected in _FIXED.items():
        if config.get(field, expected) != expected:
            raise UserError(f"{where}: {field} must be {expected}, but is {config[field]}.")
    if config.get("inv_adapter"):
        raise UserError(
            f"{where}: it has an invertible adapter, which this project does not support."
        )
    activation, leave_out = config["non_linearity"], config.get("leave_out") or []
    if activation not in _ACTIVATIONS or not isinstance(leave_out, list):
        raise UserError(
            f"{where}: its non_linearity must be one of {', '.join(_ACTIVATIONS)}, but is"
            f" {activation}; its leave_out must be a list, but is {leave_out}."
        )
    sizes = {value.size for (_, name), value in source.tensors.items() if name.endswith(_DOWN_BIAS)}
    if len(sizes) != 1:
        raise UserError(f"{where}: its adapters must have one size, but have {sorted(sizes)}.")
    scaling = config.get("scaling", 1.0)
    scaling = 1.0 if scaling in _TRAINED_SCALINGS else scaling  # See `_apply_trained_scaling`.
    try:
        json_objects.require_type(scaling, float)
    except ValueError as error:
        raise UserError(f"{where}: its scaling must be a number ({error}).") from None
    settings: Dict[str, Any] = {
        "sites": _setting(config, _SITES, where),
        "placement": _setting(_relevant(config), _PLACEMENTS, where),
        "scaling": float(scaling),
    }
    try:
        return configs.AdapterConfig(
            size=sizes.pop(), activation=_ACTIVATIONS[activation], **settings
        ), leave_out
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


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


def _head_of(config: Dict[str, Any], where: str) -> _Head:
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
    is_hidden, has_bias = _check_layers(config, kind, where), config.get("bias", True)
    if not isinstance(has_bias, bool):
        raise UserError(f"{where}: the head's bias must be true or false, but is {has_bias}.")
    return _Head(kind, labels, is_hidden, has_bias)


def _check_layers(config: Dict[str, Any], kind: task_kinds.TaskKind, where: str) -> bool:
    """Returns whether a head has a hidden layer; raises UserError if it is not supported."""
    layers, use_pooler = config.get("layers"), config.get("use_pooler", False)
    activation = config.get("activation_function")
    if layers == 1 and (kind.reads_tokens or use_pooler is True):
        return False
    if layers == 2 and activation == "tanh" and use_pooler is False and not kind.reads_tokens:
        return True
    if kind.reads_tokens:
        raise UserError(f"{where}: a token head must have one layer, but has {layers}.")
    raise UserError(
        f"{where}: the head must have one layer with BERT's pooler, or two layers with tanh and"
        f" without pooler, but has layers {layers}, use_pooler {use_pooler}, activation_function"
        f" {activation}."
    )


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


def _layer_norms_of(tensors: Tensors) -> str:
    """Returns the value of `configs.Tuning.layer_norms` for the LayerNorms in the files."""
    names = [name for file, name in tensors if file == _LAYER_NORMS]
    if not names:
        return "none"
    return "all" if any(name.startswith("bert.embeddings.") for name in names) else "adapted"


def _apply_trained_scaling(tensors: Tensors, config: Dict[str, Any], where: str) -> None:
    """Multiplies trained scaling factors, [1] or [D], into the adapters' last weights."""
    if config.get("scaling") not in _TRAINED_SCALINGS:
        return
    scaled = {key for key in tensors if key[1].endswith(".scaling")}
    up = "adapter_up.weight"
    scaled |= {(f, name[: -len(up)] + "scaling") for f, name in tensors if name.endswith(up)}
    for file, name in sorted(scaled):
        if (file, name) not in tensors:
            raise UserError(f"{where}: in {file}.safetensors {name} is missing.")
        factor, scope = tensors.pop((file, name)), name[: -len("scaling")]
        weight, bias = (file, scope + up), (file, scope + "adapter_up.bias")
        shapes = [tensors[key].shape for key in (bias, weight) if key in tensors]
        if len(shapes) != 2 or factor.shape not in ((1,), shapes[0]) or len(shapes[1]) != 2:
            raise UserError(f"{where}: {name} has a wrong shape, {list(factor.shape)}.")
        tensors[weight] = tensors[weight] * factor[:, np.newaxis]
        tensors[bias] = tensors[bias] * factor


def _to_google(
    tensors: Tensors, description: task_adapter.Description, where: str
) -> Dict[str, np.ndarray]:
    """Converts tensors to our names and layouts; raises UserError for missing or other ones."""
    shapes = task_adapter.shapes(description)
    locations = {google_name: _file_and_name(google_name, description) for google_name in shapes}
    mismatched = set(locations.values()) ^ set(tensors)
    if mismatched:
        file, name = min(mismatched)
        problem = "does not match the configs" if (file, name) in tensors else "is missing"
        raise UserError(f"{where}: in {file}.safetensors {name} {problem}.")
    result = {}
    for google_name, location in locations.items():
        value = _transposed(google_name, tensors[location])
        shape = shapes[google_name]
        if value.size != np.prod(shape) or value.shape != shape[-value.ndim :]:
            raise UserError(
                f"{where}: {location[1]} has the shape {list(tensors[location].shape)}, but"
                f" {google_name} requires {list(shape)}."
            )
        result[google_name] = value.reshape(shape)
    return result
