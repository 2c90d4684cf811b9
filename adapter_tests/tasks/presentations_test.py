"""Tests of presentations.py: what people see of a task, its own words first."""

import dataclasses

import tensorflow.compat.v1 as tf

from adapter_bert.common import task_kinds
from adapter_bert.formats.task_adapter import Presentation
from adapter_bert.tasks import glue, presentations
from adapter_tests.support import served


class PresentationsTest(tf.test.TestCase):
    def described(self, task, labels=("0", "1"), kind="classification", **presentation):
        description = dataclasses.replace(
            served.prepare()[1]["sms"].description,
            task=task,
            labels=tuple(labels),
            kind=kind,
            presentation=Presentation(**presentation),
        )
        return presentations.of(description)

    def test_a_task_of_glue_is_known(self):
        shown, num_required = self.described("MRPC")
        self.assertEqual(shown.label_descriptions["1"], "the same meaning")
        self.assertEqual((shown.fields, num_required), (("text", "text_b"), 2))
        shown, num_required = self.described("CoLA")
        self.assertEqual((shown.fields, num_required), (("text",), 1))

    def test_what_is_known_fits_glues_tasks(self):
        for name, known in presentations._KNOWN.items():
            task = glue.TASKS[name]
            expected = set(task.labels) if known.label_descriptions else set()
            self.assertEqual(set(known.label_descriptions), expected, name)
            has_pairs = any(split.text_b is not None for split in task.splits.values())
            self.assertEqual(known.fields, ("text", "text_b") if has_pairs else ("text",), name)

    def test_its_own_words_come_first(self):
        shown, _ = self.described("MRPC", label_descriptions={"1": "yes"}, example={"text": "a"})
        self.assertEqual(shown.label_descriptions, {"1": "yes"})
        self.assertEqual((shown.fields, shown.example), (("text",), {"text": "a"}))

    def test_another_task_of_a_known_name(self):
        shown, num_required = self.described("MRPC", labels=("a", "b"))
        self.assertEqual(shown.label_descriptions, {})
        self.assertEqual((shown.fields, num_required), (("text", "text_b"), 1))

    def test_each_kind_has_an_example_of_what_it_requires(self):
        for name in task_kinds.names():
            shown, _ = self.described("unknown", kind=name)
            kind = task_kinds.get(name)
            for field in kind.fields[: kind.num_required]:
                self.assertTrue(shown.example[field], name)
