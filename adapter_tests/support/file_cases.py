"""Test cases for readers of files, and their hypothesis settings."""

import os
import tempfile

import hypothesis

import tokenization
from adapter_bert.tasks.text import classifier_features
from adapter_tests.support import tiny
from adapter_tests.support.refusals import RefusalTestCase


class FileTestCase(RefusalTestCase):
    """Writes files into a folder of the test."""

    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as stream:
            stream.write(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path


many = hypothesis.settings(max_examples=200, deadline=None, database=None, derandomize=True)


def as_tuples(examples):
    return [(e.guid, e.text_a, e.text_b, e.label) for e in examples]


def tiny_tokenizer():
    """Returns a `tokenization.FullTokenizer` with `tiny.VOCABULARY`."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "vocab.txt")
        with open(path, "w") as writer:
            writer.write("\n".join([*tiny.VOCABULARY, ""]))
        return tokenization.FullTokenizer(path)


def make_features(processor, split, folder, tokenizer):
    """Computes the features of a split, as training and prediction do."""
    examples = processor.get_examples(split, folder)
    classifier_features.add_rows(
        examples, processor.get_labels(), 16, tokenizer, lambda arrays: None
    )
