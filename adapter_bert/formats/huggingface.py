"""BERT in HuggingFace's format: config.json, model.safetensors, vocab.txt; PyTorch is not needed.

If there is no model.safetensors, weights are read from pytorch_model.bin of older releases. Either
may be in several files, which an index lists.

All other modules use Google's names and layouts, in which a kernel is [input, output]. This module
converts to and from HuggingFace's, in which a weight is [output, input]. Values do not change,
except that half precision becomes float32.
"""

import json
import os
import re
from typing import Any, Dict, Iterable, List, Optional, Sequence, Set

import numpy as np

from adapter_bert.files import gfile, json_objects
from adapter_bert.formats import huggingface_tokenizer, pytorch, safetensors_files
from adapter_bert.formats.bert import Bert, Tensors, count_text, describe_encoder
from adapter_bert.model import configs, model_variables
from adapter_bert.shell.errors import UserError

CONFIG, _WEIGHTS, _OLD_WEIGHTS = "config.json", "model.safetensors", "pytorch_model.bin"
_INDEX = ".index.json"  # Follows the name of weights in several files, and lists these.
_CONFIG_FIELDS = tuple(vars(configs.BertConfig(vocab_size=1)))

# HuggingFace's activations → ours. Its "gelu" is the exact form; Google's is the tanh form.
_ACTIVATIONS = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate"), "gelu"),
    "relu": "relu",
}

# Replacements from Google's names to HuggingFace's, applied in this order.
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

_BUFFERS = [  # Constants that are not weights.
    prefix + name
    for prefix in ("", "bert.")
    for name in ("embeddings.position_ids", "embeddings.token_type_ids")
]

# Duplicate tensors in some releases, and the tensors that they are tied to.
_TIED = {
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}

FILES = (CONFIG, _WEIGHTS, huggingface_tokenizer.VOCABULARY)
# Globs of the files with weights, for each format; the first format that a model has suffices.
WEIGHT_PATTERNS = tuple(
    (name, name + _INDEX, name.replace(".", "-*."))  # "model-00001-of-00002.safetensors".
    for name in (_WEIGHTS, _OLD_WEIGHTS)
)
_POOLER = "bert/pooler/dense/"
_NEW_POOLER = (
    "started a new pooler, as the source has none. Tagging and SQuAD do not read it; for other"
    " tasks, train it by --train_pooler."
)
# Task models' heads: BertForSequenceClassification and others; BertForQuestionAnswering.
_HEAD = re.compile(r"(classifier|qa_outputs)\.")


def matches(path: str) -> bool:
    """Returns whether a path is a folder with HuggingFace's config.json."""
    return gfile.exists(os.path.join(path, CONFIG))


def describe(path: str, argument: str) -> List[str]:
    """Returns lines that describe a BERT for people; raises UserError as `read` does."""
    source = read(path, argument)
    return [
        f"HuggingFace BERT: {count_text(source.tensors)}",
        describe_encoder(source.config, source.tensors.get),
    ]


def read(folder: str, argument: str) -> Bert:
    """Loads a BERT in HuggingFace's format.

    Args:
      folder: contains config.json; model.safetensors or pytorch_model.bin, or their parts and
        index; and vocab.txt or tokenizer.json.
      argument: what errors call the folder, such as "SOURCE_DIR".

    Returns:
      `bert.Bert`.

    Raises:
      UserError: a file is missing or damaged; the model is not a BERT that Google's format
        supports; or a tensor is missing, unexpected or of a wrong shape.
    """
    config_file, weights = os.path.join(folder, CONFIG), find_weights(folder, argument)
    config = read_config(config_file) if gfile.exists(config_file) else None
    missing = [] if config else [config_file]
    missing += [] if weights else [os.path.join(folder, _WEIGHTS)]
    missing += huggingface_tokenizer.missing(folder)
    if config is None or missing:
        raise UserError(
            f"{argument} {folder} is not a HuggingFace BERT: there is no file "
            f"{' and no file '.join(missing)}."
        )
    tokenizer = huggingface_tokenizer.read(folder, config.vocab_size)
    source, notes = _read_weights(weights[1:] or weights), []
    head = sorted(filter(_HEAD.match, source))
    if head:
        notes.append(f"dropped the head of a task, {', '.join(head)}.")
    source = {name: value for name, value in source.items() if name not in head}
    tensors = _to_google(source, config, weights[0])
    if _POOLER + "kernel" not in tensors:
        tensors.update(_new_pooler(config))
        notes.append(_NEW_POOLER)
    return Bert(
        config,
        tensors,
        tokenizer.vocab_file,
        tokenizer.do_lower_case,
        tokenizer.tokens,
        tuple(notes),
    )


def find_weights(folder: str, argument: str) -> List[str]:
    """Returns the path of a folder's weights; or of their index and the parts that it lists; or [].

    Args:
      folder: path.
      argument: what errors call the folder.

    Raises:
      UserError: the index is damaged, or names a file outside of the folder.
    """
    for path in (os.path.join(folder, name) for name in (_WEIGHTS, _OLD_WEIGHTS)):
        if gfile.exists(path):
            return [path]
        index = path + _INDEX
        if gfile.exists(index):
            names = json_objects.read_as(index, argument, "index of weights", _parse_index)
            return [index, *(os.path.join(folder, name) for name in names)]
    return []


def _parse_index(content: Dict[str, Any]) -> List[str]:
    names = sorted(set(dict(content["weight_map"]).values()))
    if not names:
        raise ValueError("its weight_map is empty")
    for name in names:
        if os.path.basename(name) != name or not name.endswith((".safetensors", ".bin")):
            raise ValueError(f"found {name!r}, expected the name of a file in its folder")
    return names


def write(folder: str, bert: Bert) -> None:
    """Writes a BERT and, if its casing is known, its tokenizer to an existing folder."""
    write_model(folder, bert.config, bert.tensors)
    bert.write_vocabulary(os.path.join(folder, huggingface_tokenizer.VOCABULARY))
    if bert.do_lower_case is not None:
        huggingface_tokenizer.write(folder, bert.do_lower_case)


def write_model(folder: str, config: configs.BertConfig, tensors: Tensors) -> None:
    """Writes config.json and model.safetensors to an existing folder.

    Args:
      folder: path.
      config: `configs.BertConfig`.
      tensors: dict from Google's names to float32 arrays: the encoder, with or without pretraining
        heads.
    """
    fields = {name: getattr(config, name) for name in _CONFIG_FIELDS}
    fields["hidden_act"] = activation_name(config.hidden_act)
    has_heads = any(name.startswith("cls/") for name in tensors)
    fields["architectures"] = ["BertForPreTraining" if has_heads else "BertModel"]
    with gfile.open_file(os.path.join(folder, CONFIG), "w") as writer:
        writer.write(
            json.dumps({**configs.FIXED_FIELDS, **fields}, indent=2, sort_keys=True) + "\n"
        )
    renamed = {}
    for name, value in tensors.items():
        prefix = "bert." if has_heads and name.startswith("bert/") else ""
        value = value.T if name.endswith("/kernel") else value
        renamed[prefix + parameter_name(name)] = value
    safetensors_files.write(os.path.join(folder, _WEIGHTS), renamed)


def read_config(path: str) -> configs.BertConfig:
    """Loads HuggingFace's config.json as a `configs.BertConfig`.

    Raises:
      UserError: it is damaged, or describes another model than a BERT that is supported.
    """
    fields = json_objects.read_object(path)
    try:
        configs.check_architecture(fields)
        missing = [name for name in _CONFIG_FIELDS if name not in fields]
        if missing:
            raise UserError(f"lacks {', '.join(missing)}.")
        activation = str(fields["hidden_act"])
        if activation not in _ACTIVATIONS:
            expected = ", ".join(_ACTIVATIONS)
            raise UserError(f"hidden_act must be one of {expected}, but is {activation!r}.")
        values = {name: fields[name] for name in _CONFIG_FIELDS}
        config = configs.BertConfig(**{**values, "hidden_act": _ACTIVATIONS[activation]})
        configs.check_config(config)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return config


def _read_weights(paths: List[str]) -> Tensors:
    """Loads the weights in files: a dict from HuggingFace's current names to float32 arrays."""
    tensors: Tensors = {}
    read = ((path, *item) for path in paths for item in read_tensors(path, _BUFFERS).items())
    for path, name, value in read:
        # Task models prefix the encoder with "bert."; the first releases have TensorFlow's names of
        # LayerNorms.
        name = re.sub(r"^bert\.", "", name)
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        name = name.replace("LayerNorm.beta", "LayerNorm.bias")
        if name in tensors:
            raise UserError(f"{path}: holds {name} twice, with two spellings or in two files.")
        tensors[name] = value
    return tensors


def _new_pooler(config: configs.BertConfig) -> Tensors:
    """Returns initial values of a pooler, by Google's names; the same in each conversion."""
    width, stddev = config.hidden_size, config.initializer_range
    values = np.random.RandomState(0).normal(0, stddev, 2 * width * width)
    # BERT's initializer draws values beyond two standard deviations, 5%, again.
    values = values[np.abs(values) <= 2 * stddev][: width * width].astype(np.float32)
    bias = np.zeros([width], np.float32)
    return {_POOLER + "kernel": values.reshape([width, width]), _POOLER + "bias": bias}


def read_tensors(path: str, ignored: Sequence[str] = ()) -> Tensors:
    """Returns the tensors in a file, of PyTorch if its name ends in .bin, otherwise safetensors.

    Args:
      path: of the file.
      ignored: names of tensors to skip.

    Returns:
      A dict from names to float32 arrays.

    Raises:
      UserError: the file is missing or damaged; or a tensor is not float32, float16 or bfloat16.
    """
    if path.endswith(".bin"):
        return pytorch.read(path, ignored)
    return safetensors_files.read(path, f"{path}:", ignored=ignored).tensors


def _to_google(tensors: Tensors, config: configs.BertConfig, path: str) -> Tensors:
    """Converts tensors to the names and layouts of Google's checkpoints.

    Args:
      tensors: dict from HuggingFace's names to arrays; a projection is [output, input].
      config: `configs.BertConfig`.
      path: the file, for errors.

    Returns:
      A dict from Google's names to arrays; a kernel is [input, output]. It lacks the pooler if the
      file does.
    """
    tensors = _without_tied(tensors, path)
    shapes = google_shapes(config, [name.replace(".", "/") for name in tensors])
    has_pooler = any(name.startswith("pooler.") for name in tensors)
    names = {
        parameter_name(name): name for name in shapes if has_pooler or not name.startswith(_POOLER)
    }
    _check_names(set(names), set(tensors), path)
    result = {}
    for name, google_name in names.items():
        value, shape = tensors[name], shapes[google_name]
        if google_name.endswith("/kernel"):
            value = value.T
        if value.shape != shape:
            raise UserError(
                f"{path}: {name} has the shape {list(tensors[name].shape)}, but {CONFIG} requires"
                f" {list(shape)} for {google_name}."
            )
        result[google_name] = value
    return result


def google_shapes(config: configs.BertConfig, names: Iterable[str]) -> model_variables.Shapes:
    """Returns Google's names and shapes for an encoder and its pretraining heads.

    Args:
      config: `configs.BertConfig`.
      names: names of tensors; those that begin with "cls/<head>" show which heads there are.
    """
    heads = {name.split("/")[1] for name in names if name.startswith("cls/")}
    shapes = model_variables.encoder_shapes(config)
    for name, shape in _pretraining_shapes(config).items():
        if name.split("/")[1] in heads:
            shapes[name] = shape
    return shapes


def _without_tied(tensors: Tensors, path: str) -> Tensors:
    """Removes duplicates of tied tensors; raises UserError if they are not equal."""
    tensors = dict(tensors)
    for duplicate, original in _TIED.items():
        if duplicate in tensors:
            value = tensors.pop(duplicate)
            if not np.array_equal(value, tensors.setdefault(original, value)):
                raise UserError(f"{path}: {duplicate} must equal {original} in BERT, but does not.")
    return tensors


def _pretraining_shapes(config: configs.BertConfig) -> model_variables.Shapes:
    """Returns Google's names and shapes for BERT's two pretraining heads."""
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


def activation_name(hidden_act: Optional[str]) -> str:
    """Returns HuggingFace's name for an activation."""
    name = (hidden_act or "linear").lower()
    return {"gelu": "gelu_new", "gelu_erf": "gelu"}.get(name, name)


def parameter_name(name: str) -> str:
    """Converts a tensor's name from Google's to HuggingFace's, without the prefix "bert.".

    bert/encoder/layer_0/attention/self/query/kernel -> encoder.layer.0.attention.self.query.weight
    """
    for pattern, replacement in _RENAMINGS:
        name = re.sub(pattern, replacement, name)
    return name


def _check_names(expected: Set[str], actual: Set[str], path: str) -> None:
    """Raises UserError if tensors are missing or unexpected."""
    problems = [
        f"{len(names)} {problem} ({', '.join(sorted(names)[:10])}{', ...' * (len(names) > 10)})"
        for names, problem in (
            (expected - actual, "tensors that its config requires are missing"),
            (actual - expected, "of its tensors do not belong to BERT"),
        )
        if names
    ]
    if problems:
        raise UserError(f"{path}: {', and '.join(problems)}.")
