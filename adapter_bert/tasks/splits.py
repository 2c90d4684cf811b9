"""Sets dev and test rows apart from training rows: stratified by scikit-learn, or at random."""

import collections
import dataclasses
import itertools
import sys
from fractions import Fraction
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, TypeVar

import numpy as np
from absl import logging

from adapter_bert.shell.errors import UserError
from adapter_bert.shell.settings import Settings, flag
from adapter_bert.training import feature_cache
from adapter_bert.training.config import FinetuningConfig

F = TypeVar("F", bound="FoldsConfig")

STRATIFIED, RANDOM = "stratified", "random"
_SHARE = 0.1  # The default of shares.
_SEED = 0
_MAX_QUANTILES = 10
_MANY_ROWS = 100_000  # Drawing fewer takes a fraction of a second.
_FLAGS = ("split", "dev_share", "test_share")


@dataclasses.dataclass(frozen=True)
class SplitConfig(Settings):
    """The settings that set rows apart from the training rows, for splits without a file.

    Attributes, in addition to the flags:
      fold: (number from 1, number of folds) of the fold that is the dev set; None without folds.
    """

    split: Optional[str] = flag(
        None,
        "How to set dev and test rows apart from the training rows. stratified: each part has the"
        " same proportions of labels: of several labels or tags, by a row's rarest; of numbers, by"
        " quantile. Default: stratified; for the paper's further tasks, random.",
        "Task and data",
        choices=(STRATIFIED, RANDOM),
        records={"split": "the split, random if not set"},
    )
    dev_share: Optional[float] = flag(
        None,
        f"Share of the training rows to set apart as the dev set, if it has no file. Default:"
        f" {_SHARE}.",
        "Task and data",
        lower=0.0,
    )
    test_share: Optional[float] = flag(
        None,
        "Share of the training rows to set apart as the test set, if it has no file. Default:"
        f" {_SHARE}, but none of tagged sentences, or with --folds.",
        "Task and data",
        lower=0.0,
    )
    fold: Optional[Tuple[int, int]] = None

    def shares(self, missing: Iterable[str]) -> Dict[str, float]:
        """Returns the share of each of the splits dev and test that have no file.

        Raises:
          UserError: the shares leave no training rows.
        """
        given = {split: getattr(self, f"{split}_share") for split in missing}
        default = 0.0 if self.has_folds else _SHARE
        shares = {split: default if share is None else share for split, share in given.items()}
        if sum(shares.values()) >= 1:
            shown = " and ".join(f"--{split}_share={share:g}" for split, share in shares.items())
            raise UserError(f"{shown} leave no training rows; expected a sum below 1.")
        return shares

    @property
    def has_folds(self) -> bool:
        """Returns whether a cross-validation has this run; its dev set is a fold, or missing."""
        return False

    def is_stratified(self, default: str = STRATIFIED) -> bool:
        """Returns whether rows are set apart stratified; `default` is of `split`."""
        return (self.split or default) == STRATIFIED

    def split_settings(self, missing: Iterable[str], default: str = STRATIFIED) -> Dict[str, Any]:
        """Returns the settings to record; {} for the random tenths of earlier versions.

        Args:
          missing: the splits that are set apart, of dev and test.
          default: of `split`.
        """
        shares, split = self.shares(missing), self.split or default
        if not shares or split == RANDOM and set(shares.values()) == {_SHARE}:
            return {}
        of_fold = dict(zip(("fold", "folds"), self.fold or ()))
        return {
            "split": split,
            **{f"{name}_share": share for name, share in shares.items()},
            **of_fold,
        }

    def warn_of_unused(self, missing: Iterable[str]) -> None:
        """Warns of given flags without effect; `missing` is as in `split_settings`."""
        missing = list(missing)
        given = getattr(self, "given_flags", ())
        for split in ("dev", "test"):
            if f"{split}_share" in given and split not in missing:
                logging.warning("--%s_share has no effect: the %s set has a file.", split, split)
        if "split" in given and not missing:
            logging.warning("--split has no effect: no rows are set apart.")


@dataclasses.dataclass(frozen=True)
class FoldsConfig(SplitConfig, FinetuningConfig):
    """The settings of a training that may be a cross-validation.

    With --folds, they are those of the last run, on all rows; `of_fold` returns the others'.
    """

    folds: int = flag(
        0,
        "Cross-validation: train and evaluate this many times, each time with another part of the"
        " training rows as the dev set, and then train the adapter on all rows. The report has the"
        " mean and the standard deviation of each score. 0: none.",
        "Evaluation and prediction",
        lower=0,
    )

    def __post_init__(self) -> None:
        if self.folds:
            self._check_folds()
        super().__post_init__()

    def _check_folds(self) -> None:
        if self.folds == 1:
            raise UserError("--folds=1: expected 0, or at least 2.")
        if "train" not in super().stages:
            raise UserError("--folds requires --do_train: each fold is a training.")
        if self.distribution == "multi_worker":
            raise UserError("--folds does not support --distribution=multi_worker.")
        if "dev_share" in self.given_flags:
            raise UserError(
                "--dev_share has no effect with --folds: each fold is the dev set once."
            )
        for name in ("keep_best", "early_stopping_patience", "eval_every_steps", "calibrate"):
            if getattr(self, name, None) and not self.fold:
                raise UserError(
                    f"--folds trains the adapter on all rows, without the dev set that --{name}"
                    " requires."
                )

    @property
    def has_folds(self) -> bool:
        """Returns whether a cross-validation has this run; its dev set is a fold, or missing."""
        return self.folds > 0

    @property
    def stages(self) -> List[str]:
        """The stages to run; the last run of a cross-validation has no dev set."""
        stages = super().stages
        return [stage for stage in stages if stage != "eval" or self.fold or not self.folds]

    def of_fold(self: F, number: int, output_dir: str) -> F:
        """Returns the settings of the run that evaluates on a fold, counted from 1."""
        return dataclasses.replace(
            self,
            fold=(number, self.folds),
            output_dir=output_dir,
            do_train=True,
            do_eval=True,
            do_predict=False,
            save_full_checkpoint=False,
        )

    def check_dev_set(self, missing: Iterable[str], task: str) -> None:
        """Raises UserError for --folds if the dev set has a file; `missing` is as above."""
        if self.folds and "dev" not in missing:
            raise UserError(
                f"--folds takes dev rows from the training rows, but the dev set of {task} has a"
                " file; give none."
            )


def recorded(training: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the flags about rows set apart from a task adapter's `training`.

    An adapter without them had random tenths set apart, if any.

    Raises:
      UserError: a value is invalid.
    """
    settings = {"split": RANDOM, **{name: training[name] for name in _FLAGS if name in training}}
    for name, value in settings.items():
        is_share = isinstance(value, float) and 0 <= value < 1
        if not (value in (STRATIFIED, RANDOM) if name == "split" else is_share):
            raise UserError(f"training.{name} is {value!r}, which --{name} does not accept.")
    return settings


def check_trained(
    training: Dict[str, Any], trained_on: Optional[str], settings: Dict[str, Any]
) -> None:
    """Raises UserError if rows to evaluate were set apart, and may have been trained on.

    Args:
      training: the recorded settings of the training, if any.
      trained_on: digest of the training rows, if the rows to evaluate were set apart from the same
        file; None in training or if they have their own file.
      settings: the result of `SplitConfig.split_settings`.
    """
    if not trained_on or training.get("data", trained_on) == trained_on:
        return
    for name in _FLAGS:
        default = RANDOM if name == "split" else _SHARE
        before, now = training.get(name, default), settings.get(name, default)
        if before != now:
            raise UserError(
                f"--{name} was {before} in the training and is now {now}, so rows to evaluate may"
                " have been trained on; give it as in the training."
            )
    raise UserError(
        "--data_dir: dev or test rows are set apart from the training file, whose other rows are"
        " not those of the training: some may have been trained on; give files dev and test, or the"
        " earlier training file."
    )


class Keys(NamedTuple):
    """Holds what N rows are stratified by: K distinct keys, and each row's index into them.

    A key is a label, or a float for numbers, which are stratified by quantile.
    """

    values: Sequence[Any]
    codes: np.ndarray


def keys_of(keys: Iterable[Any]) -> Keys:
    """Returns the `Keys` of rows."""
    indices: Dict[Any, int] = {}
    codes = np.array([indices.setdefault(key, len(indices)) for key in keys], np.int64)
    return Keys(list(indices), codes)


def set_apart(shares: Dict[str, float], keys: Keys, is_stratified: bool) -> Dict[str, np.ndarray]:
    """Returns the indices of the rows of train, and of each split with a share, with a fixed seed.

    As in the paper's table 3, by default 80% are train and 10% each dev (rounded down) and test.

    Args:
      shares: of the rows, for one or both of dev and test.
      keys: of the rows.
      is_stratified: whether to stratify; otherwise at random.

    Returns:
      By split, int64 arrays in ascending order.
    """
    fractions = {split: Fraction(str(share)) for split, share in shares.items()}
    weights = {"train": 1 - sum(fractions.values()), **fractions}
    num_rows = len(keys.codes)
    counts, rest, weight = {}, num_rows, Fraction(1)
    for split, share in weights.items():
        counts[split] = int(rest * share / weight) if share else 0
        rest, weight = rest - counts[split], weight - share
    if not is_stratified:
        order = np.random.RandomState(_SEED).permutation(num_rows)
        ends = np.cumsum(list(counts.values()))[:-1]
        return {name: np.sort(part) for name, part in zip(counts, np.split(order, ends))}
    remaining, parts = np.arange(num_rows), {}
    for split in shares:
        remaining, parts[split] = _draw(remaining, keys, counts[split])
    return {"train": remaining, **parts}


def _draw(rows: np.ndarray, keys: Keys, count: int) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the rows without, and of, `count` stratified ones."""
    if not 0 < count < len(rows):
        return (rows, rows[:0]) if not count else (rows[:0], rows)
    from sklearn.model_selection import StratifiedShuffleSplit

    sizes = {"train_size": len(rows) - count, "test_size": count}
    groups = strata(keys._replace(codes=keys.codes[rows]), min(sizes.values()))
    splitter = StratifiedShuffleSplit(n_splits=1, random_state=_SEED, **sizes)
    ((rest, drawn),) = splitter.split(groups, groups)
    return rows[np.sort(rest)], rows[np.sort(drawn)]


def _fold_of(
    rows: np.ndarray, keys: Keys, is_stratified: bool, fold: Tuple[int, int]
) -> Dict[str, np.ndarray]:
    """Returns the rows of train and dev of a fold; see `SplitConfig.fold`."""
    from sklearn.model_selection import KFold, StratifiedKFold

    number, count = fold
    if len(rows) < count:
        raise UserError(f"--folds={count}: {len(rows)} rows are too few; expected one per fold.")
    keys = keys._replace(codes=keys.codes[rows])
    groups = strata(keys, len(rows) // count, count) if is_stratified else None
    kind = StratifiedKFold if is_stratified else KFold
    folds = kind(count, shuffle=True, random_state=_SEED).split(rows, groups)
    train, dev = list(folds)[number - 1]
    return {"train": rows[train], "dev": rows[dev]}


def strata(keys: Keys, max_groups: int, min_rows: int = 2) -> np.ndarray:
    """Returns the number of each row's group, int array [N].

    A group is a label, or a quantile of numbers; the rarest labels form one group if there are too
    many of them, or too few rows of them.

    Args:
      keys: of the rows.
      max_groups: the most groups.
      min_rows: the fewest rows of a group, if there are as many rows.
    """
    values, codes = keys
    if len(values) and isinstance(values[0], float):
        shares = np.linspace(0, 1, min(max_groups, _MAX_QUANTILES) + 1)[1:-1]
        numbers = np.asarray(values)
        quantiles = np.digitize(numbers, np.unique(np.quantile(numbers[codes], shares)))
        values, codes = range(_MAX_QUANTILES + 1), quantiles[codes]
    counts = np.bincount(codes, minlength=len(values))
    labels = sorted(
        np.flatnonzero(counts).tolist(), key=lambda code: (-counts[code], str(values[code]))
    )
    num_alone = len(labels)
    while num_alone:
        num_pooled = sum(counts[label] for label in labels[num_alone:])
        num_groups = num_alone + (num_pooled > 0)
        is_rare = counts[labels[num_alone - 1]] < min_rows or 0 < num_pooled < min_rows
        if num_groups <= max_groups and not is_rare:
            break
        num_alone -= 1
    groups = np.zeros(len(values), np.int64)
    groups[labels] = np.minimum(np.arange(len(labels)), num_alone)
    return groups[codes]


def rarest(
    labels_of_rows: Sequence[Sequence[str]], num_rows: Optional[Sequence[int]] = None
) -> List[str]:
    """Returns the rarest label of each row's labels; "" for a row without one.

    Args:
      labels_of_rows: the labels of each row.
      num_rows: how often each row occurs; once by default.
    """
    counts: Dict[str, int] = collections.defaultdict(int)
    for labels, count in zip(labels_of_rows, itertools.repeat(1) if num_rows is None else num_rows):
        for label in set(labels):
            counts[label] += count
    return [
        min(labels, key=lambda label: (counts[label], label), default="")
        for labels in labels_of_rows
    ]


class Partition:
    """Training rows, of which some are set apart.

    Args:
      config: `SplitConfig`.
      missing: the splits that are set apart, of dev and test.
      keys: of the rows; of no effect if the split is random.
      where: what logs and errors call the rows' file.
      default: of `SplitConfig.split`.
      unit: what they call the rows.
      cache_key: digest of all that the keys depend on. With it, the rows of large files are drawn
        once, and then read from the cache of `feature_cache`.

    Raises:
      UserError: the shares leave no training rows.
    """

    def __init__(
        self,
        config: SplitConfig,
        missing: Sequence[str],
        keys: Keys,
        where: str,
        default: str = STRATIFIED,
        unit: str = "rows",
        cache_key: str = "",
    ):
        self._missing, self._where, self._unit = missing, where, unit
        self._shares, self._num_rows = config.shares(missing), len(keys.codes)
        is_stratified = config.is_stratified(default)

        def compute() -> Dict[str, np.ndarray]:
            indices = set_apart(self._shares, keys, is_stratified)
            if config.fold:
                indices.update(_fold_of(indices["train"], keys, is_stratified, config.fold))
            return indices

        folder = getattr(config, "feature_folder", None)
        self._indices: Dict[str, np.ndarray]
        if cache_key and folder and self._num_rows >= _MANY_ROWS:
            parts = [cache_key, self._shares, list(keys.values), is_stratified, config.fold]
            self._indices = feature_cache.load_or_build(
                folder,
                feature_cache.key_of(parts, [sys.modules[__name__]]),
                lambda add: add(compute()),
                getattr(config, "verify_data", False),
            )
        else:
            self._indices = compute()
        counts = [(len(self._indices[split]), split) for split in missing]
        shown = [f"{count:,} as {split}" for count, split in counts if count]
        if shown:
            shown[0] = shown[0].replace(
                " as", f" of its {len(keys.codes):,} {unit} are set apart as"
            )
            how = "stratified" if is_stratified else "at random"
            logging.info("%s: %s, %s.", where, " and ".join(shown), how)

    def select(self, split: str, rows: Sequence[Any], advice: str = "{}") -> List[Any]:
        """Returns the rows of train or of a missing split, in their order; see `indices`.

        Args:
          rows: all rows.
        """
        return [rows[index] for index in self.indices(split, advice)]

    def indices(self, split: str, advice: str = "{}") -> np.ndarray:
        """Returns the indices of the rows of train or of a missing split, in their order.

        Args:
          split: "train", "dev" or "test".
          advice: what to give instead of a share; {} stands for the name of its split.

        Raises:
          UserError: there are too few rows.
        """
        selected = self._indices[split]
        name, total = self._missing[0] if split == "train" else split, f"{self._num_rows:,}"
        if not len(selected) and self._shares[name] == 0:
            raise UserError(
                f"--{name}_share=0 sets no {self._unit} apart as {name}; give"
                f" {advice.format(name)}, or another share."
            )
        if not len(selected):
            raise UserError(
                f"{self._where}: {total} {self._unit} are too few to hold some out as {name}; give"
                f" {advice.format(name)}."
            )
        return selected
