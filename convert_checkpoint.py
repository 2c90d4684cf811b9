"""Converts pretrained weights of other formats into what the scripts here read.

    python convert_checkpoint.py from_huggingface SOURCE_DIR DESTINATION_DIR

reads a HuggingFace BERT (config.json, model.safetensors, vocab.txt) and writes the folder that
Google's releases of BERT are: bert_config.json, vocab.txt and the checkpoint bert_model.ckpt. No
value changes but for half precision, which is widened to float32; PyTorch is not needed.
"""

import environment  # noqa: F401  First of all: a missing TensorFlow gets a sentence.

# isort: split
import argparse
import contextlib
import json
import os
import re
import sys
import uuid

import numpy as np
import safetensors
import tensorflow.compat.v1 as tf

import checkpoints
import errors
import modeling
from errors import UserError

_CONFIG, _WEIGHTS, _VOCABULARY = "config.json", "model.safetensors", "vocab.txt"
_CHECKPOINT = "bert_model.ckpt"
_WRITTEN = (
    "bert_config.json",
    _VOCABULARY,
    _CHECKPOINT + ".index",
    _CHECKPOINT + ".data-00000-of-00001",
)

_CONFIG_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
)

# What HuggingFace's config can vary and bert_config.json cannot, with the value that BERT has.
_FIXED_FIELDS = {
    "model_type": "bert",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "layer_norm_eps": 1e-12,
}

# HuggingFace's "gelu" is the exact form and its "gelu_new" the tanh form, which Google's "gelu" is.
# They differ by less than 1e-3, and BERTs have been trained with either.
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu", "relu": "relu"}

# From Google's names to HuggingFace's, in this order.
_RENAMINGS = (
    (r"^bert/", ""),
    (r"/layer_", "/layer/"),
    (r"_embeddings$", r"\g<0>/weight"),
    (r"/LayerNorm/gamma$", "/LayerNorm/weight"),
    (r"/LayerNorm/beta$", "/LayerNorm/bias"),
    (r"/(kernel|output_weights)$", "/weight"),
    (r"/output_bias$", "/bias"),
    (r"/", "."),
)

_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # Constants, not weights.

# Second copies that some releases hold, and the tensors that they are tied to.
_TIED = {
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


def main(argv=None):
    """Runs the subcommand that the command line names."""
    parser = argparse.ArgumentParser(description="Converts pretrained weights of other formats.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    command = commands.add_parser(
        "from_huggingface", help="a HuggingFace BERT to a checkpoint with Google's names"
    )
    command.add_argument(
        "source", metavar="SOURCE_DIR", help=f"holds {_CONFIG}, {_WEIGHTS} and {_VOCABULARY}"
    )
    command.add_argument("destination", metavar="DESTINATION_DIR", help="the folder to make")
    command.add_argument(
        "--overwrite", action="store_true", help="replace what an earlier conversion wrote"
    )
    command.set_defaults(function=from_huggingface)
    arguments = vars(parser.parse_args(argv))
    arguments.pop("function")(**arguments)


def from_huggingface(source, destination, *, overwrite=False):
    """Converts a HuggingFace BERT; the destination appears whole or not at all.

    Args:
      source: folder with config.json, model.safetensors and vocab.txt.
      destination: folder to make, with bert_config.json, vocab.txt and bert_model.ckpt.
      overwrite: whether to replace an earlier conversion.

    Raises:
      UserError: a file is missing or broken; the model is not a BERT that Google's format can
        express; a tensor is missing, of another shape, or has no place; or the destination is in
        use.
    """
    destination = destination.rstrip("/")
    _check_destination(destination, overwrite)
    paths = [os.path.join(source, name) for name in (_CONFIG, _WEIGHTS, _VOCABULARY)]
    missing = [path for path in paths if not tf.io.gfile.exists(path)]
    if missing:
        raise UserError(
            f"SOURCE_DIR {source} is not a HuggingFace BERT: there is no file "
            f"{' and no file '.join(missing)}."
        )
    config_file, weights_file, vocab_file = paths
    config = _read_config(config_file)
    tensors = _to_google(_read_safetensors(weights_file), config, weights_file)
    with _whole_folder(destination) as folder:
        with tf.io.gfile.GFile(os.path.join(folder, "bert_config.json"), "w") as writer:
            writer.write(config.to_json_string())
        tf.io.gfile.copy(vocab_file, os.path.join(folder, _VOCABULARY))
        _write_checkpoint(os.path.join(folder, _CHECKPOINT), tensors)
    parameters = sum(value.size for value in tensors.values())
    print(f"{destination}: wrote {len(tensors)} tensors, {parameters:,} parameters.")


def _read_config(path):
    """Reads HuggingFace's config.json as a `modeling.BertConfig` of Google's fields."""
    try:
        with tf.io.gfile.GFile(path, "r") as reader:
            fields = dict(json.loads(reader.read()))
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: expected a JSON object ({error}).") from error
    for name, expected in _FIXED_FIELDS.items():
        found = fields.get(name, expected)
        if found != expected:
            raise UserError(f"{path}: {name} must be {expected!r} for BERT, but is {found!r}.")
    missing = [name for name in _CONFIG_FIELDS if name not in fields]
    if missing:
        raise UserError(f"{path}: lacks {', '.join(missing)}.")
    if fields["hidden_act"] not in _ACTIVATIONS:
        raise UserError(
            f"{path}: hidden_act must be one of {', '.join(_ACTIVATIONS)}, but is "
            f"{fields['hidden_act']!r}."
        )
    fields["hidden_act"] = _ACTIVATIONS[fields["hidden_act"]]
    return modeling.BertConfig(**{name: fields[name] for name in _CONFIG_FIELDS})


def _read_safetensors(path):
    """Reads the weights: a dictionary from HuggingFace's names, in one spelling, to float32."""
    with tf.io.gfile.GFile(path, "rb") as reader:
        content = reader.read()
    try:
        entries = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        raise UserError(f"{path}: is damaged or not a safetensors file ({error}).") from error
    tensors = {}
    for name, entry in entries:
        # Task models put the encoder under "bert."; the first releases spelt LayerNorm TensorFlow's
        # way.
        name = re.sub(r"^bert\.", "", name)
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        name = name.replace("LayerNorm.beta", "LayerNorm.bias")
        if name in _BUFFERS:
            continue
        if name in tensors:
            raise UserError(f"{path}: holds {name} twice, under two spellings.")
        if entry["dtype"] not in _DECODERS:
            raise UserError(
                f"{path}: {name} must be one of {', '.join(_DECODERS)}, but is {entry['dtype']}."
            )
        tensors[name] = _DECODERS[entry["dtype"]](entry["data"]).reshape(entry["shape"])
    return tensors


def _decode_bfloat16(data):
    """bfloat16, which NumPy lacks, is the upper half of a float32."""
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)


# From safetensors' names of types to functions from little-endian bytes to float32 [size].
_DECODERS = {
    "F32": lambda data: np.frombuffer(data, "<f4"),
    "F16": lambda data: np.frombuffer(data, "<f2").astype(np.float32),
    "BF16": _decode_bfloat16,
}


def _to_google(tensors, config, path):
    """Gives every tensor its name and layout in Google's checkpoints.

    Args:
      tensors: dictionary from HuggingFace's names to arrays; a projection is [output, input].
      config: `modeling.BertConfig`.
      path: the file, for errors.

    Returns:
      A dictionary from Google's names to arrays; a kernel is [input, output].
    """
    tensors = _without_tied(tensors, path)
    heads = {name.split(".")[1] for name in tensors if name.startswith("cls.")}
    shapes = checkpoints.encoder_shapes(config)
    for name, shape in _pretraining_shapes(config).items():
        if name.split("/")[1] in heads:
            shapes[name] = shape
    names = {_huggingface_name(name): name for name in shapes}
    _check_same(set(names), set(tensors), path)
    result = {}
    for name, google_name in names.items():
        value, shape = tensors[name], shapes[google_name]
        if google_name.endswith("/kernel"):
            value = value.T
        if value.shape != shape:
            raise UserError(
                f"{path}: {name} has the shape {list(tensors[name].shape)}, which does not fit "
                f"{google_name} {list(shape)}, as {_CONFIG} asks for."
            )
        result[google_name] = value
    return result


def _without_tied(tensors, path):
    """Leaves out second copies of a tensor, which must equal the first."""
    tensors = dict(tensors)
    for copy, original in _TIED.items():
        if copy in tensors:
            value = tensors.pop(copy)
            if not np.array_equal(value, tensors.setdefault(original, value)):
                raise UserError(f"{path}: {copy} must equal {original} in BERT, but does not.")
    return tensors


def _pretraining_shapes(config):
    """The tensors of BERT's two pretraining heads: Google's names and shapes."""
    hidden = config.hidden_size
    return {
        "cls/predictions/transform/dense/kernel": (hidden, hidden),
        "cls/predictions/transform/dense/bias": (hidden,),
        "cls/predictions/transform/LayerNorm/beta": (hidden,),
        "cls/predictions/transform/LayerNorm/gamma": (hidden,),
        "cls/predictions/output_bias": (config.vocab_size,),
        "cls/seq_relationship/output_weights": (2, hidden),
        "cls/seq_relationship/output_bias": (2,),
    }


def _huggingface_name(name):
    """HuggingFace's name for a tensor of Google's.

    bert/encoder/layer_0/attention/self/query/kernel -> encoder.layer.0.attention.self.query.weight
    """
    for pattern, replacement in _RENAMINGS:
        name = re.sub(pattern, replacement, name)
    return name


def _check_same(wanted, found, path):
    """Raises UserError, naming them, if tensors are missing or have no place."""
    problems = [
        f"{len(names)} {verdict} ({', '.join(sorted(names)[:10])}{', ...' * (len(names) > 10)})"
        for names, verdict in (
            (wanted - found, "tensors that its config asks for are missing"),
            (found - wanted, "of its tensors have no place in BERT"),
        )
        if names
    ]
    if problems:
        raise UserError(f"{path}: {', and '.join(problems)}.")


def _check_destination(destination, overwrite):
    """Raises UserError unless the destination is free, or holds what may be replaced."""
    where = f"DESTINATION_DIR {destination}"
    if not tf.io.gfile.exists(destination):
        return
    if not tf.io.gfile.isdir(destination):
        raise UserError(f"{where} is a file; expected a folder or a new name.")
    existing = tf.io.gfile.listdir(destination)
    others = sorted(set(existing) - set(_WRITTEN))
    if others:
        raise UserError(f"{where} holds {others[0]}, which no conversion wrote; use a new folder.")
    if existing and not overwrite:
        raise UserError(f"{where} holds a checkpoint already; use a new folder, or --overwrite.")


@contextlib.contextmanager
def _whole_folder(destination):
    """Yields a new folder beside the destination, which takes its place if all went well."""
    unique = uuid.uuid4().hex[:8]
    partial, replaced = f"{destination}.{unique}.partial", f"{destination}.{unique}.replaced"
    try:
        tf.io.gfile.makedirs(partial)
        yield partial
        if tf.io.gfile.exists(destination):
            tf.io.gfile.rename(destination, replaced)
        tf.io.gfile.rename(partial, destination)
        if tf.io.gfile.exists(replaced):
            tf.io.gfile.rmtree(replaced)
    except tf.errors.OpError as error:
        reason = error.message.split("\n")[0]
        raise UserError(f"DESTINATION_DIR {destination} cannot be written ({reason}).") from error
    finally:
        if tf.io.gfile.exists(partial):
            tf.io.gfile.rmtree(partial)


def _write_checkpoint(prefix, tensors):
    """Writes arrays as a TensorFlow checkpoint, by the operation that a Saver uses.

    Through placeholders, for a graph that held BERT-Large as constants would be near its 2 GB.
    """
    no_gpu = tf.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default(), tf.Session(config=no_gpu) as session:
        inputs = [tf.placeholder(value.dtype, value.shape) for value in tensors.values()]
        save = tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=inputs,
        )
        session.run(save, dict(zip(inputs, tensors.values())))


if __name__ == "__main__":
    sys.exit(errors.exit_code(main))
