"""Encodes questions about paragraphs as windows of the paragraph (Devlin et al. 2018, 4.2, 4.3).

Names, positional arguments and results are those of BERT's run_squad.py. A paragraph that is too
long for a row is read in overlapping windows, each together with the question.
"""

import bisect
import dataclasses
import functools
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
from absl import logging

from adapter_bert.shell.errors import UserError
from adapter_bert.tasks import token_spans
from adapter_bert.tasks.squad import squad_data

FIRST_UNIQUE_ID = 1000000000
_PROGRESS_EVERY = 10000
_MAX_CACHED_WORDS = 100000  # Words whose pieces are cached.
_TOKENS_PER_PART = 1 << 18  # Tokens that `add_rows` passes on at a time.


@dataclasses.dataclass(eq=False)
class InputFeatures:
    """The encoding of a question and one window, a row of S = max_seq_length tokens.

    Attributes:
      unique_id: int, counted from 1,000,000,000.
      example_index: int, index of the question.
      doc_span_index: int, index of the window among the question's.
      tokens: list of str, without padding.
      token_to_orig_map: dict from the position of a paragraph's token to the index of its word.
      token_is_max_context: dict from the position of a paragraph's token to whether this window
        shows most context around it.
      input_ids, input_mask, segment_ids: lists of S ints.
      start_position, end_position: int, positions of the answer's first and last token; 0, [CLS],
        if the window does not contain it; None if unknown.
      is_impossible: bool.
      token_to_chars: dict from the position of a paragraph's token to its characters (start, end)
        in its word.
    """

    unique_id: int
    example_index: int
    doc_span_index: int
    tokens: List[str]
    token_to_orig_map: Dict[int, int]
    token_is_max_context: Dict[int, bool]
    input_ids: List[int]
    input_mask: List[int]
    segment_ids: List[int]
    start_position: Optional[int] = None
    end_position: Optional[int] = None
    is_impossible: Optional[bool] = None
    token_to_chars: Dict[int, Tuple[int, int]] = dataclasses.field(default_factory=dict)


DOC_STRIDE, MAX_QUERY_LENGTH = 128, 64  # BERT's defaults.


class Limits(NamedTuple):
    """The lengths of rows and questions, and the stride of windows, in tokens."""

    max_seq_length: int
    doc_stride: int
    max_query_length: int


def check_limits(limits: Limits) -> None:
    """Raises UserError unless windows have room for a paragraph's token and the stride is valid."""
    room = limits.max_seq_length - limits.max_query_length - 3
    if room < 1:
        raise UserError(
            f"--max_seq_length={limits.max_seq_length} leaves no room for a paragraph besides"
            f" --max_query_length={limits.max_query_length} and 3 special tokens; expected at least"
            f" {limits.max_query_length + 4}."
        )
    if limits.doc_stride < 1:
        raise UserError(f"--doc_stride={limits.doc_stride}: expected at least 1.")


def trained_settings(training: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the settings with which a training read its questions, named as run_squad.py's flags.

    Args:
      training: of a `task_adapter.Description`; missing values have the flags' defaults.

    Raises:
      UserError: a value is invalid for its flag.
    """
    settings: Dict[str, Any] = {
        "doc_stride": DOC_STRIDE,
        "max_query_length": MAX_QUERY_LENGTH,
        "version_2_with_negative": False,
    }
    for name, default in settings.items():
        settings[name] = value = training.get(name, default)
        if type(value) is not type(default) or (name == "max_query_length" and value < 1):
            raise UserError(f"training.{name} is {value!r}, which --{name} does not accept.")
    return settings


class _Paragraph(NamedTuple):
    """A paragraph's tokens, and the alignment of tokens and words."""

    words: List[str]
    tokens: List[str]
    word_of: List[int]  # Token → its word.
    first_of: List[int]  # Word → its first token; the last entry is the number of tokens.
    spans_of: Callable[[str], token_spans.TokenSpans]  # Word's text → its tokens' characters.
    chars: List[Tuple[int, int]]  # Filled on first use, by `token_to_chars`.

    def token_to_chars(self) -> List[Tuple[int, int]]:
        """Returns each token's characters (start, end) in its word."""
        if not self.chars:
            for word in self.words:
                self.chars.extend(zip(*self.spans_of(word)))
        return self.chars


class ParagraphWindow(NamedTuple):
    """A span of a paragraph's tokens, and the positions of the answer in its row."""

    start: int
    length: int
    start_position: Optional[int] = None
    end_position: Optional[int] = None


class Tokenized(NamedTuple):
    """A question and its windows."""

    example: squad_data.SquadExample
    query: List[str]
    paragraph: _Paragraph
    windows: List[ParagraphWindow]


def tokenize_questions(
    examples: Iterable[squad_data.SquadExample], tokenizer: Any, limits: Limits, is_training: bool
) -> Iterator[Tokenized]:
    """Yields a `Tokenized` for each `squad_data.SquadExample`.

    Consecutive questions about the same paragraph share its tokenization.

    Raises:
      UserError: `limits` are too small; see `check_limits`.
    """
    check_limits(limits)
    cached = functools.lru_cache(_MAX_CACHED_WORDS)
    pieces_of = cached(lambda word: tuple(tokenizer.tokenize(word)))
    spans_of = cached(lambda word: token_spans.token_to_chars(word, pieces_of(word), tokenizer))
    paragraph = None
    for example in examples:
        if paragraph is None or paragraph.words is not example.doc_tokens:
            paragraph = _tokenize_words(example.doc_tokens, pieces_of, spans_of)
        query = list(tokenizer.tokenize(example.question_text))[: limits.max_query_length]
        spans = doc_spans(len(paragraph.tokens), limits.max_seq_length - len(query) - 3, limits)
        answer = None
        if is_training:
            answer = _answer_tokens(example, paragraph, tokenizer)
        windows = [_window(span, answer, len(query) + 2) for span in spans]
        yield Tokenized(example, query, paragraph, windows)


def _tokenize_words(
    words: List[str],
    pieces_of: Callable[[str], Tuple[str, ...]],
    spans_of: Callable[[str], token_spans.TokenSpans],
) -> _Paragraph:
    """Returns the `_Paragraph` of a list of words, from the pieces and their spans of a word."""
    tokens, word_of, first_of = [], [], []
    for index, word in enumerate(words):
        parts = pieces_of(word)
        first_of.append(len(tokens))
        tokens.extend(parts)
        word_of.extend([index] * len(parts))
    first_of.append(len(tokens))
    return _Paragraph(words, tokens, word_of, first_of, spans_of, [])


def doc_spans(num_tokens: int, room: int, limits: Limits) -> List[Tuple[int, int]]:
    """Returns the windows over a paragraph, a list of (start, length).

    For example, 10 tokens with room for 6 and a stride of 3 give (0, 6), (3, 6), (6, 4).
    """
    spans, start = [], 0
    while start < num_tokens:
        length = min(num_tokens - start, room)
        spans.append((start, length))
        if start + length == num_tokens:
            break
        start += min(length, limits.doc_stride)
    return spans


def _answer_tokens(example: Any, paragraph: _Paragraph, tokenizer: Any) -> Tuple[int, ...]:
    """Returns the paragraph's tokens (first, last) of the answer; () if there are none.

    They are those of its characters. If they are not the tokens of the answer alone, ordinary
    words are labelled as in BERT, as a whole: for "8" in "20-18", the tokens "20 - 18". Characters
    without tokens, such as U+00AD, are labelled with their word, too.
    """
    if example.is_impossible:
        return ()
    first_word, last_word = example.start_position, example.end_position
    start, end = example.start_offset, example.end_offset
    whole = paragraph.first_of[first_word], paragraph.first_of[last_word + 1] - 1
    if whole[0] > whole[1]:
        return ()
    if start is None:  # An example of the user.
        words = paragraph.words[first_word : last_word + 1]
        place = squad_data.find_in_words(example.orig_answer_text, words, 0)
        if place is None:
            return whole
        first_word, last_word, start, end = first_word + place[0], first_word + place[1], *place[2:]
    outer = paragraph.words[first_word], paragraph.words[last_word]
    first, last = (paragraph.first_of[index] for index in (first_word, last_word))
    first += bisect.bisect_right(paragraph.spans_of(outer[0]).ends, start)
    last += bisect.bisect_left(paragraph.spans_of(outer[1]).starts, end) - 1
    if first > last:
        return whole
    # A tokenizer of the user may lack the attribute.
    is_wordpiece = getattr(tokenizer, "wordpiece_tokenizer", tokenizer) is not None
    if is_wordpiece and all(map(squad_data.is_ordinary, outer)):
        answer = list(tokenizer.tokenize(example.orig_answer_text))
        return (first, last) if paragraph.tokens[first : last + 1] == answer else whole
    return first, last


def _window(
    span: Tuple[int, int], answer: Optional[Tuple[int, ...]], offset: int
) -> ParagraphWindow:
    """Returns the `ParagraphWindow` of a span.

    Args:
      span: (start, length).
      answer: (first, last) tokens in the paragraph; () for no answer, None if unknown.
      offset: int, position of the span in the row.
    """
    if answer is None:
        return ParagraphWindow(*span)
    start, length = span
    if not answer or answer[0] < start or answer[1] > start + length - 1:
        return ParagraphWindow(start, length, 0, 0)
    return ParagraphWindow(start, length, answer[0] - start + offset, answer[1] - start + offset)


def max_context(spans: List[Tuple[int, int]]) -> np.ndarray:
    """Returns the window that shows most context around each token.

    A token may be in several windows, at the edge of one and in the middle of another. A window's
    score is the smaller of the token's left and right context, plus 0.01 times the window's length.
    For example, in

        the man went to the store and bought a gallon of milk

    "bought" has 4 tokens to the left and 0 to the right in the window "to the store and bought",
    but 1 and 3 in "and bought a gallon of", which is therefore chosen.

    Args:
      spans: list of (start, length), in ascending order.

    Returns:
      int array [tokens], indices of windows; the first one for a tie.
    """
    num_tokens = max((start + length for start, length in spans), default=0)
    positions = np.arange(num_tokens)
    best, best_window = np.full(num_tokens, -np.inf), np.zeros(num_tokens, np.int64)
    for index, (start, length) in enumerate(spans):
        covered = slice(start, start + length)
        left, right = positions[covered] - start, start + length - 1 - positions[covered]
        score = np.minimum(left, right) + 0.01 * length
        better = score > best[covered]
        best[covered] = np.where(better, score, best[covered])
        best_window[covered] = np.where(better, index, best_window[covered])
    return best_window


def add_rows(questions: Iterable[Tokenized], tokenizer: Any, add: Callable) -> None:
    """Passes the rows of all windows on in parts, as arrays for `rows.TextRows`.

    Questions about one paragraph share its tokens.

    Args:
      questions: iterable of `Tokenized`.
      tokenizer: `tokenization.FullTokenizer`.
      add: function of a dict of arrays: those of `TextRows`; "start_positions" and "end_positions"
        [N] if answers are known; and "num_questions" [1], the number of questions in this part.
    """
    part = _Part(first_token=0)
    paragraph, start = None, 0
    for index, question in enumerate(questions):
        if index and index % _PROGRESS_EVERY == 0:
            logging.info("Read %d questions.", index)
        if question.paragraph is not paragraph:
            paragraph = question.paragraph
            start = part.add_tokens(tokenizer, paragraph.tokens)
        part.add_question(question, start, part.add_tokens(tokenizer, question.query))
        if len(part.tokens) >= _TOKENS_PER_PART:
            add(part.arrays())
            part = _Part(part.next_token)
    if part.num_questions:
        add(part.arrays())


class _Part:
    """Rows that are not passed on yet."""

    def __init__(self, first_token: int):
        self._first_token = first_token
        self.tokens, self.num_questions = [], 0
        self._rows = []

    @property
    def next_token(self) -> int:
        return self._first_token + len(self.tokens)

    def add_tokens(self, tokenizer: Any, tokens: List[str]) -> int:
        """Appends tokens, and returns the index of the first."""
        start = self.next_token
        self.tokens += tokenizer.convert_tokens_to_ids(tokens)
        return start

    def add_question(self, question: Tokenized, paragraph_start: int, query_start: int) -> None:
        for window in question.windows:
            begins = paragraph_start + window.start
            a_and_b = query_start, len(question.query), begins, window.length
            answer = window.start_position, window.end_position
            self._rows.append((*a_and_b, *answer))
        self.num_questions += 1

    def arrays(self) -> Dict[str, np.ndarray]:
        columns = list(zip(*self._rows)) or [()] * 6
        names = ("a_start", "a_length", "b_start", "b_length")
        arrays = {name: np.array(values, np.int64) for name, values in zip(names, columns)}
        if self._rows and None not in columns[-1]:
            positions = zip(("start_positions", "end_positions"), columns[-2:])
            arrays.update((name, np.array(values, np.int32)) for name, values in positions)
        arrays["tokens"] = np.array(self.tokens, np.int32)
        arrays["num_questions"] = np.array([self.num_questions])
        return arrays


def convert_examples_to_features(
    examples: Iterable[squad_data.SquadExample],
    tokenizer: Any,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    is_training: bool,
    output_fn: Callable[[InputFeatures], Any],
) -> None:
    """Calls output_fn with the `InputFeatures` of each window of each example, in order.

    The next example is read after output_fn has had all windows of the last. run_squad.py decodes
    predictions from these features; the model reads the same windows as arrays of `add_rows`, which
    hold a paragraph once for all its windows.

    Args:
      examples: iterable of `squad_data.SquadExample`.
      tokenizer: `tokenization.FullTokenizer`.
      max_seq_length, doc_stride, max_query_length: see `Limits`.
      is_training: bool; whether to locate the answers.
      output_fn: function of `InputFeatures`.

    Raises:
      UserError: the limits are too small; see `check_limits`.
    """
    limits = Limits(max_seq_length, doc_stride, max_query_length)
    unique_id = FIRST_UNIQUE_ID
    for index, question in enumerate(tokenize_questions(examples, tokenizer, limits, is_training)):
        for feature in window_features(question, index, unique_id, tokenizer, max_seq_length):
            output_fn(feature)
        unique_id += len(question.windows)


def window_features(
    question: Tokenized, example_index: int, unique_id: int, tokenizer: Any, max_seq_length: int
) -> List[InputFeatures]:
    """Returns the `InputFeatures` of a question's windows, with ids counted from unique_id."""
    query, paragraph = question.query, question.paragraph
    offset = len(query) + 2
    best_windows = max_context([(window.start, window.length) for window in question.windows])
    token_to_chars = paragraph.token_to_chars()
    features = []
    for index, window in enumerate(question.windows):
        covered = slice(window.start, window.start + window.length)
        positions = range(offset, offset + window.length)
        tokens = ["[CLS]", *query, "[SEP]", *paragraph.tokens[covered], "[SEP]"]
        padding = [0] * (max_seq_length - len(tokens))
        features.append(
            InputFeatures(
                unique_id=unique_id + index,
                example_index=example_index,
                doc_span_index=index,
                tokens=tokens,
                token_to_orig_map=dict(zip(positions, paragraph.word_of[covered])),
                token_is_max_context=dict(
                    zip(positions, (best_windows[covered] == index).tolist())
                ),
                input_ids=list(tokenizer.convert_tokens_to_ids(tokens)) + padding,
                input_mask=[1] * len(tokens) + padding,
                segment_ids=[0] * offset + [1] * (window.length + 1) + padding,
                start_position=window.start_position,
                end_position=window.end_position,
                is_impossible=question.example.is_impossible,
                token_to_chars=dict(zip(positions, token_to_chars[covered])),
            )
        )
    return features
