"""In a clone, makes each of the root's modules one object under all its names.

`modeling`, `adapter_bert.modeling` and, if the clone is the package `bert`, `bert.modeling` are the
same, whichever is imported first. An installed package has the root's modules inside and does not
import this one.
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from typing import Any, Set

import adapter_bert

_NAME = adapter_bert.__name__
_ROOT = os.path.dirname(adapter_bert.PACKAGE)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module of the root under one of its other names.

    Attributes:
      packages: names of the packages that have the root's modules; "" stands for no package.
    """

    def __init__(self) -> None:
        self.packages: Set[str] = {"", _NAME}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        package, _, name = fullname.rpartition(".")
        file = os.path.join(_ROOT, name + ".py")
        if package not in self.packages or not os.path.exists(file):
            return None
        if package == _NAME:  # `adapter_bert.__path__` finds it unless it was imported as `name`.
            return self._alias(fullname, name) if _has_file(sys.modules.get(name), file) else None
        if not package:
            spec = importlib.machinery.PathFinder.find_spec(name)
            if spec is None or spec.origin != file:  # The user's own.
                return None
        return self._alias(fullname, f"{_NAME}.{name}")

    def _alias(self, fullname: str, name: str) -> importlib.machinery.ModuleSpec:
        return importlib.machinery.ModuleSpec(fullname, self, origin=name)

    def create_module(self, spec: Any) -> Any:
        """Returns the module, which may still be executed further up the stack."""
        module = importlib.import_module(spec.origin)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: Any) -> None:
        """Restores the module's own spec."""
        module.__spec__ = module.__spec__.loader_state


def _has_file(module: Any, file: str) -> bool:
    return os.path.abspath(getattr(module, "__file__", None) or "") == file


_finder = _Finder()
sys.meta_path.insert(0, _finder)


def add_package(name: str) -> None:
    """Gives the root's modules a further name, as submodules of the package `name`."""
    _finder.packages.add(name)
