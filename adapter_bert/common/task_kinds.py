"""The kinds of tasks: what each one predicts, and where each is defined.

Whatever differs between kinds is an attribute or a method of one object, a `TaskKind`. A task has
the name of its kind, `get` returns the object, and nothing compares names. To add a kind, write a
module of `adapter_bert.tasks` that defines `KIND`, and add it to `_MODULES`.

Reports and servers run without TensorFlow, so a kind imports it only in methods that build graphs.

Axes: B examples, S positions, D hidden size, L outputs of the head.
"""

import importlib
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from adapter_bert.common.errors import UserError

# Each name stands in the files of task adapters: renaming a kind would make them unreadable.
_MODULES = {
    "classification": "adapter_bert.tasks.classification",
    "regression": "adapter_bert.tasks.regression",
    "multilabel": "adapter_bert.tasks.multilabel",
    "span": "adapter_bert.tasks.span",
    "tagging": "adapter_bert.tasks.tagging",
}

Ids = Tuple[List[int], List[int]]  # The input_ids and segment_ids of a row, without padding.
Outputs = Dict[str, Any]  # What `TaskKind.decode` returns.


class TaskKind:
    """What one kind of task predicts, and how it is trained, scored and served.

    The head is a linear layer: `output_weights` [L, D] and `output_bias` [L] under `head_scope`.

    Attributes:
      name: its key in the registry.
      reads_tokens: the head reads the output of each token, else the pooled output.
      head_scope: what the names of the head's variables begin with.
      score: the score by which a task of this kind is judged, unless the task names another.
      fields: the names of a request's texts.
      example: a text for each of `fields`, to try a task with that has no example of its own.
      num_required: how many of `fields`, the first ones, a request must have.
      words_field: the name of a list of words, which a request may have in place of its texts; None
        if it may not.
      answer_types: the names of an answer's parts, and TensorFlow Serving's type of each.
      has_text_signature: the model reads a text or a pair of texts as it is, so that a SavedModel
        can tokenize it.
      has_adapterhub_head: AdapterHub's classification head is the same layer.
      script: the script that trains tasks of this kind.
    """

    name: str
    reads_tokens = False
    head_scope = ""
    score: str
    fields: Tuple[str, ...] = ("text",)
    example: Dict[str, str] = {
        "text": "See you at lunch, or after the film if the trains are late."
    }
    num_required = 1
    words_field: Optional[str] = None
    answer_types: Dict[str, str]
    has_text_signature = False
    has_adapterhub_head = False
    script = "run_classifier.py"

    def num_outputs(self, num_labels: int) -> int:
        """Returns L, the number of the head's outputs."""
        return num_labels

    def head_shapes(self, num_labels: int, hidden_size: int) -> Dict[str, Tuple[int, ...]]:
        """Returns the shapes of the head's variables, by name."""
        outputs = self.num_outputs(num_labels)
        return {
            self.head_scope + "output_weights": (outputs, hidden_size),
            self.head_scope + "output_bias": (outputs,),
        }

    def head(self, num_labels: int) -> Callable:
        """Returns the head that `model_fn.model_fn_builder` takes: layer, loss and predictions."""
        raise NotImplementedError

    def decode(self, logits) -> Outputs:
        """Returns the predictions for one row, as arrays or numbers by name.

        Args:
          logits: float array [L], or [S, L] without padding if the kind reads tokens.
        """
        raise NotImplementedError

    def answer(self, outputs: Outputs, labels: Sequence[str]) -> Any:
        """Returns the JSON answer to one row of token ids.

        Args:
          outputs: what `decode` returns.
          labels: the task's.
        """
        raise NotImplementedError

    def request_reader(self, description, tokenizer, where: str) -> Callable:
        """Returns a function that encodes the texts of a request.

        It takes a str, or None where it is missing, for each of `fields`; or a list of str alone,
        where the request has `words_field`. It returns a list of `Ids`, the rows to compute, and a
        function from the list of their `Outputs` to the JSON answer. It raises `UserError` for
        texts that cannot be encoded.

        Args:
          description: `task_adapter.Description`.
          tokenizer: `tokenization.FullTokenizer`.
          where: begins an error's sentence.

        Raises:
          UserError: the description does not say how to read texts.
        """
        raise NotImplementedError

    def data_paths(self, values: Dict[str, Optional[str]]) -> Dict[str, List[str]]:
        """Returns the files of the splits "train", "dev" and "test" of a task, as flags name them.

        Of the kinds that run_classifier.py trains, `glue` and `custom_tasks` know the files.

        Args:
          values: the flags "data_dir" and those of files; None where one is not given.

        Raises:
          UserError: a folder does not have the files of a task.
        """
        raise NotImplementedError

    def export(self, logits, labels, is_label) -> Dict[str, Any]:
        """Builds the outputs of a SavedModel for a batch of this kind's tasks.

        Several tasks may share a SavedModel; only the rows of this kind's tasks count.

        Args:
          logits: float Tensor [B, M], or [B, S, M] if the kind reads tokens, M being the largest L.
          labels: string Tensor [B, N], N being the most labels; a task with fewer has "" there.
          is_label: bool Tensor [B, N], false where it has "".

        Returns:
          Tensors [B, ...] by name. An output of the same name has the same shape in each kind.
        """
        raise NotImplementedError

    def export_onnx(self, graph, logits: str) -> Dict[str, str]:
        """Adds the outputs of an ONNX file of a single task of this kind; by default its logits.

        Args:
          graph: `onnx_encoder.Graph`.
          logits: name of the Tensor [B, L], or [B, S, L] if the kind reads tokens.

        Returns:
          Names of float Tensors [B, ...] by output.
        """
        return {"logits": logits}


def names() -> List[str]:
    """Returns the names of all kinds."""
    return list(_MODULES)


def get(name: str) -> TaskKind:
    """Returns the kind of a name; raises `UserError` if there is none."""
    if name not in _MODULES:
        raise UserError(f"kind={name}: expected one of {', '.join(_MODULES)}.")
    return importlib.import_module(_MODULES[name]).KIND


def round_float(value: float) -> float:
    """Returns a float32 with the fewest digits that identify it, for JSON."""
    return float(f"{value:.7g}")


def pair_ids(ids_a: List[int], ids_b: List[int], cls_id: int, sep_id: int) -> Ids:
    """Returns the input_ids and segment_ids of a text, or of a pair where ids_b is not empty."""
    first = [cls_id, *ids_a, sep_id]
    second = [*ids_b, sep_id] if ids_b else []
    return first + second, [0] * len(first) + [1] * len(second)


def strip_padding(features) -> Ids:
    """Returns the input_ids and segment_ids of any `InputFeatures`, without padding."""
    length = sum(features.input_mask)
    return features.input_ids[:length], features.segment_ids[:length]
