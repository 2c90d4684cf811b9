"""The card of a task adapter: README.md with description, usage, and front matter for the Hub.

The card is generated from the adapter's description; loading an adapter ignores it.
"""

import json
import math
from typing import Any, Dict, Iterable, List, Tuple

from adapter_bert.formats import adapterhub_config
from adapter_bert.model import task_kinds
from adapter_bert.model.configs import BERT_METHODS, FEEDFORWARD_ADAPTER
from adapter_bert.shell import printing
from adapter_bert.shell.errors import UserError

FILE = "README.md"


def text(description: Any, num_parameters: int, num_bytes: int) -> str:
    """Returns the text of a task adapter's card, in Markdown.

    Args:
      description: `task_adapter.Description`.
      num_parameters: number of trained parameters.
      num_bytes: size of the tensors.
    """
    kind = task_kinds.get(description.kind)
    sections = [
        _front_matter(description, kind),
        f"# {_cell(description.task)} on {_cell(description.backbone.name)}\n",
        "A task adapter of adapter-bert (Houlsby et al. 2019, https://arxiv.org/abs/1902.00751):"
        " the parameters that one task trained on top of a frozen BERT. It requires the BERT with"
        " this fingerprint.\n",
        _table(_facts(description, num_parameters, num_bytes)),
        _scores(description),
        _examples(description),
        "## Training\n\n" + _table(_training(description)),
        _use(description, kind),
        _license(description),
    ]
    return "\n".join(filter(None, sections))


def _front_matter(description: Any, kind: task_kinds.TaskKind) -> str:
    """Returns the metadata for the Hub, in YAML with JSON values."""
    tags = ["adapter-bert", "adapter", "bert", description.kind]
    metrics = [
        {"type": _score_name(name), "value": round(value, 6)}
        for name, value in _shown_scores(description)
        if math.isfinite(value)  # JSON has no NaN.
    ]
    fields: Dict[str, Any] = {
        "library_name": "adapter-bert",
        "license": description.presentation.license,
        "pipeline_tag": kind.pipeline_tag,
        "tags": tags,
    }
    if metrics:
        result = {
            "task": {"type": kind.pipeline_tag},
            "dataset": {"name": description.task, "type": description.task, "split": "dev"},
            "metrics": metrics,
        }
        fields["model-index"] = [{"name": description.task, "results": [result]}]
    lines = [
        f"{name}: {json.dumps(value, ensure_ascii=True)}" for name, value in fields.items() if value
    ]
    return "\n".join(["---", *lines, "---", ""])


def _facts(description: Any, num_parameters: int, num_bytes: int) -> List[Tuple[str, Any]]:
    backbone = description.backbone
    sizes = [backbone.config.get(name) for name in ("num_hidden_layers", "hidden_size")]
    return [
        ("task", f"{description.task}, {description.kind}"),
        ("labels", ", ".join(description.labels) or "none"),
        ("size", f"{num_parameters:,} parameters, {num_bytes / 1e6:.1f} MB"),
        ("BERT", f"{backbone.name}, {sizes[0]} layers, hidden size {sizes[1]}"),
        ("BERT's fingerprint", backbone.fingerprint),
        ("BERT's vocabulary", description.vocabulary),
        ("texts", "lower-cased" if description.do_lower_case else "cased"),
        ("maximum length", f"{description.max_seq_length} tokens"),
    ]


def _scores(description: Any) -> str:
    if not description.scores:
        return "It has not been evaluated.\n"
    seed = description.training.get("random_seed")
    where = "On the dev set" + (f", random seed {seed}" if seed is not None else "")
    scores = _shown_scores(description)
    rows = [(_score_name(name), printing.score(value)) for name, value in scores]
    return f"## Scores\n\n{where}:\n\n" + _table(rows) + _references(description)


def _shown_scores(description: Any) -> List[Tuple[str, float]]:
    """Returns (name, score) of the adapter's own scores, the loss once."""
    return [
        (name, value)
        for name, value in sorted(description.scores.items())
        if not task_kinds.is_reference(name)
        and not (name == "loss" and "eval_loss" in description.scores)  # BERT's name.
    ]


def _references(description: Any) -> str:
    """Returns sentences on the scores that are references for others; "" without them."""
    scores, kind = description.scores, task_kinds.get(description.kind)
    sentences = []
    for name, value in sorted(scores.items()):
        if task_kinds.MAJORITY in name:
            score = _cell(_score_name(name).replace(task_kinds.MAJORITY, ""))
            shown = printing.score(value)
            sentences.append(f"Always predicting the most frequent answer: {score} {shown}.")
    if task_kinds.predicts_one_label(scores, "eval", kind.reads_tokens):
        sentences.append("The adapter predicts only one label.")
    return "".join(f"\n{sentence}\n" for sentence in sentences)


def _examples(description: Any) -> str:
    """Returns the section of the task's own examples; "" if it has none."""
    examples = description.presentation.examples
    lines = [f"- {_cell(' / '.join(example.values()))}\n" for example in examples]
    return "## Examples\n\n" + "".join(lines) if lines else ""


def _license(description: Any) -> str:
    """Returns the section of the license that the user gave; "" without one."""
    name = description.presentation.license
    if not name:
        return ""
    return f"## License\n\n{_cell(name)}. BERT and the data have licenses of their own.\n"


def _training(description: Any) -> List[Tuple[str, Any]]:
    adapter = description.adapter
    rows = [("tuning method", description.tuning.method), ("steps", description.global_step)]
    if adapter:
        rows += [("adapter size", adapter.size), ("activation", adapter.activation)]
        rows += [("initial standard deviation", adapter.init_scale), *adapter.variant().items()]
    described = {**description.training, **description.versions}
    rows += [(name.replace("_", " "), described[name]) for name in sorted(described)]
    return [(name, value) for name, value in rows if value is not None and value != ""]


def _use(description: Any, kind: task_kinds.TaskKind) -> str:
    """Returns the commands that evaluate, serve and convert an adapter."""
    commands = [
        f"python {kind.script} --adapter=FOLDER --do_eval --output_dir=output/evaluated DATA",
        "python convert_checkpoint.py describe FOLDER",
    ]
    adapter = description.adapter
    is_variant = adapter and (adapter.variant() or adapter.function != FEEDFORWARD_ADAPTER)
    # Full fine-tuning and top layers change BERT itself.
    if not is_variant and description.tuning.method not in BERT_METHODS:
        commands.append("python serve.py --adapters=FOLDER")
    if _suits_adapterhub(description):
        commands.append("python convert_checkpoint.py to_adapterhub FOLDER output/adapterhub")
    return (
        "## Use\n\nSet `$BERT_BASE_DIR` to the BERT's folder, FOLDER to this one and DATA to the"
        " flags that name your data:\n\n```bash\n" + "\n".join(commands) + "\n```\n"
    )


def _suits_adapterhub(description: Any) -> bool:
    try:
        adapterhub_config.check_adapter(description)
    except UserError:
        return False
    return True


def _score_name(name: str) -> str:
    return name[len("eval_") :] if name.startswith("eval_") else name


def _table(rows: Iterable[Tuple[str, Any]]) -> str:
    lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows]
    return "\n".join(["| | |", "|---|---|", *lines, ""])


def _cell(value: Any) -> str:
    """Returns a value as the text of a table cell, with Markdown and HTML escaped."""
    return printing.markdown((value if isinstance(value, str) else json.dumps(value))[:1000])
