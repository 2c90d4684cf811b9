"""Scores of predicted tags: of words, and of whole chunks by seqeval."""

from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from adapter_bert.shell import extras
from adapter_bert.shell.errors import UserError


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
