import functools
import gc
import json
import multiprocessing
import os
import sys
import tempfile
import unittest
import weakref
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.tpu import tpu_function

import modeling
import optimization
import run_classifier
import tuning
from adapter_bert.ops import accumulation, layers, replicas
from adapter_bert.shell import tf_estimator
from adapter_tests.support import tiny
from adapter_tests.support.shared import SHARED, needs_shared

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(__file__)), "tools"))

import hlo_text  # noqa: E402
import tpu_program  # noqa: E402


class WarmupTest(tf.test.TestCase):
    def rates(self, steps, warmup):
        with tf.Graph().as_default(), self.session() as session:
            return session.run(
                [
                    optimization.warmup_then_linear_decay(tf.constant(t), 0.1, 10, warmup)
                    for t in steps
                ]
            )

    def test_rate_warms_up_then_decays_linearly(self):
        # 0.1 * t / 4 for t < 4, then 0.1 * (1 - t / 10): the rate drops to 0.06 at t = 4.
        expected = [0, 0.025, 0.05, 0.075, 0.06, 0.05, 0.01, 0, 0]
        self.assertAllClose(expected, self.rates([0, 1, 2, 3, 4, 5, 9, 10, 12], 4), atol=1e-7)

    def test_rate_without_warmup_decays_from_start(self):
        for warmup in (0, None):
            self.assertAllClose([0.1, 0.09], self.rates([0, 1], warmup), atol=1e-7)


class AdamWeightDecayTest(tf.test.TestCase):
    def train(self, steps, gradient_of, names, exclude=(), adapters=()):
        """Runs the optimizer on variables named `names` that start at (1, -2)."""
        with tf.Graph().as_default(), self.session() as session:
            variables = []
            for name in names:
                collections = [tf.GraphKeys.GLOBAL_VARIABLES]
                collections += [modeling.ADAPTERS] if name in adapters else []
                start = tf.constant_initializer([1.0, -2.0])
                variables.append(
                    tf.get_variable(name, [2], initializer=start, collections=collections)
                )
            optimizer = optimization.AdamWeightDecayOptimizer(
                0.1, 0.3, 0.7, exclude_from_weight_decay=list(exclude)
            )
            gradients = [gradient_of(variable) for variable in variables]
            step = tf.train.get_or_create_global_step()
            # As BERT's create_optimizer does.
            train_op = optimizer.apply_gradients(zip(gradients, variables), global_step=step)
            train_op = tf.group(train_op, [step.assign(step + 1)])
            session.run(tf.global_variables_initializer())
            for _ in range(steps):
                session.run(train_op)
            return {v.op.name: v.eval(session) for v in tf.global_variables()}

    def numpy_adam(self, steps, gradient_of, decay):
        w, m, v = np.array([1.0, -2.0]), 0.0, 0.0
        for _ in range(steps):
            g = gradient_of(w)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            w = w - 0.1 * (m / (np.sqrt(v) + 1e-6) + decay * w)
        return w

    def test_steps_equal_numpy(self):
        values = self.train(3, lambda w: w * w, ["w"])
        self.assertAllClose(values["w"], self.numpy_adam(3, lambda w: w * w, 0.3), rtol=1e-5)

    def test_no_weight_decay_by_default(self):
        with tf.Graph().as_default():
            optimizer = optimization.AdamWeightDecayOptimizer(0.1)
            self.assertEqual(optimizer.decay_of("kernel"), 0.0)
            collections = [modeling.ADAPTERS, tf.GraphKeys.GLOBAL_VARIABLES]
            tf.get_variable("adapter_w", [2], collections=collections)
            optimizer = optimization.AdamWeightDecayOptimizer(0.1, 0.3)
            self.assertEqual([optimizer.decay_of(n) for n in ("kernel", "adapter_w")], [0.3, 0.0])

    def test_do_use_weight_decay_can_be_overridden(self):
        """`_do_use_weight_decay` has the name of BERT's method, which users override and call."""

        class Sparing(optimization.AdamWeightDecayOptimizer):
            def _do_use_weight_decay(self, param_name):
                return param_name != "spared" and super()._do_use_weight_decay(param_name)

        with tf.Graph().as_default():
            plain = optimization.AdamWeightDecayOptimizer(0.1, 0.3, exclude_from_weight_decay=["b"])
            uses = [plain._do_use_weight_decay(name) for name in ("kernel", "bias")]
            self.assertEqual(uses, [True, False])
            undecayed = optimization.AdamWeightDecayOptimizer(0.1)
            self.assertFalse(undecayed._do_use_weight_decay("kernel"))
            rates = [Sparing(0.1, 0.3).decay_of(name) for name in ("kernel", "spared")]
            self.assertEqual(rates, [0.3, 0.0])

    def test_weight_decay_depends_on_kind_of_variable(self):
        names = ["kernel", "LayerNorm/gamma", "adapter_w", "adapter_bias"]
        values = self.train(
            2, lambda w: w * 0 + 1, names, ["LayerNorm", "bias"], ["adapter_w", "adapter_bias"]
        )
        for name, decay in zip(names, (0.3, 0.0, 0.7, 0.0)):
            self.assertAllClose(
                values[name], self.numpy_adam(2, lambda w: w * 0 + 1, decay), rtol=1e-5
            )

    def test_sparse_gradients_step_like_dense_ones(self):
        def sparse(w):
            return tf.IndexedSlices(tf.constant([1.0, 2.0]), tf.constant([1, 1]), tf.constant([2]))

        values = self.train(2, sparse, ["w"])
        expected = self.numpy_adam(2, lambda w: np.array([0.0, 3.0]), 0.3)
        self.assertAllClose(values["w"], expected, rtol=1e-5)

    def test_float32_and_float64_variables_are_trained_together(self):
        with tf.Graph().as_default(), self.session() as session:
            variables = [tf.get_variable(t.name, [2], t) for t in (tf.float32, tf.float64)]
            optimizer = optimization.AdamWeightDecayOptimizer(0.1, beta_1=0.0, beta_2=0.0)
            train_op = optimizer.apply_gradients([(tf.ones_like(v), v) for v in variables])
            session.run(tf.global_variables_initializer())
            before = session.run(variables)
            session.run(train_op)
            self.assertAllClose(session.run(variables), [v - 0.1 for v in before], rtol=1e-4)

    def test_slot_names_and_global_step_match_bert(self):
        values = self.train(5, lambda w: w, ["scope/w"])
        self.assertEqual(
            set(values), {"scope/w", "scope/w/adam_m", "scope/w/adam_v", "global_step"}
        )
        self.assertEqual(values["global_step"], 5)

    def test_apply_gradients_does_not_change_global_step(self):
        with tf.Graph().as_default(), self.session() as session:
            w, step = tf.get_variable("w", [2]), tf.train.get_or_create_global_step()
            optimizer = optimization.AdamWeightDecayOptimizer(0.1)
            train_op = optimizer.apply_gradients([(w + 1.0, w)], global_step=step)
            session.run(tf.global_variables_initializer())
            session.run(train_op)
            self.assertEqual(session.run(step), 0)


class MovingAverageTest(tf.test.TestCase):
    def test_momentum_increases_with_global_step(self):
        """Compares with hand computation: the momentum is min(0.99, (1 + t) / (10 + t))."""
        with tf.Graph().as_default(), self.session() as session:
            for t, expected in ((0, 0.1 * 5 + 0.9 * 2), (8, 0.5 * 5 + 0.5 * 2)):
                average = optimization.moving_average(tf.constant(5.0), 2.0, tf.constant(t))
                self.assertAllClose(session.run(average), expected)
            average = optimization.moving_average(tf.constant(5.0), 2.0, tf.constant(10**6))
            self.assertAllClose(session.run(average), 0.99 * 5 + 0.01 * 2)


def minimize(loss, use_tpu=False):
    """Returns (train op with a learning rate of 0.1, gradient norm)."""
    scalars = {}
    train_op = optimization.create_optimizer(loss, 0.1, 10**9, 0, use_tpu, scalars=scalars)
    return train_op, scalars["gradient_norm"]


@pytest.mark.without_xla
class CreateOptimizerTest(tf.test.TestCase):
    def test_gradients_are_clipped_by_global_norm(self):
        with tf.Graph().as_default(), self.session() as session:
            a = tf.get_variable("a", [], initializer=tf.zeros_initializer())
            b = tf.get_variable("b", [], initializer=tf.zeros_initializer())
            train_op, norm = minimize(30.0 * a + 40.0 * b)
            session.run(tf.global_variables_initializer())
            norm = session.run([norm, train_op])[0]
            moments = {v.op.name: v.eval(session) for v in tf.global_variables()}
        self.assertAllClose(norm, 50.0)
        self.assertAllClose(moments["a/adam_m"], 0.1 * 0.6)
        self.assertAllClose(moments["b/adam_m"], 0.1 * 0.8)

    def test_loss_without_gradients_is_an_error(self):
        with tf.Graph().as_default():
            for name in "ab":
                tf.get_variable(name, [])
            with self.assertRaisesRegex(ValueError, "none of the 2 variables"):
                optimization.create_optimizer(tf.constant(1.0), 1e-3, 10, 0, use_tpu=False)

    def test_weight_decay_applies_only_to_weight_matrices(self):
        """With gradients of 0, a step applies only the weight decay of 0.01."""
        decayed = {"weights1", "weights_hidden2", "weights2", "output_weights"}
        for normalization in ("layer", "batch"):
            with tf.Graph().as_default(), self.session() as session:
                adapter = modeling.AdapterConfig(3, normalization=normalization, depth=2)
                x = tf.ones([2, 4])
                place = modeling.Place(adapter, x, statistics=[])
                modeling.feedforward_adapter(x, 3, place=place)
                for name in ("output_weights", "output_bias"):
                    tf.get_variable(name, [2])
                variables = tf.trainable_variables()
                loss = tf.add_n([0.0 * tf.reduce_sum(variable) for variable in variables])
                train_op, _ = minimize(loss)
                session.run(tf.global_variables_initializer())
                for variable in variables:
                    variable.load(np.ones(variable.shape.as_list()), session)
                session.run(train_op)
                for variable in variables:
                    name = variable.op.name
                    expected = 0.999 if name.split("/")[-1] in decayed else 1.0
                    self.assertAllClose(np.unique(session.run(variable)), [expected], msg=name)

    def test_batch_statistics_with_several_replicas_are_an_error(self):
        with tf.Graph().as_default():
            w = tf.get_variable("w", [])
            layers.keep_statistics([(tf.get_variable("moving_mean", []), tf.constant(1.0))])
            with tpu_function.tpu_shard_context(2), self.assertRaisesRegex(
                ValueError, "one device"
            ):
                minimize(w**2, use_tpu=True)

    def test_use_tpu_outside_tpu_program_means_one_replica(self):
        with tf.Graph().as_default(), self.session() as session:
            w = tf.get_variable("w", [], initializer=tf.ones_initializer())
            train_op = optimization.create_optimizer(w * 0.5, 1e-3, 10, 0, use_tpu=True)
            session.run(tf.global_variables_initializer())
            session.run(train_op)
            moments = {v.op.name: v.eval(session) for v in tf.global_variables()}
        self.assertAllClose(moments["w/adam_m"], 0.1 * 0.5)

    def test_plain_bert_trains_all_variables_with_gradients(self):
        config = modeling.BertConfig(9, 4, 1, 1, 4, max_position_embeddings=4, type_vocab_size=2)
        with tf.Graph().as_default():
            model = modeling.BertModel(config, False, tf.zeros([1, 3], tf.int32), adapter_fn=None)
            loss = tf.reduce_sum(model.get_sequence_output() ** 2)
            with self.assertLogs("absl", "INFO") as log:
                optimization.create_optimizer(loss, 1e-3, 10, 1, False)
            slots = {v.op.name[:-7] for v in tf.global_variables() if v.op.name.endswith("adam_m")}
            everything = {v.op.name for v in tf.trainable_variables()}
        self.assertEqual(everything - slots, {"bert/pooler/dense/kernel", "bert/pooler/dense/bias"})
        # The pooler's kernel is [4, 4]; the other variables are tables, LayerNorms and one layer.
        trained = 4 * (9 + 4 + 2) + 3 * 8 + 6 * 16 + 6 * 4
        message = f"Training {trained} of {trained + 20} parameters (91.07%); 20 are frozen."
        self.assertEqual([record.getMessage() for record in log.records], [message])

    def step_of_user(self, loss_of, adapter_fn="feedforward_adapter", learning_rate=1e-3):
        """Takes a step of `create_optimizer`, like a script written for BERT.

        Args:
          loss_of: function of a `modeling.BertModel` of two layers → loss.
          adapter_fn: as in `modeling.BertModel`.
          learning_rate: float.

        Returns:
          (names of the variables that changed, names of all variables, warnings).
        """
        with tf.Graph().as_default(), self.session() as session:
            ids = tf.constant([[1, 2]])
            model = modeling.BertModel(tiny.config(), False, ids, adapter_fn=adapter_fn)
            loss = loss_of(model)
            variables = tf.trainable_variables()
            with self.assertLogs("absl", "INFO") as log:
                train_op = optimization.create_optimizer(loss, learning_rate, 10, 0, False)
            session.run(tf.global_variables_initializer())
            before = session.run(variables)
            session.run(train_op)
            after = session.run(variables)
        changed = {
            v.op.name
            for v, old, new in zip(variables, before, after)
            if not np.array_equal(old, new)
        }
        warnings = [r.getMessage() for r in log.records if r.levelname == "WARNING"]
        return changed, {v.op.name for v in variables}, warnings

    def test_unused_heads_are_not_trained_and_are_listed(self):
        def loss_of(model):
            heads = [tf.get_variable(name, [8, 2]) for name in ("task_a", "task_b", "task_c")]
            return tf.reduce_sum(tf.matmul(model.get_pooled_output(), heads[0]) ** 2)

        for adapter_fn in ("feedforward_adapter", None):
            changed, _, (warning,) = self.step_of_user(loss_of, adapter_fn)
            self.assertIn("task_a", changed)
            self.assertFalse({"task_b", "task_c"} & changed)
            self.assertIn("task_b, task_c", warning)
            self.assertNotIn("task_a", warning)

    def test_layers_above_loss_are_not_trained_and_are_listed(self):
        def loss_of(model):
            return tf.reduce_sum(model.get_all_encoder_layers()[0] ** 3)

        for adapter_fn, part in (
            ("feedforward_adapter", "adapters/weights1"),
            (None, "dense/kernel"),
        ):
            changed, names, (warning,) = self.step_of_user(loss_of, adapter_fn)
            above = {name for name in names if "/layer_1/" in name}
            self.assertFalse(above & changed)
            self.assertIn(f"bert/encoder/layer_0/output/{part}", changed)
            self.assertIn(f"bert/encoder/layer_1/output/{part}", warning)
            self.assertNotIn("/layer_0/", warning)
            self.assertNotIn("pooler", warning)

    def test_user_variable_in_bert_scope_trains_without_adapters(self):
        """adapter-bert does not train it because it is in no collection. BERT trains it."""

        def loss_of(model):
            head = tf.get_variable("bert/mine/head", [8, 2])
            return tf.reduce_sum(tf.matmul(model.get_pooled_output(), head) ** 2)

        changed, _, (warning,) = self.step_of_user(loss_of)
        self.assertNotIn("bert/mine/head", changed)
        self.assertIn("bert/mine/head", warning)
        changed, _, warnings = self.step_of_user(loss_of, adapter_fn=None)
        self.assertIn("bert/mine/head", changed)
        self.assertEqual(warnings, [])

    def test_fine_tuning_learning_rate_with_adapters_warns(self):
        """The script and its learning rate may have been written for BERT without adapters."""
        for collection, rate, is_warned_of in (
            (modeling.ADAPTERS, 5e-5, True),
            (modeling.ADAPTERS, np.float32(3e-4), False),
            ("others", 5e-5, False),
        ):
            with tf.Graph().as_default(), self.assertLogs("absl", "INFO") as log:
                collections = [collection, tf.GraphKeys.GLOBAL_VARIABLES]
                collections.append(tf.GraphKeys.TRAINABLE_VARIABLES)
                w = tf.get_variable("w", [], collections=collections)
                optimization.create_optimizer(w**2, rate, 10, 0, False)
            warnings = [r.getMessage() for r in log.records if r.levelname == "WARNING"]
            self.assertLen(warnings, int(is_warned_of))
            if is_warned_of:
                self.assertRegex(warnings[0], "5e-05.*Adapters.*3e-4.*adapter_fn=None")

    def test_two_replicas_train_like_one(self):
        """With clipping, two replicas with half a batch each match one with the whole batch."""
        folders = [tempfile.mkdtemp(dir=self.get_temp_dir()) for _ in range(2)]
        # A new process, because TensorFlow can split its CPU into two only before its first use.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            alone, mirrored, num_graphs = pool.apply(train_alone_and_mirrored, folders)
        self.assertAllClose(alone, mirrored, rtol=1e-5)
        self.assertEqual(num_graphs, 0)


class AccumulationTest(tf.test.TestCase):
    """Compares with hand-computed gradients of mean((table[id] * w + x)^2)."""

    ids = np.array([0, 1, 1, 2, 1, 0])
    x = np.random.RandomState(0).normal(size=[6, 2])
    table = np.array([[1.0, -2.0], [0.5, 3.0], [-1.0, 0.25], [7.0, 8.0]])
    w = np.array([2.0, -0.5])

    def loss_of(self, features, index):
        del index
        table = tf.constant(self.table, tf.float32)
        table = tf.get_variable("bert/embeddings/word_embeddings", initializer=table)
        with tf.variable_scope(None, default_name="unnamed"):
            w = tf.get_variable("w", initializer=tf.constant(self.w, tf.float32))
        tf.get_variable("bert/pooler/dense/kernel", [3])  # Unused.
        rows = tf.gather(table, features["ids"]) * w + features["x"]
        return tf.reduce_mean(rows**2)

    def run_parts(self, num_parts, loss_of=None, use_resource=None):
        """Returns [loss, norm, gradients...] of one step, and which gradients are None."""
        with tf.Graph().as_default(), self.session() as session:
            features = {"ids": tf.constant(self.ids), "x": tf.constant(self.x, tf.float32)}
            with tf.variable_scope("", use_resource=use_resource):
                mean = accumulation.mean_loss(loss_of or self.loss_of, features, num_parts)
                variables = tf.trainable_variables()
                loss, gradients = accumulation.loss_and_gradients(mean, variables)
                layers.take_statistics()
                train_op, norm = minimize(mean)
            session.run(tf.global_variables_initializer())
            arrays = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
            loss, *actual = session.run([loss] + [a for a in arrays if a is not None])
            norm, _ = session.run([norm, train_op])
            self.assertEqual(session.run(tf.train.get_global_step()), 1)
            return [loss, norm, *actual], [a is None for a in arrays]

    def by_hand(self, times=1):
        """Returns the expected [loss, norm, gradients...] for a batch with each row repeated."""
        ids, x = np.tile(self.ids, times), np.tile(self.x, [times, 1])
        rows = self.table[ids] * self.w + x
        d_rows = 2 * rows / rows.size
        d_table = np.zeros_like(self.table)
        np.add.at(d_table, ids, d_rows * self.w)
        d_w = np.sum(d_rows * self.table[ids], axis=0)
        # As in BERT, the norm counts each slice of a sparse gradient.
        norm = np.sqrt(np.sum((d_rows * self.w) ** 2) + np.sum(d_w**2))
        return [np.mean(rows**2), norm, d_table, d_w]

    def test_parts_give_gradients_of_whole_batch(self):
        for num_parts in (1, 2, 3, 6):
            for use_resource in (True, False):
                actual, missing = self.run_parts(num_parts, use_resource=use_resource)
                self.assertEqual(missing, [False, False, True])
                self.assertAllClose(actual, self.by_hand(), rtol=1e-6)

    def test_loss_function_gets_index_of_part(self):
        def loss_of(features, index):
            w = tf.get_variable("w", [], initializer=tf.ones_initializer())
            return w * tf.reduce_mean(features["x"]) * 0 + w * tf.cast(index, tf.float32)

        actual, _ = self.run_parts(3, loss_of)
        self.assertAllClose(actual, [1.0, 1.0, 1.0])

    def test_parts_run_one_after_another(self):
        """The backward pass of a part ends before the forward pass of the next part begins."""
        events = []

        def log(kind, tensor, index):
            def record(value, index):
                events.append(f"{kind}{index}")
                return value

            logged = tf.py_func(record, [tensor, index], tensor.dtype)
            logged.set_shape(tensor.shape)
            return logged

        def loss_of(features, index):
            w = tf.get_variable("w", [2], initializer=tf.ones_initializer())

            @tf.custom_gradient
            def logged(x, w):
                forward = log("forward", x, index) * w

                def gradient(d_output):
                    d_output = log("backward", d_output, index)
                    return d_output * w, tf.reduce_sum(d_output * x, axis=0)

                return forward, gradient

            return tf.reduce_mean(logged(features["x"], tf.convert_to_tensor(w)) ** 2)

        self.run_parts(3, loss_of)
        one_step = [f"{kind}{index}" for index in range(3) for kind in ("forward", "backward")]
        self.assertEqual(events[:6], one_step)
        self.assertEqual(events, one_step * 2)

    def test_default_is_one_part_without_loop(self):
        indices = []

        def loss_of(features, index):
            indices.append(index)
            return self.loss_of(features, index)

        with tf.Graph().as_default():
            features = {"ids": tf.constant(self.ids), "x": tf.constant(self.x, tf.float32)}
            accumulation.mean_loss(loss_of, features)
            operations = {op.type for op in tf.get_default_graph().get_operations()}
        self.assertEqual(indices, [0])
        self.assertNoCommonElements(operations, {"While", "Enter"})

    def test_two_tpu_replicas_step_like_one(self):
        """Two replicas with the same rows match one batch that holds the rows twice."""
        with tf.Graph().as_default(), self.session() as session:
            features = {"ids": tf.constant(self.ids), "x": tf.constant(self.x, tf.float32)}
            loss = self.loss_of(features, 0)
            with tpu_function.tpu_shard_context(2), mock.patch.object(
                tf.tpu, "cross_replica_sum", lambda tensor: 2 * tensor
            ):
                train_op, norm = minimize(loss, use_tpu=True)
            session.run(tf.global_variables_initializer())
            norm = session.run([norm, train_op])[0]
            moments = {v.op.name: v.eval(session) for v in tf.global_variables()}
        _, expected_norm, d_table, d_w = self.by_hand(times=2)
        self.assertAllClose(norm, expected_norm)
        self.assertGreater(norm, 1.0)
        table = moments["bert/embeddings/word_embeddings/adam_m"]
        self.assertAllClose(table, 0.1 * d_table / norm)
        self.assertAllClose(moments["unnamed/w/adam_m"], 0.1 * d_w / norm)

    def test_mean_over_tpu_replicas_divides_their_sum(self):
        with tf.Graph().as_default(), self.session(), tpu_function.tpu_shard_context(
            2
        ), mock.patch.object(tf.tpu, "cross_replica_sum", lambda tensor: tensor + 6.0):
            (mean,) = replicas.mean_over_replicas([tf.constant(2.0)], use_tpu=True)
            self.assertEqual(mean.eval(), 4.0)

    def test_batch_statistics_are_averaged_over_parts(self):
        """Expects two updates by the mean over the parts: from 0, with momentum 0.1 and 2 / 11."""

        def loss_of(features, index):
            w = tf.get_variable("w", [], initializer=tf.ones_initializer())
            moving = tf.get_variable("n/moving_mean", initializer=0.0, trainable=False)
            value = tf.reduce_mean(features["x"]) ** 2
            layers.keep_statistics([(moving, value)])
            return w * tf.reduce_mean(features["x"])

        for use_resource in (True, False):
            with tf.Graph().as_default(), self.session() as session:
                features = {"x": tf.constant(self.x, tf.float32)}
                with tf.variable_scope("", use_resource=use_resource):
                    train_op, _ = minimize(accumulation.mean_loss(loss_of, features, 3))
                session.run(tf.global_variables_initializer())
                expected = 0.0
                value = np.mean([self.x[i : i + 2].mean() ** 2 for i in (0, 2, 4)])
                for momentum in (0.1, 2 / 11):
                    session.run(train_op)
                    expected = momentum * expected + (1 - momentum) * value
                    actual = session.run(layers.moving_variables())
                    self.assertAllClose(actual, [expected], rtol=1e-5)
                self.assertEqual(layers.take_statistics(), [])

    def test_unequal_parts_are_refused(self):
        with self.assertRaisesRegex(ValueError, "a batch of 6 cannot be split into 4 equal parts"):
            self.run_parts(4)


def train_alone_and_mirrored(*folders):
    """Trains a toy model on one CPU and on two virtual CPUs.

    Returns:
      (weights and first moments on one CPU, those on two, number of graphs still in memory).
    """
    graphs = []
    xs = np.array([[3.0, -1.0], [2.0, 5.0], [-4.0, 1.0], [0.5, 0.5]], np.float32)

    def model_fn(features, labels, mode):
        w = tf.get_variable("w", [2], initializer=tf.ones_initializer())
        loss = tf.reduce_mean(tf.square(tf.linalg.matvec(features, w)))
        train_op, _ = minimize(loss)
        train_op = tf.group(train_op, *replicas.mean_over_replicas([loss]))
        graphs.append(weakref.ref(tf.get_default_graph()))
        return tf_estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def train(folder, strategy, batch_size):
        config = tf_estimator.RunConfig(model_dir=folder, train_distribute=strategy)
        estimator = tf_estimator.Estimator(model_fn, config=config)
        dataset = functools.partial(tf.data.Dataset.from_tensor_slices, xs)
        estimator.train(lambda: dataset().repeat().batch(batch_size), steps=3)
        return [estimator.get_variable_value(name) for name in ("w", "w/adam_m")]

    cpu = tf.config.experimental.list_physical_devices("CPU")[0]
    half = tf.config.experimental.VirtualDeviceConfiguration()
    tf.config.experimental.set_virtual_device_configuration(cpu, [half, half])
    strategy = tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    trained = train(folders[0], None, 4), train(folders[1], strategy, 2)
    gc.collect()
    return (*trained, sum(graph() is not None for graph in graphs))


def l2(arrays):
    return [np.sqrt(np.sum(np.square(array, dtype=np.float64))) for array in arrays]


@needs_shared
@pytest.mark.estimator
@pytest.mark.slow
class TrainingGoldenTest(tf.test.TestCase):
    """Compares twenty steps on a real BERT with those of the original adapter-bert."""

    def setUp(self):
        super().setUp()
        self.golden = np.load(os.path.join(SHARED, "goldens", "model_public.npz"))
        self.hyper = json.loads(str(self.golden["hyper"]))

    def placeholders(self):
        """Returns placeholders for the values of `fed`."""
        size, length = self.hyper["batch_size"], self.hyper["seq_length"]
        ids = [tf.placeholder(tf.int32, [size, length]) for _ in range(3)]
        return [*ids, tf.placeholder(tf.int32, [size])]

    def fed(self, step):
        """Returns ids, mask, segments and labels of a step's batch."""
        start = step % 4 * self.hyper["batch_size"]
        names = ("input_ids", "input_mask", "segment_ids", "label_ids")
        return [self.golden["batch/" + name][start:][: self.hyper["batch_size"]] for name in names]

    def build(self, inputs):
        """Returns (loss, logits, train_op) for `placeholders`."""
        loss, logits = self.build_without_dropout(inputs)
        train_op = optimization.create_optimizer(
            loss,
            self.hyper["learning_rate"],
            self.hyper["steps"],
            self.hyper["warmup_steps"],
            use_tpu=False,
        )
        return loss, logits, train_op

    def test_training_equals_original(self):
        golden = self.golden
        trained_names = [str(name) for name in golden["trained_variable_names"]]
        with tf.Graph().as_default(), self.session() as session:
            inputs = self.placeholders()
            loss, logits, train_op = self.build(inputs)
            trained = tuning.trained_variables()
            gradients = tf.gradients(loss, trained)
            session.run(tf.global_variables_initializer())
            variables = {v.op.name: v for v in tf.global_variables()}
            names = [name for name in variables if "init/" + name in golden]
            tiny.load(
                session,
                [variables[name] for name in names],
                [golden["init/" + name] for name in names],
            )
            feeds = [dict(zip(inputs, self.fed(t))) for t in range(self.hyper["steps"])]
            first_gradients = session.run(gradients, feeds[0])
            losses = [session.run([loss, train_op], feed)[0] for feed in feeds]
            final = session.run([variables[name] for name in trained_names])
            final_logits = session.run(logits, feeds[0])
        first_gradients = {v.op.name: value for v, value in zip(trained, first_gradients)}
        self.assertEqual(set(first_gradients), set(trained_names))
        self.assertEqual(set(variables), set(map(str, golden["global_variable_names"])))
        first_gradients = [first_gradients[name] for name in trained_names]
        self.assertAllClose(l2(first_gradients), golden["gradient_l2"], rtol=2e-5)
        self.assertAllClose(losses, golden["train/losses"], rtol=2e-5, atol=0)
        self.assertAllClose(l2(final), golden["train/final_l2"], rtol=2e-5)
        sums = [np.sum(value, dtype=np.float64) for value in final]
        self.assertAllClose(sums, golden["train/final_sum"], rtol=1e-4, atol=1e-4)
        self.assertAllClose(final_logits, golden["train/final_logits"], rtol=0, atol=2e-5)

    @unittest.skipIf(tf.__version__.startswith("1."), "TensorFlow 1 shows no XLA program.")
    def test_training_compiled_by_xla_equals_original(self):
        golden = self.golden
        with tf.Graph().as_default() as graph:
            inputs = self.placeholders()
            with tpu_program.whole_program(), tf.variable_scope("", use_resource=True):
                loss, _, train_op = self.build(inputs)
                with tf.control_dependencies([train_op]):
                    outputs = [tf.identity(loss)]
            variables = tf.global_variables()
            with self.session(graph) as session:
                session.run(tf.global_variables_initializer())
                start = dict(zip([v.op.name for v in variables], session.run(variables)))
        start.update((name, golden["init/" + name]) for name in start if "init/" + name in golden)
        values = {v.op.name: tf.Variable(start[v.op.name], dtype=v.dtype) for v in variables}
        definition = tpu_program.importable(graph, outputs)

        @tf.function(jit_compile=True, autograph=False)
        def run(*arrays):
            fed = {tensor.name: array for tensor, array in zip(inputs, arrays)}
            return tpu_program.imported(definition, outputs, fed, values)

        losses = []
        for t in range(8):  # Each takes a second; `test_training_equals_original` runs all.
            arrays = [tf.constant(values, tf.int32) for values in self.fed(t)]
            losses.append(run(*arrays)[0].numpy())
        self.assertAllClose(losses, golden["train/losses"][:8], rtol=0, atol=2e-5)
        text = run.experimental_get_compiler_ir(*arrays)(stage="hlo")
        self.assertIn("ENTRY", text)
        self.assertEqual(hlo_text.dynamic_shapes(text), [])

    def build_without_dropout(self, batch):
        folder = os.path.join(SHARED, "checkpoints", "minilm-l6-uncased")
        config = modeling.BertConfig.from_json_file(os.path.join(folder, "bert_config.json"))
        loss, _, logits, _ = run_classifier.create_model(
            config, False, *batch, 2, use_one_hot_embeddings=False
        )
        prefix = os.path.join(folder, "bert_model.ckpt")
        assignment, _ = modeling.get_assignment_map_from_checkpoint(
            tf.trainable_variables(), prefix
        )
        tf.train.init_from_checkpoint(prefix, assignment)
        return loss, logits
