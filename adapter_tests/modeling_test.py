import json
import os
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl.testing import parameterized

import modeling
from adapter_bert.shell.errors import UserError
from adapter_tests.support import mutations, tiny
from adapter_tests.support.numpy_bert import numpy_bert, numpy_encoder
from adapter_tests.support.shared import SHARED, needs_shared

TINY = modeling.BertConfig(
    vocab_size=50,
    hidden_size=8,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=10,
    type_vocab_size=2,
)


class BertModelTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        random = np.random.RandomState(0)
        self.ids = random.randint(0, 50, (4, 7)).astype(np.int32)
        self.types = random.randint(0, 2, (4, 7)).astype(np.int32)
        self.mask = (np.arange(7) < [[7], [5], [3], [1]]).astype(np.int32)

    def build(self, adapter_fn="feedforward_adapter", is_training=False, **options):
        return modeling.BertModel(
            TINY, is_training, self.ids, self.mask, self.types, adapter_fn=adapter_fn, **options
        )

    def run_with_random_values(self, model, tensors, scale=0.3):
        """Fills all variables with noise; returns the tensors' values and a dict of variables."""
        random = np.random.RandomState(1)
        with self.session() as session:
            variables = tf.global_variables()
            values = [random.randn(*v.shape.as_list()) * scale for v in variables]
            tiny.load(session, variables, values)
            return session.run(tensors), {
                v.op.name: np.float32(value) for v, value in zip(variables, values)
            }

    def test_outputs_equal_numpy(self):
        for adapters in (True, False):
            for one_hot in (True, False):
                with tf.Graph().as_default():
                    adapter_fn = "feedforward_adapter" if adapters else None
                    model = self.build(adapter_fn, use_one_hot_embeddings=one_hot)
                    outputs = [model.get_sequence_output(), model.get_pooled_output()]
                    actual, values = self.run_with_random_values(model, outputs)
                expected = numpy_bert(values, TINY, self.ids, self.mask, self.types, adapters)
                self.assertAllClose(expected, actual, atol=1e-4, rtol=1e-4)

    def test_exact_gelu_equals_numpy(self):
        with tf.Graph().as_default():
            config = modeling.BertConfig.from_dict({**TINY.to_dict(), "hidden_act": "gelu_erf"})
            model = modeling.BertModel(config, False, self.ids, self.mask, self.types)
            actual, values = self.run_with_random_values(model, model.get_sequence_output())
        values = {name: value.astype(np.float64) for name, value in values.items()}
        inputs = self.ids, self.mask, self.types, True
        exact, approximate = (numpy_bert(values, c, *inputs)[0] for c in (config, TINY))
        self.assertAllClose(actual, exact, atol=3e-6, rtol=0)
        self.assertGreater(np.abs(approximate - exact).max(), 3e-5)

    def test_shapes_are_checked_before_variables_are_created(self):
        ids = tf.zeros([2, 4], tf.int32)
        gates = {"input_ids": ids, "adapter_gates": tf.zeros([2, 2])}  # There are 3 layers.
        cases = [
            (r"adapter_gates .* \[2, 3\], but .* \(2, 2\)", gates),
            ("input_ids", dict(input_ids=ids[0])),
            ("input_mask", dict(input_ids=ids, input_mask=tf.ones([2, 5], tf.int32))),
            ("token_type_ids", dict(input_ids=ids, token_type_ids=tf.ones([3, 4], tf.int32))),
            ("11 tokens", dict(input_ids=tf.zeros([2, 11], tf.int32))),
        ]
        with tf.Graph().as_default(), tf.variable_scope("outer"):
            for expected, arguments in cases:
                arguments = {
                    name: tf.zeros(tensor.shape, tf.int32) for name, tensor in arguments.items()
                }
                with self.assertRaisesRegex(ValueError, expected):
                    modeling.BertModel(TINY, False, **arguments)
            self.assertEmpty(tf.global_variables())

    def test_hidden_size_not_divisible_by_heads_is_refused(self):
        config = modeling.BertConfig(vocab_size=5, hidden_size=10, num_attention_heads=3)
        with tf.Graph().as_default(), self.assertRaisesRegex(UserError, "10 .* 3"):
            modeling.BertModel(config, False, tf.zeros([1, 2], tf.int32))


@pytest.mark.without_xla
class OptionsTest(tf.test.TestCase):
    """Keyword arguments for the encoder's computation and the adapters' positions."""

    IDS = np.array([[3, 1, 4, 1], [5, 9, 2, 0]])
    MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])

    def compute(self, fetch, **options):
        """Returns `fetch(model)` of a tiny BERT, with all variables drawn from one seed."""
        random = np.random.RandomState(1)
        with tf.Graph().as_default(), self.session() as session:
            model = modeling.BertModel(
                TINY, options.pop("is_training", False), self.IDS, self.MASK, **options
            )
            variables = sorted(tf.trainable_variables(), key=lambda v: v.name)
            values = [random.normal(0, 0.3, variable.shape.as_list()) for variable in variables]
            tiny.load(session, variables, values)
            return session.run(fetch(model))

    @staticmethod
    def gradients(model):
        return tf.gradients(
            tf.reduce_sum(model.get_pooled_output() ** 2),
            sorted(tf.get_collection("adapters"), key=lambda v: v.name),
        )

    def test_pooled_only_equals_pooled_output_of_full_model(self):
        whole = self.compute(lambda model: model.get_pooled_output())
        self.assertAllClose(
            self.compute(lambda model: model.get_pooled_output(), pooled_only=True), whole
        )
        self.assertAllClose(
            self.compute(self.gradients, pooled_only=True), self.compute(self.gradients)
        )

    def test_pooled_only_has_no_sequence_output(self):
        with tf.Graph().as_default():
            model = modeling.BertModel(TINY, False, self.IDS, pooled_only=True)
            self.assertLen(model.get_all_encoder_layers(), 2)
            with self.assertRaisesRegex(ValueError, "pooled_only"):
                model.get_sequence_output()

    def test_embedding_output_is_normalized_sum_of_embeddings(self):
        def fetch(model):
            values = {v.op.name: v for v in tf.global_variables() if "/embeddings/" in v.op.name}
            return model.get_embedding_output(), model.get_embedding_table(), values

        output, table, values = self.compute(fetch)
        words, types, positions, beta, gamma = (
            values["bert/embeddings/" + name]
            for name in (
                "word_embeddings",
                "token_type_embeddings",
                "position_embeddings",
                "LayerNorm/beta",
                "LayerNorm/gamma",
            )
        )
        self.assertAllEqual(table, words)
        total = words[self.IDS] + types[0] + positions[: self.IDS.shape[1]]
        normal = (total - total.mean(-1, keepdims=True)) / total.std(-1, keepdims=True)
        self.assertAllClose(output, normal * gamma + beta, rtol=1e-5, atol=1e-5)


def sum_adapter(x):
    """Implements a user's adapter with a single term: x + x W / 2."""
    weights = tf.get_variable("own", [8, 8], collections=["adapters", "variables"])
    return x + 0.5 * tf.matmul(x, tf.cast(weights, x.dtype))


@pytest.mark.without_xla
class GatesTest(tf.test.TestCase):
    """Compares models with adapter_gates to models whose adapters were silenced."""

    IDS = np.array([[3, 1, 4, 1], [5, 9, 2, 0], [7, 7, 1, 0]])
    MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]])
    # Adapters with two terms, one term, and a user's; with and without `pooled_only`.
    CASES = [
        {"adapter_fn": modeling.AdapterConfig(size=5), "pooled_only": True},
        {"adapter_fn": modeling.feedforward_adapter},
        {"adapter_fn": sum_adapter, "pooled_only": True},
    ]

    def pooled(self, gates=None, silent=((),), fetch=lambda output: output, **options):
        """Returns a list of `fetch(pooled output)`, one for each set of layers in `silent`.

        The adapters of these layers add 0 for any input.
        """
        random = np.random.RandomState(1)
        with tf.Graph().as_default(), self.session() as session:
            model = modeling.BertModel(
                TINY, False, self.IDS, self.MASK, adapter_gates=gates, **options
            )
            fetches, actual = fetch(model.get_pooled_output()), []
            variables = sorted(tf.global_variables(), key=lambda v: v.name)
            values = [random.normal(0, 0.3, variable.shape.as_list()) for variable in variables]
            for layers in silent:
                pattern = "layer_({})/.*(weights2|biases2|own)".format("|".join(map(str, layers)))
                silenced = [
                    value * 0.0 if layers and re.search(pattern, variable.name) else value
                    for variable, value in zip(variables, values)
                ]
                tiny.load(session, variables, silenced)
                actual.append(session.run(fetches))
        return actual

    def assertSame(self, actual, expected):
        # Gates change the order of a sum.
        self.assertAllClose(actual, expected, rtol=0.0, atol=1e-6)

    def test_gates_of_one_equal_no_gates(self):
        for options in self.CASES:
            self.assertSame(self.pooled(np.ones([3, 3]), **options), self.pooled(**options))

    def test_each_example_has_its_own_gates(self):
        gates = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0]])
        for options in self.CASES:
            (actual,) = self.pooled(gates, **options)
            expected = self.pooled(silent=[(0,), (1, 2), (0, 1, 2), ()], **options)
            for row in range(3):
                self.assertAllClose(actual[row], expected[row][row], atol=1e-6)
                self.assertNotAllClose(actual[row], expected[-1][row], atol=1e-4)

    def test_gates_work_in_bfloat16(self):
        if tf.__version__.startswith("1."):
            self.skipTest("TensorFlow 1 has no bfloat16 products.")
        options = dict(self.CASES[0], dtype=tf.bfloat16)
        expected = self.pooled(silent=[(), (1,)], **options)
        for gates, one in zip(([1, 1, 1], [1, 0, 1]), expected):
            self.assertSame(self.pooled(np.tile(gates, [3, 1]), **options), [one])

    def test_layers_without_an_adapter_ignore_gates(self):
        for gates, options in (
            ([0, 1, 0], {"adapter_layers": (1,)}),
            ([0] * 3, {"adapter_fn": None}),
        ):
            actual = self.pooled(np.tile(gates, [3, 1]), **options)
            self.assertSame(actual, self.pooled(**options))

    def test_recomputed_activations_keep_gated_gradients(self):
        def gradients(output):
            adapters = sorted(tf.get_collection("adapters"), key=lambda v: v.name)
            return tf.gradients(tf.reduce_sum(output**2), adapters)

        options = dict(self.CASES[0], gates=np.array([[0, 1, 1]] * 3), fetch=gradients)
        (plain,) = self.pooled(**options)
        # The first eight variables, in layer 0, have gate 0 and do not affect the output.
        self.assertEqual([bool(np.any(gradient)) for gradient in plain], [False] * 8 + [True] * 16)
        self.assertAllClose(self.pooled(recompute_activations=True, **options), [plain])


class PositionalArgumentsTest(tf.test.TestCase):
    """Calls the functions with BERT's positional arguments, as code written for BERT does."""

    def setUp(self):
        super().setUp()
        self.random = np.random.RandomState(0)

    def run_on(self, build):
        """Returns (values of `build`'s Tensors, dict of variables' values) for random variables."""
        with tf.Graph().as_default(), self.session() as session:
            fetches = build()
            values = {
                v: self.random.normal(0, 0.5, v.shape.as_list()) for v in tf.global_variables()
            }
            tiny.load(session, list(values), list(values.values()))
            return session.run(fetches), {v.op.name: value for v, value in values.items()}

    def test_attention_layer_equals_numpy(self):
        x, y = self.random.normal(size=[2, 3, 6]), self.random.normal(size=[2, 5, 4])
        mask = self.random.randint(0, 2, [2, 3, 5])
        mask[:, :, 0] = 1

        sources = (x, "query"), (y, "key"), (y, "value")

        def reference(values, mask, act, key_act=lambda k: k):
            def heads(tensor, name):
                rows = tensor @ values[name + "/kernel"] + values[name + "/bias"]
                return np.reshape(rows, [*rows.shape[:2], 2, 4])

            query, key, value = (heads(*arguments) for arguments in sources)
            query, key = np.tanh(query), key_act(key)
            scores = np.einsum("bfnh,btnh->bnft", query, key) / 2
            scores = np.where(mask[:, None] == 1, scores, -1e9)
            probs = np.exp(scores - scores.max(-1, keepdims=True))
            probs /= probs.sum(-1, keepdims=True)
            return np.einsum("bnft,btnh->bfnh", probs, act(value)).reshape([2, 3, 8])

        from_tensor, to_tensor = (np.float32(tensor) for tensor in (x, y))

        def rank_3():
            tensors = tf.constant(from_tensor), tf.constant(to_tensor), tf.constant(mask)
            return modeling.attention_layer(*tensors, 2, 4, tf.tanh, tf.nn.relu, tf.sigmoid)

        def rank_2():
            tensors = (tf.reshape(t, [-1, t.shape[-1]]) for t in (from_tensor, to_tensor))
            arguments = None, 2, 4, tf.tanh, None, None, 0.0, 0.02, True, 2, 3, 5
            return modeling.attention_layer(*tensors, *arguments)

        actual, values = self.run_on(rank_3)
        expected = reference(
            values, mask, lambda v: 1 / (1 + np.exp(-v)), lambda k: np.maximum(k, 0)
        )
        self.assertAllClose(actual, expected, rtol=1e-4, atol=1e-4)
        actual, values = self.run_on(rank_2)
        expected = reference(values, np.ones_like(mask), lambda v: v)
        self.assertAllClose(actual, expected.reshape([6, 8]), rtol=1e-4, atol=1e-4)
        with tf.Graph().as_default():
            for wrong in ([tf.zeros([6, 4])] * 2, [tf.zeros([6, 4]), tf.zeros([2, 3, 4])]):
                with self.assertRaises(ValueError):
                    modeling.attention_layer(*wrong)

    def test_transformer_model_equals_numpy(self):
        x = self.random.normal(size=[2, 3, 8])
        mask = np.array([[1, 1, 1], [1, 1, 0]])
        config = tiny.config()

        def build(return_all, adapter_fn):
            tensor = tf.constant(x, tf.float32)
            attention = modeling.create_attention_mask_from_input_mask(tensor, tf.constant(mask))
            with tf.variable_scope("bert/encoder"):
                arguments = 8, 2, 2, 16, modeling.gelu, 0.0, 0.0, 0.02, return_all, adapter_fn
                return modeling.transformer_model(tensor, attention, *arguments)

        for adapter_fn in (None, modeling.feedforward_adapter, modeling.AdapterConfig()):
            outputs, values = self.run_on(lambda fn=adapter_fn: build(True, fn))
            expected = numpy_encoder(values, config, x, mask, adapter_fn is not None)
            self.assertLen(outputs, 2)
            self.assertAllClose(outputs[-1], expected, rtol=1e-3, atol=1e-3)
        last, values = self.run_on(lambda: build(False, None))
        self.assertAllClose(
            last, numpy_encoder(values, config, x, mask, False), rtol=1e-3, atol=1e-3
        )
        with tf.Graph().as_default():
            for wrong in ((9, 1, 2), (16, 1, 2)):
                with self.assertRaises(ValueError):
                    modeling.transformer_model(tf.zeros([2, 3, 8]), None, *wrong)

    def test_embedding_functions_equal_numpy(self):
        ids, types = self.random.randint(0, 2, [2, 2, 3])

        def build(one_hot, *options):
            looked_up, table = modeling.embedding_lookup(
                tf.constant(ids), 5, 4, 0.02, "words", one_hot
            )
            return modeling.embedding_postprocessor(looked_up, *options), looked_up, table

        for one_hot in (False, True):
            (output, looked_up, table), values = self.run_on(
                lambda one_hot=one_hot: build(
                    one_hot, True, tf.constant(types), 2, "types", True, "places", 0.02, 7, 0.0
                )
            )
            self.assertAllClose(table, values["words"])
            self.assertAllClose(looked_up, values["words"][ids])
            (column, _), words = self.run_on(
                lambda one_hot=one_hot: modeling.embedding_lookup(
                    tf.constant(ids[..., np.newaxis]), 5, 4, 0.02, "words", one_hot
                )
            )
            self.assertAllClose(column, words["words"][ids])
            total = values["words"][ids] + values["types"][types] + values["places"][:3]
            self.assertAllClose(output, normalized(total, values), rtol=1e-3, atol=1e-3)
        (output, _, _), values = self.run_on(
            lambda: build(False, False, None, 16, "types", False, "places", 0.02, 7, 0.0)
        )
        self.assertEqual(set(values), {"words", "LayerNorm/beta", "LayerNorm/gamma"})
        self.assertAllClose(output, normalized(values["words"][ids], values), rtol=1e-3, atol=1e-3)
        with tf.Graph().as_default():
            for wrong in ((True,), (False, None, 16, "types", True, "places", 0.02, 2)):
                with self.assertRaises(ValueError):
                    modeling.embedding_postprocessor(tf.zeros([2, 3, 4]), *wrong)

    def test_layer_norm_and_dropout_equals_numpy(self):
        x = np.ones([40, 50]) * np.arange(50)
        output, values = self.run_on(
            lambda: modeling.layer_norm_and_dropout(tf.constant(x, tf.float32), 0.5, "norm")
        )
        values = {name.replace("norm/", "LayerNorm/"): value for name, value in values.items()}
        kept = output != 0
        self.assertBetween(np.mean(kept), 0.4, 0.6)
        expected = np.where(kept, 2 * normalized(x, values), 0.0)
        self.assertAllClose(output, expected, rtol=1e-3, atol=1e-3)

    def test_attention_mask_and_matrix_reshapes_equal_numpy(self):
        mask, x = np.array([[1, 1, 0, 0], [1, 1, 1, 0]]), np.arange(24).reshape([2, 3, 4])
        with tf.Graph().as_default(), self.session() as session:
            attention = modeling.create_attention_mask_from_input_mask(
                tf.zeros([2, 3], tf.int32), tf.constant(mask)
            )
            matrix = modeling.reshape_to_matrix(tf.constant(x))
            again = modeling.reshape_from_matrix(matrix, [2, 3, 4])
            self.assertIs(modeling.reshape_to_matrix(matrix), matrix)
            self.assertIs(modeling.reshape_from_matrix(matrix, [6, 4]), matrix)
            self.assertEqual(attention.dtype, tf.float32)
            actual = session.run([attention, matrix, again])
            with self.assertRaises(ValueError):
                modeling.reshape_to_matrix(tf.zeros([3]))
        for value, expected in zip(actual, (np.stack([mask] * 3, 1), x.reshape([6, 4]), x)):
            self.assertAllEqual(value, expected)


def normalized(x, values):
    """Computes the LayerNorm of x in NumPy, from a dict of variables' values."""
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12)
    return x * values["LayerNorm/gamma"] + values["LayerNorm/beta"]


class FunctionsTest(parameterized.TestCase, tf.test.TestCase):
    def test_config_reads_json_and_fills_defaults(self):
        config = self.read_config(num_hidden_layers=3, pooler_type="first", initializer_range=1.5)
        self.assertEqual((config.vocab_size, config.hidden_size), (7, 24))
        self.assertEqual((config.pooler_type, config.initializer_range), ("first", 1.5))
        self.assertEqual((config.num_hidden_layers, config.num_attention_heads), (3, 12))

    def test_to_json_string_writes_a_config_that_is_read_again(self):
        config, path = tiny.config(), os.path.join(self.get_temp_dir(), "written.json")
        self.assertEqual(json.loads(config.to_json_string()), config.to_dict())
        with open(path, "w") as writer:
            writer.write(config.to_json_string())
        found = modeling.BertConfig.from_json_file(path)
        self.assertEqual(found.to_dict(), config.to_dict())

    def test_invalid_configs_are_refused(self):
        path = os.path.join(self.get_temp_dir(), "broken.json")
        texts = ["{", "[]", "{}", '{"vocab_size": "many"}', "[" * 100_000]
        for field in (
            '"hidden_dropout_prob": "0.1"',
            '"hidden_dropout_prob": 1',
            '"attention_probs_dropout_prob": NaN',
            '"initializer_range": "a"',
            '"hidden_dropout_prob": 1' + "0" * 400,
            '"initializer_range": -0.1',
            '"initializer_range": null',
            '"initializer_range": 1' + "0" * 400,
        ):
            texts.append(f'{{"vocab_size": 7, {field}}}')
        for text in texts:
            with open(path, "w") as writer:
                writer.write(text)
            with self.assertRaisesRegex(UserError, "broken.json"):
                modeling.BertConfig.from_json_file(path)
        with self.assertRaisesRegex(UserError, "nowhere.json"):
            modeling.BertConfig.from_json_file("nowhere.json")

    def read_config(self, **fields):
        path = os.path.join(self.get_temp_dir(), "fields.json")
        with open(path, "w") as writer:
            json.dump(
                {"vocab_size": 7, "hidden_size": 24, "num_hidden_layers": 3, **fields}, writer
            )
        return modeling.BertConfig.from_json_file(path)

    @parameterized.parameters("__class__", "__dict__", "to_dict", "from_dict")
    def test_keys_named_like_config_attributes_are_refused(self, key):
        with self.assertRaisesRegex(UserError, f'fields.json: .*"{key}"'):
            self.read_config(**{key: 1})
        with self.assertRaisesRegex(UserError, key):
            modeling.BertConfig.from_dict({"vocab_size": 7, key: 1})

    def test_other_keys_are_kept(self):
        others = {"_name": "a", "pooler_fc_size": 768, "directionality": "bidi", "": 1, "a b": 2}
        actual = self.read_config(**others).to_dict()
        self.assertLessEqual(others.items(), actual.items())

    def test_more_than_1000_layers_are_refused(self):
        # The names of so many tensors would fill the memory.
        config = modeling.BertConfig.from_dict({"vocab_size": 7, "num_hidden_layers": 10**9})
        with tf.Graph().as_default(), self.assertRaisesRegex(
            UserError, "num_hidden_layers .* must be at most 1,000, but is 1,000,000,000"
        ):
            modeling.BertModel(config, False, tf.zeros([1, 2], tf.int32))

    @parameterized.parameters(
        ("layer_norm_eps", 1e-5, 1e-12),
        ("position_embedding_type", "relative_key", "absolute"),
        ("is_decoder", True, False),
        ("embedding_size", 12, 24),
        ("num_hidden_groups", 1, 3),
        ("inner_group_num", 2, 1),
    )
    def test_configs_of_other_architectures_are_refused(self, key, wrong, right):
        for value in (right, None):
            self.assertEqual(getattr(self.read_config(**{key: value}), key), value)
        part = f"fields.json: {key} must be {right!r}.* is {wrong!r}"
        with self.assertRaisesRegex(UserError, part):
            self.read_config(**{key: wrong})

    def test_model_refuses_a_changed_config(self):
        config = tiny.config()
        config.layer_norm_eps = 1e-5
        with tf.Graph().as_default(), self.assertRaisesRegex(UserError, "layer_norm_eps"):
            modeling.BertModel(config, False, tf.zeros([1, 2], tf.int32))

    def test_dropout_of_none_means_no_dropout(self):
        config = tiny.config(hidden_dropout_prob=None, attention_probs_dropout_prob=None)
        with tf.Graph().as_default(), self.session() as session:
            model = modeling.BertModel(config, True, tf.zeros([1, 2], tf.int32))
            session.run(tf.global_variables_initializer())
            first, second = (session.run(model.get_pooled_output()) for _ in range(2))
        self.assertAllEqual(first, second)

    def test_assignment_map_contains_only_shared_variables(self):
        prefix = os.path.join(self.get_temp_dir(), "model.ckpt")
        with tf.Graph().as_default(), self.session() as session:
            tf.get_variable("shared", [2])
            tf.get_variable("only_there", [2])
            session.run(tf.global_variables_initializer())
            tf.train.Saver().save(session, prefix)
        with tf.Graph().as_default():
            variables = [tf.get_variable("shared", [2]), tf.get_variable("only_here", [2])]
            assignment, names = modeling.get_assignment_map_from_checkpoint(variables, prefix)
        self.assertEqual(dict(assignment), {"shared": "shared"})
        self.assertEqual(set(names), {"shared", "shared:0"})


@needs_shared
@pytest.mark.estimator
class ForwardGoldenTest(tf.test.TestCase):
    """Compares the forward pass with the original adapter-bert's on a real BERT."""

    def test_forward_pass_equals_original_adapter_bert(self):
        golden = np.load(os.path.join(SHARED, "goldens", "model_public.npz"))
        folder = os.path.join(SHARED, "checkpoints", "minilm-l6-uncased")
        config = modeling.BertConfig.from_json_file(os.path.join(folder, "bert_config.json"))
        batch = {
            key: golden["batch/" + key][:8] for key in ("input_ids", "input_mask", "segment_ids")
        }
        with tf.Graph().as_default(), self.session() as session:
            model = modeling.BertModel(
                config, False, batch["input_ids"], batch["input_mask"], batch["segment_ids"]
            )
            prefix = os.path.join(folder, "bert_model.ckpt")
            variables = tf.trainable_variables()
            assignment, _ = modeling.get_assignment_map_from_checkpoint(variables, prefix)
            self.assertLen(assignment, len(variables) - 48)
            tf.train.init_from_checkpoint(prefix, assignment)
            session.run(tf.global_variables_initializer())
            adapters = tf.get_collection("adapters")
            tiny.load(session, adapters, [golden["init/" + v.op.name] for v in adapters])
            pooled, sequence = session.run([model.get_pooled_output(), model.get_sequence_output()])
        self.assertAllClose(pooled, golden["forward/pooled_output"], atol=1e-4, rtol=0)
        self.assertAllClose(sequence[:2], golden["forward/sequence_output"], atol=1e-4, rtol=0)


class DamagedBertConfigTest(tf.test.TestCase):
    def test_a_damaged_config_is_built_or_rejected(self):
        def read(folder):
            path = os.path.join(folder, "bert_config.json")
            config = modeling.BertConfig.from_json_file(path)
            sizes = (config.vocab_size, config.hidden_size, config.intermediate_size)
            if max(sizes) > 1000 or config.num_hidden_layers > 3:
                return  # Valid, but too large for the checkpoint. Loading would reject it next.
            with tf.Graph().as_default():
                modeling.BertModel(config, True, tf.zeros([2, 2], tf.int32)).get_pooled_output()

        contents = {"bert_config.json": tiny.config().to_json_string().encode()}
        mutations.check(contents, read, ("_config.json",))
