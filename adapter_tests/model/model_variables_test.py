"""Tests of model_variables.py: fingerprints, and shapes in graphs and Google's checkpoints."""

import hashlib
import itertools
import os

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.model import configs, model_variables
from adapter_tests.support.checkpoint_cases import TINY, CheckpointTestCase
from adapter_tests.support.refusals import RefusalTestCase
from adapter_tests.support.shared import SHARED, needs_shared


class EncoderShapesTest(tf.test.TestCase):
    def test_encoder_shapes_equal_model_variables(self):
        with tf.Graph().as_default():
            modeling.BertModel(TINY, False, tf.zeros([1, 3], tf.int32), adapter_fn=None)
            variables = [(v.op.name, tuple(v.shape.as_list())) for v in tf.trainable_variables()]
        self.assertEqual(list(model_variables.encoder_shapes(TINY).items()), variables)

    @needs_shared
    def test_encoder_shapes_equal_official_checkpoints(self):
        for model in ("chinese_L-12_H-768_A-12", "uncased_L-4_H-256_A-4"):
            folder = os.path.join(SHARED, "checkpoints", "indexes", model)
            config = modeling.BertConfig.from_json_file(os.path.join(folder, "bert_config.json"))
            index = tf.train.NewCheckpointReader(os.path.join(folder, "bert_model.ckpt"))
            official = {
                name: tuple(shape)
                for name, shape in index.get_variable_to_shape_map().items()
                if name.startswith("bert/")
            }
            self.assertEqual(model_variables.encoder_shapes(config), official)


class AdapterShapesTest(tf.test.TestCase):
    def test_adapter_shapes_equal_graph_variables(self):
        variants = configs.VARIANTS
        pairs = itertools.product(variants["normalization"], (1, 2, 4))
        cases = [{"normalization": name, "depth": depth} for name, depth in pairs]
        for name in ("placement", "interaction"):
            cases += [{name: value} for value in variants[name][1:]]
        for case in cases:
            adapter = configs.AdapterConfig(size=3, fn="Feedforward_Adapter", **case)
            with self.subTest(adapter=adapter), tf.Graph().as_default():
                ids = tf.zeros([1, 3], tf.int32)
                modeling.BertModel(TINY, False, ids, scope="bert", adapter_fn=adapter)
                scope = "bert/encoder/layer_0/attention/output/"
                variables = [
                    (v.op.name[len(scope) :], tuple(v.shape.as_list()))
                    for v in tf.global_variables()
                    if v.op.name.startswith(scope + "adapters/")
                ]
                shapes = model_variables.adapter_shapes(adapter, TINY.hidden_size)
                self.assertEqual(list(shapes.items()), variables)


class FingerprintTest(CheckpointTestCase):
    def tensors(self):
        random = np.random.RandomState(0)
        return {
            name: random.normal(size=shape).astype(np.float32)
            for name, shape in model_variables.encoder_shapes(TINY).items()
        }

    def test_fingerprint_is_sha256_of_names_shapes_and_values(self):
        tensors = self.tensors()
        expected = hashlib.sha256()
        for name in sorted(tensors):
            shape = ", ".join(str(size) for size in tensors[name].shape)
            expected.update(f"{name} [{shape}]\n".encode() + tensors[name].tobytes())
        self.assertEqual(model_variables.fingerprint(tensors.get, TINY), expected.hexdigest())

    def test_fingerprint_ignores_variables_outside_encoder(self):
        tensors = self.tensors()
        plain = self.save(tensors)
        more = self.save(
            {**tensors, "global_step": np.int64(3), "cls/predictions/output_bias": np.zeros(11)},
            prefix=os.path.join(self.folder, "more.ckpt"),
        )
        found = {
            model_variables.fingerprint(tf.train.NewCheckpointReader(prefix).get_tensor, TINY)
            for prefix in (plain, more)
        }
        self.assertEqual(found, {model_variables.fingerprint(tensors.get, TINY)})

    def test_fingerprint_depends_on_every_tensor(self):
        tensors = self.tensors()
        found = {model_variables.fingerprint(tensors.get, TINY)}
        for name, value in tensors.items():
            changed = value.copy()
            changed.flat[-1] += 1e-6 + abs(changed.flat[-1]) * 1e-6
            found.add(model_variables.fingerprint({**tensors, name: changed}.get, TINY))
        self.assertLen(found, 1 + len(tensors))


class CheckListedTest(RefusalTestCase):
    def test_a_graph_must_train_what_its_description_lists(self):
        adapter, head = "bert/encoder/layer_1/output/adapters/weights1", "output_weights"
        listed = {adapter: (8, 4), head: (2, 8)}
        model_variables.check_listed(dict(listed), listed)
        gate, hidden = "bert/encoder/layer_1/output/adapters/gate", "hidden/kernel"
        pooler, unsaved = "bert/pooler/dense/bias", "trains, but would not be saved"
        for trained, parts in (
            ({**listed, gate: (8,)}, [gate, unsaved, "FUNCTIONS", "configs"]),
            ({**listed, hidden: (8, 8)}, [hidden, unsaved, "head_shapes"]),
            ({**listed, pooler: (8,)}, [pooler, unsaved, "`is_trained`"]),
            ({head: (2, 8)}, [adapter, "is in `FUNCTIONS`", "the model does not train it"]),
            ({adapter: (8, 4)}, [head, "is in `head_shapes`", "the model does not train it"]),
            ({**listed, head: (2, 9)}, [head, "[2, 9], but [2, 8] in `head_shapes`"]),
        ):
            self.assert_refused(parts, model_variables.check_listed, trained, listed)
