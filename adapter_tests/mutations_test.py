"""Tests of support/mutations.py: what passes its property, and what fails it."""

import time
from unittest import mock

import tensorflow.compat.v1 as tf

from adapter_bert.common.errors import UserError
from adapter_tests.support import mutations

CONTENTS = {"a.json": b'{"a": [1, 2, {"b": "c"}]}', "b.tsv": b"1\t2\n3\t4\n"}


def on_damage(action):
    """Returns a reader that calls action() for all but the valid files."""

    def read(folder):
        if mutations.files_in(folder) != CONTENTS:
            action()

    return read


def raising(error):
    def action():
        raise error

    return on_damage(action)


class CheckTest(tf.test.TestCase):
    def test_one_sentence_that_names_the_file_passes(self):
        mutations.check(CONTENTS, raising(UserError("a.json: no.")))
        mutations.check(CONTENTS, raising(UserError("--flag: no.")), ("--flag",))
        mutations.check(CONTENTS, lambda folder: None, refuses=False)

    def test_all_else_fails(self):
        for read, pattern in (
            (raising(UserError("no.")), "no name of"),
            (lambda folder: None, "no damage was refused"),
            (lambda folder: mutations.files_in(folder)["c"], "'c'"),
            (raising(KeyError("x")), "x"),
        ):
            with self.assertRaisesRegex((AssertionError, KeyError), pattern):
                mutations.check(CONTENTS, read)
        with mock.patch.object(mutations, "_MAX_SECONDS", 1), self.assertRaisesRegex(
            AssertionError, "not read within 1 seconds"
        ):
            mutations.refusal(CONTENTS, lambda folder: time.sleep(10))
        with mock.patch.object(mutations, "_MAX_BYTES", 0), self.assertRaisesRegex(
            AssertionError, "took"
        ):
            mutations.refusal(CONTENTS, lambda folder: None)
