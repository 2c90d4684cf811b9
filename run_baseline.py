"""The no-BERT baseline: searches for the best wide and deep model on text embeddings from TF-Hub.

    python run_baseline.py --task_name=airline --module=demo/embeddings --trials=100

Houlsby et al. 2019 (arXiv 1902.00751), section 3.3 and appendix A. The script tries settings from
their Table 5, trains a model again with the setting of the best dev score, and tests it. The same
command resumes a search that was stopped; started several times at once, it shares the search.
--preset=airline instead trains the settings that the paper's search selected for that task.
"""

from adapter_bert.shell import environment

if __name__ == "__main__":
    environment.prepare()

import dataclasses
import itertools
import os
import posixpath
import time
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from absl import logging

from adapter_bert.files import gfile, json_objects, paths
from adapter_bert.formats import checkpoints, task_adapter
from adapter_bert.model import configs
from adapter_bert.ops import devices
from adapter_bert.paper.baseline import search, search_space, training
from adapter_bert.paper.baseline.search_space import EVALUATE_EVERY, SPACE
from adapter_bert.shell import cli
from adapter_bert.shell.errors import UserError
from adapter_bert.shell.settings import flag
from adapter_bert.sweeps import grids, records
from adapter_bert.tasks.text import (
    classifier_data,
    classifier_features,
    classifier_results,
    glue,
)
from adapter_bert.tasks.text.classifier_data import TaskConfig
from adapter_bert.training import evaluations, record, run_folder
from adapter_bert.training.config import MAX_SEED

_DATABASE, _SEARCH, _RECORDS = "search.db", "search.json", "results.jsonl"
_BETTER_MODEL = "better_model"  # Of a training whose model will replace the one in output_dir.
_WIDTH = 512, 128  # Typical sizes of a convolution's products: embedding and filters.

# Flags that are recorded if they differ from the default.
_RECORDED_IF_CHANGED = (
    *("text_column", "text_b_column", "label_column", "label_type"),
    *("split", "dev_share", "test_share"),
    *("max_words", "early_stopping_patience", "precision"),
)


@dataclasses.dataclass(frozen=True)
class BaselineConfig(TaskConfig):
    """The settings of this script."""

    module: Tuple[str, ...] = flag(
        (),
        "Text embedding modules to choose from: "
        + ", ".join(search_space.MODULES)
        + ", or addresses and folders of others. Default: these five, or the preset's own.",
        "Model",
    )
    max_words: int = flag(
        128, "Longest text in words; longer ones are truncated.", "Model", lower=1
    )
    preset: Optional[str] = flag(
        None,
        "Train the settings that the paper's search selected for this task, without a search.",
        "Model",
        choices=search_space.PRESETS,
    )
    setting: Tuple[str, ...] = flag(
        (),
        "name=value[,value...]: restrict a parameter to these values, or override the preset's:"
        f" {', '.join(SPACE)}.",
        "Model",
        is_multiple=True,
    )
    trials: int = flag(100, "Number of trials, including those stopped early.", "Search", lower=1)
    sampler: str = flag(
        "tpe",
        "Algorithm that proposes settings. "
        + "; ".join("{}: {}".format(*item) for item in search.SAMPLERS.items())
        + ".",
        "Search",
        choices=search.SAMPLERS,
    )
    pruner: str = flag(
        "halving",
        "Rule that stops unpromising trials. "
        + "; ".join("{}: {}".format(*item) for item in search.PRUNERS.items())
        + ".",
        "Search",
        choices=search.PRUNERS,
    )
    storage: Optional[str] = flag(
        None,
        "Storage of the search, shared by all processes that name it: a database's URL, as in"
        " postgresql://user@host/name, or the path of a journal file on a shared disk. Default:"
        f" SQLite, output_dir/{_DATABASE}.",
        "Search",
    )
    search_only: bool = flag(
        False,
        "Take part in the search, but leave training the best model to another process. Set it on"
        " all machines but one.",
        "Search",
    )
    do_predict: bool = flag(True, "Predict the test set with the best model.", "Stages")
    early_stopping_patience: int = flag(
        10,
        "Number of evaluations without a better score after which a run stops; there is one every"
        f" {EVALUATE_EVERY:,} samples. 0 disables early stopping.",
        "Training",
        lower=0,
    )
    random_seed: int = flag(
        12345,
        "Seed of initial values, dropout, the order of the data, and the search.",
        "Training",
        lower=0,
        upper=MAX_SEED,
    )
    precision: str = flag(
        "auto",
        "Precision of the convolution's matrix products; all else is float32. auto: the precision"
        " of the model in --output_dir or of the search, else bfloat16 if it measures faster.",
        "Devices",
        choices=configs.PRECISIONS,
    )
    output_dir: Optional[str] = flag(
        None,
        "Folder for the search, the best model and its results. Default: output/<task>-baseline.",
        "Output",
    )
    overwrite_output_dir: bool = flag(
        False, "Remove an earlier run's files in output_dir first.", "Output"
    )
    records_dir: Optional[str] = flag(
        None,
        "Folder of a sweep whose records get the result, for run_report.py. Default: output_dir.",
        "Output",
    )


class Setup(NamedTuple):
    """The data and settings that all trainings of a run share."""

    # In quotes, as --help must not import TensorFlow.
    config: BaselineConfig
    data: "training.Dataset"
    modules: "training.ModuleCache"
    output: "run_folder.RunFolder"
    precision: str  # "float32" or "bfloat16".


def run(values: Any) -> List[str]:
    """Runs the script with the parsed flags; returns the report, a list of lines."""
    config = BaselineConfig.from_flags(values)
    narrowed = _narrow_space(config)
    preset = _preset_settings(config.preset, narrowed) if config.preset else None
    unused = config.changed_flags(("trials", "sampler", "pruner", "storage", "search_only"))
    if preset and unused:
        raise UserError(f"--{min(unused)}: --preset trains one model, without a search.")
    task_folder = str(config.task_name).lower() + "-baseline"
    output = run_folder.RunFolder(config.output_dir or os.path.join("output", task_folder))
    if gfile.is_remote(output.path):
        raise UserError(f"--output_dir={output.path}: a baseline needs a local folder.")
    processor, data_dir = classifier_data.find_task(config, None, output.path)
    if config.records_dir or not config.overwrite_output_dir:
        records.read(config.records_dir or output.path)  # Fails early if a record is damaged.
    output.create()
    if config.records_dir:
        with gfile.convert_write_errors(f"--records_dir={config.records_dir}"):
            gfile.makedirs(config.records_dir)
    with search.SearchLock(output.path) as search_lock:
        setup = _set_up(config, _read_data(processor, data_dir, config), output)
        if preset:
            _model(setup, preset)  # Fails early if its module is missing.
        else:
            search_settings = _search_settings(setup, narrowed)
        if config.overwrite_output_dir:
            reads = [("--data_dir", data_dir), *(("--module", name) for name in config.module)]
            if not search_lock.end():
                raise UserError(
                    f"--overwrite_output_dir: another process is working in {output.path}."
                )
            _clear_output_dir(output, reads)
            search_lock.begin()
        if preset:
            if not search_lock.end():
                raise UserError(f"--output_dir={output.path}: another process is working there.")
            return _train_and_test(setup, preset)
        if config.search_only:
            search_lock.leave()
        study = search.Search(search_settings, lambda known: _adopted(setup, known))
        search_settings = study.settings
        setup = setup._replace(precision=str(search_settings.conditions["precision"]))
        trials = _search(setup, study)
        if config.search_only:
            return [
                "The search is complete; a process without --search_only trains the best model."
            ]
        if not search_lock.end():
            return [
                "The search is complete; the last process to end trains the best model. If it is"
                " stopped, run the same command again."
            ]
        best, line = _best(setup, search_settings, trials)
        return [line, *_train_and_test(setup, best, search_settings)]


def _clear_output_dir(output: "run_folder.RunFolder", reads: List[Tuple[str, str]]) -> None:
    """Removes an earlier run's files, including its search; `reads` is as in `RunFolder.clear`."""
    output.clear(reads)
    for name in (_DATABASE, _SEARCH, _RECORDS, _BETTER_MODEL):
        path = posixpath.join(output.path, name)
        if gfile.exists(path):
            logging.info("--overwrite_output_dir removes %s", path)
            gfile.rmtree(path)


def _narrow_space(config: BaselineConfig) -> Dict[str, search_space.Choice]:
    """Returns parameter → the values that --module and --setting allow."""
    narrowed = {}
    for text in config.setting:
        name, parameter_values = search_space.parse_setting(text)
        if name in narrowed:
            raise UserError(f"--setting={text}: {name} is given twice.")
        narrowed[name] = search_space.Choice(tuple(parameter_values), name == "module")
    if config.module:
        if "module" in narrowed:
            raise UserError("--module and --setting=module=... are both given; give only one.")
        narrowed["module"] = search_space.Choice(tuple(config.module), is_open=True)
    return narrowed


def _preset_settings(
    name: str, narrowed: Dict[str, search_space.Choice]
) -> search_space.TrialSettings:
    """Returns the settings of a preset with some values replaced."""
    for parameter, domain in narrowed.items():
        if len(domain.values) > 1:
            raise UserError(
                f"--preset={name} trains one model: expected one value of {parameter}, found"
                f" {len(domain.values)}."
            )
    replacements = {parameter: domain.values[0] for parameter, domain in narrowed.items()}
    return dataclasses.replace(search_space.PRESETS[name], **replacements)


def _read_data(
    processor: "glue.SplitProcessor", data_dir: str, config: BaselineConfig
) -> "training.Dataset":
    """Returns the data of the task, with the splits that this run reads."""
    task, labels = processor.task, processor.get_labels()
    stages = ["train", "eval", *(["predict"] if config.do_predict else [])]
    examples = classifier_data.read_examples(processor, stages, data_dir)
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
        has_labels={split: processor.has_labels(split) for split in examples},
        max_words=config.max_words,
        where=data_dir,
    )


def _set_up(
    config: BaselineConfig, data: "training.Dataset", output: "run_folder.RunFolder"
) -> Setup:
    recorded = {} if config.overwrite_output_dir else output.recorded("training")
    precision = devices.choose_precision(config.precision, False, _WIDTH, recorded.get("precision"))
    return Setup(config, data, training.ModuleCache(data), output, precision)


def _search_settings(
    setup: Setup, narrowed: Dict[str, search_space.Choice]
) -> search.SearchSettings:
    """Returns the search's settings for the space that the flags leave."""
    config = setup.config
    database = os.path.abspath(os.path.join(setup.output.path, _DATABASE))
    if gfile.is_link(database):
        raise UserError(f"{database} is a link, which a search does not write to; remove it.")
    modules = narrowed["module"].values if "module" in narrowed else search_space.MODULES
    return search.SearchSettings(
        name=setup.data.task.name,
        storage=config.storage or f"sqlite:///{database}",
        trials=config.trials,
        sampler=config.sampler,
        pruner=config.pruner,
        random_seed=config.random_seed,
        narrowed=narrowed,
        conditions=_conditions(setup, modules),
    )


def _adopted(setup: Setup, recorded: Dict[str, Any]) -> Dict[str, object]:
    """Returns the conditions of an earlier process's search that --precision=auto adopts."""
    precision = recorded.get("precision")
    if setup.config.precision != "auto" or precision in (None, setup.precision):
        return {}
    return {"precision": devices.choose_precision("auto", False, _WIDTH, precision)}


def _search(setup: Setup, study: search.Search) -> List[search.SearchTrial]:
    """Takes part in a search until it is complete; returns its trials."""
    patience = setup.config.early_stopping_patience
    _check_output_dir(setup, study.settings)

    def train(model_settings: search_space.TrialSettings, on_score: search_space.OnScore) -> float:
        return _model(setup, model_settings).train(patience=patience, on_score=on_score).score

    study.run(train)
    return study.trials()


def _check_output_dir(setup: Setup, search_settings: search.SearchSettings) -> None:
    """Raises UserError if the model in output_dir comes from another search or from none."""
    recorded = _recorded(setup.output)
    if not recorded:
        return
    recorded_search = recorded.get("search")
    if not isinstance(recorded_search, dict) or search_settings.differences(recorded_search):
        raise UserError(
            f"{_settings_file(setup.output)}: the model there is not of this search;"
            " give another --output_dir, or --overwrite_output_dir."
        )


def _best(
    setup: Setup, settings: search.SearchSettings, trials: List[search.SearchTrial]
) -> Tuple[search_space.TrialSettings, str]:
    """Returns (settings of the best trial, a line for the report); writes search.json."""
    task, best = setup.data.task, search.best_of(trials)
    path = posixpath.join(setup.output.path, _SEARCH)
    name = grids.task_label(task.name, setup.data.where)
    record = search.record(settings, trials, name, "eval_" + task.score)
    json_objects.write_object(path, record)
    stopped = sum(trial.pruned for trial in trials)
    line = (
        f"Search: {len(trials)} trials ({stopped} stopped early), the best is trial"
        f" {best.number} with {task.score} {best.score:.4f}: {path}"
    )
    return best.settings, line


def _train_and_test(
    setup: Setup,
    settings: search_space.TrialSettings,
    search_settings: Optional[search.SearchSettings] = None,
) -> List[str]:
    """Trains one model, unless it is already trained, and evaluates it; returns the report's lines.

    Args:
      search_settings: of the search that selected them; None for a preset.
    """
    start, task, model = time.monotonic(), setup.data.task, _model(setup, settings)
    trained = _train_if_needed(setup, model, _settings(setup, settings, search_settings))
    scores, report = {}, []
    for split in setup.data.texts:
        if not split.startswith("train"):
            lines, split_scores = _evaluate(setup, model, split)
            report += lines
            scores.update(split_scores)
    dev = {name: value for name, value in scores.items() if not name.startswith("test_")}
    metadata = classifier_results.metadata(task, "eval")
    path = setup.output.write_results({**dev, **trained}, metadata)
    record = _record(setup, settings, {**scores, **trained})
    folder = setup.config.records_dir or setup.output.path
    existing = {known["key"]: known for known in records.read(folder)}.get(record["key"])
    if not existing or {**existing["scores"], **record["scores"]} != existing["scores"]:
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


def _model(setup: Setup, settings: search_space.TrialSettings) -> "training.Baseline":
    seed = setup.config.random_seed
    return training.Baseline(settings, setup.data, setup.modules, seed, setup.precision)


def _train_if_needed(
    setup: Setup, model: "training.Baseline", settings: Dict[str, Any]
) -> Dict[str, int]:
    """Trains unless the model is trained already; returns its parameter count and step, a dict."""
    output, recorded = setup.output, _recorded(setup.output)
    if recorded and all(recorded.get(name) == settings[name] for name in settings):
        settings = recorded  # A preset with a search's values must leave the folder to the search.
    # A search that resumes may find a better setting, whose model replaces the one in the folder.
    is_other = "search" in settings and recorded not in (None, settings)
    output.claim(record.of_sections(settings, BaselineConfig), is_training=True, overwrite=is_other)
    path = posixpath.join(output.path, "eval_results.json")
    if gfile.exists(path):
        if checkpoints.latest(output.path):
            return json_objects.read_as(path, "--output_dir", "eval_results.json", _trained)
        gfile.remove(path)  # Scores of weights that are gone must not stay next to new ones.
    result = model.train(output.path, setup.config.early_stopping_patience)
    step = result.samples // training.BATCH_SIZE
    return {"trained_parameters": result.trained_parameters, "global_step": step}


def _trained(results: Dict[str, Any]) -> Dict[str, int]:
    names = "trained_parameters", "global_step"
    return {name: json_objects.require_type(results[name], int) for name in names}


def _evaluate(
    setup: Setup, model: "training.Baseline", split: str
) -> Tuple[List[str], Dict[str, Any]]:
    """Predicts a split and writes the results: (lines of the report, scores)."""
    data, folder = setup.data, setup.output.path
    task, predictions, labels = data.task, model.predict(split, folder), data.labels[split]
    stage, _, variant = split.partition("_")
    if stage == "test":
        arguments = folder, task, split, predictions
        if not data.has_labels[split]:
            return classifier_results.write_test(*arguments), {}
        scores = classifier_results.scores_of_test(task, labels, predictions)
        return classifier_results.write_test(*arguments, (labels, scores)), scores
    classifier_results.write_answers(folder, task, split, labels, predictions)
    scores = classifier_results.scores(task, labels, predictions)
    return [], classifier_results.add_prefix("eval" + ("_" + variant if variant else ""), scores)


def _conditions(setup: Setup, modules: Iterable[str]) -> Dict[str, object]:
    """Returns what affects a training's weights besides the parameters of the space.

    Args:
      modules: names of the modules that it may use.
    """
    for name in modules:
        setup.modules.open_module(name)  # Fails early if a module is missing.
    splits = [split for split in setup.data.texts if not split.startswith("test")]
    rows = itertools.chain.from_iterable(_rows(setup.data, split) for split in splits)
    return {
        "random_seed": setup.config.random_seed,
        "max_words": setup.config.max_words,
        "precision": setup.precision,
        "early_stopping_patience": setup.config.early_stopping_patience,
        "data": task_adapter.digest(rows),
        "module_files": task_adapter.digest(
            gfile.file_digests(search_space.find_module(name).handle) for name in modules
        ),
    }


def _rows(data: "training.Dataset", split: str) -> Iterator[Tuple[Optional[str], ...]]:
    """Yields a split's rows with their labels, as strings."""
    for pair, label in zip(data.texts[split], data.labels[split].tolist()):
        yield (split, *pair, str(label))


def _settings(
    setup: Setup,
    settings: search_space.TrialSettings,
    search_settings: Optional[search.SearchSettings],
) -> Dict[str, Any]:
    """Returns the content of settings.json: the trained model and its search."""
    task = setup.data.task
    return {
        "model": {"task": task.name, "labels": list(task.labels)},
        "training": {**dataclasses.asdict(settings), **_conditions(setup, [settings.module])},
        **({"search": search_settings.fixed} if search_settings else {}),
    }


def _settings_file(output: "run_folder.RunFolder") -> str:
    return posixpath.join(output.path, paths.SETTINGS_FILE)


def _recorded(output: "run_folder.RunFolder") -> Optional[Dict[str, Any]]:
    """Returns the content of settings.json; None without one."""
    path = _settings_file(output)
    return json_objects.read_object(path) if gfile.exists(path) else None


def _record(
    setup: Setup, settings: search_space.TrialSettings, scores: Dict[str, Any]
) -> Dict[str, Any]:
    """Returns the training's record; values that the search chose are not among its flags."""
    task, config = setup.data.task, setup.config
    recorded_flags = {"task_name": task.name, "random_seed": config.random_seed}
    if config.preset:
        recorded_flags["preset"] = config.preset
    else:
        recorded_flags.update(trials=config.trials, sampler=config.sampler, pruner=config.pruner)
    if task.name == "custom":
        recorded_flags["data_dir"] = setup.data.where
    recorded_flags.update(config.changed_flags(_RECORDED_IF_CHANGED))
    if config.module:
        recorded_flags["module"] = ",".join(map(search_space.short_name, config.module))
    if config.setting:
        recorded_flags["setting"] = " ".join(sorted(config.setting))
    trial = grids.Trial("run_baseline.py", tuple(sorted(recorded_flags.items())))
    module = search_space.short_name(settings.module)
    handle = search_space.find_module(settings.module).handle
    module_files = [sha256 for _, sha256 in gfile.file_digests(handle)] or handle
    data = {split: task_adapter.digest(_rows(setup.data, split)) for split in ("train", "dev")}
    return {
        "key": trial.key([module, module_files], data),
        "data": data,
        "script": trial.script,
        "flags": recorded_flags,
        "status": records.DONE,
        "finished": records.now(),
        "task": grids.task_label(task.name, setup.data.where),
        "score": "eval_" + task.score,
        "scores": evaluations.scalars(scores),
        "settings": {**dataclasses.asdict(settings), "module": module},
    }


define_flags = BaselineConfig.define_flags
main = cli.main_of(run, define_flags)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
