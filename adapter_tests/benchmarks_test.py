"""Tests of benchmarks/: measuring and comparing contestants, and the results of the plain ones.

No test checks a time. The workers are stand-ins, or compute on a tiny model.
"""

import argparse
import contextlib
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import run_classifier
import tokenization
from adapter_bert.files.paths import PROJECT
from adapter_bert.training.config import FinetuningConfig
from adapter_tests.support import tiny

FOLDER = os.path.join(PROJECT, "benchmarks")
sys.path.append(FOLDER)  # Its scripts import each other by bare name.

if tf.__version__.startswith("1."):
    raise unittest.SkipTest("Benchmarks run on TensorFlow 2.")

import harness  # noqa: E402
import plain_bert  # noqa: E402
import plain_mrpc  # noqa: E402
import plain_tokenizer  # noqa: E402
import workload  # noqa: E402

SIZES = tiny.SIZES


def timing(name, *seconds, **fields):
    defaults = {"first": 9.0, "seconds": list(seconds), "bytes": 2 * 10**9, "facts": {}}
    return harness.Timing(name, **{**defaults, **fields})


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def program(folder, name, text):
    """Returns a contestant whose program is `text`."""
    path = os.path.join(folder, name + ".py")
    with open(path, "w") as writer:
        writer.write(textwrap.dedent(text))
    return harness.Contestant(name, [sys.executable, path])


# Runs scripts with --help as Python would from another folder, but imports TensorFlow only once.
START = """
import runpy, sys
start = list(sys.path)
for script in sys.argv[1:]:
    sys.path[:] = [script.rpartition("/")[0], *start[1:]]
    for name in [n for n, m in sys.modules.items() if "/benchmarks/" in str(m)]:
        del sys.modules[name]
    sys.argv = [script, "--help"]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        assert not end.code, script
"""


class StartTest(tf.test.TestCase):
    def test_benchmark_scripts_start_from_any_folder(self):
        with open(os.path.join(PROJECT, "Makefile"), encoding="utf-8") as reader:
            scripts = sorted(set(re.findall(r"benchmarks/\w+\.py", reader.read())))
        self.assertIn("benchmarks/precision.py", scripts)
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        paths = [os.path.join(PROJECT, script) for script in scripts]
        helped = subprocess.check_output(
            [sys.executable, "-c", START, *paths], cwd=tempfile.gettempdir(), env=environ
        )
        self.assertEqual(helped.count(b"  --results "), len(scripts))


class TurnsTest(tf.test.TestCase):
    WORKER = """
        import sys
        sys.path.append({folder!r})
        import worker
        order = open({order!r}, "a")
        def note(what):
            order.write({name!r} + what + " ")
            order.flush()
        print("no answer")
        memory = bytearray({bytes})
        worker.serve(
            lambda: note("r"), facts={{"version": {name!r}}}, prepare=lambda: note("p")
        )
    """

    def run_workers(self, sizes, repeats):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        order = os.path.join(folder, "order")
        contestants = [
            program(
                folder,
                name,
                textwrap.dedent(self.WORKER).format(
                    folder=FOLDER, order=order, name=name, bytes=size
                ),
            )
            for name, size in sizes.items()
        ]
        timings = harness.take_turns(contestants, repeats)
        with open(order) as reader:
            return timings, reader.read().split()

    def test_workers_take_turns_and_first_calls_do_not_count(self):
        timings, order = self.run_workers({"a": 1, "b": 1}, repeats=3)
        once = ["ap", "ar", "bp", "br"]
        self.assertEqual(order, once + (once[:2] * 2 + once[2:] * 2) * 3)
        self.assertEqual([t.name for t in timings], ["a", "b"])
        for t in timings:
            self.assertLen(t.seconds, 3)
            self.assertGreater(min(t.seconds + [t.first]), 0)
        self.assertEqual(harness.versions_of(timings), ["a", "b"])

    def test_peak_memory_is_measured_per_contestant(self):
        timings, _ = self.run_workers({"small": 1, "large": 200 * 10**6}, repeats=1)
        difference = timings[1].bytes - timings[0].bytes
        self.assertAllClose(difference, 200e6, atol=20e6)

    def test_failing_contestant_aborts_benchmark_with_its_error(self):
        broken = program(
            tempfile.mkdtemp(dir=self.get_temp_dir()), "broken", "raise OSError('so it is')"
        )
        with self.assertRaisesRegex(SystemExit, "(?s)broken failed.*so it is"):
            harness.take_turns([broken], 1)
        with self.assertRaisesRegex(SystemExit, "(?s)broken failed.*so it is"):
            harness.take_turns_whole([broken], 1)

    def test_whole_processes_take_turns_in_new_folders(self):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        order = os.path.join(folder, "order")
        text = f"""
            import os, sys
            sys.path.append({FOLDER!r})
            import worker
            name, scratch = sys.argv[1:]
            assert not os.path.exists(scratch + "/seen")
            os.mkdir(scratch + "/seen")
            open({order!r}, "a").write(name)
            worker.mark("step", loss=1.5, version="Nine")
            worker.mark("step", loss=0.5)
        """
        script = program(folder, "script", text).command
        contestants = [harness.Contestant(n, [*script, n, "{scratch}"]) for n in ("a", "b")]
        timings = harness.take_turns_whole(contestants, repeats=2, warm_up=1)
        with open(order) as reader:
            self.assertEqual(reader.read(), "ababab")
        self.assertEqual(harness.versions_of(timings), ["Nine", "Nine"])
        for t in timings:
            self.assertLen(t.seconds, 2)
            for marks, seconds in zip(t.facts["marks"], t.seconds):
                self.assertEqual([mark["loss"] for mark in marks], [1.5, 0.5])
                first = harness.first_mark(marks, "step")
                last = harness.last_mark(marks, "step")
                self.assertTrue(0 < first <= last <= seconds)


class ResultsTest(tf.test.TestCase):
    def test_table_compares_medians(self):
        timings = [timing("ours", 2.0, 3.0, 1.0), timing("peer", 4.0, 8.0, 5.0)]
        lines = harness.compare(timings, "ours", floors={"ours": 1.5, "peer": 1.0})
        self.assertEqual(
            [cells(line) for line in lines[2:]],
            [
                ["ours", "2 s", "1 s", "1.00×", "75%", "9 s", "2.00 GB"],
                ["peer", "5 s", "4 s", "0.40×", "20%", "9 s", "2.00 GB"],
            ],
        )
        self.assertEqual({line.count("|") for line in lines}, {8})
        self.assertEqual({line.count("|") for line in harness.compare(timings, "ours")}, {7})

    def test_targets_are_reported_as_reached_or_missed(self):
        timings = [timing("ours", 2.0), timing("peer, slow", 9.0), timing("peer, fast", 4.0)]
        targets = [harness.Target("peer", 0.5), harness.Target("peer", 0.4)]
        reached, missed = harness.judge(timings, "ours", targets)
        self.assertRegex(reached, r"measured 0\.5×: reached")
        self.assertRegex(missed, r"measured 0\.5×: missed")

    def test_benchmark_replaces_only_its_own_section(self):
        one = harness.with_section("", "one", "first \\1")
        both = harness.with_section(one, "two", "second")
        self.assertRegex(both, r"(?s)^# Results.*first \\1.*second")
        again = harness.with_section(both, "one", "third")
        self.assertEqual(again, both.replace("first \\1", "third"))
        self.assertEqual(harness.with_section(again, "one", "third"), again)

    def test_results_file_does_not_make_revision_dirty(self):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        os.mkdir(os.path.join(folder, "benchmarks"))
        paths = [os.path.join(folder, name) for name in ("code.py", "benchmarks/RESULTS.md")]

        def write(path, text):
            with open(path, "w") as writer:
                writer.write(text)

        def git(*arguments):
            identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
            subprocess.run(["git", *identity, *arguments], cwd=folder, check=True)

        for path in paths:
            write(path, "old")
        git("init", "--quiet")
        git("add", ".")
        git("commit", "--quiet", "--message=one")
        with mock.patch.object(harness, "ROOT", folder):
            clean = harness.revision()
            self.assertRegex(clean, "^[0-9a-f]{7,}$")
            write(paths[1], "new")
            self.assertEqual(harness.revision(), clean)
            write(paths[0], "new")
            self.assertEqual(harness.revision(), clean + "-dirty")
            with mock.patch.dict(os.environ, PATH=""):
                self.assertEqual(harness.revision(), "unknown")

    def test_machine_line_names_revision_hardware_and_versions(self):
        (line,) = harness.machine(["TensorFlow 9", "TensorFlow 9"])
        self.assertRegex(line, r"^\d{4}-\d\d-\d\d, revision .*\d+ cores, \d+ GB")
        self.assertEqual(line.count("TensorFlow 9"), 1)
        for flag in ("avx512_bf16", "amx_bf16"):
            self.assertIn(flag, line)


class WorkloadTest(tf.test.TestCase):
    def flops(self, **options):
        return sum(p.flops for p in workload.products(SIZES, 3, 5, **options))

    def test_forward_pass_flops_match_hand_count(self):
        # Rows 15, D 8, inner 16, adapter 64, 3 * 2 heads of 4.
        dense = 4 * 8 * 8 + 2 * 8 * 16 + 2 * 2 * 8 * 64
        attention = 2 * 3 * 2 * 5 * 5 * 4
        self.assertEqual(self.flops(backward=False), 2 * 2 * (15 * dense + attention))

    def test_training_step_flops_match_hand_count(self):
        forward = self.flops(backward=False)
        weights = 2 * 2 * 15 * 2 * 2 * 8 * 64
        attention = 2 * 2 * 2 * 3 * 2 * 5 * 5 * 4
        # The gradient of a product's input costs as much as the product. A product of two
        # activations has two such gradients.
        self.assertEqual(self.flops(backward=True), 2 * forward + attention + weights)

    def test_only_first_counts_one_position_in_last_layer(self):
        whole = self.flops(backward=False) // 2  # Of one layer.
        dense = 2 * 8 * 8 + 2 * 8 * 16 + 2 * 2 * 8 * 64
        last = 15 * 2 * 8 * 8 + 3 * dense + 2 * 3 * 2 * 1 * 5 * 4
        self.assertEqual(self.flops(backward=False, only_first=True), whole + 2 * last)

    def test_products_are_distinct_with_consistent_shapes(self):
        for only_first in (False, True):
            products = workload.products(SIZES, 3, 5, backward=True, only_first=only_first)
            self.assertEqual(len(set(products)), len(products))
            shapes = {}
            for name, shape in (operand for p in products for operand in (p.left, p.right)):
                self.assertEqual(shapes.setdefault(name, shape), shape)
            for p in products:
                self.assertEqual(np.matmul(*(operand_of(p))).ndim, len(p.left[1]))

    def test_batch_has_no_padding(self):
        batch = workload.features(100, 2, 6)
        self.assertEqual({v.dtype for v in batch.values()}, {np.dtype(np.int32)})
        self.assertEqual({v.shape for v in batch.values()}, {(2, 6), (2,)})
        self.assertAllEqual(batch["input_mask"], np.ones([2, 6]))
        self.assertAllEqual(batch["segment_ids"], [[0, 0, 0, 1, 1, 1]] * 2)


def operand_of(product):
    """Returns zeros in the shapes that a product multiplies."""
    left, right = np.zeros(product.left[1]), np.zeros(product.right[1])
    left = np.swapaxes(left, -1, -2) if product.transpose_left else left
    return left, np.swapaxes(right, -1, -2) if product.transpose_right else right


class PlainBertTest(tf.test.TestCase):
    """The plain model has the same variables, loss and gradients as ours."""

    def outputs(self, build, values=None):
        """Returns (loss, probabilities, gradients by name, variables by name)."""
        arrays = tiny.arrays(rows=4)
        with tf.Graph().as_default(), tf.Session() as session:
            features = {name: tf.constant(rows) for name, rows in arrays.items()}
            loss, probabilities = build(features)
            variables = {v.op.name: v for v in tf.global_variables()}
            if values is None:
                random = np.random.RandomState(3)
                values = {n: random.normal(0.5, 0.3, v.shape) for n, v in variables.items()}
            tiny.load(session, variables.values(), [values[name] for name in variables])
            trained = plain_bert.trained_variables()
            gradients = dict(zip((v.op.name for v in trained), tf.gradients(loss, trained)))
            return session.run((loss, probabilities, gradients, variables))

    @staticmethod
    def ours(features):
        loss, _, _, probabilities = run_classifier.create_model(
            tiny.config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
            False,
            features["input_ids"],
            features["input_mask"],
            features["segment_ids"],
            features["label_ids"],
            2,
            False,
            scope="bert",
        )
        return loss, probabilities

    def test_plain_loss_and_gradients_equal_ours(self):
        *ours, values = self.outputs(self.ours)
        plain = self.outputs(lambda features: plain_bert.classifier(SIZES, features, 0.0), values)
        self.assertEqual(set(plain[3]), set(values))
        self.assertLen(ours[2], 8 * 2 + 2 * (2 * 2 + 1) + 2)
        for expected, found in zip(ours, plain):
            self.assertAllClose(found, expected, rtol=1e-4, atol=1e-5)

    def test_plain_training_step_matches_hand_computed_adam(self):
        # The first step of Adam without bias correction, by hand, for a gradient below the clip.
        with tf.Graph().as_default(), tf.Session() as session:
            kernel = tf.get_variable("bert/adapters/w", initializer=[2.0, -1.0])
            frozen = tf.get_variable("bert/kernel", initializer=[1.0])
            loss = tf.reduce_sum(kernel * [0.3, 0.4]) + tf.reduce_sum(frozen)
            step = plain_bert.train_op(loss, 0.1)
            session.run(tf.global_variables_initializer())
            session.run(step)
            g = np.array([0.3, 0.4])
            update = 0.1 * g / (np.sqrt(0.001) * g + 1e-6) + 0.01 * np.array([2.0, -1.0])
            self.assertAllClose(session.run(kernel), [2.0, -1.0] - 0.1 * update)
            self.assertAllEqual(session.run(frozen), [1.0])
            self.assertEqual(session.run(tf.train.get_global_step()), 1)

    def test_plain_training_applies_dropout(self):
        losses = set()
        with tf.Graph().as_default(), tf.Session() as session:
            features = {name: tf.constant(rows) for name, rows in tiny.arrays(rows=4).items()}
            loss, _ = plain_bert.classifier(SIZES, features)
            session.run(tf.global_variables_initializer())
            for _ in range(3):
                losses.add(float(session.run(loss)))
        self.assertGreater(len(losses), 1)

    def test_plain_features_equal_ours(self):
        folder = tiny.write_bert(tempfile.mkdtemp(dir=self.get_temp_dir()))
        vocab_file = os.path.join(folder, "vocab.txt")
        tokenizer = tokenization.FullTokenizer(vocab_file)
        long = "the big dog sees a small cat and"
        rows = [("the dog", "a cats .", 1), (long, "not " + long, 0), (long, "old", 1)]
        features = run_classifier.convert_examples_to_features(
            [run_classifier.InputExample(str(i), a, b, str(c)) for i, (a, b, c) in enumerate(rows)],
            ["0", "1"],
            12,
            tokenizer,
        )
        vocab = plain_tokenizer.load_vocab(vocab_file)
        arrays = plain_mrpc.features_of(rows, vocab, 12)
        for name in ("input_ids", "input_mask", "segment_ids"):
            self.assertAllEqual(arrays[name], [getattr(f, name) for f in features])
        self.assertAllEqual(arrays["label_ids"], [1, 0, 1])

    def test_learning_rate_rises_then_falls(self):
        rates = [plain_mrpc.rate_at(step, 20) / workload.LEARNING_RATE for step in range(20)]
        self.assertAllClose(rates[:4], [0, 0.5, 0.9, 0.85])
        self.assertAllClose(rates[-1], 0.05)


class PlainTokenizerTest(tf.test.TestCase):
    TEXTS = (
        "",
        "The dogs, a CAT!",
        "Ünder\tthe\u00a0bird\r\n\u4e2d\u6587and\u2014so",
        "zero\u200bwidth \x00 \ufffd $5+5=^10^ `x`",
        "a" * 201 + " " + "\u0130stanbul \u1e9e \U0001f600",
    )

    def test_plain_tokens_match_full_tokenizer(self):
        folder = tiny.write_bert(tempfile.mkdtemp(dir=self.get_temp_dir()))
        vocab_file = os.path.join(folder, "vocab.txt")
        tokenizer = tokenization.FullTokenizer(vocab_file)
        vocab = plain_tokenizer.load_vocab(vocab_file)
        self.assertEqual(vocab, dict(tokenizer.vocab))
        for text in self.TEXTS:
            tokens = plain_tokenizer.tokenize(text, vocab)
            self.assertEqual(tokens, tokenizer.tokenize(text))
            words = plain_tokenizer.words_of(text)
            self.assertEqual(words, tokenizer.basic_tokenizer.tokenize(text))

    def test_plain_tokens_match_original_goldens(self):
        data = os.environ.get("ADAPTER_BERT_DATA")
        if not data:
            self.skipTest("Needs the original's tokens ($ADAPTER_BERT_DATA).")
        vocab = plain_tokenizer.load_vocab(
            os.path.join(data, "checkpoints", "minilm-l6-uncased", "vocab.txt")
        )
        path = os.path.join(data, "goldens", "tokenization_public.jsonl.gz")
        with gzip.open(path, "rt", encoding="utf-8") as reader:
            rows = [json.loads(line) for line in reader]
        self.assertGreater(len(rows), 100)
        for row in rows:
            self.assertEqual(plain_tokenizer.tokenize(row["text"], vocab), row["uncased"])


class OwnModelTest(tf.test.TestCase):
    def test_timed_step_trains_and_forward_pass_does_not(self):
        import own_model

        settings = own_model.settings(dict(SIZES, max_position_embeddings=128), "float32")
        for work in ("step", "forward"):
            with tf.Graph().as_default():
                run = own_model.build(settings, work)
                results = [run() for _ in range(3)]
                trained = [v for v in tf.global_variables() if "adam_m" in v.op.name]
            if work == "forward":
                self.assertAllClose(np.sum(results[0], axis=1), np.ones(workload.BATCH_SIZE))
                self.assertAllEqual(results[0], results[2])
            else:
                self.assertNotEqual(results[0][0], results[2][0])
            self.assertEqual(bool(trained), work == "step")


class StepTest(tf.test.TestCase):
    def test_share_uses_fastest_bfloat16_floor_of_same_work(self):
        import step

        timings = [
            timing("floor, bfloat16, TensorFlow", 3.0, facts={"flops": 6e9}),
            timing("floor, bfloat16, TensorFlow, [CLS] only", 1.0),
            timing("floor, float32, TensorFlow", 2.0),
            timing("floor, bfloat16, PyTorch", 2.5),
            timing("PyTorch adapters, bfloat16", 5.0),
            timing(step._OURS, 5.0),
        ]
        lines = step.describe(timings, [])
        self.assertIn("- floor, bfloat16, TensorFlow: 6 GFLOP at 2 GFLOP/s", lines)
        shares = {cells(line)[0]: cells(line)[4] for line in lines[2:8]}
        self.assertEqual(shares["PyTorch adapters, bfloat16"], "50%")
        self.assertEqual(shares[step._OURS], "20%")
        self.assertEqual(shares["floor, bfloat16, TensorFlow, [CLS] only"], "100%")


class ArgumentsTest(tf.test.TestCase):
    def refusal(self, main, *arguments):
        said = io.StringIO()
        given = mock.patch.object(sys, "argv", ["script", *arguments])
        with given, contextlib.redirect_stderr(said), self.assertRaises(SystemExit):
            main()
        return said.getvalue()

    def test_bert_dir_defaults_to_the_demo_folder(self):
        import squad_reading

        root = tempfile.mkdtemp(dir=self.get_temp_dir())
        demo = os.path.join(root, "demo", "bert")
        with mock.patch.object(harness, "ROOT", root), mock.patch.dict(os.environ):
            os.environ.pop("BERT_BASE_DIR", None)
            said = self.refusal(squad_reading.main, "--squad_file=squad.json")
        self.assertIn(f"--bert_dir={demo}: there is no vocab.txt in it", said)

    def test_glue_dir_is_required_only_for_glue_tasks(self):
        import epoch
        import int8_scores

        bert = "--bert_dir=" + tiny.write_bert(tempfile.mkdtemp(dir=self.get_temp_dir()))
        needs_no_glue = [bert, "--squad=adapter", "--squad_file=dev.json", "--results="]
        printed = io.StringIO()
        with mock.patch.dict(os.environ):
            os.environ.pop("GLUE_DIR", None)
            for main, flag in (
                (epoch.main, f"--peers={sys.executable}"),
                (int8_scores.main, "--cola=x"),
            ):
                self.assertIn("error: set --glue_dir or $GLUE_DIR.", self.refusal(main, bert, flag))
            with mock.patch.object(sys, "argv", ["script", *needs_no_glue]), mock.patch.multiple(
                int8_scores, Predictor=mock.DEFAULT, squad_f1=lambda *_: 0.5
            ), contextlib.redirect_stdout(printed):
                int8_scores.main()
        self.assertIn("| SQuAD | 50.0 | 50.0 | +0.0 |", printed.getvalue())


class ServingTest(tf.test.TestCase):
    def test_failed_requests_abort_the_benchmark(self):
        import serving

        report = {"requests": 9, "seconds": 1.0, "p50": 0.1, "p99": 0.2, "failed": 9}
        done = argparse.Namespace(stdout=json.dumps(report))
        with mock.patch.object(subprocess, "run", lambda *given, **options: done):
            with self.assertRaisesRegex(SystemExit, "8 clients: 9 requests failed"):
                serving.load("http://localhost:1", os.getpid(), 8, "requests")
            done.stdout = json.dumps({**report, "failed": 0})
            report = serving.load("http://localhost:1", os.getpid(), 8, "requests")
        row = serving.row_of(8, "a server", [report])
        self.assertEqual(row[:-1], ["8", "a server", "9.0", "100 ms", "200 ms"])


class StepsTest(tf.test.TestCase):
    def test_short_training_has_same_steps_for_any_data_size(self):
        import epoch

        for rows in (24, 408, 3668):
            glue = tempfile.mkdtemp(dir=self.get_temp_dir())
            tiny.write_mrpc(os.path.join(glue, "MRPC"), rows)
            name, epochs = epoch.epochs_flag(glue, 3).split("=")
            config = FinetuningConfig(**{name.lstrip("-"): float(epochs)})
            self.assertEqual(config.schedule(rows)["num_train_steps"], 3, rows)


@pytest.mark.slow
class TracedTest(tf.test.TestCase):
    def test_marks_follow_the_order_of_a_run(self):
        import startup

        bert = tiny.write_bert(tempfile.mkdtemp(dir=self.get_temp_dir()))
        glue = tempfile.mkdtemp(dir=self.get_temp_dir())
        tiny.write_mrpc(os.path.join(glue, "MRPC"))
        import epoch

        contestant = epoch.ours("ours", glue, bert, "--max_seq_length=16", "--train_batch_size=8")
        (result,) = harness.take_turns_whole([contestant], 1)
        (marks,) = result.facts["marks"]
        names = [mark["name"] for mark in marks]
        self.assertEqual(names.count("step"), 3)
        self.assertEqual(re.sub("(step )+", "step ", " ".join(names) + " ").split()[-1], "end")
        self.assertTrue(all(seconds > 0 for seconds in startup.phases(marks)))
