"""Tests of task_kinds.py: a kind works once it is registered, without any other edit."""

import os
import subprocess
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import tuning
from adapter_bert.formats import task_adapter
from adapter_bert.model import task_kinds
from adapter_bert.paper.baseline import model as baseline_model
from adapter_bert.paper.baseline import search_space
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import classifier_results, custom_tasks, text_kind
from adapter_tests.support import task_adapters, tiny
from adapter_tests.support.head_case import HeadCase
from adapter_tests.support.toy_kinds import Marks, Ordinal, registered


class RegistryTest(tf.test.TestCase):
    def test_each_kind_is_registered_under_its_name(self):
        for name in task_kinds.names():
            kind = task_kinds.get(name)
            self.assertEqual(kind.name, name)
            self.assertLessEqual(kind.num_required, len(kind.fields))
            self.assertTrue(kind.answer_types)

    def test_unknown_kind_is_refused(self):
        with self.assertRaisesRegex(UserError, "^kind=spans: expected one of classification, .*"):
            task_kinds.get("spans")

    def test_text_kinds_exclude_span(self):
        self.assertEqual(set(text_kind.by_label_type()), {"class", "float", "multilabel"})
        with self.assertRaisesRegex(UserError, "^kind=span: expected a kind of task that labels"):
            text_kind.get("span")

    def test_registry_imports_neither_tensorflow_nor_sklearn(self):
        program = (
            "import sys\nfrom adapter_bert.model import task_kinds\n"
            "for name in task_kinds.names(): task_kinds.get(name)\n"
            "print(sorted({'tensorflow', 'sklearn'} & set(sys.modules)))"
        )
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        output = subprocess.run(
            [sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, check=True
        ).stdout
        self.assertEqual(output.decode().strip(), "[]")


class ToyKindsTest(HeadCase):
    """Runs all code that depends on a task's kind with two kinds that exist only in tests."""

    def setUp(self):
        super().setUp()
        kinds = registered(Ordinal(), Marks())
        kinds.__enter__()
        self.addCleanup(kinds.__exit__, None, None, None)
        self.folder = self.get_temp_dir()

    def adapter(self, kind, labels):
        method = {"tuning": tuning.Tuning("head"), "adapter": None}
        description = task_adapters.description(kind=kind, labels=labels, **method)
        shapes = task_adapter.shapes(description)
        tensors = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
        return task_adapter.TaskAdapter(description, tensors)

    def test_adapters_of_new_kinds_are_saved_and_loaded(self):
        width = tiny.config().hidden_size
        for kind, labels, scope, outputs in (
            ("ordinal", ("bad", "fair", "good"), "", 2),
            ("marks", (), "toy/marks/", 1),
        ):
            adapter = self.adapter(kind, labels)
            shapes = (outputs, width), (outputs,)
            expected = dict(zip((scope + "output_weights", scope + "output_bias"), shapes))
            self.assertEqual(task_adapter.shapes(adapter.description), expected)
            self.assertTrue(task_adapter.has_head(expected))
            task_adapter.save(self.folder, adapter)
            loaded = task_adapter.load(self.folder)
            self.assertEqual(loaded.description, adapter.description)
            self.assertEqual(set(loaded.tensors), set(expected))

    def test_adapter_of_an_unknown_kind_is_refused(self):
        task_adapter.save(self.folder, self.adapter("marks", ()))
        with registered(), self.assertRaisesRegex(UserError, "kind=marks: expected one of"):
            task_kinds._MODULES.pop("marks")
            task_adapter.load(self.folder)

    def test_table_of_a_new_kind_is_read_scored_and_predicted(self):
        for split in ("train", "dev"):
            with open(os.path.join(self.folder, split + ".tsv"), "w") as writer:
                writer.write("text\tlevel\na cat\ta bad\na dog\tb fair\na bird\tc good\n")
        layout = custom_tasks.Layout("custom", "text", "level", kind="ordinal")
        processor = custom_tasks.TableProcessor(layout, self.folder)
        self.assertEqual(processor.task.score, "mean_error")
        self.assertEqual(processor.get_labels(), ["a bad", "b fair", "c good"])
        labels = [e.label for e in processor.get_dev_examples(self.folder)]
        self.assertEqual(labels, ["a bad", "b fair", "c good"])
        self.assertIn("steps", text_kind.by_label_type())
        predictions = {"prediction": np.array([0, 2, 2]), "loss": np.ones(3)}
        found = classifier_results.scores(processor.task, [0, 1, 2], predictions)
        references = {"majority_mean_error": 1.0, "predicted_labels": 2}
        self.assertAllClose(found, {"mean_error": 1 / 3, "loss": 1.0, **references})
        paths = classifier_results.write_predictions(
            self.folder, processor.task, "test", predictions
        )
        with open(paths[1]) as reader:
            found = reader.read()
        self.assertEqual(found, "index\tlabel\n0\ta bad\n1\tc good\n2\tc good\n")

    def test_head_and_baseline_use_outputs_of_a_new_kind(self):
        loss, predictions = self.run_head("ordinal", 4, [0, 1, 2, 3])
        logits = self.POOLED @ self.WEIGHTS.T
        self.assertAllEqual(predictions["prediction"], (logits > 0).sum(1))
        self.assertAllClose(loss, predictions["loss"].mean())
        config = baseline_model.NetworkConfig(
            next(iter(search_space.PRESETS.values())),
            baseline_model.TextModule("unused", 4),
            "word",
            "ordinal",
            num_labels=4,
            random_seed=1,
        )
        self.assertEqual(config.num_outputs, 3)
