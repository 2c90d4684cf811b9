"""Converts features to batches.

Batches are planned first, then gathered. `epoch_order`, `training_batches` and
`training_batches_by_length` are pure functions of (seed, epoch, step), so a run that resumes in the
middle reads exactly the batches of an uninterrupted run. tf.data only transports the rows.

On CPU and GPU, where shapes may vary, rows of similar length share a batch, which is truncated to
the next length in `BUCKETS`.

TensorFlow is imported by the functions, as run_classifier.py imports one of them before its flags
are parsed.
"""

import bisect
import itertools
import posixpath
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from adapter_bert.files import gfile
from adapter_bert.formats import checkpoints
from adapter_bert.training.rows import PER_TOKEN, Arrays, Features, Rows, as_rows

# The lengths that batches are truncated to. Each padding token costs compute in every step; each
# length costs one compilation of kernels per process. Steps of 1/16 to 1/3 of the length keep both
# small. For batches of 32 from `training_batches_by_length` on three data sets, the number of these
# lengths that occur, and the computed tokens per real token, with the figures for a coarser list
# (16, 32, 48, 64, 96, 128, 192, 256, 384), which is slower from MRPC's first epoch on:
#     MRPC (19 to 103 WordPieces): 10 lengths and 1.12; coarser 5 and 1.26
#     CoLA (4 to 47): 8 and 1.22; coarser 3 and 1.62
#     SQuAD's windows (41 to 384): 18 and 1.09; coarser 5 and 1.23
BUCKETS = (*range(8, 32, 4), *range(32, 128, 8), *range(128, 256, 16), *range(256, 513, 32))

# Number of batches whose rows are sorted together. Larger pools have less padding, but put the same
# rows together more often. For MRPC in batches of 32 and pools of 1, 8, 16, 32, 50 and 114 (an
# epoch) batches, computed tokens per real token are 1.57, 1.15, 1.12, 1.09, 1.08 and 1.07; and 1,
# 5, 9, 16, 23 and 33% of a row's batch were already with it in the epoch before. 16 is the smallest
# pool within 5% of the least padding.
BATCHES_PER_POOL = 16

# A batch of this many tokens takes about the memory of a training step of 32 rows of 128 tokens
# without its gradients, and is as fast as any larger one on CPUs and GPUs of today.
_TOKENS_PER_BATCH, MIN_BATCH_SIZE = 8192, 8


def epoch_order(num_rows: int, seed: int, epoch: int) -> np.ndarray:
    """Returns a permutation of range(num_rows), int64, that depends only on (seed, epoch)."""
    return np.random.RandomState([seed, epoch]).permutation(num_rows)


def training_batches(
    num_rows: int, batch_size: int, seed: int, start_step: int = 0
) -> Iterator[np.ndarray]:
    """Yields the rows of every training step from `start_step`, endlessly.

    The permutations of all epochs are concatenated; step t takes the rows from t * batch_size. So
    every batch is full, and no row repeats before all have been seen.

    Yields:
      int64 [batch_size], indices of rows.
    """
    epoch, skipped = divmod(start_step * batch_size, num_rows)
    orders = (epoch_order(num_rows, seed, e) for e in itertools.count(epoch))
    pending = next(orders)[skipped:]
    while True:
        while len(pending) < batch_size:
            pending = np.concatenate([pending, next(orders)])
        yield pending[:batch_size]
        pending = pending[batch_size:]


def training_batches_by_length(
    lengths: np.ndarray, batch_size: int, seed: int, start_step: int = 0
) -> Iterator[np.ndarray]:
    """Yields the rows of every training step, grouped by similar length, endlessly.

    A pool is BATCHES_PER_POOL consecutive batches of `training_batches`, or all batches of an epoch
    if these are fewer. Its rows are sorted by length, with a random order for equal lengths, and
    split into batches; the order of the batches is drawn from (seed, index of the pool).

    Args:
      lengths: int [rows].
      batch_size, seed, start_step: as in `training_batches`.

    Yields:
      int64 [batch_size], indices of rows.
    """
    pool_size = max(1, min(BATCHES_PER_POOL, len(lengths) // batch_size))
    first_pool, skipped = divmod(start_step, pool_size)
    batches = training_batches(len(lengths), batch_size, seed, first_pool * pool_size)
    for pool in itertools.count(first_pool):
        rows = np.concatenate(list(itertools.islice(batches, pool_size)))
        rows = rows[np.argsort(lengths[rows], kind="stable")].reshape(pool_size, batch_size)
        # The third number makes these draws differ from those of `epoch_order`.
        order = np.random.RandomState([seed, pool, 1]).permutation(pool_size)
        yield from rows[order[skipped:]]
        skipped = 0


def shares(
    batches: Iterable[np.ndarray], num_replicas: int, replicas: range
) -> Iterator[np.ndarray]:
    """Yields the parts of every batch that the given replicas take.

    Args:
      batches: iterable of int64 [B], indices of rows.
      num_replicas: N, which divides B.
      replicas: range of the replicas' indices.

    Yields:
      int64 [B / N]; for each batch, one part per replica in order.
    """
    for batch in batches:
        yield from batch.reshape(num_replicas, -1)[replicas.start : replicas.stop]


def _replicas(tpu_context: Any, input_context: Any) -> Tuple[int, range]:
    """Returns (number of all replicas, range of those that read from one call of an input_fn)."""
    if input_context:
        num_replicas = input_context.num_replicas_in_sync
        num_local = num_replicas // input_context.num_input_pipelines
        index = input_context.input_pipeline_id
    elif tpu_context:
        num_replicas = tpu_context.num_replicas
        _, index, _, num_local = tpu_context.current_input_fn_deployment()
    else:
        num_replicas, num_local, index = 1, 1, 0
    return num_replicas, range(index * num_local, (index + 1) * num_local)


def evaluation_batches(order: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Yields the rows of an order in batches; the last may be smaller."""
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def batches_of_tokens(lengths: np.ndarray, max_length: int) -> Iterator[np.ndarray]:
    """Yields the rows in order in batches of about `_TOKENS_PER_BATCH`, with padding.

    Args:
      lengths: int [rows], in descending order.
      max_length: of a row.
    """
    start = 0
    while start < len(lengths):
        size = max(MIN_BATCH_SIZE, _TOKENS_PER_BATCH // bucket_of(int(lengths[start]), max_length))
        yield np.arange(start, min(start + size, len(lengths)))
        start += size


def pad_to_multiple(order: np.ndarray, multiple: int) -> np.ndarray:
    """Appends -1, padding rows of weight 0, up to a multiple, for the fixed shapes of TPUs."""
    return np.concatenate([order, np.full(-len(order) % multiple, -1, np.int64)])


def sort_by_index(indexed: Iterable[Tuple[int, Any]]) -> List[Any]:
    """Returns the items of (index, item) pairs, given in any order, as a list by index."""
    items = dict(indexed)
    return [items[index] for index in range(len(items))]


def longest_first(lengths: np.ndarray) -> np.ndarray:
    """Returns the order, int64 [rows], with the longest rows first; ties keep their order.

    Its batches have the least padding, and the first one needs the most memory.
    """
    return np.argsort(-lengths, kind="stable")


def bucket_of(length: int, max_length: int) -> int:
    """Returns the length to pad a batch to: the next of `BUCKETS`, at most `max_length`."""
    index = bisect.bisect_left(BUCKETS, length)
    return min([max_length, *BUCKETS[index : index + 1]])


def input_fn_builder(
    features: Features,
    seq_length: Optional[int],
    is_training: bool,
    drop_remainder: bool,
) -> Callable:
    """Returns an Estimator's input_fn over rows; BERT's function of this name.

    Its dataset calls Python, which the host of a remote TPU cannot; see `input_fn_for_tpu`.

    Args:
      features: list of `classifier_features.InputFeatures`, or rows or arrays; see `rows.as_rows`.
      seq_length: S, the length of all batches, as TPUs need. None: training batches have rows of
        similar length, and every batch is truncated to its bucket.
      is_training: bool; if true, rows are shuffled and repeat endlessly; otherwise they come once
        and in order.
      drop_remainder: bool; whether to drop a smaller last batch, for fixed shapes.

    Returns:
      input_fn(params, config=None, input_context=None) → Dataset of dicts. The order depends on
      config.tf_random_seed; training starts after the step of the last checkpoint in
      config.model_dir. If params["batch_size"] is None, predictions are in `batches_of_tokens`.
      With several replicas, params["batch_size"] is per replica; the batches of
      all replicas that read from this input_fn come one after the other.

    Raises:
      ValueError: the features have another length than seq_length, or there are none.
    """
    rows = as_rows(features)
    fixed_length = seq_length is not None
    if fixed_length and seq_length != rows.max_seq_length:
        raise ValueError(f"seq_length={seq_length}: the features have {rows.max_seq_length}.")

    def input_fn(params: Dict[str, Any], config: Any = None, input_context: Any = None) -> Any:
        import tensorflow.compat.v1 as tf

        num_replicas, replicas = _replicas(params.get("context"), input_context)
        batch_size = params["batch_size"]

        def plan() -> Iterator[np.ndarray]:
            if batch_size is None:
                return batches_of_tokens(rows.lengths, rows.max_seq_length)
            if not is_training:
                return evaluation_batches(np.arange(len(rows)), batch_size)
            return _training_plan(rows, fixed_length, batch_size, config, num_replicas, replicas)

        def gather() -> Iterator[Arrays]:
            for indices in plan():
                if not drop_remainder or len(indices) == batch_size:
                    max_length = rows.lengths[indices].max(initial=0)
                    yield rows.take(
                        indices,
                        None if fixed_length else bucket_of(max_length, rows.max_seq_length),
                    )

        num_rows = batch_size if is_training or drop_remainder else None
        types, shapes = {}, {}
        for name, values in rows.take([0]).items():
            columns = values.shape[1:] if fixed_length else (None,) * (values.ndim - 1)
            types[name], shapes[name] = tf.as_dtype(values.dtype), (num_rows, *columns)
        dataset = tf.data.Dataset.from_generator(gather, types, shapes)
        return disable_autotune(dataset.prefetch(2))

    return input_fn


def _training_plan(
    rows: Rows,
    fixed_length: bool,
    batch_size: int,
    config: Any,
    num_replicas: int,
    replicas: range,
) -> Iterator[np.ndarray]:
    """Returns the `shares` of the steps after the last checkpoint; batch_size is per replica."""
    seed = (config and config.tf_random_seed) or 0
    start_step = checkpoints.last_step(config.model_dir) if config else 0
    global_batch_size = batch_size * num_replicas
    if fixed_length:
        batches = training_batches(len(rows), global_batch_size, seed, start_step)
    else:
        batches = training_batches_by_length(rows.lengths, global_batch_size, seed, start_step)
    return shares(batches, num_replicas, replicas)


def input_fn_for_tpu(
    features: Features,
    folder: str,
    order: Optional[np.ndarray] = None,
    last_step: Optional[int] = None,
) -> Callable:
    """Returns an Estimator's input_fn over rows for a TPU, also one with a remote host.

    All shapes are fixed. The rows are written to files in the order in which they are read, as
    another machine cannot call a Python function, such as the generator in `input_fn_builder`.

    Args:
      features: as in `input_fn_builder`.
      folder: that the TPU's host can read, for a file of rows per host.
      order: int [rows], indices of the rows to read once; -1 is a padding row. Rows that do not
        fill a batch are dropped.
      last_step: the last step of a training, given instead of an order.

    Returns:
      input_fn(params, config) → Dataset, as in `input_fn_builder`.

    Raises:
      WriteError: by the input_fn, if the files cannot be written.
    """
    rows = as_rows(features)

    def input_fn(params: Dict[str, Any], config: Any) -> Any:
        import tensorflow.compat.v1 as tf

        batch_size = params["batch_size"]
        num_replicas, replicas = _replicas(params.get("context"), None)
        parts: Iterable[np.ndarray]
        if last_step is None:
            parts = evaluation_batches(np.asarray(order), batch_size)
        else:
            start_step = checkpoints.last_step(config.model_dir)
            plan = _training_plan(rows, True, batch_size, config, num_replicas, replicas)
            parts = itertools.islice(plan, len(replicas) * (last_step - start_step))
        path = posixpath.join(folder, f"rows-{replicas.start}-of-{num_replicas}")
        layout = _write_rows(path, rows, parts)
        num_bytes = sum(column.num_bytes for column in layout)
        dataset = tf.data.FixedLengthRecordDataset([path], num_bytes)
        dataset = dataset.batch(batch_size, drop_remainder=True)
        if last_step is not None:
            # A lost session is rebuilt from a later checkpoint, but on this graph.
            done_steps = tf.train.get_or_create_global_step().read_value() - start_step
            dataset = dataset.skip(len(replicas) * done_steps)

        def parse(records: Any) -> Dict[str, Any]:
            contents = tf.split(
                tf.decode_raw(records, tf.uint8), [column.num_bytes for column in layout], axis=1
            )
            return {column.name: column.parse(content) for column, content in zip(layout, contents)}

        return disable_autotune(dataset.map(parse).prefetch(2))

    return input_fn


class _Column(NamedTuple):
    """A column of a file of rows.

    Attributes:
      name: of the column.
      shape: of a row's values.
      dtype, stored_dtype: types of the values in `rows.Rows` and in the file.
    """

    name: str
    shape: Tuple[int, ...]
    dtype: np.dtype
    stored_dtype: np.dtype

    @property
    def num_bytes(self) -> int:
        """The number of bytes of a row's values."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.stored_dtype.itemsize

    def content(self, values: np.ndarray) -> np.ndarray:
        """Returns the bytes, uint8 [B, num_bytes], of values [B, *shape]."""
        stored = np.ascontiguousarray(values, self.stored_dtype).reshape(len(values), -1)
        return stored.view(np.uint8)

    def parse(self, content: Any) -> Any:
        """Returns the values [B, *shape], a Tensor, of bytes, uint8 [B, num_bytes]."""
        import tensorflow.compat.v1 as tf

        size = self.stored_dtype.itemsize
        shape = [content.shape[0], *self.shape, *[size] * (size > 1)]
        return tf.cast(tf.bitcast(tf.reshape(content, shape), self.stored_dtype), self.dtype)


def _write_rows(path: str, rows: Rows, parts: Iterable[np.ndarray]) -> List[_Column]:
    """Writes the rows of parts of an order to a file, without padding between them.

    Args:
      path: of the file.
      rows: `rows.Rows`.
      parts: iterable of int [B], indices of rows; -1 is a padding row.

    Returns:
      The columns of a row, in order.
    """
    small = {name: np.dtype(dtype) for name, dtype in PER_TOKEN}
    layout = [
        _Column(name, values.shape[1:], values.dtype, small.get(name, values.dtype))
        for name, values in rows.take([0]).items()
    ]
    with gfile.convert_write_errors(path):
        gfile.makedirs(gfile.parent(path))
        with gfile.open_file(path, "wb") as writer:
            for indices in parts:
                arrays = rows.take(indices)
                contents = [column.content(arrays[column.name]) for column in layout]
                writer.write(np.concatenate(contents, axis=1).tobytes())
    return layout


def disable_autotune(dataset: Any) -> Any:
    """Returns the dataset without tf.data's autotuning, which has nothing to tune here.

    Its thread sleeps up to a minute, and closing a session waits for it.
    """
    import tensorflow.compat.v1 as tf

    options = tf.data.Options()
    if tf.__version__.startswith("1."):
        options.experimental_optimization.autotune = False
    else:
        options.autotune.enabled = False
    return dataset.with_options(options)
