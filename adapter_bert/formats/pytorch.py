"""Loads tensors from files that PyTorch's `torch.save` wrote, without PyTorch and safely.

Such a file holds a pickle: a program for a stack machine, which can call any function of any
module. `_Unpickler` admits only the names in `_NAMES`, which create values of this module, and
`_load` only the instructions that `torch.save` writes. So no code of the file is executed.

    PyTorch 1.6 and later   a zip file: <folder>/data.pkl, the pickle; <folder>/data/<key>, values
    earlier versions        five pickles, of which the fourth is the dict, followed by the values

Declared sizes are compared with the length of the file before memory is allocated.
"""

import io
import pickle
import pickletools
import zipfile
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from adapter_bert.files import gfile
from adapter_bert.formats.bert import Tensors
from adapter_bert.shell.errors import UserError

_ZIP_MAGIC = b"PK\x03\x04"
_LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."

# Of a pickle; a BERT-Large with adapters has some 30,000. Python hashes nested tuples, which may be
# keys, by recursion in C: 200,000 levels overflow the stack.
_MAX_INSTRUCTIONS = 80_000
# The instructions that `torch.save` writes, by their codes in `pickletools`.
_OPCODES = "\x80(N\x88\x89JKM\x8aGX}])t\x85\x86\x87qrhjaesubcQR."


def decode_bfloat16(data: bytes) -> np.ndarray:
    """Returns bfloat16 values as a float32 array; they are the upper halves of float32 values."""
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)


class _Type(NamedTuple):
    """Describes a dtype: its size in bytes, and a decoder to float32 unless it is unsupported."""

    size: int
    decode: Optional[Callable[[bytes], np.ndarray]]


_STORAGES = {
    "FloatStorage": _Type(4, lambda data: np.frombuffer(data, "<f4")),
    "HalfStorage": _Type(2, lambda data: np.frombuffer(data, "<f2").astype(np.float32)),
    "BFloat16Storage": _Type(2, decode_bfloat16),
    **dict.fromkeys(("DoubleStorage", "LongStorage"), _Type(8, None)),
    "IntStorage": _Type(4, None),
    "ShortStorage": _Type(2, None),
    **dict.fromkeys(("CharStorage", "ByteStorage", "BoolStorage"), _Type(1, None)),
}


class _Storage(NamedTuple):
    """Identifies an array of values of one dtype, which several tensors may share."""

    type: _Type
    key: str
    length: int


class _Tensor(NamedTuple):
    """Describes a view of a storage; offset and strides are in values, not bytes."""

    storage: _Storage
    offset: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]


class _Function(NamedTuple):
    """Wraps a function that a pickle may call; a pickle cannot change attributes of a tuple."""

    apply: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.apply(*arguments)


class _StateDict(dict):
    """A dict that ignores the attributes of a model's state: the versions of its layers."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        pass


class _RefusedError(ValueError):
    """Reports a file without a dict of tensors by `torch.save`; the text completes "it ..."."""


def read(path: str, ignored: Sequence[str] = ()) -> Tensors:
    """Loads a dict of tensors that `torch.save` wrote; executes no code from it.

    Args:
      path: the file.
      ignored: names of tensors to skip.

    Returns:
      A dict from names to float32 arrays, which may share memory.

    Raises:
      UserError: the file is unreadable, damaged, or not a dict of tensors; or a tensor is not
        float32, float16 or bfloat16.
    """
    content = gfile.read_bytes(path, f"{path}:")
    try:
        if content.startswith(_LEGACY_MAGIC):
            return _tensors(*_read_legacy(content), ignored)
        if content.startswith(_ZIP_MAGIC):
            return _tensors(*_read_zip(content), ignored)
        problem = "does not begin like one"
    except _RefusedError as error:
        problem = str(error)
    except Exception as error:  # A damaged pickle or zip file raises errors of any type.
        problem = f"is damaged ({type(error).__name__}: {error})"
    raise UserError(f"{path}: expected a dict of tensors written by torch.save, but it {problem}.")


def _tensors(
    state_dict: Any, read_values: Callable[[str], bytes], ignored: Sequence[str]
) -> Tensors:
    """Returns the tensors of a dict as arrays."""
    if not isinstance(state_dict, dict):
        raise _RefusedError("holds another object")
    decoded: Dict[str, np.ndarray] = {}
    result = {}
    for name, tensor in state_dict.items():
        if not isinstance(name, str):
            raise _RefusedError("has a dict whose keys are not strings")
        if name in ignored:
            continue
        if not isinstance(tensor, _Tensor):
            raise _RefusedError(f"holds {name[:100]!r}, which is not a tensor")
        storage = tensor.storage
        if storage.type.decode is None:
            raise _RefusedError(f"holds {name[:100]!r}, which is not float32, float16 or bfloat16")
        if storage.key not in decoded:
            content = read_values(storage.key)
            if len(content) != storage.length * storage.type.size:
                raise _RefusedError(f"has {len(content):,} bytes of values for {name[:100]!r}")
            decoded[storage.key] = storage.type.decode(content)
        # The stride of an axis of size 1 has no effect and may be any number.
        strides = [4 * stride if size > 1 else 0 for size, stride in zip(*tensor[2:])]
        flat, offset = decoded[storage.key], 4 * tensor.offset
        # NumPy raises an error for a view that is not within `flat`.
        result[name] = np.ndarray(tensor.shape, np.float32, flat, offset, strides)
    # Tied tensors share a storage; any number of them would fill the memory when they are copied.
    if sum(map(np.size, result.values())) > 2 * sum(map(np.size, decoded.values())):
        raise _RefusedError("holds too many tensors that share their values")
    return result


def _read_zip(content: bytes) -> Tuple[Any, Callable[[str], bytes]]:
    """Returns the object in a zip file's pickle, and a function from keys to storages' values."""
    archive = zipfile.ZipFile(io.BytesIO(content))
    pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise _RefusedError(f"has {len(pickles)} pickles in its zip file")
    root = pickles[0][: -len("data.pkl")]
    remaining = len(content)  # Overlapping entries could exceed the size of the file.

    def read_entry(name: str) -> bytes:
        nonlocal remaining
        entry = archive.getinfo(root + name)
        remaining -= entry.file_size
        if entry.compress_type != zipfile.ZIP_STORED or remaining < 0:
            raise _RefusedError("is compressed, or has overlapping entries")
        return archive.read(entry)

    if root + "byteorder" in archive.namelist() and read_entry("byteorder") != b"little":
        raise _RefusedError("was written on a big-endian machine")
    return _load(io.BytesIO(read_entry("data.pkl")))[0], lambda key: read_entry(f"data/{key}")


def _read_legacy(content: bytes) -> Tuple[Any, Callable[[str], bytes]]:
    """Returns the same as `_read_zip`, for a file of PyTorch before 1.6."""
    stream = io.BytesIO(content)
    stream.seek(len(_LEGACY_MAGIC))
    _, _, (state_dict, storages), (keys, _) = (_load(stream) for _ in range(4))
    values = {}
    for key in keys:
        if int.from_bytes(stream.read(8), "little") != storages[key].length:
            raise _RefusedError("lists values that do not belong to a tensor")
        values[key] = stream.read(storages[key].length * storages[key].type.size)
    if stream.read(1):
        raise _RefusedError("has more bytes after its values")
    return state_dict, values.__getitem__


class _Unpickler(pickle.Unpickler):
    """Loads a dict of tensors, and refuses all names but those in `_NAMES`."""

    def __init__(self, stream: io.BytesIO):
        super().__init__(stream)
        self.storages: Dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Returns the value that stands for a name."""
        if f"{module}.{name}" not in _NAMES:
            raise _RefusedError(f"refers to {module}.{name}; nothing was executed")
        return _NAMES[f"{module}.{name}"]

    def persistent_load(self, fields: Any) -> _Storage:
        """Returns the storage that a pickle refers to: (tag, type, key, device, length[, view])."""
        tag, kind, key, _, length, *view = fields
        is_length = type(length) is int and length >= 0
        if tag != "storage" or not isinstance(kind, _Type) or not is_length or any(view):
            raise _RefusedError("has an invalid reference to the values of a tensor")
        storage = _Storage(kind, key, length)
        if self.storages.setdefault(key, storage) != storage:
            raise _RefusedError("has two dtypes for the same values")
        return storage


def _load(stream: io.BytesIO) -> Tuple[Any, Dict[str, _Storage]]:
    """Returns the object in the next pickle, and the storages that it refers to by their keys."""
    begin = stream.tell()
    for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if count >= _MAX_INSTRUCTIONS:
            raise _RefusedError("has too many instructions in its pickle")
        # The highest index decides how much memory Python allocates.
        is_far = opcode.name == "LONG_BINPUT" and (argument or 0) >= _MAX_INSTRUCTIONS
        if opcode.code not in _OPCODES or is_far:
            raise _RefusedError(f"has the instruction {opcode.name} in its pickle")
    stream.seek(begin)
    unpickler = _Unpickler(stream)
    return unpickler.load(), unpickler.storages


def _new_tensor(
    storage: _Storage, offset: int, shape: Tuple[int, ...], strides: Tuple[int, ...], *_: Any
) -> _Tensor:
    """Returns a tensor; the other arguments are for gradients."""
    if not isinstance(storage, _Storage):
        raise _RefusedError("has an invalid tensor")
    return _Tensor(storage, offset, shape, strides)


_NAMES: Dict[str, Any] = {
    "collections.OrderedDict": _Function(lambda: _StateDict()),
    "torch._utils._rebuild_tensor": _Function(_new_tensor),
    "torch._utils._rebuild_tensor_v2": _Function(_new_tensor),
    "torch._utils._rebuild_parameter": _Function(lambda tensor, *_: tensor),
    **{f"torch.{name}": kind for name, kind in _STORAGES.items()},
}
