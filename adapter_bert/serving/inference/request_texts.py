"""Encodes instances of requests for BERT, and decodes its outputs into predictions.

An instance is an object with the fields of the task's kind, such as {"text": ..., "text_b": ...}.
It may be a string if the kind requires one text only, and {"tokens": [...]}, a list of words, for
some kinds. Every task also accepts {"input_ids": [...], "segment_ids": [...]}, with an optional
"input_mask". Texts are encoded as in training.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from adapter_bert import tokenization
from adapter_bert.formats import task_adapter
from adapter_bert.model import configs, task_kinds
from adapter_bert.serving.inference import presentations
from adapter_bert.shell.errors import UserError

Outputs = List[Dict[str, Any]]  # One per row, as `bank.AdapterBank.predict` returns them.

_ID_FIELDS = ("input_ids", "input_mask", "segment_ids")


class EncodedRequest(NamedTuple):
    """An instance, encoded for BERT.

    Attributes:
      rows: list of (input_ids, segment_ids), lists of ints without padding; several if a text is
        split into windows.
      decode: function of these rows' `Outputs` that returns the prediction, a JSON value.
    """

    rows: List[Tuple[List[int], List[int]]]
    decode: Callable[[Outputs], Any]


class Tokenizers:
    """The tokenizers of one vocabulary, with and without lower-casing.

    Args:
      vocab_file: path of a WordPiece vocabulary, or of a SentencePiece model.
      is_sentencepiece: bool; whether vocab_file is a SentencePiece model.

    Attributes:
      digest: the vocabulary's, as in `task_adapter.Description`.

    Raises:
      UserError: the file cannot be read, or lacks a special token of BERT.
    """

    def __init__(self, vocab_file: str, is_sentencepiece: bool = False):
        model = vocab_file if is_sentencepiece else None
        self._by_case = {
            lower_case: tokenization.FullTokenizer(vocab_file, lower_case, spm_model_file=model)
            for lower_case in (False, True)
        }
        self._by_case[False].check_special_tokens()
        self.digest = task_adapter.digest(self._by_case[False].vocab)

    def get(self, do_lower_case: bool) -> tokenization.FullTokenizer:
        """Returns the `tokenization.FullTokenizer`."""
        return self._by_case[do_lower_case]


class TextEncoding(NamedTuple):
    """The text encoding that all tasks over one BERT share.

    Attributes:
      config: `configs.BertConfig`.
      tokenizers: `Tokenizers`.
      max_text_length: maximum number of characters in a text.
      do_lower_case: whether texts for BERT without an adapter are lower-cased.
    """

    config: configs.BertConfig
    tokenizers: Tokenizers
    max_text_length: int
    do_lower_case: bool = True


class TaskTexts:
    """Encodes the instances of a task. Any thread may call it.

    Args:
      description: `task_adapter.Description`.
      encoding: `TextEncoding` of the BERT that the task was trained on.
      where: begins error messages.

    Attributes:
      fields: the names of the task's texts; those of its kind if the adapter does not record them.
        A BERT of a single segment id reads no optional second text.

    Raises:
      UserError: the task has another vocabulary, or an invalid max_seq_length.
    """

    def __init__(self, description: task_adapter.Description, encoding: TextEncoding, where: str):
        tokenizers = encoding.tokenizers
        if description.vocabulary != tokenizers.digest:
            raise UserError(
                f"{where} was trained with another vocabulary, whose digest is"
                f" {description.vocabulary!r}; expected {tokenizers.digest!r}."
            )
        kind = self._kind = task_kinds.get(description.kind)
        self._labels = description.labels
        self._config, self._max_text_length = encoding.config, encoding.max_text_length
        self.fields, self._num_required = kind.fields, kind.num_required
        if description.presentation.fields:
            presentation, self._num_required = presentations.of(description)
            self.fields = presentation.fields
        if self._config.type_vocab_size < 2:
            self.fields = self.fields[: self._num_required]
        length, max_length = description.max_seq_length, self._config.max_position_embeddings
        min_length = configs.MIN_SEQ_LENGTH
        if not min_length <= length <= max_length:
            raise UserError(
                f"{where} has max_seq_length {length}; expected {min_length} to {max_length}."
            )
        tokenizer = tokenizers.get(description.do_lower_case)
        self._read_texts = kind.request_reader(description, tokenizer, where)

    def encode(self, instance: Any) -> EncodedRequest:
        """Returns the `EncodedRequest` of an instance; raises UserError if it is invalid."""
        num_required = self._num_required
        if isinstance(instance, str) and num_required == 1:
            instance = {self.fields[0]: instance}
        if not isinstance(instance, dict):
            raise UserError(f"expected an object with {self._expected_fields()}")
        if "input_ids" in instance:
            return self._encode_ids(instance)
        words_field = self._kind.words_field
        if words_field and set(instance) == {words_field}:
            words = instance[words_field]
            self._check_words(words_field, words)
            return EncodedRequest(*self._read_texts(words))
        unknown_fields = set(instance) - set(self.fields)
        if unknown_fields or not set(self.fields[:num_required]) <= set(instance):
            present = ", ".join(sorted(map(str, instance))) or "nothing"
            raise UserError(f"found {present[:100]}; expected {self._expected_fields()}")
        for name, text in instance.items():
            self._check_text(name, text)
        texts: List[Any] = [instance.get(name) for name in self._kind.fields]
        return EncodedRequest(*self._read_texts(*texts))

    def _expected_fields(self) -> str:
        num_required = self._num_required
        texts = " and ".join(self.fields[:num_required])
        if self.fields[num_required:]:
            texts += f" (and {' and '.join(self.fields[num_required:])})"
        if self._kind.words_field:
            texts += f" or {self._kind.words_field}"
        return f"{texts}, or input_ids and segment_ids"

    def _check_words(self, name: str, words: Any) -> None:
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UserError(f"{name} is not a list of strings")
        self._check_length(name, sum(map(len, words)) + len(words))

    def _check_text(self, name: str, text: Any) -> None:
        if not isinstance(text, str):
            raise UserError(f"{name} is not a string, but {text!r:.50}")
        self._check_length(name, len(text))

    def _check_length(self, name: str, length: int) -> None:
        if length > self._max_text_length:
            raise UserError(
                f"{name} has {length:,} characters; expected at most {self._max_text_length:,}"
                " (--max_text_length)"
            )

    def _encode_ids(self, instance: Dict[str, Any]) -> EncodedRequest:
        unknown_fields = sorted(map(str, set(instance) - set(_ID_FIELDS)))
        if unknown_fields:
            raise UserError(
                f"found {unknown_fields[0][:100]!r}; expected only {', '.join(_ID_FIELDS)}"
            )
        config, ids = self._config, instance["input_ids"]
        _check_ids("input_ids", ids, config.vocab_size, config.max_position_embeddings)
        mask = instance.get("input_mask", [1] * len(ids))
        segments = instance.get("segment_ids", [0] * len(ids))
        for name, values, size in (
            ("input_mask", mask, 2),
            ("segment_ids", segments, config.type_vocab_size),
        ):
            _check_ids(name, values, size, config.max_position_embeddings)
            if len(values) != len(ids):
                raise UserError(f"{name} has {len(values)} values, but input_ids has {len(ids)}")
        length = sum(mask)
        if not length or 0 in mask[:length]:
            raise UserError("input_mask must be ones, followed by zeros for padding")
        return EncodedRequest([(ids[:length], segments[:length])], self._answer_ids)

    def _answer_ids(self, outputs: Outputs) -> Any:
        (output,) = outputs
        return self._kind.answer(output, self._labels)


def _check_ids(name: str, values: Any, size: int, max_length: int) -> None:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise UserError(f"{name} is not a list of integers")
    if not 0 < len(values) <= max_length:
        raise UserError(f"{name} has {len(values)} values; expected 1 to {max_length}")
    if min(values) < 0 or max(values) >= size:
        raise UserError(
            f"{name} has values from {min(values)} to {max(values)}; expected 0 to {size - 1}"
        )
