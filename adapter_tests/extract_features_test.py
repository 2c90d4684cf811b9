"""Tests of extract_features.py: compares its numbers with BERT in NumPy, and checks its files."""

import contextlib
import glob
import io
import json
import os
import stat
import tempfile
import unittest
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import extract_features
import modeling
import tokenization
import tuning
from adapter_bert.features import encoder_features, feature_files
from adapter_bert.formats import adapter_checkpoints, task_adapter
from adapter_bert.ops import devices
from adapter_bert.shell import environment, errors, tf_estimator
from adapter_tests.support import command_lines, task_adapters, tiny
from adapter_tests.support.numpy_bert import numpy_bert

pytestmark = pytest.mark.without_xla

LAYERS = 4
TEXTS = ["the dog sees a cat .", "A BIRD ||| the man hears not the bird .", "dogs"]
TEXTS += ["the small dog likes the big old cat and the young woman hears " * 3, "big ||| old ||| a"]


class ExtractionTestCase(tf.test.TestCase):
    """Sets up a BERT of 4 layers whose outputs differ from token to token."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.root = tempfile.mkdtemp(dir=tf.test.get_temp_dir())
        cls.bert = tiny.write_bert(
            os.path.join(cls.root, "bert"), num_hidden_layers=LAYERS, initializer_range=0.4
        )
        cls.prefix = os.path.join(cls.bert, "bert_model.ckpt")
        cls.config = tiny.config(num_hidden_layers=LAYERS)
        cls.tokenizer = tokenization.FullTokenizer(os.path.join(cls.bert, "vocab.txt"))
        reader = tf.train.load_checkpoint(cls.prefix)
        names = reader.get_variable_to_shape_map()
        cls.values = {name: reader.get_tensor(name) for name in names}

    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.root)
        self.flags = [
            "--bert_config_file=" + os.path.join(self.bert, "bert_config.json"),
            "--vocab_file=" + os.path.join(self.bert, "vocab.txt"),
            "--init_checkpoint=" + self.prefix,
            "--input_file=" + self.path("input.txt"),
            "--max_seq_length=16",
        ]

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, content, name="input.txt"):
        if isinstance(content, list):
            content = "".join(line + "\n" for line in content)
        with open(self.path(name), "wb") as writer:
            writer.write(content if isinstance(content, bytes) else content.encode("utf-8"))
        return self.path(name)

    def call(self, *arguments):
        """Runs the script; returns (exit code, report, stderr)."""
        report = []
        values = command_lines.parsed(extract_features.define_flags, *self.flags, *arguments)
        environment.silence_tensorflow()
        out = contextlib.redirect_stdout(io.StringIO())
        with contextlib.redirect_stderr(io.StringIO()) as stderr, out:
            code = errors.exit_code(lambda: report.extend(extract_features.run(values)))
        return code, "\n".join(report), stderr.getvalue()

    def extract(self, name, *arguments):
        """Runs the script, which must succeed; returns the path of its output."""
        code, report, stderr = self.call("--output_file=" + self.path(name), *arguments)
        self.assertIsNone(code, stderr)
        self.assertIn(self.path(name), report)
        self.assertEqual(glob.glob(self.path("*.partial")), [])
        return self.path(name)

    def refuse(self, parts, *arguments, name="out.jsonl"):
        """Runs the script, which must end with one sentence with all parts, and write no file."""
        before = sorted(os.listdir(self.folder))
        code, _, stderr = self.call("--output_file=" + self.path(name), *arguments)
        self.assertEqual(code, 1)
        self.assertRegex(stderr, r"\AError: [^\n]+\.\n\Z")
        for part in parts:
            self.assertIn(part, stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    def lines(self, *arguments):
        """Runs the script; returns the objects of the JSON lines that it writes."""
        with open(self.extract("out.jsonl", *arguments)) as reader:
            return [json.loads(line) for line in reader]

    def tokens_of(self, text, length=16):
        """Returns (tokens, segment ids) as Devlin et al. describe them."""
        a, _, b = text.strip().rpartition(" ||| ") if " ||| " in text else (text, "", "")
        a, b = self.tokenizer.tokenize(a), self.tokenizer.tokenize(b)
        while len(a) + len(b) > length - (3 if b else 2):
            (a if len(a) > len(b) else b).pop()
        first, second = ["[CLS]", *a, "[SEP]"], [*b, "[SEP]"] if b else []
        return first + second, [0] * len(first) + [1] * len(second)

    def expected(self, text, layers=(-1, -2, -3, -4), tensors=None, adapters=False, length=16):
        """Returns (tokens, array [T, L, D]) of a single text, computed by NumPy."""
        tokens, segments = self.tokens_of(text, length)
        ids = np.array([self.tokenizer.convert_tokens_to_ids(tokens)])
        outputs = []
        for layer in layers:
            # A layer has the output of a BERT that ends with this layer.
            config = tiny.config(num_hidden_layers=layer % LAYERS + 1)
            values = {**self.values, **(tensors or {})}
            values = {name: np.asarray(value, np.float64) for name, value in values.items()}
            mask, segment_ids = np.ones_like(ids), np.array([segments])
            outputs.append(numpy_bert(values, config, ids, mask, segment_ids, adapters)[0][0])
        return tokens, np.stack(outputs, 1)

    def adapter(self, seed=3, **changes):
        """Saves a random task adapter of the BERT; returns (folder, tensors)."""
        description = task_adapters.description(
            **{
                "backbone": adapter_checkpoints.backbone_of(self.prefix, self.config),
                "vocabulary": task_adapter.digest(self.tokenizer.vocab),
                **changes,
            }
        )
        random = np.random.RandomState(seed)
        tensors = {
            name: random.normal(0, 0.5, shape).astype(np.float32)
            for name, shape in task_adapter.shapes(description).items()
        }
        folder = self.path("adapter")
        task_adapter.save(folder, task_adapter.TaskAdapter(description, tensors))
        return folder, tensors


class NumbersTest(ExtractionTestCase):
    def check(self, lines, texts, layers=(-1, -2, -3, -4), **options):
        self.assertEqual([line["linex_index"] for line in lines], list(range(len(texts))))
        for line, text in zip(lines, texts):
            tokens, outputs = self.expected(text, layers, **options)
            self.assertEqual([each["token"] for each in line["features"]], tokens)
            for each, of_token in zip(line["features"], outputs):
                self.assertEqual([layer["index"] for layer in each["layers"]], list(layers))
                found = [layer["values"] for layer in each["layers"]]
                self.assertAllClose(found, of_token, rtol=0, atol=1e-5)

    def test_json_lines_match_numpy(self):
        self.write(TEXTS)
        self.check(self.lines(), TEXTS)

    def test_values_have_six_decimals(self):
        self.write(TEXTS[:1])
        (line,) = self.lines()
        values = [v for f in line["features"] for layer in f["layers"] for v in layer["values"]]
        self.assertEqual(values, [round(value, 6) for value in values])
        self.assertGreater(len(set(values)), 200)

    def test_layers_are_written_in_the_requested_order(self):
        self.write(TEXTS)
        self.check(self.lines("--layers=0,-4,3, 2"), TEXTS, (0, -4, 3, 2))

    def test_one_hot_embeddings_and_shorter_length_match_numpy(self):
        self.write(TEXTS)
        lines = self.lines("--use_one_hot_embeddings", "--max_seq_length=9", "--layers=-1")
        self.check(lines, TEXTS, (-1,), length=9)

    def test_adapter_outputs_match_numpy(self):
        folder, tensors = self.adapter()
        self.write(TEXTS)
        lines = self.lines("--adapter=" + folder, "--layers=-1,-3")
        self.check(lines, TEXTS, (-1, -3), tensors=tensors, adapters=True)
        plain = self.expected(TEXTS[0])[1]
        with_it = self.expected(TEXTS[0], tensors=tensors, adapters=True)[1]
        self.assertGreater(np.abs(plain - with_it).max(), 0.1)

    def test_outputs_without_adapters_match_numpy(self):
        self.write(TEXTS)
        for method in ("full", "head"):
            folder, tensors = self.adapter(tuning=tuning.Tuning(method), adapter=None)
            self.check(self.lines("--adapter=" + folder), TEXTS, tensors=tensors)

    def test_span_adapter_supplies_max_seq_length(self):
        folder, tensors = self.adapter(kind="span", labels=(), max_seq_length=11)
        self.write(TEXTS)
        self.flags.remove("--max_seq_length=16")
        lines = self.lines("--adapter=" + folder)
        self.check(lines, TEXTS, tensors=tensors, adapters=True, length=11)

    def test_outputs_do_not_depend_on_order_or_batch_size(self):
        random = np.random.RandomState(0)
        texts = [tiny.sentence(random) for _ in range(75)]
        texts[40] = TEXTS[3]
        self.write(texts)
        found = self.lines("--batch_size=32", "--layers=-1")
        for size in (1, 7):
            again = self.lines(f"--batch_size={size}", "--layers=-1")
            self.assert_same(again, found)
        with mock.patch.object(encoder_features, "_MAX_WAITING_BYTES", 1):
            self.assert_same(self.lines("--batch_size=4", "--layers=-1"), found)
        order = random.permutation(len(texts))
        self.write([texts[index] for index in order])
        self.assert_same(self.lines("--layers=-1"), [found[index] for index in order])
        self.check([{**found[40], "linex_index": 0}], [texts[40]], (-1,))

    def assert_same(self, lines, others):
        self.assertEqual([line["linex_index"] for line in lines], list(range(len(others))))
        for line, other in zip(lines, others):
            tokens, expected = ([f["token"] for f in each["features"]] for each in (line, other))
            self.assertEqual(tokens, expected)
            values, expected = (
                [f["layers"][0]["values"] for f in each["features"]] for each in (line, other)
            )
            self.assertAllClose(values, expected, rtol=0, atol=1e-5)

    def test_pooled_features_match_numpy_in_every_format(self):
        self.write(TEXTS)
        for pooling in ("cls", "mean"):
            lines = self.lines("--pooling=" + pooling)
            array = np.load(self.extract("out.npy", "--pooling=" + pooling))
            archive = np.load(self.extract("out.npz", "--pooling=" + pooling))
            self.assertEqual(array.shape, (5, 4, 8))
            self.assertEqual(array.dtype, np.float32)
            self.assertAllEqual(archive["features"], array)
            self.assertAllEqual(archive["layers"], [-1, -2, -3, -4])
            self.assertEqual(set(archive), {"features", "layers"})
            for index, (line, text) in enumerate(zip(lines, TEXTS)):
                _, outputs = self.expected(text)
                expected = outputs[0] if pooling == "cls" else outputs.mean(0)
                self.assertEqual(line["linex_index"], index)
                self.assertEqual([each["index"] for each in line["layers"]], [-1, -2, -3, -4])
                found = [each["values"] for each in line["layers"]]
                self.assertAllClose(found, expected, rtol=0, atol=1e-5)
                self.assertAllClose(array[index], expected, rtol=0, atol=1e-5)

    def test_npz_archive_has_the_features_of_all_tokens(self):
        self.write(TEXTS)
        archive = np.load(self.extract("out.npz", "--batch_size=2"))
        self.assertEqual(set(archive), {"features", "layers", "starts", "token_ids"})
        starts = archive["starts"]
        self.assertEqual(starts[-1], len(archive["features"]))
        for text, start, end in zip(TEXTS, starts, starts[1:]):
            tokens, outputs = self.expected(text)
            ids = archive["token_ids"][start:end]
            self.assertEqual(self.tokenizer.convert_ids_to_tokens(ids), tokens)
            self.assertAllClose(archive["features"][start:end], outputs, rtol=0, atol=1e-5)

    @unittest.skipIf(tf.__version__.startswith("1."), "TensorFlow 1 has no ram://")
    def test_remote_archive_equals_local_archive(self):
        self.write(TEXTS)
        local = np.load(self.extract("out.npz"))
        remote = "ram://extract_features_test/out.npz"
        code, _, stderr = self.call("--output_file=" + remote)
        self.assertIsNone(code, stderr)
        with tf.io.gfile.GFile(remote, "rb") as reader:
            archive = np.load(io.BytesIO(reader.read()))
        self.assertAllEqual(archive["features"], local["features"])
        self.refuse(["ram://nothing/x", "cannot be read"], "--input_file=ram://nothing/x")

    def test_features_are_written_while_texts_are_read(self):
        """The first lines are written before the last texts are read."""
        self.write(TEXTS * 100)
        read, written = [], []
        of_features, write = feature_files._features_of, feature_files.FeatureWriter.write

        def note_read(*args):
            read.append(1)
            return of_features(*args)

        def note_written(*args):
            written.append(len(read))
            write(*args)

        reading = mock.patch.object(feature_files, "_features_of", note_read)
        with reading, mock.patch.object(feature_files.FeatureWriter, "write", note_written):
            self.extract("out.npy", "--pooling=cls", "--batch_size=1")
        self.assertLen(written, 500)
        self.assertLess(written[0], 100)
        self.assertLess(max(now - index for index, now in enumerate(written)), 100)


class RefusalsTest(ExtractionTestCase):
    def test_invalid_input_files_are_refused(self):
        self.refuse(["--input_file", "input.txt", "No such file"])
        for content, parts in (
            (b"", ["empty"]),
            (b"a dog\n\n", ["line 2", "blank"]),
            (b" \t\r\na dog\n", ["line 1", "blank"]),
            (b"a dog\na c\0t\n", ["line 2", "NUL"]),
            ("a dog\n".encode("utf-16"), ["line 1", "NUL"]),
            (b"a\nb\na caf\xe9\n", ["line 3", "UTF-8"]),
        ):
            self.write(content)
            self.refuse(["--input_file", "input.txt", *parts])
        os.remove(self.path("input.txt"))
        os.mkdir(self.path("input.txt"))
        self.refuse(["--input_file", "input.txt", "file"])

    def test_pairs_need_a_second_segment_id(self):
        bert = tiny.write_bert(self.path("one_type"), type_vocab_size=1)
        flags = ["--init_checkpoint=" + os.path.join(bert, "bert_model.ckpt"), "--layers=-1"]
        flags += ["--bert_config_file=" + os.path.join(bert, "bert_config.json")]
        self.write(["a dog", "a cat ||| sees the dog"])
        self.refuse(["input.txt", "text and text_b", "type_vocab_size 1"], *flags)
        self.write(["a dog", "a cat"])
        self.extract("out.jsonl", *flags)

    def test_invalid_flags_are_refused(self):
        self.write(TEXTS)
        self.refuse(["--layers", "no layer -5", "-4 to -1", "0 to 3"], "--layers=-1,-5")
        self.refuse(["--layers", "no layer 4"], "--layers=4")
        for layers in ("", "a", "1,,2", "1-3", "1.5"):
            self.refuse([f"--layers={layers}:", "-1,-2"], "--layers=" + layers)
        self.refuse(["--max_seq_length=3"], "--max_seq_length=3")
        self.refuse(["--max_seq_length=41"], "--max_seq_length=41")
        self.refuse([".npz", "--pooling=cls"], name="out.npy")
        self.refuse(["--input_file is required"], "--input_file=")
        self.refuse(["--output_file is required"], "--output_file=")
        self.refuse(["--input_file"], "--output_file=" + self.path("input.txt"))

    def test_checkpoint_with_adapters_is_refused_as_plain_bert(self):
        self.write(TEXTS)
        folder, _ = self.adapter()
        prefix = self.path("full.ckpt")
        adapter_checkpoints.to_full_checkpoint(task_adapter.load(folder), self.prefix, prefix)
        self.refuse(["holds adapters", "task adapter"], "--init_checkpoint=" + prefix)

    def test_adapter_with_another_vocabulary_is_refused(self):
        self.write(TEXTS)
        folder, _ = self.adapter(vocabulary="0123456789abcdef")
        self.refuse(["--adapter", folder, "vocabulary"], "--adapter=" + folder)

    def test_non_finite_outputs_are_refused(self):
        self.write(TEXTS)
        folder, tensors = self.adapter()
        adapter = task_adapter.load(folder)
        name = f"bert/encoder/layer_{LAYERS - 1}/output/LayerNorm/beta"
        tensors = {**tensors, name: np.full_like(tensors[name], 3e38)}
        gamma = f"bert/encoder/layer_{LAYERS - 1}/output/LayerNorm/gamma"
        tensors[gamma] = np.full_like(tensors[gamma], 3e38)
        task_adapter.save(folder, adapter._replace(tensors=tensors))
        self.refuse(["line 1", "NaN or Inf"], "--adapter=" + folder)

    def test_input_that_changes_during_the_run_is_refused(self):
        init = feature_files.TextFile.__init__
        for content, part in (
            (b"a dog\n" * 40 + b"\0\n", "line 41: found a NUL"),
            (b"a dog\n" * 2, "had 3 lines, and now has"),
            (b"a dog\n" * 9, "had 3 lines, and now has"),
        ):
            path = self.write(b"a dog\n" * 3)

            def change(texts, *args, content=content):
                init(texts, *args)
                self.write(content)

            with mock.patch.object(feature_files.TextFile, "__init__", change):
                self.refuse([path, part], "--pooling=cls", name="out.npy")

    def test_failed_run_keeps_the_existing_output_file(self):
        self.write(TEXTS)
        path = self.extract("out.jsonl", "--pooling=cls")
        with open(path) as reader:
            before = reader.read()
        full = OSError(28, "No space left on device")
        with mock.patch.object(feature_files._JsonLines, "write", side_effect=[None, None, full]):
            self.refuse([f"--output_file={path} cannot be written (No space left"])
        with open(path) as reader:
            self.assertEqual(reader.read(), before)

    def test_unwritable_output_paths_are_refused(self):
        self.write(TEXTS)
        os.mkdir(self.path("folder"))
        os.mkfifo(self.path("pipe"))
        for name, reason in (
            ("input.txt/out", " cannot be written ("),
            ("folder", "folder cannot be written (it is a folder"),
            ("pipe", "pipe cannot be written (it is no regular"),
        ):
            self.refuse(["--output_file=", reason], name=name)
        self.assertTrue(stat.S_ISFIFO(os.stat(self.path("pipe")).st_mode))

    def test_full_temporary_folder_is_named(self):
        self.write(TEXTS)
        full = mock.Mock(write=mock.Mock(side_effect=OSError(28, "No space left on device")))
        begin = feature_files._Archive.__init__

        def begin_on_full_disk(self, *arguments):
            begin(self, *arguments)
            self._values.close()
            self._values = full

        with mock.patch.object(feature_files._Archive, "__init__", begin_on_full_disk):
            self.refuse(["/features cannot be written (No space left"], name="out.npz")

    def test_invalid_tpu_settings_are_refused(self):
        self.write(TEXTS)
        with mock.patch.object(devices, "find_tpu", lambda *args: (True, None)):
            parts = ["--batch_size=9", "8 replicas of --num_tpu_cores=8"]
            self.refuse(parts, "--batch_size=9", "--use_tpu")
        self.refuse(
            ["--output_file", "cannot read", "gs://"], "--use_tpu", "--tpu_name=grpc://1.2.3.4:1"
        )


class TextsTest(ExtractionTestCase):
    def test_bom_and_windows_line_endings_are_stripped(self):
        path = self.write(b"\xef\xbb\xbfa dog\r\nthe cat ||| \xc3\xa9 \r\nno end")
        found = [(e.unique_id, e.text_a, e.text_b) for e in extract_features.read_examples(path)]
        self.assertEqual(found, [(0, "a dog", None), (1, "the cat", "é"), (2, "no end", None)])

    def test_read_examples_returns_a_list(self):
        examples = extract_features.read_examples(self.write(TEXTS))
        self.assertLen(examples, len(TEXTS))
        self.assertEqual(examples[-1].unique_id, len(TEXTS) - 1)
        self.assertEqual([each.unique_id for each in examples[1:3]], [1, 2])
        examples.append(extract_features.InputExample(len(TEXTS), "a dog", None))
        self.assertLen(examples + examples[:1], len(TEXTS) + 2)

    def test_missing_output_folders_are_created(self):
        self.write(TEXTS)
        self.assertTrue(os.path.exists(self.extract("new/folder/out.jsonl")))


class BertFunctionsTest(ExtractionTestCase):
    def test_too_small_seq_length_is_refused(self):
        for text_b, length in ((None, 2), ("the cat sees", 3)):
            example = extract_features.InputExample(0, "the dog hears", text_b)
            convert = extract_features.convert_examples_to_features
            (features,) = convert([example], length, self.tokenizer)
            self.assertLen(features.input_ids, length)
            message = f"={length - 1} is too small; expected at least {length}"
            with self.assertRaisesRegex(errors.UserError, message):
                convert([example], length - 1, self.tokenizer)

    def test_original_bert_functions_match_numpy(self):
        path = self.write(TEXTS)
        examples = extract_features.read_examples(input_file=path)
        features = extract_features.convert_examples_to_features(
            examples=examples, seq_length=16, tokenizer=self.tokenizer
        )
        config = modeling.BertConfig.from_json_file(os.path.join(self.bert, "bert_config.json"))
        flags = {"use_tpu": False, "use_one_hot_embeddings": False}
        model_fn = extract_features.model_fn_builder(
            bert_config=config, init_checkpoint=self.prefix, layer_indexes=[-1, -2], **flags
        )
        run_config = tf_estimator.tpu.RunConfig()
        estimator = tf_estimator.tpu.TPUEstimator(
            use_tpu=False, model_fn=model_fn, config=run_config, predict_batch_size=2
        )
        input_fn = extract_features.input_fn_builder(features=features, seq_length=16)
        found = list(estimator.predict(input_fn, yield_single_examples=True))
        self.assertEqual([int(row["unique_id"]) for row in found], list(range(len(TEXTS))))
        for row, feature, text in zip(found, features, TEXTS):
            tokens, outputs = self.expected(text, (-1, -2))
            self.assertEqual(feature.tokens, tokens)
            for index in range(2):
                values = row[f"layer_output_{index}"][: len(tokens)]
                self.assertAllClose(values, outputs[:, index], rtol=0, atol=1e-5)
        with self.assertRaisesRegex(ValueError, "mode="):
            list(model_fn({}, None, tf_estimator.ModeKeys.TRAIN, {}))
