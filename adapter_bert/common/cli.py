"""How every script begins and ends: flags, --help, the log, and one sentence for a mistake.

    main = cli.main_of(run)

    if __name__ == "__main__":
        define_flags()
        cli.run(main)

`run` is the script's own function, from parsed flags to the lines of a report.
"""

import logging as standard_logging
import re
import sys

from absl import app, flags, logging

from adapter_bert.common import environment, errors
from adapter_bert.common.errors import UserError
from adapter_bert.common.settings import SECTIONS


class _HelpFlag(flags.BooleanFlag):
    """--help in sections, in place of absl's, which sorts all flags into one list."""

    def __init__(self, name, short_name=None):
        super().__init__(name, False, "show this help", short_name, allow_override=True)

    def parse(self, argument):
        if self._parse(argument):
            print((sys.modules["__main__"].__doc__ or "").rstrip())
            print(help_text(flags.FLAGS))
            print("\n--helpfull lists those of absl too.")
            sys.exit()


def run(main):
    """Parses absl's flags and calls `main(argv)`; the way in for every script that has flags.

    Args:
      main: a function of the command line's positional arguments.

    A flag that is unknown (absl suggests the nearest name) or has a value that it cannot have stops
    the run before `main`. What `main` raises ends the run as `errors.exit_code` says.
    """

    def run_with_log(argv):
        environment.load()
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.INFO)
        formatter = standard_logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S")
        logging.get_absl_handler().setFormatter(formatter)
        return main(argv)

    sys.exit(errors.exit_code(lambda: app.run(run_with_log, flags_parser=_parse)))


def _parse(argv):
    """Parses the flags and returns what else stands on the command line."""
    for names in (("help", "?"), ("helpshort",)):
        flags.DEFINE_flag(_HelpFlag(*names), module_name=app.__name__)
    try:
        return flags.FLAGS(argv)
    except flags.IllegalFlagValueError as error:
        raise UserError(_explain_value_error(error, flags.FLAGS)) from None
    except (flags.Error, ValueError) as error:  # The latter of --no<flag> with a value.
        raise UserError(str(error)) from None


def _explain_value_error(error, flag_values):
    """Says of a flag with a wrong value what is expected, where absl gives Python's reason.

    Args:
      error: absl's, "flag --<name>=<value>: <reason>"; the reason is that of the error before it.
      flag_values: `absl.flags.FlagValues`.
    """
    message, reason = str(error), f": {error.__context__}"
    match = re.match(r"flag --(\w+)=", message)
    # Those of numbers name what they accept; of other flags the reason does.
    accepted = match and flag_values[match.group(1)].parser.syntactic_help
    if not accepted or not message.endswith(reason):
        return message
    return f"{message[len('flag ') : -len(reason)]}: expected {accepted}"


def main_of(run, accepts_arguments=False):
    """The main of a script.

    Args:
      run: function of the parsed flags, which returns the report that ends the run: its lines.
      accepts_arguments: bool; `run` also gets the list of positional arguments, which are an error
        otherwise.
    """

    def main(argv):
        if argv[1:] and not accepts_arguments:
            raise UserError(f"{argv[1]}: flags only, written as --name=value.")
        environment.silence_tensorflow()
        arguments = [argv[1:]] if accepts_arguments else []
        print("\n".join(run(flags.FLAGS, *arguments)))

    return main


def help_text(flag_values):
    """The flags of all sections, as absl words them."""
    texts = (flag_values.module_help(title) for title in SECTIONS)
    return "\n".join(text for text in texts if text)
