"""Tests of compatibility.py; bank_test.py tests which adapters banks refuse."""

import tempfile
from unittest import mock

import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.common.errors import UserError
from adapter_bert.serving import compatibility
from adapter_tests.support import own_models, tiny


class CheckTest(tf.test.TestCase):
    def test_activation_aliases_share_an_architecture(self):
        none, linear = (
            compatibility.architecture_of(modeling.AdapterConfig(4, name))
            for name in ("", "Linear")
        )
        self.assertEqual(none, linear)

    def test_only_supported_adapter_variants_are_accepted(self):
        bert = tiny.write_bert(tempfile.mkdtemp(dir=self.get_temp_dir()))
        adapter = modeling.AdapterConfig(
            4, sites="attention", placement="parallel", interaction="multiply"
        )
        made = own_models.build_task_adapter(bert, adapter=adapter).description
        compatibility.check_compatible(made, made.backbone, "Here")
        for later in ({"of_a_later_version": 1}, {"interaction": "subtract"}):
            variant = {**adapter.variant(), **later}
            changed = mock.patch.object(
                modeling.AdapterConfig, "variant", lambda self, variant=variant: variant
            )
            expected = self.assertRaisesRegex(UserError, "^Here .* may only train plain adapters")
            with changed, expected:
                compatibility.check_compatible(made, made.backbone, "Here")
