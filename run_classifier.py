"""Trains, evaluates and predicts with BERT on a text classification task, adapters by default.

    python run_classifier.py --task_name=MRPC --adapter_size=64

trains and evaluates; --do_train, --do_eval and --do_predict choose. Flags, output files and the
functions below are those of BERT's script of this name, so that code written for it runs.
"""

import environment  # noqa: F401  First of all: a missing TensorFlow gets a sentence.

# isort: split
import os

import tensorflow.compat.v1 as tf
from absl import flags

import classifier_tasks
import common_flags
import errors
import files
import input_pipeline
import jobs
import modeling
import paths
import task_adapters
import training
from classifier_tasks import (  # noqa: F401  BERT's users import these from here.
    ColaProcessor,
    DataProcessor,
    InputExample,
    InputFeatures,
    MnliProcessor,
    MrpcProcessor,
    PaddingInputExample,
    XnliProcessor,
    convert_examples_to_features,
    convert_single_example,
)
from errors import UserError


def classification_loss(pooled_output, labels, num_labels, is_training, dropout_key=None):
    """A linear layer and softmax over the pooled output (Devlin et al. 2018, section 4.1).

    Args:
      pooled_output: float Tensor [B, D].
      labels: int32 Tensor [B].
      num_labels: int.
      is_training: bool; a tenth of the inputs is dropped where true.
      dropout_key: `modeling.DropoutKey` or None.

    Returns:
      (loss [], per_example_loss [B], logits [B, num_labels], probabilities [B, num_labels]).
    """
    collections = [modeling.HEAD, tf.GraphKeys.GLOBAL_VARIABLES]
    weights = tf.get_variable(
        "output_weights",
        [num_labels, pooled_output.shape[-1]],
        initializer=modeling.create_initializer(),
        collections=collections,
    )
    bias = tf.get_variable(
        "output_bias", [num_labels], initializer=tf.zeros_initializer(), collections=collections
    )
    with tf.variable_scope("loss"):
        if is_training:
            pooled_output = modeling.dropout(pooled_output, 0.1, key=dropout_key)
        logits = tf.nn.bias_add(tf.matmul(pooled_output, weights, transpose_b=True), bias)
        log_probs = tf.nn.log_softmax(logits)
        one_hot_labels = tf.one_hot(labels, depth=num_labels)
        per_example_loss = -tf.reduce_sum(one_hot_labels * log_probs, axis=-1)
        return tf.reduce_mean(per_example_loss), per_example_loss, logits, tf.nn.softmax(logits)


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
      What `classification_loss` returns.
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
    return classification_loss(encoder.get_pooled_output(), labels, num_labels, is_training)


def classifier_head(num_labels):
    """The head that `training.model_fn_builder` takes."""

    def head(encoder, features, is_training, dropout_key):
        labels = features["label_ids"]
        loss, per_example_loss, logits, probabilities = classification_loss(
            encoder.get_pooled_output(), labels, num_labels, is_training, dropout_key
        )
        weights = tf.cast(features.get("is_real_example", tf.ones_like(labels)), tf.float32)
        return training.HeadOutput(
            loss=loss,
            predictions={"probabilities": probabilities},
            metric_fn=metric_fn,
            metric_inputs=[per_example_loss, labels, logits, weights],
        )

    return head


def metric_fn(per_example_loss, label_ids, logits, is_real_example):
    """Accuracy and mean loss [B] over the rows that are not padding (weight 0)."""
    predictions = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return {
        "eval_accuracy": tf.metrics.accuracy(label_ids, predictions, weights=is_real_example),
        "eval_loss": tf.metrics.mean(per_example_loss, weights=is_real_example),
    }


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
    return training.model_fn_builder(settings, classifier_head(num_labels))


def input_fn_builder(features, seq_length, is_training, drop_remainder):
    """An input_fn over a list of `InputFeatures`, as BERT's function of this name."""
    del seq_length  # The features have it.
    arrays = classifier_tasks.features_to_arrays(features)
    return input_pipeline.input_fn_of(arrays, is_training, drop_remainder)


def file_based_convert_examples_to_features(
    examples, label_list, max_seq_length, tokenizer, output_file
):
    """Writes the features of a list of `InputExample` to a TFRecord file."""
    features = convert_examples_to_features(examples, label_list, max_seq_length, tokenizer)
    input_pipeline.write_tfrecord(classifier_tasks.features_to_arrays(features), output_file)


def file_based_input_fn_builder(input_file, seq_length, is_training, drop_remainder):
    """An input_fn over a file that `file_based_convert_examples_to_features` wrote."""
    arrays = input_pipeline.read_tfrecord(input_file, seq_length)
    return input_pipeline.input_fn_of(arrays, is_training, drop_remainder)


def define_flags(flag_values=flags.FLAGS):
    """Defines all flags of this script."""
    at = {"flag_values": flag_values}
    names = ", ".join(task.upper() for task in sorted(classifier_tasks.TASKS))
    flags.DEFINE_string("task_name", None, f"The task: {names}.", **at)
    flags.DEFINE_string(
        "data_dir",
        None,
        "Folder with the task's .tsv files. Default: $GLUE_DIR/<task>, else the demo's.",
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
    processor = classifier_tasks.get_processor(values.task_name)
    name, labels = processor.task.name, processor.get_labels()
    data_dir = paths.find_data_dir(values.data_dir, name)
    output_dir = values.output_dir or os.path.join("output", values.task_name.lower())
    job = jobs.Job(values, given, output_dir, values.eval_batch_size, shortest=4)
    examples = {stage: _read_examples(processor, stage, data_dir) for stage in job.stages}
    trained_on = examples.get("train", ())
    job.begin(
        jobs.Task(name, "classification", tuple(labels), score="eval_accuracy"),
        classifier_head(len(labels)),
        num_rows=len(trained_on),
        digest=task_adapters.digest((e.text_a, e.text_b, e.label) for e in trained_on),
    )
    arrays = {
        stage: classifier_tasks.examples_to_arrays(
            rows, labels, values.max_seq_length, job.tokenizer
        )
        for stage, rows in examples.items()
    }
    return _run_stages(job, arrays, output_dir, name)


def _read_examples(processor, stage, data_dir):
    """The `InputExample`s that a stage works on."""
    readers = {
        "train": processor.get_train_examples,
        "eval": processor.get_dev_examples,
        "predict": processor.get_test_examples,
    }
    return readers[stage](data_dir)


def _run_stages(job, arrays, output_dir, task):
    """Trains, evaluates and predicts what there are arrays for; returns the report's lines."""
    report = []
    if "train" in arrays:
        report += job.train(arrays["train"], arrays.get("eval"))
    if "eval" in arrays:
        result = job.evaluate(arrays["eval"])
        lines = [f"{key} = {str(result[key])}\n" for key in sorted(result)]
        path = os.path.join(output_dir, "eval_results.txt")
        files.write_atomically(path, "".join(lines))
        score = "{} dev: accuracy {:.1%}, loss {:.4f} at step {}".format(
            task, result["eval_accuracy"], result["eval_loss"], result["global_step"]
        )
        report = [score, *report, "Scores: " + path]
    if "predict" in arrays:
        rows = (row["probabilities"] for row in job.predict(arrays["predict"]))
        lines = ["\t".join(str(p) for p in probabilities) + "\n" for probabilities in rows]
        path = os.path.join(output_dir, "test_results.tsv")
        files.write_atomically(path, "".join(lines))
        report.append(f"Predictions: {path} ({len(lines)} rows)")
    return report


def main(argv):
    if argv[1:]:
        raise UserError(f"{argv[1]}: flags only, written as --name=value.")
    common_flags.silence_tensorflow()
    print("\n".join(run(flags.FLAGS)))


if __name__ == "__main__":
    define_flags()
    errors.run(main)
