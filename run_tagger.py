"""Trains, evaluates and predicts with BERT on a tagging task, by default with adapters.

    python run_tagger.py --data_dir=conll2003 --learning_rate=1e-3

trains and evaluates; --do_train, --do_eval and --do_predict select stages. It reads named entities,
chunks or part-of-speech tags from CoNLL's columns or from JSON lines.
"""

from adapter_bert.common import environment

if __name__ == "__main__":
    environment.prepare()


from adapter_bert.common import cli
from adapter_bert.tasks import classifier_results, tagging, tagging_task
from adapter_bert.tasks.tagging_task import TaggerConfig
from adapter_bert.training import finetuning, starting_point
from adapter_bert.training.config import SPLITS


def run(values):
    """Runs the script with the parsed flags; returns the report, a list of lines."""
    name = (values.task_name or tagging_task.NAME).lower()
    start = starting_point.find(values, name, tagging_task.trained_settings, "run_tagger.py")
    config = TaggerConfig.from_flags(values, start.supplied)
    folder = config.folder_of(config.name.lower())
    task, splits = tagging_task.load(config, start.adapter, folder)
    setup = finetuning.set_up(config, start, folder)
    finetuning.check(setup, task)
    splits = {name: splits[name] for name in (SPLITS[stage] for stage in setup.stages)}
    tagging_task.check_outputs(splits, setup.run.output_dir)
    rows = {
        name: tagging_task.encode(split, task.labels, config, setup.tokenizer)
        for name, split in splits.items()
    }
    data = finetuning.Data(answers=config.answers)
    if "train" in splits:
        settings = {"data": splits["train"].digest()}
        data = data._replace(num_examples=len(rows["train"]), settings=settings)
    if "dev" in splits:
        data = data._replace(dev_settings={"dev_data": splits["dev"].digest()})
    head = tagging.KIND.head(len(task.labels))
    estimator, output = finetuning.begin(setup, task, data, head)
    evaluators = {name: tagging_task.Evaluator(task, splits[name], rows[name]) for name in splits}
    return _run_stages(config, estimator, output, task, rows, evaluators)


def _run_stages(config, estimator, output, task, rows, evaluators):
    """Trains, evaluates and predicts the splits in `rows`; returns the report's lines."""
    dev_set = None
    if "dev" in rows:
        evaluator = evaluators["dev"]
        dev_set = finetuning.DevSet(rows["dev"], evaluator.decode, evaluator.scores)
    report = finetuning.train_and_evaluate(
        config,
        estimator,
        rows.get("train"),
        [dev_set] if dev_set else [],
        output,
        classifier_results.metadata(task, "eval"),
        lambda result: tagging_task.summary(task, "eval", result),
    )
    if dev_set:
        predicted = finetuning.decoded(config, estimator, dev_set, output)
        evaluators["dev"].write(output.path, "dev", predicted)
    if "test" in rows:
        predictions = finetuning.predict(config, estimator, rows["test"], output)
        report += evaluators["test"].write_test(output.path, evaluators["test"].decode(predictions))
    return report


define_flags = TaggerConfig.define_flags
main = cli.main_of(run)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
