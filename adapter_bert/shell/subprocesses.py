"""Modules that run in a process of their own, so that this one need not import TensorFlow."""

import os
import subprocess
import sys

from adapter_bert import PACKAGE
from adapter_bert.shell.errors import UserError


def run_module(name: str, *arguments: str, stdin: str = "") -> str:
    """Runs a module's `__main__` part in a new Python; returns what it printed.

    Args:
      name: of the module, which ends by `errors.exit_code`.
      *arguments: of its command line.
      stdin: its input.

    Raises:
      UserError: it failed; the text is the last line of its log.
    """
    folders = [os.path.dirname(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folders),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONUTF8": "1",  # TensorFlow opens the UTF-8 of a name, whatever the locale is.
    }
    process = subprocess.run(
        [sys.executable, "-m", name, *arguments],
        input=stdin.encode(),
        capture_output=True,
        env=environment,
    )
    stdout, stderr = map(os.fsdecode, (process.stdout, process.stderr))
    if process.returncode:
        lines = stderr.strip().splitlines() or [f"exit code {process.returncode}"]
        raise UserError(lines[-1].replace("Error: ", "", 1))
    return stdout
