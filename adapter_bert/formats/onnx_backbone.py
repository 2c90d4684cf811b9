"""A pretrained encoder as one ONNX file, which programs read that have no TensorFlow.

`backbone.onnx` lies beside the checkpoint or, where that folder cannot be written, in the cache
folder. Its initializers are the checkpoint's tensors under their names, and it has no nodes: the
graphs around them differ from adapter to adapter. Its metadata hold the fingerprint, and the digest
of the checkpoint that it was converted from, so that a replaced checkpoint is converted again.
"""

import importlib.util
import os
import posixpath
import subprocess
import sys
import time
from typing import Any, Dict, Iterator, NamedTuple, Optional

import numpy as np

from adapter_bert.common import configs, errors, files, model_variables, paths
from adapter_bert.common.errors import UserError

FILE = "backbone.onnx"
FORMAT = "adapter-bert backbone 1"
OPSET, IR_VERSION = 17, 8  # What ONNX Runtime 1.17 reads, and each later one.

_MAX_BYTES = (1 << 31) - (1 << 20)  # Of a protocol buffer, and of what is not tensors in this one.


class Backbone(NamedTuple):
    """The tensors of an encoder.

    Attributes:
      fingerprint: see `model_variables.fingerprint`.
      tensors: dict from the names of `model_variables.encoder_shapes` to float32 arrays.
    """

    fingerprint: str
    tensors: Dict[str, np.ndarray]


def load(
    init_checkpoint: str, config: configs.BertConfig, flag: str = "--init_checkpoint"
) -> Backbone:
    """Reads a pretrained encoder, which is converted first if it was not yet.

    To convert takes TensorFlow: in this process where it is imported, in another one elsewhere.

    Args:
      init_checkpoint: prefix of the checkpoint. The checkpoint itself may be missing where its
        `backbone.onnx` lies in the folder.
      config: `configs.BertConfig`.
      flag: what errors call the checkpoint.

    Returns:
      `Backbone`.

    Raises:
      UserError: there is no such checkpoint, or it is another BERT's; or it is not converted, and
        this Python has no TensorFlow.
    """
    configs.check_config(config)
    digest, where = _checkpoint_digest(init_checkpoint), f"{flag} {init_checkpoint}"
    for path in _paths(init_checkpoint, digest):
        backbone = _read(path, digest, config)
        if backbone:
            return backbone
        if digest is None and files.exists(path):
            raise UserError(
                f"{path} is damaged or no file of this program, and there is no checkpoint"
                f" {init_checkpoint} to convert again."
            )
    path = _convert(init_checkpoint, config, where)
    backbone = _read(path, digest, config)
    if backbone is None:
        raise UserError(f"{where} changed while it was converted to {path}; start again.")
    return backbone


def write(init_checkpoint: str, config: configs.BertConfig, flag: str = "--init_checkpoint") -> str:
    """Converts a checkpoint; the file is written atomically. Needs TensorFlow.

    Args:
      init_checkpoint, config, flag: as of `load`.

    Returns:
      The path, beside the checkpoint or in the cache folder.

    Raises:
      UserError: the checkpoint is missing, damaged or another BERT's; neither folder can be
        written.
    """
    from adapter_bert.formats import checkpoints

    checkpoints.check_encoder(init_checkpoint, config, flag)
    reader, where = checkpoints.open_checkpoint(init_checkpoint, flag), f"{flag} {init_checkpoint}"
    tensors = {
        name: checkpoints.read_tensor(reader, name, where)
        for name in model_variables.encoder_shapes(config)
    }
    digest = _checkpoint_digest(init_checkpoint)
    content = _to_bytes(tensors, config, digest or "", where)
    first, *others = _paths(init_checkpoint, digest)
    for path in (first, *others):
        try:
            files.makedirs(posixpath.dirname(path) or ".")
            files.write_atomically(path, content)
            return path
        except (OSError, UserError):
            if path == (first, *others)[-1]:
                raise
    raise AssertionError


def _paths(init_checkpoint: str, digest: Optional[str]) -> Iterator[str]:
    """Yields where the file may lie: beside the checkpoint, then in the cache folder."""
    if not files.is_remote(init_checkpoint):
        yield posixpath.join(posixpath.dirname(init_checkpoint), FILE)
    if digest:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        yield os.path.join(cache, "adapter-bert", digest[:16], FILE)


def _checkpoint_digest(init_checkpoint: str) -> Optional[str]:
    """SHA-256 of a checkpoint's index, which holds a checksum of each tensor; None without one."""
    for path in (init_checkpoint + ".index", init_checkpoint):
        if files.exists(path) and not files.isdir(path):
            return files.sha256(path)
    return None


def _to_bytes(
    tensors: Dict[str, np.ndarray], config: configs.BertConfig, digest: str, where: str
) -> bytes:
    import onnx

    if sum(value.nbytes for value in tensors.values()) > _MAX_BYTES:
        raise UserError(f"{where}: an ONNX file holds at most 2 GB, which this BERT exceeds.")
    initializers = [
        onnx.numpy_helper.from_array(np.asarray(value, "<f4", order="C"), name)
        for name, value in tensors.items()
    ]
    graph = onnx.helper.make_graph([], "backbone", [], [], initializers)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)])
    model.ir_version = IR_VERSION
    fingerprint = model_variables.fingerprint(tensors.__getitem__, config)
    onnx.helper.set_model_props(
        model, {"format": FORMAT, "fingerprint": fingerprint, "checkpoint": digest}
    )
    return model.SerializeToString()


def _read(path: str, digest: Optional[str], config: configs.BertConfig) -> Optional[Backbone]:
    """The `Backbone` in a file; None if there is none, or a damaged one or another checkpoint's."""
    import onnx
    from google.protobuf import message

    try:
        with files.open_file(path, "rb") as reader:
            model = onnx.ModelProto.FromString(reader.read())
        tensors = {tensor.name: _to_array(tensor) for tensor in model.graph.initializer}
    except (OSError, ValueError, message.DecodeError):
        return None
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    if metadata.get("format") != FORMAT or digest not in (None, metadata.get("checkpoint")):
        return None
    _check_shapes(tensors, config, path)
    if model_variables.fingerprint(tensors.__getitem__, config) != metadata.get("fingerprint"):
        return None
    return Backbone(metadata["fingerprint"], tensors)


def _to_array(tensor: Any) -> np.ndarray:
    return np.frombuffer(tensor.raw_data, "<f4").reshape(tensor.dims)


def _check_shapes(tensors: Dict[str, np.ndarray], config: configs.BertConfig, path: str) -> None:
    """Raises UserError unless tensors are those of a config's encoder."""
    actual = {name: value.shape for name, value in tensors.items()}
    expected = model_variables.encoder_shapes(config)
    for name in sorted({*actual, *expected}):
        if actual.get(name) != expected.get(name):
            shapes = [list(each[name]) if name in each else None for each in (actual, expected)]
            raise UserError(
                f"{path} is a BERT of another size: its {name} has the shape {shapes[0]},"
                f" bert_config.json asks for {shapes[1]}."
            )


def _convert(init_checkpoint: str, config: configs.BertConfig, where: str) -> str:
    """Writes the file, in another process if TensorFlow is not imported; returns its path."""
    start = time.monotonic()
    if sys.modules.get("tensorflow"):
        path = write(init_checkpoint, config, where.split(" ")[0])
    else:
        path = _convert_elsewhere(init_checkpoint, config, where)
    print(
        f"Converted {init_checkpoint} to {path} in {time.monotonic() - start:.1f} s; this is done"
        " once.",
        file=sys.stderr,
    )
    return path


def _convert_elsewhere(init_checkpoint: str, config: configs.BertConfig, where: str) -> str:
    if importlib.util.find_spec("tensorflow") is None:
        raise UserError(
            f"{where} has no {FILE} yet, and only a Python with TensorFlow can convert it: run"
            " `python convert_checkpoint.py to_onnx BERT_DIR` in one."
        )
    environment = {**os.environ, "PYTHONPATH": paths.PROJECT, "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = subprocess.run(
        [sys.executable, "-m", __name__, init_checkpoint, where.split(" ")[0]],
        input=config.to_json_string(),
        capture_output=True,
        text=True,
        env=environment,
    )
    if process.returncode:
        lines = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
        raise UserError(lines[-1].replace("Error: ", "", 1))
    return process.stdout.splitlines()[-1]


def _main() -> None:
    """Converts the checkpoint that the command line names; its config comes by stdin."""
    init_checkpoint, flag = sys.argv[1:]
    config = configs.BertConfig.from_dict(files.parse_json(sys.stdin.read()))
    print(write(init_checkpoint, config, flag))


if __name__ == "__main__":
    sys.exit(errors.exit_code(_main))
