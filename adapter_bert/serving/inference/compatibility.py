"""Tells which tasks can share an encoder, and which tensors are task-specific.

Each task may have its own adapters, LayerNorms, pooler and head. All else belongs to the backbone.
"""

import dataclasses
from typing import Any, Dict, Iterable

from adapter_bert.formats import task_adapter
from adapter_bert.model import configs, model_variables, task_kinds
from adapter_bert.serving.inference import presentations
from adapter_bert.shell.errors import UserError

HEAD = ("output_weights", "output_bias")

# The settings of an adapter whose values do not change an encoder's graph.
_FREE = ("size", "init_scale", "layers", "sites")


def architecture_of(adapter: configs.AdapterConfig) -> configs.AdapterConfig:
    """Returns an adapter's architecture: tasks of equal architectures can share an encoder.

    It is the `configs.AdapterConfig` with the defaults of all settings that do not change the
    graph. Adapters of different sizes are padded to the largest, except with LayerNorms in the
    bottleneck, whose means would change.
    """
    changes = {name: getattr(configs.AdapterConfig(), name) for name in _FREE}
    if adapter.normalization == "layer":
        changes["size"] = adapter.size
    activation = adapter.activation.lower() or "linear"  # As in `modeling.get_activation`.
    return dataclasses.replace(adapter, fn=adapter.function, activation=activation, **changes)


DEFAULT = architecture_of(configs.AdapterConfig())


def common_architecture(adapters: Iterable[task_adapter.TaskAdapter]) -> configs.AdapterConfig:
    """Returns the architecture that all adapters share; raises UserError if they differ."""
    settings = [each.description.adapter for each in adapters if each.description.adapter]
    architectures = set(map(architecture_of, settings)) or {DEFAULT}
    if len(architectures) > 1:
        differences = []
        for field in dataclasses.fields(configs.AdapterConfig):
            # An architecture's size is the default one, except with LayerNorms.
            values, own = (
                sorted({str(getattr(each, field.name)) for each in group})
                for group in (architectures, settings)
            )
            if len(values) > 1 and len(own) > 1:
                differences.append(f"{field.name} ({' and '.join(own)})")
        raise UserError(
            f"Adapters of different {', '.join(differences)} cannot share a model: export their"
            " tasks separately."
        )
    return architectures.pop()


def check_compatible(
    description: task_adapter.Description, backbone: task_adapter.Backbone, where: str
) -> None:
    """Checks that a task can share an encoder with others.

    Args:
      description: `task_adapter.Description`.
      backbone: `task_adapter.Backbone` of the encoder.
      where: begins the error message.

    Raises:
      UserError: it has no labels, was trained on another BERT, reads pairs with a BERT of a single
        segment id, trained parameters that tasks must share, or has a head of other variables.
    """
    expected, actual = _backbone_identity(backbone), _backbone_identity(description.backbone)
    for name in (name for name in expected if expected[name] != actual[name]):
        raise UserError(
            f"{where} was trained on another BERT, {description.backbone.name}, whose {name} is"
            f" {actual[name]}; expected {expected[name]} ({backbone.name})."
        )
    presentation, num_required = presentations.of(description)
    configs.check_pairs(backbone.bert_config(), presentation.fields[:num_required], where)
    if not task_kinds.get(description.kind).num_outputs(len(description.labels)):
        raise UserError(f"{where} has no labels, so that it cannot answer.")
    try:
        trained = task_adapter.shapes(description)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    encoder = model_variables.encoder_shapes(backbone.bert_config())
    shared = sorted(name for name in encoder if name in trained and not is_task_specific(name))
    if shared:
        raise UserError(
            f"{where} (--tuning={description.tuning.method}) trained {shared[0]}, which tasks that"
            " share a model cannot; train it by --tuning=adapters, or predict by its script with"
            " --adapter."
        )
    unread = sorted(
        name
        for name in trained
        if name not in encoder and "/adapters/" not in name and table_name(name) not in HEAD
    )
    if unread:
        raise UserError(
            f"{where} has a head with {unread[0]}, which only its script computes: predict with"
            " --adapter there, or compute the head in serving/export/multi_task_bert.py and"
            " serving/inference/onnx_encoder.py."
        )


def _backbone_identity(backbone: task_adapter.Backbone) -> Dict[str, Any]:
    """Returns what identifies a BERT. An adapter may claim any fingerprint, so sizes count too."""
    names = "hidden_size", "num_hidden_layers", "num_attention_heads", "hidden_act"
    return {"fingerprint": backbone.fingerprint, **{n: backbone.config.get(n) for n in names}}


def table_name(name: str) -> str:
    """Returns the table of a task adapter's tensor; heads of all kinds share their tables."""
    variable = name.rpartition("/")[2]
    return variable if variable in HEAD else name


def is_task_specific(name: str) -> bool:
    """Returns whether an encoder's tensor is task-specific: LayerNorms and the pooler are."""
    return "/LayerNorm/" in name or name.startswith("bert/pooler/")
