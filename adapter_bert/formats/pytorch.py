"""Loads tensors from files that PyTorch's `torch.save` wrote, without PyTorch and safely.

Such a file holds a pickle: a program for a stack machine, which can call any function of any
module. `_Machine` replaces Python's `pickle` and executes no code from the file. It supports only
the instructions that create a dict of tensors, and only the names in `_NAMES`, whose calls create
values of this module.

    PyTorch 1.6 and later   a zip file: <folder>/data.pkl, the pickle; <folder>/data/<key>, values
    earlier versions        five pickles, of which the fourth is the dict, followed by the values

Declared sizes are compared with the length of the file before memory is allocated.
"""

import io
import struct
import zipfile
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from adapter_bert.files import gfile
from adapter_bert.formats.bert import Tensors, count_text
from adapter_bert.shell.errors import UserError

_ZIP_MAGIC = b"PK\x03\x04"
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    ValueError,
    OSError,
    EOFError,
    RuntimeError,  # Encrypted, or NotImplementedError.
    OverflowError,
    struct.error,
)
_LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_LEGACY_VERSION = 1001

# Limits memory: an instruction of one byte can allocate an object. A BERT-Large with adapters has
# some 30,000.
_MAX_INSTRUCTIONS = 1_000_000
_MAX_RANK = 8
_INT_LIMIT = 1 << 63


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
    "DoubleStorage": _Type(8, None),
    "LongStorage": _Type(8, None),
    "IntStorage": _Type(4, None),
    "ShortStorage": _Type(2, None),
    "CharStorage": _Type(1, None),
    "ByteStorage": _Type(1, None),
    "BoolStorage": _Type(1, None),
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


class _Mark:
    """Marks a position on the stack, as pickle's instruction MARK."""


class _RefusedError(ValueError):
    """Reports a file without a dict of tensors by `torch.save`; the text completes "it ..."."""


def matches(path: str) -> bool:
    """Returns whether a path is a file written by `torch.save`."""
    if gfile.isdir(path) or not gfile.exists(path):
        return False
    with gfile.convert_read_errors(path), gfile.open_regular(path) as reader:
        start = reader.read(len(_LEGACY_MAGIC))
    if start == _LEGACY_MAGIC:
        return True
    if not start.startswith(_ZIP_MAGIC) or gfile.is_remote(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/data.pkl") for name in archive.namelist())
    except _ZIP_ERRORS:
        return False


def describe(path: str, argument: str) -> List[str]:
    """Returns lines that describe a file for people; raises UserError as `read` does."""
    del argument
    tensors = read(path)
    names = sorted(tensors)
    return [
        f"PyTorch file: {count_text(tensors)}",
        f"Tensors: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}",
    ]


def read(path: str, ignored: Sequence[str] = ()) -> Tensors:
    """Loads a dict of tensors that `torch.save` wrote; executes no code from it.

    Args:
      path: the file.
      ignored: names of tensors to skip.

    Returns:
      A dict from names to float32 arrays, which are read-only and may share memory.

    Raises:
      UserError: the file is unreadable, damaged, or not a dict of tensors; or a tensor is not
        float32, float16 or bfloat16.
    """
    content = gfile.read_bytes(path, f"{path}:")
    try:
        if content.startswith(_LEGACY_MAGIC):
            state_dict, values = _read_legacy(content)
        elif content.startswith(_ZIP_MAGIC):
            state_dict, values = _read_zip(content)
        else:
            raise _RefusedError("does not begin like one")
        return _tensors(state_dict, values, ignored)
    except _RefusedError as error:
        raise UserError(
            f"{path}: expected a dict of tensors written by torch.save, but it {error}."
        ) from None


def _tensors(
    state_dict: Any, values: Callable[[_Storage], bytes], ignored: Sequence[str]
) -> Tensors:
    """Returns the tensors of a dict as arrays."""
    if not isinstance(state_dict, dict):
        raise _RefusedError("holds another object")
    decoded: Dict[str, np.ndarray] = {}
    result = {}
    for name, tensor in state_dict.items():
        if name in ignored:
            continue
        if not isinstance(tensor, _Tensor):
            raise _RefusedError(f"holds {name[:100]!r}, which is not a tensor")
        storage = tensor.storage
        if storage.type.decode is None:
            raise _RefusedError(f"holds {name[:100]!r}, which is not float32, float16 or bfloat16")
        _check_view(name, tensor)
        if storage.key not in decoded:
            decoded[storage.key] = storage.type.decode(values(storage))
        flat = decoded[storage.key][tensor.offset :]
        # The stride of an axis of size 1 has no effect and may be any number.
        strides = [4 * stride if size > 1 else 0 for size, stride in zip(*tensor[2:])]
        result[name] = np.lib.stride_tricks.as_strided(flat, tensor.shape, strides, writeable=False)
    # Tied tensors share a storage; any number of them would fill the memory when they are copied.
    if sum(map(np.size, result.values())) > 2 * sum(map(np.size, decoded.values())):
        raise _RefusedError("holds too many tensors that share their values")
    return result


def _check_view(name: str, tensor: _Tensor) -> None:
    """Raises _RefusedError unless a tensor lies within its storage."""
    elements, last = 1, tensor.offset
    for size, stride in zip(tensor.shape, tensor.strides):
        elements *= size
        last += (size - 1) * stride
    if elements < 1 or max(elements, last + 1) > tensor.storage.length:
        raise _RefusedError(f"holds {name[:100]!r}, whose shape does not fit its values")


def _read_zip(content: bytes) -> Tuple[Any, Callable[[_Storage], bytes]]:
    """Returns the object in a zip file's pickle, and a function that reads a storage."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except _ZIP_ERRORS as error:
        raise _RefusedError(f"is a damaged zip file ({error})") from None
    entries: Dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        if entry.filename in entries:
            raise _RefusedError(f"has {entry.filename[:100]!r} twice")
        entries[entry.filename] = entry
    roots = [name[: -len("data.pkl")] for name in entries if name.endswith("/data.pkl")]
    if len(roots) != 1:
        raise _RefusedError(f"has {len(roots)} pickles in its zip file")
    (root,) = roots
    remaining = len(content)  # Overlapping entries could exceed the size of the file.

    def read_entry(name: str) -> bytes:
        nonlocal remaining
        if root + name not in entries:
            raise _RefusedError(f"lacks {name[:100]!r}")
        entry = entries[root + name]
        remaining -= entry.file_size
        if entry.compress_type != zipfile.ZIP_STORED or remaining < 0:
            raise _RefusedError("is compressed, or has overlapping entries")
        try:
            return archive.read(entry)
        except _ZIP_ERRORS as error:
            raise _RefusedError(f"is a damaged zip file ({error})") from None

    if root + "byteorder" in entries and read_entry("byteorder") != b"little":
        raise _RefusedError("was written on a big-endian machine")

    def read_storage(storage: _Storage) -> bytes:
        data = read_entry(f"data/{storage.key}")
        if len(data) != storage.length * storage.type.size:
            raise _RefusedError(f"has {len(data)} bytes in data/{storage.key[:100]}")
        return data

    machine = _Machine(read_entry("data.pkl"))
    return machine.run(), read_storage


def _read_legacy(content: bytes) -> Tuple[Any, Callable[[_Storage], bytes]]:
    """Returns the same as `_read_zip`, for a file of PyTorch before 1.6."""
    machine = _Machine(content, len(_LEGACY_MAGIC))
    version, system, state_dict, keys = (machine.run() for _ in range(4))
    if version != _LEGACY_VERSION or not isinstance(system, dict):
        raise _RefusedError("has an unknown version")
    if system.get("little_endian") is not True:
        raise _RefusedError("was written on a big-endian machine")
    if not isinstance(keys, list):
        raise _RefusedError("does not list its values")
    position, values_by_key = machine.position, {}
    for key in keys:
        storage = machine.storages.get(key) if isinstance(key, str) else None
        if storage is None or key in values_by_key:
            raise _RefusedError("lists values that do not belong to a tensor")
        begin, end = position + 8, position + 8 + storage.length * storage.type.size
        if end > len(content) or content[position:begin] != struct.pack("<q", storage.length):
            raise _RefusedError("ends before its values end")
        values_by_key[key] = content[begin:end]
        position = end
    if position != len(content):
        raise _RefusedError("has more bytes after its values")

    def read_storage(storage: _Storage) -> bytes:
        if storage.key not in values_by_key:
            raise _RefusedError("lacks the values of a tensor")
        return values_by_key[storage.key]

    return state_dict, read_storage


class _Machine:
    """Runs pickles of dicts of tensors on a stack machine.

    Args:
      content: bytes.
      position: offset of the first pickle.

    Attributes:
      position: offset after the last pickle that ran.
      storages: dict from keys to the storages that the pickles refer to.
    """

    def __init__(self, content: bytes, position: int = 0):
        self.position = position
        self.storages: Dict[str, _Storage] = {}
        self._content = content
        self._instructions = 0
        self._stack: List[Any] = []
        self._memo: Dict[int, Any] = {}

    def run(self) -> Any:
        """Returns the object in the next pickle; raises _RefusedError if it is not supported."""
        self._stack, self._memo = [], {}
        while True:
            self._instructions += 1
            if self._instructions > _MAX_INSTRUCTIONS:
                raise _RefusedError("has too many instructions in its pickle")
            code = self._read(1)
            if code == b".":
                return self._pop()
            if code not in _INSTRUCTIONS:
                raise _RefusedError(f"has the instruction {code!r} in its pickle")
            _INSTRUCTIONS[code](self)

    def _read(self, length: int) -> bytes:
        end = self.position + length
        if end > len(self._content):
            raise _RefusedError("has a pickle that ends too early")
        data = self._content[self.position : end]
        self.position = end
        return data

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._read(struct.calcsize(form)))[0]

    def _text(self, data: bytes) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise _RefusedError("has a pickle with a string that is not UTF-8") from None

    def _line(self) -> str:
        end = self._content.find(b"\n", self.position, self.position + 200)
        if end < 0:
            raise _RefusedError("has an unterminated name in its pickle")
        line = self._read(end + 1 - self.position)
        return self._text(line[:-1])

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self, kind: Any = object) -> Any:
        value = self._stack.pop() if self._stack else _Mark()
        return self._checked(value, kind)

    def _top(self, kind: Any) -> Any:
        return self._checked(self._stack[-1] if self._stack else _Mark(), kind)

    def _checked(self, value: Any, kind: Any) -> Any:
        if isinstance(value, _Mark) or not isinstance(value, kind):
            raise _RefusedError("has an invalid pickle")
        return value

    def _pop_to_mark(self) -> List[Any]:
        for index in range(len(self._stack) - 1, -1, -1):
            if isinstance(self._stack[index], _Mark):
                items = self._stack[index + 1 :]
                del self._stack[index:]
                return items
        raise _RefusedError("has an invalid pickle")

    # ---- Instructions

    def _protocol(self) -> None:
        self._number("<B")  # Ignored: unknown instructions of a later protocol raise an error.

    def _mark(self) -> None:
        self._push(_Mark())

    def _long(self) -> None:
        value = int.from_bytes(self._read(self._number("<B")), "little", signed=True)
        if not -_INT_LIMIT <= value < _INT_LIMIT:
            raise _RefusedError("has a number beyond 64 bits in its pickle")
        self._push(value)

    def _unicode(self) -> None:
        self._push(self._text(self._read(self._number("<I"))))

    def _tuple(self, length: Optional[int] = None) -> None:
        items = (
            self._pop_to_mark() if length is None else [self._pop() for _ in range(length)][::-1]
        )
        self._push(tuple(items))

    def _put(self, form: str) -> None:
        self._memo[self._number(form)] = self._top(object)

    def _get(self, form: str) -> None:
        index = self._number(form)
        if index not in self._memo:
            raise _RefusedError("has an invalid pickle")
        self._push(self._memo[index])

    def _append(self, items: List[Any]) -> None:
        self._top(list).extend(items)

    def _set(self, items: List[Any]) -> None:
        target = self._top(dict)
        if len(items) % 2 or not all(isinstance(key, str) for key in items[::2]):
            raise _RefusedError("has a dict whose keys are not strings")
        target.update(zip(items[::2], items[1::2]))

    def _build(self) -> None:
        self._pop()  # Attributes of a state_dict: the versions of its layers.
        self._top(dict)

    def _global(self) -> None:
        name = f"{self._line()}.{self._line()}"
        if name not in _NAMES:
            raise _RefusedError(f"refers to {name!r}, which is not allowed; nothing was executed")
        self._push(_NAMES[name])

    def _persistent(self) -> None:
        fields = self._pop(tuple)
        if len(fields) not in (5, 6) or fields[0] != "storage" or fields[5:] not in ((), (None,)):
            raise _RefusedError("has an invalid reference to the values of a tensor")
        _, kind, key, _, length = fields[:5]
        if not (isinstance(kind, _Type) and isinstance(key, str) and _is_size(length)):
            raise _RefusedError("has an invalid reference to the values of a tensor")
        storage = _Storage(kind, key, length)
        if self.storages.setdefault(key, storage) != storage:
            raise _RefusedError("has two dtypes for the same values")
        self._push(storage)

    def _reduce(self) -> None:
        arguments, function = self._pop(tuple), self._pop()
        if not isinstance(function, _Function):
            raise _RefusedError("calls an object that is not a function; nothing was executed")
        self._push(function.apply(arguments))


class _Function(NamedTuple):
    """Wraps a function of this module that a pickle may call."""

    apply: Callable[[Tuple[Any, ...]], Any]


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def _new_dict(arguments: Tuple[Any, ...]) -> Dict[str, Any]:
    if arguments:
        raise _RefusedError("has a dict with arguments")
    return {}


def _new_tensor(arguments: Tuple[Any, ...]) -> _Tensor:
    """Returns a tensor from (storage, offset, shape, strides, ...); the rest is for gradients."""
    if not 4 <= len(arguments) <= 7:
        raise _RefusedError("has an invalid tensor")
    storage, offset, shape, strides = arguments[:4]
    if not (
        isinstance(storage, _Storage)
        and _is_size(offset)
        and isinstance(shape, tuple)
        and isinstance(strides, tuple)
        and len(shape) == len(strides) <= _MAX_RANK
        and all(map(_is_size, shape + strides))
    ):
        raise _RefusedError("has an invalid tensor")
    return _Tensor(storage, offset, shape, strides)


def _new_parameter(arguments: Tuple[Any, ...]) -> _Tensor:
    if len(arguments) != 3 or not isinstance(arguments[0], _Tensor):
        raise _RefusedError("has a parameter that is not a tensor")
    return arguments[0]


_NAMES: Dict[str, Any] = {
    "collections.OrderedDict": _Function(_new_dict),
    "torch._utils._rebuild_tensor": _Function(_new_tensor),
    "torch._utils._rebuild_tensor_v2": _Function(_new_tensor),
    "torch._utils._rebuild_parameter": _Function(_new_parameter),
    **{f"torch.{name}": kind for name, kind in _STORAGES.items()},
}

# The pickle instructions that `torch.save` writes, by opcode.
_INSTRUCTIONS: Dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": _Machine._protocol,
    b"(": _Machine._mark,
    b"N": lambda machine: machine._push(None),
    b"\x88": lambda machine: machine._push(True),
    b"\x89": lambda machine: machine._push(False),
    b"K": lambda machine: machine._push(machine._number("<B")),
    b"M": lambda machine: machine._push(machine._number("<H")),
    b"J": lambda machine: machine._push(machine._number("<i")),
    b"G": lambda machine: machine._push(machine._number(">d")),
    b"\x8a": _Machine._long,
    b"X": _Machine._unicode,
    b"}": lambda machine: machine._push({}),
    b"]": lambda machine: machine._push([]),
    b")": lambda machine: machine._push(()),
    b"t": _Machine._tuple,
    b"\x85": lambda machine: machine._tuple(1),
    b"\x86": lambda machine: machine._tuple(2),
    b"\x87": lambda machine: machine._tuple(3),
    b"q": lambda machine: machine._put("<B"),
    b"r": lambda machine: machine._put("<I"),
    b"h": lambda machine: machine._get("<B"),
    b"j": lambda machine: machine._get("<I"),
    b"a": lambda machine: machine._append([machine._pop()]),
    b"e": lambda machine: machine._append(machine._pop_to_mark()),
    b"s": lambda machine: machine._set([machine._pop(), machine._pop()][::-1]),
    b"u": lambda machine: machine._set(machine._pop_to_mark()),
    b"b": _Machine._build,
    b"c": _Machine._global,
    b"Q": _Machine._persistent,
    b"R": _Machine._reduce,
}
