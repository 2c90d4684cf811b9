"""Tests of compatibility.py; bank_test.py tests which adapters banks refuse."""

import dataclasses
import os
import tempfile
from unittest import mock

import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.formats import adapterhub_config, task_adapter
from adapter_bert.model import configs
from adapter_bert.serving.inference import compatibility
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import classification
from adapter_tests.support import own_models, tiny

A = modeling.AdapterConfig


class HeadTest(tf.test.TestCase):
    def test_heads_of_other_variables_are_refused(self):
        """The encoders compute one linear layer: they would skip a further one in silence."""
        bert = tiny.write_bert(os.path.join(tempfile.mkdtemp(dir=tf.test.get_temp_dir()), "bert"))
        description = own_models.build_task_adapter(bert).description
        compatibility.check_compatible(description, description.backbone, "The adapter")
        plain = classification.KIND.head_shapes(2, 8)
        two_layers = mock.patch.object(
            classification.Classification,
            "head_shapes",
            lambda *_: {"hidden_bias": (8,), **plain},
        )
        with two_layers:
            with self.assertRaisesRegex(UserError, "^The adapter has a head with hidden_bias, .*"):
                compatibility.check_compatible(description, description.backbone, "The adapter")
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
