"""The search for the no-BERT baseline's settings: an Optuna study over `baseline_space.SPACE`.

The paper searched by single-task Neural AutoML, a controller trained by reinforcement learning
(Wong et al. 2018, arXiv 1803.02780), over 10,000 models a task on 30 machines for a week. Optuna
(Akiba et al. 2019, arXiv 1907.10902) takes its place. A study lies in a storage that any number of
processes and machines share; what a kill interrupts is tried again.
"""

import contextlib
import dataclasses
import importlib
import os
import posixpath
import time
import warnings
from typing import Callable, Dict, List, NamedTuple, Optional

from absl import logging

from adapter_bert.baseline.search_space import EVALUATE_EVERY, SPACE, Choice, Settings
from adapter_bert.common import files
from adapter_bert.common.errors import UserError

SAMPLERS = {
    "tpe": "tree-structured Parzen estimator (Bergstra et al. 2011)",
    "random": "all settings alike",
    "evolutionary": "a genetic algorithm, NSGA-II (Deb et al. 2002), with one objective",
}
PRUNERS = {
    "halving": "asynchronous successive halving (Li et al. 2018, arXiv 1810.05934): at 10, 40, 160"
    " and 640 thousand samples only the best quarter of the trials that came so far goes on",
    "median": "below the median of the earlier trials at the same number of samples",
    "none": "no trial is stopped",
}

_POPULATION = 20  # Of the genetic algorithm: Optuna's 50 is half of a search of 100 trials.
_HEARTBEAT = 15  # Seconds; after four times as many without one a trial counts as killed.
_RETRIES = 3  # Of a trial whose process was killed.
_OPENINGS = 3  # Tries, a second apart.
_LOCK = "search.lock"
_PRESENT = "search.present"
_JOURNAL_START = b'{"op_code":'


class SearchSettings(NamedTuple):
    """A search.

    Attributes:
      name: of the study in its storage.
      storage: a database's URL, or the path of a journal file.
      trials: how many there are in the end.
      sampler: a key of `SAMPLERS`.
      pruner: a key of `PRUNERS`.
      random_seed: of the sampler, where one process alone searches.
      narrowed: name → domain, what takes the place of `SPACE`'s.
      conditions: what else must be the same for all trials, a dict of JSON values by flag.
    """

    name: str
    storage: str
    trials: int
    sampler: str
    pruner: str
    random_seed: int
    narrowed: Dict[str, Choice] = {}
    conditions: Dict[str, object] = {}

    @property
    def domains(self):
        """Name → domain of each parameter."""
        return {**SPACE, **self.narrowed}

    @property
    def fixed(self):
        """What is the same for all trials: a dict of JSON values by flag."""
        domains = {name: str(domain) for name, domain in self.domains.items()}
        return {**domains, "sampler": self.sampler, "pruner": self.pruner, **self.conditions}

    def differences(self, recorded):
        """The flags of which a search whose `fixed` was recorded had others, a list.

        What it does not say, as one that is older than a flag, it had as this one.
        """
        own = self.fixed
        either = {**own, **recorded}
        return [name for name, value in either.items() if own.get(name) != value]


class SearchTrial(NamedTuple):
    """What a finished trial came to.

    Attributes:
      number: from 0.
      score: its best on the dev set; None where the training diverged.
      pruned: whether it was stopped as hopeless.
      samples: how many it was trained on.
      seconds: float.
      settings: `Settings`.
    """

    number: int
    score: Optional[float]
    pruned: bool
    samples: int
    seconds: float
    settings: Settings


class Diverged(Exception):
    """The training of a trial ended in no number before it had a score."""


def load_optuna():
    """The package; UserError if it is not installed."""
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as error:
        raise UserError(
            "The search needs Optuna, which is not installed:"
            " pip install -r requirements-baseline.txt."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # Heartbeats are experimental, and have other names since 4.9.
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    warnings.filterwarnings("ignore", ".*[Ff]ailed_?[Tt]rial_?[Cc]allback", FutureWarning)
    return optuna


class Search:
    """A study, found or begun.

    Args:
      settings: `SearchSettings`.
      alone: bool, no other process searches in this storage.
      adopt: function (`fixed` of a study that was begun earlier) → the conditions that take the
        place of those in the settings, a dict.

    Attributes:
      settings: `SearchSettings`, with the conditions that were adopted.

    Raises:
      UserError: Optuna is missing, the storage cannot be used, or holds a study of other things.
    """

    def __init__(self, settings, alone=True, adopt=lambda recorded: {}):
        self._optuna = load_optuna()
        self.settings = settings
        self._is_lost = False  # Whether another process has ended the last trial of this one.
        with self._explained():
            self._study = self._opened()
            # Two processes of one seed would try the same; NumPy takes none from 2**32 on.
            seed = (settings.random_seed + len(self._study.trials)) % 2**32 if alone else None
            self._study.sampler = self._sampler(seed)
            self._check_study(adopt)

    def _opened(self):
        """Returns the study.

        Of processes that begin at once, one creates the database's tables; Optuna fails in others.
        """
        remaining = _OPENINGS
        while True:
            try:
                return self._optuna.create_study(
                    storage=self._storage(),
                    study_name=self.settings.name,
                    direction="maximize",
                    load_if_exists=True,
                    pruner=self._pruner(),
                )
            except self._storage_errors():
                remaining -= 1
                if not remaining:
                    raise
            time.sleep(1)

    def run(self, train: Callable):
        """Tries settings until there are enough.

        Args:
          train: function (`Settings`, on_score) → best score, where on_score(samples, score) may
            raise, which ends the training. It raises `Diverged` where there is no score.
        """
        while len(self.trials()) < self.settings.trials:
            try:
                with self._explained():
                    self._study.optimize(lambda trial: self._objective(trial, train), n_trials=1)
            except (ValueError, RuntimeError):  # Optuna's, of a trial that has ended.
                if not self._is_lost:
                    raise
                self._is_lost = False
                logging.warning("A trial had no heartbeat, and was left to another process.")

    def trials(self) -> List[SearchTrial]:
        """Returns the finished ones, in the order of their numbers."""
        states = self._optuna.trial.TrialState
        with self._explained():
            finished = self._study.get_trials(
                deepcopy=False, states=(states.COMPLETE, states.PRUNED)
            )
        return [self._trial(trial) for trial in finished]

    def _objective(self, trial, train):
        try:
            return self._scored(trial, train)
        except KeyboardInterrupt:
            self._study.enqueue_trial(trial.params)
            raise
        finally:
            current = self._study.get_trials(deepcopy=False)[trial.number]
            self._is_lost = current.state.is_finished()

    def _scored(self, trial, train):
        """Trains with settings that a trial proposes; returns their score."""
        domains = self.settings.domains.items()
        settings = Settings(**{name: suggested(trial, name, domain) for name, domain in domains})
        scores = []

        def on_score(samples, score):
            scores.append(score)
            trial.set_user_attr("samples", samples)
            trial.report(max(scores), samples)
            if trial.should_prune():
                raise self._optuna.TrialPruned

        try:
            score = train(settings, on_score)
        except Diverged as error:
            logging.info("Trial %d: diverged.", trial.number)
            raise self._optuna.TrialPruned from error
        except self._optuna.TrialPruned:
            logging.info("Trial %d: stopped at %.4f.", trial.number, max(scores))
            raise
        best = max([score, *(t.score for t in self.trials() if t.score is not None)])
        logging.info("Trial %d: %.4f (the best so far: %.4f).", trial.number, score, best)
        return score

    def _trial(self, trial):
        scores = list(trial.intermediate_values.values())
        return SearchTrial(
            trial.number,
            max(scores, default=None) if trial.value is None else trial.value,
            trial.state == self._optuna.trial.TrialState.PRUNED,
            trial.user_attrs.get("samples", 0),
            trial.duration.total_seconds(),
            Settings(**trial.params),
        )

    def _storage(self):
        """A database with heartbeats, by which killed trials are known; or a journal file."""
        storages, path_or_url = self._optuna.storages, self.settings.storage
        if not files.is_remote(path_or_url):
            with files.convert_write_errors(f"--storage={path_or_url}"):
                _check_journal(path_or_url)
                return storages.JournalStorage(storages.journal.JournalFileBackend(path_or_url))
        return storages.RDBStorage(
            path_or_url,
            engine_kwargs={"connect_args": {"timeout": 60}} if "sqlite" in path_or_url else None,
            heartbeat_interval=_HEARTBEAT,
            grace_period=4 * _HEARTBEAT,
            failed_trial_callback=storages.RetryFailedTrialCallback(_RETRIES),
        )

    def _sampler(self, seed):
        samplers = self._optuna.samplers
        return {
            "tpe": lambda: samplers.TPESampler(seed=seed),
            "random": lambda: samplers.RandomSampler(seed=seed),
            "evolutionary": lambda: samplers.NSGAIISampler(population_size=_POPULATION, seed=seed),
        }[self.settings.sampler]()

    def _pruner(self):
        pruners = self._optuna.pruners
        return {
            "halving": lambda: pruners.SuccessiveHalvingPruner(EVALUATE_EVERY, 4),
            "median": lambda: pruners.MedianPruner(),
            "none": lambda: pruners.NopPruner(),
        }[self.settings.pruner]()

    def _check_study(self, adopt):
        """Raises UserError if the study that was found has another space or other conditions."""
        recorded = self._study.user_attrs.get("conditions")
        if recorded is None:
            self._study.set_user_attr("conditions", self.settings.fixed)
            return
        conditions = {**self.settings.conditions, **adopt(recorded)}
        self.settings = self.settings._replace(conditions=conditions)
        different = self.settings.differences(recorded)
        if different:
            raise UserError(
                f"--storage={self.settings.storage}: its study {self.settings.name} is one with"
                f" another {', '.join(different)}; give the same, or another --output_dir and"
                " --storage."
            )

    def _storage_errors(self):
        """Returns the classes of a storage's errors; one is a missing driver's."""
        errors = importlib.import_module("sqlalchemy.exc")
        return self._optuna.exceptions.StorageInternalError, errors.SQLAlchemyError, ImportError

    @contextlib.contextmanager
    def _explained(self):
        """While entered, an error of the storage is a `UserError`."""
        try:
            yield
        except self._storage_errors() as error:
            reason = str(error).strip().split("\n")[0]
            raise UserError(
                f"--storage={self.settings.storage} cannot be used ({reason})."
            ) from error


def suggested(trial, name, domain):
    """The value of a parameter that an Optuna trial has, or gets."""
    if isinstance(domain, Choice):
        return trial.suggest_categorical(name, domain.values)
    suggest = trial.suggest_int if isinstance(domain.low, int) else trial.suggest_float
    return suggest(name, domain.low, domain.high)


def _check_journal(path):
    """Raises UserError for a file that is no journal: Optuna would append to it."""
    if os.path.exists(path):
        with open(path, "rb") as reader:
            is_journal = _JOURNAL_START.startswith(reader.read(len(_JOURNAL_START)))
        if not is_journal:
            raise UserError(f"--storage={path}: expected a search's journal, found another file.")


def best_of(trials):
    """The finished trial with the best score, the first of equals.

    Of one that was stopped as hopeless, too, this is the score of weights that it had, which its
    training, made again to the end, comes to at least.

    Raises:
      UserError: there is none.
    """
    scored = [trial for trial in trials if trial.score is not None]
    if not scored:
        raise UserError("All trials of the search diverged: raise --trials.")
    return max(scored, key=lambda trial: (trial.score, -trial.number))


class SearchLock:
    """Which of several processes on one output_dir trains the best settings: the last to end.

    The locks are the processes': a killed one has none. A trial's state in the storage is no
    substitute: a killed one's is "running" for a minute in a database, forever in a journal.

    Args:
      folder: output_dir, local.

    Attributes:
      alone: whether no other process was there when this one entered, not even one that left.

    Raises, when it is entered:
      UserError: another process trains the best settings already.
    """

    def __init__(self, folder):
        self._folder = folder
        self.alone = None

    def __enter__(self):
        self._present, self._lock = self._opened(_PRESENT), self._opened(_LOCK)
        self.alone = files.lock(self._present.fileno())
        while not files.lock(self._present.fileno(), shared=True):
            time.sleep(0.1)  # Another process that enters holds it alone for an instant.
        if not files.lock(self._lock.fileno(), shared=True):
            self.__exit__()
            raise UserError(
                f"{self._lock.name}: another process is training the best settings there."
            )
        return self

    def _opened(self, name):
        path = posixpath.join(self._folder, name)
        with files.convert_write_errors(path):
            return open(path, "ab")

    def __exit__(self, *error):
        self._lock.close()
        self._present.close()

    def leave(self):
        """Has the others not wait for this process, which is still present."""
        self._lock.close()

    def end(self):
        """Ends this process's part; returns whether all others have ended theirs."""
        return files.lock(self._lock.fileno())


def record(search, trials, task, score):
    """What is kept of a search, for `studies.read_search`: a dict of JSON values.

    Args:
      search: `SearchSettings`.
      trials: list of `SearchTrial`.
      task: name.
      score: name of the score.
    """
    return {
        "task": task,
        "score": score,
        "sampler": search.sampler,
        "pruner": search.pruner,
        "trials": [
            {**trial._asdict(), "settings": dataclasses.asdict(trial.settings)} for trial in trials
        ],
    }
