"""Tests of search_space.py: the paper's tables, and refused settings."""

import csv
import dataclasses
import os
import unittest

import tensorflow.compat.v1 as tf

from adapter_bert.ops import layers
from adapter_bert.paper.baseline import search_space
from adapter_bert.paper.baseline.search_space import PRESETS, SPACE, Choice, Range, TrialSettings
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import custom_tasks

_PAPER = os.path.join(os.environ.get("ADAPTER_BERT_DATA", ""), "paper")
_HAS_PAPER = os.path.exists(os.path.join(_PAPER, "table5_search_space.tsv"))
_SPELLED = {"leaky relu": "leaky_relu", "batch norm": "batch", "layer norm": "layer"}


def table(name):
    with open(os.path.join(_PAPER, name), encoding="utf-8") as reader:
        return list(csv.DictReader(reader, delimiter="\t"))


def spelled(text):
    text = _SPELLED.get(text, text)
    if text in ("True", "False"):
        return text == "True"
    try:
        return float(text)
    except ValueError:
        return text


class TablesTest(tf.test.TestCase):
    def test_space_has_the_parameters_of_settings_in_order(self):
        self.assertEqual(list(SPACE), [field.name for field in dataclasses.fields(TrialSettings)])
        for name in ("conv_activation", "hidden_activation"):
            self.assertLessEqual(set(SPACE[name].values), set(layers.ACTIVATIONS))

    def test_each_further_task_has_a_preset(self):
        self.assertEqual(set(PRESETS), set(custom_tasks.LAYOUTS))

    @unittest.skipUnless(_HAS_PAPER, "ADAPTER_BERT_DATA has no paper/ with Tables 5 to 7")
    def test_space_equals_table_5(self):
        rows = table("table5_search_space.tsv")
        self.assertLen(rows, len(SPACE))
        for row, (name, domain) in zip(rows[1:], list(SPACE.items())[1:]):
            values = [spelled(text.strip()) for text in row["search_space"][1:-1].split(",")]
            if row["search_space"].startswith("["):
                self.assertEqual([domain.low, domain.high], values, name)
            else:
                self.assertCountEqual(domain.values, values, name)

    @unittest.skipUnless(_HAS_PAPER, "ADAPTER_BERT_DATA has no paper/ with Tables 5 to 7")
    def test_modules_equal_table_6(self):
        rows = table("table6_modules.tsv")
        handles = {row["id"]: row["handle_after_the_tfhub_prefix"] for row in rows}
        known = search_space.MODULES.items()
        self.assertEqual(
            {name: module.handle.split("google/")[1] for name, module in known}, handles
        )

    @unittest.skipUnless(_HAS_PAPER, "ADAPTER_BERT_DATA has no paper/ with Tables 5 to 7")
    def test_presets_equal_table_7(self):
        names = {
            "20 newsgroups": "newsgroups",
            "Customer complaint database": "customer_complaints",
            "News aggregator dataset": "news_aggregator",
            "Sms spam collection": "sms_spam",
        }
        rows = table("table7_selected_models.tsv")
        self.assertLen(rows, 17)
        for row in rows:
            dataset = row.pop("dataset")
            short = dataset.replace("Crowdflower ", "").replace(" ", "_")
            preset = dataclasses.asdict(PRESETS[names.get(dataset, short)])
            self.assertEqual(preset, {name: spelled(text) for name, text in row.items()}, dataset)


class DomainTest(tf.test.TestCase):
    def test_choice_contains_its_values_or_any_text_if_open(self):
        some = Choice((0, 1, 2))
        self.assertIn(1, some)
        self.assertIn(2.0, some)
        self.assertNotIn(True, some)
        self.assertNotIn(3, some)
        self.assertIn("any", Choice(("one",), is_open=True))
        self.assertNotIn(1, Choice(("one",), is_open=True))

    def test_range_contains_numbers_between_its_bounds(self):
        self.assertIn(50, Range(50, 200))
        self.assertIn(200, Range(50, 200))
        for value in (49, 201, 60.5, True, "60"):
            self.assertNotIn(value, Range(50, 200))
        self.assertIn(0.4, Range(0.0, 0.4))
        self.assertNotIn(0.41, Range(0.0, 0.4))

    def test_settings_outside_the_search_space_are_refused(self):
        preset = PRESETS["airline"]
        for name, value, expected in (
            ("hidden_layers", 4, "hidden_layers=4: expected one of 0, 1, 2, 3, 5"),
            ("conv_filters", 201, "conv_filters=201: expected a whole number from 50 to 200"),
            ("conv_filters", 10**400, "expected a whole number from 50 to 200"),
            ("conv_dropout", 0.5, "conv_dropout=0.5: expected a number from 0.0 to 0.4"),
            ("lowercase", 1, "lowercase=1: expected one of true, false"),
        ):
            with self.assertRaisesRegex(UserError, expected):
                dataclasses.replace(preset, **{name: value})


class ParseTest(tf.test.TestCase):
    def test_parse_setting_returns_typed_values(self):
        for text, expected in (
            ("hidden_layers=0,5", ("hidden_layers", [0, 5])),
            ("training_samples=1e5", ("training_samples", [100_000])),
            ("use_convolution=True,false", ("use_convolution", [True, False])),
            ("conv_dropout=0.25", ("conv_dropout", [0.25])),
            ("hidden_activation=leaky_relu", ("hidden_activation", ["leaky_relu"])),
            ("hidden_normalization=none", ("hidden_normalization", ["none"])),
            ("module=English-big,/some/where", ("module", ["English-big", "/some/where"])),
        ):
            self.assertEqual(search_space.parse_setting(text), expected)
            self.assertEqual(
                list(map(type, search_space.parse_setting(text)[1])), list(map(type, expected[1]))
            )

    def test_parse_setting_refuses_invalid_settings(self):
        for text, expected in (
            ("hidden=2", "module, fine_tune_module"),
            ("hidden_layers", "expected name=value"),
            ("hidden_layers=4", "expected one of 0, 1, 2, 3, 5"),
            ("hidden_layers=true", "expected one of 0, 1, 2, 3, 5"),
            ("conv_dropout=a", "expected a number from 0.0 to 0.4"),
            ("conv_filters=60.5", "expected a whole number from 50 to 200"),
            ("hidden_layers=" + "[" * 100_000, "expected one of 0, 1, 2, 3, 5"),
        ):
            with self.assertRaisesRegex(UserError, expected):
                search_space.parse_setting(text)


class ModuleTest(tf.test.TestCase):
    def test_find_module_recognizes_unit_of_each_module(self):
        for name, unit in (
            ("English-big", "word"),
            ("english-BIG", "word"),
            ("universal-sentence-encoder", "text"),
            ("/models/universal-sentence-encoder-lite/2", "text"),
            ("/models/mine", "word"),
        ):
            self.assertEqual(search_space.find_module(name).unit, unit, name)
        self.assertEqual(search_space.find_module("/models/mine").handle, "/models/mine")
        self.assertIn("nnlm-en-dim128", search_space.find_module("english-BIG").handle)

    def test_short_name_is_last_part_of_module_path(self):
        for name, short in (
            ("English-big", "English-big"),
            ("https://tfhub.dev/google/encoder-lite/2", "encoder-lite"),
            ("/models/mine/", "mine"),
            ("7", "7"),
        ):
            self.assertEqual(search_space.short_name(name), short)
