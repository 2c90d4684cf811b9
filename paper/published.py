"""The paper's published results: Tables 1 and 2 of Houlsby et al. 2019.

All values are test scores in points, of BERT-Large in Table 1 and of BERT-Base in Table 2. Tasks
have the same names as in records.
"""

import functools
import re
from typing import Dict, NamedTuple, Optional, Tuple

_NAMES_1 = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE")
# GLUE's tasks in Table 1's order; WNLI, which the paper leaves out, comes last.
GLUE = (*_NAMES_1, "WNLI")


class Row1(NamedTuple):
    """A row of Table 1: GLUE's scores by task, total parameters and those trained per task."""

    label: str
    total: str
    trained: str
    scores: Dict[str, float]


def _row_1(label: str, total: str, trained: str, *scores: float) -> Row1:
    return Row1(label, total, trained, dict(zip(_NAMES_1, scores)))


BEST_SIZE = "adapters, size chosen per task (8, 64, 256)"
TABLE_1 = (
    _row_1(
        "full fine-tuning", "9.0×", "100%", 60.5, 94.9, 89.3, 87.6, 72.1, 86.7, 85.9, 91.1, 70.1
    ),
    _row_1(
        BEST_SIZE,
        *("1.3×", "3.6%", 59.5, 94.0, 89.5, 86.9, 71.8, 84.9, 85.1, 90.7, 71.5),
    ),
    _row_1("adapters 64", "1.2×", "2.1%", 56.9, 94.2, 89.6, 87.3, 71.8, 85.3, 84.6, 91.4, 68.8),
)

COSTS_1 = {
    "total parameters": {row.label: row.total for row in TABLE_1},
    "trained per task": {row.label: row.trained for row in TABLE_1},
}


class Row2(NamedTuple):
    """A row of Table 2: a task's test accuracies, each as (mean, standard error or None)."""

    title: str
    no_bert: Tuple[float, Optional[float]]
    full: Tuple[float, Optional[float]]
    variable: Tuple[float, Optional[float]]
    adapters: Tuple[float, Optional[float]]


_COLUMNS_2 = ("no-BERT baseline", "full fine-tuning", "variable fine-tuning", "adapters")
COSTS_2 = {
    "total parameters": dict(zip(_COLUMNS_2, ("–", "17×", "9.9×", "1.19×"))),
    "trained per task": dict(zip(_COLUMNS_2, ("–", "100%", "52.9%", "1.14%"))),
}


def _row_2(title: str, no_bert: float, *scores: float) -> Row2:
    return Row2(title, (no_bert, None), *zip(scores[::2], scores[1::2]))


TABLE_2 = {
    "newsgroups": _row_2("20 newsgroups", 91.1, 92.8, 0.1, 92.8, 0.1, 91.7, 0.2),
    "airline": _row_2("airline", 84.5, 83.6, 0.3, 84.0, 0.1, 84.5, 0.2),
    "corporate_messaging": _row_2("corporate messaging", 91.9, 92.5, 0.5, 92.4, 0.6, 92.9, 0.3),
    "disasters": _row_2("disasters", 84.9, 85.3, 0.4, 85.3, 0.4, 84.1, 0.2),
    "economic_news_relevance": _row_2(
        "economic news relevance", 81.1, 82.1, 0.0, 78.9, 2.8, 82.5, 0.3
    ),
    "emotion": _row_2("emotion", 36.3, 38.4, 0.1, 37.6, 0.2, 38.7, 0.1),
    "global_warming": _row_2("global warming", 82.7, 84.2, 0.4, 81.9, 0.2, 82.7, 0.3),
    "political_audience": _row_2("political audience", 81.0, 80.9, 0.3, 80.7, 0.8, 79.0, 0.5),
    "political_bias": _row_2("political bias", 76.8, 75.2, 0.9, 76.5, 0.4, 75.9, 0.3),
    "political_message": _row_2("political message", 43.8, 38.9, 0.6, 44.9, 0.6, 44.1, 0.2),
    "primary_emotions": _row_2("primary emotions", 33.5, 36.9, 1.6, 38.2, 1.0, 33.9, 1.4),
    "progressive_opinion": _row_2("progressive opinion", 70.6, 71.6, 0.5, 75.9, 1.3, 71.7, 1.1),
    "progressive_stance": _row_2("progressive stance", 54.3, 63.8, 1.0, 61.5, 1.3, 60.6, 1.4),
    "us_economic_performance": _row_2(
        "US economic performance", 75.6, 75.3, 0.1, 76.5, 0.4, 77.3, 0.1
    ),
    "customer_complaints": _row_2("customer complaints", 54.5, 55.9, 0.1, 56.4, 0.1, 55.4, 0.1),
    "news_aggregator": _row_2("news aggregator", 95.2, 96.3, 0.0, 96.5, 0.0, 96.2, 0.0),
    "sms_spam": _row_2("SMS spam", 98.5, 99.3, 0.2, 99.3, 0.2, 95.1, 2.2),
}


def scores(label: str) -> Dict[str, Tuple[float, Optional[float]]]:
    """Returns a method's scores in both tables: task → (mean, standard error or None)."""
    result: Dict[str, Tuple[float, Optional[float]]] = {}
    for row in TABLE_1:
        if row.label == label:
            result.update((task, (score, None)) for task, score in row.scores.items())
    if label in _COLUMNS_2:
        column = _COLUMNS_2.index(label)
        result.update((task, row_2[1:][column]) for task, row_2 in TABLE_2.items())
    return result


def title(task: str) -> str:
    """Returns a task's display name: "SMS spam", "MNLI (9k rows)"."""
    name, rows = split_sample(task)
    if rows:
        return f"{name} ({rows} rows)"
    return TABLE_2[task].title if task in TABLE_2 else task


def is_glue(task: str) -> bool:
    """Returns whether a task is one of GLUE's, or a sample of its rows such as "mnli_9k"."""
    return split_sample(task)[0] in (*GLUE, "MNLI")


def sort_key(task: str) -> Tuple[int, str]:
    """Returns a sort key: the paper's tasks in the order of its tables, then others by name."""
    task_order = (*GLUE, *TABLE_2)
    name, _ = split_sample(task)
    name = "MNLI-m" if name == "MNLI" else name
    return (task_order.index(name) if name in task_order else len(task_order), task)


@functools.lru_cache(maxsize=None)
def split_sample(task: str) -> Tuple[str, str]:
    """Returns ("MNLI", "9k") for "mnli_9k", a sample of GLUE's rows, and (task, "") for others."""
    match = re.fullmatch(r"(\w+?)_(\d+k)", task)
    names = {name.lower().replace("-", ""): name for name in ("MNLI", *GLUE)}
    if match and match.group(1) in names:
        return names[match.group(1)], match.group(2)
    return task, ""
