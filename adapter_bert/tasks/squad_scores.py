"""Exact match and F1 of answers, as SQuAD's official evaluation scripts compute them.

Rajpurkar et al. 2016 (v1.1) and 2018 (v2.0). All scores are percentages.
"""

import collections
import re
import string
from typing import Dict, List, Tuple

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Odds above this count as no answer in the official script, unless it is told otherwise.
_NO_ANSWER_ODDS = 1.0


def normalize_answer(text: str) -> str:
    """Lower case, without punctuation, articles and extra white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, truth: str) -> float:
    """1.0 or 0.0: whether two answers are the same, normalized."""
    return float(normalize_answer(prediction) == normalize_answer(truth))


def f1_v1(prediction: str, truth: str) -> float:
    """F1 of two answers' words, normalized; 0.0 if either has none."""
    words, true_words = normalize_answer(prediction).split(), normalize_answer(truth).split()
    common = sum((collections.Counter(words) & collections.Counter(true_words)).values())
    if not common:
        return 0.0
    precision, recall = common / len(words), common / len(true_words)
    return 2 * precision * recall / (precision + recall)


def f1_v2(prediction: str, truth: str) -> float:
    """`f1_v1`, but 1.0 if neither has a word: no answer is an answer of SQuAD 2.0."""
    return max(f1_v1(prediction, truth), exact_match(prediction, truth))


def scores_v1(truths: Dict[str, List[str]], predictions: Dict[str, str]) -> Dict[str, float]:
    """The scores of SQuAD 1.1.

    Args:
      truths: dict from ids to the texts of right answers.
      predictions: dict from ids to texts; a question without one counts as wrong.

    Returns:
      A dict of floats: exact_match and f1.
    """
    measures = {"exact_match": exact_match, "f1": f1_v1}
    sums = dict.fromkeys(measures, 0.0)
    for key, texts in truths.items():
        for name, measure in measures.items():
            if key in predictions:
                sums[name] += max((measure(predictions[key], t) for t in texts), default=0.0)
    return {name: _percent(value, len(truths)) for name, value in sums.items()}


def scores_v2(
    truths: Dict[str, List[str]],
    predictions: Dict[str, str],
    null_odds: Dict[str, float],
    threshold: float = 0.0,
) -> Dict[str, float]:
    """The scores of SQuAD 2.0.

    Args:
      truths: dict from ids to the texts of right answers, none where there is no answer.
      predictions: dict from ids to texts, "" for no answer.
      null_odds: dict from ids to how much rather there is no answer.
      threshold: float, the odds up to which predictions were made; those above it, but at least
        1.0, count as no answer (the official script's --na-prob-thresh).

    Returns:
      A dict of floats: exact, f1 and total of all questions, of those that have an answer
      (HasAns_...) and of those that have none (NoAns_...); best_exact, best_f1 and the thresholds
      of null_odds, best_exact_thresh and best_f1_thresh, at which they would be reached.
    """
    answered = [key for key in truths if key in predictions]
    # Whether a question has an answer does not depend on that answer's words, its score does.
    worded_truths = {
        key: [text for text in truths[key] if normalize_answer(text)] for key in answered
    }
    highest = max(threshold, _NO_ANSWER_ODDS)
    raw, thresholded = {}, {}
    for name, measure in (("exact", exact_match), ("f1", f1_v2)):
        raw[name] = {
            key: max(measure(predictions[key], text) for text in worded_truths[key] or [""])
            for key in answered
        }
        thresholded[name] = {
            key: value if null_odds[key] <= highest else float(not truths[key])
            for key, value in raw[name].items()
        }
    has_answer = [key for key in answered if truths[key]]
    groups = {"": answered}
    if has_answer:
        groups["HasAns_"] = has_answer
    if len(has_answer) < len(answered):
        groups["NoAns_"] = [key for key in answered if not truths[key]]
    scores = {}
    for start, keys in groups.items():
        for name, values in thresholded.items():
            scores[start + name] = _percent(sum(values[key] for key in keys), len(keys))
        scores[start + "total"] = float(len(keys))
    for name, values in raw.items():
        best, best_odds = best_threshold(truths, predictions, values, null_odds)
        scores["best_" + name] = _percent(best, len(values))
        scores[f"best_{name}_thresh"] = best_odds
    return scores


def best_threshold(
    truths: Dict[str, List[str]],
    predictions: Dict[str, str],
    values: Dict[str, float],
    null_odds: Dict[str, float],
) -> Tuple[float, float]:
    """(sum of the scores, threshold of the odds) where that sum is the highest.

    Below the least odds all questions count as unanswered, and those are right that have no answer.
    With each question in the order of their odds one more is answered: its score comes in, or what
    it had for silence goes out.
    """
    best = current = float(sum(not truths[key] for key in values))
    threshold = 0.0
    for key in sorted(values, key=lambda key: null_odds[key]):
        if truths[key]:
            current += values[key]
        elif predictions[key]:
            current -= 1
        if current > best:
            best, threshold = current, null_odds[key]
    return best, threshold


def _percent(value: float, total: int) -> float:
    return 100.0 * value / total if total else 0.0
