"""The report on answers: scores by question word, and the most confident wrong answers."""

import collections
import re
from typing import Any, Dict, List, Tuple

import numpy as np

from adapter_bert.tasks import text_tables
from adapter_bert.tasks.squad import squad_scores
from adapter_bert.training import plots

_WORD = re.compile(r"\b(what|which|who|whom|whose|when|where|why|how)\b")
_MERGED = {"whom": "who", "whose": "who"}
_OTHER = "other"
_NO_ANSWER = "(no answer)"

Truths = Dict[str, List[str]]


def describe(
    questions: Dict[str, str], truths: Truths, answers: Dict[str, Any], version_2: bool
) -> str:
    """Returns the report, lines of plain text.

    Args:
      questions: id → text of the question.
      truths: as in `squad_scores`.
      answers: id → `squad_answers.Answer`.
      version_2: whether questions may have no answer.
    """
    values = _values(truths, answers, version_2)
    groups = _groups(questions, truths, values, version_2)
    rows = [["question", "count", "exact", "f1"]]
    rows += [[name, f"{count:,}", *(f"{v:.1f}" for v in means)] for name, count, means in groups]
    lines = [f"dev, {len(values):,} questions:", "", *text_tables.table(rows, left=[0]), ""]
    return "\n".join([*lines, *_wrong_answers(questions, truths, answers, values), ""])


def plot(
    path: str,
    title: str,
    questions: Dict[str, str],
    truths: Truths,
    answers: Dict[str, Any],
    version_2: bool,
) -> str:
    """Draws the F1 of each kind of question; returns the path.

    Args:
      path, title: of the picture.
      questions, truths, answers, version_2: as in `describe`.
    """
    groups = _groups(questions, truths, _values(truths, answers, version_2), version_2)
    names = [f"{name} ({count:,})" for name, count, _ in groups]
    return plots.draw_bars(path, title, "F1", names, [f1 for _, _, (_, f1) in groups])


def by_word(
    questions: Dict[str, str], values: Dict[str, Tuple[float, float]]
) -> Dict[str, List[Tuple[float, float]]]:
    """Returns the (exact match, F1) of questions by their first question word, or "other".

    Args:
      questions: id → text.
      values: id → (exact match, F1).
    """
    groups = collections.defaultdict(list)
    for key, value in values.items():
        match = _WORD.search(questions[key].lower())
        word = match.group(1) if match else _OTHER
        groups[_MERGED.get(word, word)].append(value)
    order = sorted(groups, key=lambda word: (word == _OTHER, -len(groups[word]), word))
    return {word: groups[word] for word in order}


def _values(
    truths: Truths, answers: Dict[str, Any], version_2: bool
) -> Dict[str, Tuple[float, float]]:
    texts = {key: answer.text for key, answer in answers.items()}
    return squad_scores.of_each(truths, texts, version_2)


def _groups(
    questions: Dict[str, str],
    truths: Truths,
    values: Dict[str, Tuple[float, float]],
    version_2: bool,
) -> List[Tuple[str, int, Any]]:
    """Returns (name, number of questions, (exact match, F1) in percent) of each group."""
    groups = {"all": list(values.values()), **by_word(questions, values)}
    if version_2:
        for name, has_answer in (("answerable", True), ("not answerable", False)):
            groups[name] = [values[key] for key in values if bool(truths[key]) == has_answer]
    return [(name, len(each), 100 * np.mean(each, axis=0)) for name, each in groups.items() if each]


def _wrong_answers(
    questions: Dict[str, str],
    truths: Truths,
    answers: Dict[str, Any],
    values: Dict[str, Tuple[float, float]],
) -> List[str]:
    """Returns the lines of the most confident answers that match no true one exactly."""
    wrong = [key for key, (exact, _) in values.items() if not exact]
    if not wrong:
        return ["No errors."]
    confidences = {key: _probability(answers[key]) for key in wrong}
    shown = sorted(wrong, key=lambda key: -confidences[key])[: text_tables.NUM_ERRORS]
    header = ["probability", "f1", "predicted", "true", "question", "id"]
    rows = [
        [
            f"{confidences[key]:.3f}",
            f"{values[key][1]:.2f}",
            text_tables.shorten(answers[key].text or _NO_ANSWER, 2),
            text_tables.shorten(next(iter(truths[key]), _NO_ANSWER), 2),
            text_tables.shorten(questions[key]),
            text_tables.shorten(key),
        ]
        for key in shown
    ]
    title = f"The {len(shown)} most confident of {len(wrong):,} answers that are not exact:"
    return [title, "", *text_tables.table([header, *rows], left=[2, 3, 4, 5])]


def _probability(answer: Any) -> float:
    return next((e["probability"] for e in answer.nbest if e["text"] == answer.text), 0.0)
