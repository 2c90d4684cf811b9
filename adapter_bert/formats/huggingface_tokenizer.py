"""The tokenizer of a HuggingFace BERT: vocab.txt or tokenizer.json, and the files beside them."""

import os
import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from adapter_bert import tokenization
from adapter_bert.files import gfile, json_objects
from adapter_bert.shell.errors import UserError

VOCABULARY, CONFIG, _TOKENIZER = "vocab.txt", "tokenizer_config.json", "tokenizer.json"
_ADDED, _SPECIAL = "added_tokens.json", "special_tokens_map.json"
FILES = (VOCABULARY, CONFIG, _TOKENIZER, _ADDED, _SPECIAL)
# Fields of tokenizer_config.json and special_tokens_map.json, and BERT's tokens.
_SPECIAL_TOKENS = {
    f"{token[1:-1].lower()}_token": token
    for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
}
# Tokenizers like BERT's; the last two are those of any tokenizer.json.
_CLASSES = re.compile(
    "((Distil|Mobile|Squeeze|Conv)?Bert|Electra)Tokenizer(Fast)?|PreTrainedTokenizerFast"
    "|TokenizersBackend"
)
_MAX_BYTES = tokenization.MAX_VOCAB_BYTES

# What tokenizer.json says for BERT's tokenizer. Old files lack the type of the model.
_EXPECTED = (
    ("model", "unk_token", "[UNK]"),
    ("model", "continuing_subword_prefix", "##"),
    ("normalizer", "type", "BertNormalizer"),
    ("pre_tokenizer", "type", "BertPreTokenizer"),
)
# The fields of its normalizer, and their names in tokenizer_config.json.
_NORMALIZER = {
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "handle_chinese_chars": "tokenize_chinese_chars",
    "clean_text": "clean_text",
}


class Tokenizer(NamedTuple):
    """A BERT's vocabulary and casing.

    Attributes:
      vocab_file: path of vocab.txt or tokenizer.json.
      tokens: the tokens in tokenizer.json, by id; None if there is a vocab.txt.
      do_lower_case: whether texts are lower-cased; None if unknown.
    """

    vocab_file: str
    tokens: Optional[List[str]]
    do_lower_case: Optional[bool]


def missing(folder: str) -> List[str]:
    """Returns the path of vocab.txt if the folder has neither it nor tokenizer.json."""
    paths = [os.path.join(folder, name) for name in (VOCABULARY, _TOKENIZER)]
    return [] if any(map(gfile.exists, paths)) else paths[:1]


def read(folder: str, vocab_size: int) -> Tokenizer:
    """Loads the tokenizer in a folder.

    Args:
      folder: path.
      vocab_size: of the BERT.

    Raises:
      UserError: a file is damaged, contradicts another one or the BERT, or describes another
        tokenizer than BERT's, such as one with added tokens.
    """
    contents = {}
    for name in (CONFIG, _TOKENIZER, _ADDED, _SPECIAL):
        path = os.path.join(folder, name)
        contents[name] = (
            json_objects.read_object(path, max_bytes=_MAX_BYTES) if gfile.exists(path) else {}
        )
    try:
        return _parse(folder, contents, vocab_size)
    except UserError:  # It is a ValueError, too.
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise UserError(f"{folder}: the tokenizer's files are damaged ({problem}).") from error


def _parse(folder: str, contents: Dict[str, Any], vocab_size: int) -> Tokenizer:
    paths = {name: os.path.join(folder, name) for name in (VOCABULARY, *contents)}
    lower_case, fast_vocab = _lower_case_of(paths[CONFIG], contents[CONFIG]), None
    if contents[_TOKENIZER]:
        fast_vocab, fields = _parse_tokenizer(paths[_TOKENIZER], contents[_TOKENIZER])
        fast_lower_case = _lower_case_of(paths[_TOKENIZER], fields)
        if lower_case is None:
            lower_case = fast_lower_case
        if fast_lower_case not in (None, lower_case):
            raise UserError(
                f"{paths[_TOKENIZER]}: lowercase is {fast_lower_case}, but do_lower_case in"
                f" {CONFIG} is {lower_case}; remove the wrong one."
            )
    if fast_vocab is None or gfile.exists(paths[VOCABULARY]):
        path, vocab = paths[VOCABULARY], tokenization.load_vocab(paths[VOCABULARY])
        for token, index in (fast_vocab or {}).items():
            if token.strip() and vocab.get(token.strip()) != index:
                raise UserError(
                    f"{paths[_TOKENIZER]}: {token!r} has the id {index}, but is not on line"
                    f" {index + 1} of {VOCABULARY}; remove the wrong file."
                )
    else:
        path, vocab = paths[_TOKENIZER], fast_vocab
    tokenization.check_vocab_size(vocab, vocab_size, path)
    for name in (CONFIG, _SPECIAL):
        for field, expected in _SPECIAL_TOKENS.items():
            token = _content(contents[name].get(field) or expected)
            if token != expected:
                raise UserError(f"{paths[name]}: {field} is {token!r}; expected {expected!r}.")
    basic = tokenization.BasicTokenizer(lower_case is not False)
    for name, token, added_index in _added_tokens(contents):
        is_whole = token in _SPECIAL_TOKENS.values() or basic.tokenize(token) == [token]
        if not is_whole or token not in vocab or added_index not in (None, vocab[token]):
            raise UserError(
                f"{paths[name]}: BERT's tokenizer takes the added token {token!r} apart; remove it"
                " there if no text of yours has it."
            )
    tokens = None if path == paths[VOCABULARY] else tokenization.tokens_by_id(vocab)
    return Tokenizer(path, tokens, lower_case)


def _parse_tokenizer(path: str, content: Any) -> Tuple[Dict[str, int], Dict[str, Any]]:
    """Returns (token -> id, fields as in tokenizer_config.json) of a tokenizer.json."""
    for part, name, expected in _EXPECTED:
        actual = (content[part] or {}).get(name)
        if actual != expected:
            raise UserError(f"{path}: {part}.{name} must be {expected!r}, but is {actual!r}.")
    vocab = content["model"]["vocab"]
    ids = [json_objects.require_type(index, int) for index in vocab.values()]
    if not ids or min(ids) < 0 or max(ids) >= tokenization.MAX_VOCAB_LINES:
        raise UserError(f"{path}: the ids in its vocabulary must be numbers from 0.")
    if len(set(ids)) < len(ids) or any("\n" in token for token in vocab):
        raise UserError(f"{path}: its vocabulary has an id twice, or a token with a line break.")
    normalizer = content["normalizer"]
    return vocab, {ours: normalizer.get(theirs) for theirs, ours in _NORMALIZER.items()}


def _added_tokens(contents: Dict[str, Any]) -> Iterator[Tuple[str, str, Optional[int]]]:
    """Yields (file, token, id or None) of all tokens that the files add to the vocabulary."""
    for token, index in contents[_ADDED].items():
        yield _ADDED, token, index
    for entry in contents[_TOKENIZER].get("added_tokens") or []:
        yield _TOKENIZER, entry["content"], entry["id"]
    for index, entry in (contents[CONFIG].get("added_tokens_decoder") or {}).items():
        yield CONFIG, entry["content"], int(index)
    for name in (CONFIG, _SPECIAL):
        for field in ("additional_special_tokens", "extra_special_tokens"):
            extra = contents[name].get(field) or []
            for entry in extra.values() if isinstance(extra, dict) else extra:
                yield name, _content(entry), None
        for field in ("bos_token", "eos_token"):
            if contents[name].get(field):
                yield name, _content(contents[name][field]), None


def _content(token: Any) -> Any:
    """Returns the text of a token, which may be an object."""
    return token["content"] if isinstance(token, dict) else token


def _lower_case_of(path: str, fields: Dict[str, Any]) -> Optional[bool]:
    """Returns whether the tokenizer lower-cases, or None; raises UserError if it is not BERT's."""
    name = fields.get("tokenizer_class") or "BertTokenizer"
    if not _CLASSES.fullmatch(name):
        raise UserError(f"{path}: {name} is not supported, only BERT's tokenizer.")
    lower_case, strip_accents = fields.get("do_lower_case", True), fields.get("strip_accents")
    if strip_accents is not None and strip_accents is not lower_case:
        raise UserError(
            f"{path}: strip_accents is {strip_accents} and do_lower_case {lower_case}; BERT removes"
            " accents if and only if it lower-cases."
        )
    for name in ("do_basic_tokenize", "tokenize_chinese_chars", "clean_text"):
        if fields.get(name) is False:
            raise UserError(f"{path}: {name} is false, but the tokenizer here always does it.")
    return fields.get("do_lower_case") if isinstance(lower_case, bool) else None


def lower_case_of(folder: str) -> Optional[bool]:
    """Returns whether a folder's tokenizer_config.json says that texts are lower-cased, or None.

    Raises:
      UserError: the file is damaged, or describes another tokenizer than BERT's.
    """
    path = os.path.join(folder, CONFIG)
    if not gfile.exists(path):
        return None
    return _lower_case_of(path, json_objects.read_object(path, max_bytes=_MAX_BYTES))


def write(folder: str, do_lower_case: bool) -> None:
    """Writes tokenizer_config.json. Without it, HuggingFace's tokenizer lower-cases."""
    fields = {"tokenizer_class": "BertTokenizer", "do_lower_case": do_lower_case}
    json_objects.write_object(os.path.join(folder, CONFIG), fields)
