"""Writes a SavedModel or an ONNX file of a task, or of many over one BERT.

    python export_model.py --adapters=output/mrpc/adapter --export_dir=exported/mrpc
    python export_model.py --adapters=output/mrpc/adapter,output/sms_spam/adapter \\
        --export_dir=exported/tasks --raw_text
    python export_model.py --adapters=output/mrpc/adapter --export_dir=exported/mrpc --format=onnx

TensorFlow Serving and plain TensorFlow 2 run a SavedModel, which `saved_model_cli show --all --dir`
shows; ONNX Runtime runs an ONNX file.
"""

from adapter_bert.common import environment

if __name__ == "__main__":
    environment.prepare(environment.MODELS)

import dataclasses
from typing import Optional, Tuple

from absl import flags, logging

import tokenization
from adapter_bert.common import cli, devices, files, task_kinds
from adapter_bert.common.errors import UserError
from adapter_bert.common.settings import flag
from adapter_bert.formats import (
    adapter_checkpoints,
    adapter_folders,
    onnx_backbone,
    task_adapter,
)
from adapter_bert.serving import compatibility, in_graph_tokenizer, saved_model
from adapter_bert.training import pretrained
from adapter_bert.training.config import PretrainedConfig


@dataclasses.dataclass(frozen=True)
class ExportConfig(PretrainedConfig):
    """The settings of this script."""

    adapters: Tuple[str, ...] = flag(
        (),
        "Folders of task adapters, or patterns: output/*/adapter. A task is called after the"
        " folder: mrpc for output/mrpc/adapter.",
        "Tasks",
    )
    export_dir: Optional[str] = flag(
        None, "Where the model goes: a folder in it, of the next number.", "Output"
    )
    format: str = flag("saved_model", "Of the model.", "Output", choices=("saved_model", "onnx"))
    precision: str = flag(
        "float32",
        "Precision of --format=onnx; int8 is that of BERT's products, adapters and heads stay"
        " float32.",
        "Output",
        choices=("float32", "int8"),
    )
    raw_text: bool = flag(
        False,
        "Add signatures that take texts. Whatever loads the model then needs tensorflow-text.",
        "Output",
    )

    def __post_init__(self):
        for name in ("adapters", "export_dir"):
            if not getattr(self, name):
                raise UserError(f"--{name} is not given.")
        if self.format == "onnx" and self.raw_text:
            raise UserError("--raw_text goes with --format=saved_model: an ONNX file reads ids.")
        if self.format != "onnx" and self.precision != "float32":
            raise UserError(f"--precision={self.precision} goes with --format=onnx.")


def define_flags(flag_values=flags.FLAGS):
    """Defines all flags of this script."""
    ExportConfig.define_flags(flag_values)


def run(values):
    """Does what the flags ask for.

    Args:
      values: parsed flags of `define_flags`.

    Returns:
      The report that ends the run: a list of lines.

    Raises:
      UserError: a flag is wrong, or what it names is missing, broken or does not fit; this is
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
    _log_precision(adapters, config.precision)
    tasks = ", ".join(f"{name} ({a.description.kind})" for name, a in adapters.items())
    if is_onnx:
        path = _write_onnx(config, bert, adapters)
        return [f"Tasks: {tasks}", f"ONNX file: {path} ({files.readable_size(path)})"]
    encode_texts = None
    if config.raw_text:
        _check_no_windows(adapters)
        descriptions = {name: adapter.description for name, adapter in adapters.items()}
        encode_texts = in_graph_tokenizer.make_encoder(
            *_tokenizer(config, bert.vocab_file, descriptions)
        )
    path = saved_model.write(
        str(config.export_dir), bert.config, bert.init_checkpoint, adapters, encode_texts
    )
    size = files.readable_size(path + "/variables/")
    return [f"Tasks: {tasks}", f"SavedModel: {path} ({size})"]


def _write_onnx(config, bert, adapters):
    """Writes the ONNX file; returns its path."""
    from adapter_bert.serving import onnx_export  # Python 3.7 has no package of today's ONNX.

    backbone = onnx_backbone.load(bert.init_checkpoint, bert.config)
    return onnx_export.write(
        str(config.export_dir),
        bert.config,
        backbone.tensors,
        adapters,
        str(bert.vocab_file),
        config.precision,
    )


def _check_no_windows(adapters):
    """Raises UserError if a task reads long texts in windows, which its signature would cut."""
    for name, adapter in adapters.items():
        if adapter.description.training.get("long_texts", "cut") != "cut":
            raise UserError(
                f"--raw_text: {name} was trained with --long_texts=windows, which no signature of"
                " texts has; export without --raw_text, or serve it by serve.py."
            )


def _log_precision(adapters, computed):
    """Logs the precision of the model, and the tasks that were trained in another one."""
    logging.info("The model computes in %s.", computed)
    for name, adapter in adapters.items():
        precision = adapter.description.training.get("precision")
        if precision not in (None, "float32"):
            logging.info(
                "%s was trained in %s: its probabilities differ slightly, by about 3e-4.",
                name,
                precision,
            )


def _tokenizer(config, vocab_file, descriptions):
    """(tokenizer, whether it lower-cases) of all tasks; UserError if they do not share one."""
    kinds = {description.kind for description in descriptions.values()}
    if not any(task_kinds.get(kind).has_text_signature for kind in kinds):
        raise UserError(
            f"--raw_text: no signature of texts fits tasks of {' or '.join(sorted(kinds))}."
        )
    casings = {description.do_lower_case for description in descriptions.values()}
    if len(casings) > 1:
        raise UserError(
            "--raw_text: some of the tasks lower-case their texts and some do not; export them"
            " apart."
        )
    lower_case = casings.pop()
    tokenizer = tokenization.FullTokenizer(
        vocab_file, lower_case, spm_model_file=config.spm_model_file
    )
    tokenizer.check_special_tokens()
    digest = task_adapter.digest(tokenizer.vocab)
    for name, description in descriptions.items():
        if description.vocabulary != digest:
            raise UserError(
                f"--raw_text: {name} was trained with another vocabulary than {vocab_file}, whose"
                f" digest is {description.vocabulary}; expected {digest}."
            )
    return tokenizer, lower_case


main = cli.main_of(run)

if __name__ == "__main__":
    define_flags()
    cli.run(main)
