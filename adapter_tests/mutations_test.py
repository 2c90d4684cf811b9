"""Tests of support/mutations.py: which readers pass its check, and which fail it."""

import time
from unittest import mock

import tensorflow.compat.v1 as tf

from adapter_bert.shell.errors import UserError
from adapter_tests.support import mutations

CONTENTS = {"a.json": b'{"a": [1, 2, {"b": "c"}]}', "b.tsv": b"1\t2\n3\t4\n"}


def on_damage(action):
    """Returns a reader that calls action() unless the files are the valid ones."""

    def read(folder):
        if mutations.files_in(folder) != CONTENTS:
            action()

    return read


def raising(error):
    def action():
        raise error

    return on_damage(action)


class CheckTest(tf.test.TestCase):
    def test_refusals_that_name_the_file_pass(self):
        mutations.check(CONTENTS, raising(UserError("a.json: no.")))
        mutations.check(CONTENTS, raising(UserError("--flag: no.")), ("--flag",))
        mutations.check(CONTENTS, lambda folder: None, refuses=False)

    def test_vague_refusals_errors_and_overuse_fail(self):
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
