"""Exact match and F1 of answers, as in SQuAD's official evaluation scripts.

Rajpurkar et al. 2016 (v1.1) and 2018 (v2.0). All scores are percentages.
"""

import collections
import re
import string
from typing import Dict, List, Tuple

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
# The official script's default threshold of the odds above which "no answer" is predicted.
_NO_ANSWER_ODDS = 1.0


def normalize_answer(text: str) -> str:
    """Returns a text in lower case, without punctuation, articles and extra white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, truth: str) -> float:
    """Returns 1.0 if two answers are equal after normalization, otherwise 0.0."""
    return float(normalize_answer(prediction) == normalize_answer(truth))


def f1_v1(prediction: str, truth: str) -> float:
    """Returns the F1 of two normalized answers' words; 0.0 if they share none."""
    words, true_words = normalize_answer(prediction).split(), normalize_answer(truth).split()
    common = sum((collections.Counter(words) & collections.Counter(true_words)).values())
    if not common:
        return 0.0
    precision, recall = common / len(words), common / len(true_words)
    return 2 * precision * recall / (precision + recall)


def f1_v2(prediction: str, truth: str) -> float:
    """Returns `f1_v1`, but 1.0 if both answers are empty, as "no answer" may be correct."""
    return max(f1_v1(prediction, truth), exact_match(prediction, truth))


def scores_v1(truths: Dict[str, List[str]], predictions: Dict[str, str]) -> Dict[str, float]:
    """Returns the scores of SQuAD 1.1.

    Args:
      truths: dict from ids to the texts of correct answers.
      predictions: dict from ids to texts; a missing prediction is wrong.

    Returns:
      A dict of floats: exact_match and f1.
    """
    values = of_each(truths, predictions, version_2=False).values()
    return {
        name: _percent(sum(value[index] for value in values), len(truths))
        for index, name in enumerate(("exact_match", "f1"))
    }


def scores_v2(
    truths: Dict[str, List[str]],
    predictions: Dict[str, str],
    null_odds: Dict[str, float],
    threshold: float = 0.0,
) -> Dict[str, float]:
    """Returns the scores of SQuAD 2.0.

    Args:
      truths: dict from ids to the texts of correct answers; [] for no answer.
      predictions: dict from ids to texts, "" for no answer.
      null_odds: dict from ids to the score of "no answer" minus that of the best answer.
      threshold: float, the odds up to which predictions were made. Odds above it, or above 1.0 if
        it is lower, count as no answer (the official script's --na-prob-thresh).

    Returns:
      A dict of floats: exact, f1 and total of all questions, of those with an answer (HasAns_...)
      and of those without (NoAns_...); best_exact and best_f1, the scores at the best thresholds of
      null_odds, which are best_exact_thresh and best_f1_thresh.
    """
    values_of = of_each(truths, predictions, version_2=True)
    answered = list(values_of)
    highest = max(threshold, _NO_ANSWER_ODDS)
    raw, thresholded = {}, {}
    for index, name in enumerate(("exact", "f1")):
        raw[name] = {key: values_of[key][index] for key in answered}
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


def of_each(
    truths: Dict[str, List[str]], predictions: Dict[str, str], version_2: bool
) -> Dict[str, Tuple[float, float]]:
    """Returns id → (exact match, F1) of each predicted question, from 0 to 1.

    Args:
      truths, predictions: as in `scores_v1`, or in `scores_v2` if `version_2`.
      version_2: whether questions may have no answer.
    """
    measures = exact_match, f1_v2 if version_2 else f1_v1
    found = {}
    for key in (key for key in truths if key in predictions):
        texts = truths[key]
        if version_2:  # As in the official script, which counts these as answers nevertheless.
            texts = [text for text in texts if normalize_answer(text)] or [""]
        exact, f1 = (max((m(predictions[key], t) for t in texts), default=0.0) for m in measures)
        found[key] = exact, f1
    return found


def no_answer_score(truths: Dict[str, List[str]]) -> float:
    """Returns the scores f1 and exact of SQuAD 2.0 of "no answer" to all questions."""
    return _percent(sum(not texts for texts in truths.values()), len(truths))


def best_threshold(
    truths: Dict[str, List[str]],
    predictions: Dict[str, str],
    values: Dict[str, float],
    null_odds: Dict[str, float],
) -> Tuple[float, float]:
    """Returns (highest sum of scores, the threshold of the odds that reaches it).

    Below the lowest odds, no question is answered, and those without an answer are correct. Raising
    the threshold past a question's odds answers it: its score is added, or the point for "no
    answer" is lost.
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
