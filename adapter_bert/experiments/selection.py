"""Which of many trainings counts: settings compared by their validation score, over seeds.

A record is a dict, see `records`. Its setting is how it was trained, but for the seed. Scores
are in points here: hundredths, as the paper and SQuAD's scripts give them.
"""

import collections
import dataclasses
import json
import math
from typing import Any, Dict, NamedTuple, Optional

import numpy as np

from adapter_bert.common import configs

VALIDATION, TEST = "eval", "test"  # How the names of a split's scores begin.

# Flag → what a record without it was trained with.
DEFAULTS = {
    "tuning": "adapters",
    "train_pooler": False,
    "layer_norms": None,
    **{f"adapter_{f.name}": f.default for f in dataclasses.fields(configs.AdapterConfig)},
}

# What is asked of a training beside how it is made.
_NON_SETTING_FLAGS = ("random_seed", "task_name", "do_train", "do_eval", "do_predict")


class Method(NamedTuple):
    """A tuning method of the paper, as a line or a mark in its figures.

    Attributes:
      name: --tuning; of the baseline, which has no BERT, the name that is used here alone.
      label: as readers know it.
      level: the flag along which the method's curve runs; None for a single point.
    """

    name: str
    label: str
    level: Optional[str] = None

    def level_of(self, record):
        """A record's place on the curve; None for a method without one."""
        return flag_of(record, self.level)


ADAPTERS = Method("adapters", "adapters", "adapter_size")
TOP_LAYERS = Method("top_layers", "top layers", "num_top_layers")
LAYER_NORM = Method("layer_norm", "LayerNorms only")
HEAD = Method("head", "head only")
FULL = Method("full", "full fine-tuning")
NO_BERT = Method("no_bert", "no-BERT baseline")


class Selected(NamedTuple):
    """The setting that was chosen from some records of a task, and what it scores.

    Attributes:
      score: its name, with the split's, as in "test_accuracy".
      value: the score in points, a mean over seeds where `choose_mean` chose.
      sem: its standard error of the mean; None for a single seed.
      seeds: how many there are, or how many the best was chosen among; None where none are known.
      trained: how many parameters were; None where the records do not say.
      share: these as a share of the parameters that BERT has; None without BERT.
      setting: flag → value, what was chosen.
    """

    score: str
    value: float
    sem: Optional[float]
    seeds: Optional[int]
    trained: Optional[int]
    share: Optional[float]
    setting: Dict[str, Any]


def score_name(record, split):
    """What a split's score of the record's task is called, as in "test_accuracy"."""
    return split + record["score"][len(VALIDATION) :]


def points(record, split):
    """A record's score on a split, in points; None where there is none."""
    value = record["scores"].get(score_name(record, split))
    if value is None or not math.isfinite(value):
        return None
    return value if record["script"] == "run_squad.py" else 100 * value


def flag_of(record, name):
    """A flag's value, where it is given or its default is known; else None.

    --layer_norms is None too where it says what it is without being given: "all", or "adapted"
    beside --adapter_layers.
    """
    value = record["flags"].get(name, DEFAULTS.get(name))
    if name == "layer_norms":
        implied = "all" if flag_of(record, "adapter_layers") is None else "adapted"
        return None if value == implied else value
    return value


def setting(record):
    """How a record was trained, seed and adapters' defaults aside: a dict of flags."""
    values = {name: flag_of(record, name) for name in sorted(record["flags"])}
    nondefault = {
        name: value
        for name, value in values.items()
        if name not in _NON_SETTING_FLAGS and not (name in DEFAULTS and value == DEFAULTS[name])
    }
    method_flags = (ADAPTERS.level,) if _method_name(record) == ADAPTERS.name else ()
    return {**{name: flag_of(record, name) for name in method_flags}, **nondefault}


def key_of(flags):
    """A dict of flags as a text, the same for equal ones."""
    return json.dumps(flags, sort_keys=True)


def design(record):
    """What makes a record's adapters other than the default ones of their size: a dict of flags."""
    return {
        name: value
        for name, value in setting(record).items()
        if name.startswith("adapter_") or name in ("train_pooler", "layer_norms")
        if name != ADAPTERS.level
    }


def design_difference(record, usual_design):
    """How a record's design differs from another one: a dict of flags, with the record's values."""
    record_design = design(record)
    names = [
        name
        for name in sorted({*record_design, *usual_design})
        if record_design.get(name) != usual_design.get(name)
    ]
    return {name: flag_of(record, name) for name in names}


def filter_by_method(records, method):
    """The records of a method, of whatever design."""
    return [record for record in records if _method_name(record) == method.name]


def _method_name(record):
    if record["script"] == "run_baseline.py":
        return NO_BERT.name
    return flag_of(record, "tuning")


def find_usual_design(records, method):
    """The design that a method's records have on most tasks and levels, as `design`.

    Records of other designs are studies of their own, which curves and tables of sizes leave out.
    Of several the one nearest the default is usual.
    """
    locations = collections.defaultdict(set)
    for record in filter_by_method(records, method):
        locations[key_of(design(record))].add((record["task"], method.level_of(record)))
    ranked = sorted(locations, key=lambda key: (-len(locations[key]), len(json.loads(key)), key))
    return json.loads(ranked[0]) if ranked else {}


def settings_without(record, flags):
    """A record's setting without some flags, as a text."""
    return key_of({name: value for name, value in setting(record).items() if name not in flags})


def select_comparable(records, flag):
    """The records along a flag whose other settings were trained with most of its values.

    That is with more than half as many as any; a setting that was tried with a few of the values,
    in another study, would make these the better ones. Tasks are apart.
    """
    result = []
    for task_records in group_by(records, lambda record: record["task"]).values():
        curves = group_by(task_records, lambda record: settings_without(record, {flag})).values()
        counts = [len({flag_of(record, flag) for record in curve}) for curve in curves]
        for curve, count in zip(curves, counts):
            result += curve if 2 * count > max(counts) else []
    return result


def select_usual(records, method):
    """The records of a method that are of its usual design."""
    usual_design = find_usual_design(records, method)
    return [
        record for record in filter_by_method(records, method) if design(record) == usual_design
    ]


def group_by(records, key):
    """A dict from `key(record)` to the list of its records, in the order of the keys."""
    groups = collections.defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    ranked = sorted(groups, key=lambda name: (name is not None, name))  # None: no such flag.
    return {name: groups[name] for name in ranked}


def choose_best(records, split=VALIDATION):
    """The training with the best validation score of all settings and seeds: GLUE in the paper.

    Args:
      records: those of one task.
      split: whose score is wanted.

    Returns:
      `Selected`, whose setting has the seed; None if no record has the scores.
    """
    scored = _filter_scored(records, split)
    if not scored:
        return None
    best = max(scored, key=lambda record: points(record, VALIDATION))
    seeds = len({record["flags"].get("random_seed") for record in scored})
    selected = _selected([best], split)
    seed = best["flags"].get("random_seed")
    return selected._replace(seeds=seeds, setting={**selected.setting, "random_seed": seed})


def choose_mean(records, split=VALIDATION):
    """The setting with the best mean validation score over its seeds: the paper's further tasks.

    Settings are compared over the seeds that all of them have, so that neither an unfinished sweep
    nor more seeds for some settings decide; over all their seeds if they share none. One that is
    beaten on all of its seeds by a setting that has them too is out before, and narrows nothing.

    Args:
      records: those of one task.
      split: whose score is wanted.

    Returns:
      `Selected` over all seeds of the setting; None if no record has the scores.
    """
    settings = collections.defaultdict(dict)
    for record in _filter_scored(records, split):
        settings[key_of(setting(record))][record["flags"].get("random_seed")] = record
    if not settings:
        return None

    def validation(key, seeds):
        return float(np.mean([points(settings[key][seed], VALIDATION) for seed in seeds]))

    def is_beaten(key):
        seeds_of_key = settings[key].keys()
        return any(
            seeds_of_key <= settings[other].keys()
            and validation(other, seeds_of_key) > validation(key, seeds_of_key)
            for other in settings
        )

    candidates = [key for key in sorted(settings) if not is_beaten(key)]
    shared = set.intersection(*(set(settings[key]) for key in candidates))
    best = max(candidates, key=lambda key: validation(key, shared or settings[key]))
    return _selected(list(settings[best].values()), split)


def _filter_scored(records, split):
    """The records that can be chosen, and have what is wanted of them."""
    return [
        record
        for record in records
        if points(record, VALIDATION) is not None and points(record, split) is not None
    ]


def _selected(records, split):
    """The `Selected` of one setting's records, one for each seed."""
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
    )


def standard_error(values):
    """The standard error of the mean: sample deviation / sqrt(n); None of fewer than two."""
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))
