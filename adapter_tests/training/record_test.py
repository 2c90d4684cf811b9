"""Tests of record.py: how runs differ, and what errors call the differences."""

import copy
import dataclasses

import tensorflow.compat.v1 as tf
from absl.testing import parameterized

import tuning
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text.classifier_data import ClassifierConfig
from adapter_bert.training import record
from adapter_tests.support.task_adapters import description

SECTIONS = {
    "model": {"task": "MRPC", "labels": ("0", "1"), "adapter": {"size": 64}},
    "training": {"learning_rate": 3e-4, "num_train_steps": 50, "max_seq_length": 16},
    "pretrained": {"vocab_file": "there"},
}
BACKBONE, ADAPTER = description().backbone, description().adapter


def changed(section, **values):
    sections = copy.deepcopy(SECTIONS)
    sections[section].update(values)
    return sections


class CheckFitsTest(parameterized.TestCase):
    def check(self, **changes):
        record.check_fits(
            description(), description(**changes), "--adapter there", ClassifierConfig
        )

    def test_fields_irrelevant_to_compatibility_may_differ(self):
        self.check(
            task="RTE", max_seq_length=32, global_step=1, training={}, scores={}, versions={}
        )

    @parameterized.parameters(
        ('["0", "1"], is now ["1", "0"]', {"labels": ("1", "0")}),
        (
            '(--label_type) was "classification", is now "regression"',
            {"kind": "regression", "labels": ()},
        ),
        ("--do_lower_case was true, is now false", {"do_lower_case": False}),
        ("(--bert, --vocab_file) is not the same", {"vocabulary": "f" * 16}),
        (
            '--tuning was "adapters", is now "head"',
            {"adapter": None, "tuning": tuning.Tuning("head")},
        ),
    )
    def test_incompatible_fields_are_refused(self, part, changes):
        with self.assertRaises(UserError) as caught:
            self.check(**changes)
        self.assertIn(part, str(caught.exception))
        self.assertStartsWith(str(caught.exception), "--adapter there (task MRPC, backbone")

    @parameterized.parameters(
        ("(--bert, --init_checkpoint) is not the same", {"fingerprint": "0" * 64}),
        ("hidden_act (--bert_config_file)", {"config": {**BACKBONE.config, "hidden_act": "relu"}}),
        (
            "num_attention_heads (--bert_config_file)",
            {"config": {**BACKBONE.config, "num_attention_heads": 1}},
        ),
    )
    def test_incompatible_berts_are_refused(self, part, changes):
        with self.assertRaisesWithPredicateMatch(UserError, lambda error: part in str(error)):
            self.check(backbone=dataclasses.replace(BACKBONE, **changes))

    @parameterized.parameters(
        ("--adapter_size was 4, is now 8", {"size": 8}),
        ("--adapter_activation was", {"activation": "relu"}),
        ("--adapter_layers was not set", {"layers": (1,)}),
        ("--adapter_depth was not set, is now 2", {"depth": 2}),
        ('--adapter_placement was not set, is now "parallel"', {"placement": "parallel"}),
    )
    def test_incompatible_adapters_are_refused(self, part, changes):
        with self.assertRaisesWithPredicateMatch(UserError, lambda error: part in str(error)):
            self.check(adapter=dataclasses.replace(ADAPTER, **changes))


METHOD = ("method", "adapters", "full")
KEPT = [
    ("keep_best", True, None),
    ("early_stopping_patience", 0, None),
    ("dev_data", "a" * 16, None),
    ("evaluated_every", 4, None),
]


class DescribeTest(parameterized.TestCase):
    @parameterized.parameters(
        ([METHOD], [["--tuning", "adapters", "full"]]),
        ([("adapter_size", 64, 8)], [["--adapter_size", "64", "8"]]),
        ([("backbone", "a" * 64, "b" * 64)], [["--init_checkpoint"]]),
        ([("of_a_script", 1, 2)], [["--of_a_script was 1, is now 2"]]),
        (
            [("bert_config.hidden_act", "gelu", "relu")],
            [["hidden_act", "--bert_config_file", "gelu", "relu"]],
        ),
        # Settings that differ only because the method differs are omitted.
        ([("adapter_size", 64, None), METHOD], [["--tuning", "adapters", "full"]]),
        ([("adapter_size", 64, 8), METHOD], [["--adapter_size"], ["--tuning"]]),
        ([("adapter_size", 64, None)], [["--adapter_size", "64"]]),
        # Settings that only a run with --keep_best has are omitted.
        (
            [*KEPT, ("learning_rate", 3e-4, 5e-5)],
            [["--keep_best", "not set"], ["--learning_rate"]],
        ),
        (
            [("early_stopping_patience", None, 2), ("evaluated_every", None, 4)],
            [["--early_stopping_patience"]],
        ),
        ([("early_stopping_patience", 1, 2), KEPT[3]], [["--early_stopping_patience"], ["4"]]),
        (
            [("dev_data", "a" * 16, "b" * 16), ("evaluated_every", 4, 8)],
            [["dev data"], ["4", "8"]],
        ),
    )
    def test_differences_are_described_by_flags_and_values(self, found, expected):
        """Each difference is a text with the flag, the old and the new value."""
        texts = record.describe(found, ClassifierConfig)
        self.assertLen(texts, len(expected))
        for text, parts in zip(texts, expected):
            for part in parts:
                self.assertIn(part, text)


class RecordTest(tf.test.TestCase):
    def differences(self, sections, is_training=True, has_weights=True, earlier=SECTIONS):
        now = record.of_sections(sections, ClassifierConfig)
        earlier = record.of_sections(earlier).sections
        return " ".join(now.differences(earlier, is_training, has_weights))

    def test_each_kind_of_run_compares_its_sections(self):
        model, rate = changed("model", task="CoLA"), changed("training", learning_rate=1e-3)
        length = changed("training", max_seq_length=20)  # It matters to evaluations, too.
        for sections, is_training, has_weights, expected in (
            (SECTIONS, True, True, ""),
            (changed("pretrained", vocab_file="moved"), True, True, ""),
            (model, True, True, "--task_name"),
            (model, False, True, "--task_name"),
            (model, False, False, ""),
            (rate, True, True, "--learning_rate"),
            (rate, False, True, ""),
            (length, False, True, "--max_seq_length"),
            (length, False, False, "--max_seq_length"),
        ):
            found = self.differences(sections, is_training, has_weights)
            self.assertEqual(bool(found), bool(expected), found)
            self.assertIn(expected, found)
        # Without an earlier training, an evaluation has nothing to compare.
        self.assertEqual(self.differences(length, False, False, {"model": {}}), "")

    def test_nested_settings_are_compared_by_leaf(self):
        for earlier, now, expected in (
            (SECTIONS, changed("model", adapter={"size": 8}), "adapter.size was 64, is now 8"),
            (SECTIONS, changed("model", adapter=None), "adapter.size was 64, is now not set"),
            (changed("model", adapter=None), SECTIONS, "adapter.size was not set, is now 64"),
            ({}, SECTIONS, 'task (--task_name, --name) was not set, is now "MRPC"'),
            (changed("model", task={"name": "A"}), SECTIONS, 'task.name was "A", is now not set'),
            (changed("model", adapter=64), SECTIONS, "adapter was 64, is now not set"),
        ):
            self.assertIn(expected, self.differences(now, earlier=earlier))

    def test_longer_run_differs_only_in_its_length(self):
        longer = {"num_train_steps": 80, "num_warmup_steps": 8}
        for sections, step, expected in (
            (changed("training", **longer), 50, True),
            (changed("training", **longer), 49, False),
            (changed("training", num_train_steps=40), 50, False),
            (changed("training", num_warmup_steps=8), 50, False),
            (changed("training", **longer, random_seed=1), 50, False),
            ({**changed("training", **longer), "model": {"task": "CoLA"}}, 50, False),
        ):
            now = record.of_sections(sections)
            found = now.is_longer(record.of_sections(SECTIONS).sections, step)
            self.assertEqual(found, expected, sections)

    def test_identity_depends_on_what_decides_the_weights(self):
        own = record.identity(SECTIONS)
        self.assertEqual(record.of_sections(SECTIONS).identity, own)
        for same in (
            changed("training", added=None),  # As in a record of an earlier version.
            {**SECTIONS, "more": {"of": "a script"}},
            changed("pretrained", vocab_file="moved"),
            # A continued training keeps its identity: a kill may precede its first checkpoint.
            changed("training", num_train_steps=80, num_warmup_steps=8),
            # Another program may have rewritten the numbers.
            changed("training", max_seq_length=16.0),
        ):
            self.assertEqual(record.identity(same), own)
        for other in (changed("training", random_seed=99), changed("model", labels=("1", "0"))):
            self.assertNotEqual(record.identity(other), own)
        numbers = ([0, 1, 2.5], [False, True, 2.5], [0.0, 1.0, 2.5])
        self.assertLen({record.identity(changed("training", x=each)) for each in numbers}, 1)

    def test_record_of_a_description_has_all_that_decides_the_weights(self):
        training = {"learning_rate": 3e-4, record.ANSWERS: {"max_answer_length": 2}}
        described = description(training=training)
        found = record.of_description(described, ClassifierConfig, {"vocab_file": "there"})
        self.assertEqual(found.settings_class, ClassifierConfig)
        self.assertEqual(set(found.sections), {"model", "training", "pretrained"})
        self.assertEqual(found.sections["pretrained"], {"vocab_file": "there"})
        self.assertEqual(found.sections["model"]["task"], "MRPC")
        self.assertEqual(found.sections["model"]["labels"], ["0", "1"])
        expected = {
            "max_seq_length": 16,
            "bert_config": BACKBONE.config,
            "adapter_init_scale": ADAPTER.init_scale,
            "learning_rate": 3e-4,
        }
        self.assertEqual(found.sections["training"], expected)
        bare = description(adapter=None, tuning=tuning.Tuning("head"))
        found = record.of_description(bare, ClassifierConfig).sections
        self.assertEqual((found["pretrained"], found["training"]["adapter_init_scale"]), ({}, None))
