"""The no-BERT baseline: a search for the best wide and deep model on text embeddings from TF-Hub.

    python run_baseline.py --task_name=airline --module=demo/embeddings --trials=100

Houlsby et al. 2019 (arXiv 1902.00751), section 3.3 and appendix A. Settings from their Table 5 are
tried, the best by the dev score are trained once more and tested once. The same command, started
again, goes on; started beside itself, it shares the search. --preset=airline trains what the
paper's search found for that task instead.
"""

from adapter_bert.common import environment

if __name__ == "__main__":
    environment.prepare()

import collections
import dataclasses
import os
import posixpath
import time

from absl import flags, logging

from adapter_bert.baseline import search, search_space, training
from adapter_bert.baseline.search_space import EVALUATE_EVERY, SPACE
from adapter_bert.common import cli, configs, devices, files, metrics
from adapter_bert.common.cli import section
from adapter_bert.common.errors import UserError
from adapter_bert.experiments import grids, records
from adapter_bert.formats import checkpoints, task_adapter
from adapter_bert.tasks import classifier_features, classifier_flags, classifier_results
from adapter_bert.training import output_dir

_DATABASE, _SEARCH, _RECORDS = "search.db", "search.json", "results.jsonl"
_WIDTH = 512, 128  # Of a convolution's products, about: an embedding's size and its filters.

# Flags that a record has where they are not the default.
_RECORDED_IF_CHANGED = (
    *("text_column", "text_b_column", "label_column", "label_type"),
    *("max_words", "early_stopping_patience", "precision"),
)


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
        + ", ".join(search_space.MODULES)
        + ", addresses and folders of others. Default: these five; a preset's own.",
        **at,
    )
    flags.DEFINE_integer("max_words", 128, "Words of a text, longer ones are cut.", 1, **at)
    flags.DEFINE_enum(
        "preset",
        None,
        list(search_space.PRESETS),
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
        f"End a training after so many evaluations, one every {EVALUATE_EVERY:,}"
        " samples, without a better score; 0 trains on all samples.",
        0,
        **at,
    )
    flags.DEFINE_integer(
        "random_seed",
        12345,
        "Seed of the search, where one process makes it in the default --storage, initial values,"
        " dropout, and the order of the data.",
        0,
        2**32 - 1,  # NumPy's largest.
        **at,
    )
    flags.DEFINE_enum(
        "precision",
        "auto",
        list(configs.PRECISIONS),
        "Precision of the convolution's products, all else is float32; auto: that of the model in"
        " --output_dir, else bfloat16 where it is measured to be faster.",
        **section("Devices", flag_values),
    )


def _define_search(at):
    flags.DEFINE_integer(
        "trials", 100, "Settings that are tried, those stopped early too.", 1, **at
    )
    flags.DEFINE_enum(
        "sampler",
        "tpe",
        list(search.SAMPLERS),
        "What proposes settings: "
        + "; ".join("{}: {}".format(*item) for item in search.SAMPLERS.items())
        + ".",
        **at,
    )
    flags.DEFINE_enum(
        "pruner",
        "halving",
        list(search.PRUNERS),
        "What stops hopeless trials: "
        + "; ".join("{}: {}".format(*item) for item in search.PRUNERS.items())
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
    narrowed = _narrow_space(values)
    preset = values.preset and _preset_settings(values.preset, narrowed)
    processor, data_dir = classifier_flags.find_task(values, None)
    folder = values.output_dir or os.path.join("output", values.task_name.lower() + "-baseline")
    output_dir.make(folder)
    if values.records_dir:
        with files.convert_write_errors(f"--records_dir={values.records_dir}"):
            files.makedirs(values.records_dir)
    with search.SearchLock(folder) as search_lock:
        job = _Job(values, _read_data(processor, data_dir, values), folder)
        if preset:
            job.check(preset)
        else:
            search_settings = job.search_settings(narrowed)
        if values.overwrite_output_dir:
            reads = [("--data_dir", data_dir), *(("--module", name) for name in values.module)]
            _clear_output_dir(folder, search_lock, reads)
        if preset:
            if not search_lock.end():
                raise UserError(f"--output_dir={folder}: another process works there.")
            return job.train_and_test(preset)
        if values.search_only:
            search_lock.leave()
        trials = job.search(
            search_settings, search_lock.alone and not (values.storage or values.search_only)
        )
        if values.search_only:
            return ["The search has its trials; a process without --search_only trains the best."]
        if not search_lock.end():
            return [
                "The search has its trials; the process that ends last trains the best. Should that"
                " be stopped, start the same command again."
            ]
        best, line = job.best(search_settings, trials)
        return [line, *job.train_and_test(best, search_settings)]


def _clear_output_dir(folder, search_lock, reads):
    """Removes what an earlier run left, its search too; reads is as of `output_dir.clear`."""
    if not search_lock.alone:
        raise UserError(f"--overwrite_output_dir: another process works in {folder}.")
    output_dir.clear(folder, reads)
    for name in (_DATABASE, _SEARCH, _RECORDS):
        path = posixpath.join(folder, name)
        if files.exists(path):
            logging.info("--overwrite_output_dir removes %s", path)
            files.remove(path)


def _narrow_space(values):
    """Parameter → `Choice` of the values that --module and --setting leave it."""
    narrowed = collections.OrderedDict()
    for text in values.setting:
        name, parameter_values = search_space.parse_setting(text)
        if name in narrowed:
            raise UserError(f"--setting={text}: {name} is given twice.")
        narrowed[name] = search_space.Choice(
            tuple(parameter_values), SPACE[name] == SPACE["module"]
        )
    if values.module:
        if "module" in narrowed:
            raise UserError("--module and --setting=module=... are given; give one of them.")
        narrowed["module"] = search_space.Choice(tuple(values.module), is_open=True)
    return narrowed


def _preset_settings(name, narrowed):
    """The `Settings` of a preset with some of its values replaced."""
    for parameter, domain in narrowed.items():
        if len(domain.values) > 1:
            raise UserError(
                f"--preset={name} trains one model: expected one value of {parameter}, found"
                f" {len(domain.values)}."
            )
    replacements = {parameter: domain.values[0] for parameter, domain in narrowed.items()}
    return dataclasses.replace(search_space.PRESETS[name], **replacements)


def _read_data(processor, data_dir, values):
    """The `training.Dataset` of the task: all splits that this run reads."""
    task, labels = processor.task, processor.get_labels()
    stages = ["train", "dev", *(["test"] if values.do_predict else [])]
    splits = [split for stage in stages for split in processor.splits_of(stage, data_dir)]
    examples = {split: processor.get_examples(split, data_dir) for split in splits}
    if task.kind == "classification":
        _warn_of_rare_labels(examples["train"], labels, data_dir)
    return training.Dataset(
        task=task,
        texts={
            split: [(e.text_a, e.text_b) for e in split_examples]
            for split, split_examples in examples.items()
        },
        labels={
            split: classifier_features.label_column(split_examples, labels)
            for split, split_examples in examples.items()
        },
        has_labels={split: processor.has_labels(split) for split in splits},
        max_words=values.max_words,
        where=data_dir,
    )


def _warn_of_rare_labels(examples, labels, where):
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


class _Job:
    """The search for the best model on a task's data, and that model.

    Args:
      values: parsed flags.
      data: `training.Dataset`.
      output_dir: path.
    """

    def __init__(self, values, data, folder):
        self._values, self._data, self._folder = values, data, folder
        self._modules = training.ModuleCache(data)
        recorded = {}
        if not values.overwrite_output_dir:
            recorded = output_dir.recorded(folder, "training")
        self._precision = devices.choose_precision(
            values.precision, False, _WIDTH, recorded.get("precision")
        )

    def search_settings(self, narrowed):
        """The `search.SearchSettings` over what flags leave of the space."""
        values = self._values
        database = os.path.abspath(os.path.join(self._folder, _DATABASE))
        return search.SearchSettings(
            name=self._data.task.name,
            storage=values.storage or f"sqlite:///{database}",
            trials=values.trials,
            sampler=values.sampler,
            pruner=values.pruner,
            random_seed=values.random_seed,
            narrowed=narrowed,
            conditions=self._conditions(narrowed.get("module", SPACE["module"]).values),
        )

    def check(self, settings):
        """Raises UserError if no model of these `search_space.Settings` can be made here."""
        self._model(settings)

    def search(self, settings, alone):
        """Takes part in the search until it has its trials, and returns these."""
        study, patience = search.Search(settings, alone), self._patience
        self._check_output_dir(settings)

        def train(model_settings, on_score):
            try:
                return self._model(model_settings).train(patience=patience, on_score=on_score).score
            except training.LossIsNaN as error:
                raise search.Diverged from error

        study.run(train)
        return study.trials()

    def _check_output_dir(self, search_settings):
        """Raises UserError if the model in output_dir is of no search, or another one."""
        recorded = self._recorded()
        if not recorded:
            return
        recorded_search = recorded.get("search")
        if recorded_search is None or search_settings.differences(recorded_search):
            raise UserError(
                f"{self._settings_file}: the model there is not of this search;"
                " give another --output_dir, or --overwrite_output_dir."
            )

    def best(self, settings, trials):
        """(the `Settings` of the best trial, the report's line); writes search.json."""
        task, best = self._data.task, search.best_of(trials)
        path = posixpath.join(self._folder, _SEARCH)
        name = grids.task_label(task.name, self._data.where)
        record = search.record(settings, trials, name, "eval_" + task.score)
        files.write_object(path, record)
        stopped = sum(trial.pruned for trial in trials)
        line = (
            f"Search: {len(trials)} trials ({stopped} stopped early), the best is trial"
            f" {best.number} with {task.score} {best.score:.4f}: {path}"
        )
        return best.settings, line

    def train_and_test(self, settings, search_settings=None):
        """Trains one model, if that is not done yet, and evaluates it; returns the report's lines.

        Args:
          settings: `search_space.Settings`.
          search_settings: the `search.SearchSettings` that found them; None for a preset.
        """
        start, task, model = time.monotonic(), self._data.task, self._model(settings)
        trained, is_new = self._train_if_needed(model, self._settings(settings, search_settings))
        scores, report = {}, []
        for split in self._data.texts:
            if not split.startswith("train"):
                lines, split_scores = self._evaluate(model, split)
                report += lines
                scores.update(split_scores)
        dev = {name: value for name, value in scores.items() if not name.startswith("test_")}
        about = classifier_results.about(task, "eval")
        path = output_dir.write_results(self._folder, {**dev, **trained}, about)
        record = self._record(settings, {**scores, **trained})
        folder = self._values.records_dir or self._folder
        existing = {known["key"]: known for known in records.read(folder)}.get(record["key"])
        if is_new or not existing or record["scores"].keys() - existing["scores"].keys():
            record["seconds"] = time.monotonic() - start
            records.append(folder, (1, 1), record)
        return [
            f"{task.name} dev: {classifier_results.summary(task, 'eval', dev)} at step"
            f" {trained['global_step']}",
            f"Trained: {trained['trained_parameters']:,} parameters",
            f"Settings: {', '.join(f'{n}={v}' for n, v in dataclasses.asdict(settings).items())}",
            f"Scores: {path}",
            *report,
        ]

    @property
    def _patience(self):
        return self._values.early_stopping_patience

    def _model(self, settings):
        seed = self._values.random_seed
        return training.Baseline(settings, self._data, self._modules, seed, self._precision)

    def _train_if_needed(self, model, settings):
        """How many parameters were trained, and to which step, as a dict; trains if need be.

        Returns:
          (the dict, whether it had to be trained).
        """
        # A search that goes on may find another best model than the one that it has left there.
        recorded = self._recorded()
        replaces = "search" in settings and recorded not in (None, settings)
        self._claim = output_dir.claim(self._folder, settings, is_training=True, overwrite=replaces)
        path = posixpath.join(self._folder, "eval_results.json")
        if files.exists(path):
            if checkpoints.latest(self._folder):
                results = files.read_object(path)
                return {
                    name: results[name] for name in ("trained_parameters", "global_step")
                }, False
            files.remove(path)  # Of weights that are gone: never beside those of another run.
        result = model.train(self._folder, self._patience)
        step = result.samples // training.BATCH_SIZE
        return {"trained_parameters": result.trained_parameters, "global_step": step}, True

    def _evaluate(self, model, split):
        """Predicts a split and writes what there is of it: (the report's lines, the scores)."""
        data, folder = self._data, self._folder
        task, predictions, labels = data.task, model.predict(split, folder), data.labels[split]
        stage, _, variant = split.partition("_")
        if stage == "test":
            labels = labels if data.has_labels[split] else None
            return classifier_results.write_test(folder, task, split, predictions, labels)
        classifier_results.write_answers(folder, task, split, labels, predictions)
        scores = classifier_results.scores(task, labels, predictions)
        return [], classifier_results.named("eval" + ("_" + variant if variant else ""), scores)

    def _conditions(self, modules):
        """What decides over a training's weights beside the parameters of the space.

        Args:
          modules: the names of those that it may have.
        """
        for name in modules:
            self._modules.open_module(name)  # Refuses a missing module before anything begins.
        rows = (
            (split, *pair, str(label))
            for split, texts in self._data.texts.items()
            if not split.startswith("test")
            for pair, label in zip(texts, self._data.labels[split].tolist())
        )
        return {
            "random_seed": self._values.random_seed,
            "max_words": self._values.max_words,
            "precision": self._precision,
            "early_stopping_patience": self._patience,
            "data": task_adapter.digest(rows),
            "module_files": task_adapter.digest(map(training.module_file_digests, modules)),
        }

    def _settings(self, settings, search_settings):
        """What settings.json says of the trained model, and of the search that it is of."""
        task = self._data.task
        return {
            "model": {"task": task.name, "labels": list(task.labels)},
            "training": {**dataclasses.asdict(settings), **self._conditions([settings.module])},
            **({"search": search_settings.fixed} if search_settings else {}),
        }

    @property
    def _settings_file(self):
        return posixpath.join(self._folder, output_dir.SETTINGS_FILE)

    def _recorded(self):
        """What settings.json says of the model in output_dir; None if there is none."""
        path = self._settings_file
        return files.read_object(path) if files.exists(path) else None

    def _record(self, settings, scores):
        """The training as `records` has it; what the search chose is no flag of it."""
        task, values = self._data.task, self._values
        recorded_flags = {"task_name": task.name, "random_seed": values.random_seed}
        if values.preset:
            recorded_flags["preset"] = values.preset
        else:
            recorded_flags.update(
                trials=values.trials, sampler=values.sampler, pruner=values.pruner
            )
        if task.name == "custom":
            recorded_flags["data_dir"] = self._data.where
        for flag in _RECORDED_IF_CHANGED:
            if values[flag].value != values[flag].default:
                recorded_flags[flag] = values[flag].value
        if values.module:
            recorded_flags["module"] = ",".join(map(search_space.short_name, values.module))
        if values.setting:
            recorded_flags["setting"] = " ".join(sorted(values.setting))
        trial = grids.Trial("run_baseline.py", tuple(sorted(recorded_flags.items())))
        module = search_space.short_name(settings.module)
        return {
            "key": trial.key(module),
            "script": trial.script,
            "flags": recorded_flags,
            "status": records.DONE,
            "finished": records.now(),
            "task": grids.task_label(task.name, self._data.where),
            "score": "eval_" + task.score,
            "scores": metrics.scalars(scores),
            "settings": {**dataclasses.asdict(settings), "module": module},
        }


main = cli.main_of(run)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
