"""A run, from its flags to the task adapter it leaves: what every script does alike.

job = Job(values, given, output_dir, eval_batch_size, shortest)
...                                    the script reads its data
job.begin(task, head, num_rows, ...)   nothing is refused any more, and output_dir is ours
job.train_and_evaluate(...), job.predict(arrays)

`FinishedJob` is one that trains nothing: it has --adapter, and none of a training's flags.
"""

import dataclasses
import math
import posixpath
from typing import NamedTuple, Tuple

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from adapter_bert.common import configs, devices, files, metrics, model_variables, paths
from adapter_bert.common.errors import UserError
from adapter_bert.formats import adapter_checkpoints, checkpoints, task_adapter
from adapter_bert.ops import adapters
from adapter_bert.training import (
    bert_flags,
    cluster,
    device_flags,
    estimator,
    training_flags,
    tuning_flags,
)
from adapter_bert.training import output_dir as run_directory
from adapter_bert.training.output_dir import Evaluations, write_results
from adapter_bert.training.rows import as_rows

_FULL_CHECKPOINT = "full_model.ckpt"

# The flags that say where lies what a run reads; a script has some of them.
_READ = ("adapter", *paths.BERT_FILES, "spm_model_file", "bert_hub_module_handle")
_READ += ("data_dir", "train_file", "predict_file")


# What errors call a recorded setting whose name is not that of the flag that decides it.
_FLAG_NAMES = {
    "task": "task (--task_name)",
    "kind": "kind of task (--label_type)",
    "labels": "labels (--data_dir)",
    "method": "--tuning",
    "hidden_act": "hidden_act (--bert_config_file)",
    "num_attention_heads": "num_attention_heads (--bert_config_file)",
    "num_train_steps": "number of steps (--num_train_epochs)",
    "num_warmup_steps": "number of warm-up steps (--warmup_proportion)",
    "evaluated_every": "--eval_every_steps",
}
# What errors call a recorded setting whose value is a digest, which they do not print.
_DIGESTS = {
    "vocabulary": "the vocabulary (--vocab_file)",
    "backbone": "the BERT (--init_checkpoint)",
    "data": "the training data (--data_dir, --train_file)",
    "dev_data": "the dev data (--data_dir, --predict_file)",
    "started_from": "the task adapter that it starts from (--adapter)",
}
# The settings that every run with adapters records, and no other run.
_OF_ADAPTERS = ("adapter_fn", "adapter_size", "adapter_activation", "adapter_init_scale")


def in_flags(differences):
    """Returns phrases that say how settings differ, by the flags that decide them.

    Where --tuning differs, and one of the methods has no adapters, their settings are left out.

    Args:
      differences: list of (name, before, now), as of `run_directory.claim`.
    """
    other_method = any(name == "method" for name, _, _ in differences)
    return [
        _difference(name, before, now)
        for name, before, now in differences
        if not (other_method and name in _OF_ADAPTERS and None in (before, now))
    ]


def _difference(name, before, now):
    if name in _DIGESTS:
        return f"{_DIGESTS[name]} is not the same"
    if name.startswith("bert_config."):
        flag = f"{name[len('bert_config.') :]} (--bert_config_file)"
    else:
        flag = _FLAG_NAMES.get(name, f"--{name}")
    return run_directory.difference(flag, before, now)


def output_dir(values, given, task):
    """Returns --output_dir, by default the folder of the task and the method.

    The method may be the one that the head in --init_checkpoint tells, see
    `tuning_flags.use_head_of`.

    Args:
      values: parsed flags.
      given: as of `Job`.
      task: as of `training_flags.output_dir`.
    """
    trains = "train" in training_flags.stages(values)
    if values.init_checkpoint and not (values.output_dir or given or trains):
        tuning_flags.use_head_of(values.init_checkpoint, values)
    return training_flags.output_dir(values, task)


class Task(NamedTuple):
    """What a run works on: name, kind and labels as in `task_adapter.Description`, and the score
    (larger is better) that tells which of several task adapters is the best."""

    name: str
    kind: str
    labels: Tuple[str, ...]
    score: str


class EvalSet:
    """Rows to evaluate on, what is made of their predictions, and how that scores.

    Args:
      arrays: as in `estimator.Runner`.
      read_fn: function of an iterable of the rows' predictions → what is made of them.
      score_fn: function of that → scores, as in `estimator.Runner.evaluate`.
    """

    def __init__(self, arrays, read_fn, score_fn):
        self.arrays = arrays
        self.decoded = None  # Of the predictions that were read last.
        self._read_fn, self._score_fn = read_fn, score_fn

    def read(self, predictions):
        """Makes of the rows' predictions what is made of them."""
        self.decoded = self._read_fn(predictions)

    def scores(self, arrays, predictions):
        """The score_fn that `estimator.Runner.evaluate` takes."""
        del arrays
        self.read(predictions)
        return self._score_fn(self.decoded)


def _precision_of(adapter):
    """The precision in which a task adapter was trained; None if it does not tell."""
    return adapter.description.training.get("precision")


class _AnyJob:
    """What both kinds of jobs have: a BERT, a place to compute, and task adapters as checkpoints.

    Args:
      values: parsed flags, those of `bert_flags` and `device_flags.define` among them.
      given: `task_adapter.TaskAdapter` of --adapter, or None.
      shortest: the least --max_seq_length that holds a text.
    """

    precision: str

    def __init__(self, values, given, shortest):
        self._values = values
        self._given = given
        self.bert, self.tokenizer = bert_flags.pretrained_bert(values)
        bert_flags.check_sequence_length(values, self.bert.config, shortest)

    def _set_device(self, run, use_tpu):
        """Computes where `estimator.RunSettings` say."""
        self._run, self._use_tpu = run, use_tpu
        self._scratch = run_directory.Scratch(run.output_dir)
        if use_tpu:
            device_flags.check_paths_for_tpu(
                self._values, run.output_dir, self.bert.init_checkpoint
            )

    def _choose_precision(self, recorded):
        """What to compute in; `recorded` as of `devices.choose_precision`."""
        width = self.bert.config.hidden_size, self.bert.config.intermediate_size
        return devices.choose_precision(self._values.precision, self._use_tpu, width, recorded)

    def _texts_and_backbone(self):
        """Fields of a `task_adapter.Description`: the BERT, and how texts are read."""
        return {
            "max_seq_length": self._values.max_seq_length,
            "do_lower_case": self._values.do_lower_case,
            "vocabulary": task_adapter.digest(self.tokenizer.vocab),
            "backbone": adapter_checkpoints.backbone_of(
                self.bert.init_checkpoint, self.bert.config
            ),
        }

    def _check_given(self, wanted):
        """Raises UserError unless --adapter is of that `task_adapter.Description`'s model."""
        where = f"--adapter {self._values.adapter}"
        task_adapter.check_fits(self._given.description, wanted, where, in_flags)

    def _model_settings(self, description, **more):
        """The `estimator.ModelSettings` of a `task_adapter.Description`, and more of its fields."""
        adapter = description.adapter
        return estimator.ModelSettings(
            bert_config=self.bert.config,
            init_checkpoint=self.bert.init_checkpoint,
            task_checkpoint=self._given and self._as_checkpoint(self._given),
            adapter_fn=adapter and adapters.build(adapter),
            tuning=description.tuning,
            use_tpu=self._use_tpu,
            precision=self.precision,
            pooled_only=description.kind != "span",
            **more,
        )

    def _as_checkpoint(self, adapter):
        """Writes an adapter where TensorFlow can read it, for as long as the job lives."""
        prefix = self._scratch.prefix()
        adapter_checkpoints.to_checkpoint(adapter, prefix)
        return prefix


class FinishedJob(_AnyJob):
    """A task adapter on the BERT that it was trained on, to be evaluated in any way.

    Args:
      values, given, shortest: as of `Job`; given is not None.
      output_dir: where results go.
      eval_batch_size: int.

    Attributes:
      bert, tokenizer: see `bert_flags.pretrained_bert`.
      precision: what it computes in.

    Raises:
      UserError: as `Job` does.
    """

    def __init__(self, values, given, output_dir, eval_batch_size, shortest):
        super().__init__(values, given, shortest)
        run, use_tpu = device_flags.evaluation_settings(values, output_dir, eval_batch_size)
        self._set_device(run, use_tpu)
        self.precision = self._choose_precision(_precision_of(given))

    def begin(self, task, head):
        """Makes the model; raises UserError if --adapter is of another one.

        Args:
          task, head: as of `Job.begin`.
        """
        wanted = dataclasses.replace(
            self._given.description,
            kind=task.kind,
            labels=tuple(task.labels),
            **self._texts_and_backbone(),
        )
        self._check_given(wanted)
        self._model = self._model_settings(wanted)
        self._runner = estimator.Runner(self._model, self._run, head)

    def stream(self, arrays):
        """Yields (index, predictions) of each row, see `estimator.Runner.stream`."""
        return self._runner.stream(arrays, self._model.task_checkpoint)


class Job(_AnyJob):
    """A run as its flags ask for it.

    Args:
      values: parsed flags.
      given: `task_adapter.TaskAdapter` of --adapter, or None.
      output_dir: where the run takes place.
      eval_batch_size: int.
      shortest: the least --max_seq_length that holds a text.

    Attributes:
      stages: those to run, of train, eval and predict.
      bert, tokenizer: see `bert_flags.pretrained_bert`.
      precision: what it computes in.

    Raises:
      UserError: a flag is wrong, or what it names is missing, broken or does not fit.
    """

    def __init__(self, values, given, output_dir, eval_batch_size, shortest):
        self.stages = training_flags.stages(values)
        super().__init__(values, given, shortest)
        # A run in output_dir has its own head, and says by its settings what it is.
        has_run = bool(run_directory.recorded(output_dir, "model"))
        if not (given or has_run or "train" in self.stages):
            tuning_flags.use_head_of(self.bert.init_checkpoint, values)
        self._tuning, self._adapter = tuning_flags.tuning_settings(values, self.bert.config)
        run, use_tpu = training_flags.run_settings(values, output_dir, eval_batch_size)
        self._workers = run.distribution.workers
        self._check_stages()
        self._set_device(run, use_tpu)
        self.precision = "float32"  # Of a worker until the chief tells, see `_shared_settings`.
        if self._workers.is_chief or values.precision != "auto":
            self.precision = self._choose_precision(self._recorded_precision())
        self._check_batch_norm()
        self._best_prefix = None
        self._last_scores = None  # Of the last evaluation meanwhile.

    def _recorded_precision(self):
        """The precision of the run in output_dir, or of what is evaluated; None without both.

        Of a run's checkpoint, as its full_model.ckpt, the settings beside it tell.
        """
        trains = "train" in self.stages
        if self._given and not trains:
            return _precision_of(self._given)
        if trains and self._values.overwrite_output_dir:
            return None
        folders = [self._run.output_dir]
        if not trains:
            folders.append(posixpath.dirname(self.bert.init_checkpoint))
        recorded = [run_directory.recorded(some, "training").get("precision") for some in folders]
        return next(filter(None, recorded), None)

    def _check_stages(self):
        """What is evaluated meanwhile needs a dev set, and all workers in one process."""
        for flag in ("eval_every_steps", "keep_best", "early_stopping_patience"):
            if not self._values[flag].value or "train" not in self.stages:
                continue
            if "eval" not in self.stages:
                raise UserError(f"--{flag} needs --do_eval, which reads the dev set.")
            if len(self._workers.addresses) > 1:
                raise UserError(
                    f"--{flag} evaluates in the middle of the training, where"
                    " --distribution=multi_worker cannot: its chief evaluates at the end."
                )
        if not self._workers.is_chief:
            self.stages = [stage for stage in self.stages if stage == "train"]

    def _check_batch_norm(self):
        """Its statistics, in training, are those of the rows that a device sees at a time."""
        normalization = self._adapter and self._adapter.normalization
        if normalization != "batch" or "train" not in self.stages:
            return
        among = "--use_tpu=True" if self._use_tpu else f"--distribution={self._values.distribution}"
        if self._use_tpu or self._run.distribution.kind != "none":
            raise UserError(
                "--adapter_normalization=batch takes statistics of the whole batch, of which each"
                f" replica of {among} sees a part; expected none or layer, or one device."
            )
        if self._run.train_batch_size == self._values.gradient_accumulation_steps:
            raise UserError(
                "--adapter_normalization=batch needs more than one row at a time, but"
                f" --train_batch_size={self._run.train_batch_size} in"
                f" --gradient_accumulation_steps={self._run.train_batch_size} has one."
            )

    def begin(self, task, head, num_rows, settings, dev_settings):
        """Takes the directory, and makes the model; what may be refused is refused before.

        Args:
          task: `Task`.
          head: see `estimator.model_fn_builder`.
          num_rows: int, rows of the training data; not read where nothing is trained.
          settings: dict of JSON values that decide the weights too, as the digest of the data.
          dev_settings: dict of those that decide the dev scores, as the dev set's digest; they
            count where the scores choose the weights.

        Raises:
          UserError: --adapter, what --init_checkpoint holds of a task, or the run in the directory
            is of another model; too few rows; --adapter's results would replace those of the
            adapter in the directory; or overwriting would remove what the run reads.
        """
        values, schedule, trains = self._values, {}, "train" in self.stages
        if trains:
            schedule = training_flags.schedule(values, self._tuning.method, num_rows)
            self._eval_every = self._evaluation_interval(num_rows)
        self._task = task
        self._description = self._describe(
            task, {**settings, **self._selection(dev_settings), **schedule}
        )
        shapes = task_adapter.shapes(self._description)
        checkpoints.check_shapes(self.bert.init_checkpoint, shapes)
        if self._given:
            self._check_given(self._description)
            self._check_adapter_there(trains)
        if self._workers.is_chief:
            self._held = run_directory.claim(
                self._run.output_dir,
                {
                    **self._settings(),
                    "pretrained": bert_flags.recorded_flags(values, self.bert),
                },
                trains,
                overwrite=values.overwrite_output_dir,
                reads=self._reads(),
                describe=in_flags,
            )
        self._model = self._model_settings(self._description, **self._training_settings(schedule))
        self._head = head
        self._runner = estimator.Runner(self._model, self._run, head)

    def _compute_in(self, precision):
        """Changes the precision to the chief's."""
        if precision == self.precision or precision not in configs.PRECISIONS[1:]:
            return
        logging.info("Computing in %s, as the chief does.", precision)
        self.precision = precision
        trained = {**self._description.training, "precision": precision}
        self._description = dataclasses.replace(self._description, training=trained)
        self._model = dataclasses.replace(
            self._model,
            precision=precision,
            run_identity=run_directory.identity(self._settings()),
        )
        self._runner = estimator.Runner(self._model, self._run, self._head)

    def _reads(self):
        """(flag, path) of what the run reads, where a flag says so."""
        values = self._values
        given = [(name, values[name].value) for name in _READ if name in values]
        return [(f"--{name}", path) for name, path in given if path]

    def _check_adapter_there(self, is_training):
        """Raises UserError if a run with --adapter would replace what --output_dir's own made."""
        given, output_dir = f"--adapter {self._values.adapter}", self._run.output_dir
        is_it = paths.is_same_path(self._values.adapter, self._adapter_folder)
        if is_training and is_it:
            raise UserError(
                f"{given} is that of --output_dir {output_dir}; to train it further give another"
                " --output_dir."
            )
        if is_training or is_it or not files.exists(files.current_folder(self._adapter_folder)):
            return
        own = task_adapter.load(self._adapter_folder, "--output_dir")
        if task_adapter.tensors_digest(own) != task_adapter.tensors_digest(self._given):
            raise UserError(
                f"--output_dir {output_dir} holds another task adapter than {given}, whose results"
                " would be taken for its own; give another --output_dir."
            )

    def _evaluation_interval(self, num_rows):
        """After how many steps the dev set is read, meanwhile; 0 for never."""
        values = self._values
        if values.eval_every_steps or not (values.keep_best or values.early_stopping_patience):
            return values.eval_every_steps
        return max(1, num_rows // values.train_batch_size)

    def _training_settings(self, schedule):
        """Fields of `estimator.ModelSettings` that only a training reads."""
        values, num_layers = self._values, self.bert.config.num_hidden_layers
        return {
            # Where the embeddings train, a TPU adds up a product's gradient faster than a gather's.
            "use_one_hot_embeddings": self._use_tpu
            and model_variables.is_trained(
                model_variables.Role("embeddings"), self._tuning, num_layers
            ),
            "random_seed": values.random_seed,
            "recompute_activations": values.recompute_activations,
            "gradient_accumulation_steps": values.gradient_accumulation_steps,
            "run_identity": run_directory.identity(self._settings()),
            **schedule,
        }

    def train(self, arrays, eval_sets=()):
        """Trains, or goes on, to the end of the schedule; leaves the task adapter.

        Args:
          arrays: see `estimator.Runner`.
          eval_sets: list of `EvalSet`, for evaluations meanwhile.

        Returns:
          The report's lines: parameters, adapter.
        """
        workers, seconds = self._workers, self._values.worker_timeout
        # The others may have ended before a chief that is started again after the last step.
        needs_all = not workers.is_chief or self._runner.last_step() < self._model.num_train_steps
        with cluster.rendezvous(
            workers,
            self._run.output_dir,
            self._shared_settings,
            {"precision": self.precision},
            seconds,
            needs_all,
            self._scratch.remove,
        ):
            self._train_to_the_end(arrays, eval_sets)
        if not workers.is_chief:
            return [f"Worker {workers.index} has done its part; the chief has the results."]
        if self._values.keep_best:
            result = task_adapter.load(self._adapter_folder, "--output_dir")
        else:
            result = self._trained_adapter()
            if not self._is_saved(result):
                task_adapter.save(self._adapter_folder, result)
        saved = (
            f"Adapter: {self._adapter_folder} ({files.readable_size(self._adapter_folder + '/')})"
        )
        report = [self._parameters(), saved]
        if self._values.save_full_checkpoint:
            prefix = posixpath.join(self._run.output_dir, _FULL_CHECKPOINT)
            adapter_checkpoints.to_full_checkpoint(result, self.bert.init_checkpoint, prefix)
            report.append(f"Full checkpoint: {prefix} ({files.readable_size(prefix + '.')})")
            report.append(adapter_checkpoints.full_checkpoint_use(result.description))
        return report

    def _train_to_the_end(self, arrays, eval_sets):
        last, every = self._model.num_train_steps, self._eval_every
        evaluations = self._evaluations()
        for stop in [*range(every, last, every), last] if every else [last]:
            done = self._runner.last_step()
            if stop < done:
                continue
            if done < stop and self._workers.is_chief:
                run_directory.remove_results(self._run.output_dir)
            self._runner.train(arrays, stop)
            if every and evaluations.at(stop) is None:
                self._evaluate_during_training(eval_sets, evaluations)
            if 0 < self._values.early_stopping_patience <= evaluations.since_best():
                logging.info("Stopped early: the best score is %.4f.", evaluations.best())
                break

    def _shared_settings(self, decided):
        """Returns what must be the same for all workers, see `cluster.rendezvous`."""
        if self._values.precision == "auto":
            self._compute_in(decided.get("precision"))
        settings = {
            f"{group}: {name}": value
            for group, fields in self._settings().items()
            for name, value in fields.items()
        }
        return {
            **settings,
            "number of replicas": self._run.distribution.num_replicas,
            "last checkpoint in --output_dir": self._runner.last_step(),
        }

    def train_and_evaluate(self, arrays, eval_sets, about, summary):
        """Does as much of both as the stages ask for; writes the scores.

        Args:
          arrays, eval_sets: as of `train`; no sets evaluate nothing.
          about: dict, what eval_results.json says beside the scores.
          summary: function of the scores → the line that tells them.

        Returns:
          The report's lines.
        """
        report = self.train(arrays, eval_sets) if "train" in self.stages else []
        if not eval_sets:
            return report
        result = self.evaluate(eval_sets)
        path = write_results(self._run.output_dir, result, about)
        return [f"{summary(result)} at step {result['global_step']}", *report, f"Scores: {path}"]

    def evaluate(self, eval_sets):
        """The scores of a list of `EvalSet`, together; they are kept with the adapter."""
        trains, keep_best = "train" in self.stages, self._values.keep_best
        scores, step = self._last_scores, self._result_step() if trains else None
        if scores is None or scores["global_step"] != step:
            for some in eval_sets:
                some.decoded = None  # What was evaluated meanwhile is of another step.
            scores = self._evaluations().at(step) if trains and keep_best else None
            if scores is None:
                scores = self._scores(eval_sets, self._result())
        if trains and not keep_best:
            self._save_with_scores(scores)
        return {**scores, "precision": self.precision, **self._counts()}

    def predict(self, arrays):
        """Yields each row's predictions, see `estimator.Runner.predict`."""
        logging.info("Predicting %d examples.", len(as_rows(arrays)))
        return self._runner.predict(arrays, self._result())

    def decode(self, eval_set):
        """What an `EvalSet` makes of the result's predictions, which are made if need be.

        Of the best step the scores were kept, not the predictions.
        """
        if eval_set.decoded is None:
            eval_set.read(self.predict(eval_set.arrays))
        return eval_set.decoded

    def _evaluations(self):
        return Evaluations(self._run.output_dir, self._score)

    def _scores(self, eval_sets, checkpoint=None):
        scores = {}
        for rows in eval_sets:
            logging.info("Evaluating on %d examples.", len(as_rows(rows.arrays)))
            scores.update(self._runner.evaluate(rows.arrays, rows.scores, checkpoint))
        return scores

    def _evaluate_during_training(self, eval_sets, evaluations):
        """Evaluates the last checkpoint; saves its adapter if the best is kept and this is it."""
        self._last_scores = scores = self._scores(eval_sets)
        step, now = scores["global_step"], scores[self._score]
        logging.info("Step %d: %s %.4f on the dev set.", step, self._score, now)
        if self._values.keep_best and now > max(evaluations.best(), self._saved_score()):
            self._save_with_scores(scores)
        evaluations.add(step, scores)  # Only now: a kill before it repeats the evaluation.

    def _saved_score(self):
        """The best score by the adapter that has it: the evaluations' file may be lost."""
        if not files.exists(self._adapter_folder):
            return -math.inf
        kept = task_adapter.describe(self._adapter_folder, "--output_dir")
        return kept.scores.get(self._score, -math.inf)

    def _save_with_scores(self, scores):
        adapter = self._trained_adapter()
        numbers = {n: v for n, v in metrics.scalars(scores).items() if n != "global_step"}
        description = dataclasses.replace(adapter.description, scores=numbers)
        task_adapter.save(self._adapter_folder, adapter._replace(description=description))

    def _result(self):
        """The prefix of what is evaluated: the given adapter, else the one that was made.

        None for the last checkpoint, or --init_checkpoint if there is none and that holds it all.
        """
        if "train" in self.stages and not self._values.keep_best:
            return None
        if self._given and "train" not in self.stages:
            return self._model.task_checkpoint
        if not files.exists(files.current_folder(self._adapter_folder)):
            return None
        if self._best_prefix is None:
            made = task_adapter.load(self._adapter_folder, "--output_dir")
            where = f"--output_dir {self._run.output_dir}: its task adapter"
            task_adapter.check_fits(made.description, self._description, where, in_flags)
            self._best_prefix = self._as_checkpoint(made)
        return self._best_prefix

    def _result_step(self):
        """The step of what this run has trained."""
        if not self._values.keep_best:
            return self._runner.last_step()
        return task_adapter.describe(self._adapter_folder, "--output_dir").global_step

    @property
    def _score(self):
        return "eval_" + self._task.score

    @property
    def _adapter_folder(self):
        return posixpath.join(self._run.output_dir, task_adapter.FOLDER)

    def _describe(self, task, training_settings):
        """What the run makes or asks for: its `Description`, so far without steps and scores."""
        values = self._values
        return task_adapter.Description(
            task=task.name,
            kind=task.kind,
            labels=tuple(task.labels),
            **self._texts_and_backbone(),
            tuning=self._tuning,
            adapter=self._adapter,
            global_step=0,
            training={
                "train_batch_size": values.train_batch_size,
                "gradient_accumulation_steps": values.gradient_accumulation_steps,
                "random_seed": values.random_seed,
                "precision": self.precision,
                "started_from": self._given and task_adapter.tensors_digest(self._given),
                **training_settings,
            },
            scores={},
            versions=task_adapter.versions(),
        )

    def _selection(self, dev_settings):
        """Which step's adapter is kept, as settings; none where it is the last one's."""
        values = self._values
        if "train" not in self.stages or not (values.keep_best or values.early_stopping_patience):
            return {}
        return {
            "keep_best": values.keep_best,
            "early_stopping_patience": values.early_stopping_patience,
            "evaluated_every": self._eval_every,
            **dev_settings,
        }

    def _settings(self):
        """What `run_directory.claim` compares."""
        made = self._description
        return {
            "model": {"task": made.task, **task_adapter.compatibility_fields(made)},
            "training": {
                "max_seq_length": made.max_seq_length,
                "bert_config": made.backbone.config,
                "adapter_init_scale": made.adapter and made.adapter.init_scale,
                **made.training,
            },
        }

    def _trained_adapter(self):
        """The `TaskAdapter` in the last checkpoint."""
        step = self._runner.last_step()
        prefix = tf.train.latest_checkpoint(self._run.output_dir)
        description = dataclasses.replace(self._description, global_step=step)
        return task_adapter.TaskAdapter(description, checkpoints.trained_tensors(prefix))

    def _is_saved(self, adapter):
        """Whether the folder holds that adapter already, perhaps with its scores.

        It was then made by the programs that it names, whatever their versions are now.
        """
        if not files.exists(self._adapter_folder):
            return False
        held = task_adapter.load(self._adapter_folder, "--output_dir")
        now = adapter.description.versions
        same = dataclasses.replace(held.description, scores={}, versions=now) == adapter.description
        return same and task_adapter.tensors_digest(held) == task_adapter.tensors_digest(adapter)

    def _parameters(self):
        """A line: how many parameters were trained, out of how many."""
        counts = self._counts()
        trained, total = counts["trained_parameters"], counts["total_parameters"]
        return f"Trained: {trained:,} of {total:,} parameters ({trained / total:.2%})"

    def _counts(self):
        """How many parameters train, how many there are, and how many of these are BERT's own."""
        trained = task_adapter.parameters(task_adapter.shapes(self._description))
        encoder = model_variables.encoder_shapes(self.bert.config)
        counts = {"backbone_parameters": encoder, "total_parameters": {**encoder, **trained}}
        if self._task.kind == "span":  # No gradient reaches the pooler, which they do not read.
            trained = {name: shape for name, shape in trained.items() if "/pooler/" not in name}
        counts["trained_parameters"] = trained
        return {
            name: sum(int(np.prod(shape)) for shape in shapes.values())
            for name, shapes in counts.items()
        }
