"""BERT in the format of Google's releases: bert_config.json, vocab.txt and bert_model.ckpt."""

import os
from typing import Any, List, Tuple

from adapter_bert.files import gfile, paths
from adapter_bert.formats import adapter_checkpoints, checkpoints, huggingface
from adapter_bert.formats.bert import Bert
from adapter_bert.model import configs
from adapter_bert.shell.errors import UserError

CONFIG, VOCABULARY, CHECKPOINT = paths.BERT_FILES.values()
FILES = (CONFIG, VOCABULARY, CHECKPOINT + ".index", CHECKPOINT + ".data-00000-of-00001")


def matches(path: str) -> bool:
    """Returns whether a path is a folder in this format."""
    return gfile.exists(checkpoint_of(path) + ".index")


def describe(path: str, argument: str) -> List[str]:
    """Returns lines that describe a BERT for people.

    Args:
      path: the folder.
      argument: what errors call the folder, such as "PATH".

    Raises:
      UserError: the checkpoint is damaged.
    """
    return adapter_checkpoints.describe(checkpoint_of(path), argument)


def checkpoint_of(folder: str) -> str:
    """Returns the prefix of a folder's checkpoint."""
    return os.path.join(folder, CHECKPOINT)


def open_folder(folder: str, argument: str) -> Tuple[configs.BertConfig, Any]:
    """Opens a BERT without reading its tensors.

    Args:
      folder: path.
      argument: what errors call the folder, such as "BERT_DIR".

    Returns:
      (`configs.BertConfig`, checkpoint reader).

    Raises:
      UserError: a file is missing or damaged; or the checkpoint has adapters or does not match the
        config.
    """
    config = configs.BertConfig.from_json_file(os.path.join(folder, CONFIG))
    reader = checkpoints.check_encoder(checkpoint_of(folder), config, argument)
    checkpoints.check_plain(checkpoint_of(folder), argument)
    if not gfile.exists(os.path.join(folder, VOCABULARY)):
        raise UserError(f"{argument} {folder}: there is no {VOCABULARY} in it.")
    return config, reader


def read(folder: str, argument: str) -> Bert:
    """Loads a BERT, including its pretraining heads if there are any.

    Args:
      folder: path.
      argument: what errors call the folder, such as "BERT_DIR".

    Raises:
      UserError: as for `open_folder`; or a tensor is damaged.
    """
    config, reader = open_folder(folder, argument)
    actual, where = reader.get_variable_to_shape_map(), f"{argument} {folder}"
    shapes = huggingface.google_shapes(config, actual)
    for name, shape in shapes.items():
        if tuple(actual.get(name, ())) != shape:
            raise UserError(
                f"{where}: {name} has the shape {actual.get(name)}, expected {list(shape)}."
                if name in actual
                else f"{where}: its pretraining head lacks {name}."
            )
    tensors = {name: checkpoints.read_tensor(reader, name, where) for name in shapes}
    return Bert(config, tensors, os.path.join(folder, VOCABULARY))


def write(folder: str, bert: Bert) -> None:
    """Writes a BERT to an existing folder."""
    with gfile.open_file(os.path.join(folder, CONFIG), "w") as writer:
        writer.write(bert.config.to_json_string())
    bert.write_vocabulary(os.path.join(folder, VOCABULARY))
    checkpoints.write(checkpoint_of(folder), bert.tensors)
