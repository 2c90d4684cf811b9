"""BERT in a folder like Google's releases: bert_config.json, vocab.txt and bert_model.ckpt."""

import os
from typing import Any, List, Tuple

from adapter_bert.common import configs, files, paths
from adapter_bert.common.errors import UserError
from adapter_bert.formats import adapter_checkpoints, checkpoints, huggingface
from adapter_bert.formats.bert import Bert

CONFIG, VOCABULARY, CHECKPOINT = paths.BERT_FILES.values()
FILES = (CONFIG, VOCABULARY, CHECKPOINT + ".index", CHECKPOINT + ".data-00000-of-00001")


def matches(path: str) -> bool:
    """Returns whether a path is such a folder."""
    return files.exists(checkpoint_of(path) + ".index")


def describe(path: str, argument: str) -> List[str]:
    """Returns lines that say what a folder holds, for people.

    Args:
      path: the folder.
      argument: what an error calls it, such as "PATH".

    Raises:
      UserError: its checkpoint is damaged.
    """
    return adapter_checkpoints.describe(checkpoint_of(path), argument)


def checkpoint_of(folder: str) -> str:
    """Returns the prefix of the checkpoint in a folder."""
    return os.path.join(folder, CHECKPOINT)


def open_folder(folder: str, argument: str) -> Tuple[configs.BertConfig, Any]:
    """Opens a folder without reading its tensors.

    Args:
      folder: path.
      argument: what the error calls it, such as "BERT_DIR".

    Returns:
      (`configs.BertConfig`, checkpoint reader).

    Raises:
      UserError: a file is missing or damaged; the checkpoint does not hold what the config asks
        for.
    """
    config = configs.BertConfig.from_json_file(os.path.join(folder, CONFIG))
    checkpoints.check_encoder(checkpoint_of(folder), config, argument)
    if not files.exists(os.path.join(folder, VOCABULARY)):
        raise UserError(f"{argument} {folder}: there is no {VOCABULARY} in it.")
    return config, checkpoints.open_checkpoint(checkpoint_of(folder), argument)


def read(folder: str, argument: str) -> Bert:
    """Reads a BERT, with the pretraining heads that there are.

    Args:
      folder: path.
      argument: what the error calls it, such as "BERT_DIR".

    Raises:
      UserError: see `open_folder`; or a tensor is damaged.
    """
    config, reader = open_folder(folder, argument)
    shapes = huggingface.google_shapes(config, reader.get_variable_to_shape_map())
    where = f"{argument} {folder}"
    tensors = {name: checkpoints.read_tensor(reader, name, where) for name in shapes}
    return Bert(config, tensors, os.path.join(folder, VOCABULARY))


def write(folder: str, bert: Bert) -> None:
    """Writes a BERT into a folder that exists."""
    with files.open_file(os.path.join(folder, CONFIG), "w") as writer:
        writer.write(bert.config.to_json_string())
    files.copy(bert.vocab_file, os.path.join(folder, VOCABULARY))
    checkpoints.write(checkpoint_of(folder), bert.tensors)
