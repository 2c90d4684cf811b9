"""BERT in TensorFlow 1's hub format: a module's weights, vocabulary and config.

A hub module is a closed graph, into which no adapter can be inserted; its variables are a
checkpoint like any other, though, and that is all that is taken from it.
"""

import os
from typing import Any, Optional, Tuple

import tensorflow.compat.v1 as tf

import tf_estimator  # noqa: F401  tensorflow_hub imports Estimator, which it finds in TensorFlow.

# isort: split
import tensorflow_hub as hub

import checkpoints
import files
import modeling
from errors import UserError

# The size of an attention head in every BERT that Google has released: the one size of a model
# that its tensors' shapes do not tell.
_HEAD_SIZE = 64


def find_module(handle: str) -> Tuple[str, Any]:
    """Finds a module in TensorFlow 1's hub format.

    Args:
      handle: the module's address, or a folder.

    Returns:
      (folder, what `hub.Module` takes).

    Raises:
      UserError: the handle leads to nothing, or to something that is no such module.
    """
    where = f"TF-Hub module {handle}:"
    failures = (OSError, ValueError, RuntimeError, tf.errors.OpError)
    try:
        folder = hub.resolve(handle)
    except failures as error:
        raise UserError(
            f"{where} cannot be fetched ({files.reason(error)}); expected an address that can be"
            " reached, or the folder of a module."
        ) from error
    try:
        return folder, hub.load_module_spec(folder)
    except failures as error:
        raise UserError(
            f"{where} expected a module in TensorFlow 1's hub format, but {folder} holds none."
        ) from error


def read_bert(handle: str) -> checkpoints.PretrainedBert:
    """Finds the weights, the vocabulary and the config in a TF1 hub module of BERT.

    Args:
      handle: the module's address, or a folder.

    Returns:
      `checkpoints.PretrainedBert`.

    Raises:
      UserError: the handle leads to nothing, or to something that is no TF1 hub module of a BERT
        with a WordPiece vocabulary.
    """
    where = f"TF-Hub module {handle}:"
    folder, spec = find_module(handle)
    prefix = os.path.join(folder, "variables", "variables")
    config = _config_of(folder, prefix, where)
    checkpoints.check_encoder(prefix, config, flag=where)
    vocab_file, do_lower_case = _vocabulary_of(folder, where), _lower_case_of(spec)
    return checkpoints.PretrainedBert(config, vocab_file, prefix, do_lower_case)


def _config_of(folder: str, prefix: str, where: str) -> modeling.BertConfig:
    """The module's bert_config.json, or else what its tensors' shapes tell."""
    for path in (folder, os.path.join(folder, "assets")):
        config_file = os.path.join(path, "bert_config.json")
        if tf.io.gfile.exists(config_file):
            return modeling.BertConfig.from_json_file(config_file)
    return _config_from_shapes(
        checkpoints.open_checkpoint(prefix, flag=where).get_variable_to_shape_map(), where
    )


def _config_from_shapes(shapes, where: str) -> modeling.BertConfig:
    """The `modeling.BertConfig` of an encoder; rates and activation are those of all of Google's.

    Raises:
      UserError: a tensor that tells a size is missing, or the width is not a multiple of 64.
    """
    sizes = checkpoints.encoder_sizes(shapes, where)
    if sizes.hidden_size % _HEAD_SIZE:
        raise UserError(
            f"{where} has no bert_config.json, and without one its hidden size must be a multiple "
            f"of {_HEAD_SIZE}, the size of an attention head, but it is {sizes.hidden_size}."
        )
    return modeling.BertConfig(
        num_attention_heads=sizes.hidden_size // _HEAD_SIZE, **sizes._asdict()
    )


def _vocabulary_of(folder: str, where: str) -> str:
    """The path of the WordPiece vocabulary among the assets: vocab.txt or the only .txt."""
    assets = os.path.join(folder, "assets")
    names = sorted(tf.io.gfile.listdir(assets)) if tf.io.gfile.isdir(assets) else []
    texts = [name for name in names if name.endswith(".txt")]
    if "vocab.txt" in texts:
        texts = ["vocab.txt"]
    if len(texts) != 1:
        raise UserError(
            "{} expected one WordPiece vocabulary (.txt) among its assets, but found {}.".format(
                where, ", ".join(names) or "none"
            )
        )
    return os.path.join(assets, texts[0])


def _lower_case_of(spec) -> Optional[bool]:
    """What the module's signature "tokenization_info" says of lower-casing, or None."""
    signature = "tokenization_info"
    if signature not in spec.get_signature_names():
        return None
    if "do_lower_case" not in spec.get_output_info_dict(signature):
        return None
    no_gpu = tf.ConfigProto(device_count={"GPU": 0})  # For one boolean, take no GPU's memory.
    with tf.Graph().as_default(), tf.Session(config=no_gpu) as session:
        info = hub.Module(spec)(signature=signature, as_dict=True)
        return bool(session.run(info["do_lower_case"]))
