"""Recognizes adapters of HuggingFace's package PEFT, so that errors can name them."""

import os
from typing import List

from adapter_bert.files import gfile, json_objects
from adapter_bert.shell.errors import UserError

_CONFIG, _TYPE = "adapter_config.json", "peft_type"


def matches(path: str) -> bool:
    """Returns whether a path is a folder written by PEFT."""
    config = os.path.join(path, _CONFIG)
    try:
        return gfile.exists(config) and _TYPE in json_objects.read_object(config)
    except UserError:
        return False


def describe(path: str, argument: str) -> List[str]:
    """Returns lines that describe the folder for people."""
    del argument
    return [f"PEFT: {_method(path)}. {_ADVICE}"]


def check_other(path: str, where: str) -> None:
    """Raises UserError if a path is a folder written by PEFT.

    Args:
      path: the folder.
      where: beginning of the error message.
    """
    if matches(path):
        raise UserError(f"{where} is a PEFT adapter (method {_method(path)}): {_ADVICE}")


_ADVICE = (
    "PEFT has no bottleneck adapters, so its files cannot be used here; train an adapter with this"
    " project, or use one in AdapterHub's format."
)


def _method(path: str) -> str:
    return str(json_objects.read_object(os.path.join(path, _CONFIG))[_TYPE])[:40]
