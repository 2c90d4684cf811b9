import contextlib
import functools
import math
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

from adapter_bert.ops import layers, parameters, xla
from adapter_bert.ops.dropout import DropoutKey
from adapter_bert.shell.errors import UserError
from adapter_tests.support.numpy_bert import erf
from adapter_tests.support.ways import both_ways


def derivative(function, x, d_output, step=1e-5):
    """Returns d(sum(function(x) * d_output)) / dx by central differences, in float64."""
    gradient = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        moved = [x.copy(), x.copy()]
        moved[0][index] += step
        moved[1][index] -= step
        up, down = (np.sum(function(m) * d_output) for m in moved)
        gradient[index] = (up - down) / (2 * step)
    return gradient


def numpy_layer_norm(x, gamma, beta):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True)) * gamma + beta


class Given(parameters.Parameters):
    """Provides given weights: arrays or Tensors by name."""

    def __init__(self, **weights):
        self.weights = weights

    def get_for_rows(self, name, rows, initializer, **options):
        return tf.cast(self.weights[name], tf.float32)


@contextlib.contextmanager
def as_for_a_tpu():
    """Builds the graph that XLA compiles as a whole on a TPU. Omits barriers, which need XLA."""
    barriers = mock.patch.object(xla, "xla_optimization_barrier", tuple)
    with barriers, mock.patch.object(xla, "is_in_xla", lambda: True):
        yield


class BothWaysTest(tf.test.TestCase):
    """Tests each fused function both with XLA, where possible, and operation by operation."""

    def setUp(self):
        super().setUp()
        self.random = np.random.RandomState(0)

    def check(self, function, reference, inputs):
        """Compares `function` of Tensors and its gradients with `reference` of NumPy arrays."""
        inputs = [np.asarray(x, np.float64) for x in inputs]
        d_output = self.random.normal(size=reference(*inputs).shape)
        for way in both_ways():
            with way, tf.Graph().as_default(), self.session() as session:
                tensors = [tf.constant(x, tf.float32) for x in inputs]
                output = function(*tensors)
                gradients = tf.gradients(output, tensors, tf.constant(d_output, tf.float32))
                session.run(tf.global_variables_initializer())
                output, gradients = session.run([output, gradients])
            self.assertAllClose(output, reference(*inputs), rtol=1e-5, atol=1e-5)
            for index, gradient in enumerate(gradients):

                def of_one(x, index=index):
                    return reference(*inputs[:index], x, *inputs[index + 1 :])

                expected = derivative(of_one, inputs[index], d_output)
                self.assertAllClose(gradient, expected, rtol=1e-4, atol=1e-4)

    def test_gelu_matches_numpy(self):
        def reference(x):
            return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

        self.check(layers.gelu, reference, [self.random.normal(0, 3, [4, 5])])

    def test_exact_gelu_matches_numpy(self):
        def reference(x):
            return x * 0.5 * (1 + erf(x / math.sqrt(2)))

        self.check(layers.gelu_erf, reference, [self.random.normal(0, 3, [4, 5])])

    def test_layer_norm_of_a_sum_matches_numpy(self):
        gamma, beta = self.random.normal(size=[2, 6])

        def reference(x, y):
            return numpy_layer_norm(x + y, gamma, beta)

        def function(x, y, training=True):
            with tf.variable_scope("norm", reuse=tf.AUTO_REUSE):
                weights = Given(gamma=gamma, beta=beta)
                return layers.layer_norm(layers.Sum(x) + y, training=training, parameters=weights)

        inputs = [self.random.normal(size=[2, 3, 6]) for _ in range(2)]
        self.check(function, reference, inputs)
        self.check(functools.partial(function, training=False), reference, inputs)

    def test_layer_norm_gradients_of_weights_match_numpy(self):
        x = self.random.normal(size=[2, 3, 6])

        reference = functools.partial(numpy_layer_norm, x)

        def function(gamma, beta, training=True):
            weights = Given(gamma=gamma, beta=beta)
            rows = tf.constant(x, tf.float32)
            return layers.layer_norm(rows, training=training, parameters=weights)

        inputs = self.random.normal(size=[2, 6])
        self.check(function, reference, inputs)
        self.check(functools.partial(function, training=False), reference, inputs)

    def test_layer_norm_with_weights_per_row_matches_numpy(self):
        x, gamma, beta = self.random.normal(size=[3, 6, 4])
        expected = numpy_layer_norm(x, gamma, beta)
        for way in both_ways():
            with way, tf.Graph().as_default(), self.session() as session:
                weights = Given(gamma=gamma, beta=beta)
                rows = tf.constant(x, tf.float32)
                output = layers.layer_norm(rows, training=False, parameters=weights)
                self.assertAllClose(session.run(output), expected, rtol=1e-5, atol=1e-5)

    def test_affine_with_weights_per_example_matches_numpy(self):
        x, kernel = self.random.normal(size=[6, 4]), self.random.normal(size=[3, 4, 5])
        for shape in ([3, 5], [3, 1, 5]):
            bias = self.random.normal(size=shape)
            expected = x.reshape(3, 2, 4) @ kernel + bias.reshape(3, 1, 5)
            with tf.Graph().as_default(), self.session() as session:
                values = [tf.constant(value, tf.float32) for value in (x, kernel, bias)]
                output = session.run(layers.affine(*values))
            self.assertAllClose(output, expected.reshape(6, 5), rtol=1e-5, atol=1e-5)

    def test_attention_with_masks_matches_numpy(self):
        mask = np.array([[[1, 1, 1, 0]], [[1, 1, 0, 0]]])

        def reference(q, k, v, mask=mask):
            scores = np.einsum("bnfh,bnth->bnft", q, k) / math.sqrt(q.shape[-1])
            scores = np.where(mask[:, None, :, :] == 1, scores, -np.inf)
            probs = np.exp(scores - scores.max(-1, keepdims=True))
            probs /= probs.sum(-1, keepdims=True)
            return np.einsum("bnft,bnth->bnfh", probs, v)

        def function(q, k, v):
            return layers.dot_product_attention(q, k, v, tf.constant(mask))

        inputs = [self.random.normal(size=[2, 2, 4, 3]) for _ in range(3)]
        self.check(function, reference, inputs)
        self.check(function, reference, [inputs[0][:, :, :1], *inputs[1:]])
        everything = functools.partial(reference, mask=np.ones([1, 1, 1]))
        self.check(layers.dot_product_attention, everything, inputs)
        # Causal: each query has its own mask, which hides later keys.
        causal = np.tril(np.ones([1, 4, 4]))
        self.check(
            lambda q, k, v: layers.dot_product_attention(q, k, v, tf.constant(causal)),
            functools.partial(reference, mask=causal),
            inputs,
        )

    def test_attention_dropout_drops_and_rescales_probabilities(self):
        # One-hot values show in the output which probabilities were dropped.
        for key in (DropoutKey(5, 0), None):
            for way in (*both_ways(), as_for_a_tpu()):
                with way, tf.Graph().as_default(), self.session() as session:
                    pairs, kept = session.run(self.attention_with_dropout(key))
                self.assertBetween(int(kept.sum()), 8, 28)  # 18 of 36, +- 3.3 stddevs.
                for actual, expected in pairs:
                    self.assertAllClose(actual, expected, atol=1e-5)

    def attention_with_dropout(self, key):
        """Returns pairs of Tensors to compare, and 1 for every probability that is kept."""
        shape = [1, 1, 6, 6]
        q, k = (tf.constant(self.random.normal(size=shape), tf.float32) for _ in "qk")
        v = tf.eye(6)[tf.newaxis, tf.newaxis]
        with tf.variable_scope("self"):
            output = layers.dot_product_attention(q, k, v, None, 0.5, dropout_key=key)
        d_output = tf.constant(self.random.normal(size=shape), tf.float32)
        probs = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / math.sqrt(6))
        kept = tf.stop_gradient(tf.cast(tf.not_equal(output, 0), tf.float32))
        expected = probs * kept * 2
        actual, expected_gradients = (tf.gradients(y, [q, k], d_output) for y in (output, expected))
        return [(output, expected), (actual, expected_gradients)], kept


class Bfloat16Test(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.random = np.random.RandomState(0)
        if tf.__version__.startswith("1."):
            self.skipTest("TensorFlow 1 has no bfloat16 products.")

    def test_layer_norm_sums_in_float32(self):
        x = np.array([[256.0, 258.0, 260.0, 262.0]])
        small = np.array([[0.5, -0.5, 0.0, 0.0]])  # Between 256 and 512, bfloat16 values are even.
        with tf.Graph().as_default(), self.session() as session:
            terms = [tf.constant(term, tf.bfloat16) for term in (x, small)]
            output = layers.layer_norm(layers.Sum(*terms), dtype=tf.float32)
            session.run(tf.global_variables_initializer())
            output = session.run(output)
        total = (x + small) - (x + small).mean()
        self.assertAllClose(output, total / total.std(), atol=1e-5)

    def test_gradients_of_variables_are_float32_sums(self):
        rows = 4096
        with tf.Graph().as_default(), self.session() as session:
            x = tf.constant(self.random.normal(size=[rows, 8]), tf.bfloat16)
            output = layers.layer_norm(x)
            variables = sorted(tf.global_variables(), key=lambda variable: variable.name)
            beta, gamma = tf.gradients(output, variables)
            self.assertEqual((gamma.dtype, beta.dtype), (tf.float32, tf.float32))
            session.run(tf.global_variables_initializer())
            # Every summand is 1; a sum in bfloat16 would stop at 256.
            self.assertAllEqual(session.run(beta), [rows] * 8)

    def test_sum_as_a_tensor_is_computed_in_float32(self):
        with tf.Graph().as_default(), self.session() as session:
            small = tf.constant(0.5, tf.bfloat16)
            total = tf.convert_to_tensor(layers.Sum(tf.constant(256.0, tf.bfloat16), *[small] * 4))
            self.assertEqual(session.run(total), 258.0)
            self.assertEqual((total.dtype, total.shape.as_list()), (tf.bfloat16, []))

    def test_products_of_a_sum_are_tensors(self):
        with tf.Graph().as_default(), self.session() as session:
            total, three = layers.Sum(tf.constant(1.0), tf.constant(4.0)), tf.constant(3.0)
            products = [total * 3.0, 3.0 * total, total * three, three * total]
            self.assertEqual(session.run(products), [15.0] * 4)

    def test_gradients_of_biases_are_float32_sums(self):
        with tf.Graph().as_default(), self.session() as session:
            bias = tf.zeros([3])
            output = layers.affine(tf.ones([4096, 2], tf.bfloat16), tf.ones([2, 3]), bias)
            (gradient,) = tf.gradients(output, bias)
            self.assertEqual(gradient.dtype, tf.float32)
            self.assertAllEqual(session.run(gradient), [4096] * 3)


class BatchNormLayerTest(tf.test.TestCase):
    X = np.random.RandomState(0).normal(3, 2, size=[7, 4])
    GAMMA, BETA, MEAN, VARIANCE = np.random.RandomState(1).uniform(0.5, 2, size=[4, 4])

    def run_on(self, x, dtype, statistics=None):
        """Returns (output, gradients of sum(output^2) for x, beta and gamma, statistics)."""
        with tf.Graph().as_default(), self.session() as session:
            x = tf.constant(x, dtype)
            output = layers.batch_norm(x, statistics, collections=["own"])
            self.assertEqual(output.dtype, dtype)
            names = [v.op.name for v in tf.get_collection("own")]
            self.assertEqual(names, ["BatchNorm/beta", "BatchNorm/gamma"])
            self.assertEqual(tf.get_collection("own"), tf.trainable_variables())
            self.assertEqual(
                [v.op.name for v in layers.moving_variables()],
                ["BatchNorm/moving_mean", "BatchNorm/moving_variance"],
            )
            total = tf.reduce_sum(tf.cast(output, tf.float32) ** 2)
            gradients = tf.gradients(total, [x, *tf.trainable_variables()])
            session.run(tf.global_variables_initializer())
            initial = (self.BETA, self.GAMMA, self.MEAN, self.VARIANCE)
            for variable, value in zip(tf.global_variables(), initial):
                variable.load(value, session)
            pairs = [value for _, value in statistics or ()]
            cast = [tf.cast(tensor, tf.float32) for tensor in (output, *gradients, *pairs)]
            return session.run(cast)

    def reference(self, x, gamma=GAMMA, beta=BETA):
        return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-6) * gamma + beta

    def test_training_uses_batch_statistics(self):
        output, d_x, d_beta, d_gamma, mean, variance = self.run_on(self.X, tf.float32, [])
        expected = self.reference(self.X)
        self.assertAllClose(output, expected, atol=1e-5)
        self.assertAllClose([mean, variance], [self.X.mean(0), self.X.var(0)], rtol=1e-5)
        d_output = 2 * expected
        self.assertAllClose(d_x, derivative(self.reference, self.X, d_output), atol=1e-3)
        self.assertAllClose(d_beta, d_output.sum(0), rtol=1e-4, atol=1e-4)
        self.assertAllClose(d_gamma, (d_output * (expected - self.BETA) / self.GAMMA).sum(0), 1e-4)

    def test_evaluation_uses_moving_statistics(self):
        normal = (self.X - self.MEAN) / np.sqrt(self.VARIANCE + 1e-6)
        output = self.run_on(self.X, tf.float32)[0]
        self.assertAllClose(output, normal * self.GAMMA + self.BETA, rtol=1e-4, atol=1e-5)

    def test_bfloat16_has_float32_statistics(self):
        if tf.__version__.startswith("1."):
            self.skipTest("TensorFlow 1 has no bfloat16 products.")
        # Sums of 4,096 rows of 1; in bfloat16 they would stop at 256.
        x = np.ones([4096, 4]) + 2 * (np.arange(4096) % 2)[:, np.newaxis]
        output, *_, mean, variance = self.run_on(x, tf.bfloat16, [])
        self.assertAllClose([mean, variance], [[2.0] * 4, [1.0] * 4], rtol=1e-5)
        self.assertAllClose(output, self.reference(x), rtol=1e-2, atol=1e-2)

    def test_statistics_are_returned_once(self):
        with tf.Graph().as_default():
            layers.keep_statistics([("a", 1)])
            layers.keep_statistics([("b", 2)])
            self.assertEqual(layers.take_statistics(), [("a", 1), ("b", 2)])
            self.assertEqual(layers.take_statistics(), [])


class ScopeTest(tf.test.TestCase):
    def test_a_second_normalization_has_new_variables(self):
        for normalize, name in ((layers.layer_norm, "LayerNorm"), (layers.batch_norm, "BatchNorm")):
            for reuse in (None, tf.AUTO_REUSE):
                with tf.Graph().as_default(), tf.variable_scope("a", reuse=reuse):
                    normalize(normalize(tf.zeros([2, 3])))
                    self.assertEqual(
                        [v.op.name for v in tf.trainable_variables()],
                        [f"a/{name}{n}/{part}" for n in ("", "_1") for part in ("beta", "gamma")],
                    )


class InitializerTest(tf.test.TestCase):
    def values(self, seed=None, operations=0):
        with tf.Graph().as_default(), self.session() as session:
            tf.set_random_seed(seed)
            for _ in range(operations):
                tf.constant(0)
            with tf.variable_scope("a"):
                drawn = [
                    tf.get_variable(name, [500], initializer=layers.create_initializer(0.5))
                    for name in "xy"
                ]
            session.run(tf.global_variables_initializer())
            return session.run(drawn)

    def test_values_depend_only_on_seed_and_name(self):
        x, y = self.values(seed=3)
        self.assertAllEqual(self.values(seed=3, operations=5), [x, y])
        self.assertLess(abs(np.corrcoef(x, y)[0, 1]), 0.2)
        self.assertLess(abs(np.corrcoef(x, self.values(seed=4)[0])[0, 1]), 0.2)

    def test_values_differ_without_a_seed(self):
        self.assertNotAllEqual(self.values()[0], self.values()[0])

    def test_values_are_from_a_truncated_normal(self):
        x = np.concatenate(self.values(seed=3))
        self.assertLess(np.abs(x).max(), 2 * 0.5)
        # Truncating a normal at two standard deviations multiplies its stddev by 0.8796.
        self.assertNear(np.std(x), 0.8796 * 0.5, 0.03)


class ActivationTest(tf.test.TestCase):
    def test_every_activation_equals_numpy(self):
        def sigmoid(x):
            return 1 / (1 + np.exp(-x))

        expected = {
            "elu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
            "gelu": lambda x: 0.5 * x * (1 + np.tanh(0.7978846 * (x + 0.044715 * x**3))),
            "gelu_erf": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
            "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
            "relu": lambda x: np.maximum(x, 0),
            "relu6": lambda x: np.clip(x, 0, 6),
            "sigmoid": sigmoid,
            "swish": lambda x: x * sigmoid(x),
            "tanh": np.tanh,
        }
        self.assertEqual({*expected, "linear"}, set(layers.ACTIVATIONS))
        x = np.linspace(-8, 8, 33)
        with tf.Graph().as_default(), self.session() as session:
            for name, reference in expected.items():
                actual = session.run(layers.get_activation(name)(tf.constant(x, tf.float32)))
                self.assertAllClose(actual, reference(x), atol=1e-5, msg=name)

    def test_get_activation_accepts_names_and_functions(self):
        self.assertIs(layers.get_activation("GELU"), layers.gelu)
        self.assertIs(layers.get_activation(tf.tanh), tf.tanh)
        for nothing in ("linear", ""):
            self.assertIsNone(layers.get_activation(nothing))
        with self.assertRaisesRegex(UserError, "swoosh"):
            layers.get_activation("swoosh")
        with self.assertRaisesRegex(UserError, "a name or a function, but is 3"):
            layers.get_activation(3)
