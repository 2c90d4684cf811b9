"""The search for the no-BERT baseline's settings: an Optuna study over `search_space.SPACE`.

The paper searched with a single-task Neural AutoML algorithm, "similar to" Zoph and Le 2017 (arXiv
1611.01578) and Wong et al. 2018 (arXiv 1803.02780), for a week on 30 machines: on average over
10,000 models per task. This module uses Optuna instead (Akiba et al. 2019, arXiv 1907.10902). Any
number of processes and machines share a study in a storage; in a database, trials that a kill
interrupts are retried.
"""

import contextlib
import dataclasses
import importlib
import os
import posixpath
import re
import time
import urllib.parse
import warnings
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, NamedTuple, Optional, Type

from absl import logging

from adapter_bert.files import gfile, json_objects, locks
from adapter_bert.paper.baseline.search_space import (
    EVALUATE_EVERY,
    SPACE,
    Choice,
    Diverged,
    OnScore,
    TrialSettings,
)
from adapter_bert.shell import extras
from adapter_bert.shell.errors import UserError

SAMPLERS = {
    "tpe": "tree-structured Parzen estimator (Bergstra et al. 2011)",
    "random": "uniform over all settings",
    "evolutionary": "a genetic algorithm, NSGA-II (Deb et al. 2002), with one objective",
}
PRUNERS = {
    "halving": "asynchronous successive halving (Li et al. 2018, arXiv 1810.05934): at 10, 40, 160"
    " and 640 thousand samples only the best quarter of the trials so far continues",
    "median": "stops below the median of earlier trials at the same number of samples",
    "none": "never stops a trial",
}

_POPULATION = 20  # Of the genetic algorithm; Optuna's 50 is half of a search of 100 trials.
_HEARTBEAT = 15  # Seconds; a trial without one for four times as long counts as killed.
_RETRIES = 3  # Of a trial whose process was killed.
_OPENINGS = 3  # Attempts, a second apart.


class SearchSettings(NamedTuple):
    """The settings of a search.

    Attributes:
      name: of the study in its storage.
      storage: a database's URL, or the path of a journal file.
      trials: total number of trials.
      sampler: a key of `SAMPLERS`.
      pruner: a key of `PRUNERS`.
      random_seed: of the sampler; each trial adds its number.
      narrowed: name → domain that replaces the one in `SPACE`.
      conditions: further settings that all trials share, JSON values by flag.
    """

    name: str
    storage: str
    trials: int
    sampler: str
    pruner: str
    random_seed: int
    narrowed: Dict[str, Choice] = {}
    conditions: Dict[str, object] = {}

    def without_passwords(self, text: str) -> str:
        """Returns a text in which the passwords of the storage's URL are replaced."""
        passwords = re.findall(r"://[^:/@]*:(.+)@", self.storage)
        passwords += re.findall(r"(?i)(?:pass|pwd|secret|token)\w*=([^&]+)", self.storage)
        for password in passwords:
            text = text.replace(password, "***").replace(urllib.parse.unquote(password), "***")
        return text

    @property
    def domains(self) -> Dict[str, Any]:
        """The domains of all parameters by name."""
        return {**SPACE, **self.narrowed}

    @property
    def fixed(self) -> Dict[str, object]:
        """The settings that all trials share: JSON values by flag."""
        domains = {name: str(domain) for name, domain in self.domains.items()}
        return {**domains, "sampler": self.sampler, "pruner": self.pruner, **self.conditions}

    def differences(self, recorded: Dict[str, object]) -> List[str]:
        """Returns the flags in which this search differs from one with the recorded `fixed`.

        A flag missing from the record, as in older studies, counts as equal.
        """
        own = self.fixed
        either = {**own, **recorded}
        return [name for name, value in either.items() if own.get(name) != value]


class SearchTrial(NamedTuple):
    """A finished trial.

    Attributes:
      number: from 0.
      score: its best score on the dev set; None if the training diverged at once.
      pruned: whether it was stopped early.
      samples: number of samples that it trained on.
    """

    number: int
    score: Optional[float]
    pruned: bool
    samples: int
    seconds: float
    settings: TrialSettings


def load_optuna() -> Any:
    """Returns the package; raises UserError if it is not installed."""
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as error:
        raise UserError(
            "The search needs Optuna, which is not installed; run"
            f" {extras.install_command('baseline')}."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # Heartbeats are experimental, and were renamed in 4.9.
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    warnings.filterwarnings("ignore", ".*[Ff]ailed_?[Tt]rial_?[Cc]allback", FutureWarning)
    return optuna


class Search:
    """An existing or new study.

    Args:
      adopt: function from the `fixed` of an existing study to a dict of conditions that replace
        those in the settings.

    Attributes:
      settings: those given, with the adopted conditions.

    Raises:
      UserError: Optuna is missing, the storage cannot be used, or its study has other settings.
    """

    def __init__(
        self,
        settings: SearchSettings,
        adopt: Callable[[Dict[str, Any]], Dict[str, object]] = lambda recorded: {},
    ):
        self._optuna = load_optuna()
        self.settings = settings
        self._is_lost = False  # Whether another process ended this one's last trial.
        with self._explained(Exception):  # Of a damaged storage, or a missing driver.
            self._study = self._opened()
            self._check_study(adopt)

    def _opened(self) -> Any:
        """Returns the study, creating it if necessary.

        When processes start at once, one creates the database's tables, and Optuna fails in the
        others.
        """
        for _ in range(_OPENINGS - 1):
            with contextlib.suppress(*self._storage_errors()):
                return self._create_study()
            time.sleep(1)
        return self._create_study()

    def _create_study(self) -> Any:
        return self._optuna.create_study(
            storage=self._storage(),
            study_name=self.settings.name,
            direction="maximize",
            load_if_exists=True,
            sampler=self._sampler(0),
            pruner=self._pruner(),
        )

    def run(self, train: Callable[[TrialSettings, OnScore], float]) -> None:
        """Runs trials until the study has enough.

        Args:
          train: function that returns the best score. It calls on_score, which may raise to end the
            training. It raises `Diverged` if there is no score.
        """
        while len(self.trials()) < self.settings.trials:
            try:
                with self._explained():
                    self._study.optimize(lambda trial: self._objective(trial, train), n_trials=1)
            except (RuntimeError, ValueError):  # Optuna's, for a trial that has already ended.
                if not self._is_lost:
                    raise
                logging.warning("A trial missed its heartbeats; another process retries it.")

    def trials(self) -> List[SearchTrial]:
        """Returns the finished trials by number."""
        states = self._optuna.trial.TrialState
        with self._explained(Exception):
            finished = self._study.get_trials(
                deepcopy=False, states=(states.COMPLETE, states.PRUNED)
            )
            return [self._trial(trial) for trial in finished]

    def _objective(self, trial: Any, train: Callable[[TrialSettings, OnScore], float]) -> float:
        """Trains with the settings that a trial suggests; returns their score."""
        # Processes with one seed try different settings, and a resumed search the same as one that
        # was not stopped.
        self._study.sampler = self._sampler(self.settings.random_seed + trial.number)
        domains = self.settings.domains.items()
        settings = TrialSettings(
            **{name: suggested(trial, name, domain) for name, domain in domains}
        )
        scores: List[float] = []

        def on_score(samples: int, score: float) -> None:
            scores.append(score)
            trial.set_user_attr("samples", samples)
            trial.report(max(scores), samples)
            if trial.should_prune():
                logging.info("Trial %d: stopped at %.4f.", trial.number, max(scores))
                raise self._optuna.TrialPruned

        try:
            score = train(settings, on_score)
        except Diverged as error:
            logging.info("Trial %d: diverged.", trial.number)
            raise self._optuna.TrialPruned from error
        except KeyboardInterrupt:
            self._study.enqueue_trial(trial.params)
            raise
        finally:
            current = self._study.get_trials(deepcopy=False)[trial.number]
            self._is_lost = current.state.is_finished()
        best = max([score, *(t.score for t in self.trials() if t.score is not None)])
        logging.info("Trial %d: %.4f (the best so far: %.4f).", trial.number, score, best)
        return score

    def _trial(self, trial: Any) -> SearchTrial:
        scores = list(trial.intermediate_values.values())
        for name, domain in self.settings.domains.items():
            value = trial.params[name]
            is_other = isinstance(domain, Choice) and domain.find(value) is None
            if is_other or value not in domain:  # A module's graph runs.
                raise ValueError(f"its trial {trial.number} has {name} {value!r}")
        return SearchTrial(
            trial.number,
            max(scores, default=None) if trial.value is None else trial.value,
            trial.state == self._optuna.trial.TrialState.PRUNED,
            json_objects.require_type(trial.user_attrs.get("samples", 0), int),
            trial.duration.total_seconds(),
            TrialSettings(**trial.params),
        )

    def _storage(self) -> Any:
        """Returns a database with heartbeats, which detect killed trials, or a journal file."""
        storages, path_or_url = self._optuna.storages, self.settings.storage
        if not gfile.is_remote(path_or_url):
            with gfile.convert_write_errors(f"--storage={path_or_url}"):
                # Absolute, as others wait for ever for the lock of a killed process otherwise.
                backend = storages.journal.JournalFileBackend(os.path.abspath(path_or_url))
                return storages.JournalStorage(backend)
        is_sqlite = path_or_url.startswith("sqlite")
        return storages.RDBStorage(
            path_or_url,
            engine_kwargs={"connect_args": {"timeout": 60}} if is_sqlite else None,
            heartbeat_interval=_HEARTBEAT,
            grace_period=4 * _HEARTBEAT,
            failed_trial_callback=storages.RetryFailedTrialCallback(_RETRIES),
        )

    def _sampler(self, seed: int) -> Any:
        samplers, seed = self._optuna.samplers, seed % 2**32  # NumPy's seeds end there.
        return {
            "tpe": lambda: samplers.TPESampler(seed=seed),
            "random": lambda: samplers.RandomSampler(seed=seed),
            "evolutionary": lambda: samplers.NSGAIISampler(population_size=_POPULATION, seed=seed),
        }[self.settings.sampler]()

    def _pruner(self) -> Any:
        pruners = self._optuna.pruners
        return {
            "halving": lambda: pruners.SuccessiveHalvingPruner(EVALUATE_EVERY, 4),
            "median": lambda: pruners.MedianPruner(),
            "none": lambda: pruners.NopPruner(),
        }[self.settings.pruner]()

    def _check_study(self, adopt: Callable[[Dict[str, Any]], Dict[str, object]]) -> None:
        """Raises UserError if an existing study has another space or other conditions."""
        recorded = self._study.user_attrs.get("conditions")
        if recorded is None:
            self._study.set_user_attr("conditions", self.settings.fixed)
            return
        conditions = {**self.settings.conditions, **adopt(recorded)}
        self.settings = self.settings._replace(conditions=conditions)
        different = self.settings.differences(recorded)
        if different:
            raise UserError(
                f"--storage={self.settings.without_passwords(self.settings.storage)}: its study"
                f" {self.settings.name} was started with another {', '.join(different)}; give the"
                " same, or another --output_dir and --storage."
            )

    def _storage_errors(self) -> List[Type[Exception]]:
        """Returns the classes of a storage's errors."""
        errors = importlib.import_module("sqlalchemy.exc")
        return [self._optuna.exceptions.StorageInternalError, errors.SQLAlchemyError]

    @contextlib.contextmanager
    def _explained(self, *more: Type[Exception]) -> Iterator[None]:
        """Converts errors of the storage, and of the classes `more`, to a `UserError`."""
        try:
            yield
        except UserError:
            raise
        except (*self._storage_errors(), *more) as error:
            # Not from the error, whose text may have the password.
            raise UserError(
                self.settings.without_passwords(
                    f"--storage={self.settings.storage} cannot be used ({type(error).__name__}:"
                    f" {gfile.reason(error)})."
                )
            ) from None


def suggested(trial: Any, name: str, domain: Any) -> Any:
    """Returns a trial's value of a parameter, suggesting one if necessary."""
    if isinstance(domain, Choice):
        return trial.suggest_categorical(name, domain.values)
    suggest = trial.suggest_int if isinstance(domain.low, int) else trial.suggest_float
    return suggest(name, domain.low, domain.high)


def best_of(trials: List[SearchTrial]) -> SearchTrial:
    """Returns the finished trial with the best score, the first of equals.

    For a trial that was stopped early this is a lower bound: trained to the end, its best score is
    at least as high.

    Raises:
      UserError: no trial has a score.
    """
    scored = [trial for trial in trials if trial.score is not None]
    if not scored:
        raise UserError("All trials of the search diverged: raise --trials.")
    return max(scored, key=lambda trial: (trial.score, -trial.number))


class SearchLock:
    """Decides which of several processes on one output_dir trains the best settings: the last one.

    It uses a file lock, which ends with its process, even if it is killed. The state of trials in
    the storage would not do: a killed trial stays "running" for a minute in a database, and forever
    in a journal.

    Args:
      folder: output_dir, local.

    Raises, on entering:
      UserError: another process is already training the best settings.
    """

    def __init__(self, folder: str):
        self._path = posixpath.join(folder, "search.lock")

    def __enter__(self) -> "SearchLock":
        with gfile.convert_write_errors(self._path):
            self._file: BinaryIO = gfile.open_to_append(self._path)
        self.begin()
        return self

    def __exit__(self, *error: object) -> None:
        self.leave()

    def begin(self) -> None:
        """Begins a search, also after `end`."""
        locks.unlock(self._path + locks.HELD)
        if not self._lock(shared=True):
            self.leave()
            raise UserError(f"{self._path}: another process is training the best settings.")

    def leave(self) -> None:
        """Lets the others finish without this process."""
        self._file.close()
        locks.unlock(self._path + locks.HELD)

    def end(self) -> bool:
        """Ends this process's search; returns whether it is the last one."""
        return self._lock(shared=False)

    def _lock(self, shared: bool) -> bool:
        return locks.lock(self._file.fileno(), self._path + locks.HELD, shared)


def record(
    search: SearchSettings, trials: List[SearchTrial], task: str, score: str
) -> Dict[str, Any]:
    """Returns the record of a search for `search_results.read`, JSON values."""
    return {
        "task": task,
        "score": score,
        "sampler": search.sampler,
        "pruner": search.pruner,
        "trials": [
            {**trial._asdict(), "settings": dataclasses.asdict(trial.settings)} for trial in trials
        ],
    }
