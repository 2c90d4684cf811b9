"""What a task is asked, as JSON has it → the rows that BERT reads; their outputs → the answer.

An instance is {"text": ..., "text_b": ...}, or a text alone; of a span task {"question": ...,
"context": ...}; of any task {"input_ids": [...], "segment_ids": [...]}, which may have padding that
an "input_mask" tells. Texts become rows as in a training of the task.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

import tokenization
from adapter_bert.common import configs
from adapter_bert.common.errors import UserError
from adapter_bert.formats import task_adapter
from adapter_bert.tasks import classifier_features, squad_answers, squad_data, squad_features

Outputs = List[Dict[str, Any]]  # Of rows, as `bank.AdapterBank.predict` gives them.

_ID_FIELDS = ("input_ids", "input_mask", "segment_ids")
# Kind of task → its fields, of which the first ones are needed.
_FIELDS = {"span": ("question", "context")}
_NUM_REQUIRED_FIELDS = {"span": 2}
# Kind of task → what an answer to texts holds; a value alone has no name.
ANSWER_FIELDS = {
    "classification": ("label", "probabilities"),
    "multilabel": ("labels", "probabilities"),
    "regression": (),
    "span": ("answer", "probability"),
}


class EncodedRequest(NamedTuple):
    """An instance as BERT reads it.

    Attributes:
      rows: list of (input_ids, segment_ids), lists of ints without padding; several where a
        context is read in windows.
      decode: function of these rows' `Outputs`; returns a JSON value.
    """

    rows: List[Tuple[List[int], List[int]]]
    decode: Callable[[Outputs], Any]


class Tokenizers:
    """The tokenizers of one vocabulary, with and without lower-casing.

    Args:
      vocab_file: path of a WordPiece vocabulary, or of a SentencePiece model.
      is_sentencepiece: bool, which of them.

    Attributes:
      digest: of the vocabulary, as a `task_adapter.Description` has it.

    Raises:
      UserError: it cannot be read, or lacks a token that BERT's inputs need.
    """

    def __init__(self, vocab_file: str, is_sentencepiece: bool = False):
        self.is_sentencepiece = is_sentencepiece
        model = vocab_file if is_sentencepiece else None
        self._by_case = {
            lower_case: tokenization.FullTokenizer(vocab_file, lower_case, spm_model_file=model)
            for lower_case in (False, True)
        }
        self._by_case[False].check_special_tokens()
        self.vocab = self._by_case[False].vocab
        self.digest = task_adapter.digest(self.vocab)

    def get(self, do_lower_case: bool) -> tokenization.FullTokenizer:
        """The `tokenization.FullTokenizer`."""
        return self._by_case[do_lower_case]


class TextEncoding(NamedTuple):
    """What all tasks over one BERT are read by.

    Attributes:
      config: `configs.BertConfig`.
      tokenizers: `Tokenizers`.
      max_text_length: the most characters of a text.
    """

    config: configs.BertConfig
    tokenizers: Tokenizers
    max_text_length: int


class TaskTexts:
    """Reads the instances of a task. One thread at a time may do so.

    Args:
      description: `task_adapter.Description`.
      encoding: `TextEncoding` of the BERT that it was trained on.
      where: begins an error's sentence.

    Attributes:
      fields: the names of the task's texts.

    Raises:
      UserError: the task has another vocabulary, or sizes that no text fits.
    """

    def __init__(self, description: task_adapter.Description, encoding: TextEncoding, where: str):
        tokenizers = encoding.tokenizers
        if description.vocabulary != tokenizers.digest:
            raise UserError(
                f"{where} was trained with another vocabulary, whose digest is"
                f" {description.vocabulary!r}; expected {tokenizers.digest!r}."
            )
        self._description, self._kind = description, description.kind
        self._config, self._max_text_length = encoding.config, encoding.max_text_length
        self._tokenizer = tokenizers.get(description.do_lower_case)
        self.fields = _FIELDS.get(self._kind, ("text", "text_b"))
        length, max_length = description.max_seq_length, self._config.max_position_embeddings
        min_length = classifier_features.SHORTEST
        if not min_length <= length <= max_length:
            raise UserError(
                f"{where} has max_seq_length {length}; expected {min_length} to {max_length}."
            )
        if self._kind == "span":
            self._limits, self._answer_settings = _span_settings(
                description, tokenizers.is_sentencepiece, where
            )

    def encode(self, instance: Any) -> EncodedRequest:
        """The `EncodedRequest` of an instance; raises UserError if it is none of this task."""
        if isinstance(instance, str) and self._kind != "span":
            instance = {"text": instance}
        if not isinstance(instance, dict):
            raise UserError(f"expected an object with {self._expected_fields()}")
        if "input_ids" in instance:
            return self._encode_ids(instance)
        num_required = _NUM_REQUIRED_FIELDS.get(self._kind, 1)
        unknown_fields = set(instance) - set(self.fields)
        if unknown_fields or not set(self.fields[:num_required]) <= set(instance):
            present = ", ".join(sorted(instance)) or "nothing"
            raise UserError(f"found {present[:100]}; expected {self._expected_fields()}")
        texts: List[Any] = [instance.get(name) for name in self.fields]
        for name, text in zip(self.fields, texts):
            if name in instance:
                self._check_text(name, text)
        return self._encode_span(*texts) if self._kind == "span" else self._encode_text(*texts)

    def _expected_fields(self) -> str:
        texts = " and ".join(self.fields) if self._kind == "span" else "text (and text_b)"
        return f"{texts}, or input_ids and segment_ids"

    def _check_text(self, name: str, text) -> None:
        if not isinstance(text, str):
            raise UserError(f"{name} is no string")
        if len(text) > self._max_text_length:
            raise UserError(
                f"{name} has {len(text):,} characters; expected at most {self._max_text_length:,}"
                " (--max_text_length)"
            )

    def _encode_text(self, text: str, text_b: Optional[str]) -> EncodedRequest:
        example = classifier_features.InputExample("", text, text_b, label="0")
        features = classifier_features.convert_single_example(
            ex_index=np.inf,
            example=example,
            label_list=None,
            max_seq_length=self._description.max_seq_length,
            tokenizer=self._tokenizer,
        )
        return EncodedRequest([_strip_padding(features)], self._format_answer)

    def _encode_span(self, question: str, context: str) -> EncodedRequest:
        _, words = squad_data.words_of(context)
        example = squad_data.SquadExample("", question, words)
        (tokenized,) = squad_features.tokenized([example], self._tokenizer, self._limits, False)
        features = squad_features.window_features(
            tokenized, 0, 0, self._tokenizer, self._limits.max_seq_length
        )
        if not features:
            raise UserError("context has no words")

        def decode(outputs):
            windows = [
                (feature, squad_answers.RawResult(feature.unique_id, *_span_logits(output)))
                for feature, output in zip(features, outputs)
            ]
            best = squad_answers.choose_answer(words, windows, self._answer_settings)
            probabilities = {entry["text"]: entry["probability"] for entry in best.nbest}
            return {
                "answer": best.text,
                "probability": _round_float(probabilities.get(best.text, 0.0)),
            }

        return EncodedRequest([_strip_padding(feature) for feature in features], decode)

    def _encode_ids(self, instance: Dict[str, Any]) -> EncodedRequest:
        unknown_fields = sorted(set(instance) - set(_ID_FIELDS))
        if unknown_fields:
            raise UserError(
                f"found {unknown_fields[0][:100]!r}; expected {', '.join(_ID_FIELDS)} alone"
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
                raise UserError(f"{name} has {len(values)} values, input_ids {len(ids)}")
        length = sum(mask)
        if not length or 0 in mask[:length]:
            raise UserError("input_mask must have ones, and then zeros for padding")
        return EncodedRequest([(ids[:length], segments[:length])], self._format_raw_answer)

    def _format_raw_answer(self, outputs: Outputs):
        if self._kind != "span":
            return self._format_answer(outputs)
        names = ("start_logits", "end_logits")
        return {
            name: [_round_float(value) for value in logits]
            for name, logits in zip(names, _span_logits(*outputs))
        }

    def _format_answer(self, outputs: Outputs):
        """What the output of a row that is no span's comes down to."""
        (output,) = outputs
        if self._kind == "regression":
            return _round_float(output["prediction"])
        probabilities, labels = output["probabilities"], self._description.labels
        by_label = {label: _round_float(value) for label, value in zip(labels, probabilities)}
        if self._kind == "multilabel":
            threshold = classifier_features.LABEL_THRESHOLD
            selected = [label for label, value in zip(labels, probabilities) if value > threshold]
            return {"labels": selected, "probabilities": by_label}
        return {"label": labels[int(np.argmax(probabilities))], "probabilities": by_label}


def _span_settings(
    description: task_adapter.Description, is_sentencepiece: bool, where: str
) -> Tuple[squad_features.Limits, squad_answers.AnswerSettings]:
    """(`squad_features.Limits`, `squad_answers.AnswerSettings`) as the task's training had them."""
    try:
        settings = squad_features.trained_settings(description.training)
        version_2 = settings.pop("version_2_with_negative")
        limits = squad_features.Limits(max_seq_length=description.max_seq_length, **settings)
        squad_features.check_limits(limits)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    answer_settings = squad_answers.AnswerSettings(
        do_lower_case=description.do_lower_case,
        version_2_with_negative=version_2,
        sentencepiece=is_sentencepiece,
    )
    return limits, answer_settings


def _strip_padding(features):
    """(input_ids, segment_ids) of any `InputFeatures`."""
    length = sum(features.input_mask)
    return features.input_ids[:length], features.segment_ids[:length]


def _check_ids(name: str, values, size: int, max_length: int) -> None:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise UserError(f"{name} is no list of integers")
    if not 0 < len(values) <= max_length:
        raise UserError(f"{name} has {len(values)} values; expected 1 to {max_length}")
    if min(values) < 0 or max(values) >= size:
        raise UserError(
            f"{name} has values from {min(values)} to {max(values)}; expected 0 to {size - 1}"
        )


def _span_logits(output):
    return output["start_logits"].tolist(), output["end_logits"].tolist()


def _round_float(value: float) -> float:
    """A float32 in as few digits as tell it."""
    return float(f"{value:.7g}")
