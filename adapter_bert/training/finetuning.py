"""The steps of a run that all scripts share, from the settings to the saved task adapter.

    setup = set_up(config, start, folder)               loads the BERT, connects to the devices
    check(setup, task)                                  before texts are tokenized
    estimator, output = begin(setup, task, data, model_fn_builder)  claims --output_dir
    train_and_evaluate(config, estimator, train_rows, dev_sets, output, ...)
    predict(config, estimator, rows, output)

To only evaluate a task adapter, call `begin_evaluation` instead of `begin`.
"""

import dataclasses
import math
import posixpath
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
from absl import logging

import modeling
import optimization
from adapter_bert.files import gfile, json_objects, paths
from adapter_bert.formats import adapter_checkpoints, checkpoints, task_adapter
from adapter_bert.model import configs, model_variables, task_kinds
from adapter_bert.ops import devices
from adapter_bert.shell.errors import UserError
from adapter_bert.training import cluster, evaluations, pretrained
from adapter_bert.training import estimator as estimators
from adapter_bert.training.config import FinetuningConfig
from adapter_bert.training.estimator import Estimator, RunSettings
from adapter_bert.training.model_fn import ModelSettings
from adapter_bert.training.output_dir import FULL_CHECKPOINT, OutputDir, check_fits, identity
from adapter_bert.training.rows import as_rows
from adapter_bert.training.starting_point import StartingPoint

_ANSWERS = "answers"  # The key of `Data.answers` in a description's `training`.
_MAX_STEPS = 2**31 - 1  # More than any training takes; an int32 holds it.

# Settings that name a run's inputs; each script has some of them.
_INPUT_FLAGS = ("adapter", *paths.BERT_FILES, "spm_model_file", "bert_hub_module_handle")
_INPUT_FLAGS += ("data_dir", "train_file", "predict_file", "dev_file", "test_file")


class Task(NamedTuple):
    """The task of a run; `glue.Task` has the same attributes.

    Attributes:
      name, kind, labels: as in `task_adapter.Description`.
      score: name of the dev score, the higher the better, by which task adapters are compared.
    """

    name: str
    kind: str
    labels: Tuple[str, ...]
    score: str


class Data(NamedTuple):
    """Facts about a run's data.

    Attributes:
      num_examples: size of the training set; unused unless training.
      settings: JSON values by name that affect the weights, such as the data's digest.
      dev_settings: those that affect the dev scores; they matter if scores choose the weights.
      fields: those of the kind's `fields` that an example of this task has.
      answers: how answers are chosen from the outputs; recorded, and free to change on resumption.
      trained_on: digest of the training rows, if the rows to evaluate were set apart from the same
        file; None in training or if they have their own file.
    """

    num_examples: int = 0
    settings: Dict[str, Any] = {}
    dev_settings: Dict[str, Any] = {}
    fields: Tuple[str, ...] = ()
    answers: Dict[str, Any] = {}
    trained_on: Optional[str] = None


class DevSet:
    """The rows to evaluate on, and the functions that decode and score their predictions.

    Args:
      rows: as in `estimator`.
      decode_fn: function of an iterable of the rows' predictions → decoded predictions.
      score_fn: function of decoded predictions → scores, as in `Estimator.evaluate`.

    Attributes:
      rows: as above.
      decoded: the latest decoded predictions; None before the first.
    """

    def __init__(self, rows, decode_fn, score_fn):
        self.rows, self.decoded = rows, None
        self._decode_fn, self._score_fn = decode_fn, score_fn

    def decode(self, predictions):
        """Decodes the rows' predictions, and keeps the result in `decoded`."""
        self.decoded = self._decode_fn(predictions)

    def scores(self, predictions):
        """Returns the scores of the rows' predictions, after decoding them."""
        self.decode(predictions)
        return self._score_fn(self.decoded)


class Setup(NamedTuple):
    """The state of a run before it reads data.

    Attributes:
      config: `FinetuningConfig`; without training, the config of `set_up_evaluation`.
      start: `StartingPoint`.
      bert: `configs.PretrainedBert`.
      tokenizer: `tokenization.FullTokenizer`.
      backbone: `task_adapter.Backbone` of the BERT.
      run: `RunSettings`.
      use_tpu: bool.
      precision: "float32" or "bfloat16".
      stages: the stages that this process runs, from train, eval and predict.
    """

    config: Any
    start: StartingPoint
    bert: configs.PretrainedBert
    tokenizer: Any
    backbone: task_adapter.Backbone
    run: RunSettings
    use_tpu: bool
    precision: str
    stages: List[str]


def set_up(config: FinetuningConfig, start: StartingPoint, folder: str) -> Setup:
    """Loads the BERT, connects to the devices, chooses the precision, and returns a `Setup`.

    Args:
      config: `FinetuningConfig`.
      start: `StartingPoint`.
      folder: output_dir.

    Raises:
      UserError: something that a flag names is missing, broken or incompatible.
    """
    bert, tokenizer = pretrained.load(config)
    pretrained.check_sequence_length(config.max_seq_length, bert.config)
    config.tuning.check_num_top_layers(bert.config.num_hidden_layers)
    if config.adapter:
        config.adapter.check_layers(bert.config.num_hidden_layers)
        modeling.get_adapter(config.adapter.fn)
    run, use_tpu = estimators.connect_for_training(config, folder)
    is_chief = run.distribution.workers.is_chief
    stages = [stage for stage in config.stages if is_chief or stage == "train"]
    _check_evaluations(config, run)
    if use_tpu:
        estimators.check_paths_for_tpu(
            config, output_dir=folder, init_checkpoint=bert.init_checkpoint
        )
    precision = "float32"  # On a worker, until the chief decides; see `_shared_settings`.
    if is_chief or config.precision != "auto":
        recorded = _recorded_training(config, start, folder, bert).get("precision")
        precision = _choose_precision(config, bert, use_tpu, recorded)
    _check_batch_norm(config, run, use_tpu)
    backbone = adapter_checkpoints.backbone_of(bert.init_checkpoint, bert.config)
    return Setup(config, start, bert, tokenizer, backbone, run, use_tpu, precision, stages)


def set_up_evaluation(config, start: StartingPoint, folder: str) -> Setup:
    """Returns a `Setup` to evaluate the task adapter of `start`, or plain BERT without one.

    Args:
      config: `TokenizerConfig` and `DeviceConfig`, with max_seq_length and eval_batch_size.
      start, folder: as in `set_up`.
    """
    bert, tokenizer = pretrained.load(config)
    pretrained.check_sequence_length(config.max_seq_length, bert.config)
    run, use_tpu = estimators.connect(config, folder)
    if use_tpu:
        estimators.check_paths_for_tpu(
            config, output_dir=folder, init_checkpoint=bert.init_checkpoint
        )
    recorded = start.adapter and start.adapter.description.training.get("precision")
    precision = _choose_precision(config, bert, use_tpu, recorded)
    backbone = adapter_checkpoints.backbone_of(bert.init_checkpoint, bert.config)
    return Setup(config, start, bert, tokenizer, backbone, run, use_tpu, precision, ["eval"])


def _choose_precision(config, bert, use_tpu, recorded):
    width = bert.config.hidden_size, bert.config.intermediate_size
    return devices.choose_precision(config.precision, use_tpu, width, recorded)


def _recorded_training(config, start, folder, bert):
    """Returns settings of the training in output_dir or of what is evaluated, or {}."""
    output = OutputDir(folder)
    if "train" in config.stages:
        resumes = output.has_checkpoints() and not config.overwrite_output_dir
        return output.recorded("training") if resumes else {}
    return _evaluated(start, output, bert)[1]


def _evaluated(start, output, bert):
    """Returns (description of the evaluated task adapter or None, settings of its training or {}).

    For a run's checkpoint, such as full_model.ckpt, the settings in the same folder record it.
    """
    description = start.adapter and start.adapter.description
    if not description and output.has_adapter():
        description = output.describe_adapter()
    if description:
        return description, description.training
    if not output.has_checkpoints():
        output = OutputDir(posixpath.dirname(bert.init_checkpoint))
    return None, output.recorded("training")


def _check_evaluations(config, run):
    """Raises UserError if one of several training processes would evaluate during training."""
    if "train" not in config.stages or len(run.distribution.workers.addresses) < 2:
        return
    for name in ("eval_every_steps", "keep_best", "early_stopping_patience"):
        if getattr(config, name):
            raise UserError(
                f"--{name} evaluates during training, which --distribution=multi_worker does not"
                " support: its chief evaluates at the end."
            )


def _check_batch_norm(config, run, use_tpu):
    """Raises UserError if batch statistics would be taken over parts of a batch, on replicas."""
    normalization = config.adapter and config.adapter.normalization
    if normalization != "batch" or "train" not in config.stages:
        return
    if use_tpu or run.distribution.kind != "none":
        replicas_flag = "--use_tpu=True" if use_tpu else f"--distribution={config.distribution}"
        raise UserError(
            "--adapter_normalization=batch needs the statistics of the whole batch, but each"
            f" replica of {replicas_flag} sees only a part; expected none or layer, or one device."
        )


def describe(setup: Setup, task: Task, training: Dict[str, Any]) -> task_adapter.Description:
    """Returns the description of what the run trains or uses, without steps and scores yet.

    Args:
      setup: `Setup`.
      task: `Task`.
      training: what affects the weights in addition to the settings in `setup`.
    """
    config, started_from = setup.config, setup.start.adapter
    return task_adapter.Description(
        task=task.name,
        kind=task.kind,
        labels=tuple(task.labels),
        **_texts_and_backbone(setup),
        tuning=config.tuning,
        adapter=config.adapter,
        global_step=0,
        training={
            "train_batch_size": config.train_batch_size,
            "gradient_accumulation_steps": config.gradient_accumulation_steps,
            "random_seed": config.random_seed,
            "precision": setup.precision,
            "started_from": started_from and task_adapter.tensors_digest(started_from),
            **training,
        },
        scores={},
        versions=task_adapter.versions(),
        presentation=task_adapter.Presentation(label_descriptions(config.label_descriptions, task)),
    )


def label_descriptions(path: Optional[str], task: Task) -> Dict[str, str]:
    """Returns the descriptions of labels in --label_descriptions; raises UserError if invalid."""
    if path is None:
        return {}
    where = f"--label_descriptions={path}"
    expected = 'JSON, {"<label>": "<what it means>", ...}'
    descriptions = json_objects.read_object(path, where, expected)
    if not all(isinstance(text, str) for text in descriptions.values()):
        raise UserError(f"{where}: expected {expected}.")
    # Of tags, what they mark may be described: "PER" for B-PER and I-PER.
    known = {*task.labels, *(label.partition("-")[2] for label in task.labels)}
    unknown = sorted(set(descriptions) - known)
    if unknown and not task.labels:
        raise UserError(f"{where}: {task.name} has no labels to describe.")
    if unknown:
        raise UserError(
            f"{where}: {unknown[0][:100]!r} is not a label of the task; its labels:"
            f" {', '.join(task.labels[:10])}{', ...' if len(task.labels) > 10 else ''}."
        )
    return descriptions


def _texts_and_backbone(setup):
    """Returns the fields of a `task_adapter.Description` about the BERT and its input texts."""
    return {
        "max_seq_length": setup.config.max_seq_length,
        "do_lower_case": setup.config.do_lower_case,
        "vocabulary": task_adapter.digest(setup.tokenizer.vocab),
        "backbone": setup.backbone,
    }


def check(setup: Setup, task: Task) -> None:
    """Raises UserError if --adapter, or a task's tensors in --init_checkpoint, do not fit."""
    kind = task_kinds.get(task.kind)
    configs.check_pairs(
        setup.bert.config, kind.fields[: kind.num_required], f"A task of {kind.name}"
    )
    description = describe(setup, task, {})
    trained_shapes = task_adapter.shapes(description)
    checkpoints.check_shapes(setup.bert.init_checkpoint, trained_shapes)
    _check_no_other_adapters(setup.bert.init_checkpoint, set(trained_shapes))
    if setup.start.adapter:
        where = f"--adapter {setup.config.adapter_folder}"
        check_fits(setup.start.adapter.description, description, where)
        _check_adapter_in_folder(setup)


def _check_adapter_in_folder(setup):
    """Raises UserError if a run with --adapter would replace another adapter's results."""
    output = OutputDir(setup.run.output_dir)
    adapter_flag = f"--adapter {setup.config.adapter_folder}"
    is_same_folder = paths.is_same_path(setup.config.adapter_folder, output.adapter_folder)
    if "train" in setup.stages and is_same_folder:
        raise UserError(
            f"{adapter_flag} is the adapter of --output_dir {output.path}; to train it further give"
            " another --output_dir."
        )
    if "train" in setup.stages or is_same_folder or not output.has_adapter():
        return
    saved_digest = task_adapter.tensors_digest(output.load_adapter())
    if saved_digest != task_adapter.tensors_digest(setup.start.adapter):
        raise UserError(
            f"--output_dir {output.path} holds the results of another task adapter than"
            f" {adapter_flag}; give another --output_dir."
        )


def schedule(config: FinetuningConfig, num_examples: int) -> Dict[str, Any]:
    """Returns the learning rate and the number of steps, as fields of `ModelSettings`.

    Args:
      config: `FinetuningConfig`.
      num_examples: size of the training set.

    Raises:
      UserError: there is less than one step, or too many.
    """
    rate, epochs = config.rate_and_epochs()
    for name, value in (("learning_rate", rate), ("num_train_epochs", epochs)):
        if getattr(config, name) is None:
            method = config.tuning.method
            logging.info("--%s: %g, the default for --tuning=%s", name, value, method)
    num_steps = num_examples / config.train_batch_size * epochs
    if num_steps < 1:
        raise UserError(
            f"{num_examples} training examples in batches of {config.train_batch_size} for"
            f" {epochs} epochs make less than one step: lower --train_batch_size or raise"
            " --num_train_epochs."
        )
    if num_steps > _MAX_STEPS:
        raise UserError(
            f"--num_train_epochs={epochs:g} makes {num_steps:g} steps of --train_batch_size="
            f"{config.train_batch_size}; expected at most {_MAX_STEPS}."
        )
    num_train_steps = int(num_steps)
    return {
        "learning_rate": rate,
        "num_train_steps": num_train_steps,
        "num_warmup_steps": int(num_train_steps * config.warmup_proportion),
    }


def evaluation_interval(config: FinetuningConfig, num_examples: int) -> int:
    """Returns the number of training steps between evaluations; 0 for none."""
    if config.eval_every_steps or not (config.keep_best or config.early_stopping_patience):
        return config.eval_every_steps
    return max(1, num_examples // config.train_batch_size)


def _stopping_settings(config, data, interval):
    """Returns what decides which step's weights are kept; {} without a decision by dev scores."""
    if not (config.keep_best or config.early_stopping_patience):
        return {}
    return {
        "keep_best": config.keep_best,
        "early_stopping_patience": config.early_stopping_patience,
        "evaluated_every": interval,
        **data.dev_settings,
    }


def begin(setup: Setup, task: Task, data: Data, model_fn_builder) -> Tuple[Estimator, OutputDir]:
    """Claims --output_dir and builds the Estimator; all checks come first.

    Args:
      setup: `Setup`.
      task: `Task`, for which `check` has passed.
      data: `Data`.
      model_fn_builder: see `Estimator`.

    Raises:
      UserError: the run in the folder has another model, there are too few rows, the task adapter
        could not be saved, the data does not fit the training's, or overwriting would remove an
        input of the run.
    """
    configs.check_pairs(setup.bert.config, data.fields, f"The data of {task.name}")
    config, output = setup.config, OutputDir(setup.run.output_dir)
    is_training, run = "train" in setup.stages, setup.run
    training: Dict[str, Any] = dict(data.settings)
    schedule_settings: Dict[str, Any] = {}
    if is_training:
        _warn_of_rate(config)
        schedule_settings = schedule(config, data.num_examples)
        interval = evaluation_interval(config, data.num_examples)
        run = dataclasses.replace(run, eval_every_steps=interval)
        training.update(_stopping_settings(config, data, interval))
        _warn_of_trained_rows(setup.start, data)
    else:
        description, recorded = _evaluated(setup.start, output, setup.bert)
        check_data(recorded, description, data)
    output.score = "eval_" + task.score
    output.description = describe(setup, task, {**training, **schedule_settings})
    if is_training:
        task_adapter.check_savable(output.description)
    settings = _settings(output.description)
    if run.distribution.workers.is_chief:
        output.claim(
            {**settings, "pretrained": pretrained.recorded_flags(config, setup.bert)},
            is_training,
            overwrite=config.overwrite_output_dir,
            inputs=_input_paths(config),
        )
        if is_training and config.keep_best:
            output.check_best()
    recorded = {_ANSWERS: data.answers} if data.answers else {}
    output.description = dataclasses.replace(
        output.description,
        presentation=_presentation(setup, output, data),
        training={**output.description.training, **recorded},
    )
    model = _model_settings(
        setup,
        output,
        # On a TPU a matrix product's gradient for trained embeddings is faster than a gather's.
        use_one_hot_embeddings=setup.use_tpu
        and model_variables.is_trained(
            model_variables.Role("embeddings"), config.tuning, setup.bert.config.num_hidden_layers
        ),
        random_seed=config.random_seed,
        recompute_activations=config.recompute_activations,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        run_identity=identity(settings),
        saved_shapes=task_adapter.shapes(output.description),
        **schedule_settings,
    )
    return Estimator(model, run, model_fn_builder), output


def _warn_of_trained_rows(start, data):
    """Warns if the adapter that a training starts from may have been trained on its dev rows."""
    before = start.adapter.description.training.get("data") if start.adapter else None
    if before and data.trained_on and before != data.trained_on:
        logging.warning(
            "--adapter was trained on other rows. If these include rows of this training file, its"
            " dev and test rows are not new to the adapter, and scores are too high."
        )


def check_data(training: Dict[str, Any], description, data: Data) -> None:
    """Raises UserError if rows to evaluate were trained on, or have other texts than the adapter's.

    Args:
      training: the recorded settings of the training, if any.
      description: `task_adapter.Description` of the adapter that is evaluated, or None.
      data: `Data` of the rows to evaluate.
    """
    fields = description and description.presentation.fields
    if fields and data.fields and set(fields) != set(data.fields):
        raise UserError(
            f"The task adapter was trained with {' and '.join(fields)}, but the data has"
            f" {' and '.join(data.fields)}; check --text_b_column."
        )
    if data.trained_on and training.get("data", data.trained_on) != data.trained_on:
        raise UserError(
            "--data_dir: dev or test rows are set apart from the training file, whose other rows"
            " are not those of the training: some may have been trained on; give files dev and"
            " test, or the earlier training file."
        )


def _presentation(setup, output, data):
    """Returns the run's presentation; what flags do not set is as in an earlier adapter's file."""
    new, started_from = output.description.presentation, setup.start.adapter
    if output.has_adapter() and not setup.config.overwrite_output_dir:
        earlier = output.describe_adapter().presentation
    else:
        earlier = started_from.description.presentation if started_from else new
    descriptions = {**earlier.label_descriptions, **new.label_descriptions}
    return dataclasses.replace(earlier, label_descriptions=descriptions, fields=data.fields)


def begin_evaluation(setup: Setup, task: Task, model_fn_builder) -> Tuple[Estimator, OutputDir]:
    """Builds the Estimator of the task adapter that `setup` starts from, for evaluation only.

    Args:
      setup: the result of `set_up_evaluation`.
      task, model_fn_builder: as in `begin`.

    Raises:
      UserError: the adapter belongs to another model, or output_dir to another adapter.
    """
    adapter = setup.start.adapter
    assert adapter is not None
    _check_adapter_in_folder(setup)
    output = OutputDir(setup.run.output_dir)
    output.description = dataclasses.replace(
        adapter.description, kind=task.kind, labels=tuple(task.labels), **_texts_and_backbone(setup)
    )
    where = f"--adapter {setup.config.adapter_folder}"
    check_fits(adapter.description, output.description, where)
    return Estimator(_model_settings(setup, output), setup.run, model_fn_builder), output


def _model_settings(setup, output, **overrides):
    description, adapter = output.description, setup.start.adapter
    return ModelSettings(
        bert_config=setup.bert.config,
        init_checkpoint=setup.bert.init_checkpoint,
        task_checkpoint=adapter and output.as_checkpoint(adapter),
        adapter_fn=description.adapter,
        tuning=description.tuning,
        use_tpu=setup.use_tpu,
        precision=setup.precision,
        **overrides,
    )


def _warn_of_rate(config):
    """Warns of BERT's learning rate with adapters, unless the user chose the method."""
    rate = config.learning_rate
    is_chosen = "tuning" in config.given_flags or config.adapter_folder or rate is None
    if config.tuning.method == "adapters" and not is_chosen:
        optimization.warn_of_fine_tuning_rate(rate, "--tuning=full")


def _input_paths(config):
    """Returns (flag, path) for the inputs of the run that are named by flags."""
    field_names = {"adapter": "adapter_folder"}
    named_paths = [
        (name, getattr(config, field_names.get(name, name), None)) for name in _INPUT_FLAGS
    ]
    return [(f"--{name}", path) for name, path in named_paths if path]


def _settings(description):
    """Returns the settings that `OutputDir.claim` compares."""
    return {
        "model": {"task": description.task, **task_adapter.compatibility_fields(description)},
        "training": {
            "max_seq_length": description.max_seq_length,
            "bert_config": description.backbone.config,
            "adapter_init_scale": description.adapter and description.adapter.init_scale,
            **{name: v for name, v in description.training.items() if name != _ANSWERS},
        },
    }


def train_and_evaluate(config, estimator, train_rows, dev_sets, output, metadata, summary):
    """Trains and evaluates as the settings say, writes the scores, and returns the report.

    Args:
      config, estimator, train_rows, dev_sets, output: as in `finetune`.
      metadata: dict, further content of eval_results.json.
      summary: function of the scores → a line that reports them.

    Returns:
      The report, a list of lines.
    """
    report, scores = [], None
    if train_rows is not None:
        report, scores = finetune(config, estimator, train_rows, dev_sets, output)
    if not dev_sets:
        return report
    result = evaluate(config, estimator, dev_sets, output, scores)
    path = output.write_results(result, metadata)
    return [f"{summary(result)} at step {result['global_step']}", *report, f"Scores: {path}"]


def finetune(config, estimator, train_rows, dev_sets, output):
    """Trains, or resumes, to the end of the schedule, and saves the task adapter.

    Args:
      config: `FinetuningConfig`.
      estimator: `Estimator`.
      train_rows: see `estimator`.
      dev_sets: list of `DevSet`, for evaluations during training.
      output: `OutputDir`.

    Returns:
      (lines of the report, the scores of the last evaluation or None).
    """
    workers = estimator.run.distribution.workers

    def shared_settings(decided):
        nonlocal estimator
        estimator = _with_precision(config, estimator, output, decided["precision"])
        return _shared_settings(estimator, output)

    hooks = cluster.agree(
        workers,
        output.path,
        shared_settings,
        {"precision": estimator.model.precision},
        config.worker_timeout,
    )
    scores = _train_to_last_step(config, estimator, train_rows, dev_sets, output, hooks)
    if not workers.is_chief:
        return [f"Worker {workers.index} is done; the chief has the results."], None
    adapter = output.load_adapter() if config.keep_best else output.trained_adapter()
    presentation = output.description.presentation
    description = dataclasses.replace(adapter.description, presentation=presentation)
    output.save_adapter(adapter._replace(description=description))
    report = _report(estimator.model, output)
    if config.save_full_checkpoint:
        report += _write_full_checkpoint(estimator.model, output)
    return report, scores


def _train_to_last_step(config, estimator, train_rows, dev_sets, output, hooks):
    """Trains, and returns the scores of the last evaluation, or None without any."""
    last_step, interval = estimator.model.num_train_steps, estimator.run.eval_every_steps
    evaluations, scores = output.evaluations(), None
    for stop in [*range(interval, last_step, interval), last_step] if interval else [last_step]:
        step = estimator.last_step()
        if stop < step:
            continue
        if step < stop and estimator.run.distribution.workers.is_chief:
            output.remove_results()
        estimator.train(train_rows, stop, hooks)
        if interval and evaluations.at(stop) is None:
            scores = _evaluate_during_training(config, estimator, dev_sets, output, evaluations)
        if 0 < config.early_stopping_patience <= evaluations.since_best():
            logging.info("Stopped early: the best score is %.4f.", evaluations.best())
            break
    return scores


def _evaluate_during_training(config, estimator, dev_sets, output, evaluations):
    """Evaluates the last checkpoint; with --keep_best, saves its adapter if it is the best."""
    scores = _scores(estimator, dev_sets, None)
    step, score = scores["global_step"], scores[output.score]
    logging.info("Step %d: %s %.4f on the dev set.", step, output.score, score)
    if config.keep_best and score > max(evaluations.best(), _saved_score(output)):
        task_adapter.save(output.adapter_folder, output.trained_adapter(_numbers(scores)))
    evaluations.add(step, scores)  # Last, so that after a kill the evaluation is repeated.
    return scores


def _saved_score(output):
    """Returns the saved adapter's score, as the file of evaluations may be lost."""
    if not gfile.exists(output.adapter_folder):
        return -math.inf
    return output.describe_adapter().scores.get(output.score, -math.inf)


def _numbers(scores):
    return {n: value for n, value in evaluations.scalars(scores).items() if n != "global_step"}


def _with_precision(config, estimator, output, precision):
    """Returns the estimator in the chief's precision, unless --precision sets it."""
    model = estimator.model
    is_different = precision != model.precision and precision in configs.PRECISIONS[1:]
    if config.precision != "auto" or not is_different:
        return estimator
    logging.info("Computing in %s, the chief's precision.", precision)
    training = {**output.description.training, "precision": precision}
    output.description = dataclasses.replace(output.description, training=training)
    run_identity = identity(_settings(output.description))
    return estimator.with_model(precision=precision, run_identity=run_identity)


def _shared_settings(estimator, output):
    """Returns the settings that all workers must share; see `cluster.agree`."""
    settings = {
        f"{group}: {name}": value
        for group, fields in _settings(output.description).items()
        for name, value in fields.items()
    }
    return {
        **settings,
        "number of replicas": estimator.run.distribution.num_replicas,
        "last checkpoint in --output_dir": estimator.last_step(),
    }


def _report(model, output):
    """Returns the report's lines about the trained parameters and their adapter."""
    counts = parameter_counts(output.description, model.bert_config)
    trained, total = counts["trained_parameters"], counts["total_parameters"]
    size = gfile.readable_size(output.adapter_folder + "/")
    return [
        f"Trained: {trained:,} of {total:,} parameters ({trained / total:.2%})",
        f"Adapter: {output.adapter_folder} ({size})",
    ]


def _write_full_checkpoint(model, output):
    """Writes BERT and adapter as one checkpoint; returns the report's lines about it."""
    adapter = output.load_adapter()
    prefix = posixpath.join(output.path, FULL_CHECKPOINT)
    adapter_checkpoints.to_full_checkpoint(adapter, model.init_checkpoint, prefix)
    return [
        f"Full checkpoint: {prefix} ({gfile.readable_size(prefix + '.')})",
        adapter_checkpoints.full_checkpoint_use(adapter.description),
    ]


def evaluate(config, estimator, dev_sets, output, scores=None):
    """Returns the scores of the trained or given model on all dev sets; saves them in its adapter.

    Args:
      config, estimator, dev_sets, output: as in `finetune`.
      scores: the scores of the last evaluation during training, or None.
    """
    is_training, step = "train" in config.stages, None
    if is_training:
        adapter_step = config.keep_best and output.describe_adapter().global_step
        step = adapter_step or estimator.last_step()
    if scores is None or scores["global_step"] != step:
        for dev_set in dev_sets:
            dev_set.decoded = None  # Predictions from the training belong to another step.
        scores = output.evaluations().at(step) if is_training and config.keep_best else None
        if scores is None:
            scores = _scores(estimator, dev_sets, _result_checkpoint(config, estimator, output))
    if is_training and not config.keep_best:
        adapter = output.load_adapter()  # Its versions are those of the training.
        description = dataclasses.replace(adapter.description, scores=_numbers(scores))
        task_adapter.save(output.adapter_folder, adapter._replace(description=description))
    counts = parameter_counts(output.description, estimator.model.bert_config)
    return {**scores, "precision": estimator.model.precision, **counts}


def _scores(estimator, dev_sets, checkpoint):
    scores = {}
    for dev_set in dev_sets:
        logging.info("Evaluating on %d examples.", len(as_rows(dev_set.rows)))
        scores.update(estimator.evaluate(dev_set.rows, dev_set.scores, checkpoint))
    return scores


def predict(config, estimator, rows, output):
    """Yields the predictions of each row by the trained or given model; see `Estimator.predict`."""
    logging.info("Predicting %d examples.", len(as_rows(rows)))
    return estimator.predict(rows, _result_checkpoint(config, estimator, output))


def decoded(config, estimator, dev_set, output):
    """Returns a `DevSet`'s predictions by the trained or given model, decoded.

    Predicts if necessary: for the best step only the scores were kept.
    """
    if dev_set.decoded is None:
        dev_set.decode(predict(config, estimator, dev_set.rows, output))
    return dev_set.decoded


def _result_checkpoint(config, estimator, output):
    """Returns the prefix of the model to evaluate: of the given adapter, or of the saved one.

    None stands for the last checkpoint, or else for --init_checkpoint if it is a complete model.
    """
    is_training, task_checkpoint = "train" in config.stages, estimator.model.task_checkpoint
    if is_training and not config.keep_best:
        return None
    prefix = task_checkpoint if task_checkpoint and not is_training else output.adapter_checkpoint()
    if prefix is None and not checkpoints.latest(output.path):
        _check_is_trained(output, estimator.model.init_checkpoint)
    return prefix


def _check_is_trained(output, init_checkpoint):
    """Raises UserError unless --init_checkpoint holds all tensors that the model trains."""
    trained_names = set(task_adapter.shapes(output.description))
    checkpoint_names = set(checkpoints.open_checkpoint(init_checkpoint).get_variable_to_shape_map())
    untrained = sorted(trained_names - checkpoint_names)
    if untrained:
        raise UserError(
            f"The model is not trained yet: --output_dir {output.path} has no checkpoint, and"
            f" --init_checkpoint {init_checkpoint} lacks {untrained[-1]}; train first (--do_train)."
        )


def _check_no_other_adapters(init_checkpoint, trained_names):
    """Raises UserError if --init_checkpoint holds adapters that the model does not train."""
    names = checkpoints.open_checkpoint(init_checkpoint).get_variable_to_shape_map()
    ignored = checkpoints.unlisted_adapter_tensors(names, trained_names)
    if ignored:
        raise UserError(
            f"--init_checkpoint {init_checkpoint} holds {len(ignored)} tensors of adapters that"
            f" this model would ignore, such as {ignored[0]}; give the flags that it was trained"
            " with."
        )


def parameter_counts(description, bert_config):
    """Returns the numbers of trained, total and backbone parameters.

    Args:
      description: `task_adapter.Description`.
      bert_config: `configs.BertConfig`.

    Returns:
      dict of ints: trained_parameters, total_parameters, backbone_parameters.
    """
    trained = task_adapter.parameters(task_adapter.shapes(description))
    encoder = model_variables.encoder_shapes(bert_config)
    counts = {"backbone_parameters": encoder, "total_parameters": {**encoder, **trained}}
    if task_kinds.get(description.kind).reads_tokens:  # The pooler gets no gradient.
        trained = {name: shape for name, shape in trained.items() if "/pooler/" not in name}
    counts["trained_parameters"] = trained
    return {
        name: sum(int(np.prod(shape)) for shape in shapes.values())
        for name, shapes in counts.items()
    }
