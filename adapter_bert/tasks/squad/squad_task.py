"""The SQuAD task: settings, encoded windows, and answers from predictions."""

import dataclasses
import itertools
import posixpath
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
from absl import logging

from adapter_bert import tokenization
from adapter_bert.files import gfile
from adapter_bert.model import task_kinds
from adapter_bert.shell.errors import UserError
from adapter_bert.shell.settings import flag
from adapter_bert.tasks import token_spans
from adapter_bert.tasks.squad import (
    squad_answers,
    squad_data,
    squad_features,
    squad_report,
    squad_scores,
)
from adapter_bert.training import (
    evaluations,
    feature_cache,
    starting_point,
    stored_predictions,
)
from adapter_bert.training.config import FinetuningConfig
from adapter_bert.training.rows import TextRows
from adapter_bert.training.task import Evaluated, Task

_DEFAULTS = squad_answers.AnswerSettings()


@dataclasses.dataclass(frozen=True)
class SquadConfig(FinetuningConfig):
    """The settings of run_squad.py."""

    train_file: Optional[str] = flag(
        None,
        "Training set, SQuAD's JSON, such as train-v1.1.json.",
        "Task and data",
        is_input=True,
        records={"data": "the training data"},
    )
    predict_file: Optional[str] = flag(
        None,
        "Dev set, SQuAD's JSON, such as dev-v1.1.json.",
        "Task and data",
        is_input=True,
        records={"dev_data": "the dev data"},
    )
    max_seq_length: int = flag(
        384,
        "Tokens of a row: a question and a window of its paragraph.",
        "Task and data",
        binds_evaluation=True,
    )
    doc_stride: int = flag(
        squad_features.DOC_STRIDE,
        "Stride of the windows over a paragraph, in tokens.",
        "Task and data",
        binds_evaluation=True,
    )
    max_query_length: int = flag(
        squad_features.MAX_QUERY_LENGTH,
        "Longest question in tokens; longer ones are truncated.",
        "Task and data",
        lower=1,
        binds_evaluation=True,
    )
    version_2_with_negative: bool = flag(
        False,
        "SQuAD 2.0: questions may have no answer.",
        "Task and data",
        binds_evaluation=True,
    )
    n_best_size: int = flag(
        _DEFAULTS.n_best_size,
        "Number of answers per question in nbest_predictions.json, and of starts and ends"
        " considered per window.",
        "Evaluation and prediction",
        lower=1,
    )
    max_answer_length: int = flag(
        _DEFAULTS.max_answer_length,
        "Longest answer in tokens.",
        "Evaluation and prediction",
        lower=1,
    )
    null_score_diff_threshold: float = flag(
        _DEFAULTS.null_score_diff_threshold,
        '"No answer" is predicted if its score exceeds the best answer\'s by more than this.',
        "Evaluation and prediction",
    )
    verbose_logging: bool = flag(
        False, "Log each answer that cannot be located in its text.", "Evaluation and prediction"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for stage in self.stages:
            name = "train_file" if stage == "train" else "predict_file"
            if not getattr(self, name):
                raise UserError(f"--{name} is required: a JSON file in SQuAD's format.")
        squad_features.check_limits(self.limits)
        if "null_score_diff_threshold" in self.given_flags and not self.version_2_with_negative:
            raise UserError("--null_score_diff_threshold requires --version_2_with_negative.")
        if self.tuning.train_pooler:
            raise UserError("--train_pooler: question answering does not use the pooler.")

    @property
    def limits(self) -> squad_features.Limits:
        """The limits of questions and windows."""
        return squad_features.Limits(self.max_seq_length, self.doc_stride, self.max_query_length)

    @property
    def task_name(self) -> str:
        """The name of the task; scores of its two versions are not comparable."""
        return "SQuAD 2.0" if self.version_2_with_negative else "SQuAD"

    @property
    def answers(self) -> Dict[str, Any]:
        """How answers are chosen, where it differs from the defaults; see `trained_settings`."""
        defaults = squad_answers.trained_settings({})
        named = {name: getattr(self, name) for name in defaults}
        return {name: value for name, value in named.items() if value != defaults[name]}


def trained_settings(training: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the flags of run_squad.py that a task adapter supplies, from its `training`."""
    return {
        **squad_features.trained_settings(training),
        **squad_answers.trained_settings(training),
    }


def from_flags(values: Any) -> "Tuple[SquadConfig, SquadTask, starting_point.StartingPoint]":
    """Returns the settings, task and starting point of run_squad.py's flags; raises UserError."""
    start = starting_point.find(values, "squad", trained_settings, "run_squad.py")
    config = SquadConfig.from_flags(values, start.supplied)
    return config, SquadTask(config), start


def windows(config: SquadConfig, tokenizer: Any, is_training: bool) -> Tuple[TextRows, int, str]:
    """Returns the windows of a file's questions, from the cache if they are in it.

    Args:
      config: `SquadConfig`.
      tokenizer: `tokenization.FullTokenizer`.
      is_training: bool; reads --train_file, otherwise --predict_file.

    Returns:
      (`TextRows`, number of questions, digest of the file).

    Raises:
      UserError: the file is missing, or is not SQuAD's JSON with the version's answers, or no
        paragraph has any words.
    """
    path = str(config.train_file if is_training else config.predict_file)
    version_2 = config.version_2_with_negative

    def make(add: Callable) -> None:
        def note(left_out: str) -> None:
            text = left_out.encode("utf-8", "backslashreplace")
            add({"left_out": np.frombuffer(text, np.uint8)})

        examples = squad_data.read_squad_examples(
            path, is_training, version_2_with_negative=version_2, report=note, lazily=True
        )
        questions = squad_features.tokenize_questions(
            examples, tokenizer, config.limits, is_training
        )
        squad_features.add_rows(questions, tokenizer, add)
        if gfile.sha256(path) != digest:  # Else the cache would keep them under its digest.
            raise UserError(f"{path} has changed while it was read; run again.")

    folder, verify = config.feature_folder, config.verify_data
    digest = feature_cache.file_sha256(folder, path, verify)
    key = feature_cache.key_of(
        [digest, tokenizer.fingerprint, is_training, version_2, tuple(config.limits)],
        [squad_data, squad_features, token_spans, tokenization],
    )
    arrays = feature_cache.load_or_build(folder, key, make, verify)
    if not len(arrays["a_start"]):
        raise UserError(f"{path}: no paragraph has any words.")
    if "left_out" in arrays:
        logging.warning("%s: %s.", path, arrays.pop("left_out").tobytes().decode())
    num_questions = int(arrays.pop("num_questions").sum())
    cls_id, sep_id = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    rows = TextRows(arrays, cls_id, sep_id, config.max_seq_length)
    rows.key = arrays.digest
    return rows, num_questions, digest


class SquadTask(Task):
    """Question answering; its split "test" is its split "dev". See `Task`.

    Args:
      config: `SquadConfig`.
    """

    name, kind = "SQuAD", "span"

    def __init__(self, config: SquadConfig):
        self.config, self.folder = config, config.folder_of("squad")
        exact = "exact" if config.version_2_with_negative else "exact_match"
        self.score = config.choose_score(("f1", exact), "f1")
        self.answer_settings = config.answers
        self._stages: Sequence[str] = ()
        self._predict_file = str(config.predict_file)
        self._truths: Any = None
        self._questions: Dict[str, str] = {}  # By id; of --predict_file.
        self._digest = ""
        self._tokenizer: Any = None
        self._choice = squad_answers.AnswerSettings(
            config.n_best_size,
            config.max_answer_length,
            config.do_lower_case,
            config.version_2_with_negative,
            config.null_score_diff_threshold,
            config.verbose_logging,
            exact=bool(config.spm_model_file),
        )

    def load(self, stages: Sequence[str]) -> None:
        """Reads the true answers of --predict_file; `encode` streams the questions.

        Raises:
          UserError: answers will be scored, but --predict_file has none.
        """
        self._stages = stages
        if "eval" in stages:
            version_2 = self.config.version_2_with_negative
            self._truths = squad_data.answer_texts(self._predict_file, version_2)

    def encode(self, tokenizer: Any) -> Dict[str, Any]:
        """Returns the `TextRows` of windows; see `Task`."""
        config, rows, self._tokenizer = self.config, {}, tokenizer
        train_digest = None
        if {"eval", "predict"} & set(self._stages):  # First: the training set takes longer to read.
            predict, _, self._digest = windows(config, tokenizer, False)
            for stage, split in (("eval", "dev"), ("predict", "test")):
                if stage in self._stages:
                    rows[split] = predict
            names = ("n_best_size", "max_answer_length", "null_score_diff_threshold")
            self.dev_settings = {name: getattr(config, name) for name in names}
            self.dev_settings["dev_data"] = self._digest
        if "train" in self._stages:
            rows["train"], self.num_examples, train_digest = windows(config, tokenizer, True)
        names = ("doc_stride", "max_query_length", "version_2_with_negative")
        self.settings = {"data": train_digest, **{name: getattr(config, name) for name in names}}
        return rows

    def evaluate(self, split: str, predictions: Any) -> Evaluated:
        """Returns a dict from ids to `squad_answers.Answer`s, and with true answers the scores.

        Raises:
          UserError: --predict_file has changed since its windows were read.
        """
        try:
            answers = self._answers(stored_predictions.rows_of(predictions))
        except UserError:  # The file may be in the middle of a rewrite.
            self._check_unchanged()
            raise
        # Only now, as reading predictions may be what computes them.
        self._check_unchanged()
        if self._truths is None:
            return Evaluated(answers, {})
        scores = self._scores(answers)
        return Evaluated(answers, scores, self._warnings(answers, scores))

    def _check_unchanged(self) -> None:
        if gfile.sha256(self._predict_file) != self._digest:
            raise UserError(
                f"--predict_file={self._predict_file} has changed since its questions were read;"
                " run again and leave it unchanged until they are answered."
            )

    def _answers(self, predictions: Iterator[Dict[str, Any]]) -> Dict[str, Any]:
        answers: Dict[str, Any] = {}
        windows: List[Any] = []

        def examples() -> Iterator[Any]:
            examples = squad_data.read_squad_examples(self._predict_file, False, lazily=True)
            for example in examples:
                self._questions[example.qas_id] = example.question_text
                yield example
                # By now, `read` has had all windows of this example.
                answers[example.qas_id] = squad_answers.choose_answer(
                    example.doc_tokens, windows, self._choice
                )
                windows.clear()

        def read(feature: Any) -> None:
            # If the file has changed, there may be more windows than predictions.
            for prediction in itertools.islice(predictions, 1):
                windows.append((feature, squad_answers.raw_result(feature, prediction)))

        limits = self.config.limits
        squad_features.convert_examples_to_features(
            examples(),
            self._tokenizer,
            limits.max_seq_length,
            limits.doc_stride,
            limits.max_query_length,
            is_training=False,
            output_fn=read,
        )
        return answers

    def _scores(self, answers: Dict[str, Any]) -> Dict[str, float]:
        """Returns the scores of the version's official script, named eval_..."""
        texts = {key: answer.text for key, answer in answers.items()}
        if self.config.version_2_with_negative:
            odds = {key: answer.null_odds for key, answer in answers.items()}
            threshold = self.config.null_score_diff_threshold
            scores = squad_scores.scores_v2(self._truths, texts, odds, threshold)
            constant = squad_scores.no_answer_score(self._truths)
            scores[task_kinds.MAJORITY + self.score] = constant
        else:
            scores = squad_scores.scores_v1(self._truths, texts)
        return {"eval_" + name: value for name, value in scores.items()}

    def _warnings(self, answers: Dict[str, Any], scores: Dict[str, float]) -> Tuple[str, ...]:
        """Returns sentences on answers of SQuAD 2.0 no better than "no answer" to all questions."""
        score, constant = (
            scores.get(f"eval_{name}") for name in (self.score, task_kinds.MAJORITY + self.score)
        )
        if score is None or constant is None:
            return ()
        if not any(answer.text for answer in answers.values()):
            return (
                f"All {len(answers):,} dev questions are predicted to have no answer: the model has"
                " learned nothing else.",
            )
        if score > constant:
            return ()
        return (
            f"{self.score} {score:.1f} is no better than {constant:.1f} of always predicting that"
            " there is no answer.",
        )

    def describe(self, split: str, evaluated: Evaluated) -> str:
        """Returns the scores of each kind of question, and the worst answers; see `Task`."""
        if split != "dev" or self._truths is None:  # The split "test" has the same answers.
            return ""
        version_2 = self.config.version_2_with_negative
        return squad_report.describe(self._questions, self._truths, evaluated.answers, version_2)

    def plot(self, folder: str, split: str, evaluated: Evaluated) -> List[str]:
        """Draws the F1 of each kind of question; see `Task`."""
        if split != "dev" or self._truths is None:
            return []
        path, version_2 = (
            posixpath.join(folder, "questions.png"),
            self.config.version_2_with_negative,
        )
        arguments = self._questions, self._truths, evaluated.answers, version_2
        return [squad_report.plot(path, self.config.task_name, *arguments)]

    def write(self, folder: str, split: str, evaluated: Evaluated) -> List[str]:
        """Writes the files of BERT's script for the split "test"; see `Task`."""
        if split != "test":
            return []
        names = ["predictions.json", "nbest_predictions.json", "null_odds.json"]
        paths = [posixpath.join(folder, name) for name in names]
        config = self.config
        if not config.version_2_with_negative:
            gfile.remove_if_exists(paths[-1])  # Of an earlier prediction.
        squad_answers.write_predictions(
            *((), (), ()),  # `answers` stands for the examples, features and results.
            config.n_best_size,
            config.max_answer_length,
            config.do_lower_case,
            *paths,
            version_2_with_negative=config.version_2_with_negative,
            answers=evaluated.answers,
        )
        written = ", ".join(paths if config.version_2_with_negative else paths[:-1])
        return [f"Predictions: {written} ({len(evaluated.answers)} questions)"]

    def metadata(self, stage: str) -> Dict[str, Any]:
        """Returns the header of a file of scores, which are not comparable between versions."""
        return {"task": self.config.task_name, "score": f"{stage}_{self.score}"}

    def summary(self, stage: str, scores: Dict[str, Any]) -> str:
        """Returns the scores on one line, F1 first."""
        shown = evaluations.scalars(scores, stage + "_")
        names = sorted(shown, key=lambda name: (name != "f1", name))
        names = [name for name in names if not task_kinds.is_reference(name)]
        parts = [f"{name} {shown[name]:.2f}" for name in names if not name.endswith("total")]
        return f"SQuAD: {', '.join(parts)}"
