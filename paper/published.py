"""The paper's published results: Tables 1 and 2 of Houlsby et al. 2019.

All values are test scores in points, of BERT-Large in Table 1 and of BERT-Base in Table 2. Tasks
have the same names as in records.
"""

import functools
import re
from typing import Any, Dict, Optional, Tuple

_NAMES_1 = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE")
# GLUE's tasks in Table 1's order; WNLI, which the paper leaves out, comes last.
GLUE = (*_NAMES_1, "WNLI")

BEST_SIZE = "adapters, size chosen per task (8, 64, 256)"
# Method → total parameters, those trained per task, and the scores.
_TABLE_1: Dict[str, Any] = {
    "full fine-tuning": ("9.0×", "100%", 60.5, 94.9, 89.3, 87.6, 72.1, 86.7, 85.9, 91.1, 70.1),
    BEST_SIZE: ("1.3×", "3.6%", 59.5, 94.0, 89.5, 86.9, 71.8, 84.9, 85.1, 90.7, 71.5),
    "adapters 64": ("1.2×", "2.1%", 56.9, 94.2, 89.6, 87.3, 71.8, 85.3, 84.6, 91.4, 68.8),
}
# Task → its title, the score of the baseline without BERT, then means and standard errors.
TABLE_2: Dict[str, Any] = {
    "newsgroups": ("20 newsgroups", 91.1, 92.8, 0.1, 92.8, 0.1, 91.7, 0.2),
    "airline": ("airline", 84.5, 83.6, 0.3, 84.0, 0.1, 84.5, 0.2),
    "corporate_messaging": ("corporate messaging", 91.9, 92.5, 0.5, 92.4, 0.6, 92.9, 0.3),
    "disasters": ("disasters", 84.9, 85.3, 0.4, 85.3, 0.4, 84.1, 0.2),
    "economic_news_relevance": ("economic news relevance", 81.1, 82.1, 0.0, 78.9, 2.8, 82.5, 0.3),
    "emotion": ("emotion", 36.3, 38.4, 0.1, 37.6, 0.2, 38.7, 0.1),
    "global_warming": ("global warming", 82.7, 84.2, 0.4, 81.9, 0.2, 82.7, 0.3),
    "political_audience": ("political audience", 81.0, 80.9, 0.3, 80.7, 0.8, 79.0, 0.5),
    "political_bias": ("political bias", 76.8, 75.2, 0.9, 76.5, 0.4, 75.9, 0.3),
    "political_message": ("political message", 43.8, 38.9, 0.6, 44.9, 0.6, 44.1, 0.2),
    "primary_emotions": ("primary emotions", 33.5, 36.9, 1.6, 38.2, 1.0, 33.9, 1.4),
    "progressive_opinion": ("progressive opinion", 70.6, 71.6, 0.5, 75.9, 1.3, 71.7, 1.1),
    "progressive_stance": ("progressive stance", 54.3, 63.8, 1.0, 61.5, 1.3, 60.6, 1.4),
    "us_economic_performance": ("US economic performance", 75.6, 75.3, 0.1, 76.5, 0.4, 77.3, 0.1),
    "customer_complaints": ("customer complaints", 54.5, 55.9, 0.1, 56.4, 0.1, 55.4, 0.1),
    "news_aggregator": ("news aggregator", 95.2, 96.3, 0.0, 96.5, 0.0, 96.2, 0.0),
    "sms_spam": ("SMS spam", 98.5, 99.3, 0.2, 99.3, 0.2, 95.1, 2.2),
}
_METHODS_2 = ("no-BERT baseline", "full fine-tuning", "variable fine-tuning", "adapters")

# Total parameters, as a multiple of BERT's, and those trained per task: column → method → text.
COSTS_1 = {
    "total parameters": {method: row[0] for method, row in _TABLE_1.items()},
    "trained per task": {method: row[1] for method, row in _TABLE_1.items()},
}
COSTS_2 = {
    "total parameters": dict(zip(_METHODS_2, ("–", "17×", "9.9×", "1.19×"))),
    "trained per task": dict(zip(_METHODS_2, ("–", "100%", "52.9%", "1.14%"))),
}


def scores(method: str) -> Dict[str, Tuple[float, Optional[float]]]:
    """Returns a method's scores in both tables: task → (mean, standard error or None)."""
    result: Dict[str, Tuple[float, Optional[float]]] = {}
    if method in _TABLE_1:
        result.update((task, (mean, None)) for task, mean in zip(_NAMES_1, _TABLE_1[method][2:]))
    if method in _METHODS_2:
        column = 2 * _METHODS_2.index(method)
        for task, (_, no_bert, *others) in TABLE_2.items():
            mean, error = (no_bert, None, *others)[column : column + 2]
            result[task] = mean, error
    return result


def title(task: str) -> str:
    """Returns a task's display name: "SMS spam", "MNLI (9k rows)"."""
    name, rows = split_sample(task)
    if rows:
        return f"{name} ({rows} rows)"
    return TABLE_2[task][0] if task in TABLE_2 else task


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
