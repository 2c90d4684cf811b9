"""The report on predicted tags: scores of each type, confusions of words, the worst sentences."""

import itertools
from typing import List, Sequence, Tuple

from adapter_bert.tasks import metrics, text_tables
from adapter_bert.tasks.tagging import tag_schemes, tagging_scores
from adapter_bert.training import plots

_MAX_WORDS = 6  # Wrong words of a sentence that are shown.

Tags = Sequence[List[str]]  # Of the words of each sentence; chunk tags in IOB2.


def describe(
    title: str, words: Sequence[List[str]], tags: Tags, predicted: Tags, is_chunks: bool
) -> str:
    """Returns the report, lines of plain text.

    Args:
      title: its first line.
      words, tags, predicted: of each sentence.
      is_chunks: whether tags mark chunks.
    """
    types, true, other = type_ids(tags, predicted, is_chunks)
    matrix = metrics.confusion_matrix(true, other, len(types))
    if is_chunks:
        lines = _chunk_scores(tags, predicted)
    else:
        lines = text_tables.per_label(true, other, text_tables.names_of(types))
    lines += ["", *text_tables.confusions(matrix, _names(types), _unit(is_chunks))]
    return "\n".join([title, "", *lines, "", *_worst_sentences(words, tags, predicted), ""])


def plot(path: str, title: str, tags: Tags, predicted: Tags, is_chunks: bool) -> str:
    """Draws the confusion matrix of words' types, or tags; returns the path.

    Args:
      path, title: of the picture.
      tags, predicted, is_chunks: as in `describe`.
    """
    types, true, other = type_ids(tags, predicted, is_chunks)
    matrix = metrics.confusion_matrix(true, other, len(types))
    return plots.draw_matrix(path, title, _names(types), matrix, _unit(is_chunks))


def _unit(is_chunks: bool) -> str:
    return "type of word" if is_chunks else "tag"


def type_ids(
    tags: Tags, predicted: Tags, is_chunks: bool
) -> Tuple[List[str], List[int], List[int]]:
    """Returns the types of words, O first, and the ids of the true and the predicted ones.

    Args:
      tags, predicted: of each sentence.
      is_chunks: whether tags mark chunks, so that only the types count; else tags are the types.

    Returns:
      (names of L types, ids of N words, ids that are predicted).
    """
    sides = [list(itertools.chain.from_iterable(side)) for side in (tags, predicted)]
    if is_chunks:
        sides = [list(map(tag_schemes.type_of, side)) for side in sides]
    names = sorted({*sides[0], *sides[1]}, key=lambda name: (name != tag_schemes.OUTSIDE, name))
    ids = {name: index for index, name in enumerate(names)}
    true, other = ([ids[name] for name in side] for side in sides)
    return names, true, other


def _chunk_scores(tags: Tags, predicted: Tags) -> List[str]:
    """Returns the lines of seqeval's classification_report, with short names of the types."""
    all_tags = sorted({tag for side in (tags, predicted) for each in side for tag in each})
    types = sorted({tag_schemes.type_of(tag) for tag in all_tags if tag != tag_schemes.OUTSIDE})
    if not types:
        return ["No spans, neither true nor predicted."]
    names = dict(zip(types, _names(types)))
    renamed = {tag: f"{tag[0]}-{names[tag_schemes.type_of(tag)]}" for tag in all_tags if tag != "O"}
    sides = [
        [[renamed.get(tag, tag) for tag in each] for each in side] for side in (tags, predicted)
    ]
    report = tagging_scores.seqeval().classification_report(*sides, digits=3, zero_division=0)
    return [line.rstrip() for line in report.rstrip().split("\n")]


def _names(types: Sequence[str]) -> List[str]:
    return text_tables.names_of([name or "(no type)" for name in types])


def _worst_sentences(words: Sequence[List[str]], tags: Tags, predicted: Tags) -> List[str]:
    """Returns the lines of the sentences with the most wrong words."""
    wrong = [
        [index for index, (a, b) in enumerate(zip(*pair)) if a != b]
        for pair in zip(tags, predicted)
    ]
    order = sorted(range(len(wrong)), key=lambda number: -len(wrong[number]))
    shown = [number for number in order[: text_tables.NUM_ERRORS] if wrong[number]]
    if not shown:
        return ["No errors."]
    count = sum(map(bool, wrong))
    lines = [f"The worst {len(shown)} of {count:,} sentences with errors (counted from 0):"]
    for number in shown:
        text = text_tables.shorten(" ".join(words[number]))
        lines += [
            "",
            f"sentence {number}, {len(wrong[number])} of {len(words[number])} words wrong: {text}",
        ]
        for index in wrong[number][:_MAX_WORDS]:
            word, true, other = (
                text_tables.shorten_name(side[number][index]) for side in (words, tags, predicted)
            )
            lines.append(f"    {word}: {true} → {other}")
        if len(wrong[number]) > _MAX_WORDS:
            lines.append(f"    and {len(wrong[number]) - _MAX_WORDS} more")
    return lines
