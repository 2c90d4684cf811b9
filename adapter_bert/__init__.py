"""BERT with adapter modules: the scripts' library, and a Python API.

from adapter_bert import AdapterBank, Predictor, Row, train
"""

import importlib
import os
from typing import Any

__version__ = "1.0.0"  # CITATION.cff and CHANGELOG.md repeat it; a test compares them.

PACKAGE = os.path.dirname(os.path.abspath(__file__))
IS_INSTALLED = os.path.exists(os.path.join(PACKAGE, "modeling.py"))  # By pip; otherwise a clone.

_PUBLIC = {
    "AdapterBank": "serving.inference.bank",
    "Predictor": "serving.inference.predictor",
    "Row": "serving.inference.bank",
    "train": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)


if not IS_INSTALLED:
    __path__.append(os.path.dirname(PACKAGE))
    importlib.import_module(f"{__name__}.shell.clone")
