"""Writes a SavedModel or an ONNX file of one task, or of many over one BERT.

    python export_model.py --adapters=output/mrpc/adapter --export_dir=exported/mrpc
    python export_model.py --adapters=output/mrpc/adapter,output/sms_spam/adapter \\
        --export_dir=exported/tasks --raw_text
    python export_model.py --adapters=output/mrpc/adapter --export_dir=exported/mrpc --format=onnx

TensorFlow Serving and TensorFlow 2 run a SavedModel, ONNX Runtime runs an ONNX file.
`saved_model_cli show --all --dir` lists a SavedModel's inputs and outputs.
"""

from adapter_bert.shell import environment

if __name__ == "__main__":
    environment.prepare(environment.MODELS)

import dataclasses
from typing import Any, List, Optional, Tuple

from absl import logging

from adapter_bert import tokenization
from adapter_bert.files import gfile
from adapter_bert.formats import (
    adapter_checkpoints,
    adapter_folders,
    onnx_backbone,
    task_adapter,
)
from adapter_bert.model import configs, task_kinds
from adapter_bert.ops import devices
from adapter_bert.serving.export import in_graph_tokenizer, saved_model
from adapter_bert.serving.inference import compatibility
from adapter_bert.shell import cli
from adapter_bert.shell.errors import UserError
from adapter_bert.shell.settings import flag
from adapter_bert.training import pretrained
from adapter_bert.training.config import PretrainedConfig


@dataclasses.dataclass(frozen=True)
class ExportConfig(PretrainedConfig):
    """The settings of this script."""

    adapters: Tuple[str, ...] = flag((), adapter_folders.FLAG_HELP, "Tasks")
    export_dir: Optional[str] = flag(
        None, "Output folder. The model is written to a new numbered folder in it.", "Output"
    )
    format: str = flag(
        "saved_model", "Format of the model.", "Output", choices=("saved_model", "onnx")
    )
    precision: str = flag(
        "float32",
        "Precision of an ONNX file. int8 quantizes BERT's matrix products; adapters and heads stay"
        " float32.",
        "Output",
        choices=("float32", "int8"),
    )
    raw_text: bool = flag(
        False,
        "Add signatures that accept texts. Loading the model then needs tensorflow-text.",
        "Output",
    )

    def __post_init__(self) -> None:
        for name in ("adapters", "export_dir"):
            if not getattr(self, name):
                raise UserError(f"--{name} is not given.")
        if self.format == "onnx" and self.raw_text:
            raise UserError("--raw_text requires --format=saved_model; ONNX has token ids only.")
        if self.format != "onnx" and self.precision != "float32":
            raise UserError(f"--precision={self.precision} requires --format=onnx.")


def run(values: Any) -> List[str]:
    """Writes the model; returns the report, a list of lines.

    Raises:
      UserError: a flag is wrong, a file is missing, broken or incompatible, or this is
        TensorFlow 1.
    """
    devices.require_tensorflow_2("export_model.py")
    config = ExportConfig.from_flags(values)
    is_onnx = config.format == "onnx"
    bert = pretrained.find(config, reads_texts=config.raw_text or is_onnx)
    backbone = adapter_checkpoints.backbone_of(bert.init_checkpoint, bert.config)
    adapters = {}
    for name, folder in adapter_folders.match_patterns(config.adapters).items():
        adapters[name] = task_adapter.load(folder, "--adapters")
        where = f"--adapters {folder}"
        compatibility.check_compatible(adapters[name].description, backbone, where)
        task_adapter.check_finite(adapters[name].tensors, where)
    if bert.vocab_file:
        _check_vocabulary(_read_tokenizer(config, bert.vocab_file, True), bert.vocab_file, adapters)
    _log_precision(adapters, config.precision)
    tasks = ", ".join(f"{name} ({a.description.kind})" for name, a in adapters.items())
    if is_onnx:
        path = _write_onnx(config, bert, adapters)
        return [f"Tasks: {tasks}", f"ONNX file: {path} ({gfile.readable_size(path)})"]
    encode_texts = None
    if config.raw_text:
        _check_no_windows(adapters)
        tokenizer = _tokenizer(config, str(bert.vocab_file), adapters)
        encode_texts = in_graph_tokenizer.make_encoder(tokenizer)
    path = saved_model.write(
        str(config.export_dir), bert.config, bert.init_checkpoint, adapters, encode_texts
    )
    size = gfile.readable_size(path + "/variables/")
    return [f"Tasks: {tasks}", f"SavedModel: {path} ({size})"]


def _write_onnx(
    config: ExportConfig, bert: configs.PretrainedBert, adapters: "saved_model.Adapters"
) -> str:
    """Writes the ONNX file; returns its path."""
    from adapter_bert.serving.export import onnx_export

    backbone = onnx_backbone.load(bert.init_checkpoint, bert.config)
    return onnx_export.write(
        str(config.export_dir),
        bert.config,
        backbone.tensors,
        adapters,
        str(bert.vocab_file),
        config.precision,
    )


def _check_no_windows(adapters: "saved_model.Adapters") -> None:
    """Raises UserError if a task reads texts in windows: a signature of texts would cut them."""
    for name, adapter in adapters.items():
        if adapter.description.training.get("long_texts", "cut") != "cut":
            raise UserError(
                f"--raw_text: {name} was trained with --long_texts=windows, which signatures of"
                " texts do not support; export without --raw_text, or use serve.py."
            )


def _log_precision(adapters: "saved_model.Adapters", computed: str) -> None:
    """Logs the model's precision and, for float32, the tasks that were trained in another one."""
    logging.info("The model computes in %s.", computed)
    if computed != "float32":
        return
    for name, adapter in adapters.items():
        precision = adapter.description.training.get("precision")
        if precision not in (None, "float32"):
            logging.info(
                "%s was trained in %s: its probabilities differ slightly, by about 3e-4.",
                name,
                precision,
            )


def _tokenizer(
    config: ExportConfig, vocab_file: str, adapters: "saved_model.Adapters"
) -> tokenization.FullTokenizer:
    """Returns the tokenizer of the tasks with text signatures; UserError if they differ."""
    descriptions = [adapter.description for adapter in adapters.values()]
    casings = {
        description.do_lower_case
        for description in descriptions
        if task_kinds.get(description.kind).has_text_signature
    }
    if not casings:
        kinds = sorted({description.kind for description in descriptions})
        raise UserError(f"--raw_text: tasks of {' or '.join(kinds)} have no signature of texts.")
    if len(casings) > 1:
        raise UserError(
            "--raw_text: some tasks lower-case their texts and some do not; export them separately."
        )
    return _read_tokenizer(config, vocab_file, casings.pop())


def _read_tokenizer(
    config: ExportConfig, vocab_file: str, lower_case: bool
) -> tokenization.FullTokenizer:
    tokenizer = tokenization.FullTokenizer(
        vocab_file, lower_case, spm_model_file=config.spm_model_file
    )
    tokenizer.check_special_tokens()
    return tokenizer


def _check_vocabulary(
    tokenizer: tokenization.FullTokenizer, vocab_file: str, adapters: "saved_model.Adapters"
) -> None:
    """Raises UserError if a task was trained with another vocabulary."""
    digest = task_adapter.digest(tokenizer.vocab)
    for name, adapter in adapters.items():
        if adapter.description.vocabulary != digest:
            raise UserError(
                f"{name} was trained with another vocabulary than {vocab_file}: its digest is"
                f" {adapter.description.vocabulary}, the file's {digest}."
            )


define_flags = ExportConfig.define_flags
main = cli.main_of(run, define_flags)

if __name__ == "__main__":
    define_flags()
    cli.run(main)
