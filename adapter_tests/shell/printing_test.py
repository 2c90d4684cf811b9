"""Tests of printing.py: texts from files, cleaned for a terminal and for a page."""

import tensorflow.compat.v1 as tf

from adapter_bert.shell import printing


class PrintingTest(tf.test.TestCase):
    def test_one_line_escapes_what_a_terminal_would_obey(self):
        for text, shown in (
            ("a\nb\u2028c\r\n", "a b c"),
            ("  adapters  64  ", "  adapters  64"),
            ("", ""),
            ("\x1b]0;title\x07\x1b[2J", "\\x1b]0;title\\x07\\x1b[2J"),
            ("\x9b31m\t\x08", "\\x9b31m\\t\\x08"),  # \x9b begins a control sequence, too.
            ("a\u202etxt.exe\u2066\u200f", "a\\u202etxt.exe\\u2066\\u200f"),
            ("naïve 狗 😀 C:\\new", "naïve 狗 😀 C:\\new"),
        ):
            self.assertEqual(printing.one_line(text), shown)
            self.assertEqual(printing.one_line(shown), shown)

    def test_markdown_escapes_markup_of_markdown_and_html(self):
        for text, shown in (
            ("<script>alert(1)</script>", "\\<script\\>alert(1)\\</script\\>"),
            ("a | b\n# c", "a \\| b \\# c"),
            ("![x](y) `z` **w** ~~v~~", "!\\[x\\](y) \\`z\\` \\*\\*w\\*\\* \\~\\~v\\~\\~"),
            ("feed_forward _x_ &lt;", "feed_forward \\_x\\_ \\&lt;"),
            ("\x1b[1m\\", "\\\\x1b\\[1m\\\\"),
        ):
            self.assertEqual(printing.markdown(text), shown)
