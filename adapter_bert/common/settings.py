"""Settings that flags make: a dataclass says once what a flag is called, means and defaults to.

    @dataclasses.dataclass(frozen=True)
    class DeviceConfig(Settings):
        use_tpu: bool = flag(False, "Run on a TPU.", "Devices")

    DeviceConfig.define_flags(flag_values)          # --use_tpu, in --help's section "Devices"
    config = DeviceConfig.from_flags(flag_values)   # config.use_tpu

A class inherits its bases' flags. A field without a flag is for code that computes it.
"""

import dataclasses
import typing
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
)

from absl import flags

# In the order in which --help has them.
SECTIONS = (
    "What is done",
    "Trials",
    "Tasks",
    "Task and data",
    "Tables and figures",
    "Comparison of two classifiers",
    "Pretrained BERT",
    "What trains",
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
    """A field's flag; `name` is the field's if it is None."""

    help: str
    section: str
    name: Optional[str]
    choices: Optional[Sequence[str]]
    lower: Optional[float]
    upper: Optional[float]
    parse: Optional[Callable[[str], Any]]
    is_multiple: bool


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
) -> Any:
    """Returns a dataclass field that a flag sets.

    Args:
      default: of both.
      help: what --help says of the flag; absl adds the default.
      section: one of `SECTIONS`.
      name: of the flag; the field's by default.
      choices: the values that a flag of strings accepts.
      lower, upper: bounds of a flag of numbers.
      parse: function from the flag's text to the field's value; it raises UserError.
      is_multiple: a flag of a tuple is given several times, in place of a list with commas.
    """
    if section not in SECTIONS:
        raise ValueError(f"{section!r} is none of SECTIONS")
    choices = None if choices is None else tuple(choices)
    metadata = _Flag(help, section, name, choices, lower, upper, parse, is_multiple)
    return dataclasses.field(default=default, metadata={"flag": metadata})


S = TypeVar("S", bound="Settings")


class Settings:
    """The base of settings whose fields are flags."""

    @classmethod
    def define_flags(cls, flag_values: flags.FlagValues) -> None:
        """Defines the flags of all fields, with the fields' defaults."""
        for name, field, kind in _fields_with_flags(cls):
            _define(name, field.metadata["flag"], kind, field.default, flag_values)

    @classmethod
    def values_of(cls, values: flags.FlagValues, supplied: Any = None) -> Dict[str, Any]:
        """Returns the fields' values by their names: parsed flags, and what is supplied for others.

        Args:
          values: parsed flags of `define_flags`, which stay as they are.
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
        """Returns the settings of parsed flags; arguments as of `values_of`.

        Raises:
          UserError: a value cannot be, whatever the data and the pretrained BERT are.
        """
        return cls(**cls.values_of(values, supplied))

    def changed_flags(self, names: Iterable[str]) -> Dict[str, Any]:
        """Returns those of the named flags that do not have their default, with their values."""
        fields = {name: field for name, field, _ in _fields_with_flags(type(self))}
        values = {name: getattr(self, fields[name].name) for name in names}
        return {name: value for name, value in values.items() if value != fields[name].default}


class Supplied(NamedTuple):
    """What stands for flags.

    Attributes:
      defaults: flag → the value that it has if it is not given.
      replacements: flag → the value that it has, given or not.
    """

    defaults: Dict[str, Any] = {}
    replacements: Dict[str, Any] = {}


def _fields_with_flags(cls) -> Iterable[Tuple[str, dataclasses.Field, Any]]:
    """Yields (the flag's name, the field, the type of its value)."""
    for field in dataclasses.fields(cls):
        if "flag" in field.metadata:
            yield field.metadata["flag"].name or field.name, field, _without_none(field.type)


def _without_none(kind):
    """Returns X for Optional[X]; another type as it is."""
    if getattr(kind, "__origin__", None) is typing.Union:
        return next(inner for inner in kind.__args__ if inner is not type(None))
    return kind


def _define(name, declared: _Flag, kind, default, flag_values) -> None:
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
    elif kind is float:
        flags.DEFINE_float(name, default, declared.help, **bounds, **at)
    elif declared.is_multiple:
        flags.DEFINE_multi_string(name, list(default), declared.help, **at)
    else:
        flags.DEFINE_list(name, None if default is None else list(default), declared.help, **at)
