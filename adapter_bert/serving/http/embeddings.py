"""OpenAI's embeddings API, for served tasks and for BERT itself.

    POST /v1/embeddings  {"model": "mrpc", "input": ["a text", "another one"]}

Two further fields choose the layer and the pooling: {"layer": -1, "pooling": "mean"}. A text is
encoded as extract_features.py encodes it: [CLS] text [SEP], truncated to the task's max_seq_length.
"""

import base64
import dataclasses
from typing import Any, Dict, Generator, List, NamedTuple, Tuple

import numpy as np

from adapter_bert.formats import task_adapter
from adapter_bert.model import configs
from adapter_bert.serving.http import messages, served_tasks
from adapter_bert.serving.inference import bank, request_texts
from adapter_bert.shell.errors import UserError

BERT = "@bert"  # The model without an adapter. No task has this name.
FORMATS = "float", "base64"
_FIELDS = {"model", "input", "encoding_format", "dimensions", "user", "layer", "pooling"}
_DECIMALS = 7  # As many as a float32 near 1 has.


class EncodedTexts(NamedTuple):
    """A request's texts, encoded.

    Attributes:
      model: name of a task, or `BERT`.
      encoding_format: one of `FORMATS`.
      tasks: the `served_tasks.ServedTask` of each text; empty for BERT.
      encoded: a `bank.Row` of each text.
    """

    model: str
    encoding_format: str
    tasks: List[served_tasks.ServedTask]
    encoded: List[bank.Row]

    def rows(self) -> List[bank.Row]:
        """Returns the rows to compute."""
        return self.encoded

    def answer(
        self, outputs: List[Any]
    ) -> Generator[None, None, Tuple[bytes, List[served_tasks.ServedTask]]]:
        """Returns (response's body in OpenAI's format, task of each text), in steps."""
        yield
        messages.check_outputs(outputs)
        vectors = [output["features"] for output in outputs]  # float32 [D].
        if self.encoding_format == "base64":
            values = [base64.b64encode(v.astype("<f4").tobytes()).decode() for v in vectors]
        else:
            values = np.stack(vectors).astype(np.float64).round(_DECIMALS).tolist()
        num_tokens = sum(len(row.input_ids) for row in self.encoded)
        items: List[Dict[str, Any]] = [
            {"object": "embedding", "index": index, "embedding": value}
            for index, value in enumerate(values)
        ]
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        value = {"object": "list", "data": items, "model": self.model, "usage": usage}
        return messages.dump_json(value), self.tasks


def encode(
    body: bytes,
    get_task: messages.GetTask,
    bert: task_adapter.Description,
    encoding: request_texts.TextEncoding,
    max_texts: int,
) -> Generator[Any, None, EncodedTexts]:
    """Returns a request's `EncodedTexts`, in steps for `admission.Readers`.

    Raises UserError if the request is invalid.
    """
    expected = '{"model": "<task>", "input": "a text" or ["a text", ...]}'
    value = messages.parse_object(body, _FIELDS, f"{expected}, with layer or pooling")
    model, texts = value.get("model"), value.get("input")
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(model, str) or not isinstance(texts, list):
        raise UserError(f"expected {expected}; the model {BERT} is BERT without an adapter")
    if not 0 < len(texts) <= max_texts:
        raise UserError(f"found {len(texts)} texts; expected 1 to {max_texts}")
    encoding_format = value.get("encoding_format", FORMATS[0])
    if encoding_format not in FORMATS:
        raise UserError(f"encoding_format: expected {' or '.join(FORMATS)}")
    if value.get("dimensions") not in (None, encoding.config.hidden_size):
        raise UserError(f"dimensions: expected {encoding.config.hidden_size}, which the BERT has")
    features = _parse_features(value, encoding.config)
    description, key, tasks = bert, None, []
    if model != BERT:
        task = yield from get_task(model)
        description, key, tasks = task.description, task.key, [task] * len(texts)
    reader = _reader(description, encoding, model == BERT)
    rows = []
    for index, text in enumerate(texts):
        yield
        try:
            ((ids, segments),) = reader.encode({"text": text}).rows
        except UserError as error:
            raise UserError(f"input[{index}]: {error}") from None
        rows.append(bank.Row(key, ids, segments, features))
    return EncodedTexts(model, encoding_format, tasks, rows)


def _parse_features(value: Dict[str, Any], config: configs.BertConfig) -> bank.Features:
    layer, pooling = value.get("layer", -1), value.get("pooling", bank.POOLINGS[0])
    if type(layer) is not int:
        raise UserError("layer: expected a whole number")
    if not isinstance(pooling, str):
        raise UserError(f"pooling: expected {' or '.join(bank.POOLINGS)}")
    features = bank.Features(layer, pooling)
    bank.check_features(features, config)
    return features


def _reader(
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
