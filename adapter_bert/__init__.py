"""The code behind the scripts, one package per subject, and the classes for use from Python:

from adapter_bert import AdapterBank, Predictor, Row
"""

import importlib

_PUBLIC = {
    "AdapterBank": "serving.bank",
    "Predictor": "serving.predictor",
    "Row": "serving.bank",
}


def __getattr__(name):
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
