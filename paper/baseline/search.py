"""The search for the no-BERT baseline's settings: an Optuna study over `search_space.SPACE`.

The paper searched with single-task Neural AutoML, a controller trained by reinforcement learning
(Wong et al. 2018, arXiv 1803.02780): 10,000 models per task, on 30 machines for a week. This module
uses Optuna instead (Akiba et al. 2019, arXiv 1907.10902). Any number of processes and machines
share a study in a storage; in a database, trials that a kill interrupts are retried.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import posixpath
import re
import time
import urllib.parse
import warnings
from typing import Callable, Dict, List, NamedTuple, Optional

from absl import logging

from adapter_bert.files import gfile, json_objects, locks
from adapter_bert.shell.errors import UserError
from paper.baseline.search_space import EVALUATE_EVERY, SPACE, Choice, Diverged, Settings

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
_LOCK = "search.lock"
_PRESENT = "search.present"
_JOURNAL_START = b'{"op_code":'
# What Optuna raises for damaged or forged content.
_DAMAGE_ERRORS = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class SearchSettings(NamedTuple):
    """The settings of a search.

    Attributes:
      name: of the study in its storage.
      storage: a database's URL, or the path of a journal file.
      trials: total number of trials.
      sampler: a key of `SAMPLERS`.
      pruner: a key of `PRUNERS`.
      random_seed: of the sampler, if only one process searches.
      narrowed: name → domain that replaces the one in `SPACE`.
      conditions: further settings that all trials share, a dict of JSON values by flag.
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
    def shown_storage(self):
        """The storage as errors name it, without passwords."""
        return self.without_passwords(self.storage)

    def without_passwords(self, text):
        """Returns a text in which the passwords of the storage's URL are replaced."""
        passwords = re.findall(r"://[^:/@]*:(.+)@", self.storage)
        passwords += re.findall(r"(?i)(?:pass|pwd|secret|token)\w*=([^&]+)", self.storage)
        for password in passwords:
            text = text.replace(password, "***").replace(urllib.parse.unquote(password), "***")
        return text

    @property
    def domains(self):
        """The domains of all parameters by name."""
        return {**SPACE, **self.narrowed}

    @property
    def fixed(self):
        """The settings that all trials share: a dict of JSON values by flag."""
        domains = {name: str(domain) for name, domain in self.domains.items()}
        return {**domains, "sampler": self.sampler, "pruner": self.pruner, **self.conditions}

    def differences(self, recorded):
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
      seconds: float.
      settings: `Settings`.
    """

    number: int
    score: Optional[float]
    pruned: bool
    samples: int
    seconds: float
    settings: Settings


def load_optuna():
    """Returns the package; raises UserError if it is not installed."""
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as error:
        raise UserError(
            "The search needs Optuna, which is not installed; run"
            " `pip install -r requirements-baseline.txt`."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # Heartbeats are experimental, and were renamed in 4.9.
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    warnings.filterwarnings("ignore", ".*[Ff]ailed_?[Tt]rial_?[Cc]allback", FutureWarning)
    return optuna


class Search:
    """An existing or new study.

    Args:
      settings: `SearchSettings`.
      alone: bool; whether no other process searches in this storage.
      adopt: function from the `fixed` of an existing study to a dict of conditions that replace
        those in the settings.

    Attributes:
      settings: `SearchSettings` with the adopted conditions.

    Raises:
      UserError: Optuna is missing, the storage cannot be used, or its study has other settings.
    """

    def __init__(self, settings, alone=True, adopt=lambda recorded: {}):
        self._optuna = load_optuna()
        self.settings = settings
        self._is_lost = False  # Whether another process ended this one's last trial.
        self._failure = None  # The error of a training, not of the storage.
        with self._explained(ImportError, *_DAMAGE_ERRORS):  # A driver may be missing.
            self._study = self._opened()
            # Two processes with one seed would try the same; NumPy's seeds end at 2**32.
            seed = (settings.random_seed + len(self._study.trials)) % 2**32 if alone else None
            self._study.sampler = self._sampler(seed)
            self._check_study(adopt)

    def _opened(self):
        """Returns the study, creating it if necessary.

        When processes start at once, one creates the database's tables, and Optuna fails in the
        others.
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
            except (*self._storage_errors(), ImportError):
                remaining -= 1
                if not remaining:
                    raise
            time.sleep(1)

    def run(self, train: Callable):
        """Runs trials until the study has enough.

        Args:
          train: function (`Settings`, on_score) → best score. It calls on_score(samples, score),
            which may raise to end the training. It raises `Diverged` if there is no score.
        """
        while len(self.trials()) < self.settings.trials:
            try:
                with self._explained():
                    self._study.optimize(lambda trial: self._objective(trial, train), n_trials=1)
            except _DAMAGE_ERRORS as error:
                if error is self._failure or isinstance(error, UserError):
                    raise
                if not self._is_lost:
                    with self._explained(*_DAMAGE_ERRORS):
                        raise
                # Optuna's error for a trial that has already ended.
                self._is_lost = False
                logging.warning("A trial missed its heartbeats; another process retries it.")

    def trials(self) -> List[SearchTrial]:
        """Returns the finished trials by number."""
        states = self._optuna.trial.TrialState
        with self._explained(*_DAMAGE_ERRORS):
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
        """Trains with the settings that a trial suggests; returns their score."""
        domains = self.settings.domains.items()
        settings = Settings(**{name: suggested(trial, name, domain) for name, domain in domains})
        scores = []

        def on_score(samples, score):
            scores.append(score)
            with self._explained(*_DAMAGE_ERRORS):
                trial.set_user_attr("samples", samples)
                trial.report(max(scores), samples)
                is_pruned = trial.should_prune()
            if is_pruned:
                raise self._optuna.TrialPruned

        try:
            score = train(settings, on_score)
        except Diverged as error:
            logging.info("Trial %d: diverged.", trial.number)
            raise self._optuna.TrialPruned from error
        except _DAMAGE_ERRORS as error:
            self._failure = error
            raise
        except self._optuna.TrialPruned:
            logging.info("Trial %d: stopped at %.4f.", trial.number, max(scores))
            raise
        best = max([score, *(t.score for t in self.trials() if t.score is not None)])
        logging.info("Trial %d: %.4f (the best so far: %.4f).", trial.number, score, best)
        return score

    def _trial(self, trial):
        scores = list(trial.intermediate_values.values())
        for name, domain in self.settings.domains.items():
            value = trial.params[name]
            is_other = isinstance(domain, Choice) and domain.find(value) is None
            if is_other or value not in domain:
                raise ValueError(f"its trial {trial.number} has {name} {value!r}")
        return SearchTrial(
            trial.number,
            max(scores, default=None) if trial.value is None else trial.value,
            trial.state == self._optuna.trial.TrialState.PRUNED,
            json_objects.require_type(trial.user_attrs.get("samples", 0), int),
            trial.duration.total_seconds(),
            Settings(**trial.params),
        )

    def _storage(self):
        """Returns a database with heartbeats, which detect killed trials, or a journal file."""
        storages, path_or_url = self._optuna.storages, self.settings.storage
        if not gfile.is_remote(path_or_url):
            journal = storages.journal
            with gfile.convert_write_errors(f"--storage={path_or_url}"):
                # Not the default lock, a link: if its path is relative, others wait for ever when a
                # process is killed while it holds the lock.
                lock = journal.JournalFileOpenLock(path_or_url)
                _repair_journal(path_or_url, lock)
                try:
                    return storages.JournalStorage(journal.JournalFileBackend(path_or_url, lock))
                except _DAMAGE_ERRORS as error:
                    raise UserError(
                        f"--storage={path_or_url}: the search's journal is damaged"
                        f" ({type(error).__name__}: {error}); restore it, or give another"
                        " --storage."
                    ) from error
        is_sqlite = path_or_url.startswith("sqlite")
        return storages.RDBStorage(
            path_or_url,
            engine_kwargs={"connect_args": {"timeout": 60}} if is_sqlite else None,
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
                f"--storage={self.settings.shown_storage}: its study {self.settings.name} was"
                f" started with another {', '.join(different)}; give the same, or another"
                " --output_dir and --storage."
            )

    def _storage_errors(self):
        """Returns the classes of a storage's errors."""
        errors = importlib.import_module("sqlalchemy.exc")
        return self._optuna.exceptions.StorageInternalError, errors.SQLAlchemyError

    @contextlib.contextmanager
    def _explained(self, *more):
        """Converts errors of the storage, and of the classes `more`, to a `UserError`."""
        try:
            yield
        except UserError:
            raise
        except (*self._storage_errors(), *more) as error:
            reason = self.settings.without_passwords(str(error).strip().split("\n")[0])
            if isinstance(error, _DAMAGE_ERRORS):
                reason = f"{type(error).__name__}: {reason}"
            # Not from the error, whose text may have the password.
            raise UserError(
                f"--storage={self.settings.shown_storage} cannot be used ({reason})."
            ) from None


def suggested(trial, name, domain):
    """Returns a trial's value of a parameter, suggesting one if necessary."""
    if isinstance(domain, Choice):
        return trial.suggest_categorical(name, domain.values)
    suggest = trial.suggest_int if isinstance(domain.low, int) else trial.suggest_float
    return suggest(name, domain.low, domain.high)


def _repair_journal(path, lock):
    """Removes a journal's truncated last line, to which Optuna would append.

    Args:
      path: of the file, which need not exist.
      lock: its lock, which each process holds while it writes.

    Raises:
      UserError: the file is not a journal, or a line is damaged.
    """
    if not os.path.exists(path):
        return
    with open(path, "rb") as reader:
        content = reader.read()
    if not _JOURNAL_START.startswith(content[: len(_JOURNAL_START)]):
        raise UserError(f"--storage={path}: expected a search's journal, found another file.")
    if not content.endswith(b"\n"):
        lock.acquire()
        try:
            with open(path, "rb+") as journal:
                content = journal.read()
                journal.truncate(content.rfind(b"\n") + 1)
        finally:
            lock.release()
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            json.loads(line)
        except ValueError as error:
            raise UserError(
                f"--storage={path}, line {number}: expected JSON of a search's journal; restore the"
                " file, or give another --storage."
            ) from error


def best_of(trials):
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

    It uses file locks, which end with their process, even if it is killed. The state of trials in
    the storage would not do: a killed trial stays "running" for a minute in a database, and forever
    in a journal.

    Args:
      folder: output_dir, local.

    Attributes:
      alone: whether no other process was present on entering, not even one that called `leave`.

    Raises, on entering:
      UserError: another process is already training the best settings.
    """

    def __init__(self, folder):
        self._folder = folder
        self.alone = None

    def __enter__(self):
        self._present, self._lock = self._opened(_PRESENT), self._opened(_LOCK)
        self.alone = _try_lock(self._present)
        while not _try_lock(self._present, shared=True):
            other = locks.holder(self._present.name + locks.HELD)
            if other:  # Without file locks, one process at a time.
                raise UserError(f"--output_dir={self._folder}: another process is there{other}.")
            time.sleep(0.1)  # A process that enters holds it exclusively for an instant.
        if not _try_lock(self._lock, shared=True):
            self.__exit__()
            raise UserError(f"{self._lock.name}: another process is training the best settings.")
        return self

    def _opened(self, name):
        path = posixpath.join(self._folder, name)
        with gfile.convert_write_errors(path):
            return gfile.open_to_append(path)

    def __exit__(self, *error):
        for file in (self._lock, self._present):
            file.close()
            locks.unlock(file.name + locks.HELD)

    def leave(self):
        """Lets the others finish without this process, which is still present."""
        self._lock.close()

    def end(self):
        """Ends this process's part; returns whether it is the last one."""
        return _try_lock(self._lock)


def _try_lock(file, shared=False):
    return locks.lock(file.fileno(), file.name + locks.HELD, shared)


def record(search, trials, task, score):
    """Returns the record of a search for `search_results.read`, a dict of JSON values.

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
