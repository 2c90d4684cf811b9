"""BERT's uncased WordPiece tokenizer in the original's steps, one character at a time.

The baseline of the comparison: every rule checks each character, every step builds a list.
"""

import unicodedata

_LONGEST_WORD = 200


def load_vocab(path):
    """Returns token → id for a file with one token per line."""
    with open(path, encoding="utf-8") as reader:
        return {token.rstrip("\n"): index for index, token in enumerate(reader)}


def tokenize(text, vocab):
    """Returns the WordPieces of a text.

    Args:
      text: str.
      vocab: dict or set that holds all pieces.

    Returns:
      list of str.
    """
    pieces = []
    for word in words_of(text):
        pieces.extend(pieces_of(word, vocab))
    return pieces


def words_of(text):
    """Returns cleaned, lower-cased words without accents, split at punctuation and ideographs."""
    words = []
    for word in _spaced_ideographs(_cleaned(text)).strip().split():
        word = _without_accents(word.lower())
        words.extend(_split_at_punctuation(word))
    return " ".join(words).strip().split()


def pieces_of(word, vocab):
    """Returns a word's pieces by greedy longest match."""
    characters = list(word)
    if len(characters) > _LONGEST_WORD:
        return ["[UNK]"]
    pieces, start = [], 0
    while start < len(characters):
        end, found = len(characters), None
        while start < end:
            piece = "".join(characters[start:end])
            if start > 0:
                piece = "##" + piece
            if piece in vocab:
                found = piece
                break
            end -= 1
        if found is None:
            return ["[UNK]"]
        pieces.append(found)
        start = end
    return pieces


def _cleaned(text):
    output = []
    for char in text:
        if ord(char) in (0, 0xFFFD) or _is_control(char):
            continue
        output.append(" " if _is_whitespace(char) else char)
    return "".join(output)


def _spaced_ideographs(text):
    output = []
    for char in text:
        if _is_ideograph(ord(char)):
            output.extend([" ", char, " "])
        else:
            output.append(char)
    return "".join(output)


def _without_accents(word):
    output = []
    for char in unicodedata.normalize("NFD", word):
        if unicodedata.category(char) != "Mn":
            output.append(char)
    return "".join(output)


def _split_at_punctuation(word):
    output, begins = [], True
    for char in word:
        if _is_punctuation(char):
            output.append([char])
            begins = True
            continue
        if begins:
            output.append([])
            begins = False
        output[-1].append(char)
    return ["".join(characters) for characters in output]


def _is_ideograph(code):
    return (
        0x4E00 <= code <= 0x9FFF
        or 0x3400 <= code <= 0x4DBF
        or 0x20000 <= code <= 0x2A6DF
        or 0x2A700 <= code <= 0x2B73F
        or 0x2B740 <= code <= 0x2B81F
        or 0x2B820 <= code <= 0x2CEAF
        or 0xF900 <= code <= 0xFAFF
        or 0x2F800 <= code <= 0x2FA1F
    )


def _is_whitespace(char):
    return char in (" ", "\t", "\n", "\r") or unicodedata.category(char) == "Zs"


def _is_control(char):
    return char not in ("\t", "\n", "\r") and unicodedata.category(char) in ("Cc", "Cf")


def _is_punctuation(char):
    code = ord(char)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(char).startswith("P")
