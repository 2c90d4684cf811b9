"""Parses a script's flags without running it."""

from absl import flags


def parsed(define_flags, *arguments):
    """Returns the `FlagValues` of a function's flags after parsing a command line."""
    values = flags.FlagValues()
    define_flags(values)
    values(["script.py", *arguments])
    return values


def classifier_flags(*arguments):
    """Returns the `FlagValues` of run_classifier.py for a command line."""
    import run_classifier  # Imports TensorFlow, which takes seconds.

    return parsed(run_classifier.define_flags, *arguments)


def classifier_config(*arguments):
    """Returns the `ClassifierConfig` of a command line."""
    import run_classifier

    return run_classifier.ClassifierConfig.from_flags(classifier_flags(*arguments))
