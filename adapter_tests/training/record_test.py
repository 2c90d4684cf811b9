"""Tests of record.py: how runs differ, and what errors call the differences."""

import dataclasses

import tensorflow.compat.v1 as tf

import tuning
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text.classifier_data import ClassifierConfig
from adapter_bert.training import record
from adapter_tests.support.task_adapters import description


class CheckFitsTest(tf.test.TestCase):
    def check(self, **changes):
        record.check_fits(
            description(), description(**changes), "--adapter there", ClassifierConfig
        )

    def test_fields_irrelevant_to_compatibility_may_differ(self):
        self.check(
            task="RTE", max_seq_length=32, global_step=1, training={}, scores={}, versions={}
        )

    def test_incompatible_fields_are_refused(self):
        adapter = description().adapter
        backbone = description().backbone
        one_head_config = {**backbone.config, "num_attention_heads": 1}
        relu = {**backbone.config, "hidden_act": "relu"}
        for changes, part in (
            ({"labels": ("1", "0")}, '["0", "1"], is now ["1", "0"]'),
            (
                {"kind": "regression", "labels": ()},
                '(--label_type) was "classification", is now "regression"',
            ),
            ({"do_lower_case": False}, "--do_lower_case was true, is now false"),
            ({"vocabulary": "f" * 16}, "(--vocab_file) is not the same"),
            (
                {"backbone": dataclasses.replace(backbone, fingerprint="0" * 64)},
                "(--init_checkpoint) is not the same",
            ),
            (
                {"backbone": dataclasses.replace(backbone, config=relu)},
                "hidden_act (--bert_config_file) was",
            ),
            (
                {"backbone": dataclasses.replace(backbone, config=one_head_config)},
                "num_attention_heads (--bert_config_file) was",
            ),
            ({"adapter": dataclasses.replace(adapter, size=8)}, "--adapter_size was 4, is now 8"),
            (
                {"adapter": dataclasses.replace(adapter, activation="relu")},
                "--adapter_activation was",
            ),
            (
                {"adapter": dataclasses.replace(adapter, layers=(1,))},
                "--adapter_layers was not set",
            ),
            (
                {"adapter": dataclasses.replace(adapter, depth=2)},
                "--adapter_depth was not set, is now 2",
            ),
            (
                {"adapter": dataclasses.replace(adapter, placement="parallel")},
                '--adapter_placement was not set, is now "parallel"',
            ),
            (
                {"adapter": None, "tuning": tuning.Tuning("head")},
                '--tuning was "adapters", is now "head"',
            ),
        ):
            with self.assertRaises(UserError) as caught:
                self.check(**changes)
            self.assertIn(part, str(caught.exception))
            self.assertStartsWith(str(caught.exception), "--adapter there (task MRPC, backbone")


class InFlagsTest(tf.test.TestCase):
    def test_differences_are_described_by_flags_and_values(self):
        """Each difference is a text with the flag, the old and the new value."""
        method = ("method", "adapters", "full")
        tuned = ["--tuning", "adapters", "full"]
        for differences, expected in (
            ([method], [tuned]),
            ([("adapter_size", 64, 8)], [["--adapter_size", "64", "8"]]),
            ([("backbone", "a" * 64, "b" * 64)], [["--init_checkpoint"]]),
            (
                [("bert_config.hidden_act", "gelu", "relu")],
                [["hidden_act", "--bert_config_file", "gelu", "relu"]],
            ),
            # Settings that differ only because the method differs are omitted.
            ([("adapter_size", 64, None), method], [tuned]),
            ([("adapter_size", 64, None)], [["--adapter_size", "64"]]),
            # Settings that only a run with --keep_best has are omitted.
            (
                [
                    ("keep_best", True, None),
                    ("early_stopping_patience", 0, None),
                    ("dev_data", "a" * 16, None),
                    ("evaluated_every", 4, None),
                    ("learning_rate", 3e-4, 5e-5),
                ],
                [["--keep_best", "not set"], ["--learning_rate"]],
            ),
            (
                [("dev_data", "a" * 16, "b" * 16), ("evaluated_every", 4, 8)],
                [["dev data"], ["4", "8"]],
            ),
        ):
            texts = record.describe(differences, ClassifierConfig)
            self.assertLen(texts, len(expected))
            for text, parts in zip(texts, expected):
                for part in parts:
                    self.assertIn(part, text)
