"""Runs a program in a process without this project."""

import json
import os
import subprocess
import sys
import tempfile


def call(program, *values, **environment):
    """Returns the JSON that a Python program writes, given a list of JSON values in stdin."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            [sys.executable, "-c", program],
            input=json.dumps(values),
            capture_output=True,
            text=True,
            cwd=folder,
            env={**inherited, **environment},
        )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout)
