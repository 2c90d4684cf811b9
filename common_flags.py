"""The flags that scripts share, and the settings that they become.

Flags are defined by a function that a script's main module calls, and read by functions that take
the parsed values, so that nothing here depends on a global and scripts can be imported together.
"""

import dataclasses
import math
import re
import threading
import warnings

import tensorflow.compat.v1 as tf
from absl import flags, logging

import adapter_modules
import checkpoints
import devices
import distribution
import feature_cache
import modeling
import paths
import task_adapters
import tokenization
import training
import tuning
from errors import UserError
from layers import ACTIVATIONS


def define(flag_values=flags.FLAGS):
    """Defines those of a training: BERT's, with BERT's names and defaults, and adapter-bert's."""
    at = {"flag_values": flag_values}
    define_bert(flag_values)
    _define_results(at)
    _define_training(at)
    _define_tuning(at)
    _define_adapters(at)
    define_devices(flag_values)
    _define_distribution(at)


def define_bert(flag_values):
    """Defines the flags that say which BERT is run on which texts, and where these are kept."""
    define_pretrained(flag_values)
    at = {"flag_values": flag_values}
    flags.DEFINE_string(
        "feature_cache_dir",
        None,
        "Where texts are kept as token ids, to be read the next time. Default:"
        " ~/.cache/adapter-bert/features; none keeps nothing.",
        **at,
    )
    flags.DEFINE_bool(
        "do_lower_case", True, "Lower-case the text: True for uncased models, else False.", **at
    )


def define_pretrained(flag_values):
    """Defines the flags that say where the pretrained BERT lies."""
    at = {"flag_values": flag_values}
    bert = " Default: from $BERT_BASE_DIR, else what `make demo` prepared."
    flags.DEFINE_string("bert_config_file", None, "bert_config.json of the BERT." + bert, **at)
    flags.DEFINE_string("vocab_file", None, "WordPiece vocabulary of the BERT." + bert, **at)
    flags.DEFINE_string(
        "init_checkpoint", None, "Prefix of the pretrained TensorFlow checkpoint." + bert, **at
    )
    flags.DEFINE_string(
        "bert_hub_module_handle",
        None,
        "TF-Hub module (address or folder) to take weights, config and vocabulary from, in place"
        " of the three flags above.",
        **at,
    )
    flags.DEFINE_string(
        "spm_model_file", None, "SentencePiece model, in place of --vocab_file.", **at
    )


def _define_results(at):
    flags.DEFINE_string(
        "output_dir", None, "Where checkpoints and results go. Default: output/<task>.", **at
    )
    flags.DEFINE_string(
        "adapter",
        None,
        "Folder of a task adapter, output_dir/adapter of an earlier run: what is evaluated and"
        " predicted with, or trained further. It answers flags that are not given.",
        **at,
    )
    flags.DEFINE_bool(
        "save_full_checkpoint",
        False,
        "After the training write BERT and adapters together, as output_dir/full_model.ckpt, which"
        " BERT's and adapter-bert's own code can load.",
        **at,
    )
    flags.DEFINE_integer(
        "eval_every_steps",
        0,
        "Evaluate on the dev set every so many steps; 0 evaluates at the end alone, or after each"
        " epoch with one of the next two flags.",
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
    flags.DEFINE_bool(
        "overwrite_output_dir", False, "Remove an earlier run's files in output_dir first.", **at
    )


def _define_training(at):
    flags.DEFINE_bool("do_train", False, "Train.", **at)
    flags.DEFINE_bool("do_predict", False, "Predict.", **at)
    flags.DEFINE_integer(
        "train_batch_size", 32, "Examples in a training step.", lower_bound=1, **at
    )
    flags.DEFINE_integer("predict_batch_size", 8, "Examples in a batch of predictions.", 1, **at)
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
        "warmup_proportion", 0.1, "Share of the steps in which the learning rate rises.", **at
    )
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
    flags.DEFINE_integer("save_checkpoints_steps", 1000, "Steps between checkpoints.", 1, **at)
    flags.DEFINE_integer(
        "random_seed", 12345, "Of initial values, dropout and the order of the data.", 0, **at
    )


def _define_tuning(at):
    flags.DEFINE_enum(
        "tuning",
        "adapters",
        list(tuning.METHODS),
        "What trains: "
        + "; ".join("{}: {}".format(*item) for item in tuning.METHODS.items())
        + ".",
        **at,
    )
    flags.DEFINE_integer("num_top_layers", None, "Layers that --tuning=top_layers trains.", **at)
    flags.DEFINE_bool(
        "train_pooler", False, "Train BERT's pooler with adapters, layer_norm or head.", **at
    )
    flags.DEFINE_enum(
        "layer_norms",
        None,
        list(tuning.LAYER_NORMS),
        "LayerNorms that train with adapters; adapted: in the layers that have one. Default: all,"
        " with --adapter_layers adapted.",
        **at,
    )


def _define_adapters(at):
    adapter = modeling.AdapterConfig()
    flags.DEFINE_string("adapter_fn", adapter.fn, "Kind of adapter: feedforward_adapter.", **at)
    flags.DEFINE_integer("adapter_size", adapter.size, "Width of the adapters' bottleneck.", **at)
    flags.DEFINE_string(
        "adapter_activation",
        adapter.activation,
        f"Their activation: {', '.join(ACTIVATIONS)}.",
        **at,
    )
    flags.DEFINE_float(
        "adapter_init_scale",
        adapter.init_scale,
        "Standard deviation of their initial weights (the paper's text has 1e-2).",
        **at,
    )
    flags.DEFINE_string(
        "adapter_layers", None, "Layers that have them, from 0, as in 6-11 or 0,2-4; all.", **at
    )
    flags.DEFINE_integer("adapter_depth", adapter.depth, "Hidden layers of each adapter.", **at)
    for name, text in (
        (
            "normalization",
            "Of the bottleneck, before its activation; batch: over all positions of a batch, and in"
            " evaluation by moving averages, which are kept with the adapter.",
        ),
        ("sites", "The sub-layers of a layer that have adapters."),
        ("placement", "What they read: the sub-layer's output, or what the sub-layer reads."),
        ("interaction", "What a bottleneck's f makes of an output x: x + f, or x * (1 + f)."),
    ):
        values = list(adapter_modules.VARIANTS[name])
        flags.DEFINE_enum("adapter_" + name, getattr(adapter, name), values, text, **at)


def define_devices(flag_values):
    """Defines the flags that say where, and how precisely, a model is computed."""
    at = {"flag_values": flag_values}
    flags.DEFINE_bool(
        "use_tpu", False, "Run on a TPU; where there is none and none is named, without.", **at
    )
    flags.DEFINE_enum(
        "precision",
        "auto",
        list(devices.PRECISIONS),
        "Of what lies between the variables and the loss, which stay float32; auto: bfloat16 where"
        " the processor or TPU has it natively, else float32.",
        **at,
    )
    flags.DEFINE_string("tpu_name", None, "Cloud TPU to use: name, grpc:// address, local.", **at)
    flags.DEFINE_string("tpu_zone", None, "GCE zone of the Cloud TPU.", **at)
    flags.DEFINE_string("gcp_project", None, "Project of the Cloud TPU.", **at)
    flags.DEFINE_string("master", None, "Address of a TensorFlow master.", **at)
    flags.DEFINE_integer("num_tpu_cores", 8, "TPU cores to use.", 1, **at)


def _define_distribution(at):
    flags.DEFINE_integer("iterations_per_loop", 1000, "TPU steps between two looks.", 1, **at)
    flags.DEFINE_enum(
        "distribution",
        "none",
        list(distribution.KINDS),
        "What trains together: "
        + "; ".join("{}: {}".format(*item) for item in distribution.KINDS.items())
        + ". --train_batch_size is that of all together.",
        **at,
    )
    flags.DEFINE_float(
        "worker_timeout",
        300.0,
        "Seconds that a worker of TF_CONFIG's cluster waits for the others to come.",
        1.0,
        **at,
    )


def stages(values):
    """The stages to run, of train, eval and predict; train and eval if no flag names any.

    Raises:
      UserError: all that are named are switched off.
    """
    flag = {"train": "do_train", "eval": "do_eval", "predict": "do_predict"}
    chosen = [stage for stage in flag if getattr(values, flag[stage])]
    if not chosen and any(values[name].present for name in flag.values()):
        raise UserError("Nothing to do: --do_train, --do_eval and --do_predict are all off.")
    return chosen or ["train", "eval"]


def feature_folder(values):
    """Where --feature_cache_dir keeps features; None for nowhere."""
    if values.feature_cache_dir == "none":
        return None
    return values.feature_cache_dir or feature_cache.default_folder()


def given_adapter(values):
    """The `task_adapters.TaskAdapter` of --adapter, which answers flags that are not given.

    Returns:
      None without the flag.

    Raises:
      UserError: it is missing or damaged.
    """
    if values.adapter is None:
        return None
    given = task_adapters.load(values.adapter)
    description, method = given.description, given.description.tuning.method
    answers = {
        "task_name": description.task,
        "max_seq_length": description.max_seq_length,
        "do_lower_case": description.do_lower_case,
        "tuning": method,
    }
    if "tuning" in values and (not values["tuning"].present or values.tuning == method):
        answers.update(_answers_of_method(description))
    for name, answer in answers.items():
        if name in values and not values[name].present:
            values[name].value = answer
    return given


def _answers_of_method(description):
    """Flag → what a task adapter's description says of it, for flags that go with its method."""
    method, adapter = description.tuning, description.adapter
    answers = {"num_top_layers": method.num_top_layers, "train_pooler": method.train_pooler}
    if adapter:
        layers = adapter.layers and ",".join(str(layer) for layer in adapter.layers)
        answers.update(
            layer_norms=method.layer_norms,
            adapter_fn=adapter.fn,
            adapter_size=adapter.size,
            adapter_activation=adapter.activation,
            adapter_init_scale=adapter.init_scale,
            adapter_layers=layers,
            adapter_normalization=adapter.normalization,
            adapter_depth=adapter.depth,
            adapter_sites=adapter.sites,
            adapter_placement=adapter.placement,
            adapter_interaction=adapter.interaction,
        )
    return answers


def pretrained_bert(values):
    """Finds the pretrained BERT, and makes its tokenizer; its parts must belong together.

    Args:
      values: parsed flags of `define_bert`.

    Returns:
      (`checkpoints.PretrainedBert`, `tokenization.FullTokenizer`).

    Raises:
      UserError: something is missing, broken or of another model.
    """
    bert = find_pretrained(values)
    lower_case = values.do_lower_case
    if bert.do_lower_case not in (None, lower_case):
        raise UserError(
            f"--do_lower_case={lower_case} does not fit"
            f" --bert_hub_module_handle={values.bert_hub_module_handle}, which says"
            f" {bert.do_lower_case}."
        )
    tokenization.validate_case_matches_checkpoint(lower_case, bert.init_checkpoint)
    tokenizer = tokenization.FullTokenizer(
        bert.vocab_file, lower_case, spm_model_file=values.spm_model_file
    )
    tokenization.check_vocab_casing(tokenizer.vocab, lower_case, bert.vocab_file)
    tokenization.check_vocab_size(tokenizer.vocab, bert.config.vocab_size, bert.vocab_file)
    return bert, tokenizer


def find_pretrained(values):
    """The `checkpoints.PretrainedBert` that the flags of `define_pretrained` name.

    Raises:
      UserError: something is missing, or the weights are not those of the config.
    """
    if values.bert_hub_module_handle:
        return _from_hub(values)
    config_file = paths.find_bert("bert_config_file", values.bert_config_file)
    vocab_file = values.spm_model_file or paths.find_bert("vocab_file", values.vocab_file)
    bert = checkpoints.PretrainedBert(
        config=modeling.BertConfig.from_json_file(config_file),
        vocab_file=vocab_file,
        init_checkpoint=paths.find_bert("init_checkpoint", values.init_checkpoint),
        do_lower_case=None,
    )
    checkpoints.check_encoder(bert.init_checkpoint, bert.config)
    return bert


def _from_hub(values):
    given = ["--" + name for name in (*paths.BERT_FILES, "spm_model_file") if getattr(values, name)]
    if given:
        raise UserError(
            "--bert_hub_module_handle takes the place of {}: give one or the other.".format(
                ", ".join(given)
            )
        )
    return checkpoints.from_hub(values.bert_hub_module_handle)


def tuning_settings(values, config):
    """What trains, and the adapters.

    Args:
      values: parsed flags.
      config: `modeling.BertConfig`, which must have as many layers as are to train.

    Returns:
      (`tuning.Tuning`, `modeling.AdapterConfig` or None where nothing is adapted).
    """
    for flag in ("adapter_layers", "layer_norms"):
        if getattr(values, flag) is not None and values.tuning != "adapters":
            raise UserError(
                f"--{flag}={getattr(values, flag)} goes with --tuning=adapters, not with"
                f" --tuning={values.tuning}."
            )
    layers = None
    if values.adapter_layers is not None:
        layers = parse_layers(values.adapter_layers, config.num_hidden_layers)
    method = tuning.Tuning(
        values.tuning,
        values.num_top_layers,
        values.train_pooler,
        values.layer_norms or ("all" if layers is None else "adapted"),
    )
    method.check_depth(config.num_hidden_layers)
    adapter = modeling.AdapterConfig(
        values.adapter_size,
        values.adapter_activation,
        values.adapter_init_scale,
        values.adapter_fn,
        layers,
        values.adapter_normalization,
        values.adapter_depth,
        values.adapter_sites,
        values.adapter_placement,
        values.adapter_interaction,
    )
    if method.method != "adapters":
        return method, None
    if adapter.build() is None:
        raise UserError(
            f"--tuning=adapters with --adapter_fn={values.adapter_fn} leaves nothing to adapt;"
            " for BERT without adapters choose --tuning=full."
        )
    return method, adapter


def parse_layers(text, num_layers):
    """The layers that --adapter_layers names.

    Args:
      text: indices from 0 and ranges of them, "6-11" or "0,2-4".
      num_layers: int, how many layers the encoder has.

    Returns:
      Tuple of ints, ascending.

    Raises:
      UserError: it is none of that, or names a layer that is not there.
    """
    expected = f"expected layers from 0 to {num_layers - 1}, as in 0,2-4"
    layers = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        named = match and range(int(match.group(1)), int(match.group(2) or match.group(1)) + 1)
        if not named:
            raise UserError(
                f"--adapter_layers={text}: {part!r} is no layer and no range; {expected}."
            )
        if named[-1] >= num_layers:
            raise UserError(
                f"--adapter_layers={text}: the encoder has {num_layers} layers; {expected}."
            )
        layers.update(named)
    return tuple(sorted(layers))


def schedule(values, method, num_examples):
    """The learning rate and the steps of a training.

    Args:
      values: parsed flags.
      method: a key of `tuning.METHODS`.
      num_examples: int, rows of the training data.

    Returns:
      dict with learning_rate, num_train_steps and num_warmup_steps.
    """
    default_rate, default_epochs = training.default_schedule(method)
    rate = default_rate if values.learning_rate is None else values.learning_rate
    epochs = default_epochs if values.num_train_epochs is None else values.num_train_epochs
    for flag, value in (("learning_rate", rate), ("num_train_epochs", epochs)):
        if getattr(values, flag) is None:
            logging.info("--%s: %g, the default for --tuning=%s", flag, value, method)
        if not 0 < value < math.inf:
            raise UserError(f"--{flag} must be a number above 0, but is {value}.")
    if not 0 <= values.warmup_proportion < 1:
        raise UserError(
            f"--warmup_proportion must lie in [0, 1), but is {values.warmup_proportion}."
        )
    steps = int(num_examples / values.train_batch_size * epochs)
    if not steps:
        raise UserError(
            f"{num_examples} training examples in batches of {values.train_batch_size} for"
            f" {epochs} epochs make no step: lower --train_batch_size or raise --num_train_epochs."
        )
    return {
        "learning_rate": rate,
        "num_train_steps": steps,
        "num_warmup_steps": int(steps * values.warmup_proportion),
    }


def run_settings(values, output_dir, eval_batch_size):
    """Connects to the TPU if one is asked for.

    Returns:
      (`training.RunSettings`, use_tpu).

    Raises:
      UserError: the TPU cannot be reached, --distribution cannot be had here, or a batch has no
        equal parts.
    """
    distributed = distribution.choose(values.distribution, values.use_tpu)
    run, use_tpu = evaluation_settings(values, output_dir, eval_batch_size)
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
    _check_batches(run, use_tpu, shared)
    _check_parts(run, use_tpu, values.gradient_accumulation_steps)
    return run, use_tpu


def evaluation_settings(values, output_dir, eval_batch_size):
    """`run_settings` of a script that only evaluates, and has no flags of a training."""
    use_tpu, cluster = devices.find_tpu(
        values.use_tpu,
        values.tpu_name,
        values.tpu_zone,
        values.gcp_project,
        values.master,
        values.num_tpu_cores,
    )
    run = training.RunSettings(
        output_dir=output_dir,
        eval_batch_size=eval_batch_size,
        num_tpu_cores=values.num_tpu_cores,
        tpu_cluster=cluster,
        master=values.master if use_tpu else None,
    )
    _check_batches(run, use_tpu, ["eval_batch_size"])
    return run, use_tpu


def _replicas(run, use_tpu):
    """(how many replicas share a batch, the flag that says so)."""
    if use_tpu:
        return run.num_tpu_cores, f"--num_tpu_cores={run.num_tpu_cores}"
    return run.distribution.num_replicas, f"--distribution={run.distribution.kind}"


def _check_batches(run, use_tpu, flags_of_batches):
    """Raises UserError unless each replica's batches are equal."""
    replicas, among = _replicas(run, use_tpu)
    for flag in flags_of_batches:
        if getattr(run, flag) % replicas:
            raise UserError(
                f"--{flag}={getattr(run, flag)} does not fall into equal parts for the {replicas}"
                f" replicas of {among}; choose a multiple of {replicas}."
            )


def _check_parts(run, use_tpu, parts):
    """Raises UserError unless the parts of each replica's batches are equal."""
    replicas, among = _replicas(run, use_tpu)
    if run.train_batch_size % (parts * replicas):
        each = f" on each of the {replicas} replicas of {among}" if replicas > 1 else ""
        raise UserError(
            f"--gradient_accumulation_steps={parts} does not divide"
            f" --train_batch_size={run.train_batch_size} into equal parts{each}."
        )


def check_paths_for_tpu(values, output_dir, init_checkpoint):
    """Raises UserError unless the host of the TPU can read what it is to read itself.

    Args:
      values: parsed flags.
      output_dir, init_checkpoint: paths.
    """
    host = values.tpu_name or values.master
    if host in (None, "", "local"):
        return
    for flag, path in (("output_dir", output_dir), ("init_checkpoint", init_checkpoint)):
        if "://" not in path:
            raise UserError(
                f"--{flag}={path}: the host of the TPU {host} cannot read this machine's files;"
                " expected a gs:// path."
            )


def check_sequence_length(values, config, shortest):
    """Raises UserError unless --max_seq_length has room for a text and the model for it."""
    length = values.max_seq_length
    if length > config.max_position_embeddings:
        raise UserError(
            f"--max_seq_length={length} is over the {config.max_position_embeddings} positions"
            " that the BERT was trained with (max_position_embeddings)."
        )
    if length < shortest:
        raise UserError(f"--max_seq_length={length} is too short, it must be {shortest} or more.")


def silence_tensorflow():
    """Turns TensorFlow's log off, whose errors come as exceptions too; --verbosity=1 keeps it."""
    tf.get_logger().propagate = False  # absl's handler would print it once more.
    talkative = logging.get_verbosity() > logging.INFO
    tf.logging.set_verbosity(tf.logging.INFO if talkative else tf.logging.FATAL)
    if not talkative:
        warnings.filterwarnings("ignore", "To make it possible to preserve tf.data options")
        threading.excepthook = _report_thread


def _report_thread(failure):
    """Python's report of an error in a thread, but for one that the main thread raises again."""
    if failure.thread.name != "EventLoggerThread":
        threading.__excepthook__(failure)


def main_of(run):
    """The main of a training script.

    Args:
      run: function of the parsed flags, which returns the report that ends the run: its lines.
    """

    def main(argv):
        if argv[1:]:
            raise UserError(f"{argv[1]}: flags only, written as --name=value.")
        silence_tensorflow()
        try:
            print("\n".join(run(flags.FLAGS)))
        except tf.errors.UnimplementedError as error:
            if not error.message.startswith("File system scheme"):
                raise
            raise UserError(f"{error.message}: this TensorFlow cannot read there.") from error

    return main
