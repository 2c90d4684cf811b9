"""The kinds of tasks and the registry of the modules that define them.

Everything in which kinds differ is an attribute or method of a `TaskKind`. A task names its kind,
`get` returns the object, and no code compares names. To add a kind, write a module in
`adapter_bert.tasks` that defines `KIND`, and add it to `_MODULES`.

Reports and servers run without TensorFlow, so a kind imports it only in methods that build graphs.

Axes: B examples, S positions, D hidden size, L outputs of the head.
"""

import importlib
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from adapter_bert.shell.errors import UserError

# Task adapter files store these names: a renamed kind could not be read.
_MODULES = {
    "classification": "adapter_bert.tasks.text.classification",
    "regression": "adapter_bert.tasks.text.regression",
    "multilabel": "adapter_bert.tasks.text.multilabel",
    "span": "adapter_bert.tasks.squad.span",
    "tagging": "adapter_bert.tasks.tagging.tagging",
}

# The scores of a constant prediction begin with it; and the number of labels that are predicted.
MAJORITY, PREDICTED_LABELS = "majority_", "predicted_labels"

Ids = Tuple[List[int], List[int]]  # input_ids and segment_ids of a row, without padding.
Outputs = Dict[str, Any]  # The result of `TaskKind.decode`.


class TaskKind:
    """Defines a kind of task: its predictions, and how it is trained, scored and served.

    The head is a linear layer: `output_weights` [L, D] and `output_bias` [L] under `head_scope`.

    Attributes:
      name: its key in the registry.
      reads_tokens: whether the head reads each token's output; otherwise the pooled output.
      head_scope: prefix of the names of the head's variables.
      score: the default score by which a task of this kind is judged.
      fields: the names of a request's texts.
      example: a text for each of `fields`, for a task without an example of its own.
      num_required: the number of `fields`, from the first, that a request must have.
      words_field: the name of a list of words that a request may have instead of its texts, or
        None.
      answer_types: the names of an answer's parts and their TensorFlow Serving types.
      predicted: the part of an answer that is the prediction alone; None for the whole answer.
      has_text_signature: whether the model reads a plain text or pair, so that a SavedModel can
        tokenize it.
      adapterhub_head: the type of AdapterHub's head that is the same layer, or None.
      pipeline_tag: the Hub's name for this kind of task.
      script: the script that trains tasks of this kind.
      sets_rows_apart: whether a split without a file may be a share of the training rows.
      result_files: patterns of the files in output_dir that the script writes from a run's weights.
      other_files: patterns of the files and folders that it writes besides, in this order.
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
    predicted: Optional[str] = None
    has_text_signature = False
    adapterhub_head: Optional[str] = None
    pipeline_tag = "text-classification"
    script = "run_classifier.py"
    sets_rows_apart = False
    result_files: Tuple[str, ...] = ()
    other_files: Tuple[str, ...] = ()

    def num_outputs(self, num_labels: int) -> int:
        """Returns L, the number of outputs of the head."""
        return num_labels

    def head_shapes(self, num_labels: int, hidden_size: int) -> Dict[str, Tuple[int, ...]]:
        """Returns the shapes of the head's variables, by name."""
        outputs = self.num_outputs(num_labels)
        return {
            self.head_scope + "output_weights": (outputs, hidden_size),
            self.head_scope + "output_bias": (outputs,),
        }

    def decode(self, logits: Any) -> Outputs:
        """Returns the predictions of one row, arrays or numbers by name.

        Args:
          logits: float array [L], or [S, L] without padding if the kind reads tokens.
        """
        raise NotImplementedError

    def answer(self, outputs: Outputs, labels: Sequence[str]) -> Any:
        """Returns the JSON answer for one row.

        Args:
          outputs: the result of `decode`.
          labels: the task's labels.
        """
        raise NotImplementedError

    def request_reader(self, description: Any, tokenizer: Any, where: str) -> Callable:
        """Returns a function that encodes the texts of a request.

        The function takes a str or None for each of `fields`, or a list of words alone if the
        request has `words_field`. It returns a list of `Ids`, the rows to compute, and a function
        from the list of their `Outputs` to the JSON answer. It raises `UserError` for texts that
        cannot be encoded.

        Args:
          description: `task_adapter.Description`.
          tokenizer: `tokenization.FullTokenizer`.
          where: prefix of error messages.

        Raises:
          UserError: the description does not say how to encode texts.
        """
        raise NotImplementedError

    def data_paths(self, values: Dict[str, Optional[str]]) -> Dict[str, List[str]]:
        """Returns the files of a task's splits "train", "dev" and "test", from flags.

        For the kinds that run_classifier.py trains, `glue` and `custom_tasks` find the files.

        Args:
          values: the values of "data_dir" and the file flags; None for a flag that is not given.

        Raises:
          UserError: the folder lacks the files of a task.
        """
        raise NotImplementedError

    def export(self, logits: Any, labels: Any, is_label: Any) -> Dict[str, Any]:
        """Returns the outputs of a SavedModel for a batch of this kind's tasks.

        Several tasks may share a SavedModel; only the rows of this kind's tasks count.

        Args:
          logits: float Tensor [B, M], or [B, S, M] if the kind reads tokens; M is the largest L.
          labels: string Tensor [B, N], N being the largest number of labels; "" is padding.
          is_label: bool Tensor [B, N], false for padding.

        Returns:
          Tensors [B, ...] by name. Outputs of the same name have the same shape in all kinds.
        """
        raise NotImplementedError

    def export_onnx(
        self, graph: Any, logits: str, shape: List[Any]
    ) -> Dict[str, Tuple[str, List[Any]]]:
        """Adds the outputs of an ONNX file of a single task of this kind; by default its logits.

        Args:
          graph: `onnx_graph.Graph`.
          logits: name of the Tensor [B, L], or [B, S, L] if the kind reads tokens.
          shape: its shape, in which strings stand for any size.

        Returns:
          (name of a float Tensor [B, ...], its shape) by output.
        """
        return {"logits": (logits, shape)}


def names() -> List[str]:
    """Returns the names of all kinds."""
    return list(_MODULES)


def kinds() -> List[TaskKind]:
    """Returns all kinds."""
    return [get(name) for name in _MODULES]


def get(name: str) -> TaskKind:
    """Returns the kind with a name; raises `UserError` if there is none."""
    if name not in _MODULES:
        raise UserError(f"kind={name}: expected one of {', '.join(_MODULES)}.")
    return importlib.import_module(_MODULES[name]).KIND


def is_reference(score: str) -> bool:
    """Returns whether a score is only a reference for others, which summaries omit."""
    return MAJORITY in score or score.endswith(PREDICTED_LABELS)


def predicts_one_label(scores: Dict[str, float], stage: str, reads_tokens: bool) -> bool:
    """Returns whether all of a stage's predictions are one label; False if the scores do not say.

    Args:
      scores: by name, as in a task adapter's description.
      stage: "eval" or "test".
      reads_tokens: of the task's kind. Tags of spans, scored by F1, are counted without "O".
    """
    count = scores.get(f"{stage}_{PREDICTED_LABELS}")
    is_spans = reads_tokens and f"{stage}_f1" in scores
    return count is not None and count <= (0 if is_spans else 1)


def round_float(value: float) -> float:
    """Returns a float32 as the shortest float that identifies it, for JSON."""
    return float(f"{value:.7g}")


def recorded_answer(training: Dict[str, Any], name: str, default: Any, lower: Any = None) -> Any:
    """Returns a flag's value in the "answers" of a task adapter's `training`.

    Args:
      training: of a `task_adapter.Description`.
      name: the flag's.
      default: the value if none is recorded.
      lower: minimum, or None.

    Raises:
      UserError: the value has another type than the default, or is below the minimum.
    """
    answers = training.get("answers", {})
    value = answers.get(name, default) if isinstance(answers, dict) else None
    if type(value) is not type(default) or (lower is not None and value < lower):
        raise UserError(f"training.answers.{name} is {value!r}, which --{name} does not accept.")
    return value


def is_custom(training: Dict[str, Any]) -> bool:
    """Returns whether an adapter's `training` names the columns of a custom task.

    Such a task is not GLUE's, whatever its name. Earlier versions named all of them "custom".
    """
    answers = training.get("answers")
    return isinstance(answers, dict) and "text_column" in answers


def strip_padding(features: Any) -> Ids:
    """Returns the input_ids and segment_ids of any `InputFeatures`, without padding."""
    length = sum(features.input_mask)
    return features.input_ids[:length], features.segment_ids[:length]
