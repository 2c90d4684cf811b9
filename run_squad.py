"""Trains, evaluates and predicts with BERT on SQuAD, adapters by default.

    python run_squad.py --train_file=train-v1.1.json --predict_file=dev-v1.1.json

trains and evaluates; --do_train, --do_eval and --do_predict choose. Flags, output files and the
functions below are those of BERT's script of this name, so that code written for it runs. A flag
that BERT has keeps BERT's default, if its help does not say another.
"""

from adapter_bert.common import environment

if __name__ == "__main__":
    environment.prepare()

import posixpath

import numpy as np
from absl import flags, logging

import modeling
import tokenization
from adapter_bert.common import cli, files, metrics
from adapter_bert.common.cli import section
from adapter_bert.common.errors import UserError
from adapter_bert.tasks import heads, squad_answers, squad_data, squad_features, squad_scores
from adapter_bert.tasks.squad_answers import (  # noqa: F401  BERT's users import these from here.
    RawResult,
    get_final_text,
    write_predictions,
)
from adapter_bert.tasks.squad_data import SquadExample, read_squad_examples  # noqa: F401  And these.
from adapter_bert.tasks.squad_features import InputFeatures, convert_examples_to_features  # noqa: F401  And these.
from adapter_bert.training import (
    bert_flags,
    estimator,
    feature_cache,
    finetuning,
    training_flags,
    tuning_flags,
)
from adapter_bert.training.rows import TextRows


def create_model(
    bert_config,
    is_training,
    input_ids,
    input_mask,
    segment_ids,
    use_one_hot_embeddings,
    *,
    adapter_fn="feedforward_adapter",
):
    """BERT with adapters and the span head, as BERT's function of this name.

    Returns:
      (start_logits [B, S], end_logits [B, S]).
    """
    encoder = modeling.BertModel(
        bert_config,
        is_training,
        input_ids,
        input_mask,
        segment_ids,
        use_one_hot_embeddings,
        adapter_fn=adapter_fn,
    )
    return heads.span_logits(encoder.get_sequence_output())


def model_fn_builder(
    bert_config,
    init_checkpoint,
    learning_rate,
    num_train_steps,
    num_warmup_steps,
    use_tpu,
    use_one_hot_embeddings,
    *,
    adapter_fn="feedforward_adapter",
):
    """The model_fn for TPUEstimator, as BERT's function of this name.

    Predictions hold the features' unique_ids.
    """
    settings = estimator.ModelSettings(
        bert_config=bert_config,
        init_checkpoint=init_checkpoint,
        adapter_fn=adapter_fn,
        learning_rate=learning_rate,
        num_train_steps=num_train_steps,
        num_warmup_steps=num_warmup_steps,
        use_tpu=use_tpu,
        use_one_hot_embeddings=use_one_hot_embeddings,
    )

    def head(encoder, features, is_training, dropout_key):
        output = heads.squad_head(encoder, features, is_training, dropout_key)
        unique_ids = {"unique_ids": features["unique_ids"]}
        return output._replace(predictions={**unique_ids, **output.predictions})

    return estimator.model_fn_builder(settings, head)


def define_flags(flag_values=flags.FLAGS):
    """Defines all flags of this script."""
    _define_data(section("Task and data", flag_values))
    bert_flags.define_feature_cache(flag_values)
    _define_answers(section("Evaluation and prediction", flag_values))
    training_flags.define(flag_values)


def _define_data(at):
    flags.DEFINE_string("train_file", None, "SQuAD's JSON for training, train-v1.1.json.", **at)
    flags.DEFINE_string(
        "predict_file", None, "SQuAD's JSON to predict and to evaluate on, dev-v1.1.json.", **at
    )
    flags.DEFINE_integer(
        "max_seq_length", 384, "WordPieces of a question and a window of its paragraph.", **at
    )
    flags.DEFINE_integer(
        "doc_stride", 128, "How far a window is from the one before, in WordPieces.", **at
    )
    flags.DEFINE_integer(
        "max_query_length", 64, "WordPieces of a question; longer ones are cut.", 1, **at
    )
    flags.DEFINE_bool(
        "version_2_with_negative", False, "Some questions have no answer (SQuAD 2.0).", **at
    )


def _define_answers(at):
    flags.DEFINE_integer("n_best_size", 20, "Answers in nbest_predictions.json.", 1, **at)
    flags.DEFINE_integer("max_answer_length", 30, "WordPieces of an answer.", 1, **at)
    flags.DEFINE_float(
        "null_score_diff_threshold",
        0.0,
        "How much better than any answer none must score to be predicted.",
        **at,
    )
    flags.DEFINE_bool(
        "verbose_logging", False, "Log each answer whose text is not found again.", **at
    )


def run(values):
    """Does what the flags ask for.

    Args:
      values: parsed flags of `define_flags`.

    Returns:
      The report that ends the run: a list of lines.
    """
    trains = "train" in training_flags.stages(values)
    given = tuning_flags.given_adapter(values, trains, squad_features.trained_settings)
    limits = squad_features.Limits(
        values.max_seq_length, values.doc_stride, values.max_query_length
    )
    squad_features.check_limits(limits)
    if values.train_pooler:
        raise UserError("--train_pooler: question answering does not read the pooler.")
    output_dir = finetuning.output_dir(values, given, "squad")
    job = finetuning.Job(values, given, output_dir, values.predict_batch_size, shortest=5)
    train = predict = predict_digest = None
    num_questions, settings, dev_settings = 0, {}, {}
    if "train" in job.stages:
        train, num_questions, digest = _rows(values, True, job.tokenizer, limits)
        settings = {
            "data": digest,
            "doc_stride": values.doc_stride,
            "max_query_length": values.max_query_length,
            "version_2_with_negative": values.version_2_with_negative,
        }
    if {"eval", "predict"} & set(job.stages):
        predict, _, predict_digest = _rows(values, False, job.tokenizer, limits)
        names = ("n_best_size", "max_answer_length", "null_score_diff_threshold")
        dev_settings = {"dev_data": predict_digest}
        dev_settings.update((name, values[name].value) for name in names)
    reader = _Reader(values, job.tokenizer, limits, predict_digest, "eval" in job.stages)
    task = finetuning.Task("SQuAD", "span", (), score="f1")
    job.begin(task, heads.squad_head, num_questions, settings, dev_settings)
    return _run_stages(job, train, predict, reader, output_dir)


def _rows(values, is_training, tokenizer, limits):
    """The `TextRows` of a file's windows, from the cache if they have been made before.

    Args:
      is_training: bool; of --train_file, else of --predict_file.

    Returns:
      (`TextRows`, number of questions, digest of the file).
    """
    path = values.train_file if is_training else values.predict_file
    if not path:
        flag = "train_file" if is_training else "predict_file"
        raise UserError(f"--{flag} is not given, expected SQuAD's JSON.")
    version_2 = values.version_2_with_negative

    def make(add):
        def tell(left_out):
            text = left_out.encode("utf-8", "backslashreplace")
            add({"left_out": np.frombuffer(text, np.uint8)})

        examples = squad_data.squad_examples(path, is_training, version_2, tell)
        questions = squad_features.tokenized(examples, tokenizer, limits, is_training)
        squad_features.add_rows(questions, tokenizer, add)

    digest = files.sha256(path)
    key = feature_cache.key_of(
        [digest, tokenizer.fingerprint, is_training, version_2, tuple(limits)],
        [squad_data, squad_features, tokenization],
    )
    arrays = feature_cache.cached(bert_flags.feature_folder(values), key, make)
    if not len(arrays["is_real_example"]):
        raise UserError(f"{path}: no paragraph has a word, so that there is nothing to read.")
    if "left_out" in arrays:
        logging.warning("%s: %s.", path, arrays.pop("left_out").tobytes().decode())
    num_questions = int(arrays.pop("num_questions").sum())
    cls_id, sep_id = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    return TextRows(arrays, cls_id, sep_id, limits.max_seq_length), num_questions, digest


class _Reader:
    """Makes answers of predictions, and, if it `can_score`, scores of answers.

    Raises:
      UserError: there is nothing to score by in --predict_file.
    """

    def __init__(self, values, tokenizer, limits, digest, can_score):
        self._path = values.predict_file
        self._digest = digest
        if can_score:
            self._truths = squad_data.answer_texts(self._path, values.version_2_with_negative)
        self._tokenizer = tokenizer
        self._limits = limits
        self._settings = squad_answers.AnswerSettings(
            values.n_best_size,
            values.max_answer_length,
            values.do_lower_case,
            values.version_2_with_negative,
            values.null_score_diff_threshold,
            values.verbose_logging,
            sentencepiece=bool(values.spm_model_file),
        )

    @property
    def task(self):
        """What is answered, in two versions whose scores do not compare."""
        return "SQuAD 2.0" if self._settings.version_2_with_negative else "SQuAD"

    def answers(self, predictions):
        """A dict from ids to `squad_answers.Answer`s, of an iterable of the windows' logits.

        Raises:
          UserError: --predict_file is no longer the one that the windows were made of.
        """
        try:
            found = self._answers(iter(predictions))
        except UserError:  # Of a file that is being rewritten.
            self._check_unchanged()
            raise
        # Not before: predictions may be made only while they are read.
        self._check_unchanged()
        return found

    def _check_unchanged(self):
        if files.sha256(self._path) != self._digest:
            raise UserError(
                f"--predict_file {self._path} has changed since its questions were read; expected"
                " it to stay as it is until they are answered."
            )

    def _answers(self, predictions):
        examples = squad_data.squad_examples(self._path, False)
        questions = squad_features.tokenized(examples, self._tokenizer, self._limits, False)
        found, unique_id = {}, squad_features.FIRST_UNIQUE_ID
        for index, question in enumerate(questions):
            features = squad_features.window_features(
                question, index, unique_id, self._tokenizer, self._limits.max_seq_length
            )
            windows = [
                (feature, _raw_result(feature, prediction))
                for feature, prediction in zip(features, predictions)
            ]
            example = question.example
            found[example.qas_id] = squad_answers.choose_answer(
                example.doc_tokens, windows, self._settings
            )
            unique_id += len(features)
        return found

    def scores(self, answers):
        """Those of the official script for the version, named eval_..."""
        texts = {key: answer.text for key, answer in answers.items()}
        if self._settings.version_2_with_negative:
            odds = {key: answer.null_odds for key, answer in answers.items()}
            threshold = self._settings.null_score_diff_threshold
            found = squad_scores.scores_v2(self._truths, texts, odds, threshold)
        else:
            found = squad_scores.scores_v1(self._truths, texts)
        return {"eval_" + name: value for name, value in found.items()}

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
    return RawResult(feature.unique_id, start, end)


def _run_stages(job, train, predict, reader, output_dir):
    """Trains, evaluates and predicts as the job asks for; returns the report's lines."""
    eval_set = finetuning.EvalSet(predict, reader.answers, reader.scores)
    report = job.train_and_evaluate(
        train,
        [eval_set] if "eval" in job.stages else [],
        {"task": reader.task, "score": "eval_f1"},
        _summary,
    )
    if "predict" in job.stages:
        answers = job.decode(eval_set)
        written = ", ".join(reader.write(output_dir, answers))
        report.append(f"Predictions: {written} ({len(answers)} questions)")
    return report


def _summary(result):
    """The line that tells the scores, F1 first."""
    shown = metrics.scalars(result, "eval_")
    names = sorted(shown, key=lambda name: (name != "f1", name))
    parts = [f"{name} {shown[name]:.2f}" for name in names if not name.endswith("total")]
    return f"SQuAD: {', '.join(parts)}"


main = cli.main_of(run)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
