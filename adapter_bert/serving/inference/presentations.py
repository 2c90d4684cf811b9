"""Describes tasks for pages and cards: the meaning of GLUE's labels, and an example for any task.

A `Presentation` stored in the task adapter takes precedence.
"""

from typing import Dict, Tuple

from adapter_bert.formats.task_adapter import Description, Presentation
from adapter_bert.model import task_kinds

_NLI = {
    "entailment": "the first sentence implies the second",
    "neutral": "the second sentence may be true or not",
    "contradiction": "the second sentence cannot be true",
}
_ENTAILMENT = {
    "entailment": "the first sentence implies the second",
    "not_entailment": "it does not",
}


def _pair(label_descriptions: Dict[str, str], text: str, text_b: str) -> Presentation:
    return Presentation(label_descriptions, ("text", "text_b"), {"text": text, "text_b": text_b})


# By the names of tasks in lower case.
_KNOWN = {
    "cola": Presentation(
        {"0": "not a sentence of English grammar", "1": "grammatical"},
        ("text",),
        {"text": "The book what I read was long."},
    ),
    "sst-2": Presentation(
        {"0": "negative", "1": "positive"},
        ("text",),
        {"text": "A film that is as funny as it is moving."},
    ),
    "mrpc": _pair(
        {"0": "different meanings", "1": "the same meaning"},
        "The company said its profit rose by a fifth last year.",
        "Profit went up 20 percent last year, the company said.",
    ),
    "sts-b": _pair({}, "A man is playing a guitar.", "Someone plays an instrument."),
    "qqp": _pair(
        {"0": "different questions", "1": "the same question"},
        "How do I learn to swim as an adult?",
        "What is the best way for adults to learn swimming?",
    ),
    "mnli": _pair(_NLI, "All the trains were late on Monday.", "Some trains were late."),
    "ax": _pair(_NLI, "All the trains were late on Monday.", "Some trains were late."),
    "xnli": _pair(_NLI, "All the trains were late on Monday.", "Some trains were late."),
    "qnli": _pair(
        {"entailment": "the sentence answers the question", "not_entailment": "it does not"},
        "When was the bridge opened?",
        "After five years of work the bridge was opened in 1932.",
    ),
    "rte": _pair(
        _ENTAILMENT, "The bridge was opened in 1932.", "The bridge was opened before the war."
    ),
    "wnli": _pair(
        {"0": "does not follow", "1": "follows"},
        "The cup does not fit into the box because it is too large.",
        "The cup is too large.",
    ),
}


def of(description: Description) -> Tuple[Presentation, int]:
    """Returns a task's presentation, complete except for missing label descriptions.

    Args:
      description: the task's.

    Returns:
      A `Presentation`, whose fields are some of those of the task's kind, with an example for each,
      `example` being the first of `examples`; and the number of leading fields that are required.
    """
    kind = task_kinds.get(description.kind)
    stored = description.presentation
    known = _KNOWN.get(description.task.lower(), Presentation())
    is_other = not set(known.label_descriptions) <= set(description.labels)
    if is_other or task_kinds.is_custom(description.training):
        known = Presentation()  # Another task of that name.
    # An example that the user wrote precedes those of the training.
    own = (stored.example,) if stored.example else stored.examples
    named = stored.fields or tuple(stored.example) or known.fields
    required = kind.fields[: kind.num_required]
    fields = tuple(name for name in kind.fields if name in named or name in required)
    if not named:
        fields = kind.fields
    texts = [{**kind.example, **known.example, **example} for example in own or ({},)]
    examples = tuple({name: text.get(name, "") for name in fields} for text in texts)
    presentation = Presentation(
        stored.label_descriptions or known.label_descriptions, fields, examples[0], examples
    )
    return presentation, len(fields) if named else kind.num_required
