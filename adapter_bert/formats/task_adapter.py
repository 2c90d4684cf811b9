"""A task adapter: what one task trained, and what it is, as a folder of two files.

    adapter/adapter.safetensors   the trained tensors (adapters, LayerNorms, head): float32, named
                                  and laid out as in BERT's checkpoints
    adapter/adapter_config.json   a `Description`: task, labels, settings, scores, backbone

The JSON holds the other file's SHA-256, and that file's metadata the description: a pair that does
not belong together is refused, and so is a bit that changed.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import operator
import os
import platform
import struct
import typing
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import safetensors
import safetensors.numpy

import tuning
from adapter_bert.common import configs, files, task_kinds
from adapter_bert.common.errors import UserError
from adapter_bert.formats import checkpoints
from adapter_bert.ops import layers

FOLDER = "adapter"
CONFIG_FILE, TENSORS_FILE = FILES = ("adapter_config.json", "adapter.safetensors")

FORMAT = "adapter-bert task adapter"
FORMAT_VERSION = 1
Difference = Tuple[str, Any, Any]  # A setting's name, and its values in two descriptions.
_MAX_LAYERS = 1000
_LARGEST_CONFIG = 16 << 20  # Bytes. A label list is the one part that grows.


@dataclasses.dataclass(frozen=True)
class Backbone:
    """The pretrained BERT that a task adapter was trained on, and fits.

    Attributes:
      name: of its folder, for people.
      fingerprint: see `checkpoints.fingerprint`.
      config: the fields of its bert_config.json.
    """

    name: str
    fingerprint: str
    config: Dict[str, Any]

    def bert_config(self) -> configs.BertConfig:
        """The `configs.BertConfig`; raises UserError if no model has these sizes."""
        config = configs.BertConfig.from_dict(self.config)
        configs.check_config(config)
        return config


@dataclasses.dataclass(frozen=True)
class Description:
    """What a task adapter is.

    Attributes:
      task: its name, such as "MRPC".
      kind: the name of a `task_kinds.TaskKind`.
      labels: in the order of the head's outputs; none for regression and spans.
      max_seq_length: tokens to which texts were cut.
      do_lower_case: whether texts were lower-cased.
      vocabulary: digest of the vocabulary.
      backbone: `Backbone`.
      tuning: what trained.
      adapter: what the adapters are, None where nothing was adapted.
      global_step: training steps taken.
      training: learning rate and whatever else decided the weights, by name.
      scores: on the dev set, by name; empty before the first evaluation.
      versions: of the programs that made it, by name.
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

    def __post_init__(self):
        task_kinds.get(self.kind)  # Raises UserError if there is no such kind.


class TaskAdapter(NamedTuple):
    """A `Description` and its tensors: a dict from variable names to float32 arrays."""

    description: Description
    tensors: Dict[str, np.ndarray]


def save(folder: str, adapter: TaskAdapter) -> None:
    """Writes a task adapter; the folder appears, or is replaced, whole or not at all.

    Args:
      folder: path.
      adapter: `TaskAdapter`.

    Raises:
      UserError: it cannot be written.
    """
    record = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **dataclasses.asdict(adapter.description),
    }
    tensors = {
        name: np.asarray(value, "<f4", order="C") for name, value in sorted(adapter.tensors.items())
    }
    content = safetensors.numpy.save(tensors, metadata={"adapter_config": _to_json(record)})
    record["sha256"] = hashlib.sha256(content).hexdigest()
    with files.atomic_folder(folder) as partial:
        with files.open_file(f"{partial}/{TENSORS_FILE}", "wb") as writer:
            writer.write(content)
        with files.open_file(f"{partial}/{CONFIG_FILE}", "w") as writer:
            writer.write(_to_json(record, indent=2) + "\n")


def load(folder: str, flag: str = "--adapter") -> TaskAdapter:
    """Reads a task adapter that `save` wrote; nothing of it is executed, all of it is checked.

    Args:
      folder: path.
      flag: what the error calls it, usually the flag that named it.

    Returns:
      `TaskAdapter`.

    Raises:
      UserError: a file is missing or damaged, of a later format, or belongs to another one; the
        tensors are not those that the description calls for.
    """
    where = f"{flag} {folder}"
    folder = files.current(folder)
    description, record = _read_description(folder, where)
    content = _read(f"{folder}/{TENSORS_FILE}", where)
    if hashlib.sha256(content).hexdigest() != record.pop("sha256"):
        raise UserError(
            f"{where}: {TENSORS_FILE} is damaged, or not the one that {CONFIG_FILE} was written"
            " with (its SHA-256 differs)."
        )
    try:
        entries = safetensors.deserialize(content)
        metadata = _header(content)["__metadata__"]["adapter_config"]
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{where}: {TENSORS_FILE} is no task adapter's ({error}).") from error
    if metadata != _to_json(record):
        raise UserError(
            f"{where}: {CONFIG_FILE} is not the one that {TENSORS_FILE} was written with, whose"
            " own copy of it differs."
        )
    entries.sort(key=operator.itemgetter(0))  # Their order is another in each process.
    tensors = {name: _decode(name, entry, where) for name, entry in entries}
    check_tensors(tensors, description, f"{where}: {TENSORS_FILE}")
    return TaskAdapter(description, tensors)


def describe(folder: str, flag: str = "--adapter") -> Description:
    """The `Description` in a folder, without its tensors; raises UserError as `load` does."""
    return _read_description(files.current(folder), f"{flag} {folder}")[0]


class OfRun(NamedTuple):
    """A `TaskAdapter` of a training, the folder or checkpoint that holds it, and output_dir."""

    adapter: TaskAdapter
    path: str
    output_dir: str


def of_run(path: str, flag: str = "--init_checkpoint") -> Optional[OfRun]:
    """Finds the task adapter of a training by its output_dir, a checkpoint of it, or itself.

    Args:
      path: a folder, a checkpoint's prefix, or its .index.
      flag: what errors call it.

    Returns:
      `OfRun`; of a checkpoint with its own tensors, which may be of an earlier step than those of
      the finished adapter. None where the path names neither, as that of a whole BERT.

    Raises:
      UserError: a file is damaged; or a checkpoint's training has left no task adapter, which says
        what the checkpoint does not.
    """
    path = path.rstrip("/")
    if files.exists(f"{files.current(path)}/{CONFIG_FILE}"):
        return OfRun(load(path, flag), path, os.path.dirname(path))
    folder = f"{path}/{FOLDER}"
    if files.exists(files.current(folder)):
        return OfRun(load(folder, flag), folder, path)
    if path.endswith(".index"):
        path = path[: -len(".index")]
    prefix = checkpoints.prefix_at(path)
    if not files.exists(prefix + ".index"):
        return None
    names = checkpoints.open_checkpoint(prefix, flag).get_variable_to_shape_map()
    if not checkpoints.is_of_task_alone(names):
        return None
    output_dir = os.path.dirname(prefix)
    folder, where = os.path.join(output_dir, FOLDER), f"{flag} {prefix}"
    if not files.exists(files.current(folder)):
        raise UserError(
            f"{where} holds only what a task trained, and {folder}, which says the rest, is not"
            " there; run its training to the end."
        )
    finished = load(folder, flag)
    tensors = checkpoints.trained_tensors(prefix, flag)
    check_tensors(tensors, finished.description, where)
    step = checkpoints.step_of(prefix, flag)
    description = dataclasses.replace(finished.description, global_step=step, scores={})
    made = TaskAdapter(description, tensors)
    if tensors_digest(made) == tensors_digest(finished):
        return OfRun(finished, folder, output_dir)
    return OfRun(made, prefix, output_dir)


def shapes(description: Description) -> Dict[str, Tuple[int, ...]]:
    """What a task adapter of this description holds.

    Returns:
      A dict from names to shapes (tuples of int).

    Raises:
      UserError: the description contradicts itself.
    """
    config = description.backbone.bert_config()
    num_layers, method, adapter = config.num_hidden_layers, description.tuning, description.adapter
    if num_layers > _MAX_LAYERS:
        raise UserError(f"A BERT of {num_layers} layers is not to be believed.")
    adapts = adapter is not None and adapter.build() is not None
    if adapts != (method.method == "adapters"):
        raise UserError(f"--tuning={method.method} does not go with adapter {adapter}.")
    method.check_depth(num_layers)
    adapted = _adapted_layers(adapter, num_layers)
    result = {
        name: shape
        for name, shape in checkpoints.encoder_shapes(config).items()
        if tuning.is_trained(tuning.role_of(name, ["bert/"]), method, num_layers, adapted)
    }
    sites = configs.SITES[adapter.sites] if adapter else ()
    for layer, site in itertools.product(adapted, sites):
        for name, shape in _adapter_shapes(adapter, config.hidden_size).items():
            result[f"bert/encoder/layer_{layer}/{site}/{name}"] = shape
    kind = task_kinds.get(description.kind)
    return {**result, **kind.head_shapes(len(description.labels), config.hidden_size)}


def has_head(names: Iterable[str]) -> bool:
    """Returns whether a head of some kind is among tensors of these names."""
    kinds = map(task_kinds.get, task_kinds.names())
    return not {name for kind in kinds for name in kind.head_shapes(0, 0)}.isdisjoint(names)


def _adapted_layers(adapter: Optional[configs.AdapterConfig], num_layers: int) -> Sequence[int]:
    if adapter is None:
        return ()
    if adapter.layers is None:
        return range(num_layers)
    if not adapter.layers or not set(adapter.layers) <= set(range(num_layers)):
        raise UserError(f"adapter.layers names layers from 0 to {num_layers - 1}, at least one.")
    return adapter.layers


_adapter_shapes = functools.lru_cache(maxsize=None)(configs.AdapterConfig.shapes)


def parameters(tensors: Dict[str, Any]) -> Dict[str, Any]:
    """What of a dict by variables' names stands for parameters: all but moving statistics."""
    return {name: value for name, value in tensors.items() if not name.endswith(layers.MOVING)}


def check_tensors(tensors: Dict[str, np.ndarray], description: Description, where: str) -> None:
    """Makes sure that tensors are those that a description calls for.

    Args:
      tensors: dict from names to arrays.
      description: `Description`.
      where: begins the error's sentence.

    Raises:
      UserError: one is missing, has no place or has another shape; the description contradicts
        itself.
    """
    try:
        wanted = shapes(description)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    found = {name: value.shape for name, value in tensors.items()}
    for names, verdict in (
        (set(wanted) - set(found), "lacks {}, which such a task trains"),
        (set(found) - set(wanted), "holds {}, which no such task trains"),
    ):
        if names:
            raise UserError(f"{where} {verdict.format(json.dumps(min(names)))}.")
    for name, shape in wanted.items():
        if found[name] != shape:
            raise UserError(
                f"{where}: its {name} has the shape {list(found[name])}, expected {list(shape)}."
            )


def check_finite(tensors: Dict[str, np.ndarray], where: str) -> None:
    """Makes sure that a model can compute with tensors.

    Args:
      tensors: dict from names to float arrays.
      where: begins the error's sentence.

    Raises:
      UserError: a value is infinite or no number.
    """
    for name, value in tensors.items():
        if not np.isfinite(value).all():
            raise UserError(
                f"{where}: its {name} holds what is no finite number, as after a training that"
                " diverged."
            )


def digest(items: Iterable) -> str:
    """A short name for a sequence of strings or tuples of them."""
    sha256 = hashlib.sha256()
    for item in items:
        sha256.update(repr(item).encode())
    return sha256.hexdigest()[:16]


def tensors_digest(adapter: TaskAdapter) -> str:
    """A short name for the tensors of a `TaskAdapter`."""
    shapes = {name: value.shape for name, value in adapter.tensors.items()}
    return checkpoints.sha256_of(adapter.tensors.get, shapes)[:16]


def versions() -> Dict[str, str]:
    """Of the programs at work, by name."""
    import tensorflow  # Of what was trained or converted just now; reading needs none.

    return {"tensorflow": tensorflow.__version__, "python": platform.python_version()}


def backbone_of(init_checkpoint: str, config: configs.BertConfig) -> Backbone:
    """The `Backbone` that a pretrained checkpoint holds; its name is that of the folder.

    Args:
      init_checkpoint: prefix of the checkpoint.
      config: `configs.BertConfig`.

    Raises:
      UserError: the checkpoint is damaged.
    """
    where = f"--init_checkpoint {init_checkpoint}"
    reader = checkpoints.open_checkpoint(init_checkpoint)
    read = functools.partial(checkpoints.read_tensor, reader, where=where)
    folder = os.path.dirname(os.path.abspath(init_checkpoint))
    if os.path.basename(folder) == "variables":  # Of a TF-Hub module.
        folder = os.path.dirname(folder)
    return Backbone(
        name=os.path.basename(folder),
        fingerprint=checkpoints.fingerprint(read, config),
        config=config.to_dict(),
    )


def compatibility_fields(description: Description) -> Dict[str, Any]:
    """What must agree for a task adapter to work in a model: a flat dict of JSON values by name.

    The adapter's variants stand there where they are not the defaults, for earlier versions had
    none. Where it started from, what it scored and what made it may differ; so may the sequence
    length, for a head reads the first position alone.
    """
    adapter = description.adapter
    parts = {
        "kind": description.kind,
        "labels": list(description.labels),
        "do_lower_case": description.do_lower_case,
        "vocabulary": description.vocabulary,
        "backbone": description.backbone.fingerprint,
        "hidden_act": description.backbone.config.get("hidden_act"),
        "num_attention_heads": description.backbone.config.get("num_attention_heads"),
    }
    parts.update(dataclasses.asdict(description.tuning))
    if adapter:
        layers = None if adapter.layers is None else list(adapter.layers)
        parts.update(
            adapter_fn=adapter.fn,
            adapter_size=adapter.size,
            adapter_activation=adapter.activation,
            adapter_layers=layers,
            **{f"adapter_{name}": value for name, value in adapter.variant().items()},
        )
    return parts


def _there_and_here(differences: Sequence[Difference]) -> List[str]:
    return [
        f"{name} is {json.dumps(found)} there and {json.dumps(asked)} here"
        for name, found, asked in differences
    ]


def check_fits(
    given: Description,
    wanted: Description,
    where: str,
    describe: Callable[[Sequence[Difference]], Sequence[str]] = _there_and_here,
) -> None:
    """Makes sure that a task adapter is of the model that a run asks for.

    Args:
      given, wanted: `Description`.
      where: begins the error's sentence, such as "--adapter output/mrpc/adapter".
      describe: function of a list of (name, there, here), the settings that differ → phrases for
        the error, which by default call a setting by its name.

    Raises:
      UserError: it is not; the sentence says what differs.
    """
    found, asked = compatibility_fields(given), compatibility_fields(wanted)
    differences = [
        (name, found.get(name), asked.get(name))
        for name in sorted(set(found) | set(asked))
        if found.get(name) != asked.get(name)
    ]
    if differences:
        raise UserError(
            f"{where} (task {given.task}, backbone {given.backbone.name}) does not fit:"
            f" {'; '.join(describe(differences))}."
        )


def to_checkpoint(adapter: TaskAdapter, prefix: str) -> None:
    """Writes the tensors and the step as a TensorFlow checkpoint, as a training leaves them."""
    step = np.array(adapter.description.global_step, np.int64)
    checkpoints.write(prefix, {**adapter.tensors, checkpoints.GLOBAL_STEP: step})


def to_full_checkpoint(
    adapter: TaskAdapter, init_checkpoint: str, prefix: str, flag: str = "--init_checkpoint"
) -> None:
    """Writes backbone and task adapter as one checkpoint; see `full_checkpoint_use`.

    Args:
      adapter: `TaskAdapter`.
      init_checkpoint: prefix of the pretrained checkpoint that it was trained on.
      prefix: of the checkpoint to write.
      flag: what the error calls the pretrained checkpoint.

    Raises:
      UserError: it was trained on another one.
    """
    config, where = adapter.description.backbone.bert_config(), f"{flag} {init_checkpoint}"
    checkpoints.check_encoder(init_checkpoint, config, flag)
    reader = checkpoints.open_checkpoint(init_checkpoint, flag)
    tensors = {
        name: checkpoints.read_tensor(reader, name, where)
        for name in checkpoints.encoder_shapes(config)
    }
    found = checkpoints.fingerprint(tensors.get, config)
    if found != adapter.description.backbone.fingerprint:
        raise UserError(
            f"{where} is not the backbone that the task adapter was"
            f" trained on, {adapter.description.backbone.name}: their fingerprints differ."
        )
    to_checkpoint(adapter._replace(tensors={**tensors, **adapter.tensors}), prefix)


def full_checkpoint_use(description: Description) -> str:
    """Returns a sentence that says which code may load a full checkpoint of this task.

    Other code than that loads it too, and silently ignores tensors: its scores are much worse.
    """
    adapter = description.adapter
    if adapter is None:
        return "BERT's own code can load it."
    warning = "BERT's own code loads it and ignores the adapters without a message"
    plain = configs.AdapterConfig(size=adapter.size, init_scale=adapter.init_scale)
    if adapter != plain:
        return f"Load it in this project only: {warning}, and adapter-bert has no such adapters."
    return (
        f"Load it in this project or in adapter-bert (hidden_size={adapter.size}) only: {warning}."
    )


def _read_description(folder: str, where: str) -> Tuple[Description, Dict[str, Any]]:
    """Returns (`Description`, the JSON object that it stands in)."""
    content = _read(f"{folder}/{CONFIG_FILE}", where, _LARGEST_CONFIG)
    where = f"{where}: {CONFIG_FILE}"
    try:
        record = files.parse_json(content.decode("utf-8"))
        json.dumps(record, ensure_ascii=False).encode("utf-8")  # Half a surrogate pair is no text.
    except files.RepeatedKey as error:
        raise UserError(f"{where}: {error}; expected each key once.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is no JSON ({error}).") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise UserError(f'{where}: expected "format": "{FORMAT}".')
    if record.get("format_version") != FORMAT_VERSION:
        raise UserError(
            f"{where}: format_version is {record.get('format_version')!r}, this program reads"
            f" {FORMAT_VERSION}."
        )
    if not isinstance(record.get("sha256"), str):
        raise UserError(f"{where}: expected sha256, the digest of {TENSORS_FILE}.")
    described = {
        name: value
        for name, value in record.items()
        if name not in ("format", "format_version", "sha256")
    }
    return _from_json(Description, described, where), record


def _read(path: str, where: str, largest: float = math.inf) -> bytes:
    """The bytes of a file, of which it may hold so many."""
    try:
        if files.size(path) > largest:
            raise UserError(f"{where}: {os.path.basename(path)} is over {largest:,} bytes.")
        with files.open_file(path, "rb") as reader:
            return reader.read()
    except FileNotFoundError as error:
        inside = os.path.join(os.path.dirname(path), FOLDER)  # The folder may be that of a run.
        found = files.exists(os.path.join(inside, CONFIG_FILE))
        hint = f"; there is one in {inside}" if found else ""
        raise UserError(f"{where} is no task adapter: there is no file {path}{hint}.") from error
    except OSError as error:
        raise UserError(f"{where}: {path} cannot be read ({files.reason(error)}).") from error


def _header(content: bytes):
    """The JSON header of safetensors: its length as 8 bytes, little-endian, and then its text."""
    (length,) = struct.unpack_from("<Q", content)
    return files.parse_json(content[8 : 8 + length].decode("utf-8"))


def _decode(name: str, entry: Dict[str, Any], where: str) -> np.ndarray:
    if entry["dtype"] != "F32":
        raise UserError(f"{where}: {name} in {TENSORS_FILE} must be F32, not {entry['dtype']}.")
    return np.frombuffer(entry["data"], "<f4").reshape(entry["shape"])


def _to_json(record: Dict[str, Any], indent: Optional[int] = None) -> str:
    return json.dumps(record, indent=indent, sort_keys=True)


def _from_json(kind, value, where):
    """A JSON value as a value of a type: a dataclass of these, Optional, Tuple, Dict or a scalar.

    Raises:
      UserError: it is another one; a field is missing or unknown.
    """
    if dataclasses.is_dataclass(kind):
        return _dataclass_from_json(kind, value, where)
    origin: Any = getattr(kind, "__origin__", None)
    inner: Tuple[Any, ...] = getattr(kind, "__args__", ())
    if origin is typing.Union:  # Optional
        return None if value is None else _from_json(inner[0], value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_from_json(inner[0], item, where) for item in value)
    if origin is dict and isinstance(value, dict):
        return {name: _from_json(inner[1], item, f"{where}.{name}") for name, item in value.items()}
    if type(value) is int and abs(value) >= 1 << 63:
        raise UserError(f"{where}: {str(value)[:20]}... is too large a number.")
    if kind is float and type(value) is int:
        return float(value)
    if kind is not Any and type(value) is not kind:
        expected = getattr(kind, "__name__", str(kind))
        raise UserError(f"{where}: expected {expected}, found {json.dumps(value)[:50]}.")
    return value


def _dataclass_from_json(kind, value, where):
    types = typing.get_type_hints(kind)
    later = configs.VARIANTS if kind is configs.AdapterConfig else ()
    found = set(value) if isinstance(value, dict) else set()
    difference = sorted((set(types) ^ found) - (set(later) - found))
    if difference or not isinstance(value, dict):
        raise UserError(f"{where}: missing or unknown: {', '.join(difference[:5])}.")
    fields = {name: _from_json(types[name], value[name], f"{where}.{name}") for name in value}
    try:
        return kind(**fields)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
