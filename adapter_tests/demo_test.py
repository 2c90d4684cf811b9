"""Tests of the demo's data and embedding module.

The data's labels must not be predictable from word overlap.
"""

import os
import re
import runpy
import subprocess
import sys
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from adapter_bert.paper.baseline import model
from adapter_bert.shell.errors import UserError
from adapter_tests.support import command_lines, tiny

DEMO = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "demo")
SPLITS = ("train", "dev", "test")


def read_bytes(*path):
    with open(os.path.join(*path), "rb") as stream:
        return stream.read()


def read_rows(split):
    """Returns the rows of a committed file without its header, each a list of five strings."""
    text = read_bytes(DEMO, "MRPC", split + ".tsv").decode("utf-8-sig")
    return [line.split("\t") for line in text.split("\n")[1:-1]]


def word_features(split):
    """Returns (features [N, 4], labels [N]) of a split.

    The features are jaccard, containment, length difference and number mismatch.
    """
    features, labels = [], []
    for label, _, _, one, other in read_rows(split):
        words = one.lower().split(), other.lower().split()
        first, second = set(words[0]), set(words[1])
        common = len(first & second)
        features.append(
            [
                common / len(first | second),
                common / min(len(first), len(second)),
                abs(len(words[0]) - len(words[1])),
                any(re.search(r"\d", word) for word in first ^ second),
            ]
        )
        labels.append(int(label))
    return np.array(features, np.float64), np.array(labels)


def best_threshold_accuracy(feature, labels):
    """Returns the accuracy of the best rule "at least t", or its opposite, fitted on these rows."""
    right = [np.mean((feature >= threshold) == labels) for threshold in np.unique(feature)]
    return max(right + [1 - share for share in right])


def logistic_regression(features, labels):
    """Returns the maximum-likelihood weights [F + 1], bias last, by Newton's method."""
    inputs = np.c_[features, np.ones(len(features))]
    weights = np.zeros(inputs.shape[1])
    for _ in range(20):
        probability = 1 / (1 + np.exp(-inputs @ weights))
        hessian = (inputs.T * probability * (1 - probability)) @ inputs
        weights += np.linalg.solve(hessian, inputs.T @ (labels - probability))
    return weights


@pytest.mark.slow
class GeneratorTest(tf.test.TestCase):
    def test_generator_reproduces_committed_files(self):
        output_dir = self.get_temp_dir()
        script = os.path.join(DEMO, "make_mrpc.py")
        subprocess.check_call([sys.executable, script, "--output_dir", output_dir])
        for split in SPLITS:
            name = split + ".tsv"
            self.assertEqual(read_bytes(output_dir, name), read_bytes(DEMO, "MRPC", name), name)


class OverlapTest(tf.test.TestCase):
    def test_no_pair_occurs_twice(self):
        pairs = [frozenset(row[3:]) for split in SPLITS for row in read_rows(split)]
        self.assertLen(set(pairs), len(pairs))

    def test_word_overlap_threshold_does_not_predict_labels(self):
        features, labels = word_features("dev")
        majority = max(np.mean(labels), 1 - np.mean(labels))
        for column in (0, 1):
            accuracy = best_threshold_accuracy(features[:, column], labels)
            self.assertLess(accuracy, majority + 0.1)

    def test_word_logistic_regression_does_not_predict_labels(self):
        weights = logistic_regression(*word_features("train"))
        features, labels = word_features("dev")
        scores = np.c_[features, np.ones(len(features))] @ weights
        majority = max(np.mean(labels), 1 - np.mean(labels))
        self.assertLess(np.mean((scores > 0) == labels), majority + 0.1)

    def test_both_labels_cover_low_and_high_word_overlap(self):
        features, labels = word_features("train")
        for label in (0, 1):
            jaccard = features[labels == label, 0]
            self.assertGreater(np.mean(jaccard < 0.25), 0.1)
            self.assertGreater(np.mean(jaccard > 0.6), 0.1)


class EmbeddingModuleTest(tf.test.TestCase):
    def run_script(self, *arguments):
        """Runs the script on a tiny BERT; returns (report, embeddings by word)."""
        bert = tiny.write_bert(tempfile.mkdtemp(dir=self.get_temp_dir()))
        script = runpy.run_path(os.path.join(DEMO, "embedding_module.py"))
        checkpoint = os.path.join(bert, "bert_model.ckpt")
        files = [
            f"--bert_config_file={bert}/bert_config.json",
            f"--vocab_file={bert}/vocab.txt",
            f"--init_checkpoint={checkpoint}",
        ]
        values = command_lines.parsed(script["define_flags"], *files, *arguments)
        table = tf.train.load_variable(checkpoint, "bert/embeddings/word_embeddings")
        return script["run"](values), dict(zip(tiny.VOCABULARY, table))

    def test_text_embedding_is_mean_of_word_embeddings(self):
        folder = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "module")
        report, table = self.run_script(f"--output_dir={folder}")
        self.assertEqual(report, [f"Module: {folder} ({len(table)} words, 8 wide)"])
        module = model.open_module(folder)
        texts = ["", "The dog", "big, (OLD) cat.", "unheard dog", ""]
        parts = [
            ["the", "dog"],
            ["big", "[UNK]", "[UNK]", "old", "[UNK]", "cat", "."],
            ["[UNK]", "dog"],
        ]
        expected = [np.mean([table[word] for word in some], 0) for some in parts]
        zeros = np.zeros(module.width)
        found = model.compute_embeddings(module, texts)
        self.assertAllClose(found, [zeros, *expected, zeros])

    def test_interrupted_export_leaves_no_module(self):
        folder = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "module")

        def begin(module, path, session):
            tf.io.gfile.makedirs(path)
            raise KeyboardInterrupt

        cut_short = mock.patch("tensorflow_hub.Module.export", begin)
        with cut_short, self.assertRaises(KeyboardInterrupt):
            self.run_script(f"--output_dir={folder}")
        self.assertEqual(os.listdir(os.path.dirname(folder)), [])

    def test_invalid_arguments_are_refused(self):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        vocabulary = os.path.join(folder, "vocab.txt")
        open(vocabulary, "w").close()
        new = os.path.join(folder, "new")
        for sentence, *arguments in (
            ("--output_dir is required",),
            (f"--output_dir={folder} already exists", f"--output_dir={folder}"),
            (f"{vocabulary}.*", f"--output_dir={new}", f"--vocab_file={vocabulary}"),
        ):
            with self.assertRaisesRegex(UserError, sentence):
                self.run_script(*arguments)
            self.assertFalse(os.path.exists(new))
