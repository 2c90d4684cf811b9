"""Cleans texts that come from files before they are shown in a terminal, a log or a page."""

import re

# Of Markdown and HTML; an underscore inside a word is none.
_MARKUP = re.compile(r"[\\|<>`*~&#\[\]]|(?<!\w)_|_(?!\w)")


def one_line(text):
    """Returns a text on one line, with other characters than printable ones escaped.

    Escaped are a terminal's control sequences and Unicode's controls of the writing direction.
    """
    first, *others = text.splitlines() or [""]
    line = " ".join([first.rstrip(), *map(str.strip, others)])
    if not line.isprintable():
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return line


def markdown(text):
    """Returns a text on one line of a Markdown page or table, with Markdown and HTML escaped."""
    return _MARKUP.sub(r"\\\g<0>", one_line(text))
