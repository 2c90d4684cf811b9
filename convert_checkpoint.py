"""Converts pretrained weights and task adapters from and to other formats, and describes them.

    python convert_checkpoint.py from_huggingface SOURCE_DIR BERT_DIR
    python convert_checkpoint.py from_tf2 SOURCE BERT_DIR
    python convert_checkpoint.py to_huggingface BERT_DIR DESTINATION_DIR
    python convert_checkpoint.py from_adapter_bert CHECKPOINT BERT_DIR ADAPTER_DIR \\
        --task=MRPC --labels=0,1
    python convert_checkpoint.py to_full_checkpoint ADAPTER_DIR BERT_DIR CHECKPOINT
    python convert_checkpoint.py to_adapterhub ADAPTER_DIR DESTINATION_DIR
    python convert_checkpoint.py from_adapterhub SOURCE_DIR BERT_DIR ADAPTER_DIR
    python convert_checkpoint.py to_onnx BERT_DIR
    python convert_checkpoint.py describe PATH

BERT_DIR is a folder like those of Google's releases: bert_config.json, vocab.txt and the checkpoint
bert_model.ckpt. ADAPTER_DIR is a task adapter, see task_adapter.py.
"""

from adapter_bert.common import environment

if __name__ == "__main__":
    environment.prepare(environment.MODELS)

import argparse
import collections
import dataclasses
import functools
import os
import sys

import numpy as np

import tokenization
import tuning
from adapter_bert.common import configs, errors, files, model_variables, paths
from adapter_bert.common.errors import UserError
from adapter_bert.formats import (
    adapter_checkpoints,
    adapterhub,
    checkpoints,
    huggingface,
    onnx_backbone,
    task_adapter,
    tf2,
)
from adapter_bert.tasks import classifier_features

_CONFIG, _CHECKPOINT = "bert_config.json", "bert_model.ckpt"
_GOOGLE_FILES = (
    _CONFIG,
    paths.BERT_FILES["vocab_file"],
    _CHECKPOINT + ".index",
    _CHECKPOINT + ".data-00000-of-00001",
)


def from_huggingface(source, destination, *, overwrite=False):
    """Converts a HuggingFace BERT; the destination appears whole or not at all.

    Args:
      source: folder with config.json, model.safetensors and vocab.txt.
      destination: folder to make, with bert_config.json, vocab.txt and bert_model.ckpt.
      overwrite: whether to replace an earlier conversion.

    Raises:
      UserError: see `huggingface.read`; or the destination is in use.
    """
    destination = destination.rstrip("/") or "/"
    _check_destination(destination, overwrite, _GOOGLE_FILES)
    config, tensors, vocab_file = huggingface.read(source, "SOURCE_DIR")
    _write_bert(destination, config, tensors, vocab_file)


def from_tf2(source, destination, *, overwrite=False):
    """Converts a BERT of TensorFlow 2: a SavedModel of an encoder, or an object-based checkpoint.

    The destination is written atomically. Nothing of a SavedModel is run.

    Args:
      source: folder of the SavedModel, folder of the checkpoint, or the checkpoint's prefix; see
        `tf2.read`.
      destination: folder to make, with bert_config.json, vocab.txt and bert_model.ckpt.
      overwrite: whether to replace an earlier conversion.

    Raises:
      UserError: see `tf2.read`; or the destination is in use.
    """
    destination = destination.rstrip("/") or "/"
    _check_destination(destination, overwrite, _GOOGLE_FILES)
    encoder = tf2.read(source, f"SOURCE {source}:")
    _write_bert(destination, encoder.config, encoder.tensors, encoder.vocab_file)
    if encoder.do_lower_case is not None:
        print(f"{destination}: its texts need --do_lower_case={encoder.do_lower_case}.")


def _write_bert(destination, config, tensors, vocab_file):
    with files.atomic_folder(destination) as folder:
        with files.open_file(os.path.join(folder, _CONFIG), "w") as writer:
            writer.write(config.to_json_string())
        files.copy(vocab_file, os.path.join(folder, huggingface.VOCABULARY))
        checkpoints.write(os.path.join(folder, _CHECKPOINT), tensors)
    print(f"{destination}: wrote {_count_text(tensors)}.")


def to_onnx(bert):
    """Converts a BERT for ONNX Runtime, as banks and predictors do when they first need it.

    Args:
      bert: folder with bert_config.json and bert_model.ckpt; backbone.onnx is written into it, or
        into the cache folder where it cannot be.

    Raises:
      UserError: the BERT is missing, broken or no BERT; neither folder can be written.
    """
    config = configs.BertConfig.from_json_file(os.path.join(bert, _CONFIG))
    path = onnx_backbone.write(os.path.join(bert, _CHECKPOINT), config, "BERT_DIR")
    print(f"{path}: wrote {files.readable_size(path)}.")


def to_huggingface(bert, destination, *, overwrite=False):
    """Converts a BERT with Google's names to HuggingFace's format, with its pretraining heads.

    Args:
      bert: folder with bert_config.json, vocab.txt and bert_model.ckpt.
      destination: folder to make.
      overwrite: whether to replace an earlier conversion.

    Raises:
      UserError: the BERT is missing, broken or no BERT; or the destination is in use.
    """
    destination = destination.rstrip("/") or "/"
    _check_destination(destination, overwrite, huggingface.FILES)
    config, reader = _open_bert(bert)
    shapes = huggingface.google_shapes(config, reader.get_variable_to_shape_map())
    tensors = {name: checkpoints.read_tensor(reader, name, f"BERT_DIR {bert}") for name in shapes}
    with files.atomic_folder(destination) as folder:
        huggingface.write(folder, config, tensors)
        vocab_file = os.path.join(bert, huggingface.VOCABULARY)
        files.copy(vocab_file, os.path.join(folder, huggingface.VOCABULARY))
    print(f"{destination}: wrote {_count_text(tensors)}.")


def from_adapter_bert(
    checkpoint, bert, adapter, *, task, labels, max_seq_length=128, cased=False, overwrite=False
):
    """Takes the task adapter out of a checkpoint of the original adapter-bert's.

    What such a checkpoint does not say must be told. All of it that adapters do not train must
    equal the pretrained BERT to the last bit.

    Args:
      checkpoint: prefix of the checkpoint.
      bert: folder with the BERT that it was trained from.
      adapter: folder to make.
      task, labels, max_seq_length: as in `task_adapter.Description`.
      cased: bool; texts were not lower-cased.
      overwrite: whether to replace a task adapter.

    Raises:
      UserError: the checkpoint holds no adapters, was trained from another BERT, or has another
        number of labels; labels or max_seq_length are none that a task can have.
    """
    _check_destination(adapter, overwrite, task_adapter.FILES, "ADAPTER_DIR")
    if not all(labels) or len(set(labels)) < len(labels):
        raise UserError(f"--labels={','.join(labels)}: expected names, none of them twice.")
    config, reader = _open_bert(bert)
    where = f"CHECKPOINT {checkpoint}"
    checkpoint_tensors = checkpoints.trained_tensors(checkpoint, "CHECKPOINT")
    bias = checkpoint_tensors.get("output_bias")
    if bias is not None and bias.size != len(labels):
        raise UserError(f"--labels={','.join(labels)}: {where} has {bias.size} outputs.")
    description = dataclasses.replace(
        _partial_description(bert, config, max_seq_length, cased),
        task=task,
        labels=tuple(labels),
        adapter=configs.AdapterConfig(_adapter_size(checkpoint_tensors, where)),
        global_step=checkpoints.step_of(checkpoint, "CHECKPOINT"),
    )
    expected_shapes = task_adapter.shapes(description)
    for name in sorted(set(checkpoint_tensors) - set(expected_shapes)):
        read = functools.partial(checkpoints.read_tensor, reader, name, f"BERT_DIR {bert}")
        if not reader.has_tensor(name) or not np.array_equal(checkpoint_tensors[name], read()):
            raise UserError(f"{where} was not trained from BERT_DIR {bert}: {name} differs.")
    tensors = {
        name: checkpoint_tensors[name] for name in expected_shapes if name in checkpoint_tensors
    }
    task_adapter.check_tensors(tensors, description, where)
    task_adapter.save(adapter, task_adapter.TaskAdapter(description, tensors))
    print(f"{adapter}: wrote {_count_text(tensors)}.")


def to_full_checkpoint(adapter, bert, checkpoint, *, overwrite=False):
    """Writes a task adapter and its backbone as one checkpoint, for adapter-bert's code.

    BERT's own code can load only those that have no adapters, as of a full fine-tuning.

    Args:
      adapter: folder of the task adapter.
      bert: folder with the BERT that it was trained on.
      checkpoint: prefix of the checkpoint to write.
      overwrite: whether to replace a checkpoint.

    Raises:
      UserError: the task adapter is damaged or fits another BERT, or there is a checkpoint.
    """
    if files.exists(checkpoint + ".index") and not overwrite:
        raise UserError(f"CHECKPOINT {checkpoint} is there already; use a new name or --overwrite.")
    loaded = task_adapter.load(adapter, "ADAPTER_DIR")
    adapter_checkpoints.to_full_checkpoint(
        loaded, os.path.join(bert, _CHECKPOINT), checkpoint, "BERT_DIR"
    )
    backbone = loaded.description.backbone.name
    print(f"{checkpoint}: wrote {backbone} with {_count_text(loaded.tensors)}.")
    print(adapter_checkpoints.full_checkpoint_use(loaded.description))


def to_adapterhub(adapter, destination, *, overwrite=False):
    """Converts a task adapter to AdapterHub's format; prints the lines of Python that load it.

    Args:
      adapter: folder of the task adapter.
      destination: folder to make; see `adapterhub`.
      overwrite: whether to replace an earlier conversion.

    Raises:
      UserError: it is damaged, or the format has no place for it.
    """
    _check_destination(destination, overwrite, adapterhub.FILES)
    loaded = task_adapter.load(adapter, "ADAPTER_DIR")
    with files.atomic_folder(destination) as folder:
        adapterhub.write(folder, loaded)
    print(f"{destination}: wrote {_count_text(loaded.tensors)}. To load them:\n")
    hidden_act = huggingface.activation_name(loaded.description.backbone.config.get("hidden_act"))
    print(adapterhub.LOADING.format(folder=destination, hidden_act=hidden_act))


def from_adapterhub(source, bert, adapter, *, max_seq_length=128, cased=False, overwrite=False):
    """Converts a task adapter from AdapterHub's format.

    What that format does not say must be told.

    Args:
      source: folder; see `adapterhub`.
      bert: folder with the BERT that it was trained on.
      adapter: folder to make.
      max_seq_length: as in `task_adapter.Description`.
      cased: bool; texts were not lower-cased.
      overwrite: whether to replace a task adapter.

    Raises:
      UserError: see `adapterhub.read`; or the destination is in use.
    """
    _check_destination(adapter, overwrite, task_adapter.FILES, "ADAPTER_DIR")
    config, _ = _open_bert(bert)
    converted = adapterhub.read(source, _partial_description(bert, config, max_seq_length, cased))
    task_adapter.save(adapter, converted)
    print(f"{adapter}: wrote {_count_text(converted.tensors)}.")


def describe(path):
    """Prints what a task adapter, a checkpoint, or a folder that holds a BERT or a run is.

    Args:
      path: a folder or a checkpoint's prefix; of a run's folder the task adapter is meant.

    Raises:
      UserError: it is none of these, or damaged.
    """
    path = path.rstrip("/") or "/"
    for name, describe_folder in (
        (adapterhub.HEAD_CONFIG, _describe_adapterhub),
        (task_adapter.CONFIG_FILE, _describe_adapter),
        (os.path.join(task_adapter.FOLDER, task_adapter.CONFIG_FILE), _describe_run),
        (_CHECKPOINT + ".index", _describe_bert),
        (huggingface.CONFIG, _describe_huggingface),
    ):
        if files.exists(os.path.join(path, name)):
            lines = describe_folder(path)
            break
    else:
        lines = _describe_checkpoint(path)
    print("\n".join(lines))


def _describe_adapter(folder):
    loaded = task_adapter.load(folder, "PATH")
    description = loaded.description
    adapter = description.adapter
    adapters = f"adapters of size {adapter.size}, " if adapter else ""
    if adapter and adapter.variant():
        variant = ", ".join(f"{name} {value}" for name, value in adapter.variant().items())
        adapters = f"adapters of size {adapter.size} ({variant}), "
    parameters = task_adapter.parameters(loaded.tensors)
    lines = [
        f"Task adapter: {description.task}, {description.kind}, trained with {adapters}"
        f"--tuning={description.tuning.method}, {description.global_step} steps",
        f"Labels: {', '.join(description.labels) or 'none'}",
        f"Holds: {_count_text(parameters)}, {files.readable_size(folder + '/')}",
        f"Backbone: {description.backbone.name}, fingerprint {description.backbone.fingerprint}",
    ]
    scores = ", ".join(f"{name} {value:.4f}" for name, value in sorted(description.scores.items()))
    return lines + ([f"Dev scores: {scores}"] if scores else [])


def _describe_run(folder):
    return _describe_adapter(os.path.join(folder, task_adapter.FOLDER))


def _describe_adapterhub(folder):
    where = f"PATH {folder}"
    name, adapter, head, tensors = adapterhub.read_files(folder, where)
    return [
        f"AdapterHub task adapter: {name}, {adapter.get('architecture') or 'bottleneck'}, reduction"
        f" factor {adapter.get('reduction_factor')}, {adapter.get('non_linearity')}",
        f"Labels: {', '.join(adapterhub.labels_of(head, where)) or 'none'}",
        f"Holds: {_count_text(tensors)}, {files.readable_size(folder + '/')}",
    ]


def _describe_bert(folder):
    return _describe_checkpoint(os.path.join(folder, _CHECKPOINT))


def _describe_checkpoint(prefix):
    reader = checkpoints.open_checkpoint(prefix, "PATH")
    shapes = reader.get_variable_to_shape_map()
    parameters = collections.Counter()
    for name, shape in shapes.items():
        if name == checkpoints.IDENTITY:
            continue
        parameters[_model_part(name)] += int(np.prod(shape, dtype=np.int64))
    is_one_file = not files.exists(prefix + ".index")  # Of the first format.
    size = files.readable_size(prefix if is_one_file else prefix + ".")
    lines = [
        f"Checkpoint: {len(shapes)} tensors, {size}",
        *(f"{part}: {count:,} parameters" for part, count in sorted(parameters.items())),
    ]
    where = f"PATH {prefix}"
    if "bert/embeddings/word_embeddings" in shapes and "bert/encoder/layer_0/" in "\n".join(shapes):
        sizes = checkpoints.encoder_sizes(shapes, where)
        missing = [name for name in model_variables.encoder_shapes(sizes) if name not in shapes]
        if missing:
            return [*lines, f"No whole BERT: it lacks {len(missing)} tensors, as {missing[0]}"]
        read = functools.partial(checkpoints.read_tensor, reader, where=where)
        lines.append(_describe_encoder(sizes, read))
    return lines


def _describe_huggingface(folder):
    config, tensors, _ = huggingface.read(folder, "PATH")
    return [f"HuggingFace BERT: {_count_text(tensors)}", _describe_encoder(config, tensors.get)]


def _describe_encoder(config, get_tensor):
    return (
        f"BERT: {config.num_hidden_layers} layers, hidden size {config.hidden_size}, fingerprint"
        f" {model_variables.fingerprint(get_tensor, config)}"
    )


def _model_part(name):
    """Which part of a model a tensor of a checkpoint is."""
    if name == checkpoints.GLOBAL_STEP:
        return "Step"
    if name.endswith(checkpoints.MOMENTS):
        return "Optimizer"
    if name.endswith(model_variables.MOVING):
        return "Statistics"
    if name.startswith("cls/"):
        return "Pretraining heads"
    try:
        kind = model_variables.role_of(name, ["bert/"]).kind
    except ValueError:
        return "Others"
    return {"adapter": "Adapters", "head": "Head"}.get(kind, "Backbone")


def _open_bert(folder):
    """(`configs.BertConfig`, checkpoint reader) of a folder like those of Google's releases."""
    config = configs.BertConfig.from_json_file(os.path.join(folder, _CONFIG))
    prefix = os.path.join(folder, _CHECKPOINT)
    checkpoints.check_encoder(prefix, config, "BERT_DIR")
    if not files.exists(os.path.join(folder, huggingface.VOCABULARY)):
        raise UserError(f"BERT_DIR {folder}: there is no {huggingface.VOCABULARY} in it.")
    return config, checkpoints.open_checkpoint(prefix, "BERT_DIR")


def _adapter_size(tensors, where):
    sizes = {value.shape[-1] for name, value in tensors.items() if name.endswith("/weights1")}
    if len(sizes) != 1:
        raise UserError(f"{where}: expected adapters of one size, found {sorted(sizes) or 'none'}.")
    return sizes.pop()


def _partial_description(bert, config, max_seq_length, cased):
    """A `task_adapter.Description` of what other formats do not say; the rest is to be filled."""
    min_length, max_length = classifier_features.MIN_SEQ_LENGTH, config.max_position_embeddings
    if not min_length <= max_seq_length <= max_length:
        raise UserError(
            f"--max_seq_length={max_seq_length}: expected {min_length} to {max_length}, the"
            f" positions of BERT_DIR {bert}."
        )
    vocabulary = tokenization.load_vocab(os.path.join(bert, huggingface.VOCABULARY))
    return task_adapter.Description(
        task="",
        kind="classification",
        labels=(),
        max_seq_length=max_seq_length,
        do_lower_case=not cased,
        vocabulary=task_adapter.digest(vocabulary),
        backbone=adapter_checkpoints.backbone_of(os.path.join(bert, _CHECKPOINT), config),
        tuning=tuning.Tuning(),
        adapter=None,
        global_step=0,
        training={},
        scores={},
        versions=task_adapter.versions(),
    )


def _count_text(tensors):
    parameters = sum(value.size for value in tensors.values())
    return f"{len(tensors)} tensors, {parameters:,} parameters"


def _check_destination(destination, overwrite, expected_files, argument="DESTINATION_DIR"):
    """Raises UserError unless the destination is free, or holds what may be replaced."""
    where = f"{argument} {destination}"
    if not files.exists(destination):
        return
    if not files.isdir(destination):
        raise UserError(f"{where} is a file; expected a folder or a new name.")
    existing = set(files.listdir(destination)) - {onnx_backbone.FILE}  # Made of the others.
    if existing and existing != set(expected_files):
        mismatched = min(existing ^ set(expected_files))
        problem = "holds" if mismatched in existing else "lacks"
        raise UserError(
            f"{where} is no conversion of this kind: it {problem} {mismatched}; use a new folder."
        )
    if existing and not overwrite:
        raise UserError(f"{where} holds a conversion already; use a new folder, or --overwrite.")


def main(argv=None):
    """Runs the subcommand that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for function, arguments in _COMMANDS.items():
        summary = (function.__doc__ or "").split("\n")[0].rstrip(".")
        command = commands.add_parser(function.__name__, help=summary, description=summary)
        for name, options in arguments.items():
            command.add_argument(name, **options)
        command.set_defaults(function=function)
    arguments = vars(parser.parse_args(argv))
    environment.load()
    arguments.pop("function")(**arguments)


def _parse_labels(text):
    return tuple(name.strip() for name in text.split(","))


def _folder_argument(name, text):
    return {name: {"metavar": f"{name.upper()}_DIR", "help": text}}


_BERT_ARGUMENT = _folder_argument("bert", "holds bert_config.json, vocab.txt and bert_model.ckpt")
_ADAPTER_ARGUMENT = _folder_argument(
    "adapter", "a task adapter, as a run leaves it in output_dir/adapter"
)
_DESTINATION_ARGUMENT = _folder_argument("destination", "the folder to make")
_OVERWRITE_FLAG = {"--overwrite": {"action": "store_true", "help": "replace what is there"}}
_TEXT_FLAGS = {
    "--max_seq_length": {"type": int, "default": 128, "help": "tokens to which texts were cut"},
    "--cased": {"action": "store_true", "help": "texts were not lower-cased"},
}
_CHECKPOINT_ARGUMENT = {"checkpoint": {"metavar": "CHECKPOINT", "help": "a checkpoint's prefix"}}

_COMMANDS = {
    from_huggingface: {
        **_folder_argument("source", "holds config.json, model.safetensors and vocab.txt"),
        **_DESTINATION_ARGUMENT,
        **_OVERWRITE_FLAG,
    },
    from_tf2: {
        "source": {"metavar": "SOURCE", "help": "a SavedModel, or a checkpoint's folder or prefix"},
        **_DESTINATION_ARGUMENT,
        **_OVERWRITE_FLAG,
    },
    to_onnx: {
        "bert": {"metavar": "BERT_DIR", "help": "holds bert_config.json and bert_model.ckpt"}
    },
    to_huggingface: {**_BERT_ARGUMENT, **_DESTINATION_ARGUMENT, **_OVERWRITE_FLAG},
    from_adapter_bert: {
        **_CHECKPOINT_ARGUMENT,
        **_BERT_ARGUMENT,
        **_ADAPTER_ARGUMENT,
        "--task": {"required": True, "help": "name of the task, such as MRPC"},
        "--labels": {
            "required": True,
            "type": _parse_labels,
            "help": "in the head's order, as in 0,1",
        },
        **_TEXT_FLAGS,
        **_OVERWRITE_FLAG,
    },
    to_full_checkpoint: {
        **_ADAPTER_ARGUMENT,
        **_BERT_ARGUMENT,
        **_CHECKPOINT_ARGUMENT,
        **_OVERWRITE_FLAG,
    },
    to_adapterhub: {**_ADAPTER_ARGUMENT, **_DESTINATION_ARGUMENT, **_OVERWRITE_FLAG},
    from_adapterhub: {
        **_folder_argument(
            "source", "what save_adapter wrote; layer_norms.safetensors may lie there, too"
        ),
        **_BERT_ARGUMENT,
        **_ADAPTER_ARGUMENT,
        **_TEXT_FLAGS,
        **_OVERWRITE_FLAG,
    },
    describe: {"path": {"metavar": "PATH", "help": "an adapter, a run, a BERT or a checkpoint"}},
}


if __name__ == "__main__":
    sys.exit(errors.exit_code(main))
