"""Trains, evaluates and predicts with BERT on a text classification task, adapters by default.

    python run_classifier.py --task_name=MRPC --adapter_size=64

trains and evaluates; --do_train, --do_eval and --do_predict choose. Flags, output files and the
functions below are those of BERT's script of this name, so that code written for it runs. A flag
that BERT has keeps BERT's default, if its help does not say another.
"""

from adapter_bert.common import environment

if __name__ == "__main__":
    environment.prepare()

import collections
import itertools
import math

from absl import flags

import modeling
from adapter_bert.common import cli
from adapter_bert.common.cli import section
from adapter_bert.common.errors import UserError
from adapter_bert.formats import task_adapter
from adapter_bert.tasks import (
    classifier_features,
    classifier_flags,
    classifier_results,
    heads,
    text_kind,
)
from adapter_bert.tasks.classifier_features import (  # noqa: F401  BERT's users import these from here.
    InputExample,
    InputFeatures,
    PaddingInputExample,
    convert_examples_to_features,
    convert_single_example,
)
from adapter_bert.tasks.glue import (  # noqa: F401  And these.
    ColaProcessor,
    DataProcessor,
    MnliProcessor,
    MrpcProcessor,
    XnliProcessor,
)
from adapter_bert.training import (
    estimator,
    finetuning,
    input_pipeline,
    training_flags,
    tuning_flags,
)


def create_model(
    bert_config,
    is_training,
    input_ids,
    input_mask,
    segment_ids,
    labels,
    num_labels,
    use_one_hot_embeddings,
    *,
    adapter_fn="feedforward_adapter",
):
    """BERT with adapters and the classification head, as BERT's function of this name.

    Returns:
      What `heads.classification_loss` returns.
    """
    encoder = modeling.BertModel(
        bert_config,
        is_training,
        input_ids,
        input_mask,
        segment_ids,
        use_one_hot_embeddings,
        adapter_fn=adapter_fn,
        pooled_only=True,
    )
    return heads.classification_loss(encoder.get_pooled_output(), labels, num_labels, is_training)


def model_fn_builder(
    bert_config,
    num_labels,
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

    It predicts, and a SavedModel of it returns, `probabilities` alone.
    """
    head = heads.classifier_head(num_labels)

    def probabilities_only(*args):
        output = head(*args)
        predictions = {"probabilities": output.predictions["probabilities"]}
        return output._replace(predictions=predictions)

    settings = estimator.ModelSettings(
        bert_config=bert_config,
        init_checkpoint=init_checkpoint,
        adapter_fn=adapter_fn,
        learning_rate=learning_rate,
        num_train_steps=num_train_steps,
        num_warmup_steps=num_warmup_steps,
        use_tpu=use_tpu,
        use_one_hot_embeddings=use_one_hot_embeddings,
        pooled_only=True,
    )
    return estimator.model_fn_builder(settings, probabilities_only)


def input_fn_builder(features, seq_length, is_training, drop_remainder):
    """An input_fn over a list of `InputFeatures`, as BERT's function of this name."""
    del seq_length  # The features have it.
    arrays = classifier_features.features_to_arrays(features)
    return input_pipeline.input_fn_of(arrays, is_training, drop_remainder)


def file_based_convert_examples_to_features(
    examples, label_list, max_seq_length, tokenizer, output_file
):
    """Writes the features of a list of `InputExample` to a TFRecord file."""
    features = convert_examples_to_features(examples, label_list, max_seq_length, tokenizer)
    input_pipeline.write_tfrecord(classifier_features.features_to_arrays(features), output_file)


def file_based_input_fn_builder(input_file, seq_length, is_training, drop_remainder):
    """An input_fn over a file that `file_based_convert_examples_to_features` wrote."""
    arrays = input_pipeline.read_tfrecord(input_file, seq_length)
    return input_pipeline.input_fn_of(arrays, is_training, drop_remainder)


def define_flags(flag_values=flags.FLAGS):
    """Defines all flags of this script."""
    flags.DEFINE_string(
        "class_weights",
        None,
        "Factors of the training loss: balanced, or one for each label in their order, as in 1,5.",
        **section("Training", flag_values),
    )
    classifier_flags.define(flag_values)
    training_flags.define(flag_values)


def run(values):
    """Does what the flags ask for.

    Args:
      values: parsed flags of `define_flags`.

    Returns:
      The report that ends the run: a list of lines.
    """
    trains = "train" in training_flags.stages(values)
    given = tuning_flags.given_adapter(values, trains)
    processor, data_dir = classifier_flags.find_task(values, given)
    task, labels = processor.task, processor.get_labels()
    output_dir = finetuning.output_dir(values, given, values.task_name.lower())
    job = finetuning.Job(
        values, given, output_dir, values.eval_batch_size, classifier_features.SHORTEST
    )
    examples = {stage: _read_examples(processor, stage, data_dir) for stage in job.stages}
    trained_on = examples.get("train", {}).get("train", ())
    kind = text_kind.get(task.kind)
    if values.class_weights and not kind.is_single_label:
        raise UserError("--class_weights goes with labels that are classes (--label_type=class).")
    weights = _class_weights(values.class_weights, labels, [e.label for e in trained_on])
    arrays = {
        stage: {
            split: classifier_flags.encode_examples(some, labels, values, job.tokenizer)
            for split, some in splits.items()
        }
        for stage, splits in examples.items()
    }
    job.begin(
        finetuning.Task(task.name, task.kind, tuple(labels), task.score),
        kind.head(len(labels), weights),
        num_rows=len(trained_on),
        settings={
            "data": _digest(trained_on),
            **({"class_weights": weights} if weights else {}),
        },
        dev_settings={"dev_data": _digest(*examples.get("eval", {}).values())},
    )
    labeled = {split for split in arrays.get("predict", ()) if processor.has_labels(split)}
    del examples, trained_on, processor  # All texts: a training has no use for them.
    return _run_stages(job, arrays, task, labeled, output_dir, values.eval_batch_size)


def _digest(*splits):
    """A short name for what lists of `InputExample`s hold."""
    some = itertools.chain.from_iterable(splits)
    return task_adapter.digest((e.text_a, e.text_b, e.label) for e in some)


def _class_weights(text, labels, trained_on):
    """--class_weights as a list of a float for each label; None for equal weights.

    "balanced" gives each label the same say: N / (L n) for the n of N rows that have it.
    """
    if text is None or not trained_on:
        return None
    if text == "balanced":
        of = collections.Counter(trained_on)
        counts = [of[label] for label in labels]
        return [len(trained_on) / (len(labels) * count) if count else 0.0 for count in counts]
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        weights = []
    fit = len(weights) == len(labels) and all(0 <= weight < math.inf for weight in weights)
    if not fit or not any(weights):
        raise UserError(
            f"--class_weights={text}: expected balanced, or a number from 0 up for each label of"
            f" {', '.join(labels)}, not all of them 0."
        )
    return weights


_SPLITS = {"train": "train", "eval": "dev", "predict": "test"}


def _read_examples(processor, stage, data_dir):
    """The `InputExample`s that a stage works on, by split."""
    splits = processor.splits_of(_SPLITS[stage], data_dir)
    return {split: processor.get_examples(split, data_dir) for split in splits}


def _run_stages(job, arrays, task, labeled, output_dir, eval_batch_size):
    """Trains, evaluates and predicts what there are arrays for; returns the report's lines."""
    eval_sets = {
        split: finetuning.EvalSet(rows, _stacked, _score_fn(task, split, rows, eval_batch_size))
        for split, rows in arrays.get("eval", {}).items()
    }
    report = job.train_and_evaluate(
        arrays.get("train", {}).get("train"),
        list(eval_sets.values()),
        classifier_results.about(task, "eval"),
        lambda result: f"{task.name} dev: {classifier_results.summary(task, 'eval', result)}",
    )
    for split, some in eval_sets.items():
        labels, predictions = some.arrays["label_ids"], job.decode(some)
        classifier_results.write_answers(output_dir, task, split, labels, predictions)
    for split, rows in arrays.get("predict", {}).items():
        labels = rows["label_ids"] if split in labeled else None
        predictions = _stacked(job.predict(rows))
        lines, _ = classifier_results.write_test(output_dir, task, split, predictions, labels)
        report += lines
    return report


def _stacked(predictions):
    return classifier_results.stacked(list(predictions))


def _score_fn(task, split, rows, batch_size):
    """What scores the predictions of a dev set's rows.

    A second dev set's scores have its name, as eval_mismatched_accuracy.
    """
    second = split[len("dev_") :]

    def score_fn(predictions):
        found = classifier_results.scores(task, rows["label_ids"], predictions)
        if second:
            return classifier_results.named("eval_" + second, found)
        loss = classifier_results.mean_of_batches(predictions["loss"], batch_size)
        return {**classifier_results.named("eval", found), "loss": loss}

    return score_fn


main = cli.main_of(run)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
