"""Tests of training.py: learning, saved weights, resuming and errors."""

import dataclasses
import os
import tempfile
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.paper.baseline import training
from adapter_bert.paper.baseline.search_space import Diverged
from adapter_bert.paper.baseline.training import Baseline, Dataset, ModuleCache
from adapter_bert.tasks.text import classifier_results
from adapter_bert.tasks.text.glue import TaskInfo
from adapter_bert.training import progress
from adapter_tests.support import tiny
from adapter_tests.support.baseline import SPACE


def task(kind):
    labels = () if kind == "regression" else ("no", "yes")
    score = {"classification": "accuracy", "regression": "pearson", "multilabel": "micro_f1"}
    return TaskInfo("toy", labels, {}, kind=kind, score=score[kind])


def data(kind="classification", rows=200):
    """Returns a `Dataset` of sentences; the label says whether "not" is among the words."""
    random = np.random.RandomState(0)
    texts, labels = {}, {}
    for split in ("train", "dev", "test"):
        some = [tiny.sentence(random)[:-2] for _ in range(rows)]
        texts[split] = [
            (text + (" not" if place % 3 else ""), None) for place, text in enumerate(some)
        ]
        truth = np.array(["not" in text.split() for text, _ in texts[split]], np.int32)
        labels[split] = {
            "classification": truth,
            "regression": truth.astype(np.float32),
            "multilabel": np.stack([truth, 1 - truth], 1),
        }[kind]
    return Dataset(task(kind), texts, labels, dict.fromkeys(texts, True), 16, "toy data")


class TrainingTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        module = tiny.write_text_module(os.path.join(self.folder, "module"))
        patch = mock.patch.object(training, "EVALUATE_EVERY", 500)
        patch.start()
        self.addCleanup(patch.stop)
        self.space = dataclasses.replace(SPACE, module=module, hidden_layers=1)

    def baseline(self, some=None, seed=1, steps=40, **changes):
        some = some or data()
        model = Baseline(dataclasses.replace(self.space, **changes), some, ModuleCache(some), seed)
        patch = mock.patch.object(type(model._network_config), "num_steps", steps)
        patch.start()
        self.addCleanup(patch.stop)
        return model, some

    def test_training_learns_and_saves_best_weights(self):
        for fine_tune in (False, True):
            changes = {"use_convolution": True, "fine_tune_module": fine_tune}
            folder = os.path.join(self.folder, str(fine_tune))
            model, some = self.baseline(**changes)
            on_score = mock.Mock()
            result = model.train(folder, on_score=on_score)
            noted = [call[0] for call in on_score.call_args_list]
            self.assertEqual([samples for samples, _ in noted], [500 * i for i in range(1, 9)])
            best = max(noted, key=lambda pair: (pair[1], -pair[0]))
            self.assertEqual((result.samples, result.score), best)
            self.assertGreater(result.score, 0.9)  # The majority class has two thirds.
            saved = tf.train.latest_checkpoint(folder)
            self.assertEqual(saved, f"{folder}/model.ckpt-{result.samples // 100}")
            # The predictions are in the order of the rows and have the recorded score.
            predictions = model.predict("dev", folder)
            scores = classifier_results.scores(some.task, some.labels["dev"], predictions)
            self.assertEqual(scores["accuracy"], result.score)
            names = {name.split("/")[0] for name, _ in tf.train.list_variables(saved)}
            module = {"module"} if fine_tune else set()
            self.assertEqual(names, {"deep", "wide", "global_step"} | module)

    def test_trained_parameters_are_counted(self):
        model, _ = self.baseline(steps=5)
        # Deep: (3 + 1) * 64 and (64 + 1) * 2; wide: (3 + 1) * 2.
        self.assertEqual(model.train().trained_parameters, 4 * 64 + 65 * 2 + 4 * 2)
        model, _ = self.baseline(steps=5, fine_tune_module=True)
        table = 3 * (len(tiny.WORDS) + 1)
        self.assertEqual(model.train().trained_parameters, 4 * 64 + 65 * 2 + 4 * 2 + table)

    def test_regression_and_multilabel_tasks_are_learned(self):
        for kind in ("regression", "multilabel"):
            some = data(kind)
            model, _ = self.baseline(some, steps=100, use_convolution=True, fine_tune_module=True)
            folder = os.path.join(self.folder, kind)
            self.assertGreater(model.train(folder).score, 0.8)
            predictions = model.predict("test", folder)
            score = classifier_results.scores(some.task, some.labels["test"], predictions)
            self.assertGreater(score[some.task.score], 0.7)

    def test_labels_as_many_as_words_are_not_truncated(self):
        some = data("multilabel", rows=20)
        labels = {split: np.repeat(values, 8, axis=1) for split, values in some.labels.items()}
        names = tuple(f"label {place}" for place in range(16))
        some = some._replace(labels=labels, task=some.task._replace(labels=names))
        self.assertEqual(some.max_words, 16)
        model, _ = self.baseline(some, steps=5)
        model.train(self.folder)
        self.assertEqual(model.predict("test", self.folder)["probabilities"].shape, (20, 16))

    def test_equal_seeds_give_equal_dev_losses(self):
        scores = []
        for seed in (1, 1, 2):
            model, _ = self.baseline(seed=seed, hidden_dropout=0.5)
            folder = os.path.join(self.folder, str(len(scores)))
            model.train(folder)
            scores.append(model.predict("dev", folder)["loss"])
        self.assertAllEqual(scores[0], scores[1])
        self.assertNotAllClose(scores[0], scores[2])

    def test_training_stops_on_patience_and_callback_errors(self):
        model, _ = self.baseline(steps=1000)
        noted = []
        with mock.patch.object(Baseline, "_score", side_effect=[0.1, 0.3, 0.3, 0.2, 0.9]):
            result = model.train(patience=2, on_score=lambda *pair: noted.append(pair))
        self.assertEqual(noted, [(500, 0.1), (1000, 0.3), (1500, 0.3), (2000, 0.2)])
        self.assertEqual((result.score, result.samples), (0.3, 1000))

        def stop(samples, score):
            raise InterruptedError(samples, score)

        with self.assertRaises(InterruptedError):
            model.train(on_score=stop)

    def test_training_resumes_from_best_weights(self):
        model, some = self.baseline(steps=10)
        first = model.train(self.folder)
        model, _ = self.baseline(some, steps=20)
        noted = []
        with mock.patch.object(progress, "ProgressHook", autospec=True) as hook:
            hook.return_value = tf.train.SessionRunHook()
            result = model.train(self.folder, on_score=lambda *pair: noted.append(pair))
        self.assertEqual([samples for samples, _ in noted][0], first.samples + 500)
        self.assertGreaterEqual(result.score, first.score)

    def test_finished_training_returns_same_result_again(self):
        for fine_tune in (False, True):
            folder = os.path.join(self.folder, str(fine_tune))
            model, _ = self.baseline(steps=10, fine_tune_module=fine_tune, use_convolution=True)
            with mock.patch.object(Baseline, "_score", side_effect=[0.1, 0.2, 0.2]):
                first = model.train(folder)
                self.assertEqual((first.score, first.samples), (0.2, 1000))
                self.assertEqual(model.train(folder), first)

    def test_best_weights_before_nan_loss_are_the_result(self):
        model, _ = self.baseline(steps=20)

        def diverge(samples, score):
            if samples == 1000:
                raise tf.train.NanLossDuringTrainingError  # As Estimator's hook does.

        with mock.patch.object(Baseline, "_score", side_effect=[0.3, 0.2]):
            result = model.train(self.folder, on_score=diverge)
        self.assertEqual((result.score, result.samples), (0.3, 500))
        saved = tf.train.latest_checkpoint(self.folder)
        self.assertEqual(saved, f"{self.folder}/model.ckpt-5")

    def test_nan_loss_without_scored_weights_is_an_error(self):
        broken = data()
        model, _ = self.baseline(broken, deep_learning_rate=0.5)
        model._strings.vectors[1:] = np.nan
        with self.assertRaisesRegex(Diverged, "deep_learning_rate=0.5 or wide_learning_rate=0.05"):
            model.train()

    def test_nan_dev_loss_without_scored_weights_is_an_error(self):
        model, _ = self.baseline(steps=10)
        predicted = {"loss": np.array([0.5, np.nan])}
        with mock.patch.object(
            training.DevSetHook, "_predict", return_value=predicted
        ), self.assertRaises(Diverged):
            model.train()


class ModulesTest(tf.test.TestCase):
    def test_embeddings_are_computed_once_within_cache_limit(self):
        folder = tiny.write_text_module(os.path.join(self.get_temp_dir(), "module"))
        some = data()
        modules = ModuleCache(some)
        space = dataclasses.replace(SPACE, module=folder)
        real = training.model.compute_embeddings
        with mock.patch.object(training.model, "compute_embeddings", side_effect=real) as made:
            for changes in ({}, {"hidden_layers": 0}, {"fine_tune_module": True}):
                modules.prepare(dataclasses.replace(space, **changes))
            self.assertEqual(made.call_count, 1)
            modules.prepare(dataclasses.replace(space, lowercase=True))
            self.assertEqual(made.call_count, 2)
            modules.prepare(space)
            self.assertEqual(made.call_count, 2)
            # Above the memory limit, the cache keeps only the latest entry.
            with mock.patch.object(training, "_MAX_CACHE_BYTES", 1000):
                for lowercase in (False, True, True, False):
                    modules.prepare(dataclasses.replace(space, lowercase=lowercase))
            self.assertEqual(made.call_count, 4)
        rows, strings = modules.prepare(space)
        text = strings.texts[rows["test"]["text"][5]]
        self.assertEqual(text, some.texts["test"][5][0])
        self.assertAllClose(
            strings.vectors[rows["test"]["text"][5]],
            np.mean([tiny.word_vectors()[word] for word in text.split()], 0),
        )
