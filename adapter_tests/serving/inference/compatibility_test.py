"""Tests of compatibility.py: which tasks can share an encoder."""

import dataclasses
import os
import tempfile
from unittest import mock

import tensorflow.compat.v1 as tf
from absl.testing import parameterized

import modeling
import tuning
from adapter_bert.formats import adapterhub_config, task_adapter
from adapter_bert.model import configs
from adapter_bert.serving.inference import compatibility
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import classification
from adapter_tests.support import own_models, tiny

A = modeling.AdapterConfig
PAIR = task_adapter.Presentation({}, ("text", "text_b"), {})


class CompatibleTest(parameterized.TestCase, tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        root = tempfile.mkdtemp(dir=tf.test.get_temp_dir())
        cls.bert = tiny.write_bert(os.path.join(root, "bert"))
        cls.one_type = tiny.write_bert(os.path.join(root, "one_type"), type_vocab_size=1)
        cls.backbone = own_models.build_task_adapter(cls.bert).description.backbone

    def check(self, description, backbone):
        compatibility.check_compatible(description, backbone, "The adapter")

    @parameterized.parameters(
        ({"fingerprint": "0" * 64}, {}, "fingerprint is 0000"),
        ({}, {"hidden_act": "relu"}, "hidden_act is relu"),
        ({}, {"hidden_size": 16}, "hidden_size is 16"),
        # The names of its tensors would fill the memory.
        ({}, {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
    )
    def test_adapters_of_other_berts_are_refused(self, changes, config, part):
        config = {**self.backbone.config, **config}
        other = dataclasses.replace(self.backbone, config=config, **changes)
        description = own_models.build_task_adapter(self.bert).description
        self.check(description, self.backbone)
        with self.assertRaisesRegex(UserError, f"^The adapter was trained on another .*{part}"):
            self.check(dataclasses.replace(description, backbone=other), self.backbone)

    @parameterized.parameters(
        (
            {"method": tuning.Tuning("top_layers", num_top_layers=1)},
            "--tuning=top_layers.* trained bert/encoder/layer_1/attention/output/dense/bias,"
            " which tasks that share a model cannot; train it by --tuning=adapters, or predict",
        ),
        ({"method": "full"}, "--tuning=full.* trained bert/"),
        ({"labels": ()}, "has no labels, so that it cannot answer"),
        ({"labels": (), "kind": "tagging"}, "has no labels, so that it cannot answer"),
    )
    def test_tasks_that_cannot_share_a_model_are_refused(self, changes, part):
        description = own_models.build_task_adapter(self.bert, **changes).description
        with self.assertRaisesRegex(UserError, f"^The adapter .*{part}"):
            self.check(description, self.backbone)

    @parameterized.parameters(
        ({"kind": "span", "labels": ()}, "question and context"),
        ({"presentation": PAIR}, "text and text_b"),
        ({"presentation": PAIR, "kind": "regression", "labels": ()}, "text and text_b"),
        ({"task": "RTE", "labels": ("entailment", "not_entailment")}, "text and text_b"),
    )
    def test_pairs_need_a_second_segment_id(self, changes, texts):
        description = own_models.build_task_adapter(self.one_type, **changes).description
        part = f"has {texts}, but the BERT has type_vocab_size 1"
        with self.assertRaisesRegex(UserError, part):
            self.check(description, description.backbone)

    def test_heads_of_other_variables_are_refused(self):
        """The encoders compute one linear layer: they would skip a further one in silence."""
        description = own_models.build_task_adapter(self.bert).description
        plain = classification.KIND.head_shapes(2, 8)
        two_layers = mock.patch.object(
            classification.Classification,
            "head_shapes",
            lambda *_: {"hidden_bias": (8,), **plain},
        )
        with two_layers:
            with self.assertRaisesRegex(UserError, "^The adapter has a head with hidden_bias, .*"):
                self.check(description, self.backbone)
            with self.assertRaisesRegex(UserError, "not support a head with hidden_bias"):
                adapterhub_config.check_adapter(description)


class ArchitectureTest(tf.test.TestCase):
    def test_settings_that_leave_the_graph_unchanged_share_an_architecture(self):
        for settings in (
            A(),
            A(3),
            A(4, "GELU", 0.1, "Feedforward_Adapter"),
            A(4, layers=(1,)),
            A(4, sites="attention"),
        ):
            self.assertEqual(compatibility.architecture_of(settings), compatibility.DEFAULT)
        none, linear = (compatibility.architecture_of(A(4, name)) for name in ("", "Linear"))
        self.assertEqual(none, linear)

    def test_other_settings_do_not(self):
        changes = [{name: values[-1]} for name, values in configs.VARIANTS.items() if values]
        changes = [*changes, {"scaling": 2.0}, {"activation": "relu"}]
        changes.remove({"sites": "feed_forward"})
        architectures = [compatibility.architecture_of(A(4, **change)) for change in changes]
        self.assertLen({*architectures, compatibility.DEFAULT}, len(changes) + 1)

    def test_padding_would_change_layer_norms_of_the_bottleneck(self):
        four, other, five = (
            compatibility.architecture_of(A(size, init_scale=scale, normalization="layer"))
            for size, scale in ((4, 0.1), (4, 0.2), (5, 0.1))
        )
        self.assertEqual(four, other)
        self.assertEqual(dataclasses.replace(four, size=5), five)
        self.assertNotEqual(four, five)

    def test_the_error_names_what_differs_of_the_users_settings(self):
        def error(*settings):
            adapters = [
                task_adapter.TaskAdapter(mock.Mock(adapter=adapter), {}) for adapter in settings
            ]
            with self.assertRaises(UserError) as raised:
                compatibility.common_architecture(adapters)
            return str(raised.exception).partition(" cannot share")[0]

        normalized = A(4, normalization="layer")
        beginning = "Adapters of different "
        self.assertEqual(
            error(A(4), None, normalized), beginning + "normalization (layer and none)"
        )
        self.assertEqual(
            error(normalized, A(5, normalization="layer")), beginning + "size (4 and 5)"
        )
