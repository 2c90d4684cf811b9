"""Tests of long texts: their windows, and the pooling of the windows' predictions."""

import csv
import json
import os

import numpy as np
import pytest

from adapter_bert.formats import task_adapter
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.text import classifier_features, text_kind, text_windows
from adapter_tests.support import task_adapters, tiny
from adapter_tests.support.file_cases import FileTestCase, tiny_tokenizer
from adapter_tests.support.script_cases import ScriptTestCase, read, write

pytestmark = pytest.mark.without_xla


class DivideTest(FileTestCase):
    def test_short_texts_are_not_divided(self):
        for a, b in (([1] * 5, []), ([1] * 3, [2] * 2), ([], [])):
            self.assertEqual(text_windows.divide(a, b, 5), [(a, b)])

    def test_windows_are_full_and_cover_the_text(self):
        for length in range(6, 60):
            parts = [a for a, b in text_windows.divide(list(range(length)), [], 5) if not b]
            self.assertLen(parts, -(-length // 5))
            self.assertEqual({len(part) for part in parts}, {5})
            self.assertEqual({token for part in parts for token in part}, set(range(length)))
            starts = np.diff([part[0] for part in parts])
            self.assertLessEqual(starts.max() - starts.min(), 1)

    def test_longer_text_of_a_pair_is_divided(self):
        found = text_windows.divide(list("abcdefg"), list("xy"), 6)
        self.assertEqual(found, [(list("abcd"), list("xy")), (list("defg"), list("xy"))])
        found = text_windows.divide(list("xy"), list("abcdefg"), 6)
        self.assertEqual(found, [(list("xy"), list("abcd")), (list("xy"), list("defg"))])

    def test_shorter_of_two_long_texts_is_truncated_to_half(self):
        found = text_windows.divide(list("abcdefg"), list("uvwxyz"), 6)
        self.assertEqual({"".join(b) for _, b in found}, {"uvw"})
        self.assertEqual(["".join(a) for a, _ in found], ["abc", "cde", "efg"])


class JoinTest(FileTestCase):
    def setUp(self):
        super().setUp()
        self.first_rows = np.array([0, 2, 3])
        self.predictions = {
            "probabilities": np.array(
                [[0.9, 0.1], [0.4, 0.6], [0.3, 0.7], [0.2, 0.8], [0.5, 0.5]], np.float32
            ),
            "loss": np.array([1, 3, 5, 7, 8], np.float32),
        }

    def join(self, pooling, is_single_label=True):
        windows = text_windows.Windows(self.first_rows, pooling)
        return windows.join(self.predictions, is_single_label)

    def test_mean_pooling_averages_over_windows(self):
        found = self.join("mean")
        self.assertAllClose(found["probabilities"], [[0.65, 0.35], [0.3, 0.7], [0.35, 0.65]])
        self.assertAllClose(found["loss"], [2, 5, 7.5])

    def test_max_pooling_normalizes_single_label_probabilities(self):
        found = self.join("max")
        expected = [[0.9 / 1.5, 0.6 / 1.5], [0.3, 0.7], [0.5 / 1.3, 0.8 / 1.3]]
        self.assertAllClose(found["probabilities"], expected)
        self.assertAllClose(found["loss"], [2, 5, 7.5])
        found = self.join("max", is_single_label=False)
        self.assertAllClose(found["probabilities"], [[0.9, 0.6], [0.3, 0.7], [0.5, 0.8]])

    def test_regression_predictions_are_pooled(self):
        self.predictions = {"prediction": np.array([1, 3, -2, 4, 0], np.float32)}
        self.assertAllClose(self.join("mean", False)["prediction"], [2, -2, 2])
        self.assertAllClose(self.join("max", False)["prediction"], [3, -2, 4])

    def test_recorded_window_settings_are_checked(self):
        cut = {"long_texts": "cut", "window_pooling": "mean"}
        self.assertEqual(text_windows.recorded({"data": "abc"}), cut)
        for name in cut:
            with self.assertRaisesRegex(UserError, f"{name} is other"):
                text_windows.recorded({name: "other"})
            with self.assertRaisesRegex(UserError, f"{name} is \\['mean'"):
                text_windows.recorded({name: ["mean", "cut"]})


class ServingTest(FileTestCase):
    def test_request_is_divided_and_its_windows_pooled(self):
        tokenizer = tiny_tokenizer()
        text = "the dog sees a cat . " * 5
        for kind, outputs, expected in (
            ("classification", [0.2, 0.8], {"0": 0.3, "1": 0.7}),
            ("multilabel", [0.2, 0.8], {"0": 0.3, "1": 0.7}),
            ("regression", 0.2, 0.3),
        ):
            labels = () if kind == "regression" else ("0", "1")
            training = {"long_texts": "windows", "window_pooling": "mean"}
            description = task_adapters.description(kind=kind, labels=labels, training=training)
            reader = text_kind.get(kind).request_reader(description, tokenizer, "task")
            rows, answer = reader(text, None)
            windows = classifier_features.windows_of(
                classifier_features.InputExample("", text), 16, tokenizer
            )
            self.assertLen(rows, 3)
            for (ids, segments), (tokens_a, _) in zip(rows, windows):
                self.assertEqual(ids, [2, *tokenizer.convert_tokens_to_ids(tokens_a), 3])
                self.assertEqual(segments, [0] * 16)
            name = text_kind.get(kind).prediction
            other = np.array(outputs) + (np.array([0.15, -0.15]) if labels else 0.15)
            found = answer([{name: np.array(outputs)}, {name: other}, {name: other}])
            self.assertAllClose(found["probabilities"] if labels else found, expected)


class ScriptTest(ScriptTestCase):
    """Runs the script on short texts, and on texts that are extended to several windows."""

    LONG = " the old man hears a big bird and the young woman likes not the small cat" * 2

    def task(self, name, texts):
        for split in ("train", "dev", "test"):
            rows = [f"{text}\t{index % 2}\n" for index, text in enumerate(texts)]
            write(os.path.join(self.folder, name, split + ".tsv"), "text\tlabel\n" + "".join(rows))
        columns = ["--text_column=text", "--label_column=label"]
        return ["--task_name=custom", "--data_dir=" + os.path.join(self.folder, name), *columns]

    def predictions(self, name):
        with open(os.path.join(self.output_dir, name)) as reader:
            rows = list(csv.DictReader(reader, delimiter="\t"))
        return np.array([[float(row["0"]), float(row["1"])] for row in rows])

    def test_windows_do_not_change_results_of_short_texts(self):
        random = np.random.RandomState(0)
        task = self.task("short", [tiny.sentence(random) for _ in range(16)])
        self.succeed(*task, "--do_train", "--do_eval", "--do_predict")
        expected = self.predictions("predictions.tsv")
        training = task_adapter.load(self.path("adapter"))
        self.assertNotIn("long_texts", training.description.training)
        adapter = "--adapter=" + os.path.join(self.folder, "mean", "adapter")
        for pooling, stages in (("mean", ["--do_train", "--do_eval"]), ("max", [adapter])):
            self.output_dir = os.path.join(self.folder, pooling)
            flags = ["--long_texts=windows", "--window_pooling=" + pooling, *stages]
            self.succeed(*task, *flags, "--do_predict")
            self.assertAllEqual(self.predictions("predictions.tsv"), expected)

    def test_long_texts_train_and_predict_in_windows(self):
        random = np.random.RandomState(0)
        texts = [tiny.sentence(random) + self.LONG * (index % 3) for index in range(12)]
        task = self.task("long", texts)
        windows = ["--long_texts=windows", "--class_weights=balanced"]
        report = self.succeed(*task, *windows, "--do_train", "--do_eval", "--do_predict")
        self.assertIn("(12 rows)", report)
        settings = json.loads(read(self.path("settings.json")))["training"]
        self.assertEqual((settings["long_texts"], settings["window_pooling"]), ("windows", "mean"))
        tokenizer = tiny_tokenizer()
        parts = [
            [" ".join(a) for a, _ in text_windows.divide(tokenizer.tokenize(text), [], 14)]
            for text in texts
        ]
        counts = [len(windows) for windows in parts]
        self.assertEqual(settings["num_train_steps"], sum(counts) // 8)
        self.assertGreater(max(counts), 3)
        # The windows of each label have the same total weight.
        rows = np.array([sum(counts[0::2]), sum(counts[1::2])])
        self.assertAllClose(settings["class_weights"], sum(counts) / (2 * rows))
        found = self.predictions("predictions.tsv")
        self.assertLen(found, 12)
        accuracy = np.mean(found.argmax(1) == np.arange(12) % 2)
        self.assertEqual(float(self.results()["eval_accuracy"]), accuracy)
        # The adapter supplies the flag. The expected values are predictions of windows as texts.
        adapter = ["--adapter=" + self.path("adapter"), "--do_predict"]
        self.output_dir = os.path.join(self.folder, "again")
        self.succeed(*task, *adapter)
        self.assertAllEqual(self.predictions("predictions.tsv"), found)
        apart = self.task("apart", sum(parts, []))
        self.output_dir = os.path.join(self.folder, "apart_predicted")
        self.succeed(*apart, *adapter)
        single = self.predictions("predictions.tsv")
        of_texts = np.split(single, np.cumsum(counts)[:-1])
        expected = [windows.mean(0) for windows in of_texts]
        self.assertAllClose(found, expected, rtol=0, atol=1e-6)
        self.output_dir = os.path.join(self.folder, "max")
        self.succeed(*task, *adapter, "--window_pooling=max")
        expected = [windows.max(0) / windows.max(0).sum() for windows in of_texts]
        self.assertAllClose(self.predictions("predictions.tsv"), expected, rtol=0, atol=1e-6)

    def test_invalid_window_flags_are_refused(self):
        task = self.task("refused", ["a dog" + self.LONG] * 8)
        self.refuse(["--window_pooling=max", "--long_texts"], *task, "--window_pooling=max")
        windows = ["--long_texts=windows", "--window_pooling=max"]
        self.succeed(*task, "--do_train", *windows)
        self.refuse(["--long_texts", "windows"], *task, "--do_eval")
        self.refuse(["--long_texts", "windows"], *task, "--do_train")
        self.refuse(["--max_seq_length", "20"], *task, "--do_eval", *windows, "--max_seq_length=20")
        self.succeed(*task, "--do_eval", *windows)
        adapter = "--adapter=" + self.path("adapter")
        self.output_dir = os.path.join(self.folder, "cut")
        self.succeed(*task, adapter, "--do_eval", "--long_texts=cut")
