"""Selects settings by their score on the dev set, over seeds.

A record is a dict, see `records`. Its setting is its flags without the seed and the task. Scores
are in points, i.e. multiplied by 100, like the paper's. Settings are compared by their task's
score, or by accuracy after `by_criterion`.
"""

import collections
import dataclasses
import functools
import json
import math
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from adapter_bert.model import configs, task_kinds
from adapter_bert.sweeps import grids
from adapter_bert.training import config

Record = Dict[str, Any]  # See `records`.
VALIDATION, TEST = "eval", "test"  # Prefixes of the names of scores.
CRITERIA = ("accuracy", "score")
ACCURACY = "eval_accuracy"
TEXT_SCRIPTS = ("run_classifier.py", "run_baseline.py")  # A tagger's accuracy is per word.

_POOLER, INIT_SCALE = "train_pooler", "adapter_init_scale"
_DEFAULT_SEED = config.FinetuningConfig.random_seed

# From a flag to its value for records without it.
DEFAULTS = {
    "tuning": "adapters",
    _POOLER: False,
    "layer_norms": None,
    **{f"adapter_{f.name}": f.default for f in dataclasses.fields(configs.AdapterConfig)},
}

# Flags that do not belong to a setting.
_NON_SETTING_FLAGS = ("random_seed", "task_name", "do_train", "do_eval", "do_predict")
# Flags that say how the baseline's model was found; the record's `settings` is the model.
_SEARCH_FLAGS = (
    *("trials", "sampler", "pruner", "early_stopping_patience"),
    *("preset", "module", "setting"),
)


class Method(NamedTuple):
    """A tuning method of the paper, a curve or a point in its figures.

    Attributes:
      name: the value of --tuning; for the baseline, a name of this module.
      label: the name in reports.
      level: the flag of the curve's points; None for a single point.
    """

    name: str
    label: str
    level: Optional[str] = None

    def level_of(self, record: Record) -> Any:
        """Returns a record's level on the curve, or None."""
        return flag_of(record, self.level)


ADAPTERS = Method("adapters", "adapters", "adapter_size")
TOP_LAYERS = Method("top_layers", "top layers", "num_top_layers")
LAYER_NORM = Method("layer_norm", "LayerNorms only")
HEAD = Method("head", "head only")
FULL = Method("full", "full fine-tuning")
NO_BERT = Method("no_bert", "no-BERT baseline")


class Selected(NamedTuple):
    """A task's selected setting and its score.

    Attributes:
      score: the score's name with its split, such as "test_accuracy".
      value: the score in points; `choose_mean` gives a mean over seeds.
      sem: the standard error of the mean; None for a single seed.
      seeds: the number of seeds of the mean, or from which the best one was selected.
      trained: the number of trained parameters; None if unknown.
      share: trained parameters as a share of BERT's; None without BERT.
      setting: flag → value.
      values: the score of each seed, in points.
      one_label: the number of these runs that predict only one label.
    """

    score: str
    value: float
    sem: Optional[float] = None
    seeds: int = 1
    trained: Optional[int] = None
    share: Optional[float] = None
    setting: Dict[str, Any] = {}
    values: Tuple[float, ...] = ()
    one_label: int = 0


def score_name(record: Record, split: str) -> str:
    """Returns the name of the task's score on a split, such as "test_accuracy"."""
    return split + record["score"][len(VALIDATION) :]


def predicts_one_label(record: Record, split: str = VALIDATION) -> bool:
    """Returns whether a run predicts only one label for a split; older records do not say so."""
    if f"{split}_{task_kinds.PREDICTED_LABELS}" not in record["scores"]:
        return False
    kind = grids.scripts().get(record["script"])
    reads_tokens = kind is not None and kind.reads_tokens
    return task_kinds.predicts_one_label(record["scores"], split, reads_tokens)


def points(record: Record, split: str) -> Any:
    """Returns a record's score on a split in points, or None."""
    return to_points(record, score_name(record, split))


class _Derived(NamedTuple):
    """Holds what follows from flags without the seed; records of one setting share it."""

    method: str
    setting: Dict[str, Any]
    key: str
    design: Dict[str, Any]
    schedule: Dict[str, Any]


_DERIVED = "derived"  # A record's field after `prepare`.


def _derived(record: Record) -> _Derived:
    return record.get(_DERIVED) or _derive(record)


def _derive(record: Record) -> _Derived:
    values = _setting(record)
    return _Derived(
        _find_method(record), values, key_of(values), _design(values), _schedule(record)
    )


def prepare(records: List[Record]) -> None:
    """Adds to records what reports read of their settings, computed once for each setting."""
    known: Dict[str, _Derived] = {}
    for record in records:
        flags = [pair for pair in record["flags"].items() if pair[0] != "random_seed"]
        key = repr((record["script"], record.get("settings"), flags))
        if key not in known:
            known[key] = _derive(record)
        record[_DERIVED] = known[key]


def by_criterion(records: List[Record], criterion: str) -> List[Record]:
    """Returns records prepared for comparing settings by a criterion.

    Args:
      records: list of records of finished runs.
      criterion: one of `CRITERIA`: "score" is the task's score; "accuracy" is the validation
        accuracy as in section 3.1 of the paper, or the score of tasks without one (STS-B, SQuAD).
    """
    if criterion == "score":
        return records
    return [
        {**record, "selected_by": ACCURACY} if has_accuracy(record) else record
        for record in records
    ]


def has_accuracy(record: Record) -> bool:
    """Returns whether a record has a classifier's accuracy on the dev set."""
    return record["script"] in TEXT_SCRIPTS and to_points(record, ACCURACY) is not None


def criterion_points(record: Record) -> Any:
    """Returns the value by which a record's setting is compared in points, or None."""
    return to_points(record, record.get("selected_by", score_name(record, VALIDATION)))


def to_points(record: Record, name: str) -> Any:
    """Returns a score by its name in points, or None if it is missing or not finite."""
    value = record["scores"].get(name)
    if value is None or not math.isfinite(value):
        return None
    return value if record["script"] == "run_squad.py" else 100 * value


def flag_of(record: Record, name: Any) -> Any:
    """Returns a flag's value or its known default, or else None.

    --layer_norms is None if it has the value that it would have if not given: "all", or "adapted"
    with --adapter_layers.
    """
    value = record["flags"].get(name, DEFAULTS.get(name))
    if name == "layer_norms":
        implied = "all" if flag_of(record, "adapter_layers") is None else "adapted"
        return None if value == implied else value
    return value


def setting(record: Record) -> Dict[str, Any]:
    """Returns a record's setting, a dict of flags without seed, task and default values.

    Learning rate and number of epochs are always in it, also if they are the method's default. A
    baseline without BERT has its model instead of the flags by which it was found.
    """
    return _derived(record).setting


def setting_key(record: Record, without: FrozenSet[Optional[str]] = frozenset()) -> str:
    """Returns a canonical text of a record's setting, without some of its flags."""
    return _key_without(_derived(record).key, without)


@functools.lru_cache(maxsize=None)
def _key_without(key: str, without: FrozenSet[Optional[str]]) -> str:
    return key_of({name: v for name, v in json.loads(key).items() if name not in without})


def _setting(record: Record) -> Dict[str, Any]:
    if _find_method(record) == NO_BERT.name:
        left_out = (*_NON_SETTING_FLAGS, *_SEARCH_FLAGS)
        flags = {name: v for name, v in record["flags"].items() if name not in left_out}
        return {**flags, **record["settings"]}
    record = {**record, "flags": {**_schedule(record), **record["flags"]}}
    values = {name: flag_of(record, name) for name in sorted(record["flags"])}
    nondefault = {
        name: value
        for name, value in values.items()
        if name not in _NON_SETTING_FLAGS and not (name in DEFAULTS and value == DEFAULTS[name])
    }
    if _find_method(record) != ADAPTERS.name:
        return nondefault
    return {ADAPTERS.level: flag_of(record, ADAPTERS.level), **nondefault}


def key_of(flags: Dict[str, Any]) -> str:
    """Returns a canonical text of a dict of flags."""
    return json.dumps(flags, sort_keys=True)


def design(record: Record) -> Dict[str, Any]:
    """Returns the adapters' design, a dict of the flags that differ from the default adapter's."""
    return _derived(record).design


def _design(setting: Dict[str, Any]) -> Dict[str, Any]:
    return {
        name: value
        for name, value in setting.items()
        if name.startswith("adapter_") or name in (_POOLER, "layer_norms")
        if name != ADAPTERS.level
    }


def filter_by_method(records: List[Record], method: Method) -> List[Record]:
    """Returns the records of a method, of any design; all top layers are also full fine-tuning."""
    return [
        record
        for record in records
        if _method_name(record) == method.name or (method is FULL and _trains_all_layers(record))
    ]


def _trains_all_layers(record: Record) -> bool:
    """Returns whether a record is of all top layers: the embeddings, some 10% of BERT, train too.

    The pooler, below 1%, is not used for SQuAD.
    """
    scores = record["scores"]
    trained, total = scores.get("trained_parameters", 0), scores.get("total_parameters", 0)
    return _method_name(record) == TOP_LAYERS.name and trained > 0.98 * total > 0


def _method_name(record: Record) -> str:
    return record[_DERIVED].method if _DERIVED in record else _find_method(record)


def _find_method(record: Record) -> str:
    if record["script"] == "run_baseline.py":
        return NO_BERT.name
    return flag_of(record, "tuning")


def curve_point(record: Record) -> Tuple[str, ...]:
    """Returns the group within which a setting is selected, as a hashable key.

    It consists of task, method, level (size of adapters, number of top layers) and design.
    """
    levels = [flag_of(record, method.level) for method in (ADAPTERS, TOP_LAYERS)]
    names = ("task_name", *grids.DATA_FLAGS, *grids.SPLIT_FLAGS)
    data = [record["flags"].get(name) for name in names]
    method = (record["script"], _method_name(record), *levels)
    return (*map(str, (*method, *data)), key_of(design(record)))


def chosen_grids(records: List[Record]) -> List[Dict[str, Any]]:
    """Returns the setting that `choose_mean` selects for each `curve_point`, as grids of flags.

    Args:
      records: list of records of finished runs.
    """
    result = []
    for point_records in group_by(records, curve_point).values():
        choice = choose_mean(point_records)
        if choice:
            record = next(r for r in point_records if setting(r) == choice.setting)
            result.append({"script": record["script"], **record["flags"]})
    return result


def group_by(records: List[Record], key: Callable[[Record], Any]) -> Dict[Any, List[Record]]:
    """Returns a dict from `key(record)` to its list of records, sorted by key."""
    groups = collections.defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    ranked = sorted(groups, key=lambda name: (name is not None, name))  # None cannot be compared.
    return {name: groups[name] for name in ranked}


def choose_best(records: List[Record], split: str = VALIDATION) -> Optional[Selected]:
    """Returns the best run on the dev set over all settings and seeds, as for GLUE.

    Of runs with an equal criterion, it is the one with the best score of the task.

    Args:
      records: one task's records.
      split: the split to score.

    Returns:
      `Selected`, whose setting includes the seed; None if no record has the scores.
    """
    scored = _filter_scored(records, split)
    if not scored:
        return None
    best = max(scored, key=lambda record: (criterion_points(record), points(record, VALIDATION)))
    seeds = len(set(map(_seed_of, scored)))
    selected = _selected([best], split)
    seed = best["flags"].get("random_seed")
    return selected._replace(seeds=seeds, setting={**selected.setting, "random_seed": seed})


def choose_mean(records: List[Record], split: str = VALIDATION) -> Optional[Selected]:
    """Returns the setting with the best mean over seeds on the dev set.

    Settings are compared over the seeds that all of them have (over all seeds if they share none),
    so that an unfinished sweep has no influence. A setting is dropped first, so that it does not
    reduce the shared seeds, if another one beats it on all its seeds, or ties and has more seeds.

    Args:
      records: one task's records.
      split: the split to score.

    Returns:
      `Selected`, over all seeds of the setting; None if no record has the scores.
    """
    settings = collections.defaultdict(dict)
    for record in _filter_scored(records, split):
        settings[setting_key(record)][_seed_of(record)] = record
    if not settings:
        return None

    def validation(key: str, seeds: Iterable[int]) -> float:
        # In one order, as rounding could make each of two equal settings beat the other.
        return float(np.mean([criterion_points(settings[key][seed]) for seed in sorted(seeds)]))

    def is_beaten(key: str) -> bool:
        seeds = settings[key].keys()

        def rank(other: str) -> Tuple[float, int]:
            return validation(other, seeds), len(settings[other])

        return any(
            seeds <= settings[other].keys() and rank(other) > rank(key) for other in settings
        )

    candidates = [key for key in sorted(settings) if not is_beaten(key)]
    shared = set.intersection(*(set(settings[key]) for key in candidates))
    best = max(candidates, key=lambda key: validation(key, shared or settings[key]))
    return _selected(list(settings[best].values()), split)


def _seed_of(record: Record) -> int:
    return record["flags"].get("random_seed", _DEFAULT_SEED)


def schedule_of(record: Record) -> Dict[str, Any]:
    """Returns a record's learning rate and number of epochs, given or default; {} without BERT."""
    return record[_DERIVED].schedule if _DERIVED in record else _schedule(record)


def _schedule(record: Record) -> Dict[str, Any]:
    method = _find_method(record)
    if method == NO_BERT.name:
        return {}
    rate, epochs = config.default_schedule(method)
    default = {"learning_rate": rate, "num_train_epochs": int(epochs)}
    return {name: record["flags"].get(name, value) for name, value in default.items()}


def _filter_scored(records: List[Record], split: str) -> List[Record]:
    """Returns the records that have both the criterion and the split's score."""
    return [
        record
        for record in records
        if criterion_points(record) is not None and points(record, split) is not None
    ]


def _selected(records: List[Record], split: str) -> Selected:
    """Returns the `Selected` of one setting's records, one per seed."""
    values = [points(record, split) for record in records]
    scores = records[0]["scores"]
    trained, backbone = scores.get("trained_parameters"), scores.get("backbone_parameters")
    if _method_name(records[0]) == NO_BERT.name:
        backbone = None
    return Selected(
        score=score_name(records[0], split),
        value=float(np.mean(values)),
        sem=standard_error(values),
        seeds=len(values),
        trained=int(trained) if trained else None,
        share=trained / backbone if trained and backbone else None,
        setting=setting(records[0]),
        values=tuple(values),
        one_label=sum(predicts_one_label(record, split) for record in records),
    )


def standard_error(values: Sequence[float]) -> Optional[float]:
    """Returns the standard error of the mean, or None for fewer than two values."""
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))
