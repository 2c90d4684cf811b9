"""Command lines without a process: the flags that a script's main would have parsed."""

from absl import flags


def parsed(define_flags, *arguments):
    """The `FlagValues` of what a function defines, after a command line."""
    values = flags.FlagValues()
    define_flags(values)
    values(["script.py", *arguments])
    return values
