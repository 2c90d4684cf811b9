"""Reads and writes safetensors files: 8 bytes of size, a JSON header of that size, the values."""

import hashlib
from typing import Dict, Iterable, NamedTuple, Optional, Sequence

import numpy as np
import safetensors
import safetensors.numpy

from adapter_bert.files import gfile, json_objects
from adapter_bert.formats import pytorch
from adapter_bert.formats.bert import Tensors
from adapter_bert.shell.errors import UserError

# From safetensors' dtypes to functions from little-endian bytes to float32 arrays [size].
_DECODERS = {
    "F32": lambda data: np.frombuffer(data, "<f4"),
    "F16": lambda data: np.frombuffer(data, "<f2").astype(np.float32),
    "BF16": pytorch.decode_bfloat16,
}


class Content(NamedTuple):
    """The content of a file.

    Attributes:
      tensors: dict from names, sorted, to float32 arrays.
      metadata: dict from str to str.
      sha256: of the file, in hexadecimal.
    """

    tensors: Tensors
    metadata: Dict[str, str]
    sha256: str


def read(
    path: str,
    where: str,
    dtypes: Iterable[str] = _DECODERS,
    ignored: Sequence[str] = (),
    max_bytes: Optional[int] = None,
) -> Content:
    """Loads a file of float32, float16 or bfloat16 tensors.

    Args:
      path: of the file.
      where: beginning of error messages.
      dtypes: the admitted ones.
      ignored: names of tensors to skip.
      max_bytes: maximum size of the values; None for any.

    Raises:
      UserError: the file is missing, damaged or too large, or a tensor has another dtype.
    """
    with gfile.convert_read_errors(where), gfile.open_regular(path) as reader:
        header_size = int.from_bytes(reader.read(8), "little")
        json_objects.check_json_size(header_size, f"{where}: its header")
        num_bytes = gfile.size(path) - 8 - header_size
        if max_bytes is not None and num_bytes > max_bytes:
            raise UserError(f"{where} has {num_bytes:,} bytes; expected at most {max_bytes:,}.")
        reader.seek(0)
        content = reader.read()
    tensors: Tensors = {}
    try:
        header = json_objects.parse_json(content[8 : 8 + header_size].decode("utf-8"))
        entries = dict(safetensors.deserialize(content))
        for name in sorted(entries.keys() - set(ignored)):  # Their order differs in each process.
            entry = entries[name]
            if entry["dtype"] not in dtypes:
                expected = " or ".join(dtypes)
                raise ValueError(f"expected {expected}, but {name} is {entry['dtype']}")
            tensors[name] = _DECODERS[entry["dtype"]](entry["data"]).reshape(entry["shape"])
    except (safetensors.SafetensorError, OverflowError, ValueError) as error:
        raise UserError(f"{where} is damaged or not supported ({error}).") from error
    metadata = header.get("__metadata__") or {}
    return Content(tensors, metadata, hashlib.sha256(content).hexdigest())


def write(path: str, tensors: Tensors) -> None:
    """Writes a file for PyTorch, whose loader requires the metadata "format"."""
    tensors = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    with gfile.open_file(path, "wb") as writer:
        writer.write(safetensors.numpy.save(tensors, metadata={"format": "pt"}))
