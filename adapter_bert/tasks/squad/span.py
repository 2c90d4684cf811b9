"""Question answering: the answer is a span of a context (Devlin et al. 2018, section 4.2)."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from adapter_bert.model import task_kinds
from adapter_bert.shell.errors import UserError
from adapter_bert.tasks.squad import squad_answers, squad_data, squad_features

_MAX_WINDOWS = 1024  # Of a request's context: each needs about 60 kB.


class Span(task_kinds.TaskKind):
    """Two logits for each token: that the answer starts with it, and ends with it.

    `TaskKind` documents the methods.
    """

    name = "span"
    reads_tokens = True
    head_scope = "cls/squad/"
    score = "f1"
    fields = ("question", "context")
    example = {
        "question": "When was the bridge opened?",
        "context": "Work on the bridge began in 1927. It was opened five years later, in 1932.",
    }
    num_required = 2
    script = "run_squad.py"
    result_files = ("predictions.json", "nbest_predictions.json", "null_odds.json", "questions.png")
    pipeline_tag = "question-answering"
    adapterhub_head = "question_answering"
    predicted = "answer"
    answer_types = {
        "answer": "DT_STRING",
        "probability": "DT_FLOAT",
        "start": "DT_INT32",
        "end": "DT_INT32",
    }

    def num_outputs(self, num_labels: int) -> int:
        """Returns 2, for the start and the end."""
        return 2

    def decode(self, logits: Any) -> task_kinds.Outputs:
        """Returns start_logits and end_logits [S]."""
        start, end = logits.T
        return {"start_logits": start, "end_logits": end}

    def answer(self, outputs: task_kinds.Outputs, labels: Sequence[str]) -> Dict[str, Any]:
        """Returns the logits, as ids alone do not tell the text of a token."""
        return {
            name: [task_kinds.round_float(value) for value in logits]
            for name, logits in outputs.items()
        }

    def request_reader(self, description: Any, tokenizer: Any, where: str) -> Callable:
        """Returns a function that encodes a question and its context as windows."""
        limits, settings = _trained_settings(description, where)

        def read(question: str, context: str) -> Tuple[List[task_kinds.Ids], Callable]:
            starts, words = squad_data.words_of(context)
            example = squad_data.SquadExample("", question, words)
            (tokenized,) = squad_features.tokenize_questions([example], tokenizer, limits, False)
            if len(tokenized.windows) > _MAX_WINDOWS:
                raise UserError(
                    f"context has {len(tokenized.windows):,} windows; expected at most"
                    f" {_MAX_WINDOWS:,}"
                )
            windows = squad_features.window_features(
                tokenized, 0, 0, tokenizer, limits.max_seq_length
            )
            if not windows:
                raise UserError("context has no words")

            def answer(outputs: List[task_kinds.Outputs]) -> Dict[str, Any]:
                return _answer(context, starts, words, windows, outputs, settings)

            return list(map(task_kinds.strip_padding, windows)), answer

        return read

    def data_paths(self, values: Dict[str, Optional[str]]) -> Dict[str, List[str]]:
        """Returns the values of --train_file and --predict_file."""
        named = {"train": values["train_file"], "dev": values["predict_file"]}
        return {split: [path] if path else [] for split, path in named.items()}

    def export(self, logits: Any, labels: Any, is_label: Any) -> Dict[str, Any]:
        """Returns start_logits and end_logits [B, S]."""
        return {"start_logits": logits[:, :, 0], "end_logits": logits[:, :, 1]}

    def export_onnx(
        self, graph: Any, logits: str, shape: List[Any]
    ) -> Dict[str, Tuple[str, List[Any]]]:
        """Adds start_logits and end_logits [B, S]."""
        sizes = graph.op("Shape", logits, start=0, end=2)
        return {
            name: (graph.op("Reshape", part, sizes), shape[:2])
            for name, part in zip(
                ("start_logits", "end_logits"),
                graph.ops("Split", 2, logits, graph.ints(1, 1), axis=-1),
            )
        }


KIND = Span()


def _answer(
    context: str,
    starts: List[int],
    words: List[str],
    windows: "List[squad_features.InputFeatures]",
    outputs: List[task_kinds.Outputs],
    settings: "squad_answers.AnswerSettings",
) -> Dict[str, Any]:
    """Returns the best answer in a context's windows, its probability and its characters."""
    results = map(squad_answers.raw_result, windows, outputs)
    best = squad_answers.choose_answer(words, list(zip(windows, results)), settings)
    if best is squad_answers.NO_CANDIDATE:
        return {"answer": "", "probability": 0.0, "start": 0, "end": 0}
    odds = {entry["text"]: entry["probability"] for entry in best.nbest}
    probability = task_kinds.round_float(odds.get(best.text, 0.0))
    start, end = 0, 0
    if best.words and best.characters:
        start, end = (starts[word] + at for word, at in zip(best.words, best.characters))
    text = context[start:end]
    return {"answer": text, "probability": probability, "start": start, "end": end}


def _trained_settings(
    description: Any, where: str
) -> "Tuple[squad_features.Limits, squad_answers.AnswerSettings]":
    """Returns (`squad_features.Limits`, `squad_answers.AnswerSettings`) of a task's training."""
    try:
        trained = squad_features.trained_settings(description.training)
        version_2 = trained.pop("version_2_with_negative")
        limits = squad_features.Limits(max_seq_length=description.max_seq_length, **trained)
        squad_features.check_limits(limits)
        answers = squad_answers.trained_settings(description.training)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    settings = squad_answers.AnswerSettings(
        version_2_with_negative=version_2,
        exact=True,
        **answers,
    )
    return limits, settings
