"""Tests of presentations.py: a task's stored presentation precedes the known one."""

import dataclasses

import tensorflow.compat.v1 as tf

from adapter_bert.formats.task_adapter import Presentation
from adapter_bert.model import task_kinds
from adapter_bert.serving.inference import presentations
from adapter_bert.tasks.text import glue
from adapter_tests.support import served


class PresentationsTest(tf.test.TestCase):
    def described(
        self, task, labels=("0", "1"), kind="classification", training=(), **presentation
    ):
        description = dataclasses.replace(
            served.prepare()[1]["sms"].description,
            training=dict(training),
            task=task,
            labels=tuple(labels),
            kind=kind,
            presentation=Presentation(**presentation),
        )
        return presentations.of(description)

    def test_glue_task_gets_known_presentation(self):
        shown, num_required = self.described("MRPC")
        self.assertEqual(shown.label_descriptions["1"], "the same meaning")
        self.assertEqual((shown.fields, num_required), (("text", "text_b"), 2))
        shown, num_required = self.described("CoLA")
        self.assertEqual((shown.fields, num_required), (("text",), 1))

    def test_known_presentations_match_glue_tasks(self):
        for name, known in presentations._KNOWN.items():
            task = glue.TASKS[name]
            expected = set(task.labels) if known.label_descriptions else set()
            self.assertEqual(set(known.label_descriptions), expected, name)
            has_pairs = any(split.text_b is not None for split in task.splits.values())
            self.assertEqual(known.fields, ("text", "text_b") if has_pairs else ("text",), name)

    def test_stored_presentation_takes_precedence(self):
        shown, _ = self.described("MRPC", label_descriptions={"1": "yes"}, example={"text": "a"})
        self.assertEqual(shown.label_descriptions, {"1": "yes"})
        self.assertEqual((shown.fields, shown.example), (("text",), {"text": "a"}))

    def test_custom_task_of_a_known_name_is_another_task(self):
        training = {"answers": {"text_column": "body", "label_column": "kind"}}
        shown, _ = self.described("MRPC", training=training, fields=("text",))
        self.assertEqual(shown.label_descriptions, {})
        self.assertNotIn("profit", shown.example["text"])

    def test_examples_precede_those_of_the_kind(self):
        shown, _ = self.described("x", fields=("text",))
        self.assertEqual(shown.examples, (shown.example,))
        examples = {"text": "a"}, {"text": "b"}
        shown, _ = self.described("x", fields=("text",), examples=examples)
        self.assertEqual((shown.example, shown.examples), (examples[0], examples))
        shown, _ = self.described("x", examples=examples, example={"text": "mine"})
        self.assertEqual((shown.example, shown.examples), ({"text": "mine"}, ({"text": "mine"},)))

    def test_other_labels_disable_the_known_presentation(self):
        shown, num_required = self.described("MRPC", labels=("a", "b"))
        self.assertEqual(shown.label_descriptions, {})
        self.assertEqual((shown.fields, num_required), (("text", "text_b"), 1))

    def test_each_kind_has_examples_for_required_fields(self):
        for name in task_kinds.names():
            shown, _ = self.described("unknown", kind=name)
            kind = task_kinds.get(name)
            for field in kind.fields[: kind.num_required]:
                self.assertTrue(shown.example[field], name)
