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

_EPOCHS, _SEED = "num_train_epochs", "random_seed"


def admitted_keys(trials: Any, scores: Any) -> Any:
    """Returns the keys of the trials to train, as far as their scores decide it.

    Settings of the same task, method, size and design (`selection.curve_point`) are compared by the
    mean over seeds of the criterion. Of n settings, n / 2 remain, rounded up; ties
    go to the one that the grid lists first. A failed trial loses to all others. A setting without a
    number of epochs has the default.

    Args:
      trials: ordered dict from keys to `grids.Trial`.
      scores: dict from the keys of recorded trials to their scores by the criterion; -inf for a
        failed one.

    Raises:
      UserError: a number of epochs is none; or no setting has two of them in the grid.
    """
    points = {}
    for key, trial in trials.items():
        flags = dict(trial.flags)
        whole = selection.setting_of(trial.script, flags)
        point, epochs = selection.curve_point(whole), whole.flag(_EPOCHS)
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
    admitted = {key for stages in points.values() for key in _admitted(stages, scores)}
    return [key for key in trials if key in admitted]


def _admitted(stages: Any, scores: Any) -> Any:
    """Yields the keys of one point's trials.

    Args:
      stages: number of epochs → setting → keys, one for each seed.
      scores: see `admitted_keys`.
    """
    dropped = set()
    for epochs in sorted(stages):
        kept = {name: keys for name, keys in stages[epochs].items() if name not in dropped}
        for keys in kept.values():
            yield from keys
        if not all(key in scores for keys in kept.values() for key in keys):
            return
        means = {name: sum(map(scores.get, keys)) / len(keys) for name, keys in kept.items()}
        # The sort is stable: ties keep the grid's order.
        ranked = sorted(means, key=lambda name: -means[name])
        dropped.update(ranked[math.ceil(len(ranked) / 2) :])
