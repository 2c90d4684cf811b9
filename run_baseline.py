"""The no-BERT baseline: a search for the best wide and deep model on text embeddings from TF-Hub.

    python run_baseline.py --task_name=airline --module=demo/embeddings --trials=100

Houlsby et al. 2019 (arXiv 1902.00751), section 3.3 and appendix A. Settings from their Table 5 are
tried, the best by the dev score are trained once more and tested once. The same command, started
again, goes on; started beside itself, it shares the search. --preset=airline trains what the
paper's search found for that task instead.
"""

import environment  # noqa: F401  First of all: a missing TensorFlow gets a sentence.

# isort: split
import collections
import dataclasses
import datetime
import os
import posixpath
import time

import tensorflow.compat.v1 as tf
from absl import flags, logging

import baseline_search
import baseline_space
import baseline_training
import classifier_features
import classifier_flags
import classifier_results
import devices
import evaluations
import files
import metrics
import run_directory
import scripts
import sweep_grids
import sweep_records
import task_adapters
from baseline_space import SPACE
from errors import UserError
from flag_sections import section

_DATABASE, _SEARCH = "search.db", "search.json"


def define_flags(flag_values=flags.FLAGS):
    """Defines all flags of this script."""
    classifier_flags.define_task(flag_values)
    _define_model(section("Model", flag_values))
    _define_search(section("Search", flag_values))
    _define_training(flag_values)
    _define_output(section("Output", flag_values))


def _define_output(at):
    flags.DEFINE_string(
        "output_dir",
        None,
        "Where the search, the best model and its results go. Default: output/<task>-baseline.",
        **at,
    )
    flags.DEFINE_bool(
        "overwrite_output_dir", False, "Remove an earlier run's files in output_dir first.", **at
    )
    flags.DEFINE_string(
        "records_dir",
        None,
        "Folder of a sweep, to whose records the result is added, for run_report.py. Default:"
        " output_dir.",
        **at,
    )


def _define_model(at):
    flags.DEFINE_list(
        "module",
        [],
        "The text embedding modules to choose from: "
        + ", ".join(baseline_space.MODULES)
        + ", addresses and folders of others. Default: these five; a preset's own.",
        **at,
    )
    flags.DEFINE_integer("max_words", 128, "Words of a text, longer ones are cut.", 1, **at)
    flags.DEFINE_enum(
        "preset",
        None,
        list(baseline_space.PRESETS),
        "Train the settings that the paper's search selected for this task, and search nothing.",
        **at,
    )
    flags.DEFINE_multi_string(
        "setting",
        [],
        "name=value[,value...]: only these values of a parameter, or another one than the"
        f" preset's: {', '.join(SPACE)}.",
        **at,
    )


def _define_training(flag_values):
    flags.DEFINE_bool(
        "do_predict",
        True,
        "Predict the test set with the best model.",
        **section("What is done", flag_values),
    )
    at = section("Training", flag_values)
    flags.DEFINE_integer(
        "early_stopping_patience",
        10,
        f"End a training after so many evaluations, one every {baseline_training.EVALUATE_EVERY:,}"
        " samples, without a better score; 0 trains on all samples.",
        0,
        **at,
    )
    flags.DEFINE_integer(
        "random_seed",
        12345,
        "Of the search, where one process makes it, initial values, dropout, and the order of the"
        " data.",
        0,
        **at,
    )
    flags.DEFINE_enum(
        "precision",
        "auto",
        list(devices.PRECISIONS),
        "Of the convolution's products, all else is float32; auto: bfloat16 where the processor has"
        " it natively, else float32.",
        **section("Devices", flag_values),
    )


def _define_search(at):
    flags.DEFINE_integer(
        "trials", 100, "Settings that are tried, those stopped early too.", 1, **at
    )
    flags.DEFINE_enum(
        "sampler",
        "tpe",
        list(baseline_search.SAMPLERS),
        "What proposes settings: "
        + "; ".join("{}: {}".format(*item) for item in baseline_search.SAMPLERS.items())
        + ".",
        **at,
    )
    flags.DEFINE_enum(
        "pruner",
        "halving",
        list(baseline_search.PRUNERS),
        "What stops hopeless trials: "
        + "; ".join("{}: {}".format(*item) for item in baseline_search.PRUNERS.items())
        + ".",
        **at,
    )
    flags.DEFINE_string(
        "storage",
        None,
        "Where the search is kept, and shared by all processes that name it: a database's URL, as"
        " in postgresql://user@host/name, or the path of a journal file, on a disk that all share."
        f" Default: SQLite, output_dir/{_DATABASE}.",
        **at,
    )
    flags.DEFINE_bool(
        "search_only",
        False,
        "Take part in the search and leave the best model to another process: for all machines but"
        " one.",
        **at,
    )


def run(values):
    """Does what the flags ask for.

    Args:
      values: parsed flags of `define_flags`.

    Returns:
      The report that ends the run: a list of lines.
    """
    narrowed = _narrowed(values)
    preset = values.preset and _preset(values.preset, narrowed)
    processor, data_dir = classifier_flags.find_task(values, None)
    output_dir = values.output_dir or os.path.join("output", values.task_name.lower() + "-baseline")
    run_directory.make(output_dir)
    with baseline_search.Turns(output_dir) as turns:
        if values.overwrite_output_dir:
            _clear(output_dir, turns)
        data = _read(processor, data_dir, values)
        modules = baseline_training.Modules(data)
        if preset:
            if not turns.end():
                raise UserError(f"--output_dir={output_dir}: another process works there.")
            return _train_and_test(preset, data, modules, output_dir, values, {})
        settings = _search_settings(values, narrowed, output_dir, data)
        trials = _search(settings, turns.alone, data, modules, values)
        if values.search_only or not turns.end():
            return ["The search has its trials; the best is left to another process."]
        best, report = _best(settings, trials, data.task, output_dir)
        searched = {"trials": len(trials), "sampler": settings.sampler}
        return report + _train_and_test(best, data, modules, output_dir, values, searched)


def _clear(output_dir, turns):
    """Removes what an earlier run left, its search too."""
    if not turns.alone:
        raise UserError(f"--overwrite_output_dir: another process works in {output_dir}.")
    run_directory.clear(output_dir)
    for name in (_DATABASE, _SEARCH):
        path = posixpath.join(output_dir, name)
        if tf.io.gfile.exists(path):
            logging.info("--overwrite_output_dir removes %s", path)
            tf.io.gfile.remove(path)


def _narrowed(values):
    """Parameter → `Choice` of the values that --module and --setting leave it."""
    found = collections.OrderedDict()
    for text in values.setting:
        name, some = baseline_space.parse(text)
        if name in found:
            raise UserError(f"--setting={text}: {name} is given twice.")
        found[name] = baseline_space.Choice(tuple(some), SPACE[name] == SPACE["module"])
    if values.module:
        if "module" in found:
            raise UserError("--module and --setting=module=... are given; give one of them.")
        found["module"] = baseline_space.Choice(tuple(values.module), open=True)
    return found


def _preset(name, narrowed):
    """The `Settings` of a preset with some of its values replaced."""
    for parameter, domain in narrowed.items():
        if len(domain.values) > 1:
            raise UserError(
                f"--preset={name} trains one model: expected one value of {parameter}, found"
                f" {len(domain.values)}."
            )
    changed = {parameter: domain.values[0] for parameter, domain in narrowed.items()}
    return dataclasses.replace(baseline_space.PRESETS[name], **changed)


def _read(processor, data_dir, values):
    """The `baseline_training.Data` of the task: all splits that this run reads."""
    task, labels = processor.task, processor.get_labels()
    stages = ["train", "dev", *(["test"] if values.do_predict else [])]
    splits = [split for stage in stages for split in processor.splits_of(stage, data_dir)]
    examples = {split: processor.get_examples(split, data_dir) for split in splits}
    if task.kind == "classification":
        _warn_of_rare(examples["train"], labels, data_dir)
    return baseline_training.Data(
        task=task,
        texts={split: [(e.text_a, e.text_b) for e in some] for split, some in examples.items()},
        labels={
            split: classifier_features.label_column(some, labels)
            for split, some in examples.items()
        },
        has_labels={split: processor.has_labels(split) for split in splits},
        max_words=values.max_words,
        where=data_dir,
    )


def _warn_of_rare(examples, labels, where):
    """Says in a sentence which labels one training example, or none, has."""
    counts = collections.Counter(example.label for example in examples)
    rare = [f"{label} ({counts[label]})" for label in labels if counts[label] < 2]
    if rare:
        logging.warning(
            "%s: of %d training examples at most one has each of the labels %s, which no model can"
            " learn from that.",
            where,
            len(examples),
            ", ".join(rare),
        )


def _search_settings(values, narrowed, output_dir, data):
    database = os.path.abspath(os.path.join(output_dir, _DATABASE))
    return baseline_search.SearchSettings(
        name=data.task.name,
        storage=values.storage or f"sqlite:///{database}",
        trials=values.trials,
        sampler=values.sampler,
        pruner=values.pruner,
        random_seed=values.random_seed,
        narrowed=narrowed,
        conditions=_conditions(data, values),
    )


def _search(settings, alone, data, modules, values):
    """Takes part in the search until it has its trials, and returns these."""
    for name in settings.narrowed.get("module", SPACE["module"]).values:
        modules.opened(name)  # One that cannot be had ends the search before it begins.
    search = baseline_search.Search(settings, alone)

    def train(space, on_score):
        model = _model(space, data, modules, values)
        try:
            return model.train(patience=values.early_stopping_patience, on_score=on_score).score
        except baseline_training.LossIsNaN as error:
            raise baseline_search.Diverged from error

    search.run(train)
    return search.trials()


def _model(space, data, modules, values):
    return baseline_training.Baseline(
        space,
        data,
        modules,
        values.random_seed,
        devices.choose_precision(values.precision, use_tpu=False),
    )


def _best(settings, trials, task, output_dir):
    """(the `Settings` of the best trial, the report's line); writes search.json."""
    best = baseline_search.best_of(trials)
    path = posixpath.join(output_dir, _SEARCH)
    kept = baseline_search.record(settings, trials, task.name, "eval_" + task.score)
    evaluations.write_record(path, kept)
    stopped = sum(trial.pruned for trial in trials)
    line = (
        f"Search: {len(trials)} trials ({stopped} stopped early), the best is trial {best.number}"
        f" with {task.score} {best.score:.4f}: {path}"
    )
    return best.settings, [line]


def _train_and_test(space, data, modules, output_dir, values, searched):
    """Trains one model, if that is not done yet, and evaluates it; returns the report's lines."""
    began, task = time.monotonic(), data.task
    model = _model(space, data, modules, values)
    result_path = posixpath.join(output_dir, "eval_results.json")
    settings = _settings(space, data, values)
    # A search that goes on may find another best model than the one that it has left there.
    replaces = bool(searched) and not _holds(output_dir, settings)
    run_directory.claim(output_dir, settings, trains=True, overwrite=replaces)
    if not tf.io.gfile.exists(result_path):
        result = model.train(output_dir, values.early_stopping_patience)
        trained = {"trained_parameters": result.trained_parameters}
        trained.update(global_step=result.samples // baseline_training.BATCH_SIZE)
    else:
        known = files.read_object(result_path)
        trained = {name: known[name] for name in ("trained_parameters", "global_step")}
    scores, report = {}, []
    for split in data.texts:
        if not split.startswith("train"):
            lines, found = _evaluated(model, data, split, output_dir)
            report += lines
            scores.update(found)
    dev = {name: value for name, value in scores.items() if not name.startswith("test_")}
    about = classifier_results.about(task, "eval")
    path = evaluations.write_results(output_dir, {**dev, **trained}, about)
    record = _record(space, data, {**scores, **trained}, values, searched)
    record["seconds"] = time.monotonic() - began
    sweep_records.append(values.records_dir or output_dir, (1, 1), record)
    return [
        f"{task.name} dev: {classifier_results.summary(task, 'eval', dev)} at step"
        f" {trained['global_step']}",
        f"Trained: {trained['trained_parameters']:,} parameters",
        f"Settings: {', '.join(f'{n}={v}' for n, v in dataclasses.asdict(space).items())}",
        f"Scores: {path}",
        *report,
    ]


def _evaluated(model, data, split, output_dir):
    """Predicts a split and writes what there is of it: (the report's lines, the scores)."""
    task, predictions = data.task, model.predict(split, output_dir)
    stage, _, second = split.partition("_")
    has_labels, labels = data.has_labels[split], data.labels[split]
    found = classifier_results.scores(task, labels, predictions) if has_labels else {}
    if stage == "dev":
        classifier_results.write_answers(output_dir, task, split, labels, predictions)
        return [], classifier_results.named("eval" + ("_" + second if second else ""), found)
    written = classifier_results.write_predictions(output_dir, task, split, predictions)
    report = [f"Predictions: {', '.join(written)} ({len(labels)} rows)"]
    if not has_labels:
        return report, {}
    classifier_results.write_answers(output_dir, task, split, labels)
    found = classifier_results.named("test", found)
    path = posixpath.join(output_dir, f"test_scores{split[len('test') :]}.json")
    evaluations.write_record(path, {**classifier_results.about(task, "test"), **found})
    report.append(f"{task.name} test: {classifier_results.summary(task, 'test', found)} ({path})")
    return report, found


def _conditions(data, values):
    """What decides over a training's weights beside the parameters of the space."""
    texts, labels = data.texts["train"], data.labels["train"].tolist()
    return {
        "random_seed": values.random_seed,
        "max_words": values.max_words,
        "precision": devices.choose_precision(values.precision, use_tpu=False),
        "early_stopping_patience": values.early_stopping_patience,
        "data": task_adapters.digest((*pair, str(label)) for pair, label in zip(texts, labels)),
    }


def _settings(space, data, values):
    """What settings.json says of the trained model."""
    return {
        "model": {"task": data.task.name, "labels": list(data.task.labels)},
        "training": {**dataclasses.asdict(space), **_conditions(data, values)},
    }


def _holds(output_dir, settings):
    """Whether the model in output_dir is one of these settings, or there is none."""
    path = posixpath.join(output_dir, run_directory.SETTINGS_FILE)
    return not tf.io.gfile.exists(path) or files.read_object(path) == settings


def _record(space, data, scores, values, searched):
    """The training as `sweep_records` has it; what the search chose is no flag of it."""
    flags_given = {
        "task_name": data.task.name,
        "random_seed": values.random_seed,
        **({"preset": values.preset} if values.preset else searched),
    }
    trial = sweep_grids.Trial("run_baseline.py", tuple(sorted(flags_given.items())))
    return {
        "key": trial.key(baseline_space.short_name(space.module)),
        "script": trial.script,
        "flags": flags_given,
        "status": sweep_records.DONE,
        "finished": datetime.datetime.now().isoformat(timespec="seconds"),
        "task": data.task.name,
        "score": "eval_" + data.task.score,
        "scores": metrics.numbers(scores),
        "settings": {
            **dataclasses.asdict(space),
            "module": baseline_space.short_name(space.module),
        },
    }


main = scripts.main_of(run)


if __name__ == "__main__":
    define_flags()
    scripts.run(main)
