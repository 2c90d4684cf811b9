"""TFRecord files of features, for programs that import run_classifier.

The scripts cache features in another format, in `training/feature_cache.py`. Names, positional
arguments and files are those of BERT's run_classifier.py. The functions import TensorFlow, as
run_classifier.py imports them before its flags are parsed.
"""

from typing import Any, Callable, Optional, Sequence

import numpy as np

from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text.classifier_features import (
    Example,
    Labels,
    convert_examples_to_features,
)
from adapter_bert.training import input_pipeline
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

    Args:
      input_file: path; files of BERT's script can be read, too.
      seq_length, is_training, drop_remainder: as in `input_pipeline.input_fn_builder`.

    Raises:
      UserError: the file is missing, is not a TFRecord file of such features, or has no rows.
    """
    arrays = _read(input_file, seq_length)
    return input_pipeline.input_fn_builder(arrays, seq_length, is_training, drop_remainder)


def _read(input_file: str, seq_length: int) -> Arrays:
    """Returns a file's rows: int32 arrays [N, seq_length] per token, and [N] per row."""
    import tensorflow.compat.v1 as tf

    features = {
        **dict.fromkeys(_PER_TOKEN, tf.FixedLenFeature([seq_length], tf.int64)),
        **dict.fromkeys(_PER_ROW, tf.FixedLenFeature([], tf.int64)),
    }
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = input_pipeline.disable_autotune(tf.data.TFRecordDataset(input_file).batch(1024))
        batch = tf.parse_example(tf.data.make_one_shot_iterator(dataset).get_next(), features)
        batches = []
        while True:
            try:
                batches.append(session.run(batch))
            except tf.errors.OutOfRangeError:
                break
            except tf.errors.OpError as error:
                raise UserError(
                    f"{input_file}: cannot be read as a TFRecord file of BERT's features with"
                    f" length {seq_length} ({type(error).__name__})."
                ) from error
    if not batches:
        raise UserError(f"{input_file}: has no rows.")
    return {name: np.concatenate([b[name] for b in batches]).astype(np.int32) for name in features}
