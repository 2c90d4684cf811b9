"""The files of extract_features.py: its input texts and its output files of layer outputs.

`InputExample`, `InputFeatures`, `read_examples` and `convert_examples_to_features` have the
interface of BERT's script. Neither texts nor outputs need to fit into memory.

Axes: N texts, T tokens, S positions, L requested layers, D hidden size.
"""

import contextlib
import dataclasses
import io
import json
import os
import posixpath
import re
import shutil
import tempfile
import types
import zipfile
from typing import Any, ContextManager, Dict, Iterable, Iterator, List, Optional, Tuple, Union

import numpy as np

from adapter_bert.files import atomic, gfile
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import classifier_features

POOLINGS = ("tokens", "cls", "mean")


@dataclasses.dataclass(eq=False)
class InputExample:
    """A text or a pair of texts.

    Attributes:
      unique_id: int, the index of its line, from 0.
      text_a: str.
      text_b: str, or None.
    """

    unique_id: int
    text_a: str
    text_b: Optional[str]


@dataclasses.dataclass(eq=False)
class InputFeatures:
    """The encoding of an example, as BERT reads it.

    Attributes:
      unique_id: int, the example's.
      tokens: list of str, with [CLS] and [SEP].
      input_ids, input_mask, input_type_ids: lists of S ints.
    """

    unique_id: int
    tokens: List[str]
    input_ids: List[int]
    input_mask: List[int]
    input_type_ids: List[int]


class TextFile:
    """The examples in a file: a line is a text, or a pair as in "text ||| text".

    The constructor reads and checks the file once; each iteration reads it again.

    Args:
      path: of a UTF-8 file.

    Attributes:
      fields: the names of an example's texts.

    Raises:
      UserError: the file cannot be read twice or is empty, or a line is blank, is not UTF-8 or has
        a NUL byte.
    """

    def __init__(self, path: str):
        self._path = path
        if gfile.is_remote(path):
            with gfile.convert_read_errors(f"--input_file={path}"):
                gfile.size(path)  # Iterating over a remote file hides its errors.
        elif gfile.exists(path) and not os.path.isfile(path):
            raise UserError(f"--input_file={path}: expected a regular file, as it is read twice.")
        is_pair = [example.text_b is not None for example in self]
        self._length = len(is_pair)
        self.fields = ("text", "text_b") if any(is_pair) else ("text",)
        if not self._length:
            raise UserError(f"--input_file={path}: the file is empty; expected one text per line.")

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[InputExample]:
        where = f"--input_file={self._path}"
        with gfile.convert_read_errors(where), gfile.open_file(self._path, "rb") as reader:
            for index, line in enumerate(reader):
                yield self._example(index, line)

    def _example(self, index: int, line: bytes) -> InputExample:
        where = f"--input_file={self._path}, line {index + 1}"
        if b"\0" in line:
            raise UserError(f"{where}: found a NUL byte, expected text in UTF-8.")
        try:
            text = line.decode("utf-8" if index else "utf-8-sig").strip()
        except UnicodeDecodeError as error:
            raise UserError(f"{where}: expected UTF-8 ({error.reason}).") from error
        if not text:
            raise UserError(f"{where}: the line is blank; expected one text per line.")
        pair = re.match(r"(.*) \|\|\| (.*)", text, re.DOTALL)
        return InputExample(index, *(pair.groups() if pair else (text, None)))


def read_examples(input_file: str, *, lazily: bool = False) -> Union[List[InputExample], TextFile]:
    """Returns the examples in a file: a list or, if `lazily`, a `TextFile`, with its errors."""
    texts = TextFile(input_file)
    return texts if lazily else list(texts)


def convert_examples_to_features(
    examples: Iterable[InputExample], seq_length: int, tokenizer: Any
) -> List[InputFeatures]:
    """Returns the features of examples: [CLS] text_a [SEP], or [CLS] text_a [SEP] text_b [SEP].

    Args:
      examples: `InputExample`s.
      seq_length: S; longer texts are truncated.
      tokenizer: has `tokenize(text)` and `convert_tokens_to_ids(tokens)`.

    Raises:
      UserError: S is too small for the special tokens.
    """
    return [_features_of(example, seq_length, tokenizer) for example in examples]


def _features_of(example: InputExample, seq_length: int, tokenizer: Any) -> InputFeatures:
    pair = classifier_features.truncated_tokens(example, seq_length, tokenizer)
    tokens, segment_ids = classifier_features.join_pair(*pair)
    padding = [0] * (seq_length - len(tokens))
    return InputFeatures(
        unique_id=example.unique_id,
        tokens=tokens,
        input_ids=list(tokenizer.convert_tokens_to_ids(tokens)) + padding,
        input_mask=[1] * len(tokens) + padding,
        input_type_ids=segment_ids + padding,
    )


class _JsonLines:
    """BERT's format: a JSON object per line, with a text's tokens or its pooled output."""

    def __init__(self, writer: Any, config: Any):
        self._writer, self._config = writer, config

    def write(self, features: InputFeatures, values: np.ndarray) -> None:
        # Rounding as float32 would not yield the nearest 6-digit decimal.
        values = np.round(values.astype(np.float64), 6).tolist()
        line: Dict[str, Any] = {"linex_index": features.unique_id}
        if self._config.pooling == "tokens":
            line["features"] = [
                {"token": token, "layers": self._layers(of_token)}
                for token, of_token in zip(features.tokens, values)
            ]
        else:
            line["layers"] = self._layers(values)
        self._writer.write((json.dumps(line) + "\n").encode("utf-8"))

    def finish(self) -> None:
        """Does nothing, as all rows are written."""

    def _layers(self, values: Any) -> List[Dict[str, Any]]:
        return [{"index": i, "values": each} for i, each in zip(self._config.layers, values)]


class _Array:
    """An array [N, L, D] in NumPy's format, written row by row."""

    def __init__(self, writer: Any, num_rows: int, shape: Tuple[int, ...]):
        self._writer = writer
        header = {"descr": "<f4", "fortran_order": False, "shape": (num_rows, *shape)}
        np.lib.format.write_array_header_1_0(writer, header)

    def write(self, features: InputFeatures, values: np.ndarray) -> None:
        del features
        self._writer.write(np.ascontiguousarray(values, "<f4").tobytes())

    def finish(self) -> None:
        """Does nothing, as all rows are written."""


class _Archive:
    """Arrays in NumPy's .npz format, spooled to a file because their shapes are known last."""

    def __init__(self, writer: Any, folder: str, config: Any, width: int):
        self._writer, self._config = writer, config
        self._shape = len(config.layers), width
        self._path = os.path.join(folder, "features")
        self._values = open(self._path, "wb")  # noqa: SIM115  Closed by `finish` or at exit.
        self._starts, self._ids = [0], []

    def write(self, features: InputFeatures, values: np.ndarray) -> None:
        with gfile.convert_write_errors(self._path):  # Its disk may be full, not the output's.
            self._values.write(np.ascontiguousarray(values, "<f4").tobytes())
        tokens = len(features.tokens)
        self._starts.append(self._starts[-1] + tokens)
        if self._config.pooling == "tokens":
            self._ids.append(np.array(features.input_ids[:tokens], np.int32))

    def finish(self) -> None:
        """Writes all arrays to the archive."""
        with gfile.convert_write_errors(self._path):
            self._values.close()
        num_rows = len(self._starts) - 1
        arrays = {"layers": np.array(self._config.layers, np.int32)}
        if self._config.pooling == "tokens":
            arrays["starts"] = np.array(self._starts, np.int64)
            arrays["token_ids"] = np.concatenate(self._ids)
            num_rows = self._starts[-1]

        def write(content: bytes) -> int:
            self._writer.write(content)
            return len(content)  # Remote files return None.

        # Hides `seek`, which remote files lack.
        stream: Any = types.SimpleNamespace(write=write, flush=lambda: None)
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, values in arrays.items():
                content = io.BytesIO()
                np.save(content, values)
                archive.writestr(name + ".npy", content.getvalue())
            with archive.open("features.npy", "w", force_zip64=True) as member:
                _Array(member, num_rows, self._shape)
                with open(self._path, "rb") as reader:
                    shutil.copyfileobj(reader, member, 1 << 20)


class FeatureWriter:
    """A context manager that writes a file of outputs atomically.

    Args:
      path: of the file; ending in .npy or .npz for arrays; any other means JSON lines.
      num_texts: N.
      config: has layers and pooling.
      hidden_size: D.

    Raises:
      UserError: the file cannot be written; raised by all methods.
    """

    def __init__(self, path: str, num_texts: int, config: Any, hidden_size: int):
        self._path, self._num_texts, self._config = path, num_texts, config
        self._hidden_size = hidden_size
        self._stack = contextlib.ExitStack()
        self._format: Any = None

    def __enter__(self) -> "FeatureWriter":
        with self._converted_errors():
            if gfile.isdir(self._path):
                raise IsADirectoryError("it is a folder")
            is_local = not gfile.is_remote(self._path)
            if is_local and gfile.exists(self._path) and not os.path.isfile(self._path):
                raise OSError("it is no regular file")
            folder = posixpath.dirname(self._path)
            if folder:
                gfile.makedirs(folder)
            file = self._stack.enter_context(atomic.atomic_file(self._path))
            if self._path.endswith(".npy"):
                shape = len(self._config.layers), self._hidden_size
                self._format = _Array(file, self._num_texts, shape)
            elif self._path.endswith(".npz"):
                folder = self._stack.enter_context(tempfile.TemporaryDirectory())
                self._format = _Archive(file, folder, self._config, self._hidden_size)
            else:
                self._format = _JsonLines(file, self._config)
        return self

    def write(self, features: InputFeatures, values: np.ndarray) -> None:
        """Writes one item of `encoder_features.extract`, in its order."""
        with self._converted_errors():
            self._format.write(features, values)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Optional[bool]:
        if kind:  # The error comes from the caller, not from this file.
            return self._stack.__exit__(kind, error, trace)
        with self._converted_errors(), self._stack:
            self._format.finish()
        return None

    def _converted_errors(self) -> ContextManager[None]:
        return gfile.convert_write_errors(f"--output_file={self._path}")
