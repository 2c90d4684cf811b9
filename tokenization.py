"""Text to tokens to ids: BERT's WordPiece tokenizers, and SentencePiece models.

`FullTokenizer` is the one that scripts use. With WordPiece it runs `BasicTokenizer` (text -> words)
and `WordpieceTokenizer` (word -> pieces), token for token as google-research/bert does; with a
SentencePiece model, the model itself splits the text. `validate_case_matches_checkpoint`,
`check_vocab_casing` and `check_vocab_size` catch a vocabulary or a casing that does not belong to
the checkpoint.
"""

import collections
import hashlib
import re
import sys
import unicodedata
from typing import Callable, Dict, Iterable, List, Optional, Tuple, Union

import sentencepiece

from adapter_bert.common import files
from adapter_bert.common.errors import UserError

# The names of the checkpoints that Google released. `uncased` comes in 24 small sizes besides
# BERT-Base and BERT-Large, always with heads of 64; `wwm` is whole-word masking.
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

# Lower-casing puts every token with a capital out of reach. Of the ordinary tokens of the uncased
# English and the Chinese vocabulary none holds one, of the cased English vocabulary 29% do, of a
# cased Vietnamese SentencePiece model 52%. The limit lets a few stray capitals pass, and still
# catches a cased vocabulary most of which is written in scripts without case.
_MAX_CASED_SHARE = 0.02

# [CLS], [unused1]; <unk>, and the bytes of SentencePiece's byte fallback, such as <0x0A>.
_SPECIAL_TOKEN = re.compile(r"\[.+\]|<.+>")

# Embedding tables are often padded to a multiple of 8, 64 or 128 rows for the hardware's sake. A
# gap that no such multiple explains means another model's vocabulary.
_PADDING_MULTIPLE = 8
_MAX_PADDING = 128

# How many words' splits a tokenizer remembers: 6 MB of ordinary words, at the very worst 50 MB. The
# words of MRPC and of a tenth of SQuAD that are not in BERT's vocabulary are half as many.
_MAX_SPLITS = 2**15
# How many characters a table remembers: more than a text of any one language has.
_MAX_CHARACTERS = 2**16

_REQUIRED_TOKENS = ("[UNK]", "[CLS]", "[SEP]")
# Each entry: the names, any of which will do.
_REQUIRED_PIECES = (("[CLS]",), ("[SEP]",), ("<pad>", "[PAD]"), ("<unk>", "[UNK]"))


class UnknownTokenError(UserError, KeyError):
    """A token or an id that a vocabulary lacks; a KeyError too, as BERT raises one."""

    def __str__(self):
        return str(self.args[0])  # KeyError's would be in quotes.


def validate_case_matches_checkpoint(do_lower_case: bool, init_checkpoint: Optional[str]) -> None:
    """Raises UserError if a checkpoint that Google released is used with the wrong casing.

    Args:
      do_lower_case: bool, whether the tokenizer lower-cases.
      init_checkpoint: a path such as `.../cased_L-12_H-768_A-12/bert_model.ckpt`, or None. The
        folder's name tells the model; any other path is accepted.
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
        f"{model} was trained on {trained_on} text, pass --do_lower_case={expected}"
    )


def check_vocab_casing(vocab: Dict[str, int], do_lower_case: bool, vocab_file: str) -> None:
    """Raises UserError if text is to be lower-cased for a vocabulary that is plainly cased.

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
            f"{vocab_file} is a cased vocabulary ({share:.0%} of its tokens hold a capital, "
            f"{cased_tokens[0]!r} for one) but --do_lower_case is on: pass --do_lower_case=False, "
            "or an uncased vocabulary"
        )


def check_vocab_size(vocab: Dict[str, int], vocab_size: int, vocab_file: str) -> None:
    """Raises UserError if the vocabulary is not the one that the model's embeddings were made for.

    Args:
      vocab: dict, token -> id.
      vocab_size: int, rows of the embedding table, as in the BERT config. It may exceed the
        vocabulary only by padding: if it is a multiple of 8, by fewer than 128.
      vocab_file: the vocabulary's (or SentencePiece model's) path, for the message.
    """
    # Not len(vocab): a token that the file holds twice leaves an id unused.
    num_tokens = max(vocab.values(), default=-1) + 1
    padding = vocab_size - num_tokens
    is_padded = vocab_size % _PADDING_MULTIPLE == 0 and 0 < padding < _MAX_PADDING
    if padding != 0 and not is_padded:
        raise UserError(
            f"{vocab_file} holds {num_tokens} tokens but the BERT config's vocab_size is "
            f"{vocab_size}: pass the vocabulary that belongs to the checkpoint"
        )


def convert_to_unicode(text: Union[str, bytes]) -> str:
    """Returns `text` as str; bytes are read as UTF-8, and what is not UTF-8 in them is dropped.

    Raises:
      ValueError: `text` is neither str nor bytes.
    """
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    raise ValueError(f"Expected str or bytes, found {type(text).__name__}: {text!r}")


def printable_text(text: Union[str, bytes]) -> str:
    """Returns `text` (str or bytes) in the form that `print` and the log take: str."""
    return convert_to_unicode(text)


def _read_file(path: str, argument: str) -> bytes:
    """Returns the bytes of the file that `argument` names."""
    try:
        with files.open_file(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UserError(f"{argument} {path} cannot be read: {files.reason(error)}") from error


def load_vocab(vocab_file: str) -> Dict[str, int]:
    """Reads a WordPiece vocabulary: UTF-8, one token a line, the first line's id is 0.

    White space around a token is stripped. A token that comes twice has the later id.

    Returns:
      OrderedDict, token -> id.

    Raises:
      UserError: the file cannot be read, is empty, or is not UTF-8.
    """
    data = _read_file(vocab_file, "vocab_file")
    try:
        # "-sig": an editor's byte order mark is no part of the first token.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise UserError(
            f"vocab_file {vocab_file}, line {line}: expected UTF-8 text, found byte 0x{byte:02x}"
        ) from error
    # Not splitlines(): the Chinese vocabulary has a token that is itself a line separator, U+2028.
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        raise UserError(f"vocab_file {vocab_file} is empty: expected one token on each line")
    return collections.OrderedDict((token.strip(), index) for index, token in enumerate(lines))


def tokens_by_id(vocab: Dict[str, int]) -> List[str]:
    """Returns the tokens of `load_vocab` in the order of their ids.

    Where a token comes again later, its earlier line has a text with spaces, which no token has.
    """
    tokens = [f"line {index + 1}, which no text has" for index in range(max(vocab.values()) + 1)]
    for token, index in vocab.items():
        tokens[index] = token
    return tokens


def convert_by_vocab(vocab: dict, items: Iterable) -> list:
    """Looks up each of `items` (tokens or ids) in `vocab`; returns the list of what it found.

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
    """Returns the ids of `tokens` by `vocab` (token -> id); see `convert_by_vocab`."""
    return convert_by_vocab(vocab, tokens)


def convert_ids_to_tokens(inv_vocab: Dict[int, str], ids: Iterable[int]) -> List[str]:
    """Returns the tokens of `ids` by `inv_vocab` (id -> token); see `convert_by_vocab`."""
    return convert_by_vocab(inv_vocab, ids)


def join_pieces(pieces: Iterable[str]) -> str:
    """Returns the text of SentencePiece's `pieces` without spaces, which they hold as U+2581."""
    return "".join(pieces).replace("\u2581", "")


def whitespace_tokenize(text: str) -> List[str]:
    """Splits `text` at runs of white space; returns a list without empty strings."""
    return text.split()


class FullTokenizer:
    """Text -> tokens -> ids, by a WordPiece vocabulary or by a SentencePiece model.

    Attributes:
      vocab: OrderedDict, token -> id.
      inv_vocab: dict, id -> token.
      basic_tokenizer, wordpiece_tokenizer: the two steps of WordPiece; None with SentencePiece.
      fingerprint: hex digest of all that decides tokens and ids but this module's code: the file,
        the casing, Python's table of Unicode, SentencePiece's version where it is used.
    """

    def __init__(
        self,
        vocab_file: Optional[str],
        do_lower_case: bool = True,
        *,
        spm_model_file: Optional[str] = None,
    ):
        """Loads the vocabulary.

        Args:
          vocab_file: path of a WordPiece vocabulary; unused (None or "" will do) with
            `spm_model_file`.
          do_lower_case: bool, lower-case the text; WordPiece strips accents as well then.
          spm_model_file: path of a SentencePiece model, which then gives pieces and ids.

        Raises:
          UserError: the file cannot be read or is of another format; or a SentencePiece model
            lacks a token that BERT's inputs need.
        """
        self._source = source = spm_model_file or vocab_file
        if not source:
            raise UserError(
                "No vocabulary is given: set vocab_file (WordPiece) or spm_model_file "
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
        content = _read_file(source, "vocab_file")
        versions = [unicodedata.unidata_version]
        if spm_model_file:
            versions.append(getattr(sentencepiece, "__version__", ""))  # Old ones do not tell.
        settings = bool(spm_model_file), bool(do_lower_case), *versions
        self.fingerprint = hashlib.sha256(repr(settings).encode() + content).hexdigest()

    def check_special_tokens(self) -> None:
        """Raises UserError if a WordPiece vocabulary lacks a token that BERT's inputs need.

        A SentencePiece model is checked when it is loaded.
        """
        missing = [token for token in _REQUIRED_TOKENS if token not in self.vocab]
        if missing and not self._sentencepiece_tokenizer:
            raise UserError(
                f"vocab_file {self._source} lacks {', '.join(missing)}: expected a BERT "
                "vocabulary, one token a line"
            )

    def tokenize(self, text: Union[str, bytes]) -> List[str]:
        """Returns the list of tokens of `text` (str, or bytes in UTF-8)."""
        if self._sentencepiece_tokenizer:
            return self._sentencepiece_tokenizer.tokenize(text)
        assert self.basic_tokenizer and self.wordpiece_tokenizer
        words = self.basic_tokenizer.tokenize(text)
        # All words in one call: a call for each takes longer than splitting it.
        return self.wordpiece_tokenizer.tokenize(" ".join(words))

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> List[int]:
        """Returns the list of ids of `tokens`.

        SentencePiece gives characters that it does not know as they are: their id is <unk>'s.

        Raises:
          UnknownTokenError: with WordPiece, a token that is not in the vocabulary.
        """
        if self._sentencepiece_tokenizer:
            return self._sentencepiece_tokenizer.convert_tokens_to_ids(tokens)
        return convert_tokens_to_ids(self.vocab, tokens)

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> List[str]:
        """Returns the list of tokens of `ids`; UnknownTokenError for one that there is not."""
        return convert_ids_to_tokens(self.inv_vocab, ids)


class BasicTokenizer:
    """Text -> words: cleans, splits at white space and punctuation, makes each ideograph a word."""

    def __init__(self, do_lower_case: bool = True):
        """With `do_lower_case`, words are lower-cased and lose their accents."""
        self.do_lower_case = do_lower_case

    def tokenize(self, text: Union[str, bytes]) -> List[str]:
        """Returns the list of words of `text` (str, or bytes in UTF-8)."""
        text = convert_to_unicode(text)
        if not self.do_lower_case:
            return whitespace_tokenize(text.translate(_CLEANED_AND_SPLIT))
        text = self._run_strip_accents(text.translate(_CLEANED).lower())
        return whitespace_tokenize(text.translate(_SPLIT))

    def _run_strip_accents(self, text: str) -> str:
        """Returns `text` without accents; a subclass that keeps them returns `text`, as in BERT."""
        if text.isascii():
            return text
        return unicodedata.normalize("NFD", text).translate(_WITHOUT_ACCENTS)


class WordpieceTokenizer:
    """Words -> pieces: greedy, the longest piece of the vocabulary first.

    A piece that does not begin its word is written with "##" before it, in the vocabulary too.
    """

    def __init__(
        self, vocab: Dict[str, int], unk_token: str = "[UNK]", max_input_chars_per_word: int = 200
    ):
        """A word with more than `max_input_chars_per_word` characters becomes `unk_token`."""
        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word
        self._settings: tuple = ()
        self._splits = _CachingDict(self._split_word, _MAX_SPLITS)

    def tokenize(self, text: Union[str, bytes]) -> List[str]:
        """Returns the list of pieces of `text`, words between white space.

        With the pieces "un", "##aff" and "##able", "unaffable" gives all three in this order.
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
        """Returns the remembered splits: new ones if what they rest on has changed since.

        A vocabulary counts as changed when it has another size.
        """
        settings = (self.vocab, len(self.vocab), self.unk_token)
        if self._settings != settings:
            self._splits = _CachingDict(self._split_word, _MAX_SPLITS)
        self._settings = settings
        return self._splits

    def _split_word(self, word: str) -> Tuple[str, ...]:
        """Returns the tuple of one word's pieces: `(unk_token,)` if they do not cover all of it."""
        vocab = self.vocab
        pieces, prefix, remainder = [], "", word
        while remainder:
            piece = prefix + remainder
            while piece not in vocab:
                piece = piece[:-1]
                if piece == prefix:
                    return (self.unk_token,)
            # Interned, the splits of different words share their pieces.
            pieces.append(sys.intern(piece))
            remainder = remainder[len(piece) - len(prefix) :]
            prefix = "##"
        return tuple(pieces)


class _SentencePieceTokenizer:
    """Text -> pieces -> ids by a SentencePiece model, whose own normalizer cleans the text."""

    def __init__(self, model_file: str, do_lower_case: bool):
        self.do_lower_case = do_lower_case
        self._model = sentencepiece.SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(_read_file(model_file, "spm_model_file"))
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
        """Returns the list of pieces of `text` (str, or bytes in UTF-8)."""
        text = " ".join(whitespace_tokenize(convert_to_unicode(text)))
        if self.do_lower_case:
            text = text.lower()
        # Half of a surrogate pair, which JSON may hold ("\ud83d"), has no UTF-8 form.
        text = text.encode("utf-8", "ignore").decode("utf-8")
        return self._model.encode_as_pieces(text)

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> List[int]:
        """Returns the list of ids of `tokens`; an unknown one has the id of <unk>."""
        return [self.vocab.get(token, self._model.unk_id()) for token in tokens]


class _CachingDict(dict):
    """A dict that computes what it lacks, and forgets everything when it is full."""

    def __init__(self, function: Callable, max_entries: int):
        """`function`: a function of a key that returns its value."""
        super().__init__()
        self._function = function
        self._max_entries = max_entries

    def __missing__(self, key):
        value = self._function(key)
        # Simpler than dropping the oldest, and the frequent keys are back soon.
        if len(self) >= self._max_entries:
            self.clear()
        self[key] = value
        return value


def _is_whitespace(char: str) -> bool:
    """Whether `char` is replaced with a space: tab, line feed, carriage return, or category Zs."""
    return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def _is_control(char: str) -> bool:
    """Whether `char` is a control or format character (Cc, Cf), but not white space."""
    return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf")


def _is_punctuation(char: str) -> bool:
    """Whether `char` is of category P*, or an ASCII character that is no letter, digit or space.

    ASCII "$", "+", "<", "^", "`" and the like are symbols (S*) to Unicode, punctuation to BERT.
    """
    if "!" <= char <= "~":
        return not char.isalnum()
    return unicodedata.category(char).startswith("P")


# The blocks named "CJK Unified/Compatibility Ideographs" with their extensions A to E. Hangul,
# Hiragana and Katakana lie elsewhere: like Latin, they are split at white space.
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


def _is_ideograph(char: str) -> bool:
    """Whether `char` is a Chinese character, of whichever language."""
    return any(first <= ord(char) <= last for first, last in IDEOGRAPHS)


def _add_spaces(char: str) -> str:
    """Makes `char` a word of its own."""
    return f" {char} "


def _clean(char: str) -> str:
    """Drops what is invisible or broken, unifies white space, and sets ideographs apart."""
    if char == "\ufffd" or _is_control(char):
        return ""
    if _is_whitespace(char):
        return " "
    return _add_spaces(char) if _is_ideograph(char) else char


def _character_table(function: Callable[[str], str]) -> _CachingDict:
    """Returns a table for `str.translate`; `function` gets a character instead of its code."""
    return _CachingDict(lambda code_point: function(chr(code_point)), _MAX_CHARACTERS)


# The steps of BasicTokenizer. Each can take the whole text at once, since lower-casing, NFD and
# these rules never look, or move anything, across white space.
_CLEANED = _character_table(_clean)
_CLEANED_AND_SPLIT = _character_table(
    lambda char: _add_spaces(char) if _is_punctuation(char) else _clean(char)
)
_WITHOUT_ACCENTS = _character_table(lambda char: "" if unicodedata.category(char) == "Mn" else char)
_SPLIT = _character_table(lambda char: _add_spaces(char) if _is_punctuation(char) else char)
