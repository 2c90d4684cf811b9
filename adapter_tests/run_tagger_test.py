"""Tests of run_tagger.py on a tiny BERT: learning, written predictions, scores and errors."""

import dataclasses
import json
import os
import shutil
import sys
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf
from seqeval import metrics as seqeval_metrics

import run_tagger
import tokenization
from adapter_bert.formats import task_adapter
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.tagging import tag_schemes, tagging_data, tagging_scores, tagging_task
from adapter_bert.training.run_folder import RunFolder
from adapter_tests.support import command_lines, mutations, tiny
from adapter_tests.support.script_cases import AnyScriptTestCase, bert_flags, read, write

# Enough to learn five nouns.
SIZES = {"num_hidden_layers": 1, "hidden_size": 32, "initializer_range": 0.1}
NOUNS = {"dog": "ANIMAL", "cat": "ANIMAL", "bird": "ANIMAL", "man": "PER", "woman": "PER"}


def sentences(count, seed, longest=8):
    """Yields (words, chunks); a noun and the adjectives before it are a chunk."""
    random = np.random.RandomState(seed)
    for _ in range(count):
        words, chunks, start = [], [], 0
        for word in random.choice(tiny.WORDS, random.randint(2, longest + 1)):
            words.append(str(word))
            if word in NOUNS:
                chunks.append(tag_schemes.Chunk(NOUNS[word], start, len(words)))
            if word not in ("big", "small", "old", "young"):
                start = len(words)
        yield words, chunks


def columns(count, seed, scheme="IOB1", separator=" ", **options):
    lines = ["-DOCSTART- -X- O", ""]
    for words, chunks in sentences(count, seed, **options):
        tags = tag_schemes.Notation(scheme).tags_of(chunks, len(words))
        lines += [separator.join((word, word[-1].upper(), tag)) for word, tag in zip(words, tags)]
        lines.append("")
    return "\n".join(lines)


def json_lines(count, seed, scheme="IOB2"):
    return "".join(
        json.dumps(
            {"tokens": words, "tags": tag_schemes.Notation(scheme).tags_of(chunks, len(words))}
        )
        + "\n"
        for words, chunks in sentences(count, seed)
    )


def spans_of(path, **options):
    """Returns all chunks of a file, a set of (sentence, label, start, end)."""
    file = tagging_data.read(path, **options)
    return {
        (index, *chunk)
        for index, sentence in enumerate(file.sentences)
        for chunk in tag_schemes.chunks(sentence.tags)
    }


def span_scores(gold, predicted):
    """Returns (precision, recall, f1), computed from sets of spans."""
    right = len(gold & predicted)
    precision, recall = right / max(1, len(predicted)), right / max(1, len(gold))
    return precision, recall, 2 * precision * recall / max(1e-9, precision + recall)


class TaggerTestCase(AnyScriptTestCase):
    SCRIPT = run_tagger

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bert = tiny.write_bert(os.path.join(cls.root, "bert"), **SIZES)
        cls.data = os.path.join(cls.root, "data")
        for seed, (name, count) in enumerate((("train", 200), ("testa", 40), ("testb", 30))):
            write(os.path.join(cls.data, "eng." + name), columns(count, seed))
        cls.base_flags = [
            "--data_dir=" + cls.data,
            *bert_flags(cls.bert),
            "--max_seq_length=16",
            "--adapter_size=8",
            "--train_batch_size=8",
            "--num_train_epochs=1",
            "--learning_rate=0.03",
            "--feature_cache_dir=none",
            "--precision=float32",  # "auto" measures, and may differ between two runs.
        ]

    def results(self, name="eval_results.json"):
        return json.loads(read(self.path(name)))


class TrainingTest(TaggerTestCase):
    KEEPING = ("--do_train", "--do_eval", "--num_train_epochs=8", "--keep_best")
    KEEPING += ("--eval_every_steps=100",)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.trained, cls.report = cls.train_once(*cls.KEEPING, "--do_predict")

    def setUp(self):
        super().setUp()
        self.output_dir = self.trained

    def test_predictions_do_not_replace_the_file_they_are_for(self):
        name, before = self.path("predictions.txt"), read(self.path("predictions.txt"))
        code, _, stderr = self.call(self.trained, "--do_predict", "--test_file=" + name)
        self.assertEqual(code, 1)
        self.assertIn(f"{name}: predictions would replace it; give another --output_dir", stderr)
        self.assertEqual(read(name), before)

    def test_reported_scores_match_written_predictions(self):
        self.assertRegex(
            self.report, r"tagging dev: f1 [\d.]+, precision [\d.]+, recall [\d.]+, acc"
        )
        self.assertIn("(30 sentences)", self.report)
        for stage, split, name, scores in (
            ("eval", "eng.testa", "dev_predictions", self.results()),
            ("test", "eng.testb", "predictions", self.results("test_scores.json")),
        ):
            gold_path, path = os.path.join(self.data, split), self.path(name + ".txt")
            found = span_scores(spans_of(gold_path), spans_of(path))
            names = [f"{stage}_{score}" for score in ("precision", "recall", "f1")]
            self.assertAllClose(found, [scores[score] for score in names])
            self.assertGreater(scores[f"{stage}_f1"], 0.5)
            self.assertEqual(scores["score"], f"{stage}_f1")
            gold, predicted = (read(each).split("\n") for each in (gold_path, path))
            words = [line.split(" ")[:2] for line in gold]
            self.assertEqual([line.split(" ")[:2] for line in predicted], words)
            tags = [
                [tag for s in tagging_data.read(p).sentences for tag in tag_schemes.to_iob2(s.tags)]
                for p in (gold_path, path)
            ]
            same = [a == b for a, b in zip(*tags)]
            self.assertAllClose(scores[f"{stage}_accuracy"], np.mean(same))
            # As in the input: a chunk begins with I unless one of its type has just ended.
            self.assertFalse([line for line in predicted[:5] if " B-" in line])
            spans = {
                (index, entity["label"], entity["text"])
                for index, sentence in enumerate(self.results(name + ".json")["sentences"])
                for entity in sentence["entities"]
                if sentence["text"][entity["start"] : entity["end"]] == entity["text"]
            }
            file = tagging_data.read(path)
            expected = {
                (index, label, " ".join(file.sentences[index].words[start:end]))
                for index, label, start, end in spans_of(path)
            }
            self.assertEqual(spans, expected)

    def test_saved_adapter_gives_same_predictions(self):
        adapter = task_adapter.load(self.path("adapter"))
        labels = ("O", "B-ANIMAL", "I-ANIMAL", "B-PER", "I-PER")
        self.assertEqual(
            (adapter.description.kind, adapter.description.labels), ("tagging", labels)
        )
        self.assertEqual(adapter.tensors["cls/tagging/output_weights"].shape, (5, 32))
        self.assertEqual(adapter.description.scores["eval_f1"], self.results()["eval_f1"])
        examples = [example["text"] for example in adapter.description.presentation.examples]
        self.assertLen(examples, 3)
        answers = json.loads(read(self.path("dev_predictions.json")))["sentences"]
        self.assertLessEqual(set(examples), {answer["text"] for answer in answers})
        # A new run loads the adapter, with other batch sizes, notations of tags and a longer
        # maximum length, which does not change short sentences.
        other = os.path.join(self.folder, "other")
        write(os.path.join(other, "test.tsv"), columns(30, 2, "IOBES", "\t"))
        write(os.path.join(other, "dev.jsonl"), json_lines(40, 1))
        shutil.copy(os.path.join(self.data, "eng.train"), other)
        given = ["--do_eval", "--do_predict", "--adapter=" + self.path("adapter")]
        given += ["--data_dir=" + other, "--eval_batch_size=3", "--predict_batch_size=5"]
        output_dir = os.path.join(self.folder, "output")
        with self.assertLogs("absl", "INFO") as log:
            self.succeed(*given, "--max_seq_length=40", output_dir=output_dir)
        self.assertNotIn("the tag '", "".join(log.output))
        for name, path in (
            ("predictions.txt", "predictions.txt"),
            ("dev_predictions.jsonl", "dev_predictions.txt"),
        ):
            found = spans_of(os.path.join(output_dir, name))
            self.assertEqual(found, spans_of(self.path(path)))
        self.assertIn("\tS-", read(os.path.join(output_dir, "predictions.txt")))
        again = json.loads(read(os.path.join(output_dir, "eval_results.json")))
        self.assertEqual(again["eval_f1"], self.results()["eval_f1"])
        self.assertAllClose(again["eval_loss"], self.results()["eval_loss"])
        RunFolder(output_dir).remove_results()
        self.assertEqual([name for name in os.listdir(output_dir) if "pred" in name], [])
        RunFolder(output_dir).clear()
        self.assertEqual(os.listdir(output_dir), [])

    def predict(self, path, output_dir, *arguments):
        """Returns the tags that the trained adapter predicts for a file."""
        self.succeed(
            "--do_predict",
            "--adapter=" + self.path("adapter"),
            "--test_file=" + path,
            *arguments,
            output_dir=output_dir,
        )
        extension = tagging_data.read(path, requires_tags=False).extension
        file = tagging_data.read(os.path.join(output_dir, "predictions." + extension))
        return [sentence.tags for sentence in file.sentences]

    def test_untagged_test_file_gets_predictions_without_scores(self):
        """Two files of a split are refused only if it is read."""
        folder, output_dir = (os.path.join(self.folder, name) for name in ("data", "output"))
        lines = ["".join(word + "\n" for word in words) for words, _ in sentences(30, 2)]
        path = write(os.path.join(folder, "test.txt"), "\n".join(lines))
        for name in ("dev.txt", "valid.txt"):
            write(os.path.join(folder, name), columns(3, 2))
        for name in ("test_scores.json", "predictions.jsonl"):  # Of an earlier prediction.
            write(os.path.join(output_dir, name), "")
        expected = tagging_data.read(self.path("predictions.txt"))
        iob2 = [tag_schemes.to_iob2(sentence.tags) for sentence in expected.sentences]
        self.assertEqual(self.predict(path, output_dir, "--data_dir=" + folder), iob2)
        names = [name for name in os.listdir(output_dir) if "pred" in name or "test" in name]
        self.assertEqual(sorted(names), ["predictions.json", "predictions.txt"])
        given = ["--adapter=" + self.path("adapter"), "--data_dir=" + folder]
        self.refuse(["dev.txt and valid.txt", "--dev_file"], "--do_eval", *given)

    def test_killed_prediction_resumes_to_the_same_tags(self):
        output_dir, cache = (os.path.join(self.folder, name) for name in ("output", "cache"))
        flags = ["--adapter=" + self.path("adapter"), "--do_predict"]
        flags += ["--feature_cache_dir=" + cache, "--predict_batch_size=4"]
        where = "stored_predictions.StoredPredictions.add"
        self.killed(where, *flags, "--output_dir=" + output_dir)
        self.assertEqual(self.resume(cache, *flags, output_dir=output_dir), (8, 30))
        for name in ("predictions.txt", "predictions.json"):
            self.assertEqual(read(os.path.join(output_dir, name)), read(self.path(name)))

    def test_every_word_of_long_sentences_gets_a_tag(self):
        long_sentence = [word for words, _ in sentences(60, 5) for word in words]
        # Words that only the first window holds get the same tags if the sentence ends with it.
        texts = [long_sentence, ["big", "dog"], ["x" * 10000, "\u200b"], long_sentence[:14]]
        content = "\n\n".join(map("\n".join, texts)) + "\n"
        path = write(os.path.join(self.folder, "long.txt"), content)
        found = self.predict(path, os.path.join(self.folder, "output"))
        self.assertEqual(list(map(len, found)), list(map(len, texts)))
        self.assertGreater(len(set(found[0])), 2)
        self.assertEqual(tag_schemes.to_iob2(found[3])[:7], found[0][:7])

    def test_run_is_resumed_only_with_same_training_data(self):
        self.output_dir = os.path.join(self.folder, "output")
        shutil.copytree(self.trained, self.output_dir)
        self.assert_settings_have_flags()
        other = write(os.path.join(self.folder, "train.txt"), columns(200, 9))
        self.refuse(["training data"], *self.KEEPING, "--train_file=" + other)

    def test_weights_with_the_highest_f1_are_kept(self):
        evaluations = self.results("evaluations.json")
        self.assertEqual(sorted(map(int, evaluations)), [100, 200])
        best = max(scores["eval_f1"] for scores in evaluations.values())
        self.assertEqual(self.results()["eval_f1"], best)
        dev = "--dev_file=" + os.path.join(self.data, "eng.testb")
        self.refuse(["--dev_file"], *self.KEEPING, dev)

    def test_unknown_tags_warn_in_dev_and_are_refused_in_training(self):
        path = write(os.path.join(self.folder, "dev.txt"), "the O\ndog I-CITY\n")
        given = ["--do_eval", "--adapter=" + self.path("adapter"), "--dev_file=" + path]
        output_dir = os.path.join(self.folder, "output")
        with self.assertLogs("absl", "INFO") as log:
            self.succeed(*given, output_dir=output_dir)
        self.assertRegex("\n".join(log.output), "dev.txt, line 2: the tag '[BI]-CITY'")
        results = json.loads(read(os.path.join(output_dir, "eval_results.json")))
        self.assertEqual(results["eval_recall"], 0.0)
        path = write(os.path.join(self.folder, "train.txt"), "the O\ndog I-CITY\n")
        self.refuse(
            ["train.txt, line 2", "CITY", "adapter"],
            *("--do_train", "--adapter=" + self.path("adapter"), "--train_file=" + path),
            output_dir=os.path.join(self.folder, "output"),
        )


class ScriptTest(TaggerTestCase):
    def test_parts_of_speech_are_tagged_and_scored(self):
        self.succeed("--tag_column=2", "--task_name=pos", "--do_train", "--do_eval", "--do_predict")
        self.check_recorded_columns()
        results = self.results()
        self.assertEqual((results["task"], results["score"]), ("pos", "eval_accuracy"))
        self.assertNotIn("eval_f1", results)
        gold = tagging_data.read(os.path.join(self.data, "eng.testb"), None, "2")
        found = tagging_data.read(self.path("predictions.txt"), None, "2")
        tags = [[tag for s in file.sentences for tag in s.tags] for file in (gold, found)]
        expected = np.mean([a == b for a, b in zip(*tags)])
        self.assertAllClose(self.results("test_scores.json")["test_accuracy"], expected)
        third = tagging_data.read(self.path("predictions.txt"))
        whole = tagging_data.read(os.path.join(self.data, "eng.testb"))
        self.assertEqual(third.sentences, whole.sentences)
        self.assertNotIn("entities", self.results("predictions.json")["sentences"][0])

    def check_recorded_columns(self):
        """Checks that columns default to the adapter's, in files of the training's format."""
        again, files = (os.path.join(self.folder, name) for name in ("again", "files"))
        given = ["--do_eval", "--do_predict", "--adapter=" + self.path("adapter")]
        self.succeed(*given, output_dir=again)
        predicted = read(os.path.join(again, "predictions.txt"))
        self.assertEqual(predicted, read(self.path("predictions.txt")))
        # JSON has no columns; a placeholder in the column is no tag.
        tagged = json.dumps({"tokens": ["dog"], "tags": ["G"]}) + "\n"
        dev = write(os.path.join(self.folder, "dev.jsonl"), tagged)
        test = write(os.path.join(self.folder, "untagged.txt"), "the _\ndog _\n")
        self.succeed(*given, "--dev_file=" + dev, "--test_file=" + test, output_dir=files)
        self.assertNotIn("test_scores.json", os.listdir(files))
        other = os.path.join(self.folder, "other")
        self.refuse(["none of its tags"], *given, "--tag_column=3", output_dir=other)
        adapter = task_adapter.load(self.path("adapter"))
        for answers, parts in (
            ({}, ["none of its tags", "--tag_column"]),  # Of an older version: the last column.
            ({"tag_column": 2}, ["--adapter ", "training.answers.tag_column is 2"]),
            ([], ["training.answers.token_column is None"]),
        ):
            training = {**adapter.description.training, "answers": answers}
            description = dataclasses.replace(adapter.description, training=training)
            path = os.path.join(self.folder, "changed")
            task_adapter.save(path, adapter._replace(description=description))
            self.refuse(parts, *given[:2], "--adapter=" + path, output_dir=other)

    def test_dev_and_test_sentences_are_set_apart_from_the_training_file(self):
        train, given = os.path.join(self.data, "eng.train"), "--data_dir="
        whole = [" ".join(words) for words, _ in sentences(200, 0)]
        flags = [given, "--train_file=" + train, "--test_share=0.2"]
        with self.assertLogs("absl", "INFO") as logs:
            self.succeed(*flags, "--do_train", "--do_eval", "--do_predict")
        expected = f"{train}: 20 of its 200 sentences are set apart as dev and 40 as test, strat"
        self.assertIn(expected, "".join(logs.output))
        training = task_adapter.describe(self.path("adapter")).training
        recorded = {name: training[name] for name in ("split", "dev_share", "test_share")}
        self.assertEqual(recorded, {"split": "stratified", "dev_share": 0.1, "test_share": 0.2})
        texts = [
            [" ".join(each.words) for each in tagging_data.read(self.path(name)).sentences]
            for name in ("dev_predictions.txt", "predictions.txt")
        ]
        self.assertEqual([len(part) for part in texts], [20, 40])
        self.assertContainsSubset(sum(texts, []), whole)
        # The adapter knows the split.
        scores, other = self.results(), os.path.join(self.folder, "other")
        adapter = "--adapter=" + self.path("adapter")
        self.succeed(*flags[:2], adapter, "--do_eval", output_dir=other)
        again = json.loads(read(os.path.join(other, "eval_results.json")))
        self.assertEqual(again["eval_f1"], scores["eval_f1"])
        parts = ["--dev_share was 0.1 in the training and is now 0.2"]
        self.refuse(parts, *flags[:2], adapter, "--dev_share=0.2", "--do_eval", output_dir=other)
        self.refuse(["--split was"], *flags[:2], adapter, "--split=random", "--do_eval")
        parts = ["--dev_share=0 sets no sentences apart as dev; give --dev_file"]
        self.refuse(parts, *flags[:2], "--dev_share=0", "--do_eval", output_dir=other)
        parts = ["expected sentences for test", "--test_share"]
        self.refuse(parts, *flags[:2], "--do_train", "--do_predict", output_dir=other)

    def test_training_alone_reads_all_sentences(self):
        flags = ["--data_dir=", "--train_file=" + os.path.join(self.data, "eng.train")]
        self.succeed(*flags, "--do_train")
        self.assertEqual(task_adapter.describe(self.path("adapter")).global_step, 25)
        self.refuse(["may have been trained on"], *flags, "--do_eval")

    def test_invalid_inputs_are_refused(self):
        def file(content):
            self.number = getattr(self, "number", 0) + 1
            return write(os.path.join(self.folder, f"{self.number}.txt"), content)

        for arguments, parts in (
            (["--data_dir="], ["Neither --data_dir nor --train_file"]),
            (["--data_dir=" + self.folder], ["has no file train"]),
            (["--train_file=none.txt"], ["--train_file none.txt"]),
            (["--train_file=" + file("a O\nb BPER\nc B-PER")], [".txt, line 2", "'BPER'", "B-PER"]),
            (["--dev_file=" + file("a O\nb BPER\n")], [".txt, line 2", "'BPER'"]),
            (["--train_file=" + file("a X\nb X\n")], ["all tags are 'X'"]),
            (["--train_file=" + file("a\nb\n")], [".txt, line 1", "one column"]),
            (["--test_file=" + file(""), "--do_predict"], [".txt", "no word"]),
            (["--train_pooler"], ["--train_pooler"]),
            (["--task_name=../x"], ["--task_name=../x"]),
            (["--tag_column=9"], ["eng.train, line 3", "--tag_column=9"]),
            (["--max_seq_length=3"], ["--max_seq_length=3"]),
        ):
            self.refuse(parts, *arguments)
        with mock.patch.dict(sys.modules, {"seqeval.metrics": None}):
            self.refuse(["seqeval", "requirements.txt"])
        self.assertFalse(os.path.exists(self.output_dir))


class DamagedFilesTest(tf.test.TestCase):
    def test_damaged_files_are_read_or_refused(self):
        bert = tiny.write_bert(os.path.join(self.get_temp_dir(), "bert"))
        tokenizer = tokenization.FullTokenizer(os.path.join(bert, "vocab.txt"))

        def read_folder(folder):
            values = command_lines.parsed(
                run_tagger.define_flags,
                "--data_dir=" + folder,
                *("--feature_cache_dir=none", "--max_seq_length=8"),
                *("--do_train", "--do_eval", "--do_predict"),
            )
            config = tagging_task.TaggerConfig.from_flags(values)
            task = tagging_task.TaggingTask(config)
            task.load(config.stages)
            for split, rows in task.encode(tokenizer).items():
                tag_ids = np.tile(np.arange(8) % len(task.labels), [len(rows), 1])
                predictions = {"tag_ids": tag_ids, "loss": np.zeros(len(rows))}
                evaluated = task.evaluate(split, predictions)
                if split != "train":
                    task.write(folder, split, evaluated)

        contents = {
            "train.txt": columns(4, 0).encode(),
            "dev.conll": columns(3, 1, "IOBES", "\t").encode(),
            "test.jsonl": json_lines(3, 2).encode(),
        }
        mutations.check(contents, read_folder, (*contents, "--data_dir="))


class TaskTest(tf.test.TestCase):
    def test_scores_equal_counts_of_spans(self):
        random = np.random.RandomState(0)
        tags = ["O", "B-X", "I-X", "B-Y", "I-Y"]
        for _ in range(50):
            lengths = random.randint(1, 9, 6)
            gold, predicted = (
                [tag_schemes.to_iob2(random.choice(tags, n).tolist()) for n in lengths]
                for _ in range(2)
            )
            spans = [
                {(i, *c) for i, each in enumerate(side) for c in tag_schemes.chunks(each)}
                for side in (gold, predicted)
            ]
            found = tagging_scores.scores(gold, predicted, True)
            names = ("precision", "recall", "f1")
            self.assertAllClose([found[name] for name in names], span_scores(*spans))
            equal = [a == b for pair in zip(gold, predicted) for a, b in zip(*pair)]
            self.assertAllClose(found["accuracy"], np.mean(equal))
        none = tagging_scores.scores([["O"]], [["O"]], True)
        self.assertEqual((none["f1"], none["accuracy"]), (0.0, 1.0))
        self.assertEqual(
            tagging_scores.scores([["X", "Y"]], [["X", "X"]], False), {"accuracy": 0.5}
        )

    def test_scores_are_compared_with_those_of_the_most_frequent_tag(self):
        gold = [["O", "B-X", "I-X", "O"], ["O", "B-Y"]]
        for predicted, types, expected in (
            ([["O"] * 4, ["O"] * 2], 0, "All 6 dev words are predicted as O: the model has"),
            ([["O", "O", "B-Y", "O"], ["O", "B-Y"]], 1, None),
            # The constant has an F1 of 0 by definition, so the accuracies are compared.
            (
                [["O", "O", "B-Y", "O"], ["O", "B-X"]],
                2,
                "accuracy 0.500 is no better than 0.500 of always predicting O.",
            ),
        ):
            found = tagging_scores.scores(gold, predicted, True)
            references = tagging_scores.references(gold, predicted, True, "f1")
            constant = {"majority_accuracy": 0.5, "majority_f1": 0.0}
            self.assertEqual(references, {**constant, "predicted_labels": types})
            values = {**found, **references}
            warnings = tagging_scores.warnings("6 dev words", gold, predicted, "f1", values)
            self.assertEqual(len(warnings), int(expected is not None), warnings)
            for warning in warnings:
                self.assertStartsWith(warning, expected)
        plain = [["N", "V", "N"]]
        references = tagging_scores.references(plain, [["N", "V", "D"]], False, "accuracy")
        self.assertEqual(references, {"majority_accuracy": 2 / 3, "predicted_labels": 3})

    def load(self, *flags, train=None, dev=None, given=None, output_dir=None, name="txt"):
        """Returns (task, splits, log) for files with the contents `train` and `dev`."""
        contents = {"train": train, "dev": dev}
        flags += ("--do_train",) if train else ("--do_eval",)
        for split, content in contents.items():
            if content:
                path = os.path.join(self.get_temp_dir(), f"{split}.{name}")
                flags += (f"--{split}_file={write(path, content)}",)
        flags += ("--do_eval",) if dev and train else ()
        flags += (f"--output_dir={output_dir or self.get_temp_dir() + '/new'}",)
        values = command_lines.parsed(run_tagger.define_flags, *flags)
        with self.assertLogs("absl", "INFO") as log:
            config = tagging_task.TaggerConfig.from_flags(values)
            task = tagging_task.TaggingTask(config, given)
        return task, task.splits, "\n".join(log.output)

    def test_spans_of_every_notation_are_scored_like_seqeval(self):
        random = np.random.RandomState(0)
        as_iobes = str.maketrans("LUMW", "ESIS")
        for scheme in tag_schemes.SCHEMES:
            for separator, types in (("-", ["X", "Y"]), ("_", ["X", "Y"]), ("", [""])):
                notation = tag_schemes.Notation(scheme, separator)
                gold, predicted = [], []
                for side in (gold, predicted):
                    for _ in range(30):
                        ends = random.permutation(9)[:4]
                        pairs = zip(sorted(ends), sorted(ends)[1:])
                        chunks = [tag_schemes.Chunk(random.choice(types), a, b) for a, b in pairs]
                        side.append(notation.tags_of(chunks[:: random.randint(1, 3)], 9))
                content = "\n".join("".join(f"w{t}\t{t}\n" for t in tags) for tags in gold)
                task, splits, log = self.load(train=content, dev=content)
                labels = {
                    f"{letter}-{name}" if name else letter for name in types for letter in "BI"
                }
                self.assertEqual((set(task.labels), task.score), ({"O", *labels}, "f1"))
                self.assertIn(f"tags mark spans, which are scored by F1; scheme: {scheme}.", log)
                iob2 = [tag_schemes.to_iob2(tags) for tags in predicted]
                found = tagging_scores.scores(splits["dev"].tags, iob2, True)
                # seqeval knows B, I, E, S and the hyphen.
                expected = [
                    [
                        [tag[:1].translate(as_iobes) + tag[1:].replace("_", "-") for tag in tags]
                        for tags in side
                    ]
                    for side in (gold, predicted)
                ]
                self.assertAllClose(found["f1"], seqeval_metrics.f1_score(*expected))
                self.assertBetween(found["f1"], 0.01, 0.9)

    def test_spans_without_types_are_scored_by_f1(self):
        content = "Aspirin\tB\nreduces\tO\nhigh\tB\nfever\tI\n"
        task, splits, _ = self.load(train=content, dev=content)
        self.assertEqual((task.labels, task.score), (("O", "B", "I"), "f1"))
        found = tagging_scores.scores(splits["dev"].tags, [["B", "O", "O", "B"]], True)
        # One of two spans is right in each: [Aspirin] is, [fever] is not [high fever].
        self.assertEqual((found["f1"], found["accuracy"]), (0.5, 0.5))
        # An older version learned the tags as they are; its runs continue so.
        folder = os.path.join(self.get_temp_dir(), "older")
        record = {"model": {"labels": ["B", "I", "O"]}}
        write(os.path.join(folder, "settings.json"), json.dumps(record))
        for flags, score in (((), "accuracy"), (("--tag_scheme=IOB2",), "f1")):
            task, _, _ = self.load(*flags, train=content, output_dir=folder)
            self.assertEqual((task.labels, task.score), (("B", "I", "O"), score))

    def test_spans_of_files_without_o_are_scored_like_seqeval(self):
        for gold, predicted in (
            ("B-NP I-NP B-VP B-NP", "B-NP B-NP B-VP B-NP"),
            ("B_NP I_NP I_NP B_PP", "B_NP I_NP B_VP B_PP"),
            ("B I B I I B", "B I B I B B"),
            ("B E S B M E", "S S S B M E"),
        ):
            gold, predicted = gold.split(), predicted.split()
            content = "".join(f"w{tag}\t{tag}\n" for tag in gold)
            task, splits, _ = self.load(train=content, dev=content)
            self.assertEqual((task.labels[0], task.score), ("O", "f1"))
            self.assertTrue(tag_schemes.mark_chunks(task.labels))  # So a server answers entities.
            iob2 = [tag_schemes.to_iob2(predicted)]
            found = tagging_scores.scores(splits["dev"].tags, iob2, True)["f1"]
            expected = [
                [[tag.replace("_", "-").replace("M", "I") for tag in tags]]
                for tags in (gold, predicted)
            ]
            self.assertAllClose(found, seqeval_metrics.f1_score(*expected))
            self.assertBetween(found, 0.2, 0.8)
        task, _, _ = self.load(train="a\tN\nb\tV\nc\tB\n")
        self.assertEqual(task.score, "accuracy")

    def test_dev_is_written_in_the_scheme_of_train(self):
        long = [tag_schemes.Chunk("X", 0, 3)]
        for train, dev, given, expected in (
            ("B-X M-X E-X O S-X", "B-X E-X O S-X", (), "B-X M-X E-X"),
            ("B_X M_X E_X O W_X", "O O O O", (), "B_X M_X E_X"),
            ("B_X I_X L_X O", "O O O", ("--tag_scheme=BILOU",), "B_X I_X L_X"),
            ("B-X I-X E-X O", "B-X I-X I-X O", (), "B-X I-X I-X"),
            ("B-X M-X E-X O", "B-X I-X E-X O", (), "B-X I-X E-X"),
        ):
            files = {
                name: "".join(f"w\t{tag}\n" for tag in tags.split())
                for name, tags in (("train", train), ("dev", dev))
            }
            _, splits, _ = self.load(*given, **files)
            self.assertEqual(splits["dev"].notation.tags_of(long, 3), expected.split(), dev)

    def test_tag_scheme_is_chosen_by_flag(self):
        content = "a\tB-X\nb\tI-X\nc\tO\nd\tB-X\n"
        task, splits, log = self.load("--tag_scheme=none", train=content)
        self.assertEqual((task.labels, task.score), (("B-X", "I-X", "O"), "accuracy"))
        self.assertIn(
            "the 3 tags are learned as they are and scored by accuracy: 'B-X', 'I-X'", log
        )
        task, splits, _ = self.load("--tag_scheme=IOBES", train=content)
        self.assertEqual((task.score, splits["train"].notation.scheme), ("f1", "IOBES"))
        content = "a\tB\nb\tE\nc\tO\nd\tN\n"
        self.assertEqual(self.load(train=content)[0].score, "accuracy")
        for scheme, tags in (
            ("IOB2", "'E', expected O, or B or I"),
            ("BMES", "'N', expected O, or B, E, S or M"),
        ):
            with self.assertRaisesRegex(UserError, f"found the tag {tags} .--tag_scheme={scheme}"):
                self.load("--tag_scheme=" + scheme, train=content)

    def test_tag_columns_as_words_are_refused(self):
        for content in (
            "B-X\ta\nO\tb\n",
            "O\tI\nB\tsaw\nI\tit\n",
            "B_X\ta\nO\tb\n",
            "B-PER\tPeter\nI-PER\tBlackburn\n",  # No O.
            "B\tin\nE\tto\nS\ta\nB\tun\nE\tit\n",
            "B-PER\tB-NP\nO\tB-VP\n",  # Two columns of tags.
        ):
            with self.assertRaisesRegex(UserError, "all words are tags, such as .*--token_column"):
                self.load(train=content)
        for content in (
            "O\tX\nMy\tX\nI\tY\n",
            "B\tB-ORG\nL\tI-ORG\nU\tI-ORG\nE\tI-ORG\n",
            "B\tNOUN\nL\tNOUN\nU\tNOUN\nE\tX\n",
            "B-52\tB-VEH\nB-1\tO\n",
            "O\tO\nB\tB\nI\tI\n",
        ):
            self.load(train=content)
        tokens = json.dumps({"tokens": [*"BLUE"], "tags": ["B-X", "I-X", "I-X", "O"]})
        self.load(train=tokens, name="jsonl")

    def test_numbers_are_ordered_by_value(self):
        numbers = [10, 2, -1, 1, 0]
        content = "".join(f"w\t{number}\n" for number in numbers)
        self.assertEqual(self.load(train=content)[0].labels, ("-1", "0", "1", "2", "10"))
        older = os.path.join(self.get_temp_dir(), "older_numbers")
        labels = ["-1", "0", "1", "10", "2"]
        write(os.path.join(older, "settings.json"), json.dumps({"model": {"labels": labels}}))
        self.assertEqual(self.load(train=content, output_dir=older)[0].labels, tuple(labels))
        self.assertEqual(self.load(train="a\tb\na\t10\na\t2\n")[0].labels, ("10", "2", "b"))

    def test_spellings_of_a_tag_in_unicode_are_one(self):
        nfc, nfd = "Caf\u00e9", "Cafe\u0301"
        for name, content in (
            ("txt", f"a\tB-{nfc}\nb\tI-{nfd}\nc\tO\n"),
            (
                "jsonl",
                json.dumps({"tokens": ["a", "b", "c"], "tags": ["B-" + nfd, "I-" + nfd, "O"]}),
            ),
        ):
            task, splits, _ = self.load(train=content, name=name)
            self.assertEqual(task.labels, ("O", "B-" + nfc, "I-" + nfc))
            self.assertEqual(splits["train"].tags, [[*task.labels[1:], "O"]])
        older = os.path.join(self.get_temp_dir(), "older_nfd")
        write(os.path.join(older, "settings.json"), json.dumps({"model": {"labels": ["X", nfd]}}))
        task, _, _ = self.load(train=f"a\tX\nb\t{nfd}\n", output_dir=older)
        self.assertEqual(task.labels, ("X", nfd))

    def test_header_line_of_a_training_file_is_warned_of(self):
        for header, count in (("token tag\n", 1), ("", 0)):
            content = header + "the DET\ndog NOUN\n\na DET\ncat NOUN\n"
            path = write(os.path.join(self.get_temp_dir(), "train.txt"), content)
            flags = ["--do_train", "--train_file=" + path]
            values = command_lines.parsed(run_tagger.define_flags, *flags)
            with mock.patch.object(tagging_task.logging, "warning") as warning:
                tagging_task.TaggingTask(tagging_task.TaggerConfig.from_flags(values))
            expected = f"{path}: only the first line has the tag 'tag'; remove the line if it is"
            warned = [call[0][0] % call[0][1:] for call in warning.call_args_list]
            self.assertEqual([line.startswith(expected) for line in warned], [True] * count)
