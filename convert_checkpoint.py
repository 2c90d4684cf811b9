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
    python convert_checkpoint.py card ADAPTER_DIR
    python convert_checkpoint.py push ADAPTER_DIR OWNER/NAME
    python convert_checkpoint.py describe PATH

BERT_DIR is a folder like those of Google's releases: bert_config.json, vocab.txt and the checkpoint
bert_model.ckpt. ADAPTER_DIR is a task adapter, see task_adapter.py.
"""

from adapter_bert.shell import environment

if __name__ == "__main__":
    environment.prepare(environment.MODELS)

import argparse
import dataclasses
import os
import sys
import types
from typing import Any, Callable, Dict, List, Optional, Tuple

from adapter_bert import __version__, tokenization
from adapter_bert.files import atomic, gfile, paths
from adapter_bert.formats import (
    adapter_checkpoints,
    adapter_folders,
    adapterhub,
    google,
    hub,
    huggingface,
    huggingface_tokenizer,
    onnx_backbone,
    task_adapter,
    tf2,
    tfhub,
)
from adapter_bert.formats import card as cards
from adapter_bert.formats.bert import Bert, count_text
from adapter_bert.model import configs, task_kinds
from adapter_bert.shell import errors, printing
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.squad import squad_features

# The formats that `describe` knows; the first one that matches says what a path is.
_FORMATS = (
    adapterhub,
    adapter_folders,
    tfhub,
    tf2,
    google,
    huggingface,
    adapter_checkpoints,
)


def from_huggingface(
    source: str, destination: str, *, hidden_act: Optional[str] = None, overwrite: bool = False
) -> None:
    """Converts a HuggingFace BERT to Google's format.

    Args:
      source: folder; see `huggingface.read`.
      destination: folder to make, with bert_config.json, vocab.txt and bert_model.ckpt.
      hidden_act: a name in `configs.ACTIVATIONS` to write as the BERT's; by default the source's.
      overwrite: whether to replace an earlier conversion.

    Raises:
      UserError: see `huggingface.read`; or the destination is in use.
    """

    def read() -> Bert:
        bert = huggingface.read(source, "SOURCE_DIR")
        bert.config.hidden_act = hidden_act or bert.config.hidden_act
        return bert

    _convert_bert(read, google, destination, overwrite)


def from_tf2(source: str, destination: str, *, overwrite: bool = False) -> None:
    """Converts a BERT of TensorFlow 2: a SavedModel, or an object-based checkpoint.

    The destination is written atomically. Nothing of a SavedModel is run.

    Args:
      source: folder of the SavedModel, folder of the checkpoint, or the checkpoint's prefix; see
        `tf2.read`.
      destination: folder to make, with bert_config.json, vocab.txt and bert_model.ckpt.
      overwrite: whether to replace an earlier conversion.

    Raises:
      UserError: see `tf2.read`; or the destination is in use, or the source's folder.
    """
    folder = source if gfile.isdir(source) else os.path.dirname(source)
    if destination and paths.is_same_path(folder or ".", destination):
        raise UserError(f"DESTINATION_DIR {destination} is that of SOURCE; use a new folder.")

    def read() -> Bert:
        bert = tf2.read(source, f"SOURCE {source}:")
        _load_vocabulary(bert.vocab_file, bert.config)
        return bert

    _convert_bert(read, google, destination, overwrite)


def _convert_bert(
    read: Callable[[], Bert], form: types.ModuleType, destination: str, overwrite: bool
) -> None:
    """Writes the BERT that a function reads, in a format with `write` and `FILES`."""
    destination = gfile.without_end_slash(destination)
    _check_destination(destination, overwrite, form.FILES)
    bert = read()
    with atomic.atomic_folder(destination) as folder:
        form.write(folder, bert)
    print(f"{destination}: wrote {count_text(bert.tensors)}.")
    for note in bert.notes:
        print(f"{destination}: {note}")
    if bert.do_lower_case is not None:
        print(f"{destination}: its texts need --do_lower_case={bert.do_lower_case}.")


def to_onnx(bert: str) -> None:
    """Writes backbone.onnx, which serve.py and Predictor read.

    Args:
      bert: folder with bert_config.json and bert_model.ckpt; backbone.onnx is written into it, or
        into the cache folder where it cannot be.

    Raises:
      UserError: the BERT is missing, broken or no BERT; neither folder can be written.
    """
    config = configs.BertConfig.from_json_file(os.path.join(bert, google.CONFIG))
    path = onnx_backbone.write(os.path.join(bert, google.CHECKPOINT), config, "BERT_DIR")
    print(f"{path}: wrote {gfile.readable_size(path)}.")


def to_huggingface(bert: str, destination: str, *, overwrite: bool = False) -> None:
    """Converts a BERT, with its pretraining heads, to HuggingFace's format.

    Args:
      bert: folder with bert_config.json, vocab.txt and bert_model.ckpt.
      destination: folder to make.
      overwrite: whether to replace an earlier conversion.

    Raises:
      UserError: the BERT is missing, broken or no BERT; or the destination is in use.
    """

    def read() -> Bert:
        source = google.read(bert, "BERT_DIR")
        vocabulary = _load_vocabulary(source.vocab_file, source.config)
        return source._replace(do_lower_case=_is_lower_cased(bert, vocabulary))

    _convert_bert(read, huggingface, destination, overwrite)


def from_adapter_bert(
    checkpoint: str,
    bert: str,
    adapter: str,
    *,
    task: str,
    labels: Tuple[str, ...],
    max_seq_length: int = 128,
    cased: bool = False,
    overwrite: bool = False,
) -> None:
    """Extracts the task adapter from a checkpoint of google-research/adapter-bert.

    The checkpoint lacks the task's name, labels and casing; the arguments give them. Every tensor
    that adapter tuning does not train must be bit-identical to the pretrained BERT's.

    Args:
      checkpoint: prefix of the checkpoint.
      bert: folder with the BERT that it was trained from.
      adapter: folder to make.
      task, labels, max_seq_length: as in `task_adapter.Description`.
      cased: texts were not lower-cased.
      overwrite: whether to replace a task adapter.

    Raises:
      UserError: the checkpoint holds no adapters, was trained from another BERT, or has another
        number of labels; labels or max_seq_length are none that a task can have.
    """
    _check_destination(adapter, overwrite, task_adapter.FILES, "ADAPTER_DIR")
    if not task:
        raise UserError("--task: expected the task's name, as in MRPC.")
    if not all(labels) or len(set(labels)) < max(2, len(labels)):
        raise UserError(f"--labels={','.join(labels)}: expected two or more names, none twice.")
    description = dataclasses.replace(
        _partial_description(bert, max_seq_length, cased), task=task, labels=tuple(labels)
    )
    loaded = adapter_checkpoints.read(checkpoint, description, google.checkpoint_of(bert))
    task_adapter.save(adapter, loaded)
    print(f"{adapter}: wrote {count_text(loaded.tensors)}.")


def to_full_checkpoint(
    adapter: str, bert: str, checkpoint: str, *, overwrite: bool = False
) -> None:
    """Writes a task adapter and its BERT as one checkpoint for google-research/adapter-bert.

    BERT's own code can use only a checkpoint without adapters, as after full fine-tuning.

    Args:
      adapter: folder of the task adapter.
      bert: folder with the BERT that it was trained on.
      checkpoint: prefix of the checkpoint to write.
      overwrite: whether to replace a checkpoint.

    Raises:
      UserError: the task adapter is damaged or fits another BERT, or there is a checkpoint.
    """
    if checkpoint.endswith("/") or gfile.isdir(checkpoint):
        raise UserError(f"CHECKPOINT {checkpoint} is a folder; expected a prefix, as in full.ckpt.")
    if not checkpoint:
        raise UserError("CHECKPOINT is empty; expected a prefix, as in full.ckpt.")
    if paths.is_same_path(checkpoint, google.checkpoint_of(bert)):
        raise UserError(f"CHECKPOINT {checkpoint} is that of BERT_DIR; use a new name.")
    if gfile.exists(checkpoint + ".index") and not overwrite:
        raise UserError(f"CHECKPOINT {checkpoint} is there already; use a new name or --overwrite.")
    loaded = task_adapter.load(adapter, "ADAPTER_DIR")
    adapter_checkpoints.to_full_checkpoint(
        loaded, google.checkpoint_of(bert), checkpoint, "BERT_DIR"
    )
    backbone = loaded.description.backbone.name
    print(f"{checkpoint}: wrote {backbone} with {count_text(loaded.tensors)}.")
    print(adapter_checkpoints.full_checkpoint_use(loaded.description))


def to_adapterhub(adapter: str, destination: str, *, overwrite: bool = False) -> None:
    """Converts a task adapter to AdapterHub's format, and prints the Python code to load it.

    Args:
      adapter: folder of the task adapter.
      destination: folder to make; see `adapterhub`.
      overwrite: whether to replace an earlier conversion.

    Raises:
      UserError: the adapter is damaged, or the format does not support it.
    """
    _check_destination(destination, overwrite, adapterhub.FILES)
    loaded = task_adapter.load(adapter, "ADAPTER_DIR")
    with atomic.atomic_folder(destination) as folder:
        adapterhub.write(folder, loaded)
    print(f"{destination}: wrote {count_text(loaded.tensors)}. To load them:\n")
    hidden_act = huggingface.activation_name(loaded.description.backbone.config.get("hidden_act"))
    print(adapterhub.LOADING.format(folder=destination, hidden_act=hidden_act))
    lost = {"long_texts", "answers"} & set(loaded.description.training)
    if lost:
        print(
            f"AdapterHub's format does not record {' and '.join(sorted(lost))}: from_adapterhub"
            " makes an adapter with the defaults."
        )


def from_adapterhub(
    source: str,
    bert: str,
    adapter: str,
    *,
    max_seq_length: int = 128,
    cased: bool = False,
    doc_stride: Optional[int] = None,
    max_query_length: Optional[int] = None,
    version_2_with_negative: Optional[bool] = None,
    overwrite: bool = False,
) -> None:
    """Converts a task adapter from AdapterHub's format.

    The format lacks how texts were read in training; the arguments give it.

    Args:
      source: folder; see `adapterhub`.
      bert: folder with the BERT that it was trained on.
      adapter: folder to make.
      max_seq_length: as in `task_adapter.Description`.
      cased: texts were not lower-cased.
      doc_stride, max_query_length, version_2_with_negative: flags of run_squad.py, for an adapter
        that answers questions; None for their defaults.
      overwrite: whether to replace a task adapter.

    Raises:
      UserError: see `adapterhub.read`; the destination is in use; or a flag does not fit.
    """
    _check_destination(adapter, overwrite, task_adapter.FILES, "ADAPTER_DIR")
    flags = {
        "doc_stride": doc_stride,
        "max_query_length": max_query_length,
        "version_2_with_negative": version_2_with_negative,
    }
    training = {name: value for name, value in flags.items() if value is not None}
    description = _partial_description(bert, max_seq_length, cased)
    converted = adapterhub.read(source, dataclasses.replace(description, training=training))
    _check_question_settings(converted.description)
    task_adapter.save(adapter, converted)
    print(f"{adapter}: wrote {count_text(converted.tensors)}.")


def card(adapter: str, *, overwrite: bool = False) -> None:
    """Writes a task adapter's card, README.md.

    Args:
      adapter: folder of the task adapter.
      overwrite: whether to replace a card.

    Raises:
      UserError: the task adapter is damaged, or has a card.
    """
    loaded = task_adapter.load(adapter, "ADAPTER_DIR")
    path = os.path.join(adapter, cards.FILE)
    if gfile.exists(path) and not overwrite:
        raise UserError(f"ADAPTER_DIR {adapter} has a card already; replace it by --overwrite.")
    atomic.write_atomically(path, task_adapter.card_of(loaded))
    print(f"Wrote {path}.")


def push(adapter: str, repository: str, *, private: bool = False) -> None:
    """Uploads a task adapter and its card to the Hugging Face Hub.

    Args:
      adapter: folder of the task adapter.
      repository: owner/name on the Hub.
      private: a new repository is private.

    Raises:
      UserError: see `hub.push`.
    """
    address = hub.push(adapter, repository, private=private)
    print(f"Pushed; use it by --adapter={address}")


def describe(path: str) -> None:
    """Describes a task adapter, a run, a BERT or a checkpoint.

    Args:
      path: a folder, a checkpoint's prefix, a file, or hf://owner/name of an adapter on the Hub.

    Raises:
      UserError: it is of none of the formats, or damaged.
    """
    path = gfile.without_end_slash(hub.local_folder(path, "PATH"))
    for form in _FORMATS:
        if form.matches(path):
            print("\n".join(map(printing.one_line, form.describe(path, "PATH"))))
            return
    problem = "is of an unknown format" if gfile.exists(path) else "does not exist"
    raise UserError(
        f"PATH {path} {problem}; expected a task adapter, a run's output_dir, a BERT, an AdapterHub"
        " adapter, or a checkpoint's prefix."
    )


def _partial_description(bert: str, max_seq_length: int, cased: bool) -> "task_adapter.Description":
    """Returns a description of what other formats do not say, otherwise empty."""
    config, _ = google.open_folder(bert, "BERT_DIR")
    min_length, max_length = configs.MIN_SEQ_LENGTH, config.max_position_embeddings
    if not min_length <= max_seq_length <= max_length:
        raise UserError(
            f"--max_seq_length={max_seq_length}: expected {min_length} to {max_length}, the"
            f" positions of BERT_DIR {bert}."
        )
    vocabulary = _load_vocabulary(os.path.join(bert, google.VOCABULARY), config)
    try:
        _check_casing(bert, vocabulary, not cased)
    except UserError:
        advice = "lower-cased: omit --cased" if cased else "cased: add --cased"
        raise UserError(f"BERT_DIR {bert} is {advice}.") from None
    return task_adapter.Description(
        task="",
        kind="classification",
        labels=(),
        max_seq_length=max_seq_length,
        do_lower_case=not cased,
        vocabulary=task_adapter.digest(vocabulary),
        backbone=adapter_checkpoints.backbone_of(google.checkpoint_of(bert), config),
        tuning=configs.Tuning(),
        adapter=None,
        global_step=0,
        training={},
        scores={},
        versions=task_adapter.versions(),
    )


def _check_question_settings(description: "task_adapter.Description") -> None:
    """Checks the settings of reading questions, as a training does; raises UserError."""
    kind = task_kinds.get(description.kind)
    if "question" in kind.fields:
        settings = squad_features.trained_settings(description.training)
        del settings["version_2_with_negative"]
        squad_features.check_limits(squad_features.Limits(description.max_seq_length, **settings))
    elif description.training:
        raise UserError(
            f"--{min(description.training)} requires an adapter that answers questions, but this"
            f" one is for {kind.name}."
        )


def _load_vocabulary(path: str, config: configs.BertConfig) -> Dict[str, int]:
    """Returns a vocabulary, token → id; raises UserError if it does not fit the BERT."""
    vocabulary = tokenization.load_vocab(path)
    tokenization.check_vocab_size(vocabulary, config.vocab_size, path)
    return vocabulary


def _is_lower_cased(bert: str, vocabulary: Dict[str, int]) -> bool:
    """Returns whether neither a BERT's vocabulary nor Google's name for it is cased."""
    try:
        _check_casing(os.path.abspath(bert), vocabulary, do_lower_case=True)
    except UserError:
        return False
    return True


def _check_casing(bert: str, vocabulary: Dict[str, int], do_lower_case: bool) -> None:
    """Raises UserError if a BERT's vocabulary, or Google's name for it, has another casing."""
    path = os.path.join(bert, google.VOCABULARY)
    tokenization.check_vocab_casing(vocabulary, do_lower_case, path)
    tokenization.validate_case_matches_checkpoint(do_lower_case, google.checkpoint_of(bert))


def _check_destination(
    destination: str,
    overwrite: bool,
    expected_files: Tuple[str, ...],
    argument: str = "DESTINATION_DIR",
) -> None:
    """Raises UserError unless the destination is free, or holds what may be replaced."""
    where = f"{argument} {destination}"
    if not destination:
        raise UserError(f"{argument} is empty; expected the name of a new folder.")
    if not gfile.exists(destination):
        return
    if not gfile.isdir(destination):
        raise UserError(f"{where} is a file; expected a folder or a new name.")
    existing = set(gfile.listdir(destination)) - {onnx_backbone.FILE}  # Made of the others.
    # Conversions of earlier versions lack these.
    added = {task_adapter.FILES: cards.FILE, huggingface.FILES: huggingface_tokenizer.CONFIG}
    if added.get(expected_files) in existing:
        expected_files = (*expected_files, added[expected_files])
    if existing and existing != set(expected_files):
        mismatched = min(existing ^ set(expected_files))
        problem = "holds" if mismatched in existing else "lacks"
        raise UserError(
            f"{where} is no conversion of this kind: it {problem} {mismatched}; use a new folder."
        )
    if existing and not overwrite:
        raise UserError(f"{where} holds a conversion already; use a new folder, or --overwrite.")


def main(argv: Optional[List[str]] = None) -> None:
    """Runs the subcommand that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    version = f"adapter-bert {__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for function, arguments in _COMMANDS.items():
        summary = (function.__doc__ or "").split("\n")[0].rstrip(".")
        command = commands.add_parser(function.__name__, help=summary, description=summary)
        for name, options in arguments.items():
            command.add_argument(name, **options)
        command.set_defaults(function=function)
    parsed = vars(parser.parse_args(argv))
    environment.load()
    parsed.pop("function")(**parsed)


def _parse_labels(text: str) -> Tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


_Arguments = Dict[str, Dict[str, Any]]  # Name → options of argparse.


def _folder_argument(name: str, text: str) -> _Arguments:
    return {name: {"metavar": f"{name.upper()}_DIR", "help": text}}


_BERT_ARGUMENT = _folder_argument(
    "bert", "folder with bert_config.json, vocab.txt and bert_model.ckpt"
)
_ADAPTER_ARGUMENT = _folder_argument("adapter", "task adapter, such as output/mrpc/adapter")
_DESTINATION_ARGUMENT = _folder_argument("destination", "output folder")
_OVERWRITE_FLAG = {"--overwrite": {"action": "store_true", "help": "replace existing files"}}
_TEXT_FLAGS: _Arguments = {
    "--max_seq_length": {
        "type": int,
        "default": 128,
        "help": "maximum length of texts in training, in tokens (default: 128)",
    },
    "--cased": {"action": "store_true", "help": "the training texts were not lower-cased"},
}
_QUESTION_FLAGS: _Arguments = {
    "--doc_stride": {
        "type": int,
        "help": f"questions: stride of the windows (default: {squad_features.DOC_STRIDE})",
    },
    "--max_query_length": {
        "type": int,
        "help": f"questions: maximum tokens (default: {squad_features.MAX_QUERY_LENGTH})",
    },
    "--version_2_with_negative": {
        "action": "store_true",
        "default": None,
        "help": "questions may have no answer, as in SQuAD 2.0",
    },
}
_CHECKPOINT_ARGUMENT = {"checkpoint": {"metavar": "CHECKPOINT", "help": "prefix of a checkpoint"}}

_COMMANDS: Dict[Callable[..., None], _Arguments] = {
    from_huggingface: {
        **_folder_argument(
            "source", "folder with config.json, model.safetensors, and vocab.txt or tokenizer.json"
        ),
        **_DESTINATION_ARGUMENT,
        "--hidden_act": {
            "choices": configs.ACTIVATIONS,
            "metavar": "NAME",
            "help": "activation, instead of the source's: gelu for adapters of a BERT that an older"
            " version converted, which took HuggingFace's gelu for Google's",
        },
        **_OVERWRITE_FLAG,
    },
    from_tf2: {
        "source": {"metavar": "SOURCE", "help": "SavedModel, or folder or prefix of a checkpoint"},
        **_DESTINATION_ARGUMENT,
        **_OVERWRITE_FLAG,
    },
    to_onnx: {
        "bert": {"metavar": "BERT_DIR", "help": "folder with bert_config.json and bert_model.ckpt"}
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
            "help": "names of the labels in the head's order, as in 0,1",
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
            "source", "folder that save_adapter wrote, optionally with layer_norms.safetensors"
        ),
        **_BERT_ARGUMENT,
        **_ADAPTER_ARGUMENT,
        **_TEXT_FLAGS,
        **_QUESTION_FLAGS,
        **_OVERWRITE_FLAG,
    },
    card: {**_ADAPTER_ARGUMENT, **_OVERWRITE_FLAG},
    push: {
        **_ADAPTER_ARGUMENT,
        "repository": {"metavar": "OWNER/NAME", "help": "repository on the Hub"},
        "--private": {"action": "store_true", "help": "make a new repository private"},
    },
    describe: {"path": {"metavar": "PATH", "help": "task adapter, run, BERT or checkpoint"}},
}


if __name__ == "__main__":
    sys.exit(errors.exit_code(main))
