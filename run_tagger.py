"""Trains, evaluates and predicts with BERT on a tagging task, by default with adapters.

    python run_tagger.py --data_dir=conll2003 --learning_rate=1e-3

trains and evaluates; --do_train, --do_eval and --do_predict select stages. It reads named entities,
chunks or part-of-speech tags from CoNLL's columns or from JSON lines.
"""

from adapter_bert.shell import environment

if __name__ == "__main__":
    environment.prepare()

from adapter_bert import modeling
from adapter_bert.shell import cli
from adapter_bert.tasks import heads
from adapter_bert.tasks.tagging import tagging, tagging_features, tagging_task
from adapter_bert.tasks.tagging.tagging_task import TaggerConfig
from adapter_bert.training import cross_validation, model_fn


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
    num_words=None,
    **options,
):
    """Builds BERT with adapters, the head and its loss (Devlin et al. 2018, section 5.3).

    The head is a linear layer on each token, at each word's first WordPiece. The loss is the mean
    over the words with a known tag.

    Args:
      labels: int32 Tensor [B, S]; see `tagging_features`.
      num_labels: int, L.
      num_words: float Tensor whose sum divides the loss; None for the words with a known tag.
      **options: keyword arguments of `modeling.BertModel`.
      The other arguments are those of run_classifier.py's function.

    Returns:
      (loss [], per_example_loss [B], the sums over words; logits [B, S, L]; tag_ids [B, S]).
    """
    import tensorflow.compat.v1 as tf

    model = modeling.BertModel(
        bert_config,
        is_training,
        input_ids,
        input_mask,
        segment_ids,
        use_one_hot_embeddings,
        **options,
    )
    sequence_output = model.get_sequence_output()
    output_weights, output_bias = heads.linear_variables(
        tagging.KIND.head_scope, num_labels, bert_config.hidden_size
    )
    with tf.variable_scope("loss"):
        if is_training:
            key = options.get("dropout_key")
            sequence_output = modeling.dropout(sequence_output, 0.1, key=key)
        logits = tf.einsum("bsd,ld->bsl", sequence_output, output_weights) + output_bias
        tag_ids = labels - tagging_features.FIRST_TAG
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.maximum(tag_ids, 0), logits=logits
        )
        is_known = tf.cast(tag_ids >= 0, tf.float32)
        per_example_loss = tf.reduce_sum(losses * is_known, axis=-1)
        num_words = tf.reduce_sum(is_known if num_words is None else num_words)
        loss = tf.math.divide_no_nan(tf.reduce_sum(per_example_loss), num_words)
    return loss, per_example_loss, logits, tf.argmax(logits, axis=-1, output_type=tf.int32)


def model_fn_builder(bert_config, num_labels, use_one_hot_embeddings, **settings):
    """Returns the model_fn for TPUEstimator.

    Args:
      bert_config, num_labels, use_one_hot_embeddings: as in `create_model`.
      **settings: other fields of `model_fn.ModelSettings`.
    """

    def build(features, is_training, **options):
        loss, per_example_loss, _, tag_ids = create_model(
            bert_config,
            is_training,
            features["input_ids"],
            features["input_mask"],
            features["segment_ids"],
            features["label_ids"],
            num_labels,
            use_one_hot_embeddings,
            num_words=features.get(model_fn.MEAN_ROW_WEIGHT),
            **options,
        )
        return model_fn.ModelOutput(loss, {"tag_ids": tag_ids, "loss": per_example_loss})

    def num_known(features):
        import tensorflow.compat.v1 as tf

        is_known = features["label_ids"] >= tagging_features.FIRST_TAG
        return tf.reduce_sum(tf.cast(is_known, tf.float32), axis=-1)

    model_settings = model_fn.ModelSettings(
        bert_config=bert_config, use_one_hot_embeddings=use_one_hot_embeddings, **settings
    )
    return model_fn.model_fn_builder(model_settings, build, row_weights=num_known)


def run(values):
    """Runs the script with the parsed flags; returns the report, a list of lines."""
    config, task, start = tagging_task.from_flags(values)
    return cross_validation.run_of(config, task, model_fn_builder, start).execute()


define_flags = TaggerConfig.define_flags
main = cli.main_of(run, define_flags)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
