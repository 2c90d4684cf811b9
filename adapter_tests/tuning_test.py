"""Tests of tuning.py: compares the variables that each method trains with lists of names."""

import dataclasses
import itertools
import re

import tensorflow.compat.v1 as tf

import modeling
import run_classifier
import tuning
from adapter_bert.model import configs
from adapter_bert.shell.errors import UserError
from adapter_tests.support import tiny
from adapter_tests.support.refusals import RefusalTestCase
from tuning import Role, Tuning


def names(pattern):
    """Expands alternatives in braces: "{a,b}/c" → a/c, b/c."""
    parts = [part.split(",") for part in re.split(r"[{}]", pattern)]
    return {"".join(choice) for choice in itertools.product(*parts)}


EMBEDDINGS = names("bert/embeddings/{word,token_type,position}_embeddings")
LAYER_NORMS = names("bert/embeddings/LayerNorm/{beta,gamma}") | names(
    "bert/encoder/layer_{0,1}/{attention/output,output}/LayerNorm/{beta,gamma}"
)
ADAPTERS = names(
    "bert/encoder/layer_{0,1}/{attention/output,output}/adapters/{weights,biases}{1,2}"
)
LAYERS = names(
    "bert/encoder/layer_{0,1}/{attention/self/query,attention/self/key,attention/self/value"
    ",attention/output/dense,intermediate/dense,output/dense}/{kernel,bias}"
)
POOLER = names("bert/pooler/dense/{kernel,bias}")
HEAD = {"output_weights", "output_bias"}
PLAIN = EMBEDDINGS | LAYER_NORMS | LAYERS | POOLER | HEAD
LAYER_1 = {name for name in PLAIN if name.startswith("bert/encoder/layer_1/")}


def build(scope=None, adapter_fn="feedforward_adapter", config=None):
    """Builds a tiny BERT in the default graph; returns its pooled output [1, 8]."""
    ids = tf.zeros([1, 2], tf.int32)
    model = modeling.BertModel(
        config or tiny.config(), False, ids, scope=scope, adapter_fn=adapter_fn
    )
    return model.get_pooled_output()


def build_classifier(adapter_fn="feedforward_adapter", config=None):
    """Builds a tiny BERT with the head of run_classifier; returns the loss."""
    ids = tf.zeros([1, 2], tf.int32)
    labels = tf.zeros([1], tf.int32)
    return run_classifier.create_model(
        config or tiny.config(), False, ids, ids, ids, labels, 2, False, adapter_fn=adapter_fn
    )[0]


def variable(name, *collections):
    collections = [*collections, tf.GraphKeys.GLOBAL_VARIABLES]
    return tf.get_variable(name, [3], collections=collections)


def trained(*options, **more):
    """Returns the set of names of the variables to train."""
    tuned = Tuning(*options, **more) if options else None
    return {v.op.name for v in tuning.trained_variables(tuned)}


class TuningTestCase(tf.test.TestCase):
    """Runs each test in a new graph; shows the differences between sets."""

    maxDiff = None

    def setUp(self):
        super().setUp()
        graph = tf.Graph().as_default()
        graph.__enter__()
        self.addCleanup(graph.__exit__, None, None, None)

    def assert_trains(self, expected, *options, **more):
        self.assertCountEqual(trained(*options, **more), expected)


class TuningOptionsTest(RefusalTestCase):
    def test_invalid_settings_are_refused(self):
        methods = ["adapters", "full", "top_layers", "layer_norm", "head"]
        needs_adapters = [
            (["--layer_norms=none", f"--tuning={method}"], (method,), {"layer_norms": "none"})
            for method in ("full", "layer_norm", "head")
        ]
        needs_top_layers = [
            ([f"--num_top_layers={number}", f"--tuning={method}"], (method, number), {})
            for method, number in (("adapters", 2), ("full", 2), ("head", 1))
        ]
        for parts, options, more in (
            (["--tuning=adaptr", *methods], ("adaptr",), {}),
            (["--layer_norms=some", "all"], (), {"layer_norms": "some"}),
            (["--tuning=top_layers", "--num_top_layers"], ("top_layers",), {}),
            (["--num_top_layers", "0"], ("top_layers", 0), {}),
            (["--num_top_layers", "-1"], ("top_layers", -1), {}),
            *needs_adapters,
            *needs_top_layers,
        ):
            self.assert_refused(parts, Tuning, *options, **more)

    def test_settings_are_immutable(self):
        with self.assertRaises(dataclasses.FrozenInstanceError):
            Tuning().method = "adaptr"


class TuningMethodsTest(TuningTestCase):
    """Checks what each method trains, in a classifier with adapters and in plain BERT."""

    ADAPTED = {
        "adapters": ADAPTERS | LAYER_NORMS | HEAD,
        "full": PLAIN | ADAPTERS,
        "top_layers": LAYER_1 | {n for n in ADAPTERS if "/layer_1/" in n} | POOLER | HEAD,
        "layer_norm": LAYER_NORMS | HEAD,
        "head": HEAD,
    }
    # Without adapters, the method "adapters" trains only LayerNorms and head.
    UNADAPTED = {
        "adapters": LAYER_NORMS | HEAD,
        "full": PLAIN,
        "top_layers": LAYER_1 | POOLER | HEAD,
        "layer_norm": LAYER_NORMS | HEAD,
        "head": HEAD,
    }

    def check(self, expected):
        self.assertEqual(set(expected), set(configs.METHODS))
        for method, variables in expected.items():
            top = 1 if method == "top_layers" else None
            with self.subTest(method):
                self.assert_trains(variables, method, top)
                self.assert_trains(variables | POOLER, method, top, train_pooler=True)

    def test_methods_train_expected_variables_with_adapters(self):
        build_classifier()
        self.check(self.ADAPTED)

    def test_methods_train_expected_variables_of_plain_bert(self):
        build_classifier(adapter_fn=None)
        self.check(self.UNADAPTED)

    def test_layer_norms_option_with_adapters_in_some_layers(self):
        modeling.BertModel(tiny.config(), False, tf.zeros([1, 2], tf.int32), adapter_layers=(1,))
        adapters = {name for name in ADAPTERS if "/layer_1/" in name}
        upper = {name for name in LAYER_NORMS if "/layer_1/" in name}
        variable("shared/scale", modeling.ADAPTERS)  # Not in a layer.
        adapters.add("shared/scale")
        for layer_norms, expected in (("all", LAYER_NORMS), ("adapted", upper), ("none", set())):
            self.assert_trains(adapters | expected, "adapters", layer_norms=layer_norms)

    def test_variables_of_adapter_variants_are_trained(self):
        """All variables of an adapter's variant train, except moving statistics."""
        for normalization, names in (
            ("batch", {"BatchNorm/beta", "BatchNorm/gamma"}),
            ("layer", {"LayerNorm/beta", "LayerNorm/gamma"}),
        ):
            adapter = modeling.AdapterConfig(
                normalization=normalization, depth=2, sites="feed_forward", layers=(1,)
            )
            names |= {"weights1", "biases1", "weights_hidden2", "biases_hidden2"}
            names |= {"weights2", "biases2"}
            adapters = {"bert/encoder/layer_1/output/adapters/" + name for name in names}
            # "adapted" selects layers, even if only one of their sub-layers has an adapter.
            upper = {name for name in LAYER_NORMS if "/layer_1/" in name}
            with tf.Graph().as_default():
                modeling.BertModel(
                    tiny.config(),
                    True,
                    tf.zeros([1, 2], tf.int32),
                    adapter_fn=adapter,
                )
                self.assert_trains(adapters | LAYER_NORMS, "adapters")
                self.assert_trains(adapters | upper, "adapters", layer_norms="adapted")
                self.assert_trains(adapters, "adapters", layer_norms="none")

    def test_backward_pass_ends_at_lowest_adapter(self):
        ids = tf.zeros([1, 2], tf.int32)
        model = modeling.BertModel(tiny.config(), False, ids, adapter_layers=(1,))
        for layer_norms, passed in (("adapted", False), ("all", True)):
            with tf.name_scope(layer_norms) as scope:
                tuned = tuning.trained_variables(Tuning(layer_norms=layer_norms))
                tf.gradients(model.get_pooled_output(), tuned)
            operations = [op.name for op in tf.get_default_graph().get_operations()]
            below = [name for name in operations if name.startswith(scope) and "layer_0" in name]
            self.assertEqual(bool(below), passed, below[:3])

    def test_top_layers_method_trains_the_last_layers(self):
        build_classifier(None, tiny.config(num_hidden_layers=12))
        layers = {name for name in LAYERS | LAYER_NORMS if "/layer_0/" in name}
        for count, indices in ((1, [11]), (3, [9, 10, 11]), (11, range(1, 12))):
            top = {name.replace("layer_0", f"layer_{i}") for name in layers for i in indices}
            self.assert_trains(top | POOLER | HEAD, "top_layers", count)

    def test_top_layers_of_all_layers_equals_full_fine_tuning(self):
        build_classifier(adapter_fn=None)
        self.assert_trains(PLAIN, "top_layers", 2)

    def test_methods_support_an_encoder_of_one_layer(self):
        build_classifier(None, tiny.config(num_hidden_layers=1))
        self.assert_trains(HEAD, "head")
        everything = {name for name in PLAIN if "/layer_1/" not in name}
        self.assert_trains(everything, "top_layers", 1)

    def test_too_many_top_layers_are_refused(self):
        build_classifier(adapter_fn=None)
        with self.assertRaisesRegex(UserError, "--num_top_layers=3: the encoder has 2 layers"):
            trained("top_layers", 3)

    def test_trained_variables_keep_creation_order(self):
        build_classifier()
        order = [v.op.name for v in tuning.trained_variables(Tuning("layer_norm"))]
        self.assertEqual(
            order[:4] + order[-2:],
            ["bert/embeddings/LayerNorm/beta", "bert/embeddings/LayerNorm/gamma"]
            + ["bert/encoder/layer_0/attention/output/LayerNorm/" + n for n in ("beta", "gamma")]
            + ["output_weights", "output_bias"],
        )


class DefaultMethodTest(TuningTestCase):
    """Checks what trains when code for BERT or adapter-bert calls `create_optimizer`."""

    def test_bert_with_adapters_trains_adapters_by_default(self):
        build_classifier()
        self.assert_trains(ADAPTERS | LAYER_NORMS | HEAD)

    def test_adapter_without_variables_trains_layer_norms_and_head(self):
        build_classifier(adapter_fn=lambda x: x)
        self.assert_trains(LAYER_NORMS | HEAD)

    def test_plain_bert_trains_fully_by_default(self):
        build_classifier(adapter_fn=None)
        self.assert_trains(PLAIN)

    def test_plain_bert_trains_fully_under_head_with_layer_norm(self):
        # Like the masked language model's head in BERT's run_pretraining.
        build_classifier(adapter_fn=None)
        with tf.variable_scope("cls/predictions/transform"):
            modeling.layer_norm(tf.zeros([1, 8]))
        self.assert_trains(PLAIN | names("cls/predictions/transform/LayerNorm/{beta,gamma}"))

    def test_all_variables_belong_to_the_head_without_encoder(self):
        variable("a")
        variable("b/c")
        self.assert_trains({"a", "b/c"})
        self.assert_trains({"a", "b/c"}, "head")
        with self.assertRaisesRegex(UserError, "--num_top_layers=1: the encoder has 0 layers"):
            trained("top_layers", 1)


class RolesTest(TuningTestCase):
    def test_classifier_variables_have_expected_roles(self):
        build_classifier()
        expected = {name: Role("embeddings") for name in EMBEDDINGS}
        expected.update({name: Role("pooler") for name in POOLER})
        expected.update({name: Role("head") for name in HEAD})
        for kind, group in (("layer", LAYERS), ("adapter", ADAPTERS), ("layer_norm", LAYER_NORMS)):
            for name in group:
                layer = 0 if "/layer_0/" in name else 1 if "/layer_1/" in name else None
                expected[name] = Role(kind, layer)
        self.assertEqual(dict(tuning.roles()), expected)

    def test_variables_outside_the_encoder_belong_to_the_head(self):
        build()
        heads = [
            "cls/squad/output_weights",
            "bert_head/kernel",
            "model/bert/pooler/dense/kernel",
            "classifier/encoder/layer_0/output/dense/kernel",
            "crf/LayerNorm/gamma",
            "adapters/weights1",
        ]
        for head in heads:
            variable(head)
        role = tuning.roles()
        for head in heads:
            self.assertEqual(role[head], Role("head"), head)
        self.assert_trains(ADAPTERS | LAYER_NORMS | set(heads))
        self.assert_trains(heads, "head")

    def test_layer_norm_of_the_head_has_role_head(self):
        build_classifier()
        with tf.variable_scope("cls"):
            modeling.layer_norm(tf.zeros([1, 8]))
        head = HEAD | names("cls/LayerNorm/{beta,gamma}")
        self.assert_trains(head, "head")
        self.assert_trains(
            LAYER_1 | {n for n in ADAPTERS if "/layer_1/" in n} | POOLER | head, "top_layers", 1
        )

    def test_head_collection_applies_inside_the_encoder_scope(self):
        build()
        variable("bert/classifier", modeling.HEAD)
        self.assertEqual(tuning.roles()["bert/classifier"], Role("head"))
        self.assert_trains({"bert/classifier"}, "head")

    def test_custom_adapter_variables_may_have_any_name(self):
        def adapter(x):
            with tf.variable_scope("houlsby", use_resource=False):
                scale = tf.get_variable(
                    "scale", [8], collections=[modeling.ADAPTERS, tf.GraphKeys.GLOBAL_VARIABLES]
                )
            return x * scale

        build_classifier(adapter)
        mine = names("bert/encoder/layer_{0,1}/{attention/output,output}/houlsby/scale")
        self.assert_trains(mine | LAYER_NORMS | HEAD)
        role = tuning.roles()
        for name in mine:
            self.assertEqual(role[name], Role("adapter", int("/layer_1/" in name)))

    def test_adapter_outside_the_encoder_is_trained(self):
        build()
        variable("shared/scale", modeling.ADAPTERS)
        self.assertEqual(tuning.roles()["shared/scale"], Role("adapter"))
        self.assert_trains(ADAPTERS | LAYER_NORMS | {"shared/scale"})

    def test_variable_without_a_role_raises_value_error(self):
        strays = [
            "bert/encoder/layer_1/output/scale",
            "bert/encoder/layer_1/output/dense/kernel_2",
            "bert/encoder/prompt",
            "bert/pooler/LayerNorm/gamma",
            "bert/classifier/kernel",
        ]
        for stray in strays:
            with tf.Graph().as_default():
                build()
                variable(stray)
                for options in ((), ("adapters",), ("layer_norm",), ("head",), ("top_layers", 1)):
                    with self.assertRaisesRegex(ValueError, stray + " "):
                        trained(*options)


class ScopesTest(TuningTestCase):
    """The encoder is found in any scope."""

    def test_encoder_is_found_in_any_scope(self):
        for scope in ("siamese/bert/", "encoder/", "bert_1/", "a.b/layer_0/", ""):
            with tf.Graph().as_default():
                build(scope[:-1])
                variable("output_bias", modeling.HEAD)
                self.assert_trains(
                    {scope + name[len("bert/") :] for name in ADAPTERS | LAYER_NORMS}
                    | {"output_bias"}
                )

    def test_encoder_without_scope_is_found(self):
        build("", adapter_fn=None)
        with tf.variable_scope("cls"):
            modeling.layer_norm(tf.zeros([1, 8]))
        self.assertEqual(tuning.default_tuning(), Tuning("full"))
        variable("stray")
        with self.assertRaisesRegex(ValueError, "stray"):
            trained("head")

    def test_encoder_within_the_scope_of_another_is_found(self):
        build("a")
        build("a/b")
        within = {name.replace("bert/", "a/b/") for name in ADAPTERS | LAYER_NORMS}
        self.assert_trains(within | {name.replace("a/b/", "a/") for name in within})

    def test_two_encoders_are_found(self):
        build()
        build()
        variable("output_bias")
        both = {
            scope + name[len("bert") :]
            for name in ADAPTERS | LAYER_NORMS
            for scope in ("bert", "bert_1")
        }
        self.assert_trains(both | {"output_bias"})
        variable("bert_1/stray")
        with self.assertRaisesRegex(ValueError, "bert_1/stray"):
            trained()

    def test_encoders_with_shared_variables_are_found(self):
        build("siamese/bert")
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            build("siamese/bert")
        self.assert_trains({"siamese/" + name for name in ADAPTERS | LAYER_NORMS})


class GradientsTest(TuningTestCase):
    def check(self, loss, variables):
        tuning.check_gradients(variables, tf.gradients(loss, variables))

    def test_variables_with_gradients_pass_the_check(self):
        loss = build_classifier()
        self.check(loss, tf.trainable_variables())

    def test_pooler_without_gradient_passes_the_check(self):
        model = modeling.BertModel(tiny.config(), False, tf.zeros([1, 2], tf.int32))
        loss = tf.reduce_sum(model.get_sequence_output())
        gradients = tf.gradients(loss, tf.trainable_variables())
        self.assertEqual(sum(gradient is None for gradient in gradients), 2)
        tuning.check_gradients(tf.trainable_variables(), gradients)

    def test_adapter_without_gradient_raises_value_error(self):
        model = modeling.BertModel(tiny.config(), False, tf.zeros([1, 2], tf.int32))
        loss = tf.reduce_sum(model.get_all_encoder_layers()[0])
        with self.assertRaisesRegex(
            ValueError, "on 8 of .* bert/encoder/layer_1/attention/output/adapters/weights1"
        ):
            self.check(loss, tuning.trained_variables())

    def test_head_without_gradient_raises_value_error(self):
        loss = build_classifier()
        variable("second_head")
        with self.assertRaisesRegex(ValueError, "on 1 of .* second_head"):
            self.check(loss, tuning.trained_variables())


class CountsTest(TuningTestCase):
    """BERT-Base, uncased, with a head for two labels (Houlsby et al. 2019, section 2.1).

    24 adapters of 2 * 64 * 768 + 64 + 768 are 2,379,264, 25 LayerNorms of 2 * 768 are 38,400, and
    the head has 2 * 768 + 2 = 1,538; BERT itself has 109,482,240.
    """

    def test_adapter_parameters_are_counted(self):
        build_classifier(config=modeling.BertConfig(30522, type_vocab_size=2))
        variables = tuning.trained_variables()
        self.assertEqual(tuning.count_parameters(variables), 2419202)
        self.assertEqual(
            tuning.summary(variables),
            "Training 2,419,202 of 111,863,042 parameters (2.16%); 109,443,840 are frozen.",
        )

    def test_full_and_top_layer_parameters_are_counted(self):
        build_classifier(None, modeling.BertConfig(30522, type_vocab_size=2))
        variables = tuning.trained_variables()
        self.assertEqual(
            tuning.summary(variables),
            "Training 109,483,778 of 109,483,778 parameters (100.00%); 0 are frozen.",
        )
        # One layer and the pooler: 12 * 768 ** 2 + 13 * 768 and 768 ** 2 + 768.
        top = tuning.trained_variables(Tuning("top_layers", 1))
        self.assertEqual(tuning.count_parameters(top), 7087872 + 590592 + 1538)
