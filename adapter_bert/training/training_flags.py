"""The flags of a training: what is done, for how long, and what is kept; and what they become.

As `bert_flags`: a script's main module defines them, and functions read the parsed values.
"""

import dataclasses
import math
import os

from absl import flags, logging

import optimization
from adapter_bert.common import devices
from adapter_bert.common.cli import section
from adapter_bert.common.errors import UserError
from adapter_bert.training import bert_flags, device_flags, distribution, estimator, tuning_flags

_MAX_STEPS = 2**31 - 1  # No training takes as many, and an int32 holds them.


def define(flag_values=flags.FLAGS):
    """Defines all of a training: BERT's, with BERT's names and defaults, and adapter-bert's."""
    _define_stages(section("What is done", flag_values))
    _define_schedule(section("Training", flag_values))
    _define_steps(section("Training", flag_values))
    _define_evaluation(section("Evaluation and prediction", flag_values))
    _define_output(section("Output", flag_values))
    bert_flags.define(flag_values)
    tuning_flags.define(flag_values)
    device_flags.define(flag_values)
    device_flags.define_distribution(flag_values)


def _define_stages(at):
    flags.DEFINE_bool(
        "do_train",
        False,
        "Train. Without --do_train, --do_eval and --do_predict: train and evaluate.",
        **at,
    )
    flags.DEFINE_bool(
        "do_eval", False, "Evaluate on the dev set, of SQuAD on --predict_file.", **at
    )
    flags.DEFINE_bool("do_predict", False, "Predict the test set, of SQuAD --predict_file.", **at)
    flags.DEFINE_string(
        "adapter",
        None,
        "Folder of a task adapter, output_dir/adapter of an earlier run: what is evaluated and"
        " predicted with, or trained further. It answers flags of task and model that are not"
        " given.",
        **at,
    )


def _define_schedule(at):
    flags.DEFINE_integer(
        "train_batch_size", 32, "Examples in a training step.", lower_bound=1, **at
    )
    flags.DEFINE_float(
        "learning_rate",
        None,
        "Peak of Adam's learning rate. Default: 3e-4 for adapters, layer_norm and head (as"
        " adapter-bert's README trains; BERT's 5e-5 leaves them at the majority class), BERT's"
        " 5e-5 for full and top_layers.",
        **at,
    )
    flags.DEFINE_float(
        "num_train_epochs",
        None,
        "Passes over the training data. Default: 5 where --learning_rate defaults to 3e-4, BERT's"
        " 3 where to 5e-5.",
        **at,
    )
    flags.DEFINE_float(
        "warmup_proportion",
        0.1,
        "Share of the steps in which the learning rate rises, before it falls to 0.",
        **at,
    )
    flags.DEFINE_integer(
        "random_seed",
        12345,
        "Seed of initial values, dropout and the order of the data.",
        0,
        2**32 - 1,  # NumPy's largest.
        **at,
    )


def _define_steps(at):
    flags.DEFINE_integer(
        "gradient_accumulation_steps",
        1,
        "Equal parts in which each training batch is computed, one after the other, before its one"
        " step is taken: the memory of a part for the step of the whole.",
        1,
        **at,
    )
    flags.DEFINE_bool(
        "recompute_activations",
        False,
        "Compute each layer's activations a second time in the backward pass, in place of keeping"
        " them: less memory, more time.",
        **at,
    )
    flags.DEFINE_integer(
        "save_checkpoints_steps",
        1000,
        "Steps between checkpoints, from which a training that was stopped goes on.",
        1,
        **at,
    )


def _define_evaluation(at):
    flags.DEFINE_integer("predict_batch_size", 8, "Examples in a batch of predictions.", 1, **at)
    flags.DEFINE_integer(
        "eval_every_steps",
        0,
        "Evaluate on the dev set every so many steps; 0 evaluates at the end alone, or after each"
        " epoch with --keep_best or --early_stopping_patience.",
        lower_bound=0,
        **at,
    )
    flags.DEFINE_bool(
        "keep_best",
        False,
        "Keep the task adapter of the evaluation with the best score, in place of the last.",
        **at,
    )
    flags.DEFINE_integer(
        "early_stopping_patience",
        0,
        "Stop after so many evaluations without a better score; 0 trains to the end.",
        lower_bound=0,
        **at,
    )


def _define_output(at):
    flags.DEFINE_string(
        "output_dir",
        None,
        "Where checkpoints and results go. Default: output/<task> with adapters, else"
        " output/<task>_<method>, as in output/mrpc_full.",
        **at,
    )
    flags.DEFINE_bool(
        "overwrite_output_dir",
        False,
        "Remove an earlier run's files in output_dir before a training.",
        **at,
    )
    flags.DEFINE_bool(
        "save_full_checkpoint",
        False,
        "After the training write BERT and adapters together, as output_dir/full_model.ckpt, for"
        " adapter-bert's code. BERT's own code ignores the adapters without a message: it can use"
        " only those of --tuning=full, top_layers, layer_norm and head.",
        **at,
    )


def output_dir(values, task):
    """Returns --output_dir, by default a folder that each task and method has to itself.

    Args:
      values: parsed flags, those that --adapter answers too.
      task: what the task is called there.
    """
    name = task if values.tuning == "adapters" else f"{task}_{values.tuning}"
    return values.output_dir or os.path.join("output", name)


def stages(values):
    """The stages to run, of train, eval and predict; train and eval if no flag names any.

    Raises:
      UserError: all that are named are switched off.
    """
    asked = {"train": values.do_train, "eval": values.do_eval, "predict": values.do_predict}
    chosen = [stage for stage in asked if asked[stage]]
    if not chosen and any(values["do_" + stage].present for stage in asked):
        raise UserError("Nothing to do: --do_train, --do_eval and --do_predict are all off.")
    return chosen or ["train", "eval"]


def schedule(values, method, num_examples):
    """The learning rate and the steps of a training.

    Args:
      values: parsed flags.
      method: a key of `configs.METHODS`.
      num_examples: int, rows of the training data.

    Returns:
      dict with learning_rate, num_train_steps and num_warmup_steps.
    """
    default_rate, default_epochs = estimator.default_schedule(method)
    rate = default_rate if values.learning_rate is None else values.learning_rate
    epochs = default_epochs if values.num_train_epochs is None else values.num_train_epochs
    for flag, value in (("learning_rate", rate), ("num_train_epochs", epochs)):
        if getattr(values, flag) is None:
            logging.info("--%s: %g, the default for --tuning=%s", flag, value, method)
        if not 0 < value < math.inf:
            raise UserError(f"--{flag} must be a number above 0, but is {value}.")
    chosen = values["tuning"].present or values.adapter or values.learning_rate is None
    if method == "adapters" and not chosen:
        optimization.warn_of_fine_tuning_rate(rate, "--tuning=full")
    if not 0 <= values.warmup_proportion < 1:
        raise UserError(
            f"--warmup_proportion must lie in [0, 1), but is {values.warmup_proportion}."
        )
    length = num_examples / values.train_batch_size * epochs
    if length < 1:
        raise UserError(
            f"{num_examples} training examples in batches of {values.train_batch_size} for"
            f" {epochs} epochs make no step: lower --train_batch_size or raise --num_train_epochs."
        )
    if length > _MAX_STEPS:
        raise UserError(
            f"--num_train_epochs={epochs:g} makes {length:g} steps of --train_batch_size="
            f"{values.train_batch_size}; expected at most {_MAX_STEPS}."
        )
    steps = int(length)
    return {
        "learning_rate": rate,
        "num_train_steps": steps,
        "num_warmup_steps": int(steps * values.warmup_proportion),
    }


def run_settings(values, output_dir, eval_batch_size):
    """Connects to the TPU if one is asked for.

    Returns:
      (`estimator.RunSettings`, use_tpu).

    Raises:
      UserError: the TPU cannot be reached, --distribution or --recompute_activations cannot be had
        here, or a batch has no equal parts.
    """
    distributed = distribution.choose(values.distribution, values.use_tpu)
    run, use_tpu = device_flags.evaluation_settings(values, output_dir, eval_batch_size)
    run = dataclasses.replace(
        run,
        train_batch_size=values.train_batch_size,
        predict_batch_size=values.predict_batch_size,
        save_checkpoints_steps=values.save_checkpoints_steps,
        iterations_per_loop=values.iterations_per_loop,
        distribution=distributed,
    )
    # Predictions are a single device's, or a TPU's.
    shared = ["train_batch_size", "predict_batch_size"] if use_tpu else ["train_batch_size"]
    device_flags.check_batches(run, use_tpu, shared)
    _check_parts(run, use_tpu, values.gradient_accumulation_steps)
    if values.recompute_activations and use_tpu:
        # XLA would take the second computation for the first, and keep that: see `xla.recompute`.
        devices.require_tensorflow_2("--recompute_activations on a TPU")
    return run, use_tpu


def _check_parts(run, use_tpu, parts):
    """Raises UserError unless the parts of each replica's batches are equal."""
    count, among = device_flags.replicas(run, use_tpu)
    if run.train_batch_size % (parts * count):
        each = f" on each of the {count} replicas of {among}" if count > 1 else ""
        raise UserError(
            f"--gradient_accumulation_steps={parts} does not divide"
            f" --train_batch_size={run.train_batch_size} into equal parts{each}."
        )
