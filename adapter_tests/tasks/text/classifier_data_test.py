"""Tests of classifier_data.py: the task that flags select, and its rows."""

import os
from unittest import mock

import tensorflow.compat.v1 as tf

import tokenization
from adapter_bert.files import gfile, json_objects
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import classifier_data, classifier_features
from adapter_bert.training import rows as input_rows
from adapter_tests.support import tiny
from adapter_tests.support.command_lines import classifier_config
from adapter_tests.support.script_cases import write


class FindTaskTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.data = tiny.write_mrpc(self.get_temp_dir())

    def find(self, *arguments, given=None):
        return classifier_data.find_task(
            classifier_config("--data_dir=" + self.data, *arguments), given
        )

    def test_built_in_task_is_found_by_name(self):
        processor, data_dir = self.find("--task_name=mrpc")
        self.assertEqual((processor.task.name, data_dir), ("MRPC", self.data))
        self.assertLen(processor.get_examples("dev", data_dir), 24)

    def test_custom_task_uses_labels_of_the_adapter(self):
        columns = ["--text_column=#1 String", "--text_b_column=#2 String", "--label_column=Quality"]
        processor, _ = self.find("--task_name=custom", *columns)
        self.assertEqual(processor.get_labels(), ["0", "1"])
        self.assertEqual(processor.task.kind, "classification")
        given = mock.Mock()
        given.description.labels, given.description.kind = ("1", "0", "2"), "classification"
        processor, _ = self.find("--task_name=custom", *columns, given=given)
        self.assertEqual(processor.get_labels(), ["1", "0", "2"])
        with self.assertRaisesRegex(UserError, "--adapter .* classification task.* regression"):
            self.find("--task_name=custom", "--label_type=float", *columns, given=given)
        given.description.kind = "regression"
        for task_name in ("airline", "MRPC"):
            with self.assertRaisesRegex(UserError, r"expected classification \(--task_name\)\.$"):
                self.find("--task_name=" + task_name, given=given)
        processor, _ = self.find("--task_name=custom", "--label_type=float", *columns)
        self.assertEqual((processor.get_labels(), processor.task.kind), ([], "regression"))

    def test_labels_are_ordered_logged_and_as_an_earlier_run_recorded(self):
        folder, output = (os.path.join(self.get_temp_dir(), name) for name in ("data", "run"))
        for name in ("train", "dev", "test"):
            write(os.path.join(folder, name + ".csv"), "text,label\na,10\nb,2\nc,-1\nd,10\n")
        flags = ["--task_name=custom", "--text_column=text", "--label_column=label"]
        meanings = os.path.join(folder, "labels.json")
        json_objects.write_object(meanings, {"-1": "disagrees"})
        flags += ["--data_dir=" + folder, "--label_descriptions=" + meanings]

        def labels(*more):
            config = classifier_config(*flags, *more)
            return classifier_data.find_task(config, None, output)[0].get_labels()

        with self.assertRaisesRegex(UserError, "'-1', of 1 rows, .*--label_descriptions"):
            classifier_data.find_task(classifier_config(*flags[:-1]), None, output)
        self.assertEqual(labels(), ["-1", "2", "10"])
        gfile.makedirs(output)
        settings = os.path.join(output, "settings.json")
        earlier, ordered = ["-1", "10", "2"], ["-1", "2", "10"]
        for recorded in (["10", "2"], [[1]], 3, earlier):
            json_objects.write_object(settings, {"model": {"labels": recorded}, "training": {}})
            self.assertEqual(labels(), earlier if recorded == earlier else ordered)
        self.assertEqual(labels("--overwrite_output_dir"), ordered)
        processor, data_dir = classifier_data.find_task(classifier_config(*flags), None)
        with self.assertLogs("absl", "INFO") as log:
            classifier_data.read_examples(processor, ["train", "eval"], data_dir)
        self.assertIn("3 labels in order (training rows): -1 (1), 2 (1), 10 (2).", log.output[-1])

    def test_columns_in_another_form_of_unicode_are_found(self):
        folder = os.path.join(self.get_temp_dir(), "data")
        train = "cafe\u0301,label\na,x\nb,y\n".encode()
        write(os.path.join(folder, "train.csv"), train, "wb")
        write(os.path.join(folder, "dev.jsonl"), '{"cafe\\u0301": "c", "label": "x"}\n')
        for name in ("caf\u00e9", "cafe\u0301"):
            flags = ["--task_name=custom", "--text_column=" + name, "--label_column=label"]
            config = classifier_config("--data_dir=" + folder, *flags)
            processor, _ = classifier_data.find_task(config, None)
            self.assertEqual(processor.get_examples("dev", folder)[0].text_a, "c")
            self.assertEqual(processor.get_labels(), ["x", "y"])

    def test_invalid_task_flags_are_refused(self):
        for arguments, expected in (
            ([], "--task_name is required"),
            (["--task_name=mrcp"], "--task_name=mrcp is unknown.* name is MRPC"),
            (["--task_name=nothing_like_it"], "is unknown.* CoLA.* custom"),
            (["--task_name=custom", "--text_column=x"], "requires .* --label_column"),
            (["--task_name=mrpc", "--label_type=float"], "--label_type requires"),
            (["--task_name=mrpc", "--text_column=x"], "--text_column requires"),
            (
                ["--task_name=custom", "--text_column=x", "--label_column=y", "--text_b_column=y"],
                "--label_column must name different columns; got x, y and y",
            ),
            (["--task_name=mrpc", "--data_dir=/nowhere"], "--data_dir.*/nowhere"),
        ):
            with self.assertRaisesRegex(UserError, expected):
                self.find(*arguments)


class RowsTest(tf.test.TestCase):
    def test_encoded_rows_equal_features_and_are_cached(self):
        folder = self.get_temp_dir()
        vocab_file = os.path.join(tiny.write_bert(folder), "vocab.txt")
        tokenizer = tokenization.FullTokenizer(vocab_file, do_lower_case=True)
        examples = [
            classifier_features.InputExample("a", "the old dog sees a cat", "birds", "no"),
            classifier_features.InputExample("b", "young man", None, "yes"),
        ]
        values = classifier_config("--max_seq_length=8", "--feature_cache_dir=" + folder + "/kept")
        labels = ["no", "yes"]
        features = classifier_features.convert_examples_to_features(examples, labels, 8, tokenizer)
        expected = input_rows.as_rows(features).take([0, 1])
        found = classifier_data.encode_examples(examples, labels, values, tokenizer)
        with mock.patch.object(tokenizer, "tokenize", side_effect=AssertionError):
            again = classifier_data.encode_examples(examples, labels, values, tokenizer)
        for rows in (found.take([0, 1]), again.take([0, 1])):
            self.assertEqual(set(rows), set(expected))
            for name, array in expected.items():
                self.assertAllEqual(rows[name], array)
