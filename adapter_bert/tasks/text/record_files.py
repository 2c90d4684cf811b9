"""TFRecord files of features, for programs that import run_classifier.

The scripts cache features in another format, in `training/feature_cache.py`. Names, positional
arguments and files are those of BERT's run_classifier.py. The functions import TensorFlow, as
run_classifier.py imports them before its flags are parsed.
"""

from typing import Any, Callable, Iterator, List, Optional, Sequence

import numpy as np

from adapter_bert.files import gfile
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text.classifier_features import (
    Example,
    Labels,
    convert_examples_to_features,
)
from adapter_bert.training import feature_cache, input_pipeline, rows
from adapter_bert.training.rows import Arrays

_PER_TOKEN = ("input_ids", "input_mask", "segment_ids")
_PER_ROW = ("label_ids", "is_real_example")


def file_based_convert_examples_to_features(
    examples: Sequence[Example],
    label_list: Optional[Labels],
    max_seq_length: int,
    tokenizer: Any,
    output_file: str,
) -> None:
    """Writes the features of examples to a file, as tf.train.Examples with int64 features.

    Args:
      examples, label_list, max_seq_length, tokenizer: as in
        `classifier_features.convert_examples_to_features`.
      output_file: path.
    """
    import tensorflow.compat.v1 as tf

    features = convert_examples_to_features(examples, label_list, max_seq_length, tokenizer)
    with tf.python_io.TFRecordWriter(output_file) as writer:
        for each in features:
            values = {name: getattr(each, name) for name in _PER_TOKEN}
            values.update(label_ids=each.label_id, is_real_example=int(each.is_real_example))
            feature = {
                name: tf.train.Feature(int64_list=tf.train.Int64List(value=np.ravel(value)))
                for name, value in values.items()
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())


def file_based_input_fn_builder(
    input_file: str, seq_length: int, is_training: bool, drop_remainder: bool
) -> Callable:
    """Returns an input_fn over a file from `file_based_convert_examples_to_features`.

    Rows are in temporary files while they are read, not in memory.

    Args:
      input_file: path, or a pattern of several files such as data/train-*.tf_record; files of
        BERT's script can be read, too.
      seq_length, is_training, drop_remainder: as in `input_pipeline.input_fn_builder`.

    Raises:
      UserError: a file is missing, is not a TFRecord file of such features, or has no rows.
    """

    def build(add: Callable) -> None:
        for path in _matching(input_file):
            for batch in _batches(path, seq_length):
                add(_packed(batch))

    arrays = feature_cache.load_or_build(None, "records", build)
    packed = rows.PackedRows(arrays, seq_length)
    return input_pipeline.input_fn_builder(packed, seq_length, is_training, drop_remainder)


def _matching(input_file: str) -> List[str]:
    """Returns the paths of the files that match; the path itself if it is no pattern."""
    is_path = gfile.exists(input_file) or not set("*?[") & set(input_file)
    paths = [input_file] if is_path else sorted(gfile.glob(input_file))
    if not paths:
        raise UserError(f"{input_file}: no file matches.")
    return paths


def _packed(batch: Arrays) -> Arrays:
    """Returns the arrays of `rows.PackedRows` from padded ones."""
    is_set = np.any([batch[name] != 0 for name in _PER_TOKEN], axis=0)
    after_last = is_set.shape[1] - np.argmax(is_set[:, ::-1], axis=1)
    lengths = np.where(is_set.any(axis=1), after_last, 0)
    is_token = np.arange(is_set.shape[1]) < lengths[:, np.newaxis]
    types = (np.int32, np.uint8, np.uint8)
    tokens = {n: batch[n][is_token].astype(t) for n, t in zip(_PER_TOKEN, types)}
    return {"length": lengths, **tokens, **{name: batch[name] for name in _PER_ROW}}


def _batches(input_file: str, seq_length: int) -> Iterator[Arrays]:
    """Yields a file's rows in parts: int32 arrays [N, seq_length] per token, and [N] per row."""
    import tensorflow.compat.v1 as tf

    features = {
        **dict.fromkeys(_PER_TOKEN, tf.FixedLenFeature([seq_length], tf.int64)),
        **dict.fromkeys(_PER_ROW, tf.FixedLenFeature([], tf.int64)),
    }
    count = 0
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = input_pipeline.disable_autotune(tf.data.TFRecordDataset(input_file).batch(1024))
        batch = tf.parse_example(tf.data.make_one_shot_iterator(dataset).get_next(), features)
        while True:
            try:
                values = session.run(batch)
            except tf.errors.OutOfRangeError:
                break
            except tf.errors.OpError as error:
                raise UserError(
                    f"{input_file}: cannot be read as a TFRecord file of BERT's features with"
                    f" length {seq_length} ({type(error).__name__})."
                ) from error
            count += 1
            yield {name: values[name].astype(np.int32) for name in features}
    if not count:
        raise UserError(f"{input_file}: has no rows.")
