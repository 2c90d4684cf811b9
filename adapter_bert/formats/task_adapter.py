"""Task adapters on disk: the tensors that one task trained and their description, in a folder.

    adapter/adapter.safetensors   the trained tensors (adapters, LayerNorms, head): float32, with
                                  the names and layouts of BERT's checkpoints
    adapter/adapter_config.json   a `Description`: task, labels, settings, scores, backbone
    adapter/README.md             the card, for people; loading ignores it

The JSON holds the SHA-256 of the safetensors file, whose metadata hold a copy of the JSON. So
loading detects any changed bit, and files that do not belong together. Only "presentation" in the
JSON may be edited.
"""

import collections
import dataclasses
import functools
import hashlib
import json
import math
import operator
import platform
import typing
from typing import Any, Dict, Iterable, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import safetensors.numpy

from adapter_bert import __version__
from adapter_bert.files import atomic, gfile, json_objects
from adapter_bert.formats import card, safetensors_files
from adapter_bert.model import configs, model_variables, task_kinds
from adapter_bert.shell.errors import UserError

FOLDER = "adapter"
CONFIG_FILE, TENSORS_FILE = FILES = ("adapter_config.json", "adapter.safetensors")

TEMPERATURE = "temperature"  # In `Description.training`.

FORMAT = "adapter-bert task adapter"
FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Backbone:
    """Identifies the pretrained BERT that a task adapter was trained on and works with.

    Attributes:
      name: name of its folder, for display.
      fingerprint: see `model_variables.fingerprint`.
      config: the fields of its bert_config.json.
    """

    name: str
    fingerprint: str
    config: Dict[str, Any]

    def bert_config(self) -> configs.BertConfig:
        """Returns the config as `configs.BertConfig`; raises UserError if it is invalid."""
        config = configs.BertConfig.from_dict(self.config)
        configs.check_config(config)
        return config


@dataclasses.dataclass(frozen=True)
class Presentation:
    """Describes a task for display; it affects no computation and may be edited by hand.

    Attributes:
      label_descriptions: dict from labels to their meanings.
      fields: names of an example's texts; empty if unknown.
      example: dict from fields to example texts.
      examples: several of them, instead of `example`.
      license: SPDX id or name of the adapter's license; "" if unknown.
    """

    label_descriptions: Dict[str, str] = dataclasses.field(default_factory=dict)
    fields: Tuple[str, ...] = ()
    example: Dict[str, str] = dataclasses.field(default_factory=dict)
    examples: Tuple[Dict[str, str], ...] = ()
    license: str = ""


@dataclasses.dataclass(frozen=True)
class Description:
    """Describes a task adapter.

    Attributes:
      task: name of the task, such as "MRPC".
      kind: name of a `task_kinds.TaskKind`.
      labels: in the order of the head's outputs; empty for regression and spans.
      max_seq_length: maximum number of tokens; longer texts were truncated.
      do_lower_case: whether texts were lower-cased.
      vocabulary: digest of the vocabulary.
      backbone: `Backbone`.
      tuning: the tuning method.
      adapter: the adapters' settings; None without adapters.
      global_step: number of training steps.
      training: dict of the learning rate and all other settings that determined the weights.
      scores: dict of dev set scores; empty before the first evaluation.
      versions: dict of the versions of TensorFlow and Python that trained it.
      presentation: `Presentation`.
    """

    task: str
    kind: str
    labels: Tuple[str, ...]
    max_seq_length: int
    do_lower_case: bool
    vocabulary: str
    backbone: Backbone
    tuning: configs.Tuning
    adapter: Optional[configs.AdapterConfig]
    global_step: int
    training: Dict[str, Any]
    scores: Dict[str, float]
    versions: Dict[str, str]
    presentation: Presentation = Presentation()

    def __post_init__(self) -> None:
        task_kinds.get(self.kind)  # Raises UserError for an unknown kind.
        ((label, count),) = collections.Counter(self.labels).most_common(1) or [("", 0)]
        if count > 1:
            raise UserError(f"labels has {json.dumps(label)} twice; expected distinct ones.")


# Fields that a file may lack, because they were added later or are only for display.
_OPTIONAL_FIELDS: Dict[type, Iterable[str]] = {
    configs.AdapterConfig: configs.VARIANTS,
    Description: ("presentation",),
    Presentation: ("label_descriptions", "fields", "example", "examples", "license"),
}


class TaskAdapter(NamedTuple):
    """Holds a `Description` and the tensors, a dict from variable names to float32 arrays."""

    description: Description
    tensors: Dict[str, np.ndarray]


def untrained(backbone: Backbone) -> TaskAdapter:
    """Returns BERT itself as a task without adapters, whose head is 0."""
    config = backbone.bert_config()
    description = Description(
        task="",
        kind="classification",
        labels=("",),
        max_seq_length=config.max_position_embeddings,
        do_lower_case=True,
        vocabulary="",
        backbone=backbone,
        tuning=configs.Tuning("head"),
        adapter=None,
        global_step=0,
        training={},
        scores={},
        versions={},
    )
    return TaskAdapter(
        description, {name: np.zeros(shape) for name, shape in shapes(description).items()}
    )


def save(folder: str, adapter: TaskAdapter) -> None:
    """Writes or replaces a task adapter atomically.

    Args:
      folder: path of the task adapter.
      adapter: `TaskAdapter`.

    Raises:
      UserError: the folder cannot be written.
    """
    record = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **dataclasses.asdict(adapter.description),
    }
    tensors = {
        name: np.asarray(value, "<f4", order="C") for name, value in sorted(adapter.tensors.items())
    }
    presentation = record.pop("presentation")
    content = safetensors.numpy.save(tensors, metadata={"adapter_config": _to_json(record)})
    if adapter.description.presentation != Presentation():
        # Versions that know fewer fields can read it if only those are set.
        record["presentation"] = {name: v for name, v in presentation.items() if v}
    record["sha256"] = hashlib.sha256(content).hexdigest()
    with atomic.atomic_folder(folder) as partial:
        with gfile.open_file(f"{partial}/{TENSORS_FILE}", "wb") as writer:
            writer.write(content)
        with gfile.open_file(f"{partial}/{CONFIG_FILE}", "w") as writer:
            writer.write(_to_json(record, indent=2) + "\n")
        with gfile.open_file(f"{partial}/{card.FILE}", "w") as writer:
            writer.write(card_of(adapter))


def check_savable(description: Description) -> None:
    """Raises UserError if `load` would refuse a task adapter with this description, for its size.

    A training calls this before its first step.
    """
    num_bytes, most = (
        len(_to_json(dataclasses.asdict(description))),
        json_objects.MAX_JSON_BYTES // 2,
    )
    if num_bytes > most:  # Scores, and the names and quotes in the tensors' header, come on top.
        raise UserError(
            f"Task {description.task}: its {len(description.labels):,} labels and settings have"
            f" {num_bytes:,} bytes; expected at most {most:,}. Is a column of texts the labels'?"
        )


def card_of(adapter: TaskAdapter) -> str:
    """Returns the text of a task adapter's card; see `card`."""
    trained = parameters(adapter.tensors).values()
    num_bytes = 4 * sum(np.size(value) for value in adapter.tensors.values())
    return card.text(adapter.description, sum(np.size(value) for value in trained), num_bytes)


def load(folder: str, flag: str = "--adapter") -> TaskAdapter:
    """Loads and checks a task adapter that `save` wrote; executes no code from it.

    Args:
      folder: path.
      flag: what errors call the folder, usually the flag that named it.

    Returns:
      `TaskAdapter`.

    Raises:
      UserError: a file is missing, damaged or in an unknown format; the files do not belong
        together; or the tensors do not match the description.
    """
    where = f"{flag} {folder}"
    try:
        return _load(atomic.current_folder(folder), where)
    except UserError:  # A training may have replaced the folder while it was read.
        return _load(atomic.current_folder(folder), where)


def _load(folder: str, where: str) -> TaskAdapter:
    description, record = _read_description(folder, where)
    path = f"{folder}/{TENSORS_FILE}"
    content = safetensors_files.read(
        path, f"{where}: {path}", ("F32",), max_bytes=_max_bytes(description, where)
    )
    if content.sha256 != record.pop("sha256"):
        raise UserError(
            f"{where}: {TENSORS_FILE} is damaged, or does not belong to {CONFIG_FILE} (its SHA-256"
            " differs)."
        )
    record.pop("presentation", None)
    if content.metadata.get("adapter_config") != _to_json(record):
        raise UserError(
            f"{where}: {CONFIG_FILE} was edited, or does not belong to {TENSORS_FILE} (its copy in"
            " that file differs)."
        )
    check_tensors(content.tensors, description, f"{where}: {TENSORS_FILE}")
    return TaskAdapter(description, content.tensors)


def _max_bytes(description: Description, where: str) -> int:
    """Returns the size of the tensors, and some more, so that `check_tensors` names a wrong one."""
    try:
        expected = shapes(description).values()
    except UserError as error:
        raise UserError(f"{where}: {TENSORS_FILE}: {error}") from None
    num_values = sum(functools.reduce(operator.mul, shape) for shape in expected)
    return 4 * num_values + json_objects.MAX_JSON_BYTES


def describe(folder: str, flag: str = "--adapter") -> Description:
    """Loads only the `Description` of a task adapter; raises UserError as `load` does."""
    return describe_with_digest(folder, flag)[0]


def describe_with_digest(folder: str, flag: str = "--adapter") -> Tuple[Description, str]:
    """Returns what `describe` does, and the SHA-256 of the tensors' file in hexadecimal."""
    description, record = _read_description(atomic.current_folder(folder), f"{flag} {folder}")
    return description, record["sha256"]


def shapes(description: Description) -> Dict[str, Tuple[int, ...]]:
    """Returns the shapes of the tensors that a task adapter with this description has.

    Returns:
      A dict from variable names to tuples of int.

    Raises:
      UserError: the description is inconsistent.
    """
    config = description.backbone.bert_config()
    num_layers, method, adapter = config.num_hidden_layers, description.tuning, description.adapter
    is_missing = method.method == "adapters" and adapter is None
    if is_missing or adapter and (adapter.is_none or method.method != "adapters"):
        raise UserError(f"--tuning={method.method} contradicts adapter {adapter}.")
    method.check_num_top_layers(num_layers)
    adapted_layers = _adapted_layers(adapter, num_layers)
    result = {
        name: shape
        for name, shape in model_variables.encoder_shapes(config).items()
        if model_variables.is_trained(
            model_variables.role_of(name, ["bert/"]), method, num_layers, adapted_layers
        )
    }
    if adapter:
        result.update(model_variables.adapters_shapes(adapter, config))
    kind = task_kinds.get(description.kind)
    return {**result, **kind.head_shapes(len(description.labels), config.hidden_size)}


def has_head(names: Iterable[str]) -> bool:
    """Returns whether any of these tensor names belongs to a head."""
    kinds = task_kinds.kinds()
    return not {name for kind in kinds for name in kind.head_shapes(0, 0)}.isdisjoint(names)


def _adapted_layers(adapter: Optional[configs.AdapterConfig], num_layers: int) -> Sequence[int]:
    if adapter is None:
        return ()
    adapter.check_layers(num_layers)
    return range(num_layers) if adapter.layers is None else adapter.layers


def parameters(tensors: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the parameters in a dict from variable names: all but moving statistics."""
    return {
        name: value for name, value in tensors.items() if not name.endswith(model_variables.MOVING)
    }


def parameter_counts(description: Description) -> Dict[str, int]:
    """Returns the numbers of trained_parameters, total_parameters and backbone_parameters."""
    trained = parameters(shapes(description))
    encoder = model_variables.encoder_shapes(description.backbone.bert_config())
    counts = {"backbone_parameters": encoder, "total_parameters": {**encoder, **trained}}
    if task_kinds.get(description.kind).reads_tokens:  # The pooler gets no gradient.
        trained = {name: shape for name, shape in trained.items() if "/pooler/" not in name}
    counts["trained_parameters"] = trained
    return {
        name: sum(int(np.prod(shape)) for shape in tensors.values())
        for name, tensors in counts.items()
    }


def check_tensors(tensors: Dict[str, np.ndarray], description: Description, where: str) -> None:
    """Checks that the names and shapes of tensors match a description.

    Args:
      tensors: dict from variable names to arrays.
      description: `Description`.
      where: beginning of the error message.

    Raises:
      UserError: a tensor is missing, unexpected or of a wrong shape.
    """
    expected = shapes(description)
    actual = {name: value.shape for name, value in tensors.items()}
    for names, problem in (
        (set(expected) - set(actual), "lacks {}, which its description requires"),
        (set(actual) - set(expected), "holds {}, which does not match its description"),
    ):
        if names:
            raise UserError(f"{where} {problem.format(json.dumps(min(names)))}.")
    for name, shape in expected.items():
        if actual[name] != shape:
            raise UserError(
                f"{where}: its {name} has the shape {list(actual[name])}, expected {list(shape)}."
            )


def with_temperature(adapter: TaskAdapter, temperature: float) -> TaskAdapter:
    """Returns an adapter whose logits are divided by a temperature (Guo et al. 2017, section 4.2).

    Its head's weights are divided, so that all that reads the adapter applies it.
    """
    description = adapter.description
    head = task_kinds.get(description.kind).head_shapes(len(description.labels), 0)
    tensors = {
        name: np.asarray(value / temperature, np.float32) if name in head else value
        for name, value in adapter.tensors.items()
    }
    training = {**description.training, TEMPERATURE: temperature}
    return TaskAdapter(dataclasses.replace(description, training=training), tensors)


def check_finite(tensors: Dict[str, np.ndarray], where: str) -> None:
    """Checks that all values of tensors are finite.

    Args:
      tensors: dict from names to float arrays.
      where: beginning of the error message.

    Raises:
      UserError: a value is NaN or Inf.
    """
    for name, value in tensors.items():
        if not np.isfinite(value).all():
            raise UserError(
                f"{where}: its {name} holds NaN or Inf, perhaps because the training diverged."
            )


def digest(items: Iterable) -> str:
    """Returns a short digest of a sequence of strings or tuples."""
    sha256 = hashlib.sha256()
    for item in items:
        sha256.update(repr(item).encode())
    return sha256.hexdigest()[:16]


def tensors_digest(adapter: TaskAdapter) -> str:
    """Returns a short digest of the tensors of a `TaskAdapter`."""
    shapes = {name: value.shape for name, value in adapter.tensors.items()}
    return model_variables.sha256_of(adapter.tensors.get, shapes)[:16]


def versions() -> Dict[str, str]:
    """Returns the versions of adapter-bert, TensorFlow and Python, by name."""
    import tensorflow  # Imported here, because loading an adapter must not need TensorFlow.

    return {
        "adapter_bert": __version__,
        "tensorflow": tensorflow.__version__,
        "python": platform.python_version(),
    }


def summary(description: Description) -> Dict[str, Any]:
    """Returns a description as a JSON object for exports, without the backbone's config."""
    record = {**dataclasses.asdict(description), "scores": finite_scores(description)}
    del record["backbone"]["config"]
    return record


def finite_scores(description: Description) -> Dict[str, Optional[float]]:
    """Returns the scores, with None for the NaN of a run that diverged, which is not JSON."""
    return {name: s if math.isfinite(s) else None for name, s in description.scores.items()}


def compatibility_fields(description: Description) -> Dict[str, Any]:
    """Returns the fields that must be equal for a task adapter to work in a model.

    Variants of the adapter are included only where they differ from the defaults, as earlier
    versions had none. Initialization, scores, versions and sequence length may differ.

    Returns:
      A flat dict from names to JSON values.
    """
    adapter = description.adapter
    fields = {
        "kind": description.kind,
        "labels": list(description.labels),
        "do_lower_case": description.do_lower_case,
        "vocabulary": description.vocabulary,
        "backbone": description.backbone.fingerprint,
        "hidden_act": description.backbone.config.get("hidden_act"),
        "num_attention_heads": description.backbone.config.get("num_attention_heads"),
    }
    fields.update(dataclasses.asdict(description.tuning))
    if adapter:
        layers = None if adapter.layers is None else list(adapter.layers)
        fields.update(
            adapter_fn=adapter.fn,
            adapter_size=adapter.size,
            adapter_activation=adapter.activation,
            adapter_layers=layers,
            **{f"adapter_{name}": value for name, value in adapter.variant().items()},
        )
    return fields


def _read_description(folder: str, where: str) -> Tuple[Description, Dict[str, Any]]:
    """Returns (`Description`, the JSON object that contains it)."""
    path = f"{folder}/{CONFIG_FILE}"
    if not gfile.exists(path):
        subfolder = f"{folder}/{FOLDER}"  # The user may have named the run's output_dir.
        has_adapter = gfile.exists(f"{subfolder}/{CONFIG_FILE}")
        hint = f"; there is one in {subfolder}" if has_adapter else ""
        raise UserError(f"{where} is not a task adapter: there is no {path}{hint}.")
    where = f"{where}: {CONFIG_FILE}"
    record = json_objects.read_object(path, where, f'"format": "{FORMAT}"')
    if record.get("format") != FORMAT:
        hint = "; convert AdapterHub's format by `convert_checkpoint.py from_adapterhub`"
        raise UserError(
            f'{where}: expected "format": "{FORMAT}"{hint if "config" in record else ""}.'
        )
    if record.get("format_version") != FORMAT_VERSION:
        raise UserError(
            f"{where}: format_version is {record.get('format_version')!r}, but this program reads"
            f" only {FORMAT_VERSION}."
        )
    if not isinstance(record.get("sha256"), str):
        raise UserError(f"{where}: expected sha256, the digest of {TENSORS_FILE}.")
    fields = {
        name: value
        for name, value in record.items()
        if name not in ("format", "format_version", "sha256")
    }
    return _from_json(Description, fields, where), record


_type_hints = functools.lru_cache(maxsize=None)(typing.get_type_hints)


def _to_json(record: Dict[str, Any], indent: Optional[int] = None) -> str:
    return json.dumps(record, indent=indent, sort_keys=True)


def _from_json(expected_type: Any, value: Any, where: str) -> Any:
    """Converts a JSON value to a type: a dataclass, Optional, Tuple, Dict or scalar.

    Raises:
      UserError: the value has another type; or a field is missing or unknown.
    """
    if dataclasses.is_dataclass(expected_type):
        return _dataclass_from_json(expected_type, value, where)
    origin: Any = getattr(expected_type, "__origin__", None)
    type_arguments: Tuple[Any, ...] = getattr(expected_type, "__args__", ())
    if origin is typing.Union:  # Optional
        return None if value is None else _from_json(type_arguments[0], value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_from_json(type_arguments[0], item, where) for item in value)
    if origin is dict and isinstance(value, dict):
        return {
            name: _from_json(type_arguments[1], item, f"{where}.{name}")
            for name, item in value.items()
        }
    if type(value) is int and abs(value) >= 1 << 63:
        raise UserError(f"{where}: the number {str(value)[:20]}... is too large.")
    if expected_type is float and type(value) is int:
        return float(value)
    if expected_type is not Any and type(value) is not expected_type:
        expected = getattr(expected_type, "__name__", str(expected_type))
        raise UserError(f"{where}: expected {expected}, found {json.dumps(value)[:50]}.")
    return value


def _dataclass_from_json(expected_type: Any, value: Any, where: str) -> Any:
    types = _type_hints(expected_type)
    optional = _OPTIONAL_FIELDS.get(expected_type, ())
    names = set(value) if isinstance(value, dict) else set()
    mismatched = sorted((set(types) ^ names) - (set(optional) - names))
    if mismatched or not isinstance(value, dict):
        raise UserError(f"{where}: fields missing or unknown: {', '.join(mismatched[:5])}.")
    fields = {name: _from_json(types[name], value[name], f"{where}.{name}") for name in value}
    try:
        return expected_type(**fields)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
