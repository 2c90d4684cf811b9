"""Encodes examples of text classification as BERT's input ids.

Names, positional arguments and results are those of BERT's run_classifier.py.

Shapes: N examples, S = max_seq_length.
"""

import dataclasses
import itertools
from typing import Any, Collection, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np
from absl import logging

from adapter_bert.common import task_kinds
from adapter_bert.common.errors import UserError
from adapter_bert.tasks import text_windows

_LOGGED_EXAMPLES = 3
_PROGRESS_EVERY = 10000


@dataclasses.dataclass(eq=False)
class InputExample:
    """An example: a text or a pair of texts, and its label.

    Attributes:
      guid: str, unique within a split.
      text_a: str, not tokenized.
      text_b: str, or None for a single text.
      label: str, one of the task's labels; any of them if the label is unknown.
    """

    guid: str
    text_a: str
    text_b: Optional[str] = None
    label: Any = None


class PaddingInputExample:
    """Fills up the last batch where batches must be full, as on a TPU; has no weight in metrics."""


Example = Union[InputExample, PaddingInputExample]
Labels = Collection[str]  # In the order of their ids: a list, an array or the keys of a dict.


@dataclasses.dataclass(eq=False)
class InputFeatures:
    """The encoding of one example, as BERT reads it.

    Attributes:
      input_ids: list of S ints, token ids, then 0 for padding.
      input_mask: list of S ints, 1 for tokens and 0 for padding.
      segment_ids: list of S ints, 1 for the tokens of text_b and its [SEP], otherwise 0.
      label_id: int, index of the label; for regression the number; for a set of labels a list with
        a 0 or 1 per label.
      is_real_example: False for the features of a `PaddingInputExample`.
    """

    input_ids: List[int]
    input_mask: List[int]
    segment_ids: List[int]
    label_id: Any
    is_real_example: bool = True


def convert_single_example(
    ex_index: int,
    example: Example,
    label_list: Optional[Labels],
    max_seq_length: int,
    tokenizer,
) -> InputFeatures:
    """Returns the features of an example: [CLS] text_a [SEP], or [CLS] text_a [SEP] text_b [SEP].

    Args:
      ex_index: index of the example; the first few are logged at absl's verbosity 1.
      example: `InputExample` or `PaddingInputExample`.
      label_list: the task's labels; empty for regression. An example with a set of labels has a
        tuple of them.
      max_seq_length: S, including special tokens. Longer texts are truncated.
      tokenizer: has `tokenize(text)` and `convert_tokens_to_ids(tokens)`.

    Returns:
      `InputFeatures`; all zeros for a `PaddingInputExample`.

    Raises:
      UserError: the label is not in label_list, or S is too small for the special tokens.
    """
    return _convert(ex_index, example, _ids_by_label(label_list), max_seq_length, tokenizer)


def _ids_by_label(label_list: Optional[Labels]) -> Dict[str, int]:
    """Returns label → its index."""
    labels = () if label_list is None else label_list
    return {label: index for index, label in enumerate(labels)}


def _convert(
    ex_index: int, example: Example, label_ids: Dict[str, int], max_seq_length: int, tokenizer
) -> InputFeatures:
    """Implements `convert_single_example` with the labels as a dict to their ids."""
    if isinstance(example, PaddingInputExample):
        zeros = [0] * max_seq_length
        return InputFeatures(zeros, list(zeros), list(zeros), label_id=0, is_real_example=False)

    (row,) = _encode(ex_index, example, label_ids, max_seq_length, tokenizer)
    ids_a, ids_b, label_id = row
    cls_id, sep_id = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    input_ids, segment_ids = task_kinds.pair_ids(ids_a, ids_b, cls_id, sep_id)
    padding = [0] * (max_seq_length - len(input_ids))
    return InputFeatures(
        input_ids=input_ids + padding,
        input_mask=[1] * len(input_ids) + padding,
        segment_ids=segment_ids + padding,
        label_id=label_id,
    )


def _encode(
    ex_index: int,
    example: InputExample,
    label_ids: Dict[str, int],
    max_seq_length: int,
    tokenizer,
    in_windows: bool = False,
) -> List[Tuple[List[int], List[int], Any]]:
    """Returns an example's unpadded rows: (ids of text_a, ids of text_b, label_id)."""
    label_id = _label_id(example, label_ids)
    pairs = _token_pairs(example, max_seq_length, tokenizer, in_windows)
    if ex_index < _LOGGED_EXAMPLES:
        shown = example.guid, pairs, example.label, label_id
        logging.vlog(1, "Example %s: %s; label %s (%s)", *shown)
    return [(*_pair_ids(*pair, tokenizer), label_id) for pair in pairs]


def truncated_tokens(example, max_seq_length: int, tokenizer) -> Tuple[List[str], List[str]]:
    """Returns (tokens of text_a, tokens of text_b) of a truncated example.

    Args:
      example: has text_a, and text_b or None.
      max_seq_length, tokenizer: as in `convert_single_example`.

    Raises:
      UserError: S is too small for the special tokens.
    """
    (tokens,) = _token_pairs(example, max_seq_length, tokenizer, False)
    return tokens


def text_ids(
    example: InputExample, max_seq_length: int, tokenizer, in_windows: bool
) -> List[Tuple[List[int], List[int]]]:
    """Returns (ids of text_a, ids of text_b) of each row of an example.

    Args:
      example: `InputExample`.
      max_seq_length, tokenizer: as in `convert_single_example`.
      in_windows: bool; the rows are the example's windows, otherwise it is truncated to one row.
    """
    pairs = _token_pairs(example, max_seq_length, tokenizer, in_windows)
    return [_pair_ids(*pair, tokenizer) for pair in pairs]


def _token_pairs(
    example, max_seq_length: int, tokenizer, in_windows: bool
) -> List[Tuple[List[str], List[str]]]:
    # Copies, as they are truncated in place and the tokenizer may cache its lists.
    tokens_a = list(tokenizer.tokenize(example.text_a))
    tokens_b = list(tokenizer.tokenize(example.text_b)) if example.text_b else []
    specials = 3 if tokens_b else 2
    if max_seq_length < specials:
        raise UserError(
            f"--max_seq_length={max_seq_length} is too small; expected at least {specials}, for"
            " [CLS] and [SEP]."
        )
    if in_windows:
        return text_windows.divide(tokens_a, tokens_b, max_seq_length - specials)
    truncate_pair(tokens_a, tokens_b, max_seq_length - specials)
    return [(tokens_a, tokens_b)]


def _pair_ids(tokens_a, tokens_b, tokenizer):
    ids = list(tokenizer.convert_tokens_to_ids(tokens_a + tokens_b))
    return ids[: len(tokens_a)], ids[len(tokens_a) :]


def _label_id(example: InputExample, label_ids: Dict[str, int]):
    if not label_ids:
        return float(example.label)
    if isinstance(example.label, tuple):
        return [int(label in example.label) for label in label_ids]
    if example.label not in label_ids:
        expected = ", ".join(map(repr, label_ids))
        raise UserError(
            f"Example {example.guid} has the label {example.label!r}; expected one of {expected}"
            " (any of them if the label is unknown)."
        )
    return label_ids[example.label]


def label_column(examples: Sequence[InputExample], label_list: Optional[Labels]) -> np.ndarray:
    """Returns the labels of `InputExample`s as an array; see `features_to_arrays`."""
    label_ids = _ids_by_label(label_list)
    return _column([_label_id(example, label_ids) for example in examples])


def truncate_pair(tokens_a: List[str], tokens_b: List[str], max_length: int) -> None:
    """Truncates two lists in place to max_length together, always the longer one by its last token.

    If both are of equal length, tokens_b is shortened.
    """
    length_b = max(max_length // 2, max_length - len(tokens_a))
    del tokens_b[length_b:]
    del tokens_a[max_length - len(tokens_b) :]


def convert_examples_to_features(
    examples: Sequence[Example], label_list: Optional[Labels], max_seq_length: int, tokenizer
) -> List[InputFeatures]:
    """Returns the `InputFeatures` of each example, in order; see `convert_single_example`."""
    label_ids = _ids_by_label(label_list)
    return [
        _convert(index, example, label_ids, max_seq_length, tokenizer)
        for index, example in _with_progress(examples)
    ]


def _with_progress(examples: Sequence[Any]) -> Iterator[Tuple[int, Any]]:
    """Yields `enumerate(examples)`, and logs the progress."""
    for index, example in enumerate(examples):
        if index and index % _PROGRESS_EVERY == 0:
            logging.info("Converted %d of %d examples.", index, len(examples))
        yield index, example


def text_arrays(
    examples: Sequence[InputExample],
    label_list: Optional[Labels],
    max_seq_length: int,
    tokenizer,
    in_windows: bool = False,
) -> Dict[str, np.ndarray]:
    """Returns the arrays of `rows.TextRows`: `convert_examples_to_features` without the padding.

    Args:
      examples, label_list, max_seq_length, tokenizer: as in `convert_examples_to_features`.
      in_windows: as in `text_ids`; each window is a row with its text's label.

    Returns:
      A dict of arrays: "tokens", all ids in a row; the starts and lengths of each row's texts in
      it; "label_ids" [N]. In windows also "is_first" [N]: 1 for the first window of a text.

    Raises:
      UserError: as in `convert_single_example`.
      ValueError: there are no examples.
    """
    if not examples:
        raise ValueError("expected at least one example")
    ids_of_labels = _ids_by_label(label_list)
    encoded = [
        _encode(index, example, ids_of_labels, max_seq_length, tokenizer, in_windows)
        for index, example in _with_progress(examples)
    ]
    ids_a, ids_b, label_ids = zip(*itertools.chain.from_iterable(encoded))
    lengths = np.array([(len(a), len(b)) for a, b in zip(ids_a, ids_b)])
    starts = np.cumsum(lengths).reshape(lengths.shape) - lengths  # a, b, a, b, ...
    pairs = itertools.chain.from_iterable(zip(ids_a, ids_b))
    arrays = {
        "tokens": np.array(list(itertools.chain.from_iterable(pairs)), np.int32),
        "a_start": starts[:, 0],
        "a_length": lengths[:, 0],
        "b_start": starts[:, 1],
        "b_length": lengths[:, 1],
        "label_ids": _column(label_ids),
    }
    if in_windows:
        is_first = ([1] + [0] * (len(rows) - 1) for rows in encoded)
        arrays["is_first"] = _column(list(itertools.chain.from_iterable(is_first)))
    return arrays


def features_to_arrays(features: Sequence[InputFeatures]) -> Dict[str, np.ndarray]:
    """Returns features stacked into int32 arrays.

    Args:
      features: a list of at least one `InputFeatures`, all of the same length S.

    Returns:
      A dict: "input_ids", "input_mask" and "segment_ids" [N, S]; "label_ids" and
      "is_real_example" [N]. label_ids are float32 for regression.

    Raises:
      ValueError: there are no features.
    """
    if not features:
        raise ValueError("expected at least one InputFeatures")
    columns = {
        "input_ids": "input_ids",
        "input_mask": "input_mask",
        "segment_ids": "segment_ids",
        "label_ids": "label_id",
        "is_real_example": "is_real_example",
    }
    return {
        name: _column([getattr(f, attribute) for f in features])
        for name, attribute in columns.items()
    }


def _column(values) -> np.ndarray:
    """Returns values as int32, or as float32 for regression."""
    values = np.asarray(values)
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int32)
