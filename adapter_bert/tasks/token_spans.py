"""Maps tokens to their characters, so that no text is searched for a token a second time."""

import functools
import unicodedata
from typing import Any, Iterable, Iterator, List, NamedTuple, Sequence, Set, Tuple

# Control characters, format characters and lone surrogates: SentencePiece's normalizers drop them,
# replace them by spaces or keep them.
_INVISIBLE_CATEGORIES = ("Cc", "Cf", "Cs")


class TokenSpans(NamedTuple):
    """The characters [start, end) of each token, in order; none for a space of SentencePiece."""

    starts: List[int]
    ends: List[int]


def token_to_chars(word: str, tokens: Sequence[str], tokenizer: Any) -> TokenSpans:
    """Returns the characters of a word that its tokens cover.

    An accent that the tokenizer drops belongs to the token of its letter.

    Args:
      word: str without blanks.
      tokens: list of the tokenizer's tokens of the word.
      tokenizer: `tokenization.FullTokenizer`; or an object without `basic_tokenizer`, whose tokens
        consist of the word's letters.
    """
    basic = getattr(tokenizer, "basic_tokenizer", None)
    ranges: Iterable[Tuple[int, int]]
    if basic is None:
        letters: Sequence[str] = [_visible_letters(char) for char in word]
        ranges = _find_in_order(map(_letters_of_token, tokens), "".join(letters))
    else:
        is_plain = word.isascii() and word.isprintable()  # Each character is one letter.
        if is_plain and len(tokens) == 1:  # Most words; the rest gives the same.
            return TokenSpans([0], [len(word)])
        letters = word if is_plain else [_basic_letters(char, basic) for char in word]
        lengths = list(map(len, basic.tokenize(word)))
        ranges = _wordpiece_ranges(tokens, lengths, tokenizer.wordpiece_tokenizer.unk_token)
    # Letter → its character, and the end of the text.
    char_of: Sequence[int] = range(len(word) + 1)
    if letters is not word:
        char_of = [index for index, each in enumerate(letters) for _ in each] + [len(word)]
    spans = TokenSpans([], [])
    for start, end in ranges:
        last = char_of[end - 1] + 1 if start < end else char_of[start]
        while last < len(word) and not letters[last] and unicodedata.category(word[last]) == "Mn":
            last += 1
        spans.starts.append(char_of[start])
        spans.ends.append(last)
    return spans


def _wordpiece_ranges(
    tokens: Sequence[str], word_lengths: Sequence[int], unknown: str
) -> Iterator[Tuple[int, int]]:
    """Yields each WordPiece's letters [start, end); `unknown` covers the rest of its basic word."""
    lengths = iter(word_lengths)
    start = word_end = 0
    for token in tokens:
        while word_end <= start:
            word_end += next(lengths)
        is_continuation = token.startswith("##") and len(token) > 2
        length = word_end - start if token == unknown else len(token) - 2 * is_continuation
        yield start, start + length
        start += length


def _find_in_order(tokens: Iterable[str], text: str) -> List[Tuple[int, int]]:
    """Returns the letters [start, end) of tokens, each found after the one before.

    Tokens that are not in the text, such as SentencePiece's bytes, cover the letters up to the next
    one that is.
    """
    ranges: List[Tuple[int, int]] = []
    absent: Set[str] = set()  # From here to the end of the text.
    end = 0
    for token in tokens:
        start = -1 if token in absent else text.find(token, end)
        if start < 0:
            absent.add(token)
            ranges.append((end, -1))
        else:
            end = start + len(token)
            ranges.append((start, end))
    following = len(text)
    for index, (start, end) in reversed(list(enumerate(ranges))):
        if end < 0:
            ranges[index] = start, following
        else:
            following = start
    return ranges


def _letters_of_token(token: str) -> str:
    token = token.replace("\u2581", "")
    token = token[2:] if token.startswith("##") and len(token) > 2 else token
    return "".join(map(_visible_letters, token))


@functools.lru_cache(maxsize=1 << 16)
def _visible_letters(char: str) -> str:
    """Returns a character's normalized letters and marks, "" for an invisible one."""
    text = unicodedata.normalize("NFKD", char)
    visible = [
        c for c in text if not c.isspace() and unicodedata.category(c) not in _INVISIBLE_CATEGORIES
    ]
    return "".join(visible).casefold()


@functools.lru_cache(maxsize=1 << 16)
def _basic_letters(char: str, basic_tokenizer: Any) -> str:
    """Returns a character's letters in the words of a `tokenization.BasicTokenizer`."""
    return "".join(basic_tokenizer.tokenize(char))
