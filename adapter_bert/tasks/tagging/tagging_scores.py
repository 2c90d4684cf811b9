"""Scores of predicted tags: of words, and of whole chunks by seqeval."""

import collections
import itertools
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from adapter_bert.model import task_kinds
from adapter_bert.shell import extras
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks import caveats
from adapter_bert.tasks.tagging import tag_schemes


def scores(
    tags: Optional[Sequence[List[str]]], predicted: Sequence[List[str]], is_chunks: bool
) -> Dict[str, float]:
    """Returns the accuracy of words and, for chunks, the scores of whole chunks.

    Args:
      tags, predicted: the tags of each sentence, chunk tags in IOB2.
      is_chunks: bool; adds precision, recall and f1. As in conlleval, a chunk is correct if both
        its ends and its type are.
    """
    assert tags is not None
    equal = [a == b for pair in zip(tags, predicted) for a, b in zip(*pair)]
    result = {"accuracy": float(np.mean(equal))}
    if is_chunks:
        precision, recall, f1, _ = seqeval().precision_recall_fscore_support(
            list(tags), list(predicted), average="micro", zero_division=0
        )
        result.update(precision=float(precision), recall=float(recall), f1=float(f1))
    return result


def references(
    tags: Sequence[List[str]], predicted: Sequence[List[str]], is_chunks: bool, main: str
) -> Dict[str, float]:
    """Returns what `scores` are compared with: those of the most frequent tag, and a count.

    Args:
      tags, predicted, is_chunks: as in `scores`.
      main: the name of the main score.

    Returns:
      A dict of numbers: majority_accuracy and, as in majority_f1, the main score of predicting the
      most frequent tag for each word; predicted_labels, the number of types, or tags, predicted.
    """
    majority = most_frequent(tags)
    constant = scores(tags, [[majority] * len(each) for each in tags], is_chunks)
    distinct = {tag for each in predicted for tag in each}
    if is_chunks:
        distinct = {tag_schemes.type_of(tag) for tag in distinct - {tag_schemes.OUTSIDE}}
    return {
        **{task_kinds.MAJORITY + name: constant[name] for name in ("accuracy", main)},
        task_kinds.PREDICTED_LABELS: len(distinct),
    }


def most_frequent(tags: Sequence[List[str]]) -> str:
    """Returns the most frequent tag of sentences; of several, the first in order."""
    counts = collections.Counter(itertools.chain.from_iterable(tags))
    return min(counts, key=lambda tag: (-counts[tag], tag))


def warnings(
    rows: str,
    tags: Sequence[List[str]],
    predicted: Sequence[List[str]],
    main: str,
    values: Dict[str, float],
) -> Tuple[str, ...]:
    """Returns sentences on predicted tags that are worth less than their scores; see `caveats`.

    Args:
      rows: what is predicted, as in "51,362 dev words".
      tags, predicted: as in `scores`.
      main: the name of the main score.
      values: the results of `scores` and `references`.
    """
    majority = most_frequent(tags)
    distinct, true = (sorted({tag for each in part for tag in each}) for part in (predicted, tags))
    start = task_kinds.MAJORITY
    constant = {name[len(start) :]: v for name, v in values.items() if name.startswith(start)}
    return caveats.of_predictions(rows, distinct, true, majority) or caveats.of_score(
        main, values, constant, majority
    )


def seqeval() -> Any:
    """Returns seqeval's module of scores; raises UserError if it is not installed."""
    try:
        from seqeval.metrics import sequence_labeling
    except ImportError as error:
        raise UserError(
            f"Scoring chunks needs the package seqeval, which cannot be imported ({error}); run"
            f" {extras.install_command('train')}."
        ) from None
    return sequence_labeling
