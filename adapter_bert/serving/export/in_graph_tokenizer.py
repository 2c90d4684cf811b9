"""Tokenizes texts inside a graph with tensorflow-text, as `classifier_features` does in Python.

Axes in shape comments: B batch, S positions.
"""

import functools
from typing import Callable, List, Tuple

import tensorflow.compat.v1 as tf

from adapter_bert import tokenization
from adapter_bert.shell import imports
from adapter_bert.shell.errors import UserError

try:
    with imports.docstrings():
        import tensorflow_text
except (ImportError, tf.errors.NotFoundError):  # Not installed, or built for another TensorFlow.
    tensorflow_text = None

# In characters. tensorflow-text's limit is in bytes; a character has up to four.
_MAX_WORD_LENGTH = 200
# Characters that end a word: white space, punctuation and `tokenization`'s ideographs.
_IDEOGRAPHS = "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in tokenization.IDEOGRAPHS)
_SEPARATOR_PATTERN = rf"([\p{{Z}}\p{{P}}{_IDEOGRAPHS}])"
_LONG_WORD_PATTERN = rf"([0-9A-Za-z\x{{80}}-\x{{10ffff}}]{{{_MAX_WORD_LENGTH + 1},}})"


def make_encoder(tokenizer: tokenization.FullTokenizer) -> Callable:
    """Returns a function that tokenizes texts into BERT's inputs.

    Args:
      tokenizer: `tokenization.FullTokenizer` of a WordPiece vocabulary.

    Returns:
      A function of (string [B], the second texts [B] of pairs, int32 [B] the maximum tokens of each
      row) that returns (input_ids, input_mask, segment_ids), int32 [B, S].

    Raises:
      UserError: tensorflow-text is not installed; the vocabulary is SentencePiece's.
    """
    if tensorflow_text is None:
        release = ".".join(tf.__version__.split(".")[:2])
        raise UserError(
            f"--raw_text needs the tensorflow-text of TensorFlow {release}, which is not installed;"
            f' run `pip install "tensorflow-text=={release}.*"`.'
        )
    if tokenizer.basic_tokenizer is None:
        raise UserError("Raw text in a SavedModel needs a WordPiece vocabulary, not SentencePiece.")
    return functools.partial(
        _encode,
        vocab=tokenization.tokens_by_id(tokenizer.vocab),
        do_lower_case=tokenizer.basic_tokenizer.do_lower_case,
        cls_id=tokenizer.vocab["[CLS]"],
        sep_id=tokenizer.vocab["[SEP]"],
    )


def _encode(
    *texts_and_max_tokens: tf.Tensor,
    vocab: List[str],
    do_lower_case: bool,
    cls_id: int,
    sep_id: int,
) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    *texts, max_tokens = texts_and_max_tokens
    tokenizer = tensorflow_text.FastBertTokenizer(
        vocab, token_out_type=tf.int32, max_bytes_per_word=4 * _MAX_WORD_LENGTH
    )
    segments = [tokenizer.tokenize(_normalize(text, do_lower_case)) for text in texts]
    return pack(segments, max_tokens, cls_id, sep_id)


def lower(text: tf.Tensor) -> tf.Tensor:
    """Returns a string Tensor in lower case, independent of the machine's locale.

    TensorFlow follows the locale: in a Turkish one, "TITLE" becomes "tıtle".
    """
    for capital, small in (("I", "i"), ("\u0130", "i\u0307")):
        text = tf.strings.regex_replace(text, capital, small)
    return tf.strings.lower(text, "utf-8")


def _normalize(text: tf.Tensor, do_lower_case: bool) -> tf.Tensor:
    """Normalizes texts as BERT's tokenizer does before it splits them.

    tensorflow-text alone would keep control characters, and its lower-casing applies NFKC, which
    turns "…" into "...".
    """
    text = tf.strings.regex_replace(text, "[\\t\\n\\r]", " ")
    text = tf.strings.regex_replace(text, r"[\p{Cc}\p{Cf}\x{fffd}]", "")
    if do_lower_case:
        text = tensorflow_text.normalize_utf8(lower(text), "NFD")
        text = tf.strings.regex_replace(text, r"\p{Mn}", "")
    text = tf.strings.regex_replace(text, _SEPARATOR_PATTERN, r" \1 ")
    # Repeats a word of too many characters, so that it also has too many bytes.
    return tf.strings.regex_replace(text, _LONG_WORD_PATTERN, r"\1\1\1\1")


def pack(segments: list, max_tokens: tf.Tensor, cls_id: int, sep_id: int) -> tuple:
    """Returns BERT's inputs for [CLS] a [SEP] or [CLS] a [SEP] b [SEP].

    Args:
      segments: list of one or two ragged int32 Tensors [B, None], a and b. An empty b is left out.
      max_tokens: int32 [B], the length to which each row is truncated.
      cls_id, sep_id: ints.

    Returns:
      (input_ids, input_mask, segment_ids), int32 Tensors [B, S].
    """
    first, second = segments if len(segments) == 2 else (segments[0], segments[0][:, :0])
    first, second = truncate(first, second, tf.maximum(max_tokens - 2 - _is_pair(second), 0))
    cls, sep = (tf.fill([first.nrows(), 1], id) for id in (cls_id, sep_id))
    parts = [cls, first, sep, second, tf.RaggedTensor.from_tensor(sep, _is_pair(second))]
    ids = tf.concat(parts, 1)
    zeros, ones = map(tf.zeros_like, parts[:3]), map(tf.ones_like, parts[3:])
    segment_ids = tf.concat([*zeros, *ones], 1)
    return ids.to_tensor(), tf.ones_like(ids).to_tensor(), segment_ids.to_tensor()


def _is_pair(second: tf.RaggedTensor) -> tf.Tensor:
    """Returns int32 [B]: 1 for each row of a ragged Tensor that has a token, else 0."""
    return tf.cast(second.row_lengths() > 0, tf.int32)


def truncate(first: tf.RaggedTensor, second: tf.RaggedTensor, max_tokens: tf.Tensor) -> tuple:
    """Truncates two ragged Tensors [B, None] to a common number of tokens, int32 [B].

    The result is that of BERT's loop, which removes the last token of the longer one (the second if
    they are equal) until both fit: each keeps half of the tokens, or what the other one leaves.
    """
    lengths = [tf.cast(segment.row_lengths(), tf.int32) for segment in (first, second)]
    first_length = tf.minimum(
        lengths[0], tf.maximum(max_tokens - lengths[1], (max_tokens + 1) // 2)
    )
    return _take_first(first, first_length), _take_first(
        second, tf.minimum(lengths[1], max_tokens - first_length)
    )


def _take_first(segment: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """Returns the first `lengths` of each row of a ragged Tensor."""
    return tf.RaggedTensor.from_tensor(segment.to_tensor(), lengths)
