"""Pretrained weights in: the tensors of a BERT encoder, and the checks before they are loaded.

`open_checkpoint` and `check_encoder` find out, from file names, file sizes and the index alone,
whether a checkpoint can be loaded at all, before a graph is built.
"""

import codecs
import contextlib
import os
import re
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.common import configs, files, model_variables
from adapter_bert.common.errors import UserError

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # In checkpoints of tf.train.Checkpoint.
GLOBAL_STEP = "global_step"
MOMENTS = ("/adam_m", "/adam_v")  # Adam's, beside each trained variable.

# What a training's checkpoints are called: Estimator's name where they hold the whole model, and
# another where they lack frozen weights, so that nobody gives them to BERT's code as a BERT.
MODEL_CHECKPOINT, PARTIAL_CHECKPOINT = "model.ckpt", "partial.ckpt"
TRAINING_FILES = ("checkpoint", MODEL_CHECKPOINT + "-*", PARTIAL_CHECKPOINT + "-*")

_SUFFIXES = (".data-00000-of-00001", ".index")  # Of the files of one, which is no shard of many.
IDENTITY = "_RUN_IDENTITY"  # A training's checkpoint says by it which run it is of.

# What reading a damaged checkpoint raises: where it ends too early, TensorFlow an IndexError.
_READ_ERRORS = (tf.errors.OpError, IndexError, OSError)


def open_checkpoint(prefix: str, flag: str = "--init_checkpoint"):
    """Opens a TensorFlow checkpoint whose index is sound and whose data files are all there.

    No tensor is read. A checkpoint of the first format, a single file, opens too; its completeness
    is not checked.

    Args:
      prefix: what the names of the checkpoint's files have in common; local or gs://.
      flag: what the error calls it, usually the flag that named it.

    Returns:
      A checkpoint reader, see `tf.train.NewCheckpointReader`.

    Raises:
      UserError: the prefix names a folder, one of the checkpoint's files, or nothing; the index is
        unreadable; a data file is missing; or the data files are shorter than the index says.
    """
    where = f"{flag} {prefix}"
    try:
        _check_prefix(prefix, where)
        reader = _new_reader(prefix, where)
        if files.exists(prefix + ".index"):
            _check_data(prefix, reader, where)
    except _READ_ERRORS as error:
        raise UserError(
            f"{where} cannot be read as a TensorFlow checkpoint ({files.reason(error)})."
        ) from error
    return reader


def _new_reader(prefix: str, where: str):
    """Opens a checkpoint; UserError that says which file is not one, and not what TensorFlow does.

    TensorFlow speaks of a damaged table of strings, whatever the file is.
    """
    try:
        return tf.train.NewCheckpointReader(prefix)
    except _READ_ERRORS as error:
        index = prefix + ".index"
        if files.exists(index):
            kind = _describe_file(index)
            raise UserError(f"{where} cannot be read: its index, {index}, is {kind}.") from error
        raise UserError(f"{where} is {_describe_file(prefix)}, not a checkpoint.") from error


def _describe_file(path: str) -> str:
    """Returns what a file is that is no part of a checkpoint, by how it begins."""
    try:
        with files.open_file(path, "rb") as reader:
            start = reader.read(1024)
    except OSError as error:
        return f"unreadable ({files.reason(error)})"
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        text = "\0"
    if not all(char.isprintable() or char.isspace() for char in text):
        return "a damaged file or one of another kind"
    return "a text file" if text else "an empty file"


def check_encoder(prefix: str, config: configs.BertConfig, flag: str = "--init_checkpoint") -> None:
    """Checks that a checkpoint holds the whole encoder that a config describes.

    Other tensors (`cls/*`, an optimizer's slots, `global_step`, a task's head) may lie beside it.

    Args:
      prefix: the checkpoint's prefix.
      config: `configs.BertConfig`, or anything with the same sizes as attributes.
      flag: what the error calls the checkpoint, usually the flag that named it.

    Raises:
      UserError: the checkpoint cannot be opened, holds no BERT, or one of another size.
    """
    check_encoder_shapes(
        open_checkpoint(prefix, flag).get_variable_to_shape_map(), config, f"{flag} {prefix}"
    )


def check_encoder_shapes(
    shapes: Dict[str, Sequence[int]], config: configs.BertConfig, where: str
) -> None:
    """Checks that tensors are the whole encoder that a config describes; others may be among them.

    Args:
      shapes: dict from names to shapes.
      config: `configs.BertConfig`, or anything with the same sizes as attributes.
      where: begins the errors' sentences.

    Raises:
      UserError: they are no BERT, or one of another size.
    """
    expected = model_variables.encoder_shapes(config)
    missing = [name for name in expected if name not in shapes]
    if is_task_only(shapes):
        raise UserError(
            f"{where} holds only what a task trained; give the pretrained BERT below it, and the"
            " task's folder as --adapter."
        )
    if len(missing) == len(expected) and OBJECT_GRAPH in shapes:
        raise UserError(
            f"{where} is an object-based checkpoint of TensorFlow 2; convert it by"
            " `python convert_checkpoint.py from_tf2`."
        )
    if len(missing) == len(expected):
        raise UserError(f"{where} holds no BERT encoder, but {_abbreviate(shapes)}.")
    for name, shape in expected.items():
        if name in shapes and tuple(shapes[name]) != shape:
            raise UserError(
                f"{where} is a checkpoint of another size: its {name} has the shape "
                f"{list(shapes[name])}, bert_config.json asks for {list(shape)}."
            )
    if missing:
        raise UserError(
            f"{where} lacks {len(missing)} of the {len(expected)} tensors that bert_config.json "
            f"asks for, the first of them {missing[0]}."
        )
    num_layers = _count_layers(shapes)
    if num_layers > config.num_hidden_layers:
        raise UserError(
            f"{where} is a checkpoint of another size: it has {num_layers} layers, "
            f"bert_config.json asks for {config.num_hidden_layers}."
        )


def is_task_only(names: Iterable[str]) -> bool:
    """Returns whether tensors of these names are those of a training that keeps BERT apart."""
    names = list(names)
    return "bert/embeddings/word_embeddings" not in names and any(
        name.endswith(MOMENTS) for name in names
    )


def resolve_prefix(path: str) -> str:
    """Returns the prefix of a folder's last checkpoint; any other path as it is.

    A folder that records no checkpoint is returned as it is, too.

    Args:
      path: a folder, or a checkpoint's prefix.
    """
    with contextlib.suppress(ValueError):  # The record is no text, or names no path.
        if files.isdir(path):
            return tf.train.latest_checkpoint(path) or path
    return path


def check_shapes(prefix: str, shapes: model_variables.Shapes) -> None:
    """Raises UserError if --init_checkpoint holds a tensor in another shape than the model.

    Args:
      prefix: the checkpoint's prefix.
      shapes: dict from names to shapes; those that it lacks are not asked for.
    """
    actual = dict(tf.train.list_variables(prefix))
    for name, shape in shapes.items():
        if name in actual and actual[name] != list(shape):
            raise UserError(
                f"--init_checkpoint {prefix}: its {name} has the shape {actual[name]}, the model's"
                f" has {list(shape)}."
            )


def check_tensors(prefix: str, flag: str = "--init_checkpoint") -> None:
    """Reads all tensors of a checkpoint; raises UserError if one of them is damaged."""
    reader = open_checkpoint(prefix, flag)
    for name in sorted(reader.get_variable_to_shape_map()):
        read_tensor(reader, name, f"{flag} {prefix}")


def read_tensor(reader, name: str, where: str) -> np.ndarray:
    """A tensor of an open checkpoint; raises UserError if it is damaged, `where` begins it."""
    try:
        return reader.get_tensor(name)
    except _READ_ERRORS as error:
        raise UserError(
            f"{where} is damaged: its {name} cannot be read ({files.reason(error)})."
        ) from error


def trained_tensors(prefix: str, flag: str = "--output_dir") -> Dict[str, np.ndarray]:
    """What a training checkpoint holds but for Adam's moments, the step and the run's identity.

    Args:
      prefix: the checkpoint's prefix.
      flag: what the error calls it.

    Returns:
      A dict from names to float32 arrays.

    Raises:
      UserError: the checkpoint is damaged.
    """
    reader = open_checkpoint(prefix, flag)
    names = [
        name
        for name in sorted(reader.get_variable_to_shape_map())
        if not name.endswith(MOMENTS) and name not in (GLOBAL_STEP, IDENTITY)
    ]
    return {name: read_tensor(reader, name, f"{flag} {prefix}") for name in names}


def write(prefix: str, tensors: Dict[str, np.ndarray]) -> None:
    """Writes arrays as a TensorFlow checkpoint, which appears whole or not at all.

    By the operation that a Saver uses, and through placeholders, for a graph that held BERT-Large
    as constants would be near its 2 GB.

    Args:
      prefix: the checkpoint's prefix.
      tensors: dict from names to arrays.

    Raises:
      UserError: it cannot be written.
    """
    cpu_config = tf.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default(), tf.Session(config=cpu_config) as session:
        inputs = [tf.placeholder(value.dtype, value.shape) for value in tensors.values()]
        partial = prefix + ".partial"
        save = tf.raw_ops.SaveV2(
            prefix=partial,
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=inputs,
        )
        with files.convert_write_errors(prefix):
            session.run(save, dict(zip(inputs, tensors.values())))
            # An index never stands beside another checkpoint's data.
            if files.exists(prefix + ".index"):
                files.remove(prefix + ".index")
                files.sync(os.path.dirname(prefix) or ".")
            for suffix in _SUFFIXES:
                files.replace(partial + suffix, prefix + suffix)


class Saver(tf.train.Saver):
    """A Saver whose record names a checkpoint, and drops an older one, once it is on disk."""

    def save(
        self,
        sess,
        save_path,
        global_step=None,
        latest_filename=None,
        meta_graph_suffix="meta",
        write_meta_graph=True,
        write_state=True,
        **options,
    ):
        """Saves as `tf.train.Saver` does, whose arguments these are.

        Raises:
          UserError: it cannot be written.
        """
        with files.convert_write_errors(
            save_path if global_step is None else f"{save_path}-{global_step}"
        ):
            prefix = super().save(
                sess,
                save_path,
                global_step,
                meta_graph_suffix=meta_graph_suffix,
                write_meta_graph=write_meta_graph,
                write_state=False,
                **options,
            )
            folder = os.path.dirname(prefix) or "."
            for path in (*(prefix + suffix for suffix in _SUFFIXES), folder):
                files.sync(path)
            if write_state:
                self._RecordLastCheckpoint(prefix)
                names = [os.path.relpath(path, folder) for path in self.last_checkpoints]
                write_record(folder, names, latest_filename or "checkpoint")
                self._MaybeDeleteOldCheckpoints(meta_graph_suffix)
        return prefix


def write_record(folder: str, names: Sequence[str], file: str = "checkpoint") -> None:
    """Writes the record by which TensorFlow finds the checkpoints in a folder.

    Args:
      folder: path.
      names: their prefixes, relative to the folder; the last checkpoint's at the end.
      file: name of the record.

    Raises:
      UserError: it cannot be written.
    """
    state = tf.train.generate_checkpoint_state_proto(os.sep, names[-1], list(names))
    files.write_atomically(os.path.join(folder, file), str(state))


def step_of(prefix: str, flag: str = "--output_dir") -> int:
    """The global step that a checkpoint holds, 0 if it holds none; UserError if it is damaged."""
    reader = open_checkpoint(prefix, flag)
    if not reader.has_tensor(GLOBAL_STEP):
        return 0
    return int(read_tensor(reader, GLOBAL_STEP, f"{flag} {prefix}"))


def identity_of(prefix: str, flag: str = "--output_dir") -> Optional[str]:
    """The identity of the run that saved a checkpoint, None if it does not tell.

    Args:
      prefix: the checkpoint's prefix.
      flag: what the error calls it.

    Raises:
      UserError: the checkpoint is damaged.
    """
    reader = open_checkpoint(prefix, flag)
    if not reader.has_tensor(IDENTITY):
        return None
    value = np.asarray(read_tensor(reader, IDENTITY, f"{flag} {prefix}")).item()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def latest(output_dir: str) -> Optional[str]:
    """Returns the prefix of the last checkpoint of a run; None where there is none."""
    return tf.train.latest_checkpoint(output_dir)


def last_step(output_dir: Optional[str]) -> int:
    """The global step of the last checkpoint of a run, 0 where there is none.

    Args:
      output_dir: the run's folder, or None.
    """
    checkpoint = output_dir and latest(output_dir)
    return step_of(checkpoint) if checkpoint else 0


def _check_prefix(prefix: str, where: str) -> None:
    """Raises UserError unless `prefix` is that of a checkpoint, or a file of the first format."""
    if files.isdir(prefix):
        prefixes = " or ".join(_checkpoints_in(prefix)) or "of which this folder holds none"
        raise UserError(
            f"{where} is a folder; expected the prefix of a whole checkpoint, {prefixes}."
        )
    file_match = re.match(r"(.+)\.(index|meta|data-\d+-of-\d+)$", prefix)
    if file_match and files.exists(prefix):
        raise UserError(
            f"{where} is one of a checkpoint's files; expected the prefix that they share: "
            f"{file_match.group(1)}."
        )
    if not files.exists(prefix + ".index") and not files.exists(prefix):
        siblings = " and ".join(_checkpoints_in(os.path.dirname(prefix) or "."))
        raise UserError(
            f"{where} does not exist: there is no file {prefix}.index; the whole checkpoints in "
            f"its folder are: {siblings or 'none'}."
        )


def _checkpoints_in(folder: str) -> List[str]:
    """Returns the prefixes of a folder's checkpoints, sorted; none if there is no such folder.

    `PARTIAL_CHECKPOINT` ones, which nobody loads alone, are left out.
    """
    names = files.listdir(folder) if files.isdir(folder) else []
    return sorted(
        os.path.join(folder, name[: -len(".index")])
        for name in names
        if name.endswith(".index") and not name.startswith(PARTIAL_CHECKPOINT + "-")
    )


def _check_data(prefix: str, reader, where: str) -> None:
    """Raises UserError unless the data files are complete in number and long enough."""
    folder, name = os.path.split(prefix)
    pattern = re.compile(re.escape(name) + r"\.data-\d{5}-of-(\d{5})$")
    matches = [pattern.match(file) for file in files.listdir(folder or ".")]
    count = max((int(match.group(1)) for match in matches if match), default=1)
    shards = [f"{prefix}.data-{i:05d}-of-{count:05d}" for i in range(count)]
    missing = [shard for shard in shards if not files.exists(shard)]
    if missing:
        raise UserError(f"{where} is incomplete: there is no file {missing[0]}.")
    num_bytes = sum(files.size(shard) for shard in shards)
    dtypes = reader.get_variable_to_dtype_map()
    required_bytes = sum(
        int(np.prod(shape, dtype=np.int64)) * dtypes[name].size
        for name, shape in reader.get_variable_to_shape_map().items()
        if dtypes[name] != tf.string  # A string's length is not in the index.
    )
    if num_bytes < required_bytes:
        raise UserError(
            f"{where} is truncated: its data files hold {num_bytes:,} bytes, its tensors need "
            f"{required_bytes:,}."
        )


def encoder_sizes(shapes: Dict[str, Sequence[int]], where: str) -> model_variables.EncoderSizes:
    """The sizes of an encoder that its tensors' shapes tell.

    Args:
      shapes: dictionary from variable names to lists of int.
      where: begins the error's sentence.

    Raises:
      UserError: a tensor that tells a size is missing, or is no matrix.
    """
    vocab_size, hidden_size = _matrix_shape(shapes, "bert/embeddings/word_embeddings", where)
    positions, _ = _matrix_shape(shapes, "bert/embeddings/position_embeddings", where)
    segments, _ = _matrix_shape(shapes, "bert/embeddings/token_type_embeddings", where)
    _, intermediate_size = _matrix_shape(
        shapes, "bert/encoder/layer_0/intermediate/dense/kernel", where
    )
    return model_variables.EncoderSizes(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=_count_layers(shapes),
        intermediate_size=intermediate_size,
        max_position_embeddings=positions,
        type_vocab_size=segments,
    )


def _matrix_shape(shapes: Dict[str, Sequence[int]], name: str, where: str) -> Tuple[int, int]:
    """The two sizes of a BERT's tensor of that name; UserError if it has not two."""
    if name not in shapes:
        raise UserError(
            f"{where} expected the variables of a BERT, but there is no {name}, only"
            f" {_abbreviate(shapes)}."
        )
    if len(shapes[name]) != 2:
        raise UserError(
            f"{where} expected {name} of two dimensions, but its shape is {list(shapes[name])}."
        )
    rows, columns = shapes[name]
    return rows, columns


def _count_layers(names: Iterable[str]) -> int:
    """The number of Transformer layers among a checkpoint's variables of these names."""
    return len({name.split("/")[2] for name in names if name.startswith("bert/encoder/layer_")})


def _abbreviate(names: Iterable[str]) -> str:
    """The first names, for an error's sentence."""
    names = sorted(names)
    return ", ".join(names[:3] + ["..."] * (len(names) > 3)) or "nothing"
