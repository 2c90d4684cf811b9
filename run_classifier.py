"""Trains, evaluates and predicts with BERT on a text classification task, by default with adapters.

    python run_classifier.py --task_name=MRPC --adapter_size=64

trains and evaluates; --do_train, --do_eval and --do_predict select stages. Flags, output files and
importable functions are those of BERT's run_classifier.py. BERT's flags keep their defaults unless
their help says otherwise.
"""

from adapter_bert.shell import environment

if __name__ == "__main__":
    environment.prepare()

from adapter_bert import modeling
from adapter_bert.shell import cli
from adapter_bert.tasks import heads
from adapter_bert.tasks.text import task as text_task
from adapter_bert.tasks.text import text_kind
from adapter_bert.tasks.text.classifier_data import ClassifierConfig
from adapter_bert.tasks.text.classifier_features import (  # noqa: F401  BERT's users import these here.
    InputExample,
    InputFeatures,
    PaddingInputExample,
    convert_examples_to_features,
    convert_single_example,
)
from adapter_bert.tasks.text.glue import (  # noqa: F401  BERT's users import these here.
    ColaProcessor,
    DataProcessor,
    MnliProcessor,
    MrpcProcessor,
    XnliProcessor,
)
from adapter_bert.tasks.text.record_files import (  # noqa: F401  Likewise.
    file_based_convert_examples_to_features,
    file_based_input_fn_builder,
)
from adapter_bert.training import cross_validation, model_fn
from adapter_bert.training.input_pipeline import input_fn_builder  # noqa: F401  Likewise.


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
    kind="classification",
    class_weights=None,
    label_smoothing=0.0,
    **options,
):
    """Builds BERT with adapters, the head and its loss; BERT's function of this name.

    Args:
      kind: name of a kind of task that labels a text.
      class_weights: list with a factor of the training loss per label, or None.
      label_smoothing: share of the training targets that is spread evenly over all labels; see
        `heads.smoothed_loss`.
      **options: keyword arguments of `modeling.BertModel`.
      The other arguments are BERT's.

    Returns:
      (loss [], per_example_loss [B], logits [B, L], predictions); the predictions are the
      probabilities [B, L], or for regression the numbers [B].
    """
    import tensorflow.compat.v1 as tf

    model = modeling.BertModel(
        bert_config,
        is_training,
        input_ids,
        input_mask,
        segment_ids,
        use_one_hot_embeddings,
        pooled_only=True,
        **options,
    )
    output_layer = model.get_pooled_output()
    kind = text_kind.get(kind)
    output_weights, output_bias = heads.linear_variables(
        kind.head_scope, kind.num_outputs(num_labels), bert_config.hidden_size
    )
    with tf.variable_scope("loss"):
        if is_training:
            output_layer = modeling.dropout(output_layer, 0.1, key=options.get("dropout_key"))
        logits = tf.matmul(output_layer, output_weights, transpose_b=True)
        logits = tf.nn.bias_add(logits, output_bias)
        predictions = kind.predict(logits, labels)
        per_example_loss = loss = predictions["loss"]
        if is_training and label_smoothing:
            loss = heads.smoothed_loss(loss, logits, label_smoothing)
        if class_weights is not None:
            loss = tf.gather(class_weights, labels) * loss
        loss = tf.reduce_mean(loss)
    return loss, per_example_loss, logits, predictions[kind.prediction]


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
    kind="classification",
    class_weights=None,
    label_smoothing=0.0,
    predicts_loss=False,
    **settings,
):
    """Returns the model_fn for TPUEstimator; BERT's function of this name.

    Args:
      kind, class_weights, label_smoothing: as in `create_model`.
      predicts_loss: bool; predict each row's loss, too. A SavedModel, whose rows have no labels,
        cannot.
      **settings: other fields of `model_fn.ModelSettings`.
      The other arguments are BERT's.
    """

    import tensorflow.compat.v1 as tf

    def build(features, is_training, **options):
        labels = features["label_ids"]
        loss, per_example_loss, logits, predicted = create_model(
            bert_config,
            is_training,
            features["input_ids"],
            features["input_mask"],
            features["segment_ids"],
            labels,
            num_labels,
            use_one_hot_embeddings,
            kind=kind,
            class_weights=class_weights,
            label_smoothing=label_smoothing,
            **options,
        )
        predictions = {text_kind.get(kind).prediction: predicted}
        if predicts_loss:
            predictions["loss"] = per_example_loss
        if kind != "classification":
            return model_fn.ModelOutput(loss, predictions)
        weights = tf.cast(features.get("is_real_example", tf.ones_like(labels)), tf.float32)
        inputs = [per_example_loss, labels, logits, weights]
        return model_fn.ModelOutput(loss, predictions, metric_fn, inputs)

    model_settings = model_fn.ModelSettings(
        bert_config=bert_config,
        init_checkpoint=init_checkpoint,
        learning_rate=learning_rate,
        num_train_steps=num_train_steps,
        num_warmup_steps=num_warmup_steps,
        use_tpu=use_tpu,
        use_one_hot_embeddings=use_one_hot_embeddings,
        **settings,
    )
    return model_fn.model_fn_builder(model_settings, build)


def metric_fn(per_example_loss, label_ids, logits, is_real_example):
    """Returns metrics for the mode EVAL: accuracy and mean loss of the rows that are not padding.

    This script scores predictions instead; see `classifier_results`.
    """
    import tensorflow.compat.v1 as tf

    predictions = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return {
        "eval_accuracy": tf.metrics.accuracy(label_ids, predictions, weights=is_real_example),
        "eval_loss": tf.metrics.mean(per_example_loss, weights=is_real_example),
    }


def run(values):
    """Runs the script with the parsed flags; returns the report, a list of lines."""
    config, task, start = text_task.from_flags(values)
    return cross_validation.run_of(config, task, model_fn_builder, start).execute()


define_flags = ClassifierConfig.define_flags
main = cli.main_of(run, define_flags)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
