"""Tests of peft.py: PEFT's folders are recognized wherever an adapter is loaded."""

import json
import os

import convert_checkpoint
from adapter_bert.formats import peft, task_adapter
from adapter_tests.support import tiny
from adapter_tests.support.refusals import RefusalTestCase


class PeftTest(RefusalTestCase):
    def test_peft_adapters_are_refused_with_their_method(self):
        folder = self.get_temp_dir()
        bert = tiny.write_bert(os.path.join(folder, "bert"))
        self.assertFalse(peft.matches(folder))
        with open(os.path.join(folder, "adapter_config.json"), "w") as writer:
            json.dump({"peft_type": "LORA", "r": 8, "target_modules": ["query"]}, writer)
        self.assertIn("PEFT: LORA. ", "".join(peft.describe(folder, "PATH")))
        parts = ["is a PEFT adapter (method LORA)", "no bottleneck adapters"]
        converted = os.path.join(folder, "made")
        convert = convert_checkpoint.from_adapterhub
        self.assert_refused(parts, convert, folder, bert, converted, max_seq_length=16)
        self.assert_refused(["--adapter", *parts], task_adapter.load, folder)
