"""Tokenizers from text to ids: BERT's WordPiece, and SentencePiece models.

Scripts use `FullTokenizer`. With WordPiece it runs `BasicTokenizer` (text -> words) and
`WordpieceTokenizer` (word -> pieces), which produce the same tokens as google-research/bert; with a
SentencePiece model, the model splits the text. `validate_case_matches_checkpoint`,
`check_vocab_casing` and `check_vocab_size` detect a vocabulary or casing that does not match the
checkpoint.
"""

import collections
import hashlib
import re
import sys
import unicodedata
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, Union

import sentencepiece
from absl import logging

from adapter_bert.files import gfile
from adapter_bert.shell.errors import UserError

# Names of Google's released checkpoints. Besides BERT-Base and BERT-Large, `uncased` has 24 small
# sizes, always with heads of size 64; `wwm` means whole-word masking.
_LOWER_CASED_MODELS = frozenset(
    [
        "uncased_L-24_H-1024_A-16",
        "wwm_uncased_L-24_H-1024_A-16",
        "multilingual_L-12_H-768_A-12",
        "chinese_L-12_H-768_A-12",
    ]
    + [
        f"uncased_L-{layers}_H-{width}_A-{width // 64}"
        for layers in (2, 4, 6, 8, 10, 12)
        for width in (128, 256, 512, 768)
    ]
)
_CASED_MODELS = frozenset(
    [
        "cased_L-12_H-768_A-12",
        "cased_L-24_H-1024_A-16",
        "wwm_cased_L-24_H-1024_A-16",
        "multi_cased_L-12_H-768_A-12",
    ]
)

# With lower-casing, tokens that contain a capital are never produced. Of ordinary tokens, none has
# one in the uncased English and the Chinese vocabulary, 29% in the cased English vocabulary and 52%
# in a cased Vietnamese SentencePiece model. The limit tolerates a few stray capitals, and still
# detects a cased vocabulary that is mostly in scripts without case.
_MAX_CASED_SHARE = 0.02

# [CLS], [unused1], <unk>, and the bytes of SentencePiece's byte fallback, such as <0x0A>.
_SPECIAL_TOKEN = re.compile(r"\[.+\]|<.+>")

# Largest vocabulary file; the largest published BERT vocabularies have 500,000 tokens, in 5 MB.
MAX_VOCAB_BYTES = 64 << 20
MAX_VOCAB_LINES = 4_000_000

# Number of words whose splits a tokenizer caches: 6 MB for ordinary words, at most 50 MB. MRPC and
# a tenth of SQuAD have half as many words outside of BERT's vocabulary.
_MAX_SPLITS = 2**15
# Number of characters in a table, more than texts in one language have.
_MAX_CHARACTERS = 2**16
_MAX_NORMALIZED = 2**10

_REQUIRED_TOKENS = ("[UNK]", "[CLS]", "[SEP]")
# In each entry, any one of the names suffices.
_REQUIRED_PIECES = (("[CLS]",), ("[SEP]",), ("<pad>", "[PAD]"), ("<unk>", "[UNK]"))


class UnknownTokenError(UserError, KeyError):
    """Reports a token or id that is not in a vocabulary; also a KeyError, as in BERT."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would add quotes.


def validate_case_matches_checkpoint(do_lower_case: bool, init_checkpoint: Optional[str]) -> None:
    """Raises UserError if one of Google's released checkpoints is used with the wrong casing.

    Args:
      do_lower_case: bool, whether the tokenizer lower-cases.
      init_checkpoint: a path such as `.../cased_L-12_H-768_A-12/bert_model.ckpt`, or None. The
        folder's name identifies the model; other paths are accepted.
    """
    match = re.search(r"([A-Za-z0-9_-]+)/bert_model\.ckpt", init_checkpoint or "")
    model = match.group(1) if match else None
    if model in _LOWER_CASED_MODELS and not do_lower_case:
        trained_on, expected = "lower-cased", True
    elif model in _CASED_MODELS and do_lower_case:
        trained_on, expected = "cased", False
    else:
        return
    raise UserError(
        f"--do_lower_case={bool(do_lower_case)} does not fit --init_checkpoint={init_checkpoint}: "
        f"{model} was trained on {trained_on} text; pass --do_lower_case={expected}"
    )


def check_vocab_casing(vocab: Dict[str, int], do_lower_case: bool, vocab_file: str) -> None:
    """Raises UserError if text would be lower-cased for a cased vocabulary.

    Args:
      vocab: dict, token -> id.
      do_lower_case: bool, whether the tokenizer lower-cases.
      vocab_file: the vocabulary's (or SentencePiece model's) path, for the message.
    """
    if not do_lower_case:
        return
    regular_tokens = [token for token in vocab if not _SPECIAL_TOKEN.fullmatch(token)]
    cased_tokens = [token for token in regular_tokens if token != token.lower()]
    if len(cased_tokens) > _MAX_CASED_SHARE * len(regular_tokens):
        share = len(cased_tokens) / len(regular_tokens)
        raise UserError(
            f"{vocab_file} is a cased vocabulary ({share:.0%} of its tokens contain a capital, "
            f"such as {cased_tokens[0]!r}) but --do_lower_case is on: pass --do_lower_case=False, "
            "or an uncased vocabulary"
        )


def check_vocab_size(vocab: Dict[str, int], vocab_size: int, vocab_file: str) -> None:
    """Raises UserError if a vocabulary has more tokens than the model's embedding table has rows.

    A table may have more rows: many are padded to a multiple of 8, 64 or 1000.

    Args:
      vocab: dict, token -> id.
      vocab_size: int, rows of the embedding table, from the BERT config.
      vocab_file: the vocabulary's (or SentencePiece model's) path, for the message.
    """
    # Not len(vocab): a token that occurs twice in the file leaves an id unused.
    num_tokens = max(vocab.values(), default=-1) + 1
    if num_tokens < vocab_size:
        logging.warning(
            "%s holds %d tokens, and the BERT %d: the others are never used. This is no error if"
            " both are from the same checkpoint.",
            *(vocab_file, num_tokens, vocab_size),
        )
    if num_tokens > vocab_size:
        is_blank = vocab.get("") == num_tokens - 1
        advice = "remove its last line, a blank one" if is_blank else "use both from one checkpoint"
        raise UserError(
            f"{vocab_file} holds {num_tokens} tokens, but vocab_size is {vocab_size} in the BERT"
            f" config (--bert_config_file or bert_config.json): {advice}."
        )


def convert_to_unicode(text: Union[str, bytes]) -> str:
    """Returns `text` as str; bytes are decoded as UTF-8, dropping invalid sequences.

    Raises:
      ValueError: `text` is neither str nor bytes.
    """
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    raise ValueError(f"Expected str or bytes, found {type(text).__name__}: {text!r}")


def printable_text(text: Union[str, bytes]) -> str:
    """Returns `text` (str or bytes) as str, for `print` and logs."""
    return convert_to_unicode(text)


def load_vocab(vocab_file: str) -> Dict[str, int]:
    """Returns a WordPiece vocabulary from a UTF-8 file with one token per line; ids start at 0.

    White space around a token is stripped. A token that occurs twice gets the later id.

    Returns:
      OrderedDict, token -> id.

    Raises:
      UserError: the file cannot be read, is empty, is not UTF-8, or has more than 64 MB or 4
        million lines.
    """
    data = gfile.read_bytes(vocab_file, f"vocab_file {vocab_file}", MAX_VOCAB_BYTES)
    if data.count(b"\n") > MAX_VOCAB_LINES:
        raise UserError(f"vocab_file {vocab_file} has more than {MAX_VOCAB_LINES:,} lines.")
    try:
        # "-sig": a byte order mark must not become part of the first token.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise UserError(
            f"vocab_file {vocab_file}, line {line}: expected UTF-8 text, found byte 0x{byte:02x}"
        ) from error
    # Not splitlines(): the Chinese vocabulary has the line separator U+2028 as a token.
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        raise UserError(f"vocab_file {vocab_file} is empty: expected one token per line")
    return collections.OrderedDict((token.strip(), index) for index, token in enumerate(lines))


def tokens_by_id(vocab: Dict[str, int]) -> List[str]:
    """Returns the tokens of `load_vocab` in the order of their ids.

    If a token occurs twice, its earlier line is replaced by a string with spaces, which is never a
    token of a text.
    """
    tokens = [f"line {index + 1}, which no text has" for index in range(max(vocab.values()) + 1)]
    for token, index in vocab.items():
        tokens[index] = token
    return tokens


def convert_by_vocab(vocab: dict, items: Iterable) -> list:
    """Returns the entry in `vocab` of each of `items` (tokens or ids).

    Raises:
      UnknownTokenError: an item is not in `vocab`.
    """
    try:
        return list(map(vocab.__getitem__, items))
    except KeyError as error:
        raise UnknownTokenError(
            f"{error.args[0]!r} is not in the vocabulary of {len(vocab)} entries"
        ) from None


def convert_tokens_to_ids(vocab: Dict[str, int], tokens: Iterable[str]) -> List[int]:
    """Returns the ids of `tokens` in `vocab` (token -> id); see `convert_by_vocab`."""
    return convert_by_vocab(vocab, tokens)


def convert_ids_to_tokens(inv_vocab: Dict[int, str], ids: Iterable[int]) -> List[str]:
    """Returns the tokens of `ids` in `inv_vocab` (id -> token); see `convert_by_vocab`."""
    return convert_by_vocab(inv_vocab, ids)


def whitespace_tokenize(text: str) -> List[str]:
    """Returns the parts of `text` between runs of white space, without empty strings."""
    return text.split()


class FullTokenizer:
    """Splits text into tokens and maps them to ids, by a WordPiece or SentencePiece model.

    Args:
      vocab_file: path of a WordPiece vocabulary; ignored if `spm_model_file` is given.
      do_lower_case: bool; whether to lower-case the text. With WordPiece, also strips accents.
      spm_model_file: path of a SentencePiece model, used instead of WordPiece.

    Attributes:
      vocab: OrderedDict, token -> id.
      inv_vocab: dict, id -> token.
      basic_tokenizer: `BasicTokenizer`, the first step of WordPiece; None with SentencePiece.
      wordpiece_tokenizer: `WordpieceTokenizer`, its second step; None with SentencePiece.
      fingerprint: hex digest of everything that determines tokens and ids except this module's
        code: the file, the casing, Python's Unicode version and, if used, SentencePiece's version.

    Raises:
      UserError: the file cannot be read or has another format; or a SentencePiece model lacks a
        token that BERT's inputs need.
    """

    def __init__(
        self,
        vocab_file: Optional[str],
        do_lower_case: bool = True,
        *,
        spm_model_file: Optional[str] = None,
    ):
        self._source = source = spm_model_file or vocab_file
        if not source:
            raise UserError(
                "No vocabulary is given: pass vocab_file (WordPiece) or spm_model_file "
                "(SentencePiece)"
            )
        self.basic_tokenizer = self.wordpiece_tokenizer = self._sentencepiece_tokenizer = None
        if spm_model_file:
            self._sentencepiece_tokenizer = _SentencePieceTokenizer(source, do_lower_case)
            self.vocab: Dict[str, int] = self._sentencepiece_tokenizer.vocab
        else:
            self.vocab = load_vocab(source)
            self.basic_tokenizer = BasicTokenizer(do_lower_case)
            self.wordpiece_tokenizer = WordpieceTokenizer(self.vocab)
        self.inv_vocab = {index: token for token, index in self.vocab.items()}
        content = gfile.read_bytes(source, f"vocab_file {source}")
        versions = [unicodedata.unidata_version]
        if spm_model_file:
            versions.append(getattr(sentencepiece, "__version__", ""))  # Missing in old versions.
        settings = bool(spm_model_file), bool(do_lower_case), *versions
        self.fingerprint = hashlib.sha256(repr(settings).encode() + content).hexdigest()

    def check_special_tokens(self) -> None:
        """Raises UserError if a WordPiece vocabulary lacks a token that BERT's inputs need.

        SentencePiece models are checked when they are loaded.
        """
        missing = [token for token in _REQUIRED_TOKENS if token not in self.vocab]
        if missing and not self._sentencepiece_tokenizer:
            raise UserError(
                f"vocab_file {self._source} lacks {', '.join(missing)}: expected a BERT "
                "vocabulary, one token per line"
            )

    def tokenize(self, text: Union[str, bytes]) -> List[str]:
        """Returns the tokens of `text` (str, or bytes in UTF-8).

        Raises:
          ValueError: `text` is neither str nor bytes.
        """
        if self._sentencepiece_tokenizer:
            return self._sentencepiece_tokenizer.tokenize(text)
        assert self.basic_tokenizer and self.wordpiece_tokenizer
        words = self.basic_tokenizer.tokenize(text)
        # A single call for all words, as a call takes longer than splitting a word.
        return self.wordpiece_tokenizer.tokenize(" ".join(words))

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> List[int]:
        """Returns the ids of `tokens`.

        SentencePiece keeps unknown characters as tokens; they get the id of `<unk>`.

        Raises:
          UnknownTokenError: with WordPiece, a token that is not in the vocabulary.
        """
        if self._sentencepiece_tokenizer:
            return self._sentencepiece_tokenizer.convert_tokens_to_ids(tokens)
        return convert_tokens_to_ids(self.vocab, tokens)

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> List[str]:
        """Returns the tokens of `ids`; raises UnknownTokenError for an invalid id."""
        return convert_ids_to_tokens(self.inv_vocab, ids)


class BasicTokenizer:
    """Splits text into words at white space and punctuation; each ideograph is a word."""

    def __init__(self, do_lower_case: bool = True):
        """If `do_lower_case`, words are lower-cased and their accents removed."""
        self.do_lower_case = do_lower_case

    def tokenize(self, text: Union[str, bytes]) -> List[str]:
        """Returns the words of `text` (str, or bytes in UTF-8)."""
        text = convert_to_unicode(text)
        if not self.do_lower_case:
            return whitespace_tokenize(text.translate(_CLEANED_AND_SPLIT))
        text = self._run_strip_accents(text.translate(_CLEANED).lower())
        return whitespace_tokenize(text.translate(_SPLIT))

    def _run_strip_accents(self, text: str) -> str:
        """Returns `text` without accents; a subclass may override it to keep them, as in BERT."""
        if text.isascii():
            return text
        # In parts, because normalizing sorts a run of marks in quadratic time.
        parts = (text[i : i + _MAX_NORMALIZED] for i in range(0, len(text), _MAX_NORMALIZED))
        decomposed = "".join(unicodedata.normalize("NFD", part) for part in parts)
        return decomposed.translate(_WITHOUT_ACCENTS)


class WordpieceTokenizer:
    """Splits words into pieces greedily, always taking the longest piece in the vocabulary.

    A piece that does not begin its word is prefixed with "##", also in the vocabulary.
    """

    def __init__(
        self, vocab: Dict[str, int], unk_token: str = "[UNK]", max_input_chars_per_word: int = 200
    ):
        """A word with more than `max_input_chars_per_word` characters becomes `unk_token`."""
        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word
        self._settings: tuple = ()
        self._max_piece_length = 0
        self._splits = _CachingDict(self._split_word, _MAX_SPLITS)

    def tokenize(self, text: Union[str, bytes]) -> List[str]:
        """Returns the pieces of `text`, whose words are separated by white space.

        With the pieces "un", "##aff" and "##able", "unaffable" yields all three in this order.
        """
        vocab, max_chars = self.vocab, self.max_input_chars_per_word
        splits = self._current_splits()
        pieces = []
        for word in whitespace_tokenize(convert_to_unicode(text)):
            if len(word) > max_chars:
                pieces.append(self.unk_token)
            elif word in vocab:
                pieces.append(word)
            else:
                pieces += splits[word]
        return pieces

    def _current_splits(self) -> "_CachingDict":
        """Returns the cache of splits, a new one if the settings have changed.

        A vocabulary counts as changed if its size differs.
        """
        settings = (self.vocab, len(self.vocab), self.unk_token)
        if self._settings != settings:
            self._splits = _CachingDict(self._split_word, _MAX_SPLITS)
            self._max_piece_length = max(map(len, self.vocab), default=0)
        self._settings = settings
        return self._splits

    def _split_word(self, word: str) -> Tuple[str, ...]:
        """Returns the pieces of one word; `(unk_token,)` if they do not cover the whole word."""
        vocab = self.vocab
        pieces, prefix, remainder = [], "", word
        while remainder:
            piece = (prefix + remainder)[: max(self._max_piece_length, len(prefix) + 1)]
            while piece not in vocab:
                piece = piece[:-1]
                if piece == prefix:
                    return (self.unk_token,)
            # Interning lets the splits of different words share their pieces.
            pieces.append(sys.intern(piece))
            remainder = remainder[len(piece) - len(prefix) :]
            prefix = "##"
        return tuple(pieces)


class _SentencePieceTokenizer:
    """Splits text with a SentencePiece model, whose normalizer also cleans the text."""

    def __init__(self, model_file: str, do_lower_case: bool):
        self.do_lower_case = do_lower_case
        self._model = sentencepiece.SentencePieceProcessor()
        try:
            content = gfile.read_bytes(model_file, f"spm_model_file {model_file}")
            self._model.LoadFromSerializedProto(content)
        except RuntimeError as error:
            raise UserError(
                f"spm_model_file {model_file} is not a SentencePiece model (*.model)"
            ) from error
        self.vocab = collections.OrderedDict(
            (self._model.id_to_piece(index), index) for index in range(self._model.get_piece_size())
        )
        missing = [
            " or ".join(names)
            for names in _REQUIRED_PIECES
            if not any(name in self.vocab for name in names)
        ]
        if missing:
            raise UserError(
                f"spm_model_file {model_file} lacks {', '.join(missing)}: train it with --pad_id=0 "
                "--unk_id=1 --bos_id=-1 --eos_id=-1 --control_symbols=[CLS],[SEP]"
            )

    def tokenize(self, text: Union[str, bytes]) -> List[str]:
        """Returns the pieces of `text` (str, or bytes in UTF-8)."""
        text = " ".join(whitespace_tokenize(convert_to_unicode(text)))
        if self.do_lower_case:
            text = text.lower()
        # UTF-8 cannot encode a lone surrogate, which JSON may contain ("\ud83d").
        text = text.encode("utf-8", "ignore").decode("utf-8")
        return self._model.encode_as_pieces(text)

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> List[int]:
        """Returns the ids of `tokens`; an unknown one gets the id of <unk>."""
        return [self.vocab.get(token, self._model.unk_id()) for token in tokens]


class _CachingDict(dict):
    """Computes missing values and caches them; the cache is cleared when it is full."""

    def __init__(self, function: Callable, max_entries: int):
        """Creates an empty cache; `function` maps a key to its value."""
        super().__init__()
        self._function = function
        self._max_entries = max_entries

    def __missing__(self, key: Any) -> Any:
        value = self._function(key)
        # Simpler than evicting the oldest entry; frequent keys return soon.
        if len(self) >= self._max_entries:
            self.clear()
        self[key] = value
        return value


def _is_whitespace(char: str) -> bool:
    """Returns whether `char` is replaced by a space: tab, line feed, carriage return, or Zs."""
    return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def _is_control(char: str) -> bool:
    """Returns whether `char` is a control or format character (Cc, Cf), but not white space."""
    return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf")


def _is_punctuation(char: str) -> bool:
    """Returns whether `char` has category P*, or is ASCII but no letter, digit or space.

    ASCII "$", "+", "<", "^", "`" and the like are symbols (S*) in Unicode, but punctuation in BERT.
    """
    if "!" <= char <= "~":
        return not char.isalnum()
    return unicodedata.category(char).startswith("P")


# The blocks "CJK Unified Ideographs" and "CJK Compatibility Ideographs" with extensions A to E.
# Hangul, Hiragana and Katakana are not among them: like Latin, they are split at white space.
IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def is_ideograph(char: str) -> bool:
    """Returns whether `char` is a Chinese character, as used in any language."""
    return any(first <= ord(char) <= last for first, last in IDEOGRAPHS)


def _add_spaces(char: str) -> str:
    """Returns `char` with spaces around it, which make it a word of its own."""
    return f" {char} "


def _clean(char: str) -> str:
    """Returns "" for invisible or broken characters, " " for white space, and spaced ideographs."""
    if char == "\ufffd" or _is_control(char):
        return ""
    if _is_whitespace(char):
        return " "
    return _add_spaces(char) if is_ideograph(char) else char


def _character_table(function: Callable[[str], str]) -> _CachingDict:
    """Returns a table for `str.translate`; `function` gets a character instead of its code."""
    return _CachingDict(lambda code_point: function(chr(code_point)), _MAX_CHARACTERS)


# The steps of BasicTokenizer. Each can be applied to the whole text, because lower-casing, NFD and
# these rules never depend on characters beyond white space, nor move characters across it.
_CLEANED = _character_table(_clean)
_CLEANED_AND_SPLIT = _character_table(
    lambda char: _add_spaces(char) if _is_punctuation(char) else _clean(char)
)
_WITHOUT_ACCENTS = _character_table(lambda char: "" if unicodedata.category(char) == "Mn" else char)
_SPLIT = _character_table(lambda char: _add_spaces(char) if _is_punctuation(char) else char)
