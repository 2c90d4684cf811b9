"""What a user can mend: one sentence on stderr, a non-zero exit code, no traceback.

Every module raises `UserError` for what lies in the user's hands (a path, a flag, a row of a file)
and lets everything else fly as the bug it is. Only the scripts end a run, by `exit_code`.
"""

import os
import signal
import sys

from adapter_bert.common import interrupts

_MAX_CHARACTERS = 2000  # Characters of a sentence; what a broken file holds may have millions.


class UserError(ValueError):
    """A mistake that the user can mend; its message names what, where, and what was expected.

    What a file's content brings into the message cannot break it: it is one line of printable
    characters, others are escaped, and its middle is left out where it would be very long.
    """

    def __init__(self, sentence):
        super().__init__(_one_line(sentence))


def _one_line(text):
    line = " ".join(part.strip() for part in text.splitlines())
    if not line.isprintable():
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    if len(line) > _MAX_CHARACTERS:
        line = f"{line[: _MAX_CHARACTERS // 2]} ... {line[-_MAX_CHARACTERS // 4 :]}"
    return line


def exit_code(main, *arguments):
    """Calls `main(*arguments)` and returns the exit code.

    `UserError` becomes its sentence on stderr and exit code 1; Ctrl-C, SIGTERM and SIGHUP, which
    are KeyboardInterrupt meanwhile, exit code 130; a reader of stdout who has enough, as in
    `--help | head`, exit code 141.
    """
    try:
        with interrupts.handle_signals(signal.default_int_handler):
            try:
                return main(*arguments)
            finally:
                sys.stdout.flush()
    except BrokenPipeError:
        if not _is_stdout_closed():
            raise
        return 141
    except UserError as error:
        return _report(error)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except Exception as error:
        # TensorFlow's, of a path such as s3://bucket; by its name, as TensorFlow may be missing.
        message = getattr(error, "message", "")
        scheme = "File system scheme"
        if type(error).__name__ != "UnimplementedError" or not message.startswith(scheme):
            raise
        return _report(unreadable_scheme(message))


def unreadable_scheme(message):
    """Returns the `UserError` for a path whose scheme TensorFlow has no file system for.

    Args:
      message: TensorFlow's.
    """
    return UserError(f"{message}: this TensorFlow cannot read there.")


def _is_stdout_closed():
    """Whether stdout is a pipe whose other end is closed; what is left for it is dropped then."""
    try:
        print(flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _report(error):
    sentence = str(error)
    period = "" if sentence.endswith((".", "?")) else "."
    print(f"Error: {sentence}{period}", file=sys.stderr)
    return 1
