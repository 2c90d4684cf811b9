"""Tests of settings.py: flags from a dataclass, and values from flags."""

import dataclasses
from typing import Optional, Tuple

import tensorflow.compat.v1 as tf
from absl import flags

from adapter_bert.shell.errors import UserError
from adapter_bert.shell.settings import Settings, Supplied, flag


def parse_even(text):
    if int(text) % 2:
        raise UserError(f"--even={text}: expected an even number.")
    return int(text)


@dataclasses.dataclass(frozen=True)
class Base(Settings):
    size: int = flag(8, "Width.", "Model", lower=1, upper=16)
    rate: Optional[float] = flag(None, "Rate.", "Training", lower=0)
    fast: bool = flag(False, "Fast.", "Training")


@dataclasses.dataclass(frozen=True)
class Unbounded(Settings):
    length: int = flag(8, "Length.", "Training")
    shift: float = flag(0.0, "Shift.", "Training")


@dataclasses.dataclass(frozen=True)
class Own(Base):
    size: int = flag(4, "Narrow.", "Model", lower=1)
    kind: str = flag("a", "Kind.", "Model", choices=("a", "b"))
    names: Tuple[str, ...] = flag((), "Names.", "Tasks")
    each: Tuple[str, ...] = flag((), "Each.", "Tasks", is_multiple=True)
    even: Optional[int] = flag(None, "Even.", "Model", parse=parse_even)
    folder: Optional[str] = flag(None, "Folder.", "Output", name="adapter")
    computed: str = "x"


def parsed(settings, *arguments):
    values = flags.FlagValues()
    settings.define_flags(values)
    values(["script.py", *arguments])
    return values


class SettingsTest(tf.test.TestCase):
    def test_flags_have_types_and_defaults_of_fields(self):
        values = parsed(Own)
        found = {name: (values[name].flag_type(), values[name].default) for name in values}
        self.assertEqual(
            found,
            {
                "size": ("int", 4),
                "rate": ("float", None),
                "fast": ("bool", False),
                "kind": ("string enum", "a"),
                "names": ("comma separated list of strings", []),
                "each": ("multi string", []),
                "even": ("string", None),
                "adapter": ("string", None),
            },
        )
        self.assertEqual(Own.from_flags(values), Own())

    def test_flags_are_parsed_into_settings(self):
        values = parsed(
            *(Own, "--size=2", "--rate=1e-3", "--fast", "--kind=b", "--names=a,b", "--each=a,b"),
            *("--each=c", "--even=6", "--adapter=there"),
        )
        expected = Own(2, 1e-3, True, "b", ("a", "b"), ("a,b", "c"), 6, "there")
        self.assertEqual(Own.from_flags(values), expected)
        with self.assertRaisesRegex(UserError, "--even=5: expected an even number"):
            Own.from_flags(parsed(Own, "--even=5"))

    def test_values_outside_bounds_and_choices_are_refused(self):
        for argument in (
            "--size=0",
            "--size=17",
            "--size=x",
            "--rate=x",
            "--rate=inf: expected",
            "--rate=nan: expected",
            f"--size={1 << 63}",
        ):
            with self.assertRaisesRegex(flags.IllegalFlagValueError, argument):
                parsed(Base, argument.split(":")[0])
        with self.assertRaisesRegex(
            flags.IllegalFlagValueError, "--length=9.*: expected at most 9"
        ):
            parsed(Unbounded, f"--length={1 << 63}")
        for value in ("nan", "inf", "-inf"):
            with self.assertRaisesRegex(flags.IllegalFlagValueError, "--shift=.*: .* finite"):
                parsed(Unbounded, f"--shift={value}")
        with self.assertRaises(flags.IllegalFlagValueError):
            parsed(Own, "--kind=c")
        with self.assertRaisesRegex(ValueError, "'Outptu'.* SECTIONS"):
            flag(1, "Size.", "Outptu")

    def test_supplied_values_fill_in_unset_flags(self):
        values = parsed(Base, "--rate=0.5")
        supplied = Supplied({"rate": 0.1, "size": 2}, {"fast": True})
        self.assertEqual(Base.from_flags(values, supplied), Base(2, 0.5, True))
        self.assertEqual((values.size, values.fast), (8, False))  # The flags are unchanged.

    def test_changed_flags_returns_nondefault_values(self):
        own = Own(size=4, rate=0.1, folder="there")
        self.assertEqual(
            own.changed_flags(["size", "rate", "adapter"]), {"rate": 0.1, "adapter": "there"}
        )
