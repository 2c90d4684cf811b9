"""Settings as dataclasses whose fields define the flags: name, help and default in one place.

    @dataclasses.dataclass(frozen=True)
    class DeviceConfig(Settings):
        use_tpu: bool = flag(False, "Run on a TPU.", "Devices")

    DeviceConfig.define_flags(flag_values)          # --use_tpu, in --help's section "Devices"
    config = DeviceConfig.from_flags(flag_values)   # config.use_tpu

A class inherits the flags of its bases. A field without a flag is computed by code.
"""

import dataclasses
import math
import typing
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Type,
    TypeVar,
)

from absl import flags

_MAX_INT = (1 << 63) - 1  # Of a number in a task adapter's description.

# The sections of --help, in order.
SECTIONS = (
    "Stages",
    "Trials",
    "Execution",
    "Tasks",
    "Task and data",
    "Tables and figures",
    "Comparison of two classifiers",
    "Pretrained BERT",
    "Trained parameters",
    "Adapters",
    "Model",
    "Search",
    "Training",
    "Evaluation and prediction",
    "Output",
    "Network",
    "Limits",
    "Devices",
)


class _Flag(NamedTuple):
    """A field's flag. If `name` is None, the flag has the field's name."""

    help: str
    section: str
    name: Optional[str]
    choices: Optional[Sequence[str]]
    lower: Optional[float]
    upper: Optional[float]
    parse: Optional[Callable[[str], Any]]
    is_multiple: bool
    is_input: bool
    records: Dict[str, str] = {}
    binds_evaluation: bool = False


def flag(
    default: Any,
    help: str,
    section: str,
    *,
    name: Optional[str] = None,
    choices: Optional[Iterable[str]] = None,
    lower: Optional[float] = None,
    upper: Optional[float] = None,
    parse: Optional[Callable[[str], Any]] = None,
    is_multiple: bool = False,
    is_input: bool = False,
    records: Optional[Dict[str, str]] = None,
    binds_evaluation: bool = False,
) -> Any:
    """Returns a dataclass field that is set by a flag.

    Args:
      default: the default of the field and the flag.
      help: the text in --help; absl appends the default.
      section: one of `SECTIONS`.
      name: the flag's name; by default, the field's.
      choices: the values that a string flag accepts.
      lower, upper: bounds of a numeric flag.
      parse: function from the flag's text to the field's value; raises UserError.
      is_multiple: repeat a tuple's flag for each value, instead of a list with commas.
      is_input: whether the flag names a file or folder that the run reads.
      records: the recorded settings that the flag decides, and what errors call them; "" for the
        flag alone. A setting with the flag's own name need not be listed.
      binds_evaluation: whether a trained model must be evaluated with the value of its training.
    """
    if section not in SECTIONS:
        raise ValueError(f"{section!r} is not in SECTIONS")
    choices = None if choices is None else tuple(choices)
    metadata = _Flag(help, section, name, choices, lower, upper, parse, is_multiple, is_input)
    metadata = metadata._replace(records=records or {}, binds_evaluation=binds_evaluation)
    return dataclasses.field(default=default, metadata={"flag": metadata})


S = TypeVar("S", bound="Settings")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Base class of settings whose fields are flags."""

    @classmethod
    def define_flags(cls, flag_values: flags.FlagValues = flags.FLAGS) -> None:
        """Defines the flags of all fields."""
        for name, field, kind in _fields_with_flags(cls):
            _define(name, field.metadata["flag"], kind, field.default, flag_values)

    @classmethod
    def values_of(cls, values: flags.FlagValues, supplied: Any = None) -> Dict[str, Any]:
        """Returns the fields' values by name, from parsed flags and supplied values.

        Args:
          values: the parsed flags of `define_flags`; not modified.
          supplied: `Supplied`, or None.
        """
        supplied = supplied or Supplied()
        result = {}
        for name, field, _ in _fields_with_flags(cls):
            is_supplied = name in supplied.defaults and not values[name].present
            if name in supplied.replacements:
                value = supplied.replacements[name]
            else:
                value = supplied.defaults[name] if is_supplied else values[name].value
            parse = field.metadata["flag"].parse
            if parse and isinstance(value, str):
                value = parse(value)
            result[field.name] = tuple(value) if isinstance(value, list) else value
        return result

    @classmethod
    def from_flags(cls: Type[S], values: flags.FlagValues, supplied: Any = None) -> S:
        """Returns the settings of parsed flags; see `values_of` for the arguments.

        Raises:
          UserError: a value is invalid, whatever the data and the pretrained BERT.
        """
        return cls(**cls.values_of(values, supplied))

    @classmethod
    def recorded_names(cls) -> Dict[str, str]:
        """Returns recorded setting → what errors call it, where that is not its flag."""
        deciding: Dict[Tuple[str, str], List[str]] = {}
        for flag_name, field, _ in _fields_with_flags(cls):
            for item in field.metadata["flag"].records.items():
                deciding.setdefault(item, []).append(f"--{flag_name}")
        return {
            name: f"{words} ({', '.join(names)})" if words else names[0]
            for (name, words), names in deciding.items()
        }

    @classmethod
    def evaluation_flags(cls) -> Set[str]:
        """Returns the names of the flags that bind an evaluation; see `flag`."""
        fields = _fields_with_flags(cls)
        return {name for name, field, _ in fields if field.metadata["flag"].binds_evaluation}

    def inputs(self) -> List[Tuple[str, str]]:
        """Returns (flag, path) of each file or folder that the run reads."""
        named = [
            (f"--{name}", getattr(self, field.name))
            for name, field, _ in _fields_with_flags(type(self))
            if field.metadata["flag"].is_input
        ]
        return [(name, path) for name, path in named if path]

    def changed_flags(self, names: Iterable[str]) -> Dict[str, Any]:
        """Returns flag → value of the named flags that differ from their defaults."""
        fields = {name: field for name, field, _ in _fields_with_flags(type(self))}
        values = {name: getattr(self, fields[name].name) for name in names}
        return {name: value for name, value in values.items() if value != fields[name].default}


class Supplied(NamedTuple):
    """Values that replace flags.

    Attributes:
      defaults: flag → its value if the flag is not given.
      replacements: flag → its value, whether the flag is given or not.
    """

    defaults: Dict[str, Any] = {}
    replacements: Dict[str, Any] = {}


def _fields_with_flags(cls: Any) -> Iterable[Tuple[str, dataclasses.Field, Any]]:
    """Yields (the flag's name, the field, the type of its value)."""
    for field in dataclasses.fields(cls):
        if "flag" in field.metadata:
            yield field.metadata["flag"].name or field.name, field, _without_none(field.type)


def _without_none(kind: Any) -> Any:
    """Returns X for Optional[X]; other types unchanged."""
    if getattr(kind, "__origin__", None) is typing.Union:
        return next(inner for inner in kind.__args__ if inner is not type(None))
    return kind


def _is_int64(value: Optional[int]) -> bool:
    return value is None or abs(value) <= _MAX_INT


def _is_finite(value: Optional[float]) -> bool:
    return value is None or math.isfinite(value)


def _define(
    name: str, declared: _Flag, kind: Any, default: Any, flag_values: flags.FlagValues
) -> None:
    at: Dict[str, Any] = {"flag_values": flag_values, "module_name": declared.section}
    bounds: Dict[str, Any] = {"lower_bound": declared.lower, "upper_bound": declared.upper}
    if declared.choices is not None:
        flags.DEFINE_enum(name, default, list(declared.choices), declared.help, **at)
    elif declared.parse or kind is str:
        flags.DEFINE_string(name, default, declared.help, **at)
    elif kind is bool:
        flags.DEFINE_bool(name, default, declared.help, **at)
    elif kind is int:
        flags.DEFINE_integer(name, default, declared.help, **bounds, **at)
        flags.register_validator(name, _is_int64, f"expected at most {_MAX_INT}", flag_values)
    elif kind is float:
        flags.DEFINE_float(name, default, declared.help, **bounds, **at)
        # absl accepts infinity and NaN, within bounds too.
        flags.register_validator(name, _is_finite, "expected a finite number", flag_values)
    elif declared.is_multiple:
        # absl appends "; repeat this option ...".
        flags.DEFINE_multi_string(name, list(default), declared.help.rstrip("."), **at)
    else:
        flags.DEFINE_list(name, None if default is None else list(default), declared.help, **at)
