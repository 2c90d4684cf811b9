"""The flags that say what trains, and the adapters; and --adapter, which answers them.

As `bert_flags`: a script's main module defines them, and functions read the parsed values.
"""

import dataclasses
import re

from absl import flags, logging

from adapter_bert.common import configs
from adapter_bert.common.cli import section
from adapter_bert.common.errors import UserError
from adapter_bert.formats import adapter_checkpoints, checkpoints, task_adapter
from adapter_bert.ops import adapters
from adapter_bert.training import bert_flags
from adapter_bert.training import output_dir as run_directory

# Field of `configs.AdapterConfig` → what its flag is for.
_VARIANTS = {
    "normalization": "Normalization of the bottleneck, before its activation; batch: over all"
    " positions of a batch, and in evaluation by moving averages, which are kept with the adapter.",
    "sites": "The sub-layers of a layer that have adapters.",
    "placement": "What adapters read: the sub-layer's output (sequential), or what the sub-layer"
    " reads (parallel).",
    "interaction": "What a bottleneck's f makes of an output x: x + f, or x * (1 + f).",
}


def define(flag_values):
    """Defines them all."""
    _define_tuning(section("What trains", flag_values))
    _define_adapters(section("Adapters", flag_values))


def _define_tuning(at):
    flags.DEFINE_enum(
        "tuning",
        "adapters",
        list(configs.METHODS),
        "What trains: "
        + "; ".join("{}: {}".format(*item) for item in configs.METHODS.items())
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
        list(configs.LAYER_NORMS),
        "LayerNorms that train with adapters; adapted: in the layers that have one. Default: all,"
        " with --adapter_layers adapted.",
        **at,
    )


def _define_adapters(at):
    adapter = configs.AdapterConfig()
    flags.DEFINE_string("adapter_fn", adapter.fn, "Kind of adapter: feedforward_adapter.", **at)
    flags.DEFINE_integer(
        "adapter_size",
        adapter.size,
        "Width of the adapters' bottleneck; the default is adapter-bert's.",
        **at,
    )
    flags.DEFINE_string(
        "adapter_activation",
        adapter.activation,
        f"Activation of the bottleneck: {', '.join(configs.ACTIVATIONS)}.",
        **at,
    )
    flags.DEFINE_float(
        "adapter_init_scale",
        adapter.init_scale,
        "Standard deviation of the adapters' initial weights. The default is that of adapter-bert's"
        " code; the paper's text has 1e-2.",
        **at,
    )
    flags.DEFINE_string(
        "adapter_layers",
        None,
        "Layers that have adapters, from 0, as in 6-11 or 0,2-4. Default: all.",
        **at,
    )
    flags.DEFINE_integer("adapter_depth", adapter.depth, "Hidden layers of each adapter.", **at)
    for name, text in _VARIANTS.items():
        values = list(configs.VARIANTS[name])
        flags.DEFINE_enum("adapter_" + name, getattr(adapter, name), values, text, **at)


def given_adapter(values, is_training=False, trained_settings=None):
    """The `task_adapter.TaskAdapter` of --adapter, which answers flags that are not given.

    Where nothing is trained, it is also that of a run whose folder or checkpoint --init_checkpoint
    names; the flags then name the BERT that it was trained on.

    Args:
      values: parsed flags.
      is_training: bool, whether something is trained.
      trained_settings: function from the adapter's `training` to answers of the script's own flags.

    Returns:
      None without either.

    Raises:
      UserError: it is missing or damaged.
    """
    if values.adapter is None:
        given = None if is_training else _adapter_of_run(values)
    else:
        given = task_adapter.load(values.adapter)
    if given is None:
        return None
    description, method = given.description, given.description.tuning.method
    answers = {
        "task_name": description.task,
        "max_seq_length": description.max_seq_length,
        "do_lower_case": description.do_lower_case,
        "tuning": method,
    }
    if "tuning" in values and (not values["tuning"].present or values.tuning == method):
        answers.update(_answers_of_method(description))
    if trained_settings:
        try:
            answers.update(trained_settings(description.training))
        except UserError as error:
            raise UserError(f"--adapter {values.adapter}: {error}") from None
    for name, answer in answers.items():
        if name in values and not values[name].present:
            values[name].value = answer
    return given


def _adapter_of_run(values):
    """The `task_adapter.TaskAdapter` that --init_checkpoint names; None where it names a BERT.

    Of a folder that BERT's script left, it then names the last checkpoint.
    """
    named = values.init_checkpoint
    if not named:
        return None
    run = adapter_checkpoints.find_run_adapter(named)
    if not run:
        values["init_checkpoint"].value = checkpoints.resolve_prefix(named)
        return None
    values["adapter"].value = run.path
    bert_flags.take_recorded_flags(values, run_directory.recorded(run.output_dir, "pretrained"))
    logging.info(
        "--init_checkpoint=%s is a run's: using its task adapter, %s, on its BERT, %s.",
        named,
        run.path,
        values.init_checkpoint or values.bert_hub_module_handle or "as found",
    )
    return run.adapter


def use_head_of(checkpoint, values):
    """Lets flags that are not given fit a checkpoint that holds a task's head beside the BERT.

    As BERT's README predicts: with a fine-tuned checkpoint as --init_checkpoint.

    Args:
      checkpoint: prefix.
      values: parsed flags.
    """
    shapes = checkpoints.open_checkpoint(checkpoint).get_variable_to_shape_map()
    if not task_adapter.has_head(shapes):
        return
    sizes = {shape[-1] for name, shape in shapes.items() if name.endswith("/adapters/weights1")}
    flag, value = ("adapter_size", max(sizes)) if sizes else ("tuning", "full")
    if not values[flag].present:
        values[flag].value = value
        logging.info(
            "--init_checkpoint %s holds a head and %s adapters: --%s=%s.",
            checkpoint,
            "its" if sizes else "no",
            flag,
            value,
        )


def _answers_of_method(description):
    """Flag → what a task adapter's description says of it, for flags that go with its method."""
    method, adapter = description.tuning, description.adapter
    answers = {"num_top_layers": method.num_top_layers, "train_pooler": method.train_pooler}
    if adapter:
        answers["layer_norms"] = method.layer_norms
        for field in dataclasses.fields(adapter):
            answers["adapter_" + field.name] = getattr(adapter, field.name)
        answers["adapter_layers"] = adapter.layers and ",".join(map(str, adapter.layers))
    return answers


def tuning_settings(values, config):
    """What trains, and the adapters.

    Args:
      values: parsed flags.
      config: `modeling.BertConfig`, which must have as many layers as are to train.

    Returns:
      (`configs.Tuning`, `configs.AdapterConfig` or None where nothing is adapted).
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
    method = configs.Tuning(
        values.tuning,
        values.num_top_layers,
        values.train_pooler,
        values.layer_norms or ("all" if layers is None else "adapted"),
    )
    method.check_num_top_layers(config.num_hidden_layers)
    adapter = configs.AdapterConfig(
        size=values.adapter_size,
        activation=values.adapter_activation,
        init_scale=values.adapter_init_scale,
        fn=values.adapter_fn,
        layers=layers,
        normalization=values.adapter_normalization,
        depth=values.adapter_depth,
        sites=values.adapter_sites,
        placement=values.adapter_placement,
        interaction=values.adapter_interaction,
    )
    if method.method != "adapters":
        _warn_of_unused(values)
        return method, None
    if adapters.build(adapter) is None:
        raise UserError(
            f"--tuning=adapters with --adapter_fn={values.adapter_fn} leaves nothing to adapt;"
            " for BERT without adapters choose --tuning=full."
        )
    return method, adapter


def _warn_of_unused(values):
    for name in values:
        if name.startswith("adapter_") and values[name].present:
            logging.warning(
                "--%s=%s is not used: --tuning=%s has no adapters.",
                name,
                values[name].value,
                values.tuning,
            )


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
