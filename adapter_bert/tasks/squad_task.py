"""SQuAD as a task: its settings, the windows of its questions, and what becomes of predictions."""

import dataclasses
import posixpath
from typing import Any, Dict, Optional

import numpy as np
from absl import logging

import tokenization
from adapter_bert.common import files, metrics
from adapter_bert.common.errors import UserError
from adapter_bert.common.settings import flag
from adapter_bert.tasks import squad_answers, squad_data, squad_features, squad_scores
from adapter_bert.training import feature_cache
from adapter_bert.training.config import FinetuningConfig
from adapter_bert.training.rows import TextRows


@dataclasses.dataclass(frozen=True)
class SquadConfig(FinetuningConfig):
    """The settings of run_squad.py."""

    train_file: Optional[str] = flag(
        None, "SQuAD's JSON for training, train-v1.1.json.", "Task and data"
    )
    predict_file: Optional[str] = flag(
        None, "SQuAD's JSON to predict and to evaluate on, dev-v1.1.json.", "Task and data"
    )
    max_seq_length: int = flag(
        384, "WordPieces of a question and a window of its paragraph.", "Task and data"
    )
    doc_stride: int = flag(
        squad_features.DOC_STRIDE,
        "How far a window is from the one before, in WordPieces.",
        "Task and data",
    )
    max_query_length: int = flag(
        squad_features.MAX_QUERY_LENGTH,
        "WordPieces of a question; longer ones are cut.",
        "Task and data",
        lower=1,
    )
    version_2_with_negative: bool = flag(
        False, "Some questions have no answer (SQuAD 2.0).", "Task and data"
    )
    n_best_size: int = flag(
        20, "Answers in nbest_predictions.json.", "Evaluation and prediction", lower=1
    )
    max_answer_length: int = flag(
        30, "WordPieces of an answer.", "Evaluation and prediction", lower=1
    )
    null_score_diff_threshold: float = flag(
        0.0,
        "How much better than any answer none must score to be predicted.",
        "Evaluation and prediction",
    )
    verbose_logging: bool = flag(
        False, "Log each answer whose text is not found again.", "Evaluation and prediction"
    )

    def __post_init__(self):
        super().__post_init__()
        squad_features.check_limits(self.limits)
        if self.tuning.train_pooler:
            raise UserError("--train_pooler: question answering does not read the pooler.")

    @property
    def limits(self) -> squad_features.Limits:
        """The `squad_features.Limits` of the windows."""
        return squad_features.Limits(self.max_seq_length, self.doc_stride, self.max_query_length)

    @property
    def task_name(self) -> str:
        """What is answered, in two versions whose scores do not compare."""
        return "SQuAD 2.0" if self.version_2_with_negative else "SQuAD"

    def settings_of(self, digest: str) -> Dict[str, Any]:
        """Returns what decides the weights besides the model: the training file and its windows."""
        names = ("doc_stride", "max_query_length", "version_2_with_negative")
        return {"data": digest, **{name: getattr(self, name) for name in names}}

    def dev_settings_of(self, digest: str) -> Dict[str, Any]:
        """Returns what decides the dev scores: the file and how answers are chosen."""
        names = ("n_best_size", "max_answer_length", "null_score_diff_threshold")
        return {"dev_data": digest, **{name: getattr(self, name) for name in names}}


def windows(config, tokenizer, is_training):
    """Returns the windows of a file's questions, from the cache if it has them.

    Args:
      config: `SquadConfig`.
      tokenizer: `tokenization.FullTokenizer`.
      is_training: bool; of --train_file, else of --predict_file.

    Returns:
      (`TextRows`, number of questions, digest of the file).
    """
    path = config.train_file if is_training else config.predict_file
    if not path:
        flag = "train_file" if is_training else "predict_file"
        raise UserError(f"--{flag} is not given, expected SQuAD's JSON.")
    version_2 = config.version_2_with_negative

    def make(add):
        def note(left_out):
            text = left_out.encode("utf-8", "backslashreplace")
            add({"left_out": np.frombuffer(text, np.uint8)})

        examples = squad_data.squad_examples(path, is_training, version_2, note)
        questions = squad_features.tokenize_questions(
            examples, tokenizer, config.limits, is_training
        )
        squad_features.add_rows(questions, tokenizer, add)

    digest = files.sha256(path)
    key = feature_cache.key_of(
        [digest, tokenizer.fingerprint, is_training, version_2, tuple(config.limits)],
        [squad_data, squad_features, tokenization],
    )
    arrays = feature_cache.load_or_build(config.feature_folder, key, make)
    if not len(arrays["is_real_example"]):
        raise UserError(f"{path}: no paragraph has a word, so that there is nothing to read.")
    if "left_out" in arrays:
        logging.warning("%s: %s.", path, arrays.pop("left_out").tobytes().decode())
    num_questions = int(arrays.pop("num_questions").sum())
    cls_id, sep_id = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    return TextRows(arrays, cls_id, sep_id, config.max_seq_length), num_questions, digest


class Reader:
    """Reads answers out of the windows' predictions, and scores them.

    Args:
      config: `SquadConfig`.
      tokenizer: `tokenization.FullTokenizer`.
      digest: of --predict_file, as `windows` found it.
      can_score: bool; whether answers will be scored.

    Raises:
      UserError: there is nothing to score by in --predict_file.
    """

    def __init__(self, config, tokenizer, digest, can_score):
        self._path = config.predict_file
        self._digest = digest
        if can_score:
            self._truths = squad_data.answer_texts(self._path, config.version_2_with_negative)
        self._tokenizer = tokenizer
        self._limits = config.limits
        self._settings = squad_answers.AnswerSettings(
            config.n_best_size,
            config.max_answer_length,
            config.do_lower_case,
            config.version_2_with_negative,
            config.null_score_diff_threshold,
            config.verbose_logging,
            sentencepiece=bool(config.spm_model_file),
        )

    def answers(self, predictions):
        """A dict from ids to `squad_answers.Answer`s, of an iterable of the windows' logits.

        Raises:
          UserError: --predict_file is no longer the one that the windows were made of.
        """
        try:
            result = self._answers(iter(predictions))
        except UserError:  # Of a file that is being rewritten.
            self._check_unchanged()
            raise
        # Not before: predictions may be made only while they are read.
        self._check_unchanged()
        return result

    def _check_unchanged(self):
        if files.sha256(self._path) != self._digest:
            raise UserError(
                f"--predict_file {self._path} has changed since its questions were read; expected"
                " it to stay as it is until they are answered."
            )

    def _answers(self, predictions):
        examples = squad_data.squad_examples(self._path, False)
        questions = squad_features.tokenize_questions(
            examples, self._tokenizer, self._limits, False
        )
        answers, unique_id = {}, squad_features.FIRST_UNIQUE_ID
        for index, question in enumerate(questions):
            features = squad_features.window_features(
                question, index, unique_id, self._tokenizer, self._limits.max_seq_length
            )
            windows = [
                (feature, _raw_result(feature, prediction))
                for feature, prediction in zip(features, predictions)
            ]
            example = question.example
            answers[example.qas_id] = squad_answers.choose_answer(
                example.doc_tokens, windows, self._settings
            )
            unique_id += len(features)
        return answers

    def scores(self, answers):
        """Those of the official script for the version, named eval_..."""
        texts = {key: answer.text for key, answer in answers.items()}
        if self._settings.version_2_with_negative:
            odds = {key: answer.null_odds for key, answer in answers.items()}
            threshold = self._settings.null_score_diff_threshold
            scores = squad_scores.scores_v2(self._truths, texts, odds, threshold)
        else:
            scores = squad_scores.scores_v1(self._truths, texts)
        return {"eval_" + name: value for name, value in scores.items()}

    def write(self, folder, answers):
        """Writes the files of BERT's script; returns their paths."""
        names = ["predictions.json", "nbest_predictions.json"]
        if self._settings.version_2_with_negative:
            names.append("null_odds.json")
        paths = [posixpath.join(folder, name) for name in names]
        squad_answers.write_answers(answers, *paths)
        return paths


def _raw_result(feature, prediction):
    start, end = (prediction[name].tolist() for name in ("start_logits", "end_logits"))
    return squad_answers.RawResult(feature.unique_id, start, end)


def summary(result):
    """Returns the line that reports the scores, F1 first."""
    shown = metrics.scalars(result, "eval_")
    names = sorted(shown, key=lambda name: (name != "f1", name))
    parts = [f"{name} {shown[name]:.2f}" for name in names if not name.endswith("total")]
    return f"SQuAD: {', '.join(parts)}"
