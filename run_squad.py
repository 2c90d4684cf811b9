"""Trains, evaluates and predicts with BERT on SQuAD, by default with adapters.

    python run_squad.py --train_file=train-v1.1.json --predict_file=dev-v1.1.json

trains and evaluates; --do_train, --do_eval and --do_predict select stages. Flags, output files and
importable functions are those of BERT's run_squad.py. BERT's flags keep their defaults unless their
help says otherwise.
"""

from adapter_bert.shell import environment

if __name__ == "__main__":
    environment.prepare()

from adapter_bert import modeling
from adapter_bert.shell import cli
from adapter_bert.tasks import heads
from adapter_bert.tasks.squad import squad_task
from adapter_bert.tasks.squad.squad_answers import RawResult, get_final_text, write_predictions  # noqa: F401  BERT's users import these here.
from adapter_bert.tasks.squad.squad_data import SquadExample, read_squad_examples  # noqa: F401  Likewise.
from adapter_bert.tasks.squad.squad_features import InputFeatures, convert_examples_to_features  # noqa: F401  Likewise.
from adapter_bert.tasks.squad.squad_task import SquadConfig
from adapter_bert.training import model_fn
from adapter_bert.training import run as training_run


def create_model(
    bert_config,
    is_training,
    input_ids,
    input_mask,
    segment_ids,
    use_one_hot_embeddings,
    **options,
):
    """Builds BERT with adapters and the head (Devlin et al. 2018, 4.2); BERT's function.

    The head is a linear layer on each token, for the answer's start and end.

    Args:
      **options: keyword arguments of `modeling.BertModel`.
      The other arguments are BERT's.

    Returns:
      (start_logits [B, S], end_logits [B, S]).
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
    output_weights, output_bias = heads.linear_variables("cls/squad/", 2, bert_config.hidden_size)
    logits = tf.einsum("bsd,kd->kbs", sequence_output, output_weights)
    return tuple(tf.unstack(logits + output_bias[:, None, None]))


def model_fn_builder(
    bert_config,
    init_checkpoint,
    learning_rate,
    num_train_steps,
    num_warmup_steps,
    use_tpu,
    use_one_hot_embeddings,
    **settings,
):
    """Returns the model_fn for TPUEstimator; BERT's function of this name.

    Predictions include the features' unique_ids, if they have any.

    Args:
      **settings: other fields of `model_fn.ModelSettings`.
      The other arguments are BERT's.
    """

    import tensorflow.compat.v1 as tf

    def build(features, is_training, **options):
        input_mask = features["input_mask"]
        logits = create_model(
            bert_config,
            is_training,
            features["input_ids"],
            input_mask,
            features["segment_ids"],
            use_one_hot_embeddings,
            **options,
        )
        start, end = (heads.masked_logits(each, input_mask) for each in logits)
        predictions = {"start_logits": start, "end_logits": end}
        if "unique_ids" in features:
            predictions["unique_ids"] = features["unique_ids"]
        loss = tf.zeros([])
        if "start_positions" in features:
            positions = features["start_positions"], features["end_positions"]
            loss = heads.span_loss((start, end), positions)
        return model_fn.ModelOutput(loss, predictions)

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


def run(values):
    """Runs the script with the parsed flags; returns the report, a list of lines."""
    config, task, start = squad_task.from_flags(values)
    return training_run.Run(config, task, model_fn_builder, start).execute()


define_flags = SquadConfig.define_flags
main = cli.main_of(run, define_flags)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
