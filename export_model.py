"""Writes a SavedModel of a task, or of many over one BERT.

    python export_model.py --adapters=output/mrpc/adapter --export_dir=exported/mrpc
    python export_model.py --adapters=mrpc=output/mrpc/adapter,spam=output/sms_spam/adapter \\
        --export_dir=exported/tasks --raw_text

TensorFlow Serving and plain TensorFlow 2 run it; `saved_model_cli show --all --dir` shows it.
"""

import environment  # noqa: F401  First of all: a missing TensorFlow gets a sentence.

# isort: split
from absl import flags

import common_flags
import errors
import files
import graph_texts
import mixed_encoder
import saved_models
import task_adapters
from errors import UserError


def define_flags(flag_values=flags.FLAGS):
    """Defines all flags of this script."""
    at = {"flag_values": flag_values}
    common_flags.define_bert_files(flag_values)
    flags.DEFINE_list(
        "adapters",
        None,
        "Folders of task adapters, each as folder or as name=folder; the name is the task's by"
        " default.",
        **at,
    )
    flags.DEFINE_string(
        "export_dir", None, "Where the SavedModel goes: a folder in it, of the next number.", **at
    )
    flags.DEFINE_bool(
        "raw_text",
        False,
        "Add signatures that take texts. Whatever loads the model then needs tensorflow-text.",
        **at,
    )


def run(values):
    """Does what the flags ask for.

    Args:
      values: parsed flags of `define_flags`.

    Returns:
      The report that ends the run: a list of lines.
    """
    for name in ("adapters", "export_dir"):
        if not values[name].value:
            raise UserError(f"--{name} is not given.")
    adapters = {
        name: task_adapters.load(folder, "--adapters")
        for name, folder in task_adapters.named(values.adapters).items()
    }
    if not values["do_lower_case"].present:
        values.do_lower_case = next(iter(adapters.values())).description.do_lower_case
    bert, tokenizer = common_flags.pretrained_bert(values)
    backbone = task_adapters.backbone_of(bert.init_checkpoint, bert.config)
    vocabulary = task_adapters.digest(tokenizer.vocab)
    for name, adapter in adapters.items():
        mixed_encoder.check(adapter, backbone, f"--adapters: {name}")
        if values.raw_text:
            _check_texts(name, adapter.description, vocabulary, values.do_lower_case)
    encode = graph_texts.encoder(tokenizer, values.do_lower_case) if values.raw_text else None
    path = saved_models.write(
        values.export_dir, bert.config, bert.init_checkpoint, adapters, encode
    )
    tasks = ", ".join(f"{name} ({a.description.kind})" for name, a in adapters.items())
    return [f"Tasks: {tasks}", f"SavedModel: {path} ({files.megabytes(path + '/variables/')})"]


def _check_texts(name, description, vocabulary, do_lower_case):
    """Raises UserError if a task does not read texts as the model will."""
    if (description.vocabulary, description.do_lower_case) != (vocabulary, do_lower_case):
        raise UserError(
            f"--raw_text: {name} was trained with do_lower_case={description.do_lower_case} and the"
            f" vocabulary {description.vocabulary}, expected {do_lower_case} and {vocabulary} as"
            " for the others."
        )


main = common_flags.main_of(run)

if __name__ == "__main__":
    define_flags()
    errors.run(main)
