"""The frame of every script: flags, --help, the log and user errors.

    define_flags = Config.define_flags
    main = cli.main_of(run, define_flags)

    if __name__ == "__main__":
        define_flags()
        cli.run(main)

`run` is the script's function from parsed flags to the lines of its report.
"""

import contextlib
import logging as standard_logging
import re
import sys
from typing import Any, Callable, Iterator, List, Optional, Sequence

from absl import app, flags, logging

from adapter_bert import __version__
from adapter_bert.shell import environment, errors, printing
from adapter_bert.shell.errors import UserError
from adapter_bert.shell.settings import SECTIONS


class _Formatter(standard_logging.Formatter):
    """Formats a message on one line, as it may quote a file; a traceback keeps its lines."""

    def formatMessage(self, record: standard_logging.LogRecord) -> str:
        return printing.one_line(super().formatMessage(record))


class _HelpFlag(flags.BooleanFlag):
    """A --help flag that groups the flags by section; absl sorts them into one list."""

    def __init__(self, name: str, short_name: Optional[str] = None):
        super().__init__(name, False, "show this help", short_name, allow_override=True)

    def parse(self, argument: Any) -> None:
        if self._parse(argument):
            print((sys.modules["__main__"].__doc__ or "").rstrip())
            print(help_text(flags.FLAGS))
            print("\n--helpfull also lists absl's own flags.")
            sys.exit()


class _VersionFlag(flags.BooleanFlag):
    """A --version flag of every script."""

    def __init__(self) -> None:
        super().__init__("version", False, "show adapter-bert's version", allow_override=True)

    def parse(self, argument: Any) -> None:
        if self._parse(argument):
            print(f"adapter-bert {__version__}")
            sys.exit()


def run(main: Callable) -> None:
    """Parses absl's flags, calls `main(argv)` and exits; every script with flags starts here.

    An unknown flag or an invalid value ends the run before `main`; for an unknown flag absl
    suggests the nearest name. `errors.exit_code` maps what `main` raises to an exit code.

    Args:
      main: function of the positional arguments.
    """

    def run_with_log(argv: List[str]) -> Optional[int]:
        logging.get_absl_handler().setFormatter(_Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        environment.load()
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.INFO)
        return main(argv)

    try:
        code = errors.exit_code(lambda: app.run(run_with_log, flags_parser=_parse_all))
    finally:  # This process may run another script, or this one again.
        of_module = flags.FLAGS.flags_by_module_dict()
        for flag in [flag for title in SECTIONS for flag in of_module.get(title, ())]:
            delattr(flags.FLAGS, flag.name)
    sys.exit(code)


def _parse_all(argv: List[str]) -> List[str]:
    """Parses absl's flags, too, and returns the positional arguments."""
    for names in (("help", "?"), ("helpshort",)):
        flags.DEFINE_flag(_HelpFlag(*names), module_name=app.__name__)
    flags.DEFINE_flag(_VersionFlag(), module_name=app.__name__)
    return parse(flags.FLAGS, argv)


def parse(values: flags.FlagValues, argv: Sequence[str]) -> List[str]:
    """Sets flags by a command line.

    Args:
      values: flags that are defined; for flags of its own, a new `flags.FlagValues`.
      argv: the script's name, which is not used, and its arguments.

    Returns:
      The script's name and the positional arguments.

    Raises:
      UserError: a flag is unknown, or its value is invalid.
    """
    try:
        return values(argv)
    except flags.IllegalFlagValueError as error:
        raise UserError(_explain_value_error(error, values)) from None
    except (flags.Error, ValueError) as error:  # --no<flag> with a value raises ValueError.
        raise UserError(str(error)) from None


def _explain_value_error(error: Exception, flag_values: flags.FlagValues) -> str:
    """Returns the message for an invalid flag value: what is expected, not Python's reason.

    Args:
      error: absl's error, "flag --<name>=<value>: <reason>"; its context is the original error.
      flag_values: `absl.flags.FlagValues`.
    """
    message, reason = str(error), f": {error.__context__}"
    match = re.match(r"flag --(\w+)=", message)
    # Only parsers of numbers describe what they accept; other parsers say it in the reason.
    accepted = match and flag_values[match.group(1)].parser.syntactic_help
    if not accepted or not message.endswith(reason):
        return message
    return f"{message[len('flag ') : -len(reason)]}: expected {accepted}"


@contextlib.contextmanager
def shown_log() -> Iterator[None]:
    """Shows the log of this thread's program on stderr as scripts do, while entered."""
    logger = logging.get_absl_logger()
    handler = standard_logging.StreamHandler()
    handler.setFormatter(_Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    before = logging.get_verbosity(), logger.propagate
    logging.set_verbosity(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before[1]
        logging.set_verbosity(before[0])


def main_of(
    run: Callable,
    define_flags: Callable[[flags.FlagValues], None],
    accepts_arguments: bool = False,
) -> Callable:
    """Returns the `main` of a script, which prints the report.

    Args:
      run: function of the parsed flags that returns the report, a list of lines.
      define_flags: function that defines the script's flags.
      accepts_arguments: bool; if set, `run` also gets the list of positional arguments. Otherwise
        positional arguments are an error.

    Returns:
      `main(argv)`. Called by absl's `app.run`, it finds the flags parsed in `flags.FLAGS`. Any
      other caller gives the flags in argv, as often as it likes.
    """

    def main(argv: List[str]) -> None:
        values = flags.FlagValues()
        define_flags(values)
        if flags.FLAGS.is_parsed() and set(values) <= set(flags.FLAGS):
            values = flags.FLAGS
        else:
            argv = parse(values, argv)
        arguments = argv[1:]
        if arguments and not accepts_arguments:
            raise UserError(f"{arguments[0]}: expected flags only, written as --name=value.")
        environment.silence_tensorflow()
        report = run(values, *([arguments] if accepts_arguments else []))
        print("\n".join(map(printing.one_line, report)))

    return main


def help_text(flag_values: flags.FlagValues) -> str:
    """Returns the help of all sections' flags, formatted by absl."""
    texts = (flag_values.module_help(title) for title in SECTIONS)
    return "\n".join(text for text in texts if text)
