"""A run: one task with one BERT in one folder, from the settings to the saved task adapter.

    run = Run(config, task, model_fn_builder, start)   checks, loads, encodes, claims the folder
    run.train(), run.save(), run.evaluate(), run.predict()
    run.report                                         lines for the user

`LoadedModel` is the part of a run that only computes: a BERT, a task adapter and devices.
"""

import dataclasses
import functools
import math
import posixpath
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from absl import logging

from adapter_bert import modeling, optimization
from adapter_bert.files import gfile, json_objects, paths
from adapter_bert.formats import adapter_checkpoints, checkpoints, task_adapter
from adapter_bert.model import configs, model_variables, task_kinds
from adapter_bert.ops import devices
from adapter_bert.shell import printing
from adapter_bert.shell.errors import UserError
from adapter_bert.training import cluster, evaluations, losses, plots, pretrained, record
from adapter_bert.training import estimator as estimators
from adapter_bert.training.config import FinetuningConfig
from adapter_bert.training.estimator import Estimator
from adapter_bert.training.model_fn import ModelSettings
from adapter_bert.training.rows import as_rows
from adapter_bert.training.run_folder import FULL_CHECKPOINT, RunFolder
from adapter_bert.training.starting_point import StartingPoint
from adapter_bert.training.stored_predictions import StoredPredictions
from adapter_bert.training.task import Evaluated, Task


class LoadedModel:
    """A pretrained BERT with its tokenizer, the task adapter to start from, and the devices.

    Args:
      config: `TokenizerConfig` and `DeviceConfig`, with max_seq_length and eval_batch_size.
      start: `StartingPoint`.
      path: of the folder for the model's files, which need not exist.

    Attributes:
      config, start: as above.
      bert: `configs.PretrainedBert`.
      tokenizer: `tokenization.FullTokenizer`.
      backbone: `task_adapter.Backbone` of the BERT.
      folder: `RunFolder`.
      devices: `estimator.RunSettings`.
      use_tpu, precision: as in `ModelSettings`.

    Raises:
      UserError: something that a flag names is missing, broken or incompatible.
    """

    def __init__(self, config: Any, start: StartingPoint, path: str):
        self.config, self.start, self.folder = config, start, RunFolder(path)
        self.bert, self.tokenizer = pretrained.load(config)
        pretrained.check_sequence_length(config.max_seq_length, self.bert.config)
        self.devices, self.use_tpu = self._connect()
        if self.use_tpu:
            init_checkpoint = self.bert.init_checkpoint
            estimators.check_paths_for_tpu(config, output_dir=path, init_checkpoint=init_checkpoint)
        self.precision = self._choose_precision()
        self.backbone = adapter_checkpoints.backbone_of(self.bert.init_checkpoint, self.bert.config)

    def _connect(self) -> Tuple[estimators.RunSettings, bool]:
        return estimators.connect(self.config, self.folder.path)

    def _choose_precision(self) -> str:
        width = self.bert.config.hidden_size, self.bert.config.intermediate_size
        recorded = self._recorded_training().get("precision")
        return devices.choose_precision(self.config.precision, self.use_tpu, width, recorded)

    def _recorded_training(self) -> Dict[str, Any]:
        """Returns the settings of the training of what is evaluated, or {}."""
        return self.start.adapter.description.training if self.start.adapter else {}

    def estimator_of(
        self, kind: str, labels: Tuple[str, ...], model_fn_builder: Callable, **settings: Any
    ) -> Estimator:
        """Returns the Estimator of the task adapter that this model starts from, for evaluation.

        This object must live as long as the Estimator, which reads its temporary files.

        Args:
          kind, labels: as in `task_adapter.Description`.
          model_fn_builder: see `Estimator`.
          **settings: further fields of `ModelSettings`.

        Raises:
          UserError: the adapter belongs to another model, or the folder to another adapter.
        """
        assert self.start.adapter is not None
        self._check_adapter_in_folder(is_training=False)
        description = dataclasses.replace(
            self.start.adapter.description,
            kind=kind,
            labels=tuple(labels),
            **self._texts_and_backbone(),
        )
        self._check_start_fits(description)
        model = self._model_settings(description, **settings)
        return Estimator(model, self.devices, model_fn_builder)

    def _texts_and_backbone(self) -> Dict[str, Any]:
        """Returns the fields of a `task_adapter.Description` about the BERT and its input texts."""
        return {
            "max_seq_length": self.config.max_seq_length,
            "do_lower_case": self.config.do_lower_case,
            "vocabulary": task_adapter.digest(self.tokenizer.vocab),
            "backbone": self.backbone,
        }

    def _model_settings(
        self, description: task_adapter.Description, **overrides: Any
    ) -> ModelSettings:
        adapter = self.start.adapter
        return ModelSettings(
            bert_config=self.bert.config,
            init_checkpoint=self.bert.init_checkpoint,
            task_checkpoint=adapter and self.folder.as_checkpoint(adapter),
            adapter_fn=description.adapter,
            tuning=description.tuning,
            use_tpu=self.use_tpu,
            precision=self.precision,
            **overrides,
        )

    def _check_start_fits(self, description: task_adapter.Description) -> None:
        if self.start.adapter:
            where = f"--adapter {self.config.adapter_folder}"
            start = self.start.adapter.description
            record.check_fits(start, description, where, type(self.config))

    def _check_adapter_in_folder(self, is_training: bool) -> None:
        """Raises UserError if a run with --adapter would replace another adapter's results."""
        folder, adapter_flag = self.folder, f"--adapter {self.config.adapter_folder}"
        is_same = paths.is_same_path(self.config.adapter_folder, folder.adapter_folder)
        if is_training and is_same:
            raise UserError(
                f"{adapter_flag} is the adapter of --output_dir {folder.path}; to train it further"
                " give another --output_dir."
            )
        if is_training or is_same or not folder.has_adapter():
            return
        assert self.start.adapter is not None
        digest = task_adapter.tensors_digest
        if digest(folder.load_adapter()) != digest(self.start.adapter):
            raise UserError(
                f"--output_dir {folder.path} holds the results of another task adapter than"
                f" {adapter_flag}; give another --output_dir."
            )


class Run(LoadedModel):
    """A run of a script: a task's training, evaluation and predictions, as the settings say.

    Everything that can be checked before the first step is checked when the object is made.

    Args:
      config: `FinetuningConfig`.
      task: `Task`.
      model_fn_builder: the script's; see `Estimator`.
      start: `StartingPoint`.

    Attributes, besides those of `LoadedModel`:
      task: as above.
      stages: the stages that this process runs, from train, eval and predict.
      rows: the rows of each split that the stages read.
      description: `task_adapter.Description` of what is trained or used, without scores.
      record: `record.Record` of the run.
      estimator: `Estimator`.
      report: lines for the user.
      scores: of the dev and test sets, by name, once they are evaluated and predicted.

    Raises:
      UserError: settings, BERT, task, data and folder do not go together; all else as there.
    """

    def __init__(
        self,
        config: FinetuningConfig,
        task: Task,
        model_fn_builder: Callable,
        start: Optional[StartingPoint] = None,
    ):
        super().__init__(config, start or StartingPoint(), task.folder)
        self.task = task
        is_chief = self.devices.distribution.workers.is_chief
        self.stages = [stage for stage in config.stages if is_chief or stage == "train"]
        self.is_training = "train" in self.stages
        self.report: List[str] = []
        self.scores: Dict[str, Any] = {}
        self._descriptions: List[str] = []  # The beginning of the report.
        self._conclusions: List[str] = []  # Its end.
        self._pictures: List[str] = []
        self._training_warnings: List[str] = []
        self._evaluated: Dict[int, Evaluated] = {}  # By id of the rows.
        self._scores: Dict[str, Any] = {}  # Of the last evaluation in training.
        self._score = "eval_" + task.score
        self._check_settings()
        self.description = self._describe()
        self._check_task()
        task.load_once(self.stages)
        self.rows = task.encode(self.tokenizer)
        model_settings = self._decide_training()
        self.record = self._record_of(self.description)
        self._claim()
        self.description = dataclasses.replace(self.description, presentation=self._presentation())
        if task.answer_settings:
            self._add_training({record.ANSWERS: task.answer_settings})
        model = self._model_settings(
            self.description,
            run_identity=self.record.identity,
            saved_shapes=task_adapter.shapes(self.description),
            **model_settings,
        )
        builder = functools.partial(model_fn_builder, **task.head())
        self.estimator = Estimator(model, self.devices, builder)

    def execute(self) -> List[str]:
        """Runs the stages that the settings name; returns the report."""
        if "train" in self.stages:
            self.train()
            self.save()
        if "eval" in self.stages:
            self.evaluate()
        if "predict" in self.stages:
            self.predict()
        is_chief = self.devices.distribution.workers.is_chief
        if self.config.plots and self.is_training and is_chief:
            self._draw_curves()
        if self._pictures:
            self.report.append(f"Pictures: {', '.join(self._pictures)}")
        of_predictions = [*self._warnings_of("dev"), *self._warnings_of("test")]
        warnings = dict.fromkeys([*self.task.warnings, *self._training_warnings, *of_predictions])
        shown = [f"Warning: {warning}" for warning in warnings]
        self.report = [*self._descriptions, *self.report, *shown, *self._conclusions]
        return self.report

    # Before the first step.

    def _connect(self) -> Tuple[estimators.RunSettings, bool]:
        return estimators.connect_for_training(self.config, self.folder.path)

    def _choose_precision(self) -> str:
        is_chief = self.devices.distribution.workers.is_chief
        if not is_chief and self.config.precision == "auto":
            return "float32"  # Until the chief decides; see `_shared_settings`.
        return super()._choose_precision()

    def _recorded_training(self) -> Dict[str, Any]:
        """Returns the settings of the training in output_dir or of what is evaluated, or {}."""
        if "train" in self.config.stages:
            resumes = self.folder.has_checkpoints() and not self.config.overwrite_output_dir
            return self.folder.recorded("training") if resumes else {}
        description = self._evaluated_adapter()
        if description:
            return description.training
        folder = self.folder
        if not folder.has_checkpoints():  # Of a run's checkpoint, such as full_model.ckpt.
            folder = RunFolder(posixpath.dirname(self.bert.init_checkpoint))
        return folder.recorded("training")

    def _evaluated_adapter(self) -> Optional[task_adapter.Description]:
        """Returns the description of the task adapter that is evaluated without training."""
        if self.start.adapter:
            return self.start.adapter.description
        return self.folder.describe_adapter() if self.folder.has_adapter() else None

    def _check_settings(self) -> None:
        """Raises UserError for settings that the BERT or the devices do not support."""
        config, distribution = self.config, self.devices.distribution
        config.tuning.check_num_top_layers(self.bert.config.num_hidden_layers)
        if config.adapter:
            config.adapter.check_layers(self.bert.config.num_hidden_layers)
            modeling.get_adapter(config.adapter.fn)
        if not self.is_training:
            return
        for name in ("eval_every_steps", "keep_best", "early_stopping_patience"):
            if getattr(config, name) and len(distribution.workers.addresses) > 1:
                raise UserError(
                    f"--{name} evaluates during training, which --distribution=multi_worker does"
                    " not support: its chief evaluates at the end."
                )
        is_replicated = self.use_tpu or distribution.kind != "none"
        if config.adapter and config.adapter.normalization == "batch" and is_replicated:
            flag = "--use_tpu=True" if self.use_tpu else f"--distribution={config.distribution}"
            raise UserError(
                "--adapter_normalization=batch needs the statistics of the whole batch, but each"
                f" replica of {flag} sees only a part; expected none or layer, or one device."
            )

    def _check_task(self) -> None:
        """Raises UserError if --adapter, or tensors in --init_checkpoint, do not fit the task."""
        kind, init_checkpoint = task_kinds.get(self.task.kind), self.bert.init_checkpoint
        required = kind.fields[: kind.num_required]
        configs.check_pairs(self.bert.config, required, f"A task of {kind.name}")
        shapes = task_adapter.shapes(self.description)
        checkpoints.check_shapes(init_checkpoint, shapes)
        names = checkpoints.open_checkpoint(init_checkpoint).get_variable_to_shape_map()
        ignored = checkpoints.unlisted_adapter_tensors(names, set(shapes))
        if ignored:
            raise UserError(
                f"--init_checkpoint {init_checkpoint} holds {len(ignored)} tensors of adapters that"
                f" this model would ignore, such as {ignored[0]}; give the flags that it was"
                " trained with."
            )
        if self.start.adapter:
            self._check_start_fits(self.description)
            self._check_adapter_in_folder(self.is_training)

    def _describe(self) -> task_adapter.Description:
        """Returns the description of what the run trains or uses, without data and scores."""
        config, task, started_from = self.config, self.task, self.start.adapter
        return task_adapter.Description(
            task=task.name,
            kind=task.kind,
            labels=tuple(task.labels),
            **self._texts_and_backbone(),
            tuning=config.tuning,
            adapter=config.adapter,
            global_step=0,
            training={
                "train_batch_size": config.train_batch_size,
                "gradient_accumulation_steps": config.gradient_accumulation_steps,
                "random_seed": config.random_seed,
                "precision": self.precision,
                "started_from": started_from and task_adapter.tensors_digest(started_from),
            },
            scores={},
            versions=task_adapter.versions(),
            presentation=task_adapter.Presentation(
                label_descriptions(config.label_descriptions, task.name, task.labels),
                license=config.license or "",
            ),
        )

    def _decide_training(self) -> Dict[str, Any]:
        """Adds data and schedule to the description; returns fields of `ModelSettings`."""
        config, task = self.config, self.task
        configs.check_pairs(self.bert.config, task.fields, f"The data of {task.name}")
        layers = self.bert.config.num_hidden_layers
        embeddings = model_variables.Role("embeddings")
        model = {
            # On a TPU a matrix product's gradient for trained embeddings is faster than a gather's.
            "use_one_hot_embeddings": self.use_tpu
            and model_variables.is_trained(embeddings, config.tuning, layers),
            "random_seed": config.random_seed,
            "recompute_activations": config.recompute_activations,
            "gradient_accumulation_steps": config.gradient_accumulation_steps,
        }
        if not self.is_training:
            task.check_trained(self._evaluated_adapter(), self._recorded_training())
            self._add_training(task.settings)
            return model
        warn_of_rate(config)
        task.check_further_training(self.start.adapter)
        schedule = config.schedule(task.num_examples)
        interval = config.evaluation_interval(task.num_examples)
        self.devices = dataclasses.replace(self.devices, eval_every_steps=interval)
        selection: Dict[str, Any] = {}
        if config.keeps_best:
            selection = {
                "keep_best": config.keep_best,
                "early_stopping_patience": config.early_stopping_patience,
                "evaluated_every": interval,
                **({"metric": task.score} if config.metric else {}),
                **task.dev_settings,
            }
        self._add_training({**task.settings, **selection, **schedule})
        task_adapter.check_savable(self.description)
        return {**model, **schedule}

    def _add_training(self, settings: Dict[str, Any]) -> None:
        """Adds to the description settings that affect the weights, or replaces them."""
        training = {**self.description.training, **settings}
        self.description = dataclasses.replace(self.description, training=training)

    def _record_of(self, description: task_adapter.Description) -> record.Record:
        recorded = pretrained.recorded_flags(self.config, self.bert)
        return record.of_description(description, type(self.config), recorded)

    def _claim(self) -> None:
        """Claims the folder; the chief alone writes there."""
        config = self.config
        if not self.devices.distribution.workers.is_chief:
            return
        self.folder.claim(
            self.record, self.is_training, config.overwrite_output_dir, config.inputs()
        )
        if self.is_training and config.keeps_best:
            self.folder.check_best(self._score)

    def _presentation(self) -> task_adapter.Presentation:
        """Returns the run's presentation; what flags do not set is as in an earlier adapter."""
        new = earlier = self.description.presentation
        if self.folder.has_adapter() and not self.config.overwrite_output_dir:
            earlier = self.folder.describe_adapter().presentation
        elif self.start.adapter:
            earlier = self.start.adapter.description.presentation
            earlier = dataclasses.replace(earlier, examples=())  # They are of other data.
        return dataclasses.replace(
            earlier,
            label_descriptions={**earlier.label_descriptions, **new.label_descriptions},
            fields=self.task.fields,
            examples=() if self.config.no_examples else earlier.examples or self.task.examples,
            license=new.license or earlier.license,
        )

    # Training.

    def train(self) -> None:
        """Trains, or resumes, to the end of the schedule, or until --early_stopping_patience."""
        workers = self.devices.distribution.workers
        hooks = cluster.agree(
            workers,
            self.folder.path,
            self._shared_settings,
            {"precision": self.precision},
            self.config.worker_timeout,
        )
        self._train_to_last_step(hooks)
        if not workers.is_chief:
            self.report = [f"Worker {workers.index} is done; the chief has the results."]
            return
        if not self.start.adapter:  # The loss of a trained adapter may be low from the first step.
            trained = losses.read(self.folder.path)
            self._training_warnings += losses.warnings([loss for _, loss in trained])

    def _train_to_last_step(self, hooks: List[Any]) -> None:
        step, interval = self.estimator.last_step(), self.devices.eval_every_steps
        last_step = self.estimator.model.num_train_steps
        evaluate = self._evaluate_during_training if interval else None
        is_evaluated_step = step > 0 and (step == last_step or interval and step % interval == 0)
        if evaluate and is_evaluated_step and evaluate():
            return
        if step < last_step and self.devices.distribution.workers.is_chief:
            self.folder.remove_results()
        self.estimator.train(self.rows["train"], evaluate, hooks)

    def _evaluate_during_training(self) -> bool:
        """Evaluates the last checkpoint, unless it is done; returns whether to stop early.

        Saves its adapter if it is the best so far, and the best is kept.
        """
        evaluated = self.folder.evaluations(self._score)
        if evaluated.at(self.estimator.last_step()) is None:
            self._scores = scores = self._score_dev_sets(None)
            step, score = scores["global_step"], scores[self._score]
            is_best = score > max(evaluated.best(), self._saved_score())
            loss = f", loss {scores['eval_loss']:.4f}" if "eval_loss" in scores else ""
            best = ", the best so far" * is_best
            logging.info("Step %d: %s %.4f%s%s.", step, self._score, score, loss, best)
            for warning in self._warnings_of("dev"):
                logging.warning("%s", warning)
            if is_best and self.config.keeps_best:
                self._save_with_scores(self._trained_adapter(), scores)
            evaluated.add(step, scores)  # Last, so that after a kill the evaluation is repeated.
        if not 0 < self.config.early_stopping_patience <= evaluated.since_best():
            return False
        logging.info("Stopped early: %s stays at %.4f.", self._score, evaluated.best())
        return True

    def _saved_score(self) -> float:
        """Returns the saved adapter's score, as the file of evaluations may be lost."""
        if not gfile.exists(self.folder.adapter_folder):
            return -math.inf
        return self.folder.describe_adapter().scores.get(self._score, -math.inf)

    def _trained_adapter(self) -> task_adapter.TaskAdapter:
        return self.folder.trained_adapter(self.description, self.record.identity)

    def _save_with_scores(self, adapter: task_adapter.TaskAdapter, scores: Dict[str, Any]) -> None:
        description = dataclasses.replace(adapter.description, scores=_numbers(scores))
        if description != adapter.description:
            adapter = adapter._replace(description=description)
            task_adapter.save(self.folder.adapter_folder, adapter)

    def _shared_settings(self, decided: Dict[str, Any]) -> Dict[str, Any]:
        """Returns the settings that all workers must share, after taking the chief's precision."""
        precision = decided["precision"]
        is_auto = self.config.precision == "auto" and precision in configs.PRECISIONS[1:]
        if is_auto and precision != self.precision:
            logging.info("Computing in %s, the chief's precision.", precision)
            self.precision = precision
            self._add_training({"precision": precision})
            self.record = self._record_of(self.description)
            run_identity = self.record.identity
            self.estimator = self.estimator.with_model(
                precision=precision, run_identity=run_identity
            )
        sections = {name: self.record.sections[name] for name in ("model", "training")}
        return {
            **{f"{name}: {key}": v for name in sections for key, v in sections[name].items()},
            "number of replicas": self.devices.distribution.num_replicas,
            "last checkpoint in --output_dir": self.estimator.last_step(),
        }

    def save(self) -> None:
        """Saves the task adapter, and with --save_full_checkpoint BERT and adapters together."""
        if not self.devices.distribution.workers.is_chief:
            return
        folder = self.folder
        adapter = folder.load_adapter() if self.config.keeps_best else self._trained_adapter()
        if self.task.calibrates and task_adapter.TEMPERATURE not in adapter.description.training:
            adapter = self._calibrate(adapter)
        presentation = self.description.presentation
        description = dataclasses.replace(adapter.description, presentation=presentation)
        folder.save_adapter(adapter._replace(description=description))
        counts = task_adapter.parameter_counts(self.description)
        trained, total = counts["trained_parameters"], counts["total_parameters"]
        size = gfile.readable_size(folder.adapter_folder + "/")
        self.report += [
            f"Trained: {trained:,} of {total:,} parameters ({trained / total:.2%})",
            f"Adapter: {folder.adapter_folder} ({size})",
        ]
        if self.config.save_full_checkpoint:
            prefix = posixpath.join(folder.path, FULL_CHECKPOINT)
            adapter = folder.load_adapter()
            adapter_checkpoints.to_full_checkpoint(adapter, self.bert.init_checkpoint, prefix)
            self.report += [
                f"Full checkpoint: {prefix} ({gfile.readable_size(prefix + '.')})",
                adapter_checkpoints.full_checkpoint_use(adapter.description),
            ]

    def _draw_curves(self) -> None:
        """Draws the training's losses and the dev scores, also the saved adapter's."""
        evaluated = dict(self.folder.evaluations(self._score).by_step)
        step = self.folder.describe_adapter().global_step
        if self._score in self.scores:
            evaluated[step] = self.scores
        path = plots.draw_curves(self.folder.path, evaluated, self._score, step)
        self._pictures.append(path)

    def _calibrate(self, adapter: task_adapter.TaskAdapter) -> task_adapter.TaskAdapter:
        """Returns the adapter with its head divided by the temperature that fits the dev set."""
        split = self._splits("dev")[0]
        predictions = self._predictions(split, self.folder.as_checkpoint(adapter))
        fitted = self.task.calibrate(split, predictions)
        if fitted.temperature == 1.0:
            self._training_warnings.append(
                "--calibrate has no effect: the dev set has too few errors to fit a temperature."
            )
            return adapter
        self.report.append(
            f"Calibrated: temperature {fitted.temperature:.3f}; expected calibration error on the"
            f" dev set {fitted.error_before:.4f}, now {fitted.error_after:.4f}"
        )
        return task_adapter.with_temperature(adapter, fitted.temperature)

    # Evaluation and prediction.

    def evaluate(self) -> None:
        """Scores the dev sets, writes scores and predictions; scores go to a trained adapter."""
        scores, is_new = self._scores, not self.is_training or self.task.calibrates
        if is_new or scores.get("global_step") != self.folder.describe_adapter().global_step:
            scores = self._score_dev_sets(self._result_checkpoint())
        if self.is_training:  # The saved adapter's versions are those of the training.
            self._save_with_scores(self.folder.load_adapter(), scores)
        counts = task_adapter.parameter_counts(self.description)
        result = {**scores, "precision": self.precision, **counts}
        self.scores.update(scores)
        description = self._write("dev")
        path = self.folder.write_results(result, self.task.metadata("eval"), description)
        self.report.append(f"Scores: {path}")
        summary = f"{self.task.summary('eval', result)} at step {result['global_step']}"
        if self.is_training:
            count = len(self.folder.evaluations(self._score).by_step)
            which = f"the best of {count} evaluations" if self.config.keeps_best else "the last"
            summary += f", of the saved adapter, {which}"
        reference = scores.get(f"eval_{task_kinds.MAJORITY}{self.task.score}")
        if reference is not None:
            summary += f"; majority class: {self.task.score} {printing.score(reference)}"
        self._conclusions.append(summary)

    def _score_dev_sets(self, checkpoint: Optional[str]) -> Dict[str, Any]:
        scores: Dict[str, Any] = {}
        for split in self._splits("dev"):
            rows = self.rows[split]
            logging.info("Evaluating on %d examples of %s.", len(as_rows(rows)), split)
            score_fn = functools.partial(self._evaluate_split, split)
            chooses_batches = self.task.chooses_batches
            scores.update(self.estimator.evaluate(rows, score_fn, checkpoint, chooses_batches))
        return scores

    def _splits(self, stage: str) -> List[str]:
        return [split for split in self.rows if split.startswith(stage)]

    def _evaluate_split(self, split: str, predictions: Any) -> Dict[str, Any]:
        evaluated = self.task.evaluate(split, predictions)
        self._evaluated[id(self.rows[split])] = evaluated
        return evaluated.scores

    def predict(self) -> None:
        """Predicts the test sets, and writes the predictions and, with labels, their scores."""
        self._write("test")

    def _write(self, stage: str) -> str:
        """Writes the predictions and pictures of a stage's splits; returns their description."""
        descriptions = []
        for split in self._splits(stage):
            rows, predictions = self.rows[split], None
            if id(rows) not in self._evaluated:
                checkpoint = self._result_checkpoint()
                predictions = self._predictions(split, checkpoint)
                self._evaluate_split(split, predictions)
            evaluated = self._evaluated[id(rows)]
            self.scores.update(evaluated.scores)
            descriptions.append(self.task.describe(split, evaluated))
            self.report += self.task.write(self.folder.path, split, evaluated)
            if self.config.plots:
                self._pictures += self.task.plot(self.folder.path, split, evaluated)
            if predictions is not None:
                predictions.remove()  # They are no longer needed after a kill.
        description = "\n\n".join(filter(None, descriptions))
        if description:
            self._descriptions += [*description.splitlines(), ""]
        return description

    def _warnings_of(self, stage: str) -> List[str]:
        """Returns the warnings about the predictions of a stage's splits."""
        evaluated = [self._evaluated.get(id(self.rows[split])) for split in self._splits(stage)]
        return [warning for each in evaluated if each for warning in each.warnings]

    def _predictions(self, split: str, checkpoint: Optional[str]) -> StoredPredictions:
        rows = self.rows[split]
        logging.info("Predicting %d examples.", len(as_rows(rows)))
        key = getattr(rows, "key", None)
        parts = [key, self.precision, self.description.kind, self.description.labels]
        return self.estimator.predict_stacked(
            rows,
            checkpoint,
            chooses_batches=self.task.chooses_batches,
            folder=getattr(self.config, "feature_folder", None) if key else None,
            parts=parts,
        )

    def _result_checkpoint(self) -> Optional[str]:
        """Returns the prefix of the model to evaluate: of the given adapter, or of the saved one.

        None stands for the last checkpoint, or else for --init_checkpoint if it is a complete
        model.

        Raises:
          UserError: the saved adapter does not fit the model, or the model is not trained.
        """
        if self.is_training and not (self.config.keeps_best or self.task.calibrates):
            return None
        if self.estimator.model.task_checkpoint and not self.is_training:
            return self.estimator.model.task_checkpoint
        if self.folder.has_adapter():
            adapter = self.folder.load_adapter()
            where = f"--output_dir {self.folder.path}: its task adapter"
            record.check_fits(adapter.description, self.description, where, type(self.config))
            return self.folder.as_checkpoint(adapter)
        if not checkpoints.latest(self.folder.path):
            self._check_is_trained()
        return None

    def _check_is_trained(self) -> None:
        """Raises UserError unless --init_checkpoint holds all tensors that the model trains."""
        init_checkpoint = self.bert.init_checkpoint
        names = checkpoints.open_checkpoint(init_checkpoint).get_variable_to_shape_map()
        untrained = sorted(set(task_adapter.shapes(self.description)) - set(names))
        if untrained:
            raise UserError(
                f"The model is not trained yet: --output_dir {self.folder.path} has no checkpoint,"
                f" and --init_checkpoint {init_checkpoint} lacks {untrained[-1]}; train first"
                " (--do_train)."
            )


def _numbers(scores: Dict[str, Any]) -> Dict[str, float]:
    # "loss" is BERT's name for eval_loss, in eval_results.txt.
    names = ("global_step", "loss")
    return {n: value for n, value in evaluations.scalars(scores).items() if n not in names}


def warn_of_rate(config: FinetuningConfig) -> None:
    """Warns of BERT's learning rate with adapters, unless the user chose the method."""
    rate = config.learning_rate
    is_chosen = "tuning" in config.given_flags or config.adapter_folder or rate is None
    if config.tuning.method == "adapters" and not is_chosen:
        optimization.warn_of_fine_tuning_rate(rate, "--tuning=full")


def label_descriptions(path: Optional[str], task: str, labels: Sequence[str]) -> Dict[str, str]:
    """Returns the descriptions of labels in --label_descriptions; raises UserError if invalid."""
    if path is None:
        return {}
    where, expected = f"--label_descriptions={path}", 'JSON, {"<label>": "<what it means>", ...}'
    descriptions = json_objects.read_object(path, where, expected)
    if not all(isinstance(text, str) for text in descriptions.values()):
        raise UserError(f"{where}: expected {expected}.")
    # Of tags, what they mark may be described: "PER" for B-PER and I-PER.
    known = {*labels, *(label.partition("-")[2] for label in labels)}
    unknown = sorted(set(descriptions) - known)
    if unknown and not labels:
        raise UserError(f"{where}: {task} has no labels to describe.")
    if unknown:
        raise UserError(
            f"{where}: {unknown[0][:100]!r} is not a label of the task; its labels:"
            f" {', '.join(labels[:10])}{', ...' if len(labels) > 10 else ''}."
        )
    return descriptions
