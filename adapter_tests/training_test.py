"""Training itself, on a tiny BERT: what moves and what does not, resuming, seeds, progress."""

import os
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import tensorflow.compat.v1 as tf

import checkpoints
import modeling
import run_classifier
import training
import tuning
from adapter_tests import tiny
from errors import UserError

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def weights(output_dir):
    """All tensors of the last checkpoint by name."""
    reader = tf.train.load_checkpoint(output_dir)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


class TrainingTestCase(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bert = tiny.write_bert(os.path.join(tempfile.mkdtemp(), "bert"))
        cls.pretrained = weights(cls.bert_prefix())

    @classmethod
    def bert_prefix(cls):
        return os.path.join(cls.bert, "bert_model.ckpt")

    def runner(self, output_dir, method="adapters", num_layers=None, steps=4, save=1000, **model):
        adapter_fn = modeling.AdapterConfig(size=3).build() if method == "adapters" else None
        settings = {
            "bert_config": tiny.config(),
            "init_checkpoint": self.bert_prefix(),
            "adapter_fn": adapter_fn,
            "tuning": tuning.Tuning(method, num_layers),
            "learning_rate": 0.1,
            "num_train_steps": steps,
            "num_warmup_steps": 0,
            "random_seed": 7,
        }
        run = training.RunSettings(output_dir, train_batch_size=5, save_checkpoints_steps=save)
        settings.update(model)
        model_settings = training.ModelSettings(**settings)
        return training.Runner(model_settings, run, run_classifier.classifier_head(2))

    def new_dir(self):
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    def assertSameWeights(self, a, b):
        a, b = weights(a), weights(b)
        self.assertEqual(set(a), set(b))
        different = [name for name in a if not np.array_equal(a[name], b[name])]
        self.assertEmpty(different)


class FreezingTest(TrainingTestCase):
    def train(self, method, num_layers=None, **options):
        output_dir = self.new_dir()
        self.runner(output_dir, method, num_layers, **options).train(tiny.arrays())
        start = weights(os.path.join(output_dir, "model.ckpt-0"))
        for name, value in self.pretrained.items():
            self.assertAllEqual(value, start[name])
        return start, weights(output_dir)

    def check(self, start_and_end, encoder_trains):
        """Every trained tensor moved and has slots; every other is bit-equal and has none."""
        start, end = start_and_end
        for name, before in start.items():
            if "/adam_" in name or name == "global_step":
                continue
            trained = encoder_trains(name) if name in self.pretrained else True
            self.assertEqual(not np.array_equal(before, end[name]), trained, name)
            for slot in ("/adam_m", "/adam_v"):
                self.assertEqual(name + slot in end, trained, name)

    def test_adapters(self):
        values = self.train("adapters")
        self.check(values, lambda name: "LayerNorm" in name)
        end = values[1]
        adapters = {name for name in end if "/adapters/" in name and "/adam_" not in name}
        # 2 adapters in each of 2 layers, 4 tensors each, every one a tensor of its own.
        self.assertLen(adapters, 16)
        self.assertLen({end[name].tobytes() for name in adapters}, 16)

    def test_other_methods(self):
        def in_top_layer(name):
            return "/layer_1/" in name or "/pooler/" in name

        self.check(self.train("full"), lambda name: True)
        self.check(self.train("top_layers", 1), in_top_layer)
        self.check(self.train("top_layers", 2), lambda name: True)
        self.check(self.train("layer_norm"), lambda name: "LayerNorm" in name)
        self.check(self.train("head"), lambda name: False)

    def test_train_pooler(self):
        method = tuning.Tuning("adapters", train_pooler=True)
        values = self.train("adapters", tuning=method)
        self.check(values, lambda name: "LayerNorm" in name or "/pooler/" in name)

    def test_near_identity_at_the_start(self):
        with tf.Graph().as_default(), self.session() as session:
            rows = tiny.arrays()
            outputs = []
            for adapter_fn in ("feedforward_adapter", None):
                with tf.variable_scope("", reuse=tf.AUTO_REUSE):
                    model = modeling.BertModel(
                        tiny.config(), False, rows["input_ids"], scope="bert", adapter_fn=adapter_fn
                    )
                outputs.append(model.get_sequence_output())
            assignment, _ = modeling.get_assignment_map_from_checkpoint(
                tf.trainable_variables(), self.bert_prefix()
            )
            tf.train.init_from_checkpoint(self.bert_prefix(), assignment)
            session.run(tf.global_variables_initializer())
            adapted, plain = session.run(outputs)
            self.assertAllClose(adapted, plain, atol=1e-2)
            self.assertNotAllEqual(adapted, plain)
            for variable in tf.get_collection("adapters"):
                if "weights2" in variable.name:
                    variable.load(np.zeros(variable.shape.as_list()), session)
            adapted, plain = session.run(outputs)
            self.assertAllEqual(adapted, plain)


class ResumingTest(TrainingTestCase):
    def test_two_runs_of_one_seed_are_equal_and_of_two_differ(self):
        folders = [self.new_dir() for _ in range(3)]
        for folder, seed in zip(folders, (7, 7, 8)):
            self.runner(folder, random_seed=seed).train(tiny.arrays())
        self.assertSameWeights(folders[0], folders[1])
        with self.assertRaises(AssertionError):
            self.assertSameWeights(folders[0], folders[2])

    def test_a_stopped_run_goes_on_to_the_same_weights(self):
        for method in ("adapters", "full"):
            straight, resumed = self.new_dir(), self.new_dir()
            self.runner(straight, method, steps=9).train(tiny.arrays())
            runner = self.runner(resumed, method, steps=9, save=2)

            class Stop(tf.train.SessionRunHook):
                def after_run(self, run_context, run_values):
                    if checkpoints.last_step(resumed) == 4:  # noqa: B023
                        raise KeyboardInterrupt

            estimator_train = runner._estimator.train

            def train(*args, **options):
                hooks = [*options.pop("hooks"), Stop()]
                return estimator_train(*args, hooks=hooks, **options)  # noqa: B023

            runner._estimator.train = train
            with self.assertRaises(KeyboardInterrupt):
                runner.train(tiny.arrays())
            self.assertEqual(checkpoints.last_step(resumed), 4)
            self.runner(resumed, method, steps=9, save=2).train(tiny.arrays())
            self.assertEqual(checkpoints.last_step(resumed), 9)
            self.assertSameWeights(straight, resumed)

    def test_ctrl_c_saves_the_step_it_stops_after(self):
        folder = self.new_dir()
        runner = self.runner(folder, steps=100, save=1000)

        class Interrupt(tf.train.SessionRunHook):
            steps = 0

            def after_run(self, run_context, run_values):
                self.steps += 1
                if self.steps == 3:
                    os.kill(os.getpid(), signal.SIGINT)

        before = signal.getsignal(signal.SIGINT)
        estimator_train = runner._estimator.train
        runner._estimator.train = lambda input_fn, hooks, max_steps: estimator_train(
            input_fn, hooks=[Interrupt(), *hooks], max_steps=max_steps
        )
        with self.assertRaises(KeyboardInterrupt):
            runner.train(tiny.arrays())
        self.assertEqual(signal.getsignal(signal.SIGINT), before)
        self.assertEqual(checkpoints.last_step(folder), 3)

    def test_finished_training_is_left_alone(self):
        folder = self.new_dir()
        self.runner(folder).train(tiny.arrays())
        files = sorted(os.listdir(folder))
        self.runner(folder).train(tiny.arrays())
        self.assertEqual(sorted(os.listdir(folder)), files)

    def test_a_killed_and_interrupted_script_goes_on_to_the_same_weights(self):
        """kill -9 in the middle of `python run_classifier.py`, Ctrl-C in its second run."""
        data = tiny.write_mrpc(self.new_dir(), rows=40)
        straight, killed = self.new_dir(), self.new_dir()

        def command(output_dir):
            return [sys.executable, os.path.join(ROOT, "run_classifier.py")] + [
                "--task_name=MRPC",
                "--do_train",
                "--data_dir=" + data,
                "--bert_config_file=" + os.path.join(self.bert, "bert_config.json"),
                "--vocab_file=" + os.path.join(self.bert, "vocab.txt"),
                "--init_checkpoint=" + self.bert_prefix(),
                "--output_dir=" + output_dir,
                "--max_seq_length=24",
                "--train_batch_size=4",
                "--num_train_epochs=30",
                "--save_checkpoints_steps=20",
            ]

        def run_until(step, signum, output_dir):
            """Starts the script, sends it a signal when a step is saved; the exit code."""
            process = subprocess.Popen(command(output_dir), stdout=nowhere, stderr=nowhere)
            deadline = time.time() + 120
            while checkpoints.last_step(output_dir) < step and time.time() < deadline:
                time.sleep(0.02)
            process.send_signal(signum)
            return process.wait()

        with open(os.devnull, "w") as nowhere:
            self.assertEqual(run_until(40, signal.SIGKILL, killed), -signal.SIGKILL)
            self.assertBetween(checkpoints.last_step(killed), 40, 299)
            self.assertEqual(run_until(80, signal.SIGINT, killed), 130)
            self.assertBetween(checkpoints.last_step(killed), 80, 299)
            for folder in (killed, straight):
                subprocess.check_call(command(folder), stdout=nowhere, stderr=nowhere)
        self.assertEqual(checkpoints.last_step(killed), 300)
        self.assertSameWeights(straight, killed)


class EvaluationTest(TrainingTestCase):
    def test_scores_do_not_depend_on_the_batch_size(self):
        folder = self.new_dir()
        rows = tiny.arrays(rows=13)
        self.runner(folder).train(rows)
        results = []
        for batch_size in (1, 5, 13, 32):
            runner = self.runner(folder)
            runner._run = training.RunSettings(folder, eval_batch_size=batch_size)
            runner._estimator = training.build_estimator(
                runner._model, runner._run, run_classifier.classifier_head(2)
            )
            result = runner.evaluate(rows)
            results.append([result["eval_accuracy"], result["eval_loss"]])
            self.assertEqual(result["global_step"], 4)
        self.assertAllClose(results, [results[0]] * 4, rtol=1e-5)

    def test_predictions_agree_with_the_scores(self):
        folder = self.new_dir()
        rows = tiny.arrays(rows=13)
        runner = self.runner(folder)
        runner.train(rows)
        probabilities = np.array([row["probabilities"] for row in runner.predict(rows)])
        self.assertEqual(probabilities.shape, (13, 2))
        accuracy = np.mean(probabilities.argmax(axis=1) == rows["label_ids"])
        self.assertAllClose(runner.evaluate(rows)["eval_accuracy"], accuracy)
        right = probabilities[np.arange(13), rows["label_ids"]]
        self.assertAllClose(runner.evaluate(rows)["eval_loss"], -np.log(right).mean(), rtol=1e-4)

    def test_untrained_is_refused(self):
        runner = self.runner(self.new_dir())
        with self.assertRaisesRegex(UserError, "do_train"):
            runner.evaluate(tiny.arrays())

    def test_a_tasks_own_checkpoint_is_evaluated(self):
        trained, empty = self.new_dir(), self.new_dir()
        rows = tiny.arrays()
        runner = self.runner(trained)
        runner.train(rows)
        expected = [row["probabilities"] for row in runner.predict(rows)]
        prefix = tf.train.latest_checkpoint(trained)
        found = self.runner(empty, init_checkpoint=prefix).predict(rows)
        self.assertAllEqual(expected, [row["probabilities"] for row in found])


class ModelFnTest(TrainingTestCase):
    def build(self, **model):
        settings = {"bert_config": tiny.config(), "num_train_steps": 5, **model}
        model_fn = training.model_fn_builder(
            training.ModelSettings(**settings), run_classifier.classifier_head(2)
        )
        with tf.Graph().as_default():
            features = {name: tf.constant(values) for name, values in tiny.arrays().items()}
            return model_fn(features, None, tf.estimator.ModeKeys.TRAIN, {"batch_size": 12})

    def test_an_incomplete_checkpoint_is_refused(self):
        prefix = os.path.join(self.new_dir(), "incomplete.ckpt")
        with tf.Graph().as_default(), self.session() as session:
            for name, value in self.pretrained.items():
                if "pooler" not in name:
                    tf.get_variable(name, initializer=value)
            session.run(tf.global_variables_initializer())
            tf.train.Saver().save(session, prefix)
        with self.assertRaisesRegex(UserError, "bert/pooler/dense"):
            self.build(init_checkpoint=prefix)

    def test_a_head_of_another_size_is_refused(self):
        prefix = os.path.join(self.new_dir(), "three_labels.ckpt")
        with tf.Graph().as_default(), self.session() as session:
            for name, value in self.pretrained.items():
                tf.get_variable(name, initializer=value)
            tf.get_variable("output_weights", [3, 8])
            session.run(tf.global_variables_initializer())
            tf.train.Saver().save(session, prefix)
        with self.assertRaisesRegex(UserError, r"output_weights.*\[3, 8\].*\[2, 8\]"):
            self.build(init_checkpoint=prefix)

    def test_default_schedules(self):
        self.assertEqual(training.default_schedule("adapters"), (3e-4, 5.0))
        self.assertEqual(training.default_schedule("full"), (5e-5, 3.0))


if __name__ == "__main__":
    tf.test.main()
