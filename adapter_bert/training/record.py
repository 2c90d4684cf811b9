"""The settings that decide a run's weights, as a value; settings.json holds them.

{"model": {...},      the settings of the graph; compared by every run in the folder
 "training": {...},   further settings that affect the weights; compared by training runs
 "pretrained": {...}, the flags that name the BERT; never compared
 ...}                 sections that a script compares itself
"""

import hashlib
import json
import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Type

from adapter_bert.files import gfile, json_objects
from adapter_bert.formats import task_adapter
from adapter_bert.shell.errors import UserError
from adapter_bert.shell.settings import Settings

Sections = Dict[str, Dict[str, Any]]  # JSON values by name.
Difference = Tuple[str, Any, Any]  # Name, before, now.

ANSWERS = "answers"  # In `training`: how answers are chosen from outputs; free to change.
_WEIGHT_SECTIONS = ("model", "training")  # The sections that affect the weights.
_LENGTH = {"num_train_steps", "num_warmup_steps"}  # They depend on --num_train_epochs.
# Settings whose runs also record the dev data, and how often and how it is scored.
_SELECTIONS = ("keep_best", "early_stopping_patience")
_BERT_CONFIG = "bert_config."


class Record(NamedTuple):
    """A run's recorded settings.

    Attributes:
      sections: see the module's docstring.
      settings_class: the `Settings` whose flags name the settings in errors.
    """

    sections: Sections
    settings_class: Type[Settings] = Settings

    @property
    def identity(self) -> str:
        """A digest of the settings, which marks the run's checkpoints.

        Two runs have the same digest if `differences` finds none, or only in the number of steps: a
        continued run resumes from the checkpoints of the shorter training.
        """
        return identity(self.sections)

    def differences(self, earlier: Sections, is_training: bool, has_weights: bool) -> List[str]:
        """Returns phrases on the settings that keep this run out of an earlier run's folder.

        Args:
          earlier: the recorded sections of that run.
          is_training: whether this run trains.
          has_weights: whether the folder has a checkpoint, which this run would use.
        """
        sections = (_WEIGHT_SECTIONS if is_training else ("model",)) if has_weights else ()
        found = [
            each
            for name in sections
            for each in differences(earlier.get(name, {}), self.sections.get(name, {}))
        ]
        before = earlier.get("training", {})
        if not is_training and before:
            binding = self.settings_class.evaluation_flags()
            now = self.sections.get("training", {})
            found += [each for each in differences(before, now) if each[0] in binding]
        return describe(found, self.settings_class)

    def is_longer(self, earlier: Sections, step: int) -> bool:
        """Returns whether this run only lengthens an earlier training that ended at a step."""
        before, now = earlier.get("training", {}), self.sections["training"]
        differing = {name for name, _, _ in differences(before, now)}
        return (
            "num_train_steps" in differing
            and differing <= _LENGTH
            and not any(differences(earlier.get("model", {}), self.sections["model"]))
            and step == before.get("num_train_steps")
            and step < now.get("num_train_steps", 0)
        )


def read(path: str) -> Optional[Sections]:
    """Returns the sections in a settings.json, or None if there is none; raises UserError."""
    if not gfile.exists(path):
        return None
    expected = "the objects model and training"
    sections = json_objects.read_object(path, expected=expected)
    if not all(isinstance(section, dict) for section in sections.values()):
        raise UserError(f"{path}: expected {expected}, found other JSON.")
    return sections


def recorded(path: str, section: str) -> Dict[str, Any]:
    """Returns a section of a settings.json; {} without a valid one, which `claim` reports."""
    try:
        return (read(path) or {}).get(section, {})
    except UserError:
        return {}


def of_description(
    description: task_adapter.Description,
    settings_class: Type[Settings],
    pretrained: Optional[Dict[str, str]] = None,
) -> Record:
    """Returns the `Record` of a run.

    Args:
      description: of the task adapter that the run trains or evaluates.
      settings_class: see `Record`.
      pretrained: the flags that name the BERT.
    """
    training = {name: v for name, v in description.training.items() if name != ANSWERS}
    sections = {
        "model": {"task": description.task, **task_adapter.compatibility_fields(description)},
        "training": {
            "max_seq_length": description.max_seq_length,
            "bert_config": description.backbone.config,
            "adapter_init_scale": description.adapter and description.adapter.init_scale,
            **training,
        },
        "pretrained": pretrained or {},
    }
    return of_sections(sections, settings_class)


def of_sections(sections: Sections, settings_class: Type[Settings] = Settings) -> Record:
    """Returns the `Record` of sections as a later run will read them: JSON has no tuples."""
    return Record(json.loads(json.dumps(sections, sort_keys=True)), settings_class)


def identity(sections: Sections) -> str:
    """Returns the digest of recorded sections; see `Record.identity`."""
    leaves = {
        f"{section}.{name}": _normalize_numbers(value)
        for section in _WEIGHT_SECTIONS
        for name, value in _leaves(sections.get(section, {}))
        if value is not None  # `differences` treats it like a missing setting.
        and name not in _LENGTH
    }
    return hashlib.sha256(json.dumps(leaves, sort_keys=True).encode()).hexdigest()


def check_fits(
    actual: task_adapter.Description,
    expected: task_adapter.Description,
    where: str,
    settings_class: Type[Settings] = Settings,
) -> None:
    """Raises UserError unless a task adapter is compatible with the model of a run.

    Args:
      actual: of the task adapter.
      expected: of the run.
      where: beginning of the error message, such as "--adapter output/mrpc/adapter".
      settings_class: see `Record`.
    """
    found = list(differences(*map(task_adapter.compatibility_fields, (actual, expected))))
    if found:
        raise UserError(
            f"{where} (task {actual.task}, backbone {actual.backbone.name}) does not fit:"
            f" {'; '.join(describe(found, settings_class))}."
        )


def describe(found: List[Difference], settings_class: Type[Settings]) -> List[str]:
    """Returns phrases about how settings differ, named by their flags.

    Settings that only one run has because of another difference are omitted: those of adapters if
    --tuning differs, and all others if --keep_best or --early_stopping_patience does.
    """
    has_other_method = any(name == "method" for name, _, _ in found)
    selections = {n for n, before, now in found if n in _SELECTIONS and bool(before) != bool(now)}

    def is_consequence(name: str) -> bool:
        if has_other_method and name.startswith("adapter_"):
            return True
        return bool(selections) and name not in selections

    names = settings_class.recorded_names()
    return [
        _phrase(name, before, now, names)
        for name, before, now in found
        if not (None in (before, now) and is_consequence(name))
    ]


def _phrase(name: str, before: Any, now: Any, names: Dict[str, str]) -> str:
    flag = names.get(name, f"--{name}")
    if name.startswith(_BERT_CONFIG):
        flag = f"{name[len(_BERT_CONFIG) :]} (--bert_config_file)"
    if any(isinstance(value, str) and _is_digest(value) for value in (before, now)):
        return f"{flag} is not the same"
    return f"{flag} was {_show(before)}, is now {_show(now)}"


def _is_digest(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{16}|[0-9a-f]{64}", text) is not None


def _show(value: Any) -> str:
    return "not set" if value is None else json.dumps(value)


def differences(before: Dict[str, Any], now: Dict[str, Any]) -> Iterator[Difference]:
    """Yields (dotted name, before, now) for every leaf in which two nested dicts differ."""
    before, now = dict(_leaves(before)), dict(_leaves(now))
    for name in sorted(set(before) | set(now)):
        if before.get(name) != now.get(name):
            yield name, before.get(name), now.get(name)


def _leaves(value: Any, name: str = "") -> Iterator[Tuple[str, Any]]:
    """Yields (dotted name, leaf) for all leaves of nested dicts."""
    if not isinstance(value, dict):
        yield name, value
        return
    for key, inner in value.items():
        yield from _leaves(inner, f"{name}.{key}" if name else key)


def _normalize_numbers(value: Any) -> Any:
    """Returns a JSON value in which equal numbers have the same text: 1 for 1.0 and True."""
    if isinstance(value, (list, tuple)):
        return [_normalize_numbers(item) for item in value]
    is_whole = isinstance(value, bool) or isinstance(value, float) and value.is_integer()
    return int(value) if is_whole else value
