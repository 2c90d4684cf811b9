"""Task adapters in AdapterHub's format, that of the PyTorch package `adapters`.

    adapter_config.json, adapter.safetensors     the bottleneck adapters
    head_config.json, model_head.safetensors     the head
    layer_norms.safetensors                      the LayerNorms, which the format does not support

Writes the format of version 1.3. Reads that of adapter-transformers 2.0 and later, also
pytorch_adapter.bin and pytorch_model_head.bin. `LOADING` is Python code that loads the written
files. `adapterhub_config` converts the two configs.
"""

import dataclasses
import json
import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from adapter_bert.files import gfile, json_objects
from adapter_bert.formats import (
    adapterhub_config,
    huggingface,
    safetensors_files,
    task_adapter,
)
from adapter_bert.formats.bert import count_text
from adapter_bert.model import configs, model_variables
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

_ADAPTER_VARIABLES = configs.AdapterConfig().variables()
_DOWN_BIAS: Any = _ADAPTER_VARIABLES["biases1"].adapterhub
_POOLER_TENSOR_NAMES = {"bert/pooler/dense/kernel": "weight", "bert/pooler/dense/bias": "bias"}

# HuggingFace's model classes with a static head → the head's type and layer.
_STATIC_HEADS = {
    "BertForSequenceClassification": ("classification", "classifier"),
    "BertForTokenClassification": ("tagging", "classifier"),
    "BertForQuestionAnswering": ("question_answering", "qa_outputs"),
}


class Source(NamedTuple):
    """Holds the content of a folder in this format.

    Attributes:
      name: the adapter's name.
      adapter: the adapters' config.
      head: the head's config, of a model with flexible heads.
      tensors: dict from (file, PyTorch's name) to float32 arrays.
    """

    name: str
    adapter: Dict[str, Any]
    head: Dict[str, Any]
    tensors: Tensors


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
    layout = adapterhub_config.layout_of(source.adapter)
    lines = [
        f"AdapterHub task adapter: {source.name}, {layout}, reduction"
        f" factor {source.adapter.get('reduction_factor')}, {source.adapter.get('non_linearity')}",
        f"Holds: {count_text(source.tensors)}, {gfile.readable_size(path + '/')}",
    ]
    try:
        head = adapterhub_config.head_of(source.head, where)
        adapterhub_config.adapter_of(source.adapter, _size_of(source.tensors, where), where)
    except UserError as error:
        return [*lines, f"Not supported here: {error}"]
    return [*lines, f"Labels: {', '.join(head.labels) or 'none'}, {head.kind.name}"]


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
        _ADAPTER_CONFIG: adapterhub_config.adapter_config(description),
        HEAD_CONFIG: adapterhub_config.head_config(description),
    }
    name = description.task
    tensors: Dict[str, Dict[str, np.ndarray]] = {_ADAPTER: {}, _HEAD: {}, _LAYER_NORMS: {}}
    for google_name, value in adapter.tensors.items():
        file, pytorch_name = _file_and_name(google_name, description)
        if "/biases" in google_name:
            value = value.reshape(-1)
        tensors[file][pytorch_name] = _transposed(google_name, value)
    for file, content in tensors.items():
        safetensors_files.write(os.path.join(folder, file + ".safetensors"), content)
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


def _file_and_name(name: str, description: task_adapter.Description) -> Tuple[str, str]:
    """Returns (file, PyTorch's name) of a trained tensor."""
    adapter, is_hidden = description.task, description.tuning.train_pooler
    kind = model_variables.role_of(name, ["bert/"]).kind
    # A head's modules are 0: dropout, 1: layer; with a hidden layer also 2: its activation,
    # 3: dropout, 4: layer.
    if kind == "head":
        part = adapterhub_config.HEAD_TENSOR_NAMES[name.rpartition("/")[2]]
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
    adapter = adapterhub_config.adapter_of(source.adapter, _size_of(source.tensors, where), where)
    leave_out = source.adapter.get("leave_out") or []
    if not isinstance(leave_out, list):
        raise UserError(f"{where}: leave_out must be a list, but is {leave_out}.")
    num_layers = description.backbone.config["num_hidden_layers"]
    layers = tuple(i for i in range(num_layers) if i not in leave_out)
    head = adapterhub_config.head_of(source.head, where)
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
    """Reads a folder in this format.

    Args:
      folder: path.
      where: beginning of the error message.

    Returns:
      `Source`.

    Raises:
      UserError: a file other than `layer_norms.safetensors` is missing, damaged or older than
        adapter-transformers 2.0; or the adapter is of another model than BERT.
    """
    record = _read_record(folder, _ADAPTER_CONFIG, where)
    name = str(record.get("name"))
    if record.get("model_type", "bert") != "bert":
        raise UserError(
            f"{where} requires a model of the type {record['model_type']}, but this project"
            " supports only BERT."
        )
    if "version" not in record:
        raise UserError(
            f"{where} is not of adapter-transformers 2.0 or later, as its {_ADAPTER_CONFIG} has no"
            " version; load an older one with the package `adapters`, and save it again."
        )
    if not isinstance(record.get("config"), dict):
        raise UserError(f"{where}: config must be an object in {_ADAPTER_CONFIG}.")
    head_record = _read_record(folder, HEAD_CONFIG, where)
    head, layer = _head_fields(head_record, os.path.join(folder, HEAD_CONFIG))
    tensors = {}
    for file in (_ADAPTER, _HEAD, _LAYER_NORMS):
        path = _tensor_file(folder, file)
        if file != _LAYER_NORMS or gfile.exists(path):
            for pytorch_name, value in huggingface.read_tensors(path).items():
                current = _current_name(pytorch_name, name, head_record, layer)
                tensors[file, current] = value
    return Source(name, record["config"], head, tensors)


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


def _head_fields(record: Dict[str, Any], path: str) -> Tuple[Dict[str, Any], Optional[str]]:
    """Returns the config of a flexible head, and the layer of a static one."""
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
    """Converts a tensor's name to that in a `BertAdapterModel`, whose heads are flexible."""
    has_prefix = not pytorch_name.startswith(("encoder.", "embeddings."))
    name = pytorch_name if has_prefix else "bert." + pytorch_name
    head_name = str(head_record.get("name"))
    if layer:
        is_head = name.startswith(layer + ".")
        return f"heads.{adapter}.1." + name[len(layer) + 1 :] if is_head else name
    if name.startswith(f"heads.{head_name}."):
        return f"heads.{adapter}." + name[len(f"heads.{head_name}.") :]
    return name


def _size_of(tensors: Tensors, where: str) -> int:
    """Returns the size of the adapters' bottlenecks."""
    sizes = {value.size for (_, name), value in tensors.items() if name.endswith(_DOWN_BIAS)}
    if len(sizes) != 1:
        raise UserError(f"{where}: its adapters must have one size, but have {sorted(sizes)}.")
    return sizes.pop()


def _layer_norms_of(tensors: Tensors) -> str:
    """Returns the value of `configs.Tuning.layer_norms` for the LayerNorms in the files."""
    names = [name for file, name in tensors if file == _LAYER_NORMS]
    if not names:
        return "none"
    return "all" if any(name.startswith("bert.embeddings.") for name in names) else "adapted"


def _apply_trained_scaling(tensors: Tensors, config: Dict[str, Any], where: str) -> None:
    """Multiplies trained scaling factors, [1] or [D], into the adapters' last weights."""
    if config.get("scaling") not in adapterhub_config.TRAINED_SCALINGS:
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
