"""Task adapters in TensorFlow checkpoints, of this project and google-research/adapter-bert."""

import collections
import dataclasses
import functools
import os
import re
from typing import Container, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from adapter_bert.files import atomic, gfile
from adapter_bert.formats import checkpoints, task_adapter
from adapter_bert.formats.bert import describe_encoder
from adapter_bert.model import configs, model_variables
from adapter_bert.shell.errors import UserError


def matches(path: str) -> bool:
    """Returns whether a path is the prefix or a file of a checkpoint."""
    is_file = re.search(r"\.(index|meta|data-\d+-of-\d+)$", path) and gfile.exists(path)
    return is_file or gfile.exists(path + ".index")


def describe(path: str, argument: str) -> List[str]:
    """Returns lines that describe a checkpoint for people.

    Args:
      path: prefix of the checkpoint.
      argument: what errors call the prefix, such as "PATH".

    Raises:
      UserError: the checkpoint is damaged, or the path is one of its files.
    """
    reader = checkpoints.open_checkpoint(path, argument)
    shapes = reader.get_variable_to_shape_map()
    parameters: Dict[str, int] = collections.Counter()
    for name, shape in shapes.items():
        if name != checkpoints.IDENTITY:
            parameters[_model_part(name, shapes)] += int(np.prod(shape, dtype=np.int64))
    lines = [
        f"Checkpoint: {len(shapes)} tensors, {gfile.readable_size(path + '.')}",
        *(f"{part}: {count:,} parameters" for part, count in sorted(parameters.items())),
    ]
    where = f"{argument} {path}"
    if "bert/embeddings/word_embeddings" in shapes and "bert/encoder/layer_0/" in "\n".join(shapes):
        sizes = checkpoints.encoder_sizes(shapes, where)
        missing = [name for name in model_variables.encoder_shapes(sizes) if name not in shapes]
        if missing:
            return [*lines, f"Incomplete BERT: lacks {len(missing)} tensors, such as {missing[0]}"]
        checkpoints.check_float32(reader, model_variables.encoder_shapes(sizes), where)
        read_tensor = functools.partial(checkpoints.read_tensor, reader, where=where)
        lines.append(describe_encoder(sizes, read_tensor))
    return lines


def _model_part(name: str, names: Container[str]) -> str:
    """Returns the part of a model to which a tensor among a checkpoint's `names` belongs."""
    if name == checkpoints.GLOBAL_STEP:
        return "Step"
    if checkpoints.is_slot(name, names):
        return "Optimizer"
    if name.endswith(model_variables.MOVING):
        return "Statistics"
    if task_adapter.has_head([name]):
        return "Head"
    if name.startswith("cls/"):
        return "Pretraining heads"
    try:
        kind = model_variables.role_of(name, ["bert/"]).kind
    except ValueError:
        return "Others"
    return {"adapter": "Adapters", "head": "Others"}.get(kind, "Backbone")


def read(
    checkpoint: str, description: task_adapter.Description, init_checkpoint: str
) -> task_adapter.TaskAdapter:
    """Loads the task adapter in a checkpoint of google-research/adapter-bert.

    All of BERT's tensors that adapter tuning does not train must be bit-identical to the pretrained
    ones.

    Args:
      checkpoint: prefix of the checkpoint.
      description: `task_adapter.Description`; the checkpoint determines its adapter and
        global_step.
      init_checkpoint: prefix of the pretrained checkpoint from which it was trained.

    Raises:
      UserError: the checkpoint is damaged, lacks a tensor of BERT, has no adapters or others than
        `modeling.feedforward_adapter`, was trained from another BERT, or has another number of
        labels.
    """
    where, bert = f"CHECKPOINT {checkpoint}", f"BERT_DIR {os.path.dirname(init_checkpoint)}"
    reader = checkpoints.open_checkpoint(checkpoint, "CHECKPOINT")
    shapes = reader.get_variable_to_shape_map()
    labels = description.labels
    num_outputs = int(np.prod(shapes.get("output_bias", [len(labels)])))
    if num_outputs != len(labels):
        raise UserError(
            f"--labels={','.join(labels)}: expected {num_outputs} labels, because {where} has"
            f" {num_outputs} outputs."
        )
    description = dataclasses.replace(
        description,
        adapter=configs.AdapterConfig(_adapter_size(shapes, where)),
        global_step=checkpoints.step_of(checkpoint, "CHECKPOINT"),
    )
    encoder = model_variables.encoder_shapes(description.backbone.bert_config())
    for name in encoder:
        if name not in shapes:
            raise UserError(
                f"{where} lacks {name}; expected a whole model of google-research/adapter-bert."
            )
    listed = task_adapter.shapes(description)
    unlisted = checkpoints.unlisted_adapter_tensors(shapes, listed)
    if unlisted:
        raise UserError(
            f"{where} holds {unlisted[0]}, which is not part of google-research/adapter-bert's"
            " adapters."
        )
    pretrained = checkpoints.open_checkpoint(init_checkpoint, "BERT_DIR")
    for name in encoder:
        if name not in listed and not np.array_equal(
            checkpoints.read_tensor(reader, name, where),
            checkpoints.read_tensor(pretrained, name, bert),
        ):
            raise UserError(f"{where} was not trained from {bert}: {name} differs.")
    tensors = checkpoints.trained_tensors(checkpoint, listed, "CHECKPOINT")
    task_adapter.check_tensors(tensors, description, where)
    return task_adapter.TaskAdapter(description, tensors)


def _adapter_size(shapes: Dict[str, Sequence[int]], where: str) -> int:
    weights = [shape for name, shape in shapes.items() if name.endswith("/adapters/weights1")]
    sizes = {shape[1] for shape in weights if len(shape) == 2}
    if len(sizes) != 1:
        raise UserError(f"{where}: expected adapters of one size, found {sorted(sizes) or 'none'}.")
    return sizes.pop()


class RunAdapter(NamedTuple):
    """Holds a run's task adapter, its folder or checkpoint, and the run's output_dir."""

    adapter: task_adapter.TaskAdapter
    path: str
    output_dir: str


def find_run_adapter(path: str) -> Optional[RunAdapter]:
    """Loads the task adapter of a run that --init_checkpoint names.

    Args:
      path: folder of the task adapter, output_dir of the run, or prefix or .index file of one of
        the run's checkpoints.

    Returns:
      `RunAdapter`. For a checkpoint it has the checkpoint's tensors, which may be of an earlier
      step than the finished adapter. None if the path is none of these, such as a pretrained BERT.

    Raises:
      UserError: a file is damaged; or the path is a checkpoint and its run has no task adapter,
        which holds the description.
    """
    path, flag = path.rstrip("/"), "--init_checkpoint"
    if gfile.exists(f"{atomic.current_folder(path)}/{task_adapter.CONFIG_FILE}"):
        return RunAdapter(task_adapter.load(path, flag), path, os.path.dirname(path))
    folder = f"{path}/{task_adapter.FOLDER}"
    if gfile.exists(atomic.current_folder(folder)):
        return RunAdapter(task_adapter.load(folder, flag), folder, path)
    if path.endswith(".index"):
        path = path[: -len(".index")]
    prefix = checkpoints.resolve_prefix(path)
    if not gfile.exists(prefix + ".index"):
        return None
    names = checkpoints.open_checkpoint(prefix, flag).get_variable_to_shape_map()
    if not checkpoints.is_task_only(names):
        return None
    output_dir = os.path.dirname(prefix)
    folder, where = os.path.join(output_dir, task_adapter.FOLDER), f"{flag} {prefix}"
    if not gfile.exists(atomic.current_folder(folder)):
        raise UserError(
            f"{where} has no description of its task, because {folder} is missing; run the"
            " training to the end."
        )
    finished = task_adapter.load(folder, flag)
    tensors = checkpoints.trained_tensors(prefix, task_adapter.shapes(finished.description), flag)
    task_adapter.check_tensors(tensors, finished.description, where)
    step = checkpoints.step_of(prefix, flag)
    description = dataclasses.replace(finished.description, global_step=step, scores={})
    checkpointed = task_adapter.TaskAdapter(description, tensors)
    if task_adapter.tensors_digest(checkpointed) == task_adapter.tensors_digest(finished):
        return RunAdapter(finished, folder, output_dir)
    return RunAdapter(checkpointed, prefix, output_dir)


def backbone_of(init_checkpoint: str, config: configs.BertConfig) -> task_adapter.Backbone:
    """Returns the `task_adapter.Backbone` of a pretrained checkpoint, named after its folder.

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
    if os.path.basename(folder) == "variables":  # A TF-Hub module.
        folder = os.path.dirname(folder)
    return task_adapter.Backbone(
        name=os.fsencode(os.path.basename(folder)).decode("utf-8", "replace"),
        fingerprint=model_variables.fingerprint(read, config),
        config=config.to_dict(),
    )


def to_checkpoint(adapter: task_adapter.TaskAdapter, prefix: str) -> None:
    """Writes tensors and global step as a TensorFlow checkpoint."""
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
      init_checkpoint: prefix of the pretrained checkpoint on which it was trained.
      prefix: prefix of the checkpoint to write.
      flag: what errors call the pretrained checkpoint.

    Raises:
      UserError: the adapter was trained on another checkpoint.
    """
    config, where = adapter.description.backbone.bert_config(), f"{flag} {init_checkpoint}"
    tensors = checkpoints.read_encoder(init_checkpoint, config, flag)
    fingerprint = model_variables.fingerprint(tensors.get, config)
    if fingerprint != adapter.description.backbone.fingerprint:
        raise UserError(
            f"{where} is not the backbone on which the task adapter was trained,"
            f" {adapter.description.backbone.name}: their fingerprints differ."
        )
    to_checkpoint(adapter._replace(tensors={**tensors, **adapter.tensors}), prefix)


def full_checkpoint_use(description: task_adapter.Description) -> str:
    """Returns a sentence that tells which code can use a full checkpoint of this task.

    Other code also loads the checkpoint, but silently ignores tensors and scores much worse.
    """
    adapter = description.adapter
    if adapter is None:
        return "BERT's own code can load it."
    warning = "BERT's own code loads it, but silently ignores the adapters"
    plain_adapter = configs.AdapterConfig(size=adapter.size, init_scale=adapter.init_scale)
    fn, activation = adapter.function, adapter.activation.lower()
    if dataclasses.replace(adapter, fn=fn, activation=activation) != plain_adapter:
        return (
            f"Load it in this project only: {warning}, and google-research/adapter-bert has no such"
            " adapters."
        )
    return (
        "Load it in this project or in google-research/adapter-bert"
        f" (hidden_size={adapter.size}) only: {warning}."
    )
