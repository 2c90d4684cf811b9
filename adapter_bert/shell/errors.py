"""User errors: one sentence on stderr, a non-zero exit code and no traceback.

Every module raises `UserError` for what the user can fix: a path, a flag, a row of a file. All
other exceptions are bugs and keep their traceback. Only the scripts end a run, by `exit_code`.
"""

import errno
import os
import signal
import sys
from typing import Any, Callable, Optional

from adapter_bert.shell import interrupts, printing

_MAX_CHARACTERS = 2000  # Of a message, which may quote a broken file's millions of characters.


class UserError(ValueError):
    """An error that the user can fix; the message says what is wrong, where, and what was expected.

    The message is one line of printable characters, whatever file content it quotes: other
    characters are escaped, and the middle of a very long message is cut.
    """

    def __init__(self, sentence: str):
        line = printing.one_line(sentence)
        if len(line) > _MAX_CHARACTERS:
            line = f"{line[: _MAX_CHARACTERS // 2]} ... {line[-_MAX_CHARACTERS // 4 :]}"
        super().__init__(line)


def exit_code(main: Callable, *arguments: Any) -> Optional[int]:
    """Calls `main(*arguments)` and returns the exit code.

    1 after a `UserError`, whose sentence goes to stderr; so does the path of a PermissionError or
    NotADirectoryError, or of any OSError of a remote path, and a text that is not UTF-8. 130 after
    Ctrl-C, SIGTERM or SIGHUP, which all raise KeyboardInterrupt during the call. 141 if stdout was
    closed, as in `--help | head`; 1 if its disk is full or its terminal was closed.
    """
    if hasattr(sys.stdout, "reconfigure"):  # It may be no UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with interrupts.handle_signals(signal.default_int_handler):
            try:
                return main(*arguments)
            finally:
                if sys.stdout:  # None if the shell started the script with >&-.
                    sys.stdout.flush()
    except UserError as error:
        return _report(error)
    except OSError as error:
        is_users = isinstance(error, (PermissionError, NotADirectoryError))
        if error.filename is not None and (is_users or "://" in str(error.filename)):
            return _report(UserError(f"{error.filename}: {error.strerror}"))
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EIO) or not _is_stdout_broken():
            raise
        if isinstance(error, BrokenPipeError):
            return 141
        return _report(UserError(f"The output cannot be written ({error.strerror})"))
    except UnicodeEncodeError as error:  # Linux allows any bytes in names, TensorFlow only UTF-8.
        text = error.object[max(0, error.start - 100) : error.end + 100]
        return _report(UserError(f"{text!r} is not UTF-8; expected names in UTF-8"))
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except Exception as error:
        # Compared by name, as TensorFlow may be missing. It raises this for s3://bucket, say.
        message = getattr(error, "message", "")
        scheme = "File system scheme"
        if type(error).__name__ != "UnimplementedError" or not message.startswith(scheme):
            raise
        return _report(unreadable_scheme(message))


def unreadable_scheme(message: str) -> UserError:
    """Returns the `UserError` for a path whose scheme has no file system in this TensorFlow.

    Args:
      message: TensorFlow's error message.
    """
    return UserError(f"{message}: this TensorFlow cannot read such paths.")


def _is_stdout_broken() -> bool:
    """Returns whether stdout cannot be written; if so, discards the rest of the output."""
    try:
        print(flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _report(error: Any) -> int:
    sentence = str(error)
    period = "" if sentence.endswith((".", "?")) else "."
    print(f"Error: {sentence}{period}", file=sys.stderr)
    return 1
