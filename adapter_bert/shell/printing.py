"""Cleans what comes from files before it is shown in a terminal, a log or a page."""

import re

# Of Markdown and HTML; an underscore inside a word is none.
_MARKUP = re.compile(r"[\\|<>`*~&#\[\]]|(?<!\w)_|_(?!\w)")


def one_line(text: str) -> str:
    """Returns a text on one line, with other characters than printable ones escaped.

    Escaped are a terminal's control sequences and Unicode's controls of the writing direction.
    """
    first, *others = text.splitlines() or [""]
    line = " ".join([first.rstrip(), *map(str.strip, others)])
    if not line.isprintable():
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return line


def shorten(text: str, width: int) -> str:
    """Returns a text on one line of at most `width` characters; a longer one ends in "…"."""
    # Escapes make a text longer, and a megabyte of it need not be escaped.
    line = one_line(" ".join(text[: 2 * width].split()))
    return line if len(line) <= width and len(text) <= 2 * width else line[: width - 1] + "…"


def score(value: float) -> str:
    """Returns a score with four decimals; one that is huge, of a damaged file, with four digits."""
    return f"{value:.4f}" if abs(value) < 1e15 else f"{value:.4g}"


def markdown(text: str) -> str:
    """Returns a text on one line of a Markdown page or table, with Markdown and HTML escaped."""
    return _MARKUP.sub(r"\\\g<0>", one_line(text))
