"""Selects settings by their score on the dev set, over seeds.

`read` makes a `Run` of each record of `records`; runs that differ in their seed only share one
`Setting`. Scores are in points, i.e. multiplied by 100, like the paper's.
"""

import collections
import dataclasses
import functools
import json
import math
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from adapter_bert.model import configs, task_kinds
from adapter_bert.sweeps import grids
from adapter_bert.training import config

Record = Dict[str, Any]  # See `records`.
VALIDATION, TEST = "eval", "test"  # Prefixes of the names of scores.
CRITERIA = ("accuracy", "score")
TEXT_SCRIPTS = ("run_classifier.py", "run_baseline.py")
SIZE, LAYERS, POOLER = "adapter_size", "num_top_layers", "train_pooler"
INIT_SCALE, RATE, EPOCHS = "adapter_init_scale", "learning_rate", "num_train_epochs"

# From a flag to its value for records without it.
DEFAULTS: Dict[str, Any] = {
    "tuning": "adapters",
    POOLER: False,
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
    """A tuning method of the paper: the value of --tuning, its name in reports, and its flag.

    The flag `level` is that of a curve's points in figures; None for a single point.
    """

    name: str
    label: str
    level: Optional[str] = None


ADAPTERS = Method("adapters", "adapters", SIZE)
TOP_LAYERS = Method("top_layers", "top layers", LAYERS)
LAYER_NORM = Method("layer_norm", "LayerNorms only")
HEAD = Method("head", "head only")
FULL = Method("full", "full fine-tuning")
NO_BERT = Method("no_bert", "no-BERT baseline")


@dataclasses.dataclass(frozen=True)
class Setting:
    """A script's flags without the seed, and what follows from them.

    Attributes:
      script: the script's name.
      method: the name of its `Method`.
      flags: the recorded flags, without the seed.
      values: the flags without task, stages and default values. Learning rate and number of epochs
        are always in it. A baseline without BERT has its model instead of the search's flags.
      key: canonical text of `values`.
      design: the flags in which the adapters differ from the default adapter, except the size.
    """

    script: str
    method: str
    flags: Dict[str, Any]
    values: Dict[str, Any]
    key: str
    design: Dict[str, Any]

    def flag(self, name: Any) -> Any:
        """Returns a flag's value, its default, or else None."""
        return self.values.get(name, self.flags.get(name, DEFAULTS.get(name)))


def setting_of(script: str, flags: Dict[str, Any], model: Any = None) -> Setting:
    """Returns the setting of a script's flags; `model` is the baseline's."""
    given = {name: flags[name] for name in sorted(flags) if name not in _NON_SETTING_FLAGS}
    if script == "run_baseline.py":
        values = {name: value for name, value in given.items() if name not in _SEARCH_FLAGS}
        values.update(model)
        return Setting(script, NO_BERT.name, flags, values, key_of(values), {})
    method = flags.get("tuning", ADAPTERS.name)
    rate, epochs = config.default_schedule(method)
    norms = "all" if flags.get("adapter_layers") is None else "adapted"
    defaults = {**DEFAULTS, "layer_norms": norms}
    values = {name: v for name, v in given.items() if name not in defaults or v != defaults[name]}
    values = dict(sorted({RATE: rate, EPOCHS: int(epochs), **values}.items()))
    if method == ADAPTERS.name:
        values = {SIZE: flags.get(SIZE, DEFAULTS[SIZE]), **values}
    design = {
        name: value
        for name, value in values.items()
        if name != SIZE and (name.startswith("adapter_") or name in (POOLER, "layer_norms"))
    }
    return Setting(script, method, flags, values, key_of(values), design)


def key_of(flags: Dict[str, Any]) -> str:
    """Returns a canonical text of a dict of flags."""
    return json.dumps(flags, sort_keys=True)


@functools.lru_cache(maxsize=None)
def key_without(key: str, *names: Any) -> str:
    """Returns a setting's canonical text without some of its flags."""
    return key_of({name: v for name, v in json.loads(key).items() if name not in names})


class Run(NamedTuple):
    """A finished training.

    Attributes:
      score: the name of the score to report, without its split, such as "accuracy".
      criterion: the name of the score by which settings are compared on the dev set.
      scores: all scores by name, such as "eval_accuracy", and the numbers of parameters.
    """

    setting: Setting
    seed: int
    task: str
    score: str
    criterion: str
    scores: Dict[str, Any]

    def points(self, split: str, score: Optional[str] = None) -> Any:
        """Returns a score on a split in points, or None if it is missing or not finite."""
        value = self.scores.get(f"{split}_{score or self.score}")
        if value is None or not math.isfinite(value):
            return None
        return value if self.setting.script == "run_squad.py" else 100 * value

    @property
    def criterion_points(self) -> Any:
        """The value by which its setting is compared, in points, or None."""
        return self.points(VALIDATION, self.criterion)

    @property
    def has_accuracy(self) -> bool:
        """Whether a classifier gave it an accuracy; a tagger's accuracy is per word."""
        is_text = self.setting.script in TEXT_SCRIPTS
        return is_text and self.points(VALIDATION, "accuracy") is not None

    @property
    def is_full(self) -> bool:
        """Returns whether it trains all of BERT, by full fine-tuning or as all top layers.

        The embeddings, some 10% of BERT, train with all top layers only. The pooler, below 1%, is
        not used for SQuAD.
        """
        if self.setting.method != TOP_LAYERS.name:
            return self.setting.method == FULL.name
        total = self.scores.get("total_parameters", 0)
        return self.scores.get("trained_parameters", 0) > 0.98 * total > 0

    def predicts_one_label(self, split: str = VALIDATION) -> bool:
        """Returns whether it predicts only one label for a split; older records do not say so."""
        if f"{split}_{task_kinds.PREDICTED_LABELS}" not in self.scores:
            return False
        kind = grids.scripts().get(self.setting.script)
        reads_tokens = kind is not None and kind.reads_tokens
        return task_kinds.predicts_one_label(self.scores, split, reads_tokens)


def read(records: Iterable[Record], criterion: str = "score") -> List[Run]:
    """Returns the runs of records of finished trainings.

    Args:
      records: dicts, see `records`.
      criterion: one of `CRITERIA`: "score" is the task's score; "accuracy" is the validation
        accuracy as in section 3.1 of the paper, or the score of tasks without one (STS-B, SQuAD).
    """
    settings: Dict[str, Setting] = {}
    runs = []
    for record in records:
        script, flags, model = record["script"], dict(record["flags"]), record.get("settings")
        seed = flags.pop("random_seed", config.FinetuningConfig.random_seed)
        key = repr((script, flags, model))
        if key not in settings:
            settings[key] = setting_of(script, flags, model)
        score = record["score"][len(VALIDATION) + 1 :]
        run = Run(settings[key], seed, record["task"], score, score, record["scores"])
        by_accuracy = criterion == "accuracy" and run.has_accuracy
        runs.append(run._replace(criterion="accuracy") if by_accuracy else run)
    return runs


def by_accuracy(runs: Iterable[Run]) -> List[Run]:
    """Returns the runs with accuracy as their score, where a classifier has it."""
    return [run._replace(score="accuracy") if run.has_accuracy else run for run in runs]


class Cell(NamedTuple):
    """A task's score at its selected setting.

    Attributes:
      method, level: the label of a report's row, and a size, a learning rate, ... or None.
      score: its name with the split, such as "test_accuracy".
      points, sem: the score, a mean over seeds or the best, and its standard error, if any.
      seeds: the number of seeds of the mean, or from which the best one was selected.
      share: trained parameters as a share of BERT's, if known.
      one_label: the number of the score's runs that predict only one label.
      runs: those from which the setting was selected.
    """

    method: str
    level: Any
    task: str
    score: str
    points: float
    sem: Optional[float] = None
    seeds: int = 1
    trained_parameters: Optional[int] = None
    setting: Dict[str, Any] = {}
    share: Optional[float] = None
    one_label: int = 0
    runs: Sequence[Run] = ()

    @property
    def freedom(self) -> int:
        """The degrees of freedom of the standard error."""
        return self.seeds - 1


def choose_best(runs: List[Run], split: str = VALIDATION) -> Optional[Cell]:
    """Returns a task's best run on the dev set over all settings and seeds, as for GLUE.

    Of runs with an equal criterion, it is the one with the best score of the task. The cell's
    setting includes the seed. Without scores on the split, returns None.
    """
    scored = _scored(runs, split)
    if not scored:
        return None
    best = max(scored, key=lambda run: (run.criterion_points, run.points(VALIDATION)))
    cell = _cell([best], split, runs)
    setting = {**cell.setting, "random_seed": best.seed}
    return cell._replace(setting=setting, seeds=len({run.seed for run in scored}))


def choose_mean(runs: List[Run], split: str = VALIDATION) -> Optional[Cell]:
    """Returns a task's setting with the best mean over seeds on the dev set.

    Settings are compared over the seeds that all of them have (over all seeds if they share none),
    so that an unfinished sweep has no influence. A setting is dropped first, so that it does not
    reduce the shared seeds, if another one beats it on all its seeds, or ties and has more seeds.
    The cell's score is over all seeds of the setting. Without scores on the split, returns None.
    """
    settings: Dict[str, Dict[int, Run]] = collections.defaultdict(dict)
    for run in _scored(runs, split):
        settings[run.setting.key][run.seed] = run
    points = {
        key: {seed: run.criterion_points for seed, run in settings[key].items()}
        for key in sorted(settings)
    }

    def rank(key: str, seeds: Iterable[int]) -> Tuple[float, int]:
        # Rounded, so that of two equal settings one does not win.
        return round(sum(points[key][seed] for seed in seeds), 9), len(points[key])

    def is_beaten(key: str) -> bool:
        own, seeds = rank(key, points[key]), points[key].keys()
        return any(seeds <= points[other].keys() and rank(other, seeds) > own for other in points)

    unbeaten = [key for key in points if not is_beaten(key)]
    if not unbeaten:
        return None
    shared = set.intersection(*(set(points[key]) for key in unbeaten))
    best = max(unbeaten, key=lambda key: np.mean([points[key][s] for s in shared or points[key]]))
    return _cell(list(settings[best].values()), split, runs)


def _scored(runs: List[Run], split: str) -> List[Run]:
    """Returns the runs that have both the criterion and the split's score."""
    return [
        run for run in runs if run.criterion_points is not None and run.points(split) is not None
    ]


def _cell(chosen: List[Run], split: str, runs: List[Run]) -> Cell:
    """Returns the `Cell` of one setting's runs, one per seed, chosen from all `runs`."""
    first, values = chosen[0], [run.points(split) for run in chosen]
    trained, backbone = map(first.scores.get, ("trained_parameters", "backbone_parameters"))
    return Cell(
        first.setting.method,
        None,
        first.task,
        f"{split}_{first.score}",
        *mean_over_seeds(values),
        int(trained) if trained else None,
        first.setting.values,
        trained / backbone if trained and backbone else None,
        sum(run.predicts_one_label(split) for run in chosen),
        runs,
    )


def mean_over_seeds(values: Sequence[float]) -> Tuple[float, Optional[float], int]:
    """Returns the mean, its standard error (None for a single value) and the number of values."""
    count = len(values)
    error = float(np.std(values, ddof=1) / math.sqrt(count)) if count > 1 else None
    return float(np.mean(values)), error, count


def curve_point(setting: Setting) -> Tuple[str, ...]:
    """Returns the group within which a setting is selected, as a hashable key.

    It consists of task, method, level (size of adapters, number of top layers) and design.
    """
    names = (SIZE, LAYERS, "task_name", *grids.DATA_FLAGS, *grids.SPLIT_FLAGS)
    values = setting.script, setting.method, *map(setting.flag, names)
    return (*map(str, values), key_of(setting.design))


def chosen_grids(records: List[Record], criterion: str) -> List[Dict[str, Any]]:
    """Returns the settings that `choose_mean` selects for each `curve_point`, as grids of flags."""
    pairs = list(zip(read(records, criterion), records))
    result = []
    for group in group_by(pairs, lambda pair: curve_point(pair[0].setting)).values():
        cell = choose_mean([run for run, _ in group])
        if cell:
            record = next(r for run, r in group if run.setting.values == cell.setting)
            result.append({"script": record["script"], **record["flags"]})
    return result


def group_by(items: Iterable[Any], key: Callable[[Any], Any]) -> Dict[Any, List[Any]]:
    """Returns a dict from `key(item)` to its list of items, sorted by key."""
    groups = collections.defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    ranked = sorted(groups, key=lambda name: (name is not None, name))  # None cannot be compared.
    return {name: groups[name] for name in ranked}
