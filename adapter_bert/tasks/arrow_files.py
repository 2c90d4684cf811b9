"""Reads Parquet files and folders of `Dataset.save_to_disk` as Arrow tables, through pyarrow."""

import importlib
import json
import os
from typing import Any, List

from adapter_bert.files import gfile, json_objects
from adapter_bert.shell import extras
from adapter_bert.shell.errors import UserError

_STATE = "state.json"  # Names a Dataset's files.
_INFO = "dataset_info.json"


def is_arrow(path: str) -> bool:
    """Returns whether a path is one of a Parquet file or of a Dataset's folder."""
    return path.endswith(".parquet") or is_dataset(path)


def is_dataset(path: str) -> bool:
    """Returns whether a path is a folder of `Dataset.save_to_disk`."""
    return gfile.exists(os.path.join(path, _STATE))


def read(path: str) -> Any:
    """Returns the pyarrow.Table in a file or folder.

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

    def read_file(file: str, reader: Any, name: str) -> Any:
        content = gfile.read_bytes(file, file)
        try:
            return reader(pyarrow.BufferReader(content))
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise UserError(f"{file} is not a valid {name} file ({reason}).") from error

    if not is_dataset(path):
        return read_file(path, parquet.read_table, "Parquet")
    state = json_objects.read_object(os.path.join(path, _STATE))
    files = state.get("_data_files")
    names: List[Any] = [file.get("filename") for file in files or () if isinstance(file, dict)]
    has_indices = state.get("_indices_data_files")  # Of old versions: the rows in another order.
    if not names or not all(isinstance(name, str) for name in names) or has_indices:
        raise UserError(
            f"{os.path.join(path, _STATE)}: expected the names of a Dataset's files in _data_files"
            " alone; save it again with a newer version of datasets."
        )
    table = pyarrow.concat_tables(
        [
            read_file(
                os.path.join(path, os.path.basename(name)),
                lambda file: pyarrow.ipc.open_stream(file).read_all(),
                "Arrow",
            )
            for name in names
        ]
    )
    info = os.path.join(path, _INFO)
    if gfile.exists(info):
        features = json_objects.read_object(info).get("features") or {}
        metadata = {b"huggingface": json.dumps({"info": {"features": features}})}
        table = table.replace_schema_metadata(metadata)
    return table
