"""Tests of estimator.py with batch normalization, whose moving statistics no gradient moves."""

import dataclasses
import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.common.errors import UserError
from adapter_bert.formats import checkpoints
from adapter_bert.training import estimator
from adapter_tests.support import tiny
from adapter_tests.training.estimator_test import TrainingTestCase, weights


class BatchNormTest(TrainingTestCase):
    """Adapters with batch normalization: their moving statistics are kept, and do not train."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # Weights so large that predictions depend on the statistics.
        cls.bert = tiny.write_bert(os.path.join(tempfile.mkdtemp(), "bert"), initializer_range=0.5)
        cls.pretrained = weights(cls.bert_prefix())

    def runner(self, output_dir, **options):
        adapter = modeling.AdapterConfig(size=3, init_scale=0.5, normalization="batch")
        return super().runner(output_dir, adapter_fn=adapter.build(), **options)

    def moving(self, values):
        return {name: value for name, value in values.items() if "/moving_" in name}

    def probabilities(self, runner, checkpoint=None):
        rows = runner.predict(tiny.arrays(rows=7), checkpoint)
        return np.array([row["probabilities"] for row in rows])

    def test_a_checkpoint_holds_them_and_no_moments_of_theirs(self):
        folder = self.new_dir()
        self.runner(folder).train(tiny.arrays())
        names = {name for name in weights(folder) if "/BatchNorm/" in name}
        scopes = [
            f"bert/encoder/layer_{i}/{site}/adapters/BatchNorm/"
            for i in range(2)
            for site in ("attention/output", "output")
        ]
        parts = ("gamma", "beta", "moving_mean", "moving_variance")
        moments = {f"{s}{p}/adam_{m}" for s in scopes for p in ("gamma", "beta") for m in "mv"}
        self.assertEqual(names, moments | {scope + part for scope in scopes for part in parts})
        for name, value in self.moving(weights(folder)).items():
            start = 1.0 if "variance" in name else 0.0
            self.assertGreater(np.abs(value - start).max(), 0.01, name)

    def test_another_process_predicts_the_same(self):
        folder = self.new_dir()
        runner = self.runner(folder)
        runner.train(tiny.arrays())
        expected = self.probabilities(runner)
        # A row's prediction depends on no other row.
        runner._run = dataclasses.replace(runner._run, predict_batch_size=3)
        runner._estimator = estimator.build_estimator(runner._model, runner._run, runner._head)
        self.assertAllClose(self.probabilities(runner), expected, rtol=1e-5)
        task = os.path.join(self.new_dir(), "task.ckpt")
        trained = checkpoints.trained_tensors(tf.train.latest_checkpoint(folder))
        checkpoints.write(task, {**trained, "global_step": np.int64(4)})
        other = self.runner(self.new_dir(), task_checkpoint=task, random_seed=8)
        self.assertAllEqual(self.probabilities(other, task), expected)
        own = self.full_checkpoint(folder)
        other = self.runner(self.new_dir(), init_checkpoint=own, random_seed=8)
        self.assertAllEqual(self.probabilities(other), expected)
        without = {n: v for n, v in {**self.pretrained, **trained}.items() if "/moving_" not in n}
        checkpoints.write(own, without)
        other = self.runner(self.new_dir(), init_checkpoint=own)
        with self.assertRaisesRegex(UserError, "no bert/encoder/.*/moving_variance; train first"):
            self.probabilities(other)

    def test_further_training_starts_from_them(self):
        first = self.new_dir()
        self.runner(first).train(tiny.arrays())
        trained = checkpoints.trained_tensors(tf.train.latest_checkpoint(first))
        found = []
        for more in (0, 7):
            folder = self.new_dir()
            task = os.path.join(folder, "task.ckpt")
            given = {n: v + more if "/moving_" in n else v for n, v in trained.items()}
            checkpoints.write(task, given)
            self.runner(folder, task_checkpoint=task, steps=1).train(tiny.arrays())
            found.append(self.moving(weights(folder)))
        for name, value in found[0].items():  # The first step keeps a tenth.
            self.assertAllClose(found[1][name] - value, [0.7] * 3, rtol=1e-4, msg=name)

    def test_a_stopped_run_goes_on_to_the_same_weights(self):
        straight, resumed = self.new_dir(), self.new_dir()
        self.runner(straight, steps=6).train(tiny.arrays())
        self.runner(resumed, steps=6).train(tiny.arrays(), stop=3)
        self.runner(resumed, steps=6).train(tiny.arrays())
        self.assertSameWeights(straight, resumed)

    def test_parts_of_a_batch_and_recomputed_activations(self):
        """The statistics of a step are the mean of its parts', computed once or twice."""
        found = []
        for parts, recompute in ((1, False), (1, True), (2, False), (2, True)):
            folder = self.new_dir()
            self.runner(
                folder,
                steps=1,
                num_warmup_steps=1,
                batch_size=12,
                bert_config=tiny.config(hidden_dropout_prob=0, attention_probs_dropout_prob=0),
                gradient_accumulation_steps=parts,
                recompute_activations=recompute,
            ).train(tiny.arrays())
            found.append(weights(folder))
        for one, two in (found[:2], found[2:]):
            for name, value in one.items():
                self.assertAllClose(value, two[name], rtol=1e-3, atol=1e-6, msg=name)
        # In the first layer a part's mean is of its rows alone, and so is the mean of the means.
        scope = "bert/encoder/layer_0/attention/output/adapters/BatchNorm/"
        whole, in_parts = found[0], found[2]
        means = [values[scope + "moving_mean"] for values in (whole, in_parts)]
        self.assertAllClose(*means, rtol=1e-4, atol=1e-6)
        self.assertGreater(np.abs(means[0]).max(), 0.01)
        variances = [values[scope + "moving_variance"] - 0.1 for values in (whole, in_parts)]
        self.assertAllLess(variances[1] / variances[0], 1.0)


if __name__ == "__main__":
    tf.test.main()
