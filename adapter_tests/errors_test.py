"""Tests of errors.py: what ends a run."""

import contextlib
import io

import tensorflow.compat.v1 as tf

import errors


def raising(error):
    raise error


class ExitCodeTest(tf.test.TestCase):
    def call(self, main, *arguments):
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            code = errors.exit_code(main, *arguments)
        return code, stderr.getvalue()

    def test_success_is_what_main_returns(self):
        self.assertEqual(self.call(lambda: None), (None, ""))
        self.assertEqual(self.call(lambda code: code, 7), (7, ""))

    def test_a_user_error_is_one_sentence_and_1(self):
        for message, line in (
            ("a.tsv: is empty.", "Error: a.tsv: is empty.\n"),
            ("a.tsv: is empty", "Error: a.tsv: is empty.\n"),
            (
                "a.tsv: cannot be read (no host\n\t when reading a.tsv).",
                "Error: a.tsv: cannot be read (no host when reading a.tsv).\n",
            ),
            ("Did you mean: b ?", "Error: Did you mean: b ?\n"),
        ):
            self.assertEqual(self.call(raising, errors.UserError(message)), (1, line))

    def test_ctrl_c_is_130(self):
        self.assertEqual(self.call(raising, KeyboardInterrupt()), (130, "Interrupted.\n"))

    def test_a_bug_flies_on(self):
        for bug in (ValueError("v"), RuntimeError("r"), OSError("o")):
            with self.assertRaises(type(bug)):
                errors.exit_code(raising, bug)

    def test_callers_may_catch_a_value_error(self):
        with self.assertRaises(ValueError):
            raising(errors.UserError("a.tsv: is empty."))


if __name__ == "__main__":
    tf.test.main()
