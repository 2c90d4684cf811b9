"""Tests of caveats.py: which labels are warned of, and in which words."""

import tensorflow.compat.v1 as tf

from adapter_bert.tasks import caveats
from adapter_bert.tasks.tagging import tagging_task
from adapter_bert.tasks.text import classifier_data
from adapter_bert.tasks.text.glue import TASKS
from adapter_tests.support.file_cases import FileTestCase
from adapter_tests.support.tiny import write_mrpc


class WordsTest(tf.test.TestCase):
    def test_labels_with_few_rows_are_warned_of_rarest_first(self):
        labels, dev = ("ham", "spam", "news", "none"), {"ham": 1, "spam": 1, "news": 1}
        train = {"ham": 20, "spam": 7, "news": 19}
        few, lacking = caveats.of_labels(labels, train, {"ham": 3, "news": 1})
        self.assertEqual(
            few,
            "3 of 4 labels have fewer than 20 training rows, which seldom suffices to learn: none"
            " (0), spam (7), news (19).",
        )
        # The dev set cannot have a label that the training set lacks.
        self.assertEqual(
            lacking,
            "1 of 4 labels has no rows in the dev set, which therefore cannot score it: spam.",
        )
        self.assertLen(caveats.of_labels(labels[:3], train, dev), 1)
        self.assertEqual(caveats.of_labels(labels[:1], train, dev), [])
        (lacking,) = caveats.of_labels(labels, None, dev)
        self.assertIn("none", lacking)

    def test_at_most_five_labels_are_shown(self):
        labels = [f"l{i}" for i in range(12)]
        few, lacking = caveats.of_labels(labels, dict.fromkeys(labels, 2), {})
        self.assertIn("12 of 12 labels have", few)
        self.assertEndsWith(few, "l0 (2), l1 (2), l2 (2), l3 (2), l4 (2) and 7 more.")
        self.assertEndsWith(lacking, "cannot score them: l0, l1, l2, l3, l4 and 7 more.")

    def test_many_numbers_as_classes_are_warned_of(self):
        labels = list(map(str, range(21)))
        (warning,) = caveats.of_numbers(labels, True)
        self.assertIn("--label_type=float", warning)
        self.assertEqual(caveats.of_numbers(labels[:20], True), [])
        self.assertEqual(caveats.of_numbers(labels, False), [])


class TasksTest(FileTestCase):
    def warnings_of(self, label_type, *labels):
        """Returns the warnings of a table with rows of these labels."""
        config = classifier_data.TaskConfig(
            task_name="custom",
            data_dir=self.folder,
            text_column="one",
            label_column="kind",
            label_type=label_type,
        )
        self.write("train.csv", "one,kind\n" + "".join(f'a,"{label}"\n' for label in labels))
        processor, folder = classifier_data.find_task(config, None)
        examples = classifier_data.read_examples(processor, ["train", "eval"], folder)
        return classifier_data.warnings_of(processor.task, examples)

    def test_texts(self):
        # Four fifths of 20 rows are training rows.
        (few,) = self.warnings_of("class", *["a", "b", "b"] * 20)
        self.assertIn("1 of 2 labels has", few)
        self.assertIn("a (16)", few)
        self.assertEqual(self.warnings_of("class", *"ab" * 40), [])
        few, lacking = self.warnings_of("multilabel", *["a", "a,b"] * 20, "c")
        self.assertIn("c (1), b (15)", few)
        self.assertNotIn("a (", few)  # It is in both sets of labels.
        self.assertIn("cannot score it: c", lacking)
        *_, number = self.warnings_of("class", *map(str, [*range(25)] * 30))
        self.assertIn("--label_type=float", number)
        self.assertEqual(self.warnings_of("float", *map(str, [*range(25)] * 30)), [])

    def test_a_task_of_glue(self):
        write_mrpc(self.folder, rows=24)
        config = classifier_data.TaskConfig(task_name="MRPC", data_dir=self.folder)
        processor, folder = classifier_data.find_task(config, None)
        examples = classifier_data.read_examples(processor, ["train", "eval"], folder)
        (few,) = classifier_data.warnings_of(TASKS["mrpc"], examples)
        self.assertIn("2 of 2 labels have", few)

    def test_tags(self):
        def write(name, tags):
            return self.write(name, "".join(f"w {tag}\n\n" for tag in tags))

        def load(train, dev):
            config = tagging_task.TaggerConfig(
                train_file=write("train.txt", train),
                dev_file=write("dev.txt", dev),
                output_dir=self.folder,
            )
            task = tagging_task.TaggingTask(config)
            with self.assertLogs("absl", "WARNING") as logs:
                task.load_once(["train", "eval"])
            self.assertEqual([record.getMessage() for record in logs.records], task.warnings)
            return task.warnings

        few, lacking = load(["B-PER"] * 20 + ["B-ORG", "O"], ["B-PER", "O"])
        self.assertIn("1 of 2 types of spans has fewer than 20 training spans", few)
        self.assertIn("ORG (1)", few)
        self.assertIn("has no spans in the dev set, which therefore cannot score it: ORG", lacking)
        (few,) = load(["N"] * 20 + ["V"], ["N", "V"])
        self.assertIn("1 of 2 tags has fewer than 20 training words", few)
