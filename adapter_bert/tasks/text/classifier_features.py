"""Encodes examples of text classification as BERT's input ids.

Names, positional arguments and results are those of BERT's run_classifier.py.

Shapes: N examples, S = max_seq_length.
"""

import dataclasses
from typing import Any, Callable, Collection, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np
from absl import logging

from adapter_bert.shell import processes
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import text_windows
from adapter_bert.training import rows

_LOGGED_EXAMPLES = 3
_PROGRESS_EVERY = 10000
_EXAMPLES_PER_PART = 1000  # Examples whose features, lists of numbers, are in memory at a time.


@dataclasses.dataclass(eq=False)
class InputExample:
    """An example: a text or a pair of texts, and its label.

    Attributes:
      guid: str, unique within a split.
      text_a: str, not tokenized.
      text_b: str, or None for a single text.
      label: str, one of the task's labels; any of them if the label is unknown.
      columns: further columns of its row, which the files of predictions repeat.
    """

    guid: str
    text_a: str
    text_b: Optional[str] = None
    label: Any = None
    columns: Dict[str, str] = dataclasses.field(default_factory=dict)


class PaddingInputExample:
    """Fills up the last batch where batches must be full, as on a TPU; has no weight in metrics."""


Example = Union[InputExample, PaddingInputExample]
# In the order of their ids: a list, an array or the keys of a dict; or a dict to their ids.
Labels = Collection[str]


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
      window_index: int, index among the windows of the example; 0 if it is truncated.
    """

    input_ids: List[int]
    input_mask: List[int]
    segment_ids: List[int]
    label_id: Any
    is_real_example: bool = True
    window_index: int = 0


def convert_single_example(
    ex_index: int,
    example: Example,
    label_list: Optional[Labels],
    max_seq_length: int,
    tokenizer: Any,
    *,
    window: Optional[Tuple[List[str], List[str]]] = None,
    padded: bool = True,
) -> InputFeatures:
    """Returns the features of an example: [CLS] text_a [SEP], or [CLS] text_a [SEP] text_b [SEP].

    Args:
      ex_index: index of the example; the first few are logged at absl's verbosity 1.
      example: `InputExample` or `PaddingInputExample`.
      label_list: the task's labels, or a dict from each to its id; empty for regression. An example
        with a set of labels has a tuple of them.
      max_seq_length: S, including special tokens. Longer texts are truncated.
      tokenizer: has `tokenize(text)` and `convert_tokens_to_ids(tokens)`.
      window: an item of `windows_of`, whose tokens are used instead of the example's.
      padded: bool; if false, the lists are only as long as the tokens, as `rows.pack` prefers.

    Returns:
      `InputFeatures`; all zeros for a `PaddingInputExample`.

    Raises:
      UserError: the label is not in label_list, or S is too small for the special tokens.
    """
    if isinstance(example, PaddingInputExample):
        zeros = [0] * max_seq_length
        return InputFeatures(zeros, list(zeros), list(zeros), label_id=0, is_real_example=False)

    label_id = _label_id(example, _ids_by_label(label_list))
    tokens_a, tokens_b = window or truncated_tokens(example, max_seq_length, tokenizer)
    tokens, segment_ids = join_pair(tokens_a, tokens_b)
    if ex_index < _LOGGED_EXAMPLES:
        shown = example.guid, tokens, example.label, label_id
        logging.vlog(1, "Example %s: %s; label %s (%s)", *shown)
    padding = [0] * (max_seq_length - len(tokens)) if padded else []
    return InputFeatures(
        input_ids=list(tokenizer.convert_tokens_to_ids(tokens)) + padding,
        input_mask=[1] * len(tokens) + padding,
        segment_ids=segment_ids + padding,
        label_id=label_id,
    )


def _ids_by_label(label_list: Optional[Labels]) -> Dict[str, int]:
    """Returns label → its index."""
    if isinstance(label_list, dict):
        return label_list
    labels = () if label_list is None else label_list
    return {label: index for index, label in enumerate(labels)}


def join_pair(tokens_a: List[str], tokens_b: List[str]) -> Tuple[List[str], List[int]]:
    """Returns the tokens of a row, with special tokens, and their segment_ids."""
    first, second = ["[CLS]", *tokens_a, "[SEP]"], [*tokens_b, "[SEP]"] if tokens_b else []
    return first + second, [0] * len(first) + [1] * len(second)


def truncated_tokens(
    example: Any, max_seq_length: int, tokenizer: Any
) -> Tuple[List[str], List[str]]:
    """Returns (tokens of text_a, tokens of text_b) of a truncated example.

    Args:
      example: has text_a, and text_b or None.
      max_seq_length, tokenizer: as in `convert_single_example`.

    Raises:
      UserError: S is too small for the special tokens.
    """
    tokens_a, tokens_b, room = _tokenize(example, max_seq_length, tokenizer)
    truncate_pair(tokens_a, tokens_b, room)
    return tokens_a, tokens_b


def windows_of(
    example: Any, max_seq_length: int, tokenizer: Any
) -> List[Tuple[List[str], List[str]]]:
    """Returns (tokens of text_a, tokens of text_b) of each window; see `truncated_tokens`."""
    return text_windows.divide(*_tokenize(example, max_seq_length, tokenizer))


def _tokenize(
    example: Any, max_seq_length: int, tokenizer: Any
) -> Tuple[List[str], List[str], int]:
    """Returns the tokens of text_a and of text_b, and the room for both."""
    # Copies, as they are truncated in place and the tokenizer may cache its lists.
    tokens_a = list(tokenizer.tokenize(example.text_a))
    tokens_b = list(tokenizer.tokenize(example.text_b)) if example.text_b else []
    specials = 3 if tokens_b else 2
    if max_seq_length < specials:
        raise UserError(
            f"--max_seq_length={max_seq_length} is too small; expected at least {specials}, for"
            " [CLS] and [SEP]."
        )
    return tokens_a, tokens_b, max_seq_length - specials


def _label_id(example: InputExample, label_ids: Dict[str, int]) -> Any:
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
    """Returns the labels of `InputExample`s as an array; as in `rows.pack`."""
    label_ids = _ids_by_label(label_list)
    return rows.column([_label_id(example, label_ids) for example in examples])


def truncate_pair(tokens_a: List[str], tokens_b: List[str], max_length: int) -> None:
    """Truncates two lists in place to max_length together, always the longer one by its last token.

    If both are of equal length, tokens_b is shortened.
    """
    length_b = max(max_length // 2, max_length - len(tokens_a))
    del tokens_b[length_b:]
    del tokens_a[max_length - len(tokens_b) :]


def convert_examples_to_features(
    examples: Sequence[Example],
    label_list: Optional[Labels],
    max_seq_length: int,
    tokenizer: Any,
    *,
    part: Optional[Tuple[int, int]] = None,
    in_windows: bool = False,
    padded: bool = True,
) -> List[InputFeatures]:
    """Returns the `InputFeatures` of each example, in order; see `convert_single_example`.

    Args:
      examples, label_list, max_seq_length, tokenizer, padded: as in `convert_single_example`.
      part: (index of the first example, number of all examples) if these are a part of all.
      in_windows: whether to convert each window of an `InputExample` instead of truncating it.
    """
    labels, features = _ids_by_label(label_list), []
    first, total = part or (0, len(examples))
    for index, example in enumerate(examples, start=first):
        if index and index % _PROGRESS_EVERY == 0:
            logging.info("Converted %d of %d examples.", index, total)
        arguments = index, example, labels, max_seq_length, tokenizer
        if in_windows:
            features += _convert_windows(*arguments, padded=padded)
        else:
            features.append(convert_single_example(*arguments, padded=padded))
    return features


def _convert_windows(
    index: int,
    example: Example,
    labels: Dict[str, int],
    max_seq_length: int,
    tokenizer: Any,
    padded: bool,
) -> List[InputFeatures]:
    features = []
    for window in windows_of(example, max_seq_length, tokenizer):
        each = convert_single_example(
            index, example, labels, max_seq_length, tokenizer, window=window, padded=padded
        )
        each.window_index = len(features)
        features.append(each)
    return features


def add_rows(
    examples: Sequence[InputExample],
    label_list: Optional[Labels],
    max_seq_length: int,
    tokenizer: Any,
    add: Callable,
    in_windows: bool = False,
) -> None:
    """Passes the results of `convert_examples_to_features` on in parts, as arrays.

    Args:
      examples, label_list, max_seq_length, tokenizer, in_windows: as in
        `convert_examples_to_features`.
      add: function of a dict of arrays, whose parts are to be concatenated: those of
        `rows.PackedRows` and, in windows, "is_first" [N], 1 for the first window of a text.

    Raises:
      UserError: as in `convert_single_example`.
      ValueError: there are no examples.
    """
    if not examples:
        raise ValueError("expected at least one example")
    labels = _ids_by_label(label_list)

    def encode(start: int) -> rows.Arrays:
        features = convert_examples_to_features(
            examples[start : start + _EXAMPLES_PER_PART],
            labels,
            max_seq_length,
            tokenizer,
            part=(start, len(examples)),
            in_windows=in_windows,
            padded=False,
        )
        arrays = rows.pack(features)
        if in_windows:
            arrays["is_first"] = rows.column([each.window_index == 0 for each in features])
        return arrays

    for arrays in processes.map_in_order(encode, range(0, len(examples), _EXAMPLES_PER_PART)):
        add(arrays)
