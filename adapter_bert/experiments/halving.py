"""Successive halving of a sweep: the better half of the settings goes on to more epochs.

Every training is one of the grid's own, with the whole schedule of its number of epochs: the first
stage trains all settings with the grid's fewest epochs, and each next one the better half of them
with the next larger number. What a sweep by halving records is a part of what the full sweep does.
Jamieson and Talwalkar 2016, with numbers of epochs as the resource.
"""

import collections
import math

from adapter_bert.common.errors import UserError
from adapter_bert.experiments import selection
from adapter_bert.experiments.records import DONE

_EPOCHS, _SEED = "num_train_epochs", "random_seed"


def admitted_keys(trials, records):
    """Returns the keys of the trials that are trained, as far as records decide it.

    Settings compare with those of the same task, method, size and design
    (`selection.curve_point`), by the mean over seeds of `selection.criterion_points`. Of n settings
    n / 2 go on, rounded up; of equal ones those that the grid lists first. A failed trial loses to
    all others. A setting that lacks a number of epochs skips that stage.

    Args:
      trials: ordered dict from keys to `grids.Trial`.
      records: dict from the keys of recorded trials to records, see `records`.

    Raises:
      UserError: no setting is in the grid with two numbers of epochs.
    """
    points = collections.OrderedDict()
    for key, trial in trials.items():
        flags = dict(trial.flags)
        point = selection.curve_point({"script": trial.script, "flags": flags})
        epochs = flags.get(_EPOCHS, 0)
        setting = selection.key_of(
            {name: value for name, value in flags.items() if name not in (_EPOCHS, _SEED)}
        )
        stages = points.setdefault(point, {})
        stages.setdefault(epochs, collections.OrderedDict()).setdefault(setting, []).append(key)
    if all(len(stages) < 2 for stages in points.values()):
        raise UserError(
            "--halving: found one number of epochs for each setting; expected several, as in"
            " --set=num_train_epochs=3,10,20."
        )
    admitted = {key for stages in points.values() for key in _admitted(stages, records)}
    return [key for key in trials if key in admitted]


def _admitted(stages, records):
    """Yields the keys of one point's trials.

    Args:
      stages: number of epochs → setting → keys, one for each seed.
      records: as of `admitted_keys`.
    """
    dropped = set()
    for epochs in sorted(stages):
        scores = {}
        for setting, keys in stages[epochs].items():
            if setting not in dropped:
                yield from keys
                scores[setting] = _mean_score([records.get(key) for key in keys])
        if None in scores.values():
            return
        ranked = sorted(
            scores, key=lambda setting: -scores[setting]
        )  # Equal ones keep their order.
        dropped.update(ranked[math.ceil(len(ranked) / 2) :])


def _mean_score(records):
    """Returns the mean of a setting's seeds, -inf if one failed; None before all are recorded."""
    if None in records:
        return None
    if any(record["status"] != DONE for record in records):
        return -math.inf
    return sum(map(selection.criterion_points, records)) / len(records)
