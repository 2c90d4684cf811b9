"""Tests of run_squad.py: the whole script, and BERT's functions, on a tiny BERT and tiny data."""

import json
import os
import shutil
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import run_squad
import tokenization
from adapter_bert.formats import task_adapter
from adapter_bert.shell import tf_estimator
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.squad import squad_answers, squad_data, squad_scores, squad_task
from adapter_bert.training.run_folder import RunFolder
from adapter_tests.support import command_lines, mutations, own_models, tiny
from adapter_tests.support.checkpoint_cases import trained_tensors
from adapter_tests.support.script_cases import AnyScriptTestCase, bert_flags, read, write

# Without articles, which the scores ignore.
WORDS = [word for word in tiny.VOCABULARY if word.isalpha() and word not in ("a", "an", "the")]


def read_json(*path):
    return json.loads(read(os.path.join(*path)))


class SquadTestCase(AnyScriptTestCase):
    SCRIPT = run_squad
    VERSION_2 = False

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bert = tiny.write_bert(os.path.join(cls.root, "bert"), num_hidden_layers=1)
        cls.train_file, cls.predict_file = (
            tiny.write_squad(os.path.join(cls.root, name), count, seed, cls.VERSION_2)
            for seed, (name, count) in enumerate((("train.json", 40), ("dev.json", 21)))
        )
        cls.base_flags = [
            "--train_file=" + cls.train_file,
            "--predict_file=" + cls.predict_file,
            *bert_flags(cls.bert),
            "--max_seq_length=12",  # Two windows per paragraph.
            "--max_query_length=3",
            "--doc_stride=4",
            "--adapter_size=3",
            "--train_batch_size=8",
            "--num_train_epochs=1",
            "--learning_rate=0.01",
            "--precision=float32",  # "auto" measures speed, and may differ between two runs.
            *(["--version_2_with_negative"] if cls.VERSION_2 else []),
        ]

    def config_and_tokenizer(self, *arguments):
        """Returns (`squad_task.SquadConfig`, tokenizer)."""
        values = command_lines.parsed(run_squad.define_flags, *self.base_flags, *arguments)
        config = squad_task.SquadConfig.from_flags(values)
        return config, tokenization.FullTokenizer(config.vocab_file)

    def truths(self):
        data = read_json(self.predict_file)["data"]
        return {
            qa["id"]: [answer["text"] for answer in qa["answers"]]
            for article in data
            for paragraph in article["paragraphs"]
            for qa in paragraph["qas"]
        }


class Version1Test(SquadTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.trained, cls.report = cls.train_once("--do_train", "--do_eval", "--do_predict")

    def test_script_trains_evaluates_and_predicts(self):
        self.assertRegex(self.report, r"SQuAD: f1 [\d.]+, exact_match [\d.]+ at step 5, of the")
        self.assertEqual(self.report.count("dev, 21 questions:"), 1)
        for part in ("Trained: ", "Adapter: ", "eval_results.txt", "(21 questions)"):
            self.assertIn(part, self.report)
        self.assertFalse(os.path.exists(os.path.join(self.trained, "null_odds.json")))
        predictions = read_json(self.trained, "predictions.json")
        nbest = read_json(self.trained, "nbest_predictions.json")
        self.assertEqual(predictions, {key: entries[0]["text"] for key, entries in nbest.items()})
        self.assertEqual(list(predictions), [f"q{i}" for i in range(21)])
        results = read_json(self.trained, "eval_results.json")
        self.assertEqual(results["task"], "SQuAD")
        expected = squad_scores.scores_v1(self.truths(), predictions)
        self.assertAllClose(results["eval_f1"], expected["f1"])
        self.assertAllClose(results["eval_exact_match"], expected["exact_match"])

        # The saved adapter gives the same answers, also in batches of another size.
        elsewhere = os.path.join(self.folder, "elsewhere")
        # Left by an earlier prediction for SQuAD 2.0.
        write(os.path.join(elsewhere, "null_odds.json"), "{}")
        adapter = "--adapter=" + os.path.join(self.trained, "adapter")
        self.succeed("--do_predict", adapter, "--predict_batch_size=5", output_dir=elsewhere)
        self.assertEqual(read_json(elsewhere, "predictions.json"), predictions)
        self.assertFalse(os.path.exists(os.path.join(elsewhere, "null_odds.json")))
        self.assertFalse(os.path.exists(os.path.join(elsewhere, "eval_results.txt")))
        os.mkdir(os.path.join(elsewhere, "null_odds.json"))
        self.refuse(["null_odds.json cannot"], "--do_predict", adapter, output_dir=elsewhere)

    def test_killed_prediction_resumes_to_the_same_answers(self):
        cache = os.path.join(self.folder, "cache")
        flags = ["--adapter=" + os.path.join(self.trained, "adapter"), "--do_predict"]
        flags.append("--feature_cache_dir=" + cache)
        where = "stored_predictions.StoredPredictions.add"
        self.killed(where, *flags, "--output_dir=" + self.output_dir)
        self.assertEqual(self.resume(cache, *flags), (16, 42))
        for name in ("predictions.json", "nbest_predictions.json"):
            expected = read_json(self.trained, name)
            self.assertEqual(read_json(self.output_dir, name), expected)

    def test_the_head_is_trained_and_saved(self):
        adapter = task_adapter.load(os.path.join(self.trained, "adapter"))
        self.assertEqual((adapter.description.kind, adapter.description.labels), ("span", ()))
        self.assertEqual(adapter.tensors["cls/squad/output_weights"].shape, (2, 8))
        last = trained_tensors(tf.train.latest_checkpoint(self.trained))
        self.assertNotAllEqual(last["cls/squad/output_bias"], np.zeros(2))
        self.assertEqual(set(last), set(adapter.tensors))

    def test_settings_and_adapters_of_others_are_refused(self):
        shutil.copytree(self.trained, self.output_dir)
        for stage in ("--do_train", "--do_predict"):
            self.refuse(["--doc_stride", "4", "5"], stage, "--doc_stride=5")
        self.refuse(["requires --version_2_with_neg"], "--null_score_diff_threshold=-1")
        classifier = os.path.join(self.folder, "classifier")
        task_adapter.save(classifier, own_models.build_task_adapter(self.bert))
        parts = ["--adapter", "a classification task; use run_classifier.py"]
        self.refuse(parts, "--do_predict", "--adapter=" + classifier)

    def test_best_adapter_is_kept_and_predicts(self):
        keeping = ["--do_train", "--do_eval", "--keep_best", "--eval_every_steps=2"]
        keeping.append("--tuning=full")
        with self.assertLogs("absl", "INFO") as log:
            report = self.succeed(*keeping, "--do_predict")
        # The counts before and after the training are equal, as both exclude the pooler.
        count = "".join(log.output).partition("Training ")[2].split(" of ")[0]
        self.assertIn(f"Trained: {count} of ", report)
        results = read_json(self.output_dir, "eval_results.json")
        scored = read_json(self.output_dir, "evaluations.json")
        self.assertEqual(results["eval_f1"], max(each["eval_f1"] for each in scored.values()))
        expected = squad_scores.scores_v1(
            self.truths(), read_json(self.output_dir, "predictions.json")
        )
        self.assertAllClose(results["eval_f1"], expected["f1"])
        self.assert_settings_have_flags()
        # Flags that affect the scores affect which step is best, so they must not change.
        for flag, parts in (
            ("--max_answer_length=2", ["--max_answer_length", "30", "2"]),
            ("--predict_file=" + self.train_file, ["--predict_file"]),
        ):
            self.refuse(parts, *keeping, flag)

    def test_file_replaced_while_it_is_read_is_not_cached(self):
        path, folder = (os.path.join(self.folder, name) for name in ("train.json", "features"))
        shutil.copy(self.train_file, path)
        given = self.config_and_tokenizer("--train_file=" + path, "--feature_cache_dir=" + folder)
        read = squad_data.read_squad_examples

        def replaced(*args, **kwargs):
            shutil.copy(self.predict_file, path)
            return read(*args, **kwargs)

        replacing = mock.patch.object(squad_data, "read_squad_examples", replaced)
        with replacing, self.assertRaisesRegex(UserError, f"^{path} has changed while it was read"):
            squad_task.windows(*given, True)
        self.assertEqual(os.listdir(folder), [])

    def test_skipped_questions_are_logged_for_cached_features_too(self):
        content = read_json(self.train_file)
        qa = content["data"][0]["paragraphs"][7]["qas"][0]
        qa["id"], qa["answers"][0]["answer_start"] = "caf\u00e9", 999
        folder = os.path.join(self.folder, "cache")
        for name in ("first.json", "again.json"):
            path = write(os.path.join(self.folder, name), json.dumps(content))
            given = self.config_and_tokenizer(
                "--train_file=" + path, "--feature_cache_dir=" + folder
            )
            with self.assertLogs("absl", "WARNING") as log:
                _, num_questions, _ = squad_task.windows(*given, True)
            self.assertEqual(num_questions, 39)
            self.assertLen(log.output, 1)
            self.assertIn(name + ": skipped 1 of 40 questions ", log.output[0])
            self.assertIn("(such as caf\u00e9).", log.output[0])
        self.assertLen(os.listdir(folder), 1)

    def write_unlabelled(self):
        """Writes the questions to predict without their answers; returns the path."""
        content = read_json(self.predict_file)
        for paragraph in content["data"][0]["paragraphs"]:
            del paragraph["qas"][0]["answers"]
        return write(os.path.join(self.folder, "unlabelled.json"), json.dumps(content))

    def test_predict_file_is_checked_before_training(self):
        self.refuse(
            ["unlabelled.json", "q0"],
            "--predict_file=" + self.write_unlabelled(),
            "--train_file=none.json",
        )
        self.refuse(["--predict_file is required"], "--predict_file=", "--vocab_file=none.txt")
        self.assertFalse(os.path.exists(self.output_dir))

    def test_questions_need_a_second_segment_id(self):
        bert = tiny.write_bert(os.path.join(self.folder, "one_type"), type_vocab_size=1)
        parts = ["question and context", "type_vocab_size 1"]
        self.refuse(parts, *bert_flags(bert), "--do_train")

    def test_invalid_flags_and_files_are_refused(self):
        unlabelled = self.write_unlabelled()
        qas = [{"id": "q0", "question": "who", "answers": [], "is_impossible": True}]
        content = json.dumps({"data": [{"paragraphs": [{"context": " ", "qas": qas}]}]})
        wordless = write(os.path.join(self.folder, "wordless.json"), content)
        shutil.copytree(self.trained, self.output_dir)
        for arguments, parts in (
            (["--do_train", "--train_file="], ["--train_file"]),
            (["--do_predict", "--predict_file="], ["--predict_file"]),
            (["--do_train", "--train_file=" + unlabelled], [unlabelled, "q0"]),
            (["--do_eval", "--predict_file=" + unlabelled], [unlabelled, "q0"]),
            (["--do_predict", "--predict_file=" + wordless], [wordless]),
            (["--do_train", "--version_2_with_negative", "--train_file=" + wordless], [wordless]),
            (["--do_train", "--train_file=none.json"], ["none.json"]),
            (["--do_train", "--max_seq_length=6"], ["--max_seq_length=6"]),
            (["--do_train", "--doc_stride=0"], ["--doc_stride=0"]),
            (["--do_train", "--train_pooler"], ["--train_pooler"]),
            (["--do_train", "--max_seq_length=41"], ["--max_seq_length=41"]),
        ):
            self.refuse(parts, *arguments)
        # A file without answers can be predicted.
        os.remove(os.path.join(self.output_dir, "predictions.json"))
        self.succeed("--do_predict", "--predict_file=" + unlabelled)
        self.assertLen(read_json(self.output_dir, "predictions.json"), 21)


class Version2Test(SquadTestCase):
    VERSION_2 = True

    def test_script_trains_evaluates_and_predicts(self):
        chosen_by = {"max_answer_length": 2, "null_score_diff_threshold": 0.01}
        flags = [f"--{name}={value}" for name, value in chosen_by.items()]
        self.succeed("--do_train")  # The flags that choose answers may change later.
        report = self.succeed("--do_train", "--do_eval", "--do_predict", *flags)
        self.assertRegex(report, r"SQuAD: f1 [\d.]+, HasAns_exact [\d.]+, ")
        predictions, odds = (
            read_json(self.output_dir, name) for name in ("predictions.json", "null_odds.json")
        )
        for key, text in predictions.items():
            self.assertEqual(text == "", odds[key] > 0.01)
        results = read_json(self.output_dir, "eval_results.json")
        self.assertEqual(results["task"], "SQuAD 2.0")
        expected = squad_scores.scores_v2(self.truths(), predictions, odds)
        for name, value in expected.items():
            self.assertAllClose(results["eval_" + name], value, msg=name)
        self.assertEqual(results["eval_NoAns_total"], 7)
        self.assertAllClose(results["eval_majority_f1"], 100 * 7 / 21)
        # The adapter supplies the flags that read questions and choose answers.
        trained = task_adapter.describe(os.path.join(self.output_dir, "adapter")).training
        self.assertEqual(trained["answers"], chosen_by)
        read_by = ("--max_", "--doc_stride", "--version_2", "--output_dir")
        given = [flag for flag in self.base_flags if not flag.startswith(read_by)]
        given += ["--do_predict", "--adapter=" + os.path.join(self.output_dir, "adapter")]
        elsewhere = os.path.join(self.folder, "elsewhere")
        given.append("--output_dir=" + elsewhere)
        run_squad.run(command_lines.parsed(run_squad.define_flags, *given))
        self.assertEqual(read_json(elsewhere, "predictions.json"), predictions)
        self.assertEqual(read_json(elsewhere, "null_odds.json"), odds)
        # Overwriting removes all of the run's files.
        RunFolder(self.output_dir).remove_results()
        self.assertEqual([name for name in os.listdir(self.output_dir) if "pred" in name], [])
        self.assertNotIn("null_odds.json", os.listdir(self.output_dir))
        RunFolder(self.output_dir).clear()
        self.assertEqual(os.listdir(self.output_dir), [])

    def task(self, *arguments):
        """Returns (the task of --predict_file, its rows) for these flags."""
        config, tokenizer = self.config_and_tokenizer(*arguments)
        task = squad_task.SquadTask(config)
        task.load(["eval", "predict"])
        return task, task.encode(tokenizer)["test"]

    def test_answers_no_better_than_no_answer_are_told(self):
        def warnings(answer_of):
            answers = {key: answer_of(truth) for key, truth in self.truths().items()}
            return task._warnings(answers, task._scores(answers))

        task, _ = self.task()
        none = squad_answers.Answer("", [], 5.0)
        (found,) = warnings(lambda truth: none)
        self.assertStartsWith(found, "All 21 dev questions are predicted to have no answer: the ")
        wrong = squad_answers.Answer("nonsense", [], -5.0)
        (found,) = warnings(lambda truth: none if not truth else wrong)
        self.assertEqual(
            found, "f1 33.3 is no better than 33.3 of always predicting that there is no answer."
        )
        self.assertEqual(
            warnings(lambda truth: none._replace(text=truth[0], null_odds=-5.0) if truth else none),
            (),
        )

    def test_answers_are_those_of_berts_functions(self):
        random = np.random.RandomState(0)
        task, rows = self.task()
        logits = random.randn(len(rows), 2, 12).round(2)
        predictions = {"start_logits": logits[:, 0], "end_logits": logits[:, 1]}
        (line,) = task.write(self.folder, "test", task.evaluate("test", predictions))
        paths = line.split(": ")[1].split(" (")[0].split(", ")
        config, tokenizer = self.config_and_tokenizer()
        examples, features = run_squad.read_squad_examples(self.predict_file, False), []
        run_squad.convert_examples_to_features(
            examples, tokenizer, *config.limits, False, features.append
        )
        results = [
            run_squad.RawResult(feature.unique_id, *each.tolist())
            for feature, each in zip(features, logits)
        ]
        sizes, expected = (config.n_best_size, config.max_answer_length), []
        for path in paths:
            expected.append(os.path.join(self.folder, "expected", os.path.basename(path)))
        os.makedirs(os.path.dirname(expected[0]))
        run_squad.write_predictions(
            *(examples, features, results, *sizes, True, *expected), version_2_with_negative=True
        )
        self.assertLen(paths, 3)
        for path, other in zip(paths, expected):
            self.assertEqual(read_json(path), read_json(other))

    def test_scores_respect_the_null_score_threshold(self):
        task, rows = self.task("--null_score_diff_threshold=3")
        logits = np.repeat(np.eye(1, 12), len(rows), axis=0)
        predictions = {"start_logits": logits, "end_logits": logits}
        answers, scores, _ = task.evaluate("test", predictions)
        self.assertEqual({answer.null_odds for answer in answers.values()}, {2.0})
        self.assertNotIn("", {answer.text for answer in answers.values()})
        self.assertEqual(scores["eval_NoAns_exact"], 0.0)

    def test_predict_file_changed_during_prediction_is_refused(self):
        path = os.path.join(self.folder, "dev.json")
        shutil.copy(self.predict_file, path)
        task, rows = self.task("--predict_file=" + path)
        logits = np.zeros([len(rows), 12])
        predictions = {"start_logits": logits, "end_logits": logits}
        self.assertLen(task.evaluate("test", predictions).answers, 21)
        # With other texts; with fewer windows than predictions, or more.
        for num_questions in (21, 20, 22):
            tiny.write_squad(path, num_questions, 5, True)
            with self.assertRaisesRegex(UserError, r"\A--predict_file=\S+dev\.json .*\.\Z"):
                task.evaluate("test", predictions)


@pytest.mark.without_xla
class LibraryTest(tf.test.TestCase):
    """Calls run_squad as code written for BERT's run_squad does."""

    def test_logits_of_true_answers_give_the_true_answers(self):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        path = tiny.write_squad(os.path.join(folder, "train.json"))
        vocab_file = os.path.join(tiny.write_bert(os.path.join(folder, "bert")), "vocab.txt")
        examples = run_squad.read_squad_examples(path, True)
        features, results = [], []
        run_squad.convert_examples_to_features(
            examples, tokenization.FullTokenizer(vocab_file), 24, 8, 4, True, features.append
        )
        for feature in features:
            start, end = (
                np.arange(24) == at for at in (feature.start_position, feature.end_position)
            )
            results.append(
                run_squad.RawResult(feature.unique_id, (9.0 * start).tolist(), (9.0 * end).tolist())
            )
        paths = [os.path.join(folder, name) for name in ("predictions", "nbest", "null_odds")]
        run_squad.write_predictions(examples, features, results, 3, 5, True, *paths)
        (article,) = read_json(path)["data"]
        qas = [qa for paragraph in article["paragraphs"] for qa in paragraph["qas"]]
        expected = {qa["id"]: qa["answers"][0]["text"] for qa in qas}
        self.assertEqual(read_json(paths[0]), expected)

    def test_model_fn_builder_trains_and_predicts(self):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        prefix = os.path.join(tiny.write_bert(os.path.join(folder, "bert")), "bert_model.ckpt")
        model_fn = run_squad.model_fn_builder(tiny.config(), prefix, 1e-2, 2, 0, False, False)
        estimator = tf_estimator.tpu.TPUEstimator(
            model_fn,
            config=tf_estimator.tpu.RunConfig(model_dir=os.path.join(folder, "output")),
            use_tpu=False,
            train_batch_size=4,
            predict_batch_size=4,
        )
        arrays = tiny.arrays(rows=4)
        arrays = {name: arrays[name] for name in ("input_ids", "input_mask", "segment_ids")}
        arrays["unique_ids"] = np.arange(4, dtype=np.int32) + 1000000000
        arrays["start_positions"] = arrays["end_positions"] = np.ones(4, np.int32)

        def input_fn(params):
            return tf.data.Dataset.from_tensors(arrays).repeat()

        estimator.train(input_fn, max_steps=2)
        first = next(estimator.predict(input_fn))
        self.assertEqual(first["unique_ids"], 1000000000)
        self.assertEqual(first["start_logits"].shape, (10,))

    def test_create_model_returns_start_and_end_logits(self):
        arrays = tiny.arrays(rows=3)
        with tf.Graph().as_default():
            logits = run_squad.create_model(
                tiny.config(),
                False,
                *(tf.constant(arrays[n]) for n in ("input_ids", "input_mask", "segment_ids")),
                False,
            )
            self.assertEqual([tensor.shape.as_list() for tensor in logits], [[3, 10]] * 2)
            self.assertLen(tf.get_collection("head"), 2)


class DamagedFilesTest(tf.test.TestCase):
    def check(self, stage, version_2, read):
        """Checks read(config, tokenizer) with damaged SQuAD files."""
        context = "The big dog sees a small bird and hears the old cat . " * 2
        answers = [{"text": "bird", "answer_start": 25}]
        question = {"question": "What sees the dog ?", "answers": answers}
        if version_2:
            question["is_impossible"] = False
        qas = [{"id": f"q{i}", **question} for i in range(4)]
        if version_2:
            qas[0].update(answers=[], is_impossible=True)
        paragraphs = [{"context": context, "qas": qas[i : i + 2]} for i in (0, 2)]
        content = {"version": "v2.0", "data": [{"title": "T", "paragraphs": paragraphs}]}
        bert = tiny.write_bert(os.path.join(self.get_temp_dir(), "bert"))
        tokenizer = tokenization.FullTokenizer(os.path.join(bert, "vocab.txt"))

        def read_folder(folder):
            values = command_lines.parsed(
                run_squad.define_flags,
                "--do_" + stage,
                f"--{stage}_file=" + os.path.join(folder, "squad.json"),
                f"--version_2_with_negative={version_2}",
                "--feature_cache_dir=none",
                *("--max_seq_length=16", "--doc_stride=4", "--max_query_length=8"),
            )
            read(squad_task.SquadConfig.from_flags(values), tokenizer)

        mutations.check({"squad.json": json.dumps(content, indent=1).encode()}, read_folder)

    def test_damaged_train_file_is_read_or_refused(self):
        def read(config, tokenizer):
            rows, _, _ = squad_task.windows(config, tokenizer, True)
            rows.take([0])

        for version_2 in (False, True):
            self.check("train", version_2, read)

    def test_damaged_predict_file_is_read_or_refused(self):
        def read(config, tokenizer):
            task = squad_task.SquadTask(config)
            task.load(["eval"])
            rows = task.encode(tokenizer)["dev"]
            logits = np.zeros([len(rows), 16])
            task.evaluate("dev", {"start_logits": logits, "end_logits": logits})

        for version_2 in (False, True):
            self.check("predict", version_2, read)
