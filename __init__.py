"""Makes a clone a package: if it is called `bert`, `from bert import modeling` works as with BERT.

Every script and module of this folder is a submodule, and the same object that scripts import:
`bert.modeling is modeling`. All other code is in the package `adapter_bert`.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))
if _FOLDER not in sys.path:
    sys.path.append(_FOLDER)
if __name__ == "adapter_bert":  # The clone has the name of the package in it: be that package.
    __file__ = os.path.join(_FOLDER, "adapter_bert", "__init__.py")
    __path__[:] = [os.path.dirname(__file__)]
    with open(__file__, encoding="utf-8") as _reader:
        exec(compile(_reader.read(), __file__, "exec"))
else:
    from adapter_bert.shell import clone

    clone.add_package(__name__)
