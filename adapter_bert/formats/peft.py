"""Adapters of HuggingFace's package PEFT, which are recognized so that an error can name them."""

import os
from typing import List

from adapter_bert.common import files
from adapter_bert.common.errors import UserError

_CONFIG, _TYPE = "adapter_config.json", "peft_type"


def matches(path: str) -> bool:
    """Returns whether a path is a folder that PEFT wrote."""
    config = os.path.join(path, _CONFIG)
    try:
        return files.exists(config) and _TYPE in files.read_object(config)
    except UserError:
        return False


def describe(path: str, argument: str) -> List[str]:
    """Returns a line that says what lies there, for people."""
    del argument
    return [f"PEFT: {_method(path)}. {_ADVICE}"]


def check_other(path: str, where: str) -> None:
    """Raises UserError if a path is a folder of PEFT's.

    Args:
      path: where an adapter is looked for.
      where: begins the error's sentence.
    """
    if matches(path):
        raise UserError(f"{where} is PEFT's, of the method {_method(path)}: {_ADVICE}")


_ADVICE = (
    "PEFT has no bottleneck adapters, so that none of its files opens here; train an adapter with"
    " this project, or take one of AdapterHub's package adapters."
)


def _method(path: str) -> str:
    return str(files.read_object(os.path.join(path, _CONFIG))[_TYPE])[:40]
