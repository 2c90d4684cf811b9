"""TFRecord files of features, as BERT's run_classifier.py and programs on a cluster write them.

Names, positional arguments and files of the public functions are those of BERT's script. The
functions import TensorFlow, as run_classifier.py imports them before its flags are parsed.
"""

import itertools
import re
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from adapter_bert.files import gfile
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import custom_tasks, glue
from adapter_bert.tasks.text.classifier_features import (
    Example,
    InputExample,
    Labels,
    convert_examples_to_features,
)
from adapter_bert.training import feature_cache, rows
from adapter_bert.training.rows import Arrays, PackedRows

_PER_TOKEN = ("input_ids", "input_mask", "segment_ids")
_PER_ROW = ("label_ids", "is_real_example")
_RECORDS_PER_PART = 1024
_LIMITED = (*_PER_TOKEN, "label_ids", "first_id")  # The numbers that are checked.
# As in train.tf_record, part-00000.tfrecord and train.tfrecords-00000-of-00010.
_ENDING = re.compile(r"\.tf_?records?(?![A-Za-z0-9_])", re.IGNORECASE)


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
    from adapter_bert.training import input_pipeline

    def build(add: Callable) -> None:
        for path in custom_tasks.matching_files(input_file):
            for batch in _batches(path, seq_length):
                add(_packed(batch))

    arrays = feature_cache.load_or_build(None, "records", build)
    packed = PackedRows(arrays, seq_length)
    return input_pipeline.input_fn_builder(packed, seq_length, is_training, drop_remainder)


def _packed(batch: Arrays) -> Arrays:
    """Returns the arrays of `rows.PackedRows` from padded ones."""
    is_set = np.any([batch[name] != 0 for name in _PER_TOKEN], axis=0)
    after_last = is_set.shape[1] - np.argmax(is_set[:, ::-1], axis=1)
    lengths = np.where(is_set.any(axis=1), after_last, 0)
    is_token = np.arange(is_set.shape[1]) < lengths[:, np.newaxis]
    tokens = {name: batch[name][is_token].astype(t) for name, t in rows.PER_TOKEN}
    return {"length": lengths, **tokens, **{n: batch[n].astype(np.int32) for n in _PER_ROW}}


def _batches(path: str, seq_length: int) -> Iterator[Arrays]:
    """Yields a file's rows in parts: int64 arrays [N, seq_length] per token, and [N] per row."""
    import tensorflow.compat.v1 as tf

    from adapter_bert.training import input_pipeline

    features = {
        **dict.fromkeys(_PER_TOKEN, tf.FixedLenFeature([seq_length], tf.int64)),
        **dict.fromkeys(_PER_ROW, tf.FixedLenFeature([], tf.int64)),
    }
    count = 0
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = tf.data.TFRecordDataset(path).batch(_RECORDS_PER_PART)
        dataset = dataset.map(lambda records: tf.parse_example(records, features)).prefetch(2)
        dataset = input_pipeline.disable_autotune(dataset)
        batch = tf.data.make_one_shot_iterator(dataset).get_next()
        while True:
            try:
                values = session.run(batch)
            except tf.errors.OutOfRangeError:
                break
            except tf.errors.OpError as error:
                fault = _fault(path, count * _RECORDS_PER_PART, seq_length)
                reason = fault or f"cannot be read as a TFRecord file ({gfile.reason(error)})"
                raise UserError(f"{path}{reason}.") from error
            count += 1
            yield values
    if not count:
        raise UserError(f"{path}: has no rows.")


def _fault(path: str, num_valid: int, seq_length: int) -> str:
    """Returns what is wrong with a file's first invalid record; "" if no record says it.

    Args:
      path: of the file.
      num_valid: the number of records at its start that are valid.
      seq_length: as in `file_based_input_fn_builder`.
    """
    import tensorflow.compat.v1 as tf
    from google.protobuf.message import DecodeError

    counts = {**dict.fromkeys(_PER_TOKEN, seq_length), **dict.fromkeys(_PER_ROW, 1)}
    try:
        records = itertools.islice(tf.python_io.tf_record_iterator(path), num_valid, None)
        for number, record in enumerate(records, num_valid):
            features = tf.train.Example.FromString(record).features.feature
            for name, expected in counts.items():
                count = len(features[name].int64_list.value) if name in features else 0
                if count != expected:
                    found = f"{count} integers" if name in features else "no value"
                    length = " (--max_seq_length)" if name in _PER_TOKEN else ""
                    return f", record {number}: {name} has {found}; expected {expected}{length}"
    except (DecodeError, tf.errors.OpError):
        return ""
    return ""


def is_record_file(path: Optional[str]) -> bool:
    """Returns whether a path, or pattern, is that of TFRecord files."""
    return bool(path and _ENDING.search(path))


class RecordExamples(custom_tasks.StoredExamples):
    """The examples of TFRecord files, whose texts are their tokens.

    Args:
      flag: such as --train_file.
      pattern: path of a file, or pattern of several.
      seq_length: S.
      labels: the task's labels; None for 0, 1 and so on, up to the largest in the files.
      folder, verify: as in `feature_cache.load_or_build`.

    Attributes:
      labels: the task's labels.

    Raises:
      UserError: a file is missing, is not a TFRecord file of features with this length, or has
        invalid numbers or no rows.
    """

    def __init__(
        self,
        flag: str,
        pattern: str,
        seq_length: int,
        labels: Optional[Sequence[str]],
        folder: Optional[str],
        verify: bool,
    ):
        self._paths = custom_tasks.matching_files(pattern, f"{flag}=")
        before = self._fingerprints(verify)

        def build(add: Callable) -> None:
            for number, path in enumerate(self._paths):
                for batch in _batches(path, seq_length):
                    is_real = batch["is_real_example"] != 0
                    if is_real.any():
                        batch = {name: values[is_real] for name, values in batch.items()}
                        add({**_packed(batch), **_limits(batch), "file": np.array([number])})
            if self._fingerprints(verify) != before:
                raise UserError(f"{flag}={pattern} has changed while it was read; run again.")

        key = feature_cache.key_of([*before, seq_length], [sys.modules[__name__], rows])
        self._arrays = feature_cache.load_or_build(folder, key, build, verify)
        if not self._arrays:
            raise UserError(f"{flag}={pattern}: all rows are padding (is_real_example).")
        self._limits = {name: self._arrays.pop(name) for name in ("smallest", "largest", "file")}
        largest = self._limits["largest"].max(axis=0)
        num_labels = max(2, int(largest[_LIMITED.index("label_ids")]) + 1)
        self.labels = list(map(str, range(num_labels)) if labels is None else labels)
        self._check("input_mask", 0, 1)
        self._check("segment_ids", 0, 1)
        self._check("label_ids", 0, len(self.labels) - 1, ", the ids of the labels")
        super().__init__(self.labels, self._arrays["label_ids"])
        self.has_pairs = bool(largest[_LIMITED.index("segment_ids")])
        self.key = self._arrays.digest
        self._rows = PackedRows(self._arrays, seq_length)
        self._rows.key = self.key
        self._tokenizer: Any = None

    def encoded(self, tokenizer: Any) -> PackedRows:
        """Returns the rows, whose ids must be those of the tokenizer's vocabulary."""
        self._tokenizer = tokenizer
        first, vocabulary = tokenizer.vocab["[CLS]"], max(tokenizer.vocab.values())
        self._check("input_ids", 0, vocabulary, ", the ids of the vocabulary")
        self._check("first_id", first, first, ", the vocabulary's [CLS]")
        return self._rows

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._read(range(*index.indices(len(self))))
        return self._read([range(len(self))[index]])[0]

    def _read(self, indices: Sequence[int]) -> List[InputExample]:
        tokens = self._tokenizer.inv_vocab
        rows_read = self._rows.take(indices)
        columns = (rows_read[name].tolist() for name in _PER_TOKEN)
        codes = self._codes[list(indices)].tolist()
        examples = []
        for number, code, ids, mask, segments in zip(indices, codes, *columns):
            texts: List[List[str]] = [[], []]
            for token, is_token, segment in zip(ids, mask, segments):
                if is_token:
                    texts[segment].append(tokens.get(token, "[UNK]"))
            first, second = map(" ".join, texts)
            text_b = second if self.has_pairs else None
            examples.append(InputExample(str(number), first, text_b, self._labels[code]))
        return examples

    def contents(self) -> List[str]:
        """Returns the digest of the rows, as their texts are unknown."""
        return [self.key]

    def _fingerprints(self, verify: bool) -> List[Tuple[str, tuple]]:
        return [(gfile.absolute(p), feature_cache.fingerprint(p, verify)) for p in self._paths]

    def _check(self, name: str, lower: int, upper: int, where: str = "") -> None:
        """Raises UserError if numbers of a name are not within limits."""
        column = _LIMITED.index(name)
        for numbers in (self._limits["smallest"][:, column], self._limits["largest"][:, column]):
            invalid = np.flatnonzero((numbers < lower) | (numbers > upper))
            if len(invalid):
                path = self._paths[self._limits["file"][invalid[0]]]
                shown = "the first of input_ids" if name == "first_id" else name
                expected = f"{lower} to {upper}" if lower < upper else str(lower)
                raise UserError(
                    f"{path}: {shown} is {numbers[invalid[0]]}; expected {expected}{where}."
                )


def _limits(batch: Arrays) -> Arrays:
    """Returns the smallest and the largest of the numbers in `_LIMITED`, int64 [1, 5] each."""
    columns = [batch["input_ids"][:, 0] if n == "first_id" else batch[n] for n in _LIMITED]
    return {
        "smallest": np.array([[column.min() for column in columns]]),
        "largest": np.array([[column.max() for column in columns]]),
    }


class RecordProcessor(glue.SplitProcessor):
    """Reads the splits for which a flag gives TFRecord files; another processor reads the others.

    Args:
      task: `glue.TaskInfo`, with labels if they are known.
      others: `glue.TaskProcessor`; None for a task without other files.
      config: `classifier_data.ClassifierConfig`.

    Raises:
      UserError: the labels are unknown and there are no training files.
    """

    def __init__(self, task: glue.TaskInfo, others: Optional[glue.TaskProcessor], config: Any):
        self._others, self._config = others, config
        self._examples: Dict[str, RecordExamples] = {}
        super().__init__(task)
        if not task.labels:
            labels = self._read("train", None).labels
            self.task = task._replace(labels=tuple(labels))

    def splits_of(self, stage: str, data_dir: str) -> List[str]:
        """Returns the one split of TFRecord files, or the other processor's of the stage."""
        if self._others and not self._path(stage):
            return self._others.splits_of(stage, data_dir)
        return [stage]

    def has_labels(self, split: str) -> bool:
        """Returns whether the split has labels; a test split of one label has placeholders."""
        if self._others and not self._path(split):
            return self._others.has_labels(split)
        return split != "test" or self._read(split, self.task.labels).num_labels() > 1

    def get_examples(self, split: str, data_dir: str) -> Sequence[InputExample]:  # type: ignore[override]
        """Returns the `RecordExamples` of a split, or the other processor's examples."""
        if self._others and not self._path(split):
            return self._others.get_examples(split, data_dir)
        return self._read(split, self.task.labels)

    def _path(self, split: str) -> Optional[str]:
        return getattr(self._config, f"{split}_file", None)

    def _read(self, split: str, labels: Optional[Sequence[str]]) -> RecordExamples:
        path, config = self._path(split), self._config
        if not is_record_file(path):
            raise UserError(
                f"--{split}_file={path or ''}: expected TFRecord files, as the other splits have."
            )
        if split not in self._examples:
            self._examples[split] = RecordExamples(
                f"--{split}_file",
                str(path),
                config.max_seq_length,
                labels,
                config.feature_folder,
                config.verify_data,
            )
        return self._examples[split]
