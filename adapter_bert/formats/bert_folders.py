"""A BERT's local folder in Google's format, converted once from any other format that we read.

Folders in Google's format and of TF-Hub modules are used in place. Others are converted to

    ~/.cache/adapter-bert/bert/<digest>/<name>/

which has Google's files, tokenizer_config.json if the casing is known, and source.json. The digest
identifies the source. TensorFlow is imported only to convert.
"""

import os
import sys
import time
from typing import Iterator, Optional, Tuple

from absl import logging

from adapter_bert.files import atomic, gfile, json_objects, paths
from adapter_bert.formats import (
    hub,
    huggingface,
    huggingface_tokenizer,
    onnx_backbone,
    task_adapter,
)
from adapter_bert.shell import environment, errors, extras, subprocesses
from adapter_bert.shell.errors import UserError

_CONVERSION = 1  # Increment it when a conversion writes other files than before.
_SOURCE = "source.json"
_CHECKPOINT_INDEX = paths.BERT_FILES["init_checkpoint"] + ".index"
_SAVED_MODEL, _MODULE = "saved_model.pb", "tfhub_module.pb"
_OBJECT_GRAPH = b"_CHECKPOINTABLE_OBJECT_GRAPH"  # In the index of TensorFlow 2's checkpoints.
_MAX_HASHED_BYTES = 1 << 20  # Larger files are identified by size and time.


def local_folder(source: str, flag: str) -> str:
    """Returns the folder of a BERT in Google's format, or of a TF-Hub module; may convert it.

    Args:
      source: a folder in a format of `formats`, or hf://owner/name[@revision].
      flag: what errors call the source.

    Raises:
      UserError: there is no such folder, it cannot be downloaded, or is not a BERT that is
        supported; or it must be converted, which fails or lacks TensorFlow.
    """
    if hub.is_address(source):
        source = hub.pin(source, flag)
        return _converted(source, flag, task_adapter.digest([_CONVERSION, source]))
    if not gfile.isdir(source):
        raise UserError(
            f"{flag}: there is no folder {source}; expected the folder of a BERT, or"
            " hf://owner/name."
        )
    folder = gfile.without_end_slash(gfile.absolute(source))
    if _is_google(folder) or is_module(folder):
        return folder
    if not huggingface.matches(folder) and not _is_tf2(folder):
        raise UserError(
            f"{flag} {source} is not a BERT: expected {_CHECKPOINT_INDEX}, {_SAVED_MODEL} or"
            f" {huggingface.CONFIG} in it."
        )
    return _converted(folder, flag, task_adapter.digest([_CONVERSION, folder, *_state(folder)]))


def is_module(folder: str) -> bool:
    """Returns whether a folder is a module in TensorFlow 1's hub format."""
    return all(gfile.exists(os.path.join(folder, name)) for name in (_MODULE, _SAVED_MODEL))


def source_of(folder: str) -> Optional[str]:
    """Returns what a folder was converted from, a folder or hf://owner/name@commit; None if not."""
    path = os.path.join(folder, _SOURCE)
    source = json_objects.read_object(path).get("source") if gfile.exists(path) else None
    return source if isinstance(source, str) else None


def _is_google(folder: str) -> bool:
    index = os.path.join(folder, _CHECKPOINT_INDEX)
    if gfile.exists(index):
        return _OBJECT_GRAPH not in gfile.read_bytes(index, index)
    return gfile.exists(os.path.join(folder, onnx_backbone.FILE))  # Servers need no checkpoint.


def _is_tf2(folder: str) -> bool:
    return any(name == _SAVED_MODEL or name.endswith(".index") for name in gfile.listdir(folder))


def _state(folder: str) -> Iterator[Tuple[str, int, object]]:
    """Yields (name, size, digest or time) of each file that a conversion may read."""
    for part in (folder, *(os.path.join(folder, name) for name in ("assets", "variables"))):
        for name in sorted(gfile.listdir(part)) if gfile.isdir(part) else ():
            path = os.path.join(part, name)
            with gfile.convert_read_errors(path):
                if name.startswith(".") or gfile.isdir(path):
                    continue
                size = gfile.size(path)
                is_small = size <= _MAX_HASHED_BYTES
                yield path, size, gfile.sha256(path) if is_small else gfile.modified_ns(path)


def _converted(source: str, flag: str, digest: str) -> str:
    """Returns the folder of a conversion, which is written the first time."""
    name = hub.name_of(source) or os.path.basename(source) or "bert"
    entry = os.path.join(paths.cache_folder("bert"), digest)
    is_new = False

    def convert(partial: str) -> None:
        nonlocal is_new
        is_new = True
        if environment.missing_packages(environment.MODELS):
            raise UserError(
                f"{flag} {source} must be converted, which requires TensorFlow; run"
                f" {extras.install_command(environment.MODELS.extra)}, or convert it by"
                " convert_checkpoint.py in a Python with TensorFlow."
            )
        folder = hub.download_bert(source, flag) if hub.is_address(source) else source
        arguments = folder, source, flag, os.path.join(partial, name)
        if sys.modules.get("tensorflow"):
            _convert(*arguments)
        else:
            subprocesses.run_module(__name__, *arguments)

    start = time.monotonic()
    atomic.cached_folder(entry, os.path.join(name, _CHECKPOINT_INDEX), convert)
    folder = os.path.join(entry, name)
    if is_new:
        for note in json_objects.read_object(os.path.join(folder, _SOURCE))["notes"]:
            logging.warning("%s: %s", source, note)
        print(
            f"Converted {source} to {folder} in {time.monotonic() - start:.1f} s; later runs reuse"
            " it.",
            file=sys.stderr,
        )
    return folder


def _convert(folder: str, source: str, flag: str, destination: str) -> None:
    """Writes the BERT of a folder to a new one in Google's format; needs TensorFlow."""
    from adapter_bert.formats import google, tf2

    if hub.is_address(source) or huggingface.matches(folder):
        bert = huggingface.read(folder, flag)
    else:
        bert = tf2.read(folder, f"{flag} {folder}:")
    gfile.makedirs(destination)
    google.write(destination, bert)
    if bert.do_lower_case is not None:
        huggingface_tokenizer.write(destination, bert.do_lower_case)
    content = {"source": source, "conversion": _CONVERSION, "notes": list(bert.notes)}
    json_objects.write_object(os.path.join(destination, _SOURCE), content)


if __name__ == "__main__":
    sys.exit(errors.exit_code(lambda: _convert(*sys.argv[1:])))
