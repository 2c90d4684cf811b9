"""Checks of user errors."""

import tensorflow.compat.v1 as tf

from adapter_bert.shell.errors import UserError


class RefusalTestCase(tf.test.TestCase):
    def assert_refused(self, parts, function, *args, **kwargs):
        """Checks that a call raises a one-sentence UserError with all parts; returns the error."""
        with self.assertRaises(UserError) as caught:
            function(*args, **kwargs)
        self.assert_one_sentence(caught.exception, *parts)
        return caught.exception

    def assert_one_sentence(self, error, *parts):
        """Checks that an error is one sentence with all parts."""
        message = str(error)
        for part in parts:
            self.assertIn(part, message)
        self.assertTrue(message.endswith("."), message)
        self.assertNotIn("\n", message)
