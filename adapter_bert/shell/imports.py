"""Imports TensorFlow and Estimator faster, and under `python -OO`."""

import contextlib
import gc
import importlib
import importlib.machinery
import sys
from typing import Any, Iterator


def import_tensorflow() -> None:
    """Imports TensorFlow without Keras; `tf.keras` imports that when it is asked for.

    TensorFlow imports Keras if it is there, and Keras pandas, scikit-learn and matplotlib. Its own
    copy of Keras imports h5py and SciPy, for models that nothing here builds.
    """
    is_enabled = gc.isenabled()
    gc.disable()  # An eighth of the import would be searching its new modules for garbage.
    try:
        with hidden("keras", "h5py", "scipy"):
            importlib.import_module("tensorflow")
        gc.freeze()
    finally:
        if is_enabled:
            gc.enable()


@contextlib.contextmanager
def hidden(*packages: str) -> Iterator[None]:
    """While entered, packages that are not imported yet seem not to be installed."""
    modules: Any = sys.modules
    missing = dict.fromkeys(package for package in packages if package not in modules)
    modules.update(missing)  # None is Python's mark of no such module.
    try:
        yield
    finally:
        for package in missing:
            del modules[package]


@contextlib.contextmanager
def docstrings() -> Iterator[None]:
    """While entered, `python -OO` imports modules with their docstrings, which some edit."""
    loader: Any = importlib.machinery.SourceFileLoader
    original = loader.get_code
    if sys.flags.optimize > 1:
        loader.get_code = _compile_with_docstrings
    try:
        yield
    finally:
        loader.get_code = original


def _compile_with_docstrings(loader: Any, fullname: str) -> Any:
    path = loader.get_filename(fullname)
    return compile(loader.get_data(path), path, "exec", dont_inherit=True, optimize=1)
