"""Parses a script's flags without running it."""

from absl import flags


def parsed(define_flags, *arguments):
    """Returns the `FlagValues` of a function's flags after parsing a command line."""
    values = flags.FlagValues()
    define_flags(values)
    values(["script.py", *arguments])
    return values
