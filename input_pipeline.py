"""Features ↔ TFRecord ↔ batches.

Batches are planned, then gathered: `epoch_order`, `training_batches` and
`training_batches_by_length` are pure functions of (seed, epoch, step), so that a run that starts in
the middle reads exactly what an unbroken one would have read from there on. tf.data only hands the
rows over.

Where shapes may vary, on CPU and GPU, rows of like length share a batch, which `trim` cuts to the
next length of `BUCKETS`.
"""

import bisect
import collections
import itertools

import numpy as np
import tensorflow.compat.v1 as tf

import checkpoints
from errors import UserError

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
POOL = 16


def epoch_order(num_rows, seed, epoch):
    """A permutation of range(num_rows), int64 [num_rows], drawn from (seed, epoch) alone."""
    return np.random.RandomState([seed, epoch]).permutation(num_rows)


def training_batches(num_rows, batch_size, seed, start_step=0):
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


def training_batches_by_length(lengths, batch_size, seed, start_step=0):
    """Yields the rows of every training step, those of like length together, without end.

    POOL consecutive batches of `training_batches`, or as many as an epoch fills where these are
    fewer, are a pool. Its rows are sorted by length, rows of one length keep their random order,
    and the batches cut from them come in an order drawn from (seed, number of the pool).

    Args:
      lengths: int [rows].
      batch_size, seed, start_step: as in `training_batches`.

    Yields:
      int64 [batch_size], indices of rows.
    """
    pool_size = max(1, min(POOL, len(lengths) // batch_size))
    first_pool, done = divmod(start_step, pool_size)
    batches = training_batches(len(lengths), batch_size, seed, first_pool * pool_size)
    for pool in itertools.count(first_pool):
        rows = np.concatenate(list(itertools.islice(batches, pool_size)))
        rows = rows[np.argsort(lengths[rows], kind="stable")].reshape(pool_size, batch_size)
        # The third number keeps these draws apart from `epoch_order`'s.
        order = np.random.RandomState([seed, pool, 1]).permutation(pool_size)
        yield from rows[order[done:]]
        done = 0


def evaluation_batches(num_rows, batch_size):
    """Yields the rows of the file's order, the last batch as short as it comes."""
    for start in range(0, num_rows, batch_size):
        yield np.arange(start, min(start + batch_size, num_rows))


def pad_rows(arrays, multiple):
    """Appends rows of weight 0 (is_real_example 0) up to a multiple, for TPUs' fixed shapes."""
    missing = -len(arrays["is_real_example"]) % multiple
    return {
        name: np.concatenate([rows, np.zeros((missing,) + rows.shape[1:], rows.dtype)])
        for name, rows in arrays.items()
    }


def row_lengths(arrays):
    """The tokens of each row, int64 [rows], from the input_mask [rows, S] among the arrays."""
    return np.count_nonzero(arrays["input_mask"], axis=1)


def longest_first(arrays):
    """The order, int64 [rows], that puts the longest rows first, equal ones as they stand.

    Batches of it hold the least padding, and the first one needs the most memory.
    """
    return np.argsort(-row_lengths(arrays), kind="stable")


def bucket_of(length, longest):
    """What a batch of this length is padded to: the next of `BUCKETS`, at most `longest`."""
    place = bisect.bisect_left(BUCKETS, length)
    return min([longest, *BUCKETS[place : place + 1]])


def trim(batch):
    """Cuts off the columns that are padding in every row of a batch, as far as `BUCKETS` goes.

    Args:
      batch: dict of NumPy arrays [rows, ...], among them input_mask [rows, S].

    Returns:
      The dict, with all arrays [rows, S] cut to the bucket of the longest row.
    """
    seq_length = batch["input_mask"].shape[1]
    longest = np.flatnonzero(batch["input_mask"].any(axis=0)).max(initial=0) + 1
    length = bucket_of(longest, seq_length)
    return {name: v[:, :length] if v.shape[1:] == (seq_length,) else v for name, v in batch.items()}


def input_fn_of(arrays, is_training, drop_remainder, fixed_length=True):
    """An Estimator's input_fn over rows in memory.

    Args:
      arrays: dict of NumPy arrays that share their first axis, the rows.
      is_training: bool; shuffled and endless where true, in order and once where not.
      drop_remainder: bool; leaves a short last batch out, for fixed shapes.
      fixed_length: bool; keeps the padding that no row of a batch needs, as TPUs want it. Without
        it, rows of like length are trained on together, and every batch is cut to its bucket.

    Returns:
      input_fn(params, config=None) → Dataset of dicts. The order follows from
      config.tf_random_seed; training starts after the steps of config.model_dir's last checkpoint.
    """
    num_rows = len(next(iter(arrays.values())))

    def input_fn(params, config=None):
        batch_size = params["batch_size"]

        def plan():
            if not is_training:
                return evaluation_batches(num_rows, batch_size)
            seed = (config and config.tf_random_seed) or 0
            start = checkpoints.last_step(config.model_dir) if config else 0
            if fixed_length:
                return training_batches(num_rows, batch_size, seed, start)
            return training_batches_by_length(row_lengths(arrays), batch_size, seed, start)

        def gather():
            for rows in plan():
                if not drop_remainder or len(rows) == batch_size:
                    batch = {name: values[rows] for name, values in arrays.items()}
                    yield batch if fixed_length else trim(batch)

        def shape(values):
            rows = batch_size if is_training or drop_remainder else None
            columns = values.shape[1:] if fixed_length else (None,) * (values.ndim - 1)
            return (rows,) + columns

        dataset = tf.data.Dataset.from_generator(
            gather,
            {name: tf.as_dtype(values.dtype) for name, values in arrays.items()},
            {name: shape(values) for name, values in arrays.items()},
        )
        return _untuned(dataset.prefetch(2))

    return input_fn


def _untuned(dataset):
    """Switches off tf.data's search for buffer sizes, of which nothing here leaves it any.

    Its thread sleeps up to a minute, and a session that closes waits for it.
    """
    options = tf.data.Options()
    if tf.__version__.startswith("1."):
        options.experimental_optimization.autotune = False
    else:
        options.autotune.enabled = False
    return dataset.with_options(options)


def write_tfrecord(arrays, output_file):
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


def read_tfrecord(input_file, seq_length):
    """Reads what `write_tfrecord` or BERT's run_classifier wrote.

    Returns:
      dict of int32 arrays: input_ids, input_mask and segment_ids [rows, seq_length], label_ids and
      is_real_example [rows].

    Raises:
      UserError: the file is missing, is no TFRecord file of such features, or holds no rows.
    """
    lengths = dict.fromkeys(_INT_FEATURES[:3], [seq_length])
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = _untuned(tf.data.TFRecordDataset(input_file).batch(1024))
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
