"""Tests of predictor.py."""

import copy
import multiprocessing
import os
import pathlib
import pickle
import posixpath
import shutil
import subprocess
import sys
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

pytest.importorskip("onnxruntime", reason="Python 3.7 has no ONNX Runtime of today")

# isort: split
import adapter_bert
import run_classifier
from adapter_bert.files import json_objects, paths
from adapter_bert.formats import onnx_backbone, task_adapter, tfhub
from adapter_bert.model import configs
from adapter_bert.serving.inference import predictor
from adapter_bert.shell.errors import UserError
from adapter_tests.support import own_models, script_cases, served, tiny


class PredictorTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.root = tempfile.mkdtemp(dir=tf.test.get_temp_dir())
        cls.bert, cls.adapters = served.prepare()
        served.save_all(cls.root)

    def predictor(self, name, **options):
        folder = os.path.join(self.root, name, "adapter")
        return predictor.Predictor(folder, self.bert, **options)

    def save(self, name, **changes):
        folder = os.path.join(self.root, name, "adapter")
        task_adapter.save(folder, own_models.build_task_adapter(self.bert, 9, **changes))
        return self.predictor(name)

    def expected(self, name, ids, segments):
        models = own_models.SingleTaskModels(self.bert)
        return models.predictions(self.adapters[name], ids, segments)

    def ids(self, *words):
        return [tiny.VOCABULARY.index(word) for word in words]

    def test_text_and_pair_get_the_models_probabilities(self):
        sms = self.predictor("sms")
        ids = self.ids("[CLS]", "a", "dog", "[SEP]", "the", "cat", "[SEP]")
        for texts, length in ((("A dog",), 4), (("A dog", "the cat"), 7)):
            segments = [0] * 4 + [1] * (length - 4)
            probabilities = self.expected("sms", ids[:length], segments)["probabilities"]
            answer = sms(*texts)
            self.assertAllClose(list(answer["probabilities"].values()), probabilities, atol=1e-5)
            self.assertEqual(answer["label"], ("ham", "spam")[np.argmax(probabilities)])
            fields = dict(zip(("text", "text_b"), texts))
            for other in (sms(**fields), *sms([texts, fields])):
                self.assertEqual(other["label"], answer["label"])
                self.assertAllClose(other["probabilities"], answer["probabilities"], atol=1e-5)
        self.assertEqual(sms(["A dog"]), [sms("A dog")])
        self.assertEqual(sms([]), [])

    def test_lists_get_the_same_answers_as_single_inputs(self):
        """Rows of all lengths share batches, and the windows of a context give one answer."""
        stars, squad, random = self.predictor("stars"), self.predictor("squad"), np.random
        texts = [" ".join(random.choice(tiny.WORDS, n % 14 + 1)) for n in range(70)]
        answers = stars(texts)
        self.assertLen(answers, 70)
        for index in (0, 13, 69):
            self.assertAllClose(stars(texts[index]), answers[index], atol=1e-5)
        questions = [("dog", " ".join(random.choice(tiny.WORDS, n))) for n in (5, 40, 12)]
        answers = squad(questions)
        for question, answer in zip(questions, answers):
            self.assertEqual(squad(*question)["answer"], answer["answer"])
            self.assertIn(answer["answer"], question[1])
        named = squad(question=questions[0][0], context=questions[0][1])
        self.assertEqual(named["answer"], answers[0]["answer"])

    def test_labels_and_probabilities_are_those_of_answers(self):
        texts = ["a dog", "the cat sees dogs", "not a big bird"]
        for name in ("sms", "topics", "sets"):
            predict = self.predictor(name)
            answers = predict(texts)
            self.assertEqual(predict.labels, list(served.TASKS[name]["labels"]))
            key = "labels" if name == "sets" else "label"
            probabilities = predict.predict_proba(texts)
            self.assertEqual(probabilities.dtype, np.float32)
            expected = [[each["probabilities"][k] for k in predict.labels] for each in answers]
            self.assertAllClose(probabilities, expected, atol=1e-6)
            array = np.array(texts)
            for same in (texts, tuple(texts), iter(texts), array, array.astype(object)):
                self.assertEqual(predict.predict(same), [answer[key] for answer in answers])
            self.assertEqual(predict.predict([]), [])
            self.assertEqual(predict.predict_proba([]).shape, (0, len(predict.labels)))

    def test_other_kinds_predict_their_own_values(self):
        stars, squad = self.predictor("stars"), self.predictor("squad")
        tags = self.save("tags", kind="tagging", labels=("O", "B-x", "I-x"))
        self.assertEqual(stars.predict(["a dog"]), [stars("a dog")])
        self.assertIsInstance(stars.predict(["a dog"])[0], float)
        question = ("dog", "the dog sees cats")
        for pair in (question, list(question), np.array(question)):
            self.assertEqual(squad.predict([pair]), [squad(*question)["answer"]])
        for sentence in ("the dog", ["the", "dog"], {"tokens": ["the", "dog"]}):
            self.assertEqual(tags.predict([sentence]), [tags("the dog")["tags"]])
        self.assertEqual((stars.labels, squad.labels), ([], []))
        for predict in (stars, squad, tags):
            with self.assertRaisesRegex(UserError, "no probabilities of labels; use predict"):
                predict.predict_proba(["a dog"])

    def test_pairs_may_be_tuples_lists_and_arrays(self):
        sms = self.predictor("sms")
        pairs = [("a dog", "the cat"), ("the cat", "a dog")]
        expected = [sms(*pair)["label"] for pair in pairs]
        for same in (pairs, list(map(list, pairs)), np.array(pairs), zip(*zip(*pairs))):
            self.assertEqual(sms.predict(same), expected)

    def test_frames_and_their_columns_are_predicted(self):
        pandas = pytest.importorskip("pandas")
        sms = self.predictor("sms")
        pairs = {"text": ["a dog", "the cat"], "text_b": ["the cat", "a bird"]}
        frame = pandas.DataFrame({**pairs, "label": ["ham", "spam"]}, index=[7, 7])
        expected = sms([("a dog", "the cat"), ("the cat", "a bird")])
        self.assertEqual(sms(frame), expected)
        self.assertEqual(sms.predict(frame), [answer["label"] for answer in expected])
        self.assertEqual(sms(frame["text"]), sms(["a dog", "the cat"]))
        self.assertEqual(sms(frame[["text"]]), sms(["a dog", "the cat"]))
        for wrong in ("a dog", {"text": "a dog"}, 7):
            with self.assertRaisesRegex(UserError, "expected a list of texts"):
                sms.predict(wrong)
        with self.assertRaisesRegex(UserError, "^found the columns label; expected text and text_"):
            sms.predict(frame[["label"]])

    def test_frames_have_the_columns_of_the_training(self):
        pandas = pytest.importorskip("pandas")
        answers = {"text_column": "message", "label_column": "kind", "text_b_column": "text"}
        pairs = self.save("pairs", training={"answers": answers})
        tags = self.save("tags", kind="tagging", labels=("O", "B-x", "I-x"))
        frame = pandas.DataFrame({"text": ["the cat"], "message": ["a dog"]})
        self.assertEqual(pairs(frame), [pairs("a dog", "the cat")])
        words = pandas.DataFrame({"tokens": [["the", "dog"]], "tags": [["O", "O"]]})
        self.assertEqual(tags(words), [tags(tokens=["the", "dog"])])

    def test_missing_text_is_named_by_its_row(self):
        pandas = pytest.importorskip("pandas")
        sms = self.predictor("sms")
        for missing in (None, float("nan"), pandas.NA):
            part = f"^Instance 1: text is not a string, but {missing!r}.$"
            column = pandas.Series(["a dog", missing], dtype=object)
            for texts in (column, column.to_frame("text"), column.to_numpy(), iter(column)):
                with self.assertRaisesRegex(UserError, part):
                    sms.predict(texts)
            with self.assertRaisesRegex(UserError, "^Instance 1: text_b is not a string"):
                sms.predict([("a", "a"), ("a", missing)])

    def test_chunks_are_read_one_after_another(self):
        sms, taken = self.predictor("sms"), []

        def texts():
            for index in range(11):
                taken.append(index)
                yield tiny.WORDS[index]

        with mock.patch.object(predictor, "_CHUNK_SIZE", 4):
            answers = sms._answers(texts())
            first = next(answers)
            self.assertLen(taken, 4)
            self.assertLen([first, *answers], 11)
            labels = sms.predict(texts())
            with self.assertRaisesRegex(UserError, "^Instance 9: text is not a string, but None"):
                sms.predict([*tiny.WORDS[:9], None])
        self.assertEqual(labels, sms.predict(tiny.WORDS[:11]))

    def test_one_argument_may_be_a_whole_instance(self):
        sms, squad = self.predictor("sms"), self.predictor("squad")
        tags = self.save("tags", kind="tagging", labels=("O", "B-x", "I-x"))
        pair, question = ("A dog", "the cat"), ("dog", "the dog sees cats")
        for predict, texts, instance in (
            (sms, pair, {"text": "A dog", "text_b": "the cat"}),
            (sms, pair, pair),
            (sms, ("A dog",), {"text": "A dog"}),
            (squad, question, {"context": question[1], "question": "dog"}),
            (squad, question, question),
            (tags, ("the dog",), {"tokens": ["the", "dog"]}),
        ):
            self.assertEqual(predict(instance), predict(*texts))
        self.assertEqual(tags(tokens=["the", "dog"]), tags("the dog"))
        ids = self.ids("[CLS]", "a", "dog", "[SEP]")
        self.assertEqual(sms({"input_ids": ids}), sms("A dog"))
        for wrong, part in (({"txt": "a"}, "found txt; expected text"), (("a",) * 3, "3 texts")):
            with self.assertRaisesRegex(UserError, part):
                sms(wrong)

    def test_pickled_predictors_answer_equally(self):
        """They are for pools of spawned processes."""
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.root)
        predict = predictor.Predictor("sms", os.path.relpath(self.bert), precision="int8")
        texts = ["a dog", "the cat sees dogs"]
        expected = [predict(text) for text in texts]
        os.chdir("/")
        for same in (pickle.loads(pickle.dumps(predict)), copy.deepcopy(predict)):
            self.assertEqual(list(map(same, texts)), expected)
        os.chdir(before)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            self.assertEqual(pool.map(predict, texts), expected)

    def test_invalid_inputs_are_refused(self):
        sms = self.predictor("sms")
        for arguments, part in (
            (("a", "b", "c"), "found 3 texts; expected text and text_b"),
            ((), "Instance 0: found nothing; expected text"),
            ((["a", 7],), "Instance 1: text is not a string, but 7"),
            (([{1: "a"}],), "Instance 0: found 1; expected text"),
            (([{"input_ids": [1], 1: 2}],), "Instance 0: found '1'; expected only input_ids"),
            (([("a", 7)],), "Instance 0: text_b is not a string"),
        ):
            with self.assertRaisesRegex(UserError, part):
                sms(*arguments)
        with self.assertRaisesRegex(UserError, "^found text twice; expected each text once"):
            sms("a", text="b")

    def test_pairs_need_a_second_segment_id(self):
        bert = tiny.write_bert(os.path.join(self.root, "one_type"), type_vocab_size=1)

        def saved(name, **changes):
            folder = os.path.join(self.root, "one_type", name)
            task_adapter.save(folder, own_models.build_task_adapter(bert, 9, **changes))
            return folder

        with self.assertRaisesRegex(UserError, "^Folder .* but the BERT has type_vocab_size 1"):
            predictor.Predictor(saved("pairs", **served.TASKS["squad"]), bert)
        predict = predictor.Predictor(saved("one_text"), bert)
        self.assertEqual(predict("a dog")["label"], predict({"text": "a dog"})["label"])
        for wrong, part in (
            ((("a", "b"),), "Instance 0: found 2 texts; expected text.$"),
            (({"text": "a", "text_b": "b"},), "found text, text_b; expected text, or input_ids"),
            (({"input_ids": [2, 3], "segment_ids": [0, 1]},), "segment_ids has values from 0 to 1"),
        ):
            with self.assertRaisesRegex(UserError, part):
                predict(*wrong)
        with self.assertRaisesRegex(UserError, "found 2 texts; expected text$"):
            predict("a", "b")

    def test_wrong_or_missing_bert_or_adapter_is_refused(self):
        folder = os.path.join(self.root, "sms", "adapter")
        other = tiny.write_bert(os.path.join(self.root, "other"), initializer_range=0.2)
        with self.assertRaisesRegex(UserError, "was trained on another BERT"):
            predictor.Predictor(folder, other)
        with self.assertRaisesRegex(UserError, "bert: there is no folder"):
            predictor.Predictor(folder, "nowhere")
        with self.assertRaisesRegex(UserError, "^Folder .*nowhere is not a task adapter"):
            predictor.Predictor("nowhere", self.bert)
        refused = self.assertRaisesRegex(UserError, "another BERT.*; set bert= to its BERT.$")
        with mock.patch.dict(os.environ, BERT_BASE_DIR=other), refused:
            predictor.Predictor(folder)
        with mock.patch.dict(os.environ), mock.patch.object(paths, "DEMO_BERT", "/nowhere"):
            os.environ.pop("BERT_BASE_DIR", None)
            with self.assertRaisesRegex(UserError, "^No pretrained BERT: give bert=, or set BERT"):
                predictor.Predictor(folder)
        with self.assertRaisesRegex(UserError, "num_threads must be at least 1, but is 0"):
            self.predictor("sms", num_threads=0)

    def test_relative_paths_hold_after_a_change_of_folder(self):
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.root)
        folder, bert = pathlib.Path("sms/adapter"), pathlib.Path(os.path.relpath(self.bert))
        sms = predictor.Predictor(folder, bert)
        os.chdir("/")
        self.assertEqual(sms("a dog"), self.predictor("sms")("a dog"))

    def test_adapter_of_a_run_precedes_uploads_beside_it(self):
        run = os.path.join(self.root, "run")
        self.save("run/1", task="older")
        self.save("run", task="trained")
        shutil.move(os.path.join(run, "1", "adapter"), os.path.join(run, "2"))
        self.assertEqual(predictor.Predictor(run, self.bert).description.task, "trained")
        upload = predictor.Predictor(os.path.join(run, "2"), self.bert)
        self.assertEqual(upload.description.task, "older")

    def test_converted_bert_recorded_by_the_run_is_used(self):
        converted = os.path.join(self.root, "converted")
        os.makedirs(converted)
        onnx_backbone.load(os.path.join(self.bert, "bert_model.ckpt"), tiny.config())
        for name in ("bert_config.json", "vocab.txt", onnx_backbone.FILE):
            shutil.copy(os.path.join(self.bert, name), converted)
        run = os.path.join(self.root, "stars")
        names = {"init_checkpoint": "bert_model.ckpt", "vocab_file": "vocab.txt"}
        recorded = {flag: os.path.join(converted, name) for flag, name in names.items()}
        json_objects.write_object(os.path.join(run, "settings.json"), {"pretrained": recorded})
        expected = self.predictor("stars")("a dog")
        for folder in (run, self.remote_copy(run)):
            answer = predictor.Predictor(posixpath.join(folder, "adapter"))("a dog")
            self.assertEqual(answer, expected)

    def remote_copy(self, run):
        """Copies a run to TensorFlow's in-memory file system; returns the copy's folder."""
        remote = "ram://predictor_test/run"
        for folder, _, names in os.walk(run):
            for name in names:
                path = os.path.join(folder, name)
                copy = posixpath.join(remote, os.path.relpath(path, run))
                tf.io.gfile.makedirs(posixpath.dirname(copy))
                tf.io.gfile.copy(path, copy, overwrite=True)
        return remote

    def test_hub_module_recorded_by_the_run_is_used(self):
        run = os.path.join(self.root, "topics")
        settings = {"pretrained": {"bert_hub_module_handle": "a/module"}}
        json_objects.write_object(os.path.join(run, "settings.json"), settings)
        module = configs.PretrainedBert(
            config=tiny.config(),
            vocab_file=os.path.join(self.bert, "vocab.txt"),
            init_checkpoint=os.path.join(self.bert, "bert_model.ckpt"),
            do_lower_case=None,
            config_file=None,
        )
        with mock.patch.object(tfhub, "read_bert", return_value=module) as read:
            answer = predictor.Predictor(os.path.join(run, "adapter"))("a dog")
        read.assert_called_once_with("a/module")
        self.assertEqual(answer, self.predictor("topics")("a dog"))

    def test_bert_base_dir_replaces_a_hub_module_that_is_gone(self):
        run = os.path.join(self.root, "topics")
        settings = {"pretrained": {"bert_hub_module_handle": "/no/such/module"}}
        json_objects.write_object(os.path.join(run, "settings.json"), settings)
        with mock.patch.dict(os.environ, BERT_BASE_DIR=self.bert):
            found = predictor.Predictor(os.path.join(run, "adapter"))
        self.assertEqual(found.bert.vocab_file, os.path.join(self.bert, "vocab.txt"))

    def test_remote_bert_recorded_by_the_run_is_not_downloaded(self):
        run = os.path.join(self.root, "topics")
        for pretrained in (
            {"bert_hub_module_handle": "https://example.com/bert"},
            {"init_checkpoint": "ram://elsewhere/bert_model.ckpt", "vocab_file": "vocab.txt"},
            "x",
        ):
            json_objects.write_object(
                os.path.join(run, "settings.json"), {"pretrained": pretrained}
            )
            with mock.patch.object(tfhub, "read_bert") as read, self.assertRaises(UserError):
                predictor.Predictor(os.path.join(run, "adapter"))
            read.assert_not_called()

    def test_predictor_works_without_tensorflow(self):
        self.predictor("sms")  # Converts the BERT.
        code = (
            "import sys; sys.modules['tensorflow'] = None\n"
            "from adapter_bert import Predictor\n"
            "folder, bert = sys.argv[1:]\n"
            "print(Predictor(folder, bert)('a dog')['label'])"
        )
        folder = os.path.join(self.root, "sms")
        done = subprocess.run(
            [sys.executable, "-c", code, folder, self.bert],
            capture_output=True,
            text=True,
            cwd=paths.PROJECT,
        )
        self.assertEqual(done.stdout.strip(), self.predictor("sms")("a dog")["label"], done.stderr)


@pytest.mark.estimator
class TrainedTest(script_cases.ScriptTestCase):
    SCRIPT = run_classifier

    def test_answers_equal_do_predict_results(self):
        self.succeed(
            *("--do_train", "--do_predict", "--learning_rate=0.05", "--adapter_init_scale=0.1"),
            *("--adapter_placement=normalized", "--adapter_sites=feed_forward"),
            *("--adapter_normalization=batch", "--adapter_depth=2", "--adapter_scaling=4"),
        )
        predicted = script_cases.read(os.path.join(self.output_dir, "test_results.tsv"))
        expected = [list(map(float, line.split("\t"))) for line in predicted.splitlines()]
        lines = script_cases.read(os.path.join(self.data, "test.tsv")).splitlines()[1:]
        pairs = [tuple(line.split("\t")[3:5]) for line in lines]
        paraphrase = adapter_bert.Predictor(os.path.join(self.output_dir, "adapter"))
        found = [list(answer["probabilities"].values()) for answer in paraphrase(pairs)]
        self.assertAllClose(found, expected, atol=1e-5)
        self.assertEqual(os.path.dirname(paraphrase.bert.init_checkpoint), self.bert)
        moved = shutil.move(os.path.join(self.output_dir, "adapter"), self.folder)
        self.assertAllClose(
            list(predictor.Predictor(moved, self.bert)(*pairs[0])["probabilities"].values()),
            expected[0],
            atol=1e-5,
        )
