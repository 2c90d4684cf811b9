"""Tests of search.py: the search space, and shared and interrupted searches."""

import contextlib
import fcntl
import hashlib
import inspect
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from unittest import mock

import optuna
import tensorflow.compat.v1 as tf
from absl.testing import parameterized

from adapter_bert.files import paths
from adapter_bert.paper.baseline import search as baseline_search
from adapter_bert.paper.baseline.search import Search, SearchLock, SearchSettings
from adapter_bert.paper.baseline.search_space import SPACE, Choice, Diverged, TrialSettings
from adapter_bert.shell.errors import UserError

FOLDER = paths.PROJECT

# A process that takes part in a search. Each trial prints a line, reads a line, and ends.
_PROCESS = """
import sys
sys.path.insert(0, {folder!r})
from adapter_bert.paper.baseline import search as baseline_search
search = baseline_search.Search(baseline_search.SearchSettings(*{settings!r}))
def train(settings, on_score):
    print("begin", flush=True)
    sys.stdin.readline()
    on_score(100000, settings.conv_dropout)
    return settings.conv_dropout
search.run(train)
"""


def dropout(settings, on_score):
    """Stands in for a training: ends at once, with one of the settings as its score."""
    on_score(10_000, settings.conv_dropout / 2)
    on_score(20_000, settings.conv_dropout)
    return settings.conv_dropout


class SearchTestCase(parameterized.TestCase, tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())

    def settings(self, trials=3, **changes):
        journal = os.path.join(self.folder, "search.journal")
        settings = SearchSettings("toy", journal, trials, "random", "none", random_seed=1)
        return settings._replace(**changes)

    def sqlite(self):
        return "sqlite:///" + os.path.join(self.folder, "search.db")

    def run_search(self, train=dropout, **changes):
        search = Search(self.settings(**changes))
        search.run(train)
        return search.trials()


class SpaceTest(tf.test.TestCase):
    def test_suggestions_cover_exactly_the_search_space(self):
        for name, domain in SPACE.items():
            if isinstance(domain, Choice):
                values, others = domain.values, ["other", -1]
            else:
                values, others = [domain.low, domain.high], []
            for value in values:
                trial = optuna.trial.FixedTrial({name: value})
                found = baseline_search.suggested(trial, name, domain)
                self.assertEqual(found, value)
                self.assertIs(type(found), type(value))
                (distribution,) = trial.distributions.values()
                if isinstance(domain, Choice):
                    self.assertEqual(distribution.choices, domain.values)
                else:
                    bounds = distribution.low, distribution.high
                    self.assertEqual(bounds, (domain.low, domain.high))
            for value in others:
                with self.assertRaises(ValueError):
                    baseline_search.suggested(optuna.trial.FixedTrial({name: value}), name, domain)


class SearchTest(SearchTestCase):
    def test_search_runs_the_requested_number_of_trials(self):
        seen = []

        def train(settings, on_score):
            seen.append(settings)
            return dropout(settings, on_score)

        trials = self.run_search(train, trials=4)
        self.assertEqual([trial.settings for trial in trials], seen)
        self.assertEqual([trial.number for trial in trials], [0, 1, 2, 3])
        self.assertEqual([trial.score for trial in trials], [s.conv_dropout for s in seen])
        self.assertEqual({trial.samples for trial in trials}, {20_000})
        self.assertLen(set(seen), 4)
        # The study has enough trials, so that no further one runs.
        self.assertEqual(self.run_search(train, trials=4), trials)
        largest = 2**32 - 1  # The flag's maximum; each trial adds its number.
        self.assertEqual(self.run_search(train, trials=6, random_seed=largest)[:4], trials)
        self.assertLen(seen, 6)

    @parameterized.parameters(*baseline_search.SAMPLERS)
    def test_resumed_search_tries_the_same_as_an_uninterrupted_one(self, sampler):
        tried = []
        with mock.patch.object(baseline_search, "_POPULATION", 4):
            for name, counts in (("resumed", (3, 13)), ("uninterrupted", (13,))):
                storage = os.path.join(self.folder, name)
                for count in counts:
                    trials = self.run_search(trials=count, sampler=sampler, storage=storage)
                tried.append([trial.settings for trial in trials])
        self.assertEqual(*tried)
        self.assertLen(set(tried[0]), 13)

    def test_narrowed_space_limits_the_settings(self):
        narrowed = {"module": Choice(("a", "b")), "conv_dropout": Choice((0.25,))}
        trials = self.run_search(trials=24, narrowed=narrowed)
        self.assertEqual({trial.settings.module for trial in trials}, {"a", "b"})
        self.assertEqual({trial.settings.conv_dropout for trial in trials}, {0.25})

    def test_pruners_stop_poor_trials_early(self):
        reached = []

        def train(settings, on_score):
            quality = 1 - len(reached) / 10  # Each is worse than the one before.
            reached.append(0)
            for samples in range(10_000, 100_000, 10_000):
                reached[-1] = samples
                on_score(samples, quality)
            return quality

        for pruner, stops in (("halving", 10_000), ("median", 10_000), ("none", 90_000)):
            del reached[:]
            storage = os.path.join(self.folder, pruner)
            trials = self.run_search(train, trials=8, pruner=pruner, storage=storage)
            self.assertEqual(reached[0], 90_000)
            self.assertEqual(reached[-1], stops)
            self.assertEqual(trials[-1].pruned, pruner != "none")
            self.assertEqual([trial.samples for trial in trials], reached)
            self.assertAlmostEqual(trials[-1].score, 0.3)

    def test_diverged_trials_count_but_have_no_score(self):
        def train(settings, on_score):
            raise Diverged("The loss is NaN.")

        trials = self.run_search(train, trials=2)
        self.assertEqual([(trial.score, trial.pruned) for trial in trials], [(None, True)] * 2)
        with self.assertRaisesRegex(UserError, "All trials of the search diverged"):
            baseline_search.best_of(trials)
        trials = self.run_search(trials=4)
        self.assertEqual(baseline_search.best_of(trials).number in (2, 3), True)

    def test_best_trial_is_first_of_equal_scores_even_if_pruned(self):
        def trial(number, score, pruned=False):
            return baseline_search.SearchTrial(number, score, pruned, 1, 1.0, None)

        some = [trial(0, 0.5), trial(1, 0.8, True), trial(2, 0.8), trial(3, None, True)]
        self.assertEqual(baseline_search.best_of(some).number, 1)

    def test_record_contains_task_sampler_and_settings(self):
        trials = self.run_search(trials=2)
        record = baseline_search.record(self.settings(), trials, "airline", "eval_accuracy")
        record = json.loads(json.dumps(record))
        self.assertEqual((record["task"], record["sampler"]), ("airline", "random"))
        self.assertEqual(TrialSettings(**record["trials"][1]["settings"]), trials[1].settings)


class RefusedTest(SearchTestCase):
    def assert_refused(self, pattern, **changes):
        with self.assertRaisesRegex(UserError, pattern):
            self.run_search(**changes)

    def test_study_with_other_conditions_is_refused(self):
        self.run_search(conditions={"max_words": 128})
        self.assert_refused("another max_words; give the same", conditions={"max_words": 64})
        self.assert_refused(
            "another hidden_layers",
            conditions={"max_words": 128},
            narrowed={"hidden_layers": Choice((0,))},
        )
        self.assert_refused("another sampler", conditions={"max_words": 128}, sampler="tpe")
        self.assert_refused("another pruner", conditions={"max_words": 128}, pruner="median")

    def test_conditions_are_those_of_earlier_versions(self):
        # A study that an earlier version began has them; others could not resume it.
        fixed = self.settings(conditions={"max_words": 128}).fixed
        digest = hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()
        self.assertStartsWith(digest, "de209afbfa43c74d")

    def test_flags_missing_in_older_records_count_as_equal(self):
        settings = self.settings(conditions={"max_words": 128, "precision": "float32"})
        recorded = {name: value for name, value in settings.fixed.items() if name != "sampler"}
        self.assertEqual(settings.differences(recorded), [])
        recorded.update(max_words=64, precision=None, unknown=1)
        self.assertEqual(settings.differences(recorded), ["max_words", "precision", "unknown"])

    def test_unusable_storages_are_refused(self):
        for storage in (
            "sqlite:////no/such/folder/search.db",
            "nodatabase://host/name",
            "postgresql://host/name",
            "/no/such/folder/search.journal",
        ):
            self.assert_refused(
                f"^--storage={storage} cannot be (used|written) \\(", storage=storage
            )

    def test_error_of_a_training_is_not_blamed_on_the_storage(self):
        for kind in (ImportError, ValueError, RuntimeError):
            with self.assertRaisesRegex(kind, "^scipy"):
                self.run_search(mock.Mock(side_effect=kind("scipy")))

    def test_damaged_journal_is_refused(self):
        self.run_search(trials=2)
        path = self.settings().storage
        with open(path, "rb") as reader:
            lines = reader.read().splitlines(keepends=True)
        for line in (b'{"op_code":4,"stu\n', b"{}\n", b"[]\n", b'{"op_code":99}\n', b"\xff\xfe\n"):
            with open(path, "wb") as writer:
                writer.writelines([*lines[:2], line, *lines[3:]])
            self.assert_refused(f"^--storage={path} cannot be used .[A-Z]")

    @parameterized.parameters(
        "trial_params SET distribution_json = '{}'",
        "trial_params SET param_name = 'other' WHERE param_id = 1",
        "trials SET datetime_complete = NULL",
        "trial_user_attributes SET value_json = '[]'",
        "study_user_attributes SET value_json = '7'",
        "alembic_version SET version_num = 'x'",
    )
    def test_forged_database_is_refused(self, change):
        storage = self.sqlite()
        self.run_search(trials=2, storage=storage)
        with contextlib.closing(sqlite3.connect(storage[len("sqlite:///") :])) as database:
            database.execute("UPDATE " + change)
            database.commit()
        self.assert_refused(f"^--storage={storage}( cannot be used|: its study)", storage=storage)

    def test_setting_outside_the_space_is_refused(self):
        """A forged trial could name another module, whose graph would run."""
        storage = self.sqlite()
        self.run_search(trials=1, storage=storage)
        with contextlib.closing(sqlite3.connect(storage[len("sqlite:///") :])) as database:
            database.execute(
                "UPDATE trial_params SET param_value = 0, distribution_json ="
                """ '{"name": "CategoricalDistribution", "attributes": {"choices": ["/evil"]}}'"""
                " WHERE param_name = 'module'"
            )
            database.commit()
        self.assert_refused("ValueError: its trial 0 has module '/evil'", storage=storage)

    @parameterized.parameters(
        ("postgresql://me:hunter2@host/name", "postgresql://me:***@host/name"),
        ("nodatabase://me:hunter2@host/name", "nodatabase://me:***@host/name"),
        ("mysql+pymysql://me:hun%74er2@host:1/a?x=1", "mysql+pymysql://me:***@host:1/a?x=1"),
        ("postgresql://:hunter2/@@host:port", "postgresql://:***@host:port"),
        ("postgresql://host/name?user=me&password=hunter2", "postgresql://host/name?user=me&passw"),
    )
    def test_passwords_of_a_storage_are_not_shown(self, storage, shown):
        with self.assertRaises(UserError) as caught:
            self.run_search(storage=storage)
        self.assertStartsWith(str(caught.exception), f"--storage={shown}")
        self.assertNotRegex(str(caught.exception), "hunter2|hun%74er2")

    def test_missing_optuna_is_reported(self):
        with mock.patch.dict(sys.modules, {"optuna": None}):
            self.assert_refused("^The search needs Optuna, .* `pip install -r [a-z-]*.txt`.$")


class SharedTest(SearchTestCase):
    def start(self, settings):
        code = _PROCESS.format(folder=FOLDER, settings=tuple(settings))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", code], **pipes)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stdin.close)
        return process

    def test_shared_search_survives_a_killed_process(self):
        settings = self.settings(trials=12, storage=self.sqlite())
        killed, other = (self.start(settings) for _ in range(2))
        for process in (killed, other):
            process.stdout.readline()
        os.write(killed.stdin.fileno(), b"\n")
        killed.stdout.readline()
        killed.send_signal(signal.SIGKILL)  # During its second trial.
        killed.wait()
        kept = Search(settings).trials()
        self.assertLen(kept, 1)
        study = optuna.load_study(study_name="toy", storage=settings.storage)
        running = [t for t in study.trials if t.state == optuna.trial.TrialState.RUNNING]
        self.assertLen(running, 2)
        again = self.start(settings)
        again.stdout.readline()
        for process in (again, other):
            process.stdin.close()
        for process in (again, other):
            process.stdout.read()
            self.assertEqual(process.wait(), 0)
        trials = Search(settings).trials()
        self.assertEqual([t for t in trials if t.number in {k.number for k in kept}], kept)
        self.assertBetween(len(trials), 12, 13)  # A 13th may start while the 12th is running.
        self.assertLen({trial.settings for trial in trials}, len(trials))

    def test_lock_of_a_killed_process_ends_at_a_relative_path(self):
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.get_temp_dir())
        os.makedirs("folder")
        lock = optuna.storages.journal.JournalFileSymlinkLock
        if "grace_period" not in inspect.signature(lock).parameters:
            self.skipTest("this Optuna breaks no locks")
        path = os.path.abspath("folder/journal")
        optuna.storages.journal.JournalFileBackend(path)
        lock(path).acquire()  # As a killed process leaves it.
        quick = mock.patch.object(lock.__init__, "__defaults__", (3,))
        with quick:
            self.assertLen(self.run_search(trials=2, storage="folder/journal"), 2)

    def test_trial_of_killed_process_is_retried(self):
        settings = self.settings(trials=3, storage=self.sqlite())
        with mock.patch.object(baseline_search, "_HEARTBEAT", 1):
            search = Search(settings)
            killed = search._study.ask()
            params = {
                name: baseline_search.suggested(killed, name, domain)
                for name, domain in SPACE.items()
            }
            search._study._storage.record_heartbeat(killed._trial_id)
            deadline = time.time() + 60
            while not search._study._storage._get_stale_trial_ids(search._study._study_id):
                self.assertLess(time.time(), deadline)
                time.sleep(0.2)
            search.run(dropout)
        self.assertIn(TrialSettings(**params), [trial.settings for trial in search.trials()])

    def test_trial_taken_over_by_another_process_is_dropped(self):
        for storage in (None, self.sqlite()):
            search = Search(self.settings(**({"storage": storage} if storage else {})))
            calls = []

            def train(settings, on_score, search=search, calls=calls):
                calls.append(settings)
                if len(calls) == 1:  # As if this process had slept and counted as killed.
                    running = search._study.get_trials()[-1]
                    failed = optuna.trial.TrialState.FAIL
                    search._study._storage.set_trial_state_values(running._trial_id, failed)
                return dropout(settings, on_score)

            search.run(train)
            self.assertEqual([t.settings for t in search.trials()], calls[1:])

    def test_trial_interrupted_by_ctrl_c_is_retried_first(self):
        interrupted = []

        def train(settings, on_score):
            interrupted.append(settings)
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            self.run_search(train)
        self.assertEqual(self.run_search()[0].settings, interrupted[0])

    def test_only_the_last_process_trains_the_best_settings(self):
        with SearchLock(self.folder) as first, SearchLock(self.folder) as second:
            self.assertFalse(first.end())
            self.assertTrue(second.end())
            with self.assertRaisesRegex(UserError, "another process is training"), SearchLock(
                self.folder
            ):
                pass
            second.begin()
            with SearchLock(self.folder) as third:
                third.leave()
                self.assertTrue(second.end())

    def test_one_process_trains_the_best_settings_without_file_locks(self):
        error = OSError(38, "not implemented")
        with mock.patch.object(fcntl, "flock", side_effect=error), SearchLock(self.folder) as lock:
            self.assertTrue(lock.end())
            other = mock.patch.object(os, "getpid", return_value=os.getpid() + 1)
            with other, self.assertRaisesRegex(UserError, "another process is training"):
                SearchLock(self.folder).__enter__()
            lock.begin()
            self.assertTrue(lock.end())
