"""Tests of training a tiny BERT: which variables change, resuming, seeds, progress."""

import contextlib
import dataclasses
import functools
import json
import os
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl.testing import parameterized

import modeling
import run_classifier
import run_squad
import tuning
from adapter_bert.formats import checkpoints
from adapter_bert.ops import devices
from adapter_bert.shell import tf_estimator
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.squad import squad_task
from adapter_bert.training import (
    distribution,
    estimator,
    input_pipeline,
    model_fn,
    rows,
    stored_predictions,
)
from adapter_tests.support import own_models, tiny
from adapter_tests.support.checkpoint_cases import all_tensors, trained_tensors
from adapter_tests.support.command_lines import classifier_config, parsed
from adapter_tests.support.refusals import RefusalTestCase

LOSS = "--learning_rate=0.1 is too high"
MEMORY = "Out of memory.* smaller batch size"


class TrainingTestCase(tf.test.TestCase):
    SIZES = {"num_hidden_layers": 1}  # Of the BERT.

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bert = tiny.write_bert(os.path.join(tempfile.mkdtemp(), "bert"), **cls.SIZES)
        cls.pretrained = all_tensors(cls.bert_prefix())

    @classmethod
    def bert_prefix(cls):
        return os.path.join(cls.bert, "bert_model.ckpt")

    @classmethod
    def runner(
        cls,
        output_dir,
        method="adapters",
        num_layers=None,
        steps=4,
        save=1000,
        batch_size=5,
        kind="classification",
        **model,
    ):
        adapter_fn = modeling.AdapterConfig(size=3) if method == "adapters" else None
        settings = {
            "bert_config": tiny.config(**cls.SIZES),
            "init_checkpoint": cls.bert_prefix(),
            "adapter_fn": adapter_fn,
            "tuning": tuning.Tuning(method, num_layers),
            "learning_rate": 0.1,
            "num_train_steps": steps,
            "num_warmup_steps": 0,
            "random_seed": 7,
        }
        run = estimator.RunSettings(
            output_dir, train_batch_size=batch_size, save_checkpoints_steps=save
        )
        settings.update(model)
        model_settings = model_fn.ModelSettings(**settings)
        return estimator.Estimator(model_settings, run, own_models.builder(kind, 2))

    def start(self, *method, **options):
        """Returns a checkpoint of the initial weights; its only step warms up, with rate 0."""
        folder = self.new_dir()
        self.runner(folder, *method, steps=1, num_warmup_steps=1, **options).train(tiny.arrays())
        return self.full_checkpoint(folder)

    def full_checkpoint(self, folder):
        """Writes the pretrained BERT with a run's trained tensors; returns its prefix."""
        prefix = os.path.join(self.new_dir(), "full.ckpt")
        trained = trained_tensors(tf.train.latest_checkpoint(folder))
        checkpoints.write(prefix, {**self.pretrained, **trained})
        return prefix

    def new_dir(self):
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    def assertSameWeights(self, a, b):
        a, b = all_tensors(a), all_tensors(b)
        self.assertEqual(set(a), set(b))
        different = [name for name in a if not np.array_equal(a[name], b[name])]
        self.assertEmpty(different)


def without_dropout(rate=0.0):
    """Returns the config of a BERT of one layer with this rate of dropout."""
    rates = {"hidden_dropout_prob": rate, "attention_probs_dropout_prob": rate}
    return tiny.config(num_hidden_layers=1, **rates)


@pytest.mark.estimator
@pytest.mark.without_xla
class FreezingTest(TrainingTestCase):
    SIZES = {}  # Two layers.
    _starts = {}

    def train(self, method, num_layers=None, **options):
        output_dir = self.new_dir()
        self.runner(output_dir, method, num_layers, **options).train(tiny.arrays())
        # Initial values depend on seed and name, so every method has those of "full".
        of = "adapters" if method == "adapters" else "full"
        if of not in self._starts:
            self._starts[of] = all_tensors(self.start(of))
        start = self._starts[of]
        for name, value in self.pretrained.items():
            self.assertAllEqual(value, start[name])
        return start, all_tensors(output_dir)

    def check(self, start_and_end, encoder_trains):
        """Checks that all trained variables changed.

        The checkpoint must hold these variables, their Adam slots and the step, and nothing else.
        """
        start, end = start_and_end
        trained = {n for n in start if n not in self.pretrained or encoder_trains(n)}
        slots = {name + slot for name in trained for slot in ("/adam_m", "/adam_v")}
        self.assertEqual(set(end), {*trained, *slots, "global_step"})
        for name in trained:
            self.assertNotAllEqual(start[name], end[name], name)

    def test_adapters_train_with_layer_norms_and_head(self):
        values = self.train("adapters")
        self.check(values, lambda name: "LayerNorm" in name)
        end = values[1]
        adapters = {name for name in end if "/adapters/" in name and "/adam_" not in name}
        # 2 adapters in each of 2 layers, with 4 tensors each, all of them distinct.
        self.assertLen(adapters, 16)
        self.assertLen({end[name].tobytes() for name in adapters}, 16)

    def test_each_method_trains_only_its_variables(self):
        def in_top_layer(name):
            return "/layer_1/" in name or "/pooler/" in name

        self.check(self.train("full"), lambda name: True)
        self.check(self.train("top_layers", 1), in_top_layer)
        self.check(self.train("layer_norm"), lambda name: "LayerNorm" in name)
        self.check(self.train("head"), lambda name: False)

    def test_unused_variable_of_the_head_is_refused(self):
        def create_model(*args, **options):
            tf.get_variable("unused", [2])
            return original(*args, **options)

        runner, original = self.runner(self.new_dir()), run_classifier.create_model
        replaced = mock.patch.object(run_classifier, "create_model", create_model)
        with tf.Graph().as_default(), replaced, self.assertRaisesRegex(
            ValueError, "on 1 of .* unused"
        ):
            features = {name: tf.constant(value) for name, value in tiny.arrays().items()}
            build = own_models.builder("classification", 2)(**vars(runner.model))
            build(features, None, tf_estimator.ModeKeys.TRAIN, {"batch_size": 5})

    def test_train_pooler_also_trains_the_pooler(self):
        method = tuning.Tuning("adapters", train_pooler=True)
        values = self.train("adapters", tuning=method)
        self.check(values, lambda name: "LayerNorm" in name or "/pooler/" in name)


@pytest.mark.estimator
@pytest.mark.without_xla
@pytest.mark.slow
class ResumingTest(TrainingTestCase):
    def test_weights_are_determined_by_the_seed(self):
        folders = [self.new_dir() for _ in range(3)]
        for folder, seed in zip(folders, (7, 7, 8)):
            self.runner(folder, random_seed=seed).train(tiny.arrays())
        self.assertSameWeights(folders[0], folders[1])
        with self.assertRaises(AssertionError):
            self.assertSameWeights(folders[0], folders[2])

    def test_diverged_training_stops_saving(self):
        folder = self.new_dir()
        runner = self.runner(folder, steps=4, save=1, learning_rate=1e38)
        with self.assertRaisesRegex(UserError, "NaN or Inf: --learning_rate=1e"):
            runner.train(tiny.arrays())
        self.assertEqual(checkpoints.last_step(folder), 1)


def accuracy_and_loss(arrays, predictions):
    """Returns scores for `estimator.Estimator.evaluate` that use only probabilities."""
    probabilities, labels = predictions["probabilities"], arrays["label_ids"]
    right = probabilities[np.arange(len(labels)), labels]
    accuracy = np.mean(probabilities.argmax(axis=1) == labels)
    return {"accuracy": float(accuracy), "loss": float(-np.log(right).mean())}


@pytest.mark.estimator
@pytest.mark.without_xla
class EvaluationTest(TrainingTestCase):
    def test_evaluation_scores_match_the_predictions(self):
        folder = self.new_dir()
        rows = tiny.arrays(rows=13)
        runner = self.runner(folder)
        runner.train(rows)
        predictions = runner.predict_stacked(rows)
        self.assertEqual(predictions["probabilities"].shape, (13, 2))
        found = runner.evaluate(rows, functools.partial(accuracy_and_loss, rows))
        self.assertEqual(found.pop("global_step"), 4)
        self.assertAllClose(found, accuracy_and_loss(rows, predictions), rtol=1e-5)
        self.assertAllClose(found["loss"], np.mean(predictions["loss"]), rtol=1e-4)
        events = tf.io.gfile.glob(os.path.join(folder, "eval", "events*.4"))
        shown = {
            value.tag: value.simple_value
            for event in tf.train.summary_iterator(events[0])
            for value in event.summary.value
        }
        self.assertAllClose(shown, found)


@pytest.mark.estimator
@pytest.mark.without_xla
class PaddingTest(TrainingTestCase):
    """Compares results of batches by length with those of fixed shapes, as on a TPU."""

    # Large weights, so that the predictions of any two rows differ.
    SIZES = {**TrainingTestCase.SIZES, "initializer_range": 0.5}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # They fill batches of 8, without a smaller last one.
        cls.rows = tiny.arrays(rows=24, seq_length=40)
        cls.folder = tempfile.mkdtemp()
        cls.runner(cls.folder, learning_rate=0.03).train(cls.rows)

    def fixed_runner(self):
        """Returns an Estimator that plans batches as on a TPU, but runs on this machine."""
        runner = self.runner(self.folder)
        runner.model = dataclasses.replace(runner.model, use_tpu=True)
        return runner

    def test_batching_by_length_keeps_scores_and_predictions(self):
        runner, fixed = self.runner(self.folder), self.fixed_runner()
        scores, expected = (
            some.evaluate(self.rows, functools.partial(accuracy_and_loss, self.rows))
            for some in (runner, fixed)
        )
        self.assertAllClose(scores, expected, rtol=0, atol=1e-5)
        for count in (24, 13):
            rows = {name: values[:count] for name, values in self.rows.items()}
            found, expected = (
                np.array([row["probabilities"] for row in some.predict(rows)])
                for some in (runner, fixed)
            )
            self.assertEqual(found.shape, (count, 2))
            self.assertAllClose(found, expected, rtol=0, atol=1e-5)
            # No two rows are so close that a swap would go unnoticed.
            gaps = np.diff(np.sort(expected[:, 0]))
            self.assertGreater(gaps.min(), 2e-5)

    def test_stacked_predictions_are_those_of_rows(self):
        runner = self.runner(self.folder)
        expected = list(runner.predict(self.rows))
        stacked = runner.predict_stacked(self.rows)
        for name in expected[0]:
            self.assertAllEqual(stacked[name], [row[name] for row in expected])
        stacked = runner.predict_stacked(self.rows, batch_flag="eval_batch_size")
        for name in expected[0]:
            self.assertAllClose(stacked[name], [row[name] for row in expected], atol=1e-5)

    def test_many_rows_come_in_batches_of_tokens_unless_a_size_is_given(self):
        add = stored_predictions.StoredPredictions.add
        expected = self.runner(self.folder).predict_stacked(self.rows)
        for names, sizes in (((), [8, 8, 8]), (("predict_batch_size",), [24])):
            runner = self.runner(self.folder)
            runner.run = dataclasses.replace(runner.run, chosen_batches=frozenset(names))
            with mock.patch.object(estimator, "_MANY_ROWS", 24), mock.patch.object(
                stored_predictions.StoredPredictions, "add", autospec=True, side_effect=add
            ) as added:
                found = runner.predict_stacked(self.rows, chooses_batches=True)
            self.assertEqual([len(call[0][1]) for call in added.call_args_list], sizes)
            for name, values in expected.items():
                self.assertAllClose(found[name], values, atol=1e-5)

    def test_streamed_predictions_apply_adapter_gates(self):
        runner = self.runner(self.folder)
        some = {name: values[:13] for name, values in self.rows.items()}
        tensors = trained_tensors(tf.train.latest_checkpoint(self.folder))
        bare = os.path.join(self.new_dir(), "bare.ckpt")
        silent = ("/adapters/weights2", "/adapters/biases2")
        for name in tensors:
            tensors[name] = tensors[name] * (0.0 if name.endswith(silent) else 1.0)
        checkpoints.write(bare, {**tensors, "global_step": np.int64(4)})
        gates = np.array([[1.0], [0.0]], np.float32)
        expected = [
            [row["probabilities"] for row in runner.predict(some, checkpoint)]
            for checkpoint in (None, bare)
        ]
        expected = np.reshape(np.stack(expected, axis=1), [26, 2])
        for one in (runner, self.fixed_runner()):
            product_rows = rows.ProductRows(rows.as_rows(some), "adapter_gates", gates)
            found = dict(one.stream(product_rows))
            self.assertEqual(sorted(found), list(range(26)))
            found = [found[index]["probabilities"] for index in range(26)]
            self.assertAllClose(found, expected, rtol=0, atol=1e-5)
        self.assertGreater(np.abs(expected[0::2] - expected[1::2]).min(), 2e-5)

    def batches(self, runner):
        """Returns (longest row, columns) of each batch of a prediction."""
        seen = []
        take = rows.PaddedRows.take

        def spy(padded, indices, length=None):
            batch = take(padded, indices, length)
            if length is not None:
                seen.append((batch["input_mask"].sum(axis=1).max(), batch["input_ids"].shape[1]))
            return batch

        with mock.patch.object(rows.PaddedRows, "take", spy):
            list(runner.predict(self.rows))
        return seen

    def test_longest_rows_come_first(self):
        lengths, columns = zip(*self.batches(self.runner(self.folder)))
        expected = sorted(self.rows["input_mask"].sum(axis=1), reverse=True)[::8]
        self.assertEqual(list(lengths), expected)
        self.assertLess(columns[-1], columns[0])
        self.assertEqual(self.batches(self.fixed_runner()), [])

    def test_batching_by_length_keeps_trained_weights(self):
        bert_config = without_dropout()
        trained = []
        for bucket_of in (input_pipeline.bucket_of, lambda length, longest: longest):
            folder = self.new_dir()
            runner = self.runner(folder, bert_config=bert_config, learning_rate=1e-3)
            # The head's dropout has no setting; its masks would depend on the batch's shape.
            keep = mock.patch.object(modeling, "dropout", lambda tensor, *_, **__: tensor)
            with keep, mock.patch.object(input_pipeline, "bucket_of", bucket_of):
                runner.train(self.rows)
            trained.append(all_tensors(folder))
        self.assertEqual(set(trained[0]), set(trained[1]))
        for name, values in trained[0].items():
            self.assertAllClose(values, trained[1][name], rtol=1e-4, atol=1e-5, msg=name)
        moved = trained[0]["output_weights/adam_m"]
        self.assertGreater(np.abs(moved).max(), 1e-3)


@pytest.mark.estimator
@pytest.mark.slow
class LessMemoryTest(TrainingTestCase):
    """Gradient accumulation and recomputation take the same steps as plain training."""

    def train(self, method="adapters", dropout=0.0, arrays=None, **model):
        """Returns weights and Adam's moments after 3 steps, from seeded initial values."""
        folder = self.new_dir()
        settings = {"bert_config": without_dropout(dropout), "learning_rate": 1e-3, **model}
        # The head's dropout has no setting.
        keep = mock.patch.object(modeling, "dropout", lambda tensor, *_, **__: tensor)
        with contextlib.nullcontext() if dropout else keep:
            runner = self.runner(folder, method, steps=3, batch_size=12, **settings)
            runner.train(tiny.arrays(24) if arrays is None else arrays)
        return all_tensors(folder)

    def assertNear(self, found, expected, tolerance):
        """Checks equality up to float error, relative to each tensor's largest element."""
        self.assertEqual(set(found), set(expected))
        for name, value in expected.items():
            # A key's bias shifts a whole row of attention scores, so its gradient is 0 up to float
            # error. Adam turns that error into a step.
            if "/self/key/bias" not in name:
                error = np.abs(found[name] - value).max() / max(1e-12, np.abs(value).max())
                self.assertLess(error, tolerance, name)

    def test_accumulation_handles_unequal_numbers_of_tags(self):
        of_tags = {"kind": "tagging", "arrays": tiny.tagged(tiny.arrays(24))}
        whole = self.train(**of_tags)
        self.assertNear(self.train(**of_tags, gradient_accumulation_steps=4), whole, 1e-5)

    def test_recomputation_reuses_dropout_masks_of_each_part(self):
        whole, in_parts = (
            [
                self.train(
                    dropout=0.1, gradient_accumulation_steps=parts, recompute_activations=recompute
                )
                for recompute in (False, True)
            ]
            for parts in (1, 2)
        )
        # The same masks in both passes and both runs, but different ones in each part.
        self.assertNear(*whole, 1e-5)
        self.assertNear(*in_parts, 1e-5)
        with self.assertRaises(AssertionError):
            self.assertNear(whole[0], in_parts[0], 1e-2)


@pytest.mark.estimator
class ModelFnTest(parameterized.TestCase, TrainingTestCase):
    def build(self, **model):
        config = tiny.config(**self.SIZES)
        settings = {"bert_config": config, "num_train_steps": 5, **model}
        settings = model_fn.ModelSettings(**settings)
        build = own_models.builder("classification", 2)(**vars(settings))
        with tf.Graph().as_default():
            features = {name: tf.constant(values) for name, values in tiny.arrays().items()}
            return build(features, None, tf_estimator.ModeKeys.TRAIN, {"batch_size": 12})

    def test_an_incomplete_checkpoint_is_refused(self):
        prefix = os.path.join(self.new_dir(), "incomplete.ckpt")
        checkpoints.write(prefix, {n: v for n, v in self.pretrained.items() if "pooler" not in n})
        with self.assertRaisesRegex(UserError, "bert/pooler/dense"):
            self.build(init_checkpoint=prefix)

    def test_a_head_of_another_size_is_refused(self):
        prefix = os.path.join(self.new_dir(), "three_labels.ckpt")
        weights = np.zeros([3, 8], np.float32)
        checkpoints.write(prefix, {**self.pretrained, "output_weights": weights})
        with self.assertRaisesRegex(UserError, r"output_weights.*\[3, 8\].*\[2, 8\]"):
            self.build(init_checkpoint=prefix)

    # TensorFlow's messages. A real failure of memory would first retry for half a minute.
    @parameterized.parameters(
        (tf.errors.InvalidArgumentError, "Gradient for b:0 is NaN : Tensor had NaN values", LOSS),
        (tf.errors.ResourceExhaustedError, "OOM when allocating tensor with shape[9]", MEMORY),
        (tf.errors.ResourceExhaustedError, "Out of memory while trying to allocate 9 by", MEMORY),
        (tf.errors.ResourceExhaustedError, "CUDA_ERROR_OUT_OF_MEMORY: out of memory", MEMORY),
        (tf.errors.ResourceExhaustedError, "/bloom/oom/Room; No space left on device", None),
    )
    def test_errors_of_tensorflow_are_explained(self, error, message, explanation):
        runner = self.runner(self.new_dir())
        failing = error(None, None, message)
        kind = UserError if explanation else error
        failed = mock.patch.object(runner._estimator, "train", side_effect=failing)
        with failed, self.assertRaisesRegex(kind, explanation or message):
            runner.train(tiny.arrays())

    def test_training_that_ends_early_is_an_error(self):
        runner = self.runner(self.new_dir())
        lost = mock.patch.object(runner._estimator, "train")  # As TPUEstimator if its TPU is lost.
        with lost, self.assertRaisesRegex(UserError, "ended at step 0 of 4"):
            runner.train(tiny.arrays())


@pytest.mark.without_xla
class BatchNormTest(TrainingTestCase):
    """Adapters with batch normalization: moving statistics are saved and do not train."""

    # Large weights, so that predictions depend on the statistics.
    SIZES = {**TrainingTestCase.SIZES, "initializer_range": 0.5}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tempfile.mkdtemp()
        cls.runner(cls.folder).train(tiny.arrays())

    @classmethod
    def runner(cls, output_dir, **options):
        adapter = modeling.AdapterConfig(size=3, init_scale=0.5, normalization="batch")
        return super().runner(output_dir, adapter_fn=adapter, **options)

    def moving(self, values):
        return {name: value for name, value in values.items() if "/moving_" in name}

    def probabilities(self, runner, checkpoint=None):
        rows = runner.predict(tiny.arrays(rows=7), checkpoint)
        return np.array([row["probabilities"] for row in rows])

    def test_checkpoint_has_moving_statistics_without_moments(self):
        tensors = all_tensors(self.folder)
        names = {name for name in tensors if "/BatchNorm/" in name}
        scopes = [
            f"bert/encoder/layer_0/{site}/adapters/BatchNorm/"
            for site in ("attention/output", "output")
        ]
        parts = ("gamma", "beta", "moving_mean", "moving_variance")
        moments = {f"{s}{p}/adam_{m}" for s in scopes for p in ("gamma", "beta") for m in "mv"}
        self.assertEqual(names, moments | {scope + part for scope in scopes for part in parts})
        for name, value in self.moving(tensors).items():
            start = 1.0 if "variance" in name else 0.0
            self.assertGreater(np.abs(value - start).max(), 0.01, name)

    def test_restored_model_predicts_the_same(self):
        runner = self.runner(self.folder)
        expected = self.probabilities(runner)
        # A row's prediction does not depend on other rows.
        runner.run = dataclasses.replace(runner.run, predict_batch_size=3)
        self.assertAllClose(self.probabilities(runner), expected, rtol=1e-5)
        task = os.path.join(self.new_dir(), "task.ckpt")
        trained = trained_tensors(tf.train.latest_checkpoint(self.folder))
        checkpoints.write(task, {**trained, "global_step": np.int64(4)})
        other = self.runner(self.new_dir(), task_checkpoint=task, random_seed=8)
        self.assertAllEqual(self.probabilities(other, task), expected)
        own = self.full_checkpoint(self.folder)
        other = self.runner(self.new_dir(), init_checkpoint=own, random_seed=8)
        self.assertAllEqual(self.probabilities(other), expected)

    def test_further_training_starts_from_moving_statistics(self):
        trained = trained_tensors(tf.train.latest_checkpoint(self.folder))
        found = []
        for more in (0, 7):
            folder = self.new_dir()
            task = os.path.join(folder, "task.ckpt")
            given = {n: v + more if "/moving_" in n else v for n, v in trained.items()}
            checkpoints.write(task, given)
            self.runner(folder, task_checkpoint=task, steps=1).train(tiny.arrays())
            found.append(self.moving(all_tensors(folder)))
        for name, value in found[0].items():  # The first step keeps a tenth of the old value.
            self.assertAllClose(found[1][name] - value, [0.7] * 3, rtol=1e-4, msg=name)

    def test_moving_statistics_average_over_batch_parts(self):
        """A step's statistics are the mean over its parts, also when parts are recomputed."""
        found = []
        for parts, recompute in ((1, False), (2, False), (2, True)):
            folder = self.new_dir()
            self.runner(
                folder,
                steps=1,
                num_warmup_steps=1,
                batch_size=12,
                bert_config=without_dropout(),
                gradient_accumulation_steps=parts,
                recompute_activations=recompute,
            ).train(tiny.arrays())
            found.append(all_tensors(folder))
        for name, value in found[1].items():
            self.assertAllClose(value, found[2][name], rtol=1e-3, atol=1e-6, msg=name)
        # At the first site a part's mean depends only on its rows, so the mean of means is exact.
        scope = "bert/encoder/layer_0/attention/output/adapters/BatchNorm/"
        whole, in_parts = found[:2]
        means = [values[scope + "moving_mean"] for values in (whole, in_parts)]
        self.assertAllClose(*means, rtol=1e-4, atol=1e-6)
        self.assertGreater(np.abs(means[0]).max(), 0.01)
        variances = [values[scope + "moving_variance"] - 0.1 for values in (whole, in_parts)]
        self.assertAllLess(variances[1] / variances[0], 1.0)


class ConnectTest(RefusalTestCase):
    def test_flags_are_copied_to_run_settings(self):
        values = classifier_config(
            "--eval_batch_size=7",
            "--train_batch_size=2",
            "--predict_batch_size=3",
            "--save_checkpoints_steps=4",
            "--iterations_per_loop=5",
            "--num_tpu_cores=6",
        )
        run, use_tpu = estimator.connect_for_training(values, "out")
        self.assertFalse(use_tpu)
        expected = estimator.RunSettings("out", 2, 7, 3, 4, 5, 6)
        self.assertEqual(run, expected)

    def test_batch_must_split_into_equal_parts(self):
        def parts(count, batch_size, *arguments, use_tpu=False):
            values = classifier_config(
                f"--gradient_accumulation_steps={count}",
                f"--train_batch_size={batch_size}",
                *arguments,
            )
            with mock.patch.object(devices, "find_tpu", return_value=(use_tpu, None)):
                estimator.connect_for_training(values, "out")

        parts(4, 12)
        parts(1, 7)
        parts(2, 32, use_tpu=True)  # Parts of 2 on each of 8 cores.
        parts(5, 12, "--do_predict", use_tpu=True)  # Nothing is trained.
        named = ["--gradient_accumulation_steps=5", "--train_batch_size=12"]
        self.assert_refused(named, parts, 5, 12)
        self.assert_refused(["--num_tpu_cores=8"], parts, 8, 32, use_tpu=True)

    def test_cluster_of_the_environment_is_hidden_from_tpus(self):
        cluster = {"cluster": {"worker": ["127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}}
        run = estimator.RunSettings("out", num_tpu_cores=8)
        settings = model_fn.ModelSettings(None, use_tpu=True, random_seed=1)
        with mock.patch.dict(os.environ, TF_CONFIG=json.dumps(cluster)), mock.patch.object(
            estimator.tf_estimator.tpu, "TPUEstimator"
        ) as built:
            estimator.build_estimator(settings, run, mock.Mock())
        self.assertTrue(built.call_args[1]["config"].is_chief)

    def test_several_workers_without_the_tpu_are_refused(self):
        workers = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
        config = classifier_config("--use_tpu=True")
        with mock.patch.dict(os.environ, TF_CONFIG=json.dumps(workers)):
            for is_found in (True, False):
                found = mock.patch.object(devices, "find_tpu", return_value=(is_found, None))
                with found, contextlib.ExitStack() as stack:
                    if not is_found:
                        stack.enter_context(self.assertRaisesRegex(UserError, "cluster of 2"))
                    estimator.connect_for_training(config, "out")

    def test_recomputation_on_a_tpu_needs_tensorflow_2(self):
        def settings(version, use_tpu=True):
            found = mock.patch.object(devices, "find_tpu", return_value=(use_tpu, None))
            with found, mock.patch.object(devices.tf, "__version__", version):
                estimator.connect_for_training(classifier_config("--recompute_activations"), "out")

        settings("2.15.1")
        settings("1.15.5", use_tpu=False)
        self.assert_refused(["--recompute_activations", "TPU"], settings, "1.15.5")

    def test_batch_must_be_divisible_among_replicas(self):
        def settings(*arguments, eval_batch_size=8, use_tpu=False, replicas=1):
            distributed = distribution.Distribution("mirrored", replicas)
            with mock.patch.object(
                devices, "find_tpu", return_value=(use_tpu, None)
            ), mock.patch.object(distribution, "choose", return_value=distributed):
                config = classifier_config(*arguments, f"--eval_batch_size={eval_batch_size}")
                estimator.connect_for_training(config, "out")

        settings("--train_batch_size=12", replicas=3)
        settings("--train_batch_size=12", "--predict_batch_size=7", eval_batch_size=5, replicas=4)
        settings("--num_tpu_cores=4", "--predict_batch_size=4", eval_batch_size=4, use_tpu=True)
        for parts, arguments, options in (
            (["--train_batch_size=32", "3", "--distribution=mirrored"], [], {"replicas": 3}),
            (["--train_batch_size=12", "8"], ["--train_batch_size=12"], {"use_tpu": True}),
            (["--eval_batch_size=12", "8"], [], {"use_tpu": True, "eval_batch_size": 12}),
            (["--predict_batch_size=6", "8"], ["--predict_batch_size=6"], {"use_tpu": True}),
        ):
            self.assert_refused(parts, settings, *arguments, **options)
        # The error names a flag that the script has.
        files = ["--train_file=train.json", "--predict_file=dev.json"]
        values = parsed(run_squad.define_flags, "--predict_batch_size=6", *files)
        config = squad_task.SquadConfig.from_flags(values)
        with mock.patch.object(devices, "find_tpu", return_value=(True, None)):
            parts = ["--predict_batch_size=6", "8"]
            self.assert_refused(parts, estimator.connect_for_training, config, "out")


class TpuTest(tf.test.TestCase):
    def settings(self, cluster, *arguments):
        """Returns (run settings, arguments of `find_tpu`) if `find_tpu` finds this cluster."""
        found = mock.patch.object(devices, "find_tpu", return_value=(True, cluster))
        with found as find:
            run, use_tpu = estimator.connect(classifier_config("--use_tpu", *arguments), "out")
        self.assertTrue(use_tpu)
        return run, find.call_args[0]

    def test_run_uses_the_tpu_cluster_or_master(self):
        arguments = ("--tpu_name=n", "--tpu_zone=z", "--gcp_project=p", "--master=")
        run, asked = self.settings("cluster", *arguments)
        self.assertEqual(asked, (True, "n", "z", "p", "", 8))
        # TensorFlow accepts only one of the two.
        self.assertEqual((run.tpu_cluster, run.master), ("cluster", None))
        run, asked = self.settings(None, "--master=grpc://h:1")
        self.assertEqual(asked, (True, None, None, None, "grpc://h:1", 8))
        self.assertEqual((run.tpu_cluster, run.master), (None, "grpc://h:1"))

    def test_local_paths_are_refused_for_a_remote_tpu(self):
        def check(output_dir, init_checkpoint, *arguments):
            config = classifier_config(*arguments)
            estimator.check_paths_for_tpu(
                config, output_dir=output_dir, init_checkpoint=init_checkpoint
            )

        check("out", "bert.ckpt")
        check("out", "bert.ckpt", "--tpu_name=local")
        check("gs://b/out", "gs://b/bert.ckpt", "--tpu_name=my-tpu")
        with self.assertRaisesRegex(UserError, "--output_dir=out: .* TPU my-tpu .* gs:// path"):
            check("out", "gs://b/bert.ckpt", "--tpu_name=my-tpu")
        with self.assertRaisesRegex(UserError, "--init_checkpoint=bert.ckpt: .* grpc://h:1"):
            check("gs://b/out", "bert.ckpt", "--master=grpc://h:1")
