"""Makes a clone a package: if it is called `bert`, `from bert import modeling` works as with BERT.

Every script and module of this folder is a submodule, and the same object that scripts import:
`bert.modeling is modeling`. All other code is in the package `adapter_bert`.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class _AliasFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes `<clone>.NAME` the same object as the module NAME, for each module of the folder."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        parent, _, name = fullname.rpartition(".")
        if parent != __name__ or not os.path.exists(os.path.join(_FOLDER, name + ".py")):
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: Any) -> Any:
        module = importlib.import_module(spec.name.rpartition(".")[2])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: Any) -> None:
        """Restores the module's own spec; the module has already been executed."""
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, _AliasFinder())
if _FOLDER not in sys.path:
    sys.path.append(_FOLDER)
if __name__ == "adapter_bert":  # The clone has the name of the package in it: be that package too.
    _PACKAGE = os.path.join(_FOLDER, "adapter_bert")
    __path__.append(_PACKAGE)
    with open(os.path.join(_PACKAGE, "__init__.py"), encoding="utf-8") as _reader:
        exec(compile(_reader.read(), _reader.name, "exec"))
