"""What a user can mend: one sentence on stderr, a non-zero exit code, no traceback.

Every module raises `UserError` for what lies in the user's hands (a path, a flag, a row of a file)
and lets everything else fly as the bug it is. Only the scripts call `run` or `exit_code`.
"""

import logging as standard_logging
import sys

from absl import app, flags, logging


class UserError(ValueError):
    """A mistake that the user can mend; its message names what, where, and what was expected."""


def exit_code(main, *arguments):
    """Calls `main(*arguments)` and returns the exit code.

    `UserError` becomes its sentence on stderr and exit code 1, Ctrl-C exit code 130.
    """
    try:
        return main(*arguments)
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130


def run(main):
    """Parses absl's flags and calls `main(argv)`; the way in for every script that has flags.

    Args:
      main: a function of the command line's positional arguments.

    An unknown flag stops the run before `main` (absl suggests the nearest name). What `main`
    raises ends the run as `exit_code` says.
    """

    def logged(argv):
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.INFO)
        plain = standard_logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S")
        logging.get_absl_handler().setFormatter(plain)
        return exit_code(main, argv)

    app.run(logged)
