"""Tests of model.py: the towers against NumPy, frozen and trained modules, and the optimizer."""

import dataclasses
import glob
import os
import shutil
import tempfile
import unittest

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from adapter_bert.formats import tfhub
from adapter_bert.paper.baseline import model, texts
from adapter_bert.paper.baseline.search_space import PRESETS
from adapter_bert.shell import tf_estimator
from adapter_bert.shell.errors import UserError
from adapter_tests.support import tf2_modules, tiny
from adapter_tests.support.baseline import SPACE

hub = tfhub.library()

TEXTS = [("the dog sees a bird", None), ("big man", None), ("", None), ("old", None)]
PAIRS = [("the dog", "sees a bird"), ("big man", ""), ("", "not a cat"), ("old", "old")]
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


class ModelTestCase(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tiny.write_text_module(os.path.join(tempfile.mkdtemp(), "module"))
        cls.module = model.open_module(cls.folder)

    def settings(self, unit="word", kind="classification", num_labels=2, **changes):
        space = dataclasses.replace(SPACE, **changes)
        return model.NetworkConfig(space, self.module, unit, kind, num_labels, 1)

    def prepared(self, config, sentences=TEXTS):
        """Returns (features, `model.EmbeddedStrings`)."""
        strings, has_pairs = texts.StringVocabulary(), any(b for _, b in sentences)
        rows = texts.encode_texts(sentences, config.settings, config.unit, 6, strings, has_pairs)
        vectors = None
        if not config.settings.fine_tune_module:
            vectors = model.compute_embeddings(self.module, strings.strings())
        return rows, model.EmbeddedStrings(strings.strings(), vectors)

    def computed(self, config, sentences=TEXTS, is_training=False):
        """Returns (outputs [B, L], all variables by name); biases and statistics are random."""
        rows, strings = self.prepared(config, sentences)
        with tf.Graph().as_default(), tf.Session() as session:
            tf.set_random_seed(1)
            network = model.Network(config, strings)
            features = {name: tf.constant(values) for name, values in rows.items()}
            outputs = network.outputs(features, is_training)
            initialize(session)
            random = np.random.RandomState(0)
            for variable in tf.global_variables():
                if variable.op.name.endswith(("bias", "beta", "gamma", "mean", "variance")):
                    variable.load(random.uniform(0.5, 1.5, variable.shape.as_list()), session)
            values = {v.op.name: v for v in tf.global_variables()}
            return session.run([outputs, values])

    def stepped(self, config):
        """Runs one step of the model_fn; returns (variables before, gradients, variables after)."""
        rows, strings = self.prepared(config)
        features = {**rows, "label_ids": np.array([0, 1, 1, 0], np.int32)}
        with tf.Graph().as_default(), tf.Session() as session:
            step = tf.train.get_or_create_global_step()
            model_fn = model.model_fn_builder(config, strings)
            tensors = {name: tf.constant(values) for name, values in features.items()}
            spec = model_fn(tensors, None, tf_estimator.ModeKeys.TRAIN, {}, None)
            trained = {v.op.name: v for v in tf.trainable_variables()}
            gradients = tf.gradients(spec.loss, list(trained.values()))
            initialize(session)
            reached = {name: g for name, g in zip(trained, gradients) if g is not None}
            dense = {name: tf.convert_to_tensor(g) for name, g in reached.items()}
            before, found, loss = session.run([trained, dense, spec.loss])
            session.run(spec.train_op)
            self.assertEqual(session.run(step), 1)
            self.assertTrue(np.isfinite(loss))
            return before, found, session.run(trained)


def initialize(session):
    session.run(
        [
            tf.global_variables_initializer(),
            tf.local_variables_initializer(),
            tf.tables_initializer(),
        ]
    )


def embedded(text):
    vectors = tiny.word_vectors()
    words = [vectors[word] for word in text.split()]
    return np.mean(words, 0) if words else np.zeros(3)


def linear(inputs, values, scope):
    return inputs @ values[scope + "/weights"] + values[scope + "/bias"]


def normalized(inputs, values, scope):
    """Applies batch normalization with the moving statistics."""
    part = {name: values[f"{scope}/{name}"] for name in ("beta", "gamma")}
    mean, variance = (values[f"{scope}/moving_{name}"] for name in ("mean", "variance"))
    return (inputs - mean) / np.sqrt(variance + 1e-6) * part["gamma"] + part["beta"]


def towers(space, values, deep_inputs, pooled):
    """Returns the sum of both towers' outputs."""
    for layer in range(space.hidden_layers):
        scope = f"deep/hidden_{layer}"
        deep_inputs = linear(deep_inputs, values, scope + "/linear")
        if space.hidden_normalization == "batch":
            deep_inputs = normalized(deep_inputs, values, scope + "/BatchNorm")
        elif space.hidden_normalization == "layer":
            deviation = np.sqrt(np.var(deep_inputs, -1, keepdims=True) + 1e-12)
            deep_inputs = (deep_inputs - np.mean(deep_inputs, -1, keepdims=True)) / deviation
            deep_inputs *= values[scope + "/LayerNorm/gamma"]
            deep_inputs += values[scope + "/LayerNorm/beta"]
        deep_inputs = ACTIVATIONS[space.hidden_activation](deep_inputs)
    return linear(deep_inputs, values, "deep/output") + linear(pooled, values, "wide/output")


def convolved(space, values, sentences, unit):
    """Returns [B, F n], computed text by text and n-gram by n-gram."""
    rows = []
    for text in sentences:
        words, row = text.split(), []
        for n in range(1, space.conv_max_ngram + 1):
            weights, bias = (values[f"deep/conv_{n}/{part}"] for part in ("weights", "bias"))
            outputs = [np.full(space.conv_filters, -np.inf)]
            for start in range(len(words)):
                ngram = words[start : start + n]
                if unit == "text":
                    output = embedded(" ".join(ngram)) @ weights[0]
                else:
                    output = sum(embedded(word) @ weights[k] for k, word in enumerate(ngram))
                outputs.append(ACTIVATIONS[space.conv_activation](output + bias))
            strongest = np.max(outputs, 0)
            row.append(np.where(np.isinf(strongest), 0, strongest))
        rows.append(np.concatenate(row))
    inputs = np.array(rows)
    return normalized(inputs, values, "deep/conv_norm") if space.conv_batch_norm else inputs


class TowersTest(ModelTestCase):
    def test_towers_on_pooled_embeddings_match_numpy(self):
        pooled = np.array([embedded(text) for text, _ in TEXTS])
        for changes in (
            {"hidden_layers": 0},
            {"hidden_layers": 1, "hidden_normalization": "batch"},
            {"hidden_normalization": "layer", "hidden_activation": "swish"},
            *({"hidden_activation": name} for name in ACTIVATIONS),
        ):
            config = self.settings(num_labels=4, **changes)
            outputs, values = self.computed(config)
            self.assertAllClose(
                outputs, towers(config.settings, values, pooled, pooled), 1e-5, 1e-5
            )

    def test_towers_on_convolutions_match_numpy(self):
        sentences = [text for text, _ in TEXTS]
        pooled = np.array([embedded(text) for text in sentences])
        for unit, changes in (
            ("word", {}),
            ("word", {"conv_max_ngram": 2, "conv_batch_norm": True}),
            ("text", {"conv_activation": "swish"}),
        ):
            config = self.settings(unit, use_convolution=True, hidden_layers=1, **changes)
            outputs, values = self.computed(config)
            inputs = convolved(config.settings, values, sentences, unit)
            self.assertAllClose(
                outputs, towers(config.settings, values, inputs, pooled), 1e-5, 1e-5
            )

    def test_bfloat16_convolution_is_close_to_float32(self):
        if tf.__version__.startswith("1."):
            self.skipTest("TensorFlow 1 has no convolution in bfloat16 on CPU")
        config = self.settings(use_convolution=True)
        outputs, _ = self.computed(config)
        rounded, _ = self.computed(dataclasses.replace(config, precision="bfloat16"))
        self.assertNotAllClose(outputs, rounded, 1e-6, 1e-6)
        self.assertAllClose(outputs, rounded, 0.02, 0.02)

    def test_towers_on_pairs_match_numpy(self):
        def paired(u, v):
            return np.concatenate([u, v, np.abs(u - v), u * v], -1)

        sides = [[pair[side] for pair in PAIRS] for side in (0, 1)]
        pooled = paired(*(np.array([embedded(text) for text in sentences]) for sentences in sides))
        config = self.settings(use_convolution=True, hidden_layers=0)
        outputs, values = self.computed(config, PAIRS)
        inputs = paired(
            *(convolved(config.settings, values, sentences, "word") for sentences in sides)
        )
        self.assertAllClose(outputs, towers(config.settings, values, inputs, pooled), 1e-5, 1e-5)

    def test_dropout_is_applied_only_in_training(self):
        config = self.settings(use_convolution=True, conv_dropout=0.4, hidden_dropout=0.5)
        again = self.settings(use_convolution=True)
        (dropped, _), (plain, _) = (
            self.computed(some, is_training=True) for some in (config, again)
        )
        self.assertNotAllClose(dropped, plain)
        self.assertAllClose(self.computed(config)[0], plain)


class StepTest(ModelTestCase):
    def test_training_step_updates_moving_mean(self):
        config = self.settings(hidden_layers=1, hidden_normalization="batch")
        rows, strings = self.prepared(config)
        features = {**rows, "label_ids": np.array([0, 1, 1, 0], np.int32)}
        with tf.Graph().as_default(), tf.Session() as session:
            tf.train.get_or_create_global_step()
            model_fn = model.model_fn_builder(config, strings)
            tensors = {name: tf.constant(values) for name, values in features.items()}
            spec = model_fn(tensors, None, tf_estimator.ModeKeys.TRAIN, {}, None)
            initialize(session)
            values = {v.op.name: v for v in tf.global_variables()}
            before = session.run(values)
            session.run(spec.train_op)
            moved = session.run(values["deep/hidden_0/BatchNorm/moving_mean"])
        pooled = np.array([embedded(text) for text, _ in TEXTS])
        expected = 0.1 * linear(pooled, before, "deep/hidden_0/linear").mean(0)
        self.assertAllClose(moved, expected, 1e-5, 1e-6)

    def test_presets_of_each_kind_build_and_train_a_step(self):
        for task in ("airline", "corporate_messaging", "disasters", "newsgroups", "sms_spam"):
            preset = PRESETS[task]
            unit = "text" if preset.module == "Universal-sentence-encoder" else "word"
            config = self.settings(unit)
            config = dataclasses.replace(config, settings=preset)
            before, gradients, after = self.stepped(config)
            self.assertEqual("module/table" in before, preset.fine_tune_module, task)
            self.assertEqual(
                "deep/conv_3/weights" in before,
                preset.use_convolution and preset.conv_max_ngram == 3,
                task,
            )
            changed = [name for name in before if np.any(before[name] != after[name])]
            self.assertIn("wide/output/weights", changed, task)
            self.assertIn("deep/output/weights", changed, task)


class ModuleTest(ModelTestCase):
    """Tests that depend on the module's format, here TensorFlow 1's."""

    def test_embeddings_are_means_of_word_vectors(self):
        strings = ["", *(text for text, _ in TEXTS)]
        expected = [embedded(text) for text in strings]
        self.assertAllClose(model.compute_embeddings(self.module, strings), expected)

    def test_trainable_module_starts_equal_to_frozen_module(self):
        for unit, sentences in (("word", TEXTS), ("text", PAIRS)):
            for use_convolution in (False, True):
                changes = {"use_convolution": use_convolution}
                frozen, values = self.computed(self.settings(unit, **changes), sentences)
                changes["fine_tune_module"] = True
                trained, others = self.computed(self.settings(unit, **changes), sentences)
                self.assertAllClose(frozen, trained, 1e-5, 1e-5)
                self.assertEqual(set(others) - set(values), {"module/table"})

    def test_each_tower_has_its_learning_rate_and_regularization(self):
        config = self.settings(
            fine_tune_module=True,
            deep_learning_rate=0.5,
            deep_regularization=0.01,
            wide_learning_rate=0.005,
            wide_regularization=0.0,
        )
        before, gradients, after = self.stepped(config)
        self.assertEqual(set(before), set(gradients))
        for name, gradient in gradients.items():
            rate, penalty = (0.005, 0.0) if name.startswith("wide/") else (0.5, 0.01)
            # Duchi et al. 2011: adaptive rates, and the proximal step of the penalty.
            adapted = rate / np.sqrt(0.1 + gradient**2)
            expected = (before[name] - adapted * gradient) / (1 + adapted * penalty)
            if name == "module/table":  # Rows that did not occur stay unchanged.
                occurred = gradient.any(-1, keepdims=True)
                expected = np.where(occurred, expected, before[name])
            self.assertAllClose(after[name], expected, 1e-5, 1e-6, msg=name)


@unittest.skipIf(tf2_modules.IS_TF1, tf2_modules.WITHOUT)
class TensorFlow2ModuleTest(ModuleTest):
    """Runs the same tests on TensorFlow 2's SavedModel."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        shutil.rmtree(cls.folder)
        cls.module = model.open_module(tf2_modules.save_text_module(cls.folder))


class OpenModuleTest(tf.test.TestCase):
    def write(self, name, build):
        folder = os.path.join(self.get_temp_dir(), name)
        with tf.Graph().as_default(), tf.Session() as session:
            module = hub.Module(hub.create_module_spec(build))
            session.run(tf.global_variables_initializer())
            module.export(folder, session)
        return folder

    def assert_refused(self, handle, pattern):
        with self.assertRaisesRegex(UserError, pattern):
            model.open_module(handle)

    def test_missing_and_empty_module_folders_are_refused(self):
        missing = os.path.join(self.get_temp_dir(), "missing")
        self.assert_refused(missing, "TF-Hub module .*missing: cannot be downloaded")
        empty = os.path.join(self.get_temp_dir(), "empty")
        os.makedirs(empty)
        self.assert_refused(empty, r"TensorFlow 2's SavedModel, but .*empty holds neither")

    def test_damaged_weights_are_refused(self):
        for name in ("hub", *([] if tf2_modules.IS_TF1 else ["tf2"])):
            folder = os.path.join(self.get_temp_dir(), name)
            (tf2_modules.save_text_module if name == "tf2" else tiny.write_text_module)(folder)
            opened = model.open_module(folder)
            (weights,) = glob.glob(os.path.join(folder, "variables", "variables.data-*"))
            with open(weights, "wb"):
                pass
            with self.assertRaisesRegex(UserError, f"{folder}: TensorFlow .* cannot embed texts"):
                model.compute_embeddings(opened, ["", "dog"])
            os.remove(os.path.join(folder, "variables", "variables.index"))
            self.assert_refused(folder, f"TF-Hub module {folder}")

    def test_modules_without_text_embeddings_are_refused(self):
        def image():
            pixels = tf.placeholder(tf.float32, [None, 4, 4, 3])
            hub.add_signature(inputs=pixels, outputs=tf.reduce_mean(pixels, [1, 2]))

        def other_signature():
            sentences = tf.placeholder(tf.string, [None])
            hub.add_signature("tokens", sentences, tf.zeros([tf.size(sentences), 2]))

        def words():
            sentences = tf.placeholder(tf.string, [None])
            hub.add_signature(inputs=sentences, outputs=tf.zeros([tf.size(sentences), 5, 2]))

        for build, part in (
            (image, "cannot apply it to strings"),
            (other_signature, "cannot apply it to strings"),
            (words, "its output is .*; expected a text embedding module"),
        ):
            self.assert_refused(self.write(build.__name__, build), part)

    @unittest.skipIf(tf2_modules.IS_TF1, tf2_modules.WITHOUT)
    def test_saved_models_without_text_embeddings_are_refused(self):
        def saved(name, shape, result):
            module, folder = tf2.Module(), os.path.join(self.get_temp_dir(), name)
            signature = [tf2.TensorSpec(shape, tf2.string)]
            module.__call__ = tf2.function(result, input_signature=signature)
            tf2.saved_model.save(module, folder)
            return folder

        output = "its output is .*; expected a text embedding module"
        for name, shape, result, part in (
            ("texts", [None], lambda x: x, output),
            ("named", [None], lambda x: {"default": tf2.zeros([tf2.size(x), 2])}, output),
            ("matrix", [None, 3], lambda x: x, "cannot apply it to strings"),
        ):
            self.assert_refused(saved(name, shape, result), part)
        folder = os.path.join(self.get_temp_dir(), "uncallable")
        tf2.saved_model.save(tf2.Module(), folder)
        self.assert_refused(folder, "cannot apply it to strings")
