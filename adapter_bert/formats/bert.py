"""A pretrained BERT in memory, loaded from any format."""

from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from adapter_bert.files import atomic, gfile
from adapter_bert.model import configs, model_variables

Tensors = Dict[str, np.ndarray]


class Bert(NamedTuple):
    """Holds a BERT encoder, with or without its pretraining heads.

    Attributes:
      config: `configs.BertConfig`.
      tensors: dict from Google's names to float32 arrays, with the shapes in
        `model_variables.encoder_shapes`.
      vocab_file: path of the WordPiece vocabulary.
      do_lower_case: whether pretraining lower-cased the text; None if unknown.
      tokens: the vocabulary's tokens by id, if vocab_file has another format than vocab.txt.
      notes: sentences for people about what differs from the source.
    """

    config: configs.BertConfig
    tensors: Tensors
    vocab_file: str
    do_lower_case: Optional[bool] = None
    tokens: Optional[Sequence[str]] = None
    notes: Tuple[str, ...] = ()

    def write_vocabulary(self, path: str) -> None:
        """Writes vocab.txt."""
        if self.tokens is None:
            gfile.copy(self.vocab_file, path)
        else:
            atomic.write_atomically(path, "".join(f"{token}\n" for token in self.tokens))


def count_text(tensors: Mapping[Any, np.ndarray]) -> str:
    """Returns a phrase with the numbers of tensors and parameters."""
    parameters = sum(value.size for value in tensors.values())
    return f"{len(tensors)} tensors, {parameters:,} parameters"


def describe_encoder(config: Any, get_tensor: Callable) -> str:
    """Returns a line with an encoder's sizes and fingerprint, for people.

    Args:
      config: `configs.BertConfig` or `model_variables.EncoderSizes`.
      get_tensor: function from a name to an array.
    """
    fingerprint = model_variables.fingerprint(get_tensor, config)
    return (
        f"BERT: {config.num_hidden_layers} layers, hidden size {config.hidden_size}, fingerprint"
        f" {fingerprint}"
    )
