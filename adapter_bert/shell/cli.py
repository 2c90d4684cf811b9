"""The frame of every script: flags, --help, the log and user errors.

    define_flags = Config.define_flags
    main = cli.main_of(run)

    if __name__ == "__main__":
        define_flags()
        cli.run(main)

`run` is the script's function from parsed flags to the lines of its report.
"""

import logging as standard_logging
import re
import sys
from typing import Any, Callable, List, Optional

from absl import app, flags, logging

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


def run(main: Callable) -> None:
    """Parses absl's flags, calls `main(argv)` and exits; every script with flags starts here.

    An unknown flag or an invalid value ends the run before `main`; for an unknown flag absl
    suggests the nearest name. `errors.exit_code` maps what `main` raises to an exit code.

    Args:
      main: function of the positional arguments.
    """

    def run_with_log(argv: List[str]) -> Optional[int]:
        environment.load()
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.INFO)
        logging.get_absl_handler().setFormatter(_Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        return main(argv)

    sys.exit(errors.exit_code(lambda: app.run(run_with_log, flags_parser=_parse)))


def _parse(argv: List[str]) -> List[str]:
    """Parses the flags and returns the positional arguments."""
    for names in (("help", "?"), ("helpshort",)):
        flags.DEFINE_flag(_HelpFlag(*names), module_name=app.__name__)
    try:
        return flags.FLAGS(argv)
    except flags.IllegalFlagValueError as error:
        raise UserError(_explain_value_error(error, flags.FLAGS)) from None
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


def main_of(run: Callable, accepts_arguments: bool = False) -> Callable:
    """Returns the `main` of a script, which prints the report.

    Args:
      run: function of the parsed flags that returns the report, a list of lines.
      accepts_arguments: bool; if set, `run` also gets the list of positional arguments. Otherwise
        positional arguments are an error.
    """

    def main(argv: List[str]) -> None:
        if argv[1:] and not accepts_arguments:
            raise UserError(f"{argv[1]}: expected flags only, written as --name=value.")
        environment.silence_tensorflow()
        arguments = [argv[1:]] if accepts_arguments else []
        print("\n".join(map(printing.one_line, run(flags.FLAGS, *arguments))))

    return main


def help_text(flag_values: flags.FlagValues) -> str:
    """Returns the help of all sections' flags, formatted by absl."""
    texts = (flag_values.module_help(title) for title in SECTIONS)
    return "\n".join(text for text in texts if text)
