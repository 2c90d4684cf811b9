"""Trains, evaluates and predicts with BERT on a text classification task, adapters by default.

    python run_classifier.py --task_name=MRPC --adapter_size=64

trains and evaluates; --do_train, --do_eval and --do_predict choose. Flags, output files and the
functions below are those of BERT's script of this name, so that code written for it runs.
"""

import environment  # noqa: F401  First of all: a missing TensorFlow gets a sentence.

# isort: split
import itertools
import math
import os
import posixpath

from absl import flags

import classification_heads
import classifier_features
import classifier_results
import classifier_tasks
import common_flags
import errors
import evaluations
import feature_cache
import input_pipeline
import jobs
import metrics
import modeling
import paths
import table_tasks
import task_adapters
import tokenization
import training
from classifier_features import (  # noqa: F401  BERT's users import these from here.
    InputExample,
    InputFeatures,
    PaddingInputExample,
    convert_examples_to_features,
    convert_single_example,
)
from classifier_tasks import (  # noqa: F401  And these.
    ColaProcessor,
    DataProcessor,
    MnliProcessor,
    MrpcProcessor,
    XnliProcessor,
)
from errors import UserError
from rows import TextRows


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
      What `classification_heads.classification_loss` returns.
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
    return classification_heads.classification_loss(
        encoder.get_pooled_output(), labels, num_labels, is_training
    )


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
    """The model_fn for TPUEstimator, as BERT's function of this name."""
    settings = training.ModelSettings(
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
    return training.model_fn_builder(settings, classification_heads.classifier_head(num_labels))


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
    at = {"flag_values": flag_values}
    names = [task.name for task in classifier_tasks.TASKS.values()]
    names = ", ".join([*names, *table_tasks.LAYOUTS, "custom"])
    flags.DEFINE_string("task_name", None, f"The task: {names}.", **at)
    flags.DEFINE_string(
        "data_dir",
        None,
        "Folder with the task's files. Default: $GLUE_DIR/<task>, else the demo's.",
        **at,
    )
    column = "--task_name=custom: the column, or the key in .jsonl files, of the "
    flags.DEFINE_string("text_column", None, column + "text.", **at)
    flags.DEFINE_string("text_b_column", None, column + "second text of a pair.", **at)
    flags.DEFINE_string("label_column", None, column + "label.", **at)
    flags.DEFINE_enum(
        "label_type",
        "class",
        sorted(_KINDS),
        "--task_name=custom: labels are names of classes; numbers to be predicted; or sets of"
        " labels, a,b,c or a list in .jsonl files.",
        **at,
    )
    flags.DEFINE_string(
        "class_weights",
        None,
        "Factors of the training loss: balanced, or one for each label in their order, as in 1,5.",
        **at,
    )
    flags.DEFINE_integer(
        "max_seq_length", 128, "WordPieces of a text or pair, longer ones are cut.", **at
    )
    flags.DEFINE_bool("do_eval", False, "Evaluate on the dev set.", **at)
    flags.DEFINE_integer("eval_batch_size", 8, "Examples in a batch of the evaluation.", 1, **at)
    common_flags.define(flag_values)
    flags.adopt_module_key_flags(common_flags, flag_values)


def run(values):
    """Does what the flags ask for.

    Args:
      values: parsed flags of `define_flags`.

    Returns:
      The report that ends the run: a list of lines.
    """
    given = common_flags.given_adapter(values)
    if not values.task_name:
        raise UserError("--task_name is not given, for example --task_name=MRPC.")
    processor, data_dir = _find_task(values, given)
    task, labels = processor.task, processor.get_labels()
    output_dir = values.output_dir or os.path.join("output", values.task_name.lower())
    job = jobs.Job(values, given, output_dir, values.eval_batch_size, shortest=4)
    examples = {stage: _read_examples(processor, stage, data_dir) for stage in job.stages}
    trained_on = examples.get("train", {}).get("train", ())
    if values.class_weights and task.kind != "classification":
        raise UserError("--class_weights goes with labels that are classes (--label_type=class).")
    weights = _class_weights(values.class_weights, labels, [e.label for e in trained_on])
    job.begin(
        jobs.Task(task.name, task.kind, tuple(labels), score="eval_" + task.score),
        _head(task.kind, len(labels), weights),
        num_rows=len(trained_on),
        settings={
            "data": task_adapters.digest((e.text_a, e.text_b, e.label) for e in trained_on),
            **({"class_weights": weights} if weights else {}),
        },
    )
    arrays = {
        stage: {split: _rows(some, labels, values, job.tokenizer) for split, some in splits.items()}
        for stage, splits in examples.items()
    }
    return _run_stages(job, arrays, processor, output_dir, values.eval_batch_size)


def _head(kind, num_labels, class_weights):
    if kind == "regression":
        return classification_heads.regression_head
    if kind == "multilabel":
        return classification_heads.multilabel_head(num_labels)
    return classification_heads.classifier_head(num_labels, class_weights)


_KINDS = {"class": "classification", "float": "regression", "multilabel": "multilabel"}


def _find_task(values, given):
    """(the processor of --task_name, the folder of its data)."""
    layout = _layout(values)
    if layout is None:
        processor = classifier_tasks.get_processor(
            values.task_name, [*table_tasks.LAYOUTS, "custom"]
        )
        folder = processor.task.folder or processor.task.name
        return processor, paths.find_data_dir(values.data_dir, folder)
    data_dir = paths.find_data_dir(values.data_dir, layout.name)
    known = given.description.labels if given else None
    return table_tasks.TableProcessor(layout, data_dir, known), data_dir


def _layout(values):
    """The `table_tasks.Layout` of --task_name; None if it has none."""
    if values.task_name.lower() == "custom":
        if values.text_column is None or values.label_column is None:
            raise UserError("--task_name=custom needs --text_column and --label_column.")
        kind = _KINDS[values.label_type]
        columns = values.text_column, values.label_column, values.text_b_column
        return table_tasks.Layout("custom", *columns, kind)
    for flag in ("text_column", "text_b_column", "label_column", "label_type"):
        if values[flag].value != values[flag].default:
            raise UserError(f"--{flag} goes with --task_name=custom, which reads data of any kind.")
    return table_tasks.LAYOUTS.get(values.task_name.lower().replace("-", "_"))


def _rows(examples, labels, values, tokenizer):
    """The `TextRows` of some examples, from the cache if they have been made before."""
    key = feature_cache.key_of(
        itertools.chain(
            [tokenizer.fingerprint, tuple(labels), values.max_seq_length],
            ((e.text_a, e.text_b, e.label) for e in examples),
        ),
        [classifier_features, tokenization],
    )

    def make(add):
        add(classifier_features.text_arrays(examples, labels, values.max_seq_length, tokenizer))

    arrays = feature_cache.cached(common_flags.feature_folder(values), key, make)
    specials = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    return TextRows(arrays, *specials, values.max_seq_length)


def _class_weights(text, labels, trained_on):
    """--class_weights as a list of a float for each label; None for equal weights.

    "balanced" gives each label the same say: N / (L n) for the n of N rows that have it.
    """
    if text is None or not trained_on:
        return None
    if text == "balanced":
        counts = [trained_on.count(label) for label in labels]
        return [len(trained_on) / (len(labels) * count) if count else 0.0 for count in counts]
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        weights = []
    if len(weights) != len(labels) or not all(0 <= weight < math.inf for weight in weights):
        raise UserError(
            f"--class_weights={text}: expected balanced, or a number from 0 up for each label of"
            f" {', '.join(labels)}."
        )
    return weights


_SPLITS = {"train": "train", "eval": "dev", "predict": "test"}


def _read_examples(processor, stage, data_dir):
    """The `InputExample`s that a stage works on, by split."""
    splits = processor.splits_of(_SPLITS[stage], data_dir)
    return {split: processor.get_examples(split, data_dir) for split in splits}


def _run_stages(job, arrays, processor, output_dir, eval_batch_size):
    """Trains, evaluates and predicts what there are arrays for; returns the report's lines."""
    task, report = processor.task, []
    eval_sets = [
        jobs.EvalSet(rows, _score_fn(task, split, eval_batch_size))
        for split, rows in arrays.get("eval", {}).items()
    ]
    if "train" in arrays:
        report += job.train(arrays["train"]["train"], eval_sets)
    if eval_sets:
        result = job.evaluate(eval_sets)
        path = evaluations.write_results(output_dir, result, _about(task, "eval"))
        summary = f"{_summary(task, 'eval', result)} at step {result['global_step']}"
        report = [f"{task.name} dev: {summary}", *report, "Scores: " + path]
    for split, rows in arrays.get("predict", {}).items():
        predictions = classifier_results.stacked(list(job.predict(rows)))
        written = classifier_results.write_predictions(output_dir, task, split, predictions)
        count = len(rows)
        report.append(f"Predictions: {', '.join(written)} ({count} rows)")
        if processor.has_labels(split):
            result = _named("test", classifier_results.scores(task, rows["label_ids"], predictions))
            path = posixpath.join(output_dir, f"test_scores{split[len('test') :]}.json")
            evaluations.write_record(path, {**_about(task, "test"), **result})
            report.append(f"{task.name} test: {_summary(task, 'test', result)} ({path})")
    return report


def _about(task, stage):
    """What a file of scores tells of them: the task, its score, the labels of its matrix."""
    return {"task": task.name, "score": f"{stage}_{task.score}", "labels": list(task.labels)}


def _score_fn(task, split, batch_size):
    """What scores a dev set; a second one's scores have its name, as eval_mismatched_accuracy."""
    second = split[len("dev_") :]

    def score_fn(rows, predictions):
        predictions = classifier_results.stacked(predictions)
        found = classifier_results.scores(task, rows["label_ids"], predictions)
        if second:
            return _named("eval_" + second, found)
        loss = classifier_results.mean_of_batches(predictions["loss"], batch_size)
        return {**_named("eval", found), "loss": loss}

    return score_fn


def _named(start, scores):
    return {f"{start}_{name}": value for name, value in scores.items()}


def _summary(task, stage, result):
    """A stage's scores on a line, the one that GLUE takes first."""
    shown = metrics.numbers(result, stage + "_")
    return ", ".join(
        f"{name} {shown[name]:.1%}" if name.endswith("accuracy") else f"{name} {shown[name]:.4f}"
        for name in sorted(shown, key=lambda name: (name != task.score, name))
    )


main = common_flags.main_of(run)


if __name__ == "__main__":
    define_flags()
    errors.run(main)
