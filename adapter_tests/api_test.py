"""Tests of api.py: training from Python gives the scripts' weights, and refuses bad input early."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile

import pytest

if sys.version_info < (3, 8):
    pytest.skip("train() needs Python 3.9", allow_module_level=True)

# isort: split
import numpy as np
import tensorflow.compat.v1 as tf
from absl.testing import parameterized

import adapter_bert
import run_classifier
import run_squad
import run_tagger
from adapter_bert.files import paths
from adapter_bert.formats import task_adapter
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks import splits
from adapter_tests.support import tiny
from adapter_tests.support.refusals import RefusalTestCase

FLAGS = {
    "max_seq_length": 24,
    "num_train_epochs": 1,
    "train_batch_size": 8,
    "learning_rate": 0.05,
    "feature_cache_dir": "none",
}

# Trains in a thread of a program that computes eagerly; prints what it then sees.
_THREAD = """
import json, sys, threading
import tensorflow as tf
import adapter_bert
from adapter_bert.ops import xla

xla.can_fuse = lambda: False  # As in the other tests of this class.
assert float(tf.add(1.0, 2.0)) == 3.0
rows, keywords = json.load(sys.stdin)
seen = {}

def train():
    run = adapter_bert.train(rows, text="message", label="kind", verbose=False, **keywords)
    seen.update(scores=run.scores, is_eager=tf.executing_eagerly())

thread = threading.Thread(target=train)
thread.start()
thread.join()
before = tf.compat.v1.get_default_graph().as_graph_def().node
print(json.dumps([seen, tf.executing_eagerly(), float(tf.add(1.0, 2.0)), len(before)]))
"""

# Expression → parts of its sentence. `frame` has 40 rows of text and label.
_REFUSALS = [
    ('train(frame, text="message")', "text=message is not in the columns of train: text, label."),
    ("train(frame, dev=frame[['text']])", "label=label is not in the columns of dev: text."),
    ("train(frame, test=frame[['label']])", "text=text is not in the columns of test: label."),
    ("train(with_label(None))", "train, row 3: label is null; expected a string or a number."),
    ("train(with_label(np.nan))", "train, row 3: label is null; expected a string or a number."),
    ("train(with_label(pd.NA))", "train, row 3: label is null; expected a string or a number."),
    ("train(rows + [{'text': 'a', 'label': None}])", "train, row 40: label is null;"),
    ("train([('a', 'b'), ('c', 'd', 'e')])", "train, row 1: found ('c', 'd', 'e'); expected a"),
    ("train(frame.assign(label='a'))", "train: found only the label 'a' in 40 rows, expected at"),
    ("train(frame, dev=[('x', 'c')])", "dev, row 0: found the label 'c', expected one of a, b."),
    ("train([])", "train: the table has no rows."),
    ("train(frame.iloc[:0])", "train: the table has no rows."),
    ("train(None)", "train: found a NoneType; expected a DataFrame"),
    ("train(frame.iloc[:5])", "train: 5 rows are too few to hold some out as dev; give dev."),
    ("train(frame[:5], dev=frame)", "No pretrained BERT: "),  # Four rows and one of test.
    ("train(frame.assign(text=pd.Timestamp('2020')))", 'train, row 0: text is "Timestamp('),
    ("train(frame.rename(columns={'label': 'text'}))", "train: the column text occurs twice."),
    ("train(frame, text_b='text')", "must name different columns; got text, text and label."),
    ("train(frame, text_column='text')", "train() has no keyword text_column; give text."),
    ("train(frame, data_dir='x')", "train() has no keyword data_dir; give data."),
    (
        "train(frame, adapter_sze=8)",
        "train() has no keyword adapter_sze; did you mean adapter_size?",
    ),
    ("train(frame, lable='kind')", "train() has no keyword lable; did you mean label?"),
    ("train(frame, epochs=3)", "train() has no keyword epochs; did you mean num_train_epochs?"),
    ("train(frame, adapter_size='big')", "--adapter_size=big: expected an integer"),
    ("train(frame, num_train_epochs=-1)", "--num_train_epochs must be a finite number above 0"),
    ("train(frame, label_type='number')", "--label_type=number"),
    ("train('in/a.parquet')", "No pretrained BERT: "),
    ("train('in/a.csv.gz', dev='in/a.parquet', test=frame)", "No pretrained BERT: "),
    (
        "train('in/a.parquet', text='b')",
        "text=b is not in the columns of in/a.parquet: text, label",
    ),
    ("train('missing.csv')", "train: there is no file or folder missing.csv."),
    ("train(frame, dev='missing.csv')", "dev: there is no file or folder missing.csv."),
    (
        "train('.')",
        "--data_dir=.: there is no train.tsv or train.txt or train.csv or train.jsonl or",
    ),
    (
        "train(frame, dev='.')",
        "dev: . is a folder, which has all splits; expected it alone, as data.",
    ),
    ("train({'train': frame, 'test': frame})", "train: found a dict of tables, train, test;"),
    (
        "train(frame)",
        "No pretrained BERT: give --bert_config_file, or set BERT_BASE_DIR to a folder",
    ),
    ("train(frame, bert_config_file='x')", "No pretrained BERT: give --vocab_file"),
    ("train(frame, bert_config_file='x', vocab_file='y')", "x: cannot be read (No such file"),
    ("train(frame.assign(label=pd.Categorical(frame.label)))", "No pretrained BERT: "),
    ("train({'text': np.array(['a', 'b'] * 20), 'label': np.arange(40) % 2})", "No pretrained "),
    ("train(rows, tokens='text')", "tags=tags is not in the columns of train: text, label."),
    ("train(rows, tokens='text', tags='label')", "train, row 0: 'text' is not a list; expected a"),
    ("train([{'tokens': ['a'], 'tags': [None]}] * 20, tags='tags')", "found None in 'tags',"),
    ("train([{'tokens': ['a'], 'tags': ['O']}] * 20, tags='tags')", "all tags are 'O'; expected"),
    (
        "train(rows, question='text')",
        "context=context is not in the columns of train: text, label.",
    ),
    ("train(rows, question='text', test=rows)", "test: question answering predicts the questions"),
    ("train(asked('cat'), question='question')", "train, row 0: found the answer {'text': 'cat',"),
    ("train(asked(3), question='question')", "train, row 0: answers is 3; expected a text, or"),
]
_PROGRAM = """
import json, os, sys
sys.modules["tensorflow"] = None
import numpy as np, pandas as pd
import adapter_bert
from adapter_bert.files import paths
from adapter_bert.shell.errors import UserError

paths.DEMO_BERT = "nowhere"
rows = [{"text": f"t {i}", "label": "ab"[i % 2]} for i in range(40)]
frame = pd.DataFrame(rows)

def train(*arguments, **keywords):
    return adapter_bert.train(*arguments, verbose=False, output_dir="output", **keywords)

os.mkdir("in")
frame.to_parquet("in/a.parquet")
frame.to_csv("in/a.csv.gz", index=False)

def with_label(value):
    return frame.assign(label=[*"aba", value, *"ba" * 18])

def asked(answer):
    return [{"question": "a", "context": "the dog", "answers": answer}] * 20

sentences = []
for expression in json.load(sys.stdin):
    try:
        eval(expression)
        sentences.append("no error")
    except UserError as error:
        sentences.append(str(error))
    except Exception as error:
        sentences.append(repr(error))
print(json.dumps([sentences, os.listdir()]))
"""


def run_program(program, content, folder, **environment):
    """Runs a Python program with JSON on stdin; returns the JSON in the last line of its output."""
    environment = {"PYTHONPATH": paths.PROJECT, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    names = ("PATH", "HOME", "TMPDIR", "XDG_CACHE_HOME")
    environment.update({name: os.environ[name] for name in names if name in os.environ})
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(content),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
class RefusalsTest(RefusalTestCase):
    def test_bad_input_is_refused_in_a_sentence_before_tensorflow(self):
        pytest.importorskip("pandas")
        with tempfile.TemporaryDirectory(dir=self.get_temp_dir()) as folder:
            expressions = [expression for expression, _ in _REFUSALS]
            sentences, written = run_program(_PROGRAM, expressions, folder)
        self.assertEqual(written, ["in"])
        for sentence, (expression, part) in zip(sentences, _REFUSALS):
            with self.subTest(expression):
                self.assertIn(part, sentence)
                self.assertNotIn("\n", sentence)

    def test_missing_tensorflow_is_said_with_the_command(self):
        program = _PROGRAM.replace(
            "for expression", "paths.find_bert = lambda *_: 'b'\nfor expression"
        )
        program = program.replace("import adapter_bert\n", "import adapter_bert\n" + _FAKE_FIND)
        with tempfile.TemporaryDirectory(dir=self.get_temp_dir()) as folder:
            (sentence,), _ = run_program(program, ["train(frame)"], folder)
        self.assertRegex(sentence, "^Training needs TensorFlow; run `pip install .+`.$")


_FAKE_FIND = """
import adapter_bert.api
adapter_bert.api.pretrained.find = lambda *_, **__: None
from adapter_bert.shell import environment
environment.missing_packages = lambda packages: ["TensorFlow"]
"""


@pytest.mark.estimator
@pytest.mark.without_xla
class TrainTest(RefusalTestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.root = tempfile.mkdtemp(dir=tf.test.get_temp_dir())
        bert = tiny.write_bert(os.path.join(cls.root, "bert"))
        cls.flags = {
            **FLAGS,
            "bert_config_file": f"{bert}/bert_config.json",
            "vocab_file": f"{bert}/vocab.txt",
            "init_checkpoint": f"{bert}/bert_model.ckpt",
        }
        random = np.random.RandomState(0)
        texts = [" ".join(random.choice(tiny.WORDS, 5)) for _ in range(80)]
        cls.rows = [
            {"message": text, "kind": "cat" if "cat" in text.split() else "none"} for text in texts
        ]
        cls.data = os.path.join(cls.root, "data")
        cls.write("data/train.jsonl", cls.rows)
        cls.from_rows = cls.train(cls.rows, "rows", text="message", label="kind")

    @classmethod
    def write(cls, name, rows):
        """Writes rows as JSON lines; returns the path."""
        path = os.path.join(cls.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as writer:
            writer.writelines(json.dumps(row) + "\n" for row in rows)
        return path

    @classmethod
    def train(cls, data, name, **keywords):
        """Trains from Python into a folder of the class; `keywords` win over the tests' flags."""
        keywords = {"verbose": False, **cls.flags, **keywords}
        return adapter_bert.train(data, output_dir=os.path.join(cls.root, name), **keywords)

    def script(self, script, name, **given):
        """Runs a script's main, which must not fail; returns its report."""
        given = {**self.flags, **given, "output_dir": os.path.join(self.root, name)}
        flags = [f"--{flag}={value}" for flag, value in given.items()]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            script.main([script.__name__, *flags])
        return printed.getvalue()

    def digest(self, name):
        adapter = task_adapter.load(os.path.join(self.root, name, "adapter"))
        return task_adapter.tensors_digest(adapter), adapter.description.scores

    def test_rows_in_memory_give_the_script_s_weights_and_scores(self):
        columns = {"text_column": "message", "label_column": "kind"}
        report = self.script(
            run_classifier, "files", task_name="custom", data_dir=self.data, **columns
        )
        self.assertEqual(self.digest("rows"), self.digest("files"))
        run = self.from_rows
        self.assertIn(run.report[0], report)
        self.assertEqual(run.adapter, os.path.join(self.root, "rows", "adapter"))
        self.assertEqual(run.output_dir, os.path.join(self.root, "rows"))
        self.assertIn("test_accuracy", run.scores)
        # Called again with other flags, main predicts with the adapter.
        before = tf.io.gfile.listdir(os.path.join(self.root, "files"))
        self.assertNotIn("test_results.tsv", before)
        self.script(
            *(run_classifier, "files"),
            **{"task_name": "custom", "data_dir": self.data, "do_predict": True, **columns},
        )
        after = tf.io.gfile.listdir(os.path.join(self.root, "files"))
        self.assertIn("test_results.tsv", after)

    def test_same_call_resumes_and_another_is_refused(self):
        again = self.train(self.rows, "rows", text="message", label="kind")
        self.assertEqual(again.scores, self.from_rows.scores)
        with self.assertRaisesRegex(UserError, "--adapter_size|adapter"):
            self.train(self.rows, "rows", text="message", label="kind", adapter_size=3)

    def test_predictor_gives_the_labels_of_the_run(self):
        pytest.importorskip("onnxruntime")
        run = self.from_rows
        predict = run.predictor()
        self.assertEqual(predict.labels, ["cat", "none"])
        shares, keys = {"dev": 0.1, "test": 0.1}, splits.keys_of(row["kind"] for row in self.rows)
        texts = [self.rows[i]["message"] for i in splits.set_apart(shares, keys, True)["test"]]
        with open(os.path.join(run.output_dir, "test_results.tsv")) as reader:
            expected = [list(map(float, line.split("\t"))) for line in reader]
        self.assertAllClose(predict.predict_proba(texts), expected, atol=1e-5)

    def test_tags_in_memory_give_the_script_s_weights(self):
        sentences = [
            {"words": words, "marks": ["B-X" if word == "cat" else "O" for word in words]}
            for words in (row["message"].split() for row in self.rows)
        ]
        train, dev = sentences[:64], sentences[64:]
        columns = {"tokens": "words", "tags": "marks"}
        run = self.train(train, "tags", dev=dev, **columns)
        self.script(
            *(run_tagger, "tag_files"),
            train_file=self.write("tagged/train.jsonl", train),
            dev_file=self.write("tagged/dev.jsonl", dev),
            token_column="words",
            tag_column="marks",
        )
        self.assertEqual(self.digest("tags"), self.digest("tag_files"))
        self.write("tagged/test.jsonl", [{"words": ["the", "cat"]}])
        folder = self.train(os.path.join(self.root, "tagged"), "tag_folder", **columns)
        self.assertEqual(self.digest("tag_folder"), self.digest("tag_files"))
        self.assertIn("predictions.jsonl", os.listdir(folder.output_dir))
        self.assertIn("eval_f1", run.scores)
        self.assertNotIn("test_f1", run.scores)

    def test_shares_are_keywords(self):
        run = self.train(self.rows, "share", text="message", label="kind", test_share=0)
        self.assertNotIn("test_accuracy", run.scores)
        training = task_adapter.describe(run.adapter).training
        shown = {name: training.get(name) for name in ("split", "dev_share", "test_share")}
        self.assertEqual(shown, {"split": "stratified", "dev_share": 0.1, "test_share": 0.0})
        with self.assertRaisesRegex(UserError, "^--dev_share=0.7 and --test_share=0.5 leave no"):
            self.train(
                self.rows, "all", text="message", label="kind", dev_share=0.7, test_share=0.5
            )
        tagged = [
            {"tokens": words, "tags": ["B-X" if word == "cat" else "O" for word in words]}
            for words in (row["message"].split() for row in self.rows)
        ]
        run = self.train(tagged, "shared_tags", tags="tags", dev_share=0.25, test_share=0.2)
        self.assertContainsSubset(["eval_f1", "test_f1"], run.scores)
        asked = [
            {"question": "who", "context": f"the cat sees {i}", "answers": "cat" if i % 4 else ""}
            for i in range(40)
        ]
        lengths = {"max_seq_length": 32, "max_query_length": 4, "doc_stride": 16}
        with self.assertLogs("absl", "INFO") as logs:
            self.train(asked, "shared", question="question", dev_share=0.2, **lengths)
        self.assertIn("train: 8 of its 40 rows are set apart as dev, strat", "".join(logs.output))
        with self.assertRaisesRegex(UserError, "^test_share: question answering evaluates"):
            self.train(asked, "shared", question="question", test_share=0.2)

    def test_folds_are_a_keyword(self):
        run = self.train(self.rows, "folds", text="message", label="kind", folds=2)
        described = task_adapter.describe(run.adapter)
        self.assertEqual(described.global_step, 80 // 8)
        for name in ("cross_validation_accuracy", "cross_validation_accuracy_std"):
            self.assertEqual(run.scores[name], described.scores[name])
        self.assertIn("2 folds", "".join(run.report))
        self.assertEqual(run.output_dir, os.path.join(self.root, "folds"))
        with self.assertRaisesRegex(UserError, "^folds: question answering evaluates"):
            self.train([], "none", question="question", folds=2)

    def test_questions_in_memory_give_the_script_s_weights(self):
        files = [os.path.join(self.root, name) for name in ("train.json", "dev.json")]
        tables = []
        for seed, path in enumerate(files):
            tiny.write_squad(path, seed=seed)
            with open(path) as reader:
                (article,) = json.load(reader)["data"]
            tables.append(
                [
                    {
                        "question": qa["question"],
                        "context": paragraph["context"],
                        "answers": {
                            key: [answer[key] for answer in qa["answers"]]
                            for key in ("text", "answer_start")
                        },
                    }
                    for paragraph in article["paragraphs"]
                    for qa in paragraph["qas"]
                ]
            )
        lengths = {"max_seq_length": 32, "max_query_length": 4, "doc_stride": 16}
        run = self.train(tables[0], "asked", dev=tables[1], question="question", **lengths)
        self.script(run_squad, "asked_files", train_file=files[0], predict_file=files[1], **lengths)
        self.assertEqual(self.digest("asked"), self.digest("asked_files"))
        self.assertEqual(run.scores["eval_f1"], self.digest("asked_files")[1]["eval_f1"])

    def test_thread_of_an_eager_program_trains_and_stays_eager(self):
        keywords = {**self.flags, "output_dir": os.path.join(self.root, "eager")}
        seen, is_eager, total, num_nodes = run_program(_THREAD, [self.rows, keywords], self.root)
        self.assertEqual(seen, {"scores": self.from_rows.scores, "is_eager": True})
        self.assertEqual((is_eager, total, num_nodes), (True, 3.0, 0))
        self.assertEqual(self.digest("eager")[0], self.digest("rows")[0])

    def test_less_than_one_step_is_refused_before_anything_is_written(self):
        few, cache = self.rows[:20], os.path.join(self.root, "cache")
        arguments = {"train_batch_size": 64, "dev": few, "feature_cache_dir": cache}
        with self.assertRaisesRegex(UserError, "^20 training examples in batches of 64 .* step"):
            self.train(few, "few", text="message", label="kind", test=few, **arguments)
        self.assertNotIn("few", os.listdir(self.root))
