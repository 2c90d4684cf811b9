"""The task adapter that a run starts from, and the flags that it supplies.

--adapter names its folder. Without training, --init_checkpoint may instead name a run, a run's
checkpoint, or a checkpoint with a task's head, from which BERT's README predicts.
"""

import dataclasses
import os
from typing import Any, Callable, Dict, NamedTuple, Optional

from absl import flags, logging

from adapter_bert.files import gfile, paths
from adapter_bert.formats import hub, task_adapter
from adapter_bert.model import configs, task_kinds
from adapter_bert.shell.errors import UserError
from adapter_bert.shell.settings import Supplied
from adapter_bert.training import config, pretrained

# From an adapter's `training` to the script's own flags that it supplies; may raise UserError.
SettingsOf = Callable[[Dict[str, Any]], Dict[str, Any]]


class StartingPoint(NamedTuple):
    """The starting point of a run.

    Attributes:
      adapter: `task_adapter.TaskAdapter`, or None.
      supplied: `Supplied`, the values of flags that come with it.
    """

    adapter: Optional[task_adapter.TaskAdapter] = None
    supplied: Supplied = Supplied()


def find(
    values: flags.FlagValues,
    task: Optional[str] = None,
    settings_of: Optional[SettingsOf] = None,
    script: Optional[str] = None,
) -> StartingPoint:
    """Returns the `StartingPoint` that flags name.

    Args:
      values: parsed flags.
      task: name of the task in the default of --output_dir; None for a script that cannot train.
      settings_of: see `SettingsOf`.
      script: the script that trains the tasks of this one; None if any adapter will do.

    Raises:
      UserError: the adapter is missing or damaged, or of another script's kind of task; or --bert
        is none.
    """
    if "adapter_fn" in values and values["adapter_fn"].present:
        configs.import_function(values.adapter_fn)
    bert = _supplied_by_bert(values)
    start = _find(values, task, settings_of, script)
    supplied = Supplied(
        {**bert.defaults, **start.supplied.defaults},
        {**bert.replacements, **start.supplied.replacements},
    )
    return start._replace(supplied=supplied)


def _supplied_by_bert(values: flags.FlagValues) -> Supplied:
    """Returns the local folder of --bert, and the casing of its texts."""
    if not values.bert:
        return Supplied()
    located = config.PretrainedConfig.from_flags(values)
    located = dataclasses.replace(located, bert=pretrained.local_folder(located))
    bert = pretrained.find(located, reads_checkpoint=False)
    return Supplied({"do_lower_case": pretrained.is_lower_cased(bert)}, {"bert": located.bert})


def _find(
    values: flags.FlagValues,
    task: Optional[str],
    settings_of: Optional[SettingsOf],
    script: Optional[str],
) -> StartingPoint:
    is_training = "do_train" in values and (
        values.do_train or not (values.do_eval or values.do_predict)
    )
    if values.adapter is not None:
        path = hub.local_folder(values.adapter, "--adapter")
        adapter = task_adapter.load(path)
        _check_kind(adapter.description, f"--adapter {values.adapter}", script)
        replacements = {} if path == values.adapter else {"adapter": path}
        return StartingPoint(
            adapter, _supplied_by(adapter, path, values, replacements, settings_of)
        )
    if is_training or not values.init_checkpoint:
        return StartingPoint(
            None, Supplied() if is_training else _supplied_by_head(None, values, task)
        )
    from adapter_bert.formats import adapter_checkpoints, checkpoints  # They import TensorFlow.
    from adapter_bert.training.run_folder import RunFolder

    run = adapter_checkpoints.find_run_adapter(values.init_checkpoint)
    if not run:
        prefix = checkpoints.resolve_prefix(values.init_checkpoint)
        supplied = _supplied_by_head(prefix, values, task)
        return StartingPoint(None, supplied._replace(replacements={"init_checkpoint": prefix}))
    where = f"--init_checkpoint {values.init_checkpoint}"
    _check_kind(run.adapter.description, where, script)
    recorded = RunFolder(run.output_dir).recorded("pretrained")
    located = _run_bert_flags(values, recorded)
    if "init_checkpoint" not in located:
        advice = f"use --adapter={run.path} --bert="
        pretrained.check_conversion(recorded, where, advice)
    bert = {"init_checkpoint": None, "adapter": run.path, **located}
    logging.info(
        "--init_checkpoint=%s belongs to a run: using its task adapter, %s, on its BERT, %s.",
        values.init_checkpoint,
        run.path,
        bert["init_checkpoint"]
        or bert.get("bert_hub_module_handle", values.bert_hub_module_handle)
        or "in the default location",
    )
    return StartingPoint(
        run.adapter, _supplied_by(run.adapter, run.path, values, bert, settings_of)
    )


def _check_kind(description: task_adapter.Description, where: str, script: Optional[str]) -> None:
    """Raises UserError if another script trains such tasks; `where` begins the error."""
    of_kind = task_kinds.get(description.kind).script
    if script not in (None, of_kind):
        raise UserError(
            f"{where} was trained on {description.task}, a {description.kind} task; use {of_kind}."
        )


def _supplied_by(
    adapter: task_adapter.TaskAdapter,
    path: str,
    values: flags.FlagValues,
    replacements: Dict[str, Any],
    settings_of: Optional[SettingsOf],
) -> Supplied:
    """Returns the flags that a task adapter supplies unless they are given."""
    description, method = adapter.description, adapter.description.tuning.method
    defaults = {
        "task_name": description.task,
        "max_seq_length": description.max_seq_length,
        "do_lower_case": description.do_lower_case,
        "tuning": method,
    }
    if "tuning" in values and (not values["tuning"].present or values.tuning == method):
        defaults.update(config.adapter_flags(description.tuning, description.adapter))
    if settings_of:
        try:
            defaults.update(settings_of(description.training))
        except UserError as error:
            raise UserError(f"--adapter {path}: {error}") from None
    return Supplied(defaults, replacements)


def _run_bert_flags(values: flags.FlagValues, recorded: Dict[str, Any]) -> Dict[str, str]:
    """Returns the flags that name the BERT of a run and replace --init_checkpoint.

    Flags that are given stay. If the run does not record its BERT, or the files are gone, uses the
    checkpoint next to --bert_config_file, or else the one of `paths.find_bert`.

    Args:
      values: parsed flags.
      recorded: the result of `pretrained.recorded_flags` from the run's training, or {}.
    """
    if values.bert_hub_module_handle:
        return {}
    recorded = {name: path for name, path in recorded.items() if isinstance(path, str)}
    vocabulary = values.vocab_file or values.spm_model_file
    handle = recorded.get("bert_hub_module_handle")
    if handle and not (values.bert_config_file or vocabulary):
        return {"bert_hub_module_handle": handle}
    given_flags = {"vocab_file": vocabulary, "spm_model_file": vocabulary, "init_checkpoint": None}
    given_flags["bert_config_file"] = values.bert_config_file
    bert_flags = {
        name: path
        for name, path in recorded.items()
        # `exists` is not for TF-Hub addresses.
        if name in given_flags
        and not given_flags[name]
        and (gfile.exists(path) or gfile.exists(path + ".index"))
    }
    config_file = bert_flags.get("bert_config_file", values.bert_config_file)
    if config_file and "init_checkpoint" not in bert_flags:
        prefix = os.path.join(os.path.dirname(config_file), paths.BERT_FILES["init_checkpoint"])
        if gfile.exists(prefix + ".index"):
            bert_flags["init_checkpoint"] = prefix
    return bert_flags


def _supplied_by_head(
    prefix: Optional[str], values: flags.FlagValues, task: Optional[str]
) -> Supplied:
    """Returns the flags that fit a checkpoint with a BERT and a task's head.

    A run in --output_dir has its own head, and its settings describe it.

    Args:
      prefix: of the checkpoint; None for the one of `paths.find_bert`.
      values: parsed flags.
      task: as in `find`.
    """
    if not task or values.bert_hub_module_handle or values.bert:
        return Supplied()
    from adapter_bert.formats import checkpoints  # It imports TensorFlow.
    from adapter_bert.training.run_folder import RunFolder

    output = RunFolder(values.output_dir or config.default_folder(task, values.tuning))
    has_head = output.has_checkpoints() or output.has_adapter()
    if has_head and output.recorded("model") and (values.output_dir or prefix is None):
        return Supplied()
    checkpoint = prefix or paths.find_bert("init_checkpoint", None)
    replacements = {"init_checkpoint": checkpoint}  # So that it is searched for only once.
    shapes = checkpoints.open_checkpoint(checkpoint).get_variable_to_shape_map()
    if not task_adapter.has_head(shapes):
        return Supplied({}, replacements)
    weights = [shape for name, shape in shapes.items() if name.endswith("/adapters/weights1")]
    sizes = {shape[1] for shape in weights if len(shape) == 2}
    name, value = ("adapter_size", max(sizes)) if sizes else ("tuning", "full")
    if values[name].present:
        return Supplied({}, replacements)
    logging.info(
        "--init_checkpoint %s holds a head and %s adapters: using --%s=%s.",
        checkpoint,
        "its" if sizes else "no",
        name,
        value,
    )
    return Supplied({name: value}, replacements)
