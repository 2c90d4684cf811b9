"""A pretrained encoder as an ONNX file, which programs can load without TensorFlow.

`backbone.onnx` is written next to the checkpoint or, if that folder is not writable, to the cache
folder. Its initializers are the checkpoint's tensors with their names. It has no nodes, because
each adapter has a graph of its own. Its metadata hold the fingerprint and the digest of the
checkpoint, so that a replaced checkpoint is converted again.
"""

import importlib.util
import os
import posixpath
import sys
import time
from typing import Any, Dict, Iterator, NamedTuple, Optional

import numpy as np
from absl import logging

from adapter_bert.files import atomic, gfile, json_objects, paths
from adapter_bert.model import configs, model_variables
from adapter_bert.shell import errors, subprocesses
from adapter_bert.shell.errors import UserError

FILE = "backbone.onnx"
FORMAT = "adapter-bert backbone 1"
OPSET, IR_VERSION = 17, 8  # Supported since ONNX Runtime 1.17.

_MAX_BYTES = (1 << 31) - (1 << 20)  # A protocol buffer's 2 GB, minus 1 MB for non-tensors.


class BackboneWeights(NamedTuple):
    """Holds the tensors of an encoder.

    Attributes:
      fingerprint: see `model_variables.fingerprint`.
      tensors: dict from the names in `model_variables.encoder_shapes` to float32 arrays.
    """

    fingerprint: str
    tensors: Dict[str, np.ndarray]


def load(init_checkpoint: str, config: configs.BertConfig) -> BackboneWeights:
    """Loads a pretrained encoder; converts the checkpoint the first time.

    Conversion needs TensorFlow. It runs in a subprocess unless TensorFlow is already imported.

    Args:
      init_checkpoint: prefix of the checkpoint. Its files may be missing if its folder contains
        `backbone.onnx`.
      config: `configs.BertConfig`.

    Returns:
      `BackboneWeights`.

    Raises:
      UserError: the checkpoint is missing, or does not match the config; or it must be converted
        and this Python has no TensorFlow.
    """
    configs.check_config(config)
    digest = _checkpoint_digest(init_checkpoint)
    for path in _paths(init_checkpoint, digest):
        backbone = _read(path, digest, config)
        if backbone:
            return backbone
        if digest is None and gfile.exists(path):
            raise UserError(
                f"{path} is damaged or was not written by this program, and there is no checkpoint"
                f" {init_checkpoint} to convert again."
            )
    path = _convert(init_checkpoint, config)
    backbone = _read(path, digest, config)
    if backbone is None:
        raise UserError(
            f"--init_checkpoint {init_checkpoint} changed while it was converted to {path}; try"
            " again."
        )
    return backbone


def write(init_checkpoint: str, config: configs.BertConfig, flag: str = "--init_checkpoint") -> str:
    """Writes the ONNX file of a checkpoint atomically. Needs TensorFlow.

    Args:
      init_checkpoint, config: as for `load`.
      flag: what errors call the checkpoint.

    Returns:
      The path, next to the checkpoint or in the cache folder.

    Raises:
      UserError: the checkpoint is missing, damaged, changes meanwhile or does not match the config;
        or neither folder is writable.
    """
    from adapter_bert.formats import checkpoints

    digest = _checkpoint_digest(init_checkpoint)
    checkpoints.check_plain(init_checkpoint, flag)
    tensors = checkpoints.read_encoder(init_checkpoint, config, flag)
    where = f"{flag} {init_checkpoint}"
    if _checkpoint_digest(init_checkpoint) != digest:
        raise UserError(f"{where} changed while it was converted to ONNX; try again.")
    content = _to_bytes(tensors, config, digest or "", where)
    failure: Exception = AssertionError()
    for path in _paths(init_checkpoint, digest):
        try:
            with gfile.convert_write_errors(path):
                gfile.makedirs(posixpath.dirname(path) or ".", 0o700)  # The cache, if it is new.
            atomic.write_atomically(path, content)
            return path
        except UserError as error:
            failure = error
    raise failure


def _paths(init_checkpoint: str, digest: Optional[str]) -> Iterator[str]:
    """Yields the possible paths of the file: next to the checkpoint, then in the cache folder."""
    if not gfile.is_remote(init_checkpoint):
        yield posixpath.join(posixpath.dirname(init_checkpoint), FILE)
    if digest:
        folder = paths.cache_folder(digest[:16])
        path = os.path.join(folder, FILE)
        try:
            if os.path.isdir(folder):
                gfile.make_private(folder, f"The cache folder {folder}")
        except UserError as error:
            if gfile.is_remote(init_checkpoint):  # There is no other place.
                raise
            logging.warning("%s is not used: %s", path, error)
            return
        if os.path.isfile(path) and not gfile.is_own(path):
            gfile.remove(path)  # It may be forged.
        yield path


def _checkpoint_digest(init_checkpoint: str) -> Optional[str]:
    """Returns the SHA-256 of a checkpoint's index, which has the tensors' checksums, or None."""
    for path in (init_checkpoint + ".index", init_checkpoint):
        if gfile.exists(path) and not gfile.isdir(path):
            return gfile.sha256(path)
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


def _read(
    path: str, digest: Optional[str], config: configs.BertConfig
) -> Optional[BackboneWeights]:
    """Loads a file; returns None if it is missing, damaged or of another checkpoint."""
    import onnx
    from google.protobuf import message

    try:
        with gfile.open_regular(path) as reader:
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
    return BackboneWeights(metadata["fingerprint"], tensors)


def _to_array(tensor: Any) -> np.ndarray:
    return np.frombuffer(tensor.raw_data, "<f4").reshape(tensor.dims)


def _check_shapes(tensors: Dict[str, np.ndarray], config: configs.BertConfig, path: str) -> None:
    """Raises UserError unless the tensors' names and shapes match a config."""
    actual = {name: value.shape for name, value in tensors.items()}
    expected = model_variables.encoder_shapes(config)
    for name in sorted({*actual, *expected}):
        if actual.get(name) != expected.get(name):
            shapes = [list(each[name]) if name in each else None for each in (actual, expected)]
            raise UserError(
                f"{path} does not match bert_config.json: its {name} has the shape {shapes[0]},"
                f" expected {shapes[1]}."
            )


def _convert(init_checkpoint: str, config: configs.BertConfig) -> str:
    """Calls `write`, in a subprocess if TensorFlow is not imported; returns the path."""
    start = time.monotonic()
    if sys.modules.get("tensorflow"):
        path = write(init_checkpoint, config)
    else:
        path = _convert_in_subprocess(init_checkpoint, config)
    print(
        f"Converted {init_checkpoint} to {path} in {time.monotonic() - start:.1f} s; later runs"
        " reuse it.",
        file=sys.stderr,
    )
    return path


def _convert_in_subprocess(init_checkpoint: str, config: configs.BertConfig) -> str:
    if importlib.util.find_spec("tensorflow") is None:
        digest = _checkpoint_digest(init_checkpoint)
        if digest is None:
            raise UserError(
                f"--init_checkpoint {init_checkpoint}: there is neither this checkpoint nor {FILE}"
                " in its folder."
            )
        is_there = any(map(gfile.exists, _paths(init_checkpoint, digest)))
        state = "is of another checkpoint or damaged" if is_there else "is missing"
        raise UserError(
            f"--init_checkpoint {init_checkpoint}: its {FILE} {state}, and this Python has no"
            " TensorFlow to write it: run `python convert_checkpoint.py to_onnx BERT_DIR` in a"
            " Python with TensorFlow."
        )
    stdout = subprocesses.run_module(__name__, init_checkpoint, stdin=config.to_json_string())
    return stdout.splitlines()[-1]


def _main() -> None:
    """Converts the checkpoint that the command line names; reads its config from stdin."""
    (init_checkpoint,) = sys.argv[1:]
    config = configs.BertConfig.from_dict(json_objects.parse_json(sys.stdin.read()))
    print(write(init_checkpoint, config))


if __name__ == "__main__":
    sys.exit(errors.exit_code(_main))
