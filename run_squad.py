"""Trains, evaluates and predicts with BERT on SQuAD, by default with adapters.

    python run_squad.py --train_file=train-v1.1.json --predict_file=dev-v1.1.json

trains and evaluates; --do_train, --do_eval and --do_predict select stages. Flags, output files and
importable functions are those of BERT's run_squad.py. BERT's flags keep their defaults unless their
help says otherwise.
"""

from adapter_bert.common import environment

if __name__ == "__main__":
    environment.prepare()


import modeling
from adapter_bert.common import cli
from adapter_bert.tasks import heads, squad_task
from adapter_bert.tasks.squad_answers import (  # noqa: F401  BERT's users import these here.
    RawResult,
    get_final_text,
    write_predictions,
)
from adapter_bert.tasks.squad_data import SquadExample, read_squad_examples  # noqa: F401  Likewise.
from adapter_bert.tasks.squad_features import InputFeatures, convert_examples_to_features  # noqa: F401  Likewise.
from adapter_bert.tasks.squad_task import SquadConfig
from adapter_bert.training import finetuning, model_fn, starting_point


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
    """Builds BERT with adapters and the span head; BERT's function of this name.

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
    """Returns the model_fn for TPUEstimator; BERT's function of this name.

    Predictions include the features' unique_ids.
    """
    settings = model_fn.ModelSettings(
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

    return model_fn.model_fn_builder(settings, head)


def run(values):
    """Runs the script with the parsed flags; returns the report, a list of lines."""
    start = starting_point.find(values, "squad", squad_task.trained_settings, "run_squad.py")
    config = SquadConfig.from_flags(values, start.supplied)
    setup = finetuning.set_up(config, start, config.folder_of("squad"))
    task = finetuning.Task("SQuAD", "span", (), score="f1")
    finetuning.check(setup, task)
    data = finetuning.Data(settings=config.settings_of(None), answers=config.answers)
    train = predict = evaluator = None
    if {"eval", "predict"} & set(setup.stages):  # First: the training set takes longer to read.
        predict, _, digest = squad_task.windows(config, setup.tokenizer, False)
        data = data._replace(dev_settings=config.dev_settings_of(digest))
        evaluator = squad_task.Evaluator(config, setup.tokenizer, digest, "eval" in setup.stages)
    if "train" in setup.stages:
        train, num_questions, digest = squad_task.windows(config, setup.tokenizer, True)
        data = data._replace(num_examples=num_questions, settings=config.settings_of(digest))
    estimator, output = finetuning.begin(setup, task, data, heads.squad_head)
    return _run_stages(setup.stages, config, estimator, output, train, predict, evaluator)


def _run_stages(stages, config, estimator, output, train, predict, evaluator):
    """Trains, evaluates and predicts; returns the report's lines."""
    dev_set = evaluator and finetuning.DevSet(predict, evaluator.answers, evaluator.scores)
    report = finetuning.train_and_evaluate(
        config,
        estimator,
        train,
        [dev_set] if "eval" in stages else [],
        output,
        {"task": config.task_name, "score": "eval_f1"},
        squad_task.summary,
    )
    if "predict" in stages:
        answers = finetuning.decoded(config, estimator, dev_set, output)
        written = ", ".join(evaluator.write(output.path, answers))
        report.append(f"Predictions: {written} ({len(answers)} questions)")
    return report


define_flags = SquadConfig.define_flags
main = cli.main_of(run)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
