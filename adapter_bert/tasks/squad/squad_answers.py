"""Chooses answers from the logits of windows: the n best spans, "no answer", and their texts.

Names, positional arguments and results are those of BERT's run_squad.py; the flags that its
functions read are keyword arguments. S is the length of a row.
"""

import collections
import itertools
import json
import math
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from absl import logging

from adapter_bert import tokenization
from adapter_bert.files import atomic, gfile
from adapter_bert.model import task_kinds
from adapter_bert.tasks.squad.squad_data import SquadExample, is_ordinary
from adapter_bert.tasks.squad.squad_features import InputFeatures

RawResult = collections.namedtuple("RawResult", ["unique_id", "start_logits", "end_logits"])

_CHUNKS_PER_WRITE = 10_000  # Of a few characters each.

# The odds of "no answer" for a question without any candidate span.
_NO_CANDIDATE_ODDS = 1e6


class AnswerSettings(NamedTuple):
    """How answers are chosen: BERT's flags.

    If `exact`, an answer's text has the characters of its tokens. Otherwise `get_final_text`
    locates answers of ordinary words, as in BERT.
    """

    n_best_size: int = 20
    max_answer_length: int = 30
    do_lower_case: bool = True
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0
    verbose_logging: bool = False
    exact: bool = False


def trained_settings(training: Dict[str, Any]) -> Dict[str, Any]:
    """Returns how the answers of a trained task are chosen, named as run_squad.py's flags.

    `n_best_size` is not among them: that of an untrusted adapter could fill a server's memory.

    Args:
      training: of a `task_adapter.Description`; missing values have the flags' defaults.

    Raises:
      UserError: a value is invalid for its flag.
    """
    defaults = AnswerSettings()
    return {
        name: task_kinds.recorded_answer(training, name, getattr(defaults, name), lower)
        for name, lower in (("max_answer_length", 1), ("null_score_diff_threshold", None))
    }


class Answer(NamedTuple):
    """The output for one question.

    Attributes:
      text: str, "" for no answer.
      nbest: list of dicts with text, probability, start_logit and end_logit, the best first.
      null_odds: float, the score of "no answer" minus that of the best span; None for SQuAD 1.1.
      words: indices of the first and the last word that contain the text; None for no answer.
      characters: the text's start in the first word, and its end in the last; None for no answer.
    """

    text: str
    nbest: list
    null_odds: Optional[float]
    words: Optional[Tuple[int, int]] = None
    characters: Optional[Tuple[int, int]] = None


# BERT's script writes this word if there is no candidate span.
NO_CANDIDATE = Answer(
    "empty",
    [{"text": "empty", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}],
    null_odds=None,
)


class _Span(NamedTuple):
    """A candidate answer, tokens of a window; `feature` is None for "no answer"."""

    feature: Optional[InputFeatures]
    first: int
    last: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


def write_predictions(
    all_examples: Iterable[SquadExample],
    all_features: Iterable[InputFeatures],
    all_results: Iterable[RawResult],
    n_best_size: int,
    max_answer_length: int,
    do_lower_case: bool,
    output_prediction_file: str,
    output_nbest_file: str,
    output_null_log_odds_file: Optional[str],
    *,
    version_2_with_negative: bool = False,
    null_score_diff_threshold: float = 0.0,
    verbose_logging: bool = False,
    answers: Optional[Dict[str, Answer]] = None,
) -> None:
    """Writes the answers as JSON: predictions, n-best lists and, for SQuAD 2.0, null odds.

    Args:
      all_examples: list of `squad_data.SquadExample`.
      all_features: their `squad_features.InputFeatures`.
      all_results: list of `RawResult`, one for each of all_features.
      n_best_size, max_answer_length, do_lower_case, version_2_with_negative,
        null_score_diff_threshold, verbose_logging: see `AnswerSettings`.
      output_prediction_file, output_nbest_file, output_null_log_odds_file: paths.
      answers: dict from ids to answers, if they are chosen already, as in run_squad.py, which
        chooses them while predictions come; the examples, features and results are not read then.
    """
    if answers is None:
        settings = AnswerSettings(
            n_best_size,
            max_answer_length,
            do_lower_case,
            version_2_with_negative,
            null_score_diff_threshold,
            verbose_logging,
        )
        results = {result.unique_id: result for result in all_results}
        windows = collections.defaultdict(list)
        for feature in all_features:
            windows[feature.example_index].append((feature, results[feature.unique_id]))
        answers = {
            example.qas_id: choose_answer(example.doc_tokens, windows[index], settings)
            for index, example in enumerate(all_examples)
        }
    contents: Dict[Any, Any] = {
        output_prediction_file: {key: answer.text for key, answer in answers.items()},
        output_nbest_file: {key: answer.nbest for key, answer in answers.items()},
    }
    if version_2_with_negative:
        odds = {key: answer.null_odds for key, answer in answers.items()}
        contents[output_null_log_odds_file] = odds
    for path, content in contents.items():
        _write_json(path, content)


def _write_json(path: str, content: Any) -> None:
    """Writes JSON atomically in parts, as its whole text takes three times the content's memory."""
    chunks = itertools.chain(json.JSONEncoder(indent=4).iterencode(content), "\n")
    with gfile.convert_write_errors(path), atomic.atomic_file(path) as writer:
        for part in iter(lambda: "".join(itertools.islice(chunks, _CHUNKS_PER_WRITE)), ""):
            writer.write(part.encode("utf-8"))


def raw_result(feature: InputFeatures, prediction: Dict[str, np.ndarray]) -> RawResult:
    """Returns the logits that the model predicts for a window as a `RawResult`."""
    start, end = (prediction[name].tolist() for name in ("start_logits", "end_logits"))
    return RawResult(feature.unique_id, start, end)


def choose_answer(
    doc_tokens: List[str],
    windows: Sequence[Tuple[InputFeatures, RawResult]],
    settings: AnswerSettings,
) -> Answer:
    """Returns the `Answer` to a question.

    Args:
      doc_tokens: list of the paragraph's words.
      windows: list of (`squad_features.InputFeatures`, `RawResult`) in order.
      settings: `AnswerSettings`.
    """
    spans = []
    for feature, result in windows:
        spans += _spans_of(feature, result, settings)
    null_span = None
    if settings.version_2_with_negative:
        null_span = _null_span(windows)
        spans.append(null_span)
    nbest = _distinct_texts(sorted(spans, key=lambda span: -span.score), doc_tokens, settings)
    if null_span and all(text for text, _ in nbest):
        nbest.append(("", null_span))
    if not nbest:
        return NO_CANDIDATE
    entries = [
        {
            "text": text,
            "probability": probability,
            "start_logit": span.start_logit,
            "end_logit": span.end_logit,
        }
        for (text, span), probability in zip(nbest, softmax([span.score for _, span in nbest]))
    ]
    if not null_span:
        text, span = nbest[0]
        return Answer(text, entries, None, _words_of(span), _characters_of(span, doc_tokens))
    best = next(((text, span) for text, span in nbest if text), None)
    if best is None:
        return Answer("", entries, _NO_CANDIDATE_ODDS)
    text, span = best
    odds = null_span.score - span.start_logit - span.end_logit
    if odds > settings.null_score_diff_threshold:
        return Answer("", entries, odds)
    return Answer(text, entries, odds, _words_of(span), _characters_of(span, doc_tokens))


def _words_of(span: _Span) -> Tuple[int, int]:
    """Returns the indices of a `_Span`'s first and last word."""
    assert span.feature is not None
    words = span.feature.token_to_orig_map
    return words[span.first], words[span.last]


def _characters_of(span: _Span, doc_tokens: List[str]) -> Tuple[int, int]:
    """Returns a `_Span`'s start in its first word, and its end in its last."""
    assert span.feature is not None
    characters = span.feature.token_to_chars
    start, end = characters[span.first][0], characters[span.last][1]
    first, last = _words_of(span)
    if first == last and start == end:  # A space of SentencePiece stands for its word.
        return 0, len(doc_tokens[last])
    return start, end


def _spans_of(feature: InputFeatures, result: RawResult, settings: AnswerSettings) -> List[_Span]:
    """Returns a window's candidate `_Span`s, from its n best starts and ends."""
    starts = best_positions(result.start_logits, settings.n_best_size)
    ends = best_positions(result.end_logits, settings.n_best_size)
    words, is_max_context = feature.token_to_orig_map, feature.token_is_max_context
    ends = [end for end in ends if end in words]
    return [
        _Span(feature, start, end, result.start_logits[start], result.end_logits[end])
        for start in starts
        if start in words and is_max_context.get(start, False)
        for end in ends
        if 0 <= end - start < settings.max_answer_length
    ]


def best_positions(logits: Sequence[float], count: int) -> List[int]:
    """Returns the indices of the largest logits in descending order; ties in ascending order."""
    return np.argsort(-np.asarray(logits), kind="stable")[:count].tolist()


def _null_span(windows: Sequence[Tuple[InputFeatures, RawResult]]) -> _Span:
    """Returns the "no answer" span with the lowest [CLS] score over all windows."""
    scored = [
        _Span(None, 0, 0, result.start_logits[0], result.end_logits[0]) for _, result in windows
    ]
    return min(scored, key=lambda span: span.score, default=_Span(None, 0, 0, 0.0, 0.0))


def _distinct_texts(
    spans: List[_Span], doc_tokens: List[str], settings: AnswerSettings
) -> List[Tuple[str, _Span]]:
    """Returns the first n of the `_Span`s with distinct texts: list of (text, span)."""
    span_by_text = {}
    for span in spans:
        if len(span_by_text) >= settings.n_best_size:
            break
        text = _text_of(span, doc_tokens, settings)
        span_by_text.setdefault(text, span)
    return list(span_by_text.items())


def _text_of(span: _Span, doc_tokens: List[str], settings: AnswerSettings) -> str:
    """Returns a `_Span`'s text in the paragraph."""
    if span.feature is None:
        return ""
    first, last = _words_of(span)
    words = " ".join(doc_tokens[first : last + 1])
    if settings.exact or not (is_ordinary(doc_tokens[first]) and is_ordinary(doc_tokens[last])):
        start, end = _characters_of(span, doc_tokens)
        return words[start : len(words) - len(doc_tokens[last]) + end]
    joined = " ".join(span.feature.tokens[span.first : span.last + 1])
    text = " ".join(joined.replace(" ##", "").replace("##", "").split())
    verbose = settings.verbose_logging
    return get_final_text(text, words, settings.do_lower_case, verbose_logging=verbose)


def get_final_text(
    pred_text: str, orig_text: str, do_lower_case: bool, *, verbose_logging: bool = False
) -> str:
    """Returns the part of a text that predicted tokens cover.

    Tokens are lower-cased and split: for the tokens "steve smith" in "Steve Smith's" the answer is
    "Steve Smith". To align them, orig_text is tokenized into words and pred_text is located in the
    result. Counting characters other than spaces then maps its position back, provided that
    tokenization lost no character.

    Args:
      pred_text: str, the tokens, detokenized.
      orig_text: str, the words that contain the answer.
      do_lower_case: bool, as in the tokenizer.
      verbose_logging: bool; logs why an answer cannot be aligned.

    Returns:
      str; all of orig_text if the answer cannot be aligned.
    """

    def unknown(reason: str) -> str:
        if verbose_logging:
            logging.info("%s: %r in %r.", reason, pred_text, orig_text)
        return orig_text

    tokenized = " ".join(tokenization.BasicTokenizer(do_lower_case).tokenize(orig_text))
    start = tokenized.find(pred_text)
    if start < 0:
        return unknown("Not found")
    in_original = [index for index, char in enumerate(orig_text) if char != " "]
    in_tokens = [index for index, char in enumerate(tokenized) if char != " "]
    if len(in_original) != len(in_tokens):
        return unknown("Lengths without spaces differ")
    counts = {index: count for count, index in enumerate(in_tokens)}
    first, last = (counts.get(at) for at in (start, start + len(pred_text) - 1))
    if first is None or last is None:
        return unknown("Not at a character boundary")
    return orig_text[in_original[first] : in_original[last] + 1]


def softmax(scores: List[float]) -> List[float]:
    """Returns the softmax of a list of scores."""
    highest = max(scores)
    odds = [math.exp(score - highest) for score in scores]
    total = sum(odds)
    return [value / total for value in odds]
