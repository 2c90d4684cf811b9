"""OpenAI's embeddings API, for served tasks and for BERT itself.

    POST /v1/embeddings  {"model": "mrpc", "input": ["a text", "another one"]}

Two further fields choose the layer and the pooling: {"layer": -1, "pooling": "mean"}. A text is
encoded as extract_features.py encodes it: [CLS] text [SEP], truncated to the task's max_seq_length.
"""

import base64
import dataclasses
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np

from adapter_bert.formats import task_adapter
from adapter_bert.model import configs
from adapter_bert.serving.http import messages
from adapter_bert.serving.inference import bank, request_texts
from adapter_bert.shell.errors import UserError

BERT = "@bert"  # The model without an adapter. No task has this name.
FORMATS = "float", "base64"
_FIELDS = {"model", "input", "encoding_format", "dimensions", "user", "layer", "pooling"}
_DECIMALS = 7  # As many as a float32 near 1 has.


class EmbeddingRequest(NamedTuple):
    """A request for embeddings.

    Attributes:
      model: name of a task, or `BERT`.
      texts: list of str.
      features: `bank.Features`.
      encoding_format: one of `FORMATS`.
    """

    model: str
    texts: List[str]
    features: bank.Features
    encoding_format: str

    @property
    def task(self) -> Optional[str]:
        """The task's name; None for BERT."""
        return None if self.model == BERT else self.model


def parse(body: bytes, config: configs.BertConfig, max_texts: int) -> EmbeddingRequest:
    """Returns the `EmbeddingRequest` of a request's body; raises UserError if it is invalid."""
    expected = '{"model": "<task>", "input": "a text" or ["a text", ...]}'
    value = messages.parse_object(body, _FIELDS, f"{expected}, with layer or pooling")
    model, texts = value.get("model"), value.get("input")
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(model, str) or not isinstance(texts, list):
        raise UserError(f"expected {expected}; the model {BERT} is BERT without an adapter")
    if not 0 < len(texts) <= max_texts:
        raise UserError(f"found {len(texts)} texts; expected 1 to {max_texts}")
    layer, pooling = value.get("layer", -1), value.get("pooling", bank.POOLINGS[0])
    if type(layer) is not int:
        raise UserError("layer: expected a whole number")
    if not isinstance(pooling, str):
        raise UserError(f"pooling: expected {' or '.join(bank.POOLINGS)}")
    features = bank.Features(layer, pooling)
    bank.check_features(features, config)
    encoding_format = value.get("encoding_format", FORMATS[0])
    if encoding_format not in FORMATS:
        raise UserError(f"encoding_format: expected {' or '.join(FORMATS)}")
    if value.get("dimensions") not in (None, config.hidden_size):
        raise UserError(f"dimensions: expected {config.hidden_size}, which the BERT has")
    return EmbeddingRequest(model, texts, features, encoding_format)


class EncodedTexts(NamedTuple):
    """The texts of an `EmbeddingRequest`, encoded.

    Attributes:
      request: the `EmbeddingRequest`.
      tasks: the `registry.ServedTask` of each text; empty for BERT.
      encoded: a `bank.Row` of each text.
    """

    request: EmbeddingRequest
    tasks: List[Any]
    encoded: List[bank.Row]

    def rows(self) -> List[bank.Row]:
        """Returns the rows to compute."""
        return self.encoded

    def decode(self, outputs: request_texts.Outputs) -> np.ndarray:
        """Returns the vector of one text, float32 [D]."""
        return outputs[0]["features"]

    def answer(self, vectors: List[np.ndarray]) -> bytes:
        """Returns the answer in OpenAI's format."""
        if self.request.encoding_format == "base64":
            values = [base64.b64encode(v.astype("<f4").tobytes()).decode() for v in vectors]
        else:
            values = np.stack(vectors).astype(np.float64).round(_DECIMALS).tolist()
        num_tokens = sum(len(row.input_ids) for row in self.encoded)
        items: List[Dict[str, Any]] = [
            {"object": "embedding", "index": index, "embedding": value}
            for index, value in enumerate(values)
        ]
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        return messages.dump_json(
            {"object": "list", "data": items, "model": self.request.model, "usage": usage}
        )


def reader(
    description: task_adapter.Description, encoding: request_texts.TextEncoding, is_bert: bool
) -> request_texts.TaskTexts:
    """Returns a `request_texts.TaskTexts` that encodes single texts, whatever the task's kind.

    Args:
      description: the task's, or that of BERT in a bank.
      encoding: `request_texts.TextEncoding`.
      is_bert: whether it is BERT's.
    """
    changes: Dict[str, Any] = {}
    if is_bert:
        changes["vocabulary"] = encoding.tokenizers.digest
        changes["do_lower_case"] = encoding.do_lower_case
    return request_texts.TaskTexts(
        dataclasses.replace(
            description,
            kind="classification",
            training={},
            presentation=task_adapter.Presentation(fields=("text",)),
            **changes,
        ),
        encoding,
        "the model",
    )
