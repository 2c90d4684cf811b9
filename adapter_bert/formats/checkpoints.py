"""TensorFlow checkpoints: reads and writes them, and checks that they match a BERT.

`open_checkpoint` and `check_encoder` read only file names, file sizes and the index, so that they
find errors before a graph is built.
"""

import atexit
import contextlib
import functools
import json
import os
import posixpath
import re
import shutil
import tempfile
from typing import Any, Container, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.files import atomic, gfile, paths
from adapter_bert.formats import task_adapter
from adapter_bert.model import configs, model_variables
from adapter_bert.shell.errors import UserError

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # Written by tf.train.Checkpoint.
GLOBAL_STEP = "global_step"

# Names of a training's checkpoints: Estimator's name if they contain the whole model. Those without
# frozen weights have another name, so that they are not mistaken for a BERT.
MODEL_CHECKPOINT, PARTIAL_CHECKPOINT = "model.ckpt", "partial.ckpt"
TRAINING_FILES = ("checkpoint", MODEL_CHECKPOINT + "-*", PARTIAL_CHECKPOINT + "-*")
_RUN_CHECKPOINT = re.compile(rf"({MODEL_CHECKPOINT}|{PARTIAL_CHECKPOINT})-\d+")

_SUFFIXES = (".data-00000-of-00001", ".index")  # Files of a checkpoint with one shard.
_PARTIAL = ".partial"
IDENTITY = "_RUN_IDENTITY"  # Tensor that identifies the run of a training checkpoint.

# Errors of reading a damaged checkpoint; TensorFlow raises IndexError for a truncated one.
_READ_ERRORS = (tf.errors.OpError, IndexError, OSError)


def open_checkpoint(prefix: str, flag: str = "--init_checkpoint") -> Any:
    """Opens a TensorFlow checkpoint after checking its index and the size of its data files.

    No tensor is read.

    Args:
      prefix: common prefix of the checkpoint's files; local or gs://.
      flag: what errors call the prefix, usually the flag that named it.

    Returns:
      A checkpoint reader; see `tf.train.NewCheckpointReader`.

    Raises:
      UserError: the prefix is a folder, one of the checkpoint's files, or does not exist; the index
        is unreadable; or a data file is missing or truncated.
    """
    where = f"{flag} {prefix}"
    try:
        _check_prefix(prefix, where)
        reader = tf.train.NewCheckpointReader(literal_prefix(prefix))
        _check_data(prefix, reader, where)
    except _READ_ERRORS as error:
        reason = gfile.reason(error).split(": perhaps")[0]  # It advises another operator.
        raise UserError(f"{where} is damaged or not a TensorFlow checkpoint ({reason}).") from error
    return reader


def literal_prefix(prefix: str) -> str:
    """Returns a prefix of the same checkpoint that TensorFlow does not take for a pattern.

    TensorFlow finds no checkpoint, or another one, if a local folder's name has [ or a backslash.
    Such a folder gets a link, which lasts as long as the process.
    """
    folder, name = os.path.split(os.path.abspath(prefix))
    if gfile.is_remote(prefix) or not re.search(r"[\[\\]", folder):
        return prefix
    return os.path.join(_link_to(folder), name)


@functools.lru_cache(maxsize=None)
def _link_to(folder: str) -> str:
    parent = tempfile.mkdtemp(prefix="adapter-bert-")
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    link = os.path.join(parent, "bert")
    os.symlink(folder, link)
    return link


def check_encoder(prefix: str, config: configs.BertConfig, flag: str = "--init_checkpoint") -> Any:
    """Opens a checkpoint and checks that it contains the encoder that a config describes.

    It may contain other tensors, such as `cls/*`, optimizer slots, `global_step` and a head.

    Args:
      prefix: prefix of the checkpoint.
      config: `configs.BertConfig`, or an object with the same sizes as attributes.
      flag: what errors call the checkpoint, usually the flag that named it.

    Returns:
      The checkpoint's reader.

    Raises:
      UserError: the checkpoint cannot be opened, or does not contain such an encoder.
    """
    reader, where = open_checkpoint(prefix, flag), f"{flag} {prefix}"
    check_encoder_shapes(reader.get_variable_to_shape_map(), config, where)
    check_float32(reader, model_variables.encoder_shapes(config), where)
    return reader


def read_encoder(
    prefix: str, config: configs.BertConfig, flag: str = "--init_checkpoint"
) -> Dict[str, np.ndarray]:
    """Returns the encoder's tensors by name; the arguments and errors are those of `check_encoder`.

    Raises:
      UserError: also if a tensor is damaged.
    """
    reader, where = check_encoder(prefix, config, flag), f"{flag} {prefix}"
    names = model_variables.encoder_shapes(config)
    return {name: read_tensor(reader, name, where) for name in names}


def check_plain(prefix: str, flag: str = "--init_checkpoint") -> None:
    """Raises UserError if a checkpoint has adapters, as its weights are not those of plain BERT."""
    names = open_checkpoint(prefix, flag).get_variable_to_shape_map()
    if any("/adapters/" in name for name in names):
        raise UserError(
            f"{flag} {prefix} holds adapters; give the pretrained BERT, and its task adapter"
            " separately (convert_checkpoint.py from_adapter_bert makes one from such a"
            " checkpoint)."
        )


def check_float32(
    reader: Any, names: Iterable[str], where: str, keys: Optional[Dict[str, str]] = None
) -> None:
    """Raises UserError if a tensor has another type than float32.

    Args:
      reader: of the checkpoint.
      names: the tensors' names in errors.
      where: beginning of error messages.
      keys: dict from names to those in the checkpoint; None if they are equal.
    """
    dtypes = reader.get_variable_to_dtype_map()
    for name in names:
        dtype = dtypes[keys[name] if keys else name]
        if dtype != tf.float32:
            raise UserError(f"{where} expected float32, but {name} is {dtype.name}.")


def check_encoder_shapes(
    shapes: Dict[str, Sequence[int]], config: configs.BertConfig, where: str
) -> None:
    """Checks that tensors include the encoder that a config describes.

    Args:
      shapes: dict from tensor names to shapes.
      config: `configs.BertConfig`, or an object with the same sizes as attributes.
      where: beginning of error messages.

    Raises:
      UserError: the tensors do not include such an encoder.
    """
    expected = model_variables.encoder_shapes(config)
    missing = [name for name in expected if name not in shapes]
    if is_task_only(shapes):
        raise UserError(
            f"{where} has only the trained weights of a task; pass the pretrained BERT instead, and"
            " the task's folder as --adapter."
        )
    if len(missing) == len(expected) and OBJECT_GRAPH in shapes:
        raise UserError(
            f"{where} is an object-based checkpoint of TensorFlow 2; convert it with"
            " `python convert_checkpoint.py from_tf2`."
        )
    if len(missing) == len(expected):
        raise UserError(
            f"{where} does not contain a BERT encoder; its tensors are {_abbreviate(shapes)}."
        )
    for name, shape in expected.items():
        if name in shapes and tuple(shapes[name]) != shape:
            raise UserError(
                f"{where} does not match bert_config.json: its {name} has the shape "
                f"{list(shapes[name])}, expected {list(shape)}."
            )
    if missing:
        raise UserError(
            f"{where} lacks {len(missing)} of the {len(expected)} tensors that bert_config.json "
            f"requires, such as {missing[0]}."
        )
    num_layers = _count_layers(shapes)
    if num_layers > config.num_hidden_layers:
        raise UserError(
            f"{where} does not match bert_config.json: it has {num_layers} layers, "
            f"expected {config.num_hidden_layers}."
        )


def is_task_only(names: Iterable[str]) -> bool:
    """Returns whether tensor names are those of a training checkpoint without frozen weights.

    Such a checkpoint has a task's head and a global step, but no word embeddings.
    """
    names = set(names)
    is_partial = GLOBAL_STEP in names and "bert/embeddings/word_embeddings" not in names
    return is_partial and task_adapter.has_head(names)


def is_slot(name: str, names: Container[str]) -> bool:
    """Returns whether a tensor is an optimizer's slot of another one, as in X/Momentum and X.

    Args:
      name: the tensor's name.
      names: those of all tensors in the checkpoint.
    """
    return posixpath.dirname(name) in names


def unlisted_adapter_tensors(names: Iterable[str], listed: Container[str]) -> List[str]:
    """Returns the sorted names of a checkpoint's adapter tensors that a description does not list.

    Args:
      names: those of all tensors in the checkpoint.
      listed: the names that the description lists.
    """
    names = set(names)
    return sorted(
        name
        for name in names
        if "/adapters/" in name and name not in listed and not is_slot(name, names)
    )


def resolve_prefix(path: str) -> str:
    """Returns the prefix of a folder's last checkpoint, or the path unchanged if there is none.

    Args:
      path: a folder, or the prefix of a checkpoint.
    """
    if gfile.isdir(path):
        with contextlib.suppress(ValueError):  # The checkpoint record is damaged.
            return tf.train.latest_checkpoint(path) or path
    return path


def check_shapes(prefix: str, shapes: model_variables.Shapes) -> None:
    """Raises UserError if a tensor in --init_checkpoint has another shape than in the model.

    Args:
      prefix: prefix of the checkpoint.
      shapes: dict from names to the model's shapes; the checkpoint may lack some.
    """
    actual = open_checkpoint(prefix).get_variable_to_shape_map()
    for name, shape in shapes.items():
        if name in actual and actual[name] != list(shape):
            raise UserError(
                f"--init_checkpoint {prefix}: its {name} has the shape {actual[name]}, but the"
                f" model's is {list(shape)}."
            )


def check_tensors(prefix: str, flag: str = "--init_checkpoint") -> None:
    """Reads all tensors of a checkpoint; raises UserError if any is damaged."""
    reader = open_checkpoint(prefix, flag)
    for name in sorted(reader.get_variable_to_shape_map()):
        read_tensor(reader, name, f"{flag} {prefix}")


def read_tensor(reader: Any, name: str, where: str) -> np.ndarray:
    """Returns a tensor of an open checkpoint; if it is damaged, a UserError begins with `where`."""
    try:
        return reader.get_tensor(name)
    except _READ_ERRORS as error:
        raise UserError(
            f"{where} is damaged: its {name} cannot be read ({gfile.reason(error)})."
        ) from error


def trained_tensors(
    prefix: str, names: Iterable[str], flag: str = "--output_dir"
) -> Dict[str, np.ndarray]:
    """Loads the tensors of a task adapter from a checkpoint, and no others.

    Args:
      prefix: prefix of the checkpoint.
      names: the names that the adapter's description lists; see `task_adapter.shapes`.
      flag: what errors call the prefix.

    Returns:
      A dict from these names to arrays.

    Raises:
      UserError: the checkpoint is damaged or lacks a tensor.
    """
    reader, where = open_checkpoint(prefix, flag), f"{flag} {prefix}"
    for name in names:
        if not reader.has_tensor(name):
            raise UserError(f"{where} lacks {json.dumps(name)}, which its description requires.")
    return {name: read_tensor(reader, name, where) for name in names}


def write(prefix: str, tensors: Dict[str, np.ndarray]) -> None:
    """Writes arrays as a TensorFlow checkpoint; a kill never leaves a mix of two checkpoints.

    It uses placeholders, because BERT-Large as constants would almost exceed the 2 GB of a graph.

    Args:
      prefix: prefix of the checkpoint.
      tensors: dict from names to arrays.

    Raises:
      UserError: the checkpoint cannot be written.
    """
    cpu_config = tf.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default(), tf.Session(config=cpu_config) as session:
        inputs = [tf.placeholder(value.dtype, value.shape) for value in tensors.values()]
        partial = prefix + _PARTIAL
        save = tf.raw_ops.SaveV2(
            prefix=partial,
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=inputs,
        )
        try:
            with gfile.convert_write_errors(prefix):
                session.run(save, dict(zip(inputs, tensors.values())))
                for suffix in _SUFFIXES:
                    gfile.sync(partial + suffix)  # Here, because it takes long.
                # Removed first: an old index must never be next to new data.
                if gfile.exists(prefix + ".index"):
                    gfile.remove(prefix + ".index")
                    gfile.sync(os.path.dirname(prefix) or ".")
                for suffix in _SUFFIXES:
                    atomic.replace(partial + suffix, prefix + suffix)
        except BaseException:
            for suffix in _SUFFIXES:
                with contextlib.suppress(OSError):
                    gfile.remove(partial + suffix)
            raise


class Saver(tf.train.Saver):
    """Saves checkpoints; a new one is on disk before it is recorded and an old one is deleted."""

    def save(
        self,
        sess: tf.Session,
        save_path: str,
        global_step: Any = None,
        latest_filename: Optional[str] = None,
        meta_graph_suffix: str = "meta",
        write_meta_graph: bool = True,
        write_state: bool = True,
        **options: Any,
    ) -> Any:
        """Writes a checkpoint; arguments and result are those of `tf.train.Saver.save`.

        Raises:
          UserError: the checkpoint cannot be written.
        """
        with gfile.convert_write_errors(
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
                gfile.sync(path)
            if write_state:
                self._RecordLastCheckpoint(prefix)
                # TensorFlow lists none if it is to keep all.
                listed = [path for path in self.last_checkpoints if path != prefix] + [prefix]
                names = [os.path.relpath(path, folder) for path in listed]
                write_record(folder, names, latest_filename or "checkpoint")
                self._MaybeDeleteOldCheckpoints(meta_graph_suffix)
        return prefix


def write_record(folder: str, names: Sequence[str], file: str = "checkpoint") -> None:
    """Writes the file in which TensorFlow looks up a folder's checkpoints, atomically.

    Args:
      folder: path.
      names: prefixes of the checkpoints, relative to the folder; the latest comes last.
      file: name of the file.

    Raises:
      UserError: the file cannot be written.
    """
    state = tf.train.generate_checkpoint_state_proto(os.sep, names[-1], list(names))
    atomic.write_atomically(os.path.join(folder, file), str(state))


def step_of(prefix: str, flag: str = "--output_dir") -> int:
    """Returns a checkpoint's global step, by default 0; raises UserError if it is damaged."""
    reader = open_checkpoint(prefix, flag)
    if not reader.has_tensor(GLOBAL_STEP):
        return 0
    step = np.asarray(read_tensor(reader, GLOBAL_STEP, f"{flag} {prefix}"))
    if step.shape or step.dtype.kind != "i":
        raise UserError(f"{flag} {prefix}: its {GLOBAL_STEP} is not an integer.")
    return int(step)


def identity_of(prefix: str) -> Optional[str]:
    """Returns the identity of the run that saved a checkpoint; None if it is not recorded.

    Args:
      prefix: prefix of a checkpoint in --output_dir.

    Raises:
      UserError: the checkpoint is damaged.
    """
    reader = open_checkpoint(prefix, "--output_dir")
    if not reader.has_tensor(IDENTITY):
        return None
    value = np.asarray(read_tensor(reader, IDENTITY, f"--output_dir {prefix}")).item()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def latest(output_dir: str, run_identity: Optional[str] = None) -> Optional[str]:
    """Returns the prefix of a run's last checkpoint, or None.

    Args:
      output_dir: of the run.
      run_identity: the run's; None if it does not matter which run saved the checkpoint.

    Raises:
      UserError: the folder's record lists anything but the run's checkpoints in this folder, which
        a training would delete; or another run saved the last checkpoint.
    """
    record = posixpath.join(output_dir, "checkpoint")
    state = tf.train.get_checkpoint_state(output_dir)
    for path in [state.model_checkpoint_path, *state.all_model_checkpoint_paths] if state else ():
        folder, name = posixpath.split(path)
        if not _RUN_CHECKPOINT.fullmatch(name) or not paths.is_same_path(folder, output_dir):
            raise UserError(
                f"{record} lists {path}, which is of another run;"
                " expected checkpoints in its own folder. Give another --output_dir."
            )
    checkpoint = tf.train.latest_checkpoint(output_dir)
    if checkpoint and run_identity and identity_of(checkpoint) not in (None, run_identity):
        raise UserError(
            f"{checkpoint} belongs to another run, which also trains in this folder; give another"
            " --output_dir."
        )
    return checkpoint


def last_step(output_dir: Optional[str]) -> int:
    """Returns the global step of a run's last checkpoint; 0 if there is none.

    Args:
      output_dir: output_dir of the run, or None.
    """
    checkpoint = output_dir and latest(output_dir)
    return step_of(checkpoint) if checkpoint else 0


def _check_prefix(prefix: str, where: str) -> None:
    """Raises UserError unless `prefix` is that of a checkpoint."""
    if gfile.isdir(prefix):
        prefixes = " or ".join(_checkpoints_in(prefix)) or "but this folder has none"
        raise UserError(
            f"{where} is a folder; expected the prefix of a complete checkpoint, {prefixes}."
        )
    file_match = re.match(r"(.+)\.(index|meta|data-\d+-of-\d+)$", prefix)
    if file_match and gfile.exists(prefix):
        raise UserError(
            f"{where} is one of a checkpoint's files; expected their common prefix: "
            f"{file_match.group(1)}."
        )
    if not gfile.exists(prefix + ".index"):
        siblings = " and ".join(_checkpoints_in(os.path.dirname(prefix) or "."))
        raise UserError(
            f"{where} is not the prefix of a TensorFlow checkpoint: there is no file"
            f" {prefix}.index; the complete checkpoints in its folder are: {siblings or 'none'}."
        )


def _checkpoints_in(folder: str) -> List[str]:
    """Returns the sorted prefixes of a folder's checkpoints, except `PARTIAL_CHECKPOINT` ones."""
    names = gfile.listdir(folder) if gfile.isdir(folder) else []
    return sorted(
        os.path.join(folder, name[: -len(".index")])
        for name in names
        if name.endswith(".index")
        and not name.endswith(_PARTIAL + ".index")
        and not name.startswith(PARTIAL_CHECKPOINT + "-")
    )


def _check_data(prefix: str, reader: Any, where: str) -> None:
    """Raises UserError if the data files are missing or too short."""
    folder, name = os.path.split(prefix)
    files = [file for file in gfile.listdir(folder or ".") if file.startswith(name + ".data-")]
    num_bytes = sum(gfile.size(os.path.join(folder, file)) for file in files)
    dtypes = reader.get_variable_to_dtype_map()
    required_bytes = sum(
        int(np.prod(shape, dtype=np.int64)) * dtypes[name].size
        for name, shape in reader.get_variable_to_shape_map().items()
        if dtypes[name] != tf.string  # The index lacks strings' lengths.
    )
    if num_bytes < required_bytes:
        raise UserError(
            f"{where} is incomplete: its data files have {num_bytes:,} bytes, its tensors require"
            f" {required_bytes:,}."
        )


def encoder_sizes(shapes: Dict[str, Sequence[int]], where: str) -> model_variables.EncoderSizes:
    """Infers the sizes of an encoder from the shapes of its tensors.

    Args:
      shapes: dict from variable names to lists of int.
      where: beginning of the error message.

    Raises:
      UserError: a required tensor is missing or is not a matrix.
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
    """Returns the shape of a BERT's matrix; raises UserError if it is missing or not a matrix."""
    if name not in shapes:
        raise UserError(
            f"{where} expected the variables of a BERT, but there is no {name}, only"
            f" {_abbreviate(shapes)}."
        )
    if len(shapes[name]) != 2:
        raise UserError(
            f"{where} expected {name} to have rank 2, but its shape is {list(shapes[name])}."
        )
    rows, columns = shapes[name]
    return rows, columns


def _count_layers(names: Iterable[str]) -> int:
    """Returns the number of Transformer layers to which variables belong."""
    return len({name.split("/")[2] for name in names if name.startswith("bert/encoder/layer_")})


def _abbreviate(names: Iterable[str]) -> str:
    """Returns the first names for an error message."""
    names = sorted(names)
    return ", ".join(names[:3] + ["..."] * (len(names) > 3)) or "nothing"
