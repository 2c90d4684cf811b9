"""What a user can mend: one sentence on stderr, a non-zero exit code, no traceback.

Every module raises `UserError` for what lies in the user's hands (a path, a flag, a row of a file)
and lets everything else fly as the bug it is. Only the scripts end a run, by `exit_code`.
"""

import sys


class UserError(ValueError):
    """A mistake that the user can mend; its message names what, where, and what was expected."""


def exit_code(main, *arguments):
    """Calls `main(*arguments)` and returns the exit code.

    `UserError` becomes its sentence on stderr and exit code 1, Ctrl-C exit code 130.
    """
    try:
        return main(*arguments)
    except UserError as error:
        sentence = " ".join(line.strip() for line in str(error).splitlines())
        end = "" if sentence.endswith((".", "?")) else "."
        print(f"Error: {sentence}{end}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
