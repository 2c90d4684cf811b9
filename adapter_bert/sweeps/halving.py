"""Successive halving of a sweep: only the better half of the settings gets more epochs.

The first stage trains all settings with the grid's fewest epochs. Each next stage trains the better
half of them with the next larger number. Every run uses the whole learning rate schedule of its
number of epochs, so the records are a subset of the full sweep's. See Jamieson and Talwalkar 2016;
the resource is the number of epochs.
"""

import math
from typing import Any

from adapter_bert.shell.errors import UserError
from adapter_bert.sweeps import selection
from adapter_bert.sweeps.records import DONE

_EPOCHS, _SEED = "num_train_epochs", "random_seed"


def admitted_keys(trials: Any, records: Any) -> Any:
    """Returns the keys of the trials to train, as far as the records decide it.

    Settings of the same task, method, size and design (`selection.curve_point`) are compared by the
    mean over seeds of `selection.criterion_points`. Of n settings, n / 2 remain, rounded up; ties
    go to the one that the grid lists first. A failed trial loses to all others. A setting without a
    number of epochs has the default.

    Args:
      trials: ordered dict from keys to `grids.Trial`.
      records: dict from the keys of recorded trials to records, see `records`.

    Raises:
      UserError: a number of epochs is none; or no setting has two of them in the grid.
    """
    points = {}
    for key, trial in trials.items():
        flags = dict(trial.flags)
        run = {"script": trial.script, "flags": flags}
        point, epochs = selection.curve_point(run), selection.schedule_of(run)[_EPOCHS]
        if isinstance(epochs, (str, bool)):
            raise UserError(f"--halving: {_EPOCHS} is {epochs!r}; expected a number.")
        setting = selection.key_of(
            {name: value for name, value in flags.items() if name not in (_EPOCHS, _SEED)}
        )
        stages = points.setdefault(point, {})
        stages.setdefault(epochs, {}).setdefault(setting, []).append(key)
    if all(len(stages) < 2 for stages in points.values()):
        raise UserError(
            "--halving: each setting has one number of epochs; expected several, as in"
            " --set=num_train_epochs=3,10,20."
        )
    admitted = {key for stages in points.values() for key in _admitted(stages, records)}
    return [key for key in trials if key in admitted]


def _admitted(stages: Any, records: Any) -> Any:
    """Yields the keys of one point's trials.

    Args:
      stages: number of epochs → setting → keys, one for each seed.
      records: see `admitted_keys`.
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
        # The sort is stable: ties keep the grid's order.
        ranked = sorted(scores, key=lambda setting: -scores[setting])
        dropped.update(ranked[math.ceil(len(ranked) / 2) :])


def _mean_score(records: Any) -> Any:
    """Returns the mean over a setting's seeds, -inf if one failed, None if one is not recorded."""
    if None in records:
        return None
    if any(record["status"] != DONE for record in records):
        return -math.inf
    return sum(map(selection.criterion_points, records)) / len(records)
