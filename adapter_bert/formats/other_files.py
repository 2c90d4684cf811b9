"""Describes files of other formats, for error messages."""

import codecs
import os
import zipfile

from adapter_bert.files import gfile
from adapter_bert.formats import pytorch

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "an image (PNG)"),
    (b"\xff\xd8\xff", "an image (JPEG)"),
    (b"GIF8", "an image (GIF)"),
    (b"%PDF-", "a PDF document"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, such as Keras writes"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x7fELF", "a program"),
    (b"\x1f\x8b", "a file compressed with gzip"),
    (b"BZh", "a file compressed with bzip2"),
    (b"\xfd7zXZ\0", "a file compressed with xz"),
    (b"(\xb5/\xfd", "a file compressed with zstd"),
)
_EXPECTED = (
    "expected a task adapter, a run's output_dir, a BERT, an AdapterHub adapter, or a checkpoint's"
    " prefix"
)


def describe(path: str) -> str:
    """Returns a phrase such as "is a text file, not a checkpoint" for any path."""
    if not gfile.exists(path):
        return f"does not exist, and is not the prefix of a checkpoint; {_EXPECTED}"
    if gfile.isdir(path):
        return f"is a folder that holds {_content(path)}; {_EXPECTED}"
    return f"is {kind(path)}, not a checkpoint"


def _content(folder: str) -> str:
    names = sorted(gfile.listdir(folder))
    if not names:
        return "nothing"
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def kind(path: str) -> str:
    """Returns what a file is, such as "a text file", by its first bytes."""
    try:
        with gfile.open_regular(path) as reader:
            start = reader.read(1024)
    except OSError as error:
        return f"unreadable ({gfile.reason(error)})"
    for magic, described in _MAGIC:
        if start.startswith(magic):
            return described
    if pytorch.matches(path):
        return "a PyTorch file"
    if not gfile.is_remote(path) and zipfile.is_zipfile(path):
        return "a ZIP archive"
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= gfile.size(path):
        return "a safetensors file without its config"
    if start[257:262] == b"ustar":
        return "a tar archive"
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        text = "\0"
    if not all(char.isprintable() or char.isspace() for char in text):
        return "a damaged or unknown file"
    if not text:
        return "an empty file"
    return "a JSON file" if os.path.splitext(path)[1] == ".json" else "a text file"
