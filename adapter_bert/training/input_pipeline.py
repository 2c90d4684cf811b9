"""Features ↔ TFRecord ↔ batches.

Batches are planned, then gathered: `epoch_order`, `training_batches` and
`training_batches_by_length` are pure functions of (seed, epoch, step), so that a run that starts in
the middle reads exactly what an unbroken one would have read from there on. tf.data only hands the
rows over.

Where shapes may vary, on CPU and GPU, rows of like length share a batch, which is cut to the next
length of `BUCKETS`.
"""

import bisect
import collections
import itertools
from typing import Any, Callable, Iterable, Iterator, List, Optional, Tuple, Union

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.common.errors import UserError
from adapter_bert.formats import checkpoints
from adapter_bert.training.rows import Arrays, Rows, as_rows

_INT_FEATURES = ("input_ids", "input_mask", "segment_ids", "label_ids", "is_real_example")

# The lengths that batches are cut to. Every token of padding costs its share of each step, every
# length costs the compilation of the kernels for its shape, once a process. Steps of 1/16 to 1/3 of
# the length keep both small. In the batches of 32 that `training_batches_by_length` makes, a
# training on MRPC (19 to 103 WordPieces) meets 10 of these lengths and computes 1.12 times the
# tokens that are there, one on CoLA (4 to 47) 8 and 1.22, one on SQuAD's windows (41 to 384) 18 and
# 1.09; with 16, 32, 48, 64, 96, 128, 192, 256, 384 alone these are 5 and 1.26, 3 and 1.62, 5 and
# 1.23, which costs more from MRPC's first epoch on.
BUCKETS = (*range(8, 32, 4), *range(32, 128, 8), *range(128, 256, 16), *range(256, 513, 32))

# Batches that are sorted together. More make less padding and more of the same company: with 1, 8,
# 16, 32, 50 and a whole epoch (114) of MRPC's batches of 32, 1.57, 1.15, 1.12, 1.09, 1.08 and 1.07
# times the tokens that are there are computed, and of the rows that a row shares its batch with, 1,
# 5, 9, 16, 23 and 33% are those of the epoch before. 16 are the fewest within 5% of the least.
BATCHES_PER_POOL = 16

_MAX_GRAPH_BYTES = 2**31 - 1  # A protocol buffer's.


def epoch_order(num_rows: int, seed: int, epoch: int) -> np.ndarray:
    """A permutation of range(num_rows), int64 [num_rows], drawn from (seed, epoch) alone."""
    return np.random.RandomState([seed, epoch]).permutation(num_rows)


def training_batches(
    num_rows: int, batch_size: int, seed: int, start_step: int = 0
) -> Iterator[np.ndarray]:
    """Yields the rows of every training step from `start_step` on, without end.

    The epochs' permutations stand one after another, and step t takes the rows from
    t * batch_size on: every batch is full, and a row comes again only when all have been seen.

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
    """Yields the rows of every training step, those of like length together, without end.

    BATCHES_PER_POOL consecutive batches of `training_batches`, or as many as an epoch fills where
    these are fewer, are a pool. Its rows are sorted by length, rows of one length keep their random
    order, and the batches cut from them come in an order drawn from (seed, number of the pool).

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
        # The third number keeps these draws apart from `epoch_order`'s.
        order = np.random.RandomState([seed, pool, 1]).permutation(pool_size)
        yield from rows[order[skipped:]]
        skipped = 0


def shares(
    batches: Iterable[np.ndarray], num_replicas: int, replicas: range
) -> Iterator[np.ndarray]:
    """Yields the parts of every batch that some replicas take.

    Args:
      batches: iterable of int64 [B], indices of rows.
      num_replicas: N, which divides B.
      replicas: range of their indices.

    Yields:
      int64 [B / N], replica after replica, batch after batch.
    """
    for batch in batches:
        yield from batch.reshape(num_replicas, -1)[replicas.start : replicas.stop]


def _replicas(tpu_context, input_context) -> Tuple[int, range]:
    """(number of all replicas, range of those that read from one call of an input_fn)."""
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


def evaluation_batches(order: Union[int, np.ndarray], batch_size: int) -> Iterator[np.ndarray]:
    """Yields the rows of an order (or of range(order)), the last batch as short as it comes."""
    rows = np.asarray(order)
    rows = rows if rows.ndim else np.arange(int(rows))
    for start in range(0, len(rows), batch_size):
        yield rows[start : start + batch_size]


def pad_to_multiple(order: np.ndarray, multiple: int) -> np.ndarray:
    """Appends -1, rows of weight 0, up to a multiple, for TPUs' fixed shapes."""
    return np.concatenate([order, np.full(-len(order) % multiple, -1, np.int64)])


def sort_by_index(indexed: Iterable[Tuple[int, Any]]) -> List[Any]:
    """What comes as (index of a row, item), in any order, as a list of the items by rows."""
    items = dict(indexed)
    return [items[index] for index in range(len(items))]


def longest_first(lengths: np.ndarray) -> np.ndarray:
    """The order, int64 [rows], that puts the longest rows first, equal ones as they stand.

    Batches of it hold the least padding, and the first one needs the most memory.
    """
    return np.argsort(-lengths, kind="stable")


def bucket_of(length: int, max_length: int) -> int:
    """What a batch of this length is padded to: the next of `BUCKETS`, at most `max_length`."""
    index = bisect.bisect_left(BUCKETS, length)
    return min([max_length, *BUCKETS[index : index + 1]])


def input_fn_of(
    arrays: Union[Rows, Arrays],
    is_training: bool,
    drop_remainder: bool,
    fixed_length: bool = True,
    order: Optional[np.ndarray] = None,
) -> Callable:
    """An Estimator's input_fn over rows.

    Args:
      arrays: `rows.TextRows`, or a dict of NumPy arrays as of `rows.PaddedRows`.
      is_training: bool; shuffled and endless where true, in order and once where not.
      drop_remainder: bool; leaves a short last batch out, for fixed shapes.
      fixed_length: bool; keeps the padding that no row of a batch needs, as TPUs want it. Without
        it, rows of like length are trained on together, and every batch is cut to its bucket.
      order: int [rows], where not training: which rows come, all of them as they stand by default;
        -1 is a row of padding.

    Returns:
      input_fn(params, config=None, input_context=None) → Dataset of dicts. The order follows from
      config.tf_random_seed; training starts after the steps of config.model_dir's last checkpoint.
      Where several replicas train, params["batch_size"] is each one's; the batches of all those
      that read from this input_fn come one after the other.
    """
    rows = as_rows(arrays)

    def input_fn(params, config=None, input_context=None):
        num_replicas, replicas = _replicas(params.get("context"), input_context)
        batch_size = params["batch_size"]

        def plan():
            if not is_training:
                return evaluation_batches(len(rows) if order is None else order, batch_size)
            seed = (config and config.tf_random_seed) or 0
            start_step = checkpoints.last_step(config.model_dir) if config else 0
            global_batch_size = batch_size * num_replicas
            if fixed_length:
                batches = training_batches(len(rows), global_batch_size, seed, start_step)
            else:
                batches = training_batches_by_length(
                    rows.lengths, global_batch_size, seed, start_step
                )
            return shares(batches, num_replicas, replicas)

        def gather():
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
        return _disable_autotune(dataset.prefetch(2))

    return input_fn


def input_fn_of_batches(read: Callable[[], Iterable[Arrays]]) -> Callable:
    """An Estimator's input_fn over batches that come one after another, to be predicted.

    Args:
      read: function that returns dicts of int32 arrays [B, S]: input_ids, input_mask and
        segment_ids.

    Returns:
      input_fn(params) → Dataset of these dicts.
    """
    names = _INT_FEATURES[:3]

    def input_fn(params):
        del params  # The batches have their sizes.
        dataset = tf.data.Dataset.from_generator(
            read, dict.fromkeys(names, tf.int32), dict.fromkeys(names, (None, None))
        )
        return _disable_autotune(dataset.prefetch(2))

    return input_fn


def input_fn_for_tpu(
    arrays: Union[Rows, Arrays], order: Optional[np.ndarray] = None, last_step: Optional[int] = None
) -> Callable:
    """An Estimator's input_fn over rows that a TPU can train on, wherever its host is.

    All shapes are fixed, and rows and plan are constants of the graph: a Python function, as
    `input_fn_of` has one, cannot be called from another machine.

    Args:
      arrays: as in `input_fn_of`.
      order: int [rows], which rows come, once; -1 is a row of padding. What does not fill a batch
        is left out.
      last_step: where a training ends, which takes the place of the order.

    Returns:
      input_fn(params, config) → Dataset, as that of `input_fn_of`.

    Raises:
      UserError: by the input_fn, there are more rows than a graph can hold.
    """
    rows = as_rows(arrays)

    def input_fn(params, config):
        batch_size, indices, num_hosts = params["batch_size"], order, 1
        if last_step is not None:
            num_replicas, replicas = _replicas(params.get("context"), None)
            num_hosts = num_replicas // len(replicas)
            start_step, seed = checkpoints.last_step(config.model_dir), config.tf_random_seed or 0
            batches = training_batches(len(rows), batch_size * num_replicas, seed, start_step)
            batches = itertools.islice(batches, last_step - start_step)
            indices = np.concatenate(list(shares(batches, num_replicas, replicas)))
        indices = np.array(indices, np.int32)
        nbytes = num_hosts * (rows.nbytes + indices.nbytes)
        if nbytes > _MAX_GRAPH_BYTES:
            raise UserError(
                f"{len(rows):,} rows and the plan of their batches take {nbytes / 1e9:.1f} GB, but"
                f" the graph that brings them to a TPU holds {_MAX_GRAPH_BYTES / 1e9:.1f} at most:"
                " give fewer rows."
            )
        dataset = tf.data.Dataset.from_tensor_slices(indices)
        dataset = dataset.batch(batch_size, drop_remainder=True)
        if last_step is not None:
            # A session that is lost is made anew on this graph, from a later checkpoint.
            done_steps = tf.train.get_or_create_global_step().read_value() - start_step
            dataset = dataset.skip(len(replicas) * done_steps)
        return _disable_autotune(dataset.map(rows.in_graph()).prefetch(2))

    return input_fn


def _disable_autotune(dataset):
    """Switches off tf.data's search for buffer sizes, of which nothing here leaves it any.

    Its thread sleeps up to a minute, and a session that closes waits for it.
    """
    options = tf.data.Options()
    if tf.__version__.startswith("1."):
        options.experimental_optimization.autotune = False
    else:
        options.autotune.enabled = False
    return dataset.with_options(options)


def write_tfrecord(arrays: Arrays, output_file: str) -> None:
    """Writes rows as tf.train.Examples of int64 features, as BERT's scripts do.

    Args:
      arrays: dict of integer NumPy arrays [rows] or [rows, length].
      output_file: path.
    """
    with tf.python_io.TFRecordWriter(output_file) as writer:
        for row in range(len(arrays["input_ids"])):
            feature = collections.OrderedDict(
                (name, tf.train.Feature(int64_list=tf.train.Int64List(value=np.ravel(rows[row]))))
                for name, rows in arrays.items()
            )
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())


def read_tfrecord(input_file: str, seq_length: int) -> Arrays:
    """Reads what `write_tfrecord` or BERT's run_classifier wrote.

    Returns:
      dict of int32 arrays: input_ids, input_mask and segment_ids [rows, seq_length], label_ids and
      is_real_example [rows].

    Raises:
      UserError: the file is missing, is no TFRecord file of such features, or holds no rows.
    """
    lengths = dict.fromkeys(_INT_FEATURES[:3], [seq_length])
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = _disable_autotune(tf.data.TFRecordDataset(input_file).batch(1024))
        batch = tf.parse_example(
            tf.data.make_one_shot_iterator(dataset).get_next(),
            {name: tf.FixedLenFeature(lengths.get(name, []), tf.int64) for name in _INT_FEATURES},
        )
        batches = []
        while True:
            try:
                batches.append(session.run(batch))
            except tf.errors.OutOfRangeError:
                break
            except tf.errors.OpError as error:
                raise UserError(
                    f"{input_file}: cannot be read as a TFRecord file of BERT's features, each"
                    f" {seq_length} long ({type(error).__name__})."
                ) from error
    if not batches:
        raise UserError(f"{input_file}: holds no rows.")
    return {
        name: np.concatenate([b[name] for b in batches]).astype(np.int32) for name in _INT_FEATURES
    }
