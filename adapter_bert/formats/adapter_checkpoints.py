"""Task adapters and TensorFlow's checkpoints: those of a training, and those of adapter-bert."""

import collections
import dataclasses
import functools
import os
import re
from typing import Dict, List, NamedTuple, Optional

import numpy as np

from adapter_bert.common import configs, files, model_variables
from adapter_bert.common.errors import UserError
from adapter_bert.formats import checkpoints, task_adapter
from adapter_bert.formats.bert import describe_encoder

_TABLE_MAGIC = bytes.fromhex("57fb808b247547db")  # At the end of a checkpoint of the first format.


def matches(path: str) -> bool:
    """Returns whether a path is a checkpoint's prefix, or one of its files."""
    if files.exists(path + ".index"):
        return True
    if not files.exists(path) or files.isdir(path):
        return False
    if re.search(r"\.(index|meta|data-\d+-of-\d+)$", path):
        return True
    with files.open_file(path, "rb") as reader:
        reader.seek(max(0, files.size(path) - len(_TABLE_MAGIC)))
        return reader.read() == _TABLE_MAGIC


def describe(path: str, argument: str) -> List[str]:
    """Returns lines that say what a checkpoint holds, for people.

    Args:
      path: its prefix.
      argument: what an error calls it, such as "PATH".

    Raises:
      UserError: it is damaged, or the path is one of its files.
    """
    reader = checkpoints.open_checkpoint(path, argument)
    shapes = reader.get_variable_to_shape_map()
    parameters: Dict[str, int] = collections.Counter()
    for name, shape in shapes.items():
        if name != checkpoints.IDENTITY:
            parameters[_model_part(name)] += int(np.prod(shape, dtype=np.int64))
    is_one_file = not files.exists(path + ".index")  # Of the first format.
    size = files.readable_size(path if is_one_file else path + ".")
    lines = [
        f"Checkpoint: {len(shapes)} tensors, {size}",
        *(f"{part}: {count:,} parameters" for part, count in sorted(parameters.items())),
    ]
    where = f"{argument} {path}"
    if "bert/embeddings/word_embeddings" in shapes and "bert/encoder/layer_0/" in "\n".join(shapes):
        sizes = checkpoints.encoder_sizes(shapes, where)
        missing = [name for name in model_variables.encoder_shapes(sizes) if name not in shapes]
        if missing:
            return [*lines, f"No whole BERT: it lacks {len(missing)} tensors, as {missing[0]}"]
        read_tensor = functools.partial(checkpoints.read_tensor, reader, where=where)
        lines.append(describe_encoder(sizes, read_tensor))
    return lines


def _model_part(name: str) -> str:
    """Returns which part of a model a tensor of a checkpoint is."""
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


def read(
    checkpoint: str, description: task_adapter.Description, init_checkpoint: str
) -> task_adapter.TaskAdapter:
    """Takes the task adapter out of a checkpoint of adapter-bert's.

    All of it that adapters do not train must equal the pretrained BERT to the last bit.

    Args:
      checkpoint: prefix of the checkpoint.
      description: `task_adapter.Description`; the checkpoint tells its adapter and global_step.
      init_checkpoint: prefix of the pretrained checkpoint that it was trained from.

    Raises:
      UserError: the checkpoint is damaged, holds no adapters, was trained from another BERT, or has
        another number of labels.
    """
    where, bert = f"CHECKPOINT {checkpoint}", f"BERT_DIR {os.path.dirname(init_checkpoint)}"
    found = checkpoints.trained_tensors(checkpoint, "CHECKPOINT")
    bias, labels = found.get("output_bias"), description.labels
    if bias is not None and bias.size != len(labels):
        raise UserError(f"--labels={','.join(labels)}: {where} has {bias.size} outputs.")
    description = dataclasses.replace(
        description,
        adapter=configs.AdapterConfig(_adapter_size(found, where)),
        global_step=checkpoints.step_of(checkpoint, "CHECKPOINT"),
    )
    expected_shapes = task_adapter.shapes(description)
    reader = checkpoints.open_checkpoint(init_checkpoint, "BERT_DIR")
    for name in sorted(set(found) - set(expected_shapes)):
        if not reader.has_tensor(name) or not np.array_equal(
            found[name], checkpoints.read_tensor(reader, name, bert)
        ):
            raise UserError(f"{where} was not trained from {bert}: {name} differs.")
    tensors = {name: found[name] for name in expected_shapes if name in found}
    task_adapter.check_tensors(tensors, description, where)
    return task_adapter.TaskAdapter(description, tensors)


def _adapter_size(tensors: Dict[str, np.ndarray], where: str) -> int:
    sizes = {value.shape[-1] for name, value in tensors.items() if name.endswith("/weights1")}
    if len(sizes) != 1:
        raise UserError(f"{where}: expected adapters of one size, found {sorted(sizes) or 'none'}.")
    return sizes.pop()


class RunAdapter(NamedTuple):
    """A training's task adapter, the folder or checkpoint that holds it, and output_dir."""

    adapter: task_adapter.TaskAdapter
    path: str
    output_dir: str


def find_run_adapter(path: str, flag: str = "--init_checkpoint") -> Optional[RunAdapter]:
    """Finds the task adapter of a training by its output_dir, a checkpoint of it, or itself.

    Args:
      path: a folder, a checkpoint's prefix, or its .index.
      flag: what errors call it.

    Returns:
      `RunAdapter`; a checkpoint's holds that checkpoint's tensors, maybe of an earlier step than
      those of the finished adapter. None where the path names neither, as that of a whole BERT.

    Raises:
      UserError: a file is damaged; or a checkpoint's training has left no task adapter, which says
        what the checkpoint does not.
    """
    path = path.rstrip("/")
    if files.exists(f"{files.current_folder(path)}/{task_adapter.CONFIG_FILE}"):
        return RunAdapter(task_adapter.load(path, flag), path, os.path.dirname(path))
    folder = f"{path}/{task_adapter.FOLDER}"
    if files.exists(files.current_folder(folder)):
        return RunAdapter(task_adapter.load(folder, flag), folder, path)
    if path.endswith(".index"):
        path = path[: -len(".index")]
    prefix = checkpoints.resolve_prefix(path)
    if not files.exists(prefix + ".index"):
        return None
    names = checkpoints.open_checkpoint(prefix, flag).get_variable_to_shape_map()
    if not checkpoints.is_task_only(names):
        return None
    output_dir = os.path.dirname(prefix)
    folder, where = os.path.join(output_dir, task_adapter.FOLDER), f"{flag} {prefix}"
    if not files.exists(files.current_folder(folder)):
        raise UserError(
            f"{where} holds only what a task trained, and {folder}, which says the rest, is not"
            " there; run its training to the end."
        )
    finished = task_adapter.load(folder, flag)
    tensors = checkpoints.trained_tensors(prefix, flag)
    task_adapter.check_tensors(tensors, finished.description, where)
    step = checkpoints.step_of(prefix, flag)
    description = dataclasses.replace(finished.description, global_step=step, scores={})
    checkpointed = task_adapter.TaskAdapter(description, tensors)
    if task_adapter.tensors_digest(checkpointed) == task_adapter.tensors_digest(finished):
        return RunAdapter(finished, folder, output_dir)
    return RunAdapter(checkpointed, prefix, output_dir)


def backbone_of(init_checkpoint: str, config: configs.BertConfig) -> task_adapter.Backbone:
    """Returns the `task_adapter.Backbone` in a pretrained checkpoint, named after its folder.

    Args:
      init_checkpoint: prefix of the checkpoint.
      config: `configs.BertConfig`.

    Raises:
      UserError: the checkpoint is damaged.
    """
    where = f"--init_checkpoint {init_checkpoint}"
    reader = checkpoints.open_checkpoint(init_checkpoint)
    read = functools.partial(checkpoints.read_tensor, reader, where=where)
    folder = os.path.dirname(os.path.abspath(init_checkpoint))
    if os.path.basename(folder) == "variables":  # Of a TF-Hub module.
        folder = os.path.dirname(folder)
    return task_adapter.Backbone(
        name=os.path.basename(folder),
        fingerprint=model_variables.fingerprint(read, config),
        config=config.to_dict(),
    )


def to_checkpoint(adapter: task_adapter.TaskAdapter, prefix: str) -> None:
    """Writes the tensors and the step as a TensorFlow checkpoint, as a training leaves them."""
    step = np.array(adapter.description.global_step, np.int64)
    checkpoints.write(prefix, {**adapter.tensors, checkpoints.GLOBAL_STEP: step})


def to_full_checkpoint(
    adapter: task_adapter.TaskAdapter,
    init_checkpoint: str,
    prefix: str,
    flag: str = "--init_checkpoint",
) -> None:
    """Writes backbone and task adapter as one checkpoint; see `full_checkpoint_use`.

    Args:
      adapter: `task_adapter.TaskAdapter`.
      init_checkpoint: prefix of the pretrained checkpoint that it was trained on.
      prefix: of the checkpoint to write.
      flag: what the error calls the pretrained checkpoint.

    Raises:
      UserError: it was trained on another one.
    """
    config, where = adapter.description.backbone.bert_config(), f"{flag} {init_checkpoint}"
    checkpoints.check_encoder(init_checkpoint, config, flag)
    reader = checkpoints.open_checkpoint(init_checkpoint, flag)
    tensors = {
        name: checkpoints.read_tensor(reader, name, where)
        for name in model_variables.encoder_shapes(config)
    }
    fingerprint = model_variables.fingerprint(tensors.get, config)
    if fingerprint != adapter.description.backbone.fingerprint:
        raise UserError(
            f"{where} is not the backbone that the task adapter was"
            f" trained on, {adapter.description.backbone.name}: their fingerprints differ."
        )
    to_checkpoint(adapter._replace(tensors={**tensors, **adapter.tensors}), prefix)


def full_checkpoint_use(description: task_adapter.Description) -> str:
    """Returns a sentence that says which code may load a full checkpoint of this task.

    Other code than that loads it too, and silently ignores tensors: its scores are much worse.
    """
    adapter = description.adapter
    if adapter is None:
        return "BERT's own code can load it."
    warning = "BERT's own code loads it and ignores the adapters without a message"
    plain_adapter = configs.AdapterConfig(size=adapter.size, init_scale=adapter.init_scale)
    if adapter != plain_adapter:
        return f"Load it in this project only: {warning}, and adapter-bert has no such adapters."
    return (
        f"Load it in this project or in adapter-bert (hidden_size={adapter.size}) only: {warning}."
    )
