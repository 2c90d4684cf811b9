"""Reads Parquet files and folders of `Dataset.save_to_disk` as Arrow tables, through pyarrow."""

import contextlib
import importlib
import json
import os
from typing import Any, Callable, Iterator, List, Tuple

from adapter_bert.files import gfile, json_objects
from adapter_bert.shell import extras
from adapter_bert.shell.errors import UserError

_STATE = "state.json"  # Names a Dataset's files.
_INFO = "dataset_info.json"
_ROWS_PER_PART = 1 << 14
_BYTES_PER_READ = 1 << 20  # Of each column; otherwise a remote file's row groups are held whole.


def is_arrow(path: str) -> bool:
    """Returns whether a path is one of a Parquet file or of a Dataset's folder."""
    return path.endswith(".parquet") or is_dataset(path)


def is_dataset(path: str) -> bool:
    """Returns whether a path is a folder of `Dataset.save_to_disk`."""
    return gfile.exists(os.path.join(path, _STATE))


def read_parts(path: str) -> Iterator[Any]:
    """Yields the pyarrow.Tables of parts of a file or folder, so that memory does not grow with it.

    Of a folder, the schema's metadata has the Dataset's features, with the names of its labels.

    Raises:
      UserError: pyarrow is missing, or a file is missing or damaged.
    """
    try:
        pyarrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:  # It may need a newer NumPy.
        command = extras.install_command("data")
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{path} needs pyarrow, which cannot be imported ({reason}); run {command}."
        ) from None

    def read_file(file: str, batches_of: Callable, name: str, metadata: Any = None) -> Iterator:
        try:
            with _opened(file, pyarrow) as source:
                batches, schema = batches_of(source)
                schema = schema.with_metadata(metadata) if metadata else schema
                for batch in batches:
                    yield pyarrow.Table.from_batches([batch]).cast(schema)
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise UserError(f"{file} is not a valid {name} file ({reason}).") from error

    def rows_of_parquet(source: Any) -> Tuple[Iterator, Any]:
        file = parquet.ParquetFile(source, buffer_size=_BYTES_PER_READ, pre_buffer=False)
        return file.iter_batches(_ROWS_PER_PART), file.schema_arrow

    def rows_of_stream(source: Any) -> Tuple[Iterator, Any]:
        stream = pyarrow.ipc.open_stream(source)
        return iter(stream), stream.schema

    if not is_dataset(path):
        yield from read_file(path, rows_of_parquet, "Parquet")
        return
    state = json_objects.read_object(os.path.join(path, _STATE))
    files = state.get("_data_files")
    names: List[Any] = [file.get("filename") for file in files or () if isinstance(file, dict)]
    has_indices = state.get("_indices_data_files")  # Of old versions: the rows in another order.
    if not names or not all(isinstance(name, str) for name in names) or has_indices:
        raise UserError(
            f"{os.path.join(path, _STATE)}: expected the names of a Dataset's files in _data_files"
            " alone; save it again with a newer version of datasets."
        )
    info, metadata = os.path.join(path, _INFO), None
    if gfile.exists(info):
        features = json_objects.read_object(info).get("features") or {}
        metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    for name in names:
        file = os.path.join(path, os.path.basename(name))
        yield from read_file(file, rows_of_stream, "Arrow", metadata)


@contextlib.contextmanager
def _opened(file: str, pyarrow: Any) -> Iterator[Any]:
    """Yields what pyarrow reads a file from, in parts."""
    if gfile.is_remote(file):
        with gfile.convert_read_errors(file), gfile.open_in_parts(file) as source:
            yield source
        return
    with gfile.convert_read_errors(file), gfile.open_regular(file):
        pass
    yield pyarrow.memory_map(file)
