"""Which of many trainings counts: settings compared on the validation set, over seeds.

A record is a dict, see `records`. Its setting is how it was trained, but for the seed. Scores
are in points here: hundredths, as the paper and SQuAD's scripts give them. Settings compare by
their task's score, or by accuracy after `by_criterion`.
"""

import collections
import dataclasses
import json
import math
from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy as np

from adapter_bert.common import configs
from adapter_bert.experiments import grids

VALIDATION, TEST = "eval", "test"  # How the names of a split's scores begin.
CRITERIA = ("accuracy", "score")
_ACCURACY = "eval_accuracy"
_TEXT_SCRIPTS = ("run_classifier.py", "run_baseline.py")  # A tagger's accuracy is that of words.

_POOLER, _INIT_SCALE = "train_pooler", "adapter_init_scale"

# Flag → what a record without it was trained with.
DEFAULTS = {
    "tuning": "adapters",
    _POOLER: False,
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
        """Returns a record's place on the curve; None for a method without one."""
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
      values: the score of each of its seeds, in points.
    """

    score: str
    value: float
    sem: Optional[float]
    seeds: Optional[int]
    trained: Optional[int]
    share: Optional[float]
    setting: Dict[str, Any]
    values: Tuple[float, ...] = ()


def score_name(record, split):
    """What a split's score of the record's task is called, as in "test_accuracy"."""
    return split + record["score"][len(VALIDATION) :]


def points(record, split):
    """Returns a record's score on a split, in points; None where there is none."""
    return _to_points(record, score_name(record, split))


def by_criterion(records, criterion):
    """Returns records whose settings compare by that criterion.

    Args:
      records: list, of finished trainings.
      criterion: one of `CRITERIA`: "score" is the task's own; "accuracy" is the validation accuracy
        as in section 3.1 of the paper, and the score of tasks that have none (STS-B, SQuAD).
    """
    if criterion == "score":
        return records
    return [
        {**record, "selected_by": _ACCURACY}
        if record["script"] in _TEXT_SCRIPTS and _to_points(record, _ACCURACY) is not None
        else record
        for record in records
    ]


def criterion_points(record):
    """Returns what a record's setting is compared by, in points; None where there is none."""
    return _to_points(record, record.get("selected_by", score_name(record, VALIDATION)))


def _to_points(record, name):
    value = record["scores"].get(name)
    if value is None or not math.isfinite(value):
        return None
    return value if record["script"] == "run_squad.py" else 100 * value


def flag_of(record, name):
    """Returns a flag's value, where it is given or its default is known; else None.

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
    """Returns a dict of flags as a text, the same for equal ones."""
    return json.dumps(flags, sort_keys=True)


def design(record):
    """What makes a record's adapters other than the default ones of their size: a dict of flags."""
    return {
        name: value
        for name, value in setting(record).items()
        if name.startswith("adapter_") or name in (_POOLER, "layer_norms")
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
    """Returns the records of a method, of whatever design."""
    return [record for record in records if _method_name(record) == method.name]


def _method_name(record):
    if record["script"] == "run_baseline.py":
        return NO_BERT.name
    return flag_of(record, "tuning")


def curve_point(record):
    """Returns what the paper's tables and figures choose a setting for, as a hashable key.

    That is a task, a method, its level (the size of adapters, the number of top layers) and design.
    """
    levels = [flag_of(record, method.level) for method in (ADAPTERS, TOP_LAYERS)]
    data = [record["flags"].get(name) for name in ("task_name", *grids.DATA_FLAGS)]
    method = (record["script"], _method_name(record), *levels)
    return (*map(str, (*method, *data)), key_of(design(record)))


def chosen_grids(records):
    """Returns the settings that `choose_mean` chooses, one a `curve_point`, as grids of flags.

    Args:
      records: list, of finished trainings.
    """
    result = []
    for point_records in group_by(records, curve_point).values():
        choice = choose_mean(point_records)
        for record in point_records if choice else ():
            if setting(record) == choice.setting:
                result.append({"script": record["script"], **record["flags"]})
                break
    return result


def find_usual_design(records, method):
    """Returns the design that a method's records have on most tasks and levels, as `design`.

    Records of other designs are studies of their own, which curves and tables of sizes leave out.
    Of several the one nearest the default is usual.
    """
    locations = collections.defaultdict(set)
    for record in filter_by_method(records, method):
        locations[key_of(design(record))].add((record["task"], method.level_of(record)))
    ranked = sorted(locations, key=lambda key: (-len(locations[key]), len(json.loads(key)), key))
    return json.loads(ranked[0]) if ranked else {}


def settings_without(record, flags):
    """Returns a record's setting without some flags, as a text."""
    return key_of({name: value for name, value in setting(record).items() if name not in flags})


def select_comparable(records, flag):
    """Returns the records along a flag whose other settings were trained with most of its values.

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
    """Returns a method's records of its usual design; the initial weights' scale may be any.

    That is a setting here, chosen like the learning rate.
    """
    matching = [(record, _without(record, _INIT_SCALE)) for record in records]
    usual_design = find_usual_design([plain for _, plain in matching], method)
    return [
        record
        for record, plain in matching
        if _method_name(record) == method.name and design(plain) == usual_design
    ]


def _without(record, flag):
    """Returns the record as if a flag had its default."""
    flags = {name: value for name, value in record["flags"].items() if name != flag}
    return {**record, "flags": flags}


def select_adapters(records, pooler=False, sizes=None):
    """Returns adapters of the usual design (see `select_usual`), with or without the pooler.

    Args:
      records: list.
      pooler: whether `--train_pooler` trained BERT's pooler with them.
      sizes: of --adapter_size; None for all.
    """
    adapters = [
        record
        for record in filter_by_method(records, ADAPTERS)
        if flag_of(record, _POOLER) == pooler
    ]
    return [
        record
        for record in select_usual(adapters, ADAPTERS)
        if sizes is None or ADAPTERS.level_of(record) in sizes
    ]


def group_by(records, key):
    """Returns a dict from `key(record)` to the list of its records, in the order of the keys."""
    groups = collections.defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    ranked = sorted(groups, key=lambda name: (name is not None, name))  # None: no such flag.
    return {name: groups[name] for name in ranked}


def choose_best(records, split=VALIDATION):
    """Returns the best training on the validation set of all settings and seeds: the paper's GLUE.

    Args:
      records: those of one task.
      split: whose score is wanted.

    Returns:
      `Selected`, whose setting has the seed; None if no record has the scores.
    """
    scored = _filter_scored(records, split)
    if not scored:
        return None
    best = max(scored, key=criterion_points)
    seeds = len({record["flags"].get("random_seed") for record in scored})
    selected = _selected([best], split)
    seed = best["flags"].get("random_seed")
    return selected._replace(seeds=seeds, setting={**selected.setting, "random_seed": seed})


def choose_mean(records, split=VALIDATION):
    """Returns the best setting by its mean over seeds on the validation set: the further tasks.

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
        return float(np.mean([criterion_points(settings[key][seed]) for seed in seeds]))

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
    """Returns the records that can be chosen, and have what is wanted of them."""
    return [
        record
        for record in records
        if criterion_points(record) is not None and points(record, split) is not None
    ]


def _selected(records, split):
    """Returns the `Selected` of one setting's records, one for each seed."""
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
    )


def is_bimodal(values):
    """Returns whether points over seeds fall into two groups, so that their mean is like none.

    That is: a gap of 10 points or more, and twice as wide as either group.
    """
    ordered = sorted(values)
    gaps = [right - left for left, right in zip(ordered, ordered[1:])]
    if not gaps:
        return False
    index = int(np.argmax(gaps))
    widest = max(ordered[index] - ordered[0], ordered[-1] - ordered[index + 1])
    return gaps[index] >= 10 and gaps[index] >= 2 * widest


def standard_error(values):
    """Returns the standard error of the mean: sample deviation / sqrt(n); None of fewer than two."""
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))
