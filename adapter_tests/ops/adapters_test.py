"""Tests of adapters.py: compares every variant with NumPy, alone and in BERT."""

import dataclasses
import itertools
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl.testing import parameterized

import modeling
from adapter_bert.model import configs, model_variables
from adapter_bert.ops import adapters, layers, xla
from adapter_bert.shell.errors import UserError
from adapter_tests.support import tiny
from adapter_tests.support.numpy_bert import numpy_bert, numpy_norm

# Each variant alone, and some combinations.
VARIANTS = (
    {},
    {"normalization": "layer"},
    {"normalization": "batch"},
    {"depth": 2},
    {"depth": 3},
    {"activation": "swish"},
    {"activation": "linear"},
    {"sites": "attention"},
    {"sites": "feed_forward"},
    {"placement": "parallel"},
    {"interaction": "multiply"},
    {"placement": "parallel", "interaction": "multiply"},
    {"placement": "parallel", "sites": "feed_forward", "scaling": 4.0},
    {"placement": "normalized", "sites": "feed_forward"},
    {"placement": "normalized", "interaction": "multiply", "scaling": 0.5},
    {"normalization": "batch", "depth": 2, "sites": "attention", "placement": "parallel"},
    {"normalization": "layer", "depth": 3, "sites": "feed_forward", "interaction": "multiply"},
)
# adapter-bert's settings.
DEFAULTS = {
    "size": 64,
    "activation": "gelu",
    "init_scale": 1e-3,
    "fn": "feedforward_adapter",
    "layers": None,
    "normalization": "none",
    "depth": 1,
    "sites": "both",
    "placement": "sequential",
    "scaling": 1.0,
    "interaction": "add",
}
ACTIVATIONS = {
    "linear": lambda x: x,
    "gelu": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def numpy_adapter(config, values, x, residual=None, trains=False):
    """Computes an adapter's output for x [..., D] in NumPy (Houlsby et al. 2019, section 3.6).

    `values` maps names below "adapters/" to arrays. Batch normalization uses the statistics of x if
    `trains`, else the moving statistics.
    """
    act = ACTIVATIONS[config.activation]
    hidden = x @ values["weights1"] + values["biases1"]
    if config.normalization == "layer":
        centred = hidden - hidden.mean(-1, keepdims=True)
        hidden = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        hidden = hidden * values["LayerNorm/gamma"] + values["LayerNorm/beta"]
    if config.normalization == "batch":
        axes = tuple(range(x.ndim - 1))
        mean, variance = values["BatchNorm/moving_mean"], values["BatchNorm/moving_variance"]
        if trains:
            mean, variance = hidden.mean(axes), hidden.var(axes)
        hidden = (hidden - mean) / np.sqrt(variance + 1e-6)
        hidden = hidden * values["BatchNorm/gamma"] + values["BatchNorm/beta"]
    hidden = act(hidden)
    for index in range(2, config.depth + 1):
        hidden = act(hidden @ values[f"weights_hidden{index}"] + values[f"biases_hidden{index}"])
    change = config.scaling * (hidden @ values["weights2"] + values["biases2"])
    adapted = x if residual is None else residual
    return adapted * (1 + change) if config.interaction == "multiply" else adapted + change


def load_random(session, scale=0.5):
    """Fills all variables with noise (variances: around 1) and returns the values by name."""
    random = np.random.RandomState(1)
    variables = sorted(tf.global_variables(), key=lambda v: v.name)
    values = [random.normal(0, scale, variable.shape.as_list()) for variable in variables]
    values = [x**2 + 0.5 if "variance" in v.name else x for v, x in zip(variables, values)]
    tiny.load(session, variables, values)
    return {v.op.name: np.float32(x) for v, x in zip(variables, values)}


@pytest.mark.without_xla
class FeedforwardAdapterTest(tf.test.TestCase):
    """Tests every combination of variants of a single adapter."""

    X, Y = np.random.RandomState(0).normal(size=[2, 3, 4, 6]).astype(np.float32)

    def check(self, residual, trains, **settings):
        config = modeling.AdapterConfig(size=5, **settings)
        with tf.Graph().as_default(), self.session() as session:
            statistics = [] if trains else None
            x = tf.constant(self.X)
            y = x if residual is None else tf.constant(residual)
            place = modeling.Place(config, y, statistics)
            terms = modeling.feedforward_adapter(x, config.size, place=place).terms
            self.assertLen(terms, 2)
            values = load_random(session)
            values = {name[len("adapters/") :]: value for name, value in values.items()}
            kept, added = session.run(terms)
            self.assertAllEqual(kept, self.X if residual is None else residual)
            expected = numpy_adapter(config, values, self.X, residual, trains)
            self.assertAllClose(kept + added, expected, rtol=1e-4, atol=1e-4)
            if settings["normalization"] == "batch" and trains:
                hidden = (self.X @ values["weights1"] + values["biases1"]).reshape([-1, 5])
                self.assertEqual(
                    [variable.op.name for variable, _ in statistics],
                    ["adapters/BatchNorm/moving_mean", "adapters/BatchNorm/moving_variance"],
                )
                actual = session.run([value for _, value in statistics])
                self.assertAllClose(actual, [hidden.mean(0), hidden.var(0)], rtol=1e-4)

    def test_every_combination_equals_numpy(self):
        for normalization, depth, interaction, residual in itertools.product(
            configs.VARIANTS["normalization"],
            (1, 3),
            configs.VARIANTS["interaction"],
            (None, self.Y),
        ):
            settings = dict(normalization=normalization, depth=depth, interaction=interaction)
            for trains in (False, True) if normalization == "batch" else (False,):
                with self.subTest(residual=residual is not None, trains=trains, **settings):
                    self.check(residual, trains, **settings)

    def test_adapter_without_place_equals_numpy(self):
        with tf.Graph().as_default(), self.session() as session:
            whole = modeling.feedforward_adapter(tf.constant(self.X), 5)
            values = {n[len("adapters/") :]: v for n, v in load_random(session).items()}
            expected = numpy_adapter(modeling.AdapterConfig(size=5), values, self.X)
            self.assertAllClose(session.run(whole), expected, rtol=1e-4, atol=1e-4)

    def test_default_variables_match_adapter_bert(self):
        with tf.Graph().as_default():
            modeling.feedforward_adapter(tf.zeros([2, 6]), 5)
            self.assertEqual(
                [(v.op.name, v.shape.as_list()) for v in tf.global_variables()],
                [
                    ("adapters/weights1", [6, 5]),
                    ("adapters/biases1", [1, 5]),
                    ("adapters/weights2", [5, 6]),
                    ("adapters/biases2", [1, 6]),
                ],
            )

    def test_initial_weights_have_expected_stddev(self):
        for given, scale in (((), 1e-3), ((64, 0.05), 0.05)):
            with tf.Graph().as_default(), self.session() as session:
                tf.set_random_seed(1)
                x = tf.zeros([1, 300])
                place = modeling.Place(modeling.AdapterConfig(depth=2), x)
                modeling.feedforward_adapter(x, *given, place=place)
                session.run(tf.global_variables_initializer())
                values = session.run({v.op.name: v for v in tf.global_variables()})
            weights = values["adapters/weights1"]
            self.assertEqual(weights.shape, (300, 64))
            # Truncating a normal at two standard deviations multiplies its stddev by 0.8796.
            self.assertAllClose(np.std(weights), scale * 0.8796, rtol=0.02)
            self.assertLessEqual(np.abs(weights).max(), 2 * scale * 1.0001)
            # The hidden layer's scale is 64**-0.5 = 0.125.
            hidden = values["adapters/weights_hidden2"]
            self.assertAllClose(np.std(hidden), 0.125 * 0.8796, rtol=0.02)


class BertTest(tf.test.TestCase):
    """Tests each variant in a BERT with one layer."""

    def setUp(self):
        super().setUp()
        self.can_fuse = xla.can_fuse
        plain = mock.patch.object(xla, "can_fuse", lambda: False)  # XLA compiles for seconds.
        plain.start()
        self.addCleanup(plain.stop)
        arrays = tiny.arrays(rows=4)
        self.inputs = [arrays[name] for name in ("input_ids", "input_mask", "segment_ids")]

    def build(self, adapter, is_training=False, dropout=0.1, **options):
        """Builds a `modeling.BertModel` with an adapter config, or None for no adapters."""
        config = tiny.config(
            num_hidden_layers=1,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            initializer_range=0.5,
        )
        adapter_fn = adapter
        inputs = [tf.constant(values) for values in self.inputs]
        return modeling.BertModel(
            config, is_training, *inputs, scope="bert", adapter_fn=adapter_fn, **options
        )

    def expected(self, adapter, values, trains):
        """Computes the outputs in NumPy."""
        scopes = {
            "both": ("attention/output", "output"),
            "attention": ("attention/output",),
            "feed_forward": ("output",),
        }[adapter.sites]

        def adapt(output, residual, name):
            if name[len("bert/encoder/layer_0/") :] not in scopes:
                return output
            adapter_values = {
                n[len(name + "/adapters/") :]: v
                for n, v in values.items()
                if n.startswith(name + "/adapters/")
            }
            if adapter.placement == "parallel":
                return numpy_adapter(adapter, adapter_values, residual, output, trains)
            if adapter.placement == "normalized":
                normalized = numpy_norm(values, output + residual, name)
                return numpy_adapter(adapter, adapter_values, normalized, output, trains)
            return numpy_adapter(adapter, adapter_values, output, None, trains)

        config = tiny.config(num_hidden_layers=1)
        return numpy_bert(values, config, *self.inputs, adapters=False, adapt=adapt)

    def test_outputs_equal_numpy(self):
        for variant in VARIANTS:
            for trains in (False, True) if variant.get("normalization") == "batch" else (False,):
                adapter = modeling.AdapterConfig(size=5, **variant)
                with self.subTest(trains=trains, **variant), tf.Graph().as_default():
                    model = self.build(adapter, trains, dropout=0.0)
                    with self.session() as session:
                        values = load_random(session, 0.3)
                        actual = session.run(
                            [model.get_sequence_output(), model.get_pooled_output()]
                        )
                    expected = self.expected(adapter, values, trains)
                    self.assertAllClose(actual, expected, rtol=1e-3, atol=1e-3)

    def test_pooled_only_gives_same_pooled_output(self):
        for variant in ({"placement": "parallel"}, {"normalization": "layer"}):
            adapter, actual = modeling.AdapterConfig(size=5, **variant), []
            for pooled_only in (False, True):
                with tf.Graph().as_default(), self.session() as session:
                    model = self.build(adapter, pooled_only=pooled_only)
                    load_random(session)
                    actual.append(session.run(model.get_pooled_output()))
            self.assertAllClose(actual[0], actual[1], rtol=1e-4, atol=1e-5)

    def test_parameter_counts_match_formula(self):
        """Expects 2mD + (k-1)(m^2 + m) + m + D, plus 2m for gamma and beta; m = 5, D = 8."""
        for variant in VARIANTS:
            depth = variant.get("depth", 1)
            each = 2 * 5 * 8 + (depth - 1) * (5 * 5 + 5) + 5 + 8
            each += 2 * 5 if "normalization" in variant else 0
            count = 1 if "sites" in variant else 2
            with self.subTest(**variant), tf.Graph().as_default():
                self.build(None)
                plain = set(tf.trainable_variables())
                with tf.variable_scope("", reuse=tf.AUTO_REUSE):
                    self.build(modeling.AdapterConfig(size=5, **variant))
                new = set(tf.trainable_variables()) - plain
                self.assertEqual(sum(v.shape.num_elements() for v in new), count * each)
                self.assertEqual(new, set(tf.get_collection("adapters")))
                shapes = model_variables.adapter_shapes(
                    modeling.AdapterConfig(size=5, **variant), 8
                )
                moving = {name for name in shapes if name.endswith(model_variables.MOVING)}
                self.assertLen(moving, 2 if variant.get("normalization") == "batch" else 0)
                sizes = [np.prod(s) for name, s in shapes.items() if name not in moving]
                self.assertEqual(sum(sizes), each)

    def test_new_adapters_are_near_identity(self):
        for variant in VARIANTS:
            distances = []
            for init_scale in (1e-3,) if variant else (1e-3, 1.0):
                with tf.Graph().as_default(), self.session() as session:
                    tf.set_random_seed(2)
                    outputs = []
                    for adapter in (
                        None,
                        modeling.AdapterConfig(5, init_scale=init_scale, **variant),
                    ):
                        with tf.variable_scope("", reuse=tf.AUTO_REUSE):
                            model = self.build(adapter, True, dropout=0.0)
                        outputs.append(model.get_sequence_output())
                    session.run(tf.global_variables_initializer())
                    plain, adapted = session.run(outputs)
                    distances.append(np.abs(plain - adapted).max())
            with self.subTest(**variant):
                # The outputs of LayerNorms are of order 1.
                self.assertLess(distances[0], 0.02)
                if not variant:
                    self.assertGreater(distances[1], 0.2)

    def test_gradients_reach_every_variable(self):
        for variant in VARIANTS:
            with self.subTest(**variant), tf.Graph().as_default(), self.session() as session:
                model = self.build(
                    modeling.AdapterConfig(size=5, **variant),
                    True,
                    dropout_key=modeling.DropoutKey(1, 2),
                )
                variables = tf.get_collection("adapters")
                loss = tf.reduce_sum(model.get_sequence_output() ** 3)
                gradients = tf.gradients(loss, variables)
                load_random(session)
                for variable, gradient in zip(variables, session.run(gradients)):
                    # A bias before batch normalization has no effect, so its gradient is 0.
                    has_no_effect = (
                        variant.get("normalization") == "batch" and "biases1" in variable.name
                    )
                    if not has_no_effect:
                        self.assertGreater(np.abs(gradient).max(), 1e-3, variable.name)

    def test_recomputation_keeps_gradients_and_statistics(self):
        actual = []
        for recompute in (False, True):
            with tf.Graph().as_default(), self.session() as session:
                model = self.build(
                    modeling.AdapterConfig(size=5, **VARIANTS[-2]),
                    True,
                    dropout_key=modeling.DropoutKey(1, 2),
                    recompute_activations=recompute,
                )
                variables = sorted(tf.get_collection("adapters"), key=lambda v: v.name)
                gradients = tf.gradients(tf.reduce_sum(model.get_pooled_output() ** 2), variables)
                statistics = layers.take_statistics()
                self.assertEqual(
                    [variable.op.name for variable, _ in statistics],
                    [
                        f"bert/encoder/layer_0/attention/output/adapters/BatchNorm/moving_{what}"
                        for what in ("mean", "variance")
                    ],
                )
                load_random(session)
                values = [value for _, value in statistics]
                actual.append(session.run([gradients, values]))
        self.assertAllClose(actual[0], actual[1], rtol=1e-4, atol=1e-5)

    def test_layer_norm_used_twice_gets_correct_gradients(self):
        """Compares with finite differences of the loss, with saved and recomputed activations."""
        adapter = modeling.AdapterConfig(5, placement="normalized")
        for recompute in (False, True):
            with tf.Graph().as_default(), self.session() as session:
                model = self.build(
                    adapter,
                    True,
                    dropout=0.0,
                    dropout_key=modeling.DropoutKey(1, 2),
                    recompute_activations=recompute,
                )
                variables = tf.get_collection("layer_norm")
                # Gamma and beta of three LayerNorms: the embeddings' one and the layer's two.
                self.assertLen(set(variables), 6)
                loss = tf.reduce_mean(model.get_sequence_output() ** 3)
                gradients = tf.gradients(loss, variables)
                values = load_random(session, 0.3)
                for variable, gradient in zip(variables, session.run(gradients)):
                    value = values[variable.op.name]
                    step = 0.02 * gradient / np.linalg.norm(gradient)
                    losses = []
                    for shifted in (value + step, value - step, value):
                        tiny.load(session, [variable], [shifted])
                        losses.append(session.run(loss))
                    slope = (losses[0] - losses[1]) / 0.04
                    self.assertAllClose(slope, np.linalg.norm(gradient), rtol=0.03, atol=1e-3)

    def test_layers_that_share_a_trace_keep_own_layer_norms(self):
        """In training, two layers share a trace; their results must equal those of inference."""
        config = tiny.config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        adapter = modeling.AdapterConfig(5, placement="normalized")
        actual = []
        for is_training in (False, True):
            with tf.Graph().as_default(), self.session() as session:
                model = modeling.BertModel(
                    config, is_training, *map(tf.constant, self.inputs), adapter_fn=adapter
                )
                self.assertLen(set(tf.get_collection("layer_norm")), 2 * (1 + 2 * 2))
                output = model.get_sequence_output()
                variables = sorted(tf.global_variables(), key=lambda v: v.name)
                gradients = tf.gradients(tf.reduce_sum(output**3), variables[:-2])
                load_random(session, 0.3)
                gradients = [tf.convert_to_tensor(g) for g in gradients if g is not None]
                actual.append([session.run(output), *session.run(gradients)])
        self.assertEqual(len(actual[0]), len(actual[1]))
        for inference, training in zip(*actual):
            self.assertAllClose(inference, training, rtol=1e-3, atol=1e-3)

    def test_bfloat16_results_are_close_to_float32(self):
        if tf.__version__.startswith("1."):
            self.skipTest("TensorFlow 1 has no bfloat16 products.")
        for variant in ({}, *VARIANTS[-2:]):
            with mock.patch.object(xla, "can_fuse", self.can_fuse):
                rough, exact = (
                    self.with_gradient(variant, dtype) for dtype in (tf.bfloat16, tf.float32)
                )
            with self.subTest(**variant):
                # bfloat16 has 8 significant bits: each rounding has an error of up to 0.4%.
                self.assertAllClose(rough, exact, atol=0.1)
                self.assertNotAllEqual(rough, exact)

    def with_gradient(self, variant, dtype):
        with tf.Graph().as_default(), self.session() as session:
            model = self.build(
                modeling.AdapterConfig(size=5, **variant), True, dropout=0.0, dtype=dtype
            )
            output = model.get_pooled_output()
            gradients = tf.gradients(output, tf.get_collection("adapters"))
            values = [value for _, value in layers.take_statistics()]
            tensors = [output, *model.get_all_encoder_layers(), *values, *gradients]
            self.assertEqual({tensor.dtype for tensor in tensors}, {tf.float32})
            load_random(session, 0.3)
            return session.run([output, gradients])[0]


class AdapterConfigTest(parameterized.TestCase):
    def test_variant_lists_non_default_fields(self):
        for variant in ({}, {"depth": 2, "sites": "attention"}, {"normalization": "batch"}):
            config = modeling.AdapterConfig(size=3, activation="relu", **variant)
            self.assertEqual(config.variant(), variant)

    @parameterized.parameters(
        ({"size": 0}, "--adapter_size must be at least 1, but is 0"),
        ({"size": 2**31}, "--adapter_size=2147483648 exceeds"),
        ({"init_scale": -1e-9}, "--adapter_init_scale must be 0 or more, but is -1e-09"),
        ({"init_scale": float("inf")}, "--adapter_init_scale must be .* but is inf"),
        ({"init_scale": float("nan")}, "--adapter_init_scale must be .* but is nan"),
        ({"normalization": "group"}, "--adapter_normalization=group: .* none, layer, batch"),
        ({"scaling": 0.0}, "--adapter_scaling must be a number above 0"),
        ({"scaling": float("nan")}, "--adapter_scaling must be .* but is nan"),
        ({"scaling": 1e7}, "--adapter_scaling must be .* but is 10000000"),
        ({"depth": 0}, "--adapter_depth=0: expected one of 1 to 100"),
        ({"depth": -1}, "--adapter_depth=-1"),
        ({"depth": 101}, "--adapter_depth=101"),
        ({"sites": "all"}, "--adapter_sites=all: .* both, attention, feed_forward"),
        ({"placement": "beside"}, "--adapter_placement=beside: .* sequential, parallel"),
        ({"interaction": "gate"}, "--adapter_interaction=gate: .* add, multiply"),
        ({"activation": "gelo"}, "--adapter_activation: .*gelo.*swish"),
        ({"normalization": "layer", "size": 1}, "--adapter_normalization=layer .*size=1"),
    )
    def test_invalid_settings_are_refused(self, wrong, part):
        with self.assertRaisesRegex(UserError, part):
            modeling.AdapterConfig(**wrong)

    @parameterized.parameters(
        {"size": 1},
        {"size": 2**31 - 1},
        {"init_scale": 0.0},
        {"depth": 100},
        {"normalization": "layer", "size": 2},
        {"normalization": "batch", "size": 1},
    )
    def test_settings_at_limits_are_accepted(self, **settings):
        found = dataclasses.asdict(modeling.AdapterConfig(**settings))
        self.assertEqual(found, {**DEFAULTS, **settings})

    def test_settings_are_immutable(self):
        with self.assertRaises(dataclasses.FrozenInstanceError):
            modeling.AdapterConfig().size = 0

    def test_fn_none_has_no_variables(self):
        self.assertEqual(model_variables.adapter_shapes(modeling.AdapterConfig(fn="none"), 8), {})
        for name in ("none", "", "None"):
            self.assertTrue(modeling.AdapterConfig(fn=name).is_none)
        self.assertFalse(modeling.AdapterConfig().is_none)

    def test_get_adapter_finds_functions_by_name(self):
        get = modeling.get_adapter
        self.assertIs(get("Feedforward_Adapter"), modeling.feedforward_adapter)
        self.assertIs(get(len), len)
        for no_adapter in (None, "", "none", "None"):
            self.assertIsNone(get(no_adapter))
        with self.assertRaisesRegex(
            UserError, "--adapter_fn=lora: .* expected feedforward_adapter, none, or"
        ):
            get("lora")


class LayersTest(tf.test.TestCase):
    GATES = np.array([[1.0, 0.0, 1.0], [0.25, 1.0, 1.0]], np.float32)

    def build(self, adapter_fn, num_layers=3, **options):
        """Builds a plain or adapted BERT and returns its `modeling.BertModel`."""
        config = tiny.config(num_hidden_layers=num_layers, initializer_range=0.5)
        ids = tf.constant([[1, 2, 3], [4, 5, 6]])
        return modeling.BertModel(
            config, False, ids, scope="bert", adapter_fn=adapter_fn, **options
        )

    def test_adapters_are_in_selected_layers_and_sites(self):
        adapter = modeling.AdapterConfig(sites="feed_forward", layers=(0, 2))
        for adapter_fn, adapted, expected in (
            (None, None, []),
            (adapter, None, ["layer_0/output", "layer_2/output"]),
            (adapter, (1,), ["layer_1/output"]),
            (
                modeling.AdapterConfig(sites="feed_forward"),
                None,
                ["layer_0/output", "layer_1/output", "layer_2/output"],
            ),
            ("feedforward_adapter", (1,), ["layer_1/attention/output", "layer_1/output"]),
            (modeling.feedforward_adapter, (1,), ["layer_1/attention/output", "layer_1/output"]),
        ):
            with tf.Graph().as_default():
                self.build(adapter_fn, adapter_layers=adapted)
                names = [variable.op.name for variable in tf.get_collection("adapters")]
            suffix, start = "/adapters/weights1", len("bert/encoder/")
            sites = [name[start : -len(suffix)] for name in names if name.endswith(suffix)]
            self.assertEqual(sites, expected)

    def test_layers_out_of_range_are_refused(self):
        for adapted, wrong in (((-1,), "-1"), (range(1, 4), "3"), ((0, 5, -2), "-2, 5")):
            for adapter, given in (
                (modeling.AdapterConfig(layers=adapted), None),
                (modeling.AdapterConfig(), adapted),
            ):
                with tf.Graph().as_default(), self.assertRaisesRegex(
                    ValueError, f"from 0 to 2, but names .*{wrong}\\."
                ):
                    self.build(adapter, adapter_layers=given)

    def test_gates_mix_adapted_and_original_output(self):
        """Expects gate * adapted + (1 - gate) * output; all tokens of a sequence share a gate."""
        output, residual = np.random.RandomState(0).normal(size=[2, 6, 4]).astype(np.float32)
        sequential = modeling.AdapterConfig(size=5, interaction="multiply")
        parallel = modeling.AdapterConfig(size=5, placement="parallel")
        for adapter, adapt, count in (
            (
                adapters.Adapter(modeling.feedforward_adapter, sequential),
                lambda v: numpy_adapter(sequential, v, output),
                2,
            ),
            (
                adapters.Adapter(modeling.feedforward_adapter, parallel),
                lambda v: numpy_adapter(parallel, v, residual, output),
                2,
            ),
            (adapters.Adapter(lambda x: x**2), lambda v: output**2, 2),
            (adapters.Adapter(lambda x: (x**2, x**3)), lambda v: output**2 + output**3, 3),
        ):
            with tf.Graph().as_default(), self.session() as session:
                tensors, gates = tf.constant(output), tf.constant(self.GATES)
                with tf.variable_scope("", reuse=tf.AUTO_REUSE):
                    sums = [
                        adapter.in_layer(index, gates).after(
                            "output", tf.constant(residual), modeling.ForwardPass()
                        )(tensors)
                        for index in range(2)
                    ]
                self.assertEqual([len(each.terms) for each in sums], [count] * 2)
                values = {n[len("adapters/") :]: v for n, v in load_random(session).items()}
                actual = session.run([tf.convert_to_tensor(each) for each in sums])
            gate = np.repeat(self.GATES.T[:2], 3, axis=1)[:, :, None]
            expected = gate * adapt(values) + (1 - gate) * output
            self.assertAllClose(actual, expected, rtol=1e-5, atol=1e-5)
